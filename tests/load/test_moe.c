/*
 * test_moe.c - configurations and checkpoints with a mixture of experts: published sizes, defaults
 * and aliases, which layers have one, and the message when something does not fit.
 */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

/* config.json of Qwen3-30B-A3B as published. */
static const char a3b[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": 151643, \"decoder_sparse_step\": 1,"
    " \"eos_token_id\": 151645, \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 2048,"
    " \"initializer_range\": 0.02, \"intermediate_size\": 6144, \"max_position_embeddings\": 40960,"
    " \"max_window_layers\": 48, \"mlp_only_layers\": [], \"model_type\": \"qwen3_moe\","
    " \"moe_intermediate_size\": 768, \"norm_topk_prob\": true, \"num_attention_heads\": 32,"
    " \"num_experts\": 128, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 48,"
    " \"num_key_value_heads\": 4, \"output_router_logits\": false, \"rms_norm_eps\": 1e-06,"
    " \"rope_scaling\": null, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.001,"
    " \"sliding_window\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.51.0\", \"use_cache\": true, \"use_sliding_window\": false,"
    " \"vocab_size\": 151936}";
static const char small[] =
    "{\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": 40,"
    " \"num_experts\": 3, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 12}";

static void parse(struct sv_config *c, const char *patch)
{
    struct sv_err err = {0};
    fake_expect(fake_parse_target(c, a3b, patch, &err), SV_OK, &err, "", patch);
}

static void published_sizes(void **state)
{
    (void)state;
    struct sv_config c;
    parse(&c, "{}");
    assert_string_equal(sv_arch_name(c.arch), "Qwen3MoeForCausalLM");
    assert_int_equal(c.n_experts, 128);
    assert_int_equal(c.n_chosen, 8);
    assert_int_equal(c.moe_intermediate_size, 768);
    assert_int_equal(c.head_dim, 128); /* 32 heads of it are more than hidden_size */
    assert_true(c.norm_topk && c.qk_norm && !c.sliding_window);
    assert_int_equal(sv_config_n_params(&c), 30532122624);
    assert_true(c.layer_moe[0] && c.layer_moe[47]);

    /* Coder-30B-A3B: the same but for keys that do not matter and the rotary base */
    parse(&c, "{\"intermediate_size\": 5472, \"rope_theta\": 10000000, \"qkv_bias\": false,"
              " \"shared_expert_intermediate_size\": 0, \"use_qk_norm\": true,"
              " \"max_position_embeddings\": 262144}");
    assert_int_equal(sv_config_n_params(&c), 30532122624);
    assert_true(c.rope.theta == 1e7);
    /* 235B-A22B */
    parse(&c, "{\"hidden_size\": 4096, \"num_hidden_layers\": 94, \"num_attention_heads\": 64,"
              " \"moe_intermediate_size\": 1536}");
    assert_int_equal(sv_config_n_params(&c), 235093634560);
}

static void silence_means_the_class_default(void **state)
{
    (void)state;
    struct sv_config c, d;
    parse(&c, "{}");
    parse(&d, "{\"num_experts\": \"<del>\", \"num_experts_per_tok\": \"<del>\","
              " \"moe_intermediate_size\": \"<del>\", \"decoder_sparse_step\": \"<del>\","
              " \"mlp_only_layers\": null}");
    assert_memory_equal(&c, &d, sizeof c);
    parse(&d, "{\"norm_topk_prob\": \"<del>\"}");
    assert_false(d.norm_topk); /* the class's default; published files say true */
    parse(&d, "{\"num_experts\": \"<del>\", \"num_local_experts\": 64}");
    assert_int_equal(d.n_experts, 64); /* as transformers 5 writes it */
    parse(&d, "{\"num_experts\": 64, \"num_local_experts\": 64}");
    assert_int_equal(d.n_experts, 64);
    parse(&d, "{\"architectures\": \"<del>\"}");
    assert_string_equal(sv_arch_name(d.arch), "Qwen3MoeForCausalLM");
}

static void which_layers_are_moe(void **state)
{
    (void)state;
    static const struct {
        const char *patch, *layers; /* of four: m, or d */
    } cases[] = {
        {"{}", "mmmm"},
        {"{\"mlp_only_layers\": [1, 3]}", "mdmd"},
        {"{\"mlp_only_layers\": [0, 7, -1]}", "dmmm"}, /* layers that there are not */
        {"{\"decoder_sparse_step\": 2}", "dmdm"},
        {"{\"decoder_sparse_step\": 3, \"mlp_only_layers\": [0]}", "ddmd"},
        {"{\"decoder_sparse_step\": 9}", "dddd"},
        {"{\"decoder_sparse_step\": 2, \"mlp_only_layers\": [1]}", "dddm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        char *text = fake_json(a3b, "{\"num_hidden_layers\": 4}");
        fake_expect(fake_parse_target(&c, text, cases[i].patch, &err), SV_OK, &err, "",
                    cases[i].patch);
        sv_free(text);
        for (int l = 0; l < 4; l++)
            assert_int_equal(c.layer_moe[l], cases[i].layers[l] == 'm');
    }
}

/* transformers' class slides in all layers, or in none: max_window_layers says nothing. */
static void all_layers_slide(void **state)
{
    (void)state;
    struct sv_config c;
    parse(&c, "{\"use_sliding_window\": true, \"sliding_window\": 4096}");
    assert_int_equal(c.sliding_window, 4096);
    for (int l = 0; l < 48; l++)
        assert_int_equal(c.layer_kind[l], SV_LAYER_SLIDING);
}

static void unusable_ones_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        int code;
        const char *part;
    } cases[] = {
        {"{\"num_experts\": 0}", SV_EINVAL, "'num_experts'"},
        {"{\"num_experts\": 100000}", SV_EINVAL, "'num_experts'"},
        {"{\"num_experts\": \"many\"}", SV_EINVAL, "'num_experts'"},
        {"{\"num_experts\": 64, \"num_local_experts\": 128}", SV_EINVAL,
         "num_experts is 64 and num_local_experts 128"},
        {"{\"num_experts_per_tok\": 0}", SV_EINVAL, "'num_experts_per_tok'"},
        {"{\"num_experts_per_tok\": 17}", SV_EINVAL, "'num_experts_per_tok'"},
        {"{\"num_experts\": 4}", SV_EINVAL, "num_experts_per_tok 8 is more than num_experts 4"},
        {"{\"moe_intermediate_size\": 0}", SV_EINVAL, "'moe_intermediate_size'"},
        {"{\"norm_topk_prob\": 1}", SV_EINVAL, "'norm_topk_prob'"},
        {"{\"decoder_sparse_step\": 0}", SV_EINVAL, "'decoder_sparse_step'"},
        {"{\"mlp_only_layers\": 3}", SV_EFORMAT, "'mlp_only_layers'"},
        {"{\"mlp_only_layers\": [\"first\"]}", SV_EFORMAT, "'mlp_only_layers'"},
        {"{\"hidden_act\": \"gelu\"}", SV_EUNSUPPORTED, "hidden_act 'gelu'"},
        {"{\"quantization_config\": {\"quant_method\": \"bitsandbytes\"}}", SV_EUNSUPPORTED,
         "bitsandbytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        fake_expect(fake_parse_target(&c, a3b, cases[i].patch, &err), cases[i].code, &err,
                    cases[i].part, cases[i].patch);
    }
}

