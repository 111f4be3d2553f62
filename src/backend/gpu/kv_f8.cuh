/*
 * kv_f8.cuh - rows of a cache in e4m3 on the device: the least power of two that keeps a row in
 * range, its codes, and the values of sixteen of them as bf16. The same bytes and values as
 * backend/cpu/kv_f8.c.
 *
 * Included by the kernels that write keys and values (norm_rope.cuh) and by those that read them.
 * Must not: let a row's bytes depend on anything but that row, or a value on its reader.
 */
#ifndef SV_GPU_KV_F8_CUH
#define SV_GPU_KV_F8_CUH

#include "backend/cuda/cuda.h"
#include "backend/gpu/gpu.h"

enum { KV_F8_ONE = 127, KV_F8_NAN = 255, KV_F8_MAX_EXPONENT = 119 }; /* 448 * 2^119 is an f32 */

/* ---------------------------------------------------------------- writing */

/* A row's codes, its own scale, and the scale of all rows, if there is one. */
struct sv_kv_f8_row {
    uint8_t *codes, *own;
    float fixed;
};

/* Magnitudes as bits: NaN is more than infinity. */
static __device__ __forceinline__ uint32_t sv_kv_f8_most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}
static __device__ __forceinline__ uint32_t sv_kv_f8_larger(uint32_t most, float x)
{
    return sv_kv_f8_most(most, __float_as_uint(x) & 0x7fffffffu);
}
static __device__ __forceinline__ bool sv_kv_f8_is_nan(uint32_t most)
{
    return most > 0x7f800000u;
}

/* The exponent of a row's own scale from its largest magnitude: 448 is 0.875 * 2^9. */
static __device__ __forceinline__ int32_t sv_kv_f8_exponent(uint32_t most)
{
    const int32_t e = (int32_t)(most >> 23) - 135 + ((most & 0x7fffffu) > 0x600000u);
    return most == 0 ? 0 : max(1 - KV_F8_ONE, min(e, (int32_t)KV_F8_MAX_EXPONENT));
}

/* How a row's numbers become codes. */
struct sv_kv_f8_put {
    uint32_t most;
    float by, fixed;
};
static __device__ __forceinline__ struct sv_kv_f8_put sv_kv_f8_put_of(uint32_t most, float fixed)
{
    const int32_t e = sv_kv_f8_exponent(most);
    return {most, __uint_as_float((uint32_t)(127 - e) << 23), fixed};
}
static __device__ __forceinline__ uint8_t sv_kv_f8_own(const struct sv_kv_f8_put &p)
{
    if (sv_kv_f8_is_nan(p.most))
        return KV_F8_NAN;
    return (uint8_t)(p.fixed > 0 ? KV_F8_ONE : KV_F8_ONE + sv_kv_f8_exponent(p.most));
}
/* Two neighbours, the first in the lower byte. */
static __device__ __forceinline__ uint32_t sv_kv_f8_codes(const struct sv_kv_f8_put &p, float x,
                                                          float y)
{
    if (sv_kv_f8_is_nan(p.most))
        return 0;
    return p.fixed > 0 ? gpu_fp8x2(__fdiv_rn(y, p.fixed), __fdiv_rn(x, p.fixed))
                       : gpu_fp8x2(__fmul_rn(y, p.by), __fmul_rn(x, p.by));
}

/* ---------------------------------------------------------------- latents */

/* Where a row's parts stand (sv_kv_row_bytes): a scale for each tile of codes, the rotated key. */
static __device__ __forceinline__ int32_t sv_latent_key_at(int32_t latent)
{
    return latent + 4 * ((latent + SV_LATENT_TILE - 1) / SV_LATENT_TILE);
}
static __device__ __forceinline__ int32_t sv_latent_bytes(const struct sv_kv &kv)
{
    return sv_latent_key_at(kv.latent) + 2 * (kv.head_dim - kv.latent);
}
/* The scale of number d, a power of two. */
static __device__ __forceinline__ float sv_latent_scale(const uint8_t *row, int32_t latent,
                                                        int32_t d)
{
    return *(const float *)(row + latent + d / SV_LATENT_TILE * 4);
}

/* ---------------------------------------------------------------- reading */

