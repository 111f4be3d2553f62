/*
 * test_rows.c - add_rms_norm, act_mul, embed and qk_norm_rope_kv_write against double-precision
 * loops over a sweep of shapes, with guarded outputs, and the bits of a row alone and in company.
 */
#include "rig.h"

#include <math.h>
#include <string.h>

typedef void (*each_fn)(struct sv_dev *dev);

static void on_all_devices(each_fn fn)
{
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++) {
        struct sv_dev *dev = rig_open(isa[i], 1 + i % 3, SV_F32);
        fn(dev);
        sv_dev_close(dev);
    }
}

static const enum sv_dtype FLOATS[] = {SV_F32, SV_BF16, SV_F16};

/* ---------------------------------------------------------------- add_rms_norm */

/* variant: 1 delta, 2 tap, 4 row_index (then no tap) */
static void norm_case(struct sv_dev *dev, int32_t n, int32_t d, int variant, enum sv_dtype dtype)
{
    struct sv_rng rng = {(uint64_t)(n * 4099 + d)};
    const int32_t n_in = n + 5;
    const bool indexed = variant & 4, tapped = (variant & 2) && !indexed;
    size_t size = (size_t)n_in * (size_t)d;
    float *x = rig_floats(&rng, size, 3), *delta = rig_floats(&rng, size, 1);
    float *before = rig_new(size * 4), *out = rig_new((size_t)n * (size_t)d * 4);
    float *tap = rig_new((size_t)n * (size_t)(d + 4) * 4);
    int32_t *index = rig_new((size_t)n * 4);
    struct sv_weight w = rig_weight(&rng, dtype, 1, d, 0.3f, 1);
    for (int32_t i = 0; i < n; i++)
        index[i] = (int32_t)sv_rng_below(&rng, (uint32_t)n_in);
    if (n > 1)
        index[n - 1] = -1; /* padding reads row 0 */
    memcpy(before, x, size * 4);
    struct sv_p_add_rms_norm p = {.n_rows = n,
                                  .d = d,
                                  .x = x,
                                  .delta = variant & 1 ? delta : NULL,
                                  .row_index = indexed ? index : NULL,
                                  .weight = w,
                                  .eps = 1e-6f,
                                  .out = out,
                                  .tap = tapped ? tap : NULL,
                                  .tap_stride = d + 4};
    sv_op_add_rms_norm(dev, &p);
    for (int32_t i = 0; i < n; i++) {
        int32_t r = !indexed ? i : index[i] < 0 ? 0 : index[i];
        double sum = 0;
        for (int32_t k = 0; k < d; k++) {
            float v = before[r * d + k] + (variant & 1 ? delta[r * d + k] : 0);
            sum += (double)v * (double)v;
            float kept = variant & 1 && !indexed ? v : before[r * d + k];
            if (memcmp(&x[r * d + k], &kept, 4) != 0)
                fail_msg("x of row %d", i);
            if (tapped && memcmp(&tap[(int64_t)i * (d + 4) + k], &v, 4) != 0)
                fail_msg("tap of row %d", i);
        }
        double inv = 1 / sqrt(sum / d + (double)1e-6f);
        for (int32_t k = 0; k < d; k++) {
            float v = before[r * d + k] + (variant & 1 ? delta[r * d + k] : 0);
            rig_near((double)out[i * d + k], (double)v * inv * rig_weight_at(&w, k), 2e-6, "norm",
                     k);
        }
        if (tapped) /* between rows nothing was written */
            for (int32_t k = d; k < d + 4; k++)
                assert_true(isnan(tap[(int64_t)i * (d + 4) + k]));
    }
    if (!indexed) /* rows behind the last are left alone */
        assert_memory_equal(x + (size_t)n * (size_t)d, before + (size_t)n * (size_t)d,
                            (size_t)(n_in - n) * (size_t)d * 4);
    rig_free(x), rig_free(delta), rig_free(before), rig_free(out), rig_free(tap), rig_free(index);
    rig_free((void *)(uintptr_t)w.data);
}

