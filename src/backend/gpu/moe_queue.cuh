/*
 * moe_queue.cuh - the codes of a wave's strip on their way to it, in registers.
 *
 * Included by moe_sums.cuh and cuda/moe_sm90.cu, which give moe_codes.cuh a code_queue for each
 * width and form. A piece is 16 rows and 64 columns. Must not: know of sums, or what a code is
 * worth.
 */
#ifndef SV_GPU_MOE_QUEUE_CUH
#define SV_GPU_MOE_QUEUE_CUH

#include "backend/cuda/moe.h"
#include "backend/gpu/codes_lane.cuh"
#include "backend/gpu/mxfp4.cuh"

/* See piece_of_codes. */
template <sv_moe_form> struct piece;
template <> struct piece<SV_MOE_MXFP4> {
    typedef uint32_t row;
    enum {
        WORDS = 2 * CODED_HALVES,
        SCALES = 1,
        BYTES = SV_MXFP4_PIECE,
        STEP = BYTES,
        SCALES_AT = SV_MXFP4_SCALES_AT
    };
};
template <> struct piece<SV_MOE_CODES8> : piece_of_codes<8> {
};
template <> struct piece<SV_MOE_CODES4> : piece_of_codes<4> {
};

template <sv_moe_form FORM> struct lane_codes : lane_words<piece<FORM>> {
};

/* PIECES are on their way. A queue has BYTES of shared memory for the wave, TURNS: pieces after
 * which a loop begins anew, and AT_ONCE: how many a step takes; HAS_ALL_ASKED: all_asked() says
 * whether all are there or on their way. */
template <int PIECES, sv_moe_form FORM> struct held_codes {
    enum { TURNS = PIECES, AT_ONCE = 1, HAS_ALL_ASKED = 0 };
    const uint8_t *strip;
    int32_t n;
    struct lane_codes<FORM> codes[TURNS];

    __device__ __forceinline__ void open(uint32_t)
    {
    }
    __device__ __forceinline__ void fetch(struct lane_codes<FORM> &c, int32_t t)
    {
        if (t < n)
            fetch_codes(c, in_memory{strip + (int64_t)t * piece<FORM>::STEP});
    }
    /* n_pieces from `from` on */
    __device__ __forceinline__ void begin(const uint8_t *from, int32_t n_pieces)
    {
        strip = from;
        n = n_pieces;
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            codes[i] = lane_codes<FORM>();
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
