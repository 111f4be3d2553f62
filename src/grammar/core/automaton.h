/*
 * automaton.h - what matchers of one grammar and vocabulary share: the states reached so far, the
 * transitions between them, and masks; and the vocabulary's trie.
 *
 * Private to src/grammar: sets.c keeps states, close.c makes them, mask.c and matcher.c use them.
 *
 * A state is a set of items (node, tail): the node that takes the rule's next byte, and the rest of
 * the stack, which is itself a set of items: where matching continues when the rule ends. This is a
 * graph-structured stack: one set represents any number of stacks and stores their common parts
 * once. Equal sets are one set with one number, and items of one set with the same node are merged
 * by uniting their tails. Item (SV_NODE_ACCEPT, 0) is the end of the text.
 *
 * All memory is allocated when the automaton is opened. Cached states are dropped
 * (sv_sets_collect) when half of it is used up, or when computing them took SV_WORK in all, and the
 * call is repeated with empty caches; if it exceeds the bounds again, its matcher fails. So a call
 * succeeds if and only if it succeeds with empty caches, whatever was cached before. Must not: be
 * used by two threads.
 */
#ifndef SV_GRAMMAR_AUTOMATON_H
#define SV_GRAMMAR_AUTOMATON_H

#include "grammar/core/rules.h"

/* ---------------------------------------------------------------- vocabulary */

/* Nodes of the trie in depth-first order: a node's subtree is [i + 1, end). */
struct sv_trie_node {
    uint32_t end;
    uint32_t token;   /* the node's tokens are order[token .. the next node's token) */
    uint16_t depth;   /* bytes, at least 1 */
    uint16_t tallest; /* depth of the deepest node of the subtree */
    uint8_t byte;
    bool starts; /* this byte begins a character, after complete characters */
};

struct sv_vocab {
    atomic_int refs;
    int32_t n_tokens;
    uint32_t n_words;
    uint8_t *text;              /* bytes of all tokens */
    uint32_t *text_at;          /* (n_tokens + 1) offsets in text; equal: never generated */
    uint32_t *end_mask;         /* (n_words) the ids that end a text */
    struct sv_trie_node *nodes; /* (n_nodes + 1) the last one is a sentinel */
    uint64_t *kinds;            /* (n_nodes) kinds of bytes in a node and its subtree */
    uint32_t *order;            /* ids sorted by their bytes */
    uint32_t n_nodes, n_order;
    uint32_t longest; /* bytes of the longest token */
};

/* Kinds of bytes. ASCII characters of one kind are mostly equivalent in grammars. Bytes of
 * characters beyond ASCII, complete or cut by the token's end, are one kind; bytes that are not
 * UTF-8 are another. */
#define SV_KIND_WIDE 48
#define SV_KIND_BROKEN 49
static inline int sv_ascii_kind(uint8_t c)
{
    if (c >= 'a')
        return c <= 'z' ? 0 : 1 + c - '{';
    if (c >= 'A')
        return c <= 'Z' ? 6 : 7 + c - '[';
    if (c >= '0')
        return c <= '9' ? 13 : 14 + c - ':';
    if (c >= ' ')
        return 21 + c - ' ';
    return c == '\n' ? 37 : c == '\t' ? 38 : c == '\r' ? 39 : 40;
}

/* vocab.c. The UTF-8 decoder's next state: 0 between characters, SV_UTF8_BROKEN: not UTF-8. */
#define SV_UTF8_BROKEN 8
uint8_t sv_utf8_next(uint8_t state, uint8_t byte);

/* ---------------------------------------------------------------- sets */

#define SV_MAX_SETS (1u << 16)
#define SV_MAX_ITEMS (1u << 19)
#define SV_MAX_ROW_CELLS (1u << 21)
#define SV_MAX_QUEUE (1u << 16)
#define SV_MAX_SCRATCH (1u << 17)
#define SV_N_MASKS 64 /* of complete states */
#define SV_N_TOPS 64
#define SV_N_LEAVES 4096 /* of one top */
/* Items visited between two resets of the caches, and so at most for one token or mask: some tens
 * of milliseconds; and for all tokens that are tried from one state and undone. */
#define SV_WORK (1 << 22)
#define SV_WORK_TRIED (SV_WORK / 8)

#define SV_SET_END 0u     /* the tail of the start: {(ACCEPT, 0)} */
#define SV_SET_UNKNOWN 1u /* an unknown tail: {(UNKNOWN, 0)} */
#define SV_SET_DEAD 2u    /* no item */
#define SV_NO_SET UINT32_MAX

struct sv_set {
    uint32_t first, n; /* items */
    uint32_t row;      /* of transitions; SV_NO_SET: none yet */
    uint32_t closed;   /* the state after popping this tail; SV_NO_SET: not computed */
    uint32_t hash;
    uint16_t low, high; /* frames of the shortest and of the tallest stack, as a tail */
    uint16_t reach; /* the most frames any item needs until its rule's end, at its tallest stack */
    int16_t mask, top; /* slots, -1: none */
    /* As in struct sv_node, for all nodes of the items and their tails. */
    uint32_t like; /* SV_NO_SET: not computed */
    uint8_t same;
    bool loops_known;
    uint8_t loops_same; /* loops holds for this many bytes after the first; SV_ALONE: for all */
    uint64_t loops; /* kinds of bytes that lead from this state to itself or its representative */
};

/* The mask of a state with an unknown tail: tokens that are allowed whatever the tail, and the trie
 * nodes below which that depends on the tail (context-dependent tokens). */
