/*
 * world.c - a group of ranks: the memory that all of them see, what they exchange while they
 * open, which of them has failed, and their end.
 *
 * Called by engine. Ranks are threads of one process, where rank 0 is the caller's, or processes
 * (mpi.c), on several hosts with a memory on each (hosts.c). Must not: free what another rank may
 * still look at, or wait without end for a rank that should answer.
 */
#define _POSIX_C_SOURCE 200809L /* kill */

#include "dist/dist.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SPIN_US = 60, SPIN_CROWDED_US = 2, WATCH_US = 200000, SWAP_LOOK_US = 100000 };
/* A rank that opens reads weights, which may take long; it reports its failure. */
#define OPEN_US ((int64_t)3600 * 1000000)

static void begin(struct sv_world *w, const struct sv_world_opts *o, struct sv_ranks ranks,
                  struct sv_ranks here)
{
    *w = (struct sv_world){.ranks = ranks,
                           .here = here,
                           .timeout_us = o->timeout_us,
                           .spin_us =
                               here.n * o->n_threads <= sv_cpu_count() ? SPIN_US : SPIN_CROWDED_US};
    SV_REQUIRE(o->n > 1 && o->n <= SV_MAX_RANKS && ranks.n == o->n);
}

int sv_world_open(struct sv_world *w, const struct sv_world_opts *o, struct sv_err *err)
{
    const struct sv_ranks ranks = {.n = o->n};
    begin(w, o, ranks, ranks);
    w->shared = sv_calloc(1, sizeof *w->shared);
    return w->shared ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "memory for %d ranks", o->n);
}

/* A process that ends or is stopped reports nothing: others check whether it exists. */
struct sv_world_watch {
    struct sv_world world;
    struct sv_thread *thread;
    struct sv_count over;
    bool kills;
    uint32_t heartbeat[SV_MAX_RANKS]; /* last seen, */
    int64_t at_us[SV_MAX_RANKS];      /* and since when */
};

static bool is_stopped(struct sv_world_watch *x, int32_t r, int64_t now)
{
    const uint32_t heartbeat = __atomic_load_n(&x->world.shared->heartbeat[r], __ATOMIC_RELAXED);
    if (heartbeat != x->heartbeat[r] || !x->at_us[r]) {
        x->heartbeat[r] = heartbeat;
        x->at_us[r] = now;
    }
    return x->kills && x->world.timeout_us >= 0 && now - x->at_us[r] > x->world.timeout_us;
}

/* Nothing else ends a process that is stopped. */
static void fail_stopped(struct sv_world *w, int32_t r, int32_t pid)
{
    char text[96];
    snprintf(text, sizeof text, "process %d has been stopped for %lld ms", pid,
             (long long)(w->timeout_us / 1000));
    sv_failure_set(&w->shared->failure, r, text);
    kill(pid, SIGKILL);
}

/* The rank reads its memory no more; if it relayed other hosts, their ranks are gone too. */
static void set_gone(struct sv_world *w, int32_t r)
{
    const int32_t *first = w->hosts ? w->hosts->first : NULL;
    sv_count_set(&w->shared->gone[r], 1);
    for (int32_t i = 0; first && first[r] == r && i < w->ranks.n; i++)
        if (first[i] != r)
            sv_count_set(&w->shared->gone[i], 1);
    sv_world_changed(w);
}

static void look_at(struct sv_world_watch *x, int32_t r)
{
    struct sv_world_memory *m = x->world.shared;
    const int32_t pid = __atomic_load_n(&m->pid[r], __ATOMIC_ACQUIRE);
    char text[96];
    if (!pid || sv_count_read(&m->gone[r]))
        return;
    if (kill(pid, 0) && errno == ESRCH) {
        snprintf(text, sizeof text, "there is no process %d any more", pid);
        sv_failure_set(&m->failure, r, text);
        set_gone(&x->world, r);
    } else if (is_stopped(x, r, sv_clock_us())) {
        fail_stopped(&x->world, r, pid);
    }
}

