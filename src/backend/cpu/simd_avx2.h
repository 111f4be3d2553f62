/*
 * simd_avx2.h - the vector operations of the kernel templates with AVX2, FMA and F16C: eight lanes.
 *
 * Included by vec_avx2.c and gemm_codes_avx2.c only; operations are documented in simd_plain.h.
 * Must not: be reached on a machine without these sets.
 */
#ifndef SV_SIMD_AVX2_H
#define SV_SIMD_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "backend/device.h"

#define SIMD_W 8
#define SIMD_QB 4
#define SIMD_NV 2
#define SIMD_NV1 4
#define SIMD_TABLE sv_cpu_vec_avx2
#define SIMD_LOCALS /* see simd_avx512.h */

typedef __m256 vf;

static inline __m256i first_n(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void v_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
/* Past the caches, to aligned memory; visible to others after v_fence. */
static inline void v_stream(float *p, vf v)
{
    _mm256_stream_ps(p, v);
}
static inline void v_fence(void)
{
    _mm_sfence();
}
static inline vf v_load_n(const float *p, int n)
{
    return n == SIMD_W ? v_load(p) : _mm256_maskload_ps(p, first_n(n));
}
static inline void v_store_n(float *p, vf v, int n)
{
    if (n == SIMD_W)
        v_store(p, v);
    else
        _mm256_maskstore_ps(p, first_n(n), v);
}
static inline vf v_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
static inline vf v_zero_below(vf x, float limit, vf y)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(x, v_set1(limit), _CMP_LT_OQ), y);
}
static inline vf v_where_ge(vf x, vf t, vf y)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, t, _CMP_GE_OQ), y);
}
static inline vf v_rint(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_scale2(vf x, vf n)
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(e, 23)));
}
static inline float v_hsum(vf v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
static inline float v_hmax(vf v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vf v_keep(vf v, int lane0, int lo, int hi, float fill)
{
    __m256i i =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(lane0));
    __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i),
                                  _mm256_cmpgt_epi32(i, _mm256_set1_epi32(hi - 1)));
    return _mm256_blendv_ps(v, v_set1(fill), _mm256_castsi256_ps(out));
}
static inline int v_nan_mask(vf v)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
static inline int v_ge_mask(vf a, vf b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
static inline vf v_load_bf16(const uint16_t *p)
{
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
/* e4m3 codes that are not NaN. */
static inline vf v_load_f8(const uint8_t *p)
{
    const __m256i c = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m256i size = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x7f)), 20);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(c, _mm256_set1_epi32(0x80)), 24);
    return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_or_si256(size, sign)),
                         _mm256_set1_ps(0x1p120f));
}
static inline vf v_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t t[SIMD_W] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load_bf16(t);
}
/* sv_f32_to_bf16 in every lane. */
static inline void v_store_bf16(uint16_t *p, vf v)
{
    const __m256i u = _mm256_castps_si256(v), top = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    __m256i r = _mm256_srli_epi32(
        _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(top, _mm256_set1_epi32(64)), nan);
    r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(r));
}
static inline void v_store_bf16_n(uint16_t *p, vf v, int n)
{
    uint16_t t[SIMD_W];
    v_store_bf16(t, v);
    memcpy(p, t, (size_t)n * sizeof *p);
}
static inline vf v_load_f16_n(const uint16_t *p, int n)
{
    uint16_t t[SIMD_W] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)t));
}

/* Columns d .. d + 3 (of 32 bits) of eight rows: rows i and i + 4 share a register, then each half
 * is a 4 x 4 transpose. */
static inline void v_columns4(__m256 out[4], const void *const *rows, int d)
{
    __m256 a[4];
    for (int i = 0; i < 4; i++) {
        const float *lo = (const float *)rows[i] + d, *hi = (const float *)rows[i + 4] + d;
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(lo)), _mm_loadu_ps(hi), 1);
    }
    __m256d t0 = _mm256_castps_pd(_mm256_unpacklo_ps(a[0], a[1]));
    __m256d t1 = _mm256_castps_pd(_mm256_unpackhi_ps(a[0], a[1]));
    __m256d t2 = _mm256_castps_pd(_mm256_unpacklo_ps(a[2], a[3]));
    __m256d t3 = _mm256_castps_pd(_mm256_unpackhi_ps(a[2], a[3]));
    out[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(t0, t2));
    out[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(t0, t2));
    out[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(t1, t3));
    out[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(t1, t3));
}
static inline void v_transpose_f32(float *dst, int ld, const float *const *rows, int d)
{
    for (int c = 0; c < SIMD_W; c += 4) {
        __m256 col[4];
        v_columns4(col, (const void *const *)rows, d + c);
        for (int k = 0; k < 4; k++)
            v_store(dst + (c + k) * ld, col[k]);
    }
}
/* Two bf16 of a row are one column of 32 bits. */
static inline void v_transpose_bf16(float *dst, int ld, const uint16_t *const *rows, int d)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    for (int c = 0; c < SIMD_W; c += 4) {
        __m256 col[4];
        v_columns4(col, (const void *const *)rows, d / 2 + c);
        for (int k = 0; k < 4; k++) {
            __m256i u = _mm256_castps_si256(col[k]);
            v_store(dst + (2 * (c + k)) * ld, _mm256_castsi256_ps(_mm256_slli_epi32(u, 16)));
            v_store(dst + (2 * (c + k) + 1) * ld, _mm256_castsi256_ps(_mm256_and_si256(u, high)));
        }
    }
}

#endif
