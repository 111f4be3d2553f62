/*
 * join.c - the time that a join adds to a norm: chains of add_rms_norm on the devices of two or
 * more ranks, with their exchange, in one shot and in two, and without, replayed as graphs.
 *
 * join [RANKS [HOSTS]]: 2 GPUs, on one host; of HOSTS that are played each has as many, and
 * parts go through NCCL. Rows of 4096 in bf16; microseconds a site, of the slower rank, median of
 * 30 runs. Bars at two H200s: 2.0, 2.5, 5.5 and 13.5 us added at 1, 16, 128 and 512
 * rows. Where two shots take less is what two_shots of src/backend/gpu/join.cu says.
 */
#include "backend/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { D = 4096, SITES = 144, RUNS = 30, MOST = 2048, BIG = 8 };

static const int32_t rows[] = {1, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 256, 512, 2048};
enum { N_ROWS = sizeof rows / sizeof *rows };

enum form { ALONE, ONE_SHOT, TWO_SHOTS, FORMS };

struct group {
    int32_t n, n_hosts;
    int fd[BIG][BIG]; /* connections of ranks on different hosts, or -1 */
    struct sv_window_key key[BIG];
    struct sv_failure failure;
    struct sv_progress progress[BIG];
    int32_t arrived, turn;
    enum form form; /* of joins, which the devices are opened with */
    double us[BIG][FORMS][N_ROWS][RUNS];
    uint64_t bits[BIG][FORMS][N_ROWS]; /* of the stream and the norm */
};
struct rank {
    struct group *g;
    int32_t rank, n_rows;
    enum form form;
    struct sv_dev *dev;
    struct sv_thread *thread;
    void *x, *delta, *out;
    uint16_t *host; /* (MOST, D) */
    struct sv_weight weight;
    struct sv_err err;
    int rc;
};

/* By sockets the largest ones would take minutes. */
static int32_t n_rows_of(const struct group *g)
{
    return g->n_hosts > 1 ? N_ROWS - 2 : N_ROWS;
}

static void meet(struct group *g)
{
    const int32_t turn = __atomic_load_n(&g->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&g->arrived, 1, __ATOMIC_ACQ_REL) == g->n) {
        g->arrived = 0;
        __atomic_store_n(&g->turn, turn + 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&g->turn, __ATOMIC_ACQUIRE) == turn &&
           !__atomic_load_n(&g->failure.stop, __ATOMIC_ACQUIRE))
        ;
}

static void enqueue(void *user)
{
    const struct rank *k = user;
    for (int32_t i = 0; i < SITES; i++)
        sv_op_add_rms_norm(k->dev,
                           &(struct sv_p_add_rms_norm){.n_rows = k->n_rows,
                                                       .d = D,
                                                       .x = k->x,
                                                       .delta = k->delta,
                                                       .weight = k->weight,
                                                       .eps = 1e-6f,
                                                       .out = k->out,
                                                       .join = k->form == ALONE ? SV_JOIN_NONE
                                                               : i % 2          ? SV_JOIN_FFN
                                                                                : SV_JOIN_MIXER});
}

static int open_rank(struct rank *k, struct sv_dev *dev)
{
    const size_t n = (size_t)MOST * D * 2;
    uint16_t *half = k->host, weight[D];
    struct sv_weight w = {
        .role = SV_ROLE_IN_NORM, .fmt.elem = SV_BF16, .rows = 1, .cols = D, .data = weight};
    const struct sv_dev_limits lim = {.max_rows = MOST,
                                      .max_logit_rows = 16,
                                      .max_k = D,
                                      .max_n = D,
                                      .max_heads = 1,
                                      .max_head_dim = 128,
                                      .max_vocab = 1024,
                                      .max_positions = 16};
    const struct sv_window_need need = {.n_bytes = {[SV_JOIN_MIXER] = n, [SV_JOIN_FFN] = n}};
    for (size_t i = 0; i < n / 2; i++) /* between 1/128 and 1/64 */
        half[i] = (uint16_t)(0x3c00 + (i + (size_t)k->rank) * 2654435761u % 128);
    for (size_t i = 0; i < D; i++)
        weight[i] = (uint16_t)(0x3f80 + i % 64);
    int rc = sv_dev_reserve(dev, &lim, &k->err);
    if (!rc)
        rc = sv_dev_alloc(dev, &k->x, n, &k->err);
    if (!rc)
        rc = sv_dev_alloc(dev, &k->delta, n, &k->err);
    if (!rc)
        rc = sv_dev_alloc(dev, &k->out, n, &k->err);
    if (!rc)
        rc = sv_dev_upload_weight(dev, &w, &k->weight, &k->err);
    if (!rc) {
        sv_dev_upload(dev, k->delta, half, n);
        rc = sv_dev_sync(dev, &k->err);
    }
    if (!rc)
        rc = sv_dev_window_open(dev, &need, &k->g->key[k->rank], &k->err);
    return rc;
}

/* The stream and the last norm after one graph, from zeros. */
static uint64_t bits_of(struct rank *k)
{
    const size_t n = (size_t)k->n_rows * D;
    uint64_t hash = 14695981039346656037u;
    memset(k->host, 0, n * sizeof *k->host);
    sv_dev_upload(k->dev, k->x, k->host, n * sizeof *k->host);
    sv_dev_graph_run(k->dev, (uint64_t)(1 + k->form) << 32 | (uint64_t)k->n_rows, enqueue, k);
    for (int which = 0; which < 2; which++) {
        sv_dev_download(k->dev, k->host, which ? k->out : k->x, n * sizeof *k->host);
        k->rc = k->rc ? k->rc : sv_dev_sync(k->dev, &k->err);
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ k->host[i]) * 1099511628211u;
    }
    return hash;
}

