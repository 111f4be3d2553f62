/*
 * ops_gdn.c - checked wrappers around a backend's gated delta rule, and how its memory is laid out.
 *
 * Called by model. What a wrapper refuses is a fault of its caller and aborts; a device without
 * these ops is found by sv_dev_check_gdn, when a model that needs them opens. Must not: look at
 * device memory.
 */
#include "backend/ops_gdn.h"

#include "backend/backends.h"

int sv_dev_check_gdn(const struct sv_dev *dev, int32_t k_dim, struct sv_err *err)
{
    const struct sv_gdn_ops *ops = dev->be->gdn;
    if (!ops)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "the %s backend has no gated delta rule",
                       dev->be->name);
    if (k_dim > ops->max_k_dim)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "linear_key_head_dim %d; the %s backend's gated delta rule takes up to %d",
                       k_dim, dev->be->name, ops->max_k_dim);
    return SV_OK;
}

/* ---------------------------------------------------------------- memory */

static int64_t piece(int64_t *at, int64_t n_elements, int64_t elem_bytes)
{
    const int64_t here = *at;
    *at += (n_elements * elem_bytes + SV_ALIGN - 1) / SV_ALIGN * SV_ALIGN;
    return here;
}

struct sv_gdn_block sv_gdn_block_of(const struct sv_gdn_shape *s)
{
    const int64_t nk = s->n_k_heads, nv = s->n_v_heads;
    /* An open chunk of committed rows and a block behind it. The first row of a block stays, so
     * that the next row is convolved with the last two before the block at the earliest. */
    struct sv_gdn_block b = {.ring = SV_GDN_CHUNK - 1 + s->max_block,
                             .k_ring = SV_GDN_CHUNK + s->max_block,
                             .conv_ring = SV_GDN_TAPS - 2 + (s->max_block > 2 ? s->max_block : 2)};
    piece(&b.n_bytes, nv, sizeof(int32_t));
    b.arrived = piece(&b.n_bytes, nk, sizeof(uint32_t));
    b.state = piece(&b.n_bytes, nv * s->k_dim * s->v_dim, sizeof(float));
    b.k = piece(&b.n_bytes, nk * b.k_ring * s->k_dim,
                s->conv_dtype == SV_F32 ? sizeof(float) : sizeof(int16_t));
    b.u = piece(&b.n_bytes, nv * b.ring * s->v_dim, sizeof(float));
    b.g = piece(&b.n_bytes, nv * b.ring, sizeof(float));
    b.conv = piece(&b.n_bytes, (int64_t)b.conv_ring * sv_gdn_channels(s),
                   (int64_t)sv_dtype_bytes(s->conv_dtype));
    return b;
}

size_t sv_gdn_rows_lay_out(struct sv_gdn_rows *r, const struct sv_gdn_shape *s, int32_t n_rows,
                           void *base)
{
    int64_t at = 0;
    const int64_t qkv = piece(&at, (int64_t)n_rows * sv_gdn_channels(s), sizeof(float));
    const int64_t gate = piece(&at, (int64_t)n_rows * 2 * s->n_v_heads, sizeof(float));
    const int64_t dots =
        piece(&at, (int64_t)n_rows * s->n_k_heads * 2 * SV_GDN_CHUNK, sizeof(float));
    if (base)
        *r = (struct sv_gdn_rows){.qkv = (float *)(void *)((char *)base + qkv),
                                  .gate = (float *)(void *)((char *)base + gate),
                                  .dots = (float *)(void *)((char *)base + dots)};
    return (size_t)at;
}

/* ---------------------------------------------------------------- checks */

static bool dim_ok(int32_t d)
{
    return d > 0 && d <= SV_GDN_MAX_DIM && d % 16 == 0;
}

static bool shape_ok(const struct sv_gdn_shape *s)
{
    return s->n_k_heads > 0 && s->n_v_heads > 0 && s->n_v_heads % s->n_k_heads == 0 &&
           dim_ok(s->k_dim) && dim_ok(s->v_dim) && s->max_block > 0 &&
           (s->conv_dtype == SV_F32 || s->conv_dtype == SV_BF16);
}

static bool f32_ok(const struct sv_weight *w, int32_t rows, int32_t cols)
{
    return w->data && w->fmt.elem == SV_F32 && w->rows == rows && w->cols == cols;
}

static bool rows_ok(const struct sv_rows *rows, const struct sv_gdn_shape *s,
                    const struct sv_gdn_slots *slots, const struct sv_gdn_rows *r)
{
    return sv_rows_ok(rows) && rows->seg_base && rows->n_segs > 0 && shape_ok(s) && slots->data &&
           slots->slot_stride >= sv_gdn_block_of(s).n_bytes && r->qkv && r->gate && r->dots;
}

static void check_conv(const struct sv_p_gdn_conv *p)
{
    SV_REQUIRE(rows_ok(&p->rows, &p->shape, &p->slots, &p->out) && p->x && p->a && p->b);
    SV_REQUIRE(p->ldx >= sv_gdn_channels(&p->shape) &&
               f32_ok(&p->conv, SV_GDN_TAPS, sv_gdn_channels(&p->shape)));
    SV_REQUIRE(f32_ok(&p->decay, 1, p->shape.n_v_heads) &&
               f32_ok(&p->dt_bias, 1, p->shape.n_v_heads));
}

static void check_scan(const struct sv_p_gdn_scan *p)
{
    SV_REQUIRE(rows_ok(&p->rows, &p->shape, &p->slots, &p->x) && p->out);
}

static void check_norm(const struct sv_p_gdn_norm *p)
{
    SV_REQUIRE(rows_ok(&p->rows, &p->shape, &p->slots, &p->mid) && p->x && p->z && p->out);
    SV_REQUIRE(p->ldz >= (int64_t)p->shape.n_v_heads * p->shape.v_dim && p->weight.data &&
               sv_vector_ok(&p->weight, p->shape.v_dim));
}

/* ---------------------------------------------------------------- ops */

void sv_op_gdn_conv(struct sv_dev *dev, const struct sv_p_gdn_conv *p)
{
    if (p->rows.n_rows == 0)
        return;
    check_conv(p);
    dev->be->gdn->conv(dev, p);
}

void sv_op_gdn_scan(struct sv_dev *dev, const struct sv_p_gdn_scan *p)
{
    if (p->rows.n_rows == 0)
        return;
    check_scan(p);
    dev->be->gdn->scan(dev, p);
}

void sv_op_gdn_norm(struct sv_dev *dev, const struct sv_p_gdn_norm *p)
{
    if (p->rows.n_rows == 0)
        return;
    check_norm(p);
    dev->be->gdn->norm(dev, p);
}

void sv_op_gdn(struct sv_dev *dev, const struct sv_p_gdn *p)
{
    if (p->most < 1 || p->most > SV_GDN_CHUNK || p->most > p->conv.shape.max_block) {
        sv_op_gdn_conv(dev, &p->conv);
        sv_op_gdn_scan(dev, &p->scan);
        sv_op_gdn_norm(dev, &p->norm);
        return;
    }
    if (p->conv.rows.n_rows == 0)
        return;
    check_conv(&p->conv);
    check_scan(&p->scan);
    check_norm(&p->norm);
    SV_REQUIRE(p->scan.x.qkv == p->conv.out.qkv && p->norm.x == p->scan.out);
    dev->be->gdn->few(dev, p);
}
