/*
 * naive.h - the plainest way to say whether a grammar matches a text, against which the automaton
 * is held: tables over all rules and positions, filled until nothing changes.
 *
 * Called by tests/grammar and tests/fuzz. Shares with the automaton the network and what
 * network.c says of it (need), nothing else. Must not: be used on long texts.
 */
#ifndef SV_TEST_NAIVE_H
#define SV_TEST_NAIVE_H

#include "grammar/core/rules.h"

#define NAIVE_LONGEST 15

struct naive {
    bool known;   /* false: the grammar is too large for this */
    bool matches; /* the whole text */
    bool begins;  /* the text is the beginning of one that matches */
};
struct naive naive_match(const struct sv_grammar *g, const char *text, size_t n);

#endif
