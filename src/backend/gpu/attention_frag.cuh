/*
 * attention_frag.cuh - sums and scores as the matrix instructions leave them in a wave's registers
 * (gpu.h): queries are rows, keys or values columns. The same for mma.sync and for a warp of wgmma.
 *
 * Included by attention_portable.cu, attention_latent.cuh and cuda/attention_chunk.cuh: clearing
 * and merging of sums, a block's own running sum, masks, and storing finished rows or partial
 * results.
 */
#ifndef SV_CUDA_ATTENTION_FRAG_CUH
#define SV_CUDA_ATTENTION_FRAG_CUH

#include "backend/gpu/attention_core.cuh"

/* What a lane knows of its queries among the wave's sixteen. */
struct lane_rows {
    int32_t lo[GPU_LINES], hi[GPU_LINES];
};

/* A running sum over keys: o (16, HD) lies as a product does, in log2 units below m. */
template <int HD> struct sum {
    float o[HD / GPU_COLS][4];
    float l[GPU_LINES], m[GPU_LINES];
};

template <int HD> static __device__ __forceinline__ void sum_clear(struct sum<HD> &s)
{
#pragma unroll
    for (int n = 0; n < HD / GPU_COLS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[n][e] = 0;
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        s.l[r] = 0;
        s.m[r] = attn_neg_inf();
    }
}

/* The running maximum has moved: what was summed below the old one, and its denominators l, times
 * alpha. Times one is no change: leaving it out when no query of the wave needs it is no
 * difference. */
template <int HD>
static __device__ __forceinline__ void sum_rescale(struct sum<HD> &s, float (&l)[4],
                                                   const float (&alpha)[GPU_LINES])
{
    if (!gpu_any(alpha[0] != 1.0f || alpha[GPU_LINES - 1] != 1.0f))
        return;
#pragma unroll
    for (int n = 0; n < HD / GPU_COLS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[n][e] = __fmul_rn(s.o[n][e], alpha[e / GPU_RUN]);
#pragma unroll
    for (int e = 0; e < 4; e++)
        l[e] = __fmul_rn(l[e], alpha[e / GPU_RUN]);
}

template <int HD>
static __device__ __forceinline__ void sum_merge(struct sum<HD> &s, const struct sum<HD> &t)
{
    struct attn_factors f[GPU_LINES];
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        f[r] = attn_merge_factors(s.m[r], t.m[r]);
        s.m[r] = f[r].m;
        s.l[r] = attn_merge(s.l[r], t.l[r], f[r]);
    }
#pragma unroll
    for (int n = 0; n < HD / GPU_COLS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s.o[n][e] = attn_merge(s.o[n][e], t.o[n][e], f[e / GPU_RUN]);
}

/* A block's own corner of global memory, for the sum of spans while the next span is in
 * registers. */
template <int HD, int THREADS>
static __device__ __forceinline__ void run_store(float4 *run, const struct sum<HD> &s)
{
#pragma unroll
    for (int n = 0; n < HD / GPU_COLS; n++)
        run[n * THREADS] = make_float4(s.o[n][0], s.o[n][1], s.o[n][2], s.o[n][3]);
    run[HD / GPU_COLS * THREADS] =
        make_float4(s.l[0], s.l[GPU_LINES - 1], s.m[0], s.m[GPU_LINES - 1]);
}
/* s = run merged with s, in this order; AHEAD register rows at a time of wide heads, the run is
 * never held whole. */
template <int HD, int THREADS, int AHEAD = 8>
static __device__ __forceinline__ void run_merge(const float4 *run, struct sum<HD> &s)
{
    const float4 lm = run[HD / GPU_COLS * THREADS];
    const float l[2] = {lm.x, lm.y}, m[2] = {lm.z, lm.w};
    struct attn_factors f[GPU_LINES];
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        f[r] = attn_merge_factors(m[r], s.m[r]);
        s.m[r] = f[r].m;
        s.l[r] = attn_merge(l[r], s.l[r], f[r]);
    }
#pragma unroll
    for (int n = 0; n < HD / GPU_COLS; n++) {
        if (HD > 128 && n % AHEAD == 0)
            gpu_wave_sync(); /* the compiler loads no more than these at a time */
        const float4 o = run[n * THREADS];
        s.o[n][0] = attn_merge(o.x, s.o[n][0], f[0]);
        s.o[n][1] = attn_merge(o.y, s.o[n][1], f[0]);
        s.o[n][2] = attn_merge(o.z, s.o[n][2], f[GPU_LINES - 1]);
        s.o[n][3] = attn_merge(o.w, s.o[n][3], f[GPU_LINES - 1]);
    }
}