struct sv_top {
    uint32_t set; /* SV_NO_SET: free */
    uint64_t used;
    uint32_t n_leaves; /* SV_N_LEAVES + 1: too many to use */
    uint16_t reach;    /* of all states visited */
    uint32_t *words, *leaves;
};

struct sv_mask {
    uint32_t set; /* SV_NO_SET: free */
    uint64_t used;
    uint32_t *words;
};

/* A cached union of two sets. */
struct sv_union {
    uint32_t one, other, set; /* one SV_NO_SET: free */
};
#define SV_N_UNIONS 4096
#define SV_STEP_UNIONS 20000 /* items visited to unite tails, in one step */

/* A rule's call during one closure. */
struct sv_call {
    uint32_t rank, next, tail, rule;
};

struct sv_automaton {
    const struct sv_grammar *g;
    struct sv_vocab *v;
    struct sv_automaton *next;   /* of the same grammar */
    struct sv_matcher *matchers; /* their states are kept */
    uint32_t start;

    struct sv_set *sets;
    uint64_t *items;
    uint32_t *table; /* (2 * SV_MAX_SETS) by hash: set + 1, 0: none */
    uint32_t *rows;  /* transitions: set + 1, 0: unknown */
    uint32_t n_sets, n_items, n_rows;
    uint32_t max_sets, max_items; /* left until the caches are reset */

    uint64_t *queue;         /* pairs (node, tail) of one closure */
    uint64_t *seen;          /* (2 * SV_MAX_QUEUE) by hash: epoch << 32 | index in the queue */
    struct sv_call *calls;   /* a heap by rank */
    struct sv_union *unions; /* (SV_N_UNIONS) by hash, the latest */
    uint64_t *scratch;
    uint32_t n_queue, n_calls, n_scratch, epoch;

    struct sv_mask masks[SV_N_MASKS];
    struct sv_top tops[SV_N_TOPS];
    uint32_t *words;        /* of all masks and tops */
    uint32_t *leaves;       /* of all tops */
    uint32_t *walk;         /* (longest + 1) states of a walk over the trie, by depth */
    uint64_t clock;         /* clock of uses, for masks and tops */
    uint64_t kinds_of[256]; /* by class: the kinds that have a byte in it */

    int32_t work;        /* work left until the caches are reset */
    int32_t unions_left; /* in this step */
    bool full;           /* a pool is used up: collect and try again */
};

static inline uint64_t sv_item(uint32_t node, uint32_t tail)
{
    return (uint64_t)node << 32 | tail;
}
static inline uint32_t sv_item_node(uint64_t item)
{
    return (uint32_t)(item >> 32);
}
static inline uint32_t sv_item_tail(uint64_t item)
{
    return (uint32_t)item;
}
static inline bool sv_set_accepts(const struct sv_automaton *a, uint32_t set)
{
    const struct sv_set *s = &a->sets[set];
    return s->n && a->items[s->first] == sv_item(SV_NODE_ACCEPT, SV_SET_END);
}

/* Functions that return a set return SV_NO_SET when a pool is full or the work is used up. */

/* sets.c. Pops the items of scratch from `base` on and returns them as one set. */
uint32_t sv_sets_unite(struct sv_automaton *a, uint32_t base);
bool sv_sets_push(struct sv_automaton *a, uint64_t item); /* onto scratch */
void sv_sets_forget_unions(struct sv_automaton *a);
/* The tail without its stacks of more than `most` frames (not less than its low). */
uint32_t sv_sets_prune(struct sv_automaton *a, uint32_t tail, uint32_t most);
/* The set with every node replaced by its representative. */
uint32_t sv_sets_like(struct sv_automaton *a, uint32_t set);
/* Drops all cached sets except the states that matchers hold, which get new numbers. */
void sv_sets_collect(struct sv_automaton *a);
/* Resets the bound on what may be cached. */
void sv_sets_allow(struct sv_automaton *a);

/* close.c. The state after one more byte; the state after popping a tail; the first state. */
uint32_t sv_step_slow(struct sv_automaton *a, uint32_t set, uint8_t class);
uint32_t sv_step_pop(struct sv_automaton *a, uint32_t tail);
uint32_t sv_step_start(struct sv_automaton *a);
static inline uint32_t sv_step(struct sv_automaton *a, uint32_t set, uint8_t byte)
{
    uint8_t class = a->g->class_of[byte];
    uint32_t row = a->sets[set].row;
    uint32_t to = row == SV_NO_SET ? 0 : a->rows[row * a->g->n_classes + class];

    return to ? to - 1 : sv_step_slow(a, set, class);
}

/* mask.c. The words of a state's mask, end ids included, valid until the next call; NULL when a
 * pool is full or the work is used up. */
const uint32_t *sv_mask_of(struct sv_automaton *a, uint32_t set);

/* automaton.c */
int sv_automaton_get(struct sv_automaton **a, struct sv_grammar *g, struct sv_vocab *v,
                     struct sv_err *err);

/* ---------------------------------------------------------------- matcher */

struct sv_matcher {
    struct sv_grammar *g;
    struct sv_automaton *a;
    struct sv_matcher *next, *prev; /* of the same automaton */
    uint64_t n_taken, oldest;       /* tokens; the fewest that a rollback can restore */
    const char *failure;
    bool tries;      /* its tokens will be undone; they may use a part of the work that is left */
    int32_t reserve; /* the rest of that work */
    uint32_t states[SV_MATCHER_BACK + 1]; /* after n tokens, at n modulo the length */
};

#endif
