/*
 * test_gptoss.c - gpt-oss from files: configurations as published and by default, what is refused,
 * the tensors of both kinds of experts, and the expansion of packed experts.
 */
#include "load/fake.h"
#include "testing.h"

#include <math.h>
#include <string.h>

/* config.json of gpt-oss-20b as published. */
static const char gptoss[] =
    "{\"architectures\": [\"GptOssForCausalLM\"], \"attention_bias\": true,"
    " \"attention_dropout\": 0.0, \"eos_token_id\": 200002, \"experts_per_token\": 4,"
    " \"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": 2880,"
    " \"initial_context_length\": 4096, \"initializer_range\": 0.02,"
    " \"intermediate_size\": 2880, \"max_position_embeddings\": 131072,"
    " \"model_type\": \"gpt_oss\", \"num_attention_heads\": 64, \"num_experts_per_tok\": 4,"
    " \"num_hidden_layers\": 24, \"num_key_value_heads\": 8, \"num_local_experts\": 32,"
    " \"output_router_logits\": false, \"pad_token_id\": 199999, \"quantization_config\":"
    " {\"modules_to_not_convert\": [\"model.layers.*.self_attn\", \"model.layers.*.mlp.router\","
    " \"model.embed_tokens\", \"lm_head\"], \"quant_method\": \"mxfp4\"}, \"rms_norm_eps\": 1e-05,"
    " \"rope_scaling\": {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0,"
    " \"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\", \"truncate\": false},"
    " \"rope_theta\": 150000, \"router_aux_loss_coef\": 0.9, \"sliding_window\": 128,"
    " \"swiglu_limit\": 7.0, \"tie_word_embeddings\": false,"
    " \"transformers_version\": \"4.55.0.dev0\", \"use_cache\": true, \"vocab_size\": 201088}";

static const char small[] =
    "{\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"head_dim\": 8,"
    " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 40,"
    " \"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"experts_per_token\": \"<del>\"}";

static void parse(struct sv_config *c, const char *patch)
{
    struct sv_err err = {0};
    fake_expect(fake_parse_target(c, gptoss, patch, &err), SV_OK, &err, "", patch);
}

static void small_config(struct sv_config *c, const char *patch)
{
    struct sv_err err = {0};
    char *text = fake_json(gptoss, small);
    fake_expect(fake_parse_target(c, text, patch, &err), SV_OK, &err, "", patch);
    sv_free(text);
}

static void as_published(void **state)
{
    (void)state;
    struct sv_config c;
    parse(&c, "{}");
    assert_string_equal(sv_arch_name(c.arch), "GptOssForCausalLM");
    assert_int_equal(c.hidden_size, 2880);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.n_experts, 32);
    assert_int_equal(c.n_chosen, 4);
    assert_true(c.expert_limit == 7 && c.mxfp4_experts && c.attention_bias && !c.qk_norm);
    assert_true(c.rope.kind == SV_ROPE_YARN && c.rope.theta == 150000 && c.rope.factor == 32);
    assert_true(c.rope.no_truncate && c.rope.original_max_position == 4096);
    assert_int_equal(c.sliding_window, 128);
    for (int32_t i = 0; i < c.n_layers; i++)
        assert_int_equal(c.layer_kind[i], i % 2 ? SV_LAYER_FULL : SV_LAYER_SLIDING);
    /* the numbers of values that the two models are known to have */
    assert_int_equal(sv_config_n_params(&c), 20914757184);
    parse(&c, "{\"num_hidden_layers\": 36, \"num_local_experts\": 128}");
    assert_int_equal(sv_config_n_params(&c), 116829156672);
}

