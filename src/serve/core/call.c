/*
 * call.c - a generating request from its body to its last byte: admission, sequences, results,
 * clients that leave.
 *
 * Called by route.c (begin) and serve.c (out, abort). A call lives until each of its sequences has
 * had its last event, even when the client is gone. Must not: wait, or block the loop.
 */
#include "serve/core/auth.h"
#include "serve/core/body.h"
#include "serve/core/deltas.h"
#include "serve/core/grammars.h"
#include "serve/core/images.h"
#include "serve/core/log.h"
#include "serve/core/send.h"
#include "serve/core/token_lists.h"
#include "serve/core/tools.h"
#include "serve/core/write.h"
#include "serve/http/fetch.h"

#include "grammar/grammar.h"

#include <string.h>
#include <time.h>

/* ---------------------------------------------------------------- life */

static void choice_free(struct sv_choice *ch)
{
    sv_buf_fini(&ch->text);
    sv_buf_fini(&ch->ids);
    for (int i = 0; i < SV_CHOICE_LISTS; i++)
        sv_buf_fini(&ch->lp[i]);
    sv_buf_fini(&ch->prompt_lp);
    sv_buf_fini(&ch->unkept);
    sv_buf_fini(&ch->accept);
    sv_buf_fini(&ch->widths);
    sv_buf_fini(&ch->new_text);
    sv_buf_fini(&ch->due);
    sv_buf_fini(&ch->due_drafted);
    sv_deltas_close(ch);
}

void sv_call_free(struct sv_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else if (c->s->calls == c)
        c->s->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
    for (int32_t i = 0; c->choices && i < c->n_choices; i++)
        choice_free(&c->choices[i]);
    sv_free(c->choices);
    sv_prompts_free(c->prompts, c->n_prompts);
    sv_free(c->token_lists);
    sv_free(c->logprob_ids);
    sv_stop_regex_close(c);
    sv_free(c->each);
    sv_buf_fini(&c->source);
    sv_grammar_unref(c->grammar);
    if (c->dialect->free_own)
        c->dialect->free_own(c);
    if (c->prepared) {
        sv_prep_discard(c->s->prep, c->p.made);
        c->p.made = NULL;
        sv_prep_discard(c->s->prep, c->body);
    } else {
        json_decref(c->body);
    }
    sv_params_fini(&c->p);
    sv_http_free_taken(c->raw);
    sv_buf_fini(&c->ignored);
    sv_buf_fini(&c->head);
    sv_buf_fini(&c->out);
    sv_buf_fini(&c->pending);
    sv_free(c);
}

/* Only once: a worker's queue has room for one cancel of each sequence. */
static void cancel_choice(struct sv_choice *ch)
{
    if (!ch->done && !ch->canceled)
        sv_replicas_cancel(ch->call->s, ch);
    ch->canceled = true;
}

void sv_call_cancel(struct sv_call *c)
{
    for (int32_t i = 0; i < c->n_choices; i++)
        cancel_choice(&c->choices[i]);
}

static void on_gone(void *user)
{
    struct sv_call *c = user;

    c->req = NULL;
    c->status = 499; /* as nginx counts clients that left */
    sv_call_cancel(c);
}

/* ---------------------------------------------------------------- results */

static void take_lengths(struct sv_metrics *m, const struct sv_out *o, int64_t n_tokens)
{
    double prefill = (double)o->prefill_us / 1e6, decode = (double)o->decode_us / 1e6;

    m->n_requests[o->finish]++;
    m->n_prompt_tokens += o->n_prompt;
    m->n_cached_tokens += o->n_cached;
    m->prefill_us += o->prefill_us;
    m->decode_us += o->decode_us;
    sv_histogram_add(&m->queue, (double)o->queue_us / 1e6, 1);
    sv_histogram_add(&m->prefill, prefill, 1);
    sv_histogram_add(&m->decode, decode, 1);
    sv_histogram_add(&m->inference, prefill + decode, 1);
    if (n_tokens > 1)
        sv_histogram_add(&m->per_token, decode / (double)(n_tokens - 1), 1);
    sv_histogram_count(&m->prompt_tokens, o->n_prompt);
    sv_histogram_count(&m->answer_tokens, n_tokens);
}

