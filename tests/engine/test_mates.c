/*
 * test_mates.c - a request's answer does not depend on concurrent requests: the same tokens alone
 * and among 64 others, with and without a draft, wherever in a block its drafts are rejected,
 * whatever the others' parameters are and whenever they end. For each family.
 *
 * timeout: 240
 * release: all
 */
#include "testing.h"

#include "engine/families.h"

#include <stdlib.h>
#include <string.h>

enum { MANY = 65, FEW = 22, CONTEXT = 160 };

/* Long and short prompts, greedy and sampled, with penalties and stop ids: a mixed crowd. */
static struct run_case *crowd(const struct family *f, int32_t n)
{
    static int32_t stop = 17;
    struct run_case *c = family_cases(f, n, 100, 40, 3);
    for (int i = 0; i < n; i++) {
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

/* Plain, and each request has the engine to itself. */
static struct run_out *alone(struct sv_engine_options o, const struct run_case *c, int32_t n)
{
    o.no_prefix_cache = true;
    o.draft_dir = NULL;
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = calloc(MANY, sizeof *ref);
    for (int32_t i = 0; i < n; i++) {
        struct run_out *one = run_all(e, &c[i], 1);
        ref[i] = *one;
        free(one);
    }
    sv_engine_close(e);
    return ref;
}

enum drafter { NONE, OWN, RIGHT_AT_TIMES };
struct company {
    enum drafter drafter;
    bool tight, ahead, leave; /* tight: pages for few; leave: every third one is canceled */
};

static void among(struct sv_engine_options o, struct run_case *c, const struct run_out *ref,
                  int32_t n, const struct company *a)
{
    const struct run_truth truth = {c, ref};
    const struct sv_engine_tuning tuning = {.cache_pages = !a->tight           ? 0
                                                           : a->drafter == OWN ? n
                                                                               : 17,
                                            .run_ahead = a->ahead,
                                            .pad = a->ahead};
    uint32_t refused_at = 0;
    int32_t n_left = 0;
    struct sv_engine_stats st;
    o.max_sequences = n;
    o.draft_dir = a->drafter == OWN ? o.draft_dir : NULL;
    struct sv_engine *e = run_open_tuned(
        &o, &tuning, a->drafter == RIGHT_AT_TIMES ? run_fake(SV_FAKE_PREFIX, &truth) : NULL);
    for (int32_t i = 0; i < n; i++) /* in the first block, the second or the third */
        c[i].cancel_at = a->leave && i % 3 == 0 ? 1 + i % 19 : 0;
    struct run_out *out = run_all(e, c, n);
    sv_get_engine_stats(e, &st);
    print_message("%lld steps, %lld preemptions\n", (long long)st.n_steps,
                  (long long)st.n_preemptions);
    assert_true(!a->tight || st.n_preemptions > 0);
    for (int32_t i = 0; i < n; i++) {
        char what[64];
        snprintf(what, sizeof what, "case %d among %d, drafter %d", i, n - 1, (int)a->drafter);
        refused_at |= out[i].refused_at;
        if (out[i].finish != SV_FINISH_CANCELED) {
            run_same(&ref[i], &out[i], 1, what);
            continue;
        }
        assert_true(c[i].cancel_at && out[i].n_tokens < ref[i].n_tokens);
        assert_memory_equal(out[i].tokens, ref[i].tokens,
                            (size_t)out[i].n_tokens * sizeof *ref[i].tokens);
        n_left++;
    }
    assert_true(a->leave ? n_left > 2 : !n_left);
    if (a->drafter == RIGHT_AT_TIMES)
        assert_int_equal(refused_at, 0xffff);
    run_out_free(out, n);
    sv_engine_close(e);
}

static void each(void **state)
{
    static const struct company companies[] = {{NONE, false, true, false},
                                               {OWN, true, true, false},
                                               {OWN, false, false, false},
                                               {RIGHT_AT_TIMES, true, true, true},
                                               {RIGHT_AT_TIMES, false, false, true}};
    const struct family *f = *state;
    const struct run_pair pair = family_pair(f);
    const int32_t n = sv_test_brief() ? FEW : family_few(f, MANY);
    struct run_case *c = crowd(f, n);
    const struct sv_engine_options o = {.target_dir = pair.target,
                                        .draft_dir = pair.draft,
                                        .context = CONTEXT + family_more_rows(f),
                                        .n_threads = 2,
                                        .prefill_chunk = 64};
    struct run_out *ref = alone(o, c, n);
    for (size_t k = 0; k < sizeof companies / sizeof companies[0]; k++)
        if (!sv_test_brief() || k % 2)
            among(o, c, ref, n, &companies[k]);
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Preempted, shared or found again: every reader reads what is stored. */
static void fp8_caches(void **state)
{
    const struct family *of[] = {family_named("qwen3"), family_named("deepseek")};
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        void *f = (void *)(uintptr_t)of[i];
        each(&f);
    }
}

FAMILY_TEST_MAIN(each, cmocka_unit_test(fp8_caches))
