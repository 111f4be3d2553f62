/*
 * join_rig.h - devices of ranks, a thread for each, with what joins take and give: what
 * test_cross_join.c runs.
 *
 * Included by it alone. Ranks have a GPU each where there are as many; else up to four of them
 * share one. Must not: enqueue a join.
 */
#ifndef SV_TESTS_JOIN_RIG_H
#define SV_TESTS_JOIN_RIG_H

#include "backend/ops_moe.h"
#include "join_need.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* More rows than a GPU has multiprocessors are sent ahead. */
enum { ROWS = 300, D = 80, VOCAB = 301, ROUNDS = 12, BIG = 8, ON_ONE = 4 };
enum { EXPERTS = 40, CHOSEN = 4, WIDE = 1024 };

struct rig;
struct rank {
    struct rig *rig;
    struct sv_dev *dev;
    struct sv_thread *thread;
    int32_t rank, fault_at; /* the join that goes wrong; -1: none */
    void *x, *part, *out;   /* device: (ROWS, D), (ROUNDS, 2, ROWS, D) twice */
    float *logits;          /* device: (2, ROWS, VOCAB) */
    int32_t *best, *index;  /* device: (ROUNDS, ROWS), (ROWS) */
    struct sv_weight weight, head, router, last[2];
    int32_t *zeros;                       /* device: (ROWS) */
    char *routes, *got_routes;            /* device: (ROUNDS) tables */
    struct sv_slice own_of[ROUNDS], *own; /* device: that of the round */
    void *got_out, *got_x;
    float *got_logits;
    int32_t *got_best;
    int32_t round;
    int rc;
    struct sv_err err;
};
struct rig {
    int32_t n, n_rows;
    bool bf16, late, two, far; /* far: half of the ranks are on another host */
    struct rank rank[BIG], alone;
    struct sv_failure failure;
    struct sv_progress progress[BIG];
    struct sv_window_key key[BIG];
    int fd[BIG][BIG]; /* connections of ranks on different hosts; -1: on the same one */
    int64_t timeout_us;
    float *part[BIG], *x, *logits, *head;
    int32_t first[SV_MAX_RANKS + 1];
};

static size_t size_of(const struct rig *g)
{
    return g->bf16 ? 2 : 4;
}

static float *floats(size_t n, uint64_t seed, bool bf16)
{
    struct sv_rng g = {seed};
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        x[i] = sv_rng_normal(&g) * (float)(1 << sv_rng_below(&g, 5));
        x[i] = bf16 ? sv_bf16_to_f32(sv_f32_to_bf16(x[i])) : x[i];
    }
    return x;
}

/* n numbers as the device has them. */
static void *act_of(const struct rig *g, const float *x, size_t n)
{
    void *to = malloc(n * 4);
    for (size_t i = 0; i < n; i++)
        if (g->bf16)
            ((uint16_t *)to)[i] = sv_f32_to_bf16(x[i]);
        else
            ((float *)to)[i] = x[i];
    return to;
}

static void *put(struct sv_dev *dev, const void *from, size_t n_bytes)
{
    void *to;
    assert_int_equal(sv_dev_alloc(dev, &to, n_bytes, NULL), SV_OK);
    if (from)
        sv_dev_upload(dev, to, from, n_bytes);
    assert_int_equal(sv_dev_sync(dev, NULL), SV_OK);
    return to;
}

static void *put_act(const struct rig *g, struct sv_dev *dev, const float *x, size_t n)
{
    void *act = act_of(g, x, n), *to = put(dev, act, n * size_of(g));
    free(act);
    return to;
}

static void *put_bytes(struct sv_dev *dev, int byte, size_t n_bytes)
{
    void *from = malloc(n_bytes), *to;
    memset(from, byte, n_bytes);
    to = put(dev, from, n_bytes);
    free(from);
    return to;
}

/* Tables of a round. */
static struct sv_routes routes_at(const struct rig *g, void *base, int32_t round)
{
    struct sv_routes r = {.n_rows = g->n_rows, .n_experts = EXPERTS, .k = CHOSEN};
    const size_t each = sv_routes_lay_out(&r, NULL);
    if (base)
        sv_routes_lay_out(&r, (char *)base + (size_t)round * each);
    return r;
}
static size_t sizeof_routes(const struct rig *g)
{
    struct sv_routes r = routes_at(g, NULL, 0);
    return sv_routes_lay_out(&r, NULL);
}

