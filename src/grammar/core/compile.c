/*
 * compile.c - expressions to the network of nodes that a matcher runs on.
 *
 * Called by the readers of grammars as their last step. Works backwards: every part is compiled
 * when the node that follows it exists. A rule is one piece of network with one end; a call of it
 * is one node. Must not: recurse except into parts of an expression (SV_MAX_EXPR_DEPTH).
 */
#include "grammar/core/rules.h"

#include <string.h>

uint32_t sv_build_new_node(struct sv_build *b, enum sv_node_kind kind, uint32_t at, uint32_t n)
{
    struct sv_node *node = sv_build_grow(b, &b->nodes, 1, sizeof *node, SV_MAX_NODES,
                                         "places (repetitions count each time)");

    if (!node)
        return 0;
    *node = (struct sv_node){.kind = (uint8_t)kind, .at = at, .n = n};
    return b->nodes.n - 1;
}

uint32_t sv_build_new_edges(struct sv_build *b, uint32_t n)
{
    struct sv_edge *edge =
        sv_build_grow(b, &b->edges, n, sizeof *edge, 4 * SV_MAX_NODES, "transitions");

    if (!edge)
        return 0;
    memset(edge, 0, n * sizeof *edge);
    return b->edges.n - n;
}

uint32_t sv_build_byte_node(struct sv_build *b, uint8_t lo, uint8_t hi, uint32_t next)
{
    uint32_t edge = sv_build_new_edges(b, 1);

    if (b->err.code)
        return 0;
    *sv_build_edge(b, edge) = (struct sv_edge){next, lo, hi};
    return sv_build_new_node(b, SV_NODE_BYTES, edge, 1);
}

static uint32_t compile(struct sv_build *b, sv_expr x, uint32_t next);

static uint32_t compile_bytes(struct sv_build *b, struct sv_expr_node x, uint32_t next)
{
    for (uint32_t i = x.n; i > 0 && !b->err.code; i--) {
        uint8_t byte = ((const uint8_t *)b->bytes.data)[x.at + i - 1];
        next = sv_build_byte_node(b, byte, byte, next);
    }
    return next;
}

/* A node that continues at either of two; the second can be set later. */
static uint32_t branch(struct sv_build *b, uint32_t one, uint32_t other)
{
    uint32_t edge = sv_build_new_edges(b, 2);

    if (b->err.code)
        return 0;
    sv_build_edge(b, edge)->to = one;
    sv_build_edge(b, edge + 1)->to = other;
    return sv_build_new_node(b, SV_NODE_SPLIT, edge, 2);
}

static uint32_t compile_alt(struct sv_build *b, struct sv_expr_node x, uint32_t next)
{
    uint32_t edge = sv_build_new_edges(b, x.n);

    for (uint32_t i = 0; i < x.n && !b->err.code; i++) {
        uint32_t to = compile(b, ((const sv_expr *)b->kids.data)[x.at + i], next);
        if (!b->err.code)
            sv_build_edge(b, edge + i)->to = to;
    }
    return sv_build_new_node(b, SV_NODE_SPLIT, edge, x.n);
}

static uint32_t compile_repeat(struct sv_build *b, struct sv_expr_node x, uint32_t next)
{
    int32_t min = (int32_t)x.n;
    uint32_t rest = next;

    if (x.max == -1) { /* a branch: repeat, or continue */
        uint32_t loop = branch(b, next, next), body = compile(b, x.at, loop);
        if (b->err.code)
            return 0;
        sv_build_edge(b, sv_build_node(b, loop)->at)->to = body;
        rest = min > 0 ? body : loop;
        min -= min > 0;
    }
    for (int32_t i = min; i < x.max && !b->err.code; i++)
        rest = branch(b, compile(b, x.at, rest), next);
    for (int32_t i = 0; i < min && !b->err.code; i++)
        rest = compile(b, x.at, rest);
    return rest;
}

