/*
 * plan.h - the plan of one step, made before any of it runs: segments, rows, counts, flags.
 *
 * Written by sched.c and the files that prepare a step, read by all of the step. Plain numbers:
 * comparable, loggable, sendable. Must not: point into a sequence.
 */
#ifndef SV_ENGINE_PLAN_H
#define SV_ENGINE_PLAN_H

#include "backend/device.h"
#include "base/base.h"
#include "policy/policy.h"

/* One segment of the next step. */
struct sv_plan_seg {
    uint64_t request; /* of the sequence: the slot may have another one when the results are read */
    int32_t slot, kind;               /* enum sv_seg_kind */
    int32_t row0, n_rows;             /* rows in the target's batch */
    int32_t logit0, n_logits;         /* rows whose next token is wanted */
    int32_t first;                    /* position of the first row as the host knows it */
    int32_t draft_row0, n_draft_rows; /* rows in the drafting pass; n 0: not in it */
    int32_t draft_out0;
    int32_t decode; /* index among the decode segments, as in the policy; -1: a prompt chunk */
    bool filled;    /* its drafts were proposed on the host */
    bool probe;     /* a probe of the width policy */
    /* drafts of the drafting pass; those beyond n_rows are not used */
    int32_t n_drafts;
    bool disabled;       /* it cannot draft: its context K/V is not read */
    bool refused;        /* its rows end where its grammar forbids a draft */
    bool repaired;       /* draft repair replaced some drafts */
    int32_t mask0;       /* under a grammar: the mask of its first logit row, -1: none */
    int32_t snapshot_at; /* position of a snapshot of its slot's states if its rows pass it; or 0 */
};
/* Counts of a step: of the target's pass, and of the drafting pass before it. */
struct sv_counts {
    int32_t n_segs, n_rows, n_logits;                /* n_logits: rows whose next token is wanted */
    int32_t n_draft_segs, n_draft_rows, n_draft_out; /* n_draft_out: rows that propose a token */
};
struct sv_plan {
    int32_t n_segs, n_rows, n_logits;
    int32_t n_draft_segs, n_draft_rows, n_draft_out;
    struct sv_counts launch; /* counts that kernels are launched with: the plan's, or padded up */
    bool timed;              /* the two passes are timed separately, with a wait in between */
    bool replays;            /* launch counts are padded: the target's pass may be a graph */
    int32_t most;            /* models with states: most rows of a segment; 0: unknown */
    bool sampled;            /* some logit row needs its logits, not just their argmax */
    bool confidence;         /* the drafting pass returns the confidence of the drafts, */
    bool prunes;             /* and drafts of low confidence are not verified */
    bool masked;             /* some logit row is under a grammar */
    bool two_parts; /* the host reads the drafts before the target's pass: to prune, or for masks */
    bool undrafted; /* a benchmark took the drafter away, */
    bool simulated; /* or draws accept lengths (src/bench/accept.c) */
    bool given;     /* made by calibration or warm-up: its results are dropped */
    int32_t id0, id_step;     /* with given: the tokens of its rows (sv_plan_given_id) */
    double expected_accepted; /* with pruning: expected number of accepted drafts */
    int64_t start_us;         /* when its step began */
    bool no_taps;             /* no sequence's context K/V is updated */
    /* some segment's sequence has logit rules; rules that need its token history; log
     * probabilities to report */
    bool ruled, remembered, logprobs;
    /* logit rows after the n_logits: prompt rows whose log probability is wanted */
    int32_t n_prompt_logits;
    int32_t n_requested; /* requested logprobs of the segment with most of them */
    struct sv_load load; /* the step's load, of which the width policy predicts the time */
    /* DP attention: rank r's rows and segments begin here and end where those of r + 1 begin */
    int32_t own_row0[SV_MAX_RANKS + 1], own_seg0[SV_MAX_RANKS + 1];
    /* (max_sequences) decode segments, then prefill chunks; with DP attention of one rank after the
     * other */
    struct sv_plan_seg *seg;
};

/* The token of a row of a given plan. If id_step and the vocabulary size are coprime, all rows have
 * different tokens. */
static inline int32_t sv_plan_given_id(const struct sv_plan *p, int32_t vocab, int32_t row)
{
    return (int32_t)((p->id0 + (int64_t)row * p->id_step) % vocab);
}

#endif
