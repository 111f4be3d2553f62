/*
 * test_deferred_end.c - a sequence that ends or is canceled while its taps are deferred leaves
 * pages without the draft's K/V: a sequence that continues them must be marked, or would draft from
 * memory that was never written. Taps of positions that a sequence no longer has are not processed.
 */
#include "testing.h"

#include "engine/run.h"

#include <stdlib.h>
#include <string.h>

enum { PROMPT = 40, ANSWER = 30 };

static struct sv_engine *open_pair(void)
{
    const struct sv_engine_options o = {
        .target_dir = run_dir("tests/golden/tiny/pair_target"),
        .draft_dir = run_dir("tests/golden/tiny/pair_draft_full_b16"),
        .dtype = SV_TYPE_F32,
        .n_threads = 1,
        .max_sequences = 2,
        .prefill_chunk = 8, /* small, and so are the parts that are worked off */
        .auto_width = true};
    return run_open(&o, NULL);
}

/* Hardly a draft is kept, and no time for trials has been saved; but were all of them kept,
 * drafting would pay, so what it takes is deferred and not dropped. Whatever this machine measured.
 */
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

/* The same, idle; skips the test where taps are never kept (graphs). */
static struct sv_engine *open_idle(void)
{
    struct sv_engine *e = open_pair();

    if (!e->deferred.cap_rows) {
        sv_engine_close(e);
        skip();
    }
    sit_idle(e->policy);
    return e;
}

static void fill_prompt(int32_t *prompt)
{
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 3 + i * 7 % 280;
}

/* A request that is canceled after so many tokens of its answer, which are copied. */
static void cancel_after(struct sv_engine *e, const struct sv_request *r, int32_t n,
                         int32_t *tokens)
{
    struct sv_err err = {0};
    uint64_t id;
    char msg[256];

    assert_int_equal(sv_engine_submit(e, r, &id, &err), 0);
    do
        assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    while (e->sched.head->n_tokens < PROMPT + n);
    assert_true(!e->sched.policy || e->deferred.n_rows > 0);
    memcpy(tokens, e->sched.head->tokens + PROMPT, (size_t)n * sizeof *tokens);
    sv_cancel_request(e, id);
    assert_int_equal(sv_step_engine(e, msg, sizeof msg), 0);
}

/* An answer, then its first pages once more as a prompt: from which position on do they lack the
 * draft's part? */
static int32_t lacks_from(struct sv_engine *e, bool cancel)
{
    int32_t prompt[PROMPT + ANSWER], from;
    struct sv_err err = {0};
    char msg[256];

    fill_prompt(prompt);
    struct run_case c = {
        .prompt = prompt,
        .n_prompt = PROMPT,
        .max_tokens = ANSWER,
        .req = {.top_p = 1, .ignore_eos = true, .prompt_ids = prompt, .n_prompt_ids = PROMPT}};
    if (cancel) {
        cancel_after(e, &c.req, ANSWER, prompt + PROMPT);
    } else {
        struct run_out *out = run_all(e, &c, 1);
        memcpy(prompt + PROMPT, out->tokens, ANSWER * sizeof *prompt);
        run_out_free(out, 1);
    }
    if (e->sched.policy)
        assert_int_equal(e->policy->n_dropped + e->policy->n_disabled,
                         0); /* all was deferred until the end */
    assert_int_equal(e->accept.n_drafted > 0, !e->sched.policy); /* none drafted, or all */
    c.req.prompt_ids = prompt;
    c.req.n_prompt_ids = PROMPT + ANSWER;
    c.req.max_tokens = 4;
    assert_int_equal(sv_engine_submit(e, &c.req, NULL, &err), 0);
    assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    assert_true(e->sched.head->n_cached >= 48); /* it does go on from these pages */
    from = sv_sched_draft_end(&e->cache, e->sched.head);
    while (sv_step_engine(e, msg, sizeof msg) > 0)
        ;
    return from;
}

static void pages_of_the_end_are_marked(void **state)
{
    (void)state;
    for (int cancel = 0; cancel < 2; cancel++) {
        struct sv_engine *e = open_idle();
        assert_int_equal(lacks_from(e, cancel), 0);
        sv_engine_close(e);
        e = open_pair();
        e->sched.policy = NULL; /* whole blocks: every tap is made use of at once */
        assert_int_equal(lacks_from(e, cancel), INT32_MAX);
        sv_engine_close(e);
    }
}

