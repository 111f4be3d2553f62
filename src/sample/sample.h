/*
 * sample.h - sampling parameters and logit rules of a request: validation and packing for the
 * device.
 *
 * Called by engine when a request is admitted. The distribution itself is computed by the backend's
 * ops (struct sv_sampling and struct sv_logit_rules document it). Must not draw numbers or look at
 * logits.
 */
#ifndef SV_SAMPLE_H
#define SV_SAMPLE_H

#include "backend/backend.h"
#include "base/base.h"

struct sv_sample_params {
    double temperature; /* 0 = greedy */
    double top_p;       /* (0, 1], 1 = all */
    double min_p;       /* [0, 1], 0 = off */
    int64_t top_k;      /* 0 or -1 = all */
    uint64_t seed;
};

/* What changes logits before the draw (struct sv_logit_rules says how), and what is told about
 * them. */
struct sv_rule_params {
    double presence, frequency;       /* [-2, 2] */
    double repetition;                /* (0, 2]; 0 = 1 = off */
    int32_t repeat_last;              /* it sees so many tokens; 0 = all */
    const int32_t *bad_ids;           /* (n_bad_ids) runs of tokens, each ended by -1 */
    const int32_t *allowed_ids;       /* (n_allowed_ids) 0 = all */
    int32_t n_bad_ids, n_allowed_ids; /* together at most SV_MAX_LISTED */
    const int32_t *bias_ids;          /* (n_bias) */
    const float *bias;                /* (n_bias) [-100, 100] */
    int32_t n_bias;
    const int32_t *ban_ids; /* (n_ban) tokens that must not come among the first min_tokens */
    int32_t n_ban, min_tokens;
    bool logprobs;            /* of any token */
    int32_t n_top;            /* [0, SV_MAX_TOP] */
    const int32_t *asked_ids; /* (n_asked) tokens that are reported in any case */
    int32_t n_asked;          /* [0, SV_MAX_ASKED] */
};
#define SV_MAX_ASKED 64

/* Refuses values out of range, naming the parameter. */
int sv_sample_check(const struct sv_sample_params *p, struct sv_err *err);
struct sv_sampling sv_sample_pack(const struct sv_sample_params *p, int32_t vocab_size);
/* Refuses values out of range and ids outside the vocabulary, naming the parameter and the
 * index. */
int sv_rules_check(const struct sv_rule_params *p, int32_t vocab_size, struct sv_err *err);
struct sv_logit_rules sv_rules_pack(const struct sv_rule_params *p, int32_t n_prompt,
                                    int32_t vocab_size);
/* The lists as the device has them: n_bad_ids + n_allowed_ids numbers. */
void sv_rules_pack_lists(const struct sv_rule_params *p, int32_t *listed);
bool sv_rules_change_logits(const struct sv_logit_rules *r);
bool sv_rules_need_history(const struct sv_logit_rules *r);
bool sv_sample_is_greedy(const struct sv_sampling *s);

#endif
