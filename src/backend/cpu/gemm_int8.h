/*
 * gemm_int8.h - template: products of codes of 4 to 8 bits with activations in int8
 * (docs/formats.md, "Activations in 8 bits").
 *
 * Included by gemm_int8_plain.c, gemm_int8_avx2.c and gemm_int8_avx512.c, which define vectors of
 * sixteen weight rows (vi, vf), INT8_KERN and INT8_TALL, and entered through the table of that name
 * by gemm.c. Sums of a group are integers, exact in every order; scales times such sums are rounded
 * by the same fused multiply-adds in the same order at every level, for every number of rows. So
 * all levels have the same bits. Must not: sum groups in another order, or let a row's scale depend
 * on another row.
 */
#include "backend/cpu/gemm_int8_input.h"
#include "backend/cpu/gemm_int8_codes.h"

#define TALL INT8_TALL /* rows of the largest tile: 1, 4 or 16 */
/* of one of expanded codes: more sums than registers would take longer */
#define WHOLE (TALL < 8 ? TALL : 8)

/* ---------------------------------------------------------------- one tile */

struct tile {
    const struct sv_gemm_span *s;
    const struct sv_codes *c;
    const uint8_t *head;  /* the unit as packed, or expanded: */
    const float *scales;  /* [chunk][n_scales] multipliers and as many subtrahends */
    const uint8_t *codes; /* [step][quad], a byte each */
    const int32_t *x;     /* the first row's quads */
    int32_t rows;         /* of them that count */
    int32_t n0, m;
    struct soon soon; /* whole: the unit after this one */
};

#ifndef INT8_PAIRS /* AVX2 alone has signed bytes */
UNCHECKED MUST_INLINE vf f_sum(const int bits, vi a, vf s)
{
    (void)bits, (void)s;
    return f_of(a);
}
#endif
/* Integer sums are added to the group's sum: they share weights' scales. */
UNCHECKED MUST_INLINE void close_sums(const int bits, const int nr, vi *sum, vf *part,
                                      const float *by, const float *minus, const float *sums)
{
    const vf b = f_load(by), m = f_load(minus);
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++) {
        const vf s = f_set(sums[r]);
        part[r] = f_fma(b, f_sum(bits, sum[r], s), part[r]);
        part[r] = f_fma(m, s, part[r]);
        sum[r] = i_zero();
    }
}

#ifdef INT8_PAIRS /* sums of 16 bits, of as many quads as fit, become sums of 32 bits */
UNCHECKED MUST_INLINE void add_quads(const int bits, const bool whole, const int nr, vi *sum,
                                     const uint8_t *step, const int q0, const int n,
                                     const int32_t *x, int32_t cols)
{
    const int most = INT8_PAIRS(bits) < n ? INT8_PAIRS(bits) : n;
#pragma GCC unroll 8
    for (int q = q0; q < q0 + n; q += most) {
        vi pairs[TALL];
#pragma GCC unroll 8
        for (int p = q; p < q + most; p++) {
            __asm__ volatile("" ::: "memory"); /* x is not loaded ahead: too few registers */
            const vi w = quad_of(whole ? 8 : bits, step, p);
#pragma GCC unroll 4
            for (int r = 0; r < nr; r++) {
                const vi products = i_pairs(bits, w, x[p * cols + r]);
                pairs[r] = p > q ? i_add16(pairs[r], products) : products;
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < nr; r++)
            sum[r] = i_widen(sum[r], pairs[r]);
    }
}
#else
UNCHECKED MUST_INLINE void add_quads(const int bits, const bool whole, const int nr, vi *sum,
                                     const uint8_t *step, const int q0, const int n,
                                     const int32_t *x, int32_t cols)
{
#pragma GCC unroll 8
    for (int q = q0; q < q0 + n; q++) {
        __asm__ volatile("" ::: "memory"); /* x is not loaded ahead: too few registers */
        const vi w = quad_of(whole ? 8 : bits, step, q);
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            sum[r] = i_dot(sum[r], w, x[q * cols + r]);
    }
}
#endif

/* whole: codes and scales are expanded. */
UNCHECKED MUST_INLINE void tile(const int bits, const int nr, const bool whole, struct tile *t)
{
    const struct sv_codes *c = t->c;
    const int32_t k = c->q.cols, cols = whole ? 16 : nr, group = c->group, n_scales = c->n_scales,
                  bytes = (whole ? 8 : bits) * 64;
    const int32_t *x = t->x;
    const float *scale = (const float *)x + (size_t)k / 4 * (size_t)cols;
    const float *sums = (const float *)x + sums_at(k, length_of(group)) * (size_t)cols;
    const float *by = t->scales;
    const uint8_t *at = whole ? t->codes : t->head;
    float own[2 * SV_CODES_SCALES * UNIT];
    vf acc[TALL], part[TALL];
    vi sum[TALL];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
        acc[r] = f_set(0);
    for (int32_t k0 = 0; k0 < k; k0 += SV_CODES_CHUNK) {
        const int32_t n = steps_at(c, k0);
        if (!whole) {
            by = own;
            scales_of(c, at, (n * SV_CODES_STEP + group - 1) / group, own, own + n_scales * UNIT);
            for (int32_t i = 0; i < c->head_bytes; i += 64)
                __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)i + AHEAD), 0, 2);
            at += c->head_bytes;
        }
        const float *minus = by + n_scales * UNIT;
        for (int32_t s = 0; s < n; scale += cols) {
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++) {
                part[r] = f_set(0);
                sum[r] = i_zero();
            }
            const int32_t end = n - s < GROUP / SV_CODES_STEP ? n : s + GROUP / SV_CODES_STEP;
            for (; s < end; s++, at += bytes, x += QUADS * cols) {
                const int32_t e = s * SV_CODES_STEP / group * UNIT;
                if (whole)
                    ask_soon(&t->soon);
                for (int i = 0; i < bits && !whole; i++)
                    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)i * 64 + AHEAD), 0,
                                       2);
                if (group == SV_CODES_STEP / 2) {
#pragma GCC unroll 2
                    for (int h = 0; h < 2; h++, sums += cols) {
                        add_quads(bits, whole, nr, sum, at, h * QUADS / 2, QUADS / 2, x, cols);
                        close_sums(bits, nr, sum, part, by + (2 * s + h) * UNIT,
                                   minus + (2 * s + h) * UNIT, sums);
                    }
                    continue;
                }
                add_quads(bits, whole, nr, sum, at, 0, QUADS, x, cols);
                if (s + 1 == end || (s + 1) * SV_CODES_STEP % group == 0) {
                    close_sums(bits, nr, sum, part, by + e, minus + e, sums);
                    sums += cols;
                }
            }
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++)
                acc[r] = f_fma(f_set(scale[r]), part[r], acc[r]);
        }
        by += whole ? 2 * n_scales * UNIT : 0;
    }
    vf done[TALL];
