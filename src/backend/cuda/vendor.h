/*
 * vendor.h - the differences between NVIDIA and AMD in the host code of this folder: the backend's
 * name in messages, and which chips have kernels.
 *
 * Included by the files of this folder that open the device or report its errors, and by
 * chip_nvidia.cu and backend/hip/chip_amd.cu. AMD's names come from backend/hip/cuda_runtime.h,
 * which a build for AMD reads first. Must not: hold anything that a kernel sees.
 */
#ifndef SV_CUDA_VENDOR_H
#define SV_CUDA_VENDOR_H

#include "backend/cuda/cuda.h"

#ifndef SV_GPU_BACKEND
#define SV_GPU_BACKEND "cuda"
#define SV_GPU_LIBRARY "CUDA"
#define SV_GPU_CALL "cuda" /* how the names of the library's functions begin */
#define SV_GPU_MAKER "NVIDIA"
#endif

/* Refuses options that no device of this vendor supports, by name. Quantized drafts are refused by
 * the engine (sv_dev_quantizes). */
int sv_cuda_chip_options(const struct sv_dev_opts *opts, struct sv_err *err);

/* Sets set, pdl (if the chip has it), smem_block and text of a device whose other properties are in
 * cu, and wcomp_mode off if weights cannot be compressed; refuses a chip without kernels. */
int sv_cuda_chip(struct sv_cuda *cu, const struct cudaDeviceProp *prop, enum sv_kernels kernels,
                 struct sv_err *err);

#endif
