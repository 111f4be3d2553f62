/*
 * impl.h - mixers and ffns as stack.c sees them: the place of a role's weight, the needs of a pass,
 * and the pass itself.
 *
 * Included by src/model/ *.c only. Must not: be included from outside; model.h is the front header.
 */
#ifndef SV_MODEL_IMPL_H
#define SV_MODEL_IMPL_H

#include "model/model.h"

/* Memory for (n_rows, width) act values, or NULL when only measuring. */
void *sv_scratch_take(struct sv_scratch *s, int32_t n_rows, int64_t width);
void *sv_scratch_bytes(struct sv_scratch *s, size_t n_bytes);

/* y = x W^T + b over parts side by side. */
void sv_model_gemm(struct sv_dev *dev, int32_t n_rows, int32_t k, const void *x,
                   const struct sv_gemm_part *parts, int32_t n_parts, void *y);
/* The last product of a mixer or an ffn: acts->delta = x W^T + b. push: see ops.h */
void sv_model_gemm_last(struct sv_dev *dev, int32_t n_rows, int32_t k, const void *x,
                        const struct sv_gemm_part *part, enum sv_join push,
                        const struct sv_acts *acts);
/* For the last product of a mixer. */
enum sv_join sv_model_mixer_push(const struct sv_stack *st, const struct sv_pass *p);

/* vision.c: adds an image's deep rows after a layer. */
void sv_model_add_deep(struct sv_dev *dev, const struct sv_pass *p, int32_t layer, int32_t hidden,
                       void *delta);

/* attn.c; forward: acts->h -> acts->delta. place: NULL without a weight of this role. */
struct sv_weight *sv_attn_place(struct sv_attn *a, int role);
void sv_attn_needs(const struct sv_attn *a, int32_t hidden, struct sv_needs *n);
void sv_attn_forward(const struct sv_attn *a, const struct sv_stack *st, struct sv_dev *dev,
                     const struct sv_acts *acts, const struct sv_pass *p);

/* gdn.c, likewise */
struct sv_weight *sv_gdn_place(struct sv_gdn *g, int role);
void sv_gdn_needs(const struct sv_gdn *g, int32_t hidden, struct sv_needs *n);
void sv_gdn_forward(const struct sv_gdn *g, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct sv_pass *p);

/* mla.c, likewise; place: both NULL without a weight of this role */
struct sv_place sv_mla_place(struct sv_mla *a, int role);
void sv_mla_needs(const struct sv_mla *a, int32_t hidden, struct sv_needs *n);
void sv_mla_forward(const struct sv_mla *a, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct sv_pass *p);

/* mlp.c, likewise; push: the join that follows, as ops.h says */
struct sv_weight *sv_mlp_place(struct sv_mlp *m, int role);
void sv_mlp_needs(const struct sv_mlp *m, int32_t hidden, struct sv_needs *n);
void sv_mlp_forward(const struct sv_mlp *m, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, int32_t n_rows, enum sv_join push);

/* moe.c, likewise */
struct sv_place sv_moe_place(struct sv_moe *m, int role);
void sv_moe_needs(const struct sv_moe *m, int32_t hidden, struct sv_needs *n);
/* before: makes acts->h first, or NULL */
void sv_moe_forward(const struct sv_moe *m, const struct sv_stack *st, struct sv_dev *dev,
                    const struct sv_acts *acts, const struct sv_p_add_rms_norm *before,
                    const struct sv_pass *p, enum sv_join push);

/* weights.c: w owns it. */
void sv_weights_note(struct sv_weights *w, const struct sv_taken *t);
/* host becomes a weight of the device. copy: its memory, which becomes w's or is freed; or NULL. */
int sv_weights_keep(struct sv_weights *w, const struct sv_weight *host, void *copy, int64_t n_bytes,
                    struct sv_weight *out, struct sv_err *err);

/* part.c: the configuration of this rank's layers. */
struct sv_config sv_part_config(const struct sv_weights *w, const struct sv_config *cfg);
/* This rank's part of a tensor; host->rows 0: none, another rank adds it. copy: memory of
 * sv_part_copy_bytes for parts that cannot be used in place (0 bytes: NULL). */
int sv_part_find(struct sv_weights *w, const struct sv_tensor_spec *s, struct sv_weight *host,
                 void *copy, int64_t *n_bytes, struct sv_err *err);
size_t sv_part_copy_bytes(const struct sv_weights *w, const struct sv_tensor_spec *s);
/* Of a layer's n experts, or heads. */
struct sv_slice sv_part_experts(const struct sv_weights *w, int32_t n);
struct sv_slice sv_part_heads(const struct sv_weights *w, int32_t n);
/* Of a tensor in the form that a model reads. */
struct sv_cut sv_part_cut(const struct sv_weights *w, enum sv_role role, int64_t rows,
                          int64_t cols);

/* packed.c: outputs first, first + step, ... of every expert in the tensor become a projection or,
 * of a vector, its bias. */
int sv_weights_take_packed(struct sv_weights *w, const struct sv_tensor_spec *s, int32_t first,
                           int32_t step, struct sv_place to, int32_t n_chosen, struct sv_err *err);
/* Of kv_b_proj, the matrices of x's heads: K_h transposed, or V_h. */
int sv_weights_take_heads(struct sv_weights *w, const struct sv_tensor_spec *s, bool values,
                          struct sv_experts *x, struct sv_err *err);

#endif
