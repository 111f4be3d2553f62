/*
 * test_gbnf.c - GBNF and EBNF: grammars as people write them, and errors with their position.
 *
 * Called by the runner. Must not: need a model.
 */
#include "testing.h"
#include "grammar/words.h"

#include <string.h>

static struct sv_grammar *gbnf(const char *text)
{
    struct sv_grammar *g;
    struct sv_err err;

    if (sv_grammar_gbnf(&g, text, strlen(text), &err) != SV_OK)
        fail_msg("%s", err.msg);
    return g;
}

static void check(const char *text, const char *const *yes, const char *const *no)
{
    words_check_texts(&words, gbnf(text), yes, no);
}
#define LIST WORDS_LIST

static const char json[] =
    "# JSON, with the newlines where people put them\n"
    "root   ::= object\n"
    "value  ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::=\n"
    "  \"{\" ws (\n"
    "            string \":\" ws value\n"
    "    (\",\" ws string \":\" ws value)*\n"
    "  )? \"}\" ws\n"
    "array  ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" (\n"
    "    [^\"\\\\\\x7F\\x00-\\x1F] |\n"
    "    \"\\\\\" ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4}) # escapes\n"
    "  )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9] "
    "[1-9]{0,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

static void reads_json(void **state)
{
    (void)state;
    check(json,
          LIST("{}", "{\"a\": [1, -2.5e+3, {\"b\":\n  null}]}", "{\"\\u00e4\xC3\xA4\\n\":true}"),
          LIST("[]", "{\"a\"}", "{\"a\": 01}", "{\"\n\":1}", "{\"a\":1,}", "{\"\\x\":1}"));
}

static void masks_of_json(void **state)
{
    static const char text[] = "{\"foo\": [12, \"\xC3\xA4\\u00e4 the\", {\"a\":{}}]}\n  ";
    struct sv_grammar *g = gbnf(json);
    struct sv_matcher *m;
    struct sv_err err;

    (void)state;
    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        words_check_mask(&words, m);
        assert_true(sv_matcher_advance(m, (uint8_t)text[i]));
    }
    words_check_mask(&words, m);
    assert_true(sv_matcher_may_end(m));
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

static void reads(void **state)
{
    (void)state;
    check("root ::= \"a\"", LIST("a"), LIST("", "b"));
    check("root ::= x-1 x_2\nx-1 ::= \"a\" |\n \"b\"\nx_2::=\"c\"", LIST("ac", "bc"), LIST("a"));
    check("root ::= \"a\"\n | \"b\"\n\n# end", LIST("a", "b"), LIST("ab"));
    check("root ::= [a-c]{2} . [^\\n]? \"\\x41\\u00e4\\U0001F600\"",
          LIST("ab\nxA\xC3\xA4\xF0\x9F\x98\x80", "ccxA\xC3\xA4\xF0\x9F\x98\x80"), LIST("ab"));
    check("root ::= (\"a\" | )+ [\\]\\-]", LIST("aa]", "-"), LIST("a"));
    check("root ::= root \"+\" [0-9] | [0-9]", LIST("1", "1+2+3"), LIST("1+", "+1"));
    check("root ::= \"(\" root \")\" root | \"\"", LIST("", "()", "(())()"), LIST("(", ")("));
    check("root ::= root root | \"a\"", LIST("a", "aaaaaaa"), LIST("", "b"));
    check("root ::= x x x\nx ::= \"a\"*", LIST("", "aaaa"), LIST("b"));
    check("root ::= \"\xC3\xA4\"{2,}", LIST("\xC3\xA4\xC3\xA4\xC3\xA4"), LIST("\xC3\xA4"));
    check("root ::= (\"a\" (\"b\" \"c\"){,2}){0,1}", LIST("", "abc", "abcbc"), LIST("abcbcbc"));
}

/* Counted repetitions share masks as far as tokens allow: every mask of a text is the right one. */
static void counts(void **state)
{
    static const char *const grammars[] = {
        "root ::= \"\\\"\" [^\"]{0,40} \"\\\"\"",
        "root ::= \"\\\"\" [a-z\xC3\xA4 \\n]{30,35} \"\\\"\"",
        "root ::= (\"\\\"\" ([^\"]{12}){0,3} \"\\\"\"){0,40}",
        "root ::= \"\\\"\" c{0,40} \"\\\"\" \"!\"?\nc ::= [^\"\\\\] | \"\\\\\" [nt\"]",
        "root ::= \"\\\"\" (c? c){10,20} \"\\\"\"\nc ::= [a-z \xC3\xA4]",
        "root ::= (x | \"\\\"\" [a-z]{0,20}){0,40}\nx ::= \"\\\"\" [a-z\xC3\xA4 ]{0,36}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof grammars / sizeof *grammars; i++) {
        struct sv_grammar *g = gbnf(grammars[i]);
        struct sv_matcher *m;
        struct sv_err err;
        assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
        assert_true(sv_matcher_advance(m, '"'));
        for (int k = 0; k < 45; k++) {
            words_check_mask(&words, m);
            if (!sv_matcher_advance(m, k % 3 ? 'a' : 't'))
                break;
            assert_true(k < 40);
        }
        sv_matcher_close(m);
        sv_grammar_unref(g);
    }
}

static void refuses(void **state)
{
    static const struct refusal refusals[] = {
        {"", "no rule named root", SV_EINVAL, -1},
        {"a ::= \"b\"", "no rule named root", SV_EINVAL, -1},
        {"root ::= x", "'x' is not defined", SV_EINVAL, 9},
        {"root ::= \"a\"\nroot ::= \"b\"", "twice", SV_EINVAL, 13},
        {"root ::= \"a", "does not end", SV_EINVAL, 9},
        {"root ::= (\"a\"", "( without )", SV_EINVAL, 9},
        {"root ::= \"a\")", "::= expected", SV_EINVAL, 12},
        {"root ::= [a", "[ without ]", SV_EINVAL, 9},
        {"root = \"a\"", "::= expected", SV_EINVAL, 0},
        {"root ::= *", "expected", SV_EINVAL, 9},
        {"root ::= \"a\"{x}", "{m}", SV_EINVAL, 12},
        {"root ::= \"\\q\"", "not supported", SV_EUNSUPPORTED, 10},
        {"root ::= \"a\" (?= \"b\")", "look-ahead", SV_EUNSUPPORTED, 13},
        {"root ::= <think>", "tokens", SV_EUNSUPPORTED, 9},
        {"root ::= a \"x\" | \"y\"\na ::= root \"z\"", "left recursion", SV_EUNSUPPORTED, 0},
        {"root ::= \"a\" root", "matches no text", SV_EINVAL, 0},
        {"root ::= []", "matches no text", SV_EINVAL, 0},
        {"root ::= \"\xFF\"", "not UTF-8", SV_EINVAL, 10},
    };

    (void)state;
    words_check_refused(sv_grammar_gbnf, refusals, sizeof refusals / sizeof *refusals);
}

/* ---------------------------------------------------------------- hostile grammars */

/* Walks a text of n times the letter a, with a mask at each place; returns how far it came before
 * the matcher gave up. Time is what the runner watches. */
static int walk(const char *text, int n)
{
    struct sv_grammar *g = gbnf(text);
    struct sv_matcher *m;
    struct sv_err err;
    int i = 0;

    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    for (; i < n && sv_matcher_advance(m, 'a'); i++) {
        uint32_t mask[64];
        sv_matcher_mask(m, mask);
        if (!sv_matcher_failure(m))
            assert_true(sv_matcher_may_end(m) || mask['a' / 32] >> ('a' % 32) & 1);
    }
    assert_true(i == n || sv_matcher_failure(m));
    sv_matcher_close(m);
    sv_grammar_unref(g);
    return i;
}

static void ambiguous_grammars_go_on(void **state)
{
    (void)state;
    assert_int_equal(walk("root ::= root root | root root root | \"a\"", 300), 300);
    assert_int_equal(walk("root ::= (\"a\"? \"a\"*){200}", 300), 300);
    assert_int_equal(walk("root ::= ((\"a\"*)*)*", 300), 300);
    assert_int_equal(walk("root ::= x x x x x x x x\nx ::= y y y y y y y y\ny ::= z z z z\n"
                          "z ::= \"a\"?",
                          100),
                     100);
    /* Beyond the limit on stacks: those that are taller are left out, the others go on. */
    assert_int_equal(
        walk("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"a\" root | \"a\"", 1500), 1500);
    assert_int_equal(walk("root ::= \"a\" root root root | \"\"", 60), 60);
    assert_int_equal(walk("root ::= (\"a\" | \"aa\" | \"aaa\"){0,10000}", 200), 200);
    assert_int_equal(walk("root ::= ((((\"a\"{0,9}){0,9}){0,9}){0,9}){0,9}", 200), 200);
}

/* States of 50,000 items each: there is room for ten. */
static void gives_up_loudly(void **state)
{
    (void)state;
    assert_in_range(walk("root ::= (\"a\"?){50000}", 40), 1, 39);
}

/* A token that is too expensive: when it is only tried, a rollback undoes the failure, however
 * often; when it is taken, the matcher fails, at the same position whatever was tried before. */
static void tries_what_is_too_dear(void **state)
{
    static const char text[] = "root ::= [a-z]* | \"#!\" (\"a\"?){70000}";
    struct sv_grammar *g = gbnf(text);
    struct sv_matcher *m, *other;
    struct sv_err err;
    uint32_t mask[64], again[64];

    (void)state;
    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    assert_int_equal(sv_matcher_open(&other, g, words.vocab, &err), SV_OK);
    sv_matcher_mask(m, mask);
    for (int i = 0; i < 20; i++) {
        uint64_t mark = sv_matcher_try(m);
        assert_true(sv_matcher_advance(m, '#'));
        sv_matcher_mask(m, again);
        assert_non_null(sv_matcher_failure(m));
        assert_false(sv_matcher_advance(m, '!'));
        sv_matcher_back(m, mark);
        assert_null(sv_matcher_failure(m));
        sv_matcher_mask(m, again);
        assert_memory_equal(mask, again, (size_t)(words.n + 31) / 32 * sizeof *mask);
    }
    assert_true(sv_matcher_advance(other, 'a'));
    assert_true(sv_matcher_advance(m, '#'));
    sv_matcher_settle(m);
    sv_matcher_mask(m, again);
    assert_non_null(sv_matcher_failure(m));
    assert_false(sv_matcher_advance(m, '!'));
    sv_matcher_back(m, sv_matcher_try(m)); /* of what was for good nothing is undone */
    assert_non_null(sv_matcher_failure(m));
    words_check_mask(&words, other);
    sv_matcher_close(m);
    sv_matcher_close(other);
    sv_grammar_unref(g);
}

/* With nothing kept to go back to there is room for one after the other; not so for all of them
 * beyond a mark. */
static void tries_no_more_than_there_is_room_for(void **state)
{
    struct sv_grammar *g = gbnf("root ::= (\"a\"?){50000}");
    struct sv_matcher *m;
    struct sv_err err;

    (void)state;
    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    for (int i = 0; i < 40; i++) {
        uint64_t mark = sv_matcher_try(m);
        int n = 0;
        while (n < 40 && sv_matcher_advance(m, 'a'))
            n++;
        assert_true(n < 40 && sv_matcher_failure(m));
        sv_matcher_back(m, mark);
        assert_true(sv_matcher_advance(m, 'a'));
        sv_matcher_settle(m);
    }
    sv_matcher_close(m);
    sv_grammar_unref(g);
}

/* Thousands of states that the caches have no room for: what is dropped comes back. */
static void forgets_and_finds_again(void **state)
{
    struct sv_grammar *g = gbnf("root ::= [a-z]{0,60000} \"!\" (\"(\" root \")\")?");
    struct sv_matcher *m, *other;
    struct sv_err err;

    (void)state;
    assert_int_equal(sv_matcher_open(&m, g, words.vocab, &err), SV_OK);
    assert_int_equal(sv_matcher_open(&other, g, words.vocab, &err), SV_OK);
    for (const char *p = "abc!(x!(yz!("; *p; p++)
        assert_true(sv_matcher_advance(other, (uint8_t)*p));
    for (int i = 0; i < 59990; i++) {
        assert_true(sv_matcher_advance(m, 'a' + i % 26));
        if (i % 20000 == 0)
            words_check_mask(&words, m);
    }
    words_check_mask(&words, m);
    sv_matcher_back(m, sv_matcher_mark(m) - SV_MATCHER_BACK / 2);
    for (int i = 0; i < SV_MATCHER_BACK / 2 + 10; i++)
        assert_true(sv_matcher_advance(m, 'a'));
    assert_false(sv_matcher_advance(m, 'a'));
    words_check_mask(&words, m);
    assert_true(sv_matcher_advance(m, '!'));
    words_check_mask(&words, other);
    for (const char *p = "q!)))"; *p; p++)
        assert_true(sv_matcher_advance(other, (uint8_t)*p));
    assert_true(sv_matcher_must_end(other));
    sv_matcher_close(m);
    sv_matcher_close(other);
    sv_grammar_unref(g);
}

SV_TEST_MAIN(WORDS_TEST(reads_json), WORDS_TEST(masks_of_json), WORDS_TEST(reads),
             WORDS_TEST(counts), cmocka_unit_test(refuses), WORDS_TEST(ambiguous_grammars_go_on),
             WORDS_TEST(tries_what_is_too_dear), WORDS_TEST(tries_no_more_than_there_is_room_for),
             WORDS_TEST(gives_up_loudly), WORDS_TEST(forgets_and_finds_again))
