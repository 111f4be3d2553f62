/*
 * policy.c - which verify width every decoding sequence gets in the next step.
 *
 * Called by the scheduler once a step. All sequences share one forward pass, so the choice is one
 * for the whole batch: rows are handed out in the order of their chance to be accepted, and the
 * number of rows, the number of drafting sequences and the number of masks are those for which
 * expected tokens over measured time is highest (docs/width-policy.md). Plain decoding is one of
 * the candidates. Must not: allocate after open, look at tokens, or change what is emitted - any
 * widths give the same text.
 */
#include "spec/chance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 64, TRIAL = 8, YOUNG = 256 };

/* Drafting must look so much better than plain decoding to be chosen. */
static const double MARGIN = 1.02;
/* Share of time for probes: at first, and when they have long been in vain. */
static const double THRIFT_MOST = 0.007, THRIFT_LEAST = 0.0025, THRIFT_YOUNG = 0.02;

int sv_policy_open(struct sv_policy **out, int32_t n_slots, int32_t block, bool drafts_on_device,
                   struct sv_err *err)
{
    *out = NULL;
    SV_REQUIRE(block >= 2 && block <= SV_MAX_BLOCK && n_slots >= 1);
    struct sv_policy *p = sv_calloc(1, sizeof *p);
    if (!p)
        return sv_fail(err, SV_ENOMEM, -1, "width policy");
    sv_arena_init(&p->arena);
    p->block = p->cost.block = block;
    p->n_slots = n_slots;
    p->drafts_on_device = drafts_on_device;
    p->thrift = THRIFT_MOST;
    sv_chance_update(p);
    for (int s = 0; s < 2; s++) {
        p->cost.speed[s] = 1;
        for (int k = 0; k < SV_LEVELS; k++)
            p->cost.level[s][k] = 1;
    }
    p->seq = sv_arena_alloc(&p->arena, (size_t)n_slots * sizeof *p->seq);
    p->rank = sv_arena_alloc(&p->arena, (size_t)n_slots * sizeof *p->rank);
    p->alive = sv_arena_alloc(&p->arena, (size_t)n_slots * (size_t)block * sizeof *p->alive);
    if (!p->seq || !p->rank || !p->alive) {
        sv_policy_close(p);
        return sv_fail(err, SV_ENOMEM, -1, "width policy of %d sequences", n_slots);
    }
    *out = p;
    return SV_OK;
}

void sv_policy_close(struct sv_policy *p)
{
    if (!p)
        return;
    sv_arena_fini(&p->arena);
    sv_free(p);
}

/* ---------------------------------------------------------------- the choice */

void sv_policy_begin(struct sv_policy *p, int32_t n_prompt_rows, bool sampled)
{
    p->n = 0;
    p->load = (struct sv_load){.n_prompt_rows = n_prompt_rows, .sampled = sampled};
}

void sv_policy_add(struct sv_policy *p, struct sv_policy_seq seq)
{
    SV_REQUIRE(p->n < p->n_slots && seq.block <= p->block);
    seq.seg_us = (float)sv_cost_context(&p->cost, p->cost.seg_us, seq.context);
    seq.row_us = (float)sv_cost_context(&p->cost, p->cost.row_us, seq.context);
    seq.draft_us = (float)sv_cost_context(&p->cost, p->cost.draft_us, seq.context);
    seq.draft_row_us = (float)sv_cost_context(&p->cost, p->cost.draft_row_us, seq.context);
    seq.width = 1;
    seq.draft_rows = 0;
    seq.probe = false;
    p->seq[p->n++] = seq;
}

struct candidate {
    int mode;
    int32_t k;      /* sequences that draft, in the order of rank */
    int32_t n_rows; /* rows beyond one a sequence */
    int32_t bin;    /* the last bin rows are taken from, */
    int32_t in_bin; /* and how many of it */
    double score, tokens, us;
};

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

/* Sequences that may draft, those that gain most first. */
static int32_t rank_all(struct sv_policy *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n; i++) {
        const struct sv_policy_seq *s = &p->seq[i];
        float *alive = p->alive + (size_t)i * (size_t)p->block;
        if (s->fixed || s->cap < 2)
            continue;
        sv_chance_fill(p, s, alive);
        p->rank[n].i = i;
        p->rank[n].value = 0;
        for (int32_t j = 1; j < s->cap; j++)
            p->rank[n].value += alive[j];
        n++;
    }
    qsort(p->rank, (size_t)n, sizeof *p->rank, by_value);
    return n;
}

