/* test_config.c - target configurations: both layouts, defaults, refusals, parameter counts,
 * files. */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

static void qwen3_8b_as_published(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    assert_int_equal(sv_config_parse(&c, fake_qwen3, strlen(fake_qwen3), &err), SV_OK);
    assert_string_equal(sv_arch_name(c.arch), "Qwen3ForCausalLM");
    assert_string_equal(sv_arch_name(c.arch), "Qwen3ForCausalLM");
    assert_int_equal(c.stored_dtype, SV_BF16);
    assert_int_equal(c.hidden_size, 4096);
    assert_int_equal(c.intermediate_size, 12288);
    assert_int_equal(c.n_layers, 36);
    assert_int_equal(c.n_heads, 32);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.vocab_size, 151936);
    assert_int_equal(c.max_position, 40960);
    assert_true(c.rms_eps == 1e-6f);
    assert_true(c.qk_norm && !c.tie_embeddings && !c.attention_bias && !c.mlp_bias);
    assert_true(c.embed_scale == 1);
    assert_int_equal(c.rope.kind, SV_ROPE_DEFAULT);
    assert_true(c.rope.theta == 1e6);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.bos_id, 151643);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 151645);
    assert_int_equal(sv_config_n_params(&c), 8190735360);
}

static void known_totals_of_targets(void **state)
{
    (void)state;
    static const struct {
        const char *base, *patch;
        int64_t n;
    } cases[] = {
        /* Qwen3-0.6B: tied */
        {fake_qwen3,
         "{\"hidden_size\": 1024, \"intermediate_size\": 3072, \"num_hidden_layers\": 28,"
         " \"num_attention_heads\": 16, \"tie_word_embeddings\": true}",
         596049920},
        /* Llama-3.1-8B */
        {fake_llama,
         "{\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 32,"
         " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256}",
         8030261248},
        /* Llama-3.2-1B: tied */
        {fake_llama,
         "{\"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_hidden_layers\": 16,"
         " \"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 128256,"
         " \"tie_word_embeddings\": true}",
         1235814400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        fake_expect(fake_parse_target(&c, cases[i].base, cases[i].patch, &err), SV_OK, &err, "",
                    cases[i].patch);
        assert_int_equal(sv_config_n_params(&c), cases[i].n);
    }
}

static void llama_in_the_later_layout(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    assert_int_equal(sv_config_parse(&c, fake_llama, strlen(fake_llama), &err), SV_OK);
    assert_string_equal(sv_arch_name(c.arch), "LlamaForCausalLM");
    assert_int_equal(c.stored_dtype, SV_F16);
    assert_int_equal(c.head_dim, 16); /* hidden / heads */
    assert_false(c.qk_norm);
    assert_false(c.tie_embeddings);
    assert_int_equal(c.rope.kind, SV_ROPE_LLAMA3);
    assert_true(c.rope.theta == 500000 && c.rope.factor == 8);
    assert_true(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
    assert_int_equal(c.rope.original_max_position, 8192);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 3);
}

/* The same parameters in the earlier layout, under both names of the type, and nested per layer
 * type. */
static void layouts_mean_the_same(void **state)
{
    (void)state;
#define L3                                                                                         \
    "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"                        \
    " \"original_max_position_embeddings\": 8192"
    static const char *const patches[] = {
        "{\"rope_parameters\": \"<del>\", \"rope_theta\": 500000, \"rope_scaling\": {"
        "\"rope_type\": \"llama3\", " L3 "}, \"dtype\": \"<del>\", \"torch_dtype\": \"float16\"}",
        "{\"rope_parameters\": null, \"rope_theta\": 500000.0, \"rope_scaling\": {"
        "\"type\": \"llama3\", " L3 "}, \"torch_dtype\": \"bfloat16\"}",
        "{\"rope_theta\": 500000.0}",
        "{\"rope_parameters\": {\"rope_theta\": \"<del>\"}, \"rope_theta\": 500000.0}",
        "{\"rope_scaling\": {\"rope_type\": \"llama3\", " L3 "}}",
        "{\"architectures\": \"<del>\"}",
        "{\"head_dim\": 16, \"dtype\": \"torch.float16\"}",
    };
    struct sv_config want, got;
    struct sv_err err = {0};
    assert_int_equal(sv_config_parse(&want, fake_llama, strlen(fake_llama), &err), SV_OK);
    for (size_t i = 0; i < sizeof patches / sizeof patches[0]; i++) {
        fake_expect(fake_parse_target(&got, fake_llama, patches[i], &err), SV_OK, &err, "",
                    patches[i]);
        assert_memory_equal(&got, &want, sizeof got);
    }
#define NESTED(a, b)                                                                               \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 64, \"intermediate_size\": 96,"  \
    " \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 9,"                    \
    " \"rope_parameters\": {\"full_attention\": {\"rope_theta\": " a "},"                          \
    " \"sliding_attention\": {\"rope_theta\": " b "}}}"
    const char *same = NESTED("70000", "70000"), *different = NESTED("70000", "10000");
    assert_int_equal(sv_config_parse(&got, same, strlen(same), &err), SV_OK);
    assert_true(got.rope.theta == 70000);
    fake_expect(sv_config_parse(&got, different, strlen(different), &err), SV_EUNSUPPORTED, &err,
                "per layer type", different);
}

static void silence_means_the_class_default(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    static const char qwen[] = "{\"model_type\": \"qwen3\", \"hidden_size\": 64,"
                               " \"intermediate_size\": 8, \"num_hidden_layers\": 1,"
                               " \"num_attention_heads\": 4, \"vocab_size\": 10}";
    assert_int_equal(sv_config_parse(&c, qwen, strlen(qwen), &err), SV_OK);
    assert_string_equal(sv_arch_name(c.arch), "Qwen3ForCausalLM");
    assert_int_equal(c.max_position, 32768);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rope.theta == 10000);
    assert_true(c.rms_eps == 1e-6f);
    assert_false(c.tie_embeddings);
    assert_int_equal(c.bos_id, -1);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(c.stored_dtype, SV_BF16);
    static const char llama[] = "{\"model_type\": \"llama\", \"hidden_size\": 64,"
                                " \"intermediate_size\": 8, \"num_hidden_layers\": 1,"
                                " \"num_attention_heads\": 4, \"vocab_size\": 10}";
    assert_int_equal(sv_config_parse(&c, llama, strlen(llama), &err), SV_OK);
    assert_int_equal(c.max_position, 2048);
    assert_false(c.tie_embeddings);
}

