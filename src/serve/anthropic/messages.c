/*
 * messages.c - answers of /v1/messages, Anthropic's API: whole, streamed, and its errors.
 *
 * Called by call.c and send.c through sv_dialect_messages, and by route.c for errors. An answer is
 * a list of blocks: thinking, text, tool use. A stream is message_start, then for each block its
 * start, deltas and stop, then message_delta with the stop reason and message_stop; events have
 * names, and there is no [DONE]. messages_read.c reads the requests. Must not: change text, or
 * build JSON for a delta.
 */
#include "serve/anthropic/anthropic.h"
#include "serve/core/deltas.h"
#include "serve/core/write.h"

#include <string.h>

/* ---------------------------------------------------------------- errors */

bool sv_anthropic_is_client(const struct sv_http_req *q)
{
    static const char own[] = "/v1/messages", models[] = "/v1/models";
    const size_t n = sizeof own - 1;
    const char *path = sv_http_path(q);

    return (strncmp(path, own, n) == 0 && (!path[n] || path[n] == '/')) ||
           (strncmp(path, models, sizeof models - 1) == 0 &&
            sv_http_header(q, "anthropic-version"));
}

static const char *error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

/* Agents recognise by these words that they must shorten the prompt. */
void sv_messages_err_json(struct sv_buf *b, const struct sv_api_err *e, const char *request_id)
{
    const bool too_long = e->code && strcmp(e->code, "context_length_exceeded") == 0;
    char text[sizeof e->msg + 32];

    snprintf(text, sizeof text, "%s%s", too_long ? "prompt is too long: " : "", e->msg);
    sv_buf_printf(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",", error_type(e->status));
    sv_json_string(b, "message", text);
    if (e->code)
        sv_buf_printf(b, ",\"details\":{\"error_code\":\"%s\"}", e->code);
    sv_buf_lit(b, "},");
    sv_json_string(b, "request_id", request_id ? request_id : "");
    sv_buf_lit(b, "}");
}

static void fail(struct sv_call *c, const struct sv_api_err *e, struct sv_buf *b)
{
    sv_sse_begin_named(b, "error");
    sv_messages_err_json(b, e, c->request_id);
    sv_sse_end(b);
}

/* ---------------------------------------------------------------- what both have */

static void write_head(struct sv_buf *b, const struct sv_call *c)
{
    sv_buf_lit(b, "{");
    sv_json_string(b, "id", c->id);
    sv_buf_lit(b, ",\"type\":\"message\",\"role\":\"assistant\",");
    sv_json_string(b, "model", sv_call_model(c));
}

/* Prompt tokens found in the prefix cache are counted apart. */
static void write_usage(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch)
{
    sv_buf_printf(b,
                  ",\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,"
                  "\"cache_read_input_tokens\":%d,\"output_tokens\":%lld",
                  sv_prompt_tokens(&c->prompts[0]) - ch->n_cached, ch->n_cached,
                  (long long)sv_n_shown_tokens(ch));
    if (c->p.think_format != SV_THINK_NONE)
        sv_buf_printf(b, ",\"output_tokens_details\":{\"thinking_tokens\":%lld}",
                      (long long)sv_deltas_n_reasoning_tokens(ch));
    sv_buf_lit(b, "}");
}

/* When the answer is shorter than the request's own limit, the context was full. A canceled answer
 * counts as cut too; the API has no word for that. */
static const char *stop_reason(const struct sv_call *c, const struct sv_choice *ch)
{
    bool own_limit = c->p.r.max_tokens && sv_n_shown_tokens(ch) >= c->p.r.max_tokens;

    if (sv_stop_text(c, ch))
        return "stop_sequence";
    if (ch->finish == SV_FINISH_LENGTH)
        return own_limit ? "max_tokens" : "model_context_window_exceeded";
    if (ch->finish != SV_FINISH_STOP)
        return "max_tokens";
    return ch->n_calls ? "tool_use" : "end_turn";
}

static void write_stop(struct sv_buf *b, const struct sv_call *c, const struct sv_choice *ch)
{
    const char *text = sv_stop_text(c, ch);

    sv_buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", stop_reason(c, ch));
    if (text)
        sv_json_quote(b, text, strlen(text));
    else
        sv_buf_lit(b, "null");
}

