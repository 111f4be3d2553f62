/*
 * ops_mla.h - the ops of latent attention (MLA) beside sv_op_attention, and the table of functions
 * that a backend fills for it.
 *
 * Called by model through the sv_op_* wrappers of ops_mla.c. The rules of ops.h hold here as well.
 * A layer keeps one vector of a position for all heads: a normalised latent c and a rotated key.
 * Keys and values of a head h are products of it, K_h c and V_h c, and are never made: with
 *     q'_h = K_h^T q_h      score = (q'_h . c + rope(q_h) . key) * scale      out_h = V_h sum_j p_j
 * c_j attention runs on the kept vectors, one KV head whose value is the first part of its key.
 * This one form serves prompts, verify blocks and single rows, so that a row has the same bits in
 * all of them. A device fills struct sv_mla_ops whole or not at all. Must not: expand keys or
 * values for some rows and not for others.
 */
#ifndef SV_OPS_MLA_H
#define SV_OPS_MLA_H

#include "backend/ops_moe.h"

#define SV_MAX_LATENT 576 /* numbers kept of a position */

/* Of each row: latent normalised, key rotated, both written to the cache at the row's position; the
 * last rope.rot_dim numbers of each head's query rotated and put behind its part of q'. */
struct sv_p_mla_write {
    struct sv_rows rows;
    const void *kv; /* (n_rows, cache.head_dim) act: latent, key */
    struct sv_weight norm;
    float eps;
    struct sv_rope_table rope;
    bool
        interleaved; /* neighbours are rotated, (x0, x1), (x2, x3), ...; else x_i and x_(i + n/2) */
    int32_t n_heads, head_dim;
    const void *q;  /* (n_rows, n_heads * head_dim) act */
    void *absorbed; /* (n_rows, n_heads * cache.head_dim) act: the last rot_dim of each head */
    struct sv_kv cache;
};

/* y[r, h] = x[r, h] W_h^T for each head. Row r has the same bits for every n_rows. */
struct sv_p_head_products {
    int32_t n_rows;
    const void *x; /* act: head h of row r at r * ldx + h * x_stride */
    int64_t ldx;
    int32_t x_stride;
    struct sv_experts w; /* (n_heads) of (n_out, n_in) */
    void *y;             /* act, likewise; the other numbers of a row are left alone */
    int64_t ldy;
    int32_t y_stride;
};

struct sv_mla_ops {
    void (*write)(struct sv_dev *, const struct sv_p_mla_write *);
    void (*head_products)(struct sv_dev *, const struct sv_p_head_products *);
};

/* SV_EUNSUPPORTED where the device has no latent attention: before a model that needs it is
 * loaded. */
int sv_dev_check_mla(const struct sv_dev *dev, struct sv_err *err);

/* Checked wrappers (ops_mla.c). Zero rows are a no-op everywhere. */
void sv_op_mla_write(struct sv_dev *dev, const struct sv_p_mla_write *p);
void sv_op_head_products(struct sv_dev *dev, const struct sv_p_head_products *p);

#endif
