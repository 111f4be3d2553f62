/*
 * test_latent.c - configurations and checkpoints of DeepSeek-V3 and Kimi K2: published sizes and
 * defaults, the wrapper, tensors that are skipped by name, a draft as Kimi's, and the message when
 * something does not fit.
 */
#include "load/fake.h"
#include "testing.h"

#include <math.h>
#include <string.h>

/* config.json of DeepSeek-V3, without what does not matter here. */
static const char v3[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"attention_bias\": false,"
    " \"bos_token_id\": 0, \"eos_token_id\": 1, \"ep_size\": 1, \"first_k_dense_replace\": 3,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 7168, \"intermediate_size\": 18432,"
    " \"kv_lora_rank\": 512, \"max_position_embeddings\": 163840, \"model_type\": \"deepseek_v3\","
    " \"moe_intermediate_size\": 2048, \"moe_layer_freq\": 1, \"n_group\": 8,"
    " \"n_routed_experts\": 256, \"n_shared_experts\": 1, \"norm_topk_prob\": true,"
    " \"num_attention_heads\": 128, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 61,"
    " \"num_key_value_heads\": 128, \"num_nextn_predict_layers\": 1, \"q_lora_rank\": 1536,"
    " \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"quantization_config\":"
    " {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", \"quant_method\": \"fp8\","
    " \"weight_block_size\": [128, 128]}, \"rms_norm_eps\": 1e-06, \"rope_scaling\":"
    " {\"beta_fast\": 32, \"beta_slow\": 1, \"factor\": 40, \"mscale\": 1.0,"
    " \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, \"type\": \"yarn\"},"
    " \"rope_theta\": 10000, \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\","
    " \"tie_word_embeddings\": false, \"topk_group\": 4, \"topk_method\": \"noaux_tc\","
    " \"torch_dtype\": \"bfloat16\", \"v_head_dim\": 128, \"vocab_size\": 129280}";

/* What Kimi-K2.5 changes, inside its wrapper. */
static const char kimi[] =
    "{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"model_type\": \"kimi_k25\","
    " \"media_placeholder_token_id\": 163605, \"tie_word_embeddings\": false, \"vision_config\":"
    " {\"model_type\": \"moonvit\"}, \"text_config\": {\"architectures\":"
    " [\"DeepseekV3ForCausalLM\"], \"model_type\": \"kimi_k2\", \"attention_bias\": false,"
    " \"bos_token_id\": 163584, \"eos_token_id\": 163586, \"first_k_dense_replace\": 1,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 7168, \"intermediate_size\": 18432,"
    " \"kv_lora_rank\": 512, \"max_position_embeddings\": 262144, \"moe_intermediate_size\": 2048,"
    " \"n_group\": 1, \"n_routed_experts\": 384, \"n_shared_experts\": 1, \"norm_topk_prob\": true,"
    " \"num_attention_heads\": 64, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 61,"
    " \"num_key_value_heads\": 64, \"num_nextn_predict_layers\": 0, \"q_lora_rank\": 1536,"
    " \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"quantization_config\":"
    " {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"ignore\":"
    " [\"lm_head\", \"re:.*self_attn.*\"], \"config_groups\": {\"group_0\": {\"targets\":"
    " [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\","
    " \"group_size\": 32, \"symmetric\": true}}}}, \"rms_norm_eps\": 1e-05, \"rope_scaling\":"
    " {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 64.0, \"mscale\": 1.0,"
    " \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096, \"type\": \"yarn\"},"
    " \"rope_theta\": 50000.0, \"routed_scaling_factor\": 2.827, \"scoring_func\": \"sigmoid\","
    " \"topk_group\": 1, \"topk_method\": \"noaux_tc\", \"torch_dtype\": \"bfloat16\","
    " \"v_head_dim\": 128, \"vocab_size\": 163840}}";

static void parse(struct sv_config *c, const char *base, const char *patch)
{
    struct sv_err err = {0};
    fake_expect(fake_parse_target(c, base, patch, &err), SV_OK, &err, "", patch);
}

static void published_sizes(void **state)
{
    (void)state;
    struct sv_config c;
    parse(&c, v3, "{}");
    assert_string_equal(sv_arch_name(c.arch), "DeepseekV3ForCausalLM");
    assert_true(c.q_lora_rank == 1536 && c.kv_lora_rank == 512 && c.head_dim == 192);
    assert_true(c.nope_dim == 128 && c.rot_dim == 64 && c.v_dim == 128 && c.rope_interleaved);
    assert_true(c.n_group == 8 && c.topk_group == 4 && c.router_sigmoid && c.norm_topk);
    assert_true(c.routed_scale == 2.5f && c.shared_intermediate_size == 2048);
    assert_int_equal(c.n_mtp_layers, 1);
    for (int i = 0; i < 61; i++)
        assert_true(c.layer_moe[i] == (i >= 3) && c.layer_kind[i] == SV_LAYER_MLA);
    assert_int_equal(sv_config_n_params(&c), 671026419200);
    assert_true(fabs((double)sv_rope_score_factor(&c.rope) / sqrt(192) - 0.1352338) < 1e-7);

    parse(&c, kimi, "{}");
    assert_string_equal(sv_arch_name(c.arch), "KimiK25ForConditionalGeneration");
    assert_true(c.n_heads == 64 && c.n_experts == 384 && c.n_group == 1 && c.topk_group == 1);
    assert_true(c.rms_eps == 1e-5f && c.latent_eps == 1e-6f); /* as transformers' class has them */
    assert_true(fabs((double)sv_rope_score_factor(&c.rope) / sqrt(192) - 0.1446796) < 1e-7);
    assert_true(fabs((double)sv_config_n_params(&c) / 1e9 - 1026.4) < 0.1);
    assert_int_equal(c.eos_ids[0], 163586);

    /* K2 without the wrapper: by its architecture, whatever model_type says. */
    assert_int_equal(c.media_token, 163605);
    parse(&c, kimi, "{\"media_placeholder_token_id\": \"<del>\"}");
    assert_int_equal(c.media_token, 163605); /* the class's */
    parse(&c, kimi, "{\"media_placeholder_token_id\": 163840}");
    assert_int_equal(c.media_token, 0); /* no prompt can have it */
    parse(&c, v3, "{\"model_type\": \"kimi_k2\", \"n_group\": 1, \"topk_group\": 1}");
    assert_int_equal(c.media_token, 0);
    /* Without scaling nothing multiplies the scores. */
    parse(&c, v3, "{\"rope_scaling\": null}");
    assert_true(sv_rope_score_factor(&c.rope) == 1);
    parse(&c, v3, "{\"rope_scaling\": {\"mscale_all_dim\": \"<del>\"}}");
    assert_true(sv_rope_score_factor(&c.rope) == 1);
}

static void what_files_leave_out(void **state)
{
    (void)state;
    struct sv_config c;
    parse(&c,
          "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"hidden_size\": 64,"
          " \"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 2,"
          " \"vocab_size\": 99}",
          "{}");
    assert_true(c.q_lora_rank == 1536 && c.kv_lora_rank == 512 && c.head_dim == 192);
    assert_true(c.n_experts == 256 && c.n_chosen == 8 && c.n_group == 8 && c.topk_group == 4);
    assert_true(c.moe_intermediate_size == 2048 && c.shared_intermediate_size == 2048);
    assert_true(c.routed_scale == 2.5f && c.norm_topk && !c.layer_moe[2] && c.layer_moe[3]);
    assert_true(c.max_position == 4096 && c.n_mtp_layers == 0 && !c.attention_bias);
    parse(&c, v3,
          "{\"q_lora_rank\": null, \"rope_interleave\": false, \"n_shared_experts\": 0,"
          " \"head_dim\": 64, \"num_key_value_heads\": 1, \"first_k_dense_replace\": 99}");
    assert_true(c.q_lora_rank == 0 && !c.rope_interleaved && c.shared_intermediate_size == 0);
    assert_true(c.head_dim == 192 && !c.layer_moe[60]);
}

static void unusable_ones_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        int rc;
        const char *message;
    } cases[] = {
        {"{\"scoring_func\": \"softmax\"}", SV_EUNSUPPORTED, "'scoring_func' 'softmax'"},
        {"{\"topk_method\": \"greedy\"}", SV_EUNSUPPORTED, "'topk_method' 'greedy'"},
        {"{\"moe_layer_freq\": 2}", SV_EUNSUPPORTED, "'moe_layer_freq' 2"},
        {"{\"index_topk\": 2048}", SV_EUNSUPPORTED, "'index_topk'"},
        {"{\"kv_lora_rank\": 516}", SV_EUNSUPPORTED, "kv_lora_rank 516 is not a multiple of 8"},
        {"{\"kv_lora_rank\": 520}", SV_EUNSUPPORTED, "kv_lora_rank 520 and qk_rope_head_dim 64"},
        {"{\"kv_lora_rank\": 0}", SV_EINVAL, "kv_lora_rank"},
        {"{\"kv_lora_rank\": 4294967808}", SV_EINVAL, "kv_lora_rank"},
        {"{\"qk_rope_head_dim\": 63}", SV_EUNSUPPORTED, "qk_rope_head_dim 63"},
        {"{\"qk_rope_head_dim\": -8}", SV_EINVAL, "qk_rope_head_dim"},
        {"{\"qk_nope_head_dim\": 1024}", SV_EINVAL, "qk_nope_head_dim"},
        {"{\"v_head_dim\": 12}", SV_EUNSUPPORTED, "v_head_dim 12"},
        {"{\"v_head_dim\": \"128\"}", SV_EINVAL, "v_head_dim"},
        {"{\"q_lora_rank\": 0}", SV_EINVAL, "q_lora_rank"},
        {"{\"rope_interleave\": 1}", SV_EINVAL, "rope_interleave"},
        {"{\"n_group\": 7}", SV_EINVAL, "n_routed_experts 256 are not n_group 7 groups"},
        {"{\"n_group\": 256}", SV_EINVAL, "n_group 256 groups of two or more"},
        {"{\"n_group\": 0}", SV_EINVAL, "n_group"},
        {"{\"topk_group\": 9}", SV_EINVAL, "topk_group 9 is more than n_group 8"},
        {"{\"n_group\": 128, \"topk_group\": 3}", SV_EINVAL,
         "more than the 6 experts of topk_group"},
        {"{\"n_routed_experts\": 2048}", SV_EINVAL, "n_routed_experts"},
        {"{\"num_experts_per_tok\": 17}", SV_EINVAL, "num_experts_per_tok"},
        {"{\"n_shared_experts\": -1}", SV_EINVAL, "n_shared_experts"},
        {"{\"n_shared_experts\": 1000000}", SV_EINVAL, "n_shared_experts"},
        {"{\"routed_scaling_factor\": 0}", SV_EINVAL, "routed_scaling_factor"},
        {"{\"first_k_dense_replace\": -1}", SV_EINVAL, "first_k_dense_replace"},
        {"{\"intermediate_size\": \"<del>\"}", SV_EFORMAT, "'intermediate_size' is missing"},
        {"{\"num_nextn_predict_layers\": 65}", SV_EINVAL, "num_nextn_predict_layers"},
        {"{\"partial_rotary_factor\": 0.5}", SV_EUNSUPPORTED, "'partial_rotary_factor'"},
        {"{\"hidden_act\": \"gelu\"}", SV_EUNSUPPORTED, "hidden_act"},
        {"{\"mlp_bias\": true}", SV_EUNSUPPORTED, "'mlp_bias'"},
        {"{\"rope_scaling\": {\"type\": \"linear\"}}", SV_EUNSUPPORTED,
         "RoPE other than default and yarn"},
        {"{\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}", SV_EUNSUPPORTED,
         "'sliding_attention' is not supported"},
        {"{\"quantization_config\": {\"quant_method\": \"mxfp4\"}}", SV_EUNSUPPORTED, "mxfp4"},
        {"{\"architectures\": [\"DeepseekV32ForCausalLM\"]}", SV_EUNSUPPORTED,
         "'DeepseekV32ForCausalLM' is not supported"},
    };
    struct sv_config c;
    struct sv_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        fake_expect(fake_parse_target(&c, v3, cases[i].patch, &err), cases[i].rc, &err,
                    cases[i].message, cases[i].patch);
    fake_expect(fake_parse_target(&c, kimi, "{\"text_config\": [1]}", &err), SV_EFORMAT, &err,
                "'text_config'", "no text_config");
    fake_expect(fake_parse_target(&c, kimi, "{\"text_config\": {\"topk_group\": 2}}", &err),
                SV_EINVAL, &err, "topk_group 2", "inside the wrapper");
}

