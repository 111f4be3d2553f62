/*
 * gemm.c - measures the CPU backend's matrix products beside the limits of the machine: a read-only
 * sweep of the same memory in the same run, and oneDNN where its library is installed.
 *
 * A program of its own; writes a table to stdout and, with --csv FILE, rows to append to
 * bench/results. Built by `make bench`, or by hand from the repository root: make && gcc -std=c11
 * -O2 -Isrc -o gemm bench/gemm.c build/libsalvo.a -ljansson -lm -ldl -pthread Weights rotate over a
 * pool (2 GiB by default, --pool) much larger than the last-level cache, on 4 KiB pages as a mapped
 * file has them. Everything compared is measured in turns, round after round, because the machine
 * may be shared. Must not: compare figures of different runs.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, popen, setenv */

#include "backend/cpu/head_screen.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if __has_include(<oneapi/dnnl/dnnl.h>)
#include <oneapi/dnnl/dnnl.h>
#define HAVE_DNNL 1
#endif

#define MAX_TIMES 512

struct bench {
    struct sv_cpu cpu;
    uint8_t *pool;
    size_t pool_bytes, at;
    float *x, *y;
    uint16_t *x16; /* the peer's copy of x */
    int32_t *out;
    size_t max_y;
    int64_t rounds;
    double ceiling; /* GB/s, best of this run so far */
    FILE *csv;
    char stamp[256]; /* date,commit,machine */
    const char *isa;
    bool raw, huge; /* weights as published where the kernel wants them packed; on huge pages */
    const char *only_shape, *only_rows; /* "12288x4096,320x320", "1,16", or NULL */
    bool wcomp;                         /* bf16 weights in fewer bits */
    struct rotation *rotations;
    uint16_t *normal;   /* (NORMALS) weights to make matrices of */
    int64_t read_bytes; /* of the last product's weights */
};

struct shape {
    int32_t n, k, parts; /* n is the sum over the parts */
};

/* --compressed: copies of one matrix, taken in turns. */
struct rotation {
    struct rotation *next;
    struct shape shape;
    int n, at;
    struct sv_weight (*w)[SV_GEMM_MAX_PARTS];
};
#define NORMALS (1 << 20)
#define ROTATION_BYTES ((size_t)640 << 20)

struct times {
    int n;
    double us[MAX_TIMES];
};

/* Ratios of what was measured in the same round: memory and processors are others' too, and change
 * from one round to the next. */
struct pairs {
    struct times ratio;
    double over, under;
};

static double now_us(void)
{
    return (double)sv_clock_ns() * 1e-3;
}

