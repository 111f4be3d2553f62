/*
 * test_lossless.c - a drafter never changes a token: every fake and the real draft against drafter
 * none.
 *
 * timeout: 240
 * release: all
 *
 * Random prompts, up to 200, and fewer where a step is expensive; the reference is one sequence at
 * a time, one thread, pages of 16, no drafter. Every other arrangement (drafter, batch 1 to 32,
 * page size, threads, chunk, width, instruction set, dtype, padded and a step ahead or not, greedy
 * or sampled) must give its tokens bit for bit. Sampled text is equal too, because a token's random
 * number depends on (seed, position) only.
 */
#include "testing.h"

#include "engine/families.h"
#include "engine/pictures.h"
#include "engine/run.h"
#include "engine/toy.h"
#include "load/gguf_write.h"

#include <string.h>

enum { N = 200, FEW = 8, MAX_PROMPT = 70, MAX_TOKENS = 24, CONTEXT = 128, VOCAB = RUN_VOCAB };

static const struct run_arrangement arrangements[] = {
    {-1, 32, 1, 2, 64, 0}, {-1, 5, 64, 3, 7, 0},   {0, 1, 16, 1, 512, 0}, {0, 32, 1, 2, 33, 0},
    {1, 3, 16, 2, 5, 0},   {1, 32, 64, 1, 512, 0}, {2, 1, 1, 2, 512, 0},  {2, 17, 16, 3, 11, 0},
    {3, 1, 64, 1, 512, 0}, {3, 8, 16, 2, 19, 0},   {3, 32, 16, 2, 64, 0}, {4, 1, 16, 1, 512, 0},
    {4, 1, 1, 2, 3, 0},    {4, 4, 64, 2, 40, 0},   {4, 32, 16, 3, 64, 0}, {4, 32, 1, 2, 512, 5},
    {4, 2, 16, 2, 512, 2}, {3, 9, 1, 4, 13, 4},
};

/* Where only the weights' format differs from what all arrangements were run with. */
static const struct run_arrangement few_arrangements[] = {
    {-1, 5, 64, 3, 7, 0}, {4, 4, 1, 2, 40, 0}, {4, 1, 16, 1, 512, 0}, {4, 8, 16, 3, 11, 5}};
enum { N_FEW = sizeof few_arrangements / sizeof few_arrangements[0] };

