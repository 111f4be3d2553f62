/*
 * backend.h - the device seam: tensor views, device life, and one params struct per kernel family.
 *
 * Called by load (upload), cache, model, spec and engine. A backend (cpu/, cuda/, hip/) fills one
 * struct sv_backend; callers use the sv_op_* wrappers of ops.c, which check shapes in debug builds.
 * Kernels only enqueue: they never synchronise, never allocate, never look at host-side sequence
 * state. What must not happen here: a result of row r that depends on any other row, on the number
 * of rows, on the number of threads or on the page size.
 *
 * Vocabulary. A *slot* is a running sequence's seat in the device-resident arrays. A *segment* is
 * the run of consecutive rows that one slot contributes to this batch. Row r of segment s stands at
 * absolute position seg_base[s] + (r - seg_row0[s]). "act" is the activation type of the device
 * (f32 on the CPU). Weights are (n_out, n_in) row-major, as published.
 */
#ifndef SV_BACKEND_H
#define SV_BACKEND_H

#include "base/base.h"

enum sv_dtype { SV_F32, SV_BF16, SV_F16, SV_I32 };
size_t sv_dtype_bytes(enum sv_dtype t);
const char *sv_dtype_name(enum sv_dtype t);

/* A matrix of weights in device memory; owns nothing. On the host side (files, tests of the CPU)
 * data is row-major as published; what upload_weight returns is in the backend's own layout and
 * only its ops may look inside. */
struct sv_weight {
    const void *data; /* (rows, cols), 0-aligned to its element size */
    enum sv_dtype dtype;
    int32_t rows, cols; /* n_out, n_in; a vector has cols = its length and rows = 1 */
    const void *
        dense; /* the CPU's: equal to data if that is in fewer bits, every value exact; else NULL */
    int64_t dense_bytes; /* what a product reads of it */
    /* the CPU's, of a head: its weights once more, for the argmax alone (cpu/sieve.h), or NULL */
    void *sieve;
    int64_t sieve_bytes; /* the memory that takes */
    /* the CPU's: data is in the order of its kernels, not row-major (weights.c there) */
    bool packed;
    /* On the host side: a drafter's, whose errors cost acceptance and never a token; a device may
     * round its products' operands further if that is faster there. On the device: it did. */
    bool approximate;
    bool table; /* on the host side: rows are looked up, no product uses it */
    /* on the host side: the argmax of its products is asked for. What upload_weight returns may
     * have a sieve, to be freed as data is */
    bool head;
};

/* What a product with it reads, but for the copy that few rows may have (sv_dev_add_read). */
static inline int64_t sv_weight_read_bytes(const struct sv_weight *w)
{
    if (w->dense)
        return w->dense_bytes;
    return (int64_t)w->rows * w->cols * (int64_t)(w->approximate ? 1 : sv_dtype_bytes(w->dtype));
}

/* Weight bytes that a pass reads: with few rows, with more, and if every weight were read whole, in
 * its own type. */
struct sv_read_bytes {
    int64_t few, many, whole;
};

static inline float sv_bf16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)h << 16};
    return v.f;
}
/* Round to nearest even; NaN stays NaN. */
static inline uint16_t sv_f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((v.u >> 16) | 64);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1)) >> 16);
}
float sv_f16_to_f32(uint16_t h);

/* ---------------------------------------------------------------- batches, as kernels see them */

/* All pointers are device memory; counts are known to the host when it enqueues. Counts may be
 * padded up (to a graph's bucket): a row with row_seg < 0 is padding, so is a segment with seg_slot
 * < 0, which has no rows. Padding stands at the end, writes to no cache, table or slot, and its
 * outputs are undefined. */
struct sv_rows {
    int32_t n_rows, n_segs;
    const int32_t *row_seg;  /* (n_rows) segment of each row, ascending; < 0: padding */
    const int32_t *seg_row0; /* (n_segs + 1) first row of each segment */
    const int32_t *seg_slot; /* (n_segs) < 0: padding */
    const int32_t *seg_base; /* (n_segs) absolute position of the segment's first row */
};