/* ---------------------------------------------------------------- devices */

/* Whether weights of the rigs that follow are packed alone, or compressed as well. */
static bool packed;

static struct sv_dev_opts options(const struct rig *g, struct sv_ranks ranks)
{
    return (struct sv_dev_opts){.backend = "cuda",
                                .compute = g && g->bf16 ? SV_BF16 : SV_F32,
                                .tuning.two_shots = g && g->two ? SV_TOGGLE_ON : SV_TOGGLE_OFF,
                                .tuning.compress_weights = packed ? SV_TOGGLE_OFF : SV_TOGGLE_ON,
                                .n_threads = 1,
                                .ranks = ranks};
}

static int32_t n_gpus(void)
{
    int32_t n = 0;
    struct sv_dev *dev;
    /* A kernel's code that is loaded behind one that waits may wait for it. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    for (;; n++) {
        struct sv_dev_opts o = options(NULL, (struct sv_ranks){.n = 1});
        o.ordinal = n;
        if (sv_dev_open(&dev, &o, NULL))
            return n;
        sv_dev_close(dev);
    }
}

/* Whether the rigs that follow are on two hosts; a GPU has one rank then. */
static bool play_hosts;

/* The most ranks that a test may have here, with SALVO_TEST_QUICK those that have a GPU each; skips
 * it, aloud, where there is no GPU. */
static int32_t most_ranks(void)
{
    const int32_t n = n_gpus();
    if (!n) {
        print_message("joins on GPUs NOT checked: no GPU\n");
        skip();
    }
    print_message("%d GPUs\n", n);
    return n > ON_ONE || play_hosts || (n > 1 && sv_env("SALVO_TEST_QUICK")) ? n < BIG ? n : BIG
                                                                             : ON_ONE;
}

static void open_rank(struct rig *g, struct rank *k, struct sv_ranks ranks, bool spread)
{
    struct sv_dev_opts o = options(g, ranks);
    const struct sv_dev_limits lim = {.max_rows = ROWS,
                                      .max_logit_rows = ROWS,
                                      .max_k = WIDE,
                                      .max_n = VOCAB,
                                      .max_heads = 1,
                                      .max_head_dim = 16,
                                      .max_vocab = VOCAB,
                                      .max_positions = 16,
                                      .max_experts = EXPERTS,
                                      .max_chosen = CHOSEN};
    const int32_t first = ranks.n > 1 ? g->first[ranks.rank] : 0;
    const int32_t width = ranks.n > 1 ? g->first[ranks.rank + 1] - first : VOCAB;
    int32_t index[ROWS];
    float ones[D];
    o.ordinal = spread ? 0 : -ranks.rank;
    *k = (struct rank){.rig = g, .rank = ranks.rank, .fault_at = -1};
    if (sv_dev_open(&k->dev, &o, &k->err) || sv_dev_reserve(k->dev, &lim, &k->err))
        fail_msg("%s", k->err.msg);
    for (int32_t i = 0; i < D; i++)
        ones[i] = 1.25f;
    void *head = act_of(g, g->head + (size_t)first * D, (size_t)width * D),
         *norm = act_of(g, ones, D), *experts = act_of(g, g->head, (size_t)EXPERTS * D);
    const enum sv_dtype elem = g->bf16 ? SV_BF16 : SV_F32;
    const struct sv_weight
        w = {.role = SV_ROLE_IN_NORM, .fmt.elem = elem, .rows = 1, .cols = D, .data = norm},
        h = {.role = SV_ROLE_HEAD, .fmt.elem = elem, .rows = width, .cols = D, .data = head},
        router = {
            .role = SV_ROLE_ROUTER, .fmt.elem = elem, .rows = EXPERTS, .cols = D, .data = experts};
    assert_int_equal(sv_dev_upload_weight(k->dev, &w, &k->weight, NULL), SV_OK);
    assert_int_equal(sv_dev_upload_weight(k->dev, &h, &k->head, NULL), SV_OK);
    assert_int_equal(sv_dev_upload_weight(k->dev, &router, &k->router, NULL), SV_OK);
    /* Sums of two lengths, cut in four and in two; packed, the first is beside experts. */
    for (int32_t i = 0; i < 2; i++) {
        const int32_t cols = WIDE >> i;
        float *x = floats((size_t)D * WIDE, 30 + (uint64_t)ranks.rank, g->bf16);
        void *last = act_of(g, x, (size_t)D * cols);
        const struct sv_weight from = {.role = i || !packed ? SV_ROLE_DOWN : SV_ROLE_O,
                                       .fmt.elem = elem,
                                       .rows = D,
                                       .cols = cols,
                                       .data = last};
        assert_int_equal(sv_dev_upload_weight(k->dev, &from, &k->last[i], NULL), SV_OK);
        free(last);
        free(x);
    }
    assert_int_equal(sv_dev_reserve(k->dev, &lim, NULL), SV_OK);
    for (int32_t i = 0; i < ROWS; i++) /* rows in reverse, and padding at the end */
        index[i] = i == g->n_rows - 1 && g->n_rows > 1 ? -1 : i < g->n_rows ? g->n_rows - 1 - i : 0;
    k->x = put_act(g, k->dev, g->x, (size_t)ROWS * D);
    k->out = put(k->dev, NULL, (size_t)ROUNDS * 2 * ROWS * D * 4);
    k->index = put(k->dev, index, sizeof index);
    k->own = put(k->dev, NULL, sizeof *k->own);
    k->best = put(k->dev, NULL, sizeof(int32_t) * ROUNDS * ROWS);
    k->logits = put(k->dev, NULL, sizeof(float) * 2 * ROWS * VOCAB);
    k->zeros = put_bytes(k->dev, 0, ROWS * sizeof *k->zeros);
    k->routes = put_bytes(k->dev, 0, ROUNDS * sizeof_routes(g));
    free(head);
    free(norm);
    free(experts);
}

static void *join_main(void *arg)
{
    struct rank *k = arg;
    struct rig *g = k->rig;
    k->rc = sv_dev_window_join(k->dev,
                               &(struct sv_peers){.key = g->key,
                                                  .progress = g->progress,
                                                  .failure = &g->failure,
                                                  .far = g->far ? g->fd[k->rank] : NULL,
                                                  .spin_us = 50,
                                                  .timeout_us = g->timeout_us},
                               &k->err);
    return NULL;
}

static void rig_run(struct rig *g, void *(*fn)(void *))
{
    for (int32_t r = 0; r < g->n; r++)
        assert_int_equal(sv_thread_start(&g->rank[r].thread, fn, &g->rank[r], NULL), SV_OK);
    for (int32_t r = 0; r < g->n; r++)
        sv_thread_join(g->rank[r].thread);
}

static void rig_open(struct rig *g, int32_t n, int32_t n_rows, bool bf16, bool two, bool spread,
                     int64_t timeout_us)
{
    const struct sv_window_need need = join_need(ROWS, D, VOCAB);
    *g = (struct rig){.n = n,
                      .n_rows = n_rows,
                      .bf16 = bf16,
                      .two = two,
                      .far = play_hosts,
                      .timeout_us = timeout_us};
    for (int32_t r = 0; r < n; r++)
        for (int32_t q = 0; q <= r; q++) {
            int fd[2] = {-1, -1};
            if (g->far && (r < n / 2) != (q < n / 2))
                assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
            g->fd[r][q] = fd[0];
            g->fd[q][r] = fd[1];
        }
    g->x = floats((size_t)ROWS * D, 4, g->bf16);
    g->head = floats((size_t)VOCAB * D, 2, g->bf16);
    g->logits = floats((size_t)ROWS * VOCAB, 3, g->bf16);
    for (int32_t r = 0; r <= n; r++) /* odd borders, with the same token at both sides */
        g->first[r] = VOCAB * r / n + (r % 2 && r < n ? 3 : 0);
    for (int32_t r = 1; r < n; r++)
        memcpy(g->head + (size_t)g->first[r] * D, g->head + (size_t)(g->first[r] - 1) * D,
               D * sizeof(float));
    for (int32_t r = 0; r < n; r++) {
        struct rank *k = &g->rank[r];
        open_rank(g, k, (struct sv_ranks){.rank = r, .n = n}, spread);
        g->part[r] = floats((size_t)ROUNDS * 2 * ROWS * D, 10 + (uint64_t)r, g->bf16);
        k->part = put_act(g, k->dev, g->part[r], (size_t)ROUNDS * 2 * ROWS * D);
        float *own = calloc((size_t)2 * ROWS * VOCAB, sizeof *own);
        for (int32_t i = 0; i < 2 * ROWS; i++)
            memcpy(own + (size_t)i * VOCAB + g->first[r],
                   g->logits + (size_t)(i % ROWS) * VOCAB + g->first[r],
                   sizeof *own * (size_t)(g->first[r + 1] - g->first[r]));
        sv_dev_upload(k->dev, k->logits, own, sizeof(float) * 2 * ROWS * VOCAB);
        assert_int_equal(sv_dev_sync(k->dev, NULL), SV_OK);
        free(own);
        assert_int_equal(sv_dev_window_open(k->dev, &need, &g->key[r], NULL), SV_OK);
    }
    rig_run(g, join_main);
    for (int32_t r = 0; r < n; r++)
        if (g->rank[r].rc)
            fail_msg("%s", g->rank[r].err.msg);
}

static void close_rank(struct rank *k)
{
    void *own[] = {k->x,     k->part, k->out,   k->logits, k->best,
                   k->index, k->own,  k->zeros, k->routes};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sv_dev_free(k->dev, own[i]);
    sv_dev_free_weight(k->dev, &k->weight);
    sv_dev_free_weight(k->dev, &k->head);
    sv_dev_free_weight(k->dev, &k->router);
    sv_dev_free_weight(k->dev, &k->last[0]);
    sv_dev_free_weight(k->dev, &k->last[1]);
    sv_dev_close(k->dev);
    free(k->got_out);
    free(k->got_x);
    free(k->got_logits);
    free(k->got_best);
    free(k->got_routes);
}

static void rig_close(struct rig *g)
{
    for (int32_t r = 0; r < g->n; r++)
        sv_dev_sync(g->rank[r].dev, NULL);
    for (int32_t r = 0; r < g->n; r++) {
        close_rank(&g->rank[r]);
        free(g->part[r]);
        for (int32_t q = 0; q < g->n; q++)
            if (g->fd[r][q] >= 0)
                close(g->fd[r][q]);
    }
    free(g->x);
    free(g->head);
    free(g->logits);
    assert_int_equal(sv_alloc_live(), 0);
}

static void *at(const struct rank *k, void *base, int32_t round, int32_t which)
{
    return (char *)base + ((size_t)round * 2 + (size_t)which) * ROWS * D * size_of(k->rig);
}

static void read_back(struct rank *k)
{
    const size_t n_out = (size_t)ROUNDS * 2 * ROWS * D * size_of(k->rig),
                 n_x = (size_t)ROWS * D * size_of(k->rig);
    k->got_out = malloc(n_out);
    k->got_x = malloc(n_x);
    k->got_best = malloc(sizeof(int32_t) * ROUNDS * ROWS);
    k->got_logits = malloc(sizeof(float) * 2 * ROWS * VOCAB);
    k->got_routes = malloc(ROUNDS * sizeof_routes(k->rig));
    sv_dev_download(k->dev, k->got_routes, k->routes, ROUNDS * sizeof_routes(k->rig));
    sv_dev_download(k->dev, k->got_out, k->out, n_out);
    sv_dev_download(k->dev, k->got_x, k->x, n_x);
    sv_dev_download(k->dev, k->got_best, k->best, sizeof(int32_t) * ROUNDS * ROWS);
    sv_dev_download(k->dev, k->got_logits, k->logits, sizeof(float) * 2 * ROWS * VOCAB);
    assert_int_equal(sv_dev_sync(k->dev, NULL), SV_OK);
}

#endif
