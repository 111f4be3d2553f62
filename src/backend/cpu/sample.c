/*
 * sample.c - one token per row of logits: the argmax, or a draw from the filtered distribution.
 *
 * Entered through the backend table; rows are split over threads, a row is one thread's work. A
 * row's result is a function of its logits, its slot's parameters and the position drawn: the only
 * randomness is sv_philox(seed, position, 0). Filters in the order of struct sv_sampling. Nothing
 * sorts the vocabulary: a filter keeps logits above a cut (a logit, and how many equal to it,
 * lowest ids first), and the cut is found by radix selection on the bits of the logits, mostly on a
 * short list of candidates. Must not: return a token of probability 0, or hide a row that is no
 * distribution (NaN, +inf, all -inf).
 */
#include "backend/cpu/vec.h"

#include <math.h>
#include <string.h>

#define BINS 256     /* of 8 bits of a key, four times */
#define MAX_BLOCK 64 /* logits under one maximum; vec->block_max */
#define SUM_BLOCK 1024

/* One thread's scratch. */
struct sample_scratch {
    int32_t *ids; /* (vocab) candidates, ascending */
    float *w;     /* (vocab) weights e^((x - max) / T): of all ids, or of the candidates */
    float *x;     /* (vocab) logits of the candidates */
    float *tops;  /* (vocab / MAX_BLOCK + 1) */
    int32_t count[BINS];
    double mass[BINS];
};

/* Keeps keys above the cut's, and the first n_ties ids of exactly this key. */
struct cut {
    uint32_t key;
    int32_t n_ties;
};

struct sample_job {
    struct sv_cpu *cpu;
    const struct sv_p_sample *p;
};

static size_t align_up(size_t n)
{
    return (n + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
}

size_t sv_cpu_sample_thread_bytes(const struct sv_dev_limits *lim)
{
    size_t vocab = (size_t)lim->max_vocab;
    return align_up(sizeof(struct sample_scratch)) + 3 * align_up(vocab * 4) +
           align_up((vocab / MAX_BLOCK + 1) * 4);
}

static struct sample_scratch *scratch_of(struct sv_cpu *cpu, int thread)
{
    uint8_t *at = sv_cpu_thread_scratch(cpu, thread);
    struct sample_scratch *s = (struct sample_scratch *)(void *)at;
    size_t bytes = align_up((size_t)cpu->lim.max_vocab * 4);
    at += align_up(sizeof *s);
    s->ids = (int32_t *)(void *)at;
    s->w = (float *)(void *)(at + bytes);
    s->x = (float *)(void *)(at + 2 * bytes);
    s->tops = (float *)(void *)(at + 3 * bytes);
    return s;
}

/* ---------------------------------------------------------------- selection */

/* Ordered like the number; both zeros are equal. */
static uint32_t key_of(float x)
{
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The cut that keeps the k largest of x (w NULL), or the fewest largest whose w add up to
 * `target`. */
static struct cut find_cut(struct sample_scratch *s, const float *x, const float *w, int32_t n,
                           int32_t k, double target)
{
    uint32_t prefix = 0, seen = 0; /* bits of the key decided so far, and their mask */
    int32_t count = 0;             /* elements above the bin under inspection, and their mass */
    double mass = 0;
    int32_t in_bin = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        memset(s->count, 0, sizeof s->count);
        memset(s->mass, 0, sizeof s->mass);
        for (int32_t i = 0; i < n; i++) {
            uint32_t key = key_of(x[i]);
            if ((key & seen) != prefix)
                continue;
            s->count[key >> shift & 255]++;
            if (w)
                s->mass[key >> shift & 255] += (double)w[i];
        }
        int32_t bin = -1;
        for (int32_t b = BINS - 1; b >= 0; b--) {
            if (!s->count[b])
                continue;
            if (bin >= 0) { /* the bin before did not reach the goal */
                count += s->count[bin];
                mass += s->mass[bin];
            }
            bin = b;
            if (w ? mass + s->mass[b] >= target : count + s->count[b] >= k)
                break;
        }
        in_bin = s->count[bin];
        prefix |= (uint32_t)bin << shift;
        seen |= 255u << shift;
        if (in_bin == 1) /* found: no other key lies between the prefix and this one */
            return (struct cut){prefix, 1};
    }
    struct cut c = {prefix, k - count};
    if (w) {
        double each = s->mass[prefix & 255] / in_bin; /* equal logits, equal weights */
        for (c.n_ties = 1, mass += each; c.n_ties < in_bin && mass < target; c.n_ties++)
            mass += each;
    }
    return c;
}

/* Keeps the cut's elements, in order; returns their number. */
static int32_t apply_cut(struct sample_scratch *s, int32_t n, struct cut c)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = key_of(s->x[i]);
        if (key < c.key || (key == c.key && c.n_ties-- <= 0))
            continue;
        s->ids[kept] = s->ids[i];
        s->x[kept] = s->x[i];
        s->w[kept++] = s->w[i];
    }
    return kept;
}

