/*
 * attention_latent_sm90.cu - attention over latents on the matrix instruction and the copy engine
 * of sm_90a.
 *
 * Launched by attention.cu. Two warpgroups have all 64 queries of a block and half of the columns
 * of their sums each. Tiles of 64 keys alternate between them: of an even tile the first one has
 * the scores and makes weights, of an odd one the second. Weights and the running maximum go to the
 * warp of the other warpgroup that has the same queries, in registers' order by way of shared
 * memory, and both multiply them by their half of the values: while one makes weights, products of
 * the other run. Four warps bring keys to two stages, as four quarters of 128 columns and the
 * rotated part, each with barriers of its own: a quarter of the next tile but one comes as soon as
 * the products of this one are over. Keys are added in ascending order with one running maximum
 * within a span, spans are merged in ascending order. Of a cache in e4m3 the loaders copy codes to
 * half of their quarter and expand them in place. Must not: let a query's sum depend on its place
 * in the tile, on the other queries or on which block works on which spans.
 */
#include "backend/cuda/attention_async.cuh"
#include "backend/cuda/attention_wgmma.cuh"

enum { COL_WAVES = 2, ROW_WAVES = 4 };

#include "backend/gpu/attention_latent.cuh"

enum {
    WORKERS = THREADS,
    LOADERS = 4, /* warps */
    QUARTERS = 4,
    PIECES = QUARTERS + 1, /* of a stage; the last one: rotated keys */
    ROTATED = QUARTERS,
    QUARTER = KEYS * 256,
    WEIGHTS = QUERIES * KEYS * 2,
    TILES_PER_SPAN = SV_ATTN_SPAN / KEYS,
    /* Behind two stages: queries; weights and maxima on their way; barriers; scales of e4m3. */
    QUERIES_AT = 2 * STAGE,
    WEIGHTS_AT = QUERIES_AT + PARTS * QUERY_PART,
    MOST_AT = WEIGHTS_AT + WEIGHTS,
    BARS_AT = MOST_AT + QUERIES * 4,
    SAID_AT = BARS_AT + 2 * PIECES * 16,
    MET_AT = SAID_AT + WAVES * 8,
    SCALES_AT = (MET_AT + 8 + 15) / 16 * 16,
    SIGHT_AT = SCALES_AT + 2 * KEYS * 16, /* what each query sees */
    SHARED = SIGHT_AT + QUERIES * 8
};
static_assert(OWN_16 == 1 && COLS == 256 && QUARTERS * QUARTER + KEY_PART == STAGE &&
                  TILES_PER_SPAN % 2 == 0,
              "widths of the instructions below; the same warpgroup begins each span");

/* Pieces in the order in which they are scored, which is that in which they become free. */
static __device__ __forceinline__ constexpr uint32_t piece_at(int i)
{
    return i == 0 ? ROTATED : i == 1 ? 0 : i == 2 ? 2 : i == 3 ? 1 : 3;
}
/* A piece's "full", of the stage of tiles of this parity; its "free" stands 8 bytes on. */
static __device__ __forceinline__ uint32_t full(uint32_t memory, uint32_t stage, uint32_t piece)
{
    return memory + BARS_AT + (stage * PIECES + piece) * 16;
}
static __device__ __forceinline__ uint32_t free_of(uint32_t memory, uint32_t stage, uint32_t piece)
{
    return full(memory, stage, piece) + 8;
}
/* By the whole warp, whose lanes are all done with what the barrier stands for. */
static __device__ __forceinline__ void arrive(uint32_t bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        bar_arrive(bar);
}

/* Everything before this launch is done. */
static __device__ __forceinline__ void settle(bool &waited)
{
    if (waited)
        return;
    sv_pdl_wait();
    sv_pdl_launch();
    waited = true;
}

/* ---------------------------------------------------------------- the loaders */

/* The page of this lane's box of a tile: its keys from `first` on; -1: none. */
static __device__ __forceinline__ int32_t box_page(const struct sv_attn_args &a,
                                                   const struct attn_item &it, int32_t first)
{
    if ((int32_t)threadIdx.x % 32 * a.box_rows >= KEYS)
        return -1;
    return attn_box_page(a, it, first);
}

