/*
 * confidence.c - widths from the confidence of the drafter of each draft: what that says of a
 * draft's chance, what it is worth to know before verifying, and the cut between the two passes.
 *
 * Where the device can tell (struct sv_policy: cuts), called by policy.c for the choice before
 * drafting, and by the engine between drafting and verifying. Where steps run ahead, a cut has its
 * price, and the choice says whether it is paid. The drafter's own probability of its winner is
 * calibrated by what was kept, never believed. Must not: allocate, or change a draft.
 */
#include "policy/choice.h"

#include <math.h>

enum { PRUNE_BINS = 64 };

/* Steps of the drafter's log odds from LOWEST on. A bin begins as the record says, with this
 * weight: what is thought bad from the start would be cut off and never be seen to be good. */
static const float LOWEST = -4, STEP = 0.5f, FIRST = 4;
/* Drafts remembered by a bin and by a position; what a position needs to be believed. */
static const float WINDOW = 512, AT_WINDOW = 256, AT_WEIGHT = 20;
/* Blocks remembered for how chances are spread; what that is worth without any. */
static const float BLOCKS = 128, FEW_BLOCKS = 4;
/* A probe verifies what is kept with at least this chance. */
static const float REACH = 0.15f;
/* What cuts brought against what they promised: tokens remembered, and tokens that the promise is
 * worth. */
static const float TOKENS = 4000, PROMISE = 400;
/* Share of the time for looking at whole blocks: at first, where a cut comes near the best choice,
 * and elsewhere. */
static const double LOOK_YOUNG_SHARE = 0.01, LOOK_NEAR_SHARE = 0.006, LOOK_SHARE = 0.0015;
/* Of more sequences than two, less, down to this share of it: one block tells the same. */
static const double LOOK_LEAST = 1.0 / 6;
/* At first: until so many whole blocks were looked at, or so many steps were chosen. */
static const float LOOK_YOUNG = 40;
enum { YOUNG_STEPS = 128 };
static const float edge[SV_CONFIDENCE_EDGES] = {0, 0.1f, 0.2f, 0.35f, 0.5f, 0.7f};

/* ---------------------------------------------------------------- chances */

static int32_t bin_of(float share)
{
    float s = share > 1e-6f ? share < 0.999999f ? share : 0.999999f : 1e-6f;
    float x = (logf(s / (1 - s)) - LOWEST) / STEP;
    return x <= 0 ? 0 : x >= SV_CONFIDENCE_BINS - 1 ? SV_CONFIDENCE_BINS - 1 : (int32_t)x;
}

float sv_confidence_chance(const struct sv_policy *p, int32_t j, float share)
{
    const struct sv_confidence *k = &p->confidence;
    int32_t b = bin_of(share);
    float c = (k->kept[b] + FIRST * p->hazard[j]) / (k->tried[b] + FIRST);
    c *= (k->at_kept[j] + AT_WEIGHT) / (k->at_expected[j] + AT_WEIGHT);
    return c < 0.998f ? c : 0.998f;
}

/* Drafts 1 .. width - 1 were verified, the first n_emitted - 1 kept; share[j - 1] is draft j's. */
void sv_confidence_verified(struct sv_policy *p, const float *share, int32_t width,
                            int32_t n_emitted)
{
    struct sv_confidence *k = &p->confidence;
    for (int32_t j = 1; j < width && j <= n_emitted; j++) {
        float kept = j < n_emitted, c = sv_confidence_chance(p, j, share[j - 1]);
        int32_t b = bin_of(share[j - 1]);
        k->at_kept[j] += kept - k->at_kept[j] / AT_WINDOW;
        k->at_expected[j] += c - k->at_expected[j] / AT_WINDOW;
        k->kept[b] += kept - k->kept[b] / WINDOW;
        k->tried[b] += 1 - k->tried[b] / WINDOW;
    }
}

/* A block's chances as they stood before it was cut. */
static void remember(struct sv_confidence *k, int32_t j, float alive)
{
    int32_t b = SV_CONFIDENCE_EDGES - 1;
    while (alive < edge[b])
        b--;
    for (int32_t i = 0; i < SV_CONFIDENCE_EDGES; i++) {
        k->spread[j][i] = sv_fade(k->spread[j][i], BLOCKS);
        k->spread_sum[j][i] = sv_fade(k->spread_sum[j][i], BLOCKS);
    }
    k->spread[j][b] += 1;
    k->spread_sum[j][b] += alive;
}

/* ---------------------------------------------------------------- before drafting */

