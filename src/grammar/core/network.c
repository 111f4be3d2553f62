/*
 * network.c - properties of a network, computed once: how deep its rules must nest, which match the
 * empty text, in which order they may call one another before any byte, and which bytes it
 * distinguishes.
 *
 * Called by compile.c. Takes time linear in the size of any network. Must not: recurse.
 */
#include "grammar/core/rules.h"

#include <string.h>

#define NONE UINT32_MAX

/* ---------------------------------------------------------------- the way to the end */

/* For every node the fewest frames pushed on a path to its rule's end. Nodes are settled in the
 * order of their cost, from the ends backwards (Dijkstra); a call is settled when both the rule and
 * what follows it are. */
struct settle {
    struct sv_grammar *g;
    uint16_t *cost;
    uint32_t *edge_from, *edge_chain, *node_chain; /* node_chain: edges into a node */
    uint32_t *after_chain, *after;                 /* calls by the node after them */
    uint32_t *of_chain, *of;                       /* calls by their rule */
    uint32_t *entry_of, *entry_chain;              /* rules by their entry */
    uint32_t *queue[2];
    uint32_t n_queue[2];
};

/* One block for all arrays; the caller frees it. */
static uint32_t *settle_open(struct settle *s, struct sv_grammar *g, uint16_t *cost)
{
    const size_t n = g->n_nodes, e = g->n_edges, r = g->n_rules;
    const size_t total = 2 * e + 7 * n + 2 * r;
    uint32_t *block = sv_alloc(total * sizeof *block), *at = block;

    if (!block)
        return NULL;
    memset(block, 0xFF, total * sizeof *block);
    *s = (struct settle){.g = g, .cost = cost};
    s->edge_from = at, at += e;
    s->edge_chain = at, at += e;
    s->node_chain = at, at += n;
    s->after_chain = at, at += n;
    s->after = at, at += n;
    s->of = at, at += n;
    s->entry_of = at, at += n;
    s->of_chain = at, at += r;
    s->entry_chain = at, at += r;
    s->queue[0] = at, at += n;
    s->queue[1] = at;
    for (uint32_t i = 0; i < n; i++) {
        const struct sv_node *node = &g->nodes[i];
        if (node->kind == SV_NODE_CALL) {
            s->after[i] = s->after_chain[node->n];
            s->after_chain[node->n] = i;
            s->of[i] = s->of_chain[node->at];
            s->of_chain[node->at] = i;
        }
        for (uint32_t k = 0;
             k < node->n && (node->kind == SV_NODE_BYTES || node->kind == SV_NODE_SPLIT); k++) {
            uint32_t edge = node->at + k, to = g->edges[edge].to;
            s->edge_from[edge] = i;
            s->edge_chain[edge] = s->node_chain[to];
            s->node_chain[to] = edge;
        }
    }
    for (uint32_t i = 0; i < r; i++) {
        s->entry_chain[i] = s->entry_of[g->rules[i].entry];
        s->entry_of[g->rules[i].entry] = i;
    }
    return block;
}

/* Settles node i at this cost, in the queue of that cost. */
static void settle(struct settle *s, uint32_t i, uint16_t cost)
{
    if (s->cost[i] != SV_NEVER)
        return;
    s->cost[i] = cost;
    s->queue[cost % 2][s->n_queue[cost % 2]++] = i;
}

/* Settles call i if the rule and what follows are settled. A tail call pushes nothing. */
static void settle_call(struct settle *s, uint32_t i)
{
    const struct sv_node *node = &s->g->nodes[i];
    uint32_t next = s->cost[node->n], rule = s->cost[s->g->rules[node->at].entry];

    if (next == SV_NEVER || rule == SV_NEVER)
        return;
    if (s->g->nodes[node->n].kind != SV_NODE_END)
        rule++;
    if (rule < SV_NEVER)
        settle(s, i, (uint16_t)(rule > next ? rule : next));
}

