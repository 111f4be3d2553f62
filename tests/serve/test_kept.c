/*
 * test_kept.c - stored answers of /v1/responses: turns that continue them, what is stored and for
 * how long, reading, cancelling and deleting them at any time.
 */
#include "serve/responses.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- conversations */

static void turns_go_on(void **state)
{
    struct hub r = {0};
    char more[300], list[400];
    (void)state;

    rsp_open(&r, "", "{{ messages | tojson }}", 64);
    json_t *one = rsp_answer(&r, "first", "\"instructions\":\"Only once.\"");
    const char *said = hub_text(one, "output.0.content.0.text"), *id = hub_text(one, "id");
    snprintf(more, sizeof more, "\"previous_response_id\":\"%s\"", id);
    json_t *two = rsp_answer(&r, "second", more), *m = rsp_shown(&r, two);
    assert_int_equal(json_array_size(m), 3); /* instructions are not carried over */
    assert_string_equal(hub_text(m, "0.content"), "first");
    assert_string_equal(hub_text(m, "1.role"), "assistant");
    assert_string_equal(hub_text(m, "1.content"), said);
    assert_string_equal(hub_text(m, "2.content"), "second");
    assert_string_equal(hub_text(two, "previous_response_id"), id);

    /* Streamed, with one of the turns before deleted: the others hold it. */
    json_t *gone = rsp_send_empty(&r, "DELETE", rsp_path(id, ""), 200);
    assert_true(json_is_true(hub_at(gone, "deleted")));
    hub_json(&r, rsp_path(id, ""), NULL, 404);
    rsp_send_empty(&r, "DELETE", rsp_path(id, ""), 404);
    json_t *e = hub_json(&r, AT, rsp_ask("x", more), 404);
    assert_string_equal(hub_text(e, "error.code"), "previous_response_not_found");
    assert_string_equal(hub_text(e, "error.param"), "previous_response_id");
    snprintf(more, sizeof more, "\"stream\":true,\"previous_response_id\":\"%s\"",
             hub_text(two, "id"));
    json_t *three = rsp_follow(hub_events(&r, AT, rsp_ask("third", more)));
    assert_int_equal(json_array_size(rsp_shown(&r, three)), 5);

    /* What was kept is what was answered. */
    json_t *kept = hub_json(&r, rsp_path(hub_text(three, "id"), ""), NULL, 200);
    hub_same(hub_at(kept, "output"), hub_at(three, "output"), "output");
    hub_same(kept, three, "answer");

    /* By its name alone, an item of any of them; and of one that nobody has. */
    snprintf(list, sizeof list,
             "{\"role\":\"user\",\"content\":\"now\"},{\"type\":\"item_reference\",\"id\":\"%s\"},"
             "{\"id\":\"%s\"}",
             hub_text(two, "output.0.id"), hub_text(three, "output.0.id"));
    m = rsp_shown(&r, hub_json(&r, AT, rsp_items(list, ""), 200));
    assert_int_equal(json_array_size(m), 3);
    assert_string_equal(hub_text(m, "1.content"), hub_text(two, "output.0.content.0.text"));
    assert_string_equal(hub_text(m, "2.content"), hub_text(three, "output.0.content.0.text"));
    e = hub_json(&r, AT, rsp_items("{\"type\":\"item_reference\",\"id\":\"msg_1\"}", ""), 404);
    assert_string_equal(hub_text(e, "error.param"), "input[0].id");

    /* Its items: pages, in both orders. */
    const char *at = hub_text(three, "id");
    json_t *page = hub_json(&r, rsp_path(at, "/input_items"), NULL, 200);
    assert_int_equal(json_array_size(hub_at(page, "data")), 5);
    assert_string_equal(hub_text(page, "data.0.content.0.text"), "third");
    assert_string_equal(hub_text(page, "data.4.content.0.text"), "first");
    assert_true(json_is_false(hub_at(page, "has_more")));
    page = hub_json(&r, rsp_path(at, "/input_items?limit=2&order=asc"), NULL, 200);
    assert_string_equal(hub_text(page, "data.0.content.0.text"), "first");
    assert_true(json_is_true(hub_at(page, "has_more")));
    hub_same(hub_at(page, "last_id"), hub_at(page, "data.1.id"), "last_id");
    snprintf(more, sizeof more, "/input_items?order=asc&after=%s", hub_text(page, "last_id"));
    page = hub_json(&r, rsp_path(at, more), NULL, 200);
    assert_int_equal(json_array_size(hub_at(page, "data")), 3);
    assert_string_equal(hub_text(page, "data.0.content.0.text"), "second");
    hub_json(&r, rsp_path(at, "/input_items?limit=0"), NULL, 400);
    /* Ids that clients chose stay, unless they would have to be quoted. */
    e = hub_json(&r, AT,
                 rsp_items("{\"id\":\"msg_x\",\"role\":\"user\",\"content\":\"a\"},"
                           "{\"id\":\"a\\\"b\",\"role\":\"user\",\"content\":\"c\"}",
                           ""),
                 200);
    page = hub_json(&r, rsp_path(hub_text(e, "id"), "/input_items?order=asc"), NULL, 200);
    assert_string_equal(hub_text(page, "first_id"), "msg_x");
    assert_true(strncmp(hub_text(page, "last_id"), "msg_", 4) == 0);
    hub_same(hub_at(page, "last_id"), hub_at(page, "data.1.id"), "last_id");
    hub_json(&r, rsp_path(at, "/input_items?order=up"), NULL, 400);
    hub_json(&r, rsp_path(at, "/input_items?after=x"), NULL, 400);
    hub_json(&r, rsp_path(at, "/output_items"), NULL, 404);
    hub_json(&r, rsp_path(at, "?stream=true"), NULL, 400);
    hub_close(&r);
}

