/*
 * nvfp4_parts.cuh - codes of NVFP4 (codes.cuh) become weights in bf16 with a table of the matrix's
 * scales times its factor, in fewer instructions than codes_value.cuh takes without one.
 *
 * Included by gemm_one_sm90.cu. A table has 256 words in 1024 aligned bytes of shared memory, for
 * each scale (sv_codes_e5m3) its product with the factor in two parts of bf16, the upper in the
 * lower half of a word, both times 2^126. One product and one fused multiply-add with these round
 * as the definition does (docs/formats.md): f32, then bf16. Must not: give any other bits.
 */
#ifndef SV_CUDA_NVFP4_PARTS_CUH
#define SV_CUDA_NVFP4_PARTS_CUH

#include "backend/gpu/codes_value.cuh"
#include "backend/cuda/gemm.h"

enum { NVFP4_TABLES = 4 }; /* of a product's parts */

/* factor: 256 times the matrix's. All codes are 1 or 1.5 times a power of two, and the parts are
 * the first of some candidates that give both. One of them does for every factor and every scale
 * whose product is below 4 and not near the smallest numbers. The parts have the same sign, so that
 * zeros keep theirs. */
static __device__ __forceinline__ uint32_t nvfp4_parts_of(uint32_t byte, float factor)
{
    const float scale = __uint_as_float((byte << 20) + ((127 - 16) << 23)), by = factor * 0x1p-8f,
                product = __fmul_rn(scale, by), all = product * 0x1p126f;
    const uint32_t codes = 0x00c00080u; /* 1 and 1.5, times 2^-126 */
    const uint32_t want = sv_codes_rounded(product, __fmul_rn(1.5f * scale, by));
    const uint32_t high = __float_as_uint(all) >> 16, sign = high & 0x8000u,
                   low = sv_codes_rounded(all - __uint_as_float(high << 16), 0.0f) | sign,
                   half = (high & 0xff80u) - (8u << 7); /* of high's last place */
    const uint32_t first[] = {high, high, high, high, high - 1, high},
                   second[] = {low, low - 1, low + 1, sign, half | 0x7fu, half - (8u << 7)};
    uint32_t parts = high;
#pragma unroll
    for (int i = 5; i >= 0; i--) {
        const uint32_t a = first[i] & 0xffffu, b = second[i] & 0xffffu;
        if (gpu_fma2(codes, a * 0x10001u, gpu_mul2(codes, b * 0x10001u)) == want)
            parts = a | b << 16;
    }
    return parts;
}

/* The tables of all parts in NVFP4, by all threads. */
static __device__ __forceinline__ void nvfp4_tables(uint32_t (&table)[NVFP4_TABLES][256],
                                                    const struct sv_gemm_args &a)
{
    for (int32_t i = 0; i < a.n_parts; i++) {
        const struct sv_gemm_item &it = a.part[i];
        if (it.code != SV_CODES_NV4)
            continue;
        const float factor = __ldg(
            (const float *)(it.wcomp + sv_codes_factor_at(it.n_out, a.split.n_k * SV_TILE, 4)));
        for (uint32_t j = threadIdx.x; j < 256; j += blockDim.x)
            table[i][j] = nvfp4_parts_of(j, factor);
    }
}

/* As sv_codes_step, from the words of scales of even and odd rows. */
static __device__ __forceinline__ void nvfp4_step(uint32_t (&pair)[4], uint32_t word, int step,
                                                  const uint32_t (&scale)[2], uint32_t table)
{
    uint32_t high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t at = step ? scale[i] >> (8 * step - 2) : scale[i] << 2,
                       parts = gpu_load4((at & 0x3fcu) | table);
        high[i] = sv_wcomp_bytes_of(parts, 0, 0x1010);
        low[i] = sv_wcomp_bytes_of(parts, 0, 0x3232);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) { /* e2m1 put where bf16 has its bits: 2^-126 times the code */
        const uint32_t code = ((word << (12 - 4 * i)) & 0x80008000u) |
                              ((i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6)) & 0x01c001c0u);
        pair[i] = gpu_fma2(code, high[i % 2], gpu_mul2(code, low[i % 2]));
    }
}

#endif
