/*
 * test_gguf.c - a GGUF file gives the bits of the directory it was made from: configuration, logits
 * of a prompt in one pass, greedy tokens.
 *
 * The directories are tested against transformers (test_golden.c). What converters change comes
 * back exactly: order of heads, 1 + w, merged and stacked projections, MXFP4's nibbles, keys and
 * values of latents head by head. Experts in fewer bits stay so and give the bits of their values.
 *
 * timeout: 180
 */
#include "testing.h"

#include "engine/run.h"
#include "load/gguf_write.h"
#include "model/model_rig.h"

#include <stdlib.h>
#include <string.h>

enum { N = 150, GREEDY = 40 };

static void same_config(const char *dir, const char *file)
{
    struct sv_config a, b;
    struct sv_err err = {0};
    assert_int_equal(sv_config_load(&a, dir, &err), SV_OK);
    if (sv_config_load(&b, file, &err))
        fail_msg("%s", err.msg);
    a.gdn_fused = a.packed_experts = a.mxfp4_experts = false; /* how they are stored */
    a.kv_by_head = b.kv_by_head;
    a.n_mtp_layers = 0;
    a.norm_topk = b.norm_topk;
    a.stored_dtype = b.stored_dtype;
    a.vision = b.vision; /* no towers, and no positions of images */
    memcpy(a.mrope_section, b.mrope_section, sizeof a.mrope_section);
    assert_memory_equal(&a, &b, sizeof a);
}

static float *logits_of(const char *dir, int32_t n, int32_t *n_vocab)
{
    struct model_rig r;
    int32_t ids[N];
    model_rig_open(&r, dir, SV_ISA_AUTO, 16);
    *n_vocab = r.m.cfg.vocab_size;
    for (int32_t i = 0; i < n; i++)
        ids[i] = (i * 37 + 5) % *n_vocab;
    model_rig_run(&r, ids, 0, n);
    const size_t n_bytes = (size_t)n * (size_t)*n_vocab * sizeof(float);
    float *out = memcpy(malloc(n_bytes), r.logits, n_bytes);
    model_rig_close(&r);
    return out;
}

/* In f32: with bf16 a router's type decides how its input is rounded, and GGUF has F32 routers. */
static void same_tokens(const char *dir, const char *file)
{
    struct run_case *c = run_cases(6, 100, 60, GREEDY, 5);
    struct run_out *out[2];
    for (int k = 0; k < 2; k++) {
        const struct sv_engine_options o = {
            .target_dir = k ? file : dir, .dtype = SV_TYPE_F32, .n_threads = 2};
        struct sv_engine *e = run_open(&o, NULL);
        out[k] = run_all(e, c, 6);
        sv_engine_close(e);
    }
    run_same(out[0], out[1], 6, file);
    run_out_free(out[0], 6);
    run_out_free(out[1], 6);
    run_cases_free(c, 6);
}

static void same_logits(const char *a, const char *b, int32_t n)
{
    int32_t v[2];
    float *x[2] = {logits_of(a, n, &v[0]), logits_of(b, n, &v[1])};
    assert_int_equal(v[0], v[1]);
    for (int32_t i = 0; i < n * v[0]; i++)
        assert_true(x[0][i] - x[0][i] == 0); /* a number */
    assert_memory_equal(x[0], x[1], (size_t)n * (size_t)v[0] * sizeof(float));
    free(x[0]);
    free(x[1]);
}

static void compare_with(const char *dir, const char *file)
{
    same_config(dir, file);
    same_logits(dir, file, N);
    same_tokens(dir, file);
}

static void compare(const char *name)
{
    char path[64];
    run_needs_cpu();
    snprintf(path, sizeof path, "tests/golden/tiny/%s", name);
    const char *dir = run_dir(path);
    compare_with(dir, gguf_of_dir(dir));
}

#define SAME(name)                                                                                 \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        compare(#name);                                                                            \
    }
SAME(qwen3_f32)
SAME(qwen3_moe_f32)
SAME(qwen3_next_bf16)
SAME(qwen3_5_moe_bf16)
SAME(gptoss_mxfp4)
SAME(deepseek_bf16)

/* kv_b in one tensor, sizes of heads under the keys of other families. */
static void deepseek_of_older_converters(void **state)
{
    (void)state;
    run_needs_cpu();
    const char *dir = run_dir("tests/golden/tiny/deepseek_bf16");
    compare_with(dir, gguf_of_dir_old(dir));
}

