/*
 * test_jsonl.c - one line of JSON to one request: what is taken, and what each refusal says.
 */
#include "testing.h"

#include "cli/cli.h"
#include "cli/lines.h"

#include <string.h>

#define VOCAB 100

static const struct sv_request defaults = {.top_p = 1, .max_tokens = 7, .temperature = 0.5};

static int parse(struct sv_cli_request *q, const char *line, struct sv_err *err)
{
    *err = (struct sv_err){0};
    return sv_cli_request_parse(q, line, strlen(line), &defaults, VOCAB, NULL, err);
}

static void takes_every_field(void **state)
{
    struct sv_cli_request q;
    struct sv_err err;
    (void)state;

    assert_int_equal(
        parse(&q,
              "{\"id\":\"a\",\"prompt\":\"x\\u0000y\",\"max_tokens\":3,\"temperature\":0,"
              "\"top_k\":-1,\"top_p\":0.5,\"min_p\":0.25,\"seed\":9007199254740993,"
              "\"stop\":[\"one\",\"two\"],\"ignore_eos\":true,\"kind\":\"maths\"}",
              &err),
        0);
    assert_string_equal(json_string_value(q.id), "a");
    assert_int_equal(q.r.prompt_bytes, 3);
    assert_memory_equal(q.r.prompt, "x\0y", 3);
    assert_int_equal(q.r.max_tokens, 3);
    assert_true(q.r.temperature == 0 && q.r.top_p == 0.5 && q.r.min_p == 0.25);
    assert_int_equal(q.r.top_k, 0);
    assert_true(q.r.seed == 9007199254740993u);
    assert_int_equal(q.r.n_stop, 2);
    assert_string_equal(q.r.stop[1], "two");
    assert_true(q.r.ignore_eos);
    assert_string_equal(q.kind, "maths");
    sv_cli_request_fini(&q);

    assert_int_equal(parse(&q, " {\"id\":12,\"prompt_token_ids\":[0,99],\"stop\":\"x\"} ", &err),
                     0);
    assert_int_equal(q.r.n_prompt_ids, 2);
    assert_int_equal(q.r.prompt_ids[1], 99);
    assert_int_equal(q.r.max_tokens, 7);
    assert_true(q.r.temperature == 0.5);
    assert_int_equal(q.r.n_stop, 1);
    sv_cli_request_fini(&q);

    assert_int_equal(
        parse(
            &q,
            "{\"id\":1,\"prompt\":\"x\",\"min_tokens\":2,\"presence_penalty\":-1.5,"
            "\"frequency_penalty\":0.5,\"repetition_penalty\":1.25,\"logit_bias\":{\"7\":-2,\"99\":"
            "1.5},\"stop_token_ids\":[3,98],\"include_stop\":true,\"logprobs\":true,"
            "\"prompt_logprobs\":true,\"top_logprobs\":20}",
            &err),
        0);
    assert_int_equal(q.r.min_tokens, 2);
    assert_true(q.r.presence_penalty == -1.5 && q.r.frequency_penalty == 0.5);
    assert_true(q.r.repetition_penalty == 1.25);
    assert_int_equal(q.r.n_bias, 2);
    assert_int_equal(q.r.bias_ids[0] + q.r.bias_ids[1], 106);
    assert_true(q.r.bias[q.r.bias_ids[0] == 7 ? 0 : 1] == -2);
    assert_int_equal(q.r.n_stop_ids, 2);
    assert_int_equal(q.r.stop_ids[1], 98);
    assert_true(q.r.include_stop && q.r.logprobs && q.r.prompt_logprobs);
    assert_int_equal(q.r.n_top_logprobs, 20);
    sv_cli_request_fini(&q);

    static const char *const kinds[] = {
        "\"json\":true",    "\"json_schema\":{\"type\":\"object\"}", "\"json_schema\":\"{}\"",
        "\"regex\":\"a+\"", "\"grammar\":\"root ::= \\\"a\\\"\"",    "\"choice\":[\"a\",\"b\"]"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char line[128];
        snprintf(line, sizeof line, "{\"id\":1,\"prompt\":\"x\",%s}", kinds[i]);
        assert_int_equal(parse(&q, line, &err), 0);
        assert_non_null(q.r.grammar);
        sv_cli_request_fini(&q);
    }
    assert_int_equal(parse(&q, "{\"id\":1,\"prompt\":\"x\",\"json\":false,\"regex\":null}", &err),
                     0);
    assert_null(q.r.grammar);
    sv_cli_request_fini(&q);

    /* null is the same as absent */
    assert_int_equal(parse(&q,
                           "{\"id\":1,\"prompt\":\"x\",\"prompt_token_ids\":null,\"stop\":null,"
                           "\"seed\":null,\"max_tokens\":null}",
                           &err),
                     0);
    assert_int_equal(q.r.max_tokens, 7);
    sv_cli_request_fini(&q);
}

