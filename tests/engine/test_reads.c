/*
 * test_reads.c - the weight bytes that passes are said to read: copies for few rows, whole weights,
 * one count a pass.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/run.h"
#include "engine/toy.h"

enum { COPY = 100, FEW = 8 };

static int64_t copy_of_matrices(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows)
{
    (void)dev;
    return w->rows > 1 && n_rows <= FEW ? COPY : 10 * w->rows;
}

/* A device with copies of matrices for up to FEW rows. */
static void copies_for_few_rows(void **state)
{
    const struct sv_backend be = {.weight_bytes = copy_of_matrices};
    struct sv_dev dev = {.be = &be};
    struct sv_taken taken[] = {
        {.w = {.rows = 10, .cols = 20}, .n_bytes = 400},
        {.w = {.role = SV_ROLE_HEAD, .rows = 1, .cols = 20}, .n_bytes = 80},
        {.w = {.role = SV_ROLE_EMBED, .rows = 7, .cols = 20}, .n_bytes = 280}};
    const struct sv_weights w = {.dev = &dev, .taken = taken, .n_taken = 3};
    struct sv_reads sum = {.published = 1};
    (void)state;

    sv_weights_add_reads(&w, SV_ROLE_NONE, &sum);
    assert_int_equal(sum.published, 481);
    assert_int_equal(sv_reads_of(&sum, 1), COPY + 10);
    assert_int_equal(sv_reads_of(&sum, FEW), COPY + 10);
    assert_int_equal(sv_reads_of(&sum, FEW + 1), 110);
    assert_int_equal(sv_reads_of(&sum, SV_READ_ROWS), 110);
    assert_int_equal(sv_reads_of(&sum, SV_READ_ROWS + 1), 110);
    sv_weights_add_reads(&w, SV_ROLE_HEAD, &sum);
    assert_int_equal(sum.published, 561);
    assert_int_equal(sv_reads_of(&sum, 1), COPY + 20);
    assert_int_equal(sv_weights_kept_bytes(&w), 180);
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
        looked_up *= (int64_t)sv_dtype_bytes(e->model.embed.fmt.elem);
        assert_int_equal(e->target_reads.published, e->model.weights.n_bytes - looked_up);
        assert_int_equal(e->draft_reads.published > 0, drafts);
        const struct sv_engine_stats before = e->stats;
        struct run_case *c = run_cases(3, 200, 20, 30, 5);
        struct run_out *out = run_all(e, c, 3);
        int64_t steps = e->stats.n_steps - before.n_steps;
        int64_t draft =
            e->stats.weight_bytes - before.weight_bytes - steps * sv_reads_of(&e->target_reads, 1);
        if (!drafts) {
            assert_int_equal(draft, 0);
            assert_int_equal(e->stats.whole_weight_bytes - before.whole_weight_bytes,
                             steps * e->target_reads.published);
        } else {
            assert_int_equal(draft % sv_reads_of(&e->draft_reads, 1), 0);
            assert_in_range(draft / sv_reads_of(&e->draft_reads, 1), 1,
                            steps - 1); /* the first step has prompts alone */
        }
        run_out_free(out, 3);
        run_cases_free(c, 3);
        sv_engine_close(e);
    }
}

/* Experts count as far as they were chosen: k of each layer by one row, and by more rows no more
 * than there are. */
static void chosen_experts(void **state)
{
    (void)state;
    const struct toy *t = &toy_moe;
    struct sv_engine_options o = {.target_dir = toy_target(t),
                                  .dtype = SV_TYPE_F32,
                                  .n_threads = 1,
                                  .max_sequences = 8,
                                  .no_prefix_cache = true};
    struct sv_engine *e = run_open(&o, NULL);
    struct sv_engine_info info;
    sv_get_engine_info(e, &info);
    const struct sv_reads *r = &e->target_reads;
    const int64_t one = 3 * (int64_t)t->hidden * t->expert_mlp * 2, layers = t->n_layers - 1;
    assert_int_equal(r->experts.n_layers, layers);
    assert_int_equal(r->experts.n_chosen, layers * t->n_chosen);
    assert_int_equal(r->experts.bytes, layers * one);
    assert_int_equal(r->experts.published, layers * one);
    assert_int_equal(info.target_step_bytes, sv_reads_of(r, 1) + layers * t->n_chosen * one);
    for (int n = 1; n <= 8; n += 7) {
        const struct sv_engine_stats before = e->stats;
        struct run_case *c = run_cases(n, 200, 1, 30, 5); /* a prompt of one token */
        struct run_out *out = run_all(e, c, n);
        const int64_t steps = e->stats.n_steps - before.n_steps;
        int64_t bytes = e->stats.whole_weight_bytes - before.whole_weight_bytes;
        bytes -= steps * r->published;
        assert_int_equal(bytes % one, 0);
        if (n == 1)
            assert_int_equal(bytes, steps * layers * t->n_chosen * one);
        else
            assert_in_range(bytes / one, steps * layers * t->n_chosen,
                            steps * layers * t->n_experts);
        assert_true(n == 1 || bytes > steps * layers * t->n_chosen * one);
        run_out_free(out, n);
        run_cases_free(c, n);
    }
    sv_engine_close(e);
}

SV_TEST_MAIN(cmocka_unit_test(copies_for_few_rows), cmocka_unit_test(a_count_each_pass),
             cmocka_unit_test(chosen_experts))
