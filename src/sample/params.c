/*
 * params.c - validation and packing of sampling parameters. Called through sample.h.
 */
#include "sample/sample.h"

int sv_sample_in(const char *field, double v, struct sv_range range, struct sv_err *err)
{
    if (v >= range.least && v <= range.most)
        return SV_OK;
    return sv_fail(err, SV_EINVAL, -1, "%s must be in [%g, %g], not %g", field, range.least,
                   range.most, v);
}

int sv_sample_check(const struct sv_request *r, struct sv_err *err)
{
    const struct sv_range top_k = {SV_RANGE_TOP_K};
    int rc =
        sv_sample_in("temperature", r->temperature, (struct sv_range){SV_RANGE_TEMPERATURE}, err);
    if (!rc && r->top_p == 0)
        rc = sv_fail(err, SV_EINVAL, -1, "top_p must be in (0, 1], not 0");
    if (!rc)
        rc = sv_sample_in("top_p", r->top_p, (struct sv_range){SV_RANGE_TOP_P}, err);
    if (!rc)
        rc = sv_sample_in("min_p", r->min_p, (struct sv_range){SV_RANGE_MIN_P}, err);
    if (!rc && ((double)r->top_k < top_k.least || (double)r->top_k > top_k.most))
        rc = sv_fail(err, SV_EINVAL, -1, "top_k must be -1, 0 or a count, not %lld",
                     (long long)r->top_k);
    return rc;
}

struct sv_sampling sv_sample_pack(const struct sv_request *r, int32_t vocab_size)
{
    struct sv_sampling s = {
        .temperature = (float)r->temperature,
        .top_p = (float)r->top_p,
        .min_p = (float)r->min_p,
        .top_k = r->top_k > 0 && r->top_k < vocab_size ? (int32_t)r->top_k : 0,
        .seed = r->seed,
    };
    if (s.top_k == 1)
        s.temperature = 0; /* the only candidate is the argmax */
    return s;
}

bool sv_sample_is_greedy(const struct sv_sampling *s)
{
    return s->temperature <= 0;
}
