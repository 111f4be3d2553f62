/*
 * test_messages.c - /v1/messages and /v1/messages/count_tokens on the instant engine, whose answer
 * is its prompt, and on the demo pair: the parsed body, whole answers and their streams, stop
 * reasons, usage, errors in Anthropic's shape, disconnecting clients.
 */
#include "serve/blocks.h"
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MESSAGES "/v1/messages"
#define COUNT "/v1/messages/count_tokens"
#define TOOLS                                                                                      \
    "\"tools\":[{\"name\":\"get_weather\",\"description\":\"Looks.\",\"input_schema\":{\"type\":"  \
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}}}," \
    "\"cache_control\":{\"type\":\"ephemeral\"}},{\"type\":\"custom\",\"name\":\"b\","             \
    "\"input_schema\":{\"type\":\"object\"}}]"
#define TWO_CALLS                                                                                  \
    "<think>\nIs it 1 < 2? \xc3\xa4\xe2\x82\xac\n</think>\n\nI look.\n<tool_call>\n"               \
    "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\"}}\n</tool_call>\n"      \
    "<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"
#define SMALL "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"one two\"}]"

static void open_with(struct hub *r, const char *template, int32_t burst)
{
    const char *path = sv_test_tmp("own.jinja");
    struct sv_err err;

    assert_int_equal(sv_file_write(path, template, strlen(template), &err), SV_OK);
    r->o.chat_template = path;
    r->fake.burst = burst;
    r->fake.once = true;
    hub_open(r, false);
}

/* The prompt, and so the answer, is the last message; signs: what else the template says. */
static void open_echo(struct hub *r, const char *signs, int32_t burst)
{
    char text[200];

    snprintf(text, sizeof text, "{# %s #}{{ messages[-1].content }}", signs);
    open_with(r, text, burst);
}

/* A body whose answer is this text; borrowed until the next. */
static const char *ask(const char *answer, const char *more)
{
    static struct sv_buf b; /* of the test's process, which ends with it */

    sv_buf_fini(&b);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{%s\"messages\":[{\"role\":\"user\",\"content\":",
                  strstr(more, "\"max_tokens\"") ? "" : "\"max_tokens\":900,");
    sv_json_quote(&b, answer, strlen(answer));
    sv_buf_printf(&b, "}]%s%s}", *more ? "," : "", more);
    assert_false(b.failed);
    return b.data;
}

static void contains(const char *text, const char *what)
{
    if (!strstr(text, what))
        fail_msg("'%s' is not in: %.600s", what, text);
}

/* ---------------------------------------------------------------- what a body becomes */

static const char *system_of(const char *value)
{
    static char body[400];

    snprintf(
        body, sizeof body,
        "{\"max_tokens\":900,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"system\":%s}",
        value);
    return body;
}

#define USER(x) "{\"role\":\"user\",\"content\":" x "}"
#define OWN(x) "{\"role\":\"assistant\",\"content\":" x "}"
#define TEXT(x) "{\"type\":\"text\",\"text\":\"" x "\"}"

