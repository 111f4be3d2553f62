/*
 * test_windows.c - a draft with a sliding layer, whose pool holds windows and not contexts: the
 * same tokens and accept lengths as with one sequence alone, with prefixes found, steps ahead and
 * widths chosen by measured costs.
 */
#include "testing.h"

#include "engine/run.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT = 220, N = 30 };

static struct sv_engine_options options(void)
{
    return (struct sv_engine_options){.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                      .draft_dir =
                                          run_dir("tests/golden/tiny/pair_draft_sliding_b8"),
                                      .dtype = SV_TYPE_F32,
                                      .context = CONTEXT,
                                      .n_threads = 2};
}

static struct run_out *alone(const struct run_case *c)
{
    struct sv_engine_options o = options();
    o.no_prefix_cache = true;
    struct sv_engine *e = run_open(&o, NULL);
    struct run_out *out = run_all(e, c, N);
    sv_engine_close(e);
    return out;
}

/* The pools that the engine chose: the sliding one has less than half of the others' pages. */
static void check_pools(const struct sv_engine *e)
{
    int32_t n_sliding = 0;
    for (int32_t g = 0; g < e->cache.n_groups; g++) {
        const struct sv_cache_group_desc *d = &e->cache.group[g].d;
        n_sliding += d->window > 0;
        if (d->window)
            assert_in_range(d->n_pages, 1, e->cache.group[e->cache.main].d.n_pages / 2);
        assert_int_equal(d->owner == SV_CACHE_DRAFT, g > 0);
    }
    assert_true(n_sliding == 1 && e->cache.n_groups == 3);
}

/* Each prompt with its answer and one more token as the next prompt. */
static struct run_case *next_turn(const struct run_case *c, const struct run_out *out)
{
    struct run_case *d = run_cases(N, RUN_VOCAB, 1, 20, 9);
    for (int32_t i = 0; i < N; i++) {
        const int32_t n = c[i].n_prompt + out[i].n_tokens, last = d[i].prompt[0];
        d[i].prompt = realloc(d[i].prompt, ((size_t)n + 1) * sizeof(int32_t));
        memcpy(d[i].prompt, c[i].prompt, (size_t)c[i].n_prompt * sizeof(int32_t));
        memcpy(d[i].prompt + c[i].n_prompt, out[i].tokens,
               (size_t)out[i].n_tokens * sizeof(int32_t));
        d[i].prompt[n] = last;
        d[i].n_prompt = n + 1;
        d[i].max_tokens = 20;
    }
    return d;
}

static void small_pools(void **state)
{
    (void)state;
    static const struct {
        int32_t batch, page, chunk;
        bool ahead;
    } settings[] = {{3, 4, 16, false}, {6, 1, 24, true}, {4, 8, 33, true}, {8, 2, 40, false}};
    struct run_case *c = run_cases(N, RUN_VOCAB, 130, 50, 5);
    struct run_out *ref = alone(c);
    struct run_case *d = next_turn(c, ref);
    struct run_out *ref2 = alone(d);
    for (size_t k = 0; k < sizeof settings / sizeof settings[0]; k++) {
        const int32_t n = settings[k].batch;
        struct sv_engine_options o = options();
        o.max_sequences = n;
        o.page_size = settings[k].page;
        o.prefill_chunk = settings[k].chunk;
        const struct sv_engine_tuning tuning = {.run_ahead = settings[k].ahead,
                                                .pad = settings[k].ahead};
        struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
        check_pools(e);
        struct run_out *all = run_all(e, c, N); /* more than there are slots */
        run_same_steps(ref, all, N, "all");
        run_out_free(all, N);
        for (int32_t i = 0; i + n <= N; i += n) {
            struct run_out *a = run_all(e, c + i, n), *b = run_all(e, d + i, n);
            run_same_steps(ref + i, a, n, "first turn");
            run_same_steps(ref2 + i, b, n, "second turn");
            run_out_free(a, n), run_out_free(b, n);
        }
        print_message("%d pages of %d: %lld of %lld prompt tokens found, %lld preemptions\n",
                      e->cache.group[1].d.n_pages, e->cache.group[0].d.n_pages,
                      (long long)e->sched.n_cache_hits, (long long)e->sched.n_cache_queries,
                      (long long)e->sched.n_preemptions);
        assert_true(e->sched.n_cache_hits > e->sched.n_cache_queries / 4);
        assert_int_equal(e->sched.n_preemptions, 0);
        sv_engine_close(e);
    }
    run_out_free(ref, N), run_out_free(ref2, N);
    run_cases_free(c, N), run_cases_free(d, N);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Calibration measures longer contexts in a tenth of a second, which other programs may take away:
 * then once more. */
static struct sv_engine *open_measured(const struct sv_engine_options *o)
{
    for (int tries = 1;; tries++) {
        struct sv_engine *e = run_open(o, NULL);
        assert_non_null(e->policy);
        if (e->policy->cost.n_ctx > 1)
            return e;
        assert_true(tries < 30);
        sv_engine_close(e);
    }
}

/* Calibration puts its scratch sequences at contexts whose beginning the window has passed. */
static void measured_widths(void **state)
{
    (void)state;
    struct run_case *c = run_cases(N, RUN_VOCAB, 150, 50, 6);
    struct run_out *ref = alone(c);
    struct sv_engine_options o = options();
    o.max_sequences = 4;
    o.page_size = 4;
    o.prefill_chunk = 16;
    o.auto_width = true;
    struct sv_engine *e = open_measured(&o);
    check_pools(e);
    for (int32_t g = 0; g < e->cache.n_groups; g++)
        assert_int_equal(sv_cache_n_free(&e->cache, g), e->cache.group[g].d.n_pages);
    struct run_out *out = run_all(e, c, N);
    run_same(ref, out, N, "measured");
    run_out_free(out, N), run_out_free(ref, N);
    sv_engine_close(e);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(small_pools), cmocka_unit_test(measured_widths))
