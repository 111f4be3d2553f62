/*
 * generate.c - /generate, /server_info and /flush_cache in SGLang's shape: what the benchmarks of
 * DFlash and SpecForge post to.
 *
 * Called by call.c through sv_dialect_generate and by route.c. Streams repeat the whole text in
 * every event, as SGLang's do. Must not: know the OpenAI shapes.
 */
#include "serve/impl.h"

#include <string.h>

/* ---------------------------------------------------------------- log probabilities */

/* Lists under construction in a gen's lp; the prompt's are in prompt_lp. */
enum { OUTPUT, OUTPUT_TOP, INPUT_TOP, OUTPUT_ASKED, INPUT_ASKED };

/* [logprob, id, text], where the text is null unless asked for. */
static void triple(struct sv_buf *b, const struct sv_call *c, int32_t id, const float *logprob)
{
    sv_buf_lit(b, "[");
    if (logprob)
        sv_json_float(b, (double)*logprob);
    else
        sv_buf_lit(b, "null");
    sv_buf_printf(b, ",%d,", id);
    if (c->p.logprob_text)
        sv_json_token(b, c->s->model->tok, id);
    else
        sv_buf_lit(b, "null");
    sv_buf_lit(b, "]");
}

/* One more place's; NULL: nothing is known of it. */
static void triples(struct sv_buf *b, const struct sv_call *c, const int32_t *ids,
                    const float *logprobs, int32_t n)
{
    sv_buf_printf(b, "%s%s", b->len ? "," : "", ids ? "[" : "null");
    for (int32_t k = 0; ids && k < n; k++) {
        if (k)
            sv_buf_lit(b, ",");
        triple(b, c, ids[k], &logprobs[k]);
    }
    if (ids)
        sv_buf_lit(b, "]");
}

/* One more place: the token, the most probable ones, and those that were asked for. Nothing is
 * known of the first. */
static void add_place(struct sv_gen *g, bool prompt, int32_t id, const struct sv_logprob *lp)
{
    static const struct sv_logprob none = {.n_top = 0};
    const struct sv_call *c = g->call;
    struct sv_buf *tokens = prompt ? &g->prompt_lp : &g->lp[OUTPUT];
    const struct sv_logprob *row = lp ? lp : &none;

    sv_buf_printf(tokens, "%s", tokens->len ? "," : "");
    triple(tokens, c, id, lp ? &lp->logprob : NULL);
    if (c->p.n_top)
        triples(&g->lp[prompt ? INPUT_TOP : OUTPUT_TOP], c, row->top_ids, row->top_logprobs,
                row->n_top < c->p.n_top ? row->n_top : c->p.n_top);
    if (g->r.n_asked_ids)
        triples(&g->lp[prompt ? INPUT_ASKED : OUTPUT_ASKED], c, row->asked_ids, row->asked_logprobs,
                row->n_asked);
}

static void keep(struct sv_call *c, struct sv_gen *g, const struct sv_out *o)
{
    const int32_t *ids = c->prompts[g->prompt].ids;
    const char *at = o->prompt_logprobs;
    struct sv_logprob lp;

    for (int32_t i = 0; at && i < o->n_prompt_logprobs; i++) {
        sv_out_logprob(&at, &lp);
        if (i >= c->p.logprob_start)
            add_place(g, true, ids[i], i > c->p.logprob_start ? &lp : NULL);
    }
    at = o->logprobs;
    for (int32_t i = 0; at && !sv_call_params(c, g)->discard && i < o->n_tokens; i++) {
        sv_out_logprob(&at, &lp);
        add_place(g, false, o->tokens[i], &lp);
    }
}

static void write_list(struct sv_buf *b, const char *name, const struct sv_buf *list)
{
    sv_buf_printf(b, ",\"%s\":[", name);
    sv_buf_append(b, list->data, list->len);
    sv_buf_lit(b, "]");
}

/* The prompt's begin at its last token where only the answer's are wanted. */
static void write_logprobs(struct sv_buf *b, const struct sv_call *c, struct sv_gen *g)
{
    const struct sv_prompt *p = &c->prompts[g->prompt];

    if (!c->p.logprobs)
        return;
    if (c->p.logprob_start < 0 && !g->prompt_lp.len)
        add_place(g, true, p->ids[p->n_ids - 1], NULL);
    write_list(b, "input_token_logprobs", &g->prompt_lp);
    write_list(b, "output_token_logprobs", &g->lp[OUTPUT]);
    if (c->p.n_top) {
        write_list(b, "input_top_logprobs", &g->lp[INPUT_TOP]);
        write_list(b, "output_top_logprobs", &g->lp[OUTPUT_TOP]);
    }
    if (g->r.n_asked_ids) {
        write_list(b, "input_token_ids_logprobs", &g->lp[INPUT_ASKED]);
        write_list(b, "output_token_ids_logprobs", &g->lp[OUTPUT_ASKED]);
    }
}

