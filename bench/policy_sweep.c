/*
 * policy_sweep.c - the width policy from the first step of a new process on: 56 cells on simulated
 * machines, against the best fixed width.
 *
 * A program of its own, started by policy_sweep.sh, which builds it with the policy of each source
 * tree given to it and compares them. Two machines have the step times of
 * bench/results/width-policy-h200.csv (Qwen3-8B's shapes) and width-policy-xeon-amx-2of16.csv. The
 * table is measured with errors, on the CPU with slow moments; requests begin and end; the cost of
 * an idle drafter is counted. Arguments: a machine's name (empty: all), the first seed. Must not:
 * include headers that not every version has.
 */
#include "policy/policy.h"
#include "spec/spec.h"
#if __has_include("bench/profile.h")
#include "bench/profile.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16, MOST = 128, MOST_TIMED_SHAPES = 128, PROMPT = 64 };

#ifndef CONFIDENCE /* policy_sweep.sh: the name in an older tree */
#define CONFIDENCE confidence
#endif

#ifdef SV_LEVELS
#define OLD 1 /* taps of plain steps are deferred until drafts need them */
#else
#define OLD 0
#endif

/* ---------------------------------------------------------------- machines */

struct machine {
    const char *name;
    bool gpu;
    int32_t n_points, x[12];
    double target[12], draft[12];                /* us by rows, of one segment's worth of them */
    double seg_us, draft_seg_us, out_us;         /* a segment, one that drafts, a token asked for */
    double tile_us, draft_tile_us;               /* every begun 16 rows beyond the first */
    double step_us, context_us, deferred_row_us; /* context K/V: a pass, a row, a row of many */
    double confidence_us; /* of returning a draft's confidence, or of the round trip for pruning */
};

static const struct machine machines[] = {
    {.name = "H200",
     .gpu = true,
     .n_points = 10,
     .x = {1, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096},
     .target = {3500, 3850, 4000, 4550, 5700, 8300, 14700, 27500, 53000, 104000},
     .draft = {480, 490, 520, 600, 850, 1350, 2500, 4700, 9500, 19000},
     .seg_us = 12,
     .draft_seg_us = 1,
     .out_us = 0.3,
     .confidence_us = 40},
    {.name = "AMX",
     .n_points = 2,
     .x = {1, 4096},
     .target = {372, 372 + 12 * 4095},
     .draft = {210, 210 + 10 * 4095},
     .seg_us = 35,
     .draft_seg_us = 5,
     .out_us = 2,
     .tile_us = 560,
     .draft_tile_us = 190,
     .step_us = 16,
     .context_us = 1.6,
     .deferred_row_us = 1.6,
     .confidence_us = 4},
};

static int32_t padded(int32_t n)
{
    int32_t step = n <= 2 ? 1 : n <= 4 ? 2 : n <= 16 ? 4 : n <= 32 ? 8 : n <= 128 ? 16 : 32;
    step = n > 256 ? 64 : step;
    return (n + step - 1) / step * step;
}

static double line(const struct machine *m, const double *us, double x)
{
    int i = 0;
    while (i < m->n_points - 2 && x > m->x[i + 1])
        i++;
    return us[i] + (us[i + 1] - us[i]) * (x - m->x[i]) / (m->x[i + 1] - m->x[i]);
}

static double target_us(const struct machine *m, int32_t segs, int32_t rows)
{
    segs = m->gpu ? padded(segs) : segs;
    rows = m->gpu ? padded(rows) : rows;
    return line(m, m->target, rows) + m->seg_us * segs + m->tile_us * ceil(rows / 16.0 - 1);
}

static double draft_us(const struct machine *m, int32_t segs, int32_t rows, int32_t outs)
{
    if (!rows)
        return 0;
    rows = m->gpu ? padded(rows) : rows;
    return line(m, m->draft, rows) + m->draft_seg_us * segs + m->out_us * outs +
           m->draft_tile_us * ceil(rows / 16.0 - 1);
}

/* ---------------------------------------------------------------- what a clock says */

struct clock {
    struct sv_rng rng;
    double now_us, until_us, noise;
    bool slow_phases, slow;
};

