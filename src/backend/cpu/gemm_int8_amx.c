/*
 * gemm_int8_amx.c - products with activations in int8 (docs/formats.md, "Activations in 8 bits") on
 * AMX tiles, from INT8_AMX_FROM rows on; of fewer, those of gemm_int8_avx512.c.
 *
 * Entered through sv_gemm_kern_int8_amx by gemm.c after cpuid said yes. Input rows are the A
 * operand, signed, codes of 16 weight rows B, unsigned; the result is [input row][weight row]. A
 * tile is the sum over weights that share a scale, at most 64 bytes of k at a time. Such sums are
 * integers; then gemm_int8.h's roundings follow in the same order, so that bits are the same.
 * Groups of 16 take less time with VNNI. Must not: leave tiles configured after a call.
 *
 * Two units by BLOCK_K are expanded to bytes, and all blocks of 16 rows pass over them: first all
 * tiles of a block of rows, then all scales, since tiles and vectors slow each other down.
 */
#if !defined(__clang__)
#pragma GCC target("amx-int8,prfchw") /* the Makefile's flags name what all *_amx.c may use */
#endif
#include "backend/cpu/gemm.h"

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-int8,prfchw"))), apply_to = function)
#endif

#define INT8_ROWS 1
#include "backend/cpu/amx.h"
#include "backend/cpu/int8_avx512.h"
#include "backend/cpu/gemm_int8_input.h"
#include "backend/cpu/gemm_int8_codes.h"

#ifndef INT8_AMX_FROM
#define INT8_AMX_FROM 17 /* rows */
#endif
#define SHORTEST 32 /* of a group */
#define HALF 8      /* rows whose scales are added up at a time */
#define ROW_BLOCKS (SV_GEMM_ROWS / 16)
#define BLOCK_K SV_CODES_CHUNK

/* Of two units, in a thread's memory for sums. */
struct scratch {
    float acc[2][ROW_BLOCKS][16 * UNIT];
    uint8_t codes[2][BLOCK_K * UNIT]; /* of a block of k */
    float scales[2][2 * SV_CODES_SCALES * UNIT];
    int32_t sum[BLOCK_K / SHORTEST][2][16 * UNIT]; /* and of a block of rows */
};
_Static_assert(sizeof(struct scratch) <=
                   (size_t)SV_GEMM_GROUP * SV_GEMM_ROWS * UNIT * sizeof(float),
               "sums have room for it");

struct job {
    const struct sv_gemm_span *s;
    const struct sv_codes *c;
    struct scratch *to;
    int32_t n0, k0, k1; /* two units, a block of k */
    int32_t k, rows;    /* all */
    size_t block_words; /* of packed input */
    struct soon *soon;  /* the two units after these */
};

/* k of a tile, and of a sum. */
UNCHECKED MUST_INLINE int32_t tile_k(int32_t each)
{
    return each < 64 ? each : 64;
}

static int32_t each_of(const struct sv_codes *c)
{
    return c->group < GROUP ? c->group : GROUP;
}

/* Tiles 0-3: sums; 4 and 5: input; 6 and 7: codes. */
static void configure(int32_t each)
{
    struct tile_config t = {0};
    const int32_t n = tile_k(each);
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? 16 : n / 4);
        t.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? n : 64);
    }
    configure_tiles(&t);
}

/* ---------------------------------------------------------------- a block of rows */

UNCHECKED MUST_INLINE const int32_t *block_of(const struct job *j, int32_t row_block)
{
    return (const int32_t *)j->s->xp + (size_t)row_block * j->block_words;
}

/* The sum from k on, into sums 0 and 1 or 2 and 3. */
UNCHECKED MUST_INLINE void add_tile(const struct job *j, const int8_t *x, int32_t k, const int at)
{
    const int32_t g = k / GROUP * GROUP, row = j->k - g < GROUP ? j->k - g : GROUP;
    const uint8_t *w0 = j->to->codes[0] + (k - j->k0) * UNIT,
                  *w1 = j->to->codes[1] + (k - j->k0) * UNIT;
    x += (size_t)g * 16 + (k - g);
    if (at == 0) {
        _tile_loadd(4, x, row);
        _tile_loadd(6, w0, 64);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbsud(1, 4, 7);
    } else {
        _tile_loadd(5, x, row);
        _tile_loadd(6, w0, 64);
        _tile_dpbsud(2, 5, 6);
        _tile_loadd(7, w1, 64);
        _tile_dpbsud(3, 5, 7);
    }
}

