/*
 * gemm_wcomp_avx512.c - compressed bf16 weights (wcomp.h): packing, expanding to the exact words,
 * and the products of few rows, which expand in registers.
 *
 * Called by weights.c at load, and after cpuid said yes to AVX512-VBMI and VBMI2 by
 * gemm_bf16_avx512.c and gemm_amx.c. A product adds in the order of gemm_bf16_avx512.c: the same
 * bits. Must not: read past the line after a unit's last.
 */
#if !defined(__clang__)
#pragma GCC target(                                                                                \
    "avx512vbmi,avx512vbmi2") /* the Makefile's flags name what all *_avx512.c may use */
#endif
#include "backend/cpu/wcomp.h"
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vbmi,avx512vbmi2"))), apply_to = function)
#endif

#define KSTEP 32
#define UNIT SV_GEMM_UNIT
#define LINE SV_WCOMP_LINE
#define MUST_INLINE static inline __attribute__((always_inline))

#include "backend/cpu/put_avx512.h"
#include "backend/cpu/wcomp_expand.h"
#include "backend/cpu/transpose_avx512.h"

/* ---------------------------------------------------------------- packing */

static int32_t rows_of(int32_t n, int32_t u)
{
    return n - u * UNIT < UNIT ? n - u * UNIT : UNIT;
}

/* The window that covers most of a sample of the weights. */
static uint32_t choose_window(const uint16_t *w, size_t n)
{
    uint32_t seen[2][256], in = 0, best = 0, first = 0;
    memset(seen, 0, sizeof seen);
    const size_t stride = n < 4096 ? 1 : 7;
    for (size_t i = 0; i + stride < n; i += 2 * stride) {
        seen[0][w[i] >> 7 & 255]++;
        seen[1][w[i + stride] >> 7 & 255]++;
    }
    for (uint32_t e = 0; e < 256; e++) {
        in += seen[0][e] + seen[1][e];
        if (e >= SV_WCOMP_WINDOW)
            in -= seen[0][e - SV_WCOMP_WINDOW] + seen[1][e - SV_WCOMP_WINDOW];
        if (in > best && e >= SV_WCOMP_WINDOW - 1) {
            best = in;
            first = e - (SV_WCOMP_WINDOW - 1);
        }
    }
    return first;
}

struct sv_wcomp_unit sv_wcomp_measure(const uint16_t *w, int32_t n, int32_t k, int32_t u)
{
    const size_t real = (size_t)rows_of(n, u) * (size_t)k;
    const size_t all = (size_t)sv_wcomp_blocks(k) * KSTEP * UNIT;
    const uint16_t *p = w + (size_t)u * UNIT * (size_t)k;
    const uint32_t first = choose_window(p, real);
    const __m512i exponent = _mm512_set1_epi16(0x7f80),
                  low = _mm512_set1_epi16((short)(first << 7));
    const __m512i width = _mm512_set1_epi16(SV_WCOMP_WINDOW << 7);
    size_t in = first ? 0 : all - real; /* missing rows are zeros */
    for (size_t i = 0; i < real; i += 32) {
        const __mmask32 mask = real - i < 32 ? (__mmask32)((1u << (real - i)) - 1) : ~(__mmask32)0;
        const __m512i e = _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, p + i), exponent);
        in += (size_t)__builtin_popcount(
            _mm512_mask_cmplt_epu16_mask(mask, _mm512_sub_epi16(e, low), width));
    }
    const size_t lines =
        1 + (all - in + LINE - 1) / LINE + all / (KSTEP * UNIT) * (SV_WCOMP_BLOCK / LINE);
    return (struct sv_wcomp_unit){.n_lines = (uint32_t)lines, .first = first};
}

/* 16 rows by 32 of k as sixteen vectors in the order of the matrix, padded with zeros. */
MUST_INLINE void load_block(__m512i v[16], const uint16_t *w, int32_t k, int32_t k0, int32_t rows,
                            bool by_pairs)
{
    const int32_t left = k - k0;
    const __mmask32 mask = left < KSTEP ? (__mmask32)((1ull << left) - 1) : ~(__mmask32)0;
    for (int r = 0; r < UNIT; r++)
        v[r] = r < rows ? _mm512_maskz_loadu_epi16(mask, w + (size_t)r * (size_t)k + k0)
                        : _mm512_setzero_si512();
    if (by_pairs)
        transpose16(v);
}

