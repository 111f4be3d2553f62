/*
 * rules.h - the compiled grammar: a network of nodes for every rule, which call one another, and
 * the expressions from which it is made.
 *
 * Private to src/grammar: build.c and chars.c make expressions, compile.c and network.c the
 * network, close.c reads it. Must not: change after sv_build_finish, except the reference count and
 * the list of automata.
 */
#ifndef SV_GRAMMAR_RULES_H
#define SV_GRAMMAR_RULES_H

#include "grammar/core/build.h"

#include <stdatomic.h>

/* ---------------------------------------------------------------- limits */

/* Of one grammar. A node takes 16 bytes, an edge 8. */
#define SV_MAX_NODES (1u << 20)
#define SV_MAX_EXPRS (1u << 20)
#define SV_MAX_RULES (1u << 16)
/* Nesting of expressions within one rule, which bounds compile.c's recursion. */
#define SV_MAX_EXPR_DEPTH 1000
/* Frames of a matcher's stack. Texts that nest deeper are not in the language: masks allow only
 * tokens after which the text can still end within the limit. A level of JSON takes one or two. */
#define SV_MAX_STACK 1024

/* ---------------------------------------------------------------- network */

enum sv_node_kind {
    SV_NODE_FINAL, /* nodes 0 and 1 only: the end of the text, the unknown tail of automaton.h */
    SV_NODE_BYTES, /* one of the edges takes the next byte */
    SV_NODE_SPLIT, /* continues at every edge's node; the edges' bytes are not used */
    SV_NODE_CALL,  /* rule at, then node n */
    SV_NODE_END    /* of its rule: continues where the rule was called */
};
#define SV_NODE_ACCEPT 0u
#define SV_NODE_UNKNOWN 1u
#define SV_NEVER UINT16_MAX

struct sv_node {
    uint32_t at; /* BYTES, SPLIT: first edge; CALL: the rule */
    uint32_t n;  /* number of edges; CALL: the node after it */
    /* For masks: node `like` is this node's representative (like.c): with any stack, both allow the
     * same tokens of at most `same` bytes. SV_ALONE: like is this node. */
    uint32_t like;
    /* The fewest frames that are pushed on the way to the rule's end; SV_NEVER: no text reaches
     * it. */
    uint16_t need;
    uint8_t same;
    uint8_t kind;
};
#define SV_ALONE UINT8_MAX

struct sv_edge {
    uint32_t to;
    uint8_t lo, hi;
};

struct sv_rule {
    uint32_t entry;
    uint32_t rank; /* a rule that may call another before any byte has the lower rank */
    bool nullable; /* it matches the empty text */
    uint16_t need; /* of its entry */
    int64_t pos;
    char *name; /* NULL: none */
};

struct sv_automaton;

struct sv_grammar {
    atomic_int refs;
    struct sv_node *nodes;
    struct sv_edge *edges;
    struct sv_rule *rules;
    uint32_t n_nodes, n_edges, n_rules;
    uint32_t start; /* rule */
    /* Bytes that no edge distinguishes are one class. */
    uint8_t class_of[256], byte_of[256]; /* byte to class, class to one of its bytes */
    uint32_t n_classes;
    /* One for each vocabulary, that is for each engine, used by its thread only. Any thread may add
     * one at the front. */
    _Atomic(struct sv_automaton *) automata;
};

/* ---------------------------------------------------------------- expressions */

enum sv_expr_kind {
    SV_EXPR_NOTHING,
    SV_EXPR_BYTES,  /* bytes[at .. at+n) one after the other; n = 0: the empty text */
    SV_EXPR_BYTE,   /* one byte of at..n */
    SV_EXPR_CHARS,  /* one code point of ranges[at .. at+n), sorted and disjoint */
    SV_EXPR_SEQ,    /* kids[at .. at+n) */
    SV_EXPR_ALT,    /* kids[at .. at+n) */
    SV_EXPR_REPEAT, /* n to max times expression at */
    SV_EXPR_RULE,   /* calls rule at */
    SV_EXPR_STATES, /* n states, max arcs: kids[at ..] from, to and label of each */
    SV_EXPR_UNTIL,  /* bytes[at .. at+n) is the marker; max 1: up to it, 0: any text without it */
    SV_EXPR_GRAMMAR /* imports[at] */
};

