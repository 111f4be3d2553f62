/*
 * test_cross_ops.c - every op on every device of this machine against the CPU in f32: shape sweeps,
 * padding, guard bytes, and on each device the bits of a row alone and in company.
 *
 * timeout: 240
 *
 * Without a GPU only the CPU's plain kernels are held against its best ones, and the test says so.
 */
#include "backend/cross.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum sv_dtype FLOATS[] = {SV_BF16, SV_F32, SV_F16};

/* Rows [0, n) of y (row stride ld, width w) of two byte images agree bit for bit. */
static void same_bits(struct cross *c, const char *what, int32_t n, const uint8_t *a,
                      const uint8_t *b, size_t row_bytes)
{
    for (int32_t r = 0; r < n; r++)
        if (memcmp(a + (size_t)r * row_bytes, b + (size_t)r * row_bytes, row_bytes))
            fail_msg("%s: %s: row %d of %d has other bits in other company", c->name, what, r, n);
}

/* ---------------------------------------------------------------- add_rms_norm, act_mul, embed */

static void norm_case(struct cross *c, int32_t n, int32_t d, int variant, enum sv_dtype dtype)
{
    const int32_t n_in = n + 3;
    const size_t size = (size_t)n_in * (size_t)d;
    const bool indexed = variant & 4;
    struct cross_buf x = cross_new(c, CROSS_ACT, size, NULL, 2);
    struct cross_buf delta = cross_new(c, CROSS_ACT, size, NULL, 1);
    struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)n * (size_t)d, NULL, 0);
    struct cross_buf tap = cross_new(c, CROSS_ACT, (size_t)n * (size_t)(d + 8), NULL, 0);
    struct cross_weight w = cross_norm(c, dtype, d, 0.3f);
    int32_t *at = malloc((size_t)n * 4);
    for (int32_t i = 0; i < n; i++)
        at[i] = i == n - 1 && n > 1 ? -1 : (int32_t)sv_rng_below(&c->rng, (uint32_t)n_in);
    struct cross_buf index = cross_new(c, CROSS_I32, (size_t)n, at, 0);
    for (int side = 0; side < 2; side++)
        sv_op_add_rms_norm(cross_dev(c, side),
                           &(struct sv_p_add_rms_norm){
                               .n_rows = n,
                               .d = d,
                               .x = cross_at(&x, side),
                               .delta = variant & 1 ? cross_at(&delta, side) : NULL,
                               .row_index = indexed ? cross_at(&index, side) : NULL,
                               .weight = side ? w.dut : w.ref,
                               .eps = 1e-6f,
                               .out = cross_at(&out, side),
                               .tap = (variant & 2) && !indexed ? cross_at(&tap, side) : NULL,
                               .tap_stride = d + 8});
    cross_same(c, &x, 0, size, c->tol / 2, "norm: x");
    cross_same(c, &out, 0, out.n, c->tol, "norm: out");
    cross_same(c, &tap, 0, tap.n, c->tol / 2, "norm: tap");
    cross_same(c, &delta, 0, size, 0, "norm: delta");
    free(at);
    cross_free(c, &x), cross_free(c, &delta), cross_free(c, &out), cross_free(c, &tap);
    cross_free(c, &index), cross_weight_free(c, &w);
}

/* Rows of many, again in smaller batches, which may take other launches. */
static void norm_company(struct cross *c, int32_t d)
{
    enum { N = 300 };
    static const int32_t from[] = {0, 7, 50, 133, 299}, count[] = {1, 16, 140, 33, 1};
    const size_t row_bytes = (size_t)d * cross_elem(c, CROSS_ACT);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(N * d), NULL, 2);
    struct cross_buf delta = cross_new(c, CROSS_ACT, (size_t)(N * d), NULL, 1);
    struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)(N * d), NULL, 0);
    struct cross_weight w = cross_norm(c, SV_BF16, d, 0.3f);
    struct sv_p_add_rms_norm p = {.n_rows = N,
                                  .d = d,
                                  .x = cross_at(&x, 1),
                                  .delta = cross_at(&delta, 1),
                                  .weight = w.dut,
                                  .eps = 1e-6f,
                                  .out = cross_at(&out, 1)};
    sv_op_add_rms_norm(c->dut, &p);
    uint8_t *whole = cross_bytes(c, &out, NULL);
    p.delta = NULL; /* it has been added */
    for (int i = 0; i < 5; i++) {
        p.n_rows = count[i];
        p.x = cross_act(c, &x, 1, (int64_t)from[i] * d);
        sv_op_add_rms_norm(c->dut, &p);
        uint8_t *some = cross_bytes(c, &out, NULL);
        same_bits(c, "norm", count[i], some, whole + (size_t)from[i] * row_bytes, row_bytes);
        free(some);
    }
    free(whole);
    cross_free(c, &x), cross_free(c, &delta), cross_free(c, &out), cross_weight_free(c, &w);
}

static void norm_on(struct cross *c)
{
    norm_company(c, 320);
    if (!c->quick)
        norm_company(c, 4096);
    static const int32_t dims[] = {8, 40, 67, 320, 1024, 4096, 8200, 16392, 24577};
    for (int i = 0; i < (c->quick ? 5 : 9); i++)
        for (int v = 0; v < 8; v++)
            norm_case(c, (int32_t[]){1, 5, 19}[(i + v) % 3], dims[i], v, FLOATS[(i + v) % 3]);
}

