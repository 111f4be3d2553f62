/*
 * gemm_expand.cuh - compressed weights (wcomp.cuh) become bf16 in a warp's registers, and patches
 * come in.
 *
 * Included by gemm_sm90.cu and gemm_one_sm90.cu where they are built for compressed weights, and by
 * gemm_portable.cuh. Must not: know of rings, blocks or sums.
 */
#ifndef SV_CUDA_GEMM_EXPAND_CUH
#define SV_CUDA_GEMM_EXPAND_CUH

#include "backend/gpu/wcomp.cuh"
#include "backend/cuda/gemm.h"
#include "backend/gpu/gpu.h"

/* What a warp's strip of 16 weight rows needs beside its tiles. */
struct expansion {
    uint32_t scale;
    uint32_t next; /* tile along k of the further patch at `at`, or none that there can be */
    const struct sv_wcomp_more *at, *end;
};

static __device__ __forceinline__ void next_more(struct expansion &e)
{
    e.next = e.at < e.end ? __ldg(&e.at->kk) : UINT32_MAX;
}

/* The next further patch of the band in tile kk, or none. Strips whose slots are not full leave the
 * list alone, so it may stand at an earlier tile. */
static __device__ __forceinline__ uint32_t next_of(struct expansion &e, uint32_t kk)
{
    uint32_t patch = SV_WCOMP_NO_PATCH;
    while (e.next < kk) {
        e.at++;
        next_more(e);
    }
    if (e.next == kk) {
        patch = __ldg(&e.at->patch);
        e.at++;
        next_more(e);
    }
    return patch;
}

/* What a band needs, to be loaded ahead of its use. row0: any row. */
static __device__ __forceinline__ struct sv_wcomp_band band_of(const struct sv_gemm_item &it,
                                                               int32_t row0, int32_t n_k)
{
    const struct sv_wcomp_band *b =
        (const struct sv_wcomp_band *)(it.wcomp + sv_wcomp_bands_at(it.n_out, n_k * SV_TILE)) +
        row0 / SV_TILE;
    struct sv_wcomp_band own;
    own.scale = __ldg(&b->scale);
    own.n_more = __ldg(&b->n_more);
    return own;
}

static __device__ __forceinline__ struct expansion
expansion_with(const struct sv_gemm_item &it, int32_t row0, int32_t n_k, struct sv_wcomp_band b)
{
    struct expansion e;
    e.scale = b.scale;
    e.at = (const struct sv_wcomp_more *)(it.wcomp + sv_wcomp_more_at(it.n_out, n_k * SV_TILE)) +
           (size_t)(row0 / SV_TILE) * SV_WCOMP_MORE;
    e.end = e.at + b.n_more;
    next_more(e);
    return e;
}

/* row0: the strip's first row. */
static __device__ __forceinline__ struct expansion expansion_of(const struct sv_gemm_item &it,
                                                                int32_t row0, int32_t n_k)
{
    return expansion_with(it, row0, n_k, band_of(it, row0, n_k));
}

/* Puts a patch into the pair that holds its place, if this lane has it. On Hopper a mask becomes
 * predicates in fewer instructions than as many comparisons; the portable kernels have not been
 * checked with it. */
static __device__ __forceinline__ void patch_in(uint32_t (&pair)[SV_WCOMP_PAIRS], uint32_t patch,
                                                uint32_t strip)
{
    const uint32_t place = patch & 0xfef, mine = strip << 10 | (threadIdx.x & 31) << 5;
    const uint32_t bytes = patch & 16 ? 0x7610 : 0x3276;
#if SV_GEMM_WCOMP
    const uint32_t at = place - mine < SV_WCOMP_PAIRS ? 1u << (place - mine) : 0;
#pragma unroll
    for (int i = 0; i < SV_WCOMP_PAIRS; i++)
        if (at >> i & 1)
            pair[i] = __byte_perm(pair[i], patch, bytes);
#else
#pragma unroll
    for (int i = 0; i < SV_WCOMP_PAIRS; i++)
        pair[i] = __byte_perm(pair[i], patch, place - mine == (uint32_t)i ? bytes : 0x3210);
#endif
}

/* What a lane has of a strip in shared memory, patches apart. */
struct coded {
    uint32_t word[SV_WCOMP_WORDS];
};

static __device__ __forceinline__ struct coded fetch(uint32_t strip_at)
{
    const uint32_t own = strip_at + 16 * (threadIdx.x & 31);
    const uint4 c = gpu_load16(own + 1024), a = gpu_load16(own), b = gpu_load16(own + 512);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w}};
}

/* Half of a lane's pairs, without patches. */
template <int HALF>
static __device__ __forceinline__ void expand_half(uint32_t (&pair)[SV_WCOMP_PAIRS],
                                                   const struct coded &c, const struct expansion &e)
{
#pragma unroll
    for (int q = 4 * HALF; q < 4 * HALF + 4; q++)
        sv_wcomp_decode_two(c.word, pair, q);
#pragma unroll
    for (int i = 8 * HALF; i < 8 * HALF + 8; i++)
        pair[i] = gpu_scale2(pair[i], e.scale); /* times 2^base, which is exact */
}

/* This lane's pairs of a tile whose strip lies at `at` in shared memory, without patches. */
static __device__ __forceinline__ void expand_plain(uint32_t (&pair)[SV_WCOMP_PAIRS], uint32_t at,
                                                    const struct expansion &e)
{
    const struct coded c = fetch(at);
    expand_half<0>(pair, c, e);
    expand_half<1>(pair, c, e);
}

/* The first patch of a strip in shared memory. */
static __device__ __forceinline__ uint32_t first_patch(uint32_t strip_at)
{
    return gpu_load4(strip_at + SV_WCOMP_SLOTS_AT);
}

/* All patches of the strip in tile kk, the first of which has been read. strip: its number in the
 * band. */
static __device__ __forceinline__ void patch_all(uint32_t (&pair)[SV_WCOMP_PAIRS], uint32_t patch,
                                                 uint32_t at, uint32_t strip, uint32_t kk,
                                                 struct expansion &e)
{
    /* A vote, so that the compiler knows that the warp goes one way. */
#pragma unroll 1
    for (uint32_t slot = 1; __any_sync(0xffffffff, patch != SV_WCOMP_NO_PATCH); slot++) {
        patch_in(pair, patch, strip);
        patch =
            slot < SV_WCOMP_SLOTS ? gpu_load4(at + SV_WCOMP_SLOTS_AT + 4 * slot) : next_of(e, kk);
    }
}

#endif
