/*
 * cpu.c - the CPU device's life: open, limits and scratch, memory, errors latched by kernels,
 * bandwidth.
 *
 * Entered through sv_cpu_open (from ops.c) and the table it hands out. Device memory is host
 * memory, so upload and download are copies and sync waits for nothing; weights: weights.c. Must
 * not: allocate anywhere but in open, reserve, alloc and measure_read.
 */
#include "backend/backends.h"
#include "backend/cpu/vec.h"

#include <string.h>

static size_t align_up(size_t n)
{
    return (n + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
}

/* ---------------------------------------------------------------- scratch */

/* [n_threads areas][row list][partial attention results] */
static size_t thread_bytes(const struct sv_dev_limits *lim)
{
    size_t a = sv_cpu_attn_thread_bytes(lim), s = sv_cpu_sample_thread_bytes(lim);
    size_t row = (size_t)lim->max_k * sizeof(float); /* among.c */
    a = a > s ? a : s;
    /* An odd number of pages between areas keeps threads off the same cache sets. */
    return align_up(a > row ? a : row) + 4096 + SV_ALIGN;
}

void *sv_cpu_thread_scratch(struct sv_cpu *cpu, int thread)
{
    return (uint8_t *)cpu->scratch + (size_t)thread * thread_bytes(&cpu->lim);
}

int32_t *sv_cpu_row_list(struct sv_cpu *cpu)
{
    return (int32_t *)sv_cpu_thread_scratch(cpu, cpu->n_threads);
}

float *sv_cpu_attn_parts(struct sv_cpu *cpu, size_t *n_floats)
{
    *n_floats = sv_cpu_attn_parts_floats(&cpu->lim);
    return (float *)(void *)((uint8_t *)(void *)sv_cpu_row_list(cpu) +
                             align_up((size_t)cpu->lim.max_rows * sizeof(int32_t)));
}

static int cpu_reserve(struct sv_dev *dev, const struct sv_dev_limits *lim, struct sv_err *err)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    size_t bytes = (size_t)cpu->n_threads * thread_bytes(lim) +
                   align_up((size_t)lim->max_rows * sizeof(int32_t)) +
                   sv_cpu_attn_parts_floats(lim) * sizeof(float);
    sv_free(cpu->scratch);
    cpu->lim = *lim;
    cpu->scratch = sv_alloc(bytes); /* kernels read only what they wrote, or mask it */
    if (!cpu->scratch)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %zu bytes of CPU scratch", bytes);
    return sv_cpu_gemm_reserve(cpu, err);
}

/* ---------------------------------------------------------------- memory */

static int cpu_alloc(struct sv_dev *dev, void **out, size_t n_bytes, struct sv_err *err)
{
    (void)dev;
    *out = sv_calloc(1, n_bytes); /* counts as one fallible call */
    return *out ? SV_OK
                : sv_fail(err, SV_ENOMEM, -1, "no memory for %zu bytes on the CPU", n_bytes);
}

static void cpu_free(struct sv_dev *dev, void *p)
{
    (void)dev;
    sv_free(p);
}

/* No limit on the host's memory here. */
static void cpu_memory(struct sv_dev *dev, int64_t *n_free, int64_t *n_total)
{
    (void)dev;
    *n_free = *n_total = 0;
}

/* Head screens alone: the memory that this backend adds to the caller's requests. */
static int64_t cpu_held(const struct sv_dev *dev, enum sv_mem kind)
{
    return kind == SV_MEM_SCREEN ? ((const struct sv_cpu *)(const void *)dev)->screen_bytes : 0;
}

static void cpu_copy(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    (void)dev;
    memcpy(dst, src, n_bytes);
}

static void cpu_copy_or_clear(struct sv_dev *dev, void *dst, const void *src, size_t n_bytes)
{
    (void)dev;
    if (src)
        memcpy(dst, src, n_bytes);
    else
        memset(dst, 0, n_bytes);
}

/* ---------------------------------------------------------------- errors */