/* A body that is read on the other thread, and one that only stands for a long one. */
static void long_conversations(void **state)
{
    struct hub r = {0};
    struct sv_buf text;
    char more[100];
    (void)state;

    rsp_open(&r, "", "{{ messages | length }}", 8);
    sv_buf_init(&text);
    for (int i = 0; i < 3000; i++)
        sv_buf_lit(&text, "word ");
    json_t *v = rsp_answer(&r, text.data, ""), *e;
    for (int i = 0; i < 3; i++) {
        snprintf(more, sizeof more, "\"previous_response_id\":\"%s\"", hub_text(v, "id"));
        v = rsp_answer(&r, i == 1 ? text.data : "on", more);
    }
    assert_string_equal(hub_text(v, "output.0.content.0.text"), "7");
    e = hub_json(&r, rsp_path(hub_text(v, "id"), "/input_items?limit=100"), NULL, 200);
    assert_int_equal(json_array_size(hub_at(e, "data")), 7);
    assert_string_equal(hub_text(e, "data.6.content.0.text"), text.data);
    sv_buf_fini(&text);
    hub_close(&r);
}

/* The second turn of a conversation finds the first's prompt and answer in the cache, but for its
 * last token, which no cache has, and the rest of a page. */
static void the_cache_knows_the_first_turn(void **state)
{
    struct hub r = {.real = true};
    char more[200];
    (void)state;

    hub_open(&r, false);
    json_t *one = hub_json(&r, AT,
                           rsp_ask("Write a function that adds two numbers, and explain it.",
                                   "\"temperature\":0,\"max_output_tokens\":400"),
                           200);
    assert_string_equal(hub_text(one, "status"), "completed");
    int64_t n = hub_number(one, "usage.total_tokens");
    snprintf(more, sizeof more,
             "\"temperature\":0,\"max_output_tokens\":10,\"previous_response_id\":\"%s\"",
             hub_text(one, "id"));
    json_t *two = hub_json(&r, AT, rsp_ask("And three?", more), 200);
    int64_t cached = hub_number(two, "usage.input_tokens_details.cached_tokens");
    assert_true(hub_number(two, "usage.input_tokens") > n);
    assert_int_equal(cached, (n - 1) / 16 * 16);
    hub_close(&r);
}

/* ---------------------------------------------------------------- what is kept */

