/*
 * attention_few_sm90.cu - paged attention of few sequences with few rows on sm_90a, in one launch:
 * a cluster of eight thread blocks for each sequence and kv head, which send one another their
 * partial results. Head sizes 64 and 128.
 *
 * Launched by attention.cu. With one sequence latency counts, not traffic: there is no second
 * launch to merge partial results, keys and instructions are loaded before the previous launch has
 * ended, and blocks without work exit at once, so that the next launch can begin. Chunks, spans and
 * their order, and so the bits, are those of attention_sm90.cu. Must not: be used where a segment
 * may have more than 64 queries for a kv head.
 */
#include "backend/cuda/attention_chunk.cuh"
#include "backend/gpu/attention_parts.cuh"

enum {
    CLUSTER = SV_ATTN_CLUSTER,
    BY_CHUNK = 2 * CLUSTER, /* parts, at most, where each is a chunk */
    MAX_SLOTS = GROUP_ROWS / CLUSTER,
    LOADERS = 4, /* warps */
    /* Of a thread, as launched: what so many threads would have; then of loaders and of workers. */
    REGISTERS = 168,
    THREADS_OF_REGISTERS = 384,
    LOADER_REGISTERS = 88,
    WORKER_REGISTERS = 2 * REGISTERS - LOADER_REGISTERS
};

/* A part of one query, as the block that puts it together gets it: HD values, maximum, sum. */
template <int HD> static constexpr uint32_t PART_BYTES = (HD + 4) * 4;

/* What a cluster works on. */
struct few {
    struct attn_seg g;
    int32_t kv_head, n_q;
    int32_t shift;          /* log2 of a part's keys: a chunk or a span */
    int32_t part0, n_parts; /* from key part0 << shift on */
    int32_t rank, n_slots;  /* queries rank, rank + CLUSTER, ... are put together here */
};

static __device__ __forceinline__ struct few few_of(const struct sv_attn_args &a)
{
    struct few f;
    const int32_t tile = (int32_t)blockIdx.x / CLUSTER, s = attn_div(tile, a.by_kv);
    f.rank = attn_cluster_rank();
    f.g = attn_seg_at(a.p, s);
    f.kv_head = tile - s * a.p.kv.n_kv_heads;
    f.n_q = f.g.n * a.group;
    f.n_slots = (f.n_q - f.rank + CLUSTER - 1) / CLUSTER;
    const int32_t lo = f.g.lo, last = f.g.end - 1;
    const bool by_chunk =
        a.unit == SV_ATTN_AUTO ? last / KEYS - lo / KEYS < BY_CHUNK : a.unit == SV_ATTN_BY_CHUNK;
    f.shift = attn_unit_shift(by_chunk ? SV_ATTN_BY_CHUNK : SV_ATTN_BY_SPAN);
    f.part0 = lo >> f.shift;
    f.n_parts = (last >> f.shift) - f.part0 + 1;
    return f;
}

/* Queries that a thread block of the cluster puts together, at most. */
static __device__ __forceinline__ int32_t most_slots(const struct few &f)
{
    return (f.n_q + CLUSTER - 1) / CLUSTER;
}

static __device__ __forceinline__ struct attn_item few_item(const struct few &f, int32_t part)
{
    struct attn_item it;
    const int32_t begin = (f.part0 + part) << f.shift, end = begin + (1 << f.shift);
    it.g = f.g;
    it.kv_head = f.kv_head;
    it.q0 = 0;
    it.n_q = f.n_q;
    it.seen_lo = f.g.lo > begin ? f.g.lo : begin;
    it.seen_hi = f.g.end < end ? f.g.end : end;
    it.from = it.to = 0;
    it.part = part;
    return it;
}

/* ---------------------------------------------------------------- the loader */

template <int HD>
static __device__ __forceinline__ void few_load(const struct sv_attn_args &a, const struct few &f,
                                                struct ring r)
{
    const struct box b = box_of<LOADERS>(a);
    bool waited = false;
    for (int32_t part = f.rank; part < f.n_parts; part += CLUSTER) {
        const struct attn_item it = few_item(f, part);
        const int32_t c = it.seen_lo / KEYS, end = (it.seen_hi + KEYS - 1) / KEYS;
        int32_t done = 0;
        if (!waited)
            done = load_first<HD>(a, it, b, end - c, r, []() { sv_pdl_wait(); });
        waited = true;
        load_rest<HD>(a, it, b, c + done / 4, end, done % 4, r);
        if (part % a.part_cap >= a.part_cap - CLUSTER &&
            part / a.part_cap < (f.n_parts - 1) / a.part_cap)
            attn_cluster_sync(); /* see few_work */
    }
}

/* ---------------------------------------------------------------- the workers */

