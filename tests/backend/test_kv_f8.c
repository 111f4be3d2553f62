/*
 * test_kv_f8.c - caches in e4m3: what a row is stored as, and that attention over it has the bits
 * of attention over a cache that holds the stored values in the type of the products. Keys and
 * values, then latents.
 */
#include "rig.h"

#include "backend/ops_mla.h"
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

/* ---------------------------------------------------------------- latents */

struct latents {
    int32_t n_heads, latent, rot, page;
};
static const struct latents LATENTS[] = {
    {6, 512, 64, 16}, {3, 40, 16, 7}, {2, 256, 32, 1}, {5, 136, 24, 64}};

static int32_t width_of(const struct latents *s)
{
    return s->latent + s->rot;
}

static size_t row_bytes(const struct latents *s, enum sv_dtype dtype)
{
    return sv_kv_row_bytes(dtype, width_of(s), s->latent);
}

/* Pages in the same order for each type of cache. */
static void latents_init(struct rig_kv *c, const struct latents *s, enum sv_dtype dtype)
{
    struct sv_rng rng = {3};
    const size_t row = row_bytes(s, dtype);
    rig_kv_init(c, &rng, dtype, 1, POSITIONS, s->page, 1,
                (int32_t)(row / (size_t)sv_dtype_bytes(dtype)));
    c->kv.head_dim = width_of(s);
    c->kv.latent = s->latent;
}

static uint8_t *latent_at(const struct latents *s, const struct rig_kv *c, int32_t pos)
{
    const int64_t row = rig_kv_at(c, 0, pos, 0) / width_of(s);
    return (uint8_t *)c->kv.k + (size_t)row * row_bytes(s, c->kv.dtype);
}

/* Rows from `base` on, whose numbers depend on their positions and on `seed`: kept in c (which only
 * reads them where !writes), and attended to. */
static float *latent_layer(struct sv_dev *dev, const struct latents *s, const struct rig_kv *c,
                           bool writes, int32_t base, int32_t n, uint64_t seed)
{
    enum { NOPE = 8 };
    const int32_t width = width_of(s), nh = s->n_heads, hd = NOPE + s->rot;
    struct sv_rng rng = {77};
    struct rig_batch b;
    struct sv_kv cache = c->kv;
    cache.v = NULL;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, base, n);
    float *angles = rig_floats(&rng, (size_t)(POSITIONS * s->rot), 1),
          *kv = rig_new((size_t)(n * width) * sizeof *kv),
          *q = rig_new((size_t)(n * nh * hd) * sizeof *q),
          *absorbed = rig_new((size_t)(n * nh * width) * sizeof *q),
          *out = rig_new((size_t)(n * nh * s->latent) * sizeof *out);
    struct sv_weight norm = rig_weight(&rng, SV_BF16, 1, s->latent, 0.5f, 1);
    for (int32_t r = 0; r < n; r++) {
        const uint64_t own = seed + (uint64_t)(base + r);
        fill(kv + r * width, width, own);
        fill(q + r * nh * hd, nh * hd, own + 1);
        fill(absorbed + r * nh * width, nh * width, own + 2);
    }
    if (writes)
        sv_op_mla_write(dev, &(struct sv_p_mla_write){
                                 .rows = b.rows,
                                 .kv = kv,
                                 .norm = norm,
                                 .eps = 1e-6f,
                                 .rope = {.cos = angles,
                                          .sin = angles + POSITIONS * (s->rot / 2),
                                          .max_pos = POSITIONS,
                                          .rot_dim = s->rot},
                                 .interleaved = s->page != 7,
                                 .n_heads = nh,
                                 .head_dim = hd,
                                 .q = q,
                                 .absorbed = absorbed,
                                 .cache = cache,
                             });
    sv_op_attention(dev, &(struct sv_p_attention){.rows = b.rows,
                                                  .q = absorbed,
                                                  .ldq = nh * width,
                                                  .out = out,
                                                  .ldo = nh * s->latent,
                                                  .n_heads = nh,
                                                  .kv = cache,
                                                  .v_dim = s->latent,
                                                  .scale = 1 / sqrtf((float)width)});
    rig_sync(dev, SV_OK);
    rig_check(out);
    rig_free(angles), rig_free(kv), rig_free(q), rig_free(absorbed);
    rig_free((void *)(uintptr_t)norm.data);
    return out;
}

