/*
 * test_attention.c - attention against a double-precision loop over positions, and the promise that
 * a row's bits depend on its own sequence only.
 */
#include "rig.h"

#include <math.h>
#include <string.h>

struct shape {
    int32_t n_heads, n_kv, head_dim;
    int32_t v_dim; /* of latents: a key's first numbers are its value; 0: keys and values */
};

static int32_t v_dim(const struct shape *s)
{
    return s->v_dim ? s->v_dim : s->head_dim;
}

/* Of a row's result. */
static int32_t out_width(const struct shape *s)
{
    return s->n_heads * v_dim(s);
}

struct setup {
    struct shape shape;
    enum sv_dtype dtype;
    int32_t page_size, n_slots, max_pos;
    enum sv_mask mask;
    int32_t window;
    float softcap;
    bool sinks;
};

/* Keys, values and queries as a function of (slot, position) alone, so that any batching can be
 * compared. */
struct world {
    struct setup s;
    struct rig_kv kv;
    void *values; /* kv.kv.v, or what a cache of latents does not have */
    struct sv_weight sinks;
};

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    struct sv_rng r = {a * 1000003u + b * 7919u + c};
    return sv_rng_next(&r);
}

static void fill_row(float *out, int32_t n, uint64_t seed)
{
    struct sv_rng r = {seed};
    for (int32_t i = 0; i < n; i++)
        out[i] = 4 * (sv_rng_float(&r) - 0.5f);
}

static void world_init(struct world *w, const struct setup *s)
{
    struct sv_rng rng = {7};
    w->s = *s;
    rig_kv_init(&w->kv, &rng, s->dtype, s->n_slots, s->max_pos, s->page_size, s->shape.n_kv,
                s->shape.head_dim);
    w->values = w->kv.kv.v;
    if (s->shape.v_dim)
        w->kv.kv.v = NULL;
    w->sinks =
        s->sinks ? rig_weight(&rng, SV_BF16, 1, s->shape.n_heads, 1, 0) : (struct sv_weight){0};
}

static void world_fini(struct world *w)
{
    w->kv.kv.v = w->values;
    rig_kv_fini(&w->kv);
    rig_free((void *)(uintptr_t)w->sinks.data);
}

/* Keys and values of positions [from, to); what is not written stays NaN. */
static void world_write(struct world *w, int32_t slot, int32_t from, int32_t to)
{
    float row[576];
    const int32_t hd = w->s.shape.head_dim;
    for (int32_t pos = from; pos < to; pos++)
        for (int32_t h = 0; h < w->s.shape.n_kv; h++)
            for (int which = 0; which < 2; which++) {
                fill_row(row, hd, mix((uint64_t)slot, (uint64_t)pos, (uint64_t)(2 * h + which)));
                int64_t at = rig_kv_at(&w->kv, slot, pos, h);
                for (int32_t d = 0; d < hd; d++)
                    rig_kv_put(&w->kv, which ? w->values : w->kv.kv.k, at + d, row[d]);
            }
}

/* Runs one batch; the result of row r goes to out + r * out_width (guarded). */
static float *run(struct world *w, struct sv_dev *dev, const struct rig_batch *b)
{
    const int32_t width = out_width(&w->s.shape), n_q = w->s.shape.n_heads * w->s.shape.head_dim;
    const int32_t ldq = n_q + 3;
    float *q = rig_new((size_t)b->rows.n_rows * (size_t)ldq * sizeof *q);
    float *out = rig_new((size_t)b->rows.n_rows * (size_t)width * sizeof *out);
    for (int32_t r = 0; r < b->rows.n_rows; r++)
        fill_row(q + (size_t)r * (size_t)ldq, n_q,
                 mix((uint64_t)b->seg_slot[b->row_seg[r]], (uint64_t)rig_pos(b, r), 999));
    struct sv_p_attention p = {.rows = b->rows,
                               .q = q,
                               .ldq = ldq,
                               .out = out,
                               .ldo = width,
                               .n_heads = w->s.shape.n_heads,
                               .kv = w->kv.kv,
                               .v_dim = w->s.shape.v_dim,
                               .mask = w->s.mask,
                               .window = w->s.window,
                               .scale = 1 / sqrtf((float)w->s.shape.head_dim),
                               .softcap = w->s.softcap,
                               .sinks = w->sinks};
    sv_op_attention(dev, &p);
    rig_sync(dev, SV_OK);
    rig_check(out);
    rig_free(q);
    return out;
}