static void act_on(struct cross *c)
{
    static const int32_t dims[] = {5, 8, 35, 896, 12288};
    for (int i = 0; i < 5; i++)
        for (int32_t n = 1; n <= 40; n += 13) {
            const int32_t d = dims[i];
            struct cross_buf in = cross_new(c, CROSS_ACT, (size_t)n * 2 * (size_t)d, NULL, 5);
            struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)n * (size_t)d, NULL, 0);
            for (int side = 0; side < 2; side++)
                sv_op_act_mul(cross_dev(c, side), &(struct sv_p_act_mul){n, d, cross_at(&in, side),
                                                                         cross_at(&out, side)});
            cross_same(c, &out, 0, out.n, c->tol, "act_mul");
            cross_free(c, &in), cross_free(c, &out);
        }
}

static void embed_on(struct cross *c)
{
    static const int32_t dims[] = {8, 30, 64, 320, 4096};
    for (int i = 0; i < 15; i++) {
        const int32_t d = dims[i % 5], vocab = 150, n = 13;
        struct cross_weight t = cross_weight(c, FLOATS[i / 5], vocab, d, 1, 0);
        int32_t at[13] = {0, 149, -1, -2147483647, 150, 2147483647, 63, 64, 65, 127, 128, 7, 7};
        struct cross_buf ids = cross_new(c, CROSS_I32, 13, at, 0);
        struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)n * (size_t)d, NULL, 0);
        for (int side = 0; side < 2; side++)
            sv_op_embed(cross_dev(c, side),
                        &(struct sv_p_embed){n, cross_at(&ids, side), side ? t.dut : t.ref,
                                             i % 2 ? 2.5f : 1, cross_at(&out, side)});
        cross_same(c, &out, 0, out.n, c->bf16 ? 4e-3 : 1e-7, "embed");
        cross_free(c, &ids), cross_free(c, &out), cross_weight_free(c, &t);
    }
}

/* ---------------------------------------------------------------- qk_norm_rope_kv_write */

static struct sv_rope_table rope_table(struct cross *c, struct cross_buf t[2], int side,
                                       int32_t max_pos, int32_t rot)
{
    const size_t n = (size_t)max_pos * (size_t)(rot / 2);
    if (!side) {
        float *v = calloc(2 * n + 1, sizeof *v);
        for (int32_t p = 0; p < max_pos; p++)
            for (int32_t i = 0; i < rot / 2; i++) {
                double a = p * pow(10000, -2.0 * i / rot);
                v[p * (rot / 2) + i] = (float)(1.1 * cos(a));
                v[n + (size_t)(p * (rot / 2) + i)] = (float)(1.1 * sin(a));
            }
        t[0] = cross_new(c, CROSS_F32, n, v, 0);
        t[1] = cross_new(c, CROSS_F32, n, v + n, 0);
        free(v);
    }
    return (struct sv_rope_table){cross_at(&t[0], side), cross_at(&t[1], side), max_pos, rot, NULL};
}

struct heads {
    int32_t n_heads, n_kv, hd, rot;
};

static void rope_case(struct cross *c, struct heads s, int32_t page, bool normed, int32_t pad)
{
    struct rig_batch b;
    struct cross_buf t[2];
    struct sv_rope_table rope[2];
    for (int side = 0; side < 2; side++)
        rope[side] = rope_table(c, t, side, 200, s.rot);
    rig_batch_init(&b);
    rig_batch_add(&b, 3, 0, 5);
    rig_batch_add(&b, 0, 199, 1);
    rig_batch_add(&b, 1, 40, 0);
    rig_batch_add(&b, 2, 57, 16);
    rig_batch_spread(&b, normed ? 2 : 0); /* rows need not be next to one another */
    const int32_t width = (s.n_heads + 2 * s.n_kv) * s.hd, ld = width + 8, n = b.rows.n_rows;
    struct cross_rows r = cross_rows(c, &b, pad, pad ? 2 : 0);
    struct cross_kv kv = cross_kv(c, 4, 200, page, s.n_kv, s.hd, 0);
    struct cross_buf qkv = cross_new(c, CROSS_ACT, (size_t)(n + pad) * (size_t)ld, NULL, 2);
    struct cross_weight qn = cross_norm(c, SV_BF16, s.hd, 0.3f);
    struct cross_weight kn = cross_norm(c, SV_F32, s.hd, 0.3f);
    const struct sv_weight none = {0};
    for (int side = 0; side < 2; side++)
        sv_op_qk_norm_rope_kv_write(
            cross_dev(c, side), &(struct sv_p_qk_norm_rope_kv_write){.rows = r.rows[side],
                                                                     .qkv = cross_at(&qkv, side),
                                                                     .ld = ld,
                                                                     .n_heads = s.n_heads,
                                                                     .q_norm = !normed ? none
                                                                               : side  ? qn.dut
                                                                                       : qn.ref,
                                                                     .k_norm = !normed ? none
                                                                               : side  ? kn.dut
                                                                                       : kn.ref,
                                                                     .eps = 1e-5f,
                                                                     .rope = rope[side],
                                                                     .kv = kv.kv[side]});
    cross_sync(c);
    for (int32_t i = 0; i < n; i++) {
        const size_t at = (size_t)i * (size_t)ld;
        cross_same(c, &qkv, at, at + (size_t)ld, c->tol, "rope: q");
    }
    cross_same(c, &kv.k, 0, kv.k.n, c->tol, "rope: k");
    cross_same(c, &kv.v, 0, kv.v.n, 0, "rope: v");
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &qkv);
    cross_weight_free(c, &qn), cross_weight_free(c, &kn);
    cross_free(c, &t[0]), cross_free(c, &t[1]);
}

