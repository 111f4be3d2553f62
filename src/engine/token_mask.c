/*
 * token_mask.c - token masks of grammars: how many drafts of a block are legal, and a mask over the
 * logits of every row of a sequence under a grammar.
 *
 * Called by prune.c and step.c, between drafting and the target's pass. A sequence's matcher is at
 * the end of its last token; drafts are tried and rolled back, so row j of a block gets the mask of
 * the text up to its j-th draft, as plain decoding would. If the matcher fails on a draft, the
 * block ends before that draft, and the sequence goes on. Other bans of such a sequence
 * (min_tokens, ignore_eos, bad and allowed tokens) are applied here too and not by the device's
 * rules, because the host must check that some token is left. If none would be, the grammar takes
 * precedence. Must not: allocate after open, or leave a matcher at another position than after the
 * last token.
 */
#include "engine/engine.h"

#include <string.h>

int sv_token_mask_open(struct sv_token_masks *k, struct sv_dev *dev, int32_t vocab,
                       int32_t max_logits, struct sv_err *err)
{
    *k = (struct sv_token_masks){.n_words = sv_mask_words(vocab), .cap = max_logits};
    const size_t n = (size_t)max_logits, mask = (size_t)k->n_words * sizeof *k->host;
    int rc = sv_dev_host_alloc(dev, (void **)&k->host, (n + 1) * mask, err);
    if (!rc)
        rc = sv_dev_alloc(dev, (void **)&k->dev, n * mask, err);
    if (!rc)
        rc = sv_i32_pair_open(&k->row, dev, n, err);
    if (rc)
        sv_token_mask_close(k, dev);
    return rc;
}

void sv_token_mask_close(struct sv_token_masks *k, struct sv_dev *dev)
{
    sv_dev_host_free(dev, k->host);
    sv_dev_host_free(dev, k->row.host);
    sv_dev_free(dev, k->dev);
    sv_dev_free(dev, k->row.dev);
    *k = (struct sv_token_masks){0};
}

/* ---------------------------------------------------------------- drafts */

bool sv_token_mask_is_end(const struct sv_seq *q, int32_t id)
{
    for (int32_t i = 0; i < q->n_ban_ends; i++)
        if (q->ban_ids[i] == id)
            return true;
    return false;
}

/* A draft that ends the answer is not verified: the previous row chooses it. */
int32_t sv_token_mask_legal(const struct sv_engine *e, const struct sv_plan_seg *g,
                            int32_t n_drafts)
{
    const struct sv_seq *q = e->sched.slot[g->slot];
    const int32_t *ids = e->prune.ids + g->draft_out0;
    int32_t n = 0;
    if (!q->matcher)
        return 1 + n_drafts;
    const uint64_t mark = sv_matcher_try(q->matcher);
    while (n < n_drafts && !sv_token_mask_is_end(q, ids[n]) &&
           sv_matcher_advance(q->matcher, ids[n]))
        n++;
    sv_matcher_back(q->matcher, mark);
    return 1 + n;
}

/* ---------------------------------------------------------------- masks */

static bool any(const uint32_t *words, int32_t n)
{
    for (int32_t w = 0; w < n; w++)
        if (words[w])
            return true;
    return false;
}

static void forbid(uint32_t *words, int32_t id)
{
    words[id / 32] &= ~(UINT32_C(1) << id % 32);
}

/* The answer so far, drafts included. */
struct answer {
    const struct sv_seq *q;
    const int32_t *drafts;
    int32_t end; /* index of the next token in the sequence */
};

static bool ends_in(const struct answer *a, const int32_t *ids, int32_t n)
{
    const struct sv_seq *q = a->q;
    const int32_t from = a->end - n;
    for (int32_t k = 0; k < n; k++)
        if (from < q->n_prompt ||
            ids[k] !=
                (from + k < q->n_tokens ? q->tokens[from + k] : a->drafts[from + k - q->n_tokens]))
            return false;
    return true;
}

