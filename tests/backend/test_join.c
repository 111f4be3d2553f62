/*
 * test_join.c - joins of 2 to 8 ranks, each a thread with a device of its own: sums in rank order
 * whoever is late, the best token and whole rows of logits of all parts, rows that are dealt, and
 * waits that end; with windows that all share, and with hosts that have connections instead.
 *
 * timeout: 120
 *
 * What a join gives is compared bit for bit with one device's op on sums that were added here, in
 * rank order. With two ranks no order can be seen, so that most runs have more.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */

#include "backend/ops_tokens.h"
#include "join_need.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROWS = 40, D = 80, VOCAB = 301, ROUNDS = 30, BIG = 8 };

struct rig;
struct rank {
    struct rig *rig;
    struct sv_dev *dev;
    struct sv_thread *thread;
    int32_t rank, fault_at; /* the join that a test wants to go wrong; -1: none */
    float *x, *out, *logits;
    int32_t *best;
    int rc;
    struct sv_err err;
};
struct rig {
    int32_t n, n_rows;
    uint64_t seed;
    bool late; /* ranks come at random times */
    struct rank rank[BIG];
    struct sv_failure failure;
    struct sv_progress progress[BIG];
    float *part[BIG]; /* (ROUNDS, 2, ROWS, D) each rank's */
    float *logits;    /* (ROWS, VOCAB) of all ranks */
    int32_t first[SV_MAX_RANKS + 1];
    float *weight, *head; /* (D), (VOCAB, D) */
    int32_t tokens[ROWS]; /* of all logits */
    int far[BIG][SV_MAX_RANKS];
};

static float *floats(size_t n, uint64_t seed, float scale)
{
    struct sv_rng g = {seed};
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * sv_rng_normal(&g);
    return x;
}

static struct sv_dev *open_device(struct sv_ranks ranks, int n_threads)
{
    struct sv_dev *dev;
    const struct sv_dev_opts o = {
        .backend = "cpu", .n_threads = n_threads, .compute = SV_F32, .ranks = ranks};
    const struct sv_dev_limits lim = {.max_rows = ROWS,
                                      .max_logit_rows = ROWS,
                                      .max_k = D,
                                      .max_n = D,
                                      .max_heads = 1,
                                      .max_head_dim = 16,
                                      .max_vocab = VOCAB,
                                      .max_positions = 16};
    assert_int_equal(sv_dev_open(&dev, &o, NULL), SV_OK);
    assert_int_equal(sv_dev_reserve(dev, &lim, NULL), SV_OK);
    return dev;
}

static struct sv_weight host_weight(const float *data, int32_t rows, int32_t cols,
                                    enum sv_role role)
{
    return (struct sv_weight){
        .role = role, .fmt.elem = SV_F32, .rows = rows, .cols = cols, .data = data};
}

/* Rows of a round's part of a rank: of the first join, of the second. */
static float *part_of(const struct rig *g, int32_t rank, int32_t round, int32_t which)
{
    return g->part[rank] + ((size_t)round * 2 + (size_t)which) * ROWS * D;
}

static void join_norm(struct rank *k, enum sv_join kind, const float *delta, const int32_t *index,
                      float *x, float *out)
{
    sv_op_add_rms_norm(k->dev, &(struct sv_p_add_rms_norm){
                                   .n_rows = k->rig->n_rows,
                                   .d = D,
                                   .x = x,
                                   .delta = delta,
                                   .row_index = index,
                                   .weight = host_weight(k->rig->weight, 1, D, SV_ROLE_IN_NORM),
                                   .eps = 1e-6f,
                                   .out = out,
                                   .join = kind,
                               });
}

static void be_late(struct rank *k, struct sv_rng *g)
{
    if (k->rig->late && sv_rng_below(g, 4) == 0)
        nap_us(sv_rng_below(g, 400));
}

/* Rows in reverse, and padding at the end. */
static void fill_index(int32_t *index, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        index[i] = i == n - 1 && n > 1 ? -1 : n - 1 - i;
}

