/*
 * gpu_amd.cuh - the functions of gpu.h for AMD's gfx942 and gfx950. Never run on a card: compiled,
 * assembled and, in the emulator's second writing of it, run on a CPU.
 *
 * Included by gpu.h alone. Copies to shared memory (global_load_lds) take one place for the wave
 * and lay lanes side by side, 4 bytes each on gfx942 and 16 on gfx950. They count in vmcnt, in
 * order of issue. They are inline assembly, because the compiler would wait for all of them before
 * any read of shared memory. Must not: count on two waves, or two blocks, being there at the same
 * time.
 */
#ifndef SV_HIP_GPU_AMD_CUH
#define SV_HIP_GPU_AMD_CUH

#include "backend/gpu/fp8.cuh"

enum {
    GPU_WAVE = 64,
    GPU_K = 32,
    GPU_RUN = 4,
    GPU_LINES = 1,
    GPU_COLS = 16,
    GPU_KEYS = 32,
    GPU_BLOCKS = 1,
    GPU_SMALL_SHARED = 1,
    GPU_WCOMP = 0,
    GPU_AFRESH = 1
};

#ifdef __gfx950__
enum { GPU_COPY_BYTES = 16 };
#else
enum { GPU_COPY_BYTES = 4 };
#endif

typedef float gpu_f4 __attribute__((ext_vector_type(4)));
typedef short gpu_s4 __attribute__((ext_vector_type(4)));
typedef __bf16 gpu_b8 __attribute__((ext_vector_type(8)));
typedef uint32_t gpu_u4 __attribute__((ext_vector_type(4)));
typedef uint32_t gpu_u2 __attribute__((ext_vector_type(2)));
typedef uint64_t gpu_lanes; /* a set of them */

static __device__ __forceinline__ int gpu_lane(void)
{
    return threadIdx.x & 63;
}
/* The compiler must know that it is the same in all lanes: branches on it hold barriers. */
static __device__ __forceinline__ int gpu_wave(void)
{
    return __builtin_amdgcn_readfirstlane((int)(threadIdx.x / 64));
}

static __device__ __forceinline__ int gpu_afresh(int x)
{
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("" : "+s"(x));
#endif
    return x;
}
/* A kernel's parameters lie in constant memory, the first one in front. */
template <typename A> static __device__ __forceinline__ const A &gpu_args(const A &a)
{
#ifdef __HIP_DEVICE_COMPILE__
    auto at = __builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(at));
    return *(const A *)at;
#else
    return a;
#endif
}

/* ---------------------------------------------------------------- shared memory */

#define GPU_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]

static __device__ __forceinline__ uint32_t gpu_shared_at(const void *p)
{
    return (uint32_t)(uintptr_t)(__attribute__((address_space(3))) const void *)p;
}
template <typename T>
static __device__ __forceinline__ __attribute__((address_space(3))) T *gpu_shared(uint32_t at)
{
    return (__attribute__((address_space(3))) T *)(uintptr_t)at;
}

static __device__ __forceinline__ void gpu_store4(uint32_t at, uint32_t x)
{
    *gpu_shared<uint32_t>(at) = x;
}
static __device__ __forceinline__ void gpu_store16(uint32_t at, uint4 v)
{
    *gpu_shared<gpu_u4>(at) = gpu_u4{v.x, v.y, v.z, v.w};
}
static __device__ __forceinline__ uint32_t gpu_load4(uint32_t at)
{
    return *gpu_shared<uint32_t>(at);
}
static __device__ __forceinline__ uint4 gpu_load16(uint32_t at)
{
    const gpu_u4 v = *gpu_shared<gpu_u4>(at);
    return make_uint4(v[0], v[1], v[2], v[3]);
}

/* ---------------------------------------------------------------- copies to shared memory */

/* What copies of zeros read. */
static __device__ const uint4 gpu_zeros = {};

