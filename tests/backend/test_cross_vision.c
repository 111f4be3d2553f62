/*
 * test_cross_vision.c - the ops of a vision tower, and rows with three positions, on every device
 * of this machine against the CPU in f32; on each device the bits of a row alone and in company;
 * and attention as a tower asks for it: all rows of an image see each other.
 *
 * timeout: 240
 *
 * Without a GPU only the CPU's plain kernels are held against its best ones, and the test says so.
 */
#include "backend/cross.h"
#include "backend/ops_vision.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum sv_dtype FLOATS[] = {SV_BF16, SV_F32, SV_F16};

/* Rows [first, first + n) of what an op made of many, and of what it made of these alone. */
static void same_rows(struct cross *c, const char *what, const struct cross_buf *all, int32_t first,
                      const struct cross_buf *some, int32_t n, int32_t width)
{
    const size_t row = (size_t)width * cross_elem(c, CROSS_ACT);
    uint8_t *a = cross_bytes(c, all, NULL), *b = cross_bytes(c, some, NULL);
    if (memcmp(a + (size_t)first * row, b, (size_t)n * row))
        fail_msg("%s: %s of width %d: other bits in other company", c->name, what, width);
    free(a), free(b);
}

/* Rows [first, first + n) of an act buffer, of the device alone, in a buffer of their own. */
static struct cross_buf rows_of(struct cross *c, const struct cross_buf *b, int32_t first,
                                int32_t n, int32_t width)
{
    struct cross_buf some = cross_new(c, CROSS_ACT, (size_t)n * (size_t)width, NULL, 0);
    sv_dev_copy(c->dut, cross_at(&some, 1), cross_act(c, b, 1, (int64_t)first * width),
                (size_t)n * (size_t)width * cross_elem(c, CROSS_ACT));
    return some;
}

/* ---------------------------------------------------------------- layer_norm */

static void norm_case(struct cross *c, int32_t n, int32_t d, enum sv_dtype dtype, float shift)
{
    const size_t size = (size_t)n * (size_t)d;
    float *v = malloc(size * sizeof *v);
    for (size_t i = 0; i < size; i++)
        v[i] = shift + 2 * sv_rng_normal(&c->rng);
    struct cross_buf x = cross_new(c, CROSS_ACT, size, v, 0),
                     out = cross_new(c, CROSS_ACT, size, NULL, 0);
    struct cross_weight w = cross_weight(c, dtype, 1, d, 0.3f, 1),
                        bias = cross_weight(c, dtype, 1, d, 1, 0);
    struct sv_p_layer_norm p[2];
    for (int side = 0; side < 2; side++) {
        p[side] = (struct sv_p_layer_norm){.n_rows = n,
                                           .d = d,
                                           .x = cross_at(&x, side),
                                           .weight = side ? w.dut : w.ref,
                                           .bias = side ? bias.dut : bias.ref,
                                           .eps = 1e-6f,
                                           .out = cross_at(&out, side)};
        sv_op_layer_norm(cross_dev(c, side), &p[side]);
    }
    cross_same(c, &out, 0, size, c->tol, "layer norm");
    const int32_t few = n > 3 ? 3 : 1, first = n - few;
    struct cross_buf in = rows_of(c, &x, first, few, d), some = rows_of(c, &x, first, few, d);
    p[1].n_rows = few;
    p[1].x = cross_at(&in, 1);
    p[1].out = cross_at(&some, 1);
    sv_op_layer_norm(c->dut, &p[1]);
    same_rows(c, "layer norm", &out, first, &some, few, d);
    free(v);
    cross_free(c, &x), cross_free(c, &out), cross_free(c, &in), cross_free(c, &some);
    cross_weight_free(c, &w), cross_weight_free(c, &bias);
}

static void norms_on(struct cross *c)
{
    static const int32_t dims[] = {1, 8, 33, 72, 250, 1152, 1280, 4608};
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 3; k++)
            norm_case(c, (int32_t[]){1, 7, 130}[(i + k) % 3], dims[i], FLOATS[k],
                      i % 2 ? 0.0f : 3.0f);
}

