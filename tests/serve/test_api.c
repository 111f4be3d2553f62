/*
 * test_api.c - requests that are odd and legal, or almost: what clients of vLLM, SGLang,
 * llama-server and OpenAI send.
 */
#define _DEFAULT_SOURCE

#include "serve/hub.h"

#include "testing.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"

static void contains(const struct sv_buf *b, const char *text, const char *what)
{
    if (!b->data || !strstr(b->data, text))
        fail_msg("%s: '%s' is not in: %s", what, text, b->data ? b->data : "");
}

/* ---------------------------------------------------------------- bodies */

static const struct {
    const char *path, *body;
    int status;
    const char *says; /* the field that is named when it is refused, or what the answer has */
} bodies[] = {
    /* how long: nothing is too much, -1 is llama-server's, 4.0 Python's */
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":3000000000}", 200, "\"completion_tokens\":99,"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1e300}", 200, "\"completion_tokens\":99,"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":-1}", 200, "\"completion_tokens\":99,"},
    {TEXT, "{\"prompt\":\"a\",\"n_predict\":3}", 200, "\"completion_tokens\":3,"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":4.0,\"n\":2.0,\"seed\":1.0}", 200,
     "\"completion_tokens\":8,"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":4.5}", 400, "max_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":-2}", 400, "max_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":\"4\"}", 400, "max_tokens"},
    {CHAT, HI "\"max_tokens\":0}", 400, "max_tokens"},
    {CHAT, HI "\"max_completion_tokens\":0}", 400, "max_completion_tokens"},
    {CHAT, HI "\"max_completion_tokens\":-1}", 200, "\"finish_reason\":\"length\""},
    {CHAT, HI "\"max_tokens\":4,\"min_tokens\":5}", 400, "min_tokens"},
    {TEXT, "{\"prompt\":\"a\",\"min_tokens\":17}", 400, "min_tokens"},
    {"/generate",
     "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":2,\"min_new_tokens\":3}}", 400,
     "min_new_tokens"},
    {"/generate", "{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":0}}", 200,
     "\"output_ids\":[],"},
    /* seeds and numbers at their ends */
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"seed\":-9223372036854775808}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"seed\":9223372036854775807}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"seed\":18446744073709551615}", 400, "seed"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"seed\":\"1\"}", 400, "seed"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"seed\":1.5}", 400, "seed"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"top_p\":0}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"top_p\":-0.1}", 400, "top_p"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"top_k\":-1,\"min_p\":1}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"temperature\":1e400}", 400, "null"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"temperature\":100.5}", 400, "temperature"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"repetition_penalty\":0}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"repetition_penalty\":2.5}", 400,
     "repetition_penalty"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"repetition_penalty\":1.2,\"repeat_penalty\":0}",
     200, NULL},
    /* prompts */
    {TEXT, "{\"prompt\":\"\"}", 400, "prompt"},
    {TEXT, "{\"prompt\":[\"a\",\"\"]}", 400, "prompt"},
    {TEXT, "{\"prompt\":[[]]}", 400, "prompt"},
    {TEXT, "{\"prompt\":[1,2.5]}", 400, "prompt"},
    {TEXT, "{\"prompt\":\"a\\u0000b\",\"max_tokens\":1,\"echo\":true}", 200,
     "\"text\":\"a\\u0000b"},
    {TEXT, "{\"prompt\":\"\\ud83d\"}", 400, "null"},
    {TEXT, "{\"prompt\":\"\xff\"}", 400, "null"},
    {TEXT, "{\"prompt\":[66,67],\"max_tokens\":0,\"echo\":true}", 200, "\"completion_tokens\":0,"},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"max_tokens\":1}", 200, NULL},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[]}],\"max_tokens\":1}", 200, NULL},
    {CHAT, "{\"messages\":\"hi\"}", 400, "messages"},
    {CHAT, "{\"messages\":[5]}", 400, "messages"},
    /* the text around the object */
    {TEXT, "\xef\xbb\xbf{\"prompt\":\"a\",\"max_tokens\":1}", 200, NULL},
    {TEXT, "\xef\xbb\xbf", 400, "null"},
    {TEXT, "\xef\xbb\xbf\xef\xbb\xbf{\"prompt\":\"a\"}", 400, "null"},
    {TEXT, " \r\n\t{\"prompt\":\"a\",\"max_tokens\":1}\n\n", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1}{}", 400, "null"},
    {TEXT, "{\"prompt\":\"a\",\"prompt\":\"b\"}", 400, "null"},
    /* every field absent by null */
    {CHAT,
     HI "\"max_tokens\":1,\"stream\":null,\"temperature\":null,\"n\":null,\"model\":null,"
        "\"stop\":null,"
        "\"tools\":null,\"tool_choice\":null,\"logit_bias\":null,\"response_format\":null,"
        "\"stream_options\":null,"
        "\"top_p\":null,\"seed\":null,\"user\":null,\"logprobs\":null,\"top_logprobs\":null}",
     200, NULL},
    /* what asks for nothing, and what is not there */
    {CHAT, HI "\"max_tokens\":1,\"tools\":[],\"tool_choice\":\"auto\"}", 200, NULL},
    {CHAT,
     HI "\"max_tokens\":1,\"tools\":[{\"type\":\"function\","
        "\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}",
     200, NULL},
    {CHAT, HI "\"tools\":[{\"type\":\"function\"}]}", 400, "tools"},
    {CHAT, HI "\"tool_choice\":\"required\"}", 400, "tool_choice"},
    {CHAT, HI "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}}", 400,
     "response_format"},
    {CHAT, HI "\"max_tokens\":1,\"response_format\":{\"type\":\"text\"}}", 200, NULL},
    {CHAT,
     HI "\"max_tokens\":1,\"cache_prompt\":true,\"repeat_penalty\":1.0,\"mirostat\":0,"
        "\"bad_words\":[],"
        "\"chat_template\":null,\"allowed_token_ids\":null,\"vllm_xargs\":{}}",
     200, NULL},
    {CHAT, HI "\"max_tokens\":1,\"repeat_penalty\":1.1}", 200, NULL},
    {"/completion", "{\"prompt\":\"a\",\"n_predict\":1,\"repeat_penalty\":1.5}", 200,
     "\"repeat_penalty\":1.5,\"repeat_last_n\":64,"},
    {"/completion",
     "{\"prompt\":\"a\",\"n_predict\":1,\"repeat_penalty\":1.5,\"repeat_last_n\":-1}", 200,
     "\"repeat_penalty\":1.5,\"repeat_last_n\":-1,"},
    {CHAT, HI "\"repeat_penalty\":1.1,\"repeat_last_n\":-2}", 400, "repeat_last_n"},
    {CHAT, HI "\"max_tokens\":1,\"repeat_penalty\":1.1,\"repeat_last_n\":0}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"repeat_penalty\":1.1,\"repeat_last_n\":-1}", 200,
     NULL},
    {TEXT,
     "{\"prompt\":\"a\",\"repeat_penalty\":1.1,\"repeat_last_n\":-1,\"repetition_penalty\":1.2}",
     400, "repeat_penalty"},
    /* what llama-server's own pages and older clients send */
    {"/completion",
     "{\"prompt\":\"a\",\"n_predict\":2,\"stream\":false,\"stop\":[\"</s>\"],"
     "\"repeat_last_n\":256,\"repeat_penalty\":1,\"penalize_nl\":false,"
     "\"dry_multiplier\":0,\"dry_base\":1.75,\"top_k\":40,\"top_p\":0.95,\"min_p\":0.05,"
     "\"xtc_probability\":0,\"typical_p\":1,"
     "\"presence_penalty\":0,\"frequency_penalty\":0,\"mirostat\":0,\"mirostat_tau\":5,"
     "\"mirostat_eta\":0.1,\"grammar\":\"\",\"n_probs\":0,"
     "\"min_keep\":0,\"image_data\":[],\"cache_prompt\":true,\"api_key\":\"\",\"slot_id\":-1,"
     "\"tfs_z\":1,\"seed\":-1,"
     "\"samplers\":[\"dry\",\"top_k\",\"typ_p\",\"top_p\",\"min_p\",\"xtc\",\"temperature\"]}",
     200, "\"seed\":"},
    {"/completion", "{\"prompt\":\"a\",\"n_predict\":-1}", 200, "\"truncated\":true"},
    {"/completion", "{\"prompt\":\"a\",\"samplers\":[\"nucleus\"]}", 400, "samplers"},
    {"/completion", "{\"prompt\":\"a\",\"logit_bias\":[[1]]}", 400, "logit_bias"},
    {"/completion", "{\"prompt\":\"a\",\"logit_bias\":[[\"x\",1]]}", 400, "logit_bias"},
    {"/completion", "{\"prompt\":\"a\",\"grammar\":\"root ::= x\"}", 400, "grammar"},
    {"/completion", "{\"prompt\":\"a\",\"post_sampling_probs\":true}", 400, "post_sampling_probs"},
    {"/completion", "{\"prompt\":\"a\",\"frobnicate\":true}", 400, "frobnicate"},
    {CHAT, HI "\"grammar\":\"root ::= x\"}", 400, "grammar"},
    {CHAT, HI "\"bad_words\":\"x\"}", 400, "bad_words"},
    {CHAT, HI "\"bad_words\":[\"x\",\" \"]}", 400, "bad_words"},
    {CHAT, HI "\"bad_words\":[\"x\",\"\"]}", 400, "bad_words"},
    {CHAT, HI "\"bad_words\":[1]}", 400, "bad_words"},
    {CHAT, HI "\"max_tokens\":1,\"bad_words\":[\"x\",\"one two\"]}", 200, NULL},
    {CHAT, HI "\"allowed_token_ids\":[]}", 400, "allowed_token_ids"},
    {CHAT, HI "\"allowed_token_ids\":[5,-1]}", 400, "allowed_token_ids"},
    {CHAT, HI "\"allowed_token_ids\":[5,1000000]}", 400, "allowed_token_ids"},
    {CHAT, HI "\"allowed_token_ids\":[\"x\"]}", 400, "allowed_token_ids"},
    {CHAT, HI "\"max_tokens\":1,\"allowed_token_ids\":[5]}", 200, NULL},
    {CHAT, HI "\"chat_template\":\"x\"}", 400, "chat_template"},
    {CHAT, HI "\"prompt_logprobs\":1,\"stream\":true}", 400, "prompt_logprobs"},
    {TEXT, "{\"prompt\":\"a\",\"prompt_logprobs\":0,\"stream\":true}", 400, "prompt_logprobs"},
    {TEXT, "{\"prompt\":\"a\",\"max_tokens\":2,\"stream_options\":{\"include_usage\":true}}", 200,
     "\"usage\":{"},
    {TEXT, "{\"prompt\":\"a\",\"best_of\":2}", 400, "best_of"},
    {TEXT, "{\"prompt\":\"a\",\"suffix\":\"x\"}", 400, "suffix"},
    {TEXT, "{\"prompt\":\"a\",\"stop\":[],\"max_tokens\":1}", 200, NULL},
    {TEXT, "{\"prompt\":\"a\",\"stop\":[\"\"]}", 400, "stop"},
    {TEXT, "{\"prompt\":\"a\",\"stop_token_ids\":[1.5]}", 400, "stop_token_ids"},
    /* two names of one thing: the newer counts, wherever it stands */
    {CHAT, HI "\"max_completion_tokens\":2,\"max_tokens\":5}", 200, "\"completion_tokens\":2,"},
    {CHAT, HI "\"max_tokens\":5,\"max_completion_tokens\":2}", 200, "\"completion_tokens\":2,"},
    {CHAT, HI "\"max_tokens\":5,\"max_completion_tokens\":null}", 200, "\"completion_tokens\":5,"},
    /* older clients say what nobody asks for */
    {TEXT,
     "{\"prompt\":\"a\",\"max_tokens\":1,\"n\":2,\"best_of\":2,\"logit_bias\":{},\"suffix\":null}",
     200, "\"index\":1,"},
    {TEXT, "{\"prompt\":\"a\",\"n\":2,\"best_of\":3}", 400, "best_of"},
    {TEXT, "{\"prompt\":\"a\",\"cache_salt\":\"\"}", 400, "cache_salt"},
    {TEXT, "{\"prompt\":\"a\",\"cache_salt\":5}", 400, "cache_salt"},
    {TEXT, "{\"prompt\":\"a\",\"n\":2,\"best_of\":1}", 400, "best_of"},
    {CHAT, HI "\"max_tokens\":1,\"function_call\":\"none\",\"functions\":[]}", 200, NULL},
    {CHAT, HI "\"function_call\":{\"name\":\"f\"}}", 400, "function_call"},
    {CHAT, HI "\"functions\":[{\"name\":\"f\"}]}", 400, "functions"},
    /* SGLang's clients call every model so */
    {CHAT, HI "\"max_tokens\":1,\"model\":\"default\"}", 200, NULL},
    {CHAT, HI "\"max_tokens\":1,\"model\":\"gpt-9\"}", 404, "model"},
    /* an answer that was all reasoning or refusal, sent back */
    {CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
     "\"content\":null,\"refusal\":null},"
     "{\"role\":\"user\",\"content\":\"b\"}],\"max_tokens\":1}",
     200, NULL},
    {CHAT,
     "{\"messages\":[{\"role\":\"assistant\"},{\"role\":\"user\",\"content\":\"b\"}],"
     "\"max_tokens\":1}",
     200, NULL},
    {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":null}]}", 400, "messages"},
    /* all that the pages and benchmarks of llama-server, vLLM and SGLang send */
    {CHAT,
     HI "\"max_tokens\":1,\"samplers\":\"\",\"dynatemp_range\":0,\"dynatemp_exponent\":1,"
        "\"typical_p\":1,\"xtc_probability\":0,"
        "\"xtc_threshold\":0.1,\"dry_multiplier\":0,\"dry_base\":1.75,\"dry_allowed_length\":2,"
        "\"dry_penalty_last_n\":-1,"
        "\"dry_sequence_breakers\":[\"x\"],\"top_n_sigma\":-1,\"min_keep\":0,\"id_slot\":-1,"
        "\"n_keep\":0,\"t_max_predict_ms\":-1,"
        "\"timings_per_token\":true,\"reasoning_format\":\"auto\",\"return_progress\":true,"
        "\"post_sampling_probs\":false,"
        "\"return_tokens\":false,\"lora\":[]}",
     200, NULL},
    {CHAT, HI "\"samplers\":\"top_k\"}", 400, "samplers"},
    {CHAT, HI "\"reasoning_format\":\"deepseek-legacy\"}", 400, "reasoning_format"},
    {CHAT,
     HI
     "\"max_tokens\":1,\"include_reasoning\":true,\"guided_choice\":null,\"guided_grammar\":null,"
     "\"best_of\":1,"
     "\"guided_decoding_backend\":\"xgrammar\",\"guided_whitespace_pattern\":null,"
     "\"structural_tag\":null,"
     "\"thinking_token_budget\":null,\"media_io_kwargs\":null}",
     200, NULL},
    {CHAT, HI "\"guided_choice\":[\"a\",\"b\"],\"guided_whitespace_pattern\":\" \"}", 400,
     "guided_whitespace_pattern"},
    {CHAT,
     HI "\"max_tokens\":1,\"separate_reasoning\":true,\"stream_reasoning\":true,\"rid\":\"own\","
        "\"regex\":null,\"ebnf\":null,"
        "\"session_params\":null,\"custom_logit_processor\":null,\"sampling_seed\":3,"
        "\"no_stop_trim\":false,"
        "\"data_parallel_rank\":null,\"custom_params\":null,\"extra_key\":null}",
     200, "\"id\":\"chatcmpl-own\""},
    {CHAT, HI "\"regex\":\"a*\",\"ebnf\":\"root ::= [a]\"}", 400, "ebnf"},
    {"/generate",
     "{\"text\":\"a\",\"video_data\":null,\"audio_data\":null,\"input_embeds\":null,"
     "\"token_ids_logprob\":null,"
     "\"log_metrics\":true,\"session_params\":null,\"custom_logit_processor\":null,"
     "\"priority\":null,"
     "\"sampling_params\":{\"max_new_tokens\":1,\"structural_tag\":null,\"custom_params\":null,"
     "\"stream_interval\":null}}",
     200, NULL},
};