/* ---------------------------------------------------------------- answers */

static void write_finish(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g)
{
    const struct sv_params *p = sv_call_params(c, g);
    int64_t n = sv_n_shown_tokens(g);

    if (g->finish == SV_FINISH_NONE) {
        sv_buf_printf(b, "null");
    } else if (g->finish == SV_FINISH_LENGTH || p->discard) {
        sv_buf_printf(b, "{\"type\":\"length\",\"length\":%lld}", (long long)n);
    } else if (g->finish == SV_FINISH_CANCELED) {
        sv_buf_lit(b, "{\"type\":\"abort\",\"message\":\"Aborted\"}");
    } else {
        sv_buf_printf(b, "{\"type\":\"stop\",\"matched\":");
        const char *s = sv_stop_named(p, g->stop_index);
        if (s)
            sv_json_quote(b, s, strlen(s));
        else if (g->stop_id >= 0)
            sv_buf_printf(b, "%d", g->stop_id);
        else
            sv_buf_printf(b, "null");
        sv_buf_append(b, "}", 1);
    }
}

static void write_spec(struct sv_buf *b, const struct sv_gen *g)
{
    struct sv_accept a;

    sv_accept_of(g, &a);
    sv_buf_printf(b, ",\"spec_verify_ct\":%lld,\"spec_accept_length\":", (long long)a.n_steps);
    sv_json_float(b, a.n_steps ? (double)a.n_tokens / (double)a.n_steps : 0);
    sv_buf_printf(b, ",\"spec_accept_rate\":");
    sv_json_float(b, a.n_drafted ? (double)a.n_accepted / (double)a.n_drafted : 0);
    sv_buf_printf(b, ",\"spec_draft_token_num\":%lld", (long long)a.n_drafted);
    sv_buf_printf(b, ",\"spec_accept_token_num\":%lld,\"spec_accept_histogram\":[",
                  (long long)a.n_accepted);
    for (int32_t i = 0; i <= a.max; i++)
        sv_buf_printf(b, i ? ",%lld" : "%lld", (long long)a.length[i]);
    sv_buf_append(b, "]", 1);
}

/* The prompt's own name, or the request's. */
static void write_id(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g)
{
    const json_t *own = json_array_get(c->p.rids, (size_t)g->prompt);

    if (own)
        sv_json_quote(b, json_string_value(own), json_string_length(own));
    else
        sv_json_quote(b, c->id, strlen(c->id));
}

static void write_gen(struct sv_buf *b, const struct sv_call *c, struct sv_gen *g)
{
    int32_t n = (int32_t)sv_n_shown_tokens(g);

    sv_buf_printf(b, "{\"text\":");
    sv_json_quote(b, g->text.data ? g->text.data : "",
                  sv_call_params(c, g)->discard ? 0 : g->text.len);
    sv_buf_printf(b, ",\"output_ids\":");
    sv_json_ids(b, (const int32_t *)(const void *)g->ids.data, n);
    if (c->p.return_prompt_ids) {
        sv_buf_lit(b, ",\"prompt_token_ids\":");
        sv_json_ids(b, c->prompts[g->prompt].ids, c->prompts[g->prompt].n_ids);
    }
    sv_buf_lit(b, ",\"meta_info\":{\"id\":");
    write_id(b, c, g);
    sv_buf_printf(b, ",\"finish_reason\":");
    write_finish(b, c, g);
    sv_buf_printf(b,
                  ",\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d,"
                  "\"weight_version\":\"default\",\"total_retractions\":%d",
                  c->prompts[g->prompt].n_ids, n, g->n_cached, g->n_preemptions);
    write_logprobs(b, c, g);
    if (g->finish != SV_FINISH_NONE) {
        sv_buf_printf(b, ",\"e2e_latency\":");
        sv_json_float(b, (double)(sv_clock_us() - c->start_us) / 1e6);
        if (c->s->model->drafts)
            write_spec(b, g);
    }
    sv_buf_append(b, "}", 1);
}

