/*
 * test_cost.c - the cost table's arithmetic (cost.c), number by number. Learning from steps and the
 * quality of choices are tested by test_policy.c.
 */
#include "testing.h"

#include "policy/policy.h"

enum { BLOCK = 16 };

static void is(double value, double should)
{
    if (!(value > should - 1e-3 && value < should + 1e-3))
        fail_msg("%g is not %g", value, should);
}

/* More work never takes less time: what was measured otherwise is shared out. */
static void curves_rise(void **state)
{
    (void)state;
    struct sv_curve c = {.n = 0};
    is(sv_curve_at(&c, 5), 0);
    sv_curve_add(&c, 1, 10);
    is(sv_curve_at(&c, 5), 10);
    sv_curve_add(&c, 2, 8);
    is(c.us[0], 9);
    is(c.us[1], 9);
    sv_curve_add(&c, 4, 20);
    is(sv_curve_at(&c, 0), 0);
    is(sv_curve_at(&c, 0.5), 9);
    is(sv_curve_at(&c, 2), 9);
    is(sv_curve_at(&c, 3), 14.5);
    is(sv_curve_at(&c, 4), 20);
    assert_true(sv_curve_at(&c, 8) > 20);
    sv_curve_add(&c, 8, 2);
    is(c.us[1], 9);
    is(c.us[2], 11);
    is(c.us[3], 11);
    sv_curve_add(&c, 16, 1);
    for (int i = 0; i < 5; i++)
        is(c.us[i], 8.2);
    /* Beyond what was measured: as steep as the upper half, not as its last bit. */
    c = (struct sv_curve){.n = 3, .x = {1, 3, 4}, .us = {10, 20, 30}};
    is(sv_curve_at(&c, 7), 50);
    c = (struct sv_curve){.n = 3, .x = {1, 2, 4}, .us = {10, 20, 30}};
    is(sv_curve_at(&c, 7), 45);
    c = (struct sv_curve){.n = 2, .x = {3, 4}, .us = {1, 32}}; /* nor steeper than all of it */
    is(sv_curve_at(&c, 7), 56);
}

static void contexts(void **state)
{
    (void)state;
    struct sv_cost c = {.n_ctx = 3, .ctx = {10, 110, 210}, .row_us = {0, 10, 40}};
    is(sv_cost_context(&c, c.row_us, 5), 0);
    is(sv_cost_context(&c, c.row_us, 60), 5);
    is(sv_cost_context(&c, c.row_us, 110), 10);
    is(sv_cost_context(&c, c.row_us, 160), 25);
    is(sv_cost_context(&c, c.row_us, 310), 70);
    c.row_us[0] = 5; /* what falls, never falls below nothing */
    c.row_us[1] = c.row_us[2] = 0;
    is(sv_cost_context(&c, c.row_us, 60), 2.5);
    is(sv_cost_context(&c, c.row_us, 310), 0);
    c.n_ctx = 1;
    is(sv_cost_context(&c, c.row_us, 60), 0);
}

static int32_t by_four(int32_t n)
{
    return (n + 3) / 4 * 4;
}

static struct sv_cost machine(void)
{
    struct sv_cost c = {.block = BLOCK};
    sv_cost_unlearn(&c);
    for (int32_t n = 1; n <= 8; n++)
        sv_curve_add(&c.plain, n, 100 + n);
    sv_curve_add(&c.wide, 2, 110);
    sv_curve_add(&c.wide, 128, 362); /* 2 a row */
    sv_curve_add(&c.draft_rows, 2, 50);
    sv_curve_add(&c.draft_rows, 102, 150); /* 1 a row */
    sv_curve_add(&c.draft_out, 1, 7);
    sv_curve_add(&c.draft_out, 2, 14);
    return c;
}

