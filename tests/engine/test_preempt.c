/*
 * test_preempt.c - caches too small for the sequences that want to run: they lose their pages and
 * resume, and neither a token nor an accept length changes.
 *
 * timeout: 240
 * release: all
 *
 * The reference runs one sequence at a time with pages for all of it. Every arrangement below has
 * pools of little more than one sequence, so that most sequences are thrown out, several times, in
 * their prompt and in their answer.
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = 300, MAX_PROMPT = 40, MAX_TOKENS = 54, BLOCK = 16, CONTEXT = 96 };

struct tight {
    int32_t batch, page, threads, chunk, extra; /* extra: positions beyond one full sequence */
};
static const struct tight tight[] = {
    {2, 16, 1, 512, 0}, {8, 1, 2, 24, 40},  {32, 16, 2, 64, 100},
    {5, 64, 1, 7, 64},  {17, 4, 2, 33, 16}, {32, 1, 1, 512, 200},
};

static struct sv_engine *open_tight(const struct sv_engine_options *base, const struct tight *t)
{
    struct sv_engine_options o = *base;
    o.max_sequences = t->batch;
    o.page_size = t->page;
    o.n_threads = t->threads;
    o.prefill_chunk = t->chunk;
    bool ahead = t->threads > 1;
    int32_t positions = CONTEXT + 2 * BLOCK + t->extra;
    const struct sv_engine_tuning tuning = {
        .cache_pages = (positions + t->page - 1) / t->page, .run_ahead = ahead, .pad = ahead};
    return run_open_tuned(&o, &tuning, NULL);
}

static void run_tight(const struct sv_engine_options *base, bool sampled, int32_t n)
{
    n = run_few(n);
    struct run_case *c = run_cases(n, VOCAB, MAX_PROMPT, MAX_TOKENS, 77);
    for (int i = 0; i < n && sampled; i++) {
        c[i].req.temperature = i % 4 ? 0.9 : 0;
        c[i].req.top_p = i % 3 ? 0.95 : 1;
        c[i].req.seed = (uint64_t)i * 7919;
    }
    struct sv_engine_options o = *base;
    o.context = CONTEXT;
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = run_all(e, c, n);
    sv_engine_close(e);
    for (size_t i = 0; i < sizeof tight / sizeof tight[0]; i++) {
        const struct tight *t = &tight[i];
        if (run_left_out(i))
            continue;
        e = open_tight(&o, t);
        struct run_out *out = run_all(e, c, n);
        char what[128];
        snprintf(what, sizeof what, "batch %d page %d chunk %d extra %d", t->batch, t->page,
                 t->chunk, t->extra);
        run_same_steps(ref, out, n, what);
        struct sv_engine_stats st;
        sv_get_engine_stats(e, &st);
        int64_t sum = 0;
        for (int32_t k = 0; k < n; k++)
            sum += out[k].n_preemptions;
        assert_int_equal(sum, st.n_preemptions);
        print_message("%s: %lld preemptions in %lld steps\n", what, (long long)sum,
                      (long long)st.n_steps);
        if (t->batch > 2)
            assert_true(sum > 0);
        assert_true(st.n_waiting == 0 && st.n_running == 0);
        run_out_free(out, n);
        sv_engine_close(e);
    }
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

/* The golden pair, trained: its drafts are often right. */
static void trained(bool draft, bool sampled, int32_t n)
{
    run_tight(
        &(struct sv_engine_options){
            .target_dir = run_dir("tests/golden/tiny/pair_target"),
            .draft_dir = draft ? run_dir("tests/golden/tiny/pair_draft_full_b16") : NULL,
            .dtype = SV_TYPE_F32},
        sampled, n);
}

static void greedy(void **state)
{
    (void)state;
    trained(true, false, 60);
}
static void sampled(void **state)
{
    (void)state;
    trained(true, true, 60);
}
static void plain_sampled(void **state)
{
    (void)state;
    trained(false, true, 60);
}
static void sliding_draft(void **state)
{
    (void)state;
    run_tight(
        &(struct sv_engine_options){.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                    .draft_dir = run_dir("tests/golden/tiny/pair_draft_sliding_b8"),
                                    .dtype = SV_TYPE_F32},
        false, 60);
}
static void bf16(void **state)
{
    (void)state;
    run_tight(&(struct sv_engine_options){.target_dir = toy_target(&toy_bf16),
                                          .draft_dir = toy_draft(&toy_bf16),
                                          .dtype = SV_TYPE_BF16},
              false, 30);
}

static void experts(void **state)
{
    (void)state;
    run_tight(&(struct sv_engine_options){.target_dir = toy_target(&toy_moe),
                                          .draft_dir = toy_draft(&toy_moe),
                                          .dtype = SV_TYPE_BF16},
              true, 30);
}
/* States are computed again with the prompt and answer so far. */
static void states(void **state)
{
    (void)state;
    const struct run_pair pair = toy_pair_of("qwen3_5_bf16");
    run_tight(&(struct sv_engine_options){.target_dir = pair.target,
                                          .draft_dir = pair.draft,
                                          .dtype = SV_TYPE_F32},
              true, 20);
    run_tight(&(struct sv_engine_options){.target_dir = pair.target, .dtype = SV_TYPE_BF16}, false,
              20);
    const struct run_pair experts = toy_pair_of("qwen3_5_moe_bf16");
    run_tight(&(struct sv_engine_options){.target_dir = experts.target,
                                          .draft_dir = experts.draft,
                                          .dtype = SV_TYPE_BF16},
              false, 14);
}

static void gptoss(void **state)
{
    (void)state;
    const struct run_pair pair = run_gptoss();
    for (int dtype = SV_TYPE_F32; dtype <= SV_TYPE_BF16; dtype++)
        run_tight(&(struct sv_engine_options){.target_dir = pair.target,
                                              .draft_dir = pair.draft,
                                              .dtype = (enum sv_data_type)dtype},
                  dtype == SV_TYPE_F32, 20);
}

static void latents(void **state)
{
    (void)state;
    const struct run_pair pair = toy_pair_of("deepseek_bf16"), kimi = toy_pair_of("kimi_int4");
    run_tight(&(struct sv_engine_options){.target_dir = pair.target,
                                          .draft_dir = pair.draft,
                                          .dtype = SV_TYPE_F32},
              true, 16);
    run_tight(&(struct sv_engine_options){.target_dir = kimi.target,
                                          .draft_dir = kimi.draft,
                                          .dtype = SV_TYPE_BF16},
              false, 16);
}

/* Preempted, shared or found again: every reader reads what is stored. */
static void fp8_caches(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    trained(true, true, 30);
    run_tight(&(struct sv_engine_options){.target_dir = toy_target(&toy_bf16),
                                          .draft_dir = toy_draft(&toy_bf16),
                                          .dtype = SV_TYPE_BF16},
              false, 30);
    const struct run_pair latent = toy_pair_of("deepseek_bf16");
    run_tight(&(struct sv_engine_options){.target_dir = latent.target,
                                          .draft_dir = latent.draft,
                                          .dtype = SV_TYPE_BF16},
              true, 16);
}

SV_TEST_MAIN(cmocka_unit_test(fp8_caches), cmocka_unit_test(greedy), cmocka_unit_test(sampled),
             cmocka_unit_test(plain_sampled), cmocka_unit_test(sliding_draft),
             cmocka_unit_test(bf16), cmocka_unit_test(experts), cmocka_unit_test(gptoss),
             cmocka_unit_test(states), cmocka_unit_test(latents))
