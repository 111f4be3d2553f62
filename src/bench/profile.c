/*
 * profile.c - accept lengths drawn from a histogram or from recorded steps.
 *
 * Called by accept.c, and by the tests and the sweep of the width policy, which link it without the
 * engine. Counter-based: a draw depends on seed, sequence and number only. Must not: keep state.
 */
#include "bench/profile.h"

int sv_profile_set(struct sv_accept_profile *p, const double *share, int32_t n, struct sv_err *err)
{
    double sum = 0, at = 0;
    if (n < 1 || n > SV_MAX_BLOCK)
        return sv_fail(err, SV_EINVAL, -1, "an accept profile has 1 to %d lengths, not %d",
                       SV_MAX_BLOCK, n);
    for (int32_t i = 0; i < n; i++) {
        if (!(share[i] >= 0 && share[i] <= 1e9))
            return sv_fail(err, SV_EINVAL, i, "accept profile: the share of length %d is %g", i + 1,
                           share[i]);
        sum += share[i];
    }
    if (sum <= 0)
        return sv_fail(err, SV_EINVAL, -1, "accept profile: all shares are 0");
    p->n = n;
    p->n_steps = 0;
    p->step = NULL;
    for (int32_t i = 0; i < n; i++) {
        at += share[i];
        p->cum[i] = (float)(at / sum);
    }
    return SV_OK;
}

static const struct sv_profile_step *step_of(const struct sv_accept_profile *p, uint32_t word)
{
    return &p->step[(uint64_t)word * (uint64_t)p->n_steps >> 32];
}

void sv_profile_confidence(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw,
                           int32_t n, float *confidence)
{
    uint32_t word[4];
    SV_REQUIRE(p->n_steps > 0 && n < SV_MAX_BLOCK);
    sv_philox(p->seed, draw, sequence, word);
    for (int32_t j = 0; j < n; j++)
        confidence[j] = step_of(p, word[0])->confidence[j];
}

int32_t sv_profile_draw(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw)
{
    uint32_t word[4];
    sv_philox(p->seed, draw, sequence, word);
    if (p->n_steps)
        return step_of(p, word[0])->length;
    float u = sv_unit_float(word[0]);
    int32_t i = 0;
    while (i < p->n - 1 && u >= p->cum[i])
        i++;
    return i + 1;
}
