/*
 * occupancy.h - thread blocks that a multiprocessor holds by its shared memory, where chips of one
 * build differ in it: for launch bounds.
 *
 * Included by kernels of backend/gpu. Must not: be used by host code, which serves all chips.
 */
#ifndef SV_CUDA_OCCUPANCY_H
#define SV_CUDA_OCCUPANCY_H

/* Of some 112 KiB each (gdn_few.cu). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
enum { SV_BLOCKS_OF_112K = 1 };
#else
enum { SV_BLOCKS_OF_112K = 2 };
#endif

#endif
