/*
 * head_screen_avx512.c - bounds of a head's logits (head_screen.h) with AVX512-VNNI, and the
 * packing of weights and of input for them.
 *
 * Packing is called by head_screen.c at load; the kernel is entered through
 * sv_gemm_kern_screen_avx512 by gemm.c. Lanes are sixteen weight rows: vpdpbusd takes four of k of
 * all sixteen times the same four bytes of one input row, broadcast from memory. Must not: round a
 * bound inwards.
 */
#if !defined(__clang__)
#pragma GCC target("avx512vnni") /* the Makefile's flags name what all *_avx512.c may use */
#endif
#include "backend/cpu/head_screen.h"
#include "backend/cpu/vec.h"

#include <immintrin.h>
#include <math.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#endif

#define MUST_INLINE static inline __attribute__((always_inline))
#define UNIT SV_GEMM_UNIT

#include "backend/cpu/head_screen_bounds.h"
#include "backend/cpu/transpose_avx512.h"

/* Error of 32-bit sums of up to SV_SCREEN_MOST_K / 16 + 4 terms of one sign, and of later
 * roundings. */
#define UP 1.001f
/* Error of a length by squares that vanish: 2^-63 sqrt(k) at most. */
#define LEAST_LENGTH 0x1p-50f

static inline __mmask16 some_of(int32_t left)
{
    return (__mmask16)(left >= 16 ? 0xffff : left <= 0 ? 0 : (1 << left) - 1);
}

/* 64 whole numbers as bytes. */
MUST_INLINE __m512i bytes_of(const __m512i q[4])
{
    __m512i out = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(q[0]));
    out = _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(q[1]), 1);
    out = _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(q[2]), 2);
    return _mm512_inserti32x4(out, _mm512_cvtepi32_epi8(q[3]), 3);
}

/* Running figures of a row: the largest magnitude, as bits, so that inf and NaN are largest; sums
 * of magnitudes and of squares. */
struct seen {
    __m512i most;
    __m512 sum, squares;
};

MUST_INLINE void see(struct seen *s, __m512 v)
{
    const __m512 a = _mm512_abs_ps(v);
    s->most = _mm512_max_epu32(s->most, _mm512_castps_si512(a));
    s->sum = _mm512_add_ps(s->sum, a);
    s->squares = _mm512_fmadd_ps(v, v, s->squares);
}

static inline struct seen nothing_seen(void)
{
    return (struct seen){_mm512_setzero_si512(), _mm512_setzero_ps(), _mm512_setzero_ps()};
}

static inline float most_of(const struct seen *s)
{
    union {
        uint32_t u;
        float f;
    } v = {_mm512_reduce_max_epu32(s->most)};
    return v.f;
}

static inline float length_of(const struct seen *s)
{
    return UP * sqrtf(_mm512_reduce_add_ps(s->squares)) + LEAST_LENGTH;
}

/* ---------------------------------------------------------------- packing weights */

static inline __m512 widened(const uint16_t *w, int32_t left)
{
    const __m256i h = _mm256_maskz_loadu_epi16(some_of(left), w);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* One row's scale. Tiny rows are all error. */
struct scale {
    float s, inverse;
};

static bool scale_of(const uint16_t *w, int32_t k, struct scale *to, float *length)
{
    struct seen seen = nothing_seen();
    for (int32_t i = 0; i < k; i += 16)
        see(&seen, widened(w + i, k - i));
    const float most = most_of(&seen);
    *length = length_of(&seen);
    *to = (struct scale){0, 0};
    if (most >= 1 / SV_SCREEN_LIMIT)
        *to = (struct scale){most / SV_SCREEN_MOST, SV_SCREEN_MOST / most};
    return most <= SV_SCREEN_LIMIT;
}

/* 64 weights of a row as bytes of both planes; records the errors of the coarse one and of both. */
MUST_INLINE void split_weights(const uint16_t *w, int32_t left, struct scale by, __m512i *coarse,
                               __m512i *fine, struct seen lost[2])
{
    __m512i c[4], f[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512 v = widened(w + 16 * i, left - 16 * i), s = _mm512_set1_ps(by.s);
        const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(by.inverse)));
        c[i] = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(2)), 2);
        f[i] = _mm512_sub_epi32(q, _mm512_slli_epi32(c[i], 2));
        const __m512 stands_for =
            _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_slli_epi32(c[i], 2)), _mm512_set1_ps(0.5f));
        see(&lost[0], _mm512_fnmadd_ps(stands_for, s, v));
        see(&lost[1], _mm512_fnmadd_ps(_mm512_cvtepi32_ps(q), s, v));
        c[i] = _mm512_add_epi32(c[i], _mm512_set1_epi32(32));
        f[i] = _mm512_add_epi32(f[i], _mm512_set1_epi32(2));
    }
    *coarse = bytes_of(c);
    *fine = bytes_of(f);
}

