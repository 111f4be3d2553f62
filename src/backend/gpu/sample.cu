/*
 * sample.cu - one token per row of logits: the argmax, or a draw from the filtered distribution.
 *
 * Called through the table in device.cu. A row is cut into slices, a block each, so that one row
 * does not wait for one multiprocessor; sums are integers (sample.cuh), so no token depends on the
 * number of slices. Five launches: the largest logit; for rows with a filter, mass (or number) by
 * bins of the logit and then a list of the candidates in the bin where the cut lies; the cut, and
 * the mass that is kept of every range of ids; the draw. A row with more candidates than the list
 * holds is processed by one block alone. Must not: use a float atomic, or leave bins or a list that
 * are not empty.
 */
#include "backend/gpu/sample.cuh"

enum {
    SLICES = 32, /* of a row, at most */
    ROWS = 128   /* of a launch: as many as there is scratch for */
};
#define DEPTH 32.0f /* in temperatures below the largest logit: beyond, weights are 0 */

struct row_state {
    uint64_t hist[BINS]; /* zero between calls */
    float list_x[LIST];
    int32_t list_id[LIST];
    uint64_t best[SLICES]; /* pair_of the largest logit */
    uint64_t nans[SLICES];
    uint32_t deepest[SLICES];     /* ~key_of the least logit above -inf */
    uint64_t sum[SLICES * WARPS]; /* mass kept, stretch by stretch */
    uint64_t above, total, cut;
    uint32_t n_list; /* above LIST: too many. Zero between calls */
};

struct work {
    struct row_state *state;
    struct sv_cuda_fault *fault;
    int32_t row0, n_slices, stretch; /* ids of a warp */
};

/* A block's part of a row. */
struct part {
    const float *x;
    struct row_state *st;
    int32_t row, slice, slot, begin, end;
};

static __device__ __forceinline__ struct part part_of(const struct sv_p_sample &p,
                                                      const struct work &w)
{
    struct part a;
    const int32_t i = blockIdx.x / w.n_slices;
    a.slice = blockIdx.x % w.n_slices;
    a.row = w.row0 + i;
    a.slot = p.row_slot[a.row];
    a.x = (const float *)p.logits + a.row * p.ld;
    a.st = w.state + i;
    a.begin = min(p.vocab, a.slice * w.stretch * WARPS);
    a.end = min(p.vocab, a.begin + w.stretch * WARPS);
    return a;
}

/* f(logit, id) for the ids of [begin, end), each by one thread; begin is a multiple of four. */
template <typename F>
static __device__ __forceinline__ void each(const float *x, int32_t begin, int32_t end, F f)
{
    int32_t at = begin;
    if ((uintptr_t)(x + begin) % sizeof(float4) == 0) {
        at = begin + (end - begin) / 4 * 4;
#pragma unroll 2
        for (int32_t i = begin + 4 * (int32_t)threadIdx.x; i < at; i += 4 * THREADS) {
            const float4 v = *(const float4 *)(x + i);
            f(v.x, i);
            f(v.y, i + 1);
            f(v.z, i + 2);
            f(v.w, i + 3);
        }
    }
    for (int32_t i = at + (int32_t)threadIdx.x; i < end; i += THREADS)
        f(x[i], i);
}

/* ---------------------------------------------------------------- the largest logit */

static __global__ void __launch_bounds__(THREADS) max_kernel(struct sv_p_sample p, struct work w)
{
    __shared__ struct shared s;
    sv_pdl_launch();
    sv_pdl_wait();
    const struct part a = part_of(p, w);
    if (a.slot < 0)
        return; /* padding */
    uint64_t best = 0, n_nan[1] = {0};
    uint32_t deepest = 0;
    each(a.x, a.begin, a.end, [&](float v, int32_t id) {
        if (v != v) {
            n_nan[0]++;
            return;
        }
        best = max(best, pair_of(v, id));
        const uint32_t depth = ~key_of(v);
        deepest = v > -INFINITY && depth > deepest ? depth : deepest;
    });
    best = block_max(&s, best);
    deepest = (uint32_t)block_max(&s, deepest);
    block_add<1>(&s, n_nan);
    if (threadIdx.x == 0) {
        a.st->best[a.slice] = best;
        a.st->deepest[a.slice] = deepest;
        a.st->nans[a.slice] = n_nan[0];
    }
}

/* What the slices found, put together by every warp for itself, and what follows from it. */
struct facts {
    struct sv_sampling sp;
    struct scale sc;
    uint64_t n_nan;
    int32_t argmax;
    bool draws; /* neither greedy nor a row that is no distribution */
    bool by_k, by_p;
    float to_bin; /* bins in a unit of logits */
};

