/*
 * sched.h - which sequences run with which rows, and allocation and release of their pages.
 *
 * Called by the step and by tests. Host only: no device, no allocation after open.
 */
#ifndef SV_ENGINE_SCHED_H
#define SV_ENGINE_SCHED_H

#include "cache/cache.h"
#include "engine/plan.h"
#include "engine/seq.h"

/* Pure host code: no device, no allocation after open. */
struct sv_sched {
    int32_t n_slots, prefill_rows; /* prefill rows a step may carry */
    int32_t block;                 /* rows a drafting segment has; 1 = no device drafter */
    struct sv_policy *policy;      /* chooses widths; NULL = every sequence has its own */
    struct sv_seq **slot;          /* (n_slots) running sequences */
    bool *new_slot;                /* (n_slots) assigned since the last fill */
    struct sv_seq *head, *tail;    /* all unfinished sequences by submission */
    int32_t n_unfinished;
    int64_t n_preemptions;
    double usual_answer;                   /* mean tokens of recent answers, */
    double usual_prompt;                   /* and computed tokens of their prompts */
    int64_t n_cache_queries, n_cache_hits; /* prompt tokens looked up and found */
    void (*before_preempt)(void *user);    /* a sequence is about to lose its pages; may be NULL */
    void *user;
};
void sv_sched_push(struct sv_sched *s, struct sv_seq *seq);
/* Admits waiting sequences to slots, reserves pages for what the next step may write, and chooses
 * its segments and rows. False, with nothing planned, when pages are short and a step is in flight:
 * the caller reads that step and plans again. */
bool sv_sched_plan(struct sv_sched *s, struct sv_cache *cache, struct sv_plan *plan,
                   bool in_flight);
/* Positions of a running sequence below this have the draft's context K/V; INT32_MAX: all have. A
 * sequence with positions beyond it cannot draft. */
int32_t sv_sched_draft_end(const struct sv_cache *cache, const struct sv_seq *q);
/* Whether the draft's context K/V of some position is missing. */
bool sv_sched_draft_kv_missing(const struct sv_cache *cache, const struct sv_seq *q);
/* Invalidates the draft's context K/V of a running sequence from position `from` on. */
void sv_sched_invalidate_draft(struct sv_cache *cache, struct sv_seq *q, int32_t from);
/* Releases a sequence's slot and pages. It keeps its tokens. */
void sv_sched_release(struct sv_sched *s, struct sv_cache *cache, struct sv_seq *seq);

#endif
