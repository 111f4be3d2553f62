/*
 * test_head_screen.c - the head's argmax by way of bounds (cpu/head_screen.h): the same ids as all
 * logits give, bounds that hold, and the same bounds from every kernel.
 *
 * Needs AVX512-VNNI; a machine without it says so and tests only that no screen is made there.
 * timeout: 240
 */
#include "testing.h"

#include "backend/cpu_device.h"
#include "backend/cpu/head_screen.h"
#include "backend/head_screen_tiles.h"

#include <math.h>
#include <string.h>

enum { MOST_N = 1500, MOST_K = 1100, ROWS = SV_SCREEN_ROWS };
enum kind { NORMAL, SCALES, EQUAL, NEAR, HEAVY, SMALL, ZEROS, DENORMAL, ONE_LARGE, N_KINDS };
static const char *const kind_name[] = {"normal",    "units of many scales", "rows that are equal",
                                        "near ties", "input with outliers",  "small numbers",
                                        "zeros",     "denormal rows",        "one large row"};

static void sieving_open(struct sv_cpu *cpu, enum sv_isa isa, int n_threads)
{
    device_open(
        cpu, isa, SV_BF16, n_threads,
        (struct sv_dev_limits){.max_rows = ROWS, .max_logit_rows = 2 * ROWS, .max_k = MOST_K});
    cpu->screen = true;
}

static struct sv_weight upload(struct sv_cpu *cpu, const void *w, int32_t n, int32_t k)
{
    const struct sv_weight host = {
        .data = w, .fmt.elem = SV_BF16, .rows = n, .cols = k, .role = SV_ROLE_HEAD};
    struct sv_weight out;
    struct sv_err err;
    assert_int_equal(sv_cpu_upload_weight((struct sv_dev *)(void *)cpu, &host, &out, &err), SV_OK);
    return out;
}

static void release(struct sv_cpu *cpu, const struct sv_weight *w)
{
    struct sv_weight gone = *w;
    sv_cpu_free_weight((struct sv_dev *)(void *)cpu, &gone);
    assert_int_equal(cpu->screen_bytes, 0);
}

/* Row r of some kinds, from what normal numbers made of it and of the rows before. */
static void change_row(uint16_t *w, int32_t r, int32_t n, int32_t k, enum kind kind)
{
    uint16_t *at = w + (size_t)r * (size_t)k;
    if (kind == EQUAL && r >= n / 4)
        memcpy(at, at - (size_t)(n / 4) * (size_t)k, (size_t)k * sizeof *at);
    if (kind == NEAR && r > 0) { /* one weight differs from the first row's, by its last bit */
        memcpy(at, w, (size_t)k * sizeof *at);
        at[r % k] ^= 1;
    }
    if ((kind == ZEROS && r % 7) || (kind == DENORMAL && r % 3 == 0))
        for (int32_t i = 0; i < k; i++)
            at[i] = (uint16_t)(kind == ZEROS ? 0 : (at[i] & 0x8000) | ((at[i] + r) & 0x7f));
    if (kind == ONE_LARGE && r == n / 2)
        for (int32_t i = 0; i < k; i++)
            at[i] = (uint16_t)(at[i] + (10 << 7));
}

static void fill(uint16_t *w, float *x, int32_t n, int32_t k, enum kind kind)
{
    struct sv_rng rng = {(uint64_t)n * 7 + kind};
    for (int32_t r = 0; r < n; r++) {
        const float scale = kind == SMALL    ? 1e-20f
                            : kind == SCALES ? 0.02f * ldexpf(1, r / 16 % 7 * 3 - 9)
                                             : 0.02f;
        for (int32_t i = 0; i < k; i++)
            w[(size_t)r * (size_t)k + (size_t)i] = sv_f32_to_bf16(sv_rng_normal(&rng) * scale);
        change_row(w, r, n, k, kind);
    }
    for (int32_t r = 0; r < 2 * ROWS; r++)
        for (int32_t i = 0; i < k; i++) {
            const float v = sv_rng_normal(&rng) * ldexpf(1, r % 5 - 2);
            x[(size_t)r * (size_t)k + (size_t)i] = kind == HEAVY && i % 97 == 3 ? 60 * v : v;
        }
}

