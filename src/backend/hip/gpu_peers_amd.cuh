/*
 * gpu_peers_amd.cuh - the functions of gpu_peers.h for AMD's chips. Never run on a card.
 *
 * Included by gpu_peers.h alone. Must not: hold more than instructions.
 */
#ifndef SV_HIP_GPU_PEERS_AMD_CUH
#define SV_HIP_GPU_PEERS_AMD_CUH

enum { GPU_LOOKS = 1 };

static __device__ __forceinline__ void gpu_send16(uint4 *at, uint4 w)
{
    uint64_t *const to = (uint64_t *)(uintptr_t)at;
    __hip_atomic_store(to, (uint64_t)w.y << 32 | w.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    __hip_atomic_store(to + 1, (uint64_t)w.w << 32 | w.z, __ATOMIC_RELAXED,
                       __HIP_MEMORY_SCOPE_SYSTEM);
}

static __device__ __forceinline__ uint4 gpu_take16(const uint4 *at)
{
    uint64_t *const from = (uint64_t *)(uintptr_t)at;
    const uint64_t a = __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM),
                   b = __hip_atomic_load(from + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
}

static __device__ __forceinline__ void gpu_idle(void)
{
    __builtin_amdgcn_s_sleep(1);
}

/* It counts at 100 MHz. */
static __device__ __forceinline__ uint64_t gpu_clock_us(void)
{
    return __builtin_amdgcn_s_memrealtime() / 100;
}

#endif
