/*
 * ops_vision.h - the ops of a vision tower beside those of ops.h, and the table of functions that a
 * backend fills for it.
 *
 * Called by model through the sv_op_* wrappers of ops_vision.c. The rules of ops.h hold here as
 * well: a row has the same bits for every n_rows. A device that fills struct sv_vision_ops, whole
 * or not at all, also takes rows with three positions (sv_rows.row_rope). Must not: know images.
 */
#ifndef SV_OPS_VISION_H
#define SV_OPS_VISION_H

#include "backend/ops.h"

/* out = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight + bias, row by row. */
struct sv_p_layer_norm {
    int32_t n_rows, d;
    const void *x;                 /* (n_rows, d) act */
    struct sv_weight weight, bias; /* (1, d) */
    float eps;
    void *out; /* (n_rows, d) act, not x */
};

/* x = x / 2 (1 + erf(x / sqrt(2))), or what approximates it with tanh. */
struct sv_p_gelu {
    int32_t n_rows, d;
    bool by_tanh;
    void *x; /* (n_rows, d) act */
};

/* x[r] += share[r][0] table[index[r][0]] + ... of four rows of the table. */
struct sv_p_add_corners {
    int32_t n_rows, d;
    void *x;              /* (n_rows, d) act */
    const int32_t *index; /* (n_rows, 4) */
    const float *share;   /* (n_rows, 4) */
    struct sv_weight table;
};

struct sv_vision_ops {
    int32_t head_step; /* attention is quick with heads of a multiple of so many numbers */
    void (*layer_norm)(struct sv_dev *, const struct sv_p_layer_norm *);
    void (*gelu)(struct sv_dev *, const struct sv_p_gelu *);
    void (*add_corners)(struct sv_dev *, const struct sv_p_add_corners *);
};

/* Whether the device has them. */
bool sv_dev_has_vision(const struct sv_dev *dev);
/* Of such a device: a head of so many numbers with those that are better added, always 0. */
int32_t sv_dev_vision_head(const struct sv_dev *dev, int32_t head_dim);

/* Checked wrappers (ops_vision.c). Zero rows are a no-op everywhere. */
void sv_op_layer_norm(struct sv_dev *dev, const struct sv_p_layer_norm *p);
void sv_op_gelu(struct sv_dev *dev, const struct sv_p_gelu *p);
void sv_op_add_corners(struct sv_dev *dev, const struct sv_p_add_corners *p);

#endif
