/*
 * trial.c - what is tried against the odds, so that it can be learnt, and which requests' drafters
 * are given up.
 *
 * Called by policy.c once a step. What is not done is not learnt: a small share of the time is
 * saved up and spent on choices that the table thinks worse, each at its expected loss. The longer
 * trials have been in vain, the smaller the share. Must not: spend what has not been saved, or give
 * up a request that asked for a width of its own.
 */
#include "spec/choice.h"

#include <math.h>

enum {
    STEPS = 12,        /* of one trial of the other way */
    YOUNG = 256,       /* choices of a process that knows its table only */
    VERIFIED = 6,      /* verify steps of its own, */
    CHOICES = 48,      /* and choices, before a request's drafter is given up; */
    VAIN_STEPS = 16,   /* or so many in a row, */
    VAIN_REQUESTS = 3, /* of so many requests: from then on most are not tried any more, */
    SAMPLE = 16,       /* but for one in so many */
    MODE_EVERY = 16    /* steps that draft: one of them with the other number of masks */
};

/* Share of time for trials, half of it for probes: at first, when they have long been in vain, and
 * when what they compare is a tie as far as is known. */
static const double SHARE = 0.007, YOUNG_SHARE = 0.015, LEAST = 0.1, NEAR_SHARE = 0.01;
/* What could be gained by knowing better, for the whole of NEAR_SHARE. */
static const double REGRET = 0.03;
/* How fast the share recovers while somebody drafts. */
static const double THRIFT_RATE = 1.0 / 64;
/* Steps between two trials of the other way: so many where the comparison is known to SURE, four
 * times as many where it is known twice as well. */
static const double SPACING = 24, MOST_SPACING = 2000, SURE = 0.05;
/* Steps of one request that its acceptance is known from. */
static const double OWN_STEPS = 40;
/* What a process may spend on trials before it has saved anything, in steps; and on bursts, on
 * credit. */
static const double FIRST_STEPS = 4, DEBT = 4, GOOD_DEBT = 12;
/* So many standard deviations apart, what is thought to be worse is. */
static const double FAR = 3;
/* A step with the other number of masks may cost this much of what it would. */
static const double MODE_COST = 1.15;
/* A draft is looked at while the one before it is kept with this chance: beyond, little is seen. */
static const float REACH = 0.15f;
/* Who brings more drafts than this a step keeps drafting: with fewer sequences at work it may
 * pay. */
static const float FEW_KEPT = 0.4f;

/* So many verify steps of so many requests that others need not be tried as well. */
static bool all_in_vain(const struct sv_policy *p)
{
    return p->trial.n_in_vain >= VAIN_STEPS && p->trial.n_requests_in_vain >= VAIN_REQUESTS;
}

void sv_trial_verified(struct sv_policy *p, struct sv_record *r)
{
    struct sv_trial *t = &p->trial;
    t->n_in_vain++;
    t->n_requests_in_vain += r->epoch != t->epoch;
    r->epoch = t->epoch;
}

void sv_trial_paid(struct sv_policy *p)
{
    p->trial.n_in_vain = p->trial.n_requests_in_vain = 0;
    p->trial.epoch++;
}

/* Where nobody drafts. */
static void was_in_vain(struct sv_policy *p, double factor)
{
    double *thrift = &p->trial.thrift[sv_policy_octave(p->n)];
    if (*thrift > LEAST)
        *thrift *= factor;
}

/* Standard deviation of how the two compare, as far as a trial could tell: what steps cost, and,
 * where nobody drafts, how many drafts are kept. */
static double doubt_of(const struct sv_policy *p, const struct sv_candidate *plain,
                       const struct sv_candidate *best, bool drafting)
{
    double cost = sv_cost_doubt(&p->cost, &best->load);
    if (drafting)
        return cost;
    double seen = fmin((double)p->tried[1], OWN_STEPS * best->k) + 1;
    double kept = (1 - plain->tokens / best->tokens) / sqrt(seen);
    return sqrt(cost * cost + kept * kept);
}

