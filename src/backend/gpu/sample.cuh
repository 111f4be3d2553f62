/*
 * sample.cuh - device functions of sampling: keys, weights, random numbers, sums of a block, cuts.
 *
 * Included by sample.cu alone. The distribution, the order of the filters and the random number are
 * those of cpu/sample.c. Weights e^((x - max) / T) have the bits of the CPU's (the same polynomial
 * with fused steps); every sum of them is taken in integers of 2^-44, so no order of adding matters
 * and any number of threads or blocks gives the same cut and the same token. Against the CPU's sums
 * in double a sum can differ by 2^-45 per token: only a draw or a cut that close to a bound can
 * give another token. Must not: use a float atomic, or let a row depend on another.
 *
 * A filter keeps the candidates at or above a cut. Cuts are found by bisection, eight ways at a
 * time, on the pair (logit, lower id first) as one integer, mostly on a short list of candidates in
 * shared memory.
 */
#ifndef SV_CUDA_SAMPLE_CUH
#define SV_CUDA_SAMPLE_CUH

#include "backend/cuda/cuda.h"

/* LIST: candidates in shared memory; with more, every step reads the logits again. */
#ifndef SV_SAMPLE_SIZES /* a test sets small sizes, so few logits cover every case */
#define SV_SAMPLE_SIZES THREADS = 1024, LIST = 4096, BINS = 4096
#endif
enum {
    SV_SAMPLE_SIZES,
    WARPS = THREADS / 32,
    WAYS = 8,
    ID_BITS = 19 /* SV_CUDA_MAX_VOCAB */
};
#define ONE 0x1p44f /* weight 1 in integers; 2^19 of them fit 64 bits */
#define ID_MASK ((1u << ID_BITS) - 1)

struct shared {
    float x[LIST];
    int32_t id[LIST];
    uint64_t part[WARPS][WAYS], sum[WAYS];
    int32_t count[WARPS];
    int32_t nan[WARPS];
};

/* Numbers to choose from: all logits (id NULL: number i has id i), or a list in ascending order of
 * ids. */
struct source {
    const float *x;
    const int32_t *id;
    int32_t n;
};

/* The weight of a logit. */
struct scale {
    float max, inv_t;
    bool count; /* every number weighs 1 */
};

/* ---------------------------------------------------------------- numbers */

/* An integer with the same order as the number; both zeros are equal. */
static __device__ __forceinline__ uint32_t key_of(float x)
{
    uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ uint64_t pair_of(float x, int32_t id)
{
    return (uint64_t)key_of(x) << ID_BITS | (ID_MASK - (uint32_t)id);
}

/* v_exp of cpu/vec_kernels.h of (x - max) * inv_t, step by step. */
static __device__ __forceinline__ float weight_of(float x, const struct scale &s)
{
    const float y = __fmul_rn(__fsub_rn(x, s.max), s.inv_t);
    const float c = fmaxf(-87.33f, fminf(88.0f, y));
    const float n = rintf(__fmul_rn(c, 1.44269504088896341f));
    float r = __fmaf_rn(n, -0.693359375f, c);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __fmaf_rn(p, r, 1.3981999507e-3f);
    p = __fmaf_rn(p, r, 8.3334519073e-3f);
    p = __fmaf_rn(p, r, 4.1665795894e-2f);
    p = __fmaf_rn(p, r, 1.6666665459e-1f);
    p = __fmaf_rn(p, r, 5.0000001201e-1f);
    p = __fmaf_rn(p, __fmul_rn(r, r), r);
    p = __fadd_rn(p, 1.0f);
    p = __fmul_rn(p, __int_as_float(((int)n + 127) << 23));
    return y < -87.33f ? 0.0f : p;
}

static __device__ __forceinline__ uint64_t mass_of(float x, const struct scale &s)
{
    return s.count ? 1 : __float2ull_rn(__fmul_rn(weight_of(x, s), ONE));
}

/* Philox4x32-10 as sv_philox, stream 0; uniform in [0, 1) with 53 bits. */
static __device__ double uniform(uint64_t seed, int32_t pos)
{
    const uint64_t counter = (uint64_t)(int64_t)pos;
    uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t bits = (uint64_t)c0 << 32 | c1;
    return (double)(bits >> 11) * 0x1p-53;
}

/* ---------------------------------------------------------------- block-wide sums */

/* Adds up v over the block; every thread gets the sums. */
template <int N> static __device__ __forceinline__ void block_add(struct shared *s, uint64_t v[N])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int step = 16; step; step /= 2)
            v[i] += __shfl_xor_sync(0xffffffffu, v[i], step);
        if (lane == 0)
            s->part[warp][i] = v[i];
    }
    __syncthreads();
    if (threadIdx.x < N) {
        uint64_t sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            sum += s->part[w][threadIdx.x];
        s->sum[threadIdx.x] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
        v[i] = s->sum[i];
}