/* Candidates' logits and weights beside their ids. */
static void load_candidates(struct sample_scratch *s, const struct sv_cpu_vec *vec, const float *x,
                            int32_t n, float max, float inv_t)
{
    for (int32_t i = 0; i < n; i++)
        s->x[i] = x[s->ids[i]];
    vec->exp_weights(s->w, s->x, n, max, inv_t);
}

/* ---------------------------------------------------------------- candidates */

/* A short list that holds the k largest: at least k blocks reach the k-th largest of the block
 * maxima. */
static int32_t list_top_k(struct sample_scratch *s, const struct sv_cpu_vec *vec, const float *x,
                          int32_t vocab, int32_t k)
{
    int32_t n_blocks = (vocab + MAX_BLOCK - 1) / MAX_BLOCK;
    float t = -INFINITY;
    if (k <= n_blocks) {
        vec->block_max(s->tops, x, vocab);
        struct cut c = find_cut(s, s->tops, NULL, n_blocks, k, 0);
        t = INFINITY;
        for (int32_t i = 0; i < n_blocks; i++)
            if (key_of(s->tops[i]) >= c.key && s->tops[i] < t)
                t = s->tops[i];
    }
    return vec->find_ge(s->ids, x, vocab, t);
}

static double list_mass(const struct sample_scratch *s, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)s->w[i];
    return sum;
}

/* A list that holds the most probable ids of mass *target or more; *target becomes top_p of the
 * whole. */
static int32_t list_top_p(struct sample_scratch *s, const struct sv_cpu_vec *vec, const float *x,
                          int32_t vocab, float max, float inv_t, float top_p, double *target)
{
    vec->exp_weights(s->w, x, vocab, max, inv_t);
    *target = (double)top_p * vec->sum(s->w, vocab);
    float t = -INFINITY;
    for (double depth = 2; depth < 100; depth += depth < 16 ? 2 : depth) {
        float at = (float)((double)max - depth / (double)inv_t);
        /* The estimate must clear the target by more than its error. */
        if ((double)vec->mass_ge(s->w, x, vocab, at) * (1 - 2e-3) > *target) {
            t = at;
            break;
        }
    }
    int32_t n = vec->find_ge(s->ids, x, vocab, t);
    load_candidates(s, vec, x, n, max, inv_t);
    return n;
}

/* ---------------------------------------------------------------- the draw */

static double uniform(uint64_t seed, int32_t pos)
{
    uint32_t r[4];
    sv_philox(seed, (uint64_t)(int64_t)pos, 0, r);
    uint64_t bits = (uint64_t)r[0] << 32 | r[1];
    return (double)(bits >> 11) * 0x1p-53;
}

/* First index whose running sum, started at `sum`, exceeds the target; the last of weight > 0 if
 * none. */
static int32_t pick(const float *w, int32_t n, double sum, double target)
{
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(w[i] > 0))
            continue;
        sum += (double)w[i];
        last = i;
        if (sum > target)
            break;
    }
    return last;
}

/* A draw from weights of the whole vocabulary; sums of blocks first, then inside one block. */
static int32_t draw_all(struct sample_scratch *s, const struct sv_cpu_vec *vec, int32_t vocab,
                        double u)
{
    double total = 0, sum = 0;
    for (int32_t i = 0; i < vocab; i += SUM_BLOCK)
        total += vec->sum(s->w + i, vocab - i < SUM_BLOCK ? vocab - i : SUM_BLOCK);
    int32_t chosen = 0;
    double before = 0;
    for (int32_t i = 0; i < vocab; i += SUM_BLOCK) {
        double block = vec->sum(s->w + i, vocab - i < SUM_BLOCK ? vocab - i : SUM_BLOCK);
        if (block > 0) {
            chosen = i;
            before = sum;
        }
        sum += block;
        if (sum > u * total && block > 0)
            break;
    }
    int32_t n = vocab - chosen < SUM_BLOCK ? vocab - chosen : SUM_BLOCK;
    return chosen + pick(s->w + chosen, n, before, u * total);
}

