/*
 * gemm_codes4_sm90.cu - as gemm_codes_sm90.cu, for codes of 4 bits.
 *
 * Must not: hold anything of its own.
 */
#include "backend/cuda/gemm.h"

#define SV_GEMM_WCOMP 1
#define SV_GEMM_CODES 4
#define sv_gemm_codes sv_gemm_codes4
#define sv_gemm_codes_open sv_gemm_codes4_open
#include "backend/cuda/gemm_sm90.cu"