/* Sums of the block of k by 16 rows. Not mixed with vector code: both would be slower. */
UNCHECKED MUST_INLINE void multiply(const struct job *j, const int32_t each, int32_t row_block)
{
    const int8_t *x = (const int8_t *)block_of(j, row_block);
    int32_t(*to)[2][16 * UNIT] = j->to->sum;
    for (int32_t k = j->k0; k < j->k1; k += 2 * each, to += 2) {
        const bool two = k + each < j->k1;
        _tile_zero(0);
        _tile_zero(1);
        add_tile(j, x, k, 0);
        if (each > 64 && j->k1 - k > 64)
            add_tile(j, x, k + 64, 0);
        if (two) {
            _tile_zero(2);
            _tile_zero(3);
            add_tile(j, x, k + each, 1);
            if (each > 64 && j->k1 - k - each > 64)
                add_tile(j, x, k + each + 64, 1);
        }
        _tile_stored(0, to[0][0], 64);
        _tile_stored(1, to[0][1], 64);
        if (two) {
            _tile_stored(2, to[1][0], 64);
            _tile_stored(3, to[1][1], 64);
        }
    }
}

/* Scales times sums of HALF rows from r0 on, for a group of 128 of k. */
UNCHECKED MUST_INLINE void scale(const struct job *j, const int32_t each, int32_t row_block,
                                 int32_t k, const int r0)
{
    struct scratch *to = j->to;
    const int32_t n_scales = j->c->n_scales, end = j->k1 - k < GROUP ? j->k1 : k + GROUP;
    const int wide = each == GROUP && j->c->group > GROUP; /* one scale a chunk */
    const float *x = (const float *)block_of(j, row_block) + r0;
    const float *sums = x + (sums_at(j->k, length_of(each)) + (size_t)(k / each)) * 16;
    const float *own = x + ((size_t)j->k / 4 + (size_t)k / GROUP) * 16;
    const float *by =
        (const float *)to->scales + ((size_t)(k - j->k0) / (size_t)each >> wide) * UNIT;
    int32_t(*sum)[2][16 * UNIT] = to->sum + (k - j->k0) / each;
    vf part[2][HALF];
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++)
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++)
            part[u][r] = f_set(0);
    for (; k < end; k += each, sum++, sums += 16, by += UNIT) {
        vf b[2], minus[2];
        ask_soon(j->soon);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            const float *at = by + u * (2 * SV_CODES_SCALES * UNIT);
            b[u] = f_load(at);
            minus[u] = f_load(at + n_scales * UNIT);
        }
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++) {
            const vf s = f_set(sums[r]);
#pragma GCC unroll 2
            for (int u = 0; u < 2; u++) {
                const vf whole = f_of(_mm512_load_si512((*sum)[u] + (r0 + r) * UNIT));
                part[u][r] = f_fma(b[u], whole, part[u][r]);
                part[u][r] = f_fma(minus[u], s, part[u][r]);
            }
        }
    }
    const __mmask16 there = (__mmask16)(end > GROUP ? 0xffff : 0);
#pragma GCC unroll 8
    for (int r = 0; r < HALF; r++) {
        const vf s = f_set(own[r]);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            float *acc = to->acc[u][row_block] + (r0 + r) * UNIT;
            f_store(acc, f_fma(s, part[u][r], _mm512_maskz_loadu_ps(there, acc)));
        }
    }
}

/* The end of k. */
UNCHECKED MUST_INLINE void put_rows(const struct job *j, int32_t row_block)
{
    const int32_t m = row_block * 16, rows = j->rows - m < 16 ? j->rows - m : 16;
    for (int u = 0; u < 2 && j->n0 + u * UNIT < j->s->n1; u++)
        emit(j->s, j->n0 + u * UNIT, j->s->call->m0 + m, rows,
             (const vf *)(const void *)j->to->acc[u][row_block]);
}

/* Prefetches the output lines of a block of rows: a page each, which hardware does not predict. */
UNCHECKED MUST_INLINE void ask_y(const struct job *j, int32_t row_block)
{
    const struct sv_gemm_call *c = j->s->call;
    for (int32_t r = row_block * 16; r < row_block * 16 + 16 && r < j->rows && c->y; r++)
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++)
            __builtin_prefetch(c->y + ((c->m0 + r) * c->ldy + j->s->item->col0 + j->n0 + u * UNIT),
                               1, 3);
}

