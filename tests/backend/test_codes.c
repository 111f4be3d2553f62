/*
 * test_codes.c - quantized weights that the CPU keeps as codes: products, head and rows against
 * those of the matrix of their values, bit for bit, in every format and on every level.
 *
 * The matrix has the f32 value of each weight (test_quant.c), or in bf16 mode this value rounded to
 * bf16. AMX cannot run on most machines: what it expands to is tested without it.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "testing.h"

#include "backend/coded.h"
#include "backend/cpu_device.h"
#include "backend/fenced.h"
#include "backend/cpu/codes.h"
#include "backend/cpu/vec.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- parts */

/* Some units from a random one on, at least one; of all but the first `from`. */
static struct sv_slice random_units(struct sv_rng *rng, int32_t from, int32_t size, int32_t each)
{
    const int32_t units = (size - from) / each;
    const int32_t first = (int32_t)sv_rng_below(rng, (uint32_t)units),
                  n = 1 + (int32_t)sv_rng_below(rng, (uint32_t)(units - first));
    return (struct sv_slice){from + first * each, n * each};
}

static void same_part(const struct sv_quant *q, const struct sv_slice *rows, int32_t n_rows,
                      struct sv_slice cols, int32_t *n_copied)
{
    struct sv_quant part;
    const int64_t n_bytes = sv_quant_part(&part, q, rows, n_rows, cols, NULL);
    assert_true(n_bytes >= 0);
    *n_copied += n_bytes > 0;
    char *copy = sv_alloc((size_t)n_bytes + 1);
    assert_int_equal(sv_quant_part(&part, q, rows, n_rows, cols, copy), n_bytes);
    float *whole = sv_alloc((size_t)q->cols * sizeof *whole),
          *own = sv_alloc((size_t)cols.n * sizeof *own);
    assert_int_equal(part.cols, cols.n);
    int32_t at = 0;
    for (int32_t i = 0; i < n_rows; i++)
        for (int32_t r = rows[i].first; r < rows[i].first + rows[i].n; r++) {
            sv_quant_rows(q, r, 1, whole);
            sv_quant_rows(&part, at++, 1, own);
            assert_memory_equal(own, whole + cols.first, (size_t)cols.n * sizeof *own);
        }
    assert_int_equal(part.rows, at);
    sv_free(copy);
    sv_free(whole);
    sv_free(own);
}

/* Rows and columns at units, also two ranges of rows, as a matrix of its own. */
static void parts_have_the_values_of_the_whole(void **state)
{
    enum { ROWS = 384, COLS = 512 };
    (void)state;
    struct sv_rng rng = {11};
    for (int i = 0; i < N_FORMS; i++) {
        struct matrix m;
        struct sv_quant part;
        int32_t each, cols, n_copied = 0;
        matrix_open(&m, &forms[i], ROWS, COLS, (uint64_t)i);
        sv_quant_units(&m.q, &each, &cols);
        assert_int_equal(cols == 0, forms[i].permuted);
        for (int k = 0; k < 12; k++) {
            const struct sv_slice all = {0, COLS},
                                  some = cols ? random_units(&rng, 0, COLS, cols) : all;
            struct sv_slice rows[2] = {random_units(&rng, 0, ROWS / 3 * 2, each)};
            same_part(&m.q, rows, 1, some, &n_copied);
            rows[1] = random_units(&rng, rows[0].first + rows[0].n, ROWS, each);
            same_part(&m.q, rows, 2, k % 2 ? all : some, &n_copied);
        }
        assert_true(n_copied > 6);
        const struct sv_slice off = {each - 1, each}, here = {0, each},
                              off_cols = {cols - 1, cols ? cols : 1};
        if (each > 1)
            assert_int_equal(sv_quant_part(&part, &m.q, &off, 1, (struct sv_slice){0, COLS}, NULL),
                             -1);
        if (cols > 1)
            assert_int_equal(sv_quant_part(&part, &m.q, &here, 1, off_cols, NULL), -1);
        /* whole lines are not copied */
        if (m.q.code <= SV_CODE_INT8 || sv_quant_block(m.q.code))
            assert_int_equal(sv_quant_part(&part, &m.q, &here, 1, (struct sv_slice){0, COLS}, NULL),
                             0);
        matrix_close(&m);
    }
}

/* ---------------------------------------------------------------- products */

enum { MOST_ROWS = 129, MOST_K = 1024 };
static const struct sv_dev_limits limits = {
    .max_rows = MOST_ROWS, .max_logit_rows = MOST_ROWS, .max_k = MOST_K};

static struct sv_dev *dev_of(struct sv_cpu *cpu)
{
    return (struct sv_dev *)(void *)cpu;
}

