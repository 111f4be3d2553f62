/*
 * test_pool.c - the thread pool: every section runs once on every thread, barriers hold, sleepers
 * wake.
 *
 * Also run under TSan (make tsan): plain memory written in one section is read in the next. More
 * threads than processors on purpose. timeout: 120
 */
#define _DEFAULT_SOURCE /* usleep, fork */

#include "testing.h"
#include "base/base.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_THREADS 16

struct work {
    struct sv_pool *pool;
    int64_t count[MAX_THREADS * 16]; /* one cache line and more for each thread */
    int n_seen;
    int n_barriers;
    int slots[2][MAX_THREADS];
    bool wrong;
};

static void count_once(void *arg, int thread, int n_threads)
{
    struct work *w = arg;
    w->count[thread * 16]++;
    if (thread == 0)
        w->n_seen = n_threads;
}

static void each_section_runs_once_on_each_thread(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 16};
    for (size_t s = 0; s < 5; s++) {
        int n = sizes[s], rounds = n <= 2 ? 20000 : 1000;
        struct work w = {0};
        struct sv_err err;
        assert_int_equal(sv_pool_open(&w.pool, n, &err), SV_OK);
        for (int i = 0; i < rounds; i++)
            sv_pool_run(w.pool, count_once, &w);
        for (int i = 0; i < n; i++)
            assert_int_equal(w.count[i * 16], rounds);
        assert_int_equal(w.n_seen, n);
        sv_pool_close(w.pool);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void sleeping_workers_wake_up(void **state)
{
    (void)state;
    struct work w = {0};
    struct sv_err err;
    struct sv_rng rng = {3};

    assert_int_equal(sv_pool_open(&w.pool, 4, &err), SV_OK);
    for (int i = 0; i < 400; i++) {
        usleep(sv_rng_below(&rng, 150)); /* around the time at which waiters go to sleep */
        sv_pool_run(w.pool, count_once, &w);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(w.count[i * 16], 400);
    sv_pool_close(w.pool);
}

static void slow_thread(void *arg, int thread, int n_threads)
{
    struct work *w = arg;
    if (thread == n_threads - 1)
        usleep(1000); /* the caller goes to sleep on the end of the section */
    w->count[thread * 16]++;
}

static void a_sleeping_caller_wakes_up(void **state)
{
    (void)state;
    struct work w = {0};
    struct sv_err err;

    assert_int_equal(sv_pool_open(&w.pool, 3, &err), SV_OK);
    for (int i = 0; i < 100; i++)
        sv_pool_run(w.pool, slow_thread, &w);
    for (int i = 0; i < 3; i++)
        assert_int_equal(w.count[i * 16], 100);
    sv_pool_close(w.pool);
}

/* Each thread writes its slot, all meet, each reads every slot: two sets of slots, so that one
 * barrier a phase is enough and a barrier that lets anyone through early is seen. */
static void phases(void *arg, int thread, int n_threads)
{
    struct work *w = arg;
    for (int phase = 1; phase <= w->n_barriers; phase++) {
        int *slots = w->slots[phase & 1];
        slots[thread] = phase * 100 + thread;
        if (phase % 50 == 0 && thread == phase / 50 % n_threads)
            usleep(200);
        sv_pool_barrier(w->pool, thread);
        for (int i = 0; i < n_threads; i++)
            if (slots[i] != phase * 100 + i)
                w->wrong = true;
    }
}

static void barriers_hold(void **state)
{
    (void)state;
    static const int sizes[] = {1, 2, 3, 8};
    for (size_t s = 0; s < 4; s++) {
        struct work w = {.n_barriers = sizes[s] <= 2 ? 5000 : 500};
        struct sv_err err;
        assert_int_equal(sv_pool_open(&w.pool, sizes[s], &err), SV_OK);
        for (int i = 0; i < 3; i++)
            sv_pool_run(w.pool, phases, &w);
        assert_false(w.wrong);
        sv_pool_close(w.pool);
    }
}

static void pools_open_and_close_and_fail(void **state)
{
    (void)state;
    struct sv_pool *pool;
    struct sv_err err;

    for (int i = 0; i < 50; i++) {
        assert_int_equal(sv_pool_open(&pool, 1 + i % 5, &err), SV_OK);
        sv_pool_close(pool);
    }
    sv_pool_close(NULL);
    assert_int_equal(sv_pool_open(&pool, 0, &err), SV_EINVAL);
    assert_int_equal(sv_pool_open(&pool, 100000, &err), SV_EINVAL);
    for (int n = 1; n <= 4; n++) {
        sv_fault_arm(n);
        assert_int_equal(sv_pool_open(&pool, 4, &err), n == 1 ? SV_ENOMEM : SV_EFULL);
        sv_fault_arm(0);
        assert_null(pool);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

static void nested(void *arg, int thread, int n_threads)
{
    struct work *w = arg;
    (void)n_threads;
    if (thread == 0)
        sv_pool_run(w->pool, count_once, w);
}

static void a_run_inside_a_run_aborts(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        struct work w = {0};
        sv_pool_open(&w.pool, 2, NULL);
        sv_pool_run(w.pool, nested, &w);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
}

static void *double_it(void *arg)
{
    int *x = arg;
    *x *= 2;
    return arg;
}

static void plain_threads(void **state)
{
    (void)state;
    struct sv_thread *t;
    struct sv_err err;
    int x = 21;

    assert_int_equal(sv_thread_start(&t, double_it, &x, &err), SV_OK);
    assert_ptr_equal(sv_thread_join(t), &x);
    assert_int_equal(x, 42);
    for (int n = 1; n <= 2; n++) {
        sv_fault_arm(n);
        assert_int_equal(sv_thread_start(&t, double_it, &x, &err), n == 1 ? SV_ENOMEM : SV_EFULL);
        sv_fault_arm(0);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(each_section_runs_once_on_each_thread),
             cmocka_unit_test(sleeping_workers_wake_up),
             cmocka_unit_test(a_sleeping_caller_wakes_up), cmocka_unit_test(barriers_hold),
             cmocka_unit_test(pools_open_and_close_and_fail),
             cmocka_unit_test(a_run_inside_a_run_aborts), cmocka_unit_test(plain_threads))
