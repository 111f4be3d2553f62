/*
 * attention_sm90.cu - paged attention on the matrix instruction and the copy engine of sm_90a. Head
 * sizes 64, 128 and, of a cache in bf16, 256.
 *
 * Launched by attention.cu. A block is four warps that load and one or two warpgroups that work, 64
 * queries each. The loaders run ahead through a ring of stages, over item borders too: a stage is
 * half a chunk's keys or half its values, in boxes of a page each. A warpgroup takes a chunk in one
 * go: scores, one maximum, weights, values; then the chunk is merged into the span's sum, as
 * attention.h orders. What differs from the portable set is rounding inside the instruction and the
 * one maximum of a chunk. Of a cache in e4m3 the loaders bring codes to memory of their own, and
 * write their values to the stages: the workers see no difference. Must not: let a query's sum
 * depend on its place in the tile, on the other queries or on which block works on which keys.
 */
#include "backend/cuda/attention_chunk.cuh"
#include "backend/gpu/kv_f8.cuh"

#ifndef SV_CUDA_EMULATED
#include <cudaTypedefs.h>
#endif

enum { ASIDE_BYTES = 8 * 32, LOADERS = 4 /* warps */ };

/* Shared memory of the loaders of a cache in e4m3: each warp has a ring of its own of codes, a
 * stage of which is a quarter of a stage's keys, and its barriers. */
enum { RAW_STAGES = 4, OWN_KEYS = HALF / LOADERS };
template <int HD, bool F8> struct raw {
    enum {
        STAGE_BYTES = OWN_KEYS * HD,
        BARS_AT = LOADERS * RAW_STAGES * STAGE_BYTES,
        BYTES = F8 ? BARS_AT + LOADERS * RAW_STAGES * 8 : 0
    };
};
/* A block's warpgroups that work: GROUPS of 64 queries each, and of each as many as divide its
 * columns. */
template <int HD, int GROUPS> static constexpr int WORKERS = GROUPS *layout<HD>::PARTS * 128;
/* Whether a block's sum of spans lies in shared memory: two stages would remain beside it and
 * codes, three beside it and heads of 256. */
template <int HD, int GROUPS, bool F8>
static constexpr bool RUN_BESIDE = layout<HD>::PARTS == 1 && (!F8 || GROUPS == 2);

/* What a warp needs to know of its item only at the end, kept out of its registers. */
static __device__ __forceinline__ void aside_put(volatile int32_t *to, const struct attn_item &it)
{
    __syncwarp(); /* every lane has read the one before */
    to[0] = it.g.row0;
    to[1] = it.n_q;
    to[2] = it.kv_head;
    to[3] = it.part;
}
static __device__ __forceinline__ void aside_get(const volatile int32_t *from, struct attn_item &it)
{
    it.g.row0 = from[0];
    it.n_q = from[1];
    it.kv_head = from[2];
    it.part = from[3];
}

/* Everything before this launch is done; what it wrote may be read, and what it reads be
 * written. */
static __device__ __forceinline__ void attn_settle(const struct sv_attn_args &a, int32_t unit)
{
    sv_pdl_wait();
    sv_pdl_launch(); /* not before, unless segments are settled: see attn_combine */
    if (a.plan == NULL && blockIdx.x == 0 && threadIdx.x % 128 == 0)
        *a.plan_unit = unit;
}

/* ---------------------------------------------------------------- the loader */

/* The whole of each of LOADERS warps. */
template <int HD>
static __device__ __forceinline__ void load(const struct sv_attn_args &a, struct attn_items *plan,
                                            const struct attn_head &h, int32_t tile_rows,
                                            struct ring r)
{
    const int32_t n_items = h.n_items;
    const struct box b = box_of<LOADERS>(a);
    bool waited = false;

    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_turn_item(a, plan, h, tile_rows, turn, i);
        if (it.from == it.to)
            continue;
        const int32_t end = (it.seen_hi + KEYS - 1) / KEYS;
        const int32_t c = it.seen_lo / KEYS;
        int32_t done = 0;
        if (!waited)
            done = load_first<HD>(a, it, b, end - c, r, [&]() { attn_settle(a, h.unit); });
        waited = true;
        load_rest<HD>(a, it, b, c + done / 4, end, done % 4, r);
    }
    if (!waited)
        attn_settle(a, h.unit);
}

