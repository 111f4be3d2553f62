/*
 * cuda_runtime.h (HIP) - the names of CUDA that the kernels and the host code of backend/gpu and
 * backend/cuda use, as HIP has them; put before everything else in a build for AMD. Never run on a
 * card: compiled, linked, and opened where there is none.
 *
 * A warp is 32 lanes here as well: half of a wave of 64. Shuffles stay within the half, votes are
 * cut to it, and halves that part ways are apart. Must not: hold an algorithm, or be seen by a
 * build for NVIDIA. Two warps of a block must not wait for one another in a loop: they may be one
 * wave.
 */
#ifndef SV_HIP_CUDA_RUNTIME_H
#define SV_HIP_CUDA_RUNTIME_H

#include <hip/hip_runtime.h>
#include <stdint.h>

#include <tuple>

#define __CUDACC__ 1
#define __grid_constant__
/* CUDA's second argument counts blocks of a multiprocessor, HIP's waves of a SIMD. */
#undef __launch_bounds__
#define __launch_bounds__(n_threads, ...) __attribute__((amdgpu_flat_work_group_size(1, n_threads)))

/* ---------------------------------------------------------------- the backend */

#define SV_GPU_BACKEND "hip"
#define SV_GPU_LIBRARY "HIP"
#define SV_GPU_CALL "hip"
#define SV_GPU_MAKER "AMD"
#define SV_NCCL "RCCL"
#define SV_NCCL_FILE "librccl.so.1"
#define SV_NCCL_PACKAGE "ROCm's package rccl"
#define sv_cuda_open sv_hip_open
#define sv_cuda_present sv_hip_present

/* ---------------------------------------------------------------- the run-time library */

#define cudaDeviceProp hipDeviceProp_t
#define cudaError_t hipError_t
#define cudaEvent_t hipEvent_t
#define cudaFuncAttributes hipFuncAttributes
#define cudaGraphExec_t hipGraphExec_t
#define cudaGraph_t hipGraph_t
#define cudaMemcpyKind hipMemcpyKind
#define cudaStream_t hipStream_t

#define cudaDevP2PAttrNativeAtomicSupported hipDevP2PAttrNativeAtomicSupported
#define cudaDevAttrMaxSharedMemoryPerMultiprocessor                                                \
    hipDeviceAttributeMaxSharedMemoryPerMultiprocessor
#define cudaErrorMemoryAllocation hipErrorOutOfMemory
#define cudaErrorNotReady hipErrorNotReady
#define cudaErrorPeerAccessAlreadyEnabled hipErrorPeerAccessAlreadyEnabled
#define cudaEventDisableTiming hipEventDisableTiming
#define cudaFuncAttributeMaxDynamicSharedMemorySize hipFuncAttributeMaxDynamicSharedMemorySize
#define cudaHostAllocDefault hipHostMallocDefault
#define cudaMemcpyDeviceToDevice hipMemcpyDeviceToDevice
#define cudaMemcpyDeviceToHost hipMemcpyDeviceToHost
#define cudaMemcpyHostToDevice hipMemcpyHostToDevice
#define cudaStreamCaptureModeRelaxed hipStreamCaptureModeRelaxed
#define cudaStreamCaptureModeThreadLocal hipStreamCaptureModeThreadLocal
#define cudaStreamNonBlocking hipStreamNonBlocking
#define cudaSuccess hipSuccess