struct bins {
    int32_t count[BINS];
    double sum[BINS];
    int32_t block_rows;
    float row_us, draft_us, draft_row_us; /* sums over the sequences in the bins */
};

/* The first k of rank draft, n_rows rows more than one each. */
static struct sv_load load_of(const struct sv_policy *p, const struct candidate *c,
                              const struct bins *b)
{
    struct sv_load l = p->load;
    int32_t draft_rows = c->mode == SV_DRAFT_FULL ? b->block_rows : c->n_rows + c->k;
    l.n_rows += c->n_rows;
    l.row_us += b->row_us / (float)c->k * (float)c->n_rows;
    if (!p->drafts_on_device)
        return l;
    l.n_draft_segs += c->k;
    l.n_draft_out += c->n_rows;
    l.n_draft_rows += draft_rows;
    l.draft_us += b->draft_us + b->draft_row_us / (float)c->k * (float)draft_rows;
    return l;
}

static void try_rows(const struct sv_policy *p, struct candidate c, const struct bins *b,
                     struct candidate *best)
{
    struct sv_load l = load_of(p, &c, b);
    c.us = sv_cost_us(&p->cost, &l);
    c.score = c.tokens / c.us;
    if (c.score > best->score)
        *best = c;
}

/* Walks down the bins; rows of one bin are worth the same, so where the cost bends inside a bin,
 * the bend is a candidate too. */
static void walk(const struct sv_policy *p, int mode, int32_t k, const struct bins *b,
                 double tokens, struct candidate *best)
{
    const struct sv_curve *w = &p->cost.wide;
    int32_t base = p->load.n_rows, rows = 0, grid = 0;
    for (int32_t bin = BINS - 1; bin >= 0; bin--) {
        int32_t n = b->count[bin];
        if (!n)
            continue;
        double each = b->sum[bin] / n;
        struct candidate c = {.mode = mode, .k = k, .bin = bin};
        int32_t paid = p->cost.padded ? p->cost.padded(base + rows) - base - rows : 0;
        if (paid > 0 && paid < n) { /* rows that padding has paid for */
            c.in_bin = paid;
            c.n_rows = rows + paid;
            c.tokens = tokens + each * paid;
            if (c.n_rows >= k)
                try_rows(p, c, b, best);
        }
        while (grid < w->n && w->x[grid] <= base + rows)
            grid++;
        for (; grid < w->n && w->x[grid] < base + rows + n; grid++) {
            c.in_bin = w->x[grid] - base - rows;
            c.n_rows = rows + c.in_bin;
            c.tokens = tokens + each * c.in_bin;
            if (c.n_rows >= k)
                try_rows(p, c, b, best);
        }
        rows += n;
        tokens += b->sum[bin];
        c.in_bin = n;
        c.n_rows = rows;
        c.tokens = tokens;
        if (rows >= k)
            try_rows(p, c, b, best);
    }
}

/* Is there a number of rows for which k drafting sequences could come near what is best so far? All
 * their tokens for the price of one row each is more than any number can bring. */
static bool hopeless(const struct sv_policy *p, int mode, int32_t k, const struct bins *b,
                     double tokens, double gain, const struct candidate *best)
{
    struct candidate c = {.mode = mode, .k = k, .n_rows = k};
    struct sv_load l = load_of(p, &c, b);
    double bound = (tokens + gain) / sv_cost_us(&p->cost, &l);
    return bound <= best->score || bound < 0.85 * p->plain_score;
}

/* All numbers of drafting sequences (powers of two, and all) with all numbers of rows. n are
 * ranked. */
static void search(struct sv_policy *p, int mode, int32_t n, double tokens, struct candidate *best)
{
    struct bins b = {.block_rows = 0};
    double gain = 0;
    for (int32_t k = 1, next = 1; k <= n; k++) {
        const struct sv_policy_seq *s = &p->seq[p->rank[k - 1].i];
        const float *alive = p->alive + (size_t)p->rank[k - 1].i * (size_t)p->block;
        for (int32_t j = 1; j < s->cap; j++) {
            float a = sv_chance_in_mode(p, mode, alive, j);
            int bin = bin_of(a);
            b.count[bin]++;
            b.sum[bin] += (double)a;
            gain += (double)a;
        }
        b.block_rows += s->block;
        b.row_us += s->row_us;
        b.draft_us += s->draft_us;
        b.draft_row_us += s->draft_row_us;
        if (k < next && k < n)
            continue;
        next *= 2;
        if (!hopeless(p, mode, k, &b, tokens, gain, best))
            walk(p, mode, k, &b, tokens, best);
    }
}

