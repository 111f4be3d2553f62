/*
 * test_hybrid.c - configurations and checkpoints of Gated DeltaNet hybrids: published sizes,
 * wrappers and defaults, which layers are recurrent, tensors in other forms, and the message when
 * something does not fit.
 */
#include "load/fake.h"
#include "testing.h"

#include <math.h>
#include <string.h>

/* config.json of Qwen3.5-4B, without what does not matter here. */
static const char dense[] =
    "{\"architectures\": [\"Qwen3_5ForConditionalGeneration\"], \"image_token_id\": 248056,"
    " \"model_type\": \"qwen3_5\", \"tie_word_embeddings\": true, \"text_config\":"
    " {\"attention_bias\": false, \"attn_output_gate\": true, \"dtype\": \"bfloat16\","
    " \"eos_token_id\": 248044, \"full_attention_interval\": 4, \"head_dim\": 256,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 2560, \"intermediate_size\": 9216,"
    " \"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 128, \"linear_num_key_heads\": 16,"
    " \"linear_num_value_heads\": 32, \"linear_value_head_dim\": 128,"
    " \"mamba_ssm_dtype\": \"float32\", \"max_position_embeddings\": 262144,"
    " \"mlp_only_layers\": [], \"model_type\": \"qwen3_5_text\", \"mtp_num_hidden_layers\": 1,"
    " \"num_attention_heads\": 16, \"num_hidden_layers\": 32, \"num_key_value_heads\": 4,"
    " \"rms_norm_eps\": 1e-06, \"vocab_size\": 248320, \"rope_parameters\":"
    " {\"mrope_interleaved\": true, \"mrope_section\": [11, 11, 10], \"partial_rotary_factor\":"
    " 0.25, \"rope_theta\": 10000000, \"rope_type\": \"default\"}},"
    " \"vision_config\": {\"depth\": 24}}";

/* The patch goes into text_config. */
static int parse(struct sv_config *c, const char *patch, struct sv_err *err)
{
    struct sv_buf b;
    sv_buf_init(&b);
    sv_buf_printf(&b, "{\"text_config\": %s}", patch);
    sv_buf_append(&b, "", 1);
    int rc = fake_parse_target(c, dense, b.data, err);
    sv_buf_fini(&b);
    return rc;
}

static void expect(struct sv_config *c, const char *patch, int rc, const char *message)
{
    struct sv_err err = {0};
    fake_expect(parse(c, patch, &err), rc, &err, message, patch);
}

static void published_sizes(void **state)
{
    (void)state;
    struct sv_config c;
    expect(&c, "{}", SV_OK, "");
    assert_string_equal(sv_arch_name(c.arch), "Qwen3_5ForConditionalGeneration");
    assert_int_equal(c.rot_dim, 64);
    assert_true(c.tie_embeddings && c.attn_gate && c.qk_norm && c.rope.theta == 1e7);
    assert_int_equal(c.gdn_k_heads, 16);
    assert_int_equal(c.gdn_v_heads, 32);
    assert_int_equal(c.n_eos, 1);
    for (int i = 0; i < 32; i++)
        assert_int_equal(c.layer_kind[i], i % 4 == 3 ? SV_LAYER_FULL : SV_LAYER_GDN);
    assert_int_equal(sv_config_n_params(&c), 4205751296);
    expect(&c,
           "{\"hidden_size\": 5120, \"num_hidden_layers\": 64, \"intermediate_size\": 17408,"
           " \"num_attention_heads\": 24, \"linear_num_value_heads\": 48,"
           " \"tie_word_embeddings\": false, \"output_gate_type\": \"swish\"}",
           SV_OK, "");
    assert_false(c.tie_embeddings); /* the inner one counts */
    assert_true(fabs((double)sv_config_n_params(&c) / 1e9 - 26.9) < 0.05);
}