/* One group: its bytes to `to`; returns its codes and appends its escapes. */
MUST_INLINE __m512i pack_group(uint8_t *to, __m512i lo, __m512i hi, __m512i first,
                               uint8_t **escapes)
{
    const __m512i low_byte = _mm512_set1_epi16(255);
    lo = _mm512_shldi_epi16(lo, lo, 1);
    hi = _mm512_shldi_epi16(hi, hi, 1);
    const __m512i e = _mm512_packus_epi16(_mm512_srli_epi16(lo, 8), _mm512_srli_epi16(hi, 8));
    _mm512_storeu_si512(
        to, _mm512_packus_epi16(_mm512_and_si512(lo, low_byte), _mm512_and_si512(hi, low_byte)));
    const __m512i c = _mm512_sub_epi8(e, first);
    const __mmask64 in = _mm512_cmp_epu8_mask(c, _mm512_set1_epi8(SV_WCOMP_WINDOW), _MM_CMPINT_LT);
    _mm512_storeu_si512(*escapes, _mm512_maskz_compress_epi8(~in, e));
    *escapes += __builtin_popcountll(~in);
    return _mm512_maskz_add_epi8(in, c, _mm512_set1_epi8(1));
}

MUST_INLINE __m512i or3(__m512i a, __m512i b, __m512i c)
{
    return _mm512_ternarylogic_epi64(a, b, c, 0xfe);
}

void sv_wcomp_pack(uint8_t *to, struct sv_wcomp_unit as, const uint16_t *w, int32_t n, int32_t k,
                   int32_t u, enum sv_wcomp_order order)
{
    const __m512i first = _mm512_set1_epi8((char)as.first);
    const __m512i two = _mm512_set1_epi8(3), four = _mm512_set1_epi8(4);
    const int32_t rows = rows_of(n, u), blocks = sv_wcomp_blocks(k);
    uint8_t *block = to + (size_t)as.n_lines * LINE - (size_t)blocks * SV_WCOMP_BLOCK;
    uint8_t *escapes = to + LINE;
    for (int i = 0; i < LINE; i++)
        to[i] = (uint8_t)(i % 8 ? as.first + (uint32_t)(i % 8) - 1 : 0);
    w += (size_t)u * UNIT * (size_t)k;
    for (int32_t b = 0; b < blocks; b++, block += SV_WCOMP_BLOCK) {
        uint8_t escaped[KSTEP * UNIT + LINE], *end = escaped;
        __m512i v[16], c[8];
        load_block(v, w, k, b * KSTEP, rows, order == SV_WCOMP_PAIRS);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            c[i] = pack_group(block + i * LINE, v[2 * i], v[2 * i + 1], first, &end);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
            _mm512_storeu_si512(block + SV_WCOMP_CODES + i * LINE,
                                or3(c[2 * i], _mm512_slli_epi16(c[2 * i + 1], 3),
                                    _mm512_slli_epi16(_mm512_and_si512(c[6 + i], two), 6)));
        const __m512i top = _mm512_or_si512(_mm512_slli_epi16(_mm512_and_si512(c[6], four), 4),
                                            _mm512_slli_epi16(_mm512_and_si512(c[7], four), 5));
        _mm512_storeu_si512(block + SV_WCOMP_CODES + 2 * LINE,
                            or3(c[4], _mm512_slli_epi16(c[5], 3), top));
        memcpy(escapes, escaped, (size_t)(end - escaped));
        escapes += end - escaped;
    }
}

/* ---------------------------------------------------------------- expanding */

UNCHECKED void sv_wcomp_expand(struct sv_wcomp_walk *at, int32_t n_blocks, void *to)
{
    struct sv_wcomp_walk w = *at;
    for (int32_t b = 0; b < n_blocks; b++)
        expand_block(&w, (uint8_t *)to + (size_t)b * KSTEP * UNIT * 2, SV_WCOMP_AHEAD, 0);
    *at = w;
}

/* ---------------------------------------------------------------- few rows */

/* Some units times all rows of input. */
struct tile {
    const struct sv_gemm_span *s;
    const int32_t *x; /* the first row's pairs */
    int32_t cols;     /* from one pair of k to the next */
    int32_t pairs;
    int32_t n0; /* first weight row of the span's part */
};

