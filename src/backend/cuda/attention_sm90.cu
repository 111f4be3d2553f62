/*
 * attention_sm90.cu - paged attention on the matrix instruction of sm_90a. Head sizes 64 and 128.
 *
 * Launched by attention.cu. The shape of attention_portable.cu: a ring of stages with 64 keys each, filled by cp.async
 * while earlier ones are worked on. But four warps hold 64 queries together, and keys and values go from shared memory into the
 * matrix units without passing through registers. A warpgroup adds for its queries in the order that attention.h
 * fixes; what differs from the portable set is rounding inside the instruction and how the weights are summed. Must not:
 * let a query's sum depend on its place in the tile, on the other queries or on which block works on which keys.
 */
#include "backend/cuda/attention_frag.cuh"
#include "backend/cuda/attention_wgmma.cuh"

enum { N_OFFSETS = 8, GROUP_ROWS = 64, HALF_BYTES = SV_ATTN_TILE * 128 };

/* ---------------------------------------------------------------- loads */

template <int HD, int THREADS>
static __device__ __forceinline__ void load_tile(const struct sv_attn_args &a, uint32_t stage,
                                                 const uint32_t *offsets)
{
    constexpr uint32_t CHUNKS = HD / 8, TILE_BYTES = SV_ATTN_TILE * HD * 2;
    const uint4 *k = (const uint4 *)a.p.kv.k, *v = (const uint4 *)a.p.kv.v;
    const uint32_t chunk = threadIdx.x % CHUNKS, first = threadIdx.x / CHUNKS;
    /* A thread's rows are 8 or more apart: their permutation is the same. */
    const uint32_t to = stage + chunk / 8 * HALF_BYTES + first * 128 + ((chunk ^ first) & 7) * 16;
#pragma unroll
    for (uint32_t i = 0; i < SV_ATTN_TILE * CHUNKS / THREADS; i++) {
        const uint32_t off = offsets[first + i * (THREADS / CHUNKS)];
        const bool seen = off != ATTN_NONE;
        const uint64_t from = seen ? (uint64_t)off + chunk : 0;
        attn_copy16(to + i * (THREADS / CHUNKS) * 128, k + from, seen);
        attn_copy16(to + TILE_BYTES + i * (THREADS / CHUNKS) * 128, v + from, seen);
    }
}

template <int HD, int THREADS>
static __device__ __forceinline__ void load_queries(const struct sv_attn_args &a, const struct attn_item &it,
                                                    uint32_t to)
{
    constexpr int CHUNKS = HD / 8;
    const uint32_t chunk = threadIdx.x % CHUNKS;
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) { /* THREADS / 2 rows */
        const int32_t row = threadIdx.x / CHUNKS + i * (THREADS / CHUNKS), q = it.q0 + row;
        const bool there = q < it.n_q;
        const __nv_bfloat16 *from = (const __nv_bfloat16 *)a.p.q;
        if (there) {
            const int32_t r = q / a.group, head = it.kv_head * a.group + (q - r * a.group);
            from += (int64_t)(it.g.row0 + r) * a.p.ldq + (int64_t)head * HD + chunk * 8;
        }
        attn_copy16(to + at<HD>(row, chunk), from, there);
    }
}

/* Starts the copies of the tile n_stages - 1 after t, whose addresses are known, and looks up those of the tile after
 * that: they are for the next round. */
template <int HD, int THREADS>
static __device__ __forceinline__ void next_tile(const struct sv_attn_args &a, const struct attn_item &it, int32_t t,
                                                 uint32_t stage, const uint32_t *offsets, uint32_t *offset)
{
    if (t + a.n_stages - 1 < it.to)
        load_tile<HD, THREADS>(a, stage,
                               offsets + (t - it.from + a.n_stages - 1) % N_OFFSETS * SV_ATTN_TILE);
    attn_copy_commit();
    if (threadIdx.x < SV_ATTN_TILE && t + a.n_stages < it.to)
        *offset = attn_key_at(a, it, (t + a.n_stages) * SV_ATTN_TILE + threadIdx.x);
}

/* ---------------------------------------------------------------- one tile of keys */

/* Weights of a tile from its scores, as in the portable set; but each lane adds up its own columns of l, which are put
 * together at the chunk's end. */