static void multiply(struct sv_cpu *cpu, const float *x, int32_t rows, const struct sv_weight *w,
                     float *y)
{
    const struct sv_gemm_part part = {.w = *w};
    const struct sv_p_gemm p = {.n_rows = rows,
                                .k = w->cols,
                                .n_parts = 1,
                                .x = x,
                                .ldx = w->cols,
                                .parts = &part,
                                .y = y,
                                .ldy = w->rows};
    memset(y, 0x55, (size_t)rows * (size_t)w->rows * sizeof *y);
    sv_alloc_guard(true);
    sv_cpu_gemm(dev_of(cpu), &p);
    sv_alloc_guard(false);
}

static void argmax(struct sv_cpu *cpu, const float *x, int32_t rows, const struct sv_weight *w,
                   int32_t *out)
{
    const struct sv_p_head_argmax p = {.n_rows = rows, .k = w->cols, .x = x, .w = *w, .out = out};
    sv_cpu_head_argmax(dev_of(cpu), &p);
}

static void same_bits(const struct form *f, enum sv_isa isa, enum sv_dtype compute, int32_t n,
                      int32_t k, int n_threads)
{
    static const int32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 33, 129};
    struct sv_cpu cpu;
    struct matrix m;
    struct sv_weight codes, plain;
    struct sv_err err;
    struct sv_rng rng = {(uint64_t)k};
    const int64_t live = sv_alloc_live();
    const size_t n_all = (size_t)n * (size_t)k;
    int32_t best[2][MOST_ROWS];
    device_open(&cpu, isa, compute, n_threads, limits);
    matrix_open(&m, f, n, k, (uint64_t)(n + f->code));
    float *values = sv_alloc(n_all * sizeof *values), *row = sv_alloc((size_t)k * sizeof *row);
    float *x = sv_alloc((size_t)MOST_ROWS * (size_t)k * sizeof *x);
    float *want = sv_alloc((size_t)MOST_ROWS * (size_t)n * sizeof *want);
    float *got = sv_alloc((size_t)MOST_ROWS * (size_t)n * sizeof *got);
    for (size_t i = 0; i < (size_t)MOST_ROWS * (size_t)k; i++)
        x[i] = sv_rng_normal(&rng);
    sv_quant_expand(&m.q, 0, n, compute, values, row);
    const struct sv_weight host = {
        .data = m.q.data, .fmt.elem = SV_U8, .rows = n, .cols = k, .quant = &m.q};
    const struct sv_weight expanded = {.data = values, .fmt.elem = compute, .rows = n, .cols = k};
    assert_int_equal(sv_cpu_upload_weight(dev_of(&cpu), &host, &codes, &err), SV_OK);
    assert_int_equal(sv_cpu_upload_weight(dev_of(&cpu), &expanded, &plain, &err), SV_OK);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const int32_t rows = counts[i];
        multiply(&cpu, x, rows, &plain, want);
        multiply(&cpu, x, rows, &codes, got);
        if (memcmp(want, got, (size_t)rows * (size_t)n * sizeof *want) != 0)
            for (size_t at = 0; at < (size_t)rows * (size_t)n; at++)
                if (memcmp(&want[at], &got[at], 4) != 0)
                    fail_msg("%s, level %d, %s, n %d k %d, %d rows, %d threads: row %d, output %d "
                             "is %.9g, not %.9g",
                             f->name, (int)isa, sv_dtype_name(compute), n, k, rows, n_threads,
                             (int)(at / (size_t)n), (int)(at % (size_t)n), (double)got[at],
                             (double)want[at]);
        argmax(&cpu, x, rows, &plain, best[0]);
        argmax(&cpu, x, rows, &codes, best[1]);
        assert_memory_equal(best[0], best[1], (size_t)rows * sizeof best[0][0]);
    }
    for (int32_t r = 0; sv_cpu_codes_of(&codes) && r < n; r += 5) {
        sv_cpu_weight_row(&cpu, &codes, r, got, 0.5f);
        sv_quant_rows(&m.q, r, 1, row);
        for (int32_t i = 0; i < k; i++)
            assert_true(got[i] == row[i] * 0.5f);
    }
    sv_cpu_free_weight(dev_of(&cpu), &codes);
    sv_cpu_free_weight(dev_of(&cpu), &plain);
    sv_free(values);
    sv_free(row);
    sv_free(x);
    sv_free(want);
    sv_free(got);
    matrix_close(&m);
    device_close(&cpu);
    assert_int_equal(sv_alloc_live(), live);
}

