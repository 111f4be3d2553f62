/*
 * attention_portable.cu - paged attention on the matrix instructions of sm_80: mma.sync m16n8k16 on
 * bf16, cp.async, ldmatrix. Head sizes 64 and 128.
 *
 * Launched by attention.cu. A block holds 16 queries in each of its warps and walks over tiles of
 * 64 keys, which lie in shared memory in a ring of stages; the next tiles are on their way
 * meanwhile. Queries are (row, head of the group) pairs of one segment and kv head, so that keys
 * are read once for all of them. Every warp adds for its own queries in the order that attention.h
 * fixes; a warp skips tiles that none of its queries sees, which leaves the same bits as adding
 * nothing. Must not: let a query's sum depend on its place in the tile, on the other queries or on
 * which block works on which keys.
 */
#include "backend/cuda/attention_frag.cuh"

enum { N_OFFSETS = 8 }; /* tiles whose addresses are kept; a power of two above the stages */

/* ---------------------------------------------------------------- loads */

/* The tile's keys `from` to `to` - 1, zeros for those that nobody sees. */
template <int HD, int WARPS>
static __device__ __forceinline__ void load_tile(const struct sv_attn_args &a, uint32_t stage,
                                                 const uint32_t *offsets, int32_t from = 0,
                                                 int32_t to = SV_ATTN_TILE)
{
    constexpr int CHUNKS = HD / 8, TILE_BYTES = SV_ATTN_TILE * HD * 2;
    const uint4 *k = (const uint4 *)a.p.kv.k, *v = (const uint4 *)a.p.kv.v;
    const uint32_t chunk = threadIdx.x % CHUNKS;
#pragma unroll 2
    for (int i = 0; i < SV_ATTN_TILE * CHUNKS / (WARPS * 32); i++) {
        const uint32_t row = threadIdx.x / CHUNKS + i * (WARPS * 32 / CHUNKS);
        if ((int32_t)row < from || (int32_t)row >= to)
            continue;
        const uint32_t off = offsets[row];
        const bool seen = off != ATTN_NONE;
        const uint64_t key = seen ? (uint64_t)off + chunk : 0;
        attn_copy16(stage + at<HD>(row, chunk), k + key, seen);
        attn_copy16(stage + TILE_BYTES + at<HD>(row, chunk), v + key, seen);
    }
}

/* real: otherwise nothing is read, and zeros are put in the place of 16. */
template <int HD, int WARPS>
static __device__ __forceinline__ void
load_queries(const struct sv_attn_args &a, const struct attn_item &it, uint32_t to, bool real)
{
    constexpr int CHUNKS = HD / 8;
    const uint32_t chunk = threadIdx.x % CHUNKS;
    const int32_t left = it.n_q - it.q0,
                  all = left < WARPS * 16 ? (left + 15) / 16 * 16 : WARPS * 16, n = real ? all : 16;
#pragma unroll 1
    for (int32_t row = threadIdx.x / CHUNKS; row < n; row += WARPS * 32 / CHUNKS) {
        const int32_t q = it.q0 + row;
        const bool there = q < it.n_q && real;
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)a.p.q;
        if (there) {
            const int32_t r = attn_div(q, a.by_group),
                          head = it.kv_head * a.group + (q - r * a.group);
            from += (int64_t)(it.g.row0 + r) * a.p.ldq + (int64_t)head * HD + chunk * 8;
        }
        attn_copy16(to + at<HD>(row, chunk), from, there);
    }
}

/* ---------------------------------------------------------------- one tile of keys */

/* s (16, 64) = q k^T. */
template <int HD>
static __device__ __forceinline__ void scores(float (&s)[8][4], const uint32_t (&q)[HD / 16][4],
                                              uint32_t keys, uint32_t lane)
{
    const uint32_t row = (lane >> 4) * 8 + (lane & 7), chunk = (lane >> 3) & 1;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = 0;
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            attn_ldmatrix(b, keys + n * 16 * HD * 2 + at<HD>(row, 2 * k + chunk));
            attn_mma(s[2 * n], q[k], b[0], b[1]);
            attn_mma(s[2 * n + 1], q[k], b[2], b[3]);
        }
    }
}

