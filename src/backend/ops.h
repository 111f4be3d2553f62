/*
 * ops.h - the ops of a forward pass: batches as kernels see them and one params struct per kernel
 * family.
 *
 * Called by model, spec and engine through the sv_op_* wrappers of ops.c, which check shapes.
 * Kernels only enqueue: they never synchronise, never allocate, never read host-side sequence
 * state. What must not happen here: a result of row r that depends on any other row, on the number
 * of rows, on the number of threads or on the page size.
 *
 * Vocabulary. A *slot* is a running sequence's index in the device-resident arrays. A *segment* is
 * the run of consecutive rows that one slot contributes to this batch. Positions are data:
 * block_ids writes row_pos at the start of a pass, and no other op computes a row's position. "act"
 * is the activation type of the device (f32 on the CPU). Weights are (n_out, n_in) row-major, as
 * published.
 */
#ifndef SV_OPS_H
#define SV_OPS_H

#include "backend/device.h"
#include "backend/ops_ranks.h"

/* ---------------------------------------------------------------- batches, as kernels see them */

/* All pointers are device memory; counts are known to the host when it enqueues. Counts may be
 * padded up (to a graph's bucket): a row with row_seg < 0 is padding, so is a segment with seg_slot
 * < 0, which has no rows. Padding is at the end, writes to no cache, table or slot, and its
 * outputs are undefined. */
struct sv_rows {
    int32_t n_rows, n_segs;
    const int32_t *row_seg;  /* (n_rows) segment of each row, ascending; < 0: padding */
    const int32_t *seg_row0; /* (n_segs + 1) first row of each segment */
    const int32_t *seg_slot; /* (n_segs) < 0: padding */
    const int32_t *seg_base; /* (n_segs) committed length of the segment's slot */
    /* (n_rows) absolute position of each row: ascending within a segment, from seg_base on; where
     * its key is written, what it sees, its angle in the rotary table */
    const int32_t *row_pos;
    /* (n_rows, 3) positions in rotary tables with axes; NULL: row_pos. No drafter's table has any
     */
    const int32_t *row_rope;
};

/* A layer's keys and values of one cache group. */
struct sv_kv {
    void *k, *v; /* (n_pages, n_kv_heads, page_size, head_dim) each; v NULL: latents */
    /* SV_F32, SV_BF16, or SV_F8: e4m3 codes, whose rows have a scale each in k_own and v_own, those
     * of latents in the row (sv_kv_row_bytes). Every reader sees the values of what is stored, also
     * of its own pass. */
    enum sv_dtype dtype;
    float k_scale, v_scale; /* of all rows of SV_F8, as a checkpoint has them; 0: each row's own */
    int32_t n_pages, page_size, n_kv_heads, head_dim;
    int32_t latent; /* of a cache of latents: its first numbers; those behind are the rotated key */
    /* (n_slots, table_stride): page of positions [i*page_size, ...); device memory */
    const int32_t *table;
    int32_t table_stride;
    uint8_t *k_own, *v_own; /* of K and V in SV_F8: (n_pages, n_kv_heads, page_size) e8m0 each */
};

/* ---------------------------------------------------------------- params, one struct per family */

enum sv_seg_kind {
    SV_SEG_PREFILL, /* ids were uploaded: leave them */
    SV_SEG_VERIFY,  /* row 0 is the slot's anchor, the drafter fills the rest */
    SV_SEG_DRAFT    /* row 0 is the anchor, the rest are mask tokens */
};

/* Start of a pass: seg_base[s] = slot_len[seg_slot[s]], the rows' consecutive positions from there
 * on (-1 for padding), and the rows that the device knows itself. */
struct sv_p_block_ids {
    struct sv_rows rows; /* this op alone writes its seg_base, row_pos, row_rope: casts const */
    const int32_t *row_shift;   /* (n_rows, 3) row_rope less row_pos; NULL: no row_rope */
    const int32_t *seg_kind;    /* (n_segs) enum sv_seg_kind */
    const int32_t *slot_len;    /* (n_slots) committed length */
    const int32_t *slot_anchor; /* (n_slots) last emitted token, in no cache yet */
    int32_t mask_id;
    int32_t *row_ids; /* (n_rows); NULL: positions alone, without seg_kind and slot_anchor */
};

/* out[r] = table[ids[r]] * scale. Ids outside [0, table.rows) are clamped. */
struct sv_p_embed {
    int32_t n_rows;
    const int32_t *ids;     /* (n_rows) */
    struct sv_weight table; /* (vocab, d) */
    float scale;
    void *out; /* (n_rows, d) act */
};

/* x[r] += delta[r] (when delta is set); tap[r] = x[r] (when set); out[i] = x[row(i)] / rms * w.
 * rms = sqrt(mean(x^2) + eps), sums in f32. With row_index only those rows are normalised and x is
 * not written back; row(i) = row_index[i], else i. delta and x have the same row numbering. An
 * index below 0 is padding and reads row 0, so that what follows it meets real numbers. With a join
 * delta is this rank's part: what is added is the sum of all, in f32 and rank order. Mixers may run
 * over own_rows alone: then out, or delta of SV_JOIN_MIXER, begins with these. */
