/*
 * test_server.c - the server on a real socket with an engine that answers at once: bytes of
 * streams, HTTP in any pieces, clients that leave, full queues, keys, draining, loading, a device
 * that fails.
 */
#define _DEFAULT_SOURCE

#include "serve/hub.h"

#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char hello[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":6}";

/* Digits after each `"key":` become 0. */
static void mask(struct sv_buf *b, const char *key)
{
    char pattern[64];
    snprintf(pattern, sizeof pattern, "\"%s\":", key);
    for (char *at = b->data; at && (at = strstr(at, pattern)); at++) {
        char *from = at + strlen(pattern), *to = from;
        while (strchr("0123456789.e-+", *to) && *to)
            to++;
        if (to == from)
            continue;
        *from++ = '0';
        memmove(from, to, strlen(to) + 1);
    }
    b->len = b->data ? strlen(b->data) : 0;
}

static void contains(const struct sv_buf *b, const char *text)
{
    if (!b->data || !strstr(b->data, text))
        fail_msg("'%s' is not in: %s", text, b->data ? b->data : "");
}

/* ---------------------------------------------------------------- bytes */

#define FRAME(rest)                                                                                \
    "data: {\"id\":\"chatcmpl-abc\",\"object\":\"chat.completion.chunk\",\"created\":0,"           \
    "\"model\":\"fake\",\"choices\":[" rest "\n\n"

/* ecosystem: role, text, empty delta with the reason, usage without choices, [DONE]; nothing
 * else. */
static void stream_is_exact(void **state)
{
    static const char want[] = FRAME(
        "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
        "\"finish_reason\":null}],\"usage\":null}")
        FRAME("{\"index\":0,\"delta\":{\"content\":\"user\\n\"},\"logprobs\":null,"
              "\"finish_reason\":null}],\"usage\":null}")
            FRAME("{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"logprobs\":null,"
                  "\"finish_reason\":null}],\"usage\":null}")
                FRAME("{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\","
                      "\"stop_reason\":null,\"matched_stop\":null}],\"usage\":null}")
                    FRAME("],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0,"
                          "\"total_tokens\":0,"
                          "\"prompt_tokens_details\":{\"cached_tokens\":0},"
                          "\"completion_tokens_details\":{\"accepted_prediction_tokens\":4,"
                          "\"rejected_prediction_tokens\":0}},");
    struct hub r = {0};
    (void)state;

    r.fake.burst = 3; /* <|im_start|> user \n / Hello's tokens */
    hub_open(&r, false);
    int fd = hub_connect(&r);
    hub_post(fd, "/v1/chat/completions", "X-Request-Id: abc\r\n",
             "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":6,"
             "\"stream\":true,"
             "\"stream_options\":{\"include_usage\":true},\"spec_decode_metrics\":\"none\"}");
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    assert_true(r.a.chunked && !r.a.closed);
    contains(&r.a.head, "Content-Type: text/event-stream; charset=utf-8\r\n");
    contains(&r.a.head, "x-request-id: abc\r\n");
    mask(&r.a.body, "created");
    mask(&r.a.body, "prompt_tokens");
    mask(&r.a.body, "completion_tokens");
    mask(&r.a.body, "total_tokens");
    /* How Hello is cut into tokens is the tokenizer's affair: compare up to the text, and the
     * end. */
    const char *tail = strstr(r.a.body.data, "\"timings\"");
    assert_non_null(tail);
    assert_string_equal(tail + strlen(tail) - 16, "\n\ndata: [DONE]\n\n");
    r.a.body.len = (size_t)(tail - r.a.body.data);
    sv_buf_append(&r.a.body, "\n\n", 2); /* as FRAME ends */
    assert_string_equal(r.a.body.data, want);
    close(fd);
    hub_close(&r);
}

static void whole_code_points(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false); /* one token a step, and a byte-level vocabulary cuts these */
    hub_ask(&r, "/v1/completions",
            "{\"prompt\":\"\xf0\x9f\xa6\x9c\xe6\xbc\xa2\xe0\xa4\x95\",\"max_tokens\":64,"
            "\"stream\":true}",
            &r.a);
    assert_int_equal(r.a.status, 200);
    assert_null(strstr(r.a.body.data, "\xef\xbf\xbd\xef\xbf\xbd"));
    json_t *v;
    for (char *line = r.a.body.data; (line = strstr(line, "data: {")); line++) {
        struct sv_err err = {0};
        v = sv_json_parse(line + 6, strcspn(line + 6, "\n"), &err);
        if (!v)
            fail_msg("%s", err.msg);
        json_decref(v);
    }
    contains(&r.a.body, "\xf0\x9f\xa6\x9c");
    hub_close(&r);
}

