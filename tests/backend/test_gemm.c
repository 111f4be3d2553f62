/*
 * test_gemm.c - the CPU backend's matrix products and fused head: every instruction-set level this
 * machine has against double precision, the same bits for every batch, thread count and split, and
 * no access outside the operands.
 *
 * Operands end exactly at a page that may not be touched, since mapped weight files do. Levels the
 * machine lacks are named on stderr and left out.
 */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */

#include "testing.h"

#include "backend/cpu_device.h"
#include "backend/fenced.h"
#include "backend/cpu/vec.h"

#include <math.h>
#include <string.h>

#define GUARD 64 /* floats around outputs */

struct variant {
    enum sv_isa isa;
    enum sv_dtype compute, dtype;
    const char *name;
};

static const struct variant variants[] = {
    {SV_ISA_PLAIN, SV_F32, SV_F32, "plain f32"},
    {SV_ISA_PLAIN, SV_F32, SV_BF16, "plain bf16"},
    {SV_ISA_PLAIN, SV_F32, SV_F16, "plain f16"},
    {SV_ISA_PLAIN, SV_BF16, SV_BF16, "plain bf16 x bf16"},
    {SV_ISA_AVX2, SV_F32, SV_F32, "avx2 f32"},
    {SV_ISA_AVX2, SV_F32, SV_BF16, "avx2 bf16"},
    {SV_ISA_AVX2, SV_F32, SV_F16, "avx2 f16"},
    {SV_ISA_AVX2, SV_BF16, SV_BF16, "avx2 bf16 x bf16"},
    {SV_ISA_AVX512, SV_F32, SV_F32, "avx512 f32"},
    {SV_ISA_AVX512, SV_F32, SV_BF16, "avx512 bf16"},
    {SV_ISA_AVX512, SV_F32, SV_F16, "avx512 f16"},
    {SV_ISA_AVX512, SV_BF16, SV_BF16, "avx512 bf16 x bf16"},
    {SV_ISA_AVX512, SV_BF16, SV_F16, "avx512 f16 in bf16 mode"},
    {SV_ISA_AMX, SV_BF16, SV_BF16, "amx"},
};
#define N_VARIANTS (int)(sizeof variants / sizeof variants[0])

static bool present(const struct variant *v)
{
    static bool told[SV_ISA_AMX + 1];
    if (sv_cpu_has_isa(v->isa))
        return true;
    if (!told[v->isa]) {
        told[v->isa] = true;
        fprintf(stderr, "NOT TESTED: this machine lacks the level of \"%s\"\n", v->name);
    }
    return false;
}

/* ---------------------------------------------------------------- fixtures */

/* From here on nothing may be allocated. */
static void guarded_open(struct sv_cpu *cpu, const struct variant *v, int n_threads)
{
    device_open(cpu, v->isa, v->compute, n_threads,
                (struct sv_dev_limits){.max_rows = 1500, .max_logit_rows = 700, .max_k = 1100});
    sv_alloc_guard(true);
}

static void guarded_close(struct sv_cpu *cpu)
{
    sv_alloc_guard(false);
    device_close(cpu);
}

static uint16_t to_f16(float f) /* normal range only, truncating: any half will do for a weight */
{
    union {
        float f;
        uint32_t u;
    } v = {f};
    int e = (int)(v.u >> 23 & 255) - 112;
    if (e <= 0)
        return (uint16_t)(v.u >> 16 & 0x8000);
    return (uint16_t)((v.u >> 16 & 0x8000) | (uint32_t)e << 10 | (v.u >> 13 & 0x3ff));
}

static size_t put(void *data, size_t i, enum sv_dtype dt, float f)
{
    if (dt == SV_F32) {
        memcpy((uint8_t *)data + i * 4, &f, 4);
        return 4;
    }
    uint16_t h = dt == SV_BF16 ? sv_f32_to_bf16(f) : to_f16(f);
    memcpy((uint8_t *)data + i * 2, &h, 2);
    return 2;
}

static double get(const void *data, size_t i, enum sv_dtype dt)
{
    float f;
    uint16_t h;
    if (dt == SV_F32) {
        memcpy(&f, (const uint8_t *)data + i * 4, 4);
        return f;
    }
    memcpy(&h, (const uint8_t *)data + i * 2, 2);
    return dt == SV_BF16 ? sv_bf16_to_f32(h) : sv_f16_to_f32(h);
}

static size_t width(enum sv_dtype dt)
{
    return dt == SV_F32 ? 4 : 2;
}

static void fill(struct sv_rng *rng, void *data, size_t n, enum sv_dtype dt)
{
    for (size_t i = 0; i < n; i++)
        put(data, i, dt, sv_rng_normal(rng));
}

/* Values that break careless kernels: denormals, infinities, NaN, huge and tiny ones among ordinary
 * ones. */
