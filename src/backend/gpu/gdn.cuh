/*
 * gdn.cuh - what the kernels of the gated delta rule share: a segment as they see it, and the views
 * of its slot's block (ops_gdn.h).
 *
 * Included by gdn.cu and gdn_scan.cu. Must not: compute anything that a row's bits hang on.
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
    int32_t channels;
    /* Segments, tables and what slots keep may be read before the launch before has ended
     * (cu->settled): a pass's last writer of a slot's block is the norm of its own layer. */
    bool early;
};
static inline struct gdn_args gdn_args_of(const struct sv_cuda *cu, const struct sv_rows *rows,
                                          const struct sv_gdn_shape *shape,
                                          const struct sv_gdn_slots *slots,
                                          const struct sv_gdn_rows *mid)
{
    return {*rows,      *shape, *slots, sv_gdn_block_of(shape), *mid, sv_gdn_channels(shape),
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
    float *state, *k, *u, *g;
    void *conv;
};
static __device__ __forceinline__ struct gdn_slot gdn_slot_at(const struct gdn_args &a,
                                                              int32_t slot)
{
    uint8_t *const at = (uint8_t *)a.slots.data + slot * a.slots.slot_stride;
    struct gdn_slot s;
    s.pos = (int32_t *)at;
    s.state = (float *)(at + a.block.state);
    s.k = (float *)(at + a.block.k);
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
/* The sums of two such parts, without a rounding. */
static __device__ __forceinline__ float2 gdn_joined(uint32_t hi, uint32_t lo)
{
    return make_float2(
        __fadd_rn(__uint_as_float(hi << 16), __uint_as_float(lo << 16)),
        __fadd_rn(__uint_as_float(hi & 0xffff0000u), __uint_as_float(lo & 0xffff0000u)));
}

#endif
