/*
 * step.c - THE STEP: one target forward over verify rows and prompt chunks together.
 *
 * Called by sv_step_engine. Read it from the end: sv_engine_step is the whole story, enqueue the
 * device's part of it (fill, draft, target_pass), land the host's (fetch, advance). Everything from
 * fill to fetch is enqueued without waiting: lengths, anchors, ids and accept counts live in device
 * memory, so a step can be planned and enqueued before the one before it is read. Then the host
 * plans by what it knows: a sequence may turn out to have ended, and what the next step brings for
 * it is dropped. Under the width policy a step may be enqueued in two parts (cut.c). Plain decoding
 * is the same step with width 1. Must not: allocate, wait outside land and cut.c, or branch on
 * whether there is a drafter other than by calling it.
 */
#include "engine/engine.h"

/* Books the time since *ns on a phase, moves *ns to now; returns the time in ns. */
static int64_t lap(struct sv_engine *e, enum sv_phase phase, int64_t *ns)
{
    int64_t now = sv_clock_ns(), spent = now - *ns;
    e->phase_ns[phase] += spent;
    *ns = now;
    return spent;
}

/* Which sequences run, with which rows, on which pages. False: pages are short and a step is in
 * flight. */
static bool plan(struct sv_engine *e)
{
    int64_t ns = sv_clock_ns();
    for (struct sv_seq *q = e->sched.head; q; q = q->next) {
        if (!q->cancel || q->state == SV_SEQ_FINISHED)
            continue;
        sv_seq_finish(q, SV_FINISH_CANCELED, NULL);
        sv_held_end(e, q);
        sv_sched_unseat(&e->sched, &e->cache, q);
    }
    bool planned = sv_sched_plan(&e->sched, &e->cache, &e->plan, e->n_flight > 0);
    if (planned)
        sv_logits_plan(e);
    lap(e, SV_PHASE_PLAN, &ns);
    return planned;
}

/* Every segment has a row at least. By the rows alone, because they are the graph's key. */
static int32_t most_segs(const struct sv_engine *e, int32_t n_rows)
{
    return n_rows < e->sched.n_slots ? n_rows : e->sched.n_slots;
}

/* The chunks of a prompt come in too many sizes for graphs; a last chunk of one row looks like a
 * block. */
static void tell_target(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    struct sv_counts *t = &p->told;
    p->replays = e->pads && t->n_rows == t->n_logits && !p->n_prompt_logits && !p->n_asked;
    if (!p->replays)
        return;
    t->n_rows = t->n_logits = sv_batch_bucket(t->n_rows, e->sched.n_slots * e->width);
    t->n_segs = most_segs(e, t->n_rows);
}

/* What the device is told: the plan's counts, or, where passes are replayed, the counts of a
 * graph. */
static void tell(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    struct sv_counts *t = &p->told;
    const int32_t most = e->sched.n_slots * e->width;
    if (!t->n_rows)
        *t = (struct sv_counts){.n_segs = p->n_segs,
                                .n_rows = p->n_rows,
                                .n_logits = p->n_logits,
                                .n_draft_segs = p->n_draft_segs,
                                .n_draft_rows = p->n_draft_rows,
                                .n_draft_out = p->n_draft_out};
    tell_target(e);
    if (e->pads && t->n_draft_rows) {
        t->n_draft_rows = sv_batch_bucket(t->n_draft_rows, most);
        t->n_draft_out = sv_batch_bucket(t->n_draft_out, most);
        t->n_draft_segs = most_segs(e, t->n_draft_rows);
    }
}

struct sv_rows sv_engine_rows(const struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    return (struct sv_rows){.n_rows = e->plan.told.n_rows,
                            .n_segs = e->plan.told.n_segs,
                            .row_seg = b->row_seg.dev,
                            .seg_row0 = b->seg_row0.dev,
                            .seg_slot = b->seg_slot.dev,
                            .seg_base = b->seg_base};
}