/* One layer's keys and values of one cache group. */
struct sv_kv {
    void *k, *v;         /* (n_pages, n_kv_heads, page_size, head_dim) each */
    enum sv_dtype dtype; /* SV_F32 or SV_BF16 */
    int32_t n_pages, page_size, n_kv_heads, head_dim;
    /* (n_slots, table_stride): page of positions [i*page_size, ...); device memory */
    const int32_t *table;
    int32_t table_stride;
};

/* ---------------------------------------------------------------- params, one struct per family */

enum sv_seg_kind {
    SV_SEG_PREFILL, /* ids were uploaded: leave them */
    SV_SEG_VERIFY,  /* row 0 is the slot's anchor, the drafter fills the rest */
    SV_SEG_DRAFT    /* row 0 is the anchor, the rest are mask tokens */
};

/* Start of a pass: seg_base[s] = slot_len[seg_slot[s]], and the rows that the device knows
 * itself. */
struct sv_p_block_ids {
    struct sv_rows rows;        /* rows.seg_base is written here: cast away const in this op only */
    const int32_t *seg_kind;    /* (n_segs) enum sv_seg_kind */
    const int32_t *slot_len;    /* (n_slots) committed length */
    const int32_t *slot_anchor; /* (n_slots) last emitted token, in no cache yet */
    int32_t mask_id;
    int32_t *row_ids; /* (n_rows) */
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
 * index below 0 is padding and reads row 0, so that what follows it meets real numbers. */
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
    bool approximate; /* a hint: a product with approximate weights reads out next */
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
};

/* Rotary table: (max_pos, rot_dim/2) cos then the same of sin, f32, attention factor included. */
struct sv_rope_table {
    const float *cos, *sin;
    int32_t max_pos, rot_dim;
};

/* Per row: RMS-norm each q and k head (when the weights are set), rotate (neox halves) at the row's
 * position, leave q in place in qkv, write k and v into the cache. */
struct sv_p_qk_norm_rope_kv_write {
    struct sv_rows rows;
    void *qkv; /* (n_rows, (n_heads + 2 n_kv) * head_dim) act: q heads, k heads, v heads */
    int64_t ld;
    int32_t n_heads;
    struct sv_weight q_norm, k_norm; /* (1, head_dim) or data NULL */
    float eps;
    struct sv_rope_table rope;
    struct sv_kv kv;
};

enum sv_mask {
    SV_MASK_CAUSAL, /* position p sees [0, p] */
    SV_MASK_BLOCK   /* every row sees [0, end of its segment): DFlash's bidirectional block */
};

/* out[r] = softmax(scale * q[r] K^T (softcapped) + mask) V over the row's sequence, grouped-query.
 * window > 0: only positions > p - window (Hugging Face's W, which counts the row itself).
 * Reduction runs over chunks at absolute positions, so a row's bits depend on its own sequence
 * only. */
struct sv_p_attention {
    struct sv_rows rows;
    const void *q; /* (n_rows, n_heads * head_dim) act, row stride ldq */
    int64_t ldq;
    void *out; /* (n_rows, n_heads * head_dim) act, row stride ldo */
    int64_t ldo;
    int32_t n_heads;
    struct sv_kv kv;
    enum sv_mask mask;
    int32_t window;
    float scale;
    float softcap;          /* 0 = off */
    struct sv_weight sinks; /* (1, n_heads) or data NULL */
};

/* out = silu(gate) * up, gate_up holding gate then up. */
struct sv_p_act_mul {
    int32_t n_rows, d;
    const void *gate_up; /* (n_rows, 2 d) act */
    void *out;           /* (n_rows, d) act */
};

/* out = silu(gate) * up with gate = x W_gate^T + bias_gate and up likewise, both rounded to act as
 * a gemm's result is. Not more exact and not less than the two ops, but a device may cut its sums
 * elsewhere. */
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
    /* (n_rows) or NULL: about the winner's share of the softmax, never less. For who calibrates it,
     * not for who believes it: a device leaves out logits that are not the best of their stretch of
     * the vocabulary. Only where sv_dev_head_shares says so. */
    float *share;
};