static void argmax(struct sv_cpu *cpu, const struct sv_weight *w, const float *x, int32_t rows,
                   int32_t *out)
{
    sv_alloc_guard(true);
    sv_cpu_head_argmax(
        (struct sv_dev *)(void *)cpu,
        &(struct sv_p_head_argmax){.n_rows = rows, .k = w->cols, .x = x, .w = *w, .out = out});
    sv_alloc_guard(false);
}

static void logits(struct sv_cpu *cpu, const struct sv_weight *w, const float *x, int32_t rows,
                   float *y)
{
    const struct sv_gemm_part part = {.w = *w};
    sv_cpu_gemm((struct sv_dev *)(void *)cpu, &(struct sv_p_gemm){.n_rows = rows,
                                                                  .k = w->cols,
                                                                  .n_parts = 1,
                                                                  .x = x,
                                                                  .ldx = w->cols,
                                                                  .parts = &part,
                                                                  .y = y,
                                                                  .ldy = w->rows});
}

static bool able(enum sv_isa isa)
{
    if (sv_cpu_has_isa(isa) && isa >= SV_ISA_AVX512 && sv_cpu_has_avx512_vnni())
        return true;
    fprintf(stderr, "NOT TESTED: no screen at level %d of this machine\n", (int)isa);
    return false;
}

/* What the argmax must be, and that no logit is above its unit's bound. y: all logits of ROWS + 2
 * rows. */
static void check(struct sv_cpu *cpu, const struct sv_weight *w, const float *x, int32_t rows,
                  const float *y, enum kind kind)
{
    struct sv_screen *v = sv_cpu_screen_of(w);
    const int32_t n = w->rows;
    int32_t out[2 * ROWS];
    v->rest = v->pause = 0;
    v->n_left = -1;
    argmax(cpu, w, x, rows, out);
    const bool asked = rows <= sv_cpu_gemm_screen_rows(cpu);
    assert_true(asked == (v->n_left >= 0));
    for (int32_t r = 0; r < rows; r++) {
        const float *logit = y + (size_t)r * (size_t)n;
        int32_t best = 0;
        for (int32_t i = 0; i < n; i++) {
            best = logit[i] > logit[best] ? i : best;
            if (asked && !(logit[i] <= v->top[r * v->n_units + i / 16]))
                fail_msg("%s, n %d k %d, row %d of %d: logit %d is %g, its bound %g",
                         kind_name[kind], n, w->cols, r, rows, i, (double)logit[i],
                         (double)v->top[r * v->n_units + i / 16]);
        }
        if (out[r] != best)
            fail_msg("%s, n %d k %d, row %d of %d: argmax %d instead of %d", kind_name[kind], n,
                     w->cols, r, rows, out[r], best);
    }
}

static void at_level(enum sv_isa isa, bool wcomp)
{
    static const int32_t shapes[][2] = {
        {MOST_N, 512}, {500, 1100}, {777, 191}, {16, 130}, {5, 1000}};
    uint16_t *w = sv_calloc((size_t)MOST_N * MOST_K, sizeof *w);
    float *x = sv_calloc((size_t)2 * ROWS * MOST_K, sizeof *x);
    float *y = sv_calloc((size_t)2 * ROWS * MOST_N, sizeof *y);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            struct sv_cpu cpu;
            const int32_t n = shapes[s][0], k = shapes[s][1];
            const int64_t live = sv_alloc_live();
            sieving_open(&cpu, isa, 1 + (int)(s + (size_t)kind) % 3);
            cpu.wcomp = wcomp;
            fill(w, x, n, k, (enum kind)kind);
            const struct sv_weight head = upload(&cpu, w, n, k);
            assert_non_null(sv_cpu_screen_of(&head));
            assert_true(sv_cpu_weight_bytes((struct sv_dev *)(void *)&cpu, &head, 1) <
                        cpu.screen_bytes);
            logits(&cpu, &head, x, ROWS + 2, y);
            for (int32_t rows = 1; rows <= ROWS + 2; rows++)
                check(&cpu, &head, x, rows, y, (enum kind)kind);
            release(&cpu, &head);
            device_close(&cpu);
            assert_int_equal(sv_alloc_live(), live);
        }
    sv_free(w);
    sv_free(x);
    sv_free(y);
}

