/*
 * test_responses.c - /v1/responses: answers whole and as events, conversations from items, failing,
 * refusals.
 */
#include "serve/responses.h"

#include "serve/core/deltas.h"
#include "serve/openai/responses.h"
#include "testing.h"

#include <stdio.h>
#include <string.h>

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"name\":\"get_weather\",\"strict\":null,\"parameters\":"   \
    "{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":"                \
    "{\"type\":\"integer\"}}}},{\"type\":\"function\",\"name\":\"b\"}]"
#define TWO_CALLS                                                                                  \
    "<think>\nIs it 1 < 2? \xc3\xa4\xe2\x82\xac\n</think>\n\nI look. \xf0\x9f\x98\x80\n"           \
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"K\xc3\xb6ln\"}}\n"       \
    "</tool_call>\n<tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n</tool_call>"

/* ---------------------------------------------------------------- whole answers */

static void answers_are_items(void **state)
{
    struct hub r = {0};
    (void)state;

    rsp_echo(&r, "<tool_call> </think>", 5);
    json_t *v = rsp_answer(&r, TWO_CALLS, TOOLS ",\"metadata\":{\"a\":\"b\"},\"user\":\"me\"");
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
    v = rsp_answer(
        &r, TWO_CALLS,
        "\"tools\":[{\"type\":\"function\",\"name\":\"get_weather\"},{\"type\":"
        "\"namespace\",\"name\":\"letters\",\"tools\":[{\"type\":\"function\",\"name\":\"b\"}]}]");
    assert_null(hub_at(v, "output.2.namespace"));
    assert_string_equal(hub_text(v, "output.3.namespace"), "letters");
    v = rsp_answer(&r, TWO_CALLS, TOOLS ",\"parallel_tool_calls\":false");
    assert_int_equal(json_array_size(hub_at(v, "output")), 3);
    assert_true(json_is_false(hub_at(v, "parallel_tool_calls")));
    v = rsp_answer(&r, TWO_CALLS, TOOLS ",\"include_reasoning\":false,\"tool_choice\":\"none\"");
    assert_int_equal(json_array_size(hub_at(v, "output")), 1);
    hub_close(&r);
}

static void answers_that_are_cut(void **state)
{
    struct hub r = {0};
    (void)state;

    rsp_echo(&r, "<tool_call> </think>", 2);
    json_t *v = rsp_answer(&r, "one two three four five six", "\"max_output_tokens\":3");
    assert_string_equal(hub_text(v, "status"), "incomplete");
    assert_string_equal(hub_text(v, "incomplete_details.reason"), "max_output_tokens");
    assert_string_equal(hub_text(v, "output.0.status"), "incomplete");
    assert_int_equal(hub_number(v, "max_output_tokens"), 3);
    assert_int_equal(hub_number(v, "usage.output_tokens"), 3);
    /* Within a call: what was over stays complete. */
    v = rsp_answer(
        &r,
        "Hm. <tool_call>{\"name\":\"b\",\"arguments\":{\"xyz\": \"some text and more of it, and then some more, and on and on it goes\"}}",
        TOOLS ",\"max_output_tokens\":28");
    assert_string_equal(hub_text(v, "output.0.status"), "completed");
    assert_string_equal(hub_text(v, "output.1.status"), "incomplete");
    assert_string_equal(hub_text(v, "output.1.name"), "b");
    v = rsp_answer(&r, "<think>on and on and on", "");
    assert_int_equal(json_array_size(hub_at(v, "output")), 1);
    assert_string_equal(hub_text(v, "output.0.type"), "reasoning");
    /* Nothing is a message, too. */
    v = rsp_answer(&r, "stop here", "\"stop\":\"stop\"");
    assert_string_equal(hub_text(v, "status"), "completed");
    assert_string_equal(hub_text(v, "output.0.content.0.text"), "");
    hub_close(&r);
}

/* ---------------------------------------------------------------- streams */

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
    json_t *v = rsp_answer(r, text, TOOLS);
    json_t *s = rsp_follow(hub_events(r, AT, rsp_ask(text, TOOLS ",\"stream\":true")));

    hub_same(hub_at(s, "status"), hub_at(v, "status"), text);
    hub_same(hub_at(s, "usage.output_tokens_details"), hub_at(v, "usage.output_tokens_details"),
             text);
    hub_same(plain(hub_at(s, "output")), plain(hub_at(v, "output")), text);
}

