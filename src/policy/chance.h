/*
 * chance.h - how likely drafts are kept (chance.c), for the files that choose widths.
 *
 * Included by chance.c and choice.h alone.
 */
#ifndef SV_POLICY_CHANCE_H
#define SV_POLICY_CHANCE_H

#include "policy/policy.h"

/* Brings hazards and mode factors up to date with the counts; once a step. */
void sv_chance_update(struct sv_policy *p);
/* alive[j], j = 1 .. block - 1: chance that draft j of a request is kept, whatever the mode;
 * alive[0] = 1. */
void sv_chance_fill(const struct sv_policy *p, const struct sv_policy_seq *s, float *alive);
/* How much of what a request's record says of it is believed: 0 where all are alike. */
float sv_chance_differ(const struct sv_policy *p);
/* trial.c: a request's drafts were verified. */
void sv_trial_verified(struct sv_policy *p, struct sv_record *r);
/* confidence.c: and what that says of the confidence of the drafter. */
void sv_confidence_verified(struct sv_policy *p, const float *share, int32_t width,
                            int32_t n_emitted);
/* That draft j is kept once the one before it was. */
float sv_confidence_chance(const struct sv_policy *p, int32_t j, float share);
/* What is remembered for so long, one step later. Before it is too small to be computed with as
 * fast as other numbers, it is gone. */
static inline float sv_fade(float x, float window)
{
    return x > 1e-20f ? x - x / window : 0;
}

/* No draft is surer than this once the one before it is kept. */
#define SV_MOST_HAZARD 0.998f
/* The chance of one draft in a mode, of what it is whatever the mode. */
static inline float sv_hazard_in_mode(const struct sv_policy *p, int mode, float hazard)
{
    const float h = hazard * p->mode_factor[mode];
    return h < SV_MOST_HAZARD ? h : SV_MOST_HAZARD;
}
/* What a mode makes of that, where draft j - 1 is kept with the chance `before` in it (1 for j =
 * 1). Never more: rows are handed out in the order of their chances, and a draft comes behind those
 * it follows. */
static inline float sv_chance_in_mode(const struct sv_policy *p, int mode, const float *alive,
                                      int32_t j, float before)
{
    const float hazard = alive[j - 1] > 0 ? alive[j] / alive[j - 1] : 0;
    return before * sv_hazard_in_mode(p, mode, hazard);
}

#endif