/* An item's tiles in boxes of a page and a piece. Each warp asks for some of them, and says of each
 * piece how much it brings, also when that is nothing. used: a bit for each stage, the parity of
 * its rounds. The launch before may still be writing keys of the segment's own rows; those of
 * earlier positions have long been there. */
static __device__ __forceinline__ void load(const struct sv_attn_args &a,
                                            const struct attn_item &it, uint32_t memory,
                                            uint32_t &used, bool &waited)
{
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % LOADERS,
                  at = lane * a.box_rows;
    int32_t page = box_page(a, it, it.from * KEYS + at);
#pragma unroll 1
    for (int32_t t = it.from; t < it.to; t++) {
        const uint32_t stage = t & 1, phase = used >> stage & 1;
        const int32_t now = page, first = t * KEYS + at,
                      row = now * a.p.kv.page_size + (first & (a.p.kv.page_size - 1));
        if (t + 1 < it.to)
            page = box_page(a, it, first + KEYS);
        if ((t + 1) * KEYS > it.g.base)
            settle(waited);
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const uint32_t piece = piece_at(i), bar = full(memory, stage, piece),
                           row_bytes = piece == ROTATED ? 128 : 256;
            const bool brings = now >= 0 && (lane + i) % LOADERS == warp;
            bar_wait(bar + 8, phase ^ 1);
            const uint32_t boxes = (uint32_t)__popc(__ballot_sync(0xffffffffu, brings));
            if (lane == 0)
                bar_expect(bar, boxes * (uint32_t)a.box_rows * row_bytes);
            __syncwarp();
            if (brings)
                attn_box_part(memory + stage * STAGE + piece * QUARTER + (uint32_t)at * row_bytes,
                              piece == ROTATED ? &a.v_map : &a.k_map, (int32_t)piece * 2, row / 8,
                              bar);
        }
        used ^= 1u << stage;
    }
}

/* ---------------------------------------------------------------- the loaders of e4m3 */

enum { MOST_UNDER_WAY = PIECES, OWN_KEYS = KEYS / LOADERS /* of a loader warp */ };

/* A loader's pieces whose copies are under way, the oldest in the lowest four bits: piece, and its
 * stage in the highest of them. */
struct under_way {
    uint32_t pieces;
    int32_t n;
};

/* 128 bytes of a key in a quarter: its first 64 columns, or 1 KiB on the others. */
static __device__ __forceinline__ uint32_t quarter_row(uint32_t quarter, uint32_t key)
{
    return quarter + key / 8 * 2048 + key % 8 * 128;
}

/* The scales of a row of the cache. */
static __device__ __forceinline__ uint4 scales_of(const struct sv_attn_args &a, uint32_t row)
{
    return row == ATTN_NONE ? make_uint4(0, 0, 0, 0)
                            : ((const uint4 *)a.p.kv.k)[(uint64_t)row * F8_CHUNKS + LATENT / 16];
}

/* Codes to the second half of their quarter, where the same keys' values will lie; row: of the key
 * that this lane stands for. */
static __device__ __forceinline__ void start_codes(const struct sv_attn_args &a, uint32_t row,
                                                   uint32_t stage_at, uint32_t piece)
{
    const uint32_t key0 = threadIdx.x / 32 % LOADERS * OWN_KEYS,
                   column = piece == ROTATED ? F8_KEY : piece * 8;
#pragma unroll
    for (uint32_t i = 0; i < OWN_KEYS; i += 4) {
        const uint32_t key = key0 + i, half = piece == ROTATED ? 0 : 1024 + key / 8 * 1024;
        gpu_copy_rows<128, true>(
            stage_at + piece * QUARTER + half, key, [&](uint32_t, uint32_t chunk) {
                const uint32_t from = __shfl_sync(0xffffffffu, row, i + threadIdx.x % 32 / 8);
                const bool seen = from != ATTN_NONE;
                return gpu_source{(const uint4 *)a.p.kv.k +
                                      (seen ? (uint64_t)from * F8_CHUNKS + column + chunk : 0),
                                  seen};
            });
    }
    gpu_copy_commit();
}

