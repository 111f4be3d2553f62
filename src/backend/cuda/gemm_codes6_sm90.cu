/*
 * gemm_codes6_sm90.cu - as gemm_codes_sm90.cu, for Q5_K, 6 bits a weight with its scales.
 *
 * Must not: hold anything of its own.
 */
#include "backend/cuda/gemm.h"

#define SV_GEMM_WCOMP 1
#define SV_GEMM_CODES 6
#define sv_gemm_codes sv_gemm_codes6
#define sv_gemm_codes_open sv_gemm_codes6_open
#include "backend/cuda/gemm_sm90.cu"
