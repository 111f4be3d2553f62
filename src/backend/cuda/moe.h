/*
 * moe.h - a mixture of experts on the CUDA backend: what its files and the table in device.cu
 * share.
 *
 * moe_route.cu chooses experts and lists their rows; moe.cu and moe_sm90.cu have their matrix
 * products, which moe.cuh writes down once; upload.cu puts their weights one behind the other.
 * Included by those files and by device.cu. Must not: know of a model.
 */
#ifndef SV_CUDA_MOE_H
#define SV_CUDA_MOE_H

#include "backend/cuda/peers.h"
extern "C" {
#include "backend/ops_moe.h"
}

/* open: after every reserve */
int sv_cuda_route_open(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_route_close(struct sv_cuda *cu);
int sv_cuda_moe_open(struct sv_cuda *cu, struct sv_err *err);

/* route_sm90.cu: p's norm and router in one launch; false: nothing done. */
struct route;
bool sv_cuda_norm_route_sm90(struct sv_cuda *cu, const struct sv_p_router_topk *p,
                             const struct route *a);

/* ops, entered through the table */
void sv_cuda_router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p);
void sv_cuda_moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p);
void sv_cuda_moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p);
void sv_cuda_moe_combine(struct sv_dev *dev, const struct sv_p_moe_combine *p);

/* ---------------------------------------------------------------- products */

/* One projection of all experts. */
struct sv_moe_matrices {
    const uint8_t *w;      /* the first expert's */
    const uint8_t *shared; /* the shared one's, which is expert n */
    int32_t n;
    const void *bias; /* (n_experts * rows), or NULL */
    int64_t stride;   /* bytes from one expert to the next */
    int32_t bias_dtype;
    int32_t code, shared_code; /* enum sv_codes_code of SV_MOE_CODES* */
};

#ifdef __CUDACC__
static __device__ __forceinline__ const uint8_t *sv_moe_matrix(const struct sv_moe_matrices &m,
                                                               int32_t expert)
{
    return expert < m.n ? m.w + expert * m.stride : m.shared;
}
#endif

/* How weights lie: pack.cuh, mxfp4.cuh, codes.cuh. */
enum sv_moe_form { SV_MOE_BF16, SV_MOE_MXFP4, SV_MOE_CODES8, SV_MOE_CODES4, SV_MOE_FORMS };

/* Handed to kernels by value. gate.w is down's where there is no up. */
struct sv_moe {
    const void *x;
    struct sv_moe_matrices gate, up;
    int32_t rows, k, w_dtype; /* of a matrix */
    bool by_place;            /* x is: else by row */
    bool packed;
    enum sv_moe_form form;
    enum sv_expert_act act;
    float limit, alpha;
    struct sv_routes r;
    void *out; /* (n_rows * k, rows) */
    /* NULL, or (n_rows, rows) act: what moe_combine gives, in place of out where a kernel can */
    void *joined;
    enum sv_join next; /* the join of what joined gets, sent by a kernel that makes it, or none */
    struct sv_join_site push;
};

/* A kernel for n entries at a time; groups: of 64 weight rows (of gate and up: 32 each) in a thread
 * block; tile_bytes: of shared memory, more for each tile of k. fn[1]: gate and up. */
struct sv_moe_width {
    int n, bytes, tile_bytes, threads, groups;
    void (*fn[2])(const struct sv_moe);
};
enum { SV_MOE_WIDTHS = 5 };
/* As the kernel that makes joined gets it. */
static inline struct sv_moe sv_moe_pushed(struct sv_cuda *cu, struct sv_moe a)
{
    if (!cu->peers || !sv_cuda_join_push(cu, a.next, a.r.n_rows, a.rows, &a.push))
        a.next = SV_JOIN_NONE;
    return a;
}
/* moe_joined.cuh: down of one row and the adding up; false: nothing done. */
bool sv_moe_sm90_joined(struct sv_cuda *cu, const struct sv_moe *a, const struct sv_moe_width *w,
                        size_t smem);
int sv_moe_sm90_joined_open(size_t smem, struct sv_err *err);
/* moe_few_sm90.cu: few rows in bf16, and of down the adding up; false: nothing done. */
bool sv_moe_few(struct sv_cuda *cu, const struct sv_moe *a, bool gated);
int sv_moe_few_open(struct sv_err *err);
/* (SV_MOE_WIDTHS), by n; moe_sm90.cu */
const struct sv_moe_width *sv_moe_sm90(enum sv_moe_form form);

/* An expert's in MXFP4, which lies as mxfp4.cuh says; all other codes lie as codes.cuh does. */
static inline bool sv_cuda_is_mxfp4(const struct sv_weight *w)
{
    return w->fmt.elem == SV_U8 && w->fmt.block_cols == 32 && w->fmt.scale == SV_U8;
}

/* mxfp4.cu: rows from row0 on, a multiple of 64, of a matrix of MXFP4 into its tiles; codes
 * (n_rows, cols / 2), scales (n_rows, cols / 32), or NULL: of a seed. Enqueues. */
void sv_cuda_mxfp4_tiles(struct sv_cuda *cu, const void *codes, const void *scales, uint64_t seed,
                         int32_t row0, int32_t n_rows, int32_t cols, void *dst);

/* upload.cu: n weights of one shape and format, one behind the other: struct sv_moe_ops */
int sv_cuda_upload_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                           struct sv_weight *w, struct sv_err *err);
int sv_cuda_random_experts(struct sv_dev *dev, const struct sv_weight *shape, int32_t n,
                           float scale, uint64_t seed, struct sv_weight *w, struct sv_err *err);
void sv_cuda_free_experts(struct sv_dev *dev, struct sv_weight *w, int32_t n);

#endif
