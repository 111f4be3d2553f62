/*
 * pool.c - fork-join over a fixed set of threads, the barrier inside it, and plain threads.
 *
 * Called by the CPU backend for every parallel section (about 60 a pass, 5 to 50 us each), so start
 * and end of a section are two atomic words that waiters first watch for a bounded time and then
 * sleep on (futex). Must not: allocate or take a lock in sv_pool_run, or change how work is split.
 *
 * The first thread that claims a share of a run executes it. Worker i only claims share i; the
 * caller, after share 0, claims shares that are not claimed yet. So a worker that is still asleep,
 * or whose processor runs another process, causes no delay. Shares with a barrier are safe: when
 * the caller returns from its own, all others have been claimed.
 *
 * Sleeping without lost wake-ups: a waiter announces itself in `sleepers`, then reads the word
 * again; a waker changes the word, then reads `sleepers`. All four are sequentially
 * consistent, so at least one of the two sees the other. The kernel compares the word once more
 * before it sleeps.
 */
#define _GNU_SOURCE /* sched_getaffinity, syscall */

#include "base/internal.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* How long a waiter spins before it sleeps. Long enough for the gap between two sections of a pass,
 * short enough not to starve other processes of a shared machine. With more threads than processors
 * spinning keeps the others from working, so it ends almost at once. */
#ifndef SPIN_NS
#define SPIN_NS 40000
#endif
#define SPIN_CROWDED_NS 500
#define PAUSES_PER_LOOK 16 /* between two reads of the clock */

/* A counter that threads wait on, in a cache line of its own, as waiters poll it. */
struct event {
    _Alignas(SV_ALIGN) _Atomic uint32_t word;
    _Atomic uint32_t sleepers;
};

struct worker {
    _Alignas(
        SV_ALIGN) _Atomic uint32_t claimed; /* the last run whose share of this index was taken */
    struct sv_pool *pool;
    int index;
    pthread_t thread;
};

struct sv_pool {
    struct event start; /* word: number of runs begun */
    struct event done;  /* word: shares of the current run not done, the caller's own aside */
    struct event meet;  /* word: barriers passed */
    _Alignas(SV_ALIGN) _Atomic uint32_t n_arrived; /* at the barrier now open */
    _Alignas(SV_ALIGN) sv_pool_fn fn;              /* published by start */
    void *arg;
    _Atomic bool stop;
    _Atomic bool running;
    int n_threads;
    int n_started;
    int64_t spin_ns;
    struct worker workers[]; /* (n_threads); 0 is the caller and has no thread */
};

static inline void cpu_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static uint32_t event_read(struct event *e)
{
    return atomic_load_explicit(&e->word, memory_order_acquire);
}

/* Returns once the word equals value (until == true) or differs from it (until == false). */
static void event_wait(struct event *e, uint32_t value, bool until, int64_t spin_ns)
{
    int64_t limit = 0;
    uint32_t now;

    for (int i = 1; ((now = event_read(e)) == value) != until; i++) {
        cpu_pause();
        if (i % PAUSES_PER_LOOK == 0) {
            int64_t t = sv_clock_ns();
            if (!limit)
                limit = t + spin_ns;
            else if (t >= limit)
                break;
        }
    }
    if ((now == value) == until)
        return;
    atomic_fetch_add(&e->sleepers, 1);
    while (((now = atomic_load(&e->word)) == value) != until)
        syscall(SYS_futex, &e->word, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0);
    atomic_fetch_sub(&e->sleepers, 1);
}

