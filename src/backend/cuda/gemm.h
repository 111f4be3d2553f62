/*
 * gemm.h - matrix products of the CUDA backend: what gemm.cu shares with its kernels, and what the
 * rest of the folder calls.
 *
 * Which kernel computes a part depends on the weight alone, never on the number of rows: packed
 * bf16 weights with k a multiple of 8 take tensor cores (gemm_sm90.cu, or gemm_portable.cu), all
 * others gemm_plain.cu. Each of the three fixes one order of sums per weight shape (split.cuh).
 * Must not: be included outside src/backend/{cuda,gpu} and their bench.
 */
#ifndef SV_CUDA_GEMM_H
#define SV_CUDA_GEMM_H

#include "backend/gpu/codes.cuh"
#include "backend/cuda/cuda.h"
#include "backend/cuda/fp8.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/join.cuh"
#include "backend/gpu/pack.cuh"
#include "backend/gpu/split.cuh"

enum {
    SV_GEMM_PASS = 256,        /* rows of x in one launch of a tensor-core kernel */
    SV_GEMM_WIDE_PASS = 512,   /* likewise where thread blocks take half of k each (sm_90) */
    SV_GEMM_STASH = 131072,    /* bytes of a thread block's stash */
    SV_GEMM_BEST_SLOTS = 2048, /* candidates of a row in a fused head, at most */
    SV_GEMM_BEST_ROWS = SV_GEMM_WIDE_PASS, /* rows of x of a fused head in one launch, at most */
    SV_GEMM_FP8_ROWS = 2048,               /* rows of x that are in 8 bits at once */
    SV_GEMM_CODES_PASS = 128, /* rows of x in one launch where weights are codes, or x in groups */
    SV_GEMM_CODES_ROWS = 512, /* more rows of x have codes expanded in memory first */
};

/* Times of a thread block, in a build of their own. */
#ifdef SV_GEMM_TRACE
enum { SV_GEMM_MARKS = 8, SV_GEMM_TRACED = 132 };
#define SV_MARK(a, i)                                                                              \
    do {                                                                                           \
        if (threadIdx.x == ((i) >= 6 ? blockDim.x - (blockDim.x % 128 == 0 ? 128 : 32) : 0))       \
            asm volatile("mov.u64 %0, %%globaltimer;"                                              \
                         : "=l"((a).trace[blockIdx.x * SV_GEMM_MARKS + (i)]));                     \
    } while (0)
#else
#define SV_MARK(a, i) ((void)0)
#endif

enum sv_gemm_mode {
    SV_GEMM_ACT,
    SV_GEMM_F32,
    SV_GEMM_ARGMAX,
    /* part 0 gate, part 1 up: a block is half as many rows of each, y their d columns */
    SV_GEMM_GATED
};

/* A part as kernels see it; blocks are those of the split, bands have 64 rows. */
struct sv_gemm_item {
    const uint8_t *w;     /* packed */
    const uint8_t *wcomp; /* the same in fewer bits (wcomp.cuh; codes.cuh), or NULL */
    int32_t code;         /* enum sv_codes_code, of codes */
    const float *scale;   /* weights in 8 bits: of each row, or of each tile's */
    const void *bias;     /* or NULL */
    int32_t bias_dtype, n_out, n_bands;
    int32_t col0;   /* in y */
    int32_t block0; /* first block of the split */
    int32_t wide;   /* 16-byte stores into y are aligned */
};

