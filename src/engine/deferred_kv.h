/*
 * deferred_kv.h - taps of plain steps under the width policy, worked off many at a time: the
 * deferred context-KV update.
 *
 * Called by the step and by engine.c. Must not: keep taps of a sequence that has released its
 * pages.
 */
#ifndef SV_ENGINE_DEFERRED_KV_H
#define SV_ENGINE_DEFERRED_KV_H

#include "engine/batch.h"
#include "engine/seq.h"

struct sv_deferred_row {
    uint64_t request; /* of which sequence */
    int32_t slot, base;
    int32_t at; /* where its taps lie; of entries behind the last: a free place */
};
/* What a chunk of rows is made with: numbers, ones, and of each row its slot and position. */
enum { SV_DEFERRED_INDEX, SV_DEFERRED_ONE, SV_DEFERRED_SLOT, SV_DEFERRED_POS, SV_DEFERRED_PAIRS };
struct sv_deferred {
    int32_t cap_rows; /* 0: never */
    int32_t n_rows;   /* held */
    bool now;         /* those of the plan at work are */
    uint64_t one_in;  /* of the running sequences: a sample, see deferred_kv.c */
    bool pays_alone;  /* one sequence alone would draft, as far as was known lately */
    uint32_t n_plans;
    size_t row_bytes;
    double row_us;   /* to make context K/V of one row */
    int64_t work_ns; /* spent on that so far */
    void *taps;      /* device, (cap_rows, n_taps * hidden) act */
    /* (max_rows) where the taps of the plan at work go; -1: nowhere */
    struct sv_i32_pair tap_row;
    struct sv_deferred_row *row; /* host, (cap_rows), in the order of their coming */
    int32_t chunk_rows;
    void *chunk; /* device, (chunk_rows, n_taps * hidden): worked off together */
    struct sv_i32_pair pair[SV_DEFERRED_PAIRS];
};
struct sv_engine;
int sv_deferred_open(struct sv_deferred *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows,
                     int64_t n_positions, size_t row_bytes, struct sv_err *err);
void sv_deferred_close(struct sv_deferred *h, struct sv_dev *dev);
void sv_deferred_plan(struct sv_engine *e); /* before the plan at work is enqueued */
/* What a row takes to be worked off: before anything runs, over the pages of the first n_seqs
 * slots, below n_positions. */
void sv_deferred_measure(struct sv_engine *e, int32_t n_seqs, int32_t n_positions);
void sv_deferred_flush(
    struct sv_engine *e); /* before a sequence gives its pages back, to come back to them */
void sv_deferred_end(struct sv_engine *e,
                     struct sv_seq *q); /* before it gives them back for good */

#endif