/* Of a row: each number of the latent is the code nearest to it at its tile's scale, which is the
 * least power of two that leaves no number out; the rotated key is in bf16. The values go to
 * `plain`. */
static void check_latent(const struct latents *s, const uint8_t *row, const float *exact,
                         const struct rig_kv *plain, int32_t pos)
{
    const int32_t tiles = (s->latent + 127) / 128;
    const uint8_t *scales = row + s->latent, *key = scales + 4 * tiles;
    const int64_t to = rig_kv_at(plain, 0, pos, 0);
    for (int32_t t = 0; t < tiles; t++) {
        float scale, top = 0;
        int e;
        memcpy(&scale, scales + 4 * t, 4);
        assert_true(frexpf(scale, &e) == 0.5f);
        for (int32_t d = 128 * t; d < 128 * t + 128 && d < s->latent; d++) {
            top = fmaxf(top, fabsf(exact[d]));
            assert_int_equal(row[d], sv_f32_to_f8(exact[d] / scale));
            rig_kv_put(plain, plain->kv.k, to + d, sv_f8_to_f32(row[d]) * scale);
        }
        assert_true(top <= 448 * scale && (top > 224 * scale || top == 0));
    }
    for (int32_t d = 0; d < s->rot; d++) {
        uint16_t bits;
        memcpy(&bits, key + 2 * d, 2);
        assert_int_equal(bits, sv_f32_to_bf16(exact[s->latent + d]));
        rig_kv_put(plain, plain->kv.k, to + s->latent + d, sv_bf16_to_f32(bits));
    }
}

static void latents_of(struct sv_dev *dev, enum sv_dtype compute, const struct latents *s)
{
    struct rig_kv f8, exact, plain;
    latents_init(&f8, s, SV_F8);
    latents_init(&exact, s, SV_F32);
    latents_init(&plain, s, compute);
    if (s->latent == 512)
        assert_int_equal(row_bytes(s, SV_F8), 656);
    for (int32_t at = 0; at < POSITIONS; at += 10) {
        rig_free(latent_layer(dev, s, &f8, true, at, 10, 1000));
        rig_free(latent_layer(dev, s, &exact, true, at, 10, 1000));
    }
    for (int32_t pos = 0; pos < POSITIONS; pos++)
        check_latent(s, latent_at(s, &f8, pos),
                     (const float *)(const void *)latent_at(s, &exact, pos), &plain, pos);
    static const int32_t from[] = {0, 62, 127, 134}, n[] = {1, 16, 5};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++) {
            const size_t n_bytes = (size_t)(n[k] * s->n_heads * s->latent) * sizeof(float);
            float *a = latent_layer(dev, s, &f8, false, from[i], n[k], 7),
                  *c = latent_layer(dev, s, &plain, false, from[i], n[k], 7);
            assert_memory_equal(a, c, n_bytes);
            rig_free(a), rig_free(c);
            /* Written in this very pass, in pieces and at once: what is stored is what is read. */
            a = latent_layer(dev, s, &f8, true, from[i], n[k], 1000);
            c = latent_layer(dev, s, &f8, true, from[i] + n[k] - 1, 1, 1000);
            assert_memory_equal(a + (n[k] - 1) * s->n_heads * s->latent, c, n_bytes / (size_t)n[k]);
            rig_free(a), rig_free(c);
        }
    rig_kv_fini(&f8), rig_kv_fini(&exact), rig_kv_fini(&plain);
}

static void latents_are_read_as_stored(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct sv_dev *dev = rig_open(isa[i], 2, bf16 ? SV_BF16 : SV_F32);
            for (size_t k = 0; k < sizeof LATENTS / sizeof LATENTS[0]; k++)
                latents_of(dev, bf16 ? SV_BF16 : SV_F32, &LATENTS[k]);
            sv_dev_close(dev);
        }
}

SV_TEST_MAIN(cmocka_unit_test(attention_reads_what_is_stored),
             cmocka_unit_test(latents_are_read_as_stored), cmocka_unit_test(numbers_out_of_range))