static __device__ __forceinline__ float logit_of(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

static __device__ __forceinline__ struct facts facts_of(const struct sv_p_sample &p,
                                                        const struct work &w, const struct part &a)
{
    const int lane = threadIdx.x % 32;
    uint64_t best = lane < w.n_slices ? a.st->best[lane] : 0;
    uint64_t nans = lane < w.n_slices ? a.st->nans[lane] : 0;
    uint32_t deepest = lane < w.n_slices ? a.st->deepest[lane] : 0;
#pragma unroll
    for (int step = 16; step; step /= 2) {
        best = max(best, __shfl_xor_sync(0xffffffffu, best, step));
        nans += __shfl_xor_sync(0xffffffffu, nans, step);
        const uint32_t other = __shfl_xor_sync(0xffffffffu, deepest, step);
        deepest = other > deepest ? other : deepest;
    }
    struct facts f;
    f.sp = p.slot_sampling[a.slot];
    f.n_nan = nans;
    f.argmax = (int32_t)(ID_MASK - (uint32_t)(best & ID_MASK));
    f.sc.max = a.x[best ? f.argmax : 0];
    /* Bounded so that 0 * inv_t and -inf * inv_t stay what they must be for any temperature. */
    f.sc.inv_t = fminf(fmaxf(__fdiv_rn(1.0f, f.sp.temperature), 1e-30f), 1e30f);
    f.sc.count = false;
    f.draws = f.sp.temperature > 0 && nans == 0 && !isinf(f.sc.max);
    f.by_k = f.draws && f.sp.top_k > 0 && f.sp.top_k < p.vocab;
    f.by_p = f.draws && f.sp.top_p < 1.0f;
    float range = f.sc.max - logit_of(~deepest);
    if (!f.by_k)
        range = fminf(range, DEPTH / f.sc.inv_t);
    f.to_bin = range > 0 ? fminf((BINS - 1) / range, 1e30f) : 0;
    return f;
}

/* Never rises with the logit. */
static __device__ __forceinline__ int32_t bin_of(float x, const struct facts &f)
{
    return (int32_t)fminf(__fmul_rn(__fsub_rn(f.sc.max, x), f.to_bin), (float)(BINS - 1));
}

/* ---------------------------------------------------------------- candidates */

/* Mass by bins; numbers by bins where the k likeliest are wanted. Two words each, the carry by
 * hand: there is no fast 64-bit addition in shared memory. */
static __global__ void __launch_bounds__(THREADS) hist_kernel(struct sv_p_sample p, struct work w)
{
    __shared__ uint32_t lo[BINS], hi[BINS];
    sv_pdl_launch();
    sv_pdl_wait();
    const struct part a = part_of(p, w);
    if (a.slot < 0)
        return;
    const struct facts f = facts_of(p, w, a);
    if (!f.by_k && !f.by_p)
        return;
    for (int b = threadIdx.x; b < BINS; b += THREADS)
        lo[b] = hi[b] = 0;
    __syncthreads();
    each(a.x, a.begin, a.end, [&](float v, int32_t) {
        const uint64_t m = f.by_k ? 1 : mass_of(v, f.sc);
        if (m == 0)
            return;
        const int32_t b = bin_of(v, f);
        const uint32_t old = atomicAdd(&lo[b], (uint32_t)m);
        const uint32_t up = (uint32_t)(m >> 32) + (old + (uint32_t)m < old);
        if (up)
            atomicAdd(&hi[b], up);
    });
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += THREADS) {
        const uint64_t m = (uint64_t)hi[b] << 32 | lo[b];
        if (m)
            atomicAdd((unsigned long long *)&a.st->hist[b], (unsigned long long)m);
    }
}

/* Finds the bin of the cut and lists its logits; with top_k all from there up. */
static __global__ void __launch_bounds__(THREADS) list_kernel(struct sv_p_sample p, struct work w)
{
    enum { EACH = BINS / THREADS };
    __shared__ struct shared s;
    __shared__ uint64_t above, upto;
    __shared__ int32_t bin;
    sv_pdl_launch();
    sv_pdl_wait();
    const struct part a = part_of(p, w);
    if (a.slot < 0)
        return;
    const struct facts f = facts_of(p, w, a);
    if (!f.by_k && !f.by_p)
        return;
    uint64_t own[EACH], sum = 0, total;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sum += own[i] = a.st->hist[threadIdx.x * EACH + i];
    uint64_t before = block_scan(&s, sum, &total);
    const double target =
        f.by_k ? (double)f.sp.top_k : fmax((double)f.sp.top_p * (double)total, 1.0);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if ((double)before < target && (double)(before + own[i]) >= target) {
            bin = (int32_t)threadIdx.x * EACH + i;
            above = before;
            upto = before + own[i];
        }
        before += own[i];
    }
    __syncthreads();
    if (a.slice == 0 && threadIdx.x == 0) {
        a.st->above = f.by_k ? 0 : above;
        a.st->total = total;
    }
    if (f.by_k && upto > LIST) {
        if (threadIdx.x == 0)
            a.st->n_list = LIST + 1; /* every slice says so */
        return;
    }
    const int32_t from = f.by_k ? 0 : bin, to = bin;
    each(a.x, a.begin, a.end, [&](float v, int32_t id) {
        const int32_t b = bin_of(v, f);
        if (b < from || b > to)
            return;
        const uint32_t at = atomicAdd(&a.st->n_list, 1u);
        if (at < LIST) {
            a.st->list_x[at] = v;
            a.st->list_id[at] = id;
        }
    });
}

