/*
 * parts.c - a chat's answer as its parts: what is thought, said and called, as deltas of a stream
 * or as a message.
 *
 * Called by the dialects of chats and call.c, on the loop's thread or the one that writes long
 * answers. The parts of text that has come wait in g->parts until they are written. Must not: keep
 * text longer than text/answer.c does, but for thoughts that a client does not want streamed.
 */
#include "serve/impl.h"

#include <string.h>

struct head {
    int32_t kind, call; /* enum sv_part_kind */
    uint64_t n;
};

static void add(struct sv_gen *g, const struct sv_part *p)
{
    bool of_call = p->kind != SV_PART_CONTENT && p->kind != SV_PART_THOUGHT;
    /* text before and behind a call that was dropped is one */
    struct head h = {(int32_t)p->kind, of_call ? p->call : 0, p->n};

    sv_buf_append(&g->parts, &h, sizeof h);
    sv_buf_append(&g->parts, p->text, p->n);
}

static void give_thoughts(struct sv_gen *g)
{
    if (g->thoughts.len)
        add(g, &(struct sv_part){SV_PART_THOUGHT, 0, g->thoughts.data, g->thoughts.len});
    g->parts.failed |= g->thoughts.failed;
    sv_buf_clear(&g->thoughts);
}

static void on_part(void *user, const struct sv_part *p)
{
    struct sv_gen *g = user;
    const struct sv_params *par = &g->call->p;
    bool thought = p->kind == SV_PART_THOUGHT;

    if (thought && !par->include_thoughts)
        return;
    if (thought && !par->stream_thoughts) {
        sv_buf_append(&g->thoughts, p->text, p->n);
        return;
    }
    give_thoughts(g);
    if (p->kind != SV_PART_CONTENT && !thought && p->call > 0 && !par->parallel)
        return; /* vLLM drops them too */
    g->n_calls += p->kind == SV_PART_CALL;
    add(g, p);
}

int sv_parts_open(struct sv_gen *g)
{
    const struct sv_params *p = &g->call->p;
    struct sv_answer_opts o = {.tools = p->tool_format,
                               .think = p->think_format,
                               .in_thought = p->in_thought,
                               .whole = !p->stream,
                               .tool_list = p->tools,
                               .part = on_part,
                               .user = g};

    if (p->tool_format == SV_TOOL_NONE && p->think_format == SV_THINK_NONE)
        return 0;
    g->answer = sv_answer_new(&o);
    return g->answer ? 0 : -1;
}

void sv_parts_close(struct sv_gen *g)
{
    sv_answer_free(g->answer);
    sv_buf_fini(&g->parts);
    sv_buf_fini(&g->thoughts);
}

void sv_parts_take(struct sv_gen *g, const char *text, size_t n, enum sv_finish_reason finish)
{
    if (!g->answer) {
        if (n)
            add(g, &(struct sv_part){SV_PART_CONTENT, 0, text, n});
        return;
    }
    if (!sv_answer_push(g->answer, text, n))
        g->parts.failed = true;
    if (finish == SV_FINISH_NONE)
        return;
    const bool cut = finish != SV_FINISH_STOP || sv_stop_text(g->call, g);
    if (!sv_answer_end(g->answer, cut))
        g->parts.failed = true;
    give_thoughts(g);
}

/* ---------------------------------------------------------------- reading them */

bool sv_parts_read(const struct sv_gen *g, size_t *at, struct sv_part *p)
{
    struct head h;

    if (g->parts.failed || *at == g->parts.len)
        return false;
    memcpy(&h, g->parts.data + *at, sizeof h);
    *p = (struct sv_part){(enum sv_part_kind)h.kind, h.call, g->parts.data + *at + sizeof h, h.n};
    *at += sizeof h + h.n;
    return true;
}

/* The text of this part and of those of its kind that follow, as a JSON string; pieces may be cut
 * within a code point, so they are put together first. */
void sv_parts_quote(struct sv_buf *b, const struct sv_gen *g, size_t *at, struct sv_part p)
{
    size_t next = *at;
    struct sv_part more;
    struct sv_buf text;

    if (!sv_parts_read(g, &next, &more) || more.kind != p.kind || more.call != p.call) {
        sv_json_quote(b, p.text, p.n);
        return;
    }
    sv_buf_init(&text);
    sv_buf_append(&text, p.text, p.n);
    for (next = *at; sv_parts_read(g, &next, &more) && more.kind == p.kind && more.call == p.call;
         *at = next)
        sv_buf_append(&text, more.text, more.n);
    b->failed |= text.failed;
    sv_json_quote(b, text.data ? text.data : "", text.len);
    sv_buf_fini(&text);
}

/* The members that thoughts go by. */
static void write_thought(struct sv_buf *b, const struct sv_gen *g, size_t *at,
                          const struct sv_part *p)
{
    const struct sv_serve *s = g->call->s;
    size_t copy = *at;

    if (s->as_reasoning_content) {
        sv_buf_lit(b, "\"reasoning_content\":");
        sv_parts_quote(b, g, s->as_reasoning ? &copy : at, *p);
    }
    if (s->as_reasoning) {
        sv_buf_printf(b, s->as_reasoning_content ? ",\"reasoning\":" : "\"reasoning\":");
        sv_parts_quote(b, g, at, *p);
    }
}