/* Rows whose taps have places of their own, or none; past the caches where these are aligned. */
static void placed_case(struct sv_dev *dev, int32_t n, int32_t d, int32_t shift, bool delta)
{
    struct sv_rng rng = {(uint64_t)(n * 4099 + d)};
    const int32_t stride = d + 32;
    const size_t size = (size_t)n * (size_t)d, n_tap = 2 * (size_t)n * (size_t)stride;
    float *x = rig_floats(&rng, size, 3), *more = rig_floats(&rng, size, 1);
    float *out = rig_new(size * 4), *tap = rig_new((n_tap + 16) * 4);
    int32_t *place = rig_new((size_t)n * 4);
    struct sv_weight w = rig_weight(&rng, SV_F32, 1, d, 0.3f, 1);
    for (int32_t i = 0; i < n; i++)
        place[i] = i % 3 == 1 ? -1 : 2 * (n - 1 - i); /* every other place stays free */
    sv_op_add_rms_norm(dev, &(struct sv_p_add_rms_norm){.n_rows = n,
                                                        .d = d,
                                                        .x = x,
                                                        .delta = delta ? more : NULL,
                                                        .weight = w,
                                                        .eps = 1e-6f,
                                                        .out = out,
                                                        .tap = tap + shift,
                                                        .tap_stride = stride,
                                                        .tap_row = place});
    for (int32_t i = 0; i < n; i++)
        if (place[i] >= 0) {
            float *at = tap + shift + (size_t)place[i] * (size_t)stride;
            assert_memory_equal(at, x + (size_t)i * (size_t)d, (size_t)d * 4);
            for (int32_t k = 0; k < d; k++)
                at[k] = NAN;
        }
    for (size_t k = 0; k < n_tap + 16; k++) /* nothing was written elsewhere */
        assert_true(isnan(tap[k]));
    rig_free(x), rig_free(more), rig_free(out), rig_free(tap), rig_free(place);
    rig_free((void *)(uintptr_t)w.data);
}

static void norm_on(struct sv_dev *dev)
{
    static const int32_t dims[] = {1, 7, 8, 16, 31, 67, 320, 1031};
    static const int32_t rows[] = {0, 1, 3, 17};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++)
            for (int v = 0; v < 8; v++)
                norm_case(dev, rows[j], dims[i], v, FLOATS[(i + j + v) % 3]);
    for (int i = 0; i < 8; i++)
        for (int j = 1; j < 4; j++)
            for (int32_t shift = 0; shift <= 16; shift = 2 * shift + 1)
                placed_case(dev, rows[j], dims[i], shift, shift % 2);
}

static void norm(void **state)
{
    (void)state;
    on_all_devices(norm_on);
}

/* ---------------------------------------------------------------- act_mul */

static void act_on(struct sv_dev *dev)
{
    static const int32_t dims[] = {1, 5, 16, 35, 896, 3072};
    for (int i = 0; i < 6; i++)
        for (int32_t n = 0; n <= 17; n += n < 2 ? 1 : 15) {
            struct sv_rng rng = {(uint64_t)(100 + i)};
            const int32_t d = dims[i];
            float *in = rig_floats(&rng, (size_t)n * 2 * (size_t)d, 6);
            float *out = rig_new((size_t)n * (size_t)d * 4);
            static const float special[] = {0,   -0.0f,  100,    -100,     89,
                                            -89, -87.5f, 1e-30f, INFINITY, 1e30f};
            for (int32_t k = 0; k < 10 && k < d && n; k++)
                in[k] = special[k];
            struct sv_p_act_mul p = {n, d, in, out};
            sv_op_act_mul(dev, &p);
            for (int32_t r = 0; r < n; r++)
                for (int32_t k = 0; k < d; k++) {
                    double g = (double)in[r * 2 * d + k], u = (double)in[r * 2 * d + d + k];
                    double want = isinf(g) ? g * u : g / (1 + exp(-g)) * u;
                    rig_near((double)out[r * d + k], want, 1e-6, "act_mul", k);
                    /* relative, not only absolute: the product of small numbers is small */
                    if (fabs(want) > 1e-30 && isfinite(want))
                        assert_true(fabs((double)out[r * d + k] / want - 1) < 1e-6);
                }
            rig_free(in), rig_free(out);
        }
    float nan_in[2] = {NAN, 1}, out[1];
    struct sv_p_act_mul p = {1, 1, nan_in, out};
    sv_op_act_mul(dev, &p);
    assert_true(isnan(out[0]));
}

static void act_mul(void **state)
{
    (void)state;
    on_all_devices(act_on);
}

/* ---------------------------------------------------------------- embed */

