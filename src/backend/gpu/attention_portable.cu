/*
 * attention_portable.cu - paged attention on the matrix instructions that all cards of a vendor
 * have (gpu.h). Head sizes 64, 128 and, where shared memory has room, 256.
 *
 * Launched by attention.cu. A block holds 16 queries in each of its waves and walks over tiles of
 * keys, which lie in shared memory in a ring of stages; the next tiles are on their way meanwhile.
 * Queries are (row, head of the group) pairs of one segment and kv head, so that keys are read once
 * for all of them. Every wave adds for its own queries in the order that attention.h fixes; a wave
 * skips tiles that none of its queries sees, which leaves the same bits as adding nothing. With
 * heads of 256 two waves have the same queries, whose sums one could not hold: both have all
 * scores, and each the sums of half of the values' columns; queries stay in shared memory then.
 * Of a cache in e4m3 the ring holds codes, and one tile beside it their values, which are made when
 * the tile is due: all else is the same. Must not: let a query's sum depend on its place in the
 * tile, on the other queries or on which block works on which keys.
 */
#include "backend/gpu/attention_frag.cuh"
#include "backend/gpu/kv_f8.cuh"

enum {
    MOST_STAGES = 5,
    N_OFFSETS = 8, /* tiles whose addresses are kept; a power of two above the stages */
    MOST_WARPS = SV_ATTN_TILE / 8, /* their queries fit into a stage */
    FOURS_16 = 16 / GPU_COLS,      /* of 16 keys or values */
    PAIRS_16 = 2 * FOURS_16
};

/* How heads of HD numbers are divided among a block's waves. */
template <int HD, int WARPS> struct layout {
    enum {
        COLS = HD > 128 ? 128 : HD, /* of values, whose sums a wave has */
        PARTS = HD / COLS,          /* waves with the same queries */
        GROUPS = WARPS / PARTS,
        ROWS = GROUPS * 16, /* queries of a block */
        KEPT = PARTS > 1,   /* queries are read from shared memory for every tile */
        QUERY_BYTES = KEPT ? ROWS * HD * 2 : 0
    };
};

/* Shared memory of keys and values: a stage of the ring, and of codes the tile of their values and
 * the scales of N_OFFSETS tiles. */
template <int HD, bool F8> struct cached {
    enum {
        TILE_BYTES = SV_ATTN_TILE * HD * 2,
        RAW_BYTES = F8 ? TILE_BYTES / 2 : TILE_BYTES,
        STAGE_BYTES = 2 * RAW_BYTES,
        VALUE_BYTES = F8 ? 2 * TILE_BYTES : 0,
        SCALE_BYTES = F8 ? N_OFFSETS * SV_ATTN_TILE * 2 : 0,
        LINE = F8 && HD < 128 ? 128
               : F8           ? HD
                              : 2 * HD, /* a row, or two rows of codes */
        LINE_KEYS = F8 ? LINE / HD : 1
    };
};

/* ---------------------------------------------------------------- loads */

/* The tile's keys, zeros for those that no query sees; SOME: of an item's first tiles those from
 * `from` to `to` - 1 alone. */