static void which_layers_are_recurrent(void **state)
{
    (void)state;
    static const struct {
        const char *patch, *kinds;
    } cases[] = {
        {"{\"num_hidden_layers\": 5, \"full_attention_interval\": 2}", "gfgfg"},
        {"{\"num_hidden_layers\": 5, \"full_attention_interval\": \"<del>\"}", "gggfg"},
        {"{\"num_hidden_layers\": 2, \"full_attention_interval\": 1}", "ff"},
        {"{\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\", \"linear_attention\","
         " \"full_attention\"]}",
         "fgf"}, /* which wins */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        expect(&c, cases[i].patch, SV_OK, "");
        for (int l = 0; l < c.n_layers; l++)
            assert_int_equal(c.layer_kind[l],
                             cases[i].kinds[l] == 'g' ? SV_LAYER_GDN : SV_LAYER_FULL);
    }
}

static void partial_rotation_has_three_places(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        int32_t rot_dim;
    } cases[] = {
        {"{\"rope_parameters\": {\"mrope_section\": null, \"partial_rotary_factor\": \"<del>\"},"
         " \"partial_rotary_factor\": 0.5}",
         128},
        {"{\"rope_parameters\": {\"mrope_section\": null, \"partial_rotary_factor\": 0.5}}", 128},
        {"{\"rope_parameters\": {\"partial_rotary_factor\": \"<del>\"}}", 64},
        {"{\"rope_parameters\": \"<del>\", \"rope_theta\": 1e7}", 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        expect(&c, cases[i].patch, SV_OK, "");
        assert_int_equal(c.rot_dim, cases[i].rot_dim);
    }
}

static void unusable_ones_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        int rc;
        const char *message;
    } cases[] = {
        {"{\"output_gate_type\": \"sigmoid\"}", SV_EUNSUPPORTED, "'output_gate_type' 'sigmoid'"},
        {"{\"mamba_ssm_dtype\": \"bfloat16\"}", SV_EUNSUPPORTED, "'mamba_ssm_dtype' 'bfloat16'"},
        {"{\"attn_output_gate\": false}", SV_EUNSUPPORTED, "'attn_output_gate' false"},
        {"{\"attention_bias\": true}", SV_EUNSUPPORTED, "'attention_bias'"},
        {"{\"linear_conv_kernel_dim\": 3}", SV_EUNSUPPORTED, "'linear_conv_kernel_dim' 3"},
        {"{\"linear_key_head_dim\": 24}", SV_EUNSUPPORTED, "linear_key_head_dim 24"},
        {"{\"linear_value_head_dim\": 512}", SV_EUNSUPPORTED, "linear_value_head_dim 512"},
        {"{\"linear_num_value_heads\": 24}", SV_EINVAL, "not a multiple of linear_num_key_heads"},
        {"{\"linear_num_key_heads\": 0}", SV_EINVAL, "linear_num_key_heads"},
        {"{\"full_attention_interval\": 40}", SV_EUNSUPPORTED, "without a layer of full attention"},
        {"{\"full_attention_interval\": 0}", SV_EINVAL, "full_attention_interval"},
        {"{\"partial_rotary_factor\": 0.5}", SV_EFORMAT, "two values of 'partial_rotary_factor'"},
        {"{\"head_dim\": 8, \"rope_parameters\": {\"partial_rotary_factor\": 0.2}}",
         SV_EUNSUPPORTED, "rotates 1 of 8"},
        {"{\"rope_parameters\": {\"mrope_section\": [11, 11, 11]}}", SV_EINVAL, "'mrope_section'"},
        {"{\"rope_parameters\": {\"mrope_section\": [32]}}", SV_EINVAL, "'mrope_section'"},
        {"{\"rope_parameters\": {\"mrope_section\": [-1, 22, 11]}}", SV_EINVAL, "'mrope_section'"},
        {"{\"rope_parameters\": {\"mrope_section\": [0, 16, 16]}}", SV_EINVAL, "'mrope_section'"},
        {"{\"rope_parameters\": {\"mrope_interleaved\": false}}", SV_EUNSUPPORTED,
         "'mrope_interleaved' false"},
        {"{\"rope_parameters\": {\"mrope_interleaved\": 1}}", SV_EINVAL, "'mrope_interleaved'"},
        {"{\"quantization_config\": {\"quant_method\": \"own\"}}", SV_EUNSUPPORTED, "(own)"},
        {"{\"hidden_act\": \"gelu\"}", SV_EUNSUPPORTED, "hidden_act"},
        {"{\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}", SV_EUNSUPPORTED,
         "'sliding_attention' is not supported"},
        {"{\"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}", SV_EUNSUPPORTED, "'mamba'"},
    };
    struct sv_config c;
    struct sv_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect(&c, cases[i].patch, cases[i].rc, cases[i].message);
    fake_expect(fake_parse_target(&c, dense, "{\"text_config\": \"<del>\"}", &err), SV_EFORMAT,
                &err, "'text_config'", "no text_config");
    fake_expect(fake_parse_target(&c, dense,
                                  "{\"quantization_config\": {\"quant_method\": \"own\"}}", &err),
                SV_EUNSUPPORTED, &err, "(own)", "outside text_config");
    fake_expect(
        fake_parse_target(&c, dense, "{\"architectures\": [\"Qwen4ExpForCausalLM\"]}", &err),
        SV_EUNSUPPORTED, &err, "'Qwen4ExpForCausalLM' is not supported", "another family");
}

