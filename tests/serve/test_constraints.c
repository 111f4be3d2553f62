/*
 * test_constraints.c - constrained answers: every dialect's fields, whole and streamed, several
 * choices, log probabilities, errors that name the field and the place; grammars that are cached,
 * and compiled beside the loop. On the instant engine, which follows grammars, and on the demo
 * pair.
 */
#include "serve/hub.h"
#include "serve/core/grammars.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"Who?\"}],\"max_tokens\":200,"
#define ASK "{\"prompt\":\"Who?\",\"max_tokens\":200,"
#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":8},"         \
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"                                \
    "\"likes\":{\"type\":\"array\",\"items\":{\"enum\":[\"tea\",\"jam\"]},\"maxItems\":2}},"       \
    "\"required\":[\"name\",\"age\",\"likes\"],\"additionalProperties\":false}"
/* The same as the text of a JSON string. */
#define SCHEMA_TEXT                                                                                 \
    "\"{\\\"type\\\":\\\"object\\\",\\\"properties\\\":{\\\"name\\\":{\\\"type\\\":\\\"string\\\"," \
    "\\\"maxLength\\\":8},\\\"age\\\":{\\\"type\\\":\\\"integer\\\",\\\"minimum\\\":0,"             \
    "\\\"maximum\\\":150},\\\"likes\\\":{\\\"type\\\":\\\"array\\\",\\\"items\\\":{\\\"enum\\\":["  \
    "\\\"tea\\\",\\\"jam\\\"]},\\\"maxItems\\\":2}},\\\"required\\\":[\\\"name\\\",\\\"age\\\","    \
    "\\\"likes\\\"],\\\"additionalProperties\\\":false}\""
#define FORMAT                                                                                     \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"who\","             \
    "\"strict\":true,\"schema\":" SCHEMA "}}"

/* ---------------------------------------------------------------- what texts must be */

static json_t *parse(const char *text)
{
    struct sv_err err;
    json_t *v = sv_json_parse(text, strlen(text), &err);
    if (!v)
        fail_msg("no JSON (%s): %s", err.msg, text);
    return v;
}

static void is_who(const char *text)
{
    json_t *v = parse(text), *name = json_object_get(v, "name"), *age = json_object_get(v, "age");
    json_t *likes = json_object_get(v, "likes");

    assert_int_equal(json_object_size(v), 3);
    assert_true(json_is_string(name) && json_string_length(name) <= 4 * 8);
    assert_true(json_is_integer(age) && json_integer_value(age) >= 0 &&
                json_integer_value(age) <= 150);
    assert_true(json_is_array(likes) && json_array_size(likes) <= 2);
    for (size_t i = 0; i < json_array_size(likes); i++) {
        const char *s = json_string_value(json_array_get(likes, i));
        assert_true(s && (strcmp(s, "tea") == 0 || strcmp(s, "jam") == 0));
    }
    json_decref(v);
}

static void is_object(const char *text)
{
    json_t *v = parse(text);
    assert_true(json_is_object(v));
    json_decref(v);
}

static void is_yes_or_no(const char *text)
{
    if (strcmp(text, "yes") != 0 && strcmp(text, "no") != 0)
        fail_msg("neither yes nor no: %s", text);
}

static void is_number(const char *text)
{
    assert_int_equal(strlen(text), 5);
    assert_int_equal(strspn(text, "0123456789"), 3);
    assert_int_equal(text[3], '-');
    assert_true(text[4] == 'a' || text[4] == 'b');
}

/* ---------------------------------------------------------------- every way to ask */

struct way {
    const char *path, *body; /* with a } to come */
    void (*is)(const char *text);
    bool demo; /* the demo pair finishes it */
};

#define GRAMMAR "\"root ::= answer\\nanswer ::= \\\"yes\\\" | \\\"no\\\"\\n\""
#define REGEX "\"[0-9]{3}-(a|b)\""

