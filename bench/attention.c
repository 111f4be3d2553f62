/*
 * attention.c - time of attention and the row ops at the shapes that matter: a prompt of 512 and
 * 2048 and a context of 8192 on Qwen3-0.6B's layers, and everything the shipped demo model does per
 * layer.
 *
 *     build/bench/attention [THREADS [ISA [f32|bf16]]]      ISA: plain avx2 avx512 amx
 *
 * Prints CSV: what, level, compute, threads, us per call (best of many), GFLOP/s, GB/s of keys and
 * values read once, and the share of the read-only ceiling measured in the same run. Calls go
 * through the device seam like the engine's. Must not: time anything that the engine would not
 * call.
 */
#include "backend/ops_tokens.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 64

struct bench {
    struct sv_dev *dev;
    const char *isa, *compute;
    int n_threads;
    double ceiling; /* GB/s */
};

static void die(const char *what, const struct sv_err *err)
{
    fprintf(stderr, "attention: %s: %s\n", what, err->msg);
    exit(1);
}

static void *take(struct bench *b, size_t n_bytes)
{
    struct sv_err err;
    void *p;
    if (sv_dev_alloc(b->dev, &p, n_bytes, &err))
        die("memory", &err);
    return p;
}

static float *noise(struct bench *b, size_t n)
{
    struct sv_rng rng = {n};
    float *p = take(b, n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = sv_rng_float(&rng) - 0.5f;
    return p;
}

/* Best time of one call in us: at least 5 calls and 0.3 s. */
static double best_us(void (*call)(void *), void *arg)
{
    double best = 1e30;
    int64_t start = sv_clock_ns();
    for (int i = 0; i < 5 || sv_clock_ns() - start < 300000000; i++) {
        int64_t t = sv_clock_ns();
        call(arg);
        double us = (double)(sv_clock_ns() - t) / 1e3;
        best = us < best ? us : best;
    }
    return best;
}

static void report(const struct bench *b, const char *what, double us, double flop, double bytes)
{
    double rate = bytes / us / 1e3;
    printf("%s,%s,%s,%d,%.2f,%.1f,%.2f,%.3f\n", what, b->isa, b->compute, b->n_threads, us,
           flop / us / 1e3, rate, b->ceiling > 0 ? rate / b->ceiling : 0);
    fflush(stdout);
}

/* ---------------------------------------------------------------- attention */

struct attention {
    struct bench *b;
    struct sv_p_attention p;
    struct sv_p_qk_norm_rope_kv_write w;
};

static void call_attention(void *arg)
{
    struct attention *a = arg;
    sv_op_attention(a->b->dev, &a->p);
}

static void call_rope(void *arg)
{
    struct attention *a = arg;
    sv_op_qk_norm_rope_kv_write(a->b->dev, &a->w);
}

/* One segment of n_rows behind `context` positions. Each call of a layer sees its own cache in turn
 * only in so far as the cache is larger than the processor's. */
static void attention_case(struct bench *b, const char *what, int32_t n_heads, int32_t n_kv,
                           int32_t hd, int32_t context, int32_t n_rows, enum sv_mask mask,
                           enum sv_dtype dtype)
{
    const int32_t end = context + n_rows, n_pages = (end + PAGE - 1) / PAGE;
    const size_t elems = (size_t)n_pages * PAGE * (size_t)n_kv * (size_t)hd;
    int32_t *table = take(b, (size_t)n_pages * 4), *row_seg = take(b, (size_t)n_rows * 4);
    int32_t *row_pos = take(b, (size_t)n_rows * 4);
    int32_t row0[2] = {0, n_rows}, slot = 0;
    for (int32_t i = 0; i < n_pages; i++)
        table[i] = i;
    for (int32_t i = 0; i < n_rows; i++)
        row_pos[i] = context + i;
    float *values = noise(b, 1 << 16);
    void *cache[2];
    for (int k = 0; k < 2; k++) {
        cache[k] = take(b, elems * sv_dtype_bytes(dtype));
        for (size_t i = 0; i < elems; i++)
            if (dtype == SV_F32)
                ((float *)cache[k])[i] = values[(i * 7 + (size_t)k) & 0xffff];
            else
                ((uint16_t *)cache[k])[i] = sv_f32_to_bf16(values[(i * 7 + (size_t)k) & 0xffff]);
    }
    const int32_t width = (n_heads + 2 * n_kv) * hd;
    float *qkv = noise(b, (size_t)n_rows * (size_t)width);
    float *out = take(b, (size_t)n_rows * (size_t)(n_heads * hd) * 4);
    float *angles = noise(b, (size_t)end * (size_t)hd / 2), *norm = noise(b, (size_t)hd);
    struct attention a = {.b = b};
    a.p =
        (struct sv_p_attention){.rows = {n_rows, 1, row_seg, row0, &slot, &context, row_pos, NULL},
                                .q = qkv,
                                .ldq = width,
                                .out = out,
                                .ldo = n_heads * hd,
                                .n_heads = n_heads,
                                .kv = {.k = cache[0],
                                       .v = cache[1],
                                       .dtype = dtype,
                                       .n_pages = n_pages,
                                       .page_size = PAGE,
                                       .n_kv_heads = n_kv,
                                       .head_dim = hd,
                                       .table = table,
                                       .table_stride = n_pages},
                                .mask = mask,
                                .scale = 1 / sqrtf((float)hd)};
    double pairs = mask == SV_MASK_BLOCK ? (double)n_rows * end
                                         : (double)n_rows * (context + (n_rows + 1) / 2.0);
    report(b, what, best_us(call_attention, &a), pairs * n_heads * hd * 4,
           (double)end * n_kv * hd * 2 * (double)sv_dtype_bytes(dtype));
    a.w = (struct sv_p_qk_norm_rope_kv_write){
        .rows = a.p.rows,
        .qkv = qkv,
        .ld = width,
        .n_heads = n_heads,
        .eps = 1e-6f,
        .q_norm = {.data = norm, .fmt.elem = SV_F32, .rows = 1, .cols = hd},
        .k_norm = {.data = norm, .fmt.elem = SV_F32, .rows = 1, .cols = hd},
        .rope = {angles, angles, end, hd, NULL},
        .kv = a.p.kv};
    char name[64];
    snprintf(name, sizeof name, "%s rope+write", what);
    if (n_rows <= 16 && context < 1000)
        report(b, name, best_us(call_rope, &a), 0, (double)n_rows * width * 8);
    sv_dev_free(b->dev, table), sv_dev_free(b->dev, row_seg), sv_dev_free(b->dev, row_pos);
    sv_dev_free(b->dev, values);
    sv_dev_free(b->dev, cache[0]), sv_dev_free(b->dev, cache[1]), sv_dev_free(b->dev, qkv);
    sv_dev_free(b->dev, out), sv_dev_free(b->dev, angles), sv_dev_free(b->dev, norm);
}

/* ---------------------------------------------------------------- row ops */

struct row_ops {
    struct bench *b;
    struct sv_p_add_rms_norm norm;
    struct sv_p_act_mul act;
    struct sv_p_sample sample;
};

static void call_norm(void *arg)
{
    struct row_ops *r = arg;
    sv_op_add_rms_norm(r->b->dev, &r->norm);
}

static void call_act(void *arg)
{
    struct row_ops *r = arg;
    sv_op_act_mul(r->b->dev, &r->act);
}

static void call_sample(void *arg)
{
    struct row_ops *r = arg;
    sv_op_sample(r->b->dev, &r->sample);
}

static void row_case(struct bench *b, int32_t n, int32_t d, int32_t mlp)
{
    char name[64];
    struct row_ops r = {.b = b};
    float *x = noise(b, (size_t)n * (size_t)d), *delta = take(b, (size_t)n * (size_t)d * 4);
    float *w = noise(b, (size_t)d), *out = take(b, (size_t)n * (size_t)mlp * 4);
    float *gate_up = noise(b, (size_t)n * (size_t)mlp * 2);
    r.norm =
        (struct sv_p_add_rms_norm){.n_rows = n,
                                   .d = d,
                                   .x = x,
                                   .delta = delta,
                                   .weight = {.data = w, .fmt.elem = SV_F32, .rows = 1, .cols = d},
                                   .eps = 1e-6f,
                                   .out = out};
    r.act = (struct sv_p_act_mul){n, mlp, gate_up, out};
    snprintf(name, sizeof name, "add_rms_norm %d x %d", n, d);
    report(b, name, best_us(call_norm, &r), 0, (double)n * d * 16);
    snprintf(name, sizeof name, "act_mul %d x %d", n, mlp);
    report(b, name, best_us(call_act, &r), 0, (double)n * mlp * 12);
    sv_dev_free(b->dev, x), sv_dev_free(b->dev, delta), sv_dev_free(b->dev, w);
    sv_dev_free(b->dev, out), sv_dev_free(b->dev, gate_up);
}

static void sample_case(struct bench *b, const char *what, int32_t vocab, struct sv_sampling sp)
{
    int32_t slot = 0, pos = 9, out;
    struct sv_rng rng = {4};
    float *x = take(b, (size_t)vocab * 4);
    for (int32_t i = 0; i < vocab; i++)
        x[i] = 3 * sv_rng_normal(&rng);
    struct row_ops r = {.b = b};
    r.sample = (struct sv_p_sample){1, vocab, x, vocab, &slot, &pos, &sp, &out};
    report(b, what, best_us(call_sample, &r), 0, (double)vocab * 4);
    sv_dev_free(b->dev, x);
}

int main(int argc, char **argv)
{
    static const char *const isas[] = {"auto", "plain", "avx2", "avx512", "amx"};
    struct sv_dev_opts opts = {
        .backend = "cpu", .n_threads = argc > 1 ? atoi(argv[1]) : 0, .compute = SV_F32};
    const struct sv_dev_limits lim = {.max_rows = 2048,
                                      .max_logit_rows = 16,
                                      .max_k = 4096,
                                      .max_n = 8192,
                                      .max_heads = 32,
                                      .max_head_dim = 128,
                                      .max_vocab = 151936,
                                      .max_positions = 16384};
    struct bench b = {.isa = argc > 2 ? argv[2] : "auto", .compute = argc > 3 ? argv[3] : "f32"};
    struct sv_err err;
    for (int i = 0; i < 5; i++)
        if (strcmp(isas[i], b.isa) == 0)
            opts.tuning.isa = (enum sv_isa)i;
    if (strcmp(b.compute, "bf16") == 0)
        opts.compute = SV_BF16;
    if (sv_dev_open(&b.dev, &opts, &err) || sv_dev_reserve(b.dev, &lim, &err))
        die("device", &err);
    b.n_threads = opts.n_threads ? opts.n_threads : sv_cpu_count();
    b.ceiling = sv_dev_measure_read(b.dev, (size_t)1 << 30);
    printf("what,isa,compute,threads,us,gflops,gb_per_s,share_of_read\n");
    report(&b, "read ceiling", 1e6, 0, b.ceiling * 1e9);
    attention_case(&b, "prefill 512 16/8/128", 16, 8, 128, 0, 512, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "prefill 2048 16/8/128", 16, 8, 128, 0, 2048, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "decode at 8192 16/8/128", 16, 8, 128, 8191, 1, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "decode at 8192 32/8/128", 32, 8, 128, 8191, 1, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "verify 16 at 8192 16/8/128", 16, 8, 128, 8176, 16, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "demo decode at 300 5/1/64", 5, 1, 64, 300, 1, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "demo verify 16 at 300 5/1/64", 5, 1, 64, 300, 16, SV_MASK_CAUSAL, SV_BF16);
    attention_case(&b, "demo draft 16 at 300 5/1/64", 5, 1, 64, 300, 16, SV_MASK_BLOCK, SV_BF16);
    attention_case(&b, "demo verify 16 at 300 f32 kv", 5, 1, 64, 300, 16, SV_MASK_CAUSAL, SV_F32);
    row_case(&b, 1, 320, 896);
    row_case(&b, 16, 320, 896);
    row_case(&b, 16, 1024, 3072);
    row_case(&b, 512, 1024, 3072);
    sample_case(&b, "sample greedy 151936", 151936, (struct sv_sampling){.temperature = 0});
    sample_case(&b, "sample T 1 151936", 151936,
                (struct sv_sampling){.temperature = 1, .top_p = 1});
    sample_case(&b, "sample top-p 0.95 151936", 151936,
                (struct sv_sampling){.temperature = 1, .top_p = 0.95f});
    sample_case(&b, "sample top-k 20 top-p 0.95 151936", 151936,
                (struct sv_sampling){.temperature = 0.6f, .top_p = 0.95f, .top_k = 20});
    sample_case(&b, "sample top-k 20 6144", 6144,
                (struct sv_sampling){.temperature = 0.6f, .top_p = 0.95f, .top_k = 20});
    sv_dev_close(b.dev);
    return 0;
}
