/*
 * test_mla.c - latent attention's own ops on every level of this machine: what is kept of a
 * position and each head's product against double precision, a row's bits alone and among others,
 * and the router of sigmoid scores against its definition. (Attention over latents:
 * test_attention.c.)
 */
#include "backend/ops_mla.h"
#include "backend/rig.h"
#include "testing.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- each head's product */

struct products {
    int32_t n, rows, cols; /* heads, outputs, inputs */
    enum sv_dtype dtype;
};

enum { MAX_HEADS = 8, MOST_ROWS = 300 };

static double rounded(double x, bool bf16)
{
    return bf16 ? (double)sv_bf16_to_f32(sv_f32_to_bf16((float)x)) : x;
}

/* y of n rows from `first` on; numbers between the heads' are NaN and stay so. */
static float *multiply(struct sv_dev *dev, const struct products *p, const struct sv_experts *w,
                       const float *x, int32_t first, int32_t n)
{
    const int32_t xs = p->cols + 3, ys = p->rows + 5;
    const size_t n_y = (size_t)n * (size_t)(p->n * ys);
    float *y = rig_new(n_y * sizeof *y);
    sv_op_head_products(dev, &(struct sv_p_head_products){.n_rows = n,
                                                          .x = x + (int64_t)first * p->n * xs,
                                                          .ldx = p->n * xs,
                                                          .x_stride = xs,
                                                          .w = *w,
                                                          .y = y,
                                                          .ldy = p->n * ys,
                                                          .y_stride = ys});
    rig_sync(dev, SV_OK);
    rig_check(y);
    for (size_t i = 0; i < n_y; i++)
        assert_true(isnan(y[i]) == ((int32_t)(i % (size_t)ys) >= p->rows));
    return y;
}

static void products_on(enum sv_isa isa, int n_threads, enum sv_dtype compute,
                        const struct products *p)
{
    static const int32_t counts[] = {1, 2, 16, 17, 129, MOST_ROWS};
    struct sv_dev *dev = rig_open(isa, n_threads, compute), *one = rig_open(isa, 1, compute);
    struct sv_rng rng = {9};
    struct sv_weight host[MAX_HEADS], own[2][MAX_HEADS];
    const int32_t xs = p->cols + 3, ys = p->rows + 5;
    const bool bf16 = compute == SV_BF16 && p->dtype == SV_BF16;
    struct sv_experts w[2];
    struct sv_err err = {0};
    for (int32_t h = 0; h < p->n; h++)
        host[h] = rig_weight(&rng, p->dtype, p->rows, p->cols, 1 / sqrtf((float)p->cols), 0);
    for (int k = 0; k < 2; k++) {
        w[k] = (struct sv_experts){.n = p->n, .rows = p->rows, .cols = p->cols, .w = own[k]};
        if (sv_dev_upload_experts(k ? one : dev, host, p->n, &w[k], &err))
            fail_msg("%s", err.msg);
    }
    float *x = rig_floats(&rng, (size_t)MOST_ROWS * (size_t)(p->n * xs), 1);
    float *all = multiply(dev, p, &w[0], x, 0, MOST_ROWS);
    for (int32_t r = 0; r < MOST_ROWS; r += 23)
        for (int32_t h = 0; h < p->n; h++)
            for (int32_t o = 0; o < p->rows; o++) {
                double want = 0;
                for (int32_t i = 0; i < p->cols; i++)
                    want += rig_weight_at(&host[h], (int64_t)o * p->cols + i) *
                            rounded((double)x[(r * p->n + h) * xs + i], bf16);
                rig_near((double)all[(r * p->n + h) * ys + o], want, 2e-5, "product", o);
            }
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        const int32_t n = counts[c], first = n == MOST_ROWS ? 0 : 31 * (int32_t)c;
        float *some = multiply(c % 2 ? one : dev, p, &w[c % 2], x, first, n);
        assert_memory_equal(some, all + (size_t)(first * p->n * ys),
                            (size_t)(n * p->n * ys) * sizeof *some);
        rig_free(some);
    }
    rig_free(all), rig_free(x);
    for (int k = 0; k < 2; k++)
        sv_dev_free_experts(k ? one : dev, &w[k]);
    for (int32_t h = 0; h < p->n; h++)
        rig_free((void *)(uintptr_t)host[h].data);
    sv_dev_close(dev), sv_dev_close(one);
}

