/*
 * test_sample.c - draws against the distribution (chi-square), supports against a naive sort, and
 * the corners of one row: ties, infinities, NaN, tiny temperatures.
 */
#include "rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the definition */

struct entry {
    float x;
    int32_t id;
    double p;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->x != y->x)
        return x->x < y->x ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Probabilities after all filters, by sorting; 0 for what is not kept. */
static void by_definition(const float *x, int32_t vocab, const struct sv_sampling *sp, double *p)
{
    struct entry *e = calloc((size_t)vocab, sizeof *e);
    double sum = 0, top;
    for (int32_t i = 0; i < vocab; i++)
        e[i] = (struct entry){x[i], i, 0};
    qsort(e, (size_t)vocab, sizeof *e, by_logit);
    for (int32_t i = 0; i < vocab; i++)
        e[i].p = exp((double)((e[i].x - e[0].x) / sp->temperature));
    int32_t n = sp->top_k > 0 && sp->top_k < vocab ? sp->top_k : vocab;
    for (int32_t i = 0; i < n; i++)
        sum += e[i].p;
    if (sp->top_p < 1) {
        double mass = 0;
        int32_t kept = 0;
        while (kept < n && (kept == 0 || mass < (double)sp->top_p * sum))
            mass += e[kept++].p;
        n = kept;
    }
    top = e[0].p;
    sum = 0;
    memset(p, 0, (size_t)vocab * sizeof *p);
    for (int32_t i = 0; i < n; i++)
        if (e[i].p >= (double)sp->min_p * top && e[i].p > 0) {
            p[e[i].id] = e[i].p;
            sum += e[i].p;
        }
    for (int32_t i = 0; i < vocab; i++)
        p[i] /= sum;
    free(e);
}

/* Draws n_rows tokens from one row of logits at positions pos0, pos0 + 1, ... */
static void draws(struct sv_dev *dev, const float *x, int32_t vocab, struct sv_sampling sp,
                  int32_t pos0, int32_t n, int32_t *out)
{
    int32_t slot[64] = {0}, pos[64];
    const int32_t n_rows = n < 64 ? n : 64;
    float *rows = rig_new((size_t)vocab * (size_t)n_rows * 4);
    for (int32_t i = 0; i < n_rows; i++)
        memcpy(rows + (size_t)i * (size_t)vocab, x, (size_t)vocab * 4);
    for (int32_t at = 0; at < n; at += 64) {
        int32_t m = n - at < 64 ? n - at : 64;
        for (int32_t i = 0; i < m; i++)
            pos[i] = pos0 + at + i;
        struct sv_p_sample p = {m, vocab, rows, vocab, slot, pos, &sp, out + at};
        sv_op_sample(dev, &p);
    }
    rig_free(rows);
}

/* ---------------------------------------------------------------- chi-square */

/* Upper tail of the chi-square distribution: Wilson and Hilferty's normal approximation. */
static double chi_tail(double chi2, int df)
{
    double t = 2.0 / (9.0 * df), z = (cbrt(chi2 / df) - (1 - t)) / sqrt(t);
    return 0.5 * erfc(z / sqrt(2));
}

static void chi_square_case(struct sv_dev *dev, struct sv_sampling sp)
{
    enum { VOCAB = 32, N = 102400 };
    struct sv_rng rng = {21};
    float x[VOCAB];
    double p[VOCAB], chi2 = 0, rest = 0, rest_seen = 0;
    int32_t *out = malloc(N * sizeof *out), seen[VOCAB] = {0};
    int df = -1;
    for (int i = 0; i < VOCAB; i++)
        x[i] = 1.5f * sv_rng_normal(&rng);
    by_definition(x, VOCAB, &sp, p);
    draws(dev, x, VOCAB, sp, 5, N, out);
    for (int i = 0; i < N; i++) {
        assert_true(out[i] >= 0 && out[i] < VOCAB && p[out[i]] > 0);
        seen[out[i]]++;
    }
    for (int i = 0; i < VOCAB; i++) {
        if (p[i] * N < 5) { /* too rare for a cell of its own */
            rest += p[i] * N;
            rest_seen += seen[i];
            continue;
        }
        chi2 += (seen[i] - p[i] * N) * (seen[i] - p[i] * N) / (p[i] * N);
        df++;
    }
    if (rest > 0) {
        chi2 += (rest_seen - rest) * (rest_seen - rest) / rest;
        df++;
    }
    if (df > 0 && !(chi_tail(chi2, df) > 1e-3))
        fail_msg("T %g k %d p %g min %g: chi2 %g with %d degrees of freedom",
                 (double)sp.temperature, sp.top_k, (double)sp.top_p, (double)sp.min_p, chi2, df);
    free(out);
}