/* The oldest piece: its codes are there, and become values. */
static __device__ __forceinline__ void finish_codes(uint32_t memory, struct under_way &w)
{
    const uint32_t chunk = threadIdx.x % 8, piece = w.pieces & 7, stage = w.pieces >> 3 & 1,
                   key0 = threadIdx.x / 32 % LOADERS * OWN_KEYS + threadIdx.x % 32 / 8;
    gpu_copy_wait<MOST_UNDER_WAY - 1>(w.n - 1, 0);
    w.pieces >>= 4;
    w.n--;
    __syncwarp(); /* what the warp has copied is there for all its lanes */
    if (piece != ROTATED) {
        const uint32_t quarter = memory + stage * STAGE + piece * QUARTER,
                       scales = memory + SCALES_AT + stage * KEYS * 16 + piece * 4;
#pragma unroll 1
        for (uint32_t key = key0; key < key0 + OWN_KEYS; key += 4) {
            const uint4 codes =
                gpu_load16(quarter_row(quarter + 1024, key) + (chunk ^ (key & 7)) * 16);
            uint4 v[2];
            __syncwarp(); /* all have read */
            /* A power of two; of no row zero, and so are its codes. */
            sv_kv_f8_expand(codes, gpu_load4(scales + key * 16) >> 23, 0, v);
            /* Of eight lanes no two meet at a bank. */
            const uint32_t odd = chunk / 4, to = quarter_row(quarter + odd * 1024, key),
                           col = chunk % 4 * 2;
            gpu_store16(to + ((col + odd) ^ (key & 7)) * 16, odd ? v[1] : v[0]);
            gpu_store16(to + ((col + 1 - odd) ^ (key & 7)) * 16, odd ? v[0] : v[1]);
        }
    }
    attn_proxy_fence();
    arrive(full(memory, stage, piece));
}

/* Each warp has its keys of every tile. It waits for a free piece only when it has finished what
 * the workers may be waiting for. */
static __device__ __forceinline__ void load_f8(const struct sv_attn_args &a,
                                               const struct attn_item &it, uint32_t memory,
                                               uint32_t &used, bool &waited)
{
    const int32_t own = threadIdx.x / 32 % LOADERS * OWN_KEYS + threadIdx.x % OWN_KEYS;
    uint32_t row = ATTN_NONE, next = attn_key_row(a, it, it.from * KEYS + own);
    if ((it.from + 1) * KEYS > it.g.base)
        settle(waited);
    uint4 scales = scales_of(a, next);
    struct under_way w = {0, 0};
    int32_t t = it.from, i = 0;
#pragma unroll 1
    for (;;) {
        const uint32_t stage = t & 1, piece = piece_at(i), bar = free_of(memory, stage, piece),
                       phase = (used >> stage & 1) ^ 1;
        if (w.n == MOST_UNDER_WAY ||
            (w.n > 0 && (t == it.to || __any_sync(0xffffffffu, !bar_try(bar, phase))))) {
            finish_codes(memory, w);
            continue;
        }
        if (t == it.to)
            break;
        if (i == 0) {
            if (threadIdx.x % 32 < OWN_KEYS)
                gpu_store16(memory + SCALES_AT + (stage * KEYS + (uint32_t)own) * 16, scales);
            row = next;
            next = t + 1 < it.to ? attn_key_row(a, it, (t + 1) * KEYS + own) : ATTN_NONE;
            if ((t + 2) * KEYS > it.g.base) /* the next tile's scales */
                settle(waited);
        }
        if (i == 1)
            scales = scales_of(a, next);
        bar_wait(bar, phase);
        start_codes(a, row, memory + stage * STAGE, piece);
        w.pieces |= (piece | stage << 3) << 4 * w.n;
        w.n++;
        if (++i == PIECES) {
            i = 0;
            used ^= 1u << stage;
            t++;
        }
    }
}