static size_t flagged_bytes(const char *line)
{
    const char *at = strstr(line, "\"draft_flags\":[[");
    size_t sum = 0, n;
    char flag[8];

    if (!at || at > strchr(line, '\n'))
        return 0;
    for (at += strlen("\"draft_flags\":["); *at == '['; at += at[0] == ',') {
        assert_int_equal(sscanf(at, "[%zu,%7[a-z]]", &n, flag), 2);
        sum += n;
        at = strchr(at, ']') + 1;
    }
    return sum;
}

static void draft_flags_cover_the_text(void **state)
{
    struct hub r = {0};
    size_t n_lines = 0;
    (void)state;

    r.fake.burst = 5;
    hub_open(&r, false);
    hub_ask(&r, "/v1/completions",
            "{\"prompt\":\"one two three four five six\",\"max_tokens\":40,\"stream\":true,"
            "\"return_draft_flags\":true,\"stop\":[\"sixone two\"]}",
            &r.a);
    for (char *line = strstr(r.a.body.data, "data: {"); line; line = strstr(line + 1, "data: {")) {
        struct sv_err err = {0};
        json_t *v = sv_json_parse(line + 6, strcspn(line + 6, "\n"), &err);
        json_t *text = json_object_get(json_array_get(json_object_get(v, "choices"), 0), "text");
        assert_int_equal(flagged_bytes(line), json_string_length(text));
        n_lines += json_string_length(text) > 0;
        json_decref(v);
    }
    assert_true(n_lines > 1);
    contains(&r.a.body, "\"finish_reason\":\"stop\",\"stop_reason\":\"sixone two\","
                        "\"matched_stop\":\"sixone two\"");
    hub_close(&r);
}

/* ---------------------------------------------------------------- HTTP in pieces */

static void request_text(struct sv_buf *b)
{
    sv_buf_init(b);
    sv_buf_printf(b,
                  "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: same\r\n"
                  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                  strlen(hello), hello);
}

