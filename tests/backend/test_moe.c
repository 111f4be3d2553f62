/*
 * test_moe.c - mixture of experts on every device of this machine: the router's choice with ties
 * and padding, the ops against double precision, guard bytes, and a row's bits alone and among 511
 * others that share all, some or none of its experts.
 *
 * timeout: 240
 *
 * The router's matrix is a multiple of the unit matrix, so that the first numbers of a row of input
 * are its logits and a test says which experts a row chooses. Levels the machine lacks are left
 * out.
 */
#include "testing.h"

#include "backend/ops_moe.h"
#include "backend/rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, MAX_ROWS = 512 };

/* ---------------------------------------------------------------- device memory */

/* n_bytes of device memory between guards; all of it is set to 0xff: NaN, or -1. */
struct mem {
    char *base;
    size_t n_bytes;
};

static struct mem mem_new(struct sv_dev *dev, size_t n_bytes)
{
    struct mem m = {.n_bytes = (n_bytes + GUARD - 1) / GUARD * GUARD};
    struct sv_err err = {0};
    if (sv_dev_alloc(dev, (void **)&m.base, m.n_bytes + 2 * GUARD, &err))
        fail_msg("%s", err.msg);
    void *fill = malloc(m.n_bytes + 2 * GUARD);
    memset(fill, 0xff, m.n_bytes + 2 * GUARD);
    sv_dev_upload(dev, m.base, fill, m.n_bytes + 2 * GUARD);
    assert_int_equal(sv_dev_sync(dev, NULL), SV_OK);
    free(fill);
    return m;
}

static void *at(const struct mem *m)
{
    return m->base + GUARD;
}

static void *fetch(struct sv_dev *dev, const void *from, size_t n_bytes)
{
    void *to = malloc(n_bytes + 1);
    sv_dev_download(dev, to, from, n_bytes);
    assert_int_equal(sv_dev_sync(dev, NULL), SV_OK);
    return to;
}

static void mem_free(struct sv_dev *dev, struct mem *m)
{
    uint8_t *all = fetch(dev, m->base, m->n_bytes + 2 * GUARD);
    for (size_t i = 0; i < GUARD; i++)
        if (all[i] != 0xff || all[GUARD + m->n_bytes + i] != 0xff)
            fail_msg("guard byte %zu was written", i);
    free(all);
    sv_dev_free(dev, m->base);
}

/* n act values of f. */
static void put_act(struct sv_dev *dev, void *to, const float *f, size_t n)
{
    if (sv_dev_act_dtype(dev) == SV_F32) {
        sv_dev_upload(dev, to, f, n * sizeof *f);
    } else {
        uint16_t *half = malloc(n * sizeof *half);
        for (size_t i = 0; i < n; i++)
            half[i] = sv_f32_to_bf16(f[i]);
        sv_dev_upload(dev, to, half, n * sizeof *half);
        assert_int_equal(sv_dev_sync(dev, NULL), SV_OK);
        free(half);
    }
    assert_int_equal(sv_dev_sync(dev, NULL), SV_OK);
}

static double act_at(struct sv_dev *dev, const void *bytes, size_t i)
{
    return sv_dev_act_dtype(dev) == SV_F32 ? (double)((const float *)bytes)[i]
                                           : (double)sv_bf16_to_f32(((const uint16_t *)bytes)[i]);
}

/* ---------------------------------------------------------------- a layer of experts */

struct shape {
    int32_t hidden, inner, n_experts, k;
    enum sv_dtype dtype;
    bool bias;
    enum sv_expert_act act;
    enum sv_router_norm norm;
};

#define LOGIT_SCALE 4

struct layer {
    struct shape s;
    struct sv_dev *dev;
    struct sv_weight host[3][64], host_bias[3]; /* gate, up, down; row-major */
    struct sv_weight host_router, host_router_bias, router, router_bias;
    struct sv_experts x[3];
    float *input; /* (MAX_ROWS, hidden) */
    struct mem in, routes, act, sums, out, counter;
};

static struct sv_weight upload(struct sv_dev *dev, const struct sv_weight *host)
{
    struct sv_weight w;
    struct sv_err err = {0};
    if (sv_dev_upload_weight(dev, host, &w, &err))
        fail_msg("%s", err.msg);
    return w;
}

