/*
 * gemm_amx.c - bf16 x bf16 product kernels on AMX tiles, for every number of rows.
 *
 * Entered through sv_gemm_kern_amx by gemm.c after cpuid said yes and the kernel gave tile state.
 * Weights are AMX's A operand: 16 rows x 32 elements of row-major memory, in place; the packed
 * input is B; the result is a tile of y transposed. One accumulation order for 1 row and for
 * thousands: element (n, m) adds k in steps of 32 by tdpbf16ps, in any tile and block, and partial
 * sums are kept in f32. Must not: read past the last weight, leave tiles configured after a call.
 *
 * Two loops over the same steps. Few rows ("stream") are limited by memory: weights are read once,
 * 16 rows at a time, with sums in tiles. Many rows ("wide") are limited by the multiplier: 32
 * weight rows by SV_GEMM_KBLOCK stay in the level-1 cache while the input, from level 2, passes
 * over them.
 *
 * Compressed weights (wcomp.h) are expanded into tiles beside the level-1 cache's input: some steps
 * of k ahead of the products when rows are few, else in place of the copy.
 */
#if !defined(__clang__)
#pragma GCC target(                                                                                \
    "avx512vbmi,avx512vbmi2,prfchw") /* the Makefile's flags name what all *_amx.c may use */
#endif
#include "backend/cpu/wcomp.h"
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

#define KSTEP 32
#define BLOCK_STEPS (SV_GEMM_KBLOCK / KSTEP)
#define TILE_BYTES 1024
#define MUST_INLINE static inline __attribute__((always_inline))

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vbmi,avx512vbmi2,prfchw"))),             \
                             apply_to = function)
#endif

#include "backend/cpu/amx.h"
#include "backend/cpu/wcomp_expand.h"

/* Address of the next steps of k of one unit's weights: in place, or copied as contiguous tiles. */
struct wsrc {
    const uint8_t *p;
    size_t stride; /* between rows */
    size_t step;   /* between steps of k */
};

static void enter(const struct sv_gemm_call *c)
{
    const int cols = sv_gemm_tile_cols(c->m1 - c->m0);
    struct tile_config t = {0};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = 16;
        t.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? 64 : cols * 4);
    }
    configure_tiles(&t);
}

/* --------------------------------------------------------- weights that cannot be used in place */

/* Rows of weights prefetched before they are copied. */
#define COPY_AHEAD 4

/* Copies `steps` steps of k from `step` on of rows <= 16 weight rows as zero-padded tiles
 * [step][16][32]: the end of k, too few rows, or weights for many rows of input. Along the rows,
 * sequential in memory. */
static void copy_unit(uint8_t *to, const uint16_t *w, int32_t k, int32_t step, int32_t steps,
                      int rows)
{
    for (int r = 0; r < SV_GEMM_UNIT; r++) {
        const uint16_t *p = w + (size_t)r * k + step * KSTEP;
        const uintptr_t soon = (uintptr_t)(p) + (size_t)COPY_AHEAD * k * 2;
        for (int t = 0; t < steps; t++) {
            const int32_t left = k - (step + t) * KSTEP;
            const __mmask32 mask = r >= rows      ? 0
                                   : left < KSTEP ? (__mmask32)((1ull << left) - 1)
                                                  : ~(__mmask32)0;
            _mm_prefetch((const char *)(soon + (size_t)t * 64), _MM_HINT_T0);
            _mm512_store_si512(to + t * TILE_BYTES + r * 64,
                               _mm512_maskz_loadu_epi16(mask, p + t * KSTEP));
        }
    }
    stored_before_tiles(to);
}

/* ---------------------------------------------------------------- tiles by number */

/* Tiles 0-3 hold sums, 4-5 weights, 6-7 input. The instructions encode the tile's number; these
 * select by an argument that is constant after inlining. */