/* Applies forbidden words and the list of allowed tokens (struct sv_logit_rules). */
static void apply_lists(const struct answer *a, uint32_t *words, uint32_t *scratch, int32_t n_words)
{
    const struct sv_seq *q = a->q;
    const struct sv_logit_rules *r = &q->rules;
    int32_t at = r->n_bad_runs;
    for (int32_t k = 0; k < r->n_bad_runs; k++) {
        const int32_t last = q->listed[k] - 1;
        if (ends_in(a, q->listed + at, last - at))
            forbid(words, q->listed[last]);
        at = last + 1;
    }
    if (!r->n_allowed)
        return;
    memset(scratch, 0, (size_t)n_words * sizeof *scratch);
    for (int32_t k = 0; k < r->n_allowed; k++) {
        const int32_t id = q->listed[at + k];
        scratch[id / 32] |= words[id / 32] & UINT32_C(1) << id % 32;
    }
    memcpy(words, scratch, (size_t)n_words * sizeof *scratch);
}

/* The tokens allowed at the matcher's position. */
static void mask_row(const struct sv_token_masks *k, const struct answer *a, uint32_t *words)
{
    const struct sv_seq *q = a->q;
    const bool early = a->end - q->n_prompt < q->min_tokens;
    const int32_t n_ban = early ? q->n_ban : q->ignore_eos ? q->n_ban_ends : 0;
    sv_matcher_mask(q->matcher, words);
    if (!n_ban && !q->n_listed)
        return;
    for (int32_t i = 0; i < n_ban; i++)
        forbid(words, q->ban_ids[i]);
    apply_lists(a, words, k->host + (size_t)k->cap * (size_t)k->n_words, k->n_words);
    if (!any(words, k->n_words))
        sv_matcher_mask(q->matcher, words);
}

const uint32_t *sv_token_mask_try(struct sv_engine *e, const struct sv_seq *q,
                                  const int32_t *drafts, int32_t n)
{
    mask_row(&e->token_masks, &(struct answer){q, drafts, q->n_tokens + n}, e->token_masks.host);
    return e->token_masks.host;
}

/* Makes the mask of the next row. False: the matcher failed. */
static bool make_row(struct sv_token_masks *k, const struct answer *a)
{
    uint32_t *words = k->host + (size_t)k->n * (size_t)k->n_words;
    SV_REQUIRE(k->n < k->cap);
    mask_row(k, a, words);
    if (!any(words, k->n_words))
        return false;
    k->n++;
    return true;
}

/* The mask of the first row does not depend on drafts: if it fails, its token ends the request
 * (seq.c), as it would without drafts. A failure in a later row only ends the block. */
int32_t sv_token_mask_make(struct sv_engine *e, struct sv_plan_seg *g)
{
    const struct sv_seq *q = e->sched.slot[g->slot];
    struct sv_token_masks *k = &e->token_masks;
    const int32_t *drafts = e->prune.ids + g->draft_out0;
    int32_t n = 1;
    SV_REQUIRE(q->n_tokens_ahead == 1); /* no other step in flight: the last token is known */
    g->mask0 = k->n;
    if (!make_row(k, &(struct answer){q, drafts, q->n_tokens})) {
        g->mask0 = -1;
        return 1;
    }
    const uint64_t mark = sv_matcher_try(q->matcher);
    while (n < g->n_logits && sv_matcher_advance(q->matcher, drafts[n - 1]) &&
           make_row(k, &(struct answer){q, drafts, q->n_tokens + n}))
        n++;
    sv_matcher_back(q->matcher, mark);
    return n;
}

void sv_token_mask_fill(struct sv_engine *e)
{
    struct sv_token_masks *k = &e->token_masks;
    const struct sv_plan *p = &e->plan;
    SV_REQUIRE(p->launch.n_logits <= k->cap);
    for (int32_t i = 0; i < p->launch.n_logits; i++)
        k->row.host[i] = -1;
    for (int32_t s = 0; s < p->n_segs; s++) {
        const struct sv_plan_seg *g = &p->seg[s];
        for (int32_t j = 0; e->sched.slot[g->slot]->matcher && g->mask0 >= 0 && j < g->n_logits;
             j++)
            k->row.host[g->logit0 + j] = g->mask0 + j;
    }
    sv_dev_upload(e->dev, k->row.dev, k->row.host, (size_t)p->launch.n_logits * sizeof(int32_t));
    sv_dev_upload(e->dev, k->dev, k->host, (size_t)k->n * (size_t)k->n_words * sizeof *k->host);
}
