/*
 * test_golden.c - every layer's hidden state, final norm and logits against transformers, in f32.
 *
 * The prompt runs in one pass and again in pieces; both must match the golden file to 1e-4 and each
 * other bit for bit. Greedy continuations of 48 tokens must be equal ids.
 */
#include "testing.h"

#include "engine/run.h"
#include "golden.h"
#include "model/model_rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void close_to(const char *what, int layer, int32_t row, const float *a, const float *b,
                     size_t n)
{
    double e = golden_rel_err(a, b, n);
    if (!(e < 1e-4))
        fail_msg("%s %d row %d: relative error %.3g", what, layer, row, e);
}

static void check_prompt(struct model_rig *r, struct golden *g, int p)
{
    const struct sv_config *c = &r->m.cfg;
    size_t n, n_rows, k, h = (size_t)c->hidden_size, v = (size_t)c->vocab_size;
    size_t layers = (size_t)c->n_layers;
    const int32_t *ids = golden_get(g, "I32", &n, "p%d.input_ids", p);
    const int32_t *rows = golden_get(g, "I32", &n_rows, "p%d.rows", p);
    sv_cache_release(&r->cache, 0);
    model_rig_run(r, ids, 0, (int32_t)n);
    for (size_t i = 0; i < n_rows; i++) {
        size_t at = (size_t)rows[i];
        assert_true(at < n);
        for (size_t l = 1; l <= layers; l++) {
            const float *want = golden_get(g, "F32", &k, "p%d.r%d", p, (int)l);
            close_to("layer", (int)l, rows[i], r->taps + (at * layers + l - 1) * h, want + i * h,
                     h);
        }
        const float *norm = golden_get(g, "F32", &k, "p%d.final_norm", p);
        close_to("final norm", 0, rows[i], r->out + at * h, norm + i * h, h);
        const float *logits = golden_get(g, "F32", &k, "p%d.logits", p);
        close_to("logits", 0, rows[i], r->logits + at * v, logits + i * v, v);
    }
    /* The same prompt in pieces of 1, 2, 3, ... rows gives the same bits. */
    float *once = malloc(n * v * 4);
    memcpy(once, r->logits, n * v * 4);
    sv_cache_release(&r->cache, 0);
    for (int32_t at = 0, piece = 1; at < (int32_t)n; at += piece++)
        model_rig_run(r, ids + at, at, piece < (int32_t)n - at ? piece : (int32_t)n - at);
    assert_memory_equal(once, r->logits, n * v * 4);
    free(once);
}

/* dir: a directory or a GGUF file. */
static void check_dir(const char *dir, const char *file, enum sv_isa isa, int32_t page_size)
{
    struct golden g = golden_open(file);
    struct model_rig r;
    model_rig_open(&r, run_dir(dir), isa, page_size);
    int n_prompts = atoi(golden_meta(&g, "n_prompts"));
    assert_true(n_prompts > 0);
    for (int p = 0; p < n_prompts; p++)
        check_prompt(&r, &g, p);
    model_rig_close(&r);

    /* Greedy ids through the whole engine. */
    struct sv_engine_options o = {.target_dir = run_dir(dir), .dtype = SV_TYPE_F32, .n_threads = 2};
    struct sv_engine *e = run_open(&o, NULL);
    for (int p = 0; p < n_prompts; p++) {
        size_t n, m;
        const int32_t *ids = golden_get(&g, "I32", &n, "p%d.input_ids", p);
        const int32_t *want = golden_get(&g, "I32", &m, "p%d.greedy_ids", p);
        struct run_case c = {.prompt = (int32_t *)(uintptr_t)ids,
                             .n_prompt = (int32_t)n,
                             .max_tokens = (int32_t)m,
                             .req = {.top_p = 1, .ignore_eos = true}};
        struct run_out *out = run_all(e, &c, 1);
        assert_int_equal(out->n_tokens, m);
        assert_memory_equal(out->tokens, want, m * 4);
        run_out_free(out, 1);
    }
    sv_engine_close(e);
    golden_close(&g);
}

static bool has(enum sv_isa isa)
{
    struct sv_dev *dev = NULL;
    struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1, .tuning.isa = isa};
    if (sv_dev_open(&dev, &o, NULL))
        return false;
    sv_dev_close(dev);
    return true;
}

