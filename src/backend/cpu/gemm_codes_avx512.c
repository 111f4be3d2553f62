/*
 * gemm_codes_avx512.c - codes of quantized weights (codes.h) expanded to bf16, and the products of
 * few rows, which expand as they go.
 *
 * Called after cpuid said yes to AVX512-BF16 by gemm_bf16_avx512.c and codes.c. A product adds in
 * the order of gemm_bf16_avx512.c: the same bits as with the expanded matrix. A value is rounded to
 * f32 once, as docs/formats.md says: a code times its scale is exact before a minimum is
 * subtracted, so that a fused multiply-subtract rounds where the reference does. Then it is rounded
 * to bf16; denormal numbers become zero, as vdpbf16ps and AMX treat them. Must not: read past a
 * unit.
 */
#include "backend/cpu/codes.h"
#include "backend/cpu/gemm.h"

#include <immintrin.h>

#define UNIT SV_GEMM_UNIT
#define MUST_INLINE static inline __attribute__((always_inline))
#define PAIRS (SV_CODES_STEP / 2)
#define STEPS (SV_CODES_CHUNK / SV_CODES_STEP)
/* Prefetch distance of a unit, into level 2. */
#define AHEAD 4096

#include "backend/cpu/put_avx512.h"

/* ---------------------------------------------------------------- scales */

/* Factors of a chunk's codes, and subtrahends: sixteen rows an entry. */
struct scales {
    __m512 by[SV_CODES_SCALES], minus[SV_CODES_SCALES];
};

MUST_INLINE __m512 scale_at(enum sv_codes_scale as, const uint8_t *head, int e)
{
    const __m128i *bytes = (const __m128i *)head + e;
    const __m256i *halves = (const __m256i *)head + e;
    __m512i b;
    switch (as) {
    case SV_SCALE_F32:
        return _mm512_load_ps((const float *)head + e * UNIT);
    case SV_SCALE_F16:
        return _mm512_cvtph_ps(_mm256_load_si256(halves));
    case SV_SCALE_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256(halves)), 16));
    case SV_SCALE_E8M0: /* 0 is 2^-127, 255 NaN */
        b = _mm512_cvtepu8_epi32(_mm_load_si128(bytes));
        b = _mm512_mask_mov_epi32(_mm512_slli_epi32(b, 23), _mm512_testn_epi32_mask(b, b),
                                  _mm512_set1_epi32(0x00400000));
        return _mm512_castsi512_ps(
            _mm512_mask_or_epi32(b, _mm512_cmpeq_epi32_mask(b, _mm512_set1_epi32(0x7f800000)), b,
                                 _mm512_set1_epi32(0x00400000)));
    case SV_SCALE_E4M3: /* without a sign; as an f16 number 2^-8 of it */
        return _mm512_mul_ps(
            _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_load_si128(bytes)), 7)),
            _mm512_set1_ps(256));
    case SV_SCALE_U8:
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128(bytes)));
    default:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128(bytes)));
    }
}

MUST_INLINE void scales_as(struct scales *to, enum sv_codes_scale as, const struct sv_codes *c,
                           const uint8_t *head, int n)
{
    const bool mins = as == SV_SCALE_U8 || c->q.zeros;
    const float middle = c->kind == SV_CODES_6 ? 32 : c->kind == SV_CODES_4_MIN ? 8 : 0;
    const int bytes = as == SV_SCALE_F32 ? 4 : as <= SV_SCALE_BF16 ? 2 : 1;
    const uint8_t *min = head + (size_t)c->n_scales * UNIT * (size_t)bytes;
    const uint8_t *factors = min + (mins ? c->n_scales * UNIT : 0);
    const __m512 zero =
        _mm512_set1_ps((float)(c->q.zero_add - (c->kind == SV_CODES_8_MIN ? 128 : 0)));
    __m512 d = _mm512_set1_ps(c->kind == SV_CODES_F8 ? 256 : 1), dmin = d;
    if (as == SV_SCALE_U8 || as == SV_SCALE_I8)
        d = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)factors));
    if (as == SV_SCALE_U8)
        dmin = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)factors + 1));
    for (int e = 0; e < n; e++) {
        const __m512 s = scale_at(as, head, e);
        const __m512 by = _mm512_mul_ps(d, s);
        __m512 m = _mm512_setzero_ps();
        if (mins)
            m = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)min + e)));
        to->by[e] = by;
        to->minus[e] = as == SV_SCALE_U8 ? _mm512_mul_ps(dmin, m)
                       : mins            ? _mm512_mul_ps(by, _mm512_add_ps(m, zero))
                                         : _mm512_mul_ps(by, _mm512_set1_ps(middle));
    }
}

