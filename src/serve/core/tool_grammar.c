/*
 * tool_grammar.c - grammars of answers that must call tools, or whose calls must fit their schemas:
 * of the text that src/reply parses.
 *
 * Called by grammars.c on the thread that compiles grammars. A call is an object, between tags if
 * the model writes them as text, or its arguments alone; a grammar cannot ask for special tokens.
 * Must not: touch the server.
 */
#include "serve/core/tools.h"

#include "grammar/grammar.h"

#include <string.h>

#define OPEN "<tool_call>"
#define CLOSE "</tool_call>"

/* Takes the references to the parts. */
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

/* Arguments by the schema. Without a schema: none if the call is forced, any object if it is
 * not. */
static int make_arguments(struct sv_grammar **g, const struct sv_tool_constraint *f,
                          const json_t *tool, struct sv_err *err)
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

static int make_object(struct sv_grammar **g, const struct sv_tool_constraint *f,
                       const json_t *tool, struct sv_err *err)
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

/* A call of any of the tools. */
static int make_any(struct sv_grammar **g, const struct sv_tool_constraint *f, const json_t *tools,
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

/* A call, and more if more are allowed. */
static int make_forced(struct sv_grammar **g, const struct sv_tool_constraint *f,
                       const json_t *tools, struct sv_err *err)
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

/* Any text; the calls in it fit their schemas. */
static int make_free(struct sv_grammar **g, const struct sv_tool_constraint *f, const json_t *tools,
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

/* A call whose name the prompt has. */
static int make_only_arguments(struct sv_grammar **g, const struct sv_tool_constraint *f,
                               const json_t *tools, struct sv_err *err)
{
    int rc = make_arguments(g, f, json_array_get(tools, 0), err);

    return rc ? sv_err_prefix(err, "tools[0].function.parameters") : rc;
}

int sv_tool_grammar(struct sv_grammar **g, const struct sv_tool_constraint *f, const char *text,
                    size_t n, struct sv_err *err)
{
    json_t *tools = sv_json_parse(text, n, err);

    if (!tools)
        return err->code;
    if (json_is_object(tools)) { /* tool_choice named a tool */
        json_t *list = json_pack("[o]", tools);
        if (!list)
            return sv_fail(err, SV_ENOMEM, -1, "tools");
        tools = list;
    }
    int rc = f->free        ? make_free(g, f, tools, err)
             : f->arguments ? make_only_arguments(g, f, tools, err)
                            : make_forced(g, f, tools, err);
    json_decref(tools);
    return rc;
}
