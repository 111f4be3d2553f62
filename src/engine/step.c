/*
 * step.c - THE STEP: one target forward over verify rows and prompt chunks together.
 *
 * Called by sv_step_engine, and by calibration and warm-up with plans of their own. sv_engine_step
 * runs nine stages in order, and the wrappers around them. Everything from fill to fetch is
 * enqueued without waiting: lengths, anchors, ids and accept counts are in device memory, so a step
 * can be planned and enqueued before the previous one is read. The host then plans by bounds: a
 * sequence may turn out to have ended, and its results of the next step are dropped. Plain decoding
 * is the same step with width 1. Must not: allocate, wait outside fetch and prune, or branch on
 * whether there is a drafter other than by calling it.
 */
#include "engine/engine.h"

/* The stages. fill is in fill.c, advance in advance.c. */
static bool plan(struct sv_engine *e);           /* host: which sequences, rows and pages */
static void propose(struct sv_engine *e);        /* the drafting pass: draft ids */
static void forward(struct sv_engine *e);        /* the target's pass: all rows, with taps */
static void verify(struct sv_engine *e);         /* accepted lengths and next tokens */
static void commit(struct sv_engine *e);         /* lengths and anchors move */
static void update_context(struct sv_engine *e); /* taps become the drafter's context K/V */
static int fetch(struct sv_engine *e, struct sv_err *err); /* host: results of the oldest step */
/* The wrappers. Graphs are in launch.c, deferred context-KV updates in deferred_kv.c, rows of
 * images in images.c. */
static int prune(struct sv_engine *e, struct sv_err *err); /* steps in two parts */
static void take_snapshots(struct sv_engine *e); /* of states, where an answer passed a boundary */
static void begin_flight(struct sv_engine *e, int64_t start_us); /* running one step ahead */
static void join_flight(struct sv_engine *e);
static bool must_read(const struct sv_engine *e, bool runs);
static int64_t device_us(const struct sv_engine *e);

static sv_stage_fn *const draft_pass[] = {propose, NULL};
static sv_stage_fn *const target_pass[] = {forward, verify, commit, update_context, NULL};

int sv_engine_step(struct sv_engine *e, struct sv_err *err)
{
    int rc = e->failed.code ? sv_engine_failed(e, err) : SV_OK;
    if (!rc)
        sv_images_prepare(e); /* may allocate: before the step, not in it */
    const int64_t start_us = sv_clock_us(), device = device_us(e);
    sv_alloc_guard(true);

    while (!rc && !plan(e)) /* pages are short: the step in flight may free some */
        rc = sv_engine_settle(e, err);
    const bool runs = !rc && e->plan.launch.n_rows;
    if (runs) {
        begin_flight(e, start_us);
        sv_deferred_plan(e);
        sv_step_fill(e);
        sv_launch_draft(e, draft_pass);
        rc = prune(e, err);
    }
    if (runs && !rc) {
        sv_launch_target(e, target_pass);
        take_snapshots(e);
        join_flight(e);
    }
    while (!rc && must_read(e, runs)) {
        rc = fetch(e, err);
        if (!rc)
            sv_step_advance(e);
    }

    sv_alloc_guard(false);
    e->stats.host_us += sv_clock_us() - start_us - (device_us(e) - device);
    return rc;
}

int sv_engine_settle(struct sv_engine *e, struct sv_err *err)
{
    int rc = e->failed.code ? sv_engine_failed(e, err) : SV_OK;
    while (!rc && e->n_flight) {
        rc = fetch(e, err);
        if (!rc)
            sv_step_advance(e);
    }
    return rc;
}

void sv_step_follow(struct sv_engine *e, enum sv_pass_kind kind)
{
    switch (kind) {
    case SV_PASS_DRAFT:
        sv_launch_draft(e, draft_pass);
        break;
    case SV_PASS_TARGET:
        sv_launch_target(e, target_pass);
    }
}

/* ---------------------------------------------------------------- time and failure */

int64_t sv_step_lap(struct sv_engine *e, enum sv_phase phase)
{
    const int64_t now = sv_clock_ns(), spent = now - e->lap_ns;
    e->phase_ns[phase] += spent;
    e->lap_ns = now;
    return spent;
}

static int64_t device_us(const struct sv_engine *e)
{
    return e->stats.draft_us + e->stats.forward_us + e->stats.context_us;
}

int sv_engine_failed(const struct sv_engine *e, struct sv_err *err)
{
    return sv_fail(err, e->failed.code, -1, "the device failed earlier: %s", e->failed.msg);
}

/* After a device failure no state of the running sequences can be trusted. */
static int fail_all(struct sv_engine *e, const struct sv_err *reason, struct sv_err *err)
{
    e->failed = *reason;
    e->n_flight = 0;
    sv_ranks_fail(e, reason->msg);
    for (struct sv_seq *q = e->sched.head; q; q = q->next) {
        if (q->state == SV_SEQ_FINISHED)
            continue;
        sv_seq_finish(q, SV_FINISH_ERROR, e->failed.msg);
        sv_sched_release(&e->sched, &e->cache, q);
    }
    return sv_fail(err, reason->code, -1, "%s", reason->msg);
}

