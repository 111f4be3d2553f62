/*
 * test_reads.c - the weight bytes that passes are said to read: copies for few rows, whole weights,
 * one count a pass.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/run.h"

enum { COPY = 100, FEW = 8 };

static int64_t copy_of_matrices(const struct sv_dev *dev, const struct sv_weight *w)
{
    (void)dev;
    return w->rows > 1 ? COPY : 0;
}

static int32_t few_are(const struct sv_dev *dev)
{
    (void)dev;
    return FEW;
}

/* A device with copies for up to FEW rows; weights without one, dense ones and bytes count as they
 * lie. */
static void copies_for_few_rows(void **state)
{
    const struct sv_backend with = {.few_bytes = copy_of_matrices, .few_rows = few_are},
                            without = {.name = "none"};
    struct sv_dev dev = {.be = &with};
    const struct sv_weight matrix = {.rows = 10, .cols = 20, .dtype = SV_BF16},
                           vector = {.rows = 1, .cols = 20, .dtype = SV_F32};
    const struct sv_weight bytes = {.rows = 1, .cols = 30, .dtype = SV_BF16, .approximate = true};
    struct sv_read_bytes sum = {0};
    (void)state;

    sv_dev_add_read(&dev, &matrix, &sum);
    sv_dev_add_read(&dev, &vector, &sum);
    sv_dev_add_read(&dev, &bytes, &sum);
    assert_int_equal(sum.few, COPY + 80 + 30);
    assert_int_equal(sum.many, 400 + 80 + 30);
    assert_int_equal(sum.whole, 400 + 80 + 60);
    assert_int_equal(sv_dev_read_of(&dev, &sum, 1), sum.few);
    assert_int_equal(sv_dev_read_of(&dev, &sum, FEW), sum.few);
    assert_int_equal(sv_dev_read_of(&dev, &sum, FEW + 1), sum.many);
    dev.be = &without;
    const struct sv_weight dense = {
        .rows = 10, .cols = 20, .dtype = SV_BF16, .dense = &sum, .dense_bytes = 280};
    sum = (struct sv_read_bytes){0};
    sv_dev_add_read(&dev, &dense, &sum);
    assert_int_equal(sum.few, 280);
    assert_int_equal(sv_dev_read_of(&dev, &sum, 1000), 280);
    assert_int_equal(sum.whole, 400);
}

static void a_count_each_pass(void **state)
{
    (void)state;
    for (int drafts = 0; drafts < 2; drafts++) {
        struct sv_engine_options o = {
            .target_dir = run_dir("tests/golden/tiny/pair_target"),
            .draft_dir = drafts ? run_dir("tests/golden/tiny/pair_draft_full_b16") : NULL,
            .dtype = SV_TYPE_F32,
            .n_threads = 1,
            .max_sequences = 2,
            .width = drafts ? 8 : 1};
        struct sv_engine *e = run_open(&o, NULL);
        const struct sv_config *cfg = &e->model.cfg;
        int64_t looked_up = cfg->tie_embeddings ? 0 : (int64_t)cfg->vocab_size * cfg->hidden_size;
        looked_up *= (int64_t)sv_dtype_bytes(e->model.embed.dtype);
        assert_int_equal(e->target_reads.whole, e->model.weights.n_bytes - looked_up);
        assert_int_equal(e->draft_reads.whole > 0, drafts);
        const struct sv_engine_stats before = e->stats;
        struct run_case *c = run_cases(3, 200, 20, 30, 5);
        struct run_out *out = run_all(e, c, 3);
        int64_t steps = e->stats.n_steps - before.n_steps;
        int64_t draft = e->stats.weight_bytes - before.weight_bytes -
                        steps * sv_dev_read_of(e->dev, &e->target_reads, 1);
        if (!drafts) {
            assert_int_equal(draft, 0);
            assert_int_equal(e->stats.whole_weight_bytes - before.whole_weight_bytes,
                             steps * e->target_reads.whole);
        } else {
            assert_int_equal(draft % e->draft_reads.few, 0);
            assert_in_range(draft / e->draft_reads.few, 1,
                            steps - 1); /* the first step has prompts alone */
        }
        run_out_free(out, 3);
        run_cases_free(c, 3);
        sv_engine_close(e);
    }
}

SV_TEST_MAIN(cmocka_unit_test(copies_for_few_rows), cmocka_unit_test(a_count_each_pass))
