/*
 * packed.c - experts stored in one tensor for each projection of a layer, and heads stored in one:
 * MXFP4 as it is where the device takes codes, else expanded to the ops' matrices, once, when a
 * model opens.
 *
 * Called by weights.c. One projection is expanded at a time; the memory is freed as soon as the
 * device has its own copy. Must not: run during a step, or decode a tensor (load/packed.c does).
 */
#include "model/impl.h"

#include <string.h>

/* This rank's part of every expert in one tensor. */
struct part {
    struct sv_packed from;
    struct sv_packed_part of;
    struct sv_slice experts;
};

/* Vectors of all experts, one by one. */
static int take_bias(struct sv_weights *w, const struct sv_tensor_spec *s, const struct part *p,
                     struct sv_weight *out, struct sv_err *err)
{
    const struct sv_host_tensor *t = p->from.t;
    const struct sv_packed_part *of = &p->of;
    const int64_t each = t->n_elements / s->n_experts;
    const size_t elem = sv_dtype_bytes(t->dtype), n = (size_t)p->experts.n * (size_t)of->rows.n;
    uint8_t *data = sv_arena_alloc(&w->arena, n * elem);
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %s", s->name);
    for (int32_t i = 0; i < (int32_t)n; i++) {
        const int64_t row = of->rows.first + i % of->rows.n,
                      at = (p->experts.first + i / of->rows.n) * each + row * of->step + of->first;
        memcpy(data + (size_t)i * elem, (const uint8_t *)t->data + (size_t)at * elem, elem);
    }
    const struct sv_weight host = {
        .role = s->role, .fmt.elem = t->dtype, .rows = 1, .cols = (int32_t)n, .data = data};
    int rc = sv_dev_upload_weight(w->dev, &host, out, err);
    if (!rc)
        sv_weights_note(w, &(struct sv_taken){.w = *out, .n_bytes = (int64_t)(n * elem)});
    return rc;
}

/* memory: of host's matrices, or NULL; becomes t's where the device uses some of them in place,
 * else it is freed, as on errors. */
static int upload(struct sv_weights *w, const struct sv_weight *host, struct sv_experts *x,
                  void *memory, struct sv_taken *t, struct sv_err *err)
{
    bool in_place = false;
    int rc = sv_dev_upload_experts(w->dev, host, x->n, x, err);
    for (int32_t e = 0; e < x->n && !rc; e++) /* one may be compressed, and the next not */
        in_place |= memory && x->w[e].data == host[e].data;
    if (!rc && memory && !in_place) {
        rc = sv_dev_sync(w->dev, err); /* copies may still be running */
        if (rc)
            sv_dev_free_experts(w->dev, x);
    }
    t->host = in_place ? memory : NULL;
    if (!in_place)
        sv_free(memory);
    return rc;
}

/* data, which becomes t's or is freed, as matrices of t->experts. */
static int keep(struct sv_weights *w, const struct sv_taken *t, enum sv_dtype elem, void *data,
                struct sv_err *err)
{
    struct sv_experts *x = t->experts;
    struct sv_taken own = *t;
    const size_t stride = (size_t)x->rows * (size_t)x->cols * sv_dtype_bytes(elem);
    struct sv_weight *host = sv_calloc((size_t)x->n, sizeof *host);
    if (!host) {
        sv_free(data);
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %d experts", x->n);
    }
    for (int32_t e = 0; e < x->n; e++)
        host[e] = (struct sv_weight){.role = t->w.role,
                                     .fmt.elem = elem,
                                     .rows = x->rows,
                                     .cols = x->cols,
                                     .data = (const char *)data + (size_t)e * stride};
    int rc = upload(w, host, x, data, &own, err);
    if (!rc)
        sv_weights_note(w, &own);
    sv_free(host);
    return rc;
}

struct expansion {
    const struct part *p;
    uint8_t *data;
    size_t stride; /* bytes of an expert */
};

static void expand_share(void *arg, int thread, int n_threads)
{
    const struct expansion *x = arg;
    for (int32_t e = thread; e < x->p->experts.n; e += n_threads)
        sv_packed_expand(&x->p->from, x->p->experts.first + e, &x->p->of,
                         x->data + (size_t)e * x->stride);
}

/* On all processors: the output may be tens of gigabytes. */
static int expand(const struct part *p, uint8_t *data, size_t stride, struct sv_err *err)
{
    struct expansion x = {p, data, stride};
    struct sv_pool *pool;
    const int n_cpus = sv_cpu_count();
    int rc = sv_pool_open(&pool, n_cpus < p->experts.n ? n_cpus : p->experts.n, err);
    if (rc)
        return rc;
    sv_pool_run(pool, expand_share, &x);
    sv_pool_close(pool);
    return SV_OK;
}

