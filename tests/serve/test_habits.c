/*
 * test_habits.c - habits of clients: how they build paths, fields that are null, fields of answers
 * that they expect, a thousand requests at once.
 */
#define _POSIX_C_SOURCE 200809L

#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"

/* A base URL with a slash behind it makes "//v1" of "/v1", which is no host. */
static void slashes(void **state)
{
    static const struct {
        const char *path, *body, *object;
    } list[] = {
        {"//v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", "text_completion"},
        {"///v1/completions?a=/b", "{\"prompt\":\"a\",\"max_tokens\":1}", "text_completion"},
        {"/v1/completions/", "{\"prompt\":\"a\",\"max_tokens\":1}", "text_completion"},
        {"//v1/models", NULL, "list"},
        {"/v1/models/", NULL, "list"},
        {"//v1/models/fake", NULL, "model"},
        {"http://host//v1/models?", NULL, "list"},
    };
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        assert_string_equal(hub_text(hub_json(&r, list[i].path, list[i].body, 200), "object"),
                            list[i].object);
    assert_string_equal(hub_text(hub_json(&r, "//health/", NULL, 200), "status"), "ok");
    hub_ask(&r, "//", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    assert_non_null(strstr(r.a.body.data, "<html"));
    assert_string_equal(hub_text(hub_json(&r, "//nowhere/", NULL, 404), "error.message"),
                        "there is no /nowhere");
    hub_json(&r, "/v1//models", NULL, 404);
    hub_close(&r);
}

/* Whoever writes out all members of an object sends some that are not set. */
static void nulls(void **state)
{
    static const char *const list[][2] = {
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"of_next_year\":null}"},
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":1,"
               "\"of_next_year\":null,\"stream_options\":{\"of_next_year\":null}}"},
        {"/generate", "{\"text\":\"a\",\"of_next_year\":null,"
                      "\"sampling_params\":{\"max_new_tokens\":1,\"of_next_year\":null}}"},
        {"/tokenize", "{\"prompt\":\"a\",\"of_next_year\":null}"},
        {"/detokenize", "{\"tokens\":[65],\"of_next_year\":null}"},
    };
    struct hub r = {.o.refuse_unknown = true};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        hub_json(&r, list[i][0], list[i][1], 200);
    json_t *v = hub_json(&r, TEXT, "{\"prompt\":\"a\",\"of_next_year\":0}", 400);
    assert_string_equal(hub_text(v, "error.param"), "of_next_year");
    v = hub_json(&r, "/tokenize", "{\"prompt\":\"a\",\"of_next_year\":0}", 400);
    assert_string_equal(hub_text(v, "error.param"), "of_next_year");
    hub_close(&r);
}

/* Unknown fields are ignored, as other servers do, or refused; known ones count. */
static void unknown_fields(void **state)
{
    static const char *const list[][2] = {
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":3,\"smoothing\":{\"a\":1},\"mode\":[]}"},
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":3,\"stream_options\":{\"smoothing\":1}}"},
        {CHAT,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":3,\"mode\":\"x\"}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":3,"
                         "\"mode\":1}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_tokens\":3,"
                         "\"thinking\":{\"type\":\"disabled\",\"mode\":1}}"},
        {"/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":3,\"mode\":1}"},
        {"/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":3,\"text\":{\"mode\":1},"
                          "\"reasoning\":{\"mode\":\"x\"}}"},
        {"/completion", "{\"prompt\":\"a\",\"n_predict\":3,\"smoothing\":0.5}"},
        {"/infill", "{\"input_prefix\":\"a\",\"input_suffix\":\"b\",\"smoothing\":0.5}"},
        {"/generate", "{\"text\":\"a\",\"mode\":1,"
                      "\"sampling_params\":{\"max_new_tokens\":3,\"smoothing\":1}}"},
        {"/generate", "{\"text\":[\"a\",\"b\"],"
                      "\"sampling_params\":[{\"max_new_tokens\":3,\"smoothing\":1},"
                      "{\"mode\":1,\"max_new_tokens\":3}]}"},
        {"/tokenize", "{\"prompt\":\"a\",\"mode\":1}"},
        {"/detokenize", "{\"tokens\":[64],\"mode\":1}"},
    };
    struct hub r = {0}, strict = {.o.refuse_unknown = true};
    (void)state;

    hub_open(&r, false);
    hub_open(&strict, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        bool anthropic = strcmp(list[i][0], "/v1/messages") == 0;
        bool infill = strcmp(list[i][0], "/infill") == 0; /* this model has no such tokens */
        hub_json(&r, list[i][0], list[i][1], infill ? 501 : 200);
        json_t *v = hub_json(&strict, list[i][0], list[i][1], 400);
        if (anthropic)
            assert_non_null(strstr(hub_text(v, "error.message"), "mode"));
        else
            assert_string_equal(hub_text(v, "error.code"), "unknown_parameter");
    }
    assert_true(hub_metric(&r, "salvo_generated_tokens_total") == 33);
    json_t *v = hub_json(&r, TEXT, "{\"prompt\":\"a\",\"best_of\":3,\"mode\":1}", 400);
    assert_string_equal(hub_text(v, "error.param"), "best_of");
    v = hub_json(&r, TEXT, "{\"prompt\":\"a\",\"top_k\":\"x\"}", 400);
    assert_string_equal(hub_text(v, "error.param"), "top_k");
    /* What an answer must be is not ignored. */
    v = hub_json(&r, TEXT, "{\"prompt\":\"a\",\"structured_outputs\":{\"regx\":\"a\"}}", 400);
    assert_string_equal(hub_text(v, "error.param"), "structured_outputs.regx");
    hub_close(&r);
    hub_close(&strict);
}

