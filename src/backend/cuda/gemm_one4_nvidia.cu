/*
 * gemm_one4_nvidia.cu - as gemm_one_nvidia.cu, for codes of 4 bits.
 *
 * Must not: hold anything of its own.
 */
#include "backend/cuda/gemm_one.h"

#define SV_GEMM_CODES 4
#define sv_gemm_one_portable sv_gemm_one4_portable
#define sv_gemm_one_portable_open sv_gemm_one4_portable_open
#include "backend/cuda/gemm_one_nvidia.cu"
