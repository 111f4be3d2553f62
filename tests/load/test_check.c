/* test_check.c - checkpoint against configuration: what fits, and the message when something does
 * not. */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

static struct fake_list list;

static void small_target(struct sv_config *c, const char *base, const char *patch)
{
    struct sv_err err = {0};
    char *text = fake_json(base, fake_small);
    fake_expect(fake_parse_target(c, text, patch, &err), SV_OK, &err, "", patch);
    sv_free(text);
}

static void small_draft(struct sv_draft_config *d, const char *patch)
{
    struct sv_err err = {0};
    char *text = fake_json(fake_dflash, fake_small);
    char *masked = fake_json(text, "{\"dflash_config\": {\"mask_token_id\": 39,"
                                   " \"target_layer_ids\": [1, 3, 4]}}");
    fake_expect(fake_parse_draft(d, masked, patch, &err), SV_OK, &err, "", patch);
    sv_free(masked);
    sv_free(text);
}

static int check_list(struct sv_config *t, const struct sv_draft_config *d, struct sv_err *err)
{
    struct sv_ckpt c;
    const char *dir = fake_dir("check");
    memset(err, 0, sizeof *err);
    fake_write(&list, 0, list.n, dir, "model.safetensors");
    int rc = sv_ckpt_open(&c, dir, err);
    assert_int_equal(rc, SV_OK);
    rc = d ? sv_ckpt_check_draft(&c, d, err) : sv_ckpt_check_target(&c, t, err);
    sv_ckpt_close(&c);
    assert_int_equal(sv_alloc_live(), 0);
    return rc;
}

static void complete_targets_fit(void **state)
{
    (void)state;
    static const struct {
        const char *base, *patch;
    } cases[] = {
        {fake_qwen3, "{}"},
        {fake_qwen3, "{\"tie_word_embeddings\": true}"},
        {fake_qwen3, "{\"attention_bias\": true}"},
        {fake_qwen3, "{\"num_hidden_layers\": 12}"}, /* two-digit layers sort between others */
        {fake_llama, "{}"},
        {fake_llama, "{\"attention_bias\": true, \"mlp_bias\": true}"},
        {fake_llama, "{\"tie_word_embeddings\": true, \"num_key_value_heads\": 2}"},
    };
    static const char *const prefixes[] = {"model.", ""};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t k = 0; k < 2; k++) {
            struct sv_config c;
            struct sv_err err;
            small_target(&c, cases[i].base, cases[i].patch);
            fake_target(&list, &c, prefixes[k]);
            fake_expect(check_list(&c, NULL, &err), SV_OK, &err, "", cases[i].patch);
            fake_add(&list, "model.layers.0.self_attn.rotary_emb.inv_freq", 4, 0);
            fake_expect(check_list(&c, NULL, &err), SV_OK, &err, "", "inv_freq");
        }
    }
}

static void target_faults_are_named(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err;
    small_target(&c, fake_qwen3, "{}");

    fake_target(&list, &c, "model.");
    fake_remove(&list, "model.layers.1.self_attn.k_norm.weight");
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "'layers.1.self_attn.k_norm.weight' [8] is missing (1 in all)", "missing");

    fake_target(&list, &c, "model.");
    fake_find(&list, "model.layers.1.self_attn.q_proj.weight")->dim[0] = 32;
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "'layers.1.self_attn.q_proj.weight' has shape [32, 16], the configuration asks for "
                "[16, 16] (num_attention_heads x head_dim)",
                "shape");

    fake_target(&list, &c, "model.");
    fake_find(&list, "model.norm.weight")->n_dims = 2;
    fake_find(&list, "model.norm.weight")->dim[1] = 1;
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "'norm.weight' has shape [16, 1], the configuration asks for [16]", "dims");

    fake_target(&list, &c, "model.");
    fake_add(&list, "model.layers.2.mlp.up_proj.weight", 24, 16);
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "'layers.2.mlp.up_proj.weight' is not expected", "extra layer");

    fake_target(&list, &c, "model.");
    fake_add(&list, "model.layers.0.self_attn.q_proj.bias", 16, 0);
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "'layers.0.self_attn.q_proj.bias' is not expected: the configuration says there is "
                "no bias",
                "extra bias");

    fake_target(&list, &c, "model.");
    fake_remove(&list, "lm_head.weight");
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "'lm_head.weight' [40, 16] is missing", "no head");

    fake_target(&list, &c, "transformer.");
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err,
                "is missing (24 in all), and 'transformer.embed_tokens.weight' is not expected",
                "renamed");
}

