/*
 * norm_rope.cuh - one head by one warp: RMS norm, rotation by neox halves, one rounding at the
 * store.
 *
 * Included by rows.cu (queries and keys of the target and the draft) and context_kv.cu (the draft's
 * keys of committed rows). Everything between load and store is f32. Must not: let the order of the
 * sum depend on anything but the head's size.
 */
#ifndef SV_CUDA_NORM_ROPE_CUH
#define SV_CUDA_NORM_ROPE_CUH

#include "backend/gpu/kv_f8.cuh"

#define SV_MAX_HEAD_DIM 256 /* ops.c checks it */

struct sv_head_norm {
    const float *weight; /* (head_dim) or NULL: no norm */
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

/* Where the angles of a row with three positions begin in the table, and which of these turns a
 * pair: two bits each, 16 pairs a word. */
struct sv_three {
    int64_t at[3];
    const uint32_t *axis;
};
static __device__ __forceinline__ int64_t sv_three_at(const struct sv_three &t, int32_t pair)
{
    const uint32_t axis = t.axis[pair / 16] >> (2 * (pair % 16)) & 3;
    return (axis == 0 ? t.at[0] : axis == 1 ? t.at[1] : t.at[2]) + pair;
}

/* Where a key, or a value, of a cache of K lies: `at` as of sv_kv_at, of the head. */
template <typename K>
static __device__ __forceinline__ auto sv_kv_row(const struct sv_kv &kv, bool value, int64_t at)
{
    if constexpr (sizeof(K) > 1)
        return (K *)(value ? kv.v : kv.k) + at;
    else
        return sv_kv_f8_row{(uint8_t *)(value ? kv.v : kv.k) + at,
                            (value ? kv.v_own : kv.k_own) + at / kv.head_dim,
                            value ? kv.v_scale : kv.k_scale};
}

/* A head's numbers f(0), f(1), ... by one warp, whose lane i has elements 2i, 2i + 1, 2i + 64, ...
 */
template <typename O, class F>
static __device__ __forceinline__ void sv_head_put(O *out, const F &f, int32_t hd, int lane)
{
    for (int32_t i = 2 * lane; i < hd; i += 64) {
        sv_store(out + i, f(i));
        sv_store(out + i + 1, f(i + 1));
    }
}
template <class F>
static __device__ __forceinline__ void sv_head_put(const struct sv_kv_f8_row &out, const F &f,
                                                   int32_t hd, int lane)
{
    uint32_t most = 0;
    for (int32_t i = 2 * lane; i < hd; i += 64)
        most = sv_kv_f8_larger(sv_kv_f8_larger(most, f(i)), f(i + 1));
#pragma unroll
    for (int step = 16; step; step /= 2)
        most = sv_kv_f8_most(most, __shfl_xor_sync(0xffffffffu, most, step));
    const struct sv_kv_f8_put put = sv_kv_f8_put_of(most, out.fixed);
    for (int32_t i = 2 * lane; i < hd; i += 64)
        *(uint16_t *)(out.codes + i) = (uint16_t)sv_kv_f8_codes(put, f(i), f(i + 1));
    if (lane == 0)
        *out.own = sv_kv_f8_own(put);
}

/* out: a row of T, as x may be, or of the cache. three: NULL, or instead of angle. buffer:
 * (SV_MAX_HEAD_DIM) of this warp. */
template <typename T, typename O>
static __device__ __forceinline__ void
sv_head_norm_rope(O out, const T *x, float *buffer, struct sv_head_norm norm,
                  const struct sv_rope_table &rope, int64_t angle, int32_t hd, int lane,
                  const struct sv_three *three = NULL)
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
            buffer[i] = buffer[i] * inv * norm.weight[i];
            buffer[i + 1] = buffer[i + 1] * inv * norm.weight[i + 1];
        }
    }
    __syncwarp();
    const int32_t rot = rope.rot_dim, half = rot / 2;
    const auto turned = [&](int32_t j) {
        const int32_t pair = j < half ? j : j - half;
        const int64_t at = !three || j >= rot ? angle + pair : sv_three_at(*three, pair);
        const float y = buffer[j];
        if (j < half)
            return y * rope.cos[at] - buffer[j + half] * rope.sin[at];
        return j < rot ? y * rope.cos[at] + buffer[j - half] * rope.sin[at] : y;
    };
    sv_head_put(out, turned, hd, lane);
    __syncwarp();
}

