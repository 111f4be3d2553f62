/*
 * cuda.h - what the files of the CUDA backend share: the device struct, checked calls and launches,
 * programmatic dependent launch, latched faults, loads and stores of act values, fixed-order
 * reductions.
 *
 * Included only inside src/backend/cuda, by .cu files. The host half is C in C++ clothes. Act
 * values are bf16 when compute is SV_BF16 and f32 when it is SV_F32; sums are always f32 or wider.
 * Must not: let a row's bits depend on other rows, on their number or on a launch shape taken from
 * their number; synchronise, allocate or read device memory on the host inside an op.
 *
 * Launch discipline. Every op kernel goes through sv_cuda_launch. Its first statements may touch
 * only what no earlier kernel of the stream writes (weights; with cu->settled what that allows);
 * then every thread calls sv_pdl_wait() before it reads or writes anything else. Who has nothing to
 * do may leave without, as long as one block always waits: a kernel all of whose blocks skipped the
 * wait would end early and let its successor run before its predecessor is done. sv_pdl_launch()
 * may come as early as one likes: it lets the successor's blocks start up to their own wait.
 */
#ifndef SV_CUDA_H
#define SV_CUDA_H

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <jansson.h>

extern "C" {
#include "backend/backends.h"
}

/* ---------------------------------------------------------------- the device */

/* Ids and masses of a row of logits share 64 bits with keys and weights (sample.cu). */
enum { SV_CUDA_MAX_VOCAB = 1 << 19 };

enum sv_cuda_set { SV_CUDA_PORTABLE, SV_CUDA_SM90 };

/* What a kernel found wrong; kept in device memory until sync or wait reports it. */
enum sv_cuda_fault_code {
    SV_CUDA_FAULT_NONE,
    SV_CUDA_FAULT_ROPE,         /* a: position, b: rows of the table */
    SV_CUDA_FAULT_WRITE_PAGE,   /* a: slot, b: position */
    SV_CUDA_FAULT_READ_PAGE,    /* a: slot, b: position */
    SV_CUDA_FAULT_DRAFT_PAGE,   /* a: slot, b: position */
    SV_CUDA_FAULT_HEAD_NAN,     /* a: row */
    SV_CUDA_FAULT_SAMPLE_NAN,   /* a: NaNs, b: of how many, c: slot */
    SV_CUDA_FAULT_SAMPLE_INF,   /* a: slot, b: 1 for +inf, 0 for -inf */
    SV_CUDA_FAULT_VERIFY_WIDTH, /* a: rows, b: out_stride */
    SV_CUDA_FAULT_HISTORY,      /* a: slot, b: position, c: room */
    SV_CUDA_FAULT_LOGPROB       /* a: slot, b: token, c: NaNs */
};
struct sv_cuda_fault {
    int32_t code, a, b, c;
};

struct sv_cuda_graphs;  /* graph.cu */
struct sv_cuda_staging; /* upload.cu */
struct sv_cuda_dense;   /* dense.cu */
struct sv_cuda_watch;   /* watch.h */
struct sv_cuda_gemm_state;
struct sv_cuda_attn_state;

struct sv_cuda {
    SV_DEV_HEAD;          /* first: a struct sv_cuda is a struct sv_dev */
    struct sv_pool *pool; /* copies weights into pinned memory */
    int ordinal;
    cudaStream_t stream; /* everything an op does happens here, in order */
    int cc;              /* compute capability, 90 for Hopper */
    int n_sms;
    size_t smem_block; /* most shared memory a block may ask for */
    size_t l2_bytes;
    enum sv_cuda_set set;
    bool pdl; /* launches carry the programmatic attribute; only where the code has the waits */
    /* Since an op that lets its successor in only after its own wait (embed, at the start of a
     * pass), nothing was launched but ops that write activations and the pass's own keys and
     * values. So whatever is launched next may read segments, tables and the keys of earlier
     * positions before its sv_pdl_wait(). */
    bool settled;
    uint64_t pass; /* another number after every launch that may end a settled stretch */
    bool capturing;
    enum sv_dtype compute, act;
    struct sv_dev_limits lim;

