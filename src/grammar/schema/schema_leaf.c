/*
 * schema_leaf.c - the constraints of a set of subschemas without open unions: types, values,
 * numbers, strings, arrays. Bounds of several subschemas are combined.
 *
 * Called by schema_node.c for each such set; schema_keys.c handles objects' names. Where no
 * subschema names a type, its keywords imply one: properties make it an object. Must not: decide
 * whether a value exists; schema_live.c does.
 */
#include "grammar/schema/schema.h"

#include <string.h>

/* ---------------------------------------------------------------- types */

static const struct {
    const char *name;
    uint32_t bits;
} type_names[] = {{"null", SV_NULL},     {"boolean", SV_BOOL},
                  {"integer", SV_WHOLE}, {"number", SV_WHOLE | SV_BROKEN},
                  {"string", SV_STRING}, {"array", SV_ARRAY},
                  {"object", SV_OBJECT}};

/* Keywords that constrain one type only. */
static const struct {
    const char *key;
    uint32_t bits;
} implied[] = {{"properties", SV_OBJECT},
               {"required", SV_OBJECT},
               {"additionalProperties", SV_OBJECT},
               {"patternProperties", SV_OBJECT},
               {"propertyNames", SV_OBJECT},
               {"minProperties", SV_OBJECT},
               {"maxProperties", SV_OBJECT},
               {"items", SV_ARRAY},
               {"prefixItems", SV_ARRAY},
               {"minItems", SV_ARRAY},
               {"maxItems", SV_ARRAY},
               {"minLength", SV_STRING},
               {"maxLength", SV_STRING},
               {"pattern", SV_STRING},
               {"minimum", SV_WHOLE | SV_BROKEN},
               {"maximum", SV_WHOLE | SV_BROKEN},
               {"exclusiveMinimum", SV_WHOLE | SV_BROKEN},
               {"exclusiveMaximum", SV_WHOLE | SV_BROKEN},
               {"multipleOf", SV_WHOLE | SV_BROKEN}};

static uint32_t type_bits(const json_t *name)
{
    for (size_t i = 0; i < sizeof type_names / sizeof type_names[0]; i++)
        if (json_is_string(name) && !strcmp(json_string_value(name), type_names[i].name))
            return type_names[i].bits;
    return 0;
}

uint32_t sv_types_said(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type");
    uint32_t bits = type_bits(type);

    for (size_t i = 0; i < json_array_size(type); i++) {
        uint32_t one = type_bits(json_array_get(type, i));
        if (!one)
            return 0;
        bits |= one;
    }
    return bits && json_is_true(json_object_get(schema, "nullable")) ? bits | SV_NULL : bits;
}

uint32_t sv_types_implied(const json_t *schema)
{
    uint32_t bits = 0;

    for (size_t i = 0; i < sizeof implied / sizeof implied[0]; i++)
        if (json_object_get(schema, implied[i].key))
            bits |= implied[i].bits;
    return bits;
}

static int read_types(struct sv_schema *s, const struct sv_spot *spot, uint32_t *types, bool *typed)
{
    uint32_t bits = sv_types_said(spot->schema);

    if (!json_object_get(spot->schema, "type"))
        return SV_OK;
    if (!bits)
        return sv_schema_fail(s, SV_EINVAL, spot->path,
                              "'type' must be null, boolean, integer, number, string, array, "
                              "object, or a list of these");
    *types &= bits;
    *typed = true;
    return SV_OK;
}

/* ---------------------------------------------------------------- values */

/* Intersects the values so far with the list. */
static int read_values(struct sv_schema *s, struct sv_leaf *leaf, const json_t *one,
                       const json_t *list)
{
    size_t n = one ? 1 : json_array_size(list), n_kept = 0;
    const json_t **kept = sv_schema_alloc(s, n, sizeof *kept);
    int status = kept ? SV_OK : SV_ENOMEM;

    for (size_t i = 0; i < n && status == SV_OK; i++) {
        const json_t *v = one ? one : json_array_get(list, i);
        bool known = !leaf->has_values;
        status = sv_dfa_spend(&s->room, 1, s->err);
        for (size_t k = 0; k < leaf->n_values && !known && s->room.work > 0; k++)
            known = sv_values_equal(s, v, leaf->values[k]);
        if (known)
            kept[n_kept++] = v;
    }
    leaf->has_values = true;
    leaf->values = kept;
    leaf->n_values = n_kept;
    return status;
}