/* Per-slot sampling, device-resident. temperature 0 = greedy. Order (sequential): scale by
 * 1/T, softmax, keep top_k (0 = all; ties at the border keep lower ids), renormalise, keep the
 * smallest most-probable set whose mass reaches top_p (1 = all), then drop p < min_p * p_max (0 =
 * off). */
struct sv_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
};

/* out[i] = a draw from logits[i] keyed by (seed, position of the token being drawn), or the
 * argmax. */
struct sv_p_sample {
    int32_t n_rows, vocab;
    const void *logits; /* (n_rows, vocab) f32 */
    int64_t ld;
    const int32_t *row_slot;                 /* (n_rows) slot of each row; < 0: padding, skipped */
    const int32_t *row_pos;                  /* (n_rows) absolute position of the drawn token */
    const struct sv_sampling *slot_sampling; /* (n_slots) */
    int32_t *out;                            /* (n_rows) */
};

/* What a slot's request changes in its logits, device-resident. Applied in this order, which is
 * vLLM's:
 * 1. bias: logit += bias of the listed tokens;
 * 2. ban: the listed tokens get -inf while the drawn token would stand below ban_before;
 * 3. words: the last token of a listed run gets -inf where the answer ends in the run's others;
 *    where tokens are allowed by list, all others get -inf;
 * 4. repetition, for tokens of prompt and answer, of the last repeat_last of these if that is not
 *    0: logit > 0 ? logit / r : logit * r;
 * 5. frequency, presence, for the n > 0 times a token stands in the answer: logit -= f * n; logit
 * -= p. A finite logit that overflows becomes FLT_MAX. Each operation is rounded by itself, so that
 * the bits are the same on every backend. "Answer" begins at position n_prompt. */
#define SV_MAX_BIAS 1024
#define SV_MAX_BAN 256
#define SV_MAX_LISTED 2048
#define SV_MAX_TOP 20
struct sv_logit_rules {
    float presence, frequency; /* 0 = off */
    float repetition;          /* 1 = off */
    int32_t n_prompt;
    int32_t repeat_last;
    int32_t n_bias, n_ban, ban_before;
    /* In the slot's list: where each of n_words runs ends, the runs' tokens, allowed tokens. */
    int32_t n_words, n_allowed;
    /* most probable tokens to report beside a token's log probability; -1 = nothing */
    int32_t n_top;
};

/* The slots' tokens as the device remembers them: history[slot][base + j] = row_ids of the
 * segment's row j for the rows that were committed. What stood in no row (a cached prefix) was
 * uploaded. */
struct sv_p_history {
    struct sv_rows rows;
    const int32_t *row_ids;  /* (n_rows) */
    const int32_t *n_commit; /* (n_segs) */
    int32_t *history;        /* (n_slots, history_stride) token at each position */
    int32_t history_stride;
};

/* dst[i] = the rules of row i's slot applied to src[i]; src may be dst. The tokens before the drawn
 * one are history[0, base) and then the segment's rows up to and including this one: row j of a
 * verify block sees the drafts before it, as plain decoding would. */
struct sv_p_logit_rules {
    struct sv_rows rows;
    int32_t n_logit_rows, vocab;
    const float *src; /* (n_logit_rows, vocab), row stride ld */
    float *dst;
    int64_t ld;
    const int32_t *logit_row; /* (n_logit_rows) row of the batch; < 0: padding, skipped */
    const int32_t *row_ids;   /* (n_rows) */
    const struct sv_logit_rules *slot_rules; /* (n_slots) */
    const int32_t *bias_ids;                 /* (n_slots, SV_MAX_BIAS) no token twice */
    const float *bias;                       /* (n_slots, SV_MAX_BIAS) */
    const int32_t *ban_ids;                  /* (n_slots, SV_MAX_BAN) */
    const int32_t *listed;                   /* (n_slots, SV_MAX_LISTED) */
    const int32_t *history;                  /* (n_slots, history_stride) */
    int32_t history_stride;
    uint32_t *counts; /* (n_logit_rows, vocab) scratch: zero before and after */
};

