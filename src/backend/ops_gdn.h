/*
 * ops_gdn.h - the ops of a gated delta rule (Gated DeltaNet), the state of its layers for a slot,
 * and the table of functions that a backend fills for it.
 *
 * Called by model through the sv_op_* wrappers of ops_gdn.c. The rules of ops.h hold here as well:
 * a row's bits, and those of the state that it leaves behind, depend neither on the rows beside it
 * nor on how a text was cut into prompt chunks, verify blocks and single rows. For this, positions
 * are divided into chunks of SV_GDN_CHUNK at absolute multiples, and a row is computed from the
 * state before its chunk and the rows of its chunk up to itself, in whatever pass. A device
 * fills struct sv_gdn_ops whole or not at all. Must not: change a state by a row that may be
 * rejected.
 *
 * Per value head, with S (k_dim, v_dim) zero at position 0 and g, beta of the row:
 *     S = exp(g) S;  u = beta (v - S^T k);  S = S + k u^T;  out = S^T q
 * and over a chunk, with S the state before it and G the sum of g from its first row on:
 *     u_i = beta_i (v_i - exp(G_i) S^T k_i - sum_{j < i} exp(G_i - G_j) (k_i . k_j) u_j)
 *     out_i = exp(G_i) S^T q_i + sum_{j <= i} exp(G_i - G_j) (q_i . k_j) u_j
 *     S_next = exp(G_last) S + sum_j exp(G_last - G_j) k_j u_j^T
 * Value head h reads key head h / (n_v_heads / n_k_heads).
 */
#ifndef SV_OPS_GDN_H
#define SV_OPS_GDN_H

#include "backend/ops.h"

#define SV_GDN_CHUNK 16
#define SV_GDN_TAPS 4      /* of the convolution */
#define SV_GDN_MAX_DIM 256 /* of a head; a multiple of 16 */
/* A key has length 1, so rounding it to 15 fractional bits is more precise than a sum of two bf16
 * parts, and two such parts represent the result exactly. */
#define SV_GDN_KEY_STEP (1.0f / 32768)

struct sv_gdn_shape {
    int32_t n_k_heads, n_v_heads, k_dim, v_dim;
    /* Rows of the widest verify block. A segment with more rows is a chunk of a prompt: all of its
     * rows are committed. */
    int32_t max_block;
    /* Of rows before the convolution: SV_F32 or SV_BF16, rounded to it. With SV_BF16 keys are
     * rounded too, to multiples of SV_GDN_KEY_STEP, which take 16 bits. */
    enum sv_dtype conv_dtype;
};

/* Rows before the convolution: queries, keys, values, head by head. */
static inline int32_t sv_gdn_channels(const struct sv_gdn_shape *s)
{
    return 2 * s->n_k_heads * s->k_dim + s->n_v_heads * s->v_dim;
}

/* The block that a layer keeps of a slot, by offsets in bytes. It begins with the position before
 * which `state` stands, a multiple of SV_GDN_CHUNK: (n_v_heads) int32, of which a backend may use
 * the first alone. Rings have position p at p modulo their rows. Rows from that position on are in
 * k, u and g, committed ones and those of the last verify block: a rejected row is overwritten by
 * the next one of its position. All bytes 0: the next row's state is zero, whatever its position.
 * A single row has places of its own in the rings of keys and before the convolution: thread
 * blocks may write them while others read what is kept. */
struct sv_gdn_block {
    int64_t arrived; /* (n_k_heads) uint32, 0 between passes: a backend's own */
    int64_t state;   /* (n_v_heads, k_dim, v_dim) f32 */
    int64_t k;       /* (n_k_heads, k_ring, k_dim) f32; with conv_dtype SV_BF16 int16, in steps */
    int64_t u;       /* (n_v_heads, ring, v_dim) f32 */
    int64_t g;       /* (n_v_heads, ring) f32: G */
    int64_t conv;    /* (conv_ring, channels) conv_dtype */
    int32_t ring, k_ring, conv_ring;
    int64_t n_bytes; /* a multiple of SV_ALIGN */
};
struct sv_gdn_block sv_gdn_block_of(const struct sv_gdn_shape *s);

/* One layer's blocks: that of slot s at data + s * slot_stride bytes. */
struct sv_gdn_slots {
    void *data;
    int64_t slot_stride;
};