/* One segment's rows in the target's batch: what the device cannot know, its own state aside. */
static void fill_seg(struct sv_engine *e, int32_t s)
{
    struct sv_batch *b = &e->batch;
    const struct sv_plan_seg *g = &e->plan.seg[s];
    struct sv_seq *q = e->sched.slot[g->slot];
    b->seg_row0.host[s] = g->row0;
    b->seg_slot.host[s] = g->slot;
    b->seg_kind.host[s] = g->kind;
    b->seg_logit0.host[s] = g->logit0;
    for (int32_t j = 0; j < g->n_rows; j++)
        b->row_seg.host[g->row0 + j] = s;
    for (int32_t j = 0; j < g->n_logits; j++)
        b->logit_row.host[g->logit0 + j] = g->row0 + g->n_rows - g->n_logits + j;
    b->forced_len.host[s] =
        e->profile && g->kind == SV_SEG_VERIFY ? sv_profile_draw(e->profile, q->id, g->draw) : 0;
    if (g->kind == SV_SEG_PREFILL) {
        for (int32_t j = 0; j < g->n_rows; j++)
            b->row_ids.host[g->row0 + j] = q->tokens[g->first + j];
        return;
    }
    for (int32_t j = 1; e->plan.reads && j < g->n_rows; j++)
        b->row_ids.host[g->row0 + j] = e->cut.ids[g->draft_out0 + j - 1];
    if (!e->plan.reads && e->drafter && e->drafter->ops->fill && g->n_rows > 1)
        sv_cut_ask_host(e, q, g->n_rows - 1, b->row_ids.host + g->row0 + 1);
}

/* The drafting pass; `d` counts its segments so far. Its ids go straight into the target's rows, or
 * in their own order where rows may still be cut. */
static void fill_draft(struct sv_engine *e, const struct sv_plan_seg *g, int32_t d)
{
    struct sv_batch *b = &e->batch;
    b->d_seg_row0.host[d] = g->draft_row0;
    b->d_seg_slot.host[d] = g->slot;
    b->d_seg_kind.host[d] = SV_SEG_DRAFT;
    for (int32_t j = 0; j < g->n_draft_rows; j++)
        b->d_row_seg.host[g->draft_row0 + j] = d;
    for (int32_t j = 0; j < g->n_drafts; j++) {
        b->d_out_row.host[g->draft_out0 + j] = g->draft_row0 + j + 1;
        b->d_out_index.host[g->draft_out0 + j] = e->plan.reads       ? g->draft_out0 + j
                                                 : j + 1 < g->n_rows ? g->row0 + j + 1
                                                                     : -1;
    }
}

static void upload(struct sv_engine *e)
{
    struct sv_batch *b = &e->batch;
    sv_dev_upload(e->dev, b->dev_block, b->host_block + (size_t)b->use * b->block_words,
                  b->block_words * sizeof(int32_t));
}

/* What the plan's sequences bring with them, and the drafting pass. */
static void fill_ahead(struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    for (int32_t slot = 0; slot < e->sched.n_slots; slot++) {
        const struct sv_seq *q = e->sched.slot[slot];
        if (!e->sched.new_slot[slot] || !q)
            continue;
        /* Who resumes has an anchor already; a prompt's last chunk makes one. */
        sv_dev_upload(e->dev, e->slot_len + slot, &q->n_committed, sizeof q->n_committed);
        sv_dev_upload(e->dev, e->slot_anchor + slot, &q->tokens[q->n_tokens - 1], sizeof(int32_t));
        sv_dev_upload(e->dev, e->slot_sampling + slot, &q->sampling, sizeof q->sampling);
        sv_logits_seat(e, slot);
        e->sched.new_slot[slot] = false;
    }
    sv_cache_upload(&e->cache);
    for (int32_t s = 0, d = 0; s < p->n_segs; s++)
        if (p->seg[s].n_draft_rows)
            fill_draft(e, &p->seg[s], d++);
}

/* Plan to host arrays, one upload. */
static void fill(struct sv_engine *e)
{
    for (int32_t s = 0; s < e->plan.n_segs; s++)
        fill_seg(e, s);
    sv_batch_pad(&e->batch, &e->plan);
    sv_logits_fill(e);
    if (e->plan.masked)
        sv_masks_fill(e);
    upload(e);
}

