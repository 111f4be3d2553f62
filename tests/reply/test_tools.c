/*
 * test_tools.c - answers taken apart: every format over tests/reply/answers.json, cut everywhere;
 * and what is huge, random or without memory.
 *
 * A case has the parts of the whole answer, and under "streamed" those of a stream where a call
 * that was already given out turns out to be broken. The kind of a text that stands apart from
 * earlier ones ends with a plus sign.
 */
#include "testing.h"
#include "reply/reply.h"

#include <string.h>

struct got {
    json_t *parts;
    struct sv_buf text; /* of the last */
    enum sv_part_kind kind;
    bool apart;
    size_t n_parts, most; /* as they came; bytes of the longest */
};

static const char *const kinds[] = {"content", "thought", "call", "arguments", "end"};

static void flush(struct got *g)
{
    if (!g->n_parts)
        return;
    const char *text = g->text.data ? g->text.data : "";
    json_array_append_new(g->parts, json_pack("[s+,o]", kinds[g->kind], g->apart ? "+" : "",
                                              json_stringn(text, g->text.len)));
    sv_buf_clear(&g->text);
}

/* Pieces of one kind are one text, however they came. */
static void on_part(void *user, const struct sv_part *p)
{
    struct got *g = user;
    bool more = g->n_parts && p->kind == g->kind && p->kind != SV_PART_CALL && !p->apart;

    if (!more) {
        flush(g);
        g->apart = p->apart;
    }
    g->kind = p->kind;
    g->n_parts++;
    g->most = p->n > g->most ? p->n : g->most;
    sv_buf_append(&g->text, p->text, p->n);
}

static struct sv_answer *begin(const json_t *c, const json_t *tools, bool whole, struct got *g)
{
    const char *think = json_string_value(json_object_get(c, "think"));
    int tool = sv_tool_format_named(json_string_value(json_object_get(c, "tools")));
    int thought = think ? sv_think_format_named(think) : 0;

    assert_true(tool >= 0 && thought >= 0);
    *g = (struct got){.parts = json_array()};
    struct sv_answer *a = sv_answer_new(
        &(struct sv_answer_opts){.tools = (enum sv_tool_format)tool,
                                 .think = (enum sv_think_format)thought,
                                 .within_reasoning = json_object_get(c, "within_reasoning"),
                                 .reasoning_in_content = json_object_get(c, "in_content"),
                                 .whole = whole,
                                 .tool_list = tools,
                                 .part = on_part,
                                 .user = g});
    assert_non_null(a);
    return a;
}

static void end(struct got *g)
{
    json_decref(g->parts);
    sv_buf_fini(&g->text);
}

/* rng: cut at random; else into pieces of `step` bytes. */
static void check(const json_t *c, const json_t *tools, bool whole, size_t step, struct sv_rng *rng)
{
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *text = json_object_get(c, "text"), *streamed = json_object_get(c, "streamed");
    const json_t *want = !whole && streamed ? streamed : json_object_get(c, "parts");
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    struct got g;

    struct sv_answer *a = begin(c, tools, whole, &g);
    for (size_t at = 0, k; at < n; at += k) {
        k = rng ? 1 + sv_rng_below(rng, 9) : step;
        k = k < n - at ? k : n - at;
        assert_true(sv_answer_push(a, s + at, k));
    }
    assert_true(sv_answer_end(a, json_object_get(c, "cut")));
    flush(&g);
    if (!json_equal(g.parts, (json_t *)(uintptr_t)want)) {
        char *is = json_dumps(g.parts, 0), *should = json_dumps(want, 0);
        fail_msg("'%s', %s, pieces of %zu: %s is not %s", name, whole ? "whole" : "streamed", step,
                 is, should);
    }
    sv_answer_free(a);
    end(&g);
}

static json_t *load(void)
{
    struct sv_err err = {0};
    json_t *all = sv_json_load(sv_test_path("tests/reply/answers.json"), 1 << 20, &err);
    if (!all)
        fail_msg("%s", err.msg);
    return all;
}

