/*
 * ops_vision.c - checked wrappers around a backend's ops of a vision tower.
 *
 * Called by model. What a wrapper refuses is a fault of its caller and aborts; a device without
 * these ops is found by sv_dev_has_vision. Must not: look at device memory.
 */
#include "backend/ops_vision.h"

#include "backend/backends.h"

bool sv_dev_has_vision(const struct sv_dev *dev)
{
    return dev->be->vision;
}

int32_t sv_dev_vision_head(const struct sv_dev *dev, int32_t head_dim)
{
    const int32_t step = dev->be->vision->head_step;
    return (head_dim + step - 1) / step * step;
}

void sv_op_layer_norm(struct sv_dev *dev, const struct sv_p_layer_norm *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(dev->be->vision && p->n_rows > 0 && p->d > 0 && p->x && p->out && p->out != p->x);
    SV_REQUIRE(p->weight.data && p->bias.data);
    SV_REQUIRE(sv_vector_ok(&p->weight, p->d) && sv_vector_ok(&p->bias, p->d));
    dev->be->vision->layer_norm(dev, p);
}

void sv_op_gelu(struct sv_dev *dev, const struct sv_p_gelu *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(dev->be->vision && p->n_rows > 0 && p->d > 0 && p->x);
    dev->be->vision->gelu(dev, p);
}

void sv_op_add_corners(struct sv_dev *dev, const struct sv_p_add_corners *p)
{
    if (p->n_rows == 0)
        return;
    SV_REQUIRE(dev->be->vision && p->n_rows > 0 && p->x && p->index && p->share);
    SV_REQUIRE(p->table.data && p->table.cols == p->d && p->table.fmt.elem <= SV_F16);
    dev->be->vision->add_corners(dev, p);
}