static void only_the_newest_are_kept(void **state)
{
    struct hub few = {.o.stored_responses = 2}, small = {.o.stored_bytes = 6000},
               none = {.o.stored_responses = -1};
    json_t *v[4];
    struct sv_buf text;
    (void)state;

    rsp_echo(&few, "", 8);
    for (int i = 0; i < 3; i++)
        v[i] = rsp_answer(&few, "a", "");
    hub_json(&few, rsp_path(hub_text(v[0], "id"), ""), NULL, 404);
    hub_json(&few, rsp_path(hub_text(v[1], "id"), ""), NULL, 200);
    hub_json(&few, rsp_path(hub_text(v[2], "id"), ""), NULL, 200);
    v[3] = rsp_answer(&few, "a", "\"store\":false");
    assert_true(json_is_false(hub_at(v[3], "store")));
    hub_json(&few, rsp_path(hub_text(v[3], "id"), ""), NULL, 404);
    hub_json(&few, rsp_path(hub_text(v[1], "id"), ""), NULL, 200);
    assert_int_equal(hub_metric(&few, "salvo_stored_responses"), 2);
    hub_close(&few);

    rsp_echo(&small, "", 8);
    for (int i = 0; i < 4; i++)
        v[i] = rsp_answer(&small, "a", "");
    hub_json(&small, rsp_path(hub_text(v[0], "id"), ""), NULL, 404);
    hub_json(&small, rsp_path(hub_text(v[3], "id"), ""), NULL, 200);
    assert_true(hub_metric(&small, "salvo_stored_responses_bytes") <= 6000);
    sv_buf_init(&text);
    for (int i = 0; i < 1500; i++)
        sv_buf_lit(&text, "word ");
    v[0] = rsp_answer(&small, text.data, "\"max_output_tokens\":1"); /* larger than all */
    hub_json(&small, rsp_path(hub_text(v[0], "id"), ""), NULL, 404);
    hub_json(&small, rsp_path(hub_text(v[3], "id"), ""), NULL, 200);
    sv_buf_fini(&text);
    hub_close(&small);

    rsp_echo(&none, "", 8);
    v[0] = rsp_answer(&none, "a", "\"store\":true");
    assert_true(json_is_false(hub_at(v[0], "store")));
    hub_json(&none, rsp_path(hub_text(v[0], "id"), ""), NULL, 404);
    rsp_send_empty(&none, "DELETE", rsp_path(hub_text(v[0], "id"), ""), 404);
    hub_close(&none);
}

/* ---------------------------------------------------------------- cancelling, failing */

static void cancelled_while_it_runs(void **state)
{
    struct hub r = {.fake.step_us = 2000, .o.engine.context = 1 << 20};
    struct sv_buf rest;
    struct answer a;
    char id[64];
    (void)state;

    rsp_echo(&r, "", 1);
    const char *body = rsp_ask("on and on", "\"ignore_eos\":true,\"stream\":true");
    int fd = hub_connect(&r);
    hub_post(fd, AT, "", body);
    rsp_id(fd, id);
    json_t *v = hub_json(&r, rsp_path(id, ""), NULL, 200);
    assert_string_equal(hub_text(v, "status"), "in_progress");
    hub_json(&r, rsp_path(id, "/input_items"), NULL, 404);
    v = rsp_send_empty(&r, "POST", rsp_path(id, "/cancel"), 200);
    assert_string_equal(hub_text(v, "status"), "cancelled");
    rsp_rest(fd, &rest);
    close(fd);
    assert_int_equal(hub_count(rest.data, "event: response.incomplete\n"), 1);
    assert_int_equal(hub_count(rest.data, "\"status\":\"cancelled\""), 1);
    sv_buf_fini(&rest);
    v = hub_json(&r, rsp_path(id, ""), NULL, 200);
    assert_string_equal(hub_text(v, "status"), "cancelled");
    assert_true(strlen(hub_text(v, "output.0.content.0.text")) > 1);
    v = rsp_send_empty(&r, "POST", rsp_path(id, "/cancel"), 400);
    assert_string_equal(hub_text(v, "error.param"), "response_id");
    rsp_send_empty(&r, "POST", rsp_path("resp_0", "/cancel"), 404);
    rsp_send_empty(&r, "POST", rsp_path(id, "/stop"), 404);

    /* Who waits for the whole gets what there is; /abort_request knows it by its request's name. */
    answer_init(&a);
    double before = hub_metric(&r, "salvo_generated_tokens_total");
    fd = hub_connect(&r);
    hub_post(fd, AT, "X-Request-Id: mine\r\n", rsp_ask("on and on", "\"ignore_eos\":true"));
    while (hub_metric(&r, "salvo_generated_tokens_total") < before + 20)
        hub_nap_ms(5);
    hub_ask(&r, "/abort_request", "{\"rid\":\"mine\"}", &r.a);
    assert_int_equal(r.a.status, 200);
    answer_read(fd, &a);
    close(fd);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body.data, "\"status\":\"cancelled\""));
    answer_fini(&a);
    hub_close(&r);
}

