/*
 * vec_plain.c - the row kernels in portable C, the level that runs everywhere.
 *
 * Entered through sv_cpu_vec_plain. Must not: use intrinsics.
 */
#include "backend/cpu/vec.h"

#include "backend/cpu/simd_plain.h"

#include "backend/cpu/vec_kernels.h"
#include "backend/cpu/logits_kernels.h"
#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/gdn_kernels.h"
#include "backend/cpu/vec_table.h"
