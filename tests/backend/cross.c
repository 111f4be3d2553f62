/*
 * cross.c - see cross.h.
 */
#include "backend/cross.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256 };

static struct sv_dev *open_dev(const struct sv_dev_opts *o)
{
    const struct sv_dev_limits lim = rig_limits(8192, 16384);
    struct sv_dev *dev;
    struct sv_err err;
    if (sv_dev_open(&dev, o, &err))
        return NULL;
    if (sv_dev_reserve(dev, &lim, &err))
        fail_msg("%s: %s", o->backend, err.msg);
    return dev;
}

static bool run_one(const char *name, const struct sv_dev_opts *o, bool first,
                    void (*fn)(struct cross *c))
{
    const struct sv_dev_opts ref = {.backend = "cpu", .n_threads = 2};
    struct cross c = {.name = name,
                      .dut = open_dev(o),
                      .bf16 = strcmp(o->backend, "cpu") && o->compute == SV_BF16,
                      .quick = !strcmp(o->backend, "cpu") || sv_env("SALVO_TEST_QUICK"),
                      .rng = {42}};
    if (!c.dut)
        return false;
    c.again = c.quick && !first;
    c.ref = open_dev(&ref);
    c.tol = c.bf16 ? 1.2e-2 : 2e-5;
    print_message("%s: %s\n", name, sv_dev_describe(c.dut));
    fn(&c);
    cross_sync(&c);
    sv_dev_close(c.dut);
    sv_dev_close(c.ref);
    return true;
}

int cross_all(void (*fn)(struct cross *c))
{
    const struct sv_dev_opts cpu = {.backend = "cpu", .n_threads = 1, .tuning.isa = SV_ISA_PLAIN};
    assert_true(run_one("cpu-plain", &cpu, true, fn));
    int n = 0;
    for (int i = 0; i < 6; i++) {
        static const char *const name[] = {"cuda-bf16",         "cuda-bf16-portable", "cuda-f32",
                                           "cuda-f32-portable", "hip-bf16",           "hip-f32"};
        const struct sv_dev_opts o = {.backend = i < 4 ? "cuda" : "hip",
                                      .tuning.kernels =
                                          i == 1 || i == 3 ? SV_KERNELS_PORTABLE : SV_KERNELS_AUTO,
                                      .compute = i < 2 || i == 4 ? SV_BF16 : SV_F32};
        n += run_one(name[i], &o, n == 0, fn);
    }
    if (n == 0)
        print_message("no GPU: the GPU kernels were NOT checked\n");
    return n;
}

struct sv_dev *cross_dev(const struct cross *c, int side)
{
    return side ? c->dut : c->ref;
}

void cross_sync(struct cross *c)
{
    rig_sync(c->ref, SV_OK);
    rig_sync(c->dut, SV_OK);
}

/* ---------------------------------------------------------------- buffers */

size_t cross_elem(const struct cross *c, enum cross_type type)
{
    return type == CROSS_BF16 || (type == CROSS_ACT && c->bf16) ? 2 : 4;
}

static size_t ref_elem(enum cross_type type)
{
    return type == CROSS_BF16 ? 2 : 4;
}

/* dut memory between guards; the pointer handed out stands behind the first one. */
static void *dut_new(struct cross *c, const void *data, size_t n_bytes)
{
    struct sv_err err;
    uint8_t *p, *image = malloc(n_bytes + 2 * GUARD);
    if (sv_dev_alloc(c->dut, (void **)&p, n_bytes + 2 * GUARD, &err))
        fail_msg("%s", err.msg);
    memset(image, 0xa5, n_bytes + 2 * GUARD);
    memcpy(image + GUARD, data, n_bytes);
    sv_dev_upload(c->dut, p, image, n_bytes + 2 * GUARD);
    rig_sync(c->dut, SV_OK);
    free(image);
    return p + GUARD;
}

struct cross_buf cross_new(struct cross *c, enum cross_type type, size_t n, const void *values,
                           float scale)
{
    struct cross_buf b = {type, n, rig_new(n * ref_elem(type)), NULL};
    if (values)
        memcpy(b.ref, values, n * ref_elem(type));
    else if (scale != 0)
        for (size_t i = 0; i < n; i++) {
            float x = scale * sv_rng_normal(&c->rng);
            if (type == CROSS_BF16)
                ((uint16_t *)b.ref)[i] = sv_f32_to_bf16(x);
            else
                ((float *)b.ref)[i] = x;
        }
    if (type == CROSS_ACT && c->bf16) {
        uint16_t *half = malloc(n * 2 + 2);
        for (size_t i = 0; i < n; i++) {
            half[i] = sv_f32_to_bf16(((float *)b.ref)[i]);
            ((float *)b.ref)[i] = sv_bf16_to_f32(half[i]);
        }
        b.dut = dut_new(c, half, n * 2);
        free(half);
    } else {
        b.dut = dut_new(c, b.ref, n * ref_elem(type));
    }
    return b;
}

