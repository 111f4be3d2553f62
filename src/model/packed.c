/*
 * packed.c - experts that a file keeps in one tensor for each projection of a layer: expanded to
 * the matrices that the ops take, once, when a model opens.
 *
 * Called by weights.c. One projection is expanded at a time; the memory is freed as soon as the
 * device has its own copy. Must not: run during a step, or look inside a tensor (load/packed.c).
 */
#include "model/impl.h"

#include <string.h>

/* What is to become of one tensor: every step-th output, from first on. */
struct part {
    struct sv_packed from;
    int32_t first, step;
};

/* A vector for all experts, expert by expert. */
static int take_bias(struct sv_weights *w, const struct sv_tensor_spec *s, const struct part *p,
                     struct sv_weight *out, struct sv_err *err)
{
    const struct sv_host_tensor *t = p->from.t;
    const size_t n = (size_t)t->n_elements / (size_t)p->step, elem = sv_dtype_bytes(t->dtype);
    uint8_t *data = sv_arena_alloc(&w->arena, n * elem);
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %s", s->name);
    for (size_t i = 0; i < n; i++)
        memcpy(data + i * elem,
               (const uint8_t *)t->data + (i * (size_t)p->step + (size_t)p->first) * elem, elem);
    const struct sv_weight host = {
        .role = s->role, .fmt.elem = t->dtype, .rows = 1, .cols = (int32_t)n, .data = data};
    int rc = sv_dev_upload_weight(w->dev, &host, out, err);
    if (!rc)
        sv_weights_note(w, &(struct sv_taken){.w = *out, .n_bytes = (int64_t)(n * elem)});
    return rc;
}

/* *in_place: the device uses some of the matrices where they are. */
static int upload(struct sv_weights *w, enum sv_role role, enum sv_dtype elem, const uint8_t *data,
                  struct sv_experts *x, bool *in_place, struct sv_err *err)
{
    const size_t stride = (size_t)x->rows * (size_t)x->cols * sv_dtype_bytes(elem);
    struct sv_weight *host = sv_calloc((size_t)x->n, sizeof *host);
    if (!host)
        return sv_fail(err, SV_ENOMEM, -1, "no memory for %d experts", x->n);
    for (int32_t e = 0; e < x->n; e++)
        host[e] = (struct sv_weight){.role = role,
                                     .fmt.elem = elem,
                                     .rows = x->rows,
                                     .cols = x->cols,
                                     .data = data + (size_t)e * stride};
    int rc = sv_dev_upload_experts(w->dev, host, x->n, x, err);
    *in_place = false;
    for (int32_t e = 0; e < x->n && !rc; e++) /* one may be compressed, and the next not */
        *in_place |= x->w[e].data == host[e].data;
    sv_free(host);
    if (rc || *in_place)
        return rc;
    rc = sv_dev_sync(w->dev, err); /* copies may still be under way */
    if (rc)
        sv_dev_free_experts(w->dev, x);
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
    for (int32_t e = thread; e < x->p->from.n; e += n_threads)
        sv_packed_expand(&x->p->from, e, x->p->first, x->p->step, x->data + (size_t)e * x->stride);
}

/* On all processors: tens of gigabytes may come out. */
static int expand(const struct part *p, uint8_t *data, size_t stride, struct sv_err *err)
{
    struct expansion x = {p, data, stride};
    struct sv_pool *pool;
    const int n_cpus = sv_cpu_count();
    int rc = sv_pool_open(&pool, n_cpus < p->from.n ? n_cpus : p->from.n, err);
    if (rc)
        return rc;
    sv_pool_run(pool, expand_share, &x);
    sv_pool_close(pool);
    return SV_OK;
}

static int take_matrices(struct sv_weights *w, const struct sv_tensor_spec *s, const struct part *p,
                         struct sv_experts *x, int32_t n_chosen, struct sv_err *err)
{
    const enum sv_dtype elem = sv_packed_dtype(&p->from);
    const size_t stride = (size_t)x->rows * (size_t)x->cols * sv_dtype_bytes(elem);
    bool in_place = false;
    SV_REQUIRE(x->rows == p->from.rows / p->step && x->cols == p->from.cols);
    uint8_t *data = sv_alloc((size_t)x->n * stride);
    if (!data)
        return sv_fail(err, SV_ENOMEM, -1, "no memory to expand %s: %zu bytes", s->name,
                       (size_t)x->n * stride);
    int rc = expand(p, data, stride, err);
    if (!rc)
        rc = upload(w, s->role, elem, data, x, &in_place, err);
    if (!rc)
        sv_weights_note(w, &(struct sv_taken){.w.role = s->role,
                                              .n_bytes = (int64_t)((size_t)x->n * stride),
                                              .experts = x,
                                              .n_chosen = n_chosen,
                                              .host = in_place ? data : NULL});
    if (!in_place)
        sv_free(data);
    return rc;
}

int sv_weights_take_packed(struct sv_weights *w, const struct sv_tensor_spec *s, int32_t first,
                           int32_t step, struct sv_place to, int32_t n_chosen, struct sv_err *err)
{
    struct part p = {.first = first, .step = step};
    int rc = sv_packed_find(&p.from, w->ckpt, s, err);
    if (rc)
        return rc;
    return to.w ? take_bias(w, s, &p, to.w, err)
                : take_matrices(w, s, &p, to.experts, n_chosen, err);
}
