/*
 * silu.cuh - the gated activation of one element.
 *
 * Included by rows.cu and by the products that end with it: both give the same bits. Must not: be fast at
 * the cost of a bit.
 */
#ifndef SV_CUDA_SILU_CUH
#define SV_CUDA_SILU_CUH

static __device__ __forceinline__ float sv_silu_mul(float g, float up)
{
    /* e^88 is the largest that stays finite: -inf times anything must not turn into NaN. */
    return g / (1.0f + expf(fminf(-g, 88.0f))) * up;
}

#endif
