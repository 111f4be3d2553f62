/*
 * profile.h - accept lengths drawn from a histogram or from recorded steps, so that speed can be
 * measured without a trained draft.
 *
 * Called by salvo-bench and the tests of the width policy. Must not: be part of libsalvo.
 */
#ifndef SV_BENCH_PROFILE_H
#define SV_BENCH_PROFILE_H

#include "spec/spec.h"

/* Every width sees the same draws: number `draw` of a sequence is cut to the rows verified. */
struct sv_accept_profile {
    float cum[SV_MAX_BLOCK]; /* P(accept length <= i + 1), bonus included */
    int32_t n;
    uint64_t seed;
    /* Steps that were recorded, drawn as they are, with the drafter's confidence. Borrowed; 0:
     * lengths alone. */
    const struct sv_profile_step *step;
    int32_t n_steps;
};
struct sv_profile_step {
    int32_t length;                 /* bonus included */
    float confidence[SV_MAX_BLOCK]; /* confidence of drafts 1.., 0 where none was recorded */
};
/* share[i]: weight of accept length i + 1; any positive sum. */
int sv_profile_set(struct sv_accept_profile *p, const double *share, int32_t n, struct sv_err *err);
int32_t sv_profile_draw(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw);
/* The same draw: the drafter's confidence in its first n drafts. Recorded steps only. */
void sv_profile_confidence(const struct sv_accept_profile *p, uint64_t sequence, uint64_t draw,
                           int32_t n, float *confidence);

#endif
