/*
 * test_cross_moe.c - the ops of a mixture of experts on every device of this machine: the router
 * against its definition, products and sums against the CPU in f32, and on each device the bits of
 * a row alone and among others that share all, some or none of its experts. Experts in codes
 * (MXFP4, here SV_U8, and what shapes name) give the bits of the bf16 experts of their values.
 *
 * timeout: 240
 *
 * Without a GPU only the CPU's plain kernels are held against its best ones, and the test says so.
 */
#include "backend/cross.h"
#include "backend/ops_moe.h"
#include "backend/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- routes */

/* The tables of a routing on both sides, in one guarded buffer each. */
struct routing {
    struct sv_routes r[2];
    struct cross_buf buf;
};

/* own: experts of these devices, n 0: all. */
static struct routing routing_new(struct cross *c, int32_t n_rows, int32_t n_experts, int32_t k,
                                  struct sv_slice own)
{
    struct routing t = {.r[0] = {.n_rows = n_rows, .n_experts = n_experts, .k = k, .own = own}};
    const size_t n = sv_routes_lay_out(&t.r[0], NULL);
    t.buf = cross_new(c, CROSS_I32, n / 4, NULL, 0);
    for (int side = 0; side < 2; side++) {
        t.r[side] = t.r[0];
        sv_routes_lay_out(&t.r[side], cross_at(&t.buf, side));
    }
    return t;
}

static struct sv_routes host_routes(const struct routing *t, void *image)
{
    struct sv_routes r = t->r[0];
    sv_routes_lay_out(&r, image);
    return r;
}

/* The lists that the choices in r->expert make. */
static void make_lists(struct sv_routes *r)
{
    int32_t n = 0, active = 0;
    for (int32_t i = 0; i < r->n_rows * r->k; i++)
        r->place[i] = -1;
    for (int32_t e = 0; e < sv_routes_n_own(r); e++) {
        r->first[e] = n;
        for (int32_t i = 0; i < r->n_rows * r->k; i++)
            if (r->expert[i] == r->own.first + e) {
                r->list[n] = i;
                r->place[i] = n++;
            }
        if (n > r->first[e])
            r->active[active++] = e;
    }
    r->first[sv_routes_n_own(r)] = n;
    *r->n_active = active;
}

/* Puts choices (n_rows, k) and weights on both sides. */
static struct routing routing_of(struct cross *c, int32_t n_rows, int32_t n_experts, int32_t k,
                                 struct sv_slice own, const int32_t *expert, const float *weight)
{
    struct routing t = routing_new(c, n_rows, n_experts, k, own);
    const size_t n_bytes = t.buf.n * 4, entries = (size_t)(n_rows * k);
    void *image = calloc(1, n_bytes);
    struct sv_routes r = host_routes(&t, image);
    memcpy(r.expert, expert, entries * sizeof *expert);
    memcpy(r.weight, weight, entries * sizeof *weight);
    make_lists(&r);
    memcpy(cross_at(&t.buf, 0), image, n_bytes);
    sv_dev_upload(c->dut, cross_at(&t.buf, 1), image, n_bytes);
    cross_sync(c);
    free(image);
    return t;
}

/* ---------------------------------------------------------------- router */

static bool beats(float a, int32_t i, float b, int32_t j)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? i < j : isnan(b);
    return a > b || (a == b && i < j);
}

static void expect_choices(struct sv_routes *want, const float *logits, const int32_t *row_seg,
                           enum sv_router_norm norm)
{
    const int32_t n = want->n_experts, k = want->k;
    for (int32_t r = 0; r < want->n_rows; r++) {
        const float *l = logits + r * n;
        int32_t *expert = want->expert + r * k;
        for (int32_t j = 0; j < k; j++) {
            int32_t best = -1;
            for (int32_t e = 0; e < n; e++) {
                bool taken = false;
                for (int32_t i = 0; i < j; i++)
                    taken = taken || expert[i] == e;
                if (!taken && (best < 0 || beats(l[e], e, l[best], best)))
                    best = e;
            }
            expert[j] = best;
        }
        double sum = 0;
        for (int32_t e = 0; e < (norm == SV_ROUTER_OVER_ALL ? n : k); e++)
            sum +=
                exp((double)l[norm == SV_ROUTER_OVER_ALL ? e : expert[e]] - (double)l[expert[0]]);
        for (int32_t j = 0; j < k; j++) {
            want->weight[r * k + j] =
                (float)(exp((double)l[expert[j]] - (double)l[expert[0]]) / sum);
            expert[j] = row_seg[r] < 0 ? -1 : expert[j];
        }
    }
}

static void same_ints(const char *name, const char *what, const int32_t *got, const int32_t *want,
                      int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: router: %s [%d]: %d, expected %d", name, what, i, got[i], want[i]);
}

