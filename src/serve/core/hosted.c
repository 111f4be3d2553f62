/*
 * hosted.c - the first process of a replica other than the first one: the worker of its engine,
 * whose commands come through a link and whose reports go there.
 *
 * Called by serve.c. Three threads beside the worker's: the caller's receives commands, one sends
 * reports, one answers queries of the prefix cache. The other end is remote.c. Must not: answer
 * clients, or outlive process 0.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/core/call.h"
#include "serve/core/replicas.h"
#include "serve/core/wire.h"

#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>

#define SNAPSHOT_EVERY_US 20000
#define HEARTBEAT_US 1000000 /* a snapshot is sent this often, without reports too */
#define WAIT_MS 100

struct hosted {
    struct sv_worker *worker;
    struct sv_mail *mail;
    const int *fd; /* of the link */
    struct sv_thread *sender, *answerer;
    struct sv_wire_grammars grammars; /* the caller's thread's */
    atomic_bool loaded, ended;        /* ended: the worker has, and nothing more will be reported */
};

/* A received request. The worker has its choice, and the engine a copy of what it needs. */
struct item {
    struct sv_choice choice; /* first */
    uint64_t theirs;         /* process 0's choice */
    struct sv_buf bytes;
    struct sv_arena arena;
};

static void free_item(struct item *x)
{
    sv_wire_done(&x->choice.r);
    sv_arena_fini(&x->arena);
    sv_buf_fini(&x->bytes);
    sv_free(x);
}

/* ---------------------------------------------------------------- reports */

static void send_reports(struct hosted *h, struct sv_buf *batch)
{
    struct sv_out_mark m;

    for (size_t at = 0; sv_out_peek(batch, at, &m); at += m.n_bytes) {
        struct item *x = (struct item *)(void *)m.choice;
        if (m.kind == SV_OUT_LOADED)
            atomic_store(&h->loaded, true);
        if (!x)
            continue;
        sv_out_pass(batch, at, (struct sv_choice *)(uintptr_t)x->theirs, m.at_us);
        if (m.last)
            free_item(x);
    }
    if (batch->len)
        sv_link_send(h->fd[SV_LINK_WORK], SV_WIRE_REPORTS, batch->data, batch->len);
}

/* A failed send also ends the thread that receives commands, since the link is closed. */
static void *run_sender(void *arg)
{
    struct hosted *h = arg;
    struct sv_buf batch = {0};
    struct sv_snapshot snap;
    int64_t snap_us = 0;
    bool last = false;

    while (!last) {
        poll(&(struct pollfd){.fd = sv_mail_fd(h->mail), .events = POLLIN}, 1, WAIT_MS);
        last = atomic_load(&h->ended);
        sv_mail_take(h->mail, &batch);
        const int64_t now = sv_clock_us();
        /* before the results, so that counters read after an answer include it */
        if (last || now - snap_us >= (batch.len ? SNAPSHOT_EVERY_US : HEARTBEAT_US)) {
            sv_worker_snapshot(h->worker, &snap);
            sv_link_send(h->fd[SV_LINK_WORK], SV_WIRE_SNAPSHOT, &snap, sizeof snap);
            snap_us = now;
        }
        send_reports(h, &batch);
    }
    sv_link_send(h->fd[SV_LINK_WORK], SV_WIRE_ENDED, NULL, 0);
    sv_buf_fini(&batch);
    return NULL;
}

/* ---------------------------------------------------------------- what the prefix cache knows */

static int32_t known(const struct hosted *h, const struct sv_buf *in, struct sv_wire_ask *ask)
{
    struct sv_request q = {0};

    if (in->len < sizeof *ask || !atomic_load(&h->loaded))
        return 0;
    memcpy(ask, in->data, sizeof *ask);
    memcpy(q.cache_salt, ask->cache_salt, sizeof q.cache_salt);
    q.n_images = ask->n_images;
    q.prompt_logprobs = ask->prompt_logprobs;
    q.prompt_ids = (const int32_t *)(const void *)(in->data + sizeof *ask);
    q.n_prompt_ids = (int32_t)((in->len - sizeof *ask) / sizeof *q.prompt_ids);
    return sv_worker_known(h->worker, &q);
}