/* ---------------------------------------------------------------- checkpoints */

static void names_that_are_skipped_in(const char *dir)
{
    struct sv_ckpt k;
    struct sv_config c;
    struct sv_err err = {0};
    if (sv_config_load(&c, dir, &err) || sv_ckpt_open(&k, dir, &err))
        fail_msg("%s", err.msg);
    assert_non_null(sv_ckpt_find(&k, "mtp.fc.weight"));
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", "published names");
    /* One that begins otherwise is not expected. */
    for (int32_t i = 0; i < k.n_tensors; i++)
        if (!strncmp(k.tensors[i].name, "mtp.", 4))
            ((char *)(uintptr_t)k.tensors[i].name)[2] = 'q'; /* in place in the order */
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH, &err, "'mtq.", "another name");
    sv_ckpt_close(&k);
}

static void names_that_are_skipped(void **state)
{
    (void)state;
    names_that_are_skipped_in("tests/golden/tiny/qwen3_5_bf16");
    names_that_are_skipped_in("tests/golden/tiny/qwen3_5_moe_bf16");
    names_that_are_skipped_in("tests/golden/tiny/qwen3_next_bf16");
    names_that_are_skipped_in("tests/golden/tiny/qwen3_5_vl_moe_bf16");
}

/* Qwen3-VL as published, 8B: text alone, whose layers are Qwen3's. */
static void the_text_of_a_vision_model(void **state)
{
    (void)state;
    static const char vl[] =
        "{\"architectures\": [\"Qwen3VLForConditionalGeneration\"], \"model_type\": \"qwen3_vl\","
        " \"tie_word_embeddings\": false, \"vision_config\": {\"depth\": 27}, \"text_config\":"
        " {\"attention_bias\": false, \"bos_token_id\": 151643, \"eos_token_id\": 151645,"
        " \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 4096,"
        " \"intermediate_size\": 12288, \"max_position_embeddings\": 262144,"
        " \"model_type\": \"qwen3_vl_text\", \"num_attention_heads\": 32,"
        " \"num_hidden_layers\": 36, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06,"
        " \"rope_scaling\": {\"mrope_interleaved\": true, \"mrope_section\": [24, 20, 20],"
        " \"rope_type\": \"default\"}, \"rope_theta\": 5000000, \"vocab_size\": 151936}}";
    struct sv_config c;
    struct sv_err err = {0};
    fake_expect(fake_parse_target(&c, vl, "{}", &err), SV_OK, &err, "", "Qwen3-VL-8B");
    assert_true(c.qk_norm && !c.sliding_window && !c.tie_embeddings && c.rope.theta == 5e6);
    assert_true(c.rot_dim == 128 && c.n_eos == 1 && c.eos_ids[0] == 151645);
    assert_int_equal(sv_config_n_params(&c), 8190735360); /* Qwen3-8B's */
    fake_expect(fake_parse_target(&c, vl,
                                  "{\"text_config\": {\"rope_scaling\": {\"mrope_section\":"
                                  " [24, 20, 10]}}}",
                                  &err),
                SV_EINVAL, &err, "'mrope_section'", "sections");
    fake_expect(fake_parse_target(&c, vl,
                                  "{\"text_config\": {\"rope_scaling\":"
                                  " {\"mrope_interleaved\": false}}}",
                                  &err),
                SV_EUNSUPPORTED, &err, "'mrope_interleaved' false", "not in turn");
}

