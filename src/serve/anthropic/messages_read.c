/*
 * messages_read.c - bodies of /v1/messages, Anthropic's API, turned into the fields of a chat:
 * messages, function tools, tool choice, arguments of the template. And /v1/messages/count_tokens.
 *
 * Called through sv_dialect_messages once the table has seen every field, on the thread that reads
 * the body. What is made here belongs to the parameters. Members of messages, blocks and tools that
 * do not concern a model (cache_control, citations, ...) are ignored; unknown settings are refused.
 * Must not: accept a block that the model would not see.
 */
#include "serve/anthropic/anthropic.h"
#include "serve/core/body.h"
#include "serve/core/fields.h"
#include "serve/core/images.h"
#include "serve/core/tools.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#define PLACE 128 /* bytes of a place: "messages[3].content[0].content[1]" */

/* The conversation so far, and the turn that is being assembled: it lasts until the role
 * changes. */
struct reader {
    struct sv_api_err *e;
    struct sv_params *p;
    json_t *out;
    const char *role; /* of the turn; NULL: none has begun */
    bool any;         /* it has content, if only an empty text */
    struct sv_content content;
    struct sv_buf reasoning;
    json_t *calls;
    struct sv_buf system;
};

static int ill(struct sv_api_err *e, const char *place, const char *member, const char *want)
{
    const int n_field = (int)strcspn(place, "[.");
    char field[PLACE];

    snprintf(field, sizeof field, "%.*s", n_field, place);
    return sv_api_bad(e, field, "'%s%s' must be %s", place, member, want);
}

/* names: each ended by a NUL, the list by one more. */
static bool is_among(const char *name, const char *names)
{
    for (; *names; names += strlen(names) + 1)
        if (strcmp(name, names) == 0)
            return true;
    return false;
}

/* Refuses or ignores members other than these. */
static int check_members(const struct sv_params *p, json_t *object, const char *place,
                         const char *names, struct sv_api_err *e)
{
    char prefix[PLACE];
    const char *key;
    json_t *v;

    snprintf(prefix, sizeof prefix, "%.100s.", place);
    json_object_foreach(object, key, v) {
        if (!is_among(key, names) && sv_unknown_field(p->ignored, prefix, key, e))
            return -1;
    }
    return 0;
}

static json_t *present(const json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

/* ---------------------------------------------------------------- turns */

static void add_line(struct sv_buf *b, const char *text, size_t n)
{
    if (b->len && n)
        sv_buf_lit(b, "\n");
    sv_buf_append(b, text, n);
}

static json_t *text_of(const struct sv_buf *b)
{
    return b->failed ? NULL : json_stringn(b->data ? b->data : "", b->len);
}

/* Takes m; NULL: memory ran out. */
static int push(struct reader *r, json_t *m)
{
    return json_array_append_new(r->out, m) ? sv_api_no_memory(r->e) : 0;
}

/* Whether memory ran out for a text, which then looks like an absent one. */
static bool lost(const struct reader *r)
{
    return r->system.failed || r->content.text.failed || r->reasoning.failed;
}

static int end_turn(struct reader *r)
{
    if (lost(r))
        return sv_api_no_memory(r->e);
    json_t *m =
        r->any ? json_pack("{s:s, s:o}", "role", r->role, "content", sv_content_take(&r->content))
               : NULL;

    if (m && ((r->reasoning.len &&
               json_object_set_new(m, "reasoning_content", text_of(&r->reasoning))) ||
              (r->calls && json_object_set(m, "tool_calls", r->calls)))) {
        json_decref(m);
        m = NULL;
    }
    const int rc = r->any ? push(r, m) : 0;
    json_decref(r->calls);
    r->calls = NULL;
    r->any = false;
    sv_buf_clear(&r->reasoning);
    return rc;
}

/* The system prompt comes first. */
static int begin_turn(struct reader *r, const char *role)
{
    if (r->role && strcmp(r->role, role) == 0)
        return 0;
    if (lost(r))
        return sv_api_no_memory(r->e);
    if (!r->role && r->system.len &&
        push(r, json_pack("{s:s, s:o}", "role", "system", "content", text_of(&r->system))))
        return -1;
    if (end_turn(r))
        return -1;
    r->role = role;
    return 0;
}

/* ---------------------------------------------------------------- blocks */

static int unsupported_block(struct reader *r, const char *place, const char *type,
                             const char *where)
{
    return sv_api_unsupported(r->e, "messages", "'%s.type': '%.40s' is not supported here; %s",
                              place, type, where);
}

/* The text of a text block; NULL with an error if it is another block. */
static json_t *block_text(const json_t *block, const char *place, struct reader *r)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    json_t *text = json_object_get(block, "text");

    if (!json_is_object(block))
        ill(r->e, place, "", "an object");
    else if (!type)
        ill(r->e, place, ".type", "a string");
    else if (strcmp(type, "text") != 0)
        unsupported_block(r, place, type,
                          strcmp(type, "image") == 0 ? "only text is"
                                                     : "this server reads text and images");
    else if (!json_is_string(text))
        ill(r->e, place, ".text", "a string");
    else
        return text;
    return NULL;
}