static void open_experts(struct layer *l, struct sv_rng *rng, int i)
{
    const struct shape *s = &l->s;
    const int32_t rows = i == 2 ? s->hidden : s->inner, cols = i == 2 ? s->inner : s->hidden;
    struct sv_experts *x = &l->x[i];
    struct sv_err err = {0};
    *x = (struct sv_experts){.n = s->n_experts, .rows = rows, .cols = cols};
    x->w = calloc((size_t)x->n, sizeof *x->w);
    for (int32_t e = 0; e < x->n; e++) {
        l->host[i][e] = rig_weight(rng, s->dtype, rows, cols, 1.5f / sqrtf((float)cols), 0);
        l->host[i][e].role = (enum sv_role)(SV_ROLE_EXPERT_GATE + i);
    }
    if (sv_dev_upload_experts(l->dev, l->host[i], x->n, x, &err))
        fail_msg("%s", err.msg);
    l->host_bias[i] = rig_weight(rng, SV_BF16, 1, x->n * rows, 0.5f, 0);
    if (s->bias)
        x->bias = upload(l->dev, &l->host_bias[i]);
}

static struct sv_weight unit_matrix(const struct shape *s)
{
    const size_t n = (size_t)s->n_experts * (size_t)s->hidden;
    uint16_t *w = rig_new(n * sizeof *w);
    memset(w, 0, n * sizeof *w);
    for (int32_t e = 0; e < s->n_experts; e++)
        w[(size_t)e * (size_t)s->hidden + (size_t)e] = sv_f32_to_bf16(LOGIT_SCALE);
    return (struct sv_weight){.role = SV_ROLE_ROUTER,
                              .fmt.elem = SV_BF16,
                              .rows = s->n_experts,
                              .cols = s->hidden,
                              .data = w};
}

static size_t act_bytes(const struct layer *l, int64_t n)
{
    return (size_t)n * sv_dtype_bytes(sv_dev_act_dtype(l->dev));
}

static void layer_open(struct layer *l, struct sv_dev *dev, const struct shape *s)
{
    struct sv_rng rng = {77};
    const int64_t entries = (int64_t)MAX_ROWS * s->k;
    struct sv_routes r = {.n_rows = MAX_ROWS, .n_experts = s->n_experts, .k = s->k};
    memset(l, 0, sizeof *l);
    l->dev = dev;
    l->s = *s;
    for (int i = 0; i < 3; i++)
        open_experts(l, &rng, i);
    l->host_router = unit_matrix(s);
    l->router = upload(dev, &l->host_router);
    l->host_router_bias = rig_weight(&rng, SV_F32, 1, s->n_experts, 0.25f, 0);
    if (s->bias)
        l->router_bias = upload(dev, &l->host_router_bias);
    l->input = calloc((size_t)MAX_ROWS * (size_t)s->hidden, sizeof *l->input);
    for (size_t i = 0; i < (size_t)MAX_ROWS * (size_t)s->hidden; i++)
        l->input[i] = sv_bf16_to_f32(sv_f32_to_bf16(sv_rng_normal(&rng)));
    l->in = mem_new(dev, act_bytes(l, (int64_t)MAX_ROWS * s->hidden));
    l->routes = mem_new(dev, sv_routes_lay_out(&r, NULL));
    l->act = mem_new(dev, act_bytes(l, entries * s->inner));
    l->sums = mem_new(dev, (size_t)(entries * s->hidden) * sizeof(float));
    l->out = mem_new(dev, act_bytes(l, (int64_t)MAX_ROWS * s->hidden));
    l->counter = mem_new(dev, sizeof(uint32_t));
}

static void layer_close(struct layer *l)
{
    for (int i = 0; i < 3; i++) {
        sv_dev_free_experts(l->dev, &l->x[i]);
        sv_dev_free_weight(l->dev, &l->x[i].bias);
        free(l->x[i].w);
        for (int32_t e = 0; e < l->s.n_experts; e++)
            rig_free((void *)(uintptr_t)l->host[i][e].data);
        rig_free((void *)(uintptr_t)l->host_bias[i].data);
    }
    sv_dev_free_weight(l->dev, &l->router), sv_dev_free_weight(l->dev, &l->router_bias);
    rig_free((void *)(uintptr_t)l->host_router.data);
    rig_free((void *)(uintptr_t)l->host_router_bias.data);
    free(l->input);
    struct mem *all[] = {&l->in, &l->routes, &l->act, &l->sums, &l->out, &l->counter};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        mem_free(l->dev, all[i]);
}