static double seen(struct clock *c, double us)
{
    while (c->slow_phases && c->now_us >= c->until_us) {
        c->slow = !c->slow;
        c->until_us += (c->slow ? 150e3 : 300e3) * -log(1 - (double)sv_rng_float(&c->rng));
    }
    us *= c->slow ? 1.5 + 0.7 * fmin(us / 5000, 1) : 1;
    us *= 1 + c->noise * (double)sv_rng_normal(&c->rng);
    if (sv_rng_float(&c->rng) < 0.03f)
        us *= 1 + 2 * (double)sv_rng_float(&c->rng);
    c->now_us += us;
    return us;
}

/* ---------------------------------------------------------------- the table */

struct table {
    struct sv_timed timed[MOST_TIMED_SHAPES];
    struct sv_curve *curve[MOST_TIMED_SHAPES];
    int32_t x[MOST_TIMED_SHAPES], n;
    double us[MOST_TIMED_SHAPES], base[MOST_TIMED_SHAPES]; /* base: a part that is taken off */
    double wrong[13];                                      /* by octaves of rows */
};

static void point(struct table *t, struct sv_curve *c, int32_t rows, int32_t x, double us,
                  double base)
{
    t->curve[t->n] = c;
    t->x[t->n] = x;
    t->base[t->n] = base;
    t->timed[t->n].needed = true;
    t->us[t->n++] = us * t->wrong[(int)log2(rows)];
}

static void measure(struct sv_cost *c, const struct machine *m, int32_t n_seqs, struct clock *clock)
{
    struct table *t = calloc(1, sizeof *t);
    for (int i = 0; i < 13; i++)
        t->wrong[i] = exp(0.02 * (double)sv_rng_normal(&clock->rng));
    for (int32_t r = 2; r < BLOCK; r += r < 6 ? 1 : 2)
        if (!m->gpu || padded(r) == r)
            point(t, &c->wide, r, r, target_us(m, 1, r), 0);
    for (int32_t r = 2; r < BLOCK; r *= 2)
        point(t, &c->draft_rows, r, r, draft_us(m, 1, r, 0), 0);
    for (int32_t n = 1, step = 1; n <= n_seqs; n += n == 1 ? 1 : step) {
        int32_t r = n * BLOCK;
        step *= n >= 4 * step ? 2 : 1;
        if (m->gpu && (n & (n - 1)))
            continue;
        point(t, &c->plain, n, n, target_us(m, n, n), 0);
        if (n > 1 && !m->gpu)
            point(t, &c->thin, 2 * n, n, draft_us(m, n, 2 * n, 0), 0);
        if (r > (m->gpu ? 1024 : 512))
            continue;
        point(t, &c->wide, r, r, target_us(m, n, r), 0);
        point(t, &c->draft_rows, r, r, draft_us(m, n, r, 0), 0);
        if (m->gpu || n > 8)
            continue;
        point(t, &c->wide, r + 1, r + 1, target_us(m, n + 1, r + 1), 0);
    }
    struct sv_turns turns = {.of = t->timed, .n = t->n};
    int64_t budget = m->gpu ? 800000 : 700000;
    sv_turns_begin(&turns, m->gpu ? 3 : 2, 0, budget, m->gpu ? 0 : budget * 2 / 5);
    for (int32_t i = sv_turns_next(&turns, 0); i >= 0;
         i = sv_turns_next(&turns, (int64_t)clock->now_us)) {
        double us = seen(clock, t->us[i]);
        sv_turns_add(&turns, i, (const double[SV_TIMES]){us, 0, us});
    }
    sv_turns_end(&turns);
    for (int32_t i = 0; i < t->n; i++)
        if (!t->curve[i]->n || t->x[i] > t->curve[i]->x[t->curve[i]->n - 1])
            sv_curve_add(t->curve[i], t->x[i], t->timed[i].us[SV_TIME_ALL]);
    sv_curve_add(&c->draft_out, 1, m->out_us);
    sv_curve_add(&c->draft_out, 2000, 2000 * m->out_us);
    sv_curve_add(&c->trip, 1, m->confidence_us);
    if (!m->gpu)
        sv_curve_add(&c->trip, 1000, 1000 * m->confidence_us);
    c->padded = m->gpu ? padded : NULL;
    free(t);
}

