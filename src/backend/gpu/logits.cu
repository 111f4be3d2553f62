/*
 * logits.cu - what requests change in logits before a token is chosen (masks, bias, bans,
 * penalties), log probabilities, and the slots' tokens that penalties look back on.
 *
 * Called through the table in device.cu; a block per row, a block per segment for the history.
 * Rules give the bits of cpu/logits.c: each operation is rounded by itself, and counts are
 * integers, so the order of the atomics does not matter. Log probabilities sum in an order fixed by
 * the vocabulary. Penalties cost a walk over the sequence's tokens, not over the vocabulary. Must
 * not: leave a count in the scratch, or let a row see a draft after it.
 */
#include "backend/cuda/cuda.h"

#include <float.h>
#include <math.h>

enum { THREADS = 1024, WARPS = THREADS / 32, HISTORY_THREADS = 128 };
#define REPEATS 0x80000000u /* beside the count of a token in the answer */
#define ALL 0xffffffffu

/* ---------------------------------------------------------------- masks */

/* A word of the mask is a warp's 32 logits. In place only what is forbidden is written. */
static __global__ void __launch_bounds__(THREADS) mask_kernel(struct sv_p_logit_mask p)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t n_words = (p.vocab + 31) / 32, which = p.row_mask[blockIdx.x];
    if (which < 0 && p.src == p.dst)
        return;
    const uint32_t *mask = which < 0 ? nullptr : p.masks + (int64_t)which * n_words;
    const float *src = p.src + (int64_t)blockIdx.x * p.ld;
    float *dst = p.dst + (int64_t)blockIdx.x * p.ld;
    for (int32_t i = threadIdx.x; i < p.vocab; i += THREADS) {
        const bool may = !mask || (mask[i / 32] >> (i % 32) & 1);
        if (!may)
            dst[i] = -INFINITY;
        else if (src != dst)
            dst[i] = src[i];
    }
}

void sv_cuda_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_launch(cu, "logit_mask", mask_kernel, p->n_rows, THREADS, 0, *p);
}

/* ---------------------------------------------------------------- rules */

static __device__ __forceinline__ float penalised(float x, const struct sv_logit_rules &r,
                                                  uint32_t count)
{
    const uint32_t n = count & ~REPEATS;
    float y = x;
    if (count & REPEATS)
        y = y > 0 ? __fdiv_rn(y, r.repetition) : __fmul_rn(y, r.repetition);
    if (n) {
        y = __fsub_rn(y, __fmul_rn(r.frequency, __uint2float_rn(n)));
        y = __fsub_rn(y, r.presence);
    }
    return y > FLT_MAX && x <= FLT_MAX ? FLT_MAX : y;
}

/* The tokens at positions [0, base) are in the history, those up to the drawn one in the block's
 * rows. */
static __device__ __forceinline__ int32_t token_at(const int32_t *history, const int32_t *block,
                                                   int32_t base, int32_t pos)
{
    return pos < base ? history[pos] : block[pos - base];
}

static __device__ void penalise(float *x, int32_t vocab, const struct sv_logit_rules &r,
                                const int32_t *history, const int32_t *block, int32_t base,
                                int32_t end, uint32_t *counts)
{
    const int32_t seen = r.repeat_last ? end - r.repeat_last : 0;
    const int32_t repeats = r.repetition == 1 ? end : max(seen, 0);
    const int32_t from = min(repeats, r.n_prompt);
    if (r.repetition == 1 && r.frequency == 0 && r.presence == 0)
        return;
    for (int32_t pos = from + (int32_t)threadIdx.x; pos < end; pos += THREADS) {
        const int32_t id = token_at(history, block, base, pos);
        if (id < 0 || id >= vocab)
            continue;
        if (pos >= r.n_prompt)
            atomicAdd(&counts[id], 1u);
        if (pos >= repeats)
            atomicOr(&counts[id], REPEATS);
    }
    __syncthreads();
    /* The thread that takes a token's count changes its logit; the others find 0. */
    for (int32_t pos = from + (int32_t)threadIdx.x; pos < end; pos += THREADS) {
        const int32_t id = token_at(history, block, base, pos);
        const uint32_t count = id < 0 || id >= vocab ? 0 : atomicExch(&counts[id], 0u);
        if (count)
            x[id] = penalised(x[id], r, count);
    }
}

/* Whether the answer ends in these tokens. */
static __device__ bool ends_in(const int32_t *history, const int32_t *block, int32_t base,
                               int32_t end, int32_t n_prompt, const int32_t *ids, int32_t n)
{
    if (end - n < n_prompt)
        return n == 0;
    for (int32_t k = 0; k < n; k++)
        if (token_at(history, block, base, end - n + k) != ids[k])
            return false;
    return true;
}