/* MXFP4 in place, except a part of the inputs, which is copied to `copy`, (n_experts, stride). */
static int codes_of(const struct part *p, const struct sv_experts *x, struct sv_quant *quant,
                    uint8_t **copy, struct sv_err *err)
{
    const struct sv_slice rows = {0, p->of.rows.n};
    size_t stride = 0;
    for (int32_t e = 0; e < x->n; e++) {
        const struct sv_quant whole = sv_packed_codes(&p->from, p->experts.first + e, &p->of);
        if (e == 0)
            stride = (size_t)sv_quant_part(quant, &whole, &rows, 1, p->of.cols, NULL);
        if (stride && e == 0 && !(*copy = sv_alloc((size_t)x->n * stride)))
            return sv_fail(err, SV_ENOMEM, -1, "no memory for inputs of %d experts", x->n);
        uint8_t *to = stride ? *copy + (size_t)e * stride : NULL;
        SV_REQUIRE(sv_quant_part(&quant[e], &whole, &rows, 1, p->of.cols, to) == (int64_t)stride);
    }
    return SV_OK;
}

static int take_codes(struct sv_weights *w, const struct sv_tensor_spec *s, const struct part *p,
                      struct sv_experts *x, int32_t n_chosen, struct sv_err *err)
{
    struct sv_weight *host = sv_calloc((size_t)x->n, sizeof *host);
    struct sv_quant *quant = sv_calloc((size_t)x->n, sizeof *quant);
    uint8_t *copy = NULL;
    struct sv_taken own = {.w.role = s->role, .experts = x, .n_chosen = n_chosen};
    int rc = host && quant ? codes_of(p, x, quant, &copy, err)
                           : sv_fail(err, SV_ENOMEM, -1, "no memory for %s", s->name);
    for (int32_t e = 0; e < x->n && !rc; e++)
        host[e] = (struct sv_weight){.role = s->role,
                                     .fmt.elem = SV_U8,
                                     .rows = x->rows,
                                     .cols = x->cols,
                                     .data = quant[e].data,
                                     .quant = &quant[e]};
    if (!rc)
        rc = upload(w, host, x, copy, &own, err);
    if (!rc) {
        own.n_bytes = x->n * sv_quant_bytes(quant);
        sv_weights_note(w, &own);
    }
    sv_free(host);
    sv_free(quant);
    return rc;
}

static int take_matrices(struct sv_weights *w, const struct sv_tensor_spec *s, const struct part *p,
                         struct sv_experts *x, int32_t n_chosen, struct sv_err *err)
{
    const enum sv_dtype elem = sv_packed_dtype(&p->from);
    const size_t stride = (size_t)x->rows * (size_t)x->cols * sv_dtype_bytes(elem);
    SV_REQUIRE(x->rows == p->of.rows.n && x->cols == p->of.cols.n);
    uint8_t *data = sv_alloc((size_t)x->n * stride);
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory to expand %s: %zu bytes", s->name,
                       (size_t)x->n * stride);
    int rc = expand(p, data, stride, err);
    const struct sv_taken t = {.w.role = s->role,
                               .n_bytes = (int64_t)((size_t)x->n * stride),
                               .experts = x,
                               .n_chosen = n_chosen};
    if (!rc)
        return keep(w, &t, elem, data, err);
    sv_free(data);
    return rc;
}

int sv_weights_take_packed(struct sv_weights *w, const struct sv_tensor_spec *s, int32_t first,
                           int32_t step, struct sv_place to, int32_t n_chosen, struct sv_err *err)
{
    const struct sv_cut cut = sv_part_cut(w, s->role, s->rows / step, s->cols);
    struct part p = {.of = {first, step, {0, (int32_t)s->rows / step}, {0, (int32_t)s->cols}},
                     .experts = sv_part_experts(w, s->n_experts)};
    if (cut.axis == SV_CUT_ABSENT)
        return SV_OK;
    if (cut.axis != SV_CUT_NONE)
        *(cut.axis == SV_CUT_ROWS ? &p.of.rows : &p.of.cols) = cut.range[0];
    int rc = sv_packed_find(&p.from, w->ckpt, s, err);
    if (rc)
        return rc;
    if (to.w)
        return take_bias(w, s, &p, to.w, err);
    if (p.from.pack == SV_PACK_MXFP4) {
        const struct sv_quant q = sv_packed_codes(&p.from, 0, &p.of);
        if (sv_dev_takes_codes(w->dev, &q, s->role))
            return take_codes(w, s, &p, to.experts, n_chosen, err);
    }
    return take_matrices(w, s, &p, to.experts, n_chosen, err);
}

