/*
 * rig.c - see rig.h.
 *
 * Linked into every test program. Must not: compute anything a test is about.
 */
#include "rig.h"

#include "backend/cpu/cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64

struct sv_dev_limits rig_limits(int32_t max_k, int32_t max_n)
{
    return (struct sv_dev_limits){.max_rows = RIG_MAX_ROWS,
                                  .max_logit_rows = 64,
                                  .max_k = max_k,
                                  .max_n = max_n,
                                  .max_heads = 32,
                                  .max_head_dim = 576,
                                  .max_vocab = 160000,
                                  .max_positions = 16384,
                                  .max_experts = 512,
                                  .max_chosen = SV_MAX_CHOSEN,
                                  .by_head = true};
}

struct sv_dev *rig_open(enum sv_isa isa, int n_threads, enum sv_dtype compute)
{
    struct sv_dev_opts opts = {
        .backend = "cpu", .n_threads = n_threads, .tuning.isa = isa, .compute = compute};
    const struct sv_dev_limits lim = rig_limits(4096, 4096);
    struct sv_dev *dev;
    struct sv_err err;
    if (sv_dev_open(&dev, &opts, &err) || sv_dev_reserve(dev, &lim, &err))
        fail_msg("device: %s", err.msg);
    return dev;
}

const enum sv_isa *rig_isas(int *n)
{
    static const enum sv_isa all[] = {SV_ISA_PLAIN, SV_ISA_AVX2, SV_ISA_AVX512, SV_ISA_AMX};
    static enum sv_isa have[4];
    *n = 0;
    for (int i = 0; i < 4; i++)
        if (sv_cpu_has_isa(all[i]))
            have[(*n)++] = all[i];
    return have;
}

void rig_each(void (*fn)(struct sv_dev *dev))
{
    int n;
    const enum sv_isa *isa = rig_isas(&n);
    for (int i = 0; i < n && isa[i] != SV_ISA_AMX; i++) {
        struct sv_dev *dev = rig_open(isa[i], 1 + i, SV_F32);
        fn(dev);
        rig_sync(dev, SV_OK);
        sv_dev_close(dev);
    }
}

/* [size][guard][data][guard]; data 64-aligned */
void *rig_new(size_t n_bytes)
{
    size_t all = (2 * GUARD + GUARD + n_bytes + 63) / 64 * 64;
    uint8_t *p = aligned_alloc(64, all);
    assert_non_null(p);
    memcpy(p, &n_bytes, sizeof n_bytes);
    memset(p + GUARD, 0xa5, GUARD);
    memset(p + 2 * GUARD, 0xff, n_bytes); /* NaN as f32 and as bf16 */
    memset(p + 2 * GUARD + n_bytes, 0xa5, GUARD);
    return p + 2 * GUARD;
}

void rig_check(const void *data)
{
    const uint8_t *p = (const uint8_t *)data - 2 * GUARD;
    size_t n_bytes;
    memcpy(&n_bytes, p, sizeof n_bytes);
    for (int i = 0; i < GUARD; i++) {
        if (p[GUARD + i] != 0xa5)
            fail_msg("guard before the block was written");
        if (p[2 * GUARD + n_bytes + (size_t)i] != 0xa5)
            fail_msg("guard behind the block was written, byte %d", i);
    }
}

void rig_free(void *data)
{
    if (!data)
        return;
    rig_check(data);
    free((uint8_t *)data - 2 * GUARD);
}

float *rig_floats(struct sv_rng *rng, size_t n, float scale)
{
    float *p = rig_new(n * sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = scale * sv_rng_normal(rng);
    return p;
}

/* Test inputs only: rounds towards zero, normal range. */
static uint16_t to_f16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    int exp = (int)(u >> 23 & 255) - 112;
    if (exp <= 0)
        return (uint16_t)(u >> 16 & 0x8000);
    return (uint16_t)((u >> 16 & 0x8000) | (uint32_t)exp << 10 | (u >> 13 & 0x3ff));
}

struct sv_weight rig_weight(struct sv_rng *rng, enum sv_dtype dtype, int32_t rows, int32_t cols,
                            float scale, float shift)
{
    size_t n = (size_t)rows * (size_t)cols;
    void *data = rig_new(n * sv_dtype_bytes(dtype));
    for (size_t i = 0; i < n; i++) {
        float x = scale * sv_rng_normal(rng) + shift;
        if (dtype == SV_F32)
            ((float *)data)[i] = x;
        else
            ((uint16_t *)data)[i] = dtype == SV_BF16 ? sv_f32_to_bf16(x) : to_f16(x);
    }
    return (struct sv_weight){.data = data, .fmt.elem = dtype, .rows = rows, .cols = cols};
}

double rig_weight_at(const struct sv_weight *w, int64_t i)
{
    if (w->fmt.elem == SV_F32)
        return (double)((const float *)w->data)[i];
    uint16_t h = ((const uint16_t *)w->data)[i];
    return (double)(w->fmt.elem == SV_BF16 ? sv_bf16_to_f32(h) : sv_f16_to_f32(h));
}