/* out: (ROUNDS, 2, ROWS, D) what both norms gave. */
static void run_round(struct rank *k, int32_t round, struct sv_rng *g)
{
    const struct rig *rig = k->rig;
    int32_t index[ROWS];
    const int32_t own = rig->first[k->rank], width = rig->first[k->rank + 1] - own;
    float *out = k->out + (size_t)round * 2 * ROWS * D;
    fill_index(index, rig->n_rows);
    be_late(k, g);
    join_norm(k, SV_JOIN_MIXER, part_of(rig, k->rank, round, 0), NULL, k->x, out);
    be_late(k, g);
    join_norm(k, SV_JOIN_FFN, part_of(rig, k->rank, round, 1), index, k->x, out + ROWS * D);
    be_late(k, g);
    sv_op_head_argmax(k->dev,
                      &(struct sv_p_head_argmax){
                          .n_rows = rig->n_rows,
                          .k = D,
                          .x = out,
                          .w = host_weight(rig->head + (size_t)own * D, width, D, SV_ROLE_HEAD),
                          .out = k->best + (size_t)round * ROWS,
                          .join = SV_JOIN_BEST,
                          .first_id = own,
                      });
    for (int twice = 0; twice < 2; twice++) {
        struct sv_p_gather_logits gather = {
            .n_rows = rig->n_rows, .logits = k->logits, .ld = VOCAB};
        memcpy(gather.first, rig->first, sizeof gather.first);
        memset(k->logits, 0, sizeof(float) * ROWS * VOCAB);
        for (int32_t i = 0; i < rig->n_rows; i++)
            memcpy(k->logits + i * VOCAB + own, rig->logits + i * VOCAB + own,
                   (size_t)width * sizeof(float));
        be_late(k, g);
        sv_op_gather_logits(k->dev, &gather);
        k->rc |= memcmp(k->logits, rig->logits, (size_t)rig->n_rows * VOCAB * sizeof(float)) != 0;
    }
}

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    struct sv_rng g = {k->rig->seed * 131 + (uint64_t)k->rank};
    for (int32_t round = 0; round < ROUNDS; round++)
        run_round(k, round, &g);
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

/* Rank r is on host r % n_hosts. What a connection holds is less than a part. */
static void connect_hosts(struct rig *g, int32_t n_hosts)
{
    memset(g->far, -1, sizeof g->far);
    for (int32_t r = 0; r < g->n; r++)
        for (int32_t q = r + 1; q < g->n; q++) {
            int fd[2];
            if (r % n_hosts == q % n_hosts)
                continue;
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
            for (int i = 0; i < 2; i++)
                setsockopt(fd[i], SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int));
            g->far[r][q] = fd[0];
            g->far[q][r] = fd[1];
        }
}

static void rig_open(struct rig *g, int32_t n, int32_t n_hosts, int32_t n_rows, uint64_t seed,
                     bool late, int64_t timeout_us)
{
    struct sv_window_key key[BIG];
    const struct sv_window_need need = join_need(ROWS, D, VOCAB);
    memset(g, 0, sizeof *g);
    g->n = n;
    g->n_rows = n_rows;
    g->seed = seed;
    g->late = late;
    connect_hosts(g, n_hosts);
    g->weight = floats(D, seed + 1, 1);
    g->head = floats((size_t)VOCAB * D, seed + 2, 1);
    /* the same row at the borders, and elsewhere: ties */
    for (int32_t r = 0; r <= n; r++)
        g->first[r] = VOCAB * r / n + (r % 2 && r < n ? 3 : 0);
    for (int32_t r = 1; r < n; r++) {
        memcpy(g->head + (size_t)g->first[r] * D, g->head, D * sizeof(float));
        memcpy(g->head + (size_t)(g->first[r] - 1) * D, g->head, D * sizeof(float));
    }
    g->logits = floats((size_t)ROWS * VOCAB, seed + 3, 1);
    for (int32_t r = 0; r < n; r++) {
        struct rank *k = &g->rank[r];
        *k = (struct rank){.rig = g, .rank = r, .fault_at = -1};
        k->dev = open_device((struct sv_ranks){.rank = r, .n = n}, 1 + r % 2);
        assert_int_equal(sv_dev_window_open(k->dev, &need, &key[r], NULL), SV_OK);
        g->part[r] = floats((size_t)ROUNDS * 2 * ROWS * D, seed + 10 + (uint64_t)r, 1);
        k->x = floats(ROWS * D, seed + 4, 1);
        k->out = calloc((size_t)ROUNDS * 2 * ROWS * D, sizeof *k->out);
        k->logits = calloc(ROWS * VOCAB, sizeof *k->logits);
        k->best = calloc((size_t)ROUNDS * ROWS, sizeof *k->best);
    }
    for (int32_t r = 0; r < n; r++)
        assert_int_equal(
            sv_dev_window_join(g->rank[r].dev,
                               &(struct sv_peers){.key = key,
                                                  .progress = g->progress,
                                                  .failure = &g->failure,
                                                  .far = n_hosts > 1 ? g->far[r] : NULL,
                                                  .spin_us = late ? 5 : 50,
                                                  .timeout_us = timeout_us},
                               NULL),
            SV_OK);
}

