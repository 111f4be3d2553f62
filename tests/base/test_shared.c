/*
 * test_shared.c - counters that others wait for: reached, stopped or too late, between threads and
 * between processes that share memory by its name.
 */
#define _POSIX_C_SOURCE 200809L /* fork, nanosleep */

#include "testing.h"

#include "base/base.h"

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 20000 };

static void nap_ms(int ms)
{
    const struct timespec t = {0, ms * 1000000L};
    nanosleep(&t, NULL);
}

/* Two sides in turn: each waits for the other's count, then counts up. The value they hand over is
 * plain memory. */
struct turns {
    struct sv_count count[2];
    int64_t value;
    int64_t spin_us;
};

static int take_turns(struct turns *t, int side)
{
    int n_wrong = 0;
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        if (side == 1 && sv_count_wait(&t->count[0], i, NULL, t->spin_us, 20000000) != SV_WAIT_OK)
            return -1;
        n_wrong += t->value != 2 * (int64_t)i - 2 + side;
        t->value++;
        sv_count_set(&t->count[side], i);
        if (side == 0 && sv_count_wait(&t->count[1], i, NULL, t->spin_us, 20000000) != SV_WAIT_OK)
            return -1;
    }
    return n_wrong;
}

static void *other_side(void *arg)
{
    return (void *)(intptr_t)take_turns(arg, 1);
}

static void threads(void **state)
{
    (void)state;
    for (int64_t spin_us = 0; spin_us <= 50; spin_us += 50) {
        struct turns t;
        struct sv_thread *thread;
        memset(&t, 0, sizeof t);
        t.spin_us = spin_us;
        assert_int_equal(sv_thread_start(&thread, other_side, &t, NULL), SV_OK);
        assert_int_equal(take_turns(&t, 0), 0);
        assert_int_equal((intptr_t)sv_thread_join(thread), 0);
    }
}

static void processes(void **state)
{
    struct sv_shared s;
    struct sv_err err = {0};
    int status = -1;
    (void)state;
    assert_int_equal(sv_shared_open(&s, sizeof(struct turns), &err), SV_OK);
    const pid_t child = fork();
    if (child == 0) {
        void *memory;
        const int rc = sv_shared_map(&memory, sizeof(struct turns), s.name, &err);
        _exit(rc || memory == s.memory ? 2 : take_turns(memory, 1) != 0);
    }
    assert_int_equal(take_turns(s.memory, 0), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    sv_shared_close(&s);
    assert_null(s.memory);
}

static void *stop_later(void *stop)
{
    nap_ms(30);
    __atomic_store_n((uint32_t *)stop, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void ends(void **state)
{
    struct sv_count c;
    struct sv_thread *thread;
    uint32_t stop = 0;
    (void)state;
    memset(&c, 0, sizeof c);
    int64_t begin = sv_clock_us();
    assert_int_equal(sv_count_wait(&c, 1, NULL, 0, 20000), SV_WAIT_TIMEOUT);
    assert_true(sv_clock_us() - begin >= 20000);
    /* A busy machine may stop either thread: one try of ten has to do. */
    for (int tries = 1;; tries++) {
        begin = sv_clock_us();
        stop = 0;
        assert_int_equal(sv_thread_start(&thread, stop_later, &stop, NULL), SV_OK);
        assert_int_equal(sv_count_wait(&c, 1, &stop, 0, -1), SV_WAIT_STOPPED);
        sv_thread_join(thread);
        if (sv_clock_us() - begin < 5000000)
            break;
        assert_true(tries < 10);
    }
    /* counts go round; what is there already is taken even after a stop */
    sv_count_set(&c, UINT32_MAX);
    assert_int_equal(sv_count_wait(&c, UINT32_MAX, &stop, 0, -1), SV_WAIT_OK);
    assert_int_equal(sv_count_wait(&c, UINT32_MAX - 3, NULL, 0, -1), SV_WAIT_OK);
    assert_int_equal(sv_count_wait(&c, 0, NULL, 0, 1000), SV_WAIT_TIMEOUT);
    sv_count_set(&c, 2);
    assert_int_equal(sv_count_wait(&c, UINT32_MAX, NULL, 0, -1), SV_WAIT_OK);
}

static void no_memory(void **state)
{
    struct sv_shared s;
    struct sv_err err = {0};
    void *memory;
    (void)state;
    sv_fault_arm(1);
    assert_int_equal(sv_shared_open(&s, 4096, &err), SV_EIO);
    sv_fault_arm(0);
    assert_non_null(strstr(err.msg, "shared memory: cannot open"));
    assert_int_equal(sv_shared_map(&memory, 4096, "/proc/self/fd/999", &err), SV_EIO);
    assert_null(memory);
}

SV_TEST_MAIN(cmocka_unit_test(threads), cmocka_unit_test(processes), cmocka_unit_test(ends),
             cmocka_unit_test(no_memory))
