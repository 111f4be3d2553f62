/*
 * accept.c - simulated acceptance, as hooks of the step.
 *
 * A drafter cannot know beforehand what a target will say, and one with random weights is never
 * right. So its drafts are replaced once the target has read them and has chosen: the first ones by
 * the target's choices, as many as were drawn, the next one by no token at all. From there on the
 * step verifies, commits and counts them as it does any others. Draws are counter-based: they
 * depend on the profile's seed, the sequence and the number of its block only, so that arms of a
 * benchmark meet the same ones. Must not: change which passes run, or over how many rows.
 */
#include "bench/accept.h"

static uint64_t next_draw(struct sv_sim_accept *a, const struct sv_plan_seg *g)
{
    struct sv_sim_blocks *b = &a->blocks[g->slot];
    if (b->request != g->request)
        *b = (struct sv_sim_blocks){.request = g->request};
    return a->first + b->n++;
}

/* Behind the drafting pass, outside of graphs. Lengths go to an array that only simulations have;
 * of recorded steps the drafter's confidence takes the place of what the pass left. */
static void drafted(void *user)
{
    struct sv_sim_accept *a = user;
    struct sv_engine *e = a->e;
    const struct sv_plan *p = &e->plan;
    const int32_t set = e->batch.use;
    const bool confidence = p->confidence && a->profile->n_steps;
    for (int32_t s = 0; s < p->n_segs; s++) {
        const struct sv_plan_seg *g = &p->seg[s];
        a->len[set][s] = 0;
        if (g->kind != SV_SEG_VERIFY)
            continue;
        const uint64_t draw = next_draw(a, g);
        a->len[set][s] = sv_profile_draw(a->profile, g->request, draw);
        if (confidence)
            sv_profile_confidence(a->profile, g->request, draw, g->n_drafts,
                                  a->confidence[set] + g->draft_out0);
    }
    sv_dev_upload(e->dev, e->accept_len, a->len[set], (size_t)p->n_segs * sizeof(int32_t));
    if (confidence)
        sv_dev_upload(e->dev, e->batch.confidence.dev, a->confidence[set],
                      (size_t)p->n_draft_out * sizeof(float));
}

int sv_sim_accept_open(struct sv_sim_accept *a, struct sv_engine *e, struct sv_err *err)
{
    const size_t n_segs = (size_t)e->batch.max_segs, n_drafts = (size_t)e->batch.max_draft_rows;
    int rc = SV_OK;
    *a = (struct sv_sim_accept){.hooks = {.user = a, .drafted = drafted}, .e = e};
    a->blocks = sv_calloc((size_t)e->sched.n_slots, sizeof *a->blocks);
    if (!a->blocks)
        rc = sv_fail(err, SV_ENOMEM, -1, "simulated acceptance");
    for (int i = 0; i < 2 && !rc; i++) {
        rc = sv_dev_host_alloc(e->dev, (void **)&a->len[i], n_segs * sizeof(int32_t), err);
        if (!rc)
            rc = sv_dev_host_alloc(e->dev, (void **)&a->confidence[i], n_drafts * sizeof(float),
                                   err);
    }
    if (rc)
        sv_sim_accept_close(a);
    return rc;
}

void sv_sim_accept_close(struct sv_sim_accept *a)
{
    if (!a->e)
        return;
    a->e->hooks = NULL;
    sv_dev_sync(a->e->dev, NULL); /* a step that was not read */
    for (int i = 0; i < 2; i++) {
        sv_dev_host_free(a->e->dev, a->len[i]);
        sv_dev_host_free(a->e->dev, a->confidence[i]);
    }
    sv_free(a->blocks);
    *a = (struct sv_sim_accept){0};
}

void sv_sim_accept_set(struct sv_sim_accept *a, const struct sv_accept_profile *profile,
                       uint64_t first)
{
    /* Drawn tokens are not those that the K/V were made of: no prefix may be published. */
    SV_REQUIRE(a->e->n_flight == 0 && (!profile || (!a->e->cache.prefix[0] && a->e->accept_len)));
    a->profile = profile;
    a->e->hooks = profile ? &a->hooks : NULL;
    a->first = first;
    for (int32_t i = 0; i < a->e->sched.n_slots; i++)
        a->blocks[i] = (struct sv_sim_blocks){0};
}