/* ---------------------------------------------------------------- gelu */

static void gelus_on(struct cross *c)
{
    static const int32_t dims[] = {1, 17, 72, 1000, 4304};
    for (int i = 0; i < 10; i++) {
        const int32_t d = dims[i / 2], n = 37;
        const size_t size = (size_t)(n * d);
        float *v = malloc(size * sizeof *v);
        for (size_t k = 0; k < size; k++)
            v[k] = k % 97 == 5 ? (k % 2 ? 300.0f : -300.0f) : 3 * sv_rng_normal(&c->rng);
        struct cross_buf x = cross_new(c, CROSS_ACT, size, v, 0);
        struct cross_buf some = rows_of(c, &x, 21, 5, d);
        for (int side = 0; side < 2; side++)
            sv_op_gelu(cross_dev(c, side), &(struct sv_p_gelu){n, d, i % 2, cross_at(&x, side)});
        cross_same(c, &x, 0, size, c->bf16 ? 4e-3 : 4e-6, "gelu");
        sv_op_gelu(c->dut, &(struct sv_p_gelu){5, d, i % 2, cross_at(&some, 1)});
        same_rows(c, "gelu", &x, 21, &some, 5, d);
        free(v);
        cross_free(c, &x), cross_free(c, &some);
    }
}

/* ---------------------------------------------------------------- add_corners */

static void corners_on(struct cross *c)
{
    enum { N = 41, TABLE = 150 };
    static const int32_t dims[] = {8, 33, 72, 1152};
    for (int i = 0; i < 12; i++) {
        const int32_t d = dims[i / 3];
        int32_t at[4 * N];
        float share[4 * N];
        for (int k = 0; k < 4 * N; k++) {
            at[k] = (int32_t)sv_rng_below(&c->rng, TABLE);
            share[k] = k % 9 ? sv_rng_normal(&c->rng) : 0;
        }
        struct cross_weight table = cross_weight(c, FLOATS[i % 3], TABLE, d, 1, 0);
        struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(N * d), NULL, 1);
        struct cross_buf index = cross_new(c, CROSS_I32, 4 * N, at, 0);
        struct cross_buf shares = cross_new(c, CROSS_F32, 4 * N, share, 0);
        struct cross_buf some = rows_of(c, &x, 30, 6, d);
        for (int side = 0; side < 2; side++)
            sv_op_add_corners(
                cross_dev(c, side),
                &(struct sv_p_add_corners){N, d, cross_at(&x, side), cross_at(&index, side),
                                           cross_at(&shares, side), side ? table.dut : table.ref});
        cross_same(c, &x, 0, x.n, c->bf16 ? 4e-3 : 4e-6, "corners");
        sv_op_add_corners(
            c->dut, &(struct sv_p_add_corners){6, d, cross_at(&some, 1),
                                               (int32_t *)cross_at(&index, 1) + 4 * 30,
                                               (float *)cross_at(&shares, 1) + 4 * 30, table.dut});
        same_rows(c, "corners", &x, 30, &some, 6, d);
        cross_free(c, &x), cross_free(c, &index), cross_free(c, &shares), cross_free(c, &some);
        cross_weight_free(c, &table);
    }
}

/* ---------------------------------------------------------------- three positions */

