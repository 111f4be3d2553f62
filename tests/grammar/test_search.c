/*
 * test_search.c - expressions that are looked for in a growing text: found exactly where PCRE2
 * finds them in the text so far, however it is cut; what is refused, and what it may cost.
 *
 * Called by the runner. Must not: need a model.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "testing.h"
#include "grammar/grammar.h"

#include <pcre2.h>
#include <string.h>

static struct sv_search *open_one(const char *text)
{
    struct sv_search *s;
    struct sv_err err = {0};

    if (sv_search_open(&s, &text, 1, &err) != SV_OK)
        fail_msg("%s: %s", text, err.msg);
    return s;
}

static const char *const found_somewhere[] = {
    "ab",       "a+b",         "(a|b)c{2}", "^a",           "^ab|c\xC3\xA4", "b$",
    "[^a]1",    "\xC3\xA4.",   "\\d\\s",    "(c|1)*-",      "a.{3}1",        "\\n-",
    "a$|c$|^b", "(ab|ba){2}c", "\\w\\W\\w", "[\x01-\x7f]b", "(?:a|b)*1",     "^(a|b)+$",
};

/* The first end of a piece at which PCRE2 finds it in all up to there, or -1. */
static int32_t by_pcre(const char *regex, const char *text, const size_t *ends, int32_t n)
{
    int code;
    size_t at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)regex, strlen(regex),
                      PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C, &code, &at, NULL);
    assert_non_null(re);
    pcre2_match_data *m = pcre2_match_data_create_from_pattern(re, NULL);
    int32_t first = -1;

    for (int32_t i = 0; i < n && first < 0; i++)
        if (pcre2_match(re, (PCRE2_SPTR)text, ends[i], 0, 0, m, NULL) >= 0)
            first = i;
    pcre2_match_data_free(m);
    pcre2_code_free(re);
    return first;
}

static void as_pcre(void **state)
{
    static const char *const letters[] = {"a", "b", "c", "\xC3\xA4", "1", " ", "\n", "-"};
    const size_t n_regex = sizeof found_somewhere / sizeof *found_somewhere;
    struct sv_rng rng = {.state = 5};
    int32_t n_found = 0, n_runs = 0;
    (void)state;

    for (size_t i = 0; i < n_regex; i++) {
        struct sv_search *s = open_one(found_somewhere[i]);
        for (int run = 0; run < 200; run++, n_runs++) {
            char text[128];
            size_t len = 0, ends[24];
            int32_t n = 0, at = 0, first = -1;
            while (n < 24) {
                const uint32_t n_letters = sv_rng_below(&rng, 4);
                for (uint32_t k = 0; k < n_letters; k++) {
                    const char *c = letters[sv_rng_below(&rng, 8)];
                    memcpy(text + len, c, strlen(c));
                    len += strlen(c);
                }
                ends[n++] = len;
            }
            for (int32_t k = 0; k < n && first < 0; k++) {
                const size_t from = k ? ends[k - 1] : 0;
                if (sv_search_next(s, &at, text + from, ends[k] - from) == 0)
                    first = k;
            }
            const int32_t want = by_pcre(found_somewhere[i], text, ends, n);
            if (first != want)
                fail_msg("'%s' is found after piece %d, not %d, of '%.*s'", found_somewhere[i],
                         first, want, (int)len, text);
            n_found += first >= 0;
        }
        sv_search_unref(s);
    }
    assert_true(n_found > n_runs / 4 && n_found < n_runs);
    assert_int_equal(sv_alloc_live(), 0);
}

/* The first of several, whose places are apart; a text with U+0000; and one that nothing is found
 * in any more. */
static void several(void **state)
{
    static const char *const texts[] = {"^x", "b.c", "c"};
    struct sv_search *s;
    struct sv_err err;
    int32_t at[3] = {0};
    (void)state;

    assert_int_equal(sv_search_open(&s, texts, 3, &err), SV_OK);
    struct sv_search *other = sv_search_ref(s);
    sv_search_unref(s);
    assert_int_equal(sv_search_count(other), 3);
    assert_int_equal(sv_search_next(other, at, "ab", 2), -1);
    assert_int_equal(sv_search_next(other, at, "", 0), -1);
    assert_int_equal(sv_search_next(other, at, "\0", 1), -1);
    assert_int_equal(sv_search_next(other, at, "c", 1), 1);
    memset(at, 0, sizeof at);
    assert_int_equal(sv_search_next(other, at, "xc", 2), 0);
    sv_search_unref(other);
    sv_search_unref(NULL);
}

