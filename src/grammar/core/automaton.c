/*
 * automaton.c - opens and closes what the matchers of one grammar and vocabulary share.
 *
 * Called by matcher.c, and by compile.c when a grammar is freed. All memory is allocated here, in
 * pieces so large that the system provides pages only when they are touched. Must not: grow
 * afterwards.
 */
#include "grammar/core/automaton.h"

#include <string.h>

static bool take_memory(struct sv_automaton *a)
{
    const size_t n_masks = SV_N_MASKS + SV_N_TOPS;

    a->sets = sv_alloc(SV_MAX_SETS * sizeof *a->sets);
    a->items = sv_alloc(SV_MAX_ITEMS * sizeof *a->items);
    a->table = sv_calloc(2 * SV_MAX_SETS, sizeof *a->table);
    a->rows = sv_alloc(SV_MAX_ROW_CELLS * sizeof *a->rows);
    a->queue = sv_alloc(SV_MAX_QUEUE * sizeof *a->queue);
    a->seen = sv_calloc(2 * SV_MAX_QUEUE, sizeof *a->seen);
    a->calls = sv_alloc(SV_MAX_QUEUE * sizeof *a->calls);
    a->unions = sv_alloc(SV_N_UNIONS * sizeof *a->unions);
    a->scratch = sv_alloc(SV_MAX_SCRATCH * sizeof *a->scratch);
    a->words = sv_alloc(n_masks * a->v->n_words * sizeof *a->words);
    a->leaves = sv_alloc((size_t)SV_N_TOPS * SV_N_LEAVES * sizeof *a->leaves);
    a->walk = sv_alloc((a->v->longest + 1) * sizeof *a->walk);
    return a->sets && a->items && a->table && a->rows && a->queue && a->seen && a->calls &&
           a->unions && a->scratch && a->words && a->leaves && a->walk;
}

static void share_out(struct sv_automaton *a)
{
    for (int i = 0; i < SV_N_MASKS; i++) {
        a->masks[i].set = SV_NO_SET;
        a->masks[i].words = a->words + (size_t)i * a->v->n_words;
    }
    for (int i = 0; i < SV_N_TOPS; i++) {
        a->tops[i].set = SV_NO_SET;
        a->tops[i].words = a->words + (size_t)(SV_N_MASKS + i) * a->v->n_words;
        a->tops[i].leaves = a->leaves + (size_t)i * SV_N_LEAVES;
    }
    sv_sets_forget_unions(a);
    for (int byte = 0; byte < 128; byte++)
        a->kinds_of[a->g->class_of[byte]] |= UINT64_C(1) << sv_ascii_kind((uint8_t)byte);
}

/* The three sets with fixed numbers, and the first state. */
static void first_sets(struct sv_automaton *a)
{
    static const uint64_t bottoms[] = {(uint64_t)SV_NODE_ACCEPT << 32,
                                       (uint64_t)SV_NODE_UNKNOWN << 32};

    sv_sets_allow(a);
    for (uint32_t i = 0; i < 2; i++) {
        sv_sets_push(a, bottoms[i]);
        SV_REQUIRE(sv_sets_unite(a, 0) == i);
    }
    SV_REQUIRE(sv_sets_unite(a, 0) == SV_SET_DEAD);
    a->start = sv_step_start(a);
}

int sv_automaton_get(struct sv_automaton **out, struct sv_grammar *g, struct sv_vocab *v,
                     struct sv_err *err)
{
    struct sv_automaton *a;

    for (a = atomic_load_explicit(&g->automata, memory_order_acquire); a; a = a->next) {
        if (a->v == v) {
            *out = a;
            return SV_OK;
        }
    }
    a = sv_calloc(1, sizeof *a);
    if (!a)
        return sv_fail(err, SV_ENOMEM, -1, "grammar: out of memory");
    a->g = g;
    a->v = v;
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    if (!take_memory(a)) {
        sv_automaton_close(a);
        return sv_fail(err, SV_ENOMEM, -1, "grammar: out of memory");
    }
    share_out(a);
    first_sets(a);
    if (a->start == SV_NO_SET) {
        sv_automaton_close(a);
        return sv_fail(err, SV_EFULL, -1, "the grammar has too many beginnings");
    }
    a->next = atomic_load_explicit(&g->automata, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&g->automata, &a->next, a, memory_order_release,
                                                  memory_order_relaxed)) {
    }
    *out = a;
    return SV_OK;
}

void sv_automaton_close(struct sv_automaton *a)
{
    while (a) {
        struct sv_automaton *next = a->next;
        SV_REQUIRE(!a->matchers);
        sv_vocab_close(a->v);
        sv_free(a->sets);
        sv_free(a->items);
        sv_free(a->table);
        sv_free(a->rows);
        sv_free(a->queue);
        sv_free(a->seen);
        sv_free(a->calls);
        sv_free(a->unions);
        sv_free(a->scratch);
        sv_free(a->words);
        sv_free(a->leaves);
        sv_free(a->walk);
        sv_free(a);
        a = next;
    }
}
