/*
 * test_switch.c - what clients of vLLM, SGLang and llama-server send and read when nothing about
 * them is changed.
 */
#include "serve/hub.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TEXT "/v1/completions"
#define CHAT "/v1/chat/completions"
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* ---------------------------------------------------------------- fields */

/* Every field of these servers' schemas at the value that asks for nothing, all at once. */
static void fields_that_ask_nothing(void **state)
{
    static const struct {
        const char *path, *body;
    } list[] = {
        /* vLLM */
        {CHAT,
         "{" HI ",\"max_tokens\":1,\"watermarking\":null,\"truncation_side\":\"left\","
         "\"logprob_token_ids\":null,\"session_id\":\"s\","
         "\"return_prompt_text\":false,\"ec_transfer_params\":null,\"kv_transfer_params\":null,"
         "\"repetition_detection\":null,"
         "\"stream_interval\":1,\"return_token_offsets\":false,\"return_mm_kwargs\":true,"
         "\"routed_experts_prompt_start\":0,"
         "\"thinking_token_budget\":-1,\"use_beam_search\":false,\"length_penalty\":1.0,"
         "\"bad_words\":[],\"vllm_xargs\":null,"
         "\"structured_outputs\":null,\"media_io_kwargs\":null,\"priority\":0,"
         "\"include_reasoning\":true,\"continue_final_message\":false,"
         "\"echo\":false,\"cache_salt\":null,\"return_tokens_as_token_ids\":false,"
         "\"skip_special_tokens\":true}"},
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"prompt_embeds\":null,\"watermarking\":false,"
               "\"session_id\":null,\"stream_interval\":4,"
               "\"allowed_token_ids\":null,\"suffix\":null,\"add_special_tokens\":true,"
               "\"response_format\":{\"type\":\"text\"}}"},
        /* llama-server's page */
        {CHAT,
         "{" HI
         ",\"stream\":false,\"max_tokens\":1,\"return_progress\":true,\"sse_ping_interval\":1,"
         "\"reasoning_format\":\"auto\",\"reasoning_control\":true,\"backend_sampling\":false,"
         "\"temperature\":0.8,\"dynatemp_range\":0,\"dynatemp_exponent\":1,\"top_k\":40,\"top_p\":0.95,"
         "\"min_p\":0.05,\"xtc_probability\":0,\"xtc_threshold\":0.1,\"typ_p\":1,"
         "\"repeat_last_n\":64,\"repeat_penalty\":1,\"presence_penalty\":0,\"frequency_penalty\":0,"
         "\"dry_multiplier\":0,\"dry_base\":1.75,\"dry_allowed_length\":2,\"dry_penalty_last_n\":-1,"
         "\"samplers\":[\"penalties\",\"dry\",\"top_n_sigma\",\"top_k\",\"typ_p\",\"top_p\",\"min_p\","
         "\"xtc\",\"temperature\"],\"timings_per_token\":true,\"id_slot\":0}"},
        /* SGLang */
        {CHAT,
         "{" HI
         ",\"max_tokens\":1,\"return_meta_info\":false,\"return_cached_tokens_details\":false,"
         "\"return_routed_experts\":false,"
         "\"routed_experts_start_len\":0,\"return_prompt_token_ids\":false,\"images_config\":null,"
         "\"ngram_corpus_id\":null,\"task\":null,"
         "\"input_ids\":null,\"use_audio_in_video\":false,\"max_dynamic_patch\":null,"
         "\"bootstrap_host\":null,\"bootstrap_room\":7,"
         "\"routed_dp_rank\":0,\"disagg_prefill_dp_rank\":0,\"separate_reasoning\":true,"
         "\"stream_reasoning\":true,\"regex\":null,"
         "\"ebnf\":null,\"no_stop_trim\":false,\"custom_params\":null,\"session_params\":null,"
         "\"return_hidden_states\":false}"},
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"custom_labels\":{\"a\":\"b\"},"
               "\"return_cached_tokens_details\":false,\"extra_key\":null,"
               "\"json_schema\":null,\"lora_path\":null,\"custom_logit_processor\":null,"
               "\"bootstrap_port\":null}"},
        {"/generate",
         "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":1,\"skip_special_tokens\":true,"
         "\"spaces_between_special_tokens\":true,"
         "\"stop_regex\":null,\"structural_tag\":null,\"custom_params\":null,"
         "\"stream_interval\":null,\"sampling_seed\":null},"
         "\"session_id\":null,\"mm_hashes\":null,\"use_audio_in_video\":false,"
         "\"video_config\":null,\"return_sampling_mask\":false,"
         "\"return_flat_raw_top_logprobs\":false,\"return_indexer_topk\":false,"
         "\"modalities\":null,\"lora_id\":null,"
         "\"routing_key\":\"k\",\"conversation_id\":\"c\",\"background\":false,"
         "\"require_reasoning\":false,\"max_thinking_tokens\":null,"
         "\"priority\":1,\"no_logs\":true,\"custom_labels\":null,\"return_entropy\":false,"
         "\"cache_salt\":null,\"log_metrics\":false,"
         "\"token_ids_logprob\":null,\"return_routed_experts\":false,"
         "\"routed_experts_start_len\":0,\"images_config\":null}"},
    };
    static const char *const refused[][3] = {
        {CHAT, HI ",\"typ_p\":0.5", "typ_p"},
        {TEXT, "\"prompt\":\"a\",\"adaptive_target\":0.5", "adaptive_target"},
        {CHAT, HI ",\"samplers\":[\"nothing\"]", "samplers"},
        {CHAT, HI ",\"watermarking\":true", "watermarking"},
        {CHAT, HI ",\"repetition_detection\":{\"a\":1}", "repetition_detection"},
        {CHAT, HI ",\"input_ids\":[1]", "input_ids"},
        {CHAT, HI ",\"return_meta_info\":true", "return_meta_info"},
        {TEXT, "\"prompt\":\"a\",\"prompt_embeds\":\"x\"", "prompt_embeds"},
        {"/generate", "\"text\":\"a\",\"max_thinking_tokens\":5", "max_thinking_tokens"},
        {"/generate", "\"text\":\"a\",\"rid\":5", "rid"},
        {"/generate", "\"text\":[\"a\",\"b\"],\"rid\":[\"x\",5]", "rid"},
        {"/generate", "\"text\":[\"a\",\"b\"],\"sampling_params\":[{},{\"n\":2}]",
         "sampling_params"},
        {"/generate", "\"text\":\"a\",\"sampling_params\":[5]", "sampling_params"},
    };
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        hub_json(&r, list[i].path, list[i].body, 200);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char body[200];
        snprintf(body, sizeof body, "{%s}", refused[i][1]);
        assert_string_equal(hub_text(hub_json(&r, refused[i][0], body, 400), "error.param"),
                            refused[i][2]);
    }
    hub_close(&r);
}

