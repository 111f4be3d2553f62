/*
 * gemm_bf16_avx512.c - bf16 x bf16 product kernels for AVX512-BF16 (machines that have it but not
 * AMX), and the packing of input into tiles that AMX shares.
 *
 * Entered through sv_gemm_kern_bf16_avx512 by gemm.c after cpuid said yes, and by weights.c, which
 * packs weights at load. Lanes are sixteen weight rows: one vdpbf16ps takes a pair of k of all
 * sixteen times the same pair of one input row, broadcast from memory by the instruction itself. So
 * there are no sums across lanes, and output (row, n) is one chain over pairs of k, ascending, in
 * any tile. Weights are stored as [unit][pair of k][16 weight rows][2]; those that were not packed
 * at load (tests, slices) are packed a few units at a time, with the same bits, and compressed ones
 * and codes (wcomp.h, codes.h) are expanded so for more than 16 rows; fewer use gemm_wcomp_avx512.c
 * and gemm_codes_avx512.c.
 *
 * vdpbf16ps flushes denormals and rounds to nearest regardless of the control register, so its bits
 * are the same in every process. Must not: read past the last weight.
 */
#include "backend/cpu/codes.h"
#include "backend/cpu/wcomp.h"
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

#define KSTEP 32
#define UNIT SV_GEMM_UNIT
#define MOST_UNITS SV_GEMM_RAW_UNITS /* units in parallel: one row needs many sums in flight */
#define MUST_INLINE static inline __attribute__((always_inline))

#include "backend/cpu/transpose_avx512.h"

/* ---------------------------------------------------------------- packing x */

/* 32 values of one row as 16 pairs; zeros past the end of k. */
static inline __m512i pairs(const float *x, int32_t left)
{
    __m512 lo, hi;
    if (left >= KSTEP) {
        lo = _mm512_loadu_ps(x);
        hi = _mm512_loadu_ps(x + 16);
    } else {
        lo = _mm512_maskz_loadu_ps((__mmask16)((1ull << left) - 1), x);
        hi = _mm512_maskz_loadu_ps((__mmask16)(((1ull << left) - 1) >> 16), x + 16);
    }
    return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}

static void pack_step(const struct sv_gemm_call *c, uint8_t *out, int32_t m, int nm, int cols,
                      int32_t step)
{
    const int32_t k0 = step * KSTEP, left = c->k - k0;
    if (cols == 1) {
        _mm512_storeu_si512(out, pairs(sv_gemm_row(c, m) + k0, left));
        return;
    }
    __m512i r[16];
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++)
        r[j] = j < nm ? pairs(sv_gemm_row(c, m + j) + k0, left) : _mm512_setzero_si512();
    transpose16(r);
    const __mmask16 mask = (__mmask16)((1u << cols) - 1);
#pragma GCC unroll 16
    for (int p = 0; p < 16; p++)
        _mm512_mask_storeu_epi32(out + p * cols * 4, mask, r[p]);
}

/* Work is cut by (block of 16 rows, step of k), so that 16 rows of a long k still feed all
 * threads. */
void sv_gemm_pack_tiles(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    const int32_t steps = sv_gemm_kpad(c->k) / KSTEP, rows = c->m1 - c->m0;
    const int32_t total = (rows + 15) / 16 * steps;
    const int cols = sv_gemm_tile_cols(rows);
    const int32_t end = (int32_t)((int64_t)total * (i + 1) / n);
    for (int32_t t = (int32_t)((int64_t)total * i / n); t < end; t++) {
        const int32_t b = t / steps, left = rows - b * 16;
        pack_step(c, (uint8_t *)xp + (size_t)t * 64 * cols, c->m0 + b * 16, left < 16 ? left : 16,
                  cols, t % steps);
    }
}

/* ---------------------------------------------------------------- packing weights */