/* A row's queries, keys and values again in smaller batches, which may take other launches. */
static void rope_company(struct cross *c)
{
    enum { N = 140, HEADS = 32, KV = 8, HD = 128, WIDTH = (HEADS + 2 * KV) * HD };
    static const int32_t base[] = {3, 0, 100, 190}, len[] = {70, 1, 60, 9}, step[] = {16, 1, 33, 1};
    struct rig_batch b;
    struct cross_buf t[2];
    rig_batch_init(&b);
    for (int i = 0; i < 4; i++)
        rig_batch_add(&b, i, base[i], len[i]);
    rope_table(c, t, 0, 200, HD);
    float *v = malloc((size_t)(N * WIDTH) * sizeof *v);
    for (int32_t i = 0; i < N * WIDTH; i++)
        v[i] = 2 * sv_rng_normal(&c->rng);
    struct cross_rows r = cross_rows(c, &b, 0, 0);
    struct cross_kv kv = cross_kv(c, 4, 200, 16, KV, HD, 0);
    struct cross_buf qkv = cross_new(c, CROSS_ACT, (size_t)(N * WIDTH), v, 0);
    struct cross_buf again = cross_new(c, CROSS_ACT, (size_t)(N * WIDTH), v, 0);
    struct cross_weight qn = cross_norm(c, SV_BF16, HD, 0.3f),
                        kn = cross_norm(c, SV_BF16, HD, 0.3f);
    struct sv_p_qk_norm_rope_kv_write p = {.rows = r.rows[1],
                                           .qkv = cross_at(&qkv, 1),
                                           .ld = WIDTH,
                                           .n_heads = HEADS,
                                           .q_norm = qn.dut,
                                           .k_norm = kn.dut,
                                           .eps = 1e-6f,
                                           .rope = rope_table(c, t, 1, 200, HD),
                                           .kv = kv.kv[1]};
    sv_op_qk_norm_rope_kv_write(c->dut, &p);
    size_t n_bytes;
    uint8_t *q = cross_bytes(c, &qkv, NULL), *k = cross_bytes(c, &kv.k, &n_bytes),
            *vs = cross_bytes(c, &kv.v, NULL);
    for (int32_t i = 0, row = 0; i < 4; row += len[i++])
        for (int32_t j = 0; j < len[i]; j += step[i]) {
            rig_batch_init(&b);
            rig_batch_add(&b, i, base[i] + j, len[i] - j < step[i] ? len[i] - j : step[i]);
            struct cross_rows some = cross_rows(c, &b, 0, 0);
            p.rows = some.rows[1];
            p.qkv = cross_act(c, &again, 1, (int64_t)(row + j) * WIDTH);
            sv_op_qk_norm_rope_kv_write(c->dut, &p);
            cross_sync(c);
            cross_rows_free(c, &some);
        }
    uint8_t *q2 = cross_bytes(c, &again, NULL), *k2 = cross_bytes(c, &kv.k, NULL),
            *vs2 = cross_bytes(c, &kv.v, NULL);
    const size_t elem = cross_elem(c, CROSS_ACT);
    for (int32_t i = 0; i < N; i++)
        same_bits(c, "rope", 1, q + (size_t)(i * WIDTH) * elem, q2 + (size_t)(i * WIDTH) * elem,
                  HEADS * HD * elem);
    assert_memory_equal(k, k2, n_bytes);
    assert_memory_equal(vs, vs2, n_bytes);
    free(v), free(q), free(k), free(vs), free(q2), free(k2), free(vs2);
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &qkv), cross_free(c, &again);
    cross_weight_free(c, &qn), cross_weight_free(c, &kn), cross_free(c, &t[0]),
        cross_free(c, &t[1]);
}

static void rope_on(struct cross *c)
{
    rope_company(c);
    static const struct heads shapes[] = {{5, 1, 64, 64}, {32, 8, 128, 128}, {4, 4, 32, 16},
                                          {3, 1, 96, 96}, {2, 2, 8, 8},      {1, 1, 256, 64},
                                          {9, 3, 40, 40}, {2, 1, 24, 0}};
    for (int i = 0; i < 8; i++)
        for (int v = 0; v < 4; v++)
            rope_case(c, shapes[i], (int32_t[]){1, 16, 64}[(i + v) % 3], v & 1, v & 2 ? 5 : 0);
}

/* A position without a page or beyond the table is reported, once, with its name. */
static void rope_errors_on(struct cross *c)
{
    for (int which = 0; which < 2; which++) {
        struct rig_batch b;
        struct cross_buf t[2];
        struct sv_rope_table rope[2];
        for (int side = 0; side < 2; side++)
            rope[side] = rope_table(c, t, side, 64, 32);
        rig_batch_init(&b);
        rig_batch_add(&b, 0, which ? 70 : 128, 1);
        struct cross_rows r = cross_rows(c, &b, 0, 0);
        struct cross_kv kv = cross_kv(c, 1, 100, 16, 1, 32, 0);
        struct cross_buf qkv = cross_new(c, CROSS_ACT, 96, NULL, 1);
        for (int side = 0; side < 2; side++) {
            struct sv_err err = {0};
            sv_op_qk_norm_rope_kv_write(cross_dev(c, side), &(struct sv_p_qk_norm_rope_kv_write){
                                                                .rows = r.rows[side],
                                                                .qkv = cross_at(&qkv, side),
                                                                .ld = 96,
                                                                .n_heads = 1,
                                                                .rope = rope[side],
                                                                .kv = kv.kv[side]});
            sv_dev_mark(cross_dev(c, side), 1);
            assert_int_equal(sv_dev_wait(cross_dev(c, side), 1, &err), SV_EDEVICE);
            assert_non_null(strstr(err.msg, which ? "70" : "128"));
            rig_sync(cross_dev(c, side), SV_OK);
        }
        cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &qkv);
        cross_free(c, &t[0]), cross_free(c, &t[1]);
    }
}