void sv_cpu_latch(struct sv_cpu *cpu, const char *fmt, ...)
{
    int none = SV_OK;
    /* The first error of any thread is kept; the pool's join orders its message before sync. */
    if (!__atomic_compare_exchange_n(&cpu->latched.code, &none, SV_EDEVICE, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE))
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cpu->latched.msg, sizeof cpu->latched.msg, fmt, ap);
    va_end(ap);
}

static int cpu_sync(struct sv_dev *dev, struct sv_err *err)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    if (cpu->latched.code == SV_OK)
        return SV_OK;
    int code = sv_fail(err, cpu->latched.code, -1, "%s", cpu->latched.msg);
    cpu->latched.code = SV_OK;
    return code;
}

/* Ops are synchronous: marks and graphs have no effect. */
static void cpu_mark(struct sv_dev *dev, int32_t i)
{
    (void)dev, (void)i;
}

static int cpu_wait(struct sv_dev *dev, int32_t i, struct sv_err *err)
{
    (void)i;
    return cpu_sync(dev, err);
}

static void cpu_graph_run(struct sv_dev *dev, uint64_t key, void (*enqueue)(void *user), void *user)
{
    (void)dev, (void)key;
    enqueue(user);
}

/* ---------------------------------------------------------------- bandwidth */

struct read_job {
    struct sv_cpu *cpu;
    uint8_t *data;
    size_t n_bytes;
    bool fill;
    uint64_t seen; /* keeps the reads alive */
};

static void read_share(void *arg, int thread, int n)
{
    struct read_job *job = arg;
    const size_t piece = 4096, n_pieces = job->n_bytes / piece;
    size_t begin = n_pieces * (size_t)thread / (size_t)n * piece;
    size_t end = n_pieces * ((size_t)thread + 1) / (size_t)n * piece;
    if (job->fill)
        memset(job->data + begin, thread + 1, end - begin);
    else
        __atomic_fetch_add(&job->seen, job->cpu->vec->read(job->data + begin, end - begin),
                           __ATOMIC_RELAXED);
}

static double cpu_measure_read(struct sv_dev *dev, size_t n_bytes)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct read_job job = {.cpu = cpu, .n_bytes = n_bytes / 4096 * 4096, .fill = true};
    job.data = job.n_bytes ? sv_alloc(job.n_bytes) : NULL;
    if (!job.data)
        return 0;
    sv_pool_run(cpu->pool, read_share, &job);
    job.fill = false;
    double best = 0;
    for (int round = 0; round < 5; round++) {
        int64_t start = sv_clock_ns();
        sv_pool_run(cpu->pool, read_share, &job);
        int64_t ns = sv_clock_ns() - start;
        double rate = (double)job.n_bytes / (double)(ns > 0 ? ns : 1);
        best = rate > best ? rate : best;
    }
    sv_free(job.data);
    return best;
}

/* ---------------------------------------------------------------- open and close */

static const char *isa_name(enum sv_isa isa)
{
    static const char *const name[] = {"auto", "plain", "avx2", "avx512", "amx-bf16"};
    return name[isa];
}

static const struct sv_cpu_vec *vec_of(enum sv_isa isa)
{
#if !defined(SV_NO_AVX512)
    if (isa >= SV_ISA_AVX512)
        return &sv_cpu_vec_avx512;
#endif
#if !defined(SV_NO_AVX2)
    if (isa >= SV_ISA_AVX2)
        return &sv_cpu_vec_avx2;
#endif
    (void)isa;
    return &sv_cpu_vec_plain;
}

static const struct sv_cpu_attn_lanes *lanes_of(enum sv_isa isa)
{
#if !defined(SV_NO_AMX)
    if (isa >= SV_ISA_AMX)
        return sv_cpu_attn_amx();
#endif
#if !defined(SV_NO_AVX512)
    if (isa >= SV_ISA_AVX512 && sv_cpu_has_avx512_bf16())
        return sv_cpu_attn_bf16_avx512();
#endif
    (void)isa;
    return NULL;
}

static const char *cpu_describe(struct sv_dev *dev)
{
    return sv_cpu_of(dev)->text;
}

