/*
 * gpu_ptx.cuh - the functions of gpu.h in PTX: instructions of sm_80, and stmatrix and the
 * conversion to 8 bits where there are such.
 *
 * Included by gpu.h alone. Must not: hold more than instructions and the places they point at.
 */
#ifndef SV_CUDA_GPU_PTX_CUH
#define SV_CUDA_GPU_PTX_CUH

#include "backend/gpu/fp8.cuh"

enum {
    GPU_WAVE = 32,
    GPU_K = 16,
    GPU_RUN = 2,
    GPU_LINES = 2,
    GPU_COLS = 8,
    GPU_KEYS = 64,
    GPU_BLOCKS = 2,
    GPU_SMALL_SHARED = 0,
    GPU_WCOMP = 1,
    GPU_AFRESH = 0
};

/* For the device alone: elsewhere wcomp.cuh says it in C. */
#ifdef __CUDA_ARCH__
#define GPU_BYTES_OF(a, b, which) __byte_perm(a, b, which)
#define GPU_SIGNED_BYTES(a, which) gpu_signed_bytes(a, which)
/* Bytes of a, the first named by the lowest four bits of which; with 8 added, a byte of its sign.
 */
static __device__ __forceinline__ uint32_t gpu_signed_bytes(uint32_t a, uint32_t which)
{
    uint32_t x;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(x) : "r"(a), "r"(which));
    return x;
}
#define GPU_TURNED(v, left) __funnelshift_l(v, v, (uint32_t)(left))
#endif

static __device__ __forceinline__ int gpu_lane(void)
{
    return threadIdx.x & 31;
}
static __device__ __forceinline__ int gpu_wave(void)
{
    return threadIdx.x / 32;
}

static __device__ __forceinline__ int gpu_afresh(int x)
{
    return x;
}
template <typename A> static __device__ __forceinline__ const A &gpu_args(const A &a)
{
    return a;
}

/* ---------------------------------------------------------------- shared memory */

#define GPU_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]

static __device__ __forceinline__ uint32_t gpu_shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void gpu_store4(uint32_t at, uint32_t x)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

static __device__ __forceinline__ void gpu_store16(uint32_t at, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ uint32_t gpu_load4(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
    return v;
}

static __device__ __forceinline__ uint4 gpu_load16(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* ---------------------------------------------------------------- copies to shared memory */

/* It leaves L2 before what all layers need, instructions of small kernels among them. */
static __device__ __forceinline__ uint64_t gpu_stream_policy(void)
{
    uint64_t once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    return once;
}

/* to: no sum of a part of the lane and one that a loop changes for all lanes alike; nvcc 12.2 and
 * 13.0 make an illegal instruction of that (LDGSTS with a uniform register in the address). */
static __device__ __forceinline__ void gpu_copy_stream(uint32_t to, const void *from, uint64_t once)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(
                     to + threadIdx.x % GPU_WAVE * 16),
                 "l"(from), "l"(once)
                 : "memory");
}

/* 16 or 4 bytes; there: or zeros, and nothing is read. */
template <int BYTES>
static __device__ __forceinline__ void gpu_copy_once(uint32_t to, const void *from, bool there,
                                                     uint64_t once)
{
    const int n = there ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                     "l"(from), "r"(n), "l"(once)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2, %3;" ::"r"(to),
                     "l"(from), "r"(n), "l"(once)
                     : "memory");
}

/* LINES: whole lines of 128 bytes come into L2. */
template <bool LINES>
static __device__ __forceinline__ void gpu_copy_16(uint32_t to, const void *from, bool there)
{
    const int n = there ? 16 : 0;
    if (LINES)
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(n)
                     : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n)
                     : "memory");
}

template <int BYTES, bool LINES, class FROM>
static __device__ __forceinline__ void gpu_copy_rows(uint32_t tile, uint32_t row, const FROM &from)
{
    const uint32_t lane = threadIdx.x % GPU_WAVE, chunk = lane % (BYTES / 16);
    row += lane / (BYTES / 16);
    const struct gpu_source s = from(row, chunk);
    gpu_copy_16<LINES>(tile + gpu_place<BYTES>(row, chunk), s.at, s.there);
}

template <int BYTES, class FROM>
static __device__ __forceinline__ void gpu_copy_rows_two(uint32_t tile, uint32_t apart,
                                                         uint32_t row, const FROM &from,
                                                         const uint4 *a, const uint4 *b)
{
    const uint32_t lane = threadIdx.x % GPU_WAVE, chunk = lane % (BYTES / 16);
    row += lane / (BYTES / 16);
    const struct gpu_index s = from(row, chunk);
    if (s.skip)
        return;
    gpu_copy_16<true>(tile + gpu_place<BYTES>(row, chunk), a + s.at, s.there);
    gpu_copy_16<true>(tile + apart + gpu_place<BYTES>(row, chunk), b + s.at, s.there);
}