/* The drafter writes its ids straight into the target's rows. */
static void propose(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_counts *p = &e->plan.told;
    float *shares = (float *)(void *)b->share.dev;
    e->drafter->ops->propose(e->drafter,
                             &(struct sv_draft_pass){.rows = {.n_rows = p->n_draft_rows,
                                                              .n_segs = p->n_draft_segs,
                                                              .row_seg = b->d_row_seg.dev,
                                                              .seg_row0 = b->d_seg_row0.dev,
                                                              .seg_slot = b->d_seg_slot.dev,
                                                              .seg_base = b->d_seg_base},
                                                     .seg_kind = b->d_seg_kind.dev,
                                                     .slot_len = e->slot_len,
                                                     .slot_anchor = e->slot_anchor,
                                                     .row_ids = b->d_row_ids,
                                                     .n_out = p->n_draft_out,
                                                     .out_row = b->d_out_row.dev,
                                                     .out_index = b->d_out_index.dev,
                                                     .target_ids = b->row_ids.dev,
                                                     .cache = &e->cache,
                                                     .acts = &e->acts,
                                                     .out = e->draft_out,
                                                     .share = e->plan.shares ? shares : NULL,
                                                     .logits = e->logits.logits,
                                                     .logit_chunk = e->logits.chunk});
}

/* The device completes ids and positions from its own state. */
static void forward(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_drafter *d = e->drafter;
    const struct sv_taps taps = {.n = d && !e->plan.no_taps ? d->n_taps : 0,
                                 .id = d ? d->tap_ids : NULL,
                                 .out = e->held.now ? e->held.taps : e->taps,
                                 .row = e->held.now ? e->held.tap_row.dev : NULL};
    sv_op_block_ids(e->dev, &(struct sv_p_block_ids){.rows = sv_engine_rows(e),
                                                     .seg_kind = b->seg_kind.dev,
                                                     .slot_len = e->slot_len,
                                                     .slot_anchor = e->slot_anchor,
                                                     .row_ids = b->row_ids.dev});
    sv_model_forward(&e->model, &e->acts, b->row_ids.dev,
                     &(struct sv_pass){.rows = sv_engine_rows(e),
                                       .cache = &e->cache,
                                       .taps = taps,
                                       .n_out = e->plan.told.n_logits + e->plan.n_prompt_logits,
                                       .out_row = b->logit_row.dev,
                                       .out = e->out});
}

/* What the target says comes after every row, and how many drafts agree. */
static void verify(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    if (e->plan.sampled)
        sv_logits_choose(e);
    else
        sv_model_argmax(&e->model, e->plan.told.n_logits, e->out, NULL, b->chosen);
    sv_op_verify(e->dev,
                 &(struct sv_p_verify){.rows = sv_engine_rows(e),
                                       .seg_kind = b->seg_kind.dev,
                                       .seg_logit0 = b->seg_logit0.dev,
                                       .row_ids = b->row_ids.dev,
                                       .chosen = b->chosen,
                                       .n_commit = b->n_commit.dev,
                                       .n_emit = b->n_emit.dev,
                                       .out_tokens = b->out_tokens.dev,
                                       .out_stride = b->out_stride,
                                       .forced_len = e->profile ? b->forced_len.dev : NULL});
}

/* Paged caches keep the accepted rows by length alone: what lies beyond is never read. */
static void commit(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    sv_logits_remember(e);
    sv_op_commit(e->dev, &(struct sv_p_commit){.n_segs = e->plan.told.n_segs,
                                               .seg_slot = b->seg_slot.dev,
                                               .n_commit = b->n_commit.dev,
                                               .n_emit = b->n_emit.dev,
                                               .out_tokens = b->out_tokens.dev,
                                               .out_stride = b->out_stride,
                                               .slot_len = e->slot_len,
                                               .slot_anchor = e->slot_anchor});
}

/* Taps of committed rows become the drafter's context K/V. */
static void observe(struct sv_engine *e)
{
    if (!e->drafter || !e->drafter->ops->observe || e->plan.no_taps)
        return;
    if (e->held.now) {
        sv_held_keep(e);
        return;
    }
    e->drafter->ops->observe(e->drafter,
                             &(struct sv_observe_pass){.rows = sv_engine_rows(e),
                                                       .n_commit = e->batch.n_commit.dev,
                                                       .taps = e->taps,
                                                       .cache = &e->cache});
}

static void draft_pass(void *user)
{
    propose(user);
}

static void target_pass(void *user)
{
    struct sv_engine *e = user;
    forward(e);
    verify(e);
    commit(e);
    int64_t start = sv_clock_us();
    observe(e);
    e->stats.observe_us += sv_clock_us() - start;
}