template <int HD, int WARPS, bool F8, bool SOME>
static __device__ __forceinline__ void load_tile(const struct sv_attn_args &a, uint32_t stage,
                                                 const uint32_t *offsets, int32_t from = 0,
                                                 int32_t to = SV_ATTN_TILE)
{
    typedef cached<HD, F8> c;
    constexpr int EACH = GPU_WAVE * 16 / c::LINE, LINES = WARPS * EACH,
                  ALL = SV_ATTN_TILE / c::LINE_KEYS;
    const uint4 *k = (const uint4 *)a.p.kv.k, *v = (const uint4 *)a.p.kv.v;
    const uint32_t line0 = gpu_wave() * EACH;
    constexpr int32_t N = (ALL + LINES - 1) / LINES;
    /* A short launch consists of instructions: none for keys that are not asked for. */
    constexpr bool FEWER = SOME && !F8;
    constexpr int UNROLL = FEWER ? 1 : 2;
    const int32_t begin = FEWER ? max(from / LINES, 0) : 0,
                  end = FEWER ? min((to + LINES - 1) / LINES, N) : N;
#pragma unroll UNROLL
    for (int32_t i = begin; i < end; i++)
        gpu_copy_rows_two<c::LINE>(
            stage, c::RAW_BYTES, line0 + i * LINES,
            [&](uint32_t line, uint32_t chunk) {
                const uint32_t row = F8 ? line * c::LINE_KEYS + chunk / (HD / 16) : line;
                if ((int32_t)row < from || (int32_t)row >= to)
                    return gpu_index{0, false, true};
                const uint32_t off = offsets[row];
                const bool seen = off != ATTN_NONE;
                const uint64_t at =
                    F8 ? (uint64_t)off * (HD / 16) + chunk % (HD / 16) : (uint64_t)off + chunk;
                return gpu_index{seen ? at : 0, seen, false};
            },
            k, v);
}

/* Lines that each wave copies for a tile, at least. */
template <int HD, int WARPS, bool F8>
static __device__ __forceinline__ constexpr int tile_lines(void)
{
    return 2 * (SV_ATTN_TILE * (HD / (F8 ? 16 : 8)) / (WARPS * GPU_WAVE));
}

/* What the ring's tiles are found by: of e4m3 a row, whose scales are elsewhere. */
template <bool F8>
static __device__ __forceinline__ uint32_t tile_key(const struct sv_attn_args &a,
                                                    const struct attn_item &it, int32_t pos)
{
    return F8 ? attn_key_row(a, it, pos) : attn_key_at(a, it, pos);
}

/* The values of a stage's codes, to the places where a stage of bf16 has them. */
template <int HD, int WARPS>
static __device__ __forceinline__ void expand_tile(const struct sv_attn_args &a, uint32_t stage,
                                                   uint32_t to, const uint16_t *scales)
{
    typedef cached<HD, true> c;
    constexpr int CHUNKS = HD / 16, ALL = SV_ATTN_TILE * CHUNKS;
#pragma unroll 1
    for (int32_t i = threadIdx.x; i < 2 * ALL; i += WARPS * GPU_WAVE) {
        const bool values = i >= ALL;
        const uint32_t at_i = values ? i - ALL : i, row = at_i / CHUNKS, chunk = at_i % CHUNKS,
                       line = row / c::LINE_KEYS, in_line = row % c::LINE_KEYS * CHUNKS + chunk;
        const uint4 codes =
            gpu_load16(stage + (values ? c::RAW_BYTES : 0) + gpu_place<c::LINE>(line, in_line));
        uint4 v[2];
        sv_kv_f8_expand(codes, values ? scales[row] >> 8 : scales[row] & 0xff,
                        values ? a.p.kv.v_scale : a.p.kv.k_scale, v);
        /* Of eight lanes no two meet at a bank. */
        const uint32_t odd = chunk / 4 % 2, tile = to + (values ? c::TILE_BYTES : 0);
        gpu_store16(tile + at<HD>(row, 2 * chunk + odd), odd ? v[1] : v[0]);
        gpu_store16(tile + at<HD>(row, 2 * chunk + 1 - odd), odd ? v[0] : v[1]);
    }
}