static void mask_times(struct sv_buf *b)
{
    static const char *const keys[] = {
        "created",
        "prompt_ms",
        "prompt_per_second",
        "predicted_ms",
        "predicted_per_second",
        "prompt_per_token_ms",
        "predicted_per_token_ms",
        "time_to_first_token_ms",
        "queue_time_ms",
        "mean_itl_ms",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        mask(b, keys[i]);
}

/* The same answer to a request in one piece, in two, wherever it is cut, and byte by byte: r->a at
 * the end. */
static void split(struct hub *r, const char *text, size_t n)
{
    struct answer whole;

    answer_init(&whole);
    int fd = hub_connect(r); /* one connection for all: keep-alive must survive each split */
    hub_send(fd, text, n);
    answer_read(fd, &whole);
    assert_int_equal(whole.status, 200);
    mask_times(&whole.body);
    for (size_t i = 1; i <= n; i++) { /* the last time byte by byte */
        for (size_t at = 0; i == n && at + 1 < n; at++) {
            hub_send(fd, text + at, 1);
            hub_nap_ms(1);
        }
        if (i < n)
            hub_send(fd, text, i);
        hub_nap_ms(1);
        hub_send(fd, text + (i < n ? i : n - 1), i < n ? n - i : 1);
        answer_read(fd, &r->a);
        assert_int_equal(r->a.status, 200);
        mask_times(&r->a.body);
        assert_string_equal(r->a.body.data, whole.body.data);
    }
    close(fd);
    answer_fini(&whole);
}

/* timeout: split_at_every_byte 180 */
static void split_at_every_byte(void **state)
{
    struct hub r = {0};
    struct sv_buf text;
    (void)state;

    hub_open(&r, false);
    request_text(&text);
    split(&r, text.data, text.len);
    sv_buf_fini(&text);
    hub_close(&r);
}

/* Extensions and trailers are read over; a body's own semicolons and lines that look like sizes are
 * left alone. */
/* timeout: chunks_split_at_every_byte 180 */
static void chunks_split_at_every_byte(void **state)
{
    static const char text[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: same\r\nX-Length: 5;a\r\n"
        "transfer-ENCODING: Chunked\r\n\r\n"
        "2;a=b; c=\"d\"\r\n{\"\r\n"
        "9 ;e\r\nprompt\":\"\r\n"
        "0C;\r\n1;x y\",\n \r\n\"\r\n"
        "1d\t; f\r\necho\":true,\"max_tokens\":1   }\r\n"
        "0;last=1\r\nTrailer: 3;g\r\nX: y\r\n\r\n";
    static const char bad[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz;a\r\n"
        "{}\r\n";
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    int fd = hub_connect(&r);
    hub_send(fd, bad, sizeof bad - 1);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 400);
    contains(&r.a.body, "a chunk has no size");
    close(fd);
    split(&r, text, sizeof text - 1);
    contains(&r.a.body, "\"text\":\"1;x y");
    hub_close(&r);
}

/* The next request arrives while the answer before it is still streaming. */
static void pipelined(void **state)
{
    struct hub r = {0};
    (void)state;

    r.fake.step_us = 2000;
    hub_open(&r, false);
    int fd = hub_connect(&r);
    for (int i = 0; i < 5; i++)
        hub_post(fd, "/v1/completions", "",
                 i % 2 ? "{\"prompt\":\"ab\",\"max_tokens\":20,\"stream\":true}"
                       : "{\"prompt\":\"ab\",\"max_tokens\":20}");
    hub_get(fd, "/version", "");
    for (int i = 0; i < 5; i++) {
        answer_read(fd, &r.a);
        assert_int_equal(r.a.status, 200);
        assert_int_equal(r.a.chunked, i % 2);
    }
    answer_read(fd, &r.a);
    contains(&r.a.body, "\"version\"");
    close(fd);
    hub_close(&r);
}

/* What the library refuses by itself has the same shape as every other error. */
static void refused(const struct answer *a, const char *what)
{
    if (a->status < 400)
        fail_msg("%.40s gave %d", what, a->status);
    contains(&a->head, "Content-Type: application/json\r\n");
    struct sv_err err = {0};
    json_t *root = sv_json_parse(a->body.data, a->body.len, &err);
    json_t *e = json_object_get(root, "error");
    if (!json_is_string(json_object_get(e, "message")) ||
        !json_is_string(json_object_get(e, "type")) || !json_object_get(e, "param") ||
        !json_object_get(e, "code"))
        fail_msg("%.40s gave %s", what, a->body.data);
    json_decref(root);
}

static void hostile_http(void **state)
{
    static const struct {
        const char *text;
        int status; /* 0 = the connection may just be closed */
    } tries[] = {
        {"\r\n\r\n", 0},
        {"GET\r\n\r\n", 400},
        {"GET / HTTP/9.9\r\n\r\n", 0},
        {"GET / HTCPCP/1.0\r\n\r\n", 400},
        {"\x16\x03\x01\x02", 0},
        {"\x16\x03\x01\x02\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400},
        {"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 0},
        {"POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n{", 0},
        {"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 0},
        {"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n", 0},
        {"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400},
        {"GET /%00%ff%zz HTTP/1.1\r\nHost: x\r\n\r\n", 404},
        {"BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n", 0},
        {"CONNECT /pot HTTP/1.1\r\nHost: x\r\n\r\n", 0},
        {"POST /v1/completions HTTP/1.1\r\nExpect: a miracle\r\nContent-Length: 2\r\n\r\n", 0},
        {"GET /v1/models/%2e%2e%2f HTTP/1.0\r\n\r\n", 404}};
    struct hub r = {0};
    struct sv_buf big;
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        int fd = hub_connect(&r);
        hub_send_text(fd, tries[i].text);
        shutdown(fd, SHUT_WR);
        answer_read(fd, &r.a); /* an error or a closed connection */
        if (tries[i].status && r.a.status != tries[i].status)
            fail_msg("%s gave %d", tries[i].text, r.a.status);
        if (r.a.status)
            refused(&r.a, tries[i].text);
        close(fd);
    }
    sv_buf_init(&big);
    sv_buf_printf(&big, "GET / HTTP/1.1\r\nX-Long: %070000d\r\n\r\n", 0);
    int fd = hub_connect(&r);
    hub_send(fd, big.data, big.len);
    shutdown(fd, SHUT_WR);
    answer_read(fd, &r.a);
    refused(&r.a, "a long header");
    close(fd);
    sv_buf_fini(&big);
    hub_ask(&r, "/health", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    hub_close(&r);
}

/* ---------------------------------------------------------------- clients that leave */

static void leave(struct hub *r, bool stream, bool reset)
{
    struct linger hard = {1, 0};
    char body[160], first;
    int fd = hub_connect(r);

    snprintf(body, sizeof body, "{\"prompt\":\"ab\",\"max_tokens\":3000,\"stream\":%s}",
             stream ? "true" : "false");
    hub_post(fd, "/v1/completions", "", body);
    if (stream)
        assert_int_equal(recv(fd, &first, 1, 0), 1);
    hub_metric_becomes(r, "salvo_running_sequences", 1);
    if (reset)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard); /* as a killed client does */
    close(fd);
}

static void leaving_cancels(void **state)
{
    struct hub r = {0};
    (void)state;

    r.fake.step_us = 20000; /* 3000 tokens would take a minute */
    hub_open(&r, false);
    for (int i = 0; i < 4; i++) {
        leave(&r, i & 1, i & 2);
        hub_metric_becomes(&r, "salvo_sequences_total{result=\"canceled\"}", i + 1);
        hub_metric_becomes(&r, "salvo_running_sequences", 0);
    }
    assert_true(hub_metric(&r, "salvo_generated_tokens_total") < 2000);
    hub_close(&r);
}

static void slow_reader_holds_nobody(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    int slow = hub_connect(&r), small = 32768;
    setsockopt(slow, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    hub_post(slow, "/v1/completions", "",
             "{\"prompt\":\"a b c d\",\"max_tokens\":4000,\"stream\":true}");
    for (int i = 0; i < 20; i++) {
        hub_ask(&r, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":50,\"stream\":true}",
                &r.a);
        assert_int_equal(r.a.status, 200);
    }
    answer_read(slow, &r.a); /* and it still gets all of its own */
    assert_false(r.a.closed);
    contains(&r.a.body, "data: [DONE]\n\n");
    close(slow);
    hub_close(&r);
}

static void who_reads_nothing_is_dropped(void **state)
{
    struct hub r = {0};
    int small = 4096;
    (void)state;

    r.fake.burst = 64;
    r.fake.step_us = 10000; /* all of it would take 30 s */
    r.o.engine.context = 200000;
    r.o.max_backlog_bytes = 1 << 20;
    hub_open(&r, false);
    int deaf = hub_connect(&r);
    setsockopt(deaf, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    hub_post(deaf, "/v1/completions", "",
             "{\"prompt\":\"a b c d\",\"max_tokens\":190000,\"logprobs\":5,\"stream\":true}");
    hub_metric_becomes(&r, "salvo_sequences_total{result=\"canceled\"}", 1);
    hub_ask(&r, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":5}", &r.a);
    assert_int_equal(r.a.status, 200);
    close(deaf);
    hub_close(&r);
}

/* ---------------------------------------------------------------- limits */

static void full_queue(void **state)
{
    static const char *const ask[] = {"{\"prompt\":\"ab\",\"max_tokens\":4000}",
                                      "{\"prompt\":\"ab\",\"max_tokens\":40}"};
    struct hub r = {.held = true};
    int fd[3];
    (void)state;

    r.o.engine.max_sequences = 1;
    r.o.max_queue = 2;
    hub_open(&r, false);
    for (int i = 0; i < 3; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], "/v1/completions", "", ask[i > 0]);
        hub_metric_becomes(&r, "salvo_running_sequences", i + 1);
    }
    hub_ask(&r, "/v1/completions", ask[1], &r.a);
    assert_int_equal(r.a.status, 429);
    contains(&r.a.head, "Retry-After: 1\r\n");
    contains(&r.a.body, "\"type\":\"rate_limit_error\"");
    close(fd[0]);
    hub_let(&r, HUB_ALL);
    for (int i = 1; i < 3; i++) {
        answer_read(fd[i], &r.a);
        assert_int_equal(r.a.status, 200);
        close(fd[i]);
    }
    hub_ask(&r, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":4}", &r.a);
    assert_int_equal(r.a.status, 200);
    hub_close(&r);
}

static void body_limit(void **state)
{
    struct hub r = {0};
    struct sv_buf b;
    (void)state;

    r.o.max_body_bytes = 4096;
    hub_open(&r, false);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"prompt\":\"%05000d\"}", 0);
    hub_ask(&r, "/v1/completions", b.data, &r.a);
    assert_int_equal(r.a.status, 413);
    contains(&r.a.body, "\"code\":\"body_too_large\"");
    sv_buf_clear(&b);
    sv_buf_printf(&b, "{\"prompt\":\"%04000d\",\"max_tokens\":1}", 0);
    hub_ask(&r, "/v1/completions", b.data, &r.a);
    assert_int_equal(r.a.status, 200);
    sv_buf_clear(&b); /* far beyond: never kept */
    sv_buf_printf(&b, "%03000000d", 0);
    hub_ask(&r, "/v1/completions", b.data, &r.a);
    assert_int_equal(r.a.status, 413);
    refused(&r.a, "a body far too large");
    contains(&r.a.body, "\"code\":\"body_too_large\"");
    sv_buf_fini(&b);
    hub_close(&r);
}

/* Templates and arguments that would take for ever, or all memory, end at a limit, and the server
 * is there for others. */
static void hostile_templates(void **state)
{
    static const struct {
        const char *template, *kwarg, *says;
    } tries[] = {
        {"{% for i in range(99999) %}{% for j in range(99999) %}{{ k }}{% endfor %}{% endfor %}",
         "\"\"", "steps"},
        {"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "1", "deep"},
        {"{% for i in range(99999) %}{{ k }}{% endfor %}",
         "\"01234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "01234567890123456789012345678901234567890123456789012345678901234567890123456789"
         "01234567890123456789012345678901234567890123456789012345678901234567890123456789\"",
         "bytes"},
        {"{% set ns = namespace(s=k) %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
         "endfor %}{{ ns.s }}",
         "\"abc\"", "bytes"},
        {"{% macro f(v) %}{% for x in v %}{{ f(x) }}{% endfor %}{% endmacro %}{{ f(messages) }}",
         "1", NULL},
        {"{{ raise_exception('not ' ~ k) }}", "\"me\"", "not me"},
        {"{{ messages[0].content }}", "{\"a\":[[[[]]]]}", NULL},
        {"{{ messages.x.y }}", "1", "chat template"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        const char *file = sv_test_tmp("template");
        struct hub r = {.fake.step_us = 1000};
        struct sv_err err = {0};
        struct sv_buf b;

        assert_int_equal(sv_file_write(file, tries[i].template, strlen(tries[i].template), &err),
                         SV_OK);
        r.o.chat_template = file;
        hub_open(&r, false);
        sv_buf_init(&b);
        sv_buf_printf(&b,
                      "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":3,"
                      "\"chat_template_kwargs\":{\"k\":%s}}",
                      tries[i].kwarg);
        hub_ask(&r, "/v1/chat/completions", b.data, &r.a);
        assert_true(r.a.status == 400 || (!tries[i].says && r.a.status == 200));
        if (tries[i].says)
            contains(&r.a.body, tries[i].says);
        hub_ask(&r, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":3}", &r.a);
        assert_int_equal(r.a.status, 200);
        sv_buf_fini(&b);
        hub_close(&r);
    }
}

/* --chat-template FILE knows the model's special tokens, as the model's own template does. */
static void given_template_has_tokens(void **state)
{
    static const char template[] = "{{ eos_token }}|{{ messages[0].content }}";
    const char *file = sv_test_tmp("template");
    struct hub r = {0};
    struct sv_err err = {0};
    (void)state;

    assert_int_equal(sv_file_write(file, template, sizeof template - 1, &err), SV_OK);
    r.o.chat_template = file;
    hub_open(&r, false);
    hub_ask(&r, "/tokenize",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"return_token_strs\":true}",
            &r.a);
    contains(&r.a.body, "<|im_end|>");
    hub_close(&r);
}

/* Far more than the context can hold is refused before it is tokenized. */
static void endless_prompt(void **state)
{
    struct hub r = {0};
    struct sv_buf b;
    (void)state;

    r.o.engine.context = 64;
    hub_open(&r, false);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"prompt\":\"%0200000d\"}", 0);
    hub_ask(&r, "/v1/completions", b.data, &r.a);
    assert_int_equal(r.a.status, 400);
    contains(&r.a.body, "\"code\":\"context_length_exceeded\"");
    contains(&r.a.body, "200000 bytes");
    sv_buf_fini(&b);
    hub_close(&r);
}

static void keys(void **state)
{
    struct hub r = {0};
    const char *file = sv_test_tmp("keys");
    struct sv_err err = {0};
    (void)state;

    assert_int_equal(sv_file_write(file, "# ours\nalpha\n\n \tbeta \r\n", 23, &err), SV_OK);
    r.o.api_key = "gamma";
    r.o.api_key_file = file;
    r.o.cors_origin = "https://example.org";
    hub_open(&r, false); /* health needs no key */
    static const struct {
        const char *header;
        int status;
    } tries[] = {{"", 401},
                 {"Authorization: Bearer alpha\r\n", 200},
                 {"Authorization: Bearer beta\r\n", 200},
                 {"X-Api-Key: gamma\r\n", 200},
                 {"authorization: bearer alpha\r\n", 200}, /* the scheme's case does not matter */
                 {"Authorization: BEARER  beta\r\n", 200},
                 {"Authorization: Beareralpha\r\n", 401},
                 {"Authorization: Bearer alph\r\n", 401},
                 {"Authorization: Bearer alphaa\r\n", 401},
                 {"Authorization: Bearer # ours\r\n", 401},
                 {"Authorization: Bearer \r\n", 401},
                 {"Authorization: Basic alpha\r\n", 401}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        int fd = hub_connect(&r);
        hub_get(fd, "/v1/models", tries[i].header);
        answer_read(fd, &r.a);
        if (r.a.status != tries[i].status)
            fail_msg("%s gave %d", tries[i].header, r.a.status);
        contains(&r.a.head, "Access-Control-Allow-Origin: https://example.org\r\n");
        close(fd);
    }
    int fd = hub_connect(&r);
    hub_send_text(fd, "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
                      "Access-Control-Request-Headers: authorization\r\n\r\n");
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 204);
    contains(&r.a.head, "Access-Control-Allow-Headers: authorization\r\n");
    close(fd);
    hub_close(&r);
}

/* ---------------------------------------------------------------- life */

static void drains(void **state)
{
    struct hub r = {.held = true};
    struct answer a;
    (void)state;

    hub_open(&r, false);
    answer_init(&a);
    int fd = hub_connect(&r), idle = hub_connect(&r);
    hub_get(idle, "/version", "");
    answer_read(idle, &a);
    hub_post(fd, "/v1/completions", "", "{\"prompt\":\"ab\",\"max_tokens\":200,\"stream\":true}");
    hub_metric_becomes(&r, "salvo_running_sequences", 1);
    hub_drain(&r, idle);
    hub_post(idle, "/v1/completions", "", "{\"prompt\":\"ab\",\"max_tokens\":6}");
    answer_read(idle, &a);
    assert_int_equal(a.status, 503);
    hub_let(&r, HUB_ALL);
    answer_read(fd, &a);
    assert_int_equal(a.status, 200);
    contains(&a.body, "\"finish_reason\":\"length\"");
    sv_thread_join(r.thread);
    assert_int_equal(r.rc, SV_OK);
    close(fd);
    close(idle);
    answer_fini(&a);
    sv_serve_close(r.s);
}

static void second_stop_ends(void **state)
{
    struct hub r = {0};
    struct answer a;
    (void)state;

    r.fake.step_us = 10000;
    hub_open(&r, false);
    answer_init(&a);
    int fd = hub_connect(&r);
    hub_post(fd, "/v1/completions", "", "{\"prompt\":\"ab\",\"max_tokens\":4000,\"stream\":true}");
    hub_metric_becomes(&r, "salvo_running_sequences", 1);
    sv_serve_stop(r.s);
    sv_serve_stop(r.s);
    sv_thread_join(r.thread);
    sv_serve_close(r.s);
    answer_read(fd, &a);
    assert_true(a.closed);
    close(fd);
    answer_fini(&a);
}

/* Clients of what is not over in time get an error; whether this one had an answer. */
static bool late_drain(void)
{
    struct hub r = {.held = true};
    struct answer a;

    r.o.drain_seconds = 1;
    hub_open(&r, false);
    answer_init(&a);
    int fd = hub_connect(&r);
    hub_post(fd, "/v1/completions", "", "{\"prompt\":\"ab\",\"max_tokens\":4000}");
    hub_metric_becomes(&r, "salvo_running_sequences", 1);
    sv_serve_stop(r.s);
    sv_thread_join(r.thread);
    sv_serve_close(r.s);
    answer_read(fd, &a);
    const bool told = a.status;
    if (told) {
        assert_int_equal(a.status, 503);
        contains(&a.body, "shutting down");
    }
    close(fd);
    answer_fini(&a);
    return told;
}

/* An engine that is stopped for two seconds is waited for no longer: one of ten tries has to do. */
static void late_drain_tells(void **state)
{
    int tries = 1;
    (void)state;

    while (!late_drain())
        assert_true(++tries <= 10);
}

static void loading_says_so(void **state)
{
    struct hub r = {0};
    (void)state;

    r.loads = true;
    hub_open(&r, false);
    double last = -1, now;
    for (int percent = 0; percent < 90; percent += 30) { /* it only grows, within a stage too */
        atomic_store(&r.loaded, percent);
        do {
            hub_ask(&r, "/health", NULL, &r.a);
            assert_int_equal(r.a.status, 503);
            contains(&r.a.body, "\"status\":\"loading\"");
            now = atof(strstr(r.a.body.data, "\"progress\":") + strlen("\"progress\":"));
            assert_true(now >= last && now < 1);
        } while (now <= last);
        last = now;
    }
    hub_ask(&r, "/v1/chat/completions", hello, &r.a);
    assert_int_equal(r.a.status, 503);
    contains(&r.a.head, "Retry-After: 1\r\n");
    hub_ask(&r, "/metrics", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    contains(&r.a.body, "\nsalvo_ready 0\n");
    atomic_store(&r.loaded, 100);
    hub_metric_becomes(&r, "salvo_ready", 1);
    hub_ask(&r, "/v1/chat/completions", hello, &r.a);
    assert_int_equal(r.a.status, 200);
    hub_close(&r);
}

static void broken_device(void **state)
{
    struct hub r = {0};
    (void)state;

    r.fake.fail_at_step = 5;
    hub_open(&r, false);
    hub_ask(&r, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":40}", &r.a);
    assert_int_equal(r.a.status, 500);
    contains(&r.a.body, "the fake device failed");
    hub_ask(&r, "/health", NULL, &r.a);
    assert_int_equal(r.a.status, 503);
    contains(&r.a.body, "\"status\":\"failed\"");
    hub_ask(&r, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":40}", &r.a);
    assert_int_equal(r.a.status, 503);
    hub_close(&r);
    assert_int_equal(r.rc, SV_EDEVICE);
}

/* Every waiting client gets an error, streaming or not; meanwhile the server may have been
 * asked to end, which it then does. */
static void all_are_told_of_a_broken_device(bool ending)
{
    enum { N = 8 };
    static const char *const ask[] = {"{\"prompt\":\"ab\",\"max_tokens\":4000}",
                                      "{\"prompt\":\"ab\",\"max_tokens\":4000,\"stream\":true}"};
    struct hub r = {.held = true, .fake.fail_at_step = 5};
    struct answer a[N];
    int fd[N];

    hub_open(&r, false);
    int idle = hub_connect(&r);
    for (int i = 0; i < N; i++) {
        answer_init(&a[i]);
        fd[i] = hub_connect(&r);
        hub_post(fd[i], "/v1/completions", "Connection: close\r\n", ask[i % 2]);
    }
    hub_metric_becomes(&r, "salvo_running_sequences", N);
    if (ending)
        hub_drain(&r, idle);
    hub_let(&r, HUB_ALL);
    for (int i = 0; i < N; i++) {
        answer_read(fd[i], &a[i]);
        close(fd[i]);
        assert_int_equal(a[i].status, i % 2 ? 200 : 500);
        contains(&a[i].body, i % 2 ? "data: {\"error\":{\"message\":\"the fake device failed\""
                                   : "the fake device failed");
        answer_fini(&a[i]);
    }
    if (ending) {
        hub_wait(&r);
    } else {
        hub_ask(&r, "/health", NULL, &r.a);
        assert_int_equal(r.a.status, 503);
        contains(&r.a.body, "\"status\":\"failed\",\"message\":\"the fake device failed\"");
    }
    close(idle);
    hub_close(&r);
    assert_int_equal(r.rc, SV_EDEVICE);
}

static void broken_device_tells_all(void **state)
{
    (void)state;
    all_are_told_of_a_broken_device(false);
}

static void broken_device_while_draining(void **state)
{
    (void)state;
    all_are_told_of_a_broken_device(true);
}

static void stream_error_is_an_event(void **state)
{
    struct hub r = {0};
    (void)state;

    r.fake.fail_at_step = 5;
    hub_open(&r, false);
    hub_ask(&r, "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":40,\"stream\":true}", &r.a);
    assert_int_equal(r.a.status, 200);
    contains(&r.a.body, "data: {\"error\":{\"message\":\"the fake device failed\"");
    contains(&r.a.body, "\n\ndata: [DONE]\n\n");
    hub_close(&r);
}

static void silent_streams_ping(void **state)
{
    struct hub r = {.held = true};
    (void)state;

    r.o.ping_seconds = 1;
    hub_open(&r, false);
    int fd = hub_connect(&r);
    hub_post(fd, "/v1/completions", "", "{\"prompt\":\"ab\",\"max_tokens\":2,\"stream\":true}");
    hub_let(&r, 1);
    hub_await(fd, "data: {");
    hub_await(fd, ": ping\n\n");
    hub_let(&r, 1);
    answer_read(fd, &r.a);
    close(fd);
    assert_int_equal(r.a.status, 200);
    contains(&r.a.body, "\n\n: ping\n\ndata: {");
    hub_close(&r);
}

static void choices(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    hub_ask(&r, "/v1/completions",
            "{\"prompt\":[\"a b\",[65,66,67]],\"n\":2,\"max_tokens\":3,\"echo\":true,"
            "\"return_token_ids\":true}",
            &r.a);
    assert_int_equal(r.a.status, 200);
    struct sv_err err = {0};
    json_t *root = sv_json_parse(r.a.body.data, r.a.body.len, &err);
    json_t *list = json_object_get(root, "choices");
    assert_int_equal(json_array_size(list), 4);
    for (int i = 0; i < 4; i++) {
        json_t *c = json_array_get(list, (size_t)i);
        assert_int_equal(json_integer_value(json_object_get(c, "index")), i);
        assert_int_equal(json_array_size(json_object_get(c, "token_ids")), 3);
        json_t *ids = json_object_get(c, "prompt_token_ids");
        if (i >= 2)
            assert_int_equal(json_integer_value(json_array_get(ids, 0)), 65);
    }
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(root, "usage"), "completion_tokens")),
        12);
    json_decref(root);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(stream_is_exact), cmocka_unit_test(whole_code_points),
             cmocka_unit_test(draft_flags_cover_the_text), cmocka_unit_test(split_at_every_byte),
             cmocka_unit_test(chunks_split_at_every_byte), cmocka_unit_test(pipelined),
             cmocka_unit_test(hostile_http), cmocka_unit_test(leaving_cancels),
             cmocka_unit_test(slow_reader_holds_nobody),
             cmocka_unit_test(who_reads_nothing_is_dropped), cmocka_unit_test(full_queue),
             cmocka_unit_test(body_limit), cmocka_unit_test(hostile_templates),
             cmocka_unit_test(given_template_has_tokens), cmocka_unit_test(endless_prompt),
             cmocka_unit_test(keys), cmocka_unit_test(drains), cmocka_unit_test(second_stop_ends),
             cmocka_unit_test(late_drain_tells), cmocka_unit_test(loading_says_so),
             cmocka_unit_test(broken_device), cmocka_unit_test(broken_device_tells_all),
             cmocka_unit_test(broken_device_while_draining),
             cmocka_unit_test(stream_error_is_an_event), cmocka_unit_test(silent_streams_ping),
             cmocka_unit_test(choices))