#define EACH_SUM(c, op)                                                                            \
    switch (c) {                                                                                   \
    case 0:                                                                                        \
        op(0);                                                                                     \
        break;                                                                                     \
    case 1:                                                                                        \
        op(1);                                                                                     \
        break;                                                                                     \
    case 2:                                                                                        \
        op(2);                                                                                     \
        break;                                                                                     \
    default:                                                                                       \
        op(3);                                                                                     \
        break;                                                                                     \
    }

MUST_INLINE void sum_zero(const int c){
#define OP(n) _tile_zero(n)
    EACH_SUM(c, OP)
#undef OP
}

MUST_INLINE void sum_load(const int c, const void *p, size_t stride){
#define OP(n) _tile_loadd(n, p, stride)
    EACH_SUM(c, OP)
#undef OP
}

MUST_INLINE void sum_store(const int c, void *p, size_t stride){
#define OP(n) _tile_stored(n, p, stride)
    EACH_SUM(c, OP)
#undef OP
}

/* sum c += weights (tile 4) x input (tile 6 or 7) */
MUST_INLINE void sum_add(const int c, const bool second_input)
{
#define OP6(n) _tile_dpbf16ps(n, 4, 6)
#define OP7(n) _tile_dpbf16ps(n, 4, 7)
    if (second_input)
        EACH_SUM(c, OP7)
    else
        EACH_SUM(c, OP6)
#undef OP6
#undef OP7
}

/* ---------------------------------------------------------------- operands */

struct job {
    const struct sv_gemm_span *s;
    const uint16_t *w;
    int32_t k, full, steps; /* steps of k that are whole, and all of them */
    int cols;               /* of an input tile */
    int32_t blocks;         /* of 16 input rows */
    int32_t block0;         /* first one of this turn */
};

static inline const uint8_t *input(const struct job *j, int32_t block, int32_t step)
{
    return (const uint8_t *)j->s->xp + ((size_t)block * j->steps + step) * 64 * j->cols;
}

static inline uintptr_t weights_at(const struct job *j, int32_t n, int32_t step)
{
    return (uintptr_t)j->w + ((size_t)n * j->k + (size_t)step * KSTEP) * 2;
}

static inline int rows_of(const struct job *j, int32_t n)
{
    return j->s->n1 - n < SV_GEMM_UNIT ? j->s->n1 - n : SV_GEMM_UNIT;
}

static void emit(const struct job *j, int32_t n, int32_t block, const float *tile)
{
    const struct sv_gemm_call *c = j->s->call;
    const int32_t m = c->m0 + block * 16;
    sv_gemm_emit_avx512(j->s, n, rows_of(j, n), m, c->m1 - m < 16 ? c->m1 - m : 16, tile, j->cols);
}

/* ---------------------------------------------------------------- few rows */

/* Weights are prefetched this many steps of k ahead: enough for memory's latency, few enough to
 * stay in the level-1 cache until used. Sixteen rows also suit the hardware's prefetchers. */
#define AHEAD 6

/* sums c0.. += weights x input over n steps of k: one unit of weights, nb blocks of rows. `next`:
 * the weights after these steps; 0: no prefetch. */
MUST_INLINE void stream_steps(const int c0, const int nb, struct wsrc a, uintptr_t next,
                              const uint8_t *x, size_t x_block, size_t x_stride, int n)
{
    for (int t = 0; t < n; t++) {
        const uintptr_t soon =
            t + AHEAD < n ? (uintptr_t)a.p + AHEAD * 64 : next + (uintptr_t)(t + AHEAD - n) * 64;
        if (next)
#pragma GCC unroll 16
            for (int r = 0; r < 16; r++)
                _mm_prefetch((const char *)(soon + (size_t)r * a.stride), _MM_HINT_T0);
        _tile_loadd(6, x, x_stride);
        _tile_stream_loadd(4, a.p, a.stride);
        sum_add(c0, false);
        if (nb > 1) {
            _tile_loadd(7, x + x_block, x_stride);
            sum_add(c0 + 1, true);
        }
        if (nb > 2) {
            _tile_loadd(6, x + 2 * x_block, x_stride);
            sum_add(c0 + 2, false);
        }
        if (nb > 3) {
            _tile_loadd(7, x + 3 * x_block, x_stride);
            sum_add(c0 + 3, true);
        }
        a.p += a.step;
        x += x_stride * 16;
    }
}