static __device__ __forceinline__ void gpu_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* MOST: groups, at most. The instruction takes a constant. */
template <int MOST, int N = 0>
static __device__ __forceinline__ void gpu_copy_wait(int groups, int lines)
{
    if constexpr (N == MOST) {
        asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
    } else {
        if (groups == N)
            asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
        else
            gpu_copy_wait<MOST, N + 1>(groups, lines);
    }
}

static __device__ __forceinline__ void gpu_copy_settled(void)
{
}

/* ---------------------------------------------------------------- products */

static __device__ __forceinline__ int gpu_run_row(int lane)
{
    return lane / 4;
}
static __device__ __forceinline__ int gpu_run_col(int lane)
{
    return lane % 4 * 2;
}
static __device__ __forceinline__ int gpu_b_row(void)
{
    return threadIdx.x % 8 + threadIdx.x % GPU_WAVE / 16 * 8;
}
static __device__ __forceinline__ int gpu_b_chunk(void)
{
    return threadIdx.x / 8 % 2;
}
static __device__ __forceinline__ int gpu_b8_chunk(void)
{
    return threadIdx.x % GPU_WAVE / 8;
}

static __device__ __forceinline__ void gpu_load_a(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void gpu_load_b(uint32_t (&r)[4], uint32_t at)
{
    gpu_load_a(r, at);
}
static __device__ __forceinline__ void gpu_load_b8(uint32_t (&r)[4], uint32_t at)
{
    gpu_load_a(r, at);
}

template <int BYTES>
static __device__ __forceinline__ void gpu_load_t(uint32_t (&r)[4], uint32_t tile, uint32_t row,
                                                  uint32_t col)
{
    const uint32_t lane = threadIdx.x % GPU_WAVE;
    const uint32_t at = tile + row * BYTES + gpu_place<BYTES>(lane & 15, col / 8 + (lane >> 4));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

template <int BYTES>
static __device__ __forceinline__ void gpu_load_n(uint32_t (&r)[4], uint32_t tile, uint32_t row,
                                                  uint32_t col)
{
    gpu_load_b(r, tile + gpu_place<BYTES>(row + gpu_b_row(), col / 8 + gpu_b_chunk()));
}
template <int BYTES>
static __device__ __forceinline__ void gpu_load_p(uint32_t (&r)[4], uint32_t tile, uint32_t row,
                                                  uint32_t col)
{
    const uint32_t lane = threadIdx.x % GPU_WAVE;
    gpu_load_a(r, tile + gpu_place<BYTES>(row + lane % 16, col / 8 + lane / 16));
}

/* d (16, 8) += a (16, 16) b (16, 8). */
static __device__ __forceinline__ void gpu_mma_16x8(float *d, const uint32_t (&a)[4], uint32_t b0,
                                                    uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void gpu_mma(float *d, const uint32_t (&a)[4],
                                               const uint32_t (&b)[4])
{
    gpu_mma_16x8(d, a, b[0], b[1]);
    gpu_mma_16x8(d + 4, a, b[2], b[3]);
}
static __device__ __forceinline__ void gpu_mma8(float *d, const uint32_t (&a)[4],
                                                const uint32_t (&b)[4], int step)
{
    gpu_mma_16x8(d, a, b[2 * step], b[2 * step + 1]);
}
static __device__ __forceinline__ void gpu_mma_t(float *d, const uint32_t (&p)[4],
                                                 const uint32_t (&t)[4])
{
    gpu_mma(d, p, t);
}
static __device__ __forceinline__ void gpu_mma_ones(float *d, const uint32_t (&p)[4])
{
    const uint32_t ones = 0x3f803f80u; /* two bf16 */
    gpu_mma_16x8(d, p, ones, ones);
}

/* Two numbers of an 8 x 8 part, of neighbouring columns of the product. */
static __device__ __forceinline__ void gpu_turn_two(uint8_t *patch, int lane, int col0, int row0,
                                                    uint32_t two)
{
    uint16_t *to = (uint16_t *)patch + (col0 + 2 * (lane & 3)) * 16 + row0 + lane / 4;
    to[0] = (uint16_t)two;
    to[16] = (uint16_t)(two >> 16);
}

template <bool PAIR>
static __device__ __forceinline__ uint32_t gpu_turn_at(const uint8_t *patch, int lane)
{
    return gpu_shared_at(patch) + ((lane & 7) + (PAIR ? lane >> 4 << 3 : 0)) * 32 +
           (lane >> 3 & 1) * 16;
}

template <bool PAIR, bool NEW>
static __device__ __forceinline__ void gpu_turn(uint8_t *patch, int lane, uint32_t at, uint32_t r0,
                                                uint32_t r1, uint32_t r2, uint32_t r3)
{
    if (!NEW) {
        gpu_turn_two(patch, lane, 0, 0, r0);
        gpu_turn_two(patch, lane, 0, 8, r1);
        if (PAIR) {
            gpu_turn_two(patch, lane, 8, 0, r2);
            gpu_turn_two(patch, lane, 8, 8, r3);
        }
    } else if (PAIR) {
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
            "r"(r0), "r"(r1), "r"(r2), "r"(r3)
            : "memory");
    } else {
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at),
                     "r"(r0), "r"(r1)
                     : "memory");
    }
}