static void *watch_main(void *arg)
{
    struct sv_world_watch *x = arg;
    uint32_t *heartbeat = &x->world.shared->heartbeat[x->world.ranks.rank];
    while (sv_count_wait(&x->over, 1, NULL, 0, WATCH_US)) {
        __atomic_fetch_add(heartbeat, 1, __ATOMIC_RELAXED);
        for (int32_t r = 0; r < x->world.ranks.n; r++)
            if (r != x->world.ranks.rank)
                look_at(x, r);
    }
    return NULL;
}

static int open_hosts(struct sv_world *w, const int32_t *first, struct sv_err *err)
{
    w->hosts = sv_calloc(1, sizeof *w->hosts);
    if (!w->hosts)
        return sv_fail(err, SV_ENOMEM, -1, "memory for hosts of %d ranks", w->ranks.n);
    memcpy(w->hosts->first, first, sizeof w->hosts->first);
    int rc = sv_mpi_link_hosts(w->hosts, w->ranks, err);
    return rc ? rc : sv_hosts_open(w, err);
}

int sv_world_open_mpi(struct sv_world *w, const struct sv_world_opts *o, struct sv_err *err)
{
    const struct sv_ranks ranks = {.rank = sv_mpi_ranks().rank % o->n, .n = o->n};
    struct sv_ranks here = {0};
    int32_t first[SV_MAX_RANKS] = {0};
    void *memory = NULL;
    int rc = sv_mpi_find_hosts(first, ranks, err);
    for (int32_t r = 0; r < o->n; r++)
        if (first[r] == first[ranks.rank]) {
            here.rank += r < ranks.rank;
            here.n++;
        }
    begin(w, o, ranks, here);
    w->processes = true;
    w->memory.fd = -1;
    if (!rc)
        rc = sv_mpi_share(&w->memory, &memory, sizeof *w->shared, first, ranks, err);
    w->shared = memory;
    if (!rc && here.n < ranks.n)
        rc = open_hosts(w, first, err);
    if (rc)
        return rc;
    w->watch = sv_calloc(1, sizeof *w->watch);
    if (!w->watch)
        return sv_fail(err, SV_ENOMEM, -1, "memory for %d ranks", o->n);
    __atomic_store_n(&w->shared->pid[w->ranks.rank], (int32_t)getpid(), __ATOMIC_RELEASE);
    w->watch->world = *w;
    w->watch->kills = o->kills;
    return sv_thread_start(&w->watch->thread, watch_main, w->watch, err);
}

struct sv_follower {
    struct sv_world world;
    void (*fn)(struct sv_world *world, void *user);
    void *user;
    struct sv_thread *thread;
};

static void *follower_main(void *arg)
{
    struct sv_follower *f = arg;
    f->fn(&f->world, f->user);
    return NULL;
}

int sv_world_spawn(struct sv_world *w, void (*fn)(struct sv_world *world, void *user), void *user,
                   struct sv_err *err)
{
    int rc = SV_OK;
    w->follower = sv_calloc((size_t)w->ranks.n, sizeof *w->follower);
    if (!w->follower)
        return sv_fail(err, SV_ENOMEM, -1, "table of %d ranks", w->ranks.n);
    for (int32_t r = 1; r < w->ranks.n && !rc; r++) {
        struct sv_follower *f = &w->follower[r];
        *f = (struct sv_follower){.world = *w, .fn = fn, .user = user};
        f->world.ranks.rank = f->world.here.rank = r;
        f->world.follower = NULL;
        rc = sv_thread_start(&f->thread, follower_main, f, err);
    }
    return rc;
}

void sv_world_fail(struct sv_world *w, const char *text)
{
    sv_failure_set(&w->shared->failure, w->ranks.rank, text);
}

bool sv_world_failed(const struct sv_world *w)
{
    return __atomic_load_n(&w->shared->failure.stop, __ATOMIC_ACQUIRE) != 0;
}

/* Waits for rank r's message. A busy rank may take long, but a process that is stopped does not go
 * on.
 */
