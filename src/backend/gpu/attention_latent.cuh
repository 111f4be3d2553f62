/*
 * attention_latent.cuh - paged attention over latents (ops_mla.h): keys of 576 numbers, whose first
 * 512 are also the values. What all kernels of it share: queries, masks, output and partial
 * results.
 *
 * Included by attention_latent.cu and attention_latent_sm90.cu, which first define how waves divide
 * the work: ROW_WAVES times COL_WAVES. Queries are (row, head) pairs of one segment; all heads have
 * the same keys. A block takes 64 queries, a wave the sums of some of these and some columns.
 * Must not: let a query's sum depend on its place in the tile or on the other queries.
 */
#ifndef SV_GPU_ATTENTION_LATENT_CUH
#define SV_GPU_ATTENTION_LATENT_CUH

#include "backend/gpu/attention_frag.cuh"
#include "backend/gpu/kv_f8.cuh"

enum {
    LATENT = SV_ATTN_LATENT,
    WIDE = SV_ATTN_LATENT_WIDTH,
    PARTS = WIDE / 64, /* of a key: 64 columns, 128 bytes */
    QUERIES = 64,
    KEYS = SV_ATTN_TILE,
    WAVES = COL_WAVES * ROW_WAVES,
    THREADS = WAVES * GPU_WAVE,
    OWN = QUERIES / ROW_WAVES, /* queries of a wave */
    OWN_16 = OWN / 16,
    COLS = LATENT / COL_WAVES, /* columns of its sums */
    KEY_PART = KEYS * 128,
    STAGE = PARTS * KEY_PART,
    QUERY_PART = QUERIES * 128,
    RUN = COLS / GPU_COLS + 1, /* float4 of a lane for 16 queries */
    /* Of e4m3: 16-byte chunks of a row, and those in front of the rotated key */
    F8_CHUNKS = (LATENT + LATENT / SV_LATENT_TILE * 4 + (WIDE - LATENT) * 2) / 16,
    F8_KEY = (LATENT + LATENT / SV_LATENT_TILE * 4) / 16
};
static_assert(WIDE - LATENT == 64 && (LATENT + LATENT / SV_LATENT_TILE * 4) % 16 == 0,
              "a rotated key is a part");
static_assert(WIDE % 64 == 0 && COLS % 64 == 0 && COLS % SV_ATTN_LATENT_PART == 0, "whole parts");

static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
{
    return gpu_place<128>(row, chunk);
}

/* Queries [from, from + n) of the tile. */
static __device__ __forceinline__ void load_queries(const struct sv_attn_args &a,
                                                    const struct attn_item &it, uint32_t to,
                                                    int32_t from, int32_t n)
{
    constexpr int EACH = GPU_WAVE / 8;
#pragma unroll 1
    for (int32_t row0 = gpu_afresh(gpu_wave() * EACH); row0 < n; row0 += WAVES * EACH)
#pragma unroll 1
        for (int32_t part = 0; part < PARTS; part++)
            gpu_copy_rows<128, true>(to + part * n * 128, row0, [&](uint32_t row, uint32_t chunk) {
                const int32_t q = it.q0 + from + (int32_t)row;
                const bool there = q < it.n_q;
                const __nv_bfloat16 *at = (const __nv_bfloat16 *)a.p.q;
                if (there) {
                    const int32_t r = attn_div(q, a.by_group), head = q - r * a.group;
                    at += (int64_t)(it.g.row0 + r) * a.p.ldq + (int64_t)head * WIDE + 64 * part +
                          8 * chunk;
                }
                return gpu_source{at, there};
            });
}

/* ---------------------------------------------------------------- results */

static __device__ __forceinline__ void write_rows(const struct sv_attn_args &a,
                                                  const struct attn_item &it, int32_t q16,
                                                  const struct sum<COLS> &s, int32_t col0)
{
    const int lane = gpu_lane();
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        const int32_t q = q16 + gpu_run_row(lane) + 8 * r;
        if (q >= it.n_q)
            continue;
        const int32_t row = attn_div(q, a.by_group), head = q - row * a.group;
        const float inverse = attn_inverse(a, head, s.m[r], s.l[r]);
        __nv_bfloat16 *to = (__nv_bfloat16 *)a.p.out + (int64_t)(it.g.row0 + row) * a.p.ldo +
                            (int64_t)head * LATENT + col0 + gpu_run_col(lane);
#pragma unroll
        for (int n = 0; n < COLS / GPU_COLS; n++)
#pragma unroll
            for (int e = 0; e < GPU_RUN; e += 2)
                *(uint32_t *)(to + n * GPU_COLS + e) =
                    attn_pack(attn_output(s.o[n][GPU_RUN * r + e], inverse),
                              attn_output(s.o[n][GPU_RUN * r + e + 1], inverse));
    }
}

