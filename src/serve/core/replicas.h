/*
 * replicas.h - the engines behind the server, each with a worker of its own: which of them takes a
 * sequence, what they report, which have failed or are drained.
 *
 * Called by the loop alone. Must not: wait for an engine, but for its end.
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
    bool drained;      /* gets no sequences; what it has, it finishes */
    char why[480];     /* it failed */
    int32_t n_live;    /* sequences it has */
    int64_t n_rows;    /* of their prompts, to be computed before all of them have begun */
    int32_t n_known;   /* tokens that its prefix cache has, of the prompt being given away */
    int32_t n_flushed; /* flushes that others are not done with */
};

/* A replica's part of what the options give to all of them, and the most sequences that one may
 * have. */
struct sv_engine_options sv_replica_part(const struct sv_serve_options *all, int32_t replica);
int32_t sv_serve_max_live(const struct sv_serve_options *o);
/* hosted.c: the engine of this process's replica works for process 0 until that ends it, or is gone
 * (an error). */
int sv_replica_host(const struct sv_serve_options *o, struct sv_err *err);
/* Splits what the options give to all of them (processors, memory, sequences, GPUs) and starts one
 * worker each. */
int sv_replicas_start(struct sv_serve *s, struct sv_err *err);
void sv_replicas_finish(struct sv_serve *s); /* ends all threads; reports can still be collected */
void sv_replicas_free(struct sv_serve *s);
int32_t sv_replicas_live(const struct sv_serve *s);
int32_t sv_replicas_taking(const struct sv_serve *s); /* that are neither failed nor drained */
bool sv_replicas_are_loading(const struct sv_serve *s);

/* Gives each of n choices in a row to the replica that will be done with it first: it is that
 * worker's until it is left. Where none takes sequences, it will be rejected. */
void sv_replicas_submit(struct sv_serve *s, struct sv_choice *ch, int32_t n);
void sv_replicas_cancel(struct sv_serve *s, struct sv_choice *ch);
/* Its prompt has been computed; it has ended. */
void sv_replicas_begun(struct sv_serve *s, struct sv_choice *ch);
void sv_replicas_left(struct sv_serve *s, struct sv_choice *ch);

/* No more sequences for it, until it is resumed; of a failed one, and of the last that takes any,
 * an error. */
int sv_replicas_drain(struct sv_serve *s, int32_t replica, bool on, struct sv_api_err *e);
/* It has failed: it gets no more sequences. */
void sv_replicas_lose(struct sv_serve *s, int32_t replica, const char *why, size_t n);
/* Fails all of them: their answers are not the model's any more. */
void sv_replicas_fail(struct sv_serve *s, const char *why);
void sv_replicas_flush(struct sv_serve *s);
/* One has flushed. True: by now all have, for the oldest flush that was not done. */
bool sv_replicas_flushed(struct sv_serve *s, int32_t replica);
/* Sums over all of them; of loading, the one that is least far. */
void sv_replicas_snapshot(const struct sv_serve *s, struct sv_snapshot *out);

#endif
