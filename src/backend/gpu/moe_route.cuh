/*
 * moe_route.cuh - routing after a row's logits: the experts are chosen, and the entries of few rows
 * are listed by one thread block.
 *
 * Included by moe_route.cu and by cuda/route_sm90.cu, whose kernels compute the logits. Must not:
 * choose by anything except a row's own logits.
 */
#ifndef SV_GPU_MOE_ROUTE_CUH
#define SV_GPU_MOE_ROUTE_CUH

#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/silu.cuh"

enum {
    THREADS = 512, /* of a thread block of the router: a warp has an expert */
    WARPS = THREADS / 32,
    ROWS = 4, /* rows of a pass over the weights */
    /* 16-byte pieces of weights that a lane reads before its predecessor is done */
    EARLY = 8,
    FEW_ENTRIES = 512, /* that one block lists */
    FEW_WORDS = 2048,  /* and what it needs of shared memory (row_words) */
    MOST_BLOCKS = 256  /* of a launch */
};

/* Handed to kernels by value. */
struct route {
    struct sv_routes r;
    const void *x, *w, *bias, *shared; /* shared: of the shared expert's weight, or NULL */
    /* Experts that are chosen among, and how many are; logits of these and of the shared one */
    int32_t n, k, n_logits;
    int32_t hidden, w_dtype, bias_dtype;
    bool packed;
    const int32_t *row_seg;
    enum sv_router_norm norm;
    struct sv_router_sigmoid sigmoid;
    uint32_t *n_chosen;
    uint32_t *arrived; /* of few rows: 0 between launches. Else NULL */
    int32_t *posted;   /* (FEW_ENTRIES) choices on their way to the block that lists; likewise 0 */
};

/* Eight bf16 weights of expert e, from column 8 c on. */
static __device__ __forceinline__ const uint4 *weights_at(const struct route &a, int32_t e,
                                                          int32_t c)
{
    const __nv_bfloat16 *const w = (const __nv_bfloat16 *)a.w;
    return (const uint4 *)(e < a.n ? w + sv_packed_at(e, 8 * c, a.hidden)
                                   : (const __nv_bfloat16 *)a.shared + 8 * c);
}
static __device__ __forceinline__ uint4 weights_of(const struct route &a, int32_t e, int32_t c)
{
    return *weights_at(a, e, c);
}

/* ---------------------------------------------------------------- choosing */

/* Grows with the logit; NaN is less than every number. */
static __device__ __forceinline__ int32_t order_of(float logit)
{
    const int32_t bits = (int32_t)__float_as_uint(logit + 0.0f);
    return logit != logit ? INT32_MIN : bits < 0 ? (bits ^ 0x7fffffff) : bits;
}

/* Number i of x, and of bias where there is one. */
static __device__ __forceinline__ float biased(const float *x, const float *bias, int32_t i)
{
    return bias ? __fadd_rn(x[i], bias[i]) : x[i];
}

/* The largest of n numbers that is not taken, of equal ones the first; then it is taken: lane l has
 * numbers l, l + 32, ..., a bit of `taken` each. of(i): the order of this lane's number i. */
template <class OF>
static __device__ __forceinline__ int32_t take_best(const OF &of, int32_t n, uint32_t &taken)
{
    const int lane = threadIdx.x & 31;
    /* Of this lane's the first of the largest; then over the warp. */
    int32_t most = INT32_MIN, at = -1;
    for (int32_t i = 0; lane + 32 * i < n; i++) {
        const int32_t order = of(i);
        if (!(taken >> i & 1) && (at < 0 || order > most)) {
            most = order;
            at = i;
        }
    }
    const int32_t best = __reduce_max_sync(0xffffffffu, most);
    const int32_t low = at >= 0 && most == best ? lane + 32 * at : SV_MAX_EXPERTS;
    const int32_t chosen = -__reduce_max_sync(0xffffffffu, -low);
    if (chosen == low)
        taken |= 1u << at;
    return chosen;
}

