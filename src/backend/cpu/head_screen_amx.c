/*
 * head_screen_amx.c - bounds of a head's logits (head_screen.h) with AMX's products of bytes: up to
 * 16 input rows at the cost of one.
 *
 * Entered through sv_gemm_kern_screen_amx by gemm.c after cpuid said yes. Input is the A operand,
 * rows x 64 of k, signed; sixteen quads of k of 16 weight rows are B, unsigned; the result is
 * [input row][weight row]. Sums are whole numbers, the same as head_screen_avx512.c's. Must not:
 * leave tiles configured after a call.
 */
#if !defined(__clang__)
#pragma GCC target("amx-int8") /* the Makefile's flags name what all *_amx.c may use */
#endif
#include "backend/cpu/head_screen.h"

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("amx-int8"))), apply_to = function)
#endif

#define MUST_INLINE static inline __attribute__((always_inline))
#define TILE_BYTES 1024
#define LEAD 3 /* steps between expanding and multiplying: stores have to reach the cache first */
#define RING 4

#include "backend/cpu/amx.h"
#include "backend/cpu/head_screen_bounds.h"

/* Tiles 0 and 1: sums of the high and of the low bytes; 2 and 3: input; 4: weights. */
static void enter(const struct sv_gemm_call *c)
{
    struct tile_config t = {0};
    for (int i = 0; i < 5; i++) {
        t.rows[i] = (uint8_t)(i == 4 ? 16 : c->m1 - c->m0);
        t.row_bytes[i] = 64;
    }
    configure_tiles(&t);
}

UNCHECKED MUST_INLINE void expand_step(const uint8_t *w, const enum sv_screen_plane plane,
                                       uint8_t *to)
{
#pragma GCC unroll 4
    for (int g = 0; g < SV_SCREEN_GROUPS; g++) {
        __m512i v[4];
        screen_expand(w + (size_t)g * sv_screen_lines(plane) * SV_SCREEN_LINE, plane, v);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            _mm512_store_si512(to + (4 * g + j) * SV_SCREEN_LINE, v[j]);
    }
}

UNCHECKED MUST_INLINE void bound_unit(const struct sv_gemm_span *s, const uint8_t *unit, int32_t n0,
                                      const enum sv_screen_plane plane)
{
    _Alignas(64) uint8_t ring[RING][TILE_BYTES];
    _Alignas(64) int32_t sum[2][SV_SCREEN_ROWS * SV_GEMM_UNIT];
    const struct sv_gemm_call *c = s->call;
    const int32_t rows = c->m1 - c->m0, steps = sv_screen_steps(c->k);
    const size_t half = (size_t)rows * SV_SCREEN_LINE,
                 step = SV_SCREEN_GROUPS * sv_screen_lines(plane) * SV_SCREEN_LINE;
    const uint8_t *w = unit + SV_SCREEN_HEAD;
    const uint8_t *x = (const uint8_t *)s->xp + sizeof(struct sv_screen_x);
    _tile_zero(0);
    _tile_zero(1);
    for (int32_t t = -LEAD; t < steps; t++) {
        if (t + LEAD < steps)
            expand_step(w + (size_t)(t + LEAD) * step, plane, ring[(t + LEAD) % RING]);
        if (t < 0)
            continue;
        stored_before_tiles(ring);
        _tile_loadd(4, ring[t % RING], SV_SCREEN_LINE);
        _tile_loadd(2, x, SV_SCREEN_LINE);
        _tile_dpbsud(0, 2, 4);
        _tile_loadd(3, x + half, SV_SCREEN_LINE);
        _tile_dpbsud(1, 3, 4);
        x += 2 * half;
    }
    _tile_stored(0, sum[0], SV_SCREEN_LINE);
    _tile_stored(1, sum[1], SV_SCREEN_LINE);
    stored_before_tiles(sum);
    for (int r = 0; r < rows; r++)
        screen_put(s, unit, n0, r, plane, _mm512_load_si512(sum[0] + r * SV_GEMM_UNIT),
                   _mm512_load_si512(sum[1] + r * SV_GEMM_UNIT));
}

MUST_INLINE void run_plane(const struct sv_gemm_span *s, const enum sv_screen_plane plane)
{
    const size_t unit_bytes = sv_screen_unit_bytes(plane, s->call->k);
    for (int32_t n0 = s->n0; n0 < s->n1; n0 += SV_GEMM_UNIT)
        bound_unit(s, (const uint8_t *)s->item->w + (size_t)(n0 / SV_GEMM_UNIT) * unit_bytes, n0,
                   plane);
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

const struct sv_gemm_kern *sv_gemm_kern_screen_amx(enum sv_screen_plane plane)
{
    static const struct sv_gemm_kern kern[] = {
        {SV_GEMM_X_HALVES, sv_screen_pack_x, run_coarse, enter, release_tiles},
        {SV_GEMM_X_HALVES, sv_screen_pack_x, run_fine, enter, release_tiles}};
    return &kern[plane];
}

#if defined(__clang__)
#pragma clang attribute pop
#endif
