/*
 * attention_core.cuh - device code that all attention kernels with matrix instructions share: the
 * mask of a row, the division of a batch into work items, the formula that merges two partial
 * results, and the last step from sums to output.
 *
 * Included by attention.cu and by all of its kernels. Products and sums of results use intrinsics,
 * so that no compiler contracts them in one place and not in another.
 */
#ifndef SV_CUDA_ATTENTION_CORE_CUH
#define SV_CUDA_ATTENTION_CORE_CUH

#include "backend/cuda/attention.h"
#include "backend/gpu/gpu.h"

#define ATTN_NONE 0xffffffffu /* a key that no row of the tile sees: zeros are put in its place */
#define ATTN_LOG2E 1.4426950408889634f

static __device__ __forceinline__ float attn_neg_inf(void)
{
    return __uint_as_float(0xff800000u);
}

/* ---------------------------------------------------------------- arithmetic */

/* Two bf16, the first in the lower half. */
static __device__ __forceinline__ uint32_t attn_pack(float lo, float hi)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&h;
}

/* Merges (m, .) and (m2, .): both are scaled to the larger maximum. A side without keys has m =
 * -inf and sums of zero, and does not change the other. */
struct attn_factors {
    float m, a, b;
};
static __device__ __forceinline__ struct attn_factors attn_merge_factors(float m, float m2)
{
    struct attn_factors f;
    f.m = fmaxf(m, m2);
    const float at = f.m == attn_neg_inf() ? 0.0f : f.m;
    f.a = gpu_exp2(m - at);
    f.b = gpu_exp2(m2 - at);
    return f;
}
static __device__ __forceinline__ float attn_merge(float x, float x2, struct attn_factors f)
{
    return __fmaf_rn(x2, f.b, __fmul_rn(x, f.a));
}

/* Softcap in powers of two: cap * tanh(s / cap) * log2(e), s = scale * x. */
static __device__ __forceinline__ float attn_softcap(float x, float twice, float cap_log2)
{
    const float e = gpu_exp2(__fmul_rn(x, twice)); /* e^(2 s / cap); inf and 0 are fine */
    return __fmul_rn(cap_log2, __fsub_rn(1.0f, __fmul_rn(2.0f, gpu_rcp(__fadd_rn(e, 1.0f)))));
}

/* The factor of the unnormalised output. A sink is one more term of the sum, without a value. */
static __device__ __forceinline__ float attn_inverse(const struct sv_attn_args &a, int32_t head,
                                                     float m, float l)
{
    if (a.p.sinks.data == NULL)
        return l == 0.0f ? 0.0f : gpu_rcp(l);
    const float sink =
        __fmul_rn(sv_weight_at(a.p.sinks.data, a.p.sinks.fmt.elem, head), ATTN_LOG2E);
    const struct attn_factors f = attn_merge_factors(m, sink);
    const float sum = __fmaf_rn(l, f.a, f.b);
    return sum == 0.0f ? 0.0f : __fmul_rn(f.a, gpu_rcp(sum));
}

/* Adding +0 makes all zeros +0: a merge with an empty side may have turned -0 into +0. */
static __device__ __forceinline__ float attn_output(float o, float inverse)
{
    return __fadd_rn(__fmul_rn(o, inverse), 0.0f);
}

/* ---------------------------------------------------------------- divisions */

/* n / d for n d < 2^32, by a reciprocal computed in advance: a division takes some 200 clocks,
 * which a short launch cannot hide. */
static inline uint32_t attn_magic(int32_t d)
{
    return d == 1 ? 0 : (uint32_t)(((uint64_t)1 << 32) / (uint32_t)d) + 1;
}
static __device__ __forceinline__ int32_t attn_div(int32_t n, uint32_t magic)
{
    return magic ? (int32_t)__umulhi((uint32_t)n, magic) : n;
}

/* ---------------------------------------------------------------- the mask of a row */

/* A row at position pos sees the positions [lo, hi), `end` being the first behind its segment. */
static __device__ __forceinline__ int32_t attn_lo(const struct sv_p_attention &p, int32_t pos)
{
    const int32_t first = pos - p.window + 1;
    return p.window > 0 && first > 0 ? first : 0;
}
static __device__ __forceinline__ int32_t attn_hi(const struct sv_p_attention &p, int32_t pos,
                                                  int32_t end)
{
    return p.mask == SV_MASK_BLOCK ? end : pos + 1;
}

/* ---------------------------------------------------------------- items of work */

