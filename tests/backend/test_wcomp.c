/*
 * test_wcomp.c - the CPU's compressed bf16 weights: the format decoded by plain C as wcomp.h
 * describes it, and products, head and rows of compressed weights compared with those of the
 * uncompressed weights, bit for bit.
 *
 * Needs AVX512-VBMI2; without it only tests that nothing is compressed.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "testing.h"

#include "backend/cpu_device.h"
#include "backend/fenced.h"
#include "backend/cpu/wcomp.h"

#include <math.h>
#include <string.h>

enum kind { NORMAL, SPREAD, WILD, ZEROS, EQUAL, NOISE, N_KINDS };
static const char *const kind_name[] = {"normal", "rows of many scales", "wild",
                                        "zeros",  "equal exponents",     "noise"};

static void fill(uint16_t *w, int32_t n, int32_t k, enum kind kind, uint64_t seed)
{
    static const uint16_t wild[] = {0x0001, 0x807f, 0x7f80, 0xff80, 0x7fc1,
                                    0xffff, 0x0000, 0x8000, 0x7f7f, 0x0080};
    struct sv_rng rng = {seed};
    for (size_t i = 0; i < (size_t)n * (size_t)k; i++) {
        const float v = sv_rng_normal(&rng);
        const uint32_t d = sv_rng_below(&rng, 200);
        switch (kind) {
        case NORMAL:
            w[i] = sv_f32_to_bf16(0.02f * v);
            break;
        case SPREAD:
            w[i] = sv_f32_to_bf16(ldexpf(v, (int)(i / (size_t)k / 16) % 5 * 20 - 40));
            break;
        case WILD:
            w[i] = d < 10 ? wild[d] : sv_f32_to_bf16(v);
            break;
        case ZEROS:
            w[i] = (uint16_t)(d < 100 ? 0 : 0x8000);
            break;
        case EQUAL:
            w[i] = (uint16_t)(0x3f80 | (sv_rng_next(&rng) & 0x807f));
            break;
        default:
            w[i] = (uint16_t)sv_rng_next(&rng);
            break;
        }
    }
}

static bool able(void)
{
    static bool told;
    if (sv_cpu_has_isa(SV_ISA_AVX512) && sv_cpu_has_avx512_vbmi2())
        return true;
    if (!told)
        fprintf(stderr, "NOT TESTED: this machine lacks AVX512-VBMI2\n");
    told = true;
    return false;
}

/* ---------------------------------------------------------------- the format */

/* Weight (row, c) of a unit, by the words of wcomp.h and nothing else. `escapes` is the stream. */
static void expand_plain(const uint8_t *unit, size_t n_lines, int32_t k, bool by_pairs,
                         uint16_t *out /* (16, blocks * 32) */)
{
    const int32_t blocks = (k + 31) / 32;
    const uint8_t *block = unit + n_lines * 64 - (size_t)blocks * 704, *escaped = unit + 64;
    for (int32_t b = 0; b < blocks; b++, block += 704)
        for (int group = 0; group < 8; group++)
            for (int byte = 0; byte < 64; byte++) {
                const uint8_t *c = block + 512 + byte;
                int code;
                if (group < 6)
                    code = c[group / 2 * 64] >> (group % 2 * 3) & 7;
                else
                    code = (c[(group - 6) * 64] >> 6) | (c[128] >> group & 1) << 2;
                const unsigned e = code ? unit[code] : *escaped++;
                const unsigned s = block[group * 64 + byte];
                const int vector = 2 * group + (byte % 16 >= 8), word = byte / 16 * 8 + byte % 8;
                const int row = by_pairs ? word / 2 : vector;
                const int at = by_pairs ? vector * 2 + word % 2 : word;
                out[(size_t)row * (size_t)blocks * 32 + (size_t)(b * 32 + at)] =
                    (uint16_t)((s & 1) << 15 | e << 7 | s >> 1);
            }
}

