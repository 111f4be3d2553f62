/*
 * test_responses.c - /v1/responses: answers whole and as events, conversations from items, turns
 * that go on from kept ones, what is kept and for how long, cancelling, refusals.
 */
#include "serve/hub.h"

#include "serve/impl.h"
#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define AT "/v1/responses"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"name\":\"get_weather\",\"strict\":null,\"parameters\":"   \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":"                \
    "{\"type\":\"integer\"}}}},{\"type\":\"function\",\"name\":\"b\"}]"
#define TWO_CALLS                                                                                  \
    "<think>\nIs it 1 < 2? \xc3\xa4\xe2\x82\xac\n</think>\n\nI look. \xf0\x9f\x98\x80\n"           \
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\"}}\n"       \
    "</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"
#define SHOW "{{ messages | tojson }}"

/* A server whose answer is what its template makes. */
static void open_hub(struct hub *r, const char *signs, const char *template, int32_t burst)
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

static void open_echo(struct hub *r, const char *signs, int32_t burst)
{
    open_hub(r, signs, "{{ messages[-1].content }}", burst);
}

/* A body whose input is this text. */
static const char *ask(const char *input, const char *more)
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
static const char *items(const char *list, const char *more)
{
    static struct sv_buf b;

    sv_buf_fini(&b);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"input\":[%s]%s%s}", list, *more ? "," : "", more);
    assert_false(b.failed);
    return b.data;
}

static json_t *answer(struct hub *r, const char *text, const char *more)
{
    return hub_json(r, AT, ask(text, more), 200);
}

/* Of a server that shows the messages, what the template was given. */
static json_t *shown(struct hub *r, json_t *response)
{
    const char *text = hub_text(response, "output.0.content.0.text");
    struct sv_err err;
    json_t *v = sv_json_parse(text, strlen(text), &err);

    if (!v)
        fail_msg("%s: %s", err.msg, text);
    json_array_append_new(r->answers, v);
    return v;
}

static const char *path_of(const char *id, const char *rest)
{
    static char path[400];

    snprintf(path, sizeof path, AT "/%s%s", id, rest);
    return path;
}

static json_t *send_empty(struct hub *r, const char *method, const char *path, int status)
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
    json_array_append_new(r->answers, v);
    return v;
}

/* ---------------------------------------------------------------- whole answers */

static void answers_are_items(void **state)
{
    struct hub r = {0};
    (void)state;

    open_echo(&r, "<tool_call> </think>", 5);
    json_t *v = answer(&r, TWO_CALLS, TOOLS ",\"metadata\":{\"a\":\"b\"},\"user\":\"me\"");
    assert_string_equal(hub_text(v, "object"), "response");
    assert_string_equal(hub_text(v, "status"), "completed");
    assert_string_equal(hub_text(v, "model"), "fake");
    assert_string_equal(hub_text(v, "metadata.a"), "b");
    assert_string_equal(hub_text(v, "user"), "me");
    assert_string_equal(hub_text(v, "tools.1.name"), "b");
    assert_string_equal(hub_text(v, "tool_choice"), "auto");
    assert_string_equal(hub_text(v, "text.format.type"), "text");
    assert_true(json_is_null(hub_at(v, "error")));
    assert_true(json_is_null(hub_at(v, "incomplete_details")));
    assert_true(json_is_null(hub_at(v, "max_output_tokens")));
    assert_true(json_is_true(hub_at(v, "store")));
    assert_int_equal(json_array_size(hub_at(v, "output")), 4);
    assert_string_equal(hub_text(v, "output.0.type"), "reasoning");
    assert_int_equal(json_array_size(hub_at(v, "output.0.summary")), 0);
    assert_string_equal(hub_text(v, "output.0.content.0.type"), "reasoning_text");
    assert_string_equal(hub_text(v, "output.0.content.0.text"),
                        "Is it 1 < 2? \xc3\xa4\xe2\x82\xac");
    assert_string_equal(hub_text(v, "output.1.type"), "message");
    assert_string_equal(hub_text(v, "output.1.role"), "assistant");
    assert_string_equal(hub_text(v, "output.1.content.0.type"), "output_text");
    assert_string_equal(hub_text(v, "output.1.content.0.text"), "I look. \xf0\x9f\x98\x80");
    assert_string_equal(hub_text(v, "output.2.type"), "function_call");
    assert_string_equal(hub_text(v, "output.2.name"), "get_weather");
    assert_string_equal(hub_text(v, "output.2.arguments"), "{\"city\": \"K\xc3\xb6ln\"}");
    assert_string_equal(hub_text(v, "output.3.arguments"), "{}");
    assert_true(strncmp(hub_text(v, "output.2.call_id"), "call_", 5) == 0);
    assert_string_not_equal(hub_text(v, "output.2.call_id"), hub_text(v, "output.3.call_id"));
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(hub_text(json_array_get(hub_at(v, "output"), i), "status"),
                            "completed");
    json_t *marks =
        hub_json(&r, "/tokenize",
                 "{\"prompt\":\"<think>\\nIs it 1 < 2? \xc3\xa4\xe2\x82\xac\\n</think>\"}", 200);
    assert_int_equal(hub_number(v, "usage.output_tokens_details.reasoning_tokens"),
                     hub_number(marks, "count"));
    assert_int_equal(hub_number(v, "usage.total_tokens"),
                     hub_number(v, "usage.input_tokens") + hub_number(v, "usage.output_tokens"));

    assert_null(hub_at(v, "output.2.namespace"));
    /* Some of an agent's tools come under a name of their own. */
    v = answer(
        &r, TWO_CALLS,
        "\"tools\":[{\"type\":\"function\",\"name\":\"get_weather\"},{\"type\":"
        "\"namespace\",\"name\":\"letters\",\"tools\":[{\"type\":\"function\",\"name\":\"b\"}]}]");
    assert_null(hub_at(v, "output.2.namespace"));
    assert_string_equal(hub_text(v, "output.3.namespace"), "letters");
    v = answer(&r, TWO_CALLS, TOOLS ",\"parallel_tool_calls\":false");
    assert_int_equal(json_array_size(hub_at(v, "output")), 3);
    assert_true(json_is_false(hub_at(v, "parallel_tool_calls")));
    v = answer(&r, TWO_CALLS, TOOLS ",\"include_reasoning\":false,\"tool_choice\":\"none\"");
    assert_int_equal(json_array_size(hub_at(v, "output")), 1);
    hub_close(&r);
}