/* dst[i] = src[i] with -inf wherever a bit of the row's mask is 0; src may be dst. Before the
 * rules: a bias does not bring back what a mask forbids. */
static inline int32_t sv_mask_words(int32_t vocab)
{
    return (vocab + 31) / 32;
}
struct sv_p_logit_mask {
    int32_t n_rows, vocab;
    const float *src; /* (n_rows, vocab), row stride ld */
    float *dst;
    int64_t ld;
    const int32_t *row_mask; /* (n_rows) the mask of each row; < 0: none, the row is as it was */
    const uint32_t
        *masks; /* (*, sv_mask_words(vocab)) bit v % 32 of word v / 32: token v may come */
};

/* Log probability of one token under softmax(logits), its rank (1 = the most probable) and the most
 * probable tokens, best first. Equal logits rank by id, lowest first. */
struct sv_logprob_row {
    float logprob;
    int32_t rank, n_top;
    int32_t top_id[SV_MAX_TOP];
    float top_logprob[SV_MAX_TOP];
};
struct sv_p_logprobs {
    int32_t n_rows, vocab;
    const float *logits; /* (n_rows, vocab) before any rule */
    int64_t ld;
    const int32_t *row_slot;                 /* (n_rows) < 0: padding, skipped */
    const struct sv_logit_rules *slot_rules; /* (n_slots) n_top < 0: the row is skipped */
    const int32_t *token;                    /* (n_rows) */
    struct sv_logprob_row *out;              /* (n_rows) */
};

/* out[i] = argmax of logits[i], the lowest id among equals; share[i] = its share of the softmax.
 * NaN never wins and has no part in the sum; an all-NaN row gives 0 and latches an error. A device
 * may lack it. */
struct sv_p_argmax_share {
    int32_t n_rows, vocab;
    const float *logits; /* (n_rows, vocab) */
    int64_t ld;
    const int32_t *out_index; /* (n_rows) where a row's id goes in out, < 0 nowhere; NULL = i */
    int32_t *out;
    float *share; /* (n_rows) */
};

/* out[i] = the best of row i's tokens by x[row[i]] . w, the first in its list among equals;
 * share[i] = its share of the softmax over these. For guesses: sums are in any order. NaN never
 * wins while there is another. */
struct sv_p_head_among {
    int32_t n_rows, k;
    const void *x;      /* (*, k) act */
    const int32_t *row; /* (n_rows) */
    struct sv_weight w; /* (vocab, k), not approximate */
    int32_t n_ids;
    const int32_t *first; /* (n_rows + 1) into ids, of which a row has one at least */
    const int32_t *ids;   /* (n_ids) in the vocabulary */
    float *logits;        /* (n_ids) scratch */
    int32_t *out;         /* (n_rows) */
    float *share;         /* (n_rows) */
};

/* Chain verification by match (docs/architecture.md). Segment s owns logit rows
 * [seg_logit0[s], seg_logit0[s+1]). None: a prefill chunk that is not the last. Otherwise row j of
 * these chose token t_j, and its drafts are row_ids of the segment's rows 1..: accept while draft
 * j+1 == t_j. */
struct sv_p_verify {
    struct sv_rows rows;
    const int32_t *seg_kind;   /* (n_segs) */
    const int32_t *seg_logit0; /* (n_segs + 1) */
    const int32_t *row_ids;    /* (n_rows) what the target read */
    const int32_t *chosen;     /* (n_logit_rows) what the target says comes next */
    int32_t *n_commit;         /* (n_segs) rows whose K/V stays: a + 1, or the chunk's rows */
    int32_t *n_emit;           /* (n_segs) tokens that come out: a + 1, 1 or 0 */
    int32_t *out_tokens;       /* (n_segs, out_stride): d_1..d_a, t_a */
    int32_t out_stride;
    /* (n_segs) or NULL. Simulation of an acceptance profile (benchmarks only, never in a service):
     * the accept length of a verify segment, bonus included, cut to its rows; 0 = match for real.
     */
    const int32_t *forced_len;
};

