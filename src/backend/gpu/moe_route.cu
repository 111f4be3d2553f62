/*
 * moe_route.cu - a mixture of experts before and after its products: which rows go to which
 * experts, and a row's results added up.
 *
 * Not in the table of ops yet: see moe.cu; on an H200 these kernels passed their checks. Logits
 * come from the ordinary matrix product. A warp chooses for a row; then a warp for each expert
 * counts its entries and lists them. Few rows take all of that in one thread block, many in three
 * launches: what they write is the same. Must not: choose by anything but a row's own logits; use
 * atomics.
 */
#include "backend/cuda/gemm.h"

enum {
    WARPS = 8,        /* of a thread block, for many rows */
    FEW_WARPS = 32,   /* of the only one, for few rows */
    FEW_ENTRIES = 512 /* that it takes at most */
};

/* Handed to kernels by value. counts lies where the logits were, which are not needed any more. */
struct route {
    struct sv_routes r;
    const int32_t *row_seg;
    enum sv_router_norm norm;
    uint32_t *n_chosen;
};

/* ---------------------------------------------------------------- choosing */

/* Grows with the logit and, at a tie, with a lower id; NaN loses to every number. Never 0. */
static __device__ __forceinline__ uint64_t choice_key(float logit, int32_t id)
{
    const uint32_t u = __float_as_uint(logit + 0.0f);
    const uint32_t order = logit != logit ? 0 : u & 0x80000000u ? ~u : u | 0x80000000u;
    return (uint64_t)order << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ uint64_t warp_most(uint64_t key)
{
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, key, step);
        key = other > key ? other : key;
    }
    return key;
}

/* The warp's row: lane j keeps choice j and the softmax's numerator. */
static __device__ void choose(const struct route &a, int32_t row)
{
    const int lane = threadIdx.x & 31;
    const int32_t n = a.r.n_experts, k = a.r.k;
    const float *logit = a.r.logits + (int64_t)row * n;
    if (a.row_seg[row] < 0) {
        if (lane < k)
            a.r.expert[row * k + lane] = a.r.place[row * k + lane] = -1;
        return;
    }
    uint32_t taken = 0; /* of this lane's logits lane, lane + 32, ... */
    int32_t id = 0;
    float top = 0.0f, e = 0.0f;
    for (int32_t j = 0; j < k; j++) {
        uint64_t key = 0;
        for (int32_t i = lane, bit = 0; i < n; i += 32, bit++)
            if (!(taken >> bit & 1)) {
                const uint64_t other = choice_key(logit[i], i);
                key = other > key ? other : key;
            }
        const int32_t best = (int32_t) ~(uint32_t)warp_most(key);
        if (best % 32 == lane)
            taken |= 1u << best / 32;
        top = j == 0 ? logit[best] : top;
        if (lane == j) {
            id = best;
            e = expf(logit[best] - top);
        }
    }
    float sum = 0.0f;
    if (a.norm == SV_ROUTER_OVER_CHOSEN) {
        for (int32_t j = 0; j < k; j++)
            sum += __shfl_sync(0xffffffffu, e, j);
    } else {
        for (int32_t i = lane; i < n; i += 32)
            sum += expf(logit[i] - top);
        sum = sv_warp_sum(sum);
    }
    if (lane < k) {
        a.r.expert[row * k + lane] = id;
        a.r.weight[row * k + lane] = e / sum;
    }
}

/* ---------------------------------------------------------------- lists */

static __device__ __forceinline__ int32_t warp_sum_int(int32_t x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* How many entries the warp's expert has. */
static __device__ int32_t count(const struct route &a, int32_t expert)
{
    const int lane = threadIdx.x & 31;
    const int32_t n = a.r.n_rows * a.r.k;
    int32_t sum = 0;
    for (int32_t i = lane; i < n; i += 32)
        sum += a.r.expert[i] == expert;
    return warp_sum_int(sum);
}

/* The expert's entries in ascending order, behind those of the experts before it. */
static __device__ void list(const struct route &a, const int32_t *counts, int32_t expert)
{
    const int lane = threadIdx.x & 31;
    const int32_t n = a.r.n_rows * a.r.k;
    int32_t before = 0, active = 0;
    for (int32_t i = lane; i < expert; i += 32) {
        before += counts[i];
        active += counts[i] > 0;
    }
    before = warp_sum_int(before);
    active = warp_sum_int(active);
    const int32_t mine = counts[expert];
    if (lane == 0) {
        a.r.first[expert] = before;
        if (mine)
            a.r.active[active] = expert;
        if (expert == a.r.n_experts - 1) {
            a.r.first[expert + 1] = before + mine;
            *a.r.n_active = active + (mine > 0);
            if (a.n_chosen)
                *a.n_chosen += (uint32_t)(active + (mine > 0));
        }
    }
    if (!mine)
        return;
    for (int32_t i0 = 0; i0 < n; i0 += 32) {
        const bool here = i0 + lane < n && a.r.expert[i0 + lane] == expert;
        const uint32_t all = __ballot_sync(0xffffffffu, here);
        if (here) {
            const int32_t place = before + __popc(all & ((1u << lane) - 1));
            a.r.list[place] = i0 + lane;
            a.r.place[i0 + lane] = place;
        }
        before += __popc(all);
    }
}

static __global__ void choose_kernel(const struct route a)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t row = (int32_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row < a.r.n_rows)
        choose(a, row);
}