    struct sv_cuda_fault *fault;      /* device: the first one since it was last taken */
    struct sv_cuda_fault *fault_host; /* pinned: (SV_MARKS + 1), moved there by mark and sync */
    struct sv_err latched;            /* first failed CUDA call since the last sync or wait */
    cudaEvent_t mark[SV_MARKS];
    bool marked[SV_MARKS];
    cudaEvent_t stamp[SV_STAMPS]; /* made when first used: traces only */

    struct sv_cuda_graphs *graphs;
    struct sv_cuda_staging *staging;
    struct sv_cuda_dense *dense; /* NULL while no weight may have a dense copy */
    enum sv_dense dense_mode;
    bool bytes;      /* approximate weights are kept in 8 bits (fp8.cuh) */
    int32_t bytes_k; /* the most columns of one that was loaded */
    /* What the last launch, a norm's, has written in 8 bits as well, as rows of so many columns;
     * else NULL. */
    const void *bytes_of;
    int32_t bytes_n, bytes_d;
    struct sv_cuda_gemm_state *gemm; /* gemm.cu: made by its reserve */
    struct sv_cuda_attn_state *attn; /* attention.cu: likewise */
    void *sample;                    /* sample.cu: scratch for sample_rows rows */
    int32_t sample_rows;
    char text[160];              /* describe() */
    struct sv_cuda_watch *watch; /* NULL: waits have no limit */
    struct sv_ledger held;       /* watch.cu's: device memory */
};

static inline struct sv_cuda *sv_cuda_of(struct sv_dev *dev)
{
    return (struct sv_cuda *)(void *)dev;
}

/* bf16 matrices lie in tiles (pack.cuh; approximate ones in those of fp8.cuh), everything else is
 * row-major. */
static inline bool sv_cuda_is_packed(const struct sv_weight *w)
{
    return w->dtype == SV_BF16 && w->rows > 1;
}

/* device.cu: keeps the first failed call until the next sync; returns whether rc was success.
 * `what` is a constant: the name of a function of the library, or that of a launch, which is
 * remembered. */
bool sv_cuda_check(struct sv_cuda *cu, cudaError_t rc, const char *what);
/* For set-up, where a failed call is the caller's error: SV_OK, SV_ENOMEM or SV_EDEVICE with a
 * message. Counts as one fallible call. */
int sv_cuda_try(cudaError_t rc, struct sv_err *err, const char *what);
/* Cleared device memory, counted as scratch. */
int sv_cuda_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_cuda_free(struct sv_dev *dev, void *p);

/* ---------------------------------------------------------------- launches */

/* kernel<<<grid, block, smem, cu->stream>>>(args...), with the programmatic attribute where it is
 * safe. */
template <typename... P, typename... A>
static inline void sv_cuda_launch(struct sv_cuda *cu, const char *what, void (*kernel)(P...),
                                  dim3 grid, dim3 block, size_t smem, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[1] = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = cu->stream;
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attr;
    config.numAttrs = cu->pdl ? 1 : 0;
    cu->settled = false;
    cu->pass++;
    cu->bytes_of = NULL;
    sv_cuda_check(cu, cudaLaunchKernelEx(&config, kernel, P(args)...), what);
}

/* The same for an op of a pass that writes nothing but activations and the pass's own keys and
 * values. */
template <typename... P, typename... A>
static inline void sv_cuda_launch_in_pass(struct sv_cuda *cu, const char *what,
                                          void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                                          A... args)
{
    const bool settled = cu->settled;
    const uint64_t pass = cu->pass;
    sv_cuda_launch(cu, what, kernel, grid, block, smem, args...);
    cu->settled = settled;
    cu->pass = pass;
}

#ifdef __CUDACC__

#include "backend/cuda/jitter.cuh"

/* Waits until every kernel enqueued before this one is done and its writes can be seen. */
static __device__ __forceinline__ void sv_pdl_wait(void)
{
    sv_jitter();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    sv_jitter_block();
    sv_jitter();
}

