/*
 * check.c - checks a request body without a server: parse, read the fields, fill in defaults,
 * render messages.
 *
 * Called by the fuzz targets. Must not: differ from what call.c does.
 */
#include "serve/anthropic/anthropic.h"
#include "serve/compat/compat.h"
#include "serve/core/grammars.h"
#include "serve/core/tools.h"
#include "serve/openai/openai.h"
#include "serve/serve.h"
#include "serve/sglang/sglang.h"

#include <string.h>

static const struct sv_dialect *dialect_of(const char *path)
{
    static const struct {
        const char *path;
        const struct sv_dialect *dialect;
    } known[] = {{"/v1/chat/completions", &sv_dialect_chat},
                 {"/v1/messages", &sv_dialect_messages},
                 {"/v1/responses", &sv_dialect_responses},
                 {"/v1/completions", &sv_dialect_completions},
                 {"/generate", &sv_dialect_generate},
                 {"/completion", &sv_dialect_llama},
                 {"/infill", &sv_dialect_infill}};

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(path, known[i].path) == 0)
            return known[i].dialect;
    return NULL;
}

int sv_serve_check_chat(const char *template, size_t n_template, const char *body, size_t n)
{
    static const struct sv_serve_model m = {
        .takes_images = true,
        .info = {.vocab_size = 6144, .context = 2048, .width = 16, .block_size = 16},
        .defaults = {.temperature = 1, .top_p = 1}};
    struct sv_serve s = {.model = &m,
                         .render = {.max_output_bytes = 1 << 16,
                                    .max_memory_bytes = 4 << 20,
                                    .max_steps = 20000,
                                    .max_depth = 60}};
    struct sv_params *p = sv_calloc(1, sizeof *p);
    struct sv_api_err e = {.status = 200};
    struct sv_buf text, ignored;
    struct sv_err err;

    json_t *root = sv_json_parse(body, n, &err);
    sv_buf_init(&text);
    sv_buf_init(&ignored);
    bool parsed = p && json_is_object(root) &&
                  !sv_chat_template_parse(&s.chat, NULL, template, n_template, &err);
    sv_tools_open(&s);
    if (!parsed)
        e.status = 400;
    else if (!sv_params_read(p, &sv_dialect_chat, root, &ignored, &e) &&
             !sv_params_complete(p, SV_CHAT, &m, &s.o, &e) &&
             !sv_render_chat(&s, NULL, p, &text, &e))
        SV_REQUIRE(text.len <= s.render.max_output_bytes);
    sv_buf_fini(&text);
    sv_buf_fini(&ignored);
    sv_chat_template_close(s.chat);
    json_decref(root);
    if (p)
        sv_params_fini(p);
    sv_free(p);
    return e.status;
}

/* As call.c reads a body, up to its prompts. */
static int read_all(struct sv_params *p, const struct sv_dialect *d, json_t *body,
                    struct sv_api_err *e)
{
    const struct sv_serve_options o = {.max_choices = 64};
    const struct sv_serve_model m = {
        .info = {.vocab_size = 6144, .context = 2048, .width = 16, .block_size = 16},
        .defaults = {.temperature = 1, .top_p = 1}};
    const struct sv_serve s = {.model = &m};
    struct sv_params *each = NULL;
    struct sv_buf source, items, ignored;

    sv_buf_init(&source);
    sv_buf_init(&ignored);
    int rc = sv_params_read(p, d, body, &ignored, e);
    if (!rc && d == &sv_dialect_responses) {
        sv_buf_init(&items);
        rc = sv_responses_messages(&s, -1, p, NULL, "0", &items, e);
        sv_buf_fini(&items);
    }
    if (!rc)
        rc = sv_params_each(p, sv_prompts_count(p, d->kind), &m, &o, &each, e);
    if (!rc)
        rc = sv_params_complete(p, d->kind, &m, &o, e);
    if (!rc)
        rc = sv_constraint_source(p, &source, e);
    sv_buf_fini(&source);
    sv_buf_fini(&ignored);
    sv_free(each);
    return rc;
}

int sv_serve_check_body(const char *path, const char *body, size_t n)
{
    struct sv_params *p = sv_calloc(1, sizeof *p);
    struct sv_api_err e = {0};
    const struct sv_dialect *d = dialect_of(path);
    struct sv_err err;

    if (!p || !d) {
        sv_free(p);
        return 404;
    }
    json_t *root = sv_json_parse(body, n, &err);
    if (!json_is_object(root))
        e.status = 400;
    else if (!read_all(p, d, root, &e))
        e.status = 200;
    json_decref(root);
    sv_params_fini(p);
    sv_free(p);
    return e.status;
}
