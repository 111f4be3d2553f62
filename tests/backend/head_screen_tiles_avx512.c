/*
 * head_screen_tiles_avx512.c - the kernel of cpu/head_screen_amx.c with its tile instructions
 * emulated, so that machines without them can compare its sums.
 *
 * Called by test_head_screen.c after cpuid said AVX-512. Must not: be used where instructions are
 * timed.
 */
#include "backend/head_screen_tiles.h"

#if !defined(SV_NO_AMX) && !defined(SV_NO_AVX512)
#include "backend/tiles_emulated.h"

#define sv_gemm_kern_screen_amx sv_test_kern_screen_tiles
#include "backend/cpu/head_screen_amx.c" /* head_screen_tiles.h has declared what this name stands for */
#else
const struct sv_gemm_kern *sv_test_kern_screen_tiles(enum sv_screen_plane plane)
{
    (void)plane;
    return NULL;
}
#endif