/* ---------------------------------------------------------------- heads */

/* Rows of the tensor, expanded if quantized. */
static void rows_of(const struct sv_host_tensor *t, int32_t first, int32_t n, enum sv_dtype elem,
                    float *wide, uint8_t *out)
{
    const size_t cols = (size_t)t->dim[1], size = sv_dtype_bytes(elem), row = cols * size;
    for (int32_t r = 0; r < n; r++, out += row) {
        if (!t->quant.code) {
            memcpy(out, (const uint8_t *)t->data + (size_t)(first + r) * row, row);
            continue;
        }
        sv_quant_rows(&t->quant, first + r, 1, elem == SV_F32 ? (float *)(void *)out : wide);
        for (size_t i = 0; elem == SV_BF16 && i < cols; i++)
            ((uint16_t *)(void *)out)[i] = sv_f32_to_bf16(wide[i]);
    }
}

static void transpose(uint8_t *out, const uint8_t *in, int32_t rows, int32_t cols, size_t elem)
{
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < cols; c++)
            memcpy(out + ((size_t)c * (size_t)rows + (size_t)r) * elem,
                   in + ((size_t)r * (size_t)cols + (size_t)c) * elem, elem);
}

/* A head's `each` rows in the tensor: its keys, then its values. */
static int expand_heads(const struct sv_host_tensor *t, bool values, const struct sv_experts *x,
                        int32_t first, int32_t each, enum sv_dtype elem, uint8_t *data,
                        struct sv_err *err)
{
    const size_t size = sv_dtype_bytes(elem), matrix = (size_t)x->rows * (size_t)x->cols * size;
    const int32_t latent = (int32_t)t->dim[1];
    const int32_t n = values ? x->rows : x->cols;
    float *wide = sv_alloc((size_t)latent * sizeof *wide);
    uint8_t *head = values ? NULL : sv_alloc(matrix);
    int rc = wide && (values || head)
                 ? SV_OK
                 : sv_fail(err, SV_ENOMEM, -1, "no memory to expand %s", t->name);
    for (int32_t h = 0; h < x->n && !rc; h++, data += matrix) {
        rows_of(t, (first + h) * each + (values ? each - n : 0), n, elem, wide,
                values ? data : head);
        if (!values)
            transpose(data, head, n, latent, size);
    }
    sv_free(wide);
    sv_free(head);
    return rc;
}

int sv_weights_take_heads(struct sv_weights *w, const struct sv_tensor_spec *s, bool values,
                          struct sv_experts *x, struct sv_err *err)
{
    const int64_t n_values = (int64_t)x->n * x->rows * x->cols;
    struct sv_taken taken = {.w.role = s->role, .n_bytes = 2 * n_values, .experts = x};
    if (!w->ckpt) {
        const struct sv_weight shape = {
            .role = s->role, .fmt.elem = SV_BF16, .rows = x->rows, .cols = x->cols};
        int rc =
            sv_dev_random_experts(w->dev, &shape, x->n, 0.02f, (uint64_t)w->n_taken + 1, x, err);
        if (!rc)
            sv_weights_note(w, &taken);
        return rc;
    }
    const struct sv_host_tensor *t = sv_ckpt_find(w->ckpt, s->name);
    SV_REQUIRE(t && t->n_dims == 2 && t->dim[0] == s->rows && t->dim[1] == s->cols);
    const enum sv_dtype elem = !t->quant.code                      ? t->dtype
                               : sv_quant_fits_bf16(t->quant.code) ? SV_BF16
                                                                   : SV_F32;
    uint8_t *data = sv_alloc((size_t)n_values * sv_dtype_bytes(elem));
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory to expand %s", s->name);
    const int32_t first = sv_shard_heads(&w->shape, sv_dev_ranks(w->dev)).first;
    const int32_t each = (int32_t)(s->rows / w->cfg->n_heads);
    int rc = expand_heads(t, values, x, first, each, elem, data, err);
    taken.n_bytes = (int64_t)((double)t->n_bytes * (double)n_values / (double)(s->rows * s->cols));
    if (!rc)
        return keep(w, &taken, elem, data, err);
    sv_free(data);
    return rc;
}
