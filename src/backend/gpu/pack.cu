/*
 * pack.cu - turns row-major bf16 matrices into the tiles of pack.cuh, on the device.
 *
 * Called by upload.cu with what has just been copied there. Must not: run in the step.
 */
#include "backend/cuda/gemm.h"

/* One thread for each 16-byte chunk of the packed rows. */
static __global__ void pack_kernel(const uint16_t *src, int32_t n_rows, int32_t cols, uint4 *dst)
{
    sv_pdl_wait();
    const int32_t n_k = sv_tiles(cols);
    const int64_t n_chunks = (int64_t)sv_tiles(n_rows) * n_k * (SV_TILE_BYTES / 16);
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_chunks; i += stride) {
        const int64_t tile = i / (SV_TILE_BYTES / 16);
        const int32_t r = (int32_t)(i % (SV_TILE_BYTES / 16)) / 8, place = (int32_t)(i % 8);
        const int64_t row = tile / n_k * SV_TILE + r;
        const int32_t col = (int32_t)(tile % n_k) * SV_TILE + ((place ^ (r & 7)) << 3);
        uint32_t v[4] = {0, 0, 0, 0};
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (row < n_rows && col + e < cols)
                v[e / 2] |= (uint32_t)src[row * cols + col + e] << (16 * (e & 1));
        dst[i] = make_uint4(v[0], v[1], v[2], v[3]);
    }
}

void sv_cuda_pack(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows, int32_t cols,
                  void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0);
    uint8_t *at = (uint8_t *)dst + sv_packed_bytes(row0, cols);
    sv_cuda_launch(cu, "packing of weights", pack_kernel, dim3((unsigned)cu->n_sms * 8), dim3(256),
                   0, (const uint16_t *)src, n_rows, cols, (uint4 *)(void *)at);
}
