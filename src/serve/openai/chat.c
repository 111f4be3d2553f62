/*
 * chat.c - answers of /v1/chat/completions, whole and streamed.
 *
 * Called by call.c through sv_dialect_chat. A stream is: a chunk with the role, chunks with text,
 * one with an empty delta and the finish reason, one with usage and no choices if asked for,
 * [DONE]. Must not: change text.
 */
#include "serve/core/deltas.h"
#include "serve/core/write.h"
#include "serve/openai/openai.h"

#include <string.h>

static void write_head(struct sv_buf *b, const struct sv_call *c, const char *object)
{
    sv_buf_lit(b, "{\"id\":");
    sv_json_quote(b, c->id, strlen(c->id));
    sv_buf_printf(b, ",\"object\":\"%s\",\"created\":%lld,", object, (long long)c->created);
    sv_json_string(b, "model", sv_call_model(c));
}

static void keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    if (c->p.logprobs)
        sv_logprobs_chat(&ch->lp[0], c->s->model->tok, o, c->p.n_top,
                         c->p.ids_as_tokens ? SV_TOKEN_ID : SV_TOKEN_TEXT);
    if (c->p.n_prompt_top >= 0 && o->n_prompt_logprobs && ch->index == 0)
        sv_logprobs_prompt(ch, c->s->model->tok, o);
}

static void write_logprobs(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch)
{
    if (!c->p.logprobs || !ch->lp[0].len) {
        sv_buf_lit(b, ",\"logprobs\":null");
        return;
    }
    sv_buf_lit(b, ",\"logprobs\":{\"content\":[");
    sv_buf_append(b, ch->lp[0].data, ch->lp[0].len);
    sv_buf_lit(b, "],\"refusal\":null}");
    sv_buf_clear(&ch->lp[0]);
}

/* The conversation's tokens, and vLLM's prompt_text. */
static void write_prompt(struct sv_buf *b, const struct sv_call *c)
{
    const struct sv_prompt *p = &c->prompts[0];
    struct sv_buf text;

    if (c->p.return_ids || c->p.return_prompt_ids) {
        sv_buf_lit(b, ",\"prompt_token_ids\":");
        sv_json_ids(b, p->ids, p->n_ids);
    }
    if (!c->p.return_prompt_text)
        return;
    sv_buf_init(&text);
    sv_tokenizer_decode(c->s->model->tok, p->ids, (size_t)p->n_ids, false, &text);
    sv_buf_lit(b, ",\"prompt_text\":");
    sv_json_quote(b, text.data ? text.data : "", text.len);
    b->failed |= text.failed;
    sv_buf_fini(&text);
}

/* ---------------------------------------------------------------- streamed */

static void chunk_begin(struct sv_buf *b, struct sv_call *c, const struct sv_choice *ch)
{
    if (!c->head.len) {
        sv_sse_begin(&c->head);
        write_head(&c->head, c, "chat.completion.chunk");
        sv_buf_printf(&c->head, ",\"choices\":[{\"index\":");
    }
    b->failed |= c->head.failed;
    sv_buf_append(b, c->head.data, c->head.len);
    sv_json_number(b, ch->index);
    sv_buf_lit(b, ",\"delta\":");
}

static void chunk_end(struct sv_buf *b, const struct sv_call *c)
{
    sv_buf_lit(b, "}]");
    sv_write_chunk_usage(b, c);
}

static void close_chunk(struct sv_buf *b)
{
    sv_buf_lit(b, "}");
    sv_sse_end(b);
}

static void role_chunk(struct sv_call *c, struct sv_choice *ch, struct sv_buf *b)
{
    chunk_begin(b, c, ch);
    sv_buf_printf(b, "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                     "\"finish_reason\":null");
    chunk_end(b, c);
    write_prompt(b, c);
    close_chunk(b);
}

/* Ends the chunk of a delta. Token ids go with the first one. */
static void end_text(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o,
                     struct sv_buf *b, bool first)
{
    write_logprobs(b, c, ch);
    sv_buf_lit(b, ",\"finish_reason\":null");
    if (c->p.return_ids && first) {
        sv_buf_lit(b, ",\"token_ids\":");
        sv_json_ids(b, o->tokens, o->n_tokens);
    }
    if (c->p.return_draft && !ch->answer)
        sv_write_draft_flags(b, ch, o->n_text);
    chunk_end(b, c);
    close_chunk(b);
}

static void text_chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o,
                       struct sv_buf *b)
{
    chunk_begin(b, c, ch);
    sv_buf_lit(b, "{\"content\":");
    sv_json_quote(b, o->text, o->n_text);
    sv_buf_lit(b, "}");
    end_text(c, ch, o, b, true);
}

