/*
 * gemm_wcomp_sm90.cu - the kernels of gemm_sm90.cu once more, for weights in fewer bits
 * (wcomp.cuh): the same blocks, units, pieces and bits.
 *
 * Must not: hold anything of its own.
 */
#define SV_GEMM_WCOMP 1
#include "backend/cuda/gemm_sm90.cu"