template <int HD>
static __device__ __forceinline__ void soften(const struct sv_attn_args &a, float (&s)[8][4],
                                              uint32_t (&p)[4][4], struct sum<HD> &c, bool fresh)
{
    float most[2] = {attn_neg_inf(), attn_neg_inf()}, at[2], alpha[2], add[2] = {0, 0};
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
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = attn_exp2(__fmaf_rn(s[n][e], a.scale_log2, -at[e / 2]));
            add[e / 2] = __fadd_rn(add[e / 2], s[n][e]);
        }
        p[n / 2][n % 2 * 2] = attn_pack(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = attn_pack(s[n][2], s[n][3]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        c.l[r] = __fmaf_rn(c.l[r], alpha[r], add[r]);
    /* Times one is no change: leaving it out when no query of the warp needs it is no difference. */
    if (!fresh && __any_sync(0xffffffffu, alpha[0] != 1.0f || alpha[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                c.o[n][e] = __fmul_rn(c.o[n][e], alpha[e / 2]);
    }
}

template <int HD>
static __device__ __forceinline__ void scores(float (&s)[8][4], const uint32_t (&q)[HD / 16][4], uint32_t keys)
{
    attn_wgmma_pin(s);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < HD / 16; k++)
        attn_wgmma_keys(s, q[k], attn_desc_keys(keys + k / 4 * HALF_BYTES + k % 4 * 32), k > 0);
    attn_wgmma_commit();
}

template <int HD>
static __device__ __forceinline__ void values(float (&o)[HD / 8][4], const uint32_t (&p)[4][4], uint32_t vals)
{
    attn_wgmma_pin(o);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < SV_ATTN_TILE / 16; k++)
        attn_wgmma_values<HD>(o, p[k], attn_desc_values(vals + k * 2048));
    attn_wgmma_commit();
}

/* ---------------------------------------------------------------- the kernel */

/* Shared memory as in the portable kernel. */
template <int HD, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 128, GROUPS == 1 ? 2 : 1) attn_sm90(struct sv_attn_args a)
{
    constexpr int THREADS = GROUPS * 128, TILE_BYTES = SV_ATTN_TILE * HD * 2, STAGE_BYTES = 2 * TILE_BYTES;
    constexpr int TILES_PER_CHUNK = SV_ATTN_CHUNK / SV_ATTN_TILE;
    constexpr int TILES_PER_SPAN = SV_ATTN_SPAN / SV_ATTN_TILE;
    ATTN_SHARED(shared);
    uint32_t *const offsets = (uint32_t *)(shared + a.n_stages * STAGE_BYTES);
    struct attn_items *const plan = (struct attn_items *)(offsets + N_OFFSETS * SV_ATTN_TILE);
    const uint32_t ring = attn_shared_at(shared), last_stage = ring + (a.n_stages - 1) * STAGE_BYTES;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* Said so that the compiler sees that a warp never parts over it. */
    const int32_t group = GROUPS == 1 ? 0 : __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / 128, 0);
    float4 *const run = a.run + (size_t)blockIdx.x * (HD / 8 + 1) * THREADS + threadIdx.x;

    sv_pdl_launch();
    sv_pdl_wait();
    if (warp == 0)
        attn_plan_items(a, GROUPS * GROUP_ROWS, plan);
    __syncthreads();
    const int32_t n_items = plan->n_items * a.p.kv.n_kv_heads;
    const bool whole = plan->unit == SV_ATTN_WHOLE;

    for (int32_t i = blockIdx.x; i < n_items; i += gridDim.x) {
        const struct attn_item it = attn_item_at(a, plan, GROUPS * GROUP_ROWS, i);
        if (it.from == it.to)
            continue;
        const int32_t q_warp = it.q0 + 16 * (int32_t)warp, q_group = it.q0 + GROUP_ROWS * group;
        /* Lanes beyond the last query double it: they take part and write nothing. */
        struct lane_rows rows;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int32_t q = q_warp + (int32_t)lane / 4 + 8 * r, row = (q < it.n_q ? q : it.n_q - 1) / a.group;
            rows.lo[r] = attn_lo(a.p, it.g.base, row);
            rows.hi[r] = attn_hi(a.p, it.g.base, it.g.n, row);
        }
        /* What any of the warpgroup's queries sees, and what all see. */
        const bool busy = q_group < it.n_q;
        const int32_t row_first = q_group / a.group;
        const int32_t row_last = (q_group + GROUP_ROWS - 1 < it.n_q ? q_group + GROUP_ROWS - 1 : it.n_q - 1) / a.group;
        const int32_t lo_any = attn_lo(a.p, it.g.base, row_first), lo_all = attn_lo(a.p, it.g.base, row_last);
        const int32_t hi_any = attn_hi(a.p, it.g.base, it.g.n, row_last);
        const int32_t hi_all = attn_hi(a.p, it.g.base, it.g.n, row_first);

        __syncthreads(); /* the item before is done with shared memory */
        for (int32_t j = threadIdx.x; j < a.n_stages * SV_ATTN_TILE; j += THREADS)
            offsets[j] = attn_key_at(a, it, it.from * SV_ATTN_TILE + j);
        load_queries<HD, THREADS>(a, it, last_stage);
        __syncthreads();
        for (int32_t j = 0; j < a.n_stages - 1; j++) {
            if (it.from + j < it.to)
                load_tile<HD, THREADS>(a, ring + j * STAGE_BYTES, offsets + j * SV_ATTN_TILE);
            attn_copy_commit();
        }
        attn_copy_wait(a.n_stages - 2);
        __syncthreads();
        uint32_t qf[HD / 16][4];
