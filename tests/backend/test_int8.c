/*
 * test_int8.c - products with activations in int8: every level gives the bits of plain C, a row has
 * the bits that it has alone, and values are those of docs/formats.md.
 *
 * The definition is computed once more here from codes worked out with divisions, in double, with
 * the f32 value of each weight (test_quant.c): sums differ from it by roundings of f32 only.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "testing.h"

#include "backend/coded.h"
#include "backend/cpu_device.h"
#include "backend/int8_tiles.h"

#include <math.h>

enum { MOST_ROWS = 72, MOST_K = 1024 }; /* rows enough for tiles of every format */
static const struct sv_dev_limits limits = {
    .max_rows = MOST_ROWS, .max_logit_rows = MOST_ROWS, .max_k = MOST_K};

static struct sv_dev *dev_of(struct sv_cpu *cpu)
{
    return (struct sv_dev *)(void *)cpu;
}

static void int8_open(struct sv_cpu *cpu, enum sv_isa isa, int n_threads)
{
    device_open(cpu, isa, SV_BF16, n_threads, limits);
    cpu->int8 = true;
}

static void upload(struct sv_cpu *cpu, const struct sv_quant *q, struct sv_weight *w)
{
    struct sv_err err;
    const struct sv_weight host = {
        .data = q->data, .fmt.elem = SV_U8, .rows = q->rows, .cols = q->cols, .quant = q};
    assert_int_equal(sv_cpu_upload_weight(dev_of(cpu), &host, w, &err), SV_OK);
}

static void multiply(struct sv_cpu *cpu, const float *x, int32_t rows,
                     const struct sv_gemm_part *parts, int32_t n_parts, float *y)
{
    const int32_t k = parts->w.cols;
    int32_t n = 0;
    for (int32_t i = 0; i < n_parts; i++)
        n += parts[i].w.rows;
    const struct sv_p_gemm p = {.n_rows = rows,
                                .k = k,
                                .n_parts = n_parts,
                                .x = x,
                                .ldx = k,
                                .parts = parts,
                                .y = y,
                                .ldy = n};
    memset(y, 0x55, (size_t)rows * (size_t)n * sizeof *y);
    sv_alloc_guard(true);
    sv_cpu_gemm(dev_of(cpu), &p);
    sv_alloc_guard(false);
}

/* The same with tiles emulated, in two spans; false: this machine or compiler cannot. */
static bool multiply_on_tiles(struct sv_cpu *cpu, const float *x, int32_t rows,
                              const struct sv_gemm_part *part, float *y)
{
    const int32_t k = part->w.cols, n = part->w.rows, middle = n / 32 * 16;
    const struct sv_gemm_kern *kern = sv_test_kern_int8_tiles();
    if (!kern || cpu->isa != SV_ISA_AVX512)
        return false;
    struct sv_gemm_call c = {
        .cpu = cpu, .x = x, .ldx = k, .y = y, .ldy = n, .k = k, .n_parts = 1, .m1 = rows};
    uint8_t *xp = sv_alloc(sv_gemm_packed_bytes(rows, k));
    memset(y, 0x55, (size_t)rows * (size_t)n * sizeof *y);
    memset(xp, 0x55, sv_gemm_packed_bytes(rows, k));
    sv_gemm_set_item(&c, 0, part, 0, 0);
    for (int i = 0; i < 2; i++)
        kern->pack(&c, xp, i, 2);
    for (int i = 0; i < 2; i++)
        kern->run(&(struct sv_gemm_span){.call = &c,
                                         .thread = sv_gemm_thread(cpu, 0),
                                         .item = &c.item[0],
                                         .xp = xp,
                                         .n0 = i ? middle : 0,
                                         .n1 = i ? n : middle});
    kern->leave();
    sv_free(xp);
    return true;
}

/* Rows of many sizes, some groups zero or next to nothing. */
static float *random_rows(int32_t n, int32_t k, uint64_t seed)
{
    struct sv_rng rng = {seed};
    float *x = sv_alloc((size_t)n * (size_t)k * sizeof *x);
    for (int32_t r = 0; r < n; r++)
        for (int32_t i = 0; i < k; i++) {
            const int32_t g = r * 5 + i / 128;
            const float v = sv_rng_normal(&rng) * ldexpf(1, g % 9 - 4);
            x[r * k + i] = g % 7 == 3 ? 0 : g % 11 == 5 ? v * 0x1p-110f : v;
        }
    return x;
}