/* o += p v, l += p 1: the sum of the same rounded weights, by the same instruction in the same
 * order. */
template <int HD>
static __device__ __forceinline__ void values(float (&o)[HD / 8][4], float (&l)[4],
                                              const uint32_t (&p)[4][4], uint32_t vals,
                                              uint32_t lane)
{
    const uint32_t row = lane & 15, chunk = lane >> 4;
    const uint32_t ones = 0x3f803f80u; /* two bf16 */
#pragma unroll
    for (int k = 0; k < 4; k++) {
        attn_mma(l, p[k], ones, ones);
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            attn_ldmatrix_t(b, vals + k * 16 * HD * 2 + at<HD>(row, 2 * n + chunk));
            attn_mma(o[2 * n], p[k], b[0], b[1]);
            attn_mma(o[2 * n + 1], p[k], b[2], b[3]);
        }
    }
}

/* Weights of a tile from its scores: the running maximum moves, what was summed below the old one
 * is rescaled. `fresh`: the chunk's first tile, sums are still clear. */
template <int HD>
static __device__ __forceinline__ void soften(const struct sv_attn_args &a, float (&s)[8][4],
                                              uint32_t (&p)[4][4], struct sum<HD> &c, float (&l)[4],
                                              bool fresh)
{
    float most[2] = {attn_neg_inf(), attn_neg_inf()}, at[2], alpha[2];
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            most[e / 2] = fmaxf(most[e / 2], s[n][e]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(0xffffffffu, most[r], 2));
        const float m = fmaxf(c.m[r], __fmul_rn(most[r], a.scale_log2));
        at[r] = m == attn_neg_inf() ? 0.0f : m;
        alpha[r] = attn_exp2(c.m[r] - at[r]);
        c.m[r] = m;
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float w0 = attn_exp2(__fmaf_rn(s[n][0], a.scale_log2, -at[0]));
        const float w1 = attn_exp2(__fmaf_rn(s[n][1], a.scale_log2, -at[0]));
        const float w2 = attn_exp2(__fmaf_rn(s[n][2], a.scale_log2, -at[1]));
        const float w3 = attn_exp2(__fmaf_rn(s[n][3], a.scale_log2, -at[1]));
        p[n / 2][n % 2 * 2] = attn_pack(w0, w1);
        p[n / 2][n % 2 * 2 + 1] = attn_pack(w2, w3);
    }
    /* Times one is no change: leaving it out when no query of the warp needs it is no
     * difference. */
    if (!fresh && __any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c.o[n][e] = __fmul_rn(c.o[n][e], alpha[e / 2]);
#pragma unroll
        for (int e = 0; e < 4; e++)
            l[e] = __fmul_rn(l[e], alpha[e / 2]);
    }
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

/* Shared memory: the ring (keys, values of each stage), addresses of N_OFFSETS tiles, the plan.
 * Queries pass through the ring's last stage on their way to registers. */
