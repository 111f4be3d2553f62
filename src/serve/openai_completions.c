/*
 * openai_completions.c - answers of /v1/completions, whole and streamed.
 *
 * Called by call.c through sv_dialect_completions. Choices are numbered prompt by prompt. Must not:
 * change text.
 */
#include "serve/impl.h"

#include <string.h>

static void write_head(struct sv_buf *b, const struct sv_call *c)
{
    sv_buf_lit(b, "{\"id\":");
    sv_json_quote(b, c->id, strlen(c->id));
    sv_buf_printf(b, ",\"object\":\"text_completion\",\"created\":%lld,", (long long)c->created);
    sv_json_string(b, "model", sv_call_model(c));
}

/* The prompt as text: as it was given, or, when it is ids or may have been cut, decoded. */
static void echo_text(const struct sv_call *c, const struct sv_gen *g, struct sv_buf *out)
{
    const json_t *v = c->p.batched ? json_array_get(c->p.prompt, (size_t)g->prompt) : c->p.prompt;
    const struct sv_prompt *p = &c->prompts[g->prompt];

    if (json_is_string(v) && !c->p.truncates)
        sv_buf_append(out, json_string_value(v), json_string_length(v));
    else
        sv_tokenizer_decode(c->s->model->tok, p->ids, (size_t)p->n_ids, false, out);
}

static void keep(struct sv_call *c, struct sv_gen *g, const struct sv_out *o)
{
    const struct sv_tokenizer *tok = c->s->model->tok;
    const struct sv_prompt *p = &c->prompts[g->prompt];
    const char *at = o->prompt_logprobs;
    struct sv_logprob lp;

    if (at && c->p.echo && c->p.logprobs)
        for (int32_t i = 0; i < o->n_prompt_logprobs; i++) {
            sv_out_logprob(&at, &lp);
            lp.n_asked = 0; /* those are told of the answer */
            sv_logprobs_legacy(g, tok, p->ids[i], &lp, i == 0);
        }
    if (o->n_prompt_logprobs && c->p.n_prompt_top >= 0)
        sv_logprobs_prompt(g, tok, o);
    at = o->logprobs;
    for (int32_t i = 0; at && !c->p.discard && i < o->n_tokens; i++) {
        sv_out_logprob(&at, &lp);
        sv_logprobs_legacy(g, tok, o->tokens[i], &lp, false);
    }
}

static void write_logprobs(struct sv_buf *b, const struct sv_call *c, struct sv_gen *g)
{
    sv_buf_lit(b, ",\"logprobs\":");
    if (!c->p.logprobs || !g->lp[0].len) {
        sv_buf_lit(b, "null");
        return;
    }
    sv_logprobs_legacy_write(b, g);
    for (int i = 0; i < 4; i++)
        sv_buf_clear(&g->lp[i]);
}

static void write_finish(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g,
                         bool finished)
{
    if (!finished) {
        sv_buf_lit(b, ",\"finish_reason\":null");
        return;
    }
    sv_buf_printf(b, ",\"finish_reason\":%s", sv_finish_json(g->finish));
    sv_write_stop_reason(b, c, g);
}

static void write_prompt_ids(struct sv_buf *b, const struct sv_call *c, const struct sv_gen *g)
{
    sv_buf_lit(b, ",\"prompt_token_ids\":");
    sv_json_ids(b, c->prompts[g->prompt].ids, c->prompts[g->prompt].n_ids);
}

/* ---------------------------------------------------------------- streamed */

