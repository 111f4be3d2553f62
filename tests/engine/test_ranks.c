/*
 * test_ranks.c - a model divided among ranks: at each number of ranks a draft never changes a
 * token, nor do batch, pages, preemption or the prefix cache; all ranks have the same bits after
 * every pass; a rank that fails, goes out of step or does not answer ends requests with an error.
 *
 * timeout: 300
 * release: soak
 *
 * The reference is plain decoding at the same number of ranks, one sequence at a time: another
 * number of ranks adds in another order, so its text is compared only where numbers leave no doubt.
 */
#include "testing.h"

#include "engine/legal.h"
#include "engine/ranked.h"
#include "engine/toy.h"

#include <stdlib.h>
#include <string.h>

enum { VOCAB = RUN_VOCAB };

/* 8 heads on 2 K/V heads, so that 4 ranks have each of these twice; an uneven mlp and vocabulary.
 */
static const struct toy toy_even = {.vocab = VOCAB,
                                    .hidden = 64,
                                    .n_layers = 3,
                                    .n_heads = 8,
                                    .n_kv = 2,
                                    .head_dim = 16,
                                    .mlp = 150,
                                    .max_position = 256,
                                    .block = 16,
                                    .draft_layers = 2,
                                    .scale = 0.2f,
                                    .seed = 5};

static struct run_pair pair_of(bool bf16)
{
    struct toy t = toy_even;
    t.bf16 = bf16;
    return (struct run_pair){toy_target(&t), toy_draft(&t)};
}

/* ---------------------------------------------------------------- a draft never changes a token */

static const struct run_arrangement arrangements[] = {
    {-1, 8, 1, 1, 64, 0}, {-1, 3, 64, 4, 7, 0},  {0, 8, 16, 1, 33, 0}, {1, 3, 16, 4, 512, 0},
    {3, 8, 4, 1, 19, 0},  {4, 1, 16, 1, 512, 0}, {4, 8, 4, 4, 40, 0},  {4, 5, 1, 1, 11, 5},
};

static void lossless(const struct run_pair *pair, enum sv_data_type dtype, bool mixed, int32_t tp,
                     int32_t n)
{
    ranked_lossless(&(struct ranked){pair, dtype, mixed, {.n = tp}, n}, arrangements,
                    sizeof arrangements / sizeof arrangements[0]);
}

static void f32_2(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(false);
    lossless(&pair, SV_TYPE_F32, false, 2, 12);
}
static void bf16_2(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    lossless(&pair, SV_TYPE_BF16, true, 2, 12);
}
static void f32_4(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(false);
    lossless(&pair, SV_TYPE_F32, true, 4, 10);
}
static void bf16_4(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    lossless(&pair, SV_TYPE_BF16, false, 4, 10);
}
static void bf16_8(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    lossless(&pair, SV_TYPE_BF16, true, 8, 4);
}

/* FP8 blocks of 16 x 16, FP8 and int8 rows; 3 heads. */
static void quantized_3(void **state)
{
    (void)state;
    const struct run_pair pair = {run_dir("tests/golden/quant/pair_target"), NULL};
    lossless(&pair, SV_TYPE_F32, true, 3, 8);
    lossless(&pair, SV_TYPE_BF16, false, 3, 8);
}

static void experts(struct run_pair *pair, bool bf16)
{
    struct toy t = toy_even;
    t.bf16 = bf16;
    t.n_experts = 10;
    t.n_chosen = 3;
    t.expert_mlp = 90;
    *pair = (struct run_pair){toy_target(&t), toy_draft(&t)};
}
static void experts_2(void **state)
{
    struct run_pair pair;
    (void)state;
    experts(&pair, true);
    lossless(&pair, SV_TYPE_BF16, true, 2, 10);
}
/* Each of them whole on one rank. */
static void whole_experts_2(void **state)
{
    struct run_pair pair;
    (void)state;
    experts(&pair, true);
    ranked_lossless(&(struct ranked){&pair, SV_TYPE_BF16, true, {.n = 2, .ep = true}, 10},
                    arrangements, sizeof arrangements / sizeof arrangements[0]);
    experts(&pair, false);
    ranked_lossless(&(struct ranked){&pair, SV_TYPE_F32, false, {.n = 2, .ep = true}, 6},
                    arrangements, sizeof arrangements / sizeof arrangements[0]);
}
static void experts_4(void **state)
{
    struct run_pair pair;
    (void)state;
    experts(&pair, false);
    lossless(&pair, SV_TYPE_F32, false, 4, 8);
}

