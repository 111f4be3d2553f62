/*
 * confidence.cu - the end of a fused head that also returns the winner's probability.
 *
 * Called by head.cu, in place of its own kernel. Every warp of the head has stored the best key of
 * its range of the vocabulary. The softmax's sum is over these alone, without other logits of a
 * range, so the confidence is never below the true probability, and close to it where few logits
 * matter. That costs no more than the choice itself, and the caller calibrates it. Must not:
 * compute a logit, or choose another id than head.cu.
 */
#include "backend/cuda/gemm.h"

enum { THREADS = 256, KEYS = SV_GEMM_BEST_SLOTS / THREADS };

/* The highest key of the block, in every thread. */
static __device__ __forceinline__ uint64_t block_best(uint64_t key, uint64_t *part)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        key = sv_best_of(key, __shfl_xor_sync(0xffffffffu, key, step));
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = key;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        key = sv_best_of(key, part[i]);
    return key;
}

static __global__ void confidence_kernel(const uint64_t *best, int32_t n_slots, int32_t row0,
                                         const int32_t *out_index, int32_t *out, float *confidence,
                                         struct sv_cuda_fault *fault)
{
    __shared__ uint64_t part[THREADS / 32];
    __shared__ float sums[32];
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t r = blockIdx.x;
    uint64_t key[KEYS], top = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++) {
        const int32_t slot = threadIdx.x + i * THREADS;
        key[i] = slot < n_slots ? best[(size_t)slot * SV_GEMM_BEST_ROWS + r] : 0;
        top = sv_best_of(top, key[i]);
    }
    top = block_best(top, part);
    const float max = sv_best_logit(top);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        sum += key[i] ? __expf(sv_best_logit(key[i]) - max) : 0.0f;
    sum = sv_block_sum(sum, sums);
    if (threadIdx.x != 0)
        return;
    confidence[row0 + r] = top && isfinite(max) ? 1 / sum : 1.0f; /* 1: not defined */
    sv_best_give(top, row0 + r, out_index, out, fault);
}

void sv_gemm_best_confidence(struct sv_cuda *cu, const struct sv_p_head_argmax *p, int32_t row0,
                             int32_t n, int32_t n_slots)
{
    SV_REQUIRE(n_slots <= SV_GEMM_BEST_SLOTS);
    sv_cuda_launch(cu, "the choice of the best logit and its confidence", confidence_kernel,
                   dim3((unsigned)n), dim3(THREADS), 0, (const uint64_t *)cu->gemm->best, n_slots,
                   row0, p->out_index, p->out, p->confidence, cu->fault);
}
