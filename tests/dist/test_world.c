/*
 * test_world.c - a group of ranks: the stream of messages arrives in order and complete whichever
 * rank is slow, shared values, and a rank that fails or stops reading.
 *
 * timeout: 120
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include "testing.h"

#include "dist/dist.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGES = 3000, LAST = 2 };

static void nap_us(int64_t us)
{
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Message i: its number, then bytes that follow from it. */
static uint32_t bytes_of(uint32_t i)
{
    struct sv_rng g = {i};
    const uint32_t kind = sv_rng_below(&g, 20);
    return kind == 0  ? SV_STREAM_MOST - 4
           : kind < 4 ? sv_rng_below(&g, 50000)
                      : sv_rng_below(&g, 90);
}

static unsigned char byte_of(uint32_t i, uint32_t at)
{
    return (unsigned char)(i * 31 + at * 7);
}

struct told {
    int64_t nap_us;   /* of a reader between messages, now and then */
    uint32_t stop_at; /* it reads no more from here on */
    bool says;        /* and says so */
    int n_wrong, n_read, rc, least;
    char message[480];
};
static struct told told[SV_MAX_RANKS];

static void read_all(struct sv_world *w, struct told *t)
{
    struct sv_err err = {0};
    uint32_t kind = 1, n;
    const void *data;
    for (uint32_t i = 0; i < t->stop_at; i++) {
        t->rc = sv_stream_read(w, &kind, &data, &n, &err);
        if (t->rc || kind == LAST)
            break;
        const unsigned char *p = data;
        uint32_t number;
        memcpy(&number, p, sizeof number);
        t->n_wrong += number != i || n != bytes_of(i) + 4;
        for (uint32_t k = 4; k < n; k += 97)
            t->n_wrong += p[k] != byte_of(i, k - 4);
        t->n_read++;
        if (t->nap_us && i % 50 == 0)
            nap_us(t->nap_us);
        sv_stream_done(w);
    }
    memcpy(t->message, err.msg, sizeof t->message);
}

static void follower(struct sv_world *w, void *user)
{
    struct told *t = &told[w->ranks.rank];
    int32_t value = 100 + w->ranks.rank, all[SV_MAX_RANKS];
    (void)user;
    t->rc = sv_world_swap(w, &value, sizeof value, all, NULL);
    for (int32_t r = 0; r < w->ranks.n; r++)
        t->n_wrong += all[r] != 100 + r;
    for (int i = 0; i < 5; i++) {
        value = w->ranks.rank * 10 + i;
        t->rc |= sv_world_broadcast(w, &value, sizeof value, NULL);
        t->n_wrong += value != i;
    }
    read_all(w, t);
    if (t->says)
        sv_world_fail(w, "enough");
    sv_world_leave(w);
}

/* Returns what writing gave. */
static int write_all(struct sv_world *w, struct sv_err *err)
{
    static unsigned char data[SV_STREAM_MOST];
    int rc = SV_OK;
    for (uint32_t i = 0; i < MESSAGES && !rc; i++) {
        const uint32_t n = bytes_of(i);
        for (uint32_t k = 0; k < n; k++)
            data[k] = byte_of(i, k);
        rc = sv_stream_write(w, 1, &i, sizeof i, data, n, err);
        if (i % 7 == 0)
            sv_stream_flush(w);
    }
    if (!rc)
        rc = sv_stream_write(w, LAST, NULL, 0, NULL, 0, err);
    sv_stream_flush(w);
    return rc;
}

/* timeout_us: of a reader, while messages are written. */
static int run(int32_t n, int64_t timeout_us, struct sv_err *err)
{
    const struct sv_world_opts o = {.n = n, .n_threads = 1, .timeout_us = 20000000};
    struct sv_world w;
    int32_t value = 100, all[SV_MAX_RANKS];
    assert_int_equal(sv_world_open(&w, &o, err), SV_OK);
    assert_int_equal(sv_world_spawn(&w, follower, NULL, err), SV_OK);
    assert_int_equal(sv_world_swap(&w, &value, sizeof value, all, err), SV_OK);
    for (int32_t i = 0; i < 5; i++) {
        value = i;
        assert_int_equal(sv_world_broadcast(&w, &value, sizeof value, err), SV_OK);
        assert_int_equal(value, i);
    }
    w.timeout_us = timeout_us;
    int rc = write_all(&w, err);
    w.timeout_us = o.timeout_us;
    if (rc)
        sv_world_fail(&w, err->msg);
    assert_true(sv_world_leave(&w));
    sv_world_close(&w);
    assert_int_equal(sv_alloc_live(), 0);
    return rc;
}