/* Of the first n steps of a chunk. */
static void scales_of(struct scales *to, const struct sv_codes *c, const uint8_t *head, int n_steps)
{
    const int n = (n_steps * SV_CODES_STEP + c->group - 1) / c->group;
    switch (c->scale) {
    case SV_SCALE_F32:
        scales_as(to, SV_SCALE_F32, c, head, n);
        break;
    case SV_SCALE_F16:
        scales_as(to, SV_SCALE_F16, c, head, n);
        break;
    case SV_SCALE_BF16:
        scales_as(to, SV_SCALE_BF16, c, head, n);
        break;
    case SV_SCALE_E8M0:
        scales_as(to, SV_SCALE_E8M0, c, head, n);
        break;
    case SV_SCALE_E4M3:
        scales_as(to, SV_SCALE_E4M3, c, head, n);
        break;
    case SV_SCALE_U8:
        scales_as(to, SV_SCALE_U8, c, head, n);
        break;
    case SV_SCALE_I8:
        scales_as(to, SV_SCALE_I8, c, head, n);
        break;
    }
}

/* ---------------------------------------------------------------- codes */

/* Tables and factors for the values of a kind. */
struct constants {
    __m512 table, factor;
    __m512i low_rows, high_rows; /* row of each lane: of rows 0-7 and 8-15, each twice */
};

MUST_INLINE struct constants constants_of(const struct sv_codes *c)
{
    return (struct constants){
        .table = _mm512_load_ps(c->table),
        .factor = _mm512_set1_ps(c->q.global),
        .low_rows = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7),
        .high_rows = _mm512_setr_epi32(8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)};
}

MUST_INLINE __m512i shifted(__m512i v, int right)
{
    return right > 0 ? _mm512_srli_epi32(v, (unsigned)right)
           : right   ? _mm512_slli_epi32(v, (unsigned)-right)
                     : v;
}

/* Whether values are code * scale - minimum, and the codes' bits: parts of their bytes. */
MUST_INLINE bool is_linear(const enum sv_codes_kind kind)
{
    return kind == SV_CODES_4_MIN || kind == SV_CODES_5_MIN || kind == SV_CODES_6;
}

/* Quad q of a step: its codes in the low bits of bytes, anything above. */
MUST_INLINE __m512i quad_of(const enum sv_codes_kind kind, const uint8_t *step, const int q)
{
    const __m512i *line = (const __m512i *)step;
    const __m512i low = shifted(_mm512_load_si512(line + q / 2), q % 2 * 4);
    if (kind != SV_CODES_5_MIN && kind != SV_CODES_6)
        return low;
    const __m512i high = kind == SV_CODES_6
                             ? shifted(_mm512_load_si512(line + 4 + q / 4), q % 4 * 2 - 4)
                             : shifted(_mm512_load_si512(line + 4), q - 4);
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32(0x0f0f0f0f), low, high, 0xca);
}

/* The codes of vector i of a step, as numbers: of a linear kind, 256 ^ (i % 4) of them. */
MUST_INLINE __m512 numbers(const enum sv_codes_kind kind, const struct constants *k,
                           const uint8_t *step, const int i)
{
    if (kind >= SV_CODES_8) {
        const __m128i b = _mm_load_si128((const __m128i *)step + i);
        if (kind != SV_CODES_F8)
            return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
        return _mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(b), 7),
                                                _mm256_set1_epi16((short)0xbfff)));
    }
    if (!is_linear(kind))
        return _mm512_permutexvar_ps(
            shifted(_mm512_load_si512((const __m512i *)step + i / 8), i % 4 * 8 + i / 4 % 2 * 4),
            k->table);
    const int mask = kind == SV_CODES_4_MIN ? 15 : kind == SV_CODES_5_MIN ? 31 : 63;
    const __m512i quad = quad_of(kind, step, i / 4);
    if (kind == SV_CODES_4_MIN && i % 4 == 0) /* the other units have less to do */
        return _mm512_permutexvar_ps(quad, k->table);
    return _mm512_cvtepi32_ps(_mm512_and_si512(quad, _mm512_set1_epi32(mask << (i % 4 * 8))));
}

