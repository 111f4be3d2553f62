/*
 * logits.c - the part of the step that needs whole rows of logits: masks, rules (bias, bans,
 * penalties), sampling, log probabilities. Greedy rows without any of these are not handled here.
 *
 * Called by step.c, at the stages of the step, and by engine.c (open, close). The parameters of
 * requests are on the device by slot, uploaded when a slot is assigned, so that nothing waits for
 * the host. Logits exist for a bounded number of rows at a time. Must not: allocate after open, or
 * let a rule depend on a later draft.
 */
#include "engine/engine.h"

#include <string.h>

int sv_logits_open(struct sv_logits *lg, struct sv_dev *dev, int32_t n_slots, int32_t n_positions,
                   int32_t vocab, int32_t chunk, int32_t max_rows, struct sv_err *err)
{
    memset(lg, 0, sizeof *lg);
    lg->vocab = vocab;
    lg->chunk = chunk;
    lg->history_stride = n_positions;
    const size_t cells = (size_t)chunk * (size_t)vocab, slots = (size_t)n_slots;
    const size_t rows = (size_t)max_rows;
    const struct {
        void **p;
        size_t n_bytes;
        bool host;
    } own[] = {
        {(void **)&lg->logits, cells * sizeof *lg->logits, false},
        {(void **)&lg->ruled, cells * sizeof *lg->ruled, false},
        {(void **)&lg->counts, cells * sizeof *lg->counts, false},
        {(void **)&lg->history, slots * (size_t)n_positions * sizeof *lg->history, false},
        {(void **)&lg->slot_rules, slots * sizeof *lg->slot_rules, false},
        {(void **)&lg->bias_ids, slots * SV_MAX_BIAS * sizeof *lg->bias_ids, false},
        {(void **)&lg->bias, slots * SV_MAX_BIAS * sizeof *lg->bias, false},
        {(void **)&lg->ban_ids, slots * SV_MAX_BAN * sizeof *lg->ban_ids, false},
        {(void **)&lg->listed, slots * SV_MAX_LISTED * sizeof *lg->listed, false},
        {(void **)&lg->dev_rows, rows * sizeof *lg->dev_rows, false},
        {(void **)&lg->host_rows, rows * sizeof *lg->host_rows, true},
        {(void **)&lg->host_next, rows * sizeof *lg->host_next, true},
        {(void **)&lg->prompt_slot, rows * sizeof *lg->prompt_slot, true},
        {(void **)&lg->prompt_index, rows * sizeof *lg->prompt_index, true},
    };
    int rc = SV_OK;
    for (size_t i = 0; i < sizeof own / sizeof own[0] && !rc; i++)
        rc = own[i].host ? sv_dev_host_alloc(dev, own[i].p, own[i].n_bytes, err)
                         : sv_dev_alloc(dev, own[i].p, own[i].n_bytes, err);
    if (rc)
        sv_logits_close(lg, dev);
    return rc;
}

void sv_logits_close(struct sv_logits *lg, struct sv_dev *dev)
{
    sv_token_logprobs_close(&lg->token, dev);
    void *dev_mem[] = {lg->logits,   lg->ruled, lg->counts,  lg->history, lg->slot_rules,
                       lg->bias_ids, lg->bias,  lg->ban_ids, lg->listed,  lg->dev_rows};
    void *host_mem[] = {lg->host_rows, lg->host_next, lg->prompt_slot, lg->prompt_index};
    for (size_t i = 0; i < sizeof dev_mem / sizeof dev_mem[0]; i++)
        sv_dev_free(dev, dev_mem[i]);
    for (size_t i = 0; i < sizeof host_mem / sizeof host_mem[0]; i++)
        sv_dev_host_free(dev, host_mem[i]);
    memset(lg, 0, sizeof *lg);
}

/* Rows of a prompt chunk whose next token is the prompt's own. */
static int32_t n_prompt_rows(const struct sv_plan_seg *g, const struct sv_seq *q)
{
    if (!q->wants_prompt_logits || g->kind != SV_SEG_PREFILL)
        return 0;
    int32_t left = q->n_prompt - 1 - g->first;
    return left < 0 ? 0 : left < g->n_rows ? left : g->n_rows;
}

void sv_logits_plan(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    for (int32_t s = 0; s < p->n_segs; s++) {
        const struct sv_plan_seg *g = &p->seg[s];
        const struct sv_seq *q = e->sched.slot[g->slot];
        const int32_t n = n_prompt_rows(g, q);
        p->sampled |= (g->n_logits > 0 && q->needs_logits) || n > 0;
        p->masked |= g->n_logits > 0 && q->matcher;
        p->ruled |= g->n_logits > 0 && sv_rules_change_logits(&q->rules);
        p->remembered |= sv_rules_need_history(&q->rules);
        p->logprobs |= (g->n_logits > 0 && q->wants_logprobs) || n > 0;
        p->n_prompt_logits += n;
    }
    sv_token_logprobs_plan(e);
}

