/*
 * gdn.cuh - what the kernels of the gated delta rule share: a segment's description, and the views
 * of its slot's block (ops_gdn.h).
 *
 * Included by gdn.cu and gdn_scan.cu. Must not: compute anything that a row's bits depend on.
 */
#ifndef SV_GPU_GDN_CUH
#define SV_GPU_GDN_CUH

#include "backend/cuda/cuda.h"
#include "backend/gpu/gdn.h"

enum { GDN_CHUNK = SV_GDN_CHUNK, GDN_KEY = SV_CUDA_MAX_KEY };

/* Handed to kernels by value. */
struct gdn_args {
    struct sv_rows rows;
    struct sv_gdn_shape shape;
    struct sv_gdn_slots slots;
    struct sv_gdn_block block;
    struct sv_gdn_rows mid;
    int32_t channels, each; /* of a row; value heads of a key head */
    /* Segments, tables and what slots keep may be read before the launch before has ended
     * (cu->settled): a pass's last writer of a slot's block is a launch of its own layer. */
    bool early;
};
static inline struct gdn_args gdn_args_of(const struct sv_cuda *cu, const struct sv_rows *rows,
                                          const struct sv_gdn_shape *shape,
                                          const struct sv_gdn_slots *slots,
                                          const struct sv_gdn_rows *mid)
{
    return {*rows,
            *shape,
            *slots,
            sv_gdn_block_of(shape),
            *mid,
            sv_gdn_channels(shape),
            shape->n_v_heads / shape->n_k_heads,
            cu->settled};
}

struct gdn_seg {
    int32_t slot, row0, n, base, end; /* positions [base, end) in rows [row0, row0 + n) */
    bool prompt;                      /* all of its rows are committed */
};
static __device__ __forceinline__ struct gdn_seg gdn_seg_at(const struct gdn_args &a, int32_t seg)
{
    struct gdn_seg s;
    s.slot = a.rows.seg_slot[seg];
    s.row0 = a.rows.seg_row0[seg];
    s.n = a.rows.seg_row0[seg + 1] - s.row0;
    s.base = a.rows.seg_base[seg];
    s.end = s.base + s.n;
    s.prompt = s.n > a.shape.max_block;
    if (s.slot < 0)
        s.n = 0;
    return s;
}

/* Where the state stands after the pass: rows from there on are kept. */
static __device__ __forceinline__ int32_t gdn_kept_from(const struct gdn_seg &s)
{
    return (s.prompt ? s.end : s.base) / GDN_CHUNK * GDN_CHUNK;
}

struct gdn_slot {
    int32_t *pos; /* of each value head: before which its state stands */
    uint32_t *arrived;
    float *state, *u, *g;
    void *k, *conv;
};
static __device__ __forceinline__ struct gdn_slot gdn_slot_at(const struct gdn_args &a,
                                                              int32_t slot)
{
    uint8_t *const at = (uint8_t *)a.slots.data + slot * a.slots.slot_stride;
    struct gdn_slot s;
    s.pos = (int32_t *)at;
    s.arrived = (uint32_t *)(at + a.block.arrived);
    s.state = (float *)(at + a.block.state);
    s.k = at + a.block.k;
    s.u = (float *)(at + a.block.u);
    s.g = (float *)(at + a.block.g);
    s.conv = at + a.block.conv;
    return s;
}

/* Cuts two numbers into PARTS pairs of bf16. */
template <int PARTS>
static __device__ __forceinline__ void gdn_cut(uint32_t (&part)[PARTS], float x, float y)
{
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
        part[p] = *(const uint32_t *)&h;
        x = __fsub_rn(x, __uint_as_float(part[p] << 16));
        y = __fsub_rn(y, __uint_as_float(part[p] & 0xffff0000u));
    }
}
/* A key in bf16 mode: whole steps. */
static __device__ __forceinline__ float gdn_to_steps(float x)
{
    const float steps = rintf(__fmul_rn(x, 1 / SV_GDN_KEY_STEP));
    return __fmul_rn(fmaxf(fminf(steps, 32767), -32767), SV_GDN_KEY_STEP);
}
/* The parts of eight kept keys. */
static __device__ __forceinline__ void gdn_parts_of(uint4 kept, uint4 &hi, uint4 &lo)
{
    const uint32_t w[4] = {kept.x, kept.y, kept.z, kept.w};
    uint32_t part[4][2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        gdn_cut<2>(part[i], __fmul_rn((float)(int16_t)w[i], SV_GDN_KEY_STEP),
                   __fmul_rn((float)((int32_t)w[i] >> 16), SV_GDN_KEY_STEP));
    hi = make_uint4(part[0][0], part[1][0], part[2][0], part[3][0]);
    lo = make_uint4(part[0][1], part[1][1], part[2][1], part[3][1]);
}
/* Row of a ring: no more than once around it. */
static __device__ __forceinline__ int32_t gdn_around(int32_t row, int32_t ring)
{
    return row < ring ? row : row - ring;
}
/* Eight keys of one row of the ring in a key head: octet n. */
static __device__ __forceinline__ const uint4 *gdn_kept_keys(const struct gdn_args &a,
                                                             const struct gdn_slot &slot,
                                                             int32_t kh, int32_t row, int32_t n)
{
    return (const uint4 *)((const int16_t *)slot.k +
                           ((int64_t)kh * a.block.k_ring + row) * a.shape.k_dim) +
           n;
}
/* The sums of two such parts, without a rounding. */
static __device__ __forceinline__ float2 gdn_joined(uint32_t hi, uint32_t lo)
{
    return make_float2(
        __fadd_rn(__uint_as_float(hi << 16), __uint_as_float(lo << 16)),
        __fadd_rn(__uint_as_float(hi & 0xffff0000u), __uint_as_float(lo & 0xffff0000u)));
}

/* Two keys as they are kept, of their parts. */
static __device__ __forceinline__ uint32_t gdn_steps_of(uint32_t hi, uint32_t lo)
{
    const float2 x = gdn_joined(hi, lo);
    const int32_t a = (int32_t)__fmul_rn(x.x, 1 / SV_GDN_KEY_STEP),
                  b = (int32_t)__fmul_rn(x.y, 1 / SV_GDN_KEY_STEP);
    return ((uint32_t)a & 0xffff) | (uint32_t)b << 16;
}

#endif
