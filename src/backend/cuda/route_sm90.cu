/*
 * route_sm90.cu - a norm and the router after it in one launch, for few rows, on sm_90a: a cluster
 * of eight thread blocks has one row or four, each block all of their norms and an eighth of the
 * experts, and the first block gets the logits in its shared memory.
 *
 * Launched by moe_route.cu, whose kernels, after rows.cu's norm, compute the same bits. There is
 * one launch, no counter in memory between logits and choice, and the row does not pass through
 * memory between norm and router: with one sequence such latencies take most of the time. With
 * ranks the norm's join is in it too: all blocks of a cluster look for the parts of other ranks,
 * and one blanks them when all have seen them. Must not: add in another order than those kernels.
 */
#include "backend/cuda/attention_async.cuh"
#include "backend/cuda/peers.h"
#include "backend/gpu/moe_route.cuh"
#include "backend/gpu/row_norm.cuh"

enum {
    CLUSTER = 8,
    MOST_HIDDEN = 8 * THREADS, /* eight columns a thread */
    MOST_EXPERTS = 520,        /* the shared one counted */
    LISTED = 9,                /* experts of a lane in the lists of one row, of most models */
    MOST_LISTED = 17,          /* of any */
    SENDER = CLUSTER - 1,      /* of a row's part to other ranks */
    ALONE = 16 /* rows that have a cluster each, at most: in 64 registers, which it finds beside a
                * product that leaves room (gemm.h), so that it need not wait for its end */
};

/* Handed to kernels by value. */
struct norm {
    __nv_bfloat16 *x;
    const __nv_bfloat16 *delta; /* or NULL */
    const float *weight;
    __nv_bfloat16 *out;
    float eps, of_d;
};

/* Shared memory of a thread block; N: rows of a cluster. */
template <int N, bool JOIN> struct room {
    uint4 h[N][THREADS];
    uint4 kept[2][JOIN && N == 1 ? THREADS : 1];
    float4 scratch[N][8];
    float logit[N][MOST_EXPERTS];
    /* In the first block: the logits of the cluster's rows, and those of the shared expert, which
     * no choice waits for. */
    uint64_t logits_bar, shared_bar;
    int32_t chosen[FEW_ENTRIES];
};

/* As router_kernel of moe_route.cu: lane l has pieces l, l + 32, ... of x, which lies in shared
 * memory. early: the expert's first weights, and then those of the expert `next`. */
template <int N>
static __device__ __forceinline__ void logits_of(float (&sum)[N], const struct route &a, int32_t e,
                                                 int32_t next, uint4 (&early)[EARLY],
                                                 const uint4 (*x)[THREADS])
{
    const int lane = threadIdx.x & 31;
    const int32_t pieces = a.hidden / 8;
#pragma unroll
    for (int r = 0; r < N; r++)
        sum[r] = 0.0f;
    auto add = [&](int32_t c, const uint4 &weights) {
        float w[8];
        sv_spread8(w, weights);
#pragma unroll
        for (int r = 0; r < N; r++) {
            float v[8];
            sv_spread8(v, x[r][c]);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[r] = fmaf(w[i], v[i], sum[r]);
        }
    };
#pragma unroll 1
    for (int32_t c0 = lane; c0 - lane < pieces; c0 += 32 * EARLY) {
        const bool more = c0 - lane + 32 * EARLY < pieces;
        const int32_t after = more ? e : next, c1 = more ? c0 + 32 * EARLY : lane;
#pragma unroll
        for (int i = 0; i < EARLY; i++) {
            if (c0 + 32 * i < pieces)
                add(c0 + 32 * i, early[i]);
            if (after < a.n_logits && c1 + 32 * i < pieces)
                early[i] = weights_of(a, after, c1 + 32 * i);
        }
    }
#pragma unroll
    for (int r = 0; r < N; r++)
        sum[r] = sv_warp_sum(sum[r]);
}

/* The sum over ranks of row row0 + r; own: this rank's parts of the rows. */
static __device__ __forceinline__ uint4 sum_of_ranks(const uint4 (*own)[THREADS],
                                                     const struct sv_join_site &s,
                                                     const struct route &a, int32_t row0, int r)
{
    const int32_t row = min(row0 + r, a.r.n_rows - 1), g = (int32_t)threadIdx.x,
                  at = row * (a.hidden / 8) + g;
    float sum[8];
#pragma unroll 1
    for (int32_t q = 0; q < s.n; q++) {
        uint4 seen[1] = {q == s.rank ? sv_join_words(own[r][g]) : sv_join_blank()};
        float f[8];
        sv_join_look<1>(seen, s, q, q + 1, false, at, row);
        sv_spread8(f, seen[0]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] = q ? sum[i] + f[i] : f[i];
    }
    return sv_pack8(sum);
}