/* What a grammar allows is masked on whole rows; forbidden drafts end their block. */
static void grammars(void **state)
{
    enum { N = 2 * LEGALS };
    struct toy t = toy_even;
    struct sv_grammar *g[LEGALS];
    struct run_case *c = run_cases(N, VOCAB, 40, 30, 9);
    struct run_out *ref = NULL;
    (void)state;
    t.bf16 = true;
    const struct run_pair pair = {toy_speaking_target(&t), toy_draft(&t)};
    ranked_mix(c, N);
    for (int k = 0; k < LEGALS; k++)
        g[k] = legal_grammar((enum legal)k);
    for (int i = 0; i < N; i++) {
        c[i].req.grammar = g[i % LEGALS];
        c[i].req.ignore_eos = false;
    }
    static const struct run_arrangement as[] = {{-1, 1, 16, 1, 512, 0}, {4, N, 4, 1, 33, 0}};
    for (int i = 0; i < 2; i++) {
        struct sv_engine *e = run_open_ranks(&pair, &as[i], SV_ISA_AUTO, SV_TYPE_BF16, NULL,
                                             (struct run_ranks){.n = 2});
        struct run_out *out = run_all(e, c, N);
        if (ref) {
            run_same(ref, out, N, "grammars");
            run_out_free(ref, N);
        }
        ref = out;
        sv_engine_close(e);
    }
    for (int i = 0; i < N; i++)
        assert_int_not_equal(legal_check((enum legal)(i % LEGALS), ref[i].text, ref[i].n_text),
                             LEGAL_NOT);
    for (int k = 0; k < LEGALS; k++)
        sv_grammar_unref(g[k]);
    run_out_free(ref, N);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

/* ---------------------------------------------------------------- mates, preemption, prefixes */

static void together_2(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    ranked_together(&(struct ranked){&pair, SV_TYPE_AUTO, true, {.n = 2}, 16}, false);
}
static void together_4(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    ranked_together(&(struct ranked){&pair, SV_TYPE_AUTO, true, {.n = 4}, 16}, true);
}

/* 5,000 short requests in orders of every kind, drafted, preempted, with prefixes found, have the
 * tokens of those that ran alone and plain. */
static void soak(void **state)
{
    enum { N = 256 };
    const int32_t n_rounds = sv_test_brief() ? 1 : 20, n = run_few(N);
    const struct run_pair pair = pair_of(true);
    struct run_case *c = run_cases(n, VOCAB, 24, 8, 17), round[N];
    struct run_out *ref = calloc((size_t)n, sizeof *ref), want[N];
    struct sv_engine_options o = {
        .target_dir = pair.target, .context = 64, .n_threads = 1, .no_prefix_cache = true, .tp = 2};
    const struct sv_engine_tuning tight = {.cache_pages = 12};
    (void)state;
    ranked_mix(c, n);
    struct sv_engine *e = run_open(&o, NULL);
    for (int32_t i = 0; i < n; i++) {
        struct run_out *one = run_all(e, &c[i], 1);
        ref[i] = *one;
        free(one);
    }
    sv_engine_close(e);
    o.draft_dir = pair.draft;
    o.max_sequences = 8;
    o.no_prefix_cache = false;
    e = run_open_tuned(&o, &tight, NULL);
    for (int32_t k = 0; k < n_rounds; k++) {
        for (int32_t i = 0; i < n; i++) {
            const int32_t at = (i * (2 * k + 1) + 37 * k) % n;
            round[i] = c[at];
            want[i] = ref[at];
        }
        struct run_out *out = run_all(e, round, n);
        run_same(want, out, n, "soak");
        run_out_free(out, n);
    }
    struct sv_engine_stats st;
    sv_get_engine_stats(e, &st);
    print_message("%d requests: %lld steps, %lld preemptions, %lld tokens found\n", n_rounds * n,
                  (long long)st.n_steps, (long long)st.n_preemptions, (long long)st.n_cache_hits);
    assert_true(n_rounds == 1 || (st.n_preemptions > 0 && st.n_cache_hits > 0));
    sv_engine_close(e);
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Under the width policy, with pruned drafts. */
static void policy(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    ranked_policy(&pair, VOCAB, (struct run_ranks){.n = 2});
}

/* ---------------------------------------------------------------- numbers */

static void close_to_one(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(false);
    static const struct {
        const char *target;
        int32_t vocab, n;
    } others[] = {{"quant/pair_target", 300, 3},   {"tiny/qwen3_tied_bf16", 320, 4},
                  {"tiny/llama_bias_f16", 160, 3}, {"tiny/llama_rope3_bf16", 288, 2},
                  {"tiny/qwen3_moe_f32", 131, 2},  {"tiny/qwen3_moe_bf16", 160, 3}};
    for (int32_t n = 2; n <= 8; n *= 2)
        ranked_close(&pair, VOCAB, (struct run_ranks){.n = n});
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "tests/golden/%s", others[i].target);
        const struct run_pair other = {run_dir(name), NULL};
        ranked_close(&other, others[i].vocab, (struct run_ranks){.n = others[i].n});
    }
}

