/*
 * test_dp_attention.c - DP attention: ranks have all heads, and keys and values of their own
 * sequences alone. At each number of ranks no draft, batch, page size, preemption or prefix cache
 * changes a token, whichever rank a sequence is on and however many ranks have none; all ranks have
 * the same bits after every pass; a rank's pages are its own; what is not covered is refused.
 *
 * timeout: 300
 *
 * The reference is plain decoding, one sequence at a time, so that all ranks but one are idle.
 */
#include "testing.h"

#include "engine/ranked.h"
#include "engine/toy.h"

#include <string.h>

/* Its 3 heads and, of the other, 8 heads on fewer K/V heads than ranks are not what these divide.
 */
static struct run_pair latents(void)
{
    return (struct run_pair){run_dir("tests/golden/tiny/deepseek_bf16"), NULL};
}
static struct run_pair few_heads(bool bf16, int32_t n_kv)
{
    const struct toy t = {.vocab = RUN_VOCAB,
                          .hidden = 64,
                          .n_layers = 3,
                          .n_heads = 8,
                          .n_kv = n_kv,
                          .head_dim = 16,
                          .mlp = 150,
                          .max_position = 256,
                          .block = 16,
                          .draft_layers = 2,
                          .scale = 0.2f,
                          .seed = 5,
                          .bf16 = bf16};
    return (struct run_pair){toy_target(&t), toy_draft(&t)};
}
/* Sinks, biases, and windows that end within a sequence. */
static struct run_pair windows(void)
{
    return toy_pair_like(
        "gptoss_mxfp4", "{\"vocab_size\": 300, \"intermediate_size\": 160, \"sliding_window\": 24, "
                        "\"num_hidden_layers\": 3, \"hidden_size\": 64}");
}

static const struct run_arrangement arrangements[] = {
    {-1, 5, 4, 2, 7, 0}, {3, 4, 16, 1, 19, 0}, {0, 8, 1, 1, 33, 0},
    {4, 8, 4, 4, 40, 0}, {4, 3, 16, 1, 11, 5},
};

static void lossless(struct run_pair pair, enum sv_data_type dtype, bool mixed, int32_t tp,
                     int32_t n, bool ep)
{
    ranked_lossless(&(struct ranked){&pair, dtype, mixed, {.n = tp, .ep = ep, .dp = true}, n},
                    arrangements, sizeof arrangements / sizeof arrangements[0]);
}

static void latents_2(void **state)
{
    (void)state;
    lossless(latents(), SV_TYPE_BF16, true, 2, 7, false);
    lossless(latents(), SV_TYPE_BF16, false, 2, 5, true);
}
static void latents_4(void **state)
{
    (void)state;
    lossless(latents(), SV_TYPE_F32, true, ranked_most(4), 6, false);
}
static void few_heads_4(void **state)
{
    const int32_t n = ranked_most(4);
    (void)state;
    lossless(few_heads(true, n / 2), SV_TYPE_BF16, true, n, 9, false);
    lossless(few_heads(false, n / 2), SV_TYPE_F32, false, n, 6, false);
}
static void windows_4(void **state)
{
    (void)state;
    lossless(windows(), SV_TYPE_BF16, true, ranked_most(4), 6, true);
}

/* Mates, preemption, prefixes; also a step ahead of the host, and padded. */
static void together(void **state)
{
    (void)state;
    const int32_t n = ranked_most(4);
    const struct run_pair pair = few_heads(true, n / 2), latent = latents();
    ranked_together(&(struct ranked){&pair, SV_TYPE_AUTO, true, {.n = n, .dp = true}, 16}, true);
    ranked_together(&(struct ranked){&latent, SV_TYPE_AUTO, true, {.n = 2, .dp = true}, 16}, false);
}

/* Widths that a policy chooses and drafts that it prunes, in segments that stand by ranks. */
static void policy(void **state)
{
    (void)state;
    const struct run_pair pair = few_heads(true, 2);
    ranked_policy(&pair, RUN_VOCAB, (struct run_ranks){.n = 2, .dp = true});
}

/* ---------------------------------------------------------------- pages */

static int32_t n_parts_used(const struct sv_engine *e)
{
    int32_t n = 0;
    for (int32_t p = 0; p < e->cache.n_parts; p++) {
        const struct sv_cache_group *g = &e->cache.group[e->cache.main];
        n += g->part[p].n_free < g->part_pages;
    }
    return n;
}