/* What products take for x. */
static void rounded(const float *x, int32_t k, double *out)
{
    for (int32_t g = 0; g < k; g += 128) {
        const int32_t end = k - g < 128 ? k : g + 128;
        float top = 0;
        for (int32_t i = g; i < end; i++)
            top = fmaxf(top, fabsf(x[i]));
        for (int32_t i = g; i < end; i++)
            out[i] = top < 0x1p-100f
                         ? 0
                         : (double)(top / 127.0f) * nearbyint((double)(x[i] * (127.0f / top)));
    }
}

static void is_the_definition(const char *name, const struct sv_quant *q, const float *x,
                              int32_t rows, const float *y)
{
    double *in = sv_alloc((size_t)q->cols * sizeof *in);
    float *w = sv_alloc((size_t)q->cols * sizeof *w);
    for (int32_t r = 0; r < rows; r++) {
        rounded(x + (int64_t)r * q->cols, q->cols, in);
        for (int32_t n = 0; n < q->rows; n++) {
            double sum = 0, size = 0, most = 0;
            sv_quant_rows(q, n, 1, w);
            for (int32_t i = 0; i < q->cols; i++) {
                sum += in[i] * (double)w[i];
                size += fabs(in[i] * (double)w[i]);
                most = fmax(most, fabs((double)w[i]));
            }
            for (int32_t i = 0; i < q->cols; i++) /* a code in the middle is subtracted */
                size += fabs(in[i]) * most;
            const double got = (double)y[(int64_t)r * q->rows + n];
            if (!(fabs(got - sum) <= size * 0x1p-20))
                fail_msg("%s: row %d, output %d is %.9g, not %.9g", name, r, n, got, sum);
        }
    }
    sv_free(in);
    sv_free(w);
}

static const enum sv_isa levels[] = {SV_ISA_PLAIN, SV_ISA_AVX2, SV_ISA_AVX512, SV_ISA_AMX};

static const char *const level_names[] = {"plain", "avx2", "avx512", "amx"};

static void are_equal(const char *form, const char *level, int32_t n, int32_t k, int32_t rows,
                      const float *got, const float *want)
{
    for (int32_t at = 0; at < rows * n; at++)
        if (memcmp(&got[at], &want[at], 4) != 0)
            fail_msg("%s, %s, n %d k %d, %d rows: row %d, output %d is %.9g, not %.9g", form, level,
                     n, k, rows, at / n, at % n, (double)got[at], (double)want[at]);
}

static void one_form(const struct form *f, int32_t n, int32_t k)
{
    static const int32_t counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 40, 72};
    struct matrix m;
    float *x = random_rows(MOST_ROWS, k, (uint64_t)k);
    float *want = NULL, *got = sv_alloc((size_t)MOST_ROWS * (size_t)n * sizeof *got);
    matrix_open(&m, f, n, k, (uint64_t)(n + f->code));
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        struct sv_cpu cpu;
        struct sv_gemm_part part = {.bias.data = NULL};
        if (!sv_cpu_has_isa(levels[l]))
            continue;
        int8_open(&cpu, levels[l], 1 + (int)l % 3);
        upload(&cpu, &m.q, &part.w);
        assert_true(sv_cpu_takes_int8(&part.w) && cpu.rounds);
        assert_true(sv_cpu_weight_bytes(dev_of(&cpu), &part.w, 1) <=
                    (sv_quant_bytes(&m.q) + 6 * (int64_t)k) * (n + 15) / n * 107 / 100);
        if (!want) {
            want = sv_alloc((size_t)MOST_ROWS * (size_t)n * sizeof *want);
            for (int32_t r = 0; r < MOST_ROWS; r++) /* each alone */
                multiply(&cpu, x + (int64_t)r * k, 1, &part, 1, want + (int64_t)r * n);
            is_the_definition(f->name, &m.q, x, 6, want);
        }
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            const int32_t rows = counts[i], from = MOST_ROWS - rows;
            int32_t best[MOST_ROWS];
            const float *some = x + (int64_t)from * k;
            if (multiply_on_tiles(&cpu, some, rows, &part, got))
                are_equal(f->name, "tiles", n, k, rows, got, want + from * n);
            multiply(&cpu, some, rows, &part, 1, got);
            are_equal(f->name, level_names[l], n, k, rows, got, want + from * n);
            const struct sv_p_head_argmax p = {
                .n_rows = rows, .k = k, .x = x + (int64_t)from * k, .w = part.w, .out = best};
            sv_cpu_head_argmax(dev_of(&cpu), &p);
            for (int32_t r = 0; r < rows; r++)
                for (int32_t j = 0; j < n; j++) {
                    const float v = got[r * n + j], top = got[r * n + best[r]];
                    assert_true(j < best[r] ? v < top : v <= top);
                }
        }
        for (int32_t r = 0; r < n; r += 5) { /* of a tied head */
            float row[2][MOST_K];
            sv_cpu_weight_row(&cpu, &part.w, r, row[0], 1);
            sv_quant_rows(&m.q, r, 1, row[1]);
            assert_memory_equal(row[0], row[1], (size_t)k * sizeof row[0][0]);
        }
        sv_cpu_free_weight(dev_of(&cpu), &part.w);
        device_close(&cpu);
    }
    matrix_close(&m);
    sv_free(x);
    sv_free(want);
    sv_free(got);
}