/* A text block, joined to the text before it by a line break, or an image. */
static int take_shown(struct reader *r, json_t *block, const char *place, struct sv_content *to)
{
    const char *type = json_string_value(json_object_get(block, "type"));

    if (type && strcmp(type, "image") == 0)
        return sv_content_image(to, r->p, block, place, r->e);
    const json_t *text = block_text(block, place, r);
    if (!text)
        return -1;
    add_line(&to->text, json_string_value(text), json_string_length(text));
    return 0;
}

/* A string, or text blocks joined by line breaks. */
static int take_text(struct reader *r, const json_t *v, const char *place, struct sv_buf *to)
{
    if (json_is_string(v)) {
        add_line(to, json_string_value(v), json_string_length(v));
        return 0;
    }
    if (!json_is_array(v))
        return ill(r->e, place, "", "a string or an array of blocks");
    for (size_t i = 0; i < json_array_size(v); i++) {
        char at[PLACE];
        snprintf(at, sizeof at, "%.100s[%zu]", place, i);
        const json_t *text = block_text(json_array_get(v, i), at, r);
        if (!text)
            return -1;
        add_line(to, json_string_value(text), json_string_length(text));
    }
    return 0;
}

static int take_call(struct reader *r, const json_t *block, const char *place)
{
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    json_t *input = present(block, "input");

    if (!json_string_length(id))
        return ill(r->e, place, ".id", "a string");
    if (!json_string_length(name))
        return ill(r->e, place, ".name", "a string");
    if (input && !json_is_object(input))
        return ill(r->e, place, ".input", "an object");
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", input ? json_incref(input) : json_object());
    if (!r->calls)
        r->calls = json_array();
    r->any = true;
    return json_array_append_new(r->calls, call) ? sv_api_no_memory(r->e) : 0;
}

/* Marks a failed tool's result. */
static int mark_failed(struct sv_content *c)
{
    static const char mark[] = "Error: ";
    struct sv_buf said = c->text;

    if (c->parts)
        return json_array_insert_new(c->parts, 0,
                                     json_pack("{s:s, s:s}", "type", "text", "text", mark));
    if (said.len && strncasecmp(said.data, mark, 5) == 0)
        return 0;
    sv_buf_init(&c->text);
    sv_buf_lit(&c->text, "Error: ");
    sv_buf_append(&c->text, said.data, said.len);
    c->text.failed |= said.failed;
    sv_buf_fini(&said);
    return 0;
}

/* What a tool's result shows: a string, or blocks. */
static int take_output(struct reader *r, const json_t *v, const char *place, struct sv_content *to)
{
    if (!json_is_array(v))
        return take_text(r, v, place, &to->text);
    for (size_t i = 0; i < json_array_size(v); i++) {
        char at[PLACE];
        snprintf(at, sizeof at, "%.100s[%zu]", place, i);
        if (take_shown(r, json_array_get(v, i), at, to))
            return -1;
    }
    return 0;
}

/* A tool's result: a message of its own, after what the user has said so far. */
static int take_result(struct reader *r, const json_t *block, const char *place)
{
    json_t *id = json_object_get(block, "tool_use_id"), *content = present(block, "content");
    const json_t *error = present(block, "is_error");
    char at[PLACE];
    struct sv_content shown;

    if (!json_string_length(id))
        return ill(r->e, place, ".tool_use_id", "a string");
    if (error && !json_is_boolean(error))
        return ill(r->e, place, ".is_error", "a boolean");
    if (end_turn(r))
        return -1;
    snprintf(at, sizeof at, "%.100s.content", place);
    sv_content_init(&shown);
    int rc = content ? take_output(r, content, at, &shown) : 0;
    if (!rc && json_is_true(error) && mark_failed(&shown))
        rc = sv_api_no_memory(r->e);
    if (!rc)
        rc = push(r, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content",
                               sv_content_take(&shown)));
    sv_content_fini(&shown);
    return rc;
}