/* slot_len[slot] += n_commit; slot_anchor[slot] = last emitted token, when there is one. */
struct sv_p_commit {
    int32_t n_segs;
    const int32_t *seg_slot, *n_commit, *n_emit, *out_tokens;
    int32_t out_stride;
    int32_t *slot_len, *slot_anchor;
};

/* row_slot/row_pos of logit rows for sv_p_sample: position drawn = base + offset + 1. */
struct sv_p_logit_pos {
    struct sv_rows rows;
    int32_t n_logit_rows;
    /* (n_logit_rows) row of the batch each logit row belongs to; < 0: padding, whose row_slot is
     * -1 */
    const int32_t *logit_row;
    int32_t *row_slot, *row_pos;
};

/* Context K/V of the drafter for committed rows, all layers in one pass:
 * z = rms_norm(fc . taps; hidden_norm), then per layer K = rope(rms_norm(Wk z + bk; k_norm)), V =
 * Wv z + bv, written at the rows' positions. Rows j >= n_commit[seg] are skipped: rejected rows
 * leave no trace. */
struct sv_p_draft_context_kv {
    struct sv_rows rows;
    const int32_t *n_commit; /* (n_segs) */
    const void *taps;        /* (n_rows, fc.cols) act */
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

/* ---------------------------------------------------------------- the backend table */

struct sv_dev; /* a backend's own struct, which begins with these */
#define SV_DEV_HEAD                                                                                \
    const struct sv_backend *be;                                                                   \
    void (*on_upload)(void *user, size_t n_bytes); /* ops.c's */                                   \
    void *upload_user

/* What memory of the device is for. */
enum sv_mem {
    SV_MEM_WEIGHTS,
    SV_MEM_DENSE,   /* their copies in fewer bits */
    SV_MEM_SCRATCH, /* of kernels, and for what is on its way */
    SV_MEM_ASKED,   /* by alloc: buffers and pools */
    SV_MEM_KINDS
};

enum sv_isa { SV_ISA_AUTO, SV_ISA_PLAIN, SV_ISA_AVX2, SV_ISA_AVX512, SV_ISA_AMX };

/* bf16 weights in fewer bits without losing any. AUTO: on a GPU where memory is plenty; on the CPU
 * when weight_bytes say that they come from memory and not from a cache, and products of usual_rows
 * are faster so. */
enum sv_dense { SV_DENSE_AUTO, SV_DENSE_ON, SV_DENSE_OFF };

/* Approximate weights in 8 bits. AUTO: where the device can and gains. */
enum sv_bytes { SV_BYTES_AUTO, SV_BYTES_ON, SV_BYTES_OFF };

/* Heads get a sieve (cpu/sieve.h). AUTO: where the device can and gains. */
enum sv_sieves { SV_SIEVE_AUTO, SV_SIEVE_ON, SV_SIEVE_OFF };

struct sv_dev_opts {
    const char *backend; /* "cpu", "cuda", "hip"; NULL = the best this build and machine have */
    const char *kernels; /* GPUs: "auto" (or NULL) or "portable"; the CPU has isa instead */
    int32_t ordinal;     /* which GPU */
    bool no_graphs;      /* GPUs: graph_run calls enqueue every time; the same bits */
    int n_threads;       /* 0 = all processors */
    enum sv_isa isa;     /* SV_ISA_AUTO = the best this machine has; others fail if missing */
    /* bf16 matrices in fewer bits (GPUs: a copy), for products with few rows; the same bits */
    enum sv_dense dense;
    /* ON where the device cannot: sv_dev_approximates is false, for the caller to complain of */
    enum sv_bytes bytes;
    enum sv_sieves sieve; /* the CPU's: the argmax of few rows by bounds first; the same ids */
    /* SV_F32: exact f32 products; SV_BF16: inputs of GEMMs rounded to bf16 */
    enum sv_dtype compute;
    int64_t weight_bytes; /* of the target, as published; 0 = not known */
    int32_t usual_rows;   /* of a step that decodes; 0 = not known */
    /* GPUs: longest wait without progress, then the device has failed; 0 = 60, -1 = none */
    int32_t timeout_s;
};

/* The largest values any op will be asked for; reserve() sizes all scratch once. */
struct sv_dev_limits {
    int32_t max_rows;       /* rows of a batch */
    int32_t max_logit_rows; /* rows of logits held at once */
    int32_t max_k;          /* widest GEMM input (taps included) */
    int32_t max_n;          /* widest GEMM output, the head excluded */
    int32_t max_heads, max_head_dim, max_vocab;
    int32_t max_positions; /* longest sequence */
};

struct sv_backend {
    const char *name;
    /* Ops queue up and graph_run replays: the engine pads counts to buckets and runs a step
     * ahead. */
    bool has_graphs;
    bool head_shares; /* head_argmax tells shares when asked, */
    bool (*head_shares_of)(const struct sv_dev *,
                           const struct sv_weight *w); /* or with such a head; may be NULL */
    void (*close)(struct sv_dev *);
    int (*reserve)(struct sv_dev *, const struct sv_dev_limits *, struct sv_err *);
    int (*alloc)(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *); /* cleared */
    void (*free)(struct sv_dev *, void *p);
    /* Host memory that copies to and from the device without a detour; cleared. */
    int (*host_alloc)(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *);
    void (*host_free)(struct sv_dev *, void *p);
    /* Bytes free and in all on the device; 0 and 0 when it shares the host's memory. */
    void (*memory)(struct sv_dev *, int64_t *n_free, int64_t *n_total);
    /* Bytes allocated on the device and not freed, an exact sum. NULL: not counted, as memory is
     * the host's. */
    int64_t (*held)(const struct sv_dev *, enum sv_mem kind);
    /* host->data is row-major host memory. May return it as it is (CPU: used in place; *owned =
     * false), or repack a matrix (rows > 1) into the backend's layout. Not in the step. */
    int (*upload_weight)(struct sv_dev *, const struct sv_weight *host, struct sv_weight *dev,
                         bool *owned, struct sv_err *);
    /* Bytes of dense copies, made by reserve; how many matrices have one, and how many cannot.
     * NULL: none. */
    int64_t (*dense_bytes)(struct sv_dev *, int32_t *n_dense, int32_t *n_plain);
    /* What a product with few rows, at most few_rows, reads of w: bytes of its dense copy (or of a
     * head's sieve), 0 = it has none. NULL: no copies. */
    int64_t (*few_bytes)(const struct sv_dev *, const struct sv_weight *w);
    int32_t (*few_rows)(const struct sv_dev *);
    /* Whether upload_weight makes use of `approximate`; NULL: no. */
    bool (*approximates)(const struct sv_dev *);
    /* A weight of normal numbers times scale plus shift, made on the device from the seed:
     * benchmarks. */
    int (*random_weight)(struct sv_dev *, const struct sv_weight *shape, float scale, float shift,
                         uint64_t seed, struct sv_weight *dev, struct sv_err *);
    void (*upload)(struct sv_dev *, void *dst, const void *src, size_t n_bytes);   /* enqueue */
    void (*download)(struct sv_dev *, void *dst, const void *src, size_t n_bytes); /* enqueue */
    int (*sync)(struct sv_dev *, struct sv_err *); /* waits; returns and clears the latched error */
    /* mark(i) remembers this place in the queue; wait(i) waits until everything before it is done,
     * and returns and clears the latched error. i < SV_MARKS; a mark never set counts as done. */
    void (*mark)(struct sv_dev *, int32_t i);
    int (*wait)(struct sv_dev *, int32_t i, struct sv_err *);
    /* Enqueues what enqueue(user) enqueues. A device with graphs captures it the first time a key
     * is seen and replays it afterwards without the call, so all that launches bake in (counts,
     * pointers, flags) must be a function of the key. No upload from memory that changes place, no
     * allocation inside. */
    void (*graph_run)(struct sv_dev *, uint64_t key, void (*enqueue)(void *user), void *user);
    /* For traces: stamp(i) notes when the queue gets here, stamp_us is the time between two of
     * them, both of which must be done. i < SV_STAMPS. Not inside graph_run. NULL where an op is
     * over when it returns. */
    void (*stamp)(struct sv_dev *, int32_t i);
    double (*stamp_us)(struct sv_dev *, int32_t from, int32_t to);