/* vLLM's: the newest tokens stay, or the first; what is shown of the prompt is what stayed. */
static void prompts_are_cut(void **state)
{
    static const struct {
        const char *more;
        int n;
        int first;
    } list[] = {
        {"\"truncate_prompt_tokens\":3", 3, 67},
        {"\"truncate_prompt_tokens\":3,\"truncation_side\":\"left\"", 3, 67},
        {"\"truncate_prompt_tokens\":3,\"truncation_side\":\"right\"", 3, 64},
        {"\"truncate_prompt_tokens\":6", 6, 64},
        {"\"truncate_prompt_tokens\":60", 6, 64},
        {"\"truncate_prompt_tokens\":-1", 6, 64},
        {"\"truncate_prompt_tokens\":-1,\"max_tokens\":12", 4, 66},
        {"\"truncate_prompt_tokens\":null,\"truncation_side\":null", 6, 64},
    };
    struct hub r = {.o.engine.context = 16};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{\"prompt\":[[64,65,66,67,68,69]],\"max_tokens\":2,\"return_token_ids\":true,%s}",
                 list[i].more);
        if (strstr(list[i].more, "max_tokens\""))
            memmove(strstr(body, "\"max_tokens\":2,"), strstr(body, "\"return"),
                    strlen(strstr(body, "\"return")) + 1);
        json_t *ids =
            hub_at(hub_json(&r, "/v1/completions", body, 200), "choices.0.prompt_token_ids");
        assert_int_equal(json_array_size(ids), list[i].n);
        assert_int_equal(json_integer_value(json_array_get(ids, 0)), list[i].first);
    }
    /* Longer than the context is no fault then; a chat's, too. */
    hub_json(&r, "/v1/completions", "{\"prompt\":\"1 2 3 4 5 6 7 8 9 1 2 3 4 5 6\"}", 400);
    json_t *v = hub_json(&r, "/v1/completions",
                         "{\"prompt\":\"1 2 3 4 5 6 7 8 9 1 2 3 4 5 6\",\"max_tokens\":3,"
                         "\"echo\":true,\"truncate_prompt_tokens\":2}",
                         200);
    assert_memory_equal(hub_text(v, "choices.0.text"), " 6", 2);
    v = hub_json(&r, "/v1/chat/completions",
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"1 2 3 4 5 6 7 8 9 1 2 3\"}],"
                 "\"max_tokens\":2,\"truncate_prompt_tokens\":-1}",
                 200);
    assert_int_equal(hub_number(v, "usage.prompt_tokens"), 14);
    static const char *const bad[][2] = {
        {"\"truncate_prompt_tokens\":0", "truncate_prompt_tokens"},
        {"\"truncate_prompt_tokens\":-2", "truncate_prompt_tokens"},
        {"\"truncation_side\":\"top\"", "truncation_side"},
        {"\"best_of\":2", "best_of"},
        {"\"n\":2,\"best_of\":1", "best_of"},
        {"\"suffix\":\"b\"", "suffix"},
        {"\"suffix\":5", "suffix"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",%s}", bad[i][0]);
        assert_string_equal(hub_text(hub_json(&r, "/v1/completions", body, 400), "error.param"),
                            bad[i][1]);
    }
    hub_close(&r);
}