static void times_add(struct times *t, double us)
{
    if (t->n < MAX_TIMES)
        t->us[t->n++] = us;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(struct times *t, double q)
{
    qsort(t->us, (size_t)t->n, sizeof t->us[0], by_value);
    return t->n ? t->us[(int)(q * (t->n - 1) + 0.5)] : 0;
}

static void pairs_round(struct pairs *p)
{
    if (p->under > 0 && p->over > 0)
        times_add(&p->ratio, p->over / p->under);
    p->over = p->under = 0;
}

/* What the options leave of a section's shapes and row counts; returns the number kept. */
static int pick_shapes(const struct bench *b, const struct shape *from, int n, struct shape *to)
{
    int kept = 0;
    struct shape own = {.parts = 1};
    for (const char *p = b->only_shape; p && kept < 8 && sscanf(p, "%dx%d", &own.n, &own.k) == 2;
         p += strcspn(p, ","), p += *p == ',')
        to[kept++] = own;
    if (kept)
        return kept;
    for (int i = 0; i < n; i++)
        to[kept++] = from[i];
    return kept;
}

static int pick_rows(const struct bench *b, const int32_t *from, int n, int32_t *to)
{
    int kept = 0;
    for (const char *p = b->only_rows; p && *p && kept < 32; p += strcspn(p, ","), p += *p == ',')
        to[kept++] = (int32_t)strtol(p, NULL, 10);
    for (int i = 0; !b->only_rows && i < n; i++)
        to[kept++] = from[i];
    return kept;
}

/* ---------------------------------------------------------------- the limit: reading memory */

typedef uint64_t vec64 __attribute__((vector_size(64)));

struct sweep {
    const struct bench *b;
    const uint8_t *p;
    size_t n_bytes;
    int streams;
};

/* `streams` pointers a row of 8 KiB apart, as the kernels walk a weight matrix of 4096 columns; 1:
 * one run. */
#if defined(__x86_64__)
__attribute__((target("avx512f")))
#endif
static void
sweep_wide(const uint8_t *p, size_t n_bytes, int streams, vec64 *sink)
{
    vec64 a = {0}, b = {0}, c = {0}, d = {0};
    if (streams == 1) {
        for (size_t i = 0; i + 256 <= n_bytes; i += 256) {
            const vec64 *v = (const vec64 *)(const void *)(p + i);
            a |= v[0];
            b |= v[1];
            c |= v[2];
            d |= v[3];
        }
    } else {
        const size_t row = 8192;
        for (size_t g = 0; g + 16 * row <= n_bytes; g += 16 * row)
            for (size_t i = 0; i < row; i += 64)
                for (int s = 0; s < 16; s += 4) {
                    const uint8_t *q = p + g + (size_t)s * row + i;
                    a |= *(const vec64 *)(const void *)q;
                    b |= *(const vec64 *)(const void *)(q + row);
                    c |= *(const vec64 *)(const void *)(q + 2 * row);
                    d |= *(const vec64 *)(const void *)(q + 3 * row);
                }
    }
    *sink = a | b | c | d;
}

static void sweep_plain(const uint8_t *p, size_t n_bytes, int streams, vec64 *sink)
{
    uint64_t acc[8] = {0};
    (void)streams;
    for (size_t i = 0; i + 64 <= n_bytes; i += 64)
        for (int j = 0; j < 8; j++) {
            uint64_t v;
            memcpy(&v, p + i + j * 8, 8);
            acc[j] |= v;
        }
    memcpy(sink, acc, sizeof acc);
}

static void sweep_part(void *arg, int i, int n)
{
    static vec64 sink[256];
    const struct sweep *s = arg;
    size_t unit = 16 * 8192, units = s->n_bytes / unit;
    size_t a = units * (size_t)i / (size_t)n * unit, e = units * (size_t)(i + 1) / (size_t)n * unit;
    (sv_cpu_has_isa(SV_ISA_AVX512) ? sweep_wide : sweep_plain)(s->p + a, e - a, s->streams,
                                                               &sink[i % 256]);
}

static uint8_t *next_weights(struct bench *b, size_t n_bytes)
{
    n_bytes = (n_bytes + 4095) & ~(size_t)4095;
    if (b->at + n_bytes > b->pool_bytes)
        b->at = 0;
    uint8_t *p = b->pool + b->at;
    b->at += n_bytes;
    return p;
}

/* Best of both forms, GB/s; also keeps the best of the run. */
static double measure_read(struct bench *b)
{
    double best = 0;
    for (int streams = 1; streams <= 16; streams += 15) {
        struct sweep s = {.b = b, .n_bytes = 128u << 20, .streams = streams};
        s.p = next_weights(b, s.n_bytes);
        double t = now_us();
        sv_pool_run(b->cpu.pool, sweep_part, &s);
        t = (double)s.n_bytes / (now_us() - t) * 1e-3;
        best = t > best ? t : best;
    }
    b->ceiling = best > b->ceiling ? best : b->ceiling;
    return best;
}

/* ---------------------------------------------------------------- our product */

static size_t elem(enum sv_dtype t)
{
    return t == SV_F32 ? 4 : 2;
}

static int32_t part_rows(struct shape s, int32_t i)
{
    /* Three parts are q, k and v with few KV heads: 64 rows each for k and v; otherwise equal. */
    return s.parts != 3 ? s.n / s.parts : i ? 64 : s.n - 128;
}

static bool one_copy(struct bench *b, struct shape s, const uint16_t *w, struct sv_weight *out)
{
    for (int32_t i = 0; i < s.parts; i++) {
        const struct sv_weight host = {
            .data = w, .fmt.elem = SV_BF16, .rows = part_rows(s, i), .cols = s.k};
        struct sv_err err;
        if (sv_cpu_upload_weight((struct sv_dev *)(void *)&b->cpu, &host, &out[i], &err))
            return fprintf(stderr, "gemm: %s\n", err.msg), false;
        if (!sv_cpu_is_wcomp(&out[i]))
            return fprintf(stderr, "gemm: this machine keeps no compressed weights\n"), false;
        w += (size_t)host.rows * (size_t)s.k;
    }
    return true;
}

/* The copies of a shape, made when it is first asked for: normal numbers, as a fresh model has. */
static const struct sv_weight *next_wcomp(struct bench *b, struct shape s)
{
    struct rotation *r = b->rotations;
    while (r && memcmp(&r->shape, &s, sizeof s) != 0)
        r = r->next;
    const size_t n = (size_t)s.n * (size_t)s.k;
    if (!r) {
        r = sv_calloc(1, sizeof *r);
        uint16_t *w = sv_alloc(n * sizeof *w);
        if (!r || !w)
            exit((fprintf(stderr, "gemm: out of memory\n"), 1));
        for (size_t i = 0; i < n; i++)
            w[i] = b->normal[(i * 40503u + i / 977u) % NORMALS];
        r->shape = s;
        r->n = (int)(ROTATION_BYTES / (n * 2)) + 2;
        r->n = r->n > 64 ? 64 : r->n;
        r->w = sv_calloc((size_t)r->n, sizeof *r->w);
        int64_t t = sv_clock_ns();
        for (int i = 0; i < r->n; i++)
            if (!r->w || !one_copy(b, s, w, r->w[i]))
                exit(1);
        fprintf(stderr, "%d x %d made compressed at %.2f GB/s of bf16\n", s.n, s.k,
                2.0 * (double)n * r->n / (double)(sv_clock_ns() - t));
        sv_free(w);
        r->next = b->rotations;
        b->rotations = r;
    }
    r->at = (r->at + 1) % r->n;
    return r->w[r->at];
}

static double time_ours(struct bench *b, struct shape s, int32_t rows, enum sv_dtype dt, bool head,
                        const uint8_t *at)
{
    const size_t n_bytes = (size_t)s.n * (size_t)s.k * elem(dt);
    const bool wcomp = b->wcomp && dt == SV_BF16 && !at;
    const struct sv_weight *made = wcomp ? next_wcomp(b, s) : NULL;
    const uint8_t *w = at ? at : wcomp ? NULL : next_weights(b, n_bytes);
    struct sv_gemm_part parts[SV_GEMM_MAX_PARTS];
    struct sv_cpu_weight packed = {.packed = true};
    struct sv_dev *dev = (struct sv_dev *)(void *)&b->cpu;
    memset(parts, 0, sizeof parts);
    b->read_bytes = 0;
    for (int32_t i = 0, row = 0, n; i < s.parts; i++, row += n) {
        n = part_rows(s, i);
        if (wcomp) {
            parts[i].w = made[i];
            b->read_bytes += sv_cpu_weight_bytes(dev, &made[i], SV_READ_ROWS);
            continue;
        }
        parts[i].w = (struct sv_weight){.data = w + (size_t)row * (size_t)s.k * elem(dt),
                                        .fmt.elem = dt,
                                        .rows = n,
                                        .cols = s.k};
        b->read_bytes += (int64_t)n * s.k * (int64_t)elem(dt);
        if (dt == SV_BF16 && !b->raw && sv_cpu_gemm_packs(&b->cpu))
            parts[i].w.priv = &packed;
    }
    double t = now_us();
    if (head) {
        struct sv_p_head_argmax p = {
            .n_rows = rows, .k = s.k, .x = b->x, .w = parts[0].w, .out = b->out};
        sv_cpu_head_argmax(dev, &p);
    } else {
        struct sv_p_gemm p = {.n_rows = rows,
                              .k = s.k,
                              .n_parts = s.parts,
                              .x = b->x,
                              .ldx = s.k,
                              .parts = parts,
                              .y = b->y,
                              .ldy = s.n};
        sv_cpu_gemm(dev, &p);
    }
    return now_us() - t;
}

static void csv_row(struct bench *b, const char *what, const char *kernel, struct shape s,
                    int32_t rows, enum sv_dtype dt, struct times *t, const char *limit,
                    double limit_value, double share)
{
    if (!b->csv)
        return;
    double med = quantile(t, 0.5);
    fprintf(b->csv, "%s,%s,%s,%d,%s,%d,%d,%d,%.2f,%.2f,%.2f,%.2f,%.1f,%s,%.2f,%.3f\n", b->stamp,
            what, kernel, b->cpu.n_threads,
            dt == SV_F32   ? "f32"
            : dt == SV_F16 ? "f16"
                           : "bf16",
            rows, s.n, s.k, med, quantile(t, 0), quantile(t, 0.9),
            (double)b->read_bytes / med * 1e-3, 2.0 * s.n * s.k * rows / med * 1e-3, limit,
            limit_value, share);
}

/* ---------------------------------------------------------------- oneDNN */

#ifdef HAVE_DNNL
struct dnn {
    void *lib;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    bool ok;
    char name[48];
    dnnl_status_t (*tag)(dnnl_memory_desc_t *, int, const dnnl_dims_t, dnnl_data_type_t,
                         dnnl_format_tag_t);
    dnnl_status_t (*desc)(dnnl_matmul_desc_t *, const dnnl_memory_desc_t *,
                          const dnnl_memory_desc_t *, const dnnl_memory_desc_t *,
                          const dnnl_memory_desc_t *);
    dnnl_status_t (*pd)(dnnl_primitive_desc_t *, const_dnnl_op_desc_t, const_dnnl_primitive_attr_t,
                        dnnl_engine_t, const_dnnl_primitive_desc_t);
    dnnl_status_t (*prim)(dnnl_primitive_t *, const_dnnl_primitive_desc_t);
    dnnl_status_t (*reorder)(dnnl_primitive_desc_t *, const dnnl_memory_desc_t *, dnnl_engine_t,
                             const dnnl_memory_desc_t *, dnnl_engine_t,
                             const_dnnl_primitive_attr_t);
    dnnl_status_t (*mem)(dnnl_memory_t *, const dnnl_memory_desc_t *, dnnl_engine_t, void *);
    dnnl_status_t (*set)(dnnl_memory_t, void *);
    dnnl_status_t (*exec)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *);
    dnnl_status_t (*wait)(dnnl_stream_t);
};

