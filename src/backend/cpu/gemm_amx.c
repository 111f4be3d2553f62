/*
 * gemm_amx.c - bf16 x bf16 product kernels on AMX tiles, for every number of rows.
 *
 * Entered through sv_gemm_kern_amx by gemm.c after cpuid said yes and the kernel gave tile state.
 * Weights are AMX's A operand: 16 rows x 32 elements straight out of row-major memory, in place;
 * the packed input is B; the result is a tile of y transposed. One accumulation order for 1 row and
 * for thousands: element (n, m) takes k in steps of 32 through tdpbf16ps, whichever tile and block
 * it sits in, and partial sums rest in f32. Must not: read past the last weight, leave tiles
 * configured after a call.
 *
 * Tiles: 0-3 sums, 4-5 weights, 6-7 input.
 */
#include "backend/cpu/gemm.h"

#include <immintrin.h>
#include <string.h>

#define KSTEP 32
#define BLOCK_STEPS (SV_GEMM_KBLOCK / KSTEP)
#define TILE_BYTES 1024

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Where the next steps of k of one unit's weights stand: in place, or copied as contiguous tiles.
 */
struct wsrc {
    const uint8_t *p;
    size_t stride; /* between rows */
    size_t step;   /* between steps of k */
};

/* GCC's tile loads do not tell the compiler that they read memory: whatever they read must be
 * stored before. */
static inline void stored_before_tiles(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

static void enter(const struct sv_gemm_call *c)
{
    const int cols = sv_gemm_tile_cols(c->m1 - c->m0);
    struct tile_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = 16;
        t.row_bytes[i] = (uint16_t)(i == 4 || i == 5 ? 64 : cols * 4);
    }
    stored_before_tiles(&t);
    _tile_loadconfig(&t);
}

static void leave(void)
{
    _tile_release();
}

/* ---------------------------------------------------------------- packing x */

