/*
 * test_long.c - bodies of megabytes: read beside the loop, so that streams go on meanwhile; clients
 * that leave, and a server that ends, while one is being read.
 */
#include "serve/hub.h"

#include "testing.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#ifdef __SANITIZE_THREAD__
#define MIB ((size_t)1 << 18) /* which takes as long there */
#else
#define MIB ((size_t)1 << 20)
#endif

/* Text that no cache of words helps with. */
static void long_text(struct sv_buf *b, size_t n)
{
    struct sv_rng rng = {7};

    while (b->len < n) {
        char word[24];
        int len = 3 + (int)sv_rng_below(&rng, 9);
        for (int i = 0; i < len; i++)
            word[i] = (char)('a' + sv_rng_below(&rng, 26));
        word[len] = ' ';
        sv_buf_append(b, word, (size_t)len + 1);
    }
}

static void long_body(struct sv_buf *b, size_t n, const char *before, const char *after)
{
    sv_buf_init(b);
    sv_buf_printf(b, "%s", before);
    long_text(b, n);
    sv_buf_printf(b, "%s", after);
}

static int open_stream(const struct hub *r)
{
    char first;
    int fd = hub_connect(r);

    hub_post(fd, TEXT, "", "{\"prompt\":\"one two three\",\"max_tokens\":1000000,\"stream\":true}");
    assert_int_equal(recv(fd, &first, 1, 0), 1);
    return fd;
}

/* timeout: streams_go_on 180 */
static void streams_go_on(void **state)
{
    static const struct {
        const char *path, *before, *after;
    } asks[] = {{TEXT, "{\"max_tokens\":1,\"prompt\":\"", "\"}"},
                {"/v1/chat/completions",
                 "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
                {"/tokenize", "{\"prompt\":\"", "\"}"}};
    struct hub r = {.fake.step_us = 1000, .o.engine.context = 1 << 23};
    struct sv_buf body;
    int64_t took, most;
    (void)state;

    hub_open(&r, false);
    int stream = open_stream(&r), asking = hub_connect(&r);
    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        long_body(&body, 5 * MIB, asks[i].before, asks[i].after);
        /* A busy machine stops all threads now and then: one of ten tries must succeed.
         * Read on the loop's thread the silence is all of the time. */
        for (int n = 0;; n++) {
            most = hub_silence(stream, asking, &body, asks[i].path, &r.a, &took);
            assert_int_equal(r.a.status, 200);
            print_message("%s: %zu bytes read in %lld ms, a stream silent for at most %.1f ms\n",
                          asks[i].path, body.len, (long long)took / 1000, (double)most / 1e3);
            if (most < 20000 || most < took / 3)
                break;
            assert_true(n < 9);
        }
        sv_buf_fini(&body);
    }
    close(stream);
    close(asking);
    hub_close(&r);
}

/* What is read beside the loop is the same as what is read on it: errors, ids, choices; and short
 * ones pass long ones. */
static void same_answers(void **state)
{
    struct hub r = {.o.refuse_unknown = true, .o.strict_model = true, .o.engine.context = 1 << 20};
    struct sv_buf body, pad;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&pad);
    sv_buf_printf(&pad, "%20000s", "");
    static const struct {
        const char *path, *rest;
        int status;
        const char *says;
    } list[] = {
        {TEXT, "\"prompt\":\"a b\",\"max_tokens\":3,\"echo\":true}", 200, "\"text\":\"a ba ba\""},
        {TEXT, "\"prompt\":[\"a\",[65,66]],\"n\":2,\"max_tokens\":1}", 200, "\"index\":3,"},
        {TEXT, "\"prompt\":\"a\",\"max_tokens\":3,\"stream\":true}", 200, "data: [DONE]"},
        {TEXT, "\"prompt\":\"a\",\"temprature\":3}", 400, "\"param\":\"temprature\""},
        {TEXT, "\"prompt\":\"a\",\"model\":\"gpt-9\"}", 404, "model_not_found"},
        {TEXT, "\"prompt\":\"a\",}", 400, "not valid JSON"},
        {TEXT, "\"prompt\":[1,\"a\"]}", 400, "'prompt[1]'"},
        {TEXT, "\"prompt\":\"a\",\"n\":129}", 400, "\"param\":\"n\""},
        {"/v1/chat/completions",
         "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2}", 200,
         "\"chat.completion\""},
        {"/generate", "\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":2}}", 200,
         "\"completion_tokens\":2,"},
        {"/completion", "\"prompt\":\"a\",\"n_predict\":2}", 200, "\"tokens_predicted\":2,"},
        {"/tokenize", "\"prompt\":\"a\"}", 200, "\"tokens\":[64]"},
        {"/detokenize", "\"tokens\":[64]}", 200, "\"content\":\"a\""},
        {"/detokenize", "\"tokens\":[-1]}", 400, "\"param\":\"tokens\""},
        {"/apply-template", "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200,
         "user\\nhi"},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        sv_buf_init(&body);
        sv_buf_printf(&body, "{%s%s", pad.data, list[i].rest);
        hub_ask(&r, list[i].path, body.data, &r.a);
        if (r.a.status != list[i].status || !strstr(r.a.body.data, list[i].says))
            fail_msg("%s %s gave %d: %.400s", list[i].path, list[i].rest, r.a.status,
                     r.a.body.data);
        sv_buf_fini(&body);
    }
    int fd = hub_connect(&r);
    hub_post(fd, TEXT, "Content-Encoding: gzip\r\n", pad.data);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 415);
    close(fd);
    sv_buf_fini(&pad);
    hub_close(&r);
}

