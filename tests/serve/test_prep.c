/*
 * test_prep.c - the threads that do long work beside the server's loop: jobs of equal cost in the
 * order they came, small ones before large ones, grammars apart, room for so many of each kind,
 * nothing lost at the end.
 *
 * Also for `make tsan`: what a job writes is plain memory, read once it is done. timeout: 60
 */
#include "testing.h"

#include "serve/core/prep.h"

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
    assert_int_equal(!scratch, w->job.kind == SV_JOB_GRAMMAR);
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
        assert_int_equal(poll(&f, 1, 60000), 1);
        sv_prep_collect(p);
    }
}

static int32_t n_waiting(const struct sv_prep *p)
{
    return sv_prep_n_jobs(p, SV_JOB_BODY) + sv_prep_n_jobs(p, SV_JOB_ANSWER) +
           sv_prep_n_jobs(p, SV_JOB_GRAMMAR);
}

static void in_order(void **state)
{
    (void)state;
    enum { N = 10 };
    struct sv_prep *p = begin();
    for (int i = 0; i < N; i++) {
        desk.work[i].job.kind = i % 3 == 1 ? SV_JOB_ANSWER : SV_JOB_BODY;
        assert_true(sv_prep_submit(p, &desk.work[i].job));
    }
    wait_for(p, N);
    for (int i = 0; i < N; i++)
        assert_true(desk.work[i].run_as == i + 1 && desk.work[i].done_as == i + 1);
    assert_int_equal(n_waiting(p), 0);
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
    assert_int_equal(sv_prep_n_jobs(p, SV_JOB_BODY), MOST);
    assert_int_equal(sv_prep_n_jobs(p, SV_JOB_ANSWER), 0);
    for (int i = MOST; i <= 2 * MOST; i++) {
        desk.work[i].job.kind = SV_JOB_ANSWER;
        assert_int_equal(sv_prep_submit(p, &desk.work[i].job), i < 2 * MOST);
    }
    assert_int_equal(sv_prep_n_jobs(p, SV_JOB_ANSWER), MOST);
    sv_prep_collect(p); /* nothing has run */
    assert_int_equal(desk.n_done, 0);
    open_gate();
    wait_for(p, 2 * MOST);
    assert_int_equal(n_waiting(p), 0);
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

/* A grammar that takes long holds up no body and no answer. */
static void grammars_apart(void **state)
{
    (void)state;
    struct sv_prep *p = begin();
    desk.work[0].waits = true;
    desk.work[0].job.kind = desk.work[3].job.kind = SV_JOB_GRAMMAR;
    desk.work[1].job.kind = SV_JOB_ANSWER;
    for (int i = 0; i < 4; i++)
        assert_true(sv_prep_submit(p, &desk.work[i].job));
    wait_for(p, 2);
    assert_true(desk.work[1].done_as && desk.work[2].done_as);
    assert_false(desk.work[0].done_as || desk.work[3].done_as);
    open_gate();
    wait_for(p, 4);
    assert_int_equal(n_waiting(p), 0);
    end(p);
}

/* A small job is next, whatever large ones wait, and also when these go on coming. */
static void small_ones_pass(void **state)
{
    (void)state;
    enum { N = 10 };
    struct sv_prep *p = begin();
    desk.work[0].waits = true;
    for (int i = 0; i <= N; i++) {
        desk.work[i].job.kind = SV_JOB_GRAMMAR;
        desk.work[i].job.cost = i < N ? 1000 : 10;
        assert_true(sv_prep_submit(p, &desk.work[i].job));
    }
    open_gate();
    wait_for(p, N + 1);
    assert_int_equal(desk.work[0].done_as, 1);
    assert_int_equal(desk.work[N].done_as, 2);
    for (int i = 1; i < N; i++)
        assert_int_equal(desk.work[i].done_as, i + 2);
    for (int i = N + 1; i < 4 * N; i++) {
        desk.work[i].waits = true;
        desk.work[i].job.kind = SV_JOB_GRAMMAR;
        desk.work[i].job.cost = i < 4 * N - 1 ? 1000 : 10;
    }
    for (int i = N + 1; i < 2 * N; i++)
        assert_true(sv_prep_submit(p, &desk.work[i].job));
    for (int i = 2 * N; i < 4 * N; i++) { /* one ends, one comes */
        open_gate();
        wait_for(p, i - N + 2);
        assert_true(sv_prep_submit(p, &desk.work[i].job));
    }
    open_gate();
    open_gate();
    wait_for(p, 3 * N + 3);
    assert_int_equal(desk.work[4 * N - 1].done_as, 3 * N + 3);
    for (int i = 0; i < N - 3; i++) {
        open_gate();
        wait_for(p, 3 * N + 4 + i);
    }
    end(p);
}

/* However many small jobs go on coming, a large one gets its share: beside one of them, half. */
static void large_ones_too(void **state)
{
    (void)state;
    struct sv_prep *p = begin();
    struct work *large = &desk.work[1];
    int n = 2;
    desk.work[0].waits = true;
    large->job.cost = 1000;
    assert_true(sv_prep_submit(p, &desk.work[0].job));
    assert_true(sv_prep_submit(p, &large->job));
    for (int n_done = 1; !large->done_as && n < MOST; n_done++) {
        desk.work[n].waits = true;
        desk.work[n].job.cost = 400;
        assert_true(sv_prep_submit(p, &desk.work[n++].job));
        open_gate();
        wait_for(p, n_done);
    }
    /* After the one under way, and small ones that together cost as much and a bit more. */
    assert_int_equal(large->done_as, 5);
    for (int i = 5; i < n; i++)
        open_gate();
    wait_for(p, n);
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
             cmocka_unit_test(grammars_apart), cmocka_unit_test(small_ones_pass),
             cmocka_unit_test(large_ones_too), cmocka_unit_test(nothing_is_lost),
             cmocka_unit_test(trees_without_room))