void *cross_bytes(struct cross *c, const struct cross_buf *b, size_t *n_bytes)
{
    size_t n = b->n * cross_elem(c, b->type);
    uint8_t *all = malloc(n + 2 * GUARD);
    sv_dev_download(c->dut, all, (uint8_t *)b->dut - GUARD, n + 2 * GUARD);
    rig_sync(c->dut, SV_OK);
    for (int i = 0; i < GUARD; i++) {
        if (all[i] != 0xa5)
            fail_msg("%s: guard before the block was written", c->name);
        if (all[GUARD + n + (size_t)i] != 0xa5)
            fail_msg("%s: guard behind the block was written, byte %d", c->name, i);
    }
    memmove(all, all + GUARD, n);
    if (n_bytes)
        *n_bytes = n;
    return all;
}

void cross_free(struct cross *c, struct cross_buf *b)
{
    free(cross_bytes(c, b, NULL));
    sv_dev_free(c->dut, (uint8_t *)b->dut - GUARD);
    rig_free(b->ref);
    memset(b, 0, sizeof *b);
}

void *cross_at(const struct cross_buf *b, int side)
{
    return side ? b->dut : b->ref;
}

void *cross_act(const struct cross *c, const struct cross_buf *b, int side, int64_t offset)
{
    if (!side)
        return (float *)b->ref + offset;
    return (uint8_t *)b->dut + offset * (int64_t)cross_elem(c, b->type);
}

float *cross_floats(struct cross *c, const struct cross_buf *b)
{
    void *raw = cross_bytes(c, b, NULL);
    if (cross_elem(c, b->type) == 4)
        return raw;
    float *out = malloc(b->n * sizeof *out + 1);
    for (size_t i = 0; i < b->n; i++)
        out[i] = sv_bf16_to_f32(((uint16_t *)raw)[i]);
    free(raw);
    return out;
}

int32_t *cross_ints(struct cross *c, const struct cross_buf *b)
{
    return cross_bytes(c, b, NULL);
}

void cross_same(struct cross *c, const struct cross_buf *b, size_t from, size_t to, double tol,
                const char *what)
{
    if (b->type == CROSS_I32) {
        int32_t *got = cross_ints(c, b);
        for (size_t i = from; i < to; i++)
            if (got[i] != ((int32_t *)b->ref)[i])
                fail_msg("%s: %s [%zu]: %d, expected %d", c->name, what, i, got[i],
                         ((int32_t *)b->ref)[i]);
        free(got);
        return;
    }
    float *got = cross_floats(c, b);
    for (size_t i = from; i < to; i++) {
        double want = b->type == CROSS_BF16 ? (double)sv_bf16_to_f32(((uint16_t *)b->ref)[i])
                                            : (double)((float *)b->ref)[i];
        double x = (double)got[i], scale = fabs(want) > 1 ? fabs(want) : 1;
        if (!(isnan(x) && isnan(want)) && x != want && !(fabs(x - want) <= tol * scale))
            fail_msg("%s: %s [%zu]: %.9g, expected %.9g", c->name, what, i, x, want);
    }
    free(got);
}

/* ---------------------------------------------------------------- weights, rows, caches */

static struct cross_weight uploaded(struct cross *c, const struct sv_weight *ref)
{
    struct cross_weight w = {.ref = *ref};
    struct sv_err err;
    if (sv_dev_upload_weight(c->dut, ref, &w.dut, &err))
        fail_msg("%s: %s", c->name, err.msg);
    return w;
}

struct cross_weight cross_weight(struct cross *c, enum sv_dtype dtype, int32_t rows, int32_t cols,
                                 float scale, float shift)
{
    const struct sv_weight w = rig_weight(&c->rng, dtype, rows, cols, scale, shift);
    return uploaded(c, &w);
}

struct cross_weight cross_norm(struct cross *c, enum sv_dtype dtype, int32_t cols, float scale)
{
    struct sv_weight w = rig_weight(&c->rng, dtype, 1, cols, scale, 1);
    w.role = SV_ROLE_IN_NORM;
    return uploaded(c, &w);
}

void cross_weight_free(struct cross *c, struct cross_weight *w)
{
    sv_dev_free_weight(c->dut, &w->dut);
    rig_free((void *)(uintptr_t)w->ref.data);
}

/* Scales of e2m1: powers of two around 2^-9; e4m3 from 0 on, zero and the smallest included. */
static void small_scales(struct cross *c, enum sv_quant_code code, uint8_t *scales, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t r = (uint32_t)(sv_rng_next(&c->rng) >> 20);
        scales[i] = (uint8_t)(code == SV_CODE_MXFP4 ? 115 + r % 5 : i % 7 ? 40 + r % 40 : r % 12);
    }
}