/* What all blocks have seen. */
static __device__ __forceinline__ void blank(const struct sv_join_site &s, int32_t at)
{
    for (int32_t r = 0; r < s.n; r++)
        if (r != s.rank)
            gpu_send16(sv_join_place(s, r, at), sv_join_blank());
}

/* Rows row0 + r of x, with delta added and rounded, in v, and their norms in m.h. s: NULL, or of
 * the sum over ranks that delta is. w: weights of the norm. early: of the router's weights, which
 * has to be kept. */
template <int N, bool JOIN>
static __device__ __forceinline__ void norms_of(struct sv_eight<__nv_bfloat16> (&v)[N],
                                                struct room<N, JOIN> &m, const struct route &a,
                                                const struct norm &n, int32_t row0, float (&w)[8],
                                                const struct sv_join_site *s, uint4 &early)
{
    const int32_t i = 8 * (int32_t)threadIdx.x, last = a.r.n_rows - 1;
    const bool inside = i < a.hidden;
    struct sv_eight<__nv_bfloat16> plus[N] = {
    };
    float f[8];
#pragma unroll
    for (int r = 0; r < N; r++) {
        const int64_t at = (int64_t)min(row0 + r, last) * a.hidden + i;
        v[r].v = make_uint4(0, 0, 0, 0);
        if (inside)
            v[r] = *(const struct sv_eight<__nv_bfloat16> *)(n.x + at);
        if (inside && n.delta)
            plus[r] = *(const struct sv_eight<__nv_bfloat16> *)(n.delta + at);
    }
    if constexpr (JOIN) { /* one block sends, each looks for the parts of others */
        /* Out of registers meanwhile; those of several rows have room. */
        if (N == 1) {
            m.kept[0][threadIdx.x] = v[0].v;
            m.kept[1][threadIdx.x] = early;
        }
#pragma unroll
        for (int r = 0; r < N; r++) {
            m.h[r][threadIdx.x] = plus[r].v;
            if (inside && attn_cluster_rank() == SENDER && !s->ahead && row0 + r <= last)
                sv_join_send(*s, (row0 + r) * (a.hidden / 8) + threadIdx.x, plus[r].v);
        }
#pragma unroll
        for (int r = 0; r < N; r++)
            if (inside)
                plus[r].v = sum_of_ranks(m.h, *s, a, row0, r);
        if (N == 1) {
            v[0].v = m.kept[0][threadIdx.x];
            early = m.kept[1][threadIdx.x];
        }
    }
#pragma unroll
    for (int r = 0; r < N; r++) {
        float sum = 0;
        if (n.delta)
            sv_add8(v[r], plus[r]);
        sv_spread8(f, v[r]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(f[j], f[j], sum);
        sum = sv_warp_sum(sum);
        if (threadIdx.x % 32 == 0)
            ((float *)m.scratch[r])[threadIdx.x / 32] = sum;
    }
    if (JOIN) /* once more: near by */
        sv_load_norm8(w, n.weight + (inside ? i : 0));
    __syncthreads();
#pragma unroll
    for (int r = 0; r < N; r++) {
        const float inv = sv_norm_of(m.scratch[r], n.of_d, n.eps);
        sv_spread8(f, v[r]);
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] = f[j] * inv * w[j];
        if (inside)
            m.h[r][threadIdx.x] = sv_pack8(f);
    }
    __syncthreads();
}