/* ---------------------------------------------------------------- the loader of e4m3 */

/* A warp has sixteen keys of each half of a chunk, a lane one key. Keys of one copy: all sixteen,
 * if each page has a multiple of them. */
static __device__ __forceinline__ uint32_t copied_keys(const struct sv_attn_args &a)
{
    return a.p.kv.page_size % OWN_KEYS ? 1 : OWN_KEYS;
}
/* The row of the lane's key at pos, in its page; of keys that are copied together, all if any is
 * seen. */
static __device__ __forceinline__ uint32_t own_row(const struct sv_attn_args &a,
                                                   const struct attn_item &it, int32_t pos,
                                                   int32_t page)
{
    const int32_t n = (int32_t)copied_keys(a), first = pos & -n;
    return first < it.seen_hi && first + n > it.seen_lo ? attn_page_row(a, it, pos, page)
                                                        : ATTN_NONE;
}

/* Starts to copy the codes of stage j of a chunk, from the row of the lane's key on. By the whole
 * warp, which has read those before. Of one warpgroup's queries there are seldom more tiles: L2
 * keeps sums of spans instead of codes. */
template <int HD, int GROUPS>
static __device__ __forceinline__ void bring(const struct sv_attn_args &a, uint32_t codes,
                                             uint32_t bar, int j, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, key = lane % OWN_KEYS, n = copied_keys(a);
    const bool asks = (int)(lane / OWN_KEYS) == j % 2 && key % n == 0 && row != ATTN_NONE;
    const uint32_t asking = __ballot_sync(0xffffffffu, asks);
    if (lane == 0)
        bar_expect(bar, (uint32_t)__popc(asking) * n * HD);
    __syncwarp();
    if (asks)
        attn_copy<GROUPS == 1>(codes + key * HD,
                               (const uint8_t *)(j / 2 ? a.p.kv.v : a.p.kv.k) + (uint64_t)row * HD,
                               n * HD, bar);
}

/* The values of the warp's codes of stage j, to where the copy engine puts those of bf16. by: of
 * the lane's key, what its codes are multiplied by if that is enough for all of them, else its own
 * scale. */
template <int HD, bool ENOUGH>
static __device__ __forceinline__ void expand(uint32_t from, uint32_t to, int j, uint32_t by,
                                              float fixed)
{
    constexpr uint32_t LANES = HD / 16 /* of a key */, AT_ONCE = 32 / LANES;
    const uint32_t lane = threadIdx.x % 32, chunk = lane % LANES,
                   key = lane / LANES ^ chunk / 4; /* of eight lanes no two meet at a bank */
    from += key * HD + chunk * 16;
    to += chunk / 4 * COLUMNS_BYTES + key * 128 + (chunk % 4 * 2 ^ key) * 16;
#pragma unroll
    for (uint32_t i = 0; i < OWN_KEYS; i += AT_ONCE) {
        const uint32_t own = __shfl_sync(0xffffffffu, by, j % 2 * OWN_KEYS + i + key),
                       at = (to ^ i % 8 * 16) + i % 8 * 128 + i / 8 * (HD * 16);
        const uint4 codes = gpu_load16(from + i * HD);
        uint4 v[2];
        if (ENOUGH)
            sv_kv_f8_times(codes, own, v);
        else
            sv_kv_f8_expand(codes, own, fixed, v);
        gpu_store16(at, v[0]);
        gpu_store16(at ^ 16, v[1]);
    }
}

/* The whole of each of LOADERS warps. Codes are copied a chunk ahead of their values; what a copy
 * needs to know is read another chunk ahead, and used only then. */