static void fill_wild(struct sv_rng *rng, void *data, size_t n, enum sv_dtype dt)
{
    static const float wild[] = {1e-40f, -3e-39f, 1e-38f, INFINITY, -INFINITY,
                                 NAN,    3e38f,   -3e38f, 1e-30f,   -0.0f};
    for (size_t i = 0; i < n; i++) {
        uint32_t d = sv_rng_below(rng, 4000);
        put(data, i, dt,
            d < 10    ? wild[d]
            : d < 400 ? sv_rng_normal(rng) * 2e-38f
                      : sv_rng_normal(rng));
    }
}

static struct sv_weight weight(const void *data, enum sv_dtype dt, int32_t rows, int32_t cols)
{
    return (struct sv_weight){.data = data, .fmt.elem = dt, .rows = rows, .cols = cols};
}

static void multiply(struct sv_cpu *cpu, const float *x, int64_t ldx, int32_t n_rows, int32_t k,
                     const struct sv_gemm_part *parts, int32_t n_parts, float *y, int64_t ldy)
{
    const struct sv_p_gemm p = {.n_rows = n_rows,
                                .k = k,
                                .n_parts = n_parts,
                                .x = x,
                                .ldx = ldx,
                                .parts = parts,
                                .y = y,
                                .ldy = ldy};
    sv_cpu_gemm((struct sv_dev *)(void *)cpu, &p);
}

/* ---------------------------------------------------------------- against double precision */

static void check_values(const struct variant *v, const float *x, const void *w, const float *bias,
                         const float *y, int64_t ldy, int32_t rows, int32_t n, int32_t k)
{
    const bool rounded = v->compute == SV_BF16 && v->dtype == SV_BF16;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < n; c++) {
            double sum = 0, size = 0;
            for (int32_t p = 0; p < k; p++) {
                float xv = x[(size_t)r * k + p];
                double t = get(w, (size_t)c * k + p, v->dtype) *
                           (rounded ? sv_bf16_to_f32(sv_f32_to_bf16(xv)) : xv);
                sum += t;
                size += fabs(t);
            }
            double got = y[r * ldy + c], want = sum + (bias ? bias[c] : 0);
            if (!(fabs(got - want) <= 4e-7 * (size + fabs(want)) + 1e-30))
                fail_msg("%s rows %d n %d k %d: element (%d, %d) is %.9g, must be %.9g", v->name,
                         rows, n, k, r, c, got, want);
        }
}

static void check_guard(const float *y, int32_t rows, int32_t n, int64_t ldy)
{
    for (int64_t i = -GUARD; i < (int64_t)rows * ldy + GUARD - (ldy - n); i++) {
        bool inside = i >= 0 && i < rows * ldy && i % ldy < n;
        if (!inside && y[i] != 1234.5f)
            fail_msg("output written outside its bounds at %lld", (long long)i);
    }
}

static void one_shape(struct sv_cpu *cpu, const struct variant *v, struct sv_rng *rng, int32_t rows,
                      int32_t n, int32_t k, bool with_bias)
{
    struct fenced fw, fx, fy;
    const int64_t ldy = n + 5;
    void *w = fenced_open(&fw, (size_t)n * k * width(v->dtype));
    float *x = fenced_open(&fx, (size_t)rows * k * sizeof *x);
    const size_t n_y = 2 * GUARD + (size_t)((rows - 1) * ldy + n);
    float *all = fenced_open(&fy, n_y * sizeof *all), *y = all + GUARD;
    float bias[512];
    fill(rng, w, (size_t)n * k, v->dtype);
    fill(rng, x, (size_t)rows * k, SV_F32);
    fill(rng, bias, (size_t)n, SV_F32);
    for (size_t i = 0; i < n_y; i++)
        all[i] = 1234.5f;
    struct sv_gemm_part part = {.w = weight(w, v->dtype, n, k)};
    if (with_bias)
        part.bias = weight(bias, SV_F32, 1, n);
    multiply(cpu, x, k, rows, k, &part, 1, y, ldy);
    check_values(v, x, w, with_bias ? bias : NULL, y, ldy, rows, n, k);
    check_guard(y, rows, n, ldy);
    fenced_close(&fw);
    fenced_close(&fx);
    fenced_close(&fy);
}

static void matches_double(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{1, 1},    {1, 33},   {2, 31},  {3, 64},   {7, 5},
                                        {15, 32},  {16, 32},  {17, 96}, {31, 33},  {33, 100},
                                        {47, 511}, {48, 512}, {64, 64}, {65, 513}, {80, 17},
                                        {100, 1},  {129, 40}, {320, 35}};
    static const int32_t rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 31, 32, 33, 49, 65};
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        struct sv_rng rng = {(uint64_t)i + 1};
        struct sv_cpu cpu;
        if (!present(v))
            continue;
        guarded_open(&cpu, v, 2);
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
                if (shapes[s][0] * shapes[s][1] < 1500 || (s + r) % 5 == 0)
                    one_shape(&cpu, v, &rng, rows[r], shapes[s][0], shapes[s][1], r % 2);
        guarded_close(&cpu);
    }
}