/* ---------------------------------------------------------------- checkpoints */

static void open_both(struct sv_ckpt *k, struct sv_config *c, const char *dir)
{
    struct sv_err err = {0};
    if (sv_config_load(c, dir, &err) || sv_ckpt_open(k, dir, &err))
        fail_msg("%s", err.msg);
}

/* Another name in its place in the order, if it has one. */
static void rename_from(struct sv_ckpt *k, const char *begin, size_t at, char to)
{
    for (int32_t i = 0; i < k->n_tensors; i++)
        if (!strncmp(k->tensors[i].name, begin, strlen(begin)))
            ((char *)(uintptr_t)k->tensors[i].name)[at] = to;
}

static void names_that_are_skipped(void **state)
{
    (void)state;
    struct sv_ckpt k;
    struct sv_config c;
    struct sv_err err = {0};
    open_both(&k, &c, "tests/golden/tiny/deepseek_bf16");
    assert_non_null(sv_ckpt_find(&k, "layers.3.eh_proj.weight"));
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", "an MTP layer");
    c.n_mtp_layers = 0;
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH, &err, "'layers.3.", "not stated");
    c.n_mtp_layers = 1;
    rename_from(&k, "layers.3.", 7, '4');
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH, &err, "'layers.4.", "behind it");
    sv_ckpt_close(&k);

    open_both(&k, &c, "tests/golden/tiny/kimi_int4");
    assert_non_null(sv_ckpt_find(&k, "lm_head.weight")); /* language_model. is taken off */
    assert_non_null(sv_ckpt_find(&k, "layers.2.self_attn.kv_b_proj.weight"));
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", "published names");
    rename_from(&k, "vision_tower.", 11, 's');
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH, &err, "'vision_towes.", "other");
    sv_ckpt_close(&k);
}

