/*
 * gpu.h - the interface between the matrix kernels of this folder and an architecture: one function
 * for each operation that differs between vendors.
 *
 * Included by kernels of backend/gpu and, for the functions they share with these, of backend/cuda.
 * The bodies are in backend/cuda/gpu_ptx.cuh, backend/hip/gpu_amd.cuh and, for tests that run
 * kernels on a CPU, tests/cuda/emulated/emulated_gpu.h. Must not: know of rings, blocks of weights
 * or sums.
 *
 * A wave is the GPU_WAVE lanes that execute one instruction. A warp is always 32 lanes: kernels
 * without matrix instructions use CUDA's __shfl_*_sync and similar functions, which stay within
 * half a wave on AMD (backend/hip/cuda_runtime.h). All functions below are called by whole waves.
 *
 * Constants of a body
 *   GPU_WAVE          lanes
 *   GPU_K             columns of an operand
 *   GPU_RUN           adjacent columns of a product's row in one lane
 *   GPU_LINES         rows of a product in one lane
 *   GPU_COLS          columns of a product whose sums are four registers of each lane
 *   GPU_KEYS          keys of a tile in attention
 *   GPU_BLOCKS        thread blocks of a product's kernel on a multiprocessor
 *   GPU_SMALL_SHARED  a thread block has at most 64 KiB of shared memory
 *   GPU_WCOMP         weights may be compressed: their layout is that of waves of 32
 *   GPU_AFRESH        unrolled code has too few scalar registers: see gpu_afresh
 *   GPU_BYTES_OF, GPU_SIGNED_BYTES, GPU_TURNED, GPU_COPY_PART  macros that replace C code of their
 *                     users
 *
 * Shared memory, addresses of 32 bits
 *   GPU_SHARED(name)                      the dynamic part
 *   gpu_shared_at(p)
 *   gpu_store4, gpu_store16, gpu_load4, gpu_load16
 *
 * Copies to shared memory that go on while the wave does: a line, 16 bytes of each lane, at a time.
 * Places are given by the wave, the same in all lanes, and lines lie in one piece there.
 *   gpu_stream_policy()                   for what is read once a pass
 *   gpu_copy_stream(to, from, policy)     from: this lane's; lane 0's + 16 lane
 *   gpu_copy_rows<BYTES, LINES>(tile, row, from)  rows of BYTES bytes, from `row` on, to their
 *                                         swizzled places; from(row, chunk): a struct gpu_source;
 *                                         LINES: neighbours are read soon
 *   gpu_copy_rows_two<BYTES>(tile, apart, row, from, a, b)  of a, and to a tile `apart` bytes
 *                                         further of b; from(row, chunk): a struct gpu_index of
 *                                         both
 *   gpu_copy_commit()                     ends a group of copies
 *   gpu_copy_wait<MOST>(groups, lines)    until all but the newest groups are complete; lines: of
 *                                         this wave in these groups, or fewer
 *   gpu_copy_settled()                    before a loop of waits: completes the compiler's own
 *                                         loads, so that it need not wait in the loop
 *
 *
 * Products. An operand is 16 rows of GPU_K bf16 columns, four registers a lane; a product of 16 x
 * 16 sums is 4 * 16 / GPU_COLS registers, sum i in row gpu_run_row(lane) + 8 * (i % 4 / GPU_RUN),
 * column i / 4 * GPU_COLS + gpu_run_col(lane) + i % GPU_RUN.
 *   gpu_load_a(r, at)                     at: row lane % 16, 16-byte chunk lane / 16 of the operand
 *   gpu_load_b(r, at)                     at: row gpu_b_row(), chunk gpu_b_chunk()
 *   gpu_load_b8(r, at)                    at: row lane % 8, chunk gpu_b8_chunk(): all 32 columns
 *   gpu_load_t<BYTES>(r, tile, row, col)  16 rows of a tile as columns of the second operand
 *   gpu_load_n<BYTES>(r, tile, row, col)  16 of its columns as these: rows of the second operand
 *   gpu_load_p<BYTES>(r, tile, row, col)  16 rows and columns of a tile as p below
 *   gpu_mma(sums, a, b)                   sums += a b^T; the order of k is the function's
 *   gpu_mma8(sums, a, b8, step)           with eight rows in b, columns step * GPU_K on
 *   gpu_mma_t(sums, p, t)                 with 16 columns; p: a product, rounded in pairs
 *   gpu_mma_ones(sums, p)                 the sums of p's rows, GPU_COLS times
 *   gpu_turn<PAIR, NEW>(patch, lane, at, ...)   a product, rounded in pairs, to shared memory: its
 * 16 (8) columns become rows of 32 bytes; at: gpu_turn_at
 *
 * Lanes
 *   gpu_lane(), gpu_wave()                the lane's index, and its wave's index in the block
 *   gpu_row_max(x)                        over the lanes that hold the same row
 *   gpu_row_from(x, col)                  x of the lane of the row that holds column col < GPU_COLS
 *   gpu_col_lanes(lane)                   the set of lanes that hold the same columns
 *   gpu_col_lane(lane)                    whether it is the first of these
 *   gpu_col_max(x)                        over the lanes that hold the same columns
 *   gpu_col_first(set, low, high, x)      the first row of a column that has x; low: in the lane's
 *                                         first row, high: in its second
 *   gpu_any(x)
 *   gpu_afresh(x)                         x, the same in all lanes; values derived from it are not
 *                                         computed earlier
 *   gpu_args(a)                           a, the kernel's first parameter; its fields are read
 *                                         again. Used where many values are the same in all lanes,
 *                                         as an architecture may have too few scalar registers
 *   gpu_wave_sync()                       makes the wave's stores to shared memory visible to it
 *   gpu_group_sync(g), gpu_pair_sync(p)   barrier of four waves, of two waves. May be a barrier of
 *                                         the thread block, so all its waves call them equally
 * often.
 *
 * Between thread blocks
 *   gpu_post16, gpu_look16                16 bytes, each word whole
 *   gpu_publish(), gpu_obtain()           release and acquire, by all threads, around a barrier and
 *                                         gpu_arrive
 *   gpu_arrive(count)                     adds one; returns what was there
 *   gpu_send_max(at, v)
 *
 * Numbers
 *   gpu_exp2, gpu_rcp                     approximate
 *   gpu_scale2(pair, by)                  two bf16 times two powers of two
 *   gpu_mul2, gpu_sub2, gpu_fma2          a b, a - b, a b + c of two bf16 each, rounded once;
 *                                         what is rounded must fit f32
 *   gpu_fp8x2(hi, lo)                     to e4m3, to nearest even, saturated
 *   gpu_f8x2(two)                         the values of two codes of e4m3, NaN apart
 */
#ifndef SV_GPU_H
#define SV_GPU_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* 16 bytes of global memory, or zeros; `at` is readable in both cases. */
struct gpu_source {
    const void *at;
    bool there;
};
/* Likewise, in units of 16 bytes, or nothing at all. */
struct gpu_index {
    uint64_t at;
    bool there, skip;
};

/* Byte of a 16-byte chunk in a tile of rows of BYTES bytes: permuted by the row's low bits, so that
 * neither copies nor loads of operands have bank conflicts. */
template <int BYTES>
static __device__ __forceinline__ uint32_t gpu_place(uint32_t row, uint32_t chunk)
{
    return row * BYTES + ((chunk ^ (row & 7)) * 16);
}

#if defined(SV_CUDA_EMULATED)
#include <emulated_gpu.h>
#elif defined(__HIP__)
#include "backend/hip/gpu_amd.cuh"
#else
#include "backend/cuda/gpu_ptx.cuh"
#endif

/* Registers for sums of n columns. */
static __host__ __device__ constexpr int gpu_sums(int n)
{
    return (n + GPU_COLS - 1) / GPU_COLS * 4;
}

#endif