/* ---------------------------------------------------------------- gemm and head_argmax */

struct product {
    int32_t k, n_parts, rows[4];
    enum sv_dtype dtype;
    bool bias, f32;
};

static void gemm_run(struct cross *c, int side, const struct product *s,
                     const struct sv_gemm_part *part, const struct cross_buf *x,
                     const struct cross_buf *y, int32_t row0, int32_t n, int64_t ldx, int64_t ldy)
{
    sv_op_gemm(cross_dev(c, side), &(struct sv_p_gemm){.n_rows = n,
                                                       .k = s->k,
                                                       .n_parts = s->n_parts,
                                                       .x = cross_act(c, x, side, row0 * ldx),
                                                       .ldx = ldx,
                                                       .parts = part,
                                                       .y = cross_act(c, y, side, row0 * ldy),
                                                       .ldy = ldy,
                                                       .y_f32 = s->f32});
}

static void gemm_case(struct cross *c, const struct product *s, int32_t n)
{
    struct cross_weight w[4], bias[4];
    struct sv_gemm_part part[2][4] = {0};
    int64_t width = 0;
    for (int32_t i = 0; i < s->n_parts; i++) {
        w[i] = cross_weight(c, s->dtype, s->rows[i], s->k, 1 / sqrtf((float)s->k), 0);
        bias[i] = cross_weight(c, i % 2 ? SV_F32 : SV_BF16, 1, s->rows[i], 1, 0);
        part[0][i] = (struct sv_gemm_part){w[i].ref, s->bias ? bias[i].ref : (struct sv_weight){0}};
        part[1][i] = (struct sv_gemm_part){w[i].dut, s->bias ? bias[i].dut : (struct sv_weight){0}};
        width += s->rows[i];
    }
    const int64_t ldx = s->k + 8, ldy = width + 8;
    const enum cross_type type = s->f32 ? CROSS_F32 : CROSS_ACT;
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(n * ldx), NULL, 1);
    struct cross_buf y = cross_new(c, type, (size_t)(n * ldy), NULL, 0);
    struct cross_buf z = cross_new(c, type, (size_t)(n * ldy), NULL, 0);
    for (int side = 0; side < 2; side++)
        gemm_run(c, side, s, part[side], &x, &y, 0, n, ldx, ldy);
    cross_sync(c);
    cross_same(c, &y, 0, y.n, s->f32 ? c->tol / 2 : c->tol, "gemm");
    /* Any part of the batch gives the same bits. */
    uint8_t *whole = cross_bytes(c, &y, NULL);
    const size_t row_bytes = (size_t)ldy * cross_elem(c, type);
    for (int32_t step = 1; step <= n; step += step < 34 && !c->quick ? 1 : 1 + step * 3 / 4) {
        for (int32_t r = 0; r < n; r += step) {
            if (step < 8 && r >= 3 * step && r + 2 * step < n)
                continue; /* a few places are enough */
            gemm_run(c, 1, s, part[1], &x, &z, r, n - r < step ? n - r : step, ldx, ldy);
            uint8_t *some = cross_bytes(c, &z, NULL);
            int32_t m = n - r < step ? n - r : step;
            same_bits(c, "gemm", m, some + (size_t)r * row_bytes, whole + (size_t)r * row_bytes,
                      row_bytes);
            free(some);
        }
    }
    free(whole);
    cross_free(c, &x), cross_free(c, &y), cross_free(c, &z);
    for (int32_t i = 0; i < s->n_parts; i++)
        cross_weight_free(c, &w[i]), cross_weight_free(c, &bias[i]);
}

static void gemm_on(struct cross *c)
{
    static const struct product shapes[] = {
        {64, 1, {64}, SV_BF16, false, false},
        {128, 1, {300}, SV_BF16, true, true},
        {320, 3, {320, 64, 64}, SV_BF16, false, false},
        {1000, 2, {130, 70}, SV_BF16, true, false},
        {67, 2, {33, 5}, SV_BF16, true, false},
        {896, 2, {1000, 1000}, SV_BF16, false, false},
        {256, 1, {200}, SV_F32, true, true},
        {256, 2, {100, 30}, SV_F16, false, false},
        {2048, 3, {2048, 512, 512}, SV_BF16, true, false},
        {4096, 1, {1024}, SV_BF16, false, true},
    };
    for (int i = 0; i < (c->quick ? 6 : 10); i++) {
        gemm_case(c, &shapes[i], c->quick ? 20 : 70);
        if (!c->quick && i < 4)
            gemm_case(c, &shapes[i], 300);
    }
}

static void gated_run(struct cross *c, int side, const struct sv_gemm_part part[2],
                      const struct cross_buf *x, const struct cross_buf *both,
                      const struct cross_buf *out, int32_t row0, int32_t n, int64_t ldx)
{
    const int32_t d = part[0].w.rows;
    sv_op_gemm_act_mul(cross_dev(c, side), &(struct sv_p_gemm_act_mul){
                                               .n_rows = n,
                                               .k = part[0].w.cols,
                                               .x = cross_act(c, x, side, row0 * ldx),
                                               .ldx = ldx,
                                               .parts = part,
                                               .gate_up = cross_at(both, side),
                                               .out = cross_act(c, out, side, (int64_t)row0 * d)});
}