static __device__ void apply_lists(float *x, int32_t vocab, const struct sv_logit_rules &r,
                                   const int32_t *history, const int32_t *block, int32_t base,
                                   int32_t end, const int32_t *listed, uint32_t *counts)
{
    for (int32_t k = threadIdx.x; k < r.n_bad_runs; k += THREADS) {
        const int32_t at = k ? listed[k - 1] : r.n_bad_runs, last = listed[k] - 1;
        if (ends_in(history, block, base, end, r.n_prompt, listed + at, last - at))
            x[listed[last]] = -INFINITY;
    }
    if (!r.n_allowed)
        return;
    const int32_t *allowed = listed + (r.n_bad_runs ? listed[r.n_bad_runs - 1] : 0);
    for (int32_t k = threadIdx.x; k < r.n_allowed; k += THREADS)
        counts[allowed[k]] = 1;
    __syncthreads();
    for (int32_t id = threadIdx.x; id < vocab; id += THREADS)
        if (!counts[id])
            x[id] = -INFINITY;
    __syncthreads();
    for (int32_t k = threadIdx.x; k < r.n_allowed; k += THREADS)
        counts[allowed[k]] = 0;
}

static __global__ void __launch_bounds__(THREADS)
    rules_kernel(struct sv_p_logit_rules p, struct sv_cuda_fault *fault)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t row = p.logit_row[blockIdx.x];
    if (row < 0)
        return;
    const int32_t seg = p.rows.row_seg[row];
    const int32_t slot = seg < 0 ? -1 : p.rows.seg_slot[seg];
    if (slot < 0)
        return;
    const struct sv_logit_rules r = p.slot_rules[slot];
    const int32_t row0 = p.rows.seg_row0[seg], base = p.rows.seg_base[seg],
                  end = p.rows.row_pos[row] + 1;
    float *x = p.dst + (int64_t)blockIdx.x * p.ld;
    const float *src = p.src + (int64_t)blockIdx.x * p.ld;
    if (p.src != p.dst)
        for (int32_t i = threadIdx.x; i < p.vocab; i += THREADS)
            x[i] = src[i];
    if (base > p.history_stride) {
        if (threadIdx.x == 0)
            sv_fault_set(fault, SV_CUDA_FAULT_HISTORY, slot, base, p.history_stride);
        return;
    }
    __syncthreads();
    const int64_t bias0 = (int64_t)slot * SV_MAX_BIAS, ban0 = (int64_t)slot * SV_MAX_BAN;
    for (int32_t b = threadIdx.x; b < r.n_bias; b += THREADS) { /* no token twice */
        const int32_t id = p.bias_ids[bias0 + b];
        x[id] = __fadd_rn(x[id], p.bias[bias0 + b]);
    }
    __syncthreads();
    if (end < r.ban_before)
        for (int32_t b = threadIdx.x; b < r.n_ban; b += THREADS)
            x[p.ban_ids[ban0 + b]] = -INFINITY;
    __syncthreads();
    const int32_t *history = p.history + (int64_t)slot * p.history_stride;
    uint32_t *counts = p.counts + (int64_t)blockIdx.x * p.vocab;
    apply_lists(x, p.vocab, r, history, p.row_ids + row0, base, end,
                p.listed + (int64_t)slot * SV_MAX_LISTED, counts);
    __syncthreads();
    penalise(x, p.vocab, r, history, p.row_ids + row0, base, end, counts);
}

void sv_cuda_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_launch(cu, "logit_rules", rules_kernel, p->n_logit_rows, THREADS, 0, *p, cu->fault);
}

/* ---------------------------------------------------------------- log probabilities */

struct logprob_shared {
    uint64_t best[WARPS];
    double sum[WARPS];
    int32_t above[WARPS], n_nan[WARPS];
};

/* Orders like (number, lower id first); 0 is below all. Both zeros are one. */
static __device__ __forceinline__ uint64_t pair_of(float x, int32_t id)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    return (uint64_t)(u & 0x80000000u ? ~u : u | 0x80000000u) << 32 | (ALL - (uint32_t)id);
}

static __device__ __forceinline__ uint64_t warp_best(uint64_t v)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        v = max(v, (uint64_t)__shfl_xor_sync(ALL, (unsigned long long)v, step));
    return v;
}

