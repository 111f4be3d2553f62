/*
 * test_regex.c - regular expressions: the same texts and the same beginnings of texts as PCRE2, and
 * what is refused.
 *
 * Called by the runner. Must not: need a model.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "testing.h"
#include "grammar/regex/regex.h"
#include "grammar/words.h"

#include <pcre2.h>
#include <string.h>

static struct sv_grammar *regex(const char *text)
{
    struct sv_grammar *g;
    struct sv_err err;

    if (sv_grammar_regex(&g, text, strlen(text), &err) != SV_OK)
        fail_msg("%s: %s", text, err.msg);
    return g;
}

/* As JSON schema's pattern: found anywhere. */
static struct sv_grammar *pattern(const char *text)
{
    const struct sv_regex_style style = {.search = true};
    struct sv_build *b;
    struct sv_grammar *g;
    struct sv_err err;

    assert_int_equal(sv_build_open(&b, &err), SV_OK);
    if (sv_build_finish(b, sv_regex_expr(b, text, strlen(text), &style), &g, &err) != SV_OK)
        fail_msg("%s: %s", text, err.msg);
    sv_build_close(b);
    return g;
}

/* ---------------------------------------------------------------- against PCRE2 */

static const char *const letters[] = {"a", "b", "c", "\xC3\xA4", "1", " ", "\n", "-"};

static void random_regex(struct sv_buf *out, struct sv_rng *r, int depth)
{
    static const char *const atoms[] = {"a",
                                        "b",
                                        "c",
                                        "\xC3\xA4",
                                        ".",
                                        "\\d",
                                        "\\w",
                                        "[ab]",
                                        "[^ab]",
                                        "[a-c1]",
                                        "[\xC3\xA4-\xC3\xBC]",
                                        "\\x61",
                                        "\\-",
                                        "[^\\d]",
                                        "ab",
                                        "[\\w-]"};
    static const char *const times[] = {"",    "",      "",     "*",  "+",    "?",
                                        "{2}", "{1,3}", "{2,}", "*?", "{0,2}"};
    uint32_t n = sv_rng_below(r, 4);

    for (uint32_t i = 0; i < n; i++) {
        if (depth > 0 && sv_rng_below(r, 3) == 0) {
            sv_buf_append(out, "(?:", sv_rng_below(r, 2) ? 3 : 1);
            random_regex(out, r, depth - 1);
            sv_buf_lit(out, ")");
        } else {
            sv_buf_printf(out, "%s", atoms[sv_rng_below(r, 16)]);
        }
        sv_buf_printf(out, "%s", times[sv_rng_below(r, 11)]);
    }
    if (depth > 0 && sv_rng_below(r, 3) == 0) {
        sv_buf_lit(out, "|");
        random_regex(out, r, depth - 1);
    }
}

/* Whether PCRE2 matches all of the text, or could if more came. (It has no partial match that must
 * end at the end, so that is written into the expression.) */
static void oracle(const pcre2_code *code, pcre2_match_data *md, const char *text, size_t n,
                   bool *full, bool *begins)
{
    PCRE2_SPTR s = (PCRE2_SPTR)text;

    *full = pcre2_match(code, s, n, 0, PCRE2_ANCHORED, md, NULL) >= 0;
    *begins = *full || pcre2_match(code, s, n, 0, PCRE2_ANCHORED | PCRE2_PARTIAL_HARD, md, NULL) ==
                           PCRE2_ERROR_PARTIAL;
}

static pcre2_code *oracle_of(const char *text)
{
    struct sv_buf whole;
    PCRE2_SIZE where;
    pcre2_code *code;
    int error;

    sv_buf_init(&whole);
    sv_buf_printf(&whole, "(?:%s)\\z", text);
    code = pcre2_compile((PCRE2_SPTR)whole.data, whole.len,
                         PCRE2_UTF | PCRE2_NO_START_OPTIMIZE | PCRE2_NO_AUTO_POSSESS, &error,
                         &where, NULL);
    sv_buf_fini(&whole);
    assert_non_null(code);
    return code;
}

static void compare(const char *text, struct sv_rng *rng)
{
    struct sv_grammar *g = regex(text);
    pcre2_code *code = oracle_of(text);
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(code, NULL);

    for (int k = 0; k < 25; k++) {
        char subject[64] = "";
        uint32_t n_letters = 1 + sv_rng_below(rng, 7); /* PCRE2 finds no beginning in nothing */
        bool full, begins;
        for (uint32_t i = 0; i < n_letters; i++)
            strcat(subject, letters[sv_rng_below(rng, k % 2 ? 8 : 4)]);
        oracle(code, md, subject, strlen(subject), &full, &begins);
        if (words_matches(&words, g, subject, strlen(subject)) != full ||
            (words_takes(&words, g, subject, strlen(subject)) == strlen(subject)) != begins)
            fail_msg("regex %s, text '%s': PCRE2 says full %d, begins %d", text, subject, full,
                     begins);
    }
    pcre2_match_data_free(md);
    pcre2_code_free(code);
    sv_grammar_unref(g);
}

static void agrees_with_pcre2(void **state)
{
    struct sv_rng rng = {20};
    struct sv_buf text;

    (void)state;
    sv_buf_init(&text);
    for (int i = 0; i < 300; i++) {
        sv_buf_clear(&text);
        sv_buf_lit(&text, "");
        random_regex(&text, &rng, 3);
        compare(text.data ? text.data : "", &rng);
    }
    sv_buf_fini(&text);
}

/* ---------------------------------------------------------------- by hand */

static void check(struct sv_grammar *g, const char *const *yes, const char *const *no)
{
    words_check_texts(&words, g, yes, no);
}
#define LIST WORDS_LIST