/* ---------------------------------------------------------------- the same bits always */

struct product {
    int32_t n, k, max_rows;
    void *w;
    float *x, *one; /* (max_rows, k); (max_rows, n) computed row by row */
    struct fenced fw, fx, fone;
};

/* Which NaN comes out of two depends on operand order inside an addition, which compilers may swap;
 * that it is one does not. */
static void plain_nan(float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(y[i]))
            y[i] = NAN;
}

static void product_open(struct product *p, const struct variant *v, int32_t max_rows, int32_t n,
                         int32_t k, bool wild)
{
    struct sv_rng rng = {(uint64_t)n * 1000 + (uint64_t)k};
    struct sv_cpu cpu;
    p->n = n;
    p->k = k;
    p->max_rows = max_rows;
    p->w = fenced_open(&p->fw, (size_t)n * k * width(v->dtype));
    p->x = fenced_open(&p->fx, (size_t)max_rows * k * sizeof *p->x);
    p->one = fenced_open(&p->fone, (size_t)max_rows * n * sizeof *p->one);
    (wild ? fill_wild : fill)(&rng, p->w, (size_t)n * k, v->dtype);
    (wild ? fill_wild : fill)(&rng, p->x, (size_t)max_rows * k, SV_F32);
    guarded_open(&cpu, v, 1);
    struct sv_gemm_part part = {.w = weight(p->w, v->dtype, n, k)};
    for (int32_t r = 0; r < max_rows; r++)
        multiply(&cpu, p->x + (size_t)r * k, k, 1, k, &part, 1, p->one + (size_t)r * n, n);
    plain_nan(p->one, (size_t)max_rows * n);
    guarded_close(&cpu);
}

static void product_close(struct product *p)
{
    fenced_close(&p->fw);
    fenced_close(&p->fx);
    fenced_close(&p->fone);
}

/* Rows [r0, r0 + rows) of the product, weight cut into n_parts, must equal what single rows
 * gave. */
static void same_bits(struct sv_cpu *cpu, const struct variant *v, const struct product *p,
                      int32_t r0, int32_t rows, int n_parts, float *y)
{
    struct sv_gemm_part parts[SV_GEMM_MAX_PARTS];
    memset(parts, 0, sizeof parts);
    for (int i = 0; i < n_parts; i++) {
        int32_t a = (int32_t)((int64_t)p->n * i / n_parts),
                b = (int32_t)((int64_t)p->n * (i + 1) / n_parts);
        parts[i].w =
            weight((uint8_t *)p->w + (size_t)a * p->k * width(v->dtype), v->dtype, b - a, p->k);
    }
    memset(y, 0x55, (size_t)rows * p->n * sizeof *y);
    multiply(cpu, p->x + (size_t)r0 * p->k, p->k, rows, p->k, parts, n_parts, y, p->n);
    plain_nan(y, (size_t)rows * p->n);
    for (int32_t r = 0; r < rows; r++)
        if (memcmp(y + (size_t)r * p->n, p->one + (size_t)(r0 + r) * p->n,
                   (size_t)p->n * sizeof *y) != 0)
            fail_msg(
                "%s: n %d k %d: row %d of %d in %d parts on %d threads has other bits than alone",
                v->name, p->n, p->k, r, rows, n_parts, cpu->n_threads);
}

static void invariant_at(const struct variant *v, int32_t n, int32_t k, bool wild, int32_t max_rows)
{
    static const int32_t more[] = {41, 48, 64, 65, 100, 145, 160, 257, 512, 600};
    struct product p;
    struct fenced fy;
    product_open(&p, v, max_rows, n, k, wild);
    float *y = fenced_open(&fy, (size_t)max_rows * n * sizeof *y);
    for (int n_threads = 1; n_threads <= 4; n_threads++) {
        struct sv_cpu cpu;
        guarded_open(&cpu, v, n_threads);
        for (int32_t rows = 1; rows <= 40; rows += n_threads == 2 ? 1 : 5)
            same_bits(&cpu, v, &p, (rows * 7) % (max_rows - rows + 1), rows, 1 + rows % 5, y);
        for (size_t j = 0; j < sizeof more / sizeof more[0] && more[j] <= max_rows; j++)
            if ((int)j % 2 == n_threads % 2) /* each with two thread counts */
                same_bits(&cpu, v, &p, max_rows - more[j], more[j], 1 + (int)j % 3, y);
        same_bits(&cpu, v, &p, 0, 5, n < SV_GEMM_MAX_PARTS ? n : SV_GEMM_MAX_PARTS, y);
        guarded_close(&cpu);
    }
    fenced_close(&fy);
    product_close(&p);
}