static enum sv_dtype cpu_act_dtype(const struct sv_dev *dev)
{
    (void)dev;
    return SV_F32;
}

static enum sv_dtype cpu_compute_dtype(const struct sv_dev *dev)
{
    return ((const struct sv_cpu *)(const void *)dev)->compute;
}

static bool cpu_rounds(const struct sv_dev *dev)
{
    return ((const struct sv_cpu *)(const void *)dev)->rounds;
}

static bool cpu_quantizes(const struct sv_dev *dev)
{
    return sv_cpu_gemm_bytes((const struct sv_cpu *)(const void *)dev);
}

static bool cpu_head_confidence_of(const struct sv_dev *dev, const struct sv_weight *w)
{
    (void)dev;
    return w->fmt.elem == SV_I8;
}

static void cpu_close(struct sv_dev *dev)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    sv_cpu_window_close(cpu);
    if (cpu->gemm)
        sv_cpu_gemm_close(cpu);
    if (cpu->pool)
        sv_pool_close(cpu->pool);
    sv_free(cpu->scratch);
    sv_free(cpu);
}

static bool cpu_takes_codes(const struct sv_dev *dev, const struct sv_quant *q, enum sv_role role)
{
    (void)dev, (void)q, (void)role;
    return true;
}

static const struct sv_backend cpu_backend = {
    .name = "cpu",
    .close = cpu_close,
    .reserve = cpu_reserve,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .memory = cpu_memory,
    .held = cpu_held,
    .takes_codes = cpu_takes_codes,
    .upload_weight = sv_cpu_upload_weight,
    .free_weight = sv_cpu_free_weight,
    .weight_bytes = sv_cpu_weight_bytes,
    .rounds = cpu_rounds,
    .quantizes = cpu_quantizes,
    .head_confidence_of = cpu_head_confidence_of,
    .random_weight = sv_cpu_random_weight,
    .window_open = sv_cpu_window_open,
    .window_join = sv_cpu_window_join,
    .joins_hosts = true,
    .mark = cpu_mark,
    .wait = cpu_wait,
    .graph_run = cpu_graph_run,
    .upload = cpu_copy,
    .download = cpu_copy,
    .copy = cpu_copy_or_clear,
    .sync = cpu_sync,
    .block_ids = sv_cpu_block_ids,
    .embed = sv_cpu_embed,
    .add_rms_norm = sv_cpu_add_rms_norm,
    .gemm = sv_cpu_gemm,
    .gemm_act_mul = sv_cpu_gemm_act_mul,
    .qk_norm_rope_kv_write = sv_cpu_qk_norm_rope_kv_write,
    .attention = sv_cpu_attention,
    .sigmoid_mul = sv_cpu_sigmoid_mul,
    .add_gated = sv_cpu_add_gated,
    .act_mul = sv_cpu_act_mul,
    .head_argmax = sv_cpu_head_argmax,
    .gather_logits = sv_cpu_gather_logits,
    .share_rows = sv_cpu_share_rows,
    .logit_pos = sv_cpu_logit_pos,
    .sample = sv_cpu_sample,
    .argmax_confidence = sv_cpu_argmax_confidence,
    .head_among = sv_cpu_head_among,
    .logit_mask = sv_cpu_logit_mask,
    .logit_rules = sv_cpu_logit_rules,
    .logprobs = sv_cpu_logprobs,
    .history = sv_cpu_history,
    .replace_drafts = sv_cpu_replace_drafts,
    .verify = sv_cpu_verify,
    .commit = sv_cpu_commit,
    .snapshot = sv_cpu_snapshot,
    .draft_context_kv = sv_cpu_draft_context_kv,
    .moe = &sv_cpu_moe,
    .gdn = &sv_cpu_gdn,
    .mla = &sv_cpu_mla,
    .vision = &sv_cpu_vision,
    .measure_read = cpu_measure_read,
    .describe = cpu_describe,
    .act_dtype = cpu_act_dtype,
    .compute_dtype = cpu_compute_dtype,
};

