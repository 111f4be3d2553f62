/*
 * test_deltas.c - answers with reasoning and calls as the dialects write them, without a server: a
 * stream cut into chunks anywhere equals the whole answer, and if memory runs out nothing is lost
 * silently.
 */
#include "serve/blocks.h"
#include "serve/hub.h"
#include "serve/anthropic/anthropic.h"
#include "serve/core/deltas.h"
#include "serve/openai/openai.h"

#include "testing.h"

#include <string.h>

#define CALL(name, arguments)                                                                      \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"
#define THOUGHT "<think>\nIs 1 < 2? \xc3\xa4\xe2\x82\xac\n</think>\n\n"

/* A call of one sequence, as far as its answer's parts go. */
struct rig {
    struct sv_serve s;
    struct sv_serve_model m;
    struct sv_call c;
    struct sv_choice g;
    struct sv_prompt prompt;
    struct sv_buf out;
};

/* Why an answer is over. */
struct ending {
    enum sv_finish_reason finish;
    int32_t stop_index;
};
static const struct ending by_itself = {SV_FINISH_STOP, -1}, by_a_text = {SV_FINISH_STOP, 0},
                           by_its_length = {SV_FINISH_LENGTH, -1};

static struct sv_tokenizer *tok;

static int open_tokenizer(void **state)
{
    struct sv_err err;
    (void)state;
    return sv_tokenizer_open(&tok, sv_test_path("models/demo/target"), &err);
}

static int close_tokenizer(void **state)
{
    (void)state;
    sv_tokenizer_close(tok);
    return 0;
}

static void begin(struct rig *r, const struct sv_dialect *d, bool stream,
                  enum sv_tool_format format, bool parallel)
{
    memset(r, 0, sizeof *r);
    r->m.tok = tok;
    r->m.info.block_size = 16;
    r->s.model = &r->m;
    r->s.as_reasoning_content = true;
    snprintf(r->s.model_name, sizeof r->s.model_name, "m");
    r->prompt.n_ids = 5;
    r->c.s = &r->s;
    r->c.dialect = d;
    r->c.choices = &r->g;
    r->c.prompts = &r->prompt;
    r->c.n_choices = r->c.n_prompts = 1;
    r->c.p = (struct sv_params){.n = 1,
                                .stream = stream,
                                .parallel = parallel,
                                .include_reasoning = true,
                                .stream_reasoning = true,
                                .stop = {"stop"},
                                .r.n_stop = 1,
                                .tool_format = format,
                                .think_format = SV_THINK_TAG};
    r->g.call = &r->c;
    r->g.stop_index = -1;
    sv_buf_init(&r->out);
    r->out.failed = sv_deltas_open(&r->g) != 0;
}

static void end(struct rig *r)
{
    sv_deltas_close(&r->g);
    sv_buf_fini(&r->g.text);
    sv_buf_fini(&r->c.head);
    sv_buf_fini(&r->out);
}

static void comes(struct rig *r, const char *text, size_t n, enum sv_finish_reason finish)
{
    const struct sv_out o = {.kind = SV_OUT_EVENT,
                             .choice = &r->g,
                             .finish = finish,
                             .text = text,
                             .n_text = (uint32_t)n};

    r->g.finish = finish;
    r->c.dialect->chunk(&r->c, &r->g, &o, &r->out);
    r->g.shown = true;
    if (finish != SV_FINISH_NONE)
        r->c.dialect->tail(&r->c, &r->out);
}

static void comes_whole(struct rig *r, const char *text, size_t n, enum sv_finish_reason finish)
{
    sv_buf_append(&r->g.text, text, n);
    r->out.failed |= r->g.text.failed;
    r->g.finish = finish;
    r->c.dialect->body(&r->c, &r->out);
}

static size_t n_of_character(const char *at)
{
    size_t n = 1;

    while (((unsigned char)at[n] & 0xc0) == 0x80)
        n++;
    return n;
}

