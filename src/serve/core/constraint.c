/*
 * constraint.c - the fields of all dialects that constrain an answer: JSON of a schema, any JSON
 * object, a regular expression, a grammar, one of several texts.
 *
 * The readers are called by params.c through its table, on the thread that reads the body; the
 * result is a struct sv_constraint, which grammars.c compiles. Must not: look into schemas and
 * grammars; their readers are in src/grammar.
 */
#include "serve/core/fields.h"

#include <string.h>

static const char *const names[] = {
    [SV_CONSTRAINT_NONE] = "none",     [SV_CONSTRAINT_JSON] = "json_object",
    [SV_CONSTRAINT_SCHEMA] = "schema", [SV_CONSTRAINT_REGEX] = "regex",
    [SV_CONSTRAINT_GBNF] = "grammar",  [SV_CONSTRAINT_CHOICE] = "choice",
    [SV_CONSTRAINT_TOOLS] = "tools"};

const char *sv_constraint_name(enum sv_constraint_kind kind)
{
    return names[kind];
}

/* A request has one constraint only. field: the request's; member: the value's place in it, or
 * "". */
static int take(struct sv_params *p, enum sv_constraint_kind kind, json_t *value, const char *field,
                const char *member, struct sv_api_err *e)
{
    char earlier[sizeof p->constraint.name];

    if (p->constraint.kind) {
        snprintf(earlier, sizeof earlier, "%s", p->constraint.name);
        return sv_api_bad(e, field, "'%s%s' and '%s' exclude each other: an answer has one form",
                          field, member, earlier);
    }
    p->constraint.kind = kind;
    p->constraint.value = value;
    p->constraint.field = field;
    snprintf(p->constraint.name, sizeof p->constraint.name, "%s%s", field, member);
    return 0;
}

static int wrong_type(struct sv_api_err *e, const char *field, const char *member, const char *want,
                      const json_t *v)
{
    char name[64];

    snprintf(name, sizeof name, "%s%s", field, member);
    return sv_wrong_type(e, name, want, v);
}

/* ---------------------------------------------------------------- values of each kind */

static int take_json(struct sv_params *p, json_t *v, const char *field, const char *member,
                     struct sv_api_err *e)
{
    if (!json_is_boolean(v))
        return wrong_type(e, field, member, "a boolean", v);
    return json_is_true(v) ? take(p, SV_CONSTRAINT_JSON, NULL, field, member, e) : 0;
}

/* A schema, or its text. */
static int take_schema(struct sv_params *p, json_t *v, const char *field, const char *member,
                       struct sv_api_err *e)
{
    if (json_is_string(v) && !json_string_length(v))
        return 0;
    if (!json_is_object(v) && !json_is_string(v) && !json_is_boolean(v))
        return wrong_type(e, field, member, "a JSON schema: an object, or the text of one", v);
    return take(p, SV_CONSTRAINT_SCHEMA, v, field, member, e);
}

static int take_text(struct sv_params *p, enum sv_constraint_kind kind, json_t *v,
                     const char *field, const char *member, struct sv_api_err *e)
{
    if (!json_is_string(v))
        return wrong_type(e, field, member, "a string", v);
    return json_string_length(v) ? take(p, kind, v, field, member, e) : 0;
}

static int take_choice(struct sv_params *p, json_t *v, const char *field, const char *member,
                       struct sv_api_err *e)
{
    if (!json_is_array(v))
        return wrong_type(e, field, member, "an array of strings", v);
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return sv_api_bad(e, field, "'%s%s[%zu]' must be a string", field, member, i);
    return json_array_size(v) ? take(p, SV_CONSTRAINT_CHOICE, v, field, member, e) : 0;
}

static int take_value(struct sv_params *p, enum sv_constraint_kind kind, json_t *v,
                      const char *field, const char *member, struct sv_api_err *e)
{
    switch (kind) {
    case SV_CONSTRAINT_JSON:
        return take_json(p, v, field, member, e);
    case SV_CONSTRAINT_SCHEMA:
        return take_schema(p, v, field, member, e);
    case SV_CONSTRAINT_CHOICE:
        return take_choice(p, v, field, member, e);
    default:
        return take_text(p, kind, v, field, member, e);
    }
}

/* guided_json, json_schema, regex, ebnf, grammar, ...: one field for each kind, which is `at`. */
int sv_read_constraint(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e)
{
    return take_value(p, (enum sv_constraint_kind)f->at, v, f->name, "", e);
}

/* ---------------------------------------------------------------- vLLM's object */

