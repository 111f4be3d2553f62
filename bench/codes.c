/*
 * codes.c - measures the CPU backend's products of quantized weights on each instruction set: exact
 * and with activations in int8, beside reading the file's bytes alone.
 *
 *     build/bench/codes [--threads N] [--format LIST] [--arm NAME] [--rows LIST] [--shape LIST]
 *                       [--csv FILE]
 *
 * All are measured in turns, call by call, because the machine may be shared. Weights are random
 * codes, copies of one matrix in turns over 64 MiB, of which no arm reads what another has just
 * read. Must not: compare figures of different runs.
 */
#include "backend/cpu/gemm.h"
#include "backend/cpu/vec.h"

#include "quantile.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CALLS = 256, MOST = 32, MOST_ROWS = 512 };

struct arm {
    const char *name;
    enum sv_isa isa; /* AUTO: reads alone */
    bool int8;
    struct sv_cpu cpu;
    struct sv_weight *w; /* copies of the matrix; its own, or those of the arm before */
    bool owns;
    int64_t n_bytes; /* of a copy */
    double us[MOST_CALLS];
};

struct bench {
    struct sv_pool *pool;
    int n_threads, n_arms, n_exact;
    int64_t rounds;
    struct arm arm[10];
    int32_t shape[MOST][2], rows[MOST];
    int n_shapes, n_rows;
    float *x, *y;
    FILE *csv;
};

/* Of GGUF where in a block its factors are, of the others bits, rows and columns of a scale (0: all
 * columns) and its type. */
static const struct {
    const char *name;
    enum sv_quant_code code;
    int factor_at, n_factors, bits;
    int32_t block_rows, block_cols;
    enum sv_dtype scale;
    bool zeros, int8;
} formats[] = {
    {"f8", SV_CODE_F8, .bits = 8, .block_rows = 128, .block_cols = 128, .scale = SV_BF16},
    {"int8", SV_CODE_I8, .bits = 8, .block_rows = 1, .scale = SV_F32, .int8 = true},
    {"int8z", SV_CODE_INT8, 0, 0, 8, 1, 128, SV_F16, true, true},
    {"int4", SV_CODE_INT4, 0, 0, 4, 1, 128, SV_F16, false, true},
    {"awq", SV_CODE_AWQ, 0, 0, 4, 1, 128, SV_F16, true, true},
    {"gptq4", SV_CODE_GPTQ4, 0, 0, 4, 1, 128, SV_F16, true, true},
    {"gptq8", SV_CODE_GPTQ8, 0, 0, 8, 1, 128, SV_F16, true, true},
    {"mxfp4", SV_CODE_MXFP4, .bits = 4, .block_rows = 1, .block_cols = 32, .scale = SV_U8},
    {"nvfp4", SV_CODE_NVFP4, .bits = 4, .block_rows = 1, .block_cols = 16, .scale = SV_F8},
    {"q8_0", SV_CODE_Q8_0, 0, 1, .int8 = true},
    {"q4_0", SV_CODE_Q4_0, 0, 1, .int8 = true},
    {"q4_k", SV_CODE_Q4_K, 0, 2, .int8 = true},
    {"q5_k", SV_CODE_Q5_K, 0, 2, .int8 = true},
    {"q6_k", SV_CODE_Q6_K, 208, 1, .int8 = true},
    {"iq4_nl", SV_CODE_IQ4_NL, .n_factors = 1},
    {"gg_mxfp4", SV_CODE_GG_MXFP4, .n_factors = 1},
};
enum { N_FORMATS = sizeof formats / sizeof formats[0] };

static void need(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "codes: %s\n", what);
    exit(1);
}

/* Bytes of codes, of GGUF with all that is in a block. */
static int64_t code_bytes(const struct sv_quant *q, int format)
{
    const int bits = formats[format].bits;
    return bits ? (int64_t)q->rows * q->cols * bits / 8 : sv_quant_bytes(q);
}

/* n copies of random codes; every byte of scales, zero points and factors is 0x3c, which is no
 * extreme number of any type. */
