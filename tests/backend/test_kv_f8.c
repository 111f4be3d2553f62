/*
 * test_kv_f8.c - caches in e4m3: what a row is stored as, and that attention over it has the bits
 * of attention over a cache that holds the stored values in the type of the products.
 */
#include "rig.h"

#include "backend/quant.h"

#include <math.h>
#include <string.h>

enum { POSITIONS = 150 };

struct shape {
    int32_t n_heads, n_kv, head_dim, page;
    enum sv_mask mask;
    int32_t window;
};
static const struct shape SHAPES[] = {
    {5, 1, 64, 16, SV_MASK_CAUSAL, 0}, {4, 2, 128, 7, SV_MASK_BLOCK, 0},
    {2, 2, 32, 1, SV_MASK_CAUSAL, 24}, {6, 2, 96, 64, SV_MASK_BLOCK, 40},
    {3, 3, 8, 16, SV_MASK_CAUSAL, 0},  {7, 1, 40, 5, SV_MASK_CAUSAL, 0},
};

/* Numbers of all sizes: a factor for each row, and some that are 0. */
static void fill(float *x, int32_t n, uint64_t seed)
{
    struct sv_rng r = {seed};
    const float by = ldexpf(1, (int)sv_rng_below(&r, 13) - 6);
    for (int32_t i = 0; i < n; i++)
        x[i] = sv_rng_below(&r, 9) ? by * sv_rng_normal(&r) : 0;
}

/* Writes the rows of a batch; q|k|v of row r depends on its position alone. */
static void write(struct sv_dev *dev, const struct shape *s, const struct rig_kv *kv,
                  const struct rig_batch *b, float *qkv)
{
    static const float no_angle[1];
    const int32_t ld = (s->n_heads + 2 * s->n_kv) * s->head_dim;
    for (int32_t r = 0; r < b->rows.n_rows; r++)
        fill(qkv + (size_t)r * (size_t)ld, ld, 1000 + (uint64_t)rig_pos(b, r));
    struct sv_p_qk_norm_rope_kv_write p = {
        .rows = b->rows,
        .qkv = qkv,
        .ld = ld,
        .n_heads = s->n_heads,
        .rope = {.cos = no_angle, .sin = no_angle, .max_pos = 4096},
        .kv = kv->kv};
    sv_op_qk_norm_rope_kv_write(dev, &p);
    rig_sync(dev, SV_OK);
}

static float *attend(struct sv_dev *dev, const struct shape *s, const struct rig_kv *kv,
                     const struct rig_batch *b, const float *qkv)
{
    const int32_t width = s->n_heads * s->head_dim;
    float *out = rig_new((size_t)b->rows.n_rows * (size_t)width * sizeof *out);
    struct sv_p_attention p = {.rows = b->rows,
                               .q = (float *)(uintptr_t)qkv,
                               .ldq = (s->n_heads + 2 * s->n_kv) * s->head_dim,
                               .out = out,
                               .ldo = width,
                               .n_heads = s->n_heads,
                               .kv = kv->kv,
                               .mask = s->mask,
                               .window = s->window,
                               .scale = 1 / sqrtf((float)s->head_dim)};
    sv_op_attention(dev, &p);
    rig_sync(dev, SV_OK);
    rig_check(out);
    return out;
}

/* The value of element d of a stored row. */
static float stored(const struct rig_kv *kv, int which, int32_t pos, int32_t head, int32_t d)
{
    const int32_t hd = kv->kv.head_dim;
    const uint8_t *data = which ? kv->kv.v : kv->kv.k;
    const int64_t at = rig_kv_at(kv, 0, pos, head);
    const float fixed = which ? kv->kv.v_scale : kv->kv.k_scale;
    const uint8_t own = (which ? kv->kv.v_own : kv->kv.k_own)[at / hd];
    return sv_f8_to_f32(data[at + d]) * (fixed > 0 ? fixed : sv_e8m0_to_f32(own));
}

/* Each stored number is the nearest of its scale, and the scale is the least power of two. */
static void check_rows(const struct shape *s, const struct rig_kv *kv)
{
    const int32_t hd = s->head_dim, ld = (s->n_heads + 2 * s->n_kv) * hd;
    float *x = rig_new((size_t)ld * sizeof *x);
    for (int32_t pos = 0; pos < POSITIONS; pos++) {
        fill(x, ld, 1000 + (uint64_t)pos);
        for (int32_t h = 0; h < s->n_kv; h++)
            for (int which = 0; which < 2; which++) {
                const float *in = x + (size_t)(s->n_heads + which * s->n_kv + h) * (size_t)hd;
                const int64_t at = rig_kv_at(kv, 0, pos, h);
                const uint8_t *row = (const uint8_t *)(which ? kv->kv.v : kv->kv.k) + at;
                const uint8_t own = (which ? kv->kv.v_own : kv->kv.k_own)[at / hd];
                const float fixed = which ? kv->kv.v_scale : kv->kv.k_scale;
                const float scale = fixed > 0 ? fixed : sv_e8m0_to_f32(own);
                float top = 0;
                for (int32_t d = 0; d < hd; d++) {
                    top = fmaxf(top, fabsf(in[d]));
                    assert_int_equal(row[d], sv_f32_to_f8(in[d] / scale));
                }
                if (fixed > 0)
                    assert_int_equal(own, 127);
                else
                    assert_true(top <= 448 * scale && (top > 224 * scale || top == 0));
            }
    }
    rig_free(x);
}