static void odd_bodies(void **state)
{
    struct hub r = {.o.refuse_unknown = true, .o.strict_model = true, .o.engine.context = 100};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        const char *says = bodies[i].says;
        char param[80];
        hub_ask(&r, bodies[i].path, bodies[i].body, &r.a);
        if (r.a.status != bodies[i].status)
            fail_msg("%s gave %d: %s", bodies[i].body, r.a.status, r.a.body.data);
        if (r.a.status == 200) {
            contains(&r.a.body, says ? says : "\"id\":", bodies[i].body);
            continue;
        }
        snprintf(param, sizeof param, strcmp(says, "null") ? "\"param\":\"%s\"," : "\"param\":%s,",
                 says);
        contains(&r.a.body, param, bodies[i].body);
    }
    hub_close(&r);
}

/* What is wrong is said so that one finds it, and what is right whatever dialect it comes in. */
static void clear_answers(void **state)
{
    static const struct {
        const char *path, *body, *says;
    } list[] = {
        {TEXT, "{\"prompt\":[\"a\",\"\"]}", "'prompt[1]' has no tokens"},
        {TEXT, "{\"prompt\":[[1],[2,\"x\"]]}", "'prompt[1][1]' must be an integer"},
        {TEXT, "{\"prompt\":[1,\"x\"]}", "'prompt[1]' must be an integer"},
        {TEXT, "{\"prompt\":\"a\",\"logit_bias\":{\"5\":1,\"05\":2}}", "'05' is no token id"},
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":1,\"logit_bias\":{\"0\":1}}", "\"choices\""},
        {CHAT, HI "\"chat_template_kwargs\":{\"messages\":[]}}",
         "\"param\":\"chat_template_kwargs\""},
        {CHAT, HI "\"max_tokens\":4,\"min_tokens\":5}",
         "an answer of at least 5 tokens cannot have at most 4"},
        {"/generate", "{\"text\":\"a\",\"sampling_params\":{\"foo\":1}}",
         "'sampling_params.foo'\""},
        {CHAT, HI "\"stream_options\":{\"foo\":1}}", "\"param\":\"stream_options.foo\""},
        {TEXT, "{\"prompt\":\"a\",\"max_tokens\":0}", "\"predicted_n\":0,"},
        {"/tokenize", "{\"prompt\":\"a\",\"messages\":[]}",
         "'prompt' and 'messages' exclude each other"},
        {"/tokenize", "{\"content\":\"a\",\"add_special\":false}", "\"count\":1,"},
        {"/tokenize", "{}", "'messages'"},
        {"/detokenize", "{\"tokens\":[]}", "{\"prompt\":\"\",\"content\":\"\",\"text\":\"\"}"},
        {"/version", "{}", "/version takes GET, not POST"},
        {"/nothing", "{}", "there is no /nothing"},
        {"/v1/embeddings", "{}", "\"code\":\"unsupported_endpoint\""},
        {"/chat/completions", HI "\"max_tokens\":1}",
         "\"object\":\"chat.completion\""}, /* llama-server's paths */
        {"/apply-template", HI "\"add_generation_prompt\":false}",
         "{\"prompt\":\"<|im_start|>user\\nhi<|im_end|>\\n\"}"},
        {"/apply-template", "{}", "\"param\":\"messages\""},
        {"/tokenize", "{\"content\":\"a\",\"with_pieces\":true}",
         "\"tokens\":[{\"id\":64,\"piece\":\"a\"}]"},
        {"/tokenize", "{\"content\":\"a\",\"with_pieces\":1}", "\"param\":\"with_pieces\""},
        {"/tokenize", "{\"prompt\":5}", "'prompt' must be a string or a list of strings"},
        {"/tokenize", "{\"prompt\":[\"a\",5]}", "'prompt[1]' must be a string"},
        {"/v1/tokenize", "{\"prompt\":[]}",
         "{\"count\":[],\"max_model_len\":4096,\"tokens\":[],\"token_strs\":null}"},
        {"/v1/tokenize", "{\"prompt\":[\"a\",\"\",\"ab\"],\"add_special_tokens\":false}",
         "{\"count\":[1,0,1],\"max_model_len\":4096,\"tokens\":[[64],[],[393]],"
         "\"token_strs\":null}"},
        {"/tokenize", "{\"prompt\":[\"a\",\"\",\"bb\"],\"return_token_strs\":true}",
         "\"token_strs\":[[\"a\"],[],[\"bb\"]]}"},
        {"/tokenize", "{\"content\":[\"a\",\"b\"],\"with_pieces\":true}",
         "\"tokens\":[[{\"id\":64,\"piece\":\"a\"}],[{\"id\":65,\"piece\":\"b\"}]]"},
        {"/v1/detokenize", "{\"tokens\":[[64],[],[65,66]]}", "\"text\":[\"a\",\"\",\"bc\"]}"},
        {"/detokenize", "{\"tokens\":[[64,65]],\"skip_special_tokens\":true}",
         "{\"prompt\":[\"ab\"],\"content\":[\"ab\"],\"text\":[\"ab\"]}"},
        {"/detokenize", "{\"tokens\":[[64],65]}", "'tokens[1]' must be an array of integers"},
        {"/detokenize", "{\"tokens\":[[64],[65,-1]]}", "'tokens[1][1]' must be an integer in [0, "},
        {"/detokenize", "{\"tokens\":[64,[65]]}", "'tokens[1]' must be an integer in [0, "},
        {"/detokenize", "{\"tokens\":\"a\"}", "'tokens' must be an array of integers, or of such"},
    };
    struct hub r = {.o.refuse_unknown = true, .o.strict_model = true};
    (void)state;

    hub_open(&r, false);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        hub_ask(&r, list[i].path, list[i].body, &r.a);
        contains(&r.a.body, list[i].says, list[i].body);
    }
    hub_ask(&r, "/v1/models", "{}", &r.a);
    assert_int_equal(r.a.status, 405);
    contains(&r.a.head, "Allow: GET\r\n", "/v1/models");
    hub_close(&r);
}