/* The two arrays are read in parallel: both are kept or neither. */
static void take_steps(struct sv_choice *ch, const struct sv_out *o)
{
    const size_t n = (size_t)o->n_steps * sizeof(uint16_t);

    if (sv_buf_reserve(&ch->accept, n) || sv_buf_reserve(&ch->widths, n))
        return;
    sv_buf_append(&ch->accept, o->accept_lengths, n);
    sv_buf_append(&ch->widths, o->widths, n);
}

static int32_t count_of(const struct sv_choice *ch)
{
    return (int32_t)(ch->ids.len / sizeof(int32_t));
}

/* Tokens that a failed replica had already generated are not counted again. */
static void take_figures(struct sv_serve *s, struct sv_call *c, struct sv_choice *ch,
                         const struct sv_out *o)
{
    const int32_t n_had = count_of(ch), n_now = n_had + o->n_tokens,
                  from = ch->n_counted > n_had ? ch->n_counted : n_had,
                  n_new = n_now > from ? n_now - from : 0;

    if (n_new && !ch->begun && !ch->n_counted) {
        double first = (double)(o->at_us - c->start_us) / 1e6;
        sv_histogram_add(&s->metrics.ttft, first > 0 ? first : 0, 1);
        c->first_us = c->first_us ? c->first_us : o->at_us;
    } else if (n_new && ch->begun) {
        /* A step yields several tokens at once; each counts with its share of the gap. */
        int64_t step = o->at_us - ch->last_us;
        double gap = (double)step / 1e6 / o->n_tokens;
        sv_histogram_add(&s->metrics.itl, gap > 0 ? gap : 0, n_new);
        s->step_us += (step - s->step_us) / 16;
    }
    if (o->n_tokens)
        ch->last_us = o->at_us;
    s->metrics.n_tokens += n_new;
    if (!ch->begun)
        ch->n_cached = o->n_cached;
    if (o->finish == SV_FINISH_NONE)
        return;
    ch->finish = o->finish;
    ch->stop_id = o->stop_id;
    ch->stop_index = o->stop_index;
    ch->n_prompt = o->n_prompt;
    ch->n_cached = o->n_cached;
    ch->n_preemptions = o->n_preemptions;
    ch->queue_us = o->queue_us;
    ch->prefill_us = o->prefill_us;
    ch->decode_us = o->decode_us;
    take_steps(ch, o);
    take_lengths(&s->metrics, o, n_now);
}

void sv_call_set_due(struct sv_call *c)
{
    if (c->due)
        return;
    c->due = true;
    c->next_due = c->s->due;
    c->s->due = c;
}

/* Keeps what has come for the stream's next chunk. */
static void take_stream(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    sv_buf_append(&ch->new_text, o->text, o->n_text);
    if (c->p.return_draft)
        sv_take_draft_flags(ch, o);
    ch->fresh = true;
    c->write_us = o->at_us;
    sv_call_set_due(c);
    if (c->s->o.stream_gap_us < 0)
        sv_call_chunk(c, ch); /* a chunk for each step, even if several steps are read at once */
}

static void take_error(struct sv_call *c, const struct sv_out *o)
{
    struct sv_api_err e;
    int n = (int)o->n_message;

    if (c->failed || !c->req)
        return;
    if (o->lost && c->s->n_replicas > 1)
        sv_api_fail(&e, 500, NULL, "replica %d: %.*s", o->replica, n, o->message);
    else if (o->kind == SV_OUT_REJECTED && !o->lost)
        sv_api_bad(&e, NULL, "%.*s", n, o->message);
    else if (o->finish == SV_FINISH_CANCELED)
        sv_api_fail(&e, 503, NULL, "the server is shutting down");
    else
        sv_api_fail(&e, 500, NULL, "%.*s", n, n ? o->message : "");
    sv_call_fail(c, &e);
}

/* Resets a choice to the state before its first report. */
static int begin_choice(struct sv_choice *ch)
{
    const int32_t most = ch->r.max_tokens, usual = most > 0 && most < 1024 ? most : 1024;

    ch->stop_id = ch->stop_index = -1;
    sv_detok_init(&ch->detok, ch->call->s->model->tok, true);
    return sv_deltas_open(ch) || sv_buf_reserve(&ch->ids, (size_t)usual * sizeof(int32_t));
}

