/*
 * test_threads.c - the step on several threads: the same text as on one, with every layout of
 * weights, greedy and with rules and log probabilities; and two engines at once, each driven by a
 * thread of its own.
 *
 * Small enough for `make tsan`, where CI runs it: every family of kernels that this machine has,
 * the pool under them, prompts in chunks, blocks, steps ahead. timeout: 120
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"

#include <string.h>

enum { N = 6, MAX_PROMPT = 40, MAX_TOKENS = 12 };

static struct run_case *ask(void)
{
    struct run_case *c = run_cases(N, RUN_VOCAB, MAX_PROMPT, MAX_TOKENS, 5);
    for (int i = 0; i < N; i++) {
        struct sv_request *r = &c[i].req;
        r->ignore_eos = true;
        r->top_p = 1;
        if (i % 3 == 1) {
            r->temperature = 1;
            r->seed = (uint64_t)i;
            r->top_k = 30;
            r->presence_penalty = 0.5;
        }
        if (i % 3 == 2)
            r->logprobs = true, r->n_top_logprobs = 3;
    }
    return c;
}

static struct run_out *answers(const struct run_case *c, const struct sv_engine_options *o,
                               bool ahead)
{
    const struct sv_engine_tuning tuning = {.run_ahead = ahead, .pad = ahead};
    struct sv_engine *e = run_open_tuned(o, &tuning, NULL);
    struct run_out *out = run_all(e, c, N);
    if (o->draft_dir)
        assert_true(e->accept.n_drafted > N);
    sv_engine_close(e);
    return out;
}

static struct sv_engine_options toy(bool draft)
{
    return (struct sv_engine_options){.target_dir = toy_target(&toy_bf16),
                                      .draft_dir = draft ? toy_draft(&toy_bf16) : NULL,
                                      .n_threads = 1,
                                      .max_sequences = 4,
                                      .prefill_chunk = 17,
                                      .width = draft ? 5 : 0};
}

/* Says so and leaves out what this machine has no kernels for. */
static bool opens(const struct sv_engine_options *o)
{
    struct sv_engine *e = NULL;
    struct sv_engine_options here = *o;
    struct sv_err err = {0};
    run_device(&here);
    if (sv_engine_open(&e, &here, NULL, &err)) {
        print_message("left out: %s\n", err.msg);
        return false;
    }
    sv_engine_close(e);
    return true;
}

static void several(enum sv_isa isa, enum sv_data_type dtype, enum sv_toggle toggle)
{
    struct run_case *c = ask();
    struct sv_engine_options o = toy(false);
    o.tuning = (struct sv_tuning){.isa = isa, .compress_weights = toggle, .screen_head = toggle};
    o.dtype = dtype;
    if (!opens(&o)) {
        run_cases_free(c, N);
        return;
    }
    struct run_out *ref = answers(c, &o, false);
    for (int32_t threads = 2; threads <= 4; threads++) {
        struct sv_engine_options d = toy(threads != 3);
        d.tuning = o.tuning;
        d.dtype = dtype;
        d.n_threads = threads;
        struct run_out *out = answers(c, &d, threads == 4);
        run_same(ref, out, N, "several threads");
        run_out_free(out, N);
    }
    run_out_free(ref, N);
    run_cases_free(c, N);
}

static void packed(void **state)
{
    (void)state;
    several(SV_ISA_AUTO, SV_TYPE_BF16, SV_TOGGLE_OFF);
}

static void wcomp_and_screen(void **state)
{
    (void)state;
    several(SV_ISA_AUTO, SV_TYPE_BF16, SV_TOGGLE_ON);
}

static void in_place(void **state)
{
    (void)state;
    several(SV_ISA_AVX2, SV_TYPE_BF16, SV_TOGGLE_AUTO);
    several(SV_ISA_PLAIN, SV_TYPE_F32, SV_TOGGLE_AUTO);
}

/* The policy measures when it opens, and its steps hold taps back. */
static void chosen_widths(void **state)
{
    (void)state;
    struct run_case *c = ask();
    struct sv_engine_options o = toy(false);
    struct run_out *ref = answers(c, &o, false);
    o = toy(true);
    o.n_threads = 3;
    o.width = 0;
    o.auto_width = true;
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_rng rng = {3};
    e->policy->random = &rng;
    struct run_out *out = run_all(e, c, N);
    assert_true(e->accept.n_drafted > 0);
    run_same(ref, out, N, "chosen widths");
    sv_engine_close(e);
    run_out_free(out, N);
    run_out_free(ref, N);
    run_cases_free(c, N);
}

struct side {
    const struct run_case *c;
    struct sv_engine_options o;
    struct run_out *out;
};

static void drive(void *arg, int thread, int n_threads)
{
    struct side *s = (struct side *)arg + thread;
    (void)n_threads;
    s->out = answers(s->c, &s->o, thread == 1);
}

/* They share nothing but the program. */
static void two_engines(void **state)
{
    (void)state;
    struct run_case *c = ask();
    struct side side[2] = {{.c = c, .o = toy(false)}, {.c = c, .o = toy(true)}};
    struct sv_pool *pool;
    struct sv_err err = {0};
    side[1].o.n_threads = 2;
    assert_int_equal(sv_pool_open(&pool, 2, &err), SV_OK);
    sv_pool_run(pool, drive, side);
    sv_pool_close(pool);
    run_same(side[0].out, side[1].out, N, "two engines");
    run_out_free(side[0].out, N);
    run_out_free(side[1].out, N);
    run_cases_free(c, N);
}

SV_TEST_MAIN(cmocka_unit_test(packed), cmocka_unit_test(wcomp_and_screen),
             cmocka_unit_test(in_place), cmocka_unit_test(chosen_widths),
             cmocka_unit_test(two_engines))
