/*
 * serve.c - the server's life: opening, the event loop, the workers' reports, draining, closing.
 *
 * Called by cli and tests through serve.h. One thread runs everything here; only sv_serve_stop may
 * be called from another. Must not: block, except in close, which waits for the other threads.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/core/auth.h"
#include "serve/core/grammars.h"
#include "serve/core/images.h"
#include "serve/core/log.h"
#include "serve/core/send.h"
#include "serve/core/tools.h"
#include "serve/openai/openai.h"
#include "serve/route.h"
#include "serve/serve.h"
#include "serve/sglang/sglang.h"

#include <errno.h>
#include <event2/event.h>
#include <openssl/rand.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 250

/* ---------------------------------------------------------------- draining */

static void check_drained(struct sv_serve *s)
{
    const int64_t now = sv_clock_us();

    if (!s->drain_us)
        return; /* the state does not tell: the device may fail meanwhile */
    if (!s->drain_over_us && now - s->drain_us > (int64_t)s->o.drain_seconds * 1000000) {
        s->drain_over_us = now;
        sv_call_cancel_all(s); /* clients get an error */
    }
    if ((s->drain_over_us && now - s->drain_over_us > 2000000) ||
        (!s->calls && !sv_http_n_open(s->http)))
        event_base_loopbreak(s->base);
}

static void stop(struct sv_serve *s)
{
    if (atomic_fetch_add(&s->n_stops, 1) || s->state == SV_LOADING || s->state == SV_BROKEN) {
        event_base_loopbreak(s->base);
        return;
    }
    struct sv_log_field f[] = {SV_LOG_I("unfinished", s->n_live),
                               SV_LOG_I("drain_seconds", s->o.drain_seconds)};
    sv_serve_log(s, "draining", f, 2);
    s->state = SV_DRAINING;
    s->drain_us = sv_clock_us();
    sv_http_stop_listening(s->http);
    check_drained(s);
}

static void on_stop(evutil_socket_t fd, short what, void *arg)
{
    uint64_t n = 0;
    (void)what;
    if (read(fd, &n, sizeof n) < 0)
        return;
    for (; n; n--)
        stop(arg);
}

/* ---------------------------------------------------------------- figures now and then */

static void log_figures(struct sv_serve *s, int64_t now)
{
    struct sv_snapshot snap;

    if (s->o.log_seconds < 0 || now - s->last_us < (int64_t)s->o.log_seconds * 1000000)
        return;
    sv_replicas_snapshot(s, &snap);
    const struct sv_engine_stats *a = &s->last.stats, *b = &snap.stats;
    double seconds = (double)(now - s->last_us) / 1e6;
    int64_t verify = b->n_verify_steps - a->n_verify_steps, drafted = b->n_drafted - a->n_drafted;
    int64_t accepted = b->n_accepted - a->n_accepted;
    bool idle = s->metrics.n_tokens == s->last_tokens && !s->n_live;
    if (!idle || !s->idle_said) {
        struct sv_log_field f[] = {
            SV_LOG_I("running", b->n_running),
            SV_LOG_I("waiting", b->n_waiting),
            SV_LOG_F("tokens_per_s", (double)(s->metrics.n_tokens - s->last_tokens) / seconds),
            SV_LOG_F("accept_length", verify ? 1 + (double)accepted / (double)verify : 0),
            SV_LOG_F("accept_rate", drafted ? (double)accepted / (double)drafted : 0),
            SV_LOG_I("pages_used", b->n_pages_used),
            SV_LOG_I("pages", b->n_pages),
            SV_LOG_I("preemptions", b->n_preemptions),
        };
        sv_serve_log(s, "figures", f, (int)(sizeof f / sizeof f[0]));
    }
    s->idle_said = idle;
    s->last = snap;
    s->last_us = now;
    s->last_tokens = s->metrics.n_tokens;
}

static void log_loading(struct sv_serve *s, int64_t now)
{
    struct sv_snapshot snap;

    s->last_us = s->last_us ? s->last_us : s->start_us;
    if (s->o.log_seconds < 0 || now - s->last_us < (int64_t)s->o.log_seconds * 1000000)
        return;
    sv_replicas_snapshot(s, &snap);
    struct sv_log_field f[] = {
        SV_LOG_S("stage", sv_load_stage_name(snap.stage)),
        SV_LOG_F("progress", sv_load_progress(snap.stage, snap.stage_share)),
    };
    sv_serve_log(s, "loading", f, 2);
    s->last_us = now;
}