MUST_INLINE __m512 value(const enum sv_codes_kind kind, const struct constants *k, __m512 code,
                         __m512 by, __m512 minus)
{
    if (is_linear(kind) || kind == SV_CODES_8_MIN)
        return _mm512_fmsub_ps(code, by, minus);
    const __m512 v = _mm512_mul_ps(code, by);
    return kind == SV_CODES_4_FACTOR ? _mm512_mul_ps(v, k->factor) : v;
}

/* Scales of rows 0-7 and of 8-15, each twice; of linear kinds also those of bytes 2 and 3. */
struct lanes {
    __m512 by[4], minus[2];
};

MUST_INLINE void lanes_of(const enum sv_codes_kind kind, struct lanes *l, const struct constants *k,
                          const struct scales *s, int e)
{
    l->by[0] = _mm512_permutexvar_ps(k->low_rows, s->by[e]);
    l->by[1] = _mm512_permutexvar_ps(k->high_rows, s->by[e]);
    l->by[2] = l->by[0];
    l->by[3] = l->by[1];
    if (is_linear(kind)) { /* powers of two: exact */
        l->by[1] = _mm512_mul_ps(l->by[1], _mm512_set1_ps(0x1p-8f));
        l->by[2] = _mm512_mul_ps(l->by[0], _mm512_set1_ps(0x1p-16f));
        l->by[3] = _mm512_mul_ps(l->by[1], _mm512_set1_ps(0x1p-16f));
    }
    l->minus[0] = _mm512_permutexvar_ps(k->low_rows, s->minus[e]);
    l->minus[1] = _mm512_permutexvar_ps(k->high_rows, s->minus[e]);
}

/* Pair p of k of a step: sixteen rows. */
MUST_INLINE __m512i pair_of(const enum sv_codes_kind kind, const struct constants *k,
                            const struct lanes *l, const uint8_t *step, const int p)
{
    const __m512 low = value(kind, k, numbers(kind, k, step, 2 * p), l->by[2 * p % 4], l->minus[0]);
    const __m512 high =
        value(kind, k, numbers(kind, k, step, 2 * p + 1), l->by[(2 * p + 1) % 4], l->minus[1]);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* Half h of row r of a step, scaled by entry e. */
MUST_INLINE __m512 half_of(const enum sv_codes_kind kind, const struct constants *k,
                           const struct scales *s, int e, const uint8_t *step, const int r,
                           const int h)
{
    static const float bytes[4] = {1, 0x1p-8f, 0x1p-16f, 0x1p-24f};
    const float *by = (const float *)s->by + e * UNIT + r;
    const float *minus = (const float *)s->minus + e * UNIT + r;
    const int i = 2 * r + h;
    return value(kind, k, numbers(kind, k, step, i),
                 _mm512_set1_ps(is_linear(kind) ? *by * bytes[i % 4] : *by),
                 _mm512_set1_ps(*minus));
}

MUST_INLINE void ask(const uint8_t *p, int32_t n_bytes, uintptr_t ahead)
{
    for (int32_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)i + ahead), _MM_HINT_T1);
}

MUST_INLINE int32_t steps_at(const struct sv_codes *c, int32_t k0)
{
    const int32_t n = (c->q.cols - k0) / SV_CODES_STEP;
    return n < STEPS ? n : STEPS;
}

MUST_INLINE int32_t step_bytes(const enum sv_codes_kind kind)
{
    const int bits = kind == SV_CODES_5_MIN ? 5
                     : kind == SV_CODES_6   ? 6
                     : kind >= SV_CODES_8   ? 8
                                            : 4;
    return SV_CODES_STEP * UNIT * bits / 8;
}

/* ---------------------------------------------------------------- expanding */

/* The chunk of n steps at *at to `to`, pair by pair. */
MUST_INLINE void expand_pairs(const enum sv_codes_kind kind, const struct sv_codes *c,
                              const uint8_t **at, int32_t n, uint8_t *to)
{
    const struct constants k = constants_of(c);
    const int32_t group = c->group;
    struct scales s;
    struct lanes l;
    ask(*at, c->head_bytes, AHEAD);
    scales_of(&s, c, *at, n);
    *at += c->head_bytes;
    for (int32_t t = 0; t < n; t++, *at += step_bytes(kind)) {
        const uint8_t *const step = *at;
        ask(step, step_bytes(kind), AHEAD);
        lanes_of(kind, &l, &k, &s, t * SV_CODES_STEP / group);
#pragma GCC unroll 16
        for (int p = 0; p < PAIRS; p++, to += 64) {
            if (p == PAIRS / 2 && group == SV_CODES_STEP / 2)
                lanes_of(kind, &l, &k, &s, 2 * t + 1);
            _mm512_store_si512(to, pair_of(kind, &k, &l, step, p));
        }
    }
}

