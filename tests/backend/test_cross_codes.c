/*
 * test_cross_codes.c - products from quantized weights against products from the matrix of their
 * values, bit for bit, on every device of this machine that takes codes.
 *
 * timeout: 120
 *
 * The matrix has each weight's f32 value (test_quant.c), in bf16 mode rounded to bf16. Row counts
 * reach every way in which a GPU multiplies. Without a GPU only the CPU is checked, and the test
 * says so.
 */
#include "backend/cross.h"
#include "backend/quant.h"

#include <stdlib.h>
#include <string.h>

static const struct cross_form forms[] = {
    {"f8 in blocks", SV_CODE_F8, SV_BF16, 128, 128},
    {"f8 by rows", SV_CODE_F8, SV_F32, 1, 0},
    {"f8, one scale", SV_CODE_F8, SV_F32, 0, 0},
    {"i8 by rows", SV_CODE_I8, SV_F32, 1, 0},
    {"int8 in groups", SV_CODE_INT8, SV_F16, 1, 64},
    {"int8 in groups of 32", SV_CODE_INT8, SV_BF16, 1, 32},
    {"int4 in groups", SV_CODE_INT4, SV_BF16, 1, 64},
    {"int4 in groups of 32", SV_CODE_INT4, SV_BF16, 1, 32},
    {"int4 by rows, f16", SV_CODE_INT4, SV_F16, 1, 0},
    {"int4 in groups of 32, f16", SV_CODE_INT4, SV_F16, 1, 32},
    {"q4_0", SV_CODE_Q4_0, SV_F16, 1, 32},
    {"q8_0", SV_CODE_Q8_0, SV_F16, 1, 32},
    {"q4_k", SV_CODE_Q4_K, SV_F16, 1, 256},
    {"q5_k", SV_CODE_Q5_K, SV_F16, 1, 256},
    {"q6_k", SV_CODE_Q6_K, SV_F16, 1, 256},
    {"iq4_nl", SV_CODE_IQ4_NL, SV_F16, 1, 32},
    {"awq", SV_CODE_AWQ, SV_F16, 1, 64},
    {"gptq", SV_CODE_GPTQ4, SV_BF16, 1, 64},
    {"mxfp4", SV_CODE_MXFP4, SV_U8, 1, 32},
    {"nvfp4", SV_CODE_NVFP4, SV_F8, 1, 16},
};
enum { N_FORMS = sizeof forms / sizeof forms[0], MOST_ROWS = 600 };

struct matrix {
    struct sv_quant q;
    void *values; /* bf16 or f32, as the device computes */
};

static struct matrix matrix_new(struct cross *c, const struct cross_form *f, int32_t rows,
                                int32_t cols)
{
    struct matrix m = {.q = cross_quant(c, f, rows, cols)};
    float *row = malloc((size_t)cols * sizeof *row);
    m.values = malloc((size_t)rows * (size_t)cols * sizeof(float));
    sv_quant_expand(&m.q, 0, rows, sv_dev_compute_dtype(c->dut), m.values, row);
    free(row);
    return m;
}

/* A rank's part of a larger matrix: two ranges of rows, columns from the second block on. */
static struct matrix part_new(struct cross *c, const struct cross_form *f, int32_t rows,
                              int32_t cols)
{
    enum { APART = 40 };
    const int32_t col0 = f->block_cols, half = rows / 2;
    const struct sv_slice range[2] = {{APART, half}, {2 * APART + half, rows - half}};
    struct matrix whole = matrix_new(c, f, rows + 3 * APART, cols + 2 * col0), m = {0};
    const size_t elem = sv_dtype_bytes(sv_dev_compute_dtype(c->dut)), line = (size_t)cols * elem;
    const struct sv_slice inputs = {col0, cols};
    const int64_t n_bytes = sv_quant_part(&m.q, &whole.q, range, 2, inputs, NULL);
    assert_true(n_bytes > 0);
    assert_int_equal(sv_quant_part(&m.q, &whole.q, range, 2, inputs, malloc((size_t)n_bytes)),
                     n_bytes);
    m.values = malloc((size_t)rows * line);
    for (int32_t r = 0; r < rows; r++) {
        const int32_t from = r < half ? APART + r : 2 * APART + r;
        memcpy((uint8_t *)m.values + (size_t)r * line,
               (uint8_t *)whole.values +
                   ((size_t)from * (size_t)whole.q.cols + (size_t)col0) * elem,
               line);
    }
    m.q.scales = m.q.zeros = NULL; /* GGUF blocks have none */
    cross_quant_free(&whole.q);
    free(whole.values);
    return m;
}

static void matrix_free(struct matrix *m)
{
    cross_quant_free(&m->q);
    free(m->values);
}