static void head_products(void **state)
{
    (void)state;
    static const struct products cases[] = {{5, 40, 24, SV_BF16}, {3, 16, 48, SV_F32},
                                            {1, 33, 7, SV_BF16},  {8, 64, 32, SV_BF16},
                                            {2, 9, 40, SV_F16},   {4, 96, 128, SV_BF16}};
    int n_isas;
    const enum sv_isa *isas = rig_isas(&n_isas);
    for (int i = 0; i < n_isas; i++)
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++)
            for (int bf16 = 0; bf16 < 2; bf16++)
                products_on(isas[i], 1 + (int)(k + (size_t)bf16) % 4, bf16 ? SV_BF16 : SV_F32,
                            &cases[k]);
}

/* Matrices in fewer bits, where the machine has them, give the same bits. */
static void compressed_heads(void **state)
{
    (void)state;
    enum { N = 3, OUT = 96, IN = 128, ROWS = 20 };
    const struct products p = {N, OUT, IN, SV_BF16};
    struct sv_rng rng = {5};
    struct sv_weight host[N], own[N];
    float *x = rig_floats(&rng, ROWS * N * (IN + 3), 1), *y[2];
    for (int h = 0; h < N; h++)
        host[h] = rig_weight(&rng, SV_BF16, OUT, IN, 0.1f, 0);
    for (int k = 0; k < 2; k++) {
        struct sv_experts w = {.n = N, .rows = OUT, .cols = IN, .w = own};
        struct sv_dev *dev = NULL;
        struct sv_err err = {0};
        const struct sv_dev_opts o = {.backend = "cpu",
                                      .n_threads = 2,
                                      .compute = SV_BF16,
                                      .tuning.compress_weights = k ? SV_TOGGLE_ON : SV_TOGGLE_OFF};
        const struct sv_dev_limits lim = rig_limits(256, 256);
        if (sv_dev_open(&dev, &o, &err) || sv_dev_reserve(dev, &lim, &err) ||
            sv_dev_upload_experts(dev, host, N, &w, &err))
            fail_msg("%s", err.msg);
        if (strstr(sv_dev_describe(dev), "compressed"))
            assert_true(sv_dev_weight_bytes(dev, &own[0], 1) < 2 * OUT * IN);
        y[k] = multiply(dev, &p, &w, x, 0, ROWS);
        sv_dev_free_experts(dev, &w);
        sv_dev_close(dev);
    }
    assert_memory_equal(y[0], y[1], ROWS * N * (OUT + 5) * sizeof *x);
    rig_free(x), rig_free(y[0]), rig_free(y[1]);
    for (int h = 0; h < N; h++)
        rig_free((void *)(uintptr_t)host[h].data);
}

/* ---------------------------------------------------------------- what is kept of a position */

enum { HEADS = 3, NOPE = 24, ROT = 16, LATENT = 40, WIDTH = LATENT + ROT, HEAD = NOPE + ROT };
enum { POSITIONS = 60 };

/* x rotated as transformers does it: into halves, whatever is paired. */
static void rotate(double out[ROT], const float *x, const float *cos, const float *sin,
                   bool interleaved)
{
    for (int i = 0; i < ROT / 2; i++) {
        const double a = (double)(interleaved ? x[2 * i] : x[i]);
        const double b = (double)(interleaved ? x[2 * i + 1] : x[ROT / 2 + i]);
        out[i] = a * (double)cos[i] - b * (double)sin[i];
        out[ROT / 2 + i] = b * (double)cos[i] + a * (double)sin[i];
    }
}

static void check_kept(const struct rig_kv *cache, int32_t slot, int32_t pos, const float *kv,
                       const struct sv_weight *norm, const double *key)
{
    const int64_t at = rig_kv_at(cache, slot, pos, 0);
    const double tol = cache->kv.dtype == SV_BF16 ? 5e-3 : 1e-5;
    double sum = 0;
    for (int i = 0; i < LATENT; i++)
        sum += (double)kv[i] * (double)kv[i];
    const double f = 1 / sqrt(sum / LATENT + 1e-5);
    for (int i = 0; i < WIDTH; i++)
        rig_near(rig_kv_get(cache, cache->kv.k, at + i),
                 i < LATENT ? (double)kv[i] * f * rig_weight_at(norm, i) : key[i - LATENT], tol,
                 "kept", i);
}

