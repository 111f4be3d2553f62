/*
 * tool_grammar.c - what an answer may be that must call tools, or whose calls must fit their
 * schemas: a grammar of the very text that text/answer.c takes apart.
 *
 * Called by grammars.c on the thread that makes grammars. Calls are objects; a model that writes
 * tags around them has these, where they are text and no special tokens, which no grammar asks for.
 * Must not: touch the server.
 */
#include "serve/impl.h"

#include "grammar/grammar.h"

#include <string.h>

#define OPEN "<tool_call>"
#define CLOSE "</tool_call>"

/* The parts' references go over. */
static int join(struct sv_grammar **g, struct sv_grammar **parts, size_t n, int rc,
                struct sv_err *err)
{
    if (!rc)
        rc = sv_grammar_join(g, parts, n, err);
    for (size_t i = 0; i < n; i++)
        sv_grammar_unref(parts[i]);
    return rc;
}

static int literal(struct sv_grammar **g, const char *text, struct sv_err *err)
{
    return sv_grammar_literal(g, text, strlen(text), err);
}

/* ---------------------------------------------------------------- one call */

/* An object of the schema. Without one: none of a forced function's, any of a free one's. */
static int make_arguments(struct sv_grammar **g, const struct sv_tool_form *f, const json_t *tool,
                          struct sv_err *err)
{
    const json_t *function = json_object_get(tool, "function");
    const json_t *schema = json_object_get(function, "parameters");

    if (f->free && !json_is_true(json_object_get(function, "strict")))
        return sv_grammar_json(g, err);
    if (!json_is_object(schema))
        return literal(g, "{}", err);
    char *text = json_dumps(schema, JSON_COMPACT);
    int rc = text ? sv_grammar_schema(g, text, strlen(text), NULL, err)
                  : sv_fail(err, SV_ENOMEM, -1, "schema");
    sv_free(text);
    return rc;
}

static int make_object(struct sv_grammar **g, const struct sv_tool_form *f, const json_t *tool,
                       struct sv_err *err)
{
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    struct sv_grammar *part[3] = {NULL, NULL, NULL};
    struct sv_buf head;

    sv_buf_init(&head);
    sv_buf_printf(&head, "{\"name\": ");
    sv_json_quote(&head, json_string_value(name), json_string_length(name));
    sv_buf_printf(&head, f->tags ? ", \"arguments\": " : ", \"parameters\": ");
    int rc = head.failed ? sv_fail(err, SV_ENOMEM, -1, "tools")
                         : sv_grammar_literal(&part[0], head.data, head.len, err);
    sv_buf_fini(&head);
    if (!rc)
        rc = make_arguments(&part[1], f, tool, err);
    if (!rc)
        rc = literal(&part[2], "}", err);
    return join(g, part, 3, rc, err);
}

/* An object of one of the tools. */
static int make_any(struct sv_grammar **g, const struct sv_tool_form *f, const json_t *tools,
                    struct sv_err *err)
{
    size_t n = json_array_size(tools);
    struct sv_grammar **each = sv_calloc(n + 1, sizeof *each);
    int rc = each ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "tools");

    for (size_t i = 0; i < n && !rc; i++) {
        rc = make_object(&each[i], f, json_array_get(tools, i), err);
        if (rc)
            sv_err_prefix(err, "tools[%zu].function.parameters", i);
    }
    if (!rc)
        rc = sv_grammar_either(g, each, n, err);
    for (size_t i = 0; each && i < n; i++)
        sv_grammar_unref(each[i]);
    sv_free(each);
    return rc;
}

/* ---------------------------------------------------------------- all of them */

/* A call, and more of them where there may be more. */
static int make_forced(struct sv_grammar **g, const struct sv_tool_form *f, const json_t *tools,
                       struct sv_err *err)
{
    struct sv_grammar *part[3] = {NULL, NULL, NULL}, *call = NULL, *more = NULL;
    struct sv_grammar *again[2] = {NULL, NULL};
    int rc = literal(&part[0], f->tags ? OPEN "\n" : "", err);

    if (!rc)
        rc = make_any(&part[1], f, tools, err);
    if (!rc)
        rc = literal(&part[2], f->tags ? "\n" CLOSE : "", err);
    rc = join(&call, part, 3, rc, err);
    if (!rc && !f->many) {
        *g = call;
        return SV_OK;
    }
    if (!rc)
        rc = literal(&again[0], f->tags ? "\n" : "; ", err);
    again[1] = rc ? NULL : sv_grammar_ref(call);
    rc = join(&more, again, 2, rc, err);
    part[0] = call;
    part[1] = NULL;
    if (!rc)
        rc = sv_grammar_repeat(&part[1], more, 0, -1, err);
    sv_grammar_unref(more);
    return join(g, part, 2, rc, err);
}

/* Any text, in which calls are such that they fit. */
static int make_free(struct sv_grammar **g, const struct sv_tool_form *f, const json_t *tools,
                     struct sv_err *err)
{
    struct sv_grammar *part[4] = {NULL, NULL, NULL, NULL}, *call = NULL;
    struct sv_grammar *all[2] = {NULL, NULL};
    int rc = sv_grammar_until(&part[0], OPEN, strlen(OPEN), err);

    if (!rc)
        rc = literal(&part[1], "\n", err);
    if (!rc)
        rc = make_any(&part[2], f, tools, err);
    if (!rc)
        rc = literal(&part[3], "\n" CLOSE, err);
    rc = join(&call, part, 4, rc, err);
    if (!rc)
        rc = sv_grammar_repeat(&all[0], call, 0, -1, err);
    if (!rc)
        rc = sv_grammar_without(&all[1], OPEN, strlen(OPEN), err);
    sv_grammar_unref(call);
    return join(g, all, 2, rc, err);
}

int sv_tool_grammar(struct sv_grammar **g, const struct sv_tool_form *f, const char *text, size_t n,
                    struct sv_err *err)
{
    json_t *tools = sv_json_parse(text, n, err);

    if (!tools)
        return err->code;
    if (json_is_object(tools)) { /* one that was named */
        json_t *list = json_pack("[o]", tools);
        if (!list)
            return sv_fail(err, SV_ENOMEM, -1, "tools");
        tools = list;
    }
    int rc = f->free ? make_free(g, f, tools, err) : make_forced(g, f, tools, err);
    json_decref(tools);
    return rc;
}