static void sliding_layers_of_qwen3(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    assert_int_equal(fake_parse_target(&c, fake_qwen3,
                                       "{\"use_sliding_window\": true, \"sliding_window\": 512,"
                                       " \"max_window_layers\": 30}",
                                       &err),
                     SV_OK);
    assert_int_equal(c.sliding_window, 512);
    for (int32_t i = 0; i < 36; i++)
        assert_int_equal(c.layer_kind[i], i >= 30 ? SV_LAYER_SLIDING : SV_LAYER_FULL);
    assert_int_equal(fake_parse_target(&c, fake_qwen3,
                                       "{\"num_hidden_layers\": 3, \"use_sliding_window\": true,"
                                       " \"sliding_window\": 64, \"layer_types\":"
                                       " [\"sliding_attention\", \"full_attention\","
                                       " \"sliding_attention\"]}",
                                       &err),
                     SV_OK);
    assert_int_equal(c.sliding_window, 64);
    assert_int_equal(c.layer_kind[0], SV_LAYER_SLIDING);
    assert_int_equal(c.layer_kind[1], SV_LAYER_FULL);
    /* the window is there but not in use */
    assert_int_equal(fake_parse_target(&c, fake_qwen3, "{\"sliding_window\": 512}", &err), SV_OK);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.layer_kind[35], SV_LAYER_FULL);
    /* in use, but null: not the class's default of 4096 */
    assert_int_equal(fake_parse_target(&c, fake_qwen3,
                                       "{\"use_sliding_window\": true, \"sliding_window\": null,"
                                       " \"max_window_layers\": 30}",
                                       &err),
                     SV_OK);
    assert_int_equal(c.sliding_window, 0);
    assert_int_equal(c.layer_kind[35], SV_LAYER_FULL);
    /* in use, but only behind the last layer */
    assert_int_equal(fake_parse_target(&c, fake_qwen3,
                                       "{\"use_sliding_window\": true, \"sliding_window\": 512}",
                                       &err),
                     SV_OK);
    assert_int_equal(c.sliding_window, 0);
}