static void write_on(struct sv_dev *dev)
{
    for (int k = 0; k < 4; k++) {
        const bool interleaved = k % 2;
        struct sv_rng rng = {3};
        struct rig_kv cache;
        struct rig_batch b;
        static const int32_t slots[] = {1, 0, 2}, bases[] = {30, 0, 7}, lens[] = {1, 9, 20};
        rig_kv_init(&cache, &rng, k / 2 ? SV_BF16 : SV_F32, 3, POSITIONS, k == 1 ? 1 : 16, 1,
                    WIDTH);
        void *spare = cache.kv.v;
        cache.kv.v = NULL;
        rig_batch_init(&b);
        for (int i = 0; i < 3; i++)
            rig_batch_add(&b, slots[i], bases[i], lens[i]);
        const size_t n = (size_t)b.rows.n_rows;
        struct sv_weight norm = rig_weight(&rng, SV_BF16, 1, LATENT, 0.2f, 1);
        float *kv = rig_floats(&rng, n * WIDTH, 1), *q = rig_floats(&rng, n * HEADS * HEAD, 1);
        float *cos = rig_floats(&rng, POSITIONS * ROT / 2, 1),
              *sin = rig_floats(&rng, POSITIONS * ROT / 2, 1);
        float *absorbed = rig_new(n * HEADS * WIDTH * sizeof *absorbed);
        sv_op_mla_write(dev, &(struct sv_p_mla_write){.rows = b.rows,
                                                      .kv = kv,
                                                      .norm = norm,
                                                      .eps = 1e-5f,
                                                      .rope = {cos, sin, POSITIONS, ROT},
                                                      .interleaved = interleaved,
                                                      .n_heads = HEADS,
                                                      .head_dim = HEAD,
                                                      .q = q,
                                                      .absorbed = absorbed,
                                                      .cache = cache.kv});
        rig_sync(dev, SV_OK);
        rig_check(absorbed), rig_check(cache.kv.k);
        for (size_t r = 0; r < n; r++) {
            const int32_t pos = rig_pos(&b, (int32_t)r), slot = b.seg_slot[b.row_seg[r]];
            const float *c = cos + pos * ROT / 2, *s = sin + pos * ROT / 2;
            double want[ROT];
            for (int h = 0; h < HEADS; h++) {
                const float *got = absorbed + (r * HEADS + (size_t)h) * WIDTH;
                rotate(want, q + (r * HEADS + (size_t)h) * HEAD + NOPE, c, s, interleaved);
                for (int i = 0; i < WIDTH; i++)
                    if (i < LATENT)
                        assert_true(isnan(got[i])); /* the products' */
                    else
                        rig_near((double)got[i], want[i - LATENT], 1e-5, "query", i);
            }
            rotate(want, kv + r * WIDTH + LATENT, c, s, interleaved);
            check_kept(&cache, slot, pos, kv + r * WIDTH, &norm, want);
        }
        for (int slot = 0; slot < 3; slot++) /* and no position more */
            for (int32_t pos = 0; pos < POSITIONS; pos++) {
                bool written = false;
                for (int i = 0; i < 3; i++)
                    written |= slots[i] == slot && pos >= bases[i] && pos < bases[i] + lens[i];
                for (int i = 0; i < WIDTH && !written; i++)
                    assert_true(
                        isnan(rig_kv_get(&cache, cache.kv.k, rig_kv_at(&cache, slot, pos, 0) + i)));
            }
        float *all[] = {kv, q, cos, sin, absorbed};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
            rig_free(all[i]);
        rig_free((void *)(uintptr_t)norm.data);
        cache.kv.v = spare;
        rig_kv_fini(&cache);
    }
}

static void write(void **state)
{
    (void)state;
    rig_each(write_on);
}

/* ---------------------------------------------------------------- sigmoid scores in groups */

struct router {
    int32_t n_experts, k, n_group, topk_group;
    bool renorm, bias;
};

/* The best of n by x among those that may be taken, which it is then no longer; ties: the first. */
static int32_t best_of(const double *x, bool *may, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (may[i] && (best < 0 || x[i] > x[best]))
            best = i;
    may[best] = false;
    return best;
}

static void expect_routes(const struct router *r, const float *logit, const float *bias,
                          int32_t *id, double *weight)
{
    double score[64], choice[64], group[32], sum = 0;
    bool may[64] = {false}, of_group[32];
    const int32_t size = r->n_experts / r->n_group;
    for (int32_t e = 0; e < r->n_experts; e++) {
        score[e] = 1 / (1 + exp(-(double)logit[e]));
        choice[e] = score[e] + (r->bias ? (double)bias[e] : 0);
    }
    for (int32_t g = 0; g < r->n_group; g++) {
        bool any[64];
        memset(any, true, sizeof any);
        group[g] = choice[g * size + best_of(choice + g * size, any, size)];
        group[g] += choice[g * size + best_of(choice + g * size, any, size)];
        of_group[g] = true;
    }
    for (int32_t i = 0; i < r->topk_group; i++) {
        const int32_t g = best_of(group, of_group, r->n_group);
        memset(may + g * size, true, (size_t)size * sizeof *may);
    }
    for (int32_t j = 0; j < r->k; j++) {
        id[j] = best_of(choice, may, r->n_experts);
        sum += score[id[j]];
    }
    for (int32_t j = 0; j < r->k; j++)
        weight[j] = score[id[j]] / (r->renorm ? sum : 1) * 2.5;
}

