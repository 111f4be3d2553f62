/*
 * gpu_peers_ptx.cuh - the functions of gpu_peers.h in PTX.
 *
 * Included by gpu_peers.h alone. Must not: hold more than instructions.
 */
#ifndef SV_CUDA_GPU_PEERS_PTX_CUH
#define SV_CUDA_GPU_PEERS_PTX_CUH

/* As registers have room for, of which sm_80 needs more for the rest. */
#if __CUDA_ARCH__ >= 900
enum { GPU_LOOKS = 2 };
#else
enum { GPU_LOOKS = 1 };
#endif

static __device__ __forceinline__ void gpu_send16(uint4 *at, uint4 w)
{
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(w.x),
                 "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 gpu_take16(const uint4 *at)
{
    uint4 w;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(at)
                 : "memory");
    return w;
}

static __device__ __forceinline__ void gpu_idle(void)
{
}

static __device__ __forceinline__ uint64_t gpu_clock_us(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns / 1000;
}

#endif
