/*
 * attention_sm90.cu - paged attention on the matrix instruction and the copy engine of sm_90a. Head sizes 64 and 128.
 *
 * Launched by attention.cu. A block is one warp that loads and one or two warpgroups that work, 64 queries each. The
 * loader runs ahead through a ring of stages, over item borders too: a stage is a chunk of 128 keys or of 128 values, in
 * boxes of a page each. A warpgroup takes a chunk in one go: scores, one maximum, weights, values; then the chunk is
 * merged into the span's sum, as attention.h orders. What differs from the portable set is rounding inside the
 * instruction and the one maximum of a chunk. Must not: let a query's sum depend on its place in the tile, on
 * the other queries or on which block works on which keys.
 */
#include "backend/cuda/attention_async.cuh"
#include "backend/cuda/attention_frag.cuh"
#include "backend/cuda/attention_wgmma.cuh"

#ifndef SV_CUDA_EMULATED
#include <cudaTypedefs.h>
#endif

enum {
    GROUP_ROWS = 64,
    KEYS = SV_ATTN_CHUNK,
    HALF_BYTES = KEYS * 128, /* 64 columns of a stage */
    MAX_STAGES = 6,
    BAR_BYTES = 2 * MAX_STAGES * 8
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
static __device__ __forceinline__ void ring_next(struct ring &r)
{
    if (++r.stage == r.n_stages) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* ---------------------------------------------------------------- the loader */

/* The page of this lane's box of chunk c, -1 when no row of the tile sees any of it. */
static __device__ __forceinline__ int32_t box_page(const struct sv_attn_args &a, const struct attn_item &it,
                                                   int32_t first)
{
    const int32_t i = first >> a.page_shift;
    int32_t page = -1;
    if (first >= it.seen_hi || first + a.box_rows <= it.seen_lo)
        return -1;
    if (i < a.p.kv.table_stride)
        page = a.p.kv.table[(int64_t)it.g.slot * a.p.kv.table_stride + i];
    if (page < 0 || page >= a.p.kv.n_pages) {
        sv_fault_set(a.fault, SV_CUDA_FAULT_READ_PAGE, it.g.slot, first > it.seen_lo ? first : it.seen_lo, 0);
        return -1;
    }
    return page;
}

template <int HD>
static __device__ __forceinline__ void load_chunk(const struct sv_attn_args &a, const struct attn_item &it,
                                                  int32_t first, int32_t half, int32_t page, struct ring &r)
{
    const uint32_t boxes = (uint32_t)__popc(__ballot_sync(0xffffffffu, page >= 0));
    const uint32_t to = (uint32_t)half * HALF_BYTES + (uint32_t)(first % KEYS) * 128;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        attn_bar_wait(ring_free(r), r.phase ^ 1);
        if (threadIdx.x % 32 == 0)
            attn_bar_expect(ring_full(r), boxes * (uint32_t)a.box_rows * 128);
        __syncwarp();
        if (page >= 0)
            attn_box(r.data + (uint32_t)r.stage * (KEYS * HD * 2) + to, i ? &a.v_map : &a.k_map, half * 64,
                     first & (a.p.kv.page_size - 1), it.kv_head, page, ring_full(r));
        ring_next(r);
    }
}

/* The whole warp. A lane stands for a box: some rows of one page, 64 columns. */
template <int HD>
static __device__ __forceinline__ void load(const struct sv_attn_args &a, struct attn_items *plan, int32_t tile_rows,
                                            struct ring r)
{
    const int32_t n_items = plan->n_items * a.p.kv.n_kv_heads, lane = threadIdx.x % 32;
    const int32_t per_half = KEYS / a.box_rows, half = lane / per_half;
    const int32_t at = half < HD / 64 ? lane % per_half * a.box_rows : 1 << 30;

    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_item_at(a, plan, tile_rows, i);
        if (it.from == it.to)
            continue;
        const int32_t end = (it.seen_hi + KEYS - 1) / KEYS;
        int32_t c = it.seen_lo / KEYS, page = box_page(a, it, c * KEYS + at);
        for (; c < end; c++) {
            const int32_t now = page;
            if (c + 1 < end)
                page = box_page(a, it, (c + 1) * KEYS + at);
            load_chunk<HD>(a, it, c * KEYS + at, half, now, r);
        }
    }
}

