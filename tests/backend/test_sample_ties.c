/*
 * test_sample_ties.c - filters whose bound is met exactly: what is as probable as the bound stays,
 * whatever filter it is.
 */
#include "rig.h"

#include <string.h>

enum { VOCAB = 40, ROWS = 64 };

/* How often each id is drawn of one row of logits: three equal maxima at 1, 18 and 35, all others
 * far below. */
static void count(struct sv_dev *dev, struct sv_sampling sp, int32_t seen[VOCAB])
{
    int32_t slot[ROWS] = {0}, pos[ROWS], out[ROWS];
    float *x = rig_new(sizeof(float) * VOCAB * ROWS);

    memset(seen, 0, VOCAB * sizeof *seen);
    for (int32_t i = 0; i < VOCAB * ROWS; i++)
        x[i] = i % VOCAB % 17 == 1 ? 2.5f : -3.0f;
    for (int32_t i = 0; i < ROWS; i++)
        pos[i] = 100 + i;
    sv_op_sample(dev, &(struct sv_p_sample){ROWS, VOCAB, x, VOCAB, slot, pos, &sp, out});
    for (int32_t i = 0; i < ROWS; i++)
        seen[out[i]]++;
    rig_free(x);
}

static void expect(struct sv_dev *dev, struct sv_sampling sp, int32_t n_kept, const char *what)
{
    int32_t seen[VOCAB], total = 0;

    count(dev, sp, seen);
    for (int32_t k = 0; k < 3; k++) {
        int32_t n = seen[1 + 17 * k];
        total += n;
        if ((n > 0) != (k < n_kept))
            fail_msg("%s: the maximum at %d was drawn %d times of %d", what, 1 + 17 * k, n, ROWS);
    }
    assert_int_equal(total, ROWS);
}

static void ties(struct sv_dev *dev)
{
    const struct sv_sampling plain = {.temperature = 1, .top_p = 1, .seed = 3};
    struct sv_sampling sp = plain;

    sp.min_p = 1; /* as probable as the most probable: all three are */
    expect(dev, sp, 3, "min_p 1");
    sp.top_p = 0.9f;
    expect(dev, sp, 3, "min_p 1 behind top_p 0.9");
    sp.top_k = 5;
    expect(dev, sp, 3, "min_p 1 behind top_k 5 and top_p 0.9");
    sp = plain; /* of equal ones the lowest ids stay */
    sp.top_k = 2;
    expect(dev, sp, 2, "top_k 2");
    sp.min_p = 1;
    expect(dev, sp, 2, "min_p 1 behind top_k 2");
    sp = plain;
    sp.top_p = 0.5f; /* two of three reach it */
    expect(dev, sp, 2, "top_p 0.5");
    sp.min_p = 1;
    expect(dev, sp, 2, "min_p 1 behind top_p 0.5");
}

static void equal_to_the_bound(void **state)
{
    (void)state;
    rig_each(ties);
}

SV_TEST_MAIN(cmocka_unit_test(equal_to_the_bound))
