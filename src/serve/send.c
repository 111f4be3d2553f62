/*
 * send.c - what goes out for a call: frames of streams, whole answers, errors, the line in the log.
 *
 * Called by call.c and loop.c on the loop's thread. Long answers, which log probabilities of long
 * prompts make of short ones, are put together on the thread that reads long bodies: it takes ten
 * milliseconds for each thousand tokens with twenty alternatives. What comes for the call meanwhile
 * is held. Must not: put much together on the loop's thread.
 */
#include "serve/impl.h"

#include <string.h>

/* What is put together on the loop's thread for one call: some tenths of a millisecond. */
#define MAX_INLINE 65536
/* About what a byte of packed log probabilities becomes as JSON. */
#define JSON_OF_PACKED 8
/* Pings that are part of an API: nobody takes them for data. */
#define OWN_PING_SECONDS 15

/* ---------------------------------------------------------------- how much there is */

static size_t list_bytes(const struct sv_gen *g)
{
    return g->lp[0].len + g->lp[1].len + g->lp[2].len + g->lp[3].len + g->lp[4].len +
           g->prompt_lp.len;
}

static bool has_lost_lists(const struct sv_gen *g)
{
    bool lost = g->prompt_lp.failed || g->unkept.failed;

    for (int i = 0; i < SV_GEN_LISTS; i++)
        lost = lost || g->lp[i].failed;
    return lost;
}

/* Streams write what has just come, but for SGLang's, which repeat everything, and for the end of
 * those that gather it. Frames that wait count too: with a chunk for each step they may be many. */
static bool is_long(const struct sv_call *c)
{
    bool gathers = c->dialect->gathers;
    bool all = !c->p.stream || c->dialect->kind == SV_GENERATE || (gathers && sv_call_has_ended(c));
    bool some = c->p.logprobs && !gathers;
    size_t n = c->out.len + (c->dialect->repeated ? c->dialect->repeated(c) : 0);

    for (int32_t i = 0; i < c->n_gens && n <= MAX_INLINE; i++) {
        const struct sv_gen *g = &c->gens[i];
        n += (all || some ? list_bytes(g) + JSON_OF_PACKED * g->unkept.len : 0) +
             (all ? g->text.len + g->ids.len + g->parts.len : 0) + g->new_text.len +
             g->thoughts.len; /* what is thought in one piece goes out whole */
    }
    return n > MAX_INLINE;
}

/* Figures for /metrics: a turn of the loop should never put much together. */
static void count_bytes(struct sv_call *c, size_t n)
{
    c->s->turn_bytes += (int64_t)n;
}

/* A loop that was kept waiting finds the log probabilities of many steps at once: what is beyond a
 * turn's share of them waits as it came, until the call's chunk or answer is put together. */
bool sv_call_keep(struct sv_call *c, struct sv_gen *g, const struct sv_out *o)
{
    size_t before = list_bytes(g);

    if (!o->logprobs && !o->prompt_logprobs)
        return true;
    if (g->unkept.len || c->s->turn_bytes + JSON_OF_PACKED * (int64_t)o->n_packed > MAX_INLINE) {
        sv_out_copy(&g->unkept, o); /* after what waits already */
    } else {
        c->dialect->keep(c, g, o);
        count_bytes(c, list_bytes(g) - before);
    }
    return !has_lost_lists(g);
}

/* ----------------------------------------------------------- putting together, on either thread */

static void keep_rest(struct sv_call *c, struct sv_gen *g)
{
    struct sv_out o;

    for (size_t at = 0; sv_out_unpack(&g->unkept, &at, &o);)
        c->dialect->keep(c, g, &o);
    c->out.failed |= has_lost_lists(g);
    sv_buf_fini(&g->unkept);
}

static void add_chunk(struct sv_call *c, struct sv_gen *g)
{
    if (!g->fresh)
        return;
    keep_rest(c, g);
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
    struct sv_out o = {.kind = SV_OUT_EVENT,
                       .gen = g,
                       .finish = c->failed ? SV_FINISH_NONE : g->finish,
                       .tokens = ids ? ids + g->n_shown : NULL,
                       .n_tokens = (int32_t)(g->ids.len / sizeof(int32_t)) - g->n_shown,
                       .text = g->new_text.data ? g->new_text.data : "",
                       .n_text = (uint32_t)g->new_text.len};

    c->out.failed |= g->new_text.failed || g->ids.failed;
    c->dialect->chunk(c, g, &o, &c->out);
    g->n_shown += o.n_tokens;
    g->fresh = false;
    g->shown = true;
    sv_buf_clear(&g->new_text);
}

/* All that has come, behind what c->out has: frames, or the whole answer. */
static void put_together(struct sv_call *c)
{
    for (int32_t i = 0; i < c->n_gens && c->p.stream; i++)
        add_chunk(c, &c->gens[i]);
    for (int32_t i = 0; i < c->n_gens && !c->p.stream; i++)
        keep_rest(c, &c->gens[i]);
    if (c->p.stream && sv_call_has_ended(c))
        c->dialect->tail(c, &c->out);
    else if (!c->p.stream)
        c->dialect->body(c, &c->out);
}