/* One connection: two long bodies at once, one that waits to be asked for, one in chunks. */
static void ways_to_send(void **state)
{
    struct hub r = {.o.engine.context = 1 << 20};
    struct sv_buf body, b;
    char ok[32] = "";
    (void)state;

    hub_open(&r, false);
    long_body(&body, 100000, "{\"max_tokens\":2,\"prompt\":\"", "\"}");
    int fd = hub_connect(&r);
    hub_post(fd, TEXT, "", body.data);
    hub_post(fd, "/tokenize", "", "{\"prompt\":\"a\"}");
    hub_post(fd, TEXT, "", body.data);
    for (int i = 0; i < 3; i++) {
        answer_read(fd, &r.a);
        assert_int_equal(r.a.status, 200);
        assert_int_equal(strstr(r.a.body.data, "\"tokens\":[64]") != NULL, i == 1);
    }
    sv_buf_init(&b);
    sv_buf_printf(&b,
                  "POST " TEXT
                  " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %zu\r\n\r\n",
                  body.len);
    hub_send(fd, b.data, b.len);
    assert_int_equal(recv(fd, ok, 25, MSG_WAITALL), 25);
    assert_string_equal(ok, "HTTP/1.1 100 Continue\r\n\r\n");
    hub_send(fd, body.data, body.len);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    sv_buf_clear(&b);
    sv_buf_printf(&b, "POST " TEXT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0; at < body.len; at += 7777) {
        size_t n = body.len - at < 7777 ? body.len - at : 7777;
        sv_buf_printf(&b, "%zx\r\n%.*s\r\n", n, (int)n, body.data + at);
    }
    sv_buf_printf(&b, "0\r\n\r\n");
    hub_send(fd, b.data, b.len);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    close(fd);
    sv_buf_fini(&b);
    sv_buf_fini(&body);
    hub_close(&r);
}

/* Clients that leave while their bodies are read or wait, more of them than may wait, and the end
 * in the middle of it. */
static void leaving_and_ending(void **state)
{
    enum { N = 80 };
    struct hub r = {.o.engine.context = 1 << 23};
    struct sv_buf body;
    int fd[N], n_full = 0;
    (void)state;

    hub_open(&r, false);
    long_body(&body, MIB / 10, "{\"prompt\":\"", "\"}");
    for (int i = 0; i < N; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], i & 1 ? TEXT : "/tokenize", "", body.data);
    }
    for (int i = 0; i < N; i++) {
        if (i % 4 >= 2) {
            answer_read(fd[i], &r.a);
            if (r.a.status != 200 && r.a.status != 429)
                fail_msg("%d: %d: %s", i, r.a.status, r.a.body.data);
            n_full += r.a.status == 429;
        }
        close(fd[i]);
    }
    assert_true(n_full < N / 2);
    hub_ask(&r, "/health", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    assert_true(hub_metric(&r, "salvo_running_sequences") >= 0);
    hub_close_amid(&r, "/tokenize", TEXT, body.data);
    sv_buf_fini(&body);
}

/* What was sent before the server was told to stop gets its answer. */
static void drains_what_is_read(void **state)
{
    struct hub r = {.o.engine.context = 1 << 23};
    struct sv_buf body;
    (void)state;

    hub_open(&r, false);
    long_body(&body, 4 * MIB, "{\"max_tokens\":2,\"prompt\":\"", "\"}");
    int fd = hub_connect(&r);
    struct pollfd answered = {.fd = fd, .events = POLLIN};
    hub_post(fd, TEXT, "", body.data);
    while (hub_metric(&r, "salvo_long_bodies") < 1 && poll(&answered, 1, 1) == 0)
        ;
    sv_serve_stop(r.s);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    close(fd);
    sv_buf_fini(&body);
    sv_thread_join(r.thread);
    assert_int_equal(r.rc, SV_OK);
    sv_serve_close(r.s);
    answer_fini(&r.a);
}

SV_TEST_MAIN(cmocka_unit_test(streams_go_on), cmocka_unit_test(same_answers),
             cmocka_unit_test(ways_to_send), cmocka_unit_test(leaving_and_ending),
             cmocka_unit_test(drains_what_is_read))