static int read_enum(struct sv_schema *s, struct sv_leaf *leaf, const struct sv_spot *spot)
{
    const json_t *one = json_object_get(spot->schema, "const");
    const json_t *list = json_object_get(spot->schema, "enum");
    int status = SV_OK;

    if (list && !json_array_size(list))
        return sv_schema_fail(s, SV_EINVAL, spot->path, "'enum' must be a list that is not empty");
    if (list)
        status = read_values(s, leaf, NULL, list);
    if (one && status == SV_OK)
        status = read_values(s, leaf, one, NULL);
    return sv_schema_at(s, status, spot->path);
}

/* ---------------------------------------------------------------- numbers */

static void raise_lo(struct sv_numbers *n, const struct sv_decimal *lo, bool over)
{
    int order = n->has_lo ? sv_decimal_compare(lo, &n->lo) : 1;

    if (order > 0) {
        n->lo = *lo;
        n->over_lo = over;
    } else if (order == 0) {
        n->over_lo |= over;
    }
    n->has_lo = true;
}

static void lower_hi(struct sv_numbers *n, const struct sv_decimal *hi, bool under)
{
    int order = n->has_hi ? sv_decimal_compare(hi, &n->hi) : -1;

    if (order < 0) {
        n->hi = *hi;
        n->under_hi = under;
    } else if (order == 0) {
        n->under_hi |= under;
    }
    n->has_hi = true;
}

static int read_decimal(struct sv_schema *s, const struct sv_spot *spot, const char *key,
                        struct sv_decimal *d, bool *there)
{
    const json_t *v = json_object_get(spot->schema, key);

    *there = false;
    if (!v || json_is_null(v))
        return SV_OK;
    if (!json_is_number(v))
        return sv_schema_fail(s, SV_EINVAL, spot->path, "'%s' must be a number", key);
    *there = true;
    if (sv_number_cut(v))
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path, "'%s' is beyond 64 bits", key);
    if (sv_decimal_read(d, v) != SV_OK)
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path, "'%s' has more than %d digits", key,
                              SV_NUMBER_LONGEST);
    return SV_OK;
}

/* exclusiveMinimum and exclusiveMaximum are numbers, or in old schemas `true`: minimum or maximum
 * is excluded. */
static int read_bound(struct sv_schema *s, const struct sv_spot *spot, const char *key,
                      const char *exclusive, struct sv_numbers *n,
                      void (*tighten)(struct sv_numbers *, const struct sv_decimal *, bool))
{
    const json_t *excluded = json_object_get(spot->schema, exclusive);
    struct sv_decimal d;
    bool there;
    int status = read_decimal(s, spot, key, &d, &there);

    if (status == SV_OK && there)
        tighten(n, &d, json_is_true(excluded));
    if (status != SV_OK || json_is_boolean(excluded))
        return status;
    status = read_decimal(s, spot, exclusive, &d, &there);
    if (status == SV_OK && there)
        tighten(n, &d, true);
    return status;
}

/* Formats of OpenAPI that are ranges. */
static void read_number_format(const struct sv_spot *spot, struct sv_numbers *n)
{
    static const struct {
        const char *name, *lo, *hi;
    } ranges[] = {{"int8", "-128", "127"},
                  {"uint8", "0", "255"},
                  {"int16", "-32768", "32767"},
                  {"uint16", "0", "65535"},
                  {"int32", "-2147483648", "2147483647"},
                  {"uint32", "0", "4294967295"},
                  {"int64", "-9223372036854775808", "9223372036854775807"},
                  {"uint64", "0", "18446744073709551615"}};
    const char *format = json_string_value(json_object_get(spot->schema, "format"));

    for (size_t i = 0; format && i < sizeof ranges / sizeof ranges[0]; i++) {
        struct sv_decimal lo, hi;
        if (strcmp(format, ranges[i].name))
            continue;
        sv_decimal_text(&lo, ranges[i].lo);
        sv_decimal_text(&hi, ranges[i].hi);
        raise_lo(n, &lo, false);
        lower_hi(n, &hi, false);
    }
}

