/*
 * test_rank_families.c - what test_ranks.c proves, for the families whose layers are divided in
 * ways of their own: packed experts and sinks, gated delta rules, latent attention, quantized
 * weights, experts shared out whole.
 *
 * timeout: 120
 */
#include "testing.h"

#include "engine/ranked.h"
#include "engine/toy.h"

#include <string.h>

/* Sizes that 2 and 4 ranks divide, not always evenly. */
static struct run_pair gptoss(void)
{
    return toy_pair_like(
        "gptoss_mxfp4",
        "{\"vocab_size\": 300, \"intermediate_size\": 160, \"sliding_window\": 24, \"num_hidden_layers\": 3, "
        "\"hidden_size\": 64}");
}

static struct run_pair qwen3_5(void)
{
    return toy_pair_like("qwen3_5_bf16", "{\"vocab_size\": 300, \"linear_num_key_heads\": 4, "
                                         "\"linear_num_value_heads\": 8, \"num_hidden_layers\": 3, "
                                         "\"layer_types\": [\"linear_attention\", "
                                         "\"full_attention\", \"linear_attention\"]}");
}

/* Fused projections. */
static struct run_pair qwen3_next(void)
{
    return toy_pair_like("qwen3_next_bf16",
                         "{\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 12, "
                         "\"num_attention_heads\": 4, \"num_key_value_heads\": 1, "
                         "\"moe_intermediate_size\": 72, "
                         "\"shared_expert_intermediate_size\": 40}");
}

/* The same in FP8: heads and parts of experts are whole blocks of 128. */
static struct run_pair qwen3_next_fp8(void)
{
    return toy_pair_like(
        "qwen3_next_bf16",
        "{\"hidden_size\": 128, \"head_dim\": 128, \"num_key_value_heads\": 2, "
        "\"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, "
        "\"moe_intermediate_size\": 256, \"shared_expert_intermediate_size\": 256, "
        "\"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", "
        "\"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128], "
        "\"modules_to_not_convert\": [\"lm_head\"]}}");
}

/* All experts in one tensor, gate and up in halves. */
static struct run_pair qwen3_5_moe(void)
{
    return toy_pair_like("qwen3_5_moe_bf16",
                         "{\"vocab_size\": 300, \"linear_num_key_heads\": 4, "
                         "\"linear_num_value_heads\": 4, \"moe_intermediate_size\": 40}");
}

static struct run_pair deepseek(void)
{
    return toy_pair_like("deepseek_bf16",
                         "{\"num_attention_heads\": 4, \"num_key_value_heads\": 4}");
}

static const struct run_arrangement arrangements[] = {
    {-1, 5, 4, 2, 7, 0}, {3, 4, 16, 1, 19, 0}, {4, 6, 1, 2, 33, 0}};

static void run(struct run_pair pair, enum sv_data_type dtype, bool mixed, int32_t tp, int32_t n,
                bool ep)
{
    ranked_lossless(&(struct ranked){&pair, dtype, mixed, {.n = tp, .ep = ep}, n}, arrangements,
                    sizeof arrangements / sizeof arrangements[0]);
}

static void lossless(struct run_pair pair, enum sv_data_type dtype, bool mixed, int32_t tp,
                     int32_t n)
{
    run(pair, dtype, mixed, tp, n, false);
}

static void packed_experts(void **state)
{
    (void)state;
    lossless(gptoss(), SV_TYPE_BF16, true, 2, 5);
    lossless(gptoss(), SV_TYPE_F32, false, ranked_most(4), 4);
}

static void delta_rules(void **state)
{
    (void)state;
    lossless(qwen3_5(), SV_TYPE_BF16, true, 2, 4);
    lossless(qwen3_next(), SV_TYPE_BF16, false, ranked_most(4), 4);
    lossless(qwen3_5_moe(), SV_TYPE_F32, false, 2, 3);
}

static void latents(void **state)
{
    (void)state;
    lossless(deepseek(), SV_TYPE_BF16, true, 2, 5);
    lossless(deepseek(), SV_TYPE_F32, false, ranked_most(4), 4);
}

/* Experts shared out whole, in numbers that differ: packed in MXFP4, in halves, apart in int4. */
static void experts_by_number(void **state)
{
    (void)state;
    run(gptoss(), SV_TYPE_BF16, true, ranked_most(4), 4, true);
    run(qwen3_5_moe(), SV_TYPE_F32, false, 2, 3, true);
    if (ranked_most(3) == 3) /* its heads */
        run((struct run_pair){run_dir("tests/golden/tiny/kimi_int4"), NULL}, SV_TYPE_BF16, false, 3,
            5, true);
}

