/*
 * harmony.c - messages and tools as gpt-oss's chat template reads them: one message of
 * instructions, reasoning under the name "thinking", one call in a message with its result behind
 * it, a description for each tool.
 *
 * Called by prompt.c for such templates, with messages that it has checked. The lists given are not
 * changed. Must not: drop what a client sent, or render anything.
 */
#include "serve/core/prompt.h"

#include <string.h>

static bool has_role(const json_t *m, const char *role)
{
    const char *own = json_string_value(json_object_get(m, "role"));
    return own && strcmp(own, role) == 0;
}

/* jansson's own copy leaves members out when memory runs out; this one is NULL then. */
static json_t *copy_of(const json_t *object)
{
    json_t *copy = json_object();

    if (!json_object_update(copy, (json_t *)(uintptr_t)object))
        return copy;
    json_decref(copy);
    return NULL;
}

/* An assistant's message with "thinking" in place of other names for reasoning. The template counts
 * the mere presence of "thinking" and "tool_calls". NULL: memory ran out. */
static json_t *with_thinking(const json_t *m)
{
    json_t *copy = copy_of(m);
    json_t *text = json_object_get(copy, "reasoning_content");

    if (!copy)
        return NULL;
    if (!json_is_string(json_object_get(copy, "thinking")))
        json_object_del(copy, "thinking");
    if (!json_array_size(json_object_get(copy, "tool_calls")))
        json_object_del(copy, "tool_calls");
    if (!json_string_length(text) || json_object_get(copy, "thinking"))
        return copy;
    if (!json_object_set(copy, "thinking", text))
        return copy;
    json_decref(copy);
    return NULL;
}

/* Beside a call the template takes reasoning or content, and either as reasoning: they are joined.
 * True unless memory ran out. */
static bool join_content(json_t *m)
{
    const json_t *thinking = json_object_get(m, "thinking"), *text = json_object_get(m, "content");

    if (!json_string_length(thinking) || !json_string_length(text))
        return true;
    json_t *both = json_pack("s%++%", json_string_value(thinking), json_string_length(thinking),
                             "\n", json_string_value(text), json_string_length(text));
    return !json_object_set_new(m, "thinking", both) &&
           !json_object_set_new(m, "content", json_string(""));
}

/* Whether a tool's message is the result of the k-th call: by its id or, without one, its place. */
static bool answers(const json_t *result, size_t place, const json_t *call, size_t k)
{
    const char *id = json_string_value(json_object_get(result, "tool_call_id"));
    const char *own = json_string_value(json_object_get(call, "id"));

    return id && own ? strcmp(id, own) == 0 : place == k;
}

/* Adds a message with one of the calls, and their results of the n from messages[at] on; taken:
 * those that have been added. */
static bool add_call(json_t *out, json_t *m, size_t k, const json_t *messages, size_t at, size_t n,
                     bool *taken)
{
    json_t *calls = json_object_get(m, "tool_calls"), *call = json_array_get(calls, k);
    json_t *one = k ? json_pack("{s:s,s:s}", "role", "assistant", "content", "") : copy_of(m);
    bool ok = one && !json_object_set_new(one, "tool_calls", json_pack("[O]", call));

    ok = !json_array_append_new(out, one) && ok;
    for (size_t i = 0; i < n && ok; i++) {
        json_t *result = json_array_get(messages, at + i);
        if (taken[i] || !answers(result, i, call, k))
            continue;
        taken[i] = true;
        ok = !json_array_append(out, result);
    }
    return ok;
}

/* A message with calls and the results that follow it; *at is moved behind them. */
static bool add_calls(json_t *out, json_t *m, const json_t *messages, size_t *at)
{
    size_t n_calls = json_array_size(json_object_get(m, "tool_calls")), n = 0;

    while (has_role(json_array_get(messages, *at + n), "tool"))
        n++;
    bool *taken = sv_calloc(n + 1, sizeof *taken), ok = taken && join_content(m);
    for (size_t k = 0; k < n_calls && ok; k++)
        ok = add_call(out, m, k, messages, *at, n, taken);
    for (size_t i = 0; i < n && ok; i++)
        ok = taken[i] || !json_array_append(out, json_array_get(messages, *at + i));
    *at += n;
    sv_free(taken);
    return ok;
}

/* The template shows one message of instructions: those that come first become one. Returns how
 * many these are; *ok: false when memory ran out. */
static size_t add_instructions(json_t *out, const json_t *messages, bool *ok)
{
    struct sv_buf text;
    json_t *m;
    size_t n = 0;

    sv_buf_init(&text);
    while (m = json_array_get(messages, n), has_role(m, "system") || has_role(m, "developer")) {
        const json_t *content = json_object_get(m, "content");
        sv_buf_append(&text, "\n\n", n && json_string_length(content) ? 2 : 0);
        sv_buf_append(&text, json_string_value(content), json_string_length(content));
        n++;
    }
    if (n && *ok) {
        json_t *first = copy_of(json_array_get(messages, 0));
        json_t *joined = text.failed ? NULL : json_stringn(text.len ? text.data : "", text.len);
        *ok = !json_object_set_new(first, "content", joined);
        *ok = !json_array_append_new(out, first) && *ok;
    }
    sv_buf_fini(&text);
    return n;
}

json_t *sv_harmony_messages(const json_t *messages)
{
    json_t *out = json_array();
    bool ok = out;

    for (size_t at = add_instructions(out, messages, &ok); at < json_array_size(messages) && ok;) {
        json_t *m = json_array_get(messages, at++);
        if (!has_role(m, "assistant")) {
            ok = !json_array_append(out, m);
            continue;
        }
        json_t *turn = with_thinking(m);
        ok = turn && (json_object_get(turn, "tool_calls") ? add_calls(out, turn, messages, &at)
                                                          : !json_array_append(out, turn));
        json_decref(turn);
    }
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

/* The template cannot do without a description. */
static json_t *described(json_t *tool)
{
    json_t *f = json_object_get(tool, "function");

    if (json_is_string(json_object_get(f, "description")))
        return json_incref(tool);
    json_t *copy = copy_of(tool), *own = copy_of(f);
    if (json_object_set_new(own, "description", json_string("")) ||
        json_object_set(copy, "function", own)) {
        json_decref(copy);
        copy = NULL;
    }
    json_decref(own);
    return copy;
}

json_t *sv_harmony_tools(const json_t *tools)
{
    json_t *out = json_array();

    for (size_t i = 0; i < json_array_size(tools); i++)
        if (json_array_append_new(out, described(json_array_get(tools, i)))) {
            json_decref(out);
            return NULL;
        }
    return out;
}