/* Row r of the input chooses these k experts, in an order of its own. */
static void choose(struct layer *l, int32_t r, const int32_t *expert, struct sv_rng *rng)
{
    float *x = l->input + (int64_t)r * l->s.hidden;
    for (int32_t e = 0; e < l->s.n_experts; e++)
        x[e] = -1 - (float)sv_rng_below(rng, 64) / 64;
    for (int32_t j = 0; j < l->s.k; j++)
        x[expert[j]] = (float)sv_rng_below(rng, 128) / 64;
}

/* What a run leaves, fetched. */
struct result {
    struct sv_routes r; /* host copies of its tables, in bytes */
    char *tables;
    void *out;
    uint32_t n_chosen;
};

/* Rows row[0 .. n) of the input, then n_pad of padding, through all four ops. */
static struct result run(struct layer *l, const int32_t *row, int32_t n, int32_t n_pad)
{
    const struct shape *s = &l->s;
    const int32_t all = n + n_pad;
    const size_t h = (size_t)s->hidden;
    struct sv_routes r = {.n_rows = all, .n_experts = s->n_experts, .k = s->k};
    struct mem seg = mem_new(l->dev, (size_t)all * 4), some = mem_new(l->dev, 16);
    int32_t *seg_of = calloc((size_t)all, 4);
    float *x = calloc((size_t)all * h, sizeof *x);
    const uint32_t before = UINT32_MAX - 1;
    for (int32_t i = 0; i < all; i++) {
        seg_of[i] = i < n ? 0 : -1;
        memcpy(x + (size_t)i * h, l->input + (size_t)(i < n ? row[i] : 0) * h, h * sizeof *x);
    }
    put_act(l->dev, at(&l->in), x, (size_t)all * h);
    sv_dev_upload(l->dev, at(&seg), seg_of, (size_t)all * 4);
    sv_dev_upload(l->dev, at(&l->counter), &before, sizeof before);
    const size_t n_bytes = sv_routes_lay_out(&r, at(&l->routes));
    sv_op_router_topk(l->dev, &(struct sv_p_router_topk){.rows = {.n_rows = all,
                                                                  .n_segs = 1,
                                                                  .row_seg = at(&seg),
                                                                  .seg_row0 = at(&some),
                                                                  .seg_slot = at(&some),
                                                                  .row_pos = at(&seg)},
                                                         .x = at(&l->in),
                                                         .w = l->router,
                                                         .bias = l->router_bias,
                                                         .norm = s->norm,
                                                         .routes = r,
                                                         .n_chosen = at(&l->counter)});
    sv_op_moe_gate_up(l->dev, &(struct sv_p_moe_gate_up){.x = at(&l->in),
                                                         .gate = l->x[0],
                                                         .up = l->x[1],
                                                         .act = s->act,
                                                         .limit = 1.25f,
                                                         .alpha = 1.702f,
                                                         .routes = r,
                                                         .out = at(&l->act)});
    sv_op_moe_down(
        l->dev, &(struct sv_p_moe_down){
                    .x = at(&l->act),
                    .down = l->x[2],
                    .routes = r,
                    .out = at(&l->sums),
                    .then = &(struct sv_p_moe_combine){
                        .hidden = s->hidden, .x = at(&l->sums), .routes = r, .out = at(&l->out)}});
    struct result k = {.tables = fetch(l->dev, at(&l->routes), n_bytes),
                       .out = fetch(l->dev, at(&l->out), act_bytes(l, all * (int64_t)h)),
                       .r = {.n_rows = all, .n_experts = s->n_experts, .k = s->k}};
    sv_routes_lay_out(&k.r, k.tables);
    uint32_t *count = fetch(l->dev, at(&l->counter), sizeof *count);
    k.n_chosen = *count - before;
    free(count), free(seg_of), free(x);
    mem_free(l->dev, &seg), mem_free(l->dev, &some);
    return k;
}

static void result_free(struct result *k)
{
    free(k->tables);
    free(k->out);
}

/* ---------------------------------------------------------------- what must hold */

/* The tables by expert say what the choices say. */
static void check_tables(const struct result *k, int32_t n)
{
    const struct sv_routes *r = &k->r;
    int32_t active = 0;
    assert_int_equal(r->first[0], 0);
    assert_int_equal(r->first[r->n_experts], n * r->k);
    for (int32_t e = 0; e < r->n_experts; e++) {
        for (int32_t i = r->first[e]; i < r->first[e + 1]; i++) {
            assert_int_equal(r->expert[r->list[i]], e);
            assert_int_equal(r->place[r->list[i]], i);
            assert_true(i == r->first[e] || r->list[i] > r->list[i - 1]);
        }
        if (r->first[e + 1] > r->first[e])
            assert_int_equal(r->active[active++], e);
    }
    assert_int_equal(*r->n_active, active);
    assert_int_equal(k->n_chosen, active);
    for (int32_t i = n * r->k; i < r->n_rows * r->k; i++) {
        assert_int_equal(r->expert[i], -1);
        assert_int_equal(r->place[i], -1);
    }
}