/* A small model in bf16, one tensor at a time of another shape, missing, or more than there are. */
static const char small[] =
    "{\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"first_k_dense_replace\": 1, \"num_attention_heads\": 2, \"vocab_size\": 40,"
    " \"q_lora_rank\": 24, \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8, \"qk_rope_head_dim\": 8,"
    " \"v_head_dim\": 16, \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"n_group\": 2,"
    " \"topk_group\": 1, \"moe_intermediate_size\": 12, \"num_nextn_predict_layers\": 0,"
    " \"quantization_config\": \"<del>\"}";

static void tensors_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int dim; /* one more of it */
        const char *message;
    } cases[] = {
        {"layers.0.self_attn.kv_b_proj.weight", 0, "qk_nope_head_dim + v_head_dim"},
        {"layers.1.self_attn.kv_b_proj.weight", 1, "asks for [48, 16]"},
        {"layers.0.self_attn.kv_a_proj_with_mqa.weight", 0, "kv_lora_rank + qk_rope_head_dim"},
        {"layers.1.self_attn.q_b_proj.weight", 0, "asks for [32, 24]"},
        {"layers.1.self_attn.q_a_layernorm.weight", 0, "asks for [24]"},
        {"layers.0.self_attn.kv_a_layernorm.weight", 0, "asks for [16]"},
        {"layers.0.self_attn.o_proj.weight", 1, "asks for [16, 32]"},
        {"layers.1.mlp.gate.e_score_correction_bias", 0, "asks for [4]"},
        {"layers.1.mlp.shared_experts.down_proj.weight", 1, "asks for [16, 12]"},
    };
    struct sv_config c;
    struct fake_list l;
    parse(&c, v3, small);
    fake_expected(&l, &c, "model.");
    fake_check(&l, &c, SV_OK, "");
    fake_expected(&l, &c, "language_model.model.");
    fake_check(&l, &c, SV_OK, "");
    fake_expected(&l, &c, "language_model.");
    fake_check(&l, &c, SV_OK, "");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_expected(&l, &c, "");
        fake_find(&l, cases[i].name)->dim[cases[i].dim]++;
        fake_check(&l, &c, SV_EMISMATCH, cases[i].message);
        fake_expected(&l, &c, "");
        fake_remove(&l, cases[i].name);
        fake_check(&l, &c, SV_EMISMATCH, cases[i].name);
    }
    static const char *const extra[] = {
        "layers.0.self_attn.q_proj.weight", "layers.1.self_attn.q_a_proj.bias",
        "layers.0.mlp.gate.e_score_correction_bias", "layers.2.eh_proj.weight"};
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        fake_expected(&l, &c, "");
        fake_add(&l, extra[i], 4, 16);
        fake_check(&l, &c, SV_EMISMATCH, extra[i]);
    }
}

