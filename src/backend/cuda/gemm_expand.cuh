/*
 * gemm_expand.cuh - dense weights (dense.cuh) become bf16 in a warp's registers, and patches come in.
 *
 * Included by gemm_sm90.cu where it is built for dense weights. Must not: know of rings, blocks or sums.
 */
#ifndef SV_CUDA_GEMM_EXPAND_CUH
#define SV_CUDA_GEMM_EXPAND_CUH

#include "backend/cuda/dense.cuh"
#include "backend/cuda/gemm.h"

/* What a warp's strip of 16 weight rows needs beside its tiles. */
struct expansion {
    uint32_t scale;
    int32_t next; /* tile along k that has patches, or -1 */
    const struct sv_dense_patch *at, *end;
};

static __device__ __forceinline__ void next_patch(struct expansion &e)
{
    e.next = e.at < e.end ? (int32_t)__ldg(&e.at->kk) : -1;
}

/* From tile k0 on; row0: the strip's first row. */
static __device__ __forceinline__ struct expansion
expansion_of(const struct sv_gemm_item &it, int32_t row0, int32_t n_k, int32_t k0)
{
    const int32_t cols = n_k * SV_TILE, band = row0 / SV_TILE;
    const struct sv_dense_head *head = (const struct sv_dense_head *)it.dense;
    const uint32_t *counts = (const uint32_t *)(it.dense + sv_dense_counts_at(it.n_out, cols));
    struct expansion e;
    e.scale = __ldg(&head->scale);
    e.at = (const struct sv_dense_patch *)(it.dense + sv_dense_patches_at(it.n_out, cols)) +
           (size_t)band * SV_DENSE_PATCHES;
    e.end = e.at + __ldg(&counts[band]);
    while (e.at < e.end && __ldg(&e.at->kk) < k0)
        e.at++;
    next_patch(e);
    return e;
}

static __device__ __forceinline__ uint4 shared_load4(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* This lane's pairs of tile kk, whose strip lies at `at` in shared memory. place: 512 times the strip's number in its
 * band. */
static __device__ __forceinline__ void expand(uint32_t (&pair)[SV_DENSE_PAIRS], uint32_t at,
                                              uint32_t place, int32_t kk, struct expansion &e)
{
    const uint32_t lane = threadIdx.x & 31;
    at += 16 * lane;
    const uint4 c = shared_load4(at + 1024), a = shared_load4(at), b = shared_load4(at + 512);
    uint32_t d;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(d) : "r"(at + 1536 - 12 * lane) : "memory");
    const uint32_t word[13] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w, c.x, c.y, c.z, c.w, d};
    sv_dense_decode(word, pair);
#pragma unroll
    for (int i = 0; i < SV_DENSE_PAIRS; i++)
        asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(pair[i]) : "r"(e.scale));
    if (e.next == kk) {
#pragma unroll 1
        do {
            const uint32_t want = e.at->place - place - lane * SV_DENSE_PAIRS, to = e.at->pair;
#pragma unroll
            for (int i = 0; i < SV_DENSE_PAIRS; i++)
                if (want == (uint32_t)i)
                    pair[i] = to;
            e.at++;
            next_patch(e);
        } while (e.next == kk);
    }
    /* Operands in registers must be in place before wgmma's fence. */
#pragma unroll
    for (int i = 0; i < SV_DENSE_PAIRS; i++)
        asm volatile("" : "+r"(pair[i])::"memory");
}

#endif
