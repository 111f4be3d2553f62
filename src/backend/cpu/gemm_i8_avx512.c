/*
 * gemm_i8_avx512.c - products whose weights may be quantized (a drafter's): eight bits times
 * eight bits with AVX512-VNNI, twice the rate of bf16.
 *
 * Entered through sv_gemm_kern_i8_avx512 by gemm.c and by weights.c, which packs at load. A weight
 * row has one scale and so has an input row; sums are integers, independent of order, and a row's
 * result depends on that row alone. vpdpbusd takes its signed bytes from memory, so the input is
 * signed and weights are offset by 128; 128 times the sum of the row's bytes is subtracted again.
 * Must not: be used for a weight of the target.
 */
#if !defined(__clang__)
#pragma GCC target("avx512vnni") /* the Makefile's flags name what all *_avx512.c may use */
#endif
#include "backend/cpu/gemm.h"
#include "backend/cpu/vec.h"

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#endif

#define KSTEP 64
#define UNIT SV_GEMM_UNIT
#define MOST_UNITS 8
#define MUST_INLINE static inline __attribute__((always_inline))

#include "backend/cpu/transpose_avx512.h"

/* Before the packed input. */
struct head {
    float scale[SV_GEMM_ROWS];
    int32_t above[SV_GEMM_ROWS]; /* 128 times the sum of the row's bytes */
};

/* After the quads of a unit. */
struct tail {
    float scale[UNIT];
    float spare[UNIT];
};

static int32_t quads_of(int32_t k)
{
    return (k + 3) / 4;
}

size_t sv_gemm_unit_bytes8(int32_t k)
{
    return (size_t)quads_of(k) * 4 * UNIT + sizeof(struct tail);
}

/* ---------------------------------------------------------------- packing x */

/* 64 values of a row as bytes. */
static inline __m512i quantized(const float *x, int32_t left, __m512 inv, __m512i *sum)
{
    __m512i q[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int32_t n = left - 16 * i;
        const __mmask16 mask = (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + 16 * i), inv);
        q[i] = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v);
        *sum = _mm512_add_epi32(*sum, q[i]);
    }
    const __m256i lo = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtsepi32_epi8(q[0])),
                                               _mm512_cvtsepi32_epi8(q[1]), 1);
    const __m256i hi = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtsepi32_epi8(q[2])),
                                               _mm512_cvtsepi32_epi8(q[3]), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

static float largest(const float *x, int32_t k)
{
    __m512 top = _mm512_setzero_ps();
    for (int32_t i = 0; i < k; i += 16) {
        const __mmask16 mask = (__mmask16)(k - i >= 16 ? 0xffff : (1 << (k - i)) - 1);
        top = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(mask, x + i)), top);
    }
    return _mm512_reduce_max_ps(top);
}

static size_t block_bytes(int32_t k, int cols)
{
    return (size_t)((k + KSTEP - 1) / KSTEP) * KSTEP * (size_t)cols;
}

static void pack_block(const struct sv_gemm_call *c, struct head *h, uint8_t *out, int32_t r0,
                       int nr, int cols)
{
    __m512 inv[16];
    __m512i sum[16];
    for (int j = 0; j < nr; j++) {
        const float top = largest(sv_gemm_row(c, c->m0 + r0 + j), c->k);
        h->scale[r0 + j] = top / 127.0f;
        inv[j] = _mm512_set1_ps(top > 0 && top <= 3e38f ? 127.0f / top : 0.0f);
        sum[j] = _mm512_setzero_si512();
    }
    const __mmask16 mask = (__mmask16)((1u << cols) - 1);
    for (int32_t k0 = 0; k0 < c->k; k0 += KSTEP, out += (size_t)KSTEP * (size_t)cols) {
        __m512i r[16];
        for (int j = 0; j < 16; j++)
            r[j] = j < nr
                       ? quantized(sv_gemm_row(c, c->m0 + r0 + j) + k0, c->k - k0, inv[j], &sum[j])
                       : _mm512_setzero_si512();
        if (cols == 1) {
            _mm512_storeu_si512(out, r[0]);
            continue;
        }
        transpose16(r);
        for (int p = 0; p < 16; p++)
            _mm512_mask_storeu_epi32(out + p * cols * 4, mask, r[p]);
    }
    for (int j = 0; j < nr; j++)
        h->above[r0 + j] = 128 * _mm512_reduce_add_epi32(sum[j]);
}

static void pack(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    const int32_t rows = c->m1 - c->m0, blocks = (rows + 15) / 16;
    const int cols = sv_gemm_tile_cols(rows);
    uint8_t *out = (uint8_t *)xp + sizeof(struct head);
    const int32_t end = (int32_t)((int64_t)blocks * (i + 1) / n);
    for (int32_t b = (int32_t)((int64_t)blocks * i / n); b < end; b++)
        pack_block(c, xp, out + (size_t)b * block_bytes(c->k, cols), b * 16,
                   rows - b * 16 < 16 ? rows - b * 16 : 16, cols);
}