/* cost[i] of every node; without `bytes` only paths that take no byte count. */
static int settle_all(struct sv_grammar *g, bool bytes, uint16_t *cost)
{
    struct settle s;
    uint32_t *block = settle_open(&s, g, cost);

    if (!block)
        return SV_ENOMEM;
    memset(cost, 0xFF, g->n_nodes * sizeof *cost);
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].kind == SV_NODE_END || g->nodes[i].kind == SV_NODE_FINAL)
            settle(&s, i, 0);
    }
    for (uint32_t level = 0; s.n_queue[level % 2]; level++) {
        uint32_t *queue = s.queue[level % 2], *n = &s.n_queue[level % 2];
        for (uint32_t q = 0; q < *n; q++) { /* grows as it goes */
            uint32_t i = queue[q];
            for (uint32_t e = s.node_chain[i]; e != NONE; e = s.edge_chain[e]) {
                if (bytes || g->nodes[s.edge_from[e]].kind == SV_NODE_SPLIT)
                    settle(&s, s.edge_from[e], (uint16_t)level);
            }
            for (uint32_t c = s.after_chain[i]; c != NONE; c = s.after[c])
                settle_call(&s, c);
            for (uint32_t r = s.entry_of[i]; r != NONE; r = s.entry_chain[r]) {
                for (uint32_t c = s.of_chain[r]; c != NONE; c = s.of[c])
                    settle_call(&s, c);
            }
        }
        *n = 0;
    }
    sv_free(block);
    return SV_OK;
}

/* ---------------------------------------------------------------- calls before any byte */

struct order {
    struct sv_grammar *g;
    uint32_t *path;  /* (2 n_rules) rules that are open, and the next call of each */
    uint32_t *first; /* (n_rules + 1) into calls */
    struct sv_list calls;
    uint32_t *todo; /* (n_nodes) */
    bool *seen;     /* (n_nodes) */
};

/* The rules that rule r may call before it takes a byte. */
static int left_calls(struct order *o, uint32_t r)
{
    const struct sv_grammar *g = o->g;
    uint32_t n = 0;

    o->first[r] = o->calls.n;
    o->todo[n++] = g->rules[r].entry;
    o->seen[g->rules[r].entry] = true; /* a node belongs to one rule: marks need no clearing */
    for (uint32_t i = 0; i < n; i++) {
        const struct sv_node *node = &g->nodes[o->todo[i]];
        uint32_t n_to = node->kind == SV_NODE_SPLIT ? node->n : 0;
        if (node->kind == SV_NODE_CALL && node->need != SV_NEVER) {
            if (o->calls.n == o->calls.cap) {
                uint32_t cap = o->calls.cap ? 2 * o->calls.cap : 64;
                void *p = sv_realloc(o->calls.data, o->calls.cap * 4, cap * 4);
                if (!p)
                    return SV_ENOMEM;
                o->calls.data = p;
                o->calls.cap = cap;
            }
            ((uint32_t *)o->calls.data)[o->calls.n++] = node->at;
            n_to = g->rules[node->at].nullable;
        }
        for (uint32_t k = 0; k < n_to; k++) {
            uint32_t to = node->kind == SV_NODE_CALL ? node->n : g->edges[node->at + k].to;
            if (!o->seen[to]) {
                o->seen[to] = true;
                o->todo[n++] = to;
            }
        }
    }
    return SV_OK;
}

static const char *rule_name(const struct sv_rule *rule)
{
    return rule->name ? rule->name : "(unnamed)";
}

/* Names a rule of the cycle that has a position in the source. */
static int left_recursion(const struct order *o, uint32_t depth, uint32_t callee,
                          struct sv_err *err)
{
    const struct sv_rule *rule = &o->g->rules[callee], *caller = &o->g->rules[o->path[2 * depth]];

    if (rule->pos < 0 && caller->pos >= 0) {
        const struct sv_rule *swap = rule;
        rule = caller;
        caller = swap;
    }
    return sv_fail(err, SV_EUNSUPPORTED, rule->pos,
                   "byte %lld: the rule '%.80s' comes back to itself before any text, by way of "
                   "'%.80s' (left recursion through other rules is not supported)",
                   (long long)rule->pos, rule_name(rule), rule_name(caller));
}

