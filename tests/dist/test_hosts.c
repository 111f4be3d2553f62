/*
 * test_hosts.c - a group of ranks on two or three hosts, each with a memory of its own: values that
 * all agree on, the stream whole and in order, failures, and hosts that end or fall silent.
 *
 * timeout: 120
 */
#include "testing.h"

#include "dist/dist.h"

#include <string.h>
#include <sys/socket.h>

enum { RANKS = 5, SWAPS = 20, MESSAGES = 600, LAST = 2 };

enum fault { NONE, FAILS, ENDS, SILENT };

struct group;
struct rank {
    struct group *group;
    struct sv_world world;
    struct sv_thread *thread;
    struct sv_err err;
    int rc, n_wrong, n_read;
};
struct group {
    struct sv_world_memory *memory[RANKS]; /* of each host, by its first rank */
    struct sv_hosts hosts[RANKS];          /* of each process */
    struct rank rank[RANKS];
    enum fault fault; /* of the last rank, in the middle of the stream */
};

static uint32_t bytes_of(uint32_t i)
{
    struct sv_rng g = {i};
    const uint32_t kind = sv_rng_below(&g, 20);
    return kind == 0 ? SV_STREAM_MOST - 4 : sv_rng_below(&g, kind < 4 ? 50000 : 90);
}

static int swap_all(struct sv_world *w, int *n_wrong, struct sv_err *err)
{
    int32_t all[SV_MAX_RANKS];
    int rc = SV_OK;
    for (int32_t i = 0; i < SWAPS && !rc; i++) {
        int32_t value = i * 100 + w->ranks.rank;
        rc = sv_world_swap(w, &value, sizeof value, all, err);
        for (int32_t r = 0; r < RANKS && !rc; r++)
            *n_wrong += all[r] != i * 100 + r;
    }
    return rc;
}

static int write_all(struct sv_world *w, struct sv_err *err)
{
    static unsigned char data[SV_STREAM_MOST];
    int rc = SV_OK;
    for (uint32_t i = 0; i < MESSAGES && !rc; i++) {
        memset(data, (int)i, sizeof data);
        rc = sv_stream_write(w, 1, &i, sizeof i, data, bytes_of(i), err);
        if (i % 7 == 0)
            sv_stream_flush(w);
        sv_world_passed(w, i);
    }
    if (!rc)
        rc = sv_stream_write(w, LAST, NULL, 0, NULL, 0, err);
    sv_stream_flush(w);
    return rc;
}

static int read_all(struct rank *k)
{
    struct sv_world *w = &k->world;
    int rc = SV_OK;
    for (;;) {
        uint32_t kind, n, number;
        const void *data;
        rc = sv_stream_read(w, &kind, &data, &n, &k->err);
        if (rc || kind == LAST)
            return rc;
        const unsigned char *p = data;
        memcpy(&number, p, sizeof number);
        k->n_wrong += number != (uint32_t)k->n_read || n != bytes_of(number) + 4;
        for (uint32_t i = 4; i < n; i += 997)
            k->n_wrong += p[i] != (unsigned char)number;
        k->n_read++;
        sv_stream_done(w);
        if (w->ranks.rank == RANKS - 1 && k->group->fault && k->n_read == MESSAGES / 2)
            return SV_EIO;
    }
}

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    struct sv_world *w = &k->world;
    struct group *g = k->group;
    const int world = g->hosts[w->ranks.rank].link[0].fd[SV_LINK_WORLD];
    k->rc = swap_all(w, &k->n_wrong, &k->err);
    if (!k->rc)
        k->rc = w->ranks.rank ? read_all(k) : write_all(w, &k->err);
    if (k->rc == SV_EIO && g->fault == FAILS)
        sv_world_fail(w, "enough");
    if (k->rc == SV_EIO && g->fault == ENDS)
        shutdown(world, SHUT_RDWR);
    if (k->rc && w->ranks.rank == 0)
        sv_world_fail(w, k->err.msg);
    sv_world_leave(w);
    return NULL;
}

static void *close_main(void *arg)
{
    sv_hosts_close(arg);
    return NULL;
}

