/*
 * responses.c - what tests of /v1/responses share: servers whose answers are what a template makes,
 * requests, and streams that are followed to their end.
 */
#include "serve/responses.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A server whose answer is what its template makes. */
void rsp_open(struct hub *r, const char *signs, const char *template, int32_t burst)
{
    bool on_and_on = r->fake.step_us; /* for those that look at an answer while it is made */
    const char *path = sv_test_tmp("shown.jinja");
    struct sv_err err;
    char text[300];

    snprintf(text, sizeof text, "{# %s #}%s", signs, template);
    assert_int_equal(sv_file_write(path, text, strlen(text), &err), SV_OK);
    r->o.chat_template = path;
    r->fake.burst = burst;
    r->fake.once = !on_and_on;
    hub_open(r, false);
}

void rsp_echo(struct hub *r, const char *signs, int32_t burst)
{
    rsp_open(r, signs, "{{ messages[-1].content }}", burst);
}

/* A body whose input is this text. */
const char *rsp_ask(const char *input, const char *more)
{
    static struct sv_buf b; /* of the test's process, which ends with it */

    sv_buf_fini(&b);
    sv_buf_init(&b);
    sv_buf_lit(&b, "{\"input\":");
    sv_json_quote(&b, input, strlen(input));
    sv_buf_printf(&b, "%s%s}", *more ? "," : "", more);
    assert_false(b.failed);
    return b.data;
}

/* A body whose input is these items. */
const char *rsp_items(const char *list, const char *more)
{
    static struct sv_buf b;

    sv_buf_fini(&b);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"input\":[%s]%s%s}", list, *more ? "," : "", more);
    assert_false(b.failed);
    return b.data;
}

json_t *rsp_answer(struct hub *r, const char *text, const char *more)
{
    return hub_json(r, AT, rsp_ask(text, more), 200);
}

/* Of a server that shows the messages, what the template was given. */
json_t *rsp_shown(struct hub *r, json_t *response)
{
    const char *text = hub_text(response, "output.0.content.0.text");
    struct sv_err err;
    json_t *v = sv_json_parse(text, strlen(text), &err);

    if (!v)
        fail_msg("%s: %s", err.msg, text);
    json_array_append_new(r->answers, v);
    return v;
}

const char *rsp_path(const char *id, const char *rest)
{
    static char path[400];

    snprintf(path, sizeof path, AT "/%s%s", id, rest);
    return path;
}

json_t *rsp_send_empty(struct hub *r, const char *method, const char *path, int status)
{
    char head[600];
    int fd = hub_connect(r);
    struct sv_err err;

    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", method,
             path);
    hub_send_text(fd, head);
    answer_read(fd, &r->a);
    close(fd);
    if (r->a.status != status)
        fail_msg("%s %s gave %d: %s", method, path, r->a.status, r->a.body.data);
    json_t *v = sv_json_parse(r->a.body.data, r->a.body.len, &err);
    assert_non_null(v);
    r->answers = r->answers ? r->answers : json_array();
    json_array_append_new(r->answers, v);
    return v;
}

/* ---------------------------------------------------------------- streams */

bool rsp_is(json_t *e, const char *type)
{
    return strcmp(hub_text(e, "type"), type) == 0;
}

/* What a stream comes to: its last response, once its events are found to be in order and to say
 * the same as that. */
