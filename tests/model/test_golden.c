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

static void check_dir(const char *name, enum sv_isa isa, int32_t page_size)
{
    char dir[128], file[128];
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", name);
    snprintf(file, sizeof file, "tiny/%s.golden.safetensors", name);
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
        struct run_case c = {
            (int32_t *)(uintptr_t)ids, (int32_t)n, (int32_t)m, {.top_p = 1, .ignore_eos = true}};
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
    struct sv_dev_opts o = {.backend = "cpu", .n_threads = 1, .isa = isa};
    if (sv_dev_open(&dev, &o, NULL))
        return false;
    sv_dev_close(dev);
    return true;
}

static void every_isa(const char *name)
{
    static const int32_t pages[] = {16, 1, 64, 16, 16};
    struct sv_engine_options where = {0};
    run_device(&where);
    if (strcmp(where.device, "cpu")) {
        for (int i = 0; i < 3; i++)
            check_dir(name, SV_ISA_AUTO, pages[i]);
        return;
    }
    for (int isa = SV_ISA_AUTO; isa <= SV_ISA_AMX; isa++)
        if (has((enum sv_isa)isa))
            check_dir(name, (enum sv_isa)isa, pages[isa]);
        else
            print_message("instruction set %d is not on this machine\n", isa);
}

#define GOLDEN_TEST(name)                                                                          \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        every_isa(#name);                                                                          \
    }
GOLDEN_TEST(qwen3_f32)
GOLDEN_TEST(qwen3_odd_bf16)
GOLDEN_TEST(qwen3_tied_bf16)
GOLDEN_TEST(llama_bias_f16)
GOLDEN_TEST(llama_rope3_bf16)
GOLDEN_TEST(pair_target)

SV_TEST_MAIN(cmocka_unit_test(qwen3_f32), cmocka_unit_test(qwen3_odd_bf16),
             cmocka_unit_test(qwen3_tied_bf16), cmocka_unit_test(llama_bias_f16),
             cmocka_unit_test(llama_rope3_bf16), cmocka_unit_test(pair_target))