/* A matrix on the device, in codes or expanded. */
static struct sv_weight upload_one(struct cross *c, const struct matrix *m, enum sv_role role,
                                   bool codes)
{
    struct sv_err err = {0};
    struct sv_weight out;
    if (sv_dev_upload_weight(
            c->dut,
            &(struct sv_weight){.role = role,
                                .fmt.elem = codes ? SV_U8 : sv_dev_compute_dtype(c->dut),
                                .rows = m->q.rows,
                                .cols = m->q.cols,
                                .data = codes ? m->q.data : m->values,
                                .quant = codes ? &m->q : NULL},
            &out, &err))
        fail_msg("%s", err.msg);
    return out;
}

/* Both kinds of it. */
static void upload(struct cross *c, const struct matrix *m, enum sv_role role,
                   struct sv_weight w[2])
{
    w[0] = upload_one(c, m, role, true);
    w[1] = upload_one(c, m, role, false);
}

struct product {
    int32_t k, n_parts, rows[3];
    bool gated, f32, cut, mixed; /* cut: of larger matrices; mixed: every other part is Q6_K */
};

static void multiply(struct cross *c, const struct product *s, const struct sv_gemm_part *part,
                     const struct cross_buf *x, const struct cross_buf *y, int32_t n, int32_t ldy)
{
    if (s->gated)
        sv_op_gemm_act_mul(c->dut,
                           &(struct sv_p_gemm_act_mul){.n_rows = n,
                                                       .k = s->k,
                                                       .x = cross_at(x, 1),
                                                       .ldx = s->k,
                                                       .parts = part,
                                                       .gate_up = cross_act(c, y, 1, n * ldy),
                                                       .out = cross_at(y, 1)});
    else
        sv_op_gemm(c->dut, &(struct sv_p_gemm){.n_rows = n,
                                               .k = s->k,
                                               .n_parts = s->n_parts,
                                               .x = cross_at(x, 1),
                                               .ldx = s->k,
                                               .parts = part,
                                               .y = cross_at(y, 1),
                                               .ldy = ldy,
                                               .y_f32 = s->f32});
    cross_sync(c);
}

static void compare(struct cross *c, const char *name, const struct product *s,
                    struct sv_gemm_part part[2][3], int32_t n)
{
    int32_t ldy = 0;
    size_t n_bytes;
    uint8_t *got[2];
    for (int i = 0; i < s->n_parts; i++)
        ldy += s->gated ? (i == 0) * s->rows[i] : s->rows[i];
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(n * s->k), NULL, 1);
    for (int kind = 0; kind < 2; kind++) {
        struct cross_buf y = cross_new(c, s->f32 ? CROSS_F32 : CROSS_ACT,
                                       (size_t)(n * ldy) * (s->gated ? 3 : 1), NULL, 0);
        multiply(c, s, part[kind], &x, &y, n, ldy);
        got[kind] = cross_bytes(c, &y, &n_bytes);
        cross_free(c, &y);
    }
    const size_t used = s->gated ? n_bytes / 3 : n_bytes;
    for (size_t i = 0; i < used; i++)
        if (got[0][i] != got[1][i])
            fail_msg("%s, %s, k %d, %d parts of %d, %d rows: byte %zu of %zu differs", c->name,
                     name, s->k, s->n_parts, s->rows[0], n, i, used);
    free(got[0]), free(got[1]);
    cross_free(c, &x);
}

static void product_case(struct cross *c, const struct cross_form *f, const struct product *s)
{
    static const struct cross_form six = {"q6_k", SV_CODE_Q6_K, SV_F16, 1, 256};
    static const int32_t counts[] = {1, 5, 16, 33, 64, 100, 128, 129, 257, MOST_ROWS};
    struct sv_gemm_part part[2][3] = {0};
    struct matrix m[3];
    const struct sv_dev_limits lim = rig_limits(s->k, 4096);
    struct sv_err err = {0};
    for (int i = 0; i < s->n_parts; i++) {
        struct sv_weight w[2];
        m[i] = (s->cut ? part_new : matrix_new)(c, s->mixed && i % 2 ? &six : f, s->rows[i], s->k);
        assert_true(sv_dev_takes_codes(c->dut, &m[i].q, SV_ROLE_Q));
        upload(c, &m[i], s->gated ? (i ? SV_ROLE_UP : SV_ROLE_GATE) : SV_ROLE_Q, w);
        part[0][i].w = w[0];
        part[1][i].w = w[1];
    }
    if (sv_dev_reserve(c->dut, &lim, &err)) /* again: weights have come */
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (!c->quick || counts[i] < 40)
            compare(c, f->name, s, part, counts[i]);
    for (int i = 0; i < s->n_parts; i++) {
        sv_dev_free_weight(c->dut, &part[0][i].w);
        sv_dev_free_weight(c->dut, &part[1][i].w);
        matrix_free(&m[i]);
    }
}