/* A head of 128 all of which is rotated, held by eight lanes: v[j] is element 8 lane + j, v[8 + j]
 * the one it is rotated with, 64 further. What is fused is said, not left to the compiler: several
 * kernels must give the same bits. */

/* Norm weights w are in the same order. All eight lanes must come; those for which `on` is false
 * leave v as it is. */
static __device__ __forceinline__ void sv_norm128(float v[16], const float w[16], float eps,
                                                  bool on)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 16; j++)
        sum = fmaf(v[j], v[j], sum);
#pragma unroll
    for (int step = 4; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (!on)
        return;
    const float inv = rsqrtf(fmaf(sum, 1.0f / 128.0f, eps));
#pragma unroll
    for (int j = 0; j < 16; j++)
        v[j] = v[j] * inv * w[j];
}

struct sv_turn128 {
    float cos[8], sin[8];
};
static __device__ __forceinline__ void
sv_turn128_load(struct sv_turn128 *t, const struct sv_rope_table &rope, int64_t angle, int lane)
{
    sv_load8(t->cos, rope.cos + angle + 8 * lane);
    sv_load8(t->sin, rope.sin + angle + 8 * lane);
}
/* Rows of text have three equal positions. */
static __device__ __forceinline__ void sv_turn128_load(struct sv_turn128 *t,
                                                       const struct sv_rope_table &rope,
                                                       const struct sv_three &three, int lane)
{
    if (three.at[0] == three.at[1] && three.at[0] == three.at[2]) {
        sv_turn128_load(t, rope, three.at[0], lane);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const int64_t at = sv_three_at(three, 8 * lane + j);
        t->cos[j] = rope.cos[at];
        t->sin[j] = rope.sin[at];
    }
}
static __device__ __forceinline__ void sv_turn128(float v[16], const struct sv_turn128 &t)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float x = v[j], y = v[8 + j];
        v[j] = fmaf(-y, t.sin[j], __fmul_rn(x, t.cos[j]));
        v[8 + j] = fmaf(x, t.sin[j], __fmul_rn(y, t.cos[j]));
    }
}

/* The largest of a head's magnitudes (kv_f8.cuh), for a cache of K that wants it. All eight lanes
 * come. */
template <typename K> static __device__ __forceinline__ uint32_t sv_largest128(const float v[16])
{
    uint32_t most = 0;
    if constexpr (sizeof(K) == 1) {
#pragma unroll
        for (int j = 0; j < 16; j++)
            most = sv_kv_f8_larger(most, v[j]);
#pragma unroll
        for (int step = 4; step; step /= 2)
            most = sv_kv_f8_most(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    return most;
}
template <typename K>
static __device__ __forceinline__ void sv_put128(K *out, const float v[16], uint32_t, int lane)
{
    sv_store8(out + 8 * lane, v);
    sv_store8(out + 8 * lane + 64, v + 8);
}
template <typename K>
static __device__ __forceinline__ void sv_put128(const struct sv_kv_f8_row &out, const float v[16],
                                                 uint32_t most, int lane)
{
    const struct sv_kv_f8_put put = sv_kv_f8_put_of(most, out.fixed);
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        w[i] = sv_kv_f8_codes(put, v[4 * i], v[4 * i + 1]) |
               sv_kv_f8_codes(put, v[4 * i + 2], v[4 * i + 3]) << 16;
    *(uint2 *)(out.codes + 8 * lane) = make_uint2(w[0], w[1]);
    *(uint2 *)(out.codes + 8 * lane + 64) = make_uint2(w[2], w[3]);
    if (lane == 0)
        *out.own = sv_kv_f8_own(put);
}

template <typename T, typename O>
static __device__ __forceinline__ void sv_head_copy(O out, const T *x, int32_t hd, int lane)
{
    sv_head_put(
        out, [&](int32_t j) { return sv_load(x + j); }, hd, lane);
}

#endif