/* From here on blocks of the next kernel may take what this one leaves free. */
static __device__ __forceinline__ void sv_pdl_launch(void)
{
    sv_jitter();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* The first fault wins; the others are dropped. */
static __device__ __forceinline__ void sv_fault_set(struct sv_cuda_fault *f, int32_t code,
                                                    int32_t a, int32_t b, int32_t c)
{
    if (atomicCAS(&f->code, 0, code) == 0) {
        f->a = a;
        f->b = b;
        f->c = c;
    }
}

/* ---------------------------------------------------------------- act values */

static __device__ __forceinline__ float sv_load(const float *p)
{
    return *p;
}
static __device__ __forceinline__ float sv_load(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
static __device__ __forceinline__ float sv_load(const __half *p)
{
    return __half2float(*p);
}
static __device__ __forceinline__ void sv_store(float *p, float x)
{
    *p = x;
}
/* To nearest, ties to even, as sv_f32_to_bf16. */
static __device__ __forceinline__ void sv_store(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16_rn(x);
}
/* a + b as T holds it, rounded once; both must be values of T. */
static __device__ __forceinline__ float sv_add(float a, float b, const float *)
{
    return a + b;
}
static __device__ __forceinline__ float sv_add(float a, float b, const __nv_bfloat16 *)
{
    return __bfloat162float(__hadd(__float2bfloat16_rn(a), __float2bfloat16_rn(b)));
}

/* Eight neighbours at once; p must be 16-byte aligned. */
static __device__ __forceinline__ void sv_load8(float out[8], const float *p)
{
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
/* Eight neighbours as they lie in memory. */
template <typename T> struct sv_eight;
template <> struct sv_eight<__nv_bfloat16> {
    uint4 v;
};
template <> struct sv_eight<float> {
    float4 a, b;
};
static __device__ __forceinline__ void sv_spread8(float out[8], uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void sv_spread8(float out[8],
                                                  const struct sv_eight<__nv_bfloat16> &e)
{
    sv_spread8(out, e.v);
}
static __device__ __forceinline__ void sv_spread8(float out[8], const struct sv_eight<float> &e)
{
    out[0] = e.a.x, out[1] = e.a.y, out[2] = e.a.z, out[3] = e.a.w;
    out[4] = e.b.x, out[5] = e.b.y, out[6] = e.b.z, out[7] = e.b.w;
}
static __device__ __forceinline__ void sv_load8(float out[8], const __nv_bfloat16 *p)
{
    sv_spread8(out, *(const uint4 *)p);
}
/* a += b, as sv_add. */
static __device__ __forceinline__ void sv_add8(struct sv_eight<__nv_bfloat16> &a,
                                               const struct sv_eight<__nv_bfloat16> &b)
{
    __nv_bfloat162 *to = (__nv_bfloat162 *)&a.v;
    const __nv_bfloat162 *from = (const __nv_bfloat162 *)&b.v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = __hadd2(to[i], from[i]);
}
static __device__ __forceinline__ void sv_add8(struct sv_eight<float> &a,
                                               const struct sv_eight<float> &b)
{
    a.a.x += b.a.x, a.a.y += b.a.y, a.a.z += b.a.z, a.a.w += b.a.w;
    a.b.x += b.b.x, a.b.y += b.b.y, a.b.z += b.b.z, a.b.w += b.b.w;
}
/* 16 bytes that every pass reads again: they stay in L2, past which the weights of matrices
 * stream. */
static __device__ __forceinline__ uint4 sv_load_kept(const void *p)
{
#ifdef __CUDA_ARCH__
    uint4 v;
    uint64_t keep;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(keep));
    return v;
#else
    return *(const uint4 *)p;
#endif
}
static __device__ __forceinline__ void sv_store8(float *p, const float x[8])
{
    *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}
static __device__ __forceinline__ uint4 sv_pack8(const float x[8])
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 h = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        w[i] = *(const uint32_t *)&h;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}
static __device__ __forceinline__ void sv_store8(__nv_bfloat16 *p, const float x[8])
{
    *(uint4 *)p = sv_pack8(x);
}

/* Element i of a vector or row-major matrix of any weight dtype. */
static __device__ __forceinline__ float sv_weight_at(const void *w, int dtype, int64_t i)
{
    if (dtype == SV_F32)
        return ((const float *)w)[i];
    if (dtype == SV_BF16)
        return sv_load((const __nv_bfloat16 *)w + i);
    return sv_load((const __half *)w + i);
}

/* ---------------------------------------------------------------- reductions in a fixed order */

static __device__ __forceinline__ float sv_warp_sum(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
static __device__ __forceinline__ float sv_warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
/* Sum over the block (whole warps), the same in every thread; scratch holds 32 floats and is free
 * again after the caller's next __syncthreads. Warps are added in ascending order. */
static __device__ __forceinline__ float sv_block_sum(float x, float *scratch)
{
    const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    x = sv_warp_sum(x);
    if (threadIdx.x % 32 == 0)
        scratch[warp] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < n_warps; i++)
        sum += scratch[i];
    return sum;
}

/* ---------------------------------------------------------------- cache addressing */

/* Element offset of (slot, kv head 0, position) in kv.k and kv.v; -1 when the table names no page.
 * Head h lies h * page_size * head_dim further. */
static __device__ __forceinline__ int64_t sv_kv_at(const struct sv_kv &kv, int32_t slot,
                                                   int32_t pos)
{
    int32_t i = pos / kv.page_size;
    if (pos < 0 || i >= kv.table_stride)
        return -1;
    int32_t page = kv.table[(int64_t)slot * kv.table_stride + i];
    if (page < 0 || page >= kv.n_pages)
        return -1;
    int64_t in_page = pos - i * kv.page_size;
    return ((int64_t)page * kv.n_kv_heads * kv.page_size + in_page) * kv.head_dim;
}

#endif /* __CUDACC__ */

/* ---------------------------------------------------------------- files of the folder */

/* rows.cu, ids.cu, context_kv.cu, sample.cu, logits.cu, among.cu: ops, entered through the table in
 * device.cu */
void sv_cuda_block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p);
void sv_cuda_embed(struct sv_dev *dev, const struct sv_p_embed *p);
void sv_cuda_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p);
void sv_cuda_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p);
void sv_cuda_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p);
void sv_cuda_logit_pos(struct sv_dev *dev, const struct sv_p_logit_pos *p);
int sv_cuda_sample_reserve(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_sample_close(struct sv_cuda *cu);
void sv_cuda_sample(struct sv_dev *dev, const struct sv_p_sample *p);
void sv_cuda_head_among(struct sv_dev *dev, const struct sv_p_head_among *p);
void sv_cuda_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p);
void sv_cuda_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p);
void sv_cuda_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p);
void sv_cuda_history(struct sv_dev *dev, const struct sv_p_history *p);
void sv_cuda_verify(struct sv_dev *dev, const struct sv_p_verify *p);
void sv_cuda_commit(struct sv_dev *dev, const struct sv_p_commit *p);
void sv_cuda_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p);

