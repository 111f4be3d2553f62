/*
 * head_screen_tiles_avx512.c - the kernel of cpu/head_screen_amx.c with its tile instructions
 * emulated, so that machines without them can compare its sums.
 *
 * Called by test_head_screen.c after cpuid said AVX-512. Must not: be used where instructions are
 * timed.
 */
#include "backend/head_screen_tiles.h"

#if !defined(SV_NO_AMX) && !defined(SV_NO_AVX512)
#include <immintrin.h>
#include <string.h>

struct tiles {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
    uint8_t tile[8][16][64];
};
static _Thread_local struct tiles now;

static void load(int t, const void *p, size_t stride)
{
    memset(now.tile[t], 0, sizeof now.tile[t]);
    for (int r = 0; r < now.rows[t]; r++)
        memcpy(now.tile[t][r], (const uint8_t *)p + (size_t)r * stride, now.row_bytes[t]);
}

static void store(int t, void *p, size_t stride)
{
    for (int r = 0; r < now.rows[t]; r++)
        memcpy((uint8_t *)p + (size_t)r * stride, now.tile[t][r], now.row_bytes[t]);
}

/* As Intel's manual has it: quads of signed bytes of a by quads of unsigned ones of b. */
static void multiply(int to, int a, int b)
{
    for (int m = 0; m < now.rows[to]; m++)
        for (int q = 0; q < now.row_bytes[a] / 4; q++)
            for (int n = 0; n < now.row_bytes[to] / 4; n++) {
                int32_t sum;
                memcpy(&sum, now.tile[to][m] + 4 * n, 4);
                for (int i = 0; i < 4; i++)
                    sum += (int8_t)now.tile[a][m][4 * q + i] * now.tile[b][q][4 * n + i];
                memcpy(now.tile[to][m] + 4 * n, &sum, 4);
            }
}

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#undef _tile_loadconfig
#undef _tile_release
#define _tile_loadconfig(p) memcpy(&now, p, 64)
#define _tile_release() memset(&now, 0, 64)
#define _tile_zero(t) memset(now.tile[t], 0, sizeof now.tile[t])
#define _tile_loadd(t, p, stride) load(t, p, stride)
#define _tile_stored(t, p, stride) store(t, p, stride)
#define _tile_dpbsud(to, a, b) multiply(to, a, b)
#define sv_gemm_kern_screen_amx sv_test_kern_screen_tiles
#include "backend/cpu/head_screen_amx.c" /* head_screen_tiles.h has declared what this name stands for */
#else
const struct sv_gemm_kern *sv_test_kern_screen_tiles(enum sv_screen_plane plane)
{
    (void)plane;
    return NULL;
}
#endif