static void reads(void **state)
{
    (void)state;
    check(regex("^\\d{4}-\\d{2}-\\d{2}$"), LIST("2024-01-31"),
          LIST("2024-1-31", "", "x2024-01-31"));
    check(regex("(?P<user>\\w+)@(?<host>[\\w.]+)\\.[a-z]{2,}"), LIST("a_b@c.d.org"),
          LIST("a@b", "@c.de"));
    check(regex("[]a]"), LIST("]", "a"), LIST("b", "[]"));
    check(regex("[^]a]"), LIST("b", "\xF0\x9F\x98\x80"), LIST("]", "a", "bb"));
    check(regex("[a\\-z]"), LIST("a", "-", "z"), LIST("b"));
    check(regex("[-a]|[b-]"), LIST("-", "a", "b"), LIST("ab"));
    check(regex("\\u00e4\\x{1F600}\\u{e4}\\ud83d\\ude00"),
          LIST("\xC3\xA4\xF0\x9F\x98\x80\xC3\xA4\xF0\x9F\x98\x80"), LIST("\xC3\xA4"));
    check(regex("\\t\\n\\r\\f\\v\\\\\\.\\/\\[\\{"), LIST("\t\n\r\f\v\\./[{"), LIST("t"));
    check(regex("a{,2}b{x}{"), LIST("b{x}{", "aab{x}{"), LIST("aaab{x}{"));
    check(regex("(^a|^b)c$|(d$)"), LIST("ac", "bc", "d"), LIST("c", "a"));
    check(regex("a(|b)(c|)"), LIST("a", "ab", "ac", "abc"), LIST("acb"));
    check(regex("(a{2}){3}"), LIST("aaaaaa"), LIST("aaaaa", "aaaaaaa"));
    check(regex("\\S\\s\\D\\W"), LIST("a b "), LIST("a bb", "  b "));
    check(regex(""), LIST(""), LIST("a"));
}

static void searches(void **state)
{
    (void)state;
    check(pattern("ab"), LIST("ab", "xaby", "\nab"), LIST("", "a", "b a"));
    check(pattern("^ab"), LIST("ab", "abx"), LIST("xab"));
    check(pattern("ab$"), LIST("ab", "xab"), LIST("abx"));
    check(pattern("^ab$"), LIST("ab"), LIST("abx", "xab"));
    check(pattern("^a|b$"), LIST("ax", "xb", "a"), LIST("xa", "bx"));
    check(pattern("^(a|b)+$"), LIST("abba"), LIST("", "abc"));
    check(pattern(""), LIST("", "x"), LIST("\x80"));
}

static void refuses(void **state)
{
    static const struct refusal refusals[] = {
        {"a(b", "( without )", SV_EINVAL, 1},
        {"ab)c", ") without (", SV_EINVAL, 2},
        {"a[b", "[ without ]", SV_EINVAL, 1},
        {"a**", "nothing to repeat", SV_EINVAL, 2},
        {"+a", "nothing to repeat", SV_EINVAL, 0},
        {"a{3,2}", "fewer", SV_EINVAL, 1},
        {"[b-a]", "ends before", SV_EINVAL, 1},
        {"a\\", "backslash", SV_EINVAL, 1},
        {"\\x4", "hexadecimal", SV_EINVAL, 0},
        {"\\ud800", "no character", SV_EINVAL, 0},
        {"a\xC3", "not UTF-8", SV_EINVAL, 1},
        {"(a)\\1", "references", SV_EUNSUPPORTED, 3},
        {"a(?=b)", "look-around", SV_EUNSUPPORTED, 1},
        {"(?<!a)b", "look-around", SV_EUNSUPPORTED, 0},
        {"(?i)a", "kind of group", SV_EUNSUPPORTED, 0},
        {"a\\b", "word boundaries", SV_EUNSUPPORTED, 1},
        {"\\p{L}", "properties", SV_EUNSUPPORTED, 0},
        {"\\q", "not supported", SV_EUNSUPPORTED, 0},
        {"a++", "possessive", SV_EUNSUPPORTED, 2},
        {"a^b", "^ is only", SV_EUNSUPPORTED, 1},
        {"a$b", "$ is only", SV_EUNSUPPORTED, 2},
        {"(a$)b", "$ is only", SV_EUNSUPPORTED, 4},
        {"(^a)*", "anchor", SV_EUNSUPPORTED, 4},
        {"a{2000000}", "repetitions", SV_EFULL, 1},
        {"((a{999999}b){999999}c){999999}", "too large", SV_EFULL, -2},
    };

    (void)state;
    words_check_refused(sv_grammar_regex, refusals, sizeof refusals / sizeof *refusals);
}

/* At every allocation that fails the error says so, and nothing is lost. */
static void survives_without_memory(void **state)
{
    static const char text[] = "(a|[b-d]{2,4}|\\w+){3}x*";
    int code = SV_ENOMEM;

    (void)state;
    for (int nth = 1; code != SV_OK; nth++) {
        struct sv_grammar *g = NULL;
        struct sv_matcher *m = NULL;
        struct sv_err err;
        sv_fault_arm(nth);
        code = sv_grammar_regex(&g, text, strlen(text), &err);
        if (code == SV_OK)
            code = sv_matcher_open(&m, g, words.vocab, &err);
        sv_fault_arm(0);
        assert_true(code == SV_OK || code == SV_ENOMEM);
        sv_matcher_close(m);
        sv_grammar_unref(g);
    }
}

SV_TEST_MAIN(WORDS_TEST(agrees_with_pcre2), WORDS_TEST(reads), WORDS_TEST(searches),
             cmocka_unit_test(refuses), WORDS_TEST(survives_without_memory))
