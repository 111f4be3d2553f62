/*
 * naive.c - matching by tables (naive.h).
 *
 * Called by tests/grammar and tests/fuzz. Must not: share code with src/grammar's automaton.
 */
#include "grammar/naive.h"

#include <string.h>

#define MAX_CELLS 60000

struct tables {
    const struct sv_grammar *g;
    const uint8_t *text;
    uint32_t n;
    uint16_t *ends; /* (n_rules, n + 1) bit e: the rule, begun here, may end at e */
    bool *begins;   /* (n_rules, n + 1) begun here, the text's end is reached and more may follow */
    bool *asked;    /* (n_rules, n + 1) the rule is called here */
    bool *seen;     /* (n_nodes, n + 1) of one rule and position */
    uint32_t *todo;
    uint32_t n_todo;
    bool changed;
};

static void see(struct tables *t, uint32_t node, uint32_t pos)
{
    uint32_t at = node * (t->n + 1) + pos;

    if (t->seen[at] || t->g->nodes[node].need == SV_NEVER)
        return;
    t->seen[at] = true;
    t->todo[t->n_todo++] = at;
}

static void see_call(struct tables *t, const struct sv_node *node, uint32_t pos, bool *begins)
{
    uint32_t callee = node->at * (t->n + 1) + pos;

    if (!t->asked[callee])
        t->asked[callee] = t->changed = true;
    if (t->begins[callee])
        *begins = true;
    for (uint32_t end = pos; end <= t->n; end++) {
        if (t->ends[callee] >> end & 1)
            see(t, node->n, end);
    }
}

/* All that rule r does from a position on, as far as the tables know. */
static void run(struct tables *t, uint32_t r, uint32_t from)
{
    uint32_t cell = r * (t->n + 1) + from;
    uint16_t ends = t->ends[cell];
    bool begins = t->begins[cell];

    memset(t->seen, 0, (size_t)t->g->n_nodes * (t->n + 1));
    t->n_todo = 0;
    see(t, t->g->rules[r].entry, from);
    for (uint32_t i = 0; i < t->n_todo; i++) {
        uint32_t pos = t->todo[i] % (t->n + 1);
        const struct sv_node *node = &t->g->nodes[t->todo[i] / (t->n + 1)];
        begins |= pos == t->n;
        if (node->kind == SV_NODE_END)
            ends |= (uint16_t)(1u << pos);
        if (node->kind == SV_NODE_CALL)
            see_call(t, node, pos, &begins);
        for (uint32_t k = 0; k < node->n && node->kind == SV_NODE_SPLIT; k++)
            see(t, t->g->edges[node->at + k].to, pos);
        for (uint32_t k = 0; k < node->n && node->kind == SV_NODE_BYTES && pos < t->n; k++) {
            const struct sv_edge *edge = &t->g->edges[node->at + k];
            if (edge->lo <= t->text[pos] && t->text[pos] <= edge->hi)
                see(t, edge->to, pos + 1);
        }
    }
    t->changed |= ends != t->ends[cell] || begins != t->begins[cell];
    t->ends[cell] = ends;
    t->begins[cell] = begins;
}

struct naive naive_match(const struct sv_grammar *g, const char *text, size_t n)
{
    struct tables t = {.g = g, .text = (const uint8_t *)text, .n = (uint32_t)n};
    const size_t cells = (size_t)g->n_rules * (n + 1), nodes = (size_t)g->n_nodes * (n + 1);
    struct naive result = {.known = n <= NAIVE_LONGEST && cells < MAX_CELLS && nodes < MAX_CELLS};

    if (!result.known)
        return result;
    t.ends = sv_calloc(cells, sizeof *t.ends);
    t.begins = sv_calloc(cells, sizeof *t.begins);
    t.asked = sv_calloc(cells, sizeof *t.asked);
    t.seen = sv_alloc(nodes * sizeof *t.seen);
    t.todo = sv_alloc(nodes * sizeof *t.todo);
    SV_REQUIRE(t.ends && t.begins && t.asked && t.seen && t.todo);
    t.asked[g->start * (t.n + 1)] = true;
    do {
        t.changed = false;
        for (uint32_t cell = 0; cell < cells; cell++) {
            if (t.asked[cell])
                run(&t, cell / (t.n + 1), cell % (t.n + 1));
        }
    } while (t.changed);
    result.matches = t.ends[g->start * (t.n + 1)] >> n & 1;
    result.begins = t.begins[g->start * (t.n + 1)];
    sv_free(t.ends);
    sv_free(t.begins);
    sv_free(t.asked);
    sv_free(t.seen);
    sv_free(t.todo);
    return result;
}