/* States are restored, and taken back, on every rank. */
static void snapshots(void **state)
{
    (void)state;
    const struct run_pair pair = qwen3_5();
    ranked_together(&(struct ranked){&pair, SV_TYPE_BF16, false, {.n = 2}, 4}, true);
}

/* A prompt that goes on from an answer finds the state that a step kept, on every rank: the answer
 * is that of an engine that keeps nothing. */
static void answers_go_on(void **state)
{
    enum { N = 66 }; /* states fade: at once behind the 64 */
    int32_t prompt[N];
    (void)state;
    const struct run_pair pair = qwen3_5();
    struct sv_engine_options o = {.target_dir = pair.target,
                                  .draft_dir = pair.draft,
                                  .context = 256,
                                  .n_threads = 1,
                                  .page_size = 4,
                                  .tp = 2};
    const struct sv_engine_tuning tuning = {.compare_ranks = true};
    struct run_case *c = run_cases(1, RUN_VOCAB, 20, 150, 8),
                    next = {.prompt = prompt, .n_prompt = N, .max_tokens = 24};
    struct run_out *out[2];
    for (int keeps = 0; keeps < 2; keeps++) {
        o.no_prefix_cache = !keeps;
        struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
        struct run_out *first = run_all(e, c, 1);
        assert_in_range(N, c->n_prompt + 1, c->n_prompt + first->n_tokens);
        memcpy(prompt, c->prompt, (size_t)c->n_prompt * sizeof *prompt);
        memcpy(prompt + c->n_prompt, first->tokens, (size_t)(N - c->n_prompt) * sizeof *prompt);
        next.req = c->req;
        out[keeps] = run_all(e, &next, 1);
        run_out_free(first, 1);
        sv_engine_close(e);
    }
    assert_true(out[1]->n_cached > c->n_prompt && !out[0]->n_cached);
    run_same(out[0], out[1], 1, "from a state that a step kept");
    run_out_free(out[0], 1);
    run_out_free(out[1], 1);
    run_cases_free(c, 1);
    assert_int_equal(sv_alloc_live(), 0);
}

static void no_memory(void **state)
{
    (void)state;
    const struct run_pair pair[] = {gptoss(), qwen3_next(), deepseek()};
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        const struct sv_engine_options o = {.device = "cpu",
                                            .target_dir = pair[i].target,
                                            .context = 64,
                                            .n_threads = 1,
                                            .tp = 2,
                                            .ep = i == 1};
        ranked_no_memory(&o, 4);
    }
}

static void close_to_one(void **state)
{
    (void)state;
    const struct run_pair grown[] = {gptoss(), qwen3_5(), qwen3_next(), qwen3_5_moe(), deepseek()};
    for (size_t i = 0; i < sizeof grown / sizeof grown[0]; i++) {
        ranked_close(&grown[i], 300, (struct run_ranks){.n = 4});
        if (i != 1) /* it has no experts */
            ranked_close(&grown[i], 300, (struct run_ranks){.n = 2 + 2 * (i % 2 == 0), .ep = true});
    }
    const struct run_pair codes = qwen3_next_fp8();
    ranked_close(&codes, 300, (struct run_ranks){.n = 2});
    static const struct {
        const char *name;
        int32_t vocab, n;
    } tiny[] = {{"gptoss_f32", 131, 2},      {"gptoss_bf16", 300, 4},
                {"qwen3_next_bf16", 300, 2}, {"qwen3_5_bf16", 320, 2},
                {"deepseek_bf16", 300, 3},   {"deepseek_plain_f32", 131, 2}};
    for (size_t i = 0; i < sizeof tiny / sizeof tiny[0]; i++) {
        char dir[64];
        snprintf(dir, sizeof dir, "tests/golden/tiny/%s", tiny[i].name);
        const struct run_pair pair = {run_dir(dir), NULL};
        ranked_close(&pair, tiny[i].vocab, (struct run_ranks){.n = tiny[i].n});
    }
}

SV_TEST_MAIN(cmocka_unit_test(packed_experts), cmocka_unit_test(delta_rules),
             cmocka_unit_test(latents), cmocka_unit_test(experts_by_number),
             cmocka_unit_test(snapshots), cmocka_unit_test(answers_go_on),
             cmocka_unit_test(no_memory), cmocka_unit_test(close_to_one))
