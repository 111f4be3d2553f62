/*
 * trial.c - exploration, and for which requests drafting is disabled.
 *
 * Called by policy.c once a step. A choice that is never made is never measured: a small share of
 * the time is saved and spent on choices that the table rates worse, each at its expected loss. The
 * share shrinks while trials bring nothing. Must not: spend more than was saved, or disable
 * drafting for a request with a fixed width.
 */
#include "policy/choice.h"

#include <math.h>

enum {
    STEPS = 12,                /* of a trial of the other way */
    SIZE_STEPS = 4,            /* of a trial of another size */
    YOUNG = 256,               /* choices times sequences until a process is not young any more */
    VERIFIED = 6,              /* verify steps of its own */
    CHOICES = 48,              /* and choices before drafting is disabled for a request; */
    UNPROFITABLE_STEPS = 16,   /* or so many in a row, */
    UNPROFITABLE_REQUESTS = 3, /* of so many requests: from then on new requests do not try, */
    SAMPLE = 16,               /* except for one in so many */
    MOST_POSTPONED = 64 /* choices in a row without a suitable step for a probe: then any is */
};

/* Share of time for trials, half of it for probes: at first, after many without success, and where
 * the two candidates are tied. */
static const double SHARE = 0.007, YOUNG_SHARE = 0.015, LEAST = 0.1, NEAR_SHARE = 0.01;
/* Expected gain from knowing better for which all of NEAR_SHARE is spent. */
static const double REGRET = 0.03;
/* Rate at which the budget recovers while sequences draft. */
static const double BUDGET_RATE = 1.0 / 64;
/* Steps between two trials of the other way where the doubt of the comparison is PRECISE; four
 * times as many where it is half of that. */
static const double SPACING = 24, MOST_SPACING = 2000, PRECISE = 0.05;
enum { MOST_SINCE = 4096 }; /* beyond, the number has no effect */
/* Steps after which the acceptance of one request counts as known. */
static const double OWN_STEPS = 40;
/* Credit for trials before anything is saved, in steps; and for follow-ups. */
static const double FIRST_STEPS = 4, DEBT = 4, GOOD_DEBT = 12;
/* No trial of a candidate that is worse by so many standard deviations. */
static const double FAR = 3;
/* Error of one size in standard deviations when the machine's pace changed while it was measured,
 * and the probability of that. */
static const double WRONG = 2.4, RARELY = 0.4, SIZE_SHARE = 0.001;
/* Share of the time for looks: where pruning comes near the best choice or few whole blocks were
 * seen, and elsewhere. */
static const double LOOK_NEAR_SHARE = 0.006, LOOK_SHARE = 0.0015;
static const float FEW_LOOKS = 40;
/* Divided by the number of sequences beyond two, down to this part: one block shows the same. */
static const double LOOK_LEAST = 1.0 / 6;
/* Least cost of a look, as a share of a step. */
static const double LEAST_LOOK = 0.01;
/* A draft is included while the one before it is kept with at least this chance. */
static const float REACH = 0.15f;
/* A request that keeps more drafts a step than this is not disabled: with fewer sequences drafting
 * may pay. */
static const float FEW_KEPT = 0.4f;

/* Enough requests were unprofitable that new ones need not try. */
static bool all_unprofitable(const struct sv_policy *p)
{
    return p->trial.n_unprofitable >= UNPROFITABLE_STEPS &&
           p->trial.n_unprofitable_requests >= UNPROFITABLE_REQUESTS;
}

void sv_trial_profitable(struct sv_policy *p)
{
    p->trial.n_unprofitable = p->trial.n_unprofitable_requests = 0;
}

/* After a trial while no sequence drafts. */
static void reduce_budget(struct sv_policy *p, double factor)
{
    double *budget_scale = &p->trial.budget_scale[sv_policy_octave(p->n)];
    if (*budget_scale > LEAST)
        *budget_scale *= factor;
}

/* Standard deviation of the comparison as far as a trial can reduce it: of step costs and, while
 * steps are plain, of the acceptance. */
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