static void set_width(struct sv_policy *p, struct sv_policy_seq *s, int32_t width, int mode)
{
    struct sv_load *l = &p->load;
    if (s->width > 1)
        l->n_draft_segs -= s->draft_rows > 0;
    l->n_draft_rows -= s->draft_rows;
    l->n_draft_out -= s->draft_rows ? s->width - 1 : 0;
    l->draft_us -= s->draft_rows ? s->draft_us + s->draft_row_us * (float)s->draft_rows : 0;
    l->n_rows += width - s->width;
    l->row_us += s->row_us * (float)(width - s->width);
    s->width = width;
    s->draft_rows = width < 2 || !p->drafts_on_device ? 0
                    : mode == SV_DRAFT_FULL           ? s->block
                                                      : width;
    if (!s->draft_rows)
        return;
    l->n_draft_segs++;
    l->n_draft_rows += s->draft_rows;
    l->n_draft_out += width - 1;
    l->draft_us += s->draft_us + s->draft_row_us * (float)s->draft_rows;
}

static void apply(struct sv_policy *p, const struct candidate *c)
{
    int32_t left = c->in_bin;
    if (!c->k)
        return;
    for (int32_t r = 0; r < c->k; r++) {
        struct sv_policy_seq *s = &p->seq[p->rank[r].i];
        const float *alive = p->alive + (size_t)p->rank[r].i * (size_t)p->block;
        int32_t width = 1;
        for (int32_t j = 1; j < s->cap; j++) {
            int bin = bin_of(sv_chance_in_mode(p, c->mode, alive, j));
            if (bin < c->bin || (bin == c->bin && !left))
                break;
            left -= bin == c->bin;
            width++;
        }
        set_width(p, s, width, c->mode);
    }
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

/* One sequence tries its whole block when what it would lose has been saved up: its time less what
 * its tokens are worth. Where nobody drafts this finds out whether drafting has become worth while,
 * elsewhere what lies beyond the widths in use. */
static bool probe(struct sv_policy *p, double us, double rate, bool drafting)
{
    struct sv_policy_seq *s = probe_whom(p);
    if (!s)
        return false;
    struct sv_policy_seq was = *s;
    struct sv_load load = p->load;
    float alive[SV_MAX_BLOCK];
    sv_chance_fill(p, s, alive);
    /* Far beyond the width in use there is little to win; a request about which nothing is known
     * shows most with all of its block. */
    int32_t more = s->width + 1 + s->width / 2;
    int mode =
        drafting && s->draft_rows < s->block && p->n_probes % 2 ? SV_DRAFT_SHORT : SV_DRAFT_FULL;
    set_width(p, s, drafting && more < s->cap ? more : s->cap, mode);
    double loss = sv_cost_us(&p->cost, &p->load) - us;
    for (int32_t j = was.width; j < s->width; j++)
        loss -= (double)sv_chance_in_mode(p, mode, alive, j) / rate;
    bool burst = !drafting && was.record->burst;
    if (p->credit_us < loss && !burst) {
        *s = was;
        p->load = load;
        return false;
    }
    p->credit_us -= burst || loss < 0 ? 0 : loss;
    if (!drafting && !burst && p->thrift > THRIFT_LEAST)
        p->thrift *= 0.97;
    s->probe = !drafting;
    s->record->probed = p->n_steps;
    p->n_probes++;
    return true;
}

/* ---------------------------------------------------------------- one step */

/* Tests: every text must be the same under any widths. */
static void choose_randomly(struct sv_policy *p)
{
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        uint32_t most = (uint32_t)(s->cap > 1 ? s->cap : 1);
        int mode = (int)sv_rng_below(p->random, SV_DRAFT_MODES);
        set_width(p, s, 1 + (int32_t)sv_rng_below(p->random, most), mode);
    }
}

/* One sequence a segment, and the requests that asked for a width. Returns the tokens expected of
 * these. */