json_t *rsp_follow(json_t *events)
{
    json_t *e, *last = json_array_get(events, json_array_size(events) - 1);
    int64_t open = -1, n_items = 0;
    bool part = false, done = false;
    struct sv_buf text;
    size_t i;

    sv_buf_init(&text);
    json_array_foreach(events, i, e) {
        assert_int_equal(hub_number(e, "sequence_number"), i);
        if (i < 2) {
            assert_true(rsp_is(e, i ? "response.in_progress" : "response.created"));
            assert_string_equal(hub_text(e, "response.status"), "in_progress");
            hub_same(hub_at(e, "response.id"), hub_at(last, "response.id"), "id");
            continue;
        }
        if (i == json_array_size(events) - 1)
            break;
        assert_int_equal(hub_number(e, "output_index"), n_items);
        json_t *item = json_array_get(hub_at(last, "response.output"), (size_t)n_items);
        bool message = strcmp(hub_text(item, "type"), "message") == 0,
             call = strcmp(hub_text(item, "type"), "function_call") == 0;
        if (hub_at(e, "item_id"))
            hub_same(hub_at(e, "item_id"), hub_at(item, "id"), "item_id");
        if (rsp_is(e, "response.output_item.added")) {
            assert_int_equal(open, -1);
            open = n_items;
            done = false;
            sv_buf_clear(&text);
            hub_same(hub_at(e, "item.id"), hub_at(item, "id"), "id");
            hub_same(hub_at(e, "item.type"), hub_at(item, "type"), "type");
            assert_string_equal(hub_text(e, "item.status"), "in_progress");
            if (call) {
                assert_string_equal(hub_text(e, "item.arguments"), "");
                hub_same(hub_at(e, "item.call_id"), hub_at(item, "call_id"), "call_id");
            } else {
                assert_int_equal(json_array_size(hub_at(e, "item.content")), 0);
            }
        } else if (rsp_is(e, "response.content_part.added")) {
            assert_true(open == n_items && !call && !part && !text.len);
            assert_string_equal(hub_text(e, "part.text"), "");
            part = true;
        } else if (rsp_is(e, "response.output_text.delta") ||
                   rsp_is(e, "response.reasoning_text.delta") ||
                   rsp_is(e, "response.function_call_arguments.delta")) {
            const char *piece = hub_text(e, "delta");
            assert_true(open == n_items && (part || call) && !done);
            assert_true(rsp_is(e, message ? "response.output_text.delta"
                                  : call  ? "response.function_call_arguments.delta"
                                          : "response.reasoning_text.delta"));
            assert_null(strstr(piece, "\xef\xbf\xbd")); /* no code point is cut */
            sv_buf_append(&text, piece, strlen(piece));
        } else if (rsp_is(e, "response.output_text.done") ||
                   rsp_is(e, "response.reasoning_text.done") ||
                   rsp_is(e, "response.function_call_arguments.done")) {
            sv_buf_lit(&text, "");
            assert_string_equal(hub_text(e, call ? "arguments" : "text"), text.data);
            assert_string_equal(hub_text(item, call ? "arguments" : "content.0.text"), text.data);
            assert_false(done);
            done = true;
        } else if (rsp_is(e, "response.content_part.done")) {
            assert_true(done && part);
            hub_same(hub_at(e, "part"), hub_at(item, "content.0"), "part");
            part = false;
        } else if (rsp_is(e, "response.output_item.done")) {
            assert_true(done && !part);
            hub_same(hub_at(e, "item"), item, "item");
            open = -1;
            n_items++;
        } else {
            fail_msg("an event %s", hub_text(e, "type"));
        }
    }
    assert_int_equal(open, -1);
    assert_int_equal(json_array_size(hub_at(last, "response.output")), n_items);
    sv_buf_fini(&text);
    return hub_at(last, "response");
}

/* The id of a stream that has begun. */
void rsp_id(int fd, char id[64])
{
    char seen[4096];
    size_t n = 0;
    char *at = NULL;

    while (!at || strlen(at) < 60) {
        ssize_t k = read(fd, seen + n, 1);
        assert_true(k == 1 && n < sizeof seen - 2);
        seen[++n] = 0;
        at = strstr(seen, "\"id\":\"resp_");
    }
    snprintf(id, 64, "%.37s", at + 6);
}

void rsp_rest(int fd, struct sv_buf *b)
{
    static const char last[] = "\r\n0\r\n";
    char part[4096];
    size_t from = 0;
    ssize_t n;

    sv_buf_init(b);
    while (!b->data || !strstr(b->data + from, last)) {
        from = b->len > sizeof last ? b->len - sizeof last : 0;
        n = read(fd, part, sizeof part);
        assert_true(n > 0);
        sv_buf_append(b, part, (size_t)n);
    }
}