static void rig_run(struct rig *g, void *(*fn)(void *))
{
    for (int32_t r = 0; r < g->n; r++)
        assert_int_equal(sv_thread_start(&g->rank[r].thread, fn, &g->rank[r], NULL), SV_OK);
    for (int32_t r = 0; r < g->n; r++)
        sv_thread_join(g->rank[r].thread);
}

static void rig_close(struct rig *g)
{
    for (int32_t r = 0; r < g->n; r++) {
        sv_dev_close(g->rank[r].dev);
        free(g->part[r]);
        free(g->rank[r].x);
        free(g->rank[r].out);
        free(g->rank[r].logits);
        free(g->rank[r].best);
        for (int32_t q = 0; q < g->n; q++)
            if (g->far[r][q] >= 0)
                close(g->far[r][q]);
    }
    free(g->weight);
    free(g->head);
    free(g->logits);
    assert_int_equal(sv_alloc_live(), 0);
}

/* Sums of a round's parts, beginning with rank `begin`: 0 is the order that joins have. */
static void add_parts(const struct rig *g, int32_t round, int32_t which, int32_t begin, float *sum)
{
    for (int32_t i = 0; i < g->n_rows * D; i++) {
        sum[i] = part_of(g, begin, round, which)[i];
        for (int32_t r = 1; r < g->n; r++)
            sum[i] += part_of(g, (begin + r) % g->n, round, which)[i];
    }
}

/* The rounds on one device, on sums that are there. Returns in how many elements another order
 * would have been seen. */
static int64_t check(struct rig *g)
{
    struct rank one = {.rig = g, .dev = open_device((struct sv_ranks){.n = 1}, 1)};
    float *x = floats(ROWS * D, g->seed + 4, 1), sum[ROWS * D], other[ROWS * D];
    float want[2 * ROWS * D];
    int32_t index[ROWS], best[ROWS];
    int64_t n_seen = 0;
    fill_index(index, g->n_rows);
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (int32_t which = 0; which < 2; which++) {
            add_parts(g, round, which, 0, sum);
            add_parts(g, round, which, 1 % g->n, other);
            for (int32_t i = 0; i < g->n_rows * D; i++)
                n_seen += sum[i] != other[i];
            join_norm(&one, SV_JOIN_NONE, sum, which ? index : NULL, x, want + which * ROWS * D);
        }
        sv_op_head_argmax(
            one.dev, &(struct sv_p_head_argmax){.n_rows = g->n_rows,
                                                .k = D,
                                                .x = want,
                                                .w = host_weight(g->head, VOCAB, D, SV_ROLE_HEAD),
                                                .out = best});
        for (int32_t r = 0; r < g->n; r++) {
            const float *got = g->rank[r].out + (size_t)round * 2 * ROWS * D;
            for (int32_t which = 0; which < 2; which++)
                assert_memory_equal(got + which * ROWS * D, want + which * ROWS * D,
                                    (size_t)g->n_rows * D * sizeof(float));
            assert_memory_equal(g->rank[r].best + (size_t)round * ROWS, best,
                                (size_t)g->n_rows * sizeof *best);
        }
    }
    for (int32_t r = 0; r < g->n; r++) {
        if (g->rank[r].rc)
            fail_msg("rank %d: %s", r, g->rank[r].err.msg);
        assert_memory_equal(g->rank[r].x, x, (size_t)g->n_rows * D * sizeof(float));
    }
    free(x);
    sv_dev_close(one.dev);
    return n_seen;
}