/* ---------------------------------------------------------------- scores */

/* Byte of a 16-byte chunk in a tile of rows of HD values. */
template <int HD> static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t chunk)
{
    return gpu_place<HD * 2>(row, chunk);
}

/* Sums of a tile of keys. */
enum { SCORE_FOURS = SV_ATTN_TILE / GPU_COLS };

static __device__ __forceinline__ void cap_scores(const struct sv_attn_args &a,
                                                  float (&s)[SCORE_FOURS][4])
{
    const float twice = 2 * ATTN_LOG2E * a.p.scale / a.p.softcap, cap = a.p.softcap * ATTN_LOG2E;
#pragma unroll
    for (int n = 0; n < SCORE_FOURS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = attn_softcap(s[n][e], twice, cap);
}

/* pos: of this lane's first key. */
static __device__ __forceinline__ void mask_scores(float (&s)[SCORE_FOURS][4],
                                                   const struct lane_rows &rows, int32_t pos)
{
#pragma unroll
    for (int n = 0; n < SCORE_FOURS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t at = pos + n * GPU_COLS + e % GPU_RUN;
            if (at < rows.lo[e / GPU_RUN] || at >= rows.hi[e / GPU_RUN])
                s[n][e] = attn_neg_inf();
        }
}

/* ---------------------------------------------------------------- results */

/* The finished rows, through the wave's own part of shared memory, so that whole lines are
 * written: HD columns from col0 on of heads of WIDTH. */
template <int HD, int WIDTH = HD>
static __device__ __forceinline__ void
write_rows(const struct sv_attn_args &a, const struct attn_item &it, int32_t q_warp,
           const struct sum<HD> &s, uint32_t stage, uint32_t lane, int32_t col0 = 0)
{
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        const int32_t q = q_warp + gpu_run_row((int)lane) + 8 * r;
        const int32_t head = it.kv_head * a.group + q - attn_div(q, a.by_group) * a.group;
        const float inverse = q < it.n_q ? attn_inverse(a, head, s.m[r], s.l[r]) : 0.0f;
#pragma unroll
        for (int n = 0; n < HD / GPU_COLS; n++)
#pragma unroll
            for (int e = 0; e < GPU_RUN; e += 2) {
                const uint32_t col = n * GPU_COLS + gpu_run_col((int)lane) + e;
                gpu_store4(stage + at<HD>(gpu_run_row((int)lane) + 8 * r, col / 8) + col % 8 * 2,
                           attn_pack(attn_output(s.o[n][GPU_RUN * r + e], inverse),
                                     attn_output(s.o[n][GPU_RUN * r + e + 1], inverse)));
            }
    }
    gpu_wave_sync();
    constexpr int CHUNKS = HD / 8;
#pragma unroll
    for (int i = 0; i < 16 * CHUNKS / GPU_WAVE; i++) {
        const int32_t row = (lane + GPU_WAVE * i) / CHUNKS, chunk = lane % CHUNKS, q = q_warp + row;
        if (q >= it.n_q)
            continue;
        const int32_t r = attn_div(q, a.by_group), head = it.kv_head * a.group + (q - r * a.group);
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.p.out + (int64_t)(it.g.row0 + r) * a.p.ldo +
                            (int64_t)head * WIDTH + col0 + chunk * 8;
        *(uint4 *)to = gpu_load16(stage + at<HD>(row, chunk));
    }
}

/* Partial results of HD columns; heads that are divided have PARTS of them, as so many heads. */
template <int HD, int PARTS = 1>
static __device__ __forceinline__ void
write_parts(const struct sv_attn_args &a, const struct attn_item &it, int32_t q_warp,
            const struct sum<HD> &s, uint32_t lane, int32_t part_of = 0)
{
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        const int32_t q = q_warp + gpu_run_row((int)lane) + 8 * r;
        if (q >= it.n_q)
            continue;
        const int32_t row = attn_div(q, a.by_group),
                      head = it.kv_head * a.group + (q - row * a.group);
        const int64_t to = attn_part_at(a, it.part, it.g.row0 + row, head) * PARTS + part_of;
        if (gpu_run_col((int)lane) == 0)
            a.part_ml[to] = make_float2(s.m[r], s.l[r]);
#pragma unroll
        for (int n = 0; n < HD / GPU_COLS; n++)
#pragma unroll
            for (int e = 0; e < GPU_RUN; e += 2)
                *(float2 *)(a.part_o + to * HD + n * GPU_COLS + gpu_run_col((int)lane) + e) =
                    make_float2(s.o[n][GPU_RUN * r + e], s.o[n][GPU_RUN * r + e + 1]);
    }
}

#endif
