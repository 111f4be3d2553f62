/*
 * test_tensors.c - the table of tensors: names with layers and experts, parameter counts against a
 * closed formula, and families that are a row of the table and nothing else.
 */
#include "load/fake.h"
#include "testing.h"

#include "load/impl.h"

#include <string.h>

static const struct sv_tensor_row moe_tensors[] = {
    {"embed_tokens.weight", SV_ROLE_EMBED, SV_DIM_VOCAB, SV_DIM_HIDDEN, SV_ALWAYS, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.gate.weight", SV_ROLE_ROUTER, SV_DIM_HEAD, SV_DIM_HIDDEN, SV_ALWAYS,
     SV_SHARD_NONE},
    {"layers.{layer}.mlp.experts.{expert}.up_proj.weight", SV_ROLE_EXPERT_UP, SV_DIM_INTER,
     SV_DIM_HIDDEN, SV_ALWAYS, SV_SHARD_ROWS},
    {"layers.{layer}.mlp.experts.{expert}.down_proj.weight", SV_ROLE_EXPERT_DOWN, SV_DIM_HIDDEN,
     SV_DIM_INTER, SV_ALWAYS, SV_SHARD_COLS},
    {"norm.weight", SV_ROLE_FINAL_NORM, SV_DIM_HIDDEN, SV_DIM_NONE, SV_ALWAYS, SV_SHARD_NONE},
    {0},
};

/* A Llama-like family by another name, and one with experts. */
#define SV_TEST_ARCH_ROWS                                                                          \
    {.architecture = "MadeUpForCausalLM",                                                          \
     .model_type = "made_up",                                                                      \
     .rope_theta = 10000,                                                                          \
     .max_position = 512,                                                                          \
     .rms_eps = 1e-6,                                                                              \
     .tie_embeddings = true,                                                                       \
     .tensors = target_tensors},                                                                   \
        {.architecture = "MadeUpMoeForCausalLM",                                                   \
         .model_type = "made_up_moe",                                                              \
         .rope_theta = 10000,                                                                      \
         .max_position = 512,                                                                      \
         .rms_eps = 1e-6,                                                                          \
         .tensors = moe_tensors},
#include "load/arch.c" /* its functions stand for the library's here */

static void small(struct sv_config *c, const char *base, const char *patch)
{
    struct sv_err err = {0};
    char *text = fake_json(base, fake_small);
    fake_expect(fake_parse_target(c, text, patch, &err), SV_OK, &err, "", patch);
    sv_free(text);
}

/* ---------------------------------------------------------------- counting */

static int64_t layer_params(const struct sv_config *c)
{
    int64_t h = c->hidden_size, q = (int64_t)c->n_heads * c->head_dim;
    int64_t kv = (int64_t)c->n_kv_heads * c->head_dim, inter = c->intermediate_size;
    int64_t n = 2 * q * h + 2 * kv * h + 2 * h + 3 * inter * h;
    if (c->qk_norm)
        n += 2 * (int64_t)c->head_dim;
    if (c->attention_bias)
        n += q + 2 * kv + h;
    if (c->mlp_bias)
        n += 2 * inter + h;
    return n;
}

static void counts_are_the_formula(void **state)
{
    (void)state;
    struct sv_rng rng = {.state = 5};
    for (int i = 0; i < 64; i++) {
        struct sv_config c = {.hidden_size = 1 + (int32_t)sv_rng_below(&rng, 20000),
                              .intermediate_size = 1 + (int32_t)sv_rng_below(&rng, 90000),
                              .n_layers = 1 + (int32_t)sv_rng_below(&rng, SV_MAX_LAYERS),
                              .n_heads = 1 + (int32_t)sv_rng_below(&rng, 128),
                              .n_kv_heads = 1 + (int32_t)sv_rng_below(&rng, 128),
                              .head_dim = 1 + (int32_t)sv_rng_below(&rng, 256),
                              .vocab_size = 1 + (int32_t)sv_rng_below(&rng, 300000),
                              .tie_embeddings = i & 1,
                              .attention_bias = i & 2,
                              .mlp_bias = i & 4,
                              .qk_norm = i & 8};
        const int64_t h = c.hidden_size, layers = c.n_layers * layer_params(&c);
        assert_int_equal(sv_config_n_params(&c),
                         (c.tie_embeddings ? 1 : 2) * (int64_t)c.vocab_size * h + h + layers);
        struct sv_draft_config d = {.base = c, .n_taps = 1 + i % SV_MAX_TAPS};
        d.base.arch = sv_arch_index(sv_arch_dflash());
        assert_int_equal(sv_draft_config_n_params(&d), h * d.n_taps * h + 2 * h + layers);
    }
}

/* ---------------------------------------------------------------- names */

static void numbers_take_their_places(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *want;
    } cases[] = {{"norm.weight", "norm.weight"},
                 {"layers.{layer}.q", "layers.12.q"},
                 {"{layer}", "12"},
                 {"layers.{layer}.experts.{expert}.up", "layers.12.experts.345.up"},
                 {"{expert}.{layer}.{expert}", "345.12.345"},
                 {"{lay}.{", "{lay}.{"}};
    char name[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sv_tensor_name(name, sizeof name, cases[i].pattern, 12, 345);
        assert_string_equal(name, cases[i].want);
    }
}

