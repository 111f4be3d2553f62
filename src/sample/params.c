/*
 * params.c - validation and packing of sampling parameters. Called through sample.h.
 */
#include "sample/sample.h"

#include <math.h>

int sv_sample_check(const struct sv_sample_params *p, struct sv_err *err)
{
    if (!(p->temperature >= 0 && p->temperature <= 100))
        return sv_fail(err, SV_EINVAL, -1, "temperature must be in [0, 100], not %g",
                       p->temperature);
    if (!(p->top_p > 0 && p->top_p <= 1))
        return sv_fail(err, SV_EINVAL, -1, "top_p must be in (0, 1], not %g", p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return sv_fail(err, SV_EINVAL, -1, "min_p must be in [0, 1], not %g", p->min_p);
    if (p->top_k < -1 || p->top_k > INT32_MAX)
        return sv_fail(err, SV_EINVAL, -1, "top_k must be -1, 0 or a count, not %lld",
                       (long long)p->top_k);
    return SV_OK;
}

struct sv_sampling sv_sample_pack(const struct sv_sample_params *p, int32_t vocab_size)
{
    struct sv_sampling s = {
        .temperature = (float)p->temperature,
        .top_p = (float)p->top_p,
        .min_p = (float)p->min_p,
        .top_k = p->top_k > 0 && p->top_k < vocab_size ? (int32_t)p->top_k : 0,
        .seed = p->seed,
    };
    if (s.top_k == 1)
        s.temperature = 0; /* the only candidate is the argmax */
    return s;
}

bool sv_sample_is_greedy(const struct sv_sampling *s)
{
    return s->temperature <= 0;
}