/* ---------------------------------------------------------------- the workers */

typedef float half_sums[16][4]; /* 128 columns */

/* A worker warp: queries of the item, places in shared memory, rounds of its barriers. */
struct worker {
    uint32_t memory, group, query0;
    uint32_t phase, heard, met; /* of own tiles, of the other warpgroup's, of meetings */
};

/* All workers. */
static __device__ __forceinline__ void meet(struct worker &w)
{
    arrive(w.memory + MET_AT);
    bar_wait(w.memory + MET_AT, w.met);
    w.met ^= 1;
}
static __device__ __forceinline__ uint32_t said(const struct worker &w, uint32_t group)
{
    return w.memory + SAID_AT + (group * ROW_WAVES + w.query0 / OWN) * 8;
}
/* This warpgroup's quarters of a tile: the first or second of them. */
static __device__ __forceinline__ uint32_t own_quarter(const struct worker &w, uint32_t i)
{
    return 2 * w.group + i;
}
/* Frees the pieces of the tile that is being multiplied: one half of the columns, then the other.
 * LATER: groups of products begun since. */
template <int LATER>
static __device__ __forceinline__ void give_back(const struct worker &w, struct sum<COLS> &c,
                                                 uint32_t stage, bool some)
{
    attn_wgmma_wait<LATER + 1>();
    if (some)
        arrive(free_of(w.memory, stage, own_quarter(w, 0)));
    attn_wgmma_wait<LATER>();
    attn_wgmma_pin(*(half_sums *)&c.o[0]);
    attn_wgmma_pin(*(half_sums *)&c.o[16]);
    if (some)
        arrive(free_of(w.memory, stage, own_quarter(w, 1)));
}

/* Starts the products of one piece with the queries. */
template <int I>
static __device__ __forceinline__ void score(const struct worker &w, float (&s)[8][4],
                                             uint32_t stage)
{
    const uint32_t piece = piece_at(I);
    const uint64_t q = attn_desc_keys<64>(w.memory + QUERIES_AT + piece * 2 * QUERY_PART);
    const uint32_t at = w.memory + stage * STAGE + piece * QUARTER;
    const uint64_t k = piece == ROTATED ? attn_desc_keys<64>(at) : attn_desc_keys<128>(at);
    bar_wait(full(w.memory, stage, piece), w.phase);
#pragma unroll
    for (int part = 0; part < (I == 0 ? 1 : 2); part++)
#pragma unroll
        for (int step = 0; step < 4; step++) /* 16 columns on: 32 bytes */
            attn_wgmma_scores(s, q + part * (QUERY_PART >> 4) + 2 * step,
                              k + part * (1024 >> 4) + 2 * step, I + part + step > 0);
}

/* Starts the products of weights with this warpgroup's values of a tile. */
static __device__ __forceinline__ void values(const struct worker &w, struct sum<COLS> &c,
                                              uint32_t (&p)[KEYS / 16][4], uint32_t stage)
{
    half_sums &low = *(half_sums *)&c.o[0], &high = *(half_sums *)&c.o[16];
    const uint64_t v =
        attn_desc_values<128>(w.memory + stage * STAGE + own_quarter(w, 0) * QUARTER);
    attn_wgmma_pin(p);
    attn_wgmma_pin(low);
    attn_wgmma_pin(high);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) /* 16 keys on: 4 KiB */
        attn_wgmma_values<128>(low, p[k], v + k * (4096 >> 4), 1);
    attn_wgmma_commit();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        attn_wgmma_values<128>(high, p[k], v + k * (4096 >> 4) + (QUARTER >> 4), 1);
    attn_wgmma_commit();
}