/* One row by the definition, in double. */
static void expect_row(struct world *w, const struct rig_batch *b, int32_t r, double *out)
{
    const int32_t hd = w->s.shape.head_dim, group = w->s.shape.n_heads / w->s.shape.n_kv;
    const int32_t seg = b->row_seg[r], slot = b->seg_slot[seg], pos = rig_pos(b, r);
    const int32_t last = b->seg_row0[seg + 1] - 1;
    const int32_t vd = v_dim(&w->s.shape);
    const void *values = w->s.shape.v_dim ? w->kv.kv.k : w->kv.kv.v;
    float q[16 * 576];
    double score[4096];
    fill_row(q, w->s.shape.n_heads * hd, mix((uint64_t)slot, (uint64_t)pos, 999));
    int32_t end = 1 + (w->s.mask == SV_MASK_BLOCK ? rig_pos(b, last) : pos);
    for (int32_t h = 0; h < w->s.shape.n_heads; h++) {
        double top = -INFINITY, sum = 0;
        for (int32_t p = 0; p < end; p++) {
            int64_t at = rig_kv_at(&w->kv, slot, p, h / group);
            double x = 0;
            for (int32_t d = 0; d < hd; d++)
                x += (double)q[h * hd + d] * rig_kv_get(&w->kv, w->kv.kv.k, at + d);
            x /= sqrt((double)hd);
            if (w->s.softcap > 0)
                x = (double)w->s.softcap * tanh(x / (double)w->s.softcap);
            if (w->s.window > 0 && p <= pos - w->s.window)
                x = -INFINITY;
            score[p] = x;
            top = x > top ? x : top;
        }
        double sink = w->s.sinks ? rig_weight_at(&w->sinks, h) : -INFINITY;
        top = sink > top ? sink : top;
        for (int32_t d = 0; d < vd; d++)
            out[h * vd + d] = 0;
        for (int32_t p = 0; p < end; p++) {
            double e = exp(score[p] - top);
            sum += e;
            int64_t at = rig_kv_at(&w->kv, slot, p, h / group);
            for (int32_t d = 0; d < vd && e > 0; d++)
                out[h * vd + d] += e * rig_kv_get(&w->kv, values, at + d);
        }
        sum += exp(sink - top);
        for (int32_t d = 0; d < vd; d++)
            out[h * vd + d] /= sum;
    }
}

static double tolerance(struct sv_dev *dev, const struct setup *s)
{
    /* Tiles of bf16 round queries and weights; everything else is f32 throughout. */
    return sv_dev_compute_dtype(dev) == SV_BF16 && s->dtype == SV_BF16 ? 3e-2 : 2e-5;
}

static void check_batch(struct world *w, struct sv_dev *dev, const struct rig_batch *b)
{
    const int32_t width = out_width(&w->s.shape);
    double want[16 * 512];
    float *out = run(w, dev, b);
    for (int32_t r = 0; r < b->rows.n_rows; r++) {
        expect_row(w, b, r, want);
        for (int32_t i = 0; i < width; i++)
            rig_near((double)out[(size_t)r * (size_t)width + (size_t)i], want[i],
                     tolerance(dev, &w->s), "attention", (int64_t)r * width + i);
    }
    rig_free(out);
}

typedef void (*each_fn)(struct sv_dev *dev);

