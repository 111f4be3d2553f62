/*
 * test_cross_device.c - what a device promises besides ops, on every device of this machine:
 * memory, copies, marks, graphs, weights from a seed, and refusals.
 *
 * timeout: 120
 */
#include "backend/cross.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- memory and copies */

static void copies_on(struct cross *c)
{
    static const size_t sizes[] = {1, 3, 64, 1000, 65536, 65537, 1 << 20, 5000001};
    struct sv_dev *dev = c->dut;
    struct sv_err err;
    for (int i = 0; i < 8; i++)
        for (int pinned = 0; pinned < 2; pinned++) {
            const size_t n = sizes[i];
            uint8_t *d, *from, *to, *seen = malloc(n);
            assert_int_equal(sv_dev_alloc(dev, (void **)&d, n, &err), SV_OK);
            if (pinned) {
                assert_int_equal(sv_dev_host_alloc(dev, (void **)&from, n, &err), SV_OK);
                assert_int_equal(sv_dev_host_alloc(dev, (void **)&to, n, &err), SV_OK);
                for (size_t j = 0; j < n; j++)
                    assert_int_equal(from[j], 0);
            } else {
                from = malloc(n);
                to = malloc(n);
            }
            memset(to, 1, n);
            sv_dev_download(dev, to, d, n); /* cleared */
            rig_sync(dev, SV_OK);
            for (size_t j = 0; j < n; j++)
                assert_int_equal(to[j], 0);
            for (size_t j = 0; j < n; j++)
                from[j] = seen[j] = (uint8_t)sv_rng_next(&c->rng);
            sv_dev_upload(dev, d, from, n);
            if (!pinned)
                memset(from, 0, n); /* the caller may reuse its own memory at once */
            sv_dev_download(dev, to, d, n);
            rig_sync(dev, SV_OK);
            assert_memory_equal(to, seen, n);
            sv_dev_free(dev, d);
            if (pinned) {
                sv_dev_host_free(dev, from);
                sv_dev_host_free(dev, to);
            } else {
                free(from), free(to);
            }
            free(seen);
        }
    /* More small uploads than any ring holds, none of them waited for. */
    int32_t *d, *back = malloc(40000 * sizeof *back);
    assert_int_equal(sv_dev_alloc(dev, (void **)&d, 40000 * sizeof *d, &err), SV_OK);
    for (int32_t i = 0; i < 40000; i++)
        sv_dev_upload(dev, d + i, &i, sizeof i);
    sv_dev_download(dev, back, d, 40000 * sizeof *d);
    rig_sync(dev, SV_OK);
    for (int32_t i = 0; i < 40000; i++)
        assert_int_equal(back[i], i);
    sv_dev_free(dev, d);
    free(back);
    int64_t n_free = -1, n_total = -1;
    sv_dev_memory(dev, &n_free, &n_total);
    assert_true(n_free >= 0 && n_free <= n_total);
}

/* ---------------------------------------------------------------- marks */

static void marks_on(struct cross *c)
{
    struct sv_err err = {0};
    for (int32_t i = 0; i < SV_MARKS; i++)
        assert_int_equal(sv_dev_wait(c->dut, i, &err), SV_OK); /* never set */
    for (int32_t i = 0; i < SV_MARKS; i++)
        sv_dev_mark(c->dut, i);
    for (int32_t i = SV_MARKS; i-- > 0;)
        assert_int_equal(sv_dev_wait(c->dut, i, &err), SV_OK);
    rig_sync(c->dut, SV_OK);
}