static void end_tokens(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    assert_int_equal(
        fake_parse_target(&c, fake_qwen3, "{\"eos_token_id\": [5, 5, 7, -1, 999999]}", &err),
        SV_OK);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 7);
    assert_int_equal(fake_parse_target(&c, fake_qwen3, "{\"eos_token_id\": null}", &err), SV_OK);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(fake_parse_target(&c, fake_qwen3, "{\"bos_token_id\": 999999}", &err), SV_OK);
    assert_int_equal(c.bos_id, -1);
}

static const struct {
    const char *patch;
    int code;
    const char *part;
} refused[] = {
    {"{\"architectures\": [\"MistralForCausalLM\"]}", SV_EUNSUPPORTED, "'MistralForCausalLM'"},
    {"{\"architectures\": [\"Qwen2MoeForCausalLM\"]}", SV_EUNSUPPORTED, "'Qwen2MoeForCausalLM'"},
    {"{\"architectures\": [\"DFlashDraftModel\"]}", SV_EUNSUPPORTED, "is a draft"},
    {"{\"architectures\": []}", SV_EFORMAT, "'architectures'"},
    {"{\"architectures\": \"Qwen3ForCausalLM\"}", SV_EFORMAT, "'architectures'"},
    {"{\"architectures\": [3]}", SV_EFORMAT, "'architectures'"},
    {"{\"architectures\": \"<del>\", \"model_type\": \"gemma3\"}", SV_EUNSUPPORTED, "'gemma3'"},
    {"{\"architectures\": \"<del>\", \"model_type\": \"<del>\"}", SV_EFORMAT, "'architectures'"},
    {"{\"quantization_config\": {\"quant_method\": \"hqq\", \"bits\": 4}}", SV_EUNSUPPORTED, "hqq"},
    {"{\"quantization_config\": {}}", SV_EUNSUPPORTED, "'quantization_config'"},
    {"{\"compression_config\": {\"quant_method\": \"compressed-tensors\"}}", SV_EFORMAT,
     "'config_groups'"},
    {"{\"hidden_act\": \"gelu\"}", SV_EUNSUPPORTED, "'gelu'"},
    {"{\"partial_rotary_factor\": 0.5}", SV_EUNSUPPORTED, "'partial_rotary_factor'"},
    {"{\"hidden_size\": 0}", SV_EINVAL, "'hidden_size'"},
    {"{\"hidden_size\": -4096}", SV_EINVAL, "'hidden_size'"},
    {"{\"hidden_size\": 4096.5}", SV_EINVAL, "'hidden_size'"},
    {"{\"hidden_size\": \"4096\"}", SV_EINVAL, "'hidden_size'"},
    {"{\"hidden_size\": 1000000000000}", SV_EINVAL, "'hidden_size'"},
    {"{\"hidden_size\": \"<del>\"}", SV_EINVAL, "'hidden_size' is missing"},
    {"{\"intermediate_size\": 0}", SV_EINVAL, "'intermediate_size'"},
    {"{\"num_hidden_layers\": 0}", SV_EINVAL, "'num_hidden_layers'"},
    {"{\"num_hidden_layers\": 257}", SV_EINVAL, "'num_hidden_layers'"},
    {"{\"num_attention_heads\": 0}", SV_EINVAL, "'num_attention_heads'"},
    {"{\"num_key_value_heads\": 0}", SV_EINVAL, "'num_key_value_heads'"},
    {"{\"num_key_value_heads\": 5}", SV_EINVAL, "not a multiple of num_key_value_heads 5"},
    {"{\"num_key_value_heads\": 64}", SV_EINVAL, "not a multiple of num_key_value_heads 64"},
    {"{\"head_dim\": 100}", SV_EUNSUPPORTED, "head_dim 100"},
    {"{\"head_dim\": 7}", SV_EUNSUPPORTED, "head_dim 7"},
    {"{\"head_dim\": -8}", SV_EINVAL, "'head_dim'"},
    {"{\"head_dim\": null, \"hidden_size\": 4097}", SV_EINVAL, "'head_dim' is missing"},
    {"{\"vocab_size\": 0}", SV_EINVAL, "'vocab_size'"},
    {"{\"vocab_size\": 4294967296}", SV_EINVAL, "'vocab_size'"},
    {"{\"max_position_embeddings\": 0}", SV_EINVAL, "'max_position_embeddings'"},
    {"{\"rms_norm_eps\": 0}", SV_EINVAL, "'rms_norm_eps'"},
    {"{\"rms_norm_eps\": -1e-6}", SV_EINVAL, "'rms_norm_eps'"},
    {"{\"torch_dtype\": \"float8_e4m3fn\"}", SV_EUNSUPPORTED, "float8_e4m3fn"},
    {"{\"torch_dtype\": 16}", SV_EINVAL, "'torch_dtype'"},
    {"{\"tie_word_embeddings\": 1}", SV_EINVAL, "'tie_word_embeddings'"},
    {"{\"mlp_bias\": true}", SV_EUNSUPPORTED, "'mlp_bias'"},
    {"{\"eos_token_id\": \"x\"}", SV_EFORMAT, "'eos_token_id'"},
    {"{\"eos_token_id\": [1, [2]]}", SV_EFORMAT, "'eos_token_id'"},
    {"{\"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", SV_EUNSUPPORTED,
     "'eos_token_id'"},
    {"{\"rope_theta\": 0}", SV_EINVAL, "'rope_theta'"},
    {"{\"rope_theta\": \"1e6\"}", SV_EINVAL, "'rope_theta'"},
    {"{\"rope_scaling\": 4}", SV_EFORMAT, "'rope_scaling'"},
    {"{\"rope_scaling\": {\"factor\": 2}}", SV_EFORMAT, "'rope_type' is missing"},
    {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}", SV_EUNSUPPORTED, "'dynamic'"},
    {"{\"rope_scaling\": {\"rope_type\": \"longrope\"}}", SV_EUNSUPPORTED, "'longrope'"},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\"}}", SV_EINVAL, "'factor' is missing"},
    {"{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 0}}", SV_EINVAL, "'factor'"},
    {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", SV_EINVAL,
     "low_freq_factor"},
    {"{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
     " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 100}}",
     SV_EINVAL, "'high_freq_factor'"},
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\"}}", SV_OK,
     ""}, /* factor 1: as the formula says */
    {"{\"rope_scaling\": {\"rope_type\": \"yarn\", \"original_max_position_embeddings\": 81920}}",
     SV_EINVAL, "'factor' of yarn"},
    {"{\"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.25}}",
     SV_EUNSUPPORTED, "'partial_rotary_factor'"},
    {"{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000}}", SV_EFORMAT,
     "two values of 'rope_theta'"},
    {"{\"rope_parameters\": {\"rope_type\": \"default\"}, \"rope_scaling\": {\"type\": \"linear\","
     " \"factor\": 2}}",
     SV_EFORMAT, "disagree"},
    {"{\"rope_parameters\": {\"full_attention\": {}, \"rope_theta\": 5}}", SV_EFORMAT, "mixed"},
    {"{\"layer_types\": [\"full_attention\"]}", SV_EINVAL, "'layer_types' must list 36"},
    {"{\"layer_types\": \"full_attention\"}", SV_EINVAL, "'layer_types'"},
    {"{\"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}", SV_EUNSUPPORTED,
     "'linear_attention'"},
    {"{\"num_hidden_layers\": 1, \"layer_types\": [1]}", SV_EFORMAT, "'layer_types'[0]"},
    {"{\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"],"
     " \"sliding_window\": 100}",
     SV_EINVAL, "no window is in force"},
    {"{\"sliding_window\": -1}", SV_EINVAL, "'sliding_window'"},
};