static __device__ __forceinline__ uint64_t block_max(struct shared *s, uint64_t v)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, step));
    if (threadIdx.x % 32 == 0)
        s->part[threadIdx.x / 32][0] = v;
    __syncthreads();
    v = threadIdx.x % 32 < WARPS ? s->part[threadIdx.x % 32][0] : 0;
#pragma unroll
    for (int step = 16; step; step /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, step));
    __syncthreads();
    return v;
}

/* Exclusive prefix sum over the block's threads; *total: the sum of all. */
static __device__ __forceinline__ uint64_t block_scan(struct shared *s, uint64_t v, uint64_t *total)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint64_t sum = v, before = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        s->part[warp][0] = sum;
    __syncthreads();
    *total = 0;
#pragma unroll 8
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? s->part[w][0] : 0;
        *total += s->part[w][0];
    }
    __syncthreads();
    return before + sum - v;
}

/* ---------------------------------------------------------------- cuts */

/* Among the numbers whose pair reaches `alive`: the largest pair P such that those at or above P,
 * with what weighs `above` and is not in the source, together weigh `target` or more. lo and hi
 * enclose the keys of P. Needs a total of at least target > 0. */
static __device__ uint64_t find_cut(struct shared *s, const struct source &src,
                                    const struct scale &sc, double target, uint64_t alive,
                                    uint32_t lo, uint32_t hi, uint64_t above = 0)
{
    uint64_t base = (uint64_t)lo << ID_BITS;
    int bits = ID_BITS + (hi > lo ? 32 - __clz(hi - lo) : 0);
    for (int stop = ID_BITS; stop >= 0; stop -= ID_BITS) {
        while (bits > stop) {
            const int step = min(bits - stop, 3), ways = 1 << step;
            bits -= step;
            uint64_t mass[WAYS - 1] = {};
            for (int32_t i = threadIdx.x; i < src.n; i += THREADS) {
                const float x = src.x[i];
                const uint64_t pair = pair_of(x, src.id ? src.id[i] : i);
                if (pair < alive || pair < base)
                    continue;
                const uint64_t m = mass_of(x, sc);
                const uint64_t way = (pair - base) >> bits; /* beyond ways: above the whole range */
#pragma unroll
                for (int j = 1; j < WAYS; j++)
                    mass[j - 1] += way >= (uint64_t)j ? m : 0;
            }
            block_add<WAYS - 1>(s, mass);
            int best = 0;
#pragma unroll
            for (int j = 1; j < WAYS; j++)
                if (j < ways && (double)(above + mass[j - 1]) >= target)
                    best = j;
            base += (uint64_t)best << bits;
        }
        if (stop == 0)
            break;
        /* The key is found. Ids matter only when several numbers have it. */
        uint64_t ties[1] = {0};
        for (int32_t i = threadIdx.x; i < src.n; i += THREADS) {
            const uint64_t pair = pair_of(src.x[i], src.id ? src.id[i] : i);
            ties[0] += pair >= alive && pair >> ID_BITS == base >> ID_BITS;
        }
        block_add<1>(s, ties);
        if (ties[0] <= 1)
            break;
    }
    return max(base, alive);
}

