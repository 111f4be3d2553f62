/*
 * sample.h - sampling parameters and logit rules of a request: their ranges, validation, and
 * packing for the device.
 *
 * Called by engine when a request is admitted; serve and cli read the ranges. The distribution
 * itself is computed by the backend's ops (struct sv_sampling and struct sv_logit_rules document
 * it). Must not draw numbers or read logits.
 */
#ifndef SV_SAMPLE_H
#define SV_SAMPLE_H

#include "backend/ops_tokens.h"
#include "base/base.h"
#include "salvo.h"

/* Least and most of a request's numbers: stated here alone, for initialisers of tables. Commands,
 * JSON lines and the server check by them too, to name the field as their user wrote it. */
#define SV_RANGE_TEMPERATURE 0, 100
#define SV_RANGE_TOP_P 0, 1 /* without 0 */
#define SV_RANGE_MIN_P 0, 1
#define SV_RANGE_TOP_K -1, INT32_MAX /* -1 and 0: all */
#define SV_RANGE_PENALTY -2, 2       /* presence, frequency */
#define SV_RANGE_REPETITION 0, 2     /* 0 and 1: off */
#define SV_RANGE_BIAS -100, 100
#define SV_MAX_REQUESTED_IDS 64 /* of log probabilities */
#define SV_MAX_SHOWN_IDS 16

struct sv_range {
    double least, most;
};
/* Refuses a value outside, NaN included, naming the field. */
int sv_sample_in(const char *field, double v, struct sv_range range, struct sv_err *err);

/* Tokens that would end the answer, which are banned among its first min_tokens tokens. */
struct sv_end_ban {
    const int32_t *ids; /* (n) */
    int32_t n, min_tokens;
};

/* Refuses temperature, top_p, min_p and top_k out of range, naming the field. */
int sv_sample_check(const struct sv_request *r, struct sv_err *err);
struct sv_sampling sv_sample_pack(const struct sv_request *r, int32_t vocab_size);
/* Refuses penalties, bias, lists and log probabilities out of range and ids outside the vocabulary,
 * naming the field and the index. */
int sv_rules_check(const struct sv_request *r, const struct sv_end_ban *h, int32_t vocab_size,
                   struct sv_err *err);
struct sv_logit_rules sv_rules_pack(const struct sv_request *r, const struct sv_end_ban *h,
                                    int32_t n_prompt, int32_t vocab_size);
/* The lists as the device has them: n_bad_ids + n_allowed_ids numbers. */
void sv_rules_pack_lists(const struct sv_request *r, int32_t *listed);
bool sv_rules_change_logits(const struct sv_logit_rules *r);
bool sv_rules_need_history(const struct sv_logit_rules *r);
bool sv_sample_is_greedy(const struct sv_sampling *s);

#endif