/* ---------------------------------------------------------------- ranks that do not fit or fail */

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
    const struct run_pair pair = pair_of(true);
    struct sv_engine_options o = {
        .device = "cpu", .target_dir = pair.target, .n_threads = 1, .tp = 3};
    refused(&o, "target: 8 heads of 16, 2 K/V heads");
    refused(&o, "among 3 ranks; the numbers of ranks that fit: 1, 2, 4, 8");
    o.tp = 17;
    refused(&o, "tp must be in [0, 16]");
    o.tp = 2;
    o.target_dir = run_dir("tests/golden/tiny/gptoss_mxfp4"); /* one group */
    refused(&o, "that of experts 32 and 160 tokens in groups of 32 weights");
    refused(&o, "fit: 1");
    o.target_dir = run_dir("tests/golden/tiny/qwen3_5_moe_bf16");
    refused(&o, "1 key heads of delta rules");
    o.target_dir = run_dir("tests/golden/tiny/deepseek_bf16");
    refused(&o, "target: 3 heads of 40, 3 K/V heads");
    o.target_dir = run_dir("tests/golden/tiny/pair_target"); /* 3 heads, the draft's are 4 */
    o.draft_dir = run_dir("tests/golden/tiny/pair_draft_full_b16");
    o.tp = 3;
    refused(&o, "draft: 4 heads of 16, 2 K/V heads");
    o.target_dir = pair.target;
    o.draft_dir = NULL;
    o.tp = 2;
    o.ep = true;
    refused(&o, "ep: the model has no experts");
    o.target_dir = run_dir("tests/golden/tiny/qwen3_moe_f32");
    o.tp = 1;
    refused(&o, "ep divides experts among ranks: it needs tp");
    o.target_dir = pair.target;
    o.ep = false;
    o.tp = 2;
    o.copy_weights = true;
    refused(&o, "copy_weights with tp");
}

/* Every allocation and file that an open uses fails once, on whatever rank it is. */
static void no_memory(void **state)
{
    (void)state;
    const struct run_pair pair = pair_of(true);
    struct sv_engine_options o = {.device = "cpu",
                                  .target_dir = pair.target,
                                  .draft_dir = pair.draft,
                                  .context = 64,
                                  .n_threads = 1,
                                  .tp = 2};
    int64_t nth = 1;
    int n_failed = 0;
    for (;; nth += 1 + nth / 8) {
        struct sv_engine *e = NULL;
        struct sv_err err = {0};
        sv_fault_arm(nth);
        int rc = sv_engine_open(&e, &o, NULL, &err);
        const bool reached = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        sv_engine_close(e);
        assert_int_equal(sv_alloc_live(), 0);
        n_failed += rc != 0;
        if (rc)
            assert_true(err.msg[0] != 0);
        if (!reached)
            break;
    }
    print_message("%d opens failed\n", n_failed);
    assert_true(n_failed > 10);
}

/* Longer than a busy machine stops a thread; for those that find a fault sooner, far longer. */
#define SILENT_US 6000000
#define LONG_US 60000000

/* A fault in the middle: all requests end with an error that says `text`, in time. */
static void fails(struct sv_rank_fault_at fault, int32_t tp, const char *text)
{
    enum { N = 4 };
    const struct run_pair pair = pair_of(true);
    const struct sv_engine_options o = {.target_dir = pair.target,
                                        .draft_dir = pair.draft,
                                        .context = 128,
                                        .n_threads = 1,
                                        .max_sequences = 2,
                                        .tp = tp};
    const bool gpu = sv_env("SALVO_TEST_DEVICE") != NULL;
    fault.pass += gpu ? 60 : 0; /* behind the warm-up's */
    const struct sv_engine_tuning tuning = {
        .rank_fault = fault, .rank_timeout_us = fault.kind == SV_RANK_SILENT ? SILENT_US : LONG_US};
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    struct run_case *c = run_cases(N, VOCAB, 40, 60, 7);
    struct run_events events[N] = {{0}};
    struct sv_err err = {0};
    int rc, n_steps = 0;
    for (int i = 0; i < N; i++) {
        struct sv_request r = c[i].req;
        r.prompt_ids = c[i].prompt;
        r.n_prompt_ids = c[i].n_prompt;
        r.max_tokens = 60;
        r.ignore_eos = true;
        r.on_event = run_on_event;
        r.user = &events[i];
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), SV_OK);
    }
    const int64_t begin = sv_clock_us();
    while ((rc = sv_engine_step(e, &err)) == SV_OK && n_steps++ < 1000)
        sv_engine_deliver(e);
    print_message("%d ranks, step %d, %.1f s: %s\n", tp, n_steps,
                  (double)(sv_clock_us() - begin) / 1e6, err.msg);
    assert_int_equal(rc, SV_EDEVICE);
    /* The step of the fault, or the next; a GPU is up to two ahead. */
    if (!gpu)
        assert_in_range(n_steps, fault.pass, fault.pass + 1);
    if (!strstr(err.msg, text))
        fail_msg("'%s' is not in '%s'", text, err.msg);
    sv_engine_deliver(e);
    for (int i = 0; i < N; i++) {
        assert_int_equal(events[i].n_ends, 1);
        assert_int_equal(events[i].finish, SV_FINISH_ERROR);
    }
    assert_int_equal(sv_engine_step(e, &err), SV_EDEVICE);
    sv_engine_close(e);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

