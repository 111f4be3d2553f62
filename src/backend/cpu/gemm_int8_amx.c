/*
 * gemm_int8_amx.c - products with activations in int8 (docs/formats.md, "Activations in 8 bits") on
 * AMX tiles, from INT8_AMX_FROM rows on; of fewer, those of gemm_int8_avx512.c.
 *
 * Entered through sv_gemm_kern_int8_amx by gemm.c after cpuid said yes. Input rows are the A
 * operand, signed, codes of 16 weight rows B, unsigned; the result is [input row][weight row]. A
 * tile is the sum over weights that share a scale: at most 64 bytes of k, so of groups of 16 and 32
 * with fewer rows of B. Such sums are whole numbers; what follows is rounded as gemm_int8.h rounds
 * it, in the same order, so that bits are the same. Must not: leave tiles configured after a call.
 *
 * Two units by SV_GEMM_KBLOCK of k are expanded to bytes beside the level-1 cache's input, and all
 * blocks of 16 rows pass over them. Per sum of 16 x 16 the multiplier needs 16 cycles, scales twice
 * that: so a stage's scales are added up while the next one's tiles are multiplied.
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
#include "backend/cpu/int8_avx512.h"
#include "backend/cpu/gemm_int8_input.h"
#include "backend/cpu/gemm_int8_codes.h"

#ifndef INT8_AMX_FROM
#define INT8_AMX_FROM 9
#endif
#define SUMS 4 /* most of a stage and unit */
#define HALF 8 /* rows whose scales are added up at a time */
#ifndef LEAD
#define LEAD 1 /* stages from multiplying to scales */
#endif
#define BLOCKS (SV_GEMM_ROWS / 16)
#define BLOCK_SCALES (SV_GEMM_KBLOCK / SV_CODES_CHUNK * 2 * SV_CODES_SCALES * UNIT)

/* Of two units; in a thread's memory for sums. */
struct scratch {
    float acc[2][BLOCKS][16 * UNIT];
    uint8_t codes[2][SV_GEMM_KBLOCK * UNIT];
    float scales[2][BLOCK_SCALES];
    int32_t sum[LEAD + 1][SUMS][2][16 * UNIT];
    float part[2][16 * UNIT]; /* of a group of 128 in two stages */
};
_Static_assert(sizeof(struct scratch) <=
                   (size_t)SV_GEMM_GROUP * SV_GEMM_ROWS * UNIT * sizeof(float),
               "sums have room for it");

struct job {
    const struct sv_gemm_span *s;
    const struct sv_codes *c;
    struct scratch *to;
    int32_t k, k0, k1; /* all, and the block of k */
    int32_t blocks, rows;
    int32_t n0;
    size_t block_words; /* of packed input */
};

/* A part of the block of k, of one block of rows. */
struct stage {
    int32_t block, k;
    int slot;
};

/* GCC's tile loads do not tell the compiler that they read memory. */
static inline void stored_before_tiles(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

/* k of a tile, and of a sum. */
MUST_INLINE int32_t tile_k(int32_t each)
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
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } t = {.palette = 1};
    const int32_t n = tile_k(each);
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? 16 : n / 4);
        t.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? n : 64);
    }
    stored_before_tiles(&t);
    _tile_loadconfig(&t);
}

static void leave(void)
{
    _tile_release();
}

/* ---------------------------------------------------------------- one stage */

MUST_INLINE int32_t stage_k(const int32_t each)
{
    return each == 16 ? SUMS * 16 : GROUP;
}

MUST_INLINE const int32_t *block_of(const struct job *j, int32_t block)
{
    return (const int32_t *)j->s->xp + (size_t)block * j->block_words;
}

MUST_INLINE int sums_of(const struct job *j, const int32_t each, int32_t k)
{
    const int32_t left = j->k1 - k < stage_k(each) ? j->k1 - k : stage_k(each);
    return (left + each - 1) / each;
}

/* Tiles of input and codes, at `at` of the stage, into sums 0 and 1, or 2 and 3. */
MUST_INLINE void add_tile(const int nu, const int at, const int8_t *x, int32_t row,
                          const uint8_t *const w[2])
{
    if (at == 0) {
        _tile_loadd(4, x, row);
        _tile_loadd(6, w[0], 64);
        _tile_dpbsud(0, 4, 6);
        if (nu > 1) {
            _tile_loadd(7, w[1], 64);
            _tile_dpbsud(1, 4, 7);
        }
    } else {
        _tile_loadd(5, x, row);
        _tile_loadd(6, w[0], 64);
        _tile_dpbsud(2, 5, 6);
        if (nu > 1) {
            _tile_loadd(7, w[1], 64);
            _tile_dpbsud(3, 5, 7);
        }
    }
}

