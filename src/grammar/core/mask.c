/*
 * mask.c - token masks, by walks over the vocabulary's trie with the grammar's states.
 *
 * Called by matcher.c. The items of a state are grouped by tail. The tokens that the items of one
 * tail allow are computed once with an unknown tail in its place, and cached: they are
 * the same at any depth and in any context. Where such a walk reaches the unknown tail, the trie's
 * subtree is kept as a leaf, and is walked with the actual tail each time. So a string's mask costs
 * one walk over the vocabulary for each grammar, and after that the few thousand tokens that close
 * the string. Must not: allocate.
 */
#include "grammar/core/automaton.h"

#include <string.h>

/* Smaller subtrees are walked without computing whether all of their tokens are allowed. */
#define LARGE_SUBTREE 32
/* States of more tails than this are walked without cached parts. */
#define MAX_TAILS 8

static inline void allow(uint32_t *words, uint32_t id)
{
    words[id / 32] |= 1u << (id % 32);
}

static void allow_run(const struct sv_vocab *v, uint32_t *words, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        allow(words, v->order[i]);
}

/* The representative of the state after a byte; *same is lowered to the bytes on which they
 * agree. */
static uint32_t step_like(struct sv_automaton *a, uint32_t set, uint8_t byte, uint8_t *same)
{
    uint32_t to = sv_step(a, set, byte);

    if (to == SV_NO_SET || a->sets[to].same == SV_ALONE)
        return to;
    if (a->sets[to].same < *same)
        *same = a->sets[to].same;
    return sv_sets_like(a, to);
}

/* Positions within characters that find_loops has visited. */
struct places {
    uint8_t same;
    struct {
        uint8_t utf8;
        uint32_t set;
    } seen[16];
    int n;
};

/* Whether all characters beyond ASCII whose first bytes, up to UTF-8 state `utf8`, led to `at` lead
 * back to state `home`, through states that need no more of the stack than `home`. */
static bool wide_loops(struct sv_automaton *a, uint32_t home, uint8_t utf8, uint32_t at,
                       struct places *p)
{
    for (int i = 0; i < p->n; i++) {
        if (p->seen[i].utf8 == utf8 && p->seen[i].set == at)
            return true;
    }
    if (p->n == 16)
        return false;
    p->seen[p->n].utf8 = utf8;
    p->seen[p->n++].set = at;
    for (int byte = 0x80; byte < 0x100; byte++) {
        uint8_t next = sv_utf8_next(utf8, (uint8_t)byte);
        uint32_t to = next == SV_UTF8_BROKEN ? home : step_like(a, at, (uint8_t)byte, &p->same);
        if (next == SV_UTF8_BROKEN)
            continue;
        if (to == SV_NO_SET || to == SV_SET_DEAD || a->sets[to].reach > a->sets[home].reach)
            return false;
        if (next == 0 ? to != home : !wide_loops(a, home, next, to, p))
            return false;
    }
    return true;
}

/* Which kinds of bytes lead from a state back to it; false: out of room. */
static bool find_loops(struct sv_automaton *a, uint32_t set)
{
    struct places places = {.same = SV_ALONE};
    uint64_t loops = (UINT64_C(1) << SV_KIND_WIDE) - 1;
    bool all = true;

    for (uint32_t class = 0; class < a->g->n_classes; class ++) {
        uint8_t same = places.same;
        uint32_t to = step_like(a, set, a->g->byte_of[class], &same);
        if (to == SV_NO_SET)
            return false;
        if (to == set) {
            places.same = same;
        } else {
            loops &= ~a->kinds_of[class];
            all = false;
        }
    }
    if (all)
        loops = UINT64_MAX;
    else if (wide_loops(a, set, 0, set, &places))
        loops |= UINT64_C(1) << SV_KIND_WIDE;
    if (a->full || a->work < 0)
        return false;
    a->sets[set].loops = loops;
    a->sets[set].loops_same = places.same;
    a->sets[set].loops_known = true;
    return true;
}

/* Whether all tokens of node i's subtree, and its own, lead from a state back to it. */
static inline bool covers(const struct sv_automaton *a, uint32_t set, uint32_t i)
{
    const struct sv_set *s = &a->sets[set];

    return s->loops_known && !(a->v->kinds[i] & ~s->loops) &&
           (a->v->nodes[i].starts || s->loops == UINT64_MAX) &&
           (s->loops_same == SV_ALONE ||
            a->v->nodes[i].tallest - a->v->nodes[i].depth <= s->loops_same);
}

static bool state_is_unknown(const struct sv_automaton *a, uint32_t set)
{
    const struct sv_set *s = &a->sets[set];
    return s->n && sv_item_node(a->items[s->first]) == SV_NODE_UNKNOWN;
}

/* Records in a top the state at node i. */
static void note(const struct sv_automaton *a, struct sv_top *top, uint32_t set, uint32_t i)
{
    if (a->sets[set].reach > top->reach)
        top->reach = a->sets[set].reach;
    if (state_is_unknown(a, set) && a->v->nodes[i].end > i + 1 && top->n_leaves <= SV_N_LEAVES) {
        if (top->n_leaves < SV_N_LEAVES)
            top->leaves[top->n_leaves] = i;
        top->n_leaves++;
    }
}