template <int HD, int GROUPS>
static __device__ __forceinline__ void load_f8(const struct sv_attn_args &a,
                                               struct attn_items *plan, const struct attn_head &h,
                                               struct ring r, uint32_t memory)
{
    typedef raw<HD, true> m;
    static_assert(RAW_STAGES == 4 && 2 * OWN_KEYS == 32, "a chunk ahead; a lane for each key");
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % LOADERS;
    const struct sv_kv &kv = a.p.kv;
    const float fixed_k = kv.k_scale, fixed_v = kv.v_scale;
    const uint32_t codes = memory + warp * (RAW_STAGES * m::STAGE_BYTES),
                   bars = memory + m::BARS_AT + warp * (RAW_STAGES * 8),
                   at = lane / OWN_KEYS * HALF + warp * OWN_KEYS + lane % OWN_KEYS;
    uint32_t phase = 0; /* of all copies of a chunk */

    attn_settle(a, h.unit);
    for (int32_t turn = 0; turn * (int32_t)gridDim.x < h.n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= h.n_items)
            continue;
        const struct attn_item it = attn_turn_item(a, plan, h, GROUPS * GROUP_ROWS, turn, i);
        if (it.from == it.to)
            continue;
        int32_t pos = it.seen_lo / KEYS * KEYS + (int32_t)at,
                left = (it.seen_hi + KEYS - 1) / KEYS - it.seen_lo / KEYS;
        uint32_t row = own_row(a, it, pos, attn_page(a, it, pos));
#pragma unroll
        for (int j = 0; j < RAW_STAGES; j++)
            bring<HD, GROUPS>(a, codes + j * m::STAGE_BYTES, bars + 8 * j, j, row);
        uint32_t next_k = sv_kv_f8_own_scale(kv.k_own, row),
                 next_v = sv_kv_f8_own_scale(kv.v_own, row);
        int32_t page = attn_page(a, it, pos + KEYS);
#pragma unroll 1
        for (; left > 0; left--) {
            uint32_t of_k = next_k, of_v = next_v;
            const bool enough =
                !__any_sync(0xffffffffu, fixed_k > 0 || sv_kv_f8_two_factors(of_k) ||
                                             sv_kv_f8_two_factors(of_v));
            if (enough) {
                of_k = sv_kv_f8_factor(of_k);
                of_v = sv_kv_f8_factor(of_v);
            }
            pos += KEYS;
            row = ATTN_NONE;
            if (left > 1) {
                row = own_row(a, it, pos, page);
                next_k = sv_kv_f8_own_scale(kv.k_own, row);
                next_v = sv_kv_f8_own_scale(kv.v_own, row);
                page = attn_page(a, it, pos + KEYS);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                bar_wait(bars + 8 * j, phase);
                bar_wait(ring_free(r), r.phase ^ 1);
                const uint32_t from = codes + j * m::STAGE_BYTES,
                               to = ring_at<HD>(r) + warp * (OWN_KEYS * HD * 2);
                if (enough)
                    expand<HD, true>(from, to, j, j / 2 ? of_v : of_k, 0);
                else
                    expand<HD, false>(from, to, j, j / 2 ? of_v : of_k, j / 2 ? fixed_v : fixed_k);
                attn_proxy_fence();
                ring_give(ring_full(r));
                ring_next(r);
                if (left > 1)
                    bring<HD, GROUPS>(a, codes + j * m::STAGE_BYTES, bars + 8 * j, j, row);
            }
            phase ^= 1;
        }
    }
}

/* ---------------------------------------------------------------- the workers */

/* Finished rows, straight from registers: their columns from col0 on. */
template <int HD>
static __device__ __forceinline__ void
write_out(const struct sv_attn_args &a, const struct attn_item &it, int32_t q_warp,
          const struct sum<layout<HD>::COLS> &s, uint32_t lane, int32_t col0)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t q = q_warp + (int32_t)lane / 4 + 8 * r;
        if (q >= it.n_q)
            continue;
        const int32_t row = attn_div(q, a.by_group),
                      head = it.kv_head * a.group + (q - row * a.group);
        const float inverse = attn_inverse(a, head, s.m[r], s.l[r]);
        uint32_t *to =
            (uint32_t *)((__nv_bfloat16 *)a.p.out + (int64_t)(it.g.row0 + row) * a.p.ldo +
                         (int64_t)head * HD + col0) +
            lane % 4;