/* ---------------------------------------------------------------- drafts */

static const char *const profile_name[] = {"never", "1.5", "2.5", "4", "6.4", "hist", "always"};
enum { N_PROFILES = 7 };

static void set_profile(struct sv_accept_profile *p, int which)
{
    static const double mean[] = {1, 1.5, 2.5, 4, 6.4, 0, 16};
    static const double qwen3[16] = {11.2, 16.4, 12.0, 8.7, 6.9, 6.2, 5.5, 4.3,
                                     4.8,  2.5,  3.7,  2.3, 2.5, 2.5, 2.0, 8.4};
    double share[BLOCK] = {0}, lo = 0, hi = 1, alive = 1;
    struct sv_err err;
    for (int i = 0; i < 60; i++) {
        double half = (lo + hi) / 2, sum = 1;
        alive = 1;
        for (int j = 1; j < BLOCK; j++)
            sum += alive *= half;
        *(sum < mean[which] ? &lo : &hi) = half;
    }
    alive = 1;
    for (int j = 0; j < BLOCK; j++, alive *= lo)
        share[j] = j == BLOCK - 1 ? alive : alive * (1 - lo);
    if (which == 5)
        memcpy(share, qwen3, sizeof share);
    if (which == 6)
        memset(share, 0, sizeof share - sizeof share[0]);
    p->seed = 7;
    sv_profile_set(p, share, BLOCK, &err);
}

/* Tokens that a width brings on average: what counts, as the draws themselves are luck. */
static double expected(const struct sv_accept_profile *p, int32_t width)
{
    double tokens = 1;
    for (int32_t j = 1; j < width; j++)
        tokens += 1 - (double)p->cum[j - 1];
    return tokens;
}

/* One fixed width with the same requests, which come and go; their last blocks are shortened. */
static double run_fixed(const struct machine *m, const struct sv_accept_profile *p, int32_t n,
                        int32_t width)
{
    enum { STEPS = 300 };
    int32_t left[MOST] = {0};
    struct sv_rng rng = {5};
    double tokens = 0, us = 0;
    for (int32_t step = 0; step < STEPS; step++) {
        int32_t rows = 0, segs = 0, draft_rows = 0;
        for (int32_t i = 0; i < n; i++) {
            left[i] = left[i] > 0 ? left[i] : 128 + (int32_t)sv_rng_below(&rng, 129);
            left[i] -= step ? 0 : (int32_t)sv_rng_below(&rng, 100);
            int32_t w = width < left[i] ? width : left[i],
                    len = sv_profile_draw(p, (uint64_t)i, (uint64_t)step);
            rows += w;
            segs += w > 1;
            draft_rows += w > 1 ? w : 0;
            tokens += expected(p, w);
            left[i] -= len < w ? len : w;
        }
        us += target_us(m, n, rows) + draft_us(m, segs, draft_rows, draft_rows - segs);
    }
    return tokens / us;
}

static double best_fixed(const struct machine *m, const struct sv_accept_profile *p, int32_t n)
{
    static const int32_t widths[] = {1, 2, 3, 4, 6, 8, 12, 16};
    double best = 0;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        best = fmax(best, run_fixed(m, p, n, widths[i]));
    return best;
}

/* ---------------------------------------------------------------- a process */

struct slot {
    struct sv_record record;
    uint64_t id;
    int32_t left, deferred, context, n_drafts;
    bool bare; /* a part of its context K/V is missing */
    float confidence[BLOCK];
};

struct process {
    const struct machine *m;
    struct sv_accept_profile profile;
    struct sv_policy *p;
    struct slot slot[MOST];
    struct clock clock;
    struct sv_rng rng;
    int32_t n;
    uint64_t next_id;
    double extra_us, rows; /* of this step: context K/V */
};

static bool stopped(const struct slot *s)
{
#if OLD
    return s->record.disabled || s->bare;
#else
    return s->record.stopped;
#endif
}