static inline void transpose16(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

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

/* Work is cut by (block of 16 rows, step of k), so that 16 rows of a long k still feed all threads.
 */
static void pack(const struct sv_gemm_call *c, void *xp, int i, int n)
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

/* ---------------------------------------------------------------- weights that cannot be used in
 * place */

/* Copies steps of k as zero-padded tiles: the end of k, fewer than 16 rows, or weights used many
 * times. */
static void pack_weights(uint8_t *out, const uint16_t *w, int32_t k, int32_t k0, int nn, int steps)
{
    for (int t = 0; t < steps; t++) {
        const int32_t left = k - k0 - t * KSTEP;
        const __mmask32 mask = left >= KSTEP ? ~(__mmask32)0 : (__mmask32)((1ull << left) - 1);
        const uint16_t *p = w + k0 + t * KSTEP;
        for (int i = 0; i < nn; i++)
            _mm512_store_si512(out + t * TILE_BYTES + i * 64,
                               _mm512_maskz_loadu_epi16(mask, p + (size_t)i * k));
        for (int i = nn; i < 16; i++)
            _mm512_store_si512(out + t * TILE_BYTES + i * 64, _mm512_setzero_si512());
    }
    stored_before_tiles(out);
}

/* ---------------------------------------------------------------- micro kernels */

/* sums += weights x input over `steps` steps of k, for one or two units and one or two blocks of
 * rows. Sum tile 0: unit 0, block 0; 1: unit 0, block 1; 2: unit 1, block 0; 3: unit 1, block 1. */
static inline __attribute__((always_inline)) void
steps_of_k(const bool two_w, const bool two_x, const bool stream, struct wsrc a, struct wsrc b,
           const uint8_t *x0, const uint8_t *x1, size_t x_stride, int steps)
{
    for (int t = 0; t < steps; t++) {
        _tile_loadd(6, x0, x_stride);
        if (two_x)
            _tile_loadd(7, x1, x_stride);
        if (stream)
            _tile_stream_loadd(4, a.p, a.stride);
        else
            _tile_loadd(4, a.p, a.stride);
        _tile_dpbf16ps(0, 4, 6);
        if (two_x)
            _tile_dpbf16ps(1, 4, 7);
        if (two_w) {
            if (stream)
                _tile_stream_loadd(5, b.p, b.stride);
            else
                _tile_loadd(5, b.p, b.stride);
            _tile_dpbf16ps(2, 5, 6);
            if (two_x)
                _tile_dpbf16ps(3, 5, 7);
        }
        a.p += a.step;
        b.p += b.step;
        x0 += x_stride * 16;
        x1 += x_stride * 16;
    }
}

struct job {
    const struct sv_gemm_span *s;
    const uint16_t *w;
    int32_t k, full, steps; /* steps of k that are whole, and all of them */
    int cols;               /* of an input tile */
    int32_t blocks;         /* of 16 input rows */
};

static inline const uint8_t *input(const struct job *j, int32_t block, int32_t step)
{
    return (const uint8_t *)j->s->xp + ((size_t)block * j->steps + step) * 64 * j->cols;
}

/* Steps [t0, t0 + n) of unit n0, which may have to be copied to buf; n stays within whole steps or
 * is the single broken one at the end. */
static inline struct wsrc weights(const struct job *j, int32_t n0, int32_t t0, int n, bool copy,
                                  uint8_t *buf)
{
    const int nn = j->s->n1 - n0 < 16 ? j->s->n1 - n0 : 16;
    const uint16_t *w = j->w + (size_t)n0 * j->k;
    if (!copy && nn == 16 && t0 < j->full)
        return (struct wsrc){(const uint8_t *)(w + (size_t)t0 * KSTEP), (size_t)j->k * 2, 64};
    pack_weights(buf, w, j->k, t0 * KSTEP, nn, n);
    return (struct wsrc){buf, 64, TILE_BYTES};
}

/* At most two blocks of rows: the sums of one or two units stay in registers for the whole of k. */
static inline __attribute__((always_inline)) void narrow(const struct job *j, int32_t n0,
                                                         const bool two_w, const bool two_x)
{
    uint8_t *buf = j->s->thread->pack_w, *buf1 = buf + BLOCK_STEPS * TILE_BYTES;
    const int32_t whole = j->s->n1 - n0 >= (two_w ? 32 : 16) ? j->full : BLOCK_STEPS;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t t = 0, n; t < j->steps; t += n) {
        n = t >= j->full ? 1 : j->full - t < whole ? j->full - t : whole;
        struct wsrc a = weights(j, n0, t, n, false, buf);
        struct wsrc b = two_w ? weights(j, n0 + 16, t, n, false, buf1) : a;
        steps_of_k(two_w, two_x, true, a, b, input(j, 0, t), input(j, two_x, t),
                   (size_t)j->cols * 4, n);
    }
    _Alignas(64) float out[4][256];
    const size_t ld = (size_t)j->cols * 4;
    _tile_stored(0, out[0], ld);
    if (two_x)
        _tile_stored(1, out[1], ld);
    if (two_w) {
        _tile_stored(2, out[2], ld);
        if (two_x)
            _tile_stored(3, out[3], ld);
    }
    const struct sv_gemm_call *c = j->s->call;
    for (int u = 0; u <= two_w; u++)
        for (int b = 0; b <= two_x; b++) {
            const int32_t n = n0 + u * 16, m = c->m0 + b * 16;
            sv_gemm_emit_avx512(j->s, n, j->s->n1 - n < 16 ? j->s->n1 - n : 16, m,
                                c->m1 - m < 16 ? c->m1 - m : 16, out[u * 2 + b], j->cols);
        }
}

static void run_narrow(const struct job *j)
{
    for (int32_t n = j->s->n0; n < j->s->n1; n += 32) {
        const bool two = j->s->n1 - n > 16;
        if (j->blocks == 1) {
            if (two)
                narrow(j, n, true, false);
            else
                narrow(j, n, false, false);
        } else {
            if (two)
                narrow(j, n, true, true);
            else
                narrow(j, n, false, true);
        }
    }
}

/* Many rows: partial sums of a group of units and all rows stay in the level-2 cache while k
 * advances. */
