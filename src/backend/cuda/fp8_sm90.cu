/*
 * fp8_sm90.cu - makes matrices of 8 bits (fp8.cuh) of bf16 ones: a drafter's weights when they are loaded, rows of x
 * before a product with such weights.
 *
 * Called by upload.cu and gemm.cu. A row's scale depends on that row alone. Must not: touch a weight that is not marked
 * approximate.
 */
#include "backend/cuda/fp8.cuh"
#include "backend/cuda/gemm.h"

enum { ROW_THREADS = 512, HELD = 3, PACK_WARPS = 8 };

static __device__ __forceinline__ uint32_t pair_of(float lo, float hi)
{
#ifdef __CUDA_ARCH__
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(hi), "f"(lo));
    return two;
#else
    return (uint32_t)sv_fp8_of(hi) << 8 | sv_fp8_of(lo);
#endif
}

/* Eight numbers. */
static __device__ __forceinline__ uint2 eight_of(uint4 v, float inverse)
{
    float f[8];
    sv_spread8(f, v);
#pragma unroll
    for (int i = 0; i < 8; i++)
        f[i] *= inverse;
    return make_uint2(pair_of(f[0], f[1]) | pair_of(f[2], f[3]) << 16,
                      pair_of(f[4], f[5]) | pair_of(f[6], f[7]) << 16);
}

static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The largest of `most` and eight magnitudes, as bits: NaN is more than infinity. */
static __device__ __forceinline__ uint32_t largest_of(uint4 v, uint32_t most)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        most = larger(most, larger(w[i] & 0x7fff, w[i] >> 16 & 0x7fff));
    return most;
}

static __device__ __forceinline__ uint32_t largest_in_warp(uint32_t most)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        most = larger(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

/* ---------------------------------------------------------------- weights */

/* A warp a row, rows of padding included. */
static __global__ void pack_kernel(const __nv_bfloat16 *src, int32_t row0, int32_t n_rows, int32_t cols,
                                   uint8_t *dst, float *scales)
{
    sv_pdl_wait();
    const int32_t r = blockIdx.x * PACK_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint4 *from = (const uint4 *)(src + (int64_t)r * cols);
    const int32_t n = r < n_rows ? cols / 8 : 0, n_all = sv_fp8_tiles(cols) * SV_FP8_TILE_COLS / 8;
    uint32_t most = 0;
    for (int32_t i = lane; i < n; i += 32)
        most = largest_of(from[i], most);
    const float scale = sv_fp8_scale(largest_in_warp(most)), inverse = sv_fp8_inverse(scale);
    if (lane == 0)
        scales[row0 + r] = scale;
    for (int32_t i = lane; i < n_all; i += 32) {
        const uint4 none = make_uint4(0, 0, 0, 0);
        *(uint2 *)(dst + sv_fp8_at(row0 + r, 8 * i, cols)) = eight_of(i < n ? from[i] : none, inverse);
    }
}

void sv_cuda_fp8_pack(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows, int32_t rows,
                      int32_t cols, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % 8 == 0);
    uint8_t *to = (uint8_t *)dst;
    sv_cuda_launch(cu, "weights in 8 bits", pack_kernel, dim3((unsigned)(sv_tiles(n_rows) * SV_TILE / PACK_WARPS)),
                   dim3(32 * PACK_WARPS), 0, (const __nv_bfloat16 *)src, row0, n_rows, cols, to,
                   (float *)(void *)(to + sv_fp8_scales_at(rows, cols)));
}

/* ---------------------------------------------------------------- rows of x */

static __global__ void __launch_bounds__(ROW_THREADS)
    rows_kernel(const __nv_bfloat16 *x, int64_t ldx, int32_t k, uint8_t *to, int64_t ld_to, float *scales)
{
    __shared__ uint32_t found[32];
    const int32_t n = k / 8, t = threadIdx.x, step = blockDim.x;
    const uint4 *from = (const uint4 *)(x + (int64_t)blockIdx.x * ldx);
    uint4 held[HELD];
    uint32_t most = 0;
    sv_pdl_launch();
    if (t < 32)
        found[t] = 0;
    __syncthreads();
    sv_pdl_wait();
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        held[h] = make_uint4(0, 0, 0, 0);
        if (t + h * step < n)
            held[h] = from[t + h * step];
    }
#pragma unroll
    for (int h = 0; h < HELD; h++)
        most = largest_of(held[h], most);
    for (int32_t i = t + HELD * step; i < n; i += step)
        most = largest_of(from[i], most);
    most = largest_in_warp(most);
    if (t % 32 == 0)
        found[t / 32] = most;
    __syncthreads();
    const float scale = sv_fp8_scale(largest_in_warp(found[t % 32])), inverse = sv_fp8_inverse(scale);
    uint2 *out = (uint2 *)(to + (int64_t)blockIdx.x * ld_to);
#pragma unroll
    for (int h = 0; h < HELD; h++)
        if (t + h * step < n)
            out[t + h * step] = eight_of(held[h], inverse);
    for (int32_t i = t + HELD * step; i < n; i += step)
        out[i] = eight_of(from[i], inverse);
    if (t == 0)
        scales[blockIdx.x] = scale;
}

void sv_cuda_fp8_rows(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, int32_t n_rows, void *to,
                      float *scales)
{
    const int32_t threads = (k / 8 + 31) / 32 * 32;
    sv_cuda_launch_in_pass(cu, "rows in 8 bits", rows_kernel, dim3((unsigned)n_rows),
                           dim3((unsigned)(threads < ROW_THREADS ? threads : (int32_t)ROW_THREADS)), 0,
                           (const __nv_bfloat16 *)x, ldx, k, (uint8_t *)to, sv_fp8_row_bytes(k), scales);
}