static void on_all_devices(each_fn fn)
{
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n; i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct sv_dev *dev = rig_open(isa[i], 2, bf16 ? SV_BF16 : SV_F32);
            fn(dev);
            sv_dev_close(dev);
        }
}

static const struct shape SHAPES[] = {{5, 1, 64, 0},  {4, 2, 128, 0}, {2, 2, 32, 0},
                                      {6, 2, 96, 0},  {1, 1, 256, 0}, {3, 3, 8, 0},
                                      {7, 1, 40, 0},  {9, 3, 80, 0},  {5, 1, 96, 64},
                                      {3, 1, 48, 32}, {6, 1, 40, 24}, {16, 1, 576, 512}};
#define N_SHAPES ((int)(sizeof SHAPES / sizeof SHAPES[0]))

/* ---------------------------------------------------------------- shapes */

static void shapes_on(struct sv_dev *dev)
{
    static const int32_t pages[] = {1, 16, 64, 5};
    for (int i = 0; i < N_SHAPES; i++)
        for (int dtype = 0; dtype < 2; dtype++) {
            struct setup s = {SHAPES[i],
                              dtype ? SV_BF16 : SV_F32,
                              pages[(i + dtype) % 4],
                              3,
                              256,
                              i % 3 == 2 ? SV_MASK_BLOCK : SV_MASK_CAUSAL,
                              0,
                              i % 4 == 1 ? 5.0f : 0,
                              i % 2 == 1};
            struct world w;
            struct rig_batch b;
            world_init(&w, &s);
            rig_batch_init(&b);
            rig_batch_add(&b, 2, 130, 1);
            rig_batch_add(&b, 0, 0, 1);
            rig_batch_add(&b, 0, 0, 0); /* a segment without rows */
            rig_batch_add(&b, 1, 57, 16);
            world_write(&w, 2, 0, 131);
            world_write(&w, 0, 0, 1);
            world_write(&w, 1, 0, 73);
            check_batch(&w, dev, &b);
            world_fini(&w);
        }
}

static void shapes(void **state)
{
    (void)state;
    on_all_devices(shapes_on);
}

/* ---------------------------------------------------------------- masks */

static void masks_on(struct sv_dev *dev)
{
    const int32_t W = 24, context[] = {0, 1, W - 2, W - 1, W, W + 1, 3 * W};
    const int32_t lens[] = {1, 2, 16, 30};
    for (int c = 0; c < 7; c++)
        for (int mode = 0; mode < 4; mode++)
            for (int l = 0; l < 4; l++) {
                struct setup s = {{4, 2, 32, 0},
                                  (c + l) % 2 ? SV_BF16 : SV_F32,
                                  l == 2 ? 16 : 7,
                                  2,
                                  128,
                                  mode & 1 ? SV_MASK_BLOCK : SV_MASK_CAUSAL,
                                  mode & 2 ? W : 0,
                                  0,
                                  mode == 3 && l == 1};
                struct world w;
                struct rig_batch b;
                world_init(&w, &s);
                rig_batch_init(&b);
                rig_batch_add(&b, 1, context[c], lens[l]);
                rig_batch_spread(&b, l == 2); /* rows need not be next to one another */
                world_write(&w, 1, 0, context[c] + lens[l] * (l == 2 ? 2 : 1));
                check_batch(&w, dev, &b);
                world_fini(&w);
            }
    for (int32_t window = 1; window <= 130; window = window * 2 + 1) {
        struct setup s = {{2, 1, 32, 0}, SV_F32, 16, 1, 256, SV_MASK_CAUSAL, window, 0, false};
        struct world w;
        struct rig_batch b;
        world_init(&w, &s);
        rig_batch_init(&b);
        rig_batch_add(&b, 0, 120, 100);
        world_write(&w, 0, 0, 220);
        check_batch(&w, dev, &b);
        world_fini(&w);
    }
}

