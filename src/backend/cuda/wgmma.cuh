/*
 * wgmma.cuh - the matrix instruction of sm_90a, one function for each width, and its descriptors.
 *
 * Included by gemm_sm90.cu, which is built once for bf16 and once for numbers of 8 bits, by
 * wgmma_reg.cuh and by attention_wgmma.cuh. The operands of an asm statement cannot be made by a
 * loop, but by macros. Must not: hold anything but the instruction.
 */
#ifndef SV_CUDA_WGMMA_CUH
#define SV_CUDA_WGMMA_CUH

#include <stdint.h>

/* Numbers of bf16, or of 8 bits with twice as many columns in the same bytes. */
#if SV_GEMM_FP8
#define SV_WGMMA_KIND "k32.f32.e4m3.e4m3"
#define SV_WGMMA_TAIL ""
#else
#define SV_WGMMA_KIND "k16.f32.bf16.bf16"
#define SV_WGMMA_TAIL ", 0, 0"
#endif

/* Operand in shared memory, K-major, 128-byte swizzle: 8 rows of 128 bytes, then the next 8 rows
 * 1024 bytes on. The tile is 1024-aligned; 16 elements further along k are 32 bytes, 2 in the
 * descriptor. */
static __device__ __forceinline__ uint64_t sv_wgmma_desc(uint32_t addr)
{
    return ((uint64_t)1 << 62) | ((uint64_t)(1024 >> 4) << 32) | ((uint64_t)1 << 16) |
           ((addr & 0x3ffffu) >> 4);
}

static __device__ __forceinline__ void sv_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

static __device__ __forceinline__ void sv_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void sv_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}

/* d (64 weight rows, N tokens) = a b + (keep ? d : 0) over 16 columns, or 32 of bytes. */
template <int N>
static __device__ __forceinline__ void sv_wgmma(float (&d)[N / 2], uint64_t a, uint64_t b,
                                                int keep);

/* Names of the sums in the instruction, and the sums. */
#define SV_WGMMA_NAMES_4 "%0, %1, %2, %3"
#define SV_WGMMA_NAMES_8 SV_WGMMA_NAMES_4 ", %4, %5, %6, %7"
#define SV_WGMMA_NAMES_16                                                                          \
    SV_WGMMA_NAMES_8                                                                               \
    ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SV_WGMMA_NAMES_32                                                                          \
    SV_WGMMA_NAMES_16                                                                              \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SV_WGMMA_NAMES_48                                                                          \
    SV_WGMMA_NAMES_32                                                                              \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SV_WGMMA_NAMES_56 SV_WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SV_WGMMA_NAMES_64                                                                          \
    SV_WGMMA_NAMES_48                                                                              \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SV_WGMMA_SUMS_4(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define SV_WGMMA_SUMS_8(i) SV_WGMMA_SUMS_4(i), SV_WGMMA_SUMS_4((i) + 4)
#define SV_WGMMA_SUMS_16(i) SV_WGMMA_SUMS_8(i), SV_WGMMA_SUMS_8((i) + 8)
#define SV_WGMMA_SUMS_32(i) SV_WGMMA_SUMS_16(i), SV_WGMMA_SUMS_16((i) + 16)
#define SV_WGMMA_SUMS_48(i) SV_WGMMA_SUMS_32(i), SV_WGMMA_SUMS_16((i) + 32)
#define SV_WGMMA_SUMS_56(i) SV_WGMMA_SUMS_48(i), SV_WGMMA_SUMS_8((i) + 48)
#define SV_WGMMA_SUMS_64(i) SV_WGMMA_SUMS_32(i), SV_WGMMA_SUMS_32((i) + 32)
#define SV_WGMMA_NAMES_80                                                                          \
    SV_WGMMA_NAMES_64                                                                              \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define SV_WGMMA_NAMES_96                                                                          \
    SV_WGMMA_NAMES_80                                                                              \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SV_WGMMA_NAMES_112                                                                         \
    SV_WGMMA_NAMES_96                                                                              \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define SV_WGMMA_NAMES_128                                                                         \
    SV_WGMMA_NAMES_112                                                                             \
    ", %112, %113, %114, %115, %116, %117, %118, %119"                                             \
    ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SV_WGMMA_SUMS_80(i) SV_WGMMA_SUMS_64(i), SV_WGMMA_SUMS_16((i) + 64)
#define SV_WGMMA_SUMS_96(i) SV_WGMMA_SUMS_64(i), SV_WGMMA_SUMS_32((i) + 64)
#define SV_WGMMA_SUMS_112(i) SV_WGMMA_SUMS_96(i), SV_WGMMA_SUMS_16((i) + 96)
#define SV_WGMMA_SUMS_128(i) SV_WGMMA_SUMS_64(i), SV_WGMMA_SUMS_64((i) + 64)

/* n: N; h: its half, the number of sums; a_, b_, k: the names of the operands behind them. */
#define SV_WGMMA(n, h, a_, b_, k)                                                                  \
    template <>                                                                                    \
    __device__ __forceinline__ void sv_wgmma<n>(float(&d)[h], uint64_t a, uint64_t b, int keep)    \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #k ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n SV_WGMMA_KIND " {" SV_WGMMA_NAMES_##h  \
                     "}, %" #a_ ", %" #b_ ", p, 1, 1" SV_WGMMA_TAIL ";\n}\n"                       \
                     : SV_WGMMA_SUMS_##h(0)                                                        \
                     : "l"(a), "l"(b), "r"(keep));                                                 \
    }
SV_WGMMA(8, 4, 4, 5, 6)
SV_WGMMA(16, 8, 8, 9, 10)
SV_WGMMA(32, 16, 16, 17, 18)
SV_WGMMA(64, 32, 32, 33, 34)
SV_WGMMA(96, 48, 48, 49, 50)
SV_WGMMA(112, 56, 56, 57, 58)
SV_WGMMA(128, 64, 64, 65, 66)
SV_WGMMA(160, 80, 80, 81, 82)
SV_WGMMA(192, 96, 96, 97, 98)
SV_WGMMA(224, 112, 112, 113, 114)
SV_WGMMA(256, 128, 128, 129, 130)
#undef SV_WGMMA

#endif