template <int HD, int WARPS>
__global__ void __launch_bounds__(WARPS * 32, WARPS == 4 ? 2 : 1)
    attn_portable(struct sv_attn_args a)
{
    constexpr int TILE_BYTES = SV_ATTN_TILE * HD * 2, STAGE_BYTES = 2 * TILE_BYTES;
    constexpr int TILES_PER_CHUNK = SV_ATTN_CHUNK / SV_ATTN_TILE;
    constexpr int TILES_PER_SPAN = SV_ATTN_SPAN / SV_ATTN_TILE;
    ATTN_SHARED(shared);
    uint32_t *const offsets = (uint32_t *)(shared + a.n_stages * STAGE_BYTES);
    struct attn_items *const plan = (struct attn_items *)(offsets + N_OFFSETS * SV_ATTN_TILE);
    const uint32_t ring = attn_shared_at(shared),
                   last_stage = ring + (a.n_stages - 1) * STAGE_BYTES;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float4 *const run = a.run + (size_t)blockIdx.x * (HD / 8 + 1) * (WARPS * 32) + threadIdx.x;

    if (!a.early)
        sv_pdl_wait();
    sv_pdl_launch(); /* not before, unless segments are settled: see attn_combine */
    if (warp == 0)
        attn_plan_items(a, WARPS * 16, plan);
    __syncthreads();
    const int32_t n_items = plan->n_items * a.p.kv.n_kv_heads;
    const bool whole = plan->unit == SV_ATTN_WHOLE;
    bool waited = false;
    /* One block that waits keeps the launch from ending before those it follows. */
    if (blockIdx.x > 0 && (int32_t)blockIdx.x >= n_items)
        return;

    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_item_at(a, plan, WARPS * 16, i);
        if (it.from == it.to)
            continue;
        const int32_t q_warp = it.q0 + 16 * (int32_t)warp;
        /* Lanes beyond the last query double it: they take part and write nothing. */
        struct lane_rows rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t q = q_warp + (int32_t)lane / 4 + 8 * r,
                          row = attn_div(q < it.n_q ? q : it.n_q - 1, a.by_group);
            rows.lo[r] = attn_lo(a.p, it.g.base, row);
            rows.hi[r] = attn_hi(a.p, it.g.base, it.g.n, row);
        }
        /* What any of the warp's queries sees, and what all see. */
        const int32_t row_first = attn_div(q_warp, a.by_group);
        const int32_t row_last =
            attn_div(q_warp + 15 < it.n_q ? q_warp + 15 : it.n_q - 1, a.by_group);
        const bool busy = q_warp < it.n_q;
        const int32_t lo_any = attn_lo(a.p, it.g.base, row_first),
                      lo_all = attn_lo(a.p, it.g.base, row_last);
        const int32_t hi_any = attn_hi(a.p, it.g.base, it.g.n, row_last);
        const int32_t hi_all = attn_hi(a.p, it.g.base, it.g.n, row_first);

        __syncthreads(); /* the item before is done with shared memory */
        for (int32_t j = threadIdx.x; j < a.n_stages * SV_ATTN_TILE; j += WARPS * 32)
            offsets[j] = attn_key_at(a, it, it.from * SV_ATTN_TILE + j);
        __syncthreads();
        /* Keys of earlier positions are on their way while the launch before may still write the
         * segment's own, which the same instructions load afterwards, and the queries. */
        const int32_t first = it.from * SV_ATTN_TILE;
        const int32_t old = waited ? 1 << 30 : max(it.g.base - first, 0);
#pragma unroll 1
        for (int32_t part = waited ? 1 : 0; part < 2; part++) {
            if (part && !waited)
                settle(a, plan);
            const bool all = waited; /* of an item that is not the block's first, at once */
            for (int32_t j = 0; j < a.n_stages - 1 && it.from + j < it.to; j++) {
                const int32_t edge = old - j * SV_ATTN_TILE;
                load_tile<HD, WARPS>(a, ring + j * STAGE_BYTES, offsets + j * SV_ATTN_TILE,
                                     part && !all ? edge : 0, part ? (int32_t)SV_ATTN_TILE : edge);
            }
            /* The zeros go behind all queries: copies on their way have no order. */
            if (part || WARPS * 16 <= SV_ATTN_TILE)
                load_queries<HD, WARPS>(a, it, last_stage + (part ? 0 : TILE_BYTES), part);
            waited = part;
        }
        for (int32_t j = 0; j < a.n_stages - 1; j++)
            attn_copy_commit(); /* all is in the first group */
        attn_copy_wait(a.n_stages - 2);
        __syncthreads();
        uint32_t qf[HD / 16][4];