static bool takes_int8(const struct form *f)
{
    return f->code != SV_CODE_F8 && f->code != SV_CODE_MXFP4 && f->code != SV_CODE_NVFP4 &&
           f->code != SV_CODE_IQ4_NL && f->code != SV_CODE_GG_MXFP4 && !f->permuted &&
           !(f->zeros && f->scale == SV_F32);
}

static void every_level_has_the_same_bits(void **state)
{
    (void)state;
    const int64_t live = sv_alloc_live();
    int n_forms = 0;
    for (int f = 0; f < N_FORMS; f++) {
        if (!takes_int8(&forms[f]))
            continue;
        n_forms++;
        one_form(&forms[f], 56, 1024);
        one_form(&forms[f], 24, sv_quant_block(forms[f].code) < 256 ? 384 : 256);
        if (forms[f].block_cols > 32)
            continue;
        one_form(&forms[f], 40, sv_quant_block(forms[f].code) < 256 ? 352 : 768);
        if (sv_quant_block(forms[f].code) < 256)
            one_form(&forms[f], 24, 544);
    }
    assert_int_equal(n_forms, 16);
    assert_int_equal(sv_alloc_live(), live);
}

/* Sums of 16 bits at their limits: all weights of a block and all input have the largest codes. */
static void largest_codes(void **state)
{
    enum { ROWS = 6, N = 16, K = 512 };
    static const struct {
        int form, from, to; /* bytes of a block that are codes */
    } all[] = {{1, 2, 34}, {2, 16, 144}, {3, 16, 176}, {4, 0, 192}};
    static const uint8_t fills[] = {0xff, 0x80, 0x7f, 0};
    (void)state;
    float x[ROWS * K], y[ROWS * N], want[ROWS * N];
    for (int32_t i = 0; i < ROWS * K; i++) /* all one sign, in turns, and four by four */
        x[i] = i / K == 0 ? 1.0f : i / K == 1 ? -1.0f : (i >> (i / K - 2)) % 2 ? 3.0f : -3.0f;
    for (size_t f = 0; f < sizeof all / sizeof all[0] * sizeof fills; f++) {
        struct matrix m;
        const struct form *form = &forms[all[f / sizeof fills].form];
        matrix_open(&m, form, N, K, f);
        const int32_t size = sv_quant_block_bytes(form->code);
        for (uint8_t *p = m.data.p; p < m.data.p + sv_quant_bytes(&m.q); p += size)
            memset(p + all[f / sizeof fills].from, fills[f % sizeof fills],
                   (size_t)(all[f / sizeof fills].to - all[f / sizeof fills].from));
        for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
            struct sv_cpu cpu;
            struct sv_gemm_part part = {.bias.data = NULL};
            if (!sv_cpu_has_isa(levels[l]))
                continue;
            int8_open(&cpu, levels[l], 1);
            upload(&cpu, &m.q, &part.w);
            for (int rows = 1; rows <= ROWS; rows++) {
                multiply(&cpu, x, rows, &part, 1, l ? y : want);
                are_equal(form->name, level_names[l], N, K, l ? rows : 0, y, want);
            }
            if (!l)
                is_the_definition(form->name, &m.q, x, ROWS, want);
            sv_cpu_free_weight(dev_of(&cpu), &part.w);
            device_close(&cpu);
        }
        matrix_close(&m);
    }
}

