/*
 * check.c - a request body without a server: parse, read the fields, fill what is open, render
 * messages.
 *
 * Called by the fuzz targets. Must not: differ from what call.c does.
 */
#include "serve/impl.h"

#include <string.h>

static int kind_of(const char *path, enum sv_dialect_kind *kind)
{
    static const char *const paths[] = {[SV_CHAT] = "/v1/chat/completions",
                                        [SV_MESSAGES] = "/v1/messages",
                                        [SV_RESPONSES] = "/v1/responses",
                                        [SV_COMPLETIONS] = "/v1/completions",
                                        [SV_GENERATE] = "/generate",
                                        [SV_LLAMA] = "/completion",
                                        [SV_INFILL] = "/infill"};

    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (strcmp(path, paths[i]) == 0) {
            *kind = (enum sv_dialect_kind)i;
            return 0;
        }
    return -1;
}

int sv_serve_check_chat(const char *template, size_t n_template, const char *body, size_t n)
{
    static const struct sv_serve_model m = {
        .info = {.vocab_size = 6144, .context = 2048, .width = 16, .block_size = 16},
        .gen = {.temperature = 1, .top_p = 1}};
    struct sv_serve s = {.model = &m,
                         .render = {.max_output_bytes = 1 << 16,
                                    .max_memory_bytes = 4 << 20,
                                    .max_steps = 20000,
                                    .max_depth = 60}};
    struct sv_params *p = sv_calloc(1, sizeof *p);
    struct sv_api_err e = {.status = 200};
    struct sv_buf text;
    struct sv_err err;

    json_t *root = sv_json_parse(body, n, &err);
    sv_buf_init(&text);
    if (!p || !json_is_object(root) ||
        sv_chat_template_parse(&s.chat, NULL, template, n_template, &err))
        e.status = 400;
    else if (!sv_params_read(p, SV_CHAT, root, &e) &&
             !sv_params_complete(p, SV_CHAT, &m, &s.o, &e) && !sv_render_chat(&s, p, &text, &e))
        SV_REQUIRE(text.len <= s.render.max_output_bytes);
    sv_buf_fini(&text);
    sv_chat_template_close(s.chat);
    json_decref(root);
    if (p)
        sv_params_fini(p);
    sv_free(p);
    return e.status;
}

/* As call.c reads a body, up to its prompts. */
static int read_all(struct sv_params *p, enum sv_dialect_kind kind, json_t *body,
                    struct sv_api_err *e)
{
    const struct sv_serve_options o = {.max_choices = 64};
    const struct sv_serve_model m = {
        .info = {.vocab_size = 6144, .context = 2048, .width = 16, .block_size = 16},
        .gen = {.temperature = 1, .top_p = 1}};
    const struct sv_serve s = {.model = &m};
    struct sv_params *each = NULL;
    struct sv_buf source, items;

    sv_buf_init(&source);
    int rc = sv_params_read(p, kind, body, e);
    if (!rc && kind == SV_RESPONSES) {
        sv_buf_init(&items);
        rc = sv_responses_messages(&s, p, NULL, "0", &items, e);
        sv_buf_fini(&items);
    }
    if (!rc)
        rc = sv_params_each(p, sv_prompts_count(p, kind), &m, &o, &each, e);
    if (!rc)
        rc = sv_params_complete(p, kind, &m, &o, e);
    if (!rc)
        rc = sv_form_source(p, &source, e);
    sv_buf_fini(&source);
    sv_free(each);
    return rc;
}

int sv_serve_check_body(const char *path, const char *body, size_t n)
{
    struct sv_params *p = sv_calloc(1, sizeof *p);
    struct sv_api_err e = {0};
    enum sv_dialect_kind kind;
    struct sv_err err;

    if (!p || kind_of(path, &kind)) {
        sv_free(p);
        return 404;
    }
    json_t *root = sv_json_parse(body, n, &err);
    if (!json_is_object(root))
        e.status = 400;
    else if (!read_all(p, kind, root, &e))
        e.status = 200;
    json_decref(root);
    sv_params_fini(p);
    sv_free(p);
    return e.status;
}
