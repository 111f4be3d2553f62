/*
 * vec_avx2.c - the row kernels with AVX2.
 *
 * Entered through sv_cpu_vec_avx2, chosen at open. Must not: be called on a machine that lacks it.
 */
#include "backend/cpu/vec.h"

#include "backend/cpu/simd_avx2.h"

#include "backend/cpu/vec_kernels.h"
#include "backend/cpu/logits_kernels.h"
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/gdn_kernels.h"
#include "backend/cpu/vec_table.h"
