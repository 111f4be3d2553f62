/*
 * schema_keys.c - the names in an object: declared members in the schema's order, and the sets of
 * other names with the nodes of their values.
 *
 * Called by schema_leaf.c. Names that no subschema declares are split by which patternProperties
 * they match, exactly: every set of names gets its own subschemas. A name that is declared is in
 * none of these sets, however its characters are escaped. Must not: allow a name under two
 * different rules.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define MAX_PATTERNS 16 /* of one object, bits of a mask */
#define MAX_EXTRAS 64   /* sets of names */
#define MAX_CLOSERS 8   /* subschemas of one object with unevaluatedProperties */

struct pattern {
    int32_t part;
    const char *text;
    const json_t *schema;
    const struct sv_dfa *names;
};

/* A subschema with "unevaluatedProperties": false, which allows only names that it or one of its
 * subschemas evaluates. */
struct closer {
    bool *beneath; /* (n_parts) */
    bool said;     /* it evaluates the current name */
};

struct keys {
    struct sv_schema *s;
    const struct sv_schema_node *node;
    struct sv_leaf *leaf;
    struct pattern patterns[MAX_PATTERNS];
    int n_patterns;
    struct closer closers[MAX_CLOSERS];
    int n_closers;
    const struct sv_dfa *names; /* NULL: any, else those of propertyNames */
    int32_t cap_members, cap_extras;
    bool declares; /* some subschema lists properties, or closes the object */
};

static const struct sv_spot *spot_at(const struct keys *k, int32_t i)
{
    return &k->s->spots[k->node->parts[i].spot];
}

/* ---------------------------------------------------------------- what one name's value must be */

/* A part's constraints on a name: its properties, its patterns of the mask, or else its
 * additionalProperties. */
static int add_part(struct keys *k, struct sv_set *set, int32_t i, const char *name, uint32_t mask,
                    bool *said, const char **at)
{
    const json_t *schema = spot_at(k, i)->schema;
    const json_t *own = name ? json_object_get(json_object_get(schema, "properties"), name) : NULL;
    const json_t *other = json_object_get(schema, "additionalProperties");
    const char *path = spot_at(k, i)->path;
    bool matched = own != NULL;
    int status = SV_OK;

    if (own) {
        *at = sv_schema_path(k->s, sv_schema_path(k->s, path, "properties"), name);
        status = sv_set_add(k->s, set, own, *at);
    }
    for (int p = 0; p < k->n_patterns && status == SV_OK; p++)
        if (k->patterns[p].part == i && (mask >> p & 1)) {
            matched = true;
            *at = sv_schema_path(k->s, sv_schema_path(k->s, path, "patternProperties"),
                                 k->patterns[p].text);
            status = sv_set_add(k->s, set, k->patterns[p].schema, *at);
        }
    if (!matched && other && status == SV_OK) {
        matched = true;
        *at = sv_schema_path(k->s, path, "additionalProperties");
        status = sv_set_add(k->s, set, other, *at);
    }
    *said |= matched;
    for (int c = 0; c < k->n_closers; c++)
        k->closers[c].said |=
            k->closers[c].beneath[i] &&
            (matched || json_is_true(json_object_get(schema, "unevaluatedProperties")));
    return status;
}

/* The node for a name (NULL: undeclared names) that matches the patterns of the mask. *said: some
 * subschema constrains it. */
static int value_node(struct keys *k, const char *name, uint32_t mask, bool *said, int32_t *out)
{
    struct sv_set set = {0};
    const char *at = k->node->path;
    int status = SV_OK;

    *said = false;
    for (int c = 0; c < k->n_closers; c++)
        k->closers[c].said = false;
    for (int32_t i = 0; i < k->node->n_parts && status == SV_OK; i++)
        status = add_part(k, &set, i, name, mask, said, &at);
    for (int c = 0; c < k->n_closers; c++)
        set.never |= !k->closers[c].said;
    return status == SV_OK ? sv_node_of(k->s, &set, at, out) : status;
}

/* ---------------------------------------------------------------- members */

static struct sv_member *member(const struct keys *k, const char *name)
{
    for (int32_t i = 0; i < k->leaf->n_members; i++)
        if (!strcmp(k->leaf->members[i].name, name))
            return &k->leaf->members[i];
    return NULL;
}

static int add_member(struct keys *k, const char *name, bool required, const char *path)
{
    struct sv_leaf *leaf = k->leaf;
    struct sv_member *known = member(k, name), m = {name, strlen(name), 0, required};
    uint32_t mask = 0;
    bool said;
    int status = sv_dfa_spend(&k->s->room, 1 + leaf->n_members / 4 + (known ? 0 : k->node->n_parts),
                              k->s->err);

    if (known)
        known->required |= required;
    if (known || status != SV_OK)
        return sv_schema_at(k->s, status, path);
    for (int p = 0; p < k->n_patterns; p++)
        mask |= (uint32_t)sv_dfa_has(k->patterns[p].names, name, m.n_name) << p;
    status = value_node(k, name, mask, &said, &m.node);
    if (k->names && !sv_dfa_has(k->names, name, m.n_name))
        m.node = SV_SCHEMA_NEVER;
    if (status == SV_OK)
        status = sv_schema_grow(k->s, &leaf->members, leaf->n_members, &k->cap_members, sizeof m);
    if (status == SV_OK)
        leaf->members[leaf->n_members++] = m;
    return status;
}