/* Clients return the signature with the thinking block; this server does not check it. */
static void write_signature(struct sv_buf *b, const struct sv_choice *ch)
{
    sv_deltas_id(b, ch, "", -1 - ch->n_blocks);
}

static void write_tool_use(struct sv_buf *b, const struct sv_choice *ch, const struct sv_part *p)
{
    sv_buf_lit(b, "{\"type\":\"tool_use\",\"id\":");
    sv_deltas_id(b, ch, "toolu_", p->call);
    sv_buf_lit(b, ",\"name\":");
    sv_json_quote(b, p->text, p->n);
    sv_buf_lit(b, ",\"input\":");
}

/* ---------------------------------------------------------------- streamed */

static void message_start(struct sv_call *c, struct sv_choice *ch, struct sv_buf *b)
{
    sv_sse_begin_named(b, "message_start");
    sv_buf_lit(b, "{\"type\":\"message_start\",\"message\":");
    write_head(b, c);
    sv_buf_lit(b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null");
    write_usage(b, c, ch);
    sv_buf_lit(b, "}}");
    sv_sse_end(b);
}

/* How each delta of the block begins. */
static void write_delta_head(struct sv_call *c, const struct sv_choice *ch, const char *type,
                             const char *member)
{
    struct sv_buf *b = &c->head;

    sv_buf_clear(b);
    sv_sse_begin_named(b, "content_block_delta");
    sv_buf_printf(b,
                  "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\","
                  "\"%s\":",
                  ch->n_blocks, type, member);
}

static void start_block(struct sv_call *c, struct sv_choice *ch, const struct sv_part *p,
                        struct sv_buf *b)
{
    sv_sse_begin_named(b, "content_block_start");
    sv_buf_printf(
        b, "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":", ch->n_blocks);
    if (p->kind == SV_PART_REASONING) {
        sv_buf_lit(b, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}");
        write_delta_head(c, ch, "thinking_delta", "thinking");
    } else if (p->kind == SV_PART_CALL) {
        write_tool_use(b, ch, p);
        sv_buf_lit(b, "{}}}");
        write_delta_head(c, ch, "input_json_delta", "partial_json");
    } else {
        sv_buf_lit(b, "{\"type\":\"text\",\"text\":\"\"}}");
        write_delta_head(c, ch, "text_delta", "text");
    }
    sv_sse_end(b);
    ch->in_block = (int32_t)p->kind + 1;
}

static void stop_block(struct sv_choice *ch, struct sv_buf *b)
{
    if (!ch->in_block)
        return;
    if (ch->in_block == SV_PART_REASONING + 1) {
        sv_sse_begin_named(b, "content_block_delta");
        sv_buf_printf(b,
                      "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":"
                      "\"signature_delta\",\"signature\":",
                      ch->n_blocks);
        write_signature(b, ch);
        sv_buf_lit(b, "}}");
        sv_sse_end(b);
    }
    sv_sse_begin_named(b, "content_block_stop");
    sv_buf_printf(b, "{\"type\":\"content_block_stop\",\"index\":%d}", ch->n_blocks);
    sv_sse_end(b);
    ch->in_block = 0;
    ch->n_blocks++;
}

/* This delta and the following ones of its kind, as one event. */
static void block_delta(struct sv_call *c, struct sv_choice *ch, size_t *at,
                        const struct sv_part *p, struct sv_buf *b)
{
    b->failed |= c->head.failed;
    sv_buf_append(b, c->head.data, c->head.len);
    sv_deltas_quote(b, ch, at, *p);
    sv_buf_lit(b, "}}");
    sv_sse_end(b);
}

static void part_events(struct sv_call *c, struct sv_choice *ch, struct sv_buf *b)
{
    struct sv_part p;

    for (size_t at = 0; sv_deltas_read(ch, &at, &p);) {
        const bool text = p.kind == SV_PART_CONTENT || p.kind == SV_PART_REASONING;
        if (p.kind == SV_PART_CALL || p.kind == SV_PART_CALL_END ||
            (text && ch->in_block != (int32_t)p.kind + 1))
            stop_block(ch, b);
        if (p.kind == SV_PART_CALL || (text && !ch->in_block))
            start_block(c, ch, &p, b);
        if (p.kind == SV_PART_ARGUMENTS || p.kind == SV_PART_CONTENT ||
            (p.kind == SV_PART_REASONING && !c->p.omit_reasoning))
            block_delta(c, ch, &at, &p, b);
    }
    b->failed |= ch->deltas.failed;
    sv_buf_clear(&ch->deltas);
}

static void message_delta(struct sv_call *c, struct sv_choice *ch, struct sv_buf *b)
{
    sv_sse_begin_named(b, "message_delta");
    sv_buf_lit(b, "{\"type\":\"message_delta\",\"delta\":{");
    write_stop(b, c, ch);
    sv_buf_lit(b, "}");
    write_usage(b, c, ch);
    sv_write_spec_metrics(b, c, ch);
    sv_buf_lit(b, "}");
    sv_sse_end(b);
}

static void chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o, struct sv_buf *b)
{
    if (!ch->shown)
        message_start(c, ch, b);
    sv_deltas_push(ch, o->text, o->n_text, o->finish);
    part_events(c, ch, b);
    if (o->finish == SV_FINISH_NONE)
        return;
    stop_block(ch, b);
    message_delta(c, ch, b);
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    (void)c;
    sv_sse_begin_named(b, "message_stop");
    sv_buf_lit(b, "{\"type\":\"message_stop\"}");
    sv_sse_end(b);
}

/* ---------------------------------------------------------------- whole */

/* With all pieces of its arguments. If the answer was cut within a call, they are no JSON object,
 * and the call has none. */
static void write_call(struct sv_buf *b, struct sv_choice *ch, size_t *at,
                       const struct sv_part *call)
{
    struct sv_part p;
    struct sv_buf input;

    write_tool_use(b, ch, call);
    sv_buf_init(&input);
    for (size_t next = *at; sv_deltas_read(ch, &next, &p) && p.kind == SV_PART_ARGUMENTS;
         *at = next)
        sv_buf_append(&input, p.text, p.n);
    b->failed |= input.failed;
    if (sv_is_json_object(input.data, input.len))
        sv_buf_append(b, input.data, input.len);
    else
        sv_buf_lit(b, "{}");
    sv_buf_fini(&input);
    sv_buf_lit(b, "}");
}

/* Skips the text of reasoning that is omitted. */
static void write_reasoning(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch,
                            size_t *at, const struct sv_part *p)
{
    struct sv_buf text;

    sv_buf_init(&text);
    sv_deltas_quote(&text, ch, at, *p);
    b->failed |= text.failed;
    sv_buf_lit(b, "{\"type\":\"thinking\",\"thinking\":");
    if (c->p.omit_reasoning)
        sv_buf_lit(b, "\"\"");
    else
        sv_buf_append(b, text.data, text.len);
    sv_buf_fini(&text);
    sv_buf_lit(b, ",\"signature\":");
    write_signature(b, ch);
    sv_buf_lit(b, "}");
}

static void write_block(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch, size_t *at,
                        const struct sv_part *p)
{
    if (ch->n_blocks)
        sv_buf_lit(b, ",");
    if (p->kind == SV_PART_REASONING) {
        write_reasoning(b, c, ch, at, p);
    } else if (p->kind == SV_PART_CALL) {
        write_call(b, ch, at, p);
    } else {
        sv_buf_lit(b, "{\"type\":\"text\",\"text\":");
        sv_deltas_quote(b, ch, at, *p);
        sv_buf_lit(b, "}");
    }
    ch->n_blocks++;
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    struct sv_choice *ch = &c->choices[0];
    struct sv_part p;

    sv_deltas_push(ch, ch->text.data ? ch->text.data : "", ch->text.len, ch->finish);
    b->failed |= ch->deltas.failed;
    write_head(b, c);
    sv_buf_lit(b, ",\"content\":[");
    for (size_t at = 0; sv_deltas_read(ch, &at, &p);)
        if (p.kind != SV_PART_CALL_END)
            write_block(b, c, ch, &at, &p);
    sv_buf_lit(b, "],");
    write_stop(b, c, ch);
    write_usage(b, c, ch);
    sv_write_spec_metrics(b, c, ch);
    sv_buf_lit(b, "}\n");
}

const struct sv_dialect sv_dialect_messages = {
    .name = "messages",
    .kind = SV_MESSAGES,
    .id_prefix = "msg_",
    .read_body = sv_messages_read,
    .chunk = chunk,
    .tail = tail,
    .body = body,
    .fail = fail,
    .tool_schema = ".input_schema",
    .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
};
