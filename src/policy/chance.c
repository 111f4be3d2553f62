/*
 * chance.c - the acceptance of drafts: fading counts by position, by request, of full and short
 * blocks, and by draft confidence.
 *
 * Called by policy.c once a step, and by the engine for every verify step (sv_policy_verified). The
 * draft confidence is calibrated by acceptance, never taken as it is. Must not: know what a step
 * costs, or allocate.
 */
#include "policy/choice.h"

#include <math.h>

enum { FOLLOW_UPS = 8 };

/* Steps remembered: verify steps engine-wide, probes, steps of a request. */
static const float WINDOW_ALL = 256, WINDOW_PROBE = 24, WINDOW_OWN = 64;
/* Engine-wide with up to so many sequences; with more, in proportion. */
static const float FEW = 4;
/* Drafts remembered and needed to distinguish short blocks from full ones. */
static const float WINDOW_MODE = 8000, MODE_WEIGHT = 200, MODE_TRIED = 24;
/* Prior ratio of acceptance, full over short blocks (the shipped pair). */
static const float FULL_PRIOR = 1.035f;
/* Prior of the engine-wide record: the first draft's chance, in so many observations. */
static const float FIRST_CHANCE = 0.75f, FIRST_WEIGHT = 2, LEAST_CHANCE = 1e-6f;
/* Observations of its own after which a request's record counts half. */
static const float OWN_WEIGHT = 16;
/* Upper bound of each hazard. */
static const float MOST_HAZARD = 0.998f;
/* The same for all positions of a request together. */
static const float POOL = 16;
/* Prior, its weight (in squares of shares) and upper bound of how far the deviations of requests
 * persist; drafts remembered for it. */
static const float DIFFER = 0.7f, DIFFER_WEIGHT = 0.5f, MOST_DIFFER = 1.2f, WINDOW_APART = 50000;

/* Bins of the confidence's log odds from LOWEST_ODDS on. Each bin starts at the record's chance
 * with this weight: if it started low, its drafts would be pruned and never measured. */
static const float LOWEST_ODDS = -4, ODDS_STEP = 0.5f, BIN_WEIGHT = 4;
/* Drafts remembered by a bin and by a position; weight of a position's prior. */
static const float WINDOW_BIN = 512, WINDOW_AT = 256, AT_WEIGHT = 20;
/* Blocks remembered for the spread of chances; weight of its prior. */
static const float WINDOW_BLOCKS = 128, FEW_BLOCKS = 4;
/* Tokens of pruned steps over those predicted: tokens remembered, and weight of the prior. */
static const float WINDOW_PROMISE = 4000, PROMISE = 400;
static const float edge[SV_CONFIDENCE_EDGES] = {0, 0.1f, 0.2f, 0.35f, 0.5f, 0.7f};

/* Fades a sum by one step; 0 before it becomes denormal, which is slow. */
static float fade(float x, float window)
{
    return x > 1e-20f ? x - x / window : 0;
}

/* Positions without recent counts take the value of the one before: acceptance changes slowly along
 * the block. */
void sv_chance_update(struct sv_policy *p)
{
    float before = FIRST_CHANCE;
    for (int32_t j = 1; j < p->block; j++) {
        before = (p->kept[j] + FIRST_WEIGHT * before) / (p->tried[j] + FIRST_WEIGHT);
        /* Not 0: records are measured relative to it. */
        p->hazard[j] = before = fmaxf(before, LEAST_CHANCE);
    }
    /* The engine-wide record mixes the modes in use; a mode's factor is relative to that mixture.
     */
    float full = p->mode_expected[SV_DRAFT_FULL], both = full + p->mode_expected[SV_DRAFT_SHORT];
    float mixture = 1 + (FULL_PRIOR - 1) * (both > 0 ? full / both : 1);
    for (int m = 0; m < SV_DRAFT_MODES; m++) {
        const float prior = MODE_WEIGHT * (m == SV_DRAFT_FULL ? FULL_PRIOR : 1) / mixture;
        p->mode_factor[m] = (p->mode_kept[m] + prior) / (p->mode_expected[m] + MODE_WEIGHT);
        /* Fewer masks than in training are never better: a short block that looks so was counted
         * while the record lagged. */
        if (m == SV_DRAFT_SHORT)
            p->mode_factor[m] = fminf(p->mode_factor[m], p->mode_factor[SV_DRAFT_FULL]);
    }
}

/* Where many sequences draft together, counts come faster and the window is longer. */
static float window_of(const struct sv_verified *v)
{
    const float together = (float)v->n_together / FEW;
    return v->probe ? WINDOW_PROBE : WINDOW_ALL * (together > 1 ? together : 1);
}

