/*
 * gdn_row.cuh - the arithmetic of a row of the gated delta rule before and after its scan, the same
 * for every kernel: the convolution's taps, unit length, gates, the gated norm.
 *
 * Included by gdn.cu and gdn_single.cu. Each sum has one order; fused operations are explicit. Must
 * not: depend on the assignment of threads.
 */
#ifndef SV_GPU_GDN_ROW_CUH
#define SV_GPU_GDN_ROW_CUH

#include "backend/gpu/gdn.cuh"
#include "backend/gpu/gpu.h"
#include "backend/gpu/silu.cuh"

enum { OLDER = SV_GDN_TAPS - 1 };

struct conv_args {
    struct gdn_args g;
    const void *x, *b, *a;
    int64_t ldx;
    const float *conv, *decay, *dt_bias;
    float q_length;
    bool kept_bf16; /* rows before the convolution are kept, and taken, as bf16 */
};
static inline struct conv_args conv_args_of(const struct sv_cuda *cu, const struct sv_p_gdn_conv *p)
{
    return {gdn_args_of(cu, &p->rows, &p->shape, &p->slots, &p->out),
            p->x,
            p->b,
            p->a,
            p->ldx,
            (const float *)p->conv.data,
            (const float *)p->decay.data,
            (const float *)p->dt_bias.data,
            1.0f / sqrtf((float)p->shape.k_dim),
            p->shape.conv_dtype == SV_BF16};
}

/* Two neighbouring channels. */
static __device__ __forceinline__ float2 load2(const float *p)
{
    return *(const float2 *)p;
}
static __device__ __forceinline__ float2 load2(const __nv_bfloat16 *p)
{
    const uint32_t v = *(const uint32_t *)p;
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
static __device__ __forceinline__ uint32_t pack2(float2 x)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(x.x, x.y);
    return *(const uint32_t *)&h;
}

/* As it is kept. */
template <typename T>
static __device__ __forceinline__ float2 rounded(const struct conv_args &a, float2 x)
{
    if (sizeof(T) == 2 || !a.kept_bf16)
        return x;
    const uint32_t v = pack2(x);
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

/* Rows [row0, row0 + n) of a segment, all in one chunk, from place `line` of it on. */
struct group {
    struct gdn_seg seg;
    int32_t row0, n, pos, line;
};

/* What row number row0 - back of the segment has in channel c: in x, kept, or before the text. */
template <typename T>
static __device__ __forceinline__ float2 tap(const struct conv_args &a, const struct group &g,
                                             const struct gdn_slot &slot, int32_t back,
                                             int32_t channel)
{
    const int32_t row = g.row0 - back, pos = g.pos - back;
    if (pos < 0)
        return make_float2(0, 0);
    if (row >= g.seg.row0)
        return rounded<T>(a, load2((const T *)a.x + row * a.ldx + channel));
    const int64_t at = (int64_t)(pos % a.g.block.conv_ring) * a.g.channels + channel;
    return a.kept_bf16 ? load2((const __nv_bfloat16 *)slot.conv + at)
                       : load2((const float *)slot.conv + at);
}

/* Keeps two channels of a row, which are bf16, in a row of the ring. */
static __device__ __forceinline__ void put_conv_row(const struct conv_args &a,
                                                    const struct gdn_slot &slot, int32_t ring_row,
                                                    int32_t channel, uint32_t x)
{
    const int64_t at = (int64_t)ring_row * a.g.channels + channel;
    if (a.kept_bf16)
        *(uint32_t *)((__nv_bfloat16 *)slot.conv + at) = x;
    else
        *(float2 *)((float *)slot.conv + at) = load2((const __nv_bfloat16 *)&x);
}

static __device__ __forceinline__ float conv_silu(float w0, float w1, float w2, float w3, float x0,
                                                  float x1, float x2, float x3)
{
    const float sum = __fmaf_rn(w3, x3, __fmaf_rn(w2, x2, __fmaf_rn(w1, x1, __fmul_rn(w0, x0))));
    /* The bound keeps the divisor where its reciprocal is a normal number. */
    const float e = gpu_exp2(fminf(__fmul_rn(sum, -1.4426950408889634f), 120.0f));
    return __fmul_rn(sum, gpu_rcp(__fadd_rn(1.0f, e)));
}

/* Two neighbouring channels of x as they lie there. */
template <typename T> struct two {
    float2 at;
};
template <> struct two<__nv_bfloat16> {
    uint32_t at;
};

/* ---------------------------------------------------------------- length, gates, norm */

/* A head's numbers in a warp: lane l has 2l, 2l + 1, 2l + 64, ..., zeros where there are none. */
template <int PAIRS>
static __device__ __forceinline__ float sum_of_squares(const float2 (&v)[PAIRS])
{
    float sum = 0;
#pragma unroll
    for (int m = 0; m < PAIRS; m++)
        sum = __fmaf_rn(v[m].y, v[m].y, __fmaf_rn(v[m].x, v[m].x, sum));
    return sv_warp_sum(sum);
}
static __device__ __forceinline__ float to_unit(float sum, float length)
{
    return __fmul_rn(length, rsqrtf(__fadd_rn(sum, 1e-6f)));
}

/* The log decay of a row. */
static __device__ __forceinline__ float log_decay(float a, float dt_bias, float decay)
{
    const float y = __fadd_rn(a, dt_bias);
    return __fmul_rn(decay, y > 20 ? y : log1pf(expf(y)));
}

struct gated_norm_args {
    struct gdn_args g;
    int64_t ldz;
    const float *weight;
    float eps, of_d; /* of_d: 1 / d */
};
static inline struct gated_norm_args norm_args_of(const struct sv_cuda *cu,
                                                  const struct sv_p_gdn_norm *p)
{
    return {gdn_args_of(cu, &p->rows, &p->shape, &p->slots, &p->mid), p->ldz,
            sv_cuda_norm_of(&p->weight), p->eps, 1.0f / (float)p->shape.v_dim};
}

static __device__ __forceinline__ float to_norm(const struct gated_norm_args &a, float sum)
{
    return rsqrtf(__fmaf_rn(sum, a.of_d, a.eps));
}
/* Two neighbouring numbers of a head. */
template <typename T>
static __device__ __forceinline__ void put_norm(T *out, float2 x, float2 gate, float2 weight,
                                                float inv)
{
    sv_store(out, sv_silu_mul(gate.x, __fmul_rn(__fmul_rn(x.x, inv), weight.x)));
    sv_store(out + 1, sv_silu_mul(gate.y, __fmul_rn(__fmul_rn(x.y, inv), weight.y)));
}

#endif
