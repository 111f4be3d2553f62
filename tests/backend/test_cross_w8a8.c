/*
 * test_cross_w8a8.c - products with activations in fp8 on a GPU against their definition.
 *
 * timeout: 120
 *
 * Codes and scales of x are those of fp8.cuh bit for bit: a matrix of ones on the diagonal gives
 * each of them back. Other products are compared with sums in double of the same codes and scales;
 * the tensor cores keep 14 bits of a group's sum, so an element may be off by 2^-10 of the sum of
 * its magnitudes. A row has the same bits for every number of rows and every place among them.
 * Without a GPU that has such kernels the definition alone is checked, and the test says so.
 */
#include "backend/cross.h"
#include "backend/gpu/fp8.cuh"
#include "backend/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 700, GROUP = SV_FP8_TILE_COLS };

static const struct cross_form forms[] = {
    {"f8 in blocks", SV_CODE_F8, SV_BF16, 128, 128},
    {"f8 by rows", SV_CODE_F8, SV_F32, 1, 0},
    {"f8, one scale", SV_CODE_F8, SV_F32, 0, 0},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* ---------------------------------------------------------------- the definition */

struct row {
    uint8_t *codes;
    float *scales;
};

static struct row quantized(const uint16_t *x, int32_t k)
{
    struct row r = {malloc((size_t)k), malloc((size_t)sv_fp8_tiles(k) * sizeof(float))};
    for (int32_t k0 = 0; k0 < k; k0 += GROUP) {
        const int32_t n = k - k0 < GROUP ? k - k0 : GROUP;
        uint32_t most = 0;
        for (int32_t i = 0; i < n; i++)
            most = most > (x[k0 + i] & 0x7fffu) ? most : x[k0 + i] & 0x7fffu;
        const float scale = sv_fp8_group_scale(most), inverse = sv_fp8_group_inverse(scale);
        r.scales[k0 / GROUP] = scale;
        for (int32_t i = 0; i < n; i++)
            r.codes[k0 + i] = inverse > 0 ? sv_fp8_of(sv_bf16_to_f32(x[k0 + i]) * inverse) : 0;
    }
    return r;
}

static void row_free(struct row *r)
{
    free(r->codes);
    free(r->scales);
}

/* What the definition says of odd groups, and that codes are the nearest. */
static void definition(void **state)
{
    (void)state;
    struct sv_rng rng = {5};
    uint16_t x[3 * GROUP];
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 3 * GROUP; i++)
            x[i] = sv_f32_to_bf16(ldexpf(sv_rng_normal(&rng), round - 100));
        x[5] = round % 2 ? 0x7f80 : 0xffc1;
        for (int i = GROUP; i < 2 * GROUP; i++)
            x[i] = i % 2 ? 0x8000 : 0;
        struct row r = quantized(x, 3 * GROUP);
        assert_true(isnan(r.scales[0]) && r.scales[1] == 0);
        for (int i = 0; i < 2 * GROUP; i++)
            assert_int_equal(r.codes[i], 0);
        float most = 0;
        for (int i = 2 * GROUP; i < 3 * GROUP; i++)
            most = fmaxf(most, fabsf(sv_bf16_to_f32(x[i])));
        assert_true(r.scales[2] == (most < 0x1p-100f ? 0 : most / 448));
        for (int i = 2 * GROUP; i < 3 * GROUP && r.scales[2] > 0; i++) {
            const float v = sv_bf16_to_f32(x[i]) / r.scales[2], got = sv_f8_to_f32(r.codes[i]);
            assert_true(fabsf(v) <= 448.01f);
            assert_true(fabsf(got - v) <= fmaxf(0x1p-10f, fabsf(v) * 0x1.01p-4f));
        }
        row_free(&r);
    }
}

/* ---------------------------------------------------------------- products */

struct product {
    int32_t k, n_parts, rows[3];
    bool gated;
};

struct set {
    struct sv_quant q[3];
    struct sv_gemm_part part[3];
    int32_t ldy;
};

