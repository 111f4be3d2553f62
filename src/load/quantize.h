/*
 * quantize.h - models written once more in fewer bits: rounding a matrix, and what the two kinds of
 * output share.
 *
 * quantize.c rounds and writes files, quantize_dir.c makes a directory in layouts of
 * compressed-tensors, quantize_gguf.c a GGUF file. Included by these. Must not: be included by
 * other folders; sv_quantize_model of load.h is what they call.
 */
#ifndef SV_LOAD_QUANTIZE_H
#define SV_LOAD_QUANTIZE_H

#include "load/impl.h"

enum { SV_ROUND_GROUP = 32 }; /* weights that share a scale, but of FP8: a row */

/* Rounds t, a matrix of F32, F16 or BF16, to code: F8, MXFP4, INT8, INT4 (scales apart: u8 of
 * MXFP4, else bf16), Q8_0, Q4_0 or GG_MXFP4 (blocks; scales is not used). Both are cleared. The
 * report has all but n_bytes_before. */
int sv_round_matrix(const struct sv_host_tensor *t, enum sv_quant_code code, uint8_t *codes,
                    uint8_t *scales, struct sv_quantized *report, struct sv_err *err);

/* A file that is written at offsets. */
struct sv_out {
    int fd;
    const char *path;
    struct sv_err *err;
};
/* Must not exist; n_bytes is how long it will be. On failure it may be there. */
int sv_out_open(struct sv_out *f, const char *path, size_t n_bytes, struct sv_err *err);
int sv_out_put(const struct sv_out *f, const void *data, size_t n, size_t at);
/* Syncs when rc is SV_OK, and returns the first failure. */
int sv_out_close(struct sv_out *f, int rc);
/* The name beside out that is used until what is written is whole. */
int sv_out_partial(struct sv_buf *name, const char *out, struct sv_err *err);

bool sv_is_projection(const char *name);
/* A matrix is not in fewer bits already, and its rows are whole groups (0: any row is). */
int sv_check_source(const struct sv_host_tensor *t, int32_t group, struct sv_err *err);

/* quantize_dir.c, quantize_gguf.c. ckpt is what cfg asks for. */
struct sv_model_source {
    const char *dir;
    const struct sv_config *cfg;
    const struct sv_ckpt *ckpt;
    sv_quantized_fn *told;
    void *user;
};
int sv_quantize_to_dir(const struct sv_model_source *m, enum sv_quant_code code, const char *out,
                       struct sv_err *err);
int sv_quantize_to_gguf(const struct sv_model_source *m, enum sv_quant_code code, const char *out,
                        struct sv_err *err);

#endif
