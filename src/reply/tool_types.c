/*
 * tool_types.c - what a tool's JSON schema says of the types of its parameters, and plain text as a
 * value of such a type.
 *
 * Called by tool_xml.c. Schemas come from clients: depth is bounded, what is not understood allows
 * nothing. Must not: refuse a value; what fits no other type is text.
 */
#include "reply/tool.h"

#include <string.h>
#include <strings.h>

#define MAX_DEPTH 8

/* ---------------------------------------------------------------- schemas */

static uint32_t bit_of(const char *type)
{
    static const struct {
        const char *name;
        uint32_t bit;
    } types[] = {{"string", SV_TYPE_STRING_BIT}, {"integer", SV_TYPE_NUMBER_BIT},
                 {"number", SV_TYPE_NUMBER_BIT}, {"boolean", SV_TYPE_BOOLEAN_BIT},
                 {"object", SV_TYPE_LIST_BIT},   {"array", SV_TYPE_LIST_BIT},
                 {"null", SV_TYPE_NULL_BIT},     {"str", SV_TYPE_STRING_BIT},
                 {"int", SV_TYPE_NUMBER_BIT},    {"float", SV_TYPE_NUMBER_BIT},
                 {"bool", SV_TYPE_BOOLEAN_BIT},  {"dict", SV_TYPE_LIST_BIT},
                 {"list", SV_TYPE_LIST_BIT}};

    for (size_t i = 0; type && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i].name) == 0)
            return types[i].bit;
    return 0;
}

static uint32_t bit_of_value(const json_t *v)
{
    return json_is_string(v)                       ? SV_TYPE_STRING_BIT
           : json_is_number(v)                     ? SV_TYPE_NUMBER_BIT
           : json_is_boolean(v)                    ? SV_TYPE_BOOLEAN_BIT
           : json_is_object(v) || json_is_array(v) ? SV_TYPE_LIST_BIT
           : json_is_null(v)                       ? SV_TYPE_NULL_BIT
                                                   : 0;
}

/* "#/$defs/NAME" within the tool's parameters. */
static const json_t *resolve(const json_t *root, const char *ref)
{
    if (!ref || strncmp(ref, "#/", 2) != 0)
        return NULL;
    for (ref += 2; root && *ref; ref += *ref == '/') {
        size_t n = strcspn(ref, "/");
        root = json_object_getn(root, ref, n);
        ref += n;
    }
    return root;
}

static uint32_t types_of(const json_t *root, const json_t *schema, int depth)
{
    static const char *const lists[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum");
    const json_t *only = json_object_get(schema, "const");
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    uint32_t bits = bit_of(json_string_value(type));

    if (depth == MAX_DEPTH)
        return 0;
    for (size_t i = 0; i < json_array_size(type); i++)
        bits |= bit_of(json_string_value(json_array_get(type, i)));
    if (bits)
        return bits;
    for (size_t i = 0; i < json_array_size(values); i++)
        bits |= bit_of_value(json_array_get(values, i));
    bits |= bit_of_value(only);
    for (int k = 0; k < 3; k++) {
        const json_t *list = json_object_get(schema, lists[k]);
        for (size_t i = 0; i < json_array_size(list); i++)
            bits |= types_of(root, json_array_get(list, i), depth + 1);
    }
    if (ref)
        bits |= types_of(root, resolve(root, ref), depth + 1);
    if (!bits && json_object_get(schema, "properties"))
        bits = SV_TYPE_LIST_BIT;
    return bits;
}

uint32_t sv_tool_types(const json_t *tool_list, const char *tool, const char *key)
{
    for (size_t i = 0; i < json_array_size(tool_list); i++) {
        const json_t *f = json_object_get(json_array_get(tool_list, i), "function");
        const json_t *name = json_object_get(f, "name"), *root = json_object_get(f, "parameters");
        if (!json_is_string(name) || strcmp(json_string_value(name), tool) != 0)
            continue;
        uint32_t bits =
            types_of(root, json_object_get(json_object_get(root, "properties"), key), 0);
        return bits ? bits : SV_TYPE_STRING_BIT;
    }
    return SV_TYPE_STRING_BIT;
}

/* ---------------------------------------------------------------- values */

static bool is_word(const char *s, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(s, word, n) == 0;
}

/* JSON of one of the types, unchanged. */
static bool add_json(struct sv_buf *out, uint32_t types, const char *s, size_t n)
{
    bool list = n && (*s == '{' || *s == '['),
         number = n && (*s == '-' || (*s >= '0' && *s <= '9'));
    struct sv_scan scan = {.at = SV_AT_VALUE};

    if (!(list && types & SV_TYPE_LIST_BIT) && !(number && types & SV_TYPE_NUMBER_BIT))
        return false;
    if (!sv_scan_all(s, n))
        return false;
    for (size_t i = 0; i < n; i++) { /* line ends within strings become escapes */
        bool in_string = scan.at == SV_AT_STRING;
        sv_scan_byte(&scan, s[i]);
        sv_append_json(out, in_string, s[i]);
    }
    return true;
}

void sv_tool_value(struct sv_buf *out, uint32_t types, const char *text, size_t n)
{
    const char *s = text;
    size_t k = n;

    while (k && sv_is_space(*s)) {
        s++;
        k--;
    }
    while (k && sv_is_space(s[k - 1]))
        k--;
    if (is_word(s, k, "null") && (types & SV_TYPE_NULL_BIT || !(types & SV_TYPE_STRING_BIT))) {
        sv_buf_lit(out, "null");
    } else if (types & SV_TYPE_BOOLEAN_BIT && (is_word(s, k, "true") || is_word(s, k, "false"))) {
        sv_buf_printf(out, "%s", k == 4 ? "true" : "false");
    } else if (!add_json(out, types, s, k)) {
        sv_buf_lit(out, "\"");
        sv_escape(out, text, n);
        sv_buf_lit(out, "\"");
    }
}