/* An error is reported once, at the first wait after it, and not again at a later mark. */
static void errors_on(struct cross *c)
{
    struct sv_err err = {0};
    struct cross_kv kv = cross_kv(c, 1, 16, 16, 1, 8, 0);
    struct cross_buf qkv = cross_new(c, CROSS_ACT, 24, NULL, 1),
                     angle = cross_new(c, CROSS_F32, 8, NULL, 1);
    struct rig_batch b;
    rig_batch_init(&b);
    rig_batch_add(&b, 0, 55, 1);
    struct cross_rows r = cross_rows(c, &b, 0, 0);
    for (int side = 0; side < 2; side++) {
        struct sv_dev *dev = cross_dev(c, side);
        for (int round = 0; round < 3; round++) {
            sv_dev_mark(dev, 0);
            assert_int_equal(sv_dev_wait(dev, 0, &err), SV_OK);
            sv_op_qk_norm_rope_kv_write(
                dev, &(struct sv_p_qk_norm_rope_kv_write){
                         .rows = r.rows[side],
                         .qkv = cross_at(&qkv, side),
                         .ld = 24,
                         .n_heads = 1,
                         .rope = {cross_at(&angle, side), cross_at(&angle, side), 1 << 20, 0},
                         .kv = kv.kv[side]});
            sv_dev_mark(dev, 1);
            sv_dev_mark(dev, 2);
            assert_int_equal(sv_dev_wait(dev, 1, &err), SV_EDEVICE);
            assert_non_null(strstr(err.msg, "slot 0"));
            assert_non_null(strstr(err.msg, "55"));
            assert_int_equal(sv_dev_wait(dev, 2, &err), SV_OK);
            rig_sync(dev, SV_OK);
        }
    }
    cross_rows_free(c, &r), cross_kv_free(c, &kv), cross_free(c, &qkv), cross_free(c, &angle);
}

/* ---------------------------------------------------------------- graphs */

struct work {
    struct cross *c;
    struct cross_buf x, h, y;
    struct cross_weight w;
    int32_t n;
    int calls;
};

static void enqueue(void *user)
{
    struct work *k = user;
    const struct sv_gemm_part part = {.w = k->w.dut};
    struct sv_dev *dev = k->c->dut;
    k->calls++;
    sv_op_act_mul(dev, &(struct sv_p_act_mul){k->n, 320, k->x.dut, k->h.dut});
    sv_op_gemm(dev, &(struct sv_p_gemm){k->n, 320, 1, k->h.dut, 320, &part, k->y.dut, 200, false,
                                        SV_JOIN_NONE});
    sv_op_act_mul(dev, &(struct sv_p_act_mul){k->n, 100, k->y.dut, k->h.dut});
}

/* Replayed with new input, each key gives the bits of the same calls one by one. */
static void graphs_on(struct cross *c)
{
    enum { KEYS = 5, ROUNDS = 4 };
    struct work k[KEYS] = {{0}};
    for (int i = 0; i < KEYS; i++) {
        k[i] = (struct work){.c = c, .n = 1 + 7 * i};
        k[i].x = cross_new(c, CROSS_ACT, (size_t)k[i].n * 640, NULL, 1);
        k[i].h = cross_new(c, CROSS_ACT, (size_t)k[i].n * 320, NULL, 0);
        k[i].y = cross_new(c, CROSS_ACT, (size_t)k[i].n * 200, NULL, 0);
        k[i].w = cross_weight(c, SV_BF16, 200, 320, 0.1f, 0);
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < KEYS; i++) {
            struct cross_buf fresh = cross_new(c, CROSS_ACT, (size_t)k[i].n * 640, NULL, 1);
            size_t n_bytes;
            void *bytes = cross_bytes(c, &fresh, &n_bytes);
            sv_dev_upload(c->dut, k[i].x.dut, bytes, n_bytes);
            sv_dev_graph_run(c->dut, (uint64_t)i << 40 | 3, enqueue, &k[i]);
            sv_dev_mark(c->dut, 0);
            assert_int_equal(sv_dev_wait(c->dut, 0, NULL), SV_OK);
            void *a = cross_bytes(c, &k[i].h, &n_bytes);
            enqueue(&k[i]);
            void *b = cross_bytes(c, &k[i].h, NULL);
            assert_memory_equal(a, b, n_bytes);
            free(a), free(b), free(bytes);
            cross_free(c, &fresh);
        }
    for (int i = 0; i < KEYS; i++) {
        if (strcmp(sv_dev_backend(c->dut)->name, "cpu")) /* eager, captured, then replayed */
            assert_int_equal(k[i].calls, 2 + ROUNDS);
        cross_free(c, &k[i].x), cross_free(c, &k[i].h), cross_free(c, &k[i].y);
        cross_weight_free(c, &k[i].w);
    }
}