static int read_numbers(struct sv_schema *s, const struct sv_spot *spot, struct sv_numbers *n)
{
    struct sv_decimal step;
    bool there = false;
    int status = read_bound(s, spot, "minimum", "exclusiveMinimum", n, raise_lo);

    if (status == SV_OK)
        status = read_bound(s, spot, "maximum", "exclusiveMaximum", n, lower_hi);
    read_number_format(spot, n);
    if (status == SV_OK)
        status = read_decimal(s, spot, "multipleOf", &step, &there);
    if (status != SV_OK || !there)
        return status;
    if (step.negative || !step.n_digits)
        return sv_schema_fail(s, SV_EINVAL, spot->path, "'multipleOf' must be above 0");
    if (n->has_step && sv_decimal_compare(&n->step, &step))
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path,
                              "two different 'multipleOf' for one value are not supported");
    n->step = step;
    n->has_step = true;
    return SV_OK;
}

static int make_numbers(struct sv_schema *s, struct sv_leaf *leaf, const char *path)
{
    const struct sv_numbers *n = &leaf->numbers;
    const struct sv_dfa *text;
    int status = SV_OK;

    if (!n->has_lo && !n->has_hi && !n->has_step)
        return SV_OK;
    for (int whole = 0; whole < 2 && status == SV_OK; whole++) {
        if (!(leaf->types & (whole ? SV_WHOLE : SV_BROKEN)))
            continue;
        status = sv_numbers_dfa(&s->room, n, whole, &text, s->err);
        if (status == SV_OK)
            status = sv_dfa_slim(&s->room, &text, s->err);
        leaf->number_text[whole] = text;
    }
    return sv_schema_at(s, status, path);
}

/* ---------------------------------------------------------------- arrays */

int sv_schema_count(struct sv_schema *s, const struct sv_spot *spot, const char *key, bool is_max,
                    int64_t *bound)
{
    int64_t n = -1;
    int status = sv_json_int_opt(spot->schema, key, 0, INT64_MAX, &n, s->err);

    if (status != SV_OK)
        return sv_schema_at(s, status, spot->path);
    if (n > SV_SCHEMA_REPEATS)
        return sv_schema_fail(s, SV_EFULL, spot->path, "'%s' is %lld, at most %d is supported", key,
                              (long long)n, SV_SCHEMA_REPEATS);
    if (n >= 0 && (is_max ? *bound < 0 || n < *bound : n > *bound))
        *bound = n;
    return SV_OK;
}

/* The subschemas by position, and the one for the rest: prefixItems and items, or in older drafts
 * items (an array) and additionalItems. */
struct items {
    const json_t *prefix, *rest; /* NULL: not there */
    const char *prefix_key, *rest_key;
};

static struct items items_of(const json_t *schema)
{
    bool old = json_is_array(json_object_get(schema, "items"));
    struct items items = {.prefix_key = old ? "items" : "prefixItems",
                          .rest_key = old ? "additionalItems" : "items"};

    items.prefix = json_object_get(schema, items.prefix_key);
    items.rest = json_object_get(schema, items.rest_key);
    return items;
}

/* The node of the item at a position; all positions from n_prefix on have the same. */
static int item_node(struct sv_schema *s, const struct sv_schema_node *node, size_t place,
                     bool *said, int32_t *out)
{
    struct sv_set set = {0};
    const char *at = node->path;
    int status = SV_OK;

    *said = false;
    for (int32_t i = 0; i < node->n_parts && status == SV_OK; i++) {
        const struct sv_spot *spot = &s->spots[node->parts[i].spot];
        struct items items = items_of(spot->schema);
        bool by_place = place < json_array_size(items.prefix);
        const json_t *item = by_place ? json_array_get(items.prefix, place) : items.rest;
        if (!item)
            continue;
        const char *path =
            sv_schema_path(s, spot->path, by_place ? items.prefix_key : items.rest_key);
        if (by_place)
            path = sv_schema_path_index(s, path, place);
        at = *said ? at : path;
        *said = true;
        status = sv_schema_at(s, sv_dfa_spend(&s->room, 8, s->err), path);
        if (status == SV_OK)
            status = sv_set_add(s, &set, item, path);
    }
    return status == SV_OK ? sv_node_of(s, &set, at, out) : status;
}