static void answers_that_are_cut(void **state)
{
    struct hub r = {0};
    (void)state;

    open_echo(&r, "<tool_call> </think>", 2);
    json_t *v = answer(&r, "one two three four five six", "\"max_output_tokens\":3");
    assert_string_equal(hub_text(v, "status"), "incomplete");
    assert_string_equal(hub_text(v, "incomplete_details.reason"), "max_output_tokens");
    assert_string_equal(hub_text(v, "output.0.status"), "incomplete");
    assert_int_equal(hub_number(v, "max_output_tokens"), 3);
    assert_int_equal(hub_number(v, "usage.output_tokens"), 3);
    /* Within a call: what was over stays complete. */
    v = answer(
        &r,
        "Hm. <tool_call>{\"name\":\"b\",\"arguments\":{\"xyz\": \"some text and more of it, and then some more, and on and on it goes\"}}",
        TOOLS ",\"max_output_tokens\":28");
    assert_string_equal(hub_text(v, "output.0.status"), "completed");
    assert_string_equal(hub_text(v, "output.1.status"), "incomplete");
    assert_string_equal(hub_text(v, "output.1.name"), "b");
    v = answer(&r, "<think>on and on and on", "");
    assert_int_equal(json_array_size(hub_at(v, "output")), 1);
    assert_string_equal(hub_text(v, "output.0.type"), "reasoning");
    /* Nothing is a message, too. */
    v = answer(&r, "stop here", "\"stop\":\"stop\"");
    assert_string_equal(hub_text(v, "status"), "completed");
    assert_string_equal(hub_text(v, "output.0.content.0.text"), "");
    hub_close(&r);
}

/* ---------------------------------------------------------------- streams */

static bool is(json_t *e, const char *type)
{
    return strcmp(hub_text(e, "type"), type) == 0;
}

/* What a stream comes to: its last response, once its events are found to be in order and to say
 * the same as that. */