/* Every format in one mode of one level. */
static void all_forms(enum sv_isa isa, enum sv_dtype compute)
{
    if (!sv_cpu_has_isa(isa)) {
        fprintf(stderr, "NOT TESTED: products of codes at level %d\n", (int)isa);
        return;
    }
    const bool packed = isa >= SV_ISA_AVX512 && compute == SV_BF16;
    for (int f = 0; f < N_FORMS; f++) {
        same_bits(&forms[f], isa, compute, packed ? 88 : 24, packed ? 1024 : 256, 2);
        if (packed)
            same_bits(&forms[f], isa, compute, 40, sv_quant_block(forms[f].code) < 256 ? 384 : 256,
                      1);
        if (forms[f].odd)
            same_bits(&forms[f], isa, compute, 21, 173, 3);
    }
}

static void products_in_plain_c(void **state)
{
    (void)state;
    all_forms(SV_ISA_PLAIN, SV_F32);
    all_forms(SV_ISA_PLAIN, SV_BF16);
}

static void products_with_avx2(void **state)
{
    (void)state;
    all_forms(SV_ISA_AVX2, SV_F32);
    all_forms(SV_ISA_AVX2, SV_BF16);
}

static void products_with_avx512(void **state)
{
    (void)state;
    all_forms(SV_ISA_AVX512, SV_F32);
}

static void products_with_avx512_in_bf16(void **state)
{
    (void)state;
    all_forms(SV_ISA_AVX512, SV_BF16);
}

static void products_with_amx(void **state)
{
    (void)state;
    all_forms(SV_ISA_AMX, SV_BF16);
}

/* ---------------------------------------------------------------- packing */

static void packed_codes_expand_to_the_values(void **state)
{
    (void)state;
    if (!sv_cpu_has_isa(SV_ISA_AVX512) || !sv_cpu_has_avx512_bf16()) {
        fprintf(stderr, "NOT TESTED: this machine lacks AVX512-BF16\n");
        return;
    }
    const int32_t n = 24, k = 768;
    for (int f = 0; f < N_FORMS; f++)
        for (int by_pairs = 0; by_pairs < 2; by_pairs++) {
            struct matrix m;
            struct fenced packed, out;
            uint16_t want[768];
            float row[768];
            matrix_open(&m, &forms[f], n, k, 5);
            struct sv_codes *c = sv_calloc(1, sizeof *c);
            c->q = m.q;
            const bool can = sv_codes_plan(c, by_pairs ? SV_WCOMP_PAIRS : SV_WCOMP_ROWS);
            assert_true(can ==
                        (!forms[f].permuted && !(forms[f].zeros && forms[f].scale == SV_F32)));
            for (int32_t u = 0; can && u < 2; u++) {
                uint8_t *to = fenced_open(&packed, c->unit_bytes);
                uint16_t *w = fenced_open(&out, (size_t)16 * (size_t)k * sizeof *w);
                assert_int_equal((uintptr_t)to % SV_ALIGN, 0);
                sv_codes_pack(c, u, to);
                sv_codes_expand_avx512(c, to, w, (size_t)k * 2);
                for (int32_t r = 0; r < 16 && u * 16 + r < n; r++) {
                    sv_quant_expand(&m.q, u * 16 + r, 1, SV_BF16, want, row);
                    for (int32_t i = 0; i < k; i++) {
                        const uint16_t got =
                            by_pairs ? w[i / 2 * 32 + r * 2 + i % 2] : w[r * k + i];
                        const bool small = (want[i] & 0x7f80) == 0; /* zero, or taken for it */
                        if (small ? (got & 0x7fff) != 0 && got != want[i] : got != want[i])
                            fail_msg("%s: row %d, column %d is %04x, not %04x", forms[f].name,
                                     u * 16 + r, i, got, want[i]);
                    }
                }
                fenced_close(&packed);
                fenced_close(&out);
            }
            sv_free(c);
            matrix_close(&m);
        }
}

/* ---------------------------------------------------------------- values */

static void random_bytes(const struct fenced *to, struct sv_rng *rng)
{
    const uint8_t *end = to->base + to->mapped - (to->mapped ? sysconf(_SC_PAGESIZE) : 0);
    for (uint8_t *p = to->p; p < end; p++)
        *p = (uint8_t)(sv_rng_next(rng) >> 23);
}

