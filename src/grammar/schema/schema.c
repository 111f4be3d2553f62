/*
 * schema.c - JSON schemas as grammars: the functions of grammar.h, memory and errors of one call.
 *
 * Called by engine's users through grammar.h. The other files are listed in schema.h, the supported
 * keywords in docs/structured-output.md. Must not: ignore a keyword that changes which values are
 * valid.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define MAX_SCHEMA_BYTES (4u << 20)
#define MAX_WORK 5000000

int sv_schema_no_memory(struct sv_schema *s)
{
    return sv_fail(s->err, SV_ENOMEM, -1, "schema: out of memory");
}

int sv_schema_fail(struct sv_schema *s, int code, const char *path, const char *fmt, ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return sv_fail(s->err, code, -1, "%.200s: %s", path, text);
}

int sv_schema_at(struct sv_schema *s, int status, const char *path)
{
    return status == SV_OK ? SV_OK : sv_err_prefix(s->err, "%.200s", path);
}

void *sv_schema_alloc(struct sv_schema *s, size_t count, size_t size)
{
    void *p = sv_arena_alloc(&s->arena, count * size);

    if (!p)
        sv_schema_no_memory(s);
    return p;
}

int sv_schema_grow(struct sv_schema *s, void *array, int32_t n, int32_t *cap, size_t size)
{
    void *old, *p;

    if (n < *cap)
        return SV_OK;
    p = sv_schema_alloc(s, (size_t)n * 2 + 8, size);
    if (!p)
        return SV_ENOMEM;
    memcpy(&old, array, sizeof old);
    if (n)
        memcpy(p, old, (size_t)n * size);
    memcpy(array, &p, sizeof p);
    *cap = n * 2 + 8;
    return SV_OK;
}

const char *sv_schema_path(struct sv_schema *s, const char *path, const char *key)
{
    size_t n = strlen(path), n_key = strlen(key);
    char *p;

    n_key = n_key > 80 ? 80 : n_key;
    /* of a long path the message shows the end */
    if (n > 160) {
        path += n - 157;
        n = 157;
        while (n && ((unsigned char)*path & 0xC0) == 0x80)
            path++, n--;
    }
    p = sv_schema_alloc(s, n + n_key + 5, 1);
    if (p)
        snprintf(p, n + n_key + 5, "%s%.*s/%.*s", n == 157 ? "..." : "", (int)n, path, (int)n_key,
                 key);
    return p ? p : "schema";
}

const char *sv_schema_path_index(struct sv_schema *s, const char *path, size_t i)
{
    char key[24];

    snprintf(key, sizeof key, "%zu", i);
    return sv_schema_path(s, path, key);
}

/* The grammar of a parsed schema. */
static int make(struct sv_schema *s, struct sv_grammar **g)
{
    struct sv_build *b = NULL;
    int32_t start = 0;
    int status = sv_nodes_make(s, &start);

    if (status == SV_OK)
        status = sv_values_filter(s);
    if (status == SV_OK)
        status = sv_nodes_live(s);
    if (status == SV_OK && !s->nodes[start].live)
        status = sv_schema_dead(s);
    if (status == SV_OK)
        status = sv_build_open(&b, s->err);
    if (status == SV_OK) {
        status = sv_build_finish(b, sv_node_emit(s, b, start), g, s->err);
        if (status != SV_OK)
            sv_err_prefix(s->err, "schema");
    }
    sv_build_close(b);
    return status;
}

static int from_json(struct sv_grammar **g, const json_t *root, const struct sv_schema_style *style,
                     struct sv_err *err)
{
    struct sv_schema s = {.root = root, .err = err};
    int status;

    if (style)
        s.style = *style;
    sv_arena_init(&s.arena);
    s.room = (struct sv_dfa_room){.arena = &s.arena, .work = MAX_WORK};
    status = make(&s, g);
    sv_arena_fini(&s.arena);
    return status;
}

/* The JSON parser requires an object or an array; a schema may also be `true` or `false`. */
static json_t *parse(const char *text, size_t n, struct sv_err *err)
{
    size_t from = 0, to = n;

    while (from < to && memchr(" \t\r\n", text[from], 4))
        from++;
    while (from < to && memchr(" \t\r\n", text[to - 1], 4))
        to--;
    if (to - from == 4 && !memcmp(text + from, "true", 4))
        return json_true();
    if (to - from == 5 && !memcmp(text + from, "false", 5))
        return json_false();
    return sv_json_parse(text, n, err);
}

int sv_grammar_schema(struct sv_grammar **g, const char *schema, size_t n,
                      const struct sv_schema_style *style, struct sv_err *err)
{
    struct sv_err own, *e = err ? err : &own;
    json_t *root;
    int status;

    if (n > MAX_SCHEMA_BYTES)
        return sv_fail(err, SV_EFULL, -1, "schema: %zu bytes, at most %u", n, MAX_SCHEMA_BYTES);
    root = parse(schema, n, e);
    if (!root)
        return sv_err_prefix(e, "schema");
    status = from_json(g, root, style, e);
    json_decref(root);
    return status;
}

int sv_grammar_json(struct sv_grammar **g, struct sv_err *err)
{
    static const char any_object[] = "{\"type\": \"object\"}";

    return sv_grammar_schema(g, any_object, sizeof any_object - 1, NULL, err);
}