static void refresh_tls(struct sv_serve *s)
{
    struct sv_err err = {0};
    int rc = s->tls ? sv_tls_refresh(&s->tls, s->tls_seen, s->o.tls_cert, s->o.tls_key, &err) : 0;

    if (rc > 0) {
        struct sv_log_field f[] = {SV_LOG_S("certificate", s->o.tls_cert)};
        sv_http_set_tls(s->http, s->tls);
        sv_serve_log(s, "certificate read again", f, 1);
    } else if (rc < 0) {
        struct sv_log_field f[] = {SV_LOG_S("message", err.msg)};
        sv_serve_log(s, "certificate kept", f, 1);
    }
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct sv_serve *s = arg;
    int64_t now = sv_clock_us();

    (void)fd, (void)what;
    sv_call_tick(s, now);
    sv_http_tick(s->http, now);
    refresh_tls(s);
    sv_watch_tick(s, now);
    if (s->state == SV_READY)
        log_figures(s, now);
    else if (s->state == SV_LOADING)
        log_loading(s, now);
    check_drained(s);
}

/* ---------------------------------------------------------------- the workers' reports */

static void on_loaded(struct sv_serve *s, int32_t replica)
{
    const struct sv_engine_info *info;

    s->replicas[replica].loaded = true;
    if (sv_replicas_are_loading(s) || s->state == SV_BROKEN)
        return;
    s->model = sv_worker_model(s->replicas[0].worker);
    info = &s->model->info;
    sv_tools_open(s);
    if (s->state == SV_LOADING)
        s->state = SV_READY;
    struct sv_log_field f[] = {
        SV_LOG_S("model", s->model_name),
        SV_LOG_S("architecture", info->target_arch),
        SV_LOG_S("device", info->device),
        SV_LOG_S("dtype", info->dtype),
        SV_LOG_I("context", info->context),
        SV_LOG_I("verify_width", info->width),
        SV_LOG_I("replicas", s->n_replicas),
        SV_LOG_F("seconds", (double)(sv_clock_us() - s->start_us) / 1e6),
    };
    sv_serve_log(s, "ready", f, (int)(sizeof f / sizeof f[0]));
    s->last_us = sv_clock_us();
}

/* The server lives as long as one of its replicas. */
static void on_failed(struct sv_serve *s, const struct sv_out *o)
{
    struct sv_replica *x = &s->replicas[o->replica];

    sv_replicas_lose(s, o->replica, o->message, o->n_message);
    struct sv_log_field f[] = {SV_LOG_S("message", x->why), SV_LOG_I("replica", o->replica)};
    sv_serve_log(s, "error", f, s->n_replicas > 1 ? 2 : 1);
    if (s->state == SV_LOADING)
        event_base_loopbreak(s->base);
    else if (sv_replicas_live(s))
        return;
    memcpy(s->broken, x->why, sizeof s->broken);
    s->state = SV_BROKEN;
}

/* Takes what was reported since the last call; without `all`, events that are not urgent stay. */
static void collect(struct sv_serve *s, bool all)
{
    sv_mail_take(s->mail, &s->inbox.taken);
    sv_inbox_begin(&s->inbox, all);
}

static void on_mail(evutil_socket_t fd, short what, void *arg)
{
    struct sv_serve *s = arg;
    struct sv_out o;

    (void)fd, (void)what;
    bool all = sv_call_streams_due(s);
    collect(s, all);
    while (sv_inbox_next(&s->inbox, &o)) {
        switch (o.kind) {
        case SV_OUT_EVENT:
        case SV_OUT_REJECTED:
            sv_call_out(s, &o);
            break;
        case SV_OUT_LOADED:
            on_loaded(s, o.replica);
            break;
        case SV_OUT_FAILED:
            on_failed(s, &o);
            break;
        case SV_OUT_FLUSHED:
            if (sv_replicas_flushed(s, o.replica))
                sv_flushed(s);
            break;
        }
    }
    sv_call_flush(s, all);
    if (s->turn_bytes > s->metrics.most_turn_bytes)
        s->metrics.most_turn_bytes = s->turn_bytes;
    s->turn_bytes = 0;
    check_drained(s);
}

static void on_prep(evutil_socket_t fd, short what, void *arg)
{
    struct sv_serve *s = arg;

    sv_prep_collect(s->prep);
    sv_call_unblock(s);
    on_mail(fd, what, arg); /* handle reports held for calls that were written */
}

/* ---------------------------------------------------------------- opening */

