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
 * Two units by BLOCK_K are expanded to bytes, and all blocks of 16 rows pass over them while they
 * are in the level-1 cache. For a tile of 16 x 16 sums the multiplier needs 16 cycles, scales
 * 26: so scales of one stage are added up while the next one is multiplied.
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
#define STEPS_OF_STAGE 2
#define HALF 8 /* rows whose scales are added up at a time */
#define BLOCKS (SV_GEMM_ROWS / 16)
#ifndef BLOCK_CHUNKS
#define BLOCK_CHUNKS 1
#endif
#define BLOCK_K (BLOCK_CHUNKS * SV_CODES_CHUNK)
#define RING 3

/* Two units by BLOCK_K, expanded. */
struct block {
    uint8_t codes[2][BLOCK_K * UNIT];
    float scales[2][BLOCK_CHUNKS * 2 * SV_CODES_SCALES * UNIT];
};

/* In a thread's memory for sums. Of two units, and of two blocks of rows by two units. */
struct scratch {
    float acc[2][BLOCKS][16 * UNIT];
    struct block block[RING]; /* whose scales and codes are needed, and the one that follows */
    int32_t sum[2][STEPS_OF_STAGE][4][16 * UNIT];
    float part[4][16 * UNIT]; /* of a group of 128 in more than one stage */
};
_Static_assert(sizeof(struct scratch) <=
                   (size_t)SV_GEMM_GROUP * SV_GEMM_ROWS * UNIT * sizeof(float),
               "sums have room for it");

struct job {
    const struct sv_gemm_span *s;
    const struct sv_codes *c;
    struct scratch *to;
    int32_t k, rows, row_blocks;
    size_t block_words; /* of packed input */
};

/* A part of a block's k, of two blocks of rows. */
struct stage {
    int32_t n0, k0, k, row_block;
    int block; /* which of RING, */
    int slot;  /* and of two places for sums */
};

/* GCC's tile loads do not tell the compiler that they read memory. */
static inline void stored_before_tiles(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

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

UNCHECKED MUST_INLINE int32_t stage_k(const int32_t each)
{
    return STEPS_OF_STAGE * tile_k(each);
}

UNCHECKED MUST_INLINE const int32_t *block_of(const struct job *j, int32_t block)
{
    return (const int32_t *)j->s->xp + (size_t)block * j->block_words;
}

UNCHECKED MUST_INLINE bool has_two(const struct job *j, struct stage t)
{
    return t.row_block + 1 < j->row_blocks;
}

/* Steps of multiplying: a tile of k each. */
UNCHECKED MUST_INLINE int steps_of(const struct job *j, const int32_t each, struct stage t)
{
    return j->k - t.k <= tile_k(each) ? 1 : 2;
}

/* Sums of a stage: of groups of 128 all steps are one. */
UNCHECKED MUST_INLINE int sums_of(const struct job *j, const int32_t each, struct stage t)
{
    return each > 64 ? 1 : steps_of(j, each, t);
}

UNCHECKED MUST_INLINE void load(const struct job *j, const int32_t each, struct stage t, int step)
{
    const int32_t k = t.k + step * tile_k(each), g = k / GROUP * GROUP,
                  len = j->k - g < GROUP ? j->k - g : GROUP;
    const int8_t *x = (const int8_t *)block_of(j, t.row_block) + (size_t)g * 16 + (k - g);
    const struct block *b = &j->to->block[t.block];
    _tile_loadd(4, x, len);
    _tile_loadd(6, b->codes[0] + (k - t.k0) * UNIT, 64);
    _tile_loadd(7, b->codes[1] + (k - t.k0) * UNIT, 64);
    if (has_two(j, t))
        _tile_loadd(5, x + j->block_words * 4, len);
}

UNCHECKED MUST_INLINE void multiply(bool two, const bool begins)
{
    if (begins) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    if (two) {
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
}

UNCHECKED MUST_INLINE void store(bool two, int32_t (*to)[16 * UNIT])
{
    _tile_stored(0, to[0], 64);
    _tile_stored(1, to[1], 64);
    if (two) {
        _tile_stored(2, to[2], 64);
        _tile_stored(3, to[3], 64);
    }
}

/* Sixteen numbers, or zeros. */
UNCHECKED MUST_INLINE vf load_or_zero(bool there, const float *p)
{
    return _mm512_maskz_loadu_ps((__mmask16)(there ? 0xffff : 0), p);
}

/* Scales times sums of HALF rows from r0 on, of the stage's first block of rows or its second. */
UNCHECKED MUST_INLINE void scale(const struct job *j, const int32_t each, const struct stage *t,
                                 int second, int r0)
{
    struct scratch *to = j->to;
    const struct block *b = &to->block[t->block];
    const int32_t k1 = t->k + stage_k(each), n_scales = j->c->n_scales;
    const int n = sums_of(j, each, *t), at = second * 2;
    const int wide = each == GROUP && j->c->group > GROUP; /* one scale a chunk */
    const float *x = (const float *)block_of(j, t->row_block + second) + r0;
    const float *sums = x + (sums_at(j->k, length_of(each)) + (size_t)(t->k / each)) * 16;
    const float *own = x + ((size_t)j->k / 4 + (size_t)t->k / GROUP) * 16;
    const size_t chunk = (size_t)((t->k - t->k0) / SV_CODES_CHUNK) * 2 * (size_t)n_scales,
                 first = (size_t)(t->k % SV_CODES_CHUNK) / (size_t)each;
    vf part[2][HALF];
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++)
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++)
            part[u][r] = each >= 64
                             ? f_set(0)
                             : load_or_zero(t->k % GROUP, to->part[at + u] + (r0 + r) * UNIT);
#pragma GCC unroll 2
    for (int i = 0; i < STEPS_OF_STAGE; i++) {
        if (i >= n)
            break;
        const size_t e = (chunk + ((first + (size_t)i) >> wide)) * UNIT;
        vf by[2], minus[2];
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            by[u] = f_load(b->scales[u] + e);
            minus[u] = f_load(b->scales[u] + e + n_scales * UNIT);
        }
#pragma GCC unroll 8
        for (int r = 0; r < HALF; r++) {
            const vf s = f_set(sums[i * 16 + r]);
#pragma GCC unroll 2
            for (int u = 0; u < 2; u++) {
                const int32_t *sum = to->sum[t->slot][i][at + u] + (r0 + r) * UNIT;
                part[u][r] = f_fma(by[u], f_of(_mm512_load_si512(sum)), part[u][r]);
                part[u][r] = f_fma(minus[u], s, part[u][r]);
            }
        }
    }
    if (each < 64 && k1 < j->k && k1 % GROUP) {
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++)
#pragma GCC unroll 8
            for (int r = 0; r < HALF; r++)
                f_store(to->part[at + u] + (r0 + r) * UNIT, part[u][r]);
        return;
    }