/* What begins a pass says where rows stand, and by what they are rotated; padding is left. */
static void starts_on(struct cross *c)
{
    enum { PAD = 3, MOST = 300 };
    struct rig_batch b;
    static int32_t shift[3 * MOST];
    rig_batch_init(&b);
    rig_batch_add(&b, 1, 0, 200);
    rig_batch_add(&b, 0, 0, 3);
    const int32_t n = b.rows.n_rows, kinds[4] = {SV_SEG_PREFILL, SV_SEG_VERIFY, 0, 0},
                  lens[2] = {7, 3000}, anchors[2] = {5, 6};
    for (int32_t i = 0; i < 3 * (n + PAD); i++)
        shift[i] = i % 11 - 5;
    struct cross_rows r = cross_rows(c, &b, PAD, 2);
    struct cross_buf kind = cross_new(c, CROSS_I32, 4, kinds, 0),
                     len = cross_new(c, CROSS_I32, 2, lens, 0),
                     anchor = cross_new(c, CROSS_I32, 2, anchors, 0),
                     by = cross_new(c, CROSS_I32, 3 * (size_t)(n + PAD), shift, 0),
                     rope = cross_new(c, CROSS_I32, 3 * (size_t)(n + PAD), shift, 0),
                     ids = cross_new(c, CROSS_I32, (size_t)(n + PAD), shift, 0);
    for (int side = 0; side < 2; side++) {
        struct sv_rows rows = r.rows[side];
        rows.row_rope = cross_at(&rope, side);
        sv_op_block_ids(cross_dev(c, side),
                        &(struct sv_p_block_ids){.rows = rows,
                                                 .row_shift = cross_at(&by, side),
                                                 .seg_kind = cross_at(&kind, side),
                                                 .slot_len = cross_at(&len, side),
                                                 .slot_anchor = cross_at(&anchor, side),
                                                 .row_ids = cross_at(&ids, side)});
    }
    cross_sync(c);
    int32_t *got = cross_ints(c, &rope), *pos = cross_ints(c, &r.buf[4]);
    for (int32_t i = 0; i < n + PAD; i++)
        for (int a = 0; a < 3; a++)
            assert_int_equal(got[3 * i + a], i < n ? pos[i] + shift[3 * i + a] : shift[3 * i + a]);
    assert_int_equal(pos[199], 3199);
    cross_same(c, &ids, 0, (size_t)n, 0, "block_ids: ids");
    free(got), free(pos);
    cross_free(c, &kind), cross_free(c, &len), cross_free(c, &anchor), cross_free(c, &by);
    cross_free(c, &rope), cross_free(c, &ids), cross_rows_free(c, &r);
}

enum { POSITIONS = 300 };

struct turning {
    int32_t n_heads, n_kv, hd, rot;
    struct sv_rope_table rope[2];
    struct cross_buf cos_of, sin_of;
    uint8_t axis[128];
};

static void turning_open(struct turning *t, struct cross *c)
{
    const int32_t half = t->rot / 2;
    const size_t n = (size_t)(POSITIONS * half);
    float *v = calloc(2 * n, sizeof *v);
    for (size_t i = 0; i < n; i++) {
        const double angle =
            (double)(i / (size_t)half) * pow(10000, -2.0 * (double)(i % (size_t)half) / t->rot);
        v[i] = (float)cos(angle);
        v[n + i] = (float)sin(angle);
    }
    t->cos_of = cross_new(c, CROSS_F32, n, v, 0);
    t->sin_of = cross_new(c, CROSS_F32, n, v + n, 0);
    for (int32_t j = 0; j < half; j++)
        t->axis[j] = (uint8_t)(j % 7 % 3);
    for (int side = 0; side < 2; side++)
        t->rope[side] = (struct sv_rope_table){
            cross_at(&t->cos_of, side), cross_at(&t->sin_of, side), POSITIONS, t->rot, t->axis};
    free(v);
}

static void turn(struct cross *c, int side, const struct turning *t, struct sv_rows rows,
                 const void *three, void *qkv, int32_t ld, const struct cross_weight norm[2],
                 const struct cross_kv *kv)
{
    rows.row_rope = three;
    sv_op_qk_norm_rope_kv_write(cross_dev(c, side), &(struct sv_p_qk_norm_rope_kv_write){
                                                        .rows = rows,
                                                        .qkv = qkv,
                                                        .ld = ld,
                                                        .n_heads = t->n_heads,
                                                        .q_norm = side ? norm[0].dut : norm[0].ref,
                                                        .k_norm = side ? norm[1].dut : norm[1].ref,
                                                        .eps = 1e-5f,
                                                        .rope = t->rope[side],
                                                        .kv = kv->kv[side]});
}

