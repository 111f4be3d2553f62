/*
 * responses.c - answers of /v1/responses, whole and as named events.
 *
 * Called by call.c and send.c through sv_dialect_responses. An answer is a list of items, each made
 * of a run of deltas: reasoning, a message, a call. In a stream all deltas stay in ch->deltas until
 * its end, since each item's end and the stream's end repeat the whole text. A delta's event is the
 * item's head, a number and the text. Must not: change text.
 */
#include "serve/core/deltas.h"
#include "serve/core/write.h"
#include "serve/openai/responses.h"

#include <string.h>
#include <time.h>

#define MAX_REPEATED 65536 /* larger output is written beside the loop (send.c) */

static struct sv_response *own(const struct sv_call *c)
{
    return c->own;
}

/* ---------------------------------------------------------------- log probabilities */

/* Written token by token, so that any range can be sent; lp[1] has the end of each. */
static void keep(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o)
{
    struct sv_out one = *o;
    struct sv_logprob lp;

    one.n_tokens = 1;
    for (int32_t i = 0; one.logprobs && i < o->n_tokens; i++) {
        one.tokens = o->tokens + i;
        sv_logprobs_chat(&ch->lp[0], c->s->model->tok, &one, c->p.n_top, SV_TOKEN_TEXT);
        sv_buf_append(&ch->lp[1], &ch->lp[0].len, sizeof ch->lp[0].len);
        sv_out_logprob(&one.logprobs, &lp);
    }
}

static int32_t n_kept(const struct sv_choice *ch)
{
    return (int32_t)(ch->lp[1].len / sizeof(size_t));
}

/* The first token after the reasoning. */
static int32_t first_shown(struct sv_choice *ch)
{
    bool thinks = ch->call->p.think_format != SV_THINK_NONE;
    int64_t n = thinks && ch->call->p.logprobs ? sv_deltas_n_reasoning_tokens(ch) : 0;

    return n < n_kept(ch) ? (int32_t)n : n_kept(ch);
}

static void write_logprobs(struct sv_buf *b, const struct sv_choice *ch, int32_t from, int32_t to)
{
    size_t start = 0, end = 0;

    b->failed |= ch->lp[0].failed || ch->lp[1].failed;
    sv_buf_lit(b, ",\"logprobs\":[");
    if (from < to && !b->failed) {
        if (from)
            memcpy(&start, ch->lp[1].data + ((size_t)from - 1) * sizeof start, sizeof start);
        memcpy(&end, ch->lp[1].data + ((size_t)to - 1) * sizeof end, sizeof end);
        start += from > 0; /* the comma */
        sv_buf_append(b, ch->lp[0].data + start, end - start);
    }
    sv_buf_lit(b, "]");
}

/* ---------------------------------------------------------------- items */

/* An item: where its deltas begin, and the range of tokens whose log probabilities it has. */
struct item {
    enum sv_part_kind kind; /* REASONING, CONTENT or CALL */
    size_t at;
    int32_t index, from, to;
};

/* Names of the kinds: in ids, and in events. */
static const struct {
    const char *id, *delta, *done;
} names[] = {
    [SV_PART_REASONING] = {"rs", "response.reasoning_text.delta", "response.reasoning_text.done"},
    [SV_PART_CONTENT] = {"msg", "response.output_text.delta", "response.output_text.done"},
    [SV_PART_CALL] = {"fc", "response.function_call_arguments.delta",
                      "response.function_call_arguments.done"},
};

static void write_id(struct sv_buf *b, const struct sv_call *c, const struct item *it)
{
    sv_buf_printf(b, "\"%s_%s_%d\"", names[it->kind].id, c->id + SV_RESPONSE_NAME_AT, it->index);
}

/* The text of an item so far, or a call's arguments. */
static void write_text(struct sv_buf *b, const struct sv_choice *ch, const struct item *it)
{
    size_t at = it->at;
    struct sv_part p;
    bool any = sv_deltas_read(ch, &at, &p);

    if (any && it->kind == SV_PART_CALL)
        any = sv_deltas_read(ch, &at, &p) && p.kind == SV_PART_ARGUMENTS;
    if (any)
        sv_deltas_quote(b, ch, &at, p);
    else
        sv_buf_lit(b, "\"\"");
}