static void formats_cut_everywhere(void **state)
{
    json_t *all = load(), *tools = json_object_get(all, "tools"), *c;
    struct sv_rng rng = {7};
    size_t i;
    (void)state;

    json_array_foreach(json_object_get(all, "cases"), i, c) {
        for (size_t step = 1; step < 40; step++) {
            check(c, tools, true, step, NULL);
            check(c, tools, false, step, NULL);
        }
        check(c, tools, true, SIZE_MAX / 2, NULL);
        check(c, tools, false, SIZE_MAX / 2, NULL);
        for (int k = 0; k < 20; k++)
            check(c, tools, k & 1, 0, &rng);
    }
    assert_true(i > 170);
    json_decref(all);
}

/* Cut in two at every byte: text goes out at once, but for what may be a marker. */
static void nothing_waits_without_need(void **state)
{
    static const char text[] = "One two three. <b> A call follows. ";
    json_t *c = json_pack("{s:s,s:s}", "tools", "hermes", "think", "think");
    struct got g;
    (void)state;

    for (size_t n = 1; n < sizeof text; n++) {
        struct sv_answer *a = begin(c, NULL, false, &g);
        assert_true(sv_answer_push(a, text, n));
        size_t out = g.text.len, held = 0;
        while (held < n && (text[n - held - 1] == ' ' || text[n - held - 1] == '<'))
            held++;
        assert_int_equal(out, n - held);
        sv_answer_free(a);
        end(&g);
    }
    /* Arguments go on as they come; the name first. */
    static const char call[] = "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"some text\"}}";
    size_t from = (size_t)(strstr(call, "{\"a\"") - call);
    struct sv_answer *a = begin(c, NULL, false, &g);
    assert_true(sv_answer_push(a, call, from));
    assert_int_equal(g.n_parts, 0);
    for (size_t i = from; i < sizeof call - 2; i++) {
        assert_true(sv_answer_push(a, call + i, 1));
        assert_int_equal(g.n_parts, 2 + i - from);
        assert_int_equal(g.text.len, 1 + i - from);
    }
    sv_answer_free(a);
    end(&g);
    json_decref(c);
}

/* A megabyte that only looks like a call is held no longer; one of arguments never is. */
static void huge_calls(void **state)
{
    static char block[4096];
    json_t *c = json_pack("{s:s}", "tools", "hermes");
    struct got g;
    (void)state;

    memset(block, 'x', sizeof block);
    for (int kind = 0; kind < 2; kind++) {
        const char *head = kind ? "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\""
                                : "<tool_call>{\"arguments\":{\"a\":\"";
        struct sv_answer *a = begin(c, NULL, false, &g);
        assert_true(sv_answer_push(a, head, strlen(head)));
        for (int i = 0; i < 300; i++) {
            assert_true(sv_answer_push(a, block, sizeof block));
            assert_int_equal(g.n_parts > 0, kind || i >= 255);
            if (kind)
                assert_true(g.most <= sizeof block + 6);
        }
        assert_true(sv_answer_end(a, true));
        flush(&g);
        json_t *last = json_array_get(g.parts, kind);
        assert_string_equal(json_string_value(json_array_get(last, 0)), kinds[kind ? 3 : 0]);
        assert_int_equal(json_string_length(json_array_get(last, 1)),
                         300 * sizeof block + (kind ? 6 : strlen(head)));
        sv_answer_free(a);
        end(&g);
    }
    json_decref(c);
}

/* Markers and pieces of calls thrown together: the same parts however they are cut, arguments of
 * whole calls are objects, and as content everything comes out. */
