/*
 * test_written.c - answers of megabytes: put together beside the loop, so that no turn of it does
 * much, with nothing lost or moved; clients that leave, errors and a server that ends meanwhile.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"
#define N_LONG 2500
/* Of one turn: what it may keep of log probabilities, and what each of two calls may have there,
 * the one that is asked for and a stream beside it, of which all comes that was made while the
 * machine did something else. */
#define TURN_BYTES (3 * 65536)

/* Ids that differ from place to place, all of them text by themselves. */
static void ids(struct sv_buf *b, int n)
{
    sv_buf_lit(b, "[");
    for (int i = 0; i < n; i++)
        sv_buf_printf(b, i ? ",%d" : "%d", 64 + i % 20);
    sv_buf_lit(b, "]");
}

static void body_of(struct sv_buf *b, const char *before, int n, const char *after)
{
    sv_buf_init(b);
    sv_buf_printf(b, "%s", before);
    ids(b, n);
    sv_buf_printf(b, "%s", after);
}

static void words(struct sv_buf *b, const char *before, int n, const char *after)
{
    sv_buf_init(b);
    sv_buf_printf(b, "%s", before);
    for (int i = 0; i < n; i++)
        sv_buf_printf(b, "%d ", i % 10);
    sv_buf_printf(b, "%s", after);
}

/* However long an answer is, the loop never puts more than a little of it together in one turn. */
static void no_turn_does_much(void **state)
{
    static const struct {
        const char *path, *before, *after;
        size_t least; /* the answer is at least so long */
    } asks[] = {
        {TEXT, "{\"max_tokens\":2,\"echo\":true,\"logprobs\":20,\"prompt\":", "}", 500000},
        {TEXT, "{\"max_tokens\":40,\"echo\":true,\"logprobs\":20,\"stream\":true,\"prompt\":", "}",
         500000},
        {TEXT, "{\"max_tokens\":2,\"n\":3,\"prompt_logprobs\":20,\"prompt\":", "}", 1500000},
        {TEXT, "{\"max_tokens\":2000,\"logprobs\":20,\"prompt\":", "}", 500000},
        {"/generate",
         "{\"sampling_params\":{\"max_new_tokens\":2},\"return_logprob\":true,"
         "\"logprob_start_len\":0,"
         "\"top_logprobs_num\":20,\"return_text_in_logprobs\":true,\"input_ids\":",
         "}", 500000},
        {"/generate",
         "{\"sampling_params\":{\"max_new_tokens\":4},\"return_logprob\":true,"
         "\"logprob_start_len\":0,"
         "\"top_logprobs_num\":20,\"stream\":true,\"input_ids\":",
         "}", 500000},
        {"/completion", "{\"n_predict\":2000,\"n_probs\":20,\"prompt\":", "}", 500000},
    };
    struct hub r = {.fake.step_us = 200, .o.engine.context = 1 << 20};
    struct sv_buf body;
    (void)state;

    hub_open(&r, false);
    int stream = hub_connect(&r);
    char first;
    hub_post(stream, TEXT, "",
             "{\"prompt\":\"one two three\",\"max_tokens\":1000000,\"stream\":true}");
    assert_int_equal(recv(stream, &first, 1, 0), 1);
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        double before = hub_metric(&r, "salvo_written_beside_loop_total");
        body_of(&body, asks[i].before, N_LONG, asks[i].after);
        int asking = hub_connect(&r);
        int64_t took = 0, silent = hub_silence(stream, asking, &body, asks[i].path, &r.a, &took);
        close(asking);
        sv_buf_fini(&body);
        print_message("%s: %zu bytes, a stream silent for at most %.1f ms of %.1f\n", asks[i].path,
                      r.a.body.len, (double)silent / 1e3, (double)took / 1e3);
        assert_int_equal(r.a.status, 200);
        assert_false(r.a.closed);
        if (r.a.body.len < asks[i].least)
            fail_msg("%s: %zu bytes", asks[i].before, r.a.body.len);
        assert_true(hub_metric(&r, "salvo_written_beside_loop_total") > before);
        double most = hub_metric(&r, "salvo_loop_turn_bytes_max");
        if (!(most > 0 && most <= TURN_BYTES))
            fail_msg("%s: %.0f bytes in one turn of %zu", asks[i].before, most, r.a.body.len);
    }
    words(
        &body,
        "{\"max_tokens\":2,\"prompt_logprobs\":20,\"messages\":[{\"role\":\"user\",\"content\":\"",
        N_LONG, "\"}]}");
    hub_ask(&r, CHAT, body.data, &r.a);
    sv_buf_fini(&body);
    assert_int_equal(r.a.status, 200);
    assert_true(r.a.body.len > 500000);
    assert_true(hub_metric(&r, "salvo_loop_turn_bytes_max") <= TURN_BYTES);
    close(stream);
    hub_close(&r);
}

