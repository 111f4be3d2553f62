/*
 * prune.c - between drafting and verifying: the host reads the drafts and removes rows from the
 * plan, those after a draft that a grammar forbids and those of drafts with low confidence.
 *
 * Called by step.c for sequences under a grammar, and under the width policy, which decides whether
 * pruning is profitable. The target's rows are filled and uploaded afterwards, and its graph is
 * that of the remaining rows. On a device with a queue the previous step may still be unread: the
 * drafting pass is queued after it, and except in timed calibration this is the only place where a
 * step waits before it is enqueued. Must not: change a prompt's rows, or a sequence that a step in
 * flight may have ended.
 */
#include "engine/engine.h"

int sv_prune_open(struct sv_prune *c, struct sv_dev *dev, int32_t cap, struct sv_err *err)
{
    *c = (struct sv_prune){.cap = cap};
    return sv_dev_host_alloc(dev, (void **)&c->ids, (size_t)cap * sizeof *c->ids, err);
}

void sv_prune_close(struct sv_prune *c, struct sv_dev *dev)
{
    sv_dev_host_free(dev, c->ids);
    *c = (struct sv_prune){0};
}

void sv_prune_fill(struct sv_engine *e)
{
    int32_t n = 0;
    for (int32_t s = 0; s < e->plan.n_segs && !e->plan.given; s++) {
        struct sv_plan_seg *g = &e->plan.seg[s];
        const struct sv_seq *q = e->sched.slot[g->slot];
        if (g->kind != SV_SEG_VERIFY || g->n_rows < 2)
            continue;
        if (!g->n_draft_rows) /* else draft_out0 is its offset in the drafting pass */
            g->draft_out0 = n;
        const int32_t n_ids = g->n_drafts > g->n_rows - 1 ? g->n_drafts : g->n_rows - 1;
        n += n_ids;
        SV_REQUIRE(g->draft_out0 + n_ids <= e->prune.cap);
        g->filled = sv_drafter_fill(
            e->drafter, &(struct sv_draft_hint){.request = q->id, .n_tokens = q->n_tokens}, n_ids,
            e->prune.ids + g->draft_out0);
    }
}

static int read_drafts(struct sv_engine *e, struct sv_err *err)
{
    const size_t n = (size_t)e->plan.n_draft_out * sizeof(int32_t);
    int rc = SV_OK;
    if (n) {
        SV_REQUIRE(e->plan.n_draft_out <= e->prune.cap);
        sv_dev_download(e->dev, e->prune.ids, e->batch.row_ids.dev, n);
        if (e->plan.confidence)
            sv_dev_download(e->dev, e->batch.confidence.host, e->batch.confidence.dev, n);
        sv_dev_mark(e->dev, SV_PRUNE_MARK);
        rc = sv_dev_wait(e->dev, SV_PRUNE_MARK, err);
    }
    sv_prune_fill(e);
    return rc;
}

static void keep_rows(struct sv_engine *e, struct sv_plan_seg *g, int32_t n)
{
    SV_REQUIRE(g->kind == SV_SEG_VERIFY && n >= 1 && n <= g->n_rows);
    e->sched.slot[g->slot]->n_rows_ahead -= g->n_rows - n;
    g->n_rows = g->n_logits = n;
}

/* Drafts of segment s from row n on are not verified. They count as not proposed. */
static void refuse(struct sv_engine *e, int32_t s, int32_t n)
{
    struct sv_plan_seg *g = &e->plan.seg[s];
    g->n_drafts = g->n_drafts < n - 1 ? g->n_drafts : n - 1;
    if (n >= g->n_rows)
        return;
    e->stats.n_refused += g->n_rows - n;
    keep_rows(e, g, n);
    g->refused = true;
    if (e->sched.policy)
        sv_policy_narrow(e->sched.policy, g->decode, n);
}

/* A draft that its grammar forbids cannot be accepted, nor can the drafts after it. */
static void prune_illegal(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    for (int32_t s = 0; s < p->n_segs; s++) {
        const struct sv_plan_seg *g = &p->seg[s];
        if (g->kind == SV_SEG_VERIFY)
            refuse(e, s,
                   sv_token_mask_legal(e, g,
                                       g->n_drafts > g->n_rows - 1 ? g->n_drafts : g->n_rows - 1));
    }
}

/* Makes the token masks. A row whose mask would be too expensive, which is rare, is pruned too. */
static void make_masks(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    e->token_masks.n = 0;
    for (int32_t s = 0; s < p->n_segs; s++) {
        struct sv_plan_seg *g = &p->seg[s];
        if (!g->n_logits || !e->sched.slot[g->slot]->matcher)
            continue;
        const int32_t n = sv_token_mask_make(e, g);
        if (n < g->n_logits)
            refuse(e, s, n);
    }
}

static void prune_by_confidence(struct sv_engine *e)
{
    struct sv_policy *policy = e->sched.policy;
    sv_policy_prune(policy, (const float *)(const void *)e->batch.confidence.host);
    for (int32_t s = 0; s < e->plan.n_segs; s++) {
        struct sv_plan_seg *g = &e->plan.seg[s];
        if (g->decode < 0)
            continue;
        const int32_t width = policy->seq[g->decode].width;
        g->refused &= width == g->n_rows;
        keep_rows(e, g, width);
    }
}

int sv_prune_plan(struct sv_engine *e, struct sv_err *err)
{
    struct sv_plan *p = &e->plan;
    int rc = read_drafts(e, err);
    if (rc)
        return rc;
    if (p->masked && e->repair.n_slots)
        rc = sv_draft_repair_plan(e, err);
    if (rc)
        return rc;
    if (p->masked)
        prune_illegal(e);
    if (p->prunes && e->sched.policy) /* calibration runs without a policy */
        prune_by_confidence(e);
    if (p->masked)
        make_masks(e);
    if (e->sched.policy)
        p->load = e->sched.policy->load;
    p->n_rows = p->n_logits = 0;
    for (int32_t s = 0; s < p->n_segs; s++) {
        struct sv_plan_seg *g = &p->seg[s];
        g->row0 = p->n_rows;
        g->logit0 = p->n_logits;
        p->n_rows += g->n_rows;
        p->n_logits += g->n_logits;
    }
    return SV_OK;
}
