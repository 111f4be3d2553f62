/*
 * test_logprob_ids.c - requested log probabilities on the demo pair: SGLang's token_ids_logprob and
 * vLLM's logprob_token_ids have the same numbers as the most probable tokens, with drafts and
 * without, whole and streamed, one list for all prompts or one for each.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <string.h>

#define P "def add(a, b):"
#define GENERATE(more)                                                                             \
    "{\"text\":\"" P "\",\"sampling_params\":{\"max_new_tokens\":12,\"temperature\":0" more "}"

/* Nine digits bring a float back exactly. */
static bool same_number(json_t *a, json_t *b)
{
    return json_is_number(a) && json_is_number(b) && json_number_value(a) == json_number_value(b);
}

/* Where an id of a list is among triples; NULL: nowhere. */
static json_t *find(json_t *triples, json_t *id)
{
    for (size_t i = 0; i < json_array_size(triples); i++)
        if (json_equal(json_array_get(json_array_get(triples, i), 1), id))
            return json_array_get(json_array_get(triples, i), 0);
    return NULL;
}

/* Every place has all of them, in their order, with the numbers that are told otherwise too. */
static void check_places(json_t *meta, const char *side, const int *ids, size_t n_ids)
{
    char name[64];
    size_t n_same = 0;
    snprintf(name, sizeof name, "%s_token_ids_logprobs", side);
    json_t *asked = hub_at(meta, name);
    snprintf(name, sizeof name, "%s_top_logprobs", side);
    json_t *top = hub_at(meta, name);
    snprintf(name, sizeof name, "%s_token_logprobs", side);
    json_t *own = hub_at(meta, name);

    assert_int_equal(json_array_size(asked), json_array_size(own));
    for (size_t i = 0; i < json_array_size(asked); i++) {
        json_t *place = json_array_get(asked, i);
        if (!strcmp(side, "input") && !i) {
            assert_true(json_is_null(place));
            continue;
        }
        assert_int_equal(json_array_size(place), n_ids);
        for (size_t k = 0; k < n_ids; k++) {
            json_t *t = json_array_get(place, k), *id = json_array_get(t, 1);
            assert_int_equal(json_integer_value(id), ids[k]);
            assert_true(json_is_null(json_array_get(t, 2)));
            json_t *best = find(json_array_get(top, i), id);
            if (best)
                assert_true(same_number(json_array_get(t, 0), best));
            if (json_equal(id, json_array_get(json_array_get(own, i), 1)))
                assert_true(
                    same_number(json_array_get(t, 0), json_array_get(json_array_get(own, i), 0)));
            n_same += best != NULL;
        }
    }
    assert_true(n_same > 0);
}

#define ASKED ",\"return_logprob\":true,\"token_ids_logprob\":[25,528,271,25,255]"
#define MORE ",\"logprob_start_len\":0,\"top_logprobs_num\":20"

