/*
 * vec.h - the table of row kernels that one instruction-set level provides, and functions shared by
 * ops other than matrix products: thread scratch, work splitting, cache addressing.
 *
 * vec_plain.c, vec_avx2.c and vec_avx512.c each fill one table from the same two templates
 * (vec_kernels.h, logits_kernels.h, attention_kernels.h) over their own simd_*.h. The op files
 * (norm.c, rope.c, act.c, attention.c, sample.c, logits.c, context_kv.c, ids.c, verify.c) walk rows
 * and call through cpu->vec. Must not: choose a kernel by the number of rows when the choice could
 * change a row's bits.
 */
#ifndef SV_CPU_VEC_H
#define SV_CPU_VEC_H

#include "backend/cpu/cpu.h"
#include "backend/ops_gdn.h"

/* --------------------------------------------------------- attention, shared with the templates */

#define SV_ATTN_CHUNK 64  /* positions per softmax step, at absolute multiples */
#define SV_ATTN_PART 1024 /* positions summed from zero before they are merged, absolute too */
#define SV_ATTN_TILE 64   /* most queries (row, head) of one work item */
#define SV_ATTN_WORK_BYTES 45056
#define SV_ATTN_LANES_DIM 576   /* widest key of the kernels with queries in lanes */
#define SV_ATTN_LANES_V_DIM 512 /* and widest value */

/* A tile of queries of one sequence and kv head against one chunk of positions. */
struct sv_cpu_attn_chunk {
    const void *const *k_rows; /* [SV_ATTN_CHUNK] key of each position, set in [lo, hi) */
    const void *const *v_rows;
    enum sv_dtype dtype;
    int32_t head_dim, v_dim; /* of a key, of a value */
    int32_t lo, hi;          /* positions of this chunk that any query sees, relative to it */
    int32_t n_q;
    const float *q; /* (n_q, head_dim), already times the softmax scale */
    const int32_t *q_lo,
        *q_hi; /* (n_q) range that each query sees inside the chunk; may be empty */
    float softcap;
    float *m, *l;   /* (n_q) running maximum and sum */
    float *acc;     /* (n_q, acc_ld) running weighted sum of values */
    int32_t acc_ld; /* v_dim rounded up to 16 */
    float *kt;      /* (head_dim, SV_ATTN_CHUNK) scratch */
    float *vv;      /* (SV_ATTN_CHUNK, acc_ld) scratch */

    /* Kernels with queries in lanes only. The arrays by query have 16 * ceil(n_q / 16) entries;
     * spare ones see nothing. */
    bool whole;              /* every query sees all positions (q_lo, q_hi still say so) */
    const uint16_t *q_tiles; /* [n_q / 16][head_dim / 32][16][16][2] */
    float scale;             /* not in the queries yet */
    bool k_blocks16;         /* 16 positions from a multiple of 16 lie side by side in the cache */
    void *work;              /* SV_ATTN_WORK_BYTES */
};

/* One row of add_rms_norm. write_x: store x + delta back. */
struct sv_cpu_norm_row {
    float *x;
    const float *delta; /* or NULL */
    const struct sv_weight *w;
    int32_t d;
    float eps;
    bool write_x;
    float *out, *tap; /* tap may be NULL */
};

/* A row of a chunk in some columns of one value head. */
struct sv_cpu_gdn_row {
    int32_t n_before;     /* rows of its chunk before it */
    int32_t n_cols;       /* a multiple of 16 */
    const float *sk, *sq; /* (n_cols) S^T k, S^T q */
    const float *v;
    const float *kk, *qk; /* (n_before, n_before + 1) exp(G - G_j) k . k_j, and q . k_j */
    float beta, decay;    /* decay: exp(G) */
    float *u;             /* (SV_GDN_CHUNK, ldu): rows before it are read, row n_before written */
    int32_t ldu;
    float *out;
};

/* ---------------------------------------------------------------- the table */

struct sv_cpu_vec {
    void (*add_rms_norm)(const struct sv_cpu_norm_row *r);
    /* out = x, not read soon, nor by other threads before this one's fence */
    void (*stream)(float *out, const float *x, int32_t n);
    void (*fence)(void);
    void (*act_mul)(float *out, const float *gate, const float *up, int32_t d);
    /* out = w[0] x[0] + w[1] x[1] + ..., k of them in this order, each (d) */
    void (*weighted_sum)(float *out, const float *const *x, const float *w, int32_t k, int32_t d);
    /* out = in * scale with in of any weight dtype, or of e4m3 codes, of which none is NaN */
    void (*widen)(float *out, const void *in, enum sv_dtype dtype, int32_t n, float scale);
    /* dst of dtype SV_F32 or SV_BF16 */
    void (*narrow)(void *dst, enum sv_dtype dtype, const float *in, int32_t n);
    /* One head: RMS norm (when w->data is set), then rotate. out may be x. */
    void (*norm_rope)(float *out, const float *x, const struct sv_weight *w, float eps,
                      const float *cos, const float *sin, int32_t head_dim, int32_t rot_dim);

