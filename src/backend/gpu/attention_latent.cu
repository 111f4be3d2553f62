/*
 * attention_latent.cu - attention over latents on the matrix instructions that all cards of a
 * vendor have (gpu.h).
 *
 * Launched by attention.cu. A tile of keys lies in shared memory once for both products, as nine
 * parts of 64 columns. Sums of 64 queries fill half of a multiprocessor's registers: where shared
 * memory holds queries too, COL_WAVES waves share queries: each has the scores of its part of the
 * keys and the sums of its part of the columns, and weights pass through shared memory. Elsewhere
 * (KEY_WAVES 1) a wave has 16 queries in registers and the scores of all keys, which the other wave
 * of these queries has as well. Keys are added with one running maximum within a span, spans are
 * merged in ascending order. Of a cache in e4m3 a tile's values are made as it is loaded: all else
 * is the same. Must not: let a sum's order depend on anything but the place of a key or column, or
 * on which block works on which spans.
 */
#include "backend/gpu/gpu.h"

/* Where 64 KiB of shared memory do not hold queries beside keys, a wave has 16 in registers. Two
 * waves have the same: the sums of 512 columns and 16 queries beside are too many registers. */
enum {
    COL_WAVES = GPU_SMALL_SHARED ? 2 : 4,
    KEY_WAVES = GPU_SMALL_SHARED ? 1 : 4,
    ROW_WAVES = GPU_SMALL_SHARED ? 4 : 2
};

#include "backend/gpu/attention_latent.cuh"

enum {
    OWN_KEYS = KEYS / KEY_WAVES, /* keys of a wave's scores */
    FOURS_16 = 16 / GPU_COLS,
    PAIRS_16 = 2 * FOURS_16,
    STEPS = 64 / GPU_K, /* of a part's columns */
    MOST_STAGES = 2,
    N_OFFSETS = 4, /* tiles whose addresses are kept; a power of two above the stages */
    /* Beside the stages: queries, weights and maxima where waves share scores; addresses. */
    SHARED_QUERIES = KEY_WAVES > 1 ? PARTS *QUERY_PART : 0,
    SHARED_WEIGHTS = KEY_WAVES > 1 ? QUERIES *KEYS * 2 : 0,
    SHARED_MOST = KEY_WAVES > 1 ? QUERIES *COL_WAVES *(int)sizeof(float) : 0,
    FIXED = SHARED_QUERIES + SHARED_WEIGHTS + SHARED_MOST + N_OFFSETS * KEYS * 4
};
static_assert(KEY_WAVES == 1 || KEYS * 2 == 128, "a row of weights is a row of 128 bytes");
static_assert(KEY_WAVES == 1 || KEY_WAVES * GPU_WAVE == 128, "a group of gpu_group_sync");

/* Shared memory of a block. */
struct room {
    uint32_t keys, queries, weights;
    float *most; /* (QUERIES, COL_WAVES) */
    uint32_t *offsets;
};

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

/* ---------------------------------------------------------------- one tile of keys */

struct fragments {
    uint32_t q[KEY_WAVES == 1 ? WIDE / GPU_K : 1][4]; /* where shared memory holds none */
};

/* s (OWN, OWN_KEYS) = q k^T, keys from key0 on. */
static __device__ __forceinline__ void scores(float (&s)[OWN_16][OWN_KEYS / GPU_COLS][4],
                                              const struct fragments &f, const struct room &m,
                                              uint32_t keys, uint32_t query0, uint32_t key0)
{
    const uint32_t row = gpu_b_row(), chunk = gpu_b_chunk(), lane = gpu_lane();
#pragma unroll
    for (int i = 0; i < OWN_16; i++)
#pragma unroll
        for (int n = 0; n < OWN_KEYS / GPU_COLS; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[i][n][e] = 0;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (KEY_WAVES == 1)
            gpu_wave_sync(); /* or the compiler loads more than there are registers for */
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t b[OWN_KEYS / 16][4], q[OWN_16][4];
#pragma unroll
            for (int n = 0; n < OWN_KEYS / 16; n++)
                gpu_load_b(b[n], keys + part * KEY_PART +
                                     place(key0 + 16 * n + row, GPU_K / 8 * k + chunk));
#pragma unroll
            for (int i = 0; i < OWN_16; i++) {
                if (KEY_WAVES > 1)
                    gpu_load_a(q[i], m.queries + part * QUERY_PART +
                                         place(query0 + 16 * i + (lane & 15),
                                               GPU_K / 8 * k + (lane >> 4)));
                else
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        q[i][e] = f.q[KEY_WAVES > 1 ? 0 : part * STEPS + k][e];
#pragma unroll
                for (int n = 0; n < OWN_KEYS / 16; n++)
                    gpu_mma(s[i][n * FOURS_16], q[i], b[n]);
            }
        }
    }
}

/* o += p v, l += p 1: columns from col0 on of all keys of the tile. */
static __device__ __forceinline__ void
values(struct sum<COLS> (&c)[OWN_16], float (&l)[OWN_16][4],
       const uint32_t (&own)[OWN_16][OWN_KEYS / 16][PAIRS_16], uint32_t weights, uint32_t keys,
       uint32_t query0, uint32_t col0)
{
    const uint32_t none = gpu_afresh(0);
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t p[OWN_16][PAIRS_16];
#pragma unroll
        for (int i = 0; i < OWN_16; i++) {
            if (KEY_WAVES > 1)
                gpu_load_p<128>(p[i], weights, query0 + 16 * i, 16 * k);
            else
#pragma unroll
                for (int e = 0; e < PAIRS_16; e++)
                    p[i][e] = own[i][KEY_WAVES > 1 ? 0 : k][e];
            gpu_mma_ones(l[i], p[i]);
        }
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) {
            uint32_t v[PAIRS_16];
            if (KEY_WAVES == 1 && n % 4 == 0)
                gpu_wave_sync();
            gpu_load_t<128>(v, keys + (col0 / 64 + n / 4) * KEY_PART, 16 * k + none, n % 4 * 16);
#pragma unroll
            for (int i = 0; i < OWN_16; i++)
                gpu_mma_t(c[i].o[n * FOURS_16], p[i], v);
        }
    }
}

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

/* ---------------------------------------------------------------- the kernel */

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
    const int lane = gpu_lane(), wave = gpu_wave(), group = wave / COL_WAVES,
              col = wave % COL_WAVES;
    const uint32_t query0 = group * OWN, key0 = KEY_WAVES > 1 ? col * OWN_KEYS : 0;
    struct wave_rows rows;
    struct fragments f;
    rows_of(rows, a, it, it.q0 + (int32_t)query0, it.q0 + (int32_t)query0, OWN);

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
            if (KEY_WAVES > 1)
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

template <bool F8>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_latent(const __grid_constant__ struct sv_attn_args a)
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

void sv_cuda_attn_latent(bool f8, struct sv_attn_launch *out)
{
    static_assert(OWN_16 * RUN * THREADS <= 2 * 8 * GPU_WAVE * (128 / GPU_COLS + 1),
                  "what attention.cu sets aside");
    *out = {};
    out->kernel = f8 ? attn_latent<true> : attn_latent<false>;
    out->tile_rows = QUERIES;
    out->n_threads = THREADS;
    out->blocks_per_sm = 1;
    out->stage_bytes = STAGE;
    out->fixed_bytes = FIXED;
    out->max_stages = MOST_STAGES;
}
