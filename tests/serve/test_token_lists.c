/*
 * test_token_lists.c - words that never come, tokens that alone may, and the penalty over a window,
 * on the demo pair: what is asked for holds, and drafts change nothing of it.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>

#define TEXT "/v1/completions"
#define ASK "{\"prompt\":\"def add(a, b):\",\"max_tokens\":48,\"ignore_eos\":true,"

static json_t *answer(struct hub *r, const char *more, bool sampled)
{
    struct sv_buf body;
    sv_buf_init(&body);
    sv_buf_printf(&body, "%s\"temperature\":%s,%s}", ASK, sampled ? "1.5" : "0", more);
    json_t *v = hub_json(r, TEXT, body.data, 200);
    sv_buf_fini(&body);
    return v;
}

/* The same with drafts and without; its text. */
static const char *text_of(struct hub *r, const char *more)
{
    struct sv_buf plain;
    sv_buf_init(&plain);
    sv_buf_printf(&plain, "\"width\":1,%s", more);
    const char *drafted = hub_text(answer(r, more, false), "choices.0.text");
    assert_string_equal(drafted, hub_text(answer(r, plain.data, false), "choices.0.text"));
    sv_buf_fini(&plain);
    return drafted;
}

/* Whether an answer's tokens have those of the text among them, one after the other. */
static bool has(struct hub *r, json_t *v, const char *tokenize)
{
    json_t *ids = hub_at(v, "choices.0.token_ids");
    json_t *run = hub_at(hub_json(r, "/tokenize", tokenize, 200), "tokens");
    size_t n = json_array_size(run), same = 0;
    for (size_t i = 0; i + n <= json_array_size(ids) && same < n; i++)
        for (same = 0; same < n; same++)
            if (!json_equal(json_array_get(ids, i + same), json_array_get(run, same)))
                break;
    return same == n;
}

/* The tokens of a word never come, at the beginning or behind a space; of several words only all of
 * them in a row. */
static void words_never_come(void **state)
{
    static const char *const words[] = {"raise", "positive integer"};
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 2; i++) {
        char bad[80], whole[80], first[80];
        snprintf(bad, sizeof bad, "\"return_token_ids\":true,\"bad_words\":[\"%s\"]", words[i]);
        snprintf(whole, sizeof whole, "{\"content\":\" %s\"}", words[i]);
        snprintf(first, sizeof first, "{\"content\":\" %.8s\"}", words[i]);
        assert_true(has(&r, answer(&r, "\"return_token_ids\":true", false), whole));
        json_t *without = answer(&r, bad, false);
        assert_false(has(&r, without, whole));
        assert_true(i == 0 || has(&r, without, first));
        text_of(&r, bad);
    }
    hub_close(&r);
}

static void only_what_is_allowed(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    for (int sampled = 0; sampled < 2; sampled++) {
        json_t *v = answer(&r,
                           "\"seed\":3,\"return_token_ids\":true,"
                           "\"allowed_token_ids\":[99,70,71]",
                           sampled);
        json_t *ids = hub_at(v, "choices.0.token_ids");
        assert_int_equal(json_array_size(ids), 48);
        for (size_t i = 0; i < 48; i++) {
            json_int_t id = json_integer_value(json_array_get(ids, i));
            assert_true(id == 70 || id == 71 || id == 99);
        }
    }
    hub_json(&r, TEXT, ASK "\"allowed_token_ids\":[70],\"stop_token_ids\":[70],\"min_tokens\":2}",
             400);
    hub_close(&r);
}

/* A window as long as the context sees everything; a short one less; and what it forbids comes back
 * when it has passed. */
static void repeats_in_a_window(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    const char *all = text_of(&r, "\"repetition_penalty\":1.9");
    assert_string_equal(text_of(&r, "\"repeat_penalty\":1.9,\"repeat_last_n\":-1"), all);
    assert_string_equal(text_of(&r, "\"repeat_penalty\":1.9,\"repeat_last_n\":2000"), all);
    const char *last = text_of(&r, "\"repeat_penalty\":1.9,\"repeat_last_n\":3");
    assert_string_not_equal(last, all);
    assert_string_not_equal(last, text_of(&r, "\"seed\":1"));
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(words_never_come), cmocka_unit_test(only_what_is_allowed),
             cmocka_unit_test(repeats_in_a_window))
