/*
 * search.c - the best allocation of verify rows to the sequences of a step, before drafting and,
 * with the confidence of the drafts, once more after it.
 *
 * Drafts are ordered by their chance to be accepted; the search tries numbers of rows, of drafting
 * sequences and both modes against the cost table (docs/width-policy.md). Called by policy.c for
 * every choice, where one search may serve several, and by the engine between drafting and
 * verifying. Must not: allocate, learn anything, or look at tokens.
 */
#include "policy/choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 64 };
static const double PRUNE_MARGIN = 1.01, PRUNE_NEAR = 0.97;
static const float PRUNE_RATE = 0.125f;
/* A probe verifies the drafts whose chance is at least this. */
static const float REACH = 0.15f;

static int by_value(const void *a, const void *b)
{
    const struct sv_rank *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? 1 : -1) : x->i - y->i;
}

static int bin_of(float chance)
{
    int b = (int)(chance * BINS);
    return b < BINS ? b : BINS - 1;
}

/* Ranks the sequences that may draft, largest gain first. */
static int32_t rank_all(struct sv_policy *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        float *alive = p->alive + (size_t)i * (size_t)p->block;
        if (s->fixed || s->cap < 2)
            continue;
        sv_chance_fill(p, s->record, alive);
        p->rank[n].i = i;
        p->rank[n].value = 0;
        for (int32_t j = 1; j < s->cap; j++)
            p->rank[n].value += alive[j];
        n++;
    }
    qsort(p->rank, (size_t)n, sizeof *p->rank, by_value);
    p->searched->n_ranked = n;
    return n;
}

/* The drafts available in a step, by their chance. */
struct offer {
    struct sv_load load; /* of the step without them */
    double base;         /* and its tokens */
    double rate;         /* > 0: after drafting; the tokens that a us is worth */
    double n[BINS], tokens[BINS];
    int32_t block_rows;
    float row_us, draft_us, draft_row_us; /* sums over the sequences */
};

static void add_sequence(struct offer *o, const struct sv_policy_seq *s)
{
    o->block_rows += s->block;
    o->row_us += s->row_us;
    o->draft_us += s->draft_us;
    o->draft_row_us += s->draft_row_us;
}

/* Adds drafts 1 .. n of a sequence with their chances. */
static void add_drafts(struct offer *o, const float *chance, int32_t n)
{
    for (int32_t j = 1; j <= n; j++) {
        o->n[bin_of(chance[j])] += 1;
        o->tokens[bin_of(chance[j])] += (double)chance[j];
    }
}

static struct sv_load load_of(const struct sv_policy *p, const struct sv_candidate *c,
                              const struct offer *o)
{
    struct sv_load l = o->load;
    const int32_t n_drafts = c->width ? c->k * (c->width - 1) : c->n_rows,
                  masks = c->mode == SV_DRAFT_FULL ? o->block_rows : n_drafts + c->k;
    l.n_rows += c->n_rows;
    l.row_us += o->row_us / (float)c->k * (float)c->n_rows;
    if (!p->drafts_on_device || o->rate > 0)
        return l;
    l.n_draft_segs += c->k;
    l.n_draft_out += n_drafts;
    l.n_draft_rows += masks;
    l.draft_us += o->draft_us + o->draft_row_us / (float)c->k * (float)masks;
    l.draft_us += c->width ? (float)sv_curve_at(&p->cost.trip, l.n_draft_out) : 0;
    return l;
}

/* The size class of a candidate: rows in octaves and half octaves, whose costs are learnt together.
 */
static int32_t size_of(const struct sv_candidate *c)
{
    const struct sv_size at = sv_cost_size(c->load.n_rows);
    return at.i + (at.t > 0.5);
}

/* Whether it is near the middle of its class: candidates at the edge say little about it. */
static bool is_typical(const struct sv_candidate *c)
{
    const struct sv_size at = sv_cost_size(c->load.n_rows);
    return fabs(at.t - 0.5) > 0.4;
}

/* The best candidates so far. */
struct found {
    struct sv_candidate best;
    struct sv_candidate *size; /* (SV_LEVELS) the best of each size; NULL: not wanted */
};