static void generate(void **state)
{
    static const int ids[] = {25, 528, 271, 25, 255};
    static const char *const names[] = {"input_token_ids_logprobs", "output_token_ids_logprobs"};
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *drafted = hub_json(&r, "/generate", GENERATE("}" ASKED MORE), 200);
    json_t *plain = hub_json(&r, "/generate", GENERATE(",\"width\":1}" ASKED MORE), 200);
    json_t *events = hub_events(&r, "/generate", GENERATE("}" ASKED MORE ",\"stream\":true"));
    json_t *meta = hub_at(drafted, "meta_info");
    json_t *last = hub_at(json_array_get(events, json_array_size(events) - 1), "meta_info");
    check_places(meta, "input", ids, 5);
    check_places(meta, "output", ids, 5);
    assert_true(hub_number(meta, "spec_accept_token_num") > 0);
    for (int i = 0; i < 2; i++) {
        hub_same(hub_at(plain, "meta_info.output_token_ids_logprobs"),
                 hub_at(drafted, "meta_info.output_token_ids_logprobs"), "with drafts");
        hub_same(json_object_get(last, names[i]), json_object_get(meta, names[i]), names[i]);
    }
    /* By default the prompt's last place alone, of which nothing is known; and texts. */
    json_t *usual =
        hub_json(&r, "/generate", GENERATE("}" ASKED ",\"return_text_in_logprobs\":true"), 200);
    assert_int_equal(json_array_size(hub_at(usual, "meta_info.input_token_ids_logprobs")), 1);
    assert_true(json_is_null(hub_at(usual, "meta_info.input_token_ids_logprobs.0")));
    assert_string_equal(hub_text(usual, "meta_info.output_token_ids_logprobs.0.1.2"),
                        hub_text(hub_json(&r, "/detokenize", "{\"tokens\":[528]}", 200), "text"));
    /* Without log probabilities it is passed over, as by SGLang; nothing is asked for with none. */
    json_t *none = hub_json(&r, "/generate", GENERATE("},\"token_ids_logprob\":[5]"), 200);
    assert_null(hub_at(none, "meta_info.output_token_ids_logprobs"));
    none = hub_json(&r, "/generate", GENERATE("},\"return_logprob\":true,\"token_ids_logprob\":[]"),
                    200);
    assert_null(hub_at(none, "meta_info.output_token_ids_logprobs"));
    hub_close(&r);
}

