/*
 * chance.c - how likely drafts are accepted: fading counts by position, by request, of full and
 * short blocks, and by what the drafter says of each draft.
 *
 * Called by policy.c once a step, and by the engine for every verify step (sv_policy_verified). The
 * drafter's own probability of its winner is calibrated by what was kept, never believed. Must not:
 * know what a step costs, or allocate.
 */
#include "policy/choice.h"

#include <math.h>

enum { FOLLOW_UPS = 8 };

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
/* No draft is likelier than this once the one before it is kept. */
static const float MOST_HAZARD = 0.998f;
/* Drafts of its own a request needs for all positions together to be believed half. */
static const float POOL = 16;
/* How much of what records say of requests is found again: before it is known, with what weight (in
 * squares of shares), and at most; drafts remembered for it. */
static const float DIFFER = 0.7f, DIFFER_WEIGHT = 0.5f, MOST_DIFFER = 1.2f, WINDOW_APART = 50000;

/* Steps of the drafter's log odds from LOWEST_ODDS on. A bin begins as the record says, with this
 * weight: what is thought bad from the start would be cut off and never be seen to be good. */
static const float LOWEST_ODDS = -4, ODDS_STEP = 0.5f, BIN_WEIGHT = 4;
/* Drafts remembered by a bin and by a position; what a position needs to be believed. */
static const float WINDOW_BIN = 512, WINDOW_AT = 256, AT_WEIGHT = 20;
/* Blocks remembered for how chances are spread; what that is worth without any. */
static const float WINDOW_BLOCKS = 128, FEW_BLOCKS = 4;
/* What cuts brought against what they promised: tokens remembered, and tokens that the promise is
 * worth. */
static const float WINDOW_PROMISE = 4000, PROMISE = 400;
static const float edge[SV_CONFIDENCE_EDGES] = {0, 0.1f, 0.2f, 0.35f, 0.5f, 0.7f};

/* What is remembered for so long, one step later. Before it is too small to be computed with as
 * fast as other numbers, it is gone. */
static float fade(float x, float window)
{
    return x > 1e-20f ? x - x / window : 0;
}

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

/* How far apart from the engine's chance a request's is thought to be at a position, as a
 * share of it, were its record all that counts. */
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
    r->kept[j] = fade(r->kept[j], WINDOW_OWN);
    r->expected[j] += h - r->expected[j] / WINDOW_OWN;
}

/* ---------------------------------------------------------------- what the drafter says */

static int32_t bin_of(float confidence)
{
    float s = confidence > 1e-6f ? confidence < 0.999999f ? confidence : 0.999999f : 1e-6f;
    float x = (logf(s / (1 - s)) - LOWEST_ODDS) / ODDS_STEP;
    return x <= 0 ? 0 : x >= SV_CONFIDENCE_BINS - 1 ? SV_CONFIDENCE_BINS - 1 : (int32_t)x;
}

float sv_confidence_chance(const struct sv_policy *p, int32_t j, float confidence)
{
    const struct sv_confidence *k = &p->confidence;
    int32_t b = bin_of(confidence);
    float c = (k->kept[b] + BIN_WEIGHT * p->hazard[j]) / (k->tried[b] + BIN_WEIGHT);
    c *= (k->at_kept[j] + AT_WEIGHT) / (k->at_expected[j] + AT_WEIGHT);
    return c < 0.998f ? c : 0.998f;
}

/* Drafts 1 .. width - 1 were verified, the first n_emitted - 1 kept; confidence[j - 1] is draft
 * j's. */
static void count_confidence(struct sv_policy *p, const float *confidence, int32_t width,
                             int32_t n_emitted)
{
    struct sv_confidence *k = &p->confidence;
    for (int32_t j = 1; j < width && j <= n_emitted; j++) {
        float kept = j < n_emitted, c = sv_confidence_chance(p, j, confidence[j - 1]);
        int32_t b = bin_of(confidence[j - 1]);
        k->at_kept[j] += kept - k->at_kept[j] / WINDOW_AT;
        k->at_expected[j] += c - k->at_expected[j] / WINDOW_AT;
        k->kept[b] += kept - k->kept[b] / WINDOW_BIN;
        k->tried[b] += 1 - k->tried[b] / WINDOW_BIN;
    }
}

/* ---------------------------------------------------------------- a verify step */