static void dnn_symbol(struct dnn *d, void *slot, const char *name)
{
    void *f = d->lib ? dlsym(d->lib, name) : NULL;
    memcpy(slot, &f, sizeof f);
    d->ok = d->ok && f;
}

static void dnn_open(struct dnn *d, int n_threads)
{
    char text[16];
    dnnl_status_t (*engine)(dnnl_engine_t *, dnnl_engine_kind_t, size_t) = NULL;
    dnnl_status_t (*stream)(dnnl_stream_t *, dnnl_engine_t, unsigned) = NULL;
    const dnnl_version_t *(*version)(void) = NULL;
    snprintf(text, sizeof text, "%d", n_threads);
    setenv("OMP_NUM_THREADS", text, 1);
    d->lib = dlopen("libdnnl.so.2", RTLD_NOW);
    d->ok = d->lib;
    dnn_symbol(d, &engine, "dnnl_engine_create");
    dnn_symbol(d, &stream, "dnnl_stream_create");
    dnn_symbol(d, &version, "dnnl_version");
    dnn_symbol(d, &d->tag, "dnnl_memory_desc_init_by_tag");
    dnn_symbol(d, &d->desc, "dnnl_matmul_desc_init");
    dnn_symbol(d, &d->pd, "dnnl_primitive_desc_create");
    dnn_symbol(d, &d->prim, "dnnl_primitive_create");
    dnn_symbol(d, &d->reorder, "dnnl_reorder_primitive_desc_create");
    dnn_symbol(d, &d->mem, "dnnl_memory_create");
    dnn_symbol(d, &d->set, "dnnl_memory_set_data_handle");
    dnn_symbol(d, &d->exec, "dnnl_primitive_execute");
    dnn_symbol(d, &d->wait, "dnnl_stream_wait");
    if (!d->ok)
        return;
    snprintf(d->name, sizeof d->name, "oneDNN %d.%d.%d", version()->major, version()->minor,
             version()->patch);
    d->ok = engine(&d->engine, dnnl_cpu, 0) == dnnl_success &&
            stream(&d->stream, d->engine, 0) == dnnl_success;
}