static void chi_square_on(struct sv_dev *dev)
{
    static const float temps[] = {0.7f, 1, 1.5f};
    for (int t = 0; t < 3; t++)
        for (int f = 0; f < 8; f = f == 4 ? 7 : f + 1) /* none, each, two, all */
            chi_square_case(dev, (struct sv_sampling){.temperature = temps[t],
                                                      .top_k = f & 1 ? 12 : 0,
                                                      .top_p = f & 2 ? 0.85f : 1,
                                                      .min_p = f & 4 ? 0.05f : 0,
                                                      .seed = 42 + (uint64_t)f});
}

static void chi_square(void **state)
{
    (void)state;
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    struct sv_dev *dev = rig_open(isa[n - 1], 2, SV_F32);
    chi_square_on(dev);
    sv_dev_close(dev);
}

/* ---------------------------------------------------------------- supports */

/* Small vocabularies, many draws: the set of ids drawn is the set the definition keeps, wherever a
 * kept id has a fair chance. */
static void support_case(struct sv_dev *dev, struct sv_rng *rng, int32_t vocab, bool ties)
{
    float x[200];
    double p[200];
    int32_t out[1024];
    bool seen[200] = {false};
    for (int32_t i = 0; i < vocab; i++) {
        x[i] = 2 * sv_rng_normal(rng);
        if (ties)
            x[i] = roundf(x[i]);
        if (sv_rng_below(rng, 10) == 0)
            x[i] = -INFINITY;
        if (sv_rng_below(rng, 20) == 0)
            x[i] = -0.0f;
    }
    x[sv_rng_below(rng, (uint32_t)vocab)] = 3;
    struct sv_sampling sp = {.temperature = 0.5f + sv_rng_float(rng), .seed = sv_rng_next(rng)};
    sp.top_k = sv_rng_below(rng, 2) ? (int32_t)sv_rng_below(rng, (uint32_t)vocab + 3) : 0;
    sp.top_p = sv_rng_below(rng, 2) ? sv_rng_float(rng) : 1;
    sp.min_p = sv_rng_below(rng, 2) ? sv_rng_float(rng) * 0.3f : 0;
    by_definition(x, vocab, &sp, p);
    draws(dev, x, vocab, sp, 0, 1024, out);
    for (int i = 0; i < 1024; i++) {
        if (!(p[out[i]] > 0))
            fail_msg("drew %d (logit %g), which T %g k %d p %g min %g drop", out[i],
                     (double)x[out[i]], (double)sp.temperature, sp.top_k, (double)sp.top_p,
                     (double)sp.min_p);
        seen[out[i]] = true;
    }
    for (int32_t i = 0; i < vocab; i++)
        if (p[i] > 0.04 && !seen[i]) /* missed with probability 1e-18 */
            fail_msg("never drew %d of probability %g", i, p[i]);
}

static void support_on(struct sv_dev *dev)
{
    struct sv_rng rng = {77};
    for (int i = 0; i < 80; i++)
        support_case(dev, &rng, 1 + (int32_t)sv_rng_below(&rng, 200), i % 2);
}

static void support(void **state)
{
    (void)state;
    rig_each(support_on);
}

/* Large vocabularies: whatever is drawn is kept by the definition, for every kind of filter. */
static void large(void **state)
{
    (void)state;
    int n_isas;
    const enum sv_isa *isas = rig_isas(&n_isas);
    struct sv_dev *best = rig_open(isas[n_isas - 1], 2, SV_F32),
                  *plain = rig_open(SV_ISA_PLAIN, 2, SV_F32);
    enum { VOCAB = 40000 };
    struct sv_rng rng = {5};
    float *x = rig_new(VOCAB * 4);
    double *p = malloc(VOCAB * sizeof *p);
    for (int f = 0; f < 10; f++) {
        /* 8, 9: so flat that top-p keeps most of the vocabulary */
        for (int32_t i = 0; i < VOCAB; i++)
            x[i] = f == 9 ? 1 : (f == 8 ? 0.1f : 3) * sv_rng_normal(&rng);
        struct sv_sampling sp = {.temperature = 1, .top_p = 1, .seed = (uint64_t)f};
        sp.top_k = (int32_t[]){0, 1, 20, 50, 2000, 15000, 0, 40, 0, 0}[f];
        sp.top_p = (float[]){0.9f, 1, 1, 0.95f, 0.5f, 0.999f, 0.1f, 1, 0.9f, 0.5f}[f];
        sp.min_p = f == 7 ? 0.2f : 0;
        by_definition(x, VOCAB, &sp, p);
        int32_t out[48];
        draws(best, x, VOCAB, sp, 1000, 32, out);
        draws(plain, x, VOCAB, sp, 2000, 16, out + 32);
        for (int i = 0; i < 48; i++)
            if (!(p[out[i]] > 0))
                fail_msg("filter %d drew %d", f, out[i]);
    }
    rig_free(x);
    free(p);
    sv_dev_close(best);
    sv_dev_close(plain);
}

/* ---------------------------------------------------------------- corners */

static int32_t one(struct sv_dev *dev, const float *x, int32_t vocab, struct sv_sampling sp,
                   int32_t pos)
{
    int32_t out = -7;
    draws(dev, x, vocab, sp, pos, 1, &out);
    return out;
}