/* Rank r is on the host whose first rank is first[r]. */
static void run(struct group *g, const int32_t *first, enum fault fault, int64_t timeout_us)
{
    memset(g, 0, sizeof *g);
    g->fault = fault;
    for (int32_t r = 0; r < RANKS; r++) {
        memcpy(g->hosts[r].first, first, RANKS * sizeof *first);
        for (int32_t q = 0; q < RANKS; q++)
            g->hosts[r].link[q] = (struct sv_link){.fd = {SV_LINK_NONE, SV_LINK_NONE}};
        if (first[r] == r)
            g->memory[r] = sv_calloc(1, sizeof *g->memory[r]);
    }
    for (int32_t r = 1; r < RANKS; r++) {
        int fd[2];
        if (first[r] != r)
            continue;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
        g->hosts[0].link[r].fd[SV_LINK_WORLD] = fd[0];
        strcpy(g->hosts[0].link[r].host, "b");
        g->hosts[r].link[0].fd[SV_LINK_WORLD] = fd[1];
    }
    for (int32_t r = 0; r < RANKS; r++) {
        struct rank *k = &g->rank[r];
        k->group = g;
        k->world = (struct sv_world){.ranks = {.rank = r, .n = RANKS},
                                     .shared = g->memory[first[r]],
                                     .hosts = &g->hosts[r],
                                     .processes = true,
                                     .timeout_us = timeout_us};
        if (fault == SILENT && r == RANKS - 1)
            continue; /* nobody is at the other end of its connection */
        assert_int_equal(sv_hosts_open(&k->world, &k->err), SV_OK);
        assert_int_equal(sv_thread_start(&k->thread, rank_main, k, &k->err), SV_OK);
    }
    for (int32_t r = 0; r < RANKS; r++)
        if (g->rank[r].thread)
            sv_thread_join(g->rank[r].thread);
    /* Each end waits for the other one. */
    struct sv_thread *closing[RANKS];
    for (int32_t r = 0; r < RANKS; r++)
        assert_int_equal(sv_thread_start(&closing[r], close_main, &g->rank[r].world, NULL), SV_OK);
    for (int32_t r = 0; r < RANKS; r++)
        sv_thread_join(closing[r]);
    for (int32_t r = 0; r < RANKS; r++)
        sv_free(g->memory[r]);
    assert_int_equal(sv_alloc_live(), 0);
}

static void in_order(void **state)
{
    static const int32_t first[][RANKS] = {{0, 0, 0, 3, 3}, {0, 1, 0, 3, 1}, {0, 1, 2, 3, 4}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct group g;
        run(&g, first[i], NONE, 20000000);
        for (int32_t r = 0; r < RANKS; r++) {
            if (g.rank[r].rc)
                fail_msg("rank %d: %s", r, g.rank[r].err.msg);
            assert_int_equal(g.rank[r].n_wrong, 0);
            assert_int_equal(g.rank[r].n_read, r ? MESSAGES : 0);
        }
    }
}

/* All ranks on all hosts get one text. Where hosts may be silent for a short time only, a busy
 * machine may keep another one so: one try of ten has to do. */
static void fails(enum fault fault, int64_t timeout_us, const char *text)
{
    static const int32_t first[RANKS] = {0, 0, 2, 2, 4};
    struct group g;
    for (int tries = 1; tries <= (fault == SILENT ? 10 : 1); tries++) {
        const int64_t begin = sv_clock_us();
        run(&g, first, fault, timeout_us);
        assert_true(sv_clock_us() - begin < 15000000);
        bool all = true;
        for (int32_t r = 0; r < RANKS - 1; r++)
            all &= strstr(g.rank[r].err.msg, text) != NULL;
        if (all)
            break;
    }
    for (int32_t r = 0; r < RANKS - 1; r++) {
        assert_int_equal(g.rank[r].rc, SV_EDEVICE);
        if (!strstr(g.rank[r].err.msg, text))
            fail_msg("rank %d: %s", r, g.rank[r].err.msg);
    }
}

static void a_rank_fails(void **state)
{
    (void)state;
    fails(FAILS, 20000000, "rank 4 failed: enough");
}

static void a_host_ends(void **state)
{
    (void)state;
    fails(ENDS, 20000000, "rank 4 failed: the connection to its host b has ended");
}

static void a_host_is_silent(void **state)
{
    (void)state;
    fails(SILENT, 300000, "rank 4: the connection to its host b is silent for 300 ms");
}

SV_TEST_MAIN(cmocka_unit_test(in_order), cmocka_unit_test(a_rank_fails),
             cmocka_unit_test(a_host_ends), cmocka_unit_test(a_host_is_silent))
