/*
 * gemm_one.h - products of one row of x, as gemm.cu calls them.
 */
#ifndef SV_CUDA_GEMM_ONE_H
#define SV_CUDA_GEMM_ONE_H

#include "backend/cuda/gemm.h"

/* gemm_one_sm90.cu, gemm_one4_sm90.cu and gemm_one12_sm90.cu, of codes of 8 and 4 bits and
 * compressed weights. packed: other parts of the product, in packed bf16, to multiply in the same
 * launch (of codes), or NULL. False, and nothing done, where sums are cut in another way. The bits
 * of the kernels for more rows. */
typedef int sv_gemm_one_open_fn(struct sv_err *err);
typedef bool sv_gemm_one_fn(struct sv_cuda *cu, const void *x, int32_t k,
                            const struct sv_gemm_args *a, const struct sv_gemm_args *packed);
sv_gemm_one_open_fn sv_gemm_one_open, sv_gemm_one4_open, sv_gemm_one12_open;
sv_gemm_one_fn sv_gemm_one, sv_gemm_one4, sv_gemm_one12;
/* gemm_one_nvidia.cu and gemm_one4_nvidia.cu: likewise, of the portable kernels. */
typedef int sv_gemm_one_portable_open_fn(struct sv_cuda *cu, struct sv_err *err);
typedef bool sv_gemm_one_portable_fn(struct sv_cuda *cu, const void *x, int32_t k,
                                     const struct sv_gemm_args *a);
sv_gemm_one_portable_open_fn sv_gemm_one_portable_open, sv_gemm_one4_portable_open;
sv_gemm_one_portable_fn sv_gemm_one_portable, sv_gemm_one4_portable;

#endif