struct dnn_product {
    dnnl_primitive_t prim, round;
    dnnl_memory_t x32, x, w, y;
};

/* Weights as they lie in a checkpoint, (n, k) row-major. Input in bf16, rounded from f32 by the
 * library when that is to count, as it does in our own time. */
static bool dnn_prepare(struct dnn *d, struct dnn_product *p, struct bench *b, struct shape s,
                        int32_t rows)
{
    dnnl_dims_t dx = {rows, s.k}, dw = {s.k, s.n}, dy = {rows, s.n};
    dnnl_memory_desc_t mx32, mx, mw, my;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    if (!d->ok || d->tag(&mx32, 2, dx, dnnl_f32, dnnl_ab) ||
        d->tag(&mx, 2, dx, dnnl_bf16, dnnl_ab) || d->tag(&mw, 2, dw, dnnl_bf16, dnnl_ba) ||
        d->tag(&my, 2, dy, dnnl_f32, dnnl_ab))
        return false;
    if (d->desc(&desc, &mx, &mw, NULL, &my) || d->pd(&pd, &desc, NULL, d->engine, NULL) ||
        d->prim(&p->prim, pd) || d->reorder(&pd, &mx32, d->engine, &mx, d->engine, NULL) ||
        d->prim(&p->round, pd))
        return false;
    return !d->mem(&p->x32, &mx32, d->engine, b->x) && !d->mem(&p->x, &mx, d->engine, b->x16) &&
           !d->mem(&p->w, &mw, d->engine, b->pool) && !d->mem(&p->y, &my, d->engine, b->y);
}

static double time_dnn(struct dnn *d, struct dnn_product *p, struct bench *b, struct shape s,
                       bool round)
{
    dnnl_exec_arg_t args[3] = {
        {DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->w}, {DNNL_ARG_DST, p->y}};
    dnnl_exec_arg_t rounding[2] = {{DNNL_ARG_FROM, p->x32}, {DNNL_ARG_TO, p->x}};
    d->set(p->w, next_weights(b, (size_t)s.n * (size_t)s.k * 2));
    double t = now_us();
    if (round)
        d->exec(p->round, d->stream, 2, rounding);
    d->exec(p->prim, d->stream, 3, args);
    d->wait(d->stream);
    return now_us() - t;
}
#else
struct dnn {
    bool ok;
    char name[8];
};
struct dnn_product {
    int unused;
};
static void dnn_open(struct dnn *d, int n_threads)
{
    (void)n_threads;
    memset(d, 0, sizeof *d);
}
static bool dnn_prepare(struct dnn *d, struct dnn_product *p, struct bench *b, struct shape s,
                        int32_t rows)
{
    (void)d, (void)p, (void)b, (void)s, (void)rows;
    return false;
}
static double time_dnn(struct dnn *d, struct dnn_product *p, struct bench *b, struct shape s,
                       bool round)
{
    (void)d, (void)p, (void)b, (void)s, (void)round;
    return 0;
}
#endif

/* ---------------------------------------------------------------- sections */