static const struct way ways[] = {
    {CHAT, HI FORMAT, is_who, true},
    {TEXT, ASK FORMAT, is_who, true},
    {CHAT, HI "\"response_format\":{\"type\":\"json_object\"}", is_object, false},
    {CHAT, HI "\"response_format\":{\"type\":\"json_object\",\"schema\":" SCHEMA "}", is_who, true},
    {CHAT, HI "\"response_format\":{\"type\":\"json_schema\",\"schema\":" SCHEMA "}", is_who, true},
    {CHAT, HI "\"structured_outputs\":{\"json\":" SCHEMA "}", is_who, true},
    {TEXT, ASK "\"structured_outputs\":{\"json\":" SCHEMA_TEXT ",\"disable_any_whitespace\":true}",
     is_who, true},
    {TEXT, ASK "\"structured_outputs\":{\"json_object\":true}", is_object, false},
    {TEXT, ASK "\"structured_outputs\":{\"regex\":" REGEX "}", is_number, true},
    {TEXT, ASK "\"structured_outputs\":{\"choice\":[\"yes\",\"no\"],\"regex\":null}", is_yes_or_no,
     true},
    {CHAT, HI "\"structured_outputs\":{\"grammar\":" GRAMMAR "}", is_yes_or_no, true},
    {CHAT, HI "\"guided_json\":" SCHEMA, is_who, true},
    {TEXT, ASK "\"guided_json\":" SCHEMA_TEXT, is_who, true},
    {TEXT, ASK "\"guided_regex\":" REGEX, is_number, true},
    {CHAT, HI "\"guided_choice\":[\"yes\",\"no\"]", is_yes_or_no, true},
    {CHAT, HI "\"guided_grammar\":" GRAMMAR, is_yes_or_no, true},
    {CHAT, HI "\"json_schema\":" SCHEMA, is_who, true},
    {CHAT, HI "\"grammar\":" GRAMMAR, is_yes_or_no, true},
    {CHAT, HI "\"regex\":" REGEX, is_number, true},
    {TEXT, ASK "\"ebnf\":" GRAMMAR, is_yes_or_no, true},
    {"/completion", ASK "\"grammar\":" GRAMMAR, is_yes_or_no, true},
    {"/completion", ASK "\"json_schema\":" SCHEMA, is_who, true},
    {"/generate",
     "{\"text\":\"Who?\",\"sampling_params\":{\"max_new_tokens\":200,\"json_schema\":" SCHEMA_TEXT
     "}",
     is_who, true},
    {"/generate",
     "{\"text\":\"Who?\",\"sampling_params\":{\"max_new_tokens\":200,\"regex\":" REGEX "}",
     is_number, true},
    {"/generate",
     "{\"text\":\"Who?\",\"sampling_params\":{\"max_new_tokens\":200,\"ebnf\":" GRAMMAR "}",
     is_yes_or_no, true},
};
enum { N_WAYS = sizeof ways / sizeof ways[0] };

static const char *text_of(json_t *v)
{
    static const char *const where[] = {"choices.0.message.content", "choices.0.text", "text",
                                        "content"};
    for (int i = 0; i < 4; i++)
        if (json_is_string(hub_at(v, where[i])))
            return hub_text(v, where[i]);
    fail_msg("no text in the answer");
    return "";
}

/* The text of a stream; SGLang's last event has all of it. */
static void stream_text(json_t *events, struct sv_buf *text)
{
    static const char *const where[] = {"choices.0.delta.content", "choices.0.text", "content"};
    sv_buf_init(text);
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *e = json_array_get(events, i);
        if (json_object_get(e, "meta_info"))
            sv_buf_clear(text), sv_buf_printf(text, "%s", hub_text(e, "text"));
        for (int k = 0; k < 3; k++)
            if (json_is_string(hub_at(e, where[k])))
                sv_buf_printf(text, "%s", hub_text(e, where[k]));
    }
}

static void ask_all_ways(struct hub *r)
{
    for (int i = 0; i < N_WAYS; i++) {
        const struct way *w = &ways[i];
        struct sv_buf body, text;
        if (r->real && !w->demo)
            continue;
        sv_buf_init(&body);
        sv_buf_printf(&body, "%s}", w->body);
        json_t *v = hub_json(r, w->path, body.data, 200);
        const char *whole = text_of(v);
        w->is(whole);
        if (hub_at(v, "choices.0.finish_reason"))
            assert_string_equal(hub_text(v, "choices.0.finish_reason"), "stop");
        sv_buf_clear(&body);
        sv_buf_printf(&body, "%s,\"stream\":true}", w->body);
        stream_text(hub_events(r, w->path, body.data), &text);
        w->is(text.data ? text.data : "");
        sv_buf_fini(&text);
        sv_buf_fini(&body);
    }
}

