/*
 * fp8_rows.cuh - rows of bf16 into 8 bits (fp8.cuh), eight numbers at a time, on the device.
 *
 * Included by the kernels that do so: fp8_sm90.cu, and rows.cu at the end of a norm. Must not: let
 * a row's scale depend on anything but that row.
 */
#ifndef SV_CUDA_FP8_ROWS_CUH
#define SV_CUDA_FP8_ROWS_CUH

#include "backend/cuda/cuda.h"
#include "backend/gpu/fp8.cuh"
#include "backend/gpu/gpu.h"

/* Eight numbers. */
static __device__ __forceinline__ uint2 sv_fp8_eight(uint4 v, float inverse)
{
    float f[8];
    sv_spread8(f, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] *= inverse;
    return make_uint2(gpu_fp8x2(f[1], f[0]) | gpu_fp8x2(f[3], f[2]) << 16,
                      gpu_fp8x2(f[5], f[4]) | gpu_fp8x2(f[7], f[6]) << 16);
}

/* The same of a group. */
static __device__ __forceinline__ uint2 sv_fp8_group_eight(uint4 v, float inverse)
{
    return inverse > 0.0f ? sv_fp8_eight(v, inverse) : make_uint2(0, 0);
}

static __device__ __forceinline__ uint32_t sv_fp8_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The largest of `most` and eight magnitudes, as bits: NaN is more than infinity. */
static __device__ __forceinline__ uint32_t sv_fp8_largest(uint4 v, uint32_t most)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = sv_fp8_larger(most, sv_fp8_larger(w[i] & 0x7fff, w[i] >> 16 & 0x7fff));
    return most;
}

/* Of 16 lanes, which have a group. */
static __device__ __forceinline__ uint32_t sv_fp8_largest_in_group(uint32_t most)
{
#pragma unroll
    for (int step = 8; step; step /= 2)
        most = sv_fp8_larger(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

static __device__ __forceinline__ uint32_t sv_fp8_largest_in_warp(uint32_t most)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        most = sv_fp8_larger(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

/* What a block's warps have found, each in a place of its own; the others hold 0. */
static __device__ __forceinline__ uint32_t sv_fp8_largest_in_block(uint32_t most,
                                                                   uint32_t found[32])
{
    most = sv_fp8_largest_in_warp(most);
    if (threadIdx.x % 32 == 0)
        found[threadIdx.x / 32] = most;
    __syncthreads();
    return sv_fp8_largest_in_warp(found[threadIdx.x % 32]);
}

#endif
