/*
 * test_choices.c - parameters of OpenAI's endpoints on the demo pair: what ends an answer inside a
 * drafted block, what changes the choice of tokens, several choices streamed with their log
 * probabilities, the context's end, conversations of all kinds.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdlib.h>
#include <string.h>

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"
#define P "\"prompt\":\"def add(a, b):\""
#define GREEDY "{" P ",\"max_tokens\":48,\"temperature\":0,\"return_token_ids\":true"

/* ---------------------------------------------------------------- ends */

/* A stop id ends the answer with that token wherever it lies in a block that the target confirmed
 * as a whole. */
static void stop_ids_inside_blocks(void **state)
{
    struct hub r = {.real = true};
    char body[300];
    size_t n_inside = 0;
    (void)state;

    hub_open(&r, false);
    json_t *all = hub_json(&r, TEXT, GREEDY ",\"spec_decode_metrics\":\"detailed\"}", 200);
    json_t *ids = hub_at(all, "choices.0.token_ids"),
           *steps = hub_at(all, "metrics.speculative_decoding.per_step_accepted");
    for (size_t i = 1; i < 48; i += 3) {
        int64_t id = json_integer_value(json_array_get(ids, i));
        size_t first = 0, at = 1, in_block = 0;
        while (json_integer_value(json_array_get(ids, first)) != id)
            first++;
        /* the prompt's pass brings one, a step 1 + drafts */
        for (size_t k = 0; k < json_array_size(steps) && at <= first; k++) {
            in_block = first - at + 1;
            at += 1 + (size_t)json_integer_value(json_array_get(steps, k));
        }
        n_inside += in_block > 0 &&
                    at > first + 1; /* drafts behind it were confirmed too, and must not show */
        snprintf(body, sizeof body, GREEDY ",\"stop_token_ids\":[%lld]}", (long long)id);
        json_t *cut = hub_json(&r, TEXT, body, 200);
        assert_int_equal(hub_number(cut, "usage.completion_tokens"), first + 1);
        assert_int_equal(hub_number(cut, "choices.0.stop_reason"), id);
        assert_string_equal(hub_text(cut, "choices.0.finish_reason"), "stop");
        json_t *got = hub_at(cut, "choices.0.token_ids");
        assert_int_equal(json_array_size(got), first + 1);
        for (size_t k = 0; k <= first; k++)
            hub_same(json_array_get(got, k), json_array_get(ids, k), "ids up to the stop");
        snprintf(body, sizeof body, GREEDY ",\"stop_token_ids\":[%lld],\"min_tokens\":48}",
                 (long long)id);
        if (i % 8 == 2)
            assert_int_equal(hub_number(hub_json(&r, TEXT, body, 200), "usage.completion_tokens"),
                             48);
    }
    print_message("%zu stops inside blocks\n", n_inside);
    assert_true(n_inside > 2);
    hub_close(&r);
}

/* A stop string wherever the text has it, with and without itself. */
static void stop_texts(void **state)
{
    struct hub r = {.real = true};
    char body[400];
    (void)state;

    hub_open(&r, false);
    const char *text = hub_text(hub_json(&r, TEXT, GREEDY "}", 200), "choices.0.text");
    for (size_t i = 3; i + 4 < strlen(text); i += 11) {
        char piece[5] = "", *quoted;
        memcpy(piece, text + i, 4);
        json_t *s = json_string(piece);
        if (!s)
            continue; /* the middle of a code point */
        quoted = json_dumps(s, JSON_ENCODE_ANY);
        size_t first = (size_t)(strstr(text, piece) - text);
        for (int keep = 0; keep < 2; keep++) {
            snprintf(body, sizeof body,
                     GREEDY ",\"stop\":[\"never here\",%s],\"include_stop_str_in_output\":%s}",
                     quoted, keep ? "true" : "false");
            json_t *cut = hub_json(&r, TEXT, body, 200);
            assert_int_equal(strlen(hub_text(cut, "choices.0.text")), first + (keep ? 4 : 0));
            assert_memory_equal(hub_text(cut, "choices.0.text"), text, first);
            assert_string_equal(hub_text(cut, "choices.0.stop_reason"), piece);
        }
        sv_free(quoted);
        json_decref(s);
    }
    hub_close(&r);
}

