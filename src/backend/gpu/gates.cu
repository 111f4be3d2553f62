/*
 * gates.cu - multiplication by sigmoids: gated attention, and the shared expert.
 *
 * Called through the table in device.cu. Elementwise. Must not: turn a finite product into NaN.
 */
#include "backend/cuda/cuda.h"
#include "backend/gpu/gdn.h"
#include "backend/gpu/silu.cuh"

enum { GATE_THREADS = 256 };

struct sigmoid_args {
    int32_t n_heads, head_dim, gate_stride;
    int64_t ldg;
};

template <typename T>
static __global__ void __launch_bounds__(GATE_THREADS)
    sigmoid_mul_kernel(const struct sigmoid_args a, T *x, const T *gate)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = (int32_t)(blockIdx.x * GATE_THREADS + threadIdx.x),
                  d = a.n_heads * a.head_dim, head = i / a.head_dim;
    if (i >= d)
        return;
    x += (int64_t)blockIdx.y * d + i;
    gate += (int64_t)blockIdx.y * a.ldg + (int64_t)head * a.gate_stride + (i - head * a.head_dim);
    sv_store(x, __fmul_rn(sv_load(x), sv_sigmoid(sv_load(gate))));
}

template <typename T>
static __global__ void __launch_bounds__(GATE_THREADS)
    add_gated_kernel(int32_t d, T *x, const T *y, const T *gate)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = (int32_t)(blockIdx.x * GATE_THREADS + threadIdx.x);
    const int64_t at = (int64_t)blockIdx.y * d + i;
    const float by = gate ? sv_sigmoid(sv_load(gate + blockIdx.y)) : 1.0f;
    if (i < d)
        sv_store(x + at, __fmaf_rn(by, sv_load(y + at), sv_load(x + at)));
}

/* The y dimension of a grid ends at 65535 rows, as many as a batch may have. */
static dim3 grid_of(int32_t d, int32_t n_rows)
{
    return dim3((unsigned)((d + GATE_THREADS - 1) / GATE_THREADS), (unsigned)n_rows);
}

void sv_cuda_sigmoid_mul(struct sv_dev *dev, const struct sv_p_sigmoid_mul *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct sigmoid_args a = {p->n_heads, p->head_dim, p->gate_stride, p->ldg};
    const dim3 grid = grid_of(p->n_heads * p->head_dim, p->n_rows);
    if (cu->act == SV_BF16)
        sv_cuda_launch_in_pass(cu, "sigmoid_mul", sigmoid_mul_kernel<__nv_bfloat16>, grid,
                               GATE_THREADS, 0, a, (__nv_bfloat16 *)p->x,
                               (const __nv_bfloat16 *)p->gate);
    else
        sv_cuda_launch_in_pass(cu, "sigmoid_mul", sigmoid_mul_kernel<float>, grid, GATE_THREADS, 0,
                               a, (float *)p->x, (const float *)p->gate);
}

void sv_cuda_add_gated(struct sv_dev *dev, const struct sv_p_add_gated *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const dim3 grid = grid_of(p->d, p->n_rows);
    if (cu->act == SV_BF16)
        sv_cuda_launch_in_pass(cu, "add_gated", add_gated_kernel<__nv_bfloat16>, grid, GATE_THREADS,
                               0, p->d, (__nv_bfloat16 *)p->x, (const __nv_bfloat16 *)p->y,
                               (const __nv_bfloat16 *)p->gate);
    else
        sv_cuda_launch_in_pass(cu, "add_gated", add_gated_kernel<float>, grid, GATE_THREADS, 0,
                               p->d, (float *)p->x, (const float *)p->y, (const float *)p->gate);
}