/* {"json": ..., "regex": ..., ...}: one of them, and the whitespace of JSON. */
int sv_read_structured_outputs(struct sv_params *p, const struct sv_field *f, json_t *v,
                               struct sv_api_err *e)
{
    static const struct {
        const char *name;
        enum sv_constraint_kind kind; /* NONE: recognised, and refused unless it has no effect */
    } members[] = {{"json", SV_CONSTRAINT_SCHEMA},
                   {"json_object", SV_CONSTRAINT_JSON},
                   {"regex", SV_CONSTRAINT_REGEX},
                   {"grammar", SV_CONSTRAINT_GBNF},
                   {"choice", SV_CONSTRAINT_CHOICE},
                   {"disable_fallback", SV_CONSTRAINT_NONE},
                   {"whitespace_pattern", SV_CONSTRAINT_NONE},
                   {"structural_tag", SV_CONSTRAINT_NONE},
                   {"disable_additional_properties", SV_CONSTRAINT_NONE}};
    enum { N_MEMBERS = sizeof members / sizeof members[0] };
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    json_object_foreach(v, key, value) {
        size_t i = 0;
        char member[48];
        snprintf(member, sizeof member, ".%.40s", key);
        while (i < N_MEMBERS && strcmp(members[i].name, key) != 0)
            i++;
        if (json_is_null(value))
            continue;
        if (strcmp(key, "disable_any_whitespace") == 0) {
            if (!json_is_boolean(value))
                return wrong_type(e, f->name, member, "a boolean", value);
            p->constraint.compact = json_is_true(value);
        } else if (i == N_MEMBERS)
            return sv_api_unknown(e, "structured_outputs.", key);
        else if (members[i].kind && take_value(p, members[i].kind, value, f->name, member, e))
            return -1;
        else if (!members[i].kind && strcmp(key, "disable_fallback") != 0 && !json_is_false(value))
            return sv_api_unsupported(e, f->name,
                                      "'structured_outputs': of its settings "
                                      "\"disable_any_whitespace\" alone is supported");
    }
    return 0;
}

/* ---------------------------------------------------------------- OpenAI's object */

/* The schema of {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}; llama-server
 * also takes "schema" directly. */
static int read_json_schema(struct sv_params *p, json_t *format, const char *field,
                            struct sv_api_err *e)
{
    json_t *around = json_object_get(format, "json_schema"), *schema, *name;

    if (!around && json_object_get(format, "schema"))
        return take_schema(p, json_object_get(format, "schema"), field, ".schema", e);
    if (!json_is_object(around))
        return sv_api_bad(e, field, "'%s.json_schema' must be an object with the schema", field);
    name = json_object_get(around, "name");
    schema = json_object_get(around, "schema");
    if (name && !json_is_null(name) && !json_is_string(name))
        return sv_api_bad(e, field, "'%s.json_schema.name' must be a string", field);
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return sv_api_bad(e, field, "'%s.json_schema.schema' is %s", field,
                          schema && !json_is_null(schema) ? "no JSON schema" : "missing");
    return take_schema(p, schema, field, ".json_schema.schema", e);
}

int sv_read_response_format(struct sv_params *p, const struct sv_field *f, json_t *v,
                            struct sv_api_err *e)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    json_t *schema = json_object_get(v, "schema");

    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    if (type && strcmp(type, "text") == 0)
        return 0;
    if (type && strcmp(type, "json_schema") == 0)
        return read_json_schema(p, v, f->name, e);
    if (type && strcmp(type, "json_object") == 0)
        return schema && !json_is_null(schema) ? take_schema(p, schema, f->name, ".schema", e)
                                               : take(p, SV_CONSTRAINT_JSON, NULL, f->name, "", e);
    if (type && strcmp(type, "structural_tag") == 0)
        return sv_api_unsupported(e, f->name,
                                  "'response_format': structural tags are not supported; "
                                  "\"json_schema\" is, and tools with \"tool_choice\"");
    return sv_api_unsupported(e, f->name,
                              "'response_format.type' must be \"text\", \"json_object\" or "
                              "\"json_schema\"");
}

/* ---------------------------------------------------------------- the Responses API's object */

/* {"type": "json_schema", "name": ..., "schema": ...}: OpenAI's object without the inner one. */
static int read_text_format(struct sv_params *p, json_t *format, struct sv_api_err *e)
{
    const char *type = json_string_value(json_object_get(format, "type"));
    json_t *schema = json_object_get(format, "schema"), *name = json_object_get(format, "name");

    if (!json_is_object(format))
        return sv_wrong_type(e, "text.format", "an object", format);
    if (type && strcmp(type, "text") == 0)
        return 0;
    if (type && strcmp(type, "json_object") == 0)
        return take(p, SV_CONSTRAINT_JSON, NULL, "text.format", "", e);
    if (!type || strcmp(type, "json_schema") != 0)
        return sv_api_unsupported(e, "text.format.type",
                                  "'text.format.type' must be \"text\", \"json_object\" or "
                                  "\"json_schema\"");
    if (name && !json_is_null(name) && !json_is_string(name))
        return sv_api_bad(e, "text.format.name", "'text.format.name' must be a string");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return sv_api_bad(e, "text.format.schema", "'text.format.schema' is %s",
                          schema && !json_is_null(schema) ? "no JSON schema" : "missing");
    return take_schema(p, schema, "text.format.schema", "", e);
}

int sv_read_text_settings(struct sv_params *p, const struct sv_field *f, json_t *v,
                          struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    json_object_foreach(v, key, value) {
        if (json_is_null(value))
            continue;
        if (strcmp(key, "format") == 0) {
            if (read_text_format(p, value, e))
                return -1;
        } else if (strcmp(key, "verbosity") != 0) {
            if (sv_unknown_field(p->ignored, "text.", key, e))
                return -1;
        } else if (!json_is_string(value)) { /* of no effect, as in a chat */
            return sv_wrong_type(e, "text.verbosity", "a string", value);
        }
    }
    return 0;
}