/* Left what is sent, right what the template sees. */
static void messages_for_the_template(void **state)
{
    static const char *const list[][2] = {
        {USER("\"a\""), "[{\"role\":\"user\",\"content\":\"a\"}]"},
        {USER("[" TEXT("a") "," TEXT("b") "]"), "[{\"role\":\"user\",\"content\":\"a\\nb\"}]"},
        /* who goes on speaking has one turn */
        {USER("\"a\"") "," USER("\"b\"") "," OWN("\"c\"") "," USER("\"d\""),
         "[{\"role\":\"user\",\"content\":\"a\\nb\"},{\"role\":\"assistant\",\"content\":\"c\"},"
         "{\"role\":\"user\",\"content\":\"d\"}]"},
        /* a call and its result, with what the user says behind it */
        {USER("\"a\"") "," OWN(
             "[{\"type\":\"thinking\",\"thinking\":\"hm\",\"signature\":\"s\"},"
             "{\"type\":\"redacted_thinking\",\"data\":\"xx\"}," TEXT(
                 "I look.") ","
                            "{\"type\":\"tool_use\",\"id\":\"t1\",\"name\":\"f\",\"input\":"
                            "{\"x\":[1,{}]},\"caller\":{\"type\":\"direct\"}},{\"type\":\"tool_use\","
                            "\"id\":\"t2\",\"name\":\"g\",\"input\":{}}]") "," USER("[{\"type\":\"tool_result\",\"tool_use_id\":\"t1\",\"content\":[" TEXT("4") "," TEXT("5") "]},{\"type\":\"tool_result\",\"tool_use_id\":\"t2\",\"is_error\":true,"
                                                                                                                                                                              "\"content\":\"no\",\"cache_control\":{\"type\":\"ephemeral\"}}," TEXT(
                                                                                                                                                                                  "Go on.") "]"),
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"I look.\","
         "\"reasoning_content\":\"hm\",\"tool_calls\":[{\"id\":\"t1\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,{}]}}},{\"id\":\"t2\",\"type\":"
         "\"function\",\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"t1\",\"content\":\"4\\n5\"},"
         "{\"role\":\"tool\",\"tool_call_id\":\"t2\",\"content\":\"Error: no\"},"
         "{\"role\":\"user\",\"content\":\"Go on.\"}]"},
        /* nothing but a call, and a result without a word */
        {USER("\"a\"") "," OWN("[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]") "," USER(
             "[{\"type\":\"tool_result\",\"tool_use_id\":\"t\"}]"),
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\","
         "\"tool_calls\":[{\"id\":\"t\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"\"}]"},
        {USER("\"a\"") "," OWN("[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}}]") "," USER(
             "[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"is_error\":true,\"content\":"
             "\"Error 5\"}]"),
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\","
         "\"tool_calls\":[{\"id\":\"t\",\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_call_id\":\"t\",\"content\":\"Error 5\"}]"},
        /* an answer that said nothing */
        {USER("\"a\"") "," OWN("[]") "," USER("\"b\""),
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"\"},"
         "{\"role\":\"user\",\"content\":\"b\"}]"},
        /* the system's messages */
        {"{\"role\":\"system\",\"content\":\"s\"}," USER(
             "\"a\"") ","
                      "{\"role\":\"system\",\"content\":[" TEXT("t") "]}",
         "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
         "\"a\\n<system-reminder>\\nt\\n</system-reminder>\"}]"},
    };
    static const char *const systems[][2] = {
        {"\"be brief\"", "be brief"},
        {"[" TEXT("x-anthropic-billing-header: cch=1;") "," TEXT("be") "," TEXT("brief") "]",
         "be\nbrief"},
    };
    struct hub r = {0};
    struct sv_err err;
    (void)state;

    open_with(&r, "{{ messages | tojson }}", 8);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char body[1600];
        snprintf(body, sizeof body, "{\"max_tokens\":900,\"messages\":[%s]}", list[i][0]);
        const char *seen = hub_text(hub_json(&r, MESSAGES, body, 200), "content.0.text");
        json_t *a = sv_json_parse(seen, strlen(seen), &err);
        json_t *b = sv_json_parse(list[i][1], strlen(list[i][1]), &err);
        hub_same(a, b, body);
        json_decref(a);
        json_decref(b);
    }
    for (size_t i = 0; i < 2; i++) {
        const char *seen =
            hub_text(hub_json(&r, MESSAGES, system_of(systems[i][0]), 200), "content.0.text");
        json_t *a = sv_json_parse(seen, strlen(seen), &err);
        assert_string_equal(hub_text(a, "0.role"), "system");
        assert_string_equal(hub_text(a, "0.content"), systems[i][1]);
        json_decref(a);
    }
    const char *seen = hub_text(
        hub_json(&r, MESSAGES, system_of("[" TEXT("x-anthropic-billing-header: a") "]"), 200),
        "content.0.text");
    contains(seen, "[{\"role\"");
    assert_null(strstr(seen, "system")); /* nobody said a word */
    hub_close(&r);
}

static void tools_and_reasoning_for_the_template(void **state)
{
    static const char *const list[][2] = {
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2000}", "true/true/none"},
        {"\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}", "true/true/none"},
        {"\"thinking\":{\"type\":\"disabled\"}", "false/false/none"},
        {"\"thinking\":null", "none/none/none"},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2048.0}", "true/true/none"},
        {"\"output_config\":{\"effort\":\"max\"}", "none/none/high"},
        {"\"output_config\":{\"effort\":\"low\"},\"thinking\":{\"type\":\"adaptive\"}",
         "true/true/low"},
        {"\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2000},\"chat_template_kwargs\":"
         "{\"enable_thinking\":false}",
         "false/true/none"},
    };
    struct hub r = {0};
    struct sv_err err;
    (void)state;

    open_with(&r,
              "{{ (enable_thinking if enable_thinking is defined else none) | tojson }}/"
              "{{ (thinking if thinking is defined else none) | tojson }}/"
              "{{ reasoning_effort if reasoning_effort is defined else 'null' }}"
              "{% if tools %}{{ tools | tojson }}{% endif %}",
              8);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char want[40];
        snprintf(want, sizeof want, "%s", list[i][1]);
        for (char *at; (at = strstr(want, "none"));)
            memcpy(at, "null", 4);
        assert_string_equal(
            hub_text(hub_json(&r, MESSAGES, ask("a", list[i][0]), 200), "content.0.text"), want);
    }
    const char *seen =
        strchr(hub_text(hub_json(&r, MESSAGES,
                                 ask("a", TOOLS ",\"tool_choice\":{\"type\":\"none\"}"), 200),
                        "content.0.text"),
               '[');
    json_t *tools = sv_json_parse(seen, strlen(seen), &err);
    assert_int_equal(json_array_size(tools), 2);
    assert_string_equal(hub_text(tools, "0.type"), "function");
    assert_string_equal(hub_text(tools, "0.function.name"), "get_weather");
    assert_string_equal(hub_text(tools, "0.function.description"), "Looks.");
    assert_string_equal(hub_text(tools, "0.function.parameters.properties.days.type"), "integer");
    assert_int_equal(json_object_size(hub_at(tools, "0.function")), 3);
    assert_string_equal(hub_text(tools, "1.function.name"), "b");
    json_decref(tools);
    hub_close(&r);
}

/* ---------------------------------------------------------------- whole answers */

