/*
 * test_kept.c - answers of /v1/responses that are kept: turns that go on from them, what is kept
 * and for how long, reading, cancelling and deleting them at every moment.
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
    hub_same(hub_at(kept, "usage"), hub_at(three, "usage"), "usage");

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
    struct hub r = {.fake.step_us = 2000};
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

SV_TEST_MAIN(cmocka_unit_test(turns_go_on), cmocka_unit_test(long_conversations),
             cmocka_unit_test(the_cache_knows_the_first_turn),
             cmocka_unit_test(only_the_newest_are_kept), cmocka_unit_test(cancelled_while_it_runs))