void rig_batch_init(struct rig_batch *b)
{
    memset(b, 0, sizeof *b);
    b->rows =
        (struct sv_rows){0, 0, b->row_seg, b->seg_row0, b->seg_slot, b->seg_base, b->row_pos, NULL};
}

void rig_batch_add(struct rig_batch *b, int32_t slot, int32_t base, int32_t len)
{
    int32_t s = b->rows.n_segs++;
    assert_true(s < RIG_MAX_SEGS && b->rows.n_rows + len <= RIG_MAX_ROWS);
    b->seg_slot[s] = slot;
    b->seg_base[s] = base;
    for (int32_t i = 0; i < len; i++) {
        b->row_pos[b->rows.n_rows] = base + i;
        b->row_seg[b->rows.n_rows++] = s;
    }
    b->seg_row0[s + 1] = b->rows.n_rows;
}

int32_t rig_pos(const struct rig_batch *b, int32_t row)
{
    return b->row_pos[row];
}

void rig_batch_spread(struct rig_batch *b, int32_t step)
{
    for (int32_t r = 0; r < b->rows.n_rows; r++)
        b->row_pos[r] += step * (r - b->seg_row0[b->row_seg[r]]);
}

void rig_kv_init(struct rig_kv *c, struct sv_rng *rng, enum sv_dtype dtype, int32_t n_slots,
                 int32_t max_pos, int32_t page_size, int32_t n_kv_heads, int32_t head_dim)
{
    int32_t per_slot = (max_pos + page_size - 1) / page_size, n = n_slots * per_slot;
    size_t bytes =
        (size_t)n * (size_t)page_size * (size_t)n_kv_heads * sv_kv_row_bytes(dtype, head_dim, 0);
    int32_t *table = rig_new((size_t)n * sizeof *table);
    for (int32_t i = 0; i < n; i++)
        table[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)sv_rng_below(rng, (uint32_t)i + 1), t = table[i];
        table[i] = table[j];
        table[j] = t;
    }
    const bool scaled = dtype == SV_F8;
    c->n_slots = n_slots;
    c->kv = (struct sv_kv){.k = rig_new(bytes),
                           .v = rig_new(bytes),
                           .dtype = dtype,
                           .n_pages = n,
                           .page_size = page_size,
                           .n_kv_heads = n_kv_heads,
                           .head_dim = head_dim,
                           .table = table,
                           .table_stride = per_slot,
                           .k_own = scaled ? rig_new(bytes / (size_t)head_dim) : NULL,
                           .v_own = scaled ? rig_new(bytes / (size_t)head_dim) : NULL};
}

void rig_kv_fini(struct rig_kv *c)
{
    rig_free(c->kv.k);
    rig_free(c->kv.v);
    if (c->kv.k_own)
        rig_free(c->kv.k_own), rig_free(c->kv.v_own);
    rig_free((int32_t *)(uintptr_t)c->kv.table);
}

int64_t rig_kv_at(const struct rig_kv *c, int32_t slot, int32_t pos, int32_t head)
{
    const struct sv_kv *kv = &c->kv;
    int64_t page = kv->table[slot * kv->table_stride + pos / kv->page_size];
    return ((page * kv->n_kv_heads + head) * kv->page_size + pos % kv->page_size) * kv->head_dim;
}

double rig_kv_get(const struct rig_kv *c, const void *data, int64_t at)
{
    if (c->kv.dtype == SV_F32)
        return (double)((const float *)data)[at];
    return (double)sv_bf16_to_f32(((const uint16_t *)data)[at]);
}

void rig_kv_put(const struct rig_kv *c, void *data, int64_t at, float x)
{
    if (c->kv.dtype == SV_F32)
        ((float *)data)[at] = x;
    else
        ((uint16_t *)data)[at] = sv_f32_to_bf16(x);
}

void rig_near(double a, double b, double tol, const char *what, int64_t i)
{
    double scale = fabs(b) > 1 ? fabs(b) : 1;
    if ((isnan(a) && isnan(b)) || a == b)
        return;
    if (!(fabs(a - b) <= tol * scale))
        fail_msg("%s [%lld]: %.9g, expected %.9g", what, (long long)i, a, b);
}

void rig_sync(struct sv_dev *dev, int code)
{
    struct sv_err err = {0};
    int rc = sv_dev_sync(dev, &err);
    if (rc != code)
        fail_msg("sync gave %d (%s), expected %d", rc, err.msg, code);
}

void rig_lists(struct sv_rng *rng, const struct sv_logit_rules *r, int32_t *listed, int32_t few,
               int32_t vocab)
{
    int32_t at = r->n_bad_runs;
    for (int32_t k = 0; k < r->n_bad_runs; k++) {
        for (int32_t n = 1 + (int32_t)sv_rng_below(rng, 3); n > 0; n--)
            listed[at++] = (int32_t)sv_rng_below(rng, (uint32_t)few);
        listed[k] = at;
    }
    for (int32_t k = 0; k < r->n_allowed; k++)
        listed[at++] = (int32_t)sv_rng_below(rng, (uint32_t)vocab);
    SV_REQUIRE(at <= SV_MAX_LISTED);
}
