/*
 * attention_chunk.cuh - a chunk of 128 keys on sm_90a: the ring that brings keys and values into
 * shared memory, and the one function that turns a chunk into a sum, the same for every kernel of
 * that set. With heads of 256 two warpgroups have the same queries, whose sums one could not hold:
 * both have all scores, and each the sums of half of the values' columns; queries stay in shared
 * memory then.
 *
 * Included by attention_sm90.cu and attention_few_sm90.cu. Must not: let a query's sum depend on
 * its place in the tile, on the other queries or on the distribution of keys.
 */
#ifndef SV_CUDA_ATTENTION_CHUNK_CUH
#define SV_CUDA_ATTENTION_CHUNK_CUH

#include "backend/cuda/attention_async.cuh"
#include "backend/gpu/attention_frag.cuh"
#include "backend/cuda/attention_wgmma.cuh"

enum {
    GROUP_ROWS = 64,
    KEYS = SV_ATTN_CHUNK,
    HALF = KEYS / 2,
    COLUMNS_BYTES =
        1024, /* eight keys' 64 columns; their other 64 columns follow, then the next eight keys */
    MAX_STAGES = 8,
    BAR_BYTES = 2 * MAX_STAGES * 8
};

/* How heads of HD numbers are divided among warpgroups. */
template <int HD> struct layout {
    enum {
        COLS = HD > 128 ? 128 : HD, /* of values, whose sums a warpgroup has */
        PARTS = HD / COLS,          /* warpgroups with the same queries */
        KEPT = PARTS > 1,           /* queries are read from shared memory for every chunk */
        QUERY_BYTES = KEPT ? GROUP_ROWS * HD * 2 : 0
    };
};
/* Of a worker warp: its part of the columns, and the first of its queries in the block's tile. With
 * several parts a tile has the queries of one warpgroup. */
template <int HD> static __device__ __forceinline__ int32_t part_of(int32_t warp)
{
    return layout<HD>::PARTS == 1 ? 0 : warp / 4;
}
template <int HD> static __device__ __forceinline__ int32_t first_query(int32_t warp)
{
    return 16 * (layout<HD>::PARTS == 1 ? warp : warp % 4);
}

/* A warpgroup's queries: in registers, or where they lie in shared memory, in pieces of all queries
 * and 64 columns. */
template <int HD, bool KEPT = layout<HD>::KEPT> struct queries {
    uint32_t q[HD / 16][4] = {};
};
template <int HD> struct queries<HD, true> {
    uint32_t at = 0;
};