/* The same row by row, row_bytes apart. */
MUST_INLINE void expand_rows(const enum sv_codes_kind kind, const struct sv_codes *c,
                             const uint8_t **at, int32_t n, uint8_t *to, size_t row_bytes)
{
    const struct constants k = constants_of(c);
    struct scales s;
    ask(*at, c->head_bytes, AHEAD);
    scales_of(&s, c, *at, n);
    *at += c->head_bytes;
    for (int32_t t = 0; t < n; t++, *at += step_bytes(kind), to += 64) {
        const uint8_t *const step = *at;
        const int e = t * SV_CODES_STEP / c->group;
        const int e2 = (t * SV_CODES_STEP + SV_CODES_STEP / 2) / c->group;
        ask(step, step_bytes(kind), AHEAD);
#pragma GCC unroll 16
        for (int r = 0; r < UNIT; r++)
            _mm512_storeu_si512(to + (size_t)r * row_bytes,
                                (__m512i)_mm512_cvtne2ps_pbh(half_of(kind, &k, &s, e2, step, r, 1),
                                                             half_of(kind, &k, &s, e, step, r, 0)));
    }
}

#define KINDS(f)                                                                                   \
    f(SV_CODES_4) f(SV_CODES_4_MIN) f(SV_CODES_4_FACTOR) f(SV_CODES_5_MIN) f(SV_CODES_6)           \
        f(SV_CODES_8) f(SV_CODES_8_MIN) f(SV_CODES_F8)
#define EXPAND(kind)                                                                               \
    static void pairs_##kind(const struct sv_codes *c, const uint8_t **at, int32_t n, uint8_t *to) \
    {                                                                                              \
        expand_pairs(kind, c, at, n, to);                                                          \
    }                                                                                              \
    static void rows_##kind(const struct sv_codes *c, const uint8_t **at, int32_t n, uint8_t *to,  \
                            size_t row_bytes)                                                      \
    {                                                                                              \
        expand_rows(kind, c, at, n, to, row_bytes);                                                \
    }
KINDS(EXPAND)
typedef void pairs_fn(const struct sv_codes *c, const uint8_t **at, int32_t n, uint8_t *to);
typedef void rows_fn(const struct sv_codes *c, const uint8_t **at, int32_t n, uint8_t *to,
                     size_t row_bytes);
#define PAIRS_ENTRY(kind) [kind] = pairs_##kind,
#define ROWS_ENTRY(kind) [kind] = rows_##kind,
static pairs_fn *const pairs_fns[SV_CODES_KINDS] = {KINDS(PAIRS_ENTRY)};

void sv_codes_expand_avx512(const struct sv_codes *c, const uint8_t *unit, void *to,
                            size_t row_bytes)
{
    static rows_fn *const rows_fns[SV_CODES_KINDS] = {KINDS(ROWS_ENTRY)};
    for (int32_t k0 = 0; k0 < c->q.cols; k0 += SV_CODES_CHUNK) {
        const int32_t n = steps_at(c, k0);
        if (c->order == SV_WCOMP_PAIRS)
            pairs_fns[c->kind](c, &unit, n, (uint8_t *)to + (size_t)k0 * UNIT * 2);
        else
            rows_fns[c->kind](c, &unit, n, (uint8_t *)to + (size_t)k0 * 2, row_bytes);
    }
}

/* ---------------------------------------------------------------- few rows */

struct tile {
    const struct sv_gemm_span *s;
    const struct sv_codes *c;
    const int32_t *x; /* the first row's pairs */
    int32_t cols;     /* from one pair of k to the next */
    int32_t rows;     /* of input */
    int32_t n0;       /* first weight row of the span's part */
};

