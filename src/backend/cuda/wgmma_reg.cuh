/*
 * wgmma_reg.cuh - the matrix instruction of sm_90a with weights in registers, one function for each
 * width.
 *
 * Included by gemm_sm90.cu, where weights are expanded into registers, and by moe_sm90.cu;
 * wgmma.cuh has the rest. The operands must be final before the fence and stay as they are until
 * the wait. Must not: hold anything but the instruction.
 */
#ifndef SV_CUDA_WGMMA_REG_CUH
#define SV_CUDA_WGMMA_REG_CUH

#include "backend/cuda/wgmma.cuh"

/* d (64 weight rows, N tokens) = a b + (keep ? d : 0) over 16 columns; a: this thread's four
 * pairs. */
template <int N>
static __device__ __forceinline__ void sv_wgmma_reg(float (&d)[N / 2], const uint32_t *a,
                                                    uint64_t b, int keep);

/* n: N; h: its half, the number of sums; a0 to a3, b, k: the names of the operands behind them. */
#define SV_WGMMA_REG(n, h, a0, a1, a2, a3, b_, k)                                                  \
    template <>                                                                                    \
    __device__ __forceinline__ void sv_wgmma_reg<n>(float(&d)[h], const uint32_t *a, uint64_t b,   \
                                                    int keep)                                      \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #k ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n                                        \
                     "k16.f32.bf16.bf16 {" SV_WGMMA_NAMES_##h                                      \
                     "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_ ", p, 1, 1, 0;\n}\n"     \
                     : SV_WGMMA_SUMS_##h(0)                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));             \
    }
SV_WGMMA_REG(8, 4, 4, 5, 6, 7, 8, 9)
SV_WGMMA_REG(16, 8, 8, 9, 10, 11, 12, 13)
SV_WGMMA_REG(32, 16, 16, 17, 18, 19, 20, 21)
SV_WGMMA_REG(64, 32, 32, 33, 34, 35, 36, 37)
SV_WGMMA_REG(96, 48, 48, 49, 50, 51, 52, 53)
SV_WGMMA_REG(112, 56, 56, 57, 58, 59, 60, 61)
SV_WGMMA_REG(128, 64, 64, 65, 66, 67, 68, 69)
#undef SV_WGMMA_REG

#endif