/* ---------------------------------------------------------------- a chunk of keys */

/* Two rows of queries of each lane, as the matrix instruction wants them, from global memory. */
template <int HD>
static __device__ __forceinline__ void load_queries(const struct sv_attn_args &a, const struct attn_item &it,
                                                    int32_t q_warp, uint32_t lane, uint32_t (&q)[HD / 16][4])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t i = q_warp + (int32_t)lane / 4 + 8 * r, row = i / a.group;
        const uint32_t *from = (const uint32_t *)((const __nv_bfloat16 *)a.p.q + (int64_t)(it.g.row0 + row) * a.p.ldq +
                                                  (int64_t)(it.kv_head * a.group + i - row * a.group) * HD) +
                               lane % 4;
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            q[k][r] = i < it.n_q ? from[k * 8] : 0;
            q[k][r + 2] = i < it.n_q ? from[k * 8 + 4] : 0;
        }
    }
}

/* Starts half a chunk's scores. */
template <int HD>
static __device__ __forceinline__ void scores(float (&s)[8][4], uint32_t (&q)[HD / 16][4], uint32_t keys)
{
    attn_wgmma_pin(s);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < HD / 16; k++)
        attn_wgmma_keys(s, q[k], attn_desc_keys(keys + k / 4 * HALF_BYTES + k % 4 * 32), k > 0);
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
static __device__ __forceinline__ void weights(const struct sv_attn_args &a, float (&s)[8][4], const float (&at)[2],
                                               uint32_t (&p)[4][4], float (&l)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = attn_exp2(__fmaf_rn(s[n][e], a.scale_log2, -at[e / 2]));
            l[e / 2] = __fadd_rn(l[e / 2], s[n][e]);
        }
        p[n / 2][n % 2 * 2] = attn_pack(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = attn_pack(s[n][2], s[n][3]);
    }
}

/* Starts the products with half a chunk's values; the first half clears o. */
template <int HD>
static __device__ __forceinline__ void values(float (&o)[HD / 8][4], uint32_t (&p)[4][4], uint32_t vals, bool first)
{
    attn_wgmma_pin(p);
    attn_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++)
        attn_wgmma_values<HD>(o, p[k], attn_desc_values(vals + k * 2048), !first || k > 0);
    attn_wgmma_commit();
}

/* Values that no row of the tile sees may be anything in memory, even NaN: a weight of zero does not stop that. */
template <int HD>
static __device__ __forceinline__ void clear_unseen(uint32_t vals, int32_t lo, int32_t hi, int32_t group)
{
    constexpr int CHUNKS = HD / 8;
    const uint32_t t = threadIdx.x % 128, col = t % CHUNKS;
#pragma unroll
    for (uint32_t i = 0; i < KEYS * CHUNKS / 128; i++) {
        const uint32_t row = t / CHUNKS + i * (128 / CHUNKS);
        if ((int32_t)row < lo || (int32_t)row >= hi)
            attn_store16_zero(vals + col / 8 * HALF_BYTES + row * 128 + col % 8 * 16);
    }
    attn_proxy_fence();
    attn_group_sync(group);
}

/* What the warpgroup's queries see: any of them, all of them; and each lane's own two. */
struct sight {
    struct lane_rows rows;
    int32_t lo_any, lo_all, hi_any, hi_all;
};

