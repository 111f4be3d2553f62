/*
 * jitter.cuh - delays warps on purpose, in a build of its own (make CUDA=1 JITTER=1): a wait that
 * relies on another warp arriving in time, or on polling a barrier before two of its phases have
 * passed, then fails in a second instead of once in a thousand runs.
 *
 * Called before and after waits, before arrivals, copies and pieces, around the wait for the launch
 * before, and by joins before a part is sent, looked for and blanked, and on leaving: by
 * barrier.cuh, cuda.h, join.cuh and the gemm*.cuh. Builds without SV_CUDA_JITTER have not
 * one instruction of it. Must not: change what a kernel computes, or call a function: the matrix
 * instructions would then no longer run on their own.
 */
#ifndef SV_CUDA_JITTER_CUH
#define SV_CUDA_JITTER_CUH

#include <stdint.h>

#ifdef SV_CUDA_JITTER

/* One asm statement each, which costs little compile time: there are many hooks, among instructions
 * that use nearly all registers. f: a random number of this warp, or block, that is constant for
 * half a millisecond. */
#define SV_JITTER_FATE(WARP)                                                                       \
    "mov.u32 n, %%globaltimer_lo;\nshr.u32 f, n, 19;\nmov.u32 n, %%ctaid.x;\n"                     \
    "mad.lo.u32 f, f, 509, n;\nmov.u32 n, %%ctaid.y;\nmad.lo.u32 f, n, 257, f;\n"                  \
    "mul.lo.u32 f, f, 17;\n" WARP SV_JITTER_MIX("f")
#define SV_JITTER_MIX(X)                                                                           \
    "shr.u32 n, " X ", 15;\nxor.b32 " X ", " X ", n;\nmul.lo.u32 " X ", " X ", 0x2c1b3c6d;\n"      \
    "shr.u32 n, " X ", 13;\nxor.b32 " X ", " X ", n;\n"
/* Sleeps for d ns. */
#define SV_JITTER_SLEEP                                                                            \
    "setp.eq.u32 p, d, 0;\n@p bra AWAKE;\n"                                                        \
    "mov.u32 n, %%globaltimer_lo;\nadd.u32 d, d, n;\n"                                             \
    "ASLEEP:\nnanosleep.u32 100;\nmov.u32 n, %%globaltimer_lo;\nsub.u32 n, d, n;\n"                \
    "setp.gt.s32 p, n, 0;\n@p bra ASLEEP;\nAWAKE:\n"

/* Mostly nothing, one time in 64 1 to 3 us, one in 4096 21 to 54; and one warp of 256 is 0.3 to 2.4
 * us late each time. */
static __device__ __forceinline__ void sv_jitter(void)
{
    asm volatile("{\n.reg .pred p;\n.reg .b32 n, f, d;\n" SV_JITTER_FATE(
                     "mov.u32 n, %%tid.x;\nshr.u32 n, n, 5;\nadd.u32 f, f, n;\nadd.u32 f, f, 1;\n")
                 /* The slow ones. */
                 "bfe.u32 n, f, 8, 2;\nmov.u32 d, 300;\nshl.b32 d, d, n;\n"
                 "and.b32 n, f, 255;\nsetp.ne.u32 p, n, 0;\n@p mov.u32 d, 0;\n"
                 /* f: now a number of this very call. */
                 "mov.u32 n, %%clock;\nadd.u32 f, f, n;\n" SV_JITTER_MIX(
                     "f") "and.b32 n, f, 63;\nsetp.eq.u32 p, n, 0;\n"
                          "bfe.u32 n, f, 12, 11;\nadd.u32 n, n, 1000;\n@p add.u32 d, d, n;\n"
                          "and.b32 n, f, 4095;\nsetp.eq.u32 p, n, 0;\n"
                          "bfe.u32 n, f, 12, 15;\nadd.u32 n, n, 20000;\n"
                          "@p add.u32 d, d, n;\n" SV_JITTER_SLEEP "}" ::"n"(0)
                 : "memory");
}

/* One block of eight goes on up to 32 us late, all its warps. */
static __device__ __forceinline__ void sv_jitter_block(void)
{
    asm volatile("{\n.reg .pred p;\n.reg .b32 n, f, d;\n" SV_JITTER_FATE(
                     "") "bfe.u32 d, f, 8, 15;\nand.b32 n, f, 7;\nsetp.ne.u32 p, n, 0;\n"
                         "@p mov.u32 d, 0;\n" SV_JITTER_SLEEP "}" ::"n"(0)
                 : "memory");
}

static __device__ __forceinline__ uint32_t sv_jitter_now(void)
{
    uint32_t ns;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(ns));
    return ns;
}

/* Ends the program if a wait has taken two seconds. */
static __device__ __forceinline__ void sv_jitter_watch(uint32_t since)
{
    asm volatile("{\n.reg .pred p;\n.reg .b32 n;\nmov.u32 n, %%globaltimer_lo;\nsub.u32 n, n, %0;\n"
                 "setp.gt.u32 p, n, 2000000000;\n@p trap;\n}" ::"r"(since)
                 : "memory");
}

#undef SV_JITTER_FATE
#undef SV_JITTER_MIX
#undef SV_JITTER_SLEEP

#else

static __device__ __forceinline__ uint32_t sv_jitter_now(void)
{
    return 0;
}
static __device__ __forceinline__ void sv_jitter(void)
{
}
static __device__ __forceinline__ void sv_jitter_block(void)
{
}
static __device__ __forceinline__ void sv_jitter_watch(uint32_t)
{
}

#endif

#endif