/* What chats were made into, whole and in the first chunk; samplers that are not named are off. */
static void llama_and_vllm_chats(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    json_t *v = hub_json(&r, CHAT, "{" HI ",\"max_tokens\":2,\"return_prompt_text\":true}", 200);
    const char *text = hub_text(v, "prompt_text");
    assert_string_equal(text, hub_text(hub_json(&r, "/apply-template", "{" HI "}", 200), "prompt"));
    assert_null(hub_at(v, "prompt_token_ids"));
    json_t *events = hub_events(
        &r, CHAT, "{" HI ",\"max_tokens\":2,\"stream\":true,\"return_prompt_text\":true}");
    assert_string_equal(hub_text(json_array_get(events, 0), "prompt_text"), text);
    for (size_t i = 1; i < json_array_size(events); i++)
        assert_null(hub_at(json_array_get(events, i), "prompt_text"));
#define DRAWN "{" HI ",\"max_tokens\":16,\"seed\":5,\"temperature\":1.9,"
    json_t *greedy = hub_json(&r, CHAT, "{" HI ",\"max_tokens\":16,\"temperature\":0}", 200);
    json_t *one = hub_json(&r, CHAT, DRAWN "\"top_k\":1}", 200);
    json_t *all = hub_json(&r, CHAT, DRAWN "\"top_k\":1,\"samplers\":[\"temperature\"]}", 200);
    hub_same(hub_at(one, "choices.0.message"), hub_at(greedy, "choices.0.message"), "top_k 1");
    assert_false(json_equal(hub_at(all, "choices.0.message"), hub_at(greedy, "choices.0.message")));
    hub_close(&r);
}

/* One model answers whatever a request calls it, by the name that it has; or only to its own. */
static void names_of_models(void **state)
{
    static const char *const asks[][2] = {
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"model\":\"%s\"}"},
        {CHAT, "{" HI ",\"max_tokens\":1,\"model\":\"%s\"}"},
        {"/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":1,\"model\":\"%s\"}"},
        {"/v1/messages", "{" HI ",\"max_tokens\":1,\"model\":\"%s\"}"},
        {"/completion", "{\"prompt\":\"a\",\"n_predict\":1,\"model\":\"%s\"}"}};
    static const char *const names[] = {"gpt-9", "fake", "default", ""};
    struct hub r = {0}, strict = {.o.strict_model = true};
    char body[300];
    (void)state;

    hub_open(&r, false);
    hub_open(&strict, false);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            snprintf(body, sizeof body, asks[i][1], names[k]);
            json_t *v = hub_json(&r, asks[i][0], body, 200);
            assert_string_equal(hub_text(v, "model"), "fake");
            v = hub_json(&strict, asks[i][0], body, k ? 200 : 404);
            if (k)
                assert_string_equal(hub_text(v, "model"), "fake");
            else if (i != 3) /* Anthropic's errors have no code */
                assert_string_equal(hub_text(v, "error.code"), "model_not_found");
        }
    hub_json(&r, "/v1/models/gpt-9", NULL, 404); /* what there is stays what there is */
    hub_close(&r);
    hub_close(&strict);
}