/* ---------------------------------------------------------------- sending */

static void start_stream(struct sv_call *c)
{
    if (c->started)
        return;
    c->started = true;
    sv_http_add_header(c->req, "Cache-Control", "no-cache");
    sv_http_add_header(c->req, "X-Accel-Buffering", "no");
    sv_http_begin(c->req, 200, "text/event-stream; charset=utf-8");
}

static struct sv_http_req *let_go(struct sv_call *c)
{
    struct sv_http_req *q = c->req;

    c->req = NULL;
    sv_http_on_gone(q, NULL, NULL);
    return q;
}

/* Without its middle a stream is worth nothing: the connection is dropped, which ends in
 * on_gone. */
static void send_frames(struct sv_call *c)
{
    size_t n = c->out.len;

    if (c->out.failed) {
        sv_http_abort(c->req);
        return;
    }
    if (n)
        start_stream(c);
    if (sv_call_has_ended(c)) {
        sv_http_end(let_go(c), &c->out);
    } else if (n) {
        c->sent = true;
        /* Of a chunk as large as the limit nothing can have been read yet. */
        if (sv_http_write_buf(c->req, &c->out) > (size_t)c->s->o.max_backlog_bytes + n)
            sv_http_abort(c->req);
    }
}

static void send_whole(struct sv_call *c)
{
    struct sv_http_req *q = let_go(c);

    if (c->out.failed)
        sv_api_reply(
            q, &(struct sv_api_err){.status = 500, .type = "server_error", .msg = "out of memory"});
    else
        sv_http_reply_buf(q, 200, "application/json", &c->out);
}

/* What was put together; then the call is over if its sequences are. */
static void send_out(struct sv_call *c)
{
    if (c->req && c->p.stream)
        send_frames(c);
    else if (c->req)
        send_whole(c);
    sv_buf_clear(&c->out);
}

static void log_call(struct sv_call *c)
{
    struct sv_accept a = {0};
    int64_t now = sv_clock_us(), n_prompt = 0, n_tokens = 0, n_cached = 0, steps = 0, tokens = 0;

    if (c->s->o.quiet)
        return;
    for (int32_t i = 0; i < c->n_gens; i++) {
        const struct sv_gen *g = &c->gens[i];
        sv_accept_of(g, &a);
        steps += a.n_steps;
        tokens += a.n_tokens;
        n_prompt += g->n_prompt;
        n_cached += g->n_cached;
        n_tokens += (int64_t)(g->ids.len / sizeof(int32_t));
    }
    char names[128];
    struct sv_log_field f[12] = {
        SV_LOG_S("id", c->request_id),
        SV_LOG_S("api", c->dialect->name),
        SV_LOG_I("status", c->status),
        SV_LOG_S("finish", sv_finish_name(c->gens[0].finish)),
        SV_LOG_I("prompt_tokens", n_prompt),
        SV_LOG_I("cached_tokens", n_cached),
        SV_LOG_I("tokens", n_tokens),
        SV_LOG_F("accept_length", steps ? (double)tokens / (double)steps : 0),
        SV_LOG_F("ttft_ms", c->first_us ? (double)(c->first_us - c->start_us) / 1e3 : 0),
        SV_LOG_F("total_ms", (double)(now - c->start_us) / 1e3),
    };
    int n = 10;
    if (c->p.form.kind)
        f[n++] = (struct sv_log_field)SV_LOG_S("form", sv_form_name(c->p.form.kind));
    if (c->ignored.len)
        f[n++] = (struct sv_log_field)SV_LOG_S("ignored", sv_log_plain(names, c->ignored.data));
    sv_serve_log(c->s, "request", f, n);
}

static void finish(struct sv_call *c)
{
    sv_histogram_add(&c->s->metrics.e2e, (double)(sv_clock_us() - c->start_us) / 1e6, 1);
    log_call(c);
    sv_call_free(c);
}

/* ---------------------------------------------------------------- on the loop's thread */

/* The server's buffer, unless the call has frames of its own. */
static void borrow(struct sv_call *c)
{
    if (c->out.data)
        return;
    c->out = c->s->frames;
    sv_buf_init(&c->s->frames);
}

static void give_back(struct sv_call *c)
{
    if (c->s->frames.data)
        return;
    c->s->frames = c->out;
    sv_buf_init(&c->out);
    sv_buf_clear(&c->s->frames);
}

static void send_here(struct sv_call *c)
{
    borrow(c);
    put_together(c);
    count_bytes(c, c->out.len);
    send_out(c);
    give_back(c);
}

void sv_call_chunk(struct sv_call *c, struct sv_gen *g)
{
    if (!is_long(c))
        add_chunk(c, g);
}

