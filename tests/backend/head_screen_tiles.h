/*
 * head_screen_tiles.h - the screen's kernel for tiles, emulated (head_screen_tiles_avx512.c).
 */
#ifndef SV_TEST_SCREEN_TILES_H
#define SV_TEST_SCREEN_TILES_H

#include "backend/cpu/head_screen.h"

/* NULL where the compiler has no tiles. Needs AVX-512. */
const struct sv_gemm_kern *sv_test_kern_screen_tiles(enum sv_screen_plane plane);

#endif
