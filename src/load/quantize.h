/*
 * quantize.h - quantizing models: rounding a matrix, and functions shared by the two kinds of
 * output.
 *
 * quantize.c rounds and writes files, quantize_source.c lists the tensors to write, quantize_dir.c
 * makes a directory in layouts of compressed-tensors, quantize_gguf.c a GGUF file. Included by
 * these. Must not: be included by other folders, which call sv_quantize_model of load.h.
 */
#ifndef SV_LOAD_QUANTIZE_H
#define SV_LOAD_QUANTIZE_H

#include "load/impl.h"

enum { SV_ROUND_GROUP = 32 }; /* weights that share a scale; FP8: a row */

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
/* The file must not exist; n_bytes: its final size. On failure it may exist. */
int sv_out_open(struct sv_out *f, const char *path, size_t n_bytes, struct sv_err *err);
int sv_out_put(const struct sv_out *f, const void *data, size_t n, size_t at);
/* Syncs when rc is SV_OK, and returns the first failure. */
int sv_out_close(struct sv_out *f, int rc);
/* The name beside out of incomplete output. */
int sv_out_partial(struct sv_buf *name, const char *out, struct sv_err *err);

/* ---------------------------------------------------------------- sources (quantize_source.c) */

/* A tensor that is written. */
struct sv_source {
    struct sv_host_tensor t; /* not made: with its data */
    bool rounded, made;
    /* Made from the packed experts, or else from t.data: every step-th output from first on. */
    struct sv_packed packed;
    int32_t expert, first, step;
};
struct sv_sources {
    struct sv_source *s; /* sorted by name */
    int32_t n;
    struct sv_arena arena;
};
/* Borrows from ckpt, which matches cfg. */
int sv_sources_open(struct sv_sources *s, const struct sv_config *cfg, const struct sv_ckpt *ckpt,
                    struct sv_err *err);
void sv_sources_close(struct sv_sources *s);
const struct sv_source *sv_sources_find(const struct sv_sources *s, const char *name);
/* The tensor with its data; the caller frees *copy. */
int sv_source_take(const struct sv_source *s, struct sv_host_tensor *t, void **copy,
                   struct sv_err *err);
/* A matrix is not quantized yet, and its rows are whole groups (0: any row). */
int sv_check_source(const struct sv_source *s, int32_t group, struct sv_err *err);

/* quantize_dir.c, quantize_gguf.c. */
struct sv_model_source {
    const char *dir;
    const struct sv_config *cfg;         /* of a draft its base */
    const struct sv_draft_config *draft; /* NULL: a target */
    const struct sv_sources *list;
    sv_quantized_fn *on_matrix;
    void *user;
};
int sv_quantize_to_dir(const struct sv_model_source *m, enum sv_quant_code code, const char *out,
                       struct sv_err *err);
int sv_quantize_to_gguf(const struct sv_model_source *m, enum sv_quant_code code, const char *out,
                        struct sv_err *err);

#endif