static __device__ __forceinline__ uint64_t block_best(struct logprob_shared *s, uint64_t v)
{
    v = warp_best(v);
    __syncthreads(); /* the last round's numbers have been read */
    if (threadIdx.x % 32 == 0)
        s->best[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_best(s->best[threadIdx.x % 32]);
}

/* Of the row's numbers that this thread owns, the best one; NaNs are counted and left out. */
static __device__ __forceinline__ uint64_t own_best(const float *x, int32_t vocab, int32_t *n_nan)
{
    uint64_t best = 0;
    for (int32_t id = threadIdx.x; id < vocab; id += THREADS) {
        const float v = x[id];
        *n_nan += isnan(v);
        best = isnan(v) ? best : max(best, pair_of(v, id));
    }
    return best;
}

/* Sum of e^(x - top) and how many rank above `token`, the same in every thread. */
static __device__ void sums(struct logprob_shared *s, const float *x, int32_t vocab, float top,
                            uint64_t token, double *sum, int32_t *above)
{
    double part = 0;
    int32_t n = 0;
    for (int32_t id = threadIdx.x; id < vocab; id += THREADS) {
        part += (double)expf(x[id] - top);
        n += pair_of(x[id], id) > token;
    }
#pragma unroll
    for (int step = 16; step; step /= 2) {
        part += __shfl_xor_sync(ALL, part, step);
        n += __shfl_xor_sync(ALL, n, step);
    }
    if (threadIdx.x % 32 == 0) {
        s->sum[threadIdx.x / 32] = part;
        s->above[threadIdx.x / 32] = n;
    }
    __syncthreads();
    *sum = 0;
    *above = 0;
    for (int w = 0; w < WARPS; w++) {
        *sum += s->sum[w];
        *above += s->above[w];
    }
}

static __device__ int32_t block_count(struct logprob_shared *s, int32_t n)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        n += __shfl_xor_sync(ALL, n, step);
    if (threadIdx.x % 32 == 0)
        s->n_nan[threadIdx.x / 32] = n;
    __syncthreads();
    n = 0;
    for (int w = 0; w < WARPS; w++)
        n += s->n_nan[w];
    return n;
}

static __global__ void __launch_bounds__(THREADS, 1)
    logprobs_kernel(struct sv_p_logprobs p, struct sv_cuda_fault *fault)
{
    __shared__ struct logprob_shared s;
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t slot = p.row_slot[blockIdx.x];
    int32_t n_top = slot < 0 ? -1 : p.slot_rules[slot].n_top;
    if (n_top < 0)
        return;
    const float *x = p.logits + (int64_t)blockIdx.x * p.ld;
    struct sv_logprob_row *out = &p.out[blockIdx.x];
    const int32_t token = p.token[blockIdx.x], lane = threadIdx.x % 32;
    for (int32_t i = threadIdx.x; i < (int32_t)(sizeof *out / 4); i += THREADS)
        ((int32_t *)out)[i] = 0;
    int32_t n_nan = 0, above;
    uint64_t own = own_best(x, p.vocab, &n_nan);
    n_nan = block_count(&s, n_nan);
    uint64_t best = block_best(&s, own);
    const float top = best ? x[ALL - (uint32_t)best] : NAN;
    if (n_nan || !isfinite(top) || token < 0 || token >= p.vocab) {
        if (threadIdx.x == 0)
            sv_fault_set(fault, SV_CUDA_FAULT_LOGPROB, slot, token, n_nan);
        return;
    }
    double sum;
    sums(&s, x, p.vocab, top, pair_of(x[token], token), &sum, &above);
    const double log_sum = log(sum);
    n_top = n_top < p.vocab ? n_top : p.vocab;
    if (threadIdx.x == 0) {
        out->rank = above + 1;
        out->logprob = (float)((double)x[token] - (double)top - log_sum);
        out->n_top = n_top;
    }
    for (int32_t k = 0; k < n_top; k++) {
        const int32_t id = (int32_t)(ALL - (uint32_t)best), owner = id % THREADS;
        if (threadIdx.x == 0) {
            out->top_id[k] = id;
            out->top_logprob[k] = (float)((double)x[id] - (double)top - log_sum);
        }
        /* Its owner's next best; the owner's warp looks through the owner's numbers. */
        if (threadIdx.x / 32 == owner / 32) {
            uint64_t next = 0;
            for (int32_t i = owner + lane * THREADS; i < p.vocab; i += 32 * THREADS) {
                const uint64_t v = pair_of(x[i], i);
                next = v < best ? max(next, v) : next;
            }
            next = warp_best(next);
            own = threadIdx.x == owner ? next : own;
        }
        best = block_best(&s, own);
    }
}

void sv_cuda_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_launch(cu, "logprobs", logprobs_kernel, p->n_rows, THREADS, 0, *p, cu->fault);
}

/* ---------------------------------------------------------------- history */

static __global__ void history_kernel(struct sv_p_history p, struct sv_cuda_fault *fault)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t s = blockIdx.x, slot = p.rows.seg_slot[s];
    if (slot < 0)
        return;
    const int32_t row0 = p.rows.seg_row0[s], end = row0 + p.n_commit[s];
    for (int32_t row = row0 + (int32_t)threadIdx.x; row < end; row += HISTORY_THREADS) {
        const int32_t pos = p.rows.row_pos[row];
        if (pos < 0 || pos >= p.history_stride)
            sv_fault_set(fault, SV_CUDA_FAULT_HISTORY, slot, pos + 1, p.history_stride);
        else
            p.history[(int64_t)slot * p.history_stride + pos] = p.row_ids[row];
    }
}

void sv_cuda_history(struct sv_dev *dev, const struct sv_p_history *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    sv_cuda_launch(cu, "history", history_kernel, p->rows.n_segs, HISTORY_THREADS, 0, *p,
                   cu->fault);
}
