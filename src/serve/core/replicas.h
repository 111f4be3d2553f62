/*
 * replicas.h - the engines behind the server, each with a worker of its own: routing of sequences,
 * reports, failed and drained replicas.
 *
 * Called by the loop alone. Must not: wait for an engine, except for its end.
 */
#ifndef SV_SERVE_CORE_REPLICAS_H
#define SV_SERVE_CORE_REPLICAS_H

#include "serve/core/options.h"
#include "serve/core/worker.h"

struct sv_api_err;
struct sv_serve;

struct sv_replica {
    struct sv_worker *worker;
    bool loaded, failed;
    bool drained;      /* gets no new sequences, and finishes those that it has */
    char why[480];     /* why it failed */
    int32_t n_live;    /* its sequences */
    int64_t n_rows;    /* rows of their prompts that are not computed yet */
    int32_t n_known;   /* cached tokens of the prompt that is being routed */
    int32_t n_flushed; /* its finished flushes that other replicas have not finished */
};

/* A replica's part of the options for all replicas, and the most sequences that one may have. */
struct sv_engine_options sv_replica_part(const struct sv_serve_options *all, int32_t replica);
int32_t sv_serve_max_live(const struct sv_serve_options *o);
/* hosted.c: runs the engine of this process's replica for process 0 until process 0 ends it, or has
 * died (an error). */
int sv_replica_host(const struct sv_serve_options *o, struct sv_err *err);
/* Divides processors, memory, sequences and GPUs among the replicas and starts their workers. */
int sv_replicas_start(struct sv_serve *s, struct sv_err *err);
void sv_replicas_finish(struct sv_serve *s); /* ends all threads; reports can still be collected */
void sv_replicas_free(struct sv_serve *s);
int32_t sv_replicas_live(const struct sv_serve *s);
int32_t sv_replicas_taking(const struct sv_serve *s); /* number neither failed nor drained */
bool sv_replicas_are_loading(const struct sv_serve *s);

/* Routes each of n consecutive choices to the replica that is expected to finish it first, whose
 * worker has it until sv_replicas_left. If no replica takes sequences, it will be rejected. */
void sv_replicas_submit(struct sv_serve *s, struct sv_choice *ch, int32_t n);
void sv_replicas_cancel(struct sv_serve *s, struct sv_choice *ch);
/* begun: the choice's prompt has been computed. left: the choice has ended. */
void sv_replicas_begun(struct sv_serve *s, struct sv_choice *ch);
void sv_replicas_left(struct sv_serve *s, struct sv_choice *ch);

/* Drains a replica (on), or resumes it. An error for a failed one, and for draining the last that
 * takes sequences. */
int sv_replicas_drain(struct sv_serve *s, int32_t replica, bool on, struct sv_api_err *e);
/* Marks a replica as failed: it gets no more sequences. */
void sv_replicas_lose(struct sv_serve *s, int32_t replica, const char *why, size_t n);
/* Fails all replicas, for instance because the model's files have changed. */
void sv_replicas_fail(struct sv_serve *s, const char *why);
void sv_replicas_flush(struct sv_serve *s);
/* A replica has flushed. True: now all have, for the oldest unfinished flush. */
bool sv_replicas_flushed(struct sv_serve *s, int32_t replica);
/* Sums over all replicas; for loading, the progress of the slowest. */
void sv_replicas_snapshot(const struct sv_serve *s, struct sv_snapshot *out);

#endif
