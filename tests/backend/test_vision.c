/*
 * test_vision.c - the ops of a vision tower on every level of this machine against double
 * precision, a row's bits alone and among others; and rows that are rotated by three positions.
 */
#include "backend/ops_vision.h"
#include "backend/rig.h"
#include "testing.h"

#include <math.h>
#include <string.h>

enum { MAX_ROWS = 40 };

/* Whatever an op does to x of n rows by itself it does to each row alone. */
typedef void op_fn(struct sv_dev *dev, const void *p, int32_t first, int32_t n, float *x);

static void alone(struct sv_dev *dev, op_fn *op, const void *p, const float *x, const float *all,
                  int32_t d)
{
    const size_t row = (size_t)d * sizeof *x;
    for (int32_t r = 0; r < MAX_ROWS; r += 7) {
        float *one = rig_new(row);
        memcpy(one, x + (int64_t)r * d, row);
        op(dev, p, r, 1, one);
        rig_sync(dev, SV_OK);
        assert_memory_equal(one, all + (int64_t)r * d, row);
        rig_free(one);
    }
}

static void near(double is, double want, double scale, const char *what, int32_t d)
{
    if (!(fabs(is - want) <= 4e-6 * scale))
        fail_msg("%s, width %d: %.9g, not %.9g", what, d, is, want);
}

/* ---------------------------------------------------------------- layer_norm */

static void norm_op(struct sv_dev *dev, const void *p, int32_t first, int32_t n, float *x)
{
    struct sv_p_layer_norm q = *(const struct sv_p_layer_norm *)p;
    float *in = rig_new((size_t)n * (size_t)q.d * sizeof *x);
    (void)first;
    memcpy(in, x, (size_t)n * (size_t)q.d * sizeof *x);
    q.n_rows = n;
    q.x = in;
    q.out = x;
    sv_op_layer_norm(dev, &q);
    rig_free(in);
}

static void norm_case(struct sv_dev *dev, int32_t d, enum sv_dtype dtype)
{
    struct sv_rng rng = {3};
    float *x = rig_floats(&rng, (size_t)MAX_ROWS * (size_t)d, 2),
          *out = rig_new((size_t)MAX_ROWS * (size_t)d * sizeof *out);
    for (int32_t i = 0; i < MAX_ROWS * d; i++)
        x[i] += 3;
    memcpy(out, x, (size_t)MAX_ROWS * (size_t)d * sizeof *out);
    struct sv_p_layer_norm p = {.d = d,
                                .weight = rig_weight(&rng, dtype, 1, d, 0.3f, 1),
                                .bias = rig_weight(&rng, dtype, 1, d, 1, 0),
                                .eps = 1e-6f};
    norm_op(dev, &p, 0, MAX_ROWS, out);
    rig_sync(dev, SV_OK);
    for (int32_t r = 0; r < MAX_ROWS; r++) {
        const float *row = x + (int64_t)r * d;
        double mean = 0, var = 0;
        for (int32_t i = 0; i < d; i++)
            mean += (double)row[i] / d;
        for (int32_t i = 0; i < d; i++)
            var += ((double)row[i] - mean) * ((double)row[i] - mean) / d;
        for (int32_t i = 0; i < d; i++)
            near((double)out[(int64_t)r * d + i],
                 ((double)row[i] - mean) / sqrt(var + 1e-6) * rig_weight_at(&p.weight, i) +
                     rig_weight_at(&p.bias, i),
                 8, "layer norm", d);
    }
    alone(dev, norm_op, &p, x, out, d);
    rig_free(x), rig_free(out);
    rig_free((void *)(uintptr_t)p.weight.data), rig_free((void *)(uintptr_t)p.bias.data);
}

static void norms_on(struct sv_dev *dev)
{
    static const int32_t widths[] = {1, 8, 33, 72, 128};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        norm_case(dev, widths[i], i % 2 ? SV_BF16 : SV_F32);
}

/* ---------------------------------------------------------------- gelu */