/* Sends each query's part to the block that puts it together. */
template <int HD>
static __device__ __forceinline__ void few_send(const struct sv_attn_args &a, const struct few &f,
                                                int32_t part, const struct sum<HD> &s,
                                                uint32_t parts, uint32_t bar)
{
    const int32_t lane = threadIdx.x % 32, in_round = part % a.part_cap;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int32_t q = (int32_t)threadIdx.x / 32 * 16 + lane / 4 + 8 * r, owner = q % CLUSTER;
        if (q >= f.n_q)
            continue;
        const uint32_t here =
            parts + (uint32_t)(in_round * most_slots(f) + q / CLUSTER) * PART_BYTES<HD>;
        const uint32_t to = attn_cluster_at(here, owner), at = attn_cluster_at(bar, owner);
        if (lane % 4 == 0)
            attn_cluster_put(to + HD * 4, s.m[r], s.l[r], at);
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
            attn_cluster_put(to + (uint32_t)(n * 8 + lane % 4 * 2) * 4, s.o[n][2 * r],
                             s.o[n][2 * r + 1], at);
    }
}

/* The sums of one query so far: of whole spans, and of the span that is being put together; the
 * first and the last part that it sees. */
template <int VEC> struct folding {
    struct part<VEC> run, span;
    int32_t lo, hi;
};

/* Parts of one round of one query, in ascending order, as attn_fold does it. */
template <int HD>
static __device__ __forceinline__ void few_fold(const struct sv_attn_args &a, const struct few &f,
                                                int32_t q, int32_t round, const uint8_t *parts,
                                                struct folding<HD / 32> &sum)
{
    constexpr int VEC = HD / 32, PER_SPAN = SV_ATTN_SPAN / SV_ATTN_CHUNK;
    const int32_t lane = threadIdx.x % 32, from = f.part0 + round * a.part_cap;
    int32_t p = sum.lo > from ? sum.lo : from;
    const int32_t last = sum.hi < from + a.part_cap - 1 ? sum.hi : from + a.part_cap - 1;
    const uint8_t *at =
        parts + (uint32_t)((p - from) * most_slots(f) + q / CLUSTER) * PART_BYTES<HD>;
    for (; p <= last; p++, at += most_slots(f) * PART_BYTES<HD>) {
        struct part<VEC> x;
        const float2 ml = *(const float2 *)(at + HD * 4);
        x.m = ml.x;
        x.l = ml.y;
#pragma unroll
        for (int j = 0; j < VEC; j += 2) {
            const float2 o = *(const float2 *)(at + (lane * VEC + j) * 4);
            x.o[j] = o.x, x.o[j + 1] = o.y;
        }
        if (f.shift == attn_unit_shift(SV_ATTN_BY_SPAN)) {
            part_merge(sum.run, x);
            continue;
        }
        part_merge(sum.span, x);
        if (p % PER_SPAN == PER_SPAN - 1 || p == sum.hi) {
            part_merge(sum.run, sum.span);
            part_clear(sum.span);
        }
    }
}

template <int HD>
static __device__ __forceinline__ void few_work(const struct sv_attn_args &a, const struct few &f,
                                                struct ring r, uint8_t *parts, uint32_t bar)
{
    constexpr int VEC = HD / 32;
    const int32_t lane = threadIdx.x % 32,
                  warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x / 32, 0);
    const int32_t n_rounds = (f.n_parts + a.part_cap - 1) / a.part_cap;
    struct folding<VEC> mine[MAX_SLOTS / 4];
#pragma unroll
    for (int k = 0; k < MAX_SLOTS / 4; k++) {
        const int32_t q = f.rank + CLUSTER * (warp + 4 * k),
                      pos = attn_pos(a.p, f.g, q < f.n_q ? attn_div(q, a.by_group) : 0);
        part_clear(mine[k].run);
        part_clear(mine[k].span);
        mine[k].lo = attn_lo(a.p, pos) >> f.shift;
        mine[k].hi = (attn_hi(a.p, pos, f.g.end) - 1) >> f.shift;
    }
    const struct sight see = sight_of(a, few_item(f, 0), 16 * warp, 0);
    struct queries<HD> q;
    bool dry = true; /* the first chunk is rehearsed before the wait */
    for (int32_t round = 0; round < n_rounds; round++) {
        for (int32_t k = 0; k < a.part_cap; k += CLUSTER) {
            const int32_t part = round * a.part_cap + k + f.rank;
            if (part >= f.n_parts)
                break;
            const struct attn_item it = few_item(f, part);
            const int32_t end = (it.seen_hi + KEYS - 1) / KEYS;
            struct sum<HD> span;
            sum_clear(span);
            for (int32_t c = it.seen_lo / KEYS; c < end;) {
                struct sum<HD> chunk;
                chunk_sum<HD>(a, it, see, c, 0, q, chunk, r, dry);
                sum_merge(span, chunk);
                if (!dry) {
                    c++;
                    continue;
                }
                dry = false;
                sum_clear(span);
                sv_pdl_wait();
                load_queries<HD>(a, it, 16 * warp, (uint32_t)lane, q);
            }
            few_send<HD>(a, f, part, span, gpu_shared_at(parts), bar);
        }
        /* The barrier counts bytes; how many parts come is known to all. */
        if (f.n_slots > 0) {
            const int32_t left = f.n_parts - round * a.part_cap;
            if (threadIdx.x == 0)
                bar_expect(bar, (uint32_t)((left < a.part_cap ? left : a.part_cap) * f.n_slots *
                                           (HD * 4 + 8)));
            bar_wait(bar, (uint32_t)round & 1);
        }
#pragma unroll
        for (int k = 0; k < MAX_SLOTS / 4; k++)
            if (warp + 4 * k < f.n_slots)
                few_fold<HD>(a, f, f.rank + CLUSTER * (warp + 4 * k), round, parts, mine[k]);
        if (round + 1 < n_rounds)
            attn_cluster_sync(); /* the next round's parts take the place of this one's */
    }
    if (f.n_slots > 0 && dry)
        sv_pdl_wait(); /* what was here before may still be read by others */
