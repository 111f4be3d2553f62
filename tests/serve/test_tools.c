/*
 * test_tools.c - chats with tools and reasoning on the instant engine, whose answer is the last
 * message: requests that are refused, messages, streams byte by byte and in bursts, special tokens.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>

#define CHAT "/v1/chat/completions"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":"     \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":"                \
    "{\"type\":\"integer\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"b\"}}]"
#define TWO_CALLS                                                                                  \
    "<think>\nIs it 1 < 2? \xc3\xa4\xe2\x82\xac\n</think>\n\nI look.\n<tool_call>\n"               \
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\"}}\n</tool_call>\n"      \
    "<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"

/* A server whose prompt is the last message, with what else its template says. */
static void open_hub(struct hub *r, const char *signs, int32_t burst)
{
    const char *path = sv_test_tmp("echo.jinja");
    struct sv_err err;
    char text[200];

    snprintf(text, sizeof text, "{# %s #}{{ messages[-1].content }}", signs);
    assert_int_equal(sv_file_write(path, text, strlen(text), &err), SV_OK);
    r->o.chat_template = path;
    r->fake.burst = burst;
    r->fake.once = true;
    hub_open(r, false);
}

/* The body of a chat whose answer is this text. */
static const char *ask(const char *answer, const char *more)
{
    static struct sv_buf b; /* of the test's process, which ends with it */

    sv_buf_fini(&b);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"messages\":[{\"role\":\"user\",\"content\":");
    sv_json_quote(&b, answer, strlen(answer));
    sv_buf_printf(&b, "}]%s%s}", *more ? "," : "", more);
    assert_false(b.failed);
    return b.data;
}

/* For the demo pair. */
static const char *ask_real(const char *more)
{
    static char body[1200];

    snprintf(body, sizeof body,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":0,%s}", more);
    return body;
}

static json_t *message(struct hub *r, const char *answer, const char *more)
{
    return hub_at(hub_json(r, CHAT, ask(answer, more), 200), "choices.0");
}

/* ---------------------------------------------------------------- whole answers */

static void messages_with_calls(void **state)
{
    struct hub r = {0};
    (void)state;

    open_hub(&r, "<tool_call> </think>", 5);
    json_t *caps = hub_at(hub_json(&r, "/props", NULL, 200), "chat_template_caps");
    assert_true(json_is_true(hub_at(caps, "supports_tool_calls")));
    assert_string_equal(hub_text(caps, "tool_parser"), "hermes");
    assert_string_equal(hub_text(caps, "reasoning_parser"), "think");
    json_t *v = message(&r, TWO_CALLS, TOOLS);
    assert_string_equal(hub_text(v, "finish_reason"), "tool_calls");
    assert_string_equal(hub_text(v, "message.content"), "I look.");
    assert_string_equal(hub_text(v, "message.reasoning_content"),
                        "Is it 1 < 2? \xc3\xa4\xe2\x82\xac");
    assert_null(hub_at(v, "message.reasoning"));
    assert_int_equal(json_array_size(hub_at(v, "message.tool_calls")), 2);
    assert_string_equal(hub_text(v, "message.tool_calls.0.type"), "function");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.name"), "get_weather");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.arguments"),
                        "{\"city\": \"K\xc3\xb6ln\"}");
    assert_string_equal(hub_text(v, "message.tool_calls.1.function.name"), "b");
    assert_string_equal(hub_text(v, "message.tool_calls.1.function.arguments"), "{}");
    const char *id = hub_text(v, "message.tool_calls.0.id");
    assert_true(strlen(id) == 29 && strncmp(id, "call_", 5) == 0);
    assert_string_not_equal(id, hub_text(v, "message.tool_calls.1.id"));
    assert_string_not_equal(id, hub_text(message(&r, TWO_CALLS, TOOLS), "message.tool_calls.0.id"));

    v = message(&r, "<tool_call>{\"name\":\"b\"}</tool_call>", TOOLS);
    assert_true(json_is_null(hub_at(v, "message.content")));
    v = message(&r, TWO_CALLS, TOOLS ",\"parallel_tool_calls\":false");
    assert_int_equal(json_array_size(hub_at(v, "message.tool_calls")), 1);
    v = hub_json(
        &r, "/v1/responses",
        "{\"input\":\"<tool_call>{\\\"name\\\":\\\"b\\\"}</tool_call>One."
        "<tool_call>{\\\"name\\\":\\\"b\\\"}</tool_call>Two.\","
        "\"parallel_tool_calls\":false,\"tools\":[{\"type\":\"function\",\"name\":\"b\"}]}",
        200);
    assert_string_equal(hub_text(v, "output.1.content.0.text"), "One.Two."); /* nothing is lost */
    /* No call, or none was possible. */
    v = message(&r, "<tool_call>x</tool_call>", TOOLS);
    assert_string_equal(hub_text(v, "message.content"), "<tool_call>x</tool_call>");
    assert_string_equal(hub_text(v, "finish_reason"), "stop");
    assert_null(hub_at(v, "message.tool_calls"));
    v = message(&r, "<tool_call>{\"name\":\"b\"}</tool_call>", TOOLS ",\"tool_choice\":\"none\"");
    assert_string_equal(hub_text(v, "message.content"), "<tool_call>{\"name\":\"b\"}</tool_call>");
    v = message(&r, "<tool_call>{\"name\":\"b\"}</tool_call>", "");
    assert_string_equal(hub_text(v, "message.content"), "<tool_call>{\"name\":\"b\"}</tool_call>");
    /* Cut by its length: what there is of the call, as OpenAI does. */
    v = message(&r, "<tool_call>{\"name\":\"b\",\"arguments\":{\"xyz\": \"some text and more\"}}",
                TOOLS ",\"max_tokens\":18");
    assert_string_equal(hub_text(v, "finish_reason"), "length");
    const char *args = hub_text(v, "message.tool_calls.0.function.arguments");
    assert_true(strlen(args) > 0 && strlen(args) < 30 && *args == '{');
    hub_close(&r);
}

