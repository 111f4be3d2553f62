/*
 * gemm_codes_sm90.cu - the kernels of gemm_wcomp_sm90.cu for weights in codes of 8 bits
 * (codes.cuh): the same blocks, units and pieces, and the bits of the matrix of their values.
 *
 * Must not: hold anything of its own.
 */
#define SV_GEMM_WCOMP 1
#define SV_GEMM_CODES 8
#include "backend/cuda/gemm_sm90.cu"