/* Where the kernel is in the ring; loader and workers keep one each. */
struct ring {
    uint32_t data, bars; /* a stage's "full" at bars + 16 i, its "free" 8 bytes on */
    int32_t n_stages, stage;
    uint32_t phase;
};
static __device__ __forceinline__ uint32_t ring_full(const struct ring &r)
{
    return r.bars + 16 * (uint32_t)r.stage;
}
static __device__ __forceinline__ uint32_t ring_free(const struct ring &r)
{
    return ring_full(r) + 8;
}
template <int HD> static __device__ __forceinline__ uint32_t ring_at(const struct ring &r)
{
    return r.data + (uint32_t)r.stage * (HALF * HD * 2);
}
/* By the whole warp, which is done with the stage. */
static __device__ __forceinline__ void ring_give(uint32_t free)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        bar_arrive(free);
}
static __device__ __forceinline__ void ring_next(struct ring &r)
{
    if (++r.stage == r.n_stages) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* ---------------------------------------------------------------- the loader */

/* Boxes of a chunk, one a lane: some keys of one page. To ask for one takes some 90 clocks, which
 * is as long as a box takes to come when memory is quick, so each of LOADERS warps asks for its
 * share. */
struct box {
    int32_t half, at; /* of the chunk's keys; first key within the chunk, beyond it: no box */
    bool here;        /* this warp asks for it */
};

/* This lane's. */
template <int LOADERS>
static __device__ __forceinline__ struct box box_of(const struct sv_attn_args &a)
{
    const int32_t lane = threadIdx.x % 32, per_chunk = KEYS / a.box_rows;
    struct box b;
    b.at = lane < per_chunk ? lane * a.box_rows : 1 << 30;
    b.half = b.at / HALF;
    b.here = lane % LOADERS == (int32_t)threadIdx.x / 32 % LOADERS;
    return b;
}

/* A box of the stage that r names; b.at names its key, first its position. */
template <int HD>
static __device__ __forceinline__ void load_box(const struct sv_attn_args &a, bool values,
                                                const struct attn_item &it, const struct box &b,
                                                int32_t first, int32_t page, const struct ring &r)
{
    const int32_t row = (page * a.p.kv.n_kv_heads + it.kv_head) * a.p.kv.page_size +
                        (first & (a.p.kv.page_size - 1));
    attn_box(ring_at<HD>(r) + (uint32_t)(b.at % HALF * HD * 2), values ? &a.v_map : &a.k_map,
             row / 8, ring_full(r));
}

/* Announces the bytes of stage r that this warp loads, also if there are none: a stage is full only
 * after the arrival of all LOADERS warps. A wait by parity must never be two phases behind, and a
 * warp that did not arrive here could be: the workers would consume the stage twice in between, and
 * the warp would wait for ever. By the whole warp. */
template <int HD>
static __device__ __forceinline__ void expect_boxes(const struct sv_attn_args &a, bool brings,
                                                    const struct ring &r)
{
    const uint32_t boxes = (uint32_t)__popc(__ballot_sync(0xffffffffu, brings));
    if (threadIdx.x % 32 == 0)
        bar_expect(ring_full(r), boxes * (uint32_t)a.box_rows * HD * 2);
    __syncwarp();
}

/* The first stages of a block's first item, on either side of the wait for the launch before: that
 * one may still be writing keys and values of the segment's own rows, the others have long been
 * there. Returns how many stages; by the whole warp. */
template <int HD, typename F>
static __device__ __forceinline__ int32_t load_first(const struct sv_attn_args &a,
                                                     const struct attn_item &it,
                                                     const struct box &b, int32_t n_chunks,
                                                     struct ring &r, F wait)
{
    const int32_t c = it.seen_lo / KEYS, first = c * KEYS + b.at, have = n_chunks > 1 ? 8 : 4;
    const int32_t n = have < r.n_stages ? have : r.n_stages;
    const int32_t page[2] = {attn_box_page(a, it, first),
                             n > 4 ? attn_box_page(a, it, first + KEYS) : -1};
#pragma unroll
    for (int own = 0; own < 2; own++) {
        struct ring at = r;
        if (own)
            wait();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i >= n)
                break;
            const bool brings = page[i / 4] >= 0 && b.half == i % 2 && b.here;
            const int32_t key = first + i / 4 * KEYS;
            if (!own)
                expect_boxes<HD>(a, brings, at);
            if (brings && (key + a.box_rows > it.g.base) == own)
                load_box<HD>(a, i / 2 % 2, it, b, key, page[i / 4], at);
            ring_next(at);
        }
        if (own)
            r = at;
    }
    return n;
}

/* Chunks c to end - 1, of the first of which `done` stages are there. */
template <int HD>
static __device__ __forceinline__ void
load_rest(const struct sv_attn_args &a, const struct attn_item &it, const struct box &b, int32_t c,
          int32_t end, int32_t done, struct ring &r)
{
    int32_t page = attn_box_page(a, it, c * KEYS + b.at);
    for (; c < end; c++) {
        const int32_t now = page, first = c * KEYS + b.at;
        if (c + 1 < end)
            page = attn_box_page(a, it, (c + 1) * KEYS + b.at);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (j < done)
                continue;
            const bool brings = now >= 0 && b.half == j % 2 && b.here;
            bar_wait(ring_free(r), r.phase ^ 1);
            expect_boxes<HD>(a, brings, r);
            if (brings)
                load_box<HD>(a, j / 2, it, b, first, now, r);
            ring_next(r);
        }
        done = 0;
    }
}

