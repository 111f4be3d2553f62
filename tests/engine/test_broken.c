/*
 * test_broken.c - a device that fails during requests, for instance by no longer answering: every
 * request gets the device's error, the engine accepts no more, does not use the device again and
 * closes.
 */
#include "testing.h"

#include "backend/backends.h"
#include "engine/run.h"

#include <string.h>

enum { N = 5, SLOTS = 3, CONTEXT = 200 };

static const char words[] =
    "CUDA: no answer from the device for 60 s; launched since: graph 0x2000000041, copy";

/* The engine's own device with another table: the n-th wait fails, and so does all that comes after
 * it. */
struct broken {
    struct sv_backend be; /* first member: the table */
    const struct sv_backend *real;
    int32_t n_waits, fails_at;
    int32_t n_asked; /* for something, after the failure */
};

static struct broken *broken_of(struct sv_dev *dev)
{
    return (struct broken *)(uintptr_t)dev->be;
}

static bool fails(struct sv_dev *dev)
{
    struct broken *b = broken_of(dev);
    b->n_asked += b->n_waits >= b->fails_at;
    return b->n_waits >= b->fails_at;
}

static int broken_wait(struct sv_dev *dev, int32_t i, struct sv_err *err)
{
    struct broken *b = broken_of(dev);
    if (fails(dev))
        return sv_fail(err, SV_EDEVICE, -1, "%s", words);
    int rc = b->real->wait(dev, i, err);
    return ++b->n_waits < b->fails_at ? rc : sv_fail(err, SV_EDEVICE, -1, "%s", words);
}

static int broken_sync(struct sv_dev *dev, struct sv_err *err)
{
    return fails(dev) ? sv_fail(err, SV_EDEVICE, -1, "%s", words)
                      : broken_of(dev)->real->sync(dev, err);
}

static void broken_mark(struct sv_dev *dev, int32_t i)
{
    if (!fails(dev))
        broken_of(dev)->real->mark(dev, i);
}

static void broken_upload(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    if (!fails(dev))
        broken_of(dev)->real->upload(dev, dst, src, n_bytes);
}

static void broken_download(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    if (!fails(dev))
        broken_of(dev)->real->download(dev, dst, src, n_bytes);
}

static void break_device(struct broken *b, struct sv_engine *e, int32_t at)
{
    *b = (struct broken){.be = *e->dev->be, .real = e->dev->be, .fails_at = at};
    b->be.wait = broken_wait;
    b->be.sync = broken_sync;
    b->be.mark = broken_mark;
    b->be.upload = broken_upload;
    b->be.download = broken_download;
    e->dev->be = &b->be;
}

/* Fails at the given wait, with that many requests of which SLOTS can run. */
static void breaks(const struct sv_engine_options *o, const struct sv_engine_tuning *tuning,
                   int32_t at)
{
    struct sv_engine *e = run_open_tuned(o, tuning, NULL);
    struct run_case *c = run_cases(N, RUN_VOCAB, 60, 100, 7);
    struct run_events events[N] = {{0}};
    struct broken b;
    struct sv_err err = {0};
    int rc, n_steps = 0, n_failed = 0;

    for (int i = 0; i < N; i++) {
        struct sv_request r = c[i].req;
        r.prompt_ids = c[i].prompt;
        r.n_prompt_ids = c[i].n_prompt;
        r.max_tokens = 100;
        r.ignore_eos = true;
        r.on_event = run_on_event;
        r.user = &events[i];
        assert_int_equal(sv_engine_submit(e, &r, NULL, &err), SV_OK);
    }
    break_device(&b, e, at);
    while ((rc = sv_engine_step(e, &err)) == SV_OK && n_steps++ < 1000)
        sv_engine_deliver(e);
    assert_int_equal(rc, SV_EDEVICE);
    assert_string_equal(err.msg, words);
    sv_engine_deliver(e);
    for (int i = 0; i < N; i++) { /* those that still waited for a slot as well */
        assert_int_equal(events[i].n_ends, 1);
        assert_true(events[i].finish == SV_FINISH_ERROR || events[i].n_tokens == 100);
        if (events[i].finish == SV_FINISH_ERROR)
            assert_string_equal(events[i].message, words);
        n_failed += events[i].finish == SV_FINISH_ERROR;
    }
    assert_true(n_failed > SLOTS);
    assert_null(e->sched.head);

    struct sv_request again = {
        .prompt_ids = c[0].prompt, .n_prompt_ids = c[0].n_prompt, .max_tokens = 3, .top_p = 1};
    assert_int_equal(sv_engine_step(e, &err), SV_EDEVICE);
    assert_non_null(strstr(err.msg, words));
    assert_int_equal(sv_engine_submit(e, &again, NULL, &err), SV_EDEVICE);
    assert_non_null(strstr(err.msg, words));
    assert_int_equal(sv_engine_settle(e, &err), SV_EDEVICE);
    assert_non_null(strstr(err.msg, words));
    sv_flush_cache(e);
    sv_engine_close(e);
    assert_int_equal(b.n_asked, 0);
    run_cases_free(c, N);
    assert_int_equal(sv_alloc_live(), 0);
}

static struct sv_engine_options options(bool draft)
{
    return (struct sv_engine_options){
        .device = "cpu",
        .target_dir = run_dir("tests/golden/tiny/pair_target"),
        .draft_dir = draft ? run_dir("tests/golden/tiny/pair_draft_full_b16") : NULL,
        .context = CONTEXT,
        .max_sequences = SLOTS,
        .prefill_chunk = 32,
        .n_threads = 1};
}

static void plain(void **state)
{
    const struct sv_engine_options o = options(false);
    (void)state;
    for (int32_t at = 1; at < 12; at += 3)
        breaks(&o, &(struct sv_engine_tuning){0}, at);
}

static void drafting(void **state)
{
    const struct sv_engine_options o = options(true);
    (void)state;
    for (int32_t at = 1; at < 12; at += 3)
        breaks(&o, &(struct sv_engine_tuning){0}, at);
}

/* With a step in flight behind the one that fails, and in the wait between drafting and
 * verifying. */
static void a_step_ahead(void **state)
{
    struct sv_engine_options o = options(true);
    (void)state;
    for (int i = 0; i < 2; i++) {
        o.auto_width = i;
        for (int32_t at = 1; at < 12; at++)
            breaks(&o, &(struct sv_engine_tuning){.run_ahead = true, .pad = true}, at);
    }
}

SV_TEST_MAIN(cmocka_unit_test(plain), cmocka_unit_test(drafting), cmocka_unit_test(a_step_ahead))