static json_t *whole(const char *text, size_t n, bool parallel, struct ending e)
{
    struct rig r;
    struct sv_err err;

    begin(&r, &sv_dialect_messages, false, SV_TOOL_HERMES, parallel);
    r.g.stop_index = e.stop_index;
    comes_whole(&r, text, n, e.finish);
    assert_false(r.out.failed);
    json_t *v = sv_json_parse(r.out.data, r.out.len, &err);
    assert_non_null(v);
    blocks_forget_ids(v);
    end(&r);
    return v;
}

/* In two chunks, or character by character. */
static json_t *streamed(const char *text, size_t n, size_t cut, bool parallel, struct ending e)
{
    struct rig r;

    begin(&r, &sv_dialect_messages, true, SV_TOOL_HERMES, parallel);
    r.g.stop_index = e.stop_index;
    for (size_t at = 0; at < n;) {
        size_t step = cut == SIZE_MAX ? n_of_character(text + at) : at < cut ? cut - at : n - at;
        comes(&r, text + at, step, at + step == n ? e.finish : SV_FINISH_NONE);
        at += step;
    }
    assert_false(r.out.failed);
    json_t *events = hub_events_of(r.out.data), *v = blocks_of_stream(events);
    blocks_forget_ids(v);
    json_decref(events);
    end(&r);
    return v;
}

static const char *const texts[] = {
    THOUGHT "I look.\n" CALL("get_weather",
                             "{\"city\": \"K\xc3\xb6ln \\ud83d\\ude00\"}") "\n" CALL("b", "{}"),
    "One " CALL("b", "{\"a\": [1, {\"b\": null}], \"<tool_call>\": \"</tool_call>\"}") " two " CALL(
        "c", "{}") " three \xf0\x9f\xa6\x91 " CALL("d", "{\"x\": \"\xe1\x8c\xa2\"}") " four",
    THOUGHT,
    "<think>on \xf0\x9f\x98\x80 and on <tool_call>",
    "< <think> is \xe6\x97\xa5 no thought here, <tool_cal nor that a call </tool_call>",
};

static void cut_anywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * sizeof texts / sizeof texts[0]; i++) {
        const char *text = texts[i / 2];
        const size_t n = strlen(text);
        json_t *want = whole(text, n, i & 1, by_itself);
        json_t *each = streamed(text, n, SIZE_MAX, i & 1, by_itself);
        hub_same(want, each, text);
        json_decref(each);
        for (size_t cut = n_of_character(text); cut < n; cut += n_of_character(text + cut)) {
            json_t *v = streamed(text, n, cut, i & 1, by_itself);
            hub_same(want, v, text);
            json_decref(v);
        }
        json_decref(want);
    }
}

/* The length or a stop text may end it anywhere, too. Arguments that are not whole come to no
 * input. */
static void ended_anywhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < 4 * sizeof texts / sizeof texts[0]; i++) {
        const char *text = texts[i / 4];
        const size_t n = strlen(text);
        const struct ending e = i & 2 ? by_its_length : by_a_text;
        for (size_t most = n_of_character(text); most < n; most += n_of_character(text + most)) {
            json_t *want = whole(text, most, i & 1, e);
            json_t *v = streamed(text, most, SIZE_MAX, i & 1, e);
            hub_same(want, v, text);
            json_decref(want);
            json_decref(v);
        }
    }
}

/* Text around a call that is left out is one block, streamed or not. */
static void calls_left_out(void **state)
{
    json_t *v = whole(texts[1], strlen(texts[1]), false, by_itself);
    (void)state;

    assert_int_equal(json_array_size(hub_at(v, "content")), 3);
    assert_string_equal(hub_text(v, "content.2.text"), "twothree \xf0\x9f\xa6\x91"
                                                       "four");
    json_decref(v);
}