static void whole_answers(void **state)
{
    struct hub r = {0};
    (void)state;

    open_echo(&r, "<tool_call> </think>", 5);
    json_t *v = hub_json(&r, MESSAGES, ask(TWO_CALLS, TOOLS), 200);
    assert_true(strncmp(hub_text(v, "id"), "msg_", 4) == 0);
    assert_string_equal(hub_text(v, "type"), "message");
    assert_string_equal(hub_text(v, "role"), "assistant");
    assert_string_equal(hub_text(v, "model"), "fake");
    assert_string_equal(hub_text(v, "stop_reason"), "tool_use");
    assert_true(json_is_null(hub_at(v, "stop_sequence")));
    assert_int_equal(json_array_size(hub_at(v, "content")), 4);
    assert_string_equal(hub_text(v, "content.0.type"), "thinking");
    assert_string_equal(hub_text(v, "content.0.thinking"), "Is it 1 < 2? \xc3\xa4\xe2\x82\xac");
    assert_int_equal(strlen(hub_text(v, "content.0.signature")), 24);
    assert_string_equal(hub_text(v, "content.1.type"), "text");
    assert_string_equal(hub_text(v, "content.1.text"), "I look.");
    assert_string_equal(hub_text(v, "content.2.type"), "tool_use");
    assert_string_equal(hub_text(v, "content.2.name"), "get_weather");
    assert_string_equal(hub_text(v, "content.2.input.city"), "K\xc3\xb6ln");
    const char *id = hub_text(v, "content.2.id");
    assert_true(strlen(id) == 30 && strncmp(id, "toolu_", 6) == 0);
    assert_string_not_equal(id, hub_text(v, "content.3.id"));
    assert_int_equal(json_object_size(hub_at(v, "content.3.input")), 0);
    assert_true(json_is_object(hub_at(v, "content.3.input")));
    json_t *n = hub_json(&r, "/tokenize",
                         "{\"prompt\":\"<think>\\nIs it 1 < 2? \xc3\xa4\xe2\x82\xac"
                         "\\n</think>\"}",
                         200);
    assert_in_range(hub_number(v, "usage.output_tokens_details.thinking_tokens"),
                    hub_number(n, "count"), hub_number(n, "count") + 1);
    assert_null(hub_at(v, "metrics"));

    v = hub_json(&r, MESSAGES, ask("Hello.", "\"spec_decode_metrics\":\"summary\""), 200);
    assert_string_equal(hub_text(v, "stop_reason"), "end_turn");
    assert_string_equal(hub_text(v, "content.0.text"), "Hello.");
    assert_true(json_is_object(hub_at(v, "metrics")));
    /* one call of several, and none */
    v = hub_json(&r, MESSAGES,
                 ask(TWO_CALLS, TOOLS ",\"tool_choice\":{\"type\":\"auto\","
                                      "\"disable_parallel_tool_use\":true}"),
                 200);
    assert_int_equal(json_array_size(hub_at(v, "content")), 3);
    v = hub_json(&r, MESSAGES,
                 ask("<tool_call>{\"name\":\"b\"}</tool_call>",
                     TOOLS ",\"tool_choice\":{\"type\":\"none\"}"),
                 200);
    assert_string_equal(hub_text(v, "content.0.text"), "<tool_call>{\"name\":\"b\"}</tool_call>");
    assert_string_equal(hub_text(v, "stop_reason"), "end_turn");
    /* cut within a call: its arguments are no object yet */
    v = hub_json(&r, MESSAGES,
                 ask("<tool_call>{\"name\":\"b\",\"arguments\":{\"xyz\": \"some text and more\"}}",
                     TOOLS ",\"max_tokens\":18"),
                 200);
    assert_string_equal(hub_text(v, "stop_reason"), "max_tokens");
    assert_string_equal(hub_text(v, "content.0.name"), "b");
    assert_int_equal(json_object_size(hub_at(v, "content.0.input")), 0);
    /* names that come twice are passed on, as they were written */
    hub_ask(&r, MESSAGES,
            ask("<tool_call>{\"name\":\"b\",\"arguments\":{\"a\": 1, \"a\": 12345678901234567890}}"
                "</tool_call>",
                TOOLS),
            &r.a);
    contains(r.a.body.data, "\"input\":{\"a\": 1, \"a\": 12345678901234567890}}");
    hub_close(&r);
}