static void embed_on(struct sv_dev *dev)
{
    static const int32_t dims[] = {8, 30, 320};
    for (int i = 0; i < 9; i++) {
        struct sv_rng rng = {(uint64_t)i};
        const int32_t d = dims[i % 3], n = 13;
        struct sv_weight t = rig_weight(&rng, FLOATS[i / 3], 50, d, 1, 0);
        int32_t ids[13] = {0, 49, -1, -2147483647, 50, 2147483647, 7, 7, 7, 1, 2, 3, 4};
        float *out = rig_new((size_t)n * (size_t)d * 4);
        struct sv_p_embed p = {n, ids, t, i % 2 ? 2.5f : 1.0f, out};
        sv_op_embed(dev, &p);
        for (int32_t r = 0; r < n; r++)
            for (int32_t k = 0; k < d; k++) {
                int32_t id = ids[r] < 0 ? 0 : ids[r] > 49 ? 49 : ids[r];
                rig_near((double)out[r * d + k], rig_weight_at(&t, id * d + k) * (i % 2 ? 2.5 : 1),
                         1e-7, "embed", k);
            }
        rig_free(out), rig_free((void *)(uintptr_t)t.data);
    }
}

static void embed(void **state)
{
    (void)state;
    on_all_devices(embed_on);
}

/* ---------------------------------------------------------------- qk_norm_rope_kv_write */

struct rope_shape {
    int32_t n_heads, n_kv, hd, rot;
};

struct table {
    struct sv_rope_table t;
    float *cos, *sin;
};

static void table_init(struct table *t, int32_t max_pos, int32_t rot)
{
    int32_t half = rot / 2;
    t->cos = rig_new((size_t)max_pos * (size_t)half * 4);
    t->sin = rig_new((size_t)max_pos * (size_t)half * 4);
    for (int32_t p = 0; p < max_pos; p++)
        for (int32_t i = 0; i < half; i++) {
            double angle = p * pow(10000, -2.0 * i / rot);
            t->cos[p * half + i] = (float)(1.1 * cos(angle));
            t->sin[p * half + i] = (float)(1.1 * sin(angle));
        }
    t->t = (struct sv_rope_table){t->cos, t->sin, max_pos, rot, NULL};
}

static void table_fini(struct table *t)
{
    rig_free(t->cos), rig_free(t->sin);
}

/* Norm and rotation of one head in double. */
static void head_by_definition(const float *x, const struct sv_weight *w, const struct table *t,
                               int32_t pos, int32_t hd, double *out)
{
    double sum = 0, half[256];
    int32_t rot = t->t.rot_dim;
    for (int32_t i = 0; i < hd; i++)
        sum += (double)x[i] * (double)x[i];
    double inv = w->data ? 1 / sqrt(sum / hd + 1e-5) : 1;
    for (int32_t i = 0; i < hd; i++)
        half[i] = (double)x[i] * inv * (w->data ? rig_weight_at(w, i) : 1);
    for (int32_t i = 0; i < hd; i++)
        out[i] = half[i];
    for (int32_t i = 0; i < rot / 2; i++) {
        double c = (double)t->cos[pos * (rot / 2) + i], s = (double)t->sin[pos * (rot / 2) + i];
        out[i] = half[i] * c - half[rot / 2 + i] * s;
        out[rot / 2 + i] = half[rot / 2 + i] * c + half[i] * s;
    }
}

static int64_t count_set(const struct rig_kv *c, const void *data)
{
    int64_t n = (int64_t)c->kv.n_pages * c->kv.page_size * c->kv.n_kv_heads * c->kv.head_dim,
            set = 0;
    for (int64_t i = 0; i < n; i++)
        set += !isnan(rig_kv_get(c, data, i));
    return set;
}