/* Whatever the launches of a pass are made from besides fixed pointers: counts and flags. */
static uint64_t pass_key(const struct sv_engine *e, bool draft)
{
    const struct sv_plan *p = &e->plan;
    if (draft)
        return (uint64_t)p->told.n_draft_rows << 32 | (uint64_t)p->told.n_draft_out << 8 | 0x80 |
               (uint64_t)p->shares;
    return (uint64_t)p->told.n_rows << 32 | (uint64_t)p->sampled | (uint64_t)p->ruled << 1 |
           (uint64_t)p->remembered << 2 | (uint64_t)p->logprobs << 3 |
           (uint64_t)(e->profile != NULL) << 4 | (uint64_t)p->no_taps << 5 |
           (uint64_t)(e->drafter == NULL) << 6 | /* benchmarks take it away */
           (uint64_t)p->masked << 8;
}

static void draft(struct sv_engine *e, int64_t *ns)
{
    if (e->plan.timed) {
        sv_dev_sync(e->dev, NULL);
        *ns = sv_clock_ns();
    }
    if (e->plan.told.n_draft_rows && e->pads)
        sv_dev_graph_run(e->dev, pass_key(e, true), draft_pass, e);
    else if (e->plan.told.n_draft_rows)
        draft_pass(e);
    if (e->plan.timed)
        sv_dev_sync(e->dev, NULL);
    e->stats.draft_us += lap(e, SV_PHASE_DRAFT, ns) / 1000;
}

/* In two parts: what a grammar forbids or the drafter is not sure enough of is not verified, and
 * the target's pass is that of the rows left. The host waits for the drafting pass, behind the step
 * before. */
static int draft_and_cut(struct sv_engine *e, int64_t *ns, struct sv_err *err)
{
    struct sv_plan *p = &e->plan;
    if (p->told.n_draft_rows) {
        sv_batch_pad(&e->batch, p);
        upload(e);
        lap(e, SV_PHASE_FILL, ns);
        draft(e, ns);
    }
    int rc = sv_cut_plan(e, err);
    p->told.n_segs = p->n_segs;
    p->told.n_rows = p->n_rows;
    p->told.n_logits = p->n_logits;
    tell_target(e);
    e->stats.forward_us += lap(e, SV_PHASE_WAIT, ns) / 1000;
    return rc;
}

/* Everything the device does for the plan at work, with host arrays `set`; the results are on their
 * way. */
static int enqueue(struct sv_engine *e, int32_t set, struct sv_err *err)
{
    struct sv_batch *b = &e->batch;
    int64_t ns = sv_clock_ns(), observed = e->stats.observe_us;
    int rc = SV_OK;
    sv_batch_use(b, set);
    e->plan.reads = e->plan.cuts || e->plan.masked;
    tell(e);
    sv_held_plan(e);
    fill_ahead(e);
    if (e->plan.reads)
        rc = draft_and_cut(e, &ns, err);
    if (rc)
        return rc;
    fill(e);
    lap(e, SV_PHASE_FILL, &ns);
    if (!e->plan.reads)
        draft(e, &ns);
    if (e->plan.replays)
        sv_dev_graph_run(e->dev, pass_key(e, false), target_pass, e);
    else
        target_pass(e);
    e->stats.forward_us += lap(e, SV_PHASE_TARGET, &ns) / 1000 - (e->stats.observe_us - observed);
    sv_dev_download(e->dev, b->host_result + (size_t)set * b->result_words, b->dev_result,
                    b->result_words * sizeof(int32_t));
    sv_logits_fetch(e);
    sv_dev_mark(e->dev, set);
    lap(e, SV_PHASE_BACK, &ns);
    return SV_OK;
}

static int fetch(struct sv_engine *e, int32_t set, struct sv_err *err)
{
    int64_t ns = sv_clock_ns();
    sv_batch_use(&e->batch, set);
    int rc = sv_dev_wait(e->dev, set, err);
    e->stats.forward_us += lap(e, SV_PHASE_WAIT, &ns) / 1000;
    return rc;
}

/* How long answers usually are is an average over about so many of the last ones. */
enum { ANSWERS_REMEMBERED = 16 };

/* A verify block is over: n_kept of its n_emit tokens are in the sequence, which may have ended on
 * the way. For the request's statistics, the engine's, and the width policy, which learns from what
 * the drafts were worth. */