static void take_options(struct sv_serve *s, const struct sv_serve_options *o)
{
    s->o = *o;
    s->o.host = o->host ? o->host : "127.0.0.1";
    s->o.replicas = o->replicas > 1 ? o->replicas : 1;
    s->o.max_body_bytes = o->max_body_bytes ? o->max_body_bytes : (int64_t)16 << 20;
    s->o.max_kept_bytes = o->max_kept_bytes                ? o->max_kept_bytes
                          : s->o.max_body_bytes > 64 << 20 ? 4 * s->o.max_body_bytes
                                                           : (int64_t)256 << 20;
    s->o.max_backlog_bytes = o->max_backlog_bytes ? o->max_backlog_bytes : (int64_t)64 << 20;
    s->o.max_choices = o->max_choices ? o->max_choices : 128;
    s->o.idle_seconds = o->idle_seconds ? o->idle_seconds : 75;
    s->o.drain_seconds = o->drain_seconds ? o->drain_seconds : 60;
    s->o.log_seconds = o->log_seconds ? o->log_seconds : 10;
    s->o.stored_responses = o->stored_responses ? o->stored_responses : 1000;
    s->o.stored_bytes = o->stored_bytes ? o->stored_bytes : (int64_t)128 << 20;
    s->write_error = sv_route_write_error;
    s->write_ns = 5000; /* until it is measured */
    s->max_live = sv_serve_max_live(&s->o);
    if (o->model_name)
        snprintf(s->model_name, sizeof s->model_name, "%s", o->model_name);
    else
        sv_model_name(o->engine.target_dir, s->model_name, sizeof s->model_name);
}

static int open_template(struct sv_serve *s, struct sv_err *err)
{
    struct sv_buf text;

    if (!s->o.chat_template)
        return SV_OK;
    sv_buf_init(&text);
    int rc = sv_file_read_stream(&text, s->o.chat_template, (size_t)4 << 20, err);
    if (!rc && sv_model_chat_template(&s->chat, s->o.engine.target_dir, text.data ? text.data : "",
                                      text.len, err))
        rc = sv_err_prefix(err, "%s", s->o.chat_template);
    sv_buf_fini(&text);
    return rc;
}

static int add_event(struct sv_serve *s, struct event **ev, int fd, short what,
                     event_callback_fn fn, struct sv_err *err)
{
    struct timeval tick = {0, TICK_MS * 1000};

    *ev = event_new(s->base, fd, what, fn, s);
    if (!*ev || event_add(*ev, fd < 0 ? &tick : NULL))
        return sv_fail(err, SV_ENOMEM, -1, "event loop");
    return SV_OK;
}

static int open_events(struct sv_serve *s, struct sv_err *err)
{
    int rc = add_event(s, &s->on_mail, sv_mail_fd(s->mail), EV_READ | EV_PERSIST, on_mail, err);

    if (!rc)
        rc = add_event(s, &s->on_prep, sv_prep_fd(s->prep), EV_READ | EV_PERSIST, on_prep, err);
    s->stop_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!rc && s->stop_fd < 0)
        rc = sv_fail(err, SV_EIO, -1, "eventfd: %s", strerror(errno));
    if (!rc)
        rc = add_event(s, &s->on_stop, s->stop_fd, EV_READ | EV_PERSIST, on_stop, err);
    if (!rc)
        rc = add_event(s, &s->on_tick, -1, EV_PERSIST, on_tick, err);
    return rc;
}

/* Changes of the watched descriptors are passed to the kernel once a turn instead of one by one: a
 * request makes eight of them. This requires that descriptors are never duplicated. A descriptor
 * that was closed since is removed too; the kernel refuses that even if its number is in use again,
 * because the new one is not in this epoll set. */
