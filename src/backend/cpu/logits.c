/*
 * logits.c - changes of logits by requests (masks, bias, bans, penalties), log probabilities, and
 * the slots' token history for penalties.
 *
 * Entered through the backend table; rows are split over threads, a row is one thread's work.
 * Penalties cost a walk over the sequence's tokens, not over the vocabulary. Must not: leave a
 * count in the scratch, or let a row see a draft after it.
 */
#include "backend/cpu/vec.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- masks */

/* Up to 32 logits of one word; most words allow all or nothing. */
static void mask_word(float *dst, const float *src, int32_t n, uint32_t word)
{
    if (word == UINT32_MAX) {
        if (src != dst)
            memcpy(dst, src, (size_t)n * sizeof *dst);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        dst[i] = word >> i & 1 ? src[i] : -INFINITY;
}

static void mask_rows(void *arg, int thread, int n)
{
    const struct sv_p_logit_mask *p = arg;
    const int32_t n_words = sv_mask_words(p->vocab);
    int32_t begin, end;
    sv_cpu_share(p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++) {
        const float *src = p->src + i * p->ld;
        float *dst = p->dst + i * p->ld;
        const uint32_t *mask =
            p->row_mask[i] < 0 ? NULL : p->masks + (int64_t)p->row_mask[i] * n_words;
        for (int32_t w = 0; w < n_words; w++)
            mask_word(dst + w * 32, src + w * 32, p->vocab - w * 32 < 32 ? p->vocab - w * 32 : 32,
                      mask ? mask[w] : UINT32_MAX);
    }
}

void sv_cpu_logit_mask(struct sv_dev *dev, const struct sv_p_logit_mask *p)
{
    struct sv_p_logit_mask job = *p;
    sv_cpu_run(sv_cpu_of(dev), mask_rows, &job, (int64_t)p->n_rows * p->vocab / 4);
}

/* ---------------------------------------------------------------- rules */

#define REPEATS 0x80000000u /* beside the count of a token in the answer */

struct rules_job {
    struct sv_cpu *cpu;
    const struct sv_p_logit_rules *p;
};

/* The sequence before a row's token. */
struct prefix {
    const int32_t *history; /* positions [0, base) */
    const int32_t *block;   /* positions [base, end) */
    int32_t base, end;
};

static int32_t token_at(const struct prefix *f, int32_t pos)
{
    return pos < f->base ? f->history[pos] : f->block[pos - f->base];
}

static float penalised(float x, const struct sv_logit_rules *r, uint32_t count)
{
    const uint32_t n = count & ~REPEATS;
    float y = x;
    if (count & REPEATS)
        y = y > 0 ? y / r->repetition : y * r->repetition;
    if (n) {
        y -= r->frequency * (float)n;
        y -= r->presence;
    }
    return y > FLT_MAX && x <= FLT_MAX ? FLT_MAX : y;
}

static void penalise(float *x, int32_t vocab, const struct sv_logit_rules *r,
                     const struct prefix *f, uint32_t *counts)
{
    const int32_t seen = r->repeat_last ? f->end - r->repeat_last : 0;
    const int32_t repeats = r->repetition == 1 ? f->end : seen > 0 ? seen : 0;
    const int32_t from = repeats < r->n_prompt ? repeats : r->n_prompt;
    if (r->repetition == 1 && r->frequency == 0 && r->presence == 0)
        return;
    for (int32_t pos = from; pos < f->end; pos++) {
        const int32_t id = token_at(f, pos);
        if (id < 0 || id >= vocab)
            continue;
        counts[id] += pos >= r->n_prompt;
        if (pos >= repeats)
            counts[id] |= REPEATS;
    }
    for (int32_t pos = from; pos < f->end; pos++) {
        const int32_t id = token_at(f, pos);
        if (id < 0 || id >= vocab || !counts[id])
            continue;
        x[id] = penalised(x[id], r, counts[id]);
        counts[id] = 0;
    }
}

/* Whether the answer ends in these tokens. */
static bool ends_in(const struct prefix *f, int32_t n_prompt, const int32_t *ids, int32_t n)
{
    if (f->end - n < n_prompt)
        return n == 0;
    for (int32_t k = 0; k < n; k++)
        if (token_at(f, f->end - n + k) != ids[k])
            return false;
    return true;
}

static void apply_lists(float *x, int32_t vocab, const struct sv_logit_rules *r,
                        const struct prefix *f, const int32_t *listed, uint32_t *counts)
{
    int32_t at = r->n_bad_runs;
    for (int32_t k = 0; k < r->n_bad_runs; k++) {
        const int32_t last = listed[k] - 1;
        if (ends_in(f, r->n_prompt, listed + at, last - at))
            x[listed[last]] = -INFINITY;
        at = last + 1;
    }
    if (!r->n_allowed)
        return;
    for (int32_t k = 0; k < r->n_allowed; k++)
        counts[listed[at + k]] = 1;
    for (int32_t id = 0; id < vocab; id++)
        x[id] = counts[id] ? x[id] : -INFINITY;
    for (int32_t k = 0; k < r->n_allowed; k++)
        counts[listed[at + k]] = 0;
}

static void rules_row(struct sv_cpu *cpu, const struct sv_p_logit_rules *p, int32_t i,
                      uint32_t *counts)
{
    const int32_t row = p->logit_row[i];
    if (row < 0)
        return;
    const int32_t seg = p->rows.row_seg[row], slot = p->rows.seg_slot[seg];
    const int32_t row0 = p->rows.seg_row0[seg], base = p->rows.seg_base[seg];
    const struct sv_logit_rules *r = &p->slot_rules[slot];
    const struct prefix f = {p->history + (int64_t)slot * p->history_stride, p->row_ids + row0,
                             base, p->rows.row_pos[row] + 1};
    float *x = p->dst + i * p->ld;
    if (p->src != p->dst)
        memcpy(x, p->src + i * p->ld, (size_t)p->vocab * sizeof *x);
    if (base > p->history_stride) {
        sv_cpu_latch(cpu, "logit rules: slot %d stands at %d, its history ends at %d", slot, base,
                     p->history_stride);
        return;
    }
    for (int32_t b = 0; b < r->n_bias; b++)
        x[p->bias_ids[(int64_t)slot * SV_MAX_BIAS + b]] += p->bias[(int64_t)slot * SV_MAX_BIAS + b];
    for (int32_t b = 0; b < r->n_ban && f.end < r->ban_before; b++)
        x[p->ban_ids[(int64_t)slot * SV_MAX_BAN + b]] = -INFINITY;
    apply_lists(x, p->vocab, r, &f, p->listed + (int64_t)slot * SV_MAX_LISTED, counts);
    penalise(x, p->vocab, r, &f, counts);
}

static void rules_rows(void *arg, int thread, int n)
{
    const struct rules_job *job = arg;
    const struct sv_p_logit_rules *p = job->p;
    int32_t begin, end;
    sv_cpu_share(p->n_logit_rows, thread, n, &begin, &end);
    /* A thread has one row of counts, which each logit row restores. */
    for (int32_t i = begin; i < end; i++)
        rules_row(job->cpu, p, i, p->counts + (int64_t)begin * p->vocab);
}

void sv_cpu_logit_rules(struct sv_dev *dev, const struct sv_p_logit_rules *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct rules_job job = {cpu, p};
    sv_cpu_run(cpu, rules_rows, &job, (int64_t)p->n_logit_rows * 2000);
}

/* ---------------------------------------------------------------- log probabilities */

struct logprob_job {
    struct sv_cpu *cpu;
    const struct sv_p_logprobs *p;
};

/* The n largest, best first, lowest id first among equals; NaN is ignored. */
static void find_top(const float *x, int32_t vocab, int32_t n, int32_t *ids)
{
    int32_t have = 0;
    for (int32_t id = 0; id < vocab && n > 0; id++) {
        if (have == n ? !(x[id] > x[ids[n - 1]]) : isnan(x[id]))
            continue;
        int32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && x[ids[at - 1]] < x[id]; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

static void logprob_row(struct sv_cpu *cpu, const struct sv_p_logprobs *p, int32_t i,
                        float *weights)
{
    const int32_t slot = p->row_slot[i], token = p->token[i];
    const float *x = p->logits + i * p->ld;
    struct sv_logprob_row *out = &p->out[i];
    if (slot < 0 || p->slot_rules[slot].n_top < 0)
        return;
    memset(out, 0, sizeof *out);
    int32_t n_nan;
    const float max = cpu->vec->max(x, p->vocab, &n_nan);
    if (n_nan || !isfinite(max) || token < 0 || token >= p->vocab) {
        sv_cpu_latch(cpu,
                     "log probabilities of slot %d, token %d: %d logits are NaN, the largest is %g",
                     slot, token, n_nan, (double)max);
        return;
    }
    cpu->vec->exp_weights(weights, x, p->vocab, max, 1);
    const double log_sum = log(cpu->vec->sum(weights, p->vocab));
    int32_t above = 0;
    for (int32_t id = 0; id < p->vocab; id++)
        above += (x[id] > x[token]) | ((x[id] == x[token]) & (id < token));
    out->rank = above + 1;
    out->logprob = (float)((double)x[token] - (double)max - log_sum);
    out->n_top = p->slot_rules[slot].n_top < p->vocab ? p->slot_rules[slot].n_top : p->vocab;
    find_top(x, p->vocab, out->n_top, out->top_id);
    for (int32_t k = 0; k < out->n_top; k++)
        out->top_logprob[k] = (float)((double)x[out->top_id[k]] - (double)max - log_sum);
}

static void logprob_rows(void *arg, int thread, int n)
{
    const struct logprob_job *job = arg;
    float *weights = sv_cpu_thread_scratch(job->cpu, thread); /* sampling's area holds more */
    int32_t begin, end;
    sv_cpu_share(job->p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        logprob_row(job->cpu, job->p, i, weights);
}

void sv_cpu_logprobs(struct sv_dev *dev, const struct sv_p_logprobs *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    SV_REQUIRE(cpu->scratch && p->vocab <= cpu->lim.max_vocab);
    struct logprob_job job = {cpu, p};
    sv_cpu_run(cpu, logprob_rows, &job, (int64_t)p->n_rows * p->vocab);
}

/* ---------------------------------------------------------------- history */

void sv_cpu_history(struct sv_dev *dev, const struct sv_p_history *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    for (int32_t s = 0; s < p->rows.n_segs && p->rows.seg_slot[s] >= 0; s++) {
        const int32_t row0 = p->rows.seg_row0[s], slot = p->rows.seg_slot[s];
        for (int32_t row = row0; row < row0 + p->n_commit[s]; row++) {
            const int32_t pos = p->rows.row_pos[row];
            if (pos < 0 || pos >= p->history_stride) {
                sv_cpu_latch(cpu, "history: slot %d would reach %d, its room ends at %d", slot,
                             pos + 1, p->history_stride);
                break;
            }
            p->history[(int64_t)slot * p->history_stride + pos] = p->row_ids[row];
        }
    }
}