static void arranged(const struct run_arrangement *list, size_t n_list, const struct run_pair *pair,
                     enum sv_isa isa, enum sv_data_type dtype, bool sampled, int n, int32_t vocab)
{
    if (sv_test_brief() && n > FEW)
        n = FEW;
    struct run_case *c = run_cases(n, vocab, MAX_PROMPT, MAX_TOKENS, 42);
    if (strstr(pair->target, "_vl_"))
        pictures_add(c, n, 43);
    else
        run_context(CONTEXT);
    for (int i = 0; i < n && sampled; i++) {
        static const double temperature[] = {0.7, 1.0, 1.5, 0};
        c[i].req.temperature = temperature[i % 4];
        c[i].req.top_k = i % 3 == 0 ? 20 : 0;
        c[i].req.top_p = i % 5 < 2 ? 0.9 : 1;
        c[i].req.min_p = i % 7 == 0 ? 0.05 : 0;
        c[i].req.seed = (uint64_t)i * 1000003;
    }
    const struct run_arrangement plain = {-1, 1, 16, 1, 512, 0};
    struct sv_engine *e = run_open_as(pair, &plain, isa, dtype, NULL);
    struct run_out *ref = run_all(e, c, n);
    sv_engine_close(e);
    struct run_truth t = {c, ref};
    for (size_t i = 0; i < n_list; i++) {
        const struct run_arrangement *a = &list[i];
        if (run_left_out(i))
            continue;
        e = run_open_as(pair, a, isa, dtype, &t);
        struct run_out *out = run_all(e, c, n);
        char what[160];
        snprintf(what, sizeof what,
                 "%s, isa %d %s: drafter %d batch %d page %d threads %d chunk %d width %d",
                 strrchr(pair->target, '/') + 1, (int)isa, dtype == SV_TYPE_F32 ? "f32" : "bf16",
                 a->drafter, a->batch, a->page, a->threads, a->chunk, a->width);
        run_same(ref, out, n, what);
        if (a->drafter == SV_FAKE_RIGHT)
            assert_int_equal(e->accept.n_accepted, e->accept.n_drafted);
        if (a->drafter == SV_FAKE_WRONG)
            assert_int_equal(e->accept.n_accepted, 0);
        if (a->drafter >= 0)
            assert_true(e->accept.n_steps > n);
        run_out_free(out, n);
        sv_engine_close(e);
    }
    run_context(0);
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

static void all_arrangements(const struct run_pair *pair, enum sv_isa isa, enum sv_data_type dtype,
                             bool sampled, int n)
{
    arranged(arrangements, sizeof arrangements / sizeof arrangements[0], pair, isa, dtype, sampled,
             n, VOCAB);
}

static bool lacks(enum sv_isa isa)
{
    struct sv_engine *e = NULL;
    struct sv_err err = {0};
    struct sv_engine_options o = {
        .target_dir = run_dir("tests/golden/tiny/pair_target"), .tuning.isa = isa, .n_threads = 1};
    if (!sv_engine_open(&e, &o, NULL, &err)) {
        sv_engine_close(e);
        return false;
    }
    print_message("left out: %s\n", err.msg);
    return true;
}

static void on(enum sv_isa isa, enum sv_data_type dtype, bool sampled, int n)
{
    if (lacks(isa))
        skip();
    const struct run_pair pair =
        dtype == SV_TYPE_F32 ? (struct run_pair){run_dir("tests/golden/tiny/pair_target"),
                                                 run_dir("tests/golden/tiny/pair_draft_full_b16")}
                             : (struct run_pair){toy_target(&toy_bf16), toy_draft(&toy_bf16)};
    all_arrangements(&pair, isa, dtype, sampled, run_few(n));
}

/* A target with a mixture of experts: rows share some of them. */
static void on_moe(const struct toy *t, enum sv_isa isa, enum sv_data_type dtype, bool sampled,
                   int n)
{
    if (lacks(isa))
        skip();
    const struct run_pair pair = {toy_target(t), toy_draft(t)};
    all_arrangements(&pair, isa, dtype, sampled, run_few(n));
}

/* Tiny targets of other kinds; with recurrent layers, what is kept of a rejected row must not be
 * seen. */
static void on_tiny(const char *target, enum sv_isa isa, enum sv_data_type dtype, bool sampled,
                    int n)
{
    if (lacks(isa))
        skip();
    const struct run_pair pair = toy_pair_of(target);
    all_arrangements(&pair, isa, dtype, sampled, run_few(n));
}

static void greedy_auto_f32(void **state)
{
    (void)state;
    on(SV_ISA_AUTO, SV_TYPE_F32, false, N);
}
static void greedy_auto_bf16(void **state)
{
    (void)state;
    on(SV_ISA_AUTO, SV_TYPE_BF16, false, 100);
}
static void greedy_avx512_bf16(void **state)
{
    (void)state;
    on(SV_ISA_AVX512, SV_TYPE_BF16, false, 40);
}
static void greedy_avx2_bf16(void **state)
{
    (void)state;
    on(SV_ISA_AVX2, SV_TYPE_BF16, false, 30);
}
static void greedy_plain_f32(void **state)
{
    (void)state;
    on(SV_ISA_PLAIN, SV_TYPE_F32, false, 10);
}
static void sampled_auto_f32(void **state)
{
    (void)state;
    on(SV_ISA_AUTO, SV_TYPE_F32, true, 60);
}
static void sampled_auto_bf16(void **state)
{
    (void)state;
    on(SV_ISA_AUTO, SV_TYPE_BF16, true, 40);
}

static void moe_auto_bf16(void **state)
{
    (void)state;
    on_moe(&toy_moe, SV_ISA_AUTO, SV_TYPE_BF16, false, 40);
}
static void moe_auto_f32(void **state)
{
    (void)state;
    on_moe(&toy_moe, SV_ISA_AUTO, SV_TYPE_F32, true, 40);
}
static void moe_avx2_bf16(void **state)
{
    (void)state;
    on_moe(&toy_moe, SV_ISA_AVX2, SV_TYPE_BF16, true, 12);
}
static void moe_plain_f32(void **state)
{
    (void)state;
    on_moe(&toy_moe, SV_ISA_PLAIN, SV_TYPE_F32, false, 8);
}

static void moe_fp8_auto_bf16(void **state)
{
    (void)state;
    on_moe(&toy_moe_fp8, SV_ISA_AUTO, SV_TYPE_BF16, false, 20);
    on_moe(&toy_moe_fp8, SV_ISA_AUTO, SV_TYPE_BF16, true, 10);
}

/* A target in FP8 blocks, FP8 rows and int8: the drafts of the pair it was made from. */
static void on_quantized(enum sv_isa isa, enum sv_data_type dtype, bool sampled, int n)
{
    if (lacks(isa))
        skip();
    const struct run_pair pair = {run_dir("tests/golden/quant/pair_target"),
                                  run_dir("tests/golden/tiny/pair_draft_full_b16")};
    all_arrangements(&pair, isa, dtype, sampled, run_few(n));
}
static void quantized_auto_f32(void **state)
{
    (void)state;
    on_quantized(SV_ISA_AUTO, SV_TYPE_F32, false, 40);
}
static void quantized_auto_bf16(void **state)
{
    (void)state;
    on_quantized(SV_ISA_AUTO, SV_TYPE_BF16, true, 30);
    on_tiny("../gguf/qwen3_q8.gguf", SV_ISA_AUTO, SV_TYPE_BF16, false, 12);
}
/* A directory in FP8, as targets have it: keys and values of the context come of codes. */
static void quantized_draft(void **state)
{
    (void)state;
    struct toy t = toy_bf16;
    t.fp8_draft = true;
    const struct run_pair pair = {toy_target(&t), toy_draft(&t)};
    all_arrangements(&pair, SV_ISA_AUTO, SV_TYPE_BF16, true, run_few(8));
    all_arrangements(&pair, SV_ISA_AUTO, SV_TYPE_F32, false, run_few(4));
}
static void quantized_avx2_bf16(void **state)
{
    (void)state;
    on_quantized(SV_ISA_AVX2, SV_TYPE_BF16, false, 20);
}

static int told(void *user, const struct sv_quantized *t)
{
    (void)user;
    assert_true(t->n_bytes < t->n_bytes_before);
    return SV_OK;
}

/* `pack-quantized` int8, as `salvo convert --to q8` writes it. */
static void on_packed_int8(enum sv_isa isa, enum sv_data_type dtype, bool sampled, int n)
{
    struct toy t = toy_bf16;
    struct sv_err err = {0};
    t.n_heads = 4; /* rows of whole groups */
    char tag[32];
    snprintf(tag, sizeof tag, "int8-%d-%d", (int)isa, (int)dtype);
    const struct run_pair pair = {run_keep(sv_test_tmp(tag)), toy_draft(&t)};
    if (sv_quantize_model(toy_target(&t), SV_CODE_INT8, pair.target, told, NULL, &err))
        fail_msg("%s", err.msg);
    arranged(few_arrangements, N_FEW, &pair, isa, dtype, sampled, n, VOCAB);
}

/* Every other format, of experts too, on models of 64 to 96 tokens: what expands codes gives a row
 * the same bits in a block and alone. */
static void on_formats(enum sv_isa isa, enum sv_data_type dtype, bool sampled, int n)
{
    static const struct {
        const char *path;
        int32_t n_layers; /* as many copies of its first layer */
        bool in_order;
    } models[] = {{"quant/awq", 3, false},
                  {"quant/gptq", 3, false}, /* with act-order */
                  {"quant/gptq", 3, true},
                  {"quant/gptq8_v2", 3, false},
                  {"quant/ct_int4", 3, false},
                  {"quant/ct_mixed", 3, false}, /* FP8 rows; int4 with zero points and act-order */
                  {"quant/ct_nvfp4", 3, false},
                  {"quant/ct_mxfp4", 3, false},
                  {"quant/moe_ct_int4", 3, false}, /* with zero points */
                  {"quant/moe_ct_nvfp4", 3, false},
                  {"quant/moe_modelopt", 3, false},
                  {"quant/moe_awq", 3, false},
                  {"quant/moe_gptq", 3, false},
                  {"quant/moe_gptq_order", 3, false},
                  /* Q4_0, Q4_K, Q5_K, Q6_K, IQ4_NL, Q8_0, MXFP4 */
                  {"gguf/llama_mix.gguf", 0, false},
                  {"gguf/qwen3_moe_mix.gguf", 0, false}};
    if (lacks(isa))
        skip();
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct sv_config c;
        struct sv_err err = {0};
        char path[64];
        snprintf(path, sizeof path, "tests/golden/%s", models[i].path);
        const char *target = models[i].n_layers
                                 ? toy_deeper(path, models[i].n_layers, models[i].in_order)
                                 : run_dir(path);
        const struct run_pair pair = toy_pair_at(target, 1, 0);
        assert_int_equal(sv_config_load(&c, target, &err), SV_OK);
        arranged(few_arrangements, N_FEW, &pair, isa, dtype, sampled, n, c.vocab_size);
    }
    on_packed_int8(isa, dtype, sampled, n);
}
static void formats_auto_bf16(void **state)
{
    (void)state;
    on_formats(SV_ISA_AUTO, SV_TYPE_BF16, false, 8);
}
static void formats_auto_f32(void **state)
{
    (void)state;
    on_formats(SV_ISA_AUTO, SV_TYPE_F32, true, 4);
}
static void formats_avx2_bf16(void **state)
{
    (void)state;
    on_formats(SV_ISA_AVX2, SV_TYPE_BF16, true, 2);
}

