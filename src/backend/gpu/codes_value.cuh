/*
 * codes_value.cuh - codes of codes.cuh become weights in bf16, a lane's four pairs of 16 columns at
 * a time: the value in f32, rounded once (docs/formats.md).
 *
 * Included by codes.cu and by the products that read codes. Where a product of code and scale has
 * few bits, it is computed in bf16, which then rounds as f32 followed by bf16 does; values of
 * K-quants are computed in f32. Must not: know of tiles.
 */
#ifndef SV_GPU_CODES_VALUE_CUH
#define SV_GPU_CODES_VALUE_CUH

#include "backend/gpu/codes.cuh"
#include "backend/cuda/cuda.h"
#include "backend/gpu/gpu.h"

static __device__ __forceinline__ uint32_t sv_codes_rounded(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}

/* Byte `at` of word, a signed one with 128 added: put behind 2^23, which is exact. */
static __device__ __forceinline__ float sv_codes_signed(uint32_t word, int at)
{
    return __uint_as_float(sv_wcomp_bytes_of(word, 0x4b000000u, 0x7440u + (uint32_t)at)) -
           8388736.0f;
}

/* What a strip has for a row behind its codes. */
template <int BITS> struct sv_codes_row {
    typedef uint2 type;
};
template <> struct sv_codes_row<4> {
    typedef uint32_t type;
};
template <> struct sv_codes_row<8> : sv_codes_row<4> {
};

/* A row's word, as its pairs need it. */
struct sv_codes_scale {
    uint32_t by;         /* SV_CODES_I4, I4_HALF: the scale's upper 8 bits, twice */
    uint32_t low, minus; /* its lower bits, and 128 + zero point, twice */
};

template <int CODE>
static __device__ __forceinline__ struct sv_codes_scale sv_codes_scale_of(uint32_t word)
{
    struct sv_codes_scale s = {word, 0, 0};
    if (CODE == SV_CODES_I4 || CODE == SV_CODES_I4_HALF) {
        s.by = sv_wcomp_bytes_of(word, 0, 0x1010);
        s.minus = sv_wcomp_bytes_of(word, 0, 0x3232);
    }
    if (CODE == SV_CODES_I4_TWO)
        s.minus = 0x43084308u;
    if (CODE == SV_CODES_I4_HALF) {
        const uint16_t half = (uint16_t)word;
        const float f = sv_load((const __half *)(const void *)&half);
        const uint32_t high = __float_as_uint(f) & 0xffff0000u;
        s.by = sv_wcomp_bytes_of(high, 0, 0x3232);
        s.low = sv_wcomp_bytes_of(__float_as_uint(f - __uint_as_float(high)), 0, 0x3232);
    }
    return s;
}

/* Of K-quants: d, -dmin, and bytes of scales. */
template <int CODE>
static __device__ __forceinline__ struct sv_codes_scale sv_codes_scale_of(uint2 words)
{
    const uint16_t d = (uint16_t)words.x, dmin = (uint16_t)(words.x >> 16);
    return {__float_as_uint(sv_load((const __half *)(const void *)&d)),
            __float_as_uint(-sv_load((const __half *)(const void *)&dmin)), words.y};
}

/* The f16 scale of half of the columns. */
static __device__ __forceinline__ uint16_t sv_codes_half(uint32_t word, int step)
{
    return (uint16_t)(step < 2 ? word : word >> 16);
}

/* Two codes of 8 bits, in bytes 1 and 3 (HALF 0) or 0 and 2. SV_CODES_F8: sign, exponent and
 * mantissa of e4m3 put where bf16 has them are 2^-120 times the code. Code times scale has 12 bits.
 */
template <int CODE, int HALF>
static __device__ __forceinline__ uint32_t sv_codes_pair8(uint32_t word, uint32_t scale)
{
    constexpr int LOW = HALF ? 0 : 1, HIGH = LOW + 2;
    const float f = __uint_as_float(scale);
    if (CODE == SV_CODES_I8 || CODE == SV_CODES_I8_TWO)
        return sv_codes_rounded(sv_codes_signed(word, LOW) * f, sv_codes_signed(word, HIGH) * f);
    if (CODE == SV_CODES_F8_WIDE) {
        const float2 v = gpu_f8x2(sv_wcomp_bytes_of(word, 0, HALF ? 0x4420 : 0x4431));
        return sv_codes_rounded(v.x * f, v.y * f);
    }
    const uint32_t sign = HALF ? word << 8 : word, rest = HALF ? word << 4 : word >> 4;
    return gpu_mul2((sign & 0x80008000u) | (rest & 0x07f007f0u), scale);
}