static void same_ids_and_true_bounds(void **state)
{
    (void)state;
    for (enum sv_isa isa = SV_ISA_AVX512; isa <= SV_ISA_AMX; isa++)
        for (int wcomp = 0; wcomp < 2; wcomp++)
            if (able(isa))
                at_level(isa, wcomp);
}

/* ---------------------------------------------------------------- the format, and every kernel */

/* A plane's byte of column i, as the format tells. */
static int32_t byte_of(const uint8_t *unit, enum sv_screen_plane plane, int lane, int32_t i)
{
    const uint8_t *line =
        unit + SV_SCREEN_HEAD + (size_t)(i / 16) * sv_screen_lines(plane) * SV_SCREEN_LINE;
    const int32_t quad = i % 16 / 4, at = 4 * lane + i % 4;
    int32_t q = 0;
    if (plane == SV_SCREEN_FINE)
        return line[at] >> 2 * quad & 3;
    if (quad < 3)
        return line[quad * SV_SCREEN_LINE + at] & 63;
    for (int j = 0; j < 3; j++)
        q |= line[j * SV_SCREEN_LINE + at] >> 6 << 2 * j;
    return q;
}

struct planes {
    int32_t n, k, units;
    uint8_t *data[2];
    size_t unit_bytes[2];
};

/* The bounds of weight row n and input row x as head_screen.h has them, in double: the middle, and
 * what is added. */
static void bounds_of(const struct planes *p, enum sv_screen_plane plane, int32_t n,
                      const uint16_t *w, const float *x, double *middle, double *slack)
{
    const int32_t k = p->k, lane = n % 16;
    const uint8_t *coarse = p->data[0] + (size_t)(n / 16) * p->unit_bytes[0],
                  *fine = p->data[1] + (size_t)(n / 16) * p->unit_bytes[1];
    const double s = 2 * (double)((const float *)(const void *)coarse)[lane];
    double most = 0, dw[2] = {0, 0}, dw_most = 0, ww = 0, xx = 0, xs = 0, dx = 0;
    for (int32_t i = 0; i < k; i++)
        most = fmax(most, fabs((double)sv_bf16_to_f32(sv_f32_to_bf16(x[i]))));
    const double t = (double)((float)most / 32512.0f);
    *middle = 0;
    for (int32_t i = 0; i < k; i++) {
        const double xv = (double)sv_bf16_to_f32(sv_f32_to_bf16(x[i])),
                     wv = (double)sv_bf16_to_f32(w[i]);
        const double whole = nearbyint(xv / t),
                     c = 4.0 * (byte_of(coarse, SV_SCREEN_COARSE, lane, i) - 32);
        const double stands_for[2] = {s * (c - 0.5),
                                      s * (c + byte_of(fine, SV_SCREEN_FINE, lane, i) - 2)};
        *middle += stands_for[plane] * t * whole;
        for (int j = 0; j < 2; j++)
            dw[j] += (wv - stands_for[j]) * (wv - stands_for[j]);
        dw_most = fmax(dw_most, fabs(wv - stands_for[plane]));
        ww += wv * wv;
        xx += xv * xv;
        xs += fabs(xv);
        dx += (xv - t * whole) * (xv - t * whole);
    }
    ww = sqrt(ww) + 0x1p-50, xx = sqrt(xx) + 0x1p-50, dx = sqrt(dx) + 0x1p-50;
    const double both = ww + sqrt(dw[0]) + 0x1p-50, g = 1.01 * (2 * k + 64) * 0x1p-24;
    *slack = fmin(dw_most * xs, (sqrt(dw[plane]) + 0x1p-50) * xx) + both * dx + g * both * xx +
             0x1p-20 * both * (xx + dx + 256 * t * sqrt(k)) + 0x1p-60;
}