/* The usage so far in every chunk of either dialect. */
static void continuous_usage(void **state)
{
    static const char *const asks[2][2] = {{TEXT, "{\"prompt\":\"a\",\"max_tokens\":3,"},
                                           {CHAT, HI "\"max_tokens\":3,"}};
    struct hub r = {0};
    char body[300];
    (void)state;

    hub_open(&r, false);
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body,
                 "%s\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                 "\"continuous_usage_stats\":true}}",
                 asks[i][1]);
        hub_ask(&r, asks[i][0], body, &r.a);
        for (int n = 1; n <= 3; n++) {
            snprintf(body, sizeof body, "\"finish_reason\":%s",
                     n < 3 ? "null}],\"usage\":{" : "\"length\"");
            contains(&r.a.body, body, asks[i][0]);
            snprintf(body, sizeof body, "\"completion_tokens\":%d,", n);
            contains(&r.a.body, body, asks[i][0]);
        }
        assert_null(strstr(r.a.body.data, "\"usage\":null"));
    }
    hub_close(&r);
}

/* Deep, but within what is read; and deeper. */
static void deep_bodies(void **state)
{
    static const int depths[] = {100, 1000, 100000};
    struct hub r = {0};
    struct sv_buf b;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&b);
    for (int i = 0; i < 3; i++) {
        sv_buf_clear(&b);
        sv_buf_lit(&b, HI "\"max_tokens\":1,\"chat_template_kwargs\":{\"a\":");
        for (int k = 0; k < depths[i]; k++)
            sv_buf_lit(&b, "[");
        for (int k = 0; k < depths[i]; k++)
            sv_buf_lit(&b, "]");
        sv_buf_lit(&b, "}}");
        hub_ask(&r, CHAT, b.data, &r.a);
        assert_int_equal(r.a.status, i < 2 ? 200 : 400);
    }
    contains(&r.a.body, "depth", "100000");
    sv_buf_fini(&b);
    hub_close(&r);
}

