/*
 * remote.c - a worker whose engine is in another process: one thread sends the loop's commands,
 * another one receives the reports of the worker there (hosted.c) and posts them unchanged.
 *
 * Called by worker.c. The process counts as failed when its link closes or is silent for longer
 * than --device-timeout; its sequences then end like those of a failed device. Must not: let the
 * loop wait for the link, except a few milliseconds for a query of the prefix cache.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/core/wire.h"
#include "serve/core/worker_own.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#define IDLE_WAIT_US 1000000
#define ASK_US 10000  /* longest wait for an answer, which normally takes 0.1 ms */
#define ASK_IDS 65536 /* of a longer prompt, only so many ids are looked up */

struct sv_remote {
    struct sv_worker *w;
    struct sv_link link;
    struct sv_thread *reader;
    int64_t timeout_us;
    /* Protects the worker's sequences, batch and state, which both threads change. */
    struct sv_lock *lock;
    int32_t n_flushes; /* flushes sent and not reported yet */
    struct sv_buf out; /* the sender's */
    /* The loop's: a query or answer, and the number of queries. */
    struct sv_buf query;
    uint64_t n_asked, n_answered;
    bool mute; /* no more queries are sent */
};

/* ---------------------------------------------------------------- reports */

/* Ends every sequence that the process has; another replica may run it. */
static void lose(struct sv_remote *r, const char *why)
{
    struct sv_worker *w = r->w;

    sv_lock_take(r->lock);
    w->broken = true;
    snprintf(w->why, sizeof w->why, "%s", why);
    for (int32_t i = 0; i < w->max_live; i++) {
        struct sv_live *l = &w->live[i];
        if (!l->choice)
            continue;
        const struct sv_out o = {.kind = SV_OUT_EVENT,
                                 .choice = l->choice,
                                 .finish = SV_FINISH_ERROR,
                                 .urgent = true,
                                 .lost = true,
                                 .replica = w->replica,
                                 .stop_id = -1,
                                 .stop_index = -1,
                                 .n_message = (uint32_t)strlen(w->why),
                                 .message = w->why,
                                 .at_us = sv_clock_us()};
        sv_out_pack(&w->batch, &o, NULL, NULL);
        l->choice = NULL;
    }
    sv_worker_report(w, SV_OUT_FAILED, NULL, w->why);
    for (; r->n_flushes; r->n_flushes--)
        sv_worker_report(w, SV_OUT_FLUSHED, NULL, NULL);
    sv_worker_post(w);
    sv_lock_leave(r->lock);
    for (int i = 0; i < SV_LINK_FDS; i++)
        shutdown(r->link.fd[i], SHUT_RDWR); /* the sender may be waiting in there */
}

/* Times of reports are replaced by those of this process's clock. */
static void take_reports(struct sv_remote *r, struct sv_buf *in)
{
    struct sv_worker *w = r->w;
    const int64_t now = sv_clock_us();
    struct sv_out_mark m;

    sv_lock_take(r->lock);
    for (size_t at = 0; sv_out_peek(in, at, &m); at += m.n_bytes) {
        w->urgent |= m.urgent || m.kind != SV_OUT_EVENT;
        r->n_flushes -= m.kind == SV_OUT_FLUSHED;
        sv_out_pass(in, at, m.choice, now);
        for (int32_t i = 0; m.choice && m.last && i < w->max_live; i++)
            if (w->live[i].choice == m.choice)
                w->live[i].choice = NULL;
    }
    sv_buf_append(&w->batch, in->data, in->len);
    if (w->batch.failed)
        sv_panic("out of memory for %zu bytes of results", in->len);
    sv_worker_post(w);
    sv_lock_leave(r->lock);
}

static void *read_link(void *arg)
{
    struct sv_remote *r = arg;
    struct sv_worker *w = r->w;
    struct sv_buf in = {0};
    enum sv_link_got got = SV_LINK_MESSAGE;
    uint32_t kind = 0;
    char why[300];

    while (kind != SV_WIRE_ENDED) {
        got = sv_link_take(r->link.fd[SV_LINK_WORK], &kind, &in, r->timeout_us);
        if (got)
            break;
        if (kind == SV_WIRE_REPORTS)
            take_reports(r, &in);
        else if (kind == SV_WIRE_SNAPSHOT && in.len == sizeof w->snap)
            sv_cell_set(w->cell, in.data);
    }
    if (got == SV_LINK_SILENT)
        snprintf(why, sizeof why, "no word from process %d on %s for %lld ms", r->link.process,
                 r->link.host, (long long)(r->timeout_us / 1000));
    else
        snprintf(why, sizeof why, "process %d on %s has ended", r->link.process, r->link.host);
    if (got)
        lose(r, why);
    if (got == SV_LINK_SILENT && r->link.pid)
        kill(r->link.pid, SIGKILL); /* it may be stopped, which nothing else ends */
    sv_buf_fini(&in);
    return NULL;
}

/* ---------------------------------------------------------------- commands */

static void send_out(struct sv_remote *r, enum sv_wire_kind kind)
{
    if (r->out.failed)
        sv_panic("out of memory for a request to replica %d", r->w->replica);
    /* A failed send is not handled here: the reader sees the closed link and ends all sequences. */
    sv_link_send(r->link.fd[SV_LINK_WORK], kind, r->out.data, r->out.len);
}