    /* Largest non-NaN value (-inf when none); *n_nan counts the NaNs. */
    float (*max)(const float *x, int32_t n, int32_t *n_nan);
    /* out[i] = max of x[64 i .. 64 i + 63]; NaN free input. */
    void (*block_max)(float *out, const float *x, int32_t n);
    /* Ids with x >= t, ascending; returns how many. ids has room for n. */
    int32_t (*find_ge)(int32_t *ids, const float *x, int32_t n, float t);
    /* Sum of w[i] where x[i] >= t, in f32: an estimate, relative error below 1e-3. */
    float (*mass_ge)(const float *w, const float *x, int32_t n, float t);
    /* w[i] = exp((x[i] - max) * inv_t) */
    void (*exp_weights)(float *w, const float *x, int32_t n, float max, float inv_t);
    /* Sum in double, 16 interleaved partial sums added in a fixed tree. */
    double (*sum)(const float *w, int32_t n);

    void (*attn_chunk)(const struct sv_cpu_attn_chunk *c);
    /* Adds part (m2, l2, acc2) to (m, l, acc). */
    void (*attn_merge)(float *m, float *l, float *acc, float m2, float l2, const float *acc2,
                       int32_t n);
    /* out = acc / l, with the sink (when set) as one more logit that carries no value. */
    void (*attn_finish)(float *out, const float *acc, float m, float l, const float *sink,
                        int32_t n);

    /* gdn_kernels.h; dimensions are multiples of 16 except in sigmoid_mul */
    float (*dot)(const float *a, const float *b, int32_t n);
    void (*sigmoid_mul)(float *out, const float *x, const float *gate, int32_t n);
    void (*conv_silu)(float *out, const float *const tap[SV_GDN_TAPS], const float *w, int64_t ldw,
                      int32_t n);
    void (*gdn_product)(float *out, int32_t ldo, const float *const *x, int32_t n_x, const float *s,
                        int64_t lds, int32_t k_dim, int32_t n_cols);
    void (*gdn_row)(const struct sv_cpu_gdn_row *r);
    void (*gdn_fold)(float *to, int64_t ldto, const float *s, int64_t lds, const float *kw,
                     const float *u, int32_t ldu, float decay, int32_t k_dim, int32_t n_cols);

    /* Reads n_bytes (a multiple of 256) and returns a value that depends on all of them. */
    uint64_t (*read)(const void *p, size_t n_bytes);
};

extern const struct sv_cpu_vec sv_cpu_vec_plain;
extern const struct sv_cpu_vec sv_cpu_vec_avx2;   /* not linked with SV_NO_AVX2 */
extern const struct sv_cpu_vec sv_cpu_vec_avx512; /* not linked with SV_NO_AVX512 */

/* attention_lanes.h: kernels with queries in lanes and bf16 products. begin and end enclose a
 * thread's work; pack takes at most 16 queries. */
struct sv_cpu_attn_lanes {
    void (*begin)(void);
    void (*end)(void);
    void (*pack)(uint16_t *tiles, const float *const *q, int32_t n_q, int32_t hd);
    void (*chunk)(const struct sv_cpu_attn_chunk *c);
};
const struct sv_cpu_attn_lanes *sv_cpu_attn_amx(void);         /* not linked with SV_NO_AMX */
const struct sv_cpu_attn_lanes *sv_cpu_attn_bf16_avx512(void); /* not linked with SV_NO_AVX512 */

/* ---------------------------------------------------------------- shared by the ops */

/* Runs fn on the pool, or inline when the whole call is too short for waking threads. The rule
 * depends on sizes only, and no result depends on it. */
#define SV_CPU_INLINE_NS 500
static inline void sv_cpu_run(struct sv_cpu *cpu, sv_pool_fn fn, void *arg, int64_t cost_ns)
{
    if (cpu->n_threads == 1 || cost_ns < SV_CPU_INLINE_NS)
        fn(arg, 0, 1);
    else
        sv_pool_run(cpu->pool, fn, arg);
}