/* ---------------------------------------------------------------- plan */

static void drop_canceled(struct sv_engine *e)
{
    for (struct sv_seq *q = e->sched.head; q; q = q->next) {
        if (!q->cancel || q->state == SV_SEQ_FINISHED)
            continue;
        sv_seq_finish(q, SV_FINISH_CANCELED, NULL);
        sv_deferred_end(e, q);
        sv_sched_release(&e->sched, &e->cache, q);
    }
}

/* False: pages are short and a step is in flight. */
static bool plan(struct sv_engine *e)
{
    e->lap_ns = sv_clock_ns();
    if (!e->plan.given) {
        drop_canceled(e);
        if (!sv_sched_plan(&e->sched, &e->cache, &e->plan, e->n_flight > 0))
            return false;
        sv_logits_plan(e);
    }
    e->plan.two_parts = e->plan.prunes || e->plan.masked;
    e->plan.undrafted = e->drafter == &e->none;
    e->plan.simulated = e->hooks != NULL;
    sv_launch_counts(e);
    sv_step_lap(e, SV_PHASE_PLAN);
    return true;
}

/* ---------------------------------------------------------------- the device's stages */

/* The drafter writes its ids straight into the target's rows. */
static void propose(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_counts *n = &e->plan.launch;
    float *confidence = (float *)(void *)b->confidence.dev;
    sv_drafter_propose(e->drafter,
                       &(struct sv_draft_pass){.rows = {.n_rows = n->n_draft_rows,
                                                        .n_segs = n->n_draft_segs,
                                                        .row_seg = b->d_row_seg.dev,
                                                        .seg_row0 = b->d_seg_row0.dev,
                                                        .seg_slot = b->d_seg_slot.dev,
                                                        .seg_base = b->d_seg_base,
                                                        .row_pos = b->d_row_pos},
                                               .seg_kind = b->d_seg_kind.dev,
                                               .slot_len = e->slot_len,
                                               .slot_anchor = e->slot_anchor,
                                               .slot_sampling = e->slot_sampling,
                                               .row_ids = b->d_row_ids,
                                               .n_out = n->n_draft_out,
                                               .out_row = b->d_out_row.dev,
                                               .out_index = b->d_out_index.dev,
                                               .target_ids = b->row_ids.dev,
                                               .cache = &e->cache,
                                               .acts = &e->acts,
                                               .out = e->draft_out,
                                               .confidence = e->plan.confidence ? confidence : NULL,
                                               .logits = e->logits.logits,
                                               .logit_chunk = e->logits.chunk});
}

/* The device completes ids and positions from its own state. */
static void forward(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_drafter *d = e->drafter;
    struct sv_own_rows own;
    const bool owns = sv_engine_own_rows(e, &own);
    const struct sv_taps taps = {.n = e->plan.no_taps ? 0 : d->n_taps,
                                 .id = d->tap_ids,
                                 .out = e->deferred.now ? e->deferred.taps : e->taps,
                                 .row = e->deferred.now ? e->deferred.tap_row.dev : NULL};
    sv_op_block_ids(e->dev,
                    &(struct sv_p_block_ids){.rows = sv_engine_rows(e),
                                             .row_shift = b->row_rope ? b->row_shift.dev : NULL,
                                             .seg_kind = b->seg_kind.dev,
                                             .slot_len = e->slot_len,
                                             .slot_anchor = e->slot_anchor,
                                             .row_ids = b->row_ids.dev});
    if (owns)
        sv_op_block_ids(e->dev,
                        &(struct sv_p_block_ids){.rows = own.rows, .slot_len = e->slot_len});
    sv_model_forward(&e->model, &e->acts, b->row_ids.dev,
                     &(struct sv_pass){.rows = sv_engine_rows(e),
                                       .most = e->plan.most,
                                       .own = owns ? &own : NULL,
                                       .n_images = e->images.n_rows,
                                       .images = e->images.rows,
                                       .cache = &e->cache,
                                       .taps = taps,
                                       .n_out = e->plan.launch.n_logits + e->plan.n_prompt_logits,
                                       .out_row = b->logit_row.dev,
                                       .out = e->out,
                                       .n_chosen = (uint32_t *)(void *)b->n_chosen.dev});
}

/* The target's choice behind every row, and how many drafts agree. */
static void verify(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    if (e->plan.sampled)
        sv_logits_choose(e);
    else
        sv_model_argmax(&e->model, e->plan.launch.n_logits, e->out, NULL, b->chosen);
    if (e->plan.simulated)
        sv_op_replace_drafts(e->dev, &(struct sv_p_replace_drafts){.rows = sv_engine_rows(e),
                                                                   .seg_kind = b->seg_kind.dev,
                                                                   .seg_logit0 = b->seg_logit0.dev,
                                                                   .chosen = b->chosen,
                                                                   .accept_len = e->accept_len,
                                                                   .row_ids = b->row_ids.dev});
    sv_op_verify(e->dev, &(struct sv_p_verify){.rows = sv_engine_rows(e),
                                               .seg_kind = b->seg_kind.dev,
                                               .seg_logit0 = b->seg_logit0.dev,
                                               .row_ids = b->row_ids.dev,
                                               .chosen = b->chosen,
                                               .n_commit = b->n_commit.dev,
                                               .n_emit = b->n_emit.dev,
                                               .out_tokens = b->out_tokens.dev,
                                               .out_stride = b->out_stride});
}