/* The last token that fits, and one more. */
static void end_of_the_context(void **state)
{
    struct hub r = {.real = true, .o.engine.context = 64};
    struct sv_buf b;
    (void)state;

    hub_open(&r, false);
    for (int n = 62; n <= 65; n++) {
        sv_buf_init(&b);
        sv_buf_printf(&b, "{\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":5,\"prompt\":[");
        for (int i = 0; i < n; i++)
            sv_buf_printf(&b, "%s%d", i ? "," : "", 64 + i % 20);
        sv_buf_printf(&b, "]}");
        json_t *v = hub_json(&r, TEXT, b.data, n < 64 ? 200 : 400);
        if (n < 64) {
            assert_int_equal(hub_number(v, "usage.completion_tokens"), 64 - n);
            assert_string_equal(hub_text(v, "choices.0.finish_reason"), "length");
        } else {
            assert_string_equal(hub_text(v, "error.code"), "context_length_exceeded");
            assert_string_equal(hub_text(v, "error.param"), "prompt");
        }
        sv_buf_fini(&b);
    }
    assert_int_equal(
        hub_number(
            hub_json(&r, CHAT,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":1}",
                     200),
            "usage.completion_tokens"),
        1);
    hub_close(&r);
}

/* ---------------------------------------------------------------- choosing */

/* Penalties, bias and seeds give the same tokens with drafts as without, in every form. */
static void drafts_change_nothing(void **state)
{
    static const char *const params[] = {
        "\"temperature\":0,\"presence_penalty\":1.5,\"frequency_penalty\":0.7",
        "\"temperature\":0,\"repetition_penalty\":1.3",
        "\"temperature\":0,\"repetition_penalty\":1.1,\"frequency_penalty\":-0.5,"
        "\"logit_bias\":{\"11\":4,\"198\":-100}",
        "\"temperature\":0.9,\"top_p\":0.9,\"top_k\":40,\"min_p\":0.02,\"seed\":11,"
        "\"presence_penalty\":0.4",
        "\"temperature\":1.4,\"seed\":5,\"frequency_penalty\":1,\"n\":3",
    };
    struct hub r = {.real = true};
    char body[500];
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++) {
        json_t *v[2];
        for (int plain = 0; plain < 2; plain++) {
            snprintf(
                body, sizeof body,
                "{" P
                ",\"max_tokens\":64,\"ignore_eos\":true,\"logprobs\":1,\"return_token_ids\":true,"
                "%s%s}",
                params[i], plain ? ",\"width\":1" : "");
            v[plain] = hub_at(hub_json(&r, TEXT, body, 200), "choices");
        }
        hub_same(v[0], v[1], params[i]);
    }
    json_t *biased =
        hub_json(&r, TEXT,
                 "{" P ",\"max_tokens\":4,\"temperature\":0,\"logit_bias\":{\"11\":100},"
                 "\"return_token_ids\":true}",
                 200);
    for (int i = 0; i < 4; i++)
        assert_int_equal(
            json_integer_value(json_array_get(hub_at(biased, "choices.0.token_ids"), (size_t)i)),
            11);
    hub_close(&r);
}

/* ---------------------------------------------------------------- streams of several choices */

static void join(json_t *events, int64_t index, const char *list, json_t *out, struct sv_buf *text)
{
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *c = hub_at(json_array_get(events, i), "choices.0");
        if (!c || hub_number(c, "index") != index)
            continue;
        json_t *t = hub_at(c, "delta.content");
        t = t ? t : hub_at(c, "text");
        sv_buf_append(text, json_string_value(t), json_string_length(t));
        json_t *part = json_is_object(hub_at(c, "logprobs")) ? hub_at(c, list) : NULL;
        if (part)
            json_array_extend(out, part);
    }
    sv_buf_append(text, "", 0);
}

static void streamed_is_whole(struct hub *r, const char *path, const char *params, const char *list,
                              const char *text_name)
{
    char body[500], where[80];

    snprintf(body, sizeof body, "{%s}", params);
    json_t *whole = hub_json(r, path, body, 200);
    snprintf(body, sizeof body, "{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
             params);
    json_t *events = hub_events(r, path, body);
    size_t n = json_array_size(hub_at(whole, "choices"));
    for (size_t i = 0; i < n; i++) {
        json_t *joined = json_array();
        struct sv_buf text;
        sv_buf_init(&text);
        join(events, (int64_t)i, list, joined, &text);
        snprintf(where, sizeof where, "choices.%zu.%s", i, list);
        hub_same(joined, hub_at(whole, where), where);
        snprintf(where, sizeof where, "choices.%zu.%s", i, text_name);
        assert_string_equal(text.data, hub_text(whole, where));
        sv_buf_fini(&text);
        json_decref(joined);
    }
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    assert_int_equal(json_array_size(hub_at(last, "choices")), 0);
    hub_same(hub_at(last, "usage.completion_tokens"), hub_at(whole, "usage.completion_tokens"),
             "usage");
    hub_same(hub_at(last, "usage.prompt_tokens"), hub_at(whole, "usage.prompt_tokens"), "usage");
}