/* ---------------------------------------------------------------- packing weights */

static void pack_row(uint8_t *unit, struct tail *t, const uint16_t *w, int32_t k, int lane)
{
    float top = 0;
    for (int32_t i = 0; i < k; i++) {
        const float v = fabsf(sv_bf16_to_f32(w[i]));
        top = v > top ? v : top;
    }
    const float inv = top > 0 && top <= 3e38f ? 127.0f / top : 0.0f;
    t->scale[lane] = top / 127.0f;
    for (int32_t i = 0; i < k; i++) {
        const float v = sv_bf16_to_f32(w[i]) * inv;
        unit[i / 4 * 4 * UNIT + lane * 4 + i % 4] = (uint8_t)(v == v ? (int)lrintf(v) + 128 : 128);
    }
}

void sv_gemm_pack_units8(uint8_t *to, const uint16_t *w, int32_t n, int32_t k, int32_t u0,
                         int32_t u1)
{
    for (int32_t u = u0; u < u1; u++) {
        uint8_t *unit = to + (size_t)u * sv_gemm_unit_bytes8(k);
        struct tail *t = (struct tail *)(void *)(unit + (size_t)quads_of(k) * 4 * UNIT);
        *t = (struct tail){{0}, {0}};
        for (uint8_t *p = unit; p < (uint8_t *)t; p++)
            *p = 128;
        for (int lane = 0; lane < UNIT && u * UNIT + lane < n; lane++)
            pack_row(unit, t, w + (size_t)(u * UNIT + lane) * (size_t)k, k, lane);
    }
}

/* ---------------------------------------------------------------- one tile */

struct tile {
    const struct sv_gemm_span *s;
    const uint8_t *w; /* the first unit; the others follow */
    size_t unit;      /* bytes of a unit */
    const int32_t *x; /* the first row's quads */
    int32_t cols, quads;
    size_t ahead; /* prefetch distance in bytes, 0 = the weight itself */
    int32_t n0, m;
};

#include "backend/cpu/put_avx512.h"

/* Updates the parts' best, without a branch: the first of equals stays, NaN is ignored. */
UNCHECKED MUST_INLINE void keep(const struct sv_gemm_span *s, int32_t n0, int32_t r0, const int nr,
                                const __m512 *f)
{
    const int nn = s->n1 - n0 < UNIT ? s->n1 - n0 : UNIT, at = n0 / UNIT % 2 * UNIT;
    const __mmask16 lanes = (__mmask16)((1u << nn) - 1);
    const __m512i id =
        _mm512_add_epi32(_mm512_set1_epi32(n0),
                         _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++) {
        struct sv_gemm_lanes *l = s->thread->lanes + r0 + r;
        const __m512 best = _mm512_load_ps(l->val + at);
        const __mmask16 real = _mm512_mask_cmp_ps_mask(lanes, f[r], f[r], _CMP_ORD_Q);
        const __mmask16 more = _mm512_mask_cmp_ps_mask(real, f[r], best, _CMP_NLE_UQ);
        _mm512_mask_store_ps(l->val + at, more, f[r]);
        _mm512_mask_store_epi32(l->id + at, more, id);
    }
}

UNCHECKED MUST_INLINE void tile(const struct tile *t, const int nu, const int nr)
{
    const uint8_t *w = t->w;
    const int32_t *x = t->x;
    const int32_t cols = t->cols;
    const size_t unit = t->unit, ahead = t->ahead;
    __m512i sum[24];
#pragma GCC unroll 24
    for (int i = 0; i < nu * nr; i++)
        sum[i] = _mm512_setzero_si512();
    for (int32_t p = t->quads; p > 0; p--, w += 4 * UNIT, x += cols) {
        __m512i wv[MOST_UNITS];
#pragma GCC unroll 8
        for (int u = 0; u < nu; u++) {
            wv[u] = _mm512_loadu_si512(w + (size_t)u * unit);
            _mm_prefetch((const char *)((uintptr_t)(w + (size_t)u * unit) + ahead), _MM_HINT_T1);
        }
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            const __m512i xv = _mm512_set1_epi32(x[r]);
#pragma GCC unroll 8
            for (int u = 0; u < nu; u++)
                sum[r * nu + u] = _mm512_dpbusd_epi32(sum[r * nu + u], wv[u], xv);
        }
    }
    const struct sv_gemm_call *c = t->s->call;
    const struct head *h = t->s->xp;
    const int32_t r0 = t->m - c->m0;
