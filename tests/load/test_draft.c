/* test_draft.c - draft configurations: the rules of docs/checkpoints.md, and the fit of a pair. */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

static void draft_ok(struct sv_draft_config *d, const char *patch)
{
    struct sv_err err = {0};
    fake_expect(fake_parse_draft(d, fake_dflash, patch, &err), SV_OK, &err, "", patch);
}

static void qwen3_8b_draft_as_published(void **state)
{
    (void)state;
    struct sv_draft_config d;
    static const int32_t taps[] = {1, 9, 17, 25, 33};
    draft_ok(&d, "{}");
    assert_true(sv_arch_is_draft(d.base.arch));
    assert_int_equal(d.block_size, 16);
    assert_int_equal(d.mask_id, 151669);
    assert_int_equal(d.n_target_layers, 36);
    assert_int_equal(d.n_taps, 5);
    assert_memory_equal(d.taps, taps, sizeof taps);
    assert_int_equal(d.base.n_layers, 5);
    assert_true(d.base.qk_norm);
    assert_true(d.base.rope.theta == 1e6);
    assert_int_equal(d.base.sliding_window, 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(d.causal[i], 0);
    assert_int_equal(sv_draft_config_n_params(&d), 1048626432);
}

static void known_totals_of_drafts(void **state)
{
    (void)state;
    struct sv_draft_config d;
    draft_ok(&d, "{\"hidden_size\": 2880, \"intermediate_size\": 7680, \"num_attention_heads\": 64,"
                 " \"num_key_value_heads\": 8, \"head_dim\": 64, \"num_hidden_layers\": 8,"
                 " \"layer_types\": \"<del>\", \"attention_bias\": true, \"vocab_size\": 201088,"
                 " \"num_target_layers\": 24, \"block_size\": 8, \"dflash_config\":"
                 " {\"target_layer_ids\": [1, 6, 11, 16, 21], \"mask_token_id\": 200000}}");
    assert_int_equal(sv_draft_config_n_params(&d), 784767104); /* gpt-oss-20b */
    draft_ok(&d,
             "{\"hidden_size\": 7168, \"intermediate_size\": 18432, \"num_attention_heads\": 64,"
             " \"num_hidden_layers\": 6, \"layer_types\": \"<del>\", \"vocab_size\": 163840,"
             " \"num_target_layers\": 61, \"dflash_config\":"
             " {\"target_layer_ids\": [1, 12, 24, 35, 47, 58], \"mask_token_id\": 163838}}");
    assert_int_equal(sv_draft_config_n_params(&d), 3479277056); /* Kimi-K2.5 */
}

static void dflash_config_is_read_before_the_top_level(void **state)
{
    (void)state;
    struct sv_draft_config d;
    draft_ok(&d,
             "{\"block_size\": 99, \"mask_token_id\": 3, \"target_layer_ids\": [2],"
             " \"num_target_layers\": 20, \"dflash_config\": {\"block_size\": 8,"
             " \"mask_token_id\": 4, \"target_layer_ids\": [5, 7], \"num_target_layers\": 30}}");
    assert_int_equal(d.block_size, 8);
    assert_int_equal(d.mask_id, 4);
    assert_int_equal(d.n_taps, 2);
    assert_int_equal(d.taps[0], 5);
    assert_int_equal(d.n_target_layers, 30);
    draft_ok(&d, "{\"dflash_config\": null, \"mask_token_id\": 3, \"target_layer_ids\": [2]}");
    assert_int_equal(d.mask_id, 3);
    assert_int_equal(d.taps[0], 2);
    draft_ok(&d, "{\"mask_token_id\": 3, \"dflash_config\": {\"mask_token_id\": null}}");
    assert_int_equal(d.mask_id, 3);
    /* without "architectures" the dflash_config tells what it is */
    draft_ok(&d, "{\"architectures\": \"<del>\"}");
}

static void default_taps_round_half_to_even(void **state)
{
    (void)state;
    static const struct {
        int32_t n_draft, n_target;
        int32_t taps[8];
    } cases[] = {
        {5, 36, {1, 9, 17, 25, 33}},
        {5, 30, {1, 8, 14, 20, 27}},
        {5, 62, {1, 16, 30, 44, 59}},
        {5, 94, {1, 24, 46, 68, 91}},
        {1, 30, {15}},
        {2, 16, {1, 13}},
        {8, 16, {1, 3, 4, 6, 8, 10, 11, 13}},
        {6, 61, {1, 12, 24, 35, 47, 58}}, /* Kimi-K2.5's published list */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_draft_config d;
        struct sv_err err = {0};
        char patch[256];
        snprintf(patch, sizeof patch,
                 "{\"num_hidden_layers\": %d, \"layer_types\": null, \"num_target_layers\": %d,"
                 " \"dflash_config\": {\"target_layer_ids\": \"<del>\"}}",
                 cases[i].n_draft, cases[i].n_target);
        fake_expect(fake_parse_draft(&d, fake_dflash, patch, &err), SV_OK, &err, "", patch);
        assert_int_equal(d.n_taps, cases[i].n_draft);
        assert_memory_equal(d.taps, cases[i].taps, sizeof d.taps[0] * (size_t)d.n_taps);
        /* the target's depth may come from the caller instead */
        snprintf(patch, sizeof patch,
                 "{\"num_hidden_layers\": %d, \"layer_types\": null, \"num_target_layers\": null,"
                 " \"dflash_config\": {\"target_layer_ids\": \"<del>\"}}",
                 cases[i].n_draft);
        char *text = fake_json(fake_dflash, patch);
        struct sv_draft_config e;
        assert_int_equal(sv_draft_config_parse(&e, text, strlen(text), cases[i].n_target, &err),
                         SV_OK);
        assert_memory_equal(e.taps, d.taps, sizeof d.taps);
        assert_int_equal(e.n_target_layers, 0);
        fake_expect(sv_draft_config_parse(&e, text, strlen(text), 0, &err), SV_EINVAL, &err,
                    "'target_layer_ids'", patch);
        sv_free(text);
    }
}

/* 5 layers, the first and third sliding. */
#define SLIDE                                                                                      \
    "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\","          \
    " \"full_attention\", \"full_attention\"]"

static void check_causal(const char *patch, const char *want)
{
    struct sv_draft_config d;
    draft_ok(&d, patch);
    for (int32_t i = 0; i < d.base.n_layers; i++) {
        if (d.causal[i] != (uint8_t)(want[i] - '0'))
            fail_msg("%s: causal[%d] is %d", patch, i, d.causal[i]);
    }
}

static void causality_follows_the_raw_file(void **state)
{
    (void)state;
    struct sv_draft_config d;
    check_causal("{}", "00000");
    check_causal("{" SLIDE ", \"sliding_window\": 64}", "10100");
    check_causal("{" SLIDE ", \"sliding_window\": 64, \"is_causal\": false}", "00000");
    check_causal("{" SLIDE ", \"sliding_window\": 64, \"is_causal\": true}", "11111");
    check_causal("{" SLIDE ", \"sliding_window\": 64, \"dflash_config\": {\"causal\": true}}",
                 "11111");
    check_causal("{" SLIDE ", \"sliding_window\": 64, \"is_causal\": false,"
                 " \"dflash_config\": {\"causal\": true}}",
                 "00000");
    check_causal("{" SLIDE ", \"sliding_window\": 64, \"is_causal\": null}", "10100");
    check_causal("{\"is_causal\": true}", "11111");
    /* JetSpec's flag */
    check_causal("{\"dflash_config\": {\"causal_head\": true}}", "11111");
    check_causal("{" SLIDE ", \"sliding_window\": 64, \"dflash_config\":"
                 " {\"causal_head\": false}}",
                 "10100");
    check_causal("{\"is_causal\": false, \"dflash_config\": {\"causal_head\": true}}", "00000");
    /* use_sliding_window false does not take the window away, true does not add one */
    draft_ok(&d, "{" SLIDE ", \"sliding_window\": 64, \"use_sliding_window\": false}");
    assert_int_equal(d.base.sliding_window, 64);
    assert_int_equal(d.base.layer_kind[2], SV_LAYER_SLIDING);
    assert_int_equal(d.base.layer_kind[3], SV_LAYER_FULL);
    draft_ok(&d, "{\"sliding_window\": 64, \"use_sliding_window\": true}");
    assert_int_equal(d.base.sliding_window, 0);
    draft_ok(&d, "{\"layer_types\": null, \"max_window_layers\": 0}");
    assert_int_equal(d.base.layer_kind[4], SV_LAYER_FULL);
}

static const struct {
    const char *patch;
    int code;
    const char *part;
} refused[] = {
    /* what a draft must say */
    {"{\"block_size\": \"<del>\"}", SV_EINVAL, "'block_size' is missing"},
    {"{\"block_size\": 1}", SV_EINVAL, "'block_size'"},
    {"{\"block_size\": 64}", SV_OK, ""},
    {"{\"block_size\": 65}", SV_EUNSUPPORTED, "block_size 65 is above 64"},
    {"{\"dflash_config\": {\"block_size\": 256}}", SV_EUNSUPPORTED, "block_size 256 is above 64"},
    {"{\"block_size\": \"16\"}", SV_EINVAL, "'block_size'"},
    {"{\"dflash_config\": {\"mask_token_id\": \"<del>\"}}", SV_EINVAL,
     "'mask_token_id' is missing"},
    {"{\"dflash_config\": {\"mask_token_id\": null, \"mask_token\": \"<|MASK|>\"}}", SV_EINVAL,
     "'mask_token' alone"},
    {"{\"dflash_config\": {\"mask_token_id\": 151936}}", SV_EINVAL, "'mask_token_id'"},
    {"{\"dflash_config\": {\"mask_token_id\": -1}}", SV_EINVAL, "'mask_token_id'"},
    {"{\"rope_theta\": \"<del>\"}", SV_EFORMAT, "'rope_theta' is missing"},
    {"{\"rope_theta\": \"<del>\", \"rope_parameters\": {\"rope_type\": \"default\"}}", SV_EFORMAT,
     "'rope_theta' is missing"},
    {"{\"dflash_config\": 5}", SV_EFORMAT, "'dflash_config'"},
    {"{\"hidden_act\": \"relu\"}", SV_EUNSUPPORTED, "'relu'"},
    {"{\"vocab_size\": \"<del>\"}", SV_EINVAL, "'vocab_size'"},
    {"{\"mlp_bias\": true}", SV_EUNSUPPORTED, "'mlp_bias'"},
    /* taps */
    {"{\"dflash_config\": {\"target_layer_ids\": []}}", SV_EINVAL, "'target_layer_ids'"},
    {"{\"dflash_config\": {\"target_layer_ids\": 3}}", SV_EINVAL, "'target_layer_ids'"},
    {"{\"dflash_config\": {\"target_layer_ids\": [1, 1]}}", SV_EINVAL, "ascending"},
    {"{\"dflash_config\": {\"target_layer_ids\": [9, 1]}}", SV_EINVAL, "1 follows 9"},
    {"{\"dflash_config\": {\"target_layer_ids\": [1, 35]}}", SV_EINVAL, "layer id 35 is above 34"},
    {"{\"dflash_config\": {\"target_layer_ids\": [-1]}}", SV_EINVAL, "[0]"},
    {"{\"dflash_config\": {\"target_layer_ids\": [1.5]}}", SV_EINVAL, "[0]"},
    {"{\"dflash_config\": {\"target_layer_ids\": [99999999999]}}", SV_EINVAL, "[0]"},
    {"{\"num_target_layers\": 3, \"dflash_config\": {\"target_layer_ids\": null}}", SV_EINVAL,
     "3 layers"},
    {"{\"num_target_layers\": 5, \"dflash_config\": {\"target_layer_ids\": null}}", SV_EINVAL,
     "ascending"},
    {"{\"num_target_layers\": 0}", SV_EINVAL, "'num_target_layers'"},
    {"{\"num_hidden_layers\": 33, \"layer_types\": null, \"num_target_layers\": 80,"
     " \"dflash_config\": {\"target_layer_ids\": null}}",
     SV_EUNSUPPORTED, "33 taps are more than 32"},
    /* what would move an argmax */
    {"{\"logit_scale\": 0}", SV_EINVAL, "'logit_scale' must be positive"},
    {"{\"dflash_config\": {\"logit_scale\": -1}}", SV_EINVAL, "'logit_scale' must be positive"},
    {"{\"logit_scale\": \"big\"}", SV_EINVAL, "'logit_scale'"},
    {"{\"logit_scale\": 0.25}", SV_OK, ""},
    /* layers */
    {"{" SLIDE "}", SV_EINVAL, "no positive 'sliding_window'"},
    {"{" SLIDE ", \"sliding_window\": 0}", SV_EINVAL, "no positive 'sliding_window'"},
    {"{" SLIDE ", \"sliding_window\": -5}", SV_EINVAL, "'sliding_window'"},
    {"{\"num_hidden_layers\": 4}", SV_EINVAL, "'layer_types' must list 4"},
    {"{\"layer_types\": null, \"use_sliding_window\": true, \"sliding_window\": 64}", SV_EINVAL,
     "'layer_types' does not say"},
    {"{\"is_causal\": 1}", SV_EINVAL, "'is_causal'"},
    {"{\"dflash_config\": {\"causal\": \"no\"}}", SV_EINVAL, "'causal'"},
    /* dialects */
    {"{\"architectures\": [\"DFlash2DraftModel\"]}", SV_EUNSUPPORTED, "DFlash 2"},
    {"{\"architectures\": [\"DFlashLagunaForCausalLM\"]}", SV_EUNSUPPORTED, "Laguna"},
    {"{\"architectures\": [\"DSparkDraftModel\"]}", SV_EUNSUPPORTED, "DSpark"},
    {"{\"architectures\": [\"DFlashOtherModel\"]}", SV_EUNSUPPORTED, "'DFlashOtherModel'"},
    {"{\"architectures\": [\"Qwen3ForCausalLM\"]}", SV_EUNSUPPORTED, "no DFlash draft"},
    {"{\"architectures\": null, \"dflash_config\": null}", SV_EFORMAT, "no DFlash draft"},
    {"{\"dflash_config\": {\"conv_kernel_size\": 2}}", SV_EUNSUPPORTED, "DFlash 2"},
    {"{\"dflash_config\": {\"selector_rank\": 256}}", SV_EUNSUPPORTED, "DFlash 2"},
    {"{\"selector_top_k\": 16}", SV_EUNSUPPORTED, "DFlash 2"},
    {"{\"dflash_config\": {\"conv_group_size\": 16}}", SV_EUNSUPPORTED,
     "'conv_group_size': DFlash 2"},
    {"{\"architectures\": [\"NemotronDFlashModel\"]}", SV_EUNSUPPORTED, "a Nemotron draft"},
    {"{\"architectures\": [\"MiMoDFlashModel\"]}", SV_EUNSUPPORTED, "a MiMo draft"},
    {"{\"dspark_config\": {}}", SV_EUNSUPPORTED, "'dspark_config': DSpark"},
    {"{\"markov_rank\": 0}", SV_EUNSUPPORTED, "'markov_rank': DSpark"},
    {"{\"dflash_config\": {\"markov_head_rank\": 256}}", SV_EUNSUPPORTED,
     "'markov_head_rank': DSpark"},
    {"{\"enable_confidence_head\": true}", SV_EUNSUPPORTED, "'enable_confidence_head': DSpark"},
    {"{\"enable_confidence_head\": false}", SV_OK, ""},
    {"{\"speculators_config\": {}}", SV_EUNSUPPORTED, "'speculators_config'"},
    {"{\"eagle_aux_hidden_state_layer_ids\": [2]}", SV_EUNSUPPORTED, "an EAGLE-style dialect"},
    {"{\"backbone_rotary_base\": 1e4}", SV_EUNSUPPORTED, "'backbone_rotary_base': a MiMo draft"},
    {"{\"use_aux_hidden_state\": false}", SV_EUNSUPPORTED, "without target features"},
    {"{\"sample_from_anchor\": true}", SV_EUNSUPPORTED, "DSpark"},
    {"{\"sample_from_anchor\": false}", SV_OK, ""},
    {"{\"dflash_config\": {\"projector_type\": \"domino\"}}", SV_EUNSUPPORTED, "Domino"},
    {"{\"dflash_config\": {\"shift_label\": true}}", SV_EUNSUPPORTED, "predict the next token"},
    {"{\"dflash_config\": {\"shift_label\": false}}", SV_OK, ""},
    {"{\"dflash_config\": {\"causal_head\": 1}}", SV_EINVAL, "'causal_head'"},
    {"{\"speculators_model_type\": \"dflash\"}", SV_EUNSUPPORTED, "speculators"},
    {"{\"transformer_layer_config\": {}}", SV_EUNSUPPORTED, "speculators"},
    {"{\"aux_hidden_state_layer_ids\": [1, 17]}", SV_EUNSUPPORTED, "speculators"},
    {"{\"attention_value_scale\": 0.5}", SV_EUNSUPPORTED, "MiMo"},
    {"{\"attention_value_scale\": 1.0}", SV_OK, ""},
    {"{\"partial_rotary_factor\": 0.5}", SV_EUNSUPPORTED, "partial"},
    {"{\"partial_rotary_factor\": 1}", SV_OK, ""},
    {"{\"use_swa\": true, \"swa_window_size\": 128}", SV_EUNSUPPORTED, "MiMo"},
    {"{\"add_swa_attention_sink_bias\": true}", SV_EUNSUPPORTED, "sinks"},
    {"{\"dflash_config\": {\"attention_sink_bias\": true}}", SV_EUNSUPPORTED, "sinks"},
    {"{\"is_neox_style\": false}", SV_EUNSUPPORTED, "interleaved"},
    {"{\"is_neox_style\": true, \"use_aux_hidden_state\": true}", SV_OK, ""},
    {"{\"dflash_config\": {\"input_embedding_scale\": 12.5}}", SV_EUNSUPPORTED, "scaled input"},
    {"{\"dflash_config\": {\"input_embedding_scale\": \"x\"}}", SV_EINVAL, "input_embedding_scale"},
    {"{\"quantization_config\": {\"quant_method\": \"modelopt\"}}", SV_EUNSUPPORTED, "quant_algo"},
    {"{\"draft_vocab_size\": 32000}", SV_EUNSUPPORTED, "draft_vocab_size 32000"},
    {"{\"draft_vocab_size\": 151936}", SV_OK, ""},
    {"{\"target_hidden_size\": 5120}", SV_EUNSUPPORTED, "target_hidden_size 5120"},
    {"{\"target_hidden_size\": 4096}", SV_OK, ""},
    {"{\"dflash_config\": {\"output_multiplier\": -1}}", SV_EINVAL, "'output_multiplier'"},
    {"{\"dflash_config\": {\"output_multiplier\": 0.2, \"final_logit_softcapping\": 20}}", SV_OK,
     ""},
};

static void other_drafts_are_refused_with_the_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct sv_draft_config d;
        struct sv_err err = {0};
        int rc = fake_parse_draft(&d, fake_dflash, refused[i].patch, &err);
        fake_expect(rc, refused[i].code, &err, refused[i].part, refused[i].patch);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void rope_in_both_layouts(void **state)
{
    (void)state;
    struct sv_draft_config a, b;
    draft_ok(&a, "{\"rope_theta\": 150000, \"max_position_embeddings\": 131072, \"rope_scaling\":"
                 " {\"type\": \"yarn\", \"factor\": 32, \"beta_fast\": 32, \"beta_slow\": 1,"
                 " \"original_max_position_embeddings\": 4096, \"truncate\": false}}");
    draft_ok(&b, "{\"rope_theta\": null, \"max_position_embeddings\": 131072, \"rope_parameters\":"
                 " {\"rope_theta\": 150000, \"rope_type\": \"yarn\", \"factor\": 32,"
                 " \"original_max_position_embeddings\": 4096, \"truncate\": false}}");
    assert_memory_equal(&a.base.rope, &b.base.rope, sizeof a.base.rope);
    assert_int_equal(a.base.rope.kind, SV_ROPE_YARN);
    assert_true(a.base.rope.beta_fast == 32 && a.base.rope.beta_slow == 1);
    assert_true(a.base.rope.no_truncate);
    assert_int_equal(a.base.rope.original_max_position, 4096);
}

static void a_pair_fits_or_says_why_not(void **state)
{
    (void)state;
    static const struct {
        const char *target, *draft, *part;
    } cases[] = {
        {"{}", "{}", NULL},
        {"{\"num_hidden_layers\": 28}", "{}", "a target of 36 layers, this target has 28"},
        {"{\"num_hidden_layers\": 34}", "{\"num_target_layers\": null}", "layer id 33 is above 32"},
        {"{\"num_hidden_layers\": 35}", "{\"num_target_layers\": null}", NULL},
        {"{\"hidden_size\": 5120}", "{}", "4096 in the draft, 5120 in the target"},
        {"{\"vocab_size\": 248320}", "{}", "151936 tokens in the draft, 248320 in the target"},
        {"{\"tie_word_embeddings\": true, \"head_dim\": 64}", "{}", NULL},
        {"{}", "{\"num_attention_heads\": 16, \"num_key_value_heads\": 2}", NULL},
        {"{}", "{\"num_hidden_layers\": 32, \"layer_types\": null}", NULL},
        {"{}", "{\"num_hidden_layers\": 33, \"layer_types\": null}",
         "33 draft layers; at most 32 are supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_config t;
        struct sv_draft_config d;
        struct sv_err err = {0};
        assert_int_equal(fake_parse_target(&t, fake_qwen3, cases[i].target, &err), SV_OK);
        draft_ok(&d, cases[i].draft);
        int rc = sv_pair_check(&t, &d, &err);
        assert_true((rc == SV_OK) == (cases[i].part == NULL));
        fake_expect(rc, rc, &err, cases[i].part ? cases[i].part : "", cases[i].target);
    }
}

/* Configurations that did not come from our parser, as on another rank. */
static void a_damaged_pair_is_refused(void **state)
{
    (void)state;
    struct sv_config t;
    struct sv_draft_config good, d;
    struct sv_err err = {0};
    assert_int_equal(fake_parse_target(&t, fake_qwen3, "{}", &err), SV_OK);
    draft_ok(&good, "{}");
    d = good;
    d.block_size = 1;
    fake_expect(sv_pair_check(&t, &d, &err), SV_EINVAL, &err, "block of 1", "block");
    d = good;
    d.block_size = 65;
    fake_expect(sv_pair_check(&t, &d, &err), SV_EUNSUPPORTED, &err, "65 is above 64", "block");
    d = good;
    d.n_taps = 0;
    fake_expect(sv_pair_check(&t, &d, &err), SV_EINVAL, &err, "no target layers", "taps");
    d = good;
    d.taps[1] = d.taps[0];
    fake_expect(sv_pair_check(&t, &d, &err), SV_EINVAL, &err, "ascending", "order");
    d = good;
    d.base.n_kv_heads = 5;
    fake_expect(sv_pair_check(&t, &d, &err), SV_EINVAL, &err, "KV heads", "heads");
    d = good;
    d.base.layer_kind[1] = SV_LAYER_SLIDING;
    fake_expect(sv_pair_check(&t, &d, &err), SV_EINVAL, &err, "layer 1 slides", "window");
    d = good;
    d.mask_id = 151936;
    fake_expect(sv_pair_check(&t, &d, &err), SV_EMISMATCH, &err, "mask token", "mask");
    fake_expect(sv_pair_check(&good.base, &good, &err), SV_EMISMATCH, &err, "a pair is", "arch");
}

static void draft_directories_are_recognised(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool draft;
    } cases[] = {
        {fake_dflash, true},
        {fake_qwen3, false},
        {"{\"architectures\": [\"DFlash2DraftModel\"]}", true},
        {"{\"architectures\": [\"DFlashLagunaForCausalLM\"]}", true},
        {"{\"dflash_config\": {}}", true},
        {"{\"speculators_model_type\": \"dflash\"}", true},
        {"{\"speculators_model_type\": \"eagle3\"}", false},
        {"[]", false},
        {"nonsense", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *dir = fake_dir("kind");
        fake_puts(dir, "config.json", cases[i].text);
        assert_int_equal(sv_dir_is_draft(dir), cases[i].draft);
    }
    assert_false(sv_dir_is_draft("/nonexistent"));
}

static void every_fault_is_survived(void **state)
{
    (void)state;
    char dir[512];
    snprintf(dir, sizeof dir, "%s", fake_dir("draftfault"));
    fake_puts(dir, "config.json", fake_dflash);
    for (int64_t nth = 1;; nth++) {
        struct sv_draft_config d;
        struct sv_err err = {0};
        sv_fault_arm(nth);
        int rc = sv_draft_config_load(&d, dir, 0, &err);
        bool reached = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        assert_int_equal(sv_alloc_live(), 0);
        assert_true(rc == SV_OK || (err.code == rc && strstr(err.msg, "draftfault")));
        if (!reached) {
            assert_int_equal(rc, SV_OK);
            break;
        }
        assert_true(nth < 5000);
    }
    sv_fault_arm(3);
    assert_false(sv_dir_is_draft(dir));
    sv_fault_arm(0);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(qwen3_8b_draft_as_published),
             cmocka_unit_test(known_totals_of_drafts),
             cmocka_unit_test(dflash_config_is_read_before_the_top_level),
             cmocka_unit_test(default_taps_round_half_to_even),
             cmocka_unit_test(causality_follows_the_raw_file),
             cmocka_unit_test(other_drafts_are_refused_with_the_reason),
             cmocka_unit_test(rope_in_both_layouts), cmocka_unit_test(a_pair_fits_or_says_why_not),
             cmocka_unit_test(a_damaged_pair_is_refused),
             cmocka_unit_test(draft_directories_are_recognised),
             cmocka_unit_test(every_fault_is_survived))