/* Codes less zero point, exact in bf16, times a scale: of a scale of 11 bits the upper eight and
 * the lower three apart, of which the latter product is exact. */
template <int CODE>
static __device__ __forceinline__ uint32_t sv_codes_int4(uint32_t word, int i,
                                                         const struct sv_codes_scale &s)
{
    /* The upper bits of 128, not as a constant: an instruction holds one of these. */
    const uint32_t upper = sv_wcomp_bytes_of(s.minus, 0, 0x1414);
    const uint32_t code = gpu_sub2(((word >> 4 * i) & 0x000f000fu) | upper, s.minus);
    return CODE == SV_CODES_I4_HALF || CODE == SV_CODES_I4_HALF_TWO
               ? gpu_fma2(code, s.by, gpu_mul2(code, s.low))
               : gpu_mul2(code, s.by);
}

/* e2m1 put where bf16 has its bits: 2^-126 times the code. */
static __device__ __forceinline__ uint32_t sv_codes_e2m1(uint32_t word, int i)
{
    const uint32_t up = word << (12 - 4 * i);
    return (up & 0x80008000u) | ((up >> 6) & 0x01c001c0u);
}

/* Code i of the 16 of half of the columns (sv_codes_k_bit) from its words; part: of Q5_K, the half
 * of word 4. Masked out where it stands, or where a shift of its word brings it, n bits up, it is
 * put in front of 2^23, whose last bit is 2^-n then: exact. Codes of Q6_K less 32. */
template <int CODE>
static __device__ __forceinline__ float sv_codes_k_number(const uint32_t *word, uint32_t part,
                                                          int i)
{
    constexpr int BITS = CODE - SV_CODES_K4 + 4, EACH = 32 / BITS, HIGH = EACH - 23 / BITS;
    int at = i % EACH * BITS;
    uint32_t bits = word[i / EACH < 3 ? i / EACH : 0];
    if (CODE == SV_CODES_K5 && i >= 12) {
        at = (i - 12) * BITS;
        bits = part;
    }
    if (at + BITS > 23) {
        bits >>= HIGH * BITS;
        at -= HIGH * BITS;
    }
    if (CODE != SV_CODES_K4 && i == 15) {
        bits = word[0] >> 30 << 2 | word[1] >> 30;
        bits = CODE == SV_CODES_K5 ? bits | (part >> 11 & 16) : bits << 2 | word[2] >> 30;
        at = 0;
    }
    bits = (bits & ((1u << BITS) - 1) << at) | 0x4b000000u;
    return fmaf(__uint_as_float(bits), 1.0f / (float)(1 << at),
                -(float)((1 << (23 - at)) + (CODE == SV_CODES_K6 ? 32 : 0)));
}

/* Byte `at` of a row's scales, from 0 to 255, behind 2^23. */
static __device__ __forceinline__ float sv_codes_k_byte(uint32_t bytes, uint32_t at)
{
#ifdef GPU_BYTES_OF
    return __uint_as_float(GPU_BYTES_OF(bytes, 0x4b000000u, 0x7440u + at));
#else
    return __uint_as_float((bytes >> 8 * at & 255) | 0x4b000000u);
#endif
}

/* The same times f: exact. */
static __device__ __forceinline__ float sv_codes_k_scale(uint32_t bytes, uint32_t at, float f)
{
    return fmaf(sv_codes_k_byte(bytes, at), f, f * -0x1p23f);
}

/* As sv_codes_step, of K-quants, from the words of half of the columns; first: 0 or 8, of their
 * codes. A product of d and a byte of scales is exact, and so is that of it and a code; one sum is
 * rounded, and that to bf16. */