struct sv_expr_node {
    uint8_t kind;
    uint16_t depth; /* of nesting */
    uint32_t at, n;
    int32_t max;
    uint32_t size; /* about how many nodes it compiles to, at most SV_MAX_NODES */
};

/* A growing array; grow doubles it. */
struct sv_list {
    void *data;
    uint32_t n, cap;
};

struct sv_build {
    struct sv_list exprs;   /* struct sv_expr_node */
    struct sv_list kids;    /* sv_expr */
    struct sv_list bytes;   /* uint8_t */
    struct sv_list ranges;  /* struct sv_range */
    struct sv_list rules;   /* struct sv_build_rule */
    struct sv_list imports; /* struct sv_import */
    struct sv_list nodes;   /* struct sv_node, while compiling */
    struct sv_list edges;   /* struct sv_edge */
    int64_t pos;
    struct sv_err err; /* the first; code 0: none */
};

struct sv_build_rule {
    char *name;
    int64_t pos;
    sv_expr body;
    bool defined;
    uint32_t entry; /* its first node; 0: not compiled yet */
};

struct sv_import {
    const struct sv_grammar *grammar;
    bool copied;
    uint32_t first_rule; /* of the copy */
};

/* Appends n items of item_bytes, at most max in all, and returns their address; NULL: failed, the
 * error is recorded. */
void *sv_build_grow(struct sv_build *b, struct sv_list *list, uint32_t n, size_t item_bytes,
                    uint32_t max, const char *what);
static inline struct sv_expr_node *sv_build_expr(const struct sv_build *b, sv_expr x)
{
    return (struct sv_expr_node *)b->exprs.data + x;
}
static inline struct sv_build_rule *sv_build_rule_at(const struct sv_build *b, uint32_t i)
{
    return (struct sv_build_rule *)b->rules.data + i;
}
static inline struct sv_node *sv_build_node(const struct sv_build *b, uint32_t i)
{
    return (struct sv_node *)b->nodes.data + i;
}
static inline struct sv_edge *sv_build_edge(const struct sv_build *b, uint32_t i)
{
    return (struct sv_edge *)b->edges.data + i;
}

/* ---------------------------------------------------------------- compile.c, chars.c, network.c */

/* A new node; 0 on failure, which is a valid index. */
uint32_t sv_build_new_node(struct sv_build *b, enum sv_node_kind kind, uint32_t at, uint32_t n);
/* A node that takes one byte of lo..hi and continues at next. */
uint32_t sv_build_byte_node(struct sv_build *b, uint8_t lo, uint8_t hi, uint32_t next);
/* n new consecutive edges; the index of the first, 0 on failure. */
uint32_t sv_build_new_edges(struct sv_build *b, uint32_t n);
/* One code point of sorted disjoint ranges in UTF-8, then next. */
uint32_t sv_build_utf8(struct sv_build *b, const struct sv_range *ranges, uint32_t n,
                       uint32_t next);
/* Any bytes and the marker, then next; or any bytes without the marker, then next. */
uint32_t sv_build_marker(struct sv_build *b, const uint8_t *marker, uint32_t n, bool with,
                         uint32_t next);

/* Computes need, nullable, rank and classes. Refuses left recursion and a start that matches no
 * text. */
int sv_network_finish(struct sv_grammar *g, struct sv_err *err);

/* like.c. Computes like and same of every node; SV_ENOMEM. */
int sv_network_liken(struct sv_grammar *g);

/* automaton.c */
void sv_automaton_close(struct sv_automaton *a);

#endif
