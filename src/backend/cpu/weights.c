/*
 * weights.c - how weights stand in the CPU's memory: in place as published, or packed into the
 * order in which the AVX512-BF16 kernels read them.
 *
 * Called at load through the backend table (upload_weight, random_weight, free) and by embed.
 * Packed matrices of all models live in slabs that begin at multiples of 2 MiB and ask for huge
 * pages: one product walks many pages, and small models would else spend their time on page tables.
 * A slab is freed with its last matrix. Must not: run during a step, except for reading a row.
 */
#define _DEFAULT_SOURCE /* madvise */

#include "backend/cpu/vec.h"

#include "backend/cpu/gemm.h"

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
    madvise(s->data, n_bytes, MADV_HUGEPAGE); /* a kernel without them does without */
    cpu->slabs = s;
    return SV_OK;
}

static void *slab_take(struct sv_cpu *cpu, size_t n_bytes, struct sv_err *err)
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

int sv_cpu_upload_weight(struct sv_dev *dev, const struct sv_weight *host, struct sv_weight *out,
                         bool *owned, struct sv_err *err)
{
    struct sv_cpu *cpu = sv_cpu_of(dev);
    *out = *host;
    out->approximate = false;
    *owned = host->dtype == SV_BF16 && host->rows > 1 && sv_cpu_gemm_packs(cpu);
    if (!*owned)
        return SV_OK;
    const int32_t units = (host->rows + SV_GEMM_UNIT - 1) / SV_GEMM_UNIT;
    struct pack_job job = {.w = host->data, .n = host->rows, .k = host->cols};
    size_t unit_bytes = sv_gemm_unit_elements(job.k) * sizeof(uint16_t);
#ifndef SV_NO_AVX512
    job.bytes = host->approximate && sv_cpu_gemm_bytes(cpu);
    if (job.bytes)
        unit_bytes = sv_gemm_unit_bytes8(job.k);
#endif
    job.to = slab_take(cpu, (size_t)units * unit_bytes, err);
    if (!job.to) {
        *owned = false;
        return SV_ENOMEM;
    }
    sv_pool_run(cpu->pool, pack_share, &job);
    out->data = job.to;
    out->packed = true;
    out->approximate = job.bytes;
    return SV_OK;
}

/* ---------------------------------------------------------------- random weights */

static void fill_random(void *data, const struct sv_weight *shape, float scale, float shift,
                        uint64_t seed)
{
    const size_t n = (size_t)shape->rows * (size_t)shape->cols;
    struct sv_rng rng = {seed};
    for (size_t i = 0; i < n; i++) {
        float v = scale * sv_rng_normal(&rng) + shift;
        if (shape->dtype == SV_BF16)
            ((uint16_t *)data)[i] = sv_f32_to_bf16(v);
        else
            ((float *)data)[i] = v;
    }
}

int sv_cpu_random_weight(struct sv_dev *dev, const struct sv_weight *shape, float scale,
                         float shift, uint64_t seed, struct sv_weight *out, struct sv_err *err)
{
    size_t n = (size_t)shape->rows * (size_t)shape->cols;
    bool owned;
    if (shape->dtype == SV_F16)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "random f16 weights");
    struct sv_weight host = *shape;
    void *data = sv_calloc(n, sv_dtype_bytes(shape->dtype));
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %zu random weights", n);
    fill_random(data, shape, scale, shift, seed);
    host.data = data;
    int rc = sv_cpu_upload_weight(dev, &host, out, &owned, err);
    if (rc || owned)
        sv_free(data);
    return rc;
}

/* ---------------------------------------------------------------- a row, for embeddings */

void sv_cpu_weight_row(const struct sv_cpu *cpu, const struct sv_weight *w, int32_t row, float *out,
                       float scale)
{
    const size_t elem = sv_dtype_bytes(w->dtype);
    if (!w->packed) {
        cpu->vec->widen(out, (const uint8_t *)w->data + (size_t)row * (size_t)w->cols * elem,
                        w->dtype, w->cols, scale);
        return;
    }
    SV_REQUIRE(!w->approximate); /* a drafter has no embedding of its own */
    const uint16_t *p = (const uint16_t *)w->data +
                        (size_t)(row / SV_GEMM_UNIT) * sv_gemm_unit_elements(w->cols) +
                        (size_t)(row % SV_GEMM_UNIT) * 2;
    for (int32_t i = 0; i < w->cols; i++)
        out[i] = sv_bf16_to_f32(p[i / 2 * (2 * SV_GEMM_UNIT) + i % 2]) * scale;
}
