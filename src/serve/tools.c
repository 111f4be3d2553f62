/*
 * tools.c - what a chat asks for in tools and thoughts: its fields checked, and how the model
 * writes them.
 *
 * Called by params.c (fields), loop.c (what the model's template shows) and call.c. How answers are
 * taken apart is parts.c's. Must not: change what the model is shown.
 */
#include "serve/params.h"

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
                       "llama3_json, mistral, deepseek_v3",
                       o->tool_parser);
    if (o->reasoning_parser && strcmp(o->reasoning_parser, "auto") != 0 &&
        sv_think_format_named(o->reasoning_parser) < 0)
        return sv_fail(err, SV_EINVAL, -1,
                       "--reasoning-parser: '%s' is not one of auto, none, think, mistral, "
                       "seed_oss",
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
    s->as_reasoning = strcmp(field, "reasoning_content") != 0;
    s->as_reasoning_content = strcmp(field, "reasoning") != 0;
}

/* ---------------------------------------------------------------- fields */

/* {"type": "allowed_tools", "mode": "auto", "tools": [...]}; in a chat with one more object around
 * the last two. */
static int read_allowed(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    const json_t *inner = f->at ? v : json_object_get(v, "allowed_tools");
    const char *mode = json_string_value(json_object_get(inner, "mode"));
    json_t *tools = json_object_get(inner, "tools");

    if (mode && strcmp(mode, "required") == 0)
        p->tool_choice = SV_CHOICE_REQUIRED;
    else if (!mode || strcmp(mode, "auto") != 0)
        return sv_api_bad(e, f->name, "'%s.%smode' must be \"auto\" or \"required\"", f->name,
                          f->at ? "" : "allowed_tools.");
    if (!json_array_size(tools))
        return sv_api_bad(e, f->name, "'%s.%stools' must name a tool", f->name,
                          f->at ? "" : "allowed_tools.");
    p->allowed = tools;
    return 0;
}

/* at: a function's name stands beside its type, as in the Responses API. */
int sv_read_tool_choice(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    static const char *const names[] = {"auto", "none", "required"};
    static const enum sv_tool_choice choices[] = {SV_CHOICE_AUTO, SV_CHOICE_NONE,
                                                  SV_CHOICE_REQUIRED};
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
    p->tool_choice = SV_CHOICE_NAMED;
    p->tool_name = json_string_value(name);
    return 0;
}

/* OpenAI's older fields, unless they ask for nothing. */
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

/* llama-server's name for what becomes of thoughts. */
int sv_read_reasoning_format(struct sv_params *p, const struct sv_field *f, json_t *v,
                             struct sv_api_err *e)
{
    const char *s = json_string_value(v);

