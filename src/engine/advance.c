/*
 * advance.c - stage advance: applies the results of a step to the sequences, the statistics and the
 * width policy.
 *
 * Called by step.c once the results are on the host. The plan may be older than the sequences: a
 * sequence that has ended or lost its slot since is skipped. Must not: access the device.
 */
#include "engine/engine.h"

/* The mean answer length is a moving average over about so many answers. */
enum { ANSWERS_REMEMBERED = 16 };

/* Counts a verified block in the statistics of the request, the engine and the width policy. n_kept
 * of its n_emit tokens are in the sequence, which may have ended within the block. */
static void count_verified(struct sv_engine *e, struct sv_seq *q, const struct sv_plan_seg *g,
                           int32_t n_kept, int32_t n_emit)
{
    /* The confidence of a repaired draft is that of another token. */
    const bool has_confidence = e->plan.confidence && g->n_drafts && !g->repaired;
    const float *confidence =
        has_confidence ? (float *)(void *)e->batch.confidence.host + g->draft_out0 : NULL;
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
                                                 .confidence = confidence,
                                                 .n_drafts = g->n_drafts,
                                                 .n_together = e->plan.n_draft_segs});
    if (confidence)
        sv_policy_drafted(e->policy, confidence, g->n_drafts);
}

/* Updates the lengths of a sequence after the step. */
static void advance_lengths(struct sv_engine *e, struct sv_seq *q, int32_t s)
{
    const struct sv_plan_seg *g = &e->plan.seg[s];
    const int32_t n_commit = e->batch.n_commit.host[s], n_emit = e->batch.n_emit.host[s];
    SV_REQUIRE(n_commit >= 1 && n_commit <= g->n_rows);
    SV_REQUIRE(n_emit >= 0 && n_emit <= g->n_rows);
    q->n_committed += n_commit;
    q->n_rows_ahead -= g->n_rows;
    q->n_tokens_ahead -= g->n_logits > 0;
    if (q->n_committed >= q->n_prefill)
        q->state = SV_SEQ_DECODE;
    if (g->kind == SV_SEG_PREFILL && q->n_tokens == q->n_prompt) {
        e->stats.n_prompt_tokens += g->n_rows;
        if (n_emit)
            q->first_us = sv_clock_us();
    }
}

/* Appends the tokens of segment s until one ends the sequence. Returns whether one did. */
static bool append_tokens(struct sv_engine *e, struct sv_seq *q, int32_t s)
{
    const struct sv_batch *b = &e->batch;
    const int32_t *out = b->out_tokens.host + (size_t)s * (size_t)b->out_stride;
    const int32_t n_emit = b->n_emit.host[s];
    int32_t n = 0;
    bool ended = false;
    while (n < n_emit && !ended) {
        ended = sv_seq_append(q, out[n], &e->model.cfg);
        sv_logits_take(e, s, n++);
    }
    e->stats.n_tokens += n;
    if (e->plan.seg[s].kind == SV_SEG_VERIFY)
        count_verified(e, q, &e->plan.seg[s], n, n_emit);
    return ended;
}

static void end_seq(struct sv_engine *e, struct sv_seq *q)
{
    sv_deferred_end(e, q);
    e->sched.usual_answer +=
        (q->n_tokens - q->n_prompt - e->sched.usual_answer) / ANSWERS_REMEMBERED;
    e->sched.usual_prompt +=
        (q->n_prompt - q->n_cached - e->sched.usual_prompt) / ANSWERS_REMEMBERED;
    sv_sched_release(&e->sched, &e->cache, q);
}

static void advance_seg(struct sv_engine *e, int32_t s)
{
    const struct sv_plan_seg *g = &e->plan.seg[s];
    struct sv_seq *q = e->sched.slot[g->slot];
    if (!q || q->id != g->request)
        return; /* the sequence ended while this step was in flight */
    advance_lengths(e, q, s);
    const bool ended = append_tokens(e, q, s);
    const int32_t n_valid = q->n_committed < q->n_tokens ? q->n_committed : q->n_tokens;
    sv_cache_publish(&e->cache, g->slot, sv_seq_keys(q), n_valid);
    /* If a token before the snapshot's position ended the sequence, the snapshot includes rejected
     * text and is not kept. */
    if (q->n_committed - e->batch.n_commit.host[s] < g->snapshot_at && g->snapshot_at <= n_valid)
        sv_cache_passed(&e->cache, g->slot, g->snapshot_at);
    if (ended)
        end_seq(e, q);
    else
        sv_cache_slide(&e->cache, g->slot, q->n_committed);
}

/* How many experts the step that was read chose, over all layers. */
static uint32_t take_chosen(struct sv_engine *e)
{
    const uint32_t before = e->n_chosen;
    e->n_chosen = (uint32_t)*e->batch.n_chosen.host;
    return e->n_chosen - before;
}

/* Counts the bytes read by a pass over n_rows rows (0: no pass) that chose n_chosen experts. */
static void count_reads(struct sv_engine *e, const struct sv_reads *b, int32_t n_rows,
                        int64_t n_chosen)
{
    if (!n_rows)
        return;
    e->stats.weight_bytes +=
        sv_reads_of(b, n_rows) + sv_reads_experts(b, b->experts.bytes, n_chosen);
    e->stats.whole_weight_bytes +=
        b->published + sv_reads_experts(b, b->experts.published, n_chosen);
}

/* Tells the policy the step's time: since it began, or since the previous step was read. */
static void learn_cost(struct sv_engine *e)
{
    const int64_t now = sv_clock_us(), begin = e->plan.start_us;
    if (e->policy)
        sv_cost_learn(&e->policy->cost, &e->plan.load,
                      (double)(now - (begin > e->last_read_us ? begin : e->last_read_us)));
    e->last_read_us = now;
}

void sv_step_advance(struct sv_engine *e)
{
    const uint32_t n_chosen = take_chosen(e);
    int32_t n_accepted = 0;
    if (e->plan.given)
        return;
    sv_logits_take_prompts(e);
    for (int32_t s = 0; s < e->plan.n_segs; s++) {
        n_accepted += e->plan.seg[s].n_drafts ? e->batch.n_emit.host[s] - 1 : 0;
        advance_seg(e, s);
    }
    if (e->plan.expected_accepted > 0)
        sv_policy_brought(e->policy, e->plan.expected_accepted, n_accepted);
    e->stats.n_steps++;
    count_reads(e, &e->target_reads, e->plan.launch.n_rows, n_chosen);
    count_reads(e, &e->draft_reads, e->plan.launch.n_draft_rows, 0);
    learn_cost(e);
    sv_step_lap(e, SV_PHASE_ADVANCE);
}