/* Few rows: the weights' bytes over time, as a share of what reading alone gives. */
static void section_stream(struct bench *b, enum sv_dtype dt)
{
    static const struct shape all[] = {
        {12288, 4096, 1}, {4096, 4096, 1}, {4096, 12288, 1}, {6144, 1024, 2}, {1024, 3072, 1}};
    static const int32_t all_rows[] = {1,  2,  3,  4,  6,  8,  9,  12, 15,
                                       16, 17, 24, 32, 33, 48, 64, 96, 128};
    static struct times t[32];
    static struct pairs share[32], ones[32];
    struct shape shapes[8];
    int32_t rows[32];
    const int n_shapes = pick_shapes(b, all, 5, shapes);
    const int n_rows = pick_rows(b, all_rows, (int)(sizeof all_rows / sizeof all_rows[0]), rows);
    for (int i = 0; i < n_shapes; i++) {
        const struct shape s = shapes[i];
        double n_bytes = (double)s.n * s.k * (double)elem(dt);
        const int calls = n_bytes > 64e6 ? 1 : n_bytes > 16e6 ? 2 : 6;
        struct times read = {0};
        memset(t, 0, sizeof t);
        memset(share, 0, sizeof share);
        memset(ones, 0, sizeof ones);
        for (int64_t r = 0; r < b->rounds; r++) {
            double gb = measure_read(b), one = 0;
            times_add(&read, gb);
            for (int j = 0; j < n_rows; j++) {
                struct times some = {0};
                for (int c = 0; c < calls; c++)
                    times_add(&some, time_ours(b, s, rows[j], dt, false, NULL));
                for (int c = 0; c < calls; c++)
                    times_add(&t[j], some.us[c]);
                const double us = quantile(&some, 0.5);
                one = j ? one : us;
                share[j].over = (double)b->read_bytes / us * 1e-3;
                share[j].under = gb;
                ones[j].over = us;
                ones[j].under = one;
                pairs_round(&share[j]);
                pairs_round(&ones[j]);
            }
        }
        n_bytes = (double)b->read_bytes;
        const double limit = quantile(&read, 0.5), best = quantile(&read, 1);
        printf("\nstream %s %d x %d, read %.1f GB/s (best %.1f); shares and ratios: median of "
               "rounds\n  rows   med us  best us     GB/s "
               " share  best/best  x 1 row\n",
               b->isa, s.n, s.k, limit, best);
        for (int j = 0; j < n_rows; j++) {
            double med = quantile(&t[j], 0.5), low = quantile(&t[j], 0);
            printf("  %4d %8.1f %8.1f %8.2f %5.1f%%     %5.1f%%    %5.2f\n", rows[j], med, low,
                   n_bytes / med * 1e-3, 100 * quantile(&share[j].ratio, 0.5),
                   n_bytes / low * 0.1 / best, quantile(&ones[j].ratio, 0.5));
            csv_row(b, "stream", b->isa, s, rows[j], dt, &t[j], "read GB/s", limit,
                    quantile(&share[j].ratio, 0.5));
        }
    }
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 15000000}, NULL);
}

static void section_prefill(struct bench *b, struct dnn *d, enum sv_dtype dt)
{
    static const struct shape all[] = {{12288, 4096, 1}, {4096, 4096, 1}, {4096, 12288, 1},
                                       {4096, 1024, 2},  {6144, 1024, 2}, {1024, 3072, 1},
                                       {1024, 2048, 1},  {1024, 1024, 1}};
    static const int32_t all_rows[] = {64, 128, 512, 2048};
    struct shape shapes[8];
    int32_t rows[32];
    const int n_shapes = pick_shapes(b, all, 8, shapes), n_rows = pick_rows(b, all_rows, 4, rows);
    printf("\nprefill %s, GFLOP/s (median, best); peer: %s, its input given in bf16, or f32 as "
           "ours is; ratios: median of rounds\n"
           "       n x k      rows    med us    median      best | peer bf16  ours/peer | peer f32 "
           " ours/peer\n",
           b->isa, d->ok ? d->name : "none installed");
    for (int i = 0; i < n_shapes; i++)
        for (int j = 0; j < n_rows; j++) {
            const struct shape s = shapes[i];
            struct dnn_product p;
            struct times ours = {0}, peer[2] = {{0}, {0}};
            struct pairs ratio[2] = {0};
            const bool has_peer = dt == SV_BF16 && dnn_prepare(d, &p, b, s, rows[j]);
            const double flop = 2e-3 * s.n * s.k * rows[j];
            for (int64_t r = 0; r < b->rounds; r++) {
                /* Each side's threads spin for a while; let them go to sleep
                 * before the other's turn, and wake one's own with a call that is not counted. */
                for (int c = 0; c < 3; c++) {
                    double us = time_ours(b, s, rows[j], dt, false, NULL);
                    if (!c)
                        continue;
                    times_add(&ours, us);
                    ratio[0].under += us;
                    ratio[1].under += us;
                }
                nap();
                for (int c = 0; has_peer && c < 5; c++) {
                    double us = time_dnn(d, &p, b, s, c > 2);
                    if (!c)
                        continue;
                    times_add(&peer[c > 2], us);
                    ratio[c > 2].over += us;
                }
                nap();
                pairs_round(&ratio[0]);
                pairs_round(&ratio[1]);
            }
            double med = quantile(&ours, 0.5), p16 = quantile(&peer[0], 0.5),
                   p32 = quantile(&peer[1], 0.5), r16 = quantile(&ratio[0].ratio, 0.5),
                   r32 = quantile(&ratio[1].ratio, 0.5);
            printf("%6d x %5d %8d %9.1f %9.1f %9.1f", s.n, s.k, rows[j], med, flop / med,
                   flop / quantile(&ours, 0));
            if (has_peer)
                printf(" | %9.1f %9.2f  | %8.1f %9.2f | %.2f-%.2f", flop / p16, r16, flop / p32,
                       r32, quantile(&ratio[0].ratio, 0.25), quantile(&ratio[0].ratio, 0.75));
            printf("\n");
            csv_row(b, "prefill", b->isa, s, rows[j], dt, &ours, has_peer ? d->name : "none", p16,
                    r16);
            if (has_peer)
                csv_row(b, "prefill f32 input", b->isa, s, rows[j], dt, &ours, d->name, p32, r32);
        }
}

