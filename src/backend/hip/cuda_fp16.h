/*
 * cuda_fp16.h (HIP) - CUDA's names of f16; never run on a card. See cuda_runtime.h beside.
 */
#include <hip/hip_fp16.h>
