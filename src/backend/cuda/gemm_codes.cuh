/*
 * gemm_codes.cuh - codes (codes.cuh) become bf16 in a warp's registers.
 *
 * Included by gemm_sm90.cu and gemm_one_sm90.cu where they are built for codes, in place of
 * gemm_expand.cuh, whose names it has: there are no patches. Must not: know of rings, blocks or
 * sums.
 */
#ifndef SV_CUDA_GEMM_CODES_CUH
#define SV_CUDA_GEMM_CODES_CUH

#include "backend/gpu/codes_value.cuh"
#include "backend/cuda/gemm.h"

struct expansion {
    int32_t code;
    float factor; /* see sv_codes_step */
};

static __device__ __forceinline__ struct expansion expansion_of(const struct sv_gemm_item &it,
                                                                int32_t row0, int32_t n_k)
{
    struct expansion e = {it.code, 0};
    if (SV_GEMM_CODES == 4 && it.code == SV_CODES_NV4)
        e.factor =
            __ldg((const float *)(it.wcomp + sv_codes_factor_at(it.n_out, n_k * SV_TILE, 4)));
    return e;
}

/* What a lane has of a strip in shared memory; words of its rows in even and odd pairs. */
struct coded {
    uint32_t word[SV_CODES_WORDS(SV_GEMM_CODES)];
    sv_codes_row<SV_GEMM_CODES>::type scale[2];
};

static __device__ __forceinline__ struct coded fetch(uint32_t strip_at)
{
    const uint32_t lane = threadIdx.x & 31, own = strip_at + 16 * lane,
                   scale = strip_at + SV_CODES_SCALES_AT(SV_GEMM_CODES) + lane / 4 * 4;
    const uint4 a = gpu_load16(own);
#if SV_GEMM_CODES == 8
    const uint4 b = gpu_load16(own + 512);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}, {gpu_load4(scale), gpu_load4(scale + 32)}};
#elif SV_GEMM_CODES == 4
    return {{a.x, a.y, a.z, a.w}, {gpu_load4(scale), gpu_load4(scale + 32)}};
#else
    enum { MORE = SV_CODES_WORDS(SV_GEMM_CODES) - 4 };
    struct coded c = {{a.x, a.y, a.z, a.w}};
#pragma unroll
    for (int q = 0; q < MORE; q++)
        c.word[4 + q] = gpu_load4(strip_at + 512 + 4 * (MORE * lane + q));
    const uint4 b = gpu_load16(scale + lane / 4 * 12);
    c.scale[0] = make_uint2(b.x, b.y);
    c.scale[1] = make_uint2(b.z, b.w);
    return c;
#endif
}

template <int CODE, int HALF>
static __device__ __forceinline__ void
expand_words(uint32_t (&pair)[SV_WCOMP_PAIRS], const struct coded &c, const struct expansion &e)
{
    const struct sv_codes_scale s[2] = {sv_codes_scale_of<CODE>(c.scale[0]),
                                        sv_codes_scale_of<CODE>(c.scale[1])};
#pragma unroll
    for (int step = 2 * HALF; step < 2 * HALF + 2; step++) {
        uint32_t four[4];
        sv_codes_lane_step<CODE, 4>(four, c.word, step, step, s, e.factor);
#pragma unroll
        for (int i = 0; i < 4; i++)
            pair[4 * step + i] = four[i];
    }
}

/* A call in which CODE is e's. */
#define FOR_ONE_CODE(one, call)                                                                    \
    {                                                                                              \
        constexpr int CODE = one;                                                                  \
        call;                                                                                      \
    }
#if SV_GEMM_CODES == 8
#define FOR_CODE(e, call)                                                                          \
    do {                                                                                           \
        if ((e).code == SV_CODES_F8)                                                               \
            FOR_ONE_CODE(SV_CODES_F8, call)                                                        \
        else if ((e).code == SV_CODES_I8)                                                          \
            FOR_ONE_CODE(SV_CODES_I8, call)                                                        \
        else if ((e).code == SV_CODES_I8_TWO)                                                      \
            FOR_ONE_CODE(SV_CODES_I8_TWO, call)                                                    \
        else                                                                                       \
            FOR_ONE_CODE(SV_CODES_F8_WIDE, call)                                                   \
    } while (0)
#elif SV_GEMM_CODES > 4
#define FOR_CODE(e, call) FOR_ONE_CODE(SV_CODES_K4 + SV_GEMM_CODES - 5, call)
#else
#define FOR_CODE(e, call)                                                                          \
    do {                                                                                           \
        if ((e).code == SV_CODES_I4)                                                               \
            FOR_ONE_CODE(SV_CODES_I4, call)                                                        \
        else if ((e).code == SV_CODES_I4_HALF)                                                     \
            FOR_ONE_CODE(SV_CODES_I4_HALF, call)                                                   \
        else if ((e).code == SV_CODES_I4_TWO)                                                      \
            FOR_ONE_CODE(SV_CODES_I4_TWO, call)                                                    \
        else if ((e).code == SV_CODES_I4_HALF_TWO)                                                 \
            FOR_ONE_CODE(SV_CODES_I4_HALF_TWO, call)                                               \
        else if ((e).code == SV_CODES_MX4)                                                         \
            FOR_ONE_CODE(SV_CODES_MX4, call)                                                       \
        else                                                                                       \
            FOR_ONE_CODE(SV_CODES_NV4, call)                                                       \
    } while (0)
#endif

template <int HALF>
static __device__ __forceinline__ void expand_half(uint32_t (&pair)[SV_WCOMP_PAIRS],
                                                   const struct coded &c, const struct expansion &e)
{
    FOR_CODE(e, (expand_words<CODE, HALF>(pair, c, e)));
}

static __device__ __forceinline__ void expand_plain(uint32_t (&pair)[SV_WCOMP_PAIRS], uint32_t at,
                                                    const struct expansion &e)
{
    const struct coded c = fetch(at);
    expand_half<0>(pair, c, e);
    expand_half<1>(pair, c, e);
}

static __device__ __forceinline__ uint32_t first_patch(uint32_t strip_at)
{
    return SV_WCOMP_NO_PATCH;
}

static __device__ __forceinline__ void patch_all(uint32_t (&pair)[SV_WCOMP_PAIRS], uint32_t patch,
                                                 uint32_t at, uint32_t strip, uint32_t kk,
                                                 struct expansion &e)
{
}

#endif