/* What `salvo convert` makes of each family: every code of directories and of GGUF. In part: one of
 * each family, and each once. */
static void families_in_every_format(void **state)
{
    static const struct {
        enum sv_quant_code code;
        const char *suffix;
    } formats[] = {{SV_CODE_F8, ""},        {SV_CODE_INT8, ""},      {SV_CODE_INT4, ""},
                   {SV_CODE_MXFP4, ""},     {SV_CODE_INT8, ".gguf"}, {SV_CODE_INT4, ".gguf"},
                   {SV_CODE_MXFP4, ".gguf"}};
    enum { N_FORMATS = sizeof formats / sizeof formats[0] };
    (void)state;
    for (int i = 0; i < TOY_FAMILIES; i++) {
        const struct run_pair made = toy_pair_like(toy_families[i].name, toy_families[i].sizes);
        for (int k = 0; k < N_FORMATS; k++) {
            const bool gguf = *formats[k].suffix,
                       wanted = k == i % (toy_families[i].in_gguf ? 7 : 4);
            struct sv_config c;
            struct sv_err err = {0};
            char name[64];
            if ((gguf && !toy_families[i].in_gguf) || (sv_test_brief() && !wanted))
                continue;
            snprintf(name, sizeof name, "%s-%d%s", toy_families[i].name, k, formats[k].suffix);
            const struct run_pair pair = {run_keep(sv_test_tmp(name)), made.draft};
            if (sv_quantize_model(made.target, formats[k].code, pair.target, told, NULL, &err))
                fail_msg("%s: %s", name, err.msg);
            assert_int_equal(sv_config_load(&c, pair.target, &err), SV_OK);
            arranged(few_arrangements, N_FEW, &pair, SV_ISA_AUTO,
                     (i + k) % 2 ? SV_TYPE_BF16 : SV_TYPE_F32, k % 2, 2, c.vocab_size);
        }
    }
    const struct run_pair published = toy_pair_at(run_dir("tests/golden/tiny/gptoss_mxfp4"), 1, 0);
    arranged(few_arrangements, N_FEW, &published, SV_ISA_AUTO, SV_TYPE_BF16, true, 4, 160);
}