template <int N, bool JOIN>
static __device__ __forceinline__ void norm_route(const struct route &a, const struct norm &n,
                                                  const struct sv_join_site *s)
{
    GPU_SHARED(smem_bytes);
    struct room<N, JOIN> &m = *(struct room<N, JOIN> *)smem_bytes;
    const int32_t rank = attn_cluster_rank(), warp = (int32_t)threadIdx.x / 32,
                  row0 = (int32_t)blockIdx.y * N, i = 8 * (int32_t)threadIdx.x;
    /* The last warp begins with expert 0, and so has the shared one, not the warp that chooses. */
    const int32_t n_experts = a.n_logits, e0 = (CLUSTER - 1 - rank) * WARPS + WARPS - 1 - warp;
    const int lane = threadIdx.x & 31;
    uint4 early[EARLY];
    float w[8] = {};
    sv_pdl_launch();
#pragma unroll
    for (int c = 0; c < EARLY; c++)
        if (e0 < n_experts && 8 * (lane + 32 * c) < a.hidden)
            early[c] = weights_of(a, e0, lane + 32 * c);
    for (int32_t e = e0; e < n_experts; e += CLUSTER * WARPS)
        for (int32_t c = lane + (e == e0 ? 32 * EARLY : 0); 8 * c < a.hidden; c += 32)
            attn_prefetch(weights_at(a, e, c));
    if (i < a.hidden)
        sv_load_norm8(w, n.weight + i);
    if (threadIdx.x < N * 8)
        m.scratch[threadIdx.x / 8][threadIdx.x % 8] = make_float4(0, 0, 0, 0);
    if (rank == 0 && threadIdx.x == 0) {
        bar_init(gpu_shared_at(&m.logits_bar), 1);
        bar_init(gpu_shared_at(&m.shared_bar), 1);
        bar_made();
    }
    attn_cluster_sync();
    if (rank == 0 && threadIdx.x == 0) {
        bar_expect(gpu_shared_at(&m.logits_bar), (uint32_t)(N * a.n * 4));
        bar_expect(gpu_shared_at(&m.shared_bar), (uint32_t)(N * (n_experts - a.n) * 4));
    }
    sv_pdl_wait();
    const int32_t own = row0 + warp;
    const bool chooses = rank == 0 && warp < N && own < a.r.n_rows;
    struct sv_eight<__nv_bfloat16> v[N];
    norms_of<N, JOIN>(v, m, a, n, row0, w, s, early[EARLY - 1]);
    attn_cluster_arrive(); /* this block has read x, and the parts of other ranks */
    bool there = false;
    if (chooses)
        there = a.row_seg[own] >= 0;
#pragma unroll 1
    for (int32_t e = e0; e < n_experts; e += CLUSTER * WARPS) {
        float sum[N];
        logits_of<N>(sum, a, e, e + CLUSTER * WARPS, early, m.h);
        const float bias = a.bias && e < a.n ? sv_weight_at(a.bias, a.bias_dtype, e) : 0.0f;
#pragma unroll
        for (int r = 0; r < N; r++)
            if (lane == r)
                attn_cluster_put(
                    attn_cluster_at(gpu_shared_at(&m.logit[r][e]), 0), sum[r] + bias,
                    attn_cluster_at(gpu_shared_at(e < a.n ? &m.logits_bar : &m.shared_bar), 0));
    }
    if (rank != 0) {
        /* The stream and its norm are left by two blocks that have nothing else to do. */
        attn_cluster_wait();
#pragma unroll
        for (int r = 0; r < N; r++) {
            const int64_t at = (int64_t)(row0 + r) * a.hidden + i;
            if (i >= a.hidden || row0 + r >= a.r.n_rows)
                continue;
            if (rank == 1 && n.delta)
                *(uint4 *)(n.x + at) = v[r].v;
            if (JOIN && rank == 1)
                blank(*s, (int32_t)(at / 8));
            if (rank == 2)
                *(uint4 *)(n.out + at) = m.h[r][threadIdx.x];
        }
        return;
    }
    bar_wait(gpu_shared_at(&m.logits_bar), 0);
    int32_t id = -1;
    if (chooses)
        id = choose<true>(a, own, there, m.logit[warp], NULL,
                          [&] { bar_wait(gpu_shared_at(&m.shared_bar), 0); });
    bar_wait(gpu_shared_at(&m.shared_bar), 0);
    attn_cluster_wait();
    if (a.r.n_rows == 1) {
        if (warp == 0 && a.r.n_experts <= 128)
            one_list<4>(a, id);
        else if (warp == 0 && a.r.n_experts <= 32 * LISTED)
            one_list<LISTED>(a, id);
        else if (warp == 0)
            one_list<MOST_LISTED>(a, id);
        return;
    }
    /* Each word says by itself that it has come. */
    if (chooses && lane < a.r.k)
        *(volatile int32_t *)(a.posted + own * a.r.k + lane) = id + 2;
    /* The last cluster lists: all others have their multiprocessors by then. */
    if (blockIdx.y != gridDim.y - 1)
        return;
    __syncthreads();
#pragma unroll 1
    for (int32_t j = (int32_t)threadIdx.x; j < a.r.n_rows * a.r.k; j += THREADS) {
        volatile int32_t *const at = a.posted + j;
        int32_t got;
        while ((got = *at) == 0)
            ;
        *at = 0;
        m.chosen[j] = got - 2;
    }
    static_assert(sizeof m.h >= FEW_WORDS * sizeof(uint32_t), "of x, which is not needed any more");
    few_lists(a, m.chosen, (uint32_t *)m.h);
}

