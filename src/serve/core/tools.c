/*
 * tools.c - tool calling and reasoning in a chat: its fields are checked, and the model's formats
 * are chosen.
 *
 * Called by params.c (fields), serve.c (the chat template) and call.c. deltas.c parses answers.
 * Must not: change what the model is shown.
 */
#include "serve/core/fields.h"
#include "serve/core/server.h"
#include "serve/core/tools.h"
#include "token/token.h"

#include <string.h>

/* ---------------------------------------------------------------- options */

int sv_tools_check_options(const struct sv_serve_options *o, struct sv_err *err)
{
    static const char *const fields[] = {"reasoning_content", "reasoning", "both"};
    bool known = !o->reasoning_field;

    for (int i = 0; i < 3 && !known; i++)
        known = strcmp(o->reasoning_field, fields[i]) == 0;
    if (!known)
        return sv_fail(err, SV_EINVAL, -1,
                       "--reasoning-field: '%s' is not one of reasoning_content, reasoning, both",
                       o->reasoning_field);
    if (o->tool_parser && strcmp(o->tool_parser, "auto") != 0 &&
        sv_tool_format_named(o->tool_parser) < 0)
        return sv_fail(err, SV_EINVAL, -1,
                       "--tool-parser: '%s' is not one of auto, none, hermes, qwen3_coder, "
                       "llama3_json, mistral, deepseek_v3, harmony",
                       o->tool_parser);
    if (o->reasoning_parser && strcmp(o->reasoning_parser, "auto") != 0 &&
        sv_think_format_named(o->reasoning_parser) < 0)
        return sv_fail(err, SV_EINVAL, -1,
                       "--reasoning-parser: '%s' is not one of auto, none, think, mistral, "
                       "seed_oss, harmony",
                       o->reasoning_parser);
    return SV_OK;
}

void sv_tools_open(struct sv_serve *s)
{
    const struct sv_chat_template *t = s->chat ? s->chat : s->model->chat;
    const char *text = t ? sv_chat_template_source(t) : "";
    const char *tool = s->o.tool_parser, *think = s->o.reasoning_parser;
    const char *field = s->o.reasoning_field ? s->o.reasoning_field : "reasoning_content";

    s->tool_format = tool && strcmp(tool, "auto") != 0
                         ? (enum sv_tool_format)sv_tool_format_named(tool)
                         : sv_tool_format_of(text);
    s->think_format = think && strcmp(think, "auto") != 0
                          ? (enum sv_think_format)sv_think_format_named(think)
                          : sv_think_format_of(text);
    s->harmony = sv_tool_format_of(text) == SV_TOOL_HARMONY;
    s->as_reasoning = strcmp(field, "reasoning_content") != 0;
    s->as_reasoning_content = strcmp(field, "reasoning") != 0;
}

/* ---------------------------------------------------------------- fields */

/* {"type": "allowed_tools", "mode": "auto", "tools": [...]}; a chat has one more object around the
 * last two. */
static int read_allowed(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    const json_t *inner = f->at ? v : json_object_get(v, "allowed_tools");
    const char *mode = json_string_value(json_object_get(inner, "mode"));
    json_t *tools = json_object_get(inner, "tools");

    if (mode && strcmp(mode, "required") == 0)
        p->tool_choice = SV_TOOL_CHOICE_REQUIRED;
    else if (!mode || strcmp(mode, "auto") != 0)
        return sv_api_bad(e, f->name, "'%s.%smode' must be \"auto\" or \"required\"", f->name,
                          f->at ? "" : "allowed_tools.");
    if (!json_array_size(tools))
        return sv_api_bad(e, f->name, "'%s.%stools' must name a tool", f->name,
                          f->at ? "" : "allowed_tools.");
    p->allowed = tools;
    return 0;
}

