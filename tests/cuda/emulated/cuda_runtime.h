/*
 * cuda_runtime.h (emulated) - enough of CUDA to run the backend's kernels on a CPU, lane by lane,
 * so that index arithmetic, masks, barriers and the order of sums can be tested where there is no
 * GPU.
 *
 * Put before the toolkit on the include path of a C++ compiler; replaces cuda_runtime.h,
 * cuda_bf16.h and cuda_fp16.h. Blocks, or clusters of them, run one after the other; the threads of
 * a block are coroutines that change at collective instructions and barriers. Asynchronous copies
 * arrive when they are waited for, not before. Must not: be taken for evidence about speed, or
 * about rounding inside matrix instructions.
 */
#ifndef SV_EMULATED_CUDA_RUNTIME_H
#define SV_EMULATED_CUDA_RUNTIME_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tuple>
#include <typeinfo>
#include <vector>

#define SV_CUDA_EMULATED 1
#define SV_SAMPLE_SIZES THREADS = 128, LIST = 192, BINS = 512
#define __CUDACC__ 1
#define __global__
#define __device__
#define __host__
/* Not forced, which takes gcc up to four times as long. */
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct float2 {
    float x, y;
};
struct uint2 {
    uint32_t x, y;
};
struct float4 {
    float x, y, z, w;
};
struct uint4 {
    uint32_t x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline uint2 make_uint2(uint32_t x, uint32_t y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    return {x, y, z, w};
}

static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float __uint2float_rn(uint32_t u)
{
    return (float)u;
}
static inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return (uint32_t)((uint64_t)a * b >> 32);
}
static inline uint64_t max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
static inline int32_t max(int32_t a, int32_t b)
{
    return a > b ? a : b;
}
static inline int32_t min(int32_t a, int32_t b)
{
    return a < b ? a : b;
}
static inline float __int_as_float(int32_t i)
{
    return __uint_as_float((uint32_t)i);
}
static inline unsigned long long __float2ull_rn(float f)
{
    return (unsigned long long)rint((double)f);
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
#define rsqrtf emu_rsqrtf /* newer C libraries have one */
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline float __fdividef(float a, float b)
{
    return a / b;
}
#define __expf expf
static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcg(T *p, T x)
{
    *p = x;
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t which)
{
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return v;
}

/* ---------------------------------------------------------------- bf16 */

struct __nv_bfloat16 {
    uint16_t x;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct __half {
    uint16_t x;
};
static inline float __bfloat162float(__nv_bfloat16 h)
{
    return __uint_as_float((uint32_t)h.x << 16);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return {0x7fff};
    return {(uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
/* Rounded once: the sum of two is exact in double; where it is not exact in float, the last bit of
 * the float is set (round to odd). */
static inline __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b)
{
    const double sum = (double)__bfloat162float(a) + (double)__bfloat162float(b);
    float f = (float)sum;
    if ((double)f != sum && isfinite(f)) {
        if (fabs((double)f) > fabs(sum))
            f = __uint_as_float(__float_as_uint(f) - 1);
        f = __uint_as_float(__float_as_uint(f) | 1);
    }
    return __float2bfloat16_rn(f);
}
static inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b)
{
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
/* Of numbers alone. */
static inline float __half2float(__half h)
{
    return __uint_as_float((uint32_t)(h.x & 0x8000) << 16 | (uint32_t)(h.x & 0x7fff) << 13) *
           0x1p112f;
}

/* ---------------------------------------------------------------- threads of a block */

struct emu_copy {
    uint32_t to, n_bytes;
    const void *from;
    bool there, first; /* of a call */
};
struct emu_thread {
    void *sp;
    std::vector<char> stack;
    bool done;
    std::vector<std::vector<emu_copy>> groups; /* of asynchronous copies; the last one is open */
    bool begun;                                /* a call of them */
};
struct emu_warp {
    int arrived;
    uint64_t turn;
    int op;
    void *args[32];
};
/* Of waves of 64. */
struct emu_wave {
    int arrived, op;
    uint64_t turn;
    void *args[64];
};
struct emu_block {
    std::vector<emu_thread> threads;
    std::vector<uint32_t> awake; /* of each warp, lanes that wait for nothing, as far as is known */
    std::vector<emu_warp> warps;
    std::vector<struct emu_wave> waves;
    std::vector<uint8_t> shared; /* of all blocks of a cluster, one after the other */
    size_t smem;
    unsigned n_threads, rank; /* of a block; the block that runs, within its cluster */
    int now;                  /* thread of the cluster */
    struct {
        int arrived;
        uint64_t turn;
        int group[8];
        uint64_t group_turn[8];
    } block[16];
    int cluster_arrived, cluster_left;
    uint64_t cluster_turn;
    uint64_t turn;
    void *scheduler;
    void (*body)(void *);
    void *user;
};
extern struct emu_block emu;
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
extern unsigned emu_block_y;
/* Not 0: the order of warps is drawn from it, anew each time that all have run. */
extern unsigned emu_draws;
[[noreturn]] void emu_fail(const char *what);
void emu_yield(void);
void emu_run_cluster(unsigned first, unsigned n_blocks, unsigned n_threads, size_t smem,
                     void (*body)(void *), void *user);
static inline struct emu_warp &emu_warp_now(void)
{
    return emu.warps[(size_t)emu.now / 32];
}
/* All 32 lanes meet; the last one to come runs `work` over all their arguments. */
void emu_meet(int op, void *args, void (*work)(void **args));
void __syncthreads(void);

static inline int emu_lane(void)
{
    return (int)(threadIdx.x % 32);
}
static inline void emu_nothing(void **)
{
}
static inline void __syncwarp(void)
{
    emu_meet(1, NULL, emu_nothing);
}

template <typename T> struct emu_shuffle {
    T in, out;
    int from;
};
template <typename T> static inline T emu_exchange(int op, T x, int from)
{
    emu_shuffle<T> s = {x, x, from};
    emu_meet(op, &s, [](void **args) {
        for (int i = 0; i < 32; i++) {
            auto *a = (emu_shuffle<T> *)args[i];
            if (a->from >= 0 && a->from < 32)
                a->out = ((emu_shuffle<T> *)args[a->from])->in;
        }
    });
    return s.out;
}
template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int m)
{
    return emu_exchange(2, x, emu_lane() ^ m);
}
template <typename T> static inline T __shfl_up_sync(unsigned, T x, int n)
{
    return emu_exchange(3, x, emu_lane() - n);
}
template <typename T> static inline T __shfl_sync(unsigned, T x, int n)
{
    return emu_exchange(4, x, n);
}
/* One result for all lanes of the warp. */
template <typename F> static inline int emu_reduce(int op, int x, const F &)
{
    emu_meet(op, &x, [](void **args) {
        int all = *(int *)args[0];
        for (int i = 1; i < 32; i++)
            all = F()(all, *(int *)args[i]);
        for (int i = 0; i < 32; i++)
            *(int *)args[i] = all;
    });
    return x;
}
static inline int __any_sync(unsigned, bool x)
{
    return emu_reduce(5, x, [](int a, int b) { return a | b; });
}
static inline unsigned __ballot_sync(unsigned, bool x)
{
    return (unsigned)emu_reduce(6, (int)((unsigned)x << emu_lane()),
                                [](int a, int b) { return a | b; });
}
static inline int __reduce_add_sync(unsigned, int x)
{
    return emu_reduce(7, x, [](int a, int b) { return (int)((unsigned)a + (unsigned)b); });
}
static inline int __reduce_max_sync(unsigned, int x)
{
    return emu_reduce(8, x, [](int a, int b) { return a > b ? a : b; });
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline void __threadfence(void)
{
}
static inline int atomicAdd(int *p, int x)
{
    const int old = *p;
    *p += x;
    return old;
}
static inline int atomicCAS(int *p, int was, int now)
{
    int old = *p;
    if (old == was)
        *p = now;
    return old;
}

static inline uint32_t atomicOr(uint32_t *p, uint32_t x)
{
    uint32_t old = *p;
    *p |= x;
    return old;
}
static inline uint32_t atomicAdd(uint32_t *p, uint32_t x)
{
    uint32_t old = *p;
    *p += x;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long x)
{
    unsigned long long old = *p;
    *p += x;
    return old;
}
static inline uint32_t atomicExch(uint32_t *p, uint32_t x)
{
    uint32_t old = *p;
    *p = x;
    return old;
}

/* ---------------------------------------------------------------- the host's side */

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;
enum {
    cudaSuccess = 0,
    cudaLaunchAttributeProgrammaticStreamSerialization = 1,
    cudaFuncAttributeMaxDynamicSharedMemorySize = 2,
    cudaFuncAttributePreferredSharedMemoryCarveout,
    cudaSharedmemCarveoutMaxShared = 100,
    cudaLaunchAttributeClusterDimension = 3
};
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    int numAttrs;
};
/* Shared memory that a kernel's launches may ask for: 48 KiB, or what was said of it. */
struct emu_room {
    size_t most, asked; /* by a launch, so far */
};
struct emu_room &emu_room_of(const void *kernel);
extern bool emu_looks; /* launches are looked at and do not run */
static inline cudaError_t cudaFuncSetAttribute(const void *kernel, int what, int n)
{
    if (what == cudaFuncAttributeMaxDynamicSharedMemorySize)
        emu_room_of(kernel).most = (size_t)n;
    return cudaSuccess;
}
bool emu_asks(const void *kernel, size_t n_bytes); /* whether it runs */
/* What a multiprocessor has. */
#ifndef EMU_SHARED_KIB
#define EMU_SHARED_KIB 164
#endif
enum { cudaDevAttrMaxSharedMemoryPerMultiprocessor };
static inline cudaError_t cudaSetDevice(int)
{
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t)
{
    memset(p, value, n);
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *v, int, int)
{
    *v = EMU_SHARED_KIB * 1024;
    return cudaSuccess;
}
/* Of the running kernel's first parameter. */
inline const std::type_info *emu_args;
/* Blocks run one after the other. */
template <typename K>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, K, int, size_t)
{
    *n = 1;
    return cudaSuccess;
}
template <typename K>
static inline cudaError_t cudaOccupancyMaxActiveClusters(int *n, K, const cudaLaunchConfig_t *)
{
    *n = 1;
    return cudaSuccess;
}
static inline void emu_launch(const cudaLaunchConfig_t *c, void (*body)(void *), void *user)
{
    unsigned cluster = 1;
    for (int i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            cluster = c->attrs[i].val.clusterDim.x;
    gridDim = c->gridDim;
    blockDim = c->blockDim;
    for (emu_block_y = 0; emu_block_y < c->gridDim.y; emu_block_y++)
        for (unsigned b = 0; b < c->gridDim.x; b += cluster)
            emu_run_cluster(b, cluster, c->blockDim.x, c->dynamicSmemBytes, body, user);
}
template <typename... A>
static cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(A...), A... args)
{
    struct call {
        void (*kernel)(A...);
        std::tuple<A...> args;
    } call = {kernel, {args...}};
    if (!emu_asks((const void *)kernel, c->dynamicSmemBytes))
        return cudaSuccess;
    emu_args = &typeid(std::tuple_element_t<0, std::tuple<A..., void>>);
    emu_launch(
        c,
        [](void *user) {
            auto *k = (struct call *)user;
            std::apply(k->kernel, k->args);
        },
        &call);
    return cudaSuccess;
}

/* ---------------------------------------------------------------- shared memory */

enum { EMU_SHARED_BASE = 1024 }; /* shared memory does not start at address 0 either */
static inline void *emu_shared_ptr(uint32_t at, size_t n_bytes)
{
    if (at < EMU_SHARED_BASE || at - EMU_SHARED_BASE + n_bytes > emu.shared.size() || at % n_bytes)
        emu_fail("shared memory: outside, or not aligned");
    return emu.shared.data() + (at - EMU_SHARED_BASE);
}
struct emu_bar {
    uint32_t count, left, phase;
    int64_t bytes;
    std::vector<std::vector<uint64_t>> boxes;
};

#endif