/* real: otherwise nothing is read, and zeros are put in the place of 16. */
template <int HD, int WARPS>
static __device__ __forceinline__ void
load_queries(const struct sv_attn_args &a, const struct attn_item &it, uint32_t to, bool real)
{
    constexpr int EACH = GPU_WAVE * 8 / HD, ROWS = layout<HD, WARPS>::ROWS;
    const int32_t left = it.n_q - it.q0, all = left < ROWS ? (left + 15) / 16 * 16 : ROWS,
                  n = real ? all : 16;
#pragma unroll 1
    for (int32_t row0 = gpu_wave() * EACH; row0 < n; row0 += WARPS * EACH)
        gpu_copy_rows<HD * 2, true>(to, row0, [&](uint32_t row, uint32_t chunk) {
            const int32_t q = it.q0 + (int32_t)row;
            const bool there = q < it.n_q && real;
            const __nv_bfloat16 *from = (const __nv_bfloat16 *)a.p.q;
            if (there) {
                const int32_t r = attn_div(q, a.by_group),
                              head = it.kv_head * a.group + (q - r * a.group);
                from +=
                    (int64_t)(it.g.row0 + r) * a.p.ldq +
                    (int64_t)head * (layout<HD, WARPS>::KEPT && a.p.q_stride ? a.p.q_stride : HD) +
                    chunk * 8;
            }
            return gpu_source{from, there};
        });
}

/* ---------------------------------------------------------------- one tile of keys */

/* Where product k of a wave's queries lies in shared memory; they begin with row row0. */
template <int HD>
static __device__ __forceinline__ uint32_t query_at(uint32_t queries, uint32_t row0, int k)
{
    const uint32_t lane = gpu_lane();
    return queries + at<HD>(row0 + (lane & 15), GPU_K / 8 * k + (lane >> 4));
}

/* s (16, SV_ATTN_TILE) = q k^T. Queries that are not KEPT in shared memory are in q. */
template <int HD, bool KEPT>
static __device__ __forceinline__ void scores(float (&s)[SCORE_FOURS][4],
                                              const uint32_t (&q)[KEPT ? 1 : HD / GPU_K][4],
                                              uint32_t queries, uint32_t row0, uint32_t keys)
{
    const uint32_t row = gpu_b_row(), chunk = gpu_b_chunk();
#pragma unroll
    for (int n = 0; n < SCORE_FOURS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = 0;
#pragma unroll
    for (int k = 0; k < HD / GPU_K; k++) {
        uint32_t own[4];
        if (KEPT)
            gpu_load_a(own, query_at<HD>(queries, row0, k));
#pragma unroll
        for (int n = 0; n < SV_ATTN_TILE / 16; n++) {
            uint32_t b[4];
            gpu_load_b(b, keys + n * 16 * HD * 2 + at<HD>(row, GPU_K / 8 * k + chunk));
            if constexpr (KEPT)
                gpu_mma(s[n * FOURS_16], own, b);
            else
                gpu_mma(s[n * FOURS_16], q[k], b);
        }
    }
}

/* o += p v, l += p 1: the sum of the same rounded weights, by the same instruction in the same
 * order. Of COLS columns of the values, from col0 on. */
template <int HD, int COLS>
static __device__ __forceinline__ void values(float (&o)[COLS / GPU_COLS][4], float (&l)[4],
                                              const uint32_t (&p)[SV_ATTN_TILE / 16][PAIRS_16],
                                              uint32_t vals, int col0)
{
#pragma unroll
    for (int k = 0; k < SV_ATTN_TILE / 16; k++) {
        gpu_mma_ones(l, p[k]);
#pragma unroll
        for (int n = 0; n < COLS / 16; n++) {
            uint32_t v[PAIRS_16];
            gpu_load_t<HD * 2>(v, vals, k * 16, col0 + n * 16);
            gpu_mma_t(o[n * FOURS_16], p[k], v);
        }
    }
}

/* Weights of a tile from its scores: the running maximum moves, what was summed below the old one
 * is rescaled. `fresh`: the chunk's first tile, sums are still clear. */
template <int HD>
static __device__ __forceinline__ void
soften(const struct sv_attn_args &a, float (&s)[SCORE_FOURS][4],
       uint32_t (&p)[SV_ATTN_TILE / 16][PAIRS_16], struct sum<HD> &c, float (&l)[4], bool fresh)
{
    float most[GPU_LINES], at[GPU_LINES], alpha[GPU_LINES];
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++)
        most[r] = attn_neg_inf();
#pragma unroll
    for (int n = 0; n < SCORE_FOURS; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            most[e / GPU_RUN] = fmaxf(most[e / GPU_RUN], s[n][e]);
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        most[r] = gpu_row_max(most[r]);
        const float m = fmaxf(c.m[r], __fmul_rn(most[r], a.scale_log2));
        at[r] = m == attn_neg_inf() ? 0.0f : m;
        alpha[r] = gpu_exp2(c.m[r] - at[r]);
        c.m[r] = m;
    }
#pragma unroll
    for (int n = 0; n < SCORE_FOURS; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const float from = -at[e / GPU_RUN],
                        w0 = gpu_exp2(__fmaf_rn(s[n][e], a.scale_log2, from)),
                        w1 = gpu_exp2(__fmaf_rn(s[n][e + 1], a.scale_log2, from));
            p[n / FOURS_16][n % FOURS_16 * 2 + e / 2] = attn_pack(w0, w1);
        }
    if (!fresh)
        sum_rescale(c, l, alpha);
}