static void write_part(struct sv_buf *b, const struct sv_choice *ch, const struct item *it,
                       bool begun)
{
    bool reasoning = it->kind == SV_PART_REASONING;

    sv_buf_printf(b, "{\"type\":\"%s\",\"text\":", reasoning ? "reasoning_text" : "output_text");
    if (begun)
        sv_buf_lit(b, "\"\"");
    else
        write_text(b, ch, it);
    if (!reasoning) {
        sv_buf_lit(b, ",\"annotations\":[]");
        write_logprobs(b, ch, it->from, begun ? it->from : it->to);
    }
    sv_buf_lit(b, "}");
}

/* status NULL: the item has just begun. */
static void write_item(struct sv_buf *b, const struct sv_choice *ch, const struct item *it,
                       const char *status)
{
    size_t at = it->at;
    struct sv_part p;
    const char *space;

    sv_buf_lit(b, "{\"id\":");
    write_id(b, ch->call, it);
    sv_buf_printf(b, ",\"status\":\"%s\",", status ? status : "in_progress");
    switch (it->kind) {
    case SV_PART_REASONING:
        sv_buf_lit(b, "\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null,"
                      "\"content\":[");
        break;
    case SV_PART_CONTENT:
        sv_buf_lit(b, "\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
        break;
    default:
        sv_deltas_read(ch, &at, &p);
        sv_buf_lit(b, "\"type\":\"function_call\",\"call_id\":");
        sv_deltas_call_id(b, ch, p.call);
        sv_buf_lit(b, ",\"name\":");
        sv_json_quote(b, p.text, p.n);
        space = sv_responses_namespace(ch->call->body, p.text, p.n);
        if (space) {
            sv_buf_lit(b, ",");
            sv_json_string(b, "namespace", space);
        }
        sv_buf_lit(b, ",\"arguments\":");
        if (status)
            write_text(b, ch, it);
        else
            sv_buf_lit(b, "\"\"");
        sv_buf_lit(b, "}");
        return;
    }
    if (status)
        write_part(b, ch, it, false);
    sv_buf_lit(b, "]}");
}

/* Skips the rest of an item whose first delta was read. */
static void pass_item(const struct sv_choice *ch, size_t *at, enum sv_part_kind kind)
{
    size_t next = *at;
    struct sv_part p;

    while (sv_deltas_read(ch, &next, &p) &&
           (kind == SV_PART_CALL ? p.kind == SV_PART_ARGUMENTS || p.kind == SV_PART_CALL_END
                                 : p.kind == kind))
        *at = next;
}

/* The last item's status; those before it are complete. */
static const char *end_status(const struct sv_choice *ch)
{
    return ch->finish == SV_FINISH_STOP ? "completed" : "incomplete";
}

/* Which log probabilities an item has: in a stream those that were sent with it, otherwise the
 * first message has all of the text's and calls'. */
static void set_lp_sent(const struct sv_response *r, struct item *it, int32_t n)
{
    int32_t range[2] = {it->to, n};

    if ((size_t)it->index < r->lp_sent.len / sizeof range)
        memcpy(range, r->lp_sent.data + (size_t)it->index * sizeof range, sizeof range);
    it->from = range[0];
    it->to = it->kind == SV_PART_CONTENT ? range[1] : range[0];
}

/* All items, with sep before each and after the last. A failed answer has the items that the stream
 * has shown. */
static void write_output(struct sv_buf *b, struct sv_choice *ch, const char *sep, bool failed)
{
    struct item it = {.to = first_shown(ch)};
    const struct sv_response *r = own(ch->call);
    struct sv_part p;

    for (size_t at = 0; it.at = at, sv_deltas_read(ch, &at, &p); it.index++) {
        it.kind = p.kind;
        set_lp_sent(r, &it, n_kept(ch));
        pass_item(ch, &at, p.kind);
        sv_buf_printf(b, "%s%s", it.index ? "," : "", sep);
        write_item(b, ch, &it, at < ch->deltas.len ? "completed" : end_status(ch));
    }
    if (!it.index && !failed) { /* an empty answer */
        it.kind = SV_PART_CONTENT;
        set_lp_sent(r, &it, n_kept(ch));
        sv_buf_printf(b, "%s", sep);
        write_item(b, ch, &it, end_status(ch));
    }
    sv_buf_printf(b, "%s", sep);
}

/* ---------------------------------------------------------------- the response */

static const char *status_of(const struct sv_choice *ch)
{
    return ch->finish == SV_FINISH_STOP     ? "completed"
           : ch->finish == SV_FINISH_LENGTH ? "incomplete"
                                            : "cancelled";
}

static void write_usage(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch)
{
    int64_t n_prompt = sv_prompt_tokens(&c->prompts[0]), n_out = sv_n_shown_tokens(ch);
    bool thinks = c->p.think_format != SV_THINK_NONE;

    sv_buf_printf(
        b,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%d},"
        "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld},"
        "\"total_tokens\":%lld}",
        (long long)n_prompt, ch->n_cached, (long long)n_out,
        thinks ? (long long)sv_deltas_n_reasoning_tokens(ch) : 0LL, (long long)(n_prompt + n_out));
}

