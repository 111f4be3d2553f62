/*
 * test_golden.c - the tiny checkpoints of tests/golden/tiny, written by transformers and by the
 * published draft code: every one opens, fits its configuration, and reads the same in both config
 * layouts.
 */
#include "load/fake.h"
#include "testing.h"

#include <dirent.h>
#include <string.h>

/* With the published files' other tensors and mixed types: test_hybrid.c, test_latent.c. */
static bool is_as_published(const char *name)
{
    static const char *const begin[] = {"qwen3_5", "qwen3_next", "qwen3_vl", "deepseek", "kimi"};
    for (size_t i = 0; i < sizeof begin / sizeof begin[0]; i++)
        if (!strncmp(name, begin[i], strlen(begin[i])))
            return true;
    return false;
}

/* Calls fn for each checkpoint directory, gives their number. */
static int each_dir(bool drafts, void (*fn)(const char *dir, const char *name))
{
    int n = 0;
    DIR *d = opendir(sv_test_path("tests/golden/tiny"));
    if (!d)
        return 0;
    for (struct dirent *e = readdir(d); e; e = readdir(d)) {
        char dir[512];
        snprintf(dir, sizeof dir, "%.200s/%.250s", sv_test_path("tests/golden/tiny"), e->d_name);
        if (e->d_name[0] == '.' || is_as_published(e->d_name) || !sv_dir_exists(dir) ||
            sv_dir_is_draft(dir) != drafts)
            continue;
        fn(dir, e->d_name);
        n++;
    }
    closedir(d);
    return n;
}

/* DIR/file parsed as a target configuration; false when the file is not there. */
static bool parse_file(struct sv_config *c, const char *dir, const char *file)
{
    struct sv_buf text;
    struct sv_err err = {0};
    char *path = sv_path_join(dir, file);
    bool there = sv_file_exists(path);
    sv_buf_init(&text);
    if (there) {
        assert_int_equal(sv_file_read(&text, path, 1 << 20, &err), SV_OK);
        fake_expect(sv_config_parse(c, text.data, text.len, &err), SV_OK, &err, "", path);
    }
    sv_buf_fini(&text);
    sv_free(path);
    return there;
}

static void check_target(const char *dir, const char *name)
{
    struct sv_config c, plain, other;
    struct sv_ckpt k;
    struct sv_err err = {0};
    fake_expect(sv_config_load(&c, dir, &err), SV_OK, &err, "", name);
    fake_expect(sv_ckpt_open(&k, dir, &err), SV_OK, &err, "", name);
    fake_expect(sv_ckpt_check_target(&k, &c, &err), SV_OK, &err, "", name);
    assert_true(c.mxfp4_experts || k.n_params == sv_config_n_params(&c));
    for (int32_t i = 0; i < k.n_tensors; i++)
        assert_true(k.tensors[i].dtype == c.stored_dtype ||
                    (c.mxfp4_experts && k.tensors[i].dtype == SV_U8));
    assert_true(parse_file(&plain, dir, "config.json"));
    const bool v4 = parse_file(&other, dir, "config.v4.json");
    assert_true(v4 || parse_file(&other, dir, "config.v5.json"));
    assert_memory_equal(&plain, &other, sizeof plain);
    assert_true(c.n_eos > 0);
    /* a target of another shape does not pass */
    c.n_layers++;
    assert_int_equal(sv_ckpt_check_target(&k, &c, &err), SV_EMISMATCH);
    sv_ckpt_close(&k);
    assert_int_equal(sv_alloc_live(), 0);
}

static void targets_fit(void **state)
{
    (void)state;
    assert_true(each_dir(false, check_target) >= 10);
}

/* The target that a draft was made for. */
static const char *target_of(const char *draft)
{
    return !strncmp(draft, "llama", 5)    ? "tests/golden/tiny/llama_rope3_bf16"
           : !strncmp(draft, "gptoss", 6) ? "tests/golden/tiny/gptoss_bf16"
                                          : "tests/golden/tiny/pair_target";
}

static void check_draft(const char *dir, const char *name)
{
    struct sv_draft_config d;
    struct sv_config t;
    struct sv_ckpt k;
    struct sv_err err = {0};
    const char *target = target_of(name);
    fake_expect(sv_draft_config_load(&d, dir, 0, &err), SV_OK, &err, "", name);
    fake_expect(sv_ckpt_open(&k, dir, &err), SV_OK, &err, "", name);
    fake_expect(sv_ckpt_check_draft(&k, &d, &err), SV_OK, &err, "", name);
    assert_int_equal(k.n_params, sv_draft_config_n_params(&d));
    fake_expect(sv_config_load(&t, sv_test_path(target), &err), SV_OK, &err, "", target);
    fake_expect(sv_pair_check(&t, &d, &err), SV_OK, &err, "", name);
    /* and not another family's target */
    const char *wrong = target_of(strncmp(name, "llama", 5) ? "llama" : "pair");
    assert_int_equal(sv_config_load(&t, sv_test_path(wrong), &err), SV_OK);
    assert_int_equal(sv_pair_check(&t, &d, &err), SV_EMISMATCH);
    sv_ckpt_close(&k);
    assert_int_equal(sv_alloc_live(), 0);
}

static void drafts_fit_their_targets(void **state)
{
    (void)state;
    assert_true(each_dir(true, check_draft) >= 5);
}

/* The two overrides of the sliding draft: window as published, causality from the file. */
static void causality_overrides(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        uint8_t causal[2];
    } cases[] = {{"config.json", {1, 0}},
                 {"config.noncausal.json", {0, 0}},
                 {"config.allcausal.json", {1, 1}}};
    char dir[256];
    snprintf(dir, sizeof dir, "%.250s", sv_test_path("tests/golden/tiny/pair_draft_sliding_b8"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_draft_config d;
        struct sv_buf text;
        struct sv_err err = {0};
        char *path = sv_path_join(dir, cases[i].file);
        sv_buf_init(&text);
        fake_expect(sv_file_read(&text, path, 1 << 20, &err), SV_OK, &err, "", path);
        fake_expect(sv_draft_config_parse(&d, text.data, text.len, 0, &err), SV_OK, &err, "", path);
        assert_int_equal(d.base.sliding_window, 12);
        assert_memory_equal(d.causal, cases[i].causal, 2);
        sv_buf_fini(&text);
        sv_free(path);
    }
}

/* Golden files themselves are safetensors with f32 and i32 tensors. */
static void golden_files_can_be_read(void **state)
{
    (void)state;
    const char *path = sv_test_path("tests/golden/tiny/qwen3_f32.golden.safetensors");
    struct sv_map m;
    struct sv_arena arena;
    struct sv_host_tensor *t;
    int32_t n = 0;
    struct sv_err err = {0};
    fake_expect(sv_map_open(&m, path, &err), SV_OK, &err, "", path);
    sv_arena_init(&arena);
    fake_expect(sv_safetensors_parse(m.data, m.n_bytes, path, &arena, &t, &n, &err), SV_OK, &err,
                "", path);
    assert_true(n > 10);
    sv_arena_fini(&arena);
    sv_map_close(&m);
}

SV_TEST_MAIN(cmocka_unit_test(targets_fit), cmocka_unit_test(drafts_fit_their_targets),
             cmocka_unit_test(causality_overrides), cmocka_unit_test(golden_files_can_be_read))