static void every_way_fake(void **state)
{
    (void)state;
    for (int burst = 1; burst < 40; burst += 13) {
        struct hub r = {.fake.burst = burst};
        hub_open(&r, false);
        ask_all_ways(&r);
        hub_close(&r);
    }
}

static void every_way_demo(void **state)
{
    struct hub r = {.real = true};
    (void)state;
    hub_open(&r, false);
    ask_all_ways(&r);
    hub_close(&r);
}

/* ---------------------------------------------------------------- beside other settings */

/* Greedy and sampled, drafted and not: the same texts, all of them what was asked for. */
static void drafts_change_nothing(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 6; i++) {
        const char *texts[2][3];
        for (int plain = 0; plain < 2; plain++) {
            char body[1200];
            snprintf(body, sizeof body, HI FORMAT ",\"n\":3,\"seed\":%d,\"temperature\":%s%s}", i,
                     i % 2 ? "1.2" : "0", plain ? ",\"width\":1" : "");
            json_t *v = hub_json(&r, CHAT, body, 200);
            for (int k = 0; k < 3; k++) {
                char where[40];
                snprintf(where, sizeof where, "choices.%d.message.content", k);
                texts[plain][k] = hub_text(v, where);
                is_who(texts[plain][k]);
            }
        }
        for (int k = 0; k < 3; k++)
            assert_string_equal(texts[0][k], texts[1][k]);
    }
    hub_close(&r);
}

/* Log probabilities are the model's own: they are those of the same tokens scored freely. */
static void logprobs_are_the_models(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *v = hub_json(&r, TEXT,
                         ASK "\"temperature\":0,\"logprobs\":2,\"return_token_ids\":true,"
                             "\"guided_regex\":" REGEX "}",
                         200);
    json_t *lp = hub_at(v, "choices.0.logprobs.token_logprobs");
    json_t *ids = json_copy(hub_at(v, "choices.0.prompt_token_ids"));
    size_t n_prompt = json_array_size(ids);
    json_array_extend(ids, hub_at(v, "choices.0.token_ids"));
    char *list = json_dumps(ids, 0);
    struct sv_buf body;
    sv_buf_init(&body);
    sv_buf_printf(&body, "{\"prompt\":%s,\"max_tokens\":0,\"echo\":true,\"logprobs\":2}", list);
    json_t *again = hub_at(hub_json(&r, TEXT, body.data, 200), "choices.0.logprobs.token_logprobs");
    assert_true(json_array_size(lp) >= 5);
    for (size_t i = 0; i < json_array_size(lp); i++)
        hub_same(json_array_get(lp, i), json_array_get(again, n_prompt + i), "log probability");
    free(list);
    json_decref(ids);
    sv_buf_fini(&body);
    hub_close(&r);
}

/* Words that never come and tokens that alone may count within a form, as long as they leave it
 * one. */
static void words_within(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    for (int plain = 0; plain < 2; plain++) {
        const char *width = plain ? "\"width\":1," : "";
        char body[300];
        for (int i = 0; i < 2; i++) {
            snprintf(body, sizeof body,
                     ASK "%s\"guided_choice\":[\"q\",\"z\"],\"bad_words\":[\"%s\"]}", width,
                     i ? "z" : "q");
            assert_string_equal(text_of(hub_json(&r, TEXT, body, 200)), i ? "q" : "z");
        }
        snprintf(
            body, sizeof body, ASK "%s\"regex\":\"[a-z]{6}\",\"allowed_token_ids\":[%d]}", width,
            (int)hub_number(hub_json(&r, "/tokenize", "{\"content\":\"q\"}", 200), "tokens.0"));
        assert_string_equal(text_of(hub_json(&r, TEXT, body, 200)), "qqqqqq");
    }
    hub_close(&r);
}

/* Too few tokens for it: the beginning of a text, and "length". */
static void cut_is_length(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *v = hub_json(&r, TEXT, "{\"prompt\":\"a\",\"max_tokens\":3," FORMAT "}", 200);
    assert_string_equal(hub_text(v, "choices.0.finish_reason"), "length");
    assert_int_equal(hub_text(v, "choices.0.text")[0], '{');
    hub_close(&r);
}

/* ---------------------------------------------------------------- reasoning comes first */