/* Scales of GGUF blocks: of those of 32 2^-11 to 2^-9, of super-blocks as much less as their own
 * scales and codes are larger; what minima are times is between 2^-1 and 2^6 times as much. */
static void block_scales(struct cross *c, enum sv_quant_code code, uint8_t *blocks, size_t n)
{
    const size_t each = (size_t)sv_quant_block_bytes(code);
    const bool k = sv_quant_block(code) > 32, six = code == SV_CODE_Q6_K;
    for (size_t i = 0; i < n; i++) {
        const uint32_t r = (uint32_t)(sv_rng_next(&c->rng) >> 20);
        const uint16_t d = (uint16_t)(k ? (six ? 0x100 : 0x280) + r % 0x200 : 0x1000 + r % 0x800),
                       dmin = (uint16_t)(0x200 + r % 7 * 0x400 + r / 7 % 0x200);
        uint8_t *at = blocks + i * each + (six ? 208 : 0);
        memcpy(at, &d, sizeof d);
        if (k && !six)
            memcpy(at + 2, &dmin, sizeof dmin);
    }
}

struct sv_quant cross_quant(struct cross *c, const struct cross_form *f, int32_t rows, int32_t cols)
{
    struct sv_quant q = {.code = f->code,
                         .rows = rows,
                         .cols = cols,
                         .scale = f->scale,
                         .block_rows = f->block_rows ? f->block_rows : rows,
                         .block_cols = f->block_cols ? f->block_cols : cols,
                         .zero_add = f->code == SV_CODE_GPTQ4,
                         .global = 0.00123f};
    const size_t n = (size_t)rows * (size_t)cols,
                 n_scales = (size_t)((rows + q.block_rows - 1) / q.block_rows) *
                            (size_t)((cols + q.block_cols - 1) / q.block_cols);
    uint8_t *codes = malloc(n + n_scales * 2);
    float *scales = malloc(n_scales * sizeof *scales);
    for (size_t i = 0; i < n + n_scales * 2; i++) {
        codes[i] = (uint8_t)(sv_rng_next(&c->rng) >> 9);
        if (f->code == SV_CODE_F8 && (codes[i] & 0x7f) == 0x7f)
            codes[i] = 0x81;
    }
    if (f->code == SV_CODE_MXFP4 || f->code == SV_CODE_NVFP4)
        small_scales(c, f->code, (uint8_t *)scales, n_scales);
    for (size_t i = 0; i < n_scales && f->scale <= SV_F16; i++) {
        scales[i] = 0.001f + 0.002f * (float)(sv_rng_next(&c->rng) % 1000) / 1000;
        if (f->scale == SV_BF16)
            ((uint16_t *)scales)[i] = sv_f32_to_bf16(scales[i]);
        if (f->scale == SV_F16) /* 2^-11 to 2^-9 */
            ((uint16_t *)scales)[i] = (uint16_t)(0x1000 + sv_rng_next(&c->rng) % 0x800);
    }
    if (sv_quant_block(f->code))
        block_scales(c, f->code, codes, n / (size_t)sv_quant_block(f->code));
    q.data = codes;
    q.scales = scales;
    if (f->code == SV_CODE_AWQ || f->code == SV_CODE_GPTQ4) { /* any nibbles will do */
        uint8_t *zeros = malloc(n_scales / 2);
        for (size_t i = 0; i < n_scales / 2; i++)
            zeros[i] = (uint8_t)(sv_rng_next(&c->rng) >> 9);
        q.zeros = zeros;
    }
    return q;
}

void cross_quant_free(struct sv_quant *q)
{
    free((void *)(uintptr_t)q->data);
    free((void *)(uintptr_t)q->scales);
    free((void *)(uintptr_t)q->zeros);
}

