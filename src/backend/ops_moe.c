/*
 * ops_moe.c - checked wrappers around a backend's mixture of experts, and where the tables of a
 * routing lie.
 *
 * Called by model. What a wrapper refuses is a fault of its caller and aborts; a device without
 * these ops is found by sv_dev_check_moe, when a model that needs them opens. Must not: look at
 * device memory.
 */
#include "backend/backends.h"

#include "backend/ops_moe.h"
#include "backend/quant.h"

#include <string.h>

int sv_dev_check_moe(const struct sv_dev *dev, struct sv_err *err)
{
    return dev->be->moe ? SV_OK
                        : sv_fail(err, SV_EUNSUPPORTED, -1,
                                  "the %s backend has no mixture of experts", dev->be->name);
}

/* ---------------------------------------------------------------- routing tables */

static void *piece(char *base, size_t *at, size_t n_bytes)
{
    const size_t here = *at;
    *at += (n_bytes + 255) / 256 * 256;
    return base ? base + here : NULL;
}

size_t sv_routes_lay_out(struct sv_routes *r, void *base)
{
    const size_t entries = (size_t)r->n_rows * (size_t)r->k, experts = (size_t)r->n_experts;
    size_t at = 0;
    r->expert = piece(base, &at, entries * sizeof *r->expert);
    r->weight = piece(base, &at, entries * sizeof *r->weight);
    r->place = piece(base, &at, entries * sizeof *r->place);
    r->list = piece(base, &at, entries * sizeof *r->list);
    r->first = piece(base, &at, (experts + 1) * sizeof *r->first);
    r->active = piece(base, &at, experts * sizeof *r->active);
    r->n_active = piece(base, &at, sizeof *r->n_active);
    r->logits = piece(base, &at, (size_t)r->n_rows * experts * sizeof *r->logits);
    return at;
}

static bool routes_ok(const struct sv_routes *r)
{
    return r->n_rows >= 0 && r->n_experts > 0 && r->n_experts <= SV_MAX_EXPERTS && r->k > 0 &&
           r->k <= r->n_experts && r->k <= SV_MAX_CHOSEN && r->expert && r->weight && r->place &&
           r->own.first >= 0 && r->own.first <= r->n_experts - r->own.n && r->list && r->first &&
           r->active && r->n_active && r->logits && !(r->shared && (r->own.n || r->k < 2));
}

/* ---------------------------------------------------------------- weights */

/* Of one shape and format. A device may have two kinds of scales for e4m3, by their values. */
static bool alike(const struct sv_weight *a, const struct sv_weight *b)
{
    return a->rows == b->rows && a->cols == b->cols && a->fmt.elem == b->fmt.elem &&
           a->fmt.block_rows == b->fmt.block_rows && a->fmt.block_cols == b->fmt.block_cols &&
           (a->fmt.scale == b->fmt.scale || a->fmt.elem == SV_F8);
}

static bool experts_ok(const struct sv_experts *x, const struct sv_routes *r)
{
    return x->n == sv_routes_n_own(r) - r->shared && x->rows > 0 && x->cols > 0 && x->w &&
           x->w[0].data && x->w[0].fmt.elem != SV_I32 && x->w[0].rows == x->rows &&
           x->w[0].cols == x->cols && sv_vector_ok(&x->bias, (int64_t)x->n * x->rows) &&
           (!r->shared || (x->shared && x->shared->data && alike(x->shared, &x->w[0])));
}

bool sv_dev_takes_shared(const struct sv_dev *dev, const struct sv_experts *x,
                         const struct sv_weight *shared)
{
    return dev->be->moe->takes_shared && !x->bias.data && alike(shared, &x->w[0]);
}

int sv_dev_upload_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                          struct sv_experts *out, struct sv_err *err)
{
    SV_REQUIRE(dev->be->moe && n > 0 && out->n == n && out->w);
    SV_REQUIRE(host[0].rows == out->rows && host[0].cols == out->cols);
    const size_t elem = sv_dtype_bytes(host[0].fmt.elem);
    for (int32_t e = 0; e < n; e++)
        SV_REQUIRE(host[e].data && (uintptr_t)host[e].data % elem == 0 && !host[e].priv &&
                   alike(&host[e], &host[0]));
    memset(out->w, 0, (size_t)n * sizeof *out->w);
    int rc = dev->be->moe->upload_experts(dev, host, n, out->w, err);
    if (!rc && dev->on_upload)
        dev->on_upload(dev->upload_user,
                       (size_t)n * (host->quant ? (size_t)sv_quant_bytes(host->quant)
                                                : (size_t)out->rows * (size_t)out->cols * elem));
    return rc;
}