/* The engine says what the prompt says, where it may: the template shows the text alone, and may
 * begin a thought behind it. */
static void thinks(const char *template, const char *said, const char *thought, const char *content)
{
    const char *path = sv_test_tmp("template");
    struct hub r = {.fake.burst = 3, .o.chat_template = path, .o.reasoning_parser = "think"};
    struct sv_buf body;
    struct sv_err err;

    assert_int_equal(sv_file_write(path, template, strlen(template), &err), 0);
    hub_open(&r, false);
    sv_buf_init(&body);
    sv_buf_printf(&body,
                  "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":200,"
                  "\"guided_choice\":[\"yes\",\"no\"]}",
                  said);
    json_t *message = hub_at(hub_json(&r, CHAT, body.data, 200), "choices.0.message");
    assert_string_equal(hub_text(message, "content"), content);
    if (thought)
        assert_string_equal(hub_text(message, "reasoning_content"), thought);
    sv_buf_fini(&body);
    hub_close(&r);
}

static void behind_reasoning(void **state)
{
    static const char bare[] = "{{ messages[-1].content }}";
    static const char begun[] = "{{ messages[-1].content }}<think>\n";
    (void)state;

    thinks(bare, "<think>\\nHm, no?\\n</think>\\n\\nyes", "Hm, no?", "yes");
    thinks(bare, "no", NULL, "no");
    thinks(begun, "So.</think>yes, or", "So.", "yes");
}

/* ---------------------------------------------------------------- errors */

static void refusals_name_the_place(void **state)
{
    static const struct {
        const char *path, *body, *param, *says;
    } bad[] = {
        {CHAT, HI "\"response_format\":{\"type\":\"xml\"}}", "response_format", "json_schema"},
        {CHAT, HI "\"response_format\":{\"type\":\"structural_tag\"}}", "response_format",
         "structural tags"},
        {CHAT, HI "\"response_format\":{\"type\":\"json_schema\"}}", "response_format",
         "'response_format.json_schema' must be an object"},
        {CHAT,
         HI "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"a\"}}}",
         "response_format", "'response_format.json_schema.schema' is missing"},
        {CHAT,
         HI "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":"
            "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"strnig\"}}}}}}",
         "response_format", "'response_format.json_schema.schema': schema/properties/a"},
        {CHAT, HI "\"guided_json\":\"{\\\"type\\\":\"}", "guided_json", "schema: JSON, byte"},
        {CHAT, HI "\"guided_json\":[1]}", "guided_json", "must be a JSON schema"},
        {CHAT, HI "\"guided_regex\":\"a(b\"}", "guided_regex", "'guided_regex': "},
        {CHAT, HI "\"guided_regex\":5}", "guided_regex", "must be a string"},
        {CHAT, HI "\"guided_choice\":[\"a\",5]}", "guided_choice", "'guided_choice[1]'"},
        {TEXT, ASK "\"structured_outputs\":{\"grammar\":\"root ::= \\\"a\\\" | b\"}}",
         "structured_outputs", "'structured_outputs.grammar': "},
        {TEXT, ASK "\"structured_outputs\":{\"regex\":\"a\",\"choice\":[\"b\"]}}",
         "structured_outputs",
         "'structured_outputs.choice' and 'structured_outputs.regex' exclude"},
        {TEXT, ASK "\"structured_outputs\":{\"regex\":5}}", "structured_outputs.regex",
         "'structured_outputs.regex' must be a string, not an integer"},
        {TEXT, ASK "\"structured_outputs\":{\"disable_any_whitespace\":1}}",
         "structured_outputs.disable_any_whitespace", "must be a boolean"},
        {TEXT, ASK "\"structured_outputs\":{\"frob\":1}}", "structured_outputs.frob", "frob"},
        {TEXT, ASK "\"structured_outputs\":{\"json\":{},\"whitespace_pattern\":\" \"}}",
         "structured_outputs", "disable_any_whitespace"},
        {TEXT, ASK "\"guided_regex\":\"a\",\"response_format\":{\"type\":\"json_object\"}}",
         "response_format", "'response_format' and 'guided_regex' exclude each other"},
        {"/completion", ASK "\"grammar\":\"root ::= x\"}", "grammar", "x"},
        {"/completion", ASK "\"grammar\":\"root ::= \\\"a\\\"\",\"json_schema\":{}}", "json_schema",
         "exclude each other"},
        {"/generate", "{\"text\":\"a\",\"sampling_params\":{\"regex\":\"[\"}}", "regex",
         "'regex': "},
    };
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *v = hub_json(&r, bad[i].path, bad[i].body, 400);
        const char *message = hub_text(v, "error.message");
        if (strcmp(hub_text(v, "error.param"), bad[i].param) != 0 || !strstr(message, bad[i].says))
            fail_msg("%s: %s: %s", bad[i].body, hub_text(v, "error.param"), message);
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- grammars that are kept */

static void kept_for_the_next(void **state)
{
    struct hub r = {0};
    char body[200];
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 5; i++)
        hub_json(&r, CHAT, HI FORMAT "}", 200);
    assert_true(hub_metric(&r, "salvo_grammar_seconds_count") == 1);
    assert_true(hub_metric(&r, "salvo_grammar_cache_hits_total") == 4);
    assert_true(hub_metric(&r, "salvo_structured_requests_total{kind=\"schema\"}") == 5);
    assert_true(hub_metric(&r, "salvo_grammars_kept") == 1);
    /* The same text is another thing as an expression; many others push it out. */
    for (int i = 0; i < 40; i++) {
        snprintf(body, sizeof body, ASK "\"regex\":\"x{%d}\"}", 1 + i);
        hub_json(&r, TEXT, body, 200);
    }
    assert_true(hub_metric(&r, "salvo_grammars_kept") == 32);
    assert_true(hub_metric(&r, "salvo_grammar_seconds_count") == 41);
    hub_json(&r, CHAT, HI FORMAT "}", 200);
    assert_true(hub_metric(&r, "salvo_grammar_seconds_count") == 42);
    hub_json(&r, TEXT, ASK "\"regex\":\"x{40}\"}", 200);
    assert_true(hub_metric(&r, "salvo_grammar_seconds_count") == 42);
    hub_json(&r, TEXT, ASK "\"regex\":\"x{\"}", 200); /* an error or not, it is not a hit */
    hub_close(&r);
}