static void invariant(int32_t n, int32_t k, bool wild, int32_t max_rows)
{
    for (int i = 0; i < N_VARIANTS; i++)
        if (present(&variants[i]))
            invariant_at(&variants[i], n, k, wild, max_rows);
}

static void rows_are_independent(void **state)
{
    (void)state;
    invariant(83, 77, false, 257);
}

static void rows_are_independent_long_k(void **state)
{
    (void)state;
    invariant(34, 1090, false, 100);
}

/* Every way through the AMX kernels: sums carried over blocks of k, several groups of units, large
 * input. */
static void rows_are_independent_amx(void **state)
{
    (void)state;
    const struct variant *v = &variants[N_VARIANTS - 1];
    if (present(v)) {
        invariant_at(v, 533, 1066, false, 600);
        invariant_at(v, 290, 600, true, 600);
    }
}

/* So many rows that threads share out rows, and take their own in several pieces, of odd sizes. */
static void rows_are_independent_shared_out(void **state)
{
    (void)state;
    enum { MANY = 1301 };
    static const int32_t rows[] = {64, 127, 128, 129, 255, 383, 384, 513, 770, 1025, 1100, MANY};
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        if (!present(v) || v->compute != SV_BF16 || v->dtype != SV_BF16)
            continue;
        struct product p;
        struct fenced fy;
        product_open(&p, v, MANY, 41, 75, true);
        float *y = fenced_open(&fy, (size_t)MANY * 41 * sizeof *y);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            struct sv_cpu cpu;
            guarded_open(&cpu, v, n_threads);
            for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
                same_bits(&cpu, v, &p, MANY - rows[r], rows[r], 1 + (int)r % 3, y);
            guarded_close(&cpu);
        }
        fenced_close(&fy);
        product_close(&p);
    }
}

static void rows_are_independent_wild(void **state)
{
    (void)state;
    invariant(50, 131, true, 100);
}

static int32_t argmax(const float *y, int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (!isnan(y[i]) && (best < 0 || y[i] > y[best]))
            best = i;
    return best < 0 ? 0 : best;
}

/* ---------------------------------------------------------------- weights packed at load */

static struct sv_weight upload_as(struct sv_cpu *cpu, const void *w, int32_t n, int32_t k,
                                  bool draft)
{
    struct sv_weight host = weight(w, SV_BF16, n, k);
    host.role = draft ? SV_ROLE_Q | SV_ROLE_DRAFT : SV_ROLE_Q;
    struct sv_weight out;
    struct sv_err err;
    sv_alloc_guard(false);
    assert_int_equal(sv_cpu_upload_weight((struct sv_dev *)(void *)cpu, &host, &out, &err), SV_OK);
    sv_alloc_guard(true);
    assert_true(sv_cpu_is_packed(&out));
    assert_true((out.fmt.elem == SV_I8) == (draft && sv_cpu_gemm_bytes(cpu)));
    return out;
}

static struct sv_weight upload(struct sv_cpu *cpu, const void *w, int32_t n, int32_t k)
{
    return upload_as(cpu, w, n, k, false);
}

/* Products, the head and single rows of a packed weight against those of the same weight in
 * place. */
