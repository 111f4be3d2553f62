/*
 * fp8_sm90.cu - makes matrices of 8 bits (fp8.cuh) of bf16 ones: a drafter's weights when they are
 * loaded, rows of x before a product with such weights, and rows of x in groups; and lays out the
 * weights of files for products with activations in fp8.
 *
 * Called by upload.cu and gemm.cu. A row's scales depend on that row alone. Must not: touch a
 * weight that is not marked so.
 */
#include "backend/gpu/fp8_rows.cuh"
#include "backend/cuda/gemm.h"

enum { ROW_THREADS = 512, HELD = 3, PACK_WARPS = 8 };

/* ---------------------------------------------------------------- weights */

/* A warp a row, rows of padding included. */
static __global__ void pack_kernel(const __nv_bfloat16 *src, int32_t row0, int32_t n_rows,
                                   int32_t cols, uint8_t *dst, float *scales)
{
    sv_pdl_wait();
    const int32_t r = blockIdx.x * PACK_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint4 *from = (const uint4 *)(src + (int64_t)r * cols);
    const int32_t n = r < n_rows ? cols / 8 : 0, n_all = sv_fp8_tiles(cols) * SV_FP8_TILE_COLS / 8;
    uint32_t most = 0;
    for (int32_t i = lane; i < n; i += 32)
        most = sv_fp8_largest(from[i], most);
    const float scale = sv_fp8_scale(sv_fp8_largest_in_warp(most)), inverse = sv_fp8_inverse(scale);
    if (lane == 0)
        scales[row0 + r] = scale;
    for (int32_t i = lane; i < n_all; i += 32) {
        const uint4 none = make_uint4(0, 0, 0, 0);
        *(uint2 *)(dst + sv_fp8_at(row0 + r, 8 * i, cols)) =
            sv_fp8_eight(i < n ? from[i] : none, inverse);
    }
}

void sv_cuda_fp8_pack(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows,
                      int32_t rows, int32_t cols, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % 8 == 0);
    uint8_t *to = (uint8_t *)dst;
    sv_cuda_launch(cu, "weights in 8 bits", pack_kernel,
                   dim3((unsigned)(sv_tiles(n_rows) * SV_TILE / PACK_WARPS)), dim3(32 * PACK_WARPS),
                   0, (const __nv_bfloat16 *)src, row0, n_rows, cols, to,
                   (float *)(void *)(to + sv_fp8_scales_at(rows, cols)));
}

/* ---------------------------------------------------------------- rows of x */

/* Few rows go through it once before the wait, on zeros, so that the instructions are at hand when
 * the row is there. */
static __global__ void __launch_bounds__(ROW_THREADS, 4)
    rows_kernel(const __nv_bfloat16 *x, int64_t ldx, int32_t k, uint8_t *to, int64_t ld_to,
                float *scales, bool rehearse)
{
    __shared__ uint32_t found[32];
    const int32_t n = k / 8, t = threadIdx.x, step = blockDim.x;
    const uint4 *from = (const uint4 *)(x + (int64_t)blockIdx.x * ldx);
    uint2 *out = (uint2 *)(to + (int64_t)blockIdx.x * ld_to);
    sv_pdl_launch();
    if (t < 32)
        found[t] = 0;
    __syncthreads();
#pragma unroll 1
    for (int pass = rehearse ? 0 : 1; pass < 2; pass++) {
        const bool real = pass == 1;
        uint4 held[HELD];
        uint32_t most = 0;
        if (real)
            sv_pdl_wait();
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            held[h] = make_uint4(0, 0, 0, 0);
            if (real && t + h * step < n)
                held[h] = from[t + h * step];
        }
#pragma unroll
        for (int h = 0; h < HELD; h++)
            most = sv_fp8_largest(held[h], most);
        for (int32_t i = t + HELD * step; real && i < n; i += step)
            most = sv_fp8_largest(from[i], most);
        const float scale = sv_fp8_scale(sv_fp8_largest_in_block(most, found)),
                    inverse = sv_fp8_inverse(scale);
#pragma unroll
        for (int h = 0; h < HELD; h++)
            if (real && t + h * step < n)
                out[t + h * step] = sv_fp8_eight(held[h], inverse);
        for (int32_t i = t + HELD * step; real && i < n; i += step)
            out[i] = sv_fp8_eight(from[i], inverse);
        if (real && t == 0)
            scales[blockIdx.x] = scale;
        if (!real)
            __syncthreads();
    }
}