/* at: nonzero for the Responses API, where a function's name is beside its type. */
int sv_read_tool_choice(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    static const char *const names[] = {"auto", "none", "required"};
    static const enum sv_tool_choice choices[] = {SV_TOOL_CHOICE_AUTO, SV_TOOL_CHOICE_NONE,
                                                  SV_TOOL_CHOICE_REQUIRED};
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *name = json_object_get(f->at ? v : json_object_get(v, "function"), "name");

    for (int i = 0; json_is_string(v) && i < 3; i++)
        if (strcmp(json_string_value(v), names[i]) == 0) {
            p->tool_choice = choices[i];
            return 0;
        }
    if (json_is_object(v) && type && strcmp(type, "allowed_tools") == 0)
        return read_allowed(p, f, v, e);
    if (!json_is_object(v) || (type && strcmp(type, "function") != 0) || !json_is_string(name))
        return sv_api_bad(e, f->name,
                          "'%s' must be \"none\", \"auto\", \"required\", a choice of "
                          "\"allowed_tools\" or {\"type\": \"function\", %s",
                          f->name, f->at ? "\"name\": ...}" : "\"function\": {\"name\": ...}}");
    p->tool_choice = SV_TOOL_CHOICE_NAMED;
    p->tool_name = json_string_value(name);
    return 0;
}

/* OpenAI's older fields: refused unless they have no effect. */
int sv_read_functions(struct sv_params *p, const struct sv_field *f, json_t *v,
                      struct sv_api_err *e)
{
    const char *s = json_string_value(v);

    (void)p;
    if ((json_is_array(v) && !json_array_size(v)) ||
        (s && (strcmp(s, "none") == 0 || strcmp(s, "auto") == 0)))
        return 0;
    return sv_api_unsupported(e, f->name,
                              "'%s': OpenAI has 'tools' and 'tool_choice' in place of functions, "
                              "and so has this server",
                              f->name);
}

/* llama-server's setting for reasoning. */
int sv_read_reasoning_format(struct sv_params *p, const struct sv_field *f, json_t *v,
                             struct sv_api_err *e)
{
    const char *s = json_string_value(v);

    if (s && strcmp(s, "none") == 0)
        p->separate_reasoning = false;
    else if (!s || (strcmp(s, "auto") != 0 && strcmp(s, "deepseek") != 0))
        return sv_api_unsupported(
            e, f->name, "'%s': only \"none\", \"auto\" and \"deepseek\" are supported", f->name);
    return 0;
}

bool sv_tool_name_fits(const json_t *name)
{
    return json_string_length(name) && json_string_length(name) <= SV_MAX_TOOL_NAME &&
           sv_json_is_text(name);
}

static int check_tool(const json_t *tool, size_t i, struct sv_api_err *e)
{
    char name[48];
    const json_t *type = json_object_get(tool, "type"), *f = json_object_get(tool, "function");
    const json_t *called = json_object_get(f, "name"), *schema = json_object_get(f, "parameters");
    const json_t *strict = json_object_get(f, "strict"), *said = json_object_get(f, "description");

    snprintf(name, sizeof name, "tools[%zu]", i);
    if (!json_is_object(tool))
        return sv_api_bad(e, "tools", "'%s' must be an object", name);
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return sv_api_unsupported(e, "tools", "'%s.type': only \"function\" is supported", name);
    if (!json_is_object(f))
        return sv_api_bad(e, "tools", "'%s.function' must be an object", name);
    if (!sv_tool_name_fits(called))
        return sv_api_bad(e, "tools", "'%s.function.name' must be a string of 1 to %d bytes", name,
                          SV_MAX_TOOL_NAME);
    if (said && !json_is_string(said) && !json_is_null(said))
        return sv_api_bad(e, "tools", "'%s.function.description' must be a string", name);
    if (schema && !json_is_object(schema) && !json_is_null(schema))
        return sv_api_bad(e, "tools", "'%s.function.parameters' must be an object, a JSON schema",
                          name);
    if (strict && !json_is_boolean(strict) && !json_is_null(strict))
        return sv_api_bad(e, "tools", "'%s.function.strict' must be a boolean", name);
    return 0;
}

static const json_t *tool_named(const struct sv_params *p, const char *name)
{
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        const json_t *tool = json_array_get(p->tools, i);
        const json_t *called = json_object_get(json_object_get(tool, "function"), "name");
        if (strcmp(json_string_value(called), name) == 0)
            return tool;
    }
    return NULL;
}