/* The maximum moves; what was summed below the old one is rescaled, and weights are counted. */
static __device__ __forceinline__ void advance(struct sum<COLS> &c, float (&l)[4],
                                               const float (&m)[2])
{
    float alpha[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        alpha[r] = gpu_exp2(c.m[r] - (m[r] == attn_neg_inf() ? 0.0f : m[r]));
        c.m[r] = m[r];
    }
    sum_rescale(c, l, alpha);
}
static __device__ __forceinline__ void count(float (&l)[4], const uint32_t (&p)[KEYS / 16][4])
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        gpu_mma_ones(l, p[k]);
}

/* The other warpgroup's weights of its tile, and the maximum that they are below. */
static __device__ __forceinline__ void hear(struct worker &w, uint32_t (&p)[KEYS / 16][4],
                                            float (&m)[2])
{
    const uint32_t lane = threadIdx.x % 32,
                   from = w.memory + WEIGHTS_AT + w.query0 * 128 + lane * 16,
                   most = w.memory + MOST_AT + (w.query0 + lane / 4) * 4;
    bar_wait(said(w, w.group ^ 1), w.heard);
    w.heard ^= 1;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const uint4 x = gpu_load16(from + k * 512);
        p[k][0] = x.x, p[k][1] = x.y, p[k][2] = x.z, p[k][3] = x.w;
    }
    m[0] = __uint_as_float(gpu_load4(most));
    m[1] = __uint_as_float(gpu_load4(most + 32));
}

/* Weights of this warpgroup's tile from its scores, for itself and for the other. They take the
 * place of those that this warp has heard last. */
static __device__ __forceinline__ void soften(const struct sv_attn_args &a, const struct worker &w,
                                              const float (&s)[8][4], const struct sum<COLS> &c,
                                              uint32_t (&p)[KEYS / 16][4], float (&m)[2])
{
    const uint32_t lane = threadIdx.x % 32, to = w.memory + WEIGHTS_AT + w.query0 * 128 + lane * 16,
                   most = w.memory + MOST_AT + (w.query0 + lane / 4) * 4;
    float at[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float x = attn_neg_inf();
#pragma unroll
        for (int n = 0; n < 8; n++)
            x = fmaxf(x, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
        m[r] = fmaxf(c.m[r], __fmul_rn(gpu_row_max(x), a.scale_log2));
        at[r] = m[r] == attn_neg_inf() ? 0.0f : m[r];
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            p[n / 2][n % 2 * 2 + r] =
                attn_pack(gpu_exp2(__fmaf_rn(s[n][2 * r], a.scale_log2, -at[r])),
                          gpu_exp2(__fmaf_rn(s[n][2 * r + 1], a.scale_log2, -at[r])));
    __syncwarp(); /* all lanes have read what they heard */
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
        gpu_store16(to + k * 512, make_uint4(p[k][0], p[k][1], p[k][2], p[k][3]));
    if (lane % 4 == 0) {
        gpu_store4(most, __float_as_uint(m[0]));
        gpu_store4(most + 32, __float_as_uint(m[1]));
    }
    arrive(said(w, w.group));
}

/* Values that no row of the tile sees may be anything in memory, even NaN: a weight of zero does
 * not stop that. By the warpgroup that has scored them; seen: [lo, hi) of its keys. */
static __device__ __forceinline__ void clear_unseen(const struct worker &w, int32_t lo, int32_t hi,
                                                    uint32_t stage)
{
    const uint32_t t = threadIdx.x % 128, chunk = t % 64;
#pragma unroll 1
    for (int32_t key = (int32_t)t / 64; key < KEYS; key += 2)
        if (key < lo || key >= hi)
            attn_store16_zero(
                quarter_row(w.memory + stage * STAGE + chunk / 16 * QUARTER + chunk / 8 % 2 * 1024,
                            (uint32_t)key) +
                chunk % 8 * 16);
    attn_proxy_fence();
    attn_group_sync((int32_t)w.group);
}

/* A span is over: its sum joins those before it in the block's corner of memory. */
static __device__ __forceinline__ void end_span(float4 *run, struct sum<COLS> &c, float (&l)[4],
                                                bool has_run)
{
    c.l[0] = l[0], c.l[1] = l[2];
    if (has_run)
        run_merge<COLS, WORKERS, 16>(run, c);
    run_store<COLS, WORKERS>(run, c);
    sum_clear(c);
    l[0] = l[1] = l[2] = l[3] = 0;
}

/* What each of the warp's queries sees, kept out of its registers; and what all of the block's
 * queries see. */
static __device__ __forceinline__ void keep_sight(const struct sv_attn_args &a,
                                                  const struct attn_item &it,
                                                  const struct worker &w, int32_t &lo_all,
                                                  int32_t &hi_all)
{
    struct wave_rows rows;
    rows_of(rows, a, it, it.q0 + (int32_t)w.query0, it.q0, QUERIES);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t to = w.memory + SIGHT_AT + (w.query0 + threadIdx.x % 32 / 4 + 8 * r) * 8;
        gpu_store4(to, (uint32_t)rows.lane[0].lo[r]);
        gpu_store4(to + 4, (uint32_t)rows.lane[0].hi[r]);
    }
    lo_all = rows.lo_all;
    hi_all = rows.hi_all;
}
static __device__ __forceinline__ void hide_unseen(const struct worker &w, float (&s)[8][4],
                                                   int32_t pos)
{
    struct lane_rows rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const uint32_t at = w.memory + SIGHT_AT + (w.query0 + threadIdx.x % 32 / 4 + 8 * r) * 8;
        rows.lo[r] = (int32_t)gpu_load4(at);
        rows.hi[r] = (int32_t)gpu_load4(at + 4);
    }
    hide(s, rows, pos + gpu_run_col(gpu_lane()));
}