/* ---------------------------------------------------------------- the kernel */

/* Everything before this launch is done; what it wrote may be read, and what it reads be
 * written. */
static __device__ __forceinline__ void settle(const struct sv_attn_args &a,
                                              const struct attn_items *plan)
{
    sv_pdl_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *a.plan_unit = plan->unit;
}

/* An item's first tiles and its queries. Unless the launch before has been waited for, keys of
 * earlier positions are on their way while it may still write the segment's own, which the same
 * instructions load afterwards, and the queries. */
template <int HD, int WARPS, bool F8>
static __device__ __forceinline__ void
load_first(const struct sv_attn_args &a, const struct attn_items *plan, const struct attn_item &it,
           uint32_t ring, const uint32_t *offsets, uint16_t *scales, uint32_t queries, bool waited)
{
    typedef layout<HD, WARPS> lay;
    constexpr int STAGE_BYTES = cached<HD, F8>::STAGE_BYTES,
                  TILE_BYTES = cached<HD, F8>::TILE_BYTES;
    const int32_t first = it.from * SV_ATTN_TILE;
    const int32_t old = waited ? 1 << 30 : max(it.g.base - first, 0);
#pragma unroll 1
    for (int32_t part = waited ? 1 : 0; part < 2; part++) {
        if (part && !waited)
            settle(a, plan);
        for (int32_t j = 0; j < a.n_stages - 1 && it.from + j < it.to; j++) {
            const int32_t edge = old - j * SV_ATTN_TILE;
            load_tile<HD, WARPS, F8, true>(
                a, ring + j * STAGE_BYTES, offsets + j * SV_ATTN_TILE, part && !waited ? edge : 0,
                part ? (int32_t)SV_ATTN_TILE : min(edge, (int32_t)SV_ATTN_TILE));
        }
        /* The zeros go behind all queries: copies on their way have no order. */
        if (part || (lay::ROWS <= SV_ATTN_TILE && !lay::KEPT))
            load_queries<HD, WARPS>(a, it, queries + (part ? 0 : TILE_BYTES), part);
    }
    for (int32_t j = 0; j < a.n_stages - 1; j++)
        gpu_copy_commit(); /* all is in the first group */
    for (int32_t j = threadIdx.x; F8 && j < (a.n_stages - 1) * SV_ATTN_TILE; j += WARPS * GPU_WAVE)
        scales[j] = sv_kv_f8_scales(a.p.kv, offsets[j]);
}

