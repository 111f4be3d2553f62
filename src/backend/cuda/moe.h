/*
 * moe.h - a mixture of experts on the CUDA backend: what its files and the table in device.cu
 * share.
 *
 * moe_route.cu chooses experts and lists their rows, moe.cu has their matrix products, upload.cu
 * puts their weights one behind the other. Included by those files and by device.cu. Must not: know
 * of a model.
 */
#ifndef SV_CUDA_MOE_H
#define SV_CUDA_MOE_H

#include "backend/cuda/cuda.h"
extern "C" {
#include "backend/ops_moe.h"
}

/* open: after every reserve */
int sv_cuda_route_open(struct sv_cuda *cu, struct sv_err *err);
void sv_cuda_route_close(struct sv_cuda *cu);
int sv_cuda_moe_open(struct sv_cuda *cu, struct sv_err *err);

/* ops, entered through the table */
void sv_cuda_router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p);
void sv_cuda_moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p);
void sv_cuda_moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p);
void sv_cuda_moe_combine(struct sv_dev *dev, const struct sv_p_moe_combine *p);

/* upload.cu: n weights of one shape and format, one behind the other: struct sv_moe_ops */
int sv_cuda_upload_experts(struct sv_dev *dev, const struct sv_weight *host, int32_t n,
                           struct sv_weight *w, struct sv_err *err);
int sv_cuda_random_experts(struct sv_dev *dev, const struct sv_weight *shape, int32_t n,
                           float scale, uint64_t seed, struct sv_weight *w, struct sv_err *err);
void sv_cuda_free_experts(struct sv_dev *dev, struct sv_weight *w, int32_t n);

#endif
