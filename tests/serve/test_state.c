/*
 * test_state.c - what the server says of itself: /props, /slots, /v1/models, /load, names in
 * /metrics, and that other servers' endpoints are refused in words.
 */
#include "serve/hub.h"

#include "testing.h"

#include "serve/core/metrics.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT "/v1/completions"

static void props(void **state)
{
    struct hub r = {.real = true};
    struct sv_err err = {0};
    char *path = sv_path_join(sv_test_path("models/demo/target"), "tokenizer_config.json");
    json_t *config = sv_json_load(path, (size_t)1 << 24, &err);
    (void)state;

    assert_non_null(config);
    hub_open(&r, false);
    json_t *v = hub_json(&r, "/props", NULL, 200),
           *usual = hub_at(v, "default_generation_settings");
    hub_same(hub_at(v, "chat_template"), json_object_get(config, "chat_template"), "template");
    assert_int_equal(hub_number(v, "total_slots"), 4);
    assert_string_equal(hub_text(v, "model_alias"), "fake");
    assert_non_null(strstr(hub_text(v, "model_path"), "models/demo/target"));
    assert_true(hub_number(usual, "n_ctx") > 0);
    assert_string_equal(hub_text(v, "eos_token"), "<|im_end|>");
    assert_true(json_is_false(hub_at(usual, "is_processing")) &&
                json_is_false(hub_at(v, "is_sleeping")));
    /* The settings are those that a request without any runs with. */
    json_t *ran = hub_at(hub_json(&r, "/completion", "{\"prompt\":\"a\",\"n_predict\":1}", 200),
                         "generation_settings");
    static const char *const names[] = {
        "temperature",       "top_k",          "top_p",    "min_p", "presence_penalty",
        "frequency_penalty", "repeat_penalty", "samplers", "stop",  "ignore_eos",
        "n_probs",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        hub_same(json_object_get(json_object_get(usual, "params"), names[i]),
                 json_object_get(ran, names[i]), names[i]);
    json_decref(config);
    sv_free(path);
    hub_close(&r);
}

/* Waits until so many slots are busy. */
static json_t *slots_with(struct hub *r, size_t busy)
{
    for (int tries = 0;; tries++) {
        json_t *list = hub_json(r, "/slots", NULL, 200);
        size_t n = 0;
        for (size_t i = 0; i < json_array_size(list); i++)
            n += json_is_true(hub_at(json_array_get(list, i), "is_processing"));
        if (n == busy)
            return list;
        assert_true(tries < 1000);
        hub_nap_ms(10);
    }
}

static void slots(void **state)
{
    struct hub r = {.o.engine.max_sequences = 3, .o.engine.context = 1 << 20, .fake.step_us = 1000};
    (void)state;

    hub_open(&r, false);
    json_t *list = slots_with(&r, 0);
    assert_int_equal(json_array_size(list), 3);
    for (size_t i = 0; i < 3; i++) {
        json_t *slot = json_array_get(list, i);
        assert_int_equal(hub_number(slot, "id"), i);
        assert_int_equal(hub_number(slot, "id_task"), -1);
        assert_int_equal(hub_number(slot, "n_ctx"), 1 << 20);
        assert_null(hub_at(slot, "params"));
    }
    int fd = hub_connect(&r);
    hub_post(fd, TEXT, "",
             "{\"prompt\":\"one two\",\"max_tokens\":100000,\"n\":2,\"temperature\":0.5,"
             "\"stream\":true,\"stop\":\"q7\"}");
    list = slots_with(&r, 2);
    assert_true(hub_number(list, "1.id_task") > hub_number(list, "0.id_task"));
    assert_true(json_number_value(hub_at(list, "0.params.temperature")) == 0.5);
    assert_string_equal(hub_text(list, "0.params.stop.0"), "q7");
    assert_true(json_is_true(hub_at(list, "0.params.stream")));
    assert_int_equal(hub_number(list, "0.next_token.n_remain") +
                         hub_number(list, "0.next_token.n_decoded"),
                     100000);
    hub_ask(&r, "/slots?fail_on_no_slot=1", NULL, &r.a);
    assert_int_equal(r.a.status, 200);
    assert_null(strstr(r.a.body.data,
                       "one two")); /* what is asked stays between the client and the model */
    int more = hub_connect(&r);
    hub_post(more, TEXT, "", "{\"prompt\":\"one\",\"max_tokens\":100000,\"n\":4}");
    slots_with(&r, 3);
    assert_string_equal(hub_text(hub_json(&r, "/slots?fail_on_no_slot=1", NULL, 503), "error.code"),
                        "no_slot");
    assert_int_equal(hub_number(hub_json(&r, "/load", NULL, 200), "server_load"), 6);
    close(fd);
    close(more);
    slots_with(&r, 0);
    assert_int_equal(hub_number(hub_json(&r, "/load", NULL, 200), "server_load"), 0);
    hub_close(&r);
}

static void models(void **state)
{
    struct hub r = {.o.engine.context = 4096};
    (void)state;

    hub_open(&r, false);
    json_t *v = hub_at(hub_json(&r, "/v1/models", NULL, 200), "data.0");
    assert_int_equal(hub_number(v, "max_model_len"), 4096); /* vLLM's */
    assert_int_equal(hub_number(v, "meta.n_ctx"), 4096);    /* llama-server's */
    assert_true(hub_number(v, "meta.n_vocab") > 1000);
    hub_same(v, hub_json(&r, "/v1/models/fake", NULL, 200), "one and the list");
    assert_string_equal(hub_text(hub_json(&r, "/v1/models/other", NULL, 404), "error.code"),
                        "model_not_found");
    hub_close(&r);
}

/* @anthropic-ai/sdk says which version of its API it means, on a path that others have too. */
static json_t *as_anthropic(struct hub *r, const char *path, int status)
{
    struct sv_err err = {0};
    int fd = hub_connect(r);

    hub_get(fd, path, "anthropic-version: 2023-06-01\r\n");
    answer_read(fd, &r->a);
    close(fd);
    assert_int_equal(r->a.status, status);
    assert_non_null(strstr(r->a.head.data, "\r\nrequest-id: "));
    json_t *v = sv_json_parse(r->a.body.data, r->a.body.len, &err);
    assert_non_null(v);
    return v;
}

static void models_of_anthropic(void **state)
{
    struct hub r = {0};
    int made[6];
    (void)state;

    hub_open(&r, false);
    json_t *v = as_anthropic(&r, "/v1/models?limit=20", 200);
    assert_string_equal(hub_text(v, "first_id"), "fake");
    assert_string_equal(hub_text(v, "last_id"), "fake");
    assert_true(json_is_false(hub_at(v, "has_more")));
    assert_int_equal(json_array_size(hub_at(v, "data")), 1);
    assert_string_equal(hub_text(v, "data.0.type"), "model");
    assert_string_equal(hub_text(v, "data.0.display_name"), "fake");
    assert_int_equal(sscanf(hub_text(v, "data.0.created_at"), "%4d-%2d-%2dT%2d:%2d:%2dZ", &made[0],
                            &made[1], &made[2], &made[3], &made[4], &made[5]),
                     6);
    json_t *one = as_anthropic(&r, "/v1/models/fake", 200);
    hub_same(one, hub_at(v, "data.0"), "one and the list");
    json_decref(one);
    json_decref(v);
    v = as_anthropic(&r, "/v1/models?after_id=fake", 200);
    assert_int_equal(json_array_size(hub_at(v, "data")), 0);
    assert_true(json_is_null(hub_at(v, "last_id")));
    json_decref(v);
    v = as_anthropic(&r, "/v1/models/other", 404);
    assert_string_equal(hub_text(v, "type"), "error");
    assert_string_equal(hub_text(v, "error.type"), "not_found_error");
    json_decref(v);
    hub_close(&r);
}

/* Whatever finds no memory, no half of an answer is sent. The loop's thread alone allocates then:
 * the one that asks does not. */
static void whole_or_an_error(void **state)
{
    static const char *const asks[] = {
        "GET /v1/models",   "GET /props",   "GET /slots",          "GET /health",
        "GET /metrics",     "GET /load",    "GET /get_model_info", "GET /get_server_info",
        "GET /v1/models/x", "GET /version", "GET /tokenizer_info", "POST /tokenize"};
    static char got[1 << 20];
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) {
        bool failed = true;
        for (int64_t nth = 1; failed; nth++) {
            static const char body[] = "{\"prompt\":[\"ab\"],\"return_token_strs\":true}";
            char text[300];
            size_t n = 0;
            ssize_t k;
            snprintf(text, sizeof text,
                     "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
                     asks[i], *asks[i] == 'P' ? (int)sizeof body - 1 : 0,
                     *asks[i] == 'P' ? body : "");
            int fd = hub_connect(&r);
            sv_fault_arm(nth);
            hub_send_text(fd, text);
            while ((k = recv(fd, got + n, sizeof got - 1 - n, 0)) > 0)
                n += (size_t)k;
            failed = sv_fault_calls() >= nth;
            sv_fault_arm(0);
            close(fd);
            got[n] = 0;
            const char *answer = strstr(got, "\r\n\r\n");
            bool fine = answer && (strncmp(got + 9, "200", 3) == 0 ||
                                   (answer[n - 1 - (size_t)(answer - got)] == '}' &&
                                    strncmp(answer + 4, "{\"error\":{\"message\":", 20) == 0));
            if (!fine)
                fail_msg("%s, allocation %d: %s", asks[i], (int)nth, got);
            assert_true(nth < 3000);
        }
    }
    hub_close(&r);
}

