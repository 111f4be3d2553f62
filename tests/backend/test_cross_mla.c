/*
 * test_cross_mla.c - latent attention on every device of this machine: what is kept of a position,
 * each head's products, attention over latents and the router of sigmoid scores against the CPU in
 * f32; and on each device the bits of a row alone, among others and in pieces.
 *
 * timeout: 300
 *
 * Without a GPU only the CPU's plain kernels are held against its best ones, and the test says so.
 */
#include "backend/cross.h"
#include "backend/ops_mla.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- products by head */

struct products {
    int32_t n, rows, cols, gap; /* heads, outputs, inputs; numbers between heads */
    enum sv_dtype dtype;
};

/* Row i of `one`, the only one, has the bits of row `row` of `all`. */
static void same_row(struct cross *c, const struct cross_buf *all, int32_t row,
                     const struct cross_buf *some, int32_t i, size_t width, const char *what)
{
    const size_t n = width * cross_elem(c, CROSS_ACT);
    uint8_t *a = cross_bytes(c, all, NULL), *b = cross_bytes(c, some, NULL);
    if (memcmp(a + (size_t)row * n, b + (size_t)i * n, n))
        fail_msg("%s: %s: row %d has other bits among others", c->name, what, (int)row);
    free(a), free(b);
}

static void multiply(struct cross *c, int side, const struct products *p,
                     const struct sv_experts *w, const struct cross_buf *x, int32_t first,
                     int32_t n, const struct cross_buf *y)
{
    const int32_t xs = p->cols + p->gap, ys = p->rows + p->gap;
    sv_op_head_products(
        cross_dev(c, side),
        &(struct sv_p_head_products){.n_rows = n,
                                     .x = cross_act(c, x, side, (int64_t)first * p->n * xs),
                                     .ldx = (int64_t)p->n * xs,
                                     .x_stride = xs,
                                     .w = *w,
                                     .y = cross_at(y, side),
                                     .ldy = (int64_t)p->n * ys,
                                     .y_stride = ys});
}

static void products_of(struct cross *c, const struct products *p)
{
    enum { MOST = 16 };
    static const int32_t counts[] = {1, 3, 16, 17, 70};
    const int32_t rows = c->quick ? 20 : 150, xs = p->cols + p->gap, ys = p->rows + p->gap;
    struct sv_weight host[MOST], own[MOST];
    struct sv_err err;
    for (int32_t h = 0; h < p->n; h++)
        host[h] = rig_weight(&c->rng, p->dtype, p->rows, p->cols, 1 / sqrtf((float)p->cols), 0);
    const struct sv_experts ref = {.n = p->n, .rows = p->rows, .cols = p->cols, .w = host};
    struct sv_experts dut = {.n = p->n, .rows = p->rows, .cols = p->cols, .w = own};
    if (sv_dev_upload_experts(c->dut, host, p->n, &dut, &err))
        fail_msg("%s: %s", c->name, err.msg);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(rows * p->n * xs), NULL, 1),
                     y = cross_new(c, CROSS_ACT, (size_t)(rows * p->n * ys), NULL, 1);
    multiply(c, 0, p, &ref, &x, 0, rows, &y);
    multiply(c, 1, p, &dut, &x, 0, rows, &y);
    cross_same(c, &y, 0, y.n, c->tol, "products by head"); /* what lies between them as well */
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const int32_t n = counts[i] < rows ? counts[i] : rows, first = (rows - n) / 2;
        struct cross_buf some = cross_new(c, CROSS_ACT, (size_t)(n * p->n * ys), NULL, 0);
        void *to = cross_act(c, &some, 1, 0);
        /* Numbers between heads are those of `all`. */
        sv_dev_copy(c->dut, to, cross_act(c, &y, 1, (int64_t)first * p->n * ys),
                    some.n * cross_elem(c, CROSS_ACT));
        multiply(c, 1, p, &dut, &x, first, n, &some);
        for (int32_t r = 0; r < n; r += 5)
            same_row(c, &y, first + r, &some, r, (size_t)(p->n * ys), "products by head");
        cross_free(c, &some);
    }
    cross_free(c, &x), cross_free(c, &y);
    sv_dev_free_experts(c->dut, &dut);
    for (int32_t h = 0; h < p->n; h++)
        rig_free((void *)(uintptr_t)host[h].data);
}