static json_t *follow(json_t *events)
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
            assert_true(is(e, i ? "response.in_progress" : "response.created"));
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
        if (is(e, "response.output_item.added")) {
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
        } else if (is(e, "response.content_part.added")) {
            assert_true(open == n_items && !call && !part && !text.len);
            assert_string_equal(hub_text(e, "part.text"), "");
            part = true;
        } else if (is(e, "response.output_text.delta") || is(e, "response.reasoning_text.delta") ||
                   is(e, "response.function_call_arguments.delta")) {
            const char *piece = hub_text(e, "delta");
            assert_true(open == n_items && (part || call) && !done);
            assert_true(is(e, message ? "response.output_text.delta"
                              : call  ? "response.function_call_arguments.delta"
                                      : "response.reasoning_text.delta"));
            assert_null(strstr(piece, "\xef\xbf\xbd")); /* no code point is cut */
            sv_buf_append(&text, piece, strlen(piece));
        } else if (is(e, "response.output_text.done") || is(e, "response.reasoning_text.done") ||
                   is(e, "response.function_call_arguments.done")) {
            sv_buf_lit(&text, "");
            assert_string_equal(hub_text(e, call ? "arguments" : "text"), text.data);
            assert_string_equal(hub_text(item, call ? "arguments" : "content.0.text"), text.data);
            assert_false(done);
            done = true;
        } else if (is(e, "response.content_part.done")) {
            assert_true(done && part);
            hub_same(hub_at(e, "part"), hub_at(item, "content.0"), "part");
            part = false;
        } else if (is(e, "response.output_item.done")) {
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

/* Without what differs between two answers to the same request. */
static json_t *plain(json_t *output)
{
    json_t *item;
    size_t i;

    json_array_foreach(output, i, item) {
        json_object_del(item, "id");
        json_object_del(item, "call_id");
    }
    return output;
}

static void is_its_answer(struct hub *r, const char *text)
{
    json_t *v = answer(r, text, TOOLS);
    json_t *s = follow(hub_events(r, AT, ask(text, TOOLS ",\"stream\":true")));

    hub_same(hub_at(s, "status"), hub_at(v, "status"), text);
    hub_same(hub_at(s, "usage.output_tokens_details"), hub_at(v, "usage.output_tokens_details"),
             text);
    hub_same(plain(hub_at(s, "output")), plain(hub_at(v, "output")), text);
}

static void streams_are_their_answers(void **state)
{
    (void)state;
    hub_each_answer(open_echo, is_its_answer);
}

/* Names, and that each is that of its data. */
static void events_have_names(void **state)
{
    static const char *const want[] = {"response.created",           "response.in_progress",
                                       "response.output_item.added", "response.content_part.added",
                                       "response.output_text.delta", "response.output_text.done",
                                       "response.content_part.done", "response.output_item.done",
                                       "response.completed"};
    struct hub r = {0};
    char name[64];
    (void)state;

    open_echo(&r, "", 64);
    hub_ask(&r, AT, ask("Good morning.", "\"stream\":true"), &r.a);
    const char *at = r.a.body.data;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        snprintf(name, sizeof name, "event: %s\ndata: {\"type\":\"%s\"", want[i], want[i]);
        if (strncmp(at, name, strlen(name)) != 0)
            fail_msg("%.120s is not %s", at, want[i]);
        at = strstr(at, "\n\n");
        assert_non_null(at);
        at += 2;
    }
    assert_string_equal(at, ""); /* and no [DONE] */
    hub_ask(&r, AT, ask("one two three four five", "\"stream\":true,\"max_output_tokens\":2"),
            &r.a);
    assert_int_equal(hub_count(r.a.body.data, "event: response.incomplete\n"), 1);
    assert_int_equal(hub_count(r.a.body.data, "event: response.completed\n"), 0);
    hub_close(&r);
}

/* Every token's, once, with the text behind the thought. */
static void log_probabilities(void **state)
{
    struct hub r = {0};
    json_t *e;
    size_t i, n = 0;
    (void)state;

    open_echo(&r, "</think>", 3);
#define INCLUDE "\"top_logprobs\":2,\"include\":[\"message.output_text.logprobs\"]"
    json_t *v = answer(&r, "<think>\nOne two three.\n</think>\n\nYes, I say.", INCLUDE);
    json_t *list = hub_at(v, "output.1.content.0.logprobs");
    int64_t want = hub_number(v, "usage.output_tokens") -
                   hub_number(v, "usage.output_tokens_details.reasoning_tokens");
    assert_int_equal(json_array_size(list), want);
    assert_int_equal(json_array_size(hub_at(list, "0.top_logprobs")), 2);
    json_t *events = hub_events(
        &r, AT,
        ask("<think>\nOne two three.\n</think>\n\nYes, I say.", INCLUDE ",\"stream\":true"));
    json_array_foreach(events, i, e) {
        if (is(e, "response.output_text.delta"))
            n += json_array_size(hub_at(e, "logprobs"));
        if (is(e, "response.output_text.done"))
            hub_same(hub_at(e, "logprobs"), list, "logprobs");
    }
    assert_in_range(n, (size_t)want - 3, (size_t)want); /* those without a text come with the end */
    hub_same(hub_at(follow(events), "output.1.content.0.logprobs"), list, "logprobs");
    v = answer(&r, "Yes.", "\"top_logprobs\":2");
    assert_int_equal(json_array_size(hub_at(v, "output.0.content.0.logprobs")), 0);
    hub_close(&r);
}

/* ---------------------------------------------------------------- conversations */