static void packed_at(const struct variant *v, int32_t n, int32_t k, int n_threads)
{
    enum { ROWS = 70 };
    struct product p;
    struct sv_cpu cpu;
    product_open(&p, v, ROWS, n, k, true);
    guarded_open(&cpu, v, n_threads);
    const int64_t live = sv_alloc_live();
    const int32_t cut = n / 3;
    struct sv_gemm_part parts[2] = {
        {.w = upload(&cpu, p.w, cut, k)},
        {.w = upload(&cpu, (uint16_t *)p.w + (size_t)cut * k, n - cut, k)}};
    struct sv_weight whole = upload(&cpu, p.w, n, k);
    struct fenced fy;
    float *y = fenced_open(&fy, (size_t)ROWS * n * sizeof *y), row[2][1100];
    int32_t out[2][ROWS];
    for (int32_t rows = 1; rows <= ROWS; rows += rows < 34 ? 1 : 9) {
        multiply(&cpu, p.x, k, rows, k, parts, 2, y, n);
        plain_nan(y, (size_t)rows * n);
        assert_memory_equal(y, p.one, (size_t)rows * n * sizeof *y);
    }
    for (int packed = 0; packed < 2; packed++) {
        const struct sv_weight w = packed ? whole : weight(p.w, SV_BF16, n, k);
        const struct sv_p_head_argmax q = {
            .n_rows = ROWS, .k = k, .x = p.x, .w = w, .out = out[packed]};
        sv_cpu_head_argmax((struct sv_dev *)(void *)&cpu, &q);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    for (int32_t r = 0; r < n; r++) {
        sv_cpu_weight_row(&cpu, &whole, r, row[0], 1);
        for (int32_t i = 0; i < k; i++)
            row[1][i] = sv_bf16_to_f32(((const uint16_t *)p.w)[(size_t)r * k + i]);
        assert_memory_equal(row[0], row[1], (size_t)k * sizeof row[0][0]);
    }
    fenced_close(&fy);
    sv_cpu_free_weight((struct sv_dev *)(void *)&cpu, &parts[1].w);
    sv_cpu_free_weight((struct sv_dev *)(void *)&cpu, &whole);
    sv_cpu_free_weight((struct sv_dev *)(void *)&cpu, &parts[0].w);
    assert_false(sv_cpu_weight_free(&cpu, p.w));
    assert_int_equal(sv_alloc_live(), live);
    guarded_close(&cpu);
    product_close(&p);
}

static void packed_weights_give_the_same_bits(void **state)
{
    (void)state;
    static const int32_t shapes[][2] = {{6, 1},    {48, 64},  {50, 131},  {129, 33},
                                        {96, 320}, {301, 66}, {260, 1090}};
    for (int i = 0; i < N_VARIANTS; i++) {
        struct sv_cpu cpu = {.isa = variants[i].isa, .compute = variants[i].compute};
        struct sv_err err;
        if (variants[i].dtype != SV_BF16 || !present(&variants[i]))
            continue;
        assert_int_equal(sv_cpu_gemm_open(&cpu, &err), SV_OK);
        const bool packs = sv_cpu_gemm_packs(&cpu);
        sv_cpu_gemm_close(&cpu);
        for (size_t s = 0; packs && s < sizeof shapes / sizeof shapes[0]; s++)
            packed_at(&variants[i], shapes[s][0], shapes[s][1], 1 + (int)s % 3);
    }
}

static float largest(const float *x, int32_t n)
{
    float top = 0;
    for (int32_t i = 0; i < n; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top;
}

/* Rounding to steps of the largest value over 127 moves each factor by half a step at most. */
static void near_enough(const float *x, const uint16_t *w, const float *y, int32_t rows, int32_t n,
                        int32_t k)
{
    float wf[1100];
    for (int32_t c = 0; c < n; c++) {
        for (int32_t p = 0; p < k; p++)
            wf[p] = sv_bf16_to_f32(w[(size_t)c * k + p]);
        const double step_w = (double)largest(wf, k) / 127;
        for (int32_t r = 0; r < rows; r++) {
            const float *xr = x + (size_t)r * k;
            const double step_x = (double)largest(xr, k) / 127;
            double sum = 0, most = 1e-30;
            for (int32_t p = 0; p < k; p++) {
                sum += (double)xr[p] * (double)wf[p];
                most += (fabs((double)xr[p]) * step_w + fabs((double)wf[p]) * step_x) / 2 +
                        step_x * step_w / 4;
            }
            const double d = fabs((double)y[(size_t)r * n + c] - sum);
            if (!(d <= most * 1.0001))
                fail_msg("n %d k %d: element (%d, %d) is off by %g, at most %g", n, k, r, c, d,
                         most);
        }
    }
}

/* The confidence of an int8 head: the softmax over the best of 32 ranges of the vocabulary. */
static float confidence_of(const float *y, int32_t n)
{
    float best[32];
    double sum = 0;
    const int32_t top = argmax(y, n);
    for (int i = 0; i < 32; i++)
        best[i] = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        best[i % 32] = y[i] > best[i % 32] ? y[i] : best[i % 32];
    if (isinf(y[top]) || isnan(y[top]))
        return 1;
    for (int i = 0; i < 32; i++)
        sum += exp((double)best[i] - (double)y[top]);
    return (float)(1 / sum);
}

/* The head's ids are those of the logits, with their confidence or without, which does not depend
 * on threads. */
static void quantized_head(struct sv_cpu *cpu, const struct sv_p_head_argmax *q, const float *y)
{
    enum { MOST = 64 };
    int32_t again[MOST];
    float confidence[MOST];
    struct sv_p_head_argmax with = *q;
    assert_true(q->n_rows <= MOST);
    with.out = again;
    with.confidence = confidence;
    sv_cpu_head_argmax((struct sv_dev *)(void *)cpu, q);
    sv_cpu_head_argmax((struct sv_dev *)(void *)cpu, &with);
    for (int32_t r = 0; r < q->n_rows; r++) {
        const float *row = y + (size_t)r * (size_t)q->w.rows, want = confidence_of(row, q->w.rows);
        assert_int_equal(q->out[r], argmax(row, q->w.rows));
        assert_int_equal(again[r], q->out[r]);
        assert_true(fabsf(confidence[r] - want) <= 1e-5f * want);
    }
}

static void quantized_at(const struct variant *v, int32_t n, int32_t k, int n_threads, bool wild)
{
    enum { ROWS = 53 };
    struct product p;
    struct sv_cpu cpu;
    struct fenced fy, fone;
    int32_t out[ROWS];
    product_open(&p, v, ROWS, n, k, wild);
    guarded_open(&cpu, v, n_threads);
    const int32_t cut = n / 2;
    struct sv_gemm_part parts[2] = {
        {.w = upload_as(&cpu, p.w, cut, k, true)},
        {.w = upload_as(&cpu, (uint16_t *)p.w + (size_t)cut * k, n - cut, k, true)}};
    struct sv_gemm_part whole = {.w = upload_as(&cpu, p.w, n, k, true)};
    float *y = fenced_open(&fy, (size_t)ROWS * n * sizeof *y);
    float *one = fenced_open(&fone, (size_t)ROWS * n * sizeof *one);
    for (int32_t r = 0; r < ROWS; r++)
        multiply(&cpu, p.x + (size_t)r * k, k, 1, k, &whole, 1, one + (size_t)r * n, n);
    if (!wild)
        near_enough(p.x, p.w, one, ROWS, n, k);
    plain_nan(one, (size_t)ROWS * n);
    for (int32_t rows = 1; rows <= ROWS; rows++) {
        multiply(&cpu, p.x, k, rows, k, parts, 2, y, n);
        plain_nan(y, (size_t)rows * n);
        assert_memory_equal(y, one, (size_t)rows * n * sizeof *y);
    }
    const struct sv_p_head_argmax q = {.n_rows = ROWS, .k = k, .x = p.x, .w = whole.w, .out = out};
#ifndef SV_NO_AVX512
    cpu.vec = &sv_cpu_vec_avx512;
#endif
    quantized_head(&cpu, &q, one);
    fenced_close(&fy);
    fenced_close(&fone);
    for (int i = 0; i < 2; i++)
        sv_cpu_free_weight((struct sv_dev *)(void *)&cpu, &parts[i].w);
    sv_cpu_free_weight((struct sv_dev *)(void *)&cpu, &whole.w);
    guarded_close(&cpu);
    product_close(&p);
}

/* A drafter's weights as bytes: close to the exact product, and a row's bits are its own. */
static void quantized_weights(void **state)
{
    (void)state;
    const struct variant *v = &variants[11];
    struct sv_cpu cpu;
    if (!present(v))
        return;
    guarded_open(&cpu, v, 1);
    const bool bytes = sv_cpu_gemm_bytes(&cpu);
    guarded_close(&cpu);
    if (!bytes) {
        fprintf(stderr, "NOT TESTED: this machine does not multiply bytes\n");
        return;
    }
    quantized_at(v, 48, 64, 1, false);
    quantized_at(v, 51, 131, 2, false);
    quantized_at(v, 300, 320, 3, false);
    quantized_at(v, 70, 1090, 2, false);
    quantized_at(v, 67, 3, 2, false);
    quantized_at(v, 90, 200, 2, true);
}

/* Memory runs out at each call of a load: an error, nothing left behind, nothing half packed. */
static void packing_survives_no_memory(void **state)
{
    (void)state;
    const struct variant *v = &variants[11];
    struct sv_cpu cpu;
    uint16_t w[40 * 10] = {0};
    assert_true(v->isa == SV_ISA_AVX512 && v->compute == SV_BF16 && v->dtype == SV_BF16);
    if (!present(v))
        return;
    guarded_open(&cpu, v, 2);
    sv_alloc_guard(false);
    const int64_t live = sv_alloc_live();
    for (int nth = 1; nth <= 3 && sv_cpu_gemm_packs(&cpu); nth++) {
        const struct sv_weight host = weight(w, SV_BF16, 40, 10);
        struct sv_weight out;
        struct sv_err err;
        sv_fault_arm(nth);
        int rc = sv_cpu_upload_weight((struct sv_dev *)(void *)&cpu, &host, &out, &err);
        sv_fault_arm(0);
        assert_int_equal(rc, SV_ENOMEM);
        assert_int_equal(sv_alloc_live(), live);
    }
    guarded_close(&cpu);
}

/* ---------------------------------------------------------------- parts, gather, large batches */

static void mixed_parts_with_bias(void **state)
{
    (void)state;
    const int32_t k = 75, rows = 21, n[4] = {40, 3, 16, 29};
    const enum sv_dtype dt[4] = {SV_BF16, SV_F32, SV_F16, SV_BF16};
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        struct sv_rng rng = {77};
        struct sv_cpu cpu;
        float x[21 * 75], y[21 * 88];
        uint8_t w[4][40 * 75 * 4], b[4][40 * 4];
        struct sv_gemm_part parts[4];
        if (!present(v))
            continue;
        fill(&rng, x, rows * k, SV_F32);
        for (int p = 0; p < 4; p++) {
            fill(&rng, w[p], (size_t)n[p] * k, dt[p]);
            fill(&rng, b[p], (size_t)n[p], dt[3 - p]);
            parts[p].w = weight(w[p], dt[p], n[p], k);
            parts[p].bias = weight(b[p], dt[3 - p], 1, n[p]);
        }
        guarded_open(&cpu, v, 3);
        multiply(&cpu, x, k, rows, k, parts, 4, y, 88);
        for (int p = 0, col = 0; p < 4; col += n[p++]) {
            struct variant part = {v->isa, v->compute, dt[p], v->name};
            float bias[40];
            for (int32_t c = 0; c < n[p]; c++)
                bias[c] = (float)get(b[p], (size_t)c, dt[3 - p]);
            check_values(&part, x, w[p], bias, y + col, 88, rows, n[p], k);
        }
        guarded_close(&cpu);
    }
}

static void gathers_rows(void **state)
{
    (void)state;
    enum { N = 90, K = 45, ROWS = 60 };
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        struct product p;
        struct sv_cpu cpu;
        int32_t rows[ROWS];
        float y[ROWS * N];
        if (!present(v))
            continue;
        product_open(&p, v, 3 * ROWS, N, K, false);
        guarded_open(&cpu, v, 2);
        struct sv_gemm_part part = {.w = weight(p.w, v->dtype, N, K)};
        for (int32_t count = 1; count <= ROWS; count += count < 20 ? 1 : 13) {
            for (int32_t r = 0; r < count; r++)
                rows[r] = 3 * r + r % 3;
            struct sv_p_gemm q = {.n_rows = count,
                                  .k = K,
                                  .n_parts = 1,
                                  .x = p.x,
                                  .ldx = K,
                                  .parts = &part,
                                  .y = y,
                                  .ldy = N};
            sv_cpu_gemm_gather(&cpu, &q, rows);
            for (int32_t r = 0; r < count; r++)
                assert_memory_equal(y + r * N, p.one + (size_t)rows[r] * N, N * sizeof *y);
        }
        guarded_close(&cpu);
        product_close(&p);
    }
}

