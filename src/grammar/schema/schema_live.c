/*
 * schema_live.c - finds the nodes that some value satisfies, type by type, so that the grammar has
 * no dead ends.
 *
 * Called by schema.c after all nodes are made. Computes a least fixed point: a schema that requires
 * endlessly nested lists has no value. Also compares the alternatives of a oneOf: two that one
 * value can satisfy are refused, since a grammar cannot exclude such values.
 */
#include "grammar/schema/schema.h"

#include <string.h>

static bool live(const struct sv_schema *s, int32_t node)
{
    return s->nodes[node].live != 0;
}

static bool array_live(const struct sv_schema *s, const struct sv_leaf *leaf)
{
    if (leaf->max_items >= 0 && leaf->min_items > leaf->max_items)
        return false;
    for (int32_t i = 0; i < leaf->n_prefix && i < leaf->min_items; i++)
        if (!live(s, leaf->prefix[i]))
            return false;
    return leaf->min_items <= leaf->n_prefix || live(s, leaf->items);
}

static bool extras_live(const struct sv_schema *s, const struct sv_leaf *leaf)
{
    for (int32_t i = 0; i < leaf->n_extras; i++)
        if (live(s, leaf->extras[i].node))
            return true;
    return false;
}

static bool object_live(const struct sv_schema *s, const struct sv_leaf *leaf)
{
    int64_t n_required = 0, n_possible = extras_live(s, leaf);

    for (int32_t i = 0; i < leaf->n_members; i++) {
        const struct sv_member *m = &leaf->members[i];
        if (m->required && !live(s, m->node))
            return false;
        n_required += m->required;
        n_possible += live(s, m->node);
    }
    return leaf->min_members <= n_possible &&
           (leaf->max_members < 0 ||
            (n_required <= leaf->max_members && leaf->min_members <= leaf->max_members));
}

static bool text_live(const struct sv_dfa *text)
{
    return !text || text->n_states;
}

static uint32_t leaf_live(const struct sv_schema *s, const struct sv_leaf *leaf)
{
    uint32_t types = leaf->types;

    if (leaf->has_values) /* filtered: types are those of the values that stay */
        return types;
    /* SV_BROKEN: any number is allowed, and number_text[0] has them all */
    if (types & SV_WHOLE && !text_live(leaf->number_text[types & SV_BROKEN ? 0 : 1]))
        types &= ~(uint32_t)(SV_BROKEN | SV_WHOLE);
    if (!text_live(leaf->strings))
        types &= ~(uint32_t)SV_STRING;
    if (types & SV_ARRAY && !array_live(s, leaf))
        types &= ~(uint32_t)SV_ARRAY;
    if (types & SV_OBJECT && !object_live(s, leaf))
        types &= ~(uint32_t)SV_OBJECT;
    return types;
}

static uint32_t node_live(const struct sv_schema *s, const struct sv_schema_node *node)
{
    uint32_t types = 0;

    if (node->leaf)
        return leaf_live(s, node->leaf);
    for (int32_t i = 0; i < node->n_alts; i++)
        types |= s->nodes[node->alts[i]].live;
    return types;
}

static int check_apart(struct sv_schema *s)
{
    for (int32_t i = 0; i < s->n_aparts; i++)
        if (live(s, s->aparts[i].both))
            return sv_schema_fail(
                s, SV_EUNSUPPORTED, s->aparts[i].path,
                "one value can satisfy alternatives %d and %d; use anyOf, or tell "
                "them apart by a required property with a const",
                s->aparts[i].first, s->aparts[i].second);
    return SV_OK;
}

/* nodes come after those that lead to them, so few rounds are needed */
int sv_nodes_live(struct sv_schema *s)
{
    bool again = true;

    while (again) {
        int status = sv_dfa_spend(&s->room, s->n_nodes, s->err);
        if (status != SV_OK)
            return sv_schema_at(s, status, "schema");
        again = false;
        for (int32_t i = s->n_nodes - 1; i > SV_SCHEMA_NEVER; i--) {
            uint32_t types = node_live(s, &s->nodes[i]);
            again |= types != s->nodes[i].live;
            s->nodes[i].live = types;
        }
    }
    return check_apart(s);
}

int sv_schema_dead(struct sv_schema *s)
{
    for (int32_t i = 1; i < s->n_nodes; i++) {
        const struct sv_leaf *leaf = s->nodes[i].leaf;
        if (leaf && !leaf->has_values && leaf->types & ~s->nodes[i].live & SV_OBJECT &&
            leaf->min_members > 1 && extras_live(s, leaf))
            return sv_schema_fail(s, SV_EUNSUPPORTED, s->nodes[i].path,
                                  "'minProperties' of %lld: at most one more than are declared",
                                  (long long)leaf->min_members);
    }
    return sv_schema_fail(s, SV_EINVAL, "schema", "no value satisfies it");
}