static struct event_base *new_base(void)
{
    struct event_config *cfg = event_config_new();
    if (!cfg)
        return NULL;
    event_config_set_flag(cfg, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
    struct event_base *base = event_base_new_with_config(cfg);
    event_config_free(cfg);
    return base;
}

static int open_all(struct sv_serve *s, struct sv_err *err)
{
    const struct sv_serve_options *o = &s->o;
    struct sv_http_options ho = {.host = o->host,
                                 .port = o->port,
                                 .unix_path = o->unix_path,
                                 .max_body_bytes = o->max_body_bytes,
                                 .max_kept_bytes = o->max_kept_bytes,
                                 .max_connections = o->max_connections,
                                 .idle_seconds = o->idle_seconds,
                                 .on_head = sv_route_head,
                                 .on_request = sv_route,
                                 .on_refused = sv_route_refused,
                                 .user = s};
    int rc = SV_OK;

    s->base = new_base();
    s->scratch = sv_enc_scratch_new();
    if (!s->base || !s->scratch)
        rc = sv_fail(err, SV_ENOMEM, -1, "server");
    else if (RAND_bytes((unsigned char *)&s->random_key, sizeof s->random_key) != 1)
        rc = sv_fail(err, SV_EIO, -1, "no random numbers");
    if (!rc && o->stored_responses > 0)
        rc = sv_stored_open(&s->stored, o->stored_responses, o->stored_bytes, err);
    if (!rc)
        rc = sv_keys_open(&s->keys, o->api_key, o->api_key_file, err);
    if (!rc)
        rc = sv_tools_check_options(o, err);
    if (!rc)
        rc = open_template(s, err);
    if (!rc)
        rc = sv_serve_images_open(s, err);
    if (!rc && (o->tls_cert || o->tls_key))
        rc = sv_tls_open(&s->tls, o->tls_cert, o->tls_key, err);
    ho.tls = s->tls;
    if (!rc)
        rc = sv_http_open(&s->http, s->base, &ho, err);
    if (!rc)
        s->checks_host =
            !o->unix_path && (o->allowed_hosts || (!s->keys && sv_http_is_loopback(s->http)));
    if (!rc)
        rc = sv_prep_start(&s->prep, err);
    if (!rc)
        rc = sv_replicas_start(s, err);
    return rc ? rc : open_events(s, err);
}

int sv_serve_open(struct sv_serve **out, const struct sv_serve_options *o, struct sv_err *err)
{
    struct sv_serve *s = sv_calloc(1, sizeof *s);

    *out = NULL;
    if (!s)
        return sv_fail(err, SV_ENOMEM, -1, "server");
    s->stop_fd = -1;
    s->start_us = sv_clock_us();
    s->created = (int64_t)time(NULL);
    sv_buf_init(&s->frames);
    sv_buf_init(&s->unknown);
    take_options(s, o);
    signal(SIGPIPE, SIG_IGN); /* writing to a client that left must not end the process */
    int rc = open_all(s, err);
    if (rc) {
        sv_serve_close(s);
        return rc;
    }
    *out = s;
    return SV_OK;
}

int sv_serve_port(const struct sv_serve *s)
{
    return sv_http_port(s->http);
}

int sv_serve_run(struct sv_serve *s, struct sv_err *err)
{
    char where[320];

    if (s->o.unix_path)
        snprintf(where, sizeof where, "unix:%s", s->o.unix_path);
    else
        snprintf(where, sizeof where, strchr(s->o.host, ':') ? "%s://[%s]:%d" : "%s://%s:%d",
                 s->tls ? "https" : "http", s->o.host, sv_serve_port(s));
    struct sv_log_field f[] = {SV_LOG_S("at", where)};
    sv_serve_log(s, "listening", f, 1);
    if (!s->keys && !s->o.unix_path && !sv_http_is_loopback(s->http))
        sv_serve_log(s,
                     "no API key: any client that can connect to this address may use the server",
                     NULL, 0);
    event_base_dispatch(s->base);
    if (s->state == SV_BROKEN)
        return sv_fail(err, SV_EDEVICE, -1, "%s", s->broken);
    sv_serve_log(s, "stopped", NULL, 0);
    return SV_OK;
}

void sv_serve_stop(struct sv_serve *s)
{
    uint64_t one = 1;
    ssize_t n = write(s->stop_fd, &one, sizeof one); /* fails only after 2^64 calls */
    (void)n;
}

bool sv_serve_is_stopping(const struct sv_serve *s)
{
    return atomic_load(&s->n_stops) > 0;
}

/* ---------------------------------------------------------------- closing */

bool sv_serve_is_loading(const struct sv_serve *s)
{
    return sv_replicas_are_loading(s);
}

int sv_serve_replica(const struct sv_serve_options *o, struct sv_err *err)
{
    return sv_replica_host(o, err);
}

int32_t sv_serve_n_live(const struct sv_serve *s)
{
    return sv_replicas_live(s);
}

void sv_serve_leave(struct sv_serve *s)
{
    sv_http_close(s->http);
    s->http = NULL;
}

static void free_event(struct event *ev)
{
    if (ev)
        event_free(ev);
}

void sv_serve_close(struct sv_serve *s)
{
    if (!s)
        return;
    sv_http_close(s->http); /* first, so that calls lose their clients */
    s->http = NULL;
    if (s->prep)
        sv_prep_finish(s->prep);
    sv_call_unblock(s);
    if (s->mail) {
        struct sv_out o;
        sv_replicas_finish(s); /* every sequence gets its last event */
        collect(s, true);
        while (sv_inbox_next(&s->inbox, &o))
            if (o.kind == SV_OUT_EVENT || o.kind == SV_OUT_REJECTED)
                sv_call_out(s, &o);
        sv_call_flush(s, true);
        SV_REQUIRE(!s->calls);
    }
    free_event(s->on_mail);
    free_event(s->on_prep);
    free_event(s->on_stop);
    free_event(s->on_tick);
    sv_grammars_close(s);
    sv_replicas_free(s);
    sv_prep_free(s->prep);
    sv_serve_images_close(s);
    if (s->base)
        event_base_free(s->base);
    if (s->stop_fd >= 0)
        close(s->stop_fd);
    sv_tls_close(s->tls);
    sv_stored_close(s->stored);
    sv_keys_close(s->keys);
    sv_chat_template_close(s->chat);
    sv_enc_scratch_free(s->scratch);
    sv_buf_fini(&s->frames);
    sv_buf_fini(&s->unknown);
    sv_free(s);
}