/* One chunk: its sum, from a stage of keys and one of values. */
template <int HD>
static __device__ __forceinline__ void chunk_sum(const struct sv_attn_args &a, const struct attn_item &it,
                                                 const struct sight &see, int32_t c, int32_t group,
                                                 uint32_t (&q)[HD / 16][4], struct sum<HD> &chunk, struct ring &r)
{
    const uint32_t lane = threadIdx.x % 32, keys = r.data + (uint32_t)r.stage * (KEYS * HD * 2);
    const int32_t pos = c * KEYS;
    float s[2][8][4], most[2] = {attn_neg_inf(), attn_neg_inf()}, at[2];
    uint32_t p[2][4][4];

    attn_bar_wait(ring_full(r), r.phase);
    attn_wgmma_pin(q);
    scores<HD>(s[0], q, keys);
    scores<HD>(s[1], q, keys + 64 * 128);
    const bool mask = pos < see.lo_all || pos + KEYS > see.hi_all;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (h == 0)
            attn_wgmma_wait<1>();
        else
            attn_wgmma_wait<0>();
        attn_wgmma_pin(s[h]);
        if (h == 1) {
            attn_wgmma_pin(q);
            __syncwarp();
            if (lane == 0)
                attn_bar_arrive(ring_free(r));
        }
        if (a.p.softcap > 0)
            cap_scores(a, s[h]);
        if (mask)
            mask_scores(s[h], see.rows, pos + h * 64 + (int32_t)lane % 4 * 2);
        highest(s[h], most);
    }
    ring_next(r);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 1));
        most[i] = fmaxf(most[i], __shfl_xor_sync(0xffffffffu, most[i], 2));
        chunk.m[i] = __fmul_rn(most[i], a.scale_log2);
        at[i] = chunk.m[i] == attn_neg_inf() ? 0.0f : chunk.m[i];
        chunk.l[i] = 0;
    }

    const uint32_t vals = r.data + (uint32_t)r.stage * (KEYS * HD * 2);
    attn_bar_wait(ring_full(r), r.phase);
    if (pos < it.seen_lo || pos + KEYS > it.seen_hi)
        clear_unseen<HD>(vals, it.seen_lo - pos, it.seen_hi - pos, group);
    weights(a, s[0], at, p[0], chunk.l);
    attn_wgmma_pin(chunk.o);
    values<HD>(chunk.o, p[0], vals, true);
    weights(a, s[1], at, p[1], chunk.l);
    values<HD>(chunk.o, p[1], vals + 4 * 2048, false);
    attn_wgmma_wait<0>();
    attn_wgmma_pin(chunk.o);
    attn_wgmma_pin(p[0]);
    attn_wgmma_pin(p[1]);
    __syncwarp();
    if (lane == 0)
        attn_bar_arrive(ring_free(r));
    ring_next(r);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        chunk.l[i] = __fadd_rn(chunk.l[i], __shfl_xor_sync(0xffffffffu, chunk.l[i], 1));
        chunk.l[i] = __fadd_rn(chunk.l[i], __shfl_xor_sync(0xffffffffu, chunk.l[i], 2));
    }
}

/* ---------------------------------------------------------------- the workers */

/* Finished rows, straight from registers. */
template <int HD>
static __device__ __forceinline__ void write_out(const struct sv_attn_args &a, const struct attn_item &it,
                                                 int32_t q_warp, const struct sum<HD> &s, uint32_t lane)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t q = q_warp + (int32_t)lane / 4 + 8 * r;
        if (q >= it.n_q)
            continue;
        const int32_t row = q / a.group, head = it.kv_head * a.group + (q - row * a.group);
        const float inverse = attn_inverse(a, head, s.m[r], s.l[r]);
        uint32_t *to = (uint32_t *)((__nv_bfloat16 *)a.p.out + (int64_t)(it.g.row0 + row) * a.p.ldo +
                                    (int64_t)head * HD) +
                       lane % 4;
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            to[n * 4] = attn_pack(attn_output(s.o[n][2 * r], inverse), attn_output(s.o[n][2 * r + 1], inverse));
    }
}