/* Part i of n of [0, count). */
static inline void sv_cpu_share(int32_t count, int i, int n, int32_t *begin, int32_t *end)
{
    *begin = (int32_t)((int64_t)count * i / n);
    *end = (int32_t)((int64_t)count * (i + 1) / n);
}

/* Byte offset of (slot, kv head 0, position) in kv->k and kv->v; -1 when the table has no page.
 * Head h is h * page_size rows further. */
static inline int64_t sv_cpu_kv_offset(const struct sv_kv *kv, int32_t slot, int32_t pos)
{
    int32_t i = pos / kv->page_size;
    if (pos < 0 || i >= kv->table_stride)
        return -1;
    int32_t page = kv->table[(int64_t)slot * kv->table_stride + i];
    if (page < 0 || page >= kv->n_pages)
        return -1;
    int64_t in_page = pos - i * kv->page_size;
    return ((int64_t)page * kv->n_kv_heads * kv->page_size + in_page) *
           (int64_t)sv_kv_row_bytes(kv->dtype, kv->head_dim, kv->latent);
}

/* kv_f8.c: one head's key and value to their rows at this offset. */
void sv_cpu_kv_put(const struct sv_cpu *cpu, const struct sv_kv *kv, int64_t at, const float *key,
                   const float *value);
/* The values of a row of SV_F8, as f32 or bf16; scales as in struct sv_kv. */
void sv_cpu_kv_widen(const struct sv_cpu *cpu, void *out, enum sv_dtype dtype, const void *row,
                     uint8_t own_scale, int32_t head_dim, float scale);
/* A latent and its rotated key, likewise. */
void sv_cpu_latent_put(const struct sv_cpu *cpu, const struct sv_kv *kv, int64_t at,
                       const float *kept);
void sv_cpu_latent_widen(const struct sv_cpu *cpu, void *out, enum sv_dtype dtype,
                         const struct sv_kv *kv, const void *row);

/* cpu.c: scratch sized by reserve. Thread areas serve attention and sampling, never both at
 * once. */
void *sv_cpu_thread_scratch(struct sv_cpu *cpu, int thread);
int32_t *sv_cpu_row_list(struct sv_cpu *cpu);                   /* (max_rows) */
float *sv_cpu_attn_parts(struct sv_cpu *cpu, size_t *n_floats); /* partial results */

size_t sv_cpu_attn_thread_bytes(const struct sv_dev_limits *lim);   /* attention.c */
size_t sv_cpu_attn_parts_floats(const struct sv_dev_limits *lim);   /* attention.c */
size_t sv_cpu_sample_thread_bytes(const struct sv_dev_limits *lim); /* sample.c */

/* The ops, one file each; entered through the table in cpu.c. */
void sv_cpu_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p);
void sv_cpu_embed(struct sv_dev *dev, const struct sv_p_embed *p);
void sv_cpu_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p);
void sv_cpu_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p);
void sv_cpu_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p);
void sv_cpu_attention(struct sv_dev *dev, const struct sv_p_attention *p);
void sv_cpu_sigmoid_mul(struct sv_dev *dev, const struct sv_p_sigmoid_mul *p);
void sv_cpu_add_gated(struct sv_dev *dev, const struct sv_p_add_gated *p);
void sv_cpu_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p);
void sv_cpu_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p);
void sv_cpu_argmax_confidence(struct sv_dev *dev, const struct sv_p_argmax_confidence *p);
void sv_cpu_sample(struct sv_dev *dev, const struct sv_p_sample *p);
void sv_cpu_head_among(struct sv_dev *dev, const struct sv_p_head_among *p);
void sv_cpu_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p);
void sv_cpu_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p);
void sv_cpu_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p);
void sv_cpu_history(struct sv_dev *dev, const struct sv_p_history *p);
void sv_cpu_replace_drafts(struct sv_dev *dev, const struct sv_p_replace_drafts *p);
void sv_cpu_verify(struct sv_dev *dev, const struct sv_p_verify *p);
void sv_cpu_commit(struct sv_dev *dev, const struct sv_p_commit *p);
void sv_cpu_snapshot(struct sv_dev *dev, const struct sv_p_snapshot *p);
void sv_cpu_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p);

extern const struct sv_gdn_ops sv_cpu_gdn;       /* gdn.c */
extern const struct sv_mla_ops sv_cpu_mla;       /* mla.c */
extern const struct sv_vision_ops sv_cpu_vision; /* vision.c */

/* rope.c: table row of a position; latches when the table is too short. */
int32_t sv_cpu_rope_row(struct sv_cpu *cpu, const struct sv_rope_table *t, int32_t pos);

#endif
