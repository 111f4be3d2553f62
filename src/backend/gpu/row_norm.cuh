/*
 * row_norm.cuh - the scale of an RMS norm over a row that a thread block has, eight columns a
 * thread.
 *
 * Included by rows.cu and cuda/route_sm90.cu. Must not: let the order of the sum depend on anything
 * but the row's length.
 */
#ifndef SV_GPU_ROW_NORM_CUH
#define SV_GPU_ROW_NORM_CUH

#include "backend/cuda/cuda.h"

/* 1 / sqrt(mean + eps) of the block's sum, the same in every thread; of_d: 1 / (how many). Warps
 * are added in a tree fixed by their places; scratch was cleared before a barrier, and a sum of
 * squares does not notice a zero more. */
static __device__ __forceinline__ float sv_norm_of(const float4 scratch[8], float of_d, float eps)
{
    const float4 p = scratch[threadIdx.x % 4], q = scratch[4 + threadIdx.x % 4];
    float sum = ((p.x + p.y) + (p.z + p.w)) + ((q.x + q.y) + (q.z + q.w));
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return rsqrtf(fmaf(sum, of_d, eps));
}
static __device__ __forceinline__ float sv_norm_scale(float sum, float of_d, float eps,
                                                      float4 scratch[8])
{
    sum = sv_warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        ((float *)scratch)[threadIdx.x / 32] = sum;
    __syncthreads();
    return sv_norm_of(scratch, of_d, eps);
}

#endif