static double start(struct sv_policy *p)
{
    double tokens = 0;
    for (int32_t i = 0; i < p->n; i++) {
        struct sv_policy_seq *s = &p->seq[i];
        p->load.n_segs++;
        p->load.n_rows++;
        p->load.seg_us += s->seg_us;
        p->load.row_us += s->row_us;
        tokens += 1;
        if (s->fixed < 2 || s->cap < 2)
            continue;
        float alive[SV_MAX_BLOCK];
        set_width(p, s, s->fixed < s->cap ? s->fixed : s->cap, SV_DRAFT_FULL);
        sv_chance_fill(p, s, alive);
        for (int32_t j = 1; j < s->width; j++)
            tokens += (double)sv_chance_in_mode(p, s->fixed < p->block, alive, j);
    }
    return tokens;
}

/* The other way - plain instead of drafting or drafting instead of plain - for a few steps, when
 * what they are thought to lose has been saved up: near a tie often, far from it hardly ever. */
static bool against_odds(struct sv_policy *p, const struct candidate *plain,
                         const struct candidate *best, bool drafting)
{
    const struct candidate *other = drafting ? plain : best, *used = drafting ? best : plain;
    if (!best->k || (p->n_trial && p->trial_drafts == drafting)) {
        p->n_trial -= p->n_trial > 0;
        return false;
    }
    double loss = other->us - other->tokens * used->us / used->tokens;
    loss = loss > 0 ? loss : 0;
    if (!p->n_trial) {
        if ((drafting && p->n_steps - p->last_plain < 64) || p->credit_us < 2 * loss)
            return false;
        p->n_trial = TRIAL;
        p->trial_drafts = !drafting;
        if (!drafting && p->thrift > THRIFT_LEAST)
            p->thrift *= 0.95;
    }
    p->n_trial--;
    p->credit_us -= loss;
    p->n_other++;
    return true;
}

/* A young process knows its table only: more trials at first. */
static double share_for_trials(struct sv_policy *p, bool drafting)
{
    if (drafting)
        p->thrift = THRIFT_MOST / 2;
    return p->thrift +
           (p->n_steps < YOUNG ? THRIFT_YOUNG * (double)(YOUNG - p->n_steps) / YOUNG : 0);
}

static void settle(struct sv_policy *p, const struct candidate *plain, const struct candidate *best,
                   bool beside_prompt)
{
    /* Drafting has to win by more than the table is wrong. */
    bool drafting = best->k && best->score > MARGIN * plain->score;
    if (beside_prompt) { /* no trials: such a step teaches nothing */
        if (drafting)
            apply(p, best);
        p->n_plain += !drafting;
        return;
    }
    const struct candidate *used = drafting ? best : plain;
    p->credit_us += used->us * share_for_trials(p, drafting);
    if (p->credit_us > 50 * used->us)
        p->credit_us = 50 * used->us;
    bool other = against_odds(p, plain, best, drafting);
    if (drafting != other)
        apply(p, best);
    else
        p->last_plain = p->n_steps;
    p->n_plain += drafting == other;
    if (!other)
        probe(p, used->us, used->tokens / used->us, drafting);
}

/* Without any prompt's rows: the best plain step and the best drafting one. */
static void choose_decoding(struct sv_policy *p, double tokens, bool beside_prompt)
{
    struct candidate plain = {.tokens = tokens}, best = {.score = -HUGE_VAL};
    plain.us = sv_cost_us(&p->cost, &p->load);
    if (plain.us <= 0)
        return; /* nothing was measured */
    p->plain_score = plain.score = plain.tokens / plain.us;
    int32_t n = rank_all(p);
    bool both = p->drafts_on_device;
    if (both)
        search(p, SV_DRAFT_SHORT, n, plain.tokens, &best);
    /* A full block costs more; it has to be better to be worth a look. */
    if (!both || p->mode_factor[SV_DRAFT_FULL] > p->mode_factor[SV_DRAFT_SHORT])
        search(p, SV_DRAFT_FULL, n, plain.tokens, &best);
    settle(p, &plain, &best, beside_prompt);
}

void sv_policy_choose(struct sv_policy *p)
{
    p->n_steps++;
    if (p->random) {
        start(p);
        choose_randomly(p);
        return;
    }
    sv_chance_update(p);
    double tokens = start(p);
    if (!p->n)
        return;
    /* Beside a prompt's rows a further row looks cheap, but the time it takes holds the prompt up
     * too: what does not pay alone is left alone. */
    int32_t n_prompt_rows = p->load.n_prompt_rows;
    p->load.n_prompt_rows = 0;
    choose_decoding(p, tokens, n_prompt_rows > 0);
    p->load.n_prompt_rows = n_prompt_rows;
}
