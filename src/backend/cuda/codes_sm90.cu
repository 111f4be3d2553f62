/*
 * codes_sm90.cu - expands tiles of codes (codes.cuh) to packed bf16 tiles (pack.cuh).
 *
 * Called by gemm.cu for products of many rows. Must not: give a weight another value than
 * gemm_codes.cuh does: both take it from codes_value.cuh.
 */
#include "backend/gpu/codes_value.cuh"
#include "backend/cuda/gemm.h"

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
        expand_kernel<SV_CODES_F8>,      expand_kernel<SV_CODES_F8_WIDE>,
        expand_kernel<SV_CODES_I8>,      expand_kernel<SV_CODES_I4>,
        expand_kernel<SV_CODES_I4_HALF>, expand_kernel<SV_CODES_I4_TWO>,
        expand_kernel<SV_CODES_MX4>,     expand_kernel<SV_CODES_NV4>};
    const uint8_t *from = (const uint8_t *)tiles;
    sv_cuda_launch(
        cu, "codes to bf16", kernels[code], dim3((unsigned)(sv_tiles(rows) * sv_tiles(cols))),
        dim3(128), 0, from,
        (const float *)(const void *)(from + sv_codes_factor_at(rows, cols, sv_codes_bits(code))),
        (uint8_t *)packed);
}
