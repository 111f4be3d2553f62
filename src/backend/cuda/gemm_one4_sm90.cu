/*
 * gemm_one4_sm90.cu - as gemm_one_sm90.cu, for codes of 4 bits.
 *
 * Must not: hold anything of its own.
 */
#include "backend/cuda/gemm_one.h"

#define SV_GEMM_CODES 4
#define sv_gemm_one sv_gemm_one4
#define sv_gemm_one_open sv_gemm_one4_open
#include "backend/cuda/gemm_one_sm90.cu"