#pragma unroll
        for (int n = 0; n < layout<HD>::COLS / 8; n++)
            to[n * 4] = attn_pack(attn_output(s.o[n][2 * r], inverse),
                                  attn_output(s.o[n][2 * r + 1], inverse));
    }
}

template <int HD, int GROUPS>
static __device__ __forceinline__ void
work(const struct sv_attn_args &a, struct attn_items *plan, const struct attn_head &h,
     struct ring r, struct queries<HD> q, float4 *run, volatile int32_t *aside)
{
    static_assert(GROUPS == 1 || layout<HD>::PARTS == 1, "see first_query");
    typedef layout<HD> lay;
    constexpr int THREADS = WORKERS<HD, GROUPS>, COLS = lay::COLS,
                  CHUNKS_PER_SPAN = SV_ATTN_SPAN / KEYS;
    const uint32_t lane = threadIdx.x % 32;
    /* Said so that the compiler sees that a warp never parts over them. */
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / 32, 0), group = warp / 4;
    const int32_t n_items = h.n_items;
    const bool whole = h.unit == SV_ATTN_WHOLE;
    bool waited = false;

    for (int32_t turn = 0; turn * (int32_t)gridDim.x < n_items; turn++) {
        const int32_t i = attn_turn(turn);
        if (i >= n_items)
            continue;
        const struct attn_item it = attn_turn_item(a, plan, h, GROUPS * GROUP_ROWS, turn, i);
        if (it.from == it.to)
            continue;
        aside_put(aside, it);
        const int32_t q_warp = it.q0 + first_query<HD>(warp),
                      q_group = it.q0 + first_query<HD>(4 * group);
        const bool busy = q_group < it.n_q, real = q_warp < it.n_q;
        const struct sight see = sight_of(a, it, q_warp, q_group);
        if (!waited)
            attn_settle(a, h.unit);
        waited = true;
        load_queries<HD>(a, it, q_warp, lane, q);
        const int32_t end = (it.seen_hi + KEYS - 1) / KEYS;
        struct sum<COLS> span;
        bool has_run = false;
        sum_clear(span);
        for (int32_t c = it.seen_lo / KEYS; c < end; c++) {
            if (busy && c * KEYS < see.hi_any && (c + 1) * KEYS > see.lo_any) {
                struct sum<COLS> chunk;
                chunk_sum<HD>(a, it, see, c, group, q, chunk, r);
                if (real)
                    sum_merge(span, chunk);
            } else {
                for (int j = 0; j < 4; j++) { /* nothing in it for this warpgroup */
                    bar_wait(ring_full(r), r.phase);
                    ring_give(ring_free(r));
                    ring_next(r);
                }
            }
            if (whole && real && c % CHUNKS_PER_SPAN == CHUNKS_PER_SPAN - 1 && c != end - 1) {
                if (has_run)
                    run_merge<COLS, THREADS>(run, span);
                /* A last span of one chunk needs no sum of its own. With two warpgroups walks are
                 * long: not worth it. */
                has_run = GROUPS == 2 || c != end - 2;
                if (has_run) {
                    run_store<COLS, THREADS>(run, span);
                    sum_clear(span);
                }
            }
        }
        if (has_run)
            run_merge<COLS, THREADS>(run, span);
        struct attn_item last;
        aside_get(aside, last);
        if (whole && real)
            write_out<HD>(a, last, q_warp, span, lane, part_of<HD>(warp) * COLS);
        if (!whole && real)
            write_parts<COLS, lay::PARTS>(a, last, q_warp, span, lane, part_of<HD>(warp));
    }
    if (!waited)
        attn_settle(a, h.unit);
}

/* Shared memory: the ring, at its end the warpgroups' sums of spans when they are there, queries
 * that are kept, barriers, codes, the plan. What does not depend on the launch before is done
 * before waiting for it, if segments are settled (a.early). */