static void each_choice_has_its_own(void **state)
{
    struct hub r = {0};
    (void)state;

    open_hub(&r, "<tool_call>", 3);
    json_t *v = hub_json(&r, CHAT, ask("<tool_call>{\"name\":\"b\"}", TOOLS ",\"n\":3"), 200);
    for (int i = 0; i < 3; i++) {
        json_t *c = json_array_get(hub_at(v, "choices"), (size_t)i);
        assert_string_equal(hub_text(c, "message.tool_calls.0.function.name"), "b");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(hub_text(c, "message.tool_calls.0.id"),
                                    hub_text(json_array_get(hub_at(v, "choices"), (size_t)k),
                                             "message.tool_calls.0.id"));
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- streams */

/* What a stream's deltas of a choice come to, as a message; their order is checked. */
static json_t *put_together(json_t *events, int64_t index)
{
    json_t *m = json_object(), *calls = json_array(), *e;
    size_t i;

    json_array_foreach(events, i, e) {
        json_t *c = hub_at(e, "choices.0"), *d = hub_at(c, "delta"), *call, *v;
        const char *key;
        if (!c || hub_number(c, "index") != index)
            continue;
        json_object_foreach(d, key, v) {
            const char *old = json_string_value(json_object_get(m, key));
            if (json_is_string(v) && strcmp(key, "role") != 0)
                json_object_set_new(m, key,
                                    json_sprintf("%s%s", old ? old : "", json_string_value(v)));
        }
        call = hub_at(d, "tool_calls.0");
        assert_int_equal(json_array_size(hub_at(d, "tool_calls")), call ? 1 : 0);
        if (hub_at(call, "id")) {
            assert_int_equal(hub_number(call, "index"), json_array_size(calls));
            assert_string_equal(hub_text(call, "type"), "function");
            assert_string_equal(hub_text(call, "function.arguments"), "");
            json_array_append_new(
                calls,
                json_pack("{s:s,s:s}", "name", hub_text(call, "function.name"), "arguments", ""));
        } else if (call) {
            json_t *to = json_array_get(calls, (size_t)hub_number(call, "index"));
            assert_int_equal(hub_number(call, "index") + 1, json_array_size(calls));
            assert_null(hub_at(call, "function.name"));
            json_object_set_new(to, "arguments",
                                json_sprintf("%s%s", hub_text(to, "arguments"),
                                             hub_text(call, "function.arguments")));
        }
        if (!json_is_null(hub_at(c, "finish_reason"))) {
            assert_int_equal(json_object_size(d), 0);
            json_object_set(m, "finish_reason", hub_at(c, "finish_reason"));
        }
    }
    json_object_set_new(m, "calls", calls);
    return m;
}

static void is_its_message(struct hub *r, const char *text)
{
    json_t *v = message(r, text, TOOLS);
    json_t *events = hub_events(r, CHAT, ask(text, TOOLS ",\"stream\":true"));
    json_t *m = put_together(events, 0), *calls = hub_at(v, "message.tool_calls");

    assert_int_equal(json_array_size(calls), json_array_size(hub_at(m, "calls")));
    for (size_t k = 0; k < json_array_size(calls); k++)
        hub_same(hub_at(json_array_get(calls, k), "function"),
                 json_array_get(hub_at(m, "calls"), k), text);
    json_t *content = hub_at(v, "message.content");
    assert_string_equal(hub_text(m, "content"),
                        json_is_null(content) ? "" : json_string_value(content));
    if (hub_at(v, "message.reasoning_content"))
        hub_same(hub_at(v, "message.reasoning_content"), hub_at(m, "reasoning_content"), text);
    hub_same(hub_at(v, "finish_reason"), hub_at(m, "finish_reason"), text);
    json_decref(m);
}

/* Every answer of the parser's own test, streamed in bursts, is what the whole one says. */
static void streams_are_their_messages(void **state)
{
    (void)state;
    hub_each_answer(open_hub, is_its_message);
}

/* The chunks of a call as clients of OpenAI know them. */
static void chunks_of_a_call(void **state)
{
    static const char *const want[] = {
        "{\"role\":\"assistant\",\"content\":\"\"}", "{\"content\":\"Hm.\"}",
        "{\"tool_calls\":[{\"index\":0,\"id\":\"call_",
        "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"city\\\": \\\"Rome\\\"}\"}}]}",
        "{}"};
    struct hub r = {0};
    struct answer a;
    (void)state;

    open_hub(&r, "<tool_call>", 64); /* all in one step */
    answer_init(&a);
    hub_ask(&r, CHAT,
            ask("Hm. <tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\": \"Rome\"}}"
                "</tool_call>",
                TOOLS ",\"stream\":true"),
            &a);
    assert_int_equal(a.status, 200);
    const char *at = a.body.data;
    for (size_t i = 0; i < 5; i++) {
        at = strstr(at, "\"delta\":");
        assert_non_null(at);
        at += 8;
        if (strncmp(at, want[i], strlen(want[i])) != 0)
            fail_msg("%.200s is not %s", at, want[i]);
    }
    assert_non_null(strstr(at, "\"finish_reason\":\"tool_calls\""));
    assert_non_null(strstr(a.body.data, "\"type\":\"function\",\"function\":{\"name\":"
                                        "\"get_weather\",\"arguments\":\"\"}}]}"));
    answer_fini(&a);
    hub_close(&r);
}

/* Log probabilities and ids come along, also with what is held back. */
static void nothing_beside_is_lost(void **state)
{
    struct hub r = {0};
    int64_t n = 0, n_ids = 0;
    json_t *e;
    size_t i;
    (void)state;

    open_hub(&r, "<tool_call> </think>", 2);
    json_t *events = hub_events(&r, CHAT,
                                ask(TWO_CALLS, TOOLS ",\"stream\":true,\"n\":2,\"logprobs\":true,"
                                                     "\"return_token_ids\":true,\"stream_options\":"
                                                     "{\"include_usage\":true}"));
    json_array_foreach(events, i, e) {
        n += (int64_t)json_array_size(hub_at(e, "choices.0.logprobs.content"));
        n_ids += (int64_t)json_array_size(hub_at(e, "choices.0.token_ids"));
    }
    e = json_array_get(events, json_array_size(events) - 1);
    assert_int_equal(n, hub_number(e, "usage.completion_tokens"));
    assert_int_equal(n_ids, n);
    for (int64_t k = 0; k < 2; k++) {
        json_t *m = put_together(events, k);
        assert_int_equal(json_array_size(hub_at(m, "calls")), 2);
        assert_string_equal(hub_text(m, "content"), "I look.");
        json_decref(m);
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- reasoning */

/* A thought in one piece is put together beside the loop where it is long. */
static void whole_reasoning_takes_no_turn(void **state)
{
    struct hub r = {.o.engine.context = 1 << 20, .o.stream_gap_us = 1000};
    struct sv_buf text;
    (void)state;

    open_hub(&r, "</think>", 64);
    /* A short answer is written by the loop; of the long one that may be nothing at all. */
    message(&r, "<think>\nYes.\n</think>\n\nYes.", "\"max_tokens\":64");
    assert_true(hub_metric(&r, "salvo_loop_turn_bytes_max") > 0);
    double beside = hub_metric(&r, "salvo_written_beside_loop_total");
    sv_buf_init(&text);
    sv_buf_lit(&text, "<think>\n");
    for (int i = 0; i < 40000; i++)
        sv_buf_printf(&text, "%d ", i % 10);
    sv_buf_lit(&text, "\n</think>\n\nYes.");
    hub_ask(&r, CHAT, ask(text.data, "\"stream\":true,\"stream_reasoning\":false"), &r.a);
    assert_int_equal(r.a.status, 200);
    assert_int_equal(hub_count(r.a.body.data, "\"reasoning_content\":\"0 1 2"), 1);
    assert_int_equal(hub_count(r.a.body.data, "0 1 2 3 4 5 6 7 8 9"), 4000);
    assert_true(hub_metric(&r, "salvo_written_beside_loop_total") > beside);
    double most = hub_metric(&r, "salvo_loop_turn_bytes_max");
    if (most > 65536 + 8192)
        fail_msg("%.0f bytes in one turn", most);
    sv_buf_fini(&text);
    hub_close(&r);
}

static void reasoning_as_clients_want_it(void **state)
{
    static const char text[] = "<think>\nOne two three.\n</think>\n\nYes.";
    struct hub r = {.o.reasoning_field = "both"};
    (void)state;

    open_hub(&r, "</think>", 1);
    json_t *whole = hub_json(&r, CHAT, ask(text, ""), 200), *v = hub_at(whole, "choices.0");
    assert_string_equal(hub_text(v, "message.content"), "Yes.");
    assert_string_equal(hub_text(v, "message.reasoning_content"), "One two three.");
    assert_string_equal(hub_text(v, "message.reasoning"), "One two three.");
    assert_string_equal(hub_text(v, "finish_reason"), "stop");
    json_t *marks =
        hub_json(&r, "/tokenize", "{\"prompt\":\"<think>\\nOne two three.\\n</think>\"}", 200);
    assert_int_equal(hub_number(whole, "usage.completion_tokens_details.reasoning_tokens"),
                     hub_number(marks, "count"));

    v = message(&r, text, "\"include_reasoning\":false");
    assert_string_equal(hub_text(v, "message.content"), "Yes.");
    assert_null(hub_at(v, "message.reasoning_content"));
    v = message(&r, text, "\"separate_reasoning\":false");
    assert_string_equal(hub_text(v, "message.content"), text);
    v = message(&r, text, "\"reasoning_format\":\"none\"");
    assert_string_equal(hub_text(v, "message.content"), text);
    v = message(&r, "<think>on and on", "");
    assert_true(json_is_null(hub_at(v, "message.content")));
    assert_string_equal(hub_text(v, "message.reasoning_content"), "on and on");

    /* In one piece, when it is over. */
    json_t *events = hub_events(&r, CHAT, ask(text, "\"stream\":true,\"stream_reasoning\":false")),
           *e;
    int n = 0;
    size_t i;
    json_array_foreach(events, i, e) {
        if (hub_at(e, "choices.0.delta.reasoning")) {
            assert_string_equal(hub_text(e, "choices.0.delta.reasoning_content"), "One two three.");
            n++;
        }
    }
    assert_int_equal(n, 1);
    events = hub_events(&r, CHAT,
                        ask(text, "\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                                  "\"continuous_usage_stats\":true}"));
    hub_same(hub_at(json_array_get(events, json_array_size(events) - 1),
                    "usage.completion_tokens_details"),
             hub_at(whole, "usage.completion_tokens_details"), "usage");
    json_t *m = put_together(events, 0);
    assert_string_equal(hub_text(m, "reasoning"), "One two three.");
    assert_string_equal(hub_text(m, "reasoning_content"), "One two three.");
    assert_true(json_array_size(events) > 5);
    json_decref(m);
    hub_close(&r);
}

/* A template may open the thought in the prompt, which the instant engine repeats. */
static void reasoning_opened_by_the_prompt(void **state)
{
    const char *path = sv_test_tmp("open.jinja");
    static const char template[] = "{{ messages[-1].content }}<think>\n";
    struct hub r = {.fake = {.burst = 2, .once = true},
                    .o.chat_template = path,
                    .o.reasoning_parser = "deepseek_r1"};
    struct sv_err err;
    (void)state;

    assert_int_equal(sv_file_write(path, template, sizeof template - 1, &err), SV_OK);
    hub_open(&r, false);
    json_t *v = message(&r, "So.</think>Yes", "");
    assert_string_equal(hub_text(v, "message.reasoning_content"), "So.");
    assert_string_equal(hub_text(v, "message.content"), "Yes<think>");
    hub_close(&r);
}

/* ---------------------------------------------------------------- special tokens */

/* The demo's tokenizer, where Mistral's markers and another are special tokens. */
static const char *special_dir(void)
{
    static const char *const names[] = {"[TOOL_CALLS]", "[ARGS]", "<|other|>"};
    struct sv_err err;
    json_t *t = sv_json_load(sv_test_path("models/demo/target/tokenizer.json"), 1 << 26, &err);

    assert_non_null(t);
    for (int i = 0; i < 3; i++)
        json_array_append_new(json_object_get(t, "added_tokens"),
                              json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", 6144 + i, "content",
                                        names[i], "single_word", 0, "lstrip", 0, "rstrip", 0,
                                        "normalized", 0, "special", 1));
    char *text = json_dumps(t, JSON_COMPACT);
    assert_int_equal(sv_file_write(sv_test_tmp("tokenizer.json"), text, strlen(text), &err), SV_OK);
    sv_free(text);
    json_decref(t);
    return sv_test_tmp("");
}

static void markers_that_are_special_tokens(void **state)
{
    static const char text[] = "Hm.<|other|>[TOOL_CALLS]b[ARGS]{\"a\": 1}<|im_end|>";
    struct hub r = {.o.tool_parser = "mistral", .o.engine.target_dir = special_dir()};
    (void)state;

    open_hub(&r, "", 1);
    json_t *v = message(&r, text, TOOLS);
    assert_string_equal(hub_text(v, "message.content"), "Hm.");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.name"), "b");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.arguments"), "{\"a\": 1}");
    assert_int_equal(strlen(hub_text(v, "message.tool_calls.0.id")), 9);
    v = message(&r, text, TOOLS ",\"tool_choice\":\"none\"");
    assert_string_equal(hub_text(v, "message.content"), "Hm.b{\"a\": 1}");
    v = message(&r, text, "\"skip_special_tokens\":false");
    assert_string_equal(hub_text(v, "message.content"), text);
    v = hub_json(&r, "/v1/completions", "{\"prompt\":\"a[ARGS]b\",\"skip_special_tokens\":false}",
                 200);
    assert_string_equal(hub_text(v, "choices.0.text"), "a[ARGS]b");
    hub_close(&r);
}

/* ---------------------------------------------------------------- calls that must come */

#define ADD                                                                                        \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":"             \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":0,"              \
    "\"maximum\":99},\"of\":{\"enum\":[\"x\",\"y\"]}},\"required\":[\"a\",\"of\"],"                \
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"b\"}}],"    \
    "\"max_tokens\":200"
#define NAMED "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"add\"}}"

static void check_add(json_t *call)
{
    const char *text = hub_text(call, "function.arguments");
    struct sv_err err;
    json_t *args = sv_json_parse(text, strlen(text), &err);

    assert_string_equal(hub_text(call, "function.name"), "add");
    assert_int_equal(json_object_size(args), 2);
    assert_in_range(hub_number(args, "a"), 0, 99);
    assert_true(strchr("xy", *hub_text(args, "of")) != NULL);
    json_decref(args);
}

/* The demo pair knows no tools, and calls them under a grammar; in every way of writing that it is
 * said to have, with a thought before it where a thought is possible. */
static void calls_that_are_asked_for(void **state)
{
    static const char *const ways[] = {"none", "hermes", "qwen3_coder", "mistral"};
    (void)state;

    for (int i = 0; i < 4; i++) {
        struct hub r = {.real = true, .o.tool_parser = ways[i]};
        char ask[1200];
        hub_open(&r, false);
        snprintf(ask, sizeof ask,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"temperature\":1,"
                 "\"seed\":%d,\"n\":3," ADD "," NAMED "}",
                 i);
        json_t *v = hub_json(&r, CHAT, ask, 200);
        for (size_t k = 0; k < 3; k++) {
            json_t *c = json_array_get(hub_at(v, "choices"), k);
            assert_string_equal(hub_text(c, "finish_reason"), "stop"); /* as OpenAI: no choice */
            assert_true(json_is_null(hub_at(c, "message.content")));
            assert_int_equal(json_array_size(hub_at(c, "message.tool_calls")), 1);
            check_add(hub_at(c, "message.tool_calls.0"));
            if (i == 3)
                assert_int_equal(strlen(hub_text(c, "message.tool_calls.0.id")), 9);
        }
        v = hub_at(hub_json(&r, CHAT,
                            ask_real(ADD ",\"tool_choice\":\"required\",\"parallel_tool_calls\":"
                                         "false"),
                            200),
                   "choices.0");
        assert_string_equal(hub_text(v, "finish_reason"), "tool_calls");
        assert_int_equal(json_array_size(hub_at(v, "message.tool_calls")), 1);
        hub_close(&r);
    }
}

static void forms_and_calls(void **state)
{
    struct hub r = {.real = true, .o.tool_parser = "hermes", .o.reasoning_parser = "think"};
    (void)state;

    hub_open(&r, false);
    /* Two forms in one answer, and schemas that are none. */
    json_t *v = hub_json(&r, CHAT, ask_real(ADD "," NAMED ",\"regex\":\"a+\""), 400);
    assert_string_equal(hub_text(v, "error.param"), "tool_choice");
    v = hub_json(&r, CHAT,
                 ask_real("\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\","
                          "\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"thing\"}}}]"),
                 400);
    assert_string_equal(hub_text(v, "error.param"), "tools");
    assert_non_null(strstr(hub_text(v, "error.message"), "tools[0].function.parameters"));
    /* A thought may come first; the call comes, too, if there is room for it. */
    v = hub_at(hub_json(&r, CHAT, ask_real(ADD "," NAMED), 200), "choices.0");
    check_add(hub_at(v, "message.tool_calls.0"));
    /* A form or calls, as the model likes; here the first token is pushed. */
    for (int calls = 0; calls < 2; calls++) {
        char more[1000];
        json_t *t = hub_json(&r, "/tokenize",
                             calls ? "{\"prompt\":\"<tool_call>\"}" : "{\"prompt\":\"yes\"}", 200);
        snprintf(more, sizeof more,
                 ADD ",\"guided_choice\":[\"yes\"],\"logit_bias\":{\"%lld\":100}",
                 (long long)hub_number(t, "tokens.0"));
        v = hub_at(hub_json(&r, CHAT, ask_real(more), 200), "choices.0");
        if (calls) {
            assert_string_equal(hub_text(v, "finish_reason"), "tool_calls");
            assert_true(json_array_size(hub_at(v, "message.tool_calls")) > 0);
        } else {
            assert_string_equal(hub_text(v, "message.content"), "yes");
            assert_string_equal(hub_text(v, "finish_reason"), "stop");
        }
    }
    /* Strict tools, and no need to call: the text is the one without them. */
    v = hub_at(hub_json(&r, CHAT,
                        ask_real("\"max_tokens\":20,\"tools\":[{\"type\":\"function\","
                                 "\"function\":{\"name\":\"f\",\"strict\":true}}]"),
                        200),
               "choices.0");
    json_t *plain = hub_at(hub_json(&r, CHAT, ask_real("\"max_tokens\":20"), 200), "choices.0");
    hub_same(hub_at(v, "message.content"), hub_at(plain, "message.content"), "strict");
    hub_close(&r);
}

/* A choice among some: by the grammar, with all tools in the prompt; where there is none, the model
 * is shown no others. */
static void some_that_are_allowed(void **state)
{
#define THREE                                                                                          \
    "\"max_tokens\":120,\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":"   \
    "\"function\",\"function\":{\"name\":\"g\"}},{\"type\":\"function\",\"function\":{\"name\":\"h\"}" \
    "}],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"tools\":[{\"type\":"          \
    "\"function\",\"function\":{\"name\":\"h\"}}],\"mode\":"
    struct hub real = {.real = true, .o.tool_parser = "hermes"};
    struct hub xml = {.o.tool_parser = "qwen3_coder"}, hermes = {.o.tool_parser = "hermes"};
    const char *path = sv_test_tmp("names.jinja");
    static const char names[] =
        "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[-1].content }}";
    struct sv_err err;
    (void)state;

    hub_open(&real, false);
    json_t *v =
        hub_json(&real, CHAT, ask_real(THREE "\"required\"}},\"parallel_tool_calls\":false"), 200);
    assert_string_equal(hub_text(v, "choices.0.message.tool_calls.0.function.name"), "h");
    hub_close(&real);

    assert_int_equal(sv_file_write(path, names, sizeof names - 1, &err), SV_OK);
    xml.o.chat_template = hermes.o.chat_template = path;
    xml.fake.once = hermes.fake.once = true;
    hub_open(&xml, false);
    v = hub_json(&xml, CHAT, ask("!", THREE "\"auto\"}}"), 200);
    assert_string_equal(hub_text(v, "choices.0.message.content"), "h!");
    hub_close(&xml);
    hub_open(&hermes, false);
    v = hub_json(&hermes, CHAT, ask("!", THREE "\"auto\"}}"), 200);
    assert_string_equal(hub_text(v, "choices.0.message.content"), "fgh!");
    /* Free to call; what it would call is not allowed. */
    v = hub_json(
        &hermes, CHAT,
        ask("<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", THREE "\"auto\"}}"),
        200);
    assert_string_equal(hub_text(v, "choices.0.message.tool_calls.0.function.name"), "h");
    hub_close(&hermes);
}

/* ---------------------------------------------------------------- refusals */

static void says(struct hub *r, const char *more, const char *what)
{
    const char *message = hub_text(hub_json(r, CHAT, ask("a", more), 400), "error.message");

    if (!strstr(message, what))
        fail_msg("'%s' is not in: %s", what, message);
}

/* Whatever finds no memory, a chat's prompt is not made of less than its body. */
static void prompts_without_memory(void **state)
{
    static const char template[] = "{{ messages | tojson }}{{ tools | tojson }}{{ documents }}"
                                   "{{ reasoning_effort }}{{ a }}";
    static const char body[] =
        "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"hm\",\"tool_calls\":[{\"id\":\"c\","
        "\"type\":\"function\",\"function\":{\"name\":\"b\",\"arguments\":\"{}\"}},{\"id\":\"d\",\"type\":"
        "\"function\",\"function\":{\"name\":\"b\",\"arguments\":\"\"}}]}],\"documents\":[{}],"
        "\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"a\":1}," TOOLS "}";
    bool hit = true;
    (void)state;

    for (int64_t nth = 1; hit; nth++) {
        const int64_t before = sv_alloc_live();
        sv_fault_arm(nth);
        int status = sv_serve_check_chat(template, sizeof template - 1, body, sizeof body - 1);
        hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        if ((status == 200) != !hit)
            fail_msg("allocation %lld: %d", (long long)nth, status);
        assert_int_equal(sv_alloc_live(), before);
        assert_true(nth < 5000);
    }
}

static void fields_that_are_wrong(void **state)
{
    static const char *const list[][2] = {
        {"\"tools\":[5]", "tools"},
        {"\"tools\":[{\"type\":\"function\"}]", "tools"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},{\"function\":{}}]",
         "tools"},
        {"\"tools\":[{\"type\":\"custom\",\"custom\":{\"name\":\"a\"}}]", "tools"},
        {"\"tools\":[{\"function\":{\"name\":\"a\",\"parameters\":[]}}]", "tools"},
        {"\"tools\":[{\"function\":{\"name\":\"a\",\"strict\":1}}]", "tools"},
        {"\"tools\":[{\"function\":{\"name\":\"a\",\"description\":1}}]", "tools"},
        {"\"tools\":[{\"function\":{\"name\":\"a\",\"parameters\":{\"type\":\"thing\"}}}],"
         "\"response_format\":{\"type\":\"json_object\"}",
         "tools"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":\"any\"", "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"c\"}}",
         "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}", "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"any\"}}",
         "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
               "\"tools\":[]}}",
         "tool_choice"},
        {TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\","
               "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"c\"}}]}}",
         "tool_choice"},
        {"\"functions\":[{\"name\":\"a\"}]", "functions"},
        {"\"function_call\":{\"name\":\"a\"}", "function_call"},
        {"\"parallel_tool_calls\":1", "parallel_tool_calls"},
        {"\"include_reasoning\":\"no\"", "include_reasoning"},
        {"\"reasoning_format\":\"deepseek-legacy\"", "reasoning_format"},
    };
    struct hub r = {0}, none = {0};
    (void)state;

    open_hub(&r, "<tool_call>", 1);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        assert_string_equal(hub_text(hub_json(&r, CHAT, ask("a", list[i][0]), 400), "error.param"),
                            list[i][1]);
    says(&r, "\"tools\":[{\"type\":\"custom\"}]", "'tools[0].type': only \"function\"");
    char named[400];
    snprintf(named, sizeof named, "\"tools\":[{\"function\":{\"name\":\"%0256d\"}}]", 0);
    hub_json(&r, CHAT, ask("a", named), 200);
    snprintf(named, sizeof named, "\"tools\":[{\"function\":{\"name\":\"%0257d\"}}]", 0);
    says(&r, named, "'tools[0].function.name' must be a string of 1 to 256 bytes");
    hub_json(&r, CHAT, ask("a", "\"tools\":[],\"tool_choice\":\"auto\",\"functions\":[]"), 200);
    hub_close(&r);
    /* A model that shows no way of calling tools. */
    hub_open(&none, false);
    assert_string_equal(hub_text(hub_json(&none, CHAT, ask("a", TOOLS), 400), "error.param"),
                        "tools");
    hub_close(&none);
}

static void options_that_are_wrong(void **state)
{
    static const char *const names[] = {"--tool-parser", "--reasoning-parser", "--reasoning-field"};
    (void)state;

    for (int i = 0; i < 3; i++) {
        struct sv_serve_options o = {.engine.target_dir = sv_test_path("models/demo/target"),
                                     .tool_parser = i == 0 ? "pythonic" : "auto",
                                     .reasoning_parser = i == 1 ? "granite" : "auto",
                                     .reasoning_field = i == 2 ? "thoughts" : NULL};
        struct sv_serve *s;
        struct sv_err err = {0};
        assert_int_equal(sv_serve_open(&s, &o, &err), SV_EINVAL);
        assert_non_null(strstr(err.msg, names[i]));
    }
}

SV_TEST_MAIN(cmocka_unit_test(messages_with_calls), cmocka_unit_test(each_choice_has_its_own),
             cmocka_unit_test(streams_are_their_messages), cmocka_unit_test(chunks_of_a_call),
             cmocka_unit_test(nothing_beside_is_lost),
             cmocka_unit_test(whole_reasoning_takes_no_turn),
             cmocka_unit_test(reasoning_as_clients_want_it),
             cmocka_unit_test(reasoning_opened_by_the_prompt),
             cmocka_unit_test(markers_that_are_special_tokens),
             cmocka_unit_test(calls_that_are_asked_for), cmocka_unit_test(forms_and_calls),
             cmocka_unit_test(some_that_are_allowed), cmocka_unit_test(prompts_without_memory),
             cmocka_unit_test(fields_that_are_wrong), cmocka_unit_test(options_that_are_wrong))
