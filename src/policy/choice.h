/*
 * choice.h - between the three files that choose widths: policy.c (one step), search.c (the best
 * candidate), trial.c (what is tried against the odds, and who is given up).
 *
 * Included by these alone.
 */
#ifndef SV_POLICY_CHOICE_H
#define SV_POLICY_CHOICE_H

#include "policy/chance.h"

/* One way to share rows out over the sequences of a step. */
struct sv_candidate {
    int mode;
    int32_t k;                /* sequences that draft, in the order of rank; 0: plain */
    int32_t n_rows;           /* rows beyond one a sequence */
    int32_t bin;              /* the last bin rows are taken from, */
    int32_t in_bin;           /* and how many of it */
    int32_t width;            /* > 0: all of this width, to be cut once drafted; no bins */
    double score, tokens, us; /* tokens a us */
    struct sv_load load;      /* of its steps */
};

/* A search, and the step it was made for. */
struct sv_searched {
    struct sv_candidate c;
    double plain_tokens;
    int32_t n, n_steps, serves; /* sequences; steps so far, and how many it is good for */
    uint32_t n_searches;
    int32_t ranked, ranked_of; /* so many sequences have a rank by the last search, of so many */
    /* The best of each size (size_of in search.c); k = 0: none comes near. */
    struct sv_candidate size[SV_LEVELS];
    int32_t looked; /* for so many sequences; 0: nobody has asked, or one was picked since */
    /* The one of them that is worth most to try, for so many sequences. */
    struct sv_candidate rival;
    double rival_tokens; /* of these without drafts */
    int32_t rival_n;
};

/* What is known by the number of sequences: 1, 2.., 4.., 8.. */
int32_t sv_policy_octave(int32_t n);
/* Gives a sequence a width, and the load of the step with it. */
void sv_choice_set_width(struct sv_policy *p, struct sv_policy_seq *s, int32_t width, int mode);
/* The best candidate that drafts; k = 0 when none could come near `plain`. */
struct sv_candidate sv_choice_search(struct sv_policy *p, const struct sv_candidate *plain);
void sv_choice_apply(struct sv_policy *p, const struct sv_candidate *c);

/* confidence.c: candidates that are cut once drafted. */
void sv_confidence_search(struct sv_policy *p, int mode, int32_t n,
                          const struct sv_candidate *plain, struct sv_candidate *best);
/* The candidate of the step about to run (NULL: plain) has been applied: are rows cut? */
void sv_confidence_decide(struct sv_policy *p, const struct sv_candidate *used,
                          const struct sv_candidate *plain);
/* Where nothing is cut, one sequence that drafts is asked for its whole block now and then, for a
 * share of the time: us, that the step would take. */
void sv_confidence_look(struct sv_policy *p, double us);

/* What may be better than what is used, after all. */
struct sv_rival {
    const struct sv_candidate *c; /* NULL: nothing could */
    bool of_size;                 /* drafts of another size; else plain instead of drafts, or drafts
                                     instead of plain */
    double doubt;  /* standard deviation of how the two compare, as a share of the time; */
    double apart;  /* they are so many of these apart */
    double regret; /* what it is expected to bring more, should it be better: a share of the time */
};
struct sv_rival sv_trial_way(const struct sv_policy *p, const struct sv_candidate *plain,
                             const struct sv_candidate *best, bool drafting);
struct sv_rival sv_trial_size(struct sv_policy *p, const struct sv_candidate *plain,
                              const struct sv_candidate *used);
/* Saves up time for trials: a share of what a step takes, more where a rival may be worth it. */
void sv_trial_save(struct sv_policy *p, double us, bool drafting, const struct sv_rival *way,
                   const struct sv_rival *size);
/* The rival instead of what is used, this time? */
bool sv_trial_goes(struct sv_policy *p, const struct sv_rival *rival,
                   const struct sv_candidate *used);
/* One sequence tries more than was chosen for it, when that can be afforded. rate: tokens a us. */
void sv_trial_probe(struct sv_policy *p, double us, double rate, bool drafting);
/* Probes wait for steps without prompt rows, and for somebody with room for a whole block: where
 * there has been neither for long, there may never be, and they wait no longer. */
bool sv_trial_is_hemmed(const struct sv_policy *p);
void sv_trial_hem(struct sv_policy *p, bool beside_prompt);
/* What was chosen, drafted with the other number of masks now and then, where that costs little. */
void sv_trial_mode(struct sv_policy *p, const struct sv_candidate *best);
/* Drafting is worth while: what was in vain before does not count any more. */
void sv_trial_paid(struct sv_policy *p);
/* Drafting is far from worth while: whose drafter has been in vain for long enough drafts no
 * more. */
void sv_trial_give_up(struct sv_policy *p);

#endif