/* ch NULL: without its output. e: the error of a failed response. *at: where the output begins in
 * b; its length is returned. */
static size_t write_response(struct sv_buf *b, const struct sv_call *c, struct sv_choice *ch,
                             const char *status, const char *sep, const struct sv_api_err *e,
                             size_t *at)
{
    const struct sv_params *p = &c->p;
    bool over = ch && strcmp(status, "in_progress") != 0;
    size_t n;

    sv_buf_printf(b, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\"",
                  c->id, (long long)c->created, status);
    sv_buf_lit(b, ",\"completed_at\":");
    if (over && strcmp(status, "completed") == 0)
        sv_json_number(b, own(c)->completed);
    else
        sv_buf_lit(b, "null");
    sv_buf_lit(b, ",\"error\":");
    if (e) {
        sv_buf_printf(b, "{\"code\":\"%s\",\"message\":", e->code ? e->code : "server_error");
        sv_json_quote(b, e->msg, strlen(e->msg));
        sv_buf_lit(b, "}");
    } else {
        sv_buf_lit(b, "null");
    }
    sv_buf_printf(b, ",\"incomplete_details\":%s,",
                  strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}"
                                                    : "null");
    sv_json_string(b, "model", sv_call_model(c));
    sv_buf_lit(b, ",\"max_output_tokens\":");
    if (p->has_max_tokens && p->r.max_tokens < INT32_MAX)
        sv_json_number(b, p->r.max_tokens);
    else
        sv_buf_lit(b, "null");
    sv_buf_lit(b, ",\"temperature\":");
    sv_json_float(b, p->r.temperature);
    sv_buf_lit(b, ",\"top_p\":");
    sv_json_float(b, p->r.top_p);
    sv_buf_append(b, own(c)->echo.data, own(c)->echo.len);
    sv_buf_lit(b, ",\"output\":[");
    *at = n = b->len;
    if (ch)
        write_output(b, ch, sep, e);
    n = b->len - n;
    sv_buf_lit(b, "]");
    if (over && !e) {
        write_usage(b, c, ch);
        sv_write_spec_metrics(b, c, ch);
        sv_write_timings(b, c, ch);
    } else {
        sv_buf_lit(b, ",\"usage\":null");
    }
    sv_buf_lit(b, "}");
    return n;
}

void sv_responses_status(struct sv_buf *b, const struct sv_call *c, const char *status)
{
    size_t at;

    write_response(b, c, NULL, status, "", NULL, &at);
    sv_buf_lit(b, "\n");
}

/* Stores the answer before the client sees its end, since the next turn may come at once, and only
 * if the client gets all of it. */
static void store(struct sv_call *c, struct sv_choice *ch, const struct sv_buf *sent)
{
    struct sv_response *r = own(c);
    struct sv_buf text;
    size_t at;

    if (!c->p.store || sent->failed)
        return;
    sv_buf_init(&text);
    size_t n = write_response(&text, c, ch, status_of(ch), "\n", NULL, &at);
    sv_buf_lit(&text, "\n");
    sv_stored_put(c->s->stored, c->key, c->id, r->previous, &r->input, &text, at, n);
    sv_buf_fini(&text);
}

static void body(struct sv_call *c, struct sv_buf *b)
{
    struct sv_choice *ch = &c->choices[0];
    size_t at;

    sv_deltas_push(ch, ch->text.data ? ch->text.data : "", ch->text.len, ch->finish);
    b->failed |= ch->text.failed || ch->ids.failed || ch->deltas.failed;
    own(c)->completed = (int64_t)time(NULL);
    write_response(b, c, ch, status_of(ch), "", NULL, &at);
    sv_buf_lit(b, "\n");
    store(c, ch, b);
}

/* ---------------------------------------------------------------- streamed */

/* How every event begins. */
static void begin(struct sv_buf *b, const struct sv_call *c, const char *name)
{
    sv_sse_begin_named(b, name);
    sv_buf_lit(b, "{\"type\":\"");
    sv_buf_append(b, name, strlen(name));
    sv_buf_lit(b, "\",\"sequence_number\":");
    sv_json_number(b, own(c)->n_events++);
}