/* More rows than one pass packs, and rows of x that stand apart. */
static void many_rows(void **state)
{
    (void)state;
    enum { N = 37, K = 40, LDX = 43, ROWS = 1301 };
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        struct sv_rng rng = {5};
        struct sv_cpu cpu;
        struct fenced fx, fy, fw;
        float alone[N];
        if (!present(v))
            continue;
        float *x = fenced_open(&fx, ROWS * LDX * sizeof *x),
              *y = fenced_open(&fy, ROWS * N * sizeof *y);
        void *w = fenced_open(&fw, N * K * width(v->dtype));
        fill(&rng, x, ROWS * LDX, SV_F32);
        fill(&rng, w, N * K, v->dtype);
        guarded_open(&cpu, v, 2);
        struct sv_gemm_part part = {.w = weight(w, v->dtype, N, K)};
        multiply(&cpu, x, LDX, ROWS, K, &part, 1, y, N);
        for (int32_t r = 0; r < ROWS; r += 61) {
            multiply(&cpu, x + r * LDX, LDX, 1, K, &part, 1, alone, N);
            assert_memory_equal(alone, y + r * N, sizeof alone);
        }
        guarded_close(&cpu);
        fenced_close(&fx);
        fenced_close(&fy);
        fenced_close(&fw);
    }
}