/* x and W are small integers: logits are exact, equal on all devices, and often tie. */
static void router_case(struct cross *c, int32_t n_rows, int32_t n_experts, int32_t k,
                        enum sv_router_norm norm, bool bias, struct sv_slice own)
{
    enum { HIDDEN = 72 };
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, n_rows);
    const int32_t pad = 3, n = n_rows + pad;
    struct cross_rows rows = cross_rows(c, &b, pad, 1);
    float *x = calloc((size_t)(n * HIDDEN), sizeof *x);
    uint16_t *w = calloc((size_t)(n_experts * HIDDEN), sizeof *w);
    float *plus = calloc((size_t)n_experts, sizeof *plus);
    for (int32_t i = 0; i < n * HIDDEN; i++)
        x[i] = (float)((int32_t)sv_rng_below(&c->rng, 3) - 1);
    for (int32_t i = 0; i < n_experts * HIDDEN; i++)
        w[i] = sv_f32_to_bf16((float)((int32_t)sv_rng_below(&c->rng, 3) - 1) / 4);
    for (int32_t i = 0; i < n_experts; i++)
        plus[i] = bias ? (float)sv_rng_below(&c->rng, 5) : 0;
    float *logits = calloc((size_t)n * (size_t)n_experts, sizeof *logits);
    for (int32_t r = 0; r < n; r++)
        for (int32_t e = 0; e < n_experts; e++) {
            float *l = &logits[r * n_experts + e];
            for (int32_t i = 0; i < HIDDEN; i++)
                *l += x[r * HIDDEN + i] * sv_bf16_to_f32(w[e * HIDDEN + i]);
            *l += plus[e];
        }
    struct cross_buf in = cross_new(c, CROSS_ACT, (size_t)(n * HIDDEN), x, 0);
    struct sv_weight host = {
        .role = SV_ROLE_ROUTER, .fmt.elem = SV_BF16, .rows = n_experts, .cols = HIDDEN, .data = w};
    struct sv_weight host_bias = {.fmt.elem = SV_F32, .rows = 1, .cols = n_experts, .data = plus};
    struct routing t = routing_new(c, n, n_experts, k, own);
    struct cross_buf chosen = cross_new(c, CROSS_I32, 1, (int32_t[]){5}, 0);
    struct routing want = routing_new(c, n, n_experts, k, own);
    struct sv_routes wr = host_routes(&want, cross_at(&want.buf, 0));
    int32_t row_seg[600];
    for (int32_t r = 0; r < n; r++)
        row_seg[r] = r < n_rows ? 0 : -1;
    expect_choices(&wr, logits, row_seg, norm);
    make_lists(&wr);
    for (int side = 0; side < 2; side++) {
        struct sv_weight dw, db = {0};
        struct sv_err err;
        assert_int_equal(sv_dev_upload_weight(cross_dev(c, side), &host, &dw, &err), SV_OK);
        if (bias)
            assert_int_equal(sv_dev_upload_weight(cross_dev(c, side), &host_bias, &db, &err),
                             SV_OK);
        sv_op_router_topk(cross_dev(c, side),
                          &(struct sv_p_router_topk){.rows = rows.rows[side],
                                                     .x = cross_at(&in, side),
                                                     .w = dw,
                                                     .bias = db,
                                                     .norm = norm,
                                                     .routes = t.r[side],
                                                     .n_chosen = cross_at(&chosen, side)});
        cross_sync(c);
        sv_dev_free_weight(cross_dev(c, side), &dw);
        if (bias)
            sv_dev_free_weight(cross_dev(c, side), &db);
    }
    for (int side = 0; side < 2; side++) {
        int32_t *image = side ? cross_ints(c, &t.buf) : t.buf.ref;
        const struct sv_routes got = host_routes(&t, image);
        same_ints(c->name, "expert", got.expert, wr.expert, n * k);
        same_ints(c->name, "place", got.place, wr.place, n * k);
        const int32_t n_own = sv_routes_n_own(&wr);
        same_ints(c->name, "list", got.list, wr.list, wr.first[n_own]);
        same_ints(c->name, "first", got.first, wr.first, n_own + 1);
        same_ints(c->name, "n_active", got.n_active, wr.n_active, 1);
        same_ints(c->name, "active", got.active, wr.active, *wr.n_active);
        for (int32_t i = 0; i < n_rows * k; i++)
            if (!(fabsf(got.weight[i] - wr.weight[i]) <= 2e-6f))
                fail_msg("%s: router: weight [%d]: %.9g, expected %.9g", c->name, i,
                         (double)got.weight[i], (double)wr.weight[i]);
        int32_t *now = side ? cross_ints(c, &chosen) : chosen.ref;
        assert_int_equal(*now, 5 + *wr.n_active);
        if (side)
            free(image), free(now);
    }
    free(x), free(w), free(plus), free(logits);
    cross_free(c, &in), cross_free(c, &t.buf), cross_free(c, &want.buf), cross_free(c, &chosen);
    cross_rows_free(c, &rows);
}

static bool lacks_experts(const struct cross *c)
{
    struct sv_err err;
    if (!sv_dev_check_moe(c->dut, &err))
        return false;
    print_message("%s: NOT checked: %s\n", c->name, err.msg);
    return true;
}

static void router_on(struct cross *c)
{
    if (lacks_experts(c))
        return;
    static const int32_t experts[] = {4, 32, 128, 512}, chosen[] = {1, 4, 8, 10};
    for (int i = 0; i < 4; i++) {
        const int32_t k = chosen[i] < experts[i] ? chosen[i] : experts[i];
        const struct sv_slice all = {0}, half = {experts[i] / 2, experts[i] - experts[i] / 2},
                              third = {experts[i] / 4, experts[i] / 3};
        router_case(c, 1, experts[i], k, SV_ROUTER_OVER_CHOSEN, i % 2, all);
        router_case(c, 37, experts[i], k, SV_ROUTER_OVER_ALL, false, all);
        router_case(c, 300, experts[i], k, SV_ROUTER_OVER_CHOSEN, i % 2, all);
        router_case(c, 2, experts[i], k, SV_ROUTER_OVER_CHOSEN, i % 2, half);
        router_case(c, 37, experts[i], k, SV_ROUTER_OVER_ALL, false, third);
        router_case(c, 300, experts[i], k, SV_ROUTER_OVER_CHOSEN, i % 2, half);
    }
    router_case(c, 5, 4, 4, SV_ROUTER_OVER_CHOSEN, true, (struct sv_slice){0}); /* all experts */
}