static void end(struct sv_buf *b)
{
    sv_buf_lit(b, "}");
    sv_sse_end(b);
}

static void response_event(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch,
                           const char *name, const char *status, const struct sv_api_err *e)
{
    size_t at;

    begin(b, c, name);
    sv_buf_lit(b, ",\"response\":");
    write_response(b, c, ch, status, "", e, &at);
    end(b);
}

static struct item open_one(const struct sv_call *c)
{
    const struct sv_response *r = own(c);

    return (struct item){.kind = (enum sv_part_kind)(r->open - 1),
                         .at = r->item_at,
                         .index = r->index,
                         .from = r->first_lp_sent,
                         .to = r->n_lp_sent};
}

static void write_place(struct sv_buf *b, const struct sv_call *c, const struct item *it)
{
    sv_buf_lit(b, ",\"item_id\":");
    write_id(b, c, it);
    sv_buf_printf(b, ",\"output_index\":%d%s", it->index,
                  it->kind == SV_PART_CALL ? "" : ",\"content_index\":0");
}

static void item_event(struct sv_buf *b, struct sv_call *c, const struct item *it, const char *name,
                       const char *status)
{
    begin(b, c, name);
    sv_buf_printf(b, ",\"output_index\":%d,\"item\":", it->index);
    write_item(b, &c->choices[0], it, status);
    end(b);
}

static void part_event(struct sv_buf *b, struct sv_call *c, const struct item *it, const char *name,
                       bool begun)
{
    begin(b, c, name);
    write_place(b, c, it);
    sv_buf_lit(b, ",\"part\":");
    write_part(b, &c->choices[0], it, begun);
    end(b);
}

/* How events of the item's deltas begin, up to their number. */
static void write_delta_head(struct sv_call *c, const struct item *it)
{
    sv_buf_clear(&c->head);
    sv_sse_begin_named(&c->head, names[it->kind].delta);
    sv_buf_printf(&c->head, "{\"type\":\"%s\"", names[it->kind].delta);
    write_place(&c->head, c, it);
    if (it->kind == SV_PART_CONTENT && !c->p.logprobs)
        sv_buf_lit(&c->head, ",\"logprobs\":[]");
    sv_buf_lit(&c->head, ",\"sequence_number\":");
}

static void open_item(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch,
                      enum sv_part_kind kind, size_t at)
{
    struct sv_response *r = own(c);
    int32_t first = first_shown(ch);

    r->open = (int32_t)kind + 1;
    r->item_at = at;
    r->first_lp_sent = r->n_lp_sent = r->n_lp_sent > first ? r->n_lp_sent : first;
    struct item it = open_one(c);
    item_event(b, c, &it, "response.output_item.added", NULL);
    if (kind != SV_PART_CALL)
        part_event(b, c, &it, "response.content_part.added", true);
    write_delta_head(c, &it);
}

static void close_item(struct sv_buf *b, struct sv_call *c, const char *status)
{
    struct sv_response *r = own(c);
    struct sv_choice *ch = &c->choices[0];

    if (!r->open)
        return;
    if (r->open == SV_PART_CONTENT + 1)
        r->n_lp_sent = n_kept(ch);
    struct item it = open_one(c);
    bool call = it.kind == SV_PART_CALL;
    begin(b, c, names[it.kind].done);
    write_place(b, c, &it);
    if (call) {
        size_t at = it.at;
        struct sv_part p;
        sv_deltas_read(ch, &at, &p);
        sv_buf_lit(b, ",\"name\":");
        sv_json_quote(b, p.text, p.n);
        sv_buf_lit(b, ",\"arguments\":");
    } else {
        sv_buf_lit(b, ",\"text\":");
    }
    write_text(b, ch, &it);
    if (it.kind == SV_PART_CONTENT)
        write_logprobs(b, ch, it.from, it.to);
    end(b);
    if (!call)
        part_event(b, c, &it, "response.content_part.done", false);
    item_event(b, c, &it, "response.output_item.done", status);
    sv_buf_append(&r->lp_sent, &r->first_lp_sent, sizeof r->first_lp_sent);
    sv_buf_append(&r->lp_sent, &r->n_lp_sent, sizeof r->n_lp_sent);
    b->failed |= r->lp_sent.failed;
    r->index++;
    r->open = 0;
}