static void sums(void **state)
{
    static const int32_t rows[] = {0, 1, 7, ROWS};
    (void)state;
    for (int32_t n = 2; n <= BIG; n++)
        for (int late = 0; late < 2; late++)
            for (int32_t n_hosts = 1; n_hosts <= (n == 3 || n == 5 ? 3 : 1); n_hosts++) {
                struct rig g;
                rig_open(&g, n, n_hosts, rows[(n + late) % 4], (uint64_t)n * 7 + (uint64_t)late,
                         late, 20000000);
                rig_run(&g, rank_main);
                const int64_t n_seen = check(&g);
                assert_true((n > 2 && g.n_rows > 0) == (n_seen > 0));
                rig_close(&g);
            }
}

/* ---------------------------------------------------------------- rows of one rank */

/* Rank r's of n rows: none of rank 1, and none of the last row, which is padding. */
static struct sv_slice own_rows(int32_t r, int32_t n, int32_t n_rows)
{
    const int32_t first = r ? n_rows / n : 0, end = r == n - 1 ? n_rows - 1 : n_rows / n;
    return r == 0 || r == n - 1 ? (struct sv_slice){first, end > first ? end - first : 0}
                                : (struct sv_slice){n_rows, 0};
}

static void *own_main(void *arg)
{
    struct rank *k = arg;
    const struct sv_slice own = own_rows(k->rank, k->rig->n, k->rig->n_rows);
    sv_op_add_rms_norm(k->dev, &(struct sv_p_add_rms_norm){
                                   .n_rows = k->rig->n_rows,
                                   .d = D,
                                   .x = k->x,
                                   .delta = part_of(k->rig, k->rank, 0, 0) + own.first * D,
                                   .weight = host_weight(k->rig->weight, 1, D, SV_ROLE_IN_NORM),
                                   .eps = 1e-6f,
                                   .out = k->out,
                                   .join = SV_JOIN_MIXER,
                                   .own_rows = &own,
                               });
    k->rc = sv_dev_sync(k->dev, &k->err);
    return NULL;
}

/* A row that one rank has is joined with its bits, those of zeros, subnormals and infinities among
 * them, whatever the others have in its place; one that none has leaves the stream as it was. The
 * stream is -0 where the sign of what is added to it shows. */
static void rows_of_one_rank(void **state)
{
    static const float odd[] = {-0.0f, 0.0f, 1e-45f, -1e-45f, 3e38f, -1e-38f, 1.0f / 3, INFINITY};
    (void)state;
    for (int32_t n = 2; n <= BIG; n++) {
        struct rig g;
        float want[ROWS * D];
        rig_open(&g, n, 1 + n % 3, n == 4 ? 0 : 5 * n - 3, (uint64_t)n, n % 2, 20000000);
        for (int32_t r = 0; r < n; r++)
            for (int32_t i = 0; i < g.n_rows * D; i++) {
                const struct sv_slice own = own_rows(r, n, g.n_rows);
                const int32_t row = i / D;
                const bool mine = row >= own.first && row < own.first + own.n;
                if (i % 3 == 0)
                    part_of(&g, r, 0, 0)[i] = odd[(i / 3 + r) % 8];
                if (!mine && i % 5 == 0)
                    part_of(&g, r, 0, 0)[i] = NAN;
                g.rank[r].x[i] = i % 2 ? -0.0f : 0.5f;
                if (r == 0)
                    want[i] = g.rank[r].x[i];
            }
        for (int32_t r = 0; r < n; r++) {
            const struct sv_slice own = own_rows(r, n, g.n_rows);
            for (int32_t i = own.first * D; i < (own.first + own.n) * D; i++)
                want[i] += part_of(&g, r, 0, 0)[i];
        }
        rig_run(&g, own_main);
        for (int32_t r = 0; r < n; r++) {
            if (g.rank[r].rc)
                fail_msg("rank %d: %s", r, g.rank[r].err.msg);
            assert_memory_equal(g.rank[r].x, want, (size_t)g.n_rows * D * sizeof(float));
        }
        rig_close(&g);
    }
}