/* A norm handed to the router does what the norm does by itself. */
/* wide: the norm's weights are in f32. */
static void norm_case(struct cross *c, int32_t n_rows, int32_t n_experts, int32_t k, int32_t hidden,
                      bool adds, bool wide)
{
    const int32_t pad = n_rows > 4 ? 2 : 0, n = n_rows + pad;
    const size_t all = (size_t)(n * hidden);
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, n_rows);
    struct cross_rows rows = cross_rows(c, &b, pad, 1);
    float *values = malloc(all * sizeof *values);
    for (size_t i = 0; i < all; i++)
        values[i] = sv_rng_normal(&c->rng);
    const float scale = 1 / sqrtf((float)hidden);
    struct cross_weight w = cross_weight(c, SV_BF16, n_experts, hidden, scale, 0);
    struct cross_weight weight = cross_norm(c, wide ? SV_F32 : SV_BF16, hidden, 0.2f);
    struct cross_buf delta = cross_new(c, CROSS_ACT, all, NULL, 1);
    void *got[2][3];
    for (int joined = 0; joined < 2; joined++) {
        struct cross_buf x = cross_new(c, CROSS_ACT, all, values, 0);
        struct cross_buf out = cross_new(c, CROSS_ACT, all, NULL, 0);
        struct routing t = routing_new(c, n, n_experts, k, (struct sv_slice){0});
        struct sv_p_add_rms_norm norm = {.n_rows = n,
                                         .d = hidden,
                                         .x = cross_at(&x, 1),
                                         .delta = adds ? cross_at(&delta, 1) : NULL,
                                         .weight = weight.dut,
                                         .eps = 1e-6f,
                                         .out = cross_at(&out, 1)};
        if (!joined)
            sv_op_add_rms_norm(c->dut, &norm);
        for (int twice = 0; twice < 2; twice++) { /* what a launch counts is as it was before */
            struct sv_p_add_rms_norm again = norm;
            if (twice)
                again.delta = NULL;
            if (twice && !joined)
                sv_op_add_rms_norm(c->dut, &again);
            sv_op_router_topk(c->dut, &(struct sv_p_router_topk){.rows = rows.rows[1],
                                                                 .x = cross_at(&out, 1),
                                                                 .before = joined ? &again : NULL,
                                                                 .w = w.dut,
                                                                 .norm = SV_ROUTER_OVER_CHOSEN,
                                                                 .routes = t.r[1]});
        }
        got[joined][0] = cross_bytes(c, &x, NULL);
        got[joined][1] = cross_bytes(c, &out, NULL);
        got[joined][2] = cross_bytes(c, &t.buf, NULL);
        cross_free(c, &x), cross_free(c, &out), cross_free(c, &t.buf);
    }
    const size_t bytes = all * cross_elem(c, CROSS_ACT);
    struct sv_routes r[2] = {{.n_rows = n, .n_experts = n_experts, .k = k}};
    r[1] = r[0];
    for (int i = 0; i < 2; i++)
        sv_routes_lay_out(&r[i], got[i][2]);
    if (memcmp(got[0][0], got[1][0], bytes) || memcmp(got[0][1], got[1][1], bytes))
        fail_msg("%s: router: %d rows of %d: a norm by itself has other bits", c->name, n, hidden);
    const size_t entries = (size_t)(n * k) * 4, listed = (size_t)(n_rows * k) * 4;
    if (memcmp(r[0].expert, r[1].expert, entries) || memcmp(r[0].place, r[1].place, entries) ||
        memcmp(r[0].weight, r[1].weight, listed) || memcmp(r[0].list, r[1].list, listed) ||
        memcmp(r[0].first, r[1].first, (size_t)(n_experts + 1) * 4) ||
        *r[0].n_active != *r[1].n_active ||
        memcmp(r[0].active, r[1].active, (size_t)*r[0].n_active * 4))
        fail_msg("%s: router: %d rows of %d: other routes behind its norm", c->name, n, hidden);
    for (int i = 0; i < 6; i++)
        free(got[i / 3][i % 3]);
    free(values);
    cross_free(c, &delta), cross_weight_free(c, &w), cross_weight_free(c, &weight);
    cross_rows_free(c, &rows);
}

static void norm_on(struct cross *c)
{
    static const int32_t counts[] = {1, 3, 5, 15, 4, 14, 37, 62, 64, 100};
    if (lacks_experts(c))
        return;
    for (int i = 0; i < (c->quick ? 4 : 10); i++) {
        norm_case(c, counts[i], 128, 8, 2048, true, false);
        norm_case(c, counts[i], 256, 8, 2048, true, true);
        norm_case(c, counts[i], 32, 4, 2880, true, false);
        norm_case(c, counts[i], 300, 10, 4096, i % 2, i % 3 == 0);
        norm_case(c, counts[i], 4, 2, 72, true, true);
    }
    norm_case(c, 6, 16, 2, 5000, true, false);
}

/* ---------------------------------------------------------------- products */

/* One projection of all experts on both sides. */
struct projection {
    struct sv_experts x[2];
    struct sv_weight *host;
    struct sv_quant *quant; /* (n), of codes */
    float *bias;
};