static void submit(struct sv_remote *r, struct sv_choice *ch, uint64_t serial)
{
    const struct sv_wire_choice head = {.serial = serial, .choice = (uint64_t)(uintptr_t)ch};
    struct sv_worker *w = r->w;
    int32_t i = 0;

    sv_buf_append(&r->out, &head, sizeof head);
    sv_wire_pack(&r->out, &ch->r);
    sv_lock_take(r->lock);
    const bool broken = w->broken;
    while (i < w->max_live && w->live[i].choice)
        i++;
    SV_REQUIRE(i < w->max_live); /* the loop limits their number */
    if (broken)
        sv_worker_report(w, SV_OUT_REJECTED, ch, w->why);
    else
        w->live[i].choice = ch;
    sv_lock_leave(r->lock);
    if (!broken)
        send_out(r, SV_WIRE_SUBMIT);
}

static void flush(struct sv_remote *r)
{
    sv_lock_take(r->lock);
    const bool broken = r->w->broken;
    if (broken)
        sv_worker_report(r->w, SV_OUT_FLUSHED, NULL, NULL);
    else
        r->n_flushes++;
    sv_lock_leave(r->lock);
    if (!broken)
        send_out(r, SV_WIRE_FLUSH);
}

static void run_command(struct sv_remote *r, const struct sv_command *c)
{
    sv_buf_clear(&r->out);
    switch (c->kind) {
    case SV_COMMAND_SUBMIT:
        submit(r, c->choice, c->serial);
        break;
    case SV_COMMAND_CANCEL:
        sv_buf_append(&r->out, &c->serial, sizeof c->serial);
        send_out(r, SV_WIRE_CANCEL);
        break;
    case SV_COMMAND_FLUSH:
        flush(r);
        break;
    case SV_COMMAND_FAIL:
        sv_buf_append(&r->out, r->w->reason, sizeof r->w->reason);
        send_out(r, SV_WIRE_FAIL);
        break;
    case SV_COMMAND_STOP:
        r->w->stopping = true;
        send_out(r, SV_WIRE_STOP);
        break;
    }
}

static void post(struct sv_remote *r)
{
    sv_lock_take(r->lock);
    sv_worker_post(r->w);
    sv_lock_leave(r->lock);
}

void *sv_remote_run(void *worker)
{
    struct sv_worker *w = worker;
    struct sv_remote *r = w->remote;
    struct sv_command c;
    struct sv_err err = {0};

    if (sv_thread_start(&r->reader, read_link, r, &err))
        lose(r, err.msg);
    while (!w->stopping)
        if (sv_queue_pop(w->commands, &c, IDLE_WAIT_US)) {
            run_command(r, &c);
            post(r);
        }
    if (r->reader)
        sv_thread_join(r->reader); /* it ends with the link, or what is silent for too long */
    sv_worker_refuse_rest(w);
    post(r);
    return NULL;
}

/* ---------------------------------------------------------------- questions of the loop */

/* The answer to the newest query; false: it did not arrive in time. */
static bool take_answer(struct sv_remote *r, struct sv_wire_known *known, int64_t end_us)
{
    while (r->n_answered < r->n_asked) {
        const int64_t left = end_us - sv_clock_us();
        uint32_t kind;
        const enum sv_link_got got =
            sv_link_take(r->link.fd[SV_LINK_ASK], &kind, &r->query, left > 0 ? left : 0);
        if (got == SV_LINK_SILENT)
            return false;
        r->mute = got == SV_LINK_GONE || kind != SV_WIRE_KNOWN || r->query.len != sizeof *known;
        if (r->mute)
            return false;
        memcpy(known, r->query.data, sizeof *known);
        r->n_answered = known->number;
    }
    return true;
}

/* A process that did not answer in time gets no further query until it has answered. */
int32_t sv_remote_known(struct sv_remote *r, const struct sv_request *q)
{
    const int64_t end = sv_clock_us() + ASK_US;
    struct sv_wire_ask ask = {.n_images = q->n_images, .prompt_logprobs = q->prompt_logprobs};
    struct sv_wire_known known = {0};

    if (r->mute || !take_answer(r, &known, 0))
        return 0;
    ask.number = ++r->n_asked;
    memcpy(ask.cache_salt, q->cache_salt, sizeof ask.cache_salt);
    const int32_t n = q->n_prompt_ids < ASK_IDS ? q->n_prompt_ids : ASK_IDS;
    sv_buf_clear(&r->query);
    sv_buf_append(&r->query, &ask, sizeof ask);
    sv_buf_append(&r->query, q->prompt_ids, (size_t)n * sizeof *q->prompt_ids);
    r->mute = r->query.failed ||
              !sv_link_send(r->link.fd[SV_LINK_ASK], SV_WIRE_ASK, r->query.data, r->query.len);
    return !r->mute && take_answer(r, &known, end) ? known.n : 0;
}

/* ---------------------------------------------------------------- life */

int sv_remote_open(struct sv_remote **out, struct sv_worker *w, const struct sv_link *link,
                   struct sv_err *err)
{
    const int32_t s = w->o.engine.device_timeout;
    struct sv_remote *r = sv_calloc(1, sizeof *r);

    if (!r)
        return sv_fail(err, SV_ENOMEM, -1, "worker");
    r->w = w;
    r->link = *link;
    r->timeout_us = s < 0 ? -1 : (int64_t)(s ? s : 60) * 1000000;
    *out = r;
    setsockopt(link->fd[SV_LINK_ASK], SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){0, ASK_US},
               sizeof(struct timeval));
    setsockopt(link->fd[SV_LINK_ASK], SOL_SOCKET, SO_SNDBUF, &(int){2 * 4 * ASK_IDS}, sizeof(int));
    return sv_lock_open(&r->lock, err);
}

void sv_remote_free(struct sv_remote *r)
{
    if (!r)
        return;
    sv_link_close(&r->link);
    sv_lock_close(r->lock);
    sv_buf_fini(&r->out);
    sv_buf_fini(&r->query);
    sv_free(r);
}
