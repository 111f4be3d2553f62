/*
 * int8_avx512.h - vectors of sixteen weight rows with AVX-512, for products with activations in
 * int8: gemm_int8_avx512.c and gemm_int8_amx.c.
 */
typedef __m512i vi;
typedef __m512 vf;
#define ALWAYS UNCHECKED static inline __attribute__((always_inline))

ALWAYS vf f_set(float x)
{
    return _mm512_set1_ps(x);
}
ALWAYS vf f_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
ALWAYS void f_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
ALWAYS vf f_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
ALWAYS vf f_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
ALWAYS vf f_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
ALWAYS vf f_of(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
ALWAYS vf f_halves(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
ALWAYS vf f_brains(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
ALWAYS vf f_bytes(const uint8_t *p)
{
    return f_of(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
ALWAYS vf f_signed(const uint8_t *p)
{
    return f_of(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
ALWAYS vi i_zero(void)
{
    return _mm512_setzero_si512();
}
ALWAYS vi i_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
ALWAYS void i_store(uint8_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
ALWAYS vi i_and(vi a, int32_t mask)
{
    return _mm512_and_si512(a, _mm512_set1_epi32(mask));
}
ALWAYS vi i_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
/* By n bits, below 0 to the left. */
ALWAYS vi i_right(vi a, const int n)
{
    return n < 0 ? _mm512_slli_epi32(a, (unsigned)-n) : n ? _mm512_srli_epi32(a, (unsigned)n) : a;
}
UNCHECKED static uint32_t largest_bits(const float *x, int32_t n)
{
    __m512i top = _mm512_setzero_si512();
    for (int32_t i = 0; i < n; i += 16)
        top = _mm512_max_epi32(
            top, _mm512_and_si512(_mm512_loadu_si512(x + i), _mm512_set1_epi32(0x7fffffff)));
    return (uint32_t)_mm512_reduce_max_epi32(top);
}

UNCHECKED static int32_t code_16(int8_t *to, const float *x, float inverse)
{
    const __m512i q =
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(inverse)));
    const __m128i codes = _mm512_cvtsepi32_epi8(q);
    const __m128i sums =
        _mm_sad_epu8(_mm_xor_si128(codes, _mm_set1_epi8(-128)), _mm_setzero_si128());
    _mm_storeu_si128((__m128i *)to, codes);
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
}

#define UNIT SV_GEMM_UNIT
#define MUST_INLINE static inline __attribute__((always_inline))
#include "backend/cpu/put_avx512.h"
#undef UNIT
#undef MUST_INLINE

UNCHECKED static void emit(const struct sv_gemm_span *s, int32_t n0, int32_t m, int32_t rows,
                           const vf *sum)
{
    for (int32_t r = 0; r < rows; r++)
        put(s, n0, m + r, 1, sum + r, 1);
}
