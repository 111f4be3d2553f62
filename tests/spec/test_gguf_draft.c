/*
 * test_gguf_draft.c - a draft from a GGUF file gives the text and the accept lengths of the
 * directory it was made from; what a file may lack or have is refused with its key.
 */
#include "testing.h"

#include "engine/run.h"
#include "load/fake.h"
#include "load/gguf_write.h"

#include <string.h>

static void compare(const char *target, const char *draft)
{
    enum { N = 24 };
    char path[96];
    struct run_case *c = run_cases(N, 130, 60, 40, 11);
    struct run_out *out[3];
    int32_t n_accepted = 0;
    snprintf(path, sizeof path, "tests/golden/tiny/%s", draft);
    const char *dir = run_dir(path), *drafts[] = {dir, gguf_of_dir(dir), NULL};
    struct sv_draft_config a, b;
    struct sv_err err = {0};
    snprintf(path, sizeof path, "tests/golden/tiny/%s", target);
    assert_true(sv_dir_is_draft(drafts[1]));
    assert_int_equal(sv_draft_config_load(&a, dir, 0, &err), SV_OK);
    if (sv_draft_config_load(&b, drafts[1], 0, &err))
        fail_msg("%s", err.msg);
    b.n_target_layers = a.n_target_layers; /* GGUF does not say it */
    b.base.stored_dtype = a.base.stored_dtype;
    assert_memory_equal(&a, &b, sizeof a);
    for (int k = 0; k < 3; k++) {
        const struct sv_engine_options o = {.target_dir = run_dir(path),
                                            .draft_dir = drafts[k],
                                            .dtype = SV_TYPE_F32,
                                            .n_threads = 2,
                                            .width = drafts[k] ? a.block_size : 0};
        struct sv_engine *e = run_open(&o, NULL);
        out[k] = run_all(e, c, N);
        n_accepted += drafts[k] ? (int32_t)e->accept.n_accepted : 0;
        sv_engine_close(e);
    }
    run_same_steps(out[0], out[1], N, draft);
    run_same(out[0], out[2], N, "no draft");
    if (!strncmp(target, "pair", 4))
        assert_true(n_accepted > 100);
    for (int k = 0; k < 3; k++)
        run_out_free(out[k], N);
    run_cases_free(c, N);
}

static void full(void **state)
{
    (void)state;
    compare("pair_target", "pair_draft_full_b16");
}
static void with_biases(void **state)
{
    (void)state;
    compare("pair_target", "pair_draft_bias_b8");
}
static void sliding(void **state)
{
    (void)state;
    compare("pair_target", "pair_draft_sliding_b8");
}
static void yarn(void **state)
{
    (void)state;
    run_needs_cpu();
    compare("gptoss_bf16", "gptoss_draft_random_b10");
}

/* A file with the keys of a small draft, but for one. */
static void refused(const char *without, const char *with, int code, const char *message)
{
    static const char *const keys[] = {
        "block_count",    "embedding_length", "feed_forward_length", "attention.head_count",
        "context_length", "block_size",       "vocab_size"};
    static int number;
    struct gguf_out g;
    struct sv_draft_config d;
    struct sv_err err = {0};
    char key[64], name[32];
    gguf_init(&g, "dflash");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        snprintf(key, sizeof key, "dflash.%s", keys[i]);
        if (strcmp(keys[i], without))
            gguf_u32(&g, key, 8);
    }
    if (strcmp(without, "mask"))
        gguf_u32(&g, "tokenizer.ggml.mask_token_id", 7);
    if (*with)
        gguf_u32(&g, with, 2);
    snprintf(name, sizeof name, "refused%d.gguf", number++);
    const char *path = sv_test_tmp(name);
    gguf_save(&g, path);
    fake_expect(sv_draft_config_load(&d, path, 9, &err), code, &err, message, without);
}

static void files_that_lack_a_key(void **state)
{
    (void)state;
    refused("block_size", "", SV_EFORMAT, "'dflash.block_size' is missing");
    refused("mask", "", SV_EFORMAT, "'tokenizer.ggml.mask_token_id' is missing");
    refused("vocab_size", "", SV_EFORMAT, "'dflash.target_layers' must be a list");
    refused("", "", SV_EFORMAT, "'dflash.target_layers' must be a list of layers");
    refused("", "dflash.attention.sliding_window", SV_EFORMAT, "dflash.");
    refused("", "dflash.expert_count", SV_EUNSUPPORTED, "'dflash.expert_count' = 2");
}

SV_TEST_MAIN(cmocka_unit_test(full), cmocka_unit_test(with_biases), cmocka_unit_test(sliding),
             cmocka_unit_test(yarn), cmocka_unit_test(files_that_lack_a_key))