/* The shipped pair's shapes, weights in cache as they are there: microseconds per call. */
static void section_tiny(struct bench *b)
{
    static const struct shape shapes[] = {{448, 320, 3}, {320, 320, 1}, {1792, 320, 2},
                                          {320, 896, 1}, {320, 960, 1}, {768, 320, 6},
                                          {6144, 320, 1}};
    static const int32_t rows[] = {1, 4, 8, 16};
    printf("\ntiny %s, us per call: median (best)\n", b->isa);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape s = shapes[i];
        const bool head = s.n == 6144;
        printf("%6d x %4d%s", s.n, s.k, head ? " head" : "     ");
        for (size_t j = 0; j < sizeof rows / sizeof rows[0]; j++) {
            struct times t = {0};
            const uint8_t *w = b->pool;
            for (int r = 0; r < 300; r++) {
                double us = 0;
                for (int c = 0; c < 5; c++)
                    us += time_ours(b, s, rows[j], SV_BF16, head, w);
                times_add(&t, us / 5);
            }
            printf("  | %2d rows %6.2f (%6.2f)", rows[j], quantile(&t, 0.5), quantile(&t, 0));
            csv_row(b, head ? "tiny head" : "tiny", b->isa, s, rows[j], SV_BF16, &t, "none", 0, 0);
        }
        printf("\n");
    }
}

/* All products of one pass: every weight once, as a pass over the model reads them. */
struct model {
    const char *name;
    int32_t layers, hidden, q, kv, mlp, vocab;
};

static double model_pass(struct bench *b, const struct model *m, int32_t rows, int32_t head_rows)
{
    double us = 0;
    int64_t read = 0;
    b->at = 0;
    const struct shape layer[] = {{m->q + 2 * m->kv, m->hidden, 1},
                                  {m->hidden, m->q, 1},
                                  {2 * m->mlp, m->hidden, 2},
                                  {m->hidden, m->mlp, 1}};
    for (int32_t l = 0; l < m->layers; l++)
        for (int i = 0; i < 4; i++) {
            us += time_ours(b, layer[i], rows, SV_BF16, false, NULL);
            read += b->read_bytes;
        }
    us += time_ours(b, (struct shape){m->vocab, m->hidden, 1}, head_rows, SV_BF16, true, NULL);
    b->read_bytes += read;
    return us;
}

static void section_model(struct bench *b)
{
    static const struct model models[] = {{"Qwen3-0.6B", 28, 1024, 2048, 1024, 3072, 151936},
                                          {"demo", 6, 320, 320, 64, 896, 6144}};
    static const int32_t rows[] = {1, 2, 4, 8, 16, 32, 64, 512};
    for (size_t i = 0; i < 2; i++) {
        const struct model *m = &models[i];
        const double params =
            (double)m->layers * m->hidden * (2.0 * m->q + 2.0 * m->kv + 3.0 * m->mlp) +
            (double)m->vocab * m->hidden;
        struct times t[8], read = {0};
        memset(t, 0, sizeof t);
        for (int64_t r = 0; r < b->rounds; r++) {
            times_add(&read, measure_read(b));
            for (int j = 0; j < 8; j++) {
                if (params <
                    100e6) /* a small model lives in the cache that the sweep has just swept */
                    model_pass(b, m, rows[j], 1);
                times_add(&t[j], model_pass(b, m, rows[j], rows[j] <= 64 ? rows[j] : 1));
            }
        }
        printf("\nproducts of one pass, %s shapes, %.0f MB, read %.1f GB/s\n  rows   med us  best "
               "us     GB/s   rows/s\n",
               m->name, (double)b->read_bytes * 1e-6, quantile(&read, 0.5));
        const double n_bytes = (double)b->read_bytes;
        for (int j = 0; j < 8; j++) {
            double med = quantile(&t[j], 0.5);
            printf("  %4d %8.0f %8.0f %8.2f %8.1f\n", rows[j], med, quantile(&t[j], 0),
                   n_bytes * 1e-3 / med, rows[j] * 1e6 / med);
            csv_row(b, m->name, b->isa, (struct shape){(int32_t)(params / m->hidden), m->hidden, 1},
                    rows[j], SV_BF16, &t[j], "read GB/s", quantile(&read, 0.5),
                    n_bytes * 1e-3 / med / quantile(&read, 0.5));
        }
    }
}

/* ----------------------------------------------------------- the head, with a screen and without
 */