static void upload(struct cross *c, const struct sv_quant *q, enum sv_role role,
                   struct sv_weight *w)
{
    struct sv_err err = {0};
    const struct sv_weight host = {.role = role,
                                   .fmt.elem = SV_U8,
                                   .rows = q->rows,
                                   .cols = q->cols,
                                   .data = q->data,
                                   .quant = q};
    if (sv_dev_upload_weight(c->dut, &host, w, &err))
        fail_msg("%s", err.msg);
}

static void reserve(struct cross *c, int32_t k)
{
    const struct sv_dev_limits lim = rig_limits(k, 8192);
    struct sv_err err = {0};
    if (sv_dev_reserve(c->dut, &lim, &err))
        fail_msg("%s", err.msg);
}

static struct set set_new(struct cross *c, const struct cross_form *f, const struct product *s)
{
    struct set m = {0};
    for (int i = 0; i < s->n_parts; i++) {
        m.q[i] = cross_quant(c, f, s->rows[i], s->k);
        upload(c, &m.q[i], s->gated ? (i ? SV_ROLE_UP : SV_ROLE_GATE) : SV_ROLE_Q, &m.part[i].w);
        m.ldy += s->gated ? (i == 0) * s->rows[i] : s->rows[i];
    }
    reserve(c, s->k);
    return m;
}

static void set_free(struct cross *c, struct set *m, const struct product *s)
{
    for (int i = 0; i < s->n_parts; i++) {
        sv_dev_free_weight(c->dut, &m->part[i].w);
        cross_quant_free(&m->q[i]);
    }
}

/* Rows [first, first + n) of x; f32, or bf16 where it is gated. */
static uint8_t *run(struct cross *c, const struct product *s, const struct set *m,
                    const struct cross_buf *x, int32_t first, int32_t n, bool f32)
{
    size_t n_bytes;
    struct cross_buf y = cross_new(c, f32 ? CROSS_F32 : CROSS_ACT,
                                   (size_t)(n * m->ldy) * (s->gated ? 3 : 1), NULL, 0);
    const void *from = cross_act(c, x, 1, (int64_t)first * s->k);
    if (s->gated)
        sv_op_gemm_act_mul(
            c->dut, &(struct sv_p_gemm_act_mul){.n_rows = n,
                                                .k = s->k,
                                                .x = from,
                                                .ldx = s->k,
                                                .parts = m->part,
                                                .gate_up = cross_act(c, &y, 1, (int64_t)n * m->ldy),
                                                .out = cross_at(&y, 1)});
    else
        sv_op_gemm(c->dut, &(struct sv_p_gemm){.n_rows = n,
                                               .k = s->k,
                                               .n_parts = s->n_parts,
                                               .x = from,
                                               .ldx = s->k,
                                               .parts = m->part,
                                               .y = cross_at(&y, 1),
                                               .ldy = m->ldy,
                                               .y_f32 = f32});
    cross_sync(c);
    uint8_t *got = cross_bytes(c, &y, &n_bytes);
    cross_free(c, &y);
    return got;
}

/* Ones on the diagonal: code times scale of each number of x. */
static void bits_of_x(struct cross *c)
{
    enum { K = 328, ROWS = 40 };
    const struct product s = {K, 1, {K}, false};
    uint8_t *codes = calloc(K, K);
    float one = 1;
    for (int i = 0; i < K; i++)
        codes[i * K + i] = 0x38;
    struct set m = {.q[0] = {.code = SV_CODE_F8,
                             .rows = K,
                             .cols = K,
                             .data = codes,
                             .scales = &one,
                             .scale = SV_F32,
                             .block_rows = K,
                             .block_cols = K},
                    .ldy = K};
    upload(c, &m.q[0], SV_ROLE_Q, &m.part[0].w);
    reserve(c, K);
    struct cross_buf x = cross_new(c, CROSS_ACT, ROWS * K, NULL, 1);
    uint16_t *half = malloc(ROWS * K * 2);
    for (int i = 0; i < ROWS * K; i++) {
        half[i] = sv_f32_to_bf16(ldexpf(sv_rng_normal(&c->rng), i / K * 6 - 118));
        if (i / K == 7 && i % 3)
            half[i] = 0x8000;
        if (i / K == 9)
            half[i] = 0;
    }
    half[3 * K + 200] = 0x7f80;
    half[4 * K + 327] = 0x7fc0;
    sv_dev_upload(c->dut, cross_at(&x, 1), half, ROWS * K * 2);
    cross_sync(c);
    uint8_t *bytes = run(c, &s, &m, &x, 0, ROWS, true);
    const float *got = (const float *)(const void *)bytes;
    for (int32_t r = 0; r < ROWS; r++) {
        struct row want = quantized(half + r * K, K);
        for (int32_t i = 0; i < K; i++) {
            const float w = sv_f8_to_f32(want.codes[i]) * want.scales[i / GROUP];
            if (r == 3 || r == 4 ? !isnan(got[r * K + i]) : got[r * K + i] != w)
                fail_msg("row %d, column %d: %a, not %a", r, i, (double)got[r * K + i], (double)w);
        }
        row_free(&want);
    }
    free(bytes), free(half), free(codes);
    cross_free(c, &x);
    sv_dev_free_weight(c->dut, &m.part[0].w);
}

