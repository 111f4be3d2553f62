/*
 * test_replay.c - a record of an engine's plans and uploads, run once more, gives the recorded
 * tokens: alone and among ranks, with states that are restored, a step ahead of the host, under the
 * width policy. A damaged record is refused with the place.
 *
 * timeout: 60
 */
#include "testing.h"

#include "engine/ranked.h"
#include "engine/toy.h"

#include <string.h>

static const char *record_of(struct sv_engine_options o, bool ahead)
{
    enum { N = 4 };
    const char *path = run_keep(sv_test_tmp("plan"));
    struct run_case *c = run_cases(N, RUN_VOCAB, 40, 12, 21);
    const struct sv_engine_tuning tuning = {.run_ahead = ahead, .pad = ahead};
    ranked_mix(c, N);
    o.record_plan = path;
    o.context = 128;
    o.n_threads = 1;
    o.max_sequences = 3;
    struct sv_engine *e = run_open_tuned(&o, &tuning, NULL);
    for (int again = 0; again < 2; again++)
        run_out_free(run_all(e, c, N), N);
    sv_engine_close(e);
    run_cases_free(c, N);
    return path;
}

static int replay(const char *path, struct sv_replay_sums *sums, struct sv_err *err)
{
    struct sv_replay r;
    struct sv_engine *e = NULL;
    int rc = sv_replay_open(&r, path, err);
    if (rc)
        return rc;
    rc = sv_replay_engine(&r, r.target, *r.draft ? r.draft : NULL, 0, &e, err);
    if (!rc)
        rc = sv_replay_run(&r, e, sums, err);
    sv_engine_close(e);
    sv_replay_close(&r);
    return rc;
}

static void same(const struct sv_engine_options *o, bool ahead, bool copies)
{
    struct sv_replay_sums s;
    struct sv_err err = {0};
    const char *path = record_of(*o, ahead);
    if (replay(path, &s, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(s.n_other, 0);
    assert_true(s.ends && s.n_steps > 10 && s.n_passes[SV_PASS_TARGET] >= s.n_steps);
    assert_true(!o->draft_dir || s.n_passes[SV_PASS_DRAFT] > 4);
    assert_int_equal(s.n_copies > 0, copies);
    assert_int_equal(sv_alloc_live(), 0);
}

static void gives_the_recorded_tokens(void **state)
{
    (void)state;
    run_needs_cpu();
    const struct run_pair dense = {toy_target(&toy_bf16), toy_draft(&toy_bf16)},
                          hybrid = toy_pair_of("qwen3_5_bf16");
    struct sv_engine_options o = {.target_dir = dense.target, .draft_dir = dense.draft};
    same(&o, false, false);
    same(&o, true, false);
    o.auto_width = true;
    same(&o, false, false);
    o = (struct sv_engine_options){
        .target_dir = hybrid.target, .draft_dir = hybrid.draft, .tp = 2, .page_size = 4};
    same(&o, false, true);
    o.draft_dir = NULL;
    o.tp = 0;
    same(&o, true, true);
}

static void refused(const char *path, const char *text)
{
    struct sv_replay_sums s;
    struct sv_err err = {0};
    const int64_t live = sv_alloc_live();
    assert_true(replay(path, &s, &err) < 0);
    if (!strstr(err.msg, text) || !strstr(err.msg, path))
        fail_msg("'%s' is not in '%s'", text, err.msg);
    assert_int_equal(sv_alloc_live(), live);
}

/* Bytes of a record, with byte `at` turned over and cut at `n`. */
static const char *damaged(const struct sv_buf *whole, size_t at, size_t n)
{
    const char *path = run_keep(sv_test_tmp("damaged"));
    struct sv_buf b;
    sv_buf_init(&b);
    sv_buf_append(&b, whole->data, n);
    if (at < n)
        ((char *)b.data)[at] ^= 1;
    assert_int_equal(sv_file_write(path, b.data, b.len, NULL), 0);
    sv_buf_fini(&b);
    return path;
}

static void a_damaged_record_is_refused(void **state)
{
    (void)state;
    run_needs_cpu();
    const size_t head = sizeof(struct sv_plan_record_head);
    const struct sv_engine_options o = {.target_dir = toy_target(&toy_bf16)};
    struct sv_replay_sums s;
    struct sv_err err = {0};
    struct sv_buf b;
    sv_buf_init(&b);
    const char *path = record_of(o, false);
    assert_int_equal(sv_file_read(&b, path, (size_t)1 << 26, &err), 0);
    refused(damaged(&b, 0, b.len), "byte 0: this is no record of plans");
    refused(damaged(&b, 0, 4), "this is no record of plans");
    refused(damaged(&b, 9, b.len), "byte 8: another version of Salvo wrote this record");
    refused(damaged(&b, head, head - 1), "the record ends within its head");
    refused(damaged(&b, head + 1, b.len), "the record's head is damaged");
    refused(damaged(&b, head, head), "the record ends within a directory's name");
    refused(damaged(&b, b.len / 2, b.len), ": the record is damaged");
    refused(damaged(&b, b.len, b.len - 1), "the record ends within a message");
    /* cut between messages: run as far as it goes */
    path = damaged(&b, b.len, b.len - sizeof(struct sv_plan_record_message));
    assert_int_equal(replay(path, &s, &err), 0);
    assert_true(!s.ends && s.n_steps > 10 && !s.n_other);
    /* other weights */
    struct toy other = toy_bf16;
    struct sv_replay r;
    struct sv_engine *e = NULL;
    other.seed++;
    assert_int_equal(sv_replay_open(&r, path, &err), 0);
    assert_int_equal(sv_replay_engine(&r, toy_target(&other), NULL, 0, &e, &err), 0);
    assert_int_equal(sv_replay_run(&r, e, &s, &err), 0);
    assert_true(s.n_other > 0 && s.first_other > 0);
    sv_engine_close(e);
    sv_replay_close(&r);
    sv_buf_fini(&b);
    refused("/nowhere/at/all", "/nowhere/at/all");
}

SV_TEST_MAIN(cmocka_unit_test(gives_the_recorded_tokens),
             cmocka_unit_test(a_damaged_record_is_refused))