/* Rows after the convolution, scratch between gdn_conv and gdn_norm. A device that computes in bf16
 * has two bf16 parts of each query and key, whose sum it is, in the place of f32 numbers: the
 * larger parts of a head, then the others. */
struct sv_gdn_rows {
    float *qkv;  /* (n_rows, channels) queries and keys of length 1 / sqrt(k_dim) and 1 */
    float *gate; /* (n_rows, 2, n_v_heads) beta, G */
    float *dots; /* (n_rows, n_k_heads, 2, SV_GDN_CHUNK) k . k_j, q . k_j with rows of the chunk */
};
/* Sets the pointers to pieces of base, which is aligned to 256; returns the bytes of all. base
 * NULL: only that. */
size_t sv_gdn_rows_lay_out(struct sv_gdn_rows *r, const struct sv_gdn_shape *s, int32_t n_rows,
                           void *base);

/* Convolution over positions, silu; queries and keys to unit length (sqrt(sum + 1e-6)), queries
 * times 1 / sqrt(k_dim); beta = sigmoid(b), g = decay * softplus(a + dt_bias). Keeps the rows that
 * a later convolution may need. */
struct sv_p_gdn_conv {
    struct sv_rows rows;
    struct sv_gdn_shape shape;
    struct sv_gdn_slots slots;
    const void *x; /* (n_rows, channels) act, row stride ldx */
    const void *b; /* (n_rows, n_v_heads) act, row stride ldx; a likewise */
    const void *a;
    int64_t ldx;
    struct sv_weight conv;           /* (SV_GDN_TAPS, channels) f32, the row's own tap last */
    struct sv_weight decay, dt_bias; /* (1, n_v_heads) f32; decay = -exp(A_log) */
    struct sv_gdn_rows out;
};

/* The delta rule over the rows; folds full chunks of committed rows into the state. */
struct sv_p_gdn_scan {
    struct sv_rows rows;
    struct sv_gdn_shape shape;
    struct sv_gdn_slots slots;
    struct sv_gdn_rows x;
    float *out; /* (n_rows, n_v_heads * v_dim) */
};

/* out = rms_norm(x; weight) * silu(z), head by head. Ends a layer's pass: position, k and G of the
 * slots' blocks are those after it from here on (a backend may have written them in the scan). */
struct sv_p_gdn_norm {
    struct sv_rows rows;
    struct sv_gdn_shape shape;
    struct sv_gdn_slots slots;
    struct sv_gdn_rows mid; /* of the convolution */
    const float *x;         /* (n_rows, n_v_heads * v_dim) */
    const void *z;          /* (n_rows, n_v_heads * v_dim) act, row stride ldz */
    int64_t ldz;
    struct sv_weight weight; /* (1, v_dim) */
    float eps;
    void *out; /* (n_rows, n_v_heads * v_dim) act */
};

/* A layer: convolution, scan, norm over the same rows, slots and scratch. */
struct sv_p_gdn {
    struct sv_p_gdn_conv conv;
    struct sv_p_gdn_scan scan;
    struct sv_p_gdn_norm norm;
    int32_t most; /* rows of a segment, at most: launches may be chosen by it. 0: not known */
};

struct sv_gdn_ops {
    int32_t max_k_dim; /* numbers of a key, at most */
    void (*conv)(struct sv_dev *, const struct sv_p_gdn_conv *);
    void (*scan)(struct sv_dev *, const struct sv_p_gdn_scan *);
    void (*norm)(struct sv_dev *, const struct sv_p_gdn_norm *);
    /* All three where `most` is known and segments are single rows or verify blocks of no more
     * than a chunk's; conv.out may stay as it is. */
    void (*few)(struct sv_dev *, const struct sv_p_gdn *);
};

/* SV_EUNSUPPORTED where the device has no gated delta rule with keys of that size: before a model
 * that needs it is loaded. */
int sv_dev_check_gdn(const struct sv_dev *dev, int32_t k_dim, struct sv_err *err);

/* Checked wrappers (ops_gdn.c). Zero rows are a no-op everywhere. */
void sv_op_gdn_conv(struct sv_dev *dev, const struct sv_p_gdn_conv *p);
void sv_op_gdn_scan(struct sv_dev *dev, const struct sv_p_gdn_scan *p);
void sv_op_gdn_norm(struct sv_dev *dev, const struct sv_p_gdn_norm *p);
void sv_op_gdn(struct sv_dev *dev, const struct sv_p_gdn *p); /* as the rows ask for */

#endif