/* ---------------------------------------------------------------- weights from a seed */

/* The matrix as products with unit vectors show it; free() it. */
static float *look(struct cross *c, const struct sv_weight *w)
{
    const size_t k = (size_t)w->cols;
    float *unit = calloc(k * k, sizeof *unit);
    for (size_t i = 0; i < k; i++)
        unit[i * k + i] = 1;
    struct cross_buf x = cross_new(c, CROSS_ACT, k * k, unit, 0);
    struct cross_buf y = cross_new(c, CROSS_F32, k * (size_t)w->rows, NULL, 0);
    const struct sv_gemm_part part = {.w = *w};
    sv_op_gemm(c->dut, &(struct sv_p_gemm){w->cols, w->cols, 1, x.dut, w->cols, &part, y.dut,
                                           w->rows, true, SV_JOIN_NONE});
    float *out = cross_floats(c, &y);
    cross_free(c, &x), cross_free(c, &y);
    free(unit);
    return out;
}

static void seeds_on(struct cross *c)
{
    static const enum sv_dtype types[] = {SV_BF16, SV_F32};
    static const int32_t rows[] = {300, 64, 1}, cols[] = {200, 67, 256};
    struct sv_err err;
    for (int i = 0; i < 6; i++) {
        const struct sv_weight shape = {
            .fmt.elem = types[i / 3], .rows = rows[i % 3], .cols = cols[i % 3]};
        const size_t n = (size_t)shape.rows * (size_t)shape.cols;
        struct sv_weight w[3];
        float *x[3];
        for (int j = 0; j < 3; j++) {
            assert_int_equal(
                sv_dev_random_weight(c->dut, &shape, 0.5f, 2, j < 2 ? 7 : 8, &w[j], &err), SV_OK);
            x[j] = look(c, &w[j]);
        }
        assert_memory_equal(x[0], x[1], n * sizeof *x[0]);
        double sum = 0, square = 0;
        size_t same = 0;
        for (size_t j = 0; j < n; j++) {
            double d = (double)x[0][j] - 2;
            sum += d;
            square += d * d;
            same += x[0][j] == x[2][j];
        }
        assert_true(fabs(sum / (double)n) < 5 * 0.5 / sqrt((double)n));
        assert_true(fabs(sqrt(square / (double)n) - 0.5) < 2.5 / sqrt((double)n));
        assert_true(same < n / 10 + 5);
        for (int j = 0; j < 3; j++) {
            sv_dev_free_weight(c->dut, &w[j]);
            free(x[j]);
        }
    }
    const struct sv_weight half = {.fmt.elem = SV_F16, .rows = 4, .cols = 4};
    struct sv_weight w;
    assert_int_equal(sv_dev_random_weight(c->dut, &half, 1, 0, 1, &w, &err), SV_EUNSUPPORTED);
}

/* ---------------------------------------------------------------- weights, scratch, refusals */

/* A weight of many chunks arrives whole: its last rows are looked at through products. */
static void big_weight_on(struct cross *c)
{
    const int32_t k = 1000, rows = c->quick ? 1000 : 60000;
    struct cross_weight w = cross_weight(c, SV_BF16, rows, k, 1, 0);
    struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)(2 * k), NULL, 0.03f);
    struct cross_buf y = cross_new(c, CROSS_F32, (size_t)(2 * rows), NULL, 0);
    for (int side = 0; side < 2; side++) {
        const struct sv_gemm_part part = {.w = side ? w.dut : w.ref};
        sv_op_gemm(cross_dev(c, side),
                   &(struct sv_p_gemm){2, k, 1, cross_at(&x, side), k, &part, cross_at(&y, side),
                                       rows, true, SV_JOIN_NONE});
    }
    cross_sync(c);
    cross_same(c, &y, 0, y.n, c->tol, "big weight");
    cross_free(c, &x), cross_free(c, &y), cross_weight_free(c, &w);
}

