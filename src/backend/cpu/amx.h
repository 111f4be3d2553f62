/*
 * amx.h - configures AMX's tiles, for the kernels that multiply by them.
 *
 * Included by attention_amx.c, gemm_amx.c, gemm_int8_amx.c and head_screen_amx.c. Must not: be
 * called before the kernel gave tile state (cpuid.c).
 */
#ifndef SV_CPU_AMX_H
#define SV_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* GCC's tile loads do not declare that they read memory: their data must be stored before. */
static inline void stored_before_tiles(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

static inline void configure_tiles(struct tile_config *t)
{
    t->palette = 1;
    stored_before_tiles(t);
    _tile_loadconfig(t);
}

static void release_tiles(void)
{
    _tile_release();
}

#endif
