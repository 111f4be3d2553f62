/*
 * attention_mma.cuh - the instructions attention_portable.cu is made of, one function each.
 *
 * Included by attention_portable.cu. With SV_CUDA_EMULATED the same names come from the emulator of
 * the tests, which runs kernels on the CPU lane by lane. Must not: hold anything but instructions.
 */
#ifndef SV_CUDA_ATTENTION_MMA_CUH
#define SV_CUDA_ATTENTION_MMA_CUH

#include <stdint.h>

#ifndef SV_CUDA_EMULATED

#define ATTN_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]

static __device__ __forceinline__ uint32_t attn_shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory without a detour through registers; zeros when not `there`. */
static __device__ __forceinline__ void attn_copy16(uint32_t to, const void *from, bool there)
{
    const int n = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(n)
                 : "memory");
}
static __device__ __forceinline__ void attn_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most `pending` of the groups committed last are under way. */
static __device__ __forceinline__ void attn_copy_wait(int pending)
{
    switch (pending) {
    case 0:
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        break;
    case 1:
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        break;
    case 2:
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        break;
    default:
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    }
}

/* Four 8 x 8 matrices of 16-bit values; lane i names row i % 8 of matrix i / 8. */
static __device__ __forceinline__ void attn_ldmatrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void attn_ldmatrix_t(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* c (16, 8) += a (16, 16) b (16, 8). */
static __device__ __forceinline__ void attn_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void attn_store4(uint32_t at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
static __device__ __forceinline__ uint4 attn_load16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

#endif

/* Two bf16, the first in the lower half. */
static __device__ __forceinline__ uint32_t attn_pack(float lo, float hi)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&h;
}

#endif