struct cross_rows cross_rows(struct cross *c, const struct rig_batch *b, int32_t pad_rows,
                             int32_t pad_segs)
{
    const int32_t n = b->rows.n_rows, s = b->rows.n_segs;
    int32_t *row_seg = malloc((size_t)(n + pad_rows + 1) * 4);
    int32_t *row_pos = malloc((size_t)(n + pad_rows + 1) * 4);
    int32_t row0[2 * RIG_MAX_SEGS + 1], slot[2 * RIG_MAX_SEGS], base[2 * RIG_MAX_SEGS];
    for (int32_t i = 0; i < n + pad_rows; i++) {
        row_seg[i] = i < n ? b->row_seg[i] : -1;
        row_pos[i] = i < n ? b->row_pos[i] : 0x7fffff;
    }
    for (int32_t i = 0; i <= s + pad_segs; i++)
        row0[i] = i <= s ? b->seg_row0[i] : n;
    for (int32_t i = 0; i < s + pad_segs; i++) {
        slot[i] = i < s ? b->seg_slot[i] : -1;
        base[i] = i < s ? b->seg_base[i] : 0x7fffff;
    }
    struct cross_rows r = {.buf = {cross_new(c, CROSS_I32, (size_t)(n + pad_rows), row_seg, 0),
                                   cross_new(c, CROSS_I32, (size_t)(s + pad_segs) + 1, row0, 0),
                                   cross_new(c, CROSS_I32, (size_t)(s + pad_segs), slot, 0),
                                   cross_new(c, CROSS_I32, (size_t)(s + pad_segs), base, 0),
                                   cross_new(c, CROSS_I32, (size_t)(n + pad_rows), row_pos, 0)}};
    for (int side = 0; side < 2; side++)
        r.rows[side] = (struct sv_rows){.n_rows = n + pad_rows,
                                        .n_segs = s + pad_segs,
                                        .row_seg = cross_at(&r.buf[0], side),
                                        .seg_row0 = cross_at(&r.buf[1], side),
                                        .seg_slot = cross_at(&r.buf[2], side),
                                        .seg_base = cross_at(&r.buf[3], side),
                                        .row_pos = cross_at(&r.buf[4], side)};
    free(row_seg), free(row_pos);
    return r;
}

void cross_rows_free(struct cross *c, struct cross_rows *r)
{
    for (int i = 0; i < 5; i++)
        cross_free(c, &r->buf[i]);
}

static struct cross_kv any_kv(struct cross *c, int32_t n_slots, int32_t max_pos, int32_t page_size,
                              int32_t n_kv_heads, int32_t head_dim, float scale, bool f8)
{
    const int32_t per_slot = (max_pos + page_size - 1) / page_size, n = n_slots * per_slot;
    const size_t rows = (size_t)n * (size_t)page_size * (size_t)n_kv_heads,
                 size = rows * (size_t)head_dim / (f8 ? 4 : 1);
    const enum cross_type type = f8 ? CROSS_I32 : c->bf16 ? CROSS_BF16 : CROSS_F32;
    int32_t *table = malloc((size_t)n * sizeof *table);
    for (int32_t i = 0; i < n; i++)
        table[i] = i;
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t j = (int32_t)sv_rng_below(&c->rng, (uint32_t)i + 1), t = table[i];
        table[i] = table[j];
        table[j] = t;
    }
    struct cross_kv kv = {.k = cross_new(c, type, size, NULL, scale),
                          .v = cross_new(c, type, size, NULL, scale),
                          .table = cross_new(c, CROSS_I32, (size_t)n, table, 0)};
    for (int side = 0; side < 2; side++)
        kv.kv[side] = (struct sv_kv){.k = cross_at(&kv.k, side),
                                     .v = cross_at(&kv.v, side),
                                     .dtype = f8        ? SV_F8
                                              : c->bf16 ? SV_BF16
                                                        : SV_F32,
                                     .n_pages = n,
                                     .page_size = page_size,
                                     .n_kv_heads = n_kv_heads,
                                     .head_dim = head_dim,
                                     .table = cross_at(&kv.table, side),
                                     .table_stride = per_slot};
    free(table);
    for (int i = 0; f8 && i < 2; i++)
        kv.own[i] = cross_new(c, CROSS_I32, rows / 4 + 1, NULL, 0);
    return kv;
}

struct cross_kv cross_kv(struct cross *c, int32_t n_slots, int32_t max_pos, int32_t page_size,
                         int32_t n_kv_heads, int32_t head_dim, float scale)
{
    return any_kv(c, n_slots, max_pos, page_size, n_kv_heads, head_dim, scale, false);
}

struct cross_kv cross_kv_f8(struct cross *c, int32_t n_slots, int32_t max_pos, int32_t page_size,
                            int32_t n_kv_heads, int32_t head_dim, float fixed)
{
    struct cross_kv kv = any_kv(c, n_slots, max_pos, page_size, n_kv_heads, head_dim, 0, true);
    for (int side = 0; side < 2; side++) {
        kv.kv[side].k_own = cross_at(&kv.own[0], side);
        kv.kv[side].v_own = cross_at(&kv.own[1], side);
        kv.kv[side].k_scale = kv.kv[side].v_scale = fixed;
    }
    return kv;
}

void cross_kv_free(struct cross *c, struct cross_kv *kv)
{
    cross_free(c, &kv->k);
    cross_free(c, &kv->v);
    cross_free(c, &kv->table);
    for (int i = 0; i < 2; i++)
        if (kv->own[i].n)
            cross_free(c, &kv->own[i]);
}