/* ---------------------------------------------------------------- what comes back */

/* stop_reason is vLLM's, matched_stop SGLang's, which names the model's own end too. */
static void what_stopped_it(void **state)
{
    static const char ask[] = "\"prompt\":\"def add(a, b):\",\"temperature\":0,\"max_tokens\":12,";
    struct hub r = {.real = true};
    char body[300];
    (void)state;

    hub_open(&r, false);
    snprintf(body, sizeof body, "{%s\"return_token_ids\":true}", ask);
    json_t *v = hub_at(hub_json(&r, TEXT, body, 200), "choices.0");
    assert_true(json_is_null(hub_at(v, "stop_reason")) && json_is_null(hub_at(v, "matched_stop")));
    int third = (int)hub_number(v, "token_ids.2");
    snprintf(body, sizeof body, "{%s\"stop_token_ids\":[%d]}", ask, third);
    v = hub_at(hub_json(&r, TEXT, body, 200), "choices.0");
    assert_int_equal(hub_number(v, "stop_reason"), third);
    assert_int_equal(hub_number(v, "matched_stop"), third);
    snprintf(body, sizeof body, "{%s\"stream\":true,\"stop\":[\"~~\",\"n\"]}", ask);
    json_t *events = hub_events(&r, TEXT, body);
    v = hub_at(json_array_get(events, json_array_size(events) - 1), "choices.0");
    assert_string_equal(hub_text(v, "stop_reason"), "n");
    assert_string_equal(hub_text(v, "matched_stop"), "n");
    /* The end of a chat is a token of the model's own. */
    json_t *end = hub_json(&r, "/tokenize", "{\"prompt\":\"<|im_end|>\"}", 200);
    snprintf(body, sizeof body,
             "{" HI ",\"temperature\":0,\"max_tokens\":1,\"logit_bias\":{\"%lld\":100}}",
             (long long)hub_number(end, "tokens.0"));
    v = hub_at(hub_json(&r, CHAT, body, 200), "choices.0");
    assert_string_equal(hub_text(v, "finish_reason"), "stop");
    assert_true(json_is_null(hub_at(v, "stop_reason")));
    hub_same(hub_at(v, "matched_stop"), hub_at(end, "tokens.0"), "end of the chat");
    hub_close(&r);
}

static void ids_of_prompts(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    json_t *events = hub_events(
        &r, TEXT,
        "{\"prompt\":[\"a\",[66]],\"max_tokens\":3,\"stream\":true,\"return_token_ids\":true}");
    int n[2] = {0, 0};
    for (size_t i = 0; i < json_array_size(events); i++) {
        json_t *c = hub_at(json_array_get(events, i), "choices.0"),
               *ids = hub_at(c, "prompt_token_ids");
        int64_t k = hub_number(c, "index");
        n[k]++;
        assert_int_equal(ids != NULL, n[k] == 1); /* once for each */
        if (ids)
            assert_int_equal(hub_number(ids, "0"), k ? 66 : 64);
    }
    assert_true(n[0] > 1 && n[1] > 1);
    json_t *v =
        hub_json(&r, CHAT, "{" HI ",\"max_tokens\":1,\"return_prompt_token_ids\":true}", 200);
    hub_same(hub_at(v, "prompt_token_ids"),
             hub_at(hub_json(&r, "/tokenize", "{" HI "}", 200), "tokens"), "chat's");
    assert_null(hub_at(v, "choices.0.token_ids"));

    v = hub_json(
        &r, "/generate",
        "{\"text\":[\"a\",\"c\"],\"rid\":[\"one\",\"two\"],\"return_prompt_token_ids\":true,"
        "\"sampling_params\":[{\"max_new_tokens\":2,\"n\":2},{\"max_new_tokens\":2,\"n\":2}]}",
        200);
    assert_int_equal(json_array_size(v), 4);
    assert_string_equal(hub_text(v, "1.meta_info.id"), "one");
    assert_string_equal(hub_text(v, "2.meta_info.id"), "two");
    assert_int_equal(hub_number(v, "3.prompt_token_ids.0"), 66);
    assert_string_equal(hub_text(v, "0.meta_info.weight_version"), "default");
    assert_int_equal(hub_number(v, "0.meta_info.total_retractions"), 0);
    hub_close(&r);
}