static void streamed_choices_with_logprobs(void **state)
{
    struct hub r = {0};
    (void)state;

    hub_open(&r, false);
    hub_ask(&r, CHAT,
            HI "\"max_tokens\":3,\"n\":2,\"seed\":-1,\"stream\":true,\"logprobs\":true,"
               "\"stream_options\":{\"include_usage\":true}}",
            &r.a);
    assert_int_equal(r.a.status, 200);
    contains(&r.a.body, "{\"index\":1,\"delta\":{\"role\":\"assistant\"", "n = 2");
    contains(&r.a.body, "{\"index\":0,\"delta\":{},", "n = 2");
    contains(&r.a.body, "{\"index\":1,\"delta\":{},", "n = 2");
    contains(&r.a.body, "\"choices\":[],\"usage\":{", "n = 2");
    contains(&r.a.body, "\"completion_tokens\":6,", "n = 2");
    hub_close(&r);
}

/* ---------------------------------------------------------------- HTTP */

/* Everything until the server closes. */
static void exchange(const struct hub *r, const char *text, struct sv_buf *all)
{
    char part[4096];
    int fd = hub_connect(r);
    ssize_t n;

    sv_buf_clear(all);
    hub_send_text(fd, text);
    while ((n = recv(fd, part, sizeof part, 0)) > 0)
        sv_buf_append(all, part, (size_t)n);
    sv_buf_append(all, "", 0);
    close(fd);
}