/* Quantized layers below a tower, with images. */
static void images_in_fp8(void **state)
{
    static const char *const names[] = {"qwen3_vl_moe_bf16", "qwen3_5_vl_moe_bf16"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sv_err err = {0};
        char name[64], path[96];
        snprintf(name, sizeof name, "fp8-%s", names[i]);
        snprintf(path, sizeof path, "tests/golden/tiny/%s", names[i]);
        const char *out = run_keep(sv_test_tmp(name));
        if (sv_quantize_model(run_dir(path), SV_CODE_F8, out, told, NULL, &err))
            fail_msg("%s", err.msg);
        const struct run_pair pair = toy_pair_at(out, 0, 0);
        arranged(few_arrangements, N_FEW, &pair, SV_ISA_AUTO, SV_TYPE_BF16, i, 8, VOCAB);
    }
}

/* Q4_K, Q5_K, Q6_K and IQ4_NL in turn, so that parts of a product are of several types. */
static void k_quants_auto_bf16(void **state)
{
    (void)state;
    static const int types[] = {12, 13, 14, 20};
    const char *target = gguf_random(
        "{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_hidden_layers\":3,"
        "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"head_dim\":16,\"hidden_size\":256,"
        "\"intermediate_size\":512,\"vocab_size\":300,\"eos_token_id\":2,\"bos_token_id\":1,"
        "\"max_position_embeddings\":512,\"rope_theta\":10000}",
        types, 4, false);
    if (lacks(SV_ISA_AUTO))
        skip();
    const struct run_pair pair = toy_pair_at(target, 0, 0);
    all_arrangements(&pair, SV_ISA_AUTO, SV_TYPE_BF16, false, run_few(20));
}

/* Activations in int8: another text than exact ones give, and the same with every draft. */
static void int8_auto(void **state)
{
    (void)state;
    run_needs_cpu();
    run_activations(SV_ACTIVATIONS_INT8);
    on_tiny("../gguf/qwen3_q8.gguf", SV_ISA_AUTO, SV_TYPE_BF16, false, 40);
    on_tiny("../gguf/qwen3_q8.gguf", SV_ISA_AUTO, SV_TYPE_F32, true, 20);
    on_tiny("kimi_int4", SV_ISA_AUTO, SV_TYPE_BF16, true, 8);
}
static void int8_avx2(void **state)
{
    (void)state;
    run_needs_cpu();
    run_activations(SV_ACTIVATIONS_INT8);
    on_tiny("../gguf/qwen3_q8.gguf", SV_ISA_AVX2, SV_TYPE_BF16, true, 12);
    on_tiny("../gguf/qwen3_q8.gguf", SV_ISA_PLAIN, SV_TYPE_F32, false, 4);
}

/* Gate and up of one layer are both multiplied with int8, of the other only up is: MXFP4 stays
 * exact. A row's text does not depend on which rows share its experts. */
static void int8_experts(void **state)
{
    (void)state;
    enum { MANY = 12, FEW_IDS = 96 };
    run_needs_cpu();
    struct run_case *c = run_cases(MANY, FEW_IDS, MAX_PROMPT, MAX_TOKENS, 44);
    for (enum sv_isa isa = SV_ISA_AUTO; isa <= SV_ISA_AVX2; isa++) {
        struct run_out *out[2];
        if (lacks(isa))
            continue;
        for (int k = 0; k < 2; k++) {
            const struct sv_engine_options o = {
                .target_dir = run_dir("tests/golden/gguf/qwen3_moe_mix.gguf"),
                .dtype = isa == SV_ISA_PLAIN ? SV_TYPE_F32 : SV_TYPE_BF16,
                .max_sequences = k ? 6 : 1,
                .n_threads = k ? 3 : 1,
                .prefill_chunk = k ? 7 : 512,
                .context = 256,
                .tuning = {.isa = isa, .activations = SV_ACTIVATIONS_INT8}};
            struct sv_engine *e = run_open(&o, NULL);
            out[k] = run_all(e, c, MANY);
            sv_engine_close(e);
        }
        run_same(out[0], out[1], MANY, "experts with activations in int8");
        run_out_free(out[0], MANY);
        run_out_free(out[1], MANY);
    }
    run_cases_free(c, MANY);
}