static void items_become_messages(void **state)
{
    static const char list[] =
        "{\"role\":\"developer\",\"content\":\"Be kind.\"},"
        "{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
        "\"a\"},{\"type\":\"input_text\",\"text\":\"b\"}]},"
        "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
        "\"Hm.\"}]},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"I look.\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"b\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call\",\"call_id\":\"c2\",\"name\":\"b\",\"arguments\":\"\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"one\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c2\",\"output\":[{\"type\":"
        "\"input_text\",\"text\":\"two\"}]},"
        "{\"type\":\"reasoning\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"So.\"}]},"
        "{\"type\":\"function_call\",\"call_id\":\"c3\",\"name\":\"b\",\"arguments\":\"{}\"},"
        "{\"type\":\"function_call_output\",\"call_id\":\"c3\",\"output\":\"\"},"
        "{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"},"
        "{\"role\":\"system\",\"content\":\"late\"}";
    static const char want[] =
        "[{\"role\":\"system\",\"content\":\"Do it.\\n\\nBe kind.\"},"
        "{\"role\":\"user\",\"content\":\"a\\nb\"},"
        "{\"role\":\"assistant\",\"content\":\"I look.\",\"reasoning_content\":\"Hm.\","
        "\"tool_calls\":[{\"id\":\"c1\",\"type\":\"function\",\"function\":{\"name\":\"b\","
        "\"arguments\":{}}},{\"id\":\"c2\",\"type\":\"function\",\"function\":{\"name\":\"b\","
        "\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c1\",\"content\":\"one\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c2\",\"content\":\"two\"},"
        "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"So.\",\"tool_calls\":[{"
        "\"id\":\"c3\",\"type\":\"function\",\"function\":{\"name\":\"b\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"c3\",\"content\":\"\"},"
        "{\"role\":\"assistant\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":\"y\"},"
        "{\"role\":\"system\",\"content\":\"late\"}]";
    struct hub r = {0};
    struct sv_err err;
    json_t *v = sv_json_parse(want, strlen(want), &err);
    (void)state;

    open_hub(&r, "", SHOW, 64);
    json_t *a = hub_json(&r, AT, items(list, "\"instructions\":\"Do it.\""), 200);
    hub_same(shown(&r, a), v, "messages");
    json_decref(v);
    a = hub_json(&r, AT, "{\"input\":\"hi\",\"instructions\":null,\"tools\":null}", 200);
    assert_int_equal(json_array_size(shown(&r, a)), 1);
    hub_close(&r);
}

static void turns_go_on(void **state)
{
    struct hub r = {0};
    char more[300], list[400];
    (void)state;

    open_hub(&r, "", SHOW, 64);
    json_t *one = answer(&r, "first", "\"instructions\":\"Only once.\"");
    const char *said = hub_text(one, "output.0.content.0.text"), *id = hub_text(one, "id");
    snprintf(more, sizeof more, "\"previous_response_id\":\"%s\"", id);
    json_t *two = answer(&r, "second", more), *m = shown(&r, two);
    assert_int_equal(json_array_size(m), 3); /* instructions are not carried over */
    assert_string_equal(hub_text(m, "0.content"), "first");
    assert_string_equal(hub_text(m, "1.role"), "assistant");
    assert_string_equal(hub_text(m, "1.content"), said);
    assert_string_equal(hub_text(m, "2.content"), "second");
    assert_string_equal(hub_text(two, "previous_response_id"), id);

    /* Streamed, with one of the turns before deleted: the others hold it. */
    json_t *gone = send_empty(&r, "DELETE", path_of(id, ""), 200);
    assert_true(json_is_true(hub_at(gone, "deleted")));
    hub_json(&r, path_of(id, ""), NULL, 404);
    send_empty(&r, "DELETE", path_of(id, ""), 404);
    json_t *e = hub_json(&r, AT, ask("x", more), 404);
    assert_string_equal(hub_text(e, "error.code"), "previous_response_not_found");
    assert_string_equal(hub_text(e, "error.param"), "previous_response_id");
    snprintf(more, sizeof more, "\"stream\":true,\"previous_response_id\":\"%s\"",
             hub_text(two, "id"));
    json_t *three = follow(hub_events(&r, AT, ask("third", more)));
    assert_int_equal(json_array_size(shown(&r, three)), 5);

    /* What was kept is what was answered. */
    json_t *kept = hub_json(&r, path_of(hub_text(three, "id"), ""), NULL, 200);
    hub_same(hub_at(kept, "output"), hub_at(three, "output"), "output");
    hub_same(hub_at(kept, "usage"), hub_at(three, "usage"), "usage");

    /* By its name alone, an item of any of them; and of one that nobody has. */
    snprintf(list, sizeof list,
             "{\"role\":\"user\",\"content\":\"now\"},{\"type\":\"item_reference\",\"id\":\"%s\"},"
             "{\"id\":\"%s\"}",
             hub_text(two, "output.0.id"), hub_text(three, "output.0.id"));
    m = shown(&r, hub_json(&r, AT, items(list, ""), 200));
    assert_int_equal(json_array_size(m), 3);
    assert_string_equal(hub_text(m, "1.content"), hub_text(two, "output.0.content.0.text"));
    assert_string_equal(hub_text(m, "2.content"), hub_text(three, "output.0.content.0.text"));
    e = hub_json(&r, AT, items("{\"type\":\"item_reference\",\"id\":\"msg_1\"}", ""), 404);
    assert_string_equal(hub_text(e, "error.param"), "input[0].id");

    /* Its items: pages, in both orders. */
    const char *at = hub_text(three, "id");
    json_t *page = hub_json(&r, path_of(at, "/input_items"), NULL, 200);
    assert_int_equal(json_array_size(hub_at(page, "data")), 5);
    assert_string_equal(hub_text(page, "data.0.content.0.text"), "third");
    assert_string_equal(hub_text(page, "data.4.content.0.text"), "first");
    assert_true(json_is_false(hub_at(page, "has_more")));
    page = hub_json(&r, path_of(at, "/input_items?limit=2&order=asc"), NULL, 200);
    assert_string_equal(hub_text(page, "data.0.content.0.text"), "first");
    assert_true(json_is_true(hub_at(page, "has_more")));
    hub_same(hub_at(page, "last_id"), hub_at(page, "data.1.id"), "last_id");
    snprintf(more, sizeof more, "/input_items?order=asc&after=%s", hub_text(page, "last_id"));
    page = hub_json(&r, path_of(at, more), NULL, 200);
    assert_int_equal(json_array_size(hub_at(page, "data")), 3);
    assert_string_equal(hub_text(page, "data.0.content.0.text"), "second");
    hub_json(&r, path_of(at, "/input_items?limit=0"), NULL, 400);
    /* Ids that clients chose stay, unless they would have to be quoted. */
    e = hub_json(&r, AT,
                 items("{\"id\":\"msg_x\",\"role\":\"user\",\"content\":\"a\"},"
                       "{\"id\":\"a\\\"b\",\"role\":\"user\",\"content\":\"c\"}",
                       ""),
                 200);
    page = hub_json(&r, path_of(hub_text(e, "id"), "/input_items?order=asc"), NULL, 200);
    assert_string_equal(hub_text(page, "first_id"), "msg_x");
    assert_true(strncmp(hub_text(page, "last_id"), "msg_", 4) == 0);
    hub_same(hub_at(page, "last_id"), hub_at(page, "data.1.id"), "last_id");
    hub_json(&r, path_of(at, "/input_items?order=up"), NULL, 400);
    hub_json(&r, path_of(at, "/input_items?after=x"), NULL, 400);
    hub_json(&r, path_of(at, "/output_items"), NULL, 404);
    hub_json(&r, path_of(at, "?stream=true"), NULL, 400);
    hub_close(&r);
}

