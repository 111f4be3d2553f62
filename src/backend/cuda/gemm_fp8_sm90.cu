/*
 * gemm_fp8_sm90.cu - the kernels of gemm_sm90.cu once more, for weights and x in 8 bits (fp8.cuh):
 * tiles of the same bytes hold twice the columns, and sums are multiplied by the scales of both
 * rows at the end.
 *
 * Must not: hold anything of its own.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/cuda/gemm.h"

#define SV_GEMM_FP8 1
#define sv_gemm_sm90 sv_gemm_fp8
#define sv_gemm_sm90_halves sv_gemm_fp8_halves
#define sv_gemm_sm90_whole sv_gemm_fp8_whole
#include "backend/cuda/gemm_sm90.cu"
