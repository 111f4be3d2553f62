/*
 * gemm_int8_avx2.c - products with activations in int8 with AVX2 and FMA (gemm_int8.h).
 *
 * Entered through sv_gemm_kern_int8_avx2 by gemm.c after cpuid said yes. vpmaddubsw adds two
 * products in 16 bits and saturates. Must not: let a sum of such sums exceed 16 bits.
 */
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

struct ints {
    __m256i v[2];
};
#define vi struct ints
struct floats {
    __m256 v[2];
};
#define vf struct floats
#define BOTH(type, low, high) ((type){{low, high}})
#define ALWAYS UNCHECKED static inline __attribute__((always_inline))

ALWAYS vf f_set(float x)
{
    return BOTH(vf, _mm256_set1_ps(x), _mm256_set1_ps(x));
}
ALWAYS vf f_load(const float *p)
{
    return BOTH(vf, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
ALWAYS void f_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.v[0]);
    _mm256_storeu_ps(p + 8, a.v[1]);
}
ALWAYS vf f_add(vf a, vf b)
{
    return BOTH(vf, _mm256_add_ps(a.v[0], b.v[0]), _mm256_add_ps(a.v[1], b.v[1]));
}
ALWAYS vf f_mul(vf a, vf b)
{
    return BOTH(vf, _mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1]));
}
ALWAYS vf f_fma(vf a, vf b, vf c)
{
    return BOTH(vf, _mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]),
                _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1]));
}
ALWAYS vf f_of(vi a)
{
    return BOTH(vf, _mm256_cvtepi32_ps(a.v[0]), _mm256_cvtepi32_ps(a.v[1]));
}
ALWAYS vf f_halves(const uint16_t *p)
{
    return BOTH(vf, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1)));
}
ALWAYS __m256 brains(const uint16_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
ALWAYS vf f_brains(const uint16_t *p)
{
    return BOTH(vf, brains(p), brains(p + 8));
}
ALWAYS vf f_bytes(const uint8_t *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)p);
    return f_of(BOTH(vi, _mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))));
}
ALWAYS vf f_signed(const uint8_t *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)p);
    return f_of(BOTH(vi, _mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))));
}
ALWAYS vi i_zero(void)
{
    return BOTH(vi, _mm256_setzero_si256(), _mm256_setzero_si256());
}
ALWAYS vi i_load(const uint8_t *p)
{
    return BOTH(vi, _mm256_loadu_si256((const __m256i *)p),
                _mm256_loadu_si256((const __m256i *)p + 1));
}
ALWAYS void i_store(uint8_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, a.v[0]);
    _mm256_storeu_si256((__m256i *)p + 1, a.v[1]);
}
ALWAYS vi i_and(vi a, int32_t mask)
{
    const __m256i m = _mm256_set1_epi32(mask);
    return BOTH(vi, _mm256_and_si256(a.v[0], m), _mm256_and_si256(a.v[1], m));
}
ALWAYS vi i_or(vi a, vi b)
{
    return BOTH(vi, _mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1]));
}
/* By n bits, below 0 to the left. */
ALWAYS vi i_right(vi a, const int n)
{
    return n < 0 ? BOTH(vi, _mm256_slli_epi32(a.v[0], -n), _mm256_slli_epi32(a.v[1], -n))
                 : BOTH(vi, _mm256_srli_epi32(a.v[0], n), _mm256_srli_epi32(a.v[1], n));
}
/* Sums of two products of bytes and signed ones in 16 bits. Of 8 bits they are signed here, at most
 * 2 * 128 * 127, and 128 times the input's codes are added to a group's sum (f_sum). */
#define INT8_PAIRS(bits) ((bits) == 4 ? 8 : (bits) == 5 ? 4 : (bits) == 6 ? 2 : 1)
ALWAYS vi i_pairs(const int bits, vi w, int32_t x)
{
    const __m256i b = _mm256_set1_epi32(x), flip = _mm256_set1_epi8(-128);
    if (bits < 8)
        return BOTH(vi, _mm256_maddubs_epi16(w.v[0], b), _mm256_maddubs_epi16(w.v[1], b));
    w = BOTH(vi, _mm256_xor_si256(w.v[0], flip), _mm256_xor_si256(w.v[1], flip));
    return BOTH(vi, _mm256_maddubs_epi16(_mm256_abs_epi8(w.v[0]), _mm256_sign_epi8(b, w.v[0])),
                _mm256_maddubs_epi16(_mm256_abs_epi8(w.v[1]), _mm256_sign_epi8(b, w.v[1])));
}
ALWAYS vi i_add16(vi a, vi b)
{
    a = BOTH(vi, _mm256_add_epi16(a.v[0], b.v[0]), _mm256_add_epi16(a.v[1], b.v[1]));
    /* not reordered: GCC would keep all products of a group until their sum */
    __asm__("" : "+x"(a.v[0]), "+x"(a.v[1]));
    return a;
}
ALWAYS vi i_widen(vi sum, vi pairs)
{
    const __m256i ones = _mm256_set1_epi16(1);
    sum = BOTH(vi, _mm256_add_epi32(sum.v[0], _mm256_madd_epi16(pairs.v[0], ones)),
               _mm256_add_epi32(sum.v[1], _mm256_madd_epi16(pairs.v[1], ones)));
    __asm__("" : "+x"(sum.v[0]), "+x"(sum.v[1]));
    return sum;
}
/* A group's sum; s: that of the input's codes, times -1. */
ALWAYS vf f_sum(const int bits, vi a, vf s)
{
    return bits < 8 ? f_of(a) : f_fma(f_set(-128), s, f_of(a));
}

UNCHECKED static uint32_t largest_bits(const float *x, int32_t n)
{
    __m256i top = _mm256_setzero_si256();
    uint32_t t[8], most = 0;
    for (int32_t i = 0; i < n; i += 8)
        top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)),
                                                     _mm256_set1_epi32(0x7fffffff)));
    _mm256_storeu_si256((__m256i *)t, top);
    for (int i = 0; i < 8; i++)
        most = t[i] > most ? t[i] : most;
    return most;
}

UNCHECKED static int32_t code_16(int8_t *to, const float *x, float inverse)
{
    const __m256 by = _mm256_set1_ps(inverse);
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), by));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), by));
    const __m256i both = _mm256_add_epi32(a, b);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    const __m256i half = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm_storeu_si128((__m128i *)to, _mm_packs_epi16(_mm256_castsi256_si128(half),
                                                    _mm256_extracti128_si256(half, 1)));
    return _mm_cvtsi128_si32(sum);
}

UNCHECKED static void emit(const struct sv_gemm_span *s, int32_t n0, int32_t m, int32_t rows,
                           const vf *sum)
{
    const struct sv_gemm_call *c = s->call;
    const int nn = s->n1 - n0 < SV_GEMM_UNIT ? s->n1 - n0 : SV_GEMM_UNIT;
    float row[SV_GEMM_UNIT];
    if (c->y && nn == SV_GEMM_UNIT) {
        float *y = c->y + (m * c->ldy + s->item->col0 + n0);
        sv_gemm_bias(s->item, n0, nn, row);
        for (int32_t r = 0; r < rows; r++, y += c->ldy)
            f_store(y, f_add(sum[r], f_load(row)));
        return;
    }
    for (int32_t r = 0; r < rows; r++) {
        f_store(row, sum[r]);
        sv_gemm_emit_plain(s, n0, nn, m + r, 1, row, 1);
    }
}

#define INT8_TALL 4
#define INT8_KERN sv_gemm_kern_int8_avx2
#include "backend/cpu/gemm_int8.h"
