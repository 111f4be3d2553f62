/*
 * deltas.c - parses a chat's answer into deltas (reasoning, content, tool calls) for a stream or a
 * message.
 *
 * Called by the dialects of chats and by call.c, on the loop's thread or on the one that writes
 * long answers. Parsed deltas wait in ch->deltas until they are written. Must not: hold text back
 * for longer than the parser in src/reply does, except for reasoning that the client wants in one
 * piece.
 */
#include "serve/core/deltas.h"
#include "serve/core/write.h"

#include <string.h>

struct head {
    int32_t kind, call; /* enum sv_part_kind */
    uint64_t n;
};

static void add(struct sv_choice *ch, const struct sv_part *p)
{
    bool of_call = p->kind != SV_PART_CONTENT && p->kind != SV_PART_REASONING;
    /* content before and after a dropped call is joined */
    struct head h = {(int32_t)p->kind, of_call ? p->call : 0, p->n};

    sv_buf_append(&ch->deltas, &h, sizeof h);
    sv_buf_append(&ch->deltas, p->text, p->n);
}

/* Whether a line break separates this text from an earlier message's: a chat joins all texts of a
 * kind, other APIs those that follow each other. */
static bool needs_break(const struct sv_choice *ch, const struct sv_part *p, bool follows)
{
    return p->apart && (ch->call->dialect->kind == SV_CHAT || follows);
}

static void flush_reasoning(struct sv_choice *ch)
{
    if (ch->reasoning.len)
        add(ch, &(struct sv_part){
                    .kind = SV_PART_REASONING, .text = ch->reasoning.data, .n = ch->reasoning.len});
    ch->deltas.failed |= ch->reasoning.failed;
    sv_buf_clear(&ch->reasoning);
}

static void on_part(void *user, const struct sv_part *p)
{
    struct sv_choice *ch = user;
    const struct sv_params *par = &ch->call->p;
    bool reasoning = p->kind == SV_PART_REASONING;

    if (reasoning && !par->include_reasoning)
        return;
    if (reasoning && !par->stream_reasoning) {
        sv_buf_append(&ch->reasoning, "\n", needs_break(ch, p, ch->reasoning.len));
        sv_buf_append(&ch->reasoning, p->text, p->n);
        return;
    }
    flush_reasoning(ch);
    if (p->kind != SV_PART_CONTENT && !reasoning && p->call > 0 && !par->parallel)
        return; /* vLLM drops them too */
    ch->n_calls += p->kind == SV_PART_CALL;
    if (needs_break(ch, p, ch->last_kind == (int32_t)p->kind))
        add(ch, &(struct sv_part){.kind = p->kind, .text = "\n", .n = 1});
    ch->last_kind = (int32_t)p->kind;
    add(ch, p);
}

int sv_deltas_open(struct sv_choice *ch)
{
    const struct sv_params *p = &ch->call->p;
    struct sv_answer_opts o = {.tools = p->tool_format,
                               .think = p->think_format,
                               .within_reasoning = p->in_reasoning,
                               .reasoning_in_content = !p->separate_reasoning,
                               .whole = !p->stream,
                               .tool_list = p->tools,
                               .part = on_part,
                               .user = ch};

    if (p->tool_format == SV_TOOL_NONE && p->think_format == SV_THINK_NONE)
        return 0;
    ch->answer = sv_answer_new(&o);
    if (!ch->answer)
        return -1;
    if (!p->header || p->tool_format != SV_TOOL_HARMONY)
        return 0;
    return sv_answer_push(ch->answer, p->header, strlen(p->header)) ? 0 : -1; /* of the call */
}

void sv_deltas_close(struct sv_choice *ch)
{
    sv_answer_free(ch->answer);
    sv_buf_fini(&ch->deltas);
    sv_buf_fini(&ch->reasoning);
}

void sv_deltas_push(struct sv_choice *ch, const char *text, size_t n, enum sv_finish_reason finish)
{
    if (!ch->answer) {
        if (n)
            add(ch, &(struct sv_part){.kind = SV_PART_CONTENT, .text = text, .n = n});
        return;
    }
    if (!sv_answer_push(ch->answer, text, n))
        ch->deltas.failed = true;
    if (finish == SV_FINISH_NONE)
        return;
    const bool cut = finish != SV_FINISH_STOP || sv_stop_text(ch->call, ch);
    if (!sv_answer_end(ch->answer, cut))
        ch->deltas.failed = true;
    flush_reasoning(ch);
}

