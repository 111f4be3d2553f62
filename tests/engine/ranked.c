/*
 * ranked.c - see ranked.h.
 */
#include "engine/ranked.h"

#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 96 }; /* of prompts and answers here */

int32_t ranked_most(int32_t n)
{
    return sv_env("SALVO_TEST_DEVICE") && !run_has_gpus(n) ? 2 : n;
}

void ranked_mix(struct run_case *c, int32_t n)
{
    static const double temperature[] = {0.7, 0, 1.5, 0};
    static const int32_t some[] = {40, 77, 150, 299}, words[] = {40, -1, 77, 101, -1};
    static const float bias[] = {4, -3, -100, 5};
    for (int32_t i = 0; i < n; i++) {
        struct sv_request *r = &c[i].req;
        r->temperature = temperature[i % 4];
        r->top_k = i % 3 == 0 ? 20 : 0;
        r->top_p = i % 5 < 2 ? 0.9 : 1;
        r->seed = (uint64_t)i * 1000003;
        r->presence_penalty = i % 5 ? 0 : 0.5;
        r->repetition_penalty = i % 6 ? 0 : 1.2;
        r->logprobs = i % 7 == 0;
        r->prompt_logprobs = i % 14 == 0;
        r->n_top_logprobs = i % 7 ? 0 : 3;
        r->logprob_token_ids = some;
        r->n_logprob_token_ids = i % 14 ? 0 : 4;
        r->bias_ids = some;
        r->bias = bias;
        r->n_bias = i % 4 == 1 ? 4 : 0;
        r->bad_ids = words;
        r->n_bad_ids = i % 5 == 2 ? 5 : 0;
    }
}

void ranked_lossless(const struct ranked *r, const struct run_arrangement *arrangements,
                     size_t n_arrangements)
{
    struct run_case *c = run_cases(r->n, RUN_VOCAB, 50, 20, 42);
    if (r->mixed)
        ranked_mix(c, r->n);
    run_context(CONTEXT);
    const struct run_arrangement plain = {-1, 1, 16, 1, 512, 0};
    struct sv_engine *e = run_open_ranks(r->pair, &plain, SV_ISA_AUTO, r->dtype, NULL, r->ranks);
    struct run_out *ref = run_all(e, c, r->n);
    assert_true(e->ranks->n_bits > r->n);
    sv_engine_close(e);
    const struct run_truth t = {c, ref};
    for (size_t i = 0; i < n_arrangements; i++) {
        const struct run_arrangement a = arrangements[i];
        char what[128];
        if (a.drafter == 4 && !r->pair->draft)
            continue;
        e = run_open_ranks(r->pair, &a, SV_ISA_AUTO, r->dtype, &t, r->ranks);
        struct run_out *out = run_all(e, c, r->n);
        snprintf(what, sizeof what, "%d ranks%s%s: drafter %d batch %d page %d threads %d width %d",
                 r->ranks.n, r->ranks.ep ? " with experts each" : "",
                 r->ranks.dp ? " with sequences each" : "", a.drafter, a.batch, a.page, a.threads,
                 a.width);
        run_same(ref, out, r->n, what);
        if (a.drafter == SV_FAKE_RIGHT)
            assert_int_equal(e->accept.n_accepted, e->accept.n_drafted);
        if (a.drafter >= 0)
            assert_true(e->accept.n_steps > r->n / 2);
        run_out_free(out, r->n);
        sv_engine_close(e);
    }
    run_context(0);
    run_out_free(ref, r->n);
    run_cases_free(c, r->n);
    assert_int_equal(sv_alloc_live(), 0);
}

/* All of them, twice: the second time prefixes are there, if there is room for them. */
static void run_together(const struct sv_engine_options *o, const struct sv_engine_tuning *tuning,
                         const struct run_case *c, const struct run_out *ref, int32_t n)
{
    struct sv_engine *e = run_open_tuned(o, tuning, NULL);
    for (int again = 0; again < 2; again++) {
        struct run_out *out = run_all(e, c, n);
        run_same(ref, out, n, again ? "together, again" : "together");
        run_out_free(out, n);
    }
    struct sv_engine_stats st;
    sv_get_engine_stats(e, &st);
    print_message("%d ranks: %lld steps, %lld preemptions, %lld tokens found\n", o->tp,
                  (long long)st.n_steps, (long long)st.n_preemptions, (long long)st.n_cache_hits);
    assert_true(tuning->cache_pages ? st.n_preemptions > 0 : st.n_cache_hits > 0);
    sv_engine_close(e);
}

