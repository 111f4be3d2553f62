/*
 * rules.c - validation and packing of penalties, bias, bans and what is reported of logits. Called
 * through sample.h when a request is submitted. Names the fields as salvo.h does.
 */
#include "sample/sample.h"

static bool wants_logprobs(const struct sv_request *r)
{
    return r->logprobs || r->prompt_logprobs;
}

static int check_penalties(const struct sv_request *r, struct sv_err *err)
{
    const struct sv_range penalty = {SV_RANGE_PENALTY}, repetition = {SV_RANGE_REPETITION};
    int rc = sv_sample_in("presence_penalty", r->presence_penalty, penalty, err);
    if (!rc)
        rc = sv_sample_in("frequency_penalty", r->frequency_penalty, penalty, err);
    if (!rc)
        rc = sv_sample_in("repetition_penalty", r->repetition_penalty, repetition, err);
    if (rc)
        return rc;
    if (r->repetition_last_n < 0)
        return sv_fail(err, SV_EINVAL, -1, "repetition_last_n must not be negative, but is %d",
                       r->repetition_last_n);
    /* Smaller ones are 0 as a float, which would mean "off". */
    if (r->repetition_penalty > 0 && r->repetition_penalty < 1e-30)
        return sv_fail(err, SV_EINVAL, -1, "repetition_penalty %g is too small",
                       r->repetition_penalty);
    return SV_OK;
}

static int check_bias(const struct sv_request *r, int32_t vocab_size, struct sv_err *err)
{
    const struct sv_range range = {SV_RANGE_BIAS};
    if (r->n_bias < 0 || r->n_bias > SV_MAX_BIAS)
        return sv_fail(err, SV_EINVAL, -1, "n_bias must be in [0, %d], not %d", SV_MAX_BIAS,
                       r->n_bias);
    if (r->n_bias && (!r->bias_ids || !r->bias))
        return sv_fail(err, SV_EINVAL, -1, "bias_ids and bias are needed for n_bias %d", r->n_bias);
    for (int32_t i = 0; i < r->n_bias; i++) {
        if (r->bias_ids[i] < 0 || r->bias_ids[i] >= vocab_size)
            return sv_fail(err, SV_EINVAL, i, "bias_ids[%d]: token %d is outside [0, %d)", i,
                           r->bias_ids[i], vocab_size);
        if (!((double)r->bias[i] >= range.least && (double)r->bias[i] <= range.most))
            return sv_fail(err, SV_EINVAL, i, "bias[%d] must be in [%g, %g], not %g", i,
                           range.least, range.most, (double)r->bias[i]);
        for (int32_t k = 0; k < i; k++)
            if (r->bias_ids[k] == r->bias_ids[i])
                return sv_fail(err, SV_EINVAL, i, "bias_ids[%d]: token %d is at index %d already",
                               i, r->bias_ids[i], k);
    }
    return SV_OK;
}

static int check_ban(const struct sv_end_ban *h, int32_t vocab_size, struct sv_err *err)
{
    if (h->min_tokens < 0)
        return sv_fail(err, SV_EINVAL, -1, "min_tokens must not be negative, but is %d",
                       h->min_tokens);
    if (!h->min_tokens)
        return SV_OK;
    if (h->n > SV_MAX_BAN)
        return sv_fail(err, SV_EINVAL, -1,
                       "min_tokens: %d end tokens and stop ids cannot be held off, at most %d",
                       h->n, SV_MAX_BAN);
    int32_t distinct = 0;
    for (int32_t i = 0; i < h->n; i++) {
        int32_t k = 0;
        while (k < i && h->ids[k] != h->ids[i])
            k++;
        distinct += k == i;
    }
    return distinct < vocab_size
               ? SV_OK
               : sv_fail(err, SV_EINVAL, -1,
                         "min_tokens: every token of the vocabulary would end it");
}

static int32_t n_runs(const struct sv_request *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_bad_ids; i++)
        n += r->bad_ids[i] < 0;
    return n;
}

/* Whether a token may be kept from coming: it ends a run, or ends the answer before min_tokens. */
static bool may_be_barred(const struct sv_request *r, const struct sv_end_ban *h, int32_t id)
{
    for (int32_t i = 0; i < h->n && h->min_tokens; i++)
        if (h->ids[i] == id)
            return true;
    for (int32_t i = 1; i < r->n_bad_ids; i++)
        if (r->bad_ids[i] < 0 && r->bad_ids[i - 1] == id)
            return true;
    return false;
}

static int check_ids(const char *name, const int32_t *ids, int32_t n, int32_t least, int32_t vocab,
                     struct sv_err *err)
{
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < least || ids[i] >= vocab)
            return sv_fail(err, SV_EINVAL, i, "%s[%d]: token %d is outside [0, %d)", name, i,
                           ids[i], vocab);
    return SV_OK;
}