static void check_unit(const uint16_t *w, int32_t n, int32_t k, int32_t u, bool by_pairs)
{
    const int32_t wide = (k + 31) / 32 * 32;
    const struct sv_wcomp_unit as = sv_wcomp_measure(w, n, k, u);
    struct fenced f, fx;
    const size_t n_bytes = (size_t)as.n_lines * 64;
    uint8_t *to = fenced_open(&f, n_bytes + 64);
    uint16_t *plain = sv_calloc(16 * (size_t)wide, 2);
    memset(to, 0xaa, n_bytes + 64);
    sv_wcomp_pack(to, as, w, n, k, u, by_pairs ? SV_WCOMP_PAIRS : SV_WCOMP_ROWS);
    for (int i = 0; i < 64; i++)
        assert_int_equal(to[n_bytes + (size_t)i], 0xaa);
    expand_plain(to, as.n_lines, k, by_pairs, plain);
    for (int32_t r = 0; r < 16; r++)
        for (int32_t c = 0; c < wide; c++)
            assert_int_equal(plain[r * wide + c],
                             c < k && u * 16 + r < n ? w[(size_t)(u * 16 + r) * (size_t)k + c] : 0);
    uint16_t *fast = fenced_open(&fx, 32 * (size_t)wide);
    struct sv_wcomp_walk at = {.block = to + n_bytes - (size_t)wide / 32 * 704,
                               .escapes = to + 64,
                               .table = to,
                               .end = to + n_bytes};
    sv_wcomp_expand(&at, wide / 32, fast);
    assert_ptr_equal(at.block, to + n_bytes);
    for (int32_t r = 0; r < 16; r++)
        for (int32_t c = 0; c < wide; c++)
            assert_int_equal(
                fast[c / 32 * 512 + (by_pairs ? c % 32 / 2 * 32 + r * 2 + c % 2 : r * 32 + c % 32)],
                plain[r * wide + c]);
    sv_free(plain);
    fenced_close(&fx);
    fenced_close(&f);
}

static void every_value_comes_back(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 1}, {16, 32}, {17, 33}, {40, 31}, {33, 64}, {70, 500}};
    for (size_t s = 0; able() && s < sizeof shapes / sizeof shapes[0]; s++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const int32_t n = shapes[s][0], k = shapes[s][1];
            struct fenced f;
            uint16_t *w = fenced_open(&f, (size_t)n * (size_t)k * 2);
            fill(w, n, k, (enum kind)kind, s * 10 + (uint64_t)kind);
            for (int32_t u = 0; u < (n + 15) / 16; u++)
                for (int by_pairs = 0; by_pairs < 2; by_pairs++)
                    check_unit(w, n, k, u, by_pairs);
            fenced_close(&f);
        }
    if (!able())
        return;
    uint16_t *all = sv_calloc(1 << 16, 2); /* every pattern there is, each escaped or not */
    for (int i = 0; i < 1 << 16; i++)
        all[i] = (uint16_t)(i * 40503);
    for (int32_t u = 0; u < 4; u++)
        check_unit(all, 64, 1024, u, u % 2);
    sv_free(all);
}

/* ---------------------------------------------------------------- products */

enum { MOST_ROWS = 600, MOST_K = 1100 };
static const struct sv_dev_limits limits = {
    .max_rows = MOST_ROWS, .max_logit_rows = MOST_ROWS, .max_k = MOST_K};

static struct sv_weight upload(struct sv_cpu *cpu, const void *w, int32_t n, int32_t k, bool wcomp)
{
    const struct sv_weight host = {.data = w, .fmt.elem = SV_BF16, .rows = n, .cols = k};
    struct sv_weight out;
    struct sv_err err;
    cpu->wcomp = wcomp;
    assert_int_equal(sv_cpu_upload_weight((struct sv_dev *)(void *)cpu, &host, &out, &err), SV_OK);
    assert_true(out.priv || out.data == w);
    if (!wcomp)
        assert_false(sv_cpu_is_wcomp(&out));
    return out;
}

static void release(struct sv_cpu *cpu, const struct sv_weight *w)
{
    struct sv_weight gone = *w;
    sv_cpu_free_weight((struct sv_dev *)(void *)cpu, &gone);
}

static void multiply(struct sv_cpu *cpu, const float *x, int32_t rows,
                     const struct sv_gemm_part *parts, int32_t n_parts, float *y, int32_t n)
{
    const struct sv_p_gemm p = {.n_rows = rows,
                                .k = parts->w.cols,
                                .n_parts = n_parts,
                                .x = x,
                                .ldx = parts->w.cols,
                                .parts = parts,
                                .y = y,
                                .ldy = n};
    memset(y, 0x55, (size_t)rows * (size_t)n * sizeof *y);
    sv_alloc_guard(true);
    sv_cpu_gemm((struct sv_dev *)(void *)cpu, &p);
    sv_alloc_guard(false);
    for (size_t i = 0; i < (size_t)rows * (size_t)n; i++) /* which NaN is left open */
        y[i] = isnan(y[i]) ? NAN : y[i];
}

struct pair {
    int32_t n, k, cut;
    enum kind kind;
    struct sv_gemm_part whole, wcomp[2]; /* the second in two parts */
    float *x, *want, *got;
};

static void same_rows(struct sv_cpu *cpu, const struct pair *p, int32_t rows)
{
    multiply(cpu, p->x, rows, &p->whole, 1, p->want, p->n);
    multiply(cpu, p->x, rows, p->wcomp, p->cut ? 2 : 1, p->got, p->n);
    if (memcmp(p->want, p->got, (size_t)rows * (size_t)p->n * sizeof *p->want) != 0)
        fail_msg("%s, n %d k %d, %d rows, %d threads: other bits than whole weights",
                 kind_name[p->kind], p->n, p->k, rows, cpu->n_threads);
}