struct seen {
    char text[1024];
    int n, stop_at;
};

static int see(void *user, const struct sv_tensor_spec *s)
{
    struct seen *k = user;
    const size_t n = strlen(k->text);
    snprintf(k->text + n, sizeof k->text - n, "%s %d/%d %lldx%lld r%d s%d\n", s->name, s->layer,
             s->expert, (long long)s->rows, (long long)s->cols, (int)s->role, (int)s->shard);
    return ++k->n == k->stop_at ? 7 : SV_OK;
}

/* Layer by layer, and in a layer expert by expert of each row. */
static void experts_are_named(void **state)
{
    (void)state;
    struct sv_config c;
    struct seen k = {.stop_at = 0}, first = {.stop_at = 3};
    char want[1024];
    small(&c, fake_llama,
          "{\"architectures\": [\"MadeUpMoeForCausalLM\"], \"num_hidden_layers\": 2}");
    c.n_experts = 2;
    assert_int_equal(sv_config_each_tensor(&c, 0, see, &k), SV_OK);
    const int h = c.hidden_size, m = c.intermediate_size;
    int n = snprintf(want, sizeof want, "embed_tokens.weight -1/-1 %dx%d r%d s%d\n", c.vocab_size,
                     h, SV_ROLE_EMBED, SV_SHARD_ROWS);
    for (int l = 0; l < 2; l++) {
        n += snprintf(want + n, sizeof want - (size_t)n,
                      "layers.%d.mlp.gate.weight %d/-1 %dx%d r%d s%d\n", l, l, c.head_dim, h,
                      SV_ROLE_ROUTER, SV_SHARD_NONE);
        for (int e = 0; e < 2; e++)
            n += snprintf(want + n, sizeof want - (size_t)n,
                          "layers.%d.mlp.experts.%d.up_proj.weight %d/%d %dx%d r%d s%d\n", l, e, l,
                          e, m, h, SV_ROLE_EXPERT_UP, SV_SHARD_ROWS);
        for (int e = 0; e < 2; e++)
            n += snprintf(want + n, sizeof want - (size_t)n,
                          "layers.%d.mlp.experts.%d.down_proj.weight %d/%d %dx%d r%d s%d\n", l, e,
                          l, e, h, m, SV_ROLE_EXPERT_DOWN, SV_SHARD_COLS);
    }
    snprintf(want + n, sizeof want - (size_t)n, "norm.weight -1/-1 %dx0 r%d s%d\n", h,
             SV_ROLE_FINAL_NORM, SV_SHARD_NONE);
    assert_string_equal(k.text, want);
    assert_int_equal(sv_config_each_tensor(&c, 0, see, &first), 7);
    assert_int_equal(first.n, 3);
}

/* ---------------------------------------------------------------- a family is a row */

static struct fake_list list;

static int check_list(struct sv_config *c, struct sv_err *err)
{
    struct sv_ckpt k;
    const char *dir = fake_dir("family");
    fake_write(&list, 0, list.n, dir, "model.safetensors");
    assert_int_equal(sv_ckpt_open(&k, dir, err), SV_OK);
    int rc = sv_ckpt_check_target(&k, c, err);
    sv_ckpt_close(&k);
    return rc;
}

static void a_family_is_a_row(void **state)
{
    (void)state;
    struct sv_config c;
    struct sv_err err = {0};
    small(&c, fake_llama,
          "{\"architectures\": [\"MadeUpForCausalLM\"], \"attention_bias\": true,"
          " \"tie_word_embeddings\": \"<del>\"}");
    assert_string_equal(sv_arch_name(c.arch), "MadeUpForCausalLM");
    assert_true(c.attention_bias && !c.qk_norm && !c.mlp_bias);
    assert_true(c.tie_embeddings); /* the row's default */
    fake_target(&list, &c, "model.");
    fake_expect(check_list(&c, &err), SV_OK, &err, "", "all tensors");
    fake_remove(&list, "model.layers.0.self_attn.q_proj.bias");
    assert_int_equal(check_list(&c, &err), SV_EMISMATCH);
    assert_non_null(strstr(err.msg, "layers.0.self_attn.q_proj.bias"));

    char *text = fake_json(fake_llama, fake_small);
    assert_int_equal(fake_parse_target(&c, text, "{\"mlp_bias\": true}", &err), SV_OK);
    assert_int_equal(
        fake_parse_target(&c, text, "{\"architectures\": [\"OtherForCausalLM\"]}", &err),
        SV_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "KimiK25ForConditionalGeneration, MadeUpForCausalLM, "
                                    "MadeUpMoeForCausalLM"));
    sv_free(text);
}

SV_TEST_MAIN(cmocka_unit_test(counts_are_the_formula), cmocka_unit_test(numbers_take_their_places),
             cmocka_unit_test(experts_are_named), cmocka_unit_test(a_family_is_a_row))