/* The choice's replica has failed. If the client has none of its text yet, another replica
 * generates the same text from the start. */
static bool run_elsewhere(struct sv_call *c, struct sv_choice *ch)
{
    struct sv_serve *s = c->s;
    const bool has_images = !ch->r.n_images || !ch->taken;

    if (!c->req || c->failed || ch->canceled || ch->shown || !has_images || !sv_replicas_taking(s))
        return false;
    struct sv_choice fresh = {.call = c,
                              .index = ch->index,
                              .prompt = ch->prompt,
                              .taken = ch->taken,
                              .replica = ch->replica,
                              .n_rows = ch->n_rows,
                              .serial = ch->serial,
                              .n_counted = count_of(ch),
                              .r = ch->r};
    if (fresh.n_counted < ch->n_counted)
        fresh.n_counted = ch->n_counted;
    choice_free(ch);
    *ch = fresh;
    if (begin_choice(ch))
        return false;
    sv_replicas_left(s, ch);
    sv_replicas_submit(s, ch, 1);
    return true;
}

/* A sequence that a limit of its dialect ends is canceled, and its finish reason is its length. */
static void check_limits(struct sv_call *c, struct sv_choice *ch, struct sv_out *o)
{
    if (!c->dialect->is_over || !c->req)
        return;
    if (ch->cut && o->finish == SV_FINISH_CANCELED)
        o->finish = SV_FINISH_LENGTH;
    if (!c->dialect->is_over(c, ch, o) || ch->cut || o->finish != SV_FINISH_NONE)
        return;
    ch->cut = true;
    cancel_choice(ch);
}

/* Adds text and log probabilities to the answer; false if memory ran out. */
static bool take_answer(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    bool kept = true;

    if (!c->p.stream || c->dialect->kind == SV_GENERATE) { /* SGLang's streams repeat the text */
        sv_buf_append(&ch->text, o->text, o->n_text);
        kept = !ch->text.failed;
    }
    kept = sv_call_keep(c, ch, o) && kept;
    if (c->p.stream)
        take_stream(c, ch, o);
    return kept;
}

/* With the first report of the last sequence the engine has its copies of the images. */
static void drop_images(struct sv_call *c, struct sv_choice *ch)
{
    if (ch->taken)
        return;
    ch->taken = true;
    if (++c->n_taken < c->n_choices)
        return;
    for (int32_t i = 0; i < c->n_prompts; i++)
        sv_serve_images_free(&c->prompts[i]);
}

void sv_call_out(struct sv_serve *s, struct sv_out *o)
{
    struct sv_choice *ch = o->choice;
    struct sv_call *c = ch->call;

    if (c->writing) {
        sv_call_hold(c, o);
        return;
    }
    if (o->lost) {
        sv_replicas_lose(s, o->replica, o->message, o->n_message);
        if (run_elsewhere(c, ch))
            return;
    }
    check_limits(c, ch, o);
    bool error = o->kind == SV_OUT_REJECTED || o->finish == SV_FINISH_ERROR ||
                 (o->finish == SV_FINISH_CANCELED && !c->aborted);
    bool kept = true;

    drop_images(c, ch);
    if (o->kind == SV_OUT_EVENT) {
        take_figures(s, c, ch, o);
        sv_buf_append(&ch->ids, o->tokens, (size_t)o->n_tokens * sizeof(int32_t));
    } else {
        s->metrics.n_requests[5]++;
    }
    if (error) {
        take_error(c, o);
    } else if (c->req) {
        kept = take_answer(c, ch, o);
    }
    if (o->finish != SV_FINISH_NONE)
        kept = kept && !ch->accept.failed && !ch->widths.failed;
    if (!error && (!kept || ch->ids.failed))
        sv_call_fail_no_memory(c);
    if (ch->begun || c->sent) {
        s->oldest_us = s->oldest_us ? s->oldest_us : o->at_us;
        s->newest_us = o->at_us;
    }
    ch->begun = ch->begun || o->n_tokens;
    if (ch->begun)
        sv_replicas_begun(s, ch);
    if (o->kind == SV_OUT_EVENT && o->finish == SV_FINISH_NONE)
        return;
    ch->done = true;
    s->n_live--;
    sv_replicas_left(s, ch);
    if (++c->n_done == c->n_choices)
        sv_call_set_due(c);
}