struct sv_p_add_rms_norm {
    int32_t n_rows, d; /* n_rows: rows of out */
    void *x;           /* (*, d) act, updated in place when delta is set and row_index is not */
    const void *delta; /* (*, d) act or NULL */
    const int32_t *row_index; /* (n_rows) or NULL */
    struct sv_weight weight;  /* (1, d) */
    float eps;
    void *out; /* (n_rows, d) act */
    void *tap; /* act or NULL: row r at tap + r * tap_stride elements; needs !row_index */
    int64_t tap_stride;
    /* (n_rows) where instead row r's tap goes, < 0: nowhere; NULL. The CPU's alone */
    const int32_t *tap_row;
    const struct sv_weight *reader;  /* a hint: a product with it reads out next; NULL: not known */
    enum sv_join join;               /* needs delta */
    const struct sv_slice *own_rows; /* (1) device, for replays; without row_index; NULL: all */
};

/* y[:, off_p : off_p + n_p] = x * W_p^T + bias_p for each part p; the parts lie side by side in y.
 * Row r of y has the same bits for every n_rows and every split of a weight into parts. */
#define SV_GEMM_MAX_PARTS 64
struct sv_gemm_part {
    struct sv_weight w;    /* (n_out, k) */
    struct sv_weight bias; /* (1, n_out) or data NULL */
};
struct sv_p_gemm {
    int32_t n_rows, k, n_parts;
    const void *x; /* (n_rows, k) act */
    int64_t ldx;   /* elements between rows of x */
    const struct sv_gemm_part *parts;
    void *y; /* (n_rows, sum n_out) act, or f32 when y_f32 */
    int64_t ldy;
    /* logits: never rounded to act, so that a draw and the argmax see the same numbers */
    bool y_f32;
    /* SV_JOIN_NONE, or the join that follows, of just the rows of y, which nothing changes in
     * between: a device may send its part at once */
    enum sv_join push;
};

/* Rotary table: (max_pos, rot_dim/2) cos then the same of sin, f32, attention factor included. */
struct sv_rope_table {
    const float *cos, *sin;
    int32_t max_pos, rot_dim;
    /* (rot_dim/2) host: which of a row's three positions turns a pair; NULL: row_pos turns all */
    const uint8_t *axis;
};

/* Per row: RMS-norm each q and k head (when the weights are set), rotate (neox halves) at the row's
 * position, leave q in place in qkv, write k and v into the cache. */
struct sv_p_qk_norm_rope_kv_write {
    struct sv_rows rows;
    void *qkv; /* (n_rows, (n_heads + 2 n_kv) * head_dim) act: q heads, k heads, v heads */
    int64_t ld;
    int32_t n_heads;
    int32_t q_stride;                /* elements between q heads; 0: head_dim */
    struct sv_weight q_norm, k_norm; /* (1, head_dim) or data NULL */
    float eps;
    struct sv_rope_table rope;
    struct sv_kv kv;
};

enum sv_mask {
    SV_MASK_CAUSAL, /* position p sees [0, p] */
    SV_MASK_BLOCK   /* every row sees [0, last row's position]: DFlash's bidirectional block */
};

/* out[r] = softmax(scale * q[r] K^T (softcapped) + mask) V over the row's sequence, grouped-query.
 * window > 0: only positions > p - window (Hugging Face's W, which counts the row itself).
 * Reduction runs over chunks at absolute positions, so a row's bits depend on its own sequence
 * only. */
struct sv_p_attention {
    struct sv_rows rows;
    const void *q; /* (n_rows, n_heads * head_dim) act, row stride ldq */
    int64_t ldq;
    int32_t q_stride; /* elements between heads of q; 0: head_dim */
    void *out;        /* (n_rows, n_heads * head_dim) act, row stride ldo */
    int64_t ldo;
    int32_t n_heads;
    struct sv_kv kv;
    /* Of a cache of latents (kv.v NULL): the first v_dim numbers of a key are its value, and out
     * has n_heads * v_dim columns; 0: K/V */
    int32_t v_dim;
    enum sv_mask mask;
    int32_t window;
    float scale;
    float softcap;          /* 0 = off */
    struct sv_weight sinks; /* (1, n_heads) or data NULL */
};

/* x = x * sigmoid(gate), head by head: gated attention. NULL in the table where a device has no
 * model that needs it. */
struct sv_p_sigmoid_mul {
    int32_t n_rows, n_heads, head_dim;
    void *x;          /* (n_rows, n_heads * head_dim) act */
    const void *gate; /* act, row stride ldg, head h of a row at h * gate_stride */
    int64_t ldg;
    int32_t gate_stride;
};

/* x += sigmoid(gate) * y, row by row with one gate each, or x += y: an expert that all rows go
 * through. NULL in the table where a device has no model that needs it. */
