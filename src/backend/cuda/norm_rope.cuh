/*
 * norm_rope.cuh - one head by one warp: RMS norm, rotation by neox halves, one rounding at the store.
 *
 * Included by rows.cu (queries and keys of the target and the draft) and context_kv.cu (the draft's keys of
 * committed rows). Everything between load and store is f32. Must not: let the order of the sum depend on
 * anything but the head's size.
 */
#ifndef SV_CUDA_NORM_ROPE_CUH
#define SV_CUDA_NORM_ROPE_CUH

#include "backend/cuda/cuda.h"

#define SV_MAX_HEAD_DIM 256 /* ops.c checks it */

struct sv_head_norm {
    const void *weight; /* (head_dim) or NULL: no norm */
    int dtype;
    float eps;
};

/* Row of the rotary table, clamped; reported when fault is set. */
static __device__ __forceinline__ int32_t sv_rope_row(const struct sv_rope_table *t, int32_t pos,
                                                      struct sv_cuda_fault *fault)
{
    if (pos >= 0 && pos < t->max_pos)
        return pos;
    if (fault)
        sv_fault_set(fault, SV_CUDA_FAULT_ROPE, pos, t->max_pos, 0);
    return pos < 0 ? 0 : t->max_pos - 1;
}

/* out may be x. Lane i holds elements 2i, 2i + 1, 2i + 64, ...; buffer: (SV_MAX_HEAD_DIM) of this warp. */
template <typename T, typename O>
static __device__ __forceinline__ void sv_head_norm_rope(O *out, const T *x, float *buffer,
                                                         struct sv_head_norm norm,
                                                         const struct sv_rope_table &rope,
                                                         int64_t angle, int32_t hd, int lane)
{
    float sum = 0;
    for (int32_t i = 2 * lane; i < hd; i += 64) {
        float a = sv_load(x + i), b = sv_load(x + i + 1);
        sum = fmaf(a, a, sum);
        sum = fmaf(b, b, sum);
        buffer[i] = a;
        buffer[i + 1] = b;
    }
    if (norm.weight) {
        const float inv = 1.0f / sqrtf(sv_warp_sum(sum) / (float)hd + norm.eps);
        for (int32_t i = 2 * lane; i < hd; i += 64) {
            buffer[i] = buffer[i] * inv * sv_weight_at(norm.weight, norm.dtype, i);
            buffer[i + 1] = buffer[i + 1] * inv * sv_weight_at(norm.weight, norm.dtype, i + 1);
        }
    }
    __syncwarp();
    const int32_t rot = rope.rot_dim, half = rot / 2;
    const float *cos = rope.cos + angle, *sin = rope.sin + angle;
    for (int32_t i = 2 * lane; i < hd; i += 64) {
#pragma unroll
        for (int32_t j = i; j < i + 2; j++) {
            float y = buffer[j];
            if (j < half)
                y = y * cos[j] - buffer[j + half] * sin[j];
            else if (j < rot)
                y = y * cos[j - half] + buffer[j - half] * sin[j - half];
            sv_store(out + j, y);
        }
    }
    __syncwarp();
}

/* Two neighbours; p must be aligned to both. */
static __device__ __forceinline__ float2 sv_load2(const float *p)
{
    return *(const float2 *)p;
}
static __device__ __forceinline__ float2 sv_load2(const __nv_bfloat16 *p)
{
    const uint32_t w = *(const uint32_t *)p;
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}
static __device__ __forceinline__ void sv_store2(float *p, float2 x)
{
    *(float2 *)p = x;
}
static __device__ __forceinline__ void sv_store2(__nv_bfloat16 *p, float2 x)
{
    *(__nv_bfloat162 *)p = __floats2bfloat162_rn(x.x, x.y);
}

/* A head of 128 all of which is rotated: what is rotated with one another lies in one lane (the lanes hold what they hold
 * above), so that everything but the head itself can be here before it is. */
struct sv_head128 {
    float2 w[2], cos, sin;
};
static __device__ __forceinline__ struct sv_head128 sv_head128_of(struct sv_head_norm norm,
                                                                  const struct sv_rope_table &rope, int64_t angle,
                                                                  int lane)
{
    struct sv_head128 h = {};
    const int32_t i = 2 * lane;
    h.cos = make_float2(rope.cos[angle + i], rope.cos[angle + i + 1]);
    h.sin = make_float2(rope.sin[angle + i], rope.sin[angle + i + 1]);
    if (norm.weight) {
        h.w[0] = make_float2(sv_weight_at(norm.weight, norm.dtype, i), sv_weight_at(norm.weight, norm.dtype, i + 1));
        h.w[1] = make_float2(sv_weight_at(norm.weight, norm.dtype, i + 64),
                             sv_weight_at(norm.weight, norm.dtype, i + 65));
    }
    return h;
}
/* Norm, if there is one, and rotation, in the order of sv_head_norm_rope. a: elements 2 lane and the next, b: 64 on. */
static __device__ __forceinline__ void sv_head128_turn(float2 &a, float2 &b, bool norm, float eps,
                                                       const struct sv_head128 &h)
{
    if (norm) {
        const float sum = fmaf(b.y, b.y, fmaf(b.x, b.x, fmaf(a.y, a.y, fmaf(a.x, a.x, 0.0f))));
        const float inv = 1.0f / sqrtf(sv_warp_sum(sum) / 128.0f + eps);
        a = make_float2(a.x * inv * h.w[0].x, a.y * inv * h.w[0].y);
        b = make_float2(b.x * inv * h.w[1].x, b.y * inv * h.w[1].y);
    }
    const float2 x = a, y = b;
    a = make_float2(x.x * h.cos.x - y.x * h.sin.x, x.y * h.cos.y - y.y * h.sin.y);
    b = make_float2(y.x * h.cos.x + x.x * h.sin.x, y.y * h.cos.y + x.y * h.sin.y);
}

template <typename T, typename O>
static __device__ __forceinline__ void sv_head_copy(O *out, const T *x, int32_t hd, int lane)
{
    for (int32_t i = 2 * lane; i < hd; i += 64) {
        sv_store(out + i, sv_load(x + i));
        sv_store(out + i + 1, sv_load(x + i + 1));
    }
}

#endif
