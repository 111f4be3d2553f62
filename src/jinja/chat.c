/*
 * chat.c - finds the chat template of a model directory and renders it with the model's
 * special tokens.
 *
 * Called by engine, serve and cli through text.h. Must not: know what any model's template looks
 * like.
 */
#include "jinja/run.h"

#define MAX_CONFIG_BYTES ((size_t)256 << 20)
#define MAX_TEMPLATE_BYTES ((size_t)16 << 20)

struct sv_chat_template {
    struct sv_template *plain, *tools; /* tools: the one named tool_use, or NULL */
    json_t *tokens;                    /* bos_token: text, ... */
    bool knows_developer;
    char *source; /* the plain one, or tools as the only one */
};

static int parse(struct sv_chat_template *c, struct sv_template **t, const char *text, size_t n,
                 struct sv_err *err)
{
    static const char role[] = "developer";

    for (size_t i = 0; i + sizeof role - 1 <= n && !c->knows_developer; i++)
        c->knows_developer = memcmp(text + i, role, sizeof role - 1) == 0;
    if (!c->source || t == &c->plain) {
        sv_free(c->source);
        c->source = sv_strndup(text, n);
        if (!c->source)
            return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    return sv_template_parse(t, text, n, err);
}

static int parse_one(struct sv_chat_template *c, struct sv_template **t, const json_t *text,
                     struct sv_err *err)
{
    if (!json_is_string(text))
        return sv_fail(err, SV_EFORMAT, -1, "chat_template must be text");
    return parse(c, t, json_string_value(text), json_string_length(text), err);
}

/* [{"name": ..., "template": ...}, ...] */
static int parse_named(struct sv_chat_template *c, const json_t *list, struct sv_err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i), *text = json_object_get(item, "template");
        const char *name = json_string_value(json_object_get(item, "name"));
        struct sv_template **to = !name                           ? NULL
                                  : strcmp(name, "default") == 0  ? &c->plain
                                  : strcmp(name, "tool_use") == 0 ? &c->tools
                                                                  : NULL;
        if (!name)
            return sv_fail(err, SV_EFORMAT, -1, "chat_template[%zu] has no name", i);
        if (!to || *to)
            continue;
        if (parse_one(c, to, text, err) < 0)
            return sv_err_prefix(err, "chat_template '%s'", name);
    }
    return SV_OK;
}

static int add_token(json_t *tokens, const char *name, const json_t *v, struct sv_err *err)
{
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!json_is_string(v))
        return SV_OK; /* null: the model has none */
    if (json_object_set(tokens, name, (json_t *)(uintptr_t)v) < 0)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    return SV_OK;
}

static int take_tokens(struct sv_chat_template *c, const json_t *config, struct sv_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    const json_t *more = json_object_get(config, "additional_special_tokens");

    c->tokens = json_object();
    if (!c->tokens)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (add_token(c->tokens, names[i], json_object_get(config, names[i]), err) < 0)
            return SV_ENOMEM;
    if (json_is_array(more) && json_array_size(more) &&
        json_object_set(c->tokens, "additional_special_tokens", (json_t *)(uintptr_t)more) < 0)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    return SV_OK;
}

/* DIR/name parsed as JSON; *root stays NULL when there is no such file. */
static int load_json(const char *dir, const char *name, json_t **root, struct sv_err *err)
{
    char *path = sv_path_join(dir, name);

    *root = NULL;
    if (!path)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (sv_file_exists(path)) {
        *root = sv_json_load(path, MAX_CONFIG_BYTES, err);
        if (!*root) {
            sv_free(path);
            return err->code;
        }
    }
    sv_free(path);
    return SV_OK;
}

/* DIR/chat_template.jinja, where there is one. */
static int from_file(struct sv_chat_template *c, const char *dir, struct sv_err *err)
{
    char *path = sv_path_join(dir, "chat_template.jinja");
    struct sv_buf text;
    int rc = SV_OK;

    if (!path)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    sv_buf_init(&text);
    if (sv_file_exists(path)) {
        rc = sv_file_read(&text, path, MAX_TEMPLATE_BYTES, err);
        if (rc == SV_OK) {
            rc = parse(c, &c->plain, text.data, text.len, err);
            if (rc < 0)
                sv_err_prefix(err, "%s", path);
        }
    }
    sv_buf_fini(&text);
    sv_free(path);
    return rc;
}