/* Walks the nodes [i, end), siblings with their subtrees, from a state, and allows the tokens that
 * it reaches. */
static bool walk(struct sv_automaton *a, uint32_t from, uint32_t i, uint32_t end, uint32_t *words,
                 struct sv_top *top)
{
    const struct sv_vocab *v = a->v;
    const uint32_t depth0 = v->nodes[i].depth;
    uint32_t *states = a->walk;

    states[0] = from;
    while (i < end) {
        const struct sv_trie_node *node = &v->nodes[i];
        uint32_t depth = node->depth - depth0, before = states[depth], set;
        if (covers(a, before, i) && !(top && state_is_unknown(a, before))) {
            allow_run(v, words, node->token, v->nodes[node->end].token);
            i = node->end;
            continue;
        }
        set = sv_step(a, before, node->byte);
        if (set == SV_SET_DEAD) {
            i = node->end;
            continue;
        }
        if (set != SV_NO_SET && node->tallest - node->depth <= a->sets[set].same)
            set = sv_sets_like(a, set); /* often its loops are computed already */
        if (set == SV_NO_SET)
            return false;
        if (top)
            note(a, top, set, i);
        if (set == before && !a->sets[set].loops_known && node->end - i > LARGE_SUBTREE &&
            !find_loops(a, set))
            return false;
        for (uint32_t t = node->token; t < node[1].token; t++)
            allow(words, v->order[t]);
        states[depth + 1] = set;
        i++;
    }
    return true;
}

/* The words hold the mask of the representative, which is right for tokens of at most `same` bytes:
 * checks the longer ones. */
static bool walk_longer(struct sv_automaton *a, uint32_t set, uint8_t same, uint32_t *words)
{
    const struct sv_vocab *v = a->v;
    uint32_t *states = a->walk;

    states[0] = set;
    for (uint32_t i = 0; i < v->n_nodes;) {
        const struct sv_trie_node *node = &v->nodes[i];
        if (node->tallest <= same) {
            i = node->end;
            continue;
        }
        set = sv_step(a, states[node->depth - 1], node->byte);
        if (set == SV_NO_SET)
            return false;
        if (set == SV_SET_DEAD) {
            for (uint32_t t = node->token; t < v->nodes[node->end].token; t++)
                words[v->order[t] / 32] &= ~(1u << (v->order[t] % 32));
            i = node->end;
            continue;
        }
        for (uint32_t t = node->token; t < node[1].token; t++)
            allow(words, v->order[t]);
        states[node->depth] = set;
        i++;
    }
    return true;
}

/* ---------------------------------------------------------------- tops */

static struct sv_top *oldest_top(struct sv_automaton *a)
{
    struct sv_top *oldest = &a->tops[0];

    for (int i = 0; i < SV_N_TOPS && oldest->set != SV_NO_SET; i++) {
        if (a->tops[i].set == SV_NO_SET || a->tops[i].used < oldest->used)
            oldest = &a->tops[i];
    }
    if (oldest->set != SV_NO_SET)
        a->sets[oldest->set].top = -1;
    oldest->set = SV_NO_SET;
    return oldest;
}

/* The top of a state whose only tail is the unknown one; NULL: out of memory or work. */
static struct sv_top *top_of(struct sv_automaton *a, uint32_t set)
{
    struct sv_top *top;

    if (a->sets[set].top >= 0) {
        top = &a->tops[a->sets[set].top];
        top->used = ++a->clock;
        return top;
    }
    top = oldest_top(a);
    memset(top->words, 0, a->v->n_words * sizeof *top->words);
    top->n_leaves = 0;
    top->reach = a->sets[set].reach;
    if (!walk(a, set, 0, a->v->n_nodes, top->words, top))
        return NULL;
    top->set = set;
    top->used = ++a->clock;
    a->sets[set].top = (int16_t)(top - a->tops);
    return top;
}

/* ---------------------------------------------------------------- masks */

/* The tails of a state's items; -1: too many. */
static int tails_of(const struct sv_automaton *a, uint32_t set, uint32_t tails[MAX_TAILS])
{
    const struct sv_set *s = &a->sets[set];
    int n = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t item = a->items[s->first + i];
        int k = 0;
        if (sv_item_node(item) == SV_NODE_ACCEPT)
            continue;
        while (k < n && tails[k] != sv_item_tail(item))
            k++;
        if (k == MAX_TAILS)
            return -1;
        tails[k] = sv_item_tail(item);
        n += k == n;
    }
    return n;
}

/* The tail of all of a set's items; SV_NO_SET: several, or the bottom of the stack. */
static uint32_t only_tail(const struct sv_automaton *a, uint32_t set)
{
    const struct sv_set *s = &a->sets[set];
    uint32_t tail = s->n ? sv_item_tail(a->items[s->first]) : SV_NO_SET;

    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t item = a->items[s->first + i];
        if (sv_item_tail(item) != tail || a->g->nodes[sv_item_node(item)].kind == SV_NODE_FINAL)
            return SV_NO_SET;
    }
    return tail;
}