static void head_has_no_body(void **state)
{
    struct hub r = {0};
    struct sv_buf all;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    exchange(&r,
             "HEAD /health HTTP/1.1\r\nHost: x\r\n\r\nHEAD /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
             "GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
             &all);
    contains(&all, "HTTP/1.1 200 OK\r\n", "HEAD");
    contains(&all, "Content-Length: 16\r\n", "HEAD"); /* as GET says */
    contains(&all, "\r\n\r\nHTTP/1.1 404 ", "HEAD");
    contains(&all, "\r\n\r\nHTTP/1.1 200 ", "HEAD");
    contains(&all, "\"version\"", "GET");
    assert_null(strstr(all.data, "\"status\""));
    sv_buf_fini(&all);
    hub_close(&r);
}

/* HTTP/1.0 knows no chunks: a stream ends with the connection, also where the client would keep
 * it. */
static void streams_to_old_clients(void **state)
{
    static const char *const keep[] = {"", "Connection: keep-alive\r\n"};
    struct hub r = {0};
    struct sv_buf all;
    char ask[300];
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (int i = 0; i < 2; i++) {
        snprintf(ask, sizeof ask,
                 "POST " TEXT " HTTP/1.0\r\n%sContent-Length: 43\r\n\r\n"
                 "{\"prompt\":\"a\",\"max_tokens\":3,\"stream\":true}",
                 keep[i]);
        exchange(&r, ask, &all);
        contains(&all, "HTTP/1.0 200 OK\r\n", ask);
        contains(&all, "\r\n\r\ndata: {", ask);
        contains(&all, "}\n\ndata: [DONE]\n\n", ask);
        assert_null(strstr(all.data, "Content-Length"));
        assert_null(strstr(all.data, "keep-alive"));
    }
    /* An answer of known length leaves the connection open to who wants that. */
    exchange(&r,
             "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /version HTTP/1.0\r\n\r\n",
             &all);
    contains(&all, "Connection: keep-alive\r\n", "kept");
    contains(&all, "\"version\":", "kept");
    sv_buf_fini(&all);
    hub_close(&r);
}