/* ---------------------------------------------------------------- lanes */

static __device__ __forceinline__ float gpu_row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Of the lane that has column col of this one's rows. */
static __device__ __forceinline__ float gpu_row_from(float x, int col)
{
    return __shfl_sync(0xffffffffu, x, col / 2, 4);
}

typedef uint32_t gpu_lanes; /* a set of them */

static __device__ __forceinline__ gpu_lanes gpu_col_lanes(int lane)
{
    return 0x11111111u << (lane & 3);
}

static __device__ __forceinline__ bool gpu_col_lane(int lane)
{
    return lane < 4;
}

/* NaN loses. */
static __device__ __forceinline__ float gpu_col_max(float most)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

static __device__ __forceinline__ int32_t gpu_col_first(gpu_lanes column, float low, float high,
                                                        float most)
{
    const uint32_t lows = __ballot_sync(0xffffffffu, low == most) & column,
                   highs = __ballot_sync(0xffffffffu, high == most) & column;
    return lows ? (__ffs((int)lows) - 1) / 4 : (__ffs((int)highs) - 1) / 4 + 8;
}

static __device__ __forceinline__ bool gpu_any(bool x)
{
    return __any_sync(0xffffffffu, x);
}

static __device__ __forceinline__ void gpu_wave_sync(void)
{
    __syncwarp();
}

/* The 128 threads of group 0 or 1. */
static __device__ __forceinline__ void gpu_group_sync(int group)
{
    if (group == 0)
        asm volatile("bar.sync 1, 128;" ::: "memory");
    else
        asm volatile("bar.sync 2, 128;" ::: "memory");
}

static __device__ __forceinline__ void gpu_pair_sync(int pair)
{
    switch (pair) { /* a number that is not constant would take all 16 barriers */
    case 0:
        asm volatile("bar.sync 4, 64;" ::: "memory");
        break;
    case 1:
        asm volatile("bar.sync 5, 64;" ::: "memory");
        break;
    case 2:
        asm volatile("bar.sync 6, 64;" ::: "memory");
        break;
    case 3:
        asm volatile("bar.sync 7, 64;" ::: "memory");
        break;
    case 4:
        asm volatile("bar.sync 8, 64;" ::: "memory");
        break;
    default:
        asm volatile("bar.sync 9, 64;" ::: "memory");
    }
}

/* ---------------------------------------------------------------- between thread blocks */

static __device__ __forceinline__ void gpu_post16(const float4 *at, uint4 w)
{
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(w.x),
                 "r"(w.y), "r"(w.z), "r"(w.w)
                 : "memory");
}

static __device__ __forceinline__ uint4 gpu_look16(const float4 *at)
{
    uint4 w;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
                 : "l"(at)
                 : "memory");
    return w;
}

/* Barriers and the acquire and release of gpu_arrive are enough. */
static __device__ __forceinline__ void gpu_publish(void)
{
}
static __device__ __forceinline__ void gpu_obtain(void)
{
}

static __device__ __forceinline__ uint32_t gpu_arrive(uint32_t *count)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(count)
                 : "memory");
    return before;
}

/* Sent off: no wait for what lies there. */
static __device__ __forceinline__ void gpu_send_max(uint64_t *at, uint64_t v)
{
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(at), "l"(v) : "memory");
}

/* ---------------------------------------------------------------- numbers */

static __device__ __forceinline__ float gpu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* To within a unit of the last place: a division as IEEE has it is 20 instructions and a call. */
static __device__ __forceinline__ float gpu_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t gpu_fma2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
    return pair;
}
static __device__ __forceinline__ uint32_t gpu_mul2(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ < 900
    return gpu_fma2(a, b, 0x80008000u); /* adding -0 changes nothing, not even a zero's sign */
#else
    uint32_t pair;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
#endif
}
static __device__ __forceinline__ uint32_t gpu_sub2(uint32_t a, uint32_t b)
{
#if __CUDA_ARCH__ < 900
    return gpu_fma2(b, 0xbf80bf80u, a);
#else
    uint32_t pair;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
    return pair;
#endif
}
static __device__ __forceinline__ uint32_t gpu_scale2(uint32_t pair, uint32_t by)
{
    return gpu_mul2(pair, by);
}

static __device__ __forceinline__ uint32_t gpu_fp8x2(float hi, float lo)
{
#if __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(hi), "f"(lo));
    return two;
#else
    return (uint32_t)sv_fp8_of(hi) << 8 | sv_fp8_of(lo);
#endif
}

static __device__ __forceinline__ float2 gpu_f8x2(uint32_t two)
{
#if __CUDA_ARCH__ >= 890
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((uint16_t)two));
    return __half22float2(*(const __half2 *)&halves);
#else
    return make_float2(sv_fp8_number(two), sv_fp8_number(two >> 8));
#endif
}

#endif
