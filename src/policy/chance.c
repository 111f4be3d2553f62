/*
 * chance.c - how likely drafts are kept: fading counts by position, by request, and of full and
 * short blocks.
 *
 * Called by policy.c once a step, and by the engine for every verify step (sv_policy_verified).
 * Must not: know what a step costs, or allocate.
 */
#include "policy/chance.h"

#include <math.h>

enum { PROBE_BURST = 8 };

/* Steps remembered: a quarter of a thousand verify steps engine-wide, two dozen probes, 64 of a
 * request. */
static const float WINDOW_ALL = 256, WINDOW_PROBE = 24, WINDOW_OWN = 64;
/* That is of so few sequences; of more, as long a time. */
static const float FEW = 4;
/* Single drafts remembered, and needed, to tell short blocks from full ones. */
static const float WINDOW_MODE = 8000, MODE_WEIGHT = 200, MODE_TRIED = 24;
/* A draft of a full block is kept so many times as often as one of a short block (the shipped
 * pair). */
static const float FULL_PRIOR = 1.035f;
/* What a record starts with: observations that a first draft is kept with this chance ... */
static const float FIRST_CHANCE = 0.75f, FIRST_WEIGHT = 2, LEAST_CHANCE = 1e-6f;
/* ... and how many observations of its own a request needs to be believed half over the
 * engine's. */
static const float OWN_WEIGHT = 16;
/* Drafts of its own a request needs for all positions together to be believed half. */
static const float POOL = 16;
/* How much of what records say of requests is found again: before it is known, with what weight (in
 * squares of shares), and at most; drafts remembered for it. */
static const float DIFFER = 0.7f, DIFFER_WEIGHT = 0.5f, MOST_DIFFER = 1.2f, WINDOW_APART = 50000;

/* Positions nobody has tried lately go by the one before: acceptance changes slowly along the
 * block. */
void sv_chance_update(struct sv_policy *p)
{
    float before = FIRST_CHANCE;
    for (int32_t j = 1; j < p->block; j++) {
        before = (p->kept[j] + FIRST_WEIGHT * before) / (p->tried[j] + FIRST_WEIGHT);
        /* Not nothing, or what a record says of it had nothing to be measured by. */
        p->hazard[j] = before = fmaxf(before, LEAST_CHANCE);
    }
    /* The engine's record is a mixture of the modes in use; a mode's factor is over that
     * mixture. */
    float full = p->mode_expected[SV_DRAFT_FULL], both = full + p->mode_expected[SV_DRAFT_SHORT];
    float mixture = 1 + (FULL_PRIOR - 1) * (both > 0 ? full / both : 1);
    for (int m = 0; m < SV_DRAFT_MODES; m++) {
        const float prior = MODE_WEIGHT * (m == SV_DRAFT_FULL ? FULL_PRIOR : 1) / mixture;
        p->mode_factor[m] = (p->mode_kept[m] + prior) / (p->mode_expected[m] + MODE_WEIGHT);
        /* Fewer masks than the drafter was trained with are no better. Who says so was counted
         * while the record lagged behind, and may not be counted again: at its widest a short
         * block is a full one. */
        if (m == SV_DRAFT_SHORT)
            p->mode_factor[m] = fminf(p->mode_factor[m], p->mode_factor[SV_DRAFT_FULL]);
    }
}

/* Where many draft together their counts come in faster, and may be as many more until they are
 * old. */
static float window_of(const struct sv_verified *v)
{
    const float together = (float)v->n_together / FEW;
    return v->probe ? WINDOW_PROBE : WINDOW_ALL * (together > 1 ? together : 1);
}

/* Kept over expected of a request, all positions together. */
static float own_ratio(const struct sv_policy *p, const struct sv_record *r)
{
    float kept = POOL, expected = POOL;
    for (int32_t j = 1; j < p->block; j++) {
        kept += r->kept[j];
        expected += r->expected[j];
    }
    return kept / expected;
}

/* How far apart from the engine's chance a request's is thought to be at a position, as a share of
 * it, were its record all that counts. */
static float own_apart(const struct sv_policy *p, const struct sv_record *r, int32_t j, float all)
{
    const float prior = OWN_WEIGHT * p->hazard[j];
    return (r->kept[j] + prior * all) / (r->expected[j] + prior) - 1;
}

/* What a record says of a request may be chance: of how far it is apart, the part that is found
 * again in its next drafts (the slope of a regression through zero). */
float sv_chance_differ(const struct sv_policy *p)
{
    const float slope = (p->apart_xy + DIFFER_WEIGHT * DIFFER) / (p->apart_xx + DIFFER_WEIGHT);
    return slope < 0 ? 0 : slope < MOST_DIFFER ? slope : MOST_DIFFER;
}