static void random_codes(struct sv_quant *q, int n, int format)
{
    enum { SCALE = 0x3c };
    const int64_t n_bytes = code_bytes(q, format);
    struct sv_rng rng = {5};
    uint8_t *p = sv_alloc((size_t)(n * n_bytes)), *scales = sv_alloc((size_t)q->rows * q->cols / 4);
    need(p && scales, "out of memory");
    for (int64_t i = 0; i < n_bytes; i++)
        p[i] = (uint8_t)(sv_rng_next(&rng) >> 20);
    for (int64_t i = formats[format].factor_at; formats[format].n_factors && i < n_bytes;
         i += sv_quant_block_bytes(q->code))
        memset(p + i, SCALE, (size_t)formats[format].n_factors * 2);
    memset(scales, SCALE, (size_t)q->rows * q->cols / 4);
    q->data = p;
    q->scales = scales;
    q->zeros = formats[format].zeros ? scales : NULL;
    q->scale = formats[format].scale;
    q->block_rows = formats[format].block_rows;
    q->block_cols = formats[format].block_cols ? formats[format].block_cols : q->cols;
    q->global = 1;
    for (int i = 1; i < n; i++) {
        q[i] = q[0];
        q[i].data = memcpy(p + i * n_bytes, p, (size_t)n_bytes);
    }
}

/* Copy i of the matrix, as it was read. */
static struct sv_weight file_weight(const struct sv_quant *q, int i)
{
    return (struct sv_weight){
        .data = q[i].data, .fmt.elem = SV_U8, .rows = q->rows, .cols = q->cols, .quant = &q[i]};
}

static void open_arm(struct bench *b, struct arm *a, const struct sv_quant *q, int n)
{
    struct sv_err err = {0};
    a->cpu = (struct sv_cpu){
        .pool = b->pool, .n_threads = b->n_threads, .isa = a->isa, .compute = SV_BF16};
    a->cpu.int8 = a->int8;
    a->cpu.lim =
        (struct sv_dev_limits){.max_rows = MOST_ROWS, .max_logit_rows = 1, .max_k = q->cols};
    if (a->isa)
        need(!sv_cpu_gemm_open(&a->cpu, &err) && !sv_cpu_gemm_reserve(&a->cpu, &err), err.msg);
    a->owns = a == b->arm || !a->int8 || !a[-1].int8; /* one packing serves all levels */
    a->w = a->owns ? sv_calloc((size_t)n, sizeof *a->w) : a[-1].w;
    need(a->w, "out of memory");
    for (int i = 0; i < n && a->owns; i++) {
        const struct sv_weight host = file_weight(q, i);
        if (!a->isa)
            a->w[i] = host;
        else
            need(!sv_cpu_upload_weight((struct sv_dev *)(void *)&a->cpu, &host, &a->w[i], &err),
                 err.msg);
    }
}

static void close_arm(struct arm *a, int n)
{
    for (int i = 0; i < n && a->owns && a->isa; i++)
        sv_cpu_free_weight((struct sv_dev *)(void *)&a->cpu, &a->w[i]);
    if (a->owns)
        sv_free(a->w);
    if (a->isa)
        sv_cpu_gemm_close(&a->cpu);
}

struct reading {
    const uint8_t *data;
    int64_t n_bytes;
    uint64_t seen; /* keeps the reads alive */
};

static void read_share(void *arg, int thread, int n)
{
    struct reading *r = arg;
    const struct sv_cpu_vec *vec = &sv_cpu_vec_plain;
    const int64_t lines = r->n_bytes / 256, begin = lines * thread / n * 256,
                  end = lines * (thread + 1) / n * 256;
#ifndef SV_NO_AVX512
    vec = sv_cpu_has_isa(SV_ISA_AVX512) ? &sv_cpu_vec_avx512 : vec;
#endif
    __atomic_fetch_add(&r->seen, vec->read(r->data + begin, (size_t)(end - begin)),
                       __ATOMIC_RELAXED);
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
    struct reading read = {part.w.data, a->n_bytes, 0};
    const int64_t start = sv_clock_ns();
    if (a->isa)
        sv_cpu_gemm((struct sv_dev *)(void *)&a->cpu, &p);
    else
        sv_pool_run(b->pool, read_share, &read);
    return (double)(sv_clock_ns() - start) * 1e-3;
}

