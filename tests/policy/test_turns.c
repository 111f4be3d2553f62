/*
 * test_turns.c - timing shapes in turns on a machine whose speed changes: the number of turns of
 * each, and which times count.
 */
#include "testing.h"

#include "policy/policy.h"

enum { THINGS = 40, LEAST = 2, BUDGET_US = 700000 };

/* Thing i takes true_us(i), and `slow` times that from from_us to to_us. */
struct machine {
    double slow, from_us, to_us, scale;
    double now_us;
};

static double true_us(const struct machine *m, int32_t i)
{
    return m->scale * (500 + 10.0 * i * i);
}

static void run(struct machine *m, struct sv_turns *t, int32_t least, int64_t more_us)
{
    sv_turns_begin(t, least, (int64_t)m->now_us, BUDGET_US, more_us);
    for (int32_t i = sv_turns_next(t, (int64_t)m->now_us); i >= 0;
         i = sv_turns_next(t, (int64_t)m->now_us)) {
        double us = true_us(m, i) * (m->now_us >= m->from_us && m->now_us < m->to_us ? m->slow : 1);
        m->now_us += us;
        sv_turns_add(t, i, (const double[SV_TIMES]){us, us / 4, us - us / 4});
    }
    sv_turns_end(t);
}

static void begin(struct sv_timed of[THINGS])
{
    for (int32_t i = 0; i < THINGS; i++)
        of[i] = (struct sv_timed){.us = {-1, -1, -1}, .needed = i % 4 == 0};
}

static void check_us(const struct machine *m, const struct sv_timed of[THINGS])
{
    for (int32_t i = 0; i < THINGS; i++) {
        double us = true_us(m, i);
        assert_float_equal(of[i].us[SV_TIME_ALL], us, 0.01 * us);
        assert_float_equal(of[i].us[SV_TIME_DRAFT], us / 4, 0.01 * us);
        assert_float_equal(of[i].us[SV_TIME_TARGET], us - us / 4, 0.01 * us);
    }
}

/* Rounds are whole: what is expensive has as many runs as what is cheap, as many as there is time
 * for, and plenty of them take half the time. */
static void whole_rounds(void **state)
{
    (void)state;
    struct sv_timed of[THINGS];
    for (double scale = 0.1; scale < 1.2; scale *= 10) {
        struct machine m = {.slow = 1, .scale = scale};
        struct sv_turns t = {.of = of, .n = THINGS};
        begin(of);
        run(&m, &t, LEAST, 0);
        for (int32_t i = 0; i < THINGS; i++)
            assert_int_equal(of[i].n_runs, of[0].n_runs);
        assert_true(of[0].n_runs >= 3);
        assert_true(m.now_us <= BUDGET_US && m.now_us >= BUDGET_US / 2);
        check_us(&m, of);
    }
}

/* Wherever a slow phase is, with three rounds free of it no shape looks costlier. */
static void slow_moments(void **state)
{
    (void)state;
    struct sv_timed of[THINGS];
    for (double from = 0; from < BUDGET_US; from += 50000)
        for (double length = 50000; length <= 250000; length += 100000) {
            struct machine m = {.slow = 2, .from_us = from, .to_us = from + length, .scale = 0.3};
            struct sv_turns t = {.of = of, .n = THINGS};
            begin(of);
            run(&m, &t, LEAST, 0);
            check_us(&m, of);
        }
}

/* Few rounds were quick: some more time, where there is some. */
static void more_time(void **state)
{
    (void)state;
    struct sv_timed of[THINGS];
    for (int64_t more = 0; more <= BUDGET_US / 2; more += BUDGET_US / 2) {
        struct machine m = {.slow = 2, .from_us = 0, .to_us = 600000, .scale = 0.6};
        struct sv_turns t = {.of = of, .n = THINGS};
        begin(of);
        run(&m, &t, LEAST, more);
        assert_true(m.now_us <= BUDGET_US + (double)more);
        assert_int_equal(m.now_us > BUDGET_US, more > 0);
        if (more)
            check_us(&m, of);
    }
}

/* When a round takes longer than there is time, what is not needed is left out, and all that was
 * begun goes on to the least number of rounds. */
static void late(void **state)
{
    (void)state;
    struct sv_timed of[THINGS];
    struct machine m = {.slow = 1, .scale = 20};
    struct sv_turns t = {.of = of, .n = THINGS};
    int32_t n_left_out = 0;
    begin(of);
    run(&m, &t, LEAST, 0);
    for (int32_t i = 0; i < THINGS; i++) {
        assert_true(of[i].n_runs == LEAST || (!of[i].n_runs && !of[i].needed));
        assert_true(of[i].n_runs ? of[i].us[SV_TIME_ALL] > 0 : of[i].us[SV_TIME_ALL] < 0);
        n_left_out += !of[i].n_runs;
    }
    assert_true(n_left_out > 0);
}

SV_TEST_MAIN(cmocka_unit_test(whole_rounds), cmocka_unit_test(slow_moments),
             cmocka_unit_test(more_time), cmocka_unit_test(late))