static void gated_case(struct cross *c, int32_t k, int32_t d, enum sv_dtype dtype, bool bias,
                       int32_t n)
{
    struct cross_weight w[2], b[2];
    struct sv_gemm_part part[2][2] = {0};
    for (int i = 0; i < 2; i++) {
        w[i] = cross_weight(c, dtype, d, k, 1 / sqrtf((float)k), 0);
        b[i] = cross_weight(c, SV_BF16, 1, d, 1, 0);
        part[0][i] = (struct sv_gemm_part){w[i].ref, bias ? b[i].ref : (struct sv_weight){0}};
        part[1][i] = (struct sv_gemm_part){w[i].dut, bias ? b[i].dut : (struct sv_weight){0}};
    }
    const int64_t ldx = k + 8;
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(n * ldx), NULL, 1);
    struct cross_buf both = cross_new(c, CROSS_ACT, (size_t)n * 2 * (size_t)d, NULL, 0);
    struct cross_buf y = cross_new(c, CROSS_ACT, (size_t)n * (size_t)d, NULL, 0);
    struct cross_buf z = cross_new(c, CROSS_ACT, (size_t)n * (size_t)d, NULL, 0);
    for (int side = 0; side < 2; side++)
        gated_run(c, side, part[side], &x, &both, &y, 0, n, ldx);
    cross_sync(c);
    cross_same(c, &y, 0, y.n, 2 * c->tol, "gemm_act_mul");
    uint8_t *whole = cross_bytes(c, &y, NULL);
    const size_t row_bytes = (size_t)d * cross_elem(c, CROSS_ACT);
    for (int32_t step = 1; step <= n; step += 1 + step * 2 / 3)
        for (int32_t r = 0; r < n; r += step) {
            if (r >= 2 * step && r + 2 * step < n)
                continue;
            gated_run(c, 1, part[1], &x, &both, &z, r, n - r < step ? n - r : step, ldx);
            uint8_t *some = cross_bytes(c, &z, NULL);
            int32_t m = n - r < step ? n - r : step;
            same_bits(c, "gemm_act_mul", m, some + (size_t)r * row_bytes,
                      whole + (size_t)r * row_bytes, row_bytes);
            free(some);
        }
    free(whole);
    cross_free(c, &x), cross_free(c, &both), cross_free(c, &y), cross_free(c, &z);
    for (int i = 0; i < 2; i++)
        cross_weight_free(c, &w[i]), cross_weight_free(c, &b[i]);
}

static void gated_on(struct cross *c)
{
    gated_case(c, 64, 64, SV_BF16, false, 20);
    gated_case(c, 320, 896, SV_BF16, true, c->quick ? 20 : 150);
    gated_case(c, 136, 77, SV_BF16, true, c->quick ? 20 : 70);
    gated_case(c, 67, 33, SV_BF16, false, 20);
    gated_case(c, 100, 40, SV_F32, false, 20);
    if (!c->quick)
        gated_case(c, 2048, 1000, SV_BF16, false, 300);
}

/* The draft confidence of row r: never less than the winner's probability, 1 only where it
 * may be. */
static void check_confidence(const float *logits, int32_t v, float max, float confidence)
{
    double sum = 0, next = 0;
    for (int32_t j = 0; j < v; j++) {
        double e = exp((double)logits[j] - (double)max);
        sum += e;
        next += e < 1 ? e : 0;
    }
    assert_true((double)confidence >= (1 - 1e-4) / sum && confidence <= 1);
    /* Stretches hold a few hundred logits: of thousands, flat as these are, much must be seen. */
    if (next > 1)
        assert_true((double)confidence < 0.9);
}

/* The head picks the argmax of its own logits, at every batch size, with and without confidence. */
static void head_on(struct cross *c)
{
    static const int32_t vocab[] = {300, 4096, 20011}, dims[] = {64, 320, 1024};
    for (int i = 0; i < (c->quick ? 2 : 3); i++)
        for (int32_t n = 1; n <= 40; n += 13) {
            const int32_t v = vocab[i], k = dims[i];
            struct cross_weight w = cross_weight(c, SV_BF16, v, k, 0.2f, 0);
            struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(n * k), NULL, 1);
            struct cross_buf y = cross_new(c, CROSS_F32, (size_t)n * (size_t)v, NULL, 0);
            int32_t *at = malloc((size_t)n * 4);
            for (int32_t r = 0; r < n; r++)
                at[r] = r == n / 2 && n > 1 ? -1 : n - 1 - r;
            struct cross_buf index = cross_new(c, CROSS_I32, (size_t)n, at, 0);
            struct cross_buf out = cross_new(c, CROSS_I32, (size_t)n, NULL, 0);
            const struct sv_gemm_part part = {.w = w.dut};
            sv_op_gemm(c->dut,
                       &(struct sv_p_gemm){n, k, 1, x.dut, k, &part, y.dut, v, true, SV_JOIN_NONE});
            struct sv_p_head_argmax best_of = {.n_rows = n,
                                               .k = k,
                                               .x = x.dut,
                                               .w = w.dut,
                                               .out_index = index.dut,
                                               .out = out.dut};
            sv_op_head_argmax(c->dut, &best_of);
            const bool has_confidence = sv_dev_backend(c->dut)->head_confidence;
            struct cross_buf confidence = cross_new(c, CROSS_F32, (size_t)n, NULL, 0);
            struct cross_buf again = cross_new(c, CROSS_I32, (size_t)n, NULL, 0);
            best_of.out = again.dut;
            best_of.confidence = confidence.dut;
            if (has_confidence)
                sv_op_head_argmax(c->dut, &best_of);
            cross_sync(c);
            float *logits = cross_floats(c, &y), *values = cross_floats(c, &confidence);
            int32_t *got = cross_ints(c, &out), *got_again = cross_ints(c, &again);
            for (int32_t r = 0; r < n; r++) {
                int32_t best = 0;
                for (int32_t j = 1; j < v; j++)
                    if (logits[(size_t)r * (size_t)v + (size_t)j] >
                        logits[(size_t)r * (size_t)v + (size_t)best])
                        best = j;
                if (at[r] >= 0)
                    assert_int_equal(got[at[r]], best);
                if (has_confidence)
                    check_confidence(logits + (size_t)r * (size_t)v, v,
                                     logits[(size_t)r * (size_t)v + (size_t)best], values[r]);
            }
            if (has_confidence)
                assert_memory_equal(got, got_again, (size_t)n * sizeof *got);
            if (n > 1)
                assert_int_equal(got[n - 1 - n / 2], -1); /* whose row went nowhere */
            free(at), free(logits), free(got), free(values), free(got_again);
            cross_free(c, &x), cross_free(c, &y), cross_free(c, &index), cross_free(c, &out);
            cross_free(c, &confidence), cross_free(c, &again);
            cross_weight_free(c, &w);
        }
}

