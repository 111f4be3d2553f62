/*
 * test_keys.c - clients with different API keys on one server: cached prefixes, stored answers and
 * running requests of one are neither visible to nor ended by another.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#define RESPONSES "/v1/responses"

/* A server with these keys, a line each. */
static void open_keys(struct hub *r, const char *keys)
{
    const char *file = sv_test_tmp("keys");
    struct sv_err err;

    assert_int_equal(sv_file_write(file, keys, strlen(keys), &err), SV_OK);
    r->o.api_key_file = file;
    hub_open(r, false);
}

static void send_as(int fd, const char *key, const char *method, const char *path, const char *body)
{
    struct sv_buf b;

    sv_buf_init(&b);
    sv_buf_printf(&b,
                  "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
                  "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                  method, path, key, strlen(body), body);
    hub_send(fd, b.data, b.len);
    sv_buf_fini(&b);
}

/* A whole exchange; the answer is in r->a. */
static void ask_as(struct hub *r, const char *key, const char *method, const char *path,
                   const char *body, int status)
{
    int fd = hub_connect(r);

    send_as(fd, key, method, path, body);
    answer_read(fd, &r->a);
    close(fd);
    if (r->a.status != status)
        fail_msg("%s %s as %s gave %d: %s", method, path, key, r->a.status, r->a.body.data);
}

/* The same, for an answer that is JSON; borrowed until close. */
static json_t *json_as(struct hub *r, const char *key, const char *method, const char *path,
                       const char *body, int status)
{
    struct sv_err err;

    ask_as(r, key, method, path, body, status);
    json_t *v = sv_json_parse(r->a.body.data, r->a.body.len, &err);
    assert_non_null(v);
    r->answers = r->answers ? r->answers : json_array();
    json_array_append_new(r->answers, v);
    return v;
}

/* ---------------------------------------------------------------- prefixes */

static int64_t cached_as(struct hub *r, const char *key, const char *more)
{
    char body[400];

    snprintf(body, sizeof body,
             "{\"prompt\":\"The password of the vault in Geneva is 8841-XK and nobody must know "
             "that it is so, he said to her.\",\"max_tokens\":1%s}",
             more);
    return hub_number(json_as(r, key, "POST", TEXT, body, 200),
                      "usage.prompt_tokens_details.cached_tokens");
}

static void prefixes_of_each_key(void **state)
{
    static const char salt[] = ",\"cache_salt\":\"a\"";
    struct hub r = {.real = true};
    (void)state;

    open_keys(&r, "alpha\nalpha\nbeta\n");
    assert_int_equal(cached_as(&r, "alpha", ""), 0);
    assert_true(cached_as(&r, "alpha", "") >= 16);
    assert_int_equal(cached_as(&r, "beta", ""), 0);
    assert_true(cached_as(&r, "beta", "") >= 16);
    /* A salt of the request's own divides them further, and is not shared either. */
    assert_int_equal(cached_as(&r, "alpha", salt), 0);
    assert_true(cached_as(&r, "alpha", salt) >= 16);
    assert_int_equal(cached_as(&r, "beta", salt), 0);
    hub_close(&r);
}

static void one_pool_of_prefixes(void **state)
{
    static const char *const keys[] = {"alpha\nbeta\n", "alpha\n"};
    (void)state;

    for (int i = 0; i < 2; i++) { /* asked for; with a single key */
        struct hub r = {.real = true, .o.share_prefixes = i == 0};
        open_keys(&r, keys[i]);
        assert_int_equal(cached_as(&r, "alpha", ""), 0);
        assert_true(cached_as(&r, i ? "alpha" : "beta", "") >= 16);
        hub_close(&r);
    }
}

static void for_all_clients(void **state)
{
    static const char *const paths[] = {"/flush_cache", "/reset_prefix_cache"};
    (void)state;

    for (int share = 0; share < 2; share++)
        for (int many = 0; many < 2; many++) {
            struct hub r = {.o.share_prefixes = share};
            open_keys(&r, many ? "alpha\nbeta\n" : "alpha\n");
            for (int i = 0; i < 2; i++)
                ask_as(&r, "alpha", "POST", paths[i], "", many ? 403 : 200);
            ask_as(&r, "alpha", "POST", "/replicas/0/drain", "", many ? 403 : 409);
            hub_close(&r);
        }
}

/* ---------------------------------------------------------------- kept responses */

static void responses_of_each_key(void **state)
{
    static const char *const rest[] = {"", "/input_items"};
    struct hub r = {.fake.once = true};
    char path[200], body[400];
    (void)state;

    open_keys(&r, "alpha\nbeta\n");
    json_t *v = json_as(&r, "alpha", "POST", RESPONSES, "{\"input\":\"mine\"}", 200);
    const char *id = hub_text(v, "id"), *item = hub_text(v, "output.0.id");
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, RESPONSES "/%s%s", id, rest[i]);
        ask_as(&r, "beta", "GET", path, "", 404);
        ask_as(&r, "alpha", "GET", path, "", 200);
    }
    snprintf(path, sizeof path, RESPONSES "/%s", id);
    snprintf(body, sizeof body, "{\"input\":\"on\",\"previous_response_id\":\"%s\"}", id);
    json_t *e = json_as(&r, "beta", "POST", RESPONSES, body, 404);
    assert_string_equal(hub_text(e, "error.code"), "previous_response_not_found");
    ask_as(&r, "alpha", "POST", RESPONSES, body, 200);
    snprintf(body, sizeof body, "{\"input\":[{\"type\":\"item_reference\",\"id\":\"%s\"}]}", item);
    e = json_as(&r, "beta", "POST", RESPONSES, body, 404);
    assert_string_equal(hub_text(e, "error.code"), "item_not_found");
    ask_as(&r, "alpha", "POST", RESPONSES, body, 200);
    ask_as(&r, "beta", "DELETE", path, "", 404);
    ask_as(&r, "alpha", "DELETE", path, "", 200);
    hub_close(&r);
}