static void delta(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch,
                  const struct sv_part *p)
{
    struct sv_response *r = own(c);

    b->failed |= c->head.failed;
    sv_buf_append(b, c->head.data, c->head.len);
    sv_json_number(b, r->n_events++);
    sv_buf_lit(b, ",\"delta\":");
    sv_deltas_quote(b, ch, &r->at, *p);
    if (p->kind == SV_PART_CONTENT && c->p.logprobs) {
        write_logprobs(b, ch, r->n_lp_sent, n_kept(ch));
        r->n_lp_sent = n_kept(ch);
    }
    end(b);
}

/* Sends a run of deltas. False: an item ends here, and its text, which the end repeats three times,
 * has more than `most` bytes. */
static bool next_part(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch, size_t at,
                      const struct sv_part *p, size_t most)
{
    const struct sv_response *r = own(c);
    bool call = p->kind == SV_PART_CALL;

    if (p->kind ==
        SV_PART_CALL_END) /* also if the answer was cut within it, which the next delta shows */
        return true;
    if (call || (p->kind != SV_PART_ARGUMENTS && r->open != (int32_t)p->kind + 1)) {
        if (r->open && at - r->item_at > most)
            return false;
        close_item(b, c, "completed");
        open_item(b, c, ch, p->kind, at);
    }
    if (!call)
        delta(b, c, ch, p);
    return true;
}

static void first_events(struct sv_buf *b, struct sv_call *c)
{
    response_event(b, c, NULL, "response.created", "in_progress", NULL);
    response_event(b, c, NULL, "response.in_progress", "in_progress", NULL);
}

/* Sends all that has come, up to an item that may not be closed on this thread. */
static void write_parts(struct sv_buf *b, struct sv_call *c, struct sv_choice *ch, size_t most)
{
    struct sv_response *r = own(c);
    struct sv_part p;

    r->waits = false;
    for (size_t at = r->at; sv_deltas_read(ch, &r->at, &p); at = r->at) {
        if (next_part(b, c, ch, at, &p, most))
            continue;
        r->waits = true;
        r->at = at;
        break;
    }
    b->failed |= ch->deltas.failed;
}

/* A long item is not closed on the loop's thread: the next chunk is written on the other one. */
static void chunk(struct sv_call *c, struct sv_choice *ch, const struct sv_out *o, struct sv_buf *b)
{
    struct sv_response *r = own(c);
    bool any = r->waits || o->finish != SV_FINISH_NONE;

    if (!ch->shown)
        first_events(b, c);
    sv_deltas_push(ch, o->text, o->n_text, o->finish);
    write_parts(b, c, ch, any ? SIZE_MAX : MAX_REPEATED / 3);
    if (o->finish == SV_FINISH_NONE)
        return;
    if (!r->open && !r->index)
        open_item(b, c, ch, SV_PART_CONTENT, r->at);
    close_item(b, c, end_status(ch));
}

static void tail(struct sv_call *c, struct sv_buf *b)
{
    struct sv_choice *ch = &c->choices[0];
    bool complete = ch->finish == SV_FINISH_STOP;

    own(c)->completed = (int64_t)time(NULL);
    response_event(b, c, ch, complete ? "response.completed" : "response.incomplete", status_of(ch),
                   NULL);
    store(c, ch, b);
}

static void fail(struct sv_call *c, const struct sv_api_err *e, struct sv_buf *b)
{
    struct sv_choice *ch = &c->choices[0];

    if (!ch->shown)
        first_events(b, c);
    write_parts(b, c, ch, SIZE_MAX);
    close_item(b, c, "incomplete");
    response_event(b, c, ch, "response.failed", "failed", e);
}

/* The first two events and the last, which is stored too, repeat the request. It is only copied, at
 * less than a quarter of the cost of other text. */
static size_t repeated(const struct sv_call *c)
{
    bool starts = c->p.stream && !c->choices[0].shown;
    size_t n = own(c)->echo.len * 2 * (size_t)(starts + sv_call_has_ended(c)) / 4;

    return own(c)->waits ? n + 2 * MAX_REPEATED : n;
}

const struct sv_dialect sv_dialect_responses = {.name = "responses",
                                                .kind = SV_RESPONSES,
                                                .fields = sv_responses_fields,
                                                .is_long = sv_responses_is_long,
                                                .chunk = chunk,
                                                .tail = tail,
                                                .body = body,
                                                .keep = keep,
                                                .read = sv_responses_read,
                                                .fail = fail,
                                                .free_own = sv_responses_free,
                                                .tool_schema = ".parameters",
                                                .gathers = true,
                                                .repeated = repeated};
