/*
 * draft_repair.h - legal tokens in place of drafts that a grammar forbids.
 *
 * Called by prune.c once the drafts of a step are on the host.
 */
#ifndef SV_ENGINE_DRAFT_REPAIR_H
#define SV_ENGINE_DRAFT_REPAIR_H

#include "engine/batch.h"

struct sv_engine;

/* draft_repair.c: legal tokens in place of drafts that are not. */
struct sv_draft_repair {
    int32_t n_slots;
    struct sv_i32_pair up;   /* rows (n_slots), where their tokens begin (n_slots + 1), tokens */
    struct sv_i32_pair down; /* (n_slots) tokens, then as many floats: their probabilities */
    float *logits;           /* device */
    int32_t *at;             /* (n_slots) by segment: drafts before it are done; -1: all are */
    int32_t *asks;           /* (n_slots) the segment of each row */
};
int sv_draft_repair_open(struct sv_draft_repair *t, struct sv_dev *dev, int32_t n_slots,
                         struct sv_err *err);
void sv_draft_repair_close(struct sv_draft_repair *t, struct sv_dev *dev);
/* The drafts of the current step are on the host. */
int sv_draft_repair_plan(struct sv_engine *e, struct sv_err *err);

#endif
