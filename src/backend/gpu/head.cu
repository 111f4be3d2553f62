/*
 * head.cu - the end of a fused head: from the best logits that many warps found to one id a row.
 *
 * Called by gemm.cu. The candidates are keys that order logits and, at a tie, ids, so their maximum
 * does not depend on the order of warps. With several ranks the keys are kept for a join. Must not:
 * compute a logit.
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/peers.h"

enum { THREADS = 256 };

static __global__ void pick_kernel(const uint64_t *best, int32_t n_slots, int32_t row0,
                                   const int32_t *out_index, int32_t *out, uint64_t *keys,
                                   int32_t first_id, struct sv_cuda_fault *fault)
{
    __shared__ uint64_t part[THREADS / 32];
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t r = blockIdx.x;
    uint64_t key = 0;
    for (int32_t i = threadIdx.x; i < n_slots; i += THREADS)
        key = sv_best_of(key, best[(size_t)i * SV_GEMM_BEST_ROWS + r]);
#pragma unroll
    for (int step = 16; step; step /= 2)
        key = sv_best_of(key, __shfl_xor_sync(0xffffffffu, key, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = key;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < THREADS / 32; i++)
        key = sv_best_of(key, part[i]);
    if (keys)
        keys[row0 + r] = key ? key - (uint32_t)first_id : 0; /* the id is stored inverted */
    else
        sv_best_give(key, row0 + r, out_index, out, fault);
}

void sv_gemm_best_pick(struct sv_cuda *cu, const struct sv_p_head_argmax *p, int32_t row0,
                       int32_t n, int32_t n_slots)
{
    if (p->confidence) {
        sv_gemm_best_confidence(cu, p, row0, n, n_slots);
        return;
    }
    sv_cuda_launch(cu, "the choice of the best logit", pick_kernel, dim3((unsigned)n),
                   dim3(THREADS), 0, (const uint64_t *)cu->gemm->best, n_slots, row0, p->out_index,
                   p->out, p->join ? cu->peers->best : (uint64_t *)NULL, p->first_id, cu->fault);
}