enum { TEST_N = 80 };
struct bounded {
    _Alignas(64) float v[TEST_N * ROWS];
    float top[2][TEST_N / 16 * ROWS], low[2][SV_GEMM_ROWS];
    int32_t id[2][SV_GEMM_ROWS];
};

typedef const struct sv_gemm_kern *kern_fn(enum sv_screen_plane plane);

/* Both planes' bounds of all units, by a thread whose share is one span, then by another. */
static void run_kernels(kern_fn *kerns, struct sv_gemm_call *c, const struct planes *p,
                        struct bounded *out)
{
    uint8_t *xp = sv_alloc(sv_gemm_packed_bytes(c->m1 - c->m0, c->k));
    memset(out, 0, sizeof *out);
    for (int plane = 0; plane < 2; plane++) {
        const struct sv_gemm_kern *kern = kerns((enum sv_screen_plane)plane);
        const struct sv_screen v = {.v = out->v, .top = out->top[plane], .n_units = p->units};
        struct sv_gemm_thread thread = {.best_val = out->low[plane], .best_id = out->id[plane]};
        struct sv_gemm_item item = {.w = p->data[plane], .n = p->n};
        for (int i = 0; i < SV_GEMM_ROWS; i++)
            out->low[plane][i] = -INFINITY;
        c->screen = &v;
        kern->pack(c, xp, 1, 2);
        kern->pack(c, xp, 0, 2);
        if (kern->enter)
            kern->enter(c);
        for (int32_t n0 = 0, n1; n0 < p->n; n0 = n1) {
            n1 = n0 || p->n < 48 ? p->n : 32;
            kern->run(&(struct sv_gemm_span){
                .call = c, .thread = &thread, .item = &item, .xp = xp, .n0 = n0, .n1 = n1});
        }
        if (kern->leave)
            kern->leave();
    }
    sv_free(xp);
}

/* Every bound contains that of head_screen.h, and is hardly wider. */
static void check_bounds(const struct planes *p, enum sv_screen_plane plane,
                         const struct bounded *got, int32_t rows, const uint16_t *w, const float *x,
                         enum kind kind)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t u = 0; u < p->units; u++) {
            double most = -INFINITY, wide = 0;
            const double top = (double)got->top[plane][r * p->units + u];
            for (int32_t n = u * 16; n < u * 16 + 16 && n < p->n; n++) {
                double middle, slack;
                bounds_of(p, plane, n, w + (size_t)n * (size_t)p->k, x + (size_t)r * (size_t)p->k,
                          &middle, &slack);
                most = fmax(most, middle + slack);
                wide = fmax(wide, slack + 1e-5 * fabs(middle));
                assert_true((double)got->low[plane][r * 16 + n % 16] >=
                            middle - slack - 0.02 * (slack + 1e-5 * fabs(middle)));
            }
            if (!(top >= most - 1e-6 * fabs(most) && top <= most + 0.02 * wide))
                fail_msg(
                    "%s, n %d k %d, plane %d, row %d of %d, unit %d: bound %.9g instead of %.9g, "
                    "slack %g",
                    kind_name[kind], p->n, p->k, (int)plane, r, rows, u, top, most, wide);
            assert_true(top <= (double)got->low[plane][SV_SCREEN_TOPS + r]);
        }
    for (int32_t r = 0; r < rows; r++)
        assert_true(got->top[plane][r * p->units + got->id[plane][r]] ==
                    got->low[plane][SV_SCREEN_TOPS + r]);
}

