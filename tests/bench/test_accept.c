/*
 * test_accept.c - simulated acceptance: every verify block comes out as long as its draw says, cut
 * to its rows, with the passes that a real drafter takes.
 *
 * On a device that computes while it is called, and on one whose steps run ahead and are replayed.
 */
#include "testing.h"

#include "bench/accept.h"
#include "engine/run.h"
#include "engine/toy.h"

#include <string.h>

enum { N = 5, BATCH = 3, LONG = 40, WIDTH = 16, N_STEPS = 7 };

static struct sv_engine *open_ranks(bool ahead, bool auto_width, int32_t tp)
{
    struct toy t = toy_bf16;
    const struct sv_engine_tuning tuning = {
        .pad = ahead, .run_ahead = ahead, .simulates = true, .compare_ranks = tp > 1};
    t.n_heads = tp > 1 ? 6 : t.n_heads;
    const struct sv_engine_options o = {.target_dir = toy_target(&t),
                                        .draft_dir = toy_draft(&t),
                                        .device = "cpu",
                                        .n_threads = 1,
                                        .max_sequences = BATCH,
                                        .auto_width = auto_width,
                                        .no_prefix_cache = true,
                                        .tp = tp};
    return run_open_tuned(&o, &tuning, NULL);
}

static struct sv_engine *open_pair(bool ahead, bool auto_width)
{
    return open_ranks(ahead, auto_width, 0);
}

static struct run_case *cases(void)
{
    struct run_case *c = run_cases(N, RUN_VOCAB, 20, LONG, 5);
    for (int i = 0; i < N; i++) {
        c[i].max_tokens = LONG - i;
        c[i].req.ignore_eos = true;
    }
    return c;
}

/* A block's draw, or its rows where these are fewer; the first token comes with the prompt. */
static void lengths_are_drawn(const struct sv_accept_profile *p, const struct run_case *c,
                              const struct run_out *out, uint64_t first)
{
    for (int i = 0; i < N; i++) {
        int32_t left = c[i].max_tokens - 1;
        assert_int_equal(out[i].n_tokens, c[i].max_tokens);
        for (int32_t k = 0; k < out[i].n_steps; k++) {
            int32_t want = sv_profile_draw(p, out[i].id, first + (uint64_t)k);
            want = want < WIDTH ? want : WIDTH;
            want = want < left ? want : left;
            assert_int_equal(out[i].accept[k], want);
            left -= want;
        }
        assert_int_equal(left, 0);
    }
}

/* All requests, with drawn lengths from draw `first` on. */
static void draw_all(struct sv_sim_accept *a, const struct sv_accept_profile *p,
                     const struct run_case *c, uint64_t first)
{
    sv_sim_accept_set(a, p, first);
    struct run_out *out = run_all(a->e, c, N);
    lengths_are_drawn(p, c, out, first);
    run_out_free(out, N);
    sv_sim_accept_set(a, NULL, 0);
}

static void every_block_is_as_drawn(void **state)
{
    (void)state;
    const double share[] = {3, 0, 2, 1, 0, 0, 0, 1};
    struct sv_accept_profile p = {.seed = 9};
    struct sv_err err;
    struct run_case *c = cases();
    assert_int_equal(sv_profile_set(&p, share, 8, &err), 0);
    for (int ahead = 0; ahead < 2; ahead++) {
        struct sv_engine *e = open_pair(ahead, false);
        struct sv_sim_accept a;
        struct sv_engine_stats real, simulated;
        struct run_out *plain = run_all(e, c, N), *out, *again;
        sv_get_engine_stats(e, &real);
        assert_int_equal(sv_sim_accept_open(&a, e, &err), 0);
        sv_sim_accept_set(&a, &p, 100);
        out = run_all(e, c, N);
        sv_get_engine_stats(e, &simulated);
        lengths_are_drawn(&p, c, out, 100);
        /* A step reads what it read before: there are fewer of them. */
        const int64_t n_real = real.n_steps, n_simulated = simulated.n_steps - real.n_steps;
        assert_true(n_simulated < n_real);
        sv_sim_accept_set(&a, NULL, 0); /* and nothing of it is left */
        again = run_all(e, c, N);
        run_same_steps(plain, again, N, "after the simulation");
        run_out_free(plain, N);
        run_out_free(out, N);
        run_out_free(again, N);
        sv_sim_accept_close(&a);
        sv_engine_close(e);
    }
    run_cases_free(c, N);
}