/* One unit's share of steps [t, t + n), all whole or the broken last one. */
MUST_INLINE void stream_unit(const struct job *j, const int c0, const int nb, int32_t n0, int32_t t,
                             int n, uintptr_t next)
{
    const size_t x_stride = (size_t)j->cols * 4, x_block = (size_t)j->steps * 64 * j->cols;
    struct wsrc a = {(const uint8_t *)weights_at(j, n0, t), (size_t)j->k * 2, 64};
    if (rows_of(j, n0) == SV_GEMM_UNIT && t < j->full) {
        stream_steps(c0, nb, a, next, input(j, j->block0, t), x_block, x_stride, n);
        return;
    }
    /* rare: copy in pieces that fit the buffer */
    for (int32_t done = 0, some; done < n; done += some) {
        some = n - done < BLOCK_STEPS ? n - done : BLOCK_STEPS;
        copy_unit(j->s->thread->pack_w, j->w + (size_t)n0 * j->k, j->k, t + done, some,
                  rows_of(j, n0));
        a = (struct wsrc){j->s->thread->pack_w, 64, TILE_BYTES};
        stream_steps(c0, nb, a, (uintptr_t)a.p, input(j, j->block0, t + done), x_block, x_stride,
                     some);
    }
}

/* Stores the sums of some units with nb blocks of rows each and emits them. */
MUST_INLINE void stream_end(const struct job *j, const int sums, const int nb, int units,
                            int32_t n0)
{
    _Alignas(64) float out[4][256];
#pragma GCC unroll 4
    for (int c = 0; c < sums; c++)
        sum_store(c, out[c], (size_t)j->cols * 4);
    for (int c = 0; c < units * nb; c++)
        emit(j, n0 + c / nb * SV_GEMM_UNIT, j->block0 + c % nb, out[c]);
}