static void reserves_again_on(struct cross *c)
{
    const struct sv_dev_limits lim = {.max_rows = 300,
                                      .max_logit_rows = 64,
                                      .max_k = 2048,
                                      .max_n = 4096,
                                      .max_heads = 16,
                                      .max_head_dim = 128,
                                      .max_vocab = 1000,
                                      .max_positions = 1024};
    struct sv_err err;
    graphs_on(c);
    assert_int_equal(sv_dev_reserve(c->dut, &lim, &err), SV_OK);
    graphs_on(c);
}

/* ---------------------------------------------------------------- compressed weights */

struct wcomp_case {
    int32_t rows[3], n_parts, k;
    uint32_t odd; /* one number in so many is far from the others */
    bool wcomp;
};

/* Products of all row counts, as bytes one after another; free() them. */
static uint8_t *wcomp_products(struct cross *c, const struct wcomp_case *d,
                               const struct sv_gemm_part *part, const struct cross_buf *x,
                               int32_t most, size_t *n_bytes)
{
    int32_t cols = 0;
    for (int32_t i = 0; i < d->n_parts; i++)
        cols += d->rows[i];
    const int32_t step = c->quick ? 13 : 1;
    uint8_t *all = NULL;
    *n_bytes = 0;
    for (int32_t n = 1; n <= most; n += step)
        for (int f32 = 0; f32 < 2; f32++) {
            struct cross_buf y =
                cross_new(c, f32 ? CROSS_F32 : CROSS_ACT, (size_t)n * (size_t)cols, NULL, 0);
            sv_op_gemm(c->dut, &(struct sv_p_gemm){n, d->k, d->n_parts, x->dut, d->k, part, y.dut,
                                                   cols, f32, SV_JOIN_NONE});
            size_t more;
            void *bytes = cross_bytes(c, &y, &more);
            all = realloc(all, *n_bytes + more);
            memcpy(all + *n_bytes, bytes, more);
            *n_bytes += more;
            free(bytes);
            cross_free(c, &y);
        }
    return all;
}

static struct sv_dev_limits product_limits(int32_t max_rows)
{
    return (struct sv_dev_limits){.max_rows = max_rows,
                                  .max_logit_rows = 64,
                                  .max_k = 4096,
                                  .max_n = 4096,
                                  .max_heads = 16,
                                  .max_head_dim = 128,
                                  .max_vocab = 1000,
                                  .max_positions = 1024};
}

/* Reserve makes copies of the matrices in fewer bits. The products have the same bits as before,
 * numbers that do not fit included; a matrix with too many of those gets no copy. */
