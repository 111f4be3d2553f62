/*
 * moe_sm90.cu - the matrix products of a mixture of experts on wgmma: a tile's products for
 * moe.cuh, whose kernels this file builds once more. Their table goes to moe.cu.
 *
 * tile: 64 weight rows, for all four warps that share them. Must not: know of experts.
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/wgmma_reg.cuh"
#include "backend/gpu/gpu.h"

template <int N>
static __device__ __forceinline__ void begin_sums(float (&acc)[gpu_sums(N)], uint32_t tile,
                                                  uint32_t x_at)
{
    const uint64_t w = sv_wgmma_desc(tile), x = sv_wgmma_desc(x_at);
    sv_wgmma_fence();
#pragma unroll
    for (int step = 0; step < SV_TILE / 16; step++)
        sv_wgmma<N>(acc, w + 2 * step, x + 2 * step, 1);
    sv_wgmma_commit();
}
template <int N>
static __device__ __forceinline__ void end_sums(float (&acc)[gpu_sums(N)], uint32_t, uint32_t)
{
    sv_wgmma_wait<0>();
    sv_wgmma_fence();
}

/* Weights go from registers to wgmma as they are. */
enum { CODED_WORDS = 4, CODED_STRIP = 0 };
static __host__ __device__ constexpr int coded_ahead(int n)
{
    return n <= 16 ? 8 : n == 32 ? 6 : n == 64 ? 4 : 2;
}
template <int N>
static __device__ __forceinline__ void begin_coded(float (&acc)[gpu_sums(N)],
                                                   const uint32_t (&pair)[CODED_WORDS][4], uint32_t,
                                                   uint32_t x_at)
{
    const uint64_t x = sv_wgmma_desc(x_at);
    sv_wgmma_fence();
#pragma unroll
    for (int step = 0; step < SV_TILE / 16; step++)
        sv_wgmma_reg<N>(acc, pair[step], x + 2 * step, 1);
    sv_wgmma_commit();
}
static __device__ __forceinline__ void end_coded(void)
{
    sv_wgmma_wait<0>();
    sv_wgmma_fence();
}

/* What copies and stores put into shared memory is there for wgmma. */
static __device__ __forceinline__ void handed_over(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

#include "backend/gpu/moe_codes.cuh"

const struct sv_moe_width *sv_moe_sm90(enum sv_moe_form form)
{
    static const struct sv_moe_width widths[SV_MOE_FORMS][SV_MOE_WIDTHS] = {
        {width_of<8, 1>(), width_of<16, 1>(), width_of<32, 1>(), width_of<64, 2>(),
         width_of<128, 2>()},
        {coded_width_of<8, 1>(), coded_width_of<16, 1>(), coded_width_of<32, 1>(),
         coded_width_of<64, 2>(), coded_width_of<128, 2>()}};
    return widths[form];
}
