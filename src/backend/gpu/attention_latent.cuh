/*
 * attention_latent.cuh - paged attention over latents (ops_mla.h): keys of 576 numbers, whose first
 * 512 are the values as well. All of the kernel but its two products.
 *
 * Included by attention_latent.cu and attention_latent_sm90.cu, which say before how waves share
 * the work (COL_WAVES, KEY_WAVES, ROW_WAVES, TOGETHER) and afterwards what a product is. Queries
 * are (row, head) pairs of one segment; all heads see the same keys. A block takes 64 of them. A
 * tile of keys lies in shared memory once for both products, as nine parts of 64 columns. Sums of
 * 64 queries fill half of a multiprocessor's registers: where shared memory holds queries too,
 * COL_WAVES waves share queries: each has the scores of its part of the keys and the sums of its
 * part of the columns, and weights pass through shared memory. Elsewhere (KEY_WAVES 1) a wave has
 * 16 queries in registers and the scores of all keys, which the other wave of these queries has as
 * well. Keys are added with one running maximum within a span, spans are merged in ascending order.
 * Of a cache in e4m3 a tile's values are made as it is loaded: all else is the same. Must not: let
 * a query's sum depend on its place in the tile, on the other queries or on which block works on
 * which spans.
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
    COLS = LATENT / COL_WAVES,   /* columns of its sums */
    OWN_KEYS = KEYS / KEY_WAVES, /* keys of its scores */
    FOURS_16 = 16 / GPU_COLS,
    PAIRS_16 = 2 * FOURS_16,
    STEPS = 64 / GPU_K, /* of a part's columns */
    KEY_PART = KEYS * 128,
    STAGE = PARTS * KEY_PART,
    QUERY_PART = QUERIES * 128,
    MOST_STAGES = 2,
    N_OFFSETS = 4, /* tiles whose addresses are kept; a power of two above the stages */
    /* Beside the stages: queries, weights and maxima where waves share scores; addresses. */
    SHARED_QUERIES = KEY_WAVES > 1 ? PARTS *QUERY_PART : 0,
    SHARED_WEIGHTS = KEY_WAVES > 1 ? QUERIES *KEYS * 2 : 0,
    SHARED_MOST = KEY_WAVES > 1 ? QUERIES *COL_WAVES *(int)sizeof(float) : 0,
    FIXED = SHARED_QUERIES + SHARED_WEIGHTS + SHARED_MOST + N_OFFSETS * KEYS * 4,
    RUN = COLS / GPU_COLS + 1, /* float4 of a lane for 16 queries */
    /* Of e4m3: 16-byte chunks of a row, and those in front of the rotated key */
    F8_CHUNKS = (LATENT + LATENT / SV_LATENT_TILE * 4 + (WIDE - LATENT) * 2) / 16,
    F8_KEY = (LATENT + LATENT / SV_LATENT_TILE * 4) / 16
};
static_assert(WIDE - LATENT == 64 && (LATENT + LATENT / SV_LATENT_TILE * 4) % 16 == 0,
              "a rotated key is a part");
static_assert(WIDE % 64 == 0 && COLS % 64 == 0 && COLS % SV_ATTN_LATENT_PART == 0, "whole parts");
static_assert(KEY_WAVES == 1 || KEYS * 2 == 128, "a row of weights is a row of 128 bytes");

/* Shared memory of a block. */
struct room {
    uint32_t keys, queries, weights;
    float *most; /* (QUERIES, COL_WAVES) */
    uint32_t *offsets;
};

static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
{
    return gpu_place<128>(row, chunk);
}

/* ---------------------------------------------------------------- loads */