/* A model that fits a last-level cache is not read from memory: compression would save nothing. */
#define LARGE_FROM_BYTES ((int64_t)256 << 20)
/* With AVX512-BF16 the units that multiply also expand: with more rows than this, products are
 * limited by arithmetic and not by memory. AMX leaves them idle. */
#define WCOMP_ROWS_AVX512 8

static bool wants_wcomp(const struct sv_cpu *cpu, const struct sv_dev_opts *opts)
{
    const enum sv_wcomp_order order = sv_cpu_gemm_wcomp(cpu);
    if (opts->tuning.compress_weights != SV_TOGGLE_AUTO)
        return order && opts->tuning.compress_weights == SV_TOGGLE_ON;
    return opts->weight_bytes > LARGE_FROM_BYTES &&
           (order == SV_WCOMP_ROWS || (order == SV_WCOMP_PAIRS && opts->usual_rows > 0 &&
                                       opts->usual_rows <= WCOMP_ROWS_AVX512));
}

static bool wants_screen(const struct sv_cpu *cpu, const struct sv_dev_opts *opts)
{
    if (!sv_cpu_gemm_screen_rows(cpu) || opts->tuning.screen_head == SV_TOGGLE_OFF)
        return false;
    return opts->tuning.screen_head == SV_TOGGLE_ON || opts->weight_bytes > LARGE_FROM_BYTES;
}

bool sv_cpu_present(void)
{
    return true;
}

int sv_cpu_open(struct sv_dev **dev, const struct sv_dev_opts *opts, struct sv_err *err)
{
    enum sv_isa isa = opts->tuning.isa ? opts->tuning.isa : sv_cpu_best_isa();
    if (isa < SV_ISA_PLAIN || isa > SV_ISA_AMX)
        return sv_fail(err, SV_EINVAL, -1, "unknown instruction set level %d",
                       (int)opts->tuning.isa);
    if (!sv_cpu_has_isa(isa))
        return sv_fail(err, SV_EUNSUPPORTED, -1, "this machine does not have %s", isa_name(isa));
    if (opts->compute != SV_F32 && opts->compute != SV_BF16)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "the CPU computes in f32 or bf16, not in %s",
                       sv_dtype_name(opts->compute));
    if (opts->tuning.activations == SV_ACTIVATIONS_FP8)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "activations: the CPU's are exact or in int8; fp8 is for GPUs");
    if (opts->n_threads < 0 || opts->n_threads > 4096)
        return sv_fail(err, SV_EINVAL, -1, "%d threads", opts->n_threads);
    struct sv_cpu *cpu = sv_calloc(1, sizeof *cpu);
    if (!cpu)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for the CPU device");
    cpu->be = &cpu_backend;
    cpu->isa = isa;
    cpu->compute = opts->compute;
    cpu->whole = opts->tuning.draft_quant == SV_TOGGLE_OFF;
    cpu->int8 = opts->tuning.activations == SV_ACTIVATIONS_INT8;
    cpu->vec = vec_of(isa);
    cpu->attn_lanes = lanes_of(isa);
    cpu->n_threads = opts->n_threads ? opts->n_threads : sv_cpu_count();
    int rc = sv_pool_open(&cpu->pool, cpu->n_threads, err);
    if (rc == SV_OK)
        rc = sv_cpu_gemm_open(cpu, err);
    if (rc != SV_OK) {
        cpu_close((struct sv_dev *)(void *)cpu);
        return rc;
    }
    cpu->wcomp = wants_wcomp(cpu, opts);
    cpu->screen = wants_screen(cpu, opts);
    snprintf(cpu->text, sizeof cpu->text, "cpu %s, %d thread%s%s%s%s", isa_name(isa),
             cpu->n_threads, cpu->n_threads == 1 ? "" : "s",
             cpu->wcomp ? ", compressed weights" : "", cpu->screen ? ", head screen" : "",
             cpu->int8 ? ", int8 activations" : "");
    if (opts->ranks.n > 1)
        snprintf(cpu->text + strlen(cpu->text), sizeof cpu->text - strlen(cpu->text),
                 " a rank, %d ranks", opts->ranks.n);
    *dev = (struct sv_dev *)(void *)cpu;
    return SV_OK;
}
