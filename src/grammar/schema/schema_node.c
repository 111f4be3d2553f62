/*
 * schema_node.c - sets of subschemas that one value must satisfy, each made once: unions are
 * expanded into alternatives until sets have none.
 *
 * Called by schema.c, and by schema_leaf.c and schema_keys.c for the sets of members and items. A
 * set with an open anyOf or oneOf becomes a union: the set with each alternative in turn. Recursive
 * schemas end because equal sets are one node, hostile ones because the number of nodes is bounded.
 * Must not: recurse along a schema; new nodes are queued.
 */
#include "grammar/schema/schema.h"

#include <string.h>

#define MAX_ALTERNATIVES 256 /* of a oneOf: all pairs are compared */

static uint32_t hash_set(const struct sv_part *parts, int32_t n)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)parts[i].spot) * 0x100000001b3u;
        h = (h ^ parts[i].chosen) * 0x100000001b3u;
    }
    return (uint32_t)(h ^ (h >> 32));
}

static bool same_set(const struct sv_schema_node *node, const struct sv_part *parts, int32_t n)
{
    if (node->n_parts != n)
        return false;
    for (int32_t i = 0; i < n; i++)
        if (node->parts[i].spot != parts[i].spot || node->parts[i].chosen != parts[i].chosen)
            return false;
    return true;
}

static int grow_table(struct sv_schema *s)
{
    int32_t n = s->n_node_table ? s->n_node_table * 4 : 64;
    int32_t *table = sv_schema_alloc(s, (size_t)n, sizeof *table);

    if (!table)
        return SV_ENOMEM;
    /* Node 0 has no set and is never found. */
    for (int32_t i = 1; i < s->n_nodes; i++) {
        uint32_t at = hash_set(s->nodes[i].parts, s->nodes[i].n_parts) & (uint32_t)(n - 1);
        while (table[at])
            at = (at + 1) & (uint32_t)(n - 1);
        table[at] = i + 1;
    }
    s->node_table = table;
    s->n_node_table = n;
    return SV_OK;
}

int sv_node_of(struct sv_schema *s, const struct sv_set *set, const char *path, int32_t *node)
{
    struct sv_part *parts;
    uint32_t at;
    int status;

    *node = SV_SCHEMA_NEVER;
    if (set->never)
        return SV_OK;
    status = sv_dfa_spend(&s->room, 16 + set->n, s->err);
    if (status != SV_OK)
        return sv_schema_at(s, status, path);
    if (s->n_nodes * 2 >= s->n_node_table && (status = grow_table(s)) != SV_OK)
        return status;
    at = hash_set(set->parts, set->n) & (uint32_t)(s->n_node_table - 1);
    for (; s->node_table[at]; at = (at + 1) & (uint32_t)(s->n_node_table - 1)) {
        *node = s->node_table[at] - 1;
        if (same_set(&s->nodes[*node], set->parts, set->n))
            return SV_OK;
    }
    if (s->n_nodes == SV_SCHEMA_NODES)
        return sv_schema_fail(s, SV_EFULL, path,
                              "the schema has more than %d combinations of subschemas",
                              SV_SCHEMA_NODES);
    status = sv_schema_grow(s, &s->nodes, s->n_nodes, &s->cap_nodes, sizeof *s->nodes);
    parts = status == SV_OK ? sv_schema_alloc(s, (size_t)set->n + 1, sizeof *parts) : NULL;
    if (!parts)
        return SV_ENOMEM;
    if (set->n)
        memcpy(parts, set->parts, (size_t)set->n * sizeof *parts);
    *node = s->n_nodes++;
    s->nodes[*node] = (struct sv_schema_node){.parts = parts, .n_parts = set->n, .path = path};
    s->node_table[at] = s->n_nodes;
    return SV_OK;
}

/* ---------------------------------------------------------------- unions */

/* The list of an anyOf or oneOf that the part has not chosen from; NULL: there is none. */
static const json_t *open_union(const struct sv_schema *s, const struct sv_part *part,
                                const char **key, uint32_t *mark)
{
    const json_t *schema = s->spots[part->spot].schema, *any = json_object_get(schema, "anyOf");
    const json_t *one = json_object_get(schema, "oneOf");

    if (any && !(part->chosen & SV_CHOSEN_ANY)) {
        *key = "anyOf";
        *mark = SV_CHOSEN_ANY;
        return any;
    }
    if (one && !(part->chosen & SV_CHOSEN_ONE)) {
        *key = "oneOf";
        *mark = SV_CHOSEN_ONE;
        return one;
    }
    return NULL;
}