static int32_t draw(struct sv_cpu *cpu, struct sample_scratch *s, const float *x, int32_t vocab,
                    float max, const struct sv_sampling *sp, int32_t pos)
{
    const struct sv_cpu_vec *vec = cpu->vec;
    /* Bounded so that 0 * inv_t and -inf * inv_t stay 0 and -inf for any temperature. */
    const float inv_t = fminf(fmaxf(1.0f / sp->temperature, 1e-30f), 1e30f);
    const bool by_k = sp->top_k > 0 && sp->top_k < vocab, by_p = sp->top_p < 1.0f;
    const double u = uniform(sp->seed, pos);
    double target = 0;
    int32_t n;
    if (by_k) {
        n = list_top_k(s, vec, x, vocab, sp->top_k);
        load_candidates(s, vec, x, n, max, inv_t);
        n = apply_cut(s, n, find_cut(s, s->x, NULL, n, sp->top_k, 0));
        target = (double)sp->top_p * list_mass(s, n);
    } else if (by_p) {
        n = list_top_p(s, vec, x, vocab, max, inv_t, sp->top_p, &target);
    } else if (sp->min_p > 0) {
        /* A little below the exact bound; the weights decide. */
        double t = (double)max + (log((double)fminf(sp->min_p, 1.0f)) - 1e-3) / (double)inv_t;
        n = vec->find_ge(s->ids, x, vocab, nextafterf((float)t, -INFINITY));
        load_candidates(s, vec, x, n, max, inv_t);
    } else {
        vec->exp_weights(s->w, x, vocab, max, inv_t);
        return draw_all(s, vec, vocab, u);
    }
    if (by_p)
        n = apply_cut(s, n, find_cut(s, s->x, s->w, n, 0, target));
    const float floor = fminf(sp->min_p, 1.0f); /* the most probable weighs exactly 1 */
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++)
        if (!(s->w[i] < floor)) {
            s->ids[kept] = s->ids[i];
            s->w[kept++] = s->w[i];
        }
    return s->ids[pick(s->w, kept, 0, u * list_mass(s, kept))];
}

static int32_t sample_row(struct sv_cpu *cpu, struct sample_scratch *s, const struct sv_p_sample *p,
                          int32_t i)
{
    const struct sv_sampling *sp = &p->slot_sampling[p->row_slot[i]];
    const float *x = (const float *)p->logits + i * p->ld;
    int32_t n_nan;
    float max = cpu->vec->max(x, p->vocab, &n_nan);
    bool greedy = !(sp->temperature > 0);
    if (greedy ? n_nan == p->vocab : n_nan > 0) {
        sv_cpu_latch(cpu, "sample: %d of %d logits of slot %d are NaN", (int)n_nan, (int)p->vocab,
                     (int)p->row_slot[i]);
        return 0;
    }
    if (!greedy && isinf(max))
        sv_cpu_latch(cpu, "sample: the largest logit of slot %d is %s", (int)p->row_slot[i],
                     max > 0 ? "+inf" : "-inf");
    if (greedy || isinf(max)) {
        cpu->vec->find_ge(s->ids, x, p->vocab, max);
        return s->ids[0];
    }
    return draw(cpu, s, x, p->vocab, max, sp, p->row_pos[i]);
}

static void sample_rows(void *arg, int thread, int n)
{
    const struct sample_job *job = arg;
    struct sample_scratch *s = scratch_of(job->cpu, thread);
    int32_t begin, end;
    sv_cpu_share(job->p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        if (job->p->row_slot[i] >= 0)
            job->p->out[i] = sample_row(job->cpu, s, job->p, i);
}

void sv_cpu_sample(struct sv_dev *dev, const struct sv_p_sample *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    SV_REQUIRE(cpu->scratch && p->vocab <= cpu->lim.max_vocab);
    struct sample_job job = {cpu, p};
    sv_cpu_run(cpu, sample_rows, &job, (int64_t)p->n_rows * (p->vocab / 4));
}

/* ---------------------------------------------------------------- argmax and its probability */

struct confidence_job {
    struct sv_cpu *cpu;
    const struct sv_p_argmax_confidence *p;
};

/* The sum is in the vocabulary's order, independent of other rows. */
static void confidence_row(struct sv_cpu *cpu, const struct sv_p_argmax_confidence *p, int32_t i,
                           struct sample_scratch *s)
{
    const float *x = p->logits + i * p->ld;
    int32_t n_nan, at = p->out_index ? p->out_index[i] : i, id = 0;
    float max = cpu->vec->max(x, p->vocab, &n_nan);
    p->confidence[i] = 1;
    if (n_nan == p->vocab) {
        sv_cpu_latch(cpu, "logits of row %d are all NaN", (int)i);
    } else {
        cpu->vec->find_ge(s->ids, x, p->vocab, max);
        id = s->ids[0];
    }
    if (at >= 0)
        p->out[at] = id;
    if (n_nan || isinf(max)) /* unknown */
        return;
    cpu->vec->exp_weights(s->w, x, p->vocab, max, 1);
    p->confidence[i] = (float)(1 / cpu->vec->sum(s->w, p->vocab));
}

static void confidence_rows(void *arg, int thread, int n)
{
    const struct confidence_job *job = arg;
    struct sample_scratch *s = scratch_of(job->cpu, thread);
    int32_t begin, end;
    sv_cpu_share(job->p->n_rows, thread, n, &begin, &end);
    for (int32_t i = begin; i < end; i++)
        confidence_row(job->cpu, job->p, i, s);
}

void sv_cpu_argmax_confidence(struct sv_dev *dev, const struct sv_p_argmax_confidence *p)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    SV_REQUIRE(cpu->scratch && p->vocab <= cpu->lim.max_vocab);
    struct confidence_job job = {cpu, p};
    sv_cpu_run(cpu, confidence_rows, &job, (int64_t)p->n_rows * p->vocab);
}