/* One row of each, a block of one, rows of a prompt alone. */
static void what_was_measured(void **state)
{
    (void)state;
    struct sv_cost c = machine();
    is(sv_cost_us(&c, &(struct sv_load){.n_segs = 3, .n_rows = 3}), 103);
    is(sv_cost_us(&c, &(struct sv_load){.n_segs = 3, .n_rows = 3, .seg_us = 5, .row_us = 6}), 114);
    is(sv_cost_us(&c, &(struct sv_load){.n_segs = 1, .n_rows = 16}), 138);
    is(sv_cost_us(&c, &(struct sv_load){.n_segs = 4, .n_rows = 4 * BLOCK}), 234);
    is(sv_cost_us(&c, &(struct sv_load){.n_prompt_rows = 50}), 206);
    assert_true(sv_load_is_plain(&(struct sv_load){.n_segs = 3, .n_rows = 3}));
    assert_false(sv_load_is_plain(&(struct sv_load){.n_segs = 3, .n_rows = 4}));
    assert_false(sv_load_is_plain(&(struct sv_load){.n_segs = 3, .n_rows = 3, .n_draft_segs = 1}));
    c.speed[1] = 2; /* sampled steps have a pace of their own */
    is(sv_cost_us(&c, &(struct sv_load){.n_segs = 3, .n_rows = 3}), 103);
    is(sv_cost_us(&c, &(struct sv_load){.n_segs = 3, .n_rows = 3, .sampled = 1}), 206);
}

/* A drafting pass: its rows, and every token wanted beyond one of each. */
static void drafting(void **state)
{
    (void)state;
    const struct sv_cost c = machine();
    struct sv_load l = {.n_segs = 1, .n_rows = 16};
    const double without = sv_cost_us(&c, &l);
    l.n_draft_segs = 1;
    l.n_draft_rows = 16;
    l.n_draft_out = 1;
    is(sv_cost_us(&c, &l) - without, 64);
    l.n_draft_out = 2;
    is(sv_cost_us(&c, &l) - without, 71);
    l.n_draft_out = 3;
    is(sv_cost_us(&c, &l) - without, 78);
    l.n_draft_rows = 32;
    is(sv_cost_us(&c, &l) - without, 94);
}

/* Segments of two rows were measured too: so many of them cost that, and blocks what blocks
 * cost. */
static void thin_drafts(void **state)
{
    (void)state;
    struct sv_cost c = machine();
    struct sv_load l = {.n_segs = 4,
                        .n_rows = 8,
                        .n_draft_segs = 4,
                        .n_draft_rows = 8,
                        .n_draft_out = 4},
                   plain = l;
    plain.n_draft_segs = plain.n_draft_rows = plain.n_draft_out = 0;
    is(sv_cost_us(&c, &l) - sv_cost_us(&c, &plain), 56);
    sv_curve_add(&c.thin, 2, 60);
    sv_curve_add(&c.thin, 4, 80);
    is(sv_cost_us(&c, &l) - sv_cost_us(&c, &plain), 80);
    l.n_draft_rows = 4 * BLOCK;
    is(sv_cost_us(&c, &l) - sv_cost_us(&c, &plain), 112);
}

/* Where counts are padded up, all that padding holds costs the same; a step with a prompt's rows is
 * not padded. */
static void padded(void **state)
{
    (void)state;
    struct sv_cost c = machine();
    struct sv_load l = {.n_segs = 1, .n_rows = 13}, full = {.n_segs = 1, .n_rows = 16};
    assert_true(sv_cost_us(&c, &l) < sv_cost_us(&c, &full) - 1);
    c.padded = by_four;
    is(sv_cost_us(&c, &l), sv_cost_us(&c, &full));
    l.n_prompt_rows = full.n_prompt_rows = 10;
    is(sv_cost_us(&c, &full) - sv_cost_us(&c, &l), 6);
}

/* Steps teach the pace, four times at most; those beside a prompt, of nobody or of no time teach
 * nothing. */
