/*
 * attention_wgmma.cuh - the matrix instruction of sm_90a as attention uses it: 64 queries or their
 * weights (A, in registers; queries of wide heads and latents in shared memory) times a tile of
 * keys or values (B, in shared memory).
 *
 * Included by attention_chunk.cuh and attention_latent_sm90.cu. A tile lies in pieces of 8 rows and
 * 64 columns, 1 KiB each, whose 16-byte chunks are permuted by the row's low three bits; pieces of
 * the same rows lie beside one another. It is 1024-aligned. Must not: hold anything but the
 * instruction.
 */
#ifndef SV_CUDA_ATTENTION_WGMMA_CUH
#define SV_CUDA_ATTENTION_WGMMA_CUH

#include <stdint.h>

/* Keys: B's columns are the tile's rows, and k runs along them. 16 columns on: 32 bytes. */
template <int HD> static __device__ __forceinline__ uint64_t attn_desc_keys(uint32_t at)
{
    return ((uint64_t)1 << 62) | ((uint64_t)(HD * 16 >> 4) << 32) | ((uint64_t)1 << 16) |
           ((at & 0x3ffffu) >> 4);
}
/* Values: k runs down the tile's rows; 64 columns on: the next piece. 16 rows on: two rows of
 * pieces. */
template <int HD> static __device__ __forceinline__ uint64_t attn_desc_values(uint32_t at)
{
    return ((uint64_t)1 << 62) | ((uint64_t)(HD * 16 >> 4) << 32) | ((uint64_t)(1024 >> 4) << 16) |
           ((at & 0x3ffffu) >> 4);
}

/* d (64, 64) = a b^T + (keep ? d : 0). */
static __device__ __forceinline__ void attn_wgmma_keys(float (&d)[8][4], const uint32_t (&a)[4],
                                                       uint64_t b, int keep);
/* d (64, N) = a b + (keep ? d : 0). */
template <int N>
static __device__ __forceinline__ void
attn_wgmma_values(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int keep);

/* d (64, 64) = a b^T + (keep ? d : 0), a in shared memory as keys are. */
static __device__ __forceinline__ void attn_wgmma_scores(float (&d)[8][4], uint64_t a, uint64_t b,
                                                         int keep);

#ifndef SV_CUDA_EMULATED
#include "backend/cuda/wgmma.cuh"

static __device__ __forceinline__ void attn_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void attn_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> static __device__ __forceinline__ void attn_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from touching results before the wait above. */
template <int N> static __device__ __forceinline__ void attn_wgmma_pin(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}
/* The same for operands in registers: they are in place before the fence, and not used again before
 * the wait. */
template <int N> static __device__ __forceinline__ void attn_wgmma_pin(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
        asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
}
/* Keeps the compiler from holding descriptors made of this address in registers from one chunk to
 * the next. */
static __device__ __forceinline__ void attn_wgmma_pin(uint32_t &at)
{
    asm volatile("" : "+r"(at));
}
/* What ordinary stores and cp.async wrote becomes visible to wgmma. */
static __device__ __forceinline__ void attn_proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* n: columns of the result; h: a thread's sums; a_, b_, k: the operands behind these. */
#define ATTN_WGMMA(n, h, a_, b_, k, layouts, ...)                                                  \
    float(&d)[h] = *(float(*)[h]) & sums;                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #k ", 0;\n"                                  \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" SV_WGMMA_NAMES_##h   \
                 "}, " a_ ", %" #b_ ", p, 1, 1, " layouts ";\n}\n"                                 \
                 : SV_WGMMA_SUMS_##h(0)                                                            \
                 : __VA_ARGS__, "l"(b), "r"(keep))
#define ATTN_REGISTERS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

static __device__ __forceinline__ void attn_wgmma_keys(float (&sums)[8][4], const uint32_t (&a)[4],
                                                       uint64_t b, int keep)
{
    ATTN_WGMMA(64, 32, "{%32, %33, %34, %35}", 36, 37, "0", ATTN_REGISTERS);
}

static __device__ __forceinline__ void attn_wgmma_scores(float (&sums)[8][4], uint64_t a,
                                                         uint64_t b, int keep)
{
    ATTN_WGMMA(64, 32, "%32", 33, 34, "0, 0", "l"(a));
}

template <>
__device__ __forceinline__ void attn_wgmma_values<64>(float (&sums)[8][4], const uint32_t (&a)[4],
                                                      uint64_t b, int keep)
{
    ATTN_WGMMA(64, 32, "{%32, %33, %34, %35}", 36, 37, "1", ATTN_REGISTERS);
}

template <>
__device__ __forceinline__ void attn_wgmma_values<128>(float (&sums)[16][4], const uint32_t (&a)[4],
                                                       uint64_t b, int keep)
{
    ATTN_WGMMA(128, 64, "{%64, %65, %66, %67}", 68, 69, "1", ATTN_REGISTERS);
}
#undef ATTN_WGMMA
#undef ATTN_REGISTERS

#else
#include <emulated_wgmma.h>
#endif

#endif