/* A node for each state, which continues at its arcs' labels. */
static uint32_t compile_states(struct sv_build *b, struct sv_expr_node x, uint32_t next)
{
    const uint32_t first = b->nodes.n, n_arcs = (uint32_t)x.max;
    uint32_t edge;

    for (uint32_t i = 0; i < x.n && !b->err.code; i++)
        sv_build_new_node(b, SV_NODE_SPLIT, 0, 0);
    edge = sv_build_new_edges(b, n_arcs);
    if (b->err.code)
        return 0;
    for (uint32_t i = 0; i < n_arcs; i++)
        sv_build_node(b, first + ((const sv_expr *)b->kids.data)[x.at + 3 * i])->n++;
    for (uint32_t i = 0; i < x.n; i++) {
        struct sv_node *node = sv_build_node(b, first + i);
        node->at = edge;
        edge += node->n;
        node->n = 0;
    }
    for (uint32_t i = 0; i < n_arcs && !b->err.code; i++) {
        const sv_expr *arc = (const sv_expr *)b->kids.data + x.at + 3 * i;
        const uint32_t from = first + arc[0];
        uint32_t to = compile(b, arc[2], arc[1] < x.n ? first + arc[1] : next);
        struct sv_node *node = sv_build_node(b, from);
        if (!b->err.code)
            sv_build_edge(b, node->at + node->n++)->to = to;
    }
    return first;
}

/* Copies the other grammar's rules and nodes, once. */
static void copy_grammar(struct sv_build *b, struct sv_import *import)
{
    const struct sv_grammar *g = import->grammar;
    const uint32_t node0 = b->nodes.n, rule0 = b->rules.n;
    const uint32_t edge0 = sv_build_new_edges(b, g->n_edges);
    struct sv_node *node =
        sv_build_grow(b, &b->nodes, g->n_nodes, sizeof *node, SV_MAX_NODES, "places");
    struct sv_build_rule *rule =
        sv_build_grow(b, &b->rules, g->n_rules, sizeof *rule, SV_MAX_RULES, "rules");

    if (!rule)
        return;
    for (uint32_t i = 0; i < g->n_edges; i++) {
        *sv_build_edge(b, edge0 + i) = g->edges[i];
        sv_build_edge(b, edge0 + i)->to += node0;
    }
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        node[i] = g->nodes[i];
        if (node[i].kind == SV_NODE_CALL) {
            node[i].at += rule0;
            node[i].n += node0;
        } else if (node[i].kind != SV_NODE_END) {
            node[i].at += edge0;
        }
    }
    for (uint32_t i = 0; i < g->n_rules; i++)
        rule[i] =
            (struct sv_build_rule){.pos = -1, .defined = true, .entry = g->rules[i].entry + node0};
    import->copied = true;
    import->first_rule = rule0;
}

static uint32_t compile_grammar(struct sv_build *b, uint32_t i, uint32_t next)
{
    struct sv_import *import = (struct sv_import *)b->imports.data + i;

    if (!import->copied)
        copy_grammar(b, import);
    return sv_build_new_node(b, SV_NODE_CALL, import->first_rule + import->grammar->start, next);
}

/* The first node of x, which is followed by next. */
static uint32_t compile(struct sv_build *b, sv_expr i, uint32_t next)
{
    const struct sv_expr_node x = *sv_build_expr(b, i);

    if (b->err.code)
        return 0;
    switch ((enum sv_expr_kind)x.kind) {
    case SV_EXPR_NOTHING:
        return sv_build_new_node(b, SV_NODE_SPLIT, 0, 0);
    case SV_EXPR_BYTES:
        return compile_bytes(b, x, next);
    case SV_EXPR_BYTE:
        return sv_build_byte_node(b, (uint8_t)x.at, (uint8_t)x.n, next);
    case SV_EXPR_CHARS:
        return sv_build_utf8(b, (const struct sv_range *)b->ranges.data + x.at, x.n, next);
    case SV_EXPR_SEQ:
        for (uint32_t k = x.n; k > 0 && !b->err.code; k--)
            next = compile(b, ((const sv_expr *)b->kids.data)[x.at + k - 1], next);
        return next;
    case SV_EXPR_ALT:
        return compile_alt(b, x, next);
    case SV_EXPR_REPEAT:
        return compile_repeat(b, x, next);
    case SV_EXPR_RULE:
        return sv_build_new_node(b, SV_NODE_CALL, x.at, next);
    case SV_EXPR_STATES:
        return compile_states(b, x, next);
    case SV_EXPR_UNTIL:
        return sv_build_marker(b, (const uint8_t *)b->bytes.data + x.at, x.n, x.max == 1, next);
    case SV_EXPR_GRAMMAR:
        return compile_grammar(b, x.at, next);
    }
    sv_panic("unknown expression %d", x.kind);
}

