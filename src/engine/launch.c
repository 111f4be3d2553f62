/*
 * launch.c - launches the passes of a step: the counts that kernels get, padded where passes are
 * replayed as graphs, and the key of each graph.
 *
 * Called by step.c. Everything that a launch fixes besides constant pointers is in the key: counts
 * and flags (tests/engine/test_keys.c). Must not: read tokens, or know what a stage does.
 */
#include "engine/engine.h"

/* The number of segments depends on that of the rows alone, which is the graph's key; each segment
 * has at least one row. */
static int32_t max_segs(const struct sv_engine *e, int32_t n_rows)
{
    return n_rows < e->sched.n_slots ? n_rows : e->sched.n_slots;
}

/* Prompt chunks have too many sizes for graphs, except a last chunk of one row, which has the shape
 * of a plain decode row. */
static void pad_target(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    struct sv_counts *t = &p->launch;
    p->replays = e->pads && t->n_rows == t->n_logits && !p->n_prompt_logits && !p->n_requested;
    if (!p->replays)
        return;
    t->n_rows = t->n_logits = sv_batch_bucket(t->n_rows, e->sched.n_slots * e->width);
    t->n_segs = max_segs(e, t->n_rows);
}

static void pad_draft(struct sv_engine *e)
{
    struct sv_counts *t = &e->plan.launch;
    const int32_t most = e->sched.n_slots * e->width;
    if (!e->pads || !t->n_draft_rows)
        return;
    t->n_draft_rows = sv_batch_bucket(t->n_draft_rows, most);
    t->n_draft_out = sv_batch_bucket(t->n_draft_out, most);
    t->n_draft_segs = max_segs(e, t->n_draft_rows);
}

static void set_most(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    if (e->cache.has_state)
        p->most = p->n_rows == p->n_segs ? 1 : p->replays ? e->width : 0;
}

/* Counts that are set already belong to a warm-up, which has padding alone. */
void sv_launch_counts(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    const bool given = p->launch.n_rows;
    if (!given)
        p->launch = (struct sv_counts){.n_segs = p->n_segs,
                                       .n_rows = p->n_rows,
                                       .n_logits = p->n_logits,
                                       .n_draft_segs = p->n_draft_segs,
                                       .n_draft_rows = p->n_draft_rows,
                                       .n_draft_out = p->n_draft_out};
    pad_target(e);
    pad_draft(e);
    if (!given)
        set_most(e);
}

void sv_launch_recount(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    p->launch.n_segs = p->n_segs;
    p->launch.n_rows = p->n_rows;
    p->launch.n_logits = p->n_logits;
    pad_target(e);
    set_most(e);
}

struct sv_rows sv_engine_rows(const struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    return (struct sv_rows){.n_rows = e->plan.launch.n_rows,
                            .n_segs = e->plan.launch.n_segs,
                            .row_seg = b->row_seg.dev,
                            .seg_row0 = b->seg_row0.dev,
                            .seg_slot = b->seg_slot.dev,
                            .seg_base = b->seg_base,
                            .row_pos = b->row_pos,
                            .row_rope = b->row_rope};
}

struct sv_own_place sv_engine_own_place(const struct sv_engine *e, int32_t part)
{
    const struct sv_plan *p = &e->plan;
    const int32_t row0 = p->own_row0[part], seg0 = p->own_seg0[part],
                  slots = (e->sched.n_slots + e->cache.n_parts - 1) / e->cache.n_parts,
                  most = slots * e->width,
                  n_rows = p->launch.n_rows < most ? p->launch.n_rows : most,
                  n_segs = n_rows < slots ? n_rows : slots;
    if (p->replays)
        return (struct sv_own_place){part * n_rows, n_rows, part * (n_segs + 1), n_segs};
    return (struct sv_own_place){row0, p->own_row0[part + 1] - row0, seg0 + part,
                                 p->own_seg0[part + 1] - seg0};
}

bool sv_engine_own_rows(const struct sv_engine *e, struct sv_own_rows *own)
{
    const struct sv_batch *b = &e->batch;
    const int32_t r = sv_dev_ranks(e->dev).rank;
    if (e->cache.n_parts == 1)
        return false;
    const struct sv_own_place at = sv_engine_own_place(e, r);
    *own = (struct sv_own_rows){.at = (const struct sv_slice *)(void *)b->own_at.dev + r,
                                .rows = {.n_rows = at.n_rows,
                                         .n_segs = at.n_segs,
                                         .row_seg = b->own_row_seg.dev + at.row0,
                                         .seg_row0 = b->own_seg_row0.dev + at.seg0,
                                         .seg_slot = b->own_seg_slot.dev + at.seg0,
                                         .seg_base = b->own_seg_base,
                                         .row_pos = b->own_row_pos}};
    return true;
}

/* ---------------------------------------------------------------- graph keys */

enum { DRAFT_BIT = 7, N_FLAGS = 10 };

static uint64_t draft_key(const struct sv_plan *p)
{
    return (uint64_t)p->launch.n_draft_rows << 32 | (uint64_t)p->launch.n_draft_out << 8 |
           1u << DRAFT_BIT | (uint64_t)p->confidence;
}

/* The counts of segments and logit rows follow from that of rows. */
static uint64_t target_key(const struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    const bool flag[N_FLAGS] = {p->sampled,
                                p->ruled,
                                p->remembered,
                                p->logprobs,
                                p->simulated,
                                p->no_taps,
                                e->drafter->n_taps == 0, /* benchmarks remove the drafter */
                                [DRAFT_BIT] = false,
                                p->masked,
                                p->most == 1};
    uint64_t key = (uint64_t)p->launch.n_rows << 32;
    for (int i = 0; i < N_FLAGS; i++)
        key |= (uint64_t)flag[i] << i;
    return key;
}

/* ---------------------------------------------------------------- passes */

struct pass {
    struct sv_engine *e;
    sv_stage_fn *const *stage;
};

static void enqueue(void *user)
{
    const struct pass *p = user;
    for (int i = 0; p->stage[i]; i++)
        p->stage[i](p->e);
}

static void run(struct sv_engine *e, enum sv_pass_kind kind, sv_stage_fn *const stage[],
                bool replay, uint64_t key)
{
    struct pass pass = {e, stage};
    sv_ranks_pass(e, kind);
    if (replay)
        sv_dev_graph_run(e->dev, key, enqueue, &pass);
    else
        enqueue(&pass);
    sv_ranks_passed(e, kind);
}

void sv_launch_draft(struct sv_engine *e, sv_stage_fn *const stage[])
{
    const struct sv_plan *p = &e->plan;
    if (p->timed) {
        sv_dev_sync(e->dev, NULL);
        sv_step_lap(e, SV_PHASE_WAIT);
    }
    if (p->launch.n_draft_rows)
        run(e, SV_PASS_DRAFT, stage, e->pads, draft_key(p));
    if (p->timed)
        sv_dev_sync(e->dev, NULL);
    if (e->hooks)
        e->hooks->drafted(e->hooks->user);
    e->stats.draft_us += sv_step_lap(e, SV_PHASE_DRAFT) / 1000;
}

void sv_launch_target(struct sv_engine *e, sv_stage_fn *const stage[])
{
    const int64_t context_us = e->stats.context_us;
    /* No key contains the addresses and indices of image rows. */
    run(e, SV_PASS_TARGET, stage, e->plan.replays && !e->images.n_rows, target_key(e));
    e->stats.forward_us +=
        sv_step_lap(e, SV_PHASE_TARGET) / 1000 - (e->stats.context_us - context_us);
}
