/*
 * call.c - one generating request from its body to its last byte: admission, sequences, results,
 * clients that leave.
 *
 * Called by route.c (begin) and loop.c (out, tick). A call lives until every one of its sequences
 * has had its last event, also when the client is gone. Must not: wait; nothing here blocks the
 * loop.
 */
#include "serve/impl.h"

#include "grammar/grammar.h"

#include <string.h>
#include <time.h>

/* Writes to streams are to take 0.8 % of a core. What one costs, most of it in the kernel, is
 * measured: 2 to 8 us. */
#define GAP_OF_WRITES 125
#define MIN_WRITE_NS 2000
#define MAX_WRITE_NS 8000
#define MAX_GAP_US 60000

/* ---------------------------------------------------------------- life */

static void gen_free(struct sv_gen *g)
{
    sv_buf_fini(&g->text);
    sv_buf_fini(&g->ids);
    for (int i = 0; i < SV_GEN_LISTS; i++)
        sv_buf_fini(&g->lp[i]);
    sv_buf_fini(&g->prompt_lp);
    sv_buf_fini(&g->unkept);
    sv_buf_fini(&g->accept);
    sv_buf_fini(&g->widths);
    sv_buf_fini(&g->new_text);
    sv_buf_fini(&g->due);
    sv_buf_fini(&g->due_drafted);
    sv_parts_close(g);
}

void sv_call_free(struct sv_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else if (c->s->calls == c)
        c->s->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
    for (int32_t i = 0; c->gens && i < c->n_gens; i++)
        gen_free(&c->gens[i]);
    sv_free(c->gens);
    sv_prompts_free(c->prompts, c->n_prompts);
    sv_free(c->listed);
    sv_free(c->asked);
    sv_stops_drop(c);
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
    sv_buf_fini(&c->held);
    sv_free(c);
}

/* Once: the worker's queue has room for that. */
static void cancel_gen(struct sv_gen *g)
{
    if (!g->done && !g->canceled)
        sv_worker_cancel(g->call->s->worker, g->serial);
    g->canceled = true;
}

