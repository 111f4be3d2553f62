/*
 * test_mates.c - what a request says does not depend on who runs beside it: the same tokens alone
 * and among 64 others, with and without a draft, whatever the others ask for and whenever they
 * leave.
 *
 * timeout: 240
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

enum { N = 65, VOCAB = 300, CONTEXT = 160 };

/* Long and short prompts, greedy and sampled, with penalties and stop ids: a mixed crowd. */
static struct run_case *crowd(void)
{
    static int32_t stop = 17;
    struct run_case *c = run_cases(N, VOCAB, 100, 40, 3);
    for (int i = 0; i < N; i++) {
        struct sv_request *r = &c[i].req;
        r->temperature = i % 3 ? 0.7 + 0.1 * (i % 5) : 0;
        r->top_p = i % 4 ? 1 : 0.9;
        r->top_k = i % 7 ? 0 : 40;
        r->seed = (uint64_t)i + 11;
        r->presence_penalty = i % 5 ? 0 : 0.5;
        r->repetition_penalty = i % 6 ? 0 : 1.2;
        if (i % 8 == 0) {
            r->stop_ids = &stop;
            r->n_stop_ids = 1;
        }
    }
    return c;
}

static void among(const struct run_pair *pair, bool draft, int32_t cache_pages, bool ahead)
{
    struct run_case *c = crowd();
    struct sv_engine_options o = {.target_dir = pair->target,
                                  .context = CONTEXT,
                                  .n_threads = 2,
                                  .prefill_chunk = 64,
                                  .no_prefix_cache = true};
    /* Alone, and plain: each request has the engine to itself. */
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = calloc(N, sizeof *ref);
    for (int i = 0; i < N; i++) {
        struct run_out *one = run_all(e, &c[i], 1);
        ref[i] = *one;
        free(one);
    }
    sv_engine_close(e);
    o.max_sequences = N;
    o.no_prefix_cache = false;
    o.draft_dir = draft ? pair->draft : NULL;
    const struct sv_engine_tuning tuning = {
        .cache_pages = cache_pages, .run_ahead = ahead, .pad = ahead};
    e = run_open_tuned(&o, &tuning, NULL);
    struct run_out *out = run_all(e, c, N);
    run_same(ref, out, N, draft ? "among 64, drafting" : "among 64");
    struct sv_engine_stats st;
    sv_get_engine_stats(e, &st);
    print_message("%lld steps, %lld preemptions\n", (long long)st.n_steps,
                  (long long)st.n_preemptions);
    assert_true(!cache_pages || st.n_preemptions > 0);
    run_out_free(out, N);
    run_out_free(ref, N);
    sv_engine_close(e);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

static struct run_pair trained(void)
{
    return (struct run_pair){run_dir("tests/golden/tiny/pair_target"),
                             run_dir("tests/golden/tiny/pair_draft_full_b16")};
}

static void plain(void **state)
{
    (void)state;
    const struct run_pair pair = trained();
    among(&pair, false, 0, true);
}
static void drafting(void **state)
{
    (void)state;
    const struct run_pair pair = trained();
    among(&pair, true, 0, false);
}
static void drafting_ahead_and_short_of_pages(void **state)
{
    (void)state;
    const struct run_pair pair = trained();
    among(&pair, true, 64, true);
}
/* Mates that choose the same experts, or others. */
static void of_experts(void **state)
{
    (void)state;
    const struct run_pair pair = {toy_target(&toy_moe), toy_draft(&toy_moe)};
    among(&pair, false, 0, true);
    among(&pair, true, 64, true);
}
static void of_gptoss(void **state)
{
    (void)state;
    const struct run_pair pair = run_gptoss();
    among(&pair, false, 0, true);
    among(&pair, true, 64, true);
}
/* Mates with states of their own, in slots that others leave. */
static void of_states(void **state)
{
    (void)state;
    const struct run_pair pair = toy_pair_of("qwen3_5_bf16");
    among(&pair, false, 0, true);
    among(&pair, true, 64, true);
}

static void of_latents(void **state)
{
    (void)state;
    const struct run_pair pair = toy_pair_of("deepseek_bf16"), kimi = toy_pair_of("kimi_int4");
    among(&pair, false, 0, true);
    among(&pair, true, 64, true);
    among(&kimi, true, 64, true);
}

/* Preempted, shared or found again: every reader reads what is stored. */
static void fp8_caches(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    const struct run_pair pair = trained();
    among(&pair, true, 0, true);
    among(&pair, true, 60, false);
    const struct run_pair latents = toy_pair_of("deepseek_bf16");
    among(&latents, true, 64, true);
}

SV_TEST_MAIN(cmocka_unit_test(fp8_caches), cmocka_unit_test(plain), cmocka_unit_test(drafting),
             cmocka_unit_test(drafting_ahead_and_short_of_pages), cmocka_unit_test(of_experts),
             cmocka_unit_test(of_gptoss), cmocka_unit_test(of_states), cmocka_unit_test(of_latents))