void sv_cuda_fp8_rows(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, int32_t n_rows,
                      void *to, float *scales)
{
    const int32_t threads = (k / 8 + 31) / 32 * 32;
    sv_cuda_launch_in_pass(cu, "rows in 8 bits", rows_kernel, dim3((unsigned)n_rows),
                           dim3((unsigned)(threads < ROW_THREADS ? threads : (int32_t)ROW_THREADS)),
                           0, (const __nv_bfloat16 *)x, ldx, k, (uint8_t *)to, sv_fp8_row_bytes(k),
                           scales, n_rows <= cu->n_sms);
}

/* ---------------------------------------------------------------- groups */

enum { GROUP_THREADS = 256, GROUP_LANES = SV_FP8_TILE_COLS / 8 };

/* A thread eight numbers of row blockIdx.y. */
static __global__ void group_rows_kernel(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                                         uint8_t *to, int64_t ld_to, float *scales,
                                         int32_t ld_scales)
{
    const int32_t i = blockIdx.x * GROUP_THREADS + threadIdx.x, r = blockIdx.y;
    uint4 v = make_uint4(0, 0, 0, 0);
    sv_pdl_launch();
    sv_pdl_wait();
    if (8 * i < k)
        v = ((const uint4 *)(x + r * ldx))[i];
    const float scale = sv_fp8_group_scale(sv_fp8_largest_in_group(sv_fp8_largest(v, 0)));
    if (8 * i >= k)
        return;
    ((uint2 *)(to + r * ld_to))[i] = sv_fp8_group_eight(v, sv_fp8_group_inverse(scale));
    if (i % GROUP_LANES == 0)
        scales[(int64_t)(i / GROUP_LANES) * ld_scales + r] = scale;
}

void sv_cuda_fp8_group_rows(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                            int32_t n_rows, void *to, float *scales, int32_t ld_scales)
{
    sv_cuda_launch_in_pass(
        cu, "rows in fp8", group_rows_kernel,
        dim3((unsigned)((k / 8 + GROUP_THREADS - 1) / GROUP_THREADS), (unsigned)n_rows),
        dim3(GROUP_THREADS), 0, (const __nv_bfloat16 *)x, ldx, k, (uint8_t *)to,
        sv_fp8_row_bytes(k), scales, ld_scales);
}

/* A thread block a tile. words: (n_rows, sv_tiles(cols)) f32, of which every second one is a
 * tile's. Rows and columns of padding are zero, and so are their scales. */
static __global__ void group_pack_kernel(const uint8_t *src, const float *words, int32_t n_rows,
                                         int32_t cols, uint8_t *tiles, float *scales)
{
    sv_pdl_wait();
    const int32_t n_k = sv_fp8_tiles(cols), band = blockIdx.x / n_k, kk = blockIdx.x % n_k;
    const int32_t r = threadIdx.x / 4;
    const bool there = band * SV_TILE + r < n_rows;
    const uint8_t *from = src + (int64_t)(band * SV_TILE + r) * cols;
    for (int32_t i = threadIdx.x % 4; i < SV_FP8_TILE_COLS / 8; i += 4) {
        const int32_t col = kk * SV_FP8_TILE_COLS + 8 * i;
        uint2 v = make_uint2(0, 0);
        if (there && col < cols)
            v = *(const uint2 *)(from + col);
        *(uint2 *)(tiles + sv_fp8_at(band * SV_TILE + r, col, cols)) = v;
    }
    if (threadIdx.x % 4 == 0)
        scales[(int64_t)blockIdx.x * SV_TILE + r] =
            there ? words[(int64_t)(band * SV_TILE + r) * sv_tiles(cols) + 2 * kk] : 0.0f;
}

void sv_cuda_fp8_group_pack(struct sv_cuda *cu, const void *src, const void *words, int32_t row0,
                            int32_t n_rows, int32_t rows, int32_t cols, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % 8 == 0);
    const size_t at = sv_fp8_scales_at(row0, cols);
    uint8_t *to = (uint8_t *)dst;
    sv_cuda_launch(cu, "weights in fp8", group_pack_kernel,
                   dim3((unsigned)(sv_tiles(n_rows) * sv_fp8_tiles(cols))), dim3(4 * SV_TILE), 0,
                   (const uint8_t *)src, (const float *)words, n_rows, cols, to + at,
                   (float *)(void *)(to + sv_fp8_scales_at(rows, cols) + at / SV_FP8_LINE));
}