static void refusals_name_the_field(void **state)
{
    static const struct {
        const char *line, *says;
    } bad[] = {
        {"", "byte 0"},
        {"{\"id\":1,", "byte 8"},
        {"[1]", "not a JSON object"},
        {"7", "JSON"},
        {"{\"id\":1,\"prompt\":\"x\"} trailing", "byte"},
        {"{\"id\":1,\"id\":2,\"prompt\":\"x\"}", "duplicate"},
        {"{\"prompt\":\"x\"}", "'id' is missing"},
        {"{\"id\":1.5,\"prompt\":\"x\"}", "'id'"},
        {"{\"id\":null,\"prompt\":\"x\"}", "'id'"},
        {"{\"id\":1}", "'prompt', 'prompt_token_ids' or 'messages'"},
        {"{\"id\":1,\"prompt\":\"x\",\"messages\":[]}", "exclude"},
        {"{\"id\":1,\"messages\":[]}", "'messages' must be a list"},
        {"{\"id\":1,\"messages\":[{\"role\":\"user\"},7]}", "'messages[1]' must be an object"},
        {"{\"id\":1,\"messages\":[{\"content\":\"x\"}]}", "'messages[0]'"},
        {"{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"},"
         "{\"type\":\"image_url\"}]}]}",
         "'messages[0].content[1]': type 'image_url' is not supported"},
        {"{\"id\":1,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "no chat template"},
        {"{\"id\":1,\"prompt\":\"x\",\"min_tokens\":-1}", "'min_tokens'"},
        {"{\"id\":1,\"prompt\":\"x\",\"json\":1}", "'json': must be true or false"},
        {"{\"id\":1,\"prompt\":\"x\",\"regex\":7}", "'regex': must be a text"},
        {"{\"id\":1,\"prompt\":\"x\",\"regex\":\"a(\"}", "'regex': byte 1"},
        {"{\"id\":1,\"prompt\":\"x\",\"grammar\":\"root = 1\"}", "'grammar': byte 0"},
        {"{\"id\":1,\"prompt\":\"x\",\"json_schema\":{\"type\":\"no\"}}", "'json_schema': schema"},
        {"{\"id\":1,\"prompt\":\"x\",\"choice\":[1]}", "'choice': choice 0"},
        {"{\"id\":1,\"prompt\":\"x\",\"choice\":[\"a\"],\"json\":true}", "exclude"},
        {"{\"id\":1,\"prompt\":\"x\",\"presence_penalty\":2.5}", "'presence_penalty'"},
        {"{\"id\":1,\"prompt\":\"x\",\"frequency_penalty\":\"1\"}", "'frequency_penalty'"},
        {"{\"id\":1,\"prompt\":\"x\",\"repetition_penalty\":-1}", "'repetition_penalty'"},
        {"{\"id\":1,\"prompt\":\"x\",\"logit_bias\":[1]}", "'logit_bias' must be an object"},
        {"{\"id\":1,\"prompt\":\"x\",\"logit_bias\":{\"100\":1}}", "'100' is no token id"},
        {"{\"id\":1,\"prompt\":\"x\",\"logit_bias\":{\"-1\":1}}", "'-1' is no token id"},
        {"{\"id\":1,\"prompt\":\"x\",\"logit_bias\":{\"5 \":1}}", "'5 ' is no token id"},
        {"{\"id\":1,\"prompt\":\"x\",\"logit_bias\":{\"5\":101}}", "'logit_bias.5'"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop_token_ids\":[1,100]}", "'stop_token_ids[1]'"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop_token_ids\":3}", "'stop_token_ids' must be a list"},
        {"{\"id\":1,\"prompt\":\"x\",\"logprobs\":2}", "'logprobs'"},
        {"{\"id\":1,\"prompt\":\"x\",\"top_logprobs\":21}", "'top_logprobs'"},
        {"{\"id\":1,\"prompt\":\"x\",\"include_stop\":1}", "'include_stop'"},
        {"{\"id\":1,\"prompt\":\"x\",\"prompt_token_ids\":[1]}", "exclude"},
        {"{\"id\":1,\"prompt\":5}", "'prompt' must be a string"},
        {"{\"id\":1,\"prompt_token_ids\":\"x\"}", "'prompt_token_ids' must be a list"},
        {"{\"id\":1,\"prompt_token_ids\":[]}", "'prompt_token_ids' is empty"},
        {"{\"id\":1,\"prompt_token_ids\":[1,100]}", "'prompt_token_ids[1]'"},
        {"{\"id\":1,\"prompt_token_ids\":[-1]}", "'prompt_token_ids[0]'"},
        {"{\"id\":1,\"prompt_token_ids\":[1,2,3.0]}", "'prompt_token_ids[2]'"},
        {"{\"id\":1,\"prompt\":\"x\",\"max_tokens\":0}", "'max_tokens'"},
        {"{\"id\":1,\"prompt\":\"x\",\"max_tokens\":\"3\"}", "'max_tokens'"},
        {"{\"id\":1,\"prompt\":\"x\",\"temperature\":-1}", "'temperature'"},
        {"{\"id\":1,\"prompt\":\"x\",\"top_p\":1.01}", "'top_p'"},
        {"{\"id\":1,\"prompt\":\"x\",\"min_p\":true}", "'min_p'"},
        {"{\"id\":1,\"prompt\":\"x\",\"top_k\":1.5}", "'top_k'"},
        {"{\"id\":1,\"prompt\":\"x\",\"seed\":-3}", "'seed'"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop\":3}", "'stop' must be"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop\":[\"a\",\"\"]}", "'stop[1]'"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop\":[7]}", "'stop[0]'"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop\":\"\"}", "'stop[0]'"},
        {"{\"id\":1,\"prompt\":\"x\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\","
         "\"9\","
         "\"10\",\"11\",\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]}",
         "17 strings"},
        {"{\"id\":1,\"prompt\":\"x\",\"ignore_eos\":1}", "'ignore_eos'"},
        {"{\"id\":1,\"prompt\":\"x\",\"kind\":1}", "'kind'"},
        {"{\"id\":1,\"prompt\":\"x\",\"temperatur\":1}", "'temperatur' is not known"},
        {"{\"id\":1,\"prompt\":\"\xff\"}", "UTF-8"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sv_cli_request q;
        struct sv_err err;
        if (parse(&q, bad[i].line, &err) >= 0)
            fail_msg("%s is taken", bad[i].line);
        if (!strstr(err.msg, bad[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].line, err.msg, bad[i].says);
        assert_null(strstr(err.msg, "(line 1)"));
        sv_cli_request_fini(&q);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* An error line can still be matched with its request. */
static void keeps_the_id_of_a_bad_line(void **state)
{
    struct sv_cli_request q;
    struct sv_err err;
    struct sv_buf b;
    (void)state;

    assert_true(parse(&q, "{\"id\":\"\\u00e9\\\"\",\"prompt\":3}", &err) < 0);
    sv_buf_init(&b);
    sv_cli_quote_id(&b, q.id);
    assert_string_equal(b.data, "\"\xc3\xa9\\\"\"");
    sv_buf_fini(&b);
    sv_cli_request_fini(&q);
}

static void prompts_survive_growth(void **state)
{
    struct sv_cli_prompts p = {0};
    struct sv_err err = {0};
    char line[96];
    (void)state;

    for (int i = 0; i < 100; i++) {
        snprintf(line, sizeof line, "{\"id\":%d,\"prompt\":\"p%d\",\"stop\":[\"s%d\"]}", i, i, i);
        assert_int_equal(sv_cli_prompts_add(&p, line, strlen(line), &defaults, VOCAB, NULL, &err),
                         0);
    }
    for (int i = 0; i < 100; i++) {
        snprintf(line, sizeof line, "s%d", i);
        assert_ptr_equal(p.q[i].r.stop, p.q[i].stop);
        assert_string_equal(p.q[i].r.stop[0], line);
    }
    sv_cli_prompts_fini(&p);
    assert_int_equal(sv_alloc_live(), 0);
}

static void prompt_files_name_the_line(void **state)
{
    struct sv_cli_prompts p;
    struct sv_err err = {0};
    static const char text[] = "{\"id\":1,\"prompt\":\"x\"}\n\n{\"id\":2}\n";
    const char *path = sv_test_tmp("prompts.jsonl");
    (void)state;

    assert_int_equal(sv_file_write(path, text, strlen(text), &err), 0);
    assert_true(sv_cli_prompts_load(&p, path, NULL, &defaults, VOCAB, &err) < 0);
    assert_non_null(strstr(err.msg, "prompts.jsonl, line 3: field 'prompt'"));
    assert_int_equal(sv_file_write(path, "\n\n", 2, &err), 0);
    assert_true(sv_cli_prompts_load(&p, path, NULL, &defaults, VOCAB, &err) < 0);
    assert_non_null(strstr(err.msg, "holds no prompts"));
    assert_true(sv_cli_prompts_load(&p, "/nonexistent", NULL, &defaults, VOCAB, &err) < 0);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(takes_every_field), cmocka_unit_test(refusals_name_the_field),
             cmocka_unit_test(keeps_the_id_of_a_bad_line), cmocka_unit_test(prompts_survive_growth),
             cmocka_unit_test(prompt_files_name_the_line))