/* ---------------------------------------------------------------- whatever the moment */

/* Its end waits for the thread that writes long ones: until it is kept, it is being made. */
static void while_its_end_is_written(void **state)
{
    struct hub r = {.fake.step_us = 200, .o.engine.context = 1 << 20, .held = true};
    struct sv_buf long_body, rest;
    const char *status;
    char id[64];
    int busy[2];
    (void)state;

    rsp_echo(&r, "", 1);
    sv_buf_init(&long_body);
    sv_buf_lit(&long_body, "{\"max_tokens\":1,\"prompt\":[1");
    for (int i = 0; i < 700000; i++)
        sv_buf_lit(&long_body, ",1");
    sv_buf_lit(&long_body, "]}");
    int fd = hub_connect(&r);
    hub_post(fd, AT, "",
             rsp_ask("on and on",
                     "\"ignore_eos\":true,\"stream\":true,\"max_output_tokens\":600,"
                     "\"top_logprobs\":20,\"include\":[\"message.output_text.logprobs\"]"));
    hub_let(&r, 1);
    rsp_id(fd, id);
    json_t *v = rsp_send_empty(&r, "DELETE", rsp_path(id, ""), 400);
    assert_string_equal(hub_text(v, "error.param"), "response_id");
    for (int i = 0; i < 2; i++) {
        busy[i] = hub_connect(&r);
        hub_post(busy[i], "/v1/completions", "", long_body.data);
    }
    status = hub_text(hub_json(&r, rsp_path(id, ""), NULL, 200), "status");
    assert_string_equal(status, "in_progress");
    hub_let(&r, HUB_ALL);
    do
        status = hub_text(hub_json(&r, rsp_path(id, ""), NULL, 200), "status");
    while (strcmp(status, "in_progress") == 0);
    assert_string_equal(status, "incomplete");
    rsp_rest(fd, &rest);
    assert_int_equal(hub_count(rest.data, "event: response.incomplete\n"), 1);
    sv_buf_fini(&rest);
    rsp_send_empty(&r, "POST", rsp_path(id, "/cancel"), 400);
    rsp_send_empty(&r, "DELETE", rsp_path(id, ""), 200);
    hub_json(&r, rsp_path(id, ""), NULL, 404);
    for (int i = 0; i < 2; i++)
        close(busy[i]);
    close(fd);
    sv_buf_fini(&long_body);
    hub_close(&r);
}