/* Lanes beyond the last query double it: they take part and write nothing. */
static __device__ __forceinline__ struct lane_rows
rows_of(const struct sv_attn_args &a, const struct attn_item &it, int32_t q_warp, int lane)
{
    struct lane_rows rows;
#pragma unroll
    for (int r = 0; r < GPU_LINES; r++) {
        const int32_t q = q_warp + gpu_run_row(lane) + 8 * r,
                      row = attn_div(q < it.n_q ? q : it.n_q - 1, a.by_group),
                      pos = attn_pos(a.p, it.g, row);
        rows.lo[r] = attn_lo(a.p, pos);
        rows.hi[r] = attn_hi(a.p, pos, it.g.end);
    }
    return rows;
}

/* Shared memory: queries that are kept, the values of codes, the ring (keys, values of each stage),
 * addresses of N_OFFSETS tiles, the scales of codes, the plan. Other queries pass through the
 * values of codes or through the ring's last stage on their way to registers. */
template <int HD, int WARPS, bool F8>
__global__ void __launch_bounds__(WARPS *GPU_WAVE, WARPS == 4 ? GPU_BLOCKS : 1)
    attn_portable(struct sv_attn_args args)
{
    typedef cached<HD, F8> c;
    constexpr int TILE_BYTES = c::TILE_BYTES, STAGE_BYTES = c::STAGE_BYTES;
    constexpr int TILES_PER_CHUNK = SV_ATTN_CHUNK / SV_ATTN_TILE;
    constexpr int TILES_PER_SPAN = SV_ATTN_SPAN / SV_ATTN_TILE;
    typedef layout<HD, WARPS> lay;
    constexpr int COLS = lay::COLS;
    GPU_SHARED(shared);
    constexpr int BEFORE = lay::QUERY_BYTES + c::VALUE_BYTES;
    uint32_t *const offsets = (uint32_t *)(shared + BEFORE + args.n_stages * STAGE_BYTES);
    uint16_t *const scales = (uint16_t *)(offsets + N_OFFSETS * SV_ATTN_TILE);
    struct attn_items *const plan = (struct attn_items *)((uint8_t *)scales + c::SCALE_BYTES);
    const uint32_t ring = gpu_shared_at(shared) + BEFORE, values_at = ring - c::VALUE_BYTES,
                   passing = F8 ? values_at : ring + (args.n_stages - 1) * STAGE_BYTES;
    constexpr int THREADS = WARPS * GPU_WAVE;
    const uint32_t lane = gpu_lane(), warp = gpu_wave(), group = warp % lay::GROUPS,
                   queries = lay::KEPT ? gpu_shared_at(shared) : passing;
    const int32_t part_of = (int32_t)warp / lay::GROUPS, col0 = part_of * COLS;
    float4 *const run =
        args.run + (size_t)blockIdx.x * (COLS / GPU_COLS + 1) * THREADS + threadIdx.x;

    if (!args.early)
        sv_pdl_wait();
    sv_pdl_launch(); /* not before, unless segments are settled: see attn_combine */
    if (threadIdx.x < 32)
        attn_plan_items(args, lay::ROWS, plan);
    __syncthreads();
    const int32_t n_items = plan->n_items * args.p.kv.n_kv_heads;
    const bool whole = plan->unit == SV_ATTN_WHOLE;
    bool waited = false;
    /* One block that waits keeps the launch from ending before those it follows. */
    if (blockIdx.x > 0 && (int32_t)blockIdx.x >= n_items)
        return;

    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const struct sv_attn_args &a = gpu_args(args);
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_item_at(a, plan, lay::ROWS, i);
        if (it.from == it.to)
            continue;
        const int32_t q_warp = it.q0 + 16 * (int32_t)group;
        __syncthreads(); /* the item before is done with shared memory */
        for (int32_t j = threadIdx.x; j < a.n_stages * SV_ATTN_TILE; j += THREADS)
            offsets[j] = tile_key<F8>(a, it, it.from * SV_ATTN_TILE + j);
        __syncthreads();
        load_first<HD, WARPS, F8>(a, plan, it, ring, offsets, scales, queries, waited);
        waited = true;
        /* Positions are read while the first tiles are on their way. */
        const struct lane_rows rows = rows_of(a, it, q_warp, (int)lane);
        /* What any of the warp's queries sees, and what all see. */
        const bool busy = q_warp < it.n_q;
        const int32_t q_last = q_warp + 15 < it.n_q ? q_warp + 15 : it.n_q - 1;
        const int32_t pos_first = attn_pos(a.p, it.g, busy ? attn_div(q_warp, a.by_group) : 0);
        const int32_t pos_last = attn_pos(a.p, it.g, attn_div(q_last, a.by_group));
        const int32_t lo_any = attn_lo(a.p, pos_first), lo_all = attn_lo(a.p, pos_last);
        const int32_t hi_any = attn_hi(a.p, pos_last, it.g.end),
                      hi_all = attn_hi(a.p, pos_first, it.g.end);
        gpu_copy_wait<MOST_STAGES - 2>(a.n_stages - 2, 0);
        __syncthreads();
        uint32_t qf[lay::KEPT ? 1 : HD / GPU_K][4];
#pragma unroll
        for (int k = 0; k < HD / GPU_K && !lay::KEPT; k++)
            gpu_load_a(qf[k], query_at<HD>(queries, 16 * group, k));
        struct sum<COLS> span, chunk;
        float l[4] = {0, 0, 0, 0};
        bool fresh = true, has_run = false;
        int32_t stage = 0, free_stage = a.n_stages - 1;
        sum_clear(span);
        sum_clear(chunk);
        for (int32_t t = it.from; t < it.to; t++) {
            gpu_copy_wait<MOST_STAGES - 2>(a.n_stages - 2, tile_lines<HD, WARPS, F8>() *
                                                               min(a.n_stages - 2, it.to - 1 - t));
            __syncthreads(); /* tile t is there for all, and tile t - 1 is no longer needed */
            const int32_t ahead = t - it.from + a.n_stages;
            /* Computed again, not kept: on sm_80 no register is left. */
            if (!F8)
                free_stage = stage ? stage - 1 : a.n_stages - 1;
            if (t + a.n_stages - 1 < it.to)
                load_tile<HD, WARPS, F8, false>(gpu_args(a), ring + free_stage * STAGE_BYTES,
                                                offsets + (ahead - 1) % N_OFFSETS * SV_ATTN_TILE);
            gpu_copy_commit();
            uint32_t offset = ATTN_NONE;
            uint16_t scale = KV_F8_ONE;
            if (threadIdx.x < SV_ATTN_TILE && t + a.n_stages < it.to)
                offset =
                    tile_key<F8>(gpu_args(a), it, (t + a.n_stages) * SV_ATTN_TILE + threadIdx.x);
            if (F8 && threadIdx.x < SV_ATTN_TILE && t + a.n_stages - 1 < it.to)
                scale =
                    sv_kv_f8_scales(gpu_args(a).p.kv,
                                    offsets[(ahead - 1) % N_OFFSETS * SV_ATTN_TILE + threadIdx.x]);
            if constexpr (F8) {
                expand_tile<HD, WARPS>(gpu_args(a), ring + stage * STAGE_BYTES, values_at,
                                       scales + (t - it.from) % N_OFFSETS * SV_ATTN_TILE);
                __syncthreads();
            }

            const int32_t pos = t * SV_ATTN_TILE;
            if (busy && pos < hi_any && pos + SV_ATTN_TILE > lo_any) {
                float s[SCORE_FOURS][4];
                uint32_t p[SV_ATTN_TILE / 16][PAIRS_16];
                const uint32_t keys = F8 ? values_at : ring + stage * STAGE_BYTES;
                scores<HD, lay::KEPT>(s, qf, queries, 16 * group, keys);
                if (a.p.softcap > 0)
                    cap_scores(a, s);
                if (pos < lo_all || pos + SV_ATTN_TILE > hi_all)
                    mask_scores(s, rows, pos + gpu_run_col((int)lane));
                soften<COLS>(a, s, p, chunk, l, fresh);
                values<HD, COLS>(chunk.o, l, p, keys + TILE_BYTES, col0);
                fresh = false;
            }
            if (!fresh && (t % TILES_PER_CHUNK == TILES_PER_CHUNK - 1 || t == it.to - 1)) {
#pragma unroll
                for (int r = 0; r < GPU_LINES; r++)
                    chunk.l[r] = l[GPU_RUN * r];
                sum_merge(span, chunk);
                sum_clear(chunk);
                l[0] = l[1] = l[2] = l[3] = 0;
                fresh = true;
            }
            if (whole && t % TILES_PER_SPAN == TILES_PER_SPAN - 1 && t != it.to - 1) {
                if (has_run)
                    run_merge<COLS, THREADS>(run, span);
                run_store<COLS, THREADS>(run, span);
                sum_clear(span);
                has_run = true;
            }
            if (threadIdx.x < SV_ATTN_TILE)
                offsets[ahead % N_OFFSETS * SV_ATTN_TILE + threadIdx.x] = offset;
            if (F8 && threadIdx.x < SV_ATTN_TILE)
                scales[(ahead - 1) % N_OFFSETS * SV_ATTN_TILE + threadIdx.x] = scale;
            free_stage = stage;
            stage = stage + 1 == a.n_stages ? 0 : stage + 1;
        }
        gpu_copy_wait<0>(0, 0);
        if (has_run)
            run_merge<COLS, THREADS>(run, span);
        if (whole) {
            __syncthreads(); /* the ring is read to the end: results pass through it */
            if (busy)
                write_rows<COLS, HD>(a, it, q_warp, span, ring + warp * 16 * COLS * 2, lane, col0);
        } else if (busy) {
            write_parts<COLS, lay::PARTS>(a, it, q_warp, span, lane, part_of);
        }
    }
    if (!waited)
        settle(args, plan);
}

