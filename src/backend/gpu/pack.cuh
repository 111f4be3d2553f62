/*
 * pack.cuh - the layout of bf16 weight matrices in device memory, as index arithmetic.
 *
 * Included by the kernels that read such weights, by pack.cu, which writes them, and by a unit test
 * in plain C. A matrix is cut into tiles of 64 rows by 64 columns (8 KiB, zero-padded), the tiles
 * of one band of 64 rows one after the other along k. Inside a tile row r is 128 bytes and its
 * 16-byte chunks are in the order of the tensor cores' 128-byte swizzle: chunk c is at place c
 * ^ (r & 7). So a tile goes to shared memory in one linear copy and both wgmma and ldmatrix read it
 * there without bank conflicts. Must not: know anything but index arithmetic.
 */
#ifndef SV_CUDA_PACK_CUH
#define SV_CUDA_PACK_CUH

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#include <cuda_runtime.h>
#define SV_HD __host__ __device__ __forceinline__
#else
#define SV_HD inline
#endif

enum { SV_TILE = 64, SV_TILE_ELEMS = SV_TILE * SV_TILE, SV_TILE_BYTES = SV_TILE_ELEMS * 2 };

/* Tiles needed for n rows or n columns. */
static SV_HD int32_t sv_tiles(int32_t n)
{
    return (n + SV_TILE - 1) / SV_TILE;
}

static SV_HD size_t sv_packed_bytes(int32_t rows, int32_t cols)
{
    return (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * SV_TILE_BYTES;
}

/* Index of the element inside its tile. */
static SV_HD int32_t sv_tile_at(int32_t r, int32_t c)
{
    return r * SV_TILE + (((c >> 3) ^ (r & 7)) << 3) + (c & 7);
}

/* Index of element (row, col) of a packed matrix with cols columns. */
static SV_HD size_t sv_packed_at(int64_t row, int32_t col, int32_t cols)
{
    const size_t tile = (size_t)(row / SV_TILE) * (size_t)sv_tiles(cols) + (size_t)(col / SV_TILE);
    return tile * SV_TILE_ELEMS + (size_t)sv_tile_at((int32_t)(row % SV_TILE), col % SV_TILE);
}

#endif
