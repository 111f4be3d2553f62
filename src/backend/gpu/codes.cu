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
            *(uint32_t *)(to + sv_codes_word_at(lane, q, bits)) = word[q];
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

/* ---------------------------------------------------------------- super-blocks to tiles */

/* Code c of a super-block. */
static __device__ uint32_t k_code(const uint8_t *block, int32_t c, int code)
{
    const int32_t j = c / 32, i = c % 32, part = j % 4; /* of Q6_K: of half a super-block */
    if (code == SV_CODES_K6)
        return (block[c / 128 * 64 + part % 2 * 32 + i] >> part / 2 * 4 & 15) |
               (block[128 + c / 128 * 32 + i] >> part * 2 & 3) << 4;
    const uint8_t *lower = block + (code == SV_CODES_K5 ? 48 : 16);
    const uint32_t fifth = code == SV_CODES_K5 ? block[16 + i] >> j & 1 : 0;
    return (lower[j / 2 * 32 + i] >> j % 2 * 4 & 15) | fifth << 4;
}

/* A row's two words in tile kk. */
static __device__ uint2 k_words(const uint8_t *block, int32_t kk, int code)
{
    const int32_t at = code == SV_CODES_K6 ? 208 : 0, quarter = kk % (SV_K_COLS / SV_TILE);
    uint2 word = {block[at] | (uint32_t)block[at + 1] << 8, 0};
    if (code == SV_CODES_K6) {
        for (int32_t i = 0; i < 4; i++)
            word.y |= (uint32_t)(block[192 + quarter * 4 + i] ^ 0x80) << 8 * i;
        return word;
    }
    word.x |= (uint32_t)block[2] << 16 | (uint32_t)block[3] << 24;
    const uint8_t *s = block + 4; /* eight scales and minima of 6 bits */
    for (int32_t i = 0; i < 2; i++) {
        const int32_t j = quarter * 2 + i;
        const uint32_t scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4,
                       min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
        word.y |= (scale | min << 8) << 16 * i;
    }
    return word;
}

/* As pack_kernel, of rows of super-blocks. */
static __global__ void k_pack_kernel(const uint8_t *src, int32_t n_rows, int32_t cols, int code,
                                     uint8_t *tiles)
{
    sv_pdl_wait();
    const int32_t n_k = sv_tiles(cols), lane = threadIdx.x % 32, strip = threadIdx.x / 32,
                  bits = sv_codes_bits((enum sv_codes_code)code),
                  n = sv_codes_k_bytes((enum sv_codes_code)code);
    const int32_t row0 = blockIdx.x / n_k * SV_TILE + strip * 16, kk = blockIdx.x % n_k;
    uint8_t *to = tiles + ((size_t)blockIdx.x * 4 + (size_t)strip) * SV_CODES_STRIP_BYTES(bits);
    const uint8_t *from = src + ((int64_t)row0 * cols + kk * SV_TILE) / SV_K_COLS * n;
    const int64_t row_bytes = (int64_t)(cols / SV_K_COLS) * n;
    uint32_t word[6] = {};
    for (int i = 0; i < 2 * SV_WCOMP_PAIRS; i++) {
        const int32_t pair = i / 2, row = sv_wcomp_row(lane, pair),
                      col = kk * SV_TILE % SV_K_COLS + sv_wcomp_col(lane, pair) + i % 2;
        const uint32_t c = row0 + row < n_rows ? k_code(from + row * row_bytes, col, code) : 0;
        for (int b = 0; b < bits - 1; b++) {
            const int32_t place = sv_codes_k_bit(pair, i % 2, b, bits);
            word[place / 32] |= (c >> b & 1) << place % 32;
        }
    }
    for (int q = 0; q < SV_CODES_WORDS(bits); q++)
        *(uint32_t *)(to + sv_codes_word_at(lane, q, bits)) = word[q];
    if (lane < 16)
        ((uint2 *)(to + SV_CODES_SCALES_AT(bits)))[lane % 8 * 2 + lane / 8] =
            row0 + lane < n_rows ? k_words(from + lane * row_bytes, kk, code) : make_uint2(0, 0);
}

void sv_cuda_codes_pack_k(struct sv_cuda *cu, const void *src, int32_t row0, int32_t n_rows,
                          int32_t cols, enum sv_codes_code code, void *dst)
{
    SV_REQUIRE(row0 % SV_TILE == 0 && cols % SV_K_COLS == 0);
    sv_cuda_launch(cu, "weights in codes", k_pack_kernel,
                   dim3((unsigned)(sv_tiles(n_rows) * sv_tiles(cols))), dim3(128), 0,
                   (const uint8_t *)src, n_rows, cols, (int)code,
                   (uint8_t *)dst + sv_codes_factor_at(row0, cols, sv_codes_bits(code)));
}

/* ---------------------------------------------------------------- tiles to bf16 */

template <int CODE>
static __device__ __forceinline__ void expand_lane(const uint8_t *from, uint8_t *to, int32_t strip,
                                                   int32_t lane, const float *factor)
{
    constexpr int BITS = SV_CODES_BITS(CODE);
    from += strip * SV_CODES_STRIP_BYTES(BITS);
    typedef typename sv_codes_row<BITS>::type row;
    const row *own =
        (const row *)(from + SV_CODES_SCALES_AT(BITS)) + lane / 4 * SV_CODES_ROW_WORDS(BITS);
    const struct sv_codes_scale s[2] = {
        sv_codes_scale_of<CODE>(own[0]),
        sv_codes_scale_of<CODE>(own[SV_CODES_ROW_WORDS(BITS) == 1 ? 8 : 1])};
    const float f = CODE == SV_CODES_NV4 ? *factor : 0.0f;
    uint32_t word[SV_CODES_WORDS(BITS)];
#pragma unroll
    for (int q = 0; q < SV_CODES_WORDS(BITS); q++)
        word[q] = *(const uint32_t *)(from + sv_codes_word_at(lane, q, BITS));
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t pair[4];
        sv_codes_lane_step<CODE, 4>(pair, word, step, step, s, f);
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
    expand_lane<CODE>(tiles + (size_t)blockIdx.x * SV_CODES_TILE_BYTES(SV_CODES_BITS(CODE)),
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
        expand_kernel<SV_CODES_MX4>,    expand_kernel<SV_CODES_NV4>,
        expand_kernel<SV_CODES_K4>,     expand_kernel<SV_CODES_K5>,
        expand_kernel<SV_CODES_K6>};
    const uint8_t *from = (const uint8_t *)tiles;
    sv_cuda_launch(
        cu, "codes to bf16", kernels[code], dim3((unsigned)(sv_tiles(rows) * sv_tiles(cols))),
        dim3(128), 0, from,
        (const float *)(const void *)(from + sv_codes_factor_at(rows, cols, sv_codes_bits(code))),
        (uint8_t *)packed);
}