static void gelu_op(struct sv_dev *dev, const void *p, int32_t first, int32_t n, float *x)
{
    struct sv_p_gelu q = *(const struct sv_p_gelu *)p;
    (void)first;
    q.n_rows = n;
    q.x = x;
    sv_op_gelu(dev, &q);
}

static void gelus_on(struct sv_dev *dev)
{
    static const int32_t widths[] = {1, 17, 256, 300, 1040};
    struct sv_rng rng = {4};
    for (size_t i = 0; i < 2 * sizeof widths / sizeof widths[0]; i++) {
        const struct sv_p_gelu p = {.d = widths[i / 2], .by_tanh = i % 2};
        const size_t n = (size_t)MAX_ROWS * (size_t)p.d;
        float *x = rig_floats(&rng, n, 3), *out = rig_new(n * sizeof *out);
        memcpy(out, x, n * sizeof *out);
        gelu_op(dev, &p, 0, MAX_ROWS, out);
        rig_sync(dev, SV_OK);
        for (size_t k = 0; k < n; k++) {
            const double v = (double)x[k];
            const double by = p.by_tanh ? tanh(sqrt(2 / acos(-1.0)) * (v + 0.044715 * v * v * v))
                                        : erf(v / sqrt(2));
            near((double)out[k], 0.5 * v * (1 + by), 1 + fabs(v), "gelu", p.d);
        }
        alone(dev, gelu_op, &p, x, out, p.d);
        rig_free(x), rig_free(out);
    }
}

/* ---------------------------------------------------------------- add_corners */

static void corner_op(struct sv_dev *dev, const void *p, int32_t first, int32_t n, float *x)
{
    struct sv_p_add_corners q = *(const struct sv_p_add_corners *)p;
    q.n_rows = n;
    q.x = x;
    q.index += 4 * first;
    q.share += 4 * first;
    sv_op_add_corners(dev, &q);
}

static void corners_on(struct sv_dev *dev)
{
    enum { D = 40, TABLE = 25 };
    struct sv_rng rng = {5};
    int32_t index[4 * MAX_ROWS];
    float *share = rig_floats(&rng, 4 * MAX_ROWS, 1), *x = rig_floats(&rng, MAX_ROWS * D, 1),
          *out = rig_new(MAX_ROWS * D * sizeof *out);
    const struct sv_weight host = rig_weight(&rng, SV_BF16, TABLE, D, 1, 0);
    struct sv_weight table;
    struct sv_err err = {0};
    assert_int_equal(sv_dev_upload_weight(dev, &host, &table, &err), SV_OK);
    for (int i = 0; i < 4 * MAX_ROWS; i++)
        index[i] = (int32_t)sv_rng_below(&rng, TABLE);
    const struct sv_p_add_corners p = {.d = D, .index = index, .share = share, .table = table};
    memcpy(out, x, MAX_ROWS * D * sizeof *out);
    corner_op(dev, &p, 0, MAX_ROWS, out);
    rig_sync(dev, SV_OK);
    for (int32_t r = 0; r < MAX_ROWS; r++)
        for (int32_t i = 0; i < D; i++) {
            double sum = (double)x[r * D + i];
            for (int k = 0; k < 4; k++)
                sum += (double)share[4 * r + k] *
                       rig_weight_at(&host, (int64_t)index[4 * r + k] * D + i);
            near((double)out[r * D + i], sum, 16, "corners", D);
        }
    alone(dev, corner_op, &p, x, out, D);
    sv_dev_free_weight(dev, &table);
    rig_free(x), rig_free(out), rig_free(share), rig_free((void *)(uintptr_t)host.data);
}

/* ---------------------------------------------------------------- three positions */

/* Each pair of a row is turned as if the row stood at the position of the pair's axis; equal
 * positions give the bits of one position. */