/* One instruction: GPU_COPY_BYTES a lane. ONCE: it leaves caches first. */
template <bool ONCE>
static __device__ __forceinline__ void gpu_copy_one(uint32_t to, const uint8_t *from)
{
#if defined(__gfx950__)
#define GPU_COPY "global_load_lds_dwordx4 %1, off"
#else
#define GPU_COPY "global_load_lds_dword %1, off"
#endif
#ifdef __HIP_DEVICE_COMPILE__
    const uint32_t m0 = __builtin_amdgcn_readfirstlane(to);
    if (ONCE)
        asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\t" GPU_COPY " nt" ::"s"(m0), "v"(from)
                     : "memory");
    else
        asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\t" GPU_COPY ::"s"(m0), "v"(from) : "memory");
#endif
#undef GPU_COPY
}

static __device__ __forceinline__ uint64_t gpu_stream_policy(void)
{
    return 0;
}

/* The first BYTES of a line. */
template <int BYTES>
static __device__ __forceinline__ void gpu_copy_part(uint32_t to, const void *from)
{
    const uint8_t *const first = (const uint8_t *)from - 16 * gpu_lane();
#pragma unroll
    for (int i = 0; i < BYTES; i += GPU_WAVE * GPU_COPY_BYTES) {
        const int at = i + gpu_lane() * GPU_COPY_BYTES;
        if (i + GPU_WAVE * GPU_COPY_BYTES <= BYTES || at < BYTES)
            gpu_copy_one<true>(to + i, first + at);
    }
}
#define GPU_COPY_PART gpu_copy_part
static __device__ __forceinline__ void gpu_copy_stream(uint32_t to, const void *from, uint64_t)
{
    gpu_copy_part<GPU_WAVE * 16>(to, from);
}

/* Places lie side by side, so what lies in a place decides what a lane copies there, of rows of
 * BYTES bytes from `tile` on: part of a chunk for each instruction. f(place, row, chunk, byte of
 * the chunk). */
template <int BYTES, class F>
static __device__ __forceinline__ void gpu_each_place(uint32_t tile, uint32_t row, const F &f)
{
    tile += row * BYTES;
#pragma unroll
    for (int i = 0; i < GPU_WAVE * 16; i += GPU_WAVE * GPU_COPY_BYTES) {
        const uint32_t byte = i + gpu_lane() * GPU_COPY_BYTES, r = row + byte / BYTES;
        f(tile + i, r, (byte % BYTES / 16) ^ (r & 7), byte % 16);
    }
}

static __device__ __forceinline__ const uint8_t *gpu_or_zeros(const void *at, bool there)
{
    return there ? (const uint8_t *)at : (const uint8_t *)&gpu_zeros;
}

template <int BYTES, bool LINES, class FROM>
static __device__ __forceinline__ void gpu_copy_rows(uint32_t tile, uint32_t row, const FROM &from)
{
    gpu_each_place<BYTES>(tile, row, [&](uint32_t to, uint32_t r, uint32_t chunk, uint32_t byte) {
        const struct gpu_source s = from(r, chunk);
        gpu_copy_one<false>(to, gpu_or_zeros(s.at, s.there) + byte);
    });
}

template <int BYTES, class FROM>
static __device__ __forceinline__ void gpu_copy_rows_two(uint32_t tile, uint32_t apart,
                                                         uint32_t row, const FROM &from,
                                                         const uint4 *a, const uint4 *b)
{
    gpu_each_place<BYTES>(tile, row, [&](uint32_t to, uint32_t r, uint32_t chunk, uint32_t byte) {
        const struct gpu_index s = from(r, chunk);
        if (s.skip)
            return;
        gpu_copy_one<false>(to, gpu_or_zeros(a + s.at, s.there) + byte);
        gpu_copy_one<false>(to + apart, gpu_or_zeros(b + s.at, s.there) + byte);
    });
}

static __device__ __forceinline__ void gpu_copy_commit(void)
{
}

/* Instructions that may be under way; vmcnt has six bits. */
template <int N> static __device__ __forceinline__ void gpu_copies_left(void)
{
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("s_waitcnt vmcnt(%0)" ::"n"(N < 63 ? N : 63) : "memory");
#endif
}

