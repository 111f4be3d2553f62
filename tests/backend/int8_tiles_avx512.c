/*
 * int8_tiles_avx512.c - the kernel of cpu/gemm_int8_amx.c with its tile instructions emulated, so
 * that machines without them can compare its bits.
 *
 * Called by test_int8.c after cpuid said AVX-512. Must not: be used where instructions are timed.
 */
#include "backend/int8_tiles.h"

#if !defined(SV_NO_AMX) && !defined(SV_NO_AVX512)
#include "backend/tiles_emulated.h"

#define INT8_AMX_FROM 1
#define sv_gemm_kern_int8_amx sv_test_kern_int8_tiles
#include "backend/cpu/gemm_int8_amx.c" /* int8_tiles.h has declared what this name stands for */
#else
const struct sv_gemm_kern *sv_test_kern_int8_tiles(void)
{
    return NULL;
}
#endif