bool sv_call_has_ended(const struct sv_call *c)
{
    return c->n_done == c->n_choices;
}

static bool is_called(const struct sv_call *c, const char *rid)
{
    const char *own = c->p.request_id;

    for (size_t i = 0; i < json_array_size(c->p.rids); i++)
        if (strcmp(json_string_value(json_array_get(c->p.rids, i)), rid) == 0)
            return true;
    return strcmp(c->id, rid) == 0 || strcmp(c->request_id, rid) == 0 ||
           (own && strcmp(own, rid) == 0);
}

void sv_call_abort(struct sv_serve *s, int key, const char *rid)
{
    for (struct sv_call *c = s->calls; c; c = c->next)
        /* a call whose body is still being read has no id yet */
        if (c->n_choices && c->key == key && (!rid || is_called(c, rid))) {
            c->aborted = true;
            sv_call_cancel(c);
        }
}

void sv_call_cancel_all(struct sv_serve *s)
{
    for (struct sv_call *c = s->calls; c; c = c->next)
        sv_call_cancel(c);
}

/* ---------------------------------------------------------------- admission */

const char *sv_call_model(const struct sv_call *c)
{
    return c->s->model_name;
}

const struct sv_params *sv_call_params(const struct sv_call *c, const struct sv_choice *ch)
{
    return c->each ? &c->each[ch->prompt] : &c->p;
}

static int make_choices(struct sv_call *c, struct sv_api_err *e)
{
    struct sv_serve *s = c->s;
    int64_t n = (int64_t)c->n_prompts * c->p.n;
    uint64_t seed = sv_serve_random(s) >> 11; /* 53 bits: exact in JavaScript */

    if (n > s->o.max_choices)
        return sv_api_bad(e, c->p.n > 1 ? "n" : c->p.prompt_name,
                          "%lld sequences in one request; this server allows %d", (long long)n,
                          s->o.max_choices);
    if (s->n_live + n > s->max_live) {
        s->metrics.n_full++;
        return sv_api_fail(e, 429, "queue_full", "the queue is full: %d sequences run or wait",
                           s->n_live);
    }
    c->choices = sv_calloc((size_t)n, sizeof *c->choices);
    if (!c->choices)
        return sv_api_no_memory(e);
    c->n_choices = (int32_t)n;
    for (int32_t i = 0; i < c->n_choices; i++) {
        struct sv_choice *ch = &c->choices[i];
        const struct sv_prompt *p = &c->prompts[i / c->p.n];
        *ch = (struct sv_choice){.call = c, .index = i, .prompt = i / c->p.n};
        const struct sv_params *own = sv_call_params(c, ch);
        ch->r = own->r;
        ch->serial = ++s->next_serial;
        ch->r.prompt_ids = p->ids;
        ch->r.n_prompt_ids = p->n_ids;
        ch->r.images = p->images;
        ch->r.n_images = p->n_images;
        ch->r.grammar = c->grammar;
        if (sv_keys_count(s->keys) > 1 && !s->o.share_prefixes)
            sv_keys_salt(s->keys, c->key, ch->r.cache_salt);
        sv_logprob_ids_set(c->logprob_ids, ch->prompt, &ch->r);
        /* each choice of a prompt has a seed of its own */
        ch->r.seed = (own->has_seed ? own->r.seed : seed) + (uint64_t)(i % c->p.n);
        if (begin_choice(ch))
            return sv_api_no_memory(e);
    }
    return 0;
}

/* From the body's text to the ids of its prompts, on any thread. */
static int read_call(struct sv_call *c, struct sv_enc_scratch *scratch, const char *text, size_t n,
                     struct sv_api_err *e)
{
    const struct sv_serve *s = c->s;
    enum sv_dialect_kind kind = c->dialect->kind;

