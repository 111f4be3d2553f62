/*
 * generate.c - answers of /generate in SGLang's shape, which the benchmarks of DFlash and SpecForge
 * post to.
 *
 * Called by call.c through sv_dialect_generate. Streams repeat the whole text in
 * every event, as SGLang's do. Must not: know the OpenAI shapes.
 */
#include "serve/core/write.h"
#include "serve/sglang/sglang.h"

#include <string.h>

/* ---------------------------------------------------------------- log probabilities */

/* Lists in a choice's lp; the prompt's first list is prompt_lp. */
enum { OUTPUT, OUTPUT_TOP, INPUT_TOP, OUTPUT_REQUESTED, INPUT_REQUESTED };

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

/* The list of one position; NULL: null. */
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

/* Adds a position: the token, the most probable ones, and the requested ones. The first position
 * has no log probabilities. */
static void add_place(struct sv_choice *ch, bool prompt, int32_t id, const struct sv_logprob *lp)
{
    static const struct sv_logprob none = {.n_top = 0};
    const struct sv_call *c = ch->call;
    struct sv_buf *tokens = prompt ? &ch->prompt_lp : &ch->lp[OUTPUT];
    const struct sv_logprob *row = lp ? lp : &none;

    sv_buf_printf(tokens, "%s", tokens->len ? "," : "");
    triple(tokens, c, id, lp ? &lp->logprob : NULL);
    if (c->p.n_top)
        triples(&ch->lp[prompt ? INPUT_TOP : OUTPUT_TOP], c, row->top_ids, row->top_logprobs,
                row->n_top < c->p.n_top ? row->n_top : c->p.n_top);
    if (ch->r.n_logprob_token_ids)
        triples(&ch->lp[prompt ? INPUT_REQUESTED : OUTPUT_REQUESTED], c, row->requested_ids,
                row->requested_logprobs, row->n_requested);
}

static void keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    const int32_t *ids = c->prompts[ch->prompt].ids;
    const char *at = o->prompt_logprobs;
    struct sv_logprob lp;

    for (int32_t i = 0; at && i < o->n_prompt_logprobs; i++) {
        sv_out_logprob(&at, &lp);
        if (i >= c->p.logprob_start)
            add_place(ch, true, ids[i], i > c->p.logprob_start ? &lp : NULL);
    }
    at = o->logprobs;
    for (int32_t i = 0; at && !sv_call_params(c, ch)->discard && i < o->n_tokens; i++) {
        sv_out_logprob(&at, &lp);
        add_place(ch, false, o->tokens[i], &lp);
    }
}

static void write_list(struct sv_buf *b, const char *name, const struct sv_buf *list)
{
    sv_buf_printf(b, ",\"%s\":[", name);
    sv_buf_append(b, list->data, list->len);
    sv_buf_lit(b, "]");
}

/* If only the answer's are wanted, the prompt's list has its last token. */
static void write_logprobs(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch)
{
    const struct sv_prompt *p = &c->prompts[ch->prompt];

    if (!c->p.logprobs)
        return;
    if (c->p.logprob_start < 0 && !ch->prompt_lp.len)
        add_place(ch, true, p->ids[p->n_ids - 1], NULL);
    write_list(b, "input_token_logprobs", &ch->prompt_lp);
    write_list(b, "output_token_logprobs", &ch->lp[OUTPUT]);
    if (c->p.n_top) {
        write_list(b, "input_top_logprobs", &ch->lp[INPUT_TOP]);
        write_list(b, "output_top_logprobs", &ch->lp[OUTPUT_TOP]);
    }
    if (ch->r.n_logprob_token_ids) {
        write_list(b, "input_token_ids_logprobs", &ch->lp[INPUT_REQUESTED]);
        write_list(b, "output_token_ids_logprobs", &ch->lp[OUTPUT_REQUESTED]);
    }
}

/* ---------------------------------------------------------------- answers */

static void write_finish(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    const struct sv_params *p = sv_call_params(c, ch);
    int64_t n = sv_n_shown_tokens(ch);

    if (ch->finish == SV_FINISH_NONE) {
        sv_buf_printf(b, "null");
    } else if (ch->finish == SV_FINISH_LENGTH || p->discard) {
        sv_buf_printf(b, "{\"type\":\"length\",\"length\":%lld}", (long long)n);
    } else if (ch->finish == SV_FINISH_CANCELED) {
        sv_buf_lit(b, "{\"type\":\"abort\",\"message\":\"Aborted\"}");
    } else {
        sv_buf_printf(b, "{\"type\":\"stop\",\"matched\":");
        const char *s = sv_stop_by_index(p, ch->stop_index);
        if (s)
            sv_json_quote(b, s, strlen(s));
        else if (ch->stop_id >= 0)
            sv_buf_printf(b, "%d", ch->stop_id);
        else
            sv_buf_printf(b, "null");
        sv_buf_append(b, "}", 1);
    }
}

static void write_spec(struct sv_buf *b, const struct sv_choice *ch)
{
    struct sv_accept a;

    sv_accept_of(ch, &a);
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

/* The prompt's own id, or the request's. */
static void write_id(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    const json_t *own = json_array_get(c->p.rids, (size_t)ch->prompt);

    if (own)
        sv_json_quote(b, json_string_value(own), json_string_length(own));
    else
        sv_json_quote(b, c->id, strlen(c->id));
}

static void write_choice(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch)
{
    int32_t n = (int32_t)sv_n_shown_tokens(ch);

    sv_buf_printf(b, "{\"text\":");
    sv_json_quote(b, ch->text.data ? ch->text.data : "",
                  sv_call_params(c, ch)->discard ? 0 : ch->text.len);
    sv_buf_printf(b, ",\"output_ids\":");
    sv_json_ids(b, (const int32_t *)(const void *)ch->ids.data, n);
    if (c->p.return_prompt_ids) {
        sv_buf_lit(b, ",\"prompt_token_ids\":");
        sv_json_ids(b, c->prompts[ch->prompt].ids, c->prompts[ch->prompt].n_ids);
    }
    sv_buf_lit(b, ",\"meta_info\":{\"id\":");
    write_id(b, c, ch);
    sv_buf_printf(b, ",\"finish_reason\":");
    write_finish(b, c, ch);
    sv_buf_printf(b,
                  ",\"prompt_tokens\":%d,\"completion_tokens\":%d,\"cached_tokens\":%d,"
                  "\"weight_version\":\"default\",\"total_retractions\":%d",
                  c->prompts[ch->prompt].n_ids, n, ch->n_cached, ch->n_preemptions);
    write_logprobs(b, c, ch);
    if (ch->finish != SV_FINISH_NONE) {
        sv_buf_printf(b, ",\"e2e_latency\":");
        sv_json_float(b, (double)(sv_clock_us() - c->start_us) / 1e6);
        if (c->s->model->drafts)
            write_spec(b, ch);
    }
    sv_buf_append(b, "}", 1);
}

static void chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o, struct sv_buf *b)
{
    if ((!o->n_text || sv_call_params(c, ch)->discard) && o->finish == SV_FINISH_NONE)
        return;
    sv_sse_begin(b);
    write_choice(b, c, ch);
    sv_buf_printf(b, ",\"index\":%d}", ch->index);
    sv_sse_end(b);
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    (void)c;
    sv_sse_done(b);
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    bool list = c->p.batched || c->n_choices > 1;

    if (list)
        sv_buf_append(b, "[", 1);
    for (int32_t i = 0; i < c->n_choices; i++) {
        if (i)
            sv_buf_append(b, ",", 1);
        write_choice(b, c, &c->choices[i]);
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