/* Sixteen quads of k, 16 rows each, as groups of lines. */
static void put_coarse(uint8_t *to, const __m512i quad[16])
{
    for (int g = 0; g < SV_SCREEN_GROUPS; g++, quad += 4)
        for (int j = 0; j < 3; j++, to += SV_SCREEN_LINE) {
            const __m512i bits =
                _mm512_and_si512(_mm512_sll_epi16(quad[3], _mm_cvtsi32_si128(6 - 2 * j)),
                                 _mm512_set1_epi8((char)0xc0));
            _mm512_storeu_si512(to, _mm512_or_si512(quad[j], bits));
        }
}

static void put_fine(uint8_t *to, const __m512i quad[16])
{
    for (int g = 0; g < SV_SCREEN_GROUPS; g++, quad += 4, to += SV_SCREEN_LINE) {
        const __m512i low = _mm512_or_si512(quad[0], _mm512_slli_epi16(quad[1], 2));
        const __m512i high =
            _mm512_or_si512(_mm512_slli_epi16(quad[2], 4), _mm512_slli_epi16(quad[3], 6));
        _mm512_storeu_si512(to, _mm512_or_si512(low, high));
    }
}

static void put_head(uint8_t *to, int rows, const struct scale *by, const float *length,
                     struct seen (*lost)[2], int plane)
{
    float *head = (float *)(void *)to;
    for (int r = 0; r < UNIT; r++) {
        head[r] = by[r].s / 2;
        head[UNIT + r] = UP * most_of(&lost[r][plane]) + 0x1p-100f;
        head[2 * UNIT + r] = length_of(&lost[r][plane]);
        head[3 * UNIT + r] =
            r < rows ? UP * (length[r] + length_of(&lost[r][SV_SCREEN_COARSE])) : 0;
    }
}

bool sv_screen_pack_unit(uint8_t *const to[2], const uint16_t *w, int32_t n, int32_t k, int32_t u)
{
    const int rows = n - u * UNIT < UNIT ? n - u * UNIT : UNIT;
    struct scale by[UNIT] = {{0, 0}};
    struct seen lost[UNIT][2];
    float length[UNIT] = {0};
    w += (size_t)u * UNIT * (size_t)k;
    for (int r = 0; r < rows; r++)
        if (!scale_of(w + (size_t)r * (size_t)k, k, &by[r], &length[r]))
            return false;
    for (int r = 0; r < UNIT; r++)
        lost[r][0] = lost[r][1] = nothing_seen();
    uint8_t *at[2] = {to[0] + SV_SCREEN_HEAD, to[1] + SV_SCREEN_HEAD};
    for (int32_t k0 = 0; k0 < k; k0 += SV_SCREEN_STEP) {
        __m512i coarse[16], fine[16];
        for (int r = 0; r < UNIT; r++) {
            coarse[r] = fine[r] = _mm512_setzero_si512();
            if (r < rows)
                split_weights(w + (size_t)r * (size_t)k + k0, k - k0, by[r], &coarse[r], &fine[r],
                              lost[r]);
        }
        transpose16(coarse);
        transpose16(fine);
        put_coarse(at[0], coarse);
        put_fine(at[1], fine);
        for (int i = 0; i < 2; i++)
            at[i] += SV_SCREEN_GROUPS * sv_screen_lines((enum sv_screen_plane)i) * SV_SCREEN_LINE;
    }
    for (int i = 0; i < 2; i++)
        put_head(to[i], rows, by, length, lost, i);
    return true;
}

/* ---------------------------------------------------------------- packing x */