    void (*block_ids)(struct sv_dev *, const struct sv_p_block_ids *);
    void (*embed)(struct sv_dev *, const struct sv_p_embed *);
    void (*add_rms_norm)(struct sv_dev *, const struct sv_p_add_rms_norm *);
    void (*gemm)(struct sv_dev *, const struct sv_p_gemm *);
    void (*gemm_act_mul)(struct sv_dev *, const struct sv_p_gemm_act_mul *);
    void (*qk_norm_rope_kv_write)(struct sv_dev *, const struct sv_p_qk_norm_rope_kv_write *);
    void (*attention)(struct sv_dev *, const struct sv_p_attention *);
    void (*act_mul)(struct sv_dev *, const struct sv_p_act_mul *);
    void (*head_argmax)(struct sv_dev *, const struct sv_p_head_argmax *);
    void (*logit_pos)(struct sv_dev *, const struct sv_p_logit_pos *);
    void (*sample)(struct sv_dev *, const struct sv_p_sample *);
    void (*argmax_share)(struct sv_dev *, const struct sv_p_argmax_share *); /* may be NULL */
    void (*head_among)(struct sv_dev *, const struct sv_p_head_among *);
    void (*logit_mask)(struct sv_dev *, const struct sv_p_logit_mask *);
    void (*logit_rules)(struct sv_dev *, const struct sv_p_logit_rules *);
    void (*logprobs)(struct sv_dev *, const struct sv_p_logprobs *);
    void (*history)(struct sv_dev *, const struct sv_p_history *);
    void (*verify)(struct sv_dev *, const struct sv_p_verify *);
    void (*commit)(struct sv_dev *, const struct sv_p_commit *);
    void (*draft_context_kv)(struct sv_dev *, const struct sv_p_draft_context_kv *);
    /* Read-only sweep over n_bytes of fresh memory with all threads; GB/s, best of a few rounds. */
    double (*measure_read)(struct sv_dev *, size_t n_bytes);
    const char *(*describe)(struct sv_dev *); /* "cpu amx-bf16, 2 threads" */
    enum sv_dtype (*act_dtype)(const struct sv_dev *);
    enum sv_dtype (*compute_dtype)(const struct sv_dev *);
};

#define SV_MARKS 4
#define SV_STAMPS 2048

int sv_dev_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err);
const struct sv_backend *sv_dev_backend(const struct sv_dev *dev);
enum sv_dtype sv_dev_act_dtype(const struct sv_dev *dev);
enum sv_dtype sv_dev_compute_dtype(const struct sv_dev *dev);