/* ---------------------------------------------------------------- Kimi's draft */

/* As published: YaRN over whole heads, with the target's numbers. */
static const char draft[] =
    "{\"hidden_size\": 7168, \"intermediate_size\": 18432, \"num_attention_heads\": 64,"
    " \"num_key_value_heads\": 8, \"head_dim\": 128, \"num_hidden_layers\": 6,"
    " \"layer_types\": \"<del>\", \"rms_norm_eps\": 1e-05, \"vocab_size\": 163840,"
    " \"num_target_layers\": 61, \"block_size\": 8, \"max_position_embeddings\": 262144,"
    " \"rope_theta\": 50000.0, \"rope_scaling\": {\"beta_fast\": 32.0, \"beta_slow\": 1.0,"
    " \"factor\": 64.0, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"
    " \"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}, \"dflash_config\":"
    " {\"target_layer_ids\": [1, 12, 24, 35, 47, 58], \"mask_token_id\": 163838}}";

static void a_draft_as_published(void **state)
{
    (void)state;
    struct sv_draft_config d;
    struct sv_config c;
    struct sv_err err = {0};
    float table[2 * 2 * 64], plain[2 * 2 * 64];
    parse(&c, kimi, "{}");
    fake_expect(fake_parse_draft(&d, fake_dflash, draft, &err), SV_OK, &err, "", "Kimi's draft");
    assert_true(d.base.rot_dim == 128 && d.base.rope.kind == SV_ROPE_YARN && d.block_size == 8);
    assert_int_equal(sv_draft_config_n_params(&d), 3479277056);
    fake_expect(sv_pair_check(&c, &d, &err), SV_OK, &err, "", "the pair");
    /* The amplitude is 1; frequencies up to 17 are kept, from 39 on they are divided by 64. */
    sv_rope_fill(&d.base.rope, 128, 2, table);
    const struct sv_rope none = {.theta = 50000};
    sv_rope_fill(&none, 128, 2, plain);
    assert_true(table[0] == 1);
    for (int i = 0; i < 64; i++) {
        const double want = asin((double)plain[2 * 64 + 64 + i]),
                     is = asin((double)table[2 * 64 + 64 + i]);
        if (i > 0 && i <= 17)
            assert_true(fabs(is / want - 1) < 1e-6);
        else if (i >= 39)
            assert_true(fabs(is * 64 / want - 1) < 1e-5);
        else if (i > 0)
            assert_true(is < want && is * 64 > want);
    }
}

