/*
 * rules.c - validation and packing of penalties, bias, bans and what is reported of logits. Called
 * through sample.h when a request is submitted. Names the fields as salvo.h does.
 */
#include "sample/sample.h"

#include <math.h>

static int check_penalties(const struct sv_rule_params *p, struct sv_err *err)
{
    if (!(p->presence >= -2 && p->presence <= 2))
        return sv_fail(err, SV_EINVAL, -1, "presence_penalty must be in [-2, 2], not %g",
                       p->presence);
    if (!(p->frequency >= -2 && p->frequency <= 2))
        return sv_fail(err, SV_EINVAL, -1, "frequency_penalty must be in [-2, 2], not %g",
                       p->frequency);
    if (!(p->repetition >= 0 && p->repetition <= 2))
        return sv_fail(err, SV_EINVAL, -1, "repetition_penalty must be in (0, 2], not %g",
                       p->repetition);
    if (p->repeat_last < 0)
        return sv_fail(err, SV_EINVAL, -1, "repetition_last_n must not be negative, but is %d",
                       p->repeat_last);
    /* Smaller ones are 0 as a float, which would mean "off". */
    if (p->repetition > 0 && p->repetition < 1e-30)
        return sv_fail(err, SV_EINVAL, -1, "repetition_penalty %g is too small", p->repetition);
    return SV_OK;
}

static int check_bias(const struct sv_rule_params *p, int32_t vocab_size, struct sv_err *err)
{
    if (p->n_bias < 0 || p->n_bias > SV_MAX_BIAS)
        return sv_fail(err, SV_EINVAL, -1, "n_bias must be in [0, %d], not %d", SV_MAX_BIAS,
                       p->n_bias);
    if (p->n_bias && (!p->bias_ids || !p->bias))
        return sv_fail(err, SV_EINVAL, -1, "bias_ids and bias are needed for n_bias %d", p->n_bias);
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (p->bias_ids[i] < 0 || p->bias_ids[i] >= vocab_size)
            return sv_fail(err, SV_EINVAL, i, "bias_ids[%d]: token %d is outside [0, %d)", i,
                           p->bias_ids[i], vocab_size);
        if (!(p->bias[i] >= -100 && p->bias[i] <= 100))
            return sv_fail(err, SV_EINVAL, i, "bias[%d] must be in [-100, 100], not %g", i,
                           (double)p->bias[i]);
        for (int32_t k = 0; k < i; k++)
            if (p->bias_ids[k] == p->bias_ids[i])
                return sv_fail(err, SV_EINVAL, i,
                               "bias_ids[%d]: token %d stands at index %d already", i,
                               p->bias_ids[i], k);
    }
    return SV_OK;
}

static int check_ban(const struct sv_rule_params *p, int32_t vocab_size, struct sv_err *err)
{
    if (p->min_tokens < 0)
        return sv_fail(err, SV_EINVAL, -1, "min_tokens must not be negative, but is %d",
                       p->min_tokens);
    if (!p->min_tokens)
        return SV_OK;
    if (p->n_ban > SV_MAX_BAN)
        return sv_fail(err, SV_EINVAL, -1,
                       "min_tokens: %d end tokens and stop ids cannot be held off, at most %d",
                       p->n_ban, SV_MAX_BAN);
    int32_t distinct = 0;
    for (int32_t i = 0; i < p->n_ban; i++) {
        int32_t k = 0;
        while (k < i && p->ban_ids[k] != p->ban_ids[i])
            k++;
        distinct += k == i;
    }
    return distinct < vocab_size
               ? SV_OK
               : sv_fail(err, SV_EINVAL, -1,
                         "min_tokens: every token of the vocabulary would end it");
}

static int32_t n_runs(const struct sv_rule_params *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_bad_ids; i++)
        n += p->bad_ids[i] < 0;
    return n;
}

