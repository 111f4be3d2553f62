/*
 * moe_sums.cuh - a tile's products for moe.cuh with the instructions of gpu.h: begun, and finished
 * before the tile may go. acc: gpu_sums(N) registers; w_at: this wave's 16 weight rows; x_at: N
 * rows.
 *
 * Included by moe.cu before moe.cuh. Must not: know of experts.
 */
#ifndef SV_GPU_MOE_SUMS_CUH
#define SV_GPU_MOE_SUMS_CUH

#include "backend/cuda/gemm.h"
#include "backend/gpu/gpu.h"

static __device__ __forceinline__ void handed_over(void)
{
}
template <int N>
static __device__ __forceinline__ void begin_sums(float (&)[gpu_sums(N)], uint32_t, uint32_t)
{
}
template <int N>
static __device__ __forceinline__ void end_sums(float (&acc)[gpu_sums(N)], uint32_t w_at,
                                                uint32_t x_at)
{
    const int lane = gpu_lane();
    if constexpr (N == 8) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[4];
            gpu_load_b8(x, x_at + gpu_place<128>(lane % 8, half * 4 + gpu_b8_chunk()));
#pragma unroll
            for (int step = 0; step < 32 / GPU_K; step++) {
                uint32_t w[4];
                gpu_load_a(
                    w, w_at + gpu_place<128>(lane % 16, half * 4 + step * (GPU_K / 8) + lane / 16));
                gpu_mma8(acc, w, x, step);
            }
        }
    } else {
#pragma unroll
        for (int step = 0; step < SV_TILE / GPU_K; step++) {
            uint32_t w[4];
            gpu_load_a(w, w_at + gpu_place<128>(lane % 16, step * (GPU_K / 8) + lane / 16));
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                uint32_t x[4];
                gpu_load_b(x, x_at + j * 16 * 128 +
                                  gpu_place<128>(gpu_b_row(), step * (GPU_K / 8) + gpu_b_chunk()));
                gpu_mma(acc + j * (64 / GPU_COLS), w, x);
            }
        }
    }
}

#endif
