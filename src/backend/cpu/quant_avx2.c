/*
 * quant_avx2.c - values of quantized weights, by loops compiled for AVX2.
 *
 * Entered through sv_quant_expand_avx2 by gemm.c after cpuid said yes. Must not: give a weight
 * another value than quant.c does.
 */
#define QUANT_EXPAND sv_quant_expand_avx2
#include "backend/cpu/gemm.h"

#include "backend/quant_rows.h"
