/*
 * attention_latent_sm90.cu - attention over latents on the matrix instructions of sm_90a.
 *
 * Launched by attention.cu. attention_latent.cuh is the kernel; here are its products: two
 * warpgroups have all 64 queries each, the scores of half of the keys and the sums of half of the
 * columns. Must not: let a sum's order depend on anything but the place of a key or column.
 */
#include "backend/gpu/gpu.h"

enum { COL_WAVES = 2, KEY_WAVES = COL_WAVES, ROW_WAVES = 4, TOGETHER = 1 };

#include "backend/cuda/attention_wgmma.cuh"
#include "backend/gpu/attention_latent.cuh"

static_assert(OWN_16 == 1 && OWN_KEYS == 32 && COLS == 256, "widths of the instructions below");

static __device__ __forceinline__ void copied(void)
{
    attn_proxy_fence();
}

/* leading: bytes from 64 columns to the next where they are the product's; 8 rows on: 1 KiB. */
static __device__ __forceinline__ uint64_t descriptor(uint32_t at, uint32_t leading)
{
    return ((uint64_t)1 << 62) | ((uint64_t)(1024 >> 4) << 32) | ((uint64_t)(leading >> 4) << 16) |
           ((at & 0x3ffffu) >> 4);
}

static __device__ __forceinline__ void scores(float (&s)[OWN_16][OWN_KEYS / GPU_COLS][4],
                                              const struct fragments &, const struct room &m,
                                              uint32_t keys, uint32_t, uint32_t key0)
{
    const uint64_t q = descriptor(m.queries, 16), k = descriptor(keys + key0 * 128, 16);
    attn_wgmma_pin(s[0]);
    attn_wgmma_fence();
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            attn_wgmma_scores(s[0], q + part * (QUERY_PART >> 4) + 2 * step,
                              k + part * (KEY_PART >> 4) + 2 * step, part + step > 0);
    attn_wgmma_commit();
    attn_wgmma_wait<0>();
    attn_wgmma_pin(s[0]);
}

static __device__ __forceinline__ void values(struct sum<COLS> (&c)[OWN_16], float (&l)[OWN_16][4],
                                              const uint32_t (&)[OWN_16][OWN_KEYS / 16][PAIRS_16],
                                              uint32_t weights, uint32_t keys, uint32_t query0,
                                              uint32_t col0)
{
    typedef float half[16][4]; /* of the sums: 128 columns */
    half &low = *(half *)&c[0].o[0], &high = *(half *)&c[0].o[16];
    const uint64_t v = descriptor(keys + col0 / 64 * KEY_PART, KEY_PART);
    uint32_t p[KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        gpu_load_p<128>(p[k], weights, query0, 16 * k);
        gpu_mma_ones(l[0], p[k]);
    }
    attn_wgmma_pin(p);
    attn_wgmma_pin(low);
    attn_wgmma_pin(high);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) { /* 16 keys on: 2 KiB */
        attn_wgmma_values<128>(low, p[k], v + k * (2048 >> 4), 1);
        attn_wgmma_values<128>(high, p[k], v + k * (2048 >> 4) + (2 * KEY_PART >> 4), 1);
    }
    attn_wgmma_commit();
    attn_wgmma_wait<0>();
    attn_wgmma_pin(p);
    attn_wgmma_pin(low);
    attn_wgmma_pin(high);
}

template <bool F8>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_latent_sm90(const __grid_constant__ struct sv_attn_args a)
{
    attn_latents<F8>(a);
}

void sv_cuda_attn_latent_sm90(bool f8, struct sv_attn_launch *out)
{
    *out = attn_latent_launch(f8 ? attn_latent_sm90<true> : attn_latent_sm90<false>);
}
