/*
 * sets.c - sets of items: interned, united where nodes are equal, and dropped when no matcher
 * holds them.
 *
 * Called by close.c, mask.c and matcher.c. Must not: allocate.
 */
#include "grammar/core/automaton.h"

#include <string.h>

bool sv_sets_push(struct sv_automaton *a, uint64_t item)
{
    if (a->n_scratch == SV_MAX_SCRATCH) {
        a->full = true;
        return false;
    }
    a->scratch[a->n_scratch++] = item;
    return true;
}

/* ---------------------------------------------------------------- keeping each once */

static uint32_t hash_items(const uint64_t *items, uint32_t n)
{
    uint64_t h = n;

    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ items[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 20);
}

/* The set's slot in the table. */
static uint32_t *table_at(struct sv_automaton *a, const uint64_t *items, uint32_t n, uint32_t hash)
{
    for (uint32_t i = hash;; i++) {
        uint32_t *at = &a->table[i % (2 * SV_MAX_SETS)];
        const struct sv_set *s = &a->sets[*at - 1];
        if (*at == 0 || (s->hash == hash && s->n == n &&
                         memcmp(&a->items[s->first], items, n * sizeof *items) == 0))
            return at;
    }
}

/* Computes a new set's fields from its items. */
static void measure(const struct sv_automaton *a, struct sv_set *s)
{
    uint32_t low = UINT16_MAX, high = 0, reach = 0;
    uint8_t same = SV_ALONE;

    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t item = a->items[s->first + i];
        const struct sv_node *node = &a->g->nodes[sv_item_node(item)];
        const struct sv_set *tail = &a->sets[sv_item_tail(item)];
        uint32_t needs = node->need + tail->high;
        if (node->kind == SV_NODE_FINAL) { /* the bottom of all stacks */
            low = 0;
            continue;
        }
        low = tail->low + 1u < low ? tail->low + 1u : low;
        high = tail->high + 1u > high ? tail->high + 1u : high;
        needs = tail->reach > needs ? tail->reach : needs;
        reach = needs > reach ? needs : reach;
        if (node->same < same)
            same = node->same;
        if (tail->same < same)
            same = tail->same;
    }
    s->same = same;
    s->low = (uint16_t)low;
    s->high = (uint16_t)high;
    s->reach = (uint16_t)reach;
}

static uint32_t intern(struct sv_automaton *a, const uint64_t *items, uint32_t n)
{
    uint32_t hash = hash_items(items, n), *at = table_at(a, items, n, hash);
    struct sv_set *s;

    if (*at)
        return *at - 1;
    if (a->n_sets >= a->max_sets || n + a->n_items > a->max_items) {
        a->full = true;
        return SV_NO_SET;
    }
    memcpy(&a->items[a->n_items], items, n * sizeof *items);
    s = &a->sets[a->n_sets];
    *s = (struct sv_set){.first = a->n_items,
                         .n = n,
                         .row = SV_NO_SET,
                         .closed = SV_NO_SET,
                         .like = SV_NO_SET,
                         .hash = hash,
                         .mask = -1,
                         .top = -1};
    a->n_items += n;
    measure(a, s);
    *at = ++a->n_sets;
    return a->n_sets - 1;
}

/* ---------------------------------------------------------------- uniting */

static void sort_items(uint64_t *x, uint32_t n)
{
    for (uint32_t gap = n < 4 ? 1 : n / 2; gap > 0; gap = gap == 2 ? 1 : gap * 5 / 11) {
        for (uint32_t i = gap; i < n; i++) {
            uint64_t item = x[i];
            uint32_t j = i;
            for (; j >= gap && x[j - gap] > item; j -= gap)
                x[j] = x[j - gap];
            x[j] = item;
        }
    }
}

#define APART (SV_NO_SET - 1)
#define PRUNED (1u << 31) /* with a number of frames, as `other`: the set pruned to that many */

static struct sv_union *union_at(const struct sv_automaton *a, uint32_t one, uint32_t other)
{
    return &a->unions[(one * 31 + other * 1009) % SV_N_UNIONS];
}

void sv_sets_forget_unions(struct sv_automaton *a)
{
    for (int i = 0; i < SV_N_UNIONS; i++)
        a->unions[i].one = SV_NO_SET;
}

static uint32_t unite_tails(struct sv_automaton *a, uint32_t one, uint32_t other);

