/*
 * cost.h - what a step costs: the table (cost.c), what steps teach it (learn.c), and measuring it
 * in turns (turns.c).
 *
 * Part of policy.h. Must not: choose a width.
 */
#ifndef SV_POLICY_COST_H
#define SV_POLICY_COST_H

#include "base/base.h"

/* Time over a count, measured at some points: straight lines between them. */
#define SV_CURVE_POINTS 64
struct sv_curve {
    int32_t n;
    int32_t x[SV_CURVE_POINTS];                          /* ascending */
    float seen_us[SV_CURVE_POINTS], us[SV_CURVE_POINTS]; /* as measured, and rising */
};
/* A point, in any order; where there is one, where no count is and where nothing was measured (us <
 * 0), it is left out. */
void sv_curve_add(struct sv_curve *c, int32_t x, double us);
double sv_curve_at(const struct sv_curve *c, double x);

#define SV_COST_CONTEXTS 8
/* What steps teach the table (learn.c): logarithms of how much slower than it everything is just
 * now, and how much slower than plain steps drafting ones are, by their rows: 2, 3, 4, 6, 8, 12,
 * ... 2048 and in between; and how sure of that it is. */
#define SV_LEVELS 21
struct sv_pace {
    float x[1 + SV_LEVELS], cov[1 + SV_LEVELS][1 + SV_LEVELS];
    double noise;     /* variance of one step's time */
    int32_t n_since;  /* steps since plain ones followed drafting ones or the other way round */
    int32_t n_segs;   /* of the last step */
    int32_t n_steady; /* steps that the noise was learnt from */
    bool plain;       /* so was the last step */
};
struct sv_cost {
    struct sv_curve plain;      /* by segments of one row: a plain step */
    struct sv_curve wide;       /* by rows, in segments of `block` rows, no drafting */
    struct sv_curve draft_rows; /* by rows of a drafting pass, one token wanted a segment */
    struct sv_curve draft_out;  /* by further tokens wanted */
    /* by segments of two rows: a drafting pass, one token wanted of each; empty = as draft_rows */
    struct sv_curve thin;
    /* by tokens wanted: to learn the confidence of the drafter of them and to cut before verifying
     */
    struct sv_curve trip;
    int32_t block;
    int32_t (*padded)(
        int32_t n); /* where the engine pads counts (graphs): up to what; NULL = it does not */
    /* Over the shortest context: a segment, each of its rows, a drafting segment, each of its
     * rows. */
    int32_t n_ctx, ctx[SV_COST_CONTEXTS];
    float seg_us[SV_COST_CONTEXTS], row_us[SV_COST_CONTEXTS];
    float draft_us[SV_COST_CONTEXTS], draft_row_us[SV_COST_CONTEXTS];
    struct sv_pace pace[2];    /* greedy and sampled; what follows are its exponentials */
    float speed[2];            /* factor of all steps over the table just now; 1 at first */
    float level[2][SV_LEVELS]; /* factors of drafting steps over that, by rows */
};
/* What a step carries. The *_us fields are sums over segments of what their contexts add. */
struct sv_load {
    int32_t n_segs, n_rows; /* decoding segments, their rows */
    int32_t n_prompt_rows;
    int32_t n_draft_segs, n_draft_rows, n_draft_out;
    int32_t sampled; /* 1: some row is not greedy */
    float seg_us, row_us, draft_us;
};
double sv_cost_us(const struct sv_cost *c, const struct sv_load *l);
double sv_cost_context(const struct sv_cost *c, const float *us, int32_t context);
bool sv_load_is_plain(const struct sv_load *l);
/* Between which two of the levels a drafting step of so many rows stands: i, the share of i + 1. */
struct sv_size {
    int32_t i;
    double t;
};
struct sv_size sv_cost_size(int32_t n_rows);
int32_t sv_cost_level_rows(int32_t i);
/* How far it is one at all: 0 where it takes no longer than a plain step, 1 from a third more
 * on. */
double sv_cost_weight(const struct sv_cost *c, const struct sv_load *l);

/* Knows nothing but the table. */
void sv_cost_unlearn(struct sv_cost *c);
/* A step of this load took us. */
void sv_cost_learn(struct sv_cost *c, const struct sv_load *l, double us);
/* Standard deviation of how such a step compares with the other, as a share of the cost. NULL: with
 * a plain one. */
double sv_cost_doubt(const struct sv_cost *c, const struct sv_load *l, const struct sv_load *other);

/* ---------------------------------------------------------------- measuring that (turns.c) */

#define SV_MOST_RUNS 48
#define SV_MOST_TIMED 128
enum { SV_TIME_ALL, SV_TIME_DRAFT, SV_TIME_TARGET, SV_TIMES };
/* Something timed again and again: all of it, and its two parts. */
struct sv_timed {
    double us[SV_TIMES]; /* as usual; < 0: not run */
    float run[SV_MOST_RUNS][SV_TIMES];
    int32_t round[SV_MOST_RUNS], n_runs;
    bool needed; /* at least once, however late it is */
};
struct sv_turns {
    struct sv_timed *of; /* (n), in the order of growing work */
    int32_t n, least;    /* rounds in any case */
    int32_t round, at;
    int64_t half_us, end_us, last_us; /* with plenty of rounds, as usual, with few quick ones */
};
/* t->of and t->n are set. least: rounds in any case, but what is not needed is left out once the
 * time is over. more_us: what may be added where few rounds were quick. */
void sv_turns_begin(struct sv_turns *t, int32_t least, int64_t now_us, int64_t budget_us,
                    int64_t more_us);
/* Whose turn it is; -1: it is over. */
int32_t sv_turns_next(struct sv_turns *t, int64_t now_us);
/* Whose turn it was took so long. */
void sv_turns_add(struct sv_turns *t, int32_t i, const double us[SV_TIMES]);
/* It is over: what counts is what the machine's quick rounds say. */
void sv_turns_end(struct sv_turns *t);

#endif
