/*
 * deferred_kv.h - the deferred context-KV update: taps of plain steps under the width policy,
 * processed many at a time.
 *
 * Called by the step and by engine.c. Must not: keep taps of a sequence that has released its
 * pages.
 */
#ifndef SV_ENGINE_DEFERRED_KV_H
#define SV_ENGINE_DEFERRED_KV_H

#include "engine/batch.h"
#include "engine/seq.h"

struct sv_deferred_row {
    uint64_t request; /* the sequence's request */
    int32_t slot, base;
    int32_t at; /* index of its taps; beyond the last entry: a free index */
};
/* Arrays of a chunk: index, ones, and the slot and position of each row. */
enum { SV_DEFERRED_INDEX, SV_DEFERRED_ONE, SV_DEFERRED_SLOT, SV_DEFERRED_POS, SV_DEFERRED_PAIRS };
struct sv_deferred {
    int32_t cap_rows; /* 0: never deferred */
    int32_t n_rows;   /* deferred rows */
    bool now;         /* the current plan's taps are deferred */
    uint64_t one_in;  /* sampling rate among the running sequences, see deferred_kv.c */
    bool pays_alone;  /* a single sequence would draft, when last checked */
    uint32_t n_plans;
    size_t row_bytes;
    double row_us; /* cost of an update per row */
    void *taps;    /* device, (cap_rows, n_taps * hidden) act */
    /* (max_rows) indices of the current plan's taps; -1: not deferred */
    struct sv_i32_pair tap_row;
    struct sv_deferred_row *row; /* host, (cap_rows), in order of arrival */
    int32_t chunk_rows;
    void *chunk; /* device, (chunk_rows, n_taps * hidden): taps of an update */
    struct sv_i32_pair pair[SV_DEFERRED_PAIRS];
};
struct sv_engine;
int sv_deferred_open(struct sv_deferred *h, struct sv_dev *dev, int32_t n_slots, int32_t max_rows,
                     int64_t n_positions, size_t row_bytes, struct sv_err *err);
void sv_deferred_close(struct sv_deferred *h, struct sv_dev *dev);
void sv_deferred_plan(struct sv_engine *e); /* before the current plan is enqueued */
/* Measures the cost per row, before anything runs, on the pages of the first n_seqs slots below
 * n_positions. */
void sv_deferred_measure(struct sv_engine *e, int32_t n_seqs, int32_t n_positions);
void sv_deferred_flush(struct sv_engine *e);                 /* before a sequence is preempted */
void sv_deferred_end(struct sv_engine *e, struct sv_seq *q); /* before a sequence ends */

#endif