/* Random codes, and scales of which the largest is top: mostly near 1 / sqrt(cols), some small. */
static void random_mxfp4(struct cross *c, struct sv_quant *q, int32_t rows, int32_t cols)
{
    const size_t n = (size_t)rows * (size_t)cols / 2, n_scales = n / 16;
    uint8_t *codes = malloc(n), *scales = malloc(n_scales);
    const int32_t top = 127 - 1 - (int32_t)log2f(sqrtf((float)cols));
    for (size_t i = 0; i < n; i++)
        codes[i] = (uint8_t)sv_rng_below(&c->rng, 256);
    for (size_t i = 0; i < n_scales; i++)
        scales[i] = (uint8_t)(top - (int32_t)sv_rng_below(&c->rng, i % 37 ? 3 : 100));
    *q = (struct sv_quant){.code = SV_CODE_MXFP4,
                           .rows = rows,
                           .cols = cols,
                           .data = codes,
                           .scales = scales,
                           .block_rows = 1,
                           .block_cols = 32};
}

/* form: of SV_I8 */
static struct projection projection_new(struct cross *c, enum sv_dtype dtype,
                                        const struct cross_form *form, int32_t n, int32_t rows,
                                        int32_t cols, bool bias)
{
    struct projection p = {.host = calloc((size_t)n, sizeof *p.host),
                           .quant = calloc((size_t)n, sizeof *p.quant),
                           .bias = calloc((size_t)(n * rows), sizeof *p.bias)};
    const float scale = 1 / sqrtf((float)cols);
    struct sv_err err;
    for (int32_t e = 0; e < n && dtype <= SV_F16; e++)
        p.host[e] = rig_weight(&c->rng, dtype, rows, cols, scale, 0);
    for (int32_t e = 0; e < n && dtype > SV_F16; e++) {
        if (dtype == SV_U8)
            random_mxfp4(c, &p.quant[e], rows, cols);
        else
            p.quant[e] = cross_quant(c, form, rows, cols);
        p.host[e] = (struct sv_weight){.role = SV_ROLE_EXPERT_DOWN,
                                       .fmt.elem = SV_U8,
                                       .rows = rows,
                                       .cols = cols,
                                       .data = p.quant[e].data,
                                       .quant = &p.quant[e]};
    }
    for (int32_t i = 0; i < n * rows; i++)
        p.bias[i] = 0.3f * sv_rng_normal(&c->rng);
    const struct sv_weight plus = {.fmt.elem = SV_F32, .rows = 1, .cols = n * rows, .data = p.bias};
    for (int side = 0; side < 2; side++) {
        p.x[side] = (struct sv_experts){
            .n = n, .rows = rows, .cols = cols, .w = calloc((size_t)n, sizeof(struct sv_weight))};
        if (sv_dev_upload_experts(cross_dev(c, side), p.host, n, &p.x[side], &err) ||
            (bias && sv_dev_upload_weight(cross_dev(c, side), &plus, &p.x[side].bias, &err)))
            fail_msg("%s: %s", c->name, err.msg);
    }
    return p;
}

static void projection_free(struct cross *c, struct projection *p)
{
    for (int side = 0; side < 2; side++) {
        if (p->x[side].bias.data)
            sv_dev_free_weight(cross_dev(c, side), &p->x[side].bias);
        sv_dev_free_experts(cross_dev(c, side), &p->x[side]);
        free(p->x[side].w);
    }
    for (int32_t e = 0; e < p->x[0].n; e++) {
        if (!p->quant[e].code)
            rig_free((void *)(uintptr_t)p->host[e].data);
        else
            cross_quant_free(&p->quant[e]);
    }
    free(p->host), free(p->quant), free(p->bias);
}

/* The same experts as products take them, on the device alone; p's bias stays p's. values: their
 * memory. */
static struct sv_experts expanded(struct cross *c, const struct projection *p, uint8_t **values)
{
    struct sv_experts x = p->x[1];
    struct sv_weight *host = calloc((size_t)x.n, sizeof *host);
    float *row = malloc((size_t)x.cols * sizeof *row);
    struct sv_err err;
    const enum sv_dtype elem = sv_dev_compute_dtype(c->dut);
    const size_t each = (size_t)x.rows * (size_t)x.cols * sv_dtype_bytes(elem);
    x.w = calloc((size_t)x.n, sizeof *x.w);
    *values = malloc((size_t)x.n * each);
    for (int32_t e = 0; e < x.n; e++) {
        sv_quant_expand(&p->quant[e], 0, x.rows, elem, *values + (size_t)e * each, row);
        host[e] = (struct sv_weight){.role = SV_ROLE_EXPERT_DOWN,
                                     .fmt.elem = elem,
                                     .rows = x.rows,
                                     .cols = x.cols,
                                     .data = *values + (size_t)e * each};
    }
    if (sv_dev_upload_experts(c->dut, host, x.n, &x, &err))
        fail_msg("%s: %s", c->name, err.msg);
    cross_sync(c);
    free(host), free(row);
    return x;
}

struct shape {
    int32_t n_experts, k, hidden, inter;
    enum sv_dtype dtype;
    bool bias;
    enum sv_expert_act act;
    struct sv_slice own;
    const struct cross_form *form; /* of SV_I8: its codes */
};

/* The three matrices of a layer's experts and the buffers of a pass of n rows. */
struct layer {
    struct shape s;
    struct projection gate, up, down;
};

static struct layer layer_new(struct cross *c, struct shape s)
{
    const int32_t n = s.own.n ? s.own.n : s.n_experts;
    return (struct layer){s, projection_new(c, s.dtype, s.form, n, s.inter, s.hidden, s.bias),
                          projection_new(c, s.dtype, s.form, n, s.inter, s.hidden, s.bias),
                          projection_new(c, s.dtype, s.form, n, s.hidden, s.inter, s.bias)};
}

static void layer_free(struct cross *c, struct layer *l)
{
    projection_free(c, &l->gate), projection_free(c, &l->up), projection_free(c, &l->down);
}