static void every_isa(const char *dir, const char *file)
{
    static const int32_t pages[] = {16, 1, 64, 16, 16};
    struct sv_engine_options where = {0};
    run_device(&where);
    if (strcmp(where.device, "cpu")) {
        for (int i = 0; i < 3; i++)
            check_dir(dir, file, SV_ISA_AUTO, pages[i]);
        return;
    }
    for (int isa = SV_ISA_AUTO; isa <= SV_ISA_AMX; isa++)
        if (has((enum sv_isa)isa))
            check_dir(dir, file, (enum sv_isa)isa, pages[isa]);
        else
            print_message("instruction set %d is not on this machine\n", isa);
}

#define GOLDEN_TEST(name) MODEL_TEST(name, "tiny/" #name, "tiny/" #name)
#define MODEL_TEST(name, model, golden)                                                            \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        every_isa("tests/golden/" model, golden ".golden.safetensors");                            \
    }
GOLDEN_TEST(qwen3_f32)
GOLDEN_TEST(qwen3_odd_bf16)
GOLDEN_TEST(qwen3_tied_bf16)
GOLDEN_TEST(llama_bias_f16)
GOLDEN_TEST(llama_rope3_bf16)
GOLDEN_TEST(qwen3_moe_f32)
GOLDEN_TEST(qwen3_moe_bf16)
GOLDEN_TEST(gptoss_f32)
GOLDEN_TEST(gptoss_bf16)
GOLDEN_TEST(gptoss_dequantized)
GOLDEN_TEST(pair_target)
MODEL_TEST(gguf_f32_in_two_shards, "gguf/llama_f32-00001-of-00002.gguf", "tiny/llama_rope3_bf16")
MODEL_TEST(gguf_q8_0, "gguf/qwen3_q8.gguf", "gguf/qwen3_q8")
MODEL_TEST(gguf_of_many_types, "gguf/llama_mix.gguf", "gguf/llama_mix")
MODEL_TEST(gguf_qwen3_moe, "gguf/qwen3_moe.gguf", "tiny/qwen3_moe_f32")
MODEL_TEST(gguf_qwen35, "gguf/qwen35_mix.gguf", "gguf/qwen35_mix")
MODEL_TEST(gguf_experts_of_many_types, "gguf/qwen3_moe_mix.gguf", "gguf/qwen3_moe_mix")
MODEL_TEST(gguf_deepseek2, "gguf/deepseek2.gguf", "tiny/deepseek_bf16")
MODEL_TEST(fp8_block, "quant/fp8_block", "quant/fp8_block")
MODEL_TEST(ct_fp8_tensor, "quant/ct_fp8_tensor", "quant/ct_fp8_tensor")
MODEL_TEST(ct_int8, "quant/ct_int8", "quant/ct_int8")
MODEL_TEST(ct_int4, "quant/ct_int4", "quant/ct_int4")
MODEL_TEST(ct_mixed, "quant/ct_mixed", "quant/ct_mixed")
MODEL_TEST(ct_nvfp4, "quant/ct_nvfp4", "quant/ct_nvfp4")
MODEL_TEST(ct_mxfp4, "quant/ct_mxfp4", "quant/ct_mxfp4")
MODEL_TEST(modelopt_nvfp4, "quant/modelopt_nvfp4", "quant/modelopt_nvfp4")
MODEL_TEST(awq, "quant/awq", "quant/awq")
MODEL_TEST(gptq, "quant/gptq", "quant/gptq")
MODEL_TEST(gptq8_v2, "quant/gptq8_v2", "quant/gptq8_v2")
MODEL_TEST(moe_ct_int4, "quant/moe_ct_int4", "quant/moe_ct_int4")
MODEL_TEST(moe_ct_nvfp4, "quant/moe_ct_nvfp4", "quant/moe_ct_nvfp4")
MODEL_TEST(moe_modelopt, "quant/moe_modelopt", "quant/moe_modelopt")
MODEL_TEST(moe_awq, "quant/moe_awq", "quant/moe_awq")
MODEL_TEST(moe_gptq, "quant/moe_gptq", "quant/moe_gptq")
MODEL_TEST(moe_gptq_order, "quant/moe_gptq_order", "quant/moe_gptq_order")
GOLDEN_TEST(qwen3_5_bf16)
GOLDEN_TEST(qwen3_next_bf16)
GOLDEN_TEST(qwen3_5_moe_bf16)
GOLDEN_TEST(qwen3_vl_bf16)
GOLDEN_TEST(qwen3_vl_moe_bf16)
GOLDEN_TEST(qwen3_5_vl_bf16)
GOLDEN_TEST(qwen3_5_vl_moe_bf16)
GOLDEN_TEST(deepseek_bf16)
GOLDEN_TEST(deepseek_plain_f32)
GOLDEN_TEST(kimi_int4)
MODEL_TEST(deepseek_fp8, "quant/deepseek_fp8", "quant/deepseek_fp8")