static double rounded(const struct layer *l, double v)
{
    const bool bf16 = sv_dev_act_dtype(l->dev) == SV_BF16 ||
                      (sv_dev_compute_dtype(l->dev) == SV_BF16 && l->s.dtype == SV_BF16);
    return bf16 ? (double)sv_bf16_to_f32(sv_f32_to_bf16((float)v)) : v;
}

static double dot(const struct sv_weight *w, int32_t row, const double *x)
{
    double sum = 0;
    for (int32_t i = 0; i < w->cols; i++)
        sum += rig_weight_at(w, (int64_t)row * w->cols + i) * x[i];
    return sum;
}

/* Adds weight times expert e's answer to x (hidden). */
static void add_expert(const struct layer *l, int32_t e, double weight, const double *x, double *y)
{
    const struct shape *s = &l->s;
    const double limit = 1.25, alpha = 1.702f;
    double *h = calloc((size_t)s->inner, sizeof *h);
    for (int32_t i = 0; i < s->inner; i++) {
        const int64_t b = (int64_t)e * s->inner + i;
        double g = dot(&l->host[0][e], i, x), u = dot(&l->host[1][e], i, x);
        g += s->bias ? rig_weight_at(&l->host_bias[0], b) : 0;
        u += s->bias ? rig_weight_at(&l->host_bias[1], b) : 0;
        if (s->act == SV_EXPERT_CLAMPED) {
            g = fmin(g, limit);
            u = fmax(fmin(u, limit), -limit);
            h[i] = (u + 1) * g / (1 + exp(-alpha * g));
        } else {
            h[i] = u * g / (1 + exp(-g));
        }
        h[i] = rounded(l, h[i]);
    }
    for (int32_t i = 0; i < s->hidden; i++) {
        const int64_t b = (int64_t)e * s->hidden + i;
        const double bias = s->bias ? rig_weight_at(&l->host_bias[2], b) : 0;
        y[i] += weight * (dot(&l->host[2][e], i, h) + bias);
    }
    free(h);
}

/* Row i of the result, which is this row of the input, against double precision. */
static void check_row(const struct layer *l, const struct result *k, int32_t i, int32_t row)
{
    const struct shape *s = &l->s;
    double *x = calloc((size_t)s->hidden, sizeof *x), *y = calloc((size_t)s->hidden, sizeof *y);
    double *z = calloc((size_t)s->n_experts, sizeof *z), sum = 0, error = 0, norm = 0;
    const int32_t *expert = k->r.expert + (int64_t)i * s->k;
    for (int32_t d = 0; d < s->hidden; d++)
        x[d] = (double)l->input[(int64_t)row * s->hidden + d];
    for (int32_t e = 0; e < s->n_experts; e++)
        z[e] = dot(&l->host_router, e, x) + (s->bias ? rig_weight_at(&l->host_router_bias, e) : 0);
    for (int32_t j = 1; j < s->k; j++)
        assert_true(z[expert[j - 1]] > z[expert[j]] - 1e-5);
    for (int32_t e = 0; e < s->n_experts; e++) {
        bool chosen = false;
        for (int32_t j = 0; j < s->k; j++)
            chosen |= expert[j] == e;
        assert_true(chosen || z[e] < z[expert[s->k - 1]] + 1e-5);
        if (chosen || s->norm == SV_ROUTER_OVER_ALL)
            sum += exp(z[e]);
    }
    for (int32_t j = 0; j < s->k; j++) {
        const double weight = exp(z[expert[j]]) / sum;
        const double got = (double)k->r.weight[(int64_t)i * s->k + j];
        assert_true(fabs(got - weight) < 2e-6);
        add_expert(l, expert[j], weight, x, y);
    }
    for (int32_t d = 0; d < s->hidden; d++) {
        const double got = act_at(l->dev, k->out, (size_t)i * (size_t)s->hidden + (size_t)d);
        error += (got - y[d]) * (got - y[d]);
        norm += y[d] * y[d];
    }
    const double most = rounded(l, 1 + 1e-3) != 1 + 1e-3 ? 4e-3 : 4e-6;
    if (!(sqrt(error) <= most * sqrt(norm)))
        fail_msg("row %d: relative error %.3g", row, sqrt(error / norm));
    free(x), free(y), free(z);
}