/* gate_up, down, combine of rows x (n, hidden), routed by t, on one side. */
static void run_layer(struct cross *c, const struct layer *l, int side, const struct sv_routes *r,
                      const void *x, void *act, float *down, void *out)
{
    struct sv_dev *dev = cross_dev(c, side);
    const struct sv_p_moe_combine combine = {
        .hidden = l->s.hidden, .x = down, .routes = *r, .out = out};
    struct sv_p_moe_down product = {.x = act, .down = l->down.x[side], .routes = *r, .out = down};
    sv_op_moe_gate_up(dev, &(struct sv_p_moe_gate_up){.x = x,
                                                      .gate = l->gate.x[side],
                                                      .up = l->up.x[side],
                                                      .act = l->s.act,
                                                      .limit = 1.5f,
                                                      .alpha = 1.702f,
                                                      .routes = *r,
                                                      .out = act});
    sv_op_moe_down(dev, &product);
    product.then = &combine; /* then it need not write down */
    sv_op_moe_down(dev, &product);
}

/* Different experts for each entry of a row; row 0's stay among the first `from` experts. */
static void draw_choices(struct cross *c, const struct shape *s, int32_t n, int32_t *expert,
                         float *weight, int32_t among)
{
    for (int32_t r = 0; r < n; r++)
        for (int32_t j = 0; j < s->k; j++) {
            bool again = true;
            int32_t e = 0;
            while (again) {
                e = (int32_t)sv_rng_below(&c->rng, (uint32_t)among);
                again = false;
                for (int32_t i = 0; i < j; i++)
                    again = again || expert[r * s->k + i] == e;
            }
            expert[r * s->k + j] = e;
            weight[r * s->k + j] = 0.05f + (float)sv_rng_below(&c->rng, 1000) / 1000;
        }
}

static void layer_case(struct cross *c, struct shape s, int32_t n)
{
    const int32_t pads = n > 2;
    int32_t *expert = calloc((size_t)(n * s.k), sizeof *expert);
    float *weight = calloc((size_t)(n * s.k), sizeof *weight);
    struct layer l = layer_new(c, s);
    draw_choices(c, &s, n, expert, weight, s.n_experts);
    for (int32_t j = 0; pads && j < s.k; j++)
        expert[(n - 1) * s.k + j] = -1;
    struct routing t = routing_of(c, n, s.n_experts, s.k, s.own, expert, weight);
    const size_t entries = (size_t)(n * s.k);
    size_t placed = 0;
    for (size_t i = 0; i < entries; i++)
        placed += expert[i] >= 0 &&
                  (!s.own.n || (expert[i] >= s.own.first && expert[i] < s.own.first + s.own.n));
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(n * s.hidden), NULL, 1);
    struct cross_buf act = cross_new(c, CROSS_ACT, entries * (size_t)s.inter, NULL, 0);
    struct cross_buf down = cross_new(c, CROSS_F32, entries * (size_t)s.hidden, NULL, 0);
    struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)(n * s.hidden), NULL, 0);
    for (int side = 0; side < 2; side++)
        run_layer(c, &l, side, &t.r[side], cross_at(&x, side), cross_at(&act, side),
                  cross_at(&down, side), cross_at(&out, side));
    cross_same(c, &act, 0, placed * (size_t)s.inter, c->tol, "moe: gate and up");
    /* The device's own rounded values go into its sums. */
    cross_same(c, &down, 0, placed * (size_t)s.hidden, 3 * c->tol, "moe: down");
    cross_same(c, &out, 0, (size_t)((n - pads) * s.hidden), 6 * c->tol, "moe: combine");
    free(expert), free(weight);
    cross_free(c, &x), cross_free(c, &act), cross_free(c, &down), cross_free(c, &out);
    cross_free(c, &t.buf);
    layer_free(c, &l);
}

/* The first row's result, alone and as one of n; among: how many experts the others draw from. */
static void company(struct cross *c, const struct layer *l, const struct cross_buf *x, int32_t n,
                    int32_t among, const int32_t *own, const float *own_weight, uint8_t *bits)
{
    const struct shape *s = &l->s;
    int32_t *expert = calloc((size_t)(n * s->k), sizeof *expert);
    float *weight = calloc((size_t)(n * s->k), sizeof *weight);
    draw_choices(c, s, n, expert, weight, among);
    /* It stands last, so that it is not the first of its experts either. */
    memcpy(expert + (n - 1) * s->k, own, (size_t)s->k * sizeof *expert);
    memcpy(weight + (n - 1) * s->k, own_weight, (size_t)s->k * sizeof *weight);
    struct routing t = routing_of(c, n, s->n_experts, s->k, s->own, expert, weight);
    const size_t entries = (size_t)(n * s->k), row = (size_t)s->hidden * cross_elem(c, CROSS_ACT);
    struct cross_buf act = cross_new(c, CROSS_ACT, entries * (size_t)s->inter, NULL, 0);
    struct cross_buf down = cross_new(c, CROSS_F32, entries * (size_t)s->hidden, NULL, 0);
    struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)(n * s->hidden), NULL, 0);
    run_layer(c, l, 1, &t.r[1],
              cross_act(c, x, 1, (int64_t)(x->n / (size_t)s->hidden - (size_t)n) * s->hidden),
              cross_at(&act, 1), cross_at(&down, 1), cross_at(&out, 1));
    uint8_t *all = cross_bytes(c, &out, NULL);
    if (n == 1)
        memcpy(bits, all, row);
    else if (memcmp(bits, all + (size_t)(n - 1) * row, row))
        fail_msg("%s: moe: a row has other bits among %d that draw from %d experts", c->name, n,
                 among);
    free(all), free(expert), free(weight);
    cross_free(c, &act), cross_free(c, &down), cross_free(c, &out), cross_free(c, &t.buf);
}