/* n rows of two sequences, some with equal positions; then the last ones alone. */
static void turn_case(struct cross *c, struct turning t, int32_t n)
{
    enum { PAD = 2, MOST = 202 };
    static int32_t three[3 * (MOST + PAD)];
    struct rig_batch b;
    turning_open(&t, c);
    rig_batch_init(&b);
    rig_batch_add(&b, 1, 11, n - n / 3);
    rig_batch_add(&b, 0, 40, n / 3);
    for (int32_t i = 0; i < n + PAD; i++)
        for (int a = 0; a < 3; a++)
            three[3 * i + a] = i >= n ? -7 : i % 4 == 1 ? i : (5 * i + 31 * a) % POSITIONS;
    const int32_t ld = (t.n_heads + 2 * t.n_kv) * t.hd, few = n > 4 ? 4 : 1, first = n - few;
    struct cross_rows r = cross_rows(c, &b, PAD, 1);
    struct cross_buf by = cross_new(c, CROSS_I32, 3 * (size_t)(n + PAD), three, 0);
    struct cross_kv kv = cross_kv(c, 2, 300, 16, t.n_kv, t.hd, 0);
    struct cross_buf qkv = cross_new(c, CROSS_ACT, (size_t)((n + PAD) * ld), NULL, 1);
    struct cross_buf some = rows_of(c, &qkv, first, few, ld);
    struct cross_weight norm[2] = {cross_norm(c, SV_BF16, t.hd, 0.3f),
                                   cross_norm(c, SV_BF16, t.hd, 0.3f)};
    for (int side = 0; side < 2; side++)
        turn(c, side, &t, r.rows[side], cross_at(&by, side), cross_at(&qkv, side), ld, norm, &kv);
    cross_sync(c);
    cross_same(c, &qkv, 0, (size_t)(n * ld), c->tol, "rope of three positions: q");
    cross_same(c, &kv.k, 0, kv.k.n, c->tol, "rope of three positions: k");
    cross_same(c, &kv.v, 0, kv.v.n, 0, "rope of three positions: v");
    size_t n_bytes;
    uint8_t *k = cross_bytes(c, &kv.k, &n_bytes);
    const int32_t in = n / 3 ? n / 3 - few : first; /* of the segment */
    if (in >= 0) {
        rig_batch_init(&b);
        rig_batch_add(&b, n / 3 ? 0 : 1, (n / 3 ? 40 : 11) + in, few);
        struct cross_rows alone = cross_rows(c, &b, 0, 0);
        turn(c, 1, &t, alone.rows[1], (int32_t *)cross_at(&by, 1) + 3 * first, cross_at(&some, 1),
             ld, norm, &kv);
        cross_sync(c);
        same_rows(c, "rope of three positions", &qkv, first, &some, few, ld);
        uint8_t *again = cross_bytes(c, &kv.k, &n_bytes);
        assert_memory_equal(k, again, n_bytes);
        free(again);
        cross_rows_free(c, &alone);
    }
    free(k);
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &by), cross_free(c, &qkv);
    cross_free(c, &some), cross_free(c, &t.cos_of), cross_free(c, &t.sin_of);
    cross_weight_free(c, &norm[0]), cross_weight_free(c, &norm[1]);
}

/* A position beyond the table is reported. */
static void far_away_on(struct cross *c)
{
    struct turning t = {.n_heads = 1, .n_kv = 1, .hd = 128, .rot = 128};
    turning_open(&t, c);
    static const int32_t three[3] = {5, 6, POSITIONS + 1};
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 4, 1);
    struct cross_rows r = cross_rows(c, &b, 0, 0);
    struct cross_buf by = cross_new(c, CROSS_I32, 3, three, 0),
                     qkv = cross_new(c, CROSS_ACT, 3 * 128, NULL, 1);
    struct cross_kv kv = cross_kv(c, 1, 32, 16, 1, 128, 0);
    const struct cross_weight none[2] = {{{0}, {0}}, {{0}, {0}}};
    for (int side = 0; side < 2; side++) {
        struct sv_err err = {0};
        turn(c, side, &t, r.rows[side], cross_at(&by, side), cross_at(&qkv, side), 3 * 128, none,
             &kv);
        assert_int_equal(sv_dev_sync(cross_dev(c, side), &err), SV_EDEVICE);
        assert_non_null(strstr(err.msg, "301"));
    }
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &by), cross_free(c, &qkv);
    cross_free(c, &t.cos_of), cross_free(c, &t.sin_of);
}