#pragma GCC unroll 8
    for (int r = 0; r < HALF; r++) {
        const vf s = f_set(own[r]);
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++) {
            float *acc = to->acc[u][t->row_block + second] + (r0 + r) * UNIT;
            f_store(acc, f_fma(s, part[u][r], load_or_zero(t->k >= GROUP, acc)));
        }
    }
}

/* The end of k. */
UNCHECKED MUST_INLINE void put_rows(const struct job *j, struct stage t)
{
    for (int32_t block = t.row_block; block < t.row_block + 2 && block < j->row_blocks; block++) {
        const int32_t m = block * 16, rows = j->rows - m < 16 ? j->rows - m : 16;
        for (int u = 0; u < 2 && t.n0 + u * UNIT < j->s->n1; u++)
            emit(j->s, t.n0 + u * UNIT, j->s->call->m0 + m, rows,
                 (const vf *)(const void *)j->to->acc[u][block]);
    }
}

/* Asks for the lines of y that two blocks of rows are to be written to: a page each, which nothing
 * else would foresee. */
UNCHECKED MUST_INLINE void ask_y(const struct job *j, struct stage t)
{
    const struct sv_gemm_call *c = j->s->call;
    const int32_t r0 = t.row_block * 16;
    for (int32_t r = r0; r < r0 + 32 && r < j->rows && c->y; r++)
#pragma GCC unroll 2
        for (int u = 0; u < 2; u++)
            __builtin_prefetch(c->y + ((c->m0 + r) * c->ldy + j->s->item->col0 + t.n0 + u * UNIT),
                               1, 3);
}

/* ---------------------------------------------------------------- a span */

/* Where blocks come from: codes of two units, of a single one twice. */
struct source {
    const uint8_t *at[2];
    int32_t n0, k0;
    int block;
};

UNCHECKED MUST_INLINE void open_units(const struct job *j, struct source *from)
{
    for (int u = 0; u < 2; u++)
        from->at[u] = sv_codes_unit(j->c, j->s->item->w,
                                    from->n0 / UNIT + (from->n0 + u * UNIT < j->s->n1 ? u : 0));
}