/* By the lane alone: the sum of the two largest of numbers [from, from + n). */
static __device__ __forceinline__ float best_two(const float *x, const float *bias, int32_t from,
                                                 int32_t n)
{
    float first = biased(x, bias, from), second = biased(x, bias, from + 1);
    if (order_of(second) > order_of(first)) {
        const float other = first;
        first = second;
        second = other;
    }
    for (int32_t i = 2; i < n; i++) {
        const float v = biased(x, bias, from + i);
        if (order_of(v) > order_of(first)) {
            second = first;
            first = v;
        } else if (order_of(v) > order_of(second)) {
            second = v;
        }
    }
    return __fadd_rn(first, second);
}

/* A row's logits become scores; of the lane's experts those are taken that are in none of the best
 * groups. */
static __device__ __forceinline__ uint32_t keep_groups(const struct route &a, float *score)
{
    const struct sv_router_sigmoid &s = a.sigmoid;
    const int lane = threadIdx.x & 31;
    const int32_t n = a.n, size = n / s.n_group;
    const float *bias = (const float *)s.bias.data;
    for (int32_t e = lane; e < n; e += 32)
        score[e] = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-score[e])));
    __syncwarp();
    if (s.topk_group >= s.n_group)
        return 0;
    const float own = best_two(score, bias, min(lane, s.n_group - 1) * size, size);
    const auto sum = [&](int32_t i) {
        const int32_t g = lane + 32 * i;
        return order_of(i == 0 ? own : best_two(score, bias, g * size, size));
    };
    uint32_t kept = 0, out = 0; /* of this lane's groups; of its experts */
    for (int32_t i = 0; i < s.topk_group; i++)
        take_best(sum, s.n_group, kept);
    for (int32_t i = 0; 32 * i < n; i++) {
        const int32_t g = min(lane + 32 * i, n - 1) / size;
        if (!(__shfl_sync(0xffffffffu, kept, g % 32) >> g / 32 & 1))
            out |= 1u << i;
    }
    return out;
}

/* The warp's row: lane j keeps choice j's id. */
static __device__ __forceinline__ int32_t choices(const float *logit, const float *bias, int32_t n,
                                                  int32_t k, uint32_t taken)
{
    const int lane = threadIdx.x & 31;
    int32_t id = 0;
    for (int32_t j = 0; j < k; j++) {
        const int32_t chosen = take_best(
            [&](int32_t i) { return order_of(biased(logit, bias, lane + 32 * i)); }, n, taken);
        id = lane == j ? chosen : id;
    }
    return id;
}

/* The same where a lane has PER logits at most: it sorts them, equal ones by id, and a choice takes
 * the first of one lane. */
template <int PER>
static __device__ __forceinline__ int32_t sorted_choices(const float *logit, const float *bias,
                                                         int32_t n, int32_t k, uint32_t taken)
{
    const int lane = threadIdx.x & 31;
    int32_t order[PER], at[PER], id = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        at[i] = lane + 32 * i;
        order[i] = INT32_MIN; /* behind NaN */
        if (at[i] < n && !(taken >> i & 1))
            order[i] = max(order_of(biased(logit, bias, at[i])), INT32_MIN + 1);
    }
#pragma unroll
    for (int last = PER - 1; last > 0; last--)
#pragma unroll
        for (int i = 0; i < last; i++) {
            const bool swaps = order[i + 1] > order[i];
            const int32_t most = max(order[i], order[i + 1]), first = swaps ? at[i + 1] : at[i];
            order[i + 1] = min(order[i], order[i + 1]);
            at[i + 1] = swaps ? at[i] : at[i + 1];
            order[i] = most;
            at[i] = first;
        }
    for (int32_t j = 0; j < k; j++) {
        const int32_t best = __reduce_max_sync(0xffffffffu, order[0]);
        const int32_t low = order[0] == best ? at[0] : SV_MAX_EXPERTS;
        const int32_t chosen = -__reduce_max_sync(0xffffffffu, -low);
        const bool mine = chosen == low;
        id = lane == j ? chosen : id;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            order[i] = !mine ? order[i] : i + 1 < PER ? order[(i + 1) % PER] : INT32_MIN;
            at[i] = !mine || i + 1 == PER ? at[i] : at[(i + 1) % PER];
        }
    }
    return id;
}