template <int N>
static __global__ void __launch_bounds__(THREADS, N == 1 ? 2 : 1)
    norm_route_kernel(const __grid_constant__ struct route a, const __grid_constant__ struct norm n)
{
    norm_route<N, false>(a, n, NULL);
}
template <int N>
static __global__ void __launch_bounds__(THREADS, N == 1 ? 2 : 1)
    norm_route_join_kernel(const __grid_constant__ struct route a,
                           const __grid_constant__ struct norm n,
                           const __grid_constant__ struct sv_join_site s)
{
    norm_route<N, true>(a, n, &s);
}

/* attr: of two. */
static cudaLaunchConfig_t launch_of(const struct sv_cuda *cu, cudaLaunchAttribute *attr,
                                    int32_t n_clusters, size_t n_bytes)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CLUSTER, (unsigned)n_clusters);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = n_bytes;
    config.stream = cu->stream;
    config.attrs = attr;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = CLUSTER;
    attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = cu->pdl ? 2 : 1;
    return config;
}

/* Whether all clusters are resident at once, so that they may wait for those of other ranks. */
template <typename K>
static bool are_resident(struct sv_cuda *cu, K kernel, cudaLaunchConfig_t config)
{
    const int32_t n_clusters = (int32_t)config.gridDim.y;
    int n = 0;
    config.gridDim = dim3(CLUSTER);
    config.numAttrs = 1;
    return sv_cuda_check(cu, cudaOccupancyMaxActiveClusters(&n, kernel, &config),
                         "cudaOccupancyMaxActiveClusters") &&
           n_clusters <= n;
}

bool sv_cuda_norm_route_sm90(struct sv_cuda *cu, const struct sv_p_router_topk *p,
                             const struct route *a)
{
    const struct sv_p_add_rms_norm *b = p->before;
    const struct sv_routes *r = &a->r;
    if (!are_few(r) || r->n_experts > MOST_EXPERTS || b->d > MOST_HIDDEN || b->d % 8 ||
        !a->packed || a->w_dtype != SV_BF16 || b->tap || b->own_rows || b->reader ||
        cu->act != SV_BF16 || !sv_aligned16(b->x) || !sv_aligned16(b->delta) ||
        !sv_aligned16(a->shared) || !sv_aligned16(b->out) || !sv_aligned16(b->weight.data))
        return false;
    const struct norm n = {(__nv_bfloat16 *)b->x,
                           (const __nv_bfloat16 *)b->delta,
                           sv_cuda_norm_of(&b->weight),
                           (__nv_bfloat16 *)b->out,
                           b->eps,
                           1.0f / (float)b->d};
    struct route few = *a;
    few.posted = (int32_t *)cu->arrived + 1;
    const int32_t each = r->n_rows <= ALONE ? 1 : ROWS;
    const int32_t n_clusters = (r->n_rows + each - 1) / each;
    cudaLaunchAttribute attr[2] = {};
    if (!b->join) {
        const cudaLaunchConfig_t config =
            launch_of(cu, attr, n_clusters,
                      each == 1 ? sizeof(struct room<1, false>) : sizeof(struct room<ROWS, false>));
        cu->bytes_of = NULL;
        sv_cuda_check(cu,
                      cudaLaunchKernelEx(&config,
                                         each == 1 ? norm_route_kernel<1> : norm_route_kernel<ROWS>,
                                         few, n),
                      "a norm and a router");
        return true;
    }
    const auto kernel = each == 1 ? norm_route_join_kernel<1> : norm_route_join_kernel<ROWS>;
    const cudaLaunchConfig_t config =
        launch_of(cu, attr, n_clusters,
                  each == 1 ? sizeof(struct room<1, true>) : sizeof(struct room<ROWS, true>));
    const struct sv_join_site s = sv_cuda_join_rows(cu, b->join, NULL, r->n_rows, b->d);
    /* Ranks that share a GPU do not all find room. */
    if (s.share || cu->peers->hosts || cu->peers->way == SV_CUDA_SAME_GPU ||
        !are_resident(cu, kernel, config))
        return false;
    cu->bytes_of = NULL;
    sv_cuda_check(cu, cudaLaunchKernelEx(&config, kernel, few, n, s),
                  "a norm and a router of ranks");
    cu->peers->pushed = SV_JOIN_NONE;
    return true;
}