/* Item i. */
template <bool F8>
static __device__ __forceinline__ void work(const struct sv_attn_args &a, int32_t i,
                                            struct worker &w, float4 *run)
{
    const struct attn_item it = attn_item_of(a, attn_entry_at(a.plan, i), 0);
    const uint32_t own = w.group, other = own ^ 1; /* stages */
    struct sum<COLS> c;
    float l[4] = {0, 0, 0, 0};
    const int32_t first = it.from / TILES_PER_SPAN; /* span */
    int32_t lo_all, hi_all;
    if (it.from == it.to)
        return;

    meet(w); /* the item before is done with the queries */
    load_queries(a, it, w.memory + QUERIES_AT, 0, QUERIES);
    gpu_copy_commit();
    keep_sight(a, it, w, lo_all, hi_all);
    sum_clear(c);
    gpu_copy_wait<0>(0, 0);
    attn_proxy_fence();
    meet(w);
    /* t: this warpgroup's tile; the one before it is the other's. Both ways out of the loop wait
     * for products: the compiler loses track of those that are under way at an end that others
     * share. */
#pragma unroll 1
    for (int32_t t = it.from + ((it.from ^ (int32_t)own) & 1);; t += 2) {
        uint32_t p[KEYS / 16][4];
        float m[2], s[8][4];
        const bool after = t > it.from;
        give_back<0>(w, c, own, t - 2 >= it.from);
        if (after) {
            if (t - 2 >= it.from && (t - 1) % TILES_PER_SPAN == 0)
                end_span(run, c, l, (t - 2) / TILES_PER_SPAN > first);
            hear(w, p, m);
            advance(c, l, m);
            count(l, p);
            values(w, c, p, other);
        }
        if (t == it.to) {
            give_back<0>(w, c, other, true);
            break;
        }
        attn_wgmma_pin(s);
        attn_wgmma_fence();
        score<0>(w, s, own);
        score<1>(w, s, own);
        attn_wgmma_commit();
        give_back<1>(w, c, other, after);
        attn_wgmma_pin(p);
        score<2>(w, s, own);
        score<3>(w, s, own);
        score<4>(w, s, own);
        attn_wgmma_commit();
        w.phase ^= 1;
        if (after && t % TILES_PER_SPAN == 0)
            end_span(run, c, l, (t - 2) / TILES_PER_SPAN > first);
        attn_wgmma_wait<0>();
        attn_wgmma_pin(s);
        arrive(free_of(w.memory, own, ROTATED));

        const int32_t pos = t * KEYS;
        if (!F8 && (pos < it.seen_lo || pos + KEYS > it.seen_hi))
            clear_unseen(w, it.seen_lo - pos, it.seen_hi - pos, own);
        if (pos < lo_all || pos + KEYS > hi_all)
            hide_unseen(w, s, pos);
        soften(a, w, s, c, p, m);
        advance(c, l, m);
        count(l, p);
        values(w, c, p, own);
        if (t + 2 > it.to) {
            give_back<0>(w, c, own, true);
            break;
        }
    }
    c.l[0] = l[0], c.l[1] = l[2];
    if ((it.to - 1) / TILES_PER_SPAN > first)
        run_merge<COLS, WORKERS, 16>(run, c);
    /* Read again: it took registers all the while. */
    const struct attn_item last = attn_item_of(a, attn_entry_at(a.plan, i), 0);
    if (__ldcg(&a.plan->unit) == SV_ATTN_WHOLE)
        write_rows(a, last, last.q0 + (int32_t)w.query0, c, (int32_t)own * COLS);
    else
        write_parts(a, last, last.q0 + (int32_t)w.query0, c, (int32_t)own * COLS);
}