/* What a client gives by the hundred kilobytes and every event repeats. */
static void much_that_is_repeated(void **state)
{
    struct hub r = {.o.engine.context = 1 << 20};
    struct sv_buf more;
    (void)state;

    rsp_echo(&r, "", 8);
    for (int stream = 0; stream < 2; stream++) {
        sv_buf_init(&more);
        sv_buf_printf(&more, "\"stream\":%s,\"metadata\":{\"a\":\"", stream ? "true" : "false");
        for (int i = 0; i < 20000; i++)
            sv_buf_lit(&more, "0123456789");
        sv_buf_lit(&more, "\"}");
        const char *body = rsp_ask("one two three", more.data);
        if (stream)
            rsp_follow(hub_events(&r, AT, body));
        else
            hub_json(&r, AT, body, 200);
        sv_buf_fini(&more);
        assert_true(hub_metric(&r, "salvo_loop_turn_bytes_max") <= 2 * 65536);
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- ids and pages */

/* A name of 40 bytes for a text of thousands: as often as a body could hold it. */
static void items_named_too_often(void **state)
{
    struct hub r = {.o.max_body_bytes = 1 << 20};
    struct sv_buf text, list;
    json_t *v;
    (void)state;

    rsp_open(&r, "", "{{ messages | length }}", 8);
    sv_buf_init(&text);
    for (int i = 0; i < 3000; i++)
        sv_buf_lit(&text, "word ");
    v = rsp_answer(&r, text.data, "");
    const char *name = hub_text(v, "id") + strlen("resp_");
    for (int n = 3; n <= 300; n *= 10) {
        sv_buf_init(&list);
        for (int i = 0; i < n; i++)
            sv_buf_printf(&list, "%s{\"id\":\"msg_%s_in0\"}", i ? "," : "", name);
        v = hub_json(&r, AT, rsp_items(list.data, "\"store\":false"), n < 300 ? 200 : 413);
        if (n == 3)
            assert_string_equal(hub_text(v, "output.0.content.0.text"), "3");
        sv_buf_fini(&list);
    }
    assert_string_equal(hub_text(v, "error.code"), "body_too_large");
    assert_string_equal(hub_text(v, "error.param"), "input[69].id");
    /* Near misses of an item's name. */
    static const char *const wrong[] = {"msg_%s_in1", "msg_%s_1",  "msg_%s_in",   "msg_%s_00",
                                        "rs_%s_0",    "msg_%s_-1", "msg_%s_in0x", "msg_%s"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char item[100] = "{\"id\":\"";
        snprintf(item + 7, sizeof item - 7, wrong[i], name);
        strcat(item, "\"}");
        v = hub_json(&r, AT, rsp_items(item, ""), 404);
        assert_string_equal(hub_text(v, "error.param"), "input[0].id");
    }
    sv_buf_fini(&text);
    hub_close(&r);
}

/* All items of an answer, page by page, each once; how many there are. */
static size_t turn_pages(struct hub *r, const char *id, const char *settings)
{
    json_t *seen = json_object(), *page = NULL, *item;
    char rest[200];
    size_t i;

    do {
        snprintf(rest, sizeof rest, "/input_items?%s%s%s", settings, page ? "&after=" : "",
                 page ? hub_text(page, "last_id") : "");
        page = hub_json(r, rsp_path(id, rest), NULL, 200);
        assert_true(json_array_size(hub_at(page, "data")));
        json_array_foreach(hub_at(page, "data"), i, item) {
            assert_null(json_object_get(seen, hub_text(item, "id")));
            json_object_set_new(seen, hub_text(item, "id"), json_true());
        }
    } while (json_is_true(hub_at(page, "has_more")));
    i = json_object_size(seen);
    json_decref(seen);
    return i;
}

static void pages_have_an_end(void **state)
{
    static const char twice[] = "{\"id\":\"msg_a\",\"role\":\"user\",\"content\":\"1\"},"
                                "{\"id\":\"msg_b\",\"role\":\"user\",\"content\":\"2\"},"
                                "{\"id\":\"msg_a\",\"role\":\"user\",\"content\":\"3\"},"
                                "{\"id\":\"a:b\",\"role\":\"user\",\"content\":\"4\"}";
    struct hub r = {0};
    struct sv_buf list;
    char more[200];
    (void)state;

    rsp_open(&r, "", "{{ messages | length }}", 8);
    json_t *v = hub_json(&r, AT, rsp_items(twice, ""), 200), *page;
    assert_int_equal(turn_pages(&r, hub_text(v, "id"), "limit=1&order=asc"), 4);
    assert_int_equal(turn_pages(&r, hub_text(v, "id"), "limit=1"), 4);
    /* the same ones again, and the answer's own, which its client sends back with them */
    sv_buf_init(&list);
    sv_buf_printf(&list, "%s,{\"id\":\"%s\",\"role\":\"assistant\",\"content\":\"4\"}", twice,
                  hub_text(v, "output.0.id"));
    snprintf(more, sizeof more, "\"previous_response_id\":\"%s\"", hub_text(v, "id"));
    v = hub_json(&r, AT, rsp_items(list.data, more), 200);
    assert_int_equal(turn_pages(&r, hub_text(v, "id"), "limit=2"), 10);

    /* ids that are no good behind an "after" */
    sv_buf_clear(&list);
    sv_buf_lit(&list, "{\"role\":\"user\",\"content\":\"a\",\"id\":\"");
    for (int i = 0; i < 20; i++)
        sv_buf_lit(&list, "0123456789");
    sv_buf_lit(&list, "\"},{\"role\":\"user\",\"content\":\"b\"}");
    v = hub_json(&r, AT, rsp_items(list.data, ""), 200);
    assert_int_equal(turn_pages(&r, hub_text(v, "id"), "limit=1&order=asc"), 2);
    sv_buf_clear(&list);
    sv_buf_printf(&list, "/input_items?after=%0200d", 0);
    v = hub_json(&r, rsp_path(hub_text(v, "id"), list.data), NULL, 400);
    assert_string_equal(hub_text(v, "error.param"), "after");

    /* A page is no longer than that of a book, however many items are asked for. */
    sv_buf_clear(&list);
    for (int i = 0; i < 6; i++)
        sv_buf_printf(&list, "%s{\"role\":\"user\",\"content\":\"%0100000d\"}", i ? "," : "", i);
    v = hub_json(&r, AT, rsp_items(list.data, ""), 200);
    page = hub_json(&r, rsp_path(hub_text(v, "id"), "/input_items?limit=100"), NULL, 200);
    assert_int_equal(json_array_size(hub_at(page, "data")), 3);
    assert_int_equal(turn_pages(&r, hub_text(v, "id"), "limit=100"), 6);
    sv_buf_fini(&list);
    hub_close(&r);
}

/* ---------------------------------------------------------------- all at once */

enum { CROWD = 24, ROUNDS = 3 };

/* Streams whose beginnings and ends are written on either thread, all read, cancelled, deleted,
 * gone on from and left at whatever moment it is: every answer fits to that moment, and nothing
 * stays behind. */
static void a_crowd(void **state)
{
    static const int fits[] = {200, 400, 404};
    struct hub r = {.fake.step_us = 300, .o.engine.max_sequences = 8};
    struct sv_buf more;
    char ids[CROWD][64], settings[100];
    int fd[CROWD];
    (void)state;

    rsp_echo(&r, "", 2);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CROWD; i++) {
            sv_buf_init(&more);
            sv_buf_printf(&more,
                          "\"stream\":true,\"ignore_eos\":true,\"max_output_tokens\":%d,"
                          "\"metadata\":{\"a\":\"%0*d\"}",
                          20 + 40 * i, i % 3 == round ? 150000 : 1, 0);
            if (i % 4 == 1)
                sv_buf_lit(&more, ",\"top_logprobs\":20,\"include\":"
                                  "[\"message.output_text.logprobs\"]");
            if (i % 5 == 2 && round)
                sv_buf_printf(&more, ",\"previous_response_id\":\"%s\"", ids[i - 1]);
            fd[i] = hub_connect(&r);
            hub_post(fd[i], AT, "", rsp_ask("on and on", more.data));
            sv_buf_fini(&more);
            if (i % 5 == 2 && round)
                snprintf(ids[i], sizeof ids[i], "resp_0"); /* it may be gone already */
            else
                rsp_id(fd[i], ids[i]);
        }
        for (int i = 0; i < CROWD; i++) {
            static const char *const rest[] = {"", "", "/cancel", "", "/input_items"};
            static const char *const method[] = {"GET", "DELETE", "POST", "GET", "GET"};
            int k = (i + round) % 6;
            bool fine = false;
            if (k == 5) {
                close(fd[i]);
                fd[i] = -1;
                continue;
            }
            int one = hub_connect(&r);
            snprintf(settings, sizeof settings, "%s %s%s", method[k], AT "/", ids[i]);
            hub_send_text(one, settings);
            hub_send_text(one, rest[k]);
            hub_send_text(one, " HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
            answer_read(one, &r.a);
            close(one);
            for (int n = 0; n < 3; n++)
                fine = fine || r.a.status == fits[n];
            if (!fine)
                fail_msg("%s gave %d", settings, r.a.status);
        }
        for (int i = 0; i < CROWD; i++) {
            if (fd[i] < 0)
                continue;
            if (i % 2 && strcmp(ids[i], "resp_0") != 0) {
                rsp_rest(fd[i], &more);
                assert_int_equal(hub_count(more.data, "event: response.incomplete\n"), 1);
                sv_buf_fini(&more);
            }
            close(fd[i]);
        }
    }
    hub_metric_becomes(&r, "salvo_running_sequences", 0);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(turns_go_on), cmocka_unit_test(long_conversations),
             cmocka_unit_test(the_cache_knows_the_first_turn),
             cmocka_unit_test(only_the_newest_are_kept), cmocka_unit_test(cancelled_while_it_runs),
             cmocka_unit_test(while_its_end_is_written), cmocka_unit_test(much_that_is_repeated),
             cmocka_unit_test(items_named_too_often), cmocka_unit_test(pages_have_an_end),
             cmocka_unit_test(a_crowd))
