/*
 * completions.c - answers of /v1/completions, whole and streamed.
 *
 * Called by call.c through sv_dialect_completions. Choices are numbered prompt by prompt. Must not:
 * change text.
 */
#include "serve/core/write.h"
#include "serve/openai/openai.h"

#include <string.h>

static void write_head(struct sv_buf *b, const struct sv_call *c)
{
    sv_buf_lit(b, "{\"id\":");
    sv_json_quote(b, c->id, strlen(c->id));
    sv_buf_printf(b, ",\"object\":\"text_completion\",\"created\":%lld,", (long long)c->created);
    sv_json_string(b, "model", sv_call_model(c));
}

/* The prompt's text as it was given, or decoded if it was ids or was truncated. */
static void echo_text(const struct sv_call *c, const struct sv_choice *ch, struct sv_buf *out)
{
    const json_t *v = c->p.batched ? json_array_get(c->p.prompt, (size_t)ch->prompt) : c->p.prompt;
    const struct sv_prompt *p = &c->prompts[ch->prompt];

    if (json_is_string(v) && !c->p.truncates)
        sv_buf_append(out, json_string_value(v), json_string_length(v));
    else
        sv_tokenizer_decode(c->s->model->tok, p->ids, (size_t)p->n_ids, false, out);
}

static void keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    const struct sv_tokenizer *tok = c->s->model->tok;
    const struct sv_prompt *p = &c->prompts[ch->prompt];
    const char *at = o->prompt_logprobs;
    struct sv_logprob lp;

    if (at && c->p.echo && c->p.logprobs)
        for (int32_t i = 0; i < o->n_prompt_logprobs; i++) {
            sv_out_logprob(&at, &lp);
            lp.n_requested = 0; /* requested ids are reported for the answer only */
            sv_logprobs_legacy(ch, tok, p->ids[i], &lp, i == 0);
        }
    if (o->n_prompt_logprobs && c->p.n_prompt_top >= 0)
        sv_logprobs_prompt(ch, tok, o);
    at = o->logprobs;
    for (int32_t i = 0; at && !c->p.discard && i < o->n_tokens; i++) {
        sv_out_logprob(&at, &lp);
        sv_logprobs_legacy(ch, tok, o->tokens[i], &lp, false);
    }
}

static void write_logprobs(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch)
{
    sv_buf_lit(b, ",\"logprobs\":");
    if (!c->p.logprobs || !ch->lp[0].len) {
        sv_buf_lit(b, "null");
        return;
    }
    sv_logprobs_legacy_write(b, ch);
    for (int i = 0; i < 4; i++)
        sv_buf_clear(&ch->lp[i]);
}

static void write_finish(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch,
                         bool finished)
{
    if (!finished) {
        sv_buf_lit(b, ",\"finish_reason\":null");
        return;
    }
    sv_buf_printf(b, ",\"finish_reason\":%s", sv_finish_json(ch->finish));
    sv_write_stop_reason(b, c, ch);
}

static void write_prompt_ids(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    sv_buf_lit(b, ",\"prompt_token_ids\":");
    sv_json_ids(b, c->prompts[ch->prompt].ids, c->prompts[ch->prompt].n_ids);
}

/* ---------------------------------------------------------------- streamed */

/* Text with its log probabilities; the last chunk of a sequence has the finish reason. */
static void chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o, struct sv_buf *b)
{
    bool first = !ch->shown, last = o->finish != SV_FINISH_NONE;
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
    sv_json_number(b, ch->index);
    sv_buf_lit(b, ",\"text\":");
    if (c->p.echo && (first || c->p.discard)) {
        struct sv_buf text;
        sv_buf_init(&text);
        echo_text(c, ch, &text);
        sv_buf_append(&text, o->text, o->n_text);
        sv_json_quote(b, text.data ? text.data : "", text.len);
        sv_buf_fini(&text);
    } else {
        sv_json_quote(b, o->n_text ? o->text : "", o->n_text);
    }
    write_logprobs(b, c, ch);
    write_finish(b, c, ch, last);
    if (c->p.return_ids && o->n_tokens) {
        sv_buf_lit(b, ",\"token_ids\":");
        sv_json_ids(b, o->tokens, o->n_tokens);
    }
    if (c->p.return_ids && first)
        write_prompt_ids(b, c, ch);
    if (c->p.return_draft)
        sv_write_draft_flags(b, ch, o->n_text);
    sv_buf_lit(b, "}]");
    sv_write_chunk_usage(b, c);
    if (last && c->n_choices == 1 && !c->p.include_usage) {
        sv_write_spec_metrics(b, c, ch);
        sv_write_timings(b, c, ch);
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
        if (c->n_choices == 1) {
            sv_write_spec_metrics(b, c, &c->choices[0]);
            sv_write_timings(b, c, &c->choices[0]);
        }
        sv_buf_lit(b, "}");
        sv_sse_end(b);
    }
    sv_sse_done(b);
}

/* ---------------------------------------------------------------- whole */

static void write_choice(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch)
{
    struct sv_buf text;

    sv_buf_init(&text);
    if (c->p.echo)
        echo_text(c, ch, &text);
    if (!c->p.discard)
        sv_buf_append(&text, ch->text.data, ch->text.len);
    sv_buf_printf(b, "{\"index\":%d,\"text\":", ch->index);
    sv_json_quote(b, text.data ? text.data : "", text.len);
    sv_buf_fini(&text);
    write_logprobs(b, c, ch);
    if (c->p.discard)
        ch->finish = SV_FINISH_LENGTH;
    write_finish(b, c, ch, true);
    if (c->p.n_prompt_top >= 0) {
        sv_buf_lit(b, ",\"prompt_logprobs\":[");
        sv_buf_append(b, ch->prompt_lp.data, ch->prompt_lp.len);
        sv_buf_lit(b, "]");
    }
    if (c->p.return_ids) {
        sv_buf_lit(b, ",\"token_ids\":");
        sv_json_ids(b, (const int32_t *)(const void *)ch->ids.data, (int32_t)sv_n_shown_tokens(ch));
        write_prompt_ids(b, c, ch);
    }
    sv_buf_lit(b, "}");
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    write_head(b, c);
    sv_buf_lit(b, ",\"choices\":[");
    for (int32_t i = 0; i < c->n_choices; i++) {
        if (i)
            sv_buf_lit(b, ",");
        write_choice(b, c, &c->choices[i]);
    }
    sv_buf_lit(b, "],");
    sv_write_usage(b, c, NULL);
    if (c->n_choices == 1) {
        sv_write_spec_metrics(b, c, &c->choices[0]);
        sv_write_timings(b, c, &c->choices[0]);
    }
    sv_buf_lit(b, "}\n");
}

const struct sv_dialect sv_dialect_completions = {.name = "completions",
                                                  .kind = SV_COMPLETIONS,
                                                  .id_prefix = "cmpl-",
                                                  .chunk = chunk,
                                                  .tail = tail,
                                                  .body = body,
                                                  .keep = keep};