static void compile_rule(struct sv_build *b, uint32_t i)
{
    const struct sv_build_rule *rule = sv_build_rule_at(b, i);
    uint32_t entry;

    if (!rule->defined) {
        sv_build_fail(b, SV_EINVAL, rule->pos, "the rule '%.100s' is not defined",
                      rule->name ? rule->name : "");
        return;
    }
    b->pos = rule->pos;
    entry = compile(b, rule->body, sv_build_new_node(b, SV_NODE_END, 0, 0));
    sv_build_rule_at(b, i)->entry = entry;
}

/* All rules that the start can reach, in the order in which calls to them were compiled. */
static void compile_all(struct sv_build *b, uint32_t start)
{
    uint32_t done;

    sv_build_new_node(b, SV_NODE_FINAL, 0, 0);
    sv_build_new_node(b, SV_NODE_FINAL, 0, 0);
    done = b->nodes.n;
    compile_rule(b, start);
    for (; done < b->nodes.n && !b->err.code; done++) {
        struct sv_node node = *sv_build_node(b, done);
        if (node.kind == SV_NODE_CALL && !sv_build_rule_at(b, node.at)->entry)
            compile_rule(b, node.at);
    }
}

/* Moves nodes, edges and rules to a new grammar; rules that are never called match nothing. */
static struct sv_grammar *take(struct sv_build *b, uint32_t start)
{
    uint32_t nothing = sv_build_new_node(b, SV_NODE_SPLIT, 0, 0);
    struct sv_grammar *g = b->err.code ? NULL : sv_calloc(1, sizeof *g);
    struct sv_rule *rules = g ? sv_calloc(b->rules.n, sizeof *rules) : NULL;

    if (!rules) {
        sv_free(g);
        sv_build_fail(b, SV_ENOMEM, -1, "grammar: out of memory");
        return NULL;
    }
    for (uint32_t i = 0; i < b->rules.n; i++) {
        struct sv_build_rule *from = sv_build_rule_at(b, i);
        rules[i].entry = from->entry ? from->entry : nothing;
        rules[i].pos = from->pos;
        rules[i].name = from->name;
        from->name = NULL;
    }
    *g = (struct sv_grammar){.rules = rules,
                             .n_rules = b->rules.n,
                             .nodes = b->nodes.data,
                             .n_nodes = b->nodes.n,
                             .edges = b->edges.data,
                             .n_edges = b->edges.n,
                             .start = start};
    atomic_init(&g->refs, 1);
    b->nodes = b->edges = (struct sv_list){0};
    return g;
}

int sv_build_finish(struct sv_build *b, sv_expr start, struct sv_grammar **out, struct sv_err *err)
{
    struct sv_grammar *g;
    int code;

    if (!b->err.code && sv_build_expr(b, start)->kind != SV_EXPR_RULE) {
        sv_expr rule = sv_build_rule(b, NULL, 0, -1);
        sv_build_define(b, rule, start);
        start = rule;
    }
    if (!b->err.code)
        compile_all(b, sv_build_expr(b, start)->at);
    g = b->err.code ? NULL : take(b, sv_build_expr(b, start)->at);
    if (!g)
        return sv_build_error(b, err);
    code = sv_network_finish(g, err);
    if (code != SV_OK) {
        sv_grammar_unref(g);
        return code;
    }
    *out = g;
    return SV_OK;
}

/* ---------------------------------------------------------------- life */

struct sv_grammar *sv_grammar_ref(struct sv_grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void sv_grammar_unref(struct sv_grammar *g)
{
    if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) > 1)
        return;
    sv_automaton_close(g->automata);
    for (uint32_t i = 0; i < g->n_rules; i++)
        sv_free(g->rules[i].name);
    sv_free(g->rules);
    sv_free(g->nodes);
    sv_free(g->edges);
    sv_free(g);
}

size_t sv_grammar_bytes(const struct sv_grammar *g)
{
    return sizeof *g + g->n_nodes * sizeof *g->nodes + g->n_edges * sizeof *g->edges +
           g->n_rules * sizeof *g->rules;
}