/* Both layouts, and what transformers' class assumes where the file is silent. */
static void layouts_and_defaults(void **state)
{
    (void)state;
    struct sv_config want, got;
    static const char *const same[] = {
        "{\"rope_scaling\": \"<del>\", \"rope_theta\": \"<del>\", \"rope_parameters\":"
        " {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, \"rope_theta\": 150000.0,"
        " \"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\","
        " \"truncate\": false}}",
        "{\"rope_scaling\": \"<del>\"}",
        "{\"rope_scaling\": null, \"rope_theta\": \"<del>\"}",
        "{\"sliding_window\": \"<del>\", \"swiglu_limit\": \"<del>\", \"rms_norm_eps\": \"<del>\"}",
        "{\"attention_bias\": \"<del>\", \"max_position_embeddings\": \"<del>\"}",
        "{\"experts_per_token\": \"<del>\"}",
        "{\"num_experts_per_tok\": \"<del>\"}",
        "{\"num_experts\": 32}",
        "{\"num_local_experts\": \"<del>\", \"num_experts\": 32}",
        "{\"architectures\": \"<del>\"}",
    };
    parse(&want, "{}");
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        parse(&got, same[i]);
        if (memcmp(&got, &want, sizeof got))
            fail_msg("%s: not the same configuration", same[i]);
    }
    parse(&got, "{\"num_local_experts\": \"<del>\"}");
    assert_int_equal(got.n_experts, 128);
    parse(&got, "{\"swiglu_limit\": 5.5, \"quantization_config\": null}");
    assert_true(got.expert_limit == 5.5f && !got.mxfp4_experts);
    parse(&got, "{\"num_hidden_layers\": 2, \"sliding_window\": 64, \"layer_types\":"
                " [\"full_attention\", \"sliding_attention\"]}");
    assert_int_equal(got.layer_kind[0], SV_LAYER_FULL);
    assert_int_equal(got.layer_kind[1], SV_LAYER_SLIDING);
    assert_int_equal(got.sliding_window, 64);
    /* plain rotary embedding only when the file says so */
    parse(&got, "{\"rope_scaling\": \"<del>\", \"rope_theta\": \"<del>\","
                " \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000.0}}");
    assert_true(got.rope.kind == SV_ROPE_DEFAULT && got.rope.theta == 1000);
}

