/*
 * tiles_emulated.h - AMX's tile instructions in plain C, for kernels that a test includes with
 * their own: head_screen_tiles_avx512.c and int8_tiles_avx512.c.
 *
 * Operands whose shapes do not fit fail, as the instructions do. Must not: be used where
 * instructions are timed.
 */
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

struct tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
    uint8_t tile[8][16][64];
};
static _Thread_local struct tiles tiles;

static void tiles_load(int t, const void *p, size_t stride)
{
    memset(tiles.tile[t], 0, sizeof tiles.tile[t]);
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy(tiles.tile[t][r], (const uint8_t *)p + (size_t)r * stride, tiles.row_bytes[t]);
}

static void tiles_store(int t, void *p, size_t stride)
{
    for (int r = 0; r < tiles.rows[t]; r++)
        memcpy((uint8_t *)p + (size_t)r * stride, tiles.tile[t][r], tiles.row_bytes[t]);
}

/* As Intel's manual has it: quads of signed bytes of a by quads of unsigned ones of b. */
static void tiles_multiply(int to, int a, int b)
{
    if (tiles.palette != 1 || tiles.rows[to] != tiles.rows[a] ||
        tiles.row_bytes[a] != tiles.rows[b] * 4 || tiles.row_bytes[to] != tiles.row_bytes[b])
        abort();
    for (int m = 0; m < tiles.rows[to]; m++)
        for (int q = 0; q < tiles.row_bytes[a] / 4; q++)
            for (int n = 0; n < tiles.row_bytes[to] / 4; n++) {
                int32_t sum;
                memcpy(&sum, tiles.tile[to][m] + 4 * n, 4);
                for (int i = 0; i < 4; i++)
                    sum += (int8_t)tiles.tile[a][m][4 * q + i] * tiles.tile[b][q][4 * n + i];
                memcpy(tiles.tile[to][m] + 4 * n, &sum, 4);
            }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadconfig(p) memcpy(&tiles, p, 64)
#define _tile_release() memset(&tiles, 0, 64)
#define _tile_zero(t) memset(tiles.tile[t], 0, sizeof tiles.tile[t])
#define _tile_loadd(t, p, stride) tiles_load(t, p, stride)
#define _tile_stored(t, p, stride) tiles_store(t, p, stride)
#define _tile_dpbsud(to, a, b) tiles_multiply(to, a, b)
