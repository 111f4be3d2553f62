/*
 * test_preempt.c - caches too small for the running sequences: sequences are preempted and resume,
 * and neither a token nor an accept length changes.
 *
 * timeout: 240
 * release: all
 *
 * The reference runs one sequence at a time with pages for all of it. Every arrangement below has
 * pools of little more than one sequence, so that most sequences are preempted, several times, in
 * their prompt and in their answer. For each family.
 */
#include "testing.h"

#include "engine/families.h"

#include <string.h>

enum { MAX_PROMPT = 40, MAX_TOKENS = 54, BLOCK = 16, CONTEXT = 96 };

struct tight {
    int32_t batch, page, threads, chunk, extra; /* extra: positions beyond one full sequence */
};
static const struct tight tight[] = {
    {2, 16, 1, 512, 0}, {8, 1, 2, 24, 40},  {32, 16, 2, 64, 100},
    {5, 64, 1, 7, 64},  {17, 4, 2, 33, 16}, {32, 1, 1, 512, 60},
};
enum { N_TIGHT = sizeof tight / sizeof tight[0] };

static struct sv_engine *open_tight(const struct sv_engine_options *base, const struct tight *t,
                                    struct sv_drafter *fake)
{
    struct sv_engine_options o = *base;
    o.max_sequences = t->batch;
    o.page_size = t->page;
    o.n_threads = t->threads;
    o.prefill_chunk = t->chunk;
    o.draft_dir = fake ? NULL : o.draft_dir;
    const bool ahead = t->threads > 1;
    const int32_t positions = o.context + 2 * BLOCK + t->extra;
    const struct sv_engine_tuning tuning = {
        .cache_pages = (positions + t->page - 1) / t->page, .run_ahead = ahead, .pad = ahead};
    return run_open_tuned(&o, &tuning, fake);
}

/* A fake is right for another number of drafts at each call, so it takes other steps. */
static void compare(const struct sv_engine_options *o, const struct tight *t,
                    const struct run_case *c, const struct run_out *ref, int32_t n, bool fake)
{
    const struct run_truth truth = {c, ref};
    struct sv_engine *e = open_tight(o, t, fake ? run_fake(SV_FAKE_PREFIX, &truth) : NULL);
    struct run_out *out = run_all(e, c, n);
    struct sv_engine_stats st;
    char what[128];
    snprintf(what, sizeof what, "batch %d page %d chunk %d extra %d%s", t->batch, t->page, t->chunk,
             t->extra, fake ? ", fake" : "");
    (fake ? run_same : run_same_steps)(ref, out, n, what);
    sv_get_engine_stats(e, &st);
    int64_t sum = 0;
    uint32_t refused_at = 0;
    for (int32_t k = 0; k < n; k++) {
        sum += out[k].n_preemptions;
        refused_at |= out[k].refused_at;
    }
    assert_int_equal(sum, st.n_preemptions);
    print_message("%s: %lld preemptions in %lld steps\n", what, (long long)sum,
                  (long long)st.n_steps);
    assert_true(sum > 0 || t->batch == 2);
    assert_true(st.n_waiting == 0 && st.n_running == 0);
    assert_true(!fake || __builtin_popcount(refused_at) > (n < 20 ? 8 : 15));
    run_out_free(out, n);
    sv_engine_close(e);
}

/* In part: once with the draft, once with a fake. */
static void run_tight(const struct family *f, enum sv_data_type dtype, bool draft, int32_t n)
{
    const struct run_pair pair = family_pair(f);
    const struct sv_engine_options o = {.target_dir = pair.target,
                                        .draft_dir = draft ? pair.draft : NULL,
                                        .dtype = dtype,
                                        .context = CONTEXT + family_more_rows(f)};
    struct run_case *c = family_cases(f, n, MAX_PROMPT, MAX_TOKENS, 77);
    for (int i = 0; i < n; i++) {
        c[i].req.temperature = i % 4 ? 0.9 : 0;
        c[i].req.top_p = i % 3 ? 0.95 : 1;
        c[i].req.seed = (uint64_t)i * 7919;
    }
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *ref = run_all(e, c, n);
    sv_engine_close(e);
    for (size_t k = 0; k < N_TIGHT; k++) {
        if (run_left_out(k))
            continue;
        struct tight t = tight[k];
        t.page = family_page(f, t.page);
        if (k < N_TIGHT / 2 || !sv_test_brief())
            compare(&o, &t, c, ref, n, false);
        if (k >= N_TIGHT / 2)
            compare(&o, &t, c, ref, n, true);
    }
    run_out_free(ref, n);
    run_cases_free(c, n);
    assert_int_equal(sv_alloc_live(), 0);
}

static void each(void **state)
{
    const struct family *f = *state;
    run_tight(f, SV_TYPE_BF16, true, family_few(f, sv_test_brief() ? 12 : 20));
    if (!sv_test_brief())
        run_tight(f, SV_TYPE_F32, true, 8);
}

/* States are computed again with the prompt and the answer so far. */
static void plain(void **state)
{
    static const char *const names[] = {"qwen3", "qwen3_5"};
    (void)state;
    for (size_t i = 0; i < 2; i++)
        run_tight(family_named(names[i]), SV_TYPE_BF16, false, sv_test_brief() ? 12 : 40);
}

/* Preempted, shared or found again: every reader reads what is stored. */
static void fp8_caches(void **state)
{
    (void)state;
    run_kv_dtype(SV_KV_FP8, SV_KV_FP8);
    run_tight(family_named("qwen3"), SV_TYPE_F32, true, sv_test_brief() ? 12 : 30);
    run_tight(family_named("llama"), SV_TYPE_BF16, true, sv_test_brief() ? 12 : 30);
    run_tight(family_named("deepseek"), SV_TYPE_BF16, true, sv_test_brief() ? 12 : 16);
}

FAMILY_TEST_MAIN(each, cmocka_unit_test(plain), cmocka_unit_test(fp8_caches))
