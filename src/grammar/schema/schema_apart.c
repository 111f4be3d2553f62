/*
 * schema_apart.c - detects pairs of subschemas that no value satisfies together, without making
 * nodes of them.
 *
 * Called by schema_node.c for every two alternatives of a oneOf: most differ by their type or by a
 * property with a const, which is enough. What is not detected here is found by making the set of
 * both. Must not: report a difference that is not certain.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define MAX_VIEWS 8 /* $ref after $ref */

/* The subschema and those that it refers to; each has a part of its constraints. */
static int views_of(struct sv_schema *s, const json_t *schema, const json_t *views[MAX_VIEWS])
{
    const char *path;
    int n = 0;

    while (json_is_object(schema) && n < MAX_VIEWS) {
        const json_t *ref = json_object_get(schema, "$ref");
        views[n++] = schema;
        if (!ref || sv_ref_target(s, ref, "schema", &schema, &path) != SV_OK)
            break;
    }
    return n;
}

static bool types_apart(const json_t *a, const json_t *b)
{
    uint32_t x = sv_types_said(a), y = sv_types_said(b);

    return x && y && !(x & y);
}

/* The i-th of a subschema's enum or const; NULL: there is none. */
static const json_t *value_at(const json_t *schema, size_t i)
{
    const json_t *one = json_object_get(schema, "const");

    return one ? (i ? NULL : one) : json_array_get(json_object_get(schema, "enum"), i);
}

static bool values_apart(struct sv_schema *s, const json_t *a, const json_t *b)
{
    const json_t *x, *y;

    if (!value_at(a, 0) || !value_at(b, 0))
        return false;
    for (size_t i = 0; (x = value_at(a, i)); i++)
        for (size_t j = 0; (y = value_at(b, j)); j++)
            if (sv_values_equal(s, x, y) || s->room.work == 0)
                return false;
    return true;
}

static bool requires(const json_t *schema, const json_t *name)
{
    const json_t *required = json_object_get(schema, "required");

    for (size_t i = 0; i < json_array_size(required); i++)
        if (json_equal(json_array_get(required, i), name))
            return true;
    return false;
}

/* Whether this subschema allows objects only. */
static bool object_only(const json_t *schema)
{
    uint32_t said = sv_types_said(schema);

    return (said ? said : sv_types_implied(schema)) == SV_OBJECT;
}

/* Whether both require a property whose value cannot satisfy both. */
static bool members_apart(struct sv_schema *s, const json_t *a, const json_t *b)
{
    const json_t *required = json_object_get(a, "required");

    if (!object_only(a) || !object_only(b))
        return false;
    for (size_t i = 0; i < json_array_size(required); i++) {
        const json_t *name = json_array_get(required, i);
        const char *key = json_string_value(name);
        const json_t *x = key ? json_object_get(json_object_get(a, "properties"), key) : NULL;
        const json_t *y = key ? json_object_get(json_object_get(b, "properties"), key) : NULL;
        if (x && y && requires(b, name) && (types_apart(x, y) || values_apart(s, x, y)))
            return true;
    }
    return false;
}

bool sv_plainly_apart(struct sv_schema *s, const json_t *a, const json_t *b)
{
    const json_t *of_a[MAX_VIEWS], *of_b[MAX_VIEWS];
    int n_a = views_of(s, a, of_a), n_b = views_of(s, b, of_b);

    for (int i = 0; i < n_a; i++)
        for (int j = 0; j < n_b; j++)
            if (types_apart(of_a[i], of_b[j]) || values_apart(s, of_a[i], of_b[j]) ||
                members_apart(s, of_a[i], of_b[j]))
                return true;
    return false;
}