static void reasoning(void **state)
{
    static const char text[] = "<think>\nOne two.\n</think>\n\nYes.";
    struct hub r = {0};
    (void)state;

    open_echo(&r, "</think>", 64);
    json_t *v = hub_json(&r, MESSAGES, ask(text, "\"thinking\":{\"type\":\"disabled\"}"), 200);
    assert_int_equal(json_array_size(hub_at(v, "content")), 1);
    assert_string_equal(hub_text(v, "content.0.text"), "Yes.");
    for (int stream = 0; stream < 2; stream++) {
        char more[120];
        snprintf(more, sizeof more,
                 "\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"},\"stream\":%s",
                 stream ? "true" : "false");
        hub_ask(&r, MESSAGES, ask(text, more), &r.a);
        assert_int_equal(r.a.status, 200);
        contains(r.a.body.data, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"");
        assert_null(strstr(r.a.body.data, "One"));
        contains(r.a.body.data, "Yes");
        assert_int_equal(hub_count(r.a.body.data, "signature_delta"), stream);
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- streams */

static void same_streamed(struct hub *r, const char *text, const char *more)
{
    char streamed[1000];

    json_t *whole = hub_json(r, MESSAGES, ask(text, more), 200);
    snprintf(streamed, sizeof streamed, "%s,\"stream\":true", more);
    json_t *m = blocks_of_stream(hub_events(r, MESSAGES, ask(text, streamed)));
    hub_same(hub_at(whole, "usage"), hub_at(m, "usage"), text);
    blocks_forget_ids(whole);
    blocks_forget_ids(m);
    hub_same(whole, m, text);
    json_decref(m);
}

static void is_its_answer(struct hub *r, const char *text)
{
    same_streamed(r, text, TOOLS);
    /* an answer of content alone is not parsed */
    same_streamed(r,
                  "Gr\xc3\xb6\xc3\x9f"
                  "e \xf0\x9f\x98\x80 \xe6\x97\xa5\xe6\x9c\xac",
                  "\"top_k\":5");
}

/* Every answer of the parser's own test, streamed in bursts, is what the whole one says. */
static void streams_are_their_answers(void **state)
{
    (void)state;
    hub_each_answer(open_echo, is_its_answer);
}

static void events_of_a_stream(void **state)
{
    static const char *const want[] = {
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,"
        "\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
        "{\"type\":\"thinking_delta\",\"thinking\":\"H.\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":"
        "{\"type\":\"signature_delta\",\"signature\":\"",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,"
        "\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":"
        "{\"type\":\"text_delta\",\"text\":\"Hm.\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,"
        "\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_",
        "\",\"name\":\"get_weather\",\"input\":{}}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":"
        "{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"city\\\": \\\"Rome\\\"}\"}}\n\n",
        "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":2}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":"
        "\"tool_use\",\"stop_sequence\":null},\"usage\":{\"input_tokens\":",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"};
    struct hub r = {0};
    (void)state;

    open_echo(&r, "<tool_call> </think>", 64); /* all in one step */
    hub_ask(
        &r, MESSAGES,
        ask("<think>H.</think>Hm. <tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\": "
            "\"Rome\"}}</tool_call>",
            TOOLS ",\"stream\":true"),
        &r.a);
    assert_int_equal(r.a.status, 200);
    contains(r.a.head.data, "text/event-stream");
    const char *at = r.a.body.data, *next = at;
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        next = strstr(at, want[i]);
        if (!next)
            fail_msg("%s does not come in: %s", want[i], at);
        at = next + strlen(want[i]);
    }
    assert_string_equal(at, "");
    assert_int_equal(hub_count(r.a.body.data, "event: "), 13);
    hub_close(&r);
}

/* Each character comes in several tokens; none is cut in a delta. */
static void whole_code_points(void **state)
{
    static const char text[] = "\xf0\x9f\xa6\x91\xe1\x8c\xa2\xf0\x9f\xa7\xac <tool_call>{\"name\":"
                               "\"b\",\"arguments\":{\"k\":\"\xf0\x9f\xa6\x91\xe1\x8c\xa2\"}}";
    struct hub r = {0};
    (void)state;

    open_echo(&r, "<tool_call>", 1);
    same_streamed(&r, text, TOOLS);
    hub_ask(&r, MESSAGES, ask(text, TOOLS ",\"stream\":true"), &r.a);
    assert_int_equal(sv_utf8_valid(r.a.body.data, r.a.body.len), r.a.body.len);
    assert_null(strstr(r.a.body.data, "\xef\xbf\xbd"));
    hub_close(&r);
}

static void silent_streams_ping(void **state)
{
    struct hub r = {.o.ping_seconds = 1, .held = true};
    (void)state;

    hub_open(&r, false);
    int fd = hub_connect(&r);
    hub_post(fd, MESSAGES, "", ask("one two", "\"max_tokens\":2,\"stream\":true"));
    hub_await(fd, "event: ping\n");
    hub_let(&r, 2);
    answer_read(fd, &r.a);
    close(fd);
    assert_int_equal(r.a.status, 200);
    contains(r.a.body.data, "event: ping\ndata: {\"type\":\"ping\"}\n\nevent: ");
    hub_close(&r);
}

/* ---------------------------------------------------------------- ends */

static void why_answers_end(void **state)
{
    struct hub r = {.o.engine.context = 64};
    (void)state;

    r.fake.once = false; /* on and on */
    hub_open(&r, false);
    for (int stream = 0; stream < 2; stream++) {
        static const struct {
            const char *more, *reason, *sequence;
        } list[] = {
            {"\"max_tokens\":3", "max_tokens", NULL},
            {"\"max_tokens\":3000", "model_context_window_exceeded", NULL},
            {"\"max_tokens\":30,\"stop_sequences\":[\"zzz\",\"three\"]", "stop_sequence", "three"},
            {"\"max_tokens\":30,\"stop_token_ids\":[0]", "max_tokens", NULL},
        };
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
            char more[200];
            snprintf(more, sizeof more, "%s,\"stream\":%s", list[i].more,
                     stream ? "true" : "false");
            const char *body = ask("one two three four", more);
            json_t *v = stream ? blocks_of_stream(hub_events(&r, MESSAGES, body))
                               : json_incref(hub_json(&r, MESSAGES, body, 200));
            assert_string_equal(hub_text(v, "stop_reason"), list[i].reason);
            if (list[i].sequence)
                assert_string_equal(hub_text(v, "stop_sequence"), list[i].sequence);
            else
                assert_true(json_is_null(hub_at(v, "stop_sequence")));
            if (list[i].sequence)
                assert_null(strstr(hub_text(v, "content.0.text"), "three"));
            if (i == 0)
                assert_int_equal(hub_number(v, "usage.output_tokens"), 3);
            json_decref(v);
        }
    }
    hub_close(&r);
}

