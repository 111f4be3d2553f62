/*
 * hip_runtime.h (stub) - enough of HIP to compile the GPU kernels for AMD with a plain clang, where
 * there is no ROCm: attributes, coordinates, shuffles, atomics and arithmetic on clang's builtins.
 *
 * For tests/hip/compile.test.sh alone: the host's half (host.h) is declarations, and nothing is
 * ever linked or run. Must not: be taken for evidence about the arithmetic of the real headers.
 */
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define STUB static __device__ __forceinline__
#define STUB_BOTH static __host__ __device__ __forceinline__

/* ---------------------------------------------------------------- coordinates, vectors */

struct dim3 {
    unsigned x, y, z;
    __host__ __device__ dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
#define STUB_AXIS(n, f)                                                                            \
    __declspec(property(get = get_##n)) unsigned n;                                                \
    __device__ unsigned get_##n() const                                                            \
    {                                                                                              \
        return f;                                                                                  \
    }
struct stub_thread {
    STUB_AXIS(x, __builtin_amdgcn_workitem_id_x())
    STUB_AXIS(y, __builtin_amdgcn_workitem_id_y())
};
struct stub_block {
    STUB_AXIS(x, __builtin_amdgcn_workgroup_id_x())
    STUB_AXIS(y, __builtin_amdgcn_workgroup_id_y())
    STUB_AXIS(z, __builtin_amdgcn_workgroup_id_z())
};
struct stub_block_dim {
    STUB_AXIS(x, __builtin_amdgcn_workgroup_size_x())
};
struct stub_grid_dim {
    STUB_AXIS(x, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x())
    STUB_AXIS(y, __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y())
};
#undef STUB_AXIS
extern const __attribute__((weak)) __device__ stub_thread threadIdx;
extern const __attribute__((weak)) __device__ stub_block blockIdx;
extern const __attribute__((weak)) __device__ stub_block_dim blockDim;
extern const __attribute__((weak)) __device__ stub_grid_dim gridDim;

#define STUB_VEC2(name, t)                                                                         \
    struct alignas(8) name {                                                                       \
        t x, y;                                                                                    \
    };                                                                                             \
    STUB_BOTH name make_##name(t x, t y)                                                           \
    {                                                                                              \
        return {x, y};                                                                             \
    }
#define STUB_VEC4(name, t)                                                                         \
    struct alignas(16) name {                                                                      \
        t x, y, z, w;                                                                              \
    };                                                                                             \
    STUB_BOTH name make_##name(t x, t y, t z, t w)                                                 \
    {                                                                                              \
        return {x, y, z, w};                                                                       \
    }
STUB_VEC2(float2, float)
STUB_VEC2(uint2, unsigned)
STUB_VEC2(int2, int)
STUB_VEC4(float4, float)
STUB_VEC4(uint4, unsigned)
STUB_VEC4(int4, int)
#undef STUB_VEC2
#undef STUB_VEC4

/* ---------------------------------------------------------------- lanes */

STUB void __syncthreads()
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
STUB void __threadfence()
{
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
}
STUB int stub_lane()
{
    return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
}
template <typename T> STUB T stub_from(T x, int lane)
{
    static_assert(sizeof(T) % 4 == 0, "whole words");
    int w[sizeof(T) / 4];
    __builtin_memcpy(w, &x, sizeof x);
    for (unsigned i = 0; i < sizeof(T) / 4; i++)
        w[i] = __builtin_amdgcn_ds_bpermute(lane * 4, w[i]);
    __builtin_memcpy(&x, w, sizeof x);
    return x;
}
template <typename T> STUB T __shfl(T x, int n, int width = 64)
{
    return stub_from(x, (stub_lane() & ~(width - 1)) | (n & (width - 1)));
}
template <typename T> STUB T __shfl_xor(T x, int mask, int width = 64)
{
    const int lane = stub_lane(), from = lane ^ mask;
    return stub_from(x, from >= ((lane + width) & ~(width - 1)) ? lane : from);
}
template <typename T> STUB T __shfl_up(T x, unsigned n, int width = 64)
{
    const int lane = stub_lane();
    return stub_from(x, (lane & (width - 1)) < (int)n ? lane : lane - (int)n);
}

/* ---------------------------------------------------------------- atomics */

#define STUB_ATOMIC(name, op)                                                                      \
    template <typename T, typename U> STUB T name(T *p, U x)                                       \
    {                                                                                              \
        return __hip_atomic_##op(p, (T)x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);             \
    }
STUB_ATOMIC(atomicAdd, fetch_add)
STUB_ATOMIC(atomicOr, fetch_or)
STUB_ATOMIC(atomicMax, fetch_max)
STUB_ATOMIC(atomicExch, exchange)
#undef STUB_ATOMIC
template <typename T, typename U, typename V> STUB T atomicCAS(T *p, U was, V now)
{
    T expected = (T)was;
    __hip_atomic_compare_exchange_strong(p, &expected, (T)now, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                         __HIP_MEMORY_SCOPE_AGENT);
    return expected;
}

/* ---------------------------------------------------------------- arithmetic */

#define STUB_F(result, name, args, value)                                                          \
    STUB result name args                                                                          \
    {                                                                                              \
        return value;                                                                              \
    }
STUB_F(unsigned, __float_as_uint, (float f), __builtin_bit_cast(unsigned, f))
STUB_F(float, __uint_as_float, (unsigned u), __builtin_bit_cast(float, u))
STUB_F(float, __int_as_float, (int i), __builtin_bit_cast(float, i))
STUB_F(float, __uint2float_rn, (unsigned u), (float)u)
STUB_F(unsigned long long, __float2ull_rn, (float f), (unsigned long long)__builtin_rintf(f))
STUB_F(int, __ffs, (int x), __builtin_ffs(x))
STUB_F(int, __popc, (unsigned x), __builtin_popcount(x))
STUB_F(int, __clz, (int x), x ? __builtin_clz((unsigned)x) : 32)
STUB_F(unsigned, __umulhi, (unsigned a, unsigned b), (unsigned)((uint64_t)a *b >> 32))
STUB_F(unsigned, __byte_perm, (unsigned a, unsigned b, unsigned s),
       __builtin_amdgcn_perm(b, a,
                             (s & 7) | (s & 0x70) << 4 | (s & 0x700) << 8 | (s & 0x7000) << 12))
STUB_F(unsigned, __funnelshift_l, (unsigned lo, unsigned hi, unsigned n),
       (unsigned)(((uint64_t)hi << 32 | lo) << (n & 31) >> 32))
STUB_F(float, __fmul_rn, (float a, float b), a *b)
STUB_F(float, __fadd_rn, (float a, float b), a + b)
STUB_F(float, __fsub_rn, (float a, float b), a - b)
STUB_F(float, __fdiv_rn, (float a, float b), a / b)
STUB_F(float, __fmaf_rn, (float a, float b, float c), __builtin_fmaf(a, b, c))
STUB_F(float, __fdividef, (float a, float b), a *__builtin_amdgcn_rcpf(b))
STUB_F(float, __logf, (float x), __builtin_logf(x))
STUB_F(float, __expf, (float x), __builtin_amdgcn_exp2f(x * 1.44269504f))
STUB_F(float, rsqrtf, (float x), __builtin_amdgcn_rsqf(x))
STUB_F(float, expf, (float x), __builtin_expf(x))
STUB_F(float, erff, (float x), x / __builtin_sqrtf(1 + x * x))
STUB_F(float, exp2f, (float x), __builtin_exp2f(x))
STUB_F(float, logf, (float x), __builtin_logf(x))
STUB_F(float, log1pf, (float x), __builtin_logf(1 + x))
STUB_F(float, log2f, (float x), __builtin_log2f(x))
STUB_F(float, sqrtf, (float x), __builtin_sqrtf(x))
STUB_F(float, fabsf, (float x), __builtin_fabsf(x))
STUB_F(float, rintf, (float x), __builtin_rintf(x))
STUB_F(float, fmaxf, (float a, float b), __builtin_fmaxf(a, b))
STUB_F(float, fminf, (float a, float b), __builtin_fminf(a, b))
STUB_F(float, fmaf, (float a, float b, float c), __builtin_fmaf(a, b, c))
STUB_F(float, ldexpf, (float a, int b), __builtin_ldexpf(a, b))
STUB_F(float, sinf, (float x), __builtin_sinf(x))
STUB_F(float, cosf, (float x), __builtin_cosf(x))
STUB_F(double, fmax, (double a, double b), __builtin_fmax(a, b))
STUB_F(double, fmin, (double a, double b), __builtin_fmin(a, b))
STUB_F(double, fabs, (double x), __builtin_fabs(x))
STUB_F(double, rint, (double x), __builtin_rint(x))
STUB_F(void *, memcpy, (void *to, const void *from, size_t n), __builtin_memcpy(to, from, n))
/* Needs the device libraries of ROCm: left open here. */
extern "C" __device__ double stub_log(double);
STUB_F(double, log, (double x), stub_log(x))
#undef STUB_F

STUB void __sincosf(float x, float *s, float *c)
{
    *s = __builtin_sinf(x);
    *c = __builtin_cosf(x);
}

#define STUB_LESS(t)                                                                               \
    STUB_BOTH t max(t a, t b)                                                                      \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    STUB_BOTH t min(t a, t b)                                                                      \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }
STUB_LESS(int)
STUB_LESS(unsigned)
STUB_LESS(long)
STUB_LESS(unsigned long)
STUB_LESS(float)
#undef STUB_LESS

template <typename T> STUB T __ldg(const T *p)
{
    return *p;
}

#include <hip/host.h>
