/*
 * simd_avx512.h - the vector operations of the kernel templates with AVX-512 F, BW, DQ, VL: sixteen
 * lanes.
 *
 * Included by vec_avx512.c and attention_lanes_work.h; operations are documented in simd_plain.h.
 * Must not: be reached on a machine without these sets.
 */
#ifndef SV_SIMD_AVX512_H
#define SV_SIMD_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "backend/device.h"

#define SIMD_W 16
#define SIMD_QB 4
#define SIMD_NV 4
#define SIMD_NV1 4
#define SIMD_TABLE sv_cpu_vec_avx512
#if defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
/* GCC before 13 aligns ASan's fake stack frames to 32 bytes (its bug 110027) but fills 64-byte
 * locals with aligned moves, so functions with local arrays stay out; the other levels check the
 * same source. */
#define SIMD_LOCALS __attribute__((no_sanitize_address))
#else
#define SIMD_LOCALS
#endif

typedef __m512 vf;

static inline __mmask16 first_n(int n)
{
    return (__mmask16)((1u << n) - 1);
}
static inline vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void v_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
/* Past the caches, to aligned memory; visible to others after v_fence. */
static inline void v_stream(float *p, vf v)
{
    _mm512_stream_ps(p, v);
}
static inline void v_fence(void)
{
    _mm_sfence();
}
static inline vf v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(first_n(n), p);
}
static inline void v_store_n(float *p, vf v, int n)
{
    _mm512_mask_storeu_ps(p, first_n(n), v);
}
static inline vf v_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
static inline vf v_zero_below(vf x, float limit, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, v_set1(limit), _CMP_NLT_UQ), y);
}
static inline vf v_where_ge(vf x, vf t, vf y)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, t, _CMP_GE_OQ), y);
}
static inline vf v_rint(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline vf v_scale2(vf x, vf n)
{
    return _mm512_scalef_ps(x, n);
}
static inline float v_hsum(vf v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
static inline float v_hmax(vf v)
{
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}
static inline vf v_keep(vf v, int lane0, int lo, int hi, float fill)
{
    __m512i i =
        _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(lane0));
    __mmask16 in = _mm512_mask_cmplt_epi32_mask(_mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(lo)),
                                                i, _mm512_set1_epi32(hi));
    return _mm512_mask_mov_ps(v_set1(fill), in, v);
}
static inline int v_nan_mask(vf v)
{
    return (int)_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
}
static inline int v_ge_mask(vf a, vf b)
{
    return (int)_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
static inline vf v_widen_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline vf v_load_bf16(const uint16_t *p)
{
    return v_widen_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* e4m3 codes that are not NaN. */
static inline vf v_load_f8(const uint8_t *p)
{
    const __m512i c = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m512i size = _mm512_slli_epi32(_mm512_and_si512(c, _mm512_set1_epi32(0x7f)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(c, _mm512_set1_epi32(0x80)), 24);
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(size, sign)),
                         _mm512_set1_ps(0x1p120f));
}
static inline vf v_load_bf16_n(const uint16_t *p, int n)
{
    return v_widen_bf16(_mm256_maskz_loadu_epi16(first_n(n), p));
}
/* sv_f32_to_bf16 in every lane; the BF16 instruction would flush denormals. */
static inline __m256i v_narrow_bf16(vf v)
{
    const __m512i u = _mm512_castps_si512(v), top = _mm512_srli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    __m512i r = _mm512_srli_epi32(
        _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, top, _mm512_set1_epi32(64));
    return _mm512_cvtepi32_epi16(r);
}
static inline void v_store_bf16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v_narrow_bf16(v));
}
static inline void v_store_bf16_n(uint16_t *p, vf v, int n)
{
    _mm256_mask_storeu_epi16(p, first_n(n), v_narrow_bf16(v));
}
static inline vf v_load_f16_n(const uint16_t *p, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_n(n), p));
}

/* Columns d .. d + 3 (of 32 bits) of sixteen rows: rows i, i + 4, i + 8, i + 12 share a register
 * through masked broadcasts, which need no shuffle, then each quarter is a 4 x 4 transpose. */
static inline SIMD_LOCALS void v_columns4(__m512 out[4], const void *const *rows, int d)
{
    __m512 a[4];
    for (int i = 0; i < 4; i++) {
        __m512 v = _mm512_castps128_ps512(_mm_loadu_ps((const float *)rows[i] + d));
        v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps((const float *)rows[i + 4] + d));
        v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps((const float *)rows[i + 8] + d));
        a[i] =
            _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps((const float *)rows[i + 12] + d));
    }
    __m512d t0 = _mm512_castps_pd(_mm512_unpacklo_ps(a[0], a[1]));
    __m512d t1 = _mm512_castps_pd(_mm512_unpackhi_ps(a[0], a[1]));
    __m512d t2 = _mm512_castps_pd(_mm512_unpacklo_ps(a[2], a[3]));
    __m512d t3 = _mm512_castps_pd(_mm512_unpackhi_ps(a[2], a[3]));
    out[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(t0, t2));
    out[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(t0, t2));
    out[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(t1, t3));
    out[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(t1, t3));
}
static inline SIMD_LOCALS void v_transpose_f32(float *dst, int ld, const float *const *rows, int d)
{
    for (int c = 0; c < SIMD_W; c += 4) {
        __m512 col[4];
        v_columns4(col, (const void *const *)rows, d + c);
        for (int k = 0; k < 4; k++)
            v_store(dst + (c + k) * ld, col[k]);
    }
}
/* Two bf16 of a row are one column of 32 bits. */
static inline SIMD_LOCALS void v_transpose_bf16(float *dst, int ld, const uint16_t *const *rows,
                                                int d)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    for (int c = 0; c < SIMD_W; c += 4) {
        __m512 col[4];
        v_columns4(col, (const void *const *)rows, d / 2 + c);
        for (int k = 0; k < 4; k++) {
            __m512i u = _mm512_castps_si512(col[k]);
            v_store(dst + (2 * (c + k)) * ld, _mm512_castsi512_ps(_mm512_slli_epi32(u, 16)));
            v_store(dst + (2 * (c + k) + 1) * ld, _mm512_castsi512_ps(_mm512_and_si512(u, high)));
        }
    }
}

#endif