static void silent(void **state)
{
    (void)state;
    for (int32_t tp = 2; tp <= ranked_most(4); tp += 2)
        fails((struct sv_rank_fault_at){SV_RANK_SILENT, 1, 5}, tp,
              "no answer from rank 1 for 6000 ms");
}
static void tells(void **state)
{
    (void)state;
    for (int32_t tp = 2; tp <= ranked_most(4); tp += 2)
        fails((struct sv_rank_fault_at){SV_RANK_FAILS, tp - 1, 4}, tp,
              "failed: a fault that a test asked for");
}
/* Both counts are reported, and no wait lasts until the timeout; ahead of a GPU a follower may see
 * it first. */
static void diverges(void **state)
{
    (void)state;
    for (int32_t tp = 2; tp <= ranked_most(4); tp += 2)
        fails((struct sv_rank_fault_at){SV_RANK_SKIPS, 1, 3}, tp,
              sv_env("SALVO_TEST_DEVICE") ? "are not in step: " : "are not in step: pass ");
}
/* Both kinds are reported; a GPU, which compares none, waits until the timeout. */
static void takes_another_key(void **state)
{
    (void)state;
    run_needs_cpu();
    for (int32_t tp = 2; tp <= 4; tp += 2) {
        const struct sv_rank_fault_at fault = {SV_RANK_STRAYS, tp - 1, 3};
        fails(fault, tp, tp == 2 ? " of best and " : " of logits and ");
    }
}

/* No step calls anything that can fail for lack of memory, on whatever rank it is. */
static void steps_allocate_nothing(void **state)
{
    enum { N = 6 };
    const struct run_pair pair = pair_of(true);
    const struct sv_engine_options o = {.device = "cpu",
                                        .target_dir = pair.target,
                                        .draft_dir = pair.draft,
                                        .context = 128,
                                        .n_threads = 2,
                                        .max_sequences = 4,
                                        .tp = 2};
    struct sv_engine *e = run_open(&o, NULL);
    struct run_case *c = run_cases(N, VOCAB, 40, 30, 3);
    struct run_events events[N + 1] = {{0}};
    struct sv_err err = {0};
    int32_t n_steps = 0;
    (void)state;
    ranked_mix(c, N);
    /* One is there first: a rank that is late is still opening while the first step begins. */
    for (int i = N; i >= 0; i--) {
        struct sv_request r = c[i % N].req;
        r.prompt_ids = c[i % N].prompt;
        r.n_prompt_ids = c[i % N].n_prompt;
        r.max_tokens = 30;
        r.on_event = run_on_event;
        r.user = &events[i];
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), SV_OK);
        while (i == N && e->sched.n_unfinished) {
            assert_int_equal(sv_engine_step(e, &err), SV_OK);
            sv_engine_deliver(e);
        }
    }
    while (e->sched.n_unfinished) {
        sv_fault_arm(1);
        if (sv_engine_step(e, &err))
            fail_msg("%s", err.msg);
        assert_int_equal(sv_engine_settle(e, &err), SV_OK);
        assert_int_equal(sv_fault_calls(), 0);
        sv_fault_arm(0);
        sv_engine_deliver(e);
        n_steps++;
    }
    assert_true(n_steps > 5);
    for (int i = 0; i <= N; i++)
        assert_int_not_equal(events[i].finish, SV_FINISH_ERROR);
    sv_engine_close(e);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(f32_2), cmocka_unit_test(bf16_2), cmocka_unit_test(f32_4),
             cmocka_unit_test(bf16_4), cmocka_unit_test(bf16_8), cmocka_unit_test(quantized_3),
             cmocka_unit_test(experts_2), cmocka_unit_test(whole_experts_2),
             cmocka_unit_test(experts_4), cmocka_unit_test(grammars), cmocka_unit_test(together_2),
             cmocka_unit_test(together_4), cmocka_unit_test(soak), cmocka_unit_test(policy),
             cmocka_unit_test(close_to_one), cmocka_unit_test(refusals),
             cmocka_unit_test(no_memory), cmocka_unit_test(silent), cmocka_unit_test(tells),
             cmocka_unit_test(diverges), cmocka_unit_test(takes_another_key),
             cmocka_unit_test(steps_allocate_nothing))