/* Any bytes as codes and scales: infinities, NaN, denormal and huge numbers. */
static void avx2_gives_the_values_of_any_bytes(void **state)
{
    enum { ROWS = 64, COLS = 256 };
    static const float factors[] = {0.0137f, 1e30f, 0x1p-130f, 0, INFINITY};
    static float values[ROWS * COLS];
    static uint16_t got[ROWS * COLS], want[ROWS * COLS];
    (void)state;
    if (!sv_cpu_has_isa(SV_ISA_AVX2)) {
        fprintf(stderr, "NOT TESTED: this machine lacks AVX2\n");
        return;
    }
#ifndef SV_NO_AVX2
    struct sv_rng rng = {3};
    for (int i = 0; i < N_FORMS * 5; i++) {
        const struct form *f = &forms[i / 5];
        struct matrix m;
        matrix_open(&m, f, ROWS, COLS, 4);
        m.q.global = factors[i % 5];
        random_bytes(&m.data, &rng);
        random_bytes(&m.scales, &rng);
        sv_quant_expand(&m.q, 0, ROWS, SV_BF16, want, values);
        sv_quant_expand_avx2(&m.q, 0, ROWS, SV_BF16, got, values);
        for (int at = 0; at < ROWS * COLS; at++) {
            const float a = sv_bf16_to_f32(got[at]), b = sv_bf16_to_f32(want[at]);
            if (!(a == b || (isnan(a) && isnan(b))))
                fail_msg("%s: value %d is %04x, not %04x", f->name, at, got[at], want[at]);
        }
        matrix_close(&m);
    }
#endif
}

/* ---------------------------------------------------------------- memory */

static void weights_take_what_the_file_takes(void **state)
{
    (void)state;
    for (enum sv_isa isa = SV_ISA_PLAIN; isa <= SV_ISA_AMX; isa++)
        for (int f = 0; f < N_FORMS; f++) {
            struct sv_cpu cpu;
            struct matrix m;
            struct sv_weight w;
            struct sv_err err;
            if (!sv_cpu_has_isa(isa))
                continue;
            device_open(&cpu, isa, SV_BF16, 2, limits);
            matrix_open(&m, &forms[f], 128, 1024, 9);
            const struct sv_weight host = {
                .data = m.q.data, .fmt.elem = SV_U8, .rows = 128, .cols = 1024, .quant = &m.q};
            assert_int_equal(sv_cpu_upload_weight(dev_of(&cpu), &host, &w, &err), SV_OK);
            const int64_t kept = sv_cpu_weight_bytes(dev_of(&cpu), &w, 1);
            const bool bf16 =
                isa == SV_ISA_AMX || (isa == SV_ISA_AVX512 && sv_cpu_has_avx512_bf16());
            const bool columns = m.q.code >= SV_CODE_AWQ && m.q.code <= SV_CODE_GPTQ8;
            const bool as_codes = !(
                bf16 ? forms[f].permuted || (forms[f].zeros && forms[f].scale == SV_F32) : columns);
            assert_true(as_codes == !!sv_cpu_codes_of(&w));
            if (as_codes && kept > sv_quant_bytes(&m.q) * 107 / 100)
                fail_msg("%s, level %d: %lld bytes of %lld", forms[f].name, (int)isa,
                         (long long)kept, (long long)sv_quant_bytes(&m.q));
            if (!as_codes)
                assert_int_equal(kept, 128 * 1024 * 2);
            sv_cpu_free_weight(dev_of(&cpu), &w);
            matrix_close(&m);
            device_close(&cpu);
        }
}

static void survives_no_memory(void **state)
{
    (void)state;
    struct sv_cpu cpu;
    const struct form *some[] = {&forms[2], &forms[22]}; /* packed, and expanded */
    device_open(&cpu, sv_cpu_best_isa(), SV_BF16, 2, limits);
    for (int i = 0; i < 2; i++) {
        struct matrix m;
        matrix_open(&m, some[i], 64, 256, 1);
        const int64_t live = sv_alloc_live();
        int rc = SV_ENOMEM;
        for (int nth = 1; rc != SV_OK; nth++) {
            const struct sv_weight host = {
                .data = m.q.data, .fmt.elem = SV_U8, .rows = 64, .cols = 256, .quant = &m.q};
            struct sv_weight out;
            struct sv_err err;
            assert_true(nth < 12);
            sv_fault_arm(nth);
            rc = sv_cpu_upload_weight(dev_of(&cpu), &host, &out, &err);
            sv_fault_arm(0);
            assert_true(rc == SV_OK || rc == SV_ENOMEM);
            assert_true(nth > 2 || rc == SV_ENOMEM);
            if (!rc)
                sv_cpu_free_weight(dev_of(&cpu), &out);
            assert_int_equal(sv_alloc_live(), live);
        }
        matrix_close(&m);
    }
    device_close(&cpu);
}

SV_TEST_MAIN(cmocka_unit_test(parts_have_the_values_of_the_whole),
             cmocka_unit_test(packed_codes_expand_to_the_values),
             cmocka_unit_test(products_in_plain_c), cmocka_unit_test(products_with_avx2),
             cmocka_unit_test(products_with_avx512), cmocka_unit_test(products_with_avx512_in_bf16),
             cmocka_unit_test(products_with_amx),
             cmocka_unit_test(avx2_gives_the_values_of_any_bytes),
             cmocka_unit_test(weights_take_what_the_file_takes),
             cmocka_unit_test(survives_no_memory))