/* As of heads of SV_ATTN_LATENT_PART columns, which is how the combine kernel takes them. */
static __device__ __forceinline__ void write_parts(const struct sv_attn_args &a,
                                                   const struct attn_item &it, int32_t q16,
                                                   const struct sum<COLS> &s, int32_t col0)
{
    enum { PART = SV_ATTN_LATENT_PART, N = LATENT / PART };
    const int lane = gpu_lane();
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        const int32_t q = q16 + gpu_run_row(lane) + 8 * r;
        if (q >= it.n_q)
            continue;
        const int32_t row = attn_div(q, a.by_group), head = q - row * a.group;
        const int64_t to = attn_part_at(a, it.part, it.g.row0 + row, head) * N + col0 / PART;
#pragma unroll
        for (int n = 0; n < COLS / PART; n++)
            if (gpu_run_col(lane) == 0)
                a.part_ml[to + n] = make_float2(s.m[r], s.l[r]);
#pragma unroll
        for (int n = 0; n < COLS / GPU_COLS; n++)
#pragma unroll
            for (int e = 0; e < GPU_RUN; e += 2)
                *(float2 *)(a.part_o + to * PART + n * GPU_COLS + gpu_run_col(lane) + e) =
                    make_float2(s.o[n][GPU_RUN * r + e], s.o[n][GPU_RUN * r + e + 1]);
    }
}

/* ---------------------------------------------------------------- what queries see */

/* What a wave knows of its queries: what each of a lane's sees, what any sees, what all see. */
struct wave_rows {
    struct lane_rows lane[OWN_16];
    int32_t q0, lo_any, hi_any, lo_all, hi_all;
    bool busy;
};

/* Of the wave's queries from q0 on, and of all n from `first` on. Lanes beyond the last query
 * double it: they take part and write nothing. */
static __device__ __forceinline__ void rows_of(struct wave_rows &w, const struct sv_attn_args &a,
                                               const struct attn_item &it, int32_t q0,
                                               int32_t first, int32_t n)
{
    const int lane = gpu_lane();
    w.q0 = q0;
    w.busy = first < it.n_q;
    const int32_t q_last = min(first + n - 1, it.n_q - 1);
    const int32_t pos_first = attn_pos(a.p, it.g, w.busy ? attn_div(first, a.by_group) : 0);
    const int32_t pos_last = attn_pos(a.p, it.g, attn_div(q_last, a.by_group));
    w.lo_any = attn_lo(a.p, pos_first);
    w.lo_all = attn_lo(a.p, pos_last);
    w.hi_any = attn_hi(a.p, pos_last, it.g.end);
    w.hi_all = attn_hi(a.p, pos_first, it.g.end);
#pragma unroll
    for (int i = 0; i < OWN_16; i++)
#pragma unroll
        for (int r = 0; r < GPU_LINES; r++) {
            const int32_t q = min(q0 + 16 * i + gpu_run_row(lane) + 8 * r, it.n_q - 1),
                          pos = attn_pos(a.p, it.g, attn_div(q, a.by_group));
            w.lane[i].lo[r] = attn_lo(a.p, pos);
            w.lane[i].hi[r] = attn_hi(a.p, pos, it.g.end);
        }
}

/* Positions of this lane's scores from `pos` on. */
template <int N>
static __device__ __forceinline__ void hide(float (&s)[N][4], const struct lane_rows &rows,
                                            int32_t pos)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t at = pos + n * GPU_COLS + e % GPU_RUN;
            if (at < rows.lo[e / GPU_RUN] || at >= rows.hi[e / GPU_RUN])
                s[n][e] = attn_neg_inf();
        }
}

#endif