/* The mode is named where the device is, and its logits differ from exact ones. */
static void int8_and_what_it_changes(void **state)
{
    (void)state;
    enum { MANY = 30 };
    run_needs_cpu();
    struct run_case *c = run_cases(MANY, VOCAB, MAX_PROMPT, MAX_TOKENS, 42);
    struct run_out *out[2];
    for (int k = 0; k < 2; k++) {
        const struct sv_engine_options o = {.target_dir =
                                                run_dir("tests/golden/gguf/qwen3_q8.gguf"),
                                            .tuning.activations = (enum sv_activations)k};
        struct sv_engine *e = run_open(&o, NULL);
        assert_int_equal(strstr(sv_dev_describe(e->dev), ", int8 activations") != NULL, k);
        out[k] = run_all(e, c, MANY);
        sv_engine_close(e);
    }
    int32_t n_same = 0, n_first = 0;
    for (int i = 0; i < MANY; i++) {
        n_first += out[0][i].tokens[0] == out[1][i].tokens[0];
        n_same += out[0][i].n_tokens == out[1][i].n_tokens &&
                  !memcmp(out[0][i].tokens, out[1][i].tokens,
                          (size_t)out[0][i].n_tokens * sizeof *out[0][i].tokens);
    }
    print_message("%d of %d first tokens and %d texts the same in int8\n", n_first, MANY, n_same);
    assert_true(n_first > MANY * 3 / 4 && n_same < MANY);
    for (int k = 0; k < 2; k++)
        run_out_free(out[k], MANY);
    run_cases_free(c, MANY);
}

/* By name, before anything is computed. */
static void activations_that_are_refused(void **state)
{
    (void)state;
    run_needs_cpu();
    const struct {
        const char *dir;
        enum sv_activations type;
        const char *says;
    } cases[] = {{"tests/golden/tiny/pair_target", SV_ACTIVATIONS_INT8, "no weight of"},
                 {"tests/golden/gguf/qwen3_q8.gguf", SV_ACTIVATIONS_FP8, "fp8 is for GPUs"},
                 {"tests/golden/tiny/pair_target", SV_ACTIVATIONS_FP8, "fp8 is for GPUs"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_engine *e = NULL;
        struct sv_err err = {0};
        const struct sv_engine_options o = {.target_dir = run_dir(cases[i].dir),
                                            .device = "cpu",
                                            .n_threads = 1,
                                            .tuning.activations = cases[i].type};
        assert_int_equal(sv_engine_open(&e, &o, NULL, &err), SV_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, cases[i].says));
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* Hopper: dense, and with experts, which stay exact. A model without FP8 weights is refused. */
static void activations_fp8_on_hopper(void **state)
{
    (void)state;
    const char *want = sv_env("SALVO_TEST_DEVICE"),
               *fp8 = "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                      "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],"
                      "\"modules_to_not_convert\":[\"lm_head\"]}}";
    if (!want || strcmp(want, "cuda"))
        skip();
    char changes[512];
    run_activations(SV_ACTIVATIONS_FP8);
    snprintf(changes, sizeof changes, "{\"hidden_size\":384,\"intermediate_size\":640,%s", fp8);
    const struct run_pair dense = toy_pair_like("qwen3_tied_bf16", changes);
    all_arrangements(&dense, SV_ISA_AUTO, SV_TYPE_BF16, false, run_few(24));
    all_arrangements(&dense, SV_ISA_AUTO, SV_TYPE_BF16, true, run_few(12));
    snprintf(changes, sizeof changes,
             "{\"hidden_size\":192,\"moe_intermediate_size\":136,"
             "\"shared_expert_intermediate_size\":136,%s",
             fp8);
    const struct run_pair hybrid = toy_pair_like("qwen3_5_moe_bf16", changes);
    all_arrangements(&hybrid, SV_ISA_AUTO, SV_TYPE_BF16, false, run_few(12));
    run_activations(SV_ACTIVATIONS_EXACT);
    struct sv_engine *e = NULL;
    struct sv_err err = {0};
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/qwen3_odd_bf16"),
                                        .device = "cuda",
                                        .dtype = SV_TYPE_BF16,
                                        .tuning.activations = SV_ACTIVATIONS_FP8};
    assert_int_equal(sv_engine_open(&e, &o, NULL, &err), SV_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "no weight of"));
}

