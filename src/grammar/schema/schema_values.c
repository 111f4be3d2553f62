/*
 * schema_values.c - the values of enum and const: which of them are equal, and which the other
 * keywords allow.
 *
 * Called by schema_leaf.c and, once all nodes are made, by schema.c. Must not: check generated
 * text; the grammar does.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define MAX_DEPTH 200

/* ---------------------------------------------------------------- equal */

static bool equal_numbers(const json_t *a, const json_t *b)
{
    struct sv_decimal x, y;

    return sv_decimal_read(&x, a) == SV_OK && sv_decimal_read(&y, b) == SV_OK
               ? !sv_decimal_compare(&x, &y)
               : json_number_value(a) == json_number_value(b);
}

/* Units of work, some 100 ns each, to visit a value without its members. */
static int64_t look(const json_t *v)
{
    if (json_is_string(v))
        return 1 + (int64_t)json_string_length(v) / 1024;
    return json_is_number(v) || json_is_object(v) ? 4 : 1;
}

static bool equal(struct sv_schema *s, const json_t *a, const json_t *b, int depth)
{
    const char *key;
    json_t *value;

    if (sv_dfa_spend(&s->room, look(a), NULL) != SV_OK)
        return false;
    if (json_is_number(a) && json_is_number(b))
        return equal_numbers(a, b);
    if (json_typeof(a) != json_typeof(b) || depth > MAX_DEPTH)
        return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!equal(s, json_array_get(a, i), json_array_get(b, i), depth + 1))
                return false;
        return true;
    }
    if (!json_is_object(a))
        return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b))
        return false;
    json_object_foreach((json_t *)a, key, value) {
        const json_t *other = json_object_get(b, key);
        if (!other || !equal(s, value, other, depth + 1))
            return false;
    }
    return true;
}

bool sv_values_equal(struct sv_schema *s, const json_t *a, const json_t *b)
{
    return equal(s, a, b, 0);
}

/* ---------------------------------------------------------------- allowed */

static bool allows(struct sv_schema *s, int32_t node, const json_t *v, int depth);

static uint32_t type_of(const json_t *v)
{
    struct sv_decimal d;

    switch (json_typeof(v)) {
    case JSON_NULL:
        return SV_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SV_BOOL;
    case JSON_INTEGER:
        return SV_WHOLE;
    case JSON_REAL: /* 1.0 is an integer */
        return sv_decimal_read(&d, v) == SV_OK && d.n_digits <= d.point ? SV_WHOLE : SV_BROKEN;
    case JSON_STRING:
        return SV_STRING;
    case JSON_ARRAY:
        return SV_ARRAY;
    case JSON_OBJECT:
        return SV_OBJECT;
    }
    return 0;
}

/* The digits of the value, without point and exponent, as the automaton takes numbers. */
static bool number_allowed(const struct sv_leaf *leaf, const json_t *v)
{
    const bool whole = type_of(v) == SV_WHOLE;
    const struct sv_dfa *text = leaf->number_text[whole];
    struct sv_decimal d;
    char digits[2 * SV_NUMBER_LONGEST + 8];
    size_t n = 0;

    if (!text)
        return true;
    if (sv_decimal_read(&d, v) != SV_OK)
        return false;
    if (d.negative)
        digits[n++] = '-';
    for (int place = d.point > 0 ? d.point - 1 : 0; place >= 0; place--)
        digits[n++] = (char)('0' + sv_decimal_digit(&d, place));
    for (int place = -1; place >= d.point - d.n_digits; place--) {
        if (place == -1)
            digits[n++] = '.';
        digits[n++] = (char)('0' + sv_decimal_digit(&d, place));
    }
    return sv_dfa_has(text, digits, n);
}

/* U+0000 is in no set of strings. */
static bool string_allowed(const struct sv_leaf *leaf, const char *text, size_t n)
{
    return !memchr(text, 0, n) && (!leaf->strings || sv_dfa_has(leaf->strings, text, n));
}