/* Redacted thinking cannot be read here. */
static int take_reasoning(struct reader *r, const json_t *block, const char *place)
{
    const json_t *text = json_object_get(block, "thinking");

    if (!json_is_string(text))
        return ill(r->e, place, ".thinking", "a string");
    add_line(&r->reasoning, json_string_value(text), json_string_length(text));
    r->any = true;
    return 0;
}

static int take_block(struct reader *r, json_t *block, const char *place)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    const bool own = strcmp(r->role, "assistant") == 0;

    if (type && strcmp(type, "tool_result") == 0)
        return own ? unsupported_block(r, place, type, "it belongs to the user's turn")
                   : take_result(r, block, place);
    if (type && strcmp(type, "tool_use") == 0)
        return own ? take_call(r, block, place)
                   : unsupported_block(r, place, type, "it belongs to the assistant's turn");
    if (type && own && strcmp(type, "thinking") == 0)
        return take_reasoning(r, block, place);
    if (type && own && strcmp(type, "redacted_thinking") == 0) {
        r->any = true;
        return 0;
    }
    if (type && own && strcmp(type, "image") == 0)
        return unsupported_block(r, place, type, "it belongs to the user's turn");
    r->any = true;
    return take_shown(r, block, place, &r->content);
}

/* ---------------------------------------------------------------- messages */

/* A system message: at the beginning it joins the system prompt. Later it is put into the user's
 * turn, in the tags that agents use themselves, because many templates refuse a system message in
 * between. */
static int take_system_message(struct reader *r, const json_t *content, const char *place)
{
    if (!r->role)
        return take_text(r, content, place, &r->system);
    if (begin_turn(r, "user"))
        return -1;
    add_line(&r->content.text, "<system-reminder>", 17);
    if (take_text(r, content, place, &r->content.text))
        return -1;
    add_line(&r->content.text, "</system-reminder>", 18);
    r->any = true;
    return 0;
}

static int take_message(struct reader *r, const json_t *m, size_t i)
{
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    char place[PLACE];

    snprintf(place, sizeof place, "messages[%zu]", i);
    if (!json_is_object(m))
        return ill(r->e, place, "", "an object");
    if (!role || !is_among(role, "user\0assistant\0system\0"))
        return ill(r->e, place, ".role", "\"user\", \"assistant\" or \"system\"");
    snprintf(place, sizeof place, "messages[%zu].content", i);
    if (!json_is_string(content) && !json_is_array(content))
        return ill(r->e, place, "", "a string or an array of blocks");
    if (strcmp(role, "system") == 0)
        return take_system_message(r, content, place);
    const bool own = strcmp(role, "assistant") == 0;
    if (begin_turn(r, own ? "assistant" : "user"))
        return -1;
    if (!own && json_is_array(content) && !json_array_size(content))
        return sv_api_bad(r->e, "messages", "'%s' is empty", place);
    r->any = r->any || own || json_is_string(content);
    if (json_is_string(content))
        return take_text(r, content, place, &r->content.text);
    for (size_t k = 0; k < json_array_size(content); k++) {
        char at[PLACE];
        snprintf(at, sizeof at, "%.100s[%zu]", place, k);
        if (take_block(r, json_array_get(content, k), at))
            return -1;
    }
    return 0;
}

/* Claude Code's first block is for accounting and differs from request to request, so that no
 * prefix would be found again. */
static int take_system(struct reader *r, const json_t *v)
{
    static const char billing[] = "x-anthropic-billing-header:";

    if (!json_is_array(v))
        return v ? take_text(r, v, "system", &r->system) : 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        char place[PLACE];
        snprintf(place, sizeof place, "system[%zu]", i);
        const json_t *text = block_text(json_array_get(v, i), place, r);
        if (!text)
            return -1;
        if (strncmp(json_string_value(text), billing, sizeof billing - 1) != 0)
            add_line(&r->system, json_string_value(text), json_string_length(text));
    }
    return 0;
}