#pragma unroll
        for (int k = 0; k < HD / 16; k++)
            attn_ldmatrix(qf[k], last_stage + at<HD>(16 * warp + (lane & 15), 2 * k + (lane >> 4)));

        struct sum<HD> span, chunk;
        bool fresh = true, has_run = false;
        int32_t stage = 0, free_stage = a.n_stages - 1;
        sum_clear(span);
        sum_clear(chunk);
        for (int32_t t = it.from; t < it.to; t++) {
            attn_copy_wait(a.n_stages - 2);
            attn_proxy_fence();
            __syncthreads(); /* tile t is there for all, and nobody needs tile t - 1 any more */
            const int32_t ahead = t - it.from + a.n_stages, pos = t * SV_ATTN_TILE;
            const uint32_t keys = ring + stage * STAGE_BYTES;
            const bool seen = busy && pos < hi_any && pos + SV_ATTN_TILE > lo_any;
            uint32_t offset = ATTN_NONE;
            float s[8][4];
            uint32_t p[4][4];
            if (!seen) {
                next_tile<HD, THREADS>(a, it, t, ring + free_stage * STAGE_BYTES, offsets, &offset);
            } else {
                scores<HD>(s, qf, keys);
                next_tile<HD, THREADS>(a, it, t, ring + free_stage * STAGE_BYTES, offsets, &offset);
                attn_wgmma_wait<0>();
                attn_wgmma_pin(s);
                if (a.p.softcap > 0)
                    cap_scores(a, s);
                if (pos < lo_all || pos + SV_ATTN_TILE > hi_all)
                    mask_scores(s, rows, pos + (int32_t)lane % 4 * 2);
                soften<HD>(a, s, p, chunk, fresh);
                values<HD>(chunk.o, p, keys + TILE_BYTES);
                attn_wgmma_wait<0>();
                attn_wgmma_pin(chunk.o);
                fresh = false;
            }
            if (!fresh && (t % TILES_PER_CHUNK == TILES_PER_CHUNK - 1 || t == it.to - 1)) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    chunk.l[r] = __fadd_rn(chunk.l[r], __shfl_xor_sync(0xffffffffu, chunk.l[r], 1));
                    chunk.l[r] = __fadd_rn(chunk.l[r], __shfl_xor_sync(0xffffffffu, chunk.l[r], 2));
                }
                sum_merge(span, chunk);
                sum_clear(chunk);
                fresh = true;
            }
            if (whole && t % TILES_PER_SPAN == TILES_PER_SPAN - 1 && t != it.to - 1) {
                if (has_run)
                    run_merge(run, span);
                run_store(run, span);
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
            run_merge(run, span);
        if (whole) {
            __syncthreads(); /* the ring is read to the end: results pass through it */
            if (q_warp < it.n_q)
                write_rows<HD>(a, it, q_warp, span, ring + warp * 16 * HD * 2, lane);
        } else if (q_warp < it.n_q) {
            write_parts<HD>(a, it, plan->item0[a.p.rows.n_segs + 1 + it.seg], q_warp, span, lane);
        }
    }
}

template <int HD, int GROUPS> static void describe(struct sv_attn_launch *out)
{
    *out = (struct sv_attn_launch){.kernel = attn_sm90<HD, GROUPS>,
                                   .tile_rows = GROUPS * GROUP_ROWS,
                                   .n_threads = GROUPS * 128,
                                   .blocks_per_sm = GROUPS == 1 ? 2 : 1,
                                   .stage_bytes = 2 * SV_ATTN_TILE * HD * 2,
                                   .fixed_bytes = N_OFFSETS * SV_ATTN_TILE * (int32_t)sizeof(uint32_t),
                                   .max_stages = 5};
}

bool sv_cuda_attn_sm90(int32_t head_dim, int32_t n_warps, struct sv_attn_launch *out)
{
    if (head_dim == 128)
        n_warps == 4 ? describe<128, 1>(out) : describe<128, 2>(out);
    else if (head_dim == 64)
        n_warps == 4 ? describe<64, 1>(out) : describe<64, 2>(out);
    else
        return false;
    return true;
}
