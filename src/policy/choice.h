/*
 * choice.h - shared by the files that choose widths: chance.c (acceptance), policy.c (one step),
 * search.c (the best candidate), trial.c (exploration, and when drafting is disabled).
 *
 * Included by these alone.
 */
#ifndef SV_POLICY_CHOICE_H
#define SV_POLICY_CHOICE_H

#include "policy/policy.h"

/* Updates hazards and mode factors from the counts; once a step. */
void sv_chance_update(struct sv_policy *p);
/* alive[j], j = 0 .. block - 1: chance that draft j of a request is kept, whatever the mode;
 * alive[0] = 1. r: NULL = one without history. */
void sv_chance_fill(const struct sv_policy *p, const struct sv_record *r, float *alive);
/* chance[j], j = 1 .. n: these chances in a mode. Returns the sum. */
double sv_chance_in_mode(const struct sv_policy *p, int mode, const float *alive, int32_t n,
                         float *chance);
/* How much a request's own record counts: 0 where all requests are alike. */
float sv_chance_differ(const struct sv_policy *p);
/* P(draft j accepted | draft j - 1 accepted), given its confidence. */
float sv_confidence_chance(const struct sv_policy *p, int32_t j, float confidence);
/* The distribution of the chance of draft j where the record predicts `alive`: adds rows and tokens
 * of one sequence, by the edges below the chances. */
void sv_confidence_spread(const struct sv_policy *p, int32_t j, float alive, float *rows,
                          float *tokens);
/* Tokens of pruned steps over those predicted. */
double sv_confidence_kept(const struct sv_policy *p);

/* ---------------------------------------------------------------- the choice */

/* One allocation of rows to the sequences of a step. */
struct sv_candidate {
    int mode;
    int32_t k;                /* sequences that draft, in the order of rank; 0: plain */
    int32_t n_rows;           /* rows beyond one per sequence */
    int32_t width;            /* > 0: all draft this wide, and are pruned to about n_rows */
    double score, tokens, us; /* tokens per us */
    double base;              /* of these tokens, those without drafts */
    struct sv_load load;      /* of its step */
};

/* The last search and its result. */
struct sv_searched {
    struct sv_candidate c;
    /* drafts of another size that are most worth a trial; k = 0: none */
    struct sv_candidate other_size;
    int32_t n_ranked;        /* sequences that may draft */
    int32_t n;               /* all sequences */
    int32_t n_steps, serves; /* steps so far, and how many the result serves */
    uint32_t n_searches;
};

/* The index of n in tables by powers of two: 1, 2.., 4.., 8.. */
int32_t sv_policy_octave(int32_t n);
/* Whether n and m are close enough that a result for one serves the other. */
bool sv_policy_about(int32_t n, int32_t m);
/* Sets a sequence's width, and updates the load of the step. */
void sv_choice_set_width(struct sv_policy *p, struct sv_policy_seq *s, int32_t width, int mode);
/* The best candidate that drafts; k = 0 when none comes near `plain`. */
struct sv_candidate sv_choice_search(struct sv_policy *p, const struct sv_candidate *plain);
/* The best drafts of another size than `used`; NULL: none. */
const struct sv_candidate *sv_choice_other_size(struct sv_policy *p,
                                                const struct sv_candidate *plain,
                                                const struct sv_candidate *used);
void sv_choice_apply(struct sv_policy *p, const struct sv_candidate *c);

/* A candidate that may in fact be better than the one in use. */
struct sv_alternative {
    const struct sv_candidate *c; /* NULL: none */
    bool of_size;                 /* drafts of another size; else the other way: plain or drafts */
    double doubt;                 /* standard deviation of the comparison, as a share of the time */
    double distance;              /* between the two, in these deviations */
    double regret;                /* expected gain from knowing better, as a share of the time */
};
/* How much a trial of `other` is worth. */
struct sv_alternative sv_trial_assess(const struct sv_policy *p, const struct sv_candidate *used,
                                      const struct sv_candidate *other);
/* The trial that runs instead of `used` in this step, if any: the other way, or drafts of another
 * size. */
const struct sv_candidate *sv_trial_choose(struct sv_policy *p, const struct sv_candidate *used,
                                           const struct sv_alternative *opposite,
                                           const struct sv_candidate *size, bool beside_prompt);
/* Lets one sequence verify more than chosen, when the budget allows. */
void sv_trial_probe(struct sv_policy *p, const struct sv_candidate *used, bool beside_prompt);
/* Gives one drafting sequence the other number of masks, for a share of the time (us: of the step).
 * It shows the effect of the masks and, where pruning is possible, the confidence of a whole block.
 */
void sv_trial_other_masks(struct sv_policy *p, double us);
/* Drafting pays: resets the counts of unprofitable verify steps and requests. */
void sv_trial_profitable(struct sv_policy *p);
/* Drafting is unprofitable: disables it for requests that have tried long enough. */
void sv_trial_disable(struct sv_policy *p);

#endif
