/*
 * moe_queue.cuh - the MXFP4 codes of a wave's strip on their way to it, in registers.
 *
 * Included by moe_sums.cuh and cuda/moe_sm90.cu, which give moe_codes.cuh a code_queue for each
 * width. Must not: know of sums.
 */
#ifndef SV_GPU_MOE_QUEUE_CUH
#define SV_GPU_MOE_QUEUE_CUH

#include "backend/gpu/gpu.h"
#include "backend/gpu/mxfp4.cuh"

enum { CODED_WORDS = 128 / GPU_WAVE }; /* of a lane */

/* A lane's words of a piece (mxfp4.cuh), and the scales of its rows. */
struct lane_codes {
    uint32_t word[CODED_WORDS], scales;
};

/* PIECES are on their way. A queue has BYTES of shared memory for the wave, TURNS: pieces after
 * which a loop begins anew, and AT_ONCE: how many a step takes. */
template <int PIECES> struct held_codes {
    enum { TURNS = PIECES, AT_ONCE = 1 };
    const uint8_t *strip;
    int32_t n;
    struct lane_codes codes[TURNS];

    __device__ __forceinline__ void open(uint32_t)
    {
    }
    __device__ __forceinline__ void fetch(struct lane_codes &c, int32_t t)
    {
        const uint8_t *at = strip + (int64_t)t * SV_MXFP4_PIECE;
        const uint32_t lane = gpu_lane() % 32;
        if (t >= n)
            return;
        if (CODED_WORDS == 4) {
            const uint4 v = *(const uint4 *)(at + 16 * lane);
            c.word[0] = v.x;
            c.word[1] = v.y;
            c.word[CODED_WORDS - 2] = v.z;
            c.word[CODED_WORDS - 1] = v.w;
        } else {
            const uint2 v = *(const uint2 *)(at + 16 * lane + gpu_lane() / 32 * 8);
            c.word[0] = v.x;
            c.word[1] = v.y;
        }
        c.scales = *(const uint32_t *)(at + SV_MXFP4_SCALES_AT + lane / 4 * 4);
    }
    /* n_pieces from `from` on */
    __device__ __forceinline__ void begin(const uint8_t *from, int32_t n_pieces)
    {
        strip = from;
        n = n_pieces;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            codes[i] = lane_codes();
            fetch(codes[i], i);
        }
    }
    /* Piece t, or anything behind the last; i: t % TURNS. One after the other. */
    template <class USE> __device__ __forceinline__ void take(int i, int32_t t, const USE &use)
    {
        use(codes[i]);
        fetch(codes[i], t + TURNS);
    }
};

#endif
