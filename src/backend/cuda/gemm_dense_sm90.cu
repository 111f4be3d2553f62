/*
 * gemm_dense_sm90.cu - the kernels of gemm_sm90.cu once more, for weights in fewer bits
 * (dense.cuh): the same blocks, units, pieces and bits.
 *
 * Must not: hold anything of its own.
 */
#define SV_GEMM_DENSE 1
#include "backend/cuda/gemm_sm90.cu"