/* After a sequentially consistent change of the word. */
static void event_wake(struct event *e)
{
    if (atomic_load(&e->sleepers))
        syscall(SYS_futex, &e->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* True for one caller of each (worker, run), which may then read fn and arg: the run cannot end,
 * and the next not begin, before this share is done. */
static bool claim(struct worker *w, uint32_t run)
{
    uint32_t before = run - 1;
    return atomic_compare_exchange_strong_explicit(&w->claimed, &before, run, memory_order_relaxed,
                                                   memory_order_relaxed);
}

static void do_share(struct sv_pool *pool, int index)
{
    pool->fn(pool->arg, index, pool->n_threads);
    if (atomic_fetch_sub(&pool->done.word, 1) == 1)
        event_wake(&pool->done);
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct sv_pool *pool = w->pool;
    uint32_t run = 0;

    for (;;) {
        event_wait(&pool->start, run, false, pool->spin_ns);
        /* other threads may have run this worker's shares of runs in between */
        run = event_read(&pool->start);
        if (atomic_load_explicit(&pool->stop, memory_order_relaxed))
            return NULL;
        if (claim(w, run))
            do_share(pool, w->index);
    }
}

int sv_pool_open(struct sv_pool **out, int n_threads, struct sv_err *err)
{
    struct sv_pool *pool;

    *out = NULL;
    if (n_threads < 1 || n_threads > 1024)
        return sv_fail(err, SV_EINVAL, -1, "%d threads: must be 1 to 1024", n_threads);
    pool = sv_calloc(1, sizeof *pool + (size_t)n_threads * sizeof pool->workers[0]);
    if (!pool)
        return sv_fail(err, SV_ENOMEM, -1, "thread pool: out of memory");
    pool->n_threads = n_threads;
    pool->n_started = 1;
    pool->spin_ns = n_threads <= sv_cpu_count() ? SPIN_NS : SPIN_CROWDED_NS;
    for (int i = 1; i < n_threads; i++, pool->n_started++) {
        struct worker *w = &pool->workers[i];
        int rc;
        w->pool = pool;
        w->index = i;
        rc = sv_fault_hit() ? EAGAIN : pthread_create(&w->thread, NULL, worker_main, w);
        if (rc != 0) {
            sv_pool_close(pool);
            return sv_fail(err, SV_EFULL, -1, "cannot start thread %d of %d: %s", i, n_threads,
                           strerror(rc));
        }
    }
    *out = pool;
    return SV_OK;
}

void sv_pool_close(struct sv_pool *pool)
{
    if (!pool)
        return;
    pool->stop = true;
    atomic_fetch_add(&pool->start.word, 1);
    event_wake(&pool->start);
    for (int i = 1; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    sv_free(pool);
}

void sv_pool_run(struct sv_pool *pool, sv_pool_fn fn, void *arg)
{
    uint32_t run;

    if (pool->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    if (atomic_exchange_explicit(&pool->running, true, memory_order_relaxed))
        sv_panic("a thread pool was asked for a run inside a run");
    pool->fn = fn;
    pool->arg = arg;
    atomic_store_explicit(&pool->done.word, (uint32_t)pool->n_threads - 1, memory_order_relaxed);
    run = atomic_fetch_add(&pool->start.word, 1) + 1;
    event_wake(&pool->start);
    fn(arg, 0, pool->n_threads);
    for (int i = 1; i < pool->n_threads; i++)
        if (claim(&pool->workers[i], run))
            do_share(pool, i);
    event_wait(&pool->done, 0, true, pool->spin_ns);
    atomic_store_explicit(&pool->running, false, memory_order_relaxed);
}

void sv_pool_barrier(struct sv_pool *pool, int thread)
{
    uint32_t sense;

    (void)thread;
    if (pool->n_threads == 1)
        return;
    sense = event_read(&pool->meet); /* before arriving: it cannot change until we have */
    if (atomic_fetch_add(&pool->n_arrived, 1) + 1 == (uint32_t)pool->n_threads) {
        atomic_store_explicit(&pool->n_arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&pool->meet.word, 1);
        event_wake(&pool->meet);
    } else {
        event_wait(&pool->meet, sense, false, pool->spin_ns);
    }
}

/* A container's processor quota, rounded up; INT_MAX when there is none. */
static int quota_cpus(void)
{
    long long quota, period;
    int n = INT_MAX;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");

    if (!f)
        return n;
    if (fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0 &&
        quota / period < INT_MAX)
        n = (int)((quota + period - 1) / period);
    fclose(f);
    return n;
}

int sv_cpu_count(void)
{
    cpu_set_t set;
    int n = 1, quota = quota_cpus();

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
    else if (sysconf(_SC_NPROCESSORS_ONLN) > 0) /* more than 1024 processors */
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < quota ? n : quota;
}

struct sv_thread {
    pthread_t thread;
};

int sv_thread_start(struct sv_thread **out, void *(*fn)(void *), void *arg, struct sv_err *err)
{
    struct sv_thread *t = sv_alloc_small(sizeof *t);
    int rc;

    *out = NULL;
    if (!t)
        return sv_fail(err, SV_ENOMEM, -1, "thread: out of memory");
    rc = sv_fault_hit() ? EAGAIN : pthread_create(&t->thread, NULL, fn, arg);
    if (rc != 0) {
        sv_free(t);
        return sv_fail(err, SV_EFULL, -1, "cannot start a thread: %s", strerror(rc));
    }
    *out = t;
    return SV_OK;
}

void *sv_thread_join(struct sv_thread *t)
{
    void *result = NULL;
    pthread_join(t->thread, &result);
    sv_free(t);
    return result;
}
