/*
 * schema_read.c - finds subschemas: which keywords they have, and where $ref and allOf lead.
 *
 * Called by schema_node.c, schema_leaf.c and schema_keys.c whenever a subschema joins a set. Each
 * one is read once. Keywords of the standard that are not supported are refused here by name. Must
 * not: read the values of keywords that belong to a type.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define MAX_FOLLOWED 200 /* nested $ref and allOf */

/* ---------------------------------------------------------------- keywords */

static bool one_of(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(key, *list))
            return true;
    return false;
}

/* Keywords that this folder supports and that constrain values. */
static const char *const asserting[] = {"type",
                                        "enum",
                                        "const",
                                        "nullable",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "patternProperties",
                                        "propertyNames",
                                        "minProperties",
                                        "maxProperties",
                                        "unevaluatedProperties",
                                        "anyOf",
                                        "oneOf",
                                        NULL};

static const char *const refused[] = {"not",
                                      "dependentRequired",
                                      "dependentSchemas",
                                      "dependencies",
                                      "contains",
                                      "minContains",
                                      "maxContains",
                                      "unevaluatedItems",
                                      "$dynamicRef",
                                      "$recursiveRef",
                                      "disallow",
                                      "extends",
                                      "divisibleBy",
                                      NULL};

static int check_keywords(struct sv_schema *s, struct sv_spot *spot)
{
    const json_t *schema = spot->schema, *unique = json_object_get(schema, "uniqueItems");
    const json_t *most = json_object_get(schema, "maxItems");
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)schema, key, value) {
        if (one_of(key, refused))
            return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path, "'%s' is not supported", key);
        spot->asserts |= one_of(key, asserting);
    }
    if (json_object_get(schema, "if") &&
        (json_object_get(schema, "then") || json_object_get(schema, "else")))
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path, "'if' is not supported");
    if (unique && !json_is_false(unique) && !(most && json_number_value(most) <= 1))
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path,
                              "'uniqueItems' is not supported beyond one item");
    if (schema != s->root && json_is_string(json_object_get(schema, "$id")))
        return sv_schema_fail(s, SV_EUNSUPPORTED, spot->path,
                              "'$id' is supported at the root only");
    return SV_OK;
}

/* ---------------------------------------------------------------- spots */

static uint32_t hash_address(const json_t *schema)
{
    uint64_t x = (uint64_t)(uintptr_t)schema * 0x9E3779B97F4A7C15u;

    return (uint32_t)(x >> 32);
}

/* The table grows before it is half full. */
static int grow_table(struct sv_schema *s)
{
    int32_t n = s->n_spot_table ? s->n_spot_table * 4 : 64;
    int32_t *table = sv_schema_alloc(s, (size_t)n, sizeof *table);

    if (!table)
        return SV_ENOMEM;
    for (int32_t i = 0; i < s->n_spots; i++) {
        uint32_t at = hash_address(s->spots[i].schema) & (uint32_t)(n - 1);
        while (table[at])
            at = (at + 1) & (uint32_t)(n - 1);
        table[at] = i + 1;
    }
    s->spot_table = table;
    s->n_spot_table = n;
    return SV_OK;
}

static int spot_of(struct sv_schema *s, const json_t *schema, const char *path, int32_t *spot)
{
    uint32_t at;
    int status;

    if (s->n_spots * 2 >= s->n_spot_table && (status = grow_table(s)) != SV_OK)
        return status;
    at = hash_address(schema) & (uint32_t)(s->n_spot_table - 1);
    for (; s->spot_table[at]; at = (at + 1) & (uint32_t)(s->n_spot_table - 1))
        if (s->spots[s->spot_table[at] - 1].schema == schema) {
            *spot = s->spot_table[at] - 1;
            return SV_OK;
        }
    status = sv_schema_grow(s, &s->spots, s->n_spots, &s->cap_spots, sizeof *s->spots);
    if (status != SV_OK)
        return status;
    s->spots[s->n_spots] = (struct sv_spot){.schema = schema, .path = path};
    *spot = s->n_spots++;
    s->spot_table[at] = s->n_spots;
    return check_keywords(s, &s->spots[*spot]);
}

/* ---------------------------------------------------------------- references */

