/*
 * test_packed.c - checkpoints whose experts may lie in the file in several ways: which one it is,
 * and the message when a tensor of them does not fit.
 */
#include "load/fake.h"
#include "testing.h"

#include <string.h>

static const char qwen3_5[] =
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"text_config\":"
    " {\"hidden_size\": 16, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"
    " \"num_key_value_heads\": 1, \"head_dim\": 16, \"vocab_size\": 40, \"num_experts\": 4,"
    " \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 12,"
    " \"shared_expert_intermediate_size\": 24, \"full_attention_interval\": 2,"
    " \"linear_num_key_heads\": 1, \"linear_num_value_heads\": 2, \"linear_key_head_dim\": 16,"
    " \"linear_value_head_dim\": 16}}";
static const char qwen3_vl[] =
    "{\"architectures\": [\"Qwen3VLMoeForConditionalGeneration\"], \"text_config\":"
    " {\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": 40,"
    " \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 12}}";
/* Of a checkpoint whose embedding alone could be quantized: no tensor is. */
static const char quantized[] =
    "{\"text_config\": {\"quantization_config\": {\"quant_method\": \"fp8\","
    " \"weight_block_size\": [128, 128]}}}";

#define EXPERTS "layers.%d.mlp.experts."
static struct fake_list list;

static void parse(struct sv_config *c, const char *base, const char *patch)
{
    struct sv_err err = {0};
    fake_expect(fake_parse_target(c, base, patch, &err), SV_OK, &err, "", patch);
}

static struct fake_tensor *expert_tensor(const char *name, int32_t layer)
{
    char full[96];
    snprintf(full, sizeof full, EXPERTS "%s", layer, name);
    return fake_find(&list, full);
}

/* Exchanges a packed tensor's inputs and outputs. */
static void turn(const char *name, int32_t layer)
{
    struct fake_tensor *t = expert_tensor(name, layer);
    const int64_t kept = t->dim[1];
    t->dim[1] = t->dim[2];
    t->dim[2] = kept;
}

static void turn_all(void)
{
    for (int32_t i = 0; i < 2; i++)
        turn("gate_up_proj", i), turn("down_proj", i);
}

/* The list fits, and its experts are such. */
static void stored(struct sv_config *c, bool packed, bool transposed)
{
    fake_check(&list, c, SV_OK, "");
    assert_int_equal(c->packed_experts, packed);
    assert_true(!packed || c->transposed_experts == transposed);
}

static void tensors_decide(void **state)
{
    (void)state;
    static const char *const sizes[] = {"{}", "{\"text_config\": {\"moe_intermediate_size\": 8}}",
                                        "{\"text_config\": {\"moe_intermediate_size\": 16}}"};
    struct sv_config c, apart;
    for (int i = 0; i < 3; i++) { /* gate and up are square in the second, down is in the third */
        parse(&c, qwen3_vl, sizes[i]);
        apart = c;
        fake_expected(&list, &c, "");
        stored(&c, true, true);
        turn_all();
        stored(&c, true, false);
        turn_all();
        stored(&c, true, true);
        apart.packed_experts = false;
        fake_expected(&list, &apart, "");
        stored(&c, false, false);
        parse(&c, qwen3_5, sizes[i]);
        apart = c;
        fake_expected(&list, &c, "");
        stored(&c, true, false);
        apart.packed_experts = false;
        fake_expected(&list, &apart, "");
        stored(&c, false, false);
    }
}

/* quantization_config alone says nothing about experts. */
static void a_configuration_assumes(void **state)
{
    (void)state;
    struct sv_config plain, c;
    parse(&plain, qwen3_5, "{}");
    assert_true(plain.packed_experts);
    parse(&c, qwen3_5, quantized);
    assert_false(c.packed_experts);
    fake_expected(&list, &plain, "");
    stored(&c, true, false);
    parse(&c, qwen3_vl, quantized);
    plain = c;
    plain.packed_experts = false;
    fake_expected(&list, &plain, "");
    stored(&c, false, false);
}