/* A body that is read on the other thread, and one that only stands for a long one. */
static void long_conversations(void **state)
{
    struct hub r = {0};
    struct sv_buf text;
    char more[100];
    (void)state;

    open_hub(&r, "", "{{ messages | length }}", 8);
    sv_buf_init(&text);
    for (int i = 0; i < 3000; i++)
        sv_buf_lit(&text, "word ");
    json_t *v = answer(&r, text.data, ""), *e;
    for (int i = 0; i < 3; i++) {
        snprintf(more, sizeof more, "\"previous_response_id\":\"%s\"", hub_text(v, "id"));
        v = answer(&r, i == 1 ? text.data : "on", more);
    }
    assert_string_equal(hub_text(v, "output.0.content.0.text"), "7");
    e = hub_json(&r, path_of(hub_text(v, "id"), "/input_items?limit=100"), NULL, 200);
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
                           ask("Write a function that adds two numbers, and explain it.",
                               "\"temperature\":0,\"max_output_tokens\":400"),
                           200);
    assert_string_equal(hub_text(one, "status"), "completed");
    int64_t n = hub_number(one, "usage.total_tokens");
    snprintf(more, sizeof more,
             "\"temperature\":0,\"max_output_tokens\":10,\"previous_response_id\":\"%s\"",
             hub_text(one, "id"));
    json_t *two = hub_json(&r, AT, ask("And three?", more), 200);
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

    open_echo(&few, "", 8);
    for (int i = 0; i < 3; i++)
        v[i] = answer(&few, "a", "");
    hub_json(&few, path_of(hub_text(v[0], "id"), ""), NULL, 404);
    hub_json(&few, path_of(hub_text(v[1], "id"), ""), NULL, 200);
    hub_json(&few, path_of(hub_text(v[2], "id"), ""), NULL, 200);
    v[3] = answer(&few, "a", "\"store\":false");
    assert_true(json_is_false(hub_at(v[3], "store")));
    hub_json(&few, path_of(hub_text(v[3], "id"), ""), NULL, 404);
    hub_json(&few, path_of(hub_text(v[1], "id"), ""), NULL, 200);
    assert_int_equal(hub_metric(&few, "salvo_stored_responses"), 2);
    hub_close(&few);

    open_echo(&small, "", 8);
    for (int i = 0; i < 4; i++)
        v[i] = answer(&small, "a", "");
    hub_json(&small, path_of(hub_text(v[0], "id"), ""), NULL, 404);
    hub_json(&small, path_of(hub_text(v[3], "id"), ""), NULL, 200);
    assert_true(hub_metric(&small, "salvo_stored_responses_bytes") <= 6000);
    sv_buf_init(&text);
    for (int i = 0; i < 1500; i++)
        sv_buf_lit(&text, "word ");
    v[0] = answer(&small, text.data, "\"max_output_tokens\":1"); /* larger than all */
    hub_json(&small, path_of(hub_text(v[0], "id"), ""), NULL, 404);
    hub_json(&small, path_of(hub_text(v[3], "id"), ""), NULL, 200);
    sv_buf_fini(&text);
    hub_close(&small);

    open_echo(&none, "", 8);
    v[0] = answer(&none, "a", "\"store\":true");
    assert_true(json_is_false(hub_at(v[0], "store")));
    hub_json(&none, path_of(hub_text(v[0], "id"), ""), NULL, 404);
    send_empty(&none, "DELETE", path_of(hub_text(v[0], "id"), ""), 404);
    hub_close(&none);
}