/* An answer goes on with what the assistant has said. */
static void begun_answers_go_on(void **state)
{
    struct hub r = {0};
    (void)state;

    open_with(&r,
              "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
              "{% if add_generation_prompt %}[assistant]{% endif %}",
              8);
    json_t *v =
        hub_json(&r, MESSAGES,
                 "{\"max_tokens\":900,\"messages\":[" USER("\"a\"") "," OWN("\"One, \"") "]}", 200);
    assert_string_equal(hub_text(v, "content.0.text"), "[user]a;[assistant]One, ");
    v = hub_json(&r, MESSAGES, ask("a", ""), 200);
    assert_string_equal(hub_text(v, "content.0.text"), "[user]a;[assistant]");
    hub_close(&r);
}

/* ---------------------------------------------------------------- counts */

static void counts(void **state)
{
    static const char body[] =
        "{\"model\":\"fake\",\"system\":\"Be brief.\",\"messages\":["
        "{\"role\":\"user\",\"content\":\"What is 12 times 13, and why is it "
        "what it is? Say it in words that a child knows.\"}]";
    struct hub r = {.real = true};
    char whole[400], count[400];
    (void)state;

    hub_open(&r, false);
    snprintf(whole, sizeof whole, "%s,\"max_tokens\":6,\"temperature\":0}", body);
    snprintf(count, sizeof count, "%s}", body);
    int64_t n = hub_number(hub_json(&r, COUNT, count, 200), "input_tokens");
    json_t *v = hub_json(&r, MESSAGES, whole, 200);
    assert_int_equal(hub_number(v, "usage.input_tokens"), n);
    snprintf(count, sizeof count, "%s,\"max_tokens\":null}", body); /* null is not there */
    assert_int_equal(hub_number(hub_json(&r, COUNT, count, 200), "input_tokens"), n);
    assert_int_equal(hub_number(v, "usage.cache_read_input_tokens"), 0);
    assert_int_equal(hub_number(v, "usage.cache_creation_input_tokens"), 0);
    assert_int_equal(hub_number(v, "usage.output_tokens"), 6);
    /* and what a kept prefix holds is counted apart, from the first event on */
    snprintf(whole, sizeof whole, "%s,\"max_tokens\":6,\"temperature\":0,\"stream\":true}", body);
    json_t *events = hub_events(&r, MESSAGES, whole);
    json_t *first = hub_at(json_array_get(events, 0), "message.usage");
    json_t *last = hub_at(json_array_get(events, json_array_size(events) - 2), "usage");
    assert_true(hub_number(first, "cache_read_input_tokens") > 0);
    assert_int_equal(
        hub_number(first, "input_tokens") + hub_number(first, "cache_read_input_tokens"), n);
    hub_same(hub_at(first, "cache_read_input_tokens"), hub_at(last, "cache_read_input_tokens"),
             "cached");
    hub_same(hub_at(first, "input_tokens"), hub_at(last, "input_tokens"), "input");
    assert_true(hub_number(first, "output_tokens") <= hub_number(last, "output_tokens"));
    /* tools are counted where a template shows them; this one's does not */
    v = hub_json(&r, COUNT,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"thinking\":{\"type\":"
                 "\"adaptive\"},\"tool_choice\":{\"type\":\"auto\"}," TOOLS "}",
                 200);
    assert_true(hub_number(v, "input_tokens") > 1);
    hub_close(&r);
}

/* ---------------------------------------------------------------- calls that must come */

