/* test_rng.c - Philox against the vectors published with it, and the shape of the other
 * generator. */
#include "testing.h"
#include "base/base.h"

#include <math.h>

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    /* Random123's kat_vectors, philox4x32 with 10 rounds. */
    static const struct {
        uint64_t key, lo, hi;
        uint32_t out[4];
    } cases[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         0x85a308d3243f6a88,
         0x0370734413198a2e,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        sv_philox(cases[i].key, cases[i].lo, cases[i].hi, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
}

static void unit_floats_stay_below_one(void **state)
{
    (void)state;
    assert_true(sv_unit_float(0) == 0);
    assert_true(sv_unit_float(UINT32_MAX) < 1);
    assert_true(sv_unit_float(1u << 31) == 0.5f);
}

static void small_generator(void **state)
{
    (void)state;
    struct sv_rng r = {0};
    int counts[7] = {0};
    double sum = 0, squares = 0;
    const int n = 70000;

    assert_true(sv_rng_next(&r) == 0xE220A8397B1DCDAFu); /* splitmix64's first output for seed 0 */
    for (int i = 0; i < n; i++)
        counts[sv_rng_below(&r, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_in_range(counts[i], 9500, 10500);
    assert_int_equal(sv_rng_below(&r, 1), 0);
    for (int i = 0; i < n; i++) {
        float u = sv_rng_float(&r);
        double x = sv_rng_normal(&r);
        assert_true(u >= 0 && u < 1);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / n) < 0.02);
    assert_true(fabs(squares / n - 1) < 0.03);
}

SV_TEST_MAIN(cmocka_unit_test(philox_gives_the_published_vectors),
             cmocka_unit_test(unit_floats_stay_below_one), cmocka_unit_test(small_generator))