bool sv_trial_apart(const struct sv_policy *p, const struct sv_candidate *plain,
                    const struct sv_candidate *best, bool drafting, double deviations)
{
    return !best->k ||
           fabs(log(best->score / plain->score)) >= deviations * doubt_of(p, plain, best, drafting);
}

double sv_trial_regret(const struct sv_policy *p, const struct sv_candidate *plain,
                       const struct sv_candidate *best, bool drafting)
{
    static const double PEAK = 0.398942; /* 1 / sqrt(2 pi) */
    if (!best->k)
        return 0;
    double doubt = fmax(doubt_of(p, plain, best, drafting), 1e-6),
           x = fabs(log(best->score / plain->score)) / doubt;
    return doubt * (PEAK * exp(-x * x / 2) - x * erfc(x * sqrt(0.5)) / 2);
}

void sv_trial_save(struct sv_policy *p, double us, bool drafting, bool any, double regret)
{
    struct sv_trial *t = &p->trial;
    double *thrift = &t->thrift[sv_policy_octave(p->n)];
    if (drafting) /* and does so for some time: a short mistake teaches nothing new */
        *thrift += (0.5 - *thrift) * THRIFT_RATE;
    double share = SHARE * *thrift + (t->n_steps ? 0 : FIRST_STEPS);
    if (t->n_steps < YOUNG)
        share += YOUNG_SHARE * (double)(YOUNG - t->n_steps++) / YOUNG;
    double other = any ? share / 2 : 0;
    t->probe_us = fmin(t->probe_us + us * (share - other), 50 * us);
    t->other_us = fmin(t->other_us + us * (other + NEAR_SHARE * fmin(regret / REGRET, 1) *
                                                       (drafting ? 1 : *thrift)),
                       50 * us);
}

/* For a few steps, when what they are thought to lose has been saved up: near a tie often, far from
 * it hardly ever. */
bool sv_trial_other_way(struct sv_policy *p, const struct sv_candidate *plain,
                        const struct sv_candidate *best, bool drafting)
{
    struct sv_trial *t = &p->trial;
    const struct sv_candidate *other = drafting ? plain : best, *used = drafting ? best : plain;
    t->n_since++;
    if (!best->k || (t->n_left && t->drafts == drafting)) {
        t->n_left -= t->n_left > 0;
        return false;
    }
    double loss = other->us - other->tokens * used->us / used->tokens,
           first = drafting ? 0 : p->held_us;
    loss = loss > 0 ? loss : 0;
    if (!t->n_left) {
        /* What is thought to be best goes on long enough in between to be compared too. */
        double doubt = fmax(doubt_of(p, plain, best, drafting), 1e-3), sure = SURE / doubt;
        double least = fmin(fmax(SPACING * sure * sure, SPACING), MOST_SPACING);
        if (t->n_since < least || t->other_us < 2 * loss + first ||
            other->score < exp(-FAR * doubt) * used->score)
            return false;
        t->n_left = STEPS;
        t->other_us -= first;
        t->drafts = !drafting;
        if (!drafting)
            was_in_vain(p, 0.9);
    }
    t->n_left--;
    t->other_us -= loss;
    t->n_since = 0;
    p->n_other++;
    return true;
}

static void set_mode(struct sv_policy *p, int mode)
{
    for (int32_t i = 0; i < p->n; i++)
        if (!p->seq[i].fixed)
            sv_choice_set_width(p, &p->seq[i], p->seq[i].width, mode);
}

void sv_trial_mode(struct sv_policy *p, const struct sv_candidate *best)
{
    if (!p->drafts_on_device || ++p->trial.n_drafting % MODE_EVERY)
        return;
    set_mode(p, best->mode == SV_DRAFT_FULL ? SV_DRAFT_SHORT : SV_DRAFT_FULL);
    if (sv_cost_us(&p->cost, &p->load) > MODE_COST * best->us)
        set_mode(p, best->mode);
}

/* ---------------------------------------------------------------- probes */