    c->body = sv_body_object(text, n, e);
    struct sv_buf *ignored = s->o.refuse_unknown ? NULL : &c->ignored;
    if (!c->body || sv_params_read(&c->p, c->dialect, c->body, ignored, e) ||
        sv_check_model(s, c->p.model, e) || (c->dialect->read && c->dialect->read(c, e)) ||
        sv_params_each(&c->p, sv_prompts_count(&c->p, kind), s->model, &s->o, &c->each, e) ||
        sv_params_complete(&c->p, kind, s->model, &s->o, e) || sv_tools_begin(s, &c->p, kind, e) ||
        sv_token_lists_read(s, scratch, &c->p, &c->token_lists, e) ||
        sv_stop_regex_open(c, scratch == s->scratch, e) ||
        sv_logprob_ids_read(s, &c->p, sv_prompts_count(&c->p, kind), &c->logprob_ids, e))
        return -1;
    int rc = sv_prompts_make(s, scratch, &c->p, kind, &c->prompts, &c->n_prompts, e);
    return rc ? rc : sv_constraint_source(&c->p, &c->source, e);
}

static void name_call(struct sv_call *c)
{
    const char *own = c->p.request_id && *c->p.request_id ? c->p.request_id : c->request_id;
    const char *first = c->dialect->id_prefix;

    if (!*c->id) /* unless the dialect has named it */
        snprintf(c->id, sizeof c->id, "%s%.50s", first ? first : "", own);
    c->created = (int64_t)time(NULL);
}

/* Body, prompts and grammar are ready, or rc and e say why not: the sequences are submitted. */
static void call_go(struct sv_call *c, int rc, struct sv_api_err *e)
{
    struct sv_serve *s = c->s;
    struct sv_http_req *q = c->req;

    if (!rc)
        rc = make_choices(c, e);
    if (rc) {
        sv_http_on_gone(q, NULL, NULL);
        sv_api_refuse(q, e); /* e may be the call's own */
        sv_call_free(c);
        return;
    }
    name_call(c);
    s->n_live += c->n_choices;
    sv_replicas_submit(s, c->choices, c->n_choices);
}

/* Back on the loop's thread, after the body was read or the grammar compiled. */
static void go_on(struct sv_call *c, int rc, struct sv_api_err *e)
{
    c->preparing = false;
    if (!c->req) {
        sv_call_free(c);
        return;
    }
    sv_log_unknown(c->s, c->request_id, &c->ignored);
    if (c->s->drain_over_us)
        rc = sv_api_fail(e, 503, NULL, "the server is shutting down");
    if (!rc && c->source.len)
        rc = sv_grammars_want(c->s, c, e);
    c->preparing = rc > 0;
    if (!c->preparing)
        call_go(c, rc, e);
}

void sv_call_grammar_ready(struct sv_call *c, int rc, struct sv_api_err *e)
{
    sv_buf_fini(&c->source);
    go_on(c, rc, e);
}

/* A call passes these states in order; an error in the first three is answered by call_go, which
 * ends the call.
 * 1. begin makes it (new_call) and has its body read: here (read_call), or on the other thread
 *    (prepare_later, prepare) if it is long or turns out to take long.
 * 2. on_prepared, for a body that was read there. Images with addresses are fetched
 *    (sv_fetch_start); then a new call reads the body once more (read_again), with all it names.
 * 3. go_on. With a grammar it waits for that to be compiled (sv_grammars_want) and comes back by
 *    sv_call_grammar_ready.
 * 4. call_go submits the choices; results arrive by sv_call_out until each has had its last event.
 * A client that leaves clears req. Before call_go the next state then frees the call (`preparing`:
 * another thread may be using it); afterwards its choices are canceled, and the last event ends it.
 *
 * NULL: memory ran out. */
static struct sv_call *new_call(struct sv_serve *s, const struct sv_dialect *d,
                                struct sv_http_req *q, const char *request_id)
{
    struct sv_call *c = sv_calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->s = s; /* the rest is zero already */
    c->dialect = d;
    c->status = 200;
    c->start_us = c->write_us = sv_clock_us();
    c->req = q;
    c->key = sv_http_key(q);
    c->next = s->calls;
    if (c->next)
        c->next->prev = c;
    s->calls = c;
    snprintf(c->request_id, sizeof c->request_id, "%s", request_id);
    sv_http_on_gone(q, on_gone, c);
    return c;
}