/* vLLM's names of tokens as ids, in both shapes, with the same numbers. */
static void ids_for_tokens(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    json_t *v = hub_json(&r, CHAT,
                         "{" HI ",\"max_tokens\":1,\"logprobs\":true,\"top_logprobs\":2,"
                         "\"return_tokens_as_token_ids\":true,"
                         "\"return_token_ids\":true}",
                         200);
    char want[40];
    snprintf(want, sizeof want, "token_id:%lld", (long long)hub_number(v, "choices.0.token_ids.0"));
    assert_string_equal(hub_text(v, "choices.0.logprobs.content.0.token"), want);
    assert_string_equal(hub_text(v, "choices.0.logprobs.content.0.top_logprobs.1.token"),
                        "token_id:65");
    v = hub_json(&r, TEXT,
                 "{\"prompt\":[70,71],\"max_tokens\":1,\"echo\":true,\"logprobs\":1,"
                 "\"return_tokens_as_token_ids\":true}",
                 200);
    assert_string_equal(hub_text(v, "choices.0.logprobs.tokens.1"), "token_id:71");
    assert_non_null(json_object_get(hub_at(v, "choices.0.logprobs.top_logprobs.1"), "token_id:64"));
    assert_non_null(json_object_get(hub_at(v, "choices.0.logprobs.top_logprobs.1"), "token_id:71"));
    hub_close(&r);
}

/* ---------------------------------------------------------------- messages */

/* A file with a text. */
static const char *file_with(const char *text)
{
    const char *name = sv_test_tmp("template");
    struct sv_err err = {0};

    assert_int_equal(sv_file_write(name, text, strlen(text), &err), SV_OK);
    return name;
}

/* The answer goes on where the last message ends. */
static void goes_on(void **state)
{
    static const struct {
        const char *last, *want; /* want: how the prompt ends; NULL: refused */
    } list[] = {
        {"Sure, it", "<assistant>Sure, it"},
        {"  the end \\n", "<assistant>the end"}, /* the template trims */
        {"hi", "<assistant>hi"},                 /* the user said it before */
        {"", NULL},
        {" \\n", NULL},
    };
    const char *file = file_with(
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>\n{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}");
    struct hub r = {.o.chat_template = file};
    char body[300];
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(body, sizeof body,
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
                 "\"content\":\"%s\"}],"
                 "\"continue_final_message\":true%s}",
                 list[i].last, i ? "" : ",\"add_generation_prompt\":false");
        json_t *v = hub_json(&r, "/apply-template", body, list[i].want ? 200 : 400);
        if (!list[i].want) {
            assert_string_equal(hub_text(v, "error.param"), "continue_final_message");
            continue;
        }
        const char *prompt = hub_text(v, "prompt");
        assert_string_equal(prompt + strlen("<user>hi</user>\n"), list[i].want);
        json_t *ids = hub_json(&r, "/tokenize", body, 200), *ran;
        snprintf(body + strlen(body) - 1, 60, ",\"max_tokens\":1,\"return_token_ids\":true}");
        ran = hub_json(&r, CHAT, body, 200);
        hub_same(hub_at(ran, "prompt_token_ids"), hub_at(ids, "tokens"), "what runs");
    }
    json_t *both = hub_json(
        &r, CHAT, "{" HI ",\"continue_final_message\":true,\"add_generation_prompt\":true}", 400);
    assert_string_equal(hub_text(both, "error.param"), "continue_final_message");
    hub_close(&r);
    /* A template that shows nothing of it. */
    file = file_with("x");
    struct hub blind = {.o.chat_template = file};
    hub_open(&blind, false);
    hub_json(&blind, CHAT, "{" HI ",\"continue_final_message\":true}", 400);
    hub_close(&blind);
}

/* Effort none is no thinking, under the names that templates know; what the request says itself
 * counts. */
static void effort(void **state)
{
    static const char *const list[][2] = {
        {"", "--"},
        {",\"reasoning_effort\":\"none\"", "none False False"},
        {",\"reasoning_effort\":\"high\"", "high True True"},
        {",\"reasoning_effort\":\"high\",\"chat_template_kwargs\":{\"enable_thinking\":false}",
         "high False True"},
    };
    const char *file = file_with(
        "{{ reasoning_effort | default('-') }}{% if thinking is defined %} {{ enable_thinking }} "
        "{{ thinking }}{% else %}-{% endif %}");
    struct hub r = {.o.chat_template = file};
    char body[200];
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(body, sizeof body, "{" HI "%s}", list[i][0]);
        assert_string_equal(hub_text(hub_json(&r, "/apply-template", body, 200), "prompt"),
                            list[i][1]);
    }
    hub_close(&r);
}