/* ---------------------------------------------------------------- reading them */

bool sv_deltas_read(const struct sv_choice *ch, size_t *at, struct sv_part *p)
{
    struct head h;

    if (ch->deltas.failed || *at == ch->deltas.len)
        return false;
    memcpy(&h, ch->deltas.data + *at, sizeof h);
    *p = (struct sv_part){.kind = (enum sv_part_kind)h.kind,
                          .call = h.call,
                          .text = ch->deltas.data + *at + sizeof h,
                          .n = h.n};
    *at += sizeof h + h.n;
    return true;
}

/* Pieces may be cut within a code point, so they are joined before they are quoted. */
void sv_deltas_quote(struct sv_buf *b, const struct sv_choice *ch, size_t *at, struct sv_part p)
{
    size_t next = *at;
    struct sv_part more;
    struct sv_buf text;

    if (!sv_deltas_read(ch, &next, &more) || more.kind != p.kind || more.call != p.call) {
        sv_json_quote(b, p.text, p.n);
        return;
    }
    sv_buf_init(&text);
    sv_buf_append(&text, p.text, p.n);
    for (next = *at; sv_deltas_read(ch, &next, &more) && more.kind == p.kind && more.call == p.call;
         *at = next)
        sv_buf_append(&text, more.text, more.n);
    b->failed |= text.failed;
    sv_json_quote(b, text.data ? text.data : "", text.len);
    sv_buf_fini(&text);
}

/* The members of a message that hold the reasoning. */
static void write_reasoning(struct sv_buf *b, const struct sv_choice *ch, size_t *at,
                            const struct sv_part *p)
{
    const struct sv_serve *s = ch->call->s;
    size_t copy = *at;

    if (s->as_reasoning_content) {
        sv_buf_lit(b, "\"reasoning_content\":");
        sv_deltas_quote(b, ch, s->as_reasoning ? &copy : at, *p);
    }
    if (s->as_reasoning) {
        sv_buf_printf(b, s->as_reasoning_content ? ",\"reasoning\":" : "\"reasoning\":");
        sv_deltas_quote(b, ch, at, *p);
    }
}

/* A function of the server's key and the choice's serial number. Mistral's templates take nine
 * letters. */
void sv_deltas_id(struct sv_buf *b, const struct sv_choice *ch, const char *prefix, int32_t which)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bool mistral = ch->call->s->tool_format == SV_TOOL_MISTRAL;
    uint32_t r[4];
    char id[32];
    int n = mistral ? 9 : 24;

    for (int i = 0; i < n; i++) {
        if (i % 4 == 0)
            sv_philox(ch->call->s->random_key, ch->serial, (uint64_t)which << 8 | (uint64_t)i, r);
        id[i] = letters[r[i % 4] % 62];
    }
    sv_buf_printf(b, "\"%s%.*s\"", mistral ? "" : prefix, n, id);
}

void sv_deltas_call_id(struct sv_buf *b, const struct sv_choice *ch, int32_t call)
{
    sv_deltas_id(b, ch, "call_", call);
}

/* ---------------------------------------------------------------- streams */