static void rope_case(struct sv_dev *dev, struct rope_shape s, enum sv_dtype kv_dtype, int32_t page,
                      bool normed)
{
    struct sv_rng rng = {11};
    struct rig_batch b;
    struct rig_kv kv;
    struct table t;
    table_init(&t, 200, s.rot);
    rig_kv_init(&kv, &rng, kv_dtype, 4, 200, page, s.n_kv, s.hd);
    rig_batch_init(&b);
    rig_batch_add(&b, 3, 0, 5);
    rig_batch_add(&b, 0, 199, 1);
    rig_batch_add(&b, 1, 40, 0);
    rig_batch_add(&b, 2, 57, 16);
    rig_batch_spread(&b, normed ? 2 : 0); /* rows need not be next to one another */
    const int32_t width = (s.n_heads + 2 * s.n_kv) * s.hd, ld = width + 5, n = b.rows.n_rows;
    float *x = rig_floats(&rng, (size_t)n * (size_t)ld, 2),
          *qkv = rig_new((size_t)n * (size_t)ld * 4);
    memcpy(qkv, x, (size_t)n * (size_t)ld * 4);
    struct sv_weight none = {0};
    struct sv_weight qn = normed ? rig_weight(&rng, SV_BF16, 1, s.hd, 0.3f, 1) : none;
    struct sv_weight kn = normed ? rig_weight(&rng, SV_F32, 1, s.hd, 0.3f, 1) : none;
    struct sv_p_qk_norm_rope_kv_write p = {.rows = b.rows,
                                           .qkv = qkv,
                                           .ld = ld,
                                           .n_heads = s.n_heads,
                                           .q_norm = qn,
                                           .k_norm = kn,
                                           .eps = 1e-5f,
                                           .rope = t.t,
                                           .kv = kv.kv};
    sv_op_qk_norm_rope_kv_write(dev, &p);
    rig_sync(dev, SV_OK);
    const double tol = kv_dtype == SV_BF16 ? 8e-3 : 3e-6;
    for (int32_t r = 0; r < n; r++) {
        int32_t pos = rig_pos(&b, r), slot = b.seg_slot[b.row_seg[r]];
        double want[256];
        for (int32_t h = 0; h < s.n_heads; h++) {
            head_by_definition(x + (int64_t)r * ld + h * s.hd, &qn, &t, pos, s.hd, want);
            for (int32_t d = 0; d < s.hd; d++)
                rig_near((double)qkv[(int64_t)r * ld + h * s.hd + d], want[d], 3e-6, "q", d);
        }
        for (int32_t h = 0; h < s.n_kv; h++) {
            const float *k = x + (int64_t)r * ld + (s.n_heads + h) * s.hd, *v = k + s.n_kv * s.hd;
            int64_t at = rig_kv_at(&kv, slot, pos, h);
            head_by_definition(k, &kn, &t, pos, s.hd, want);
            for (int32_t d = 0; d < s.hd; d++) {
                rig_near(rig_kv_get(&kv, kv.kv.k, at + d), want[d], tol, "k", d);
                float expect = kv_dtype == SV_BF16 ? sv_bf16_to_f32(sv_f32_to_bf16(v[d])) : v[d];
                assert_true(rig_kv_get(&kv, kv.kv.v, at + d) == (double)expect);
            }
        }
        for (int32_t d = width; d < ld; d++)
            assert_true(qkv[(int64_t)r * ld + d] == x[(int64_t)r * ld + d]);
    }
    assert_int_equal(count_set(&kv, kv.kv.k), (int64_t)n * s.n_kv * s.hd);
    assert_int_equal(count_set(&kv, kv.kv.v), (int64_t)n * s.n_kv * s.hd);
    rig_free(x), rig_free(qkv), rig_free((void *)(uintptr_t)qn.data);
    rig_free((void *)(uintptr_t)kn.data);
    rig_kv_fini(&kv);
    table_fini(&t);
}

static void rope_on(struct sv_dev *dev)
{
    static const struct rope_shape shapes[] = {{5, 1, 64, 64}, {4, 2, 128, 128}, {4, 4, 32, 16},
                                               {3, 1, 96, 96}, {2, 2, 8, 8},     {1, 1, 256, 64},
                                               {9, 3, 40, 40}, {2, 1, 24, 0}};
    for (int i = 0; i < 8; i++)
        for (int dtype = 0; dtype < 2; dtype++)
            for (int normed = 0; normed < 2; normed++)
                rope_case(dev, shapes[i], dtype ? SV_BF16 : SV_F32,
                          (int32_t[]){1, 16, 64}[(i + dtype + normed) % 3], normed);
}

static void rope(void **state)
{
    (void)state;
    on_all_devices(rope_on);
}