static void unusable_configurations_are_refused_with_the_field(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        int rc = fake_parse_target(&c, fake_qwen3, refused[i].patch, &err);
        fake_expect(rc, refused[i].code, &err, refused[i].part, refused[i].patch);
    }
    static const char *const texts[] = {"", "[]", "3", "{", "{\"architectures\": nul}", "null"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        fake_expect(sv_config_parse(&c, texts[i], strlen(texts[i]), &err), SV_EFORMAT, &err, "",
                    texts[i]);
        assert_int_equal(sv_config_parse(&c, texts[i], strlen(texts[i]), NULL), SV_EFORMAT);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void llama_does_not_slide(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    /* transformers' Llama ignores the key */
    assert_int_equal(fake_parse_target(&c, fake_llama, "{\"sliding_window\": 64}", &err), SV_OK);
    assert_int_equal(c.sliding_window, 0);
    fake_expect(fake_parse_target(&c, fake_llama,
                                  "{\"num_hidden_layers\": 1, \"sliding_window\": 64,"
                                  " \"layer_types\": [\"sliding_attention\"]}",
                                  &err),
                SV_EINVAL, &err, "no window", "llama");
    assert_int_equal(
        fake_parse_target(&c, fake_llama, "{\"attention_bias\": true, \"mlp_bias\": true}", &err),
        SV_OK);
    assert_true(c.attention_bias && c.mlp_bias);
}

static void files_are_named_in_errors(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    const char *dir = fake_dir("cfg");
    fake_expect(sv_config_load(&c, dir, &err), SV_EIO, &err, "config.json", "missing");
    fake_puts(dir, "config.json", "{\"architectures\": [}");
    fake_expect(sv_config_load(&c, dir, &err), SV_EFORMAT, &err, "cfg/config.json", "bad JSON");
    assert_int_equal(err.pos, 19); /* the brace, counted from 0 */
    fake_puts(dir, "config.json", fake_qwen3);
    assert_int_equal(sv_config_load(&c, dir, &err), SV_OK);
    assert_int_equal(c.eos_ids[0], 151645);
    fake_puts(dir, "generation_config.json", "{\"eos_token_id\": [151645, 151643]}");
    assert_int_equal(sv_config_load(&c, dir, &err), SV_OK);
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 151643);
    fake_puts(dir, "generation_config.json", "{\"eos_token_id\": {}}");
    fake_expect(sv_config_load(&c, dir, &err), SV_EFORMAT, &err, "generation_config.json",
                "bad eos");
    fake_puts(dir, "generation_config.json", "[]");
    fake_expect(sv_config_load(&c, dir, &err), SV_EFORMAT, &err, "generation_config.json", "list");
    assert_false(sv_dir_is_draft(dir));
    assert_int_equal(sv_alloc_live(), 0);
}