/* Checked wrappers around the table (ops.c). Zero rows are a no-op everywhere. */
void sv_dev_close(struct sv_dev *dev);
int sv_dev_reserve(struct sv_dev *dev, const struct sv_dev_limits *lim, struct sv_err *err);
int sv_dev_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_dev_free(struct sv_dev *dev, void *p);
int sv_dev_host_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_dev_host_free(struct sv_dev *dev, void *p);
void sv_dev_memory(struct sv_dev *dev, int64_t *n_free, int64_t *n_total);
int64_t sv_dev_held(const struct sv_dev *dev, enum sv_mem kind); /* 0 where nothing is counted */
bool sv_dev_approximates(const struct sv_dev *dev);
/* Whether head_argmax tells shares with this head. */
bool sv_dev_head_shares(const struct sv_dev *dev, const struct sv_weight *w);
/* Adds what a product with w reads. Once memory is reserved, for that makes the copies. */
void sv_dev_add_read(const struct sv_dev *dev, const struct sv_weight *w,
                     struct sv_read_bytes *sum);
int64_t sv_dev_read_of(const struct sv_dev *dev, const struct sv_read_bytes *b, int32_t n_rows);
int64_t sv_dev_dense_bytes(struct sv_dev *dev, int32_t *n_dense, int32_t *n_plain);
int sv_dev_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                         bool *owned, struct sv_err *err);
/* fn is told of every weight that is there, for who waits. */
void sv_dev_on_upload(struct sv_dev *dev, void (*fn)(void *user, size_t n_bytes), void *user);
int sv_dev_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                         float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err);
void sv_dev_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
void sv_dev_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
int sv_dev_sync(struct sv_dev *dev, struct sv_err *err);
void sv_dev_mark(struct sv_dev *dev, int32_t i);
int sv_dev_wait(struct sv_dev *dev, int32_t i, struct sv_err *err);
void sv_dev_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user);
double sv_dev_measure_read(struct sv_dev *dev, size_t n_bytes);
const char *sv_dev_describe(struct sv_dev *dev);
void sv_op_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p);
void sv_op_embed(struct sv_dev *dev, const struct sv_p_embed *p);
void sv_op_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p);
void sv_op_gemm(struct sv_dev *dev, const struct sv_p_gemm *p);
void sv_op_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p);
void sv_op_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p);
void sv_op_attention(struct sv_dev *dev, const struct sv_p_attention *p);
void sv_op_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p);
void sv_op_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p);
void sv_op_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p);
void sv_op_sample(struct sv_dev *dev, const struct sv_p_sample *p);
void sv_op_argmax_share(struct sv_dev *dev, const struct sv_p_argmax_share *p);
void sv_op_head_among(struct sv_dev *dev, const struct sv_p_head_among *p);
void sv_op_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p);
void sv_op_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p);
void sv_op_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p);
void sv_op_history(struct sv_dev *dev, const struct sv_p_history *p);
void sv_op_verify(struct sv_dev *dev, const struct sv_p_verify *p);
void sv_op_commit(struct sv_dev *dev, const struct sv_p_commit *p);
void sv_op_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p);

