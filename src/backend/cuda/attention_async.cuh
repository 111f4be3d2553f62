/*
 * attention_async.cuh - loads of boxes through tensor maps, barriers of a warpgroup, and what the
 * thread blocks of a cluster send one another, one function for each instruction.
 *
 * Included by attention_chunk.cuh, attention_latent_sm90.cu, moe_joined.cuh and route_sm90.cu.
 * Emulated builds bring their own, the barriers of barrier.cuh with them. Must not: hold anything
 * but instructions.
 */
#ifndef SV_CUDA_ATTENTION_ASYNC_CUH
#define SV_CUDA_ATTENTION_ASYNC_CUH

#include "backend/cuda/attention.h"

#ifndef SV_CUDA_EMULATED
#include "backend/cuda/barrier.cuh"

/* Brings the parameters in, line by line, while there is nothing else to do. */
static __device__ __forceinline__ void attn_touch(const struct sv_attn_args &a)
{
#pragma unroll
    for (size_t i = 0; i < offsetof(struct sv_attn_args, k_map) / 4; i += 16)
        asm volatile("" ::"r"(((const uint32_t *)&a)[i]));
}
static __device__ __forceinline__ void attn_map_fetch(const struct sv_attn_map *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/* Some keys of one page and kv head, from a group of eight on, swizzled, to shared memory: of each
 * eight keys 64 columns, then the next 64. */
static __device__ __forceinline__ void attn_box(uint32_t to, const struct sv_attn_map *map,
                                                int32_t group, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %2, %2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(0), "r"(group), "r"(bar)
                 : "memory");
}
/* Of latents: of each eight keys those of a box's parts of 64 columns, from `part` on. */
static __device__ __forceinline__ void attn_box_part(uint32_t to, const struct sv_attn_map *map,
                                                     int32_t part, int32_t group, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(0), "r"(part), "r"(group), "r"(bar)
                 : "memory");
}
/* Bytes that lie in one piece, a multiple of 16, to shared memory. ONCE: they leave L2 first; a
 * policy as createpolicy makes it, as a constant, which takes no registers. */
template <bool ONCE>
static __device__ __forceinline__ void attn_copy(uint32_t to, const void *from, uint32_t n_bytes,
                                                 uint32_t bar)
{
    sv_jitter();
    if (ONCE)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(n_bytes), "r"(bar), "l"(0x12f0000000000000ull)
                     : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1], %2, [%3];" ::"r"(to),
                     "l"(from), "r"(n_bytes), "r"(bar)
                     : "memory");
}
/* The 128 threads of a warpgroup meet, or those of several. */
template <int THREADS = 128> static __device__ __forceinline__ void attn_group_sync(int32_t group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(THREADS) : "memory");
}
/* Registers move from one warpgroup to another; every warp of the warpgroup says so. */
template <int N> static __device__ __forceinline__ void attn_fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void attn_more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
/* The thread blocks of a cluster: which one this is, a meeting of all their threads, the place in
 * another one's shared memory that answers to ours, and a store there that counts towards a barrier
 * beside it. */
static __device__ __forceinline__ int32_t attn_cluster_rank(void)
{
    int32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ __forceinline__ void attn_cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
static __device__ __forceinline__ uint32_t attn_cluster_at(uint32_t at, int32_t rank)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
static __device__ __forceinline__ void attn_cluster_put(uint32_t to, float x, float y, uint32_t bar)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
            "r"(to),
        "f"(x), "f"(y), "r"(bar)
        : "memory");
}
static __device__ __forceinline__ void attn_cluster_put(uint32_t to, float x, uint32_t bar)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(__float_as_uint(x)), "r"(bar)
        : "memory");
}
/* The halves of a meeting of execution only: it stands for reads that are done, and with a release
 * it is a fence of about a microsecond. */
static __device__ __forceinline__ void attn_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void attn_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
static __device__ __forceinline__ void attn_prefetch(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
static __device__ __forceinline__ void attn_store16_zero(uint32_t at)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

#else
#include <emulated_async.h>
#endif

#endif