/* Paths and methods that other servers have. */
static void other_paths(void **state)
{
    static const struct {
        const char *ask, *says;
    } list[] = {
        {"GET /models", "\"object\":\"list\""},
        {"GET /v1/health", "{\"status\":\"ok\"}"},
        {"GET /ping", "{\"status\":\"ok\"}"},
        {"GET /health_generate", "{\"status\":\"ok\"}"},
        {"GET /props", "\"n_ctx\":4096,"},
        {"GET /props", "\"total_slots\":4096,"},
        {"PATCH /v1/models", "takes GET, not PATCH"},
        {"GET /v1/embeddings", "\"code\":\"unsupported_endpoint\""},
        {"OPTIONS /v1/models", "HTTP/1.1 204 "},
        {"GET /v1/models/nobody", "\"code\":\"model_not_found\""},
    };
    struct hub r = {0};
    struct sv_buf all;
    char ask[120];
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        snprintf(ask, sizeof ask, "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                 list[i].ask);
        exchange(&r, ask, &all);
        contains(&all, list[i].says, list[i].ask);
    }
    sv_buf_fini(&all);
    hub_close(&r);
}

static void lengths_that_differ(void **state)
{
    struct hub r = {0};
    struct sv_buf all;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&all);
    exchange(&r,
             "POST " TEXT " HTTP/1.1\r\nHost: x\r\nContent-Length: 29\r\nContent-Length: 5\r\n\r\n"
             "{\"prompt\":\"a\",\"max_tokens\":1}",
             &all);
    contains(&all, "HTTP/1.1 400 ", "two lengths");
    contains(&all, "\"code\":\"bad_http\"", "two lengths");
    exchange(&r,
             "POST " TEXT " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 29\r\n"
             "Content-Length: 29\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":1}",
             &all);
    contains(&all, "HTTP/1.1 200 ", "twice the same");
    /* A name with a space behind it is another one to some on the way, and what is no request would
     * be the next. */
    exchange(
        &r,
        "POST " TEXT
        " HTTP/1.1\r\nHost: x\r\nContent-Length : 29\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":1}",
        &all);
    contains(&all, "HTTP/1.1 400 ", "a space behind the name");
    contains(&all, "\"code\":\"bad_http\"", "a space behind the name");
    contains(&all, "Connection: close\r\n", "a space behind the name");
    assert_int_equal(hub_count(all.data, "Content-Length: "), 1);
    exchange(&r,
             "POST " TEXT " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
             "1d\r\n{\"prompt\":\"a\",\"max_tokens\":1}\r\n0\r\n\r\n",
             &all);
    contains(&all, "HTTP/1.1 400 ", "a coding that is not known");
    exchange(&r,
             "POST " TEXT
             " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: Chunked \r\n\r\n"
             "1d\r\n{\"prompt\":\"a\",\"max_tokens\":1}\r\n0\r\n\r\n",
             &all);
    contains(&all, "HTTP/1.1 200 ", "chunked");
    exchange(&r,
             "POST " TEXT " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 29\r\n"
             "Content-Encoding: gzip\r\n\r\n{\"prompt\":\"a\",\"max_tokens\":1}",
             &all);
    contains(&all, "HTTP/1.1 415 Unsupported Media Type\r\n", "coded");
    contains(&all, "Content-Encoding 'gzip'", "coded");
    sv_buf_fini(&all);
    hub_close(&r);
}