/* The node's set with part i's union marked, and with one or two of its alternatives (second < 0:
 * one). */
static int chosen(struct sv_schema *s, int32_t node, int32_t i, uint32_t mark, const json_t *list,
                  const char *path, int first, int second, int32_t *out)
{
    struct sv_set set;
    int status = sv_set_copy(s, &set, &s->nodes[node]);
    const char *at = sv_schema_path_index(s, path, (size_t)first);

    if (status != SV_OK)
        return status;
    set.parts[i].chosen |= mark;
    status = sv_set_add(s, &set, json_array_get(list, (size_t)first), at);
    if (second >= 0 && status == SV_OK)
        status = sv_set_add(s, &set, json_array_get(list, (size_t)second),
                            sv_schema_path_index(s, path, (size_t)second));
    return status == SV_OK ? sv_node_of(s, &set, at, out) : status;
}

/* Records the nodes that no value may satisfy for a oneOf: those of any two alternatives. */
static int keep_apart(struct sv_schema *s, int32_t node, int32_t i, const json_t *list,
                      const char *path)
{
    int n = (int)json_array_size(list), status = SV_OK;

    if (n > MAX_ALTERNATIVES)
        return sv_schema_fail(s, SV_EFULL, path, "more than %d alternatives", MAX_ALTERNATIVES);
    for (int a = 0; a < n && status == SV_OK; a++)
        for (int b = a + 1; b < n && status == SV_OK; b++) {
            struct sv_apart pair = {.first = a, .second = b, .path = path};
            status = sv_schema_grow(s, &s->aparts, s->n_aparts, &s->cap_aparts, sizeof pair);
            if (status == SV_OK && !sv_plainly_apart(s, json_array_get(list, (size_t)a),
                                                     json_array_get(list, (size_t)b)))
                status = chosen(s, node, i, SV_CHOSEN_ONE, list, path, a, b, &pair.both);
            if (status == SV_OK && pair.both != SV_SCHEMA_NEVER)
                s->aparts[s->n_aparts++] = pair;
        }
    return status;
}

static int make_union(struct sv_schema *s, int32_t node, int32_t i, const json_t *list,
                      const char *key, uint32_t mark)
{
    const char *path = sv_schema_path(s, s->spots[s->nodes[node].parts[i].spot].path, key);
    size_t n = json_array_size(list);
    int32_t *alts, n_alts = 0;
    int status = SV_OK;

    alts = sv_schema_alloc(s, n, sizeof *alts);
    if (!alts)
        return SV_ENOMEM;
    for (size_t a = 0; a < n && status == SV_OK; a++) {
        status = chosen(s, node, i, mark, list, path, (int)a, -1, &alts[n_alts]);
        n_alts += alts[n_alts] != SV_SCHEMA_NEVER;
    }
    s->nodes[node].alts = alts;
    s->nodes[node].n_alts = n_alts;
    if (mark == SV_CHOSEN_ONE && status == SV_OK)
        status = keep_apart(s, node, i, list, path);
    return status;
}

/* A union of the first open anyOf or oneOf, or a leaf. */
static int make(struct sv_schema *s, int32_t node)
{
    for (int32_t i = 0; i < s->nodes[node].n_parts; i++) {
        const char *key = NULL;
        uint32_t mark = 0;
        const json_t *list = open_union(s, &s->nodes[node].parts[i], &key, &mark);
        if (list)
            return make_union(s, node, i, list, key, mark);
    }
    return sv_leaf_make(s, node);
}

int sv_nodes_make(struct sv_schema *s, int32_t *start)
{
    struct sv_set set = {0};
    int32_t any;
    int status = sv_schema_grow(s, &s->nodes, 0, &s->cap_nodes, sizeof *s->nodes);

    if (status != SV_OK)
        return status;
    s->n_nodes = 1; /* SV_SCHEMA_NEVER */
    s->nodes[0].path = "schema";
    status = sv_node_of(s, &set, "schema", &any);
    SV_REQUIRE(status != SV_OK || any == SV_SCHEMA_ANY);
    if (status == SV_OK)
        status = sv_set_add(s, &set, s->root, "schema");
    if (status == SV_OK)
        status = sv_node_of(s, &set, "schema", start);
    for (int32_t node = 1; node < s->n_nodes && status == SV_OK; node++)
        status = make(s, node);
    return status;
}