static void chunk(struct sv_call *c, struct sv_gen *g, const struct sv_out *o, struct sv_buf *b)
{
    if ((!o->n_text || sv_call_params(c, g)->discard) && o->finish == SV_FINISH_NONE)
        return;
    sv_sse_begin(b);
    write_gen(b, c, g);
    sv_buf_printf(b, ",\"index\":%d}", g->index);
    sv_sse_end(b);
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    (void)c;
    sv_sse_done(b);
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    bool list = c->p.batched || c->n_gens > 1;

    if (list)
        sv_buf_append(b, "[", 1);
    for (int32_t i = 0; i < c->n_gens; i++) {
        if (i)
            sv_buf_append(b, ",", 1);
        write_gen(b, c, &c->gens[i]);
        sv_buf_append(b, "}", 1);
    }
    if (list)
        sv_buf_append(b, "]", 1);
}

const struct sv_dialect sv_dialect_generate = {.name = "generate",
                                               .kind = SV_GENERATE,
                                               .chunk = chunk,
                                               .tail = tail,
                                               .body = body,
                                               .keep = keep};

/* ---------------------------------------------------------------- the server's state */

void sv_get_server_info(struct sv_serve *s, struct sv_http_req *q)
{
    const struct sv_engine_info *info = &s->model->info;
    struct sv_snapshot snap;
    struct sv_buf b;

    sv_worker_snapshot(s->worker, &snap);
    const struct sv_engine_stats *st = &snap.stats;
    double seconds = (double)snap.busy_us / 1e6;
    sv_buf_init(&b);
    sv_buf_printf(&b, "{");
    sv_json_string(&b, "model_path", s->o.engine.target_dir);
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "served_model_name", s->model_name);
    sv_buf_printf(&b, ",\"version\":\"salvo " SALVO_VERSION "\",\"speculative_algorithm\":%s",
                  s->model->drafts ? "\"DFLASH\"" : "null");
    if (s->o.engine.draft_dir) {
        sv_buf_printf(&b, ",");
        sv_json_string(&b, "speculative_draft_model_path", s->o.engine.draft_dir);
    }
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "architecture", info->target_arch);
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "device", info->device);
    sv_buf_printf(&b, ",");
    sv_json_string(&b, "dtype", info->dtype);
    sv_buf_printf(&b,
                  ",\"speculative_num_draft_tokens\":%d,\"verify_width\":%d,\"context_length\":%d,"
                  "\"max_total_num_tokens\":%lld,\"max_running_requests\":%d,"
                  "\"internal_states\":[{\"avg_spec_accept_length\":",
                  info->block_size, info->width, info->context,
                  (long long)st->n_pages * (s->o.engine.page_size ? s->o.engine.page_size : 16),
                  s->o.engine.max_sequences ? s->o.engine.max_sequences : 1);
    sv_json_float(&b, sv_mean_accept(st));
    sv_buf_printf(&b, ",\"last_gen_throughput\":");
    sv_json_float(&b, seconds > 0 ? (double)st->n_tokens / seconds : 0);
    sv_buf_printf(&b, ",\"num_running_reqs\":%d,\"num_waiting_reqs\":%d}]}\n", st->n_running,
                  st->n_waiting);
    sv_api_answer(q, 200, "application/json", &b);
}

#define MAX_FLUSHING 32

static void flush_gone(void *user)
{
    *(struct sv_http_req **)user = NULL;
}

void sv_flush_prefixes(struct sv_serve *s, struct sv_http_req *q)
{
    if (s->n_flushing == MAX_FLUSHING) {
        struct sv_api_err e;
        sv_api_fail(&e, 429, NULL, "too many flushes at once");
        sv_api_refuse(q, &e);
        return;
    }
    struct sv_http_req **at = &s->flushing[(s->first_flushing + s->n_flushing++) % MAX_FLUSHING];
    *at = q;
    sv_http_on_gone(q, flush_gone, at);
    sv_worker_flush(s->worker);
}

/* The worker has flushed for the oldest of those that wait. */
void sv_flushed(struct sv_serve *s)
{
    static const char text[] = "Cache flushed.\n";
    SV_REQUIRE(s->n_flushing > 0);
    struct sv_http_req *q = s->flushing[s->first_flushing];
    s->first_flushing = (s->first_flushing + 1) % MAX_FLUSHING;
    s->n_flushing--;
    if (q)
        sv_http_reply(q, 200, "text/plain; charset=utf-8", text, sizeof text - 1);
}