/* Load generators send one length by both names, whatever the endpoint. */
static void both_lengths(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    json_t *v =
        hub_json(&r, TEXT, "{\"prompt\":\"a\",\"max_completion_tokens\":5,\"max_tokens\":7}", 200);
    assert_int_equal(hub_number(v, "usage.completion_tokens"), 5);
    hub_close(&r);
}

/* lm-eval renders chats itself, by the text of the template, and begins a text whose likelihood it
 * wants with bos_token, or where that is null with eos_token: as with the tokenizer at hand, the
 * members are those of tokenizer_config.json, whatever config.json says. */
static void tokenizer_told(void **state)
{
    const char *path = sv_test_path("models/demo/target/tokenizer_config.json");
    struct hub r = {.real = true};
    struct sv_err err = {0};
    const char *key;
    json_t *value, *config;
    (void)state;

    hub_open(&r, false);
    json_t *info = hub_json(&r, "/tokenizer_info", NULL, 200);
    hub_same(hub_at(info, "chat_template"),
             hub_at(hub_json(&r, "/props", NULL, 200), "chat_template"), "template");
    assert_true(json_is_null(hub_at(info, "bos_token")));
    config = sv_json_load(path, 1 << 20, &err);
    assert_non_null(config);
    assert_int_equal(json_object_size(info), json_object_size(config));
    json_object_foreach(config, key, value)
        hub_same(json_object_get(info, key), value, key);
    json_decref(config);
    hub_close(&r);
}

/* A model's directory with the demo's tokenizer.json, and this as the other file; NULL: none. */
static const char *directory(const char *config)
{
    const char *dir = sv_test_tmp(config ? "with" : "without");
    struct sv_err err = {0};
    char path[600];

    assert_int_equal(mkdir(dir, 0755), 0);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(symlink(sv_test_path("models/demo/target/tokenizer.json"), path), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    if (config)
        assert_int_equal(sv_file_write(path, config, strlen(config), &err), SV_OK);
    return dir;
}

/* A token with its properties is told as its text; without the file there is nothing to tell but
 * the template. */
static void tokenizer_of_other_shapes(void **state)
{
    static const char config[] =
        "{\"bos_token\":{\"__type\":\"AddedToken\",\"content\":\"<|im_start|>\",\"lstrip\":false},"
        "\"unk_token\":null,\"model_max_length\":77}";
    (void)state;

    for (int i = 0; i < 2; i++) {
        struct hub r = {.o.engine.target_dir = directory(i ? NULL : config)};
        hub_open(&r, false);
        json_t *info = hub_json(&r, "/tokenizer_info", NULL, 200);
        assert_true(json_is_null(hub_at(info, "chat_template")));
        assert_int_equal(json_object_size(info), i ? 1 : 4);
        if (!i) {
            assert_string_equal(hub_text(info, "bos_token"), "<|im_start|>");
            assert_true(json_is_null(hub_at(info, "unk_token")));
            assert_int_equal(hub_number(info, "model_max_length"), 77);
        }
        hub_close(&r);
    }
}

/* The names that requests may give are found. */
static void models_by_name(void **state)
{
    struct hub r = {0};
    char path[600];
    (void)state;

    hub_open(&r, false);
    json_t *v = hub_at(hub_json(&r, "/v1/models", NULL, 200), "data.0");
    hub_same(v, hub_json(&r, "/v1/models/default", NULL, 200), "default");
    snprintf(path, sizeof path, "/v1/models/%s", hub_text(v, "root"));
    hub_same(v, hub_json(&r, path, NULL, 200), "its path");
    hub_json(&r, "/v1/models/model", NULL, 404);
    hub_close(&r);
}

/* Editors ask for the rest of a block: what is indented like the cursor's line. */
static void indented(void **state)
{
    static const struct {
        const char *prompt, *least, *want; /* the instant engine says the prompt again */
    } list[] = {
        {"x\\n    y\\n\\tz\\n  w", "4", "x\n    y\n\t"},
        {"x\\n    y\\n  w", "2", NULL},
        {"x\\n    y\\n  w", "3", "x\n    y\n  "},
        {"x\\n    y\\n\\n    w", "4", "x\n    y\n"},
        {"x\\ny", "1", "x\n"},
        {"x\\n y", "0", NULL},
    };
    char body[300], want[64];
    (void)state;

    for (int burst = 1; burst <= 4; burst++) {
        struct hub r = {.fake.burst = burst, .fake.once = true};
        hub_open(&r, false);
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
            snprintf(body, sizeof body,
                     "{\"prompt\":\"%s\",\"n_predict\":60,\"n_indent\":%s,\"return_tokens\":true}",
                     list[i].prompt, list[i].least);
            json_t *v = hub_json(&r, "/completion", body, 200);
            snprintf(want, sizeof want, "%s", list[i].want ? list[i].want : hub_text(v, "prompt"));
            assert_string_equal(hub_text(v, "content"), want);
            assert_string_equal(hub_text(v, "stop_type"), list[i].want ? "limit" : "eos");
            body[strlen(body) - 1] = 0;
            strcat(body, ",\"stream\":true}");
            json_t *events = hub_events(&r, "/completion", body);
            char text[64] = "";
            for (size_t k = 0; k < json_array_size(events); k++)
                strcat(text, hub_text(json_array_get(events, k), "content"));
            assert_string_equal(text, want);
        }
        hub_close(&r);
    }
}