static void try_rows(const struct sv_policy *p, struct sv_candidate c, int32_t n_rows,
                     double tokens, const struct offer *o, struct found *found)
{
    if (n_rows < c.k && !c.width)
        return;
    c.n_rows = n_rows;
    c.base = o->base;
    c.tokens = tokens;
    c.load = load_of(p, &c, o);
    c.us = sv_cost_us(&p->cost, &c.load);
    c.score = o->rate > 0 ? c.tokens - o->rate * c.us : c.tokens / c.us;
    if (c.score > found->best.score)
        found->best = c;
    struct sv_candidate *size = found->size ? &found->size[size_of(&c)] : NULL;
    if (size && is_typical(&c) && (!size->k || c.score > size->score))
        *size = c;
}

/* The next number of rows at which the cost has a step or a bend. *i: table point of the last one.
 */
static int32_t next_bend(const struct sv_cost *c, int32_t n_rows, int32_t *i)
{
    if (c->padded)
        return c->padded(n_rows + 1);
    while (*i < c->wide.n && c->wide.x[*i] <= n_rows)
        ++*i;
    return *i < c->wide.n ? c->wide.x[*i] : INT32_MAX;
}

/* Tries numbers of rows: all drafts of a bin have the same value, so only ends of bins and bends of
 * the cost matter. */
static void walk(const struct sv_policy *p, const struct sv_candidate *c, const struct offer *o,
                 struct found *found)
{
    const int32_t base = o->load.n_rows;
    int32_t i = 0;
    double rows = 0, tokens = o->base;
    for (int32_t bin = BINS - 1; bin >= 0; bin--) {
        if (o->n[bin] <= 0)
            continue;
        const double each = o->tokens[bin] / o->n[bin], end = rows + o->n[bin];
        for (int32_t at = next_bend(&p->cost, base + (int32_t)rows, &i); at < base + end;
             at = next_bend(&p->cost, at, &i))
            try_rows(p, *c, at - base, tokens + each * (at - base - rows), o, found);
        rows = end;
        tokens += o->tokens[bin];
        try_rows(p, *c, (int32_t)(rows + 0.5), tokens, o, found);
    }
}

/* Walks only if some number of rows could come near the best so far: the bound is all `gain` tokens
 * at the cost of the fewest rows. */
static void try_offer(const struct sv_policy *p, struct sv_candidate c, const struct offer *o,
                      double gain, const struct sv_candidate *plain, struct found *found)
{
    static const double RIVALS = 0.7, OF_PLAIN = 0.85;
    const double least = found->best.score * (found->size ? RIVALS : 1);
    c.n_rows = c.width ? 0 : c.k;
    const struct sv_load l = load_of(p, &c, o);
    const double bound = (o->base + gain) / sv_cost_us(&p->cost, &l);
    if (bound > least && bound >= OF_PLAIN * plain->score)
        walk(p, &c, o, found);
}

/* Tries 1, 2, 4, ... and all n ranked sequences drafting, each with all numbers of rows. */
static void search(struct sv_policy *p, int mode, int32_t n, const struct sv_candidate *plain,
                   struct found *found)
{
    struct offer o = {.load = p->load, .base = plain->tokens};
    double gain = 0;
    for (int32_t k = 1, next = 1; k <= n; k++) {
        const int32_t i = p->rank[k - 1].i;
        const struct sv_policy_seq *s = &p->seq[i];
        float chance[SV_MAX_BLOCK];
        gain +=
            sv_chance_in_mode(p, mode, p->alive + (size_t)i * (size_t)p->block, s->cap - 1, chance);
        add_drafts(&o, chance, s->cap - 1);
        add_sequence(&o, s);
        if (k < next && k < n)
            continue;
        next *= 2;
        try_offer(p, (struct sv_candidate){.mode = mode, .k = k}, &o, gain, plain, found);
    }
}

/* Tries all draft widths with pruning afterwards. To be comparable with candidates without pruning
 * the total goes by the record (gain: of all sequences, relative to one without history), and the
 * spread of recent chances says which part of it the best rows have. */