void sv_logits_init_slot(struct sv_engine *e, int32_t slot)
{
    const struct sv_logits *lg = &e->logits;
    const struct sv_seq *q = e->sched.slot[slot];
    const struct sv_logit_rules *r = &q->rules;
    struct sv_logit_rules sent = *r;
    const size_t at = (size_t)slot, id = sizeof(int32_t);
    SV_REQUIRE(q->n_tokens <= lg->history_stride);
    if (q->matcher) /* its masks include these */
        sent.n_ban = sent.n_bad_runs = sent.n_allowed = 0;
    sv_dev_upload(e->dev, lg->slot_rules + at, &sent, sizeof sent);
    sv_dev_upload(e->dev, lg->bias_ids + at * SV_MAX_BIAS, q->bias_ids, (size_t)r->n_bias * id);
    sv_dev_upload(e->dev, lg->bias + at * SV_MAX_BIAS, q->bias, (size_t)r->n_bias * sizeof(float));
    sv_dev_upload(e->dev, lg->ban_ids + at * SV_MAX_BAN, q->ban_ids, (size_t)r->n_ban * id);
    sv_dev_upload(e->dev, lg->listed + at * SV_MAX_LISTED, q->listed, (size_t)q->n_listed * id);
    /* The whole history, since tokens of the prefix cache are in no row. */
    if (sv_rules_need_history(r))
        sv_dev_upload(e->dev, lg->history + at * (size_t)lg->history_stride, q->tokens,
                      (size_t)q->n_tokens * id);
}

/* Logit rows of prompt tokens come after those that choose a token. */
static void fill_prompt_rows(struct sv_engine *e)
{
    struct sv_logits *lg = &e->logits;
    struct sv_batch *b = &e->batch;
    const struct sv_plan *p = &e->plan;
    int32_t k = 0;
    for (int32_t s = 0; s < p->n_segs; s++) {
        const struct sv_plan_seg *g = &p->seg[s];
        const struct sv_seq *q = e->sched.slot[g->slot];
        for (int32_t j = 0; j < n_prompt_rows(g, q); j++, k++) {
            b->logit_row.host[p->n_logits + k] = g->row0 + j;
            lg->host_next[k] = q->tokens[g->first + j + 1];
            lg->prompt_slot[k] = g->slot;
            lg->prompt_index[k] = g->first + j + 1;
        }
    }
    SV_REQUIRE(k == p->n_prompt_logits && p->n_logits + k <= b->max_rows);
    sv_dev_upload(e->dev, b->chosen + p->n_logits, lg->host_next, (size_t)k * sizeof(int32_t));
}

void sv_logits_fill(struct sv_engine *e)
{
    if (e->plan.n_prompt_logits)
        fill_prompt_rows(e);
    sv_token_logprobs_fill(e);
}

/* Chooses the next token of logit rows [i, i + n), whose logits begin at row `at`. */
static void choose_rows(struct sv_engine *e, int32_t i, int32_t n, int32_t at)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_logits *lg = &e->logits;
    const struct sv_plan *p = &e->plan;
    const size_t cells = (size_t)at * (size_t)lg->vocab;
    float *const logits = lg->logits + cells;
    /* Log probabilities are those of the model's own logits: rules change a copy. */
    float *ruled = p->logprobs && (p->masked || p->ruled) ? lg->ruled + cells : logits;
    if (p->masked)
        sv_op_logit_mask(e->dev, &(struct sv_p_logit_mask){.n_rows = n,
                                                           .vocab = lg->vocab,
                                                           .src = logits,
                                                           .dst = ruled,
                                                           .ld = lg->vocab,
                                                           .row_mask = e->token_masks.row.dev + i,
                                                           .masks = e->token_masks.dev});
    if (p->ruled)
        sv_op_logit_rules(e->dev, &(struct sv_p_logit_rules){.rows = sv_engine_rows(e),
                                                             .n_logit_rows = n,
                                                             .vocab = lg->vocab,
                                                             .src = p->masked ? ruled : logits,
                                                             .dst = ruled,
                                                             .ld = lg->vocab,
                                                             .logit_row = b->logit_row.dev + i,
                                                             .row_ids = b->row_ids.dev,
                                                             .slot_rules = lg->slot_rules,
                                                             .bias_ids = lg->bias_ids,
                                                             .bias = lg->bias,
                                                             .ban_ids = lg->ban_ids,
                                                             .listed = lg->listed,
                                                             .history = lg->history,
                                                             .history_stride = lg->history_stride,
                                                             .counts = lg->counts});
    sv_op_sample(e->dev, &(struct sv_p_sample){.n_rows = n,
                                               .vocab = lg->vocab,
                                               .logits = ruled,
                                               .ld = lg->vocab,
                                               .row_slot = b->sample_slot + i,
                                               .row_pos = b->sample_pos + i,
                                               .slot_sampling = e->slot_sampling,
                                               .out = b->chosen + i});
}

