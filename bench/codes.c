/*
 * codes.c - measures the CPU backend's products of quantized weights: exact, and with activations
 * in int8 on each instruction set that has them.
 *
 *     build/bench/codes [--threads N] [--rows LIST] [--shape LIST] [--csv FILE]
 *
 * All are measured in turns, call by call, because the machine may be shared. Weights are random
 * codes, copies of one matrix in turns over 64 MiB. Must not: compare figures of different runs.
 */
#include "backend/cpu/gemm.h"

#include "quantile.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CALLS = 256, MOST = 32, MOST_ROWS = 512 };

struct arm {
    const char *name;
    enum sv_isa isa;
    bool int8;
    struct sv_cpu cpu;
    struct sv_weight *w; /* copies of the matrix; its own, or those of the arm before */
    bool owns;
    double us[MOST_CALLS];
};

struct bench {
    struct sv_pool *pool;
    int n_threads, n_arms;
    int64_t rounds;
    struct arm arm[4];
    int32_t shape[MOST][2], rows[MOST];
    int n_shapes, n_rows;
    float *x, *y;
    FILE *csv;
};

static const struct {
    const char *name;
    enum sv_quant_code code;
    int factor_at, n_factors;
} formats[] = {{"q4_k", SV_CODE_Q4_K, 0, 2},
               {"q6_k", SV_CODE_Q6_K, 208, 1},
               {"q8_0", SV_CODE_Q8_0, 0, 1},
               {"int4", SV_CODE_INT4, 0, 0}}; /* in groups of 128 */
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

static void need(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "codes: %s\n", what);
    exit(1);
}

/* Random codes; scales, or their factors, are 2^-6. */
static void random_codes(struct sv_quant *q, int format)
{
    const bool words = q->code == SV_CODE_INT4;
    const int64_t n = words ? (int64_t)q->rows * q->cols / 2 : sv_quant_bytes(q);
    const uint16_t factor = 0x2400;
    struct sv_rng rng = {5};
    uint8_t *p = sv_alloc((size_t)n);
    uint16_t *scales = sv_alloc((size_t)q->rows * (size_t)(q->cols / 128) * sizeof *scales);
    need(p && scales, "out of memory");
    for (int64_t i = 0; i < n; i++)
        p[i] = (uint8_t)(sv_rng_next(&rng) >> 20);
    for (int64_t i = formats[format].factor_at; !words && i < n; i += sv_quant_block_bytes(q->code))
        for (int f = 0; f < formats[format].n_factors; f++)
            memcpy(p + i + 2 * f, &factor, sizeof factor);
    for (int64_t i = 0; i < (int64_t)q->rows * (q->cols / 128); i++)
        scales[i] = factor;
    q->data = p;
    q->scales = scales;
    q->scale = SV_F16;
    q->block_rows = 1;
    q->block_cols = 128;
}

static void open_arm(struct bench *b, struct arm *a, const struct sv_quant *q, int n)
{
    struct sv_err err = {0};
    const struct sv_weight host = {
        .data = q->data, .fmt.elem = SV_U8, .rows = q->rows, .cols = q->cols, .quant = q};
    a->cpu = (struct sv_cpu){
        .pool = b->pool, .n_threads = b->n_threads, .isa = a->isa, .compute = SV_BF16};
    a->cpu.int8 = a->int8;
    a->cpu.lim =
        (struct sv_dev_limits){.max_rows = MOST_ROWS, .max_logit_rows = 1, .max_k = q->cols};
    need(!sv_cpu_gemm_open(&a->cpu, &err) && !sv_cpu_gemm_reserve(&a->cpu, &err), err.msg);
    a->owns = a == b->arm || !a->int8 || !a[-1].int8; /* one packing serves all levels */
    a->w = a->owns ? sv_calloc((size_t)n, sizeof *a->w) : a[-1].w;
    need(a->w, "out of memory");
    for (int i = 0; i < n && a->owns; i++)
        need(!sv_cpu_upload_weight((struct sv_dev *)(void *)&a->cpu, &host, &a->w[i], &err),
             err.msg);
}

static void close_arm(struct arm *a, int n)
{
    for (int i = 0; i < n && a->owns; i++)
        sv_cpu_free_weight((struct sv_dev *)(void *)&a->cpu, &a->w[i]);
    if (a->owns)
        sv_free(a->w);
    sv_cpu_gemm_close(&a->cpu);
}

static double time_call(const struct bench *b, struct arm *a, int copy, int32_t rows)
{
    const struct sv_gemm_part part = {.w = a->w[copy]};
    const struct sv_p_gemm p = {.n_rows = rows,
                                .k = part.w.cols,
                                .n_parts = 1,
                                .x = b->x,
                                .ldx = part.w.cols,
                                .parts = &part,
                                .y = b->y,
                                .ldy = part.w.rows};
    const int64_t start = sv_clock_ns();
    sv_cpu_gemm((struct sv_dev *)(void *)&a->cpu, &p);
    return (double)(sv_clock_ns() - start) * 1e-3;
}