    if (s && strcmp(s, "none") == 0)
        p->separate_thoughts = false;
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

const json_t *sv_tool_named(const struct sv_params *p, const char *name)
{
    for (size_t i = 0; i < json_array_size(p->tools); i++) {
        const json_t *tool = json_array_get(p->tools, i);
        const json_t *called = json_object_get(json_object_get(tool, "function"), "name");
        if (strcmp(json_string_value(called), name) == 0)
            return tool;
    }
    return NULL;
}

/* The tools that an allowed_tools names, with their names here or there. */
static int find_callable(struct sv_params *p, struct sv_api_err *e)
{
    json_t *callable = json_array();

    if (!sv_params_own(p, callable))
        return sv_api_no_memory(e);
    for (size_t i = 0; i < json_array_size(p->allowed); i++) {
        const json_t *one = json_array_get(p->allowed, i),
                     *inner = json_object_get(one, "function");
        const char *name = json_string_value(json_object_get(inner ? inner : one, "name"));
        const json_t *tool = name ? sv_tool_named(p, name) : NULL;
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
    bool forced = p->tool_choice == SV_CHOICE_REQUIRED || p->tool_choice == SV_CHOICE_NAMED;
    if (forced && !json_array_size(p->tools))
        return sv_api_bad(e, "tool_choice",
                          "'tool_choice' asks for a call, and there are no "
                          "'tools'");
    if (p->tool_choice == SV_CHOICE_NAMED && !sv_tool_named(p, p->tool_name))
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

/* Grammars are of text: they do not see a thought that ends with a special token. */
enum sv_think_format sv_thought_before(const struct sv_serve *s)
{
    const char *close = sv_think_marker(s->think_format, 1);
    int32_t id;

    return close && is_special(s, close, &id) ? SV_THINK_NONE : s->think_format;
}

static bool any_strict(const json_t *tools)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_is_true(
                json_object_get(json_object_get(json_array_get(tools, i), "function"), "strict")))
            return true;
    return false;
}

/* The answer must call, or what it calls must fit, or it has another form or calls. A way of
 * calling that a grammar cannot ask for is left for objects alone; where the choice is among some
 * of the tools and no grammar sees to it, the model is shown no others. */
static int take_form(const struct sv_serve *s, struct sv_params *p, struct sv_api_err *e)
{
    bool forced = p->tool_choice == SV_CHOICE_REQUIRED || p->tool_choice == SV_CHOICE_NAMED;
    json_t *callable = p->callable ? p->callable : p->tools;
    bool named = p->tool_choice == SV_CHOICE_NAMED, strict = p->callable || any_strict(p->tools);
    int32_t id;
    bool tags = (s->tool_format == SV_TOOL_HERMES || s->tool_format == SV_TOOL_XML) &&
                !is_special(s, "<tool_call>", &id) && !is_special(s, "</tool_call>", &id);

    if (forced && p->form.kind)
        return sv_api_bad(e, "tool_choice",
                          "'tool_choice' asks for a call, and '%s' for another form of answer",
                          p->form.name);
    if (p->form.kind && (tags || s->tool_format == SV_TOOL_LLAMA)) {
        p->form.beside = callable;
        p->form.tools = (struct sv_tool_form){tags, p->parallel, false};
    }
    if (p->form.kind || (!forced && !(strict && tags && s->tool_format == SV_TOOL_HERMES))) {
        p->tools = p->form.kind ? p->tools : callable;
        return 0;
    }
    p->form.kind = SV_FORM_TOOLS;
    p->form.value = named ? (json_t *)(uintptr_t)sv_tool_named(p, p->tool_name) : callable;
    p->form.field = "tools";
    snprintf(p->form.name, sizeof p->form.name, "tools");
    p->form.tools = (struct sv_tool_form){tags, !named && p->parallel, !forced};
    p->tool_format = tags ? s->tool_format : SV_TOOL_LLAMA;
    return 0;
}

/* Special tokens that the answer is taken apart by. */
static void show(const struct sv_serve *s, struct sv_params *p, const char *marker)
{
    int32_t id;

    if (is_special(s, marker, &id) && p->r.n_shown_ids < SV_API_SHOWN)
        p->shown_ids[p->r.n_shown_ids++] = id;
}

int sv_tools_begin(const struct sv_serve *s, struct sv_params *p, enum sv_dialect_kind kind,
                   struct sv_api_err *e)
{
    bool tools = json_array_size(p->tools) && p->tool_choice != SV_CHOICE_NONE;
    const char *marker;

    if (!sv_is_chat(kind))
        return 0;
    if (tools && p->tool_choice == SV_CHOICE_AUTO && s->tool_format == SV_TOOL_NONE)
        return sv_api_unsupported(
            e, "tools",
            "'tools': the chat template shows no way of calling tools that is known here; "
            "--tool-parser names one, and \"tool_choice\": \"required\" needs none");
    p->tool_format = tools ? s->tool_format : SV_TOOL_NONE;
    p->think_format = p->separate_thoughts ? s->think_format : SV_THINK_NONE;
    if (tools && take_form(s, p, e))
        return -1;
    for (size_t i = 0; (marker = sv_tool_marker(p->tool_format, i)); i++)
        show(s, p, marker);
    for (size_t i = 0; (marker = sv_think_marker(p->think_format, i)); i++)
        show(s, p, marker);
    p->r.shown_ids = p->shown_ids;
    return 0;
}