static void choices_streamed_with_logprobs(void **state)
{
    static const char *const lists[] = {"logprobs.tokens", "logprobs.token_logprobs",
                                        "logprobs.top_logprobs", "logprobs.text_offset"};
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 4; i++) {
        streamed_is_whole(
            &r, TEXT,
            P
            ",\"max_tokens\":20,\"n\":3,\"seed\":3,\"temperature\":1,\"logprobs\":2,\"echo\":true,"
            "\"ignore_eos\":true",
            lists[i], "text");
        streamed_is_whole(
            &r, TEXT,
            "\"prompt\":[\"one two\",[66,67,68]],\"max_tokens\":9,\"temperature\":0,\"logprobs\":0",
            lists[i], "text");
    }
    streamed_is_whole(
        &r, CHAT,
        "\"messages\":[{\"role\":\"user\",\"content\":\"Say \\u00e9\\ud83e\\udd9c and count\"}],"
        "\"max_tokens\":30,\"n\":2,"
        "\"seed\":9,\"temperature\":1.2,\"logprobs\":true,\"top_logprobs\":3",
        "logprobs.content", "message.content");
    /* The prompt's alternatives are no reason for more of the answer's. */
    json_t *v = hub_json(&r, CHAT,
                         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":2,"
                         "\"logprobs\":true,\"top_logprobs\":1,"
                         "\"prompt_logprobs\":4}",
                         200);
    assert_int_equal(json_array_size(hub_at(v, "choices.0.logprobs.content.0.top_logprobs")), 1);
    assert_true(json_object_size(hub_at(v, "prompt_logprobs.1")) >= 4);
    hub_close(&r);
}

/* ---------------------------------------------------------------- conversations */

static void conversations(void **state)
{
    static const char plain[] =
        "{% for m in messages %}[{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson "
        "}}>{% endfor %}]{% endfor %}"
        "{% if thinking %}T{% endif %}{% if tools %}{{ tools | length }}{% endif %}";
    static const char knowing[] =
        "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}[{{ m.role }}]{% endfor "
        "%}";
    static const struct {
        const char *messages, *want;
    } list[] = {
        {"{\"role\":\"developer\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"\"}",
         "[system:Be brief.][user:]"},
        {"{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"input_text\",\"text\":\"b\"},\"c\"]}",
         "[user:a\\nb\\nc]"},
        {"{\"role\":\"user\",\"content\":[]}", "[user:]"},
        {"{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}",
         "[assistant:no]"},
        {"{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
         "\"type\":\"function\",\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\": [1, \\\"\\u00e9\\\"]}\"}},{\"id\":\"2\","
         "\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]},"
         "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"42\"}",
         "[assistant:<f {\\\"a\\\": [1, \\\"\xc3\xa9\\\"]}><g {}>][tool:42]"},
        {"{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"not JSON\"}}]}",
         "[assistant:<f \\\"not JSON\\\">]"},
        {"{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":{\"thinking\":true},"
         "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
         "\"tool_choice\":\"none\",\"stop\":[\"y\"",
         "[user:x]T1"},
    };
    const char *file = sv_test_tmp("template");
    struct hub r = {.o.chat_template = file}, k = {.o.chat_template = file};
    struct sv_err err = {0};
    char body[700], want[300];
    (void)state;

    assert_int_equal(sv_file_write(file, plain, sizeof plain - 1, &err), SV_OK);
    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(body, sizeof body, "{\"messages\":[%s]}", list[i].messages);
        hub_ask(&r, "/apply-template", body, &r.a);
        snprintf(want, sizeof want, "{\"prompt\":\"%s\"}\n", list[i].want);
        assert_string_equal(r.a.body.data, want);
    }
    hub_close(&r);
    assert_int_equal(sv_file_write(file, knowing, sizeof knowing - 1, &err), SV_OK);
    hub_open(&k, false); /* a template that has such a role gets it */
    hub_ask(&k, "/apply-template", "{\"messages\":[{\"role\":\"developer\",\"content\":\"x\"}]}",
            &k.a);
    assert_string_equal(k.a.body.data, "{\"prompt\":\"D[developer]\"}\n");
    hub_close(&k);
}

SV_TEST_MAIN(cmocka_unit_test(stop_ids_inside_blocks), cmocka_unit_test(stop_texts),
             cmocka_unit_test(end_of_the_context), cmocka_unit_test(drafts_change_nothing),
             cmocka_unit_test(choices_streamed_with_logprobs), cmocka_unit_test(conversations))
