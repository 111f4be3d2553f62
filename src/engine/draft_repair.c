/*
 * draft_repair.c - replaces drafts that a grammar forbids by the drafter's best legal token.
 *
 * Called by prune.c, after the drafts have been read and before any are pruned. Only the drafter's
 * first choice for each row is available, so the head's logits of the legal tokens are computed
 * again (sv_op_head_among), in rounds, since the tokens that are legal after a replaced draft
 * depend on it. Where many tokens are legal and the draft is not one of them, the drafter's later
 * drafts are unlikely to fit, and the block ends there. Repaired drafts are verified like all
 * others. Must not: allocate after open, or leave a matcher at another position than after the last
 * token.
 */
#include "engine/engine.h"

enum { MOST_IDS = 256 };

int sv_draft_repair_open(struct sv_draft_repair *t, struct sv_dev *dev, int32_t n_slots,
                         struct sv_err *err)
{
    const size_t n = (size_t)n_slots, n_up = 2 * n + 1 + n * MOST_IDS;
    *t = (struct sv_draft_repair){.n_slots = n_slots};
    int rc = sv_i32_pair_open(&t->up, dev, n_up, err);
    if (!rc)
        rc = sv_i32_pair_open(&t->down, dev, 2 * n, err);
    if (!rc)
        rc = sv_dev_alloc(dev, (void **)&t->logits, n * MOST_IDS * sizeof(float), err);
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&t->at, n * sizeof *t->at, err);
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&t->asks, n * sizeof *t->asks, err);
    if (rc)
        sv_draft_repair_close(t, dev);
    return rc;
}

void sv_draft_repair_close(struct sv_draft_repair *t, struct sv_dev *dev)
{
    sv_dev_host_free(dev, t->up.host);
    sv_dev_host_free(dev, t->down.host);
    sv_dev_host_free(dev, t->at);
    sv_dev_host_free(dev, t->asks);
    sv_dev_free(dev, t->up.dev);
    sv_dev_free(dev, t->down.dev);
    sv_dev_free(dev, t->logits);
    *t = (struct sv_draft_repair){0};
}

/* Lists the ids of the bits set; -1: more than `most`. */
static int32_t list_ids(const uint32_t *words, int32_t n_words, int32_t *ids, int32_t most)
{
    int32_t n = 0;
    for (int32_t w = 0; w < n_words; w++)
        for (uint32_t left = words[w]; left; left &= left - 1) {
            if (n == most)
                return -1;
            ids[n++] = w * 32 + __builtin_ctz(left);
        }
    return n;
}

static void replace(struct sv_engine *e, struct sv_plan_seg *g, int32_t j, int32_t id,
                    float confidence)
{
    const int32_t at = g->draft_out0 + j;
    e->prune.ids[at] = id;
    if (e->plan.confidence)
        ((float *)(void *)e->batch.confidence.host)[at] = confidence;
    e->stats.n_repaired++;
    g->repaired = true;
}

/* Advances from draft at[s] to the next illegal draft with several legal replacements, whose ids go
 * to `ids`. Returns their number; 0: the segment is done. A draft with a single legal replacement
 * is replaced at once. */
static int32_t walk(struct sv_engine *e, int32_t s, int32_t *ids)
{
    struct sv_draft_repair *t = &e->repair;
    struct sv_plan_seg *g = &e->plan.seg[s];
    const struct sv_seq *q = e->sched.slot[g->slot];
    const int32_t *drafts = e->prune.ids + g->draft_out0;
    int32_t n_ids = 0, j = 0;
    const uint64_t mark = sv_matcher_try(q->matcher);
    for (; j < g->n_rows - 1; j++) {
        if (!sv_token_mask_is_end(q, drafts[j]) && sv_matcher_advance(q->matcher, drafts[j]))
            continue;
        if (j < t->at[s])
            break; /* the matcher failed, or the best token ends the answer */
        const uint32_t *words = sv_token_mask_try(e, q, drafts, j);
        n_ids = list_ids(words, e->token_masks.n_words, ids, MOST_IDS);
        t->at[s] = j + 1;
        if (n_ids != 1)
            break;
        n_ids = 0;
        replace(e, g, j--, ids[0], 1);
    }
    sv_matcher_back(q->matcher, mark);
    return n_ids > 0 ? n_ids : 0;
}

/* Arrays of a round on the device. */
struct round {
    int32_t n, n_ids;
};

static struct round ask(struct sv_engine *e)
{
    struct sv_draft_repair *t = &e->repair;
    struct round r = {0, 0};
    int32_t *row = t->up.host, *first = row + t->n_slots, *ids = first + t->n_slots + 1;
    for (int32_t s = 0; s < e->plan.n_segs; s++) {
        const struct sv_plan_seg *g = &e->plan.seg[s];
        if (t->at[s] < 0)
            continue;
        const int32_t n = walk(e, s, ids + r.n_ids);
        if (!n) {
            t->at[s] = -1;
            continue;
        }
        t->asks[r.n] = s;
        row[r.n] = g->draft_out0 + t->at[s] - 1;
        first[r.n++] = r.n_ids;
        r.n_ids += n;
    }
    first[r.n] = r.n_ids;
    return r;
}

static int weigh(struct sv_engine *e, const struct round *r, struct sv_err *err)
{
    const struct sv_draft_repair *t = &e->repair;
    const int32_t *row = t->up.dev, *first = row + t->n_slots, *ids = first + t->n_slots + 1;
    const size_t n_slots = (size_t)t->n_slots, n_up = 2 * n_slots + 1 + (size_t)r->n_ids;
    sv_dev_upload(e->dev, t->up.dev, t->up.host, n_up * sizeof(int32_t));
    sv_op_head_among(
        e->dev, &(struct sv_p_head_among){.n_rows = r->n,
                                          .k = e->model.cfg.hidden_size,
                                          .x = e->draft_out,
                                          .row = row,
                                          .w = e->model.head,
                                          .n_ids = r->n_ids,
                                          .first = first,
                                          .ids = ids,
                                          .logits = t->logits,
                                          .out = t->down.dev,
                                          .confidence = (float *)(void *)(t->down.dev + n_slots)});
    sv_dev_download(e->dev, t->down.host, t->down.dev, 2 * n_slots * sizeof(int32_t));
    sv_dev_mark(e->dev, SV_PRUNE_MARK);
    return sv_dev_wait(e->dev, SV_PRUNE_MARK, err);
}

static bool is_repaired(const struct sv_engine *e, const struct sv_plan_seg *g)
{
    return g->kind == SV_SEG_VERIFY && g->n_draft_rows && g->n_rows > 1 &&
           e->sched.slot[g->slot]->matcher;
}

int sv_draft_repair_plan(struct sv_engine *e, struct sv_err *err)
{
    struct sv_draft_repair *t = &e->repair;
    const float *confidence = (const float *)(const void *)(t->down.host + t->n_slots);
    SV_REQUIRE(e->plan.n_segs <= t->n_slots);
    for (int32_t s = 0; s < e->plan.n_segs; s++)
        t->at[s] = is_repaired(e, &e->plan.seg[s]) ? 0 : -1;
    for (struct round r = ask(e); r.n; r = ask(e)) {
        int rc = weigh(e, &r, err);
        if (rc)
            return rc;
        for (int32_t i = 0; i < r.n; i++) {
            const int32_t s = t->asks[i];
            replace(e, &e->plan.seg[s], t->at[s] - 1, t->down.host[i], confidence[i]);
        }
    }
    return SV_OK;
}