static void tensors_that_do_not_fit(void **state)
{
    (void)state;
    static const struct {
        const char *config, *name;
        int dim; /* one more of it */
        const char *message;
    } cases[] = {
        {qwen3_5, "layers.0.mlp.experts.gate_up_proj", 0, "asks for [4, 24, 16]"},
        {qwen3_5, "layers.1.mlp.experts.gate_up_proj", 1, "moe_intermediate_size and hidden_size"},
        {qwen3_5, "layers.1.mlp.experts.gate_up_proj", 2, "asks for [4, 24, 16]"},
        {qwen3_5, "layers.0.mlp.experts.down_proj", 0, "asks for [4, 16, 12]"},
        {qwen3_5, "layers.0.mlp.experts.down_proj", 2, "asks for [4, 16, 12]"},
        {qwen3_5, "layers.0.mlp.gate.weight", 0, "num_experts x hidden_size"},
        {qwen3_5, "layers.0.mlp.shared_expert_gate.weight", 0, "asks for [1, 16]"},
        {qwen3_5, "layers.1.mlp.shared_expert_gate.weight", 1, "asks for [1, 16]"},
        {qwen3_5, "layers.1.mlp.shared_expert.gate_proj.weight", 0, "asks for [24, 16]"},
        {qwen3_5, "layers.1.mlp.shared_expert.up_proj.weight", 1, "asks for [24, 16]"},
        {qwen3_5, "layers.0.mlp.shared_expert.down_proj.weight", 1, "asks for [16, 24]"},
        {qwen3_vl, "layers.0.mlp.experts.gate_up_proj", 0, "asks for [4, 16, 24]"},
        {qwen3_vl, "layers.0.mlp.experts.gate_up_proj", 1, "experts x inputs x outputs"},
        {qwen3_vl, "layers.1.mlp.experts.gate_up_proj", 2, "asks for [4, 16, 24]"},
        {qwen3_vl, "layers.0.mlp.experts.down_proj", 0, "asks for [4, 12, 16]"},
        {qwen3_vl, "layers.1.mlp.experts.down_proj", 1, "asks for [4, 12, 16]"},
        {qwen3_vl, "layers.1.mlp.experts.down_proj", 2, "experts x inputs x outputs"},
    };
    struct sv_config c;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        parse(&c, cases[i].config, "{}");
        fake_expected(&list, &c, "");
        fake_find(&list, cases[i].name)->dim[cases[i].dim]++;
        fake_check(&list, &c, SV_EMISMATCH, cases[i].message);
        fake_check(&list, &c, SV_EMISMATCH, cases[i].name);
        fake_expected(&list, &c, "");
        fake_remove(&list, cases[i].name);
        fake_check(&list, &c, SV_EMISMATCH, cases[i].name);
        fake_check(&list, &c, SV_EMISMATCH, "is missing (1 in all)");
        fake_expected(&list, &c, "");
        fake_find(&list, cases[i].name)->dtype = "U8";
        fake_check(&list, &c, SV_EUNSUPPORTED, cases[i].name);
    }
}

/* One tensor inputs first and the other not, one layer packed and the other not, or both at once.
 */
static void layouts_that_are_mixed(void **state)
{
    (void)state;
    struct sv_config c, apart;
    parse(&c, qwen3_vl, "{}");
    fake_expected(&list, &c, "");
    turn("down_proj", 0);
    fake_check(&list, &c, SV_EMISMATCH, "[4, 16, 12], the configuration asks for [4, 12, 16]");
    fake_expected(&list, &c, "");
    turn("gate_up_proj", 1);
    fake_check(&list, &c, SV_EMISMATCH, "[4, 24, 16], the configuration asks for [4, 16, 24]");
    parse(&c, qwen3_5, "{}");
    fake_expected(&list, &c, "");
    turn("gate_up_proj", 0); /* the family has outputs first in all its files */
    fake_check(&list, &c, SV_EMISMATCH, "[4, 16, 24], the configuration asks for [4, 24, 16]");
    apart = c;
    apart.packed_experts = false;
    fake_expected(&list, &apart, "");
    for (int32_t i = 0; i < 4; i++) {
        static const char *const names[] = {"gate", "up", "down"};
        for (int k = 0; k < 3; k++) {
            char name[96];
            snprintf(name, sizeof name, EXPERTS "%d.%s_proj.weight", 1, i, names[k]);
            fake_remove(&list, name);
        }
    }
    fake_check(&list, &c, SV_EMISMATCH, "'layers.1.mlp.experts.0.gate_proj.weight' [12, 16]");
    parse(&c, qwen3_5, "{}");
    fake_expected(&list, &c, "");
    fake_add(&list, "layers.0.mlp.experts.0.gate_proj.weight", 12, 16);
    fake_check(&list, &c, SV_EMISMATCH,
               "'layers.0.mlp.experts.0.gate_proj.weight' is not expected");
}

SV_TEST_MAIN(cmocka_unit_test(tensors_decide), cmocka_unit_test(a_configuration_assumes),
             cmocka_unit_test(tensors_that_do_not_fit), cmocka_unit_test(layouts_that_are_mixed))