static void random_texts(void **state)
{
    static const char *const words[] = {"<tool_call>",
                                        "</tool_call>",
                                        "{\"name\": \"a\", ",
                                        "\"arguments\": {",
                                        "}",
                                        "}}",
                                        "\"x\": ",
                                        "\"y\"",
                                        "[1, ",
                                        "]",
                                        "<function=f>",
                                        "<parameter=p>",
                                        "</parameter>",
                                        "</function>",
                                        "\n",
                                        " ",
                                        "text",
                                        "<think>",
                                        "</think>",
                                        "[TOOL_CALLS]",
                                        "f",
                                        "[ARGS]",
                                        ",",
                                        ";",
                                        "<｜tool▁calls▁begin｜>",
                                        "<｜tool▁call▁begin｜>",
                                        "<｜tool▁sep｜>",
                                        "<|start|>",
                                        "<|channel|>",
                                        "<|message|>",
                                        "<|end|>",
                                        "<|call|>",
                                        "assistant",
                                        "analysis",
                                        "commentary to=functions.f ",
                                        "\\",
                                        "\"",
                                        "12",
                                        "null"};
    static const char *const formats[] = {"none",    "hermes",      "qwen3_coder", "llama3_json",
                                          "mistral", "deepseek_v3", "harmony"};
    static const char *const thoughts[] = {"none", "think", "harmony"};
    struct sv_rng rng = {11};
    struct sv_buf text;
    (void)state;

    sv_buf_init(&text);
    for (int i = 0; i < 10500; i++) {
        json_t *c = json_pack("{s:s,s:s,s:s}", "name", "random", "tools", formats[i % 7], "think",
                              thoughts[i / 7 % 3]);
        struct got g;
        sv_buf_clear(&text);
        for (uint32_t k = 1 + sv_rng_below(&rng, 25); k; k--) {
            const char *w = words[sv_rng_below(&rng, sizeof words / sizeof words[0])];
            sv_buf_append(&text, w, strlen(w));
        }
        for (int whole = 0; whole < 2; whole++) {
            struct sv_answer *a = begin(c, NULL, whole, &g);
            assert_true(sv_answer_push(a, text.data, text.len));
            assert_true(sv_answer_end(a, false));
            flush(&g);
            assert_true(sv_answer_n_reasoning(a) <= text.len);
            json_object_set(c, "parts", g.parts);
            json_object_set_new(c, "text", json_stringn(text.data, text.len));
            check(c, NULL, whole, 1, NULL);
            check(c, NULL, whole, 0, &rng);
            for (size_t k = 0; k < json_array_size(g.parts); k++) {
                const json_t *p = json_array_get(g.parts, k), *s = json_array_get(p, 1);
                struct sv_err err;
                if (!whole || strcmp(json_string_value(json_array_get(p, 0)), "arguments") != 0)
                    continue;
                json_t *v = sv_json_parse(json_string_value(s), json_string_length(s), &err);
                if (!json_is_object(v))
                    fail_msg("%s: arguments %s", text.data, json_string_value(s));
                json_decref(v);
            }
            if (i % 7 == 0 && i / 7 % 3 == 0)
                assert_int_equal(json_string_length(json_array_get(json_array_get(g.parts, 0), 1)),
                                 text.len);
            sv_answer_free(a);
            end(&g);
        }
        json_decref(c);
    }
    sv_buf_fini(&text);
}

/* Text of messages goes out at once, a header never, a call as soon as its arguments begin. */
static void messages_as_they_come(void **state)
{
    static const char text[] =
        "<|channel|>analysis<|message|>Some thought.<|end|>"
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
        "{\"x\": \"a long text\"}";
    json_t *c = json_pack("{s:s,s:s}", "tools", "harmony", "think", "harmony");
    const size_t begins = (size_t)(strstr(text, "Some") - text), ends = begins + 13;
    const size_t called = (size_t)(strchr(text, '{') - text);
    struct got g;
    (void)state;

    struct sv_answer *a = begin(c, NULL, false, &g);
    for (size_t i = 0; i < sizeof text - 1; i++) {
        assert_true(sv_answer_push(a, text + i, 1));
        if (i < begins)
            assert_int_equal(g.n_parts, 0);
        else if (i < ends)
            assert_int_equal(g.text.len, i - begins + 1);
        else if (i < called)
            assert_int_equal(g.n_parts, ends - begins);
        else
            assert_int_equal(g.n_parts, ends - begins + 2 + i - called + (i == sizeof text - 2));
    }
    /* The thought with its markers, and the next message's header once it is read. */
    assert_int_equal(sv_answer_n_reasoning(a), called);
    sv_answer_free(a);
    end(&g);
    json_decref(c);
}