static inline int units_from(const struct job *j, int32_t n0, int most)
{
    const int units = (j->s->n1 - n0 + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
    return units < most ? units : most;
}

/* Up to nu units in parallel, each with nb blocks of rows, nu * nb <= 4 sums. They alternate every
 * `chunk` steps, so that a chunk of input stays in the level-1 cache for all of them. */
MUST_INLINE void stream_group(const struct job *j, const int nu, const int nb, int32_t n0,
                              int32_t chunk)
{
    const int units = units_from(j, n0, nu);
#pragma GCC unroll 4
    for (int c = 0; c < nu * nb; c++)
        sum_zero(c);
    for (int32_t t = 0, n; t < j->steps; t += n) {
        const bool broken = t >= j->full;
        n = broken ? 1 : j->full - t < chunk ? j->full - t : chunk;
#pragma GCC unroll 4
        for (int u = 0; u < nu; u++) {
            if (u >= units)
                break;
            const int32_t n1 = n0 + u * SV_GEMM_UNIT;
            const bool last = u == units - 1;
            const uintptr_t next = !last             ? weights_at(j, n1 + SV_GEMM_UNIT, t)
                                   : t + n < j->full ? weights_at(j, n0, t + n)
                                                     : weights_at(j, n1 + SV_GEMM_UNIT, 0);
            stream_unit(j, u * nb, nb, n1, t, n, next);
        }
    }
    stream_end(j, nu * nb, nb, units, n0);
}

/* One step of k of nu units, expanded at w one behind the other, times nb blocks of rows. */
MUST_INLINE void wcomp_step(const struct job *j, const int nu, const int nb, const uint8_t *w,
                            int32_t t)
{
    const size_t x_stride = (size_t)j->cols * 4, x_block = (size_t)j->steps * 64 * j->cols;
    const uint8_t *x = input(j, j->block0, t);
    stored_before_tiles(w);
    if (nu == 1) {
        stream_steps(0, nb, (struct wsrc){w, 64, TILE_BYTES}, 0, x, x_block, x_stride, 1);
        return;
    }
    _tile_loadd(6, x, x_stride);
    if (nb > 1)
        _tile_loadd(7, x + x_block, x_stride);
#pragma GCC unroll 4
    for (int u = 0; u < nu; u++) {
        _tile_loadd(4, w + u * TILE_BYTES, 64);
        sum_add(u * nb, false);
        if (nb > 1)
            sum_add(u * nb + 1, true);
    }
}

/* Steps of k between expanding and multiplying: a tile cannot be loaded from stores still in flight
 * to the cache, and waiting for the multiplier delays prefetches. */
#define WCOMP_LEAD 3
/* Steps that pack_w holds of each unit at a time: a power of two, and 2 units fit. */
#define WCOMP_RING 8

/* Prefetch distances of lines: into level 2, and into level 1. */
#define WCOMP_AHEAD 8320
#define WCOMP_NEAR (2 * SV_WCOMP_BLOCK)

/* nu compressed units in parallel, each with nb blocks of rows, nb 1 or 2 if nu is above 1. all:
 * every step stays expanded in pack_w. */
MUST_INLINE void wcomp_group(const struct job *j, const int nu, const int nb, int32_t n0,
                             const bool all)
{
    uint8_t *const buf = j->s->thread->pack_w;
    const int32_t u0 = n0 / SV_GEMM_UNIT, size = nu * TILE_BYTES;
    const int32_t mask = all ? INT32_MAX : WCOMP_RING - 1;
    const bool more = n0 + 2 * nu * SV_GEMM_UNIT <= j->s->n1;
    struct sv_wcomp_walk at[2];
#pragma GCC unroll 4
    for (int c = 0; c < nu * nb; c++)
        sum_zero(c);
#pragma GCC unroll 2
    for (int u = 0; u < nu; u++) {
        at[u] = sv_wcomp_at(j->s->item->w, u0 + u, j->k);
        sv_wcomp_ask(&at[u], WCOMP_AHEAD);
        if (nu > 1 && more)
            at[u].jump = sv_wcomp_end(j->s->item->w, u0 + u + nu - 1) - at[u].end;
    }
    for (int32_t t = -WCOMP_LEAD; t < j->steps; t++) {
        uint8_t *const soon = buf + ((t + WCOMP_LEAD) & mask) * size;
        if (t + WCOMP_LEAD < j->steps) {
#pragma GCC unroll 2
            for (int u = 0; u < nu; u++)
                expand_block(&at[u], soon + u * TILE_BYTES, WCOMP_AHEAD, WCOMP_NEAR);
        }
        if (t >= 0)
            wcomp_step(j, nu, nb, buf + (t & mask) * size, t);
    }
    stream_end(j, nu * nb, nb, nu, n0);
}

/* One more pass of nb blocks of rows over a compressed unit, expanded in pack_w. */
MUST_INLINE void wcomp_turn(const struct job *j, const int nb, int32_t n0)
{
    const size_t x_stride = (size_t)j->cols * 4, x_block = (size_t)j->steps * 64 * j->cols;
    const struct wsrc a = {j->s->thread->pack_w, 64, TILE_BYTES};
#pragma GCC unroll 4
    for (int c = 0; c < nb; c++)
        sum_zero(c);
    stream_steps(0, nb, a, 0, input(j, j->block0, 0), x_block, x_stride, j->steps);
    stream_end(j, nb, nb, 1, n0);
}

/* Bytes of input that stay in the level-1 cache beside streamed weights. */
#define CHUNK_BYTES (32 << 10)

/* More than four blocks take several passes over a unit; from the second on its weights come from
 * level 2. */
static void stream_in_turns(struct job *j)
{
    for (int32_t n = j->s->n0; n < j->s->n1; n += SV_GEMM_UNIT)
        for (j->block0 = 0; j->block0 < j->blocks; j->block0 += 4)
            switch (j->blocks - j->block0) {
            case 1:
                stream_group(j, 1, 1, n, j->steps);
                break;
            case 2:
                stream_group(j, 1, 2, n, j->steps);
                break;
            case 3:
                stream_group(j, 1, 3, n, j->steps);
                break;
            default:
                stream_group(j, 1, 4, n, j->steps);
                break;
            }
}

static void wcomp_in_turns(struct job *j)
{
    for (int32_t n = j->s->n0; n < j->s->n1; n += SV_GEMM_UNIT) {
        j->block0 = 0;
        wcomp_group(j, 1, 4, n, true);
        for (j->block0 = 4; j->block0 < j->blocks; j->block0 += 4)
            switch (j->blocks - j->block0) {
            case 1:
                wcomp_turn(j, 1, n);
                break;
            case 2:
                wcomp_turn(j, 2, n);
                break;
            case 3:
                wcomp_turn(j, 3, n);
                break;
            default:
                wcomp_turn(j, 4, n);
                break;
            }
    }
}

static void run_wcomp(struct job *j)
{
    const int32_t n1 = j->s->n1;
    int32_t n = j->s->n0;
    if (j->blocks > 4) {
        wcomp_in_turns(j);
        return;
    }
    for (; j->blocks == 2 && n1 - n > SV_GEMM_UNIT; n += 2 * SV_GEMM_UNIT)
        wcomp_group(j, 2, 2, n, false);
    for (; n < n1; n += SV_GEMM_UNIT)
        switch (j->blocks) {
        case 1:
            wcomp_group(j, 1, 1, n, false);
            break;
        case 2:
            wcomp_group(j, 1, 2, n, false);
            break;
        case 3:
            wcomp_group(j, 1, 3, n, false);
            break;
        default:
            wcomp_group(j, 1, 4, n, false);
            break;
        }
}

static void run_stream(struct job *j)
{
    const int32_t chunk = CHUNK_BYTES / (64 * j->cols * j->blocks);
    if (j->s->item->wcomp) {
        run_wcomp(j);
        return;
    }
    if (j->blocks == 1)
        for (int32_t n = j->s->n0; n < j->s->n1; n += 4 * SV_GEMM_UNIT)
            stream_group(j, 4, 1, n, chunk);
    else if (j->blocks == 2)
        for (int32_t n = j->s->n0; n < j->s->n1; n += 2 * SV_GEMM_UNIT)
            stream_group(j, 2, 2, n, chunk);
    else
        stream_in_turns(j);
}

/* ---------------------------------------------------------------- many rows */

/* Partial sums of a group of units and all rows stay in the level-2 cache while k advances. */
static inline float *sums_of(const struct job *j, int unit, int32_t block)
{
    return j->s->thread->sums + ((size_t)unit * (SV_GEMM_ROWS / 16) + block) * 256;
}

/* Prefetch of the next two units' weights into level 2 while others are multiplied: some lines of
 * each with every step of k. */
struct soon {
    uintptr_t at, other;  /* the next line of one unit, and the distance to the other's */
    size_t row;           /* from the end of one row's needed weights to the next row's */
    int32_t left, in_row; /* lines not yet prefetched, and those of them in this row */
    int32_t per_row, each;
};

/* 32 (or fewer) weight rows from n by some steps of k from t: the level-1 cache's block. */
struct wide {
    int32_t n, t, steps;
    int32_t g, end; /* the group of rows that n belongs to */
    struct soon soon;
    struct sv_wcomp_walk at[SV_GEMM_GROUP]; /* compressed: position in each unit of the group */
};

/* Lines of a compressed unit's table and escapes: about those of 1024 of k. */
#define WCOMP_HEAD_LINES 12

static void plan_soon(const struct job *j, struct wide *b)
{
    struct soon *q = &b->soon;
    int32_t n = b->n + 2 * SV_GEMM_UNIT, t = b->t;
    q->left = 0;
    if (n >= b->end) {
        n = b->g;
        t += b->steps;
        if (t >= j->steps) {
            n = b->end;
            t = 0;
        }
    }
    if (n >= j->s->n1 || b->steps < BLOCK_STEPS)
        return;
    const int32_t n2 = n + SV_GEMM_UNIT < j->s->n1 ? n + SV_GEMM_UNIT : n;
    if (j->s->item->wcomp) {
        const int32_t lines = b->steps * (SV_WCOMP_BLOCK / SV_WCOMP_LINE);
        q->at = (uintptr_t)(t ? b->at[(n - b->g) / SV_GEMM_UNIT].block
                              : sv_wcomp_at(j->s->item->w, n / SV_GEMM_UNIT, j->k).table);
        q->other = (uintptr_t)(t ? b->at[(n2 - b->g) / SV_GEMM_UNIT].block
                                 : sv_wcomp_at(j->s->item->w, n2 / SV_GEMM_UNIT, j->k).table) -
                   q->at;
        q->left = q->per_row = t ? lines : lines + WCOMP_HEAD_LINES;
        q->row = 0;
    } else {
        q->at = weights_at(j, n, t);
        q->other = weights_at(j, n2, t) - q->at;
        q->per_row = b->steps;
        q->left = b->steps * SV_GEMM_UNIT;
        q->row = (size_t)j->k * 2 - (size_t)b->steps * 64;
    }
    q->in_row = q->per_row;
    const int32_t times = (j->blocks + 1) / 2 * b->steps;
    q->each = (q->left + times - 1) / times;
}

MUST_INLINE void ask_soon(struct soon *q)
{
    for (int32_t i = 0; i < q->each && q->left > 0; i++, q->left--) {
        _mm_prefetch((const char *)q->at, _MM_HINT_T1);
        _mm_prefetch((const char *)(q->at + q->other), _MM_HINT_T1);
        q->at += 64;
        if (--q->in_row == 0) {
            q->at += q->row;
            q->in_row = q->per_row;
        }
    }
}

/* Two units by two blocks of rows (or one, at the edges). Sum 0: unit 0, block 0; 1: unit 0, block
 * 1; 2: unit 1, block 0; 3: unit 1, block 1. */
MUST_INLINE void wide_pair(const struct job *j, const bool two_w, const bool two_x, struct wide *b,
                           const uint8_t *w0, int32_t block)
{
    const int unit = (b->n - b->g) / SV_GEMM_UNIT;
    float *s[4] = {sums_of(j, unit, block), sums_of(j, unit, block + 1),
                   sums_of(j, unit + 1, block), sums_of(j, unit + 1, block + 1)};
    const uint8_t *x0 = input(j, block, b->t), *x1 = input(j, block + two_x, b->t);
    const uint8_t *w1 = w0 + b->steps * TILE_BYTES;
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
        if ((two_x || !(c & 1)) && (two_w || c < 2)) {
            if (b->t)
                sum_load(c, s[c], 64);
            else
                sum_zero(c);
        }
    for (int i = 0; i < b->steps; i++) {
        _tile_loadd(6, x0 + i * TILE_BYTES, 64);
        _tile_loadd(4, w0 + i * TILE_BYTES, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (two_x) {
            _tile_loadd(7, x1 + i * TILE_BYTES, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (two_w) {
            _tile_loadd(5, w1 + i * TILE_BYTES, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (two_x)
                _tile_dpbf16ps(3, 5, 7);
        }
        ask_soon(&b->soon);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++)
        if ((two_x || !(c & 1)) && (two_w || c < 2))
            sum_store(c, s[c], 64);
}

/* Expands unit i of the group, in place of a copy. */
static void wide_expand(const struct job *j, struct wide *b, int i, uint8_t *to)
{
    if (!b->t) {
        b->at[i] = sv_wcomp_at(j->s->item->w, b->g / SV_GEMM_UNIT + i, j->k);
        sv_wcomp_ask(&b->at[i], SV_WCOMP_AHEAD);
    }
    sv_wcomp_expand(&b->at[i], b->steps, to);
    stored_before_tiles(to);
}

static void wide_block(const struct job *j, struct wide *b)
{
    uint8_t *w = j->s->thread->pack_w;
    const bool two_w = b->end - b->n > SV_GEMM_UNIT;
    for (int32_t u = 0; u <= two_w; u++) {
        const int32_t n = b->n + u * SV_GEMM_UNIT;
        uint8_t *to = w + u * b->steps * TILE_BYTES;
        if (j->s->item->wcomp)
            wide_expand(j, b, (n - b->g) / SV_GEMM_UNIT, to);
        else
            copy_unit(to, j->w + (size_t)n * j->k, j->k, b->t, b->steps, rows_of(j, n));
    }
    plan_soon(j, b);
    for (int32_t block = 0; block < j->blocks; block += 2) {
        const bool two_x = block + 1 < j->blocks;
        if (two_w && two_x)
            wide_pair(j, true, true, b, w, block);
        else if (two_w)
            wide_pair(j, true, false, b, w, block);
        else if (two_x)
            wide_pair(j, false, true, b, w, block);
        else
            wide_pair(j, false, false, b, w, block);
    }
}

/* Prefetches the output lines of 16 rows from m: a page each, which hardware does not predict. */
MUST_INLINE void ask_y(const struct job *j, int32_t n, int32_t m)
{
    const struct sv_gemm_call *c = j->s->call;
    if (!c->y || m + 16 > c->m1)
        return;
    for (int r = 0; r < 16; r++)
        __builtin_prefetch(c->y + ((m + r) * c->ldy + j->s->item->col0 + n), 1, 3);
}

static void wide_emit(const struct job *j, const struct wide *b)
{
    for (int32_t block = 0; block < j->blocks; block++)
        for (int32_t n = b->g; n < b->end; n += SV_GEMM_UNIT) {
            ask_y(j, n, j->s->call->m0 + (block + 1) * 16);
            emit(j, n, block, sums_of(j, (n - b->g) / SV_GEMM_UNIT, block));
        }
}

/* Input that stays in the level-2 cache lets every pair of units run through all of k at once; more
 * input is processed by blocks of k, with as many units as their sums allow. */
#define INPUT_BYTES (1 << 20)

static bool fits_level2(const struct job *j)
{
    return (size_t)j->blocks * j->steps * TILE_BYTES <= INPUT_BYTES;
}

static void run_wide(const struct job *j)
{
    const int32_t group = (fits_level2(j) ? 4 : SV_GEMM_GROUP) * SV_GEMM_UNIT;
    for (int32_t g = j->s->n0; g < j->s->n1; g += group) {
        struct wide b = {.g = g, .end = j->s->n1 - g < group ? j->s->n1 : g + group};
        for (b.t = 0; b.t < j->steps; b.t += b.steps) {
            b.steps = b.t >= j->full                ? 1
                      : j->full - b.t < BLOCK_STEPS ? j->full - b.t
                                                    : BLOCK_STEPS;
            for (b.n = b.g; b.n < b.end; b.n += 2 * SV_GEMM_UNIT)
                wide_block(j, &b);
        }
        wide_emit(j, &b);
    }
}

/* Blocks of 16 rows up to which weights are better used in place. */
#define STREAM_BLOCKS 9

static void run(const struct sv_gemm_span *s)
{
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0;
    struct job j = {.s = s,
                    .w = s->item->w,
                    .k = c->k,
                    .full = c->k / KSTEP,
                    .steps = sv_gemm_kpad(c->k) / KSTEP,
                    .cols = sv_gemm_tile_cols(rows),
                    .blocks = (rows + 15) / 16};
    if (j.blocks <= 4 || (j.blocks <= STREAM_BLOCKS && fits_level2(&j)))
        run_stream(&j);
    else
        run_wide(&j);
}

const struct sv_gemm_kern *sv_gemm_kern_amx(void)
{
    static const struct sv_gemm_kern kern = {SV_GEMM_X_TILES, sv_gemm_pack_tiles, run, enter,
                                             release_tiles};
    return &kern;
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