/* ---------------------------------------------------------------- rows that are dealt */

enum { ASKED = 3 };

/* Rows with a slot of their own: some drawn, some the best. */
static void sample_rows(struct sv_dev *dev, const float *logits, int32_t first, int32_t n,
                        int32_t *out)
{
    struct sv_sampling how[ROWS];
    int32_t slot[ROWS], pos[ROWS];
    for (int32_t i = 0; i < ROWS; i++) {
        how[i] = (struct sv_sampling){.temperature = i % 3 ? 1.5f : 0, .top_p = 1, .seed = 9};
        slot[i] = i;
        pos[i] = 10 * i;
    }
    sv_op_sample(dev, &(struct sv_p_sample){.n_rows = n,
                                            .vocab = VOCAB,
                                            .logits = logits + (size_t)first * VOCAB,
                                            .ld = VOCAB,
                                            .row_slot = slot + first,
                                            .row_pos = pos + first,
                                            .slot_sampling = how,
                                            .out = out + first});
}

/* Rounds of fewer and fewer rows: their tokens are in best, three more numbers of each in out. */
static void *dealt_main(void *arg)
{
    struct rank *k = arg;
    const struct rig *rig = k->rig;
    struct sv_rng g = {rig->seed * 131 + (uint64_t)k->rank};
    const int32_t at = rig->first[k->rank], width = rig->first[k->rank + 1] - at;
    for (int32_t n = rig->n_rows; n >= 0; n -= 1 + n / 8) {
        const struct sv_slice own = sv_dealt_rows(k->dev, n);
        struct sv_p_gather_logits deal = {
            .n_rows = n, .logits = k->logits, .ld = VOCAB, .deal = true};
        memcpy(deal.first, rig->first, sizeof deal.first);
        memset(k->logits, 0, sizeof(float) * ROWS * VOCAB);
        for (int32_t i = 0; i < n; i++)
            memcpy(k->logits + i * VOCAB + at, rig->logits + i * VOCAB + at,
                   (size_t)width * sizeof(float));
        be_late(k, &g);
        sv_op_gather_logits(k->dev, &deal);
        for (int32_t i = 0; i < n; i++) {
            const bool mine = i >= own.first && i < own.first + own.n;
            for (int32_t v = 0; v < VOCAB; v++) {
                const bool here = mine || (v >= at && v < at + width);
                k->rc |= k->logits[i * VOCAB + v] != (here ? rig->logits[i * VOCAB + v] : 0);
            }
        }
        memset(k->best, -1, ROWS * sizeof *k->best);
        memset(k->out, 0, sizeof(float) * ROWS * ASKED);
        sample_rows(k->dev, k->logits, own.first, own.n, k->best);
        for (int32_t i = own.first; i < own.first + own.n; i++)
            for (int32_t a = 0; a < ASKED; a++)
                k->out[a * ROWS + i] = k->logits[i * VOCAB + a] + (float)n;
        be_late(k, &g);
        sv_op_share_rows(k->dev,
                         &(struct sv_p_share_rows){
                             .n_rows = n,
                             .n_arrays = 2,
                             .array = {{k->best, sizeof *k->best, 0, 1},
                                       {k->out, sizeof *k->out, ROWS * sizeof *k->out, ASKED}}});
        for (int32_t i = 0; i < n * ASKED; i++)
            k->rc |= k->out[i % ASKED * ROWS + i / ASKED] !=
                     rig->logits[i / ASKED * VOCAB + i % ASKED] + (float)n;
        for (int32_t i = 0; i < ROWS; i++)
            k->rc |= i < n ? k->best[i] != k->rig->tokens[i] : k->best[i] != -1;
    }
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

/* Each rank gets the rows that are its own, and all get what was made of them: what one device
 * makes of all rows. */
static void dealt_rows(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= BIG; n++) {
        struct rig g;
        rig_open(&g, n, 1 + n % 3, ROWS - n, (uint64_t)n * 3, n % 2, 20000000);
        struct sv_dev *one = open_device((struct sv_ranks){.n = 1}, 1);
        sample_rows(one, g.logits, 0, ROWS, g.tokens);
        sv_dev_close(one);
        rig_run(&g, dealt_main);
        for (int32_t r = 0; r < n; r++)
            if (g.rank[r].rc)
                fail_msg("rank %d of %d: %s", r, n, g.rank[r].err.msg);
        rig_close(&g);
    }
}