static void measure(struct bench *b, int format, const int32_t shape[2])
{
    struct sv_quant q = {.code = formats[format].code, .rows = shape[0], .cols = shape[1]};
    random_codes(&q, format);
    const int n = (int)((64 << 20) / ((int64_t)shape[0] * shape[1] / 2)) + 2;
    for (int a = 0; a < b->n_arms; a++)
        open_arm(b, &b->arm[a], &q, n);
    printf("%s %d x %d, us (least), beside the first\n", formats[format].name, shape[0], shape[1]);
    for (int i = 0; i < b->n_rows; i++) {
        const double work = (double)shape[0] * shape[1] * b->rows[i];
        int calls = (int)((double)b->rounds * (work > 1e9 ? 1 : work > 1e8 ? 4 : 10));
        calls = calls < MOST_CALLS ? calls : MOST_CALLS;
        double first = 0;
        for (int c = 0; c < calls; c++)
            for (int a = 0; a < b->n_arms; a++)
                b->arm[a].us[c] = time_call(b, &b->arm[a], c % n, b->rows[i]);
        printf("%5d", b->rows[i]);
        for (int a = 0; a < b->n_arms; a++) {
            struct arm *arm = &b->arm[a];
            const double median = quantile(arm->us, calls, 0.5), least = arm->us[0];
            first = a ? first : median;
            printf(" | %s %.0f (%.0f) %.2f", arm->name, median, least, first / median);
            if (b->csv)
                fprintf(b->csv, "%s,%d,%d,%d,%d,%s,%d,%.1f,%.1f,%.1f\n", formats[format].name,
                        shape[0], shape[1], b->rows[i], b->n_threads, arm->name, calls, median,
                        least, quantile(arm->us, calls, 0.9));
        }
        printf("\n");
        fflush(NULL);
    }
    for (int a = 0; a < b->n_arms; a++)
        close_arm(&b->arm[a], n);
    sv_free((void *)(uintptr_t)q.data);
    sv_free((void *)(uintptr_t)q.scales);
}

static void read_lists(struct bench *b, const char *shapes, const char *rows)
{
    for (const char *p = shapes; *p && b->n_shapes < MOST; b->n_shapes++) {
        need(sscanf(p, "%dx%d", &b->shape[b->n_shapes][0], &b->shape[b->n_shapes][1]) == 2 &&
                 b->shape[b->n_shapes][1] % 256 == 0,
             "a shape is NxK, K a multiple of 256");
        p += strcspn(p, ",");
        p += *p == ',';
    }
    for (const char *p = rows; *p && b->n_rows < MOST; b->n_rows++) {
        b->rows[b->n_rows] = (int32_t)strtol(p, NULL, 10);
        need(b->rows[b->n_rows] > 0 && b->rows[b->n_rows] <= MOST_ROWS, "1 to 512 rows");
        p += strcspn(p, ",");
        p += *p == ',';
    }
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const char *const names[] = {"int8 plain", "int8 avx2", "int8 avx512", "int8 amx"};
    int64_t threads = 0;
    const char *csv = NULL, *rows = "1,4,8,16,64,512", *only = "q4_k,q6_k,q8_0,int4";
    const char *shapes = "6144x1024,1024x3072,19456x2560,2560x9728";
    b.rounds = 5;
    const struct sv_opt table[] = {
        {"threads", 't', SV_OPT_INT, &threads, "N", "threads; all processors by default"},
        {"rounds", 'r', SV_OPT_INT, &b.rounds, "N", "rounds of each measurement (5)"},
        {"shape", 0, SV_OPT_STRING, &shapes, "LIST", "matrices, as NxK"},
        {"rows", 0, SV_OPT_STRING, &rows, "LIST", "rows of input"},
        {"format", 'f', SV_OPT_STRING, &only, "LIST", "q4_k,q6_k,q8_0,int4: some of them"},
        {"csv", 'c', SV_OPT_STRING, &csv, "FILE", "append rows to this file"},
        {0}};
    struct sv_err err = {0};
    int n_pos, max_n = 0, max_k = 0;
    const int rc = sv_opt_parse(table, "codes [options]", argc, argv, &n_pos, &err);
    if (rc)
        return rc > 0 ? 0 : (fprintf(stderr, "codes: %s\n", err.msg), 1);
    read_lists(&b, shapes, rows);
    b.n_threads = threads ? (int)threads : sv_cpu_count();
    need(!sv_pool_open(&b.pool, b.n_threads, &err), err.msg);
    b.arm[b.n_arms++] = (struct arm){.name = "exact", .isa = sv_cpu_best_isa()};
    for (enum sv_isa isa = SV_ISA_AVX2; isa <= SV_ISA_AMX; isa++)
        if (sv_cpu_has_isa(isa) && (isa > SV_ISA_AVX2 || !sv_cpu_has_isa(SV_ISA_AVX512)))
            b.arm[b.n_arms++] =
                (struct arm){.name = names[isa - SV_ISA_PLAIN], .isa = isa, .int8 = true};
    for (int i = 0; i < b.n_shapes; i++) {
        max_n = b.shape[i][0] > max_n ? b.shape[i][0] : max_n;
        max_k = b.shape[i][1] > max_k ? b.shape[i][1] : max_k;
    }
    b.x = sv_alloc((size_t)MOST_ROWS * (size_t)max_k * sizeof *b.x);
    b.y = sv_calloc((size_t)MOST_ROWS * (size_t)max_n, sizeof *b.y);
    need(b.x && b.y, "out of memory");
    struct sv_rng rng = {1};
    for (size_t i = 0; i < (size_t)MOST_ROWS * (size_t)max_k; i++)
        b.x[i] = sv_rng_normal(&rng);
    if (csv) {
        const bool fresh = !sv_file_exists(csv);
        need((b.csv = fopen(csv, "ae")), "cannot write the CSV file");
        if (fresh)
            fprintf(b.csv, "format,n,k,rows,threads,arm,calls,median_us,least_us,p90_us\n");
    }
    for (int i = 0; i < b.n_shapes; i++)
        for (int f = 0; f < N_FORMATS; f++)
            if (strstr(only, formats[f].name))
                measure(&b, f, b.shape[i]);
    sv_free(b.x);
    sv_free(b.y);
    sv_pool_close(b.pool);
    need(!b.csv || !fclose(b.csv), "the CSV file could not be written to its end");
    return 0;
}
