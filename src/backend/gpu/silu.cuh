/*
 * silu.cuh - sigmoid and the gated activation of one element.
 *
 * Included by kernels of gates and by the products that end with them. Must not: turn a finite
 * product into NaN.
 */
#ifndef SV_CUDA_SILU_CUH
#define SV_CUDA_SILU_CUH

/* e^88 is the largest that stays finite: -inf times anything must not turn into NaN. */
static __device__ __forceinline__ float sv_sigmoid(float x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(fminf(-x, 88.0f))));
}

static __device__ __forceinline__ float sv_silu_mul(float g, float up)
{
    return g / (1.0f + expf(fminf(-g, 88.0f))) * up;
}

/* For bf16 results, in which the errors of the two approximations, some 1e-6 at |g| of 10, do not
 * show. The bound keeps the divisor where its reciprocal is exact to a few units. */
static __device__ __forceinline__ float sv_silu_mul_fast(float g, float up)
{
    return __fdividef(g, 1.0f + __expf(fminf(-g, 80.0f))) * up;
}

#endif