void sv_policy_verified(struct sv_policy *p, struct sv_record *r, const struct sv_verified *v)
{
    float window = window_of(v), expected = 0, alive = 1;
    const float all = own_ratio(p, r);
    int32_t width = v->width, n_emitted = v->n_emitted;
    int32_t known = v->refused ? p->block : v->confidence ? v->n_drafts + 1 : width;
    for (int32_t j = 1; j < width; j++)
        expected += alive *= p->hazard[j];
    for (int32_t j = 1; j < width && j <= n_emitted; j++)
        count(p, r, j, v, j < n_emitted, 1, all);
    if (v->refused && n_emitted == width && width < p->block)
        count_refused(p, r, width, all);
    /* Drafts that were cut off had a chance too: without them the record would be that of drafts
     * the drafter was sure of. */
    float weight = n_emitted == width;
    for (int32_t j = width; v->confidence && j <= v->n_drafts && weight > 0.01f; j++) {
        float chance = sv_confidence_chance(p, j, v->confidence[j - 1]);
        count(p, r, j, v, chance, weight, all);
        weight *= chance;
    }
    if (v->confidence)
        count_confidence(p, v->confidence, width, n_emitted);
    /* What this width could not show goes stale; then it is taken to go on like the position
     * before. */
    for (int32_t j = known; j < p->block && !v->probe; j++) {
        p->kept[j] = fade(p->kept[j], 2 * window);
        p->tried[j] = fade(p->tried[j], 2 * window);
    }
    p->trial.n_unprofitable++;
    p->trial.n_unprofitable_requests += !r->n_verified;
    r->n_verified++;
    if (!v->probe)
        return;
    /* A probe that did better than anybody thought is followed by more at once, so that good news
     * spreads fast. */
    if ((float)n_emitted > 1.5f + 1.5f * expected)
        r->follow_ups = r->follow_ups ? r->follow_ups - 1 : FOLLOW_UPS, p->backoff = false;
    else
        r->follow_ups = 0;
}

/* A request's own record scales the engine's, the less the younger, and as far as requests
 * differ. */
void sv_chance_fill(const struct sv_policy *p, const struct sv_record *r, float *alive)
{
    const float differ = sv_chance_differ(p), all = r ? own_ratio(p, r) : 1;
    float chance = 1;
    alive[0] = 1;
    for (int32_t j = 1; j < p->block; j++) {
        const float own = r ? fmaxf(1 + differ * own_apart(p, r, j, all), 0) : 1;
        alive[j] = chance *= fminf(p->hazard[j] * own, MOST_HAZARD);
    }
}

/* Never more than draft j - 1's: rows are handed out in the order of their chances, and a draft
 * comes behind those it follows. */
double sv_chance_in_mode(const struct sv_policy *p, int mode, const float *alive, int32_t n,
                         float *chance)
{
    double sum = 0;
    float before = 1;
    for (int32_t j = 1; j <= n; j++) {
        const float hazard = alive[j - 1] > 0 ? alive[j] / alive[j - 1] : 0;
        chance[j] = before *= fminf(hazard * p->mode_factor[mode], MOST_HAZARD);
        sum += (double)before;
    }
    return sum;
}

/* ---------------------------------------------------------------- what pruning would leave */

static int32_t edge_of(float alive)
{
    int32_t b = SV_CONFIDENCE_EDGES - 1;
    while (alive < edge[b])
        b--;
    return b;
}

/* A block's chances as they stood before it was cut. */
static void remember(struct sv_confidence *k, int32_t j, float alive)
{
    const int32_t b = edge_of(alive);
    for (int32_t i = 0; i < SV_CONFIDENCE_EDGES; i++) {
        k->spread[j][i] = fade(k->spread[j][i], WINDOW_BLOCKS);
        k->spread_sum[j][i] = fade(k->spread_sum[j][i], WINDOW_BLOCKS);
    }
    k->spread[j][b] += 1;
    k->spread_sum[j][b] += alive;
}

/* As lately seen, and for the rest all like the record. */
void sv_confidence_spread(const struct sv_policy *p, int32_t j, float alive, float *rows,
                          float *tokens)
{
    const struct sv_confidence *k = &p->confidence;
    const int32_t usual = edge_of(alive);
    float all = FEW_BLOCKS;
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++)
        all += k->spread[j][b];
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++) {
        const float few = b == usual ? FEW_BLOCKS : 0;
        rows[b] += (k->spread[j][b] + few) / all;
        tokens[b] += (k->spread_sum[j][b] + few * alive) / all;
    }
}

double sv_confidence_kept(const struct sv_policy *p)
{
    return (double)((p->confidence.brought + PROMISE) / (p->confidence.promised + PROMISE));
}

void sv_policy_drafted(struct sv_policy *p, const float *confidence, int32_t n)
{
    float chance = 1;
    for (int32_t j = 1; j <= n && !p->random; j++)
        remember(&p->confidence, j, chance *= sv_confidence_chance(p, j, confidence[j - 1]));
}

void sv_policy_brought(struct sv_policy *p, double promised, int32_t n_tokens)
{
    struct sv_confidence *k = &p->confidence;
    float fade = 1 - (float)promised / (WINDOW_PROMISE + (float)promised);
    k->promised = k->promised * fade + (float)promised;
    k->brought = k->brought * fade + (float)n_tokens;
}