/* Rounded down: it may wait for more than it must. Lines are the same in all lanes. */
template <int MOST> static __device__ __forceinline__ void gpu_copy_wait(int, int lines)
{
    constexpr int EACH = 16 / GPU_COPY_BYTES;
    lines = __builtin_amdgcn_readfirstlane(lines);
    if (MOST == 0 || lines < 2)
        gpu_copies_left<0>();
    else if (lines < 4)
        gpu_copies_left<2 * EACH>();
    else if (lines < 6)
        gpu_copies_left<4 * EACH>();
    else if (lines < 8)
        gpu_copies_left<6 * EACH>();
    else if (lines < 12)
        gpu_copies_left<8 * EACH>();
    else if (lines < 16)
        gpu_copies_left<12 * EACH>();
    else
        gpu_copies_left<16 * EACH>();
}

static __device__ __forceinline__ void gpu_copy_settled(void)
{
#ifdef __HIP_DEVICE_COMPILE__
    __builtin_amdgcn_s_waitcnt(0x0f70); /* vmcnt(0), which the compiler understands */
#endif
}

/* ---------------------------------------------------------------- products */

/* The instruction multiplies b by a: of its result, columns are the rows of a. A lane has row
 * lane % 16 of either operand and eight columns of it, from 8 (lane / 16) on. */
static __device__ __forceinline__ int gpu_run_row(int lane)
{
    return lane % 16;
}
static __device__ __forceinline__ int gpu_run_col(int lane)
{
    return lane / 16 * 4;
}
static __device__ __forceinline__ int gpu_b_row(void)
{
    return threadIdx.x % 16;
}
static __device__ __forceinline__ int gpu_b_chunk(void)
{
    return threadIdx.x % GPU_WAVE / 16;
}
static __device__ __forceinline__ int gpu_b8_chunk(void)
{
    return threadIdx.x % GPU_WAVE / 16;
}

static __device__ __forceinline__ void gpu_load_a(uint32_t (&r)[4], uint32_t at)
{
    const uint4 v = gpu_load16(at);
    r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
}
static __device__ __forceinline__ void gpu_load_b(uint32_t (&r)[4], uint32_t at)
{
    gpu_load_a(r, at);
}
static __device__ __forceinline__ void gpu_load_b8(uint32_t (&r)[4], uint32_t at)
{
    gpu_load_a(r, at);
}

/* Lane: column col + lane % 16 of rows row + 4 (lane / 16) to + 3. */
template <int BYTES>
static __device__ __forceinline__ void gpu_load_t(uint32_t (&r)[2], uint32_t tile, uint32_t row,
                                                  uint32_t col)
{
    const uint32_t lane = gpu_lane(), c = col + lane % 16;
    uint16_t h[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        h[i] = *gpu_shared<uint16_t>(tile + gpu_place<BYTES>(row + lane / 16 * 4 + i, c / 8) +
                                     c % 8 * 2);
    r[0] = h[0] | (uint32_t)h[1] << 16;
    r[1] = h[2] | (uint32_t)h[3] << 16;
}

/* Lane: columns col + 4 (lane / 16) to + 3 of row row + lane % 16. */
template <int BYTES>
static __device__ __forceinline__ void gpu_load_n(uint32_t (&r)[2], uint32_t tile, uint32_t row,
                                                  uint32_t col)
{
    const uint32_t lane = gpu_lane(), c = col + lane / 16 * 4;
    const gpu_u2 v =
        *gpu_shared<gpu_u2>(tile + gpu_place<BYTES>(row + lane % 16, c / 8) + c % 8 * 2);
    r[0] = v[0], r[1] = v[1];
}
template <int BYTES>
static __device__ __forceinline__ void gpu_load_p(uint32_t (&r)[2], uint32_t tile, uint32_t row,
                                                  uint32_t col)
{
    gpu_load_n<BYTES>(r, tile, row, col);
}

/* Over 16 columns of k, four a lane. */
static __device__ __forceinline__ void gpu_mma_16(float *d, const uint32_t *a, const uint32_t *b)
{
#ifdef __HIP_DEVICE_COMPILE__
    gpu_f4 c = {d[0], d[1], d[2], d[3]};
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
        __builtin_bit_cast(gpu_s4, make_uint2(b[0], b[1])),
        __builtin_bit_cast(gpu_s4, make_uint2(a[0], a[1])), c, 0, 0, 0);
    d[0] = c[0], d[1] = c[1], d[2] = c[2], d[3] = c[3];
#endif
}