static float scale_at(const struct sv_quant *q, int32_t row, int32_t col)
{
    const int64_t at =
        (int64_t)(row / q->block_rows) * ((q->cols + q->block_cols - 1) / q->block_cols) +
        col / q->block_cols;
    return q->scale == SV_F32 ? ((const float *)q->scales)[at]
                              : sv_bf16_to_f32(((const uint16_t *)q->scales)[at]);
}

/* Some elements of y in f32. */
static void against_definition(struct cross *c, const char *name, const struct product *s,
                               const struct set *m, const struct cross_buf *x, int32_t n)
{
    uint8_t *bytes = run(c, s, m, x, 0, n, true);
    size_t n_bytes;
    uint8_t *half = cross_bytes(c, x, &n_bytes);
    const float *y = (const float *)(const void *)bytes;
    double worst = 0;
    for (int32_t r = 0; r<n; r += n> 8 ? 37 : 1) {
        struct row a =
            quantized((const uint16_t *)(const void *)half + (size_t)r * (size_t)s->k, s->k);
        int32_t col = 0;
        for (int p = 0; p < s->n_parts; col += s->rows[p++])
            for (int32_t o = 0; o < s->rows[p]; o += 29) {
                const uint8_t *w = (const uint8_t *)m->q[p].data + (size_t)o * (size_t)s->k;
                double sum = 0, all = 0;
                for (int32_t i = 0; i < s->k; i++) {
                    const double v = (double)sv_f8_to_f32(a.codes[i]) * sv_f8_to_f32(w[i]) *
                                     (double)a.scales[i / GROUP] * scale_at(&m->q[p], o, i);
                    sum += v;
                    all += fabs(v);
                }
                const double off =
                    fabs(y[(size_t)r * (size_t)m->ldy + (size_t)(col + o)] - sum) / all;
                worst = off > worst || isnan(off) ? off : worst;
            }
        row_free(&a);
    }
    print_message("%s, k %d, %d x %d, %d rows: off by 2^%.1f of the magnitudes at most\n", name,
                  s->k, s->n_parts, s->rows[0], n, log2(worst));
    if (!(worst < 0x1p-10))
        fail_msg("%s: off by %g", name, worst);
    free(bytes), free(half);
}

/* Every count of rows up to 300 and some more, at different places in x: the bits of the most. */
static void same_bits(struct cross *c, const char *name, const struct product *s,
                      const struct set *m, const struct cross_buf *x, bool all)
{
    static const int32_t counts[] = {1,  2,  7,   8,   9,   16,  17,  31,  33,  64,  65,
                                     96, 97, 128, 129, 130, 192, 255, 257, 300, 384, 600};
    uint8_t *whole = run(c, s, m, x, 0, MOST_ROWS, false);
    const size_t row_bytes = (size_t)m->ldy * 2;
    for (int32_t i = 1; i <= (all ? 300 : (int32_t)(sizeof counts / sizeof counts[0])); i++) {
        const int32_t n = all ? i : counts[i - 1], first = (MOST_ROWS - n) * (i % 3) / 2;
        uint8_t *got = run(c, s, m, x, first, n, false);
        for (size_t b = 0; b < (size_t)n * row_bytes; b++)
            if (got[b] != whole[(size_t)first * row_bytes + b])
                fail_msg("%s, k %d, %d parts of %d: row %zu of %d from %d has other bits, byte %zu",
                         name, s->k, s->n_parts, s->rows[0], b / row_bytes, n, first,
                         b % row_bytes);
        free(got);
    }
    free(whole);
}