/* The kernels of all levels give the same bits. */
static void kernels_of(int32_t n, int32_t k, int32_t rows, enum kind kind, const uint16_t *w,
                       const float *x)
{
    struct planes p = {.n = n, .k = k, .units = (n + 15) / 16};
    struct bounded *got = sv_alloc(2 * sizeof *got);
    for (int i = 0; i < 2; i++) {
        p.unit_bytes[i] = sv_screen_unit_bytes((enum sv_screen_plane)i, k);
        p.data[i] = sv_alloc((size_t)p.units * p.unit_bytes[i]);
    }
    for (int32_t u = 0; u < p.units; u++) {
        uint8_t *const to[2] = {p.data[0] + (size_t)u * p.unit_bytes[0],
                                p.data[1] + (size_t)u * p.unit_bytes[1]};
        assert_true(sv_screen_pack_unit(to, w, n, k, u));
    }
    struct sv_gemm_call c = {.x = x, .ldx = k, .k = k, .m1 = rows};
    run_kernels(sv_gemm_kern_screen_avx512, &c, &p, &got[0]);
    kern_fn *others[] = {sv_test_kern_screen_tiles(SV_SCREEN_COARSE) ? sv_test_kern_screen_tiles
                                                                     : NULL,
#ifndef SV_NO_AMX
                         sv_cpu_has_amx_int8() ? sv_gemm_kern_screen_amx : NULL
#endif
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (others[i]) {
            run_kernels(others[i], &c, &p, &got[1]);
            assert_memory_equal(&got[0], &got[1], sizeof got[0]);
        }
    for (int plane = 0; plane < 2; plane++)
        check_bounds(&p, (enum sv_screen_plane)plane, &got[0], rows, w, x, kind);
    sv_free(p.data[0]);
    sv_free(p.data[1]);
    sv_free(got);
}

static void every_kernel_has_the_bounds(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{TEST_N, 512}, {77, 191}, {16, 128}, {33, 1000}};
    if (!able(SV_ISA_AVX512))
        return;
    uint16_t *w = sv_calloc((size_t)TEST_N * MOST_K, sizeof *w);
    float *x = sv_calloc((size_t)2 * ROWS * MOST_K, sizeof *x);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            fill(w, x, shapes[s][0], shapes[s][1], (enum kind)kind);
            for (int32_t rows = 1; rows <= ROWS; rows += rows < 9 ? 1 : rows == 9 ? 2 : 5)
                kernels_of(shapes[s][0], shapes[s][1], rows, (enum kind)kind, w, x);
        }
    sv_free(w);
    sv_free(x);
}

/* ----------------------------------------------------------- what is left, and when nobody asks */

struct one {
    struct sv_cpu cpu;
    uint16_t *w;
    float *x;
    struct sv_weight head;
    struct sv_screen *v;
};

static bool one_open(struct one *o, int32_t n, int32_t k, enum kind kind)
{
    if (!able(sv_cpu_best_isa()))
        return false;
    o->w = sv_calloc((size_t)n * (size_t)k, sizeof *o->w);
    o->x = sv_calloc((size_t)2 * ROWS * (size_t)k, sizeof *o->x);
    sieving_open(&o->cpu, sv_cpu_best_isa(), 2);
    fill(o->w, o->x, n, k, kind);
    o->head = upload(&o->cpu, o->w, n, k);
    o->v = sv_cpu_screen_of(&o->head);
    return true;
}

static void one_close(struct one *o)
{
    release(&o->cpu, &o->head);
    device_close(&o->cpu);
    sv_free(o->w);
    sv_free(o->x);
}

/* A unit alone is left where its logit is well above the others, few where nothing stands out,
 * those of all rows that tie, and all where bounds tell nothing. */
