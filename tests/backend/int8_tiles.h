/*
 * int8_tiles.h - products with activations in int8 on tiles, emulated (int8_tiles_avx512.c).
 */
#ifndef SV_TEST_INT8_TILES_H
#define SV_TEST_INT8_TILES_H

#include "backend/cpu/gemm.h"

/* From one row on. NULL where the compiler has no tiles. Needs AVX-512. */
const struct sv_gemm_kern *sv_test_kern_int8_tiles(void);

#endif