/* Who is known least, then who waited longest. */
static struct sv_policy_seq *probe_whom(struct sv_policy *p)
{
    struct sv_policy_seq *best = NULL;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        if (s->fixed || s->cap < s->block || s->width >= s->cap)
            continue;
        if (s->record->burst && s->width == 1)
            return s;
        bool unknown = s->record->n_verified < 2;
        bool best_unknown = best && best->record->n_verified < 2;
        if (!best || unknown > best_unknown ||
            (unknown == best_unknown && s->record->probed < best->record->probed))
            best = s;
    }
    return best;
}

/* How far a probe looks, and with how many masks. Where nobody drafts: as far as drafts are likely
 * to be kept at all, so that what fails at the first draft is cheap to see failing; the first time
 * with the whole block, for which the draft was made. Elsewhere half as many rows again. */
static int probe_how(const struct sv_policy *p, const struct sv_policy_seq *s, const float *alive,
                     bool drafting, int32_t *width)
{
    int32_t w = s->width + 1 + s->width / 2;
    if (drafting) {
        *width = w < s->cap ? w : s->cap;
        return s->draft_rows < s->block && p->n_probes % 2 ? SV_DRAFT_SHORT : SV_DRAFT_FULL;
    }
    w = 2;
    while (w < s->cap && alive[w - 1] > REACH)
        w++;
    *width = w;
    return s->record->n_verified % 4 && p->drafts_on_device ? SV_DRAFT_SHORT : SV_DRAFT_FULL;
}

/* What it would lose has to be saved up: its time less what its tokens are worth. More of what did
 * well, and the few requests still tried, may run into debt. */
void sv_trial_probe(struct sv_policy *p, double us, double rate, bool drafting)
{
    struct sv_policy_seq *s = probe_whom(p);
    if (!s)
        return;
    struct sv_policy_seq was = *s;
    struct sv_load load = p->load;
    float alive[SV_MAX_BLOCK];
    int32_t width;
    sv_chance_fill(p, s, alive);
    int mode = probe_how(p, s, alive, drafting, &width);
    sv_choice_set_width(p, s, width, mode);
    double loss = sv_cost_us(&p->cost, &p->load) - us + (drafting ? 0 : p->held_us / p->n);
    for (int32_t j = was.width; j < s->width; j++)
        loss -= (double)sv_chance_in_mode(p, mode, alive, j) / rate;
    /* Good news must not wait for what others have spent on bad news. */
    double debt = was.record->burst ? GOOD_DEBT : DEBT;
    bool burst = !drafting && p->trial.probe_us > -debt * us &&
                 (was.record->burst || (all_in_vain(p) && !was.record->n_verified));
    if (p->trial.probe_us < loss && !burst) {
        *s = was;
        p->load = load;
        return;
    }
    p->trial.probe_us -= loss > 0 ? loss : 0;
    if (!drafting && !burst)
        was_in_vain(p, 0.94);
    s->probe = !drafting;
    s->record->probed = p->n_steps;
    p->n_probes++;
}

/* ---------------------------------------------------------------- giving up */

static bool hardly_kept(const struct sv_policy *p, const struct sv_policy_seq *s)
{
    float alive[SV_MAX_BLOCK], sum = 0;
    sv_chance_fill(p, s, alive);
    for (int32_t j = 1; j < s->block; j++)
        sum += alive[j];
    return sum < FEW_KEPT;
}

/* By its own record; or, once several in a row were in vain, by theirs. */
void sv_trial_give_up(struct sv_policy *p)
{
    struct sv_trial *t = &p->trial;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        struct sv_record *r = s->record;
        if (s->fixed || r->gave_up || r->lacks || s->width > 1)
            continue;
        if (!r->n_choices++)
            r->sampled = t->n_requests++ % SAMPLE == 0;
        bool enough = r->n_verified >= VERIFIED && r->n_choices >= CHOICES;
        r->gave_up = (enough || (!r->sampled && all_in_vain(p))) && hardly_kept(p, s);
        p->n_gave_up += r->gave_up;
        s->cap = r->gave_up ? 1 : s->cap;
    }
}