/* Whatever is JSON is the call's input, also what this server could not read itself. */
static void inputs_of_any_kind(void **state)
{
    static const char *const inputs[] = {
        "{\"a\": 1e999, \"b\": -1E+4000}", "{\"half\": \"\\ud83d\", \"other\": \"\\udc00 \"}",
        "{\"nul\": \"\\u0000\", \"\\u0000\": 1}", "{\"twice\": 1, \"twice\": 2}",
        "{\"long\": 1234567890123456789012345678901234567890}"};
    (void)state;

    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        struct rig r;
        char text[200], want[200];
        snprintf(text, sizeof text, CALL("b", "%s"), inputs[i]);
        snprintf(want, sizeof want, "\"input\":%s}]", inputs[i]);
        begin(&r, &sv_dialect_messages, false, SV_TOOL_HERMES, true);
        comes_whole(&r, text, strlen(text), SV_FINISH_STOP);
        if (r.out.failed || !strstr(r.out.data, want))
            fail_msg("no %s in %s", want, r.out.data);
        end(&r);
    }
}

/* ---------------------------------------------------------------- memory */

static void write_all(struct rig *r, const struct sv_dialect *d, bool stream,
                      enum sv_tool_format format, const char *text)
{
    const size_t n = strlen(text);

    begin(r, d, stream, format, true);
    if (r->out.failed)
        return;
    for (size_t at = 0; stream && at < n;) {
        size_t step = n - at < 40 ? n - at : 40;
        comes(r, text + at, step, at + step == n ? SV_FINISH_STOP : SV_FINISH_NONE);
        at += step;
    }
    if (!stream)
        comes_whole(r, text, n, SV_FINISH_STOP);
}

static void same_text(const char *want, const char *got)
{
    size_t at = 0;

    while (got[at] && want[at] == got[at])
        at++;
    if (strcmp(want + at, got + at) != 0)
        fail_msg("where %.200s should be, there is %.200s", want + at, got + at);
}

/* Either all of it is there, or whoever sends it is told. */
static void no_memory_for(const struct sv_dialect *d, bool stream, enum sv_tool_format format,
                          const char *text)
{
    struct rig want, r;
    bool hit = true;

    write_all(&want, d, stream, format, text);
    assert_false(want.out.failed);
    for (int64_t nth = 1; hit; nth++) {
        const int64_t before = sv_alloc_live();
        sv_fault_arm(nth);
        write_all(&r, d, stream, format, text);
        hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        if (!r.out.failed)
            same_text(want.out.data, r.out.data);
        assert_true(hit || !r.out.failed);
        end(&r);
        assert_int_equal(sv_alloc_live(), before);
        assert_true(nth < 2000);
    }
    end(&want);
}

static void no_memory(void **state)
{
    static const struct sv_dialect *const dialects[] = {&sv_dialect_messages, &sv_dialect_chat};
    static const char *const calls[] = {
        CALL("b", "{\"a\": [1, 2], \"id\": \"x\"}") CALL("c", "\"{}\""),
        "<tool_call><function=b><parameter=a>\n12\n</parameter><parameter=text>\nmany \"words\" in "
        "a row\n</parameter></function></tool_call>"};
    (void)state;

    for (int i = 0; i < 8; i++) {
        struct sv_buf text;
        sv_buf_init(&text);
        sv_buf_lit(&text, "<think>");
        for (int k = 0; k < 200; k++)
            sv_buf_lit(&text, "one \"two\" ");
        sv_buf_printf(&text, "</think>Three %s", calls[i / 4]);
        no_memory_for(dialects[i / 2 & 1], i & 1, i / 4 ? SV_TOOL_XML : SV_TOOL_HERMES, text.data);
        sv_buf_fini(&text);
    }
}

SV_TEST_MAIN(cmocka_unit_test_setup_teardown(cut_anywhere, open_tokenizer, close_tokenizer),
             cmocka_unit_test_setup_teardown(ended_anywhere, open_tokenizer, close_tokenizer),
             cmocka_unit_test_setup_teardown(calls_left_out, open_tokenizer, close_tokenizer),
             cmocka_unit_test_setup_teardown(inputs_of_any_kind, open_tokenizer, close_tokenizer),
             cmocka_unit_test_setup_teardown(no_memory, open_tokenizer, close_tokenizer))