static void on_gptoss(enum sv_isa isa, enum sv_data_type dtype, bool sampled, int n)
{
    if (lacks(isa))
        skip();
    const struct run_pair pair = run_gptoss();
    all_arrangements(&pair, isa, dtype, sampled, run_few(n));
}
static void gptoss_auto_bf16(void **state)
{
    (void)state;
    on_gptoss(SV_ISA_AUTO, SV_TYPE_BF16, false, 40);
}
static void gptoss_auto_f32(void **state)
{
    (void)state;
    on_gptoss(SV_ISA_AUTO, SV_TYPE_F32, true, 33);
}
static void gptoss_avx2_bf16(void **state)
{
    (void)state;
    on_gptoss(SV_ISA_AVX2, SV_TYPE_BF16, true, 12);
}
static void gptoss_plain_f32(void **state)
{
    (void)state;
    on_gptoss(SV_ISA_PLAIN, SV_TYPE_F32, false, 6);
}

/* Caches in fp8: another text than without, and the same with every draft. */
static void fp8_target(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_AUTO);
    on(SV_ISA_AUTO, SV_TYPE_F32, false, 40);
    on(SV_ISA_AUTO, SV_TYPE_BF16, true, 30);
}
static void fp8_auto_bf16(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    on(SV_ISA_AUTO, SV_TYPE_BF16, false, 40);
    on_gptoss(SV_ISA_AUTO, SV_TYPE_BF16, true, 20);
    on_tiny("qwen3_5_bf16", SV_ISA_AUTO, SV_TYPE_BF16, false, 12);
}
static void fp8_latents(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_AUTO);
    on_tiny("deepseek_bf16", SV_ISA_AUTO, SV_TYPE_BF16, true, 12);
    on_tiny("kimi_int4", SV_ISA_AUTO, SV_TYPE_F32, false, 8);
}
static void fp8_avx2(void **state)
{
    (void)state;
    run_needs_cpu();
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    on(SV_ISA_AVX2, SV_TYPE_BF16, true, 20);
    on(SV_ISA_PLAIN, SV_TYPE_F32, false, 8);
}

/* The draft's cache alone changes no token; the target's does, but not much. */
static void fp8_and_what_it_changes(void **state)
{
    (void)state;
    enum { MANY = 40 };
    run_needs_cpu();
    struct run_case *c = run_cases(MANY, VOCAB, MAX_PROMPT, MAX_TOKENS, 42);
    struct run_out *out[3];
    int64_t mib[3];
    double accept[3];
    for (int k = 0; k < 3; k++) {
        struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                      .draft_dir = run_dir("tests/golden/tiny/pair_draft_full_b16"),
                                      .kv_dtype = k == 2 ? SV_KV_FP8 : SV_KV_AUTO,
                                      .draft_kv_dtype = k ? SV_KV_FP8 : SV_KV_AUTO,
                                      .dtype = SV_TYPE_F32};
        struct sv_engine *e = run_open(&o, NULL);
        mib[k] = 0;
        for (int32_t g = 0; g < e->cache.n_groups; g++)
            mib[k] += sv_cache_position_bytes(&e->cache.group[g].d);
        out[k] = run_all(e, c, MANY);
        accept[k] = (double)e->accept.n_accepted / (double)e->accept.n_steps;
        sv_engine_close(e);
    }
    run_same(out[0], out[1], MANY, "a draft with an fp8 cache");
    int32_t n_same = 0;
    for (int i = 0; i < MANY; i++)
        n_same += out[0][i].n_tokens == out[2][i].n_tokens &&
                  !memcmp(out[0][i].tokens, out[2][i].tokens,
                          (size_t)out[0][i].n_tokens * sizeof *out[0][i].tokens);
    print_message(
        "bytes of a position %lld, %lld, %lld; accepted in a step %.2f, %.2f, %.2f; %d of "
        "%d texts the same with a target in fp8\n",
        (long long)mib[0], (long long)mib[1], (long long)mib[2], accept[0], accept[1], accept[2],
        n_same, MANY);
    assert_true(mib[0] > mib[1] && mib[1] > mib[2]);
    assert_true(accept[1] > 0.9 * accept[0] && n_same > MANY / 2);
    for (int k = 0; k < 3; k++)
        run_out_free(out[k], MANY);
    run_cases_free(c, MANY);
}

static void hybrid_auto_f32(void **state)
{
    (void)state;
    on_tiny("qwen3_5_bf16", SV_ISA_AUTO, SV_TYPE_F32, true, 33);
}
static void hybrid_auto_bf16(void **state)
{
    (void)state;
    on_tiny("qwen3_5_bf16", SV_ISA_AUTO, SV_TYPE_BF16, false, 40);
}
static void hybrid_avx2_bf16(void **state)
{
    (void)state;
    on_tiny("qwen3_5_bf16", SV_ISA_AVX2, SV_TYPE_BF16, true, 10);
    on_tiny("qwen3_next_bf16", SV_ISA_AVX2, SV_TYPE_BF16, false, 8);
}
static void hybrid_experts_auto(void **state)
{
    (void)state;
    on_tiny("qwen3_next_bf16", SV_ISA_AUTO, SV_TYPE_F32, true, 16);
    on_tiny("qwen3_5_moe_bf16", SV_ISA_AUTO, SV_TYPE_BF16, false, 20);
}