/* ---------------------------------------------------------------- tensors */

static struct fake_list list;

static void small_list(struct sv_config *c, const char *patch)
{
    struct sv_err err = {0};
    char *text = fake_json(a3b, small);
    fake_expect(fake_parse_target(c, text, patch, &err), SV_OK, &err, "", patch);
    sv_free(text);
    fake_target(&list, c, "model.");
}

static void check(struct sv_config *c, int code, const char *part)
{
    struct sv_ckpt k;
    struct sv_err err = {0};
    const char *dir = fake_dir("check");
    fake_write(&list, 0, list.n, dir, "model.safetensors");
    assert_int_equal(sv_ckpt_open(&k, dir, &err), SV_OK);
    fake_expect(sv_ckpt_check_target(&k, c, &err), code, &err, part, part);
    sv_ckpt_close(&k);
}

static void complete_ones_fit(void **state)
{
    (void)state;
    struct sv_config c;
    small_list(&c, "{}");
    check(&c, SV_OK, "");
    assert_non_null(fake_find(&list, "model.layers.1.mlp.experts.2.down_proj.weight"));
    small_list(&c, "{\"mlp_only_layers\": [1]}");
    check(&c, SV_OK, "");
    assert_non_null(fake_find(&list, "model.layers.1.mlp.down_proj.weight"));
}