/* Next as published, and the experts of 3.5. */
static void experts(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    char *text = fake_json(dense, "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"],"
                                  " \"text_config\": {\"intermediate_size\": \"<del>\","
                                  " \"hidden_size\": 2048, \"num_hidden_layers\": 40,"
                                  " \"num_key_value_heads\": 2, \"tie_word_embeddings\": false,"
                                  " \"num_experts\": 256, \"num_experts_per_tok\": 8,"
                                  " \"moe_intermediate_size\": 512,"
                                  " \"shared_expert_intermediate_size\": 512}}");
    fake_expect(fake_parse_target(&c, text, "{}", &err), SV_OK, &err, "", "35B-A3B");
    assert_true(c.norm_topk && !c.gdn_fused); /* which its file does not say */
    assert_int_equal(c.shared_intermediate_size, 512);
    assert_true(fabs((double)sv_config_n_params(&c) / 1e9 - 34.66) < 0.01);
    fake_expect(fake_parse_target(&c, text, "{\"text_config\": {\"norm_topk_prob\": false}}", &err),
                SV_OK, &err, "", "norm_topk_prob");
    assert_true(c.norm_topk); /* renormalised whatever it says */
    fake_expect(fake_parse_target(&c, text, "{\"text_config\": {\"mlp_only_layers\": [1]}}", &err),
                SV_EFORMAT, &err, "'intermediate_size' is missing", "a dense layer");
    sv_free(text);
    static const char next[] =
        "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"hidden_size\": 2048,"
        " \"intermediate_size\": 5120, \"num_hidden_layers\": 48, \"num_attention_heads\": 16,"
        " \"num_key_value_heads\": 2, \"head_dim\": 256, \"vocab_size\": 151936,"
        " \"rope_theta\": 10000000, \"rope_scaling\": null, \"num_experts\": 512}";
    fake_expect(fake_parse_target(&c, next, "{}", &err), SV_OK, &err, "", "Next-80B");
    assert_true(c.gdn_fused && c.norm_topk && c.n_chosen == 10 && c.rot_dim == 64);
    assert_true(fabs((double)sv_config_n_params(&c) / 1e9 - 79.67) < 0.01);
}

/* Small models, one tensor at a time of another shape, missing, or of a type that holds no weights;
 * those of experts: test_packed.c. */