/* The tools that allowed_tools names; a name is in the object or in its "function". */
static int find_callable(struct sv_params *p, struct sv_api_err *e)
{
    json_t *callable = json_array();

    if (!sv_params_own(p, callable))
        return sv_api_no_memory(e);
    for (size_t i = 0; i < json_array_size(p->allowed); i++) {
        const json_t *one = json_array_get(p->allowed, i),
                     *inner = json_object_get(one, "function");
        const char *name = json_string_value(json_object_get(inner ? inner : one, "name"));
        const json_t *tool = name ? tool_named(p, name) : NULL;
        if (!name)
            return sv_api_bad(e, "tool_choice",
                              "'tool_choice': tool %zu of those allowed has no name", i);
        if (!tool)
            return sv_api_bad(e, "tool_choice", "'tool_choice': no tool is called '%.100s'", name);
        if (json_array_append(callable, (json_t *)(uintptr_t)tool))
            return sv_api_no_memory(e);
    }
    p->callable = callable;
    return 0;
}

int sv_tools_check(struct sv_params *p, struct sv_api_err *e)
{
    for (size_t i = 0; i < json_array_size(p->tools); i++)
        if (check_tool(json_array_get(p->tools, i), i, e))
            return -1;
    bool forced =
        p->tool_choice == SV_TOOL_CHOICE_REQUIRED || p->tool_choice == SV_TOOL_CHOICE_NAMED;
    if (forced && !json_array_size(p->tools))
        return sv_api_bad(e, "tool_choice",
                          "'tool_choice' asks for a call, and there are no "
                          "'tools'");
    if (p->tool_choice == SV_TOOL_CHOICE_NAMED && !tool_named(p, p->tool_name))
        return sv_api_bad(e, "tool_choice", "'tool_choice': no tool is called '%.100s'",
                          p->tool_name);
    return p->allowed ? find_callable(p, e) : 0;
}

/* ---------------------------------------------------------------- a call's own */

static bool is_special(const struct sv_serve *s, const char *marker, int32_t *id)
{
    *id = sv_tokenizer_find(s->model->tok, marker);
    return *id >= 0 && sv_tokenizer_is_special(s->model->tok, *id);
}

/* A grammar sees text only, not reasoning that ends with a special token, and no headers of
 * messages. */
enum sv_think_format sv_reasoning_before_grammar(const struct sv_serve *s)
{
    const char *close = sv_think_marker(s->think_format, 1);
    int32_t id;

    if (s->think_format == SV_THINK_HARMONY || (close && is_special(s, close, &id)))
        return SV_THINK_NONE;
    return s->think_format;
}