#pragma unroll
    for (int k = 0; k < MAX_SLOTS / 4; k++) {
        const int32_t i = f.rank + CLUSTER * (warp + 4 * k);
        if (warp + 4 * k >= f.n_slots)
            continue;
        const int32_t row = attn_div(i, a.by_group),
                      head = f.kv_head * a.group + (i - row * a.group);
        const struct part<VEC> &s = mine[k].run;
        const float inverse = attn_inverse(a, head, s.m, s.l);
        __nv_bfloat16 *out = (__nv_bfloat16 *)a.p.out + (int64_t)(f.g.row0 + row) * a.p.ldo +
                             (int64_t)head * HD + lane * VEC;
#pragma unroll
        for (int j = 0; j < VEC; j += 2)
            *(__nv_bfloat162 *)(out + j) = __floats2bfloat162_rn(attn_output(s.o[j], inverse),
                                                                 attn_output(s.o[j + 1], inverse));
    }
}

/* Shared memory: the ring, barriers and one more for parts that come, parts. */
template <int HD>
__global__ void __launch_bounds__(THREADS_OF_REGISTERS, 1)
    attn_few(const __grid_constant__ struct sv_attn_args a)
{
    GPU_SHARED(shared);
    uint8_t *const behind = shared + a.ring_bytes;
    const struct ring r = {gpu_shared_at(shared), gpu_shared_at(behind), a.n_stages, 0, 0};
    const uint32_t bar = gpu_shared_at(behind + BAR_BYTES);

    if (threadIdx.x == 0) {
        for (int32_t i = 0; i < a.n_stages; i++) {
            bar_init(r.bars + 16 * i, LOADERS);
            bar_init(r.bars + 16 * i + 8, 4);
        }
        bar_init(bar, 1);
        bar_made();
    }
    if (threadIdx.x == 128) {
        attn_map_fetch(&a.k_map);
        attn_map_fetch(&a.v_map);
    }
    attn_touch(a);
    if (!a.early)
        sv_pdl_wait();
    sv_pdl_launch();
    attn_cluster_sync(); /* all barriers are there */
    const struct few f = few_of(a);
    /* A block that waits keeps the launch from ending before those it follows; the first has a
     * part, or waits here. */
    if (f.g.n == 0 || (f.rank >= f.n_parts && f.n_slots <= 0)) {
        if (blockIdx.x == 0)
            sv_pdl_wait();
        return;
    }
    if (threadIdx.x >= 128) {
        attn_fewer_registers<LOADER_REGISTERS>();
        few_load<HD>(a, f, r);
    } else {
        attn_more_registers<WORKER_REGISTERS>();
        few_work<HD>(a, f, r, behind + BAR_BYTES + 16, bar);
    }
}

/* ---------------------------------------------------------------- host side */

bool sv_cuda_attn_few(int32_t head_dim, int32_t n_queries, bool beside, struct sv_attn_args *a,
                      struct sv_attn_launch *out)
{
    const int32_t slots = (n_queries + CLUSTER - 1) / CLUSTER;
    if ((head_dim != 64 && head_dim != 128) || slots > MAX_SLOTS)
        return false;
    a->part_cap = beside && slots > MAX_SLOTS / 2 ? CLUSTER : 2 * CLUSTER;
    *out = (struct sv_attn_launch){.kernel = head_dim == 128 ? attn_few<128> : attn_few<64>,
                                   .tile_rows = GROUP_ROWS,
                                   .n_threads = 256,
                                   .blocks_per_sm = beside ? 2 : 1,
                                   .stage_bytes = HALF * head_dim * 2,
                                   .fixed_bytes =
                                       BAR_BYTES + 16 + a->part_cap * slots * (head_dim + 4) * 4,
                                   .max_stages = MAX_STAGES,
                                   .run_bytes = 0,
                                   .parts = 1,
                                   .maps = true};
    return true;
}
