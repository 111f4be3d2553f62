/*
 * mxfp4.cuh - the layout of MXFP4 matrices in device memory, as index arithmetic, and how their
 * codes become bf16.
 *
 * Included by moe_codes.cuh, which multiplies by them, by mxfp4.cu, which makes them of rows as
 * files have them, and by tests in plain C++. A tile is that of pack.cuh in 2176 bytes: the codes
 * of four strips of 16 rows, 512 bytes each, then their scales, 32 bytes each. Lane l of 32 has the
 * 16 pairs of neighbouring columns of wcomp.cuh, which a matrix instruction of Hopper takes as they
 * are: word q, at 16 l + 4 q, has the pairs 4 q to 4 q + 3. Its half j has the codes of column j of
 * these, their bits where two instructions bring them to those of bf16. Must not: know of experts.
 */
#ifndef SV_GPU_MXFP4_CUH
#define SV_GPU_MXFP4_CUH

#include "backend/gpu/wcomp.cuh"

enum {
    SV_MXFP4_BLOCK = 32, /* columns that share a scale */
    SV_MXFP4_WORDS = 4,  /* of a lane in a tile */
    SV_MXFP4_STRIP_BYTES = 512,
    SV_MXFP4_SCALES_AT = 4 * SV_MXFP4_STRIP_BYTES,
    SV_MXFP4_TILE_BYTES = SV_MXFP4_SCALES_AT + 4 * 32
};

static SV_HD size_t sv_mxfp4_bytes(int32_t rows, int32_t cols)
{
    return (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * SV_MXFP4_TILE_BYTES;
}

/* A code (sign, two bits of exponent, one of mantissa) as column j of a word's pair i. */
static SV_HD uint32_t sv_mxfp4_bits(uint32_t code, int32_t i, int32_t j)
{
    const uint32_t sign = code >> 3 & 1, rest = code & 7;
    const uint32_t bits = i < 3 ? (sign << 15 | rest << 6) >> 3 * i
                                : sign << 14 | (rest & 4) << 11 | (rest & 3) << 10;
    return bits << 16 * j;
}

/* Where a tile has the scale of a strip's row, of columns 32 half and on. */
static SV_HD int32_t sv_mxfp4_scale_at(int32_t strip, int32_t row, int32_t half)
{
    return SV_MXFP4_SCALES_AT + 32 * strip + 4 * (row % 8) + 2 * (row / 8) + half;
}

#ifdef __cplusplus

/* Pair I of a word, times 2^-126: the numbers of bf16 with an exponent below 4. */
template <int I> static __device__ __forceinline__ uint32_t sv_mxfp4_small(uint32_t word)
{
    if (I < 3)
        return word << 3 * I & 0x81c081c0u;
    return (word << 1 & 0x80008000u) | (word >> 5 & 0x01000100u) | (word >> 4 & 0x00c000c0u);
}

/* The four pairs of word q. scales: of the lane's two rows, two bytes each. A scale s stands for
 * 2^(s - 127), so 2^(s - 1) is what is missing, and bf16 has it up to s = 128: beyond, in two
 * steps. */
static __device__ __forceinline__ void sv_mxfp4_expand(uint32_t (&pair)[4], uint32_t word, int q,
                                                       uint32_t scales)
{
    const int shift = q / 2 * 8;
    uint32_t by[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        by[r] = ((scales >> (16 * r + shift) & 0xff) * 0x10001u << 7) + (126u << 7) * 0x10001u;
    pair[0] = sv_mxfp4_small<0>(word);
    pair[1] = sv_mxfp4_small<1>(word);
    pair[2] = sv_mxfp4_small<2>(word);
    pair[3] = sv_mxfp4_small<3>(word);
    if (scales & 0x80808080u) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const uint32_t s = scales >> (16 * r + shift) & 0xff;
            if (s < 128)
                continue;
            const uint32_t rest = s == 255 ? 0x7fc0u : (s - 1) << 7;
            by[r] = 254u * 0x800080u;
            pair[r] = gpu_scale2(pair[r], rest * 0x10001u);
            pair[r + 2] = gpu_scale2(pair[r + 2], rest * 0x10001u);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        pair[i] = gpu_scale2(pair[i], by[i % 2]);
}

#endif

#endif
