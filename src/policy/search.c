/*
 * search.c - the best way to share verify rows out over the sequences of a step.
 *
 * Called by policy.c for every choice; one search may serve several. Rows are handed out in the
 * order of their chance to be accepted; what is left is to try numbers of rows, of drafting
 * sequences and both modes against the cost table (docs/width-policy.md). Must not: allocate, learn
 * anything, or look at tokens.
 */
#include "policy/choice.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 64 };
static const double PRUNE_MARGIN = 1.01, PRUNE_NEAR = 0.97;
static const float PRUNE_RATE = 0.125f;

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
    p->searched->ranked = n;
    p->searched->ranked_of = p->n;
    return n;
}

struct bins {
    int32_t count[BINS];
    double sum[BINS];
    int32_t block_rows;
    float row_us, draft_us, draft_row_us; /* sums over the sequences in the bins */
};

/* The first k of rank draft, n_rows rows more than one each. */
static struct sv_load load_of(const struct sv_policy *p, const struct sv_candidate *c,
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

/* Candidates of a size are known, and wrong, together: by rows, in octaves and their halves. */
static int32_t size_of(const struct sv_candidate *c)
{
    const struct sv_size at = sv_cost_size(c->load.n_rows);
    return at.i + (at.t > 0.5);
}

/* Near the number of rows that its size is known by: what is best at the edge of a size says little
 * of it. */
static bool is_typical(const struct sv_candidate *c)
{
    const struct sv_size at = sv_cost_size(c->load.n_rows);
    return fabs(at.t - 0.5) > 0.4;
}

/* What was found so far. */
struct found {
    struct sv_candidate best;
    struct sv_candidate *size; /* (SV_LEVELS) and the best of each size; NULL: nobody asks */
};

static void try_rows(const struct sv_policy *p, struct sv_candidate c, int32_t n_rows,
                     double tokens, const struct bins *b, struct found *found)
{
    if (n_rows < c.k)
        return;
    c.n_rows = n_rows;
    c.tokens = tokens;
    c.load = load_of(p, &c, b);
    c.us = sv_cost_us(&p->cost, &c.load);
    c.score = c.tokens / c.us;
    if (c.score > found->best.score)
        found->best = c;
    struct sv_candidate *size = found->size ? &found->size[size_of(&c)] : NULL;
    if (size && is_typical(&c) && (!size->k || c.score > size->score))
        *size = c;
}

/* Walks down the bins; rows of one bin are worth the same, so where the cost bends inside a bin,
 * the bend is a candidate too. */
static void walk(const struct sv_policy *p, int mode, int32_t k, const struct bins *b,
                 double tokens, struct found *found)
{
    const struct sv_curve *w = &p->cost.wide;
    int32_t base = p->load.n_rows, rows = 0, grid = 0;
    for (int32_t bin = BINS - 1; bin >= 0; bin--) {
        int32_t n = b->count[bin];
        if (!n)
            continue;
        double each = b->sum[bin] / n;
        struct sv_candidate c = {.mode = mode, .k = k, .bin = bin};
        int32_t paid = p->cost.padded ? p->cost.padded(base + rows) - base - rows : 0;
        if (paid > 0 && paid < n) { /* rows that padding has paid for */
            c.in_bin = paid;
            try_rows(p, c, rows + paid, tokens + each * paid, b, found);
        }
        while (grid < w->n && w->x[grid] <= base + rows)
            grid++;
        for (; grid < w->n && w->x[grid] < base + rows + n; grid++) {
            c.in_bin = w->x[grid] - base - rows;
            try_rows(p, c, rows + c.in_bin, tokens + each * c.in_bin, b, found);
        }
        rows += n;
        tokens += b->sum[bin];
        c.in_bin = n;
        try_rows(p, c, rows, tokens, b, found);
    }
}

/* Is there a number of rows for which k drafting sequences could come near what is best so far? All
 * their tokens for the price of one row each is more than any number can bring. */
static bool hopeless(const struct sv_policy *p, int mode, int32_t k, const struct bins *b,
                     double tokens, double gain, double plain_score, const struct found *found)
{
    static const double RIVALS = 0.7;
    const double least = found->best.score * (found->size ? RIVALS : 1);
    struct sv_candidate c = {.mode = mode, .k = k, .n_rows = k};
    struct sv_load l = load_of(p, &c, b);
    double bound = (tokens + gain) / sv_cost_us(&p->cost, &l);
    return bound <= least || bound < 0.85 * plain_score;
}

/* All numbers of drafting sequences (powers of two, and all) with all numbers of rows. n are
 * ranked. */
static void search(struct sv_policy *p, int mode, int32_t n, const struct sv_candidate *plain,
                   struct found *found)
{
    struct bins b = {.block_rows = 0};
    double gain = 0;
    for (int32_t k = 1, next = 1; k <= n; k++) {
        const struct sv_policy_seq *s = &p->seq[p->rank[k - 1].i];
        const float *alive = p->alive + (size_t)p->rank[k - 1].i * (size_t)p->block;
        float a = 1;
        for (int32_t j = 1; j < s->cap; j++) {
            a = sv_chance_in_mode(p, mode, alive, j, a);
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
        if (!hopeless(p, mode, k, &b, plain->tokens, gain, plain->score, found))
            walk(p, mode, k, &b, plain->tokens, found);
    }
}

static struct sv_candidate search_all(struct sv_policy *p, const struct sv_candidate *plain)
{
    enum { RIVALS_EVERY = 4 }; /* searches: the best of each size takes longer to find */
    struct sv_searched *last = p->searched;
    struct found found = {.best = {.score = -HUGE_VAL}};
    struct sv_candidate pruned = found.best;
    int32_t n = rank_all(p);
    if (last->n_searches++ % RIVALS_EVERY == 0) {
        memset(last->size, 0, sizeof last->size);
        found.size = last->size;
        last->looked = p->n;
    }
    bool both = p->drafts_on_device;
    /* A full block costs more; it has to be better to be worth a look. */
    bool full = !both || p->mode_factor[SV_DRAFT_FULL] > p->mode_factor[SV_DRAFT_SHORT];
    for (int mode = SV_DRAFT_FULL; mode <= SV_DRAFT_SHORT; mode++) {
        if (mode == SV_DRAFT_FULL ? !full : !both)
            continue;
        if (p->prunes)
            sv_confidence_search(p, mode, n, plain, &pruned);
        search(p, mode, n, plain, &found);
    }
    const struct sv_candidate best = found.best;
    if (p->prunes && best.k && pruned.k && 2 * n > p->n)
        p->confidence.gain +=
            ((float)(pruned.score / best.score) - p->confidence.gain) * PRUNE_RATE;
    p->confidence.near = pruned.score > PRUNE_NEAR * best.score;
    /* What pruning brings is known less than what the record says. */
    return pruned.score > PRUNE_MARGIN * best.score ? pruned : best;
}

enum { SERVES = 4, ALIKE_SERVES = 8, FAR_SERVES = 32 };

/* It found nothing new again, after so many steps. Where nobody drafts, longer and longer. */
static int32_t longer(const struct sv_policy *p, int32_t serves)
{
    const int32_t most = p->trial.drafted ? ALIKE_SERVES : FAR_SERVES;
    return 2 * serves < most ? 2 * serves : most;
}

static bool serves_on(const struct sv_policy *p, struct sv_searched *last)
{
    const int32_t n = last->n_steps;
    last->n_steps += 1 + p->n_rested;
    return n < last->serves;
}

/* Where the host's time is the step's, one search serves some steps, since it takes as long as a
 * good part of a small model's step: more where it found nothing new, and many while plain decoding
 * is far better. Whom it was made for may be gone: the ranks stay, and chances are looked up again.
 */
struct sv_candidate sv_choice_search(struct sv_policy *p, const struct sv_candidate *plain)
{
    static const double FAR = 0.85, ALIKE = 0.02;
    struct sv_searched *last = p->searched;
    if (p->ahead)
        return search_all(p, plain);
    struct sv_candidate c = last->c;
    if (last->n == p->n) {
        c.load.sampled = p->load.sampled;
        c.tokens += plain->tokens - last->plain_tokens;
        c.us = sv_cost_us(&p->cost, &c.load);
        c.score = c.k ? c.tokens / c.us : -HUGE_VAL;
        if (serves_on(p, last))
            return c;
    } else if (!p->trial.drafted && last->n && sv_policy_about(p->n, last->n) &&
               serves_on(p, last)) {
        return (struct sv_candidate){.score = -HUGE_VAL}; /* some came or went: as far as it was */
    }
    const struct sv_candidate was = c;
    const int32_t was_for = last->serves;
    c = search_all(p, plain);
    bool far = !c.k || c.score < FAR * plain->score;
    bool nothing =
        !p->trial.drafted && sv_policy_about(p->n, last->n) && (!c.k || c.score < plain->score);
    bool alike = last->n == p->n && c.k == was.k && c.mode == was.mode &&
                 (!c.k || fabs(c.score / was.score - 1) < ALIKE);
    last->c = c;
    last->plain_tokens = plain->tokens;
    last->n = p->n;
    last->n_steps = 0;
    last->serves = far ? FAR_SERVES : alike || nothing ? longer(p, was_for) : SERVES;
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

/* As many rows as when the search was made, to whose drafts are likeliest by now. */
static void share_again(struct sv_policy *p, const struct sv_candidate *c, int32_t *bin,
                        int32_t *in_bin)
{
    int32_t count[BINS] = {0}, left = c->n_rows;
    for (int32_t r = 0; r < c->k; r++) {
        const struct sv_policy_seq *s = &p->seq[p->rank[r].i];
        float *alive = p->alive + (size_t)p->rank[r].i * (size_t)p->block;
        if (s->fixed || s->cap < 2)
            continue;
        sv_chance_fill(p, s, alive);
        float a = 1;
        for (int32_t j = 1; j < s->cap; j++)
            count[bin_of(a = sv_chance_in_mode(p, c->mode, alive, j, a))]++;
    }
    for (*bin = BINS - 1; *bin > 0 && left > count[*bin]; (*bin)--)
        left -= count[*bin];
    *in_bin = left;
}

void sv_choice_apply(struct sv_policy *p, const struct sv_candidate *c)
{
    int32_t bin = c->bin, left = c->in_bin;
    if (!c->k)
        return;
    if ((p->searched->n_steps || c == &p->searched->rival) && !c->width)
        share_again(p, c, &bin, &left);
    for (int32_t r = 0; r < c->k; r++) {
        struct sv_policy_seq *s = &p->seq[p->rank[r].i];
        const float *alive = p->alive + (size_t)p->rank[r].i * (size_t)p->block;
        if (s->fixed || s->cap < 2)
            continue; /* somebody else sits there by now */
        int32_t width = c->width < s->cap ? c->width > 1 ? c->width : 1 : s->cap;
        float a = 1;
        for (int32_t j = 1; !c->width && j < s->cap; j++) {
            int at = bin_of(a = sv_chance_in_mode(p, c->mode, alive, j, a));
            if (at < bin || (at == bin && !left))
                break;
            left -= at == bin;
            width++;
        }
        sv_choice_set_width(p, s, width, c->mode);
    }
}