static bool array_allowed(struct sv_schema *s, const struct sv_leaf *leaf, const json_t *v,
                          int depth)
{
    int64_t n = (int64_t)json_array_size(v);

    if (n < leaf->min_items || (leaf->max_items >= 0 && n > leaf->max_items))
        return false;
    for (int64_t i = 0; i < n; i++) {
        int32_t node = i < leaf->n_prefix ? leaf->prefix[i] : leaf->items;
        if (!allows(s, node, json_array_get(v, (size_t)i), depth))
            return false;
    }
    return true;
}

/* The node that a name's value must satisfy. */
static int32_t value_node(const struct sv_leaf *leaf, const char *name)
{
    for (int32_t i = 0; i < leaf->n_members; i++)
        if (!strcmp(leaf->members[i].name, name))
            return leaf->members[i].node;
    for (int32_t i = 0; i < leaf->n_extras; i++)
        if (!leaf->extras[i].names || sv_dfa_has(leaf->extras[i].names, name, strlen(name)))
            return leaf->extras[i].node;
    return SV_SCHEMA_NEVER;
}

static bool object_allowed(struct sv_schema *s, const struct sv_leaf *leaf, const json_t *v,
                           int depth)
{
    int64_t n = (int64_t)json_object_size(v);
    const char *key;
    json_t *value;

    if (n < leaf->min_members || (leaf->max_members >= 0 && n > leaf->max_members))
        return false;
    for (int32_t i = 0; i < leaf->n_members; i++)
        if (leaf->members[i].required && !json_object_get(v, leaf->members[i].name))
            return false;
    json_object_foreach((json_t *)v, key, value) {
        if (!allows(s, value_node(leaf, key), value, depth))
            return false;
    }
    return true;
}

/* Except the list of values. */
static bool leaf_allows(struct sv_schema *s, const struct sv_leaf *leaf, const json_t *v, int depth)
{
    uint32_t type = type_of(v);

    if (!(leaf->types & type))
        return false;
    if (type & (SV_WHOLE | SV_BROKEN))
        return number_allowed(leaf, v);
    if (type == SV_STRING)
        return string_allowed(leaf, json_string_value(v), json_string_length(v));
    if (type == SV_ARRAY)
        return array_allowed(s, leaf, v, depth);
    return type != SV_OBJECT || object_allowed(s, leaf, v, depth);
}

static bool listed(struct sv_schema *s, const struct sv_leaf *leaf, const json_t *v)
{
    for (size_t i = 0; i < leaf->n_values; i++)
        if (sv_values_equal(s, v, leaf->values[i]))
            return true;
    return !leaf->has_values;
}

static bool allows(struct sv_schema *s, int32_t node, const json_t *v, int depth)
{
    const struct sv_leaf *leaf = s->nodes[node].leaf;

    if (node == SV_SCHEMA_NEVER || depth > MAX_DEPTH)
        return false;
    if (sv_dfa_spend(&s->room, 8, NULL) != SV_OK)
        return false;
    if (leaf)
        return listed(s, leaf, v) && leaf_allows(s, leaf, v, depth + 1);
    for (int32_t i = 0; i < s->nodes[node].n_alts; i++)
        if (allows(s, s->nodes[node].alts[i], v, depth + 1))
            return true;
    return false;
}

/* Removes from each node's list the values that its other keywords refuse. */
int sv_values_filter(struct sv_schema *s)
{
    for (int32_t i = 0; i < s->n_nodes; i++) {
        struct sv_leaf *leaf = s->nodes[i].leaf;
        size_t n_kept = 0;
        if (!leaf || !leaf->has_values)
            continue;
        for (size_t v = 0; v < leaf->n_values; v++) {
            bool kept = leaf_allows(s, leaf, leaf->values[v], 0);
            /* afterwards, as it returns false when no work is left */
            int status = sv_dfa_spend(&s->room, 1, s->err);
            if (status != SV_OK)
                return sv_schema_at(s, status, s->nodes[i].path);
            if (kept)
                leaf->values[n_kept++] = leaf->values[v];
        }
        leaf->n_values = n_kept;
        leaf->types = 0;
        for (size_t v = 0; v < n_kept; v++)
            leaf->types |= type_of(leaf->values[v]);
    }
    return SV_OK;
}