/* ---------------------------------------------------------------- the cut, and what it leaves */

static __device__ uint64_t cut_of(struct shared *s, const struct part &a, const struct facts &f)
{
    const int32_t n = (int32_t)a.st->n_list;
    const struct source src = {s->x, s->id, n};
    const struct scale count = {f.sc.max, f.sc.inv_t, true};
    uint64_t high = 0, low = 0, cut = 0, mass[1] = {0};
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        const float x = a.st->list_x[i];
        s->x[i] = x;
        s->id[i] = a.st->list_id[i];
        high = max(high, (uint64_t)key_of(x));
        low = max(low, (uint64_t)(uint32_t)~key_of(x));
    }
    const uint32_t hi = (uint32_t)block_max(s, high);
    uint32_t lo = ~(uint32_t)block_max(s, low);
    if (!f.by_k)
        return find_cut(s, src, f.sc, fmax((double)f.sp.top_p * (double)a.st->total, 1.0), 0, lo,
                        hi, a.st->above);
    cut = find_cut(s, src, count, f.sp.top_k, 0, lo, hi);
    if (!f.by_p)
        return cut;
    lo = (uint32_t)(cut >> ID_BITS);
    for (int32_t i = threadIdx.x; i < n; i += THREADS)
        if (pair_of(src.x[i], src.id[i]) >= cut)
            mass[0] += mass_of(src.x[i], f.sc);
    block_add<1>(s, mass);
    return find_cut(s, src, f.sc, fmax((double)f.sp.top_p * (double)mass[0], 1.0), cut, lo, hi);
}

static __global__ void __launch_bounds__(THREADS) cut_kernel(struct sv_p_sample p, struct work w)
{
    __shared__ struct shared s;
    sv_pdl_launch();
    sv_pdl_wait();
    const struct part a = part_of(p, w);
    if (a.slot < 0)
        return;
    const struct facts f = facts_of(p, w, a);
    const bool filters = f.by_k || f.by_p;
    if (!f.draws)
        return;
    for (int b = a.slice * THREADS + (int)threadIdx.x; filters && b < BINS;
         b += w.n_slices * THREADS)
        a.st->hist[b] = 0;
    if (filters && a.st->n_list > LIST)
        return;
    const uint64_t cut = filters ? cut_of(&s, a, f) : 0;
    const struct kept k = {cut, fminf(f.sp.min_p, 1.0f)}; /* the most probable weighs exactly 1 */
    const struct source all = {a.x, NULL, p.vocab};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t begin = min(a.end, a.begin + warp * w.stretch),
                  end = min(a.end, begin + w.stretch);
    uint64_t own = 0;
#pragma unroll 4
    for (int32_t i = begin + lane; i < end; i += 32)
        own += kept_mass(all, i, f.sc, k);
#pragma unroll
    for (int step = 16; step; step /= 2)
        own += __shfl_xor_sync(0xffffffffu, own, step);
    if (lane == 0)
        a.st->sum[a.slice * WARPS + warp] = own;
    if (a.slice == 0 && threadIdx.x == 0)
        a.st->cut = cut;
}

/* ---------------------------------------------------------------- the draw */

/* The first id, in ascending order, at which the running mass exceeds u of the whole: first the
 * stretch, then the thread, then the id. */
static __device__ void draw_row(struct shared *s, const struct part &a, const struct facts &f,
                                const struct work &w, int32_t vocab, double u, int32_t *out)
{
    __shared__ uint64_t left;
    __shared__ int32_t in;
    const struct kept k = {a.st->cut, fminf(f.sp.min_p, 1.0f)};
    const struct source all = {a.x, NULL, vocab};
    uint64_t own = (int)threadIdx.x < w.n_slices * WARPS ? a.st->sum[threadIdx.x] : 0, total,
             unused;
    uint64_t before = block_scan(s, own, &total);
    uint64_t target = (uint64_t)(u * (double)total);
    target = target < total ? target : total - 1; /* the most probable alone weighs 2^44 */
    if (target >= before && target < before + own) {
        in = (int32_t)threadIdx.x;
        left = target - before;
    }
    __syncthreads();
    const int32_t begin = in * w.stretch, end = min(vocab, begin + w.stretch);
    const int32_t n = (w.stretch + THREADS - 1) / THREADS;
    const int32_t from = min(end, begin + (int32_t)threadIdx.x * n), to = min(end, from + n);
    own = 0;
    for (int32_t i = from; i < to; i++)
        own += kept_mass(all, i, f.sc, k);
    before = block_scan(s, own, &unused);
    if (left < before || left >= before + own)
        return;
    for (int32_t i = from; i < to; i++) {
        before += kept_mass(all, i, f.sc, k);
        if (before > left) {
            *out = i;
            return;
        }
    }
}

