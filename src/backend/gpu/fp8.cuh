/*
 * fp8.cuh - numbers of 8 bits (e4m3) and how a matrix of them lies in device memory, as arithmetic.
 *
 * Included by fp8_sm90.cu, which makes them, by the products that read them, and by tests. A tile
 * is 64 rows by 128 columns: the 8 KiB, the 128 bytes a row and the swizzle of a tile of bf16
 * (pack.cuh), with twice the columns. The tiles are followed by one f32 scale for each row of the
 * matrix, rows of padding included. A row of x lies row-major, with a scale of its own in another
 * array. Must not: know of kernels.
 */
#ifndef SV_CUDA_FP8_CUH
#define SV_CUDA_FP8_CUH

#include "backend/gpu/pack.cuh"

#include <string.h>

enum { SV_FP8_TILE_COLS = 128 };

/* Tiles along k. */
static SV_HD int32_t sv_fp8_tiles(int32_t cols)
{
    return (cols + SV_FP8_TILE_COLS - 1) / SV_FP8_TILE_COLS;
}

/* The offset of the scales, which is also the bytes of all tiles. */
static SV_HD size_t sv_fp8_scales_at(int32_t rows, int32_t cols)
{
    return (size_t)sv_tiles(rows) * (size_t)sv_fp8_tiles(cols) * SV_TILE_BYTES;
}

static SV_HD size_t sv_fp8_bytes(int32_t rows, int32_t cols)
{
    return sv_fp8_scales_at(rows, cols) + (size_t)sv_tiles(rows) * SV_TILE * sizeof(float);
}

/* Byte of element (row, col). */
static SV_HD size_t sv_fp8_at(int64_t row, int32_t col, int32_t cols)
{
    const size_t tile =
        (size_t)(row / SV_TILE) * (size_t)sv_fp8_tiles(cols) + (size_t)(col / SV_FP8_TILE_COLS);
    const int32_t r = (int32_t)(row % SV_TILE), c = col % SV_FP8_TILE_COLS;
    return tile * SV_TILE_BYTES +
           (size_t)(r * SV_FP8_TILE_COLS + (((c >> 4) ^ (r & 7)) << 4) + (c & 15));
}

/* Bytes between rows of x: the copy engine wants multiples of 16. */
static SV_HD int64_t sv_fp8_row_bytes(int32_t k)
{
    return ((int64_t)k + 15) / 16 * 16;
}

/* The largest number, and what a row's largest is brought to. */
#define SV_FP8_MAX 448.0f

/* A row's scale from its largest magnitude, a bf16 number without its sign; NaN and infinity stay
 * what they are, and numbers too small to divide by are none. */
static SV_HD float sv_fp8_scale(uint32_t largest)
{
    const uint32_t u = largest << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f < 0x1p-100f ? 0.0f : f / SV_FP8_MAX;
}

static SV_HD float sv_fp8_inverse(float scale)
{
    return scale == 0.0f ? 0.0f : 1.0f / scale;
}

/* ---------------------------------------------------------------- with a scale for each group */

/* Products with activations in fp8: a group is a row's columns of a tile, of weights and of x.
 * The tiles of weights are followed by the scales of the 64 rows of each, in the order of tiles, so
 * that a byte of a tile at p has its row's scale at p / SV_FP8_LINE. Scales of x: (tiles of k, ld).
 */
enum { SV_FP8_LINE = SV_FP8_TILE_COLS / 4 };

static SV_HD size_t sv_fp8_group_bytes(int32_t rows, int32_t cols)
{
    return sv_fp8_scales_at(rows, cols) / SV_FP8_LINE * (SV_FP8_LINE + 1);
}

/* Of n rows of x: each tile's begin on 16 bytes. */
static SV_HD int32_t sv_fp8_group_ld(int32_t n_rows)
{
    return (n_rows + 255) / 256 * 256;
}

/* As sv_fp8_scale, but that a group with an infinity or a NaN has scale NaN. */
static SV_HD float sv_fp8_group_scale(uint32_t largest)
{
    const uint32_t nan = 0x7fc00000u;
    float f;
    memcpy(&f, &nan, sizeof f);
    return largest < 0x7f80 ? sv_fp8_scale(largest) : f;
}

/* What a group's numbers are multiplied by; 0: all codes are 0, whatever the numbers are. */
static SV_HD float sv_fp8_group_inverse(float scale)
{
    return scale > 0.0f ? 1.0f / scale : 0.0f;
}

/* To nearest, ties to even, what is too large to the largest: the hardware's conversion, for where
 * there is none. */
static SV_HD uint8_t sv_fp8_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const uint8_t sign = (uint8_t)(u >> 24 & 0x80);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return sign | 0x7f;
    if (u < 121u << 23) { /* below 2^-6: steps of 2^-9, added to a number whose last bit is that */
        float small;
        memcpy(&small, &u, sizeof small);
        small += 0x1p14f;
        memcpy(&u, &small, sizeof u);
        return (uint8_t)(sign | (u & 0xf));
    }
    u += 0x7ffffu + (u >> 20 & 1);
    u = (u >> 20) - (120u << 3);
    return (uint8_t)(sign | (u < 0x7e ? u : 0x7e));
}

/* The value of a code, the lowest byte, except NaN. */
static SV_HD float sv_fp8_number(uint32_t code)
{
    const uint32_t u = (code & 0x7f) << 20 | (code & 0x80) << 24;
    float f;
    memcpy(&f, &u, sizeof f);
    return f * 0x1p120f; /* exact, and right for subnormal codes */
}

static SV_HD float sv_fp8_value(uint8_t code)
{
    const uint32_t nan = 0x7fc00000u;
    float f;
    memcpy(&f, &nan, sizeof f);
    return (code & 0x7f) == 0x7f ? f : sv_fp8_number(code);
}

#endif
