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
#include "backend/gpu/codes.cuh"
#include "backend/gpu/gpu.h"
#include "backend/gpu/mxfp4.cuh"

enum { CODED_HALVES = 64 / GPU_WAVE }; /* of a piece's columns, that a lane has something of */

/* Words of a lane, and bytes: of a piece, from one to the next, and in front of its scales. */
template <sv_moe_form> struct piece;
template <> struct piece<SV_MOE_MXFP4> {
    enum {
        WORDS = 2 * CODED_HALVES,
        SCALES = 1,
        BYTES = SV_MXFP4_PIECE,
        STEP = BYTES,
        SCALES_AT = SV_MXFP4_SCALES_AT
    };
};
template <int BITS> struct piece_of_codes {
    enum {
        WORDS = BITS / 2 * CODED_HALVES,
        SCALES = 2,
        BYTES = SV_CODES_STRIP_BYTES(BITS),
        STEP = SV_CODES_TILE_BYTES(BITS),
        SCALES_AT = SV_CODES_SCALES_AT(BITS)
    };
};
template <> struct piece<SV_MOE_CODES8> : piece_of_codes<8> {
};
template <> struct piece<SV_MOE_CODES4> : piece_of_codes<4> {
};

/* A lane's words of a piece (mxfp4.cuh, codes.cuh), and the scales of its rows. */
template <sv_moe_form FORM> struct lane_codes {
    uint32_t word[piece<FORM>::WORDS], scale[piece<FORM>::SCALES];
};

/* Where a piece is read from. */
struct in_memory {
    const uint8_t *at;
    __device__ __forceinline__ uint4 four(uint32_t i) const
    {
        return *(const uint4 *)(at + i);
    }
    __device__ __forceinline__ uint32_t one(uint32_t i) const
    {
        return *(const uint32_t *)(at + i);
    }
};
struct in_shared {
    uint32_t at;
    __device__ __forceinline__ uint4 four(uint32_t i) const
    {
        return gpu_load16(at + i);
    }
    __device__ __forceinline__ uint32_t one(uint32_t i) const
    {
        return gpu_load4(at + i);
    }
};

/* Of a wave of 64, the upper lanes have the second half of the columns. */
template <sv_moe_form FORM, class FROM>
static __device__ __forceinline__ void fetch_codes(struct lane_codes<FORM> &c, const FROM &from)
{
    typedef piece<FORM> P;
    const uint32_t lane = gpu_lane() % 32, upper = gpu_lane() / 32;
    if constexpr (P::WORDS == 2) {
        c.word[0] = from.one(16 * lane + 8 * upper);
        c.word[1] = from.one(16 * lane + 8 * upper + 4);
    } else {
#pragma unroll
        for (int q = 0; q < P::WORDS; q += 4) {
            const uint4 v = from.four(128 * q + 512 * upper + 16 * lane);
            c.word[q] = v.x;
            c.word[q + 1] = v.y;
            c.word[q + 2] = v.z;
            c.word[q + 3] = v.w;
        }
    }
#pragma unroll
    for (int i = 0; i < P::SCALES; i++)
        c.scale[i] = from.one(P::SCALES_AT + 32 * i + lane / 4 * 4);
}

/* PIECES are on their way. A queue has BYTES of shared memory for the wave, TURNS: pieces after
 * which a loop begins anew, and AT_ONCE: how many a step takes. */
template <int PIECES, sv_moe_form FORM> struct held_codes {
    enum { TURNS = PIECES, AT_ONCE = 1 };
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
