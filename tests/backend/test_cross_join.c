/*
 * test_cross_join.c - joins of ranks on GPUs, a thread for each rank: sums in rank order whoever is
 * late, in one shot or in two, in one kernel or in two, with a router behind them, the best token
 * and whole rows of logits of all parts, rows of logits that are dealt and what was made of them,
 * rows that one rank has, parts that products send as they end, replayed as graphs too, and waits
 * that end; all of it again on two hosts that are played.
 *
 * timeout: 120
 *
 * Ranks have a GPU each where there are as many; else up to four of them share one, whose kernels
 * are so small that all of them find room beside those that wait. What a join gives is compared bit
 * for bit with one device's op on sums that were added here. The CPU's joins are test_join.c's.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep, setenv */

#include "backend/ops_moe.h"
#include "backend/ops_tokens.h"
#include "join_rig.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* ---------------------------------------------------------------- what ranks do */

/* Of all rows with a router behind it. */
static void norm(struct rank *k, enum sv_join kind, int32_t round, int32_t which)
{
    const struct sv_p_add_rms_norm p = {.n_rows = k->rig->n_rows,
                                        .d = D,
                                        .x = k->x,
                                        .delta = at(k, k->part, round, which),
                                        .row_index = which ? k->index : NULL,
                                        .weight = k->weight,
                                        .eps = 1e-6f,
                                        .out = at(k, k->out, round, which),
                                        .join = kind};
    if (which)
        sv_op_add_rms_norm(k->dev, &p);
    else
        sv_op_router_topk(
            k->dev, &(struct sv_p_router_topk){.rows = {.n_rows = p.n_rows,
                                                        .n_segs = 1,
                                                        .row_seg = k->zeros,
                                                        .seg_row0 = k->zeros,
                                                        .seg_slot = k->zeros,
                                                        .row_pos = k->zeros},
                                               .x = p.out,
                                               .before = &p,
                                               .w = k->router,
                                               .norm = SV_ROUTER_OVER_CHOSEN,
                                               .routes = routes_at(k->rig, k->routes, round)});
}

static void head(struct rank *k, int32_t round, bool joins)
{
    sv_op_head_argmax(k->dev,
                      &(struct sv_p_head_argmax){.n_rows = k->rig->n_rows,
                                                 .k = D,
                                                 .x = at(k, k->out, round, 0),
                                                 .w = k->head,
                                                 .out = k->best + (size_t)round * ROWS,
                                                 .join = joins ? SV_JOIN_BEST : SV_JOIN_NONE,
                                                 .first_id = joins ? k->rig->first[k->rank] : 0});
}

static void gather(struct rank *k, int32_t which)
{
    struct sv_p_gather_logits p = {
        .n_rows = k->rig->n_rows, .logits = k->logits + (size_t)which * ROWS * VOCAB, .ld = VOCAB};
    memcpy(p.first, k->rig->first, sizeof p.first);
    sv_op_gather_logits(k->dev, &p);
}

static void enqueue(void *user)
{
    struct rank *k = user;
    const bool joins = k != &k->rig->alone;
    norm(k, joins ? SV_JOIN_MIXER : SV_JOIN_NONE, k->round, 0);
    norm(k, joins ? SV_JOIN_FFN : SV_JOIN_NONE, k->round, 1);
    head(k, k->round, joins);
    for (int32_t which = 0; which < 2 && joins; which++)
        gather(k, which);
}

