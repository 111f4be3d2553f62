/*
 * gemm_plain.cu - matrix products in f32 arithmetic for weights and activations of any type: the
 * f32 compute mode, odd widths, single rows. Not optimised.
 *
 * Called by gemm.cu. A warp computes one element: lane l adds the products of columns l, l + 32,
 * ..., or of eight columns at once from 8 l, 8 l + 256, ... on, in ascending order, then the lanes
 * are added as a tree; the weight alone decides that order. Must not: look at n_rows.
 */
#include "backend/cuda/gemm.h"

enum { THREADS = 256, WARPS = THREADS / 32 };

struct plain {
    const void *x, *w, *bias;
    int64_t ldx, ldy;
    int32_t w_dtype, bias_dtype, n_rows, k, n_out;
    bool packed, wide; /* wide: eight columns at once can be loaded */
};

template <typename T, typename W>
static __device__ __forceinline__ float wide_sum(const W *w, const T *x, int32_t k)
{
    float sum = 0.0f;
#pragma unroll 4
    for (int32_t c = 8 * (threadIdx.x & 31); c < k; c += 256) {
        float a[8], b[8];
        sv_load8(a, w + c);
        sv_load8(b, x + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = fmaf(a[i], b[i], sum);
    }
    return sum;
}

/* Row `row` of W times row r of x, summed over the warp. */
template <typename T> static __device__ float dot(const struct plain &p, int32_t r, int32_t row)
{
    const T *x = (const T *)p.x + r * p.ldx;
    float sum = 0.0f;
    if (p.wide && p.w_dtype == SV_BF16)
        sum = wide_sum((const __nv_bfloat16 *)p.w + (int64_t)row * p.k, x, p.k);
    else if (p.wide)
        sum = wide_sum((const float *)p.w + (int64_t)row * p.k, x, p.k);
    else
        for (int32_t c = threadIdx.x & 31; c < p.k; c += 32) {
            const int64_t at =
                p.packed ? (int64_t)sv_packed_at(row, c, p.k) : (int64_t)row * p.k + c;
            sum = fmaf(sv_weight_at(p.w, p.w_dtype, at), sv_load(x + c), sum);
        }
    sum = sv_warp_sum(sum);
    return p.bias ? sum + sv_weight_at(p.bias, p.bias_dtype, row) : sum;
}

template <typename T, typename Y> static __global__ void gemm_kernel(const struct plain p, Y *y)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int32_t r = (int32_t)(unit / p.n_out), row = (int32_t)(unit % p.n_out);
    if (r >= p.n_rows)
        return;
    const float v = dot<T>(p, r, row);
    if ((threadIdx.x & 31) == 0)
        sv_store(y + r * p.ldy + row, v);
}

/* Line s of best: the best of rows s, s + n_lines, ... of W for each row of x. */
template <typename T> static __global__ void best_kernel(const struct plain p, uint64_t *best)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t line = (int32_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int32_t n_lines = (int32_t)gridDim.x * WARPS;
    for (int32_t r = blockIdx.y; r < p.n_rows; r += gridDim.y) {
        uint64_t key = 0;
        for (int32_t row = line; row < p.n_out; row += n_lines)
            key = sv_best_of(key, sv_best_key(dot<T>(p, r, row), row));
        if ((threadIdx.x & 31) == 0)
            best[(size_t)line * SV_GEMM_BEST_ROWS + r] = key;
    }
}

static struct plain plain_of(const struct sv_weight *w, const struct sv_weight *bias, const void *x,
                             int64_t ldx, int64_t ldy, int32_t n_rows)
{
    struct plain a = {};
    a.x = x;
    a.w = w->data;
    a.bias = bias ? bias->data : NULL;
    a.ldx = ldx;
    a.ldy = ldy;
    a.w_dtype = w->fmt.elem;
    a.bias_dtype = bias ? bias->fmt.elem : SV_F32;
    a.n_rows = n_rows;
    a.k = w->cols;
    a.n_out = w->rows;
    a.packed = sv_cuda_is_packed(w);
    a.wide = !a.packed && (w->fmt.elem == SV_BF16 || w->fmt.elem == SV_F32) && w->cols % 8 == 0 &&
             (uintptr_t)w->data % 16 == 0 && (uintptr_t)x % 16 == 0 && ldx % 8 == 0;
    return a;
}

void sv_gemm_plain(struct sv_cuda *cu, const struct sv_p_gemm *p, int32_t part, int32_t col0)
{
    const struct sv_gemm_part *it = &p->parts[part];
    const struct plain a = plain_of(&it->w, &it->bias, p->x, p->ldx, p->ldy, p->n_rows);
    const dim3 grid((unsigned)(((int64_t)a.n_rows * a.n_out + WARPS - 1) / WARPS));
    const char *what = "a plain matrix product";
    if (cu->act == SV_F32)
        sv_cuda_launch_in_pass(cu, what, gemm_kernel<float, float>, grid, dim3(THREADS), 0, a,
                               (float *)p->y + col0);
    else if (p->y_f32)
        sv_cuda_launch_in_pass(cu, what, gemm_kernel<__nv_bfloat16, float>, grid, dim3(THREADS), 0,
                               a, (float *)p->y + col0);
    else
        sv_cuda_launch_in_pass(cu, what, gemm_kernel<__nv_bfloat16, __nv_bfloat16>, grid,
                               dim3(THREADS), 0, a, (__nv_bfloat16 *)p->y + col0);
}

void sv_gemm_plain_best(struct sv_cuda *cu, const struct sv_p_head_argmax *p, int32_t row0,
                        int32_t n)
{
    const size_t x_bytes = cu->act == SV_F32 ? sizeof(float) : sizeof(__nv_bfloat16);
    const struct plain a = plain_of(
        &p->w, NULL, (const uint8_t *)p->x + (size_t)row0 * (size_t)p->k * x_bytes, p->k, 0, n);
    const int32_t lines = (a.n_out + WARPS - 1) / WARPS, most = SV_GEMM_BEST_SLOTS / WARPS;
    const dim3 grid((unsigned)(lines < most ? lines : most), (unsigned)n);
    if (cu->act == SV_F32)
        sv_cuda_launch(cu, "a plain head", best_kernel<float>, grid, dim3(THREADS), 0, a,
                       cu->gemm->best);
    else
        sv_cuda_launch(cu, "a plain head", best_kernel<__nv_bfloat16>, grid, dim3(THREADS), 0, a,
                       cu->gemm->best);
    sv_gemm_best_pick(cu, p, row0, n, (int32_t)grid.x * WARPS);
}