template <int HD, int GROUPS>
static __device__ __forceinline__ void work(const struct sv_attn_args &a, struct attn_items *plan, struct ring r,
                                            float4 *run)
{
    constexpr int THREADS = GROUPS * 128, CHUNKS_PER_SPAN = SV_ATTN_SPAN / KEYS;
    const uint32_t lane = threadIdx.x % 32;
    /* Said so that the compiler sees that a warp never parts over them. */
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / 32, 0), group = warp / 4;
    const int32_t n_items = plan->n_items * a.p.kv.n_kv_heads;
    const bool whole = plan->unit == SV_ATTN_WHOLE;

    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_item_at(a, plan, GROUPS * GROUP_ROWS, i);
        if (it.from == it.to)
            continue;
        const int32_t q_warp = it.q0 + 16 * warp, q_group = it.q0 + GROUP_ROWS * group;
        const bool busy = q_group < it.n_q, real = q_warp < it.n_q;
        uint32_t q[HD / 16][4];
        load_queries<HD>(a, it, q_warp, lane, q);
        struct sight see;
        /* Lanes beyond the last query double it: they take part and write nothing. */
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int32_t at = q_warp + (int32_t)lane / 4 + 8 * j, row = (at < it.n_q ? at : it.n_q - 1) / a.group;
            see.rows.lo[j] = attn_lo(a.p, it.g.base, row);
            see.rows.hi[j] = attn_hi(a.p, it.g.base, it.g.n, row);
        }
        const int32_t row_first = q_group / a.group;
        const int32_t row_last = (q_group + GROUP_ROWS < it.n_q ? q_group + GROUP_ROWS - 1 : it.n_q - 1) / a.group;
        see.lo_any = attn_lo(a.p, it.g.base, row_first);
        see.lo_all = attn_lo(a.p, it.g.base, row_last);
        see.hi_any = attn_hi(a.p, it.g.base, it.g.n, row_last);
        see.hi_all = attn_hi(a.p, it.g.base, it.g.n, row_first);

        const int32_t end = (it.seen_hi + KEYS - 1) / KEYS;
        struct sum<HD> span;
        bool has_run = false;
        sum_clear(span);
        for (int32_t c = it.seen_lo / KEYS; c < end; c++) {
            if (busy && c * KEYS < see.hi_any && (c + 1) * KEYS > see.lo_any) {
                struct sum<HD> chunk;
                chunk_sum<HD>(a, it, see, c, group, q, chunk, r);
                if (real)
                    sum_merge(span, chunk);
            } else {
                for (int j = 0; j < 2; j++) { /* nothing in it for this warpgroup */
                    attn_bar_wait(ring_full(r), r.phase);
                    __syncwarp();
                    if (lane == 0)
                        attn_bar_arrive(ring_free(r));
                    ring_next(r);
                }
            }
            if (whole && real && c % CHUNKS_PER_SPAN == CHUNKS_PER_SPAN - 1 && c != end - 1) {
                if (has_run)
                    run_merge<HD, THREADS>(run, span);
                run_store<HD, THREADS>(run, span);
                sum_clear(span);
                has_run = true;
            }
        }
        if (has_run)
            run_merge<HD, THREADS>(run, span);
        if (whole && real)
            write_out<HD>(a, it, q_warp, span, lane);
        if (!whole && real)
            write_parts<HD>(a, it, q_warp, span, lane);
    }
}

