/*
 * responses_read.c - bodies of /v1/responses: fields that have another shape than a chat's are
 * turned into a chat's.
 *
 * Called through sv_dialect_responses, on the thread that reads the body. Each error names the
 * place. Must not: change the server, except for the store, which has a lock.
 */
#include "serve/core/write.h"
#include "serve/openai/responses.h"

#include <openssl/rand.h>
#include <string.h>

#define PLACE 96

static int unsupported(struct sv_api_err *e, const char *place, const char *why)
{
    sv_api_bad(e, place, "'%s': %s", place, why);
    e->code = "unsupported_parameter";
    return -1;
}

/* ---------------------------------------------------------------- fields */

#define P(x) offsetof(struct sv_params, x)

static int read_input(struct sv_params *p, const struct sv_field *f, json_t *v,
                      struct sv_api_err *e)
{
    if (!json_is_string(v) && !json_is_array(v))
        return sv_wrong_type(e, f->name, "a string or an array of items", v);
    p->input = v;
    return 0;
}

static int read_background(struct sv_params *p, const struct sv_field *f, json_t *v,
                           struct sv_api_err *e)
{
    (void)p;
    if (!json_is_boolean(v))
        return sv_wrong_type(e, f->name, "a boolean", v);
    return json_is_true(v)
               ? unsupported(e, f->name, "an answer is made while its client waits, not behind it")
               : 0;
}

static int read_truncation(struct sv_params *p, const struct sv_field *f, json_t *v,
                           struct sv_api_err *e)
{
    (void)p;
    if (json_is_string(v) && strcmp(json_string_value(v), "disabled") == 0)
        return 0;
    return unsupported(e, f->name,
                       "nothing of a conversation is dropped here; only \"disabled\" is "
                       "supported");
}

static int read_include(struct sv_params *p, const struct sv_field *f, json_t *v,
                        struct sv_api_err *e)
{
    static const char *const known[] = {"message.output_text.logprobs",
                                        "reasoning.encrypted_content",
                                        "message.input_image.image_url",
                                        "code_interpreter_call.outputs",
                                        "computer_call_output.output.image_url",
                                        "file_search_call.results",
                                        "web_search_call.results",
                                        "web_search_call.action.sources",
                                        NULL};

    if (!json_is_array(v))
        return sv_wrong_type(e, f->name, "an array of strings", v);
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        char place[PLACE];
        snprintf(place, sizeof place, "%s[%zu]", f->name, i);
        if (!sv_is_one_of(name, known))
            return sv_api_bad(e, place, "'%s' is nothing that an answer could include", place);
        p->logprobs = p->logprobs || strcmp(name, known[0]) == 0;
    }
    return 0;
}

static int read_echoed(struct sv_params *p, const struct sv_field *f, json_t *v,
                       struct sv_api_err *e)
{
    (void)p;
    return json_is_string(v) ? 0 : sv_wrong_type(e, f->name, "a string", v);
}

/* A limit for tools that the server runs; there are none. */
static int read_max_tool_calls(struct sv_params *p, const struct sv_field *f, json_t *v,
                               struct sv_api_err *e)
{
    (void)p;
    if (!json_is_integer(v))
        return sv_wrong_type(e, f->name, "an integer", v);
    return json_integer_value(v) > 0 ? 0
                                     : sv_api_bad(e, f->name, "'%s' must be at least 1", f->name);
}

static int read_metadata(struct sv_params *p, const struct sv_field *f, json_t *v,
                         struct sv_api_err *e)
{
    const char *key;
    json_t *value;

    (void)p;
    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    json_object_foreach(v, key, value) {
        char place[PLACE];
        snprintf(place, sizeof place, "%s.%.64s", f->name, key);
        if (!json_is_string(value))
            return sv_wrong_type(e, place, "a string", value);
    }
    return 0;
}

