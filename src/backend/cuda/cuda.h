/*
 * cuda.h - what the files of the CUDA backend share: the device struct, checked calls and launches,
 * programmatic dependent launch, latched faults; and values.cuh.
 *
 * Included only inside src/backend/cuda and src/backend/gpu. The host half is C compiled as C++.
 * Act values are bf16 when compute is SV_BF16 and f32 when it is SV_F32; sums are always f32 or
 * wider. Must not: let a row's bits depend on other rows, on their number or on a launch shape
 * taken from their number; synchronise, allocate or read device memory on the host inside an op.
 *
 * Rules for launches. Every op kernel is launched by sv_cuda_launch. Its first statements may read
 * only memory that no earlier kernel of the stream writes (weights; more with cu->settled); then
 * every thread calls sv_pdl_wait() before it reads or writes anything else. Threads without work
 * may exit without it, as long as one block always waits: a kernel of which all blocks skip the
 * wait would end early and let its successor run before its predecessor is done. sv_pdl_launch()
 * may come at any point: it lets the successor's blocks start and run up to their own wait.
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

/* An error found by a kernel; kept in device memory until sync or wait reports it. */
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
    SV_CUDA_FAULT_LOGPROB,      /* a: slot, b: token, c: NaNs */
    SV_CUDA_FAULT_PEER          /* a: rank that is waited for, b: enum sv_join, c: row */
};
struct sv_cuda_fault {
    int32_t code, a, b, c;
};

struct sv_cuda_graphs;  /* graph.cu */
struct sv_cuda_staging; /* upload.cu */
struct sv_cuda_watch;   /* watch.h */
struct sv_cuda_peers;   /* peers.h */
struct sv_cuda_gemm_state;
struct sv_cuda_attn_state;

struct sv_cuda {
    SV_DEV_HEAD;          /* first: a struct sv_cuda is a struct sv_dev */
    struct sv_pool *pool; /* copies weights into pinned memory */
    int ordinal;
    cudaStream_t stream; /* of all ops, in order */
    int cc;              /* compute capability, 90 for Hopper */
    int n_sms;
    size_t smem_block; /* most shared memory a block may ask for */
    size_t l2_bytes;
    enum sv_cuda_set set;
    bool pdl; /* programmatic dependent launch; only for architectures whose code has the waits */
    /* Since an op that lets its successor start only after its own wait (embed, at the start of a
     * pass), only ops that write activations and the pass's own keys and values were launched. So
     * the next launch may read segments, tables and the keys of earlier positions before its
     * sv_pdl_wait(). */
    bool settled;
    uint64_t pass; /* changes with every launch that may reset `settled` */
    bool capturing;
    enum sv_dtype compute, act;
    struct sv_dev_limits lim;

    struct sv_cuda_fault *fault;      /* device: the first one since the last report */
    struct sv_cuda_fault *fault_host; /* pinned: (SV_MARKS + 1), moved there by mark and sync */
    struct sv_err latched;            /* first failed CUDA call since the last sync or wait */
    cudaEvent_t mark[SV_MARKS];
    bool marked[SV_MARKS];
    cudaEvent_t stamp[SV_STAMPS]; /* made when first used: traces only */

    struct sv_cuda_graphs *graphs;
    struct sv_cuda_staging *staging;
    struct sv_cuda_weight *weights; /* wcomp.cu: those that may have a compressed copy */
    enum sv_toggle wcomp_mode, two_shots;
    bool bytes, fp8;      /* a draft's weights are kept in 8 bits (fp8.cuh); activations in fp8 */
    int32_t bytes_k;      /* the most columns of such a weight */
    const void *bytes_of; /* rows that the last launch, a norm, also wrote in 8 bits, or NULL */
    int32_t bytes_n, bytes_d;        /* its rows and columns */
    bool bytes_in_groups;            /* with a scale for each group */
    int32_t n_fp8, n_exact;          /* matrices loaded: for activations in fp8, and others */
    struct sv_cuda_gemm_state *gemm; /* gemm.cu: made by its reserve */
    struct sv_cuda_attn_state *attn; /* attention.cu: likewise */
    void *sample;                    /* sample.cu: scratch for sample_rows rows */
    int32_t sample_rows;
    uint32_t *arrived;           /* moe_route.cu: of a router's thread blocks */
    char text[160];              /* describe() */
    struct sv_cuda_watch *watch; /* NULL: waits have no limit */
    struct sv_cuda_peers *peers; /* other ranks; NULL: none */
    struct sv_ledger held;       /* watch.cu's: device memory */
    size_t codes_packed; /* bytes of the largest matrix of codes (codes.cuh), as packed bf16 */
};

static inline struct sv_cuda *sv_cuda_of(struct sv_dev *dev)
{
    return (struct sv_cuda *)(void *)dev;
}