/* A request takes the slot: its prompt's context K/V is made, deferred or left out. */
static void arrive(struct process *w, struct slot *s)
{
    *s = (struct slot){.id = ++w->next_id, .context = 512};
    s->left = 128 + (int32_t)sv_rng_below(&w->rng, 129);
    if (w->m->gpu)
        return;
#if OLD
    s->bare = sv_policy_unprofitable(w->p, w->n) && w->n >= 8 && s->id % 8;
    s->deferred = s->bare ? 0 : PROMPT;
#else
    w->extra_us += w->m->step_us + w->m->context_us * PROMPT;
#endif
}

/* Context K/V of this step's rows, and of deferred ones if a sequence drafts. */
static void keep_up(struct process *w, bool drafts, bool most)
{
    const struct machine *m = w->m;
    int32_t rows = 0;
    if (m->gpu)
        return;
    for (int32_t i = 0; i < w->n; i++) {
        struct slot *s = &w->slot[i];
        const bool own = drafts && w->p->seq[i].draft_rows;
        if (OLD && !stopped(s) && (most || own)) {
            w->extra_us += m->deferred_row_us * s->deferred;
            s->deferred = 0;
        }
        s->deferred += OLD && !stopped(s) && !drafts;
        rows += !OLD && !stopped(s) && !drafts;
    }
    if (OLD && !drafts)
        w->extra_us += 0.003 * target_us(m, w->n, w->n);
    w->extra_us += rows ? m->step_us + m->context_us * rows : 0;
#if OLD
    double deferred = 0;
    for (int32_t i = 0; i < w->n; i++)
        deferred += m->deferred_row_us * w->slot[i].deferred;
    w->p->deferred_us = deferred;
    w->p->prompt_us = m->deferred_row_us * PROMPT / 192;
#else
    w->p->prompt_us = (m->step_us + m->context_us * PROMPT) / 192;
#endif
}

static void choose(struct process *w, int32_t n_prompt)
{
    struct sv_policy *p = w->p;
    sv_policy_begin(p, n_prompt, false);
    for (int32_t i = 0; i < w->n; i++) {
        struct slot *s = &w->slot[i];
#if OLD
        s->record.draft_kv_missing = s->bare;
#endif
        sv_policy_add(p, (struct sv_policy_seq){.block = BLOCK,
                                                .cap = s->left < BLOCK ? s->left : BLOCK,
                                                .context = s->context,
                                                .record = &s->record});
    }
    sv_policy_choose(p);
}

/* Between the passes; a random drafter's confidence says nothing. */
static void prune(struct process *w)
{
    struct sv_policy *p = w->p;
    float confidence[MOST * BLOCK];
    int32_t at = 0;
    for (int32_t i = 0; i < w->n; i++) {
        w->slot[i].n_drafts = p->seq[i].n_drafts;
        for (int32_t j = 0; j < p->seq[i].n_drafts; j++)
            confidence[at++] = w->slot[i].confidence[j] = sv_rng_float(&w->rng);
    }
    if (p->prunes_now)
        sv_policy_prune(p, confidence);
}

static double advance(struct process *w, bool backoff)
{
    struct sv_policy *p = w->p;
    double tokens = 0;
    int32_t brought = 0;
    for (int32_t i = 0; i < w->n; i++) {
        struct slot *s = &w->slot[i];
        const struct sv_policy_seq *c = &p->seq[i];
        int32_t width = backoff ? 1 : c->width,
                len = sv_profile_draw(&w->profile, s->id, (uint64_t)s->left);
        len = len < width ? len : width;
        if (width > 1)
            sv_policy_verified(
                p, &s->record,
                &(struct sv_verified){.width = width,
                                      .draft_rows = c->draft_rows,
                                      .n_emitted = len,
                                      .probe = c->probe,
                                      .CONFIDENCE = p->confidence_now ? s->confidence : NULL,
                                      .n_drafts = s->n_drafts,
                                      .n_together = p->load.n_draft_segs});
        if (!backoff && p->confidence_now && s->n_drafts)
            sv_policy_drafted(p, s->confidence, s->n_drafts);
        brought += backoff || !s->n_drafts ? 0 : len - 1;
        tokens += expected(&w->profile, width);
        s->left -= len;
        s->context += len;
    }
    if (!backoff && p->promised > 0)
        sv_policy_brought(p, p->promised, brought);
    return tokens;
}

