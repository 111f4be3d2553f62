/*
 * test_harmony.c - answers in gpt-oss's format through the APIs of chats, with markers that are
 * special tokens, on the instant engine, whose answer is its prompt; earlier turns and tools in its
 * chat template; constrained answers on the demo pair.
 */
#include "serve/hub.h"
#include "serve/serve.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>

#define CHAT "/v1/chat/completions"
#define RESPONSES "/v1/responses"
#define MESSAGES "/v1/messages"
#define SIGN "{# <|channel|>analysis #}"
#define THOUGHT "<|channel|>analysis<|message|>Look \xc3\xa4 up.<|end|><|start|>assistant"
#define PREAMBLE "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
#define CALL " to=functions.b<|channel|>commentary <|constrain|>json<|message|>{\"x\": [1]}<|call|>"
#define FINAL "<|channel|>final<|message|>It is 4.\n<|return|>"
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"b\"}}]"

/* The demo's tokenizer, where harmony's markers are special tokens. */
static const char *special_dir(void)
{
    static const char *const names[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                        "<|end|>",   "<|call|>",    "<|return|>",    "<|other|>"};
    struct sv_err err;
    json_t *t = sv_json_load(sv_test_path("models/demo/target/tokenizer.json"), 1 << 26, &err);

    assert_non_null(t);
    for (int i = 0; i < 8; i++)
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

/* A server whose answer is what the template makes. */
static void open_with(struct hub *r, const char *template)
{
    const char *path = sv_test_tmp("own.jinja");
    struct sv_err err;

    assert_int_equal(sv_file_write(path, template, strlen(template), &err), SV_OK);
    r->o.chat_template = path;
    r->fake.burst = 3;
    r->fake.once = true;
    hub_open(r, false);
}

static void open_echo(struct hub *r)
{
    r->o.engine.target_dir = special_dir();
    open_with(r, SIGN "{{ messages[-1].content }}");
}

/* A body with this text as its only message. */
static const char *ask(const char *text, const char *more)
{
    static struct sv_buf b; /* of the test's process, which ends with it */

    sv_buf_fini(&b);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"messages\":[{\"role\":\"user\",\"content\":");
    sv_json_quote(&b, text, strlen(text));
    sv_buf_printf(&b, "}]%s%s}", *more ? "," : "", more);
    assert_false(b.failed);
    return b.data;
}

static json_t *choice(struct hub *r, const char *text, const char *more)
{
    return hub_at(hub_json(r, CHAT, ask(text, more), 200), "choices.0");
}

/* ---------------------------------------------------------------- answers */