/* The next block of the span, if there is one. */
UNCHECKED static void expand(const struct job *j, struct source *from)
{
    const struct sv_codes *c = j->c;
    if (from->n0 >= j->s->n1)
        return;
    const int32_t k1 = j->k - from->k0 < BLOCK_K ? j->k : from->k0 + BLOCK_K;
    for (int u = 0; u < 2; u++) {
        uint8_t *code = j->to->block[from->block].codes[u];
        float *scales = j->to->block[from->block].scales[u];
        for (int32_t k = from->k0; k < k1; k += SV_CODES_CHUNK) {
            const int n = steps_at(c, k);
            from->at[u] = expand_chunk(c, from->at[u], n, code, scales);
            code += n * SV_CODES_STEP * UNIT;
            scales += 2 * c->n_scales * UNIT;
        }
        if ((k1 - from->k0) % 64) /* a tile may reach so far, its input something else's */
            memset(code, 0, SV_CODES_STEP * UNIT);
    }
    stored_before_tiles(j->to);
    from->block = from->block == RING - 1 ? 0 : from->block + 1;
    from->k0 = k1;
    if (k1 == j->k) {
        from->k0 = 0;
        from->n0 += 2 * UNIT;
        if (from->n0 < j->s->n1)
            open_units(j, from);
    }
}

/* Parts of a block, blocks of rows, blocks of k, units. */
UNCHECKED MUST_INLINE struct stage after(const struct job *j, const int32_t each, struct stage t)
{
    t.k += stage_k(each);
    t.slot ^= 1;
    if (t.k < j->k && t.k < t.k0 + BLOCK_K)
        return t;
    t.row_block += 2;
    if (t.row_block >= j->row_blocks) {
        t.row_block = 0;
        t.k0 += BLOCK_K;
        t.block = t.block == RING - 1 ? 0 : t.block + 1;
        if (t.k0 >= j->k) {
            t.k0 = 0;
            t.n0 += 2 * UNIT;
        }
    }
    t.k = t.k0;
    return t;
}

typedef void scale_fn(const struct job *j, const struct stage *t, int second, int r0);

/* A part of the scales of a stage: four of two blocks of rows, two of one. */
UNCHECKED MUST_INLINE void scale_part(const struct job *j, scale_fn *scales, const struct stage *t,
                                      const int step, const int half)
{
    const bool two = has_two(j, *t);
    const int second = two ? step : 0, r0 = (two ? half : step) * HALF;
    if ((two || !half) && (t->row_block + second) * 16 + r0 < j->rows)
        scales(j, t, second, r0);
}

/* A tile is zeroed, added to, stored and read again: what waits for one of these has scales of the
 * stage before in between, and operands are loaded a step ahead. While the last rows pass over a
 * block, the one that follows is expanded. */
UNCHECKED MUST_INLINE void pass(const struct job *j, const int32_t each, scale_fn *scales)
{
    const int32_t n1 = j->s->n1;
    struct source from = {.n0 = j->s->n0};
    struct stage now = {.n0 = j->s->n0}, next = now;
    open_units(j, &from);
    expand(j, &from);
    load(j, each, next, 0);
    for (bool first = true; now.n0 < n1; first = false) {
        const struct stage soon = after(j, each, next);
        const int steps = next.n0 < n1 ? steps_of(j, each, next) : 0;
        const bool two = has_two(j, next);
        if (steps && next.k == next.k0 && next.row_block + 2 >= j->row_blocks)
            expand(j, &from);
        if (steps && next.k == next.k0 && next.k0 + BLOCK_K >= j->k)
            ask_y(j, next);
#pragma GCC unroll 2
        for (int i = 0; i < STEPS_OF_STAGE; i++) {
            if (i < steps) {
                multiply(two, each <= 64 || i == 0);
                if (i + 1 < steps)
                    load(j, each, next, i + 1);
                else if (soon.n0 < n1)
                    load(j, each, soon, 0);
            }
            if (!first)
                scale_part(j, scales, &now, i, 0);
            if (i < steps && (each <= 64 || i + 1 == steps))
                store(two, j->to->sum[next.slot][each <= 64 ? i : 0]);
            if (!first)
                scale_part(j, scales, &now, i, 1);
        }
        if (!first && now.k + stage_k(each) >= j->k)
            put_rows(j, now);
        now = next;
        next = soon;
    }
}

typedef void pass_fn(const struct job *j);
#define PASS(each)                                                                                 \
    UNCHECKED static __attribute__((noinline)) void scale_##each(                                  \
        const struct job *j, const struct stage *t, int second, int r0)                            \
    {                                                                                              \
        scale(j, each, t, second, r0);                                                             \
    }                                                                                              \
    UNCHECKED static void pass_##each(const struct job *j)                                         \
    {                                                                                              \
        pass(j, each, scale_##each);                                                               \
    }
PASS(16)
PASS(32)
PASS(64)
PASS(128)

static void run_tiles(const struct sv_gemm_span *s)
{
    static pass_fn *const fns[] = {pass_16, pass_32, pass_64, pass_128};
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0, each = each_of(s->item->codes);
    const struct job j = {.s = s,
                          .c = s->item->codes,
                          .to = (struct scratch *)(void *)s->thread->sums,
                          .k = c->k,
                          .rows = rows,
                          .row_blocks = (rows + 15) / 16,
                          .block_words = sums_at(c->k, LENGTHS) * 16};
    configure(each);
    fns[length_of(each)](&j);
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