/* The number of an expert among this device's, or -1. */
static __device__ __forceinline__ int32_t own_of(const struct route &a, int32_t expert)
{
    const int32_t i = expert - a.r.own.first;
    return expert >= 0 && i >= 0 && i < a.r.own.n ? i : -1;
}

/* The warp's row of these logits, which becomes a sigmoid's scores; lane j gets choice j as a
 * number among this device's, -1 for others' and in a row of padding. near: NULL, or (n_rows, k)
 * where choices go as well. late(): returns once the shared expert's logit has come. SORTS: up to
 * 256 logits are sorted first, which is faster where nothing else is under way, in more code. */
template <bool SORTS, class LATE>
static __device__ __forceinline__ int32_t choose(const struct route &a, int32_t row, bool there,
                                                 float *logit, int32_t *near, const LATE &late)
{
    static_assert(SV_MAX_EXPERTS <= 32 * 32, "a bit for each of a lane's logits");
    const int lane = threadIdx.x & 31;
    const int32_t n = a.n, k = a.k, all = a.r.k;
    const bool sigmoid = a.norm == SV_ROUTER_SIGMOID;
    const float *bias = sigmoid ? (const float *)a.sigmoid.bias.data : NULL;
    if (!there) {
        if (lane < all) {
            a.r.expert[row * all + lane] = a.r.place[row * all + lane] = -1;
            if (near)
                near[row * all + lane] = -1;
        }
        return -1;
    }
    const uint32_t taken = sigmoid ? keep_groups(a, logit) : 0; /* of this lane's logits */
    int32_t id;
    if (SORTS && n <= 128)
        id = sorted_choices<4>(logit, bias, n, k, taken);
    else if (SORTS && n <= 256)
        id = sorted_choices<8>(logit, bias, n, k, taken);
    else
        id = choices(logit, bias, n, k, taken);
    float e = logit[id], sum = 0.0f, by = sigmoid ? a.sigmoid.scale : 1.0f;
    const float top = __shfl_sync(0xffffffffu, e, 0);
    if (!sigmoid)
        e = lane < k ? expf(e - top) : 0.0f;
    if (a.norm != SV_ROUTER_OVER_ALL) {
        for (int32_t j = 0; j < k; j++)
            sum += __shfl_sync(0xffffffffu, e, j);
    } else {
        for (int32_t i = lane; i < n; i += 32)
            sum += expf(logit[i] - top);
        sum = sv_warp_sum(sum);
    }
    if (sigmoid)
        sum = a.sigmoid.renorm ? sum + 1e-20f : 1.0f;
    float weight = e / sum * by;
    late();
    if (lane == k) { /* the shared one, where there is one */
        id = n;
        weight = a.shared ? sv_sigmoid(logit[n]) : 1.0f;
    }
    if (lane < all) {
        a.r.expert[row * all + lane] = id;
        a.r.weight[row * all + lane] = weight;
        id = own_of(a, id);
        if (id < 0)
            a.r.place[row * all + lane] = -1;
        if (near)
            near[row * all + lane] = id;
    }
    return lane < all ? id : -1;
}

/* All lists of a call of one row, by the warp that has its choices: see few_lists. PER: experts
 * of a lane, at most. */