static void bits_case(struct cross *c, struct shape s)
{
    static const int32_t counts[] = {1, 2, 8, 9, 31, 130, 512};
    struct layer l = layer_new(c, s);
    int32_t own[SV_MAX_CHOSEN];
    float own_weight[SV_MAX_CHOSEN];
    uint8_t *bits = malloc((size_t)s.hidden * 4);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(512 * s.hidden), NULL, 1);
    draw_choices(c, &s, 1, own, own_weight, s.k); /* the first k experts, in some order */
    for (int i = 0; i < (c->quick ? 6 : 7); i++) {
        company(c, &l, &x, counts[i], s.k, own, own_weight, bits);         /* all shared */
        company(c, &l, &x, counts[i], s.n_experts, own, own_weight, bits); /* some */
    }
    free(bits);
    cross_free(c, &x);
    layer_free(c, &l);
}

static bool takes_mxfp4(struct cross *c)
{
    const struct sv_quant q = {.code = SV_CODE_MXFP4, .cols = 32};
    return !lacks_experts(c) && sv_dev_takes_codes(c->dut, &q, SV_ROLE_EXPERT_DOWN);
}

/* n rows through experts in codes, and through those of their values. */
static void same_bits(struct cross *c, const struct layer *coded, const struct layer *wide,
                      int32_t n)
{
    const struct shape *s = &coded->s;
    const size_t entries = (size_t)(n * s->k);
    int32_t *expert = calloc(entries, sizeof *expert);
    float *weight = calloc(entries, sizeof *weight);
    draw_choices(c, s, n, expert, weight, s->n_experts);
    struct routing t = routing_of(c, n, s->n_experts, s->k, s->own, expert, weight);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(n * s->hidden), NULL, 1);
    uint8_t *got[2][3];
    for (int i = 0; i < 2; i++) {
        struct cross_buf act = cross_new(c, CROSS_ACT, entries * (size_t)s->inter, NULL, 0);
        struct cross_buf down = cross_new(c, CROSS_F32, entries * (size_t)s->hidden, NULL, 0);
        struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)(n * s->hidden), NULL, 0);
        run_layer(c, i ? wide : coded, 1, &t.r[1], cross_at(&x, 1), cross_at(&act, 1),
                  cross_at(&down, 1), cross_at(&out, 1));
        got[i][0] = cross_bytes(c, &act, NULL);
        got[i][1] = cross_bytes(c, &down, NULL);
        got[i][2] = cross_bytes(c, &out, NULL);
        cross_free(c, &act), cross_free(c, &down), cross_free(c, &out);
    }
    const size_t act = cross_elem(c, CROSS_ACT),
                 n_bytes[3] = {entries * (size_t)s->inter * act, entries * (size_t)s->hidden * 4,
                               (size_t)(n * s->hidden) * act};
    for (int j = 0; j < 3; j++) {
        if (memcmp(got[0][j], got[1][j], n_bytes[j]))
            fail_msg("%s: moe: %d rows, %d to %d: codes give other bits than their values (%d)",
                     c->name, n, s->hidden, s->inter, j);
        free(got[0][j]), free(got[1][j]);
    }
    free(expert), free(weight);
    cross_free(c, &x), cross_free(c, &t.buf);
}

/* Rows of all counts through experts in codes, and through those of their values. */
static void codes_case(struct cross *c, struct shape s)
{
    struct layer coded = layer_new(c, s), wide = coded;
    uint8_t *values[3];
    wide.gate.x[1] = expanded(c, &coded.gate, &values[0]);
    wide.up.x[1] = expanded(c, &coded.up, &values[1]);
    wide.down.x[1] = expanded(c, &coded.down, &values[2]);
    for (int j = 0; j < 9; j++)
        same_bits(c, &coded, &wide, (int32_t[]){1, 2, 8, 9, 16, 17, 40, 130, 512}[j]);
    struct sv_experts *x[] = {&wide.gate.x[1], &wide.up.x[1], &wide.down.x[1]};
    for (int j = 0; j < 3; j++) {
        sv_dev_free_experts(c->dut, x[j]);
        free(x[j]->w), free(values[j]);
    }
    layer_free(c, &coded);
}

static void codes_on(struct cross *c)
{
    if (!takes_mxfp4(c))
        return;
    const struct shape s[] = {
        {8, 2, 64, 32, SV_U8, false, SV_EXPERT_SILU, {0}, NULL},
        {6, 3, 160, 96, SV_U8, true, SV_EXPERT_CLAMPED, {0}, NULL},
        {32, 4, 736, 480, SV_U8, true, SV_EXPERT_CLAMPED, {0}, NULL},
        {4, 2, 2880, 1440, SV_U8, true, SV_EXPERT_CLAMPED, {0}, NULL},
    };
    for (int i = 0; i < (c->quick ? 2 : 4); i++)
        codes_case(c, s[i]);
    for (int j = 0; j < 4; j++)
        layer_case(c, s[1], (int32_t[]){1, 7, 40, 150}[j]);
    bits_case(c, (struct shape){16, 4, 128, 64, SV_U8, true, SV_EXPERT_CLAMPED, {0}, NULL});
}

/* Whether every expert of a form stays in its codes on the device; all do on the CPU. */
static bool takes_form(struct cross *c, const struct cross_form *f)
{
    struct sv_quant q = cross_quant(c, f, 64, 128);
    const bool takes = sv_dev_takes_codes(c->dut, &q, SV_ROLE_EXPERT_DOWN);
    cross_quant_free(&q);
    return takes;
}