/* As published: attention, delta rule, routed and shared experts in FP8, experts one by one. */
static void hybrid_fp8_auto_bf16(void **state)
{
    (void)state;
    if (lacks(SV_ISA_AUTO))
        skip();
    const struct run_pair pair =
        toy_pair_like("qwen3_5_moe_bf16",
                      "{\"hidden_size\":192,\"moe_intermediate_size\":136,"
                      "\"shared_expert_intermediate_size\":136,\"quantization_config\":{"
                      "\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\","
                      "\"weight_block_size\":[128,128],\"modules_to_not_convert\":[\"lm_head\"]}}");
    all_arrangements(&pair, SV_ISA_AUTO, SV_TYPE_BF16, false, run_few(12));
}
static void hybrid_plain_f32(void **state)
{
    (void)state;
    on_tiny("qwen3_5_bf16", SV_ISA_PLAIN, SV_TYPE_F32, false, 5);
    on_tiny("qwen3_5_moe_bf16", SV_ISA_PLAIN, SV_TYPE_F32, true, 4);
}

/* Targets with latent attention: one vector of a position, a router in groups, int4 experts. */
static void latent_auto_f32(void **state)
{
    (void)state;
    on_tiny("deepseek_bf16", SV_ISA_AUTO, SV_TYPE_F32, true, 18);
}
static void latent_auto_bf16(void **state)
{
    (void)state;
    on_tiny("deepseek_bf16", SV_ISA_AUTO, SV_TYPE_BF16, false, 12);
    on_tiny("kimi_int4", SV_ISA_AUTO, SV_TYPE_BF16, true, 12);
}
static void latent_avx512_bf16(void **state)
{
    (void)state;
    on_tiny("kimi_int4", SV_ISA_AVX512, SV_TYPE_BF16, false, 8);
}
static void latent_avx2_bf16(void **state)
{
    (void)state;
    on_tiny("kimi_int4", SV_ISA_AVX2, SV_TYPE_BF16, false, 6);
}
static void latent_plain_f32(void **state)
{
    (void)state;
    on_tiny("deepseek_bf16", SV_ISA_PLAIN, SV_TYPE_F32, false, 4);
}

/* Prompts with images among prompts without: the draft's positions are indices, those of the target
 * are not. */
static void images_auto_f32(void **state)
{
    (void)state;
    on_tiny("qwen3_vl_bf16", SV_ISA_AUTO, SV_TYPE_F32, true, 40);
}
static void images_auto_bf16(void **state)
{
    (void)state;
    on_tiny("qwen3_vl_bf16", SV_ISA_AUTO, SV_TYPE_BF16, false, 40);
    on_tiny("qwen3_vl_moe_bf16", SV_ISA_AUTO, SV_TYPE_BF16, true, 20);
}
static void images_avx2_bf16(void **state)
{
    (void)state;
    on_tiny("qwen3_vl_bf16", SV_ISA_AVX2, SV_TYPE_BF16, true, 12);
}
static void images_and_states(void **state)
{
    (void)state;
    on_tiny("qwen3_5_vl_bf16", SV_ISA_AUTO, SV_TYPE_F32, false, 20);
    on_tiny("qwen3_5_vl_bf16", SV_ISA_AUTO, SV_TYPE_BF16, true, 20);
    on_tiny("qwen3_5_vl_moe_bf16", SV_ISA_AUTO, SV_TYPE_BF16, false, 16);
}

/* Those that no case above has. */
static void other_families(void **state)
{
    static const char *const names[] = {"llama", "deepseek_wide"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct run_pair pair = family_pair(family_named(names[i]));
        all_arrangements(&pair, SV_ISA_AUTO, SV_TYPE_BF16, i == 0, i ? 6 : run_few(16));
    }
}

/* A draft with more and wider heads than its target has, and a wider MLP: buffers are made for the
 * larger of both. */
static void a_draft_of_another_shape(void **state)
{
    (void)state;
    struct toy wide = toy_bf16;
    wide.n_heads *= 2;
    wide.head_dim *= 2;
    wide.mlp *= 3;
    struct run_case *c = run_cases(12, VOCAB, MAX_PROMPT, MAX_TOKENS, 42);
    struct run_out *out[2];
    struct sv_engine_options o = {.target_dir = toy_target(&toy_bf16), .max_sequences = 3};
    for (int k = 0; k < 2; k++) {
        o.draft_dir = k ? toy_draft(&wide) : NULL;
        struct sv_engine *e = run_open(&o, NULL);
        out[k] = run_all(e, c, 12);
        assert_int_equal(e->accept.n_steps > 12, k);
        sv_engine_close(e);
    }
    run_same(out[0], out[1], 12, "a draft of another shape");
    run_out_free(out[0], 12), run_out_free(out[1], 12);
    run_cases_free(c, 12);
}

