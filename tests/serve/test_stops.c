/*
 * test_stops.c - stop_regex on the demo pair: an answer ends with the token after which the text so
 * far matches, as the C library's expressions say, with drafts and without, whole and streamed.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/core/token_lists.h"
#include "serve/hub.h"

#include "testing.h"

#include <regex.h>
#include <stdio.h>
#include <string.h>

#define P "def add(a, b):"

/* The text of the first n of a list. */
static const char *text_of(struct hub *r, json_t *ids, size_t n)
{
    struct sv_buf body;

    sv_buf_init(&body);
    sv_buf_printf(&body, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++)
        sv_buf_printf(&body, i ? ",%lld" : "%lld",
                      (long long)json_integer_value(json_array_get(ids, i)));
    sv_buf_printf(&body, "]}");
    const char *text = hub_text(hub_json(r, "/detokenize", body.data, 200), "text");
    sv_buf_fini(&body);
    return text;
}

/* Tokens up to and with the one after which it is in the text, but `least` at least; 0: never. */
static size_t expected(struct hub *r, json_t *ids, const char *posix, size_t least)
{
    regex_t re;

    assert_int_equal(regcomp(&re, posix, REG_EXTENDED | REG_NOSUB), 0);
    size_t n = least;
    while (n <= json_array_size(ids) && regexec(&re, text_of(r, ids, n), 0, NULL, 0))
        n++;
    regfree(&re);
    return n <= json_array_size(ids) ? n : 0;
}

static json_t *generate(struct hub *r, const char *more, const char *outside)
{
    char body[400];
    snprintf(body, sizeof body,
             "{\"text\":\"" P "\",\"sampling_params\":{\"max_new_tokens\":60,\"temperature\":0,"
             "\"ignore_eos\":true%s}%s}",
             more, outside);
    return *outside ? hub_events(r, "/generate", body) : hub_json(r, "/generate", body, 200);
}

static void ends_where_it_matches(void **state)
{
    /* as JSON, as a POSIX expression, tokens at least */
    static const char *const cases[][3] = {
        {"\"n\\\\w*: int\"", "n[0-9A-Za-z_]*: int", ""},
        {"\"\\\\n +if [a-z]+ [<=]\"", "\n +if [a-z]+ [<=]", ""},
        {"\"^ int, n: .*->\"", "^ int, n: .*->", ""},
        {"\"[a-z]\\\\)\"", "[a-z]\\)", ""},
        {"\" i\"", " i", ""},
        {"\" i\"", " i", ",\"min_new_tokens\":9"},
        {"\"return|raise\"", "return|raise", ""},
        {"\"q{9}\"", "q{9}", ""},
        {"\"\\\\)$\"", "\\)$", ""},
    };
    struct hub r = {.real = true};
    int n_ended = 0, n_drafted = 0;
    (void)state;

    hub_open(&r, false);
    json_t *ids = hub_at(generate(&r, "", ""), "output_ids");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char more[200];
        const size_t want = expected(&r, ids, cases[i][1], *cases[i][2] ? 9 : 1);
        snprintf(more, sizeof more, ",\"stop_regex\":%s%s", cases[i][0], cases[i][2]);
        json_t *v = generate(&r, more, "");
        if ((size_t)hub_number(v, "meta_info.completion_tokens") != (want ? want : 60))
            fail_msg("%s: %lld tokens, not %zu: '%s'", cases[i][0],
                     (long long)hub_number(v, "meta_info.completion_tokens"), want,
                     hub_text(v, "text"));
        assert_string_equal(hub_text(v, "text"), text_of(&r, ids, want ? want : 60));
        json_t *why = hub_at(v, "meta_info.finish_reason");
        assert_string_equal(hub_text(why, "type"), want ? "stop" : "length");
        if (want) {
            json_t *own = json_loads(cases[i][0], JSON_DECODE_ANY, NULL);
            hub_same(hub_at(why, "matched"), own, "matched");
            json_decref(own);
        }
        n_ended += want > 0;
        n_drafted += hub_number(v, "meta_info.spec_accept_token_num") > 0;
        snprintf(more, sizeof more, ",\"width\":1,\"stop_regex\":[%s]%s", cases[i][0], cases[i][2]);
        json_t *plain = generate(&r, more, "");
        hub_same(hub_at(plain, "output_ids"), hub_at(v, "output_ids"), "with drafts");
        hub_same(hub_at(plain, "meta_info.finish_reason"), why, "why");
        json_t *events = generate(&r, more, ",\"stream\":true");
        json_t *last = json_array_get(events, json_array_size(events) - 1);
        hub_same(hub_at(last, "text"), hub_at(v, "text"), "streamed");
        for (size_t k = 0; k < json_array_size(events); k++) /* nothing is taken back */
            assert_memory_equal(hub_text(json_array_get(events, k), "text"), hub_text(v, "text"),
                                strlen(hub_text(json_array_get(events, k), "text")));
    }
    assert_true(n_ended == 8 && n_drafted > 0);
    hub_close(&r);
}

/* Beside stop strings, which are cut off and count first; of several the first that is found; in
 * OpenAI's shapes; a prompt's own. */