static void try_widths(const struct sv_policy *p, struct sv_candidate c, struct offer *o,
                       double gain, const struct sv_candidate *plain, struct found *found)
{
    float alive[SV_MAX_BLOCK], chance[SV_MAX_BLOCK], record = 0;
    float rows[SV_CONFIDENCE_EDGES] = {0}, tokens[SV_CONFIDENCE_EDGES] = {0};
    sv_chance_fill(p, NULL, alive);
    sv_chance_in_mode(p, c.mode, alive, p->block - 1, chance);
    for (int32_t j = 1; j < p->block; j++) {
        record += chance[j];
        sv_confidence_spread(p, j, alive[j], rows, tokens);
        if (j >= 4 && j != 5 && j % 4 != 3 && j != p->block - 1)
            continue;
        float all = 0;
        for (int b = 0; b < SV_CONFIDENCE_EDGES; b++)
            all += tokens[b];
        for (int b = 0; b < SV_CONFIDENCE_EDGES; b++) {
            o->n[b] = c.k * (double)rows[b];
            o->tokens[b] = all > 0 ? gain * (double)(record * tokens[b] / all) : 0;
        }
        c.width = j + 1;
        try_offer(p, c, o, gain * (double)record, plain, found);
    }
}

static void search_pruned(const struct sv_policy *p, int mode, int32_t n,
                          const struct sv_candidate *plain, struct found *found)
{
    struct offer o = {.load = p->load, .base = plain->tokens};
    double gain = 0, usual = 0;
    float alive[SV_MAX_BLOCK];
    sv_chance_fill(p, NULL, alive);
    for (int32_t j = 1; j < p->block; j++)
        usual += (double)alive[j];
    for (int32_t k = 1; k <= n; k++) {
        gain += sv_confidence_kept(p) * (double)p->rank[k - 1].value / usual;
        add_sequence(&o, &p->seq[p->rank[k - 1].i]);
        if (k == n || k == (n + 1) / 2 || (k == 1 && n >= 4))
            try_widths(p, (struct sv_candidate){.mode = mode, .k = k}, &o, gain, plain, found);
    }
}

/* The best candidate of another size that is most worth a trial. */
static void pick_rival(struct sv_policy *p, const struct found *f)
{
    struct sv_candidate *other_size = &p->searched->other_size;
    double most = 0;
    if (p->trial.n_left)
        return;
    other_size->k = 0;
    for (int32_t i = 0; i < SV_LEVELS && f->best.k; i++) {
        const double regret = f->size[i].k ? sv_trial_assess(p, &f->best, &f->size[i]).regret : 0;
        if (regret <= most)
            continue;
        most = regret;
        *other_size = f->size[i];
    }
}

static struct sv_candidate search_all(struct sv_policy *p, const struct sv_candidate *plain)
{
    enum { RIVALS_EVERY = 4 }; /* searches: finding the best of each size takes longer */
    struct sv_candidate size[SV_LEVELS] = {{.k = 0}};
    struct found found = {.best = {.score = -HUGE_VAL}}, found_pruned = found;
    int32_t n = rank_all(p);
    found.size = p->searched->n_searches++ % RIVALS_EVERY ? NULL : size;
    bool both = p->drafts_on_device;
    /* A full block costs more, so it is tried only where it is accepted better. */
    bool full = !both || p->mode_factor[SV_DRAFT_FULL] > p->mode_factor[SV_DRAFT_SHORT];
    for (int mode = SV_DRAFT_FULL; mode <= SV_DRAFT_SHORT; mode++) {
        if (mode == SV_DRAFT_FULL ? !full : !both)
            continue;
        if (p->prunes)
            search_pruned(p, mode, n, plain, &found_pruned);
        search(p, mode, n, plain, &found);
    }
    if (found.size)
        pick_rival(p, &found);
    const struct sv_candidate best = found.best, pruned = found_pruned.best;
    if (p->prunes && best.k && pruned.k && 2 * n > p->n)
        p->confidence.gain +=
            ((float)(pruned.score / best.score) - p->confidence.gain) * PRUNE_RATE;
    p->confidence.near = pruned.score > PRUNE_NEAR * best.score;
    /* The gain of pruning is less certain than the record. */
    return pruned.score > PRUNE_MARGIN * best.score ? pruned : best;
}