/* gfx942 multiplies the lower four columns of each lane's eight, then the upper ones. */
static __device__ __forceinline__ void gpu_mma(float *d, const uint32_t (&a)[4],
                                               const uint32_t (&b)[4])
{
#ifdef __gfx950__
    gpu_f4 c = {d[0], d[1], d[2], d[3]};
    c = __builtin_amdgcn_mfma_f32_16x16x32_bf16(
        __builtin_bit_cast(gpu_b8, make_uint4(b[0], b[1], b[2], b[3])),
        __builtin_bit_cast(gpu_b8, make_uint4(a[0], a[1], a[2], a[3])), c, 0, 0, 0);
    d[0] = c[0], d[1] = c[1], d[2] = c[2], d[3] = c[3];
#else
    gpu_mma_16(d, a, b);
    gpu_mma_16(d, a + 2, b + 2);
#endif
}
/* Eight rows of b, twice: the second half of the result is not used. */
static __device__ __forceinline__ void gpu_mma8(float *d, const uint32_t (&a)[4],
                                                const uint32_t (&b)[4], int)
{
    gpu_mma(d, a, b);
}
static __device__ __forceinline__ void gpu_mma_t(float *d, const uint32_t (&p)[2],
                                                 const uint32_t (&t)[2])
{
    gpu_mma_16(d, p, t);
}
static __device__ __forceinline__ void gpu_mma_ones(float *d, const uint32_t (&p)[2])
{
    const uint32_t ones[2] = {0x3f803f80u, 0x3f803f80u};
    gpu_mma_16(d, p, ones);
}

template <bool PAIR> static __device__ __forceinline__ uint32_t gpu_turn_at(const uint8_t *, int)
{
    return 0;
}
/* A lane's four neighbours go to four rows. */
template <bool PAIR, bool NEW>
static __device__ __forceinline__ void gpu_turn(uint8_t *patch, int lane, uint32_t, uint32_t r0,
                                                uint32_t r1, uint32_t, uint32_t)
{
    uint16_t *to = (uint16_t *)patch + gpu_run_col(lane) * 16 + gpu_run_row(lane);
    to[0] = (uint16_t)r0;
    to[16] = (uint16_t)(r0 >> 16);
    to[32] = (uint16_t)r1;
    to[48] = (uint16_t)(r1 >> 16);
}

/* ---------------------------------------------------------------- lanes */

static __device__ __forceinline__ float gpu_row_max(float x)
{
    x = fmaxf(x, __shfl_xor(x, 16, 64));
    return fmaxf(x, __shfl_xor(x, 32, 64));
}

/* Of the lane that has column col of this one's rows. */
static __device__ __forceinline__ float gpu_row_from(float x, int col)
{
    return __shfl(x, gpu_lane() % 16 + col / 4 * 16, 64);
}

static __device__ __forceinline__ gpu_lanes gpu_col_lanes(int lane)
{
    return (gpu_lanes)0xffff << (lane & 48);
}
static __device__ __forceinline__ bool gpu_col_lane(int lane)
{
    return lane % 16 == 0;
}
/* NaN loses. */
static __device__ __forceinline__ float gpu_col_max(float most)
{
#pragma unroll
    for (int step = 1; step < 16; step *= 2)
        most = fmaxf(most, __shfl_xor(most, step, 64));
    return most;
}
static __device__ __forceinline__ int32_t gpu_col_first(gpu_lanes column, float low, float,
                                                        float most)
{
    const gpu_lanes has = __builtin_amdgcn_ballot_w64(low == most) & column;
    return (__builtin_ffsll((long long)has) - 1) % 16;
}