/* Sums `first` and the one that follows, of the stage's n, into tiles. */
MUST_INLINE void multiply(const struct job *j, const int nu, const int32_t each, struct stage t,
                          const int first)
{
    const int n = sums_of(j, each, t.k);
    const int32_t g = t.k / GROUP * GROUP, len = j->k - g < GROUP ? j->k - g : GROUP;
    const int8_t *x = (const int8_t *)block_of(j, t.block) + (size_t)g * 16 + (t.k - g);
    const uint8_t *w[2] = {j->to->codes[0] + (t.k - j->k0) * UNIT,
                           j->to->codes[1] + (t.k - j->k0) * UNIT};
#pragma GCC unroll 2
    for (int i = first; i < first + 2; i++) {
        if (i >= n)
            break;
        if (i == first) {
            _tile_zero(0);
            _tile_zero(1);
        } else {
            _tile_zero(2);
            _tile_zero(3);
        }
        const uint8_t *const at[2] = {w[0] + i * each * UNIT, w[1] + i * each * UNIT};
        add_tile(nu, i - first, x + i * each, len, at);
        if (each > 64 && len > 64) {
            const uint8_t *const more[2] = {at[0] + 64 * UNIT, at[1] + 64 * UNIT};
            add_tile(nu, i - first, x + i * each + 64, len, more);
        }
    }
}

MUST_INLINE void store(const struct job *j, const int nu, const int32_t each, struct stage t,
                       const int first)
{
    const int n = sums_of(j, each, t.k);
    int32_t(*to)[2][16 * UNIT] = j->to->sum[t.slot] + first;
    if (first < n) {
        _tile_stored(0, to[0][0], 64);
        if (nu > 1)
            _tile_stored(1, to[0][1], 64);
    }
    if (first + 1 < n) {
        _tile_stored(2, to[1][0], 64);
        if (nu > 1)
            _tile_stored(3, to[1][1], 64);
    }
}

/* Scales times sums of HALF rows from r0 on. */
UNCHECKED MUST_INLINE void scale(const struct job *j, const int nu, const int32_t each,
                                 struct stage t, const int r0)
{
    const struct sv_codes *c = j->c;
    struct scratch *to = j->to;
    const int n = sums_of(j, each, t.k);
    const float *x = (const float *)block_of(j, t.block);
    const float *sums = x + (sums_at(j->k, length_of(each)) + (size_t)(t.k / each)) * 16 + r0;
    const size_t chunk = (size_t)((t.k - j->k0) / SV_CODES_CHUNK) * 2 * (size_t)c->n_scales * UNIT;
    const int wide = each == GROUP && c->group > GROUP; /* one scale a chunk */
    const bool begins = t.k % GROUP == 0;
    vf part[2][HALF];
#pragma GCC unroll 2
    for (int u = 0; u < nu; u++)
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++)
            part[u][r] = begins ? f_set(0) : f_load(to->part[u] + (r0 + r) * UNIT);
    for (int i = 0; i < n; i++) {
        const int32_t e = ((t.k % SV_CODES_CHUNK + i * each) / each >> wide) * UNIT;
        vf by[2], minus[2];
#pragma GCC unroll 2
        for (int u = 0; u < nu; u++) {
            by[u] = f_load(to->scales[u] + chunk + e);
            minus[u] = f_load(to->scales[u] + chunk + c->n_scales * UNIT + e);
        }
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++) {
            const vf s = f_set(sums[i * 16 + r]);
#pragma GCC unroll 2
            for (int u = 0; u < nu; u++) {
                const vf whole = f_of(_mm512_load_si512(to->sum[t.slot][i][u] + (r0 + r) * UNIT));
                part[u][r] = f_fma(by[u], whole, part[u][r]);
                part[u][r] = f_fma(minus[u], s, part[u][r]);
            }
        }
    }
    const bool last = t.k + stage_k(each) >= j->k,
               ends = last || (t.k + stage_k(each)) % GROUP == 0;
    const float *own = x + ((size_t)j->k / 4 + (size_t)t.k / GROUP) * 16 + r0;
#pragma GCC unroll 2
    for (int u = 0; u < nu; u++) {
        float *acc = to->acc[u][t.block] + r0 * UNIT;
        vf y[HALF];
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++) {
            y[r] =
                f_fma(f_set(own[r]), part[u][r], t.k < GROUP ? f_set(0) : f_load(acc + r * UNIT));
            if (!last)
                f_store((ends ? acc : to->part[u] + r0 * UNIT) + r * UNIT,
                        ends ? y[r] : part[u][r]);
        }
        if (last) {
            const int32_t m = t.block * 16 + r0, left = j->rows - m;
            emit(j->s, j->n0 + u * UNIT, j->s->call->m0 + m, left < HALF ? left : HALF, y);
        }
    }
}

/* Asks for the lines of y that a block of rows is to be written to: a page each, which nothing else
 * would foresee. */
MUST_INLINE void ask_y(const struct job *j, const int nu, int32_t block)
{
    const struct sv_gemm_call *c = j->s->call;
    for (int32_t r = block * 16; r < block * 16 + 16 && r < j->rows && c->y; r++)
#pragma GCC unroll 2
        for (int u = 0; u < nu; u++)
            __builtin_prefetch(c->y + ((c->m0 + r) * c->ldy + j->s->item->col0 + j->n0 + u * UNIT),
                               1, 3);
}

/* ---------------------------------------------------------------- a block of k */

