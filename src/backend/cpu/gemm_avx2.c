/*
 * gemm_avx2.c - matrix product kernels for AVX2 with FMA and F16C: f32 sums over f32, bf16 or f16
 * weights.
 *
 * Entered through sv_gemm_kern_avx2 by gemm.c after cpuid said yes; built with -mavx2 -mfma -mf16c.
 * Must not: read past the last weight (mapped files end exactly there).
 */
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

#define VEC __m256
#define VIN __m256
#define VSTEP 8
#define DOT_X float
#define DOT_NX 3
#define DOT_NW(nx) ((nx) == 1 ? 8 : 4)

static inline __m256 vec_zero(void)
{
    return _mm256_setzero_ps();
}

static inline __m256 vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

static inline __m256 vec_load_part(const float *p, int n)
{
    float b[8] = {0};
    memcpy(b, p, (size_t)n * 4);
    return _mm256_loadu_ps(b);
}

static inline __m256 vec_fma(__m256 a, __m256 b, __m256 acc)
{
    return _mm256_fmadd_ps(a, b, acc);
}

static inline float vec_sum(__m256 v)
{
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

static inline __m256 widen(__m128i h, enum sv_dtype dt)
{
    if (dt == SV_F16)
        return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline __m256 vec_load_w(const void *p, enum sv_dtype dt)
{
    if (dt == SV_F32)
        return _mm256_loadu_ps(p);
    return widen(_mm_loadu_si128(p), dt);
}

static inline __m256 vec_load_w_part(const void *p, enum sv_dtype dt, int n)
{
    if (dt == SV_F32)
        return vec_load_part(p, n);
    uint16_t b[8] = {0};
    memcpy(b, p, (size_t)n * 2);
    return widen(_mm_loadu_si128((const __m128i *)b), dt);
}

#define dot_emit sv_gemm_emit_plain
#include "backend/cpu/gemm_dot.h"

const struct sv_gemm_kern *sv_gemm_kern_avx2(enum sv_dtype w, bool rounded)
{
    static const struct sv_gemm_kern f32 = {SV_GEMM_X_RAW, NULL, run_f32, NULL, NULL};
    static const struct sv_gemm_kern f16 = {SV_GEMM_X_RAW, NULL, run_f16, NULL, NULL};
    static const struct sv_gemm_kern bf16 = {SV_GEMM_X_RAW, NULL, run_bf16, NULL, NULL};
    static const struct sv_gemm_kern both16 = {SV_GEMM_X_ROUND, sv_gemm_pack_round, run_bf16, NULL,
                                               NULL};
    if (w == SV_BF16)
        return rounded ? &both16 : &bf16;
    return w == SV_F32 ? &f32 : w == SV_F16 ? &f16 : NULL;
}