/* The next item of two sets that are sorted by node; if both have the node, their tails are united,
 * or both items are kept. */
static bool merge_item(struct sv_automaton *a, const struct sv_set *x, uint32_t *i,
                       const struct sv_set *y, uint32_t *j)
{
    const uint64_t p = *i < x->n ? a->items[x->first + *i] : UINT64_MAX;
    const uint64_t q = *j < y->n ? a->items[y->first + *j] : UINT64_MAX;
    const uint32_t node = sv_item_node(p < q ? p : q);
    uint32_t tail;

    *i += sv_item_node(p) == node;
    *j += sv_item_node(q) == node;
    if (sv_item_node(p) != sv_item_node(q))
        return sv_sets_push(a, p < q ? p : q);
    tail = unite_tails(a, sv_item_tail(p), sv_item_tail(q));
    if (tail == APART)
        return sv_sets_push(a, p < q ? p : q) && sv_sets_push(a, p < q ? q : p);
    return tail != SV_NO_SET && sv_sets_push(a, sv_item(node, tail));
}

/* The union of two tails. The recursion is no deeper than the lower of the stacks; the cache avoids
 * repeating it where stacks share parts. Very ambiguous grammars would make new unions without end:
 * after SV_STEP_UNIONS in a step, tails stay APART, which is equivalent but with more items. */
static uint32_t unite_tails(struct sv_automaton *a, uint32_t one, uint32_t other)
{
    const struct sv_set *x = &a->sets[one], *y = &a->sets[other];
    const uint32_t base = a->n_scratch;
    struct sv_union *known = union_at(a, one, other);
    uint32_t i = 0, j = 0, set;

    if (one == other)
        return one;
    if (known->one == one && known->other == other)
        return known->set;
    if (a->unions_left < 0)
        return APART;
    a->unions_left -= (int32_t)(x->n + y->n);
    a->work -= (int32_t)(x->n + y->n);
    while (i < x->n || j < y->n) {
        if (!merge_item(a, x, &i, y, &j))
            return SV_NO_SET;
    }
    set = intern(a, &a->scratch[base], a->n_scratch - base);
    a->n_scratch = base;
    if (set != SV_NO_SET)
        *known = (struct sv_union){one, other, set};
    return set;
}

uint32_t sv_sets_unite(struct sv_automaton *a, uint32_t base)
{
    uint64_t *x = &a->scratch[base];
    uint32_t n = a->n_scratch - base, n_out = 0, set;

    sort_items(x, n);
    a->work -= (int32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t tail = APART;
        if (n_out && sv_item_node(x[n_out - 1]) == sv_item_node(x[i]))
            tail = unite_tails(a, sv_item_tail(x[n_out - 1]), sv_item_tail(x[i]));
        if (tail == SV_NO_SET)
            return SV_NO_SET;
        if (tail == APART)
            x[n_out++] = x[i];
        else
            x[n_out - 1] = sv_item(sv_item_node(x[i]), tail);
    }
    set = intern(a, x, n_out);
    a->n_scratch = base;
    return set;
}

uint32_t sv_sets_prune(struct sv_automaton *a, uint32_t set, uint32_t most)
{
    const struct sv_set *s = &a->sets[set];
    const uint32_t base = a->n_scratch, key = PRUNED | most;
    struct sv_union *known = union_at(a, set, key);
    uint32_t pruned;

    if (s->high <= most)
        return set;
    if (known->one == set && known->other == key)
        return known->set;
    a->work -= (int32_t)s->n;
    for (uint32_t i = 0; i < s->n && a->work >= 0; i++) {
        uint64_t item = a->items[s->first + i];
        uint32_t tail = sv_item_tail(item), node = sv_item_node(item);
        if (a->g->nodes[node].kind != SV_NODE_FINAL) {
            if (a->sets[tail].low >= most)
                continue;
            tail = sv_sets_prune(a, tail, most - 1);
        }
        if (tail == SV_NO_SET || !sv_sets_push(a, sv_item(node, tail)))
            return SV_NO_SET;
    }
    if (a->work < 0)
        return SV_NO_SET;
    pruned = intern(a, &a->scratch[base], a->n_scratch - base);
    a->n_scratch = base;
    if (pruned != SV_NO_SET)
        *known = (struct sv_union){set, key, pruned};
    return pruned;
}

