/*
 * weights.c - storage of weights in the CPU's memory: in place as published, packed in the order of
 * the AVX512-BF16 kernels, compressed (wcomp.h), or as the codes of a quantized matrix (codes.h); a
 * head's screen beside it.
 *
 * Called at load through the backend table (upload_weight, free_weight, random_weight) and by
 * embed. Packed matrices of all models are in slabs that begin at multiples of 2 MiB and request
 * huge pages: one product reads many pages, and small models would else be limited by page tables.
 * A slab is freed with its last matrix. Must not: run during a step, except for reading a row.
 */
#define _DEFAULT_SOURCE /* madvise */

#include "backend/cpu/vec.h"

#include "backend/cpu/codes.h"
#include "backend/cpu/wcomp.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/head_screen.h"

#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define SLAB_BYTES ((size_t)16 << 20)

struct sv_cpu_slab {
    struct sv_cpu_slab *next;
    uint8_t *block, *data; /* as allocated; its first multiple of HUGE_PAGE */
    size_t n_bytes, used;
    int32_t n_live; /* matrices in it */
};

static int slab_open(struct sv_cpu *cpu, size_t n_bytes, struct sv_err *err)
{
    struct sv_cpu_slab *s = sv_calloc(1, sizeof *s);
    uint8_t *block = s ? sv_alloc(n_bytes + HUGE_PAGE) : NULL;
    if (!block) {
        sv_free(s);
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %zu bytes of packed weights", n_bytes);
    }
    *s = (struct sv_cpu_slab){.next = cpu->slabs, .block = block, .n_bytes = n_bytes};
    s->data = block + (HUGE_PAGE - (uintptr_t)block % HUGE_PAGE) % HUGE_PAGE;
    madvise(s->data, n_bytes, MADV_HUGEPAGE); /* optional: the kernel may lack them */
    cpu->slabs = s;
    return SV_OK;
}