static void masks(void **state)
{
    (void)state;
    on_all_devices(masks_on);
}

/* ---------------------------------------------------------------- long contexts cross parts */

static void long_context_on(struct sv_dev *dev)
{
    for (int k = 0; k < 4; k++) {
        struct setup s = {k % 2 ? (struct shape){4, 2, 64, 0} : (struct shape){5, 1, 64, 0},
                          k < 2 ? SV_BF16 : SV_F32,
                          64,
                          1,
                          3000,
                          SV_MASK_CAUSAL,
                          k == 3 ? 1500 : 0,
                          0,
                          k == 1};
        struct world w;
        struct rig_batch b;
        world_init(&w, &s);
        rig_batch_init(&b);
        rig_batch_add(&b, 0, k == 2 ? 2040 : 2700, 4 + 12 * (k == 2));
        world_write(&w, 0, 0, 2704);
        check_batch(&w, dev, &b);
        world_fini(&w);
    }
}

static void long_context(void **state)
{
    (void)state;
    on_all_devices(long_context_on);
}

/* ---------------------------------------------------------------- a row's bits */

static void same_bits(const float *a, const float *b, int32_t n, const char *what, int32_t row)
{
    if (memcmp(a, b, (size_t)n * sizeof *a) != 0)
        for (int32_t i = 0; i < n; i++)
            if (memcmp(a + i, b + i, sizeof *a) != 0)
                fail_msg("%s: row %d element %d is %.9g, alone it is %.9g", what, row, i,
                         (double)a[i], (double)b[i]);
}

#define SLOTS 32

/* Reference bits: every position of a sequence as a batch of one row, one thread, page size 16. */
static float *alone(const struct setup *s, enum sv_isa isa, enum sv_dtype compute, int32_t slot,
                    const int32_t *pos, int32_t n)
{
    struct world w;
    const int32_t width = out_width(&s->shape);
    float *all = rig_new((size_t)n * (size_t)width * sizeof *all);
    struct sv_dev *dev = rig_open(isa, 1, compute);
    world_init(&w, s);
    world_write(&w, slot, 0, s->max_pos);
    for (int32_t i = 0; i < n; i++) {
        struct rig_batch b;
        rig_batch_init(&b);
        rig_batch_add(&b, slot, pos[i], 1);
        float *out = run(&w, dev, &b);
        memcpy(all + (size_t)i * (size_t)width, out, (size_t)width * sizeof *all);
        rig_free(out);
    }
    world_fini(&w);
    sv_dev_close(dev);
    return all;
}

/* Positions [0, n) of a prompt in chunks of `chunk` rows. Keys behind a chunk are still NaN when it
 * runs. */
static void prompt_in_chunks(const struct setup *base, enum sv_isa isa, enum sv_dtype compute,
                             int32_t page_size, int n_threads, int32_t n, int32_t chunk,
                             const float *want)
{
    struct setup s = *base;
    struct world w;
    const int32_t width = out_width(&s.shape);
    struct sv_dev *dev = rig_open(isa, n_threads, compute);
    s.page_size = page_size;
    world_init(&w, &s);
    for (int32_t at = 0; at < n; at += chunk) {
        struct rig_batch b;
        int32_t len = n - at < chunk ? n - at : chunk;
        rig_batch_init(&b);
        rig_batch_add(&b, 3, at, len);
        world_write(&w, 3, at, at + len);
        float *out = run(&w, dev, &b);
        for (int32_t r = 0; r < len; r++)
            same_bits(out + (size_t)r * (size_t)width, want + (size_t)(at + r) * (size_t)width,
                      width, "prompt", at + r);
        rig_free(out);
    }
    world_fini(&w);
    sv_dev_close(dev);
}