/* The items of a set that have this tail, with it replaced by another. */
static uint32_t with_tail(struct sv_automaton *a, uint32_t set, uint32_t tail, uint32_t other)
{
    const struct sv_set *s = &a->sets[set];
    uint32_t base = a->n_scratch;

    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t item = a->items[s->first + i];
        if (sv_item_tail(item) == tail && sv_item_node(item) != SV_NODE_ACCEPT &&
            !sv_sets_push(a, sv_item(sv_item_node(item), other)))
            return SV_NO_SET;
    }
    return sv_sets_unite(a, base);
}

/* Adds what a top allows with `tail` as the actual tail. */
static bool add_top(struct sv_automaton *a, const struct sv_top *top, uint32_t tail,
                    uint32_t *words)
{
    const struct sv_vocab *v = a->v;
    uint32_t after = top->n_leaves ? sv_step_pop(a, tail) : SV_SET_DEAD;

    if (after == SV_NO_SET)
        return false;
    for (uint32_t i = 0; i < v->n_words; i++)
        words[i] |= top->words[i];
    for (uint32_t i = 0; i < top->n_leaves; i++) {
        uint32_t leaf = top->leaves[i];
        if (!walk(a, after, leaf + 1, v->nodes[leaf].end, words, NULL))
            return false;
    }
    return true;
}

/* Whether a top may be used with this tail: it has few enough leaves, and none of its states can
 * exceed the limit on stacks, which a walk with an unknown tail does not check. */
static bool fits(const struct sv_automaton *a, const struct sv_top *top, uint32_t tail)
{
    return top->n_leaves <= SV_N_LEAVES && top->reach + a->sets[tail].high <= SV_MAX_STACK;
}

/* Adds what the items of one tail allow. When nearly all tokens leave the rule (it matches single
 * characters, say) the tail is taken as unknown one frame further down. *whole is set when neither
 * fits. */
static bool add_tail(struct sv_automaton *a, uint32_t set, uint32_t tail, uint32_t *words,
                     bool *whole)
{
    uint32_t key = with_tail(a, set, tail, SV_SET_UNKNOWN), below;
    struct sv_top *top = key == SV_NO_SET ? NULL : top_of(a, key);

    if (!top)
        return false;
    if (fits(a, top, tail))
        return add_top(a, top, tail, words);
    below = only_tail(a, tail);
    if (below != SV_NO_SET) {
        uint32_t frame = with_tail(a, tail, below, SV_SET_UNKNOWN);
        key = frame == SV_NO_SET ? SV_NO_SET : with_tail(a, set, tail, frame);
        top = key == SV_NO_SET ? NULL : top_of(a, key);
        if (!top)
            return false;
        if (fits(a, top, below))
            return add_top(a, top, below, words);
    }
    *whole = true;
    return true;
}

static bool fill(struct sv_automaton *a, uint32_t set, uint32_t *words)
{
    uint32_t tails[MAX_TAILS];
    int n_tails = tails_of(a, set, tails);
    bool whole = n_tails < 0;

    memset(words, 0, a->v->n_words * sizeof *words);
    for (int i = 0; i < n_tails && !whole; i++) {
        if (!add_tail(a, set, tails[i], words, &whole))
            return false;
    }
    if (whole && !walk(a, set, 0, a->v->n_nodes, words, NULL))
        return false;
    for (uint32_t i = 0; sv_set_accepts(a, set) && i < a->v->n_words; i++)
        words[i] |= a->v->end_mask[i];
    return true;
}

/* Frees the least recently used slot and returns it. */
static struct sv_mask *oldest_mask(struct sv_automaton *a)
{
    struct sv_mask *mask = &a->masks[0];

    for (int i = 0; i < SV_N_MASKS && mask->set != SV_NO_SET; i++) {
        if (a->masks[i].set == SV_NO_SET || a->masks[i].used < mask->used)
            mask = &a->masks[i];
    }
    if (mask->set != SV_NO_SET)
        a->sets[mask->set].mask = -1;
    mask->set = SV_NO_SET;
    return mask;
}

const uint32_t *sv_mask_of(struct sv_automaton *a, uint32_t set)
{
    const uint32_t *words = NULL;
    struct sv_mask *mask;
    uint32_t like;
    bool filled;

    if (a->sets[set].mask >= 0) {
        mask = &a->masks[a->sets[set].mask];
        mask->used = ++a->clock;
        return mask->words;
    }
    like = sv_sets_like(a, set);
    if (like == SV_NO_SET)
        return NULL;
    if (like != set) { /* a set of representatives is its own representative: no deeper than this */
        words = sv_mask_of(a, like);
        if (!words || a->v->longest <= a->sets[set].same)
            return words;
    }
    mask = oldest_mask(a);
    if (words) {
        memcpy(mask->words, words, a->v->n_words * sizeof *words);
        filled = walk_longer(a, set, a->sets[set].same, mask->words);
    } else {
        filled = fill(a, set, mask->words);
    }
    if (!filled)
        return NULL;
    mask->set = set;
    mask->used = ++a->clock;
    a->sets[set].mask = (int16_t)(mask - a->masks);
    return mask->words;
}