static void streams_are_their_answers(void **state)
{
    (void)state;
    hub_each_answer(rsp_echo, is_its_answer);
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

    rsp_echo(&r, "", 64);
    hub_ask(&r, AT, rsp_ask("Good morning.", "\"stream\":true"), &r.a);
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
    hub_ask(&r, AT, rsp_ask("one two three four five", "\"stream\":true,\"max_output_tokens\":2"),
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

    rsp_echo(&r, "<tool_call> </think>", 3);
#define INCLUDE "\"top_logprobs\":2,\"include\":[\"message.output_text.logprobs\"]"
    json_t *v = rsp_answer(&r, "<think>\nOne two three.\n</think>\n\nYes, I say.", INCLUDE);
    json_t *list = hub_at(v, "output.1.content.0.logprobs");
    int64_t want = hub_number(v, "usage.output_tokens") -
                   hub_number(v, "usage.output_tokens_details.reasoning_tokens");
    assert_int_equal(json_array_size(list), want);
    assert_int_equal(json_array_size(hub_at(list, "0.top_logprobs")), 2);
    json_t *events = hub_events(
        &r, AT,
        rsp_ask("<think>\nOne two three.\n</think>\n\nYes, I say.", INCLUDE ",\"stream\":true"));
    json_array_foreach(events, i, e) {
        if (rsp_is(e, "response.output_text.delta"))
            n += json_array_size(hub_at(e, "logprobs"));
        if (rsp_is(e, "response.output_text.done"))
            hub_same(hub_at(e, "logprobs"), list, "logprobs");
    }
    assert_in_range(n, (size_t)want - 3, (size_t)want); /* those without a text come with the end */
    hub_same(hub_at(rsp_follow(events), "output.1.content.0.logprobs"), list, "logprobs");
    /* The end says of an item what was said of it when it was over, also of one before a call. */
    rsp_follow(hub_events(&r, AT,
                          rsp_ask("I look. <tool_call>\n{\"name\": \"b\", \"arguments\": {}}\n"
                                  "</tool_call>",
                                  INCLUDE ",\"stream\":true," TOOLS)));
    v = rsp_answer(&r, "Yes.", "\"top_logprobs\":2");
    assert_int_equal(json_array_size(hub_at(v, "output.0.content.0.logprobs")), 0);
    hub_close(&r);
}

/* What a long thought comes to is written beside the loop, though the answer goes on. */
static void long_items_in_the_middle(void **state)
{
    struct hub r = {.fake.step_us = 100, .o.engine.context = 1 << 20, .o.stream_gap_us = 1000};
    struct sv_buf text;
    (void)state;

    rsp_echo(&r, "<tool_call> </think>", 8);
    sv_buf_init(&text);
    sv_buf_lit(&text, "<think>\n");
    for (int i = 0; i < 16000; i++)
        sv_buf_lit(&text, "word ");
    sv_buf_lit(&text, "\n</think>\n\nI look.\n<tool_call>\n"
                      "{\"name\": \"b\", \"arguments\": {}}\n</tool_call>");
    json_t *v = rsp_follow(
        hub_events(&r, AT,
                   rsp_ask(text.data, TOOLS
                           ",\"ignore_eos\":true,\"stream\":true,\"max_output_tokens\":24000")));
    assert_true(json_array_size(hub_at(v, "output")) >= 3);
    assert_int_equal(strlen(hub_text(v, "output.0.content.0.text")), 16000 * 5 - 1);
    assert_string_equal(hub_text(v, "output.1.content.0.text"), "I look.");
    double most = hub_metric(&r, "salvo_loop_turn_bytes_max");
    print_message("%.0f bytes in a turn at most\n", most);
    assert_true(most <= 2 * 65536);
    sv_buf_fini(&text);
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

    rsp_open(&r, "", "{{ messages | tojson }}", 64);
    json_t *a = hub_json(&r, AT, rsp_items(list, "\"instructions\":\"Do it.\""), 200);
    hub_same(rsp_shown(&r, a), v, "messages");
    json_decref(v);
    a = hub_json(&r, AT, "{\"input\":\"hi\",\"instructions\":null,\"tools\":null}", 200);
    assert_int_equal(json_array_size(rsp_shown(&r, a)), 1);
    hub_close(&r);
}

/* ---------------------------------------------------------------- failing */

static void a_device_that_fails(void **state)
{
    struct hub r = {.fake.fail_at_step = 6, .fake.step_us = 1000};
    (void)state;

    rsp_echo(&r, "", 1);
    hub_ask(&r, AT, rsp_ask("one two three four five six seven eight nine ten", "\"stream\":true"),
            &r.a);
    assert_int_equal(r.a.status, 200);
    const char *at = strstr(r.a.body.data, "event: response.failed\n");
    assert_non_null(at);
    assert_non_null(strstr(at, "\"status\":\"failed\""));
    assert_non_null(strstr(at, "\"error\":{\"code\":\"server_error\",\"message\":\""));
    assert_null(strstr(r.a.body.data, "[DONE]"));
    assert_int_equal(hub_count(r.a.body.data, "event: response.output_item.done\n"), 1);
    hub_close(&r);

    /* Before there is a word that could be told: its end tells of no item either. */
    struct hub early = {.fake.fail_at_step = 3, .fake.step_us = 1000};
    rsp_echo(&early, "<tool_call> </think>", 1);
    hub_ask(&early, AT, rsp_ask("<tool_call>\n{\"name\": \"b\"", TOOLS ",\"stream\":true"),
            &early.a);
    assert_non_null(strstr(early.a.body.data, "event: response.failed\n"));
    assert_int_equal(hub_count(early.a.body.data, "event: response.output_item.added\n"), 0);
    assert_int_equal(hub_count(early.a.body.data, "\"output\":[]"), 3);
    hub_close(&early);
}

/* Also what waited for the other thread is told before the end tells of it. */
static void failing_while_something_waits(void **state)
{
    static const struct sv_serve_model m;
    struct sv_serve s = {.model = &m, .model_name = "m"};
    struct sv_response own = {0};
    struct sv_choice g = {0};
    struct sv_call c = {
        .s = &s, .choices = &g, .n_choices = 1, .p.think_format = SV_THINK_TAG, .own = &own};
    struct sv_api_err e;
    struct sv_buf b, text;
    (void)state;

    c.p.stream = c.p.include_reasoning = c.p.stream_reasoning = true;
    g.call = &c;
    sv_buf_init(&b);
    sv_buf_init(&text);
    sv_buf_printf(&text, "<think>\n%030000d\n</think>\n\nI look.", 0);
    assert_int_equal(sv_deltas_open(&g), 0);
    struct sv_out o = {.text = text.data, .n_text = (uint32_t)text.len};
    sv_dialect_responses.chunk(&c, &g, &o, &b);
    g.shown = true;
    assert_int_equal(hub_count(b.data, "event: response.output_item.added\n"), 1);
    assert_int_equal(hub_count(b.data, "event: response.output_item.done\n"), 0);
    sv_api_no_memory(&e);
    (sv_dialect_responses.fail)(&c, &e, &b); /* cmocka has a macro of this name */
    assert_int_equal(hub_count(b.data, "event: response.output_item.added\n"), 2);
    assert_int_equal(hub_count(b.data, "event: response.output_item.done\n"), 2);
    assert_int_equal(hub_count(b.data, "event: response.failed\n"), 1);
    assert_false(b.failed);
    sv_deltas_close(&g);
    sv_buf_fini(&own.lp_sent);
    sv_buf_fini(&c.head);
    sv_buf_fini(&text);
    sv_buf_fini(&b);
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
                 rsp_ask("Who?", "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":"
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
                 rsp_ask("Who?", "\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"who\","
                                 "\"schema\":{\"type\":\"thing\"}}}"),
                 400);
    assert_string_equal(hub_text(v, "error.param"), "text.format.schema");

#define THREE                                                                                      \
    "\"temperature\":1,\"max_output_tokens\":120,\"tools\":[{\"type\":\"function\",\"name\":"      \
    "\"f\"},{\"type\":\"function\",\"name\":\"g\"},{\"type\":\"function\",\"name\":\"h\"}],"       \
    "\"tool_choice\":{\"type\":"
    v = hub_json(&r, AT, rsp_ask("Go.", THREE "\"function\",\"name\":\"g\"}"), 200);
    assert_string_equal(hub_text(v, "output.0.name"), "g");
    for (int i = 0; i < 4; i++) {
        char more[400];
        snprintf(more, sizeof more,
                 THREE "\"allowed_tools\",\"mode\":\"required\",\"tools\":[{\"type\":\"function\","
                       "\"name\":\"f\"},{\"type\":\"function\",\"name\":\"h\"}]},\"seed\":%d,"
                       "\"parallel_tool_calls\":false",
                 i);
        v = hub_json(&r, AT, rsp_ask("Go.", more), 200);
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
         "input[0].content[1]"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\"}]}]}",
         "input[0].content[0].text"},
        {"{\"input\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":5}]}]}",
         "input[0].content[0].refusal"},
        {"{\"input\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", "input[0].content[0]"},
        {"{\"input\":[{\"role\":\"user\",\"content\":\"a\",\"id\":5}]}", "input[0].id"},
        {"{\"input\":\"a\",\"user\":{\"a\":1}}", "user"},
        {"{\"input\":\"a\",\"service_tier\":5}", "service_tier"},
        {"{\"input\":\"a\",\"safety_identifier\":[]}", "safety_identifier"},
        {"{\"input\":\"a\",\"prompt_cache_key\":true}", "prompt_cache_key"},
        {"{\"input\":\"a\",\"max_tool_calls\":\"3\"}", "max_tool_calls"},
        {"{\"input\":\"a\",\"max_tool_calls\":0}", "max_tool_calls"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"tools\":[]}]}", "tools[0].name"},
        {"{\"input\":\"a\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"tools\":{}}]}",
         "tools[0].tools"},
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
    struct hub r = {.o.refuse_unknown = true};
    (void)state;

    rsp_echo(&r, "<tool_call>", 1);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        json_t *v = hub_json(&r, AT, list[i][0], 400);
        if (!json_is_string(hub_at(v, "error.param")) ||
            strcmp(hub_text(v, "error.param"), list[i][1]) != 0)
            fail_msg("%s: %s", list[i][0], json_dumps(v, 0));
        assert_string_equal(hub_text(v, "error.type"), "invalid_request_error");
    }
    hub_json(&r, AT,
             rsp_ask("a",
                     "\"prompt_cache_key\":\"k\",\"safety_identifier\":\"s\",\"service_tier\":"
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
    json_t *e = hub_json(&r, AT, rsp_ask(text.data, ""), 400);
    assert_string_equal(hub_text(e, "error.code"), "context_length_exceeded");
    assert_string_equal(hub_text(e, "error.param"), "input");
    sv_buf_fini(&text);
    hub_json(&r, rsp_path("resp_0", ""), NULL, 404);
    rsp_send_empty(&r, "PUT", rsp_path("resp_0", ""), 405);
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
    static const struct sv_serve s; /* with nothing that is kept */
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
        rc = sv_params_read(&p, &sv_dialect_responses, root, NULL, &e);
        if (!rc)
            rc = sv_responses_messages(&s, -1, &p, NULL, "0", &lines, &e);
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
             cmocka_unit_test(log_probabilities), cmocka_unit_test(long_items_in_the_middle),
             cmocka_unit_test(items_become_messages), cmocka_unit_test(a_device_that_fails),
             cmocka_unit_test(failing_while_something_waits), cmocka_unit_test(forms_of_answers),
             cmocka_unit_test(what_is_refused), cmocka_unit_test(memory_that_runs_out))