/* U+0000 is a character of its own, neither U+0001 nor outside of classes and ranges. */
static void nul(void **state)
{
    static const struct {
        const char *regex, *text;
        size_t n;
        bool found;
    } cases[] = {
        {"\\x00", "\0", 1, true},
        {"\\0", "a\0b", 3, true},
        {"^\\x00$", "\0", 1, true},
        {"\\x00", "\1", 1, false},
        {"\1", "\0", 1, false},
        {"\\x01", "\0", 1, false},
        {"^\\x01", "\0\1", 2, false},
        {"\\x01", "\0\1", 2, true},
        {"[^\\x01]", "\0", 1, true},
        {"[^\\x00]", "\0", 1, false},
        {"[^\\x00]", "\0\1", 2, true},
        {"[\\x00-\\x02]", "\0", 1, true},
        {"[\\x01-\\x02]", "\0", 1, false},
        {"[\\x00-\\x02]", "\3", 1, false},
        {".", "\0", 1, true},
        {"a.b", "a\0b", 3, true},
        {"a\1b", "a\0b", 3, false},
        {"\\W", "\0", 1, true},
        {"\\w", "\0", 1, false},
        {"\\S", "\0", 1, true},
        {"^a{2}$", "a\0", 2, false},
        {"(a|\\x00)b", "\0b", 2, true},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t end = cases[i].n;
        struct sv_search *s = open_one(cases[i].regex);
        int32_t at = 0;
        if ((sv_search_next(s, &at, cases[i].text, end) == 0) != cases[i].found)
            fail_msg("case %zu: '%s' is %sfound", i, cases[i].regex, cases[i].found ? "not " : "");
        assert_int_equal(by_pcre(cases[i].regex, cases[i].text, &end, 1), cases[i].found ? 0 : -1);
        sv_search_unref(s);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void refused(void **state)
{
    static const char *const bad[][2] = {
        {"a*", "the empty text matches, so every text would"},
        {"", "the empty text matches, so every text would"},
        {"$", "the empty text matches, so every text would"},
        {"(a", NULL},
        {"[a", NULL},
        {"a\\b", "word boundaries are not supported"},
        {"(?=a)b", "look-around is not supported"},
        {"(a)\\1", "references to groups are not regular"},
        {"(a|b)*a.{40}b", "the expression is too large or too intricate"},
        {"(a{200}){200}", "the expression is too large or too intricate"},
        {"\xFF", NULL},
    };
    struct sv_search *s;
    struct sv_err err;
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *two[] = {"fine", bad[i][0]};
        const int64_t start = sv_clock_us();
        err = (struct sv_err){0};
        assert_true(sv_search_open(&s, two, 2, &err) < 0);
        assert_null(s);
        assert_true(sv_clock_us() - start < 20000000); /* bounded, whatever is asked */
        assert_memory_equal(err.msg, "[1]: ", 5);
        assert_true(!bad[i][1] || strstr(err.msg, bad[i][1]));
        assert_true(sv_search_open(&s, two + 1, 1, &err) < 0);
        assert_true(*err.msg != '[');
    }
    const char *many[SV_SEARCH_MAX + 1];
    for (int i = 0; i <= SV_SEARCH_MAX; i++)
        many[i] = "a";
    assert_int_equal(sv_search_open(&s, many, SV_SEARCH_MAX, &err), SV_OK);
    sv_search_unref(s);
    assert_int_equal(sv_search_open(&s, many, SV_SEARCH_MAX + 1, &err), SV_EFULL);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Whichever allocation fails, it is said and nothing is left behind. */
static void without_memory(void **state)
{
    static const char *const texts[] = {"(ab|c+)[0-9]{2}", "^x\\w*\n"};
    struct sv_search *s = NULL;
    struct sv_err err;
    int status = SV_ENOMEM;
    int64_t nth = 0;
    (void)state;

    while (status != SV_OK) {
        err = (struct sv_err){0};
        sv_fault_arm(++nth);
        status = sv_search_open(&s, texts, 2, &err);
        sv_fault_arm(0);
        assert_true(status == SV_OK || (status == SV_ENOMEM && !s && *err.msg));
        assert_true(status == SV_OK || sv_alloc_live() == 0);
    }
    assert_true(nth > 10);
    sv_search_unref(s);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(as_pcre), cmocka_unit_test(several), cmocka_unit_test(nul),
             cmocka_unit_test(refused), cmocka_unit_test(without_memory))