static void turns_on(struct cross *c)
{
    static const struct turning shapes[] = {{.n_heads = 32, .n_kv = 8, .hd = 128, .rot = 128},
                                            {.n_heads = 3, .n_kv = 1, .hd = 256, .rot = 64},
                                            {.n_heads = 16, .n_kv = 16, .hd = 128, .rot = 72},
                                            {.n_heads = 2, .n_kv = 1, .hd = 40, .rot = 24}};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            turn_case(c, shapes[i], (int32_t[]){1, 17, 202}[k]);
    far_away_on(c);
}

/* ---------------------------------------------------------------- attention */

/* One image: n rows that all see each other, over pages of 128, each head with keys of its own.
 * Zeros behind the numbers of a head change no score. */
static void attend_case(struct cross *c, int32_t n, int32_t heads, int32_t hd, int32_t used)
{
    const int32_t ld = 3 * heads * hd, ldo = heads * hd;
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, n);
    float *v = malloc((size_t)n * (size_t)ld * sizeof *v);
    for (int64_t i = 0; i < (int64_t)n * ld; i++)
        v[i] = i % hd < used ? sv_rng_normal(&c->rng) : 0;
    struct cross_rows r = cross_rows(c, &b, 0, 0);
    struct cross_kv kv = cross_kv(c, 1, n, 128, heads, hd, 0);
    struct cross_buf qkv = cross_new(c, CROSS_ACT, (size_t)n * (size_t)ld, v, 0),
                     out = cross_new(c, CROSS_ACT, (size_t)n * (size_t)ldo, NULL, 0);
    struct turning t = {.n_heads = heads, .n_kv = heads, .hd = hd, .rot = 8};
    turning_open(&t, c);
    const struct cross_weight none[2] = {{{0}, {0}}, {{0}, {0}}};
    for (int side = 0; side < 2; side++) {
        t.rope[side].rot_dim = 0; /* nothing is turned, wherever a row stands */
        t.rope[side].max_pos = n;
        turn(c, side, &t, r.rows[side], NULL, cross_at(&qkv, side), ld, none, &kv);
        sv_op_attention(cross_dev(c, side),
                        &(struct sv_p_attention){.rows = r.rows[side],
                                                 .q = cross_at(&qkv, side),
                                                 .ldq = ld,
                                                 .out = cross_at(&out, side),
                                                 .ldo = ldo,
                                                 .n_heads = heads,
                                                 .kv = kv.kv[side],
                                                 .mask = SV_MASK_BLOCK,
                                                 .scale = 1 / sqrtf((float)used)});
    }
    cross_sync(c);
    cross_same(c, &out, 0, out.n, c->tol, "attention of an image");
    free(v);
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &qkv), cross_free(c, &out);
    cross_free(c, &t.cos_of), cross_free(c, &t.sin_of);
}

static void attends_on(struct cross *c)
{
    attend_case(c, 60, 16, 128, 72);
    attend_case(c, 300, 4, 128, 80);
    attend_case(c, 300, 4, 64, 64);
    if (!c->quick)
        attend_case(c, 4000, 2, 128, 72);
}

static void layer_norm(void **state)
{
    (void)state;
    cross_all(norms_on);
}
static void gelu(void **state)
{
    (void)state;
    cross_all(gelus_on);
}
static void add_corners(void **state)
{
    (void)state;
    cross_all(corners_on);
}
static void three_begin(void **state)
{
    (void)state;
    cross_all(starts_on);
}
static void three_turn(void **state)
{
    (void)state;
    cross_all(turns_on);
}
static void image_attention(void **state)
{
    (void)state;
    cross_all(attends_on);
}

SV_TEST_MAIN(cmocka_unit_test(layer_norm), cmocka_unit_test(gelu), cmocka_unit_test(add_corners),
             cmocka_unit_test(three_begin), cmocka_unit_test(three_turn),
             cmocka_unit_test(image_attention))