/* ---------------------------------------------------------------- cases */

/* Rows that choose at random, every kind of shape, with padding and without. */
static void against_double(struct sv_dev *dev, const struct shape *s)
{
    static const int32_t counts[] = {1, 2, 5, 17, 40};
    struct layer l;
    struct sv_rng rng = {5};
    layer_open(&l, dev, s);
    int32_t row[40];
    for (int c = 0; c < 5; c++) {
        for (int32_t i = 0; i < counts[c]; i++)
            row[i] = (int32_t)sv_rng_below(&rng, MAX_ROWS);
        struct result k = run(&l, row, counts[c], c % 2 ? 3 : 0);
        check_tables(&k, counts[c]);
        for (int32_t i = 0; i < counts[c]; i += 1 + i / 4)
            check_row(&l, &k, i, row[i]);
        for (int32_t i = counts[c] * s->hidden; i < k.r.n_rows * s->hidden; i++)
            assert_true(act_at(dev, k.out, (size_t)i) == 0);
        result_free(&k);
    }
    layer_close(&l);
}

/* A row has the bits that it has alone. */
static void same_as_alone(struct layer *l, const struct result *k, int32_t i, int32_t row)
{
    const size_t width = act_bytes(l, l->s.hidden), n = (size_t)l->s.k;
    struct result one = run(l, &row, 1, 0);
    assert_memory_equal(one.r.expert, k->r.expert + (size_t)i * n, n * 4);
    assert_memory_equal(one.r.weight, k->r.weight + (size_t)i * n, n * 4);
    if (memcmp(one.out, (char *)k->out + (size_t)i * width, width))
        fail_msg("row %d, place %d of %d, has other bits than alone", row, i, k->r.n_rows);
    result_free(&one);
}

/* Row 0 among others, of which a third share all of its experts, a third one, and a third none. */
static void in_company(struct sv_dev *dev, const struct shape *s)
{
    static const int32_t counts[] = {2, 7, 31, 129, MAX_ROWS};
    struct layer l;
    struct sv_rng rng = {6};
    int32_t own[SV_MAX_CHOSEN], other[SV_MAX_CHOSEN], row[MAX_ROWS];
    layer_open(&l, dev, s);
    assert_true(s->n_experts >= 3 * s->k);
    for (int32_t j = 0; j < s->k; j++)
        own[j] = 2 * j;
    for (int32_t r = 0; r < MAX_ROWS; r++) {
        for (int32_t j = 0; j < s->k; j++)
            other[j] = j < s->k / 2 ? 2 * j + 1 : 2 * s->k + j;
        if (r % 3 == 1)
            other[0] = own[r / 3 % s->k];
        choose(&l, r, r % 3 == 0 ? own : other, &rng);
    }
    for (int c = 0; c < 5; c++) {
        const int32_t n = counts[c];
        const int32_t where[] = {0, n / 2, n - 1};
        for (int w = 0; w < 3; w++) {
            for (int32_t i = 0; i < n; i++)
                row[i] = i == where[w] ? 0 : i + 1 < MAX_ROWS ? i + 1 : 1;
            struct result k = run(&l, row, n, w == 2 && n < MAX_ROWS ? 1 : 0);
            check_tables(&k, n);
            same_as_alone(&l, &k, where[w], 0);
            for (int32_t i = 0; i < n && !w; i += 1 + n / 11)
                same_as_alone(&l, &k, i, row[i]);
            result_free(&k);
        }
    }
    layer_close(&l);
}

