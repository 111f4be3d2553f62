/*
 * cut.c - between drafting and verifying: rows of drafts the drafter is not sure enough of are taken off the plan.
 *
 * Called by step.c, on devices that compute while they are called, under the width policy, which says what pays.
 * The target's rows are filled and uploaded after it. Must not: touch a prompt's rows, or run while another step
 * is in flight.
 */
#include "engine/engine.h"

int sv_cut_open(struct sv_cut *c, struct sv_dev *dev, int32_t cap, struct sv_err *err)
{
    size_t n = (size_t)cap;
    *c = (struct sv_cut){.cap = cap};
    int rc = sv_dev_host_alloc(dev, (void **)&c->ids, n * sizeof *c->ids, err);
    if (!rc)
        rc = sv_dev_host_alloc(dev, (void **)&c->share, n * sizeof *c->share, err);
    if (!rc)
        rc = sv_dev_alloc(dev, (void **)&c->dev_share, n * sizeof *c->dev_share, err);
    return rc;
}

void sv_cut_close(struct sv_cut *c, struct sv_dev *dev)
{
    sv_dev_host_free(dev, c->ids);
    sv_dev_host_free(dev, c->share);
    sv_dev_free(dev, c->dev_share);
    *c = (struct sv_cut){0};
}

void sv_cut_plan(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    struct sv_policy *policy = e->sched.policy;
    const struct sv_cut *c = &e->cut;
    SV_REQUIRE(p->n_draft_out <= c->cap && e->n_flight == 0);
    sv_dev_download(e->dev, c->ids, e->batch.row_ids.dev, (size_t)p->n_draft_out * sizeof *c->ids);
    sv_dev_download(e->dev, c->share, c->dev_share, (size_t)p->n_draft_out * sizeof *c->share);
    if (!policy)
        return; /* the cost of steps is being measured */
    sv_policy_cut(policy, c->share);
    p->load = policy->load;
    p->n_rows = p->n_logits = 0;
    for (int32_t s = 0; s < p->n_segs; s++) {
        struct sv_plan_seg *g = &p->seg[s];
        if (s < policy->n) { /* decoding segments come first, in the policy's order */
            int32_t width = policy->seq[s].width;
            SV_REQUIRE(g->kind == SV_SEG_VERIFY && width >= 1 && width <= g->n_rows);
            e->sched.slot[g->slot]->n_rows_ahead -= g->n_rows - width;
            g->n_rows = g->n_logits = width;
        }
        g->row0 = p->n_rows;
        g->logit0 = p->n_logits;
        p->n_rows += g->n_rows;
        p->n_logits += g->n_logits;
    }
    p->told.n_rows = p->n_rows;
    p->told.n_logits = p->n_logits;
}
