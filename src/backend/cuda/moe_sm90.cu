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

/* Pieces come TURNS_ at a time, by the copy engine, to slots; behind these stand their barriers.
 * Loads to registers, however many are under way, are waited for all at once: nvcc counts them
 * together. The copy engine is slow where a copy does not lie in lines of 128 bytes as its source
 * does: four pieces of MXFP4 are whole lines. AT_ONCE_ 2: a wave by itself has time between
 * instructions. */
template <sv_moe_form FORM, int TURNS_, int AT_ONCE_, int SLOTS_> struct ring_codes {
    enum {
        TURNS = TURNS_,
        AT_ONCE = AT_ONCE_,
        HAS_ALL_ASKED = 1,
        SLOTS = SLOTS_,
        PIECE = piece<FORM>::BYTES,
        STEP = piece<FORM>::STEP,
        SLOT = TURNS * PIECE,
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
        if (left > 0) {
            const int32_t pieces = min(left, (int32_t)TURNS);
            if (gpu_lane() == 0)
                bar_expect(slot_bar, pieces * PIECE);
            if (STEP == PIECE) {
                if (gpu_lane() == 0)
                    copy_tile(slot, from, pieces * PIECE, slot_bar, once);
            } else {
                __syncwarp();
                if (gpu_lane() < pieces)
                    copy_tile(slot + gpu_lane() * PIECE, from + gpu_lane() * STEP, PIECE, slot_bar,
                              once);
            }
        }
        left -= TURNS;
        from += TURNS * STEP;
    }
    __device__ __forceinline__ bool all_asked(void) const
    {
        return left <= 0;
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
        struct lane_codes<FORM> c;
        if (i == 0 && t < n)
            bar_wait_warp(bar, parity);
        fetch_codes(c, in_shared{at + i * PIECE});
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

/* More entries spread the time of weights over more. Codes of 8 bits are too many for registers. */
template <int N, sv_moe_form FORM>
struct code_queue : held_codes<N <= 32   ? 6
                               : N <= 64 ? 4
                                         : 2,
                               FORM> {
    enum { BYTES = 0 };
};
template <sv_moe_form FORM> struct code_queue<8, FORM> : ring_codes<FORM, 4, 2, 3> {
};
template <sv_moe_form FORM> struct code_queue<16, FORM> : ring_codes<FORM, 4, 2, 3> {
};
template <> struct code_queue<16, SV_MOE_CODES8> : ring_codes<SV_MOE_CODES8, 2, 2, 4> {
};
template <> struct code_queue<32, SV_MOE_CODES8> : ring_codes<SV_MOE_CODES8, 2, 2, 4> {
};
template <> struct code_queue<64, SV_MOE_CODES8> : ring_codes<SV_MOE_CODES8, 1, 1, 4> {
};
template <> struct code_queue<128, SV_MOE_CODES8> : ring_codes<SV_MOE_CODES8, 1, 1, 3> {
};

/* Weights go from registers to wgmma as they are. */
template <int N>
static __device__ __forceinline__ void begin_coded(float (&acc)[gpu_sums(N)],
                                                   const uint32_t (&pair)[CODED_HALVES][8],
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

#include "backend/cuda/moe_joined.cuh"
#include "backend/gpu/moe_codes.cuh"

#define CODED_WIDTHS(FORM)                                                                         \
    {                                                                                              \
        coded_width_of<FORM, 8, 1>(), coded_width_of<FORM, 16, 1>(),                               \
            coded_width_of<FORM, 32, 1>(), coded_width_of<FORM, 64, 2>(),                          \
            coded_width_of<FORM, 128, 2>()                                                         \
    }

const struct sv_moe_width *sv_moe_sm90(enum sv_moe_form form)
{
    static const struct sv_moe_width widths[SV_MOE_FORMS][SV_MOE_WIDTHS] = {
        {width_of<8, 1>(), width_of<16, 1>(), width_of<32, 1>(), width_of<64, 2>(),
         width_of<128, 2>()},
        CODED_WIDTHS(SV_MOE_MXFP4),
        CODED_WIDTHS(SV_MOE_CODES8),
        CODED_WIDTHS(SV_MOE_CODES4)};
    return widths[form];
}
