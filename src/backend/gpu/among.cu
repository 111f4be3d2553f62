/*
 * among.cu - the best of a few tokens by a head's products: rows of the head are looked up, the
 * rest of it is not read.
 *
 * Called through the table in device.cu (head_among): a warp per token for the products, a warp
 * per row for the best of them. Must not: be used where a row's bits matter; its sums are not those
 * of the matrix products.
 */
#include "backend/cuda/cuda.h"
#include "backend/gpu/pack.cuh"

#include <math.h>

enum { WARP = 32, THREADS = 256 };
#define ALL 0xffffffffu

struct among_args {
    struct sv_p_head_among p;
    int packed;
};

/* Which row the i-th token of all lists is of. */
static __device__ int32_t row_of(const struct sv_p_head_among &p, int32_t i)
{
    int32_t lo = 0, hi = p.n_rows - 1;
    while (lo < hi) {
        const int32_t mid = (lo + hi + 1) / 2;
        if (p.first[mid] <= i)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) dots_kernel(struct among_args a, const T *x)
{
    sv_pdl_wait();
    sv_pdl_launch();
    const struct sv_p_head_among &p = a.p;
    const int32_t i = (int32_t)(blockIdx.x * THREADS + threadIdx.x) / WARP;
    const int32_t lane = threadIdx.x % WARP;
    if (i >= p.n_ids)
        return;
    const int64_t id = p.ids[i];
    x += (int64_t)p.row[row_of(p, i)] * p.k;
    float sum = 0;
    for (int32_t c = lane; c < p.k; c += WARP) {
        const int64_t at = a.packed ? (int64_t)sv_packed_at(id, c, p.k) : id * p.k + c;
        sum += sv_weight_at(p.w.data, p.w.fmt.elem, at) * sv_load(x + c);
    }
    for (int32_t d = WARP / 2; d; d /= 2)
        sum += __shfl_xor_sync(ALL, sum, d);
    if (lane == 0)
        p.logits[i] = sum;
}

/* The better of two places, -1 being none; NaN is worse than anything. */
static __device__ int32_t better(const float *logits, int32_t a, int32_t b)
{
    if (a < 0 || b < 0)
        return a < 0 ? b : a;
    const float x = logits[a], y = logits[b];
    if (isnan(x) != isnan(y))
        return isnan(x) ? b : a;
    return x > y || (!(y > x) && a < b) ? a : b;
}

static __global__ void __launch_bounds__(WARP) best_kernel(struct sv_p_head_among p)
{
    sv_pdl_wait();
    sv_pdl_launch();
    const int32_t r = blockIdx.x, begin = p.first[r], end = p.first[r + 1], lane = threadIdx.x;
    int32_t best = -1;
    float sum = 0;
    for (int32_t i = begin + lane; i < end; i += WARP)
        best = better(p.logits, best, i);
    for (int32_t d = WARP / 2; d; d /= 2)
        best = better(p.logits, best, __shfl_xor_sync(ALL, best, d));
    for (int32_t i = begin + lane; i < end; i += WARP)
        sum += isnan(p.logits[i]) ? 0 : expf(p.logits[i] - p.logits[best]);
    for (int32_t d = WARP / 2; d; d /= 2)
        sum += __shfl_xor_sync(ALL, sum, d);
    if (lane == 0) {
        p.out[r] = p.ids[best];
        p.confidence[r] = sum > 0 ? 1 / sum : 1;
    }
}

void sv_cuda_head_among(struct sv_dev *dev, const struct sv_p_head_among *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct among_args a = {*p, sv_cuda_is_packed(&p->w)};
    const int32_t blocks = (p->n_ids * WARP + THREADS - 1) / THREADS;
    if (cu->act == SV_BF16)
        sv_cuda_launch(cu, "head_among", dots_kernel<__nv_bfloat16>, blocks, THREADS, 0, a,
                       (const __nv_bfloat16 *)p->x);
    else
        sv_cuda_launch(cu, "head_among", dots_kernel<float>, blocks, THREADS, 0, a,
                       (const float *)p->x);
    sv_cuda_launch(cu, "head_among best", best_kernel, p->n_rows, WARP, 0, *p);
}