/* An error once sequences exist. In a stream that has begun it is one more event. */
void sv_call_fail(struct sv_call *c, const struct sv_api_err *e)
{
    struct sv_buf *b = &c->out; /* after what has come so far */

    c->failed = true;
    c->status = e->status;
    sv_call_cancel(c);
    if (!c->req)
        return;
    for (int32_t i = 0; i < c->n_gens; i++)
        add_chunk(c, &c->gens[i]);
    if (b->len)
        start_stream(c);
    struct sv_http_req *q = let_go(c);
    if (!c->started) {
        sv_api_reply(q, e);
        return;
    }
    if (c->dialect->fail) {
        c->dialect->fail(c, e, b);
    } else {
        sv_sse_begin(b);
        sv_api_err_json(b, e);
        sv_sse_end(b);
        sv_sse_done(b);
    }
    if (b->failed)
        sv_http_abort(q);
    else
        sv_http_end(q, b);
}

void sv_call_lose(struct sv_call *c)
{
    struct sv_api_err e;

    if (c->failed)
        return;
    sv_api_no_memory(&e);
    sv_call_fail(c, &e);
}

/* ---------------------------------------------------------------- beside the loop */

static void write_aside(void *user, struct sv_enc_scratch *scratch)
{
    (void)scratch;
    put_together(user);
}

/* Some of what came found no memory: the request fails, and the ends among it count all the same.
 */
static void fail_lost(struct sv_call *c)
{
    static const char why[] = "out of memory";
    struct sv_out end = {.kind = SV_OUT_EVENT,
                         .finish = SV_FINISH_ERROR,
                         .message = why,
                         .n_message = sizeof why - 1,
                         .at_us = sv_clock_us(),
                         .stop_id = -1,
                         .stop_index = -1};

    sv_call_lose(c);
    for (int32_t i = 0; i < c->n_gens; i++)
        if (c->gens[i].lost_end) {
            end.gen = &c->gens[i];
            sv_call_out(c->s, &end);
        }
}

void sv_call_replay(struct sv_call *c)
{
    struct sv_buf held = c->held;
    struct sv_serve *s = c->s;
    struct sv_out o;

    sv_buf_init(&c->held);
    for (size_t at = 0; sv_out_unpack(&held, &at, &o);)
        sv_call_out(s, &o);
    if (held.failed)
        fail_lost(c);
    sv_buf_fini(&held);
}

static void on_written(void *user)
{
    struct sv_call *c = user;
    bool over = sv_call_has_ended(c);

    c->writing = false;
    c->s->metrics.n_aside++;
    send_out(c);
    sv_buf_fini(&c->out); /* as large as what it held */
    if (over)
        finish(c);
    else
        sv_call_replay(c);
}

/* Where too many wait, the call does until one of them is done. False: there are none, and no
 * room. */
static bool send_aside(struct sv_call *c)
{
    struct sv_serve *s = c->s;

    c->job = (struct sv_job){.run = write_aside, .done = on_written, .user = c, .writes = true};
    c->writing = sv_prep_submit(s->prep, &c->job);
    if (c->writing || !sv_prep_n_writing(s->prep))
        return c->writing;
    c->due = true;
    c->next_due = s->blocked;
    s->blocked = c;
    return true;
}

void sv_call_unblock(struct sv_serve *s)
{
    struct sv_call *c;

    while ((c = s->blocked)) {
        s->blocked = c->next_due;
        c->due = false;
        sv_call_set_due(c);
    }
}

void sv_call_hold(struct sv_call *c, const struct sv_out *o)
{
    sv_out_copy(&c->held, o);
    if (c->held.failed && (o->kind == SV_OUT_REJECTED || o->finish != SV_FINISH_NONE))
        o->gen->lost_end = true;
}

/* ---------------------------------------------------------------- what call.c asks for */

/* Events that repeat everything wait for a client that has not read the one before: the next says
 * it all. */
static bool may_skip(const struct sv_call *c)
{
    return c->req && c->dialect->kind == SV_GENERATE && !sv_call_has_ended(c) &&
           sv_http_unread(c->req) > MAX_INLINE;
}

void sv_call_send(struct sv_call *c)
{
    bool over = sv_call_has_ended(c);

    if (may_skip(c))
        return;
    if (c->req && is_long(c) && send_aside(c))
        return;
    if (c->req)
        send_here(c);
    if (over)
        finish(c);
}

void sv_call_tick(struct sv_serve *s, int64_t now_us)
{
    for (struct sv_call *c = s->calls; c; c = c->next) {
        const char *own = c->dialect->ping, *ping = own ? own : SV_SSE_PING;
        int64_t every = s->o.ping_seconds ? s->o.ping_seconds : own ? OWN_PING_SECONDS : 0;
        if (every <= 0 || c->preparing || !c->req || !c->p.stream ||
            now_us - c->write_us < every * 1000000)
            continue;
        start_stream(c);
        sv_http_write(c->req, ping, strlen(ping));
        c->write_us = now_us;
    }
}