/* Text with what belongs to it; in the last chunk of a sequence also why it ended. */
static void chunk(struct sv_call *c, struct sv_gen *g, const struct sv_out *o, struct sv_buf *b)
{
    bool first = !g->shown, last = o->finish != SV_FINISH_NONE;
    const struct sv_out nothing = {.n_text = 0};

    if (c->p.discard)
        o = last ? &nothing : o;
    if (c->p.discard && !last)
        return;
    if (!o->n_text && !last && !(o->n_tokens && (c->p.logprobs || c->p.return_ids)) &&
        !(first && c->p.echo))
        return;
    if (!c->head.len) {
        sv_sse_begin(&c->head);
        write_head(&c->head, c);
        sv_buf_printf(&c->head, ",\"choices\":[{\"index\":");
    }
    b->failed |= c->head.failed;
    sv_buf_append(b, c->head.data, c->head.len);
    sv_json_number(b, g->index);
    sv_buf_lit(b, ",\"text\":");
    if (c->p.echo && (first || c->p.discard)) {
        struct sv_buf text;
        sv_buf_init(&text);
        echo_text(c, g, &text);
        sv_buf_append(&text, o->text, o->n_text);
        sv_json_quote(b, text.data ? text.data : "", text.len);
        sv_buf_fini(&text);
    } else {
        sv_json_quote(b, o->n_text ? o->text : "", o->n_text);
    }
    write_logprobs(b, c, g);
    write_finish(b, c, g, last);
    if (c->p.return_ids && o->n_tokens) {
        sv_buf_lit(b, ",\"token_ids\":");
        sv_json_ids(b, o->tokens, o->n_tokens);
    }
    if (c->p.return_ids && first)
        write_prompt_ids(b, c, g);
    if (c->p.return_draft)
        sv_write_draft_flags(b, g, o->n_text);
    sv_buf_lit(b, "}]");
    sv_write_chunk_usage(b, c);
    if (last && c->n_gens == 1 && !c->p.include_usage) {
        sv_write_spec_metrics(b, c, g);
        sv_write_timings(b, c, g);
    }
    sv_buf_lit(b, "}");
    sv_sse_end(b);
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    if (c->p.include_usage) {
        sv_sse_begin(b);
        write_head(b, c);
        sv_buf_lit(b, ",\"choices\":[],");
        sv_write_usage(b, c, NULL);
        if (c->n_gens == 1) {
            sv_write_spec_metrics(b, c, &c->gens[0]);
            sv_write_timings(b, c, &c->gens[0]);
        }
        sv_buf_lit(b, "}");
        sv_sse_end(b);
    }
    sv_sse_done(b);
}

/* ---------------------------------------------------------------- whole */

static void write_choice(struct sv_buf *b, struct sv_call *c, struct sv_gen *g)
{
    struct sv_buf text;

    sv_buf_init(&text);
    if (c->p.echo)
        echo_text(c, g, &text);
    if (!c->p.discard)
        sv_buf_append(&text, g->text.data, g->text.len);
    sv_buf_printf(b, "{\"index\":%d,\"text\":", g->index);
    sv_json_quote(b, text.data ? text.data : "", text.len);
    sv_buf_fini(&text);
    write_logprobs(b, c, g);
    if (c->p.discard)
        g->finish = SV_FINISH_LENGTH;
    write_finish(b, c, g, true);
    if (c->p.n_prompt_top >= 0) {
        sv_buf_lit(b, ",\"prompt_logprobs\":[");
        sv_buf_append(b, g->prompt_lp.data, g->prompt_lp.len);
        sv_buf_lit(b, "]");
    }
    if (c->p.return_ids) {
        sv_buf_lit(b, ",\"token_ids\":");
        sv_json_ids(b, (const int32_t *)(const void *)g->ids.data, (int32_t)sv_n_shown_tokens(g));
        write_prompt_ids(b, c, g);
    }
    sv_buf_lit(b, "}");
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    write_head(b, c);
    sv_buf_lit(b, ",\"choices\":[");
    for (int32_t i = 0; i < c->n_gens; i++) {
        if (i)
            sv_buf_lit(b, ",");
        write_choice(b, c, &c->gens[i]);
    }
    sv_buf_lit(b, "],");
    sv_write_usage(b, c, NULL);
    if (c->n_gens == 1) {
        sv_write_spec_metrics(b, c, &c->gens[0]);
        sv_write_timings(b, c, &c->gens[0]);
    }
    sv_buf_lit(b, "}\n");
}

const struct sv_dialect sv_dialect_completions = {.name = "completions",
                                                  .kind = SV_COMPLETIONS,
                                                  .chunk = chunk,
                                                  .tail = tail,
                                                  .body = body,
                                                  .keep = keep};