static int read_properties(struct keys *k, int32_t i)
{
    const struct sv_spot *spot = spot_at(k, i);
    json_t *properties = json_object_get(spot->schema, "properties"), *value;
    const char *key, *path = spot->path;
    int status = SV_OK;

    if (properties && !json_is_object(properties))
        return sv_schema_fail(k->s, SV_EINVAL, path, "'properties' must be an object");
    json_object_foreach(properties, key, value) {
        if (status == SV_OK)
            status = add_member(k, key, false, path);
    }
    return status;
}

static int read_required(struct keys *k, int32_t i)
{
    const struct sv_spot *spot = spot_at(k, i);
    const json_t *required = json_object_get(spot->schema, "required");
    const char *path = spot->path;
    int status = SV_OK;

    /* Drafts before 4 had `required: true` at the member itself; later ones ignore it. */
    if (required && !json_is_array(required))
        return sv_schema_fail(k->s, SV_EINVAL, path, "'required' must be a list of names");
    for (size_t j = 0; j < json_array_size(required) && status == SV_OK; j++) {
        const json_t *name = json_array_get(required, j);
        if (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))
            return sv_schema_fail(k->s, SV_EINVAL, path,
                                  "'required' must be a list of names without NUL characters");
        status = add_member(k, json_string_value(name), true, path);
    }
    return status;
}

/* ---------------------------------------------------------------- other names */

static int read_patterns(struct keys *k, int32_t i)
{
    const struct sv_spot *spot = spot_at(k, i);
    json_t *patterns = json_object_get(spot->schema, "patternProperties"), *value;
    const char *key, *path = spot->path;

    if (patterns && !json_is_object(patterns))
        return sv_schema_fail(k->s, SV_EINVAL, path, "'patternProperties' must be an object");
    json_object_foreach(patterns, key, value) {
        struct pattern *p = &k->patterns[k->n_patterns];
        int status;
        if (k->n_patterns == MAX_PATTERNS)
            return sv_schema_fail(k->s, SV_EFULL, path,
                                  "more than %d 'patternProperties' for one object", MAX_PATTERNS);
        *p = (struct pattern){i, key, value, NULL};
        status = sv_pattern_dfa(k->s, key, strlen(key),
                                sv_schema_path(k->s, path, "patternProperties"), &p->names);
        if (status != SV_OK)
            return status;
        k->n_patterns++;
    }
    return SV_OK;
}

/* All propertyNames combined; they may not have alternatives. */
static int read_names(struct keys *k)
{
    struct sv_set set = {0};
    const char *path = k->node->path;
    int status = SV_OK;

    for (int32_t i = 0; i < k->node->n_parts && status == SV_OK; i++) {
        const json_t *names = json_object_get(spot_at(k, i)->schema, "propertyNames");
        if (!names)
            continue;
        path = sv_schema_path(k->s, spot_at(k, i)->path, "propertyNames");
        status = sv_set_add(k->s, &set, names, path);
    }
    for (int32_t i = 0; i < set.n && status == SV_OK; i++) {
        const json_t *schema = k->s->spots[set.parts[i].spot].schema;
        if (json_object_get(schema, "anyOf") || json_object_get(schema, "oneOf"))
            status = sv_schema_fail(k->s, SV_EUNSUPPORTED, path,
                                    "alternatives are not supported for names");
    }
    if (set.never && status == SV_OK)
        status = sv_dfa_words(&k->s->room, NULL, 0, &k->names, k->s->err);
    else if (set.n && status == SV_OK)
        status = sv_names_make(k->s, set.parts, set.n, path, &k->names);
    return status;
}

/* The names that match exactly the patterns of the mask, of which p and later are still open. */
static int split(struct keys *k, const struct sv_dfa *names, int p, uint32_t mask)
{
    struct sv_leaf *leaf = k->leaf;
    const struct sv_dfa *with, *rest;
    struct sv_extra extra = {.names = names};
    bool said;
    int status;

    if (names && !names->n_states)
        return SV_OK;
    if (p < k->n_patterns) {
        status = sv_dfa_both(&k->s->room, names, k->patterns[p].names, &with, k->s->err);
        if (status == SV_OK)
            status = sv_dfa_without(&k->s->room, names, k->patterns[p].names, &rest, k->s->err);
        if (status != SV_OK)
            return sv_schema_at(k->s, status, k->node->path);
        status = split(k, with, p + 1, mask | 1u << p);
        return status == SV_OK ? split(k, rest, p + 1, mask) : status;
    }
    status = sv_dfa_spend(&k->s->room, k->node->n_parts, k->s->err);
    if (status != SV_OK)
        return sv_schema_at(k->s, status, k->node->path);
    status = value_node(k, NULL, mask, &said, &extra.node);
    if (status != SV_OK || extra.node == SV_SCHEMA_NEVER || (!said && k->declares))
        return status;
    if (leaf->n_extras == MAX_EXTRAS)
        return sv_schema_fail(k->s, SV_EFULL, k->node->path,
                              "patternProperties split names into more than %d sets", MAX_EXTRAS);
    status = sv_schema_grow(k->s, &leaf->extras, leaf->n_extras, &k->cap_extras, sizeof extra);
    if (status == SV_OK)
        leaf->extras[leaf->n_extras++] = extra;
    return status;
}