/* Steps that cost nothing come by the hundred while the loop looks away: of those too it keeps no
 * more in a turn than of few, and the rest follows in its place. */
static void steps_that_came_together(void **state)
{
    enum { MADE = 2000 };
    static const char *const asks[] = {"{\"n_predict\":2000,\"n_probs\":20,\"prompt\":\"one\"}",
                                       "{\"n_predict\":2000,\"n_probs\":20,\"stream\":true,"
                                       "\"prompt\":\"one\"}"};
    struct hub r = {.o.engine.context = 1 << 20};
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 4; i++) {
        hub_ask(&r, "/completion", asks[i % 2], &r.a);
        assert_int_equal(r.a.status, 200);
        assert_int_equal(hub_count(r.a.body.data, "\"top_logprobs\":["), MADE);
    }
    double most = hub_metric(&r, "salvo_loop_turn_bytes_max");
    print_message("%.0f bytes in a turn at most\n", most);
    assert_true(most > 0 && most <= 2 * 65536);
    hub_close(&r);
}

static void append_all(json_t *to, json_t *from)
{
    for (size_t i = 0; i < json_array_size(from); i++)
        json_array_append(to, json_array_get(from, i));
}

/* Every place of a long answer is as in a short one, whole and streamed, and the tokens that came
 * while the first chunk was written follow it. */