static int read_reasoning(struct sv_params *p, const struct sv_field *f, json_t *v,
                          struct sv_api_err *e)
{
    static const char *const known[] = {"effort", "summary", "generate_summary", NULL};
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return sv_wrong_type(e, f->name, "an object", v);
    json_object_foreach(v, key, value) {
        char place[PLACE];
        snprintf(place, sizeof place, "%s.%.64s", f->name, key);
        if (!sv_is_one_of(key, known)) {
            if (sv_unknown_field(p->ignored, "reasoning.", key, e))
                return -1;
            continue;
        }
        if (!sv_json_is_none(value) && !sv_json_is_text(value))
            return sv_wrong_type(e, place, "a string", value);
        if (strcmp(key, "effort") == 0 && !sv_json_is_none(value))
            p->reasoning_effort = json_string_value(value);
    }
    return 0;
}

/* Adds a function in a chat's shape. at: its place. */
static int add_function(json_t *tools, const json_t *tool, const char *at, struct sv_api_err *e)
{
    static const struct {
        const char *name, *what;
        json_type type;
    } members[] = {{"name", "a name", JSON_STRING},
                   {"description", "a string", JSON_STRING},
                   {"parameters", "an object, a JSON schema", JSON_OBJECT},
                   {"strict", "a boolean", JSON_TRUE}};
    json_t *function = json_object(), *made = NULL;
    bool fine = function;
    char place[PLACE];

    for (size_t k = 0; k < sizeof members / sizeof members[0]; k++) {
        json_t *v = json_object_get(tool, members[k].name);
        bool fits = v && (members[k].type == json_typeof(v) || (k == 3 && json_is_false(v)));
        snprintf(place, sizeof place, "%.40s.%s", at, members[k].name);
        if (k ? !fits && !sv_json_is_none(v) : !sv_json_is_text(v) || !json_string_length(v)) {
            json_decref(function);
            return sv_api_bad(e, place, "'%s' must be %s", place, members[k].what);
        }
        fine = fine && (!fits || !json_object_set(function, members[k].name, v));
    }
    if (fine)
        made = json_pack("{s:s,s:O}", "type", "function", "function", function);
    json_decref(function);
    return made && !json_array_append_new(tools, made) ? 0 : sv_api_no_memory(e);
}

static int add_tool(json_t *tools, const json_t *tool, const char *at, bool inner,
                    struct sv_api_err *e);

/* Adds the functions of a namespace; their names are assumed to be unique. */
static int add_namespace(json_t *tools, const json_t *tool, const char *at, struct sv_api_err *e)
{
    const json_t *name = json_object_get(tool, "name"), *list = json_object_get(tool, "tools");
    char place[PLACE];

    if (!sv_json_is_text(name) || !json_string_length(name)) {
        snprintf(place, sizeof place, "%.60s.name", at);
        return sv_api_bad(e, place, "'%s' must be a name", place);
    }
    if (!json_is_array(list)) {
        snprintf(place, sizeof place, "%.60s.tools", at);
        return sv_api_bad(e, place, "'%s' must be an array", place);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        snprintf(place, sizeof place, "%.40s.tools[%zu]", at, i);
        if (add_tool(tools, json_array_get(list, i), place, true, e))
            return -1;
    }
    return 0;
}

static int add_tool(json_t *tools, const json_t *tool, const char *at, bool inner,
                    struct sv_api_err *e)
{
    const char *type = json_string_value(json_object_get(tool, "type"));
    char place[PLACE], why[160];

    if (!json_is_object(tool))
        return sv_wrong_type(e, at, "an object", tool);
    if (type && strcmp(type, "function") == 0)
        return add_function(tools, tool, at, e);
    if (type && strcmp(type, "namespace") == 0 && !inner)
        return add_namespace(tools, tool, at, e);
    snprintf(place, sizeof place, "%.60s.type", at);
    snprintf(why, sizeof why,
             "\"%.40s\" is no tool that this server runs; only those of the type \"function\" are "
             "supported",
             type ? type : "");
    return unsupported(e, place, why);
}