MUST_INLINE struct stage after(const struct job *j, const int32_t each, struct stage t)
{
    t.k += stage_k(each);
    t.slot = t.slot == LEAD ? 0 : t.slot + 1;
    if (t.k >= j->k1) {
        t.k = j->k0;
        t.block++;
    }
    return t;
}

/* All blocks of rows pass over the codes of nu units: stages follow one another, and while one
 * is multiplied scales of one before are added up. */
UNCHECKED MUST_INLINE void pass(const struct job *j, const int nu, const int32_t each)
{
    struct stage next = {.k = j->k0}, now = next;
    for (int i = 0; i < LEAD; i++) {
        if (next.block >= j->blocks)
            break;
#pragma GCC unroll 2
        for (int first = 0; first < SUMS; first += 2) {
            multiply(j, nu, each, next, first);
            store(j, nu, each, next, first);
        }
        next = after(j, each, next);
    }
    for (; now.block < j->blocks; now = after(j, each, now)) {
        const bool more = next.block < j->blocks;
        if (j->k1 == j->k && now.k == j->k0)
            ask_y(j, nu, now.block);
        if (more)
            multiply(j, nu, each, next, 0);
        scale(j, nu, each, now, 0);
        if (more) {
            store(j, nu, each, next, 0);
            multiply(j, nu, each, next, 2);
        }
        if (j->rows - now.block * 16 > HALF)
            scale(j, nu, each, now, HALF);
        if (more)
            store(j, nu, each, next, 2);
        next = after(j, each, next);
    }
}

typedef void pass_fn(const struct job *j);
#define PASS(nu, each)                                                                             \
    UNCHECKED static void pass_##nu##x##each(const struct job *j)                                  \
    {                                                                                              \
        pass(j, nu, each);                                                                         \
    }
#define PASSES(each) PASS(1, each) PASS(2, each)
PASSES(16)
PASSES(32)
PASSES(64)
PASSES(128)
#define ENTRY(each)                                                                                \
    {                                                                                              \
        pass_1x##each, pass_2x##each                                                               \
    }

/* ---------------------------------------------------------------- all of a span */

/* The block of k of unit u: `from` is where it stands, and then the next one. */
UNCHECKED static void expand(const struct job *j, int u, const uint8_t **from)
{
    const struct sv_codes *c = j->c;
    uint8_t *code = j->to->codes[u];
    float *scales = j->to->scales[u];
    for (int32_t k = j->k0; k < j->k1; k += SV_CODES_CHUNK) {
        const int n = steps_at(c, k);
        *from = expand_chunk(c, *from, n, code, scales);
        code += n * SV_CODES_STEP * UNIT;
        scales += 2 * c->n_scales * UNIT;
    }
    if ((j->k1 - j->k0) % 64) /* a tile may reach so far, its input something else's */
        memset(code, 0, SV_CODES_STEP * UNIT);
}

static void run_tiles(const struct sv_gemm_span *s)
{
    static pass_fn *const fns[4][2] = {ENTRY(16), ENTRY(32), ENTRY(64), ENTRY(128)};
    const struct sv_gemm_call *c = s->call;
    const struct sv_codes *codes = s->item->codes;
    const int32_t rows = c->m1 - c->m0, each = each_of(codes);
    struct job j = {.s = s,
                    .c = codes,
                    .to = (struct scratch *)(void *)s->thread->sums,
                    .k = c->k,
                    .blocks = (rows + 15) / 16,
                    .rows = rows,
                    .block_words = sums_at(c->k, LENGTHS) * 16};
    configure(each);
    for (j.n0 = s->n0; j.n0 < s->n1; j.n0 += 2 * UNIT) {
        const int nu = s->n1 - j.n0 > UNIT ? 2 : 1;
        const uint8_t *from[2];
        for (int u = 0; u < nu; u++)
            from[u] = sv_codes_unit(codes, s->item->w, j.n0 / UNIT + u);
        for (j.k0 = 0; j.k0 < j.k; j.k0 = j.k1) {
            j.k1 = j.k - j.k0 < SV_GEMM_KBLOCK ? j.k : j.k0 + SV_GEMM_KBLOCK;
            for (int u = 0; u < nu; u++)
                expand(&j, u, &from[u]);
            stored_before_tiles(j.to);
            fns[length_of(each)][nu - 1](&j);
        }
    }
}

static void pack_either(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    if (c->m1 - c->m0 < INT8_AMX_FROM)
        sv_gemm_kern_int8_avx512()->pack(c, xp, i, n);
    else
        pack(c, xp, i, n);
}

static void run_either(const struct sv_gemm_span *s)
{
    if (s->call->m1 - s->call->m0 < INT8_AMX_FROM)
        sv_gemm_kern_int8_avx512()->run(s);
    else
        run_tiles(s);
}

const struct sv_gemm_kern *sv_gemm_kern_int8_amx(void)
{
    static const struct sv_gemm_kern kern = {"amx int8", SV_GEMM_X_INT8, pack_either,
                                             run_either, NULL,           leave};
    return &kern;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