/* 16 values of a row rounded to bf16, as every level's exact product takes them. */
static inline __m512 as_bf16(const float *x, int32_t left)
{
    const __m512i u = _mm512_castps_si512(_mm512_maskz_loadu_ps(some_of(left), x));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000u)));
}

#define MOST_P 32512.0f /* 127 * 256: the largest input as a whole number */

/* High and low bytes of 64 values; records the error. */
MUST_INLINE void halves(const float *x, int32_t left, float scale, __m512i out[2], __m512i sum[2],
                        struct seen *lost)
{
    const float inverse = scale > 0 ? 1 / scale : 0;
    __m512i high[4], low[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512 v = as_bf16(x + 16 * i, left - 16 * i);
        const __m512i p = scale > 0 ? _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse)))
                                    : _mm512_setzero_si512();
        see(lost, _mm512_fnmadd_ps(_mm512_cvtepi32_ps(p), _mm512_set1_ps(scale), v));
        high[i] = _mm512_srai_epi32(_mm512_add_epi32(p, _mm512_set1_epi32(128)), 8);
        low[i] = _mm512_sub_epi32(p, _mm512_slli_epi32(high[i], 8));
        sum[0] = _mm512_add_epi32(sum[0], high[i]);
        sum[1] = _mm512_add_epi32(sum[1], low[i]);
    }
    out[0] = bytes_of(high);
    out[1] = bytes_of(low);
}

/* Row r of the call; rows: the number of rows. */
static void pack_row(const struct sv_gemm_call *c, struct sv_screen_x *to, uint8_t *bytes,
                     int32_t r, int32_t rows)
{
    const float *x = sv_gemm_row(c, c->m0 + r);
    struct seen all = nothing_seen(), lost = all, raw = all;
    for (int32_t i = 0; i < c->k; i += 16) {
        see(&all, as_bf16(x + i, c->k - i));
        see(&raw,
            _mm512_maskz_loadu_ps(some_of(c->k - i), x + i)); /* rounding may make a zero of NaN */
    }
    const float most = most_of(&all);
    const bool bounded = most >= 1 / SV_SCREEN_LIMIT && most_of(&raw) <= SV_SCREEN_LIMIT;
    const float t = bounded ? most / MOST_P : 0;
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int32_t k0 = 0; k0 < c->k;
         k0 += SV_SCREEN_STEP, bytes += (size_t)2 * (size_t)rows * SV_SCREEN_LINE) {
        __m512i half[2];
        halves(x + k0, c->k - k0, t, half, sum, &lost);
        _mm512_storeu_si512(bytes + (size_t)r * SV_SCREEN_LINE, half[0]);
        _mm512_storeu_si512(bytes + (size_t)(rows + r) * SV_SCREEN_LINE, half[1]);
    }
    const float k = (float)c->k, chain = 1.01f * (2 * k + 64) * 0x1p-24f;
    const float length = length_of(&all), dx = length_of(&lost);
    to->scale[r] = t;
    for (int i = 0; i < 2; i++)
        to->sum[i][r] = _mm512_reduce_add_epi32(sum[i]);
    to->by_max[r] = bounded ? UP * UP * _mm512_reduce_add_ps(all.sum) : 0;
    to->by_length[r] = bounded ? UP * length : 0;
    to->by_both[r] =
        bounded ? UP * (dx + chain * length + 0x1p-20f * (length + dx + 257 * t * sqrtf(k)))
                : INFINITY;
}

void sv_screen_pack_x(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    const int32_t rows = c->m1 - c->m0;
    int32_t begin, end;
    sv_cpu_share(rows, i, n, &begin, &end);
    for (int32_t r = begin; r < end; r++)
        pack_row(c, xp, (uint8_t *)xp + sizeof(struct sv_screen_x), r, rows);
}

/* ---------------------------------------------------------------- one unit */

/* Input rows whose sums stay in registers for a unit; more take another pass. */
#define MOST_ROWS 8