/* Whether a token may be kept from coming: it ends a run, or is held off at first. */
static bool may_be_barred(const struct sv_rule_params *p, int32_t id)
{
    for (int32_t i = 0; i < p->n_ban && p->min_tokens; i++)
        if (p->ban_ids[i] == id)
            return true;
    for (int32_t i = 1; i < p->n_bad_ids; i++)
        if (p->bad_ids[i] < 0 && p->bad_ids[i - 1] == id)
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

static int check_lists(const struct sv_rule_params *p, int32_t vocab, struct sv_err *err)
{
    const int32_t n_bad = p->n_bad_ids, n_allowed = p->n_allowed_ids;
    if (n_bad < 0 || n_allowed < 0 || n_bad > SV_MAX_LISTED || n_allowed > SV_MAX_LISTED - n_bad)
        return sv_fail(err, SV_EINVAL, -1, "n_bad_ids and n_allowed_ids: at most %d together",
                       SV_MAX_LISTED);
    if ((n_bad && !p->bad_ids) || (n_allowed && !p->allowed_ids))
        return sv_fail(err, SV_EINVAL, -1, "bad_ids or allowed_ids are missing");
    int rc = check_ids("bad_ids", p->bad_ids, n_bad, -1, vocab, err);
    if (!rc)
        rc = check_ids("allowed_ids", p->allowed_ids, n_allowed, 0, vocab, err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < n_bad; i++)
        if (p->bad_ids[i] < 0 && (!i || p->bad_ids[i - 1] < 0))
            return sv_fail(err, SV_EINVAL, i, "bad_ids[%d]: a run without tokens", i);
    if (n_bad && p->bad_ids[n_bad - 1] >= 0)
        return sv_fail(err, SV_EINVAL, n_bad - 1, "bad_ids: the last run is not ended by -1");
    /* A row without any token left would be the device's error. */
    bool left = !n_bad && !n_allowed;
    for (int32_t i = 0; i < (n_allowed ? n_allowed : vocab) && !left; i++)
        left = !may_be_barred(p, n_allowed ? p->allowed_ids[i] : i);
    return left ? SV_OK
                : sv_fail(err, SV_EINVAL, -1,
                          "allowed_ids, bad_ids and min_tokens could leave no token");
}

static int check_asked(const struct sv_rule_params *p, int32_t vocab, struct sv_err *err)
{
    if (p->n_asked < 0 || p->n_asked > SV_MAX_ASKED)
        return sv_fail(err, SV_EINVAL, -1, "n_asked_ids must be in [0, %d], not %d", SV_MAX_ASKED,
                       p->n_asked);
    if (p->n_asked && !p->asked_ids)
        return sv_fail(err, SV_EINVAL, -1, "asked_ids are missing");
    if (p->n_asked && !p->logprobs)
        return sv_fail(err, SV_EINVAL, -1, "asked_ids need logprobs or prompt_logprobs");
    return check_ids("asked_ids", p->asked_ids, p->n_asked, 0, vocab, err);
}

int sv_rules_check(const struct sv_rule_params *p, int32_t vocab_size, struct sv_err *err)
{
    int rc = check_penalties(p, err);
    if (!rc)
        rc = check_bias(p, vocab_size, err);
    if (!rc)
        rc = check_ban(p, vocab_size, err);
    if (!rc)
        rc = check_lists(p, vocab_size, err);
    if (!rc && (p->n_top < 0 || p->n_top > SV_MAX_TOP))
        rc = sv_fail(err, SV_EINVAL, -1, "n_top_logprobs must be in [0, %d], not %d", SV_MAX_TOP,
                     p->n_top);
    if (!rc && p->n_top && !p->logprobs)
        rc = sv_fail(err, SV_EINVAL, -1, "n_top_logprobs needs logprobs or prompt_logprobs");
    if (!rc)
        rc = check_asked(p, vocab_size, err);
    return rc;
}

struct sv_logit_rules sv_rules_pack(const struct sv_rule_params *p, int32_t n_prompt,
                                    int32_t vocab_size)
{
    const int32_t n_top = p->n_top < vocab_size ? p->n_top : vocab_size;
    return (struct sv_logit_rules){
        .presence = (float)p->presence,
        .frequency = (float)p->frequency,
        .repetition = p->repetition > 0 ? (float)p->repetition : 1,
        .repeat_last = p->repeat_last,
        .n_prompt = n_prompt,
        .n_bias = p->n_bias,
        .n_ban = p->min_tokens ? p->n_ban : 0,
        .ban_before = p->min_tokens ? n_prompt + p->min_tokens : 0,
        .n_words = n_runs(p),
        .n_allowed = p->n_allowed_ids,
        .n_top = p->logprobs ? n_top : -1,
    };
}

void sv_rules_pack_lists(const struct sv_rule_params *p, int32_t *listed)
{
    int32_t run = 0, at = n_runs(p);
    for (int32_t i = 0; i < p->n_bad_ids; i++)
        if (p->bad_ids[i] < 0)
            listed[run++] = at;
        else
            listed[at++] = p->bad_ids[i];
    for (int32_t i = 0; i < p->n_allowed_ids; i++)
        listed[at++] = p->allowed_ids[i];
}

bool sv_rules_need_history(const struct sv_logit_rules *r)
{
    return r->presence != 0 || r->frequency != 0 || r->repetition != 1 || r->n_words > 0;
}

bool sv_rules_change_logits(const struct sv_logit_rules *r)
{
    return r->n_bias > 0 || r->n_ban > 0 || r->n_allowed > 0 || sv_rules_need_history(r);
}