/* Weights and input are normal numbers, as a fresh model's; in turns, call by call. */
static void section_head(struct bench *b)
{
    static const struct shape all[] = {{151936, 1024, 1}};
    static const int32_t all_rows[] = {1, 2, 3, 4, 8, 16};
    struct shape shapes[8];
    int32_t rows[32];
    const int n_shapes = pick_shapes(b, all, 1, shapes), n_rows = pick_rows(b, all_rows, 6, rows);
    for (int i = 0; i < n_shapes; i++) {
        const struct shape s = shapes[i];
        const size_t n = (size_t)s.n * (size_t)s.k;
        struct sv_weight w,
            host = {.role = SV_ROLE_HEAD, .fmt.elem = SV_BF16, .rows = s.n, .cols = s.k};
        struct sv_rng rng = {7};
        struct sv_err err;
        uint16_t *data = sv_alloc(n * sizeof *data);
        for (size_t j = 0; data && j < n; j++)
            data[j] = b->normal[(j * 40503u + j / 977u * 31u) % NORMALS];
        for (int32_t j = 0; j < 16 * s.k; j++)
            b->x[j] = sv_rng_normal(&rng);
        host.data = data;
        b->cpu.screen = true;
        int64_t t0 = sv_clock_ns();
        if (!data || sv_cpu_upload_weight((struct sv_dev *)(void *)&b->cpu, &host, &w, &err) ||
            !sv_cpu_screen_of(&w))
            exit((fprintf(stderr, "gemm: no screen here\n"), 1));
        printf(
            "\nhead %s %d x %d, made in %.2f s\n  rows  screen us (best)     all us (best)   ratio "
            " units left of all\n",
            b->isa, s.n, s.k, (double)(sv_clock_ns() - t0) * 1e-9);
        for (int j = 0; j < n_rows; j++) {
            struct times t[2] = {0};
            struct sv_screen *v = sv_cpu_screen_of(&w);
            struct sv_cpu_weight without = *(struct sv_cpu_weight *)w.priv;
            without.screen = NULL;
            for (int64_t r = 0; r < 2 * b->rounds; r++) {
                struct sv_p_head_argmax p = {
                    .n_rows = rows[j], .k = s.k, .x = b->x, .w = w, .out = b->out};
                p.w.priv = r % 2 ? w.priv : &without;
                double us = now_us();
                sv_cpu_head_argmax((struct sv_dev *)(void *)&b->cpu, &p);
                times_add(&t[r % 2], now_us() - us);
            }
            const double with = quantile(&t[1], 0.5), whole = quantile(&t[0], 0.5);
            printf("  %4d %9.1f (%7.1f) %9.1f (%7.1f)  %5.2f  %d of %d\n", rows[j], with,
                   quantile(&t[1], 0), whole, quantile(&t[0], 0), whole / with, v->n_left,
                   v->n_units);
            b->read_bytes = without.n_bytes;
            csv_row(b, "head", b->isa, s, rows[j], SV_BF16, &t[0], "none", 0, 0);
            b->read_bytes = v->read_bytes;
            csv_row(b, "head screen", b->isa, s, rows[j], SV_BF16, &t[1], "us without", whole,
                    whole / with);
        }
        sv_cpu_free_weight((struct sv_dev *)(void *)&b->cpu, &w);
        sv_free(data);
    }
}

/* ---------------------------------------------------------------- set-up */

static void stamp(struct bench *b)
{
    char commit[64] = "unknown", model[80] = "unknown machine", line[256], date[32];
    /* Only what is measured counts as changed: others may be at work elsewhere in the tree. */
    FILE *f = popen(
        "p='src/backend/cpu/gemm* src/backend/cpu/head_screen* src/backend/cpu/wcomp.h src/base/pool.c "
        "bench/gemm.c'; c=$(git log -1 "
        "--format=%h -- $p) && "
        "echo $c$(git diff --quiet HEAD -- $p || echo -dirty)",
        "r");
    if (f && fgets(commit, sizeof commit, f))
        commit[strcspn(commit, "\n")] = 0;
    if (f)
        pclose(f);
    if ((f = fopen("/proc/cpuinfo", "re"))) {
        while (fgets(line, sizeof line, f))
            if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
                snprintf(model, sizeof model, "%.70s", strchr(line, ':') + 2);
                model[strcspn(model, "\n")] = 0;
                break;
            }
        fclose(f);
    }
    time_t t = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&t));
    snprintf(b->stamp, sizeof b->stamp, "%s,%s,%s x%d", date, commit, model, sv_cpu_count());
}