/* A row of NaN is seen by its own rank alone, and no rank takes what was made of it. */
static void a_dealt_row_is_bad(void **state)
{
    struct rig g;
    (void)state;
    rig_open(&g, 3, 2, 6, 1, false, 20000000);
    for (int32_t v = 0; v < VOCAB; v++)
        g.logits[3 * VOCAB + v] = NAN;
    rig_run(&g, dealt_main);
    for (int32_t r = 0; r < 3; r++) {
        assert_int_not_equal(g.rank[r].rc, SV_OK);
        assert_non_null(strstr(g.rank[r].err.msg, "sample: 301 of 301 logits of slot 3 are NaN"));
        assert_true(r == 1 || strstr(g.rank[r].err.msg, "rank 1 failed: ") != NULL);
    }
    rig_close(&g);
}

/* ---------------------------------------------------------------- ties */

/* Logits that are equal on several ranks, and none at all. */
static void *ties_main(void *arg)
{
    struct rank *k = arg;
    const int32_t own = k->rig->first[k->rank], width = k->rig->first[k->rank + 1] - own;
    sv_op_head_argmax(k->dev,
                      &(struct sv_p_head_argmax){
                          .n_rows = 4,
                          .k = D,
                          .x = k->x,
                          .w = host_weight(k->rig->head + (size_t)own * D, width, D, SV_ROLE_HEAD),
                          .out = k->best,
                          .join = SV_JOIN_BEST,
                          .first_id = own,
                      });
    k->rc = sv_dev_sync(k->dev, &k->err);
    return NULL;
}

static void ties(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= BIG; n++) {
        struct rig g;
        rig_open(&g, n, 1 + n % 2, 4, 5, true, 20000000);
        /* row 0: the last token of rank 0 and the first of rank 1 are best; row 1: all are equal;
         * row 2: 0 and -0 are equal; row 3: a NaN never wins */
        memset(g.head, 0, sizeof(float) * VOCAB * D);
        for (int32_t v = 0; v < VOCAB; v++) {
            g.head[(size_t)v * D] = v == g.first[1] - 1 || v == g.first[1] ? 2 : 1;
            g.head[(size_t)v * D + 1] = v < g.first[1] ? -1.0f : v == VOCAB - 1 ? 0.0f : -0.0f;
            g.head[(size_t)v * D + 2] = v == VOCAB - 2 ? -3.0f : v == 7 ? NAN : -4.0f;
        }
        for (int32_t r = 0; r < n; r++) {
            memset(g.rank[r].x, 0, sizeof(float) * ROWS * D);
            g.rank[r].x[0] = 1;
            g.rank[r].x[2 * D + 1] = 1;
            g.rank[r].x[3 * D + 2] = 1;
        }
        rig_run(&g, ties_main);
        for (int32_t r = 0; r < n; r++) {
            assert_int_equal(g.rank[r].best[0], g.first[1] - 1);
            assert_int_equal(g.rank[r].best[1], 0);
            assert_int_equal(g.rank[r].best[2], g.first[1]);
            assert_int_equal(g.rank[r].best[3], VOCAB - 2);
            assert_int_equal(g.rank[r].rc, SV_OK);
        }
        rig_close(&g);
    }
}

/* ---------------------------------------------------------------- waits that end */

/* One rank does not come to its fault_at-th join, or comes to another one. */
static void *faulty_main(void *arg)
{
    struct rank *k = arg;
    static float x[BIG][ROWS * D], out[BIG][ROWS * D];
    for (int32_t i = 0; i < 20; i++) {
        const bool wrong = i >= k->fault_at && k->fault_at >= 0;
        if (wrong && k->rig->late) /* it is gone */
            break;
        const enum sv_join kind = wrong ? SV_JOIN_TAPS : i % 2 ? SV_JOIN_FFN : SV_JOIN_MIXER;
        join_norm(k, kind, part_of(k->rig, k->rank, i, 0), NULL, x[k->rank], out[k->rank]);
        if (wrong)
            break;
    }
    k->rc = sv_dev_sync(k->dev, &k->err);
    return NULL;
}