static void measure(struct rank *k, enum form form, int32_t at)
{
    const struct sv_backend *be = sv_dev_backend(k->dev);
    k->form = form;
    k->n_rows = rows[at];
    meet(k->g);
    k->g->bits[k->rank][form][at] = bits_of(k);
    for (int32_t i = -3; i < RUNS && !k->rc; i++) {
        meet(k->g);
        be->stamp(k->dev, 0);
        sv_dev_graph_run(k->dev, (uint64_t)(1 + form) << 32 | (uint64_t)k->n_rows, enqueue, k);
        be->stamp(k->dev, 1);
        k->rc = sv_dev_sync(k->dev, &k->err);
        if (k->rc)
            sv_failure_set(&k->g->failure, k->rank, k->err.msg);
        else if (i >= 0)
            k->g->us[k->rank][form][at][i] = be->stamp_us(k->dev, 0, 1) / SITES;
    }
}

static void *live(void *arg)
{
    struct rank *k = arg;
    struct group *g = k->g;
    const struct sv_dev_opts o = {.backend = "cuda",
                                  .compute = SV_BF16,
                                  .tuning.two_shots =
                                      g->form == TWO_SHOTS ? SV_TOGGLE_ON : SV_TOGGLE_OFF,
                                  .n_threads = 1,
                                  .ranks = {k->rank, g->n, false}};
    k->host = malloc((size_t)MOST * D * 2);
    k->rc = sv_dev_open(&k->dev, &o, &k->err);
    if (!k->rc)
        k->rc = open_rank(k, k->dev);
    if (k->rc)
        sv_failure_set(&g->failure, k->rank, k->err.msg);
    meet(g);
    if (g->failure.stop)
        return NULL;
    k->rc = sv_dev_window_join(k->dev,
                               &(struct sv_peers){.key = g->key,
                                                  .progress = g->progress,
                                                  .failure = &g->failure,
                                                  .far = g->n_hosts > 1 ? g->fd[k->rank] : NULL,
                                                  .spin_us = 50,
                                                  .timeout_us = 5000000},
                               &k->err);
    if (k->rc)
        sv_failure_set(&g->failure, k->rank, k->err.msg);
    meet(g);
    for (int32_t at = 0; at < n_rows_of(g) && !g->failure.stop; at++) {
        if (g->form == ONE_SHOT)
            measure(k, ALONE, at);
        measure(k, g->form, at);
    }
    meet(g);
    return NULL;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const struct group *g, enum form form, int32_t at)
{
    double us[RUNS];
    for (int32_t i = 0; i < RUNS; i++) {
        us[i] = 0;
        for (int32_t r = 0; r < g->n; r++)
            us[i] = g->us[r][form][at][i] > us[i] ? g->us[r][form][at][i] : us[i];
    }
    qsort(us, RUNS, sizeof *us, compare);
    return us[RUNS / 2];
}

static int run(struct group *g, enum form form)
{
    struct rank rank[BIG] = {{0}};
    int rc = 0;
    g->form = form;
    for (int32_t r = 0; r < g->n; r++) {
        rank[r] = (struct rank){.g = g, .rank = r};
        if (sv_thread_start(&rank[r].thread, live, &rank[r], NULL))
            return 1;
    }
    for (int32_t r = 0; r < g->n; r++)
        sv_thread_join(rank[r].thread);
    for (int32_t r = 0; r < g->n; r++) {
        if (rank[r].rc)
            printf("rank %d: %s\n", r, rank[r].err.msg);
        rc |= rank[r].rc;
        free(rank[r].host);
    }
    for (int32_t r = 0; r < g->n; r++)
        sv_dev_close(rank[r].dev);
    return rc;
}

int main(int argc, char **argv)
{
    static struct group g;
    g.n = argc > 1 ? atoi(argv[1]) : 2;
    g.n_hosts = argc > 2 ? atoi(argv[2]) : 1;
    if (g.n < 2 || g.n > BIG || g.n_hosts < 1 || g.n % g.n_hosts)
        return 2;
    for (int32_t r = 0; r < g.n; r++)
        for (int32_t q = 0; q <= r; q++) {
            int fd[2] = {-1, -1};
            if (r * g.n_hosts / g.n != q * g.n_hosts / g.n &&
                socketpair(AF_UNIX, SOCK_STREAM, 0, fd))
                return 1;
            g.fd[r][q] = fd[0];
            g.fd[q][r] = fd[1];
        }
    const bool two = g.n > 2 && g.n_hosts == 1;
    if (run(&g, ONE_SHOT) || (two && run(&g, TWO_SHOTS)))
        return 1;
    for (int32_t at = 0; at < n_rows_of(&g); at++)
        for (int32_t r = 0; r < g.n; r++)
            for (enum form f = ONE_SHOT; f < (two ? FORMS : TWO_SHOTS); f++)
                if (g.bits[r][f][at] != g.bits[0][ONE_SHOT][at]) {
                    printf("%d rows: other bits on rank %d\n", rows[at], r);
                    return 1;
                }
    printf("%d ranks on %d hosts, rows of %d in bf16, us a site\n", g.n, g.n_hosts, D);
    for (int32_t at = 0; at < n_rows_of(&g); at++) {
        const double without = median(&g, ALONE, at), with = median(&g, ONE_SHOT, at);
        printf("%5d rows: norm %7.2f, joined %7.2f, added %7.2f", rows[at], without, with,
               with - without);
        if (two)
            printf(", in two shots %7.2f", median(&g, TWO_SHOTS, at) - without);
        printf(", bits %08x\n", (uint32_t)g.bits[0][ONE_SHOT][at]);
    }
    return 0;
}