/* The mean of all is what the answers' figures make, plain steps included. */
static void mean_accept(void **state)
{
    static const char *const widths[] = {"1", "1", "8"};
    struct hub r = {.real = true};
    int64_t n_steps = 0, n_tokens = 0;
    char body[200];
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < 3; i++) {
        snprintf(body, sizeof body,
                 "{\"text\":\"def add(a, b):\",\"sampling_params\":{\"max_new_tokens\":40,"
                 "\"ignore_eos\":true,\"temperature\":0,\"width\":%s}}",
                 widths[i]);
        json_t *v = hub_json(&r, "/generate", body, 200);
        n_steps += hub_number(v, "meta_info.spec_verify_ct");
        n_tokens += hub_number(v, "meta_info.completion_tokens") - 1;
    }
    double want = (double)n_tokens / (double)n_steps;
    double told = json_number_value(hub_at(hub_json(&r, "/server_info", NULL, 200),
                                           "internal_states.0.avg_spec_accept_length"));
    assert_true(want > 1 && told > want - 1e-6 && told < want + 1e-6);
    hub_close(&r);
}

/* Load generators send all they have at once, a thousand by default. */
static void crowd(void **state)
{
    enum { ASKED = 12, EACH = 100 };
    struct hub r = {.fake.step_us = 2000, .o.engine.max_sequences = 4};
    struct answer a;
    int fd[ASKED];
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < ASKED; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], TEXT, "", "{\"prompt\":\"a\",\"max_tokens\":2,\"n\":100}");
    }
    for (int i = 0; i < ASKED; i++) {
        answer_init(&a);
        answer_read(fd[i], &a);
        assert_int_equal(a.status, 200);
        answer_fini(&a);
        close(fd[i]);
    }
    assert_true(hub_metric(&r, "salvo_sequences_total{result=\"length\"}") == ASKED * EACH);
    hub_close(&r);
}

/* Requests that never got to the engine are counted. */
static void refused_counted(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    hub_json(&r, TEXT, "{}", 400);
    hub_json(&r, "/nowhere", NULL, 404);
    hub_json(&r, "/tokenize", "{}", 400);
    assert_true(hub_metric(&r, "salvo_refused_requests_total{status=\"4xx\"}") == 3);
    assert_true(hub_metric(&r, "salvo_refused_requests_total{status=\"5xx\"}") == 0);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(slashes), cmocka_unit_test(nulls), cmocka_unit_test(unknown_fields),
             cmocka_unit_test(both_lengths), cmocka_unit_test(tokenizer_told),
             cmocka_unit_test(tokenizer_of_other_shapes), cmocka_unit_test(models_by_name),
             cmocka_unit_test(indented), cmocka_unit_test(mean_accept), cmocka_unit_test(crowd),
             cmocka_unit_test(refused_counted))
