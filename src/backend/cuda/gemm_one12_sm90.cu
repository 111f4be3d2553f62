/*
 * gemm_one12_sm90.cu - as gemm_one_sm90.cu, for compressed weights (wcomp.cuh).
 *
 * Must not: hold anything of its own.
 */
#include "backend/cuda/gemm_one.h"

#define SV_GEMM_WCOMP 1
#define SV_GEMM_CODES 0
#define sv_gemm_one sv_gemm_one12
#define sv_gemm_one_open sv_gemm_one12_open
#include "backend/cuda/gemm_one_sm90.cu"
