/*
 * logits.h - whole rows of logits: logit rules, sampling, log probabilities.
 *
 * Called by the step, at the stages noted below. Device-resident by slot. Must not: read
 * logits on the host.
 */
#ifndef SV_ENGINE_LOGITS_H
#define SV_ENGINE_LOGITS_H

#include "backend/ops_tokens.h"
#include "base/base.h"

/* token_logprobs.c: requested log probabilities; opened by the first request with some. */
struct sv_token_logprobs {
    struct sv_logit_rules *rules; /* device, (1) report the token alone, no alternatives */
    /* (2, n_requested, rows of the step) tokens; slot 0, or -1 where a row has fewer */
    int32_t *host, *dev;
    struct sv_logprob_row *dev_rows, *host_rows; /* (n_requested, rows of the step) */
};
struct sv_engine;
int sv_token_logprobs_open(struct sv_engine *e, struct sv_err *err); /* may be called repeatedly */
void sv_token_logprobs_close(struct sv_token_logprobs *a, struct sv_dev *dev);
void sv_token_logprobs_plan(struct sv_engine *e); /* once n_prompt_logits is known */
void sv_token_logprobs_fill(struct sv_engine *e); /* once the rows' sequences are known */
/* Reports logit rows [i, i + n), whose logits are given; rows: the array that ranks exchange, of
 * rows from i on. */
void sv_token_logprobs_report(struct sv_engine *e, int32_t i, int32_t n, const float *logits);
struct sv_shared_array sv_token_logprobs_rows(const struct sv_engine *e, int32_t i);
void sv_token_logprobs_fetch(struct sv_engine *e);
/* After fetch: the entry of logit row i and the first token; each further token's is *ld entries
 * later. */
const struct sv_logprob_row *sv_token_logprobs_row(const struct sv_engine *e, int32_t i,
                                                   int32_t *ld);

/* logits.c: logit rules and log probabilities, device-resident by slot. */
struct sv_logits {
    int32_t vocab, chunk; /* logit rows that exist at a time */
    int32_t history_stride;
    float *logits, *ruled;             /* device, (chunk, vocab): of the model; after the rules */
    uint32_t *counts;                  /* device, (chunk, vocab), zero between calls */
    int32_t *history;                  /* device, (n_slots, history_stride) */
    struct sv_logit_rules *slot_rules; /* device, (n_slots) */
    int32_t *bias_ids, *ban_ids;       /* device, (n_slots, SV_MAX_BIAS), (n_slots, SV_MAX_BAN) */
    int32_t *listed;                   /* device, (n_slots, SV_MAX_LISTED) */
    float *bias;
    struct sv_logprob_row *dev_rows, *host_rows; /* (max_rows) log probabilities by logit row */
    int32_t *host_next; /* (max_rows) the prompt's next token of a prompt logit row */
    int32_t *prompt_slot, *prompt_index; /* host, (max_rows) slot, index of the prompt token */
    struct sv_token_logprobs token;
};
int sv_logits_open(struct sv_logits *lg, struct sv_dev *dev, int32_t n_slots, int32_t n_positions,
                   int32_t vocab, int32_t chunk, int32_t max_rows, struct sv_err *err);
void sv_logits_close(struct sv_logits *lg, struct sv_dev *dev);
/* Called at these stages of the step: */
void sv_logits_plan(struct sv_engine *e);
/* fill, for a slot with a new sequence, before the upload */
void sv_logits_init_slot(struct sv_engine *e, int32_t slot);
void sv_logits_fill(struct sv_engine *e);
void sv_logits_choose(struct sv_engine *e);   /* verify, when plan.sampled */
void sv_logits_remember(struct sv_engine *e); /* commit */
void sv_logits_fetch(struct sv_engine *e);
/* advance: emitted token n of segment s has been appended; all prompt rows of the step. */
void sv_logits_take(struct sv_engine *e, int32_t s, int32_t n);
void sv_logits_take_prompts(struct sv_engine *e);

#endif