static void count_verified(struct sv_engine *e, struct sv_seq *q, const struct sv_plan_seg *g,
                           int32_t n_kept, int32_t n_emit)
{
    const bool shared = e->plan.shares && g->n_drafts && !g->steered; /* else they are others' */
    const float *share = shared ? (float *)(void *)e->batch.share.host + g->draft_out0 : NULL;
    q->widths[q->n_steps] = (uint16_t)g->n_rows;
    q->accept_lengths[q->n_steps++] = (uint16_t)n_kept;
    q->n_drafted_new += n_kept < n_emit ? n_kept : n_emit - 1;
    sv_accept_add(&e->accept, g->n_rows, n_emit);
    e->stats.width_chosen[g->n_rows]++;
    if (e->policy && (g->n_rows > 1 || g->refused))
        sv_policy_verified(e->policy, &q->record,
                           &(struct sv_verified){.width = g->n_rows,
                                                 .draft_rows = g->n_draft_rows,
                                                 .n_emitted = n_emit,
                                                 .probe = g->probe,
                                                 .refused = g->refused,
                                                 .share = share,
                                                 .n_drafts = g->n_drafts,
                                                 .n_together = e->plan.n_draft_segs});
    if (share)
        sv_policy_drafted(e->policy, share, g->n_drafts);
}

/* The tokens a segment brought, in order, until one ends the sequence. */
static void advance_seg(struct sv_engine *e, int32_t s)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_plan_seg *g = &e->plan.seg[s];
    struct sv_seq *q = e->sched.slot[g->slot];
    if (!q || q->id != g->request)
        return; /* it ended while this step was in flight */
    int32_t n_emit = b->n_emit.host[s];
    const int32_t *out = b->out_tokens.host + (size_t)s * (size_t)b->out_stride;
    SV_REQUIRE(b->n_commit.host[s] >= 1 && b->n_commit.host[s] <= g->n_rows);
    SV_REQUIRE(n_emit >= 0 && n_emit <= g->n_rows);
    q->n_committed += b->n_commit.host[s];
    q->n_rows_ahead -= g->n_rows;
    q->n_tokens_ahead -= g->n_logits > 0;
    if (q->n_committed >= q->n_prefill)
        q->state = SV_SEQ_DECODE;
    if (g->kind == SV_SEG_PREFILL && q->n_tokens == q->n_prompt) {
        e->stats.n_prompt_tokens += g->n_rows;
        if (n_emit)
            q->first_us = sv_clock_us();
    }
    int32_t n = 0;
    bool ended = false;
    while (n < n_emit && !ended) {
        ended = sv_seq_append(q, out[n], &e->model.cfg);
        sv_logits_take(e, s, n++);
    }
    e->stats.n_tokens += n;
    if (g->kind == SV_SEG_VERIFY)
        count_verified(e, q, g, n, n_emit);
    /* What was drawn from a profile is not what the K/V were made of. */
    if (!e->profile)
        sv_cache_publish(&e->cache, g->slot, q->tokens,
                         q->n_committed < q->n_tokens ? q->n_committed : q->n_tokens);
    if (!ended) {
        sv_cache_slide(&e->cache, g->slot, q->n_committed);
        return;
    }
    sv_held_end(e, q);
    e->sched.usual_answer +=
        (q->n_tokens - q->n_prompt - e->sched.usual_answer) / ANSWERS_REMEMBERED;
    e->sched.usual_prompt +=
        (q->n_prompt - q->n_cached - e->sched.usual_prompt) / ANSWERS_REMEMBERED;
    sv_sched_unseat(&e->sched, &e->cache, q);
}

/* A pass over so many rows, 0 = there was none. */
static void count_reads(struct sv_engine *e, const struct sv_read_bytes *b, int32_t n_rows)
{
    if (!n_rows)
        return;
    e->stats.weight_bytes += sv_dev_read_of(e->dev, b, n_rows);
    e->stats.whole_weight_bytes += b->whole;
}

static void advance(struct sv_engine *e)
{
    int64_t ns = sv_clock_ns();
    int32_t brought = 0;
    sv_logits_take_prompts(e);
    if (e->plan.shares)
        sv_cut_shares(e);
    for (int32_t s = 0; s < e->plan.n_segs; s++) {
        brought += e->plan.seg[s].n_drafts ? e->batch.n_emit.host[s] - 1 : 0;
        advance_seg(e, s);
    }
    if (e->plan.promised > 0)
        sv_policy_brought(e->policy, e->plan.promised, brought);
    e->stats.n_steps++;
    count_reads(e, &e->target_reads, e->plan.told.n_rows);
    count_reads(e, &e->draft_reads, e->plan.told.n_draft_rows);
    lap(e, SV_PHASE_ADVANCE, &ns);
}

