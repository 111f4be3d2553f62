/*
 * mxfp4.cu - makes tiles of MXFP4 (mxfp4.cuh) on the device: of rows as files have them, or of a
 * seed.
 *
 * Called by upload.cu. Must not: run in the step.
 */
#include "backend/gpu/mxfp4.cuh"

#include "backend/cuda/moe.h"

enum { THREADS = 128 };

/* Rows of a matrix as they have come: codes (n_rows, cols / 2), the low nibble first, and scales
 * (n_rows, cols / 32); NULL: from the seed. */
struct source {
    const uint8_t *codes, *scales;
    int32_t n_rows, cols;
    uint32_t seed;
};

static __device__ __forceinline__ uint32_t mixed(uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

/* The codes of two columns, the first in the low nibble. */
static __device__ __forceinline__ uint32_t two_codes(const struct source &s, int32_t row,
                                                     int32_t col)
{
    if (row >= s.n_rows || col >= s.cols)
        return 0;
    const uint64_t at = ((uint64_t)row * s.cols + col) / 2;
    return s.codes ? s.codes[at] : mixed((uint32_t)at * 0x9e3779b9u ^ s.seed) >> 24;
}

/* A thread block a tile, a warp a strip. Rows and columns of padding are zero. Random scales are
 * 2^-8 to 2^-6: with these random codes are about 0.02. */
static __global__ void tiles_kernel(const struct source s, uint8_t *tiles)
{
    sv_pdl_wait();
    const int32_t n_k = sv_tiles(s.cols), lane = threadIdx.x % 32, strip = threadIdx.x / 32;
    const int32_t row0 = blockIdx.x / n_k * SV_TILE + strip * 16, col0 = blockIdx.x % n_k * SV_TILE;
    uint8_t *to = tiles + (size_t)(row0 / 16) * (size_t)sv_mxfp4_strip_bytes(s.cols) +
                  (size_t)(blockIdx.x % n_k) * SV_MXFP4_PIECE;
    for (int h = 0; h < 2; h++) {
        uint64_t words = 0;
        for (int i = 0; i < 8; i++) {
            const uint32_t two = two_codes(s, row0 + sv_wcomp_row(lane, 8 * h + i),
                                           col0 + sv_wcomp_col(lane, 8 * h + i));
            words |= sv_mxfp4_bits(two & 15, i, 0) | sv_mxfp4_bits(two >> 4, i, 1);
        }
        *(uint64_t *)(to + 16 * lane + 8 * h) = words;
    }
    const int32_t row = row0 + lane % 16, half = lane / 16, col = col0 + half * SV_MXFP4_BLOCK;
    uint32_t scale = 0;
    if (row < s.n_rows && col < s.cols) {
        const uint64_t at = (uint64_t)row * (s.cols / SV_MXFP4_BLOCK) + col / SV_MXFP4_BLOCK;
        scale = s.scales ? s.scales[at] : 119 + mixed((uint32_t)at ^ ~s.seed) % 3;
    }
    to[sv_mxfp4_scale_at(lane % 16, half)] = (uint8_t)scale;
}

void sv_cuda_mxfp4_tiles(struct sv_cuda *cu, const void *codes, const void *scales, uint64_t seed,
                         int32_t row0, int32_t n_rows, int32_t cols, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % SV_MXFP4_BLOCK == 0);
    const struct source s = {(const uint8_t *)codes, (const uint8_t *)scales, n_rows, cols,
                             (uint32_t)(seed ^ seed >> 32)};
    sv_cuda_launch(cu, "weights in MXFP4", tiles_kernel,
                   dim3((unsigned)(sv_tiles(n_rows) * sv_tiles(cols))), dim3(THREADS), 0, s,
                   (uint8_t *)dst + sv_mxfp4_bytes(row0, cols));
}
