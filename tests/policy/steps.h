/*
 * steps.h - the results of a step for the width policy on a simulated machine: accepted drafts and
 * the time.
 *
 * Included by the tests of the policy. Must not: choose anything.
 */
#ifndef SV_TESTS_STEPS_H
#define SV_TESTS_STEPS_H

#include "tests/policy/machine.h"

#include <math.h>

/* Tells the policy what came of a sequence's drafts. */
static void verified(struct sv_policy *p, struct sv_record *rec, const struct sv_policy_seq *s,
                     int32_t n_emitted)
{
    sv_policy_verified(p, rec,
                       &(struct sv_verified){.width = s->width,
                                             .draft_rows = s->draft_rows,
                                             .n_emitted = n_emitted,
                                             .n_together = p->load.n_draft_segs,
                                             .probe = s->probe});
}

/* What a clock would say of a step that takes t on the machine alone. */
struct clock {
    struct sv_rng rng;
    double pace;
};

static double seen(struct clock *c, const struct machine *m, double t)
{
    const double hold = 1 - 1.0 / 200;
    c->pace = hold * c->pace + m->drift * sqrt(1 - hold * hold) * (double)sv_rng_normal(&c->rng);
    t *= exp(c->pace) * (0.97 + 0.06 * (double)sv_rng_float(&c->rng));
    if ((double)sv_rng_float(&c->rng) < m->noise)
        t *= 1 + 2 * (double)sv_rng_float(&c->rng);
    return t;
}

#endif
