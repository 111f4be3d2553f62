/*
 * test_native.c - the endpoints of SGLang and llama-server on the demo pair: their shapes, and the
 * same tokens and numbers as OpenAI's give, whole and streamed.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>

#define P "def add(a, b):"

/* Nine digits bring a float back exactly, so numbers are equal or wrong. */
static void same_number(json_t *a, json_t *b)
{
    if (!json_is_number(a) || !json_is_number(b) || json_number_value(a) != json_number_value(b))
        fail_msg("%g is not %g", json_number_value(a), json_number_value(b));
}

/* ---------------------------------------------------------------- SGLang's log probabilities */

/* triples: [logprob, id, text] of each token, from where on the OpenAI shape has it. */
static void same_as_legacy(json_t *meta, const char *list, const char *top, json_t *legacy,
                           json_t *ids, size_t from)
{
    json_t *tokens = hub_at(meta, list), *tops = hub_at(meta, top);
    size_t n = json_array_size(tokens);

    assert_int_equal(json_array_size(tops), n);
    for (size_t i = 0; i < n; i++) {
        json_t *t = json_array_get(tokens, i), *places = json_array_get(tops, i);
        json_t *old = json_array_get(hub_at(legacy, "token_logprobs"), from + i);
        assert_int_equal(json_array_size(t), 3);
        hub_same(json_array_get(t, 1), json_array_get(ids, i), "id");
        if (i == 0 && strncmp(list, "input", 5) == 0) {
            assert_true(json_is_null(json_array_get(t, 0)) && json_is_null(places));
            continue;
        }
        same_number(json_array_get(t, 0), old);
        assert_int_equal(json_array_size(places), 3);
        json_t *names = json_array_get(hub_at(legacy, "top_logprobs"), from + i);
        for (size_t k = 0; k < 3; k++) {
            json_t *place = json_array_get(places, k);
            same_number(json_array_get(place, 0),
                        json_object_get(names, json_string_value(json_array_get(place, 2))));
        }
    }
}

#define GENERATE(more)                                                                             \
    "{\"text\":\"" P "\",\"sampling_params\":{\"max_new_tokens\":6,\"temperature\":0},"            \
    "\"return_logprob\":true" more "}"

static void generate_logprobs(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *old = hub_json(&r, "/v1/completions",
                           "{\"prompt\":\"" P "\",\"max_tokens\":6,\"temperature\":0,\"echo\":true,"
                           "\"logprobs\":3,\"return_token_ids\":true}",
                           200);
    json_t *legacy = hub_at(old, "choices.0.logprobs"),
           *prompt_ids = hub_at(old, "choices.0.prompt_token_ids");
    json_t *ids = hub_at(old, "choices.0.token_ids");
    size_t n = json_array_size(prompt_ids);

    json_t *all = hub_json(&r, "/generate",
                           GENERATE(",\"logprob_start_len\":0,\"top_logprobs_num\":3,"
                                    "\"return_text_in_logprobs\":true"),
                           200);
    json_t *meta = hub_at(all, "meta_info");
    assert_int_equal(json_array_size(hub_at(meta, "input_token_logprobs")), n);
    assert_int_equal(json_array_size(hub_at(meta, "output_token_logprobs")), 6);
    same_as_legacy(meta, "input_token_logprobs", "input_top_logprobs", legacy, prompt_ids, 0);
    same_as_legacy(meta, "output_token_logprobs", "output_top_logprobs", legacy, ids, n);
    hub_same(hub_at(all, "output_ids"), ids, "ids");

    /* From a place on: what comes after it is the same. */
    json_t *part = hub_json(&r, "/generate", GENERATE(",\"logprob_start_len\":[2]"), 200);
    json_t *input = hub_at(part, "meta_info.input_token_logprobs");
    assert_int_equal(json_array_size(input), n - 2);
    assert_true(json_is_null(hub_at(input, "0.0")));
    for (size_t i = 3; i < n; i++)
        same_number(json_array_get(json_array_get(input, i - 2), 0),
                    json_array_get(json_array_get(hub_at(meta, "input_token_logprobs"), i), 0));
    assert_true(json_is_null(hub_at(input, "1.2"))); /* no text unless asked for */
    assert_null(hub_at(part, "meta_info.input_top_logprobs"));

    /* By default the answer's alone, and the prompt's last token. */
    json_t *usual = hub_json(&r, "/generate", GENERATE(",\"top_logprobs_num\":1"), 200);
    assert_int_equal(json_array_size(hub_at(usual, "meta_info.input_token_logprobs")), 1);
    hub_same(hub_at(usual, "meta_info.input_token_logprobs.0.1"), json_array_get(prompt_ids, n - 1),
             "last token");
    hub_same(
        hub_at(usual, "meta_info.output_token_logprobs"),
        hub_at(hub_json(&r, "/generate", GENERATE(""), 200), "meta_info.output_token_logprobs"),
        "with and without alternatives");
    json_t *none = hub_json(&r, "/generate",
                            "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":1}}", 200);
    assert_null(hub_at(none, "meta_info.output_token_logprobs"));
    hub_close(&r);
}

