/*
 * gemm_w8a8_sm90.cu - the kernels of gemm_fp8_sm90.cu for activations in fp8: each group of 128
 * columns, a tile, is multiplied from zero and added in f32 with the scales of both rows
 * (gemm_groups.cuh).
 *
 * Must not: hold anything of its own.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/cuda/gemm.h"

#define SV_GEMM_FP8 2
#define sv_gemm_sm90 sv_gemm_w8a8
#define sv_gemm_sm90_whole sv_gemm_w8a8_whole
#include "backend/cuda/gemm_sm90.cu"
