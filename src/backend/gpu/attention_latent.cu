/*
 * attention_latent.cu - attention over latents on the matrix instructions that all cards of a
 * vendor have (gpu.h).
 *
 * Launched by attention.cu. attention_latent.cuh is the kernel; here are its products. Must not:
 * let a sum's order depend on anything but the place of a key or column.
 */
#include "backend/gpu/gpu.h"

/* Where 64 KiB of shared memory do not hold queries beside keys, a wave has 16 in registers. Two
 * waves have the same: the sums of 512 columns and 16 queries beside are too many registers. */
enum {
    COL_WAVES = GPU_SMALL_SHARED ? 2 : 4,
    KEY_WAVES = GPU_SMALL_SHARED ? 1 : 4,
    ROW_WAVES = GPU_SMALL_SHARED ? 4 : 2,
    TOGETHER = 0
};

#include "backend/gpu/attention_latent.cuh"

static_assert(KEY_WAVES == 1 || KEY_WAVES * GPU_WAVE == 128, "a group of gpu_group_sync");

static __device__ __forceinline__ void copied(void)
{
}

/* s (OWN, OWN_KEYS) = q k^T, keys from key0 on. */
static __device__ __forceinline__ void scores(float (&s)[OWN_16][OWN_KEYS / GPU_COLS][4],
                                              const struct fragments &f, const struct room &m,
                                              uint32_t keys, uint32_t query0, uint32_t key0)
{
    const uint32_t row = gpu_b_row(), chunk = gpu_b_chunk(), lane = gpu_lane();
#pragma unroll
    for (int i = 0; i < OWN_16; i++)
#pragma unroll
        for (int n = 0; n < OWN_KEYS / GPU_COLS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][n][e] = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (KEY_WAVES == 1)
            gpu_wave_sync(); /* or the compiler loads more than there are registers for */
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t b[OWN_KEYS / 16][4], q[OWN_16][4];
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 16; n++)
                gpu_load_b(b[n], keys + part * KEY_PART +
                                     place(key0 + 16 * n + row, GPU_K / 8 * k + chunk));
#pragma unroll
            for (int i = 0; i < OWN_16; i++) {
                if (KEY_WAVES > 1)
                    gpu_load_a(q[i], m.queries + part * QUERY_PART +
                                         place(query0 + 16 * i + (lane & 15),
                                               GPU_K / 8 * k + (lane >> 4)));
                else
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        q[i][e] = f.q[KEY_WAVES > 1 ? 0 : part * STEPS + k][e];
#pragma unroll
                for (int n = 0; n < OWN_KEYS / 16; n++)
                    gpu_mma(s[i][n * FOURS_16], q[i], b[n]);
            }
        }
    }
}

/* o += p v, l += p 1: columns from col0 on of all keys of the tile. */
static __device__ __forceinline__ void
values(struct sum<COLS> (&c)[OWN_16], float (&l)[OWN_16][4],
       const uint32_t (&own)[OWN_16][OWN_KEYS / 16][PAIRS_16], uint32_t weights, uint32_t keys,
       uint32_t query0, uint32_t col0)
{
    const uint32_t none = gpu_afresh(0);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t p[OWN_16][PAIRS_16];
#pragma unroll
        for (int i = 0; i < OWN_16; i++) {
            if (KEY_WAVES > 1)
                gpu_load_p<128>(p[i], weights, query0 + 16 * i, 16 * k);
            else
#pragma unroll
                for (int e = 0; e < PAIRS_16; e++)
                    p[i][e] = own[i][KEY_WAVES > 1 ? 0 : k][e];
            gpu_mma_ones(l[i], p[i]);
        }
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) {
            uint32_t v[PAIRS_16];
            if (KEY_WAVES == 1 && n % 4 == 0)
                gpu_wave_sync();
            gpu_load_t<128>(v, keys + (col0 / 64 + n / 4) * KEY_PART, 16 * k + none, n % 4 * 16);
#pragma unroll
            for (int i = 0; i < OWN_16; i++)
                gpu_mma_t(c[i].o[n * FOURS_16], p[i], v);
        }
    }
}

template <bool F8>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_latent(const __grid_constant__ struct sv_attn_args a)
{
    attn_latents<F8>(a);
}

void sv_cuda_attn_latent(bool f8, struct sv_attn_launch *out)
{
    *out = attn_latent_launch(f8 ? attn_latent<true> : attn_latent<false>);
}