template <int HD, int WARPS, bool F8> static void describe(struct sv_attn_launch *out)
{
    typedef cached<HD, F8> c;
    *out = (struct sv_attn_launch){
        .kernel = attn_portable<HD, WARPS, F8>,
        .tile_rows = layout<HD, WARPS>::ROWS,
        .n_threads = WARPS * GPU_WAVE,
        .blocks_per_sm = WARPS == 4 ? GPU_BLOCKS : 1,
        .stage_bytes = c::STAGE_BYTES,
        .fixed_bytes = layout<HD, WARPS>::QUERY_BYTES + c::VALUE_BYTES + c::SCALE_BYTES +
                       N_OFFSETS * SV_ATTN_TILE * (int32_t)sizeof(uint32_t),
        .max_stages = MOST_STAGES,
        .run_bytes = 0,
        .parts = layout<HD, WARPS>::PARTS,
        .maps = false};
}

template <bool F8>
static bool describe_by_size(int32_t head_dim, int32_t n_warps, struct sv_attn_launch *out)
{
    if (head_dim == 256) { /* a stage of keys and values alone is 64 KiB */
        describe<GPU_SMALL_SHARED ? 64 : 256, GPU_SMALL_SHARED ? 4 : 8, F8>(out);
        return !GPU_SMALL_SHARED;
    }
    if (head_dim == 128)
        n_warps == 4 ? describe<128, 4, F8>(out) : describe<128, MOST_WARPS, F8>(out);
    else if (head_dim == 64)
        n_warps == 4 ? describe<64, 4, F8>(out) : describe<64, MOST_WARPS, F8>(out);
    else
        return false;
    return true;
}

bool sv_cuda_attn_portable(int32_t head_dim, int32_t n_warps, bool f8, struct sv_attn_launch *out)
{
    return f8 ? describe_by_size<true>(head_dim, n_warps, out)
              : describe_by_size<false>(head_dim, n_warps, out);
}
