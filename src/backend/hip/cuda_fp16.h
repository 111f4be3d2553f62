/*
 * cuda_fp16.h (HIP) - see cuda_runtime.h beside.
 */
#include <hip/hip_fp16.h>