static void sifts(void **state)
{
    (void)state;
    struct one o;
    const int32_t n = MOST_N, k = 512;
    int32_t out;
    if (!one_open(&o, n, k, NORMAL))
        return;
    argmax(&o.cpu, &o.head, o.x, 1, &out);
    assert_in_range(o.v->n_left, 1, 20);
    release(&o.cpu, &o.head);
    for (int32_t i = 0; i < k; i++)
        for (int32_t r = 0; r < 3; r++) /* the last of them ties with the first */
            o.w[(size_t)(1234 - r % 2 * 800) * (size_t)k + (size_t)i] =
                sv_f32_to_bf16(0.02f * o.x[i]);
    o.head = upload(&o.cpu, o.w, n, k);
    o.v = sv_cpu_screen_of(&o.head);
    argmax(&o.cpu, &o.head, o.x, 1, &out);
    assert_int_equal(out, 434);
    assert_int_equal(o.v->n_left, 2);
    assert_int_equal(o.v->left[0], 434 / 16);
    assert_int_equal(o.v->left[1], 1234 / 16);
    one_close(&o);
}

/* Useless bounds are not computed again at once, with a backoff that doubles; where they help they
 * are always asked. */
static void rests_after_asking_in_vain(void **state)
{
    (void)state;
    struct one o;
    int32_t out, asked = 0, first = 0;
    if (!one_open(&o, 600, 256, NEAR))
        return;
    for (int i = 0; i < 400; i++) {
        o.v->n_left = -1;
        const int32_t rest = o.v->rest;
        argmax(&o.cpu, &o.head, o.x, 1, &out);
        asked += rest == 0;
        first += i < 4 && rest == 0;
        assert_int_equal(o.v->n_left, o.v->n_units); /* near ties: all are left */
    }
    assert_int_equal(first, 2);
    assert_in_range(asked, 6, 12);
    one_close(&o);
    if (!one_open(&o, MOST_N, 512, NORMAL))
        return;
    for (int i = 0; i < 20; i++) {
        argmax(&o.cpu, &o.head, o.x, 1, &out);
        assert_int_equal(o.v->rest, 0);
        assert_in_range(o.v->n_left, 1, 20);
    }
    one_close(&o);
}

/* Input that is not finite is not bounded, and weights that are not get no screen. */
static void numbers_without_bounds(void **state)
{
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN, 3e38f, 2e12f, 1e-35f, 0};
    static const uint16_t odd_weight[] = {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7e00, 0xd500};
    struct one o;
    const int32_t n = 500, k = 256;
    if (!one_open(&o, n, k, NORMAL))
        return;
    struct sv_weight plain = o.head;
    struct sv_cpu_weight without = *(struct sv_cpu_weight *)o.head.priv;
    without.screen = NULL;
    plain.priv = &without;
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        int32_t out[2][3] = {{0}};
        for (int32_t j = 0; j < k; j++)
            o.x[k + j] = i >= 5 || j == 17 ? odd[i] : 0.5f;
        o.v->rest = 0;
        argmax(&o.cpu, &o.head, o.x, 3, out[0]);
        assert_int_equal(o.v->n_left, o.v->n_units);
        argmax(&o.cpu, &plain, o.x, 3, out[1]);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
    }
    uint32_t nan = 0x7fffffff; /* would be minus zero if it were rounded as numbers are */
    memcpy(o.x + k + 17, &nan, 4);
    o.v->rest = 0;
    int32_t out[3];
    argmax(&o.cpu, &o.head, o.x, 3, out);
    assert_int_equal(o.v->n_left, o.v->n_units);
    release(&o.cpu, &o.head);
    for (size_t i = 0; i < sizeof odd_weight / sizeof odd_weight[0]; i++) {
        const uint16_t was = o.w[5 * k + 3];
        o.w[5 * k + 3] = odd_weight[i];
        o.head = upload(&o.cpu, o.w, n, k);
        assert_null(sv_cpu_screen_of(&o.head));
        release(&o.cpu, &o.head);
        o.w[5 * k + 3] = was;
    }
    o.head = upload(&o.cpu, o.w, n, k);
    assert_non_null(sv_cpu_screen_of(&o.head));
    one_close(&o);
}

/* ---------------------------------------------------------------- when there is one */