static void pack_unit(uint16_t *to, const uint16_t *w, int32_t k, int rows)
{
    for (int32_t k0 = 0; k0 < k; k0 += KSTEP, to += KSTEP * UNIT) {
        const int32_t left = k - k0;
        const __mmask32 mask = left < KSTEP ? (__mmask32)((1ull << left) - 1) : ~(__mmask32)0;
        __m512i r[16];
#pragma GCC unroll 16
        for (int j = 0; j < UNIT; j++)
            r[j] = j < rows ? _mm512_maskz_loadu_epi16(mask, w + (size_t)j * k + k0)
                            : _mm512_setzero_si512();
        transpose16(r);
        const int n = left < KSTEP ? (left + 1) / 2 : KSTEP / 2;
        if (n == 16) {
#pragma GCC unroll 16
            for (int p = 0; p < 16; p++)
                _mm512_storeu_si512(to + p * 32, r[p]);
            continue;
        }
#pragma GCC unroll 16
        for (int p = 0; p < 16; p++)
            if (p < n)
                _mm512_storeu_si512(to + p * 32, r[p]);
    }
}

void sv_gemm_pack_units_avx512(uint16_t *to, const uint16_t *w, int32_t n, int32_t k, int32_t u0,
                               int32_t u1)
{
    for (int32_t u = u0; u < u1; u++)
        pack_unit(to + (size_t)u * sv_gemm_unit_elements(k), w + (size_t)u * UNIT * k, k,
                  n - u * UNIT < UNIT ? n - u * UNIT : UNIT);
}

/* ---------------------------------------------------------------- one tile */

/* Some units times some rows of one block of input. */
struct tile {
    const struct sv_gemm_span *s;
    const uint16_t *w; /* the first unit, packed; the others follow */
    size_t unit;       /* elements of a unit */
    const int32_t *x;  /* the first row's pairs */
    int32_t cols;      /* from one pair of k to the next */
    int32_t pairs;
    size_t ahead;  /* prefetch distance in bytes, 0 = the weight itself */
    int32_t n0, m; /* first weight row of the span's part, first output row */
};

#include "backend/cpu/put_avx512.h"

UNCHECKED MUST_INLINE void tile(const struct tile *t, const int nu, const int nr)
{
    const uint16_t *w = t->w;
    const int32_t *x = t->x;
    const int32_t cols = t->cols;
    const size_t unit = t->unit, ahead = t->ahead;
    __m512 sum[24];
#pragma GCC unroll 24
    for (int i = 0; i < nu * nr; i++)
        sum[i] = _mm512_setzero_ps();
    for (int32_t p = t->pairs; p > 0; p--, w += 2 * UNIT, x += cols) {
        __m512i wv[MOST_UNITS];
#pragma GCC unroll 8
        for (int u = 0; u < nu; u++) {
            wv[u] = _mm512_loadu_si512(w + u * unit);
            if (nr > 2) /* else there are enough prefetches */
                _mm_prefetch((const char *)((uintptr_t)(w + u * unit) + ahead), _MM_HINT_T1);
        }
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            const __m512i xv = _mm512_set1_epi32(x[r]);
#pragma GCC unroll 8
            for (int u = 0; u < nu; u++)
                sum[r * nu + u] = _mm512_dpbf16_ps(sum[r * nu + u], (__m512bh)wv[u], (__m512bh)xv);
        }
    }
#pragma GCC unroll 8
    for (int u = 0; u < nu; u++)
        put(t->s, t->n0 + u * UNIT, t->m, nr, sum + u, nu);
}

#include "backend/cpu/tiles_avx512.h"

/* ---------------------------------------------------------------- all of a span */

/* Units [0, units) at t->w times all rows of the pass, block after block. after: compressed weights
 * that follow, or 0. */
static void run_units(struct tile *t, int32_t units, uintptr_t after)
{
    const struct sv_gemm_call *c = t->s->call;
    const uint16_t *const w0 = t->w;
    const int32_t n0 = t->n0;
    const int32_t steps = sv_gemm_kpad(c->k) / KSTEP;
    for (int32_t m = c->m0; m < c->m1; m += 16) {
        const int nr = c->m1 - m < 16 ? c->m1 - m : 16;
        t->m = m;
        t->ahead = m == c->m0 ? AHEAD_BYTES : 0;
        if (after) /* the units to expand next, needed after these rows */
            t->ahead = m + 16 >= c->m1 ? after - (uintptr_t)w0 : 0;
        t->x = (const int32_t *)t->s->xp + (size_t)((m - c->m0) / 16) * steps * 16 * t->cols;
        for (int32_t u = 0, nu; u < units; u += nu) {
            tile_fn *fn = choose(nr, units - u, &nu);
            if (m == c->m0 && !after)
                t->ahead = ahead_of(nu, t->unit * sizeof *w0);
            t->w = w0 + (size_t)u * t->unit;
            t->n0 = n0 + u * UNIT;
            fn(t);
        }
    }
}

