/*
 * cut.c - between drafting and verifying: rows of drafts the drafter is not sure enough of are
 * taken off the plan.
 *
 * Called by step.c under the width policy, which says what pays. The target's rows are filled and
 * uploaded after it, and its graph is that of the rows left. On a device with a queue the step
 * before may still be unread: the drafting pass stands behind it, and this is the one place where a
 * step waits before it is enqueued. Must not: touch a prompt's rows, or a sequence that another
 * step could have ended meanwhile.
 */
#include "engine/engine.h"

enum { MARK = 2 }; /* 0 and 1 are the steps' */

int sv_cut_open(struct sv_cut *c, struct sv_dev *dev, int32_t cap, struct sv_err *err)
{
    *c = (struct sv_cut){.cap = cap};
    return sv_dev_host_alloc(dev, (void **)&c->ids, (size_t)cap * sizeof *c->ids, err);
}

void sv_cut_close(struct sv_cut *c, struct sv_dev *dev)
{
    sv_dev_host_free(dev, c->ids);
    *c = (struct sv_cut){0};
}

const float *sv_cut_shares(struct sv_engine *e)
{
    float *share = (float *)(void *)e->batch.share.host;
    for (int32_t s = 0; s < e->plan.n_segs && e->profile && e->profile->n_steps; s++) {
        const struct sv_plan_seg *g = &e->plan.seg[s];
        sv_profile_shares(e->profile, g->request, g->draw, g->n_drafts, share + g->draft_out0);
    }
    return share;
}

static int read_drafts(struct sv_engine *e, struct sv_err *err)
{
    const size_t n = (size_t)e->plan.n_draft_out * sizeof(int32_t);
    SV_REQUIRE(e->plan.n_draft_out <= e->cut.cap);
    sv_dev_download(e->dev, e->cut.ids, e->batch.row_ids.dev, n);
    sv_dev_download(e->dev, e->batch.share.host, e->batch.share.dev, n);
    sv_dev_mark(e->dev, MARK);
    return sv_dev_wait(e->dev, MARK, err);
}

int sv_cut_plan(struct sv_engine *e, struct sv_err *err)
{
    struct sv_plan *p = &e->plan;
    struct sv_policy *policy = e->sched.policy;
    int rc = read_drafts(e, err);
    if (rc || !policy)
        return rc; /* without: the cost of steps is being measured */
    sv_policy_cut(policy, sv_cut_shares(e));
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
    return SV_OK;
}