struct ask {
    struct sv_candidate c;
    float rows[SV_CONFIDENCE_EDGES],
        tokens[SV_CONFIDENCE_EDGES];      /* of one sequence, above each edge */
    float row_us, draft_us, draft_row_us; /* sums over the sequences that draft */
    float gain;                           /* sum of their factors over the record */
    float record;                         /* tokens of one sequence, as the record says */
    int32_t block_rows;
};

static struct sv_load load_of(const struct sv_policy *p, const struct ask *a, float rows)
{
    const struct sv_candidate *c = &a->c;
    struct sv_load l = p->load;
    int32_t masks = c->mode == SV_DRAFT_FULL ? a->block_rows : c->k * c->width;
    l.n_rows += (int32_t)((float)c->k * rows + 0.5f);
    l.row_us += a->row_us * rows;
    l.n_draft_segs += c->k;
    l.n_draft_out += c->k * (c->width - 1);
    l.n_draft_rows += masks;
    l.draft_us += a->draft_us + a->draft_row_us / (float)c->k * (float)masks;
    l.draft_us += (float)sv_curve_at(&p->cost.trip, l.n_draft_out);
    return l;
}

/* One sequence with so many rows and tokens beyond its first. */
static void try_cut(const struct sv_policy *p, struct ask *a, const struct sv_candidate *plain,
                    float rows, float tokens, struct sv_candidate *best)
{
    struct sv_load l = load_of(p, a, rows);
    a->c.tokens = plain->tokens + (double)(a->gain * tokens);
    a->c.us = sv_cost_us(&p->cost, &l);
    a->c.score = a->c.tokens / a->c.us;
    if (a->c.score <= best->score)
        return;
    *best = a->c;
    best->load = l;
}

/* Between two edges, where counts are padded up: the cut will fill what it pays for. */
static void try_full(const struct sv_policy *p, struct ask *a, const struct sv_candidate *plain,
                     int32_t b, float scale, struct sv_candidate *best)
{
    float r0 = b + 1 < SV_CONFIDENCE_EDGES ? a->rows[b + 1] : 0, r1 = a->rows[b];
    float t0 = b + 1 < SV_CONFIDENCE_EDGES ? a->tokens[b + 1] : 0, t1 = a->tokens[b],
          k = (float)a->c.k;
    for (int32_t n = p->load.n_rows + (int32_t)(k * r0) + 1;; n++) {
        n = p->cost.padded(n);
        float rows = (float)(n - p->load.n_rows) / k;
        if (rows >= r1)
            return;
        try_cut(p, a, plain, rows, scale * (t0 + (t1 - t0) * (rows - r0) / (r1 - r0)), best);
    }
}

/* All chances to cut at, for one number of proposals. The choice is between to cut and not to cut:
 * both go by the record, and the spread says what is left of it. */
static void try_width(const struct sv_policy *p, struct ask *a, const struct sv_candidate *plain,
                      struct sv_candidate *best)
{
    struct sv_load l = load_of(p, a, 0);
    float scale = a->tokens[0] > 0 ? a->record / a->tokens[0] : 1;
    double most = plain->tokens + (double)(a->gain * scale * a->tokens[0]);
    if (most / sv_cost_us(&p->cost, &l) <= best->score)
        return;
    for (int32_t b = SV_CONFIDENCE_EDGES - 1; b >= 0; b--) {
        if (a->rows[b] <= 0)
            continue;
        if (p->cost.padded)
            try_full(p, a, plain, b, scale, best);
        try_cut(p, a, plain, a->rows[b], scale * a->tokens[b], best);
    }
}

/* How a block's chances are spread: as lately seen, and for the rest all like the record. in_mode:
 * what the mode makes of the chance. */
static void add_position(const struct sv_policy *p, struct ask *a, int32_t j, float alive,
                         float in_mode)
{
    const struct sv_confidence *k = &p->confidence;
    const float power = alive > 0 ? in_mode / alive : 1;
    float all = FEW_BLOCKS, rows = 0, tokens = 0;
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++)
        all += k->spread[j][b];
    a->record += in_mode;
    for (int32_t b = SV_CONFIDENCE_EDGES - 1; b >= 0; b--) {
        rows += k->spread[j][b] / all;
        tokens += k->spread_sum[j][b] / all * power;
        a->rows[b] += rows;
        a->tokens[b] += tokens;
    }
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++)
        if (alive >= edge[b]) {
            a->rows[b] += FEW_BLOCKS / all;
            a->tokens[b] += FEW_BLOCKS / all * alive * power;
        }
}