struct sv_p_add_gated {
    int32_t n_rows, d;
    void *x;          /* (n_rows, d) act */
    const void *y;    /* (n_rows, d) act */
    const void *gate; /* (n_rows) act, or NULL */
};

/* out = silu(gate) * up, gate_up holding gate then up. */
struct sv_p_act_mul {
    int32_t n_rows, d;
    const void *gate_up; /* (n_rows, 2 d) act */
    void *out;           /* (n_rows, d) act */
};

/* out = silu(gate) * up with gate = x W_gate^T + bias_gate and up likewise, both rounded to act as
 * a gemm's result is. As exact as the two ops, but a device may cut its sums elsewhere. */
struct sv_p_gemm_act_mul {
    int32_t n_rows, k;
    const void *x; /* (n_rows, k) act */
    int64_t ldx;
    const struct sv_gemm_part *parts; /* (2) gate, up: (d, k) each */
    void *gate_up;                    /* (n_rows, 2 d) act, scratch: undefined after */
    void *out;                        /* (n_rows, d) act */
};

/* out[out_index[i]] = argmax_v x[i] . w[v]; the lowest id wins a tie. Logits are the bits
 * sv_op_gemm would give; they are not written. NaN logits never win; an all-NaN row gives 0 and
 * latches an error. */
struct sv_p_head_argmax {
    int32_t n_rows, k;
    const void *x;            /* (n_rows, k) act */
    struct sv_weight w;       /* (vocab, k) */
    const int32_t *out_index; /* (n_rows) or NULL = i; < 0: this row's result goes nowhere */
    int32_t *out;
    /* (n_rows) or NULL: the winner's probability under the softmax, or a little more: a device may
     * sum over the best logit of each stretch of the vocabulary only. Callers calibrate it. Only
     * where sv_dev_head_confidence says so, and not with a join. */
    float *confidence;
    /* w is this rank's part of the vocabulary, which begins with first_id; the best of all parts */
    enum sv_join join;
    int32_t first_id;
};

/* out[i] = the best of row i's tokens by x[row[i]] . w, the first in its list among equals;
 * confidence[i] = its share of the softmax over these. For guesses: sums are in any order. NaN
 * never wins while there is another. */
struct sv_p_head_among {
    int32_t n_rows, k;
    const void *x;      /* (*, k) act */
    const int32_t *row; /* (n_rows) */
    struct sv_weight w; /* (vocab, k), not quantized */
    int32_t n_ids;
    const int32_t *first; /* (n_rows + 1) into ids, of which a row has one at least */
    const int32_t *ids;   /* (n_ids) in the vocabulary */
    float *logits;        /* (n_ids) scratch */
    int32_t *out;         /* (n_rows) */
    float *confidence;    /* (n_rows) */
};

/* Context K/V of the drafter for committed rows, all layers in one pass (with a join fc is this
 * rank's part of it, of columns from first_tap on, and its products are added up as in
 * sv_p_add_rms_norm):
 * z = rms_norm(fc . taps; hidden_norm), then per layer K = rope(rms_norm(Wk z + bk; k_norm)), V =
 * Wv z + bv, written at the rows' positions. Rows j >= n_commit[seg] are skipped: rejected rows
 * leave no trace. */
struct sv_p_draft_context_kv {
    struct sv_rows rows;
    const int32_t *n_commit;   /* (n_segs) */
    const void *taps;          /* (n_rows, n_taps) act */
    int32_t n_taps, first_tap; /* numbers; n_taps 0: fc.cols */
    enum sv_join join;
    struct sv_weight fc, fc_bias, hidden_norm;
    float eps;
    int32_t n_layers;
    const struct sv_gemm_part *kv_parts; /* (2 * n_layers): layer 0 Wk, Wv, layer 1 Wk, ... */
    const struct sv_weight *k_norm;      /* (n_layers) each (1, head_dim), data NULL when absent */
    struct sv_rope_table rope;
    const struct sv_kv *kv; /* (n_layers) same geometry, may differ in pointers */
    void *z;                /* (n_rows, fc.rows) act, scratch; rows skipped are undefined after */
    void *y;                /* (n_rows, n_layers * 2 * n_kv * head_dim) act, scratch */
};

/* Checked wrappers around the backend's table (ops.c). Zero rows are a no-op but at a join. */
void sv_op_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p);
void sv_op_embed(struct sv_dev *dev, const struct sv_p_embed *p);
void sv_op_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p);
void sv_op_gemm(struct sv_dev *dev, const struct sv_p_gemm *p);
void sv_op_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p);
void sv_op_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p);
void sv_op_attention(struct sv_dev *dev, const struct sv_p_attention *p);
void sv_op_sigmoid_mul(struct sv_dev *dev, const struct sv_p_sigmoid_mul *p);
void sv_op_add_gated(struct sv_dev *dev, const struct sv_p_add_gated *p);
void sv_op_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p);
void sv_op_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p);
void sv_op_head_among(struct sv_dev *dev, const struct sv_p_head_among *p);
void sv_op_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p);

#endif
