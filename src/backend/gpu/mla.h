/*
 * mla.h - the ops of latent attention on GPUs (ops_mla.h), except attention itself.
 *
 * Included by mla.cu and by device.cu for the table. Must not: know of a model.
 */
#ifndef SV_GPU_MLA_H
#define SV_GPU_MLA_H

#include "backend/cuda/cuda.h"
extern "C" {
#include "backend/ops_mla.h"
}

void sv_cuda_mla_write(struct sv_dev *dev, const struct sv_p_mla_write *p);
void sv_cuda_head_products(struct sv_dev *dev, const struct sv_p_head_products *p);

#endif
