/*
 * attention_frag.cuh - sums and scores as the matrix instructions leave them in a warp's registers:
 * lane i holds, of every 8 columns, two in row i / 4 and two in row i / 4 + 8. The same for
 * mma.sync and for a warp of wgmma.
 *
 * Included by attention_portable.cu and attention_sm90.cu: clearing and merging of sums, a block's
 * own running sum, masks, and the ways out (finished rows, partial results).
 */
#ifndef SV_CUDA_ATTENTION_FRAG_CUH
#define SV_CUDA_ATTENTION_FRAG_CUH

#include "backend/cuda/attention_core.cuh"
#include "backend/cuda/attention_mma.cuh"

/* What a lane knows of its two queries (rows lane / 4 and lane / 4 + 8 of the warp's sixteen). */
struct lane_rows {
    int32_t lo[2], hi[2];
};

/* A running sum over keys: o (16, HD) and l lie as mma leaves them, in log2 units below m. */
template <int HD> struct sum {
    float o[HD / 8][4];
    float l[2], m[2];
};

template <int HD> static __device__ __forceinline__ void sum_clear(struct sum<HD> &s)
{
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[n][e] = 0;
    s.l[0] = s.l[1] = 0;
    s.m[0] = s.m[1] = attn_neg_inf();
}

template <int HD>
static __device__ __forceinline__ void sum_merge(struct sum<HD> &s, const struct sum<HD> &t)
{
    struct attn_factors f[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f[r] = attn_merge_factors(s.m[r], t.m[r]);
        s.m[r] = f[r].m;
        s.l[r] = attn_merge(s.l[r], t.l[r], f[r]);
    }
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[n][e] = attn_merge(s.o[n][e], t.o[n][e], f[e / 2]);
}

/* A block's own corner of global memory, for the sum of spans while the next span is in
 * registers. */
template <int HD, int THREADS>
static __device__ __forceinline__ void run_store(float4 *run, const struct sum<HD> &s)
{
#pragma unroll
    for (int n = 0; n < HD / 8; n++)
        run[n * THREADS] = make_float4(s.o[n][0], s.o[n][1], s.o[n][2], s.o[n][3]);
    run[HD / 8 * THREADS] = make_float4(s.l[0], s.l[1], s.m[0], s.m[1]);
}
/* s = run merged with s, in this order; one register row at a time, the run is never held whole. */
template <int HD, int THREADS>
static __device__ __forceinline__ void run_merge(const float4 *run, struct sum<HD> &s)
{
    const float4 lm = run[HD / 8 * THREADS];
    const float l[2] = {lm.x, lm.y}, m[2] = {lm.z, lm.w};
    struct attn_factors f[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        f[r] = attn_merge_factors(m[r], s.m[r]);
        s.m[r] = f[r].m;
        s.l[r] = attn_merge(l[r], s.l[r], f[r]);
    }
#pragma unroll
    for (int n = 0; n < HD / 8; n++) {
        const float4 o = run[n * THREADS];
        s.o[n][0] = attn_merge(o.x, s.o[n][0], f[0]);
        s.o[n][1] = attn_merge(o.y, s.o[n][1], f[0]);
        s.o[n][2] = attn_merge(o.z, s.o[n][2], f[1]);
        s.o[n][3] = attn_merge(o.w, s.o[n][3], f[1]);
    }
}

/* ---------------------------------------------------------------- scores */

/* 16-byte chunks of a row of HD values are permuted by the row's low bits: neither cp.async nor
 * ldmatrix meets a bank twice. */
template <int HD> static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t chunk)
{
    return row * (HD * 2) + ((chunk ^ (row & 7)) * 16);
}

static __device__ __forceinline__ void cap_scores(const struct sv_attn_args &a, float (&s)[8][4])
{
    const float twice = 2 * ATTN_LOG2E * a.p.scale / a.p.softcap, cap = a.p.softcap * ATTN_LOG2E;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = attn_softcap(s[n][e], twice, cap);
}

static __device__ __forceinline__ void mask_scores(float (&s)[8][4], const struct lane_rows &rows,
                                                   int32_t pos)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t at = pos + n * 8 + (e & 1);
            if (at < rows.lo[e / 2] || at >= rows.hi[e / 2])
                s[n][e] = attn_neg_inf();
        }
}

/* ---------------------------------------------------------------- results */

/* The finished rows, through the warp's own part of shared memory, so that whole lines are
 * written. */
template <int HD>
static __device__ __forceinline__ void
write_rows(const struct sv_attn_args &a, const struct attn_item &it, int32_t q_warp,
           const struct sum<HD> &s, uint32_t stage, uint32_t lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t q = q_warp + (int32_t)lane / 4 + 8 * r;
        const int32_t head = it.kv_head * a.group + q - attn_div(q, a.by_group) * a.group;
        const float inverse = q < it.n_q ? attn_inverse(a, head, s.m[r], s.l[r]) : 0.0f;
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            attn_store4(stage + at<HD>(lane / 4 + 8 * r, n) + lane % 4 * 4,
                        attn_pack(attn_output(s.o[n][2 * r], inverse),
                                  attn_output(s.o[n][2 * r + 1], inverse)));
    }
    __syncwarp();
    constexpr int CHUNKS = HD / 8;
#pragma unroll
    for (int i = 0; i < 16 * CHUNKS / 32; i++) {
        const int32_t row = (lane + 32 * i) / CHUNKS, chunk = lane % CHUNKS, q = q_warp + row;
        if (q >= it.n_q)
            continue;
        const int32_t r = attn_div(q, a.by_group), head = it.kv_head * a.group + (q - r * a.group);
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.p.out + (int64_t)(it.g.row0 + r) * a.p.ldo +
                            (int64_t)head * HD + chunk * 8;
        *(uint4 *)to = attn_load16(stage + at<HD>(row, chunk));
    }
}

template <int HD>
static __device__ __forceinline__ void write_parts(const struct sv_attn_args &a,
                                                   const struct attn_item &it, int32_t q_warp,
                                                   const struct sum<HD> &s, uint32_t lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t q = q_warp + (int32_t)lane / 4 + 8 * r;
        if (q >= it.n_q)
            continue;
        const int32_t row = attn_div(q, a.by_group),
                      head = it.kv_head * a.group + (q - row * a.group);
        const int64_t to = attn_part_at(a, it.part, it.g.row0 + row, head);
        if (lane % 4 == 0)
            a.part_ml[to] = make_float2(s.m[r], s.l[r]);
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            *(float2 *)(a.part_o + to * HD + n * 8 + lane % 4 * 2) =
                make_float2(s.o[n][2 * r], s.o[n][2 * r + 1]);
    }
}

#endif