/* Each prompt has its own list, as its own request would. */
static void generate_lists(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
#define BATCH(lists)                                                                               \
    "{\"text\":[\"" P "\",\"A\",\"" P "\"],\"sampling_params\":{\"max_new_tokens\":5,"             \
    "\"temperature\":0,\"n\":2},\"return_logprob\":true,\"token_ids_logprob\":" lists "}"
    json_t *all = hub_json(&r, "/generate", BATCH("[[1,2],null,[3]]"), 200);
    json_t *same = hub_json(&r, "/generate", BATCH("[1,2]"), 200);
    assert_int_equal(json_array_size(all), 6);
    for (size_t i = 0; i < 6; i++) {
        json_t *own = hub_at(json_array_get(all, i), "meta_info.output_token_ids_logprobs");
        if (i / 2 == 1) {
            assert_null(own);
            continue;
        }
        assert_int_equal(json_array_size(own), 5);
        assert_int_equal(json_array_size(json_array_get(own, 4)), i < 2 ? 2 : 1);
        if (i < 2)
            hub_same(own, hub_at(json_array_get(same, i), "meta_info.output_token_ids_logprobs"),
                     "one list for all");
    }
    static const char *const bad[][2] = {
        {BATCH("[[1],[2]]"), "'token_ids_logprob' has 2 lists for 3 prompts"},
        {BATCH("[[1],[2],[3,999999999]]"), "'token_ids_logprob[2][1]' is no token id in [0, "},
        {BATCH("[[1],[2],3]"), "'token_ids_logprob[2]' must be a list of token ids"},
        {BATCH("[1,[2]]"), "'token_ids_logprob[1]' is no token id in [0, "},
        {BATCH("[-1]"), "'token_ids_logprob[0]' is no token id in [0, "},
        {BATCH("7"), "'token_ids_logprob' must be an array of token ids, not an integer"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *v = hub_json(&r, "/generate", bad[i][0], 400);
        assert_string_equal(hub_text(v, "error.param"), "token_ids_logprob");
        assert_memory_equal(hub_text(v, "error.message"), bad[i][1], strlen(bad[i][1]));
    }
    struct sv_buf many;
    sv_buf_init(&many);
    sv_buf_printf(&many, "{\"text\":\"a\",\"return_logprob\":true,\"token_ids_logprob\":[1");
    for (int i = 0; i < 64; i++)
        sv_buf_printf(&many, ",%d", i);
    sv_buf_printf(&many, "]}");
    assert_string_equal(hub_text(hub_json(&r, "/generate", many.data, 400), "error.message"),
                        "'token_ids_logprob' has more than 64 ids");
    sv_buf_fini(&many);
    hub_close(&r);
}

/* vLLM's: the token that came and the listed ones, none twice, in place of the best. */
static void openai(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
#define LISTED "\"temperature\":0,\"max_tokens\":6,\"logprob_token_ids\":[11,528,11],"
    json_t *old = hub_json(&r, "/v1/completions",
                           "{\"prompt\":\"" P "\"," LISTED
                           "\"logprobs\":2,\"return_tokens_as_token_ids\":true,"
                           "\"return_token_ids\":true,\"echo\":true}",
                           200);
    json_t *own = hub_json(&r, "/generate",
                           "{\"text\":\"" P "\",\"sampling_params\":{\"max_new_tokens\":6,"
                           "\"temperature\":0},\"return_logprob\":true,"
                           "\"token_ids_logprob\":[11,528]}",
                           200);
    json_t *tops = hub_at(old, "choices.0.logprobs.top_logprobs"),
           *ids = hub_at(old, "choices.0.token_ids");
    const size_t n_prompt = json_array_size(hub_at(old, "choices.0.prompt_token_ids"));
    for (size_t i = 0; i < 6; i++) {
        json_t *names = json_array_get(tops, n_prompt + i),
               *place = json_array_get(hub_at(own, "meta_info.output_token_ids_logprobs"), i);
        const json_int_t id = json_integer_value(json_array_get(ids, i));
        char name[32];
        snprintf(name, sizeof name, "token_id:%d", (int)id);
        assert_int_equal(json_object_size(names), id == 11 || id == 528 ? 2 : 3);
        assert_true(same_number(
            json_object_get(names, name),
            json_array_get(hub_at(old, "choices.0.logprobs.token_logprobs"), n_prompt + i)));
        assert_true(same_number(json_object_get(names, "token_id:11"),
                                json_array_get(json_array_get(place, 0), 0)));
        assert_true(same_number(json_object_get(names, "token_id:528"),
                                json_array_get(json_array_get(place, 1), 0)));
    }
    for (size_t i = 1; i < n_prompt; i++) /* of the prompt the best ones, and what stands there */
        assert_false(json_object_get(json_array_get(tops, i), "token_id:11") &&
                     json_object_get(json_array_get(tops, i), "token_id:528"));

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
    json_t *chat =
        hub_json(&r, "/v1/chat/completions",
                 CHAT LISTED "\"logprobs\":true,\"return_tokens_as_token_ids\":true}", 200);
    json_t *places = hub_at(chat, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(places), hub_number(chat, "usage.completion_tokens"));
    for (size_t i = 0; i < json_array_size(places); i++) {
        json_t *p = json_array_get(places, i), *list = hub_at(p, "top_logprobs");
        hub_same(hub_at(list, "0.token"), hub_at(p, "token"), "the token first");
        hub_same(hub_at(list, "0.logprob"), hub_at(p, "logprob"), "its number");
        const bool listed = !strcmp(hub_text(p, "token"), "token_id:11") ||
                            !strcmp(hub_text(p, "token"), "token_id:528");
        assert_int_equal(json_array_size(list), listed ? 2 : 3);
        if (!listed)
            assert_string_equal(hub_text(list, "2.token"), "token_id:528");
    }
    json_t *v = hub_json(&r, "/v1/chat/completions", CHAT LISTED "\"n\":1}", 400);
    assert_string_equal(hub_text(v, "error.message"), "'logprob_token_ids' needs 'logprobs'");
    v = hub_json(&r, "/v1/completions", "{\"prompt\":\"a\",\"logprob_token_ids\":[5]}", 400);
    assert_string_equal(hub_text(v, "error.param"), "logprob_token_ids");
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(generate), cmocka_unit_test(generate_lists), cmocka_unit_test(openai))