static void wcomp_on(struct cross *c)
{
    static const struct wcomp_case cases[] = {{{1024, 128, 128}, 3, 320, 3000, true},
                                              {{4096}, 1, 512, 100000, true},
                                              {{77, 200}, 2, 136, 700, true},
                                              {{256}, 1, 4096, 20, false}};
    enum { N = sizeof cases / sizeof *cases, MOST = 140 };
    const struct sv_dev_limits lim = product_limits(300);
    static const uint16_t far[] = {0, 0x8000, 1, 0x8070, 0x0b21, 0x8312, 0x6f00, 0xf555};
    struct sv_err err;
    struct sv_gemm_part part[N][3] = {{{.w = {0}}}};
    struct cross_buf x[N];
    uint8_t *before[N];
    uint16_t *host[N][3];
    size_t n_before[N], n_after;
    for (int i = 0; i < N; i++) {
        const struct wcomp_case *d = &cases[i];
        for (int j = 0; j < d->n_parts; j++) {
            const size_t n = (size_t)d->rows[j] * (size_t)d->k;
            host[i][j] = malloc(n * sizeof *host[i][j]);
            for (size_t e = 0; e < n; e++)
                host[i][j][e] = sv_rng_next(&c->rng) % d->odd
                                    ? sv_f32_to_bf16((float)sv_rng_normal(&c->rng) * 0.05f)
                                    : far[sv_rng_next(&c->rng) % 8];
            const struct sv_weight w = {
                .data = host[i][j], .fmt.elem = SV_BF16, .rows = d->rows[j], .cols = d->k};
            assert_int_equal(sv_dev_upload_weight(c->dut, &w, &part[i][j].w, &err), SV_OK);
        }
        x[i] = cross_new(c, CROSS_ACT, (size_t)MOST * (size_t)d->k, NULL, 1);
        before[i] = wcomp_products(c, d, part[i], &x[i], MOST, &n_before[i]);
    }
    assert_int_equal(sv_dev_reserve(c->dut, &lim, &err), SV_OK);
    const bool copies = strstr(sv_dev_describe(c->dut), "cuda") && c->bf16;
    assert_true((sv_dev_held(c->dut, SV_MEM_WCOMP) > 0) == copies);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < cases[i].n_parts; j++)
            /* of a small matrix the copy is larger: it is of whole tiles */
            assert_true((sv_dev_weight_bytes(c->dut, &part[i][j].w, 1) !=
                         sv_dev_weight_bytes(c->dut, &part[i][j].w, SV_READ_ROWS)) ==
                        (copies && cases[i].wcomp));
    for (int i = 0; i < N; i++) {
        uint8_t *after = wcomp_products(c, &cases[i], part[i], &x[i], MOST, &n_after);
        assert_int_equal(n_after, n_before[i]);
        assert_memory_equal(before[i], after, n_after);
        free(before[i]), free(after);
        cross_free(c, &x[i]);
        for (int j = 0; j < cases[i].n_parts; j++) {
            sv_dev_free_weight(c->dut, &part[i][j].w);
            free(host[i][j]);
        }
    }
    assert_int_equal(sv_dev_held(c->dut, SV_MEM_WCOMP), 0);
}

/* ---------------------------------------------------------------- columns in place */

/* Some columns of a matrix, whose rows lie apart, are the weight that their copy is. */
static void columns_on(struct cross *c)
{
    static const int32_t rows[] = {24, 4096, 200}, cols[] = {64, 640, 4096};
    struct sv_err err = {0};
    if (!sv_dev_backend(c->dut)->takes_columns)
        return;
    for (int i = 0; i < 3; i++)
        for (int f32 = 0; f32 < 2; f32++) {
            const size_t elem = f32 ? 4 : 2, row = (size_t)cols[i] * elem, stride = row + 48 * elem,
                         n = (size_t)rows[i] * stride;
            const struct wcomp_case d = {{rows[i]}, 1, cols[i], 1, false};
            uint8_t *whole = malloc(n), *copy = malloc(n), *y[2];
            size_t n_y[2];
            for (size_t e = 0; e < n / elem; e++) {
                const float v = (float)sv_rng_normal(&c->rng);
                const uint16_t h = sv_f32_to_bf16(v);
                memcpy(whole + e * elem, f32 ? (const void *)&v : (const void *)&h, elem);
            }
            for (int32_t r = 0; r < rows[i]; r++)
                memcpy(copy + (size_t)r * row, whole + (size_t)r * stride + 16 * elem, row);
            struct cross_buf x = cross_new(c, CROSS_ACT, (size_t)20 * (size_t)cols[i], NULL, 1);
            for (int in_place = 0; in_place < 2; in_place++) {
                const struct sv_weight w = {.data = in_place ? whole + 16 * elem : copy,
                                            .fmt.elem = f32 ? SV_F32 : SV_BF16,
                                            .rows = rows[i],
                                            .cols = cols[i],
                                            .row_stride = in_place ? stride : 0};
                struct sv_gemm_part part = {.w = {0}};
                if (sv_dev_upload_weight(c->dut, &w, &part.w, &err))
                    fail_msg("%s", err.msg);
                y[in_place] = wcomp_products(c, &d, &part, &x, 20, &n_y[in_place]);
                sv_dev_free_weight(c->dut, &part.w);
            }
            assert_int_equal(n_y[0], n_y[1]);
            assert_memory_equal(y[0], y[1], n_y[0]);
            cross_free(c, &x);
            free(y[0]), free(y[1]);
            free(whole), free(copy);
        }
}

