/*
 * codes_sm90.cu - makes tiles of codes (codes.cuh) of rows as files have them, and expands them to
 * packed bf16 tiles (pack.cuh).
 *
 * Called by upload.cu and, for products of many rows, by gemm.cu. Must not: give a weight another
 * value than gemm_codes.cuh does: both take it from codes_value.cuh.
 */
#include "backend/cuda/codes_value.cuh"
#include "backend/cuda/gemm.h"

/* ---------------------------------------------------------------- making them */

/* Whether one of two codes of e4m3 is no number. */
static __device__ __forceinline__ bool has_nan(uint32_t two)
{
    return (two & 0x7f) == 0x7f || (two & 0x7f00) == 0x7f00;
}

/* A scale as products take it. */
static __device__ __forceinline__ uint32_t scale_word(float scale, bool nan, int code)
{
    if (nan)
        scale = __uint_as_float(0x7fc00000u);
    if (code != SV_CODES_F8)
        return __float_as_uint(scale);
    return __byte_perm(__float_as_uint(scale * 0x1p120f), 0, 0x3232);
}

/* A thread block a tile, a warp a strip. src: (n_rows, cols) codes; scales: (n_rows, n_k). Rows and
 * columns of padding are zero. */
static __global__ void pack_kernel(const uint8_t *src, const float *scales, int32_t n_rows,
                                   int32_t cols, int code, uint8_t *tiles)
{
    sv_pdl_wait();
    const int32_t n_k = sv_tiles(cols), lane = threadIdx.x % 32, strip = threadIdx.x / 32;
    const int32_t row0 = blockIdx.x / n_k * SV_TILE + strip * 16, kk = blockIdx.x % n_k;
    const uint32_t turned = code == SV_CODES_I8 ? 0x8080 : 0;
    uint8_t *to =
        tiles + (size_t)blockIdx.x * SV_CODES_TILE_BYTES + (size_t)strip * SV_CODES_STRIP_BYTES;
    int nan[2] = {0, 0};
    for (int q = 0; q < SV_CODES_WORDS; q++) {
        uint32_t word = 0;
        for (int i = 0; i < 2; i++) {
            const int32_t row = row0 + sv_wcomp_row(lane, 2 * q + i),
                          col = kk * SV_TILE + sv_wcomp_col(lane, 2 * q + i);
            const bool there = row < n_rows && col < cols;
            const uint32_t two =
                (there ? *(const uint16_t *)(src + (int64_t)row * cols + col) : 0u) ^ turned;
            nan[i] |= code != SV_CODES_I8 && has_nan(two);
            word |= (two & 0xff) << 8 * sv_codes_byte(i, 0) | two >> 8 << 8 * sv_codes_byte(i, 1);
        }
        *(uint32_t *)(to + sv_codes_word_at(lane, q)) = word;
    }
    for (int i = 0; i < 2; i++) {
        const int32_t own = lane / 4 + 8 * i, row = row0 + own;
        nan[i] |= __shfl_xor_sync(0xffffffff, nan[i], 1);
        nan[i] |= __shfl_xor_sync(0xffffffff, nan[i], 2);
        if (lane % 4 == 0)
            ((uint32_t *)(to + SV_CODES_SCALES_AT))[own] =
                row < n_rows ? scale_word(scales[(int64_t)row * n_k + kk], nan[i], code) : 0;
    }
}

void sv_cuda_codes_pack(struct sv_cuda *cu, const void *src, const float *scales, int32_t row0,
                        int32_t n_rows, int32_t cols, enum sv_codes_code code, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % 2 == 0);
    sv_cuda_launch(cu, "weights in codes", pack_kernel,
                   dim3((unsigned)(sv_tiles(n_rows) * sv_tiles(cols))), dim3(128), 0,
                   (const uint8_t *)src, scales, n_rows, cols, (int)code,
                   (uint8_t *)dst + sv_codes_bytes(row0, cols));
}

/* ---------------------------------------------------------------- expanding them */

template <int CODE>
static __device__ __forceinline__ void expand_lane(const uint8_t *from, uint8_t *to, int32_t strip,
                                                   int32_t lane)
{
    const uint32_t *scale = (const uint32_t *)(from + SV_CODES_SCALES_AT);
    const uint32_t s0 = scale[lane / 4], s1 = scale[lane / 4 + 8];
#pragma unroll
    for (int q = 0; q < SV_CODES_WORDS; q++) {
        const uint32_t word = *(const uint32_t *)(from + sv_codes_word_at(lane, q));
        const uint32_t pair[2] = {sv_codes_pair<CODE, 0>(word, s0),
                                  sv_codes_pair<CODE, 1>(word, s1)};
#pragma unroll
        for (int i = 0; i < 2; i++)
            *(uint32_t *)(to + 2 * sv_tile_at(strip * 16 + sv_wcomp_row(lane, 2 * q + i),
                                              sv_wcomp_col(lane, 2 * q + i))) = pair[i];
    }
}

/* A thread block a tile, a warp a strip. */
static __global__ void expand_kernel(const uint8_t *tiles, int code, uint8_t *packed)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t lane = threadIdx.x % 32, strip = threadIdx.x / 32;
    const uint8_t *from =
        tiles + (size_t)blockIdx.x * SV_CODES_TILE_BYTES + (size_t)strip * SV_CODES_STRIP_BYTES;
    uint8_t *to = packed + (size_t)blockIdx.x * SV_TILE_BYTES;
    if (code == SV_CODES_F8)
        expand_lane<SV_CODES_F8>(from, to, strip, lane);
    else if (code == SV_CODES_I8)
        expand_lane<SV_CODES_I8>(from, to, strip, lane);
    else
        expand_lane<SV_CODES_F8_WIDE>(from, to, strip, lane);
}

void sv_cuda_codes_expand(struct sv_cuda *cu, const void *tiles, int32_t rows, int32_t cols,
                          enum sv_codes_code code, void *packed)
{
    sv_cuda_launch(cu, "codes to bf16", expand_kernel,
                   dim3((unsigned)(sv_tiles(rows) * sv_tiles(cols))), dim3(128), 0,
                   (const uint8_t *)tiles, (int)code, (uint8_t *)packed);
}