static void no_memory(void **state)
{
    json_t *all = load(), *tools = json_object_get(all, "tools"), *c;
    size_t i;
    (void)state;

    json_array_foreach(json_object_get(all, "cases"), i, c) {
        const json_t *text = json_object_get(c, "text");
        for (int64_t nth = 1, over = 0; !over; nth++) {
            struct got g;
            struct sv_answer *a = begin(c, tools, i & 1, &g);
            sv_buf_reserve(&g.text, 1 << 16);
            sv_fault_arm(nth);
            bool fine = sv_answer_push(a, json_string_value(text), json_string_length(text)) &&
                        sv_answer_end(a, false);
            over = sv_fault_calls() < nth;
            sv_fault_arm(0);
            assert_true(fine || !over);
            sv_answer_free(a);
            end(&g);
        }
    }
    json_decref(all);
}

static void found_in_templates(void **state)
{
    static const struct {
        const char *text;
        enum sv_tool_format tool;
        enum sv_think_format think;
    } list[] = {
        {"{{ messages[0].content }}", SV_TOOL_NONE, SV_THINK_NONE},
        {"return a json object within <tool_call></tool_call> XML tags", SV_TOOL_HERMES,
         SV_THINK_NONE},
        {"{%- if '</think>' in content %}... <tool_call>\\n<function=example>", SV_TOOL_XML,
         SV_THINK_TAG},
        {"{{- '<|python_tag|>' + tool_call.name }}", SV_TOOL_LLAMA, SV_THINK_NONE},
        {"{{ '[TOOL_CALLS]' }} [THINK][/THINK]", SV_TOOL_MISTRAL, SV_THINK_BRACKET},
        {"'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' </think>", SV_TOOL_DEEPSEEK, SV_THINK_TAG},
        {"<tool_call>{name}<arg_key> <think></think>", SV_TOOL_NONE, SV_THINK_TAG},
        {"{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}",
         SV_TOOL_HARMONY, SV_THINK_HARMONY},
        {"{{ '<|user|>' + message.content + '<|end|>' }}", SV_TOOL_NONE, SV_THINK_NONE},
        {"</seed:think>", SV_TOOL_NONE, SV_THINK_SEED}};
    (void)state;

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        assert_int_equal(sv_tool_format_of(list[i].text), list[i].tool);
        assert_int_equal(sv_think_format_of(list[i].text), list[i].think);
    }
    for (int f = SV_TOOL_NONE; f <= SV_TOOL_HARMONY; f++)
        assert_int_equal(sv_tool_format_named(sv_tool_format_name((enum sv_tool_format)f)), f);
    for (int f = SV_THINK_NONE; f <= SV_THINK_HARMONY; f++)
        assert_int_equal(sv_think_format_named(sv_think_format_name((enum sv_think_format)f)), f);
    assert_int_equal(sv_tool_format_named("pythonic"), -1);
    assert_int_equal(sv_think_format_named("granite"), -1);
    assert_string_equal(sv_tool_marker(SV_TOOL_MISTRAL, 2), "[ARGS]");
    assert_null(sv_tool_marker(SV_TOOL_MISTRAL, 3));
    assert_null(sv_think_marker(SV_THINK_NONE, 0));
    assert_string_equal(sv_think_marker(SV_THINK_HARMONY, 2), "<|start|>");
    assert_string_equal(sv_think_marker(SV_THINK_HARMONY, 8), "<|return|>");
    assert_null(sv_think_marker(SV_THINK_HARMONY, 9));
    assert_true(sv_think_is_open(SV_THINK_HARMONY, "assistant<|channel|>analysis<|message|>", 39));
    assert_false(sv_think_is_open(SV_THINK_HARMONY, "<|start|>assistant", 18));
    assert_true(sv_think_is_open(SV_THINK_TAG, "<|im_start|>assistant\n<think>\n", 30));
    assert_false(sv_think_is_open(SV_THINK_TAG, "<think>\n\n</think>\n\n", 19));
    assert_false(sv_think_is_open(SV_THINK_NONE, "<think>", 7));
}

SV_TEST_MAIN(cmocka_unit_test(formats_cut_everywhere), cmocka_unit_test(nothing_waits_without_need),
             cmocka_unit_test(huge_calls), cmocka_unit_test(random_texts),
             cmocka_unit_test(messages_as_they_come), cmocka_unit_test(no_memory),
             cmocka_unit_test(found_in_templates))