static void three_on(struct sv_dev *dev)
{
    enum { HD = 40, ROT = 24, HALF = ROT / 2, N = 9, POSITIONS = 50, WIDTH = 3 * HD };
    struct sv_rng rng = {6};
    struct rig_batch b;
    struct rig_kv kv;
    uint8_t axis[HALF];
    int32_t three[3 * N];
    float *cos_of = rig_new(POSITIONS * HALF * 4), *sin_of = rig_new(POSITIONS * HALF * 4);
    for (int32_t i = 0; i < POSITIONS * HALF; i++) {
        const double angle = i / HALF * pow(10000, -2.0 * (i % HALF) / ROT);
        cos_of[i] = (float)cos(angle);
        sin_of[i] = (float)sin(angle);
    }
    for (int j = 0; j < HALF; j++)
        axis[j] = (uint8_t)(j % 3);
    rig_kv_init(&kv, &rng, SV_F32, 1, POSITIONS, 16, 1, HD);
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 20, N);
    float *x = rig_floats(&rng, N * WIDTH, 1), *turned[4];
    for (int k = 0; k < 4; k++) { /* by each position alone, and by all three */
        turned[k] = rig_new(N * WIDTH * 4);
        memcpy(turned[k], x, N * WIDTH * 4);
        for (int32_t r = 0; r < N; r++)
            for (int a = 0; a < 3; a++)
                three[3 * r + a] = (r * (k < 3 ? k + 2 : a + 2) + 3 * (k < 3 ? k : a)) % POSITIONS;
        b.rows.row_rope = three;
        sv_op_qk_norm_rope_kv_write(dev, &(struct sv_p_qk_norm_rope_kv_write){
                                             .rows = b.rows,
                                             .qkv = turned[k],
                                             .ld = WIDTH,
                                             .n_heads = 1,
                                             .rope = {cos_of, sin_of, POSITIONS, ROT, axis},
                                             .kv = kv.kv,
                                         });
        rig_sync(dev, SV_OK);
    }
    for (int32_t r = 0; r < N; r++)
        for (int32_t i = 0; i < HD; i++) {
            const int a = i < ROT ? axis[i % HALF] : 0;
            assert_true(turned[3][r * WIDTH + i] == turned[a][r * WIDTH + i]);
            const int64_t at = rig_kv_at(&kv, 0, 20 + r, 0) + i; /* where its index says */
            assert_false(isnan(rig_kv_get(&kv, kv.kv.k, at)));
        }
    for (int k = 0; k < 4; k++)
        rig_free(turned[k]);
    rig_free(x), rig_free(cos_of), rig_free(sin_of);
    rig_kv_fini(&kv);
}

/* What begins a pass says where rows stand, and by what they are rotated. */
static void starts_on(struct sv_dev *dev)
{
    struct rig_batch b;
    int32_t shift[3 * 8], rope[3 * 8], ids[8] = {0}, kind[2] = {SV_SEG_PREFILL, SV_SEG_VERIFY};
    const int32_t len[2] = {7, 30}, anchor[2] = {5, 6};
    rig_batch_init(&b);
    rig_batch_add(&b, 1, 0, 5);
    rig_batch_add(&b, 0, 0, 3);
    for (int i = 0; i < 3 * 8; i++)
        shift[i] = i % 5 - 2;
    b.rows.row_rope = rope;
    sv_op_block_ids(dev, &(struct sv_p_block_ids){.rows = b.rows,
                                                  .row_shift = shift,
                                                  .seg_kind = kind,
                                                  .slot_len = len,
                                                  .slot_anchor = anchor,
                                                  .row_ids = ids});
    rig_sync(dev, SV_OK);
    for (int r = 0; r < 8; r++) {
        assert_int_equal(b.row_pos[r], r < 5 ? 30 + r : 7 + r - 5);
        for (int a = 0; a < 3; a++)
            assert_int_equal(rope[3 * r + a], b.row_pos[r] + shift[3 * r + a]);
    }
}

static void layer_norm(void **state)
{
    (void)state;
    rig_each(norms_on);
}
static void gelu(void **state)
{
    (void)state;
    rig_each(gelus_on);
}
static void add_corners(void **state)
{
    (void)state;
    rig_each(corners_on);
}
static void three_positions(void **state)
{
    (void)state;
    rig_each(three_on);
    rig_each(starts_on);
}

SV_TEST_MAIN(cmocka_unit_test(layer_norm), cmocka_unit_test(gelu), cmocka_unit_test(add_corners),
             cmocka_unit_test(three_positions))