UNCHECKED MUST_INLINE void bound_unit(const struct sv_gemm_span *s, const uint8_t *unit, int32_t n0,
                                      int32_t r0, const enum sv_screen_plane plane, const int nr)
{
    const struct sv_gemm_call *c = s->call;
    const size_t rows = (size_t)(c->m1 - c->m0);
    const uint8_t *w = unit + SV_SCREEN_HEAD;
    const uint8_t *x =
        (const uint8_t *)s->xp + sizeof(struct sv_screen_x) + (size_t)r0 * SV_SCREEN_LINE;
    const uint8_t *low = x + rows * SV_SCREEN_LINE;
    __m512i sum[2 * MOST_ROWS];
#pragma GCC unroll 16
    for (int i = 0; i < 2 * nr; i++)
        sum[i] = _mm512_setzero_si512();
    for (int32_t g = 1; g <= SV_SCREEN_GROUPS * sv_screen_steps(c->k);
         g++, w += sv_screen_lines(plane) * SV_SCREEN_LINE) {
        __m512i v[4];
        screen_expand(w, plane, v);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
#pragma GCC unroll 8
            for (int r = 0; r < nr; r++) {
                const int32_t *h = (const int32_t *)(const void *)(x + r * SV_SCREEN_LINE);
                const int32_t *l = (const int32_t *)(const void *)(low + r * SV_SCREEN_LINE);
                sum[2 * r] = _mm512_dpbusd_epi32(sum[2 * r], v[j], _mm512_set1_epi32(h[j]));
                sum[2 * r + 1] = _mm512_dpbusd_epi32(sum[2 * r + 1], v[j], _mm512_set1_epi32(l[j]));
            }
        }
        /* four quads further, or on to the next step's */
        const size_t on = 16 + (g % SV_SCREEN_GROUPS ? 0 : (2 * rows - 1) * SV_SCREEN_LINE);
        x += on;
        low += on;
    }
#pragma GCC unroll 8
    for (int r = 0; r < nr; r++)
        screen_put(s, unit, n0, r0 + r, plane, sum[2 * r], sum[2 * r + 1]);
}

typedef void bound_fn(const struct sv_gemm_span *s, const uint8_t *unit, int32_t n0, int32_t r0);
#define ROWS_OF(n)                                                                                 \
    UNCHECKED static void coarse_##n(const struct sv_gemm_span *s, const uint8_t *unit,            \
                                     int32_t n0, int32_t r0)                                       \
    {                                                                                              \
        bound_unit(s, unit, n0, r0, SV_SCREEN_COARSE, n);                                          \
    }                                                                                              \
    UNCHECKED static void fine_##n(const struct sv_gemm_span *s, const uint8_t *unit, int32_t n0,  \
                                   int32_t r0)                                                     \
    {                                                                                              \
        bound_unit(s, unit, n0, r0, SV_SCREEN_FINE, n);                                            \
    }
ROWS_OF(1)
ROWS_OF(2)
ROWS_OF(3)
ROWS_OF(4)
ROWS_OF(5)
ROWS_OF(6)
ROWS_OF(7)
ROWS_OF(8)

static void run_plane(const struct sv_gemm_span *s, enum sv_screen_plane plane)
{
    static bound_fn *const bound[2][MOST_ROWS + 1] = {
        {NULL, coarse_1, coarse_2, coarse_3, coarse_4, coarse_5, coarse_6, coarse_7, coarse_8},
        {NULL, fine_1, fine_2, fine_3, fine_4, fine_5, fine_6, fine_7, fine_8}};
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0;
    const size_t unit_bytes = sv_screen_unit_bytes(plane, c->k);
    for (int32_t n0 = s->n0; n0 < s->n1; n0 += UNIT)
        for (int32_t r0 = 0; r0 < rows; r0 += MOST_ROWS)
            bound[plane][rows - r0 < MOST_ROWS ? rows - r0 : MOST_ROWS](
                s, (const uint8_t *)s->item->w + (size_t)(n0 / UNIT) * unit_bytes, n0, r0);
    _mm_sfence(); /* other threads read the streamed stores */
}

static void run_coarse(const struct sv_gemm_span *s)
{
    run_plane(s, SV_SCREEN_COARSE);
}

static void run_fine(const struct sv_gemm_span *s)
{
    run_plane(s, SV_SCREEN_FINE);
}

const struct sv_gemm_kern *sv_gemm_kern_screen_avx512(enum sv_screen_plane plane)
{
    static const struct sv_gemm_kern kern[] = {
        {SV_GEMM_X_HALVES, sv_screen_pack_x, run_coarse, NULL, NULL},
        {SV_GEMM_X_HALVES, sv_screen_pack_x, run_fine, NULL, NULL}};
    return &kern[plane];
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
