/*
 * codes_host.h - the interface of codes_host.cu for upload.cu. Shares are run by a pool's threads.
 */
#ifndef SV_CUDA_CODES_HOST_H
#define SV_CUDA_CODES_HOST_H

#include "backend/cuda/cuda.h"
#include "backend/gpu/codes.cuh"

/* Rows row0 to row0 + n_rows - 1 of q. */
struct sv_code_job {
    const struct sv_quant *q;
    enum sv_codes_code code;
    int32_t row0, n_rows;
    uint8_t *codes;  /* (n_rows, cols * bits / 8); of MXFP4 behind them (n_rows, cols / 32) e8m0 */
    uint32_t *words; /* (n_rows, tiles of cols); not of MXFP4 */
};

void sv_codes_share(void *job, int thread, int n);
void sv_mxfp4_share(void *job, int thread, int n); /* of experts, in their own layout */
/* Whether these are K-quants, whose super-blocks the device lays out. */
bool sv_codes_are_k(const struct sv_quant *q);
/* Whether products may multiply in bf16: see SV_CODES_F8. */
bool sv_codes_scales_fit(const struct sv_quant *q);
/* How codes are kept (codes.cuh). fit: see sv_codes_scales_fit. */
struct sv_format sv_codes_format(const struct sv_quant *q, bool fit);

#endif