struct attn_seg {
    int32_t slot, row0, n, base;
    int32_t lo, end; /* what any of its rows sees; in an item of a plan: what is left of it */
};
static __device__ __forceinline__ struct attn_seg attn_seg_at(const struct sv_p_attention &p,
                                                              int32_t s)
{
    const struct sv_rows &rows = p.rows;
    struct attn_seg g;
    g.slot = rows.seg_slot[s];
    g.row0 = rows.seg_row0[s];
    g.n = rows.seg_row0[s + 1] - g.row0;
    g.base = rows.seg_base[s];
    if (g.slot < 0 || g.n < 0)
        g.n = 0;
    g.lo = g.end = 0;
    if (g.n > 0) {
        g.lo = attn_lo(p, rows.row_pos[g.row0]);
        g.end = rows.row_pos[g.row0 + g.n - 1] + 1;
    }
    return g;
}
/* Position of row r of a segment. */
static __device__ __forceinline__ int32_t attn_pos(const struct sv_p_attention &p,
                                                   const struct attn_seg &g, int32_t r)
{
    return p.rows.row_pos[g.row0 + r];
}

/* The plan as the main kernel keeps it in shared memory. */
struct attn_items {
    int32_t unit;
    int32_t n_items; /* for one kv head */
    int32_t n_segs;
    int32_t long_walk; /* sums of spans of some segment need a place outside registers */
    /* (n_segs); then item0, (n_segs + 1) each segment's first item, for one kv head */
    struct attn_seg seg[];
};
static inline size_t attn_items_bytes(int32_t n_segs)
{
    return (sizeof(struct attn_items) + sizeof(struct attn_seg) * (size_t)n_segs +
            sizeof(int32_t) * ((size_t)n_segs + 1) + 15) /
           16 * 16;
}
static __device__ __forceinline__ int32_t *attn_item0(struct attn_items *plan)
{
    return (int32_t *)(plan->seg + plan->n_segs);
}

static __device__ __forceinline__ int32_t attn_unit_shift(int32_t unit)
{
    static_assert(SV_ATTN_CHUNK == 1 << 7 && SV_ATTN_SPAN == 1 << 9, "keys of a unit");
    return unit == SV_ATTN_BY_CHUNK ? 7 : 9;
}
/* Parts of a segment: those that any of its rows sees, numbered from attn_part0. */
static __device__ __forceinline__ int32_t attn_part0(const struct attn_seg &g, int32_t unit)
{
    return g.lo >> attn_unit_shift(unit);
}
static __device__ __forceinline__ int32_t attn_n_parts(const struct attn_seg &g, int32_t unit)
{
    if (unit == SV_ATTN_WHOLE)
        return 1;
    return ((g.end - 1) >> attn_unit_shift(unit)) - attn_part0(g, unit) + 1;
}

/* The fastest unit, by measurements (docs/notes/2026-11-22-cuda-kernels.md). Chunks only while no
 * multiprocessor gets a second one: partial results cost memory traffic, which grows with a tile's
 * queries. A block that takes all keys of a tile writes none, but the longest one must not end
 * after the others. Affects speed only. */
static __device__ __forceinline__ int32_t attn_choose_unit(const struct sv_attn_args &a,
                                                           const struct attn_seg *segs,
                                                           int32_t lane)
{
    int32_t chunks = 0, most[2] = {0, 0}, total = 0, longest = 0, n_tiles = 0;
    const int32_t n_kv = a.p.kv.n_kv_heads, blocks = a.n_blocks,
                  tile_shift = a.tile_rows == 64 ? 6 : 7;
    if (a.unit == SV_ATTN_WHOLE)
        return SV_ATTN_WHOLE;
    for (int32_t s = lane; s < a.p.rows.n_segs; s += 32) {
        const struct attn_seg g = segs ? segs[s] : attn_seg_at(a.p, s);
        if (g.n == 0)
            continue;
        const int32_t tiles = (g.n * a.group + a.tile_rows - 1) >> tile_shift;
        const int32_t len = (g.end - g.lo) / SV_ATTN_TILE + 1;
        n_tiles += tiles;
        total += tiles * len;
        longest = len > longest ? len : longest;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int32_t n = attn_n_parts(g, SV_ATTN_BY_CHUNK + i);
            chunks += i == 0 ? n * tiles : 0;
            most[i] = n > most[i] ? n : most[i];
        }
    }
    const int64_t outputs = (int64_t)a.p.rows.n_rows * a.p.n_heads;