static int check_lists(const struct sv_request *r, const struct sv_end_ban *h, int32_t vocab,
                       struct sv_err *err)
{
    const int32_t n_bad = r->n_bad_ids, n_allowed = r->n_allowed_ids;
    if (n_bad < 0 || n_allowed < 0 || n_bad > SV_MAX_LISTED || n_allowed > SV_MAX_LISTED - n_bad)
        return sv_fail(err, SV_EINVAL, -1, "n_bad_ids and n_allowed_ids: at most %d together",
                       SV_MAX_LISTED);
    if ((n_bad && !r->bad_ids) || (n_allowed && !r->allowed_ids))
        return sv_fail(err, SV_EINVAL, -1, "bad_ids or allowed_ids are missing");
    int rc = check_ids("bad_ids", r->bad_ids, n_bad, -1, vocab, err);
    if (!rc)
        rc = check_ids("allowed_ids", r->allowed_ids, n_allowed, 0, vocab, err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < n_bad; i++)
        if (r->bad_ids[i] < 0 && (!i || r->bad_ids[i - 1] < 0))
            return sv_fail(err, SV_EINVAL, i, "bad_ids[%d]: a run without tokens", i);
    if (n_bad && r->bad_ids[n_bad - 1] >= 0)
        return sv_fail(err, SV_EINVAL, n_bad - 1, "bad_ids: the last run is not ended by -1");
    /* A row without any token left would be the device's error. */
    bool left = !n_bad && !n_allowed;
    for (int32_t i = 0; i < (n_allowed ? n_allowed : vocab) && !left; i++)
        left = !may_be_barred(r, h, n_allowed ? r->allowed_ids[i] : i);
    return left ? SV_OK
                : sv_fail(err, SV_EINVAL, -1,
                          "allowed_ids, bad_ids and min_tokens could leave no token");
}

static int check_requested_ids(const struct sv_request *r, int32_t vocab, struct sv_err *err)
{
    if (r->n_logprob_token_ids < 0 || r->n_logprob_token_ids > SV_MAX_REQUESTED_IDS)
        return sv_fail(err, SV_EINVAL, -1, "n_logprob_token_ids must be in [0, %d], not %d",
                       SV_MAX_REQUESTED_IDS, r->n_logprob_token_ids);
    if (r->n_logprob_token_ids && !r->logprob_token_ids)
        return sv_fail(err, SV_EINVAL, -1, "logprob_token_ids are missing");
    if (r->n_logprob_token_ids && !wants_logprobs(r))
        return sv_fail(err, SV_EINVAL, -1, "logprob_token_ids need logprobs or prompt_logprobs");
    return check_ids("logprob_token_ids", r->logprob_token_ids, r->n_logprob_token_ids, 0, vocab,
                     err);
}

int sv_rules_check(const struct sv_request *r, const struct sv_end_ban *h, int32_t vocab_size,
                   struct sv_err *err)
{
    int rc = check_penalties(r, err);
    if (!rc)
        rc = check_bias(r, vocab_size, err);
    if (!rc)
        rc = check_ban(h, vocab_size, err);
    if (!rc)
        rc = check_lists(r, h, vocab_size, err);
    if (!rc && (r->n_top_logprobs < 0 || r->n_top_logprobs > SV_MAX_TOP))
        rc = sv_fail(err, SV_EINVAL, -1, "n_top_logprobs must be in [0, %d], not %d", SV_MAX_TOP,
                     r->n_top_logprobs);
    if (!rc && r->n_top_logprobs && !wants_logprobs(r))
        rc = sv_fail(err, SV_EINVAL, -1, "n_top_logprobs needs logprobs or prompt_logprobs");
    if (!rc)
        rc = check_requested_ids(r, vocab_size, err);
    return rc;
}

struct sv_logit_rules sv_rules_pack(const struct sv_request *r, const struct sv_end_ban *h,
                                    int32_t n_prompt, int32_t vocab_size)
{
    const int32_t n_top = r->n_top_logprobs < vocab_size ? r->n_top_logprobs : vocab_size;
    return (struct sv_logit_rules){
        .presence = (float)r->presence_penalty,
        .frequency = (float)r->frequency_penalty,
        .repetition = r->repetition_penalty > 0 ? (float)r->repetition_penalty : 1,
        .repeat_last = r->repetition_last_n,
        .n_prompt = n_prompt,
        .n_bias = r->n_bias,
        .n_ban = h->min_tokens ? h->n : 0,
        .ban_before = h->min_tokens ? n_prompt + h->min_tokens : 0,
        .n_bad_runs = n_runs(r),
        .n_allowed = r->n_allowed_ids,
        .n_top = wants_logprobs(r) ? n_top : -1,
    };
}

void sv_rules_pack_lists(const struct sv_request *r, int32_t *listed)
{
    int32_t run = 0, at = n_runs(r);
    for (int32_t i = 0; i < r->n_bad_ids; i++)
        if (r->bad_ids[i] < 0)
            listed[run++] = at;
        else
            listed[at++] = r->bad_ids[i];
    for (int32_t i = 0; i < r->n_allowed_ids; i++)
        listed[at++] = r->allowed_ids[i];
}

bool sv_rules_need_history(const struct sv_logit_rules *r)
{
    return r->presence != 0 || r->frequency != 0 || r->repetition != 1 || r->n_bad_runs > 0;
}

bool sv_rules_change_logits(const struct sv_logit_rules *r)
{
    return r->n_bias > 0 || r->n_ban > 0 || r->n_allowed > 0 || sv_rules_need_history(r);
}