/* A label has three escapes; JSON's others are an error to Prometheus. */
static void labels(void **state)
{
    struct sv_buf b;
    (void)state;

    sv_buf_init(&b);
    sv_metric_label(&b, "model", "a\"b\\c\nd\te/\xe2\x82\xac\xff.\x01");
    assert_string_equal(b.data, "model=\"a\\\"b\\\\c\\nd\te/\xe2\x82\xac\xef\xbf\xbd.\x01\"");
    sv_buf_clear(&b);
    sv_metric_label(&b, "model", "");
    assert_string_equal(b.data, "model=\"\"");
    sv_buf_fini(&b);
}

static void what_others_have(void **state)
{
    static const struct {
        const char *path, *body, *code, *says;
        int status;
    } list[] = {
        {"/v1/embeddings", "{\"input\":\"a\"}", "unsupported_endpoint", "embeddings", 404},
        {"/v1/conversations", "{}", "unsupported_endpoint", "previous_response_id", 404},
        {"/slots/0", "{}", "unsupported_endpoint", "slots", 404},
        {"/api/chat", "{}", "unsupported_endpoint", "Ollama", 404},
        {"/api/tags", NULL, "unsupported_endpoint", "Ollama", 404},
        {"/v1/rerank", "{}", "unsupported_endpoint", "reranking", 404},
        {"/v1/embeddingsx", "{}", "not_found", "there is no /v1/embeddingsx", 404},
        {"/slots", "{}", "method_not_allowed", "GET", 405},
    };
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        json_t *v = hub_json(&r, list[i].path, list[i].body, list[i].status);
        assert_string_equal(hub_text(v, "error.code"), list[i].code);
        assert_non_null(strstr(hub_text(v, "error.message"), list[i].says));
        assert_string_equal(hub_text(v, "error.type"), "invalid_request_error");
    }
    hub_ask(&r, "/reset_prefix_cache", "", &r.a);
    assert_int_equal(r.a.status, 200);
    hub_close(&r);
}