template <int HD, int GROUPS, bool F8>
__global__ void __launch_bounds__(WORKERS<HD, GROUPS> + 128, WORKERS<HD, GROUPS> == 128 ? 2 : 1)
    attn_sm90(const __grid_constant__ struct sv_attn_args a)
{
    typedef layout<HD> lay;
    constexpr int THREADS = WORKERS<HD, GROUPS>, RUN = (lay::COLS / 8 + 1) * THREADS;
    constexpr int FOR_A_LOADER = lay::KEPT ? 88 : 40; /* registers */
    constexpr int FOR_A_WORKER = lay::KEPT ? 208 : GROUPS == 1 ? 216 : 232;
    GPU_SHARED(shared);
    uint8_t *const behind = shared + a.ring_bytes + layout<HD>::QUERY_BYTES;
    uint8_t *const codes = behind + BAR_BYTES + ASIDE_BYTES;
    struct attn_items *const plan = (struct attn_items *)(codes + raw<HD, F8>::BYTES);
    struct ring r = {gpu_shared_at(shared), gpu_shared_at(behind), a.n_stages, 0, 0};

    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < a.n_stages; i++) {
            bar_init(r.bars + 16 * i, LOADERS);
            bar_init(r.bars + 16 * i + 8, THREADS / 32);
        }
        for (int32_t i = 0; F8 && i < LOADERS * RAW_STAGES; i++)
            bar_init(gpu_shared_at(codes) + raw<HD, F8>::BARS_AT + 8 * i, 1);
        bar_made();
    }
    if (!F8 && threadIdx.x == THREADS) {
        attn_map_fetch(&a.k_map);
        attn_map_fetch(&a.v_map);
    }
    attn_touch(a);
    if (a.early)
        sv_pdl_launch();
    else
        sv_pdl_wait();
    const struct attn_head h =
        attn_plan_head(a, GROUPS * GROUP_ROWS, plan, threadIdx.x / 32 == THREADS / 32);
    /* One block that waits keeps the launch from ending before those it follows. */
    if (a.early && blockIdx.x > 0 && (int32_t)blockIdx.x >= h.n_items)
        return;
    if (h.long_walk)
        r.n_stages = a.n_stages_run;
    if (threadIdx.x >= THREADS) { /* a warpgroup of its own, so that it can give registers away */
        attn_fewer_registers<FOR_A_LOADER>();
        if (F8)
            load_f8<HD, GROUPS>(a, plan, h, r, gpu_shared_at(codes));
        else
            load<HD>(a, plan, h, GROUPS * GROUP_ROWS, r);
    } else {
        attn_more_registers<FOR_A_WORKER>();
        struct queries<HD> q;
        if constexpr (layout<HD>::KEPT)
            q.at = gpu_shared_at(shared + a.ring_bytes);
        float4 *const run = RUN_BESIDE<HD, GROUPS, F8> && h.long_walk
                                ? (float4 *)(shared + a.n_stages_run * (HALF * HD * 2))
                                : a.run + (size_t)blockIdx.x * RUN;
        work<HD, GROUPS>(a, plan, h, r, q, run + threadIdx.x,
                         (volatile int32_t *)(behind + BAR_BYTES) + threadIdx.x / 32 * 8);
    }
}

/* ---------------------------------------------------------------- host side */

template <int HD, int GROUPS, bool F8> static void describe(struct sv_attn_launch *out)
{
    *out = (struct sv_attn_launch){
        .kernel = attn_sm90<HD, GROUPS, F8>,
        .tile_rows = GROUPS * GROUP_ROWS,
        .n_threads = WORKERS<HD, GROUPS> + 128,
        .blocks_per_sm = WORKERS<HD, GROUPS> == 128 ? 2 : 1,
        .stage_bytes = HALF * HD * 2,
        .fixed_bytes = layout<HD>::QUERY_BYTES + BAR_BYTES + ASIDE_BYTES + raw<HD, F8>::BYTES,
        .max_stages = MAX_STAGES,
        .run_bytes =
            RUN_BESIDE<HD, GROUPS, F8> ? (HD / 8 + 1) * GROUPS * 128 * (int32_t)sizeof(float4) : 0,
        .parts = layout<HD>::PARTS,
        .maps = !F8};
}

