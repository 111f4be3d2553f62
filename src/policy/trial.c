/*
 * trial.c - what is tried against the odds, so that it can be learnt, and which requests' drafters
 * are given up.
 *
 * Called by policy.c once a step. What is not done is not learnt: a small share of the time is
 * saved up and spent on choices that the table thinks worse, each at its expected loss. The longer
 * trials have been in vain, the smaller the share. Must not: spend what has not been saved, or give
 * up a request that asked for a width of its own.
 */
#include "policy/choice.h"

#include <math.h>

enum {
    STEPS = 12,        /* of one trial of the other way, */
    SIZE_STEPS = 4,    /* and of another size, */
    SETTLING = 4,      /* behind those that find caches as other kinds of steps left them */
    YOUNG = 256,       /* choices times sequences: before, a process knows its table only; */
    VERIFIED = 6,      /* verify steps of its own, */
    CHOICES = 48,      /* and choices, before a request's drafter is given up; */
    VAIN_STEPS = 16,   /* or so many in a row, */
    VAIN_REQUESTS = 3, /* of so many requests: from then on most are not tried any more, */
    SAMPLE = 16,       /* but for one in so many */
    MODE_EVERY = 16,   /* steps that draft: at most one of them with the other number of masks */
    HEMMED = 64        /* choices in a row without a good moment for a probe: then any will do */
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
enum { MOST_SINCE = 4096 }; /* beyond, more steps say nothing more */
/* Steps of one request that its acceptance is known from. */
static const double OWN_STEPS = 40;
/* What a process may spend on trials before it has saved anything, in steps; and on bursts, on
 * credit. */
static const double FIRST_STEPS = 4, DEBT = 4, GOOD_DEBT = 12;
/* So many standard deviations apart, what is thought to be worse is. */
static const double FAR = 3;
/* What one size may be wrong by, times its standard deviation, when it met another moment of the
 * machine; and how likely that is. */
static const double WRONG = 2.4, RARELY = 0.4, RARELY_FROM_PLAIN = 0.08, SIZE_SHARE = 0.0005;
/* Time for steps with the other number of masks, of that of steps that draft, and what of it a new
 * process has in steps. */
static const double MODE_SHARE = 0.001, FIRST_MODES = 0.15;
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
    t->n_in_vain += t->n_in_vain < INT32_MAX;
    t->n_requests_in_vain += r->epoch != t->epoch && t->n_requests_in_vain < INT32_MAX;
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
static double doubt_of(const struct sv_policy *p, const struct sv_candidate *used,
                       const struct sv_candidate *other)
{
    const struct sv_candidate *draft = used->k ? used : other;
    double cost = sv_cost_doubt(&p->cost, &draft->load, used->k && other->k ? &other->load : NULL);
    if (used->k)
        return cost;
    double seen = fmin((double)p->tried[1], OWN_STEPS * other->k) + 1;
    double kept = (1 - used->tokens / other->tokens) / sqrt(seen);
    return sqrt(cost * cost + kept * kept);
}

/* 1 for a process that knows its table only, 0 once it has seen enough. */
static double young(const struct sv_policy *p)
{
    const int32_t told = p->trial.n_steps * p->n;
    return told < YOUNG ? (double)(YOUNG - told) / YOUNG : 0;
}

/* What `other` is worth trying. */
static struct sv_rival against(const struct sv_policy *p, const struct sv_candidate *used,
                               const struct sv_candidate *other, bool of_size)
{
    static const double PEAK = 0.398942; /* 1 / sqrt(2 pi) */
    const double doubt = fmax(doubt_of(p, used, other), 1e-6) * (of_size ? WRONG : 1),
                 x = fabs(log(used->score / other->score)) / doubt,
                 more = doubt * (PEAK * exp(-x * x / 2) - x * erfc(x * sqrt(0.5)) / 2);
    return (struct sv_rival){.c = other,
                             .of_size = of_size,
                             .doubt = doubt,
                             .apart = x,
                             .regret = more * (!of_size  ? 1
                                               : used->k ? RARELY
                                                         : RARELY_FROM_PLAIN)};
}

/* Of the best of each size, which the search has just told, the one that is worth most to try. */
static void pick_size(struct sv_policy *p, const struct sv_candidate *plain,
                      const struct sv_candidate *used)
{
    struct sv_searched *s = p->searched;
    double most = 0;
    s->looked = 0;
    s->rival_n = 0;
    for (int32_t i = 0; i < SV_LEVELS; i++) {
        const struct sv_candidate *c = &s->size[i];
        if (!c->k)
            continue;
        const double regret = against(p, used, c, true).regret;
        if (regret <= most)
            continue;
        most = regret;
        s->rival = *c;
        s->rival_n = p->n;
        s->rival_tokens = plain->tokens;
    }
}

/* By what is known by now; NULL: there is none, it is not another size any more, or fewer than it
 * wants have had a rank since. */
static const struct sv_candidate *size_again(struct sv_policy *p, const struct sv_candidate *plain,
                                             const struct sv_candidate *used)
{
    struct sv_searched *s = p->searched;
    struct sv_candidate *c = &s->rival;
    if (s->rival_n != p->n || (used->k && c->load.n_rows == used->load.n_rows) ||
        s->ranked_of != p->n || c->k > s->ranked)
        return NULL;
    c->load.sampled = p->load.sampled;
    c->tokens += plain->tokens - s->rival_tokens;
    s->rival_tokens = plain->tokens;
    c->us = sv_cost_us(&p->cost, &c->load);
    c->score = c->tokens / c->us;
    return c;
}

struct sv_rival sv_trial_way(const struct sv_policy *p, const struct sv_candidate *plain,
                             const struct sv_candidate *best, bool drafting)
{
    if (!best->k)
        return (struct sv_rival){.apart = HUGE_VAL};
    return drafting ? against(p, best, plain, false) : against(p, plain, best, false);
}

struct sv_rival sv_trial_size(struct sv_policy *p, const struct sv_candidate *plain,
                              const struct sv_candidate *used)
{
    if (p->searched->looked == p->n && !(p->trial.n_left && p->trial.of_size))
        pick_size(p, plain, used);
    /* First of all it is acceptance that has to be known. */
    const struct sv_candidate *c = young(p) > 0 ? NULL : size_again(p, plain, used);
    return c ? against(p, used, c, true) : (struct sv_rival){.apart = HUGE_VAL, .of_size = true};
}

void sv_trial_save(struct sv_policy *p, double us, bool drafting, const struct sv_rival *way,
                   const struct sv_rival *size)
{
    struct sv_trial *t = &p->trial;
    double *thrift = &t->thrift[sv_policy_octave(p->n)];
    if (drafting) /* and does so for some time: a short mistake teaches nothing new */
        *thrift += (0.5 - *thrift) * THRIFT_RATE;
    double share = SHARE * *thrift + (t->n_steps ? 0 : FIRST_STEPS);
    share += YOUNG_SHARE * young(p);
    t->n_steps += t->n_steps < YOUNG;
    double other = way->c ? share / 2 : 0, near = NEAR_SHARE * (drafting ? 1 : *thrift);
    /* What is held back is worked off first, which may take long. */
    const double most = 50 * us + p->held_us;
    t->probe_us = fmin(t->probe_us + us * (share - other), most);
    t->other_us = fmin(t->other_us + us * (other + near * fmin(way->regret / REGRET, 1)), most);
    t->size_us =
        fmin(t->size_us + us * (SIZE_SHARE + near * fmin(size->regret / REGRET, 1)), 50 * us);
    t->n_since += t->n_since < MOST_SINCE;
}

/* For a few steps, when what they are thought to lose has been saved up: near a tie often, far from
 * it hardly ever. */
bool sv_trial_goes(struct sv_policy *p, const struct sv_rival *rival,
                   const struct sv_candidate *used)
{
    struct sv_trial *t = &p->trial;
    const struct sv_candidate *c = rival->c;
    const bool drafting = used->k > 0;
    double *purse = rival->of_size ? &t->size_us : &t->other_us;
    if (t->n_left && t->of_size != rival->of_size)
        return false;
    if (!c || (t->n_left && t->drafts != (c->k > 0))) {
        t->n_left -= t->n_left > 0;
        return false;
    }
    double loss = c->us - c->tokens * used->us / used->tokens, first = drafting ? 0 : p->held_us;
    loss = loss > 0 ? loss : 0;
    if (!t->n_left) {
        /* What is thought to be best goes on long enough in between to be compared too. */
        double sure = SURE / fmax(rival->doubt, 1e-3);
        double least = fmin(fmax(SPACING * sure * sure, SPACING), MOST_SPACING);
        if (t->n_since < least || *purse < 2 * loss + first || rival->apart > FAR)
            return false;
        t->n_left = rival->of_size ? (drafting ? 0 : SETTLING) + SIZE_STEPS : STEPS;
        *purse -= first;
        t->drafts = c->k > 0;
        t->of_size = rival->of_size;
        if (!drafting)
            was_in_vain(p, 0.9);
    }
    t->n_left--;
    *purse -= loss;
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
    struct sv_trial *t = &p->trial;
    if (!p->drafts_on_device)
        return;
    t->mode_us = fmin(t->mode_us + best->us * (t->n_drafting ? MODE_SHARE : FIRST_MODES), best->us);
    if (++t->n_drafting % MODE_EVERY)
        return;
    set_mode(p, best->mode == SV_DRAFT_FULL ? SV_DRAFT_SHORT : SV_DRAFT_FULL);
    const double loss = fmax(sv_cost_us(&p->cost, &p->load) - best->us, 0);
    if (t->mode_us < loss) {
        set_mode(p, best->mode);
        return;
    }
    t->mode_us -= loss;
    p->n_masks++;
}

/* ---------------------------------------------------------------- probes */

/* Who is known least, then who waited longest; with room for so many rows. 0: a whole block. */
static struct sv_policy_seq *probe_whom(struct sv_policy *p, int32_t room)
{
    struct sv_policy_seq *best = NULL;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        if (s->fixed || s->cap < (room ? room : s->block) || s->width >= s->cap)
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

bool sv_trial_is_hemmed(const struct sv_policy *p)
{
    return p->trial.n_hemmed >= HEMMED;
}

void sv_trial_hem(struct sv_policy *p, bool beside_prompt)
{
    int32_t *n = &p->trial.n_hemmed;
    *n = !beside_prompt && probe_whom(p, 0) ? 0 : *n + (*n < HEMMED);
}

/* What it would lose has to be saved up: its time less what its tokens are worth. More of what did
 * well, and the few requests still tried, may run into debt. */
void sv_trial_probe(struct sv_policy *p, double us, double rate, bool drafting)
{
    struct sv_policy_seq *s = probe_whom(p, sv_trial_is_hemmed(p) ? 2 : 0);
    if (!s)
        return;
    struct sv_policy_seq was = *s;
    struct sv_load load = p->load;
    float alive[SV_MAX_BLOCK], chance = 1;
    int32_t width;
    sv_chance_fill(p, s, alive);
    int mode = probe_how(p, s, alive, drafting, &width);
    sv_choice_set_width(p, s, width, mode);
    double loss = sv_cost_us(&p->cost, &p->load) - us + (drafting ? 0 : p->held_us / p->n);
    for (int32_t j = 1; j < s->width; j++) {
        chance = sv_chance_in_mode(p, mode, alive, j, chance);
        loss -= j < was.width ? 0 : (double)chance / rate;
    }
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