int sv_engine_failed(const struct sv_engine *e, struct sv_err *err)
{
    return sv_fail(err, e->failed.code, -1, "the device failed earlier: %s", e->failed.msg);
}

/* After a device failure nothing of the running sequences can be trusted. */
static int fail_all(struct sv_engine *e, const struct sv_err *why, struct sv_err *err)
{
    e->failed = *why;
    e->n_flight = 0;
    for (struct sv_seq *q = e->sched.head; q; q = q->next) {
        if (q->state == SV_SEQ_FINISHED)
            continue;
        sv_seq_finish(q, SV_FINISH_ERROR, e->failed.msg);
        sv_sched_unseat(&e->sched, &e->cache, q);
    }
    return sv_fail(err, why->code, -1, "%s", why->msg);
}

int sv_engine_run_plan(struct sv_engine *e, struct sv_err *err)
{
    SV_REQUIRE(e->n_flight == 0);
    int rc = enqueue(e, 0, err);
    return rc ? rc : fetch(e, 0, err);
}

static void swap_plans(struct sv_plan *a, struct sv_plan *b)
{
    struct sv_plan t = *a;
    *a = *b;
    *b = t;
}

static int launch(struct sv_engine *e, int64_t start_us, struct sv_err *err)
{
    int32_t i = (e->first_flight + e->n_flight) % 2;
    struct sv_err why;
    SV_REQUIRE(e->n_flight < 2);
    if (enqueue(e, i, &why))
        return fail_all(e, &why, err);
    swap_plans(&e->plan, &e->flight[i].plan);
    e->flight[i].start_us = start_us;
    e->n_flight++;
    return SV_OK;
}

/* Reads the oldest step in flight. */
static int land(struct sv_engine *e, struct sv_err *err)
{
    int32_t i = e->first_flight;
    struct sv_err why;
    swap_plans(&e->plan, &e->flight[i].plan);
    if (fetch(e, i, &why))
        return fail_all(e, &why, err);
    e->first_flight = (i + 1) % 2;
    e->n_flight--;
    advance(e);
    int64_t now = sv_clock_us(), start = e->flight[i].start_us;
    if (e->policy)
        sv_cost_learn(&e->policy->cost, &e->plan.load,
                      (double)(now - (start > e->landed_us ? start : e->landed_us)));
    e->landed_us = now;
    if (e->on_step)
        e->on_step(e->step_user);
    return SV_OK;
}

/* While nobody runs, a step in flight is only in the way of the next call. */
static bool anybody_runs(const struct sv_engine *e)
{
    for (int32_t i = 0; i < e->sched.n_slots; i++)
        if (e->sched.slot[i])
            return true;
    return false;
}

static int64_t device_us(const struct sv_engine *e)
{
    return e->stats.draft_us + e->stats.forward_us + e->stats.observe_us;
}

int sv_engine_settle(struct sv_engine *e, struct sv_err *err)
{
    int rc = e->failed.code ? sv_engine_failed(e, err) : SV_OK;
    while (!rc && e->n_flight)
        rc = land(e, err);
    return rc;
}

int sv_engine_step(struct sv_engine *e, struct sv_err *err)
{
    if (e->failed.code)
        return sv_engine_failed(e, err);
    int64_t start = sv_clock_us(), device = device_us(e);
    int rc = SV_OK, depth = 0;
    sv_alloc_guard(true);
    while (!rc && !plan(e))
        rc = land(e, err);
    if (!rc && e->plan.n_rows) {
        /* Log probabilities have one set of host arrays, and the next masks follow from the tokens
         * of this step: it is read at once. */
        depth = e->plan.logprobs || e->plan.masked ? 0 : e->depth;
        rc = launch(e, start, err);
    }
    while (!rc && e->n_flight > (anybody_runs(e) ? depth : 0))
        rc = land(e, err);
    sv_alloc_guard(false);
    e->stats.host_us += sv_clock_us() - start - (device_us(e) - device);
    return rc;
}
