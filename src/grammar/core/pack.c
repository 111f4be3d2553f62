/*
 * pack.c - serializes a compiled grammar, for an engine in another process.
 *
 * Called by serve. The format is valid only between processes of the same build on machines of the
 * same kind; sizes are checked, contents are not. Must not: include names of rules, which only
 * error messages use, or automata, which every engine builds itself.
 */
#include "grammar/core/rules.h"

#include <string.h>

struct packed {
    uint32_t n_nodes, n_edges, n_rules, start, n_classes;
    uint8_t class_of[256], byte_of[256];
};

void sv_grammar_pack(const struct sv_grammar *g, struct sv_buf *b)
{
    struct packed p = {.n_nodes = g->n_nodes,
                       .n_edges = g->n_edges,
                       .n_rules = g->n_rules,
                       .start = g->start,
                       .n_classes = g->n_classes};
    memcpy(p.class_of, g->class_of, sizeof p.class_of);
    memcpy(p.byte_of, g->byte_of, sizeof p.byte_of);
    sv_buf_append(b, &p, sizeof p);
    sv_buf_append(b, g->nodes, g->n_nodes * sizeof *g->nodes);
    sv_buf_append(b, g->edges, g->n_edges * sizeof *g->edges);
    for (uint32_t i = 0; i < g->n_rules; i++) {
        struct sv_rule r = g->rules[i];
        r.name = NULL;
        sv_buf_append(b, &r, sizeof r);
    }
}

static void *copy_of(const char **data, size_t n)
{
    void *own = sv_alloc(n);
    if (own)
        memcpy(own, *data, n);
    *data += n;
    return own;
}

int sv_grammar_unpack(struct sv_grammar **out, const char *data, size_t n, struct sv_err *err)
{
    struct packed p;
    if (n < sizeof p)
        return sv_fail(err, SV_EINVAL, -1, "a grammar in %zu bytes", n);
    memcpy(&p, data, sizeof p);
    data += sizeof p;
    struct sv_grammar *g = sv_calloc(1, sizeof *g);
    if (!g)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    const size_t nodes = p.n_nodes * sizeof *g->nodes, edges = p.n_edges * sizeof *g->edges,
                 rules = p.n_rules * sizeof *g->rules;
    int rc = n == sizeof p + nodes + edges + rules
                 ? SV_OK
                 : sv_fail(err, SV_EINVAL, -1, "a grammar in %zu bytes", n);
    atomic_init(&g->refs, 1);
    atomic_init(&g->automata, NULL);
    if (!rc) {
        g->nodes = copy_of(&data, nodes);
        g->edges = copy_of(&data, edges);
        g->rules = copy_of(&data, rules);
        if (!g->nodes || !g->edges || !g->rules)
            rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    g->n_nodes = p.n_nodes;
    g->n_edges = p.n_edges;
    g->n_rules = g->rules ? p.n_rules : 0;
    g->start = p.start;
    g->n_classes = p.n_classes;
    memcpy(g->class_of, p.class_of, sizeof p.class_of);
    memcpy(g->byte_of, p.byte_of, sizeof p.byte_of);
    if (rc) {
        sv_grammar_unref(g);
        return rc;
    }
    *out = g;
    return SV_OK;
}