static void same_as_short(void **state)
{
    static const char *const lists[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    enum { SHORT = 20, MADE = 300 };
    struct hub r = {.fake.step_us = 500, .o.engine.context = 1 << 20};
    struct sv_buf body;
    char after[160];
    (void)state;

    hub_open(&r, false);
    snprintf(after, sizeof after,
             ",\"max_tokens\":%d,\"echo\":true,\"logprobs\":20,\"return_token_ids\":true}", MADE);
    body_of(&body, "{\"prompt\":", SHORT, after);
    json_t *brief = hub_at(hub_json(&r, TEXT, body.data, 200), "choices.0.logprobs");
    sv_buf_fini(&body);
    body_of(&body, "{\"prompt\":", N_LONG, after);
    json_t *whole = hub_json(&r, TEXT, body.data, 200), *lp = hub_at(whole, "choices.0.logprobs");
    sv_buf_fini(&body);
    body_of(&body, "{\"stream\":true,\"prompt\":", N_LONG, after);
    json_t *events = hub_events(&r, TEXT, body.data);
    sv_buf_fini(&body);
    assert_true(json_array_size(events) > 1);
    for (int k = 0; k < 4; k++) {
        json_t *list = json_object_get(lp, lists[k]), *joined = json_array();
        assert_int_equal(json_array_size(list), N_LONG + MADE);
        /* The ids repeat, in what is made too; nothing is known of the prompt's first. */
        for (size_t i = 0; i < N_LONG + MADE && k < 3; i++)
            hub_same(json_array_get(list, i),
                     json_array_get(json_object_get(brief, lists[k]),
                                    i % SHORT || !i ? i % SHORT : SHORT),
                     lists[k]);
        for (size_t i = 0; i < N_LONG + MADE && k == 3; i++)
            assert_int_equal(json_integer_value(json_array_get(list, i)), i); /* a character each */
        for (size_t i = 0; i < json_array_size(events); i++)
            append_all(
                joined,
                json_object_get(hub_at(json_array_get(events, i), "choices.0.logprobs"), lists[k]));
        hub_same(joined, list, lists[k]);
        json_decref(joined);
    }
    struct sv_buf text;
    sv_buf_init(&text);
    for (size_t i = 0; i < json_array_size(events); i++)
        sv_buf_printf(&text, "%s", hub_text(json_array_get(events, i), "choices.0.text"));
    assert_string_equal(text.data, hub_text(whole, "choices.0.text"));
    sv_buf_fini(&text);
    hub_close(&r);
}

/* SGLang's: the prompt's and the answer's lists of a stream's last event are those of the whole. */
static void repeated_streams(void **state)
{
    static const char *const lists[] = {"input_token_logprobs", "output_token_logprobs",
                                        "input_top_logprobs", "output_top_logprobs"};
    static const char rest[] =
        ",\"return_logprob\":true,\"logprob_start_len\":0,\"top_logprobs_num\":20,"
        "\"sampling_params\":{\"max_new_tokens\":5,\"n\":2}}";
    struct hub r = {.o.engine.context = 1 << 20};
    struct sv_buf body;
    (void)state;

    hub_open(&r, false);
    body_of(&body, "{\"input_ids\":", 1500, rest);
    json_t *whole = hub_json(&r, "/generate", body.data, 200);
    sv_buf_fini(&body);
    body_of(&body, "{\"stream\":true,\"input_ids\":", 1500, rest);
    json_t *events = hub_events(&r, "/generate", body.data), *last[2] = {NULL, NULL};
    sv_buf_fini(&body);
    for (size_t i = 0; i < json_array_size(events); i++)
        last[hub_number(json_array_get(events, i), "index") != 0] = json_array_get(events, i);
    for (int k = 0; k < 2; k++) {
        json_t *meta = hub_at(json_array_get(whole, (size_t)k), "meta_info");
        assert_int_equal(json_array_size(json_object_get(meta, lists[0])), 1500);
        assert_int_equal(json_array_size(json_object_get(meta, lists[1])), 5);
        for (int i = 0; i < 4; i++)
            hub_same(json_object_get(hub_at(last[k], "meta_info"), lists[i]),
                     json_object_get(meta, lists[i]), lists[i]);
        hub_same(hub_at(last[k], "output_ids"),
                 hub_at(json_array_get(whole, (size_t)k), "output_ids"), "ids");
    }
    hub_close(&r);
}

/* A client that reads too slowly for events that repeat everything gets fewer of them, and the
 * last. */
static void slow_reader(void **state)
{
    struct hub r = {
        .fake.step_us = 1000, .o.engine.context = 1 << 20, .o.max_backlog_bytes = 1 << 20};
    struct sv_buf body;
    (void)state;

    hub_open(&r, false);
    body_of(
        &body,
        "{\"stream\":true,\"return_logprob\":true,\"logprob_start_len\":0,\"top_logprobs_num\":20,"
        "\"sampling_params\":{\"max_new_tokens\":400},\"input_ids\":",
        1500, "}");
    int fd = hub_connect(&r);
    hub_post(fd, "/generate", "", body.data);
    sv_buf_fini(&body);
    while (hub_metric(&r, "salvo_generated_tokens_total") < 400) /* nothing is read meanwhile */
        hub_nap_ms(20);
    answer_read(fd, &r.a);
    close(fd);
    assert_int_equal(r.a.status, 200);
    assert_false(r.a.closed); /* it was not dropped */
    assert_non_null(strstr(r.a.body.data, "\"completion_tokens\":400,"));
    assert_non_null(strstr(r.a.body.data, "data: [DONE]"));
    size_t n = hub_count(r.a.body.data, "data: {");
    if (n > 60) /* of 400 steps, about what the sockets hold */
        fail_msg("%zu events of %zu bytes", n, r.a.body.len / n);
    hub_close(&r);
}

#define SCORED "{\"echo\":true,\"logprobs\":20,\"max_tokens\":"

/* More at once than may wait to be written, half of whom leave; then the end in the middle of
 * it. */
static void many_leaving_and_ending(void **state)
{
    enum { N = 150 };
    struct hub r = {.o.engine.context = 1 << 20};
    struct sv_buf body;
    int fd[N];
    size_t n_bytes = 0;
    (void)state;

    hub_open(&r, false);
    body_of(&body, SCORED "2,\"prompt\":", 600, "}");
    for (int i = 0; i < N; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], TEXT, "", body.data);
    }
    for (int i = 0; i < N; i++) {
        if (i % 2) {
            answer_read(fd[i], &r.a);
            assert_int_equal(r.a.status, 200);
            json_t *v = sv_json_parse(r.a.body.data, r.a.body.len, NULL);
            assert_int_equal(json_array_size(hub_at(v, "choices.0.logprobs.tokens")), 602);
            json_decref(v);
            n_bytes = n_bytes ? n_bytes : r.a.body.len;
            assert_in_range(r.a.body.len, n_bytes - 200, n_bytes + 200); /* times differ */
        }
        close(fd[i]);
    }
    hub_close_amid(&r, TEXT, TEXT, body.data);
    sv_buf_fini(&body);
}

