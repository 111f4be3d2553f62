/*
 * test_experts.c - the width policy with a mixture of experts: a block of few sequences reads many
 * times as much as a row, a block of many hardly more. At each number of sequences and each
 * acceptance it comes near the best fixed width.
 *
 * timeout: 300
 * release: all
 */
#include "testing.h"

#include "tests/policy/drive.h"

/* One H200. The first at the limit of 4.39 TB/s, a block of 16 at 6.4 times a row; the second
 * through what was measured of 1 to 64 sequences without drafts
 * (bench/results/width-policy-hybrids-h200.csv). The third likewise with a draft a tenth as
 * expensive, so that small widths pay at once. */
static const struct machine_experts of_128 = {128, 8, 103}, of_256 = {256, 8, 60};
static const struct machine mixtures[] = {
    {"30B-A3B", 560, 10, 64, 5, 300, 1, 100, 0.2, 1, 0.05, 0, 0, 0, 0, false, &of_128},
    {"35B-A3B", 2500, 10, 64, 60, 400, 1, 100, 0.2, 1, 0.05, 0, 0, 0, 0, false, &of_256},
    {"30B-A3B, small draft", 560, 10, 64, 5, 30, 0.1, 100, 0.2, 1, 0.05, 0, 0, 0, 0, false,
     &of_128},
};

static void cells(void **state)
{
    static const double means[] = {1, 1.5, 2.5, 4, 6.4, 0, 15.99};
    static const int32_t widths[] = {1, 2, 3, 4, 6, 8, 12, 16};
    const int32_t most = sv_test_brief() ? 8 : 64;
    (void)state;
    for (size_t m = 0; m < sizeof mixtures / sizeof mixtures[0]; m++) {
        const struct machine *at = &mixtures[m];
        double worst = 1, sum = 0;
        int n_cells = 0, n_near = 0, n_of_width[BLOCK + 1] = {0};
        for (size_t k = 0; k < sizeof means / sizeof means[0]; k++)
            for (int32_t n = 1; n <= most; n *= 2) {
                struct sv_accept_profile prof;
                double best = 0;
                int32_t width = 1;
                set_profile(&prof, means[k]);
                for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
                    const double rate = run_fixed(at, &prof, n, widths[i]);
                    width = rate > best ? widths[i] : width;
                    best = fmax(best, rate);
                }
                const struct outcome o =
                    run_steps(at, &prof, n, 1, (struct wrong){.n_rows = 0}, 100, 1500);
                const double r = o.rate / best;
                if (r < 0.98)
                    print_message("%s, profile %g, %d sequences: %.3f of width %d, mean width "
                                  "%.2f\n",
                                  at->name, means[k], n, r, width, o.width);
                worst = fmin(worst, r);
                sum += r;
                n_near += r >= 0.97;
                n_cells++;
                n_of_width[width]++;
            }
        print_message(
            "%s: %.4f of the best on average, at least %.3f, %d of %d cells at 0.97; best "
            "widths 1: %d, 2 to 8: %d, 12 and 16: %d\n",
            at->name, sum / n_cells, worst, n_near, n_cells, n_of_width[1],
            n_cells - n_of_width[1] - n_of_width[12] - n_of_width[16],
            n_of_width[12] + n_of_width[16]);
        assert_true(10 * n_near >= 9 * n_cells && worst >= 0.94);
    }
}

SV_TEST_MAIN(cmocka_unit_test(cells))