/* ---------------------------------------------------------------- quantized weights */

/* Root of the mean square of a - b, of that of b. */
static double apart(const float *a, const float *b, size_t n)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        s += (double)b[i] * b[i];
    }
    return sqrt(d / s);
}

static void product(struct cross *c, const struct sv_gemm_part *part, int32_t n_parts, int32_t k,
                    bool gated, int32_t n_rows, void *x, struct cross_buf *y,
                    struct cross_buf *scratch)
{
    int32_t cols = 0;
    for (int32_t i = 0; i < n_parts; i++)
        cols += part[i].w.rows;
    *y = cross_new(c, CROSS_ACT, (size_t)n_rows * (size_t)(gated ? cols / 2 : cols), NULL, 0);
    *scratch = cross_new(c, CROSS_ACT, (size_t)n_rows * (size_t)cols, NULL, 0);
    if (gated)
        sv_op_gemm_act_mul(
            c->dut, &(struct sv_p_gemm_act_mul){n_rows, k, x, k, part, scratch->dut, y->dut});
    else
        sv_op_gemm(c->dut, &(struct sv_p_gemm){n_rows, k, n_parts, x, k, part, y->dut, cols, false,
                                               SV_JOIN_NONE});
}

/* A norm that is told of the product behind it changes no bit, nor does one whose rows are
 * overwritten before that. */
static void told_on(struct cross *c, const struct sv_gemm_part *part, int32_t n_parts, int32_t k,
                    bool gated, int32_t n_rows, struct cross_buf *x)
{
    struct cross_weight w = cross_norm(c, SV_BF16, k, 0.3f);
    struct cross_buf h = cross_new(c, CROSS_ACT, (size_t)n_rows * (size_t)k, NULL, 0);
    uint8_t *bytes[3];
    size_t n_bytes;
    for (int how = 0; how < 3; how++) {
        struct cross_buf y, scratch;
        struct sv_p_add_rms_norm p = {.n_rows = n_rows,
                                      .d = k,
                                      .x = x->dut,
                                      .weight = w.dut,
                                      .eps = 1e-6f,
                                      .out = h.dut,
                                      .reader = how ? &part[0].w : NULL};
        if (how == 2) { /* other rows in the same place */
            p.x = cross_act(c, x, 1, k);
            sv_op_add_rms_norm(c->dut, &p);
            p.x = x->dut;
            p.reader = NULL;
        }
        sv_op_add_rms_norm(c->dut, &p);
        product(c, part, n_parts, k, gated, n_rows, h.dut, &y, &scratch);
        bytes[how] = cross_bytes(c, &y, &n_bytes);
        cross_free(c, &y), cross_free(c, &scratch);
    }
    assert_memory_equal(bytes[0], bytes[1], n_bytes);
    assert_memory_equal(bytes[0], bytes[2], n_bytes);
    free(bytes[0]), free(bytes[1]), free(bytes[2]);
    cross_free(c, &h);
    cross_weight_free(c, &w);
}

/* Marked weights cost a few percent at most where a device makes use of the mark and nothing where
 * it does not, and a row's bits are its own all the same. */