/* ---------------------------------------------------------------- the kernel */

template <bool F8>
static __global__ void __launch_bounds__(WORKERS + 32 * LOADERS, 1)
    attn_latent_sm90(const __grid_constant__ struct sv_attn_args a)
{
    GPU_SHARED(shared);
    const uint32_t memory = gpu_shared_at(shared);
    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < 2; stage++)
            for (uint32_t piece = 0; piece < PIECES; piece++) {
                bar_init(full(memory, stage, piece), LOADERS);
                bar_init(free_of(memory, stage, piece), ROW_WAVES);
            }
        for (uint32_t i = 0; i < WAVES; i++)
            bar_init(memory + SAID_AT + 8 * i, 1);
        bar_init(memory + MET_AT, WAVES);
        bar_made();
    }
    /* Segments that are settled, and a plan made of them, may be read before. */
    bool waited = false;
    if (!a.early)
        settle(waited);
    __syncthreads();
    const int32_t n_items = __ldcg(&a.plan->n_items);
    /* Said so that the compiler sees that a warp never parts over it. */
    const uint32_t warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp >= WAVES) {
        attn_fewer_registers<F8 ? 72 : 40>();
        if (!F8) {
            attn_map_fetch(&a.k_map);
            attn_map_fetch(&a.v_map);
        }
        uint32_t used = 0;
#pragma unroll 1
        for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
            const int32_t i = attn_turn(turn);
            if (i >= n_items)
                continue;
            const struct attn_item it = attn_item_of(a, attn_entry_at(a.plan, i), 0);
            if (F8)
                load_f8(a, it, memory, used, waited);
            else
                load(a, it, memory, used, waited);
        }
    } else {
        attn_more_registers<F8 ? 216 : 232>();
        settle(waited);
        float4 *const run = a.run + (size_t)blockIdx.x * RUN * WORKERS + threadIdx.x;
        struct worker w = {memory, warp / ROW_WAVES, warp % ROW_WAVES * OWN, 0, 0, 0};
#pragma unroll 1
        for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
            const int32_t i = attn_turn(turn);
            if (i >= n_items)
                continue;
            work<F8>(a, i, w, run);
        }
    }
}

void sv_cuda_attn_latent_sm90(bool f8, struct sv_attn_launch *out)
{
    static_assert(RUN * WORKERS <= 2 * 8 * GPU_WAVE * (128 / GPU_COLS + 1),
                  "what attention.cu sets aside");
    *out = {};
    out->kernel = f8 ? attn_latent_sm90<true> : attn_latent_sm90<false>;
    out->tile_rows = QUERIES;
    out->n_threads = WORKERS + 32 * LOADERS;
    out->blocks_per_sm = 1;
    out->stage_bytes = STAGE;
    out->fixed_bytes = SHARED - 2 * STAGE;
    out->max_stages = 2;
    out->maps = !f8;
}
