/*
 * attention_amx.c - attention's products with AMX tiles, for the kernels of attention_lanes.h.
 *
 * Entered from attention.c, by its conditions. Keys are the first operand of the scores and are
 * read in place, packed queries the second; rows of a tile product are independent. Must not: leave
 * tiles configured after a call.
 */
#include "backend/cpu/amx.h"
#include "backend/cpu/attention_lanes_work.h"

static void begin(void)
{
    struct tile_config t = {0};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = 16;
        t.row_bytes[i] = 64;
    }
    configure_tiles(&t);
}

#define SCORE_STEP(tile, operand, b)                                                               \
    if (block[b]) {                                                                                \
        _tile_loadd(operand, block[b] + at, row);                                                  \
        _tile_dpbf16ps(tile, operand, 6);                                                          \
    }

static void lane_scores(const struct sv_cpu_attn_chunk *c, const uint8_t *const *block,
                        const uint16_t *q, float *s)
{
    const size_t row = (size_t)c->head_dim * 2;
    stored_before_tiles(block);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t at = 0; at < row; at += 64) {
        _tile_loadd(6, (const uint8_t *)q + at * 16, 64);
        SCORE_STEP(0, 4, 0)
        SCORE_STEP(1, 5, 1)
        SCORE_STEP(2, 4, 2)
        SCORE_STEP(3, 5, 3)
    }
    _tile_stored(0, s, 64);
    _tile_stored(1, s + 256, 64);
    _tile_stored(2, s + 512, 64);
    _tile_stored(3, s + 768, 64);
    stored_before_tiles(s);
}

/* out = acc + P V for a group; acc and out (16, acc_ld). Halves without a visible position are
 * skipped. */
static void lane_values(const struct sv_cpu_attn_chunk *c, const struct work *w, const float *acc,
                        float *out, int32_t n_q, bool half0, bool half1)
{
    (void)n_q; /* tiles have sixteen rows */
    const int32_t n_blocks = c->v_dim / 16;
    const size_t ld = (size_t)c->acc_ld * 4;
    const uint32_t *v0 = (const uint32_t *)(const void *)c->vv, *v1 = v0 + n_blocks * 256;
    stored_before_tiles(w);
    stored_before_tiles(v0);
    _tile_loadd(0, w->p[0], 64);
    _tile_loadd(1, w->p[1], 64);
    for (int32_t b = 0; b < n_blocks; b += 2) {
        _tile_loadd(2, acc + b * 16, ld);
        _tile_loadd(3, acc + b * 16 + 16, ld);
        if (half0) {
            _tile_loadd(4, v0 + b * 256, 64);
            _tile_dpbf16ps(2, 0, 4);
            _tile_loadd(5, v0 + b * 256 + 256, 64);
            _tile_dpbf16ps(3, 0, 5);
        }
        if (half1) {
            _tile_loadd(6, v1 + b * 256, 64);
            _tile_dpbf16ps(2, 1, 6);
            _tile_loadd(7, v1 + b * 256 + 256, 64);
            _tile_dpbf16ps(3, 1, 7);
        }
        _tile_stored(2, out + b * 16, ld);
        _tile_stored(3, out + b * 16 + 16, ld);
    }
    stored_before_tiles(out);
}

#include "backend/cpu/attention_lanes.h"

const struct sv_cpu_attn_lanes *sv_cpu_attn_amx(void)
{
    static const struct sv_cpu_attn_lanes k = {begin, release_tiles, pack_queries, run_chunk};
    return &k;
}