void ranked_together(const struct ranked *r, bool ahead)
{
    const int32_t n = r->n;
    struct run_case *c = run_cases(n, RUN_VOCAB, 60, 30, 3);
    struct sv_engine_options o = {.target_dir = r->pair->target,
                                  .dtype = r->dtype,
                                  .context = 128,
                                  .n_threads = 1,
                                  .prefill_chunk = 64,
                                  .no_prefix_cache = true,
                                  .tp = r->ranks.n,
                                  .ep = r->ranks.ep,
                                  .dp_attention = r->ranks.dp};
    if (r->mixed)
        ranked_mix(c, n);
    struct sv_engine_tuning tuning = {.compare_ranks = true};
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    struct run_out *ref = calloc((size_t)n, sizeof *ref);
    for (int i = 0; i < n; i++) {
        struct run_out *one = run_all(e, &c[i], 1);
        ref[i] = *one;
        free(one);
    }
    sv_engine_close(e);
    o.max_sequences = n;
    o.no_prefix_cache = false;
    o.draft_dir = r->pair->draft;
    tuning.run_ahead = tuning.pad = ahead;
    run_together(&o, &tuning, c, ref, n);
    tuning.cache_pages = 16;
    run_together(&o, &tuning, c, ref, n);
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

void ranked_close(const struct run_pair *pair, int32_t vocab, struct run_ranks ranks)
{
    enum { N = 6 };
    struct run_case *c = run_cases(N, vocab, 60, 4, 11);
    struct run_out *out[2];
    const struct run_arrangement a = {-1, 2, 16, 1, 512, 0};
    float worst = 0;
    int64_t n_other = 0;
    run_context(CONTEXT);
    for (int i = 0; i < N; i++)
        c[i].req.prompt_logprobs = c[i].req.logprobs = true;
    for (int i = 0; i < 2; i++) {
        struct sv_engine *e = run_open_ranks(pair, &a, SV_ISA_AUTO, SV_TYPE_F32, NULL,
                                             i ? ranks : (struct run_ranks){.n = 1});
        out[i] = run_all(e, c, N);
        sv_engine_close(e);
    }
    run_context(0);
    for (int i = 0; i < N; i++)
        for (int32_t k = 1; k < c[i].n_prompt; k++) {
            const float d = out[1][i].prompt_lp[k].logprob - out[0][i].prompt_lp[k].logprob;
            worst = fabsf(d) > worst ? fabsf(d) : worst;
            n_other += d != 0;
        }
    print_message("%d ranks: %lld others, at most %g apart\n", ranks.n, (long long)n_other,
                  (double)worst);
    assert_true(worst < 1e-4f && n_other > 0);
    for (int i = 0; i < 2; i++)
        run_out_free(out[i], N);
    run_cases_free(c, N);
}

void ranked_policy(const struct run_pair *pair, int32_t vocab, struct run_ranks ranks)
{
    enum { N = 8 };
    struct run_case *c = run_cases(N, vocab, 40, 24, 9);
    struct sv_engine_options o = {.target_dir = pair->target,
                                  .context = 128,
                                  .n_threads = 1,
                                  .tp = ranks.n,
                                  .ep = ranks.ep,
                                  .dp_attention = ranks.dp,
                                  .max_sequences = N};
    const struct sv_engine_tuning tuning = {.compare_ranks = true};
    ranked_mix(c, N);
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    struct run_out *ref = run_all(e, c, N);
    sv_engine_close(e);
    o.draft_dir = pair->draft;
    o.auto_width = true;
    e = run_open_tuned(&o, &tuning, NULL);
    run_set_costs(e->policy);
    struct run_out *out = run_all(e, c, N);
    run_same(ref, out, N, "auto width");
    run_out_free(out, N);
    run_out_free(ref, N);
    sv_engine_close(e);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

void ranked_no_memory(const struct sv_engine_options *o, int64_t rate)
{
    int n_failed = 0;
    bool reached = true;
    for (int64_t nth = 1; reached; nth += 1 + nth / rate) {
        struct sv_engine *e = NULL;
        struct sv_err err = {0};
        sv_fault_arm(nth);
        const int rc = sv_engine_open(&e, o, NULL, &err);
        reached = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        sv_engine_close(e);
        assert_int_equal(sv_alloc_live(), 0);
        assert_true(!rc || err.msg[0]);
        n_failed += rc != 0;
    }
    assert_true(n_failed > 10);
}
