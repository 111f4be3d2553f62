/*
 * host.h (stub) - declarations of what the host code calls of the HIP run-time library; see
 * hip_runtime.h beside, which includes it.
 */
#pragma once

typedef int hipError_t;
enum { hipSuccess, hipErrorNotReady, hipErrorOutOfMemory, hipErrorPeerAccessAlreadyEnabled };
typedef struct stub_stream *hipStream_t;
typedef struct stub_event *hipEvent_t;
typedef struct stub_graph *hipGraph_t;
typedef struct stub_exec *hipGraphExec_t;
typedef struct stub_node *hipGraphNode_t;
enum hipMemcpyKind { hipMemcpyHostToDevice, hipMemcpyDeviceToHost, hipMemcpyDeviceToDevice };
typedef struct {
    char reserved[64];
} hipIpcMemHandle_t;
enum { hipIpcMemLazyEnablePeerAccess = 1 };
enum { hipHostMallocDefault = 0, hipStreamNonBlocking = 1, hipEventDisableTiming = 2 };
enum hipStreamCaptureMode { hipStreamCaptureModeThreadLocal = 1, hipStreamCaptureModeRelaxed };
enum hipDeviceAttribute_t { hipDeviceAttributeMaxSharedMemoryPerMultiprocessor };
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize };
struct hipFuncAttributes {
    int binaryVersion, ptxVersion, numRegs;
    size_t sharedSizeBytes, localSizeBytes;
};
struct hipDeviceProp_t {
    char name[256], gcnArchName[256];
    size_t totalGlobalMem, sharedMemPerBlock, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize, warpSize;
    int pciDomainID, pciBusID, pciDeviceID;
};

enum hipDeviceP2PAttr { hipDevP2PAttrNativeAtomicSupported = 2 };

extern "C" {
const char *hipGetErrorString(hipError_t);
hipError_t __hipPushCallConfiguration(dim3, dim3, size_t = 0, hipStream_t = 0);
hipError_t hipDeviceCanAccessPeer(int *, int, int);
hipError_t hipDeviceGetByPCIBusId(int *, const char *);
hipError_t hipDeviceGetP2PAttribute(int *, hipDeviceP2PAttr, int, int);
hipError_t hipDeviceGetPCIBusId(char *, int, int);
hipError_t hipDeviceEnablePeerAccess(int, unsigned);
hipError_t hipIpcCloseMemHandle(void *);
hipError_t hipIpcGetMemHandle(hipIpcMemHandle_t *, void *);
hipError_t hipIpcOpenMemHandle(void **, hipIpcMemHandle_t, unsigned);
hipError_t hipDeviceGetAttribute(int *, hipDeviceAttribute_t, int);
hipError_t hipEventCreate(hipEvent_t *);
hipError_t hipEventCreateWithFlags(hipEvent_t *, unsigned);
hipError_t hipEventDestroy(hipEvent_t);
hipError_t hipEventElapsedTime(float *, hipEvent_t, hipEvent_t);
hipError_t hipEventQuery(hipEvent_t);
hipError_t hipEventRecord(hipEvent_t, hipStream_t = 0);
hipError_t hipFree(void *);
hipError_t hipFuncGetAttributes(hipFuncAttributes *, const void *);
hipError_t hipFuncSetAttribute(const void *, hipFuncAttribute, int);
hipError_t hipGetDeviceCount(int *);
hipError_t hipGetDeviceProperties(hipDeviceProp_t *, int);
hipError_t hipGetLastError();
hipError_t hipGraphDestroy(hipGraph_t);
hipError_t hipGraphExecDestroy(hipGraphExec_t);
hipError_t hipGraphInstantiate(hipGraphExec_t *, hipGraph_t, hipGraphNode_t *, char *, size_t);
hipError_t hipGraphLaunch(hipGraphExec_t, hipStream_t);
hipError_t hipHostFree(void *);
hipError_t hipLaunchKernel(const void *, dim3, dim3, void **, size_t, hipStream_t);
hipError_t hipMemGetInfo(size_t *, size_t *);
hipError_t hipMemcpy(void *, const void *, size_t, hipMemcpyKind);
hipError_t hipMemcpyAsync(void *, const void *, size_t, hipMemcpyKind, hipStream_t = 0);
hipError_t hipMemsetAsync(void *, int, size_t, hipStream_t = 0);
hipError_t hipSetDevice(int);
hipError_t hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode);
hipError_t hipStreamCreate(hipStream_t *);
hipError_t hipStreamCreateWithFlags(hipStream_t *, unsigned);
hipError_t hipStreamDestroy(hipStream_t);
hipError_t hipStreamEndCapture(hipStream_t, hipGraph_t *);
hipError_t hipStreamQuery(hipStream_t);
}
template <typename T> hipError_t hipMalloc(T **, size_t);
template <typename T> hipError_t hipHostMalloc(T **, size_t, unsigned = 0);
template <typename K>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int *, K, int, size_t);