/* ---------------------------------------------------------------- accept figures */

/* vLLM's object holds together as its readers check it: steps with drafts alone, and a place for
 * every length. */
static void accept_figures(void **state)
{
    static const char *const widths[] = {"1", "4", "8"};
    struct hub r = {.real = true};
    char body[300];
    (void)state;

    hub_open(&r, false);
    double drafts = hub_metric(&r, "salvo_verify_steps_total");
    for (int i = 0; i < 3; i++) {
        snprintf(body, sizeof body,
                 "{\"prompt\":\"def add(a, b):\",\"max_tokens\":42,\"ignore_eos\":true,"
                 "\"temperature\":0,\"width\":%s,"
                 "\"spec_decode_metrics\":\"detailed\"}",
                 widths[i]);
        json_t *v = hub_at(hub_json(&r, TEXT, body, 200), "metrics.speculative_decoding");
        json_t *accepted = hub_at(v, "per_step_accepted"), *drafted = hub_at(v, "per_step_drafted"),
               *lengths = hub_at(v, "acceptance_histogram");
        int64_t n = hub_number(v, "num_spec_steps"), sum[2] = {0, 0}, counted[64] = {0};
        assert_int_equal(json_array_size(accepted), n);
        assert_int_equal(json_array_size(drafted), n);
        assert_int_equal(json_array_size(lengths), hub_number(v, "num_spec_tokens") + 1);
        for (size_t k = 0; k < (size_t)n; k++) {
            int64_t a = json_integer_value(json_array_get(accepted, k)),
                    d = json_integer_value(json_array_get(drafted, k));
            assert_true(a >= 0 && a <= d && d > 0);
            sum[0] += a;
            sum[1] += d;
            counted[a]++;
        }
        for (size_t k = 0; k < json_array_size(lengths); k++)
            assert_int_equal(json_integer_value(json_array_get(lengths, k)), counted[k]);
        assert_int_equal(sum[0], hub_number(v, "num_accepted_draft_tokens"));
        assert_int_equal(sum[1], hub_number(v, "num_draft_tokens"));
        assert_int_equal(n > 0, i > 0);
        double mean = json_number_value(hub_at(v, "mean_acceptance_length"));
        assert_true(n ? mean > 0.999 + (double)sum[0] / (double)n &&
                            mean < 1.001 + (double)sum[0] / (double)n
                      : mean == 0);
        drafts += (double)n;
    }
    /* the counters say the same */
    assert_true(hub_metric(&r, "salvo_verify_steps_total") == drafts);
    hub_close(&r);
}

/* ---------------------------------------------------------------- small things */

static void small_things(void **state)
{
    struct hub r = {.real = true};
    (void)state;

    hub_open(&r, false);
    /* llama-server's word for any seed, as /props gives it and clients send it back. */
    static const char ask[] =
        "{\"prompt\":\"a\",\"n_predict\":16,\"temperature\":1.5,\"ignore_eos\":true,"
        "\"seed\":4294967295}";
    json_t *one = hub_json(&r, "/completion", ask, 200),
           *two = hub_json(&r, "/completion", ask, 200);
    assert_int_not_equal(hub_number(one, "generation_settings.seed"),
                         hub_number(two, "generation_settings.seed"));
    assert_int_equal(
        hub_number(hub_json(&r, "/completion",
                            "{\"prompt\":\"a\",\"n_predict\":1,\"seed\":4294967294}", 200),
                   "generation_settings.seed"),
        4294967294);
    /* SGLang's name, and special tokens left out. */
    json_t *ids = hub_json(&r, "/tokenize", "{\"prompt\":\"hi<|im_end|>\"}", 200);
    char body[200], *list = json_dumps(hub_at(ids, "tokens"), 0);
    snprintf(body, sizeof body, "{\"tokens\":%s,\"skip_special_tokens\":true}", list);
    assert_string_equal(hub_text(hub_json(&r, "/detokenize", body, 200), "text"), "hi");
    snprintf(body, sizeof body, "{\"tokens\":%s}", list);
    assert_string_equal(hub_text(hub_json(&r, "/detokenize", body, 200), "text"), "hi<|im_end|>");
    sv_free(list);
    hub_close(&r);
}

