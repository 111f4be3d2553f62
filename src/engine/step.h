/*
 * step.h - what the files of the step share: stages that have a file of their own, and the wrappers
 * around passes.
 *
 * Included by engine.h. step.c lists the stages in order; fill.c, launch.c and advance.c are called
 * from there. Must not: offer a stage to anything but the step.
 */
#ifndef SV_ENGINE_STEP_H
#define SV_ENGINE_STEP_H

#include "backend/ops.h"
#include "engine/ranks.h"

struct sv_engine;

/* The phases of a step's host time. Copies and launches count as the calls that enqueue them. */
enum sv_phase {
    SV_PHASE_PLAN,
    SV_PHASE_FILL,   /* host arrays and their upload */
    SV_PHASE_DRAFT,  /* launching the drafting pass */
    SV_PHASE_TARGET, /* launching the target's */
    SV_PHASE_BACK,   /* enqueuing the download and its mark */
    SV_PHASE_WAIT,
    SV_PHASE_ADVANCE,
    SV_PHASES
};

/* A benchmark's hook within a step (simulated acceptance: src/bench/accept.c). */
struct sv_step_hooks {
    void *user;
    /* called after the drafting pass, outside of graphs: uploads accept_len of each segment */
    void (*drafted)(void *user);
};

/* step.c: adds the time since the last call to the phase; returns it in ns. */
int64_t sv_step_lap(struct sv_engine *e, enum sv_phase phase);
/* The rows of the current plan, as kernels see them. */
struct sv_rows sv_engine_rows(const struct sv_engine *e);
/* With DP attention: the offset of a part's rows in its own batch, and the number of rows a pass
 * runs over: the actual one, or in replayed passes the padded one, derived from the launch's rows.
 */
struct sv_own_place {
    int32_t row0, n_rows, seg0, n_segs;
};
struct sv_own_place sv_engine_own_place(const struct sv_engine *e, int32_t part);
/* The rows of this rank. False: it has all rows. */
bool sv_engine_own_rows(const struct sv_engine *e, struct sv_own_rows *own);

/* fill.c: stage fill. Fills both passes' arrays at once, or, where the host reads the drafts before
 * the target's pass, those of the drafting pass first and the target's afterwards. */
void sv_step_fill(struct sv_engine *e);
void sv_step_fill_target(struct sv_engine *e);

/* launch.c: sets the launch counts; recount: those of the target's pass again, after pruning. */
void sv_launch_counts(struct sv_engine *e);
void sv_launch_recount(struct sv_engine *e);
/* Enqueues a pass's stages, a list that NULL ends, or replays their captured graph. */
typedef void sv_stage_fn(struct sv_engine *e);
void sv_launch_draft(struct sv_engine *e, sv_stage_fn *const stage[]);
void sv_launch_target(struct sv_engine *e, sv_stage_fn *const stage[]);

/* step.c: on a follower, runs a pass of the plan that rank 0 broadcast. */
void sv_step_follow(struct sv_engine *e, enum sv_pass_kind kind);

/* advance.c: stage advance. */
void sv_step_advance(struct sv_engine *e);

#endif