void *sv_cpu_weight_take(struct sv_cpu *cpu, size_t n_bytes, struct sv_err *err)
{
    const size_t whole = (n_bytes + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
    struct sv_cpu_slab *s = cpu->slabs;
    if (!s || s->n_bytes - s->used < whole) {
        const size_t most = whole > SLAB_BYTES ? whole : SLAB_BYTES;
        if (slab_open(cpu, (most + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, err))
            return NULL;
        s = cpu->slabs;
    }
    uint8_t *p = s->data + s->used;
    s->used += whole;
    s->n_live++;
    return p;
}

bool sv_cpu_weight_free(struct sv_cpu *cpu, void *p)
{
    for (struct sv_cpu_slab **at = &cpu->slabs, *s; (s = *at); at = &s->next) {
        if ((uint8_t *)p < s->data || (uint8_t *)p >= s->data + s->n_bytes)
            continue;
        if (--s->n_live == 0) {
            *at = s->next;
            sv_free(s->block);
            sv_free(s);
        }
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------- packing */

struct pack_job {
    void *to;
    const uint16_t *w;
    int32_t n, k;
    bool bytes;
};

static void pack_share(void *arg, int thread, int n)
{
    const struct pack_job *job = arg;
    int32_t begin, end;
    sv_cpu_share((job->n + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT, thread, n, &begin, &end);
#ifndef SV_NO_AVX512
    if (job->bytes)
        sv_gemm_pack_units8(job->to, job->w, job->n, job->k, begin, end);
    else
        sv_gemm_pack_units_avx512(job->to, job->w, job->n, job->k, begin, end);
#endif
}

/* ---------------------------------------------------------------- fewer bits */

struct wcomp_job {
    const uint16_t *w;
    int32_t n, k, units;
    enum sv_wcomp_order order;
    struct sv_wcomp_unit *unit; /* (units) */
    uint8_t *to;                /* NULL: only measure */
};

static void wcomp_share(void *arg, int thread, int n)
{
    const struct wcomp_job *job = arg;
    int32_t begin, end;
    sv_cpu_share(job->units, thread, n, &begin, &end);
#ifndef SV_NO_AVX512
    for (int32_t u = begin; u < end; u++) {
        if (job->to)
            sv_wcomp_pack(job->to +
                              (size_t)((const uint32_t *)(const void *)job->to)[u] * SV_WCOMP_LINE,
                          job->unit[u], job->w, job->n, job->k, u, job->order);
        else
            job->unit[u] = sv_wcomp_measure(job->w, job->n, job->k, u);
    }
#endif
}

/* A matrix that would not get smaller by this share is not worth expanding. */
#define LEAST_SAVED 0.125

/* Compresses into v, or leaves it as it is when the matrix would not get smaller by much. */
static int upload_wcomp(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_cpu_weight *v,
                        struct sv_err *err)
{
    const int32_t units = (host->rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
    struct wcomp_job job = {
        .w = host->data,
        .n = host->rows,
        .k = host->cols,
        .units = units,
        .order = sv_cpu_gemm_wcomp(cpu),
        .unit = sv_calloc((size_t)units, sizeof *job.unit),
    };
    if (!job.unit)
        return sv_fail(err, SV_ENOMEM, -1, "no memory to measure %d units of weights", units);
    sv_pool_run(cpu->pool, wcomp_share, &job);
    const size_t table = (size_t)(units + 1) * sizeof(uint32_t);
    size_t lines = (table + SV_WCOMP_LINE - 1) / SV_WCOMP_LINE;
    for (int32_t u = 0; u < units; u++)
        lines += job.unit[u].n_lines;
    const double plain = 2.0 * host->rows * host->cols;
    int rc = SV_OK;
    if (lines <= UINT32_MAX && (double)lines * SV_WCOMP_LINE <= plain * (1 - LEAST_SAVED)) {
        /* escapes are read by the line, up to one behind the last */
        job.to = sv_cpu_weight_take(cpu, (lines + 1) * SV_WCOMP_LINE, err);
        rc = job.to ? SV_OK : SV_ENOMEM;
    }
    if (job.to) {
        uint32_t *first = (uint32_t *)(void *)job.to;
        first[0] = (uint32_t)((table + SV_WCOMP_LINE - 1) / SV_WCOMP_LINE);
        for (int32_t u = 0; u < units; u++)
            first[u + 1] = first[u] + job.unit[u].n_lines;
        sv_pool_run(cpu->pool, wcomp_share, &job);
        *v = (struct sv_cpu_weight){.mem = job.to,
                                    .packed = true,
                                    .wcomp = true,
                                    .n_bytes = (int64_t)(lines * SV_WCOMP_LINE)};
    }
    sv_free(job.unit);
    return rc;
}

/* Packs into v, as bytes when the weight may be quantized. */
static int upload_packed(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_cpu_weight *v,
                         bool bytes, struct sv_err *err)
{
    const int32_t units = (host->rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
    struct pack_job job = {.w = host->data, .n = host->rows, .k = host->cols, .bytes = bytes};
    size_t unit_bytes = sv_gemm_unit_elements(job.k) * sizeof(uint16_t);
#ifndef SV_NO_AVX512
    if (job.bytes)
        unit_bytes = sv_gemm_unit_bytes8(job.k);
#endif
    job.to = sv_cpu_weight_take(cpu, (size_t)units * unit_bytes, err);
    if (!job.to)
        return SV_ENOMEM;
    sv_pool_run(cpu->pool, pack_share, &job);
    *v = (struct sv_cpu_weight){.mem = job.to,
                                .packed = true,
                                .n_bytes = (int64_t)host->rows * host->cols * (bytes ? 1 : 2)};
    return SV_OK;
}

/* Fills out->priv where the weight is not used in place. */
static int upload_matrix(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_weight *out,
                         struct sv_err *err)
{
    const bool draft = host->role & SV_ROLE_DRAFT, embed = host->role == SV_ROLE_EMBED;
    const bool bytes = draft && sv_cpu_gemm_bytes(cpu);
    struct sv_cpu_weight v = {0};
    int rc = SV_OK;
    if (cpu->wcomp && sv_cpu_gemm_wcomp(cpu) && !bytes && !embed)
        rc = upload_wcomp(cpu, host, &v, err);
    if (!rc && !v.mem && sv_cpu_gemm_packs(cpu))
        rc = upload_packed(cpu, host, &v, bytes, err);
    if (!rc && host->role == SV_ROLE_HEAD && cpu->screen)
        rc = sv_screen_make(cpu, host, &v.screen, err);
    if (!rc && !v.mem && !v.screen)
        return SV_OK;
    out->priv = rc ? NULL : sv_calloc(1, sizeof v);
    if (!out->priv) {
        sv_cpu_weight_free(cpu, v.mem);
        sv_cpu_weight_free(cpu, v.screen);
        return rc ? rc : sv_fail(err, SV_ENOMEM, -1, "no memory for a weight");
    }
    if (!v.mem)
        v.n_bytes = 2 * (int64_t)host->rows * host->cols;
    *(struct sv_cpu_weight *)out->priv = v;
    cpu->screen_bytes += v.screen ? v.screen->n_bytes : 0;
    out->data = v.mem ? v.mem : host->data;
    if (v.packed && bytes)
        out->fmt = (struct sv_format){
            .elem = SV_I8, .block_rows = 1, .block_cols = host->cols, .scale = SV_F32};
    return SV_OK;
}

/* The weight is used in place, and from now on owns data. */
static int own(struct sv_weight *w, void *data, struct sv_err *err)
{
    if (!w->priv && !(w->priv = sv_calloc(1, sizeof(struct sv_cpu_weight)))) {
        sv_free(data);
        return sv_fail(err, SV_ENOMEM, -1, "no memory for a weight");
    }
    struct sv_cpu_weight *v = w->priv;
    v->mem = data;
    v->n_bytes = (int64_t)w->rows * w->cols * (int64_t)sv_dtype_bytes(w->fmt.elem);
    return SV_OK;
}

/* ---------------------------------------------------------------- quantized weights */

struct codes_job {
    const struct sv_codes *codes; /* to be packed; NULL: expanded */
    const struct sv_quant *q;
    uint8_t *to;
    enum sv_dtype as;
    float *rows; /* (threads, cols) */
};

static void codes_share(void *arg, int thread, int n)
{
    const struct codes_job *job = arg;
    const struct sv_quant *q = job->q;
    int32_t begin, end;
    sv_cpu_share(job->codes ? (q->rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT : q->rows, thread, n,
                 &begin, &end);
    for (int32_t u = begin; job->codes && u < end; u++)
        sv_codes_pack(job->codes, u, job->to + (size_t)u * job->codes->unit_bytes);
    if (!job->codes && begin < end)
        sv_quant_expand(q, begin, end - begin, job->as,
                        job->to + (size_t)begin * (size_t)q->cols * sv_dtype_bytes(job->as),
                        job->rows + (size_t)thread * (size_t)q->cols);
}

/* Codes in an order without a kernel: the matrix of their values. */
static int upload_expanded(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_weight *out,
                           struct sv_err *err)
{
    const struct sv_quant *q = host->quant;
    struct codes_job job = {.q = q, .as = cpu->compute};
    struct sv_weight plain = *host;
    job.to = sv_alloc((size_t)q->rows * (size_t)q->cols * sv_dtype_bytes(job.as));
    job.rows = sv_alloc((size_t)cpu->n_threads * (size_t)q->cols * sizeof *job.rows);
    int rc =
        job.to && job.rows ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "no memory to expand a weight");
    if (!rc) {
        sv_pool_run(cpu->pool, codes_share, &job);
        plain.data = job.to;
        plain.fmt.elem = job.as;
        plain.quant = NULL;
        rc = sv_cpu_upload_weight((struct sv_dev *)(void *)cpu, &plain, out, err);
    }
    sv_free(job.rows);
    if (!rc && out->data == job.to)
        return own(out, job.to, err);
    sv_free(job.to);
    return rc;
}

static enum sv_wcomp_order order_of(const struct sv_cpu *cpu, const struct sv_weight *host)
{
    struct sv_codes c = {.q = *host->quant};
    return cpu->int8 && sv_codes_are_whole(host->quant) && sv_codes_plan(&c, SV_WCOMP_QUADS)
               ? SV_WCOMP_QUADS
               : sv_cpu_gemm_codes(cpu);
}

/* As in the file where another order gains nothing: rows that are only looked up, and levels that
 * expand by row. */
static int upload_codes(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_weight *out,
                        struct sv_err *err)
{
    const enum sv_wcomp_order order = order_of(cpu, host);
    struct sv_cpu_weight *v = sv_calloc(1, sizeof *v);
    struct sv_codes *c = sv_alloc(sizeof *c);
    bool in_place = host->role == SV_ROLE_EMBED;
    int rc = SV_OK;
    if (!v || !c) {
        sv_free(v);
        sv_free(c);
        return sv_fail(err, SV_ENOMEM, -1, "no memory for a weight");
    }
    *v = (struct sv_cpu_weight){.codes = c, .n_bytes = sv_quant_bytes(host->quant)};
    *c = (struct sv_codes){.q = *host->quant};
    const bool planned = !in_place && order && sv_codes_plan(c, order);
    in_place |= !order && sv_codes_by_rows(&c->q);
    if (planned) {
        const int32_t units = (host->rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
        v->n_bytes = (int64_t)((size_t)units * c->unit_bytes);
        v->packed = order != SV_WCOMP_ROWS;
        cpu->rounds |= order == SV_WCOMP_QUADS;
        v->mem = sv_cpu_weight_take(cpu, (size_t)v->n_bytes, err);
        struct codes_job job = {.codes = c, .q = &c->q, .to = v->mem};
        if (job.to)
            sv_pool_run(cpu->pool, codes_share, &job);
        rc = job.to ? SV_OK : SV_ENOMEM;
    } else {
        c->kind = SV_CODES_IN_PLACE;
    }
    if (rc || !(planned || in_place)) {
        sv_free(v);
        sv_free(c);
        return rc ? rc : upload_expanded(cpu, host, out, err);
    }
    *out = *host;
    out->fmt = (struct sv_format){.elem = SV_F32}; /* the values */
    out->data = v->mem ? v->mem : host->quant->data;
    out->priv = v;
    return SV_OK;
}

int sv_cpu_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                         struct sv_err *err)
{
    if (host->quant)
        return upload_codes(sv_cpu_of(dev), host, out, err);
    *out = *host;
    /* Every rank has the whole embedding, and looks up a few rows of it. */
    const bool in_file = host->role == SV_ROLE_EMBED && sv_dev_ranks(dev).n > 1;
    if (host->fmt.elem != SV_BF16 || host->rows == 1 || in_file)
        return SV_OK;
    return upload_matrix(sv_cpu_of(dev), host, out, err);
}

void sv_cpu_free_weight(struct sv_dev *dev, struct sv_weight *w)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    struct sv_cpu_weight *v = w->priv;
    if (!v)
        return;
    if (v->screen) {
        cpu->screen_bytes -= v->screen->n_bytes;
        sv_cpu_weight_free(cpu, v->screen);
    }
    if (!sv_cpu_weight_free(cpu, v->mem))
        sv_free(v->mem);
    sv_free(v->codes);
    sv_free(v);
}

int64_t sv_cpu_weight_bytes(const struct sv_dev *dev, const struct sv_weight *w, int32_t n_rows)
{
    const struct sv_cpu_weight *v = w->priv;
    if (v && v->screen &&
        n_rows <= sv_cpu_gemm_screen_rows((const struct sv_cpu *)(const void *)dev))
        return v->screen->read_bytes;
    return v ? v->n_bytes : (int64_t)w->rows * w->cols * (int64_t)sv_dtype_bytes(w->fmt.elem);
}

/* ---------------------------------------------------------------- random weights */

static void fill_random(void *data, const struct sv_weight *shape, float scale, float shift,
                        uint64_t seed)
{
    const size_t n = (size_t)shape->rows * (size_t)shape->cols;
    struct sv_rng rng = {seed};
    for (size_t i = 0; i < n; i++) {
        float v = scale * sv_rng_normal(&rng) + shift;
        if (shape->fmt.elem == SV_BF16)
            ((uint16_t *)data)[i] = sv_f32_to_bf16(v);
        else
            ((float *)data)[i] = v;
    }
}

int sv_cpu_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                         float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err)
{
    size_t n = (size_t)shape->rows * (size_t)shape->cols;
    if (shape->fmt.elem == SV_F16)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "random f16 weights");
    struct sv_weight host = *shape;
    host.quant = NULL; /* no random codes here */
    void *data = sv_calloc(n, sv_dtype_bytes(shape->fmt.elem));
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %zu random weights", n);
    fill_random(data, shape, scale, shift, seed);
    host.data = data;
    int rc = sv_cpu_upload_weight(dev, &host, out, err);
    if (!rc && out->data == data)
        return own(out, data, err);
    sv_free(data);
    return rc;
}

/* ---------------------------------------------------------------- a row, for embeddings */

/* A unit's escapes are one stream: all of its blocks must be read. */
static void wcomp_row(const struct sv_cpu *cpu, const struct sv_weight *w, int32_t row, float *out,
                      float scale)
{
#ifndef SV_NO_AVX512
    _Alignas(SV_ALIGN) uint16_t block[32 * SV_GEMM_UNIT];
    const bool by_pairs = sv_cpu_gemm_wcomp(cpu) == SV_WCOMP_PAIRS;
    const int32_t r = row % SV_GEMM_UNIT;
    struct sv_wcomp_walk at = sv_wcomp_at(w->data, row / SV_GEMM_UNIT, w->cols);
    for (int32_t k0 = 0; k0 < w->cols; k0 += 32) {
        sv_wcomp_expand(&at, 1, block);
        for (int32_t i = 0; i < 32 && k0 + i < w->cols; i++)
            out[k0 + i] =
                sv_bf16_to_f32(block[by_pairs ? i / 2 * 32 + r * 2 + i % 2 : r * 32 + i]) * scale;
    }
#else
    (void)cpu, (void)w, (void)row, (void)out, (void)scale;
#endif
}

void sv_cpu_weight_row(const struct sv_cpu *cpu, const struct sv_weight *w, int32_t row, float *out,
                       float scale)
{
    const size_t elem = sv_dtype_bytes(w->fmt.elem);
    const struct sv_codes *codes = sv_cpu_codes_of(w);
    if (codes) {
        sv_quant_rows(&codes->q, row, 1, out);
        for (int32_t i = 0; i < w->cols; i++)
            out[i] *= scale;
        return;
    }
    if (!sv_cpu_is_packed(w)) {
        cpu->vec->widen(out, (const uint8_t *)w->data + (size_t)row * (size_t)w->cols * elem,
                        w->fmt.elem, w->cols, scale);
        return;
    }
    if (sv_cpu_is_wcomp(w)) {
        wcomp_row(cpu, w, row, out, scale);
        return;
    }
    SV_REQUIRE(w->fmt.elem == SV_BF16); /* a drafter has no embedding of its own */
    const uint16_t *p = (const uint16_t *)w->data +
                        (size_t)(row / SV_GEMM_UNIT) * sv_gemm_unit_elements(w->cols) +
                        (size_t)(row % SV_GEMM_UNIT) * 2;
    for (int32_t i = 0; i < w->cols; i++)
        out[i] = sv_bf16_to_f32(p[i / 2 * (2 * SV_GEMM_UNIT) + i % 2]) * scale;
}