/* Ranks by depth-first search: callees are finished first and get the higher rank. */
static int rank_rules(struct order *o, struct sv_err *err)
{
    enum { NEW, OPEN, DONE };
    struct sv_rule *rules = o->g->rules;
    uint32_t rank = o->g->n_rules, *path = o->path;
    const uint32_t *calls = o->calls.data;

    for (uint32_t i = 0; i < o->g->n_rules; i++)
        rules[i].rank = NEW;
    for (uint32_t i = 0; i < o->g->n_rules; i++) {
        uint32_t depth = 0;
        if (rules[i].rank != NEW)
            continue;
        rules[i].rank = OPEN;
        path[0] = i;
        path[1] = o->first[i];
        for (;;) {
            uint32_t r = path[2 * depth], *at = &path[2 * depth + 1];
            if (*at == o->first[r + 1]) {
                rules[r].rank = DONE + rank--;
                if (depth-- == 0)
                    break;
                continue;
            }
            r = calls[(*at)++];
            if (rules[r].rank == OPEN)
                return left_recursion(o, depth, r, err);
            if (rules[r].rank == NEW) {
                rules[r].rank = OPEN;
                depth++;
                path[2 * depth] = r;
                path[2 * depth + 1] = o->first[r];
            }
        }
    }
    return SV_OK;
}

static int order_rules(struct sv_grammar *g, struct sv_err *err)
{
    struct order o = {.g = g};
    int code = SV_ENOMEM;

    o.path = sv_alloc(2 * g->n_rules * sizeof *o.path);
    o.first = sv_alloc((g->n_rules + 1) * sizeof *o.first);
    o.todo = sv_alloc(g->n_nodes * sizeof *o.todo);
    o.seen = sv_calloc(g->n_nodes, sizeof *o.seen);
    if (o.path && o.first && o.todo && o.seen) {
        code = SV_OK;
        for (uint32_t r = 0; r < g->n_rules && code == SV_OK; r++)
            code = left_calls(&o, r);
        o.first[g->n_rules] = o.calls.n;
    }
    code = code == SV_OK ? rank_rules(&o, err) : sv_fail(err, code, -1, "grammar: out of memory");
    sv_free(o.path);
    sv_free(o.first);
    sv_free(o.todo);
    sv_free(o.seen);
    sv_free(o.calls.data);
    return code;
}

/* ---------------------------------------------------------------- bytes */

static void classes(struct sv_grammar *g)
{
    bool begins[257] = {[0] = true};
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct sv_node *node = &g->nodes[i];
        for (uint32_t k = 0; node->kind == SV_NODE_BYTES && k < node->n; k++) {
            begins[g->edges[node->at + k].lo] = true;
            begins[g->edges[node->at + k].hi + 1] = true;
        }
    }
    for (uint32_t c = 0; c < 256; c++) {
        if (begins[c])
            g->byte_of[n++] = (uint8_t)c;
        g->class_of[c] = (uint8_t)(n - 1);
    }
    g->n_classes = n;
}

int sv_network_finish(struct sv_grammar *g, struct sv_err *err)
{
    uint16_t *cost = sv_alloc(g->n_nodes * sizeof *cost);
    const struct sv_rule *start = &g->rules[g->start];
    int code = cost ? settle_all(g, false, cost) : SV_ENOMEM;

    for (uint32_t i = 0; i < g->n_rules && code == SV_OK; i++)
        g->rules[i].nullable = cost[g->rules[i].entry] != SV_NEVER;
    if (code == SV_OK)
        code = settle_all(g, true, cost);
    for (uint32_t i = 0; i < g->n_nodes && code == SV_OK; i++)
        g->nodes[i].need = cost[i];
    for (uint32_t i = 0; i < g->n_rules && code == SV_OK; i++)
        g->rules[i].need = cost[g->rules[i].entry];
    sv_free(cost);
    if (code == SV_OK)
        code = sv_network_liken(g);
    if (code != SV_OK)
        return sv_fail(err, code, -1, "grammar: out of memory");
    if (start->need == SV_NEVER)
        return sv_fail(err, SV_EINVAL, start->pos, "the rule '%.100s' matches no text",
                       rule_name(start));
    if (start->need > SV_MAX_STACK)
        return sv_fail(err, SV_EFULL, start->pos,
                       "every text of the grammar nests deeper than %d rules", SV_MAX_STACK);
    classes(g);
    return order_rules(g, err);
}
