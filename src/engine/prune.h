/*
 * prune.h - drafts dropped before verification: read back, and taken off the plan.
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

/* prune.c: what the drafter proposed and how sure it is, read before the target's pass is
 * enqueued. */
struct sv_prune {
    int32_t cap;     /* proposals, at most; 0: there is no drafter */
    int32_t *ids;    /* host, (cap) proposals of the step at work */
    bool confidence; /* the drafter is asked how sure it is */
};
int sv_prune_open(struct sv_prune *c, struct sv_dev *dev, int32_t cap, struct sv_err *err);
void sv_prune_close(struct sv_prune *c, struct sv_dev *dev);
/* What the drafter proposes on the host, if anything, goes to ids and is marked in the segments. */
void sv_prune_fill(struct sv_engine *e);
/* The drafting pass of the plan at work is enqueued: waits for it and takes rows off the plan. */
int sv_prune_plan(struct sv_engine *e, struct sv_err *err);

#endif