/* A stream's events repeat all that has come; the last is the whole answer. Scoring makes no
 * token. */
static void generate_streams_and_scores(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *whole =
        hub_json(&r, "/generate", GENERATE(",\"logprob_start_len\":1,\"top_logprobs_num\":2"), 200);
    json_t *events =
        hub_events(&r, "/generate",
                   GENERATE(",\"logprob_start_len\":1,\"top_logprobs_num\":2,\"stream\":true"));
    json_t *last = json_array_get(events, json_array_size(events) - 1);
    static const char *const names[] = {"input_token_logprobs", "output_token_logprobs",
                                        "input_top_logprobs",   "output_top_logprobs",
                                        "completion_tokens",    "finish_reason"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        hub_same(json_object_get(hub_at(last, "meta_info"), names[i]),
                 json_object_get(hub_at(whole, "meta_info"), names[i]), names[i]);
    hub_same(hub_at(last, "text"), hub_at(whole, "text"), "text");
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *e = json_array_get(events, i);
        assert_int_equal(json_array_size(hub_at(e, "output_ids")),
                         json_array_size(hub_at(e, "meta_info.output_token_logprobs")));
    }
    /* As lm-eval scores: lists of ids, every token's own number. */
    json_t *scored =
        hub_json(&r, "/generate",
                 "{\"input_ids\":[[66,67,68],[66,67]],\"sampling_params\":{\"max_new_tokens\":0},"
                 "\"return_logprob\":[true,true],\"logprob_start_len\":0,\"top_logprobs_num\":1}",
                 200);
    assert_int_equal(json_array_size(scored), 2);
    assert_int_equal(hub_number(scored, "0.meta_info.completion_tokens"), 0);
    assert_string_equal(hub_text(scored, "0.text"), "");
    assert_int_equal(json_array_size(hub_at(scored, "0.meta_info.output_token_logprobs")), 0);
    assert_int_equal(json_array_size(hub_at(scored, "0.meta_info.input_token_logprobs")), 3);
    hub_same(hub_at(scored, "0.meta_info.input_token_logprobs.1"),
             hub_at(scored, "1.meta_info.input_token_logprobs.1"), "second");

    static const char *const bad[][2] = {
        {GENERATE(",\"logprob_start_len\":6"), "logprob_start_len"},
        {GENERATE(",\"logprob_start_len\":-2"), "logprob_start_len"},
        {GENERATE(",\"top_logprobs_num\":21"), "top_logprobs_num"},
        {GENERATE(",\"top_logprobs_num\":[1,2]"), "top_logprobs_num"},
        {"{\"text\":\"a\",\"return_logprob\":1}", "return_logprob"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_string_equal(hub_text(hub_json(&r, "/generate", bad[i][0], 400), "error.param"),
                            bad[i][1]);
    hub_close(&r);
}

/* ---------------------------------------------------------------- llama-server's completions */

#define LLAMA(more) "{\"prompt\":\"" P "\",\"n_predict\":24,\"temperature\":0" more "}"

static void completion_is_the_same_answer(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *old =
        hub_json(&r, "/v1/completions",
                 "{\"prompt\":\"" P "\",\"max_tokens\":24,\"temperature\":0,\"logprobs\":2,"
                 "\"return_token_ids\":true}",
                 200);
    json_t *own = hub_json(
        &r, "/completion",
        LLAMA(",\"n_probs\":2,\"return_tokens\":true,\"cache_prompt\":true,\"id_slot\":0"), 200);
    hub_same(hub_at(own, "content"), hub_at(old, "choices.0.text"), "text");
    hub_same(hub_at(own, "tokens"), hub_at(old, "choices.0.token_ids"), "ids");
    assert_true(json_is_true(hub_at(own, "stop")));
    assert_string_equal(hub_text(own, "stop_type"), "limit");
    assert_string_equal(hub_text(own, "stopping_word"), "");
    assert_string_equal(hub_text(own, "prompt"), P);
    assert_int_equal(hub_number(own, "tokens_predicted"), 24);
    assert_int_equal(hub_number(own, "tokens_evaluated"), hub_number(old, "usage.prompt_tokens"));
    assert_int_equal(hub_number(own, "tokens_cached"), hub_number(own, "tokens_evaluated") + 23);
    assert_int_equal(hub_number(own, "timings.predicted_n"), 24);
    assert_true(hub_number(own, "timings.draft_n") > 0);
    assert_int_equal(hub_number(own, "generation_settings.n_predict"), 24);
    assert_true(json_is_false(hub_at(own, "truncated")));
    assert_int_equal(json_is_true(hub_at(own, "has_new_line")),
                     strchr(hub_text(own, "content"), '\n') != NULL);
    json_t *probs = hub_at(own, "completion_probabilities");
    assert_int_equal(json_array_size(probs), 24);
    for (size_t i = 0; i < 24; i++) {
        json_t *p = json_array_get(probs, i);
        hub_same(json_object_get(p, "id"), json_array_get(hub_at(own, "tokens"), i), "id");
        same_number(json_object_get(p, "logprob"),
                    json_array_get(hub_at(old, "choices.0.logprobs.token_logprobs"), i));
        assert_int_equal(json_array_size(hub_at(p, "top_logprobs")), 2);
        hub_same(hub_at(p, "top_logprobs.0.id"), json_object_get(p, "id"), "greedy");
    }
    assert_int_equal(
        json_array_size(hub_at(hub_json(&r, "/completions", LLAMA(""), 200), "tokens")), 0);
    assert_null(hub_at(hub_json(&r, "/completions", LLAMA(""), 200), "completion_probabilities"));

    /* Streamed: the pieces are the whole, and the last event has no text. */
    json_t *events = hub_events(&r, "/completion", LLAMA(",\"n_probs\":2,\"stream\":true"));
    size_t n = json_array_size(events), n_tokens = 0, n_probs = 0;
    struct sv_buf text;
    sv_buf_init(&text);
    for (size_t i = 0; i < n; i++) {
        json_t *e = json_array_get(events, i);
        sv_buf_append(&text, hub_text(e, "content"), strlen(hub_text(e, "content")));
        n_tokens += json_array_size(hub_at(e, "tokens"));
        n_probs += json_array_size(hub_at(e, "completion_probabilities"));
        assert_int_equal(json_is_true(hub_at(e, "stop")), i + 1 == n);
    }
    assert_string_equal(text.data, hub_text(own, "content"));
    assert_int_equal(n_tokens, 24);
    assert_int_equal(n_probs, 24);
    assert_int_equal(hub_number(json_array_get(events, n - 1), "tokens_predicted"), 24);
    assert_string_equal(hub_text(json_array_get(events, n - 1), "stop_type"), "limit");
    sv_buf_fini(&text);
    hub_ask(&r, "/completion", LLAMA(",\"stream\":true"), &r.a);
    assert_null(strstr(r.a.body.data, "[DONE]"));
    hub_close(&r);
}

static void completion_ends_and_choices(void **state)
{
    struct hub r = {.real = true};
    char body[400];
    (void)state;

    hub_open(&r, false);
    json_t *all = hub_json(&r, "/completion", LLAMA(",\"return_tokens\":true"), 200);
    const char *text = hub_text(all, "content");
    snprintf(body, sizeof body, LLAMA(",\"stop\":[\"%.3s\"]"), text + 7);
    json_t *cut = hub_json(&r, "/completion", body, 200);
    assert_string_equal(hub_text(cut, "stop_type"), "word");
    assert_memory_equal(hub_text(cut, "stopping_word"), text + 7, 3);
    assert_int_equal(strlen(hub_text(cut, "content")),
                     (size_t)(strstr(text, hub_text(cut, "stopping_word")) - text));
    json_t *eos = hub_json(
        &r, "/completion",
        "{\"prompt\":\"<|im_start|>user\\nWhat is 2 plus 3?<|im_end|>\\n<|im_start|>assistant\\n\","
        "\"temperature\":0}",
        200); /* as long as it takes */
    assert_string_equal(hub_text(eos, "stop_type"), "eos");
    assert_int_equal(
        hub_number(hub_json(&r, "/completion", "{\"prompt\":\"a\",\"n_predict\":0}", 200),
                   "tokens_predicted"),
        0);

    /* Time runs out after the first line's end. */
    json_t *late =
        hub_json(&r, "/completion",
                 "{\"prompt\":\"" P "\",\"n_predict\":1500,\"ignore_eos\":true,\"temperature\":0,"
                 "\"t_max_predict_ms\":1}",
                 200);
    assert_true(hub_number(late, "tokens_predicted") < 1500);
    assert_string_equal(hub_text(late, "stop_type"), "limit");
    assert_non_null(strchr(hub_text(late, "content"), '\n'));

    /* Ids and texts in one prompt, several prompts, several answers. */
    json_t *ids = hub_json(&r, "/tokenize", "{\"content\":\"" P "\"}", 200);
    char *list = json_dumps(hub_at(ids, "tokens"), JSON_COMPACT);
    snprintf(body, sizeof body,
             "{\"prompt\":[%s,\"" P
             "\",[%.*s,\"\"]],\"n_predict\":24,\"temperature\":0,\"return_tokens\":true}",
             list, (int)strlen(list) - 2, list + 1);
    sv_free(list);
    json_t *three = hub_json(&r, "/completion", body, 200);
    assert_int_equal(json_array_size(three), 3);
    for (size_t i = 0; i < 3; i++) {
        hub_same(json_object_get(json_array_get(three, i), "tokens"), hub_at(all, "tokens"),
                 "tokens");
        assert_int_equal(hub_number(json_array_get(three, i), "index"), i);
    }
    assert_int_equal(
        json_array_size(hub_json(&r, "/completion",
                                 "{\"prompt\":[65,\"b\"],\"n_predict\":1,\"n_cmpl\":2}", 200)),
        2);

    /* What is asked for alone. */
    json_t *some = hub_json(
        &r, "/completion",
        LLAMA(",\"response_fields\":[\"content\",\"timings/predicted_n\",\"nothing\"]"), 200);
    assert_int_equal(json_object_size(some), 2);
    hub_same(json_object_get(some, "content"), hub_at(all, "content"), "content");
    assert_int_equal(json_integer_value(json_object_get(some, "timings/predicted_n")), 24);

    /* A token that may not be, in either form; samplers that are not named are off. */
    int64_t first = hub_number(all, "tokens.0");
    snprintf(body, sizeof body, LLAMA(",\"return_tokens\":true,\"logit_bias\":[[%d,false]]"),
             (int)first);
    json_t *other = hub_json(&r, "/completion", body, 200);
    assert_true(hub_number(other, "tokens.0") != first);
    snprintf(body, sizeof body, LLAMA(",\"return_tokens\":true,\"logit_bias\":{\"%d\":-100}"),
             (int)first);
    hub_same(hub_at(hub_json(&r, "/completion", body, 200), "tokens"), hub_at(other, "tokens"),
             "bias");
    json_t *warm =
        hub_json(&r, "/completion",
                 LLAMA(",\"samplers\":[\"top_k\",\"top_p\"],\"top_k\":1,\"min_p\":0.5"), 200);
    assert_true(json_number_value(hub_at(warm, "generation_settings.temperature")) == 1);
    assert_true(json_number_value(hub_at(warm, "generation_settings.min_p")) == 0);
    hub_same(hub_at(warm, "content"), hub_at(all, "content"), "top_k 1");
    hub_close(&r);
}

/* ---------------------------------------------------------------- /infill */

/* The demo's tokenizer with marks around a cursor, and of files or not. */
static void fim_model(bool files)
{
    static const char *const names[] = {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                        "<|fim_pad|>",    "<|repo_name|>",  "<|file_sep|>"};
    static const char *const kept[] = {"tokenizer_config.json", "generation_config.json"};
    struct sv_err err = {0};
    json_t *tok =
        sv_json_load(sv_test_path("models/demo/target/tokenizer.json"), (size_t)64 << 20, &err);
    json_t *added = json_object_get(tok, "added_tokens");
    char path[200];

    for (int i = 0; i < (files ? 6 : 3); i++) {
        json_t *one = json_deep_copy(json_array_get(added, 0));
        json_object_set_new(one, "id", json_integer(6144 + i));
        json_object_set_new(one, "content", json_string(names[i]));
        json_array_append_new(added, one);
    }
    char *text = json_dumps(tok, JSON_COMPACT);
    assert_int_equal(sv_file_write(sv_test_tmp("tokenizer.json"), text, strlen(text), &err), SV_OK);
    sv_free(text);
    json_decref(tok);
    for (int i = 0; i < 2; i++) {
        struct sv_buf b;
        sv_buf_init(&b);
        snprintf(path, sizeof path, "models/demo/target/%s", kept[i]);
        assert_int_equal(sv_file_read(&b, sv_test_path(path), 1 << 20, &err), SV_OK);
        assert_int_equal(sv_file_write(sv_test_tmp(kept[i]), b.data, b.len, &err), SV_OK);
        sv_buf_fini(&b);
    }
}

/* The prompt that a body makes, as the instant engine tells it. */
static void infill_prompt(struct hub *r, const char *body, const char *want)
{
    json_t *v = hub_json(r, "/infill", body, 200);
    assert_string_equal(hub_text(v, "prompt"), want);
}

static void infill_with_files(void **state)
{
    struct hub r = {.o.engine.context = 64};
    (void)state;

    fim_model(true);
    r.o.engine.target_dir = sv_test_tmp(".");
    hub_open(&r, false);
    infill_prompt(&r, "{\"input_prefix\":\"a(\",\"input_suffix\":\")\\n\",\"n_predict\":2}",
                  "<|repo_name|>myproject\n<|file_sep|>filename\n<|fim_prefix|>a(<|fim_suffix|>)\n"
                  "<|fim_middle|>");
    infill_prompt(
        &r,
        "{\"input_prefix\":\"a\\n\",\"prompt\":\"  b\",\"input_suffix\":\"\",\"n_predict\":2,"
        "\"input_extra\":[{\"filename\":\"x.c\",\"text\":\"int y;\"},{\"filename\":null,\"text\":\"z\"}],\"samplers\":[\"top_k\","
        "\"infill\"],\"n_indent\":0}",
        "<|repo_name|>myproject\n<|file_sep|>x.c\nint y;<|file_sep|>tmp\nz<|file_sep|>filename\n<|fim_prefix|>a\n  "
        "b<|fim_suffix|><|fim_middle|>");
    /* OpenAI's suffix makes the same of a prompt, or of each; files are another matter. */
    json_t *ids =
        hub_at(hub_json(&r, "/tokenize",
                        "{\"prompt\":\"<|fim_prefix|>a(<|fim_suffix|>)<|fim_middle|>\"}", 200),
               "tokens");
    json_t *text = hub_json(&r, "/v1/completions",
                            "{\"prompt\":[\"b\",\"a(\"],\"suffix\":\")\",\"max_tokens\":2,"
                            "\"return_token_ids\":true}",
                            200);
    hub_same(hub_at(text, "choices.1.prompt_token_ids"), ids, "suffix");
    text = hub_json(&r, "/v1/completions",
                    "{\"prompt\":\"a(\",\"suffix\":\"\",\"max_tokens\":2,"
                    "\"return_token_ids\":true}",
                    200);
    assert_int_not_equal(json_integer_value(hub_at(text, "choices.0.prompt_token_ids.0")), 6144);
    assert_string_equal(
        hub_text(hub_json(&r, "/v1/completions", "{\"prompt\":[[64]],\"suffix\":\")\"}", 400),
                 "error.message"),
        "'prompt[0]' must be a text where there is a 'suffix'");
    /* A mark in the client's text is text. */
    json_t *v =
        hub_json(&r, "/infill",
                 "{\"input_prefix\":\"<|fim_middle|>\",\"input_suffix\":\"\",\"n_predict\":40,"
                 "\"return_tokens\":true}",
                 200);
    size_t n_middle = 0;
    for (int64_t i = 0; i < hub_number(v, "tokens_evaluated");
         i++) /* the answer is the prompt's ids, over and over */
        n_middle += json_integer_value(json_array_get(hub_at(v, "tokens"), (size_t)i)) == 6146;
    assert_int_equal(n_middle, 1);
    /* What was said long ago goes first. */
    v = hub_json(
        &r, "/infill",
        "{\"input_prefix\":\"first\",\"input_suffix\":\"last\",\"n_predict\":8,\"input_extra\":["
        "{\"text\":\"one two three four five six seven eight nine ten one two three four five six "
        "seven eight\"},"
        "{\"text\":\"1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6\"}]}",
        200);
    const char *prompt = hub_text(v, "prompt");
    assert_null(strstr(prompt, "myproject"));
    assert_non_null(strstr(
        prompt, "4 5 6<|file_sep|>filename\n<|fim_prefix|>first<|fim_suffix|>last<|fim_middle|>"));
    assert_int_equal(hub_number(v, "tokens_evaluated"), 64 - 8);
    static const char *const bad[][2] = {
        {"{\"input_suffix\":\"b\"}", "input_prefix"},
        {"{\"input_prefix\":\"b\"}", "input_suffix"},
        {"{\"input_prefix\":\"b\",\"input_suffix\":5}", "input_suffix"},
        {"{\"input_prefix\":\"b\",\"input_suffix\":\"\",\"prompt\":[1]}", "prompt"},
        {"{\"input_prefix\":\"b\",\"input_suffix\":\"\",\"input_extra\":[{\"filename\":\"x\"}]}",
         "input_extra"},
        {"{\"input_prefix\":\"1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 "
         "8 9\",\"input_suffix\":\"\"}",
         "input_prefix"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_string_equal(hub_text(hub_json(&r, "/infill", bad[i][0], 400), "error.param"),
                            bad[i][1]);
    hub_close(&r);
}

static void infill_without_files(void **state)
{
    struct hub r = {0}, none = {0};
    (void)state;

    fim_model(false);
    r.o.engine.target_dir = sv_test_tmp(".");
    hub_open(&r, false);
    infill_prompt(&r,
                  "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"n_predict\":1,"
                  "\"input_extra\":[{\"text\":\"int y;\"}]}",
                  "\n\n--- snippet ---\n\nint y;<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>");
    hub_close(&r);
    hub_open(&none, false); /* a model that was not trained for it */
    json_t *v = hub_json(&none, "/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\"}", 501);
    assert_string_equal(hub_text(v, "error.type"), "not_supported_error");
    hub_close(&none);
}

/* A list of settings: each prompt gets what it gets alone. */
static void settings_of_each_prompt(void **state)
{
    static const char *const prompts[] = {P, "Tom has 3 apples", "import os"};
    static const char *const settings[] = {
        "{\"max_new_tokens\":9,\"temperature\":0,\"n\":2}",
        "{\"max_new_tokens\":30,\"temperature\":1.1,\"sampling_seed\":5,\"stop\":[\"e\"],\"n\":2}",
        "{\"max_new_tokens\":0,\"temperature\":0,\"n\":2}"};
    struct hub r = {.real = true};
    char body[600];
    (void)state;

    hub_open(&r, false);
    snprintf(body, sizeof body, "{\"text\":[\"%s\",\"%s\",\"%s\"],\"sampling_params\":[%s,%s,%s]}",
             prompts[0], prompts[1], prompts[2], settings[0], settings[1], settings[2]);
    json_t *all = hub_json(&r, "/generate", body, 200);
    assert_int_equal(json_array_size(all), 6);
    for (size_t i = 0; i < 3; i++) {
        snprintf(body, sizeof body, "{\"text\":\"%s\",\"sampling_params\":%s}", prompts[i],
                 settings[i]);
        json_t *alone = hub_json(&r, "/generate", body, 200);
        for (size_t k = 0; k < 2; k++) {
            json_t *a = json_array_get(all, 2 * i + k), *b = json_array_get(alone, k);
            hub_same(hub_at(a, "text"), hub_at(b, "text"), "text");
            hub_same(hub_at(a, "output_ids"), hub_at(b, "output_ids"), "ids");
            hub_same(hub_at(a, "meta_info.finish_reason"), hub_at(b, "meta_info.finish_reason"),
                     "finish reason");
        }
    }
    hub_json(&r, "/generate", "{\"text\":[\"a\",\"b\"],\"sampling_params\":[{}]}", 400);
    hub_close(&r);
}

/* Errors about a prompt name the field that it stands in. */
static void generate_names_the_field(void **state)
{
    static const struct {
        const char *body, *param, *says;
    } list[] = {
        {"{\"input_ids\":[]}", "input_ids", "'input_ids'"},
        {"{\"input_ids\":[1,\"x\"]}", "input_ids", "'input_ids[1]' must be an integer"},
        {"{\"input_ids\":[[1],[2,99999999]]}", "input_ids", "'input_ids[1][1]': token 99999999"},
        {"{\"input_ids\":[1,2,3,4,5,6,7,8,9,10]}", "input_ids", "'input_ids' has 10 tokens"},
        {"{\"input_ids\":[[1],[2],[3]]}", "input_ids", "3 sequences in one request"},
        {"{\"text\":[\"a\",\"\"]}", "text", "'text[1]' has no tokens"},
        {"{\"text\":[\"a\",\"b\",\"c\"]}", "text", "3 sequences in one request"},
    };
    struct hub r = {.o.engine.context = 10, .o.max_choices = 2};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        json_t *v = hub_json(&r, "/generate", list[i].body, 400);
        const char *param = hub_text(v, "error.param"), *says = hub_text(v, "error.message");
        if (strcmp(param, list[i].param) != 0 || !strstr(says, list[i].says))
            fail_msg("%s: '%s': %s", list[i].body, param, says);
    }
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(generate_names_the_field), cmocka_unit_test(generate_logprobs),
             cmocka_unit_test(settings_of_each_prompt),
             cmocka_unit_test(generate_streams_and_scores),
             cmocka_unit_test(completion_is_the_same_answer),
             cmocka_unit_test(completion_ends_and_choices), cmocka_unit_test(infill_with_files),
             cmocka_unit_test(infill_without_files))
