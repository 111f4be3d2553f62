/*
 * tool_json.c - a call written as a JSON object, {"name": ..., "arguments": {...}}, and arguments
 * alone.
 *
 * Called by tool_call.c for every byte. The arguments go out as the model wrote them, but for line
 * ends within strings, which become escapes. Must not: build trees of what may be long.
 */
#include "reply/tool.h"

#include <string.h>

#define MAX_KEY 64
#define MAX_NAME_BYTES 1600 /* as it is written: with escapes */

enum sv_call_is sv_call_body_byte(struct sv_call *k, char c)
{
    enum sv_scan_at before = k->scan.at;

    if (!k->begun && c != '{')
        return SV_CALL_BAD;
    if (!sv_scan_byte(&k->scan, c))
        return SV_CALL_BAD;
    sv_append_json(&k->args, before == SV_AT_STRING, c);
    k->begun = true;
    return k->scan.at == SV_AT_END ? SV_CALL_DONE : SV_CALL_MORE;
}

/* ---------------------------------------------------------------- fields */

static bool key_is(const struct sv_call *k, const char *name)
{
    return k->word.len == strlen(name) && memcmp(k->word.data, name, k->word.len) == 0;
}

/* What comes twice counts the first time. */
static enum sv_call_field field_of(const struct sv_call *k)
{
    if (!k->named && key_is(k, "name"))
        return SV_FIELD_NAME;
    if (!k->begun && (key_is(k, "arguments") || key_is(k, "parameters")))
        return SV_FIELD_ARGUMENTS;
    return SV_FIELD_OTHER;
}

/* An object without a marker around it is a call only if it has no other fields. */
static bool may_have(const struct sv_call *k)
{
    static const char *const known[] = {"name", "arguments", "parameters", "type", "id"};

    for (int i = 0; i < 5; i++)
        if (key_is(k, known[i]))
            return true;
    return !k->bare;
}

static bool begin_field(struct sv_call *k, char c)
{
    sv_buf_clear(&k->value);
    k->in_value = k->field != SV_FIELD_OTHER;
    k->verbatim = k->field == SV_FIELD_ARGUMENTS && c == '{';
    k->begun = k->begun || k->verbatim;
    return !k->in_value || k->verbatim || c == '"' || (k->field == SV_FIELD_ARGUMENTS && c == 'n');
}

/* The text that a JSON string stands for; NULL: it is none, or there is no memory for it, and the
 * buffer has failed. */
static json_t *string_of(struct sv_buf *raw)
{
    struct sv_buf list;
    struct sv_err err = {0};

    sv_buf_init(&list);
    sv_buf_printf(&list, "[");
    sv_buf_append(&list, raw->data, raw->len);
    sv_buf_lit(&list, "]");
    json_t *v = list.failed ? NULL : sv_json_parse(list.data, list.len, &err);
    json_t *text = json_incref(json_array_get(v, 0));
    json_decref(v);
    raw->failed |= list.failed || err.code == SV_ENOMEM;
    sv_buf_fini(&list);
    return text;
}

static bool take_name(struct sv_call *k, const json_t *v)
{
    size_t n = json_string_length(v);

    if (!n || n > SV_MAX_TOOL_NAME || memchr(json_string_value(v), 0, n))
        return false;
    sv_buf_append(&k->name, json_string_value(v), n);
    return k->named = true;
}

/* Some models write the object once more as a text. */
static bool take_arguments(struct sv_call *k, const json_t *v)
{
    const char *s = json_string_length(v) ? json_string_value(v) : "{}";
    size_t n = json_string_length(v) ? json_string_length(v) : 2;

    if (!sv_is_json_object(s, n))
        return false;
    sv_buf_append(&k->args, s, n);
    return k->begun = true;
}

static bool end_field(struct sv_call *k)
{
    k->in_value = false;
    if (k->verbatim)
        return true;
    json_t *v = string_of(&k->value);
    bool null = json_is_null(v), text = json_is_string(v);
    bool ok = (null || text) &&
              (k->field == SV_FIELD_NAME ? text && take_name(k, v) : take_arguments(k, v));
    json_decref(v);
    return ok;
}

/* ---------------------------------------------------------------- the object */

static enum sv_call_is end_object(struct sv_call *k)
{
    if (!k->named || (!k->begun && k->bare))
        return SV_CALL_BAD;
    if (!k->begun) /* of a function without parameters */
        sv_buf_lit(&k->args, "{}");
    k->begun = true;
    return SV_CALL_DONE;
}

static bool add_value(struct sv_call *k, enum sv_scan_at before, char c)
{
    sv_append_json(k->verbatim ? &k->args : &k->value, before == SV_AT_STRING, c);
    return k->field != SV_FIELD_NAME || k->value.len <= MAX_NAME_BYTES;
}

enum sv_call_is sv_call_object_byte(struct sv_call *k, char c)
{
    enum sv_scan_at before = k->scan.at;
    int32_t depth = k->scan.depth;

    if (!sv_scan_byte(&k->scan, c))
        return SV_CALL_BAD;
    if (k->scan.at == SV_AT_END)
        return k->in_value ? SV_CALL_BAD : end_object(k);
    if (depth == 1 && (before == SV_AT_FIRST_KEY || before == SV_AT_KEY) && c == '"') {
        k->field = SV_FIELD_KEY;
        sv_buf_clear(&k->word);
        return SV_CALL_MORE;
    }
    if (k->field == SV_FIELD_KEY) {
        bool over = k->scan.at == SV_AT_COLON;
        if (over)
            k->field = field_of(k);
        else if (k->word.len < MAX_KEY)
            sv_buf_append(&k->word, &c, 1);
        return over && !may_have(k) ? SV_CALL_BAD : SV_CALL_MORE;
    }
    if (depth == 1 && before == SV_AT_VALUE && !sv_is_space(c) && !begin_field(k, c))
        return SV_CALL_BAD;
    if (!k->in_value)
        return SV_CALL_MORE;
    if (!add_value(k, before, c))
        return SV_CALL_BAD;
    if (k->scan.depth == 1 && k->scan.at == SV_AT_NEXT && !end_field(k))
        return SV_CALL_BAD;
    return SV_CALL_MORE;
}