#pragma GCC unroll 8
    for (int u = 0; u < nu; u++) {
        const __m512 scale = _mm512_loadu_ps(w + (size_t)u * unit); /* behind the last quad */
        __m512 f[16];
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            f[r] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(
                                     sum[r * nu + u], _mm512_set1_epi32(h->above[r0 + r]))),
                                 _mm512_mul_ps(scale, _mm512_set1_ps(h->scale[r0 + r])));
        if (c->y)
            put(t->s, t->n0 + u * UNIT, t->m, nr, f, 1);
        else
            keep(t->s, t->n0 + u * UNIT, r0, nr, f);
    }
}

#include "backend/cpu/tiles_avx512.h"

/* ---------------------------------------------------------------- all of a span */

static void run(const struct sv_gemm_span *s)
{
    const struct sv_gemm_call *c = s->call;
    struct tile t = {
        .s = s,
        .unit = sv_gemm_unit_bytes8(c->k),
        .cols = sv_gemm_tile_cols(c->m1 - c->m0),
        .quads = quads_of(c->k),
    };
    const size_t block = block_bytes(c->k, t.cols);
    const int32_t end = (s->n1 + UNIT - 1) / UNIT;
    for (int32_t u0 = s->n0 / UNIT; u0 < end; u0 += MOST_UNITS) {
        const int32_t units = end - u0 < MOST_UNITS ? end - u0 : MOST_UNITS;
        for (int32_t m = c->m0; m < c->m1; m += 16) {
            const int nr = c->m1 - m < 16 ? c->m1 - m : 16;
            t.m = m;
            t.x = (const int32_t *)(const void *)((const uint8_t *)s->xp + sizeof(struct head) +
                                                  (size_t)((m - c->m0) / 16) * block);
            for (int32_t u = 0, nu; u < units; u += nu) {
                tile_fn *fn = choose(nr, units - u, &nu);
                t.ahead = m == c->m0 ? ahead_of(nu, t.unit) : 0;
                t.w = (const uint8_t *)s->item->w + (size_t)(u0 + u) * t.unit;
                t.n0 = (u0 + u) * UNIT;
                fn(&t);
            }
        }
    }
}

/* Threads have ascending ranges of ids, so here too the first of equals stays. */
int32_t sv_gemm_winner_i8_avx512(const struct sv_gemm_call *c, const struct sv_gemm_thread *threads,
                                 int32_t r, float *logit, float *confidence)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    const __m512i no_id = _mm512_set1_epi32(INT32_MAX);
    __m512 val[2];
    __m512i id[2];
    for (int h = 0; h < 2; h++) {
        val[h] = none;
        id[h] = no_id;
        for (int i = 0; i < c->cpu->n_threads; i++) {
            const struct sv_gemm_lanes *l = threads[i].lanes + r;
            const __m512 v = _mm512_load_ps(l->val + h * UNIT);
            const __mmask16 real = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
            const __mmask16 first = _mm512_mask_cmpeq_epi32_mask(real, id[h], no_id);
            const __mmask16 more = first | _mm512_mask_cmp_ps_mask(real, v, val[h], _CMP_GT_OQ);
            val[h] = _mm512_mask_mov_ps(val[h], more, v);
            id[h] = _mm512_mask_loadu_epi32(id[h], more, l->id + h * UNIT);
        }
    }
    const float top = *logit = _mm512_reduce_max_ps(_mm512_max_ps(val[0], val[1]));
    const __m512 all = _mm512_set1_ps(top);
    const __m512i at0 =
        _mm512_mask_mov_epi32(no_id, _mm512_cmp_ps_mask(val[0], all, _CMP_EQ_OQ), id[0]);
    const __m512i at1 =
        _mm512_mask_mov_epi32(no_id, _mm512_cmp_ps_mask(val[1], all, _CMP_EQ_OQ), id[1]);
    const int32_t best = _mm512_reduce_min_epi32(_mm512_min_epi32(at0, at1));
    if (confidence) {
        float v[SV_GEMM_STRETCHES], w[SV_GEMM_STRETCHES];
        _mm512_storeu_ps(v, val[0]);
        _mm512_storeu_ps(v + UNIT, val[1]);
        *confidence = 1;
        if (!isinf(top)) { /* else unknown */
            c->cpu->vec->exp_weights(w, v, SV_GEMM_STRETCHES, top, 1);
            *confidence = (float)(1 / c->cpu->vec->sum(w, SV_GEMM_STRETCHES));
        }
    }
    return best == INT32_MAX ? -1 : best;
}

const struct sv_gemm_kern *sv_gemm_kern_i8_avx512(void)
{
    static const struct sv_gemm_kern kern = {SV_GEMM_X_BYTES, pack, run, NULL, NULL};
    return &kern;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
