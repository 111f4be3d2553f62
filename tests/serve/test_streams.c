/*
 * test_streams.c - when the chunks of streams go out: together, a gap apart, with the first and the
 * last never waiting.
 */
#include "serve/hub.h"

#include "testing.h"

#include <string.h>
#include <unistd.h>

/* The text of all chunks. */
static void stream_text(const struct sv_buf *body, struct sv_buf *text)
{
    for (const char *line = body->data; (line = strstr(line, "data: {")); line++) {
        struct sv_err err = {0};
        json_t *v = sv_json_parse(line + 6, strcspn(line + 6, "\n"), &err);
        json_t *t = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "text");
        sv_buf_append(text, json_string_value(t), json_string_length(t));
        json_decref(v);
    }
}

/* How many ids all chunks have. */
static void contains_tokens(const struct sv_buf *body, size_t want)
{
    size_t n = 0;
    for (const char *line = body->data; (line = strstr(line, "data: {")); line++) {
        struct sv_err err = {0};
        json_t *v = sv_json_parse(line + 6, strcspn(line + 6, "\n"), &err);
        json_t *choice = json_array_get(json_object_get(v, "choices"), 0);
        n += json_array_size(json_object_get(choice, "token_ids"));
        json_decref(v);
    }
    assert_int_equal(n, want);
}

/* Between two chunks at least so much time: fewer chunks with the same text. */
static void gap_between_chunks(void **state)
{
    static const char ask[] =
        "{\"prompt\":\"one two three four five six\",\"max_tokens\":60,\"stream\":true,"
        "\"return_token_ids\":true}";
    struct hub each = {0}, slow = {0};
    struct answer a, b;
    struct sv_buf text[2];
    (void)state;

    each.fake.step_us = slow.fake.step_us = 2000;
    slow.o.stream_gap_us = 40000;
    hub_open(&each, false);
    hub_open(&slow, false);
    answer_init(&a);
    answer_init(&b);
    hub_ask(&each, "/v1/completions", ask, &a);
    hub_ask(&slow, "/v1/completions", ask, &b);
    for (int i = 0; i < 2; i++) {
        sv_buf_init(&text[i]);
        stream_text(i ? &b.body : &a.body, &text[i]);
    }
    assert_string_equal(text[0].data, text[1].data);
    assert_int_equal(hub_count(a.body.data, "\"token_ids\":["), 60);
    /* About 4, more where the machine makes steps late, and one try of ten has to do. */
    size_t n = hub_count(b.body.data, "\"token_ids\":[");
    for (int tries = 1; n > 40 && tries < 10; tries++) {
        hub_ask(&slow, "/v1/completions", ask, &b);
        n = hub_count(b.body.data, "\"token_ids\":[");
    }
    assert_in_range(n, 1, 40);
    for (int i = 0; i < 2; i++)
        sv_buf_fini(&text[i]);
    answer_fini(&a);
    answer_fini(&b);
    hub_close(&each);
    hub_close(&slow);
}

/* Of two steps the one nearer to the end of the gap: steps of nine tenths of it go out one by
 * one. */
static void nearest_step(void **state)
{
    static const char ask[] = "{\"prompt\":\"one two three\",\"max_tokens\":24,\"stream\":true,"
                              "\"return_token_ids\":true}";
    struct hub r = {0};
    (void)state;

    r.fake.step_us = 36000;
    r.o.stream_gap_us = 40000;
    hub_open(&r, false);
    /* A machine that is busy elsewhere makes steps late, and one try of ten has to do. */
    size_t n = 0;
    for (int tries = 0; tries < 10 && n < 19; tries++) {
        hub_ask(&r, "/v1/completions", ask, &r.a);
        contains_tokens(&r.a.body, 24);
        n = hub_count(r.a.body.data, "\"token_ids\":[");
    }
    assert_in_range(n, 19, 24); /* 13 if a whole gap had to pass */
    hub_close(&r);
}

/* The gap is far longer than the answers: what waits comes with the end of its own stream, whatever
 * others get. */
static void first_and_last_never_wait(void **state)
{
    enum { N = 5 };
    struct hub r = {.held = true, .fake.step_us = 1000};
    char body[160];
    int fd[N];
    (void)state;

    r.o.stream_gap_us = 600000000;
    hub_open(&r, false);
    for (int i = 0; i < N; i++) { /* their first and last chunks fall among each other */
        fd[i] = hub_connect(&r);
        snprintf(
            body, sizeof body,
            "{\"prompt\":\"one two\",\"max_tokens\":%d,\"stream\":true,\"return_token_ids\":true}",
            60 + 7 * i);
        hub_post(fd[i], "/v1/completions", "", body);
        hub_metric_becomes(&r, "salvo_running_sequences", i + 1);
        if (i == N / 2) { /* a step of these goes out to all: from then on nothing is due */
            hub_let(&r, 2);
            hub_metric_becomes(&r, "salvo_generated_tokens_total", 2 * (i + 1));
        }
    }
    hub_let(&r, 1);
    for (int i = 0; i < N; i++)
        hub_await(fd[i], "\"token_ids\":[");
    hub_let(&r, HUB_ALL);
    for (int i = 0; i < N; i++) {
        answer_read(fd[i], &r.a);
        assert_int_equal(r.a.status, 200);
        assert_false(r.a.closed);
        assert_in_range(hub_count(r.a.body.data, "\"token_ids\":["), 2, 3);
        contains_tokens(&r.a.body, 60 + 7 * i);
        close(fd[i]);
    }
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(gap_between_chunks), cmocka_unit_test(nearest_step),
             cmocka_unit_test(first_and_last_never_wait))