/* 32 segments of 1..16 rows in one order and its reverse; every row against itself alone. */
static void mixed_batch(const struct setup *base, enum sv_isa isa, enum sv_dtype compute,
                        int32_t page_size, int n_threads, bool reverse)
{
    struct setup s = *base;
    struct world w;
    struct rig_batch b;
    struct sv_dev *dev = rig_open(isa, n_threads, compute), *one = rig_open(isa, 1, compute);
    const int32_t width = out_width(&s.shape);
    s.page_size = page_size;
    world_init(&w, &s);
    rig_batch_init(&b);
    for (int32_t i = 0; i < SLOTS; i++) {
        int32_t slot = reverse ? SLOTS - 1 - i : i, base_pos = slot * 7 % 190,
                len = 1 + slot * 5 % 16;
        rig_batch_add(&b, slot, base_pos, len);
        world_write(&w, slot, 0, base_pos + 2 * len);
    }
    rig_batch_spread(&b, reverse);
    float *out = run(&w, dev, &b);
    for (int32_t r = 0; r < b.rows.n_rows; r += reverse ? 3 : 1) {
        struct rig_batch single;
        rig_batch_init(&single);
        rig_batch_add(&single, b.seg_slot[b.row_seg[r]], rig_pos(&b, r), 1);
        float *want = run(&w, one, &single);
        same_bits(out + (size_t)r * (size_t)width, want, width, "mixed batch", r);
        rig_free(want);
    }
    rig_free(out);
    world_fini(&w);
    sv_dev_close(dev);
    sv_dev_close(one);
}

static void invariant(void **state)
{
    (void)state;
    int n_isas;
    const enum sv_isa *isas = rig_isas(&n_isas);
    static const int32_t pages[] = {1, 16, 64};
    const int32_t n = 150;
    int32_t pos[150];
    for (int32_t i = 0; i < n; i++)
        pos[i] = i;
    for (int i = 0; i < n_isas; i++)
        for (int k = 0; k < 8; k++) {
            static const struct shape latents[] = {
                {3, 1, 48, 32}, {4, 1, 96, 64}, {3, 1, 40, 24}, {5, 1, 64, 32}};
            enum sv_isa isa = isas[i];
            enum sv_dtype dtype = k & 1 ? SV_BF16 : SV_F32, compute = k & 2 ? SV_BF16 : SV_F32;
            struct setup s = {k >= 4   ? latents[k - 4]
                              : k == 1 ? (struct shape){5, 1, 64, 0}
                                       : (struct shape){4, 2, 32, 0},
                              dtype,
                              16,
                              SLOTS,
                              256,
                              SV_MASK_CAUSAL,
                              k == 2 ? 70 : 0,
                              k == 3 ? 8.0f : 0,
                              false};
            float *want = alone(&s, isa, compute, 3, pos, n);
            for (int c = 0; c < 5; c++) {
                static const int32_t chunks[] = {1, 16, 37, 64, 150};
                prompt_in_chunks(&s, isa, compute, pages[c % 3], 1 + c % 4, n, chunks[c], want);
            }
            rig_free(want);
            for (int t = 1; t <= 4; t++)
                mixed_batch(&s, isa, compute, pages[t % 3], t, t % 2 == 0);
        }
}

/* Long sequences: one thread walks the parts, more threads share them; decode against verify
 * block. */