/* Rates an earlier result again for the sequences of this step. */
static void look_up_again(const struct sv_policy *p, const struct sv_candidate *plain,
                          struct sv_candidate *c)
{
    if (!c->k)
        return;
    c->load.sampled = p->load.sampled;
    c->tokens += plain->tokens - c->base;
    c->base = plain->tokens;
    c->us = sv_cost_us(&p->cost, &c->load);
    c->score = c->tokens / c->us;
}

/* Where the host's time adds to the step's, one search serves several steps, since it takes as long
 * as a good part of a small model's step; more steps where drafting does not pay. Sequences may
 * have ended in between: the ranks stay, chances are recomputed. */
struct sv_candidate sv_choice_search(struct sv_policy *p, const struct sv_candidate *plain)
{
    enum { SERVES = 4, MOST_SERVES = 32 };
    static const double FAR = 0.85;
    struct sv_searched *last = p->searched;
    const bool same = last->n == p->n,
               idle = !p->trial.drafted && last->n && sv_policy_about(p->n, last->n);
    const int32_t n_steps = last->n_steps;
    last->n_steps += 1 + p->n_backed_off;
    if (!p->ahead && (same || idle) && n_steps < last->serves) {
        if (!same) /* other sequences: still unprofitable */
            return (struct sv_candidate){.score = -HUGE_VAL};
        look_up_again(p, plain, &last->c);
        return last->c;
    }
    last->c = search_all(p, plain);
    last->n = p->n;
    last->n_steps = 1;
    const bool unprofitable = !last->c.k || last->c.score < FAR * plain->score,
               nothing = idle && last->c.score < plain->score;
    last->serves = unprofitable ? MOST_SERVES : nothing ? 2 * last->serves : SERVES;
    last->serves = last->serves < MOST_SERVES ? last->serves : MOST_SERVES;
    return last->c;
}

const struct sv_candidate *sv_choice_other_size(struct sv_policy *p,
                                                const struct sv_candidate *plain,
                                                const struct sv_candidate *used)
{
    struct sv_candidate *c = &p->searched->other_size;
    if (!c->k || c->load.n_segs != p->n || c->load.n_rows == used->load.n_rows)
        return NULL;
    look_up_again(p, plain, c);
    return c;
}

void sv_choice_set_width(struct sv_policy *p, struct sv_policy_seq *s, int32_t width, int mode)
{
    struct sv_load *l = &p->load;
    if (s->width > 1)
        l->n_draft_segs -= s->draft_rows > 0;
    l->n_draft_rows -= s->draft_rows;
    l->n_draft_out -= s->n_drafts;
    l->draft_us -= s->draft_rows ? s->draft_us + s->draft_row_us * (float)s->draft_rows : 0;
    l->n_rows += width - s->width;
    l->row_us += s->row_us * (float)(width - s->width);
    s->width = width;
    s->draft_rows = width < 2 || !p->drafts_on_device ? 0
                    : mode == SV_DRAFT_FULL           ? s->block
                                                      : width;
    s->n_drafts = s->draft_rows ? width - 1 : 0;
    if (!s->draft_rows)
        return;
    l->n_draft_segs++;
    l->n_draft_rows += s->draft_rows;
    l->n_draft_out += width - 1;
    l->draft_us += s->draft_us + s->draft_row_us * (float)s->draft_rows;
}

/* ---------------------------------------------------------------- rows for each sequence */

/* Drafts of higher bins get a row, and `left` of this one. */
struct line {
    int32_t bin, left;
};

static struct line draw_line(const struct offer *o, int32_t n_rows)
{
    struct line l = {BINS - 1, n_rows};
    for (; l.bin > 0 && l.left > o->n[l.bin]; l.bin--)
        l.left -= (int32_t)o->n[l.bin];
    return l;
}

