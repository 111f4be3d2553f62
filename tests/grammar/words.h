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
/* Opened over words_common and closed by these, as set-up and teardown of a test; all memory must
 * be given back by then. */
extern struct words words;
int words_setup(void **state);
int words_teardown(void **state);
#define WORDS_TEST(f) cmocka_unit_test_setup_teardown(f, words_setup, words_teardown)

void words_open(struct words *w, const char *const *list, size_t n);
void words_close(struct words *w);
/* Pieces of JSON, text, numbers and split UTF-8. */
extern const char *const words_common[];
extern const size_t words_n_common;

/* The bytes of an id; the end has none. */
const char *words_bytes(struct words *w, int32_t id, size_t *n);
/* Whether a fresh matcher takes text byte by byte, and may then end. */
bool words_matches(struct words *w, struct sv_grammar *g, const char *text, size_t n);
/* Gives the grammar back when all of `yes` match and none of `no` does. */
#define WORDS_LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
void words_check_texts(struct words *w, struct sv_grammar *g, const char *const *yes,
                       const char *const *no);
/* Each text is refused with this code, position (-2: any) and part of the message. */
struct refusal {
    const char *text, *part;
    int code, pos;
};
void words_check_refused(int (*read)(struct sv_grammar **, const char *, size_t, struct sv_err *),
                         const struct refusal *r, size_t n);
/* How many bytes of text a fresh matcher takes. */
size_t words_takes(struct words *w, struct sv_grammar *g, const char *text, size_t n);
/* The mask agrees with sv_matcher_allows for every id, and a token is allowed exactly when its
 * bytes can be taken one by one. */
void words_check_mask(struct words *w, struct sv_matcher *m);

#endif