/* A matrix of ones on the diagonal: a row's first numbers are its logits. */
static void route_on(struct sv_dev *dev)
{
    static const struct router cases[] = {{12, 3, 4, 2, true, true},   {8, 2, 1, 1, true, true},
                                          {16, 6, 8, 3, false, true},  {6, 4, 3, 2, true, false},
                                          {10, 3, 5, 5, false, false}, {64, 8, 8, 4, true, true}};
    enum { N = 64, ROWS = 40 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const struct router *t = &cases[c];
        struct sv_rng rng = {c + 1};
        struct rig_batch b;
        rig_batch_init(&b);
        rig_batch_add(&b, 0, 0, ROWS);
        float *w = rig_new(N * N * sizeof *w), *x = rig_new(ROWS * N * sizeof *x);
        float *bias = rig_floats(&rng, N, 0.3f);
        for (int i = 0; i < N * N; i++)
            w[i] = i / N == i % N;
        for (int i = 0; i < ROWS * N; i++) /* many are equal */
            x[i] = (float)(c % 2 ? (int)sv_rng_below(&rng, 5) - 2 : (int)sv_rng_below(&rng, 999)) /
                       (c % 2 ? 2 : 200) -
                   2;
        for (int i = 0; i < N && c % 2; i++)
            bias[i] = (float)(i / (t->n_experts / t->n_group) % 2) / 4;
        struct sv_routes r = {.n_rows = ROWS, .n_experts = t->n_experts, .k = t->k};
        void *tables = rig_new(sv_routes_lay_out(&r, NULL) + 256);
        sv_routes_lay_out(&r, (void *)(((uintptr_t)tables + 255) / 256 * 256));
        const struct sv_weight router = {
            .fmt.elem = SV_F32, .rows = t->n_experts, .cols = N, .data = w};
        const struct sv_weight extra = {
            .fmt.elem = SV_F32, .rows = 1, .cols = t->n_experts, .data = bias};
        sv_op_router_topk(dev, &(struct sv_p_router_topk){
                                   .rows = b.rows,
                                   .x = x,
                                   .w = router,
                                   .norm = SV_ROUTER_SIGMOID,
                                   .sigmoid = {.bias = t->bias ? extra : (struct sv_weight){0},
                                               .n_group = t->n_group,
                                               .topk_group = t->topk_group,
                                               .renorm = t->renorm,
                                               .scale = 2.5f},
                                   .routes = r});
        rig_sync(dev, SV_OK);
        rig_check(tables);
        for (int32_t row = 0; row < ROWS; row++) {
            int32_t id[SV_MAX_CHOSEN];
            double weight[SV_MAX_CHOSEN];
            expect_routes(t, x + row * N, bias, id, weight);
            assert_memory_equal(r.expert + row * t->k, id, (size_t)t->k * sizeof *id);
            for (int32_t j = 0; j < t->k; j++)
                rig_near((double)r.weight[row * t->k + j], weight[j], 1e-6, "weight", j);
        }
        rig_free(tables), rig_free(w), rig_free(x), rig_free(bias);
    }
}

static void routes(void **state)
{
    (void)state;
    rig_each(route_on);
}

/* A score that is no number loses to all that are. */
static void routes_of_nan(void **state)
{
    (void)state;
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 1, SV_F32);
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, 1);
    const float w[16] = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1},
                x[4] = {-3, -9, 200, -200};
    const float bias[4] = {NAN, 0, 0, -INFINITY};
    struct sv_routes r = {.n_rows = 1, .n_experts = 4, .k = 3};
    void *tables = rig_new(sv_routes_lay_out(&r, NULL) + 256);
    sv_routes_lay_out(&r, (void *)(((uintptr_t)tables + 255) / 256 * 256));
    sv_op_router_topk(
        dev, &(struct sv_p_router_topk){
                 .rows = b.rows,
                 .x = x,
                 .w = {.fmt.elem = SV_F32, .rows = 4, .cols = 4, .data = w},
                 .norm = SV_ROUTER_SIGMOID,
                 .sigmoid = {.bias = {.fmt.elem = SV_F32, .rows = 1, .cols = 4, .data = bias},
                             .n_group = 1,
                             .topk_group = 1,
                             .scale = 1},
                 .routes = r});
    static const int32_t want[] = {2, 1, 3};
    assert_memory_equal(r.expert, want, sizeof want);
    assert_true(r.weight[0] == 1);
    assert_true(r.weight[2] >= 0 && r.weight[2] < 1e-30f);
    rig_free(tables);
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(head_products), cmocka_unit_test(compressed_heads),
             cmocka_unit_test(write), cmocka_unit_test(routes), cmocka_unit_test(routes_of_nan))
