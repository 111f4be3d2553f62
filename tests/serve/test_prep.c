/*
 * test_prep.c - the thread that does long work beside the server's loop: jobs in the order they
 * came, room for so many of each kind, nothing lost when it ends.
 *
 * Also for `make tsan`: what a job writes is plain memory, read once it is done. timeout: 60
 */
#include "testing.h"

#include "serve/impl.h"

#include <poll.h>
#include <string.h>

enum { MOST = 64 };

static struct desk {
    struct sv_queue *gate; /* a job with this wish waits until somebody opens */
    int n_run, n_done;
    struct work {
        struct sv_job job;
        bool waits;
        int run_as, done_as; /* which one of all: 1.. */
    } work[2 * MOST + 2];
} desk;

static void work_run(void *user, struct sv_enc_scratch *scratch)
{
    struct work *w = user;
    int opened;
    assert_non_null(scratch);
    while (w->waits && !sv_queue_pop(desk.gate, &opened, 1000000))
        ;
    w->run_as = ++desk.n_run;
}

static void work_done(void *user)
{
    struct work *w = user;
    assert_true(w->run_as > 0 && w->done_as == 0);
    w->done_as = ++desk.n_done;
}

static struct sv_prep *begin(void)
{
    struct sv_prep *p;
    struct sv_err err = {0};
    memset(&desk, 0, sizeof desk);
    for (size_t i = 0; i < sizeof desk.work / sizeof desk.work[0]; i++)
        desk.work[i].job =
            (struct sv_job){.run = work_run, .done = work_done, .user = &desk.work[i]};
    assert_int_equal(sv_queue_open(&desk.gate, 4, sizeof(int), &err), SV_OK);
    assert_int_equal(sv_prep_start(&p, &err), SV_OK);
    return p;
}

static void open_gate(void)
{
    const int go = 1;
    assert_true(sv_queue_push(desk.gate, &go));
}

static void end(struct sv_prep *p)
{
    sv_prep_free(p);
    sv_queue_close(desk.gate);
    assert_int_equal(sv_alloc_live(), 0);
}

/* The loop sleeps on the descriptor: a job that is done wakes it. */
static void wait_for(struct sv_prep *p, int n)
{
    while (desk.n_done < n) {
        struct pollfd f = {.fd = sv_prep_fd(p), .events = POLLIN};
        assert_int_equal(poll(&f, 1, 20000), 1);
        sv_prep_collect(p);
    }
}

static void in_order(void **state)
{
    (void)state;
    enum { N = 10 };
    struct sv_prep *p = begin();
    for (int i = 0; i < N; i++) {
        desk.work[i].job.writes = i % 3 == 1;
        assert_true(sv_prep_submit(p, &desk.work[i].job));
    }
    wait_for(p, N);
    for (int i = 0; i < N; i++)
        assert_true(desk.work[i].run_as == i + 1 && desk.work[i].done_as == i + 1);
    assert_int_equal(sv_prep_n_reading(p) + sv_prep_n_writing(p), 0);
    end(p);
}

/* So many of each kind may wait, whatever there is of the other. */
static void room_for_each(void **state)
{
    (void)state;
    struct sv_prep *p = begin();
    desk.work[0].waits = true;
    for (int i = 0; i <= MOST; i++)
        assert_int_equal(sv_prep_submit(p, &desk.work[i].job), i < MOST);
    assert_int_equal(sv_prep_n_reading(p), MOST);
    assert_int_equal(sv_prep_n_writing(p), 0);
    for (int i = MOST; i <= 2 * MOST; i++) {
        desk.work[i].job.writes = true;
        assert_int_equal(sv_prep_submit(p, &desk.work[i].job), i < 2 * MOST);
    }
    assert_int_equal(sv_prep_n_writing(p), MOST);
    sv_prep_collect(p); /* nothing has run */
    assert_int_equal(desk.n_done, 0);
    open_gate();
    wait_for(p, 2 * MOST);
    assert_int_equal(sv_prep_n_reading(p) + sv_prep_n_writing(p), 0);
    assert_true(sv_prep_submit(p, &desk.work[2 * MOST].job)); /* there is room again */
    wait_for(p, 2 * MOST + 1);
    end(p);
}

/* Jobs that wait when it ends are run and told of; trees are freed, when they came and when there
 * is no thread any more. */
static void nothing_is_lost(void **state)
{
    (void)state;
    enum { N = 20 };
    struct sv_prep *p = begin();
    desk.work[0].waits = true;
    for (int i = 0; i < N; i++) {
        assert_true(sv_prep_submit(p, &desk.work[i].job));
        sv_prep_discard(p, json_pack("[i, s]", i, "a tree"));
    }
    sv_prep_discard(p, NULL);
    open_gate();
    sv_prep_finish(p);
    assert_int_equal(desk.n_run, N);
    assert_int_equal(desk.n_done, N);
    sv_prep_discard(p, json_pack("[s]", "late"));
    end(p);
    p = begin(); /* with nothing to do */
    end(p);
}

/* More trees than find room are freed by who brings them. */
static void trees_without_room(void **state)
{
    (void)state;
    struct sv_prep *p = begin();
    desk.work[0].waits = true;
    assert_true(sv_prep_submit(p, &desk.work[0].job));
    for (int i = 0; i < 1000; i++)
        sv_prep_discard(p, json_pack("[i]", i));
    for (int i = 1; i <= MOST; i++) /* and take none from jobs */
        assert_int_equal(sv_prep_submit(p, &desk.work[i].job), i < MOST);
    open_gate();
    end(p);
    assert_int_equal(desk.n_done, MOST);
}

SV_TEST_MAIN(cmocka_unit_test(in_order), cmocka_unit_test(room_for_each),
             cmocka_unit_test(nothing_is_lost), cmocka_unit_test(trees_without_room))
