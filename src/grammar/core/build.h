/*
 * build.h - the interface with which readers (gbnf.c, regex.c, schema, compose.c) build a grammar:
 * expressions over bytes, named rules that may call one another, and finally the grammar.
 *
 * Private to src/grammar. A builder belongs to one thread. The first error is kept: after it every
 * call returns a valid expression and does nothing, so a reader checks once, in sv_build_finish
 * (long loops may ask sv_build_failed). Must not: keep a caller's pointers; everything is copied.
 */
#ifndef SV_GRAMMAR_BUILD_H
#define SV_GRAMMAR_BUILD_H

#include "grammar/grammar.h"

/* An expression of one builder: a set of texts. It may be used in any number of places and is
 * compiled again for each: what is large and used often belongs in a rule. */
typedef uint32_t sv_expr;

/* Code points lo..hi, both included. Surrogates are left out of every set. */
struct sv_range {
    uint32_t lo, hi;
};

#define SV_MAX_CODE_POINT 0x10FFFFu

/* Sorts n ranges, merges overlapping and adjacent ones and removes surrogates; with negate the
 * result is the complement. In place: r has room for SV_TIDY_ROOM(n). Returns the new number. */
uint32_t sv_ranges_tidy(struct sv_range *r, uint32_t n, bool negate);
#define SV_TIDY_ROOM(n) (3 * (n) + 6)

struct sv_build;
int sv_build_open(struct sv_build **b, struct sv_err *err);
void sv_build_close(struct sv_build *b); /* NULL is fine */

/* The source offset reported with errors of the following calls; -1 (at first): none. */
void sv_build_at(struct sv_build *b, int64_t pos);
/* Records an error, unless there is one already. */
void sv_build_fail(struct sv_build *b, int code, int64_t pos, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool sv_build_failed(const struct sv_build *b);
/* The first error, for callers that do not finish a grammar; SV_OK: none. */
int sv_build_error(const struct sv_build *b, struct sv_err *err);

sv_expr sv_build_empty(struct sv_build *b);   /* the empty text */
sv_expr sv_build_nothing(struct sv_build *b); /* no text at all */
sv_expr sv_build_bytes(struct sv_build *b, const void *bytes, size_t n);
sv_expr sv_build_byte(struct sv_build *b, uint8_t lo, uint8_t hi); /* one byte of lo..hi */
/* One code point of the ranges (in any order, overlaps allowed), in UTF-8; with negate one that is
 * in none of them. */
sv_expr sv_build_chars(struct sv_build *b, const struct sv_range *ranges, size_t n, bool negate);
sv_expr sv_build_seq(struct sv_build *b, const sv_expr *parts, size_t n);
sv_expr sv_build_alt(struct sv_build *b, const sv_expr *parts, size_t n);
sv_expr sv_build_then(struct sv_build *b, sv_expr first, sv_expr second);
sv_expr sv_build_or(struct sv_build *b, sv_expr one, sv_expr other);
/* min to max times x, max -1: no bound. Costs about one node a repetition, not one copy of x, so
 * the costs of nested repetitions add and do not multiply. */
sv_expr sv_build_repeat(struct sv_build *b, sv_expr x, int32_t min, int32_t max);
/* Any bytes up to and including the first occurrence of the marker; any bytes without it (n = 0:
 * any bytes). */
sv_expr sv_build_until(struct sv_build *b, const void *marker, size_t n);
sv_expr sv_build_without(struct sv_build *b, const void *marker, size_t n);
/* An automaton of n_states states: begins at state 0, an arc's text leads from one state to
 * another, and state n_states is the end. Labels may be empty, but no cycle of empty ones. */
struct sv_arc {
    int32_t from, to;
    sv_expr label;
};
sv_expr sv_build_states(struct sv_build *b, int32_t n_states, const struct sv_arc *arcs, size_t n);
/* What a finished grammar matches. The grammar must live until sv_build_finish. */
sv_expr sv_build_grammar(struct sv_build *b, const struct sv_grammar *g);

/* A rule: declared first, so that bodies can call it (the expression calls the rule), defined once
 * later. The name (copied, NULL: none) and the position are for errors. Rules are shared, not
 * copied, and masks are cached by the position within a rule, not by its caller, so parts that
 * occur in many places (a string, a number, a value) should be rules. Direct left recursion becomes
 * a repetition; indirect left recursion is refused with its position. */
sv_expr sv_build_rule(struct sv_build *b, const char *name, size_t n_name, int64_t pos);
void sv_build_define(struct sv_build *b, sv_expr rule, sv_expr body);
bool sv_build_defined(const struct sv_build *b, sv_expr rule);

/* Compiles what can be reached from start. The caller owns *g; the builder can only be closed
 * afterwards. On failure the first error. */
int sv_build_finish(struct sv_build *b, sv_expr start, struct sv_grammar **g, struct sv_err *err);

#endif