static void try_sequences(const struct sv_policy *p, struct ask *a,
                          const struct sv_candidate *plain, struct sv_candidate *best)
{
    float alive = 1, in_mode = 1;
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++)
        a->rows[b] = a->tokens[b] = 0;
    a->record = 0;
    for (int32_t j = 1; j < p->block; j++) {
        alive *= p->hazard[j];
        in_mode *= sv_hazard_in_mode(p, a->c.mode, p->hazard[j]);
        add_position(p, a, j, alive, in_mode);
        a->c.width = j + 1;
        if (j < 4 || j == 5 || j % 4 == 3 || j == p->block - 1)
            try_width(p, a, plain, best);
    }
}

/* The best way to draft when rows are cut afterwards; n sequences are ranked. */
void sv_confidence_search(struct sv_policy *p, int mode, int32_t n,
                          const struct sv_candidate *plain, struct sv_candidate *best)
{
    struct ask a = {.gain = 0};
    float kept_promise = (p->confidence.brought + PROMISE) / (p->confidence.promised + PROMISE);
    float usual = 0, alive = 1;
    for (int32_t j = 1; j < p->block; j++)
        usual += alive *= p->hazard[j];
    for (int32_t k = 1; k <= n; k++) {
        const struct sv_policy_seq *s = &p->seq[p->rank[k - 1].i];
        a.gain += usual > 0 ? kept_promise * p->rank[k - 1].value / usual : 0;
        a.block_rows += s->block;
        a.row_us += s->row_us;
        a.draft_us += s->draft_us;
        a.draft_row_us += s->draft_row_us;
        if (k != n && k != (n + 1) / 2 && (k > 1 || n < 4))
            continue;
        a.c = (struct sv_candidate){.mode = mode, .k = k};
        try_sequences(p, &a, plain, best);
    }
}

/* ---------------------------------------------------------------- where a cut has its price */

void sv_confidence_decide(struct sv_policy *p, const struct sv_candidate *used,
                          const struct sv_candidate *plain)
{
    p->promised = 0;
    p->prunes_now = p->prunes && used && used->k && used->width > 1;
    if (!p->prunes_now)
        return;
    p->promised = used->tokens - plain->tokens;
    p->load.draft_us += (float)sv_curve_at(&p->cost.trip, p->load.n_draft_out);
}

/* Whom to ask for its whole block: who drafts, in turn. */
static struct sv_policy_seq *look_at(struct sv_policy *p)
{
    for (int32_t k = 1; k <= p->n; k++) {
        int32_t i = (p->confidence.looked + k) % p->n;
        struct sv_policy_seq *s = &p->seq[i];
        if (s->width < 2 || !s->draft_rows || s->fixed)
            continue;
        p->confidence.looked = i;
        return s;
    }
    return NULL;
}

/* Whole blocks that were looked at, as long as they count. */
static float looked_at(const struct sv_policy *p)
{
    float n = 0;
    for (int32_t b = 0; b < SV_CONFIDENCE_EDGES; b++)
        n += p->confidence.spread[p->block - 1][b];
    return n;
}

/* What a cut would bring has to be known before anything is cut: the confidence of the drafter of a
 * whole block. The drafts beyond the width are not verified. */
void sv_confidence_look(struct sv_policy *p, double us)
{
    struct sv_load *l = &p->load, was = *l;
    struct sv_confidence *k = &p->confidence;
    double share = LOOK_YOUNG_SHARE;
    if (looked_at(p) >= LOOK_YOUNG || p->trial.n_steps >= YOUNG_STEPS)
        share = (k->near ? LOOK_NEAR_SHARE : LOOK_SHARE) * fmax(fmin(2.0 / p->n, 1), LOOK_LEAST);
    k->look_us = fmin(k->look_us + share * us, 50 * us);
    if (!p->prunes || p->prunes_now || !l->n_draft_segs || k->look_us <= 0)
        return;
    int32_t looked = k->looked;
    struct sv_policy_seq *s = look_at(p);
    if (!s)
        return;
    l->n_draft_rows += s->block - s->draft_rows;
    l->draft_us += s->draft_row_us * (float)(s->block - s->draft_rows);
    l->n_draft_out += s->block - 1 - s->n_drafts;
    if (!p->confidence_free)
        l->draft_us += (float)sv_curve_at(&p->cost.trip, l->n_draft_out);
    double more = us > 0 ? sv_cost_us(&p->cost, l) - sv_cost_us(&p->cost, &was) : 0;
    if (k->look_us < more) {
        *l = was;
        k->looked = looked;
        return;
    }
    k->look_us -= more;
    s->draft_rows = s->block;
    s->n_drafts = s->block - 1;
    p->confidence_now = true;
}

void sv_policy_drafted(struct sv_policy *p, const float *share, int32_t n)
{
    float chance = 1;
    for (int32_t j = 1; j <= n && !p->random; j++)
        remember(&p->confidence, j, chance *= sv_confidence_chance(p, j, share[j - 1]));
}