/* ---------------------------------------------------------------- a chunk of keys */

/* Two rows of queries of each lane, as the matrix instruction wants them, from global memory. */
template <int HD>
static __device__ __forceinline__ void load_queries(const struct sv_attn_args &a,
                                                    const struct attn_item &it, int32_t q_warp,
                                                    uint32_t lane, struct queries<HD, false> &to)
{
    uint32_t(&q)[HD / 16][4] = to.q;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t i = q_warp + (int32_t)lane / 4 + 8 * r, row = attn_div(i, a.by_group);
        const uint32_t *from =
            (const uint32_t *)((const __nv_bfloat16 *)a.p.q + (int64_t)(it.g.row0 + row) * a.p.ldq +
                               (int64_t)(it.kv_head * a.group + i - row * a.group) * HD) +
            lane % 4;
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            q[k][r] = i < it.n_q ? from[k * 8] : 0;
            q[k][r + 2] = i < it.n_q ? from[k * 8 + 4] : 0;
        }
    }
}

/* The block's queries, from it.q0 on, to shared memory, by all of its workers, who are done with
 * those before. What lies in the place of others belongs to no query. */
template <int HD>
static __device__ __forceinline__ void load_queries(const struct sv_attn_args &a,
                                                    const struct attn_item &it, int32_t, uint32_t,
                                                    const struct queries<HD, true> &to)
{
    constexpr int CHUNKS = HD / 8, WORKERS = layout<HD>::PARTS * 128;
    const int32_t left = it.n_q - it.q0, n = left < GROUP_ROWS ? left : GROUP_ROWS;
    attn_group_sync<WORKERS>(layout<HD>::PARTS);
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < n * CHUNKS; i += WORKERS) {
        const int32_t at = i / CHUNKS, chunk = i % CHUNKS, q = it.q0 + at,
                      row = attn_div(q, a.by_group),
                      head = it.kv_head * a.group + (q - row * a.group);
        const uint4 x =
            *(const uint4 *)((const __nv_bfloat16 *)a.p.q + (int64_t)(it.g.row0 + row) * a.p.ldq +
                             (int64_t)head * (a.p.q_stride ? a.p.q_stride : HD) + chunk * 8);
        gpu_store16(to.at + (uint32_t)(chunk / 8 * GROUP_ROWS * 128) +
                        gpu_place<128>((uint32_t)at, (uint32_t)chunk % 8),
                    x);
    }
    attn_proxy_fence();
    attn_group_sync<WORKERS>(layout<HD>::PARTS);
}

template <int HD> static __device__ __forceinline__ void pin_queries(struct queries<HD, false> &q)
{
    attn_wgmma_pin(q.q);
}
template <int HD> static __device__ __forceinline__ void pin_queries(struct queries<HD, true> &q)
{
    attn_wgmma_pin(q.at);
}

/* Starts half a chunk's scores. */
template <int HD>
static __device__ __forceinline__ void scores(float (&s)[8][4], struct queries<HD> &q,
                                              uint32_t keys)
{
    attn_wgmma_pin(s);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        if constexpr (layout<HD>::KEPT) /* registers are short: added to what is there */
            attn_wgmma_scores(
                s, attn_desc_keys<64>(q.at) + (k / 4 * (GROUP_ROWS * 128) + k % 4 * 32) / 16,
                attn_desc_keys<HD>(keys) + (k / 4 * COLUMNS_BYTES + k % 4 * 32) / 16, k > 0);
        else
            attn_wgmma_keys(s, q.q[k],
                            attn_desc_keys<HD>(keys + k / 4 * COLUMNS_BYTES + k % 4 * 32), k > 0);
    }
    attn_wgmma_commit();
}

