/*
 * test_calibrate.c - the tokens of rows while step costs are measured: different in all rows and
 * runs, so that a mixture of experts routes them as in use, and the same in every process. With DP
 * attention each rank has as many sequences as in use.
 *
 * Uses the CPU's device with a block_ids that checks the ids of the target's passes.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/run.h"
#include "engine/toy.h"

#include <string.h>

enum { MOST_RUNS = 4000, MOST_ROWS = 256, BATCH = 4 };

struct watch {
    struct sv_backend be; /* first: the device's table meanwhile */
    const struct sv_backend *real;
    int32_t n_runs, n_rows[MOST_RUNS];
    uint32_t hash[MOST_RUNS]; /* of the ids of each target's pass */
    int32_t n_segs, n_shares; /* of the pass at hand; passes of which the ranks have their share */
};

static void look(struct watch *w, const struct sv_p_block_ids *p)
{
    bool seen[RUN_VOCAB] = {false};
    uint32_t hash = 2166136261u;
    assert_true(w->n_runs < MOST_RUNS && p->rows.n_rows <= MOST_ROWS);
    for (int32_t r = 0; r < p->rows.n_rows; r++) {
        const int32_t id = p->row_ids[r];
        assert_in_range(id, 0, RUN_VOCAB - 1);
        if (seen[id])
            fail_msg("run %d of %d rows has token %d twice", w->n_runs, p->rows.n_rows, id);
        seen[id] = true;
        hash = (hash ^ (uint32_t)id) * 16777619u;
    }
    w->n_rows[w->n_runs] = p->rows.n_rows;
    w->hash[w->n_runs++] = hash;
}

static void block_ids(struct sv_dev *dev, const struct sv_p_block_ids *p)
{
    struct watch *w = (struct watch *)(uintptr_t)dev->be;
    w->real->block_ids(dev, p);
    if (p->row_ids && p->seg_kind[0] == SV_SEG_VERIFY) {
        look(w, p);
        w->n_segs = p->rows.n_segs;
    } else if (!p->row_ids) { /* this rank's own */
        assert_in_range(2 * p->rows.n_segs, w->n_segs, w->n_segs + 1);
        w->n_shares += w->n_segs > 1;
    }
}

/* Once more, as when the engine opened. */
static void calibrate(struct watch *w, int32_t tp)
{
    struct toy t = toy_bf16;
    t.n_heads = 4;
    t.n_kv = 2;
    const struct sv_engine_options o = {.target_dir = toy_target(&t),
                                        .draft_dir = toy_draft(&t),
                                        .tp = tp,
                                        .dp_attention = tp > 1,
                                        .device = "cpu",
                                        .n_threads = 1,
                                        .context = 256,
                                        .max_sequences = BATCH,
                                        .auto_width = true};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_err err;
    *w = (struct watch){.be = *e->dev->be, .real = e->dev->be};
    w->be.block_ids = block_ids;
    e->dev->be = &w->be;
    e->sched.policy = NULL;
    assert_int_equal(sv_engine_calibrate(e, e->policy, &err), 0);
    e->dev->be = w->real;
    sv_engine_close(e);
}

static void rows_differ(void **state)
{
    (void)state;
    static struct watch a, b;
    int32_t n_again = 0, n_same = 0;
    calibrate(&a, 1);
    calibrate(&b, 1);
    assert_true(a.n_runs > 40 && b.n_runs > 40);
    for (int32_t i = 0; i < a.n_runs; i++)
        for (int32_t k = 0; k < i; k++) {
            n_again += a.n_rows[i] == a.n_rows[k] && a.n_rows[i] > 1;
            n_same += a.n_rows[i] == a.n_rows[k] && a.n_rows[i] > 1 && a.hash[i] == a.hash[k];
        }
    /* Shapes have been run again, with other rows but for chance: there are 24,000 ways. */
    if (n_again < 10 || n_same > 2 + n_again / 6000)
        fail_msg("%d pairs of runs of as many rows, %d alike", n_again, n_same);
    /* The first shape is always the same. */
    assert_int_equal(a.n_rows[0], b.n_rows[0]);
    assert_int_equal(a.hash[0], b.hash[0]);
}

/* Two ranks, of which the first is watched. */
static void shared_out(void **state)
{
    (void)state;
    static struct watch w;
    calibrate(&w, 2);
    assert_true(w.n_shares > 20);
}

SV_TEST_MAIN(cmocka_unit_test(rows_differ), cmocka_unit_test(shared_out))
