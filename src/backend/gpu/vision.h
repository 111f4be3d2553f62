/*
 * vision.h - entry points of the ops for a vision tower on a GPU (vision.cu).
 *
 * Included by device.cu for the table and by the file that defines them. Must not: hold anything
 * except prototypes and limits of heads.
 */
#ifndef SV_GPU_VISION_H
#define SV_GPU_VISION_H

extern "C" {
#include "backend/ops_vision.h"
}

enum { SV_CUDA_HEAD_STEP = 64 }; /* attention in matrices knows heads of 64, 128 and 256 */

void sv_cuda_layer_norm(struct sv_dev *dev, const struct sv_p_layer_norm *p);
void sv_cuda_gelu(struct sv_dev *dev, const struct sv_p_gelu *p);
void sv_cuda_add_corners(struct sv_dev *dev, const struct sv_p_add_corners *p);

#endif
