/*
 * accept.h - simulated acceptance: as many drafts of each verify block come out right as a profile
 * says.
 *
 * Called by sim.c and tests. Must not: be reachable from a command that answers requests.
 */
#ifndef SV_BENCH_ACCEPT_H
#define SV_BENCH_ACCEPT_H

#include "bench/profile.h"
#include "engine/engine.h"

/* Around whatever drafter an engine has. Every pass runs as it would: the drafter proposes, the
 * target reads what it proposed and chooses. Then the drafts are written over, before they are
 * verified. */
struct sv_sim_accept {
    struct sv_step_hooks hooks;
    struct sv_engine *e;
    const struct sv_accept_profile *profile;
    struct sv_sim_blocks {
        uint64_t request, n; /* the sequence in the slot: its verify blocks so far */
    } * blocks;              /* (n_slots) */
    uint64_t first;          /* where the draws of each sequence begin */
    /* Host, one for each step that may be in flight: accept lengths (max_segs), and with recorded
     * steps the drafter's confidence (max_draft_rows). */
    int32_t *len[2];
    float *confidence[2];
};
/* Of an engine that simulates (tuning), without a prefix cache: the tokens are not those the K/V
 * were made of. */
int sv_sim_accept_open(struct sv_sim_accept *a, struct sv_engine *e, struct sv_err *err);
void sv_sim_accept_close(struct sv_sim_accept *a);
/* From the next step on; nothing may be in flight. profile NULL: acceptance as it is found. first:
 * where the draws of each sequence begin. */
void sv_sim_accept_set(struct sv_sim_accept *a, const struct sv_accept_profile *profile,
                       uint64_t first);

#endif