int sv_dev_random_experts(struct sv_dev *dev, const struct sv_weight *shape, int32_t n, float scale,
                          uint64_t seed, struct sv_experts *out, struct sv_err *err)
{
    SV_REQUIRE(dev->be->moe && n > 0 && out->n == n && out->w && shape->fmt.elem <= SV_F16);
    SV_REQUIRE(shape->rows == out->rows && shape->cols == out->cols);
    memset(out->w, 0, (size_t)n * sizeof *out->w);
    return dev->be->moe->random_experts(dev, shape, n, scale, seed, out->w, err);
}

void sv_dev_free_experts(struct sv_dev *dev, struct sv_experts *x)
{
    if (x->n && x->w && x->w[0].data) {
        dev->be->moe->free_experts(dev, x->w, x->n);
        memset(x->w, 0, (size_t)x->n * sizeof *x->w);
    }
}

/* ---------------------------------------------------------------- ops */

static bool groups_ok(const struct sv_router_sigmoid *s, const struct sv_routes *r)
{
    const int32_t n = r->n_experts - r->shared, k = r->k - r->shared;
    return s->n_group > 0 && s->topk_group > 0 && s->topk_group <= s->n_group && s->scale > 0 &&
           (s->topk_group == s->n_group ||
            (n % s->n_group == 0 && n >= 2 * s->n_group && k <= n / s->n_group * s->topk_group)) &&
           sv_vector_ok(&s->bias, n) && (!s->bias.data || s->bias.fmt.elem == SV_F32);
}

void sv_op_router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p)
{
    if (p->rows.n_rows == 0) {
        if (p->before)
            sv_op_add_rms_norm(dev, p->before); /* it may be a join */
        return;
    }
    SV_REQUIRE(sv_rows_ok(&p->rows) && routes_ok(&p->routes) && p->x && p->w.data);
    SV_REQUIRE(p->routes.n_rows == p->rows.n_rows &&
               p->w.rows == p->routes.n_experts - p->routes.shared);
    SV_REQUIRE(!p->routes.shared ||
               (dev->be->moe->takes_shared && sv_vector_ok(&p->shared, p->w.cols)));
    SV_REQUIRE(!p->shared.data || p->shared.fmt.elem == p->w.fmt.elem);
    SV_REQUIRE(p->w.cols > 0 && p->w.fmt.elem <= SV_F16 && sv_vector_ok(&p->bias, p->w.rows));
    const struct sv_router_sigmoid *s = &p->sigmoid;
    SV_REQUIRE(p->norm == SV_ROUTER_OVER_CHOSEN || p->norm == SV_ROUTER_OVER_ALL ||
               (p->norm == SV_ROUTER_SIGMOID && groups_ok(s, &p->routes)));
    if (p->before)
        SV_REQUIRE(p->before->out == p->x && p->before->n_rows == p->rows.n_rows &&
                   p->before->d == p->w.cols && !p->before->row_index &&
                   (!p->before->join || p->before->delta));
    if (p->before && p->before->join)
        sv_dev_begin_join(dev, p->before->join);
    dev->be->moe->router_topk(dev, p);
}

void sv_op_moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p)
{
    if (p->routes.n_rows == 0)
        return;
    SV_REQUIRE(routes_ok(&p->routes) && p->x && p->out);
    SV_REQUIRE(experts_ok(&p->gate, &p->routes) && experts_ok(&p->up, &p->routes));
    SV_REQUIRE(alike(&p->gate.w[0], &p->up.w[0]) && !p->gate.bias.data == !p->up.bias.data);
    SV_REQUIRE(p->act == SV_EXPERT_SILU || (p->act == SV_EXPERT_CLAMPED && p->limit > 0));
    dev->be->moe->gate_up(dev, p);
}

void sv_op_moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p)
{
    if (p->routes.n_rows == 0)
        return;
    SV_REQUIRE(routes_ok(&p->routes) && p->x && p->out && experts_ok(&p->down, &p->routes));
    SV_REQUIRE(!p->then || (p->then->x == p->out && p->then->hidden == p->down.rows &&
                            p->then->routes.place == p->routes.place && p->then->out));
    dev->be->moe->down(dev, p);
}