static void further_codes_on(struct cross *c)
{
    static const struct cross_form forms[] = {
        {"f8 in blocks", SV_CODE_F8, SV_BF16, 128, 128},
        {"f8 by rows", SV_CODE_F8, SV_F32, 1, 0},
        {"int4 in groups of 32", SV_CODE_INT4, SV_BF16, 1, 32},
        {"int4 in groups", SV_CODE_INT4, SV_BF16, 1, 64},
        {"awq", SV_CODE_AWQ, SV_F16, 1, 64},
        {"gptq", SV_CODE_GPTQ4, SV_F16, 1, 128},
        {"int8 by rows", SV_CODE_I8, SV_F32, 1, 0},
        {"nvfp4", SV_CODE_NVFP4, SV_F8, 1, 16},
    };
    if (!takes_mxfp4(c)) /* such devices expand all codes */
        return;
    for (int i = 0; i < 8; i++) {
        const struct cross_form *f = &forms[i];
        if (!takes_form(c, f))
            fail_msg("%s: experts in %s are expanded", c->name, f->name);
        codes_case(c, (struct shape){6, 3, 320, 160, SV_I8, true, SV_EXPERT_CLAMPED, {0}, f});
        if (!c->quick)
            codes_case(c, (struct shape){32, 4, 768, 448, SV_I8, false, SV_EXPERT_SILU, {0}, f});
        if (i < 3)
            bits_case(c, (struct shape){16, 4, 128, 64, SV_I8, true, SV_EXPERT_CLAMPED, {0}, f});
    }
}

/* A shared expert; gated: its weight is a sigmoid, else 1. */
struct shared {
    struct cross_weight router, weight, gate, up, down;
    bool gated;
};

/* Rows [row0, row0 + n) of x through the layer on the device: the shared expert fused with the
 * routed ones, or by ops of its own. */
static float *run_shared(struct cross *c, const struct layer *l, const struct shared *a,
                         const struct cross_buf *x, int32_t row0, int32_t n, bool fused)
{
    const struct shape *s = &l->s;
    const int32_t k = s->k + fused, d = s->hidden;
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, n);
    struct cross_rows rows = cross_rows(c, &b, 0, 1);
    struct routing t = routing_new(c, n, s->n_experts + fused, k, (struct sv_slice){0});
    t.r[1].shared = fused;
    struct layer all = *l;
    all.gate.x[1].shared = fused ? &a->gate.dut : NULL;
    all.up.x[1].shared = fused ? &a->up.dut : NULL;
    all.down.x[1].shared = fused ? &a->down.dut : NULL;
    struct cross_buf act = cross_new(c, CROSS_ACT, (size_t)(n * k * s->inter), NULL, 0);
    struct cross_buf down = cross_new(c, CROSS_F32, (size_t)(n * k * d), NULL, 0);
    struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)(n * d), NULL, 0);
    const void *in = cross_act(c, x, 1, (int64_t)row0 * d);
    sv_op_router_topk(c->dut, &(struct sv_p_router_topk){.rows = rows.rows[1],
                                                         .x = in,
                                                         .w = a->router.dut,
                                                         .shared = fused && a->gated
                                                                       ? a->weight.dut
                                                                       : (struct sv_weight){0},
                                                         .norm = SV_ROUTER_OVER_CHOSEN,
                                                         .routes = t.r[1]});
    run_layer(c, &all, 1, &t.r[1], in, cross_at(&act, 1), cross_at(&down, 1), cross_at(&out, 1));
    if (!fused) {
        const struct sv_gemm_part gate_up[2] = {{.w = a->gate.dut}, {.w = a->up.dut}},
                                  of_down = {.w = a->down.dut}, weight = {.w = a->weight.dut};
        struct cross_buf both = cross_new(c, CROSS_ACT, (size_t)(2 * n * s->inter), NULL, 0);
        struct cross_buf mid = cross_new(c, CROSS_ACT, (size_t)(n * s->inter), NULL, 0);
        struct cross_buf y = cross_new(c, CROSS_ACT, (size_t)(n * d), NULL, 0);
        struct cross_buf by = cross_new(c, CROSS_ACT, (size_t)n, NULL, 0);
        sv_op_gemm_act_mul(c->dut, &(struct sv_p_gemm_act_mul){.n_rows = n,
                                                               .k = d,
                                                               .x = in,
                                                               .ldx = d,
                                                               .parts = gate_up,
                                                               .gate_up = cross_at(&both, 1),
                                                               .out = cross_at(&mid, 1)});
        sv_op_gemm(c->dut, &(struct sv_p_gemm){.n_rows = n,
                                               .k = s->inter,
                                               .n_parts = 1,
                                               .x = cross_at(&mid, 1),
                                               .ldx = s->inter,
                                               .parts = &of_down,
                                               .y = cross_at(&y, 1),
                                               .ldy = d});
        sv_op_gemm(c->dut, &(struct sv_p_gemm){.n_rows = n,
                                               .k = d,
                                               .n_parts = 1,
                                               .x = in,
                                               .ldx = d,
                                               .parts = &weight,
                                               .y = cross_at(&by, 1),
                                               .ldy = 1});
        sv_op_add_gated(c->dut,
                        &(struct sv_p_add_gated){.n_rows = n,
                                                 .d = d,
                                                 .x = cross_at(&out, 1),
                                                 .y = cross_at(&y, 1),
                                                 .gate = a->gated ? cross_at(&by, 1) : NULL});
        cross_sync(c);
        cross_free(c, &both), cross_free(c, &mid), cross_free(c, &y), cross_free(c, &by);
    }
    float *got = cross_floats(c, &out);
    cross_free(c, &act), cross_free(c, &down), cross_free(c, &out), cross_free(c, &t.buf);
    cross_rows_free(c, &rows);
    return got;
}