static int read_tools(struct sv_params *p, const struct sv_field *f, json_t *v,
                      struct sv_api_err *e)
{
    if (!json_is_array(v))
        return sv_wrong_type(e, f->name, "an array", v);
    json_t *tools = json_array();
    if (!sv_params_own(p, tools))
        return sv_api_no_memory(e);
    p->tools = tools;
    for (size_t i = 0; i < json_array_size(v); i++) {
        char place[32];
        snprintf(place, sizeof place, "tools[%zu]", i);
        if (add_tool(tools, json_array_get(v, i), place, false, e))
            return -1;
    }
    return 0;
}

const struct sv_field sv_responses_fields[] = {
    {"input", 0, read_input, 0, 0, 0, 0},
    {"instructions", 0, sv_read_str, P(instructions), 0, 0, 0},
    {"previous_response_id", 0, sv_read_str, P(previous_id), 0, 0, 0},
    {"store", 0, sv_read_bool, P(store), 0, 0, 0},
    {"max_output_tokens", 0, sv_read_length, 1, -9.3e18, 9.3e18, P(has_max_tokens)},
    {"text", 0, sv_read_text_settings, 0, 0, 0, 0},
    {"reasoning", 0, read_reasoning, 0, 0, 0, 0},
    {"tools", 0, read_tools, 0, 0, 0, 0},
    {"tool_choice", 0, sv_read_tool_choice, 1, 0, 0, 0},
    {"include", 0, read_include, 0, 0, 0, 0},
    {"metadata", 0, read_metadata, 0, 0, 0, 0},
    {"truncation", 0, read_truncation, 0, 0, 0, 0},
    {"background", 0, read_background, 0, 0, 0, 0},
    {"max_tool_calls", 0, read_max_tool_calls, 0, 0, 0, 0},
    {"user", 0, read_echoed, 0, 0, 0, 0},
    {"service_tier", 0, read_echoed, 0, 0, 0, 0},
    {"safety_identifier", 0, read_echoed, 0, 0, 0, 0},
    {"prompt_cache_key", 0, read_echoed, 0, 0, 0, 0},
    {.name = NULL},
};

const char *sv_responses_namespace(const json_t *body, const char *name, size_t n)
{
    const json_t *tools = json_object_get(body, "tools"), *tool, *inner;
    size_t i, k;

    json_array_foreach((json_t *)(uintptr_t)tools, i, tool) {
        json_array_foreach(json_object_get(tool, "tools"), k, inner) {
            const json_t *own = json_object_get(inner, "name");
            if (json_string_length(own) == n && memcmp(json_string_value(own), name, n) == 0)
                return json_string_value(json_object_get(tool, "name"));
        }
    }
    return NULL;
}

/* ---------------------------------------------------------------- a call's own */

/* The members that a response repeats from its request. Those with defaults are written by
 * responses.c. */