/* A tied model may carry a copy of the head, but only one of the right shape. */
static void a_head_beside_a_tied_embedding(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err;
    small_target(&c, fake_qwen3, "{\"tie_word_embeddings\": true}");
    fake_target(&list, &c, "model.");
    fake_add(&list, "lm_head.weight", 40, 16);
    fake_expect(check_list(&c, NULL, &err), SV_OK, &err, "", "copy");
    fake_find(&list, "lm_head.weight")->dim[0] = 41;
    fake_expect(check_list(&c, NULL, &err), SV_EMISMATCH, &err, "'lm_head.weight' is not expected",
                "wrong copy");
}

static void complete_drafts_fit(void **state)
{
    (void)state;
    struct sv_draft_config d;
    struct sv_err err;
    small_draft(&d, "{}");
    fake_draft(&list, &d, "");
    fake_expect(check_list(NULL, &d, &err), SV_OK, &err, "", "plain");
    fake_draft(&list, &d, "model.");
    fake_add(&list, "rotary_emb.inv_freq", 4, 0);
    fake_expect(check_list(NULL, &d, &err), SV_OK, &err, "", "prefix");
    small_draft(&d,
                "{\"tie_word_embeddings\": true}"); /* Qwen3-4B's draft says so: it means nothing */
    fake_draft(&list, &d, "");
    fake_expect(check_list(NULL, &d, &err), SV_OK, &err, "", "tied");
    small_draft(&d, "{\"attention_bias\": true, \"num_attention_heads\": 4}");
    fake_draft(&list, &d, "");
    fake_expect(check_list(NULL, &d, &err), SV_OK, &err, "", "bias");

    small_draft(&d, "{\"num_hidden_layers\": 1}"); /* the one layer under its alias */
    fake_draft(&list, &d, "");
    for (int32_t i = 0; i < list.n; i++) {
        char rest[96];
        if (!strncmp(list.t[i].name, "layers.0.", 9)) {
            memcpy(rest, list.t[i].name + 9, sizeof rest - 9);
            snprintf(list.t[i].name, sizeof list.t[i].name, "midlayer.%.80s", rest);
        }
    }
    fake_expect(check_list(NULL, &d, &err), SV_OK, &err, "", "midlayer");
}

static void draft_faults_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *add, *part;
    } extras[] = {
        {"layers.0.attention_conv.base_kernel", "it belongs to DFlash 2"},
        {"candidate_selector.predecessor_codebook", "it belongs to DFlash 2"},
        {"markov_head.w1.weight", "it belongs to DSpark"},
        {"confidence_head.proj.weight", "it belongs to DSpark"},
        {"layers.0.self_attn.attention_sink_bias", "sinks"},
        {"prefix_gru.weight_hh_l0", "it belongs to Domino"},
        {"embed_proj.0.weight", "it belongs to Domino"},
        {"d2t", "reduced draft vocabulary"},
        {"t2d", "reduced draft vocabulary"},
        {"layers.0.mlp.up_proj.weight_scale", "quantization_config"},
        {"layers.0.self_attn.k_proj.bias", "there is no bias"},
        {"layers.0.self_attn.gate.weight", "nothing in the configuration"},
    };
    struct sv_draft_config d;
    struct sv_err err;
    small_draft(&d, "{}");
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        fake_draft(&list, &d, "");
        fake_add(&list, extras[i].add, 4, 4);
        fake_expect(check_list(NULL, &d, &err), SV_EMISMATCH, &err, extras[i].part, extras[i].add);
        fake_expect(SV_EMISMATCH, SV_EMISMATCH, &err, extras[i].add, extras[i].add);
    }
    fake_draft(&list, &d, "");
    fake_find(&list, "fc.weight")->dim[1] = 32; /* a missing tap */
    fake_expect(
        check_list(NULL, &d, &err), SV_EMISMATCH, &err,
        "'fc.weight' has shape [16, 32], the configuration asks for [16, 48] (number of taps "
        "x hidden_size)",
        "taps");
    fake_draft(&list, &d, "");
    fake_remove(&list, "hidden_norm.weight");
    fake_remove(&list, "fc.weight");
    fake_expect(check_list(NULL, &d, &err), SV_EMISMATCH, &err,
                "'fc.weight' [16, 48] is missing (2 in all)", "missing");
    small_draft(&d, "{\"attention_bias\": true}");
    fake_draft(&list, &d, "");
    fake_remove(&list, "layers.1.self_attn.o_proj.bias"); /* an early converter dropped biases */
    fake_expect(check_list(NULL, &d, &err), SV_EMISMATCH, &err,
                "'layers.1.self_attn.o_proj.bias' [16] is missing", "bias");
}

