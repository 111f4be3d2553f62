/*
 * gemm_bf16_avx512.c - bf16 x bf16 product kernels for AVX512-BF16 (machines that have it but not
 * AMX).
 *
 * Entered through sv_gemm_kern_bf16_avx512 by gemm.c after cpuid said yes. vdpbf16ps takes
 * denormals as zero and rounds to nearest whatever the control register says, so its bits are the
 * same in every process. Must not: read past the last weight.
 */
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

#define VEC __m512
#define VIN __m512i
#define VSTEP 32
#define DOT_X uint16_t
#define DOT_NX 6
#define DOT_NW(nx) ((nx) == 1 ? 16 : (nx) <= 3 ? 8 : 4)

static inline __m512 vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline __m512i vec_load(const uint16_t *p)
{
    return _mm512_loadu_si512(p);
}

static inline __m512i vec_load_part(const uint16_t *p, int n)
{
    return _mm512_maskz_loadu_epi16((__mmask32)((1ull << n) - 1), p);
}

static inline __m512 vec_fma(__m512i w, __m512i x, __m512 acc)
{
    return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)x);
}

static inline float vec_sum(__m512 v)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

/* vec_sum of four vectors to out[0..3], the same additions in the same order, together. */
static inline void vec_sum4(__m512 a, __m512 b, __m512 c, __m512 d, float *out)
{
    /* [lo 256 of a, lo 256 of b] + [hi of a, hi of b], and then quarters: one 128-bit lane a vector
     */
    const __m512 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 q =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0x4e));
    q = _mm512_add_ps(q, _mm512_permute_ps(q, 0xb1));
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, q)));
}
#define VEC_SUM4 vec_sum4

static inline __m512i vec_load_w(const void *p, enum sv_dtype dt)
{
    (void)dt;
    return _mm512_loadu_si512(p);
}

static inline __m512i vec_load_w_part(const void *p, enum sv_dtype dt, int n)
{
    (void)dt;
    return vec_load_part(p, n);
}

#define dot_emit sv_gemm_emit_avx512
#define DOT_ONE_DTYPE
#include "backend/cpu/gemm_dot.h"

static void run(const struct sv_gemm_span *s)
{
    dot_run(s, SV_BF16);
}

static void pack(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    const int32_t kp = sv_gemm_kpad(c->k), rows = c->m1 - c->m0;
    const int32_t r1 = (int32_t)((int64_t)rows * (i + 1) / n);
    for (int32_t r = (int32_t)((int64_t)rows * i / n); r < r1; r++) {
        const float *x = sv_gemm_row(c, c->m0 + r);
        uint16_t *out = (uint16_t *)xp + (size_t)r * kp;
        for (int32_t p = 0; p < kp; p += 16) {
            int32_t left = c->k - p < 0 ? 0 : c->k - p > 16 ? 16 : c->k - p;
            __m512 v = _mm512_maskz_loadu_ps((__mmask16)((1u << left) - 1), x + p);
            _mm256_storeu_si256((__m256i *)(out + p), (__m256i)_mm512_cvtneps_pbh(v));
        }
    }
}

const struct sv_gemm_kern *sv_gemm_kern_bf16_avx512(void)
{
    static const struct sv_gemm_kern kern = {"avx512-bf16", SV_GEMM_X_ROWS16, pack, run, NULL,
                                             NULL};
    return &kern;
}