/* Handed to kernels by value. */
struct sv_gemm_args {
    struct sv_split split;
    int32_t n_rows, n_parts, mode, n_stages;
    int32_t n_early; /* compressed weights: tiles expanded before x is there, at most */
    int32_t x_rows;  /* sm_90: of x in a copy, of which each thread block of a cluster makes one */
    int32_t tall;    /* sm_90: blocks of SV_SM90_TALL weight rows that no unit cuts */
    int32_t n_sharers;   /* sm_90, clusters of two units: of each shared block */
    int32_t bytes;       /* weights and x in 8 bits (fp8.cuh), */
    int32_t groups;      /* with scales of groups */
    int32_t codes;       /* bits as codes.cuh says, or 0; x in bf16 */
    int32_t co_resident; /* sm_90: see sv_gemm_is_co_resident */
    enum sv_join next;   /* the join whose part y is, which a kernel may send at once, or none */
    int32_t sends;       /* y is sent to the other ranks as it is stored, where push says */
    int32_t x_stays; /* sm_90, whole products: x fits into L2 beside weights that leave it first */
    const float *x_scale; /* and x's scales; of groups (tiles, x_ld) */
    int32_t x_ld;
    void *y;
    int64_t ldy;
    float4 *pieces; /* partial sums of blocks shared between units */
    /* sm_90, above SV_GEMM_PASS rows: sums of a thread block that its registers cannot hold */
    float4 *stash;
    uint32_t *arrived; /* (n_units, 4) pieces written; 0 between launches */
    uint64_t *best;    /* (SV_GEMM_BEST_SLOTS, SV_GEMM_BEST_ROWS) keys of the fused head */
    int32_t n_slots;   /* of these, that a launch of whole products has filled */
    struct sv_gemm_item part[SV_GEMM_MAX_PARTS];
    struct sv_join_site push;
#ifdef SV_GEMM_TRACE
    /* (thread blocks, SV_GEMM_MARKS) times; last, as not all objects are built with it */
    uint64_t *trace;
#endif
};

/* Made by sv_cuda_gemm_reserve. */
struct sv_cuda_gemm_state {
    void *encode;         /* cuTensorMapEncodeTiled of the driver */
    size_t portable_smem; /* a portable thread block may use */
    int32_t sm90_units;   /* pairs of thread blocks that fit the device at once */
    float4 *pieces, *stash;
    float4 *posted; /* portable, up to SV_PORTABLE_POSTED rows */
    uint32_t *arrived;
    uint64_t *best;
    uint8_t *bytes_x; /* rows of x in 8 bits, and their scales; NULL without quantized weights */
    float *bytes_scale;
    int32_t bytes_ld; /* of scales of groups */
    uint8_t
        *expanded; /* (expanded_bytes) codes as packed bf16, for many rows; NULL without codes */
    size_t expanded_bytes;
    /* Benchmarks only; 0 = the built-in choice, below 0 = none. */
    int32_t tune_stages, tune_n, tune_units;
    int32_t tune_whole; /* above 0: always, above 1 with this width */
    int32_t tune_tall, tune_pair, tune_skew, tune_halves;
    int32_t tune_round; /* portable: 1 = two tiles a round */
    int32_t tune_early; /* compressed weights: see n_early */
    int32_t tune_wcomp; /* most rows that take compressed weights */
#ifdef SV_GEMM_TRACE
    uint64_t *trace;
    int32_t n_traced;
#endif
};

/* ---------------------------------------------------------------- for the rest of the folder */

