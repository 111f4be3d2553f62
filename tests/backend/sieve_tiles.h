/*
 * sieve_tiles.h - the sieve's kernel for tiles, emulated (sieve_tiles_avx512.c).
 */
#ifndef SV_TEST_SIEVE_TILES_H
#define SV_TEST_SIEVE_TILES_H

#include "backend/cpu/sieve.h"

/* NULL where the compiler has no tiles. Needs AVX-512. */
const struct sv_gemm_kern *sv_test_kern_sieve_tiles(enum sv_sieve_plane plane);

#endif
