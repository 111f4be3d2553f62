/*
 * draft_repair.h - replaces drafts that a grammar forbids by legal tokens.
 *
 * Called by prune.c once the drafts of a step are on the host.
 */
#ifndef SV_ENGINE_DRAFT_REPAIR_H
#define SV_ENGINE_DRAFT_REPAIR_H

#include "engine/batch.h"

struct sv_engine;

struct sv_draft_repair {
    int32_t n_slots;
    struct sv_i32_pair up;   /* rows (n_slots), offsets of their tokens (n_slots + 1), tokens */
    struct sv_i32_pair down; /* (n_slots) best tokens, then their probabilities as floats */
    float *logits;           /* device */
    int32_t *at;             /* (n_slots) by segment: index of the next draft to check; -1: done */
    int32_t *asks;           /* (n_slots) the segment of each row */
};
int sv_draft_repair_open(struct sv_draft_repair *t, struct sv_dev *dev, int32_t n_slots,
                         struct sv_err *err);
void sv_draft_repair_close(struct sv_draft_repair *t, struct sv_dev *dev);
/* Repairs the drafts of the current step, once they are on the host. */
int sv_draft_repair_plan(struct sv_engine *e, struct sv_err *err);

#endif