/* ---------------------------------------------------------------- ended from outside */

/* SGLang's /abort_request: whoever is named gets what has come, and why it ended; others go on. */
static void aborted(void **state)
{
    struct hub r = {.fake.step_us = 1000, .o.engine.context = 1 << 20};
    char first;
    (void)state;

    hub_open(&r, false);
    int fd[4];
    static const char *const asks[][2] = {
        {"/generate",
         "{\"text\":\"one\",\"rid\":\"a1\",\"sampling_params\":{\"max_new_tokens\":1000000}}"},
        {CHAT, "{" HI ",\"rid\":\"b2\",\"max_tokens\":1000000,\"stream\":true}"},
        {"/completion", "{\"prompt\":\"one\",\"n_predict\":1000000}"},
        {TEXT, "{\"prompt\":\"one\",\"max_tokens\":1000000,\"stream\":true}"},
    };
    for (int i = 0; i < 4; i++) {
        fd[i] = hub_connect(&r);
        hub_post(fd[i], asks[i][0], i == 2 ? "X-Request-Id: c3\r\n" : "", asks[i][1]);
    }
    while (hub_metric(&r, "salvo_time_to_first_token_seconds_count") < 4)
        ;
    /* Of the next eight tokens each has one at least: a text that is shown. */
    const double n = hub_metric(&r, "salvo_generated_tokens_total");
    while (hub_metric(&r, "salvo_generated_tokens_total") < n + 8)
        ;
    hub_json(&r, "/abort_request", "{}", 400);
    hub_json(&r, "/abort_request", "{\"rid\":\"\"}", 400);
    hub_ask(&r, "/abort_request", "{\"rid\":\"nobody\"}", &r.a);
    assert_int_equal(r.a.status, 200);
    static const char *const ends[] = {"\"finish_reason\":{\"type\":\"abort\"",
                                       "\"finish_reason\":\"abort\"", "\"stop_type\":\"none\""};
    for (int i = 0; i < 3; i++) {
        hub_ask(&r, "/abort_request",
                i == 0   ? "{\"rid\":\"a1\"}"
                : i == 1 ? "{\"rid\":\"b2\"}"
                         : "{\"rid\":\"c3\"}",
                &r.a);
        assert_int_equal(r.a.status, 200);
        answer_read(fd[i], &r.a);
        assert_int_equal(r.a.status, 200);
        assert_false(r.a.closed);
        assert_non_null(strstr(r.a.body.data, ends[i]));
        assert_non_null(strstr(r.a.body.data, i == 1 ? "user" : "one")); /* what had come */
        close(fd[i]);
    }
    for (int i = 0; i < 2000; i++) /* goes on */
        assert_int_equal(recv(fd[3], &first, 1, 0), 1);
    hub_ask(&r, "/abort_request", "{\"abort_all\":true}", &r.a);
    char tail[64] = "";
    for (char c; recv(fd[3], &c, 1, 0) == 1 && !strstr(tail, "[DONE]\n\n");) {
        memmove(tail, tail + (strlen(tail) > 40), strlen(tail) + 1);
        tail[strlen(tail)] = c;
    }
    assert_non_null(strstr(tail, "[DONE]"));
    close(fd[3]);
    while (hub_metric(&r, "salvo_running_sequences") > 0)
        ;
    hub_close(&r);
}

/* However often that is said within one step, the worker gets one command of it: its queue has room
 * for no more. */
static void aborted_often(void **state)
{
    struct hub r = {.fake.step_us = 300000,
                    .o.engine = {.max_sequences = 1, .context = 1 << 20},
                    .o.max_queue = 1};
    char first;
    (void)state;

    hub_open(&r, false);
    int fd = hub_connect(&r), often = hub_connect(&r);
    hub_post(fd, TEXT, "", "{\"prompt\":\"one\",\"max_tokens\":1000,\"stream\":true}");
    assert_int_equal(recv(fd, &first, 1, 0), 1);
    for (int i = 0; i < 300; i++) {
        hub_post(often, "/abort_request", "", "{\"abort_all\":true}");
        answer_read(often, &r.a);
        assert_int_equal(r.a.status, 200);
    }
    hub_metric_becomes(&r, "salvo_running_sequences", 0);
    hub_metric_becomes(&r, "salvo_sequences_total{result=\"canceled\"}", 1);
    close(fd);
    close(often);
    hub_close(&r);
}