template <int CODE>
static __device__ __forceinline__ void sv_codes_k_step(uint32_t (&pair)[4], const uint32_t *word,
                                                       uint32_t part, int first, int step,
                                                       const struct sv_codes_scale (&scale)[2])
{
    float by[2], less[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float d = __uint_as_float(scale[i].by);
        const uint32_t half = step < 2 ? 0 : 2;
        if (CODE == SV_CODES_K6) {
            by[i] = d * (sv_codes_k_byte(scale[i].minus, (uint32_t)step) - 8388736.0f);
        } else {
            by[i] = sv_codes_k_scale(scale[i].minus, half, d);
            less[i] = sv_codes_k_scale(scale[i].minus, half + 1, __uint_as_float(scale[i].low));
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float low = sv_codes_k_number<CODE>(word, part, first + 2 * i),
                    high = sv_codes_k_number<CODE>(word, part, first + 2 * i + 1);
        if (CODE == SV_CODES_K6)
            pair[i] = sv_codes_rounded(low * by[i % 2], high * by[i % 2]);
        else
            pair[i] = sv_codes_rounded(fmaf(low, by[i % 2], less[i % 2]),
                                       fmaf(high, by[i % 2], less[i % 2]));
    }
}

/* Pairs 4 step to 4 step + 3, of rows with the scales even, odd, even and odd. word: these pairs',
 * two of 8 bits, one of 4; factor: 256 times the matrix's. */
template <int CODE>
static __device__ __forceinline__ void
sv_codes_step(uint32_t (&pair)[4], const uint32_t *word, int step,
              const struct sv_codes_scale (&scale)[2], float factor)
{
    struct sv_codes_scale own[2] = {scale[0], scale[1]};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (CODE == SV_CODES_MX4 || CODE == SV_CODES_I4_TWO)
            own[i].by = sv_wcomp_bytes_of(own[i].by, 0, step < 2 ? 0x1010 : 0x3232);
        if (CODE == SV_CODES_I4_HALF_TWO)
            own[i] =
                sv_codes_scale_of<SV_CODES_I4_HALF>(0x43080000u | sv_codes_half(own[i].by, step));
        if (CODE == SV_CODES_I8_TWO) {
            const uint16_t half = sv_codes_half(own[i].by, step);
            own[i].by = __float_as_uint(sv_load((const __half *)(const void *)&half));
        }
        if (CODE == SV_CODES_NV4) /* times 2^118: exponents of bf16 begin at 127 */
            own[i].by = sv_wcomp_bytes_of(own[i].by, 0, 0x4040u + 0x0101u * (uint32_t)step) * 16 +
                        0x00010001u * ((127 + 118 - 16) << 7);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (CODE == SV_CODES_MX4 || CODE == SV_CODES_NV4) {
            pair[i] = gpu_mul2(sv_codes_e2m1(word[0], i), own[i % 2].by);
            if (CODE == SV_CODES_NV4) /* so far exact, and 2^-8 times it */
                pair[i] = sv_codes_rounded(__uint_as_float(pair[i] << 16) * factor,
                                           __uint_as_float(pair[i] & 0xffff0000u) * factor);
        } else if constexpr (CODE >= SV_CODES_I4) {
            pair[i] = sv_codes_int4<CODE>(word[0], i, own[i % 2]);
        } else {
            pair[i] = i % 2 ? sv_codes_pair8<CODE, 1>(word[i / 2], own[1].by)
                            : sv_codes_pair8<CODE, 0>(word[i / 2], own[0].by);
        }
    }
}

/* Likewise, from all words that a lane has: of STEPS steps, four or the two of a half, i are before
 * this one. */
template <int CODE, int STEPS>
static __device__ __forceinline__ void
sv_codes_lane_step(uint32_t (&pair)[4], const uint32_t *word, int i, int step,
                   const struct sv_codes_scale (&scale)[2], float factor)
{
    constexpr int EACH = CODE == SV_CODES_K6 ? 3 : 2; /* words of a half */
    if constexpr (CODE >= SV_CODES_K4)
        sv_codes_k_step<CODE>(pair, word + i / 2 * EACH,
                              CODE == SV_CODES_K5 ? word[STEPS] >> i / 2 * 16 : 0, i % 2 * 8, step,
                              scale);
    else
        sv_codes_step<CODE>(pair, word + i * (CODE >= SV_CODES_I4 ? 1 : 2), step, scale, factor);
}

#endif