static void what_is_learnt(void **state)
{
    (void)state;
    enum { STEPS = 2000 };
    struct sv_cost c = machine();
    const struct sv_load plain = {.n_segs = 3, .n_rows = 3};
    const struct sv_load nothing[] = {{.n_segs = 3, .n_rows = 3, .n_prompt_rows = 8},
                                      {.n_prompt_rows = 8}};
    for (int i = 0; i < STEPS; i++) {
        sv_cost_learn(&c, &nothing[i % 2], 1000);
        sv_cost_learn(&c, &plain, 0);
    }
    is(c.speed[0], 1);
    is(sv_cost_us(&c, &plain), 103);
    for (int i = 0; i < STEPS; i++)
        sv_cost_learn(&c, &plain, 2 * 103);
    is(c.speed[1], 1); /* of sampled steps nothing was seen */
    assert_true(sv_cost_us(&c, &plain) > 204 && sv_cost_us(&c, &plain) < 208);
    for (int i = 0; i < STEPS; i++)
        sv_cost_learn(&c, &plain, 50 * 103);
    assert_true(c.speed[0] > 3.9f && c.speed[0] < 4.01f);
    sv_cost_unlearn(&c);
    is(sv_cost_us(&c, &plain), 103);
}

/* Levels stand at 2, 3, 4, 6, 8, ... 2048 rows; what lies beyond goes by the last one. */
static void sizes(void **state)
{
    (void)state;
    const int32_t rows[] = {1, 2, 3, 4, 5, 6, 12, 14, 768, 2048, 5000};
    const double at[] = {0, 0, 1, 2, 2.5, 3, 5, 5.5, 17, 20, 20};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        struct sv_size s = sv_cost_size(rows[k]);
        assert_true(s.i >= 0 && s.i + 1 < SV_LEVELS && s.t >= 0 && s.t <= 1);
        is(s.i + s.t, at[k]);
    }
}

static struct sv_load draft_of(int32_t n, int32_t w)
{
    return (struct sv_load){.n_segs = n,
                            .n_rows = n * w,
                            .n_draft_segs = n,
                            .n_draft_rows = n * w,
                            .n_draft_out = n * (w - 1)};
}

/* Steps of one size are slower than the table says: so these, and next to nothing of it for others
 * once they were seen too; which is then known of both. */
static void sizes_are_learnt(void **state)
{
    (void)state;
    enum { TURNS = 60, STEPS = 10 };
    struct sv_cost c = machine();
    const struct sv_load plain = {.n_segs = 4, .n_rows = 4}, few = draft_of(4, 3),
                         many = draft_of(4, 12);
    const double few_us = sv_cost_us(&c, &few), many_us = sv_cost_us(&c, &many),
                 doubt = sv_cost_doubt(&c, &few, &many);
    assert_true(doubt > 0.02 && doubt < sv_cost_doubt(&c, &few, NULL));
    is(sv_cost_doubt(&c, &few, &few), 0);
    for (int i = 0; i < TURNS * STEPS; i++) {
        const int turn = i / STEPS % 3;
        sv_cost_learn(&c,
                      turn == 0   ? &plain
                      : turn == 1 ? &few
                                  : &many,
                      turn == 0   ? 104
                      : turn == 1 ? few_us
                                  : 1.4 * many_us);
    }
    assert_float_equal(sv_cost_us(&c, &plain), 104, 3);
    assert_float_equal(sv_cost_us(&c, &few), few_us, 0.04 * few_us);
    assert_float_equal(sv_cost_us(&c, &many), 1.4 * many_us, 0.04 * many_us);
    assert_true(sv_cost_doubt(&c, &few, &many) < doubt / 2);
    sv_cost_unlearn(&c);
    is(sv_cost_us(&c, &many), many_us);
    is(sv_cost_doubt(&c, &few, &many), doubt);
}

SV_TEST_MAIN(cmocka_unit_test(curves_rise), cmocka_unit_test(contexts),
             cmocka_unit_test(what_was_measured), cmocka_unit_test(drafting),
             cmocka_unit_test(thin_drafts), cmocka_unit_test(padded),
             cmocka_unit_test(what_is_learnt), cmocka_unit_test(sizes),
             cmocka_unit_test(sizes_are_learnt))