static void same_head(struct sv_cpu *cpu, const struct pair *p, int32_t rows)
{
    int32_t out[2][MOST_ROWS];
    const struct sv_weight *w[2] = {&p->whole.w, &p->wcomp[0].w};
    for (int i = 0; i < 2; i++) {
        const struct sv_p_head_argmax q = {
            .n_rows = rows, .k = p->k, .x = p->x, .w = *w[i], .out = out[i]};
        sv_cpu_head_argmax((struct sv_dev *)(void *)cpu, &q);
    }
    assert_memory_equal(out[0], out[1], (size_t)rows * sizeof out[0][0]);
}

static void products_of(enum sv_isa isa, int32_t n, int32_t k, enum kind kind, int n_threads,
                        bool in_parts)
{
    static const int32_t more[] = {65, 80, 97, 144, 145, 257, 512, 600};
    struct sv_cpu cpu;
    struct sv_rng rng = {(uint64_t)n};
    struct pair p = {.n = n, .k = k, .cut = in_parts ? n / 3 : 0, .kind = kind};
    float row[2][MOST_K];
    const int64_t live = sv_alloc_live();
    device_open(&cpu, isa, SV_BF16, n_threads, limits);
    uint16_t *w = sv_calloc((size_t)n * (size_t)k, 2);
    p.x = sv_calloc((size_t)MOST_ROWS * (size_t)k, sizeof *p.x);
    p.want = sv_calloc((size_t)MOST_ROWS * (size_t)n, sizeof *p.want);
    p.got = sv_calloc((size_t)MOST_ROWS * (size_t)n, sizeof *p.got);
    fill(w, n, k, kind, (uint64_t)k);
    for (size_t i = 0; i < (size_t)MOST_ROWS * (size_t)k; i++)
        p.x[i] = sv_rng_normal(&rng);
    p.whole.w = upload(&cpu, w, n, k, false);
    p.wcomp[0].w = upload(&cpu, w, in_parts ? p.cut : n, k, true);
    if (in_parts)
        p.wcomp[1].w = upload(&cpu, w + (size_t)p.cut * (size_t)k, n - p.cut, k, true);
    if (kind == NOISE)
        assert_false(sv_cpu_is_wcomp(&p.wcomp[0].w));
    else if (k >= 320 && (n % 16 == 0 || n > 90) && !in_parts)
        assert_true(sv_cpu_is_wcomp(&p.wcomp[0].w));
    for (int32_t rows = 1; rows <= 64; rows += rows < 34 ? 1 : 3)
        same_rows(&cpu, &p, rows);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        same_rows(&cpu, &p, more[i]);
    if (!in_parts && kind != WILD &&
        kind != NOISE) { /* a row of NaN is an error: tested elsewhere */
        for (int32_t rows = 1; rows < 100; rows += 15)
            same_head(&cpu, &p, rows);
        for (int32_t r = 0; sv_cpu_is_packed(&p.wcomp[0].w) && r < n; r++) {
            sv_cpu_weight_row(&cpu, &p.wcomp[0].w, r, row[0], 1);
            for (int32_t i = 0; i < k; i++)
                row[1][i] = sv_bf16_to_f32(w[(size_t)r * (size_t)k + (size_t)i]);
            assert_memory_equal(row[0], row[1], (size_t)k * sizeof row[0][0]);
        }
    }
    release(&cpu, &p.whole.w);
    release(&cpu, &p.wcomp[0].w);
    if (in_parts)
        release(&cpu, &p.wcomp[1].w);
    sv_free(p.x);
    sv_free(p.want);
    sv_free(p.got);
    sv_free(w);
    device_close(&cpu);
    assert_int_equal(sv_alloc_live(), live);
}

static void products_have_the_same_bits(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{48, 320}, {83, 77},  {50, 31},   {129, 33},
                                        {2, 2},    {37, 511}, {160, 512}, {301, 1090}};
    for (enum sv_isa isa = SV_ISA_AVX512; isa <= SV_ISA_AMX; isa++) {
        if (!able() || !sv_cpu_has_isa(isa)) {
            fprintf(stderr, "NOT TESTED: products of compressed weights at level %d\n", (int)isa);
            continue;
        }
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            products_of(isa, shapes[s][0], shapes[s][1], NORMAL, 1 + (int)s % 3, s % 2);
        for (int kind = SPREAD; kind < N_KINDS; kind++)
            products_of(isa, 67, 352, (enum kind)kind, 2, false);
    }
}

/* ---------------------------------------------------------------- when weights become compressed
 */