/* A position without a page or beyond the table is reported and writes nothing elsewhere. */
static void rope_errors_on(struct sv_dev *dev)
{
    struct sv_rng rng = {3};
    struct table t;
    table_init(&t, 64, 32);
    for (int which = 0; which < 3; which++) {
        struct rig_batch b;
        struct rig_kv kv;
        rig_kv_init(&kv, &rng, SV_F32, 1, 128, 16, 1, 32);
        rig_batch_init(&b);
        rig_batch_add(&b, 0, which == 0 ? 20 : which == 1 ? 70 : 128, 1);
        if (which == 0)
            ((int32_t *)(uintptr_t)kv.kv.table)[1] = 8;
        float *qkv = rig_floats(&rng, 96, 1);
        struct sv_p_qk_norm_rope_kv_write p = {
            .rows = b.rows, .qkv = qkv, .ld = 96, .n_heads = 1, .rope = t.t, .kv = kv.kv};
        sv_op_qk_norm_rope_kv_write(dev, &p);
        rig_sync(dev, SV_EDEVICE);
        rig_sync(dev, SV_OK);
        assert_int_equal(count_set(&kv, kv.kv.k), which == 1 ? 32 : 0);
        rig_free(qkv);
        rig_kv_fini(&kv);
    }
    table_fini(&t);
}

static void rope_errors(void **state)
{
    (void)state;
    on_all_devices(rope_errors_on);
}

/* ---------------------------------------------------------------- a row's bits */

/* n rows at once with `threads`, against each row in a call of its own on one thread. */
static void bits_case(enum sv_isa isa, int threads, int32_t n, int32_t d)
{
    struct sv_rng rng = {5};
    struct sv_dev *dev = rig_open(isa, threads, SV_F32), *one = rig_open(isa, 1, SV_F32);
    struct sv_weight w = rig_weight(&rng, SV_BF16, 1, d, 0.3f, 1);
    size_t size = (size_t)n * (size_t)d;
    float *x = rig_floats(&rng, 2 * size, 2), *a = rig_new(size * 4), *b = rig_new(size * 4);
    struct sv_p_add_rms_norm norm = {
        .n_rows = n, .d = d, .x = x, .weight = w, .eps = 1e-6f, .out = a};
    sv_op_add_rms_norm(dev, &norm);
    for (int32_t r = 0; r < n; r++) {
        struct sv_p_add_rms_norm p = norm;
        p.n_rows = 1;
        p.x = x + (size_t)r * (size_t)d;
        p.out = b + (size_t)r * (size_t)d;
        sv_op_add_rms_norm(one, &p);
    }
    assert_memory_equal(a, b, size * 4);
    struct sv_p_act_mul act = {n, d, x, a};
    sv_op_act_mul(dev, &act);
    for (int32_t r = 0; r < n; r++) {
        struct sv_p_act_mul p = {1, d, x + 2 * (size_t)r * (size_t)d, b + (size_t)r * (size_t)d};
        sv_op_act_mul(one, &p);
    }
    assert_memory_equal(a, b, size * 4);
    rig_free(x), rig_free(a), rig_free(b), rig_free((void *)(uintptr_t)w.data);
    sv_dev_close(dev);
    sv_dev_close(one);
}

static void rope_bits_case(enum sv_isa isa, int threads, int32_t page)
{
    struct sv_rng rng = {5};
    struct sv_dev *dev = rig_open(isa, threads, SV_F32), *one = rig_open(isa, 1, SV_F32);
    struct rig_batch b;
    struct rig_kv kv, kv1;
    struct table t;
    table_init(&t, 100, 64);
    rig_kv_init(&kv, &rng, SV_BF16, 8, 100, page, 2, 64);
    rig_kv_init(&kv1, &rng, SV_BF16, 8, 100, 16, 2, 64);
    rig_batch_init(&b);
    for (int32_t s = 0; s < 8; s++)
        rig_batch_add(&b, 7 - s, s * 9, 1 + s * 3 % 16);
    const int32_t n = b.rows.n_rows, ld = 6 * 64 + 4 * 64;
    float *x = rig_floats(&rng, (size_t)n * (size_t)ld, 2),
          *y = rig_new((size_t)n * (size_t)ld * 4);
    memcpy(y, x, (size_t)n * (size_t)ld * 4);
    struct sv_weight w = rig_weight(&rng, SV_BF16, 1, 64, 0.3f, 1);
    struct sv_p_qk_norm_rope_kv_write p = {.rows = b.rows,
                                           .qkv = y,
                                           .ld = ld,
                                           .n_heads = 6,
                                           .q_norm = w,
                                           .k_norm = w,
                                           .eps = 1e-6f,
                                           .rope = t.t,
                                           .kv = kv.kv};
    sv_op_qk_norm_rope_kv_write(dev, &p);
    for (int32_t r = 0; r < n; r++) {
        struct rig_batch single;
        struct sv_p_qk_norm_rope_kv_write q = p;
        int32_t slot = b.seg_slot[b.row_seg[r]], pos = rig_pos(&b, r);
        rig_batch_init(&single);
        rig_batch_add(&single, slot, pos, 1);
        q.rows = single.rows;
        q.qkv = x + (size_t)r * (size_t)ld;
        q.kv = kv1.kv;
        sv_op_qk_norm_rope_kv_write(one, &q);
        assert_memory_equal(x + (size_t)r * (size_t)ld, y + (size_t)r * (size_t)ld, (size_t)ld * 4);
        for (int32_t h = 0; h < 2; h++) {
            int64_t at = rig_kv_at(&kv, slot, pos, h), at1 = rig_kv_at(&kv1, slot, pos, h);
            assert_memory_equal((uint16_t *)kv.kv.k + at, (uint16_t *)kv1.kv.k + at1, 128);
            assert_memory_equal((uint16_t *)kv.kv.v + at, (uint16_t *)kv1.kv.v + at1, 128);
        }
    }
    rig_free(x), rig_free(y), rig_free((void *)(uintptr_t)w.data);
    rig_kv_fini(&kv), rig_kv_fini(&kv1);
    table_fini(&t);
    sv_dev_close(dev);
    sv_dev_close(one);
}