static __global__ void __launch_bounds__(THREADS) draw_kernel(struct sv_p_sample p, struct work w)
{
    __shared__ struct shared s;
    sv_pdl_launch();
    sv_pdl_wait();
    struct part a;
    a.row = w.row0 + blockIdx.x;
    a.slot = p.row_slot[a.row];
    a.x = (const float *)p.logits + a.row * p.ld;
    a.st = w.state + blockIdx.x;
    if (a.slot < 0)
        return;
    const struct facts f = facts_of(p, w, a);
    int32_t *out = p.out + a.row;
    const bool greedy = !(f.sp.temperature > 0);
    if (!f.draws) {
        const bool nan = greedy ? f.n_nan == (uint64_t)p.vocab : f.n_nan > 0;
        if (threadIdx.x != 0)
            return;
        if (nan)
            sv_fault_set(w.fault, SV_CUDA_FAULT_SAMPLE_NAN, (int32_t)f.n_nan, p.vocab, a.slot);
        else if (!greedy)
            sv_fault_set(w.fault, SV_CUDA_FAULT_SAMPLE_INF, a.slot, f.sc.max > 0, 0);
        *out = nan ? 0 : f.argmax;
        return;
    }
    const bool listed = a.st->n_list <= LIST;
    const int32_t pos = p.row_pos[a.row];
    if (listed) {
        draw_row(&s, a, f, w, p.vocab, uniform(f.sp.seed, pos), out);
    } else {
        float most = -INFINITY;
        for (int32_t i = threadIdx.x; i < p.vocab; i += THREADS)
            most = fmaxf(most, a.x[i]);
        sample_row(&s, a.x, p.vocab, f.sc.max, most, f.sp, pos, out);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        a.st->n_list = 0;
}

/* ---------------------------------------------------------------- the host's side */

int sv_cuda_sample_reserve(struct sv_cuda *cu, struct sv_err *err)
{
    const int32_t n = cu->lim.max_logit_rows < ROWS ? cu->lim.max_logit_rows : (int32_t)ROWS;
    sv_cuda_sample_close(cu);
    cu->sample_rows = n;
    return n ? sv_cuda_alloc((struct sv_dev *)(void *)cu, &cu->sample,
                             (size_t)n * sizeof(struct row_state), err)
             : SV_OK;
}

void sv_cuda_sample_close(struct sv_cuda *cu)
{
    sv_cuda_free((struct sv_dev *)(void *)cu, cu->sample);
    cu->sample = NULL;
}

void sv_cuda_sample(struct sv_dev *dev, const struct sv_p_sample *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    SV_REQUIRE(p->vocab <= cu->lim.max_vocab && cu->sample);
    struct work w;
    w.state = (struct row_state *)cu->sample;
    w.fault = cu->fault;
    for (w.row0 = 0; w.row0 < p->n_rows; w.row0 += cu->sample_rows) {
        const int32_t n =
            p->n_rows - w.row0 < cu->sample_rows ? p->n_rows - w.row0 : cu->sample_rows;
        /* As many blocks as there are multiprocessors; a slice shorter than its block is not worth
         * one. */
        w.n_slices = cu->n_sms / n;
        while (w.n_slices > 1 && (w.n_slices > SLICES || p->vocab / w.n_slices < THREADS))
            w.n_slices--;
        w.n_slices = w.n_slices > 0 ? w.n_slices : 1;
        w.stretch = (p->vocab + 4 * WARPS * w.n_slices - 1) / (4 * WARPS * w.n_slices) * 4;
        const dim3 grid((unsigned)(n * w.n_slices)), block(THREADS);
        sv_cuda_launch(cu, "sample: max", max_kernel, grid, block, 0, *p, w);
        sv_cuda_launch(cu, "sample: bins", hist_kernel, grid, block, 0, *p, w);
        sv_cuda_launch(cu, "sample: list", list_kernel, grid, block, 0, *p, w);
        sv_cuda_launch(cu, "sample: cut", cut_kernel, grid, block, 0, *p, w);
        sv_cuda_launch(cu, "sample: draw", draw_kernel, dim3((unsigned)n), block, 0, *p, w);
    }
}
