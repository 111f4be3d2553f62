/*
 * trace.h - traces of a device for benchmarks (trace.c).
 *
 * Called by the benchmarks. Must not: be used by an engine that serves.
 */
#ifndef SV_TRACE_H
#define SV_TRACE_H

#include "backend/device.h"

/* A traced device's table is replaced until the trace ends: every op goes through the trace first,
 * which counts it, times it or leaves it out. Ops are distinguished by kind, shape and pass. */
struct sv_trace;
struct sv_trace_class {
    char name[40];
    int32_t pass; /* graph_run calls since the last mark, this one included; 0 = outside */
    int32_t n;    /* calls */
    double us;    /* in modes that time */
};
#define SV_TRACE_CLASSES 64
enum sv_trace_mode {
    SV_TRACE_COUNT,
    SV_TRACE_OPS,  /* passes are not replayed; the time from op to op */
    SV_TRACE_CALLS /* the time from call to call: a pass, a copy */
};
int sv_trace_begin(struct sv_trace **t, struct sv_dev *dev, struct sv_err *err);
void sv_trace_end(struct sv_trace *t);
/* Counts and times start at zero from here; nothing may be under way. */
void sv_trace_start(struct sv_trace *t, enum sv_trace_mode mode);
/* What was seen since; of timed calls only those of whole steps, mark to mark. Nothing may be under
 * way. */
const struct sv_trace_class *sv_trace_read(struct sv_trace *t, int32_t *n);
/* Classes left out from now on, bit by bit. What they would have written stays as it was: numbers
 * mean nothing, times do; faults of kernels that meet such numbers are dropped. */
void sv_trace_skip(struct sv_trace *t, uint64_t classes);

#endif