static void faults(void **state)
{
    (void)state;
    for (int32_t n = 2; n <= 5; n++)
        for (int gone = 0; gone < 2; gone++) {
            struct rig g;
            rig_open(&g, n, 1 + n % 3, 3, 5, gone, gone ? 300000 : 60000000);
            g.rank[n - 1].fault_at = 8;
            const int64_t begin = sv_clock_us();
            rig_run(&g, faulty_main);
            assert_true(sv_clock_us() - begin < 30000000);
            assert_int_equal(g.failure.stop, 1);
            for (int32_t r = 0; r < n - 1; r++) {
                const char *said = g.rank[r].err.msg;
                assert_int_equal(g.rank[r].rc, SV_EDEVICE);
                if (gone && r == g.failure.rank)
                    assert_non_null(strstr(said, "for 300 ms"));
                else if (r == g.failure.rank)
                    assert_non_null(strstr(said, "not in step: join 9 is of "));
                else
                    assert_non_null(strstr(said, "rank"));
            }
            rig_close(&g);
        }
}

/* A rank whose pass is over, and that has had fewer joins in it, is not waited for. */
static void *passed_main(void *arg)
{
    struct rank *k = arg;
    static float x[BIG][ROWS * D], out[BIG][ROWS * D];
    const int32_t n = k->rank == 1 ? 5 : 6;
    for (int32_t i = 0; i < n; i++)
        join_norm(k, i % 2 ? SV_JOIN_FFN : SV_JOIN_MIXER, part_of(k->rig, k->rank, i, 0), NULL,
                  x[k->rank], out[k->rank]);
    __atomic_store_n(&k->rig->progress[k->rank].passes_joins,
                     (uint64_t)1 << 32 | sv_dev_n_joins(k->dev), __ATOMIC_RELEASE);
    k->rc = sv_dev_sync(k->dev, &k->err);
    return NULL;
}

static void passes(void **state)
{
    struct rig g;
    (void)state;
    rig_open(&g, 3, 3, 2, 5, false, 60000000);
    const int64_t begin = sv_clock_us();
    rig_run(&g, passed_main);
    assert_true(sv_clock_us() - begin < 30000000);
    for (int32_t r = 0; r < 3; r += 2) {
        assert_int_equal(g.rank[r].rc, SV_EDEVICE);
        if (r == g.failure.rank)
            assert_non_null(strstr(g.rank[r].err.msg, "pass 1 has ended after join 5 on rank 1"));
    }
    rig_close(&g);
}

/* A connection that ends, and one that brings something else. */
static void connections_end(void **state)
{
    static const char *const said[] = {"the connection to rank 3 has ended",
                                       "the connection to rank 3 brings what is no part of a join"};
    (void)state;
    for (int odd = 0; odd < 2; odd++) {
        struct rig g;
        rig_open(&g, 4, 2, 3, 5, false, 60000000);
        if (odd)
            assert_int_equal(send(g.far[3][2], said[odd], 40, 0), 40);
        else
            shutdown(g.far[3][2], SHUT_RDWR);
        const int64_t begin = sv_clock_us();
        rig_run(&g, faulty_main);
        assert_true(sv_clock_us() - begin < 30000000);
        for (int32_t r = 0; r < 4; r++)
            assert_int_equal(g.rank[r].rc, SV_EDEVICE);
        if (odd || g.failure.rank == 2)
            assert_string_equal(g.failure.text, said[odd]);
        else
            assert_string_equal(g.failure.text, "the connection to rank 2 has ended");
        rig_close(&g);
    }
}

SV_TEST_MAIN(cmocka_unit_test(sums), cmocka_unit_test(rows_of_one_rank),
             cmocka_unit_test(dealt_rows), cmocka_unit_test(a_dealt_row_is_bad),
             cmocka_unit_test(ties), cmocka_unit_test(faults), cmocka_unit_test(passes),
             cmocka_unit_test(connections_end))