/* ---------------------------------------------------------------- traces */

/* trace.c: for benchmarks. A traced device's table is replaced until the trace ends: every op goes
 * through the trace first, which counts it, times it or leaves it out. Ops are told apart by kind,
 * shape and pass. */
struct sv_trace;
struct sv_trace_class {
    char name[40];
    int32_t pass; /* graph_run calls since the last mark, this one included; 0 = outside */
    int32_t n;    /* calls */
    double us;    /* in modes that time */
};
#define SV_TRACE_CLASSES 64
enum sv_trace_mode {
    SV_TRACE_COUNT,
    SV_TRACE_OPS,  /* passes are not replayed; the time from op to op */
    SV_TRACE_CALLS /* the time from call to call: a pass, a copy */
};
int sv_trace_begin(struct sv_trace **t, struct sv_dev *dev, struct sv_err *err);
void sv_trace_end(struct sv_trace *t);
/* Counts and times start at zero from here; nothing may be under way. */
void sv_trace_start(struct sv_trace *t, enum sv_trace_mode mode);
/* What was seen since; of timed calls only those of whole steps, mark to mark. Nothing may be under
 * way. */
const struct sv_trace_class *sv_trace_read(struct sv_trace *t, int32_t *n);
/* Classes left out from now on, bit by bit. What they would have written stays as it was: numbers
 * mean nothing, times do; faults of kernels that meet such numbers are dropped. */
void sv_trace_skip(struct sv_trace *t, uint64_t classes);

#endif
