/*
 * cuda_bf16.h (HIP) - CUDA's names of bf16; never run on a card. See cuda_runtime.h beside.
 */
#ifndef SV_HIP_CUDA_BF16_H
#define SV_HIP_CUDA_BF16_H

#include <hip/hip_bf16.h>

#define __nv_bfloat16 __hip_bfloat16
#define __nv_bfloat162 __hip_bfloat162
#define __float2bfloat16_rn __float2bfloat16

static __device__ __forceinline__ __hip_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return __hip_bfloat162(__float2bfloat16(a), __float2bfloat16(b));
}

#endif