/* nu units times nr rows, expanded in registers: several units keep more sums in flight. */
UNCHECKED MUST_INLINE void tile(const enum sv_codes_kind kind, const int nu, const int nr,
                                const struct tile *t)
{
    const struct sv_codes *c = t->c;
    const struct constants k = constants_of(c);
    const int32_t cols = t->cols, group = c->group, size = step_bytes(kind);
    const int32_t *x = t->x;
    const size_t unit = c->unit_bytes;
    const uint8_t *at = sv_codes_unit(c, t->s->item->w, t->n0 / UNIT);
    const uint8_t *const end = at + unit;
    struct scales s[2];
    struct lanes l[2];
    __m512 sum[8];
#pragma GCC unroll 8
    for (int i = 0; i < nu * nr; i++)
        sum[i] = _mm512_setzero_ps();
    for (int32_t k0 = 0; k0 < c->q.cols; k0 += SV_CODES_CHUNK) {
        const int32_t n = steps_at(c, k0);
        /* after the unit's end, the next one of its side */
        const uintptr_t ahead = AHEAD + (end - at <= AHEAD ? (uintptr_t)(nu - 1) * unit : 0);
#pragma GCC unroll 2
        for (int u = 0; u < nu; u++) {
            ask(at + u * unit, c->head_bytes, ahead);
            scales_of(&s[u], c, at + u * unit, n);
        }
        at += c->head_bytes;
        for (int32_t i = 0; i < n; i++, at += size, x += PAIRS * cols) {
#pragma GCC unroll 2
            for (int u = 0; u < nu; u++) {
                ask(at + u * unit, size, ahead);
                lanes_of(kind, &l[u], &k, &s[u], i * SV_CODES_STEP / group);
            }
#pragma GCC unroll 16
            for (int p = 0; p < PAIRS; p++) {
                if (p == PAIRS / 2 && group == SV_CODES_STEP / 2)
                    for (int u = 0; u < nu; u++)
                        lanes_of(kind, &l[u], &k, &s[u], 2 * i + 1);
#pragma GCC unroll 2
                for (int u = 0; u < nu; u++) {
                    const __m512i w = pair_of(kind, &k, &l[u], at + u * unit, p);
#pragma GCC unroll 8
                    for (int r = 0; r < nr; r++)
                        sum[r * nu + u] =
                            _mm512_dpbf16_ps(sum[r * nu + u], (__m512bh)w,
                                             (__m512bh)_mm512_set1_epi32(x[p * cols + r]));
                }
            }
        }
    }
    __m512 done[8];
#pragma GCC unroll 8
    for (int i = 0; i < nu * nr; i++)
        done[i] = sum[i];
    for (int32_t r = 0; r < t->rows; r++)
        for (int u = 0; u < nu; u++)
            put(t->s, t->n0 + u * UNIT, t->s->call->m0 + r, 1, &done[r * nu + u], 1);
}

typedef void tile_fn(const struct tile *t);
#define TILE(kind, nu, nr)                                                                         \
    UNCHECKED static void tile_##kind##_##nu##x##nr(const struct tile *t)                          \
    {                                                                                              \
        tile(kind, nu, nr, t);                                                                     \
    }
#define TILE_PAIR(kind, nr) TILE(kind, 1, nr) TILE(kind, 2, nr)
#define TILES(kind) TILE_PAIR(kind, 1) TILE_PAIR(kind, 2) TILE_PAIR(kind, 4) TILE(kind, 1, 8)
KINDS(TILES)
#define TILE_ENTRY(kind)                                                                           \
    [kind] = {{tile_##kind##_1x1, tile_##kind##_1x2, tile_##kind##_1x4, tile_##kind##_1x8},        \
              {tile_##kind##_2x1, tile_##kind##_2x2, tile_##kind##_2x4}},

/* Rows of a tile; missing ones are zeros in the packed input. */
enum { N_HEIGHTS = 4 };
static const uint8_t heights[N_HEIGHTS] = {1, 2, 4, 8};
enum { TWO_UNITS = 3 }; /* heights with two units in parallel */

void sv_gemm_codes_few(const struct sv_gemm_span *s)
{
    static tile_fn *const fns[SV_CODES_KINDS][2][N_HEIGHTS] = {KINDS(TILE_ENTRY)};
    const int32_t rows = s->call->m1 - s->call->m0;
    int h = 0;
    SV_REQUIRE(rows > 0 && rows <= SV_CODES_FEW);
    while (heights[h] < rows)
        h++;
    struct tile t = {.s = s,
                     .c = s->item->codes,
                     .x = s->xp,
                     .cols = sv_gemm_tile_cols(rows),
                     .rows = rows,
                     .n0 = s->n0};
    for (int32_t nu; t.n0 < s->n1; t.n0 += nu * UNIT) {
        nu = h < TWO_UNITS && s->n1 - t.n0 > UNIT ? 2 : 1;
        fns[t.c->kind][nu - 1][h](&t);
    }
}