/* ---------------------------------------------------------------- experts in fewer bits */

#define SIZES                                                                                         \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"vocab_size\":128," \
    "\"eos_token_id\":2,\"bos_token_id\":1,\"max_position_embeddings\":512,\"rope_theta\":10000,"     \
    "\"num_experts_per_tok\":2,"
#define EXPERTS "\"hidden_size\":256,\"num_experts\":4,\"head_dim\":32,"
#define DELTA                                                                                      \
    "\"full_attention_interval\":2,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":16,"       \
    "\"linear_num_key_heads\":1,\"linear_num_value_heads\":2,\"linear_value_head_dim\":32,"        \
    "\"partial_rotary_factor\":0.25,\"shared_expert_intermediate_size\":64,"

enum { Q4_0 = 2, Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20 };
static const int k_types[] = {Q4_K, Q6_K, GGUF_Q8_0, Q5_K, GGUF_MXFP4};
static const int other_types[] = {GGUF_MXFP4, Q4_0, GGUF_Q8_0, IQ4_NL};

/* Experts are kept in their codes. */
static void stay_codes(const char *file)
{
    struct model_rig r;
    model_rig_open(&r, file, SV_ISA_AUTO, 16);
    const struct sv_moe *m = &r.m.stack.layers[1].moe;
    const struct sv_experts *x[] = {&m->gate, &m->up, &m->down};
    for (int k = 0; k < 3; k++)
        for (int32_t e = 0; e < x[k]->n; e++)
            assert_in_range(sv_dev_weight_bytes(r.dev, &x[k]->w[e], 1),
                            (uint64_t)x[k]->rows * (uint64_t)x[k]->cols / 2,
                            (uint64_t)x[k]->rows * (uint64_t)x[k]->cols * 5 / 4);
    model_rig_close(&r);
}

static void codes_are_their_values(const char *config, const int *types, int n_types)
{
    run_needs_cpu();
    const char *codes = gguf_random(config, types, n_types, false);
    const char *values = gguf_random(config, types, n_types, true);
    stay_codes(codes);
    same_logits(codes, values, 40);
    same_tokens(codes, values);
}
#define CODES(name, types, config)                                                                 \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        codes_are_their_values(config, types, sizeof(types) / sizeof(types)[0]);                   \
    }
CODES(codes_of_qwen3moe, k_types,
      "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"norm_topk_prob\":true," SIZES EXPERTS
      "\"intermediate_size\":256,\"moe_intermediate_size\":256}")
CODES(codes_of_qwen3next, k_types,
      "{\"architectures\":[\"Qwen3NextForCausalLM\"]," SIZES EXPERTS DELTA
      "\"moe_intermediate_size\":256}")
CODES(codes_of_qwen35moe, k_types,
      "{\"architectures\":[\"Qwen3_5MoeForConditionalGeneration\"],\"text_config\":{" SIZES EXPERTS
          DELTA "\"moe_intermediate_size\":256}}")
CODES(codes_of_gptoss, other_types,
      "{\"architectures\":[\"GptOssForCausalLM\"]," SIZES EXPERTS "\"intermediate_size\":96}")
CODES(codes_of_deepseek2, k_types,
      "{\"architectures\":[\"DeepseekV3ForCausalLM\"]," SIZES
      "\"hidden_size\":256,\"intermediate_size\":256,\"moe_intermediate_size\":256,"
      "\"n_routed_experts\":4,\"n_group\":2,\"topk_group\":1,\"first_k_dense_replace\":1,"
      "\"q_lora_rank\":256,\"kv_lora_rank\":256,\"qk_rope_head_dim\":16,\"qk_nope_head_dim\":32,"
      "\"v_head_dim\":32}")

SV_TEST_MAIN(cmocka_unit_test(qwen3_f32), cmocka_unit_test(qwen3_moe_f32),
             cmocka_unit_test(qwen3_next_bf16), cmocka_unit_test(qwen3_5_moe_bf16),
             cmocka_unit_test(gptoss_mxfp4), cmocka_unit_test(deepseek_bf16),
             cmocka_unit_test(deepseek_of_older_converters), cmocka_unit_test(codes_of_qwen3moe),
             cmocka_unit_test(codes_of_qwen3next), cmocka_unit_test(codes_of_qwen35moe),
             cmocka_unit_test(codes_of_gptoss), cmocka_unit_test(codes_of_deepseek2))