static int make_items(struct sv_schema *s, int32_t node, struct sv_leaf *leaf)
{
    size_t n_prefix = 0;
    bool said;
    int status = SV_OK;

    for (int32_t i = 0; i < s->nodes[node].n_parts && status == SV_OK; i++) {
        const struct sv_spot *spot = &s->spots[s->nodes[node].parts[i].spot];
        const json_t *prefix = items_of(spot->schema).prefix;
        if (prefix && !json_is_array(prefix))
            return sv_schema_fail(s, SV_EINVAL, spot->path, "'prefixItems' must be a list");
        if (json_array_size(prefix) > n_prefix)
            n_prefix = json_array_size(prefix);
        status = sv_schema_count(s, spot, "minItems", false, &leaf->min_items);
        if (status == SV_OK)
            status = sv_schema_count(s, spot, "maxItems", true, &leaf->max_items);
        if (status == SV_OK && json_is_true(json_object_get(spot->schema, "uniqueItems")))
            leaf->max_items = leaf->max_items < 0 || leaf->max_items > 1 ? 1 : leaf->max_items;
    }
    if (status != SV_OK || !(leaf->types & SV_ARRAY))
        return status;
    leaf->prefix = sv_schema_alloc(s, n_prefix + 1, sizeof *leaf->prefix);
    if (!leaf->prefix)
        return SV_ENOMEM;
    leaf->n_prefix = (int32_t)n_prefix;
    for (size_t i = 0; i < n_prefix && status == SV_OK; i++)
        status = item_node(s, &s->nodes[node], i, &said, &leaf->prefix[i]);
    if (status == SV_OK)
        status = item_node(s, &s->nodes[node], n_prefix, &said, &leaf->items);
    /* as with properties: prefixItems without items allows no further items */
    if (n_prefix && !said && leaf->min_items <= (int64_t)n_prefix)
        leaf->items = SV_SCHEMA_NEVER;
    return status;
}

/* ---------------------------------------------------------------- all of it */

int sv_leaf_make(struct sv_schema *s, int32_t node)
{
    struct sv_leaf *leaf = sv_schema_alloc(s, 1, sizeof *leaf);
    const int32_t n_parts = s->nodes[node].n_parts;
    const struct sv_part *parts = s->nodes[node].parts;
    const char *path = s->nodes[node].path;
    bool typed = false;
    uint32_t hints = 0;
    int status = leaf ? SV_OK : SV_ENOMEM;

    if (status != SV_OK)
        return status;
    leaf->types = SV_ANY_TYPE;
    leaf->max_items = leaf->max_members = -1;
    for (int32_t i = 0; i < n_parts && status == SV_OK; i++) {
        const struct sv_spot *spot = &s->spots[parts[i].spot];
        hints |= sv_types_implied(spot->schema);
        status = sv_schema_at(s, sv_dfa_spend(&s->room, 8, s->err), spot->path);
        if (status == SV_OK)
            status = read_types(s, spot, &leaf->types, &typed);
        if (status == SV_OK)
            status = read_enum(s, leaf, spot);
        if (status == SV_OK)
            status = read_numbers(s, spot, &leaf->numbers);
    }
    if (!typed && !leaf->has_values && hints)
        leaf->types = hints;
    if (status == SV_OK)
        status = make_numbers(s, leaf, path);
    if (status == SV_OK)
        status = sv_strings_make(s, parts, n_parts, path, leaf->types, &leaf->strings);
    if (status == SV_OK)
        status = make_items(s, node, leaf);
    if (status == SV_OK)
        status = sv_keys_make(s, node, leaf);
    s->nodes[node].leaf = leaf;
    return status;
}