static void write_echo(struct sv_buf *b, const struct sv_params *p, const json_t *body, bool stored)
{
    static const struct {
        const char *name, *otherwise;
    } members[] = {{"instructions", "null"},
                   {"max_tool_calls", "null"},
                   {"metadata", "{}"},
                   {"previous_response_id", "null"},
                   {"prompt_cache_key", "null"},
                   {"safety_identifier", "null"},
                   {"service_tier", "\"default\""},
                   {"tool_choice", "\"auto\""},
                   {"tools", "[]"},
                   {"user", "null"}};
    const json_t *text = json_object_get(body, "text"), *format = json_object_get(text, "format");
    const json_t *reasoning = json_object_get(body, "reasoning"),
                 *verbosity = json_object_get(text, "verbosity"),
                 *summary = json_object_get(reasoning, "summary");

    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const json_t *v = json_object_get(body, members[i].name);
        sv_buf_printf(b, ",\"%s\":", members[i].name);
        if (sv_json_is_none(v))
            sv_buf_append(b, members[i].otherwise, strlen(members[i].otherwise));
        else
            sv_json_tree(b, v);
    }
    sv_buf_lit(b, ",\"reasoning\":{\"effort\":");
    if (p->reasoning_effort)
        sv_json_quote(b, p->reasoning_effort, strlen(p->reasoning_effort));
    else
        sv_buf_lit(b, "null");
    sv_buf_lit(b, ",\"summary\":");
    if (sv_json_is_none(summary))
        sv_buf_lit(b, "null");
    else
        sv_json_tree(b, summary);
    sv_buf_lit(b, "},\"text\":{\"format\":");
    if (sv_json_is_none(format))
        sv_buf_lit(b, "{\"type\":\"text\"}");
    else
        sv_json_tree(b, format);
    sv_buf_lit(b, ",\"verbosity\":");
    if (sv_json_is_none(verbosity))
        sv_buf_lit(b, "\"medium\"");
    else
        sv_json_tree(b, verbosity);
    sv_buf_printf(b, "},\"truncation\":\"disabled\",\"background\":false,\"store\":%s",
                  stored ? "true" : "false");
    sv_buf_printf(b, ",\"parallel_tool_calls\":%s,\"top_logprobs\":%d",
                  p->parallel ? "true" : "false", p->n_top);
}

/* Random and hard to guess: id and API key are all that is needed to read the answer. */
static int name_response(struct sv_call *c, struct sv_api_err *e)
{
    unsigned char random[16];

    if (RAND_bytes(random, sizeof random) != 1)
        return sv_api_fail(e, 500, NULL, "no random numbers");
    snprintf(c->id, sizeof c->id, "resp_");
    for (size_t i = 0; i < sizeof random; i++)
        snprintf(c->id + SV_RESPONSE_NAME_AT + 2 * i, 3, "%02x", random[i]);
    return 0;
}

int sv_responses_read(struct sv_call *c, struct sv_api_err *e)
{
    struct sv_response *r = sv_calloc(1, sizeof *r);
    struct sv_params *p = &c->p;
    struct sv_stored *st = c->s->stored;

    c->own = r;
    if (!r)
        return sv_api_no_memory(e);
    if (name_response(c, e))
        return -1;
    if (p->previous_id) {
        r->previous = sv_stored_get(st, c->key, p->previous_id);
        if (!r->previous) {
            sv_api_fail(e, 404, "previous_response_not_found",
                        "there is no response '%.64s' to go on from", p->previous_id);
            snprintf(e->param, sizeof e->param, "previous_response_id");
            return -1;
        }
    }
    p->store = p->store && st;
    write_echo(&r->echo, p, c->body, p->store);
    if (r->echo.failed)
        return sv_api_no_memory(e);
    if (sv_responses_messages(c->s, c->key, p, r->previous, c->id + SV_RESPONSE_NAME_AT,
                              p->store ? &r->input : NULL, e))
        return -1;
    sv_stored_fit(&r->input);
    return 0;
}

void sv_responses_free(struct sv_call *c)
{
    struct sv_response *r = c->own;

    if (!r)
        return;
    sv_stored_let_go(c->s->stored, r->previous);
    sv_buf_fini(&r->input);
    sv_buf_fini(&r->echo);
    sv_buf_fini(&r->lp_sent);
    sv_free(r);
}

static bool has(const char *body, size_t n, const char *what)
{
    size_t k = strlen(what);

    for (const char *at = body, *end = body + n; at < end;) {
        at = memchr(at, *what, (size_t)(end - at));
        if (!at || (size_t)(end - at) < k)
            return false;
        if (memcmp(at, what, k) == 0)
            return true;
        at++;
    }
    return false;
}

/* Looks for a previous response or item ids; escapes of letters count, as they could hide them. */
bool sv_responses_is_long(const char *body, size_t n)
{
    static const char *const signs[] = {"previous_response_id", "\"id\"", "\\u005", "\\u006",
                                        "\\u007"};

    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (has(body, n, signs[i]))
            return true;
    return false;
}