/* Weights of so many bytes stay in level 2 while the rows of input pass over them. */
#define GROUP_BYTES (384 << 10)

/* Expands units [u, u + n) of a compressed matrix to packed ones. */
static void expand_units(uint16_t *to, const struct sv_gemm_span *s, int32_t u, int32_t n)
{
    const int32_t k = s->call->k, whole = (k + 1) / 2 * 2 / KSTEP;
    const size_t unit = sv_gemm_unit_elements(k);
    for (int32_t i = 0; i < n; i++, to += unit) {
        struct sv_wcomp_walk at = sv_wcomp_at(s->item->w, u + i, k);
        sv_wcomp_ask(&at, SV_WCOMP_AHEAD);
        sv_wcomp_expand(&at, whole, to);
        const size_t rest = unit - (size_t)whole * KSTEP * UNIT;
        if (rest) { /* the unit ends within a block, and so does the buffer with the last one */
            _Alignas(64) uint16_t last[KSTEP * UNIT];
            sv_wcomp_expand(&at, 1, last);
            memcpy(to + (size_t)whole * KSTEP * UNIT, last, rest * sizeof *to);
        }
    }
}

static void run(const struct sv_gemm_span *s)
{
    const struct sv_gemm_call *c = s->call;
    const struct sv_codes *codes = s->item->codes;
    if (codes ? c->m1 - c->m0 <= SV_CODES_FEW : s->item->wcomp && c->m1 - c->m0 <= 16) {
        (codes ? sv_gemm_codes_few : sv_gemm_wcomp_few)(s);
        return;
    }
    struct tile t = {
        .s = s,
        .unit = sv_gemm_unit_elements(c->k),
        .cols = sv_gemm_tile_cols(c->m1 - c->m0),
        .pairs = (c->k + 1) / 2,
    };
    int32_t group = (int32_t)(GROUP_BYTES / 2 / t.unit);
    group = group < 1 || c->m1 - c->m0 <= 16 ? MOST_UNITS : group;
    if (codes && c->m1 - c->m0 <= 16)
        group = 1; /* as near as it can be */
    const bool in_place = s->item->packed && !s->item->wcomp && !codes;
    if (!in_place && group > SV_GEMM_RAW_UNITS)
        group = SV_GEMM_RAW_UNITS;
    const int32_t end = (s->n1 + UNIT - 1) / UNIT;
    for (int32_t u = s->n0 / UNIT, n; u < end; u += n) {
        n = end - u < group ? end - u : group;
        t.n0 = u * UNIT;
        if (in_place) {
            t.w = (const uint16_t *)s->item->w + (size_t)u * t.unit;
        } else {
            uint16_t *to = (uint16_t *)(void *)s->thread->pack_w;
            if (codes)
                for (int32_t i = 0; i < n; i++)
                    sv_codes_expand_avx512(codes, sv_codes_unit(codes, s->item->w, u + i),
                                           to + (size_t)i * t.unit, 0);
            else if (s->item->wcomp)
                expand_units(to, s, u, n);
            else
                sv_gemm_pack_units_avx512(to, (const uint16_t *)s->item->w + (size_t)t.n0 * c->k,
                                          s->n1 - t.n0, c->k, 0, n);
            t.w = to;
        }
        run_units(&t, n, s->item->wcomp ? (uintptr_t)sv_wcomp_end(s->item->w, u + n - 1) : 0);
    }
}

const struct sv_gemm_kern *sv_gemm_kern_bf16_avx512(void)
{
    static const struct sv_gemm_kern kern = {SV_GEMM_X_TILES, sv_gemm_pack_tiles, run, NULL, NULL};
    return &kern;
}