/* Without a drafter nothing is drafted, and blocks are as long all the same (verify modes). */
static void without_a_drafter(void **state)
{
    (void)state;
    const double share[] = {0, 1, 1};
    struct sv_accept_profile p = {.seed = 2};
    struct sv_err err;
    struct run_case *c = cases();
    struct sv_engine *e = open_pair(false, false);
    struct sv_drafter *d = e->drafter;
    struct sv_sim_accept a;
    assert_int_equal(sv_profile_set(&p, share, 3, &err), 0);
    assert_int_equal(sv_sim_accept_open(&a, e, &err), 0);
    sv_engine_set_drafter(e, NULL);
    draw_all(&a, &p, c, 0);
    sv_engine_set_drafter(e, d);
    sv_sim_accept_close(&a);
    sv_engine_close(e);
    run_cases_free(c, N);
}

/* Recorded steps bring their confidence with them: that is what pruning and the policy see. */
static void confidence_is_recorded(void **state)
{
    (void)state;
    struct sv_profile_step step[N_STEPS];
    struct sv_accept_profile p = {.seed = 3, .step = step, .n_steps = N_STEPS};
    struct sv_err err;
    struct run_case *c = cases();
    for (int i = 0; i < N_STEPS; i++) {
        step[i].length = 1 + i;
        for (int j = 0; j < SV_MAX_BLOCK; j++)
            step[i].confidence[j] = j < i ? 0.9f + 0.001f * (float)(i + j) : 0.25f;
    }
    for (int ahead = 0; ahead < 2; ahead++) {
        struct sv_engine *e = open_pair(ahead, true);
        struct sv_rng rng = {4};
        struct sv_sim_accept a;
        int32_t n_seen = 0;
        e->policy->random = &rng; /* any widths */
        assert_int_equal(sv_sim_accept_open(&a, e, &err), 0);
        sv_sim_accept_set(&a, &p, 0);
        for (int i = 0; i < BATCH; i++) {
            struct sv_request r = c[i].req;
            r.prompt_ids = c[i].prompt;
            r.n_prompt_ids = c[i].n_prompt;
            r.max_tokens = LONG;
            assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
        }
        while (e->sched.n_unfinished) {
            assert_int_equal(sv_engine_step(e, &err), 0);
            sv_engine_deliver(e);
            assert_int_equal(sv_engine_settle(e, &err), 0);
            for (int32_t s = 0; e->plan.confidence && s < e->plan.n_segs; s++) {
                const struct sv_plan_seg *g = &e->plan.seg[s];
                const float *got = (const float *)(const void *)e->batch.confidence.host;
                float want[SV_MAX_BLOCK];
                if (!g->n_drafts)
                    continue;
                sv_profile_confidence(&p, g->request, a.blocks[g->slot].n - 1, g->n_drafts, want);
                assert_memory_equal(got + g->draft_out0, want, (size_t)g->n_drafts * sizeof *want);
                n_seen++;
            }
        }
        assert_true(n_seen > 5);
        sv_engine_deliver(e);
        sv_sim_accept_close(&a);
        sv_engine_close(e);
    }
    run_cases_free(c, N);
}

/* Followers draw the same lengths and lose the drafter where rank 0 does; their hosts' time counts.
 */
static void among_ranks(void **state)
{
    (void)state;
    const double share[] = {1, 0, 2, 0, 1};
    struct sv_accept_profile p = {.seed = 6};
    struct sv_err err;
    struct run_case *c = cases();
    assert_int_equal(sv_profile_set(&p, share, 5, &err), 0);
    for (int ahead = 0; ahead < 2; ahead++) {
        struct sv_engine *e = open_ranks(ahead, false, 2);
        struct sv_drafter *d = e->drafter;
        struct sv_sim_accept a;
        assert_int_equal(sv_sim_accept_open(&a, e, &err), 0);
        for (int k = 0; k < 4; k++) { /* with the drafter and without it, and again */
            const int64_t busy_ns = sv_ranks_busy_ns(e);
            sv_engine_set_drafter(e, k % 2 ? NULL : d);
            draw_all(&a, &p, c, 10);
            assert_true(sv_ranks_busy_ns(e) > busy_ns);
        }
        sv_engine_set_drafter(e, d);
        sv_sim_accept_close(&a);
        sv_engine_close(e);
    }
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(every_block_is_as_drawn), cmocka_unit_test(without_a_drafter),
             cmocka_unit_test(confidence_is_recorded), cmocka_unit_test(among_ranks))