#pragma GCC unroll 16
    for (int r = 0; r < TALL; r++)
        done[r] = acc[r < nr ? r : 0];
    emit(t->s, t->n0, t->m, t->rows, done);
}

typedef void tile_fn(struct tile *t);
#define TILE(bits, nr)                                                                             \
    UNCHECKED static void tile_##bits##x##nr(struct tile *t)                                       \
    {                                                                                              \
        tile(bits, nr, false, t);                                                                  \
    }
#if INT8_TALL == 1
#define TILES(bits) TILE(bits, 1)
#define ENTRY(bits) [bits] = {tile_##bits##x1}
#elif INT8_TALL == 4
#define TILES(bits) TILE(bits, 1) TILE(bits, 2) TILE(bits, 4)
#define ENTRY(bits) [bits] = {tile_##bits##x1, tile_##bits##x2, tile_##bits##x4}
#else
#define TILES(bits) TILE(bits, 1) TILE(bits, 2) TILE(bits, 4) TILE(bits, 8) TILE(bits, 16)
#define ENTRY(bits)                                                                                \
    [bits] = {tile_##bits##x1, tile_##bits##x2, tile_##bits##x4, tile_##bits##x8, tile_##bits##x16}
#endif
TILES(4)
TILES(5)
TILES(6)
TILES(8)
#define EXPANDED(bits)                                                                             \
    UNCHECKED static void tile_whole_##bits(struct tile *t)                                        \
    {                                                                                              \
        tile(bits, WHOLE, true, t);                                                                \
    }
EXPANDED(8)
#ifdef INT8_PAIRS /* fewer bits take fewer instructions, expanded too */
EXPANDED(4)
EXPANDED(5)
EXPANDED(6)
#define WHOLES                                                                                     \
    {                                                                                              \
        [4] = tile_whole_4, [5] = tile_whole_5, [6] = tile_whole_6, [8] = tile_whole_8             \
    }
#else
#define WHOLES                                                                                     \
    {                                                                                              \
        [4] = tile_whole_8, [5] = tile_whole_8, [6] = tile_whole_8, [8] = tile_whole_8             \
    }
#endif

/* ---------------------------------------------------------------- all of a span */

/* A unit's codes as bytes, then its scales, for many rows. */
UNCHECKED static void expand(struct tile *t, uint8_t *to)
{
    const struct sv_codes *c = t->c;
    const uint8_t *at = t->head;
    float *scales = (float *)(void *)(to + (size_t)c->q.cols * UNIT);
    t->codes = to;
    t->scales = scales;
    for (int32_t k0 = 0; k0 < c->q.cols; k0 += SV_CODES_CHUNK) {
        at =
            expand_chunk(c, at, steps_at(c, k0), t->n0 == t->s->n0, to + (size_t)k0 * UNIT, scales);
        scales += 2 * c->n_scales * UNIT;
    }
}

static void run(const struct sv_gemm_span *s)
{
    static tile_fn *const fns[9][5] = {ENTRY(4), ENTRY(5), ENTRY(6), ENTRY(8)};
    static tile_fn *const wholes[9] = WHOLES;
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0;
    struct tile t = {.s = s, .c = s->item->codes};
    const size_t block = sums_at(c->k, LENGTHS) * 16;
    const int bits = bits_of(t.c), height = rows > 8 ? 4 : rows > 4 ? 3 : rows > 2 ? 2 : rows - 1;
    for (t.n0 = s->n0; t.n0 < s->n1; t.n0 += UNIT) {
        t.head = sv_codes_unit(t.c, s->item->w, t.n0 / UNIT);
        t.m = c->m0;
        t.rows = rows;
        t.x = s->xp;
        if (rows <= TALL) {
            fns[bits][height](&t);
            continue;
        }
        expand(&t, s->thread->unit_w);
        t.soon =
            soon_of((uintptr_t)t.head + t.c->unit_bytes, t.n0 + UNIT < s->n1 ? t.c->unit_bytes : 0,
                    (rows + WHOLE - 1) / WHOLE * (c->k / SV_CODES_STEP));
        for (int32_t m = 0; m < rows; m += WHOLE) {
            t.m = c->m0 + m;
            t.rows = rows - m < WHOLE ? rows - m : WHOLE;
            t.x = (const int32_t *)s->xp + (size_t)(m / 16) * block + m % 16;
            wholes[bits](&t);
        }
    }
}

const struct sv_gemm_kern *INT8_KERN(void)
{
    static const struct sv_gemm_kern kern = {SV_GEMM_X_INT8, pack, run, NULL, NULL};
    return &kern;
}
