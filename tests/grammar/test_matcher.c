/*
 * test_matcher.c - matchers over grammars put together by hand: what may come, when the answer may
 * end, marks, tokens that cut characters in two, composition, life times.
 *
 * Called by the runner. Must not: need a model.
 */
#include "testing.h"
#include "grammar/core/build.h"
#include "grammar/words.h"

#include <string.h>

static struct sv_matcher *matcher(struct sv_grammar *g)
{
    struct sv_matcher *m;
    struct sv_err err;

    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    return m;
}

static bool takes(struct sv_grammar *g, const char *text)
{
    return words_takes(&words, g, text, strlen(text)) == strlen(text);
}

static bool matches(struct sv_grammar *g, const char *text)
{
    return words_matches(&words, g, text, strlen(text));
}

/* The id of a word of words_common. */
static int32_t word(const char *text)
{
    for (size_t i = 0; i < words_n_common; i++) {
        if (strcmp(words_common[i], text) == 0)
            return 256 + (int32_t)i;
    }
    fail_msg("no word %s", text);
    return -1;
}

static struct sv_grammar *choice(const char *const *texts, size_t n)
{
    struct sv_grammar *g;
    struct sv_err err;

    assert_int_equal(sv_grammar_choice(&g, texts, n, &err), SV_OK);
    return g;
}

static struct sv_build *build(void)
{
    struct sv_build *b;
    struct sv_err err;

    assert_int_equal(sv_build_open(&b, &err), SV_OK);
    return b;
}

static struct sv_grammar *finish(struct sv_build *b, sv_expr x)
{
    struct sv_grammar *g;
    struct sv_err err;

    if (sv_build_finish(b, x, &g, &err) != SV_OK)
        fail_msg("%s", err.msg);
    sv_build_close(b);
    return g;
}

static sv_expr text(struct sv_build *b, const char *s)
{
    return sv_build_bytes(b, s, strlen(s));
}

/* ---------------------------------------------------------------- */