static void own_embedding_and_head(void **state)
{
    (void)state;
    struct sv_draft_config d;
    struct sv_err err;
    small_draft(&d, "{}");
    fake_draft(&list, &d, "");
    fake_add(&list, "embed_tokens.weight", 40, 16);
    fake_expect(check_list(NULL, &d, &err), SV_EMISMATCH, &err, "both or neither",
                "embedding only");
    fake_add(&list, "lm_head.weight", 40, 16);
    fake_expect(check_list(NULL, &d, &err), SV_EUNSUPPORTED, &err, "its own embedding and head",
                "both");
    fake_remove(&list, "embed_tokens.weight");
    fake_expect(check_list(NULL, &d, &err), SV_EMISMATCH, &err, "both or neither", "head only");
}

static void a_target_is_no_draft_and_the_other_way_round(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_draft_config d;
    struct sv_err err;
    small_target(&c, fake_qwen3, "{}");
    small_draft(&d, "{}");
    fake_draft(&list, &d, "");
    assert_int_equal(check_list(&c, NULL, &err), SV_EMISMATCH);
    fake_target(&list, &c, "model.");
    assert_true(check_list(NULL, &d, &err) < 0);
    list.n = 0; /* metadata only */
    fake_expect(check_list(NULL, &d, &err), SV_EMISMATCH, &err, "'fc.weight'", "empty");
}

static void mixed_types_are_fine_but_integers_are_not(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err;
    small_target(&c, fake_llama, "{}");
    fake_target(&list, &c, "model.");
    fake_find(&list, "model.norm.weight")->dtype = "F32";
    fake_find(&list, "lm_head.weight")->dtype = "F16";
    fake_expect(check_list(&c, NULL, &err), SV_OK, &err, "", "mixed");
    fake_find(&list, "model.norm.weight")->dtype = "I32";
    fake_expect(check_list(&c, NULL, &err), SV_EUNSUPPORTED, &err,
                "'norm.weight' holds i32, no weights", "integers");
}

static void no_memory_is_reported(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_ckpt k;
    struct sv_err err = {0};
    small_target(&c, fake_llama, "{}");
    fake_target(&list, &c, "model.");
    const char *dir = fake_dir("nomem");
    fake_write(&list, 0, list.n, dir, "model.safetensors");
    assert_int_equal(sv_ckpt_open(&k, dir, &err), SV_OK);
    sv_fault_arm(1);
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_ENOMEM, &err, "memory", "check");
    sv_fault_arm(0);
    sv_ckpt_close(&k);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(complete_targets_fit), cmocka_unit_test(target_faults_are_named),
             cmocka_unit_test(a_head_beside_a_tied_embedding),
             cmocka_unit_test(complete_drafts_fit), cmocka_unit_test(draft_faults_are_named),
             cmocka_unit_test(own_embedding_and_head),
             cmocka_unit_test(a_target_is_no_draft_and_the_other_way_round),
             cmocka_unit_test(mixed_types_are_fine_but_integers_are_not),
             cmocka_unit_test(no_memory_is_reported))
