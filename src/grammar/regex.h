/*
 * regex.h - regular expressions as trees: what regex.c makes grammar of and the schema's patterns
 * make automata of.
 *
 * Private to src/grammar. The syntax is in docs/structured-output.md.
 */
#ifndef SV_GRAMMAR_REGEX_H
#define SV_GRAMMAR_REGEX_H

#include "grammar/build.h"

enum sv_regex_kind {
    SV_REGEX_EMPTY,  /* the empty text */
    SV_REGEX_SET,    /* one code point of ranges[at .. at+n): sorted, disjoint */
    SV_REGEX_THEN,   /* node a, then node b */
    SV_REGEX_OR,     /* node a, or node b */
    SV_REGEX_REPEAT, /* min to max times node a; max -1: no bound */
    SV_REGEX_BEGIN,  /* ^ */
    SV_REGEX_END     /* $ */
};

struct sv_regex_node {
    uint8_t kind;
    int32_t a, b;     /* nodes, which come before this one */
    int32_t min, max; /* REPEAT */
    int32_t at, n;    /* SET: its ranges */
    int64_t pos;      /* in the expression */
};

struct sv_regex_tree {
    struct sv_regex_node *nodes;
    struct sv_range *ranges;
    int32_t n_nodes, cap_nodes, n_ranges, cap_ranges;
    int32_t root;
};

/* Fills the tree, which takes memory of its own until it is closed (also after an error). pos:
 * where the expression begins in the source, added to the errors' positions. */
int sv_regex_parse(struct sv_regex_tree *tree, const char *text, size_t n, int64_t pos,
                   struct sv_err *err);
void sv_regex_tree_close(struct sv_regex_tree *tree);

#endif