/* An assistant's turn at the end is continued by the answer. */
static int check_end(struct sv_params *p, const struct reader *r, size_t n)
{
    const json_t *last = json_array_get(r->out, json_array_size(r->out) - 1),
                 *text = json_object_get(last, "content");

    if (!r->role)
        return sv_api_bad(r->e, "messages", "'messages' has no message of the user");
    if (strcmp(r->role, "assistant") != 0)
        return 0;
    if (json_object_get(last, "tool_calls"))
        return sv_api_bad(r->e, "messages",
                          "'messages[%zu]': behind a 'tool_use' a user's message with its "
                          "'tool_result' must follow",
                          n - 1);
    if (json_string_length(text) == strspn(json_string_value(text), " \t\n\v\f\r"))
        return sv_api_bad(r->e, "messages",
                          "'messages[%zu]': an assistant's message at the end must have a text to "
                          "go on with",
                          n - 1);
    p->continue_final = true;
    return 0;
}

static int read_all(struct sv_params *p, struct reader *r, const json_t *system, const json_t *list)
{
    const size_t n = json_array_size(list);

    if (take_system(r, system))
        return -1;
    for (size_t i = 0; i < n; i++)
        if (take_message(r, json_array_get(list, i), i))
            return -1;
    if (end_turn(r) || check_end(p, r, n))
        return -1;
    return r->system.failed ? sv_api_no_memory(r->e) : 0;
}

static int read_messages(struct sv_params *p, const json_t *body, struct sv_api_err *e)
{
    const json_t *list = present(body, "messages");
    struct reader r = {.e = e, .p = p};

    if (!list)
        return sv_api_bad(e, "messages", "'messages' is missing");
    if (!json_is_array(list))
        return ill(e, "messages", "", "an array");
    if (!json_array_size(list))
        return sv_api_bad(e, "messages", "'messages' is empty");
    sv_content_init(&r.content);
    sv_buf_init(&r.reasoning);
    sv_buf_init(&r.system);
    p->messages = r.out = json_array();
    int rc = sv_params_own(p, r.out) ? read_all(p, &r, present(body, "system"), list)
                                     : sv_api_no_memory(e);
    json_decref(r.calls);
    sv_content_fini(&r.content);
    sv_buf_fini(&r.reasoning);
    sv_buf_fini(&r.system);
    return rc;
}

/* ---------------------------------------------------------------- tools */

static json_t *function_of(const json_t *tool)
{
    static const char *const names[][2] = {{"name", "name"},
                                           {"description", "description"},
                                           {"strict", "strict"},
                                           {"input_schema", "parameters"}};
    json_t *f = json_object();

    for (int i = 0; i < 4; i++) {
        json_t *v = present(tool, names[i][0]);
        if (v && json_object_set(f, names[i][1], v)) {
            json_decref(f);
            return NULL;
        }
    }
    return json_pack("{s:s, s:o}", "type", "function", "function", f);
}

static int check_tool(const json_t *tool, const char *place, struct sv_api_err *e)
{
    const json_t *type = present(tool, "type"), *description = present(tool, "description"),
                 *strict = present(tool, "strict");

    if (!json_is_object(tool))
        return ill(e, place, "", "an object");
    if (type && !json_is_string(type))
        return ill(e, place, ".type", "a string");
    if (type && strcmp(json_string_value(type), "custom") != 0)
        return sv_api_unsupported(e, "tools",
                                  "'%s.type': '%.60s' is Anthropic's own tool; only those of the "
                                  "type 'custom', with a schema, are supported",
                                  place, json_string_value(type));
    if (!sv_tool_name_fits(json_object_get(tool, "name")))
        return sv_api_bad(e, "tools", "'%s.name' must be a string of 1 to %d bytes", place,
                          SV_MAX_TOOL_NAME);
    if (description && !json_is_string(description))
        return ill(e, place, ".description", "a string");
    if (!json_is_object(json_object_get(tool, "input_schema")))
        return ill(e, place, ".input_schema", "an object, a JSON schema");
    if (strict && !json_is_boolean(strict))
        return ill(e, place, ".strict", "a boolean");
    return 0;
}