/* A chunk for each delta. If the text is held back, log probabilities and ids are sent without
 * it. */
static void part_chunks(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o,
                        struct sv_buf *b)
{
    struct sv_buf delta;
    size_t at = 0;
    bool first = true;

    sv_buf_init(&delta);
    sv_deltas_push(ch, o->text, o->n_text, o->finish);
    for (; sv_deltas_write_next(ch, &at, &delta); first = false) {
        chunk_begin(b, c, ch);
        sv_buf_append(b, delta.data, delta.len);
        end_text(c, ch, o, b, first);
        b->failed |= delta.failed;
        sv_buf_clear(&delta);
    }
    b->failed |= delta.failed;
    sv_buf_fini(&delta);
    if (first && o->n_tokens && (c->p.logprobs || c->p.return_ids)) {
        chunk_begin(b, c, ch);
        sv_buf_lit(b, "{}");
        end_text(c, ch, o, b, true);
    }
}

static void finish_chunk(struct sv_call *c, struct sv_choice *ch, struct sv_buf *b)
{
    chunk_begin(b, c, ch);
    sv_buf_lit(b, "{}");
    write_logprobs(b, c, ch);
    sv_buf_printf(b, ",\"finish_reason\":%s", sv_deltas_finish(ch));
    sv_write_stop_reason(b, c, ch);
    chunk_end(b, c);
    if (c->n_choices == 1 && !c->p.include_usage) {
        sv_write_spec_metrics(b, c, ch);
        sv_write_timings(b, c, ch);
    }
    close_chunk(b);
}

static void chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o, struct sv_buf *b)
{
    if (!ch->shown)
        role_chunk(c, ch, b);
    if (ch->answer)
        part_chunks(c, ch, o, b);
    else if (o->n_text || (o->n_tokens && (c->p.logprobs || c->p.return_ids)))
        text_chunk(c, ch, o, b);
    if (o->finish != SV_FINISH_NONE)
        finish_chunk(c, ch, b);
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    if (c->p.include_usage) {
        sv_sse_begin(b);
        write_head(b, c, "chat.completion.chunk");
        sv_buf_lit(b, ",\"choices\":[],");
        sv_write_usage(b, c, NULL);
        if (c->n_choices == 1) {
            sv_write_spec_metrics(b, c, &c->choices[0]);
            sv_write_timings(b, c, &c->choices[0]);
        }
        close_chunk(b);
    }
    sv_sse_done(b);
}

/* ---------------------------------------------------------------- whole */

static void write_content(struct sv_buf *b, struct sv_choice *ch)
{
    if (ch->answer) {
        sv_deltas_message(ch, b);
        return;
    }
    sv_buf_lit(b, "\"content\":");
    sv_json_quote(b, ch->text.data ? ch->text.data : "", ch->text.len);
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    write_head(b, c, "chat.completion");
    sv_buf_lit(b, ",\"choices\":[");
    for (int32_t i = 0; i < c->n_choices; i++) {
        struct sv_choice *ch = &c->choices[i];
        sv_buf_printf(b, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",", i ? "," : "",
                      ch->index);
        write_content(b, ch);
        sv_buf_lit(b, ",\"refusal\":null}");
        write_logprobs(b, c, ch);
        sv_buf_printf(b, ",\"finish_reason\":%s", sv_deltas_finish(ch));
        sv_write_stop_reason(b, c, ch);
        if (c->p.return_ids) {
            sv_buf_lit(b, ",\"token_ids\":");
            sv_json_ids(b, (const int32_t *)(const void *)ch->ids.data,
                        (int32_t)(ch->ids.len / sizeof(int32_t)));
        }
        sv_buf_lit(b, "}");
    }
    sv_buf_lit(b, "],");
    sv_write_usage(b, c, NULL);
    if (c->p.n_prompt_top >= 0) {
        sv_buf_lit(b, ",\"prompt_logprobs\":[");
        sv_buf_append(b, c->choices[0].prompt_lp.data, c->choices[0].prompt_lp.len);
        sv_buf_lit(b, "]");
    }
    write_prompt(b, c);
    if (c->n_choices == 1) {
        sv_write_spec_metrics(b, c, &c->choices[0]);
        sv_write_timings(b, c, &c->choices[0]);
    }
    sv_buf_lit(b, "}\n");
}

const struct sv_dialect sv_dialect_chat = {
    .name = "chat",
    .kind = SV_CHAT,
    .id_prefix = "chatcmpl-",
    .chunk = chunk,
    .tail = tail,
    .body = body,
    .keep = keep,
};
