/*
 * send.c - the output of a call: frames of streams, whole answers, errors, the log line.
 *
 * Called by call.c, pacing.c and serve.c on the loop's thread. Long answers are written on the
 * thread that reads long bodies; log probabilities make them long, at ten milliseconds for each
 * thousand tokens with twenty alternatives. Reports for the call are kept in `pending` meanwhile.
 * Must not: write much on the loop's thread.
 */
#include "serve/core/log.h"
#include "serve/core/send.h"
#include "serve/core/write.h"

#include <string.h>

/* Bytes written for one call on the loop's thread: some tenths of a millisecond. */
#define MAX_INLINE 65536
/* Bytes of JSON for a byte of packed log probabilities, roughly. */
#define JSON_OF_PACKED 8
/* Pings that are part of an API are sent by default. */
#define OWN_PING_SECONDS 15

/* ---------------------------------------------------------------- how much there is */

static size_t list_bytes(const struct sv_choice *ch)
{
    return ch->lp[0].len + ch->lp[1].len + ch->lp[2].len + ch->lp[3].len + ch->lp[4].len +
           ch->prompt_lp.len;
}

static bool has_lost_lists(const struct sv_choice *ch)
{
    bool lost = ch->prompt_lp.failed || ch->unkept.failed;

    for (int i = 0; i < SV_CHOICE_LISTS; i++)
        lost = lost || ch->lp[i].failed;
    return lost;
}

/* A stream writes what is new; SGLang's repeats everything, and so does the end of a stream that
 * gathers. Waiting frames count too: with a chunk for each step they may be many. */
static bool is_long(const struct sv_call *c)
{
    bool gathers = c->dialect->gathers;
    bool all = !c->p.stream || c->dialect->kind == SV_GENERATE || (gathers && sv_call_has_ended(c));
    bool some = c->p.logprobs && !gathers;
    size_t n = c->out.len + (c->dialect->repeated ? c->dialect->repeated(c) : 0);

    for (int32_t i = 0; i < c->n_choices && n <= MAX_INLINE; i++) {
        const struct sv_choice *ch = &c->choices[i];
        n += (all || some ? list_bytes(ch) + JSON_OF_PACKED * ch->unkept.len : 0) +
             (all ? ch->text.len + ch->ids.len + ch->deltas.len : 0) + ch->new_text.len +
             ch->reasoning.len; /* reasoning that is sent in one piece */
    }
    return n > MAX_INLINE;
}

/* For /metrics: no turn of the loop should write much. */
static void count_bytes(struct sv_call *c, size_t n)
{
    c->s->turn_bytes += (int64_t)n;
}

/* After a delay the loop finds the log probabilities of many steps at once. What exceeds a turn's
 * share stays packed until the chunk or answer is written. */
bool sv_call_keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    size_t before = list_bytes(ch);

    if (!o->logprobs && !o->prompt_logprobs)
        return true;
    if (ch->unkept.len || c->s->turn_bytes + JSON_OF_PACKED * (int64_t)o->n_packed > MAX_INLINE) {
        sv_out_copy(&ch->unkept, o); /* in order: others are waiting already */
    } else {
        c->dialect->keep(c, ch, o);
        count_bytes(c, list_bytes(ch) - before);
    }
    return !has_lost_lists(ch);
}

/* ----------------------------------------------------------- putting together, on either thread */

static void keep_rest(struct sv_call *c, struct sv_choice *ch)
{
    struct sv_out o;

    for (size_t at = 0; sv_out_unpack(&ch->unkept, &at, &o);)
        c->dialect->keep(c, ch, &o);
    c->out.failed |= has_lost_lists(ch);
    sv_buf_fini(&ch->unkept);
}

static void add_chunk(struct sv_call *c, struct sv_choice *ch)
{
    if (!ch->fresh)
        return;
    keep_rest(c, ch);
    const int32_t *ids = (const int32_t *)(const void *)ch->ids.data;
    struct sv_out o = {.kind = SV_OUT_EVENT,
                       .choice = ch,
                       .finish = c->failed ? SV_FINISH_NONE : ch->finish,
                       .tokens = ids ? ids + ch->n_shown : NULL,
                       .n_tokens = (int32_t)(ch->ids.len / sizeof(int32_t)) - ch->n_shown,
                       .text = ch->new_text.data ? ch->new_text.data : "",
                       .n_text = (uint32_t)ch->new_text.len};

    c->out.failed |= ch->new_text.failed || ch->ids.failed;
    c->dialect->chunk(c, ch, &o, &c->out);
    ch->n_shown += o.n_tokens;
    ch->fresh = false;
    ch->shown = true;
    sv_buf_clear(&ch->new_text);
}