static int read_tools(struct sv_params *p, const json_t *list, struct sv_api_err *e)
{
    if (!list)
        return 0;
    if (!json_is_array(list))
        return ill(e, "tools", "", "an array");
    p->tools = json_array();
    if (!sv_params_own(p, p->tools))
        return sv_api_no_memory(e);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *tool = json_array_get(list, i);
        char place[PLACE];
        snprintf(place, sizeof place, "tools[%zu]", i);
        if (check_tool(tool, place, e))
            return -1;
        if (json_array_append_new(p->tools, function_of(tool)))
            return sv_api_no_memory(e);
    }
    return 0;
}

static int read_tool_choice(struct sv_params *p, json_t *v, struct sv_api_err *e)
{
    static const char *const names[] = {"auto", "any", "tool", "none"};
    static const enum sv_tool_choice choices[] = {SV_TOOL_CHOICE_AUTO, SV_TOOL_CHOICE_REQUIRED,
                                                  SV_TOOL_CHOICE_NAMED, SV_TOOL_CHOICE_NONE};
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *single = present(v, "disable_parallel_tool_use");
    int i = 0;

    if (!v)
        return 0;
    if (!json_is_object(v))
        return ill(e, "tool_choice", "", "an object");
    while (type && i < 4 && strcmp(type, names[i]) != 0)
        i++;
    if (!type || i == 4)
        return ill(e, "tool_choice", ".type", "\"auto\", \"any\", \"tool\" or \"none\"");
    if (check_members(p, v, "tool_choice", "type\0name\0disable_parallel_tool_use\0", e))
        return -1;
    if (single && !json_is_boolean(single))
        return ill(e, "tool_choice", ".disable_parallel_tool_use", "a boolean");
    p->tool_choice = choices[i];
    p->tool_name = json_string_value(json_object_get(v, "name"));
    p->parallel = !json_is_true(single);
    if (p->tool_choice == SV_TOOL_CHOICE_NAMED && !p->tool_name)
        return ill(e, "tool_choice", ".name", "a string");
    return 0;
}

/* ---------------------------------------------------------------- reasoning and forms */

/* *thinks: 1 or 0 for the template, -1 to leave it out. */
static int read_thinking(struct sv_params *p, json_t *v, int *thinks, struct sv_api_err *e)
{
    const char *type = json_string_value(json_object_get(v, "type"));
    const json_t *display = present(v, "display"), *budget = present(v, "budget_tokens");
    const char *shown = display ? json_string_value(display) : "summarized";

    *thinks = -1;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return ill(e, "thinking", "", "an object");
    if (!type || !is_among(type, "enabled\0adaptive\0between_tools\0disabled\0"))
        return ill(e, "thinking", ".type", "\"enabled\", \"adaptive\" or \"disabled\"");
    if (check_members(p, v, "thinking", "type\0budget_tokens\0display\0", e))
        return -1;
    const double n =
        json_number_value(budget); /* 1024.0 counts as an integer, as in other fields */
    if (budget && (n < 1 || n != floor(n)))
        return ill(e, "thinking", ".budget_tokens", "an integer above 0");
    if (!shown || !is_among(shown, "summarized\0omitted\0"))
        return ill(e, "thinking", ".display", "\"summarized\" or \"omitted\"");
    *thinks = strcmp(type, "disabled") != 0;
    p->include_reasoning = *thinks;
    p->omit_reasoning = strcmp(shown, "omitted") == 0;
    return 0;
}

static int read_format(struct sv_params *p, const char *name, json_t *v, struct sv_api_err *e)
{
    const struct sv_field field = {.name = name};
    const char *type = json_string_value(json_object_get(v, "type"));

    if (!v)
        return 0;
    if (!json_is_object(v))
        return ill(e, name, "", "an object");
    if (!type || strcmp(type, "json_schema") != 0)
        return ill(e, name, ".type", "\"json_schema\"");
    if (check_members(p, v, name, "type\0schema\0", e))
        return -1;
    if (!json_is_object(json_object_get(v, "schema")))
        return ill(e, name, ".schema", "an object, a JSON schema");
    return sv_read_response_format(p, &field, v, e);
}

static int read_output(struct sv_params *p, const json_t *body, const char **effort,
                       struct sv_api_err *e)
{
    json_t *v = present(body, "output_config"), *wanted = present(v, "effort");