/* bf16 matrices lie in tiles (pack.cuh; a draft's quantized ones in those of fp8.cuh, codes of
 * files in those of codes.cuh), everything else is row-major. */
static inline bool sv_cuda_is_packed(const struct sv_weight *w)
{
    return (w->fmt.elem == SV_BF16 || w->fmt.elem >= SV_I8) && w->rows > 1;
}

/* A draft's, quantized here. */
static inline bool sv_cuda_is_bytes(const struct sv_weight *w)
{
    return w->fmt.elem == SV_F8 && w->role & SV_ROLE_DRAFT;
}

/* A file's for activations in fp8: tiles of fp8.cuh with scales of groups, which are their width.
 */
static inline bool sv_cuda_is_w8a8(const struct sv_weight *w)
{
    return w->fmt.elem == SV_F8 && !sv_cuda_is_bytes(w) && w->fmt.block_cols == 128;
}

static inline bool sv_cuda_is_codes(const struct sv_weight *w)
{
    return w->fmt.elem >= SV_I8 && !sv_cuda_is_bytes(w) && !sv_cuda_is_w8a8(w);
}

/* device.cu: keeps the first failed call until the next sync; returns whether rc was success.
 * `what` is a string constant that is kept: the name of a library function or of a launch. */
bool sv_cuda_check(struct sv_cuda *cu, cudaError_t rc, const char *what);
/* For set-up, where a failed call is the caller's error: SV_OK, SV_ENOMEM or SV_EDEVICE with a
 * message. Counts as one fallible call. */
int sv_cuda_try(cudaError_t rc, struct sv_err *err, const char *what);
/* Cleared device memory, counted as scratch. */
int sv_cuda_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_cuda_free(struct sv_dev *dev, void *p);

/* ---------------------------------------------------------------- launches */

/* kernel<<<grid, block, smem, cu->stream>>>(args...), with the programmatic attribute if safe. */
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

/* The same for an op of a pass that writes only activations and the pass's own keys and values. */
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
#include "backend/cuda/values.cuh"

/* Waits until every kernel enqueued before this one is done and its writes are visible. */
static __device__ __forceinline__ void sv_pdl_wait(void)
{
    sv_jitter();
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    sv_jitter_block();
    sv_jitter();
}

/* From here on blocks of the next kernel may start on free resources. */
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
void sv_cuda_replace_drafts(struct sv_dev *dev, const struct sv_p_replace_drafts *p);
void sv_cuda_verify(struct sv_dev *dev, const struct sv_p_verify *p);
void sv_cuda_commit(struct sv_dev *dev, const struct sv_p_commit *p);
void sv_cuda_snapshot(struct sv_dev *dev, const struct sv_p_snapshot *p);
void sv_cuda_draft_context_kv(struct sv_dev *dev, const struct sv_p_draft_context_kv *p);

/* graph.cu: graphs are dropped when scratch moves */
int sv_cuda_graphs_open(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_graphs_clear(struct sv_cuda *cu);
void sv_cuda_graphs_close(struct sv_cuda *cu);
void sv_cuda_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user);

/* upload.cu: pinned memory, copies, weights */
int sv_cuda_staging_open(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_staging_close(struct sv_cuda *cu);
void sv_cuda_staging_drop(struct sv_cuda *cu); /* the buffers of weights; no copy may be pending */
int sv_cuda_host_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err);
void sv_cuda_host_free(struct sv_dev *dev, void *p);
void sv_cuda_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
void sv_cuda_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
void sv_cuda_copy(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes);
bool sv_cuda_takes_codes(const struct sv_dev *dev, const struct sv_quant *q, enum sv_role role);
int sv_cuda_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                          struct sv_err *err);
void sv_cuda_free_weight(struct sv_dev *dev, struct sv_weight *w);
int64_t sv_cuda_weight_bytes(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows);
int sv_cuda_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                          float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err);

/* wcomp.cu: compressed copies of packed weights. A weight that may have one gets its priv when it
 * is loaded and loses it when it is freed; reserve makes the copies. */
struct sv_cuda_weight {
    struct sv_cuda_weight *next, **link; /* cu->weights */
    const void *data;                    /* packed */
    int32_t rows, cols;
    uint8_t *wcomp; /* NULL: not yet, or it cannot be done */
    bool tried;
};
int sv_cuda_wcomp_note(struct sv_cuda *cu, struct sv_weight *w, struct sv_err *err);
void sv_cuda_wcomp_forget(struct sv_cuda *cu, struct sv_weight *w);
int sv_cuda_wcomp_reserve(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_wcomp_close(struct sv_cuda *cu);
static inline const uint8_t *sv_cuda_wcomp_of(const struct sv_weight *w)
{
    return w->priv ? ((const struct sv_cuda_weight *)w->priv)->wcomp : NULL;
}

#endif