static void chats(void **state)
{
    struct hub r = {0};
    (void)state;

    open_echo(&r);
    json_t *caps = hub_at(hub_json(&r, "/props", NULL, 200), "chat_template_caps");
    assert_string_equal(hub_text(caps, "tool_parser"), "harmony");
    assert_string_equal(hub_text(caps, "reasoning_parser"), "harmony");

    json_t *whole = hub_json(&r, CHAT, ask(THOUGHT FINAL, ""), 200),
           *v = hub_at(whole, "choices.0");
    assert_string_equal(hub_text(v, "message.reasoning_content"), "Look \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "message.content"), "It is 4.\n");
    assert_string_equal(hub_text(v, "finish_reason"), "stop");
    json_t *n =
        hub_json(&r, "/tokenize", "{\"prompt\":\"" THOUGHT "<|channel|>final<|message|>\"}", 200);
    assert_int_equal(hub_number(whole, "usage.completion_tokens_details.reasoning_tokens"),
                     hub_number(n, "count"));

    v = choice(&r, THOUGHT PREAMBLE CALL, TOOLS);
    assert_string_equal(hub_text(v, "message.reasoning_content"), "Look \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "message.content"), "I look.");
    assert_int_equal(json_array_size(hub_at(v, "message.tool_calls")), 1);
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.name"), "b");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.arguments"), "{\"x\": [1]}");
    assert_string_equal(hub_text(v, "finish_reason"), "tool_calls");
    /* Texts of several messages are lines of their own. */
    v = choice(&r, THOUGHT PREAMBLE THOUGHT FINAL, "");
    assert_string_equal(hub_text(v, "message.reasoning_content"),
                        "Look \xc3\xa4 up.\nLook \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "message.content"), "I look.\nIt is 4.\n");
    /* Cut by its length within the arguments. */
    v = choice(&r,
               "<|channel|>commentary to=functions.b<|message|>{\"x\": \"one two three four five "
               "six seven eight nine ten eleven twelve thirteen fourteen\"}",
               TOOLS ",\"max_tokens\":24");
    assert_string_equal(hub_text(v, "finish_reason"), "length");
    const char *args = hub_text(v, "message.tool_calls.0.function.arguments");
    assert_true(*args == '{' && !strchr(args, '}'));
    hub_close(&r);
}

static void fields_of_chats(void **state)
{
    struct hub r = {0};
    (void)state;

    open_echo(&r);
    /* Without tools a call is content. */
    json_t *v = choice(&r, THOUGHT CALL, "");
    assert_null(hub_at(v, "message.tool_calls"));
    assert_string_equal(hub_text(v, "message.content"), "{\"x\": [1]}");
    v = choice(&r, THOUGHT CALL, TOOLS ",\"tool_choice\":\"none\"");
    assert_string_equal(hub_text(v, "message.content"), "{\"x\": [1]}");
    assert_string_equal(hub_text(v, "finish_reason"), "stop");

    v = choice(&r, THOUGHT FINAL, "\"include_reasoning\":false");
    assert_null(hub_at(v, "message.reasoning_content"));
    assert_string_equal(hub_text(v, "message.content"), "It is 4.\n");
    v = choice(&r, THOUGHT CALL, TOOLS ",\"separate_reasoning\":false");
    assert_null(hub_at(v, "message.reasoning_content"));
    assert_string_equal(hub_text(v, "message.content"),
                        "<|channel|>analysis<|message|>Look \xc3\xa4 up.<|end|>");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.name"), "b");
    v = choice(&r, THOUGHT FINAL, "\"separate_reasoning\":false");
    assert_string_equal(hub_text(v, "message.content"),
                        "<|channel|>analysis<|message|>Look \xc3\xa4 up.<|end|>\nIt is 4.\n");
    /* Other special tokens are left out; all are kept on request. */
    v = choice(&r, "<|channel|>final<|message|>a<|other|>b", "");
    assert_string_equal(hub_text(v, "message.content"), "ab");
    v = choice(&r, "<|channel|>final<|message|>a<|other|>b", "\"skip_special_tokens\":false");
    assert_string_equal(hub_text(v, "message.content"), "a<|other|>b");
    /* A completion is not parsed. */
    v = hub_json(&r, "/v1/completions", "{\"prompt\":\"<|channel|>final<|message|>a\"}", 200);
    assert_string_equal(hub_text(v, "choices.0.text"), "finala");

    /* The reasoning in one piece. */
    json_t *events = hub_events(&r, CHAT,
                                ask(THOUGHT THOUGHT FINAL, "\"stream\":true,"
                                                           "\"stream_reasoning\":false")),
           *e;
    size_t i, n = 0;
    json_array_foreach(events, i, e) {
        if (!hub_at(e, "choices.0.delta.reasoning_content"))
            continue;
        assert_string_equal(hub_text(e, "choices.0.delta.reasoning_content"),
                            "Look \xc3\xa4 up.\nLook \xc3\xa4 up.");
        n++;
    }
    assert_int_equal(n, 1);
    hub_close(&r);
}

static void parsers_by_name(void **state)
{
    struct hub r = {.o = {.tool_parser = "openai", .reasoning_parser = "none"}};
    (void)state;

    r.o.engine.target_dir = special_dir();
    open_with(&r, "{{ messages[-1].content }}");
    json_t *v = choice(&r, THOUGHT CALL, TOOLS);
    assert_string_equal(hub_text(v, "message.content"),
                        "<|channel|>analysis<|message|>Look \xc3\xa4 up.<|end|>");
    assert_string_equal(hub_text(v, "message.tool_calls.0.function.name"), "b");
    hub_close(&r);
}

/* Items and blocks stand in the order of the messages. */
static void other_apis(void **state)
{
    struct hub r = {0};
    char body[1000];
    (void)state;

    open_echo(&r);
    snprintf(body, sizeof body,
             "{\"input\":\"%s\",\"tools\":[{\"type\":\"function\",\"name\":\"b\"}]}",
             THOUGHT PREAMBLE THOUGHT THOUGHT
             " to=functions.b<|channel|>commentary<|message|>{}<|call|>");
    json_t *v = hub_at(hub_json(&r, RESPONSES, body, 200), "output");
    assert_int_equal(json_array_size(v), 4);
    assert_string_equal(hub_text(v, "0.content.0.text"), "Look \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "1.content.0.text"), "I look.");
    assert_string_equal(hub_text(v, "2.type"), "reasoning");
    assert_string_equal(hub_text(v, "2.content.0.text"), "Look \xc3\xa4 up.\nLook \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "3.name"), "b");
    assert_string_equal(hub_text(v, "3.arguments"), "{}");

    v = hub_json(&r, MESSAGES,
                 ask(THOUGHT PREAMBLE THOUGHT CALL,
                     "\"max_tokens\":200,\"tools\":[{\"name\":\"b\",\"input_schema\":{}}]"),
                 200);
    assert_string_equal(hub_text(v, "stop_reason"), "tool_use");
    assert_int_equal(json_array_size(hub_at(v, "content")), 4);
    assert_string_equal(hub_text(v, "content.0.thinking"), "Look \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "content.1.text"), "I look.");
    assert_string_equal(hub_text(v, "content.2.thinking"), "Look \xc3\xa4 up.");
    assert_string_equal(hub_text(v, "content.3.name"), "b");
    assert_int_equal(hub_number(v, "content.3.input.x.0"), 1);
    hub_close(&r);
}

/* The prompt may end within a message: of reasoning, or of an answer that continues. */
static void begun_messages(void **state)
{
    struct hub r = {0};
    (void)state;

    r.o.engine.target_dir = special_dir();
    open_with(&r, SIGN "{{ messages[-1].content }}{% if add_generation_prompt %}"
                       "<|channel|>analysis<|message|>{% endif %}");
    json_t *v =
        choice(&r, "So.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|end|>", "");
    assert_string_equal(hub_text(v, "message.reasoning_content"), "So.");
    assert_string_equal(hub_text(v, "message.content"), "Yes.");
    v = hub_at(hub_json(&r, CHAT,
                        "{\"messages\":[{\"role\":\"assistant\",\"content\":\" Yes, and\"}],"
                        "\"continue_final_message\":true,\"add_generation_prompt\":false}",
                        200),
               "choices.0");
    assert_string_equal(hub_text(v, "message.content"), " Yes, and");
    hub_close(&r);
}

/* ---------------------------------------------------------------- prompts */

/* What the template is given under a name. */
static json_t *given(struct hub *r, const char *path, const char *body)
{
    json_t *v = hub_json(r, path, body, 200);
    const char *text = strcmp(path, CHAT) == 0        ? hub_text(v, "choices.0.message.content")
                       : strcmp(path, RESPONSES) == 0 ? hub_text(v, "output.0.content.0.text")
                                                      : hub_text(v, "content.0.text");
    struct sv_err err;
    json_t *shown = sv_json_parse(text, strlen(text), &err);

    if (!shown)
        fail_msg("%s", text);
    json_array_append_new(r->answers, shown);
    return shown;
}

#define ONE(id) "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" id "\","
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"of " id "\"}"

static void earlier_turns(void **state)
{
    static const char chat[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
        "{\"role\":\"assistant\",\"content\":\"I look.\",\"reasoning\":\"Hm.\",\"tool_calls\":[" ONE("a") "\"arguments\":\"{\\\"x\\\": 1}\"}}," ONE(
            "b") "\"arguments\":\"\"}}]}," RESULT("b") "," RESULT("c") "," RESULT("a") ","
                                                                                       "{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"So.\",\"tool_calls\":[" ONE(
                                                                                           "d") "\"arguments\":{}}}]},{\"role\":\"tool\",\"content\":\"of d\"},"
                                                                                                "{\"role\":\"assistant\",\"content\":\"Done.\",\"reasoning_content\":\"End.\","
                                                                                                "\"tool_calls\":null,\"thinking\":null},"
                                                                                                "{\"role\":\"assistant\",\"content\":\"I.\",\"reasoning_content\":null,\"tool_calls\":[],"
                                                                                                "\"thinking\":\"Own.\"}]}";
    struct hub r = {.o = {.tool_parser = "none", .reasoning_parser = "none"}};
    (void)state;

    open_with(&r, SIGN "{{ messages | tojson }}");
    json_t *m = given(&r, CHAT, chat);
    assert_int_equal(json_array_size(m), 10);
    /* One call each, and its result behind it; a result that belongs to none comes last. */
    assert_string_equal(hub_text(m, "1.thinking"), "Hm.\nI look.");
    assert_string_equal(hub_text(m, "1.content"), "");
    assert_int_equal(json_array_size(hub_at(m, "1.tool_calls")), 1);
    assert_string_equal(hub_text(m, "1.tool_calls.0.function.name"), "a");
    assert_int_equal(hub_number(m, "1.tool_calls.0.function.arguments.x"), 1);
    assert_string_equal(hub_text(m, "2.content"), "of a");
    assert_string_equal(hub_text(m, "3.tool_calls.0.function.name"), "b");
    assert_null(hub_at(m, "3.thinking"));
    assert_string_equal(hub_text(m, "3.content"), "");
    assert_string_equal(hub_text(m, "4.content"), "of b");
    assert_string_equal(hub_text(m, "5.content"), "of c");
    assert_string_equal(hub_text(m, "6.thinking"), "So.");
    assert_string_equal(hub_text(m, "7.content"), "of d");
    assert_string_equal(hub_text(m, "8.thinking"), "End.");
    assert_null(hub_at(m, "8.tool_calls"));
    assert_string_equal(hub_text(m, "9.thinking"), "Own.");
    assert_null(hub_at(m, "9.tool_calls"));

    m = given(
        &r, RESPONSES,
        "{\"input\":[{\"role\":\"user\",\"content\":\"hi\"},{\"type\":\"reasoning\",\"content\":"
        "[{\"type\":\"reasoning_text\",\"text\":\"Hm.\"}]},{\"type\":\"function_call\","
        "\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call\","
        "\"call_id\":\"b\",\"name\":\"g\",\"arguments\":\"{}\"},{\"type\":"
        "\"function_call_output\",\"call_id\":\"a\",\"output\":\"one\"},{\"type\":"
        "\"function_call_output\",\"call_id\":\"b\",\"output\":\"two\"}]}");
    assert_int_equal(json_array_size(m), 5);
    assert_string_equal(hub_text(m, "1.thinking"), "Hm.");
    assert_string_equal(hub_text(m, "2.content"), "one");
    assert_string_equal(hub_text(m, "3.tool_calls.0.function.name"), "g");
    assert_string_equal(hub_text(m, "4.content"), "two");

    m = given(
        &r, MESSAGES,
        "{\"max_tokens\":900,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
        "\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"Hm.\",\"signature\":"
        "\"s\"},{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{}}]},{\"role\":"
        "\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":"
        "\"one\"}]}]}");
    assert_string_equal(hub_text(m, "1.thinking"), "Hm.");
    assert_string_equal(hub_text(m, "2.content"), "one");
    hub_close(&r);
}

static void tools_and_effort(void **state)
{
    static const char *const levels[] = {"low", "medium", "high"};
    struct hub r = {.o = {.reasoning_parser = "none"}};
    char body[300];
    (void)state;

    open_with(&r, SIGN "{{ [tools, reasoning_effort] | tojson }}");
    json_t *v =
        given(&r, CHAT,
              ask("hi", "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\"}},"
                        "{\"type\":\"function\",\"function\":{\"name\":\"b\",\"description\":"
                        "null}},{\"type\":\"function\",\"function\":{\"name\":\"c\","
                        "\"description\":\"Does.\"}}],\"tool_choice\":\"none\","
                        "\"reasoning_effort\":\"high\""));
    assert_string_equal(hub_text(v, "0.0.function.description"), "");
    assert_string_equal(hub_text(v, "0.1.function.description"), "");
    assert_string_equal(hub_text(v, "0.2.function.description"), "Does.");
    assert_string_equal(hub_text(v, "0.2.function.name"), "c");
    hub_close(&r);

    r = (struct hub){.o = {.reasoning_parser = "none"}};
    open_with(&r, SIGN "{{ [reasoning_effort] | tojson }}");
    for (int i = 0; i < 3; i++) {
        snprintf(body, sizeof body, "\"reasoning_effort\":\"%s\"", levels[i]);
        assert_string_equal(hub_text(given(&r, CHAT, ask("hi", body)), "0"), levels[i]);
        snprintf(body, sizeof body, "{\"input\":\"hi\",\"reasoning\":{\"effort\":\"%s\"}}",
                 levels[i]);
        assert_string_equal(hub_text(given(&r, RESPONSES, body), "0"), levels[i]);
        snprintf(body, sizeof body, "\"max_tokens\":90,\"output_config\":{\"effort\":\"%s\"}",
                 levels[i]);
        assert_string_equal(hub_text(given(&r, MESSAGES, ask("hi", body)), "0"), levels[i]);
    }
    hub_close(&r);
}

/* A template in gpt-oss's style takes what clients send back after an answer with a preamble, two
 * calls and tools without a description, which it would refuse or lose as they are. */
static void turns_through_a_template(void **state)
{
    static const char body[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"developer\","
        "\"content\":[{\"type\":\"text\",\"text\":\"Be kind.\"}]},{\"role\":\"user\","
        "\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"I look.\",\"reasoning_content\":"
        "\"Hm.\",\"tool_calls\":[" ONE("a") "\"arguments\":\"{\\\"x\\\": 1}\"}}," ONE(
            "b") "\"arguments\":\"\"}}]}," RESULT("a") "," RESULT("b") "],"
                                                                       "\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"model_identity\":\"You are S.\","
                                                                       "\"builtin_tools\":[\"python\"]}," TOOLS
                                                                       "}";
    static const char *const parts[] = {
        "<|start|>system<|message|>You are S.\nDate: ",
        "Reasoning: low",
        "## python",
        "<|start|>developer<|message|># Rules\n\nBe brief.\n\nBe kind.\n\n# Tools",
        "// \ntype b = () => any;",
        "<|start|>user<|message|>hi<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.\nI look.<|end|>"
        "<|start|>assistant to=functions.a<|channel|>commentary json<|message|>{\"x\": 1}<|call|>"
        "<|start|>functions.a to=assistant<|channel|>commentary<|message|>\"of a\"<|end|>"
        "<|start|>assistant to=functions.b<|channel|>commentary json<|message|>{}<|call|>"
        "<|start|>functions.b to=assistant<|channel|>commentary<|message|>\"of b\"<|end|>"
        "<|start|>assistant"};
    struct hub r = {.o.chat_template = sv_test_path("tests/jinja/harmony.jinja")};
    (void)state;

    hub_open(&r, false);
    const char *prompt = hub_text(hub_json(&r, "/apply-template", body, 200), "prompt"),
               *at = prompt;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        at = strstr(at, parts[i]);
        if (!at)
            fail_msg("'%s' is missing or comes too early in: %s", parts[i], prompt);
        at += strlen(parts[i]);
    }
    assert_string_equal(at, "");
    hub_close(&r);
}

static void prompts_without_memory(void **state)
{
    static const char template[] = SIGN "{{ messages | tojson }}{{ tools | tojson }}";
    static const char body[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"developer\","
        "\"content\":\"d\"},{\"role\":\"assistant\",\"content\":\"a\",\"reasoning\":\"hm\","
        "\"tool_calls\":[" ONE("a") "\"arguments\":\"{}\"}}," ONE(
            "b") "\"arguments\":\"\"}}]}," RESULT("b") "," RESULT("a") "]," TOOLS "}";
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

/* ---------------------------------------------------------------- constrained answers */

/* A constrained answer has no headers, and markers in its strings are text. */
static void constrained_answers(void **state)
{
    struct hub r = {.real = true, .o = {.tool_parser = "harmony", .reasoning_parser = "harmony"}};
    static const char *const choices[] = {
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"b\"}}",
        "\"tool_choice\":\"required\",\"parallel_tool_calls\":false"};
    char more[400];
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 2; i++) {
        snprintf(more, sizeof more, "\"max_tokens\":60,\"temperature\":0," TOOLS ",%s", choices[i]);
        json_t *v = choice(&r, "hi", more);
        assert_int_equal(json_array_size(hub_at(v, "message.tool_calls")), 1);
        assert_string_equal(hub_text(v, "message.tool_calls.0.function.name"), "b");
        assert_string_equal(hub_text(v, "message.tool_calls.0.function.arguments"), "{}");
        assert_string_equal(hub_text(v, "finish_reason"), i ? "tool_calls" : "stop");
    }
    json_t *v = choice(&r, "hi", "\"guided_choice\":[\"<|end|>\"]");
    assert_string_equal(hub_text(v, "message.content"), "<|end|>");
    v = choice(&r, "hi", "\"guided_choice\":[\"<|end|>\"]," TOOLS);
    assert_string_equal(hub_text(v, "message.content"), "<|end|>");
    hub_close(&r);
}

/* The end of the prompt that a chat's answer came after. */
static const char *prompt_end(json_t *answer)
{
    const char *text = hub_text(answer, "prompt_text"), *at = text;

    for (const char *next; (next = strstr(at, "<|start|>")); at = next + 1)
        ;
    return at == text ? text : at - 1;
}

/* With gpt-oss's template the prompt ends with the header that the constraint asks for: of the only
 * tool's call, whose arguments the answer is, of one of several calls, or of the final answer. */
static void headers_of_constrained_answers(void **state)
{
#define TWO                                                                                        \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"n\":{\"enum\":[\"<|end|>\"]}},\"required\":[\"n\"],"             \
    "\"additionalProperties\":false}}},{\"type\":\"function\",\"function\":{\"name\":\"b c\"}}]"
#define FUNCTION(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
    static const struct {
        const char *more, *header, *name, *content;
    } list[] = {
        {TOOLS ",\"tool_choice\":\"required\"",
         " to=functions.b<|channel|>commentary json<|message|>", "b", NULL},
        {TWO ",\"tool_choice\":" FUNCTION("a"),
         " to=functions.a<|channel|>commentary json<|message|>", "a", NULL},
        {TWO ",\"tool_choice\":" FUNCTION("b c"), "<|channel|>commentary json<|message|>", "b c",
         NULL},
        {TWO ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
         "<|channel|>commentary json<|message|>", "", NULL},
        {"\"guided_choice\":[\"<|end|> <|call|>\"]", "<|channel|>final<|message|>", NULL,
         "<|end|> <|call|>"},
        {TOOLS ",\"guided_choice\":[\"<|end|>\"]", "<|channel|>final<|message|>", NULL, "<|end|>"},
        {TOOLS ",\"tool_choice\":\"none\",\"max_tokens\":1", "", NULL, NULL},
    };
    struct hub r = {.real = true, .o.chat_template = sv_test_path("tests/jinja/harmony.jinja")};
    char more[700], header[100];
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(more, sizeof more, "%s%s,\"temperature\":0,\"return_prompt_text\":true",
                 list[i].more, strstr(list[i].more, "max_tokens") ? "" : ",\"max_tokens\":90");
        json_t *v = hub_json(&r, CHAT, ask("hi", more), 200);
        snprintf(header, sizeof header, "<|start|>assistant%s", list[i].header);
        assert_string_equal(prompt_end(v), header);
        v = hub_at(v, "choices.0.message");
        if (list[i].content)
            assert_string_equal(hub_text(v, "content"), list[i].content);
        if (!list[i].name) {
            assert_null(hub_at(v, "tool_calls"));
            continue;
        }
        assert_true(json_is_null(hub_at(v, "content")));
        assert_int_equal(json_array_size(hub_at(v, "tool_calls")), 1);
        const char *name = hub_text(v, "tool_calls.0.function.name");
        assert_true(strcmp(name, list[i].name) == 0 || !*list[i].name);
        const char *args = hub_text(v, "tool_calls.0.function.arguments");
        assert_true(*name == 'a' ? strstr(args, "\"<|end|>\"") != NULL : strcmp(args, "{}") == 0);
    }
    /* Streamed: the call begins with the first byte of its arguments. */
    snprintf(more, sizeof more, "%s,\"temperature\":0,\"stream\":true", list[0].more);
    json_t *events = hub_events(&r, CHAT, ask("hi", more)), *e;
    size_t i, n = 0;
    json_array_foreach(events, i, e) {
        json_t *call = hub_at(e, "choices.0.delta.tool_calls.0.function");
        assert_null(hub_at(e, "choices.0.delta.reasoning_content"));
        if (call && !n++)
            assert_string_equal(hub_text(call, "name"), "b");
    }
    assert_true(n >= 2);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(chats), cmocka_unit_test(fields_of_chats),
             cmocka_unit_test(parsers_by_name), cmocka_unit_test(other_apis),
             cmocka_unit_test(begun_messages), cmocka_unit_test(earlier_turns),
             cmocka_unit_test(tools_and_effort), cmocka_unit_test(turns_through_a_template),
             cmocka_unit_test(prompts_without_memory), cmocka_unit_test(constrained_answers),
             cmocka_unit_test(headers_of_constrained_answers))
