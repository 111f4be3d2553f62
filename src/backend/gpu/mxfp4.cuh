/*
 * mxfp4.cuh - the layout of MXFP4 matrices in device memory, as index arithmetic, and how their
 * codes become bf16.
 *
 * Included by what multiplies by them (moe_codes.cuh), by mxfp4.cu, which makes them of rows as
 * files have them, and by tests in plain C++. A strip is 16 rows: one piece for each 64 columns, of
 * 512 bytes of codes and then 32 of scales. Four strips are a band of pack.cuh's tiles, padding
 * included. Lane l of 32 has the 16 pairs of neighbouring columns of wcomp.cuh, which a matrix
 * instruction of Hopper takes as they are: words 2 h and 2 h + 1, at 16 l + 8 h, have the pairs 8 h
 * to 8 h + 7.
 *
 * A code's four bits are wanted where bf16 has its sign and the lowest bits of its exponent and the
 * highest of its mantissa, of the first column in the lower half, of the second in the upper: a
 * word turned by some bits and masked. Three such masks fit a word, and leave four bits of each
 * half that no turn brings there. Those of both words, the second's two bits higher, make two more.
 * Must not: know of experts.
 */
#ifndef SV_GPU_MXFP4_CUH
#define SV_GPU_MXFP4_CUH

#include "backend/gpu/wcomp.cuh"

enum {
    SV_MXFP4_BLOCK = 32, /* columns that share a scale */
    SV_MXFP4_SCALES_AT = 512,
    SV_MXFP4_PIECE = SV_MXFP4_SCALES_AT + 32 /* bytes of 16 rows and 64 columns */
};

/* Whole lines of memory, for the copy engine. */
static SV_HD int32_t sv_mxfp4_strip_bytes(int32_t cols)
{
    return (sv_tiles(cols) * SV_MXFP4_PIECE + 127) / 128 * 128;
}

static SV_HD size_t sv_mxfp4_bytes(int32_t rows, int32_t cols)
{
    return (size_t)sv_tiles(rows) * 4 * (size_t)sv_mxfp4_strip_bytes(cols);
}

#define SV_MXFP4_MASK 0x81c081c0u
#define SV_MXFP4_LEFT 0x06030603u /* of the first word, in what is left of both */

/* By how much pair i of eight is turned. */
static SV_HD int32_t sv_mxfp4_turn(int32_t i)
{
    return i % 4 == 1 ? 4 : i % 4 == 2 ? 10 : i == 3 ? 6 : i == 7 ? 12 : 0;
}

/* A code (sign, two bits of exponent, one of mantissa) as column j of pair i of eight: its bits in
 * their two words, the second above the first. */
static SV_HD uint64_t sv_mxfp4_bits(uint32_t code, int32_t i, int32_t j)
{
    uint64_t bits = 0;
    for (int32_t b = 0; b < 4; b++) {
        const int32_t from = (16 * j + (b < 3 ? 6 + b : 15) - sv_mxfp4_turn(i)) & 31;
        const bool second = i % 4 == 3 ? !(SV_MXFP4_LEFT >> from & 1) : i > 3;
        const int32_t at = second ? 32 + from - (i % 4 == 3 ? 2 : 0) : from;
        bits |= (uint64_t)(code >> b & 1) << at;
    }
    return bits;
}

/* Where a piece has the scale of a row, of columns 32 half and on. */
static SV_HD int32_t sv_mxfp4_scale_at(int32_t row, int32_t half)
{
    return SV_MXFP4_SCALES_AT + 4 * (row % 8) + 2 * (row / 8) + half;
}

#ifdef __cplusplus

/* A pair, times 2^-126: the numbers of bf16 with an exponent below 4. */
template <int TURN> static __device__ __forceinline__ uint32_t sv_mxfp4_small(uint32_t word)
{
    /* By up to 6, nothing is turned over. */
    return (TURN <= 6 ? word << TURN : sv_wcomp_turned(word, TURN)) & SV_MXFP4_MASK;
}

/* Whether a lane's scales need more than bf16 has: a scale s stands for 2^(s - 127), so 2^(s - 1)
 * is what is missing in sv_mxfp4_small, and bf16 has it up to s = 128. */
static __device__ __forceinline__ bool sv_mxfp4_large(uint32_t scales)
{
    return (scales & 0x80808080u) != 0;
}

/* The eight pairs of words 2 h and 2 h + 1. scales: of the lane's two rows, two bytes each. LARGE:
 * some are, and take two steps. */
template <bool LARGE>
static __device__ __forceinline__ void sv_mxfp4_expand(uint32_t (&pair)[8], uint32_t first,
                                                       uint32_t second, int h, uint32_t scales)
{
    const uint32_t higher = second << 2, left = higher ^ ((first ^ higher) & SV_MXFP4_LEFT);
    pair[0] = sv_mxfp4_small<0>(first);
    pair[1] = sv_mxfp4_small<4>(first);
    pair[2] = sv_mxfp4_small<10>(first);
    pair[3] = sv_mxfp4_small<6>(left);
    pair[4] = sv_mxfp4_small<0>(second);
    pair[5] = sv_mxfp4_small<4>(second);
    pair[6] = sv_mxfp4_small<10>(second);
    pair[7] = sv_mxfp4_small<12>(left);
    uint32_t by[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t s = sv_wcomp_bytes_of(scales, 0, 0x4440u + (uint32_t)(2 * r + h));
        by[r] = s * 0x800080u + (126u << 7) * 0x10001u;
        if (!LARGE || s < 128)
            continue;
        const uint32_t rest = s == 255 ? 0x7fc0u : (s - 1) << 7;
        by[r] = 254u * 0x800080u;
#pragma unroll
        for (int i = r; i < 8; i += 2)
            pair[i] = gpu_scale2(pair[i], rest * 0x10001u);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        pair[i] = gpu_scale2(pair[i], by[i % 2]);
}

#endif

#endif