static void only_where_they_can(void **state)
{
    (void)state;
    static const enum sv_isa isas[] = {SV_ISA_PLAIN, SV_ISA_AVX2, SV_ISA_AVX512, SV_ISA_AMX};
    uint16_t w[64 * 64];
    fill(w, 64, 64, NORMAL, 1);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        struct sv_cpu cpu;
        if (!sv_cpu_has_isa(isas[i]))
            continue;
        device_open(&cpu, isas[i], SV_BF16, 1, limits);
        const struct sv_weight out = upload(&cpu, w, 64, 64, true);
        const bool bf16 =
            isas[i] == SV_ISA_AMX || (isas[i] == SV_ISA_AVX512 && sv_cpu_has_avx512_bf16());
        const int64_t bytes = sv_cpu_weight_bytes((struct sv_dev *)(void *)&cpu, &out, 1);
        assert_true(sv_cpu_is_wcomp(&out) == (bf16 && sv_cpu_has_avx512_vbmi2()));
        if (sv_cpu_is_wcomp(&out))
            assert_true(bytes * 8 < 64 * 64 * 13);
        else
            assert_int_equal(bytes, sizeof w);
        release(&cpu, &out);
        device_close(&cpu);
    }
}

static void asked_for_by_option_or_size(void **state)
{
    (void)state;
    static const struct {
        enum sv_toggle wcomp;
        int64_t weight_bytes;
        int32_t usual_rows;
        bool yes, yes_on_amx;
    } cases[] = {{SV_TOGGLE_AUTO, 0, 1, false, false},
                 {SV_TOGGLE_AUTO, 20 << 20, 1, false, false},
                 {SV_TOGGLE_AUTO, (int64_t)1 << 30, 8, true, true},
                 {SV_TOGGLE_AUTO, (int64_t)1 << 30, 9, false, true},
                 {SV_TOGGLE_AUTO, (int64_t)1 << 30, 0, false, true},
                 {SV_TOGGLE_ON, 0, 0, true, true},
                 {SV_TOGGLE_OFF, (int64_t)1 << 30, 1, false, false}};
    uint16_t w[64 * 64];
    fill(w, 64, 64, NORMAL, 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int compute = SV_F32; compute <= SV_BF16; compute++) {
            const struct sv_dev_opts opts = {.backend = "cpu",
                                             .n_threads = 1,
                                             .compute = (enum sv_dtype)compute,
                                             .tuning.compress_weights = cases[i].wcomp,
                                             .weight_bytes = cases[i].weight_bytes,
                                             .usual_rows = cases[i].usual_rows};
            const struct sv_weight host = {.data = w, .fmt.elem = SV_BF16, .rows = 64, .cols = 64};
            struct sv_dev *dev;
            struct sv_weight out;
            struct sv_err err;
            assert_int_equal(sv_dev_open(&dev, &opts, &err), SV_OK);
            assert_int_equal(sv_dev_upload_weight(dev, &host, &out, &err), SV_OK);
            const bool can = compute == SV_BF16 && able() && sv_cpu_has_avx512_bf16();
            const bool amx = sv_cpu_has_isa(SV_ISA_AMX);
            assert_true(sv_cpu_is_wcomp(&out) ==
                        (can && (amx ? cases[i].yes_on_amx : cases[i].yes)));
            assert_true(!!strstr(sv_dev_describe(dev), "compressed") == sv_cpu_is_wcomp(&out));
            sv_dev_free_weight(dev, &out);
            sv_dev_close(dev);
        }
}

static void survives_no_memory(void **state)
{
    (void)state;
    uint16_t w[64 * 64];
    struct sv_cpu cpu;
    fill(w, 64, 64, NORMAL, 1);
    if (!able() || !sv_cpu_has_avx512_bf16())
        return;
    device_open(&cpu, sv_cpu_best_isa(), SV_BF16, 2, limits);
    cpu.wcomp = true;
    const int64_t live = sv_alloc_live();
    int rc = SV_ENOMEM;
    for (int nth = 1; rc != SV_OK; nth++) {
        const struct sv_weight host = {.data = w, .fmt.elem = SV_BF16, .rows = 64, .cols = 64};
        struct sv_weight out;
        struct sv_err err;
        assert_true(nth < 10);
        sv_fault_arm(nth);
        rc = sv_cpu_upload_weight((struct sv_dev *)(void *)&cpu, &host, &out, &err);
        sv_fault_arm(0);
        assert_true(rc == SV_OK || rc == SV_ENOMEM);
        assert_true(nth > 4 || rc == SV_ENOMEM);
        if (!rc)
            release(&cpu, &out);
        assert_int_equal(sv_alloc_live(), live);
    }
    device_close(&cpu);
}

SV_TEST_MAIN(cmocka_unit_test(every_value_comes_back),
             cmocka_unit_test(products_have_the_same_bits), cmocka_unit_test(only_where_they_can),
             cmocka_unit_test(asked_for_by_option_or_size), cmocka_unit_test(survives_no_memory))