static void chooses(void **state)
{
    const char *const texts[] = {"abc", "ab", "cab", ""};
    struct sv_grammar *g = choice(texts, 4);
    struct sv_matcher *m = matcher(g);

    (void)state;
    words_check_mask(&words, m);
    assert_true(sv_matcher_may_end(m));
    assert_false(sv_matcher_must_end(m));
    assert_true(sv_matcher_advance(m, word("ab")));
    words_check_mask(&words, m);
    assert_true(sv_matcher_may_end(m));
    assert_false(sv_matcher_must_end(m));
    assert_false(sv_matcher_advance(m, word("ab")));
    assert_true(sv_matcher_advance(m, 'c'));
    assert_true(sv_matcher_must_end(m));
    words_check_mask(&words, m);
    assert_false(sv_matcher_ended(m));
    assert_true(sv_matcher_advance(m, words.end));
    assert_true(sv_matcher_ended(m));
    assert_false(sv_matcher_may_end(m));
    assert_false(sv_matcher_must_end(m));
    words_check_mask(&words, m);
    assert_false(sv_matcher_advance(m, words.end));
    assert_false(sv_matcher_allows(m, -1));
    assert_false(sv_matcher_allows(m, words.n));
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

/* Brackets in brackets, and numbers; several rules that call one another. */
static struct sv_grammar *brackets(void)
{
    struct sv_build *b = build();
    sv_expr list = sv_build_rule(b, "list", 4, -1), item = sv_build_rule(b, "item", 4, -1);
    sv_expr digits = sv_build_repeat(b, sv_build_byte(b, '0', '9'), 1, -1);
    sv_expr more = sv_build_repeat(b, sv_build_then(b, sv_build_byte(b, ',', ','), item), 0, -1);
    const sv_expr parts[] = {text(b, "["),
                             sv_build_or(b, sv_build_empty(b), sv_build_then(b, item, more)),
                             text(b, "]")};

    sv_build_define(b, item, sv_build_or(b, digits, list));
    sv_build_define(b, list, sv_build_seq(b, parts, 3));
    return finish(b, list);
}

static void nests(void **state)
{
    struct sv_grammar *g = brackets();
    struct sv_matcher *m = matcher(g);

    (void)state;
    assert_true(matches(g, "[]"));
    assert_true(matches(g, "[[],[1,[2,3]],42]"));
    assert_false(matches(g, "[[],[1,[2,3]],42"));
    assert_false(takes(g, "[]]"));
    assert_false(takes(g, "[1,]"));
    assert_false(takes(g, "1"));
    for (const char *p = "[[[[1,[12"; *p; p++) {
        assert_true(sv_matcher_advance(m, (uint8_t)*p));
        words_check_mask(&words, m);
    }
    assert_true(sv_matcher_advance(m, word("2]")));
    assert_true(sv_matcher_advance(m, word("]]")));
    words_check_mask(&words, m);
    assert_true(sv_matcher_advance(m, ']'));
    assert_false(sv_matcher_may_end(m));
    assert_false(sv_matcher_advance(m, word("]]")));
    assert_true(sv_matcher_advance(m, ']'));
    assert_true(sv_matcher_must_end(m));
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

/* Deep texts close in time: the mask never leads where nothing can follow. */
static void ends_before_the_stack_does(void **state)
{
    struct sv_grammar *g = brackets();
    struct sv_matcher *m = matcher(g);
    int depth = 0;

    (void)state;
    while (sv_matcher_advance(m, '['))
        depth++;
    assert_in_range(depth, 1000, 1100);
    words_check_mask(&words, m);
    for (; depth > 0; depth--) {
        assert_true(sv_matcher_advance(m, ']'));
        if (depth > 1000 || depth < 3)
            words_check_mask(&words, m);
    }
    assert_true(sv_matcher_must_end(m));
    assert_null(sv_matcher_failure(m));
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

static void goes_back(void **state)
{
    struct sv_grammar *g = brackets();
    struct sv_matcher *m = matcher(g);
    uint32_t before[64], after[64];
    uint64_t mark;

    (void)state;
    assert_true(sv_matcher_advance(m, '['));
    mark = sv_matcher_mark(m);
    sv_matcher_mask(m, before);
    assert_true(sv_matcher_advance(m, ']'));
    assert_true(sv_matcher_advance(m, words.end));
    sv_matcher_back(m, mark);
    assert_false(sv_matcher_ended(m));
    for (int i = 0; i < 5 * SV_MATCHER_BACK; i++) {
        assert_true(sv_matcher_advance(m, '1'));
        mark += i % 3 == 0;
        if (sv_matcher_mark(m) - mark == SV_MATCHER_BACK)
            sv_matcher_back(m, mark);
    }
    sv_matcher_back(m, mark);
    sv_matcher_mask(m, after);
    assert_memory_not_equal(before, after, (size_t)words.n / 8);
    assert_true(sv_matcher_advance(m, ']'));
    assert_true(sv_matcher_must_end(m));
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

/* Characters come in whole, over any cut of their bytes into tokens; what is no UTF-8 does not. */
static void takes_characters_in_pieces(void **state)
{
    static const struct sv_range ranges[] = {
        {0xE4, 0xE4}, {'a', 'c'}, {0x20AC, 0x20AC}, {0x1F600, 0x1F64F}};
    struct sv_build *b = build();
    struct sv_grammar *g =
        finish(b, sv_build_repeat(b, sv_build_chars(b, ranges, 4, false), 0, -1));
    struct sv_matcher *m = matcher(g);
    const char *const cuts[] = {"\xC3", "\xA4", "\xE2\x82", "\xAC", "\xF0\x9F", "\x98\x80"};

    (void)state;
    for (int i = 0; i < 6; i++) {
        assert_true(sv_matcher_advance(m, word(cuts[i])));
        words_check_mask(&words, m);
        assert_int_equal(sv_matcher_may_end(m), i % 2);
    }
    assert_true(matches(g, "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"
                           "abc"));
    assert_false(takes(g, "\xC3\xA5"));
    assert_false(takes(g, "\xE2\x82\xAD"));
    assert_false(takes(g, "\xF0\x9F\x99\x90"));
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

/* Every code point and no surrogate, one byte more or less is never right. */
static void knows_utf8(void **state)
{
    struct sv_build *b = build();
    struct sv_grammar *g = finish(b, sv_build_chars(b, NULL, 0, true));

    (void)state;
    for (uint32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
        char s[5];
        int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        uint32_t rest = c;
        for (int i = n - 1; i > 0; i--, rest >>= 6)
            s[i] = (char)(0x80 | (rest & 0x3F));
        s[0] = (char)(rest | (n == 1 ? 0 : n == 2 ? 0xC0 : n == 3 ? 0xE0 : 0xF0));
        s[n] = 'x';
        assert_int_equal(words_matches(&words, g, s, (size_t)n), c < 0xD800 || c > 0xDFFF);
        assert_false(words_matches(&words, g, s, (size_t)n + 1));
        assert_false(words_matches(&words, g, s, (size_t)n - 1));
    }
    assert_false(takes(g, "\xC0\x80"));
    assert_false(takes(g, "\xE0\x80\x80"));
    assert_false(takes(g, "\xED\xA0\x80"));
    assert_false(takes(g, "\xF4\x90\x80\x80"));
    assert_false(takes(g, "\x80"));
    sv_grammar_unref(g);
}

static void goes_on_after_a_marker(void **state)
{
    const char *const texts[] = {"{\"", "abc"};
    struct sv_grammar *inner = choice(texts, 2), *g, *without;
    struct sv_matcher *m;
    struct sv_err err;

    (void)state;
    assert_int_equal(sv_grammar_after(&g, "</think>", 8, inner, &err), SV_OK);
    sv_grammar_unref(inner);
    assert_true(matches(g, "some text </th</think>{\""));
    assert_true(matches(g, "</think>abc"));
    assert_false(matches(g, "abc"));
    assert_false(takes(g, "</think></think>"));
    m = matcher(g);
    words_check_mask(&words, m);
    assert_true(sv_matcher_advance(m, word("</th")));
    words_check_mask(&words, m);
    assert_true(sv_matcher_advance(m, word("ink>")));
    words_check_mask(&words, m);
    assert_true(sv_matcher_allows(m, word("{\"")));
    assert_false(sv_matcher_allows(m, word("cab")));
    sv_matcher_close(m);

    assert_int_equal(sv_grammar_without(&without, "abab", 4, &err), SV_OK);
    assert_true(matches(without, ""));
    assert_true(matches(without, "aba"));
    assert_true(matches(without, "abaabbab"));
    assert_false(takes(without, "xaabab"));
    m = matcher(without);
    assert_true(sv_matcher_advance(m, 'a'));
    assert_true(sv_matcher_advance(m, 'b'));
    words_check_mask(&words, m);
    sv_matcher_close(m);
    sv_grammar_unref(g);
    sv_grammar_unref(without);
    assert_int_equal(sv_grammar_until(&g, "", 0, &err), SV_EINVAL);
}

static void composes(void **state)
{
    const char *const ab[] = {"a", "b"};
    struct sv_grammar *one = choice(ab, 2), *open, *nested = brackets(), *parts[3], *joined, *any;
    struct sv_grammar *thrice;
    struct sv_err err;

    (void)state;
    assert_int_equal(sv_grammar_literal(&open, "<x>", 3, &err), SV_OK);
    parts[0] = open;
    parts[1] = nested;
    parts[2] = one;
    assert_int_equal(sv_grammar_join(&joined, parts, 3, &err), SV_OK);
    assert_int_equal(sv_grammar_either(&any, parts, 3, &err), SV_OK);
    assert_int_equal(sv_grammar_repeat(&thrice, joined, 2, 3, &err), SV_OK);
    for (int i = 0; i < 3; i++)
        sv_grammar_unref(parts[i]); /* copies, not references */
    assert_true(matches(joined, "<x>[[1]]b"));
    assert_false(takes(joined, "<x>[[1]]c"));
    assert_true(matches(any, "<x>"));
    assert_true(matches(any, "[1]"));
    assert_true(matches(any, "b"));
    assert_false(takes(any, "ba"));
    assert_false(matches(thrice, "<x>[]a"));
    assert_true(matches(thrice, "<x>[]a<x>[2]b"));
    assert_true(matches(thrice, "<x>[]a<x>[2]b<x>[]a"));
    assert_false(takes(thrice, "<x>[]a<x>[2]b<x>[]a<"));
    sv_grammar_unref(joined);
    sv_grammar_unref(any);
    sv_grammar_unref(thrice);
}

/* A rule that begins with itself is a repetition; by way of another it is refused. */
static void left_recursion(void **state)
{
    struct sv_build *b = build();
    sv_expr sum = sv_build_rule(b, "sum", 3, 7);
    const sv_expr more[] = {sum, text(b, "+"), sum};
    struct sv_grammar *g;
    struct sv_err err;
    sv_expr x, y;

    (void)state;
    sv_build_define(b, sum, sv_build_or(b, sv_build_seq(b, more, 3), text(b, "1")));
    g = finish(b, sum);
    assert_true(matches(g, "1+1+1+1"));
    assert_false(takes(g, "1++"));
    sv_grammar_unref(g);

    b = build();
    x = sv_build_rule(b, "x", 1, 3);
    y = sv_build_rule(b, "y", 1, 9);
    sv_build_define(b, x, sv_build_or(b, sv_build_then(b, y, text(b, "a")), text(b, "b")));
    sv_build_define(b, y,
                    sv_build_then(b, sv_build_repeat(b, text(b, "c"), 0, -1),
                                  sv_build_then(b, x, text(b, "d"))));
    assert_int_equal(sv_build_finish(b, x, &g, &err), SV_EUNSUPPORTED);
    assert_int_equal(err.pos, 3);
    assert_non_null(strstr(err.msg, "left recursion"));
    sv_build_close(b);
}

static void refuses_what_matches_nothing(void **state)
{
    struct sv_build *b = build();
    sv_expr x = sv_build_rule(b, "x", 1, 5), y;
    struct sv_grammar *g;
    struct sv_err err;

    (void)state;
    sv_build_define(b, x, sv_build_then(b, text(b, "a"), x));
    assert_int_equal(sv_build_finish(b, x, &g, &err), SV_EINVAL);
    assert_int_equal(err.pos, 5);
    sv_build_close(b);

    b = build();
    y = sv_build_rule(b, "y", 1, 8);
    assert_int_equal(sv_build_finish(b, y, &g, &err), SV_EINVAL);
    assert_non_null(strstr(err.msg, "'y' is not defined"));
    assert_int_equal(err.pos, 8);
    sv_build_close(b);
}

SV_TEST_MAIN(WORDS_TEST(chooses), WORDS_TEST(nests), WORDS_TEST(ends_before_the_stack_does),
             WORDS_TEST(goes_back), WORDS_TEST(takes_characters_in_pieces), WORDS_TEST(knows_utf8),
             WORDS_TEST(goes_on_after_a_marker), WORDS_TEST(composes), WORDS_TEST(left_recursion),
             WORDS_TEST(refuses_what_matches_nothing))