static void bits(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int t = 1; t <= 4; t++) {
            bits_case(isa[i], t, 1 + 23 * (t - 1), 320);
            bits_case(isa[i], t, 61, 1031);
            rope_bits_case(isa[i], t, (int32_t[]){1, 16, 64}[t % 3]);
        }
}

/* The product that ends with the activation has the bits of the two ops. */
static void gated_product(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int threads = 1; threads <= 2; threads++) {
            enum { ROWS = 9, K = 136, D = 77 };
            struct sv_rng rng = {11};
            struct sv_dev *dev = rig_open(isa[i], threads, SV_F32);
            struct sv_gemm_part part[2] = {{.w = rig_weight(&rng, SV_BF16, D, K, 0.2f, 0)},
                                           {.w = rig_weight(&rng, SV_BF16, D, K, 0.2f, 0),
                                            .bias = rig_weight(&rng, SV_F32, 1, D, 1, 0)}};
            float *x = rig_floats(&rng, ROWS * K, 1), *both = rig_new(sizeof(float) * ROWS * 2 * D);
            float *want = rig_new(sizeof(float) * ROWS * D),
                  *got = rig_new(sizeof(float) * ROWS * D);
            sv_op_gemm(dev, &(struct sv_p_gemm){.n_rows = ROWS,
                                                .k = K,
                                                .n_parts = 2,
                                                .x = x,
                                                .ldx = K,
                                                .parts = part,
                                                .y = both,
                                                .ldy = 2 * D});
            sv_op_act_mul(dev, &(struct sv_p_act_mul){ROWS, D, both, want});
            sv_op_gemm_act_mul(dev, &(struct sv_p_gemm_act_mul){.n_rows = ROWS,
                                                                .k = K,
                                                                .x = x,
                                                                .ldx = K,
                                                                .parts = part,
                                                                .gate_up = both,
                                                                .out = got});
            assert_memory_equal(got, want, sizeof(float) * ROWS * D);
            rig_free(x), rig_free(both), rig_free(want), rig_free(got);
            for (int p = 0; p < 2; p++)
                rig_free((void *)(uintptr_t)part[p].w.data);
            rig_free((void *)(uintptr_t)part[1].bias.data);
            sv_dev_close(dev);
        }
}

/* Query heads with their gates between them, as gated attention's projection gives them: the bits
 * of heads side by side; and x * sigmoid(gate). */
