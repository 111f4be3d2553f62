/*
 * attention_parts.cuh - merges a query's partial results by one warp: chunks in ascending order
 * within a span, spans in ascending order, as one block with all keys does.
 *
 * Included by attention.cu and attention_few_sm90.cu.
 * Must not: merge by another formula than attn_merge, or in another order.
 */
#ifndef SV_CUDA_ATTENTION_PARTS_CUH
#define SV_CUDA_ATTENTION_PARTS_CUH

#include "backend/gpu/attention_core.cuh"

/* VEC values of a query's output in each lane, with the sum's maximum and denominator in all. */
template <int VEC> struct part {
    float o[VEC], m, l;
};

template <int VEC> static __device__ __forceinline__ void part_clear(struct part<VEC> &s)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        s.o[i] = 0;
    s.l = 0;
    s.m = attn_neg_inf();
}
template <int VEC>
static __device__ __forceinline__ void part_merge(struct part<VEC> &s, const struct part<VEC> &t)
{
    const struct attn_factors f = attn_merge_factors(s.m, t.m);
    s.m = f.m;
    s.l = attn_merge(s.l, t.l, f);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        s.o[i] = attn_merge(s.o[i], t.o[i], f);
}
template <int VEC>
static __device__ __forceinline__ void part_load(struct part<VEC> &s, const struct sv_attn_args &a,
                                                 int64_t at, int32_t lane)
{
    const float2 ml = __ldcg(a.part_ml + at);
    s.m = ml.x;
    s.l = ml.y;
    if (VEC == 4) {
        const float4 o = __ldcg((const float4 *)(a.part_o + at * VEC * 32) + lane);
        s.o[0] = o.x, s.o[1] = o.y, s.o[VEC - 2] = o.z, s.o[VEC - 1] = o.w;
    } else {
        const float2 o = __ldcg((const float2 *)(a.part_o + at * VEC * 32) + lane);
        s.o[0] = o.x, s.o[1] = o.y;
    }
}

/* The output of a row of segment g and one head, from its parts, of which AHEAD are loaded at a
 * time. */
template <int HD, int AHEAD>
static __device__ __forceinline__ void attn_fold(const struct sv_attn_args &a, int32_t unit,
                                                 const struct attn_seg &g, int32_t row, int32_t pos,
                                                 int32_t head, int32_t lane)
{
    constexpr int VEC = HD / 32, PER_SPAN = SV_ATTN_SPAN / SV_ATTN_CHUNK;
    const int32_t shift = attn_unit_shift(unit), part0 = attn_part0(g, unit);
    const int32_t first = attn_lo(a.p, pos) >> shift,
                  last = (attn_hi(a.p, pos, g.end) - 1) >> shift;
    const int64_t at = attn_part_at(a, 0, row, head), step = (int64_t)a.p.rows.n_rows * a.p.n_heads;

    struct part<VEC> run, span, x[AHEAD];
    part_clear(run);
    part_clear(span);
    for (int32_t p0 = first; p0 <= last; p0 += AHEAD) {
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (p0 + j <= last)
                part_load(x[j], a, at + (p0 + j - part0) * step, lane);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int32_t p = p0 + j;
            if (p > last)
                break;
            if (unit == SV_ATTN_BY_SPAN) {
                part_merge(run, x[j]);
                continue;
            }
            part_merge(span, x[j]);
            if (p % PER_SPAN == PER_SPAN - 1 || p == last) {
                part_merge(run, span);
                part_clear(span);
            }
        }
    }
    const float inverse = attn_inverse(a, head, run.m, run.l);
    __nv_bfloat16 *out = (__nv_bfloat16 *)a.p.out + row * a.p.ldo + (int64_t)head * HD + lane * VEC;
#pragma unroll
    for (int j = 0; j < VEC; j += 2)
        *(__nv_bfloat162 *)(out + j) = __floats2bfloat162_rn(attn_output(run.o[j], inverse),
                                                             attn_output(run.o[j + 1], inverse));
}

#endif