/* ---------------------------------------------------------------- cancelling, failing */

/* The id of a stream that has begun. */
static void read_id(int fd, char id[64])
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

static void rest_of(int fd, struct sv_buf *b)
{
    char part[4096];
    ssize_t n;

    sv_buf_init(b);
    while (!b->data || !strstr(b->data, "\r\n0\r\n")) {
        n = read(fd, part, sizeof part);
        assert_true(n > 0);
        sv_buf_append(b, part, (size_t)n);
    }
}

static void cancelled_while_it_runs(void **state)
{
    struct hub r = {.fake.step_us = 2000};
    struct sv_buf rest;
    struct answer a;
    char id[64];
    (void)state;

    open_echo(&r, "", 1);
    const char *body = ask("on and on", "\"ignore_eos\":true,\"stream\":true");
    int fd = hub_connect(&r);
    hub_post(fd, AT, "", body);
    read_id(fd, id);
    json_t *v = hub_json(&r, path_of(id, ""), NULL, 200);
    assert_string_equal(hub_text(v, "status"), "in_progress");
    hub_json(&r, path_of(id, "/input_items"), NULL, 404);
    v = send_empty(&r, "POST", path_of(id, "/cancel"), 200);
    assert_string_equal(hub_text(v, "status"), "cancelled");
    rest_of(fd, &rest);
    close(fd);
    assert_int_equal(hub_count(rest.data, "event: response.incomplete\n"), 1);
    assert_int_equal(hub_count(rest.data, "\"status\":\"cancelled\""), 1);
    sv_buf_fini(&rest);
    v = hub_json(&r, path_of(id, ""), NULL, 200);
    assert_string_equal(hub_text(v, "status"), "cancelled");
    assert_true(strlen(hub_text(v, "output.0.content.0.text")) > 1);
    v = send_empty(&r, "POST", path_of(id, "/cancel"), 400);
    assert_string_equal(hub_text(v, "error.param"), "response_id");
    send_empty(&r, "POST", path_of("resp_0", "/cancel"), 404);
    send_empty(&r, "POST", path_of(id, "/stop"), 404);

    /* Who waits for the whole gets what there is; /abort_request knows it by its request's name. */
    answer_init(&a);
    double before = hub_metric(&r, "salvo_generated_tokens_total");
    fd = hub_connect(&r);
    hub_post(fd, AT, "X-Request-Id: mine\r\n", ask("on and on", "\"ignore_eos\":true"));
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

static void a_device_that_fails(void **state)
{
    struct hub r = {.fake.fail_at_step = 6, .fake.step_us = 1000};
    (void)state;

    open_echo(&r, "", 1);
    hub_ask(&r, AT, ask("one two three four five six seven eight nine ten", "\"stream\":true"),
            &r.a);
    assert_int_equal(r.a.status, 200);
    const char *at = strstr(r.a.body.data, "event: response.failed\n");
    assert_non_null(at);
    assert_non_null(strstr(at, "\"status\":\"failed\""));
    assert_non_null(strstr(at, "\"error\":{\"code\":\"server_error\",\"message\":\""));
    assert_null(strstr(r.a.body.data, "[DONE]"));
    assert_int_equal(hub_count(r.a.body.data, "event: response.output_item.done\n"), 1);
    hub_close(&r);
}

/* ---------------------------------------------------------------- forms and calls */

static void forms_of_answers(void **state)
{
    struct hub r = {.real = true, .o.tool_parser = "hermes"};
    struct sv_err err;
    (void)state;

    hub_open(&r, false);
    json_t *v =
        hub_json(&r, AT,
                 ask("Who?", "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":"
                             "\"who\",\"schema\":{\"type\":\"object\",\"properties\":{\"a\":"
                             "{\"type\":\"integer\",\"maximum\":9,\"minimum\":0}},"
                             "\"required\":[\"a\"]}}}"),
                 200);
    const char *text = hub_text(v, "output.0.content.0.text");
    json_t *made = sv_json_parse(text, strlen(text), &err);
    assert_in_range(hub_number(made, "a"), 0, 9);
    json_decref(made);
    assert_string_equal(hub_text(v, "text.format.name"), "who");
    v = hub_json(&r, AT,
                 ask("Who?", "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"who\","
                             "\"schema\":{\"type\":\"thing\"}}}"),
                 400);
    assert_string_equal(hub_text(v, "error.param"), "text.format.schema");

#define THREE                                                                                      \
    "\"temperature\":1,\"max_output_tokens\":120,\"tools\":[{\"type\":\"function\",\"name\":"      \
    "\"f\"},{\"type\":\"function\",\"name\":\"g\"},{\"type\":\"function\",\"name\":\"h\"}],"       \
    "\"tool_choice\":{\"type\":"
    v = hub_json(&r, AT, ask("Go.", THREE "\"function\",\"name\":\"g\"}"), 200);
    assert_string_equal(hub_text(v, "output.0.name"), "g");
    for (int i = 0; i < 4; i++) {
        char more[400];
        snprintf(more, sizeof more,
                 THREE "\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\","
                       "\"name\":\"f\"},{\"type\":\"function\",\"name\":\"h\"}]},\"seed\":%d,"
                       "\"parallel_tool_calls\":false",
                 i);
        v = hub_json(&r, AT, ask("Go.", more), 200);
        assert_non_null(strchr("fh", *hub_text(v, "output.0.name")));
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- refusals */

static void what_is_refused(void **state)
{
    static const char *const list[][2] = {
        {"{}", "input"},
        {"{\"input\":[]}", "input"},
        {"{\"input\":5}", "input"},
        {"{\"input\":[5]}", "input[0]"},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"a\"},{\"type\":\"thing\"}]}",
         "input[1].type"},
        {"{\"input\":[{\"type\":\"web_search_call\"}]}", "input[0].type"},
        {"{\"input\":[{\"role\":\"robot\",\"content\":\"a\"}]}", "input[0].role"},
        {"{\"input\":[{\"content\":\"a\"}]}", "input[0].role"},
        {"{\"input\":[{\"role\":\"user\"}]}", "input[0].content"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"a\"},"
         "{\"type\":\"input_image\"}]}]}",
         "input[0].content[1].type"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}",
         "input[0].content[0].type"},
        {"{\"input\":[{\"type\":\"function_call\",\"name\":\"a\",\"arguments\":\"\"}]}",
         "input[0].call_id"},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"arguments\":\"\"}]}",
         "input[0].name"},
        {"{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"a\"}]}",
         "input[0].arguments"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"a\"}]}", "input[0].output"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"output\":\"a\"}]}", "input[0].call_id"},
        {"{\"input\":[{\"type\":\"reasoning\",\"summary\":\"a\"}]}", "input[0].summary"},
        {"{\"input\":[{\"type\":\"reasoning\",\"content\":[{}]}]}", "input[0].content[0].text"},
        {"{\"input\":\"a\",\"instructions\":[]}", "instructions"},
        {"{\"input\":\"a\",\"background\":true}", "background"},
        {"{\"input\":\"a\",\"background\":1}", "background"},
        {"{\"input\":\"a\",\"truncation\":\"auto\"}", "truncation"},
        {"{\"input\":\"a\",\"conversation\":\"c\"}", "conversation"},
        {"{\"input\":\"a\",\"prompt\":{\"id\":\"p\"}}", "prompt"},
        {"{\"input\":\"a\",\"store\":1}", "store"},
        {"{\"input\":\"a\",\"include\":[\"everything\"]}", "include[0]"},
        {"{\"input\":\"a\",\"include\":\"a\"}", "include"},
        {"{\"input\":\"a\",\"metadata\":{\"a\":1}}", "metadata.a"},
        {"{\"input\":\"a\",\"reasoning\":{\"effort\":1}}", "reasoning.effort"},
        {"{\"input\":\"a\",\"reasoning\":{\"budget\":1}}", "reasoning.budget"},
        {"{\"input\":\"a\",\"text\":{\"style\":1}}", "text.style"},
        {"{\"input\":\"a\",\"text\":{\"verbosity\":1}}", "text.verbosity"},
        {"{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"xml\"}}}", "text.format.type"},
        {"{\"input\":\"a\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}",
         "text.format.schema"},
        {"{\"input\":\"a\",\"text\":{\"format\":5}}", "text.format"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0].type"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}}]}",
         "tools[0].name"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":"
         "\"function\"}]}]}",
         "tools[0].tools[0].name"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[{\"type\":"
         "\"namespace\",\"tools\":[]}]}]}",
         "tools[0].tools[0].type"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"a\",\"parameters\":5}]}",
         "tools[0].parameters"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"a\",\"strict\":5}]}",
         "tools[0].strict"},
        {"{\"input\":\"a\"," TOOLS ",\"tool_choice\":{\"type\":\"web_search\"}}", "tool_choice"},
        {"{\"input\":\"a\"," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"name\":\"c\"}}",
         "tool_choice"},
        {"{\"input\":\"a\"," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\","
         "\"tools\":[{\"type\":\"function\",\"name\":\"c\"}]}}",
         "tool_choice"},
        {"{\"input\":\"a\"," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[]}}",
         "tool_choice"},
        {"{\"input\":\"a\",\"max_output_tokens\":0}", "max_output_tokens"},
        {"{\"input\":\"a\",\"max_tokens\":5}", "max_tokens"},
        {"{\"input\":\"a\",\"messages\":[]}", "messages"},
        {"{\"input\":\"a\",\"n\":2}", "n"},
        {"{\"input\":\"a\",\"temperature\":\"warm\"}", "temperature"},
    };
    struct hub r = {0};
    (void)state;

    open_echo(&r, "<tool_call>", 1);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        json_t *v = hub_json(&r, AT, list[i][0], 400);
        if (!json_is_string(hub_at(v, "error.param")) ||
            strcmp(hub_text(v, "error.param"), list[i][1]) != 0)
            fail_msg("%s: %s", list[i][0], json_dumps(v, 0));
        assert_string_equal(hub_text(v, "error.type"), "invalid_request_error");
    }
    hub_json(&r, AT,
             ask("a", "\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\",\"service_tier\":"
                      "\"auto\",\"max_tool_calls\":3,\"truncation\":\"disabled\",\"background\":"
                      "false,\"stream_options\":{\"include_obfuscation\":false},\"seed\":3,"
                      "\"top_k\":5,\"width\":1,\"chat_template_kwargs\":{},\"reasoning\":"
                      "{\"effort\":\"low\",\"summary\":\"auto\"},\"text\":{\"verbosity\":\"low\"},"
                      "\"include\":[\"reasoning.encrypted_content\"],\"tools\":[]"),
             200);
    struct sv_buf text;
    sv_buf_init(&text);
    for (int i = 0; i < 5000; i++)
        sv_buf_lit(&text, "word ");
    json_t *e = hub_json(&r, AT, ask(text.data, ""), 400);
    assert_string_equal(hub_text(e, "error.code"), "context_length_exceeded");
    assert_string_equal(hub_text(e, "error.param"), "input");
    sv_buf_fini(&text);
    hub_json(&r, path_of("resp_0", ""), NULL, 404);
    send_empty(&r, "PUT", path_of("resp_0", ""), 405);
    hub_close(&r);
}

