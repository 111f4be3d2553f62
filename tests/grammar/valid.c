/*
 * valid.c - the validator of valid.h.
 *
 * Called by tests of grammars. Numbers are doubles, so schemas of tests keep to such that doubles
 * hold exactly. Must not: be fast.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "grammar/valid.h"

#include <math.h>
#include <pcre2.h>
#include <string.h>

json_t *schema_value(const char *text, size_t n)
{
    return json_loadb(text, n, JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
}

static bool is_type(const char *type, const json_t *v)
{
    double whole;

    if (!strcmp(type, "null"))
        return json_is_null(v);
    if (!strcmp(type, "boolean"))
        return json_is_boolean(v);
    if (!strcmp(type, "integer"))
        return json_is_number(v) && modf(json_number_value(v), &whole) == 0;
    if (!strcmp(type, "number"))
        return json_is_number(v);
    if (!strcmp(type, "string"))
        return json_is_string(v);
    if (!strcmp(type, "array"))
        return json_is_array(v);
    return !strcmp(type, "object") && json_is_object(v);
}

static bool type_valid(const json_t *schema, const json_t *v)
{
    const json_t *type = json_object_get(schema, "type");

    if (json_is_string(type))
        return is_type(json_string_value(type), v);
    for (size_t i = 0; i < json_array_size(type); i++)
        if (is_type(json_string_value(json_array_get(type, i)), v))
            return true;
    return !type;
}

static bool same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    bool ok = true;

    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if (json_is_array(a) && json_is_array(b)) {
        ok = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; ok && i < json_array_size(a); i++)
            ok = same(json_array_get(a, i), json_array_get(b, i));
        return ok;
    }
    if (!json_is_object(a) || !json_is_object(b))
        return json_equal(a, b);
    json_object_foreach((json_t *)a, key, value) {
        ok = ok && json_object_get(b, key) && same(value, json_object_get(b, key));
    }
    return ok && json_object_size(a) == json_object_size(b);
}

static bool list_valid(const json_t *schema, const json_t *v)
{
    const json_t *list = json_object_get(schema, "enum"), *one = json_object_get(schema, "const");
    bool found = !list;

    for (size_t i = 0; i < json_array_size(list); i++)
        found |= same(json_array_get(list, i), v);
    return found && (!one || same(one, v));
}

/* The keyword's number, or other where there is none. */
static double number(const json_t *schema, const char *key, double other)
{
    const json_t *v = json_object_get(schema, key);

    return json_is_number(v) ? json_number_value(v) : other;
}

static bool number_valid(const json_t *schema, double x)
{
    double step = number(schema, "multipleOf", 0), whole;

    return x >= number(schema, "minimum", -INFINITY) && x <= number(schema, "maximum", INFINITY) &&
           x > number(schema, "exclusiveMinimum", -INFINITY) &&
           x < number(schema, "exclusiveMaximum", INFINITY) &&
           /* beyond 2^53 a double is not the number that was written */
           (step == 0 || fabs(x) > 0x1p53 || modf(x / step, &whole) == 0);
}

static bool found_in(const char *pattern, const char *text, size_t n)
{
    int error;
    PCRE2_SIZE where;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &error, &where, NULL);
    pcre2_match_data *md = pcre2_match_data_create(1, NULL);
    bool found = code && pcre2_match(code, (PCRE2_SPTR)text, n, 0, 0, md, NULL) >= 0;

    pcre2_match_data_free(md);
    pcre2_code_free(code);
    return found;
}

static bool string_valid(const json_t *schema, const char *text, size_t n)
{
    const char *pattern = json_string_value(json_object_get(schema, "pattern"));
    double length = 0;

    for (size_t i = 0; i < n; i++)
        length += (text[i] & 0xC0) != 0x80;
    return length >= number(schema, "minLength", 0) &&
           length <= number(schema, "maxLength", INFINITY) &&
           (!pattern || found_in(pattern, text, n));
}

static bool array_valid(const json_t *root, const json_t *schema, const json_t *v)
{
    const json_t *prefix = json_object_get(schema, "prefixItems");
    const json_t *items = json_object_get(schema, "items");
    double n = (double)json_array_size(v);
    bool ok = n >= number(schema, "minItems", 0) && n <= number(schema, "maxItems", INFINITY);

    for (size_t i = 0; ok && i < json_array_size(v); i++) {
        const json_t *item = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        ok = !item || schema_valid(root, item, json_array_get(v, i));
    }
    return ok;
}

static bool member_valid(const json_t *root, const json_t *schema, const char *key,
                         const json_t *value)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), key);
    const json_t *rest = json_object_get(schema, "additionalProperties");
    const json_t *names = json_object_get(schema, "propertyNames");
    bool matched = own != NULL, ok = !own || schema_valid(root, own, value);
    const char *pattern;
    json_t *sub, *name = json_string(key);

    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, sub) {
        if (!found_in(pattern, key, strlen(key)))
            continue;
        matched = true;
        ok = ok && schema_valid(root, sub, value);
    }
    ok = ok && (matched || !rest || schema_valid(root, rest, value));
    ok = ok && (!names || schema_valid(root, names, name));
    json_decref(name);
    return ok;
}

static bool object_valid(const json_t *root, const json_t *schema, const json_t *v)
{
    const json_t *required = json_object_get(schema, "required");
    double n = (double)json_object_size(v);
    bool ok =
        n >= number(schema, "minProperties", 0) && n <= number(schema, "maxProperties", INFINITY);
    const char *key;
    json_t *value;

    for (size_t i = 0; ok && i < json_array_size(required); i++)
        ok = json_object_get(v, json_string_value(json_array_get(required, i))) != NULL;
    json_object_foreach((json_t *)v, key, value) {
        ok = ok && member_valid(root, schema, key, value);
    }
    return ok;
}

/* "#" and "#/a/b", without escapes. */
static const json_t *target(const json_t *root, const char *ref)
{
    char name[64];

    while (root && (ref = strchr(ref, '/'))) {
        size_t n = strcspn(++ref, "/");
        snprintf(name, sizeof name, "%.*s", (int)n, ref);
        root = json_object_get(root, name);
    }
    return root;
}

/* How many of the list's schemas the value satisfies. */
static size_t n_valid(const json_t *root, const json_t *list, const json_t *v)
{
    size_t n = 0;

    for (size_t i = 0; i < json_array_size(list); i++)
        n += schema_valid(root, json_array_get(list, i), v);
    return n;
}

static bool combined_valid(const json_t *root, const json_t *schema, const json_t *v)
{
    const json_t *all = json_object_get(schema, "allOf"), *any = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "oneOf"), *ref = json_object_get(schema, "$ref");

    return (!all || n_valid(root, all, v) == json_array_size(all)) &&
           (!any || n_valid(root, any, v) > 0) && (!one || n_valid(root, one, v) == 1) &&
           (!ref || schema_valid(root, target(root, json_string_value(ref)), v));
}

bool schema_valid(const json_t *root, const json_t *schema, const json_t *v)
{
    if (json_is_boolean(schema))
        return json_is_true(schema);
    if (!type_valid(schema, v) || !list_valid(schema, v) || !combined_valid(root, schema, v))
        return false;
    if (json_is_number(v))
        return number_valid(schema, json_number_value(v));
    if (json_is_string(v))
        return string_valid(schema, json_string_value(v), json_string_length(v));
    if (json_is_array(v))
        return array_valid(root, schema, v);
    return !json_is_object(v) || object_valid(root, schema, v);
}