UNCHECKED MUST_INLINE void tile(const struct tile *t, const int nu, const int nr)
{
    const struct sv_gemm_call *c = t->s->call;
    const int32_t *x = t->x;
    const int32_t cols = t->cols;
    struct sv_wcomp_walk at[2];
    __m512 sum[16];
#pragma GCC unroll 2
    for (int u = 0; u < nu; u++) {
        at[u] = sv_wcomp_at(t->s->item->w, t->n0 / UNIT + u, c->k);
        sv_wcomp_ask(&at[u], SV_WCOMP_AHEAD);
        if (nu > 1 && t->n0 + 2 * nu * UNIT <= t->s->n1)
            at[u].jump = sv_wcomp_end(t->s->item->w, t->n0 / UNIT + u + nu - 1) - at[u].end;
    }
#pragma GCC unroll 16
    for (int i = 0; i < nu * nr; i++)
        sum[i] = _mm512_setzero_ps();
    int32_t left = t->pairs;
    for (; left >= KSTEP / 2; left -= KSTEP / 2) {
        uintptr_t ahead[2];
#pragma GCC unroll 2
        for (int u = 0; u < nu; u++)
            ahead[u] = sv_wcomp_ahead(&at[u], SV_WCOMP_AHEAD);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++, x += 2 * cols)
#pragma GCC unroll 2
            for (int u = 0; u < nu; u++) {
                __m512i lo, hi;
                sv_wcomp_ask_line(at[u].block + i * LINE, ahead[u]);
                if (i < 3)
                    sv_wcomp_ask_line(at[u].block + SV_WCOMP_CODES + i * LINE, ahead[u]);
                expand_group(&at[u], i, &lo, &hi);
#pragma GCC unroll 16
                for (int r = 0; r < nr; r++)
                    sum[r * nu + u] = _mm512_dpbf16_ps(sum[r * nu + u], (__m512bh)lo,
                                                       (__m512bh)_mm512_set1_epi32(x[r]));
#pragma GCC unroll 16
                for (int r = 0; r < nr; r++)
                    sum[r * nu + u] = _mm512_dpbf16_ps(sum[r * nu + u], (__m512bh)hi,
                                                       (__m512bh)_mm512_set1_epi32(x[cols + r]));
            }
#pragma GCC unroll 2
        for (int u = 0; u < nu; u++)
            at[u].block += SV_WCOMP_BLOCK;
    }
    if (left > 0) {
        _Alignas(64) uint8_t last[2][KSTEP * UNIT * 2];
#pragma GCC unroll 2
        for (int u = 0; u < nu; u++)
            sv_wcomp_expand(&at[u], 1, last[u]);
        for (int32_t p = 0; p < left; p++, x += cols)
#pragma GCC unroll 16
            for (int i = 0; i < nu * nr; i++)
                sum[i] =
                    _mm512_dpbf16_ps(sum[i], (__m512bh)_mm512_load_si512(last[i % nu] + p * LINE),
                                     (__m512bh)_mm512_set1_epi32(x[i / nu]));
    }
#pragma GCC unroll 2
    for (int u = 0; u < nu; u++)
        put(t->s, t->n0 + u * UNIT, c->m0, nr, sum + u, nu);
}

#include "backend/cpu/tiles_avx512.h"

#define TILES_OF_TWO_UNITS(f) f(2, 1) f(2, 2) f(2, 3)
TILES_OF_TWO_UNITS(TILE)

void sv_gemm_wcomp_few(const struct sv_gemm_span *s)
{
    static tile_fn *const one[17] = {TILES_OF_ONE_UNIT(ENTRY)};
    static tile_fn *const two[4] = {TILES_OF_TWO_UNITS(ENTRY)};
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0;
    SV_REQUIRE(rows > 0 && rows <= 16);
    struct tile t = {.s = s, .x = s->xp, .cols = sv_gemm_tile_cols(rows), .pairs = (c->k + 1) / 2};
    int32_t step;
    for (t.n0 = s->n0; t.n0 < s->n1; t.n0 += step) {
        const bool pair = rows < 4 && s->n1 - t.n0 > UNIT;
        step = pair ? 2 * UNIT : UNIT;
        (pair ? two : one)[rows](&t);
    }
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