static int32_t width_above(struct line *l, const float *chance, int32_t n_drafts)
{
    int32_t width = 1;
    for (; width <= n_drafts; width++) {
        const int32_t bin = bin_of(chance[width]);
        if (bin < l->bin || (bin == l->bin && !l->left))
            break;
        l->left -= bin == l->bin;
    }
    return width;
}

/* The sequence of this rank, if it may draft: its slot may be free or another's by now. */
static struct sv_policy_seq *ranked(struct sv_policy *p, int32_t rank)
{
    struct sv_policy_seq *s = &p->seq[p->rank[rank].i];
    return rank >= p->searched->n_ranked || s->fixed || s->cap < 2 ? NULL : s;
}

/* Allocates the candidate's rows to the drafts that are likeliest now. */
void sv_choice_apply(struct sv_policy *p, const struct sv_candidate *c)
{
    struct offer o = {.base = 0};
    for (int32_t r = 0; r < c->k; r++) {
        const struct sv_policy_seq *s = ranked(p, r);
        float *chance = p->alive + (size_t)p->rank[r].i * (size_t)p->block, alive[SV_MAX_BLOCK];
        if (!s || c->width)
            continue;
        sv_chance_fill(p, s->record, alive);
        sv_chance_in_mode(p, c->mode, alive, s->cap - 1, chance);
        add_drafts(&o, chance, s->cap - 1);
    }
    struct line line = draw_line(&o, c->n_rows);
    for (int32_t r = 0; r < c->k; r++) {
        struct sv_policy_seq *s = ranked(p, r);
        const float *chance = p->alive + (size_t)p->rank[r].i * (size_t)p->block;
        if (!s)
            continue;
        const int32_t width = c->width ? c->width : width_above(&line, chance, s->cap - 1);
        sv_choice_set_width(p, s, width < s->cap ? width : s->cap, c->mode);
    }
}

void sv_policy_narrow(struct sv_policy *p, int32_t i, int32_t width)
{
    struct sv_policy_seq *s = &p->seq[i];
    SV_REQUIRE(i < p->n && width >= 1 && width <= s->width);
    p->load.n_rows -= s->width - width;
    p->load.row_us -= s->row_us * (float)(s->width - width);
    s->width = width;
}

/* Chances of a sequence's drafts, given their confidence. */
static const float *fill_chances(struct sv_policy *p, int32_t i, const float *confidence)
{
    float *chance = p->alive + (size_t)i * (size_t)p->block, a = 1;
    for (int32_t j = 1; j < p->seq[i].width; j++)
        chance[j] = a *= sv_confidence_chance(p, j, confidence[j - 1]);
    return chance;
}

static int32_t probe_width(const struct sv_policy_seq *s, const float *chance)
{
    int32_t width = 1;
    while (width < s->width && (width == 1 || chance[width] >= REACH))
        width++;
    return width;
}

void sv_policy_prune(struct sv_policy *p, const float *confidence)
{
    struct offer o = {.load = p->load, .rate = p->rate};
    struct sv_candidate c = {.width = 1};
    int32_t at = 0;
    o.load.n_prompt_rows = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        if (!s->draft_rows)
            continue;
        const float *chance = fill_chances(p, i, confidence + at);
        at += s->n_drafts;
        if (s->fixed || s->probe)
            continue;
        c.k++;
        add_sequence(&o, s);
        add_drafts(&o, chance, s->width - 1);
        o.load.n_rows -= s->width - 1;
        o.load.row_us -= s->row_us * (float)(s->width - 1);
    }
    struct found found = {.best = {.score = -p->rate * sv_cost_us(&p->cost, &o.load)}};
    walk(p, &c, &o, &found);
    struct line line = draw_line(&o, found.best.n_rows);
    p->n_pruned_steps++;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        const float *chance = p->alive + (size_t)i * (size_t)p->block;
        if (!s->draft_rows || s->fixed)
            continue;
        const int32_t width = p->random  ? 1 + (int32_t)sv_rng_below(p->random, (uint32_t)s->width)
                              : s->probe ? probe_width(s, chance)
                                         : width_above(&line, chance, s->width - 1);
        p->n_pruned += s->width - width;
        sv_policy_narrow(p, i, width);
    }
}