static void measure(struct bench *b, int format, const int32_t shape[2])
{
    const int n = (int)((64 << 20) / ((int64_t)shape[0] * shape[1] / 2)) + 2,
              n_arms = formats[format].int8 ? b->n_arms : b->n_exact;
    struct sv_quant *q = sv_calloc((size_t)n, sizeof *q);
    need(q, "out of memory");
    q[0] = (struct sv_quant){.code = formats[format].code, .rows = shape[0], .cols = shape[1]};
    random_codes(q, n, format);
    for (int a = 0; a < n_arms; a++) {
        struct arm *arm = &b->arm[a];
        open_arm(b, arm, q, n);
        arm->n_bytes = arm->isa
                           ? sv_cpu_weight_bytes((struct sv_dev *)(void *)&arm->cpu, &arm->w[0], 1)
                           : code_bytes(q, format);
    }
    printf("%s %d x %d, us (least), of the read bandwidth\n", formats[format].name, shape[0],
           shape[1]);
    for (int i = 0; i < b->n_rows; i++) {
        const double work = (double)shape[0] * shape[1] * b->rows[i];
        int calls = (int)((double)b->rounds * (work > 1e9 ? 1 : work > 1e8 ? 4 : 10));
        calls = calls < MOST_CALLS ? calls : MOST_CALLS;
        double read = 0;
        for (int c = 0; c < calls; c++)
            for (int a = 0; a < n_arms; a++)
                b->arm[a].us[c] = time_call(b, &b->arm[a], (c + a * n / n_arms) % n, b->rows[i]);
        printf("%5d", b->rows[i]);
        for (int a = 0; a < n_arms; a++) {
            struct arm *arm = &b->arm[a];
            const double median = quantile(arm->us, calls, 0.5), least = arm->us[0],
                         gbs = (double)arm->n_bytes / median * 1e-3;
            read = a ? read : gbs;
            printf(" | %s %.0f (%.0f) %.2f", arm->name, median, least, gbs / read);
            if (b->csv)
                fprintf(b->csv, "%s,%d,%d,%d,%d,%s,%d,%.1f,%.1f,%.1f,%.2f,%.3f\n",
                        formats[format].name, shape[0], shape[1], b->rows[i], b->n_threads,
                        arm->name, calls, median, least, quantile(arm->us, calls, 0.9), gbs,
                        gbs / read);
        }
        printf("\n");
        fflush(NULL);
    }
    for (int a = 0; a < n_arms; a++)
        close_arm(&b->arm[a], n);
    sv_free((void *)(uintptr_t)q->data);
    sv_free((void *)(uintptr_t)q->scales);
    sv_free(q);
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

static bool is_wanted(const char *list, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = list; p && (p = strstr(p, name)); p += n)
        if ((p == list || p[-1] == ',') && (p[n] == ',' || !p[n]))
            return true;
    return !list;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const char *const names[] = {"plain",      "avx2",      "avx512",      "amx",
                                        "int8 plain", "int8 avx2", "int8 avx512", "int8 amx"};
    int64_t threads = 0;
    const char *csv = NULL, *rows = "1,4,8,16,64,512", *only = NULL, *arm = "";
    const char *shapes = "6144x1024,1024x3072,19456x2560,2560x9728";
    b.rounds = 5;
    const struct sv_opt table[] = {
        {"threads", 't', SV_OPT_INT, &threads, "N", "threads; all processors by default"},
        {"rounds", 'r', SV_OPT_INT, &b.rounds, "N", "rounds of each measurement (5)"},
        {"shape", 0, SV_OPT_STRING, &shapes, "LIST", "matrices, as NxK"},
        {"rows", 0, SV_OPT_STRING, &rows, "LIST", "rows of input"},
        {"format", 'f', SV_OPT_STRING, &only, "LIST", "some formats, as q4_k,f8; all by default"},
        {"arm", 'a', SV_OPT_STRING, &arm, "NAME", "only arms with this in their name, as avx512"},
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
    b.arm[b.n_arms++] = (struct arm){.name = "read"};
    for (int i = 0; i < 8; i++) {
        const enum sv_isa isa = SV_ISA_PLAIN + i % 4;
        if (sv_cpu_has_isa(isa) && strstr(names[i], arm))
            b.arm[b.n_arms++] = (struct arm){.name = names[i], .isa = isa, .int8 = i >= 4};
        b.n_exact = i < 4 ? b.n_arms : b.n_exact;
    }
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
            fprintf(b.csv, "format,n,k,rows,threads,arm,calls,median_us,least_us,p90_us,gb_s,"
                           "share_of_read\n");
    }
    for (int i = 0; i < b.n_shapes; i++)
        for (int f = 0; f < N_FORMATS; f++)
            if (is_wanted(only, formats[f].name))
                measure(&b, f, b.shape[i]);
    sv_free(b.x);
    sv_free(b.y);
    sv_pool_close(b.pool);
    need(!b.csv || !fclose(b.csv), "the CSV file could not be written to its end");
    return 0;
}