static __global__ void count_kernel(const struct route a)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t expert = (int32_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (expert >= a.r.n_experts)
        return;
    const int32_t n = count(a, expert);
    if ((threadIdx.x & 31) == 0)
        ((int32_t *)a.r.logits)[expert] = n;
}

static __global__ void list_kernel(const struct route a)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t expert = (int32_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (expert < a.r.n_experts)
        list(a, (const int32_t *)a.r.logits, expert);
}

static __global__ void few_kernel(const struct route a)
{
    __shared__ int32_t counts[SV_MAX_EXPERTS];
    const int warp = threadIdx.x / 32;
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t row = warp; row < a.r.n_rows; row += FEW_WARPS)
        choose(a, row);
    __syncthreads();
    for (int32_t e = warp; e < a.r.n_experts; e += FEW_WARPS) {
        const int32_t n = count(a, e);
        if ((threadIdx.x & 31) == 0)
            counts[e] = n;
    }
    __syncthreads();
    for (int32_t e = warp; e < a.r.n_experts; e += FEW_WARPS)
        list(a, counts, e);
}

void sv_cuda_router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct sv_gemm_part part = {};
    struct sv_p_gemm logits = {};
    part.w = p->w;
    part.bias = p->bias;
    logits.n_rows = p->routes.n_rows;
    logits.k = p->w.cols;
    logits.n_parts = 1;
    logits.x = p->x;
    logits.ldx = p->w.cols;
    logits.parts = &part;
    logits.y = p->routes.logits;
    logits.ldy = p->routes.n_experts;
    logits.y_f32 = true;
    sv_cuda_gemm(dev, &logits);

    const struct route a = {p->routes, p->rows.row_seg, p->norm, p->n_chosen};
    const dim3 rows((unsigned)(a.r.n_rows + WARPS - 1) / WARPS);
    const dim3 experts((unsigned)(a.r.n_experts + WARPS - 1) / WARPS), block(WARPS * 32);
    const char *what = "a router";
    if (a.r.n_rows * a.r.k <= FEW_ENTRIES) {
        sv_cuda_launch_in_pass(cu, what, few_kernel, dim3(1), dim3(FEW_WARPS * 32), 0, a);
        return;
    }
    sv_cuda_launch_in_pass(cu, what, choose_kernel, rows, block, 0, a);
    sv_cuda_launch_in_pass(cu, what, count_kernel, experts, block, 0, a);
    sv_cuda_launch_in_pass(cu, what, list_kernel, experts, block, 0, a);
}

/* ---------------------------------------------------------------- adding up */

template <typename T>
static __global__ void combine_kernel(const struct sv_routes r, const float *x, int32_t hidden,
                                      T *out)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t row = blockIdx.y, col = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (col >= hidden)
        return;
    float sum = 0.0f;
    for (int32_t j = 0; j < r.k; j++) {
        const int32_t place = r.place[row * r.k + j];
        if (place >= 0)
            sum = __fmaf_rn(r.weight[row * r.k + j], x[(int64_t)place * hidden + col], sum);
    }
    sv_store(out + (int64_t)row * hidden + col, sum);
}

void sv_cuda_moe_combine(struct sv_dev *dev, const struct sv_p_moe_combine *p)
{
    enum { THREADS = 256 };
    struct sv_cuda *cu = sv_cuda_of(dev);
    const dim3 grid((unsigned)(p->hidden + THREADS - 1) / THREADS, (unsigned)p->routes.n_rows);
    const char *what = "adding up of experts";
    if (cu->act == SV_F32)
        sv_cuda_launch_in_pass(cu, what, combine_kernel<float>, grid, dim3(THREADS), 0, p->routes,
                               p->x, p->hidden, (float *)p->out);
    else
        sv_cuda_launch_in_pass(cu, what, combine_kernel<__nv_bfloat16>, grid, dim3(THREADS), 0,
                               p->routes, p->x, p->hidden, (__nv_bfloat16 *)p->out);
}