static void calls_that_are_asked_for(void **state)
{
    static const char *const choices[] = {"{\"type\":\"any\",\"disable_parallel_tool_use\":true}",
                                          "{\"type\":\"tool\",\"name\":\"add\"}"};
    struct hub r = {.real = true};
    char more[700];
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 4; i++) {
        snprintf(
            more, sizeof more,
            "\"max_tokens\":200,\"temperature\":0,\"tools\":[{\"name\":\"add\",\"strict\":true,"
            "\"input_schema\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\","
            "\"minimum\":0,\"maximum\":99}},\"required\":[\"a\"],\"additionalProperties\":"
            "false}}],\"tool_choice\":%s,\"stream\":%s",
            choices[i & 1], i & 2 ? "true" : "false");
        json_t *v = i & 2 ? blocks_of_stream(hub_events(&r, MESSAGES, ask("hi", more)))
                          : json_incref(hub_json(&r, MESSAGES, ask("hi", more), 200));
        assert_string_equal(hub_text(v, "stop_reason"), "tool_use");
        assert_int_equal(json_array_size(hub_at(v, "content")), 1);
        assert_string_equal(hub_text(v, "content.0.name"), "add");
        assert_in_range(hub_number(v, "content.0.input.a"), 0, 99);
        json_decref(v);
    }
    /* a form, by either name */
    for (int i = 0; i < 2; i++) {
        snprintf(more, sizeof more,
                 i ? "\"output_format\":%s" : "\"output_config\":{\"format\":%s}",
                 "{\"type\":\"json_schema\",\"schema\":{\"enum\":[\"yes\",\"no\"]}}");
        json_t *v = hub_json(&r, MESSAGES, ask("hi", more), 200);
        contains("\"yes\"\"no\"", hub_text(v, "content.0.text"));
        assert_string_equal(hub_text(v, "stop_reason"), "end_turn");
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- errors */

/* It is Anthropic's, of this type, and says this. */
static void is_error(json_t *v, const char *type, const char *says)
{
    assert_int_equal(json_object_size(v), 3);
    assert_string_equal(hub_text(v, "type"), "error");
    assert_string_equal(hub_text(v, "error.type"), type);
    assert_true(strlen(hub_text(v, "request_id")) > 0);
    contains(hub_text(v, "error.message"), says);
}

#define ONE "\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]"
#define MSG(x) "{\"max_tokens\":9,\"messages\":[" x "]}"

static void fields_that_are_wrong(void **state)
{
    static const char *const list[][2] = {
        {"{", "the body is not valid JSON"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "'max_tokens' is missing"},
        {"{\"max_tokens\":9}", "'messages' is missing"},
        {"{\"max_tokens\":0,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "'max_tokens'"},
        {"{\"max_tokens\":\"9\",\"messages\":[]}", "'max_tokens' must be an integer"},
        {"{\"max_tokens\":9,\"messages\":[]}", "'messages' is empty"},
        {"{\"max_tokens\":9,\"messages\":{}}", "'messages' must be an array"},
        {"{" ONE ",\"n\":2}", "'n'"},
        {"{" ONE ",\"stop\":\"a\"}", "'stop'"},
        {"{" ONE ",\"temperature\":\"hot\"}", "'temperature' must be a number"},
        {"{" ONE ",\"top_k\":1.5}", "'top_k' must be an integer"},
        {"{" ONE ",\"stop_sequences\":[1]}", "'stop_sequences'"},
        {"{" ONE ",\"stream\":\"yes\"}", "'stream' must be a boolean"},
        {"{" ONE ",\"mcp_servers\":[{\"type\":\"url\"}]}", "'mcp_servers' is not supported"},
        {"{" ONE ",\"system\":5}", "'system' must be a string or an array"},
        {"{" ONE ",\"system\":[{\"type\":\"image\"}]}", "'system[0].type': 'image'"},
        {"{" ONE ",\"thinking\":true}", "'thinking' must be an object"},
        {"{" ONE ",\"thinking\":{\"type\":\"on\"}}", "'thinking.type' must be"},
        {"{" ONE ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":0}}",
         "'thinking.budget_tokens'"},
        {"{" ONE ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":2.5}}",
         "'thinking.budget_tokens'"},
        {"{" ONE ",\"thinking\":{\"type\":\"adaptive\",\"depth\":1}}", "'thinking.depth'"},
        {"{" ONE ",\"thinking\":{\"type\":\"adaptive\",\"display\":\"all\"}}",
         "'thinking.display'"},
        {"{" ONE ",\"output_config\":{\"effort\":\"much\"}}", "'output_config.effort'"},
        {"{" ONE ",\"output_config\":{\"speed\":1}}", "'output_config.speed'"},
        {"{" ONE ",\"output_config\":{\"format\":{\"type\":\"text\"}}}",
         "'output_config.format.type'"},
        {"{" ONE ",\"output_format\":{\"type\":\"json_schema\"}}", "'output_format.schema'"},
        {"{" ONE ",\"output_format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"thing\"}}}",
         "'output_format.schema': schema: "},
        {"{" ONE ",\"tools\":{}}", "'tools' must be an array"},
        {"{" ONE ",\"tools\":[5]}", "'tools[0]' must be an object"},
        {"{" ONE ",\"tools\":[{\"name\":\"a\",\"input_schema\":{}},{\"name\":\"b\"}]}",
         "'tools[1].input_schema' must be an object"},
        {"{" ONE ",\"tools\":[{\"input_schema\":{}}]}", "'tools[0].name' must be a string"},
        {"{" ONE ",\"tools\":[{\"name\":\"a\\u0000b\",\"input_schema\":{}}]}",
         "'tools[0].name' must be a string"},
        /* not the form, but a tool beside it */
        {"{" ONE ",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{}}},"
         "\"tools\":[{\"name\":\"a\",\"input_schema\":{\"type\":\"thing\"}}]}",
         "'tools': tools[0].input_schema: "},
        {"{" ONE ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":\"web_search\"}]}",
         "'tools[0].type': 'web_search_20250305'"},
        {"{" ONE ",\"tools\":[{\"name\":\"a\",\"input_schema\":{\"type\":\"thing\"}}],"
         "\"tool_choice\":{\"type\":\"any\"}}",
         "tools[0].input_schema"},
        {"{" ONE ",\"tool_choice\":\"any\"}", "'tool_choice' must be an object"},
        {"{" ONE ",\"tool_choice\":{\"type\":\"required\"}}", "'tool_choice.type' must be"},
        {"{" ONE ",\"tool_choice\":{\"type\":\"any\"}}", "there are no 'tools'"},
        {"{" ONE ",\"tool_choice\":{\"type\":\"tool\"}}", "'tool_choice.name'"},
        {"{" ONE ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"c\"}," TOOLS "}",
         "no tool is called 'c'"},
        {"{" ONE ",\"tool_choice\":{\"type\":\"auto\",\"among\":[]}}", "'tool_choice.among'"},
        {"{" ONE ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":1}}",
         "'tool_choice.disable_parallel_tool_use'"},
        {MSG("5"), "'messages[0]' must be an object"},
        {MSG("{\"role\":\"tool\",\"content\":\"a\"}"), "'messages[0].role' must be"},
        {MSG("{\"role\":\"user\"}"), "'messages[0].content' must be"},
        {MSG(USER("[]")), "'messages[0].content' is empty"},
        {MSG(USER("\"a\"") "," OWN("\"b\"") "," USER(
             "[" TEXT("c") ",{\"type\":\"image\",\"source\":{}}]")),
         "'messages[2].content[1]': this model takes no images"},
        {MSG(USER("[{\"type\":\"document\"}]")), "'messages[0].content[0].type': 'document'"},
        {MSG(USER("[{\"text\":\"a\"}]")), "'messages[0].content[0].type' must be a string"},
        {MSG(USER("[{\"type\":\"text\"}]")), "'messages[0].content[0].text' must be a string"},
        {MSG(USER("[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\",\"input\":{}}]")),
         "it belongs to the assistant's turn"},
        {MSG(USER("[{\"type\":\"tool_result\"}]")), "'messages[0].content[0].tool_use_id'"},
        {MSG(USER(
             "[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":[{\"type\":\"text\","
             "\"text\":\"a\"},{\"type\":\"image\"}]}]")),
         "'messages[0].content[0].content[1]': this model takes no images"},
        {MSG(USER("[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"is_error\":\"no\"}]")),
         "'messages[0].content[0].is_error' must be a boolean"},
        {MSG(USER("\"a\"") "," OWN("[{\"type\":\"tool_result\",\"tool_use_id\":\"a\"}]")),
         "it belongs to the user's turn"},
        {MSG(USER("\"a\"") "," OWN("[{\"type\":\"thinking\"}]")),
         "'messages[1].content[0].thinking' must be a string"},
        {MSG(USER("\"a\"") "," OWN(
             "[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\",\"input\":1}]")),
         "'messages[1].content[0].input' must be an object"},
        {MSG(USER("\"a\"") "," OWN("[{\"type\":\"tool_use\",\"name\":\"b\",\"input\":{}}]")),
         "'messages[1].content[0].id' must be a string"},
        {MSG(USER("\"a\"") "," OWN(
             "[{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"b\",\"input\":{}}]")),
         "'messages[1]': behind a 'tool_use'"},
        {MSG(USER("\"a\"") "," OWN("[]")), "must have a text to go on with"},
        {MSG(USER("\"a\"") "," OWN("\" \\n\"")),
         "'messages[1]': an assistant's message at the end"},
        {MSG("{\"role\":\"system\",\"content\":\"a\"}"), "no message of the user"},
    };
    struct hub r = {.o.refuse_unknown = true, .o.strict_model = true};
    (void)state;

    open_echo(&r, "<tool_call>", 1);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        is_error(hub_json(&r, MESSAGES, list[i][0], 400), "invalid_request_error", list[i][1]);
    is_error(hub_json(&r, COUNT, "{\"messages\":[5]}", 400), "invalid_request_error",
             "'messages[0]' must be an object");
    /* what the SDK's loop of tools, and agents with long prompts, look for */
    json_t *v = hub_json(&r, MESSAGES, "{" ONE ",\"thread\":{\"type\":\"create\"}}", 400);
    is_error(v, "invalid_request_error", "'thread'");
    assert_string_equal(hub_text(v, "error.details.error_code"), "thread_unsupported_request");
    struct sv_buf long_text;
    sv_buf_init(&long_text);
    for (int i = 0; i < 5000; i++)
        sv_buf_lit(&long_text, "word ");
    v = hub_json(&r, MESSAGES, ask(long_text.data, ""), 400);
    sv_buf_fini(&long_text);
    is_error(v, "invalid_request_error", "prompt is too long: 'messages' has ");
    assert_string_equal(hub_text(v, "error.details.error_code"), "context_length_exceeded");
    is_error(hub_json(&r, COUNT, "[]", 400), "invalid_request_error", "must be a JSON object");
    is_error(hub_json(&r, MESSAGES, "{" ONE ",\"model\":\"claude\"}", 404), "not_found_error",
             "'claude' does not exist");
    is_error(hub_json(&r, COUNT, "{" ONE ",\"model\":\"claude\"}", 404), "not_found_error",
             "'claude' does not exist");
    is_error(hub_json(&r, MESSAGES "/batches", "{}", 404), "not_found_error", "batches");
    is_error(hub_json(&r, MESSAGES "/other", "{}", 404), "not_found_error", "there is no");
    is_error(hub_json(&r, MESSAGES, NULL, 405), "invalid_request_error", "takes POST");
    /* what has no effect, and what asks for nothing */
    hub_json(
        &r, MESSAGES,
        "{" ONE ",\"model\":\"fake\",\"metadata\":{\"user_id\":\"u\"},\"service_tier\":\"auto\","
        "\"cache_control\":{\"type\":\"ephemeral\"},\"context_management\":{\"edits\":[{\"type\":"
        "\"clear_thinking_20251015\",\"keep\":\"all\"}]},\"mcp_servers\":[],\"container\":null,"
        "\"temperature\":1.0,\"top_p\":0.9,\"top_k\":40,\"seed\":1,\"width\":1}",
        200);
    hub_close(&r);
}

static void with_headers(struct hub *r, const char *headers, const char *body, int status)
{
    int fd = hub_connect(r);

    hub_post(fd, MESSAGES, headers, body);
    answer_read(fd, &r->a);
    close(fd);
    assert_int_equal(r->a.status, status);
}

static void error_of(struct hub *r, const char *type, const char *says)
{
    struct sv_err err;
    json_t *v = sv_json_parse(r->a.body.data, r->a.body.len, &err);

    is_error(v, type, says);
    json_decref(v);
}

static void errors_of_the_server(void **state)
{
    struct hub r = {.o = {.api_key = "k", .max_body_bytes = 4096}};
    struct hub busy = {.o = {.max_queue = 1, .engine.max_sequences = 1}, .held = true};
    struct hub loading = {.loads = true};
    struct sv_buf b;
    int fd[2];
    (void)state;

    hub_open(&r, false);
    with_headers(&r, "x-request-id: mine\r\nanthropic-version: 2023-06-01\r\n", SMALL "}", 401);
    error_of(&r, "authentication_error", "API key");
    contains(r.a.body.data, "\"request_id\":\"mine\"");
    contains(r.a.head.data, "request-id: mine\r\n");
    with_headers(&r, "x-api-key: k\r\nanthropic-version: 2023-06-01\r\nanthropic-beta: a,b\r\n",
                 SMALL "}", 200);
    contains(r.a.head.data, "\r\nrequest-id: ");
    with_headers(&r, "x-api-key: k\r\nContent-Encoding: gzip\r\n", SMALL "}", 415);
    error_of(&r, "invalid_request_error", "gzip");
    sv_buf_init(&b);
    sv_buf_printf(&b, SMALL ",\"system\":\"%05000d\"}", 0);
    with_headers(&r, "x-api-key: k\r\n", b.data, 413);
    error_of(&r, "request_too_large", "bytes");
    sv_buf_fini(&b);
    hub_close(&r);

    hub_open(&busy, false);
    for (int i = 0; i < 2; i++) {
        fd[i] = hub_connect(&busy);
        hub_post(fd[i], MESSAGES, "",
                 ask("one two three", i ? "\"max_tokens\":40" : "\"max_tokens\":4000"));
        hub_metric_becomes(&busy, "salvo_running_sequences", i + 1);
    }
    is_error(hub_json(&busy, MESSAGES, SMALL "}", 429), "rate_limit_error", "queue");
    close(fd[0]);
    hub_let(&busy, HUB_ALL);
    answer_read(fd[1], &busy.a);
    assert_int_equal(busy.a.status, 200);
    close(fd[1]);
    hub_close(&busy);

    hub_open(&loading, false);
    is_error(hub_json(&loading, MESSAGES, SMALL "}", 503), "overloaded_error", "loaded");
    is_error(hub_json(&loading, COUNT, SMALL "}", 503), "overloaded_error", "loaded");
    hub_close(&loading);
}

static void error_in_a_stream(void **state)
{
    struct hub r = {.fake.fail_at_step = 4};
    (void)state;

    hub_open(&r, false);
    hub_ask(&r, MESSAGES, ask("one two", "\"stream\":true"), &r.a);
    assert_int_equal(r.a.status, 200);
    const char *at = strstr(r.a.body.data, "event: error\ndata: ");
    contains(r.a.body.data, "event: content_block_delta\n");
    assert_non_null(at);
    contains(at, "{\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"the fake "
                 "device failed\"},\"request_id\":\"");
    assert_null(strstr(r.a.body.data, "[DONE]"));
    assert_null(strstr(r.a.body.data, "message_stop"));
    hub_close(&r);
}

/* Whatever finds no memory, a body is not taken for another one. */
static void no_memory(void **state)
{
    struct sv_err err;
    struct sv_buf body;
    int status = 500;
    (void)state;

    sv_buf_init(&body);
    assert_int_equal(
        sv_file_read(&body, sv_test_path("tests/fuzz/corpus/request/messages.json"), 1 << 20, &err),
        SV_OK);
    const int64_t before = sv_alloc_live();
    for (int64_t nth = 1; status != 200; nth++) {
        sv_fault_arm(nth);
        status = sv_serve_check_body(MESSAGES, body.data, body.len);
        const int64_t calls = sv_fault_calls();
        sv_fault_arm(0);
        if ((status == 200) != (calls < nth))
            fail_msg("the %lld-th of %lld allocations fails: %d", (long long)nth, (long long)calls,
                     status);
        assert_int_equal(sv_alloc_live(), before);
    }
    sv_buf_fini(&body);
}

/* ---------------------------------------------------------------- clients that leave */

static void leaving_cancels(void **state)
{
    struct hub r = {.fake.step_us = 20000};
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 2; i++) {
        int fd = hub_connect(&r);
        hub_post(fd, MESSAGES, "",
                 ask("one two three",
                     i ? "\"max_tokens\":1500,\"stream\":true" : "\"max_tokens\":1500"));
        hub_metric_becomes(&r, "salvo_running_sequences", 1);
        close(fd);
        hub_metric_becomes(&r, "salvo_running_sequences", 0);
        hub_metric_becomes(&r, "salvo_sequences_total{result=\"canceled\"}", i + 1);
    }
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(messages_for_the_template),
             cmocka_unit_test(tools_and_reasoning_for_the_template),
             cmocka_unit_test(whole_answers), cmocka_unit_test(reasoning),
             cmocka_unit_test(streams_are_their_answers), cmocka_unit_test(events_of_a_stream),
             cmocka_unit_test(whole_code_points), cmocka_unit_test(silent_streams_ping),
             cmocka_unit_test(why_answers_end), cmocka_unit_test(begun_answers_go_on),
             cmocka_unit_test(counts), cmocka_unit_test(calls_that_are_asked_for),
             cmocka_unit_test(fields_that_are_wrong), cmocka_unit_test(errors_of_the_server),
             cmocka_unit_test(error_in_a_stream), cmocka_unit_test(no_memory),
             cmocka_unit_test(leaving_cancels))