/* Of codes: values to the places where a tile of bf16 has them, the rotated keys copied. */
static __device__ __forceinline__ void expand_tile(const struct sv_attn_args &a, uint32_t stage,
                                                   const uint32_t *offsets)
{
    constexpr int CHUNKS = LATENT / 16, EACH = GPU_WAVE / 8, AT_ONCE = KEY_WAVES == 1 ? 1 : 4;
    const uint4 *rows = (const uint4 *)a.p.kv.k;
#pragma unroll 1
    for (int32_t row0 = gpu_afresh(gpu_wave() * EACH); row0 < KEYS; row0 += WAVES * EACH)
        gpu_copy_rows<
            128, true>(stage + (PARTS - 1) * KEY_PART, row0, [&](uint32_t row, uint32_t chunk) {
            const uint32_t off = offsets[row];
            const bool seen = off != ATTN_NONE;
            return gpu_source{rows + (seen ? (uint64_t)off * F8_CHUNKS + F8_KEY + chunk : 0), seen};
        });
#pragma unroll AT_ONCE
    for (int32_t i0 = gpu_afresh(0); i0 < KEYS * CHUNKS; i0 += THREADS) {
        const uint32_t i = i0 + threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS,
                       off = offsets[row];
        uint4 codes = make_uint4(0, 0, 0, 0), v[2];
        uint32_t own = KV_F8_ONE;
        if (off != ATTN_NONE) {
            const uint4 *const at = rows + (uint64_t)off * F8_CHUNKS;
            codes = at[chunk];
            /* As an e8m0: the exponent of a power of two. */
            own = __float_as_uint(sv_latent_scale((const uint8_t *)at, LATENT, 16 * chunk)) >> 23;
        }
        sv_kv_f8_expand(codes, own, 0, v);
        /* Of eight lanes no two meet at a bank. */
        const uint32_t odd = chunk / 4 % 2, part = stage + chunk / 4 * KEY_PART, to = chunk % 4 * 2;
        gpu_store16(part + place(row, to + odd), odd ? v[1] : v[0]);
        gpu_store16(part + place(row, to + 1 - odd), odd ? v[0] : v[1]);
    }
}

