/*
 * test_held_end.c - a sequence that ends while its taps are held back leaves pages without the draft's part: whoever
 * goes on from them is told so, or would draft from memory that nobody has written.
 */
#include "testing.h"

#include "engine/run.h"

#include <string.h>

enum { PROMPT = 40, ANSWER = 30 };

static struct sv_engine *open_pair(void)
{
    const struct sv_engine_options o = {.target_dir = run_dir("tests/golden/tiny/pair_target"),
                                        .draft_dir = run_dir("tests/golden/tiny/pair_draft_full_b16"),
                                        .dtype = SV_TYPE_F32,
                                        .n_threads = 1,
                                        .max_sequences = 2,
                                        .auto_width = true};
    return run_open(&o, NULL);
}

/* Hardly a draft is kept, and no time for trials has been saved; but were all of them kept, drafting would pay, so what
 * it takes is held and not dropped. Whatever this machine measured. */
static void sit_idle(struct sv_policy *p)
{
    sv_policy_forget(p);
    for (int32_t j = 1; j < p->block; j++) {
        p->tried[j] = 1000;
        p->kept[j] = 20;
    }
    p->trial.n_steps = 1 << 20;
    p->trial.probe_us = p->trial.other_us = -1e9;
    run_set_costs(p);
}

/* An answer, then its first pages once more as a prompt: from which position on do they lack the draft's part? */
static int32_t lacks_from(struct sv_engine *e)
{
    int32_t prompt[PROMPT + ANSWER], from;
    struct sv_err err = {0};
    char msg[256];

    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 3 + i * 7 % 280;
    struct run_case c = {.prompt = prompt, .n_prompt = PROMPT, .max_tokens = ANSWER,
                         .req = {.top_p = 1, .ignore_eos = true}};
    struct run_out *out = run_all(e, &c, 1);
    memcpy(prompt + PROMPT, out->tokens, ANSWER * sizeof *prompt);
    run_out_free(out, 1);
    if (e->sched.policy)
        assert_int_equal(e->policy->n_dropped + e->policy->n_gave_up, 0); /* all was held until the end */
    assert_int_equal(e->accept.n_drafted > 0, !e->sched.policy); /* nobody drafted, or everybody */
    c.req.prompt_ids = prompt;
    c.req.n_prompt_ids = PROMPT + ANSWER;
    c.req.max_tokens = 4;
    assert_int_equal(sv_engine_submit(e, &c.req, NULL, &err), 0);
    assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    assert_true(e->sched.head->n_cached >= 48); /* it does go on from these pages */
    from = e->sched.head->lacks_from;
    while (sv_step_engine(e, msg, sizeof msg) > 0)
        ;
    return from;
}

static void pages_of_the_end_are_marked(void **state)
{
    (void)state;
    struct sv_engine *e = open_pair();

    if (!e->held.cap_rows) { /* graphs: taps are never held */
        sv_engine_close(e);
        skip();
    }
    sit_idle(e->policy);
    assert_int_equal(lacks_from(e), 0);
    sv_engine_close(e);
    e = open_pair();
    e->sched.policy = NULL; /* whole blocks: every tap is made use of at once */
    assert_int_equal(lacks_from(e), INT32_MAX);
    sv_engine_close(e);
}

SV_TEST_MAIN(cmocka_unit_test(pages_of_the_end_are_marked))