static void report_rows(struct sv_engine *e, int32_t i, int32_t n, int32_t at)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_logits *lg = &e->logits;
    const float *const logits = lg->logits + (size_t)at * (size_t)lg->vocab;
    sv_op_logprobs(e->dev, &(struct sv_p_logprobs){.n_rows = n,
                                                   .vocab = lg->vocab,
                                                   .logits = logits,
                                                   .ld = lg->vocab,
                                                   .row_slot = b->sample_slot + i,
                                                   .slot_rules = lg->slot_rules,
                                                   .token = b->chosen + i,
                                                   .out = lg->dev_rows + i});
    if (e->plan.n_requested)
        sv_token_logprobs_report(e, i, n, logits);
}

/* Exchanges the results of rows [i, i + n), each computed by one rank, among all ranks. */
static void share_rows(struct sv_engine *e, int32_t i, int32_t n)
{
    const struct sv_logits *lg = &e->logits;
    const struct sv_plan *p = &e->plan;
    struct sv_p_share_rows share = {.n_rows = n,
                                    .n_arrays = 1,
                                    .array = {{e->batch.chosen + i, sizeof *e->batch.chosen, 0, 1},
                                              {lg->dev_rows + i, sizeof *lg->dev_rows, 0, 1}}};
    share.n_arrays += p->logprobs;
    if (p->n_requested)
        share.array[share.n_arrays++] = sv_token_logprobs_rows(e, i);
    sv_op_share_rows(e->dev, &share);
}

void sv_logits_choose(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    const struct sv_plan *p = &e->plan;
    const int32_t n_logits = p->launch.n_logits, end = n_logits + p->n_prompt_logits,
                  chunk = e->logits.chunk;
    const size_t row = (size_t)e->model.cfg.hidden_size * sv_dtype_bytes(sv_dev_act_dtype(e->dev));
    sv_op_logit_pos(e->dev, &(struct sv_p_logit_pos){.rows = sv_engine_rows(e),
                                                     .n_logit_rows = end,
                                                     .logit_row = b->logit_row.dev,
                                                     .row_slot = b->sample_slot,
                                                     .row_pos = b->sample_pos});
    for (int32_t i = 0; i < end; i += chunk) {
        const int32_t n = end - i < chunk ? end - i : chunk;
        const struct sv_slice own = sv_dealt_rows(e->dev, n);
        const int32_t first = i + own.first;
        const int32_t n_choose = n_logits - first < own.n ? n_logits - first : own.n;
        sv_model_logits(&e->model, n, (const char *)e->out + (size_t)i * row, e->logits.logits);
        if (n_choose > 0)
            choose_rows(e, first, n_choose, own.first);
        if (p->logprobs && own.n)
            report_rows(e, first, own.n, own.first);
        share_rows(e, i, n);
    }
}

/* Appends committed tokens to the history. Called before the lengths advance: the rows begin at the
 * segments' old lengths. */
void sv_logits_remember(struct sv_engine *e)
{
    const struct sv_batch *b = &e->batch;
    if (!e->plan.remembered)
        return;
    sv_op_history(e->dev, &(struct sv_p_history){.rows = sv_engine_rows(e),
                                                 .row_ids = b->row_ids.dev,
                                                 .n_commit = b->n_commit.dev,
                                                 .history = e->logits.history,
                                                 .history_stride = e->logits.history_stride});
}

void sv_logits_fetch(struct sv_engine *e)
{
    const struct sv_plan *p = &e->plan;
    if (p->logprobs)
        sv_dev_download(e->dev, e->logits.host_rows, e->logits.dev_rows,
                        (size_t)(p->n_logits + p->n_prompt_logits) * sizeof *e->logits.host_rows);
    if (p->n_requested)
        sv_token_logprobs_fetch(e);
}

void sv_logits_take(struct sv_engine *e, int32_t s, int32_t n)
{
    const struct sv_plan_seg *g = &e->plan.seg[s];
    struct sv_seq *q = e->sched.slot[g->slot];
    int32_t ld;
    if (!q->wants_logprobs)
        return;
    const struct sv_logprob_row *requested = sv_token_logprobs_row(e, g->logit0 + n, &ld);
    sv_seq_take_logprob(q, &e->logits.host_rows[g->logit0 + n], requested, ld);
}

void sv_logits_take_prompts(struct sv_engine *e)
{
    const struct sv_logits *lg = &e->logits;
    for (int32_t k = 0; k < e->plan.n_prompt_logits; k++) {
        const int32_t i = e->plan.n_logits + k;
        int32_t ld;
        const struct sv_logprob_row *requested = sv_token_logprobs_row(e, i, &ld);
        sv_seq_take_prompt_logprob(e->sched.slot[lg->prompt_slot[k]], lg->prompt_index[k],
                                   &lg->host_rows[i], requested, ld);
    }
}