static inline float *sums_of(const struct job *j, int unit, int32_t block)
{
    return j->s->thread->sums + ((size_t)unit * (SV_GEMM_ROWS / 16) + block) * 256;
}

static inline __attribute__((always_inline)) void wide_pair(const struct job *j, const bool two_w,
                                                            const bool two_x, struct wsrc a,
                                                            struct wsrc b, int unit, int32_t block,
                                                            int32_t t, int n)
{
    float *s0 = sums_of(j, unit, block), *s1 = sums_of(j, unit, block + 1);
    float *s2 = sums_of(j, unit + 1, block), *s3 = sums_of(j, unit + 1, block + 1);
    if (t == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, s0, 64);
        if (two_x)
            _tile_loadd(1, s1, 64);
        if (two_w) {
            _tile_loadd(2, s2, 64);
            if (two_x)
                _tile_loadd(3, s3, 64);
        }
    }
    steps_of_k(two_w, two_x, false, a, b, input(j, block, t), input(j, block + two_x, t), 64, n);
    _tile_stored(0, s0, 64);
    if (two_x)
        _tile_stored(1, s1, 64);
    if (two_w) {
        _tile_stored(2, s2, 64);
        if (two_x)
            _tile_stored(3, s3, 64);
    }
}

static void wide_block(const struct job *j, int32_t n, int unit, int32_t t, int steps)
{
    uint8_t *buf = j->s->thread->pack_w, *buf1 = buf + BLOCK_STEPS * TILE_BYTES;
    const bool two_w = j->s->n1 - n > 16;
    struct wsrc a = weights(j, n, t, steps, true, buf);
    struct wsrc b = two_w ? weights(j, n + 16, t, steps, true, buf1) : a;
    for (int32_t block = 0; block < j->blocks; block += 2) {
        const bool two_x = block + 1 < j->blocks;
        if (two_w && two_x)
            wide_pair(j, true, true, a, b, unit, block, t, steps);
        else if (two_w)
            wide_pair(j, true, false, a, b, unit, block, t, steps);
        else if (two_x)
            wide_pair(j, false, true, a, b, unit, block, t, steps);
        else
            wide_pair(j, false, false, a, b, unit, block, t, steps);
    }
}

static void run_wide(const struct job *j)
{
    const struct sv_gemm_call *c = j->s->call;
    for (int32_t g = j->s->n0; g < j->s->n1; g += SV_GEMM_GROUP * 16) {
        const int32_t ge = j->s->n1 - g < SV_GEMM_GROUP * 16 ? j->s->n1 : g + SV_GEMM_GROUP * 16;
        for (int32_t t = 0, steps; t < j->steps; t += steps) {
            steps = j->full - t < BLOCK_STEPS ? j->full - t : BLOCK_STEPS;
            if (steps <= 0)
                steps = 1;
            for (int32_t n = g; n < ge; n += 32)
                wide_block(j, n, (n - g) / 16, t, steps);
        }
        for (int32_t b = 0; b < j->blocks; b++)
            for (int32_t n = g; n < ge; n += 16) {
                const int32_t m = c->m0 + b * 16;
                sv_gemm_emit_avx512(j->s, n, ge - n < 16 ? ge - n : 16, m,
                                    c->m1 - m < 16 ? c->m1 - m : 16, sums_of(j, (n - g) / 16, b),
                                    16);
            }
    }
}

static void run(const struct sv_gemm_span *s)
{
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0;
    const struct job j = {.s = s,
                          .w = c->parts[s->part].w.data,
                          .k = c->k,
                          .full = c->k / KSTEP,
                          .steps = sv_gemm_kpad(c->k) / KSTEP,
                          .cols = sv_gemm_tile_cols(rows),
                          .blocks = (rows + 15) / 16};
    if (j.blocks <= 2)
        run_narrow(&j);
    else
        run_wide(&j);
}

const struct sv_gemm_kern *sv_gemm_kern_amx(void)
{
    static const struct sv_gemm_kern kern = {"amx-bf16", SV_GEMM_X_TILES, pack, run, enter, leave};
    return &kern;
}