/* From 1 for a process that knows its table only down to 0. */
static double young(const struct sv_policy *p)
{
    const int32_t seen = p->trial.n_steps * p->n;
    return seen < YOUNG ? (double)(YOUNG - seen) / YOUNG : 0;
}

struct sv_alternative sv_trial_assess(const struct sv_policy *p, const struct sv_candidate *used,
                                      const struct sv_candidate *other)
{
    static const double PEAK = 0.398942; /* 1 / sqrt(2 pi) */
    if (!other || (!used->k && !other->k))
        return (struct sv_alternative){.distance = HUGE_VAL};
    const bool of_size = used->k && other->k;
    const double doubt = fmax(doubt_of(p, used, other), 1e-6) * (of_size ? WRONG : 1),
                 x = fabs(log(used->score / other->score)) / doubt,
                 more = doubt * (PEAK * exp(-x * x / 2) - x * erfc(x * sqrt(0.5)) / 2);
    return (struct sv_alternative){.c = other,
                                   .of_size = of_size,
                                   .doubt = doubt,
                                   .distance = x,
                                   .regret = of_size ? RARELY * more : more};
}

/* Adds to the budgets: a share of the time of the last steps, more where the alternative may be
 * worth it. */
static void save(struct sv_policy *p, double us, bool drafting, const struct sv_alternative *alt)
{
    struct sv_trial *t = &p->trial;
    double *budget_scale = &t->budget_scale[sv_policy_octave(p->n)];
    if (drafting) /* gradually: drafting for a few steps changes little */
        *budget_scale += (0.5 - *budget_scale) * BUDGET_RATE;
    double share = SHARE * *budget_scale + (t->n_steps ? 0 : FIRST_STEPS);
    share += YOUNG_SHARE * young(p);
    t->n_steps += t->n_steps < YOUNG;
    const double other = !alt->c        ? 0
                         : alt->of_size ? SIZE_SHARE
                                        : share / 2,
                 near = NEAR_SHARE * (drafting ? 1 : *budget_scale) * fmin(alt->regret / REGRET, 1);
    /* Deferred updates are paid first, which may take long. */
    const double most = 50 * us + p->deferred_us;
    t->probe_us = fmin(t->probe_us + us * (share - other), most);
    t->other_us = fmin(t->other_us + us * (other + near), most);
    t->n_since += t->n_since < MOST_SINCE;
}

/* Whether the trial runs: for a few steps, when its expected loss is saved. So often near a tie,
 * and rarely far from one. */
static bool goes(struct sv_policy *p, const struct sv_alternative *alt,
                 const struct sv_candidate *used)
{
    struct sv_trial *t = &p->trial;
    const struct sv_candidate *c = alt->c;
    if (!c) {
        t->n_left = 0;
        return false;
    }
    const double loss = fmax(c->us - c->tokens * used->us / used->tokens, 0),
                 first = used->k ? 0 : p->deferred_us;
    if (!t->n_left) {
        /* The candidate in use runs long enough in between to be compared. */
        double finer = PRECISE / fmax(alt->doubt, 1e-3);
        double least = fmin(fmax(SPACING * finer * finer, SPACING), MOST_SPACING);
        if (t->n_since < least || t->other_us < 2 * loss + first || alt->distance > FAR)
            return false;
        t->n_left = alt->of_size ? SIZE_STEPS : STEPS;
        t->of_size = alt->of_size;
        t->other_us -= first;
        if (!used->k)
            reduce_budget(p, 0.9);
    }
    t->n_left--;
    t->other_us -= loss;
    t->n_since = 0;
    p->n_other++;
    return true;
}

const struct sv_candidate *sv_trial_choose(struct sv_policy *p, const struct sv_candidate *used,
                                           const struct sv_alternative *opposite,
                                           const struct sv_candidate *size, bool beside_prompt)
{
    const struct sv_trial *t = &p->trial;
    const struct sv_alternative of_size = sv_trial_assess(p, used, size);
    /* Acceptance has to be known first. */
    const bool sizes = t->n_left ? t->of_size : young(p) <= 0 && of_size.regret > opposite->regret;
    const struct sv_alternative *alt = sizes ? &of_size : opposite;
    if (!beside_prompt || t->n_postponed >= MOST_POSTPONED)
        save(p, (1 + p->n_backed_off) * used->us, used->k > 0, alt);
    return !beside_prompt && goes(p, alt, used) ? alt->c : NULL;
}