static void quantized_on(struct cross *c)
{
    static const struct {
        int32_t rows[3], n_parts, k;
        bool gated;
    } cases[] = {{{320, 64, 64}, 3, 320, false},
                 {{1024}, 1, 2048, false},
                 {{77, 200}, 2, 136, false},
                 {{896, 896}, 2, 320, true},
                 {{64}, 1, 12, false}};
    enum { MOST = 300 };
    const struct sv_dev_limits lim = product_limits(MOST);
    struct sv_err err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t k = cases[i].k, n_parts = cases[i].n_parts;
        const bool gated = cases[i].gated, bytes = sv_dev_quantizes(c->dut) && k % 8 == 0;
        struct sv_gemm_part part[2][3] = {{{.w = {0}}}};
        struct cross_buf y[2], scratch[2],
            x = cross_new(c, CROSS_ACT, (size_t)MOST * (size_t)k, NULL, 1);
        float *seen[2];
        for (int j = 0; j < n_parts; j++)
            for (int a = 0; a < 2; a++) {
                const struct sv_weight w = {.role = a ? SV_ROLE_Q | SV_ROLE_DRAFT : SV_ROLE_Q,
                                            .fmt.elem = SV_BF16,
                                            .rows = cases[i].rows[j],
                                            .cols = k};
                assert_int_equal(sv_dev_random_weight(c->dut, &w, 0.05f, 0, (uint64_t)j + 3,
                                                      &part[a][j].w, &err),
                                 SV_OK);
                if (!strstr(sv_dev_describe(c->dut), "cpu"))
                    assert_true((part[a][j].w.fmt.elem == SV_F8) == (a && bytes));
            }
        assert_int_equal(sv_dev_reserve(c->dut, &lim, &err), SV_OK);
        for (int a = 0; a < 2; a++) {
            product(c, part[a], n_parts, k, gated, MOST, x.dut, &y[a], &scratch[a]);
            seen[a] = cross_floats(c, &y[a]);
        }
        const double error = apart(seen[1], seen[0], y[0].n);
        assert_true(bytes ? error > 1e-3 && error < 0.08 : error < 0.02);
        size_t n_all, n_one;
        uint8_t *all = cross_bytes(c, &y[1], &n_all);
        for (int32_t r = 0; r < MOST; r += c->quick ? 97 : 7) {
            struct cross_buf one, one_scratch;
            product(c, part[1], n_parts, k, gated, 1, cross_act(c, &x, 1, (int64_t)r * k), &one,
                    &one_scratch);
            uint8_t *own = cross_bytes(c, &one, &n_one);
            assert_int_equal(n_one * MOST, n_all);
            assert_memory_equal(own, all + (size_t)r * n_one, n_one);
            free(own);
            cross_free(c, &one), cross_free(c, &one_scratch);
        }
        free(all);
        told_on(c, part[1], n_parts, k, gated, 5, &x);
        told_on(c, part[1], n_parts, k, gated, MOST - 1, &x);
        for (int a = 0; a < 2; a++) {
            free(seen[a]);
            cross_free(c, &y[a]), cross_free(c, &scratch[a]);
            for (int j = 0; j < n_parts; j++)
                sv_dev_free_weight(c->dut, &part[a][j].w);
        }
        cross_free(c, &x);
    }
}

static void refusals(void **state)
{
    (void)state;
    const struct sv_dev_opts bad[] = {{.backend = "cuda", .compute = SV_F16},
                                      {.backend = "cuda", .tuning.isa = SV_ISA_AVX2},
                                      {.backend = "cuda", .n_threads = -1},
                                      {.backend = "cuda", .ordinal = 1000},
                                      {.backend = "cuda", .ordinal = -1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sv_dev *dev;
        struct sv_err err = {0};
        int rc = sv_dev_open(&dev, &bad[i], &err);
        assert_true(rc == SV_EINVAL || rc == SV_EUNSUPPORTED);
        assert_true(strlen(err.msg) > 5);
        assert_null(dev);
    }
}

#define CROSS_TEST(name)                                                                           \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        cross_all(name##_on);                                                                      \
    }
CROSS_TEST(copies)
CROSS_TEST(marks)
CROSS_TEST(errors)
CROSS_TEST(graphs)
CROSS_TEST(seeds)
CROSS_TEST(big_weight)
CROSS_TEST(reserves_again)
CROSS_TEST(wcomp)
CROSS_TEST(columns)
CROSS_TEST(quantized)

SV_TEST_MAIN(cmocka_unit_test(copies), cmocka_unit_test(marks), cmocka_unit_test(errors),
             cmocka_unit_test(graphs), cmocka_unit_test(seeds), cmocka_unit_test(big_weight),
             cmocka_unit_test(reserves_again), cmocka_unit_test(wcomp), cmocka_unit_test(columns),
             cmocka_unit_test(quantized), cmocka_unit_test(refusals))