/* Equal logits: the lowest ids, also at the last place that is chosen. */
static void ties(struct sv_dev *dev)
{
    const struct shape s = {.hidden = 48, .inner = 16, .n_experts = 12, .k = 4, .dtype = SV_BF16};
    static const float logits[][12] = {
        {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
        {1, 2, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1},
        {-1, -1, 3, -1, -1, 3, -1, 3, -1, -1, 3, 3},
        {0, -0.0f, 0, -0.0f, 5, -1, -1, -1, -1, -1, -1, 5},
        {NAN, 1, NAN, 1, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 2},
    };
    static const int32_t want[][4] = {
        {0, 1, 2, 3}, {1, 3, 0, 2}, {2, 5, 7, 10}, {4, 11, 0, 1}, {11, 1, 3, 0}};
    enum { N = sizeof want / sizeof want[0] };
    struct layer l;
    layer_open(&l, dev, &s);
    struct sv_weight bias = {.fmt.elem = SV_F32, .rows = 1, .cols = 12};
    for (int32_t i = 0; i < N; i++) { /* by the bias: 0 times NaN would reach other logits */
        bias.data = logits[i];
        memset(l.input, 0, (size_t)s.hidden * sizeof *l.input);
        struct layer m = l;
        m.s.bias = true;
        m.router_bias = upload(dev, &bias);
        struct result k = run(&m, (int32_t[]){0}, 1, 0);
        assert_memory_equal(k.r.expert, want[i], sizeof want[i]);
        check_tables(&k, 1);
        result_free(&k);
        sv_dev_free_weight(dev, &m.router_bias);
    }
    layer_close(&l);
}

/* ---------------------------------------------------------------- devices */

static const struct shape shapes[] = {
    {64, 32, 8, 2, SV_F32, false, SV_EXPERT_SILU, SV_ROUTER_OVER_CHOSEN},
    {96, 40, 12, 3, SV_BF16, false, SV_EXPERT_SILU, SV_ROUTER_OVER_ALL},
    {67, 21, 7, 7, SV_BF16, true, SV_EXPERT_CLAMPED, SV_ROUTER_OVER_CHOSEN},
    {80, 100, 33, 1, SV_F16, true, SV_EXPERT_SILU, SV_ROUTER_OVER_ALL},
    {128, 48, 64, 16, SV_BF16, true, SV_EXPERT_SILU, SV_ROUTER_OVER_CHOSEN},
    {64, 64, 40, 4, SV_F32, true, SV_EXPERT_CLAMPED, SV_ROUTER_OVER_ALL},
};
static const struct shape company[] = {
    {128, 96, 24, 8, SV_BF16, false, SV_EXPERT_SILU, SV_ROUTER_OVER_CHOSEN},
    {96, 40, 14, 4, SV_BF16, true, SV_EXPERT_CLAMPED, SV_ROUTER_OVER_ALL},
    {64, 33, 9, 3, SV_F32, false, SV_EXPERT_SILU, SV_ROUTER_OVER_ALL},
};

static void all_cases(struct sv_dev *dev)
{
    struct sv_err err = {0};
    struct sv_dev_limits lim = rig_limits(1024, 1024);
    lim.max_experts = 64;
    lim.max_chosen = SV_MAX_CHOSEN;
    if (sv_dev_reserve(dev, &lim, &err))
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        against_double(dev, &shapes[i]);
    for (size_t i = 0; i < sizeof company / sizeof company[0]; i++)
        in_company(dev, &company[i]);
    ties(dev);
}

static void on_the_cpu(enum sv_dtype compute, bool compressed)
{
    for (int isa = SV_ISA_PLAIN; isa <= SV_ISA_AMX; isa++)
        for (int threads = 1; threads <= 5; threads += 2) {
            struct sv_dev *dev;
            const struct sv_dev_opts o = {
                .backend = "cpu",
                .n_threads = threads,
                .compute = compute,
                .tuning = {.isa = (enum sv_isa)isa,
                           .compress_weights = compressed ? SV_TOGGLE_ON : SV_TOGGLE_OFF}};
            if (sv_dev_open(&dev, &o, NULL))
                continue;
            all_cases(dev);
            sv_dev_close(dev);
        }
    assert_int_equal(sv_alloc_live(), 0);
}

static void cpu_f32(void **state)
{
    (void)state;
    on_the_cpu(SV_F32, false);
}
static void cpu_bf16(void **state)
{
    (void)state;
    on_the_cpu(SV_BF16, false);
}
static void cpu_compressed(void **state)
{
    (void)state;
    on_the_cpu(SV_BF16, true);
}

static void gpu(void **state)
{
    (void)state;
    static const enum sv_dtype computes[] = {SV_BF16, SV_F32};
    bool any = false;
    for (int i = 0; i < 2; i++) {
        struct sv_dev *dev;
        const struct sv_dev_opts o = {.backend = "cuda", .compute = computes[i]};
        if (sv_dev_open(&dev, &o, NULL))
            continue;
        any |= !sv_dev_check_moe(dev, NULL);
        if (!sv_dev_check_moe(dev, NULL))
            all_cases(dev);
        sv_dev_close(dev);
    }
    if (!any)
        skip();
}

SV_TEST_MAIN(cmocka_unit_test(cpu_f32), cmocka_unit_test(cpu_bf16),
             cmocka_unit_test(cpu_compressed), cmocka_unit_test(gpu))