/* Many at once for one new grammar: it is made once. Some leave before it is there. */
static void made_once_for_all(void **state)
{
    enum { N = 24 };
    struct hub r = {.fake.step_us = 1000};
    int fd[N];
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < N; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], CHAT, "", i % 2 ? HI FORMAT "}" : HI FORMAT ",\"stream\":true}");
    }
    for (int i = 0; i < N; i += 3)
        close(fd[i]);
    for (int i = 0; i < N; i++) {
        if (i % 3 == 0)
            continue;
        answer_read(fd[i], &r.a);
        assert_int_equal(r.a.status, 200);
        close(fd[i]);
    }
    assert_true(hub_metric(&r, "salvo_grammar_seconds_count") == 1);
    hub_close(&r);
}

/* A server that ends while clients wait for grammars. */
static void ends_amid(void **state)
{
    struct hub r = {.fake.step_us = 1000};
    (void)state;

    hub_open(&r, false);
    hub_close_amid(&r, CHAT, TEXT,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"Who?\"}]," FORMAT "}");
}

/* That is the server's fault, and no queue that is full. */
static void no_memory_to_begin_with(void **state)
{
    static struct sv_serve s;
    static struct sv_call c;
    struct sv_api_err e = {0};
    (void)state;

    c.p.constraint.kind = SV_CONSTRAINT_JSON;
    sv_buf_lit(&c.source, "anything");
    sv_fault_arm(1);
    int rc = sv_grammars_want(&s, &c, &e);
    sv_fault_arm(0);
    assert_int_equal(rc, -1);
    assert_int_equal(e.status, 500);
    sv_buf_fini(&c.source);
}

SV_TEST_MAIN(cmocka_unit_test(every_way_fake), cmocka_unit_test(every_way_demo),
             cmocka_unit_test(drafts_change_nothing), cmocka_unit_test(logprobs_are_the_models),
             cmocka_unit_test(words_within), cmocka_unit_test(cut_is_length),
             cmocka_unit_test(behind_reasoning), cmocka_unit_test(refusals_name_the_place),
             cmocka_unit_test(kept_for_the_next), cmocka_unit_test(made_once_for_all),
             cmocka_unit_test(ends_amid), cmocka_unit_test(no_memory_to_begin_with))