static __device__ __forceinline__ void highest(const float (&s)[8][4], float (&most)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            most[e / 2] = fmaxf(most[e / 2], s[n][e]);
}

/* Weights from half a chunk's scores; l grows by this lane's own columns. */
static __device__ __forceinline__ void weights(const struct sv_attn_args &a, float (&s)[8][4],
                                               const float (&at)[2], uint32_t (&p)[4][4],
                                               float (&l)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = gpu_exp2(__fmaf_rn(s[n][e], a.scale_log2, -at[e / 2]));
            l[e / 2] = __fadd_rn(l[e / 2], s[n][e]);
        }
        p[n / 2][n % 2 * 2] = attn_pack(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = attn_pack(s[n][2], s[n][3]);
    }
}

/* Starts the products with half a chunk's values, from the warpgroup's first column on; the first
 * half clears o. */
template <int HD>
static __device__ __forceinline__ void values(float (&o)[layout<HD>::COLS / 8][4],
                                              uint32_t (&p)[4][4], uint32_t vals, bool first)
{
    attn_wgmma_pin(p);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        attn_wgmma_values<layout<HD>::COLS>(o, p[k],
                                            layout<HD>::KEPT
                                                ? attn_desc_values<HD>(vals) + k * (HD * 32 / 16)
                                                : attn_desc_values<HD>(vals + k * (HD * 32)),
                                            !first || k > 0);
    attn_wgmma_commit();
}

/* The next two stages are full. */
static __device__ __forceinline__ void wait_both(struct ring r)
{
    bar_wait(ring_full(r), r.phase);
    ring_next(r);
    bar_wait(ring_full(r), r.phase);
}

/* Where the warpgroup's columns of values begin in a stage. */
template <int HD> static __device__ __forceinline__ uint32_t own_columns(int32_t group)
{
    return (uint32_t)part_of<HD>(4 * group) * (layout<HD>::COLS / 64 * COLUMNS_BYTES);
}

/* Values that no row of the tile sees may be anything in memory, even NaN: a weight of zero does
 * not stop that. lo, hi: what is seen of the chunk whose values are in the next two stages. */
template <int HD>
static __device__ __forceinline__ void clear_unseen(int32_t lo, int32_t hi, int32_t group,
                                                    struct ring r)
{
    constexpr int CHUNKS = layout<HD>::COLS / 8;
    const uint32_t t = threadIdx.x % 128, col = t % CHUNKS;
#pragma unroll 1
    for (int32_t h = 0; h < 2; h++) {
        const uint32_t vals = ring_at<HD>(r) + own_columns<HD>(group);
#pragma unroll
        for (uint32_t i = 0; i < HALF * CHUNKS / 128; i++) {
            const uint32_t row = t / CHUNKS + i * (128 / CHUNKS);
            const int32_t key = h * HALF + (int32_t)row;
            if (key < lo || key >= hi)
                attn_store16_zero(vals + row / 8 * (HD * 16) + col / 8 * COLUMNS_BYTES +
                                  row % 8 * 128 + col % 8 * 16);
        }
        ring_next(r);
    }
    attn_proxy_fence();
    attn_group_sync(group);
}

/* What the warpgroup's queries see: any of them, all of them; and each lane's own two. */
struct sight {
    struct lane_rows rows;
    int32_t lo_any, lo_all, hi_any, hi_all;
};

/* For a warp of 16 queries from q_warp on, in a warpgroup of 64 from q_group on. Lanes beyond the
 * last query double it: they take part and write nothing. */