/* As published for larger targets: drafts that see six and eight layers, and sliding ones, of
 * targets with recurrent layers too. */
static void drafts_of_many_taps(void **state)
{
    (void)state;
    for (int32_t n_taps = 6; n_taps <= 8; n_taps += 2) {
        struct toy deep = toy_bf16;
        deep.n_layers = n_taps + 3;
        deep.n_taps = n_taps;
        deep.window = n_taps == 8 ? 12 : 0;
        const struct run_pair pair = {toy_target(&deep), toy_draft(&deep)};
        all_arrangements(&pair, SV_ISA_AUTO, SV_TYPE_BF16, n_taps == 6, run_few(8));
    }
    const struct run_pair hybrid = toy_pair_as("qwen3_5_bf16", 4, 12);
    all_arrangements(&hybrid, SV_ISA_AUTO, SV_TYPE_BF16, true, run_few(8));
}

/* Drafts as published would fit, but for a size that nothing here is made for. */
static void drafts_that_are_too_large(void **state)
{
    (void)state;
    struct toy block = toy_bf16, deep = toy_bf16;
    block.block = 100;
    deep.draft_layers = 33;
    const struct {
        const struct toy *t;
        const char *says;
    } cases[] = {{&block, "block_size 100 is above 64"},
                 {&deep, "33 draft layers; at most 32 are supported"}};
    struct sv_engine_options o = {
        .target_dir = toy_target(&toy_bf16), .device = "cpu", .n_threads = 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_engine *e = NULL;
        struct sv_err err = {0};
        o.draft_dir = toy_draft(cases[i].t);
        assert_int_equal(sv_engine_open(&e, &o, NULL, &err), SV_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, cases[i].says));
        assert_non_null(strstr(err.msg, o.draft_dir));
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(fp8_target), cmocka_unit_test(fp8_auto_bf16),
             cmocka_unit_test(fp8_latents), cmocka_unit_test(fp8_avx2),
             cmocka_unit_test(fp8_and_what_it_changes), cmocka_unit_test(greedy_auto_f32),
             cmocka_unit_test(greedy_auto_bf16), cmocka_unit_test(greedy_avx512_bf16),
             cmocka_unit_test(greedy_avx2_bf16), cmocka_unit_test(greedy_plain_f32),
             cmocka_unit_test(sampled_auto_f32), cmocka_unit_test(sampled_auto_bf16),
             cmocka_unit_test(moe_auto_bf16), cmocka_unit_test(moe_auto_f32),
             cmocka_unit_test(moe_avx2_bf16), cmocka_unit_test(moe_fp8_auto_bf16),
             cmocka_unit_test(moe_plain_f32), cmocka_unit_test(quantized_auto_f32),
             cmocka_unit_test(quantized_auto_bf16), cmocka_unit_test(quantized_draft),
             cmocka_unit_test(quantized_avx2_bf16), cmocka_unit_test(k_quants_auto_bf16),
             cmocka_unit_test(formats_auto_bf16), cmocka_unit_test(formats_auto_f32),
             cmocka_unit_test(formats_avx2_bf16), cmocka_unit_test(families_in_every_format),
             cmocka_unit_test(images_in_fp8), cmocka_unit_test(int8_auto),
             cmocka_unit_test(int8_avx2), cmocka_unit_test(int8_experts),
             cmocka_unit_test(int8_and_what_it_changes),
             cmocka_unit_test(activations_that_are_refused),
             cmocka_unit_test(activations_fp8_on_hopper), cmocka_unit_test(gptoss_auto_bf16),
             cmocka_unit_test(gptoss_auto_f32), cmocka_unit_test(gptoss_avx2_bf16),
             cmocka_unit_test(gptoss_plain_f32), cmocka_unit_test(hybrid_auto_f32),
             cmocka_unit_test(hybrid_auto_bf16), cmocka_unit_test(hybrid_avx2_bf16),
             cmocka_unit_test(hybrid_experts_auto), cmocka_unit_test(hybrid_fp8_auto_bf16),
             cmocka_unit_test(hybrid_plain_f32), cmocka_unit_test(latent_auto_f32),
             cmocka_unit_test(latent_auto_bf16), cmocka_unit_test(latent_avx512_bf16),
             cmocka_unit_test(latent_avx2_bf16), cmocka_unit_test(latent_plain_f32),
             cmocka_unit_test(images_auto_f32), cmocka_unit_test(images_auto_bf16),
             cmocka_unit_test(images_avx2_bf16), cmocka_unit_test(images_and_states),
             cmocka_unit_test(other_families), cmocka_unit_test(a_draft_of_another_shape),
             cmocka_unit_test(drafts_of_many_taps), cmocka_unit_test(drafts_that_are_too_large))
