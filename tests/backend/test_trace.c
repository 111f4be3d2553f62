/*
 * test_trace.c - traces of a device: calls are told apart by kind, shape and pass and counted,
 * times add up to the whole, what is left out writes nothing, and afterwards the device is as
 * before.
 */
#include "backend/trace.h"
#include "rig.h"

#include <string.h>

struct work {
    struct sv_dev *dev;
    struct sv_gemm_part small, large;
    float *x, *y;
};

static void gemm(struct work *w, const struct sv_gemm_part *part)
{
    sv_op_gemm(w->dev, &(struct sv_p_gemm){.n_rows = 1,
                                           .k = part->w.cols,
                                           .n_parts = 1,
                                           .x = w->x,
                                           .ldx = part->w.cols,
                                           .parts = part,
                                           .y = w->y,
                                           .ldy = part->w.rows});
}

static void pass(void *user)
{
    struct work *w = user;
    gemm(w, &w->small);
    gemm(w, &w->large);
    gemm(w, &w->small);
}

static const struct sv_trace_class *named(struct sv_trace *t, const char *name, int32_t pass_no)
{
    int32_t n;
    const struct sv_trace_class *c = sv_trace_read(t, &n);
    for (int32_t i = 0; i < n; i++)
        if (strcmp(c[i].name, name) == 0 && c[i].pass == pass_no)
            return &c[i];
    return NULL;
}

static int32_t number_of(struct sv_trace *t, const char *name, int32_t pass_no)
{
    int32_t n;
    return (int32_t)(named(t, name, pass_no) - sv_trace_read(t, &n));
}

static struct work begin(void)
{
    struct sv_rng rng = {5};
    struct work w = {.dev = rig_open(SV_ISA_AUTO, 1, SV_F32), .x = rig_floats(&rng, 64, 1)};
    w.small.w = rig_weight(&rng, SV_F32, 32, 64, 0.1f, 0);
    w.large.w = rig_weight(&rng, SV_F32, 512, 64, 0.1f, 0);
    w.y = rig_floats(&rng, 512, 1);
    return w;
}

static void end(struct work *w)
{
    sv_dev_close(w->dev);
    rig_free((void *)(uintptr_t)w->small.w.data);
    rig_free((void *)(uintptr_t)w->large.w.data);
    rig_free(w->x);
    rig_free(w->y);
}

static void counts(void **state)
{
    (void)state;
    struct work w = begin();
    struct sv_trace *t;
    struct sv_err err;
    const struct sv_backend *before = sv_dev_backend(w.dev);
    int32_t word = 1, copy = 0;
    assert_int_equal(sv_trace_begin(&t, w.dev, &err), SV_OK);
    sv_trace_start(t, SV_TRACE_COUNT);
    for (int step = 0; step < 2; step++) {
        sv_dev_upload(w.dev, &copy, &word, sizeof word);
        sv_dev_graph_run(w.dev, 1, pass, &w);
        sv_dev_graph_run(w.dev, 2, pass, &w);
        gemm(&w, &w.large);
        sv_dev_download(w.dev, &word, &copy, sizeof word);
        sv_dev_mark(w.dev, 0);
        assert_int_equal(sv_dev_wait(w.dev, 0, &err), SV_OK);
    }
    assert_int_equal(copy, 1);
    for (int p = 1; p <= 2; p++) {
        assert_int_equal(named(t, "gemm 64 -> 32", p)->n, 4);
        assert_int_equal(named(t, "gemm 64 -> 512", p)->n, 2);
    }
    assert_null(named(t, "gemm 64 -> 32", 0));
    assert_int_equal(named(t, "gemm 64 -> 512", 0)->n, 2);
    assert_int_equal(named(t, "upload", 0)->n, 2);
    assert_int_equal(named(t, "download", 0)->n, 2);
    assert_int_equal(named(t, "mark", 0)->n, 2);
    assert_int_equal(named(t, "pass 1", 0)->n, 2);
    assert_null(named(t, "gemm 64 -> 32", 3));
    sv_trace_end(t);
    assert_ptr_equal(sv_dev_backend(w.dev), before);
    end(&w);
}

static void times(void **state)
{
    (void)state;
    struct work w = begin();
    struct sv_trace *t;
    struct sv_err err;
    int32_t n;
    double sum = 0;
    assert_int_equal(sv_trace_begin(&t, w.dev, &err), SV_OK);
    int64_t start = sv_clock_ns();
    sv_trace_start(t, SV_TRACE_OPS);
    for (int i = 0; i < SV_STAMPS; i++) { /* more calls than there are stamps */
        sv_dev_graph_run(w.dev, 1, pass, &w);
        sv_dev_mark(w.dev, 0);
    }
    double us = (double)(sv_clock_ns() - start) / 1e3;
    const struct sv_trace_class *c = sv_trace_read(t, &n);
    int32_t calls = 0;
    for (int32_t i = 0; i < n; i++) {
        assert_true(c[i].us >= 0);
        sum += c[i].us;
        calls += c[i].n;
    }
    assert_true(sum > 0 && sum <= us);
    /* Four calls a step, the first stamp is the beginning, and a step that lacks one does not
     * count. */
    assert_int_equal(calls, (SV_STAMPS - 1) / 4 * 4);
    sv_trace_start(t, SV_TRACE_CALLS);
    sv_dev_graph_run(w.dev, 1, pass, &w);
    sv_dev_mark(w.dev, 0);
    assert_true(named(t, "pass 1", 0)->n == 1 && named(t, "pass 1", 0)->us > 0);
    assert_int_equal(named(t, "mark", 0)->n, 1);
    assert_int_equal(named(t, "gemm 64 -> 32", 1)->n, 0);
    sv_trace_end(t);
    end(&w);
}

static void left_out(void **state)
{
    (void)state;
    struct work w = begin();
    struct sv_trace *t;
    struct sv_err err;
    assert_int_equal(sv_trace_begin(&t, w.dev, &err), SV_OK);
    sv_trace_start(t, SV_TRACE_COUNT);
    gemm(&w, &w.large);
    gemm(&w, &w.small);
    float first = w.y[0], last = w.y[511];
    w.y[0] = w.y[511] = 7;
    sv_trace_skip(t, 1ull << number_of(t, "gemm 64 -> 512", 0));
    gemm(&w, &w.large);
    gemm(&w, &w.small);
    assert_true(w.y[0] == first && w.y[511] == 7);
    assert_int_equal(named(t, "gemm 64 -> 512", 0)->n, 1);
    sv_trace_skip(t, 0);
    gemm(&w, &w.large);
    assert_true(w.y[511] == last);
    sv_trace_end(t);
    end(&w);
}

SV_TEST_MAIN(cmocka_unit_test(counts), cmocka_unit_test(times), cmocka_unit_test(left_out))