/* A product of one form of input beside those of the other, in one call. */
static void parts_in_other_formats_stay_exact(void **state)
{
    enum { ROWS = 72, N = 40, K = 256 };
    (void)state;
    const int order[] = {2, 7, 4, 1}; /* q4_k, f8 blocks, q6_k, q8_0 */
    float *x = random_rows(ROWS, K, 3);
    float *all = sv_alloc(ROWS * 4 * N * sizeof *all), *one = sv_alloc(ROWS * N * sizeof *one);
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        struct sv_cpu cpu, exact;
        struct matrix m[4];
        struct sv_gemm_part part[4], alone = {.bias.data = NULL};
        if (!sv_cpu_has_isa(levels[l]))
            continue;
        int8_open(&cpu, levels[l], 2);
        device_open(&exact, levels[l], SV_BF16, 2, limits);
        memset(part, 0, sizeof part);
        for (int i = 0; i < 4; i++) {
            matrix_open(&m[i], &forms[order[i]], N, K, (uint64_t)i);
            upload(&cpu, &m[i].q, &part[i].w);
            assert_int_equal(sv_cpu_takes_int8(&part[i].w), i != 1);
        }
        multiply(&cpu, x, ROWS, part, 4, all);
        for (int i = 0; i < 4; i++) {
            multiply(&cpu, x, ROWS, &part[i], 1, one);
            for (int r = 0; r < ROWS; r++)
                assert_memory_equal(all + (r * 4 + i) * N, one + r * N, N * sizeof *one);
        }
        upload(&exact, &m[1].q, &alone.w);
        multiply(&exact, x, ROWS, &alone, 1, one);
        for (int r = 0; r < ROWS; r++)
            assert_memory_equal(all + (r * 4 + 1) * N, one + r * N, N * sizeof *one);
        sv_cpu_free_weight(dev_of(&exact), &alone.w);
        for (int i = 0; i < 4; i++) {
            sv_cpu_free_weight(dev_of(&cpu), &part[i].w);
            matrix_close(&m[i]);
        }
        device_close(&cpu);
        device_close(&exact);
    }
    sv_free(x);
    sv_free(all);
    sv_free(one);
}

static void numbers_that_are_none(void **state)
{
    enum { ROWS = 20, N = 24, K = 256 };
    (void)state;
    struct matrix m;
    float y[ROWS * N], calm[ROWS * N];
    matrix_open(&m, &forms[1], N, K, 8);
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        struct sv_cpu cpu;
        struct sv_gemm_part part = {.bias.data = NULL};
        if (!sv_cpu_has_isa(levels[l]))
            continue;
        float *x = random_rows(ROWS, K, 9);
        int8_open(&cpu, levels[l], 2);
        upload(&cpu, &m.q, &part.w);
        multiply(&cpu, x, ROWS, &part, 1, calm);
        x[3 * K + 200] = INFINITY;
        x[4 * K + 17] = -NAN;
        x[18 * K] = -INFINITY;
        memset(x + 5 * K, 0, K * sizeof *x);
        multiply(&cpu, x, ROWS, &part, 1, y);
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < N; j++) {
                const float v = y[r * N + j];
                if (r == 3 || r == 4 || r == 18)
                    assert_true(isnan(v));
                else
                    assert_true(r == 5 ? v == 0 : !memcmp(&v, &calm[r * N + j], sizeof v));
            }
        sv_free(x);
        sv_cpu_free_weight(dev_of(&cpu), &part.w);
        device_close(&cpu);
    }
    matrix_close(&m);
}

SV_TEST_MAIN(cmocka_unit_test(every_level_has_the_same_bits), cmocka_unit_test(largest_codes),
             cmocka_unit_test(parts_in_other_formats_stay_exact),
             cmocka_unit_test(numbers_that_are_none))