/* ---------------------------------------------------------------- requests that run */

static double running(struct hub *r)
{
    static const char name[] = "\nsalvo_running_sequences ";

    ask_as(r, "alpha", "GET", "/metrics", "", 200);
    const char *at = strstr(r->a.body.data, name);
    assert_non_null(at);
    return strtod(at + sizeof name - 1, NULL);
}

enum { LENGTH = 300 };

static void begin_two(struct hub *r, int fd[2])
{
    static const char *const keys[] = {"alpha", "beta"};
    char body[200];

    snprintf(body, sizeof body,
             "{\"text\":\"abc\",\"rid\":\"same\",\"sampling_params\":{\"max_new_tokens\":%d,"
             "\"stop\":\"a secret word\"}}",
             LENGTH);
    hub_let(r, 10);
    for (int i = 0; i < 2; i++) {
        fd[i] = hub_connect(r);
        send_as(fd[i], keys[i], "POST", "/generate", body);
    }
    for (int64_t end = sv_clock_us() + 60000000; running(r) < 2; hub_nap_ms(5))
        assert_true(sv_clock_us() < end);
}

/* Alpha's request was ended, and beta's goes on to its length. */
static void first_was_aborted(struct hub *r, int fd[2])
{
    for (int i = 0; i < 2; i++) {
        if (i)
            hub_let(r, LENGTH);
        answer_read(fd[i], &r->a);
        close(fd[i]);
        assert_int_equal(r->a.status, 200);
        const char *reason = i ? "\"type\":\"length\"" : "\"type\":\"abort\"";
        if (!strstr(r->a.body.data, reason))
            fail_msg("not %s: %s", reason, r->a.body.data);
    }
}

static void requests_of_each_key(void **state)
{
    struct hub r = {.held = true};
    int fd[2];
    (void)state;

    open_keys(&r, "alpha\nbeta\n");
    for (int all = 0; all < 2; all++) {
        begin_two(&r, fd);
        ask_as(&r, "alpha", "GET", "/slots", "", 200); /* with its own settings alone */
        assert_int_equal(hub_count(r.a.body.data, "\"is_processing\":true"), 2);
        assert_int_equal(hub_count(r.a.body.data, "a secret word"), 1);
        ask_as(&r, "alpha", "POST", "/abort_request",
               all ? "{\"abort_all\":true}" : "{\"rid\":\"same\"}", 200);
        first_was_aborted(&r, fd);
    }
    hub_close(&r);
}

/* A response while it is made. */
static void cancelling(void **state)
{
    struct hub r = {.fake.step_us = 10000};
    char path[200], text[2048] = "";
    size_t n = 0;
    (void)state;

    open_keys(&r, "alpha\nbeta\n");
    int fd = hub_connect(&r);
    send_as(fd, "alpha", "POST", RESPONSES,
            "{\"input\":\"abc\",\"stream\":true,\"max_output_tokens\":4000}");
    while (!strstr(text, "\"resp_") || !strchr(strstr(text, "\"resp_") + 1, '"')) {
        assert_true(n < sizeof text - 1 && read(fd, text + n, 1) == 1);
        text[++n] = 0;
    }
    const char *id = strstr(text, "\"resp_") + 1;
    int length = (int)strcspn(id, "\"");
    snprintf(path, sizeof path, RESPONSES "/%.*s", length, id);
    ask_as(&r, "beta", "GET", path, "", 404);
    ask_as(&r, "beta", "DELETE", path, "", 404);
    ask_as(&r, "alpha", "GET", path, "", 200);
    snprintf(path, sizeof path, RESPONSES "/%.*s/cancel", length, id);
    ask_as(&r, "beta", "POST", path, "", 404);
    json_t *v = json_as(&r, "alpha", "POST", path, "", 200);
    assert_string_equal(hub_text(v, "status"), "cancelled");
    close(fd);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(prefixes_of_each_key), cmocka_unit_test(one_pool_of_prefixes),
             cmocka_unit_test(for_all_clients), cmocka_unit_test(responses_of_each_key),
             cmocka_unit_test(requests_of_each_key), cmocka_unit_test(cancelling))