static void every_fault_is_survived(void **state)
{
    (void)state;
    char dir[512];
    snprintf(dir, sizeof dir, "%s", fake_dir("cfgfault"));
    fake_puts(dir, "config.json", fake_llama);
    fake_puts(dir, "generation_config.json", "{\"eos_token_id\": [1, 2]}");
    for (int64_t nth = 1;; nth++) {
        struct sv_config c;
        struct sv_err err = {0};
        sv_fault_arm(nth);
        int rc = sv_config_load(&c, dir, &err);
        bool reached = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        assert_int_equal(sv_alloc_live(), 0);
        assert_true(rc == SV_OK || (err.code == rc && err.msg[0]));
        if (!reached) {
            assert_int_equal(rc, SV_OK);
            break;
        }
        assert_true(nth < 5000);
    }
}

SV_TEST_MAIN(cmocka_unit_test(qwen3_8b_as_published), cmocka_unit_test(known_totals_of_targets),
             cmocka_unit_test(llama_in_the_later_layout), cmocka_unit_test(layouts_mean_the_same),
             cmocka_unit_test(silence_means_the_class_default),
             cmocka_unit_test(sliding_layers_of_qwen3), cmocka_unit_test(end_tokens),
             cmocka_unit_test(unusable_configurations_are_refused_with_the_field),
             cmocka_unit_test(llama_does_not_slide), cmocka_unit_test(files_are_named_in_errors),
             cmocka_unit_test(every_fault_is_survived))