/* Blocks that are shared by two units, four, and none of 192 rows; cut anywhere; with ends. */
static void products_on(struct cross *c)
{
    static const struct product shapes[] = {
        {1024, 3, {4096, 1024, 1024}, false},
        {4096, 1, {4096}, false},
        {512, 2, {12288, 12288}, true},
        {320, 2, {480, 480}, true},
        {200, 1, {1000}, false},
    };
    bits_of_x(c);
    for (int f = 0; f < N_FORMS; f++)
        for (int i = 0; i < 5; i++) {
            const struct product *s = &shapes[i];
            if (f && i == 2)
                continue;
            struct set m = set_new(c, &forms[f], s);
            struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(MOST_ROWS * s->k), NULL, 1);
            for (int k = 0; k < 4 && !s->gated; k++)
                against_definition(c, forms[f].name, s, &m, &x,
                                   k == 0   ? 1
                                   : k == 1 ? 40
                                   : k == 2 ? 300
                                            : MOST_ROWS);
            same_bits(c, forms[f].name, s, &m, &x, f == 0 && i == 0);
            cross_free(c, &x);
            set_free(c, &m, s);
        }
}

static void products(void **state)
{
    (void)state;
    const struct sv_dev_opts ref = {.backend = "cpu", .n_threads = 2},
                             o = {.backend = "cuda",
                                  .compute = SV_BF16,
                                  .tuning.activations = SV_ACTIVATIONS_FP8};
    struct cross c = {.name = "fp8 activations", .bf16 = true, .rng = {42}};
    struct sv_err err = {0};
    if (sv_dev_open(&c.dut, &o, &err)) {
        print_message("products with activations in fp8 were NOT checked: %s\n", err.msg);
        skip();
    }
    assert_int_equal(sv_dev_open(&c.ref, &ref, &err), SV_OK);
    assert_non_null(strstr(sv_dev_describe(c.dut), ", fp8 activations"));
    assert_false(sv_dev_rounds(c.dut));
    products_on(&c);
    assert_true(sv_dev_rounds(c.dut));
    cross_sync(&c);
    sv_dev_close(c.dut);
    sv_dev_close(c.ref);
}

/* By name: where there are no such kernels. */
static void refusals(void **state)
{
    (void)state;
    static const struct {
        struct sv_dev_opts o;
        const char *says;
    } cases[] = {
        {{.backend = "cpu", .tuning.activations = SV_ACTIVATIONS_FP8}, "fp8 is for GPUs"},
        {{.backend = "cuda", .compute = SV_BF16, .tuning.activations = SV_ACTIVATIONS_INT8},
         "int8 is for the CPU"},
        {{.backend = "cuda", .compute = SV_F32, .tuning.activations = SV_ACTIVATIONS_FP8},
         "fp8 needs"},
        {{.backend = "cuda",
          .compute = SV_BF16,
          .tuning = {.activations = SV_ACTIVATIONS_FP8, .kernels = SV_KERNELS_PORTABLE}},
         "fp8 needs"},
    };
    const struct sv_dev_opts plain = {.backend = "cuda", .compute = SV_BF16};
    struct sv_dev *dev = NULL;
    struct sv_err err = {0};
    const bool gpu = !sv_dev_open(&dev, &plain, &err);
    if (gpu)
        sv_dev_close(dev);
    for (size_t i = 0; i < (gpu ? sizeof cases / sizeof cases[0] : 1); i++) {
        assert_int_equal(sv_dev_open(&dev, &cases[i].o, &err), SV_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, cases[i].says));
    }
}

SV_TEST_MAIN(cmocka_unit_test(definition), cmocka_unit_test(refusals), cmocka_unit_test(products))