/* ---------------------------------------------------------------- figures */

static void figures(void **state)
{
    static const char *const names[] = {
        "vllm:num_requests_running",
        "vllm:generation_tokens_total",
        "vllm:spec_decode_num_drafts_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:request_time_per_output_token_seconds_count",
        "vllm:request_prefill_time_seconds_sum",
        "vllm:request_decode_time_seconds_sum",
        "vllm:request_inference_time_seconds_sum",
        "sglang:num_running_reqs",
        "sglang:spec_accept_length",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:prompt_tokens_total",
        "llamacpp:requests_processing",
        "llamacpp:spec_decode_num_accepted_tokens_per_pos_total",
    };
    struct hub r = {.fake.burst = 4}, none = {.o.no_vllm_metrics = true};
    (void)state;

    hub_open(&r, false);
    hub_open(&none, false);
    hub_json(&r, TEXT, "{\"prompt\":\"one two\",\"max_tokens\":8}", 200);
    hub_json(&none, TEXT, "{\"prompt\":\"one two\",\"max_tokens\":8}", 200);
    assert_true(hub_metric(&r, "llamacpp:tokens_predicted_total") == 8);
    assert_true(hub_metric(&r, "llamacpp:prompt_tokens_total") ==
                hub_metric(&r, "salvo_prompt_tokens_total"));
    assert_true(hub_metric(&r, "sglang:spec_accept_length{model_name=\"fake\"}") == 4);
    assert_true(hub_metric(&r, "sglang:generation_tokens_total{model_name=\"fake\"}") == 8);
    assert_true(hub_metric(&r, "vllm:generation_tokens_total{model_name=\"fake\"}") == 8);
    assert_true(
        hub_metric(
            &r, "vllm:request_success_total{model_name=\"fake\",finished_reason=\"length\"}") == 1);
    assert_true(hub_metric(&r, "vllm:e2e_request_latency_seconds_count{model_name=\"fake\"}") == 1);
    assert_true(
        hub_metric(
            &r, "vllm:e2e_request_latency_seconds_bucket{model_name=\"fake\",le=\"+Inf\"}") == 1);
    static const char *const lengths[][2] = {
        {"vllm:request_generation_tokens_bucket{model_name=\"fake\",le=\"5\"}", "0"},
        {"vllm:request_generation_tokens_bucket{model_name=\"fake\",le=\"10\"}", "1"},
        {"vllm:request_generation_tokens_sum{model_name=\"fake\"}", "8"},
        {"vllm:request_prompt_tokens_count{model_name=\"fake\"}", "1"},
        {"vllm:request_time_per_output_token_seconds_count{model_name=\"fake\"}", "1"},
        {"salvo_answer_length_tokens_sum", "8"},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        if (hub_metric(&r, lengths[i][0]) != atof(lengths[i][1]))
            fail_msg("%s is not %s", lengths[i][0], lengths[i][1]);
    assert_true(hub_metric(&r, "vllm:request_prompt_tokens_sum{model_name=\"fake\"}") ==
                hub_metric(&r, "salvo_prompt_tokens_total"));
    hub_ask(&r, "/metrics", NULL, &r.a);
    hub_ask(&none, "/metrics", NULL, &none.a);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_non_null(strstr(r.a.body.data, names[i]));
        assert_null(strstr(none.a.body.data, names[i]));
    }
    /* Each name is declared once. */
    for (const char *line = r.a.body.data; (line = strstr(line, "# TYPE ")); line++) {
        char head[160];
        snprintf(head, sizeof head, "%.*s", (int)(strcspn(line + 7, " ") + 8), line);
        assert_int_equal(hub_count(r.a.body.data, head), 1);
    }
    hub_close(&r);
    hub_close(&none);
}

SV_TEST_MAIN(cmocka_unit_test(fields_that_ask_nothing), cmocka_unit_test(prompts_are_cut),
             cmocka_unit_test(llama_and_vllm_chats), cmocka_unit_test(names_of_models),
             cmocka_unit_test(what_stopped_it), cmocka_unit_test(ids_of_prompts),
             cmocka_unit_test(ids_for_tokens), cmocka_unit_test(goes_on), cmocka_unit_test(effort),
             cmocka_unit_test(accept_figures), cmocka_unit_test(small_things),
             cmocka_unit_test(aborted), cmocka_unit_test(aborted_often), cmocka_unit_test(figures))