static int from_config(struct sv_chat_template *c, const char *dir, const char *file,
                       const json_t *config, struct sv_err *err)
{
    const json_t *v = json_object_get(config, "chat_template");
    int rc;

    if (!v || json_is_null(v))
        return SV_OK;
    rc = json_is_array(v) ? parse_named(c, v, err) : parse_one(c, &c->plain, v, err);
    return rc < 0 ? sv_err_prefix(err, "%s/%s", dir, file) : SV_OK;
}

static int open_all(struct sv_chat_template *c, const char *dir, struct sv_err *err)
{
    json_t *config, *other = NULL;
    int rc = load_json(dir, "tokenizer_config.json", &config, err);

    if (rc == SV_OK)
        rc = take_tokens(c, config, err);
    if (rc == SV_OK)
        rc = from_file(c, dir, err);
    if (rc == SV_OK && !c->plain)
        rc = from_config(c, dir, "tokenizer_config.json", config, err);
    if (rc == SV_OK && !c->plain && !c->tools) {
        rc = load_json(dir, "chat_template.json", &other, err);
        if (rc == SV_OK)
            rc = from_config(c, dir, "chat_template.json", other, err);
    }
    json_decref(other);
    json_decref(config);
    if (rc == SV_OK && !c->plain && !c->tools)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "%s has no chat template", dir);
    return rc;
}

/* A given template; only the tokens are the directory's. */
static int open_given(struct sv_chat_template *c, const char *dir, const char *text, size_t n,
                      struct sv_err *err)
{
    json_t *config = NULL;
    int rc = dir ? load_json(dir, "tokenizer_config.json", &config, err) : SV_OK;

    if (rc == SV_OK)
        rc = take_tokens(c, config, err);
    if (rc == SV_OK)
        rc = parse(c, &c->plain, text, n, err);
    json_decref(config);
    return rc;
}

/* Both from a parsed configuration; dir is only for messages. */
static int open_of(struct sv_chat_template *c, const json_t *config, const char *dir,
                   const char *text, size_t n, struct sv_err *err)
{
    int rc = take_tokens(c, config, err);

    if (rc == SV_OK)
        rc = text ? parse(c, &c->plain, text, n, err)
                  : from_config(c, dir, "tokenizer_config.json", config, err);
    if (rc == SV_OK && !c->plain && !c->tools)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "%s has no chat template", dir);
    return rc;
}

static int open_any(struct sv_chat_template **t, const json_t *config, const char *dir,
                    const char *text, size_t n, struct sv_err *err)
{
    struct sv_chat_template *c = sv_calloc(1, sizeof *c);
    struct sv_err own;
    int rc;

    *t = NULL;
    err = err ? err : &own;
    if (!c)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (config)
        rc = open_of(c, config, dir, text, n, err);
    else
        rc = text ? open_given(c, dir, text, n, err) : open_all(c, dir, err);
    if (rc < 0) {
        sv_chat_template_close(c);
        return rc;
    }
    *t = c;
    return SV_OK;
}

int sv_chat_template_open(struct sv_chat_template **t, const char *dir, struct sv_err *err)
{
    return open_any(t, NULL, dir, NULL, 0, err);
}

int sv_chat_template_parse(struct sv_chat_template **t, const char *dir, const char *text, size_t n,
                           struct sv_err *err)
{
    return open_any(t, NULL, dir, text ? text : "", n, err);
}

int sv_chat_template_of(struct sv_chat_template **t, const json_t *config, const char *dir,
                        const char *text, size_t n, struct sv_err *err)
{
    return open_any(t, config, dir, text, n, err);
}

int sv_chat_template_render(const struct sv_chat_template *t, const json_t *context,
                            const struct sv_template_opts *opts, struct sv_buf *out,
                            struct sv_err *err)
{
    const json_t *tools = json_object_get(context, "tools");
    bool with_tools = tools && !json_is_null(tools);
    const struct sv_template *use = t->tools && (with_tools || !t->plain) ? t->tools : t->plain;
    json_t *all = json_object(); /* json_copy skips members when out of memory */
    int rc;

    if (json_object_update(all, t->tokens) ||
        json_object_update(all, (json_t *)(uintptr_t)context)) {
        json_decref(all);
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    rc = sv_template_render(use, all, opts, out, err);
    json_decref(all);
    return rc;
}

const char *sv_chat_template_source(const struct sv_chat_template *t)
{
    return t->source;
}

bool sv_chat_template_knows_developer(const struct sv_chat_template *t)
{
    return t->knows_developer;
}

void sv_chat_template_close(struct sv_chat_template *t)
{
    if (!t)
        return;
    sv_template_free(t->plain);
    sv_template_free(t->tools);
    json_decref(t->tokens);
    sv_free(t->source);
    sv_free(t);
}
