/*
 * gpu_peers.h - what joins are written in, as gpu.h is for matrix kernels: memory that several
 * devices and the host read while kernels run.
 *
 * Included by join.cuh. The bodies are in backend/cuda/gpu_peers_ptx.cuh,
 * backend/hip/gpu_peers_amd.cuh and, for tests that run kernels on a CPU,
 * tests/cuda/emulated/emulated_peers.h. Must not: know what is exchanged.
 *
 *   gpu_send16(at, w), gpu_take16(at)   16 bytes of any device's memory, each word whole; in no
 *                                       order with other places
 *   gpu_idle()                          between looks of a thread that waits for another device
 *   gpu_clock_us()                      of this one
 *   GPU_LOOKS                           16 bytes that a thread asks for together at most
 */
#ifndef SV_GPU_PEERS_H
#define SV_GPU_PEERS_H

#include <cuda_runtime.h>
#include <stdint.h>

#if defined(SV_CUDA_EMULATED)
#include <emulated_peers.h>
#elif defined(__HIP__)
#include "backend/hip/gpu_peers_amd.cuh"
#else
#include "backend/cuda/gpu_peers_ptx.cuh"
#endif

#endif
