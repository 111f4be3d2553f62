/*
 * choice.h - between the files that choose widths: chance.c (how likely drafts are accepted),
 * policy.c (one step), search.c (the best candidate), trial.c (exploration, and
 * when drafting is disabled).
 *
 * Included by these alone.
 */
#ifndef SV_POLICY_CHOICE_H
#define SV_POLICY_CHOICE_H

#include "policy/policy.h"

/* Brings hazards and mode factors up to date with the counts; once a step. */
void sv_chance_update(struct sv_policy *p);
/* alive[j], j = 0 .. block - 1: chance that draft j of a request is kept, whatever the mode;
 * alive[0] = 1. r: NULL = one without history. */
void sv_chance_fill(const struct sv_policy *p, const struct sv_record *r, float *alive);
/* chance[j], j = 1 .. n: what a mode makes of that. Returns the sum. */
double sv_chance_in_mode(const struct sv_policy *p, int mode, const float *alive, int32_t n,
                         float *chance);
/* How much of what a request's record says of it is believed: 0 where all are alike. */
float sv_chance_differ(const struct sv_policy *p);
/* That draft j is kept once the one before it was. */
float sv_confidence_chance(const struct sv_policy *p, int32_t j, float confidence);
/* How the chances of draft j are spread, of which the record says `alive`: adds the
 * rows and tokens of one sequence, by the edges that chances lie behind. */
void sv_confidence_spread(const struct sv_policy *p, int32_t j, float alive, float *rows,
                          float *tokens);
/* What pruned steps brought over what was promised. */
double sv_confidence_kept(const struct sv_policy *p);

/* ---------------------------------------------------------------- the choice */

/* One way to share rows out over the sequences of a step. */
struct sv_candidate {
    int mode;
    int32_t k;                /* sequences that draft, in the order of rank; 0: plain */
    int32_t n_rows;           /* rows beyond one a sequence */
    int32_t width;            /* > 0: all draft this wide, and are pruned to about n_rows */
    double score, tokens, us; /* tokens a us */
    double base;              /* of these tokens, those without drafts */
    struct sv_load load;      /* of its steps */
};

/* A search, and what it found. */
struct sv_searched {
    struct sv_candidate c;
    struct sv_candidate rival; /* drafts of another size that are most worth a trial; k = 0: none */
    int32_t n_ranked;          /* sequences that might draft, */
    int32_t n;                 /* of so many */
    int32_t n_steps, serves;   /* steps so far, and how many it is good for */
    uint32_t n_searches;
};

/* What is known by the number of sequences: 1, 2.., 4.., 8.. */
int32_t sv_policy_octave(int32_t n);
/* Numbers of sequences of which one stands for the other while some come and go: also 16 and 15,
 * which octaves part. */
bool sv_policy_about(int32_t n, int32_t m);
/* Gives a sequence a width, and the load of the step with it. */
void sv_choice_set_width(struct sv_policy *p, struct sv_policy_seq *s, int32_t width, int mode);
/* The best candidate that drafts; k = 0 when none could come near `plain`. */
struct sv_candidate sv_choice_search(struct sv_policy *p, const struct sv_candidate *plain);
/* Drafts of another size instead of what is used; NULL: there are none. */
const struct sv_candidate *sv_choice_rival(struct sv_policy *p, const struct sv_candidate *plain,
                                           const struct sv_candidate *used);
void sv_choice_apply(struct sv_policy *p, const struct sv_candidate *c);

/* What may be better than what is used, after all. */
struct sv_rival {
    const struct sv_candidate *c; /* NULL: nothing could */
    bool of_size;                 /* drafts of another size; else plain instead of drafts, or drafts
                                     instead of plain */
    double doubt;  /* standard deviation of how the two compare, as a share of the time; */
    double apart;  /* they are so many of these apart */
    double regret; /* what it is expected to bring more, should it be better: a share of the time */
};
/* What `other` is worth trying instead of it. */
struct sv_rival sv_trial_against(const struct sv_policy *p, const struct sv_candidate *used,
                                 const struct sv_candidate *other);
/* What runs this time instead of what is used, if anything: the other way, or drafts of another
 * size. */
const struct sv_candidate *sv_trial_other(struct sv_policy *p, const struct sv_candidate *used,
                                          const struct sv_rival *way,
                                          const struct sv_candidate *size, bool beside_prompt);
/* One sequence tries more than was chosen for it, when that can be afforded. */
void sv_trial_probe(struct sv_policy *p, const struct sv_candidate *used, bool beside_prompt);
/* One sequence that drafts has the other number of masks now and then, for a share of the time: us,
 * that the step would take. So it is known what masks are worth and, where that can be told and
 * nothing is pruned, how sure the drafter is of whole blocks. */
void sv_trial_look(struct sv_policy *p, double us);
/* Drafting pays: unprofitable verify steps and requests are counted from zero again. */
void sv_trial_paid(struct sv_policy *p);
/* Drafting is unprofitable: disables it for requests that have tried long enough. */
void sv_trial_disable(struct sv_policy *p);

#endif