/* The own scales of a row's key and, in the upper byte, of its value; UINT32_MAX: no row. */
static __device__ __forceinline__ uint16_t sv_kv_f8_scales(const struct sv_kv &kv, uint32_t row)
{
    return (uint16_t)(row == UINT32_MAX ? KV_F8_ONE : kv.k_own[row] | kv.v_own[row] << 8);
}

/* One of them. */
static __device__ __forceinline__ uint32_t sv_kv_f8_own_scale(const uint8_t *own, uint32_t row)
{
    return row == UINT32_MAX ? KV_F8_ONE : own[row];
}

static __device__ __forceinline__ float sv_kv_f8_scale(uint8_t own, float fixed)
{
    const float scale = own == KV_F8_NAN ? __uint_as_float(0x7fc00000u)
                                         : __uint_as_float(own ? (uint32_t)own << 23 : 1u << 22);
    return fixed > 0 ? __fmul_rn(fixed, scale) : scale;
}

/* A code's value times a scale, as f32. Codes of NaN are never stored. */
static __device__ __forceinline__ float sv_kv_f8_value(uint32_t code, float scale)
{
    const float x = __uint_as_float((code & 0x7f) << 20 | (code & 0x80) << 24);
    return __fmul_rn(__fmul_rn(x, 0x1p120f), scale); /* the first is exact */
}

/* Two codes as bf16 whose exponents are too small by 120: of word bytes 2 * half, 2 * half + 1. */
static __device__ __forceinline__ uint32_t sv_kv_f8_pair(uint32_t word, int half)
{
#ifdef GPU_SIGNED_BYTES
    /* Each code with its sign in the eight bits above it. */
    return GPU_SIGNED_BYTES(word, half ? 0xb3a2 : 0x9180) << 4 & 0x87f087f0u;
#else
#ifdef GPU_BYTES_OF
    const uint32_t x = GPU_BYTES_OF(word, 0, half ? 0x3424 : 0x1404);
#else
    word = half ? word >> 16 : word;
    const uint32_t x = (word & 0xff) << 8 | (word & 0xff00) << 16;
#endif
    return (x & 0x80008000u) | (x >> 4 & 0x07f007f0u);
#endif
}

/* With a scale of its own a value is the code's times a power of two, up to 2^239: two factors, of
 * which the second is seldom needed. The first, twice, as bf16. */
static __device__ __forceinline__ uint32_t sv_kv_f8_factor(uint32_t own)
{
    const uint32_t factor = own == KV_F8_NAN ? 0x7fc0u : min(own + 120u, 254u) << 7;
    return factor << 16 | factor;
}
static __device__ __forceinline__ bool sv_kv_f8_two_factors(uint32_t own)
{
    return own > 134 && own != KV_F8_NAN;
}

/* Sixteen codes of a row times the first factor, as bf16. */
static __device__ __forceinline__ void sv_kv_f8_times(uint4 codes, uint32_t factor, uint4 (&out)[2])
{
    const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t v[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = gpu_scale2(sv_kv_f8_pair(w[i / 2], i % 2), factor);
    out[0] = make_uint4(v[0], v[1], v[2], v[3]);
    out[1] = make_uint4(v[4], v[5], v[6], v[7]);
}

/* Sixteen codes of a row as bf16. */
static __device__ __forceinline__ void sv_kv_f8_expand(uint4 codes, uint32_t own, float fixed,
                                                       uint4 (&out)[2])
{
    const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t v[8];
    if (fixed > 0) {
        const float scale = sv_kv_f8_scale((uint8_t)own, fixed);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t two = w[i / 2] >> (i % 2 * 16);
            const __nv_bfloat162 h = __floats2bfloat162_rn(sv_kv_f8_value(two & 0xff, scale),
                                                           sv_kv_f8_value(two >> 8 & 0xff, scale));
            v[i] = *(const uint32_t *)&h;
        }
    } else {
        const uint32_t first = sv_kv_f8_factor(own);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = gpu_scale2(sv_kv_f8_pair(w[i / 2], i % 2), first);
        if (sv_kv_f8_two_factors(own)) {
            const uint32_t second = (own - 7) << 7;
#pragma unroll
            for (int i = 0; i < 8; i++)
                v[i] = gpu_scale2(v[i], second << 16 | second);
        }
    }
    out[0] = make_uint4(v[0], v[1], v[2], v[3]);
    out[1] = make_uint4(v[4], v[5], v[6], v[7]);
}

#endif
