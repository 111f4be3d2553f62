/*
 * codes_value.cuh - codes of codes.cuh become weights in bf16, a lane's four pairs of 16 columns at
 * a time: the value in f32, rounded once (docs/formats.md).
 *
 * Included by gemm_codes.cuh and codes_sm90.cu. Where a product of code and scale has few bits, it
 * is computed in bf16, which then rounds as f32 followed by bf16 does. Must not: know of tiles.
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

/* A row's word, as its pairs need it. */
struct sv_codes_scale {
    uint32_t by;         /* SV_CODES_I4*: the scale's upper 8 bits, twice */
    uint32_t low, minus; /* its lower bits, and 128 + zero point, twice */
};

template <int CODE>
static __device__ __forceinline__ struct sv_codes_scale sv_codes_scale_of(uint32_t word)
{
    struct sv_codes_scale s = {word, 0, 0};
    if (CODE == SV_CODES_I4 || CODE == SV_CODES_I4_HALF) {
        s.by = __byte_perm(word, 0, 0x1010);
        s.minus = __byte_perm(word, 0, 0x3232);
    }
    if (CODE == SV_CODES_I4_HALF) {
        const float f = __half2float(__ushort_as_half((unsigned short)word));
        const uint32_t high = __float_as_uint(f) & 0xffff0000u;
        s.by = __byte_perm(high, 0, 0x3232);
        s.low = __byte_perm(__float_as_uint(f - __uint_as_float(high)), 0, 0x3232);
    }
    return s;
}

/* Two codes of 8 bits, in bytes 1 and 3 (HALF 0) or 0 and 2. SV_CODES_F8: sign, exponent and
 * mantissa of e4m3 put where bf16 has them are 2^-120 times the code. Code times scale has 12 bits.
 */
template <int CODE, int HALF>
static __device__ __forceinline__ uint32_t sv_codes_pair8(uint32_t word, uint32_t scale)
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

/* Codes less zero point, exact in bf16, times a scale: of a scale of 11 bits the upper eight and
 * the lower three apart, of which the latter product is exact. */
template <int CODE>
static __device__ __forceinline__ uint32_t sv_codes_int4(uint32_t word, int i,
                                                         const struct sv_codes_scale &s)
{
    uint32_t code = ((word >> 4 * i) & 0x000f000fu) | 0x43004300u, value;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(code) : "r"(code), "r"(s.minus));
    if (CODE == SV_CODES_I4)
        return gpu_scale2(code, s.by);
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(value)
        : "r"(code), "r"(s.by), "r"(gpu_scale2(code, s.low)));
    return value;
}

/* e2m1 put where bf16 has its bits: 2^-126 times the code. */
static __device__ __forceinline__ uint32_t sv_codes_e2m1(uint32_t word, int i)
{
    const uint32_t up = word << (12 - 4 * i);
    return (up & 0x80008000u) | ((up >> 6) & 0x01c001c0u);
}

/* Pairs 4 step to 4 step + 3, of rows with the scales even, odd, even and odd. factor: 256 times
 * the matrix's. */
template <int CODE>
static __device__ __forceinline__ void
sv_codes_step(uint32_t (&pair)[4], const uint32_t *word, int step,
              const struct sv_codes_scale (&scale)[2], float factor)
{
    uint32_t by[2] = {scale[0].by, scale[1].by};
    if constexpr (CODE == SV_CODES_MX4 || CODE == SV_CODES_NV4) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            by[i] = CODE == SV_CODES_MX4
                        ? __byte_perm(by[i], 0, step < 2 ? 0x1010 : 0x3232)
                        /* times 2^118: exponents of bf16 begin at 127 */
                        : __byte_perm(by[i], 0, 0x4040u + 0x0101u * (uint32_t)step) * 16 +
                              0x00010001u * ((127 + 118 - 16) << 7);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (CODE == SV_CODES_I4 || CODE == SV_CODES_I4_HALF) {
            pair[i] = sv_codes_int4<CODE>(word[step], i, scale[i % 2]);
        } else if constexpr (CODE == SV_CODES_MX4 || CODE == SV_CODES_NV4) {
            pair[i] = gpu_scale2(sv_codes_e2m1(word[step], i), by[i % 2]);
            if (CODE == SV_CODES_NV4) /* so far exact, and 2^-8 times it */
                pair[i] = sv_codes_rounded(__uint_as_float(pair[i] << 16) * factor,
                                           __uint_as_float(pair[i] & 0xffff0000u) * factor);
        } else {
            pair[i] = i % 2 ? sv_codes_pair8<CODE, 1>(word[2 * step + i / 2], by[1])
                            : sv_codes_pair8<CODE, 0>(word[2 * step + i / 2], by[0]);
        }
    }
}

#endif