/* Kept over predicted of a request, all positions together. */
static float own_ratio(const struct sv_policy *p, const struct sv_record *r)
{
    float kept = POOL, expected = POOL;
    for (int32_t j = 1; j < p->block; j++) {
        kept += r->kept[j];
        expected += r->expected[j];
    }
    return kept / expected;
}

/* A request's relative deviation from the engine-wide chance at a position, by its own record. */
static float own_apart(const struct sv_policy *p, const struct sv_record *r, int32_t j, float all)
{
    const float prior = OWN_WEIGHT * p->hazard[j];
    return (r->kept[j] + prior * all) / (r->expected[j] + prior) - 1;
}

/* A request's deviation may be random: the part of it that its next drafts confirm (the slope of a
 * regression through zero). */
float sv_chance_differ(const struct sv_policy *p)
{
    const float slope = (p->apart_xy + DIFFER_WEIGHT * DIFFER) / (p->apart_xx + DIFFER_WEIGHT);
    return slope < 0 ? 0 : slope < MOST_DIFFER ? slope : MOST_DIFFER;
}

/* A request's predicted deviation was x, that of its next draft y. */
static void count_apart(struct sv_policy *p, float x, float y, float weight)
{
    p->apart_xy += weight * (x * y - p->apart_xy / WINDOW_APART);
    p->apart_xx += weight * (x * x - p->apart_xx / WINDOW_APART);
}

/* Counts a draft that was kept or not, or the chance of a pruned one, with this weight. */
static void count(struct sv_policy *p, struct sv_record *r, int32_t j, const struct sv_verified *v,
                  float kept, float weight, float all)
{
    int mode = v->draft_rows && v->draft_rows < p->block ? SV_DRAFT_SHORT : SV_DRAFT_FULL;
    const float window = window_of(v), h = p->hazard[j];
    p->kept[j] += weight * (kept - p->kept[j] / window);
    p->tried[j] += weight * (1 - p->tried[j] / window);
    if (p->tried[j] > MODE_TRIED) { /* else the record itself is not reliable */
        p->mode_kept[mode] += weight * (kept - p->mode_kept[mode] / WINDOW_MODE);
        p->mode_expected[mode] += weight * (h - p->mode_expected[mode] / WINDOW_MODE);
    }
    count_apart(p, h * own_apart(p, r, j, all), kept - h * p->mode_factor[mode], weight);
    r->kept[j] += weight * (kept - r->kept[j] / WINDOW_OWN);
    r->expected[j] += weight * (h * p->mode_factor[mode] - r->expected[j] / WINDOW_OWN);
}

/* A grammar forbade the next draft. This lowers the value of this request's drafts, and not that of
 * other requests. */
static void count_refused(struct sv_policy *p, struct sv_record *r, int32_t j, float all)
{
    const float h = p->hazard[j];
    count_apart(p, h * own_apart(p, r, j, all), -h, 1);
    r->kept[j] = fade(r->kept[j], WINDOW_OWN);
    r->expected[j] += h - r->expected[j] / WINDOW_OWN;
}

/* ---------------------------------------------------------------- draft confidence */

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

/* Drafts 1 .. width - 1 were verified, the first n_emitted - 1 kept; confidence[j - 1]: of draft j.
 */
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
    /* Pruned drafts count with their chance; else the record would hold only drafts of high
     * confidence. */
    float weight = n_emitted == width;
    for (int32_t j = width; v->confidence && j <= v->n_drafts && weight > 0.01f; j++) {
        float chance = sv_confidence_chance(p, j, v->confidence[j - 1]);
        count(p, r, j, v, chance, weight, all);
        weight *= chance;
    }
    if (v->confidence)
        count_confidence(p, v->confidence, width, n_emitted);
    /* Counts of positions that this width did not reach fade; then they follow the position before.
     */
    for (int32_t j = known; j < p->block && !v->probe; j++) {
        p->kept[j] = fade(p->kept[j], 2 * window);
        p->tried[j] = fade(p->tried[j], 2 * window);
    }
    p->trial.n_unprofitable++;
    p->trial.n_unprofitable_requests += !r->n_verified;
    r->n_verified++;
    if (!v->probe)
        return;
    /* A probe that did much better than predicted is followed by more at once, so that a change is
     * noticed soon. */
    if ((float)n_emitted > 1.5f + 1.5f * expected)
        r->follow_ups = r->follow_ups ? r->follow_ups - 1 : FOLLOW_UPS, p->backoff = false;
    else
        r->follow_ups = 0;
}

/* A request's own record scales the engine-wide one, by its age and by how far requests differ. */
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

/* Not above draft j - 1's: rows are allocated in the order of their chances, and a draft must come
 * after those before it. */
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

/* The chances of a block before pruning. */
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

/* As in recent blocks, with the record as prior. */
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