void sv_policy_brought(struct sv_policy *p, double promised, int32_t n_tokens)
{
    struct sv_confidence *k = &p->confidence;
    float fade = 1 - (float)promised / (TOKENS + (float)promised);
    k->promised = k->promised * fade + (float)promised;
    k->brought = k->brought * fade + (float)n_tokens;
}

/* ---------------------------------------------------------------- between the passes */

struct rows_left {
    int32_t count[PRUNE_BINS];
    double tokens[PRUNE_BINS], row_us[PRUNE_BINS];
};

static int32_t prune_bin(float alive)
{
    int32_t b = (int32_t)(alive * PRUNE_BINS);
    return b < PRUNE_BINS ? b : PRUNE_BINS - 1;
}

static bool may_prune(const struct sv_policy_seq *s)
{
    return s->draft_rows && !s->fixed;
}

/* Rows of higher bins are kept, and so many of this one. */
struct prune_line {
    int32_t bin, n;
};

/* Down to where rows still pay at p->rate tokens a us. Where counts are padded up, rows that the
 * padding has paid for are free, so only full counts are looked at. */
static struct prune_line find_line(const struct sv_policy *p, const struct rows_left *r,
                                   struct sv_load l)
{
    struct prune_line line = {PRUNE_BINS, 0};
    double tokens = 0, best = -p->rate * sv_cost_us(&p->cost, &l);
    int32_t last = 0;
    while (last < PRUNE_BINS && !r->count[last])
        last++;
    for (int32_t b = PRUNE_BINS - 1; b >= last; b--)
        for (int32_t n = 0; n < r->count[b];) {
            int32_t more = r->count[b] - n;
            if (p->cost.padded) {
                int32_t room = p->cost.padded(l.n_rows) - l.n_rows;
                room = room > 0 ? room : p->cost.padded(l.n_rows + 1) - l.n_rows;
                more = more < room ? more : room;
            }
            double part = (double)more / r->count[b];
            n += more;
            l.n_rows += more;
            l.row_us += (float)(part * r->row_us[b]);
            tokens += part * r->tokens[b];
            if (p->cost.padded && p->cost.padded(l.n_rows) > l.n_rows &&
                (b > last || n < r->count[b]))
                continue;
            double worth = tokens - p->rate * sv_cost_us(&p->cost, &l);
            if (worth > best) {
                best = worth;
                line = (struct prune_line){b, n};
            }
        }
    return line;
}

static int32_t width_at(const struct sv_policy_seq *s, const float *alive, struct prune_line *line)
{
    int32_t width = 1;
    for (; width < s->width; width++) {
        int32_t b = prune_bin(alive[width]);
        if (s->probe ? width > 1 && alive[width] < REACH
                     : b < line->bin || (b == line->bin && !line->n))
            break;
        line->n -= !s->probe && b == line->bin;
    }
    return width;
}

void sv_policy_narrow(struct sv_policy *p, int32_t i, int32_t width)
{
    struct sv_policy_seq *s = &p->seq[i];
    SV_REQUIRE(i < p->n && width >= 1 && width <= s->width);
    p->load.n_rows -= s->width - width;
    p->load.row_us -= s->row_us * (float)(s->width - width);
    s->width = width;
}

void sv_policy_prune(struct sv_policy *p, const float *share)
{
    struct rows_left left = {.count = {0}};
    struct sv_load without = p->load;
    int32_t at = 0;
    without.n_prompt_rows = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        float *alive = p->alive + (size_t)i * (size_t)p->block, chance = 1;
        for (int32_t j = 1; s->draft_rows && j < s->width; j++) {
            alive[j] = chance *= sv_confidence_chance(p, j, share[at + j - 1]);
            if (!may_prune(s) || s->probe)
                continue;
            left.count[prune_bin(chance)]++;
            left.tokens[prune_bin(chance)] += (double)chance;
            left.row_us[prune_bin(chance)] += (double)s->row_us;
            without.n_rows--;
            without.row_us -= s->row_us;
        }
        at += s->draft_rows ? s->n_drafts : 0; /* some may have been dropped */
    }
    struct prune_line line = {0, 0};
    if (!p->random)
        line = find_line(p, &left, without);
    p->n_pruned_steps++;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        if (!may_prune(s))
            continue;
        int32_t width = p->random ? 1 + (int32_t)sv_rng_below(p->random, (uint32_t)s->width)
                                  : width_at(s, p->alive + (size_t)i * (size_t)p->block, &line);
        p->n_pruned += s->width - width;
        sv_policy_narrow(p, i, width);
    }
}
