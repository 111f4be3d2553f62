/*
 * worker_own.h - a worker's state, shared by worker.c and remote.c: its engine is in this process,
 * or its commands are sent to the process that has it.
 *
 * Included by these two alone. Must not: be included by the loop's files.
 */
#ifndef SV_SERVE_CORE_WORKER_OWN_H
#define SV_SERVE_CORE_WORKER_OWN_H

#include "serve/core/call.h"

enum sv_command_kind {
    SV_COMMAND_SUBMIT,
    SV_COMMAND_CANCEL,
    SV_COMMAND_FLUSH,
    SV_COMMAND_FAIL,
    SV_COMMAND_STOP
};
struct sv_command {
    enum sv_command_kind kind;
    struct sv_choice *choice;
    uint64_t serial;
};

/* A sequence that the engine has; the `user` of its request. */
struct sv_live {
    struct sv_worker *w;
    struct sv_choice *choice; /* NULL = free */
    uint64_t serial, id;
    bool reported; /* it has had an event */
};

struct sv_worker {
    struct sv_queue *commands;
    struct sv_mail *mail; /* the loop's, which all workers post to */
    struct sv_cell *cell;
    struct sv_thread *thread;
    struct sv_serve_options o;
    int32_t replica;
    struct sv_remote *remote;      /* NULL: the engine is here */
    struct sv_serve_engine engine; /* the thread's, but for `known` */
    bool opened, stopping, broken;
    bool failing;  /* by sv_worker_fail: running and new sequences end with an error */
    char why[400]; /* why the engine broke */
    struct sv_serve_model model; /* read by the loop after SV_OUT_LOADED */
    struct sv_live *live;
    int32_t max_live, n_live;
    struct sv_buf batch;
    struct sv_snapshot snap;
    int64_t snap_us;
    bool ended;  /* a request has ended since the last report */
    bool urgent; /* the batch must wake the loop */
    char
        reason[400]; /* the reason given to sv_worker_fail: written once by the loop, before FAIL */
};

/* Adds a report to the batch; posts the batch; rejects the commands in the queue. */
void sv_worker_report(struct sv_worker *w, enum sv_out_kind kind, struct sv_choice *ch,
                      const char *message);
void sv_worker_post(struct sv_worker *w);
void sv_worker_refuse_rest(struct sv_worker *w);

/* remote.c: a worker whose engine is at the other end of a link. known is called by the loop and
 * waits for a few milliseconds at most. */
int sv_remote_open(struct sv_remote **r, struct sv_worker *w, const struct sv_link *link,
                   struct sv_err *err);
void *sv_remote_run(void *worker);
int32_t sv_remote_known(struct sv_remote *r, const struct sv_request *q);
void sv_remote_free(struct sv_remote *r); /* NULL is fine */

#endif
