/*
 * like.c - equivalent nodes: nodes of a network that tokens of a few bytes cannot distinguish, such
 * as the links of a counted repetition far from its end, and parts that a grammar repeats.
 *
 * Called by network.c when a network is complete. Masks are then computed for one representative,
 * and only tokens longer than the bytes on which nodes agree are visited again (mask.c). Classes
 * are refined in rounds, as when automata are minimised: after r rounds nodes with equal signatures
 * agree on r bytes. Must not: take more than WORK visits of nodes, or recurse.
 */
#include "grammar/core/rules.h"

#include <string.h>

#define WORK (1u << 22)
#define N_LEVELS 5
static const uint32_t levels[N_LEVELS] = {8, 16, 32, 64, 128}; /* rounds, so bytes */

struct like {
    struct sv_grammar *g;
    uint32_t *order;       /* (n) nodes, each after those that it leads to without a byte */
    uint32_t *path;        /* (2 n) nodes of the current path, and the next edge of each */
    uint8_t *met;          /* (n) state of the walk that makes the order */
    uint64_t *sign, *last; /* (n) signatures after a round, and after the round before */
    uint64_t *kept;        /* (N_LEVELS, n) after each level */
    bool *represents;      /* (n) the node is a representative of others */
    uint32_t *table;       /* (n_table) by signature: node + 1 */
    uint32_t n_order, n_table;
};

enum { NEW, OPEN, DONE, CYCLE };

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

/* The k-th node that node i leads to without a byte; false: no more. */
static bool next_place(const struct sv_grammar *g, uint32_t i, uint32_t k, uint32_t *to)
{
    const struct sv_node *node = &g->nodes[i];
    bool passes = node->kind == SV_NODE_CALL && g->rules[node->at].nullable;

    if (k >= (node->kind == SV_NODE_SPLIT ? node->n : passes))
        return false;
    *to = passes ? node->n : g->edges[node->at + k].to;
    return true;
}

/* Appends nodes to the order, depth first. A node that leads to itself without a byte is not
 * compared with others. */
static void put_in_order(struct like *l, uint32_t start)
{
    uint32_t depth = 0, to;

    if (l->met[start] != NEW)
        return;
    l->path[0] = start;
    l->path[1] = 0;
    l->met[start] = OPEN;
    for (;;) {
        uint32_t i = l->path[2 * depth];
        if (!next_place(l->g, i, l->path[2 * depth + 1]++, &to)) {
            if (l->met[i] == OPEN)
                l->met[i] = DONE;
            l->order[l->n_order++] = i;
            if (depth-- == 0)
                return;
        } else if (l->met[to] == NEW) {
            l->met[to] = OPEN;
            l->path[2 * ++depth] = to;
            l->path[2 * depth + 1] = 0;
        } else if (l->met[to] == OPEN) {
            l->met[i] = CYCLE;
        }
    }
}

/* The signature of node i in a round. */
static uint64_t signature(const struct like *l, uint32_t i)
{
    const struct sv_grammar *g = l->g;
    const struct sv_node *node = &g->nodes[i];
    uint64_t h = mix(node->kind + 1, node->need), sum = 0;

    switch ((enum sv_node_kind)node->kind) {
    case SV_NODE_FINAL:
        return mix(h, i);
    case SV_NODE_END:
        return h;
    case SV_NODE_CALL:
        h = mix(h, node->at);
        return mix(h, g->rules[node->at].nullable ? l->sign[node->n] : l->last[node->n]);
    case SV_NODE_BYTES:
        for (uint32_t k = 0; k < node->n; k++) {
            const struct sv_edge *edge = &g->edges[node->at + k];
            h = mix(mix(h, (uint64_t)edge->lo << 8 | edge->hi), l->last[edge->to]);
        }
        return h;
    case SV_NODE_SPLIT:
        for (uint32_t k = 0; k < node->n; k++) /* the sum does not depend on the order */
            sum += mix(h, l->sign[g->edges[node->at + k].to]);
        return mix(h, sum);
    }
    return h;
}

static void run_round(struct like *l)
{
    uint64_t *swap = l->last;

    l->last = l->sign;
    l->sign = swap;
    for (uint32_t k = 0; k < l->n_order; k++) {
        uint32_t i = l->order[k];
        l->sign[i] = l->met[i] == CYCLE ? mix(~UINT64_C(0), i) : signature(l, i);
    }
}

