/*
 * codes.cuh - the layout of weights in codes of 8 bits (e4m3, or signed bytes) with their scales,
 * as products on Hopper read them.
 *
 * Included by codes_sm90.cu, which makes and expands them, by gemm_codes.cuh, and by a unit test in
 * plain C. A tile is that of pack.cuh in 4352 bytes, a multiple of 128: four strips of 16 rows, one
 * for each warp. A lane holds the 16 pairs of wcomp.cuh: word q has the codes of pair 2 q in bytes
 * 1 and 3 and those of pair 2 q + 1 in bytes 0 and 2; words 0 to 3 stand at 16 l, 4 to 7 at 512 +
 * 16 l. Behind them, at 1024, stand scales, a word for each of the strip's rows. So a scale is that
 * of a row and 64 columns, whatever blocks a file has. A row with a code that is no number has the
 * scale NaN. Must not: know of kernels.
 */
#ifndef SV_CUDA_CODES_CUH
#define SV_CUDA_CODES_CUH

#include "backend/gpu/wcomp.cuh"

enum {
    SV_CODES_WORDS = 8,
    SV_CODES_SCALES_AT = 32 * 4 * SV_CODES_WORDS,
    SV_CODES_STRIP_BYTES = SV_CODES_SCALES_AT + 16 * 4,
    SV_CODES_TILE_BYTES = 4 * SV_CODES_STRIP_BYTES
};

enum sv_codes_code {
    SV_CODES_F8,      /* e4m3; scales below 2^7 that fit bf16, as words of codes_value.cuh */
    SV_CODES_F8_WIDE, /* e4m3; f32 scales */
    SV_CODES_I8       /* signed bytes, with 128 added; f32 scales */
};

static SV_HD size_t sv_codes_bytes(int32_t rows, int32_t cols)
{
    return (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * SV_CODES_TILE_BYTES;
}

/* Where in its strip a lane's word q stands, and the byte of it that has column 0 or 1 of pair 2 q
 * + half. */
static SV_HD int32_t sv_codes_word_at(int32_t lane, int32_t q)
{
    return q / 4 * 512 + lane * 16 + q % 4 * 4;
}

static SV_HD int32_t sv_codes_byte(int32_t half, int32_t column)
{
    return (half ? 0 : 1) + 2 * column;
}

#endif