/* Numbers [begin, end) of n are warp `warp`'s; whole groups of 32. */
static __device__ __forceinline__ void warp_range(int32_t n, int warp, int32_t *begin, int32_t *end)
{
    const int32_t each = (n + 32 * WARPS - 1) / (32 * WARPS) * 32;
    *begin = min(n, each * warp);
    *end = min(n, *begin + each);
}

/* Logits whose key reaches `key`, in ascending order of ids; how many there are, also when that is
 * too many to list. */
static __device__ int32_t make_list(struct shared *s, const float *x, int32_t vocab, uint32_t key)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int32_t begin, end, n = 0, at = 0, all = 0;
    warp_range(vocab, warp, &begin, &end);
    for (int32_t i = begin + lane; i < end; i += 32)
        n += key_of(x[i]) >= key;
    n = (int32_t)__reduce_add_sync(0xffffffffu, (unsigned)n);
    __syncthreads(); /* earlier reads of the list are done */
    if (lane == 0)
        s->count[warp] = n;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        at += w < warp ? s->count[w] : 0;
        all += s->count[w];
    }
    if (all <= LIST && n > 0)
        for (int32_t i = begin; i < end; i += 32) {
            const bool keep = i + lane < end && key_of(x[i + lane]) >= key;
            const unsigned mask = __ballot_sync(0xffffffffu, keep);
            if (keep) {
                const int32_t to = at + __popc(mask & ((1u << lane) - 1));
                s->x[to] = x[i + lane];
                s->id[to] = i + lane;
            }
            at += __popc(mask);
        }
    __syncthreads();
    return all;
}

/* The list of keys from `key` on, or all logits if it were too long. */
static __device__ struct source choose_source(struct shared *s, const float *x, int32_t vocab,
                                              uint32_t key)
{
    const int32_t n = make_list(s, x, vocab, key);
    struct source all = {x, NULL, vocab}, list = {s->x, s->id, n};
    return n <= LIST ? list : all;
}

/* ---------------------------------------------------------------- filters */

/* Candidates that hold the k largest; *lo: no key of them that matters lies below. */
static __device__ struct source list_top_k(struct shared *s, const float *x, int32_t vocab,
                                           int32_t k, float thread_max, uint32_t hi, uint32_t *lo)
{
    *lo = 0;
    if (k <= THREADS && vocab > LIST) {
        /* At least k threads have a largest logit that reaches the k-th largest of these. */
        const struct scale count = {0, 0, true};
        const struct source tops = {s->x, NULL, THREADS};
        __syncthreads();
        s->x[threadIdx.x] = thread_max;
        __syncthreads();
        *lo = (uint32_t)(find_cut(s, tops, count, k, 0, 0, hi) >> ID_BITS);
    }
    return choose_source(s, x, vocab, *lo);
}

/* Candidates that hold the most probable ids of mass top_p; *target becomes top_p of the whole. */
static __device__ struct source list_top_p(struct shared *s, const float *x, int32_t vocab,
                                           const struct scale &sc, float top_p, double *target,
                                           uint32_t *lo)
{
    const float depth[WAYS - 1] = {1, 2, 4, 6, 9, 13, 20};
    float from[WAYS - 1];
    uint64_t mass[WAYS] = {};
#pragma unroll
    for (int j = 0; j < WAYS - 1; j++)
        from[j] = sc.max - depth[j] / sc.inv_t;
    for (int32_t i = threadIdx.x; i < vocab; i += THREADS) {
        const uint64_t m = mass_of(x[i], sc);
        mass[WAYS - 1] += m;
#pragma unroll
        for (int j = 0; j < WAYS - 1; j++)
            mass[j] += x[i] >= from[j] ? m : 0;
    }
    block_add<WAYS>(s, mass);
    *target = fmax((double)top_p * (double)mass[WAYS - 1], 1.0);
    *lo = 0;
#pragma unroll
    for (int j = WAYS - 2; j >= 0; j--)
        if ((double)mass[j] >= *target)
            *lo = key_of(from[j]);
    return choose_source(s, x, vocab, *lo);
}