/* The device fails while the first chunk is written: that comes whole, then the error, then the
 * end. */
static void failing_meanwhile(void **state)
{
    struct hub r = {.fake = {.fail_at_step = 4}, .o.engine.context = 1 << 20};
    struct sv_buf body;
    (void)state;

    hub_open(&r, false);
    body_of(&body, SCORED "100,\"stream\":true,\"prompt\":", N_LONG, "}");
    json_t *events = hub_events(&r, TEXT, body.data);
    sv_buf_fini(&body);
    size_t n = json_array_size(events);
    assert_in_range(n, 2, 4);
    assert_true(json_array_size(hub_at(json_array_get(events, 0), "choices.0.logprobs.tokens")) >
                N_LONG);
    assert_string_equal(hub_text(json_array_get(events, n - 1), "error.message"),
                        "the fake device failed");
    hub_close(&r);
}

/* Told to stop while an answer is written, the server sends it before it ends. */
static void drains_what_is_written(void **state)
{
    struct hub r = {.o.engine.context = 1 << 20};
    struct sv_buf body;
    (void)state;

    hub_open(&r, false);
    body_of(&body, SCORED "2,\"prompt\":", 4 * N_LONG, "}");
    int fd = hub_connect(&r);
    hub_post(fd, TEXT, "", body.data);
    sv_buf_fini(&body);
    while (hub_metric(&r, "salvo_generated_tokens_total") < 2)
        ;
    sv_serve_stop(r.s);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    assert_false(r.a.closed);
    assert_true(r.a.body.len > 3000000);
    close(fd);
    hub_wait(&r);
    assert_int_equal(r.rc, 0);
    hub_close(&r);
}

/* timeout: no_turn_does_much 120 */
SV_TEST_MAIN(cmocka_unit_test(no_turn_does_much), cmocka_unit_test(steps_that_came_together),
             cmocka_unit_test(same_as_short), cmocka_unit_test(repeated_streams),
             cmocka_unit_test(slow_reader), cmocka_unit_test(many_leaving_and_ending),
             cmocka_unit_test(failing_meanwhile), cmocka_unit_test(drains_what_is_written))