/* Parts in codes, then some in bf16, as a delta rule's input has them: a row alone, for which there
 * is one launch, has the bits that it has among others. */
static void beside_case(struct cross *c, const struct cross_form *f, int32_t k, int32_t rows)
{
    enum { N_PARTS = 3, PLAIN = 2, AMONG = 3 };
    const struct product s = {.k = k, .n_parts = N_PARTS, .rows = {rows, 48, 32}};
    const struct sv_dev_limits lim = rig_limits(k, 16384);
    const int32_t ldy = rows + 48 + 32;
    struct sv_gemm_part part[N_PARTS] = {0};
    struct matrix m[N_PARTS]; /* the CPU uses them in place */
    struct sv_err err = {0};
    uint8_t *got[2];
    size_t n_bytes;
    for (int i = 0; i < N_PARTS; i++) {
        const bool codes = i < N_PARTS - PLAIN;
        m[i] = matrix_new(c, f, s.rows[i], k);
        part[i].w = upload_one(c, &m[i], codes ? SV_ROLE_GDN_QKV : SV_ROLE_GDN_B, codes);
    }
    if (sv_dev_reserve(c->dut, &lim, &err))
        fail_msg("%s", err.msg);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(AMONG * k), NULL, 1);
    for (int i = 0; i < 2; i++) {
        struct cross_buf y = cross_new(c, CROSS_ACT, (size_t)(AMONG * ldy), NULL, 0);
        multiply(c, &s, part, &x, &y, i ? AMONG : 1, ldy);
        got[i] = cross_bytes(c, &y, &n_bytes);
        cross_free(c, &y);
    }
    for (size_t i = 0; i < n_bytes / AMONG; i++)
        if (got[0][i] != got[1][i])
            fail_msg("%s, %s, k %d, %d rows of weights beside bf16: byte %zu of a row differs",
                     c->name, f->name, k, rows, i);
    free(got[0]), free(got[1]);
    cross_free(c, &x);
    for (int i = 0; i < N_PARTS; i++) {
        sv_dev_free_weight(c->dut, &part[i].w);
        matrix_free(&m[i]);
    }
}

static void products_on(struct cross *c)
{
    static const struct product shapes[] = {
        {.k = 512, .n_parts = 3, .rows = {768, 128, 128}},
        {.k = 320, .n_parts = 1, .rows = {1000}, .f32 = true},
        {.k = 256, .n_parts = 2, .rows = {480, 480}, .gated = true},
        {.k = 1024, .n_parts = 2, .rows = {896, 896}, .gated = true},
        /* on Hopper sums of eight equal pieces, and of two or three others */
        {.k = 2048, .n_parts = 1, .rows = {200}},
        {.k = 448, .n_parts = 2, .rows = {1000, 280}},
        {.k = 448, .n_parts = 2, .rows = {8200, 1016}},
        /* GGUF's alone */
        {.k = 768, .n_parts = 2, .rows = {200, 72}, .cut = true},
        {.k = 512, .n_parts = 3, .rows = {192, 64, 64}, .mixed = true},
    };
    enum { N_SHAPES = sizeof shapes / sizeof shapes[0], N_COMMON = 7 };
    const struct sv_quant probe = {
        .code = SV_CODE_F8, .rows = 64, .cols = 64, .block_rows = 64, .block_cols = 64};
    if (!sv_dev_takes_codes(c->dut, &probe, SV_ROLE_Q)) {
        print_message("%s takes no codes\n", c->name);
        return;
    }
    /* On Hopper sums of four and four pieces, of two and eight, and of one and eight. */
    for (int f = 0; f < N_FORMS; f += c->quick ? N_FORMS : 1)
        beside_case(c, &forms[f], 1024, 1536);
    beside_case(c, &forms[0], 2048, c->quick ? 640 : 5632);
    if (!c->quick)
        beside_case(c, &forms[0], 2048, 12288);
    for (int f = 0; f < N_FORMS; f++) {
        const int32_t block = sv_quant_block(forms[f].code);
        for (int i = 0; i < N_SHAPES; i++) {
            struct product s = shapes[i];
            s.k = block && s.k % block ? s.k / block * block + block : s.k;
            if (i < N_COMMON ? i < 2 || (i > 3 && i < 6) || !c->quick : block > 0)
                product_case(c, &forms[f], &s);
        }
    }
}

static void products(void **state)
{
    (void)state;
    cross_all(products_on);
}

SV_TEST_MAIN(cmocka_unit_test(products))
