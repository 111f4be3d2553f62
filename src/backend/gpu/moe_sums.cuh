/*
 * moe_sums.cuh - a tile's products for moe.cuh with the instructions of gpu.h: begun, and finished
 * before the tile may go. acc: gpu_sums(N) registers; w_at: this wave's 16 weight rows; x_at: N
 * rows.
 *
 * begin_coded and end_coded: the same where the wave has its weights in registers, in pairs of
 * wcomp.cuh, by way of shared memory.
 *
 * Included by moe.cu before moe.cuh. Must not: know of experts.
 */
#ifndef SV_GPU_MOE_SUMS_CUH
#define SV_GPU_MOE_SUMS_CUH

#include "backend/cuda/gemm.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/moe_queue.cuh"
#include "backend/gpu/wcomp.cuh"

template <int, sv_moe_form FORM> struct code_queue : held_codes<2, FORM> {
    enum { BYTES = SV_TILE_BYTES / 4 };
};

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

template <int N>
static __device__ __forceinline__ void
begin_coded(float (&acc)[gpu_sums(N)], const lane_pairs &pair, uint32_t own, uint32_t x_at)
{
    lay_pairs(own, pair);
    end_sums<N>(acc, own, x_at);
}
static __device__ __forceinline__ void end_coded(void)
{
}

#endif
