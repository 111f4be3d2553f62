/*
 * impl.h - what the files of src/load share: the table of architectures, the expected tensors and
 * the parsing steps common to targets and drafts.
 *
 * Included by src/load/ *.c only. Must not: be included from outside; load.h is the front header.
 */
#ifndef SV_LOAD_IMPL_H
#define SV_LOAD_IMPL_H

#include "load/load.h"

#define SV_CONFIG_MAX_BYTES (8u << 20)

/* ---------------------------------------------------------------- expected tensors (tensors.c) */

/* A dimension of an expected tensor, in terms of the configuration. */
enum sv_dim {
    SV_DIM_NONE,   /* no second dimension */
    SV_DIM_HIDDEN, /* hidden_size */
    SV_DIM_INTER,  /* intermediate_size */
    SV_DIM_VOCAB,  /* vocab_size */
    SV_DIM_Q,      /* n_heads * head_dim */
    SV_DIM_KV,     /* n_kv_heads * head_dim */
    SV_DIM_HEAD,   /* head_dim */
    SV_DIM_TAPS    /* n_taps * hidden_size */
};

enum sv_when { SV_ALWAYS, SV_IF_UNTIED, SV_IF_ATTN_BIAS, SV_IF_MLP_BIAS, SV_IF_QK_NORM };

/* One expected tensor; '*' in the name stands for the layer. Tables end with a NULL name. */
struct sv_tensor_row {
    const char *name;
    uint8_t rows, cols; /* enum sv_dim */
    uint8_t when;       /* enum sv_when */
};

/* ---------------------------------------------------------------- architectures (arch.c) */

/* What differs between architectures before any weight is read. A new dense architecture is one
 * row. */
struct sv_arch_row {
    const char *architecture, *model_type;
    enum sv_arch arch;
    /* What transformers' configuration class assumes when the file is silent. */
    double rope_theta;
    int32_t max_position, max_window_layers;
    double rms_eps;
    bool tie_embeddings;
    /* What the model is made of. */
    bool qk_norm, may_slide, may_mlp_bias;
    const struct sv_tensor_row *tensors;
};
const struct sv_arch_row *sv_arch_row(enum sv_arch arch);
/* By the first of "architectures", by "model_type" when that is absent. NULL and err when
 * unknown. */
const struct sv_arch_row *sv_arch_of_config(const json_t *root, struct sv_err *err);
/* architectures[0], or NULL when the list is absent; err is set when it is malformed. */
int sv_arch_string(const json_t *root, const char **out, struct sv_err *err);

/* ------------------------------------------------------------- parsing steps (config.c, rope.c) */

/* DIR/name parsed. *root is NULL without an error when it is not needed and not there. The caller
 * frees both, always. */
int sv_dir_json(const char *dir, const char *name, bool needed, char **path, json_t **root,
                struct sv_err *err);
/* Hands the object in DIR/name to parse, when it is there; errors name the file. err may be
 * NULL. */
int sv_dir_parse(const char *dir, const char *name, bool needed,
                 int (*parse)(void *user, const json_t *root, struct sv_err *err), void *user,
                 struct sv_err *err);
/* True when obj has the key with a value other than null. */
bool sv_json_has(const json_t *obj, const char *key);
int sv_json_i32_opt(const json_t *obj, const char *key, int64_t lo, int64_t hi, int32_t *out,
                    struct sv_err *err);
int sv_json_i32(const json_t *obj, const char *key, int64_t lo, int64_t hi, int32_t *out,
                struct sv_err *err);
/* Sizes, biases, norms, dtype, special ids: everything that targets and drafts state alike. row
 * gives the defaults. RoPE and layer kinds are separate because the two differ there. */
int sv_config_common(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                     struct sv_err *err);
/* "layer_types" into layer_kind; *given tells whether the list was there (all full when not). */
int sv_config_layer_types(struct sv_config *c, const json_t *root, bool *given, struct sv_err *err);
/* Both layouts. default_theta 0 = the key is required. */
int sv_rope_parse(struct sv_rope *r, const json_t *root, double default_theta, int32_t max_position,
                  struct sv_err *err);

#endif
