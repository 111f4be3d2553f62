/*
 * test_random.c - random grammars: the automaton says what the naive matcher says, masks are those
 * of every token tried alone, and going back leads where one was.
 *
 * Called by the runner. Must not: draw on anything but fixed seeds, so that a failure comes back.
 */
#include "testing.h"
#include "grammar/naive.h"
#include "grammar/words.h"

#include <string.h>

/* timeout: 120 */

/* ---------------------------------------------------------------- grammars */

#define N_RULES 5

static void random_body(struct sv_buf *out, struct sv_rng *r, int depth)
{
    static const char *const atoms[] = {"\"a\"",        "\"b\"", "\"ab\"", "[ab]",
                                        "[^ab]",        "\"\"",  "\"(\"",  "\")\"",
                                        "\"\xC3\xA4\"", ".",     "\"aa\"", "[a-c]"};
    static const char *const times[] = {"", "", "", "", "*", "+", "?", "{2}", "{0,3}", "{1,20}"};
    uint32_t n = 1 + sv_rng_below(r, 3);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t kind = sv_rng_below(r, 10);
        if (kind < 5) {
            sv_buf_printf(out, "%s", atoms[sv_rng_below(r, 12)]);
        } else if (kind < 8) {
            sv_buf_printf(out, "r%u", sv_rng_below(r, N_RULES));
        } else if (depth > 0) {
            sv_buf_lit(out, "(");
            random_body(out, r, depth - 1);
            sv_buf_lit(out, ")");
        } else {
            sv_buf_lit(out, "\"b\"");
        }
        sv_buf_printf(out, "%s ", times[sv_rng_below(r, 10)]);
    }
    if (sv_rng_below(r, 2)) {
        sv_buf_lit(out, "| ");
        random_body(out, r, depth > 0 ? depth - 1 : 0);
    }
}

/* Random rules until some make a grammar; most draws are left recursive or endless. */
static struct sv_grammar *random_grammar(struct sv_buf *text, struct sv_rng *r)
{
    struct sv_grammar *g = NULL;

    for (;;) {
        struct sv_err err;
        int code;
        sv_buf_clear(text);
        sv_buf_lit(text, "root ::= r0 r1?\n");
        for (int i = 0; i < N_RULES; i++) {
            sv_buf_printf(text, "r%d ::= ", i);
            random_body(text, r, 2);
            sv_buf_lit(text, "\n");
        }
        code = sv_grammar_gbnf(&g, text->data, text->len, &err);
        if (code == SV_OK)
            return g;
        if (code != SV_EUNSUPPORTED && code != SV_EINVAL)
            fail_msg("%s:\n%s", err.msg, text->data);
        assert_true(strstr(err.msg, "left recursion") || strstr(err.msg, "matches no text"));
    }
}

/* A text of words that the grammar takes, as far as it goes; now and then any letter. */
static size_t random_text(struct sv_grammar *g, struct sv_rng *r, char *out)
{
    static const char letters[] = "aaabbc()\xC3\xA4";
    size_t n = 0;

    while (n < NAIVE_LONGEST && sv_rng_below(r, 12)) {
        for (int tries = 0; tries < 6; tries++) {
            out[n] = letters[sv_rng_below(r, sizeof letters - 1)];
            if (words_takes(&words, g, out, n + 1) == n + 1)
                break;
        }
        n++;
    }
    return n;
}

/* ---------------------------------------------------------------- */

static void agrees_with_naive(void **state)
{
    struct sv_rng rng = {11};
    struct sv_buf text;
    int n_matches = 0, n_begins = 0, n_neither = 0;

    (void)state;
    sv_buf_init(&text);
    for (int i = 0; i < 150; i++) {
        struct sv_grammar *g = random_grammar(&text, &rng);
        for (int k = 0; k < 12; k++) {
            char s[NAIVE_LONGEST];
            size_t n = random_text(g, &rng, s);
            struct naive truth = naive_match(g, s, n);
            assert_true(truth.known);
            if (words_matches(&words, g, s, n) != truth.matches ||
                (words_takes(&words, g, s, n) == n) != truth.begins)
                fail_msg("matches %d, begins %d: '%.*s' of\n%s", truth.matches, truth.begins,
                         (int)n, s, text.data);
            n_matches += truth.matches;
            n_begins += truth.begins && !truth.matches;
            n_neither += !truth.begins;
        }
        sv_grammar_unref(g);
    }
    sv_buf_fini(&text);
    assert_true(n_matches > 100 && n_begins > 100 && n_neither > 100);
}