/* ---------------------------------------------------------------- the draw */

/* The result of the filters. */
struct kept {
    uint64_t cut;
    float floor;
};

static __device__ __forceinline__ uint64_t kept_mass(const struct source &src, int32_t i,
                                                     const struct scale &sc, const struct kept &k)
{
    const float x = src.x[i], w = weight_of(x, sc);
    if (pair_of(x, src.id ? src.id[i] : i) < k.cut || w < k.floor)
        return 0;
    return __float2ull_rn(__fmul_rn(w, ONE));
}

/* The first id, in ascending order, at which the running mass exceeds u of the whole; one thread of
 * the block writes it. */
static __device__ void draw(struct shared *s, const struct source &src, const struct scale &sc,
                            const struct kept &k, double u, int32_t *out)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int32_t begin, end;
    uint64_t own = 0, before = 0, total = 0;
    warp_range(src.n, warp, &begin, &end);
    for (int32_t i = begin + lane; i < end; i += 32)
        own += kept_mass(src, i, sc, k);
#pragma unroll
    for (int step = 16; step; step /= 2)
        own += __shfl_xor_sync(0xffffffffu, own, step);
    __syncthreads();
    if (lane == 0)
        s->part[warp][0] = own;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? s->part[w][0] : 0;
        total += s->part[w][0];
    }
    uint64_t target = (uint64_t)(u * (double)total);
    target = target < total ? target : total - 1; /* the most probable alone weighs 2^44 */
    if (target < before || target >= before + own)
        return;
    for (int32_t i = begin; i < end; i += 32) {
        uint64_t sum = i + lane < end ? kept_mass(src, i + lane, sc, k) : 0;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const uint64_t other = __shfl_up_sync(0xffffffffu, sum, step);
            sum += lane >= step ? other : 0;
        }
        const unsigned over = __ballot_sync(0xffffffffu, before + sum > target);
        if (over) {
            if (lane == __ffs(over) - 1)
                *out = src.id ? src.id[i + lane] : i + lane;
            return;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
}

/* A row by one block alone, whatever its numbers: many equal logits, more candidates than a list
 * holds. */
static __device__ void sample_row(struct shared *s, const float *x, int32_t vocab, float max,
                                  float thread_max, const struct sv_sampling &sp, int32_t pos,
                                  int32_t *out)
{
    /* Bounded so that 0 * inv_t and -inf * inv_t stay what they must be for any temperature. */
    const float inv_t = fminf(fmaxf(__fdiv_rn(1.0f, sp.temperature), 1e-30f), 1e30f);
    const struct scale sc = {max, inv_t, false}, count = {max, inv_t, true};
    const bool by_k = sp.top_k > 0 && sp.top_k < vocab, by_p = sp.top_p < 1.0f;
    const uint32_t hi = key_of(max);
    struct source src = {x, NULL, vocab};
    struct kept k = {0, fminf(sp.min_p, 1.0f)}; /* the most probable weighs exactly 1 */
    double target = 0;
    uint32_t lo = 0;
    if (by_k) {
        src = list_top_k(s, x, vocab, sp.top_k, thread_max, hi, &lo);
        k.cut = find_cut(s, src, count, sp.top_k, 0, lo, hi);
        lo = (uint32_t)(k.cut >> ID_BITS);
        if (by_p) {
            uint64_t mass[1] = {0};
            for (int32_t i = threadIdx.x; i < src.n; i += THREADS)
                if (pair_of(src.x[i], src.id ? src.id[i] : i) >= k.cut)
                    mass[0] += mass_of(src.x[i], sc);
            block_add<1>(s, mass);
            target = fmax((double)sp.top_p * (double)mass[0], 1.0);
        }
    } else if (by_p) {
        src = list_top_p(s, x, vocab, sc, sp.top_p, &target, &lo);
    }
    if (by_p)
        k.cut = find_cut(s, src, sc, target, k.cut, lo, hi);
    draw(s, src, sc, k, uniform(sp.seed, pos), out);
}

#endif
