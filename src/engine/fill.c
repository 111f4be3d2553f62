/*
 * fill.c - stage fill: writes the plan into host arrays, which are uploaded to the device at once.
 *
 * Called by step.c. Lengths, anchors and positions are device state and not filled. Where the host
 * reads the drafts before the target's pass (plan.two_parts), the drafting pass's arrays are
 * uploaded first and the target's after pruning. Must not: decide anything, or write to the set of
 * host arrays of a step in flight.
 */
#include "engine/engine.h"

/* The rows of one segment in the target's batch. */
static void fill_seg(struct sv_engine *e, int32_t s)
{
    struct sv_batch *b = &e->batch;
    const struct sv_plan_seg *g = &e->plan.seg[s];
    const int32_t *tokens = e->sched.slot[g->slot]->tokens;
    b->seg_row0.host[s] = g->row0;
    b->seg_slot.host[s] = g->slot;
    b->seg_kind.host[s] = g->kind;
    b->seg_logit0.host[s] = g->logit0;
    for (int32_t j = 0; j < g->n_rows; j++)
        b->row_seg.host[g->row0 + j] = s;
    for (int32_t j = 0; j < g->n_logits; j++)
        b->logit_row.host[g->logit0 + j] = g->row0 + g->n_rows - g->n_logits + j;
    for (int32_t j = 0; j < g->n_rows; j++) {
        int32_t *id = &b->row_ids.host[g->row0 + j];
        if (e->plan.given)
            *id = sv_plan_given_id(&e->plan, e->model.cfg.vocab_size, g->row0 + j);
        else if (g->kind == SV_SEG_PREFILL)
            *id = tokens[g->first + j];
        else if (j > 0 && (e->plan.two_parts || g->filled))
            *id = e->prune.ids[g->draft_out0 + j - 1];
    }
}

/* Segment number d of the drafting pass. Its ids are written to the target's rows, or contiguously
 * where rows may still be pruned, or not at all. */
static void fill_draft_seg(struct sv_engine *e, const struct sv_plan_seg *g, int32_t d)
{
    struct sv_batch *b = &e->batch;
    const int32_t n_direct = g->filled || e->plan.given ? 0 : g->n_rows - 1;
    b->d_seg_row0.host[d] = g->draft_row0;
    b->d_seg_slot.host[d] = g->slot;
    b->d_seg_kind.host[d] = SV_SEG_DRAFT;
    for (int32_t j = 0; j < g->n_draft_rows; j++)
        b->d_row_seg.host[g->draft_row0 + j] = d;
    for (int32_t j = 0; j < g->n_drafts; j++) {
        b->d_out_row.host[g->draft_out0 + j] = g->draft_row0 + j + 1;
        b->d_out_index.host[g->draft_out0 + j] = e->plan.two_parts ? g->draft_out0 + j
                                                 : j < n_direct    ? g->row0 + j + 1
                                                                   : -1;
    }
}

/* The state of sequences in new slots. A resumed one has an anchor already; for a new prompt its
 * last chunk chooses the anchor. */
static void fill_new_slots(struct sv_engine *e)
{
    for (int32_t slot = 0; slot < e->sched.n_slots; slot++) {
        const struct sv_seq *q = e->sched.slot[slot];
        if (!e->sched.new_slot[slot] || !q)
            continue;
        sv_dev_upload(e->dev, e->slot_len + slot, &q->n_committed, sizeof q->n_committed);
        sv_dev_upload(e->dev, e->slot_anchor + slot, &q->tokens[q->n_tokens - 1], sizeof(int32_t));
        sv_dev_upload(e->dev, e->slot_sampling + slot, &q->sampling, sizeof q->sampling);
        sv_logits_init_slot(e, slot);
        e->sched.new_slot[slot] = false;
    }
    sv_cache_upload(&e->cache);
}

static void fill_draft(struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    for (int32_t s = 0, d = 0; s < p->n_segs; s++)
        if (p->seg[s].n_draft_rows)
            fill_draft_seg(e, &p->seg[s], d++);
}

static void upload(struct sv_engine *e)
{
    struct sv_batch *b = &e->batch;
    sv_dev_upload(e->dev, b->dev_block, b->host_block + (size_t)b->use * b->block_words,
                  b->block_words * sizeof(int32_t));
}

/* The rows of a part as a batch of its own, with padding at the end. */
static void fill_part(struct sv_engine *e, int32_t part)
{
    struct sv_batch *b = &e->batch;
    const struct sv_plan *p = &e->plan;
    const struct sv_own_place at = sv_engine_own_place(e, part);
    const int32_t seg0 = p->own_seg0[part], n_segs = p->own_seg0[part + 1] - seg0,
                  n_rows = p->own_row0[part + 1] - p->own_row0[part];
    SV_REQUIRE(n_rows <= at.n_rows && n_segs <= at.n_segs);
    b->own_at.host[2 * part] = p->own_row0[part];
    b->own_at.host[2 * part + 1] = n_rows;
    for (int32_t s = 0, row = 0; s <= at.n_segs; s++) {
        const struct sv_plan_seg *g = s < n_segs ? &p->seg[seg0 + s] : NULL;
        b->own_seg_row0.host[at.seg0 + s] = row;
        if (s < at.n_segs)
            b->own_seg_slot.host[at.seg0 + s] = g ? g->slot : -1;
        for (int32_t j = 0; g && j < g->n_rows; j++)
            b->own_row_seg.host[at.row0 + row++] = s;
    }
    for (int32_t j = n_rows; j < at.n_rows; j++)
        b->own_row_seg.host[at.row0 + j] = -1;
}

/* The plan has the rows of one part after the other. */
static void fill_own(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    int32_t s = 0, row = 0;
    for (int32_t part = 0; part < e->cache.n_parts; part++) {
        p->own_seg0[part] = s;
        p->own_row0[part] = row;
        for (; s < p->n_segs && sv_cache_part(&e->cache, p->seg[s].slot) == part; s++) {
            SV_REQUIRE(p->seg[s].row0 == row);
            row += p->seg[s].n_rows;
        }
    }
    SV_REQUIRE(s == p->n_segs && row == p->n_rows);
    p->own_seg0[e->cache.n_parts] = s;
    p->own_row0[e->cache.n_parts] = row;
    for (int32_t part = 0; part < e->cache.n_parts; part++)
        fill_part(e, part);
}

void sv_step_fill_target(struct sv_engine *e)
{
    e->images.n_rows = 0;
    for (int32_t s = 0; s < e->plan.n_segs; s++) {
        fill_seg(e, s);
        sv_images_fill(e, &e->plan.seg[s]);
    }
    if (e->cache.n_parts > 1)
        fill_own(e);
    sv_batch_pad(&e->batch, &e->plan);
    sv_logits_fill(e);
    if (e->plan.masked)
        sv_token_mask_fill(e);
    upload(e);
    sv_step_lap(e, SV_PHASE_FILL);
}

void sv_step_fill(struct sv_engine *e)
{
    fill_new_slots(e);
    if (!e->plan.two_parts)
        sv_prune_fill(e);
    fill_draft(e);
    if (!e->plan.two_parts) {
        sv_step_fill_target(e);
    } else if (e->plan.launch.n_draft_rows) {
        sv_batch_pad(&e->batch, &e->plan);
        upload(e);
    }
    sv_step_lap(e, SV_PHASE_FILL);
}