/* ---------------------------------------------------------------- probes */

/* The sequence with the least history, then the one probed longest ago, with room for so many rows
 * (0: a whole block). */
static struct sv_policy_seq *probe_whom(struct sv_policy *p, int32_t room)
{
    struct sv_policy_seq *best = NULL;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        if (s->fixed || s->cap < (room ? room : s->block) || s->width >= s->cap)
            continue;
        if (s->record->follow_ups && s->width == 1)
            return s;
        bool unknown = s->record->n_verified < 2;
        bool best_unknown = best && best->record->n_verified < 2;
        if (!best || unknown > best_unknown ||
            (unknown == best_unknown && s->record->probed < best->record->probed))
            best = s;
    }
    return best;
}

/* Width and masks of a probe: a whole block's masks the first time and every fourth. In plain steps
 * the width ends where drafts are unlikely to be kept, so that failing at the first draft is cheap.
 * Else half as many rows again. */
static int probe_how(const struct sv_policy *p, const struct sv_policy_seq *s, const float *alive,
                     bool drafting, int32_t *width)
{
    const int32_t most = drafting ? s->width + 1 + s->width / 2 : s->cap;
    int32_t w = 2;
    while (w < s->cap && w < most && (drafting || alive[w - 1] > REACH))
        w++;
    *width = w;
    return s->record->n_verified % 4 && p->drafts_on_device ? SV_DRAFT_SHORT : SV_DRAFT_FULL;
}

/* Probes prefer steps without prompt rows and a sequence with room for a whole block; after
 * MOST_POSTPONED choices they take any. */
static struct sv_policy_seq *probe_now(struct sv_policy *p, bool beside_prompt)
{
    struct sv_policy_seq *s = beside_prompt ? NULL : probe_whom(p, 0);
    int32_t *n = &p->trial.n_postponed;
    *n = s ? 0 : *n + (*n < MOST_POSTPONED);
    return s || *n < MOST_POSTPONED ? s : probe_whom(p, 2);
}

/* The expected loss must be saved: its time less the value of its tokens. Follow-ups, and the few
 * requests that still try, may go into debt. */
void sv_trial_probe(struct sv_policy *p, const struct sv_candidate *used, bool beside_prompt)
{
    struct sv_policy_seq *s = probe_now(p, beside_prompt);
    const double us = used->us, rate = used->tokens / us;
    const bool drafting = used->k > 0;
    if (!s)
        return;
    struct sv_policy_seq was = *s;
    struct sv_load load = p->load;
    float alive[SV_MAX_BLOCK], chance[SV_MAX_BLOCK];
    int32_t width;
    sv_chance_fill(p, s->record, alive);
    int mode = probe_how(p, s, alive, drafting, &width);
    sv_choice_set_width(p, s, width, mode);
    double loss = sv_cost_us(&p->cost, &p->load) - us + (drafting ? 0 : p->deferred_us / p->n);
    sv_chance_in_mode(p, mode, alive, s->width - 1, chance);
    for (int32_t j = was.width; j < s->width; j++)
        loss -= (double)chance[j] / rate;
    /* A success must not wait until the failures of others are paid. */
    double debt = was.record->follow_ups ? GOOD_DEBT : DEBT;
    bool on_credit = !drafting && p->trial.probe_us > -debt * us &&
                     (was.record->follow_ups || (all_unprofitable(p) && !was.record->n_verified));
    if (p->trial.probe_us < loss && !on_credit) {
        *s = was;
        p->load = load;
        return;
    }
    p->trial.probe_us -= loss > 0 ? loss : 0;
    if (!drafting && !on_credit)
        reduce_budget(p, 0.94);
    s->probe = !drafting;
    s->record->probed = p->n_steps;
    p->n_probes++;
}