static int hex(char c)
{
    return c >= '0' && c <= '9'                 ? c - '0'
           : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                : -1;
}

/* One step of a JSON pointer in a URI fragment, decoded in place: %xx, then ~0 and ~1. */
static bool decode_step(char *key, size_t n)
{
    size_t n_plain = 0, to = 0;

    for (size_t i = 0; i < n; i++) {
        char c = key[i];
        if (c == '%') {
            if (i + 2 >= n || hex(key[i + 1]) < 0 || hex(key[i + 2]) < 0)
                return false;
            c = (char)(hex(key[i + 1]) * 16 + hex(key[i + 2]));
            i += 2;
        }
        key[n_plain++] = c;
    }
    for (size_t i = 0; i < n_plain; i++) {
        char c = key[i];
        if (c == '~') {
            c = ++i < n_plain ? key[i] : 0;
            if (c != '0' && c != '1')
                return false;
            c = c == '1' ? '/' : '~';
        }
        if (!c)
            return false;
        key[to++] = c;
    }
    key[to] = 0;
    return true;
}

static const json_t *step_into(const json_t *at, const char *key)
{
    size_t index = 0;

    if (json_is_object(at))
        return json_object_get(at, key);
    if (!json_is_array(at) || !*key || strlen(key) > 9 || (*key == '0' && key[1]))
        return NULL;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return NULL;
        index = index * 10 + (size_t)(*key - '0');
    }
    return json_array_get(at, index);
}