static void *run_answerer(void *arg)
{
    struct hosted *h = arg;
    struct sv_buf in = {0};
    uint32_t kind;

    while (sv_link_take(h->fd[SV_LINK_ASK], &kind, &in, -1) == SV_LINK_MESSAGE) {
        struct sv_wire_ask ask = {0};
        struct sv_wire_known answer = {.n = known(h, &in, &ask)};
        answer.number = ask.number;
        sv_link_send(h->fd[SV_LINK_ASK], SV_WIRE_KNOWN, &answer, sizeof answer);
    }
    sv_buf_fini(&in);
    return NULL;
}

/* ---------------------------------------------------------------- commands */

/* A request that cannot be read comes from another build, which is an error of the link. */
static int submit(struct hosted *h, struct sv_buf *in, struct sv_err *err)
{
    struct item *x = sv_calloc(1, sizeof *x);
    struct sv_wire_choice head;

    if (!x || in->len < sizeof head) {
        sv_free(x);
        return sv_fail(err, SV_ENOMEM, -1, "a request of %zu bytes", in->len);
    }
    sv_arena_init(&x->arena);
    x->bytes = *in;
    *in = (struct sv_buf){0};
    memcpy(&head, x->bytes.data, sizeof head);
    x->theirs = head.choice;
    x->choice.serial = head.serial;
    int rc = sv_wire_unpack(&x->choice.r, &x->arena, &h->grammars, x->bytes.data + sizeof head,
                            x->bytes.len - sizeof head, err);
    if (rc)
        free_item(x);
    else
        sv_worker_submit(h->worker, &x->choice);
    return rc;
}

static int run_command(struct hosted *h, uint32_t kind, struct sv_buf *in, struct sv_err *err)
{
    uint64_t serial = 0;

    switch (kind) {
    case SV_WIRE_SUBMIT:
        return submit(h, in, err);
    case SV_WIRE_CANCEL:
        if (in->len == sizeof serial)
            memcpy(&serial, in->data, sizeof serial);
        sv_worker_cancel(h->worker, serial);
        return SV_OK;
    case SV_WIRE_FLUSH:
        sv_worker_flush(h->worker);
        return SV_OK;
    case SV_WIRE_FAIL:
        sv_worker_fail(h->worker, in->data);
        return SV_OK;
    default:
        return sv_fail(err, SV_EMISMATCH, -1, "process 0 sent message %u: another build?", kind);
    }
}

static int take_commands(struct hosted *h, struct sv_err *err)
{
    struct sv_buf in = {0};
    uint32_t kind = 0;
    int rc = SV_OK;

    while (!rc && sv_link_take(h->fd[SV_LINK_WORK], &kind, &in, -1) == SV_LINK_MESSAGE) {
        if (kind == SV_WIRE_STOP)
            break;
        rc = run_command(h, kind, &in, err);
    }
    sv_buf_fini(&in);
    return rc || kind == SV_WIRE_STOP ? rc : sv_fail(err, SV_EIO, -1, "process 0 has ended");
}

int sv_replica_host(const struct sv_serve_options *o, struct sv_err *err)
{
    const int32_t replica = o->processes->place.replica;
    struct sv_link link = o->processes->link[replica];
    struct hosted h = {.fd = link.fd};
    struct sv_serve_options own = *o;
    int rc = sv_mail_open(&h.mail, err);

    own.engine = sv_replica_part(o, replica);
    if (!rc)
        rc = sv_worker_start(&h.worker, &own, replica, sv_serve_max_live(o), h.mail, err);
    if (!rc)
        rc = sv_thread_start(&h.sender, run_sender, &h, err);
    if (!rc)
        rc = sv_thread_start(&h.answerer, run_answerer, &h, err);
    if (!rc)
        rc = take_commands(&h, err);
    shutdown(link.fd[SV_LINK_ASK], SHUT_RDWR);
    if (h.answerer)
        sv_thread_join(h.answerer); /* before the cache is closed */
    if (h.worker) {
        sv_worker_stop(h.worker);
        sv_worker_join(h.worker);
    }
    atomic_store(&h.ended, true);
    if (h.sender)
        sv_thread_join(h.sender);
    sv_worker_free(h.worker);
    sv_mail_close(h.mail);
    sv_wire_forget(&h.grammars);
    sv_link_close(&link);
    return rc;
}