/* ---------------------------------------------------------------- attention */

struct view {
    enum sv_mask mask;
    int32_t window;
    float softcap;
    bool sinks;
};

static void attend(struct cross *c, int side, struct sv_rows rows, const struct cross_buf *q,
                   const struct cross_buf *out, struct sv_kv kv, struct heads s, struct view v,
                   struct sv_weight sinks)
{
    const int64_t width = (int64_t)s.n_heads * s.hd;
    sv_op_attention(cross_dev(c, side),
                    &(struct sv_p_attention){.rows = rows,
                                             .q = cross_at(q, side),
                                             .ldq = width + 8,
                                             .out = cross_at(out, side),
                                             .ldo = width,
                                             .n_heads = s.n_heads,
                                             .kv = kv,
                                             .mask = v.mask,
                                             .window = v.window,
                                             .scale = 1 / sqrtf((float)s.hd),
                                             .softcap = v.softcap,
                                             .sinks = v.sinks ? sinks : (struct sv_weight){0}});
}

/* Rows of a segment stand `step` positions apart. */
static void attention_case(struct cross *c, struct heads s, struct view v, int32_t page,
                           int32_t reach, int32_t step)
{
    struct rig_batch b, one;
    rig_batch_init(&b);
    const int32_t base[] = {reach - 16 * step, 0, 63, reach / 2, 5, 0},
                  len[] = {16, 33, 1, 7, 16, 70};
    for (int32_t i = 0; i < 6; i++)
        rig_batch_add(&b, 5 - i, base[i], len[i]);
    rig_batch_spread(&b, step - 1);
    const int32_t n = b.rows.n_rows, pad = 9;
    const int64_t width = (int64_t)s.n_heads * s.hd;
    struct cross_kv kv = cross_kv(c, 6, reach, page, s.n_kv, s.hd, 1);
    struct cross_weight sinks = cross_weight(c, SV_BF16, 1, s.n_heads, 1, 0);
    struct cross_rows r = cross_rows(c, &b, pad, 3);
    struct cross_buf q = cross_new(c, CROSS_ACT, (size_t)((n + pad) * (width + 8)), NULL, 1.5f);
    struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)((n + pad) * width), NULL, 0);
    for (int side = 0; side < 2; side++)
        attend(c, side, r.rows[side], &q, &out, kv.kv[side], s, v, side ? sinks.dut : sinks.ref);
    cross_sync(c);
    cross_same(c, &out, 0, (size_t)(n * width), 2 * c->tol, "attention");
    uint8_t *whole = cross_bytes(c, &out, NULL);
    const size_t row_bytes = (size_t)width * cross_elem(c, CROSS_ACT);
    /* Each segment alone; causal ones also row by row, as decoding would. */
    for (int32_t i = 0, row = 0; i < 6; row += len[i++]) {
        const int32_t most = v.mask == SV_MASK_CAUSAL && !c->quick ? 1 + i * 3 : len[i];
        for (int32_t j = 0; j < len[i]; j += most) {
            const int32_t m = len[i] - j < most ? len[i] - j : most;
            rig_batch_init(&one);
            rig_batch_add(&one, 5 - i, base[i] + j * step, m);
            rig_batch_spread(&one, step - 1);
            struct cross_rows alone = cross_rows(c, &one, 0, 0);
            struct cross_buf qa = q, oa = cross_new(c, CROSS_ACT, (size_t)(m * width), NULL, 0);
            qa.dut = cross_act(c, &q, 1, (row + j) * (width + 8));
            attend(c, 1, alone.rows[1], &qa, &oa, kv.kv[1], s, v, sinks.dut);
            uint8_t *some = cross_bytes(c, &oa, NULL);
            same_bits(c, "attention", m, some, whole + (size_t)(row + j) * row_bytes, row_bytes);
            free(some);
            cross_free(c, &oa), cross_rows_free(c, &alone);
        }
    }
    free(whole);
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &q), cross_free(c, &out);
    cross_weight_free(c, &sinks);
}

static void attention_on(struct cross *c)
{
    static const struct heads shapes[] = {{32, 8, 128, 0}, {5, 1, 64, 0},  {4, 2, 128, 0},
                                          {3, 3, 40, 0},   {2, 1, 256, 0}, {14, 2, 64, 0}};
    static const struct view views[] = {{SV_MASK_CAUSAL, 0, 0, false},
                                        {SV_MASK_BLOCK, 0, 0, false},
                                        {SV_MASK_CAUSAL, 100, 0, true},
                                        {SV_MASK_BLOCK, 40, 20, false}};
    for (int i = 0; i < (c->quick ? 2 : 6); i++)
        for (int v = 0; v < 5; v++)
            attention_case(c, shapes[i], views[v < 4 ? v : i % 4],
                           (int32_t[]){16, 64, 1}[(i + v) % 3],
                           c->quick ? 200
                           : i == 0 ? 2100
                                    : 700,
                           v < 4 ? 1 : 2);
}