/* ---------------------------------------------------------------- the fused head */

static void head(struct sv_cpu *cpu, const float *x, int32_t rows, int32_t k, struct sv_weight w,
                 const int32_t *index, int32_t *out)
{
    const struct sv_p_head_argmax p = {
        .n_rows = rows, .k = k, .x = x, .w = w, .out_index = index, .out = out};
    sv_cpu_head_argmax((struct sv_dev *)(void *)cpu, &p);
}

static void head_against_gemm(const struct variant *v, struct product *p, int n_threads)
{
    int32_t out[170], index[170];
    struct sv_cpu cpu;
    guarded_open(&cpu, v, n_threads);
    struct sv_gemm_part part = {.w = weight(p->w, v->dtype, p->n, p->k)};
    for (int32_t rows = 1; rows <= p->max_rows; rows += rows < 20 ? n_threads : 50) {
        multiply(&cpu, p->x, p->k, rows, p->k, &part, 1, p->one, p->n);
        for (int32_t r = 0; r < rows; r++)
            index[r] = rows - 1 - r;
        head(&cpu, p->x, rows, p->k, part.w, rows % 2 ? index : NULL, out);
        for (int32_t r = 0; r < rows; r++)
            assert_int_equal(out[rows % 2 ? index[r] : r], argmax(p->one + (size_t)r * p->n, p->n));
    }
    assert_int_equal(cpu.latched.code, SV_OK);
    guarded_close(&cpu);
}

