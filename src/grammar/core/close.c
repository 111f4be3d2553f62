/*
 * close.c - transitions: the items that the next byte leads to, and their closure, that is all
 * items that can be reached from them without another byte.
 *
 * Called by mask.c and matcher.c, once for every state and class of bytes; the result is kept in
 * the state's row of transitions. Must not: allocate, or recurse.
 */
#include "grammar/core/automaton.h"

#include <string.h>

/* Appends a pair to the queue unless it is there already. Pairs from which the text cannot end
 * within SV_MAX_STACK frames are left out, as sv_sets_prune leaves out taller stacks: this bounds
 * the stack, and every pair that is kept can be completed. */
static void reach(struct sv_automaton *a, uint32_t node, uint32_t tail)
{
    const uint64_t pair = sv_item(node, tail);
    uint32_t i = (uint32_t)((pair * 0x9E3779B97F4A7C15u) >> 40);

    a->work--;
    if (a->g->nodes[node].need + a->sets[tail].low > SV_MAX_STACK)
        return;
    if (a->n_queue == SV_MAX_QUEUE)
        a->work = -1; /* only with extremely ambiguous grammars */
    if (a->work < 0)
        return;
    for (;; i++) {
        uint64_t *at = &a->seen[i % (2 * SV_MAX_QUEUE)];
        if (*at >> 32 != a->epoch) {
            *at = (uint64_t)a->epoch << 32 | a->n_queue;
            a->queue[a->n_queue++] = pair;
            return;
        }
        if (a->queue[(uint32_t)*at] == pair)
            return;
    }
}

/* ---------------------------------------------------------------- calls, by rank */

static bool before(const struct sv_call *x, const struct sv_call *y)
{
    return x->rank < y->rank;
}

static void push_call(struct sv_automaton *a, uint32_t rule, uint32_t next, uint32_t tail)
{
    const struct sv_call call = {a->g->rules[rule].rank, next, tail, rule};
    uint32_t i = a->n_calls++; /* one for each pair of the queue at most */

    for (; i > 0 && before(&call, &a->calls[(i - 1) / 2]); i = (i - 1) / 2)
        a->calls[i] = a->calls[(i - 1) / 2];
    a->calls[i] = call;
}

static struct sv_call pop_call(struct sv_automaton *a)
{
    const struct sv_call top = a->calls[0], last = a->calls[--a->n_calls];
    uint32_t i = 0;

    for (;;) {
        uint32_t kid = 2 * i + 1;
        if (kid + 1 < a->n_calls && before(&a->calls[kid + 1], &a->calls[kid]))
            kid++;
        if (kid >= a->n_calls || !before(&a->calls[kid], &last))
            break;
        a->calls[i] = a->calls[kid];
        i = kid;
    }
    a->calls[i] = last;
    return top;
}

/* ---------------------------------------------------------------- closure */

/* Follows queue[i]. A rule's end pops only if the rule was called before this byte: where a rule
 * is called and ends without any byte, it is nullable, and its callers were continued already. */
static void expand(struct sv_automaton *a, uint32_t i, bool pops)
{
    const uint32_t tail = sv_item_tail(a->queue[i]);
    const struct sv_node *node = &a->g->nodes[sv_item_node(a->queue[i])];
    const struct sv_set *set = &a->sets[tail];

    switch ((enum sv_node_kind)node->kind) {
    case SV_NODE_FINAL:
    case SV_NODE_BYTES:
        break;
    case SV_NODE_SPLIT:
        for (uint32_t k = 0; k < node->n && a->work >= 0; k++)
            reach(a, a->g->edges[node->at + k].to, tail);
        break;
    case SV_NODE_CALL:
        push_call(a, node->at, node->n, tail);
        if (a->g->rules[node->at].nullable)
            reach(a, node->n, tail);
        break;
    case SV_NODE_END:
        for (uint32_t k = 0; pops && k < set->n && a->work >= 0; k++) {
            uint64_t item = a->items[set->first + k];
            reach(a, sv_item_node(item), sv_item_tail(item));
        }
        break;
    }
}

/* The tail of the next rule in rank: it continues after any of its calls. A call at the very end of
 * its own rule is a tail call and passes on that rule's tail, so right recursion does not make
 * stacks grow. */