static bool set_up(struct bench *b, int n_threads, enum sv_isa isa, enum sv_dtype compute,
                   size_t pool_bytes)
{
    struct sv_err err;
    b->cpu.n_threads = n_threads ? n_threads : sv_cpu_count();
    b->cpu.isa = isa == SV_ISA_AUTO ? sv_cpu_best_isa() : isa;
    b->cpu.compute = compute;
    b->cpu.lim = (struct sv_dev_limits){.max_rows = 2048, .max_logit_rows = 64, .max_k = 12288};
    b->pool_bytes = pool_bytes;
    b->pool = mmap(NULL, pool_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    b->max_y = (size_t)2048 * 12288;
    b->x = sv_alloc((size_t)2048 * 12288 * sizeof *b->x);
    b->x16 = sv_alloc((size_t)2048 * 12288 * sizeof *b->x16);
    b->y = sv_alloc(b->max_y * sizeof *b->y);
    b->out = sv_alloc(2048 * sizeof *b->out);
    if (b->pool == MAP_FAILED || !b->x || !b->x16 || !b->y || !b->out)
        return fprintf(stderr, "gemm: out of memory\n"), false;
    madvise(b->pool, pool_bytes, b->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (sv_pool_open(&b->cpu.pool, b->cpu.n_threads, &err) || sv_cpu_gemm_open(&b->cpu, &err) ||
        sv_cpu_gemm_reserve(&b->cpu, &err))
        return fprintf(stderr, "gemm: %s\n", err.msg), false;
    struct sv_rng rng = {1};
    b->cpu.wcomp = b->wcomp;
    if (!(b->normal = sv_alloc(NORMALS * sizeof *b->normal)))
        return fprintf(stderr, "gemm: out of memory\n"), false;
    for (int i = 0; i < NORMALS; i++)
        b->normal[i] = sv_f32_to_bf16(0.02f * sv_rng_normal(&rng));
    for (size_t i = 0; i < (size_t)2048 * 12288; i++)
        b->x[i] = sv_rng_float(&rng) - 0.5f;
    /* Half-range values of any 16-bit float format: sign and mantissa random, exponent near one. */
    uint64_t *p = (uint64_t *)(void *)b->pool;
    for (size_t i = 0; i < pool_bytes / 8; i++)
        p[i] = (sv_rng_next(&rng) & 0x807f807f807f807full) | 0x3c003c003c003c00ull;
    memset(b->y, 0, b->max_y * sizeof *b->y);
    return true;
}

int main(int argc, char **argv)
{
    static struct bench b;
    static const char *isa_names[] = {"auto", "plain", "avx2", "avx512", "amx"};
    int64_t threads = 0, pool_mb = 2048;
    const char *isa = "auto", *dtype = "bf16", *csv = NULL, *section = "stream,prefill,tiny,model";
    bool f32 = false;
    b.rounds = 15;
    const struct sv_opt table[] = {
        {"threads", 't', SV_OPT_INT, &threads, "N", "threads; all processors by default"},
        {"isa", 'i', SV_OPT_STRING, &isa, "LEVEL",
         "plain, avx2, avx512 or amx; the best by default"},
        {"f32", 0, SV_OPT_FLAG, &f32, NULL, "compute in f32 instead of rounding inputs to bf16"},
        {"dtype", 'd', SV_OPT_STRING, &dtype, "TYPE", "weights: bf16, f16 or f32"},
        {"section", 's', SV_OPT_STRING, &section, "LIST",
         "stream,prefill,tiny,model: some of them; or head"},
        {"rounds", 'r', SV_OPT_INT, &b.rounds, "N", "rounds of each measurement (15)"},
        {"shape", 0, SV_OPT_STRING, &b.only_shape, "LIST",
         "stream and prefill: these shapes only, as NxK"},
        {"rows", 0, SV_OPT_STRING, &b.only_rows, "LIST", "stream and prefill: these row counts"},
        {"pool", 'p', SV_OPT_INT, &pool_mb, "MIB", "memory that weights rotate over (2048)"},
        {"raw", 0, SV_OPT_FLAG, &b.raw, NULL,
         "weights as published, where kernels pack them at load"},
        {"compressed", 0, SV_OPT_FLAG, &b.wcomp, NULL,
         "bf16 weights in fewer bits (normal numbers); GB/s and shares count what is read"},
        {"huge", 0, SV_OPT_FLAG, &b.huge, NULL, "weights on huge pages"},
        {"csv", 'c', SV_OPT_STRING, &csv, "FILE", "append rows to this file"},
        {0}};
    struct sv_err err;
    int n_pos, rc = sv_opt_parse(table, "gemm [options]", argc, argv, &n_pos, &err);
    if (rc)
        return rc > 0 ? 0 : (fprintf(stderr, "gemm: %s\n", err.msg), 1);
    enum sv_isa level = SV_ISA_AUTO;
    while (level <= SV_ISA_AMX && strcmp(isa, isa_names[level]))
        level++;
    if (level > SV_ISA_AMX)
        return fprintf(stderr, "gemm: no instruction-set level is called '%s'\n", isa), 1;
    enum sv_dtype dt = !strcmp(dtype, "f32") ? SV_F32 : !strcmp(dtype, "f16") ? SV_F16 : SV_BF16;
    if (!set_up(&b, (int)threads, level, f32 ? SV_F32 : SV_BF16, (size_t)pool_mb << 20))
        return 1;
    char kernel[48];
    snprintf(kernel, sizeof kernel, "%s%s%s", isa_names[b.cpu.isa], f32 ? " f32" : "",
             b.wcomp ? " compressed" : "");
    b.isa = kernel;
    stamp(&b);
    if (csv) {
        bool fresh = !sv_file_exists(csv);
        if (!(b.csv = fopen(csv, "ae")))
            return fprintf(stderr, "gemm: cannot write %s\n", csv), 1;
        if (fresh)
            fprintf(b.csv, "date,commit,machine,section,kernel,threads,dtype,rows,n,k,median_us,"
                           "best_us,p90_us,"
                           "gb_per_s,gflop_per_s,limit,limit_value,share\n");
    }
    struct dnn d = {0};
    printf("%s; kernel %s, %d threads, weights rotate over %lld MiB\n", b.stamp, kernel,
           b.cpu.n_threads, (long long)pool_mb);
    if (strstr(section, "prefill"))
        dnn_open(&d, b.cpu.n_threads);
    if (strstr(section, "tiny"))
        section_tiny(&b);
    if (strstr(section, "model"))
        section_model(&b);
    if (strstr(section, "stream"))
        section_stream(&b, dt);
    if (strstr(section, "head"))
        section_head(&b);
    if (strstr(section, "prefill"))
        section_prefill(&b, &d, dt);
    const bool lost = b.csv && (ferror(b.csv) | fclose(b.csv)) != 0;
    if (lost)
        fprintf(stderr, "gemm: %s could not be written to its end\n", csv);
    return lost || fflush(stdout) != 0;
}