int sv_cuda_gemm_reserve(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_gemm_close(struct sv_cuda *cu);
void sv_cuda_gemm(struct sv_dev *dev, const struct sv_p_gemm *p);
void sv_cuda_gemm_act_mul(struct sv_dev *dev, const struct sv_p_gemm_act_mul *p);
void sv_cuda_head_argmax(struct sv_dev *dev, const struct sv_p_head_argmax *p);
/* Whether rows of x of k columns may be written in 8 bits for products with quantized weights; the
 * writer, right before the product, sets cu->bytes_of. */
bool sv_gemm_bytes_room(const struct sv_cuda *cu, int32_t n_rows, int32_t k);
/* Row-major bf16 in device memory -> packed, n_rows rows from row0 (a multiple of 64) of a matrix;
 * dst is the whole matrix. Rows and columns of padding are written as zeros. Enqueues. */
void sv_cuda_pack(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows, int32_t cols,
                  void *dst);

/* Whether a product of few rows leaves room for other launches' blocks (gemm.cu). */
bool sv_gemm_is_co_resident(const struct sv_cuda *cu, const struct sv_weight *w, int32_t n_rows);
/* Which codes these are. */
static inline enum sv_codes_code sv_cuda_code_of(const struct sv_weight *w)
{
    const bool two = w->fmt.block_cols == SV_TILE / 2;
    if (w->fmt.scale == SV_I8)
        return !two ? SV_CODES_K6 : w->fmt.elem == SV_U8 ? SV_CODES_K4 : SV_CODES_K5;
    if (w->fmt.elem == SV_U8)
        return w->fmt.scale == SV_BF16  ? (two ? SV_CODES_I4_TWO : SV_CODES_I4)
               : w->fmt.scale == SV_F16 ? (two ? SV_CODES_I4_HALF_TWO : SV_CODES_I4_HALF)
               : w->fmt.scale == SV_U8  ? SV_CODES_MX4
                                        : SV_CODES_NV4;
    return w->fmt.elem == SV_I8      ? (two ? SV_CODES_I8_TWO : SV_CODES_I8)
           : w->fmt.scale == SV_BF16 ? SV_CODES_F8
                                     : SV_CODES_F8_WIDE;
}

static inline int32_t sv_cuda_code_bits(const struct sv_weight *w)
{
    return sv_codes_bits(sv_cuda_code_of(w));
}

/* codes.cu: rows of codes (n_rows, cols; of 4 bits two a byte, low ones first; signed bytes as
 * such) and words (n_rows, tiles of cols; of 8 bits f32 scales), or of super-blocks (_k), from row0
 * on, a multiple of 64, into tiles of codes.cuh; and these to packed bf16. All enqueue. */
void sv_cuda_codes_pack(struct sv_cuda *cu, const void *src, const void *words, int32_t row0,
                        int32_t n_rows, int32_t cols, enum sv_codes_code code, void *dst);
void sv_cuda_codes_pack_k(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows,
                          int32_t cols, enum sv_codes_code code, void *dst);
void sv_cuda_codes_expand(struct sv_cuda *cu, const void *tiles, int32_t rows, int32_t cols,
                          enum sv_codes_code code, void *packed);

/* ---------------------------------------------------------------- between gemm*.cu */

/* Cuts the parts into blocks of weight rows; gated: half of each block's are gate's, half up's. */
static inline void sv_gemm_lay_blocks(struct sv_gemm_args *a, int32_t block_rows)
{
    a->split.n_blocks = 0;
    for (int32_t i = 0; i < a->n_parts; i++) {
        struct sv_gemm_item *it = &a->part[i];
        const int32_t rows = a->mode == SV_GEMM_GATED ? block_rows / 2 : block_rows;
        if (a->mode == SV_GEMM_GATED)
            a->split.n_blocks = 0;
        it->block0 = a->split.n_blocks;
        a->split.n_blocks += (it->n_out + rows - 1) / rows;
    }
}

enum { SV_GEMM_SENT_ROWS = 128 }; /* of x: products send up to so many, the norm sends more */
/* ---- gemm.cu: sets sends and push, for the launch of a kernel that can send y */
void sv_gemm_push(struct sv_cuda *cu, struct sv_gemm_args *a);
/* ---- gemm_sm90.cu: blocks of 256 weight rows, for two thread blocks, or of 192, for one */
enum { SV_SM90_BLOCK = 256, SV_SM90_TALL = 192 };
int sv_gemm_sm90_open(struct sv_cuda *cu, struct sv_err *err);
void sv_gemm_sm90(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                  struct sv_gemm_args *a);
/* More than SV_GEMM_PASS rows, SV_GEMM_WIDE_PASS at most, where thread blocks of half of k fill the
 * device; false: nothing done. The same bits. */
bool sv_gemm_sm90_halves(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                         struct sv_gemm_args *a);
/* Many rows, where every sum by one thread block pays; false: nothing done. The same bits. */
bool sv_gemm_sm90_whole(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                        struct sv_gemm_args *a);
/* Describes x, of bf16 or bytes, to the copy engine; out: a CUtensorMap. A failure is latched. */
bool sv_gemm_encode_x(struct sv_cuda *cu, void *out, const void *x, int64_t ldx, int32_t k,
                      int32_t n_rows, int box_rows, bool bytes);
/* ---- gemm_beside_sm90.cu: few rows, co-resident, bits of sv_gemm_sm90; false: nothing done */
int sv_gemm_beside_open(struct sv_err *err);
bool sv_gemm_beside(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                    struct sv_gemm_args *a);
/* ---- gemm_wcomp_sm90.cu: likewise, where all parts have compressed weights */
int sv_gemm_wcomp_open(struct sv_cuda *cu, struct sv_err *err);
int32_t sv_gemm_wcomp_rows(const struct sv_cuda *cu); /* how many are few */
bool sv_gemm_wcomp(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                   struct sv_gemm_args *a);
/* ---- gemm_codes_sm90.cu, of codes of 8 bits, and gemm_codes4_sm90.cu to gemm_codes7_sm90.cu: up
 * to SV_GEMM_CODES_PASS rows of x. The bits of sv_gemm_sm90 on the matrix of their values. */
typedef int sv_gemm_open_fn(struct sv_cuda *cu, struct sv_err *err);
typedef void sv_gemm_run_fn(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                            struct sv_gemm_args *a);
sv_gemm_open_fn sv_gemm_codes_open, sv_gemm_codes4_open, sv_gemm_codes5_open, sv_gemm_codes6_open,
    sv_gemm_codes7_open;
sv_gemm_run_fn sv_gemm_codes, sv_gemm_codes4, sv_gemm_codes5, sv_gemm_codes6, sv_gemm_codes7;
/* ---- gemm_portable.cu: blocks of 64 weight rows */
enum {
    SV_PORTABLE_BLOCK = 64,
    SV_PORTABLE_POSTED = 16 /* up to so many rows of x, pieces are posted as in the sm_90 way */
};
int sv_gemm_portable_open(struct sv_cuda *cu, struct sv_err *err);
int32_t
sv_gemm_portable_wcomp_rows(const struct sv_cuda *cu); /* up to so many take compressed weights */
void sv_gemm_portable(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                      struct sv_gemm_args *a);
/* ---- gemm_plain.cu: any dtype, one part */
void sv_gemm_plain(struct sv_cuda *cu, const struct sv_p_gemm *p, int32_t part, int32_t col0);
void sv_gemm_plain_best(struct sv_cuda *cu, const struct sv_p_head_argmax *p, int32_t row0,
                        int32_t n);
/* ---- head.cu: keys -> ids; n_slots candidates for each of n rows from row0 */
void sv_gemm_best_pick(struct sv_cuda *cu, const struct sv_p_head_argmax *p, int32_t row0,
                       int32_t n, int32_t n_slots);
/* ---- confidence.cu: likewise, with the confidence of each */
void sv_gemm_best_confidence(struct sv_cuda *cu, const struct sv_p_head_argmax *p, int32_t row0,
                             int32_t n, int32_t n_slots);

#ifdef __CUDACC__
/* A logit and its id as one number that grows with the logit and, at a tie, with a lower id; 0 for
 * NaN, which so loses to everything. -0 and +0 are equal. */
static __device__ __forceinline__ uint64_t sv_best_key(float v, int32_t id)
{
    uint32_t u = __float_as_uint(v + 0.0f);
    if (v != v)
        return 0;
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)u << 32 | (uint32_t)~id;
}