static void *rank_main(void *arg)
{
    struct rank *k = arg;
    struct sv_rng g = {(uint64_t)k->rank * 77 + 5};
    k->rc = sv_dev_sync(k->dev, &k->err); /* and this thread's GPU is the rank's */
    for (k->round = 0; k->round < ROUNDS && !k->rc; k->round++) {
        if (k->rig->late && sv_rng_below(&g, 3) == 0)
            nap_us(sv_rng_below(&g, 2000));
        enqueue(k);
    }
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

/* The first round's graph, replayed: what it gives changes with x alone. */
static void *replay_main(void *arg)
{
    struct rank *k = arg;
    k->rc = sv_dev_sync(k->dev, &k->err);
    k->round = 0;
    for (int32_t i = 0; i < ROUNDS; i++)
        sv_dev_graph_run(k->dev, 7, enqueue, k);
    k->rc |= sv_dev_sync(k->dev, &k->err);
    if (k != &k->rig->alone && sv_dev_n_joins(k->dev) != ROUNDS * 5)
        k->rc = 1;
    return NULL;
}

static void same_routes(const struct rank *a, const struct rank *b, int32_t round)
{
    const struct sv_routes r = routes_at(a->rig, a->got_routes, round),
                           q = routes_at(a->rig, b->got_routes, round);
    const size_t n = (size_t)r.n_rows * CHOSEN * 4;
    assert_memory_equal(r.expert, q.expert, n);
    assert_memory_equal(r.weight, q.weight, n);
    assert_memory_equal(r.place, q.place, n);
    assert_memory_equal(r.list, q.list, n);
    assert_memory_equal(r.first, q.first, (EXPERTS + 1) * 4);
    assert_int_equal(*r.n_active, *q.n_active);
    assert_memory_equal(r.active, q.active, (size_t)*r.n_active * 4);
}

/* The rounds on one device, on sums that are there. Returns in how many elements another order
 * would have been seen. */
static int64_t check(struct rig *g, void *(*fn)(void *), int32_t n_rounds)
{
    struct rank *one = &g->alone;
    const size_t n = (size_t)ROUNDS * 2 * ROWS * D;
    float *sum = malloc(n * sizeof *sum);
    int64_t n_seen = 0;
    for (size_t i = 0; i < n; i++) {
        float other = g->part[g->n - 1][i];
        sum[i] = g->part[0][i];
        for (int32_t r = 1; r < g->n; r++) {
            sum[i] += g->part[r][i];
            other += g->part[g->n - 1 - r][i];
        }
        n_seen += sum[i] != other;
    }
    open_rank(g, one, (struct sv_ranks){.n = 1}, true);
    one->part = put_act(g, one->dev, sum, n);
    fn(one);
    assert_int_equal(one->rc, SV_OK);
    read_back(one);
    for (int32_t r = 0; r < g->n; r++) {
        struct rank *k = &g->rank[r];
        if (k->rc)
            fail_msg("rank %d: %s", r, k->err.msg);
        read_back(k);
        for (int32_t i = 0; i < n_rounds; i++) {
            for (int32_t which = 0; which < 2; which++)
                assert_memory_equal(at(k, k->got_out, i, which), at(k, one->got_out, i, which),
                                    (size_t)g->n_rows * D * size_of(g));
            same_routes(k, one, i);
            assert_memory_equal(k->got_best + (size_t)i * ROWS, one->got_best + (size_t)i * ROWS,
                                (size_t)g->n_rows * sizeof(int32_t));
        }
        assert_memory_equal(k->got_x, one->got_x, (size_t)ROWS * D * size_of(g));
        for (int32_t which = 0; which < 2; which++)
            assert_memory_equal(k->got_logits + (size_t)which * ROWS * VOCAB, g->logits,
                                (size_t)g->n_rows * VOCAB * sizeof(float));
    }
    close_rank(one);
    free(sum);
    return n_seen;
}

static void run_one(void *(*fn)(void *), const struct rig *what, int32_t gpus, int32_t n_rounds)
{
    const int32_t n = what->n;
    struct rig g;
    print_message("%d ranks on %d GPUs, %s, %d rows%s\n", n, n <= gpus ? n : 1,
                  what->bf16 ? "bf16" : "f32", what->n_rows, what->two ? ", in two shots" : "");
    rig_open(&g, n, what->n_rows, what->bf16, what->two, n <= gpus, 5000000);
    g.late = what->late;
    rig_run(&g, fn);
    const int64_t n_seen = check(&g, fn, n_rounds);
    assert_true(g.bf16 || (n > 2) == (n_seen > 0)); /* sums of few bf16 are exact */
    rig_close(&g);
}

static void run_all(void *(*fn)(void *), int32_t most, int32_t n_rounds)
{
    static const int32_t rows[] = {1, 7, ROWS, 0, 40};
    const int32_t gpus = n_gpus();
    int32_t n_runs = 0;
    for (int32_t n = 2; n <= most; n++)
        for (int32_t form = 0; form < (n > 2 ? 4 : 2); form++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                const struct rig what = {
                    .n = n, .n_rows = rows[i], .bf16 = form % 2, .late = i % 2, .two = form > 1};
                /* On one GPU blocks that wait must leave multiprocessors to products that need all
                 * of one's shared memory: two ranks of 300 rows stand still. */
                if (n > gpus && rows[i] > 40)
                    continue;
                run_one(fn, &what, gpus, n_rounds);
                n_runs++;
            }
    print_message("%d runs of 2 to %d ranks\n", n_runs, most);
}

static void sums(void **state)
{
    (void)state;
    run_all(rank_main, most_ranks(), ROUNDS);
}

static void graphs(void **state)
{
    const int32_t most = most_ranks(), gpus = n_gpus();
    (void)state;
    if (gpus < 2) {
        print_message("joins in graphs NOT checked: one GPU\n");
        skip();
    }
    /* Making a graph may wait for all that runs on its GPU. */
    run_all(replay_main, most < gpus ? most : gpus, 1);
}

/* ---------------------------------------------------------------- rows of one rank */

/* What a mixer over own rows gives, joined; and a join whose sums go to such a mixer. */
static void enqueue_own(void *user)
{
    struct rank *k = user;
    struct sv_p_add_rms_norm p = {.n_rows = k->rig->n_rows,
                                  .d = D,
                                  .x = k->x,
                                  .weight = k->weight,
                                  .eps = 1e-6f,
                                  .own_rows = k == &k->rig->alone ? NULL : k->own};
    for (int32_t which = 0; which < 2; which++) {
        p.delta = at(k, k->part, k->round, which);
        p.out = at(k, k->out, k->round, which);
        p.join = k == &k->rig->alone ? SV_JOIN_NONE : which ? SV_JOIN_FFN : SV_JOIN_MIXER;
        sv_op_add_rms_norm(k->dev, &p);
    }
}

static void *own_main(void *arg)
{
    struct rank *k = arg;
    k->rc = sv_dev_sync(k->dev, &k->err);
    for (k->round = 0; k->round < ROUNDS && !k->rc; k->round++) {
        sv_dev_upload(k->dev, k->own, &k->own_of[k->round], sizeof *k->own);
        enqueue_own(k);
    }
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

/* One graph for ranges that change; the parts are those of the first round. */
static void *own_replay_main(void *arg)
{
    struct rank *k = arg;
    k->rc = sv_dev_sync(k->dev, &k->err);
    k->round = 0;
    for (int32_t i = 0; i < ROUNDS; i++) {
        sv_dev_upload(k->dev, k->own, &k->own_of[i], sizeof *k->own);
        sv_dev_graph_run(k->dev, 9, enqueue_own, k);
    }
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

/* Ranges of every length; the rank that has none changes, and no rank has rows after the last.
 */
static void deal(struct rig *g)
{
    struct sv_rng rng = {(uint64_t)g->n_rows * 31 + (uint64_t)g->n};
    for (int32_t i = 0; i < ROUNDS; i++)
        for (int32_t r = 0, row = 0; r < g->n; r++) {
            const int32_t left = g->n_rows - row,
                          n = r == i % g->n ? 0 : (int32_t)sv_rng_below(&rng, (uint32_t)left + 1);
            g->rank[r].own_of[i] = (struct sv_slice){row, n};
            row += n;
        }
}

/* What the ranks' rows of a round come to: those of owners, then sums, as the device has them. */
static void *owned(const struct rig *g, int32_t round, int32_t of_parts)
{
    float *sum = malloc((size_t)2 * ROWS * D * sizeof *sum);
    for (int32_t i = 0; i < ROWS * D; i++)
        sum[i] = -0.0f;
    for (int32_t r = 0; r < g->n; r++) {
        const struct sv_slice own = g->rank[r].own_of[round];
        const float *part = g->part[r] + (size_t)of_parts * 2 * ROWS * D;
        memcpy(sum + own.first * D, part, (size_t)own.n * D * sizeof *sum);
        for (int32_t i = ROWS * D; i < 2 * ROWS * D; i++)
            sum[i] = r ? sum[i] + part[i] : part[i];
    }
    void *act = act_of(g, sum, (size_t)2 * ROWS * D);
    free(sum);
    return act;
}

/* replayed: all rounds have the parts and the place of the first. */
static void check_own(struct rig *g, bool replayed)
{
    struct rank *one = &g->alone;
    const size_t row = D * size_of(g), round = 2 * ROWS * row;
    open_rank(g, one, (struct sv_ranks){.n = 1}, true);
    one->part = put(one->dev, NULL, (size_t)ROUNDS * round);
    for (int32_t i = 0; i < ROUNDS; i++) {
        void *sum = owned(g, i, replayed ? 0 : i);
        one->round = replayed ? 0 : i;
        sv_dev_upload(one->dev, at(one, one->part, one->round, 0), sum, round);
        enqueue_own(one);
        assert_int_equal(sv_dev_sync(one->dev, NULL), SV_OK);
        free(sum);
    }
    read_back(one);
    for (int32_t r = 0; r < g->n; r++) {
        struct rank *k = &g->rank[r];
        if (k->rc)
            fail_msg("rank %d: %s", r, k->err.msg);
        read_back(k);
        assert_memory_equal(k->got_x, one->got_x, (size_t)g->n_rows * row);
        for (int32_t i = 0; i < (replayed ? 1 : ROUNDS); i++) {
            const struct sv_slice own = k->own_of[replayed ? ROUNDS - 1 : i];
            assert_memory_equal(at(k, k->got_out, i, 0), at(one, one->got_out, i, 0),
                                (size_t)g->n_rows * row);
            assert_memory_equal(at(k, k->got_out, i, 1),
                                (char *)at(one, one->got_out, i, 1) + (size_t)own.first * row,
                                (size_t)own.n * row);
        }
    }
    close_rank(one);
}

static void own_rows(void **state)
{
    static const int32_t rows[] = {1, 7, 40, ROWS};
    const int32_t most = most_ranks(), gpus = n_gpus();
    (void)state;
    for (int32_t n = 2; n <= most; n++)
        for (int32_t form = 0; form < 16; form++) {
            const bool replayed = form & 4, two = form & 8;
            const int32_t n_rows = rows[(form + n) % 4];
            struct rig g;
            if ((two && n == 2) || (n > gpus && (n_rows > 40 || replayed)))
                continue; /* as in sums and graphs */
            rig_open(&g, n, n_rows, form & 1, two, n <= gpus, 5000000);
            deal(&g);
            rig_run(&g, replayed ? own_replay_main : own_main);
            check_own(&g, replayed);
            rig_close(&g);
        }
}

/* ---------------------------------------------------------------- parts that products send */

struct sender {
    struct rank *k;
    void *in;    /* device: (ROWS, WIDE) */
    void *x;     /* host: the stream before a round */
    bool pushes; /* the products of this round do */
    bool graphs; /* the last rounds are replayed */
    struct sv_thread *thread;
};

static void enqueue_products(void *user)
{
    const struct sender *s = user;
    struct rank *k = s->k;
    for (int32_t which = 0; which < 2; which++) {
        const enum sv_join kind = which ? SV_JOIN_FFN : SV_JOIN_MIXER;
        const struct sv_gemm_part part = {.w = k->last[which]};
        sv_op_gemm(k->dev, &(struct sv_p_gemm){.n_rows = k->rig->n_rows,
                                               .k = part.w.cols,
                                               .n_parts = 1,
                                               .x = s->in,
                                               .ldx = WIDE,
                                               .parts = &part,
                                               .y = at(k, k->part, k->round, which),
                                               .ldy = D,
                                               .push = s->pushes ? kind : SV_JOIN_NONE});
        sv_op_add_rms_norm(k->dev,
                           &(struct sv_p_add_rms_norm){.n_rows = k->rig->n_rows,
                                                       .d = D,
                                                       .x = k->x,
                                                       .delta = at(k, k->part, k->round, which),
                                                       .weight = k->weight,
                                                       .eps = 1e-6f,
                                                       .out = at(k, k->out, k->round, which),
                                                       .join = kind});
    }
}

/* Rounds by turns with parts that the norm sends and that the product does; the last two are two
 * graphs, which have run, been made and been replayed then. */
static void *products_main(void *arg)
{
    struct sender *s = arg;
    struct rank *k = s->k;
    k->rc = sv_dev_sync(k->dev, &k->err);
    for (int32_t i = 0; i < ROUNDS + 4 && !k->rc; i++) {
        k->round = i < ROUNDS ? i : ROUNDS - 2 + i % 2;
        s->pushes = i % 2;
        sv_dev_upload(k->dev, k->x, s->x, (size_t)ROWS * D * 2);
        sv_dev_upload(k->dev, at(k, k->out, k->round, 1), s->x, (size_t)ROWS * D * 2);
        if (s->graphs && i >= ROUNDS - 2)
            sv_dev_graph_run(k->dev, 11 + (uint64_t)s->pushes, enqueue_products, s);
        else
            enqueue_products(s);
    }
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

static void run_products(int32_t n, int32_t n_rows, bool spread)
{
    struct sender s[BIG];
    struct rig g;
    rig_open(&g, n, n_rows, true, false, spread, 5000000);
    for (int32_t r = 0; r < n; r++) {
        float *in = floats((size_t)ROWS * WIDE, 50 + (uint64_t)r, true);
        s[r] = (struct sender){.k = &g.rank[r],
                               .in = put_act(&g, g.rank[r].dev, in, (size_t)ROWS * WIDE),
                               .x = act_of(&g, g.x, (size_t)ROWS * D),
                               .graphs = spread};
        free(in);
    }
    for (int32_t r = 0; r < n; r++)
        assert_int_equal(sv_thread_start(&s[r].thread, products_main, &s[r], NULL), SV_OK);
    for (int32_t r = 0; r < n; r++)
        sv_thread_join(s[r].thread);
    for (int32_t r = 0; r < n; r++) {
        struct rank *k = s[r].k, *one = &g.rank[0];
        if (k->rc)
            fail_msg("rank %d: %s", r, k->err.msg);
        read_back(k);
        for (int32_t round = 0; round < ROUNDS; round++)
            for (int32_t which = 0; which < 2; which++)
                if (memcmp(at(k, k->got_out, round, which), at(one, one->got_out, 0, which),
                           (size_t)n_rows * D * 2))
                    fail_msg("%d rows, %s, join %d, round %d of rank %d: other bits", n_rows,
                             packed ? "packed" : "compressed", which, round, r);
        sv_dev_free(k->dev, s[r].in);
        free(s[r].x);
    }
    rig_close(&g);
}

static void products(void **state)
{
    static const int32_t rows[] = {1, 2, 16, 33, 128, ROWS};
    const int32_t most = most_ranks(), gpus = n_gpus();
    (void)state;
    for (int32_t n = 2; n <= most; n++)
        for (size_t i = 0; i < 12; i++) {
            packed = i % 2;
            if (n <= gpus || rows[i / 2] <= 16) /* as in sums, and these need clusters of two */
                run_products(n, rows[i / 2], n <= gpus);
        }
    packed = false;
}

/* ---------------------------------------------------------------- rows that are dealt */

enum { SLOTS = 6 };

/* What is sampled with, and what comes of it: a case of its own, as the other ones have none. */
struct dealt {
    struct rank *k;
    struct sv_thread *thread;
    bool replayed;
    struct sv_sampling *how;      /* device: (SLOTS) */
    struct sv_logit_rules *rules; /* device: (SLOTS) */
    int32_t *slot, *pos, *token;  /* device: (ROWS) */
    struct sv_logprob_row *said;  /* device: (ROWS) */
    int32_t got_token[ROUNDS][ROWS];
    struct sv_logprob_row got_said[ROUNDS][ROWS];
};

static struct dealt *dealt_open(struct rank *k)
{
    struct dealt *d = calloc(1, sizeof *d);
    struct sv_sampling how[SLOTS];
    struct sv_logit_rules rules[SLOTS];
    int32_t slot[ROWS];
    for (int32_t i = 0; i < SLOTS; i++) { /* drawn or the best; of some nothing is said */
        how[i] = (struct sv_sampling){.temperature = i % 3 ? 3 : 0, .top_p = 1, .seed = 9};
        rules[i] = (struct sv_logit_rules){.repetition = 1, .n_top = i % 4 ? 3 * i : -1};
    }
    for (int32_t i = 0; i < ROWS; i++)
        slot[i] = i % SLOTS;
    d->k = k;
    d->how = put(k->dev, how, sizeof how);
    d->rules = put(k->dev, rules, sizeof rules);
    d->slot = put(k->dev, slot, sizeof slot);
    d->pos = put(k->dev, NULL, sizeof slot);
    d->token = put_bytes(k->dev, 0xff, sizeof slot);
    d->said = put_bytes(k->dev, 0xff, ROWS * sizeof *d->said);
    return d;
}

static void dealt_close(struct dealt *d)
{
    void *own[] = {d->how, d->rules, d->slot, d->pos, d->token, d->said};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sv_dev_free(d->k->dev, own[i]);
    free(d);
}

static void enqueue_dealt(void *user)
{
    struct dealt *d = user;
    struct rank *k = d->k;
    const int32_t n = k->rig->n_rows;
    const bool alone = k == &k->rig->alone;
    const struct sv_slice own = sv_dealt_rows(k->dev, n);
    const float *logits = k->logits + (size_t)own.first * VOCAB;
    struct sv_p_gather_logits gather = {
        .n_rows = n, .logits = k->logits, .ld = VOCAB, .deal = true};
    memcpy(gather.first, k->rig->first, sizeof gather.first);
    if (!alone)
        sv_op_gather_logits(k->dev, &gather);
    if (own.n) {
        sv_op_sample(k->dev, &(struct sv_p_sample){.n_rows = own.n,
                                                   .vocab = VOCAB,
                                                   .logits = logits,
                                                   .ld = VOCAB,
                                                   .row_slot = d->slot + own.first,
                                                   .row_pos = d->pos + own.first,
                                                   .slot_sampling = d->how,
                                                   .out = d->token + own.first});
        sv_op_logprobs(k->dev, &(struct sv_p_logprobs){.n_rows = own.n,
                                                       .vocab = VOCAB,
                                                       .logits = logits,
                                                       .ld = VOCAB,
                                                       .row_slot = d->slot + own.first,
                                                       .slot_rules = d->rules,
                                                       .token = d->token + own.first,
                                                       .out = d->said + own.first});
    }
    sv_op_share_rows(k->dev,
                     &(struct sv_p_share_rows){.n_rows = n,
                                               .n_arrays = 2,
                                               .array = {{d->token, sizeof *d->token, 0, 1},
                                                         {d->said, sizeof *d->said, 0, 1}}});
}

static void *dealt_main(void *arg)
{
    struct dealt *d = arg;
    struct rank *k = d->k;
    struct sv_rng g = {(uint64_t)k->rank * 77 + 6};
    int32_t pos[ROWS];
    k->rc = sv_dev_sync(k->dev, &k->err);
    for (int32_t round = 0; round < ROUNDS && !k->rc; round++) {
        for (int32_t i = 0; i < ROWS; i++)
            pos[i] = 20 * i + round;
        if (k->rig->late && sv_rng_below(&g, 3) == 0)
            nap_us(sv_rng_below(&g, 2000));
        sv_dev_upload(k->dev, d->pos, pos, sizeof pos);
        if (d->replayed)
            sv_dev_graph_run(k->dev, 11, enqueue_dealt, d);
        else
            enqueue_dealt(d);
        sv_dev_download(k->dev, d->got_token[round], d->token, sizeof pos);
        sv_dev_download(k->dev, d->got_said[round], d->said, sizeof d->got_said[round]);
        k->rc = sv_dev_sync(k->dev, &k->err);
    }
    return NULL;
}

/* Ranks have the tokens and the log probabilities that one device has, of rows that each alone has
 * whole. */
static void run_dealt(int32_t n, int32_t n_rows, bool late, bool replayed, bool spread)
{
    struct rig g;
    struct dealt *d[BIG], *one;
    rig_open(&g, n, n_rows, false, false, spread, 5000000);
    g.late = late;
    for (int32_t r = 0; r < n; r++) {
        d[r] = dealt_open(&g.rank[r]);
        d[r]->replayed = replayed;
    }
    for (int32_t r = 0; r < n; r++)
        assert_int_equal(sv_thread_start(&d[r]->thread, dealt_main, d[r], NULL), SV_OK);
    for (int32_t r = 0; r < n; r++)
        sv_thread_join(d[r]->thread);
    open_rank(&g, &g.alone, (struct sv_ranks){.n = 1}, true);
    one = dealt_open(&g.alone);
    sv_dev_upload(g.alone.dev, g.alone.logits, g.logits, sizeof(float) * ROWS * VOCAB);
    dealt_main(one);
    assert_int_equal(g.alone.rc, SV_OK);
    for (int32_t r = 0; r < n; r++) {
        if (g.rank[r].rc)
            fail_msg("rank %d: %s", r, g.rank[r].err.msg);
        for (int32_t round = 0; round < ROUNDS; round++) {
            assert_memory_equal(d[r]->got_token[round], one->got_token[round],
                                sizeof one->got_token[round]);
            assert_memory_equal(d[r]->got_said[round], one->got_said[round],
                                sizeof one->got_said[round]);
        }
        dealt_close(d[r]);
    }
    assert_true(n_rows < 7 ||
                memcmp(one->got_token[0], one->got_token[1], sizeof one->got_token[0]));
    dealt_close(one);
    close_rank(&g.alone);
    rig_close(&g);
}

static void dealt_rows(void **state)
{
    static const int32_t rows[] = {1, 7, 0, 40, ROWS};
    const int32_t most = most_ranks(), gpus = n_gpus();
    (void)state;
    for (int32_t n = 2; n <= most; n++)
        for (int32_t form = 0; form < 10; form++) {
            const int32_t n_rows = rows[form / 2];
            const bool replayed = form % 2;
            if (n > gpus && (n_rows > 40 || replayed))
                continue; /* as in sums and graphs */
            run_dealt(n, n_rows, (form + n) % 2, replayed, n <= gpus);
        }
}

/* ---------------------------------------------------------------- waits that end */

/* One rank does not come to its fault_at-th join. */
static void *faulty_main(void *arg)
{
    struct rank *k = arg;
    k->rc = sv_dev_sync(k->dev, &k->err);
    for (int32_t i = 0; i < 2 * ROUNDS && i != k->fault_at; i++)
        norm(k, i % 2 ? SV_JOIN_FFN : SV_JOIN_MIXER, i / 2, i % 2);
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

static void faults(void **state)
{
    const int32_t most = most_ranks(), gpus = n_gpus();
    (void)state;
    for (int32_t n = 2; n <= most; n++) {
        struct rig g;
        rig_open(&g, n, 3, true, n == 4, n <= gpus, 300000);
        g.rank[n - 1].fault_at = 8;
        const int64_t begin = sv_clock_us();
        rig_run(&g, faulty_main);
        assert_true(sv_clock_us() - begin < 5000000);
        assert_int_equal(g.failure.stop, 1);
        for (int32_t r = 0; r < n - 1; r++) {
            const char *said = g.rank[r].err.msg;
            assert_int_equal(g.rank[r].rc, SV_EDEVICE);
            if (!strstr(said, r == g.failure.rank ? "for 300 ms" : "rank"))
                fail_msg("%d ranks: rank %d says '%s', and rank %d failed: %s", n, r, said,
                         g.failure.rank, g.failure.text);
        }
        rig_close(&g);
    }
}

/* A rank whose pass is over, and that has had fewer joins in it, is not waited for. */
static void *passed_main(void *arg)
{
    struct rank *k = arg;
    k->rc = sv_dev_sync(k->dev, &k->err);
    for (int32_t i = 0; i < (k->rank == 1 ? 5 : 6); i++)
        norm(k, i % 2 ? SV_JOIN_FFN : SV_JOIN_MIXER, i / 2, i % 2);
    __atomic_store_n(&k->rig->progress[k->rank].passes_joins,
                     (uint64_t)1 << 32 | sv_dev_n_joins(k->dev), __ATOMIC_RELEASE);
    k->rc |= sv_dev_sync(k->dev, &k->err);
    return NULL;
}

static void passes(void **state)
{
    struct rig g;
    (void)state;
    most_ranks();
    rig_open(&g, 2, 2, false, false, n_gpus() >= 2, 60000000);
    const int64_t begin = sv_clock_us();
    rig_run(&g, passed_main);
    assert_true(sv_clock_us() - begin < 5000000);
    assert_int_equal(g.rank[0].rc, SV_EDEVICE);
    assert_non_null(strstr(g.failure.text, "pass 1 has ended after join "));
    rig_close(&g);
}

/* ---------------------------------------------------------------- several hosts */

/* Parts go through NCCL: on the cards' links, or by sockets where its environment says so. */
static void hosts(void **state)
{
    const int32_t gpus = n_gpus();
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (gpus < 2 || !library) {
        print_message("joins of several hosts NOT checked: %s\n",
                      library ? "fewer than two GPUs" : "no libnccl.so.2");
        skip();
    }
    play_hosts = true;
    run_all(rank_main, most_ranks(), ROUNDS);
    run_all(replay_main, most_ranks(), 1);
    own_rows(state);
    products(state);
    dealt_rows(state);
    faults(state);
    passes(state);
    play_hosts = false;
}

SV_TEST_MAIN(cmocka_unit_test(sums), cmocka_unit_test(graphs), cmocka_unit_test(own_rows),
             cmocka_unit_test(products), cmocka_unit_test(dealt_rows), cmocka_unit_test(faults),
             cmocka_unit_test(passes), cmocka_unit_test(hosts))
