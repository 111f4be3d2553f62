/*
 * join.cuh - how the devices of several ranks exchange parts inside a kernel: a part is pushed into
 * the windows of all others, theirs are taken out of one's own as they come, and what they add up
 * to is summed in rank order.
 *
 * Included by join.cu and rows.cu. The data is the flag: a window is all ones where nothing has
 * come. A word of ones is two bf16 that are NaN, or one f32; such a word is sent as another NaN, so
 * that bad numbers are a fault and not a wait. A place that was taken is blanked, and ranks.h
 * explains why it may be written again then; nothing is counted, so a kernel that is replayed does
 * the same each time. A wait ends when the part is there, at the timeout, or when the host has set
 * the stop word; from then on the device is dead: no join waits any more, and numbers are zeros.
 * Must not: add in another order than that of ranks, or wait before the own part is sent.
 */
#ifndef SV_GPU_JOIN_CUH
#define SV_GPU_JOIN_CUH

#include "backend/cuda/cuda.h"
#include "backend/gpu/gpu_peers.h"

/* A join as its kernels see it: handed over by value. Places are counted in 16 bytes. */
struct sv_join_site {
    int32_t rank, n, kind;
    uint4 *to[SV_MAX_RANKS]; /* this rank's part in the windows of the others */
    uint4 *from;             /* rank r's part in the own window: at from + r * apart */
    int64_t apart;
    uint4 *dead;        /* x: the device is */
    const uint4 *stop;  /* x, set by the host: it shall be */
    int64_t timeout_us; /* < 0: none */
    struct sv_cuda_fault *fault;
};

enum {
    SV_JOIN_LOOK = 256, /* polls between looks at the clock */
    SV_JOIN_ASK = 65536 /* and at the stop word, which lies in host memory */
};

static __device__ __forceinline__ bool sv_join_there(uint4 v)
{
    return v.x != 0xffffffffu && v.y != 0xffffffffu && v.z != 0xffffffffu && v.w != 0xffffffffu;
}

static __device__ __forceinline__ uint32_t sv_join_word(uint32_t w)
{
    return w == 0xffffffffu ? 0x7fffffffu : w;
}
static __device__ __forceinline__ uint4 sv_join_words(uint4 v)
{
    return make_uint4(sv_join_word(v.x), sv_join_word(v.y), sv_join_word(v.z), sv_join_word(v.w));
}

/* To place `at` of this rank's part in all other windows. */
static __device__ __forceinline__ void sv_join_send(const struct sv_join_site &s, int64_t at,
                                                    uint4 v)
{
    for (int32_t r = 0; r < s.n; r++)
        if (r != s.rank)
            gpu_send16(s.to[r] + at, sv_join_words(v));
}

/* After so many looks for rank r's part of row `row`: whether to give up. */
static __device__ __forceinline__ bool sv_join_ends(const struct sv_join_site &s, uint32_t n_looks,
                                                    int32_t r, int32_t row, uint64_t *begin)
{
    if (gpu_take16(s.dead).x)
        return true;
    const uint64_t now = gpu_clock_us();
    if (n_looks == SV_JOIN_LOOK)
        *begin = now;
    const bool late = s.timeout_us >= 0 && (int64_t)(now - *begin) >= s.timeout_us;
    const bool told = n_looks % SV_JOIN_ASK == 0 && gpu_take16(s.stop).x;
    if (late && !told)
        sv_fault_set(s.fault, SV_CUDA_FAULT_PEER, r, s.kind, row);
    if (late || told)
        gpu_send16(s.dead, make_uint4(1, 0, 0, 0));
    return late || told;
}

/* Waits for place `at` of rank r's part, and blanks it. */
static __device__ __forceinline__ uint4 sv_join_take(const struct sv_join_site &s, int32_t r,
                                                     int64_t at, int32_t row)
{
    uint4 *place = s.from + r * s.apart + at;
    uint4 v = gpu_take16(place);
    uint64_t begin = 0;
    for (uint32_t n = 1; !sv_join_there(v); n++) {
        if (n % SV_JOIN_LOOK == 0 && sv_join_ends(s, n, r, row, &begin))
            return make_uint4(0, 0, 0, 0);
        gpu_idle();
        v = gpu_take16(place);
    }
    gpu_send16(place, make_uint4(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu));
    return v;
}

/* ---------------------------------------------------------------- sums of eight neighbours */

static __device__ __forceinline__ void sv_join_send8(const struct sv_join_site &s, int64_t i,
                                                     const struct sv_eight<__nv_bfloat16> &e)
{
    sv_join_send(s, i, e.v);
}
static __device__ __forceinline__ uint4 sv_join_bits(float4 f)
{
    return make_uint4(__float_as_uint(f.x), __float_as_uint(f.y), __float_as_uint(f.z),
                      __float_as_uint(f.w));
}
static __device__ __forceinline__ void sv_join_send8(const struct sv_join_site &s, int64_t i,
                                                     const struct sv_eight<float> &e)
{
    sv_join_send(s, 2 * i, sv_join_bits(e.a));
    sv_join_send(s, 2 * i + 1, sv_join_bits(e.b));
}

static __device__ __forceinline__ void sv_join_take8(float f[8], const struct sv_join_site &s,
                                                     int32_t r, int64_t i, int32_t row,
                                                     const __nv_bfloat16 *)
{
    sv_spread8(f, sv_join_take(s, r, i, row));
}
static __device__ __forceinline__ void sv_join_take8(float f[8], const struct sv_join_site &s,
                                                     int32_t r, int64_t i, int32_t row,
                                                     const float *)
{
    const uint4 a = sv_join_take(s, r, 2 * i, row), b = sv_join_take(s, r, 2 * i + 1, row);
    const uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int j = 0; j < 8; j++)
        f[j] = __uint_as_float(w[j]);
}

/* The own part, as the others see it. */
static __device__ __forceinline__ void sv_join_own8(float f[8],
                                                    const struct sv_eight<__nv_bfloat16> &e)
{
    sv_spread8(f, sv_join_words(e.v));
}
static __device__ __forceinline__ void sv_join_own8(float f[8], const struct sv_eight<float> &e)
{
    sv_spread8(f, e);
#pragma unroll
    for (int j = 0; j < 8; j++)
        f[j] = __uint_as_float(sv_join_word(__float_as_uint(f[j])));
}

/* The sum of all parts of the eight at i, of which own is this rank's. */
template <typename T>
static __device__ __forceinline__ void sv_join_sum8(float sum[8], const struct sv_join_site &s,
                                                    int64_t i, int32_t row,
                                                    const struct sv_eight<T> &own)
{
    for (int32_t r = 0; r < s.n; r++) {
        float f[8];
        if (r == s.rank)
            sv_join_own8(f, own);
        else
            sv_join_take8(f, s, r, i, row, (const T *)NULL);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[j] = r == 0 ? f[j] : sum[j] + f[j];
    }
}

#endif