/* Walks by random tokens of the mask; at each place the mask is that of all tokens tried. */
static void masks_are_right(void **state)
{
    struct sv_rng rng = {12};
    struct sv_buf text;

    (void)state;
    sv_buf_init(&text);
    for (int i = 0; i < 60; i++) {
        struct sv_grammar *g = random_grammar(&text, &rng);
        struct sv_matcher *m;
        struct sv_err err;
        assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
        for (int k = 0; k < 12; k++) {
            int32_t id = (int32_t)sv_rng_below(&rng, (uint32_t)words.end), tries = 0;
            words_check_mask(&words, m);
            while (tries++ < words.end && !sv_matcher_allows(m, id))
                id = (id + 1) % words.end;
            if (!sv_matcher_advance(m, id)) {
                if (!sv_matcher_must_end(m))
                    fail_msg("%s: no way on in\n%s", sv_matcher_failure(m), text.data);
                break;
            }
        }
        assert_null(sv_matcher_failure(m));
        sv_matcher_close(m);
        sv_grammar_unref(g);
    }
    sv_buf_fini(&text);
}

/* Forwards and back at random, beside a list of what was taken: each place has the mask that a
 * fresh matcher finds there. */
static void goes_where_it_was(void **state)
{
    struct sv_rng rng = {13};
    struct sv_buf text;

    (void)state;
    sv_buf_init(&text);
    for (int i = 0; i < 25; i++) {
        struct sv_grammar *g = random_grammar(&text, &rng);
        struct sv_matcher *m, *fresh;
        int32_t taken[64];
        uint32_t n = 0;
        struct sv_err err;
        assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
        for (int k = 0; k < 60; k++) {
            uint32_t masks[2][64] = {{0}};
            int32_t id = (int32_t)sv_rng_below(&rng, (uint32_t)words.n);
            if (sv_rng_below(&rng, 4) == 0) {
                n = sv_rng_below(&rng, n + 1);
                sv_matcher_back(m, n);
            }
            for (int32_t tries = 0; tries < words.n && !sv_matcher_allows(m, id); tries++)
                id = (id + 1) % words.n;
            if (sv_matcher_advance(m, id))
                taken[n++] = id;
            assert_int_equal(sv_matcher_mark(m), n);
            assert_int_equal(sv_matcher_open(&fresh, g, words.vocab, &err), SV_OK);
            for (uint32_t j = 0; j < n; j++)
                assert_true(sv_matcher_advance(fresh, taken[j]));
            sv_matcher_mask(m, masks[0]);
            sv_matcher_mask(fresh, masks[1]);
            assert_memory_equal(masks[0], masks[1], sizeof masks[0]);
            assert_int_equal(sv_matcher_ended(m), sv_matcher_ended(fresh));
            sv_matcher_close(fresh);
        }
        sv_matcher_close(m);
        sv_grammar_unref(g);
    }
    sv_buf_fini(&text);
}

/* Nothing is allocated once a matcher is open: the guard aborts if something is. */
static void allocates_nothing(void **state)
{
    struct sv_rng rng = {14};
    struct sv_buf text;
    struct sv_grammar *g;
    struct sv_matcher *m;
    struct sv_err err;

    (void)state;
    sv_buf_init(&text);
    g = random_grammar(&text, &rng);
    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    sv_alloc_guard(true);
    for (int k = 0; k < 30; k++) {
        words_check_mask(&words, m);
        for (int32_t id = 0; id < words.end && !sv_matcher_advance(m, id);)
            id++;
    }
    sv_alloc_guard(false);
    sv_matcher_close(m);
    sv_grammar_unref(g);
    sv_buf_fini(&text);
}

SV_TEST_MAIN(WORDS_TEST(agrees_with_naive), WORDS_TEST(masks_are_right),
             WORDS_TEST(goes_where_it_was), WORDS_TEST(allocates_nothing))