static void unusable_configurations(void **state)
{
    (void)state;
    static const struct {
        const char *patch;
        int code;
        const char *part;
    } cases[] = {
        {"{\"hidden_act\": \"gelu\"}", SV_EUNSUPPORTED, "'gelu'"},
        {"{\"quantization_config\": {\"quant_method\": \"mxfp8\"}}", SV_EUNSUPPORTED, "(mxfp8)"},
        {"{\"quantization_config\": {\"quant_method\": 3}}", SV_EINVAL,
         "'quant_method' must be a string"},
        {"{\"num_local_experts\": 0}", SV_EINVAL, "'num_local_experts'"},
        {"{\"intermediate_size\": null}", SV_EINVAL, "'intermediate_size' is null"},
        {"{\"num_local_experts\": 1025}", SV_EINVAL, "'num_local_experts'"},
        {"{\"num_experts_per_tok\": 17, \"experts_per_token\": 17}", SV_EINVAL,
         "'num_experts_per_tok'"},
        {"{\"num_experts_per_tok\": 5}", SV_EINVAL,
         "num_experts_per_tok is 5 and experts_per_token 4"},
        {"{\"num_experts\": 8}", SV_EINVAL, "num_experts is 8 and num_local_experts 32"},
        {"{\"num_local_experts\": 3}", SV_EINVAL,
         "num_experts_per_tok 4 is more than num_experts 3"},
        {"{\"swiglu_limit\": 0}", SV_EINVAL, "'swiglu_limit'"},
        {"{\"sliding_window\": 0}", SV_EINVAL, "layer 0 is sliding_attention but no window"},
        {"{\"sliding_window\": null}", SV_EINVAL, "no window is in force"},
        {"{\"hidden_size\": 2888}", SV_EINVAL, "multiples of 32"},
        {"{\"intermediate_size\": 2896}", SV_EINVAL, "multiples of 32"},
        {"{\"mlp_bias\": true}", SV_EUNSUPPORTED, "'mlp_bias'"},
        {"{\"rope_scaling\": {\"rope_type\": \"ntk\"}}", SV_EUNSUPPORTED, "'ntk'"},
        {"{\"head_dim\": \"<del>\"}", SV_EUNSUPPORTED, "head_dim 45"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        int rc = fake_parse_target(&c, gptoss, cases[i].patch, &err);
        fake_expect(rc, cases[i].code, &err, cases[i].part, cases[i].patch);
    }
}

/* The drafts of 20b and 120b (a block of 8, of 10): each fits its target alone. */
static void published_pairs(void **state)
{
    (void)state;
    static const struct {
        const char *target, *draft;
        int64_t n_params;
    } pairs[] = {
        {"{}",
         "{\"block_size\": 8, \"num_target_layers\": 24, \"dflash_config\":"
         " {\"mask_token_id\": 200000, \"target_layer_ids\": [1, 6, 11, 16, 21]}}",
         784767104},
        {"{\"num_hidden_layers\": 36, \"num_local_experts\": 128}",
         "{\"block_size\": 10, \"num_target_layers\": 36, \"dflash_config\":"
         " {\"mask_token_id\": 200000, \"target_layer_ids\": [1, 9, 17, 25, 33]}}",
         784767104},
    };
    char *text = fake_json(
        fake_dflash,
        "{\"attention_bias\": true, \"hidden_size\": 2880, \"intermediate_size\": 7680,"
        " \"head_dim\": 64, \"num_attention_heads\": 64, \"num_key_value_heads\": 8,"
        " \"num_hidden_layers\": 8, \"layer_types\": \"<del>\", \"vocab_size\": 201088,"
        " \"max_position_embeddings\": 131072, \"rope_theta\": 150000, \"rope_scaling\":"
        " {\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0,"
        " \"original_max_position_embeddings\": 4096}}");
    for (int t = 0; t < 2; t++)
        for (int d = 0; d < 2; d++) {
            struct sv_config c;
            struct sv_draft_config k;
            struct sv_err err = {0};
            parse(&c, pairs[t].target);
            fake_expect(fake_parse_draft(&k, text, pairs[d].draft, &err), SV_OK, &err, "", "draft");
            assert_int_equal(sv_draft_config_n_params(&k), pairs[d].n_params);
            assert_true(k.base.attention_bias && !k.base.rope.no_truncate &&
                        !k.base.sliding_window);
            fake_expect(sv_pair_check(&c, &k, &err), t == d ? SV_OK : SV_EMISMATCH, &err,
                        d ? "made for a target of 36 layers, this target has 24"
                          : "made for a target of 24 layers, this target has 36",
                        pairs[d].draft);
        }
    sv_free(text);
}

/* ---------------------------------------------------------------- tensors */

static struct fake_list list;

/* Written out by hand: the test must not trust the table it tests. */
static void add_experts(const struct sv_config *c, int32_t layer)
{
    const int64_t h = c->hidden_size, m = c->intermediate_size, e = c->n_experts;
    const struct fake_tensor plain[] = {
        {"gate_up_proj", "BF16", 3, {e, h, 2 * m}},
        {"down_proj", "BF16", 3, {e, m, h}},
    };
    const struct fake_tensor codes[] = {
        {"gate_up_proj_blocks", "U8", 4, {e, 2 * m, h / 32, 16}},
        {"gate_up_proj_scales", "U8", 3, {e, 2 * m, h / 32}},
        {"down_proj_blocks", "U8", 4, {e, h, m / 32, 16}},
        {"down_proj_scales", "U8", 3, {e, h, m / 32}},
    };
    const struct fake_tensor biases[] = {
        {"gate_up_proj_bias", "BF16", 2, {e, 2 * m}},
        {"down_proj_bias", "BF16", 2, {e, h}},
    };
    const struct {
        const struct fake_tensor *t;
        int n;
    } parts[] = {{c->mxfp4_experts ? codes : plain, c->mxfp4_experts ? 4 : 2}, {biases, 2}};
    for (int p = 0; p < 2; p++)
        for (int i = 0; i < parts[p].n; i++) {
            struct fake_tensor *t = fake_add(&list, "", 1, 1);
            *t = parts[p].t[i];
            snprintf(t->name, sizeof t->name, "model.layers.%d.mlp.experts.%.40s", layer,
                     parts[p].t[i].name);
        }
}

static void make_list(const struct sv_config *c)
{
    const int64_t h = c->hidden_size, q = (int64_t)c->n_heads * c->head_dim;
    const int64_t kv = (int64_t)c->n_kv_heads * c->head_dim;
    const struct {
        const char *name;
        int64_t rows, cols;
    } rows[] = {
        {"self_attn.q_proj.weight", q, h},         {"self_attn.q_proj.bias", q, 0},
        {"self_attn.k_proj.weight", kv, h},        {"self_attn.k_proj.bias", kv, 0},
        {"self_attn.v_proj.weight", kv, h},        {"self_attn.v_proj.bias", kv, 0},
        {"self_attn.o_proj.weight", h, q},         {"self_attn.o_proj.bias", h, 0},
        {"self_attn.sinks", c->n_heads, 0},        {"mlp.router.weight", c->n_experts, h},
        {"mlp.router.bias", c->n_experts, 0},      {"input_layernorm.weight", h, 0},
        {"post_attention_layernorm.weight", h, 0},
    };
    list.n = 0;
    fake_add(&list, "model.embed_tokens.weight", c->vocab_size, h);
    fake_add(&list, "model.norm.weight", h, 0);
    fake_add(&list, "lm_head.weight", c->vocab_size, h);
    for (int32_t l = 0; l < c->n_layers; l++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            char name[96];
            snprintf(name, sizeof name, "model.layers.%d.%s", l, rows[i].name);
            fake_add(&list, name, rows[i].rows, rows[i].cols);
        }
        add_experts(c, l);
    }
}