/* Tokens over time. */
static double run(const struct machine *m, int profile, int32_t n, int32_t steps, uint64_t seed,
                  double *rows)
{
    struct process *w = calloc(1, sizeof *w);
    struct sv_err err;
    double tokens = 0, us = 0;
    int32_t arrived = n;
    *w = (struct process){.m = m, .n = n, .rng = {seed}};
    w->clock = (struct clock){
        .rng = {seed + 1000}, .noise = 0.02, .slow_phases = !m->gpu, .slow = seed % 2};
    set_profile(&w->profile, profile);
    sv_policy_open(&w->p, n, BLOCK, true, &err);
    measure(&w->p->cost, m, n, &w->clock);
    w->p->prunes = true;
    w->p->ahead = w->p->confidence_free = m->gpu;
    for (int32_t i = 0; i < n; i++) {
        arrive(w, &w->slot[i]);
        w->slot[i].left -= (int32_t)sv_rng_below(&w->rng, 100); /* not all at once */
    }
    w->extra_us = 0;
    keep_up(w, false, false);
    for (int32_t step = 0; step < steps; step++) {
        struct sv_policy *p = w->p;
        const int32_t n_prompt = step ? arrived * PROMPT : 0;
        const bool backoff = sv_policy_backs_off(p, n, n_prompt > 0);
        if (!backoff) {
            choose(w, n_prompt);
            prune(w);
        }
        const struct sv_load *l = &p->load;
        double t = target_us(m, n, backoff ? n : l->n_rows);
        t += backoff ? 0 : draft_us(m, l->n_draft_segs, l->n_draft_rows, l->n_draft_out);
        if (!backoff && p->prunes_now)
            t += m->gpu ? m->confidence_us : m->confidence_us * l->n_draft_out;
        else if (!backoff && p->confidence_now && !m->gpu)
            t += m->confidence_us * l->n_draft_out;
        w->extra_us = 0;
        keep_up(w, !backoff && l->n_draft_segs, !backoff && 2 * l->n_draft_segs > n);
        *rows += backoff ? n : l->n_rows;
        tokens += advance(w, backoff);
        /* What the policy sees of a step is the device's time with all that it does. */
        sv_cost_learn(&p->cost, &p->load, seen(&w->clock, t + w->extra_us));
        /* The host's own time for a choice, where it computes too. */
        us += t + w->extra_us + (m->gpu || backoff ? 1 : 5);
        arrived = 0;
        w->extra_us = 0;
        for (int32_t i = 0; i < n; i++)
            if (w->slot[i].left <= 0) {
                arrive(w, &w->slot[i]);
                arrived++;
            }
        us += w->extra_us;
    }
    sv_policy_close(w->p);
    free(w);
    return tokens / us;
}

int main(int argc, char **argv)
{
    static const int32_t lengths[] = {160, 1000, 5000}, runs[] = {6, 3, 1};
    const char *only = argc > 1 ? argv[1] : "";
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (size_t k = 0; k < sizeof machines / sizeof machines[0]; k++)
        for (size_t l = 0; l < 3; l++) {
            double sum = 0, worst = 9;
            if (*only && strcmp(only, machines[k].name))
                continue;
            for (int32_t n = 1; n <= MOST; n *= 2)
                for (int which = 0; which < N_PROFILES; which++) {
                    struct sv_accept_profile p = {.seed = 0};
                    double got = 0, rows = 0;
                    set_profile(&p, which);
                    for (int32_t r = 0; r < runs[l]; r++)
                        got += run(&machines[k], which, n, lengths[l], seed + (uint64_t)r, &rows);
                    got /= runs[l] * best_fixed(&machines[k], &p, n);
                    rows /= (double)runs[l] * lengths[l] * n;
                    printf("%s %d %d %s %.4f %.2f\n", machines[k].name, lengths[l], n,
                           profile_name[which], got, rows);
                    sum += got;
                    worst = fmin(worst, got);
                }
            printf("%s %d mean %.4f worst %.4f\n", machines[k].name, lengths[l], sum / 56, worst);
            fflush(stdout);
        }
    return 0;
}