/* What was deferred, to be found again; and what was made of it. */
static struct kept {
    int32_t n_rows, n_observed, last_observed;
    size_t row_bytes;
    struct sv_deferred_row row[512];
    unsigned char *taps;
} kept;

static void keep(const struct sv_engine *e)
{
    const struct sv_deferred *h = &e->deferred;
    assert_true(h->n_rows <= 512);
    free(kept.taps);
    kept = (struct kept){.n_rows = h->n_rows,
                         .row_bytes = h->row_bytes,
                         .taps = malloc((size_t)h->n_rows * h->row_bytes)};
    memcpy(kept.row, h->row, (size_t)h->n_rows * sizeof kept.row[0]);
    for (int32_t k = 0; k < h->n_rows; k++)
        memcpy(kept.taps + (size_t)k * h->row_bytes,
               (const char *)h->taps + (size_t)h->row[k].at * h->row_bytes, h->row_bytes);
}

/* The taps are those that were deferred for this place. */
static void same_taps(int32_t slot, int32_t base, const void *taps)
{
    for (int32_t k = 0; k < kept.n_rows; k++)
        if (kept.row[k].slot == slot && kept.row[k].base == base) {
            assert_memory_equal(kept.taps + (size_t)k * kept.row_bytes, taps, kept.row_bytes);
            return;
        }
    fail_msg("nothing was deferred for position %d of slot %d", base, slot);
}

static void note_rows(struct sv_drafter *d, const struct sv_context_pass *p)
{
    (void)d;
    for (int32_t i = 0; i < p->rows.n_rows; i++) {
        const int32_t base = p->rows.row_pos[i];
        kept.last_observed = base > kept.last_observed ? base : kept.last_observed;
        same_taps(p->rows.seg_slot[i], base, (const char *)p->taps + (size_t)i * kept.row_bytes);
    }
    kept.n_observed += p->rows.n_rows;
}

/* Until all of n requests have so many tokens. */
static void run_until(struct sv_engine *e, int32_t n, int32_t n_tokens)
{
    char msg[256];
    for (int32_t k = 0; k < n; k++)
        while (!e->sched.slot[k] || e->sched.slot[k]->n_tokens < n_tokens)
            assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
}

static void submit(struct sv_engine *e, int32_t *prompt)
{
    struct sv_err err = {0};
    const struct sv_request r = {.top_p = 1,
                                 .ignore_eos = true,
                                 .prompt_ids = prompt,
                                 .n_prompt_ids = PROMPT,
                                 .max_tokens = ANSWER};
    assert_int_equal(sv_engine_submit(e, &r, NULL, &err), 0);
}

static void finish(struct sv_engine *e)
{
    char msg[256];
    while (sv_step_engine(e, msg, sizeof msg) > 0)
        ;
    sv_engine_close(e);
    free(kept.taps);
    kept.taps = NULL;
}

/* One of two ends while others draft: its rows are made use of, the other's stay what they were. */
static void rows_of_others_stay(void **state)
{
    (void)state;
    struct sv_engine *e = open_idle();
    const struct sv_drafter_ops *ops = e->drafter->ops;
    struct sv_drafter_ops noting = *ops;
    int32_t prompt[2][PROMPT], n_own = 0;

    fill_prompt(prompt[0]);
    for (int i = 0; i < PROMPT; i++)
        prompt[1][i] = 5 + i * 11 % 270;
    submit(e, prompt[0]);
    submit(e, prompt[1]);
    run_until(e, 2, PROMPT + 5);
    keep(e);
    struct sv_seq *first = e->sched.slot[0];
    for (int32_t k = 0; k < kept.n_rows; k++)
        n_own += kept.row[k].request == first->id;
    assert_true(n_own >= PROMPT && kept.n_rows - n_own >= PROMPT);
    noting.update_context = note_rows;
    e->drafter->ops = &noting;
    e->policy->trial.drafted = true;
    sv_deferred_end(e, first);
    e->drafter->ops = ops;
    assert_int_equal(kept.n_observed, n_own);
    assert_int_equal(e->deferred.n_rows, kept.n_rows - n_own);
    for (int32_t k = 0; k < e->deferred.n_rows; k++) {
        const struct sv_deferred_row *r = &e->deferred.row[k];
        assert_true(r->request != first->id);
        same_taps(r->slot, r->base,
                  (const char *)e->deferred.taps + (size_t)r->at * e->deferred.row_bytes);
    }
    finish(e);
}

