/*
 * codes.cu - makes tiles of codes (codes.cuh) on the device, of rows as files have them, and
 * expands them to packed bf16 tiles (pack.cuh).
 *
 * Called by upload.cu and, for products of many rows, by gemm.cu. Must not: give a weight another
 * value than products from codes do: all take it from codes_value.cuh.
 */
#include "backend/gpu/codes_value.cuh"
#include "backend/cuda/gemm.h"

/* ---------------------------------------------------------------- rows to tiles */

/* Whether one of two codes of e4m3 is no number. */
static __device__ __forceinline__ bool has_nan(uint32_t two)
{
    return (two & 0x7f) == 0x7f || (two & 0x7f00) == 0x7f00;
}

/* A scale of codes of 8 bits as products take it. */
static __device__ __forceinline__ uint32_t scale_word(uint32_t word, bool nan, int code)
{
    if (nan)
        word = 0x7fc00000u;
    if (code != SV_CODES_F8)
        return word;
    return sv_wcomp_bytes_of(__float_as_uint(__uint_as_float(word) * 0x1p120f), 0, 0x3232);
}

/* A thread block a tile, a warp a strip. src: (n_rows, cols) codes; words: (n_rows, n_k). Rows and
 * columns of padding are zero. */
static __global__ void pack_kernel(const uint8_t *src, const uint32_t *words, int32_t n_rows,
                                   int32_t cols, int code, uint8_t *tiles)
{
    sv_pdl_wait();
    const int32_t n_k = sv_tiles(cols), lane = threadIdx.x % 32, strip = threadIdx.x / 32,
                  bits = sv_codes_bits((enum sv_codes_code)code);
    const int32_t row0 = blockIdx.x / n_k * SV_TILE + strip * 16, kk = blockIdx.x % n_k;
    const bool f8 = code == SV_CODES_F8 || code == SV_CODES_F8_WIDE;
    uint8_t *to = tiles + ((size_t)blockIdx.x * 4 + (size_t)strip) * SV_CODES_STRIP_BYTES(bits);
    int nan[2] = {0, 0};
    uint32_t word[8] = {};
#pragma unroll
    for (int pair = 0; pair < SV_WCOMP_PAIRS; pair++) {
        const int32_t row = row0 + sv_wcomp_row(lane, pair),
                      col = kk * SV_TILE + sv_wcomp_col(lane, pair);
        const int64_t at = ((int64_t)row * cols + col) * bits / 8;
        uint32_t two = 0;
        if (row < n_rows && col < cols)
            two = bits == 8 ? *(const uint16_t *)(src + at) : src[at];
        nan[pair % 2] |= f8 && has_nan(two);
        if (code == SV_CODES_I8 || code == SV_CODES_I8_TWO)
            two ^= 0x8080;
        for (int i = 0; i < 2; i++)
            word[bits == 8 ? pair / 2 : pair / 4] |= (two >> bits * i & ((1u << bits) - 1))
                                                     << sv_codes_shift(pair, i, bits);
    }
#pragma unroll
    for (int q = 0; q < 8; q++)
        if (q < bits)
            *(uint32_t *)(to + sv_codes_word_at(lane, q)) = word[q];
    for (int i = 0; i < 2; i++) {
        const int32_t own = lane / 4 + 8 * i, row = row0 + own;
        nan[i] |= __shfl_xor_sync(0xffffffff, nan[i], 1);
        nan[i] |= __shfl_xor_sync(0xffffffff, nan[i], 2);
        if (lane % 4 == 0) {
            uint32_t scale = row < n_rows ? words[(int64_t)row * n_k + kk] : 0;
            if (bits == 8 && row < n_rows)
                scale = scale_word(scale, nan[i], code);
            ((uint32_t *)(to + SV_CODES_SCALES_AT(bits)))[own] = scale;
        }
    }
}

void sv_cuda_codes_pack(struct sv_cuda *cu, const void *src, const void *words, int32_t row0,
                        int32_t n_rows, int32_t cols, enum sv_codes_code code, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % 2 == 0);
    sv_cuda_launch(cu, "weights in codes", pack_kernel,
                   dim3((unsigned)(sv_tiles(n_rows) * sv_tiles(cols))), dim3(128), 0,
                   (const uint8_t *)src, (const uint32_t *)words, n_rows, cols, (int)code,
                   (uint8_t *)dst + sv_codes_factor_at(row0, cols, sv_codes_bits(code)));
}

/* ---------------------------------------------------------------- tiles to bf16 */

template <int CODE>
static __device__ __forceinline__ void expand_lane(const uint8_t *from, uint8_t *to, int32_t strip,
                                                   int32_t lane, const float *factor)
{
    constexpr int BITS = CODE >= SV_CODES_I4 ? 4 : 8;
    from += strip * SV_CODES_STRIP_BYTES(BITS);
    const uint32_t *words = (const uint32_t *)(from + SV_CODES_SCALES_AT(BITS));
    const struct sv_codes_scale s[2] = {sv_codes_scale_of<CODE>(words[lane / 4]),
                                        sv_codes_scale_of<CODE>(words[lane / 4 + 8])};
    const float f = CODE == SV_CODES_NV4 ? *factor : 0.0f;
    uint32_t word[BITS];
#pragma unroll
    for (int q = 0; q < BITS; q++)
        word[q] = *(const uint32_t *)(from + sv_codes_word_at(lane, q));
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t pair[4];
        sv_codes_step<CODE>(pair, word + step * (BITS / 4), step, s, f);
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(uint32_t *)(to + 2 * sv_tile_at(strip * 16 + sv_wcomp_row(lane, 4 * step + i),
                                              sv_wcomp_col(lane, 4 * step + i))) = pair[i];
    }
}

/* A thread block a tile, a warp a strip. */
template <int CODE>
static __global__ void expand_kernel(const uint8_t *tiles, const float *factor, uint8_t *packed)
{
    sv_pdl_launch();
    sv_pdl_wait();
    expand_lane<CODE>(tiles + (size_t)blockIdx.x * SV_CODES_TILE_BYTES(CODE >= SV_CODES_I4 ? 4 : 8),
                      packed + (size_t)blockIdx.x * SV_TILE_BYTES, threadIdx.x / 32,
                      threadIdx.x % 32, factor);
}

void sv_cuda_codes_expand(struct sv_cuda *cu, const void *tiles, int32_t rows, int32_t cols,
                          enum sv_codes_code code, void *packed)
{
    static void (*const kernels[])(const uint8_t *, const float *, uint8_t *) = {
        expand_kernel<SV_CODES_F8>,     expand_kernel<SV_CODES_F8_WIDE>,
        expand_kernel<SV_CODES_I8>,     expand_kernel<SV_CODES_I8_TWO>,
        expand_kernel<SV_CODES_I4>,     expand_kernel<SV_CODES_I4_HALF>,
        expand_kernel<SV_CODES_I4_TWO>, expand_kernel<SV_CODES_I4_HALF_TWO>,
        expand_kernel<SV_CODES_MX4>,    expand_kernel<SV_CODES_NV4>};
    const uint8_t *from = (const uint8_t *)tiles;
    sv_cuda_launch(
        cu, "codes to bf16", kernels[code], dim3((unsigned)(sv_tiles(rows) * sv_tiles(cols))),
        dim3(128), 0, from,
        (const float *)(const void *)(from + sv_codes_factor_at(rows, cols, sv_codes_bits(code))),
        (uint8_t *)packed);
}
