/*
 * gemm_avx512.c - matrix product kernels for AVX-512 (F, BW, DQ, VL) with f32 sums over f32, bf16
 * or f16 weights, and the output of every 512-bit kernel: bias, transposed store, running argmax.
 *
 * Entered through sv_gemm_kern_avx512 by gemm.c after cpuid said yes; emit is also called by
 * gemm_amx.c. Must not: read past the last weight, write past the last
 * column.
 */
#include "backend/cpu/gemm.h"

#include <immintrin.h>

#define VEC __m512
#define VIN __m512
#define VSTEP 16
#define DOT_X float
#define DOT_NX 6
#define DOT_NW(nx) ((nx) == 1 ? 16 : (nx) <= 3 ? 8 : 4)

static inline __m512 vec_zero(void)
{
    return _mm512_setzero_ps();
}

static inline __m512 vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline __m512 vec_load_part(const float *p, int n)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

static inline __m512 vec_fma(__m512 a, __m512 b, __m512 acc)
{
    return _mm512_fmadd_ps(a, b, acc);
}

/* The sums of four vectors to out[0..3]: halves, quarters, then neighbours, in that order for
 * each. */
static inline void vec_sum4(__m512 a, __m512 b, __m512 c, __m512 d, float *out)
{
    /* [lo 256 of a, lo 256 of b] + [hi of a, hi of b], and then quarters: one 128-bit lane a
     * vector */
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

static inline __m512 widen(__m256i h, enum sv_dtype dt)
{
    if (dt == SV_F16)
        return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline __m512 vec_load_w(const void *p, enum sv_dtype dt)
{
    if (dt == SV_F32)
        return _mm512_loadu_ps(p);
    return widen(_mm256_loadu_si256(p), dt);
}

static inline __m512 vec_load_w_part(const void *p, enum sv_dtype dt, int n)
{
    if (dt == SV_F32)
        return vec_load_part(p, n);
    return widen(_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p), dt);
}

#define dot_emit sv_gemm_emit_avx512
#include "backend/cpu/gemm_dot.h"

#define MUST_INLINE static inline __attribute__((always_inline))
#include "backend/cpu/transpose_avx512.h"

/* Columns of a tile too narrow to be worth a transposition. */
static inline __m512 tile_column(const float *tile, int ld, int j, __mmask16 rows)
{
    if (ld == 1)
        return _mm512_maskz_loadu_ps(rows, tile);
    __m512i at =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(ld));
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), rows, at, tile + j, 4);
}

static void store_y(const struct sv_gemm_span *s, int32_t n0, int nn, int32_t m, int nm,
                    const float *tile, int ld)
{
    const struct sv_gemm_call *c = s->call;
    const __mmask16 rows = (__mmask16)((1u << nn) - 1);
    float *y = c->y + (m * c->ldy + s->item->col0 + n0);
    __m512 bias = _mm512_setzero_ps();
    if (s->item->bias) {
        float b[SV_GEMM_UNIT];
        sv_gemm_bias(s->item, n0, nn, b);
        bias = _mm512_loadu_ps(b);
    }
    if (ld != 16 || nm < 4 || nn < 16) {
        for (int j = 0; j < nm; j++)
            _mm512_mask_storeu_ps(y + j * c->ldy, rows,
                                  _mm512_add_ps(tile_column(tile, ld, j, rows), bias));
        return;
    }
    __m512i r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_loadu_si512(tile + i * 16);
    transpose16(r);
    if (nm == 16) {
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
            _mm512_storeu_ps(y + j * c->ldy, _mm512_add_ps(_mm512_castsi512_ps(r[j]), bias));
        return;
    }
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++)
        if (j < nm)
            _mm512_storeu_ps(y + j * c->ldy, _mm512_add_ps(_mm512_castsi512_ps(r[j]), bias));
}

/* One input row: the 16 values are contiguous, and rarely exceed the maximum. */
static void argmax_one(float *best, int32_t *id, int32_t n0, int nn, const float *tile)
{
    __m512 v = _mm512_maskz_loadu_ps((__mmask16)((1u << nn) - 1), tile);
    __m512 b = _mm512_set1_ps(*best);
    if (!(_mm512_cmp_ps_mask(v, b, _CMP_NLE_UQ) & ((1u << nn) - 1)))
        return;
    for (int i = 0; i < nn; i++)
        if (tile[i] == tile[i] && !(tile[i] <= *best)) {
            *best = tile[i];
            *id = n0 + i;
        }
}

void sv_gemm_emit_avx512(const struct sv_gemm_span *s, int32_t n0, int nn, int32_t m, int nm,
                         const float *tile, int ld)
{
    if (s->call->y) {
        store_y(s, n0, nn, m, nm, tile, ld);
        return;
    }
    float *best_val = s->thread->best_val + (m - s->call->m0);
    int32_t *best_id = s->thread->best_id + (m - s->call->m0);
    if (ld == 1) {
        argmax_one(best_val, best_id, n0, nn, tile);
        return;
    }
    const __mmask16 cols = (__mmask16)((1u << nm) - 1);
    __m512 best = _mm512_maskz_loadu_ps(cols, best_val);
    /* Most tiles do not exceed the maxima: check first, in any order, before each row. */
    unsigned any = 0;
    for (int i = 0; i < nn; i++)
        any |= _mm512_mask_cmp_ps_mask(cols, _mm512_maskz_loadu_ps(cols, tile + i * ld), best,
                                       _CMP_NLE_UQ);
    if (!any)
        return;
    __m512i id = _mm512_maskz_loadu_epi32(cols, best_id);
    for (int i = 0; i < nn; i++) {
        __m512 v = _mm512_maskz_loadu_ps(cols, tile + i * ld);
        /* "not (v <= best)" also lets the first number replace the initial NaN. */
        __mmask16 win =
            _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v, best, _CMP_NLE_UQ);
        best = _mm512_mask_mov_ps(best, win, v);
        id = _mm512_mask_mov_epi32(id, win, _mm512_set1_epi32(n0 + i));
    }
    _mm512_mask_storeu_ps(best_val, cols, best);
    _mm512_mask_storeu_epi32(best_id, cols, id);
}

const struct sv_gemm_kern *sv_gemm_kern_avx512(enum sv_dtype w, bool rounded)
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