/* A client that asks first hears no before it sends anything, on a new connection and on one that
 * is kept. */
static void too_large_is_said_first(void **state)
{
    static const char *const lengths[] = {"4097", "5000", "99999999", "99999999999999",
                                          "99999999999999999999"};
    struct hub r = {.o.max_body_bytes = 4096};
    struct sv_buf b;
    char ok[32] = "";
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&b);
    for (size_t i = 0; i < 2 * sizeof lengths / sizeof lengths[0]; i++) {
        int fd = hub_connect(&r);
        if (i & 1) {
            hub_get(fd, "/version", "");
            answer_read(fd, &r.a);
            assert_int_equal(r.a.status, 200);
        }
        sv_buf_clear(&b);
        sv_buf_printf(&b,
                      "POST " TEXT
                      " HTTP/1.1\r\nHost: x\r\nexpect: 100-continue\r\ncontent-length: %s\r\n\r\n",
                      lengths[i / 2]);
        hub_send(fd, b.data, b.len);
        answer_read(fd, &r.a);
        assert_int_equal(r.a.status, 413);
        contains(&r.a.head, "Connection: close\r\n", lengths[i / 2]);
        contains(&r.a.body, "\"code\":\"body_too_large\"", lengths[i / 2]);
        assert_int_equal(recv(fd, ok, 1, 0), 0);
        close(fd);
    }
    int fd = hub_connect(&r);
    hub_send_text(fd, "POST " TEXT
                      " HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 29\r\n\r\n");
    assert_int_equal(recv(fd, ok, 25, MSG_WAITALL), 25);
    assert_string_equal(ok, "HTTP/1.1 100 Continue\r\n\r\n");
    hub_send_text(fd, "{\"prompt\":\"a\",\"max_tokens\":1}");
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    close(fd);
    sv_buf_fini(&b);
    hub_close(&r);
}