static void drafts_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        int rc;
        const char *message;
    } cases[] = {
        {"{\"num_target_layers\": 60, \"dflash_config\": {\"target_layer_ids\": [1, 58]}}",
         SV_EMISMATCH, "made for a target of 60 layers, this target has 61"},
        {"{\"hidden_size\": 4096}", SV_EMISMATCH,
         "hidden sizes differ: 4096 in the draft, 7168 in the target"},
        {"{\"vocab_size\": 163841}", SV_EMISMATCH,
         "163841 tokens in the draft, 163840 in the target"},
        {"{\"num_target_layers\": null, \"dflash_config\": {\"target_layer_ids\": [1, 60]}}",
         SV_EINVAL,
         "target layer id 60 is above 59, the last that can be tapped in a target of 61 layers"},
    };
    struct sv_config c;
    struct sv_err err = {0};
    char *base = fake_json(fake_dflash, draft);
    parse(&c, kimi, "{}");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_draft_config d;
        fake_expect(fake_parse_draft(&d, base, cases[i].patch, &err), SV_OK, &err, "",
                    cases[i].patch);
        fake_expect(sv_pair_check(&c, &d, &err), cases[i].rc, &err, cases[i].message,
                    cases[i].patch);
    }
    struct sv_draft_config d;
    static const struct {
        const char *patch;
        int rc;
        const char *message;
    } alone[] = {
        {"{\"dflash_config\": {\"target_layer_ids\": [1, 12, 60]}}", SV_EINVAL,
         "target layer id 60 is above 59"},
        {"{\"block_size\": 1}", SV_EINVAL, "block_size"},
        {"{\"head_dim\": 100}", SV_EUNSUPPORTED, "head_dim 100 is not a multiple of 8"},
        {"{\"num_key_value_heads\": 7}", SV_EINVAL,
         "num_attention_heads 64 is not a multiple of num_key_value_heads 7"},
        {"{\"dflash_config\": {\"mask_token_id\": 163840}}", SV_EINVAL, "mask_token_id"},
    };
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++)
        fake_expect(fake_parse_draft(&d, base, alone[i].patch, &err), alone[i].rc, &err,
                    alone[i].message, alone[i].patch);
    /* Six taps, and a projection made for five: its width says so. */
    struct fake_list l;
    struct sv_ckpt k;
    sv_free(base);
    base = fake_json(fake_dflash, fake_small);
    char *narrow = fake_json(base, "{\"dflash_config\": {\"mask_token_id\": 39}}");
    fake_expect(fake_parse_draft(&d, narrow, "{}", &err), SV_OK, &err, "", "small");
    fake_draft(&l, &d, "");
    fake_find(&l, "fc.weight")->dim[1] -= d.base.hidden_size;
    const char *dir = fake_dir("narrow");
    fake_write(&l, 0, l.n, dir, "model.safetensors");
    if (sv_ckpt_open(&k, dir, &err))
        fail_msg("%s", err.msg);
    fake_expect(sv_ckpt_check_draft(&k, &d, &err), SV_EMISMATCH, &err,
                "(number of taps x hidden_size)", "fc");
    sv_ckpt_close(&k);
    sv_free(base);
    sv_free(narrow);
}

SV_TEST_MAIN(cmocka_unit_test(published_sizes), cmocka_unit_test(what_files_leave_out),
             cmocka_unit_test(unusable_ones_are_refused), cmocka_unit_test(names_that_are_skipped),
             cmocka_unit_test(tensors_that_do_not_fit), cmocka_unit_test(a_draft_as_published),
             cmocka_unit_test(drafts_that_do_not_fit))