static void reset(void)
{
    memset(told, 0, sizeof told);
    for (int r = 0; r < SV_MAX_RANKS; r++)
        told[r].stop_at = UINT32_MAX;
}

static void in_order(void **state)
{
    struct sv_err err = {0};
    (void)state;
    for (int32_t n = 2; n <= 5; n++) {
        reset();
        told[n - 1].nap_us = 500;
        assert_int_equal(run(n, 20000000, &err), SV_OK);
        for (int32_t r = 1; r < n; r++) {
            assert_int_equal(told[r].rc, SV_OK);
            assert_int_equal(told[r].n_wrong, 0);
            assert_int_equal(told[r].n_read, MESSAGES);
        }
    }
}

static void reads_no_more(void **state)
{
    struct sv_err err = {0};
    (void)state;
    for (int tries = 1;; tries++) {
        reset();
        told[2].stop_at = 40;
        assert_int_equal(run(4, 400000, &err), SV_EDEVICE);
        if (strstr(err.msg, "rank 2 does not read its messages"))
            break;
        /* A busy machine may stop another rank's thread for as long: one try of ten has to do. */
        assert_non_null(strstr(err.msg, " does not read its messages"));
        assert_true(tries < 10);
    }
    assert_non_null(strstr(told[1].message, "rank 0 failed: rank 2 does not read"));
}

static void says_that_it_fails(void **state)
{
    struct sv_err err = {0};
    (void)state;
    reset();
    told[3].stop_at = 40;
    told[3].says = true;
    assert_int_equal(run(4, 20000000, &err), SV_EDEVICE);
    assert_string_equal(err.msg, "rank 3 failed: enough");
    assert_string_equal(told[1].message, "rank 3 failed: enough");
}

/* A process that takes longer than the timeout to open is waited for as long as its heart beats,
 * here until it has beaten n_beats times; one that is stopped is killed. */
struct opening {
    struct sv_world world;
    int n_beats;
    bool ends;
};

static void *opening_main(void *arg)
{
    struct opening *o = arg;
    int32_t value = 7, all[2];
    for (int i = 0; i < o->n_beats; i++, nap_us(100000))
        __atomic_fetch_add(&o->world.shared->heartbeat[1], 1, __ATOMIC_RELAXED);
    if (o->ends)
        sv_world_swap(&o->world, &value, sizeof value, all, NULL);
    return NULL;
}

/* Whether the process was found to be stopped and killed. */
static bool is_killed(bool ends)
{
    const struct sv_world_opts o = {.n = 2, .n_threads = 1, .timeout_us = 2000000};
    struct opening other = {.n_beats = ends ? 25 : 1, .ends = ends};
    struct sv_thread *thread;
    struct sv_err err = {0};
    struct sv_world w;
    int32_t value = 3, all[2] = {0};
    char text[80];
    int status;
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    assert_true(pid > 0);
    if (!ends)
        kill(pid, SIGSTOP);
    assert_int_equal(sv_world_open(&w, &o, &err), SV_OK);
    w.shared->pid[1] = pid;
    other.world = w;
    other.world.ranks.rank = 1;
    assert_int_equal(sv_thread_start(&thread, opening_main, &other, &err), SV_OK);
    const int rc = sv_world_swap(&w, &value, sizeof value, all, &err);
    sv_thread_join(thread);
    if (!rc)
        kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), rc ? SIGKILL : SIGTERM);
    snprintf(text, sizeof text, "rank 1: process %d has been stopped for 2000 ms", (int)pid);
    assert_true(rc == SV_OK || rc == SV_EDEVICE);
    if (rc)
        assert_string_equal(err.msg, text);
    else
        assert_int_equal(all[1], 7);
    sv_world_close(&w);
    assert_int_equal(sv_alloc_live(), 0);
    return rc;
}

static void stopped_while_it_opens(void **state)
{
    int tries = 1;
    (void)state;
    assert_true(is_killed(false));
    /* Its beats may stop with a busy machine: one try of ten has to do. */
    while (is_killed(true))
        assert_true(++tries <= 10);
}

SV_TEST_MAIN(cmocka_unit_test(in_order), cmocka_unit_test(reads_no_more),
             cmocka_unit_test(says_that_it_fails), cmocka_unit_test(stopped_while_it_opens))