static void asked_for_by_option_or_size(void **state)
{
    (void)state;
    static const struct {
        enum sv_toggle screen;
        int64_t weight_bytes;
        bool head, yes;
    } cases[] = {{SV_TOGGLE_AUTO, 0, true, false},
                 {SV_TOGGLE_AUTO, 20 << 20, true, false},
                 {SV_TOGGLE_AUTO, (int64_t)1 << 30, true, true},
                 {SV_TOGGLE_AUTO, (int64_t)1 << 30, false, false},
                 {SV_TOGGLE_ON, 0, true, true},
                 {SV_TOGGLE_OFF, (int64_t)1 << 30, true, false}};
    static uint16_t w[64 * 256];
    static float x[2 * ROWS * 256];
    fill(w, x, 64, 256, NORMAL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int compute = SV_F32; compute <= SV_BF16; compute++)
            for (enum sv_isa isa = SV_ISA_PLAIN; isa <= SV_ISA_AMX; isa++) {
                const struct sv_dev_opts opts = {
                    .backend = "cpu",
                    .n_threads = 1,
                    .tuning = {.isa = isa, .screen_head = cases[i].screen},
                    .compute = (enum sv_dtype)compute,
                    .weight_bytes = cases[i].weight_bytes};
                const struct sv_weight host = {.data = w,
                                               .fmt.elem = SV_BF16,
                                               .rows = 64,
                                               .cols = 256,
                                               .role =
                                                   cases[i].head ? SV_ROLE_HEAD : SV_ROLE_EMBED};
                struct sv_dev *dev;
                struct sv_weight out;
                struct sv_err err;
                if (!sv_cpu_has_isa(isa))
                    continue;
                assert_int_equal(sv_dev_open(&dev, &opts, &err), SV_OK);
                assert_int_equal(sv_dev_upload_weight(dev, &host, &out, &err), SV_OK);
                const bool can =
                    compute == SV_BF16 && isa >= SV_ISA_AVX512 && sv_cpu_has_avx512_vnni();
                const bool screen = sv_cpu_screen_of(&out);
                assert_true(screen == (can && cases[i].yes));
                if (cases[i].head)
                    assert_true(!!strstr(sv_dev_describe(dev), "screen") == screen);
                assert_true((sv_dev_held(dev, SV_MEM_SCREEN) > 0) == screen);
                sv_dev_free_weight(dev, &out);
                assert_int_equal(sv_dev_held(dev, SV_MEM_SCREEN), 0);
                sv_dev_close(dev);
            }
}

static void survives_no_memory(void **state)
{
    (void)state;
    struct one o;
    if (!one_open(&o, 64, 256, NORMAL))
        return;
    release(&o.cpu, &o.head);
    const int64_t live = sv_alloc_live();
    int rc = SV_ENOMEM;
    for (int nth = 1; rc != SV_OK; nth++) {
        const struct sv_weight host = {
            .data = o.w, .fmt.elem = SV_BF16, .rows = 64, .cols = 256, .role = SV_ROLE_HEAD};
        struct sv_err err;
        assert_true(nth < 10);
        sv_fault_arm(nth);
        rc = sv_cpu_upload_weight((struct sv_dev *)(void *)&o.cpu, &host, &o.head, &err);
        sv_fault_arm(0);
        assert_true(rc == SV_OK || rc == SV_ENOMEM);
        if (rc)
            assert_int_equal(sv_alloc_live(), live);
    }
    assert_non_null(sv_cpu_screen_of(&o.head));
    one_close(&o);
}

SV_TEST_MAIN(cmocka_unit_test(same_ids_and_true_bounds),
             cmocka_unit_test(every_kernel_has_the_bounds), cmocka_unit_test(sifts),
             cmocka_unit_test(rests_after_asking_in_vain), cmocka_unit_test(numbers_without_bounds),
             cmocka_unit_test(asked_for_by_option_or_size), cmocka_unit_test(survives_no_memory))