#define cudaDeviceCanAccessPeer hipDeviceCanAccessPeer
#define cudaDeviceEnablePeerAccess hipDeviceEnablePeerAccess
#define cudaDeviceGetAttribute hipDeviceGetAttribute
#define cudaDeviceGetByPCIBusId hipDeviceGetByPCIBusId
#define cudaDeviceGetP2PAttribute hipDeviceGetP2PAttribute
#define cudaDeviceGetPCIBusId hipDeviceGetPCIBusId
#define cudaEventCreate hipEventCreate
#define cudaEventCreateWithFlags hipEventCreateWithFlags
#define cudaEventDestroy hipEventDestroy
#define cudaEventElapsedTime hipEventElapsedTime
#define cudaEventQuery hipEventQuery
#define cudaEventRecord hipEventRecord
#define cudaFree hipFree
#define cudaFreeHost hipHostFree
#define cudaGetDeviceCount hipGetDeviceCount
#define cudaGetDeviceProperties hipGetDeviceProperties
#define cudaGetErrorString hipGetErrorString
#define cudaGetLastError hipGetLastError
#define cudaGraphDestroy hipGraphDestroy
#define cudaGraphExecDestroy hipGraphExecDestroy
#define cudaGraphLaunch hipGraphLaunch
#define cudaHostAlloc hipHostMalloc
#define cudaIpcCloseMemHandle hipIpcCloseMemHandle
#define cudaIpcGetMemHandle hipIpcGetMemHandle
#define cudaIpcMemHandle_t hipIpcMemHandle_t
#define cudaIpcMemLazyEnablePeerAccess hipIpcMemLazyEnablePeerAccess
#define cudaIpcOpenMemHandle hipIpcOpenMemHandle
#define cudaMalloc hipMalloc
#define cudaMemGetInfo hipMemGetInfo
#define cudaMemcpy hipMemcpy
#define cudaMemcpyAsync hipMemcpyAsync
#define cudaMemsetAsync hipMemsetAsync
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor hipOccupancyMaxActiveBlocksPerMultiprocessor
#define cudaSetDevice hipSetDevice
#define cudaStreamBeginCapture hipStreamBeginCapture
#define cudaStreamCreate hipStreamCreate
#define cudaStreamCreateWithFlags hipStreamCreateWithFlags
#define cudaStreamDestroy hipStreamDestroy
#define cudaStreamEndCapture hipStreamEndCapture
#define cudaStreamQuery hipStreamQuery

template <typename F> static inline hipError_t cudaFuncGetAttributes(hipFuncAttributes *out, F *f)
{
    return hipFuncGetAttributes(out, (const void *)f);
}
template <typename F>
static inline hipError_t cudaFuncSetAttribute(F *f, hipFuncAttribute which, int value)
{
    return hipFuncSetAttribute((const void *)f, which, value);
}
static inline hipError_t cudaGraphInstantiate(hipGraphExec_t *out, hipGraph_t graph,
                                              unsigned long long)
{
    return hipGraphInstantiate(out, graph, NULL, NULL, 0);
}

/* Launches have no attributes: neither early starts nor clusters. */
enum { cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension };
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
    hipStream_t stream;
    cudaLaunchAttribute *attrs;
    int numAttrs;
};
template <typename... P, typename... A>
static inline hipError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...),
                                            A... args)
{
    std::tuple<P...> held(args...);
    void *at[sizeof...(P) ? sizeof...(P) : 1];
    std::apply(
        [&](auto &...x) {
            int i = 0;
            ((at[i++] = (void *)&x), ...);
        },
        held);
    return hipLaunchKernel((const void *)kernel, c->gridDim, c->blockDim, at, c->dynamicSmemBytes,
                           c->stream);
}

/* ---------------------------------------------------------------- a warp: half of a wave */

#define SV_WARP static __device__ __forceinline__

SV_WARP unsigned sv_hip_half(void)
{
    return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u)) & 32u;
}
template <typename T> SV_WARP T __shfl_xor_sync(unsigned, T x, int mask)
{
    return __shfl_xor(x, mask, 32);
}
template <typename T> SV_WARP T __shfl_up_sync(unsigned, T x, int n)
{
    return __shfl_up(x, (unsigned)n, 32);
}
template <typename T> SV_WARP T __shfl_sync(unsigned, T x, int lane)
{
    return __shfl(x, lane, 32);
}
SV_WARP unsigned __ballot_sync(unsigned, bool x)
{
    return (unsigned)(__builtin_amdgcn_ballot_w64(x) >> sv_hip_half());
}
SV_WARP int __any_sync(unsigned mask, bool x)
{
    return __ballot_sync(mask, x) != 0;
}
template <typename T> SV_WARP T __reduce_add_sync(unsigned, T x)
{
    for (int step = 16; step; step /= 2)
        x += __shfl_xor(x, step, 32);
    return x;
}
template <typename T> SV_WARP T __reduce_max_sync(unsigned, T x)
{
    for (int step = 16; step; step /= 2) {
        const T y = __shfl_xor(x, step, 32);
        x = x > y ? x : y;
    }
    return x;
}
SV_WARP void __syncwarp(void)
{
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

/* ---------------------------------------------------------------- memory, numbers */

/* Written by an earlier launch: other blocks of this one are read by gpu_look16 and gpu_arrive. */
template <typename T> SV_WARP T __ldcg(const T *p)
{
    return *p;
}
template <typename T> SV_WARP T __ldcs(const T *p)
{
    return *p;
}
template <typename T> SV_WARP void __stcg(T *p, T x)
{
    *p = x;
}

#undef SV_WARP

#endif