static void faults_are_named(void **state)
{
    (void)state;
    struct sv_config c;
    small_list(&c, "{}");
    fake_remove(&list, "model.layers.1.mlp.experts.2.up_proj.weight");
    check(&c, SV_EMISMATCH,
          "'layers.1.mlp.experts.2.up_proj.weight' [12, 16] is missing (1 in all)");
    small_list(&c, "{}");
    fake_find(&list, "model.layers.0.mlp.gate.weight")->dim[0] = 4;
    check(&c, SV_EMISMATCH,
          "model.safetensors: tensor 'layers.0.mlp.gate.weight' has shape [4, 16], the "
          "configuration asks for [3, 16] (num_experts x hidden_size)");
    small_list(&c, "{}");
    fake_find(&list, "model.layers.0.mlp.gate.weight")->dim[1] = 8;
    check(&c, SV_EMISMATCH, "'layers.0.mlp.gate.weight' has shape [3, 8]");
    small_list(&c, "{}"); /* inputs first */
    fake_find(&list, "model.layers.0.mlp.experts.0.gate_proj.weight")->dim[0] = 16;
    fake_find(&list, "model.layers.0.mlp.experts.0.gate_proj.weight")->dim[1] = 12;
    check(&c, SV_EMISMATCH,
          "'layers.0.mlp.experts.0.gate_proj.weight' has shape [16, 12], the configuration asks "
          "for [12, 16] (moe_intermediate_size and hidden_size)");
    small_list(&c, "{}");
    fake_add(&list, "model.layers.0.mlp.experts.3.up_proj.weight", 12, 16);
    check(&c, SV_EMISMATCH, "'layers.0.mlp.experts.3.up_proj.weight' is not expected");
    small_list(&c, "{}");
    fake_add(&list, "model.layers.0.mlp.shared_expert.up_proj.weight", 12, 16);
    check(&c, SV_EMISMATCH, "'layers.0.mlp.shared_expert.up_proj.weight' is not expected");
    small_list(&c, "{}");
    fake_find(&list, "model.layers.1.mlp.experts.1.down_proj.weight")->dtype = "F32";
    check(&c, SV_EUNSUPPORTED,
          "model.safetensors: tensor 'layers.1.mlp.experts.1.down_proj.weight' is f32, that of "
          "expert 0 bf16: a layer's experts have one type");
    small_list(&c, "{\"mlp_only_layers\": [1]}");
    fake_add(&list, "model.layers.1.mlp.gate.weight", 3, 16);
    check(&c, SV_EMISMATCH, "'layers.1.mlp.gate.weight' is not expected");
}

SV_TEST_MAIN(cmocka_unit_test(published_sizes), cmocka_unit_test(silence_means_the_class_default),
             cmocka_unit_test(which_layers_are_moe), cmocka_unit_test(all_layers_slide),
             cmocka_unit_test(unusable_ones_are_refused), cmocka_unit_test(complete_ones_fit),
             cmocka_unit_test(faults_are_named))