static void shared_case(struct cross *c, struct shape s, bool gated)
{
    static const int32_t counts[] = {1, 3, 16, 70, 150};
    const float in = 1 / sqrtf((float)s.hidden), mid = 1 / sqrtf((float)s.inter);
    struct layer l = layer_new(c, s);
    struct shared a = {cross_weight(c, SV_BF16, s.n_experts, s.hidden, in, 0),
                       cross_weight(c, SV_BF16, 1, s.hidden, in, 0),
                       cross_weight(c, s.dtype, s.inter, s.hidden, in, 0),
                       cross_weight(c, s.dtype, s.inter, s.hidden, in, 0),
                       cross_weight(c, s.dtype, s.hidden, s.inter, mid, 0),
                       gated};
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(150 * s.hidden), NULL, 1);
    const double tol = 8 * c->tol;
    assert_true(sv_dev_takes_shared(c->dut, &l.gate.x[1], &a.gate.dut));
    float *last = NULL;
    for (int i = 4; i >= 0; i--) {
        const int32_t n = counts[i];
        float *want = run_shared(c, &l, &a, &x, 0, n, false),
              *got = run_shared(c, &l, &a, &x, 0, n, true);
        for (int32_t j = 0; j < n * s.hidden; j++)
            if (!(fabs((double)got[j] - (double)want[j]) <= tol * (1 + fabs((double)want[j]))))
                fail_msg("%s: moe: with a shared expert: row %d of %d, number %d is %g, "
                         "expected %g",
                         c->name, j / s.hidden, n, j % s.hidden, (double)got[j], (double)want[j]);
        if (last && memcmp(last, got, (size_t)(n * s.hidden) * sizeof *got))
            fail_msg("%s: moe: with a shared expert %d rows have other bits", c->name, n);
        free(want), free(last);
        last = got;
    }
    free(last);
    cross_free(c, &x);
    cross_weight_free(c, &a.router), cross_weight_free(c, &a.weight), cross_weight_free(c, &a.gate);
    cross_weight_free(c, &a.up), cross_weight_free(c, &a.down);
    layer_free(c, &l);
}

static void shared_on(struct cross *c)
{
    if (lacks_experts(c))
        return;
    const struct sv_weight like = {0};
    if (!sv_dev_takes_shared(c->dut, &(struct sv_experts){.w = (struct sv_weight[1]){{0}}},
                             &like)) {
        print_message("%s: shared experts are not fused\n", c->name);
        return;
    }
    shared_case(c, (struct shape){8, 2, 64, 32, SV_BF16, false, SV_EXPERT_SILU, {0}, NULL}, true);
    shared_case(c, (struct shape){256, 8, 512, 96, SV_BF16, false, SV_EXPERT_SILU, {0}, NULL},
                true);
    shared_case(c, (struct shape){32, 4, 136, 72, SV_BF16, false, SV_EXPERT_SILU, {0}, NULL},
                false);
    shared_case(c, (struct shape){6, 3, 40, 36, SV_F32, false, SV_EXPERT_SILU, {0}, NULL}, true);
}

static void products_on(struct cross *c)
{
    if (lacks_experts(c))
        return;
    const struct shape s[] = {
        {8, 2, 64, 32, SV_BF16, false, SV_EXPERT_SILU, {0}, NULL},
        {16, 4, 96, 72, SV_BF16, true, SV_EXPERT_CLAMPED, {0}, NULL},
        {6, 3, 40, 36, SV_F32, false, SV_EXPERT_SILU, {0}, NULL},
        {5, 5, 67, 19, SV_F16, true, SV_EXPERT_CLAMPED, {0}, NULL},
        {32, 8, 256, 96, SV_BF16, false, SV_EXPERT_SILU, {0}, NULL},
        {16, 4, 96, 72, SV_BF16, true, SV_EXPERT_CLAMPED, {7, 5}, NULL}, /* some are here */
        {6, 3, 40, 36, SV_F32, false, SV_EXPERT_SILU, {5, 1}, NULL},
    };
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < 4; j++)
            layer_case(c, s[i], (int32_t[]){1, 7, 40, 150}[j]);
}

static void bits_on(struct cross *c)
{
    if (lacks_experts(c))
        return;
    bits_case(c, (struct shape){16, 4, 128, 64, SV_BF16, true, SV_EXPERT_SILU, {0}, NULL});
    bits_case(c, (struct shape){8, 2, 68, 40, SV_F32, false, SV_EXPERT_SILU, {0}, NULL});
    if (!c->quick)
        bits_case(c, (struct shape){64, 8, 512, 192, SV_BF16, false, SV_EXPERT_CLAMPED, {0}, NULL});
}

static void router(void **state)
{
    (void)state;
    cross_all(router_on);
}

static void norm_and_router(void **state)
{
    (void)state;
    cross_all(norm_on);
}

static void products(void **state)
{
    (void)state;
    cross_all(products_on);
}

static void codes(void **state)
{
    (void)state;
    cross_all(codes_on);
}

static void further_codes(void **state)
{
    (void)state;
    cross_all(further_codes_on);
}

static void bits_in_company(void **state)
{
    (void)state;
    cross_all(bits_on);
}

static void shared_expert(void **state)
{
    (void)state;
    cross_all(shared_on);
}

SV_TEST_MAIN(cmocka_unit_test(router), cmocka_unit_test(norm_and_router),
             cmocka_unit_test(shared_expert), cmocka_unit_test(products), cmocka_unit_test(codes),
             cmocka_unit_test(further_codes), cmocka_unit_test(bits_in_company))
