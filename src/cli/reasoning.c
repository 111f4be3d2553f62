/*
 * reasoning.c - an answer of `salvo run` divided into reasoning and content: what is shown of both,
 * and what the conversation keeps.
 *
 * Called by talk.c and, for each event, by the painter. Must not: parse; src/reply does.
 */
#include "cli/talk.h"

#include <string.h>

#define PIECE 512 /* bytes that src/reply takes at once and may cut anywhere */

static void change(struct sv_cli_parts *p, int32_t kind)
{
    const bool dims = p->colour && !p->painter->on;

    if (p->last == SV_PART_REASONING)
        sv_cli_painter_mark(p->painter, dims ? "" : "\n</think>");
    if (p->last >= 0 && kind >= 0)
        sv_cli_painter_mark(p->painter, "\n\n");
    if (kind == SV_PART_REASONING)
        sv_cli_painter_mark(p->painter, dims ? "" : "<think>\n");
    p->last = kind;
}

static void on_part(void *user, const struct sv_part *part)
{
    struct sv_cli_parts *p = user;
    const bool reasoning = part->kind == SV_PART_REASONING;
    struct sv_buf *kept = reasoning ? &p->reasoning : &p->content;

    SV_REQUIRE(reasoning || part->kind == SV_PART_CONTENT); /* no tools: no calls */
    if (p->last != (int32_t)part->kind)
        change(p, (int32_t)part->kind);
    else if (part->apart)
        sv_cli_painter_mark(p->painter, "\n");
    p->shown = true;
    sv_cli_painter_text(p->painter, part->text, part->n, reasoning && p->colour);
    sv_buf_append(kept, "\n", part->apart);
    sv_buf_append(kept, part->text, part->n);
    p->failed |= kept->failed;
}

static void on_event(void *user, const struct sv_event *ev)
{
    struct sv_cli_parts *p = user;

    for (size_t at = 0, n; at < ev->n_bytes; at += n) {
        n = ev->n_bytes - at < PIECE ? ev->n_bytes - at : PIECE;
        while (at + n < ev->n_bytes && n > 1 && (ev->text[at + n] & 0xC0) == 0x80)
            n--;
        if (p->parser)
            p->failed = !sv_answer_push(p->parser, ev->text + at, n) || p->failed;
        else
            on_part(p, &(struct sv_part){.kind = SV_PART_CONTENT, .text = ev->text + at, .n = n});
    }
    if (ev->finish == SV_FINISH_NONE)
        return;
    if (p->parser && !sv_answer_end(p->parser, ev->finish != SV_FINISH_STOP || ev->stop_index >= 0))
        p->failed = true;
    change(p, -1);
}

void sv_cli_parts_init(struct sv_cli_parts *p, struct sv_cli_painter *painter, bool colour)
{
    *p = (struct sv_cli_parts){.painter = painter, .colour = colour, .last = -1};
    painter->divide = on_event;
    painter->user = p;
}

void sv_cli_parts_fini(struct sv_cli_parts *p)
{
    sv_answer_free(p->parser);
    sv_buf_fini(&p->reasoning);
    sv_buf_fini(&p->content);
}

int sv_cli_parts_begin(struct sv_cli_parts *p, enum sv_think_format format, const char *prompt,
                       size_t n)
{
    const struct sv_answer_opts opts = {.think = format,
                                        .within_reasoning = sv_think_is_open(format, prompt, n),
                                        .part = on_part,
                                        .user = p};

    sv_cli_parts_fini(p);
    sv_buf_init(&p->reasoning);
    sv_buf_init(&p->content);
    p->parser = format == SV_THINK_NONE ? NULL : sv_answer_new(&opts);
    p->last = -1;
    p->shown = p->failed = false;
    return format == SV_THINK_NONE || p->parser ? SV_CLI_OK : sv_cli_fail("out of memory");
}

json_t *sv_cli_parts_message(const struct sv_cli_parts *p, enum sv_think_format format)
{
    /* Templates decide what of it a later prompt has; that of gpt-oss has its own name. */
    const char *name = format == SV_THINK_HARMONY ? "thinking" : "reasoning_content";
    json_t *m = sv_cli_message("assistant", p->content.data ? p->content.data : "", p->content.len);

    if (!m || !p->reasoning.len)
        return m;
    if (!json_object_set_new(m, name, json_stringn(p->reasoning.data, p->reasoning.len)))
        return m;
    json_decref(m);
    return NULL;
}