/* Resolves "#", "#/a/b" or the same after the root's $id. */
int sv_ref_target(struct sv_schema *s, const json_t *ref, const char *path, const json_t **target,
                  const char **target_path)
{
    const char *text = json_string_value(ref), *id;

    if (!text || strlen(text) != json_string_length(ref))
        return sv_schema_fail(s, SV_EINVAL, path, "'$ref' must be a string");
    id = json_string_value(json_object_get(s->root, "$id"));
    if (id && !strncmp(text, id, strcspn(id, "#")))
        text += strcspn(id, "#");
    if (*text && (*text != '#' || (text[1] && text[1] != '/')))
        return sv_schema_fail(s, SV_EUNSUPPORTED, path,
                              "$ref '%.80s': only places in this schema, as '#/$defs/name'", text);
    *target = s->root;
    *target_path = "schema";
    for (text += *text == '#'; *text == '/';) {
        size_t n = strcspn(++text, "/");
        char *key = sv_schema_alloc(s, n + 1, 1);
        if (!key)
            return SV_ENOMEM;
        memcpy(key, text, n);
        *target = decode_step(key, n) ? step_into(*target, key) : NULL;
        if (!*target)
            return sv_schema_fail(s, SV_EINVAL, path, "$ref '%.80s' leads nowhere",
                                  json_string_value(ref));
        *target_path = sv_schema_path(s, *target_path, key);
        text += n;
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- what speaks of the same value */

enum followed { NOT_YET, ON_THE_WAY, FOLLOWED };

/* Follows $ref, allOf, anyOf and oneOf, each once. A subschema that refers to itself without
 * entering a member or an item is refused. */
static int follow(struct sv_schema *s, const json_t *schema, const char *path, int depth)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const json_t *ref = json_object_get(schema, "$ref"), *target;
    const char *target_path;
    int32_t spot;
    int status;

    if (!json_is_object(schema))
        return SV_OK;
    status = spot_of(s, schema, path, &spot);
    if (status != SV_OK || s->spots[spot].followed == FOLLOWED)
        return status;
    if (s->spots[spot].followed == ON_THE_WAY)
        return sv_schema_fail(s, SV_EINVAL, path, "refers to itself without end");
    if (depth > MAX_FOLLOWED)
        return sv_schema_fail(s, SV_EFULL, path, "more than %d references within one another",
                              MAX_FOLLOWED);
    s->spots[spot].followed = ON_THE_WAY;
    if (ref)
        status = sv_ref_target(s, ref, path, &target, &target_path);
    if (ref && status == SV_OK)
        status = follow(s, target, target_path, depth + 1);
    for (size_t k = 0; k < 3; k++) {
        const json_t *list = json_object_get(schema, lists[k]);
        const char *at = list ? sv_schema_path(s, path, lists[k]) : path;
        if (list && !json_array_size(list) && status == SV_OK)
            status = sv_schema_fail(s, SV_EINVAL, at, "must be a list that is not empty");
        for (size_t i = 0; i < json_array_size(list) && status == SV_OK; i++)
            status = follow(s, json_array_get(list, i), sv_schema_path_index(s, at, i), depth + 1);
    }
    s->spots[spot].followed = FOLLOWED;
    return status;
}

/* ---------------------------------------------------------------- sets */

/* Adds a subschema with a known spot, then those it refers to. */
static int add_spot(struct sv_schema *s, struct sv_set *set, int32_t spot)
{
    const json_t *schema = s->spots[spot].schema, *ref = json_object_get(schema, "$ref");
    const json_t *all = json_object_get(schema, "allOf"), *target;
    const char *path = s->spots[spot].path, *target_path;
    int status = SV_OK;

    if (s->spots[spot].asserts) {
        status = sv_schema_grow(s, &set->parts, set->n, &set->cap, sizeof *set->parts);
        if (status != SV_OK)
            return status;
        set->parts[set->n++] = (struct sv_part){spot, 0};
    }
    if (ref)
        status = sv_ref_target(s, ref, path, &target, &target_path);
    if (ref && status == SV_OK)
        status = sv_set_add(s, set, target, target_path);
    if (all)
        path = sv_schema_path(s, path, "allOf");
    for (size_t i = 0; i < json_array_size(all) && status == SV_OK; i++)
        status = sv_set_add(s, set, json_array_get(all, i), sv_schema_path_index(s, path, i));
    return status;
}

int sv_set_add(struct sv_schema *s, struct sv_set *set, const json_t *schema, const char *path)
{
    int32_t spot;
    int status = sv_dfa_spend(&s->room, 16 + set->n / 8, s->err);

    if (status != SV_OK)
        return sv_schema_at(s, status, path);
    if (json_is_boolean(schema)) {
        set->never |= json_is_false(schema);
        return SV_OK;
    }
    if (!json_is_object(schema))
        return sv_schema_fail(s, SV_EINVAL, path, "a schema must be an object, true or false");
    status = follow(s, schema, path, 0);
    if (status == SV_OK)
        status = spot_of(s, schema, path, &spot);
    if (status != SV_OK)
        return status;
    if (!set->serial)
        set->serial = ++s->n_sets;
    if (s->spots[spot].seen_by == set->serial)
        return SV_OK;
    s->spots[spot].seen_by = set->serial;
    for (int32_t i = 0; i < set->n; i++)
        if (set->parts[i].spot == spot)
            return SV_OK;
    return add_spot(s, set, spot);
}

/* the depth is bounded: the schema was followed when it was added to a set */
int sv_set_beneath(struct sv_schema *s, const json_t *schema, int64_t serial)
{
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const json_t *ref = json_object_get(schema, "$ref"), *target;
    const char *path = "schema";
    int32_t spot;
    int status = json_is_object(schema) ? sv_dfa_spend(&s->room, 2, s->err) : SV_OK;

    if (!json_is_object(schema) || status != SV_OK)
        return status;
    status = spot_of(s, schema, path, &spot);
    if (status != SV_OK || s->spots[spot].seen_by == serial)
        return status;
    s->spots[spot].seen_by = serial;
    if (ref)
        status = sv_ref_target(s, ref, s->spots[spot].path, &target, &path);
    if (ref && status == SV_OK)
        status = sv_set_beneath(s, target, serial);
    for (size_t k = 0; k < 3; k++) {
        const json_t *list = json_object_get(schema, lists[k]);
        for (size_t i = 0; i < json_array_size(list) && status == SV_OK; i++)
            status = sv_set_beneath(s, json_array_get(list, i), serial);
    }
    return status;
}

int sv_set_copy(struct sv_schema *s, struct sv_set *set, const struct sv_schema_node *node)
{
    *set = (struct sv_set){0};
    set->n = set->cap = node->n_parts;
    set->parts = sv_schema_alloc(s, (size_t)node->n_parts + 1, sizeof *set->parts);
    if (!set->parts)
        return SV_ENOMEM;
    if (node->n_parts)
        memcpy(set->parts, node->parts, (size_t)node->n_parts * sizeof *set->parts);
    return SV_OK;
}
