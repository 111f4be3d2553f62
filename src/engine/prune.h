/*
 * prune.h - drafts dropped before verification: read back, and removed from the plan.
 *
 * Called by the step between the drafting pass and the target's. Must not: wait elsewhere.
 */
#ifndef SV_ENGINE_PRUNE_H
#define SV_ENGINE_PRUNE_H

#include "backend/device.h"
#include "engine/seq.h"

struct sv_engine;

/* What the host waits for between the two passes; 0 and 1 mark the ends of steps. */
enum { SV_PRUNE_MARK = 2 };

/* prune.c: the drafts and their confidence, read before the target's pass is enqueued. */
struct sv_prune {
    int32_t cap;     /* proposals, at most; 0: there is no drafter */
    int32_t *ids;    /* host, (cap) proposals of the current step */
    bool confidence; /* the drafter returns its confidence */
};
int sv_prune_open(struct sv_prune *c, struct sv_dev *dev, int32_t cap, struct sv_err *err);
void sv_prune_close(struct sv_prune *c, struct sv_dev *dev);
/* Proposals of a drafter on the host, if any, go to ids and are marked in the segments. */
void sv_prune_fill(struct sv_engine *e);
/* The drafting pass of the current plan is enqueued: waits for it and removes rows from the plan.
 */
int sv_prune_plan(struct sv_engine *e, struct sv_err *err);

#endif