static void gated_heads_on(struct sv_dev *dev)
{
    enum { HEADS = 4, KV = 2, HD = 40, ROT = 16, LEN = 70, KVW = 2 * KV * HD };
    enum { WIDE = 2 * HEADS * HD + KVW, TIGHT = HEADS * HD + KVW, OUT = HEADS * HD };
    struct sv_rng rng = {31};
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 0, LEN);
    rig_batch_add(&b, 1, 0, 3);
    const int32_t n = b.rows.n_rows;
    float *wide = rig_floats(&rng, (size_t)n * WIDE, 1), *tight = rig_new((size_t)n * TIGHT * 4);
    float *gate = memcpy(rig_new((size_t)n * WIDE * 4), wide, (size_t)n * WIDE * 4);
    float *out[2] = {rig_new((size_t)n * OUT * 4), rig_new((size_t)n * OUT * 4)};
    float *table = rig_floats(&rng, 2 * 128 * ROT / 2, 1);
    struct sv_weight norm = rig_weight(&rng, SV_F32, 1, HD, 0.3f, 1);
    for (int32_t r = 0; r < n; r++) {
        for (int32_t h = 0; h < HEADS; h++)
            memcpy(tight + r * TIGHT + h * HD, wide + r * WIDE + 2 * h * HD, HD * 4);
        memcpy(tight + r * TIGHT + OUT, wide + r * WIDE + 2 * OUT, KVW * 4);
    }
    for (int side = 0; side < 2; side++) {
        struct rig_kv kv;
        rig_kv_init(&kv, &rng, SV_F32, 2, LEN, 16, KV, HD);
        sv_op_qk_norm_rope_kv_write(dev, &(struct sv_p_qk_norm_rope_kv_write){
                                             .rows = b.rows,
                                             .qkv = side ? wide : tight,
                                             .ld = side ? WIDE : TIGHT,
                                             .n_heads = HEADS,
                                             .q_stride = side ? 2 * HD : 0,
                                             .q_norm = norm,
                                             .k_norm = norm,
                                             .eps = 1e-6f,
                                             .rope = {table, table + 128 * ROT / 2, 128, ROT},
                                             .kv = kv.kv});
        sv_op_attention(dev, &(struct sv_p_attention){.rows = b.rows,
                                                      .q = side ? wide : tight,
                                                      .ldq = side ? WIDE : TIGHT,
                                                      .q_stride = side ? 2 * HD : 0,
                                                      .out = out[side],
                                                      .ldo = OUT,
                                                      .n_heads = HEADS,
                                                      .kv = kv.kv,
                                                      .scale = 0.2f});
        rig_kv_fini(&kv);
    }
    assert_memory_equal(out[0], out[1], (size_t)n * OUT * 4);
    sv_op_sigmoid_mul(dev, &(struct sv_p_sigmoid_mul){.n_rows = n,
                                                      .n_heads = HEADS,
                                                      .head_dim = HD,
                                                      .x = out[1],
                                                      .gate = wide + HD,
                                                      .ldg = WIDE,
                                                      .gate_stride = 2 * HD});
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < OUT; i++) {
            const float g = gate[r * WIDE + i / HD * 2 * HD + HD + i % HD];
            rig_near((double)out[1][r * OUT + i],
                     (double)out[0][r * OUT + i] / (1 + exp(-(double)g)), 1e-6, "gated", i);
        }
    rig_free(wide), rig_free(tight), rig_free(gate), rig_free(out[0]), rig_free(out[1]);
    rig_free(table), rig_free((void *)(uintptr_t)norm.data);
}

static void gated_heads(void **state)
{
    (void)state;
    on_all_devices(gated_heads_on);
}

static void add_gated_on(struct sv_dev *dev)
{
    enum { N = 5, D = 50 };
    struct sv_rng rng = {32};
    float *x = rig_floats(&rng, N * D, 1), *y = rig_floats(&rng, N * D, 1);
    float *was = memcpy(rig_new(N * D * 4), x, N * D * 4), *gate = rig_floats(&rng, N, 3);
    sv_op_add_gated(dev, &(struct sv_p_add_gated){N, D, x, y, gate});
    for (int32_t i = 0; i < N * D; i++)
        rig_near((double)x[i], (double)was[i] + (double)y[i] / (1 + exp(-(double)gate[i / D])),
                 1e-6, "gated sum", i);
    rig_free(x), rig_free(y), rig_free(was), rig_free(gate);
}

static void add_gated(void **state)
{
    (void)state;
    on_all_devices(add_gated_on);
}

SV_TEST_MAIN(cmocka_unit_test(norm), cmocka_unit_test(act_mul), cmocka_unit_test(embed),
             cmocka_unit_test(rope), cmocka_unit_test(rope_errors), cmocka_unit_test(bits),
             cmocka_unit_test(gated_product), cmocka_unit_test(gated_heads),
             cmocka_unit_test(add_gated))