/* A sequence that drafts no more has no taps taken: their place would be the next sequence's. */
static void disabled_have_no_place(void **state)
{
    (void)state;
    struct sv_engine *e = open_idle();
    int32_t prompt[PROMPT];
    char msg[256];

    fill_prompt(prompt);
    submit(e, prompt);
    prompt[0]++;
    submit(e, prompt);
    run_until(e, 2, PROMPT + 5);
    e->sched.slot[0]->record.disabled = true;
    /* A fixed width is not disabled, whatever it lacks. */
    e->sched.slot[1]->fixed_width = true;
    e->sched.slot[1]->width = 1;
    sv_sched_invalidate_draft(&e->cache, e->sched.slot[1], PROMPT);
    const int32_t n_rows = e->deferred.n_rows;
    assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    assert_true(e->deferred.now);
    assert_int_equal(e->deferred.tap_row.host[0], -1);
    assert_int_equal(e->deferred.n_rows, n_rows + 1);
    assert_int_equal(e->deferred.tap_row.host[1], e->deferred.row[n_rows].at);
    assert_true(e->deferred.row[n_rows].request == e->sched.slot[1]->id);
    assert_int_equal(e->deferred.row[n_rows].base, e->sched.slot[1]->n_committed - 1);
    finish(e);
}

/* A prompt that goes on from pages of a running sequence: what is deferred for these is made
 * before. */
static void pages_that_are_shared_are_made_first(void **state)
{
    (void)state;
    enum { SHARED = PROMPT / 16 * 16 };
    struct sv_engine *e = open_idle();
    const struct sv_drafter_ops *ops = e->drafter->ops;
    struct sv_drafter_ops noting = *ops;
    int32_t prompt[PROMPT];
    char msg[256];

    fill_prompt(prompt);
    submit(e, prompt);
    run_until(e, 1, PROMPT + 5);
    keep(e);
    assert_true(kept.n_rows >= PROMPT);
    noting.update_context = note_rows;
    e->drafter->ops = &noting;
    submit(e, prompt);
    assert_true(sv_step_engine(e, msg, sizeof msg) > 0);
    e->drafter->ops = ops;
    assert_int_equal(e->sched.slot[1]->n_cached, SHARED);
    assert_int_equal(sv_sched_draft_end(&e->cache, e->sched.slot[1]), INT32_MAX);
    assert_true(kept.n_observed >= SHARED);
    for (int32_t k = 0; k < e->deferred.n_rows; k++)
        assert_true(e->deferred.row[k].base >= SHARED);
    finish(e);
}

/* A sequence that came back to fewer positions: pages of what lies beyond may be somebody
 * else's. */
static void rows_beyond_its_end_are_dropped(void **state)
{
    (void)state;
    enum { KNOWN = 42 };
    struct sv_engine *e = open_idle();
    const struct sv_drafter_ops *ops = e->drafter->ops;
    struct sv_drafter_ops noting = *ops;
    int32_t prompt[PROMPT];

    fill_prompt(prompt);
    submit(e, prompt);
    run_until(e, 1, PROMPT + 5);
    struct sv_seq *q = e->sched.head;
    keep(e);
    int32_t n_committed = q->n_committed;
    assert_true(e->deferred.n_rows >= PROMPT);
    assert_true(e->deferred.chunk_rows < KNOWN); /* in two parts */
    noting.update_context = note_rows;
    e->drafter->ops = &noting;
    q->n_committed = KNOWN;
    e->sched.before_preempt(
        e->sched.user); /* called before a sequence loses pages: runs deferred updates */
    e->drafter->ops = ops;
    q->n_committed = n_committed;
    assert_int_equal(kept.n_observed, KNOWN);
    assert_int_equal(kept.last_observed, KNOWN - 1);
    assert_int_equal(e->deferred.n_rows, 0);
    finish(e);
}

SV_TEST_MAIN(cmocka_unit_test(pages_of_the_end_are_marked),
             cmocka_unit_test(rows_beyond_its_end_are_dropped),
             cmocka_unit_test(rows_of_others_stay), cmocka_unit_test(disabled_have_no_place),
             cmocka_unit_test(pages_that_are_shared_are_made_first))