/* Whatever of a body found no memory, it is refused, and nothing stays behind. */
static void memory_that_runs_out(void **state)
{
    static const char list[] =
        "{\"input\":[{\"role\":\"developer\",\"content\":\"d\"},{\"role\":\"user\",\"content\":"
        "[{\"type\":\"input_text\",\"text\":\"a\"}]},{\"type\":\"reasoning\",\"summary\":[],"
        "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"b\"}]},{\"role\":\"assistant\","
        "\"content\":\"e\"},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
        "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":"
        "\"d\"}],\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":"
        "\"object\"},\"strict\":true}],\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":"
        "\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}]}}";
    static struct sv_params p;
    struct sv_err err;
    json_t *root = sv_json_parse(list, sizeof list - 1, &err);
    int64_t live = sv_alloc_live(), nth = 0;
    int rc = -1;
    (void)state;

    while (rc) {
        struct sv_api_err e = {0};
        struct sv_buf lines;
        sv_buf_init(&lines);
        sv_fault_arm(++nth);
        rc = sv_params_read(&p, SV_RESPONSES, root, &e);
        if (!rc)
            rc = sv_responses_messages(&p, NULL, NULL, "0", &lines, &e);
        bool hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        assert_int_equal(!hit, !rc);
        assert_int_equal(e.status, rc ? 500 : 0);
        sv_params_fini(&p);
        sv_buf_fini(&lines);
        assert_int_equal(sv_alloc_live(), live);
        assert_true(nth < 10000);
    }
    assert_true(nth > 100);
    json_decref(root);
}

SV_TEST_MAIN(cmocka_unit_test(answers_are_items), cmocka_unit_test(answers_that_are_cut),
             cmocka_unit_test(streams_are_their_answers), cmocka_unit_test(events_have_names),
             cmocka_unit_test(log_probabilities), cmocka_unit_test(items_become_messages),
             cmocka_unit_test(turns_go_on), cmocka_unit_test(long_conversations),
             cmocka_unit_test(the_cache_knows_the_first_turn),
             cmocka_unit_test(only_the_newest_are_kept), cmocka_unit_test(cancelled_while_it_runs),
             cmocka_unit_test(a_device_that_fails), cmocka_unit_test(forms_of_answers),
             cmocka_unit_test(what_is_refused), cmocka_unit_test(memory_that_runs_out))