static __device__ __forceinline__ struct sight
sight_of(const struct sv_attn_args &a, const struct attn_item &it, int32_t q_warp, int32_t q_group)
{
    struct sight see;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int32_t at = q_warp + (int32_t)threadIdx.x % 32 / 4 + 8 * j;
        const int32_t row = attn_div(at < it.n_q ? at : it.n_q - 1, a.by_group),
                      pos = attn_pos(a.p, it.g, row);
        see.rows.lo[j] = attn_lo(a.p, pos);
        see.rows.hi[j] = attn_hi(a.p, pos, it.g.end);
    }
    const int32_t q_last = q_group + GROUP_ROWS < it.n_q ? q_group + GROUP_ROWS - 1 : it.n_q - 1;
    const int32_t first = attn_pos(a.p, it.g, q_group < it.n_q ? attn_div(q_group, a.by_group) : 0);
    const int32_t last = attn_pos(a.p, it.g, attn_div(q_last, a.by_group));
    see.lo_any = attn_lo(a.p, first);
    see.lo_all = attn_lo(a.p, last);
    see.hi_any = attn_hi(a.p, last, it.g.end);
    see.hi_all = attn_hi(a.p, first, it.g.end);
    return see;
}

/* One chunk: its sum, from two stages of keys and two of values. group: the warpgroup. dry:
 * whatever lies in shared memory, to no purpose but to have the instructions at hand. */
template <int HD>
static __device__ __forceinline__ void
chunk_sum(const struct sv_attn_args &a, const struct attn_item &it, const struct sight &see,
          int32_t c, int32_t group, struct queries<HD> &q, struct sum<layout<HD>::COLS> &chunk,
          struct ring &r, bool dry = false)
{
    const int32_t pos = c * KEYS;
    float s[2][8][4], most[2] = {attn_neg_inf(), attn_neg_inf()}, at[2];
    uint32_t p[2][4][4], taken[2]; /* the stages' "free" barriers */

    pin_queries(q);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!dry)
            bar_wait(ring_full(r), r.phase);
        scores<HD>(s[h], q, ring_at<HD>(r));
        taken[h] = ring_free(r);
        if (!dry)
            ring_next(r);
    }
    const bool mask = dry || pos < see.lo_all || pos + KEYS > see.hi_all;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == 0)
            attn_wgmma_wait<1>();
        else
            attn_wgmma_wait<0>();
        attn_wgmma_pin(s[h]);
        if (!dry)
            ring_give(taken[h]);
        if (a.p.softcap > 0)
            cap_scores(a, s[h]);
        if (mask)
            mask_scores(s[h], see.rows, pos + h * HALF + (int32_t)threadIdx.x % 4 * 2);
        highest(s[h], most);
    }
    pin_queries(q);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
        chunk.m[i] = __fmul_rn(most[i], a.scale_log2);
        at[i] = chunk.m[i] == attn_neg_inf() ? 0.0f : chunk.m[i];
        chunk.l[i] = 0;
    }

    /* Both halves at once: a loop that waits, between the products below, costs the compiler its
     * registers. */
    if (!dry)
        wait_both(r);
    if (!dry && (pos < it.seen_lo || pos + KEYS > it.seen_hi))
        clear_unseen<HD>(it.seen_lo - pos, it.seen_hi - pos, group, r);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        weights(a, s[h], at, p[h], chunk.l);
        if (h == 0)
            attn_wgmma_pin(chunk.o); /* not sooner: registers are short before */
        values<HD>(chunk.o, p[h], ring_at<HD>(r) + own_columns<HD>(group), h == 0);
        taken[h] = ring_free(r);
        if (!dry)
            ring_next(r);
    }
    attn_wgmma_wait<0>();
    attn_wgmma_pin(chunk.o);
    attn_wgmma_pin(p[0]);
    attn_wgmma_pin(p[1]);
    if (!dry) {
        ring_give(taken[0]);
        ring_give(taken[1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        chunk.l[i] = __fadd_rn(chunk.l[i], __shfl_xor_sync(0xffffffffu, chunk.l[i], 1));
        chunk.l[i] = __fadd_rn(chunk.l[i], __shfl_xor_sync(0xffffffffu, chunk.l[i], 2));
    }
}

#endif
