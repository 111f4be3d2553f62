/*
 * drive.h - runs the width policy, and fixed widths for comparison, on a simulated machine.
 *
 * Included by the tests of the policy. Accept lengths are drawn from a profile, the same draws for
 * all widths. Must not: decide what is good enough.
 */
#ifndef SV_TESTS_DRIVE_H
#define SV_TESTS_DRIVE_H

#include "bench/profile.h"
#include "tests/policy/steps.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- profiles */

static const double qwen3[16] = {11.2, 16.4, 12.0, 8.7, 6.9, 6.2, 5.5, 4.3,
                                 4.8,  2.5,  3.7,  2.3, 2.5, 2.5, 2.0, 8.4};

/* Geometric lengths with this mean, cut to the block. */
static void geometric(double mean, double share[BLOCK])
{
    double lo = 0, hi = 1;
    for (int i = 0; i < 60; i++) {
        double p = (lo + hi) / 2, sum = 1, alive = 1;
        for (int j = 1; j < BLOCK; j++)
            sum += alive *= p;
        *(sum < mean ? &lo : &hi) = p;
    }
    double alive = 1;
    for (int j = 0; j < BLOCK; j++) {
        share[j] = j == BLOCK - 1 ? alive : alive * (1 - lo);
        alive *= lo;
    }
}

static void set_profile(struct sv_accept_profile *p, double mean)
{
    struct sv_err err;
    double share[BLOCK];
    if (mean > 0)
        geometric(mean, share);
    else
        memcpy(share, qwen3, sizeof share);
    p->seed = 7;
    assert_int_equal(sv_profile_set(p, share, BLOCK, &err), 0);
}

/* ---------------------------------------------------------------- running */

#define FIXED_STEPS 1500

/* How often each length is drawn in so many steps of n sequences. Many machines and widths meet one
 * profile: its counts are kept until another one comes. */
static const int32_t *count_lengths(const struct sv_accept_profile *p, int32_t n)
{
    static struct sv_accept_profile counted;
    static int32_t n_counted, count[BLOCK + 1];
    const size_t cum_bytes = BLOCK * sizeof *p->cum;
    assert_int_equal(p->n, BLOCK);
    assert_int_equal(p->n_steps, 0);
    if (n == n_counted && p->seed == counted.seed && !memcmp(p->cum, counted.cum, cum_bytes))
        return count;
    counted = *p;
    n_counted = n;
    memset(count, 0, sizeof count);
    for (int32_t step = 0; step < FIXED_STEPS; step++)
        for (int32_t i = 0; i < n; i++)
            count[sv_profile_draw(p, (uint64_t)i, (uint64_t)step)]++;
    return count;
}

/* Tokens per us of n sequences at one fixed width (draft masks as many as rows, which is the
 * cheapest). */
static double run_fixed(const struct machine *m, const struct sv_accept_profile *p, int32_t n,
                        int32_t w)
{
    const int32_t *count = count_lengths(p, n);
    const double step =
        step_us(m, n, n * w, n, w > 1 ? n * w : 0, n * (w - 1)) * (w > 1 ? m->spec_factor : 1);
    double tokens = 0, us = 0;
    for (int32_t len = 1; len <= BLOCK; len++)
        tokens += (double)count[len] * (len < w ? len : w);
    for (int32_t i = 0; i < FIXED_STEPS; i++)
        us += step;
    return tokens / us;
}

struct outcome {
    double rate, width;
    int64_t n_plain, n_probes;
};

/* So many steps; what it costs to learn the first time is paid once a process, so those before
 * `from` do not count. */
static struct outcome run_steps(const struct machine *m, const struct sv_accept_profile *prof,
                                int32_t n, uint64_t seed, struct wrong wrong, int32_t from,
                                int32_t to)
{
    struct sv_policy *p;
    struct sv_err err;
    struct sv_record *rec = calloc((size_t)n, sizeof *rec);
    struct clock clock = {.rng = {seed}};
    double tokens = 0, us = 0, rows = 0;
    int64_t n_steps = 0;
    assert_int_equal(sv_policy_open(&p, n, BLOCK, true, &err), 0);
    measure_table(&p->cost, m, n, seed, wrong);
    for (int32_t step = 0; step < to; step++) {
        sv_policy_begin(p, 0, false);
        for (int32_t i = 0; i < n; i++)
            sv_policy_add(p, (struct sv_policy_seq){
                                 .block = BLOCK, .cap = BLOCK, .context = 100, .record = &rec[i]});
        sv_policy_choose(p);
        int32_t n_rows = 0, draft_rows = 0, outs = 0;
        for (int32_t i = 0; i < n; i++) {
            const struct sv_policy_seq *s = &p->seq[i];
            assert_true(s->width >= 1 && s->width <= s->cap);
            assert_true(s->width == 1 ? !s->draft_rows : s->draft_rows >= s->width);
            n_rows += s->width;
            draft_rows += s->draft_rows;
            outs += s->width > 1 ? s->width - 1 : 0;
        }
        assert_int_equal(p->load.n_segs, n);
        assert_int_equal(p->load.n_rows, n_rows);
        assert_int_equal(p->load.n_draft_rows, draft_rows);
        assert_int_equal(p->load.n_draft_out, outs);
        double t = step_us(m, n, n_rows, p->load.n_draft_segs, draft_rows, outs) *
                   (draft_rows ? m->spec_factor : 1);
        for (int32_t i = 0; i < n; i++) {
            const struct sv_policy_seq *s = &p->seq[i];
            int32_t len = sv_profile_draw(prof, (uint64_t)i, (uint64_t)step);
            len = len < s->width ? len : s->width;
            if (s->width > 1)
                verified(p, &rec[i], s, len);
            if (step >= from)
                tokens += len;
        }
        sv_cost_learn(&p->cost, &p->load, seen(&clock, m, t));
        if (step < from)
            continue;
        us += t;
        rows += n_rows;
        n_steps++;
    }
    struct outcome o = {.rate = tokens / us,
                        .width = rows / (double)(n_steps * n),
                        .n_plain = p->n_plain,
                        .n_probes = p->n_probes};
    sv_policy_close(p);
    free(rec);
    return o;
}

#endif
