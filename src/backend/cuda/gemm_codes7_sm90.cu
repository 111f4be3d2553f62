/*
 * gemm_codes7_sm90.cu - as gemm_codes_sm90.cu, for Q6_K, 7 bits a weight with its scales.
 *
 * Must not: hold anything of its own.
 */
#include "backend/cuda/gemm.h"

#define SV_GEMM_WCOMP 1
#define SV_GEMM_CODES 7
#define sv_gemm_codes sv_gemm_codes7
#define sv_gemm_codes_open sv_gemm_codes7_open
#include "backend/cuda/gemm_sm90.cu"