static void beside_others(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *v = generate(&r, ",\"stop\":[\"-> int\"],\"stop_regex\":[\"zzz\",\"in+t:\"]", "");
    assert_string_equal(hub_text(v, "meta_info.finish_reason.matched"), "-> int");
    assert_null(strstr(hub_text(v, "text"), "->"));
    v = generate(&r, ",\"stop\":[\"zzz\"],\"stop_regex\":[\"q\",\"-> in+t\",\"-> int:\"]", "");
    assert_string_equal(hub_text(v, "meta_info.finish_reason.matched"), "-> in+t");
    assert_non_null(strstr(hub_text(v, "text"), "-> int"));

    json_t *text = hub_json(&r, "/v1/completions",
                            "{\"prompt\":\"" P "\",\"max_tokens\":60,\"temperature\":0,"
                            "\"ignore_eos\":true,\"stop\":\"zzz\",\"stop_regex\":\"-> in+t\"}",
                            200);
    hub_same(hub_at(text, "choices.0.text"), hub_at(v, "text"), "in OpenAI's shape");
    assert_string_equal(hub_text(text, "choices.0.finish_reason"), "stop");
    assert_string_equal(hub_text(text, "choices.0.stop_reason"), "-> in+t");
    assert_string_equal(hub_text(text, "choices.0.matched_stop"), "-> in+t");

    v = hub_json(&r, "/generate",
                 "{\"text\":[\"" P "\",\"" P "\"],\"sampling_params\":["
                 "{\"max_new_tokens\":30,\"temperature\":0,\"stop_regex\":\"-> in+t\"},"
                 "{\"max_new_tokens\":30,\"temperature\":0,\"stop_regex\":[]}]}",
                 200);
    assert_string_equal(hub_text(v, "0.meta_info.finish_reason.matched"), "-> in+t");
    assert_int_equal(hub_number(v, "1.meta_info.completion_tokens"), 30);

    /* Of many prompts the same for all, or few different ones. */
    struct sv_buf many, texts;
    for (int same = 0; same < 2; same++) {
        sv_buf_init(&many);
        sv_buf_init(&texts);
        for (int i = 0; i < 20; i++) {
            sv_buf_printf(&texts, i ? ",\"" P "\"" : "\"" P "\"");
            sv_buf_printf(&many,
                          "%s{\"max_new_tokens\":3,\"temperature\":0,\"stop_regex\":\"n%d\"}",
                          i ? "," : "", same ? 1 : i);
        }
        struct sv_buf body;
        sv_buf_init(&body);
        sv_buf_printf(&body, "{\"text\":[%s],\"sampling_params\":[%s]}", texts.data, many.data);
        v = hub_json(&r, "/generate", body.data, same ? 200 : 400);
        if (!same)
            assert_string_equal(hub_text(v, "error.message"),
                                "'stop_regex' has more than 16 different lists");
        sv_buf_fini(&body);
        sv_buf_fini(&many);
        sv_buf_fini(&texts);
    }
    hub_close(&r);
}

static void refused(void **state)
{
    static const char *const bad[][2] = {
        {"\"(a\"", "'stop_regex': "},
        {"[\"a\",\"b\\\\b\"]", "'stop_regex[1]': byte 1: word boundaries"},
        {"\"a*\"", "'stop_regex': the empty text matches"},
        {"[5]", "'stop_regex' must be a string or an array of strings, not an integer"},
        {"\"a\\u0000\"", "'stop_regex' holds a NUL character"},
        {"\"(a|b)*a.{60}c\"", "'stop_regex': the expression is too large"},
        {"[\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\",\"1\","
         "\"1\",\"1\",\"1\"]",
         "'stop_regex' has more than 16 expressions"},
    };
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[300];
        snprintf(body, sizeof body, "{\"text\":\"a\",\"sampling_params\":{\"stop_regex\":%s}}",
                 bad[i][0]);
        json_t *v = hub_json(&r, "/generate", body, 400);
        assert_string_equal(hub_text(v, "error.param"), "stop_regex");
        assert_memory_equal(hub_text(v, "error.message"), bad[i][1], strlen(bad[i][1]));
        snprintf(body, sizeof body, "{\"text\":[\"a\"],\"sampling_params\":[{\"stop_regex\":%s}]}",
                 bad[i][0]);
        v = hub_json(&r, "/generate", body, 400);
        assert_string_equal(hub_text(v, "error.param"), "stop_regex");
    }
    hub_close(&r);
}

/* However its name is written, no expression is compiled on the loop's thread. */
static void never_on_the_loop(void **state)
{
    static const char *const texts[] = {"[0-9]+ and"};
    struct sv_call c = {.p = {.n_stop_regex = 1}};
    struct sv_api_err e = {0};
    (void)state;

    c.p.stop_regex[0] = texts[0];
    assert_int_equal(sv_stop_regex_open(&c, true, &e), -1);
    assert_true(e.too_slow && !c.p.r.stop_search);
    assert_int_equal(sv_stop_regex_open(&c, false, &e), 0);
    assert_non_null(c.p.r.stop_search);
    sv_stop_regex_close(&c);
    struct hub r = {0};
    hub_open(&r, false);
    json_t *v = hub_json(&r, "/generate",
                         "{\"text\":\"a\",\"sampling_params\":{\"\\u0073top_regex\":\"(a\"}}", 400);
    assert_string_equal(hub_text(v, "error.param"), "stop_regex");
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(ends_where_it_matches), cmocka_unit_test(beside_others),
             cmocka_unit_test(refused), cmocka_unit_test(never_on_the_loop))