/* Every name except the members'. */
static int read_extras(struct keys *k)
{
    const struct sv_leaf *leaf = k->leaf;
    size_t n = (size_t)leaf->n_members;
    struct sv_word *words = sv_schema_alloc(k->s, n, sizeof *words);
    const struct sv_dfa *names = k->names, *declared;
    int status = words ? SV_OK : SV_ENOMEM;

    for (size_t i = 0; i < n && words; i++)
        words[i] = (struct sv_word){leaf->members[i].name, leaf->members[i].n_name};
    if (status == SV_OK && !names && (n || k->n_patterns))
        status = sv_dfa_length(&k->s->room, 0, -1, &names, k->s->err);
    if (status == SV_OK && n)
        status = sv_dfa_words(&k->s->room, words, n, &declared, k->s->err);
    if (status == SV_OK && n)
        status = sv_dfa_without(&k->s->room, names, declared, &names, k->s->err);
    return status == SV_OK ? split(k, names, 0, 0) : sv_schema_at(k->s, status, k->node->path);
}

static int read_closer(struct keys *k, int32_t i)
{
    const struct sv_spot *spot = spot_at(k, i);
    const json_t *rest = json_object_get(spot->schema, "unevaluatedProperties");
    struct closer *c = &k->closers[k->n_closers];
    const int64_t serial = ++k->s->n_sets;

    if (rest && !json_is_boolean(rest))
        return sv_schema_fail(k->s, SV_EUNSUPPORTED, spot->path,
                              "'unevaluatedProperties' must be true or false");
    if (!json_is_false(rest))
        return SV_OK;
    if (k->n_closers == MAX_CLOSERS)
        return sv_schema_fail(k->s, SV_EFULL, spot->path,
                              "more than %d 'unevaluatedProperties' for one object", MAX_CLOSERS);
    c->beneath = sv_schema_alloc(k->s, (size_t)k->node->n_parts, sizeof *c->beneath);
    int status = c->beneath ? sv_set_beneath(k->s, spot->schema, serial) : SV_ENOMEM;
    if (status != SV_OK)
        return sv_schema_at(k->s, status, spot->path);
    for (int32_t j = 0; j < k->node->n_parts; j++)
        c->beneath[j] = spot_at(k, j)->seen_by == serial;
    k->n_closers++;
    return SV_OK;
}

int sv_keys_make(struct sv_schema *s, int32_t node, struct sv_leaf *leaf)
{
    const struct sv_schema_node mine = s->nodes[node];
    struct keys k = {.s = s, .node = &mine, .leaf = leaf};
    int64_t n_possible = 0;
    int status = SV_OK;

    if (!(leaf->types & SV_OBJECT))
        return SV_OK;
    for (int32_t i = 0; i < mine.n_parts && status == SV_OK; i++) {
        const struct sv_spot *spot = spot_at(&k, i);
        k.declares |= json_object_get(spot->schema, "properties") ||
                      json_object_get(spot->schema, "patternProperties");
        status = read_closer(&k, i);
        if (status == SV_OK)
            status = sv_schema_count(s, spot, "minProperties", false, &leaf->min_members);
        if (status == SV_OK)
            status = sv_schema_count(s, spot, "maxProperties", true, &leaf->max_members);
        if (status == SV_OK)
            status = read_patterns(&k, i);
    }
    if (status == SV_OK)
        status = read_names(&k);
    for (int32_t i = 0; i < mine.n_parts && status == SV_OK; i++)
        status = read_properties(&k, i);
    for (int32_t i = 0; i < mine.n_parts && status == SV_OK; i++)
        status = read_required(&k, i);
    /* More members than are declared require undeclared ones. */
    for (int32_t i = 0; i < leaf->n_members; i++)
        n_possible += leaf->members[i].node != SV_SCHEMA_NEVER;
    k.declares &= leaf->min_members <= n_possible;
    if (status == SV_OK)
        status = read_extras(&k);
    /* A grammar cannot count distinct names. */
    if (status == SV_OK && leaf->n_extras && leaf->min_members > leaf->n_members + 1)
        status = sv_schema_fail(s, SV_EUNSUPPORTED, mine.path,
                                "'minProperties' of %lld: at most one more than are declared",
                                (long long)leaf->min_members);
    return status;
}