/* MXFP4 experts give the bits of the bf16 experts that transformers' decoder makes of them. */
static void mxfp4_is_exact(void **state)
{
    (void)state;
    enum { N = 300 };
    int32_t ids[N];
    float *logits = NULL;
    for (int side = 0; side < 2; side++) {
        struct model_rig r;
        model_rig_open(&r,
                       run_dir(side ? "tests/golden/tiny/gptoss_mxfp4"
                                    : "tests/golden/tiny/gptoss_dequantized"),
                       SV_ISA_AUTO, 16);
        assert_int_equal(r.m.cfg.mxfp4_experts, side);
        const size_t n_bytes = N * (size_t)r.m.cfg.vocab_size * sizeof(float);
        for (int32_t i = 0; i < N; i++)
            ids[i] = (i * 37 + 5) % r.m.cfg.vocab_size;
        model_rig_run(&r, ids, 0, N);
        if (side)
            assert_memory_equal(logits, r.logits, n_bytes);
        else
            logits = memcpy(malloc(n_bytes), r.logits, n_bytes);
        model_rig_close(&r);
    }
    free(logits);
}

/* Every allocation of the expansion fails once; in place and with the device's own copies. (Those
 * of the files' headers are left out: jansson reads past a string when it cannot make room for the
 * closing quote.) */
static void expansion_survives_faults(void **state)
{
    (void)state;
    static const char *const dirs[] = {"gptoss_f32", "gptoss_mxfp4", "kimi_int4"};
    for (int i = 0; i < 3; i++) {
        char name[64];
        struct sv_config cfg;
        struct sv_ckpt ckpt;
        struct sv_dev *dev = NULL;
        const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1};
        int64_t n_files, n;
        snprintf(name, sizeof name, "tests/golden/tiny/%s", dirs[i]);
        const char *dir = run_dir(name);
        assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
        const int64_t live = sv_alloc_live();
        sv_fault_arm(INT64_MAX);
        assert_int_equal(sv_config_load(&cfg, dir, NULL), SV_OK);
        assert_int_equal(sv_ckpt_open(&ckpt, dir, NULL), SV_OK);
        n_files = sv_fault_calls();
        sv_fault_arm(0);
        sv_ckpt_close(&ckpt);
        for (n = n_files + 1;; n++) {
            struct sv_model m;
            struct sv_err err = {0};
            sv_fault_arm(n);
            const int rc = sv_model_open(&m, dev, dir, 64, &err);
            sv_fault_arm(0);
            if (!rc)
                sv_model_close(&m);
            assert_true(!rc || err.msg[0]);
            assert_int_equal(sv_alloc_live(), live);
            if (!rc)
                break;
        }
        assert_true(n > n_files + 12); /* two for each projection of a layer */
        sv_dev_close(dev);
    }
}

