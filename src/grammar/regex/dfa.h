/*
 * dfa.h - sets of strings as finite automata over code points, with the operations that JSON schema
 * needs of them: both, without, lengths, words, regular expressions.
 *
 * Private to src/grammar; the schema files call it. An automaton has no dead ends: every state can
 * reach an end. Memory is in the arena of its room, and all work is counted there, so that a
 * hostile schema ends with an error and not after minutes.
 */
#ifndef SV_GRAMMAR_DFA_H
#define SV_GRAMMAR_DFA_H

#include "grammar/core/build.h"

/* Schemas' sets exclude U+0000: too many JSON parsers end a text there. */
#define SV_CP_FIRST 1u
#define SV_CP_LAST 0x10FFFFu

struct sv_dfa_edge {
    uint32_t lo, hi; /* code points, both included */
    int32_t to;
};

/* State 0 is the start; no states at all: the empty set. The edges of a state are sorted and
 * disjoint; no code point of an edge is a surrogate. */
struct sv_dfa {
    int32_t n_states;
    int32_t *first;            /* (n_states + 1) into edges */
    struct sv_dfa_edge *edges; /* (first[n_states]) */
    bool *final;               /* (n_states) */
};

/* Memory for automata, and how much work is left. nul: U+0000 is a character like any other; else
 * it is in no set. */
struct sv_dfa_room {
    struct sv_arena *arena;
    int64_t work;
    bool nul;
};

/* Uses n units of work; an error when fewer are left. */
int sv_dfa_spend(struct sv_dfa_room *room, int64_t n, struct sv_err *err);

/* An automaton found by walking from a start state. States are key_bytes of plain data (padding
 * cleared); steps() calls sv_dfa_step for each edge in ascending order. */
struct sv_dfa_walk;
struct sv_dfa_kind {
    size_t key_bytes;
    void (*steps)(void *arg, const void *state, struct sv_dfa_walk *w);
    bool (*final)(void *arg, const void *state);
};
void sv_dfa_step(struct sv_dfa_walk *w, uint32_t lo, uint32_t hi, const void *to);
int sv_dfa_walk(struct sv_dfa_room *room, const struct sv_dfa_kind *kind, void *arg,
                const void *start, const struct sv_dfa **out, struct sv_err *err);

/* min to max characters; max < 0: any number. */
int sv_dfa_length(struct sv_dfa_room *room, int64_t min, int64_t max, const struct sv_dfa **out,
                  struct sv_err *err);
/* What is in a and in b; what is in a and not in b. */
int sv_dfa_both(struct sv_dfa_room *room, const struct sv_dfa *a, const struct sv_dfa *b,
                const struct sv_dfa **out, struct sv_err *err);
int sv_dfa_without(struct sv_dfa_room *room, const struct sv_dfa *a, const struct sv_dfa *b,
                   const struct sv_dfa **out, struct sv_err *err);
/* These n words, well-formed UTF-8. */
struct sv_word {
    const char *text;
    size_t n;
};
int sv_dfa_words(struct sv_dfa_room *room, const struct sv_word *words, size_t n,
                 const struct sv_dfa **out, struct sv_err *err);
/* The strings of an expression over characters (expr_dfa.c). */
int sv_dfa_expr(struct sv_dfa_room *room, const struct sv_build *b, sv_expr x,
                const struct sv_dfa **out, struct sv_err *err);
/* Minimises *d, unless that would take long (dfa_slim.c). */
int sv_dfa_slim(struct sv_dfa_room *room, const struct sv_dfa **d, struct sv_err *err);
/* Whether well-formed UTF-8 is in the set. */
bool sv_dfa_has(const struct sv_dfa *d, const char *text, size_t n);
/* The code point at text[*at], which is well-formed; *at moves past it. */
uint32_t sv_dfa_next(const char *text, size_t *at);

#endif