static void one(struct sv_dev *dev, enum sv_dtype compute, const struct shape *s, float k_scale,
                float v_scale)
{
    struct sv_rng rng = {3}, again = {3};
    struct rig_kv kv, plain;
    struct rig_batch b;
    const int32_t ld = (s->n_heads + 2 * s->n_kv) * s->head_dim;
    float *qkv = rig_new((size_t)RIG_MAX_ROWS * (size_t)ld * sizeof *qkv);
    rig_kv_init(&kv, &rng, SV_F8, 1, POSITIONS, s->page, s->n_kv, s->head_dim);
    rig_kv_init(&plain, &again, compute, 1, POSITIONS, s->page, s->n_kv, s->head_dim);
    kv.kv.k_scale = k_scale;
    kv.kv.v_scale = v_scale;
    for (int32_t at = 0; at < POSITIONS; at += 10) {
        rig_batch_init(&b);
        rig_batch_add(&b, 0, at, 10);
        write(dev, s, &kv, &b, qkv);
    }
    check_rows(s, &kv);
    for (int32_t pos = 0; pos < POSITIONS; pos++)
        for (int32_t h = 0; h < s->n_kv; h++)
            for (int32_t d = 0; d < s->head_dim; d++)
                for (int which = 0; which < 2; which++)
                    rig_kv_put(&plain, which ? plain.kv.v : plain.kv.k,
                               rig_kv_at(&plain, 0, pos, h) + d, stored(&kv, which, pos, h, d));
    static const int32_t from[] = {0, 1, 62, 63, 127, 134}, n[] = {1, 16, 5};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 3; k++) {
            rig_batch_init(&b);
            rig_batch_add(&b, 0, from[i], n[k]);
            for (int32_t r = 0; r < b.rows.n_rows; r++)
                fill(qkv + (size_t)r * (size_t)ld, ld, 7 + (uint64_t)rig_pos(&b, r));
            float *a = attend(dev, s, &kv, &b, qkv), *c = attend(dev, s, &plain, &b, qkv);
            const size_t n_bytes = (size_t)n[k] * (size_t)(s->n_heads * s->head_dim) * sizeof *a;
            assert_memory_equal(a, c, n_bytes);
            rig_free(a), rig_free(c);
        }
    rig_free(qkv);
    rig_kv_fini(&kv);
    rig_kv_fini(&plain);
}

static void attention_reads_what_is_stored(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct sv_dev *dev = rig_open(isa[i], 2, bf16 ? SV_BF16 : SV_F32);
            for (size_t k = 0; k < sizeof SHAPES / sizeof SHAPES[0]; k++) {
                one(dev, bf16 ? SV_BF16 : SV_F32, &SHAPES[k], 0, 0);
                if (!bf16) /* bf16 does not hold every product with such scales */
                    one(dev, SV_F32, &SHAPES[k], 0.037f, 1.25f);
            }
            sv_dev_close(dev);
        }
}

/* No number is hidden by its rounding: NaN stays, and the largest become the largest code. */
static void numbers_out_of_range(void **state)
{
    (void)state;
    static const float no_angle[1];
    static const struct {
        float x, want;
    } cases[] = {{NAN, NAN},
                 {INFINITY, 448 * 0x1p119f},
                 {-INFINITY, -448 * 0x1p119f},
                 {3e38f, 448 * 0x1p119f},
                 {448, 448},
                 {449, 448},
                 {0x1p-140f, 0},
                 {0, 0}};
    struct sv_dev *dev = rig_open(SV_ISA_AUTO, 1, SV_F32);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_rng rng = {1};
        struct rig_kv kv;
        struct rig_batch b;
        float qkv[24] = {0};
        rig_kv_init(&kv, &rng, SV_F8, 1, 1, 1, 1, 8);
        rig_batch_init(&b);
        rig_batch_add(&b, 0, 0, 1);
        qkv[8 + 3] = cases[i].x;
        struct sv_p_qk_norm_rope_kv_write p = {
            .rows = b.rows,
            .qkv = qkv,
            .ld = 24,
            .n_heads = 1,
            .rope = {.cos = no_angle, .sin = no_angle, .max_pos = 1},
            .kv = kv.kv};
        sv_op_qk_norm_rope_kv_write(dev, &p);
        rig_sync(dev, SV_OK);
        const float got = stored(&kv, 0, 0, 0, 3);
        if (!(isnan(cases[i].want) ? isnan(got) : got == cases[i].want))
            fail_msg("%g is stored as %g", (double)cases[i].x, (double)got);
        assert_true(stored(&kv, 1, 0, 0, 3) == 0);
        rig_kv_fini(&kv);
    }
    sv_dev_close(dev);
}

SV_TEST_MAIN(cmocka_unit_test(attention_reads_what_is_stored),
             cmocka_unit_test(numbers_out_of_range))