/* All rows pass over the block of k. */
UNCHECKED MUST_INLINE void pass(const struct job *j, const int32_t each)
{
    for (int32_t b = 0; b * 16 < j->rows; b++) {
        if (j->k1 == j->k)
            ask_y(j, b);
        multiply(j, each, b);
        for (int32_t k = j->k0; k < j->k1; k += GROUP) {
            scale(j, each, b, k, 0);
            if (j->rows - b * 16 > HALF)
                scale(j, each, b, k, HALF);
        }
        if (j->k1 == j->k)
            put_rows(j, b);
    }
}

typedef void pass_fn(const struct job *j);
#define PASS(each)                                                                                 \
    UNCHECKED static void pass_##each(const struct job *j)                                         \
    {                                                                                              \
        pass(j, each);                                                                             \
    }
PASS(32)
PASS(64)
PASS(128)

/* ---------------------------------------------------------------- all of a span */

/* The block of k of unit u at `from`, which moves to the next one. */
UNCHECKED static void expand(const struct job *j, int u, const uint8_t **from)
{
    const int n = steps_at(j->c, j->k0);
    *from = expand_chunk(j->c, *from, n, j->n0 == j->s->n0, j->to->codes[u], j->to->scales[u]);
    if (n % 2) /* a tile may reach so far, with input of something else */
        memset(j->to->codes[u] + n * SV_CODES_STEP * UNIT, 0, SV_CODES_STEP * UNIT);
}

static void run_tiles(const struct sv_gemm_span *s)
{
    static pass_fn *const fns[] = {pass_32, pass_64, pass_128};
    const struct sv_gemm_call *c = s->call;
    struct job j = {.s = s,
                    .c = s->item->codes,
                    .to = (struct scratch *)(void *)s->thread->sums,
                    .k = c->k,
                    .rows = c->m1 - c->m0,
                    .block_words = sums_at(c->k, LENGTHS) * 16};
    const int32_t each = each_of(j.c), left = s->n1 - 2 * UNIT;
    struct soon soon;
    j.soon = &soon;
    configure(each);
    for (j.n0 = s->n0; j.n0 < s->n1; j.n0 += 2 * UNIT) {
        const uint8_t *from[2];
        for (int u = 0; u < 2; u++) /* a single one twice */
            from[u] =
                sv_codes_unit(j.c, s->item->w, j.n0 / UNIT + (j.n0 + u * UNIT < s->n1 ? u : 0));
        const size_t more = j.n0 + UNIT < left ? 2 : j.n0 < left ? 1 : 0;
        soon = soon_of((uintptr_t)from[0] + 2 * j.c->unit_bytes, more * j.c->unit_bytes,
                       (j.rows + HALF - 1) / HALF * (int32_t)n_of(j.k, each));
        for (j.k0 = 0; j.k0 < j.k; j.k0 = j.k1) {
            j.k1 = j.k - j.k0 < BLOCK_K ? j.k : j.k0 + BLOCK_K;
            for (int u = 0; u < 2; u++)
                expand(&j, u, &from[u]);
            stored_before_tiles(j.to);
            fns[length_of(each) - length_of(SHORTEST)](&j);
        }
    }
}

/* Whether tiles take less time than VNNI. Parts of a call share their input's form. */
static bool on_tiles(const struct sv_gemm_call *c)
{
    for (int32_t i = 0; i < c->n_parts; i++)
        if (c->item[i].kern->form == SV_GEMM_X_INT8 && c->item[i].codes->group < SHORTEST)
            return false;
    return c->m1 - c->m0 >= INT8_AMX_FROM;
}

static void pack_either(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    (on_tiles(c) ? pack : sv_gemm_kern_int8_avx512()->pack)(c, xp, i, n);
}

static void run_either(const struct sv_gemm_span *s)
{
    (on_tiles(s->call) ? run_tiles : sv_gemm_kern_int8_avx512()->run)(s);
}

const struct sv_gemm_kern *sv_gemm_kern_int8_amx(void)
{
    static const struct sv_gemm_kern kern = {SV_GEMM_X_INT8, pack_either, run_either, NULL,
                                             release_tiles};
    return &kern;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