/* Benchmarks: weights that a device makes of config.json's shapes, whatever a file would hold. */
static void random_experts(void **state)
{
    (void)state;
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1};
    struct sv_dev *dev = NULL;
    struct sv_model m;
    struct sv_err err = {0};
    assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
    if (sv_model_open_random(&m, dev, run_dir("tests/golden/tiny/gptoss_mxfp4"), 64, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(m.weights.n_bytes, 2 * sv_config_n_params(&m.cfg));
    for (int32_t i = 0; i < m.stack.n_layers; i++) {
        const struct sv_moe *moe = &m.stack.layers[i].moe;
        const struct sv_experts *const x[] = {&moe->gate, &moe->up, &moe->down};
        for (int k = 0; k < 3; k++) {
            assert_int_equal(x[k]->bias.cols, x[k]->n * x[k]->rows);
            for (int32_t e = 0; e < x[k]->n; e++)
                assert_non_null(x[k]->w[e].data);
        }
    }
    sv_model_close(&m);
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

/* The same of latent attention, whose kv_b_proj becomes matrices of heads. */
static void random_latents(void **state)
{
    (void)state;
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1};
    struct sv_dev *dev = NULL;
    struct sv_model m;
    struct sv_err err = {0};
    assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
    if (sv_model_open_random(&m, dev, run_dir("tests/golden/tiny/deepseek_bf16"), 64, &err))
        fail_msg("%s", err.msg);
    /* what chooses experts is in f32 */
    const int64_t biases = (int64_t)m.cfg.n_experts * (m.cfg.n_layers - 1);
    assert_int_equal(m.weights.n_bytes, 2 * sv_config_n_params(&m.cfg) + 2 * biases);
    for (int32_t i = 0; i < m.stack.n_layers; i++)
        for (int32_t h = 0; h < m.cfg.n_heads; h++) {
            assert_non_null(m.stack.layers[i].mla.k_up.w[h].data);
            assert_non_null(m.stack.layers[i].mla.v_up.w[h].data);
        }
    sv_model_close(&m);
    sv_dev_close(dev);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Random norms have the type that those of a file have. */
static void random_norms(void **state)
{
    (void)state;
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1};
    static const char *const dirs[] = {"tests/golden/tiny/qwen3_5_bf16",
                                       "tests/golden/tiny/qwen3_tied_bf16"};
    for (int i = 0; i < 2; i++) {
        enum sv_dtype elem[2][3];
        for (int random = 0; random < 2; random++) {
            struct sv_dev *dev = NULL;
            struct sv_model m;
            struct sv_err err = {0};
            assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
            if ((random ? sv_model_open_random : sv_model_open)(&m, dev, run_dir(dirs[i]), 64,
                                                                &err))
                fail_msg("%s", err.msg);
            elem[random][0] = m.stack.final_norm.fmt.elem;
            elem[random][1] = m.stack.layers[0].in_norm.fmt.elem;
            elem[random][2] = m.stack.layers[0].post_norm.fmt.elem;
            sv_model_close(&m);
            sv_dev_close(dev);
        }
        assert_memory_equal(elem[0], elem[1], sizeof elem[0]);
        assert_int_equal(elem[0][0], i == 0 ? SV_F32 : SV_BF16);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* A checkpoint may state a scale for a layer's cached keys or values. */
static void scales_of_the_cache(void **state)
{
    (void)state;
    const struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1};
    static const char *const dirs[] = {"tests/golden/quant/modelopt_nvfp4",
                                       "tests/golden/quant/fp8_block"};
    for (int i = 0; i < 2; i++) {
        struct sv_dev *dev = NULL;
        struct sv_model m;
        struct sv_err err = {0};
        assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
        if (sv_model_open(&m, dev, run_dir(dirs[i]), 64, &err))
            fail_msg("%s", err.msg);
        assert_true(m.stack.layers[0].attn.k_scale == (i ? 0.0f : 1.0f));
        assert_true(m.stack.layers[0].attn.v_scale == 0);
        sv_model_close(&m);
        sv_dev_close(dev);
    }
}

/* Expert 0 can be compressed and another cannot, which AMX then uses in place: what it was expanded
 * to must stay. */
static void some_experts_in_place(void **state)
{
    (void)state;
    const char *from = run_dir("tests/golden/tiny/gptoss_dequantized");
    const char *to = run_keep(sv_test_tmp("mixed"));
    const struct sv_dev_opts o = {.backend = "cpu",
                                  .n_threads = 1,
                                  .compute = SV_BF16,
                                  .tuning.compress_weights = SV_TOGGLE_ON};
    struct sv_ckpt c;
    struct sv_dev *dev = NULL;
    struct sv_model m;
    struct sv_buf file, config;
    struct sv_err err = {0};
    struct sv_rng rng = {4};
    char path[512];
    sv_buf_init(&file), sv_buf_init(&config);
    assert_int_equal(sv_ckpt_open(&c, from, &err), SV_OK);
    const struct sv_host_tensor *t = sv_ckpt_find(&c, "layers.0.mlp.experts.down_proj");
    const size_t at = (size_t)((const uint8_t *)t->data - (const uint8_t *)c.maps[0].data);
    const int32_t inter = (int32_t)t->dim[1], hidden = (int32_t)t->dim[2];
    sv_ckpt_close(&c);
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    assert_int_equal(sv_file_read(&file, path, 1 << 22, &err), SV_OK);
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_int_equal(sv_file_read(&config, path, 1 << 20, &err), SV_OK);
    uint16_t *one = (uint16_t *)(void *)(file.data + at) + (ptrdiff_t)inter * hidden; /* expert 1 */
    for (int32_t i = 0; i < inter * hidden; i++)
        one[i] = (uint16_t)((64 + sv_rng_below(&rng, 128)) << 7 | sv_rng_below(&rng, 128));
    mkdir(to, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_int_equal(sv_file_write(path, file.data, file.len, &err), SV_OK);
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_int_equal(sv_file_write(path, config.data, config.len, &err), SV_OK);
    assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
    if (sv_model_open(&m, dev, to, 64, &err))
        fail_msg("%s", err.msg);
    const struct sv_weight *w = m.stack.layers[0].moe.down.w;
    print_message("%s, expert 1 %s\n", sv_dev_describe(dev), w[1].priv ? "copied" : "in place");
    for (int32_t r = 0; r < hidden && !w[1].priv; r++)
        for (int32_t k = 0; k < inter; k++)
            assert_int_equal(((const uint16_t *)w[1].data)[r * inter + k], one[k * hidden + r]);
    if (strstr(sv_dev_describe(dev), "compressed"))
        assert_non_null(w[0].priv);
    sv_model_close(&m);
    sv_dev_close(dev);
    sv_buf_fini(&file), sv_buf_fini(&config);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(qwen3_f32), cmocka_unit_test(qwen3_odd_bf16),
             cmocka_unit_test(qwen3_tied_bf16), cmocka_unit_test(llama_bias_f16),
             cmocka_unit_test(llama_rope3_bf16), cmocka_unit_test(qwen3_moe_f32),
             cmocka_unit_test(qwen3_moe_bf16), cmocka_unit_test(gptoss_f32),
             cmocka_unit_test(gptoss_bf16), cmocka_unit_test(gptoss_dequantized),
             cmocka_unit_test(mxfp4_is_exact), cmocka_unit_test(expansion_survives_faults),
             cmocka_unit_test(random_experts), cmocka_unit_test(some_experts_in_place),
             cmocka_unit_test(scales_of_the_cache), cmocka_unit_test(pair_target),
             cmocka_unit_test(gguf_f32_in_two_shards), cmocka_unit_test(gguf_q8_0),
             cmocka_unit_test(gguf_of_many_types), cmocka_unit_test(gguf_qwen3_moe),
             cmocka_unit_test(gguf_qwen35), cmocka_unit_test(gguf_experts_of_many_types),
             cmocka_unit_test(gguf_deepseek2), cmocka_unit_test(fp8_block),
             cmocka_unit_test(ct_fp8_tensor), cmocka_unit_test(ct_int8), cmocka_unit_test(ct_int4),
             cmocka_unit_test(ct_mixed), cmocka_unit_test(ct_nvfp4), cmocka_unit_test(ct_mxfp4),
             cmocka_unit_test(modelopt_nvfp4), cmocka_unit_test(awq), cmocka_unit_test(gptq),
             cmocka_unit_test(gptq8_v2), cmocka_unit_test(moe_ct_int4),
             cmocka_unit_test(moe_ct_nvfp4), cmocka_unit_test(moe_modelopt),
             cmocka_unit_test(moe_awq), cmocka_unit_test(moe_gptq),
             cmocka_unit_test(moe_gptq_order), cmocka_unit_test(qwen3_5_bf16),
             cmocka_unit_test(qwen3_next_bf16), cmocka_unit_test(qwen3_5_moe_bf16),
             cmocka_unit_test(qwen3_vl_bf16), cmocka_unit_test(qwen3_vl_moe_bf16),
             cmocka_unit_test(qwen3_5_vl_bf16), cmocka_unit_test(qwen3_5_vl_moe_bf16),
             cmocka_unit_test(deepseek_bf16), cmocka_unit_test(deepseek_plain_f32),
             cmocka_unit_test(kimi_int4), cmocka_unit_test(deepseek_fp8),
             cmocka_unit_test(random_latents), cmocka_unit_test(random_norms))