/* The logit of a key that is not 0. */
static __device__ __forceinline__ float sv_best_logit(uint64_t key)
{
    const uint32_t u = (uint32_t)(key >> 32);
    return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

static __device__ __forceinline__ uint64_t sv_best_of(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* The id of row r's best key, to where the call wants it; a row of NaN alone is a fault. */
static __device__ __forceinline__ void sv_best_give(uint64_t key, int32_t r,
                                                    const int32_t *out_index, int32_t *out,
                                                    struct sv_cuda_fault *fault)
{
    const int32_t at = out_index ? out_index[r] : r;
    if (at < 0)
        return;
    if (key == 0)
        sv_fault_set(fault, SV_CUDA_FAULT_HEAD_NAN, r, 0, 0);
    out[at] = key ? (int32_t) ~(uint32_t)key : 0;
}

/* Bias of one output column; bias vectors are row-major in any dtype. */
static __device__ __forceinline__ float sv_gemm_bias(const struct sv_gemm_item &it, int32_t row)
{
    return it.bias && row < it.n_out ? sv_weight_at(it.bias, it.bias_dtype, row) : 0.0f;
}

/* The part that block b of the split belongs to. */
static __device__ __forceinline__ int sv_gemm_part_of(const struct sv_gemm_args &a, int32_t block)
{
    int p = 0;
    while (p + 1 < a.n_parts && a.part[p + 1].block0 <= block)
        p++;
    return p;
}

#endif
#endif