/* Which two and three ranks divide. */
static const char six_heads[] = "{\"num_attention_heads\": 6, \"num_key_value_heads\": 6}";

/* With the same bytes, n ranks hold n times the latents, and a sequence's pages are on one of them.
 */
static void capacity(void **state)
{
    enum { N = 6 };
    const int32_t n = ranked_most(3);
    (void)state;
    struct run_case *c = run_cases(N, RUN_VOCAB, 60, 30, 3);
    struct sv_engine_options o = {.target_dir = toy_pair_like("deepseek_bf16", six_heads).target,
                                  .context = 128,
                                  .n_threads = 1,
                                  .cache_mib = 1,
                                  .max_sequences = N,
                                  .tp = n};
    struct sv_engine_stats st[2];
    for (int dp = 0; dp < 2; dp++) {
        o.dp_attention = dp;
        struct sv_engine *e = run_open(&o, NULL);
        sv_get_engine_stats(e, &st[dp]);
        struct run_out *out = run_all(e, &c[0], 1);
        assert_int_equal(n_parts_used(e), 1); /* what is kept of it */
        run_out_free(out, 1);
        out = run_all(e, c, N);
        assert_int_equal(n_parts_used(e), e->cache.n_parts);
        /* It is found where it is, though other ranks have more to spare. */
        struct run_out *again = run_all(e, &c[0], 1);
        assert_int_equal(again->n_cached, (c[0].n_prompt - 1) / 16 * 16);
        run_out_free(again, 1);
        run_out_free(out, N);
        sv_engine_close(e);
    }
    print_message("%lld pages, with DP attention %lld\n", (long long)st[0].n_pages,
                  (long long)st[1].n_pages);
    assert_true(st[0].n_pages > 10 && st[1].n_pages == n * st[0].n_pages);
    run_cases_free(c, N);
}

/* ---------------------------------------------------------------- numbers, refusals, failures */

static void close_to_one(void **state)
{
    (void)state;
    const struct run_pair few = few_heads(false, 2), latent = latents(), window = windows();
    ranked_close(&few, RUN_VOCAB, (struct run_ranks){.n = 4, .dp = true});
    ranked_close(&latent, 300, (struct run_ranks){.n = 3, .dp = true});
    ranked_close(&window, 300, (struct run_ranks){.n = 2, .ep = true, .dp = true});
}

static void refused(const struct sv_engine_options *o, const char *text)
{
    struct sv_engine *e = NULL;
    struct sv_err err = {0};
    assert_true(sv_engine_open(&e, o, NULL, &err) < 0);
    assert_null(e);
    if (!strstr(err.msg, text))
        fail_msg("'%s' is not in '%s'", text, err.msg);
    assert_int_equal(sv_alloc_live(), 0);
}

static void refusals(void **state)
{
    (void)state;
    struct sv_engine_options o = {.device = "cpu",
                                  .target_dir = latents().target,
                                  .n_threads = 1,
                                  .context = 64,
                                  .dp_attention = true};
    refused(&o, "dp_attention divides sequences among ranks: it needs tp");
    o.tp = 2;
    o.record_plan = "nowhere";
    refused(&o, "record_plan with dp_attention");
    o.record_plan = NULL;
    o.target_dir = run_dir("tests/golden/tiny/qwen3_5_bf16");
    refused(&o, "dp_attention: layer 0 has a gated delta rule");
    o.target_dir = run_dir("tests/golden/tiny/qwen3_vl_bf16");
    refused(&o, "dp_attention: the model has a vision tower");
}

static void no_memory(void **state)
{
    (void)state;
    const struct sv_engine_options o = {.device = "cpu",
                                        .target_dir = latents().target,
                                        .context = 64,
                                        .n_threads = 1,
                                        .tp = 2,
                                        .dp_attention = true};
    ranked_no_memory(&o, 6);
}

SV_TEST_MAIN(cmocka_unit_test(latents_2), cmocka_unit_test(latents_4),
             cmocka_unit_test(few_heads_4), cmocka_unit_test(windows_4), cmocka_unit_test(together),
             cmocka_unit_test(policy), cmocka_unit_test(capacity), cmocka_unit_test(close_to_one),
             cmocka_unit_test(refusals), cmocka_unit_test(no_memory))
