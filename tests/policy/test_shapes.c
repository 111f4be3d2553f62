/*
 * test_shapes.c - cost tables with one wrong measurement: real steps correct them while a server
 * runs.
 *
 * timeout: 300
 * release: all
 */
#include "testing.h"

#include "tests/policy/drive.h"

static const int32_t widths[] = {1, 2, 3, 4, 6, 8, 12, 16};

/* Points of the table, as measure_table has them for blocks: the one nearest to so many rows. */
static int32_t nearest(int32_t n_rows, int32_t n)
{
    int32_t best = BLOCK, most = n * BLOCK;
    for (int32_t r = 2; r < BLOCK; r += r < 6 ? 1 : 2)
        best = abs(r - n_rows) < abs(best - n_rows) ? r : best;
    for (int32_t k = 1, step = 1; k * BLOCK <= most; k += k == 1 ? 1 : step) {
        step *= k >= 4 * step ? 2 : 1;
        best = abs(k * BLOCK - n_rows) < abs(best - n_rows) ? k * BLOCK : best;
    }
    return best;
}

/* The table that is wrong by `wrong`, where it leads away from the best width: what is best looks
 * expensive, or what is not looks cheap. */
static double run_wrong(const struct machine *m, double mean, int32_t n, double wrong)
{
    struct sv_accept_profile prof;
    struct wrong at = {.by = wrong};
    double best = 0;
    int32_t width = 1;
    set_profile(&prof, mean);
    for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++) {
        double rate = run_fixed(m, &prof, n, widths[w]);
        width = rate > best ? widths[w] : width;
        best = fmax(best, rate);
    }
    at.n_rows = nearest(wrong > 1 ? n * width : width <= 8 ? n * width * 2 : n * width / 2, n);
    double rate = run_steps(m, &prof, n, 1, at, 100, 3000).rate / best;
    if (rate < 0.93)
        print_message(
            "%s, mean %g, %d sequences, width %d, %d rows look %.1f times as expensive: %.3f\n",
            m->name, mean, n, width, at.n_rows, wrong, rate);
    return rate;
}

/* Who believes such a table for good is at 0.80 to 0.88 of the best in the worst case, and at 0.970
 * to 0.982 on average. */
static void wrong_shapes(void **state)
{
    (void)state;
    static const int which[] = {0, 2, 3, 8};
    static const double means[] = {2.5, 6.4, 0, 15.99}, wrong[] = {1, 1.3, 1.6, 0.7, 0.6};
    static const double mean[] = {0.997, 0.989, 0.983, 0.994, 0.991},
                        least[] = {0.97, 0.91, 0.88, 0.94, 0.94};
    for (size_t f = 0; f < sizeof wrong / sizeof wrong[0]; f++) {
        if (sv_test_brief() && f != 2)
            continue;
        double sum = 0, worst = 1;
        int n_cases = 0;
        for (size_t k = 0; k < sizeof which / sizeof which[0]; k++)
            for (size_t i = 0; i < sizeof means / sizeof means[0]; i++)
                for (int32_t n = 1; n <= 64; n *= 4) {
                    double rate = run_wrong(&machines[which[k]], means[i], n, wrong[f]);
                    sum += rate;
                    worst = fmin(worst, rate);
                    n_cases++;
                }
        print_message(
            "one shape looks %.1f times as expensive: %.4f of the best on average, at least "
            "%.3f\n",
            wrong[f], sum / n_cases, worst);
        assert_true(sum / n_cases > mean[f] && worst > least[f]);
    }
}

SV_TEST_MAIN(cmocka_unit_test(wrong_shapes))