static void tensors_that_do_not_fit(void **state)
{
    (void)state;
    static const char small[] =
        "{\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
        " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 16,"
        " \"vocab_size\": 40, \"full_attention_interval\": 2, \"linear_num_key_heads\": 1,"
        " \"linear_num_value_heads\": 2, \"linear_key_head_dim\": 16,"
        " \"linear_value_head_dim\": 16, \"num_experts\": 3, \"num_experts_per_tok\": 2,"
        " \"moe_intermediate_size\": 12, \"shared_expert_intermediate_size\": 20,"
        " \"rope_parameters\": {\"mrope_section\": null, \"rope_theta\": 1e4}}";
    static const struct {
        bool next; /* else dense */
        const char *name;
        int dim; /* one more of it */
        const char *message;
    } cases[] = {
        {false, "layers.0.linear_attn.in_proj_qkv.weight", 0, "asks for [64, 16]"},
        {false, "layers.0.linear_attn.in_proj_z.weight", 1, "asks for [32, 16]"},
        {false, "layers.0.linear_attn.in_proj_b.weight", 0, "asks for [2, 16]"},
        {false, "layers.0.linear_attn.in_proj_a.weight", 1, "asks for [2, 16]"},
        {false, "layers.0.linear_attn.conv1d.weight", 0, "asks for [64, 1, 4]"},
        {false, "layers.0.linear_attn.conv1d.weight", 1, "asks for [64, 1, 4]"},
        {false, "layers.0.linear_attn.conv1d.weight", 2, "asks for [64, 1, 4]"},
        {false, "layers.0.linear_attn.A_log", 0, "asks for [2]"},
        {false, "layers.0.linear_attn.dt_bias", 0, "asks for [2]"},
        {false, "layers.0.linear_attn.norm.weight", 0, "asks for [16]"},
        {false, "layers.0.linear_attn.out_proj.weight", 1, "asks for [16, 32]"},
        {false, "layers.1.self_attn.q_proj.weight", 0, "asks for [64, 16]"}, /* with the gate */
        {false, "layers.1.self_attn.k_norm.weight", 0, "asks for [16]"},
        {true, "layers.0.linear_attn.in_proj_qkvz.weight", 0, "asks for [96, 16]"},
        {true, "layers.0.linear_attn.in_proj_ba.weight", 0, "asks for [4, 16]"},
        {true, "layers.1.mlp.shared_expert_gate.weight", 0, "asks for [1, 16]"},
        {true, "layers.0.mlp.shared_expert.up_proj.weight", 0, "asks for [20, 16]"},
        {true, "layers.0.mlp.experts.2.down_proj.weight", 1, "asks for [16, 12]"},
    };
    static const char *const extra[] = {"layers.0.linear_attn.in_proj_qkvz.weight",
                                        "layers.1.linear_attn.A_log",
                                        "layers.0.self_attn.q_proj.weight"};
    struct fake_list l;
    struct sv_config c;
    struct sv_err err = {0};
    char inner[1024];
    snprintf(inner, sizeof inner, "{\"text_config\": %s, \"vision_config\": null}", small);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (cases[i].next)
            fake_expect(fake_parse_target(&c, "{\"architectures\": [\"Qwen3NextForCausalLM\"]}",
                                          small, &err),
                        SV_OK, &err, "", small);
        else
            fake_expect(fake_parse_target(&c, dense, inner, &err), SV_OK, &err, "", inner);
        fake_expected(&l, &c, "model.");
        fake_check(&l, &c, SV_OK, "");
        fake_expected(&l, &c, "");
        fake_find(&l, cases[i].name)->dim[cases[i].dim]++;
        fake_check(&l, &c, SV_EMISMATCH, cases[i].name);
        fake_check(&l, &c, SV_EMISMATCH, cases[i].message);
        fake_expected(&l, &c, "");
        fake_find(&l, cases[i].name)->dtype = "I32";
        fake_check(&l, &c, SV_EUNSUPPORTED, cases[i].name);
        fake_expected(&l, &c, "");
        fake_remove(&l, cases[i].name);
        fake_check(&l, &c, SV_EMISMATCH, cases[i].name);
        fake_check(&l, &c, SV_EMISMATCH, "is missing (1 in all)");
    }
    fake_expect(fake_parse_target(&c, dense, inner, &err), SV_OK, &err, "", inner);
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++) {
        fake_expected(&l, &c, "");
        fake_add(&l, extra[i], 16, 16);
        fake_check(&l, &c, SV_EMISMATCH, extra[i]);
    }
}