/* The slot of node i's signature in the table: its representative + 1, 0: none yet. */
static uint32_t *slot_of(struct like *l, const uint64_t *sign, uint32_t i)
{
    uint32_t at = (uint32_t)(sign[i] >> 20) & (l->n_table - 1);

    while (l->table[at] && sign[l->table[at] - 1] != sign[i])
        at = (at + 1) & (l->n_table - 1);
    return &l->table[at];
}

static uint32_t count_signatures(struct like *l, const uint64_t *sign)
{
    uint32_t n = 0;

    memset(l->table, 0, l->n_table * sizeof *l->table);
    for (uint32_t i = 0; i < l->g->n_nodes; i++) {
        uint32_t *slot = slot_of(l, sign, i);
        n += *slot == 0;
        *slot = i + 1;
    }
    return n;
}

/* Gives nodes without a representative one of the same signature, if possible one that represents
 * others already, so that a whole chain shares one. */
static void set_representatives(struct like *l, const uint64_t *sign, uint8_t same)
{
    memset(l->table, 0, l->n_table * sizeof *l->table);
    for (uint32_t i = 0; i < l->g->n_nodes; i++) {
        if (l->represents[i])
            *slot_of(l, sign, i) = i + 1;
    }
    for (uint32_t i = 0; i < l->g->n_nodes; i++) {
        struct sv_node *node = &l->g->nodes[i];
        uint32_t *slot = slot_of(l, sign, i);
        if (l->represents[i] || node->like != i || node->need == SV_NEVER)
            continue;
        if (*slot == 0) {
            *slot = i + 1;
            continue;
        }
        node->like = *slot - 1;
        node->same = same;
        l->represents[node->like] = true;
    }
}

/* Refines in rounds, until nothing changes, or all nodes differ, or the limit is reached. */
static void refine(struct like *l)
{
    const uint32_t n = l->g->n_nodes;
    uint32_t round = 0, n_before = 0, n_levels = 0, n_signatures = 0;
    bool stable = false;

    for (uint32_t i = 0; i < n; i++)
        put_in_order(l, i);
    while (n_levels < N_LEVELS && levels[n_levels] <= WORK / n && n_signatures < n && !stable) {
        for (; round < levels[n_levels]; round++)
            run_round(l);
        memcpy(l->kept + (size_t)n_levels++ * n, l->sign, n * sizeof *l->sign);
        n_signatures = count_signatures(l, l->sign);
        /* stable: nodes of one signature are equivalent for all lengths */
        stable = n_signatures == n_before;
        n_before = n_signatures;
    }
    while (n_levels-- > 0) {
        set_representatives(l, l->kept + (size_t)n_levels * n,
                            stable ? SV_ALONE - 1 : (uint8_t)levels[n_levels]);
        stable = false;
    }
}

int sv_network_liken(struct sv_grammar *g)
{
    const size_t n = g->n_nodes;
    struct like l = {.g = g, .n_table = 2};

    for (uint32_t i = 0; i < n; i++) {
        g->nodes[i].like = i;
        g->nodes[i].same = SV_ALONE;
    }
    if (n > WORK / levels[0])
        return SV_OK;
    while (l.n_table < 2 * n)
        l.n_table *= 2;
    l.order = sv_alloc(n * sizeof *l.order);
    l.path = sv_alloc(2 * n * sizeof *l.path);
    l.met = sv_calloc(n, sizeof *l.met);
    l.sign = sv_calloc(n, sizeof *l.sign);
    l.last = sv_calloc(n, sizeof *l.last);
    l.kept = sv_alloc(N_LEVELS * n * sizeof *l.kept);
    l.represents = sv_calloc(n, sizeof *l.represents);
    l.table = sv_alloc(l.n_table * sizeof *l.table);
    const bool have =
        l.order && l.path && l.met && l.sign && l.last && l.kept && l.represents && l.table;
    if (have)
        refine(&l);
    sv_free(l.order);
    sv_free(l.path);
    sv_free(l.met);
    sv_free(l.sign);
    sv_free(l.last);
    sv_free(l.kept);
    sv_free(l.represents);
    sv_free(l.table);
    return have ? SV_OK : SV_ENOMEM;
}