static enum sv_wait await_said(struct sv_world *w, int32_t r)
{
    struct sv_world_memory *m = w->shared;
    const int64_t begin = sv_clock_us();
    int64_t now = begin, beat_us = begin;
    uint32_t beat = 0;
    while (now - begin < OPEN_US) {
        const enum sv_wait got =
            sv_count_wait(&m->swapped[r], w->n_swaps, &m->failure.stop, 0, SWAP_LOOK_US);
        const uint32_t last = __atomic_load_n(&m->heartbeat[r], __ATOMIC_RELAXED);
        const int32_t pid = __atomic_load_n(&m->pid[r], __ATOMIC_ACQUIRE);
        if (got == SV_WAIT_OK || got == SV_WAIT_STOPPED)
            return got;
        now = sv_clock_us();
        if (!pid || last != beat)
            beat_us = now;
        beat = last;
        if (w->timeout_us >= 0 && now - beat_us > w->timeout_us)
            fail_stopped(w, r, pid);
    }
    return SV_WAIT_TIMEOUT;
}

int sv_world_swap(struct sv_world *w, const void *own, size_t n_bytes, void *all,
                  struct sv_err *err)
{
    struct sv_world_memory *m = w->shared;
    char(*said)[SV_SWAP_BYTES] = m->swap[w->n_swaps++ % 2];
    SV_REQUIRE(n_bytes <= SV_SWAP_BYTES);
    memcpy(said[w->ranks.rank], own, n_bytes);
    sv_count_set(&m->swapped[w->ranks.rank], w->n_swaps);
    sv_world_changed(w);
    for (int32_t r = 0; r < w->ranks.n; r++) {
        const enum sv_wait got = await_said(w, r);
        if (got == SV_WAIT_STOPPED)
            return sv_fail(err, SV_EDEVICE, -1, "rank %d: %s", m->failure.rank, m->failure.text);
        if (got)
            return sv_fail(err, SV_EDEVICE, -1, "rank %d does not answer while it opens", r);
        memcpy((char *)all + (size_t)r * n_bytes, said[r], n_bytes);
    }
    return SV_OK;
}

int sv_world_broadcast(struct sv_world *w, void *value, size_t n_bytes, struct sv_err *err)
{
    char all[SV_MAX_RANKS][SV_SWAP_BYTES];
    int rc = sv_world_swap(w, value, n_bytes, all, err);
    if (!rc)
        memcpy(value, all, n_bytes); /* rank 0's */
    return rc;
}

void sv_world_passed(struct sv_world *w, uint32_t n_joins)
{
    w->n_passes++;
    __atomic_store_n(&w->shared->progress[w->ranks.rank].passes_joins,
                     (uint64_t)w->n_passes << 32 | n_joins, __ATOMIC_RELEASE);
}

void sv_world_busy(struct sv_world *w, int64_t ns)
{
    __atomic_fetch_add(&w->shared->busy_ns[w->ranks.rank], ns, __ATOMIC_RELAXED);
}

int64_t sv_world_busy_ns(const struct sv_world *w, int32_t rank)
{
    return __atomic_load_n(&w->shared->busy_ns[rank], __ATOMIC_RELAXED);
}

bool sv_world_leave(struct sv_world *w)
{
    struct sv_world_memory *m = w->shared;
    bool all = true;
    sv_count_set(&m->gone[w->ranks.rank], 1);
    sv_world_changed(w);
    for (int32_t r = 0; r < w->ranks.n; r++) {
        /* Those that were never started are not waited for, and rank 0 comes when it is closed. */
        if (w->ranks.rank == 0 && r > 0 && !w->processes && !(w->follower && w->follower[r].thread))
            sv_count_set(&m->gone[r], 1);
        all &= !sv_count_wait(&m->gone[r], 1, NULL, 0, w->ranks.rank ? -1 : w->timeout_us);
    }
    return all;
}

void sv_world_close(struct sv_world *w)
{
    for (int32_t r = 1; w->follower && r < w->ranks.n; r++)
        if (w->follower[r].thread)
            sv_thread_join(w->follower[r].thread);
    sv_free(w->follower);
    if (w->watch) {
        sv_count_set(&w->watch->over, 1);
        if (w->watch->thread)
            sv_thread_join(w->watch->thread);
        sv_free(w->watch);
    }
    if (w->hosts)
        sv_hosts_close(w);
    sv_free(w->hosts);
    if (!w->processes)
        sv_free(w->shared);
    else if (w->memory.memory)
        sv_shared_close(&w->memory);
    else
        sv_shared_unmap(w->shared, sizeof *w->shared);
    *w = (struct sv_world){0};
}