    *effort = json_string_value(wanted);
    if (v && !json_is_object(v))
        return ill(e, "output_config", "", "an object");
    if (check_members(p, v, "output_config", "effort\0format\0", e))
        return -1;
    if (wanted && (!*effort || !is_among(*effort, "low\0medium\0high\0xhigh\0max\0")))
        return ill(e, "output_config", ".effort",
                   "\"low\", \"medium\", \"high\", \"xhigh\" or \"max\"");
    if (*effort && is_among(*effort, "xhigh\0max\0"))
        *effort = "high"; /* the highest level that templates know */
    return read_format(p, "output_config.format", present(v, "format"), e) ||
                   read_format(p, "output_format", present(body, "output_format"), e)
               ? -1
               : 0;
}

/* The template arguments that stand for it; the request's own arguments take precedence. */
static int add_template_args(struct sv_params *p, int thinks, const char *effort,
                             struct sv_api_err *e)
{
    json_t *args = thinks < 0 && !effort ? NULL : json_object();

    if (thinks < 0 && !effort)
        return 0;
    if (!sv_params_own(p, args))
        return sv_api_no_memory(e);
    int rc = 0;
    if (thinks >= 0)
        rc |= json_object_set_new(args, "enable_thinking", json_boolean(thinks)) |
              json_object_set_new(args, "thinking", json_boolean(thinks));
    if (effort)
        rc |= json_object_set_new(args, "reasoning_effort", json_string(effort));
    if (p->template_args)
        rc |= json_object_update(args, p->template_args);
    p->template_args = args;
    return rc ? sv_api_no_memory(e) : 0;
}

/* The SDK's tool runner asks for a thread; on this error code it sends all messages each time. */
static int refuse_thread(const json_t *v, struct sv_api_err *e)
{
    if (!v)
        return 0;
    sv_api_bad(e, "thread", "'thread': this server keeps no conversations; send all messages");
    e->code = "thread_unsupported_request";
    return -1;
}

int sv_messages_read(struct sv_params *p, json_t *body, struct sv_api_err *e)
{
    const char *effort;
    int thinks;

    if (refuse_thread(present(body, "thread"), e))
        return -1;
    if (!p->has_max_tokens)
        return sv_api_bad(e, "max_tokens", "'max_tokens' is missing");
    if (p->spec < 0)
        p->spec = SV_SPEC_NONE; /* only on request */
    if (read_messages(p, body, e) || read_tools(p, present(body, "tools"), e) ||
        read_tool_choice(p, present(body, "tool_choice"), e) ||
        read_thinking(p, present(body, "thinking"), &thinks, e) || read_output(p, body, &effort, e))
        return -1;
    return add_template_args(p, thinks, effort, e);
}

/* ---------------------------------------------------------------- counting */

static int count(const struct sv_serve *s, struct sv_enc_scratch *scratch, json_t *body,
                 struct sv_buf *ignored, struct sv_buf *b, struct sv_api_err *e)
{
    struct sv_params *p = sv_calloc(1, sizeof *p);
    struct sv_prompt prompt = {.ids = NULL};
    struct sv_ids ids = {0};
    struct sv_buf text;

    if (!p)
        return sv_api_no_memory(e);
    sv_buf_init(&text);
    /* needed for an answer, not for counting */
    const bool lost =
        !present(body, "max_tokens") && json_object_set_new(body, "max_tokens", json_integer(1));
    int rc = (lost && sv_api_no_memory(e)) ||
             sv_params_read(p, &sv_dialect_messages, body, ignored, e) ||
             sv_check_model(s, p->model, e) || sv_render_chat(s, scratch, p, &text, e) ||
             sv_check_text(s, text.len, "messages", e) ||
             sv_encode(s, scratch, text.data ? text.data : "", text.len, SV_ENC_SPECIAL, &ids, e) ||
             sv_serve_images_load(s, scratch, p, &prompt, e);
    sv_buf_printf(b, "{\"input_tokens\":%zu}\n", ids.n + (size_t)prompt.n_more);
    sv_serve_images_free(&prompt);
    sv_ids_fini(&ids);
    sv_buf_fini(&text);
    sv_params_fini(p);
    sv_free(p);
    return rc ? -1 : 0;
}

void sv_post_count_tokens(struct sv_serve *s, struct sv_http_req *q)
{
    sv_ask(s, q, count);
}
