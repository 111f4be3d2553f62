/*
 * regex.h - regular expressions as expressions of a builder.
 *
 * Private to src/grammar: the schema files, search.c and sv_grammar_regex call it. Must not: keep
 * the text.
 */
#ifndef SV_GRAMMAR_REGEX_H
#define SV_GRAMMAR_REGEX_H

#include "grammar/core/build.h"

struct sv_regex_style {
    /* As JSON schema's pattern: found anywhere unless anchored; else the whole text matches and ^
     * and $ at the ends change nothing. */
    bool search;
    int64_t pos; /* where the expression begins in the source, added to positions of errors */
};
/* The expression as part of a larger grammar, or for an automaton (dfa.h). style may be NULL.
 * Errors are recorded in the builder. */
sv_expr sv_regex_expr(struct sv_build *b, const char *text, size_t n,
                      const struct sv_regex_style *style);

#endif