static int check_list(struct sv_config *c, struct sv_err *err)
{
    struct sv_ckpt k;
    const char *dir = fake_dir("gptoss");
    fake_write(&list, 0, list.n, dir, "model.safetensors");
    assert_int_equal(sv_ckpt_open(&k, dir, err), SV_OK);
    int rc = sv_ckpt_check_target(&k, c, err);
    sv_ckpt_close(&k);
    return rc;
}

#define EXPERTS "model.layers.1.mlp.experts."

static void both_kinds_of_experts_fit(void **state)
{
    (void)state;
    static const char *const patches[] = {"{}", "{\"quantization_config\": null}"};
    for (int i = 0; i < 2; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        small_config(&c, patches[i]);
        make_list(&c);
        fake_expect(check_list(&c, &err), SV_OK, &err, "", patches[i]);
        int64_t n = 0;
        for (int32_t k = 0; k < list.n; k++) {
            const struct fake_tensor *t = &list.t[k];
            int64_t size = strstr(t->name, "_scales") ? 0 : strstr(t->name, "_blocks") ? 2 : 1;
            for (int32_t d = 0; d < t->n_dims; d++)
                size *= t->dim[d];
            n += size;
        }
        assert_int_equal(sv_config_n_params(&c), n);
    }
}

static void wrong_experts_are_named(void **state)
{
    (void)state;
    static const struct {
        bool mxfp4;
        const char *name;
        struct fake_tensor is; /* name "": gone */
        int code;
        const char *part;
    } cases[] = {
        {false,
         EXPERTS "down_proj",
         {.dtype = NULL},
         SV_EMISMATCH,
         "'layers.1.mlp.experts.down_proj' [3, 96, 64] is missing (1 in all)"},
        {false,
         EXPERTS "gate_up_proj",
         {EXPERTS "gate_up_proj", "BF16", 3, {3, 192, 64}},
         SV_EMISMATCH,
         "model.safetensors: tensor 'layers.1.mlp.experts.gate_up_proj' has shape [3, 192, 64], the "
         "configuration asks for [3, 64, 192]"},
        {false,
         EXPERTS "down_proj",
         {EXPERTS "down_proj", "BF16", 3, {3, 64, 96}},
         SV_EMISMATCH,
         "'layers.1.mlp.experts.down_proj' has shape [3, 64, 96]"},
        {false,
         EXPERTS "down_proj",
         {EXPERTS "down_proj", "BF16", 3, {2, 96, 64}},
         SV_EMISMATCH,
         "has shape [2, 96, 64]"},
        {false,
         EXPERTS "down_proj",
         {EXPERTS "down_proj", "I32", 3, {3, 96, 64}},
         SV_EUNSUPPORTED,
         "'layers.1.mlp.experts.down_proj' holds i32"},
        {false,
         "model.layers.1.mlp.router.weight",
         {"model.layers.1.mlp.router.weight", "BF16", 2, {2, 64}},
         SV_EMISMATCH,
         "'layers.1.mlp.router.weight' has shape [2, 64], the configuration asks for [3, 64]"},
        {false,
         "model.layers.1.self_attn.sinks",
         {"model.layers.1.self_attn.sinks", "BF16", 1, {2}},
         SV_EMISMATCH,
         "'layers.1.self_attn.sinks' has shape [2], the configuration asks for [4]"},
        {true,
         EXPERTS "gate_up_proj_scales",
         {.dtype = NULL},
         SV_EMISMATCH,
         "'layers.1.mlp.experts.gate_up_proj_scales' [3, 192, 2] is missing"},
        {true,
         EXPERTS "gate_up_proj_scales",
         {EXPERTS "gate_up_proj_scales", "BF16", 3, {3, 192, 2}},
         SV_EUNSUPPORTED,
         "'layers.1.mlp.experts.gate_up_proj_scales' holds bf16, no MXFP4"},
        {true,
         EXPERTS "down_proj_blocks",
         {EXPERTS "down_proj_blocks", "U8", 4, {3, 96, 2, 16}},
         SV_EMISMATCH,
         "'layers.1.mlp.experts.down_proj_blocks' has shape [3, 96, 2, 16]"},
        {true,
         EXPERTS "down_proj_blocks",
         {EXPERTS "down_proj_blocks", "U8", 3, {3, 64, 48}},
         SV_EMISMATCH,
         "has shape [3, 64, 48]"},
        /* blocks without the configuration's word, and the other way round */
        {true,
         EXPERTS "down_proj_blocks",
         {EXPERTS "down_proj", "BF16", 3, {3, 96, 64}},
         SV_EMISMATCH,
         "'layers.1.mlp.experts.down_proj_blocks' [3, 64, 3, 16] is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        small_config(&c, cases[i].mxfp4 ? "{}" : "{\"quantization_config\": null}");
        make_list(&c);
        if (cases[i].is.name[0])
            *fake_find(&list, cases[i].name) = cases[i].is;
        else
            fake_remove(&list, cases[i].name);
        fake_expect(check_list(&c, &err), cases[i].code, &err, cases[i].part, cases[i].name);
    }
}

/* ---------------------------------------------------------------- expansion */

static struct sv_packed_part all_of(int first, int step, int rows, int cols)
{
    return (struct sv_packed_part){first, step, {0, rows / step}, {0, cols}};
}

/* Every code under every scale, and where the elements of a row come from; of parts likewise. */
static void mxfp4_values_are_exact(void **state)
{
    (void)state;
    enum { E = 2, ROWS = 256, COLS = 64 };
    static const double e2m1[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
    static uint8_t codes[E * ROWS * COLS / 2], scale[E * ROWS * 2];
    static uint16_t out[ROWS / 2 * COLS];
    struct sv_err err = {0};
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t i = 0; i < sizeof scale; i++)
        scale[i] = (uint8_t)(i * 7 % 253);
    struct sv_host_tensor t[] = {
        {.name = "x_blocks", .data = codes},
        {.name = "x_scales", .data = scale, .n_elements = sizeof scale, .file = "f.safetensors"}};
    const struct sv_ckpt ckpt = {.tensors = t, .n_tensors = 2};
    const struct sv_tensor_spec spec = {
        .name = "x_blocks", .pack = SV_PACK_MXFP4, .n_experts = E, .rows = ROWS, .cols = COLS};
    struct sv_packed p;
    assert_int_equal(sv_packed_find(&p, &ckpt, &spec, &err), SV_OK);
    assert_int_equal(sv_packed_dtype(&p), SV_BF16);
    for (int e = 0; e < E; e++)
        for (int first = 0; first < 2; first++) {
            struct sv_packed_part part = all_of(first, 2, ROWS, COLS);
            static uint16_t some[5 * 32];
            sv_packed_expand(&p, e, &part, out);
            part.rows = (struct sv_slice){7, 5};
            part.cols = (struct sv_slice){32, 32};
            sv_packed_expand(&p, e, &part, some);
            for (int r = 0; r < 5; r++)
                assert_memory_equal(some + r * 32, out + (7 + r) * COLS + 32, 64);
            for (int r = 0; r < ROWS / 2; r++)
                for (int c = 0; c < COLS; c++) {
                    const size_t row = (size_t)(e * ROWS + 2 * r + first);
                    const int byte = codes[row * COLS / 2 + (size_t)c / 2];
                    const int code = c % 2 ? byte >> 4 : byte & 15;
                    const double want = ldexp(code & 8 ? -e2m1[code & 7] : e2m1[code & 7],
                                              scale[row * 2 + (size_t)c / 32] - 127);
                    const float got = sv_bf16_to_f32(out[r * COLS + c]);
                    assert_true((double)got == want && !signbit(got) == !(code & 8));
                }
        }
    scale[sizeof scale - 3] = 253;
    fake_expect(sv_packed_find(&p, &ckpt, &spec, &err), SV_EFORMAT, &err,
                "f.safetensors: tensor 'x_scales': scale 1021 is 253", "too large");
    scale[sizeof scale - 3] = 255;
    assert_int_equal(sv_packed_find(&p, &ckpt, &spec, &err), SV_EFORMAT);
}

static void transposed_matrices_are_turned(void **state)
{
    (void)state;
    enum { E = 2, ROWS = 150, COLS = 70 };
    static uint32_t f32[E * COLS * ROWS], out32[ROWS * COLS];
    static uint16_t bf16[E * COLS * ROWS], out16[ROWS * COLS];
    for (uint32_t i = 0; i < E * COLS * ROWS; i++)
        bf16[i] = (uint16_t)(f32[i] = i * 2654435761u);
    const struct sv_host_tensor wide = {.dtype = SV_F32, .data = f32};
    const struct sv_host_tensor narrow = {.dtype = SV_BF16, .data = bf16};
    struct sv_packed p = {.pack = SV_PACK_INPUTS_FIRST, .n = E, .rows = ROWS, .cols = COLS};
    for (int e = 0; e < E; e++)
        for (int step = 1; step <= 2; step++)
            for (int first = 0; first < step; first++) {
                struct sv_packed_part part = all_of(first, step, ROWS, COLS);
                static uint16_t some[9 * 11];
                p.t = &wide;
                sv_packed_expand(&p, e, &part, out32);
                p.t = &narrow;
                sv_packed_expand(&p, e, &part, out16);
                part.rows = (struct sv_slice){31, 9};
                part.cols = (struct sv_slice){50, 11};
                sv_packed_expand(&p, e, &part, some);
                for (int r = 0; r < 9; r++)
                    assert_memory_equal(some + r * 11, out16 + (31 + r) * COLS + 50, 22);
                for (int r = 0; r < ROWS / step; r++)
                    for (int c = 0; c < COLS; c++) {
                        const uint32_t want =
                            f32[(e * COLS + c) * ROWS + first + (ptrdiff_t)r * step];
                        assert_int_equal(out32[r * COLS + c], want);
                        assert_int_equal(out16[r * COLS + c], (uint16_t)want);
                    }
            }
}

SV_TEST_MAIN(cmocka_unit_test(as_published), cmocka_unit_test(layouts_and_defaults),
             cmocka_unit_test(unusable_configurations), cmocka_unit_test(published_pairs),
             cmocka_unit_test(both_kinds_of_experts_fit), cmocka_unit_test(wrong_experts_are_named),
             cmocka_unit_test(mxfp4_values_are_exact),
             cmocka_unit_test(transposed_matrices_are_turned))