/* graph.cu: graphs are dropped when scratch moves */
int sv_cuda_graphs_open(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_graphs_clear(struct sv_cuda *cu);
void sv_cuda_graphs_close(struct sv_cuda *cu);
void sv_cuda_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user);

/* upload.cu: pinned memory, copies, weights */
int sv_cuda_staging_open(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_staging_close(struct sv_cuda *cu);
void sv_cuda_staging_drop(
    struct sv_cuda *cu); /* the buffers of weights; nothing may be on the way */
int sv_cuda_host_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_cuda_host_free(struct sv_dev *dev, void *p);
void sv_cuda_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
void sv_cuda_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
int sv_cuda_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                          bool *owned, struct sv_err *err);
int sv_cuda_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                          float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err);

/* fp8_sm90.cu: bf16 rows, row-major in device memory, into 8 bits. Of a matrix of weights n_rows
 * from row0 on, a multiple of 64; or rows of x, sv_fp8_row_bytes(k) apart, and their scales.
 * Enqueues. */
void sv_cuda_fp8_pack(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows,
                      int32_t rows, int32_t cols, void *dst);
void sv_cuda_fp8_rows(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, int32_t n_rows,
                      void *to, float *scales);

/* dense.cu: copies of packed weights in fewer bits. A weight is noted when it is loaded and
 * forgotten when it is freed; reserve makes the copies; the look-up is for products. */
int sv_cuda_dense_note(struct sv_cuda *cu, const struct sv_weight *w, struct sv_err *err);
void sv_cuda_dense_forget(struct sv_cuda *cu, const void *data);
int sv_cuda_dense_reserve(struct sv_cuda *cu, struct sv_err *err);
const void *sv_cuda_dense_of(const struct sv_cuda *cu, const void *data);
int64_t sv_cuda_dense_bytes(struct sv_dev *dev, int32_t *n_dense, int32_t *n_plain);
int64_t sv_cuda_few_bytes(const struct sv_dev *dev, const struct sv_weight *w);
int32_t sv_cuda_few_rows(const struct sv_dev *dev); /* gemm.cu */
void sv_cuda_dense_close(struct sv_cuda *cu);

#endif