uint32_t sv_sets_like(struct sv_automaton *a, uint32_t set)
{
    const struct sv_set *s = &a->sets[set];
    const uint32_t base = a->n_scratch;

    if (s->same == SV_ALONE)
        return set;
    if (s->like != SV_NO_SET)
        return s->like;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t item = a->items[s->first + i];
        const struct sv_node *node = &a->g->nodes[sv_item_node(item)];
        uint32_t tail = sv_sets_like(a, sv_item_tail(item));
        if (tail == SV_NO_SET || !sv_sets_push(a, sv_item(node->like, tail)))
            return SV_NO_SET;
    }
    a->sets[set].like = sv_sets_unite(a, base);
    return a->sets[set].like;
}

/* ---------------------------------------------------------------- dropping */

#define HELD 1u

/* Marks, in the field closed, the sets that matchers hold. Tails are older than the sets that
 * contain them, so one pass from the newest down marks them all. */
static void mark_held(struct sv_automaton *a)
{
    for (uint32_t i = 0; i < a->n_sets; i++)
        a->sets[i].closed = i <= SV_SET_DEAD || i == a->start ? HELD : 0;
    for (struct sv_matcher *m = a->matchers; m; m = m->next) {
        for (uint64_t n = m->oldest; n <= m->n_taken; n++)
            a->sets[m->states[n % (SV_MATCHER_BACK + 1)]].closed = HELD;
    }
    for (uint32_t i = a->n_sets; i-- > 0;) {
        const struct sv_set *s = &a->sets[i];
        for (uint32_t k = 0; s->closed == HELD && k < s->n; k++)
            a->sets[sv_item_tail(a->items[s->first + k])].closed = HELD;
    }
}

/* Compacts the held sets; moved[i] is the new number of set i. It is in the queue's memory, which
 * is not in use now. */
static uint32_t *compact(struct sv_automaton *a)
{
    uint32_t *moved = (uint32_t *)(void *)a->queue;
    uint32_t n = 0, n_items = 0;

    for (uint32_t i = 0; i < a->n_sets; i++) {
        struct sv_set s = a->sets[i];
        moved[i] = SV_SET_DEAD;
        if (s.closed != HELD)
            continue;
        moved[i] = n; /* before its items: set 0 contains itself */
        for (uint32_t k = 0; k < s.n; k++) {
            uint64_t item = a->items[s.first + k];
            a->items[n_items + k] = sv_item(sv_item_node(item), moved[sv_item_tail(item)]);
        }
        s.first = n_items;
        n_items += s.n;
        s.row = s.closed = s.like = SV_NO_SET;
        s.loops_known = false;
        s.mask = s.top = -1;
        a->sets[n++] = s;
    }
    a->n_sets = n;
    a->n_items = n_items;
    a->n_rows = 0;
    return moved;
}

static uint32_t at_most(uint32_t n, uint32_t most)
{
    return n < most ? n : most;
}

void sv_sets_allow(struct sv_automaton *a)
{
    a->max_sets = at_most(a->n_sets + SV_MAX_SETS / 2, SV_MAX_SETS);
    a->max_items = at_most(a->n_items + SV_MAX_ITEMS / 2, SV_MAX_ITEMS);
    a->work = SV_WORK;
    a->full = false;
}

void sv_sets_collect(struct sv_automaton *a)
{
    uint32_t *moved;

    for (int i = 0; i < SV_N_TOPS; i++)
        a->tops[i].set = SV_NO_SET;
    for (int i = 0; i < SV_N_MASKS; i++)
        a->masks[i].set = SV_NO_SET;
    mark_held(a);
    moved = compact(a);
    if (a->start != SV_NO_SET)
        a->start = moved[a->start];
    for (struct sv_matcher *m = a->matchers; m; m = m->next) {
        for (uint64_t n = m->oldest; n <= m->n_taken; n++) {
            uint32_t *state = &m->states[n % (SV_MATCHER_BACK + 1)];
            *state = moved[*state];
        }
    }
    memset(a->table, 0, 2 * SV_MAX_SETS * sizeof *a->table);
    for (uint32_t i = 0; i < a->n_sets; i++) {
        struct sv_set *s = &a->sets[i];
        s->hash = hash_items(&a->items[s->first], s->n);
        *table_at(a, &a->items[s->first], s->n, s->hash) = i + 1;
    }
    sv_sets_forget_unions(a);
    a->n_scratch = 0;
    sv_sets_allow(a);
}