/* Shared memory: the ring, with two warpgroups their sums of spans, barriers, the plan. */
template <int HD, int GROUPS>
__global__ void __launch_bounds__(GROUPS * 128 + 128, GROUPS == 1 ? 2 : 1)
    attn_sm90(const __grid_constant__ struct sv_attn_args a)
{
    constexpr int WORKERS = GROUPS * 128, RUN_BYTES = GROUPS == 1 ? 0 : (HD / 8 + 1) * WORKERS * 16;
    ATTN_SHARED(shared);
    uint8_t *const behind = shared + a.n_stages * (KEYS * HD * 2);
    struct attn_items *const plan = (struct attn_items *)(behind + RUN_BYTES + BAR_BYTES);
    const struct ring r = {attn_shared_at(shared), attn_shared_at(behind + RUN_BYTES), a.n_stages, 0, 0};
    const bool loader = threadIdx.x >= WORKERS;

    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < a.n_stages; i++) {
            attn_bar_init(r.bars + 16 * i, 1);
            attn_bar_init(r.bars + 16 * i + 8, GROUPS * 4);
        }
        attn_bar_made();
    }
    if (threadIdx.x == WORKERS) {
        attn_map_fetch(&a.k_map);
        attn_map_fetch(&a.v_map);
    }
    sv_pdl_wait();
    sv_pdl_launch(); /* not before: see attn_combine */
    if (threadIdx.x / 32 == WORKERS / 32)
        attn_plan_items(a, GROUPS * GROUP_ROWS, plan);
    __syncthreads();
    if (loader) { /* a warpgroup of its own, so that it can give registers away; one warp loads */
        attn_fewer_registers<40>();
        if (threadIdx.x < WORKERS + 32)
            load<HD>(a, plan, GROUPS * GROUP_ROWS, r);
    } else {
        attn_more_registers<GROUPS == 1 ? 216 : 232>();
        float4 *const run = GROUPS == 1 ? a.run + (size_t)blockIdx.x * (HD / 8 + 1) * WORKERS : (float4 *)behind;
        work<HD, GROUPS>(a, plan, r, run + threadIdx.x);
    }
}

/* ---------------------------------------------------------------- host side */

template <int HD, int GROUPS> static void describe(struct sv_attn_launch *out)
{
    const int32_t run = GROUPS == 1 ? 0 : (HD / 8 + 1) * GROUPS * 128 * 16;
    *out = (struct sv_attn_launch){.kernel = attn_sm90<HD, GROUPS>,
                                   .tile_rows = GROUPS * GROUP_ROWS,
                                   .n_threads = GROUPS * 128 + 128,
                                   .blocks_per_sm = GROUPS == 1 ? 2 : 1,
                                   .stage_bytes = KEYS * HD * 2,
                                   .fixed_bytes = run + BAR_BYTES,
                                   .max_stages = MAX_STAGES,
                                   .maps = true};
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

#ifndef SV_CUDA_EMULATED

int sv_cuda_attn_maps_open(void **encode, struct sv_err *err)
{
    cudaDriverEntryPointQueryResult found;
    static_assert(sizeof(CUtensorMap) == sizeof(struct sv_attn_map), "a tensor map");
    return sv_cuda_try(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", encode, 12000, cudaEnableDefault,
                                                        &found),
                       err, "the driver's tensor maps");
}

bool sv_cuda_attn_maps(struct sv_cuda *cu, void *encode, struct sv_attn_args *a)
{
    const struct sv_kv *kv = &a->p.kv;
    const cuuint64_t row = (cuuint64_t)kv->head_dim * 2, head = row * (cuuint64_t)kv->page_size;
    const cuuint64_t dims[4] = {(cuuint64_t)kv->head_dim, (cuuint64_t)kv->page_size, (cuuint64_t)kv->n_kv_heads,
                                (cuuint64_t)kv->n_pages};
    const cuuint64_t strides[3] = {row, head, head * (cuuint64_t)kv->n_kv_heads};
    const cuuint32_t box[4] = {64, (cuuint32_t)a->box_rows, 1, 1}, step[4] = {1, 1, 1, 1};
    PFN_cuTensorMapEncodeTiled_v12000 fn = (PFN_cuTensorMapEncodeTiled_v12000)encode;
    for (int i = 0; i < 2; i++)
        if (fn((CUtensorMap *)(void *)(i ? &a->v_map : &a->k_map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
               i ? kv->v : kv->k, dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
            return sv_cuda_check(cu, cudaErrorInvalidValue, "tensor map of a cache");
    return true;
}

#else

int sv_cuda_attn_maps_open(void **, struct sv_err *)
{
    return SV_OK;
}

bool sv_cuda_attn_maps(struct sv_cuda *, void *, struct sv_attn_args *a)
{
    sv_attn_emulated_map(&a->k_map, a->p.kv.k, &a->p.kv, a->box_rows);
    sv_attn_emulated_map(&a->v_map, a->p.kv.v, &a->p.kv, a->box_rows);
    return true;
}

#endif
