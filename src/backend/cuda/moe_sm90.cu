/*
 * moe_sm90.cu - the matrix products of a mixture of experts on wgmma: a tile's products for
 * moe.cuh, whose kernels this file builds once more. Their table goes to moe.cu.
 *
 * tile: 64 weight rows, for all four warps that share them. Must not: know of experts.
 */
#include "backend/cuda/barrier.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/wgmma_reg.cuh"
#include "backend/gpu/gpu.h"
#include "backend/gpu/moe_queue.cuh"

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

/* Of few entries, pieces come TURNS at a time, by the copy engine, to slots; behind these stand
 * their barriers. Loads to registers, however many are under way, are waited for all at once: nvcc
 * counts them together. The copy engine is slow where a copy does not lie in lines of 128 bytes as
 * its source does: four pieces are whole lines. */
struct ring_codes {
    enum {
        TURNS = 4,
        AT_ONCE = 2, /* a wave by itself has time between instructions */
        SLOTS = 3,
        SLOT = TURNS * SV_MXFP4_PIECE,
        BYTES = (SLOTS * (SLOT + 8) + 127) / 128 * 128
    };
    const uint8_t *from; /* what comes next */
    int32_t n, left;     /* pieces; of these, to come */
    uint32_t own, at, bar, parity;
    uint64_t once;

    __device__ __forceinline__ void open(uint32_t own_)
    {
        own = at = own_;
        bar = own + SLOTS * SLOT;
        parity = 0;
        once = gpu_stream_policy();
        if (gpu_lane() < SLOTS)
            bar_init(bar + 8 * gpu_lane(), 1);
        bar_made();
        __syncwarp();
    }
    __device__ __forceinline__ void fetch(uint32_t slot, uint32_t slot_bar)
    {
        if (left > 0 && gpu_lane() == 0) {
            const uint32_t bytes = (uint32_t)min(left, (int32_t)TURNS) * SV_MXFP4_PIECE;
            bar_expect(slot_bar, bytes);
            copy_tile(slot, from, bytes, slot_bar, once);
        }
        left -= TURNS;
        from += SLOT;
    }
    __device__ __forceinline__ void begin(const uint8_t *strip, int32_t n_pieces)
    {
        from = strip;
        n = left = n_pieces;
#pragma unroll 1
        for (int i = 0; i < SLOTS; i++)
            fetch(own + i * SLOT, bar + 8 * i);
    }
    template <class USE> __device__ __forceinline__ void take(int i, int32_t t, const USE &use)
    {
        struct lane_codes c;
        if (i == 0 && t < n)
            bar_wait_warp(bar, parity);
        const uint32_t piece = at + i * SV_MXFP4_PIECE;
        const uint4 v = gpu_load16(piece + gpu_lane() * 16);
        c.word[0] = v.x;
        c.word[1] = v.y;
        c.word[2] = v.z;
        c.word[3] = v.w;
        c.scales = gpu_load4(piece + SV_MXFP4_SCALES_AT + gpu_lane() / 4 * 4);
        if (i == TURNS - 1) {
            __syncwarp(); /* all have read */
            fetch(at, bar);
            at += SLOT;
            bar += 8;
            if (at == own + SLOTS * SLOT) {
                at = own;
                bar = own + SLOTS * SLOT;
                parity ^= 1;
            }
        }
        use(c);
    }
};

/* More entries spread the time of weights over more. */
template <int N> struct code_queue : held_codes<N <= 32 ? 6 : N <= 64 ? 4 : 2> {
    enum { BYTES = 0 };
};
template <> struct code_queue<8> : ring_codes {
};
template <> struct code_queue<16> : ring_codes {
};

/* Weights go from registers to wgmma as they are. */
template <int N>
static __device__ __forceinline__ void begin_coded(float (&acc)[gpu_sums(N)],
                                                   const uint32_t (&pair)[CODED_WORDS / 2][8],
                                                   uint32_t, uint32_t x_at)
{
    const uint64_t x = sv_wgmma_desc(x_at);
    sv_wgmma_fence();
#pragma unroll
    for (int step = 0; step < SV_TILE / 16; step++)
        sv_wgmma_reg<N>(acc, &pair[step / 2][step % 2 * 4], x + 2 * step, 1);
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