/* Appends to c->out all that has come: frames, or the whole answer. */
static void put_together(struct sv_call *c)
{
    for (int32_t i = 0; i < c->n_choices && c->p.stream; i++)
        add_chunk(c, &c->choices[i]);
    for (int32_t i = 0; i < c->n_choices && !c->p.stream; i++)
        keep_rest(c, &c->choices[i]);
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

/* A stream that lost text is useless: the connection is dropped, which calls on_gone. */
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
        /* nothing of this chunk can have been read yet */
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

/* Sends c->out. */
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
    for (int32_t i = 0; i < c->n_choices; i++) {
        const struct sv_choice *ch = &c->choices[i];
        sv_accept_of(ch, &a);
        steps += a.n_steps;
        tokens += a.n_tokens;
        n_prompt += ch->n_prompt;
        n_cached += ch->n_cached;
        n_tokens += (int64_t)(ch->ids.len / sizeof(int32_t));
    }
    struct sv_log_field f[12] = {
        SV_LOG_S("id", c->request_id),
        SV_LOG_S("api", c->dialect->name),
        SV_LOG_I("status", c->status),
        SV_LOG_S("finish", sv_finish_name(c->choices[0].finish)),
        SV_LOG_I("prompt_tokens", n_prompt),
        SV_LOG_I("cached_tokens", n_cached),
        SV_LOG_I("tokens", n_tokens),
        SV_LOG_F("accept_length", steps ? (double)tokens / (double)steps : 0),
        SV_LOG_F("ttft_ms", c->first_us ? (double)(c->first_us - c->start_us) / 1e3 : 0),
        SV_LOG_F("total_ms", (double)(now - c->start_us) / 1e3),
    };
    int n = 10;
    if (c->p.constraint.kind)
        f[n++] = (struct sv_log_field)SV_LOG_S("form", sv_constraint_name(c->p.constraint.kind));
    if (c->s->n_replicas > 1)
        f[n++] = (struct sv_log_field)SV_LOG_I("replica", c->choices[0].replica);
    sv_serve_log(c->s, "request", f, n);
}

static void finish(struct sv_call *c)
{
    sv_histogram_add(&c->s->metrics.e2e, (double)(sv_clock_us() - c->start_us) / 1e6, 1);
    log_call(c);
    sv_call_free(c);
}

/* ---------------------------------------------------------------- on the loop's thread */

/* Takes the server's buffer, unless the call has frames of its own. */
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

void sv_call_chunk(struct sv_call *c, struct sv_choice *ch)
{
    if (!is_long(c))
        add_chunk(c, ch);
}

/* In a stream that has begun, the error is one more event. */
void sv_call_fail(struct sv_call *c, const struct sv_api_err *e)
{
    struct sv_buf *b = &c->out; /* after what has come so far */

    c->failed = true;
    c->status = e->status;
    sv_call_cancel(c);
    if (!c->req)
        return;
    for (int32_t i = 0; i < c->n_choices; i++)
        add_chunk(c, &c->choices[i]);
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

void sv_call_fail_no_memory(struct sv_call *c)
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

/* Reports were lost for lack of memory: the request fails, and the sequences whose last report was
 * lost end. */
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

    sv_call_fail_no_memory(c);
    for (int32_t i = 0; i < c->n_choices; i++)
        if (c->choices[i].lost_end) {
            end.choice = &c->choices[i];
            sv_call_out(c->s, &end);
        }
}

void sv_call_replay(struct sv_call *c)
{
    struct sv_buf pending = c->pending;
    struct sv_serve *s = c->s;
    struct sv_out o;

    sv_buf_init(&c->pending);
    for (size_t at = 0; sv_out_unpack(&pending, &at, &o);)
        sv_call_out(s, &o);
    if (pending.failed)
        fail_lost(c);
    sv_buf_fini(&pending);
}

static void on_written(void *user)
{
    struct sv_call *c = user;
    bool over = sv_call_has_ended(c);

    c->writing = false;
    c->s->metrics.n_aside++;
    send_out(c);
    sv_buf_fini(&c->out); /* it has grown to the size of the answer */
    if (over)
        finish(c);
    else
        sv_call_replay(c);
}

/* If too many jobs wait, the call waits until one of them is done. False: there are no such jobs,
 * and no room. */
static bool send_aside(struct sv_call *c)
{
    struct sv_serve *s = c->s;

    c->job = (struct sv_job){.run = write_aside,
                             .done = on_written,
                             .user = c,
                             .kind = SV_JOB_ANSWER,
                             .cost = MAX_INLINE};
    c->writing = sv_prep_submit(s->prep, &c->job);
    if (c->writing || !sv_prep_n_jobs(s->prep, SV_JOB_ANSWER))
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
    sv_out_copy(&c->pending, o);
    if (c->pending.failed && (o->kind == SV_OUT_REJECTED || o->finish != SV_FINISH_NONE))
        o->choice->lost_end = true;
}

/* ---------------------------------------------------------------- what call.c asks for */

/* SGLang's events repeat everything, so one is skipped while the client has not read the one
 * before. */
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