/* A request was thought to be x apart from the engine's chance, and its next draft was y. */
static void count_apart(struct sv_policy *p, float x, float y, float weight)
{
    p->apart_xy += weight * (x * y - p->apart_xy / WINDOW_APART);
    p->apart_xx += weight * (x * x - p->apart_xx / WINDOW_APART);
}

/* A draft's fate, or its chance where it was cut off, counted with this weight. */
static void count(struct sv_policy *p, struct sv_record *r, int32_t j, const struct sv_verified *v,
                  float kept, float weight, float all)
{
    int mode = v->draft_rows && v->draft_rows < p->block ? SV_DRAFT_SHORT : SV_DRAFT_FULL;
    const float window = window_of(v), h = p->hazard[j];
    p->kept[j] += weight * (kept - p->kept[j] / window);
    p->tried[j] += weight * (1 - p->tried[j] / window);
    if (p->tried[j] > MODE_TRIED) { /* else the record is what is wrong */
        p->mode_kept[mode] += weight * (kept - p->mode_kept[mode] / WINDOW_MODE);
        p->mode_expected[mode] += weight * (h - p->mode_expected[mode] / WINDOW_MODE);
    }
    count_apart(p, h * own_apart(p, r, j, all), kept - h * p->mode_factor[mode], weight);
    r->kept[j] += weight * (kept - r->kept[j] / WINDOW_OWN);
    r->expected[j] += weight * (h * p->mode_factor[mode] - r->expected[j] / WINDOW_OWN);
}

/* The draft that would have come next was dropped, for good reason. That says something of the
 * request, whose drafts are worth that much less, and nothing of requests without its grammar. */
static void count_refused(struct sv_policy *p, struct sv_record *r, int32_t j, float all)
{
    const float h = p->hazard[j];
    count_apart(p, h * own_apart(p, r, j, all), -h, 1);
    r->kept[j] = sv_fade(r->kept[j], WINDOW_OWN);
    r->expected[j] += h - r->expected[j] / WINDOW_OWN;
}

void sv_policy_verified(struct sv_policy *p, struct sv_record *r, const struct sv_verified *v)
{
    float window = window_of(v), expected = 0, alive = 1;
    const float all = own_ratio(p, r);
    int32_t width = v->width, n_emitted = v->n_emitted;
    int32_t known = v->refused ? p->block : v->share ? v->n_drafts + 1 : width;
    for (int32_t j = 1; j < width; j++)
        expected += alive *= p->hazard[j];
    for (int32_t j = 1; j < width && j <= n_emitted; j++)
        count(p, r, j, v, j < n_emitted, 1, all);
    if (v->refused && n_emitted == width && width < p->block)
        count_refused(p, r, width, all);
    /* Drafts that were cut off had a chance too: without them the record would be that of drafts
     * the drafter was sure of. */
    float weight = n_emitted == width;
    for (int32_t j = width; v->share && j <= v->n_drafts && weight > 0.01f; j++) {
        float chance = sv_confidence_chance(p, j, v->share[j - 1]);
        count(p, r, j, v, chance, weight, all);
        weight *= chance;
    }
    if (v->share)
        sv_confidence_verified(p, v->share, width, n_emitted);
    /* What this width could not show goes stale; then it is taken to go on like the position
     * before. */
    for (int32_t j = known; j < p->block && !v->probe; j++) {
        p->kept[j] = sv_fade(p->kept[j], 2 * window);
        p->tried[j] = sv_fade(p->tried[j], 2 * window);
    }
    r->n_verified++;
    sv_trial_verified(p, r);
    if (!v->probe)
        return;
    /* A probe that did better than anybody thought is followed by more at once, so that good news
     * spreads fast. */
    if ((float)n_emitted > 1.5f + 1.5f * expected)
        r->burst = r->burst ? r->burst - 1 : PROBE_BURST, p->rests = false;
    else
        r->burst = 0;
}

/* Chance that each draft of a request is kept. Its own record scales the engine's, the less the
 * younger, and as far as requests differ. */
void sv_chance_fill(const struct sv_policy *p, const struct sv_policy_seq *s, float *alive)
{
    const float differ = sv_chance_differ(p), all = own_ratio(p, s->record);
    float chance = 1;
    alive[0] = 1;
    for (int32_t j = 1; j < s->block; j++) {
        float h = p->hazard[j];
        h *= fmaxf(1 + differ * own_apart(p, s->record, j, all), 0);
        chance *= h < SV_MOST_HAZARD ? h : SV_MOST_HAZARD;
        alive[j] = chance;
    }
}

double sv_policy_expect(const struct sv_policy *p, int mode, int32_t width)
{
    double sum = 1, chance = 1;
    for (int32_t j = 1; j < width && j < p->block; j++)
        sum += chance *= (double)sv_hazard_in_mode(p, mode, p->hazard[j]);
    return sum;
}
