/*
 * quant_config.h - quantization_config of a checkpoint's linear layers, and finding their codes and
 * scales.
 *
 * quant_config.c reads the configuration, quant_bind.c makes one matrix of each layer's tensors.
 * Included by these two, ckpt.c and config.c. Must not: be included by other folders.
 */
#ifndef SV_LOAD_QUANT_CONFIG_H
#define SV_LOAD_QUANT_CONFIG_H

#include "load/impl.h"

enum sv_quant_method {
    SV_QUANT_NONE,
    SV_QUANT_FP8, /* transformers: blocks and weight_scale_inv */
    SV_QUANT_CT,  /* compressed-tensors */
    SV_QUANT_MODELOPT,
    SV_QUANT_AWQ,
    SV_QUANT_GPTQ
};

/* Storage of the weights of some layers. */
struct sv_scheme {
    enum sv_quant_code code;
    int32_t block_rows, block_cols; /* 0: all of them */
    bool zeros;                     /* zero points are stored */
    bool permuted;                  /* a group for each column is stored (g_idx) */
};

#define SV_MAX_SCHEMES 16
struct sv_quant_config {
    enum sv_quant_method method;
    struct sv_scheme scheme[SV_MAX_SCHEMES];
    const json_t *targets[SV_MAX_SCHEMES]; /* names, or NULL: every linear layer */
    int32_t n_schemes;
    const json_t *ignore; /* names of layers that are not quantized, or NULL */
    const json_t *layers; /* modelopt: an algorithm for each layer by name, or NULL */
    /* GPTQ: expressions, of which "-:" excludes layers; modules that are quantized, NULL: all */
    const json_t *dynamic, *modules;
    bool zero_is_less_one; /* GPTQ: zero points are stored minus one */
};
/* gpt-oss's own method, whose tensors are stacked experts: packed.c reads them. */
bool sv_quant_is_mxfp4(const json_t *obj);
/* obj is quantization_config; the result borrows from it. Errors name the field. */
int sv_quant_config_read(struct sv_quant_config *q, const json_t *obj, struct sv_err *err);
/* The scheme of layer "layers.0.mlp.up_proj"; NULL: not quantized. *why: the deciding entry, or "".
 * err: an invalid regular expression. */
int sv_quant_config_scheme(const struct sv_quant_config *q, const char *layer,
                           const struct sv_scheme **scheme, const char **why, struct sv_err *err);

/* Replaces codes and scales of quantized layers by matrices named X.weight, by dir's configuration,
 * and drops scales of activations and caches. */
int sv_quant_bind_by(struct sv_ckpt *c, const json_t *obj, struct sv_err *err); /* it is at hand */
int sv_quant_bind(struct sv_ckpt *c, const char *dir, struct sv_err *err);

#endif