bool sv_deltas_write_next(struct sv_choice *ch, size_t *at, struct sv_buf *b)
{
    struct sv_part p;

    do
        if (!sv_deltas_read(ch, at, &p)) {
            b->failed |= ch->deltas.failed;
            sv_buf_clear(&ch->deltas);
            return false;
        }
    while (p.kind == SV_PART_CALL_END);
    sv_buf_lit(b, "{");
    switch (p.kind) {
    case SV_PART_REASONING:
        write_reasoning(b, ch, at, &p);
        break;
    case SV_PART_CALL:
        sv_buf_printf(b, "\"tool_calls\":[{\"index\":%d,\"id\":", p.call);
        sv_deltas_call_id(b, ch, p.call);
        sv_buf_lit(b, ",\"type\":\"function\",\"function\":{\"name\":");
        sv_json_quote(b, p.text, p.n);
        sv_buf_lit(b, ",\"arguments\":\"\"}}]");
        break;
    case SV_PART_ARGUMENTS:
        sv_buf_printf(b, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", p.call);
        sv_deltas_quote(b, ch, at, p);
        sv_buf_lit(b, "}}]");
        break;
    default:
        sv_buf_lit(b, "\"content\":");
        sv_deltas_quote(b, ch, at, p);
    }
    sv_buf_lit(b, "}");
    return true;
}

/* ---------------------------------------------------------------- messages */

/* The text of all deltas of a kind; false: there are none. */
static bool gather(const struct sv_choice *ch, enum sv_part_kind kind, struct sv_buf *text,
                   struct sv_buf *b)
{
    struct sv_part p;

    sv_buf_clear(text);
    for (size_t at = 0; sv_deltas_read(ch, &at, &p);)
        if (p.kind == kind)
            sv_buf_append(text, p.text, p.n);
    b->failed |= text->failed;
    return text->len;
}

static void write_calls(struct sv_buf *b, const struct sv_choice *ch)
{
    struct sv_part p;
    bool first = true;

    sv_buf_lit(b, ",\"tool_calls\":[");
    for (size_t at = 0; sv_deltas_read(ch, &at, &p);) {
        if (p.kind == SV_PART_CALL) {
            sv_buf_printf(b, first ? "{\"id\":" : ",{\"id\":");
            sv_deltas_call_id(b, ch, p.call);
            sv_buf_lit(b, ",\"type\":\"function\",\"function\":{\"name\":");
            sv_json_quote(b, p.text, p.n);
            sv_buf_lit(b, ",\"arguments\":");
            first = false;
        } else if (p.kind == SV_PART_ARGUMENTS) {
            sv_deltas_quote(b, ch, &at, p);
            sv_buf_lit(b, "}}");
        }
    }
    sv_buf_lit(b, "]");
}

void sv_deltas_message(struct sv_choice *ch, struct sv_buf *b)
{
    struct sv_buf text;

    sv_buf_init(&text);
    sv_deltas_push(ch, ch->text.data ? ch->text.data : "", ch->text.len, ch->finish);
    b->failed |= ch->deltas.failed;
    bool reasoning = gather(ch, SV_PART_REASONING, &text, b);
    if (reasoning) {
        const struct sv_part p = {.kind = SV_PART_REASONING, .text = text.data, .n = text.len};
        size_t end = ch->deltas.len;
        write_reasoning(b, ch, &end, &p);
        sv_buf_lit(b, ",");
    }
    sv_buf_lit(b, "\"content\":");
    if (gather(ch, SV_PART_CONTENT, &text, b) || (!reasoning && !ch->n_calls))
        sv_json_quote(b, text.data ? text.data : "", text.len);
    else
        sv_buf_lit(b, "null");
    if (ch->n_calls)
        write_calls(b, ch);
    sv_buf_fini(&text);
}

const char *sv_deltas_finish(const struct sv_choice *ch)
{
    /* With a named tool the model had no choice: OpenAI and vLLM say "stop" then. */
    bool called = ch->n_calls && ch->finish == SV_FINISH_STOP &&
                  ch->call->p.tool_choice != SV_TOOL_CHOICE_NAMED;
    return called ? "\"tool_calls\"" : sv_finish_json(ch->finish);
}

/* Called for each chunk that has usage, so it continues where the last call ended. */
int64_t sv_deltas_n_reasoning_tokens(struct sv_choice *ch)
{
    const int32_t *ids = (const int32_t *)(const void *)ch->ids.data;
    size_t n = ch->answer ? sv_answer_n_reasoning(ch->answer) : 0;
    struct sv_detok d;

    sv_detok_init(&d, ch->call->s->model->tok, !ch->r.show_special);
    d.shown = ch->r.shown_ids;
    d.n_shown = ch->r.n_shown_ids;
    while (ch->n_reasoning_bytes < n &&
           ch->n_reasoning_tokens < (int64_t)(ch->ids.len / sizeof(int32_t))) {
        int32_t id = ids[ch->n_reasoning_tokens++];
        size_t len;
        sv_tokenizer_bytes(d.tok, id, &len);
        ch->n_reasoning_bytes += sv_detok_skips(&d, id) ? 0 : len;
    }
    return ch->n_reasoning_tokens;
}
