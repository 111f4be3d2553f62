/*
 * barrier.cuh - barriers in shared memory (mbarrier), one function for each instruction; `bar` is a
 * barrier's address in shared memory.
 *
 * Included by the products of *_sm90.cu and, through attention_async.cuh, by attention's. Emulated
 * builds bring their own. Must not: hold anything but instructions.
 */
#ifndef SV_CUDA_BARRIER_CUH
#define SV_CUDA_BARRIER_CUH

#include "backend/cuda/jitter.cuh"

static __device__ __forceinline__ void bar_init(uint32_t bar, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

/* Barriers just made become visible to the copy engine and to the cluster. */
static __device__ __forceinline__ void bar_made(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

static __device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t n_bytes)
{
    sv_jitter();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n_bytes)
                 : "memory");
}

static __device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    sv_jitter();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ uint32_t bar_try(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done;
}

static __device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    sv_jitter();
    const uint32_t since = sv_jitter_now();
    do {
        done = bar_try(bar, parity);
        sv_jitter_watch(since);
    } while (!done);
    sv_jitter();
}

/* By a whole warp, of which the compiler then knows that it stays together. */
static __device__ __forceinline__ void bar_wait_warp(uint32_t bar, uint32_t parity)
{
    bool done;
    sv_jitter();
    const uint32_t since = sv_jitter_now();
    do {
        done = __all_sync(0xffffffffu, bar_try(bar, parity));
        sv_jitter_watch(since);
    } while (!done);
    sv_jitter();
}

/* n_bytes that lie in one piece, a multiple of 16; the barrier expects them. */
static __device__ __forceinline__ void copy_tile(uint32_t dst, const void *src, uint32_t n_bytes,
                                                 uint32_t bar, uint64_t policy)
{
    sv_jitter();
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(n_bytes), "r"(bar), "l"(policy)
                 : "memory");
}

#endif
