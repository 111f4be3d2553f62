/*
 * gdn.h - entry points of the ops for recurrent layers on a GPU.
 *
 * Included by device.cu for the table and by the files that define them. Must not: hold anything
 * except prototypes and limits of shapes.
 */
#ifndef SV_GPU_GDN_H
#define SV_GPU_GDN_H

extern "C" {
#include "backend/ops_gdn.h"
}

enum { SV_CUDA_MAX_KEY = 128 }; /* numbers of a key (gdn_scan.cu) */

/* gdn.cu, gdn_scan.cu, gdn_few.cu */
void sv_cuda_gdn_conv(struct sv_dev *dev, const struct sv_p_gdn_conv *p);
void sv_cuda_gdn_scan(struct sv_dev *dev, const struct sv_p_gdn_scan *p);
void sv_cuda_gdn_norm(struct sv_dev *dev, const struct sv_p_gdn_norm *p);
void sv_cuda_gdn_few(struct sv_dev *dev, const struct sv_p_gdn *p);

/* gates.cu */
void sv_cuda_sigmoid_mul(struct sv_dev *dev, const struct sv_p_sigmoid_mul *p);
void sv_cuda_add_gated(struct sv_dev *dev, const struct sv_p_add_gated *p);

#endif