/* Zeros for keys that no query sees. */
template <bool F8>
static __device__ __forceinline__ void load_tile(const struct sv_attn_args &a, uint32_t stage,
                                                 const uint32_t *offsets)
{
    if constexpr (F8)
        return expand_tile(a, stage, offsets);
    constexpr int EACH = GPU_WAVE / 8; /* rows of a copy */
    constexpr int AT_ONCE = KEY_WAVES == 1 ? 1 : PARTS;
    const uint4 *keys = (const uint4 *)a.p.kv.k;
#pragma unroll 1
    for (int32_t row0 = gpu_afresh(gpu_wave() * EACH); row0 < KEYS; row0 += WAVES * EACH)
#pragma unroll AT_ONCE
        for (int32_t part = 0; part < PARTS; part++)
            gpu_copy_rows<128, true>(
                stage + part * KEY_PART, row0, [&](uint32_t row, uint32_t chunk) {
                    const uint32_t off = offsets[row];
                    const bool seen = off != ATTN_NONE;
                    return gpu_source{keys + (seen ? (uint64_t)off + 8 * part + chunk : 0), seen};
                });
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

/* ---------------------------------------------------------------- one tile of keys */

struct fragments {
    uint32_t q[KEY_WAVES == 1 ? WIDE / GPU_K : 1][4]; /* where shared memory holds none */
};

/* What this thread has copied is there for products. */
static __device__ __forceinline__ void copied(void);

/* The products. s (OWN, OWN_KEYS) = q k^T, keys from key0 on; o += p v, l += p 1: columns from col0
 * on of all keys of the tile. */
static __device__ __forceinline__ void scores(float (&s)[OWN_16][OWN_KEYS / GPU_COLS][4],
                                              const struct fragments &f, const struct room &m,
                                              uint32_t keys, uint32_t query0, uint32_t key0);
static __device__ __forceinline__ void
values(struct sum<COLS> (&c)[OWN_16], float (&l)[OWN_16][4],
       const uint32_t (&own)[OWN_16][OWN_KEYS / 16][PAIRS_16], uint32_t weights, uint32_t keys,
       uint32_t query0, uint32_t col0);

/* The largest score of each of the wave's queries in this tile. */
static __device__ __forceinline__ void find_most(float (&most)[OWN_16][GPU_LINES],
                                                 const float (&s)[OWN_16][OWN_KEYS / GPU_COLS][4],
                                                 const struct room &m, int group, int col,
                                                 uint32_t query0)
{
    const int lane = gpu_lane();
#pragma unroll
    for (int i = 0; i < OWN_16; i++)
#pragma unroll
        for (int r = 0; r < GPU_LINES; r++) {
            float x = attn_neg_inf();
#pragma unroll
            for (int n = 0; n < OWN_KEYS / GPU_COLS; n++)
#pragma unroll
                for (int e = 0; e < GPU_RUN; e++)
                    x = fmaxf(x, s[i][n][GPU_RUN * r + e]);
            most[i][r] = gpu_row_max(x);
            if (KEY_WAVES > 1 && gpu_run_col(lane) == 0)
                m.most[(query0 + 16 * i + gpu_run_row(lane) + 8 * r) * COL_WAVES + col] =
                    most[i][r];
        }
    if (KEY_WAVES == 1)
        return;
    if (TOGETHER)
        gpu_pair_sync(group);
    else
        gpu_group_sync(group);
#pragma unroll
    for (int i = 0; i < OWN_16; i++)
#pragma unroll
        for (int r = 0; r < GPU_LINES; r++) {
            const float *of = m.most + (query0 + 16 * i + gpu_run_row(lane) + 8 * r) * COL_WAVES;
#pragma unroll
            for (int c = 0; c < COL_WAVES; c++)
                most[i][r] = fmaxf(most[i][r], of[c]);
        }
}

/* The running maximum moves; what was summed below the old one is rescaled. Weights are left where
 * the product takes them from: p, or shared memory. */
static __device__ __forceinline__ void
soften(const struct sv_attn_args &a, const float (&s)[OWN_KEYS / GPU_COLS][4],
       const float (&most)[GPU_LINES], uint32_t (&p)[OWN_KEYS / 16][PAIRS_16], struct sum<COLS> &c,
       float (&l)[4], uint32_t weights, uint32_t query0, uint32_t key0)
{
    const int lane = gpu_lane();
    float at[GPU_LINES], alpha[GPU_LINES];
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        const float m = fmaxf(c.m[r], __fmul_rn(most[r], a.scale_log2));
        at[r] = m == attn_neg_inf() ? 0.0f : m;
        alpha[r] = gpu_exp2(c.m[r] - at[r]);
        c.m[r] = m;
    }
#pragma unroll
    for (int n = 0; n < OWN_KEYS / GPU_COLS; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float from = -at[e / GPU_RUN],
                        w0 = gpu_exp2(__fmaf_rn(s[n][e], a.scale_log2, from)),
                        w1 = gpu_exp2(__fmaf_rn(s[n][e + 1], a.scale_log2, from));
            const uint32_t two = attn_pack(w0, w1),
                           col = key0 + n * GPU_COLS + gpu_run_col(lane) + e % GPU_RUN;
            if (KEY_WAVES > 1)
                gpu_store4(weights +
                               place(query0 + gpu_run_row(lane) + 8 * (e / GPU_RUN), col / 8) +
                               col % 8 * 2,
                           two);
            else
                p[n / FOURS_16][n % FOURS_16 * 2 + e / 2] = two;
        }
    sum_rescale(c, l, alpha);
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

/* ---------------------------------------------------------------- the kernel */

/* What a wave knows of its queries: what each of a lane's sees, what any sees, what all see. */
struct wave_rows {
    struct lane_rows lane[OWN_16];
    int32_t q0, lo_any, hi_any, lo_all, hi_all;
    bool busy;
};

/* Lanes beyond the last query double it: they take part and write nothing. */
static __device__ __forceinline__ void rows_of(struct wave_rows &w, const struct sv_attn_args &a,
                                               const struct attn_item &it, int32_t q0)
{
    const int lane = gpu_lane();
    w.q0 = q0;
    /* What it skips, all waves must where they work on a tile together. */
    const int32_t first = TOGETHER ? it.q0 : q0, n = TOGETHER ? (int32_t)QUERIES : (int32_t)OWN;
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
static __device__ __forceinline__ void hide(float (&s)[OWN_KEYS / GPU_COLS][4],
                                            const struct lane_rows &rows, int32_t pos)
{
#pragma unroll
    for (int n = 0; n < OWN_KEYS / GPU_COLS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int32_t at = pos + n * GPU_COLS + e % GPU_RUN;
            if (at < rows.lo[e / GPU_RUN] || at >= rows.hi[e / GPU_RUN])
                s[n][e] = attn_neg_inf();
        }
}

/* The block's queries to where scores take them from. */
static __device__ __forceinline__ void fetch_queries(const struct sv_attn_args &a,
                                                     const struct attn_item &it,
                                                     const struct room &m, struct fragments &f,
                                                     int32_t query0)
{
    if constexpr (KEY_WAVES > 1) {
        load_queries(a, it, m.queries, 0, QUERIES);
    } else { /* by way of the first stage, which holds as many as keys */
        const int lane = gpu_lane();
#pragma unroll 1
        for (int32_t from = 0; from < QUERIES; from += KEYS) {
            load_queries(a, it, m.keys, from, KEYS);
            gpu_copy_wait<0>(0, 0);
            __syncthreads();
            if (query0 >= from && query0 < from + KEYS)
#pragma unroll
                for (int k = 0; k < WIDE / GPU_K; k++)
                    gpu_load_a(f.q[k], m.keys + k / STEPS * KEY_PART +
                                           place(query0 - from + (lane & 15),
                                                 GPU_K / 8 * (k % STEPS) + (lane >> 4)));
            __syncthreads();
        }
    }
}

/* What a key is found by: of e4m3 its row. */
template <bool F8>
static __device__ __forceinline__ uint32_t tile_key(const struct sv_attn_args &a,
                                                    const struct attn_item &it, int32_t pos)
{
    return F8 ? attn_key_row(a, it, pos) : attn_key_at(a, it, pos);
}

template <bool F8>
static __device__ __forceinline__ void walk(const struct sv_attn_args &a,
                                            const struct attn_item &it, const struct room &m,
                                            float4 *run, bool whole)
{
    constexpr int TILES_PER_SPAN = SV_ATTN_SPAN / KEYS;
    const int lane = gpu_lane(), wave = gpu_wave(),
              group = TOGETHER ? wave % ROW_WAVES : wave / COL_WAVES,
              col = TOGETHER ? wave / ROW_WAVES : wave % COL_WAVES;
    const uint32_t query0 = group * OWN, key0 = KEY_WAVES > 1 ? col * OWN_KEYS : 0;
    struct wave_rows rows;
    struct fragments f;
    rows_of(rows, a, it, it.q0 + (int32_t)query0);

    __syncthreads(); /* the item before is done with shared memory */
    for (int32_t j = threadIdx.x; j < a.n_stages * KEYS; j += THREADS)
        m.offsets[j] = tile_key<F8>(a, it, it.from * KEYS + j);
    fetch_queries(a, it, m, f, (int32_t)query0);
    __syncthreads();
    load_tile<F8>(a, m.keys, m.offsets);
    gpu_copy_commit();

    struct sum<COLS> span[OWN_16];
    float l[OWN_16][4];
    bool has_run = false;
#pragma unroll
    for (int i = 0; i < OWN_16; i++) {
        sum_clear(span[i]);
#pragma unroll
        for (int e = 0; e < 4; e++)
            l[i][e] = 0;
    }
#pragma unroll 1
    for (int32_t t = it.from; t < it.to; t++) {
        const int32_t ahead = t - it.from + a.n_stages;
        const uint32_t keys = m.keys + (a.n_stages == 2 ? (t - it.from) % 2 * STAGE : 0);
        if (a.n_stages == 1 && t > it.from) {
            __syncthreads(); /* the tile before is read to the end */
            load_tile<F8>(a, m.keys, m.offsets + (ahead - 1) % N_OFFSETS * KEYS);
            gpu_copy_commit();
        }
        gpu_copy_wait<0>(0, 0);
        copied();
        __syncthreads(); /* tile t is there for all, and tile t - 1 is not read any more */
        if (a.n_stages == 2 && t + 1 < it.to)
            load_tile<F8>(a, m.keys + (ahead - 1) % 2 * STAGE,
                          m.offsets + (ahead - 1) % N_OFFSETS * KEYS);
        gpu_copy_commit();
        if (threadIdx.x < KEYS && t + a.n_stages < it.to)
            m.offsets[ahead % N_OFFSETS * KEYS + threadIdx.x] =
                tile_key<F8>(a, it, (t + a.n_stages) * KEYS + (int32_t)threadIdx.x);

        const int32_t pos = t * KEYS;
        if (rows.busy && pos < rows.hi_any && pos + KEYS > rows.lo_any) {
            float s[OWN_16][OWN_KEYS / GPU_COLS][4], most[OWN_16][GPU_LINES];
            uint32_t p[OWN_16][OWN_KEYS / 16][PAIRS_16];
            scores(s, f, m, keys, query0, key0);
            if (pos < rows.lo_all || pos + KEYS > rows.hi_all)
#pragma unroll
                for (int i = 0; i < OWN_16; i++)
                    hide(s[i], rows.lane[i], pos + (int32_t)key0 + gpu_run_col(lane));
            find_most(most, s, m, group, col, query0);
#pragma unroll
            for (int i = 0; i < OWN_16; i++)
                soften(a, s[i], most[i], p[i], span[i], l[i], m.weights, query0 + 16 * i, key0);
            if (TOGETHER)
                __syncthreads();
            else if (KEY_WAVES > 1)
                gpu_group_sync(group);
            values(span, l, p, m.weights, keys, query0, col * COLS);
        }
        if (t % TILES_PER_SPAN == TILES_PER_SPAN - 1 || t == it.to - 1) {
            float4 *const to = run + gpu_afresh(0);
#pragma unroll
            for (int i = 0; i < OWN_16; i++) {
#pragma unroll
                for (int r = 0; r < GPU_LINES; r++)
                    span[i].l[r] = l[i][GPU_RUN * r];
                if (has_run)
                    run_merge<COLS, THREADS>(to + i * RUN * THREADS, span[i]);
                if (whole && t != it.to - 1) {
                    run_store<COLS, THREADS>(to + i * RUN * THREADS, span[i]);
                    sum_clear(span[i]);
                    l[i][0] = l[i][1] = l[i][2] = l[i][3] = 0;
                }
            }
            has_run = whole;
        }
    }
#pragma unroll
    for (int i = 0; i < OWN_16; i++) {
        if (whole)
            write_rows(gpu_args(a), it, rows.q0 + 16 * i, span[i], col * COLS);
        else
            write_parts(gpu_args(a), it, rows.q0 + 16 * i, span[i], col * COLS);
    }
}

template <bool F8> static __device__ __forceinline__ void attn_latents(const struct sv_attn_args &a)
{
    GPU_SHARED(shared);
    struct room m;
    uint8_t *at = shared + a.n_stages * STAGE;
    m.keys = gpu_shared_at(shared);
    m.queries = gpu_shared_at(at);
    m.weights = m.queries + SHARED_QUERIES;
    m.most = (float *)(at + SHARED_QUERIES + SHARED_WEIGHTS);
    m.offsets = (uint32_t *)(at + SHARED_QUERIES + SHARED_WEIGHTS + SHARED_MOST);
    float4 *const run = a.run + (size_t)blockIdx.x * OWN_16 * RUN * THREADS + threadIdx.x;

    sv_pdl_wait();
    sv_pdl_launch();
    const int32_t n_items = __ldcg(&a.plan->n_items);
    const bool whole = __ldcg(&a.plan->unit) == SV_ATTN_WHOLE;
#pragma unroll 1
    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_item_of(gpu_args(a), attn_entry_at(a.plan, i), 0);
        if (it.from != it.to)
            walk<F8>(gpu_args(a), it, m, run, whole);
    }
}

static inline struct sv_attn_launch attn_latent_launch(void (*kernel)(struct sv_attn_args))
{
    static_assert(OWN_16 * RUN * THREADS <= 2 * 8 * GPU_WAVE * (128 / GPU_COLS + 1),
                  "what attention.cu sets aside");
    struct sv_attn_launch k = {};
    k.kernel = kernel;
    k.tile_rows = QUERIES;
    k.n_threads = THREADS;
    k.blocks_per_sm = 1;
    k.stage_bytes = STAGE;
    k.fixed_bytes = FIXED;
    k.max_stages = MOST_STAGES;
    return k;
}

#endif