void sv_call_cancel(struct sv_call *c)
{
    for (int32_t i = 0; i < c->n_gens; i++)
        cancel_gen(&c->gens[i]);
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

/* The two are read side by side: both or neither. */
static void take_steps(struct sv_gen *g, const struct sv_out *o)
{
    const size_t n = (size_t)o->n_steps * sizeof(uint16_t);

    if (sv_buf_reserve(&g->accept, n) || sv_buf_reserve(&g->widths, n))
        return;
    sv_buf_append(&g->accept, o->accept_lengths, n);
    sv_buf_append(&g->widths, o->widths, n);
}

static void take_figures(struct sv_serve *s, struct sv_call *c, struct sv_gen *g,
                         const struct sv_out *o)
{
    if (o->n_tokens && !g->begun) {
        double first = (double)(o->at_us - c->start_us) / 1e6;
        sv_histogram_add(&s->metrics.ttft, first > 0 ? first : 0, 1);
        c->first_us = c->first_us ? c->first_us : o->at_us;
    } else if (o->n_tokens) {
        /* A step brings several tokens at once; each counts as its share of the gap. */
        int64_t step = o->at_us - g->last_us;
        double gap = (double)step / 1e6 / o->n_tokens;
        sv_histogram_add(&s->metrics.itl, gap > 0 ? gap : 0, o->n_tokens);
        s->step_us += (step - s->step_us) / 16;
    }
    if (o->n_tokens)
        g->last_us = o->at_us;
    s->metrics.n_tokens += o->n_tokens;
    if (!g->begun)
        g->n_cached = o->n_cached;
    if (o->finish == SV_FINISH_NONE)
        return;
    g->finish = o->finish;
    g->stop_id = o->stop_id;
    g->stop_index = o->stop_index;
    g->n_prompt = o->n_prompt;
    g->n_cached = o->n_cached;
    g->n_preemptions = o->n_preemptions;
    g->queue_us = o->queue_us;
    g->prefill_us = o->prefill_us;
    g->decode_us = o->decode_us;
    take_steps(g, o);
    take_lengths(&s->metrics, o, (int64_t)(g->ids.len / sizeof(int32_t)) + o->n_tokens);
}

void sv_call_set_due(struct sv_call *c)
{
    if (c->due)
        return;
    c->due = true;
    c->next_due = c->s->due;
    c->s->due = c;
}

/* For the stream's next chunk, which carries what came since the last one. */
static void take_stream(struct sv_call *c, struct sv_gen *g, const struct sv_out *o)
{
    sv_buf_append(&g->new_text, o->text, o->n_text);
    if (c->p.return_draft)
        sv_take_draft_flags(g, o);
    g->fresh = true;
    c->write_us = o->at_us;
    sv_call_set_due(c);
    if (c->s->o.stream_gap_us < 0)
        sv_call_chunk(c, g); /* however many steps are read at once, each has a chunk of its own */
}

static void take_error(struct sv_call *c, const struct sv_out *o)
{
    struct sv_api_err e;
    int n = (int)o->n_message;

    if (c->failed || !c->req)
        return;
    if (o->kind == SV_OUT_REJECTED && c->s->state != SV_BROKEN)
        sv_api_bad(&e, NULL, "%.*s", n, o->message);
    else if (o->finish == SV_FINISH_CANCELED)
        sv_api_fail(&e, 503, NULL, "the server is shutting down");
    else
        sv_api_fail(&e, 500, NULL, "%.*s", n, n ? o->message : "");
    sv_call_fail(c, &e);
}

/* llama-server's limit of time counts from the first token on, once there is a line's end; its
 * limit of indentation ends an answer in the same way. What the worker then calls canceled has come
 * to its length. */
static void check_limits(struct sv_call *c, struct sv_gen *g, struct sv_out *o)
{
    if (c->dialect->kind < SV_LLAMA || !c->req)
        return;
    g->newline = g->newline || (o->n_text && memchr(o->text, '\n', o->n_text));
    if (g->cut && o->finish == SV_FINISH_CANCELED)
        o->finish = SV_FINISH_LENGTH;
    bool over = sv_indent_ends(g, c->p.n_indent, o) ||
                (c->p.max_ms > 0 && g->newline && c->first_us &&
                 o->at_us - c->first_us >= (int64_t)c->p.max_ms * 1000);
    if (!over || g->cut || o->finish != SV_FINISH_NONE)
        return;
    g->cut = true;
    cancel_gen(g);
}

/* What the answer is made of; false: there was no memory for some of it. */
static bool take_answer(struct sv_call *c, struct sv_gen *g, const struct sv_out *o)
{
    bool kept = true;

    if (!c->p.stream || c->dialect->kind == SV_GENERATE) { /* SGLang's streams repeat the text */
        sv_buf_append(&g->text, o->text, o->n_text);
        kept = !g->text.failed;
    }
    kept = sv_call_keep(c, g, o) && kept;
    if (c->p.stream)
        take_stream(c, g, o);
    return kept;
}

void sv_call_out(struct sv_serve *s, struct sv_out *o)
{
    struct sv_gen *g = o->gen;
    struct sv_call *c = g->call;

    if (c->writing) {
        sv_call_hold(c, o);
        return;
    }
    check_limits(c, g, o);
    bool error = o->kind == SV_OUT_REJECTED || o->finish == SV_FINISH_ERROR ||
                 (o->finish == SV_FINISH_CANCELED && !c->aborted);
    bool kept = true;

    if (o->kind == SV_OUT_EVENT) {
        take_figures(s, c, g, o);
        sv_buf_append(&g->ids, o->tokens, (size_t)o->n_tokens * sizeof(int32_t));
    } else {
        s->metrics.n_requests[5]++;
    }
    if (error) {
        take_error(c, o);
    } else if (c->req) {
        kept = take_answer(c, g, o);
    }
    if (o->finish != SV_FINISH_NONE)
        kept = kept && !g->accept.failed && !g->widths.failed;
    if (!error && (!kept || g->ids.failed))
        sv_call_lose(c);
    if (g->begun || c->sent) {
        s->oldest_us = s->oldest_us ? s->oldest_us : o->at_us;
        s->newest_us = o->at_us;
    }
    g->begun = g->begun || o->n_tokens;
    if (o->kind == SV_OUT_EVENT && o->finish == SV_FINISH_NONE)
        return;
    g->done = true;
    s->n_live--;
    if (++c->n_done == c->n_gens)
        sv_call_set_due(c);
}

/* How long a stream waits between writes, so that sending costs the machine little however many
 * there are. */
static int64_t stream_gap(const struct sv_serve *s)
{
    int32_t most = s->o.engine.max_sequences > 1 ? s->o.engine.max_sequences : 1; /* others wait */
    int64_t us = (s->n_live < most ? s->n_live : most) * s->write_ns * GAP_OF_WRITES / 1000;

    if (s->o.stream_gap_us)
        return s->o.stream_gap_us > 0 ? s->o.stream_gap_us : 0;
    return us < MAX_GAP_US ? us : MAX_GAP_US;
}

/* n streams were written to, since the thread's clock showed start_ns. */
static void learn_write(struct sv_serve *s, int64_t n, int64_t start_ns)
{
    int64_t ns = (sv_clock_thread_ns() - start_ns) / n;

    ns = ns < MIN_WRITE_NS ? MIN_WRITE_NS : ns > MAX_WRITE_NS ? MAX_WRITE_NS : ns;
    s->write_ns += (ns - s->write_ns) / 8;
}

/* When all are written to: with the step that ends nearest to the end of the gap, if it is not much
 * too early. */
static int64_t next_write_us(const struct sv_serve *s, int64_t gap)
{
    int64_t early = s->step_us / 2;
    return s->flushed_us + gap - (early < gap / 8 ? early : gap / 8);
}

bool sv_call_has_ended(const struct sv_call *c)
{
    return c->n_done == c->n_gens;
}

static bool is_first(const struct sv_call *c)
{
    return !c->req || !c->sent;
}

static bool any(const struct sv_call *c)
{
    (void)c;
    return true;
}

/* Sends to those that are due and fit, and takes them off the list; returns how many there were. */
static int64_t send_due(struct sv_serve *s, bool (*fits)(const struct sv_call *c))
{
    struct sv_call **at = &s->due, *c;
    int64_t n = 0;

    while ((c = *at)) {
        if (!fits(c)) {
            at = &c->next_due;
            continue;
        }
        *at = c->next_due;
        c->due = false;
        sv_call_send(c);
        n++;
    }
    return n;
}

bool sv_call_all_due(const struct sv_serve *s)
{
    int64_t now = sv_clock_us(), gap = stream_gap(s);
    return now >= next_write_us(s, gap) || (s->oldest_us && now - s->oldest_us >= gap);
}

void sv_call_flush(struct sv_serve *s, bool all)
{
    int64_t kept_us = sv_worker_kept_since(s->worker), gap;

    send_due(s, sv_call_has_ended);
    send_due(s, is_first);
    if (all && s->due) {
        int64_t start_ns = sv_clock_thread_ns(), n = send_due(s, any);
        learn_write(s, n, start_ns);
    }
    if (all && s->oldest_us) {
        s->flushed_us = s->newest_us;
        s->oldest_us = 0;
    }
    if (kept_us && (!s->oldest_us || kept_us < s->oldest_us))
        s->oldest_us = kept_us;
    gap = stream_gap(s);
    sv_worker_quiet(s->worker, next_write_us(s, gap), gap,
                    s->due || kept_us ? s->oldest_us + gap : INT64_MAX);
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

void sv_call_abort(struct sv_serve *s, const char *rid)
{
    for (struct sv_call *c = s->calls; c; c = c->next)
        if (c->n_gens && (!rid || is_called(c, rid))) { /* what is still read has no name yet */
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

const struct sv_params *sv_call_params(const struct sv_call *c, const struct sv_gen *g)
{
    return c->each ? &c->each[g->prompt] : &c->p;
}

bool sv_call_knows_model(const struct sv_serve *s, const char *name)
{
    return strcmp(name, s->model_name) == 0 || strcmp(name, s->o.engine.target_dir) == 0 ||
           strcmp(name, "default") == 0; /* SGLang's clients say that */
}

/* SGLang and llama-server answer to every name, OpenAI and vLLM to their own. */
int sv_check_model(const struct sv_serve *s, enum sv_dialect_kind kind, const char *model,
                   struct sv_api_err *e)
{
    if (s->o.any_model || kind >= SV_GENERATE || !model || !*model || sv_call_knows_model(s, model))
        return 0;
    sv_api_fail(e, 404, "model_not_found",
                "the model '%.200s' does not exist; this server has '%.200s'", model,
                s->model_name);
    snprintf(e->param, sizeof e->param, "model");
    return -1;
}

static int make_gens(struct sv_call *c, struct sv_api_err *e)
{
    struct sv_serve *s = c->s;
    int64_t n = (int64_t)c->n_prompts * c->p.n;
    int32_t usual = c->p.r.max_tokens > 0 && c->p.r.max_tokens < 1024 ? c->p.r.max_tokens : 1024;
    uint64_t seed = sv_serve_random(s) >> 11; /* exact in JavaScript too */

    if (n > s->o.max_choices)
        return sv_api_bad(e, c->p.n > 1 ? "n" : "prompt",
                          "%lld sequences in one request; this server allows %d", (long long)n,
                          s->o.max_choices);
    if (s->n_live + n > s->max_live) {
        s->metrics.n_full++;
        return sv_api_fail(e, 429, "queue_full", "the queue is full: %d sequences run or wait",
                           s->n_live);
    }
    c->gens = sv_calloc((size_t)n, sizeof *c->gens);
    if (!c->gens)
        return sv_api_no_memory(e);
    c->n_gens = (int32_t)n;
    for (int32_t i = 0; i < c->n_gens; i++) {
        struct sv_gen *g = &c->gens[i];
        const struct sv_prompt *p = &c->prompts[i / c->p.n];
        *g = (struct sv_gen){.call = c, .index = i, .prompt = i / c->p.n};
        const struct sv_params *own = sv_call_params(c, g);
        g->r = own->r;
        g->stop_id = g->stop_index = -1;
        g->serial = ++s->next_serial;
        g->r.prompt_ids = p->ids;
        g->r.n_prompt_ids = p->n_ids;
        g->r.grammar = c->grammar;
        sv_asked_give(c->asked, g->prompt, &g->r);
        /* choices of a prompt differ */
        g->r.seed = (own->has_seed ? own->r.seed : seed) + (uint64_t)(i % c->p.n);
        sv_detok_init(&g->detok, s->model->tok, true);
        if (sv_parts_open(g) || sv_buf_reserve(&g->ids, (size_t)usual * sizeof(int32_t)))
            return sv_api_no_memory(e);
    }
    return 0;
}

/* From the body's text to the ids of its prompts, on whatever thread. */
static int read_call(struct sv_call *c, struct sv_enc_scratch *scratch, const char *text, size_t n,
                     struct sv_api_err *e)
{
    const struct sv_serve *s = c->s;
    enum sv_dialect_kind kind = c->dialect->kind;

    c->body = sv_body_object(text, n, e);
    if (c->body && s->o.ignore_unknown)
        sv_params_drop_unknown(kind, c->body, &c->ignored);
    if (!c->body || sv_params_read(&c->p, kind, c->body, e) ||
        sv_check_model(s, kind, c->p.model, e) || (c->dialect->read && c->dialect->read(c, e)) ||
        sv_params_each(&c->p, sv_prompts_count(&c->p, kind), s->model, &s->o, &c->each, e) ||
        sv_params_complete(&c->p, kind, s->model, &s->o, e) || sv_tools_begin(s, &c->p, kind, e) ||
        sv_words_take(s, scratch, &c->p, &c->listed, e) || sv_stops_take(c, e) ||
        sv_asked_take(s, &c->p, sv_prompts_count(&c->p, kind), &c->asked, e))
        return -1;
    int rc = sv_prompts_make(s, scratch, &c->p, kind, &c->prompts, &c->n_prompts, e);
    return rc ? rc : sv_form_source(&c->p, &c->source, e);
}

static void name_call(struct sv_call *c)
{
    static const char *const prefix[] = {[SV_CHAT] = "chatcmpl-",
                                         [SV_MESSAGES] = "msg_",
                                         [SV_COMPLETIONS] = "cmpl-",
                                         [SV_INFILL] = NULL};
    const char *own = c->p.request_id && *c->p.request_id ? c->p.request_id : c->request_id;
    const char *first = prefix[c->dialect->kind];

    if (!*c->id) /* or the dialect has named it */
        snprintf(c->id, sizeof c->id, "%s%.50s", first ? first : "", own);
    c->created = (int64_t)time(NULL);
}

/* All is there, or not: rc and e say. */
static void call_go(struct sv_call *c, int rc, struct sv_api_err *e)
{
    struct sv_serve *s = c->s;
    struct sv_http_req *q = c->req;

    if (!rc)
        rc = make_gens(c, e);
    if (rc) {
        sv_http_on_gone(q, NULL, NULL);
        sv_api_refuse(q, e); /* e may be the call's own */
        sv_call_free(c);
        return;
    }
    name_call(c);
    s->n_live += c->n_gens;
    for (int32_t i = 0; i < c->n_gens; i++)
        sv_worker_submit(s->worker, &c->gens[i]);
}

/* On the loop's thread, after other ones had the call. */
static void go_on(struct sv_call *c, int rc, struct sv_api_err *e)
{
    c->preparing = false;
    if (!c->req) {
        sv_call_free(c);
        return;
    }
    if (c->s->drain_over)
        rc = sv_api_fail(e, 503, NULL, "the server is shutting down");
    if (!rc && c->source.len)
        rc = sv_grammars_want(c->s, c, e);
    c->preparing = rc > 0;
    if (!c->preparing)
        call_go(c, rc, e);
}

void sv_call_formed(struct sv_call *c, int rc, struct sv_api_err *e)
{
    sv_buf_fini(&c->source);
    go_on(c, rc, e);
}

static void prepare(void *user, struct sv_enc_scratch *scratch)
{
    struct sv_call *c = user;
    size_t n;
    const char *text = sv_http_taken_text(c->raw, &n);

    c->read_rc = read_call(c, scratch, text, n, &c->read_err);
    sv_http_free_taken(c->raw);
    c->raw = NULL;
}

static void on_prepared(void *user)
{
    struct sv_call *c = user;

    c->prepared = true;
    go_on(c, c->read_rc, &c->read_err);
}

/* Hands the body to the other thread. */
static int prepare_later(struct sv_call *c, struct sv_http_req *q, struct sv_api_err *e)
{
    c->job = (struct sv_job){.run = prepare, .done = on_prepared, .user = c};
    int rc = sv_body_later(c->s, q, &c->job, &c->raw, e);
    c->preparing = !rc;
    return rc;
}

/* What it goes on from may be long, too, and expressions take time. */
static bool is_long(const struct sv_dialect *d, struct sv_http_req *q)
{
    size_t n;
    const char *text;

    if (sv_http_body_bytes(q) > SV_INLINE_BYTES)
        return true;
    text = sv_http_body(q, &n);
    return d->kind == SV_RESPONSES ? sv_responses_goes_on(text, n) : n && sv_stops_said(text, n);
}

void sv_call_begin(struct sv_serve *s, const struct sv_dialect *d, struct sv_http_req *q,
                   const char *request_id)
{
    struct sv_api_err e = {0};
    struct sv_call *c = sv_calloc(1, sizeof *c);
    bool later = is_long(d, q);

    if (!c) {
        sv_api_no_memory(&e);
        sv_api_refuse(q, &e);
        return;
    }
    c->s = s; /* the rest is zero, and large */
    c->dialect = d;
    c->status = 200;
    c->start_us = c->write_us = sv_clock_us();
    c->req = q;
    c->next = s->calls;
    if (c->next)
        c->next->prev = c;
    s->calls = c;
    snprintf(c->request_id, sizeof c->request_id, "%s", request_id);
    sv_http_on_gone(q, on_gone, c);
    int rc = sv_check_coding(q, &e);
    if (!rc && later) {
        rc = prepare_later(c, q, &e);
    } else if (!rc) {
        size_t n;
        const char *text = sv_http_body(q, &n);
        rc = read_call(c, s->scratch, text, n, &e);
    }
    if (!c->preparing)
        go_on(c, rc, &e);
}
