/*
 * fuzz_grammar.c - any bytes as a grammar and, after a NUL, any bytes as a text: refused with a
 * status and a position within the text, or matched as the naive matcher does, with masks that
 * agree with every token tried alone.
 *
 * Called by driver.c and libFuzzer. The first byte says how the grammar is written: r, a regular
 * expression, s, one that is searched for, else GBNF. Must not: need a model.
 */
#include "grammar/naive.h"
#include "grammar/regex/regex.h"
#include "grammar/words.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int read_grammar(struct sv_grammar **g, char how, const char *text, size_t n,
                        struct sv_err *err)
{
    const struct sv_regex_style style = {.search = true};
    struct sv_build *b;
    int code;

    if (how == 'r')
        return sv_grammar_regex(g, text, n, err);
    if (how != 's')
        return sv_grammar_gbnf(g, text, n, err);
    code = sv_build_open(&b, err);
    SV_REQUIRE(code == SV_OK);
    code = sv_build_finish(b, sv_regex_expr(b, text, n, &style), g, err);
    sv_build_close(b);
    return code;
}

/* What is searched for in a growing text is found where the grammar matches all of it. */
static void search(const char *regex, size_t n_regex, struct sv_grammar *g, const char *text,
                   size_t n)
{
    struct naive truth = naive_match(g, text, n);
    char *copy = sv_calloc(n_regex + 1, 1);
    const char *one = copy;
    struct sv_search *s;
    struct sv_err err = {0};
    int32_t at = 0;

    SV_REQUIRE(copy);
    memcpy(copy, regex, n_regex);
    if (sv_search_open(&s, &one, 1, &err) == SV_OK) {
        if (truth.known && sv_utf8_valid(text, n) == n)
            SV_REQUIRE((sv_search_next(s, &at, text, n) == 0) == truth.matches);
        sv_search_unref(s);
    }
    sv_free(copy);
}

static void match(struct words *w, struct sv_grammar *g, const char *text, size_t n)
{
    struct naive truth = naive_match(g, text, n);
    struct sv_matcher *m;
    struct sv_err err;
    size_t taken = 0;

    if (sv_matcher_open(&m, g, w->vocab, &err) != SV_OK)
        return;
    words_check_mask(w, m);
    while (taken < n && sv_matcher_advance(m, (uint8_t)text[taken]))
        taken++;
    if (!sv_matcher_failure(m) && truth.known) {
        SV_REQUIRE((taken == n) == truth.begins);
        SV_REQUIRE((taken == n && sv_matcher_may_end(m)) == truth.matches);
        words_check_mask(w, m);
    }
    sv_matcher_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct words words;
    const char *text = (const char *)data, *nul = n > 1 ? memchr(text + 1, 0, n - 1) : NULL;
    size_t n_text = nul ? (size_t)(nul - text) - 1 : n - (n > 0);
    size_t n_tried = nul ? n - n_text - 2 : 0;
    struct sv_grammar *g;
    struct sv_err err;

    if (n == 0)
        return 0;
    if (read_grammar(&g, text[0], text + 1, n_text, &err) != SV_OK) {
        SV_REQUIRE(err.code < 0 && err.msg[0] && err.pos >= -1 && err.pos <= (int64_t)n_text);
        return 0;
    }
    words_open(&words, words_common, words_n_common);
    if (text[0] == 's')
        search(text + 1, n_text, g, nul ? nul + 1 : "",
               n_tried < NAIVE_LONGEST ? n_tried : NAIVE_LONGEST);
    match(&words, g, nul ? nul + 1 : "", n_tried < NAIVE_LONGEST ? n_tried : NAIVE_LONGEST);
    sv_grammar_unref(g);
    words_close(&words);
    return 0;
}
