/*
 * test_hold.c - reports for a call, also while it is written, when memory runs out: the request
 * fails, nothing else does.
 */
#include "serve/core/send.h"
#include "serve/core/write.h"
#include "serve/openai/openai.h"

#include "testing.h"

#include <string.h>

struct rig {
    struct sv_serve s;
    struct sv_replica replica;
    struct sv_call c;
    struct sv_choice choice[2];
};

static void open_rig(struct rig *r)
{
    memset(r, 0, sizeof *r);
    r->s.o.quiet = true;
    r->s.n_live = 2;
    r->s.replicas = &r->replica;
    r->s.n_replicas = 1;
    r->c.s = &r->s;
    r->c.dialect = &sv_dialect_completions;
    r->c.choices = r->choice;
    r->c.n_choices = 2;
    r->c.status = 200;
    for (int i = 0; i < 2; i++) {
        r->choice[i].call = &r->c;
        r->choice[i].canceled = true; /* there is no worker to cancel it */
    }
    r->c.writing = true;
}

/* One token of a sequence, as the worker reports it; held by the call, if there is memory for it.
 */
static void comes(struct rig *r, int which, enum sv_finish_reason finish, bool memory)
{
    static char text[65536]; /* more than what was held leaves room for */
    int32_t token = 7;
    struct sv_out o = {.kind = SV_OUT_EVENT,
                       .choice = &r->choice[which],
                       .finish = finish,
                       .n_tokens = 1,
                       .tokens = &token,
                       .text = text,
                       .n_text = memory ? 1 : sizeof text};
    struct sv_buf batch;
    size_t at = 0;

    sv_buf_init(&batch);
    sv_out_pack(&batch, &o, NULL, NULL);
    assert_true(sv_out_unpack(&batch, &at, &o));
    sv_fault_arm(memory ? 0 : 1);
    sv_call_out(&r->s, &o);
    sv_fault_arm(0);
    assert_int_equal(r->c.pending.failed, !memory);
    sv_buf_fini(&batch);
}

static void over(struct rig *r)
{
    r->c.writing = false;
    sv_call_replay(&r->c);
}

static void close_rig(struct rig *r)
{
    for (int i = 0; i < 2; i++) {
        sv_buf_fini(&r->choice[i].ids);
        sv_buf_fini(&r->choice[i].text);
        sv_buf_fini(&r->choice[i].accept);
        sv_buf_fini(&r->choice[i].widths);
    }
    assert_int_equal(r->c.pending.len, 0);
    assert_int_equal(sv_alloc_live(), 0);
}

static void all_comes_later(void **state)
{
    struct rig r;
    (void)state;

    open_rig(&r);
    comes(&r, 0, SV_FINISH_NONE, true);
    comes(&r, 1, SV_FINISH_LENGTH, true);
    comes(&r, 0, SV_FINISH_STOP, true);
    assert_int_equal(r.c.n_done, 0);
    over(&r);
    assert_false(r.c.failed);
    assert_int_equal(r.c.n_done, 2);
    assert_int_equal(r.s.n_live, 0);
    assert_int_equal(r.choice[0].ids.len, 2 * sizeof(int32_t));
    assert_int_equal(r.choice[0].finish, SV_FINISH_STOP);
    close_rig(&r);
}

/* The sequences that ended meanwhile count, those that have not are still to come. */
static void lost_events_fail_the_call(void **state)
{
    (void)state;
    for (int before = 0; before < 3; before++)
        for (int ends = 0; ends <= 2; ends++) {
            struct rig r;
            open_rig(&r);
            for (int i = 0; i < before; i++)
                comes(&r, 0, SV_FINISH_NONE, true);
            comes(&r, 0, SV_FINISH_NONE, false);
            for (int i = 0; i < ends; i++)
                comes(&r, i, SV_FINISH_LENGTH, false);
            over(&r);
            assert_true(r.c.failed);
            assert_int_equal(r.c.status, 500);
            assert_int_equal(r.c.n_done, ends);
            assert_int_equal(r.s.n_live, 2 - ends);
            assert_int_equal(r.choice[0].ids.len, (size_t)before * sizeof(int32_t));
            close_rig(&r);
        }
}

/* An event of which something finds no memory fails the request, and can be counted. */
static void what_is_lost_fails_the_call(void **state)
{
    static const uint16_t lengths[3] = {1, 4, 2}, widths[3] = {1, 4, 4};
    bool hit = true;
    (void)state;

    for (int64_t nth = 1; hit; nth++) {
        int32_t token = 7;
        struct rig r;
        struct sv_accept a;
        struct sv_out o = {.kind = SV_OUT_EVENT,
                           .finish = SV_FINISH_STOP,
                           .n_tokens = 1,
                           .n_steps = 3,
                           .tokens = &token,
                           .accept_lengths = lengths,
                           .widths = widths,
                           .text = "a",
                           .n_text = 1};
        open_rig(&r);
        r.c.writing = false;
        o.choice = &r.choice[0];
        sv_fault_arm(nth);
        sv_call_out(&r.s, &o);
        hit = sv_fault_calls() >= nth;
        sv_fault_arm(0);
        assert_int_equal(r.c.failed, hit);
        assert_int_equal(r.c.status, hit ? 500 : 200);
        assert_int_equal(r.c.n_done, 1);
        sv_accept_of(&r.choice[0], &a);
        assert_true(hit || (a.n_steps == 3 && a.n_tokens == 7));
        assert_true(nth < 10);
        close_rig(&r);
    }
}

static void keep_in_all(struct sv_call *c, struct sv_choice *g, const struct sv_out *o)
{
    (void)c;
    for (int i = 0; i < SV_CHOICE_LISTS; i++)
        sv_buf_append(&g->lp[i], o->logprobs, 1);
    sv_buf_append(&g->prompt_lp, o->logprobs, 1);
}

/* None of the lists of log probabilities loses a number unseen. */
static void lost_numbers_are_seen(void **state)
{
    static const struct sv_dialect numbers = {.keep = keep_in_all};
    const struct sv_out o = {.kind = SV_OUT_EVENT, .logprobs = "1"};
    (void)state;

    for (int64_t nth = 1; nth <= SV_CHOICE_LISTS + 2; nth++) {
        struct rig r;
        open_rig(&r);
        r.c.dialect = &numbers;
        sv_fault_arm(nth);
        bool kept = sv_call_keep(&r.c, &r.choice[0], &o);
        sv_fault_arm(0);
        assert_int_equal(kept, nth == SV_CHOICE_LISTS + 2);
        for (int i = 0; i < SV_CHOICE_LISTS; i++)
            sv_buf_fini(&r.choice[0].lp[i]);
        sv_buf_fini(&r.choice[0].prompt_lp);
        close_rig(&r);
    }
}

SV_TEST_MAIN(cmocka_unit_test(all_comes_later), cmocka_unit_test(lost_events_fail_the_call),
             cmocka_unit_test(what_is_lost_fails_the_call), cmocka_unit_test(lost_numbers_are_seen))
