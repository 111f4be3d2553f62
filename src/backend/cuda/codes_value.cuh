/*
 * codes_value.cuh - two codes of codes.cuh become two weights in bf16: code times scale, rounded
 * once (docs/formats.md).
 *
 * Included by gemm_codes.cuh and codes_sm90.cu. Must not: know of tiles.
 */
#ifndef SV_CUDA_CODES_VALUE_CUH
#define SV_CUDA_CODES_VALUE_CUH

#include "backend/cuda/codes.cuh"
#include "backend/cuda/cuda.h"

static __device__ __forceinline__ uint32_t sv_codes_rounded(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Byte `at` of word, a signed one with 128 added: put behind 2^23, which is exact. */
static __device__ __forceinline__ float sv_codes_signed(uint32_t word, int at)
{
    return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + (uint32_t)at)) - 8388736.0f;
}

/* Pair 2 q (HALF 0) or 2 q + 1 of word q. SV_CODES_F8: sign, exponent and mantissa of e4m3 put
 * where bf16 has them are 2^-120 times the code, and the scale is a bf16 number times 2^120, twice.
 * Code times scale has 12 bits, so that this rounds as f32 and then bf16 do. */
template <int CODE, int HALF>
static __device__ __forceinline__ uint32_t sv_codes_pair(uint32_t word, uint32_t scale)
{
    constexpr int LOW = HALF ? 0 : 1, HIGH = LOW + 2;
    const float f = __uint_as_float(scale);
    if (CODE == SV_CODES_I8)
        return sv_codes_rounded(sv_codes_signed(word, LOW) * f, sv_codes_signed(word, HIGH) * f);
    if (CODE == SV_CODES_F8_WIDE) {
        uint32_t halves;
        const uint16_t two = (uint16_t)__byte_perm(word, 0, HALF ? 0x4420 : 0x4431);
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(two));
        const float2 v = __half22float2(*(const __half2 *)&halves);
        return sv_codes_rounded(v.x * f, v.y * f);
    }
    const uint32_t sign = HALF ? word << 8 : word, rest = HALF ? word << 4 : word >> 4;
    return gpu_scale2((sign & 0x80008000u) | (rest & 0x07f007f0u), scale);
}

#endif