/* A body that reads like such a header stays as it is, wherever it is cut. */
static void bodies_are_not_headers(void **state)
{
    static const char text[] =
        "POST / HTTP/1.1\\r\\nExpect: 100-continue\\r\\nContent-Length: 99999999999\\r\\n\\r\\n";
    static const char raw[] =
        "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 99999999999\r\n\r\n";
    struct hub r = {0};
    struct sv_buf b;
    (void)state;

    hub_open(&r, false);
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"echo\":true,\"max_tokens\":1,\"prompt\":\"%s\"}", text);
    int fd = hub_connect(&r);
    hub_post(fd, TEXT, "", b.data);
    answer_read(fd, &r.a);
    contains(&r.a.body, text, "in one piece");

    /* Two requests at once, the second one's body apart and beginning with it: not JSON, and said
     * so by its first letter. */
    sv_buf_clear(&b);
    sv_buf_printf(&b,
                  "GET /version HTTP/1.1\r\nHost: x\r\n\r\nPOST " TEXT " HTTP/1.1\r\nHost: x\r\n"
                  "Content-Length: %zu\r\n\r\n",
                  sizeof raw - 1);
    hub_send(fd, b.data, b.len);
    hub_nap_ms(100);
    hub_send(fd, raw, sizeof raw - 1);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 400);
    contains(&r.a.body, "not valid JSON", "a body apart");
    hub_get(fd, "/version", ""); /* the connection is still in step */
    answer_read(fd, &r.a);
    assert_int_equal(r.a.status, 200);
    close(fd);
    sv_buf_fini(&b);
    hub_close(&r);
}

SV_TEST_MAIN(cmocka_unit_test(odd_bodies), cmocka_unit_test(clear_answers),
             cmocka_unit_test(continuous_usage), cmocka_unit_test(deep_bodies),
             cmocka_unit_test(streamed_choices_with_logprobs), cmocka_unit_test(head_has_no_body),
             cmocka_unit_test(streams_to_old_clients), cmocka_unit_test(other_paths),
             cmocka_unit_test(lengths_that_differ), cmocka_unit_test(too_large_is_said_first),
             cmocka_unit_test(bodies_are_not_headers))