static __device__ __forceinline__ bool gpu_any(bool x)
{
    return __builtin_amdgcn_ballot_w64(x) != 0;
}

static __device__ __forceinline__ void gpu_wave_sync(void)
{
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

/* There are no barriers of parts of a block: all its waves come equally often. */
static __device__ __forceinline__ void gpu_group_sync(int)
{
    __syncthreads();
}
static __device__ __forceinline__ void gpu_pair_sync(int)
{
    __syncthreads();
}

/* ---------------------------------------------------------------- between thread blocks
 * They may lie on different dies, each with an L2 of its own. */

static __device__ __forceinline__ void gpu_post16(const float4 *at, uint4 w)
{
    uint64_t *const to = (uint64_t *)(uintptr_t)at;
    __hip_atomic_store(to, (uint64_t)w.y << 32 | w.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    __hip_atomic_store(to + 1, (uint64_t)w.w << 32 | w.z, __ATOMIC_RELAXED,
                       __HIP_MEMORY_SCOPE_AGENT);
}

static __device__ __forceinline__ uint4 gpu_look16(const float4 *at)
{
    uint64_t *const from = (uint64_t *)(uintptr_t)at;
    const uint64_t a = __hip_atomic_load(from, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT),
                   b = __hip_atomic_load(from + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    return make_uint4((uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32));
}

/* A block's barrier does not carry stores of its other waves to other dies: each wave's own stores
 * leave its L2 before the barrier, and what L2 holds of others' is dropped after it. */
static __device__ __forceinline__ void gpu_publish(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
}
static __device__ __forceinline__ void gpu_obtain(void)
{
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}

static __device__ __forceinline__ uint32_t gpu_arrive(uint32_t *count)
{
    return __hip_atomic_fetch_add(count, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}

static __device__ __forceinline__ void gpu_send_max(uint64_t *at, uint64_t v)
{
    __hip_atomic_fetch_max(at, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

/* ---------------------------------------------------------------- numbers */

static __device__ __forceinline__ float gpu_exp2(float x)
{
    return __builtin_amdgcn_exp2f(x);
}
static __device__ __forceinline__ float gpu_rcp(float x)
{
    return __builtin_amdgcn_rcpf(x);
}

static __device__ __forceinline__ uint32_t gpu_scale2(uint32_t pair, uint32_t by)
{
    const float low = __uint_as_float(pair << 16) * __uint_as_float(by << 16),
                high = __uint_as_float(pair & 0xffff0000u) * __uint_as_float(by & 0xffff0000u);
    return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}

/* Quantized drafts alone ask for it, and gfx942 has another e4m3. */
static __device__ __forceinline__ uint32_t gpu_fp8x2(float hi, float lo)
{
    return (uint32_t)sv_fp8_of(hi) << 8 | sv_fp8_of(lo);
}

static __device__ __forceinline__ float2 gpu_f8x2(uint32_t two)
{
    return make_float2(sv_fp8_number(two), sv_fp8_number(two >> 8));
}

/* The numbers of pairs. */
static __device__ __forceinline__ float gpu_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
static __device__ __forceinline__ float gpu_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}
static __device__ __forceinline__ uint32_t gpu_pair(float low, float high)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&pair;
}
static __device__ __forceinline__ uint32_t gpu_mul2(uint32_t a, uint32_t b)
{
    return gpu_pair(gpu_low(a) * gpu_low(b), gpu_high(a) * gpu_high(b));
}
static __device__ __forceinline__ uint32_t gpu_sub2(uint32_t a, uint32_t b)
{
    return gpu_pair(gpu_low(a) - gpu_low(b), gpu_high(a) - gpu_high(b));
}
static __device__ __forceinline__ uint32_t gpu_fma2(uint32_t a, uint32_t b, uint32_t c)
{
    return gpu_pair(fmaf(gpu_low(a), gpu_low(b), gpu_low(c)),
                    fmaf(gpu_high(a), gpu_high(b), gpu_high(c)));
}

#endif
