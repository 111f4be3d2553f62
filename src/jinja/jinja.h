/*
 * jinja.h - front header of src/jinja: Jinja templates, and the chat template of a model directory.
 *
 * Called by engine's users (serve, cli) to turn messages into a prompt. Knows no tokenizer and no
 * model; only chat.c is specific to language models. Must not: run without limits on work, memory,
 * output and depth.
 */
#ifndef SV_JINJA_H
#define SV_JINJA_H

#include "base/base.h"

/* A Jinja template, rendered as transformers does with Python's jinja2 (docs/chat-templates.md). A
 * parsed template does not change: several threads may render it at once. */
struct sv_template;

/* 0 = the default. A template that exceeds a limit fails with SV_EFULL. */
struct sv_template_opts {
    int64_t now;             /* strftime_now: seconds since 1970, the local zone's offset added */
    size_t max_output_bytes; /* 16 MiB */
    size_t max_memory_bytes; /* 256 MiB, of parse and render each */
    int64_t max_steps;       /* 20 million */
    int max_depth;           /* 1000 levels of nesting; a macro call takes about eight */
};

/* Errors name line and column; pos is the line. Unsupported features of jinja2 give
 * SV_EUNSUPPORTED. */
int sv_template_parse(struct sv_template **t, const char *text, size_t n, struct sv_err *err);
/* Appends the rendered text; on failure out is as before. context is a JSON object (messages,
 * tools, add_generation_prompt, ...). raise_exception gives SV_EINVAL with only its message. opts
 * may be NULL. */
int sv_template_render(const struct sv_template *t, const json_t *context,
                       const struct sv_template_opts *opts, struct sv_buf *out, struct sv_err *err);
void sv_template_free(struct sv_template *t);

/* The chat template of a model directory: DIR/chat_template.jinja, else chat_template in
 * DIR/tokenizer_config.json (text, or a list of named ones), else DIR/chat_template.json.
 * SV_EUNSUPPORTED when there is none. */
struct sv_chat_template;
int sv_chat_template_open(struct sv_chat_template **t, const char *dir, struct sv_err *err);
/* The given text, with the special tokens of the directory (NULL: none). */
int sv_chat_template_parse(struct sv_chat_template **t, const char *dir, const char *text, size_t n,
                           struct sv_err *err);
/* The same from a parsed tokenizer_config.json; text NULL: its own template. dir: name for
 * messages. */
int sv_chat_template_of(struct sv_chat_template **t, const json_t *config, const char *dir,
                        const char *text, size_t n, struct sv_err *err);
/* As sv_template_render, with bos_token, eos_token etc. added where context has none. With tools in
 * the context the template named tool_use is taken when there is one, else the one named default.
 */
int sv_chat_template_render(const struct sv_chat_template *t, const json_t *context,
                            const struct sv_template_opts *opts, struct sv_buf *out,
                            struct sv_err *err);
/* The template's text; of several the one named default. */
const char *sv_chat_template_source(const struct sv_chat_template *t);
/* Whether a template contains "developer": others skip such messages, or refuse them. */
bool sv_chat_template_knows_developer(const struct sv_chat_template *t);
void sv_chat_template_close(struct sv_chat_template *t);

#endif