static void prepare(void *user, struct sv_enc_scratch *scratch)
{
    struct sv_call *c = user;
    size_t n;
    const char *text = sv_http_taken_text(c->raw, &n);

    c->read_rc = read_call(c, scratch, text, n, &c->read_err);
    if (sv_fetch_waits(c->read_err.fetch))
        return; /* it is read once more */
    sv_http_free_taken(c->raw);
    c->raw = NULL;
}

static void fetch_gone(void *user)
{
    struct sv_call *c = user;

    c->req = NULL;
    c->status = 499;
    sv_fetch_cancel(c->read_err.fetch);
}

static void read_again(void *user);

static void on_prepared(void *user)
{
    struct sv_call *c = user;

    c->prepared = true;
    if (c->req && sv_fetch_waits(c->read_err.fetch)) {
        sv_http_on_gone(c->req, fetch_gone, c);
        sv_fetch_start(c->read_err.fetch, read_again, c);
        return;
    }
    sv_fetch_free(c->read_err.fetch);
    c->read_err.fetch = NULL;
    go_on(c, c->read_rc, &c->read_err);
}

/* The addresses in the body were fetched: a new call reads the body from the beginning. */
static void read_again(void *user)
{
    struct sv_call *old = user;
    struct sv_call *c = old->req ? new_call(old->s, old->dialect, old->req, old->request_id) : NULL;

    if (c) {
        c->start_us = old->start_us;
        c->raw = old->raw;
        c->read_err.fetch = old->read_err.fetch;
        old->raw = NULL;
        old->read_err = (struct sv_api_err){0};
        c->job =
            (struct sv_job){.run = prepare, .done = on_prepared, .user = c, .cost = old->job.cost};
        c->preparing = true;
        sv_call_free(old);
        if (sv_prep_submit(c->s->prep, &c->job))
            return; /* it belongs to the other thread now */
        c->read_rc = sv_body_refused(&c->read_err);
    } else {
        c = old;
        c->read_rc = sv_api_no_memory(&c->read_err);
    }
    on_prepared(c);
}

/* Has the body read on the other thread. */
static int prepare_later(struct sv_call *c, struct sv_http_req *q, struct sv_api_err *e)
{
    c->job = (struct sv_job){.run = prepare, .done = on_prepared, .user = c};
    int rc = sv_body_later(c->s, q, &c->job, &c->raw, e);
    c->preparing = !rc;
    return rc;
}

/* A short body can take long too: its conversation may be long. */
static bool is_long(const struct sv_dialect *d, struct sv_http_req *q)
{
    size_t n;
    const char *text;

    if (sv_http_body_bytes(q) > SV_INLINE_BYTES)
        return true;
    text = sv_http_body(q, &n);
    return d->is_long && d->is_long(text, n);
}

/* later: the body is read on the other thread. */
static void begin(struct sv_serve *s, const struct sv_dialect *d, struct sv_http_req *q,
                  const char *request_id, bool later)
{
    struct sv_api_err e = {0};
    struct sv_call *c = new_call(s, d, q, request_id);

    if (!c) {
        sv_api_no_memory(&e);
        sv_api_refuse(q, &e);
        return;
    }
    int rc = sv_check_coding(q, &e);
    if (!rc && later) {
        rc = prepare_later(c, q, &e);
    } else if (!rc) {
        size_t n;
        const char *text = sv_http_body(q, &n);
        rc = read_call(c, s->scratch, text, n, &e);
        if (rc && e.too_slow) {
            sv_http_on_gone(q, NULL, NULL);
            sv_call_free(c);
            begin(s, d, q, request_id, true);
            return;
        }
    }
    if (!c->preparing)
        go_on(c, rc, &e);
}

void sv_call_begin(struct sv_serve *s, const struct sv_dialect *d, struct sv_http_req *q,
                   const char *request_id)
{
    begin(s, d, q, request_id, is_long(d, q));
}