template <bool F8>
static bool describe_by_size(int32_t head_dim, int32_t n_warps, struct sv_attn_launch *out)
{
    if (head_dim == 256 && !F8)
        describe<256, 1, false>(out);
    else if (head_dim == 128)
        n_warps == 4 ? describe<128, 1, F8>(out) : describe<128, 2, F8>(out);
    else if (head_dim == 64)
        n_warps == 4 ? describe<64, 1, F8>(out) : describe<64, 2, F8>(out);
    else
        return false;
    return true;
}

bool sv_cuda_attn_sm90(int32_t head_dim, int32_t n_warps, bool f8, struct sv_attn_launch *out)
{
    return f8 ? describe_by_size<true>(head_dim, n_warps, out)
              : describe_by_size<false>(head_dim, n_warps, out);
}

/* Columns of a box / 64. */
static int32_t map_parts(const struct sv_p_attention *p, int second)
{
    return p->v_dim ? 2 - second : p->kv.head_dim / 64;
}

#ifndef SV_CUDA_EMULATED

int sv_cuda_attn_maps_open(void **encode, struct sv_err *err)
{
    cudaDriverEntryPointQueryResult found;
    static_assert(sizeof(CUtensorMap) == sizeof(struct sv_attn_map), "a tensor map");
    int rc = sv_cuda_try(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", encode, 12000,
                                                          cudaEnableDefault, &found),
                         err, "the driver's tensor maps");
    /* All of a multiprocessor's, so that thread blocks of products fit beside these. */
    for (int32_t hd = 64; hd <= 128 && !rc; hd += 64) {
        struct sv_attn_launch k;
        struct sv_attn_args few;
        if (sv_cuda_attn_few(hd, 1, true, &few, &k))
            rc = sv_cuda_try(cudaFuncSetAttribute((const void *)k.kernel,
                                                  cudaFuncAttributePreferredSharedMemoryCarveout,
                                                  cudaSharedmemCarveoutMaxShared),
                             err, "attention: shared memory");
    }
    return rc;
}

bool sv_cuda_attn_maps(struct sv_cuda *cu, void *encode, struct sv_attn_args *a)
{
    const struct sv_kv *kv = &a->p.kv;
    /* 64 columns, eight keys, all columns, groups of eight keys: in this order they lie in shared
     * memory. Boxes of latents have 128 columns, or 64 through the second map. */
    const cuuint64_t row = (cuuint64_t)kv->head_dim * 2,
                     groups = (cuuint64_t)kv->n_pages * kv->n_kv_heads * kv->page_size / 8;
    const cuuint64_t dims[4] = {64, 8, (cuuint64_t)kv->head_dim / 64, groups};
    const cuuint64_t strides[3] = {row, 128, row * 8};
    const cuuint32_t step[4] = {1, 1, 1, 1};
    PFN_cuTensorMapEncodeTiled_v12000 fn = (PFN_cuTensorMapEncodeTiled_v12000)encode;
    for (int i = 0; i < 2; i++) {
        const cuuint32_t box[4] = {64, 8, (cuuint32_t)map_parts(&a->p, i),
                                   (cuuint32_t)a->box_rows / 8};
        if (fn((CUtensorMap *)(void *)(i ? &a->v_map : &a->k_map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
               4, i && !a->p.v_dim ? kv->v : kv->k, dims, strides, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
            return sv_cuda_check(cu, cudaErrorInvalidValue, "tensor map of a cache");
    }
    return true;
}

#else

int sv_cuda_attn_maps_open(void **, struct sv_err *)
{
    return SV_OK;
}

bool sv_cuda_attn_maps(struct sv_cuda *, void *, struct sv_attn_args *a)
{
    sv_attn_emulated_map(&a->k_map, a->p.kv.k, &a->p.kv, a->box_rows, map_parts(&a->p, 0));
    sv_attn_emulated_map(&a->v_map, a->p.v_dim ? a->p.kv.k : a->p.kv.v, &a->p.kv, a->box_rows,
                         map_parts(&a->p, 1));
    return true;
}

#endif
