/*
 * codes_lane.cuh - what a lane of a wave, of 32 lanes or of 64, has of a strip of codes (codes.cuh,
 * mxfp4.cuh): words, and the pairs of wcomp.cuh that they become.
 *
 * Included by moe_queue.cuh and gemm_portable.cuh. A strip is 16 rows and 64 columns. Must not:
 * know of sums.
 */
#ifndef SV_GPU_CODES_LANE_CUH
#define SV_GPU_CODES_LANE_CUH

#include "backend/gpu/codes_value.cuh"

enum { CODED_HALVES = 64 / GPU_WAVE }; /* of a strip's columns, that a lane has something of */
enum { EXPANDED_STRIP = 16 * 128 };    /* bytes of a strip in bf16 */

/* Words of a lane, and bytes: of a strip, from one tile to the next, and in front of scales. Of
 * Q5_K the last word of half a strip has a half of word 4 in its lower bits. */
template <int BITS_> struct piece_of_codes {
    typedef typename sv_codes_row<BITS_>::type row;
    enum {
        BITS = BITS_,
        WORDS = CODED_HALVES == 2 ? SV_CODES_WORDS(BITS) : (SV_CODES_WORDS(BITS) + 1) / 2,
        SCALES = 2,
        BYTES = SV_CODES_STRIP_BYTES(BITS),
        STEP = SV_CODES_TILE_BYTES(BITS),
        SCALES_AT = SV_CODES_SCALES_AT(BITS)
    };
};

/* A lane's words of a piece, and the scales of its rows. */
template <class PIECE> struct lane_words {
    uint32_t word[PIECE::WORDS];
    typename PIECE::row scale[PIECE::SCALES];
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

/* K-quants. */
template <class PIECE, class FROM>
static __device__ __forceinline__ void fetch_k_codes(struct lane_words<PIECE> &c, const FROM &from)
{
    const uint32_t lane = gpu_lane() % 32, upper = gpu_lane() / 32;
    if constexpr (CODED_HALVES == 2) {
        const uint4 v = from.four(16 * lane);
        c.word[0] = v.x;
        c.word[1] = v.y;
        c.word[2] = v.z;
        c.word[3] = v.w;
#pragma unroll
        for (int q = 4; q < PIECE::WORDS; q++)
            c.word[q] = from.one(512 + 4 * ((PIECE::WORDS - 4) * lane + q - 4));
    } else {
        constexpr int EACH = PIECE::BITS == 7 ? 3 : 2;
#pragma unroll
        for (int q = 0; q < EACH; q++)
            c.word[q] = from.one(
                (uint32_t)sv_codes_word_at((int32_t)lane, EACH * (int32_t)upper + q, PIECE::BITS));
        if constexpr (PIECE::BITS == 6)
            c.word[2] = from.one(512 + 4 * lane) >> 16 * upper;
    }
    const uint4 v = from.four(PIECE::SCALES_AT + lane / 4 * 16);
    c.scale[0] = make_uint2(v.x, v.y);
    c.scale[1] = make_uint2(v.z, v.w);
}

/* Of a wave of 64, the upper lanes have the second half of the columns. */
template <class PIECE, class FROM>
static __device__ __forceinline__ void fetch_codes(struct lane_words<PIECE> &c, const FROM &from)
{
    const uint32_t lane = gpu_lane() % 32, upper = gpu_lane() / 32;
    if constexpr (sizeof c.scale[0] == 8) {
        fetch_k_codes(c, from);
        return;
    } else if constexpr (PIECE::WORDS == 2) {
        c.word[0] = from.one(16 * lane + 8 * upper);
        c.word[1] = from.one(16 * lane + 8 * upper + 4);
    } else {
#pragma unroll
        for (int q = 0; q < PIECE::WORDS; q += 4) {
            const uint4 v = from.four(128 * q + 512 * upper + 16 * lane);
            c.word[q] = v.x;
            c.word[q + 1] = v.y;
            c.word[q + 2] = v.z;
            c.word[q + 3] = v.w;
        }
    }
    if constexpr (sizeof c.scale[0] == 4)
#pragma unroll
        for (int i = 0; i < PIECE::SCALES; i++)
            c.scale[i] = from.one(PIECE::SCALES_AT + 32 * i + lane / 4 * 4);
}

/* Pairs of a lane, by halves of the columns. */
typedef uint32_t lane_pairs[CODED_HALVES][8];

/* factor: see sv_codes_step. */
template <int CODE, class PIECE>
static __device__ __forceinline__ void expand_lane(lane_pairs &pair,
                                                   const struct lane_words<PIECE> &c, float factor)
{
    const int first = CODED_HALVES < 2 ? gpu_lane() / 32 * 2 : 0;
    const struct sv_codes_scale s[2] = {sv_codes_scale_of<CODE>(c.scale[0]),
                                        sv_codes_scale_of<CODE>(c.scale[1])};
#pragma unroll
    for (int step = 0; step < 2 * CODED_HALVES; step++) {
        uint32_t four[4];
        sv_codes_lane_step<CODE, 2 * CODED_HALVES>(four, c.word, step, first + step, s, factor);
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[step / 2][step % 2 * 4 + i] = four[i];
    }
}

/* A wave's pairs to shared memory, in the places of 16 rows of 128 bytes. What was read there
 * before has been read, and all lanes' are there after it. */
static __device__ __forceinline__ void lay_pairs(uint32_t own, const lane_pairs &pair)
{
    const int lane = gpu_lane() % 32, first = gpu_lane() / 32 * 8;
    gpu_wave_sync();
#pragma unroll
    for (int i = 0; i < 8 * CODED_HALVES; i++) {
        const int row = sv_wcomp_row(lane, first + i), col = sv_wcomp_col(lane, first + i);
        gpu_store4(own + gpu_place<128>(row, col / 8) + col % 8 * 2, pair[i / 8][i % 8]);
    }
    gpu_wave_sync();
}

#endif