/* Defaults of a model's file are in the ranges of requests, and an error names file and field. */
static void defaults_of_the_model(void **state)
{
    static const struct {
        const char *text, *names; /* names NULL: fine */
    } cases[] = {
        {"{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":-1,\"min_p\":null,\"repetition_penalty\":1.05}",
         NULL},
        {"{\"temperature\":101}", "'temperature'"},
        {"{\"temperature\":-1}", "'temperature'"},
        {"{\"top_p\":0}", "'top_p'"},
        {"{\"top_p\":1.5}", "'top_p'"},
        {"{\"min_p\":2}", "'min_p'"},
        {"{\"repetition_penalty\":-1}", "'repetition_penalty'"},
        {"{\"top_k\":-2}", "'top_k'"},
        {"{\"top_k\":\"20\"}", "'top_k'"}};
    char dir[200];
    (void)state;

    const char *file = sv_test_tmp("generation_config.json");
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(file, '/') - file), file);
    struct sv_serve_options o = {.engine.target_dir = dir};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_serve_defaults d;
        struct sv_err err = {0};
        assert_int_equal(sv_file_write(file, cases[i].text, strlen(cases[i].text), &err), SV_OK);
        const int rc = sv_serve_defaults(&d, &o, &err);
        assert_int_equal(rc, cases[i].names ? SV_EINVAL : SV_OK);
        if (rc)
            assert_true(strstr(err.msg, "generation_config.json") &&
                        strstr(err.msg, cases[i].names));
        else
            assert_true(d.temperature == 0.6 && d.top_p == 0.95 && d.top_k == -1 && d.min_p == 0 &&
                        d.repetition_penalty == 1.05);
        o.no_generation_config = true;
        assert_int_equal(sv_serve_defaults(&d, &o, &err), SV_OK);
        assert_true(d.temperature == 1 && d.top_p == 1 && d.top_k == 0 && d.min_p == 0 &&
                    d.repetition_penalty == 0);
        o.no_generation_config = false;
    }
}

SV_TEST_MAIN(cmocka_unit_test(defaults_of_the_model), cmocka_unit_test(props),
             cmocka_unit_test(slots), cmocka_unit_test(models),
             cmocka_unit_test(models_of_anthropic), cmocka_unit_test(whole_or_an_error),
             cmocka_unit_test(labels), cmocka_unit_test(what_others_have))