/* ---------------------------------------------------------------- caches in e4m3 */

/* Rows are written, neither normalised nor rotated, so that both sides store the same bytes; then
 * they are read, those of the pass among them, all together and each segment alone. fixed: four
 * bits, so that a code's value times it is a number of bf16. */
static void f8_case(struct cross *c, struct heads s, struct view v, int32_t page, int32_t reach,
                    float fixed)
{
    struct cross_buf t[2];
    struct sv_rope_table rope[2];
    for (int side = 0; side < 2; side++)
        rope[side] = rope_table(c, t, side, reach, 0);
    const int32_t ld = (s.n_heads + 2 * s.n_kv) * s.hd + 8, width = s.n_heads * s.hd;
    struct cross_kv kv = cross_kv_f8(c, 3, reach, page, s.n_kv, s.hd, fixed);
    struct cross_weight sinks = cross_weight(c, SV_BF16, 1, s.n_heads, 1, 0);
    static const int32_t slot[] = {2, 0, 1}, len[] = {40, 33, 1};
    for (int32_t at = 0; at + 40 <= reach; at += 40) {
        struct rig_batch b, one;
        rig_batch_init(&b);
        for (int i = 0; i < 3; i++)
            rig_batch_add(&b, slot[i], at * len[i] / 40, len[i]);
        const int32_t n = b.rows.n_rows;
        struct cross_rows r = cross_rows(c, &b, 3, 1);
        struct cross_buf qkv = cross_new(c, CROSS_ACT, (size_t)((n + 3) * ld), NULL, 1.5f);
        struct cross_buf out = cross_new(c, CROSS_ACT, (size_t)((n + 3) * width), NULL, 0);
        struct sv_p_attention p = {.ldq = ld,
                                   .ldo = width,
                                   .n_heads = s.n_heads,
                                   .mask = v.mask,
                                   .window = v.window,
                                   .scale = 1 / sqrtf((float)s.hd),
                                   .softcap = v.softcap};
        for (int side = 0; side < 2; side++) {
            sv_op_qk_norm_rope_kv_write(cross_dev(c, side), &(struct sv_p_qk_norm_rope_kv_write){
                                                                .rows = r.rows[side],
                                                                .qkv = cross_at(&qkv, side),
                                                                .ld = ld,
                                                                .n_heads = s.n_heads,
                                                                .rope = rope[side],
                                                                .kv = kv.kv[side]});
            p.rows = r.rows[side];
            p.q = cross_at(&qkv, side);
            p.out = cross_at(&out, side);
            p.kv = kv.kv[side];
            if (v.sinks)
                p.sinks = side ? sinks.dut : sinks.ref;
            sv_op_attention(cross_dev(c, side), &p);
        }
        cross_sync(c);
        cross_same(c, &out, 0, (size_t)(n * width), 2 * c->tol, "attention over e4m3");
        uint8_t *whole = cross_bytes(c, &out, NULL);
        const size_t row_bytes = (size_t)width * cross_elem(c, CROSS_ACT);
        for (int32_t i = 0, row = 0; i < 3 && at % 120 == 0; row += len[i++]) {
            rig_batch_init(&one);
            rig_batch_add(&one, slot[i], at * len[i] / 40, len[i]);
            struct cross_rows alone = cross_rows(c, &one, 0, 0);
            struct cross_buf oa = cross_new(c, CROSS_ACT, (size_t)(len[i] * width), NULL, 0);
            p.rows = alone.rows[1];
            p.q = cross_act(c, &qkv, 1, (int64_t)row * ld);
            p.out = cross_at(&oa, 1);
            sv_op_attention(c->dut, &p);
            uint8_t *some = cross_bytes(c, &oa, NULL);
            same_bits(c, "attention over e4m3", len[i], some, whole + (size_t)row * row_bytes,
                      row_bytes);
            free(some);
            cross_free(c, &oa), cross_rows_free(c, &alone);
        }
        free(whole);
        cross_rows_free(c, &r), cross_free(c, &qkv), cross_free(c, &out);
    }
    cross_same(c, &kv.k, 0, kv.k.n, 0, "e4m3: keys");
    cross_same(c, &kv.v, 0, kv.v.n, 0, "e4m3: values");
    for (int i = 0; i < 2; i++)
        cross_same(c, &kv.own[i], 0, kv.own[i].n, 0, "e4m3: scales");
    cross_kv_free(c, &kv), cross_weight_free(c, &sinks);
    cross_free(c, &t[0]), cross_free(c, &t[1]);
}

static void f8_on(struct cross *c)
{
    static const struct heads shapes[] = {
        {8, 2, 128, 0}, {5, 1, 64, 0}, {3, 3, 40, 0}, {2, 1, 256, 0}};
    static const struct view views[] = {{SV_MASK_CAUSAL, 0, 0, false},
                                        {SV_MASK_BLOCK, 40, 20, false},
                                        {SV_MASK_CAUSAL, 100, 0, true}};
    for (int i = 0; i < (c->quick ? 2 : 4); i++)
        for (int k = 0; k < 3; k++)
            f8_case(c, shapes[i], views[k], (int32_t[]){16, 64, 1}[(i + k) % 3],
                    c->quick ? 200 : 720, k == 1 ? 13 / 1024.0f : 0);
}

/* ---------------------------------------------------------------- draft_context_kv */