static void invariant_long(void **state)
{
    (void)state;
    int n_isas;
    const enum sv_isa *isas = rig_isas(&n_isas);
    static const int32_t starts[] = {1015, 2040, 3070};
    for (int i = 0; i < n_isas; i++)
        for (int k = 0; k < 5; k++) {
            struct setup s = {{5, 1, k > 2 ? 96 : 64, k > 2 ? 64 : 0},
                              k % 3 ? SV_BF16 : SV_F32,
                              64,
                              4,
                              3100,
                              SV_MASK_CAUSAL,
                              k == 2 ? 1100 : 0,
                              0,
                              false};
            enum sv_dtype compute = k % 3 ? SV_BF16 : SV_F32;
            int32_t pos[16];
            for (int32_t j = 0; j < 16; j++)
                pos[j] = starts[k % 3] + j;
            float *want = alone(&s, isas[i], compute, 3, pos, 16);
            for (int t = 1; t <= 4; t++) {
                struct world w;
                struct sv_dev *dev = rig_open(isas[i], t, compute);
                world_init(&w, &s);
                world_write(&w, 3, 0, starts[k % 3] + 16);
                for (int32_t len = 1; len <= 16; len += 15) {
                    struct rig_batch b;
                    rig_batch_init(&b);
                    rig_batch_add(&b, 3, starts[k % 3], len);
                    float *out = run(&w, dev, &b);
                    same_bits(out, want, len * 5 * 64, "long", len);
                    rig_free(out);
                }
                world_fini(&w);
                sv_dev_close(dev);
            }
            rig_free(want);
        }
}

/* ---------------------------------------------------------------- corners */

/* NaN and infinity in positions a row does not see must not reach it. */
static void unseen_nan_on(struct sv_dev *dev)
{
    for (int k = 0; k < 4; k++) {
        const bool latent = k / 2;
        const int32_t hd = latent ? 96 : 64;
        struct setup s = {{5, 1, hd, latent ? 64 : 0},
                          k % 2 ? SV_BF16 : SV_F32,
                          16,
                          1,
                          256,
                          SV_MASK_CAUSAL,
                          40,
                          0,
                          false};
        struct world w;
        struct rig_batch b;
        world_init(&w, &s);
        world_write(&w, 0, 0, 100);
        rig_batch_init(&b);
        rig_batch_add(&b, 0, 84, 16);
        float *want = run(&w, dev, &b);
        for (int32_t d = 0; d < hd; d++) /* the last row's key and value become NaN and infinity */
            for (int which = 0; which < 2; which++)
                rig_kv_put(&w.kv, which ? w.values : w.kv.kv.k, rig_kv_at(&w.kv, 0, 99, 0) + d,
                           d % 2 ? NAN : INFINITY);
        float *got = run(&w, dev, &b);
        same_bits(got, want, 15 * 5 * 64, "row before a NaN", 0);
        assert_true(isnan(got[15 * 5 * 64 + 1]));
        rig_free(want);
        rig_free(got);
        world_fini(&w);
    }
}

static void unseen_nan(void **state)
{
    (void)state;
    on_all_devices(unseen_nan_on);
}

static void missing_page_on(struct sv_dev *dev)
{
    for (int window = 0; window <= 17; window++) {
        struct setup s = {{2, 1, 32, 0}, SV_BF16, 16, 1, 64, SV_MASK_CAUSAL, window, 0, false};
        struct world w;
        struct rig_batch b;
        world_init(&w, &s);
        world_write(&w, 0, 0, 64);
        ((int32_t *)(uintptr_t)w.kv.kv.table)[1] = window % 2 ? -1 : 1000;
        rig_batch_init(&b);
        rig_batch_add(&b, 0, 31 + window / 2, 1);
        float q[64] = {0}, out[64];
        struct sv_p_attention p = {.rows = b.rows,
                                   .q = q,
                                   .ldq = 64,
                                   .out = out,
                                   .ldo = 64,
                                   .n_heads = 2,
                                   .kv = w.kv.kv,
                                   .window = window,
                                   .scale = 1};
        sv_op_attention(dev, &p);
        rig_sync(dev, SV_EDEVICE);
        rig_sync(dev, SV_OK);
        world_fini(&w);
    }
}

static void missing_page(void **state)
{
    (void)state;
    on_all_devices(missing_page_on);
}

SV_TEST_MAIN(cmocka_unit_test(shapes), cmocka_unit_test(masks), cmocka_unit_test(long_context),
             cmocka_unit_test(invariant), cmocka_unit_test(invariant_long),
             cmocka_unit_test(unseen_nan), cmocka_unit_test(missing_page))