#pragma unroll
    for (int i = 0; i < 2; i++)
        most[i] = __reduce_max_sync(0xffffffffu, most[i]);
    const bool fits[2] = {most[0] * outputs <= a.part_cap, most[1] * outputs <= a.part_cap};
    chunks = __reduce_add_sync(0xffffffffu, chunks);
    if (a.unit != SV_ATTN_AUTO)
        return fits[a.unit - SV_ATTN_BY_CHUNK] ? a.unit : SV_ATTN_WHOLE;
    if (2 * chunks * n_kv <= blocks && fits[0])
        return SV_ATTN_BY_CHUNK;
    total = __reduce_add_sync(0xffffffffu, total);
    n_tiles = __reduce_add_sync(0xffffffffu, n_tiles);
    longest = __reduce_max_sync(0xffffffffu, longest);
    /* Lengths in tiles of keys, times multiprocessors: an even share or the longest walk, whichever
     * is more. Two blocks of one multiprocessor get in each other's way: where every one has work
     * as it is, spans only add to it. Writing and reading parts takes an eighth of a span's walk,
     * and as much again for each 32 queries of a tile. */
    const int64_t sms = a.tile_rows == 64 && a.p.kv.head_dim <= 128 ? (blocks + 1) / 2 : blocks;
    const int64_t even = (int64_t)total * n_kv, span = (int64_t)(SV_ATTN_SPAN / SV_ATTN_TILE) * sms;
    const int64_t walk = (int64_t)longest * sms, n = n_tiles > 0 ? n_tiles : 1;
    const int64_t spans =
        (even > span ? even : span) * (288 * n + (int64_t)a.p.rows.n_rows * a.group);
    return fits[1] && 10 * spans < 11 * 256 * n * (even > walk ? even : walk) ? SV_ATTN_BY_SPAN
                                                                              : SV_ATTN_WHOLE;
}

/* A block's part of the plan. */
struct attn_head {
    int32_t unit, n_items, long_walk; /* items of all kv heads */
    struct sv_attn_entry first;       /* of the block's first turn, if a.plan */
};

static __device__ __forceinline__ struct sv_attn_entry
attn_entry_at(const struct sv_attn_plan *plan, int32_t i)
{
    struct sv_attn_entry e;
    const uint4 x = __ldcg((const uint4 *)(const void *)(plan->entry + i)),
                y = __ldcg((const uint4 *)(const void *)(plan->entry + i) + 1);
    e.slot = (int32_t)x.x, e.row0 = (int32_t)x.y, e.n = (int32_t)x.z, e.base = (int32_t)x.w;
    e.q0 = (int32_t)y.x, e.part = (int32_t)y.y, e.seen_lo = (int32_t)y.z, e.seen_hi = (int32_t)y.w;
    return e;
}

/* By one warp of every block; the block must synchronise afterwards. */
static __device__ __forceinline__ void attn_plan_items(const struct sv_attn_args &a,
                                                       int32_t tile_rows, struct attn_items *out)
{
    const int32_t lane = threadIdx.x % 32, n_segs = a.p.rows.n_segs;
    if (a.plan != NULL) {
        const uint4 head = __ldcg((const uint4 *)(const void *)a.plan);
        if (lane == 0) {
            out->unit = (int32_t)head.x;
            out->n_items = (int32_t)head.y;
            out->long_walk = (int32_t)head.z;
            out->n_segs = n_segs;
        }
        return;
    }
    int32_t *const item0 = (int32_t *)(out->seg + n_segs);
    for (int32_t s = lane; s < n_segs; s += 32)
        out->seg[s] = attn_seg_at(a.p, s);
    const int32_t unit = attn_choose_unit(a, out->seg, lane);
    int32_t items = 0, longest = 0;
    for (int32_t s0 = 0; s0 < n_segs; s0 += 32) {
        const int32_t s = s0 + lane;
        int32_t mine = 0;
        if (s < n_segs) { /* written by this lane above */
            const struct attn_seg g = out->seg[s];
            if (g.n > 0) {
                mine = attn_n_parts(g, unit) * ((g.n * a.group + tile_rows - 1) / tile_rows);
                const int32_t len = g.end - g.lo;
                longest = len > longest ? len : longest;
            }
        }
        int32_t upto = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int32_t x = __shfl_up_sync(0xffffffffu, upto, step);
            if (lane >= step)
                upto += x;
        }
        if (s < n_segs)
            item0[s] = items + upto - mine;
        items += __shfl_sync(0xffffffffu, upto, 31);
    }
    longest = __reduce_max_sync(0xffffffffu, longest);
    if (lane == 0) {
        /* With one warpgroup a last span of one chunk needs no place. */
        out->long_walk =
            unit == SV_ATTN_WHOLE && longest > SV_ATTN_SPAN + (tile_rows == 64 ? SV_ATTN_CHUNK : 0);
        item0[n_segs] = items;
        out->n_items = items;
        out->n_segs = n_segs;
        out->unit = unit;
    }
}

