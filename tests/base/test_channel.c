/*
 * test_channel.c - queue, mail and cell between threads: order, limits, nothing lost. Also run
 * under ThreadSanitizer.
 */
#include "base/base.h"

#include "testing.h"

#include <poll.h>
#include <string.h>

#define N 20000

static void queue_is_bounded_and_ordered(void **state)
{
    struct sv_queue *q;
    int32_t v;
    (void)state;

    assert_int_equal(sv_queue_open(&q, 3, sizeof v, NULL), SV_OK);
    assert_false(sv_queue_pop(q, &v, 0));
    for (int round = 0; round < 5; round++) { /* the ring wraps */
        for (v = 0; v < 3; v++)
            assert_true(sv_queue_push(q, &v));
        assert_false(sv_queue_push(q, &v));
        for (int32_t i = 0; i < 3; i++) {
            assert_true(sv_queue_pop(q, &v, 0));
            assert_int_equal(v, i);
        }
    }
    int64_t start = sv_clock_us();
    assert_false(sv_queue_pop(q, &v, 30000));
    assert_true(sv_clock_us() - start >= 29000);
    sv_queue_close(q);
}

static void *push_all(void *arg)
{
    struct sv_queue *q = arg;
    for (int32_t i = 0; i < N;)
        i += sv_queue_push(q, &i);
    return NULL;
}

static void queue_between_threads(void **state)
{
    struct sv_queue *q;
    struct sv_thread *t;
    int32_t v;
    (void)state;

    assert_int_equal(sv_queue_open(&q, 16, sizeof v, NULL), SV_OK);
    assert_int_equal(sv_thread_start(&t, push_all, q, NULL), SV_OK);
    for (int32_t i = 0; i < N; i++) {
        assert_true(sv_queue_pop(q, &v, 60000000));
        assert_int_equal(v, i);
    }
    sv_thread_join(t);
    sv_queue_close(q);
}

static void *post_all(void *arg)
{
    struct sv_mail *m = arg;
    struct sv_buf b;

    sv_buf_init(&b);
    for (int32_t i = 0; i < N; i++) {
        sv_buf_append(&b, &i, sizeof i);
        if (i % 7 == 0 || i == N - 1)
            assert_int_equal(sv_mail_post(m, &b, i % 5 == 0), SV_OK);
    }
    sv_buf_fini(&b);
    return NULL;
}

static void mail_arrives_whole_and_in_order(void **state)
{
    struct sv_mail *m;
    struct sv_thread *t;
    struct sv_buf got;
    int32_t next = 0, v;
    (void)state;

    assert_int_equal(sv_mail_open(&m, NULL), SV_OK);
    assert_int_equal(sv_thread_start(&t, post_all, m, NULL), SV_OK);
    sv_buf_init(&got);
    while (next < N) {
        struct pollfd p = {.fd = sv_mail_fd(m), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1); /* readable as long as there is mail */
        sv_mail_take(m, &got);
        for (size_t at = 0; at < got.len; at += sizeof v) {
            memcpy(&v, got.data + at, sizeof v);
            assert_int_equal(v, next++);
        }
    }
    struct pollfd p = {.fd = sv_mail_fd(m), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    sv_thread_join(t);
    sv_buf_fini(&got);
    sv_mail_close(m);
}

static int readable(const struct sv_mail *m, int ms)
{
    struct pollfd p = {.fd = sv_mail_fd(m), .events = POLLIN};
    return poll(&p, 1, ms);
}

static void post(struct sv_mail *m, struct sv_buf *b, bool urgent)
{
    sv_buf_lit(b, "x");
    assert_int_equal(sv_mail_post(m, b, urgent), SV_OK);
}

static void quiet_mail_waits(void **state)
{
    struct sv_mail *m;
    struct sv_buf b, got;
    int64_t now = sv_clock_us(), hour = 3600 * (int64_t)1000000;
    (void)state;

    assert_int_equal(sv_mail_open(&m, NULL), SV_OK);
    sv_buf_init(&b);
    sv_buf_init(&got);
    sv_mail_quiet(m, now + hour, hour, INT64_MAX);
    post(m, &b, false);
    post(m, &b, false);
    assert_int_equal(readable(m, 20), 0);
    post(m, &b, true); /* brings the others along */
    assert_int_equal(readable(m, 60000), 1);
    sv_mail_take(m, &got);
    assert_int_equal(got.len, 3);
    assert_int_equal(readable(m, 0), 0);

    now = sv_clock_us();
    sv_mail_quiet(m, now + hour, 30000, INT64_MAX);
    post(m, &b, false);
    assert_int_equal(readable(m, 60000), 1); /* nothing waits longer than that */
    assert_true(sv_clock_us() - now >= 30000);
    sv_mail_take(m, &got);
    assert_int_equal(got.len, 1);

    sv_mail_quiet(m, sv_clock_us() - 1, hour, INT64_MAX); /* over */
    post(m, &b, false);
    assert_int_equal(readable(m, 60000), 1);
    sv_mail_take(m, &got);

    now = sv_clock_us();
    sv_mail_quiet(m, now + hour, hour, now + 20000); /* and without any mail */
    assert_int_equal(readable(m, 60000), 1);
    assert_true(sv_clock_us() - now >= 20000);
    sv_mail_take(m, &got);
    assert_int_equal(got.len, 0);
    sv_buf_fini(&b);
    sv_buf_fini(&got);
    sv_mail_close(m);
}

struct pair {
    int64_t a, b;
};

static void *set_all(void *arg)
{
    for (int64_t i = 1; i <= N; i++)
        sv_cell_set(arg, &(struct pair){i, -i});
    return NULL;
}

static void cell_is_never_torn(void **state)
{
    struct sv_cell *c;
    struct sv_thread *t;
    struct pair p = {0, 0};
    (void)state;

    assert_int_equal(sv_cell_open(&c, sizeof p, NULL), SV_OK);
    sv_cell_get(c, &p);
    assert_int_equal(p.a, 0);
    assert_int_equal(sv_thread_start(&t, set_all, c, NULL), SV_OK);
    while (p.a < N) {
        sv_cell_get(c, &p);
        assert_int_equal(p.a, -p.b);
    }
    sv_thread_join(t);
    sv_cell_close(c);
}

static void opening_without_memory(void **state)
{
    struct sv_queue *q;
    struct sv_mail *m;
    struct sv_cell *c;
    struct sv_err err;
    (void)state;

    for (int n = 1; n <= 2; n++) {
        sv_fault_arm(n);
        assert_true(sv_queue_open(&q, 4, 4, &err) < 0);
        sv_fault_arm(n);
        assert_true(sv_mail_open(&m, &err) < 0);
    }
    sv_fault_arm(1);
    assert_true(sv_cell_open(&c, 4, &err) < 0);
    sv_fault_arm(0);
}

SV_TEST_MAIN(cmocka_unit_test(queue_is_bounded_and_ordered),
             cmocka_unit_test(queue_between_threads),
             cmocka_unit_test(mail_arrives_whole_and_in_order), cmocka_unit_test(quiet_mail_waits),
             cmocka_unit_test(cell_is_never_torn), cmocka_unit_test(opening_without_memory))