static void corners_on(struct sv_dev *dev)
{
    const struct sv_sampling hot = {.temperature = 1, .top_p = 1},
                             cold = {.temperature = 0, .top_p = 1};
    float x[40];
    for (int n = 1; n <= 40; n += 13) {
        /* greedy: lowest id of a tie; NaN never wins; all NaN is reported */
        for (int i = 0; i < n; i++)
            x[i] = i % 3 == 1 ? NAN : 1;
        assert_int_equal(one(dev, x, n, cold, 0), 0);
        x[n - 1] = 2;
        assert_int_equal(one(dev, x, n, cold, 0), n - 1);
        rig_sync(dev, SV_OK);
        for (int i = 0; i < n; i++)
            x[i] = NAN;
        assert_int_equal(one(dev, x, n, cold, 0), 0);
        rig_sync(dev, SV_EDEVICE);
        for (int i = 0; i < n; i++)
            x[i] = -INFINITY;
        assert_int_equal(one(dev, x, n, cold, 0), 0);
        rig_sync(dev, SV_OK);
        /* sampled: no distribution is reported */
        assert_int_equal(one(dev, x, n, hot, 0), 0);
        rig_sync(dev, SV_EDEVICE);
        x[n / 2] = INFINITY;
        assert_int_equal(one(dev, x, n, hot, 0), n / 2);
        rig_sync(dev, SV_EDEVICE);
        x[n / 2] = NAN;
        assert_int_equal(one(dev, x, n, hot, 0), 0);
        rig_sync(dev, SV_EDEVICE);
        /* one token of any logit, the rest impossible */
        x[n / 2] = -3e38f;
        assert_int_equal(one(dev, x, n, hot, 0), n / 2);
        rig_sync(dev, SV_OK);
    }
    /* tiny and huge temperatures */
    for (int i = 0; i < 40; i++)
        x[i] = (float)(i * 7 % 40) * 0.01f;
    static const float tiny[] = {1e-3f, 1e-10f, 1e-38f, 1e-45f};
    for (int t = 0; t < 4; t++)
        for (int pos = 0; pos < 50; pos++) {
            struct sv_sampling sp = {.temperature = tiny[t], .top_p = 1, .seed = 9};
            assert_int_equal(one(dev, x, 40, sp, pos), 17); /* 17 * 7 = 119 = 39 mod 40 */
        }
    x[3] = -INFINITY;
    for (int pos = 0; pos < 300; pos++) {
        struct sv_sampling sp = {.temperature = INFINITY, .top_p = 1, .seed = 9};
        int32_t id = one(dev, x, 40, sp, pos);
        assert_true(id >= 0 && id < 40 && id != 3);
    }
    rig_sync(dev, SV_OK);
    /* top_p 0 and min_p 1 keep the best alone */
    for (int pos = 0; pos < 50; pos++) {
        struct sv_sampling p0 = {.temperature = 1, .top_p = 0},
                           m1 = {.temperature = 1, .top_p = 1, .min_p = 1};
        assert_int_equal(one(dev, x, 40, p0, pos), 17);
        assert_int_equal(one(dev, x, 40, m1, pos), 17);
    }
}

static void corners(void **state)
{
    (void)state;
    rig_each(corners_on);
}

/* The same (logits, seed, position) gives the same token in any batch and on any number of
 * threads. */
static void reproducible(void **state)
{
    (void)state;
    enum { VOCAB = 3000, ROWS = 24 };
    struct sv_rng rng = {8};
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    float *x = rig_floats(&rng, (size_t)ROWS * VOCAB, 2);
    int32_t slot[ROWS], pos[ROWS], all[ROWS], single;
    struct sv_sampling sp[4] = {{.temperature = 0},
                                {.temperature = 1, .top_p = 1, .seed = 1},
                                {.temperature = 0.8f, .top_p = 0.9f, .seed = 2},
                                {.temperature = 1.2f, .top_p = 0.95f, .top_k = 50, .seed = 3}};
    for (int i = 0; i < ROWS; i++) {
        slot[i] = i % 4;
        pos[i] = 100 + i / 4;
    }
    for (int i = 0; i < n; i++)
        for (int t = 1; t <= 4; t++) {
            struct sv_dev *dev = rig_open(isa[i], t, SV_F32);
            struct sv_p_sample p = {ROWS, VOCAB, x, VOCAB, slot, pos, sp, all};
            sv_op_sample(dev, &p);
            for (int r = ROWS - 1; r >= 0; r--) {
                struct sv_p_sample q = {1,       VOCAB, x + r * VOCAB, VOCAB, slot + r,
                                        pos + r, sp,    &single};
                sv_op_sample(dev, &q);
                assert_int_equal(single, all[r]);
            }
            sv_dev_close(dev);
        }
    rig_free(x);
}

SV_TEST_MAIN(cmocka_unit_test(chi_square), cmocka_unit_test(support), cmocka_unit_test(large),
             cmocka_unit_test(corners), cmocka_unit_test(reproducible))