template <int PER>
static __device__ __forceinline__ void one_list(const struct route &a, int32_t id)
{
    const int lane = threadIdx.x & 31;
    const int32_t n = a.r.own.n, k = a.r.k;
    int32_t place = 0, before[PER] = {};
    const int32_t n_active = __popc(__ballot_sync(0xffffffffu, id >= 0));
    for (int32_t j = 0; j < k; j++) {
        const int32_t other = __shfl_sync(0xffffffffu, id, j);
        place += other >= 0 && other < id;
#pragma unroll
        for (int i = 0; i < PER; i++)
            before[i] += other >= 0 && other < lane + 32 * i;
    }
    if (id >= 0) {
        a.r.place[lane] = place;
        a.r.list[place] = lane;
        a.r.active[place] = id;
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        if (lane + 32 * i < n)
            a.r.first[lane + 32 * i] = before[i];
    if (lane != 0)
        return;
    a.r.first[n] = *a.r.n_active = n_active;
    if (a.n_chosen)
        atomicAdd(a.n_chosen, (uint32_t)n_active - (n_active && a.r.shared));
}

/* ---------------------------------------------------------------- lists of few entries */

/* The sums of n over the threads before this one and, in *all, over the block; scratch: (WARPS). */
static __device__ __forceinline__ uint32_t before_me(uint32_t n, uint32_t *scratch, uint32_t *all)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t sum = n, before = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        scratch[warp] = sum;
    __syncthreads();
    *all = 0;
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? scratch[i] : 0;
        *all += scratch[i];
    }
    __syncthreads();
    return before + sum - n;
}

/* Words of an expert in `rows`: a bit for each row, and where its entries begin. */
static __host__ __device__ __forceinline__ int32_t row_words(int32_t n_rows)
{
    return (n_rows + 31) / 32 + 1;
}

/* Whether few_lists takes them. */
static inline bool are_few(const struct sv_routes *r)
{
    return r->n_rows * r->k <= FEW_ENTRIES && r->own.n * row_words(r->n_rows) <= FEW_WORDS;
}

/* By one whole thread block, which has chosen (n_rows, k), the rows' choices; no row has an expert
 * twice. rows: (FEW_WORDS) shared memory. A thread has an expert, then an entry.
 */
static __device__ void few_lists(const struct route &a, const int32_t *chosen, uint32_t *rows)
{
    __shared__ uint32_t scratch[WARPS];
    const int32_t n_experts = a.r.own.n, k = a.r.k, n = a.r.n_rows * k;
    const int32_t each = row_words(a.r.n_rows), first = each - 1;
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < n_experts * each; i += THREADS)
        rows[i] = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS)
        if (chosen[i] >= 0)
            atomicOr(rows + chosen[i] * each + i / k / 32, 1u << i / k % 32);
    __syncthreads();
    uint32_t so_far = 0; /* entries in the low half, experts that have some in the high half */
    for (int32_t e0 = 0; e0 < n_experts; e0 += THREADS) {
        const int32_t expert = e0 + (int32_t)threadIdx.x;
        int32_t mine = 0;
#pragma unroll 1
        for (int32_t i = 0; expert < n_experts && i < first; i++)
            mine += __popc(rows[expert * each + i]);
        uint32_t sum;
        const uint32_t before =
            so_far + before_me(mine ? (uint32_t)mine | 1u << 16 : 0, scratch, &sum);
        so_far += sum;
        if (expert < n_experts)
            rows[expert * each + first] = a.r.first[expert] = (int32_t)(before & 0xffff);
        if (mine)
            a.r.active[before >> 16] = expert;
    }
    __syncthreads();
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += THREADS) {
        if (chosen[i] < 0)
            continue;
        const uint32_t *mine = rows + chosen[i] * each;
        const int32_t row = i / k;
        int32_t place = (int32_t)mine[first] + __popc(mine[row / 32] & ((1u << row % 32) - 1));
#pragma unroll 1
        for (int32_t j = 0; j < row / 32; j++)
            place += __popc(mine[j]);
        a.r.list[place] = i;
        a.r.place[i] = place;
    }
    if (threadIdx.x == 0) {
        a.r.first[n_experts] = (int32_t)(so_far & 0xffff);
        *a.r.n_active = (int32_t)(so_far >> 16);
        if (a.n_chosen)
            atomicAdd(a.n_chosen, (so_far >> 16) - (so_far && a.r.shared));
    }
}

#endif