/* Random, and the same whenever it is asked for. Mistral's templates take nine letters. */
void sv_parts_id(struct sv_buf *b, const struct sv_gen *g, const char *prefix, int32_t which)
{
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bool mistral = g->call->s->tool_format == SV_TOOL_MISTRAL;
    uint32_t r[4];
    char id[32];
    int n = mistral ? 9 : 24;

    for (int i = 0; i < n; i++) {
        if (i % 4 == 0)
            sv_philox(g->call->s->random_key, g->serial, (uint64_t)which << 8 | (uint64_t)i, r);
        id[i] = letters[r[i % 4] % 62];
    }
    sv_buf_printf(b, "\"%s%.*s\"", mistral ? "" : prefix, n, id);
}

void sv_parts_call_id(struct sv_buf *b, const struct sv_gen *g, int32_t call)
{
    sv_parts_id(b, g, "call_", call);
}

/* ---------------------------------------------------------------- streams */

bool sv_parts_delta(struct sv_gen *g, size_t *at, struct sv_buf *b)
{
    struct sv_part p;

    do
        if (!sv_parts_read(g, at, &p)) {
            b->failed |= g->parts.failed;
            sv_buf_clear(&g->parts);
            return false;
        }
    while (p.kind == SV_PART_CALL_END);
    sv_buf_lit(b, "{");
    switch (p.kind) {
    case SV_PART_THOUGHT:
        write_thought(b, g, at, &p);
        break;
    case SV_PART_CALL:
        sv_buf_printf(b, "\"tool_calls\":[{\"index\":%d,\"id\":", p.call);
        sv_parts_call_id(b, g, p.call);
        sv_buf_lit(b, ",\"type\":\"function\",\"function\":{\"name\":");
        sv_json_quote(b, p.text, p.n);
        sv_buf_lit(b, ",\"arguments\":\"\"}}]");
        break;
    case SV_PART_ARGUMENTS:
        sv_buf_printf(b, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", p.call);
        sv_parts_quote(b, g, at, p);
        sv_buf_lit(b, "}}]");
        break;
    default:
        sv_buf_lit(b, "\"content\":");
        sv_parts_quote(b, g, at, p);
    }
    sv_buf_lit(b, "}");
    return true;
}

/* ---------------------------------------------------------------- messages */

/* All parts of a kind, as one text for b; false: there are none. */
static bool gather(const struct sv_gen *g, enum sv_part_kind kind, struct sv_buf *text,
                   struct sv_buf *b)
{
    struct sv_part p;

    sv_buf_clear(text);
    for (size_t at = 0; sv_parts_read(g, &at, &p);)
        if (p.kind == kind)
            sv_buf_append(text, p.text, p.n);
    b->failed |= text->failed;
    return text->len;
}

static void write_calls(struct sv_buf *b, const struct sv_gen *g)
{
    struct sv_part p;
    bool first = true;

    sv_buf_lit(b, ",\"tool_calls\":[");
    for (size_t at = 0; sv_parts_read(g, &at, &p);) {
        if (p.kind == SV_PART_CALL) {
            sv_buf_printf(b, first ? "{\"id\":" : ",{\"id\":");
            sv_parts_call_id(b, g, p.call);
            sv_buf_lit(b, ",\"type\":\"function\",\"function\":{\"name\":");
            sv_json_quote(b, p.text, p.n);
            sv_buf_lit(b, ",\"arguments\":");
            first = false;
        } else if (p.kind == SV_PART_ARGUMENTS) {
            sv_parts_quote(b, g, &at, p);
            sv_buf_lit(b, "}}");
        }
    }
    sv_buf_lit(b, "]");
}

void sv_parts_message(struct sv_gen *g, struct sv_buf *b)
{
    struct sv_buf text;

    sv_buf_init(&text);
    sv_parts_take(g, g->text.data ? g->text.data : "", g->text.len, g->finish);
    b->failed |= g->parts.failed;
    bool thought = gather(g, SV_PART_THOUGHT, &text, b);
    if (thought) {
        const struct sv_part p = {SV_PART_THOUGHT, 0, text.data, text.len};
        size_t end = g->parts.len;
        write_thought(b, g, &end, &p);
        sv_buf_lit(b, ",");
    }
    sv_buf_lit(b, "\"content\":");
    if (gather(g, SV_PART_CONTENT, &text, b) || (!thought && !g->n_calls))
        sv_json_quote(b, text.data ? text.data : "", text.len);
    else
        sv_buf_lit(b, "null");
    if (g->n_calls)
        write_calls(b, g);
    sv_buf_fini(&text);
}

const char *sv_parts_finish(const struct sv_gen *g)
{
    /* A named call was no choice: OpenAI and vLLM say "stop" then. */
    bool called =
        g->n_calls && g->finish == SV_FINISH_STOP && g->call->p.tool_choice != SV_CHOICE_NAMED;
    return called ? "\"tool_calls\"" : sv_finish_json(g->finish);
}

/* It is asked with every chunk that has usage, so it goes on where it ended. */
int64_t sv_parts_n_thought_tokens(struct sv_gen *g)
{
    const int32_t *ids = (const int32_t *)(const void *)g->ids.data;
    size_t n = g->answer ? sv_answer_n_thought(g->answer) : 0;
    struct sv_detok d;

    sv_detok_init(&d, g->call->s->model->tok, !g->r.show_special);
    d.shown = g->r.shown_ids;
    d.n_shown = g->r.n_shown_ids;
    while (g->n_thought_bytes < n &&
           g->n_thought_tokens < (int64_t)(g->ids.len / sizeof(int32_t))) {
        int32_t id = ids[g->n_thought_tokens++];
        size_t len;
        sv_tokenizer_bytes(d.tok, id, &len);
        g->n_thought_bytes += sv_detok_skips(&d, id) ? 0 : len;
    }
    return g->n_thought_tokens;
}