/* Every cache group keeps exactly the accepted rows. */
static void commit(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    sv_logits_remember(e);
    sv_cache_commit(&e->cache, &(struct sv_p_commit){.n_segs = e->plan.launch.n_segs,
                                                     .seg_slot = b->seg_slot.dev,
                                                     .n_commit = b->n_commit.dev,
                                                     .n_emit = b->n_emit.dev,
                                                     .out_tokens = b->out_tokens.dev,
                                                     .out_stride = b->out_stride,
                                                     .slot_len = e->slot_len,
                                                     .slot_anchor = e->slot_anchor});
}

/* Processes the taps of committed rows; deferred ones are kept instead (deferred_kv.c). */
static void update_context(struct sv_engine *e)
{
    const int64_t start_us = sv_clock_us();
    if (e->plan.no_taps || e->deferred.now)
        return;
    sv_drafter_update_context(e->drafter,
                              &(struct sv_context_pass){.rows = sv_engine_rows(e),
                                                        .n_commit = e->batch.n_commit.dev,
                                                        .taps = e->taps});
    e->stats.context_us += sv_clock_us() - start_us;
}

/* ---------------------------------------------------------------- steps in two parts */

/* The host waits for the drafting pass, which is queued after the step in flight. Drafts that a
 * grammar forbids or that have low confidence are not verified: the target's pass has the remaining
 * rows. */
static int prune(struct sv_engine *e, struct sv_err *err)
{
    struct sv_err reason;
    if (!e->plan.two_parts)
        return SV_OK;
    int rc = sv_prune_plan(e, &reason);
    sv_launch_recount(e);
    e->stats.forward_us += sv_step_lap(e, SV_PHASE_WAIT) / 1000;
    if (rc)
        return fail_all(e, &reason, err);
    sv_step_fill_target(e);
    return SV_OK;
}

/* ---------------------------------------------------------------- snapshots */

static void take_snapshots(struct sv_engine *e)
{
    for (int32_t s = 0; s < e->plan.n_segs; s++)
        if (e->plan.seg[s].snapshot_at) {
            sv_ranks_snapshot(e, s, e->plan.seg[s].slot);
            sv_cache_snapshot_passed(&e->cache, e->plan.seg[s].slot, e->batch.n_commit.dev + s,
                                     e->slot_len);
        }
}

/* ---------------------------------------------------------------- one step ahead */

/* Host arrays and results come in two sets, one for each step that may be in flight. */
static void begin_flight(struct sv_engine *e, int64_t start_us)
{
    SV_REQUIRE(e->n_flight < 2);
    e->plan.start_us = start_us;
    sv_batch_use(&e->batch, (e->first_flight + e->n_flight) % 2);
}

static void swap_plans(struct sv_plan *a, struct sv_plan *b)
{
    struct sv_plan t = *a;
    *a = *b;
    *b = t;
}

/* Called when everything is enqueued: keeps the plan until its results are read. */
static void join_flight(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    sv_dev_download(e->dev, b->host_result + (size_t)b->use * b->result_words, b->dev_result,
                    b->result_words * sizeof(int32_t));
    sv_logits_fetch(e);
    sv_dev_mark(e->dev, b->use);
    sv_step_lap(e, SV_PHASE_BACK);
    swap_plans(&e->plan, &e->flight[b->use]);
    e->plan.given = false;
    e->n_flight++;
}

static bool any_running(const struct sv_engine *e)
{
    for (int32_t i = 0; i < e->sched.n_slots; i++)
        if (e->sched.slot[i])
            return true;
    return false;
}

/* Whether a step in flight is read before the call ends. One step may stay in flight. But log
 * probabilities have one set of host arrays, and the next token masks depend on this step's tokens,
 * so these are read at once; and while no sequence runs, a step in flight would only delay the next
 * call. */
static bool must_read(const struct sv_engine *e, bool runs)
{
    if (!e->n_flight)
        return false;
    const struct sv_plan *newest = &e->flight[(e->first_flight + e->n_flight - 1) % 2];
    const bool at_once = !runs || newest->given || newest->logprobs || newest->masked;
    return e->n_flight > (at_once || !any_running(e) ? 0 : e->depth);
}

static int fetch(struct sv_engine *e, struct sv_err *err)
{
    const int32_t i = e->first_flight;
    struct sv_err reason;
    e->lap_ns = sv_clock_ns();
    swap_plans(&e->plan, &e->flight[i]);
    sv_batch_use(&e->batch, i);
    int rc = sv_dev_wait(e->dev, i, &reason);
    e->stats.forward_us += sv_step_lap(e, SV_PHASE_WAIT) / 1000;
    if (rc)
        return fail_all(e, &reason, err);
    e->first_flight = (i + 1) % 2;
    e->n_flight--;
    sv_ranks_read(e);
    return SV_OK;
}