/* The whole block; one of its warps plans where there is no plan. */
static __device__ __forceinline__ struct attn_head
attn_plan_head(const struct sv_attn_args &a, int32_t tile_rows, struct attn_items *out, bool plans)
{
    struct attn_head h = {};
    if (a.plan != NULL) {
        const uint4 head = __ldcg((const uint4 *)(const void *)a.plan);
        h.first = attn_entry_at(a.plan, attn_div((int32_t)blockIdx.x, a.by_kv));
        h.unit = (int32_t)head.x;
        h.n_items = (int32_t)head.y * a.p.kv.n_kv_heads;
        h.long_walk = (int32_t)head.z;
        __syncthreads();
        return h;
    }
    if (plans)
        attn_plan_items(a, tile_rows, out);
    __syncthreads();
    h.unit = out->unit;
    h.n_items = out->n_items * a.p.kv.n_kv_heads;
    h.long_walk = out->long_walk;
    return h;
}

/* Item of this block's k-th turn: turns go over the blocks to and fro, because items fall off in
 * length. */
static __device__ __forceinline__ int32_t attn_turn(int32_t k)
{
    return k * (int32_t)gridDim.x + (int32_t)(k & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
}

/* One item: a tile of queries of one (segment, kv head), and the keys [from, to) of it. The queries
 * of a segment and kv head are its rows times the heads of the group, row-major. */
struct attn_item {
    struct attn_seg g;
    int32_t kv_head;
    int32_t q0, n_q;          /* first query of the tile; queries of the whole segment */
    int32_t from, to;         /* tiles of keys */
    int32_t seen_lo, seen_hi; /* what any row of the tile sees, within the item's part */
    int32_t part;             /* its place among the segment's parts */
};

/* The page of a box of keys from `first` on; -1: no row of the item sees any of them, or the table
 * has no page for them, which is latched. */
static __device__ __forceinline__ int32_t attn_box_page(const struct sv_attn_args &a,
                                                        const struct attn_item &it, int32_t first)
{
    const int32_t i = first >> a.page_shift;
    int32_t page = -1;
    if (first >= it.seen_hi || first + a.box_rows <= it.seen_lo)
        return -1;
    if (i < a.p.kv.table_stride)
        page = a.p.kv.table[(int64_t)it.g.slot * a.p.kv.table_stride + i];
    if (page < 0 || page >= a.p.kv.n_pages) {
        sv_fault_set(a.fault, SV_CUDA_FAULT_READ_PAGE, it.g.slot,
                     first > it.seen_lo ? first : it.seen_lo, 0);
        return -1;
    }
    return page;
}

static __device__ __forceinline__ struct attn_item
attn_item_of(const struct sv_attn_args &a, const struct sv_attn_entry &e, int32_t kv_head)
{
    struct attn_item it;
    it.g = {e.slot, e.row0, e.n, e.base, e.seen_lo, e.seen_hi};
    it.kv_head = kv_head;
    it.q0 = e.q0;
    it.n_q = e.n * a.group;
    it.part = e.part;
    it.seen_lo = e.seen_lo;
    it.seen_hi = e.seen_hi;
    it.from = it.seen_lo / SV_ATTN_TILE;
    it.to = it.seen_lo >= it.seen_hi ? it.from : (it.seen_hi + SV_ATTN_TILE - 1) / SV_ATTN_TILE;
    return it;
}

static __device__ __forceinline__ struct attn_item
attn_item_at(const struct sv_attn_args &a, struct attn_items *plan, int32_t tile_rows, int32_t i)
{
    struct attn_item it;
    const int32_t n_kv = a.p.kv.n_kv_heads, of_head = attn_div(i, a.by_kv);
    if (a.plan != NULL)
        return attn_item_of(a, attn_entry_at(a.plan, of_head), i - of_head * n_kv);
    const int32_t *const item0 = attn_item0(plan);
    int32_t lo = 0, hi = a.p.rows.n_segs; /* the last segment whose first item is at most of_head */
    it.kv_head = i - of_head * n_kv;
    while (hi - lo > 1) {
        const int32_t mid = (lo + hi) / 2;
        if (item0[mid] <= of_head)
            lo = mid;
        else
            hi = mid;
    }
    it.g = plan->seg[lo];
    it.n_q = it.g.n * a.group;
    const int32_t tiles = (it.n_q + tile_rows - 1) / tile_rows, in_seg = of_head - item0[lo];
    it.part = plan->unit == SV_ATTN_WHOLE ? 0 : tiles == 1 ? in_seg : in_seg / tiles;
    /* The last tiles see most: they go first, so that the short ones fill the gaps. */
    it.q0 = (tiles - 1 - (in_seg - it.part * tiles)) * tile_rows;
    const int32_t last = it.q0 + tile_rows < it.n_q ? it.q0 + tile_rows : it.n_q;
    /* What a segment's first and last rows see is in the plan: there is nothing to wait for. */
    it.seen_lo = it.g.lo;
    it.seen_hi = it.g.end;
    if (it.q0 > 0)
        it.seen_lo = attn_lo(a.p, attn_pos(a.p, it.g, attn_div(it.q0, a.by_group)));
    if (last < it.n_q)
        it.seen_hi = attn_hi(a.p, attn_pos(a.p, it.g, attn_div(last - 1, a.by_group)), it.g.end);
    if (plan->unit != SV_ATTN_WHOLE) {
        const int32_t keys = 1 << attn_unit_shift(plan->unit);
        const int32_t begin = (attn_part0(it.g, plan->unit) + it.part) * keys;
        it.seen_lo = it.seen_lo > begin ? it.seen_lo : begin;
        it.seen_hi = it.seen_hi < begin + keys ? it.seen_hi : begin + keys;
    }
    it.from = it.seen_lo / SV_ATTN_TILE;
    it.to = (it.seen_hi + SV_ATTN_TILE - 1) / SV_ATTN_TILE;
    if (it.seen_lo >= it.seen_hi)
        it.to = it.from;
    return it;
}

/* The same for a block's turn, the first of which is at hand. */
static __device__ __forceinline__ struct attn_item
attn_turn_item(const struct sv_attn_args &a, struct attn_items *plan, const struct attn_head &h,
               int32_t tile_rows, int32_t turn, int32_t i)
{
    if (turn > 0 || a.plan == NULL)
        return attn_item_at(a, plan, tile_rows, i);
    return attn_item_of(a, h.first, i - attn_div(i, a.by_kv) * a.p.kv.n_kv_heads);
}

/* Index of the partial result of (row, head), for the part-th part of the row's segment. */
static __device__ __forceinline__ int64_t attn_part_at(const struct sv_attn_args &a, int32_t part,
                                                       int32_t row, int32_t head)
{
    return ((int64_t)part * a.p.rows.n_rows + row) * a.p.n_heads + head;
}

/* The page of position pos as the table has it, not yet checked. */
static __device__ __forceinline__ int32_t attn_page(const struct sv_attn_args &a,
                                                    const struct attn_item &it, int32_t pos)
{
    const struct sv_kv &kv = a.p.kv;
    const int32_t i = a.page_shift >= 0 ? pos >> a.page_shift : pos / kv.page_size;
    return i < kv.table_stride ? kv.table[(int64_t)it.g.slot * kv.table_stride + i] : -1;
}
/* The row in kv.k and kv.v of a position that is seen, in that page. */
static __device__ __forceinline__ uint32_t attn_page_row(const struct sv_attn_args &a,
                                                         const struct attn_item &it, int32_t pos,
                                                         int32_t page)
{
    const struct sv_kv &kv = a.p.kv;
    if (page < 0 || page >= kv.n_pages) {
        sv_fault_set(a.fault, SV_CUDA_FAULT_READ_PAGE, it.g.slot, pos, 0);
        return ATTN_NONE;
    }
    const int32_t i = a.page_shift >= 0 ? pos >> a.page_shift : pos / kv.page_size;
    return ((uint32_t)page * (uint32_t)kv.n_kv_heads + (uint32_t)it.kv_head) *
               (uint32_t)kv.page_size +
           (uint32_t)(pos - i * kv.page_size);
}
/* The row of position pos. */
static __device__ __forceinline__ uint32_t attn_key_row(const struct sv_attn_args &a,
                                                        const struct attn_item &it, int32_t pos)
{
    return pos < it.seen_lo || pos >= it.seen_hi ? ATTN_NONE
                                                 : attn_page_row(a, it, pos, attn_page(a, it, pos));
}

/* Where it lies, in units of 16 bytes. */
static __device__ __forceinline__ uint32_t attn_key_at(const struct sv_attn_args &a,
                                                       const struct attn_item &it, int32_t pos)
{
    const uint32_t row = attn_key_row(a, it, pos);
    return row == ATTN_NONE ? ATTN_NONE : row * (uint32_t)(a.p.kv.head_dim / 8);
}

#endif