/* ---------------------------------------------------------------- looks */

/* The next sequence that drafts, in turn. */
static struct sv_policy_seq *look_at(struct sv_policy *p)
{
    for (int32_t k = 1; k <= p->n; k++) {
        int32_t i = (p->trial.looked + k) % p->n;
        struct sv_policy_seq *s = &p->seq[i];
        if (s->width < 2 || !s->draft_rows || s->fixed)
            continue;
        p->trial.looked = i;
        return s;
    }
    return NULL;
}

/* Whole blocks with known confidence, fading. */
static float looked_at(const struct sv_policy *p)
{
    float n = 0;
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++)
        n += p->confidence.spread[p->block - 1][b];
    return n;
}

/* whole: the masks of a whole block, with its confidence; the width stays. Else as many masks as
 * rows. */
static void set_masks(struct sv_policy *p, struct sv_policy_seq *s, bool whole)
{
    struct sv_load *l = &p->load;
    const int32_t masks = whole ? s->block : s->width,
                  n_drafts = whole && p->prunes ? s->block - 1 : s->width - 1;
    l->n_draft_rows += masks - s->draft_rows;
    l->draft_us += s->draft_row_us * (float)(masks - s->draft_rows);
    l->n_draft_out += n_drafts - s->n_drafts;
    s->draft_rows = masks;
    s->n_drafts = n_drafts;
    p->confidence_now = whole && p->prunes;
    if (p->confidence_now && !p->confidence_free)
        l->draft_us += (float)sv_curve_at(&p->cost.trip, l->n_draft_out);
}

void sv_trial_other_masks(struct sv_policy *p, double us)
{
    struct sv_trial *t = &p->trial;
    const struct sv_load load = p->load;
    const int32_t looked = t->looked;
    const double usual = p->confidence.near ? LOOK_NEAR_SHARE : LOOK_SHARE,
                 share = p->prunes && looked_at(p) < FEW_LOOKS
                             ? LOOK_NEAR_SHARE
                             : usual * fmax(fmin(2.0 / p->n, 1), LOOK_LEAST);
    t->look_us = fmin(t->look_us + share * us, 50 * us);
    struct sv_policy_seq *s =
        p->prunes_now || !load.n_draft_segs || t->look_us <= 0 ? NULL : look_at(p);
    if (!s)
        return;
    const struct sv_policy_seq was = *s;
    set_masks(p, s, s->draft_rows < s->block || (p->prunes && p->n_steps % 4));
    const double loss = us > 0 ? sv_cost_us(&p->cost, &p->load) - sv_cost_us(&p->cost, &load) : 0,
                 price = fmax(loss, LEAST_LOOK * us);
    if (t->look_us >= price) {
        t->look_us -= price;
        return;
    }
    *s = was;
    p->load = load;
    t->looked = looked;
    p->confidence_now = false;
}

/* ---------------------------------------------------------------- disabling drafting */

static bool hardly_kept(const struct sv_policy *p, const struct sv_policy_seq *s)
{
    float alive[SV_MAX_BLOCK], chance[SV_MAX_BLOCK];
    sv_chance_fill(p, s->record, alive);
    return sv_chance_in_mode(p, SV_DRAFT_SHORT, alive, s->block - 1, chance) < (double)FEW_KEPT;
}

/* By its own record; or, once several requests in a row were unprofitable, by theirs. */
void sv_trial_disable(struct sv_policy *p)
{
    struct sv_trial *t = &p->trial;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        struct sv_record *r = s->record;
        if (s->fixed || r->disabled || r->draft_kv_missing || s->width > 1)
            continue;
        if (!r->n_choices++)
            r->sampled = t->n_requests++ % SAMPLE == 0;
        bool enough = r->n_verified >= VERIFIED && r->n_choices >= CHOICES;
        r->disabled = (enough || (!r->sampled && all_unprofitable(p))) && hardly_kept(p, s);
        p->n_disabled += r->disabled;
        s->cap = r->disabled ? 1 : s->cap;
    }
}