static bool any_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(
                json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

/* Decides the constraint: calls that are required, calls that must fit their schemas, or the
 * request's own constraint with calls as an alternative. Where a format of calls cannot be
 * expressed by a grammar, calls are bare objects. If the choice is among some tools and no grammar
 * enforces it, the model is shown only these. */
static int take_constraint(const struct sv_serve *s, struct sv_params *p, struct sv_api_err *e)
{
    bool forced =
        p->tool_choice == SV_TOOL_CHOICE_REQUIRED || p->tool_choice == SV_TOOL_CHOICE_NAMED;
    json_t *callable = p->callable ? p->callable : p->tools;
    bool named = p->tool_choice == SV_TOOL_CHOICE_NAMED,
         strict = p->callable || any_strict(p->tools);
    int32_t id;
    bool tags = (s->tool_format == SV_TOOL_HERMES || s->tool_format == SV_TOOL_XML) &&
                !is_special(s, "<tool_call>", &id) && !is_special(s, "</tool_call>", &id);

    if (forced && p->constraint.kind)
        return sv_api_bad(e, "tool_choice",
                          "'tool_choice' asks for a call, and '%s' for another form of answer",
                          p->constraint.name);
    if (p->constraint.kind && (tags || s->tool_format == SV_TOOL_LLAMA)) {
        p->constraint.beside = callable;
        p->constraint.tools = (struct sv_tool_constraint){.tags = tags, .many = p->parallel};
    }
    if (p->constraint.kind || (!forced && !(strict && tags && s->tool_format == SV_TOOL_HERMES))) {
        p->tools = p->constraint.kind ? p->tools : callable;
        return 0;
    }
    p->constraint.kind = SV_CONSTRAINT_TOOLS;
    p->constraint.value = named ? (json_t *)(uintptr_t)tool_named(p, p->tool_name) : callable;
    p->constraint.field = "tools";
    snprintf(p->constraint.name, sizeof p->constraint.name, "tools");
    p->constraint.tools =
        (struct sv_tool_constraint){.tags = tags, .many = !named && p->parallel, .free = !forced};
    p->tool_format = tags ? s->tool_format : SV_TOOL_LLAMA;
    return 0;
}

/* A constrained answer has no headers of harmony: all of its text is what the grammar allows. */
static void drop_harmony(struct sv_params *p)
{
    if (p->tool_format == SV_TOOL_HARMONY)
        p->tool_format = SV_TOOL_NONE;
    if (p->think_format == SV_THINK_HARMONY)
        p->think_format = SV_THINK_NONE;
}

/* The one tool that must be called, if a header of harmony can name it. */
static const char *only_tool(const struct sv_constraint *f)
{
    const json_t *tool = json_is_object(f->value)         ? f->value
                         : json_array_size(f->value) == 1 ? json_array_get(f->value, 0)
                                                          : NULL;
    const json_t *name = json_object_get(json_object_get(tool, "function"), "name");
    size_t n = json_string_length(name);

    return n && sv_harmony_n_name(json_string_value(name), n) == n ? json_string_value(name) : NULL;
}

/* No grammar can ask for the header, so the prompt ends with it: of a call, of one of several calls
 * or of a final answer. */
static int take_header(struct sv_params *p, struct sv_api_err *e)
{
    struct sv_constraint *f = &p->constraint;
    bool forced = f->kind == SV_CONSTRAINT_TOOLS && !f->tools.free;
    const char *name = forced ? only_tool(f) : NULL;

    if (!p->add_generation_prompt || p->continue_final)
        return 0;
    if (name) {
        f->tools.arguments = true;
        p->tool_format = SV_TOOL_HARMONY;
    }
    json_t *text = name
                       ? json_sprintf(" to=functions.%s<|channel|>commentary json<|message|>", name)
                       : json_string(forced ? "<|channel|>commentary json<|message|>"
                                            : "<|channel|>final<|message|>");
    if (!sv_params_own(p, text))
        return sv_api_no_memory(e);
    p->header = json_string_value(text);
    return 0;
}

/* Shows a special token in the text, because the parser needs it. */
static void show(const struct sv_serve *s, struct sv_params *p, const char *marker)
{
    int32_t id;

    if (!is_special(s, marker, &id) || p->r.n_shown_ids == SV_MAX_SHOWN_IDS)
        return;
    for (int32_t i = 0; i < p->r.n_shown_ids; i++)
        if (p->shown_ids[i] == id)
            return;
    p->shown_ids[p->r.n_shown_ids++] = id;
}

int sv_tools_begin(const struct sv_serve *s, struct sv_params *p, enum sv_dialect_kind kind,
                   struct sv_api_err *e)
{
    bool tools = json_array_size(p->tools) && p->tool_choice != SV_TOOL_CHOICE_NONE;
    const char *marker;

    if (!sv_is_chat(kind))
        return 0;
    if (tools && p->tool_choice == SV_TOOL_CHOICE_AUTO && s->tool_format == SV_TOOL_NONE)
        return sv_api_unsupported(
            e, "tools",
            "'tools': the chat template shows no way of calling tools that is known here; "
            "--tool-parser names one, and \"tool_choice\": \"required\" needs none");
    p->tool_format = tools ? s->tool_format : SV_TOOL_NONE;
    p->think_format = p->separate_reasoning || s->think_format == SV_THINK_HARMONY ? s->think_format
                                                                                   : SV_THINK_NONE;
    if (tools && take_constraint(s, p, e))
        return -1;
    if (p->constraint.kind)
        drop_harmony(p);
    if (p->constraint.kind && s->harmony && take_header(p, e))
        return -1;
    for (size_t i = 0; (marker = sv_tool_marker(p->tool_format, i)); i++)
        show(s, p, marker);
    for (size_t i = 0; (marker = sv_think_marker(p->think_format, i)); i++)
        show(s, p, marker);
    p->r.shown_ids = p->shown_ids;
    return 0;
}