static void head_equals_gemm(void **state)
{
    (void)state;
    enum { N = 301, K = 66, ROWS = 170 };
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        const size_t row = K * width(v->dtype);
        struct product p;
        if (!present(v))
            continue;
        product_open(&p, v, ROWS, N, K, false);
        /* Ties: many equal weight rows, so that the maximum stands in several threads' shares. */
        for (int32_t r = 100; r < N; r++)
            memcpy((uint8_t *)p.w + (size_t)r * row, (uint8_t *)p.w + (size_t)(r % 100) * row, row);
        for (int n_threads = 1; n_threads <= 4; n_threads++)
            head_against_gemm(v, &p, n_threads);
        product_close(&p);
    }
}

static void head_with_nan(void **state)
{
    (void)state;
    enum { N = 83, K = 32, ROWS = 19 };
    for (int i = 0; i < N_VARIANTS; i++) {
        const struct variant *v = &variants[i];
        struct sv_cpu cpu;
        struct product p;
        int32_t out[ROWS];
        if (!present(v))
            continue;
        product_open(&p, v, ROWS, N, K, false);
        for (int32_t r = 0; r < N; r++) /* NaN logits, infinite ones of both signs */
            if (r < 20 || r % 3 == 0)
                put(p.w, (size_t)r * K + 5, v->dtype, NAN);
        if (v->dtype != SV_F16)
            for (int32_t c = 0; c < K; c++)
                p.x[3 * K + c] = c == 7 ? -INFINITY : 0; /* all that is not NaN: 0, inf or -inf */
        guarded_open(&cpu, v, 3);
        struct sv_gemm_part part = {.w = weight(p.w, v->dtype, N, K)};
        for (int32_t rows = 1; rows <= ROWS; rows++) {
            multiply(&cpu, p.x, K, rows, K, &part, 1, p.one, N);
            head(&cpu, p.x, rows, K, part.w, NULL, out);
            for (int32_t r = 0; r < rows; r++)
                assert_int_equal(out[r], argmax(p.one + (size_t)r * N, N));
        }
        assert_int_equal(cpu.latched.code, SV_OK);
        p.x[4 * K + 1] = NAN; /* a whole row of NaN */
        head(&cpu, p.x, ROWS, K, part.w, NULL, out);
        assert_int_equal(out[4], 0);
        assert_int_equal(cpu.latched.code, SV_EDEVICE);
        guarded_close(&cpu);
        product_close(&p);
    }
}

static void refuses_missing_levels(void **state)
{
    (void)state;
    struct sv_cpu cpu = {.isa = SV_ISA_AUTO};
    struct sv_err err;
    assert_int_equal(sv_cpu_gemm_open(&cpu, &err), SV_EUNSUPPORTED);
    assert_true(sv_cpu_has_isa(sv_cpu_best_isa()));
    assert_true(sv_cpu_has_isa(SV_ISA_PLAIN));
}

static void survives_no_memory(void **state)
{
    (void)state;
    for (int nth = 1; nth <= 2; nth++) {
        struct sv_cpu cpu = {
            .isa = SV_ISA_PLAIN, .n_threads = 2, .lim = {.max_rows = 8, .max_k = 64}};
        struct sv_err err;
        sv_fault_arm(nth);
        int rc = sv_cpu_gemm_open(&cpu, &err);
        if (rc == SV_OK)
            rc = sv_cpu_gemm_reserve(&cpu, &err);
        sv_fault_arm(0);
        assert_int_equal(rc, SV_ENOMEM);
        sv_cpu_gemm_close(&cpu);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

SV_TEST_MAIN(cmocka_unit_test(matches_double), cmocka_unit_test(rows_are_independent),
             cmocka_unit_test(rows_are_independent_long_k),
             cmocka_unit_test(rows_are_independent_wild),
             cmocka_unit_test(rows_are_independent_shared_out),
             cmocka_unit_test(rows_are_independent_amx),
             cmocka_unit_test(packed_weights_give_the_same_bits),
             cmocka_unit_test(packing_survives_no_memory), cmocka_unit_test(quantized_weights),
             cmocka_unit_test(mixed_parts_with_bias), cmocka_unit_test(gathers_rows),
             cmocka_unit_test(many_rows), cmocka_unit_test(head_equals_gemm),
             cmocka_unit_test(head_with_nan), cmocka_unit_test(refuses_missing_levels),
             cmocka_unit_test(survives_no_memory))
