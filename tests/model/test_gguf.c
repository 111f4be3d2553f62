/*
 * test_gguf.c - a GGUF file gives the bits of the directory it was made from: configuration, logits
 * of a prompt in one pass, greedy tokens.
 *
 * The directories are tested against transformers (test_golden.c). What converters change comes
 * back exactly: order of heads, 1 + w, merged and stacked projections, MXFP4's nibbles, keys and
 * values of latents head by head.
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

SV_TEST_MAIN(cmocka_unit_test(qwen3_f32), cmocka_unit_test(qwen3_moe_f32),
             cmocka_unit_test(qwen3_next_bf16), cmocka_unit_test(qwen3_5_moe_bf16),
             cmocka_unit_test(gptoss_mxfp4), cmocka_unit_test(deepseek_bf16),
             cmocka_unit_test(deepseek_of_older_converters))