/* A tensor of random numbers in another form, read back. */
static void forms(void **state)
{
    (void)state;
    enum { NK = 2, R = 2, DK = 16, DV = 32, COLS = 3, NV = NK * R };
    enum { ROWS = 2 * NK * DK + 2 * NV * DV, C = 2 * NK * DK + NV * DV };
    const struct sv_config c = {
        .gdn_k_heads = NK, .gdn_v_heads = NV, .gdn_k_dim = DK, .gdn_v_dim = DV};
    static float x[ROWS * COLS], ba[2 * NV], conv[C * 4];
    struct sv_arena a;
    struct sv_weight w = {0};
    struct sv_err err = {0};
    sv_arena_init(&a);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)i;
    struct sv_host_tensor t = {.dtype = SV_F32,
                               .n_dims = 2,
                               .dim = {ROWS, COLS},
                               .n_elements = ROWS * COLS,
                               .n_bytes = sizeof x,
                               .data = x};
    struct sv_tensor_spec s = {.rows = ROWS, .cols = COLS, .form = SV_FORM_QKVZ};
    assert_int_equal(sv_tensor_convert(&s, &c, &t, &a, &w, &err), SV_OK);
    const int head = 2 * DK + 2 * R * DV; /* rows of a key head in the file */
    for (int row = 0; row < ROWS; row++) {
        int from;
        if (row < 2 * NK * DK) /* q of all heads, then k */
            from = row % (NK * DK) / DK * head + row / (NK * DK) * DK + row % DK;
        else {
            const int v = row - 2 * NK * DK, h = v % (NV * DV) / DV;
            from = h / R * head + 2 * DK + (v / (NV * DV) * R + h % R) * DV + v % DV;
        }
        assert_memory_equal((const float *)w.data + row * COLS, x + from * COLS, COLS * 4);
    }
    for (int i = 0; i < 2 * NV; i++)
        ba[i] = (float)i;
    t = (struct sv_host_tensor){.dtype = SV_F32,
                                .n_dims = 2,
                                .dim = {2 * NV, 1},
                                .n_elements = 2 * NV,
                                .n_bytes = sizeof ba,
                                .data = ba};
    s = (struct sv_tensor_spec){.rows = 2 * NV, .cols = 1, .form = SV_FORM_BA};
    assert_int_equal(sv_tensor_convert(&s, &c, &t, &a, &w, &err), SV_OK);
    static const float want[] = {0, 1, 4, 5, 2, 3, 6, 7};
    assert_memory_equal(w.data, want, sizeof want);
    for (int i = 0; i < C * 4; i++)
        conv[i] = (float)i;
    t = (struct sv_host_tensor){.dtype = SV_F32,
                                .n_dims = 3,
                                .dim = {C, 1, 4},
                                .n_elements = C * 4,
                                .n_bytes = sizeof conv,
                                .data = conv};
    s = (struct sv_tensor_spec){.rows = C, .cols = 4, .form = SV_FORM_CONV};
    assert_int_equal(sv_tensor_convert(&s, &c, &t, &a, &w, &err), SV_OK);
    assert_true(w.rows == 4 && w.cols == C && ((const float *)w.data)[2 * C + 5] == 22);
    /* 1 + w keeps the low bits of a small bf16 number */
    const uint16_t small[2] = {sv_f32_to_bf16(0.001f), sv_f32_to_bf16(-0.5f)};
    t = (struct sv_host_tensor){.dtype = SV_BF16,
                                .n_dims = 1,
                                .dim = {2},
                                .n_elements = 2,
                                .n_bytes = sizeof small,
                                .data = small};
    s = (struct sv_tensor_spec){.rows = 2, .form = SV_FORM_ONE_PLUS};
    assert_int_equal(sv_tensor_convert(&s, &c, &t, &a, &w, &err), SV_OK);
    assert_true(w.fmt.elem == SV_F32 && ((const float *)w.data)[1] == 0.5f &&
                ((const float *)w.data)[0] == 1.0f + sv_bf16_to_f32(small[0]));
    s.form = SV_FORM_DECAY;
    assert_int_equal(sv_tensor_convert(&s, &c, &t, &a, &w, &err), SV_OK);
    assert_true(fabs((double)((const float *)w.data)[1] + exp(-0.5)) < 1e-6);
    sv_arena_fini(&a);
}

SV_TEST_MAIN(cmocka_unit_test(published_sizes), cmocka_unit_test(which_layers_are_recurrent),
             cmocka_unit_test(partial_rotation_has_three_places),
             cmocka_unit_test(unusable_ones_are_refused), cmocka_unit_test(names_that_are_skipped),
             cmocka_unit_test(the_text_of_a_vision_model), cmocka_unit_test(experts),
             cmocka_unit_test(tensors_that_do_not_fit), cmocka_unit_test(forms))