#pragma unroll
        for (int k = 0; k < HD / 16; k++)
            attn_ldmatrix(qf[k], last_stage + at<HD>(16 * warp + (lane & 15), 2 * k + (lane >> 4)));

        struct sum<HD> span, chunk;
        float l[4] = {0, 0, 0, 0};
        bool fresh = true, has_run = false;
        int32_t stage = 0, free_stage = a.n_stages - 1;
        sum_clear(span);
        sum_clear(chunk);
        for (int32_t t = it.from; t < it.to; t++) {
            attn_copy_wait(a.n_stages - 2);
            __syncthreads(); /* tile t is there for all, and nobody needs tile t - 1 any more */
            const int32_t ahead = t - it.from + a.n_stages;
            if (t + a.n_stages - 1 < it.to)
                load_tile<HD, WARPS>(a, ring + free_stage * STAGE_BYTES,
                                     offsets + (ahead - 1) % N_OFFSETS * SV_ATTN_TILE);
            attn_copy_commit();
            uint32_t offset = ATTN_NONE;
            if (threadIdx.x < SV_ATTN_TILE && t + a.n_stages < it.to)
                offset = attn_key_at(a, it, (t + a.n_stages) * SV_ATTN_TILE + threadIdx.x);

            const int32_t pos = t * SV_ATTN_TILE;
            if (busy && pos < hi_any && pos + SV_ATTN_TILE > lo_any) {
                float s[8][4];
                uint32_t p[4][4];
                const uint32_t keys = ring + stage * STAGE_BYTES;
                scores<HD>(s, qf, keys, lane);
                if (a.p.softcap > 0)
                    cap_scores(a, s);
                if (pos < lo_all || pos + SV_ATTN_TILE > hi_all)
                    mask_scores(s, rows, pos + (int32_t)lane % 4 * 2);
                soften<HD>(a, s, p, chunk, l, fresh);
                values<HD>(chunk.o, l, p, keys + TILE_BYTES, lane);
                fresh = false;
            }
            if (!fresh && (t % TILES_PER_CHUNK == TILES_PER_CHUNK - 1 || t == it.to - 1)) {
                chunk.l[0] = l[0];
                chunk.l[1] = l[2];
                sum_merge(span, chunk);
                sum_clear(chunk);
                l[0] = l[1] = l[2] = l[3] = 0;
                fresh = true;
            }
            if (whole && t % TILES_PER_SPAN == TILES_PER_SPAN - 1 && t != it.to - 1) {
                if (has_run)
                    run_merge<HD, WARPS * 32>(run, span);
                run_store<HD, WARPS * 32>(run, span);
                sum_clear(span);
                has_run = true;
            }
            if (threadIdx.x < SV_ATTN_TILE)
                offsets[ahead % N_OFFSETS * SV_ATTN_TILE + threadIdx.x] = offset;
            free_stage = stage;
            stage = stage + 1 == a.n_stages ? 0 : stage + 1;
        }
        attn_copy_wait(0);
        if (has_run)
            run_merge<HD, WARPS * 32>(run, span);
        if (whole) {
            __syncthreads(); /* the ring is read to the end: results pass through it */
            if (busy)
                write_rows<HD>(a, it, q_warp, span, ring + warp * 16 * HD * 2, lane);
        } else if (busy) {
            write_parts<HD>(a, it, q_warp, span, lane);
        }
    }
    if (!waited)
        settle(a, plan);
}

template <int HD, int WARPS> static void describe(struct sv_attn_launch *out)
{
    *out =
        (struct sv_attn_launch){.kernel = attn_portable<HD, WARPS>,
                                .tile_rows = WARPS * 16,
                                .n_threads = WARPS * 32,
                                .blocks_per_sm = WARPS == 4 ? 2 : 1,
                                .stage_bytes = 2 * SV_ATTN_TILE * HD * 2,
                                .fixed_bytes = N_OFFSETS * SV_ATTN_TILE * (int32_t)sizeof(uint32_t),
                                .max_stages = 5,
                                .run_bytes = 0,
                                .maps = false};
}

bool sv_cuda_attn_portable(int32_t head_dim, int32_t n_warps, struct sv_attn_launch *out)
{
    if (head_dim == 128)
        n_warps == 4 ? describe<128, 4>(out) : describe<128, 8>(out);
    else if (head_dim == 64)
        n_warps == 4 ? describe<64, 4>(out) : describe<64, 8>(out);
    else
        return false;
    return true;
}
