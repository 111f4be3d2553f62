/*
 * ops_mla.c - checked wrappers around a backend's latent attention.
 *
 * Called by model. What a wrapper refuses is a fault of its caller and aborts; a device without
 * these ops is found by sv_dev_check_mla, when a model that needs them opens. Must not: look at
 * device memory.
 */
#include "backend/ops_mla.h"

#include "backend/backends.h"

int sv_dev_check_mla(const struct sv_dev *dev, struct sv_err *err)
{
    return dev->be->mla ? SV_OK
                        : sv_fail(err, SV_EUNSUPPORTED, -1,
                                  "the %s backend has no latent attention", dev->be->name);
}

void sv_op_mla_write(struct sv_dev *dev, const struct sv_p_mla_write *p)
{
    if (p->rows.n_rows == 0)
        return;
    const int32_t rot = p->rope.rot_dim, latent = p->cache.head_dim - rot;
    SV_REQUIRE(dev->be->mla && sv_rows_ok(&p->rows) && sv_latent_ok(&p->cache) &&
               (!p->cache.latent || p->cache.latent == latent));
    SV_REQUIRE(p->kv && p->q && p->absorbed && p->n_heads > 0 && p->head_dim > rot);
    SV_REQUIRE(rot > 0 && rot % 2 == 0 && rot <= 256 && latent > 0 && p->rope.cos && p->rope.sin &&
               p->rope.max_pos > 0);
    SV_REQUIRE(p->norm.data && sv_vector_ok(&p->norm, latent));
    dev->be->mla->write(dev, p);
}

void sv_op_head_products(struct sv_dev *dev, const struct sv_p_head_products *p)
{
    if (p->n_rows == 0)
        return;
    const struct sv_experts *w = &p->w;
    SV_REQUIRE(dev->be->mla && p->n_rows > 0 && p->x && p->y && w->n > 0 && w->w && w->w[0].data);
    SV_REQUIRE(w->rows > 0 && w->cols > 0 && !w->bias.data && w->w[0].fmt.elem <= SV_F16);
    SV_REQUIRE(p->x_stride >= w->cols && p->y_stride >= w->rows);
    SV_REQUIRE(p->ldx >= (int64_t)(w->n - 1) * p->x_stride + w->cols &&
               p->ldy >= (int64_t)(w->n - 1) * p->y_stride + w->rows);
    dev->be->mla->head_products(dev, p);
}
