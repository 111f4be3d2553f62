/*
 * words.h - vocabularies for the tests of grammars, and what they all do with a matcher.
 *
 * Called by tests/grammar and tests/fuzz. Must not: look into src/grammar's structures.
 */
#ifndef SV_TEST_WORDS_H
#define SV_TEST_WORDS_H

#include "grammar/grammar.h"

/* All 256 bytes (id = byte), then the words given, then one special id that ends. */
struct words {
    struct sv_vocab *vocab;
    const char *const *list;
    size_t n_list;
    int32_t end, n;
    char byte;
};
void words_open(struct words *w, const char *const *list, size_t n);
void words_close(struct words *w);
/* Pieces of JSON, text, numbers and split UTF-8. */
extern const char *const words_common[];
extern const size_t words_n_common;

/* The bytes of an id; the end has none. */
const char *words_bytes(struct words *w, int32_t id, size_t *n);
/* Whether a fresh matcher takes text byte by byte, and may then end. */
bool words_matches(struct words *w, struct sv_grammar *g, const char *text, size_t n);
/* How many bytes of text a fresh matcher takes. */
size_t words_takes(struct words *w, struct sv_grammar *g, const char *text, size_t n);
/* The mask agrees with sv_matcher_allows for every id, and a token is allowed exactly when its
 * bytes can be taken one by one. */
void words_check_mask(struct words *w, struct sv_matcher *m);

#endif