static void products_on(struct cross *c)
{
    static const struct products cases[] = {{5, 512, 128, 64, SV_BF16}, {3, 128, 512, 0, SV_BF16},
                                            {4, 40, 24, 8, SV_BF16},    {2, 33, 7, 3, SV_BF16},
                                            {3, 100, 136, 0, SV_BF16},  {2, 48, 64, 16, SV_F32},
                                            {2, 9, 40, 8, SV_F16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (!c->quick || i % 2 == 0)
            products_of(c, &cases[i]);
}

/* ---------------------------------------------------------------- what is kept, and attention */

struct sizes {
    int32_t n_heads, nope, rot, latent, page;
    bool f8; /* kept in e4m3 */
};

static int32_t width_of(const struct sizes *s)
{
    return s->latent + s->rot;
}

/* As a layer has it: written, then attended to. */
static void write_and_attend(struct cross *c, const struct sizes *s, const struct cross_rows *rows,
                             struct cross_kv *kv, const struct cross_buf *in,
                             const struct cross_buf *q, const struct cross_buf *absorbed,
                             const struct cross_buf *out, const struct cross_weight *norm,
                             const struct cross_buf *table, int32_t max_pos, int side)
{
    const int32_t width = width_of(s), half = s->rot / 2;
    const float *cos = cross_at(table, side);
    struct sv_kv cache = kv->kv[side];
    cache.v = NULL;
    sv_op_mla_write(cross_dev(c, side),
                    &(struct sv_p_mla_write){
                        .rows = rows->rows[side],
                        .kv = cross_at(in, side),
                        .norm = side ? norm->dut : norm->ref,
                        .eps = 1e-6f,
                        .rope = {cos, cos + (size_t)max_pos * (size_t)half, max_pos, s->rot},
                        .interleaved = s->page != 64,
                        .n_heads = s->n_heads,
                        .head_dim = s->nope + s->rot,
                        .q = cross_at(q, side),
                        .absorbed = cross_at(absorbed, side),
                        .cache = cache});
    sv_op_attention(cross_dev(c, side),
                    &(struct sv_p_attention){.rows = rows->rows[side],
                                             .q = cross_at(absorbed, side),
                                             .ldq = (int64_t)s->n_heads * width,
                                             .out = cross_at(out, side),
                                             .ldo = (int64_t)s->n_heads * s->latent,
                                             .n_heads = s->n_heads,
                                             .kv = cache,
                                             .v_dim = s->latent,
                                             .scale = 1 / sqrtf((float)width)});
}

/* The text of slot i is positions [0, len[i]). All of it at once; then again from some place on, in
 * segments of other lengths and beside other slots: the same bits, kept and given. */
static void layer_of(struct cross *c, const struct sizes *s, const int32_t *len, int32_t n_slots)
{
    const int32_t width = width_of(s), max_pos = 2048, nh = s->n_heads;
    struct rig_batch b;
    int32_t n = 0, row0[8];
    rig_batch_init(&b);
    for (int32_t i = 0; i < n_slots; i++) {
        rig_batch_add(&b, i, 0, len[i]);
        row0[i] = n;
        n += len[i];
    }
    const size_t rows_n = (size_t)n + 2;
    struct cross_rows rows = cross_rows(c, &b, 2, 1);
    struct cross_kv kv = s->f8 ? cross_kv_f8(c, n_slots, max_pos, s->page, 1,
                                             (int32_t)sv_kv_row_bytes(SV_F8, width, s->latent), 0)
                               : cross_kv(c, n_slots, max_pos, s->page, 1, width, 1);
    for (int side = 0; side < 2; side++) {
        kv.kv[side].head_dim = width;
        kv.kv[side].latent = s->latent;
    }
    struct cross_buf in = cross_new(c, CROSS_ACT, rows_n * (size_t)width, NULL, 1),
                     q = cross_new(c, CROSS_ACT, rows_n * (size_t)(nh * (s->nope + s->rot)), NULL,
                                   1),
                     absorbed = cross_new(c, CROSS_ACT, rows_n * (size_t)(nh * width), NULL, 1),
                     out = cross_new(c, CROSS_ACT, rows_n * (size_t)(nh * s->latent), NULL, 1),
                     table = cross_new(c, CROSS_F32, (size_t)(max_pos * s->rot), NULL, 1);
    struct cross_weight norm = cross_norm(c, SV_BF16, s->latent, 0.2f);
    for (int side = 0; side < 2; side++)
        write_and_attend(c, s, &rows, &kv, &in, &q, &absorbed, &out, &norm, &table, max_pos, side);
    cross_same(c, &absorbed, 0, (size_t)(n * nh * width), c->tol, "latents: queries");
    if (!s->f8)
        cross_same(c, &kv.k, 0, kv.k.n, c->tol, "latents: what is kept");
    /* Of two codes as near one device may take the one, another the other. */
    cross_same(c, &out, 0, (size_t)(n * nh * s->latent), s->f8 ? 0.05 : 2 * c->tol,
               "latents: attention");
    uint8_t *kept = cross_bytes(c, &kv.k, NULL);
    for (int k = 0; k < (c->quick ? 2 : 5); k++) {
        static const int32_t most[] = {1, 16, 3, 100, 65};
        struct rig_batch part;
        int32_t from[8], m = 0;
        rig_batch_init(&part);
        for (int32_t i = k % 2; i < n_slots; i++) {
            const int32_t each = most[k] < len[i] ? most[k] : len[i];
            from[i] = (int32_t)sv_rng_below(&c->rng, (uint32_t)(len[i] - each + 1));
            rig_batch_add(&part, i, from[i], each);
            m += each;
        }
        struct cross_rows some = cross_rows(c, &part, k % 3, k % 2);
        const size_t all = (size_t)(m + k % 3), elem = cross_elem(c, CROSS_ACT);
        struct cross_buf in2 = cross_new(c, CROSS_ACT, all * (size_t)width, NULL, 1),
                         q2 = cross_new(c, CROSS_ACT, all * (size_t)(nh * (s->nope + s->rot)), NULL,
                                        1),
                         abs2 = cross_new(c, CROSS_ACT, all * (size_t)(nh * width), NULL, 1),
                         out2 = cross_new(c, CROSS_ACT, all * (size_t)(nh * s->latent), NULL, 1);
        const struct cross_buf *const old[] = {&in, &q, &absorbed}, *const now[] = {&in2, &q2,
                                                                                    &abs2};
        const size_t row[] = {(size_t)width, (size_t)(nh * (s->nope + s->rot)),
                              (size_t)(nh * width)};
        for (int j = 0; j < 3; j++)
            for (int32_t i = k % 2, at = 0; i < n_slots; i++) {
                const int32_t each = most[k] < len[i] ? most[k] : len[i];
                sv_dev_copy(
                    c->dut, cross_act(c, now[j], 1, (int64_t)((size_t)at * row[j])),
                    cross_act(c, old[j], 1, (int64_t)((size_t)(row0[i] + from[i]) * row[j])),
                    (size_t)each * row[j] * elem);
                at += each;
            }
        write_and_attend(c, s, &some, &kv, &in2, &q2, &abs2, &out2, &norm, &table, max_pos, 1);
        cross_sync(c);
        for (int32_t i = k % 2, at = 0; i < n_slots; i++) {
            const int32_t each = most[k] < len[i] ? most[k] : len[i];
            for (int32_t r = 0; r < each; r += 7) {
                same_row(c, &out, row0[i] + from[i] + r, &out2, at + r, (size_t)(nh * s->latent),
                         "latents: attention");
                same_row(c, &absorbed, row0[i] + from[i] + r, &abs2, at + r, (size_t)(nh * width),
                         "latents: queries");
            }
            at += each;
        }
        cross_free(c, &in2), cross_free(c, &q2), cross_free(c, &abs2), cross_free(c, &out2);
        cross_rows_free(c, &some);
    }
    uint8_t *again = cross_bytes(c, &kv.k, NULL);
    assert_memory_equal(kept, again, kv.k.n * cross_elem(c, kv.k.type));
    free(kept), free(again);
    cross_free(c, &in), cross_free(c, &q), cross_free(c, &absorbed), cross_free(c, &out);
    cross_free(c, &table);
    cross_weight_free(c, &norm), cross_kv_free(c, &kv), cross_rows_free(c, &rows);
}

static void layer_on(struct cross *c)
{
    static const struct sizes deepseek = {6, 128, 64, 512, 16, false},
                              wide = {16, 128, 64, 512, 64, false},
                              small = {3, 24, 16, 40, 1, false}, f8 = {6, 128, 64, 512, 16, true},
                              small_f8 = {3, 24, 16, 136, 7, true};
    const int32_t few[] = {70, 20, 1}, more[] = {530, 90, 1}, one[] = {c->quick ? 40 : 1100};
    layer_of(c, &deepseek, c->quick ? few : more, 3);
    layer_of(c, &small, few, 3);
    layer_of(c, &f8, c->quick ? few : more, 3);
    layer_of(c, &small_f8, few, 3);
    layer_of(c, &wide, one, 1);
}

/* ---------------------------------------------------------------- router */

struct router {
    int32_t n_experts, k, n_group, topk_group, n_rows;
    bool renorm, bias;
};

/* x and W are small integers: logits are exact, equal on all devices, and often tie. */
static void route_of(struct cross *c, const struct router *t)
{
    enum { HIDDEN = 40 };
    const int32_t n = t->n_rows + 2;
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, t->n_rows);
    struct cross_rows rows = cross_rows(c, &b, 2, 1);
    float *x = calloc((size_t)(n * HIDDEN), sizeof *x);
    float *w = calloc((size_t)(t->n_experts * HIDDEN), sizeof *w),
          *plus = calloc((size_t)t->n_experts, sizeof *plus);
    for (int32_t i = 0; i < n * HIDDEN; i++)
        x[i] = (float)((int32_t)sv_rng_below(&c->rng, 3) - 1);
    for (int32_t i = 0; i < t->n_experts * HIDDEN; i++)
        w[i] = (float)((int32_t)sv_rng_below(&c->rng, 3) - 1) / 4;
    for (int32_t i = 0; i < t->n_experts; i++)
        plus[i] = (float)(sv_rng_below(&c->rng, 9)) / 8 - 0.5f;
    struct sv_weight host[2] = {
        {.fmt.elem = SV_F32, .rows = t->n_experts, .cols = HIDDEN, .data = w},
        {.fmt.elem = SV_F32, .rows = 1, .cols = t->n_experts, .data = plus}};
    struct sv_weight dut[2];
    struct sv_err err;
    for (int i = 0; i < 2; i++)
        if (sv_dev_upload_weight(c->dut, &host[i], &dut[i], &err))
            fail_msg("%s: %s", c->name, err.msg);
    struct cross_buf xs = cross_new(c, CROSS_ACT, (size_t)(n * HIDDEN), x, 0);
    struct sv_routes r[2] = {{.n_rows = n, .n_experts = t->n_experts, .k = t->k}};
    struct cross_buf tables = cross_new(c, CROSS_I32, sv_routes_lay_out(&r[0], NULL) / 4, NULL, 0);
    uint8_t *image = NULL;
    for (int side = 0; side < 2; side++) {
        r[side] = r[0];
        sv_routes_lay_out(&r[side], cross_at(&tables, side));
        sv_op_router_topk(
            cross_dev(c, side),
            &(struct sv_p_router_topk){.rows = rows.rows[side],
                                       .x = cross_at(&xs, side),
                                       .w = side ? dut[0] : host[0],
                                       .norm = SV_ROUTER_SIGMOID,
                                       .sigmoid = {.bias = !t->bias ? (struct sv_weight){0}
                                                           : side   ? dut[1]
                                                                    : host[1],
                                                   .n_group = t->n_group,
                                                   .topk_group = t->topk_group,
                                                   .renorm = t->renorm,
                                                   .scale = 2.5f},
                                       .routes = r[side]});
    }
    image = cross_bytes(c, &tables, NULL);
    struct sv_routes got = r[0];
    sv_routes_lay_out(&got, image);
    for (int32_t i = 0; i < n * t->k; i++) {
        if (got.expert[i] != r[0].expert[i] || got.place[i] != r[0].place[i])
            fail_msg("%s: router of %d experts in %d groups: entry %d: %d, expected %d", c->name,
                     (int)t->n_experts, (int)t->n_group, (int)i, (int)got.expert[i],
                     (int)r[0].expert[i]);
        if (got.expert[i] >= 0)
            rig_near((double)got.weight[i], (double)r[0].weight[i], 1e-5, "router: weight", i);
    }
    assert_int_equal(*got.n_active, *r[0].n_active);
    assert_memory_equal(got.first, r[0].first, (size_t)(t->n_experts + 1) * sizeof *got.first);
    free(image), free(x), free(w), free(plus);
    for (int i = 0; i < 2; i++)
        sv_dev_free_weight(c->dut, &dut[i]);
    cross_free(c, &xs), cross_free(c, &tables), cross_rows_free(c, &rows);
}

static void router_on(struct cross *c)
{
    static const struct router cases[] = {
        {256, 8, 8, 4, 5, true, true},   {384, 8, 1, 1, 3, true, true},
        {12, 3, 4, 2, 90, true, true},   {16, 6, 8, 3, 30, false, true},
        {6, 4, 3, 2, 200, true, false},  {10, 3, 5, 5, 9, false, false},
        {320, 5, 160, 40, 7, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        route_of(c, &cases[i]);
}

static void products(void **state)
{
    (void)state;
    cross_all(products_on);
}

static void layer(void **state)
{
    (void)state;
    cross_all(layer_on);
}

static void router(void **state)
{
    (void)state;
    cross_all(router_on);
}

SV_TEST_MAIN(cmocka_unit_test(products), cmocka_unit_test(layer), cmocka_unit_test(router))