static uint32_t gather_calls(struct sv_automaton *a, uint32_t *rule)
{
    const uint32_t base = a->n_scratch, rank = a->calls[0].rank;
    uint32_t only = SV_NO_SET, n_calls = 0;

    *rule = a->calls[0].rule;
    while (a->n_calls && a->calls[0].rank == rank) {
        struct sv_call call = pop_call(a);
        const struct sv_set *tail = &a->sets[call.tail];
        n_calls++;
        if (a->g->nodes[call.next].kind != SV_NODE_END) {
            uint32_t kept = sv_sets_prune(a, call.tail, SV_MAX_STACK - a->g->nodes[call.next].need);
            if (kept == SV_NO_SET || !sv_sets_push(a, sv_item(call.next, kept)))
                return SV_NO_SET;
            continue;
        }
        only = call.tail;
        a->work -= (int32_t)tail->n;
        for (uint32_t k = 0; k < tail->n; k++) {
            if (!sv_sets_push(a, a->items[tail->first + k]))
                return SV_NO_SET;
        }
    }
    if (n_calls == 1 && only != SV_NO_SET) {
        a->n_scratch = base;
        return only;
    }
    return sv_sets_unite(a, base);
}

/* The closure of the queue, as a state. */
static uint32_t close_queue(struct sv_automaton *a)
{
    const uint32_t base = a->n_scratch;
    uint32_t done = 0;

    for (; done < a->n_queue && a->work >= 0; done++)
        expand(a, done, true);
    while (a->n_calls && a->work >= 0) {
        uint32_t rule, tail = gather_calls(a, &rule);
        if (tail == SV_NO_SET)
            return SV_NO_SET;
        reach(a, a->g->rules[rule].entry, tail);
        for (; done < a->n_queue && a->work >= 0; done++)
            expand(a, done, false);
    }
    if (a->work < 0)
        return SV_NO_SET;
    for (uint32_t i = 0; i < a->n_queue; i++) {
        uint16_t kind = a->g->nodes[sv_item_node(a->queue[i])].kind;
        if ((kind == SV_NODE_BYTES || kind == SV_NODE_FINAL) && !sv_sets_push(a, a->queue[i]))
            return SV_NO_SET;
    }
    return sv_sets_unite(a, base);
}

static void clear_queue(struct sv_automaton *a)
{
    a->n_queue = a->n_calls = a->n_scratch = 0;
    a->unions_left = SV_STEP_UNIONS;
    if (++a->epoch == 0) {
        memset(a->seen, 0, 2 * SV_MAX_QUEUE * sizeof *a->seen);
        a->epoch = 1;
    }
}

uint32_t sv_step_start(struct sv_automaton *a)
{
    clear_queue(a);
    push_call(a, a->g->start, SV_NODE_ACCEPT, SV_SET_END);
    if (a->g->rules[a->g->start].nullable)
        reach(a, SV_NODE_ACCEPT, SV_SET_END);
    return close_queue(a);
}

uint32_t sv_step_pop(struct sv_automaton *a, uint32_t tail)
{
    const struct sv_set *set = &a->sets[tail];
    uint32_t state = set->closed;

    if (state != SV_NO_SET)
        return state;
    clear_queue(a);
    for (uint32_t k = 0; k < set->n; k++)
        reach(a, sv_item_node(a->items[set->first + k]), sv_item_tail(a->items[set->first + k]));
    state = close_queue(a);
    a->sets[tail].closed = state;
    return state;
}

uint32_t sv_step_slow(struct sv_automaton *a, uint32_t from, uint8_t class)
{
    const uint8_t byte = a->g->byte_of[class];
    const uint32_t n_classes = a->g->n_classes;
    struct sv_set *set = &a->sets[from];
    uint32_t to;

    if (set->row == SV_NO_SET) {
        if ((a->n_rows + 1) * n_classes > SV_MAX_ROW_CELLS) {
            a->full = true;
            return SV_NO_SET;
        }
        set->row = a->n_rows++;
        memset(&a->rows[set->row * n_classes], 0, n_classes * sizeof *a->rows);
    }
    clear_queue(a);
    for (uint32_t i = 0; i < set->n && a->work >= 0; i++) {
        uint64_t item = a->items[set->first + i];
        const struct sv_node *node = &a->g->nodes[sv_item_node(item)];
        for (uint32_t k = 0; k < node->n && node->kind == SV_NODE_BYTES; k++) {
            const struct sv_edge *edge = &a->g->edges[node->at + k];
            if (edge->lo <= byte && byte <= edge->hi)
                reach(a, edge->to, sv_item_tail(item));
        }
        a->work -= 1 + (int32_t)(node->kind == SV_NODE_BYTES ? node->n / 4 : 0);
    }
    to = close_queue(a);
    if (to != SV_NO_SET)
        a->rows[set->row * n_classes + class] = to + 1;
    return to;
}
