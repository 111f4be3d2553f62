/*
 * token_logprobs.c - requested log probabilities: of the tokens that a request names, at each place
 * of its answer and its prompt.
 *
 * Called by logits.c as parts of its stages, and by engine.c when a request with such tokens is
 * submitted. The op that reports a row's chosen token runs once more for each requested token, so
 * that a token has the same bits either way. Steps without such requests do not change.
 * Must not: allocate in a step.
 */
#include "engine/engine.h"

#include <string.h>

int sv_token_logprobs_open(struct sv_engine *e, struct sv_err *err)
{
    struct sv_token_logprobs *a = &e->logits.token;
    const struct sv_logit_rules rules = {.n_top = 0};
    const size_t cells = (size_t)SV_MAX_REQUESTED_IDS * (size_t)e->batch.max_rows;
    if (a->host_rows)
        return SV_OK;
    int rc = sv_dev_alloc(e->dev, (void **)&a->rules, sizeof *a->rules, err);
    if (!rc)
        rc = sv_dev_alloc(e->dev, (void **)&a->dev, 2 * cells * sizeof *a->dev, err);
    if (!rc)
        rc = sv_dev_alloc(e->dev, (void **)&a->dev_rows, cells * sizeof *a->dev_rows, err);
    if (!rc)
        rc = sv_dev_host_alloc(e->dev, (void **)&a->host, 2 * cells * sizeof *a->host, err);
    if (!rc)
        rc = sv_dev_host_alloc(e->dev, (void **)&a->host_rows, cells * sizeof *a->host_rows, err);
    if (!rc)
        sv_dev_upload(e->dev, a->rules, &rules, sizeof rules);
    else
        sv_token_logprobs_close(a, e->dev);
    return rc;
}

void sv_token_logprobs_close(struct sv_token_logprobs *a, struct sv_dev *dev)
{
    sv_dev_free(dev, a->rules);
    sv_dev_free(dev, a->dev);
    sv_dev_free(dev, a->dev_rows);
    sv_dev_host_free(dev, a->host);
    sv_dev_host_free(dev, a->host_rows);
    memset(a, 0, sizeof *a);
}

static int32_t n_rows(const struct sv_engine *e)
{
    return e->plan.n_logits + e->plan.n_prompt_logits;
}

void sv_token_logprobs_plan(struct sv_engine *e)
{
    struct sv_plan *p = &e->plan;
    for (int32_t s = 0; s < p->n_segs && p->logprobs; s++) {
        const struct sv_seq *q = e->sched.slot[p->seg[s].slot];
        p->n_requested = q->n_requested > p->n_requested ? q->n_requested : p->n_requested;
    }
}

static void fill_row(struct sv_token_logprobs *a, const struct sv_plan *p, int32_t rows, int32_t i,
                     const struct sv_seq *q)
{
    for (int32_t k = 0; k < p->n_requested; k++) {
        const size_t at = (size_t)k * (size_t)rows + (size_t)i;
        a->host[at] = k < q->n_requested ? q->requested_ids[k] : 0;
        a->host[(size_t)p->n_requested * (size_t)rows + at] = k < q->n_requested ? 0 : -1;
    }
}

/* Exactly the step's rows: such steps are not replayed as graphs, so nothing is padded. */
void sv_token_logprobs_fill(struct sv_engine *e)
{
    struct sv_token_logprobs *a = &e->logits.token;
    const struct sv_plan *p = &e->plan;
    const int32_t rows = n_rows(e);
    if (!p->n_requested)
        return;
    SV_REQUIRE(a->host_rows && p->launch.n_logits == p->n_logits && rows <= e->batch.max_rows);
    for (int32_t s = 0; s < p->n_segs; s++) {
        const struct sv_plan_seg *g = &p->seg[s];
        for (int32_t j = 0; j < g->n_logits; j++)
            fill_row(a, p, rows, g->logit0 + j, e->sched.slot[g->slot]);
    }
    for (int32_t k = 0; k < p->n_prompt_logits; k++)
        fill_row(a, p, rows, p->n_logits + k, e->sched.slot[e->logits.prompt_slot[k]]);
    sv_dev_upload(e->dev, a->dev, a->host,
                  2 * (size_t)p->n_requested * (size_t)rows * sizeof *a->host);
}

void sv_token_logprobs_report(struct sv_engine *e, int32_t i, int32_t n, const float *logits)
{
    const struct sv_logits *lg = &e->logits;
    const struct sv_token_logprobs *a = &lg->token;
    const size_t rows = (size_t)n_rows(e), n_requested = (size_t)e->plan.n_requested;
    for (size_t k = 0; k < n_requested; k++) {
        const size_t at = k * rows + (size_t)i;
        sv_op_logprobs(e->dev, &(struct sv_p_logprobs){.n_rows = n,
                                                       .vocab = lg->vocab,
                                                       .logits = logits,
                                                       .ld = lg->vocab,
                                                       .row_slot = a->dev + n_requested * rows + at,
                                                       .slot_rules = a->rules,
                                                       .token = a->dev + at,
                                                       .out = a->dev_rows + at});
    }
}

struct sv_shared_array sv_token_logprobs_rows(const struct sv_engine *e, int32_t i)
{
    const struct sv_token_logprobs *a = &e->logits.token;
    return (struct sv_shared_array){a->dev_rows + i, sizeof *a->dev_rows,
                                    (size_t)n_rows(e) * sizeof *a->dev_rows, e->plan.n_requested};
}

void sv_token_logprobs_fetch(struct sv_engine *e)
{
    const struct sv_token_logprobs *a = &e->logits.token;
    sv_dev_download(e->dev, a->host_rows, a->dev_rows,
                    (size_t)e->plan.n_requested * (size_t)n_rows(e) * sizeof *a->host_rows);
}

const struct sv_logprob_row *sv_token_logprobs_row(const struct sv_engine *e, int32_t i,
                                                   int32_t *ld)
{
    *ld = n_rows(e);
    return e->plan.n_requested ? e->logits.token.host_rows + i : NULL;
}