static void context_case(struct cross *c, struct heads s, int32_t layers, int32_t n_taps, bool bias)
{
    struct rig_batch b;
    struct cross_buf t[2];
    struct sv_rope_table rope[2];
    for (int side = 0; side < 2; side++)
        rope[side] = rope_table(c, t, side, 300, s.rot);
    rig_batch_init(&b);
    const int32_t keep[] = {5, 0, 1, 17, 40, 3, 99, 99}, len[] = {16, 4, 1, 17, 40, 16};
    for (int32_t i = 0; i < 6; i++)
        rig_batch_add(&b, i, 7 * i, len[i]);
    rig_batch_spread(&b, bias);
    const int32_t d = 192, n = b.rows.n_rows, pad = 6, cols = d * n_taps, width = s.n_kv * s.hd;
    struct cross_rows r = cross_rows(c, &b, pad, 2);
    struct cross_buf commit = cross_new(c, CROSS_I32, 8, keep, 0);
    struct cross_buf taps = cross_new(c, CROSS_ACT, (size_t)((n + pad) * cols), NULL, 1);
    struct cross_buf z = cross_new(c, CROSS_ACT, (size_t)((n + pad) * d), NULL, 0);
    struct cross_buf y = cross_new(c, CROSS_ACT, (size_t)((n + pad) * layers * 2 * width), NULL, 0);
    struct cross_weight fc = cross_weight(c, SV_BF16, d, cols, 1 / sqrtf((float)cols), 0);
    struct cross_weight fcb = cross_weight(c, SV_BF16, 1, d, 1, 0);
    struct cross_weight norm = cross_norm(c, SV_BF16, d, 0.3f);
    struct cross_weight w[16], wb[16], kn[8];
    struct cross_kv cache[8];
    struct sv_gemm_part part[2][16] = {0};
    struct sv_weight k_norm[2][8];
    struct sv_kv kv[2][8];
    for (int32_t l = 0; l < layers; l++) {
        kn[l] = cross_norm(c, SV_BF16, s.hd, 0.3f);
        cache[l] = cross_kv(c, 6, 120, 16, s.n_kv, s.hd, 0);
        for (int32_t i = 2 * l; i < 2 * l + 2; i++) {
            w[i] = cross_weight(c, SV_BF16, width, d, 0.1f, 0);
            wb[i] = cross_weight(c, SV_F32, 1, width, 1, 0);
            part[0][i] = (struct sv_gemm_part){w[i].ref, bias ? wb[i].ref : (struct sv_weight){0}};
            part[1][i] = (struct sv_gemm_part){w[i].dut, bias ? wb[i].dut : (struct sv_weight){0}};
        }
        k_norm[0][l] = l % 2 ? (struct sv_weight){0} : kn[l].ref;
        k_norm[1][l] = l % 2 ? (struct sv_weight){0} : kn[l].dut;
        kv[0][l] = cache[l].kv[0];
        kv[1][l] = cache[l].kv[1];
    }
    for (int side = 0; side < 2; side++)
        sv_op_draft_context_kv(cross_dev(c, side), &(struct sv_p_draft_context_kv){
                                                       .rows = r.rows[side],
                                                       .n_commit = cross_at(&commit, side),
                                                       .taps = cross_at(&taps, side),
                                                       .fc = side ? fc.dut : fc.ref,
                                                       .fc_bias = !bias  ? (struct sv_weight){0}
                                                                  : side ? fcb.dut
                                                                         : fcb.ref,
                                                       .hidden_norm = side ? norm.dut : norm.ref,
                                                       .eps = 1e-6f,
                                                       .n_layers = layers,
                                                       .kv_parts = part[side],
                                                       .k_norm = k_norm[side],
                                                       .rope = rope[side],
                                                       .kv = kv[side],
                                                       .z = cross_at(&z, side),
                                                       .y = cross_at(&y, side)});
    cross_sync(c);
    for (int32_t l = 0; l < layers; l++) { /* NaN everywhere but at committed rows */
        cross_same(c, &cache[l].k, 0, cache[l].k.n, 4 * c->tol, "context k");
        cross_same(c, &cache[l].v, 0, cache[l].v.n, 4 * c->tol, "context v");
        cross_kv_free(c, &cache[l]), cross_weight_free(c, &kn[l]);
        for (int32_t i = 2 * l; i < 2 * l + 2; i++)
            cross_weight_free(c, &w[i]), cross_weight_free(c, &wb[i]);
    }
    cross_rows_free(c, &r), cross_free(c, &commit), cross_free(c, &taps), cross_free(c, &z);
    cross_free(c, &y), cross_weight_free(c, &fc), cross_weight_free(c, &fcb);
    cross_weight_free(c, &norm), cross_free(c, &t[0]), cross_free(c, &t[1]);
}

static void context_on(struct cross *c)
{
    context_case(c, (struct heads){4, 2, 32, 32}, 1, 1, true);
    context_case(c, (struct heads){4, 2, 64, 64}, 5, 3, false);
    context_case(c, (struct heads){8, 8, 128, 64}, 8, 5, true);
}

/* ---------------------------------------------------------------- tests */

#define CROSS_TEST(name)                                                                           \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        cross_all(name##_on);                                                                      \
    }
CROSS_TEST(norm)
CROSS_TEST(act)
CROSS_TEST(embed)
CROSS_TEST(rope)
CROSS_TEST(rope_errors)
CROSS_TEST(gemm)
CROSS_TEST(gated)
CROSS_TEST(head)
CROSS_TEST(attention)
CROSS_TEST(f8)
CROSS_TEST(context)

SV_TEST_MAIN(cmocka_unit_test(norm), cmocka_unit_test(act), cmocka_unit_test(embed),
             cmocka_unit_test(rope), cmocka_unit_test(rope_errors), cmocka_unit_test(gemm),
             cmocka_unit_test(gated), cmocka_unit_test(head), cmocka_unit_test(attention),
             cmocka_unit_test(f8), cmocka_unit_test(context))
