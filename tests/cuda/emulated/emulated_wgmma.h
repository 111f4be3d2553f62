/*
 * emulated_wgmma.h - attention's instructions of sm_90a for the emulator: operands are found
 * through descriptors with the 128-byte swizzle, as the PTX manual lays them out. Results are there
 * at once: a missing wait is not noticed.
 *
 * Included by attention_wgmma.cuh in emulated builds.
 */
#ifndef SV_EMULATED_WGMMA_H
#define SV_EMULATED_WGMMA_H

#include "backend/gpu/gpu.h"

/* d (64, n) of this lane's warp; keys: B's columns are rows of the tile, else they run along its
 * rows. */
void emu_wgmma(float *d, const uint32_t *a, uint64_t b, int n, bool keys, int keep);
void emu_wgmma_wait(int pending);
void emu_wgmma_commit(void);

static inline void attn_wgmma_fence(void)
{
}
static inline void attn_wgmma_commit(void)
{
    emu_wgmma_commit();
}
template <int PENDING> static inline void attn_wgmma_wait(void)
{
    emu_wgmma_wait(PENDING);
}
template <int N> static inline void attn_wgmma_pin(float (&)[N][4])
{
}
template <int N> static inline void attn_wgmma_pin(uint32_t (&)[N][4])
{
}
static inline void attn_wgmma_pin(uint32_t &)
{
}
static inline void attn_proxy_fence(void)
{
}

/* This warp's sixteen rows of a, 16 columns from the chunk that the descriptor names on. */
static inline void attn_wgmma_scores(float (&d)[8][4], uint64_t a, uint64_t b, int keep)
{
    const uint32_t start = ((uint32_t)(a & 0x3fff) << 4) + emu.rank * (uint32_t)emu.smem,
                   lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16,
                   chunk = start % 128 / 16 + lane / 16;
    uint32_t r[4];
    gpu_load_a(r, start / 128 * 128 + gpu_place<128>(row, chunk));
    emu_wgmma(&d[0][0], r, b, 64, true, keep);
}
static inline void attn_wgmma_keys(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, int keep)
{
    emu_wgmma(&d[0][0], a, b, 64, true, keep);
}
template <int N>
static inline void attn_wgmma_values(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b,
                                     int keep)
{
    emu_wgmma(&d[0][0], a, b, N, false, keep);
}

#endif
