/*
 * cost.h - the cost of a step: the table (cost.c), its correction by real steps (learn.c), and
 * measuring in rounds (turns.c).
 *
 * Part of policy.h. Must not: choose a width.
 */
#ifndef SV_POLICY_COST_H
#define SV_POLICY_COST_H

#include "base/base.h"

/* Time over a count, at measured points; linear in between. */
#define SV_CURVE_POINTS 64
struct sv_curve {
    int32_t n;
    int32_t x[SV_CURVE_POINTS];                          /* ascending */
    float seen_us[SV_CURVE_POINTS], us[SV_CURVE_POINTS]; /* measured, and made monotonic */
};
/* Adds a point, in any order; without effect for x that is there already, x <= 0 and us < 0 (not
 * measured). */
void sv_curve_add(struct sv_curve *c, int32_t x, double us);
double sv_curve_at(const struct sv_curve *c, double x);

#define SV_COST_CONTEXTS 8
/* What real steps add to the table (learn.c): logarithms of the slowdown of all steps at the
 * moment, and of drafting steps over plain ones by rows (2, 3, 4, 6, 8, 12, ... 2048), with their
 * covariances. */
#define SV_LEVELS 21
struct sv_pace {
    float x[1 + SV_LEVELS], cov[1 + SV_LEVELS][1 + SV_LEVELS];
    double noise;     /* variance of one step's time */
    int32_t n_since;  /* steps since the last change between plain and drafting steps */
    int32_t n_segs;   /* of the last step */
    int32_t n_steady; /* steps that contributed to the noise */
    bool plain;       /* the last step was plain */
};
struct sv_cost {
    struct sv_curve plain;      /* by segments of one row: a plain step */
    struct sv_curve wide;       /* by rows, in segments of `block` rows, without drafting */
    struct sv_curve draft_rows; /* by rows of a drafting pass with one token per segment */
    struct sv_curve draft_out;  /* by further tokens */
    /* by segments of two rows: a drafting pass with one token each; empty = as draft_rows */
    struct sv_curve thin;
    /* by tokens: returning their confidence and pruning before verification */
    struct sv_curve trip;
    int32_t block;
    int32_t (*padded)(int32_t n); /* the padded count (graphs); NULL = no padding */
    /* Beyond the shortest context: a segment, each of its rows, a drafting segment, each of its
     * rows. */
    int32_t n_ctx, ctx[SV_COST_CONTEXTS];
    float seg_us[SV_COST_CONTEXTS], row_us[SV_COST_CONTEXTS];
    float draft_us[SV_COST_CONTEXTS], draft_row_us[SV_COST_CONTEXTS];
    struct sv_pace pace[2];    /* greedy and sampled; below, its exponentials */
    float speed[2];            /* slowdown of all steps at the moment; 1 at first */
    float level[2][SV_LEVELS]; /* further slowdown of drafting steps, by rows */
};
/* The work of a step. The *_us fields are sums over segments of the costs of their contexts. */
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
/* The two levels around a number of rows: i, and the weight of i + 1. */
struct sv_size {
    int32_t i;
    double t;
};
struct sv_size sv_cost_size(int32_t n_rows);
int32_t sv_cost_level_rows(int32_t i);
/* How far a step counts as a drafting step: 0 where it takes no longer than a plain step, up to 1.
 */
double sv_cost_weight(const struct sv_cost *c, const struct sv_load *l);

/* Resets what was learnt; the table stays. */
void sv_cost_unlearn(struct sv_cost *c);
/* Learns from a step of this load that took us. */
void sv_cost_learn(struct sv_cost *c, const struct sv_load *l, double us);
/* Standard deviation of the ratio of the two steps' costs. NULL: of a plain one. */
double sv_cost_doubt(const struct sv_cost *c, const struct sv_load *l, const struct sv_load *other);

/* ---------------------------------------------------------------- measuring that (turns.c) */

#define SV_MOST_RUNS 48
#define SV_MOST_TIMED 128
enum { SV_TIME_ALL, SV_TIME_DRAFT, SV_TIME_TARGET, SV_TIMES };
/* A shape that is timed repeatedly: all of it, and its two parts. */
struct sv_timed {
    double us[SV_TIMES]; /* typical time; < 0: not run */
    float run[SV_MOST_RUNS][SV_TIMES];
    int32_t round[SV_MOST_RUNS], n_runs;
    bool needed; /* run at least once, even after the time is over */
};
struct sv_turns {
    struct sv_timed *of; /* (n), by growing work */
    int32_t n, least;    /* least number of rounds */
    int32_t round, at;
    int64_t half_us, end_us, last_us; /* limits: with many rounds, usually, with few quick rounds */
};
/* t->of and t->n are set. least: rounds in any case, but shapes that are not needed are left out
 * after the budget. more_us: extra time where few rounds were quick. */
void sv_turns_begin(struct sv_turns *t, int32_t least, int64_t now_us, int64_t budget_us,
                    int64_t more_us);
/* The index to time next; -1: the end. */
int32_t sv_turns_next(struct sv_turns *t, int64_t now_us);
/* The times of that index. */
void sv_turns_add(struct sv_turns *t, int32_t i, const double us[SV_TIMES]);
/* Ends: typical times are those of the quick rounds. */
void sv_turns_end(struct sv_turns *t);

#endif
