/*
 * moe_joined.cuh - the adding up of one row's experts in the launch of down: a cluster has 64
 * weight rows of all chosen experts, whose thread blocks send one another their sums.
 *
 * Included by moe_sm90.cu. Each thread block adds up some groups of eight rows, in the
 * order of choice, as moe_combine does, so that the bits are the same. Must not: add in any other
 * order.
 */
#ifndef SV_CUDA_MOE_JOINED_CUH
#define SV_CUDA_MOE_JOINED_CUH

#include "backend/cuda/attention_async.cuh"
#include "backend/gpu/moe_codes.cuh"

enum { JOINED_MOST = 16 /* thread blocks of a cluster, at most */ };

template <> struct joining<true> {
    struct room {
        float sum[JOINED_MOST][8]; /* of this block's groups of rows, those of all blocks */
        float weight[JOINED_MOST];
        int32_t place[JOINED_MOST], n_active;
        uint64_t there; /* sums that others have sent */
    };

    static __device__ __forceinline__ void open(const struct sv_moe &a, struct room &r)
    {
        const int32_t t = threadIdx.x;
        if (t < a.r.k) {
            r.place[t] = look(a.r.place + t);
            r.weight[t] = *(const volatile float *)(a.r.weight + t);
        }
        if (t == 0) {
            r.n_active = look(a.r.n_active);
            bar_init(gpu_shared_at(&r.there), 1);
            bar_made();
        }
        __syncthreads();
        attn_cluster_arrive();
    }

    /* acc: of column 0 alone. */
    template <int N>
    static __device__ __forceinline__ void put(const struct sv_moe &a,
                                               const float (&acc)[gpu_sums(N)],
                                               const struct unit &u, int32_t row0, struct room &r)
    {
        const int32_t t = threadIdx.x, rank = attn_cluster_rank(), k = a.r.k;
        const uint32_t there = gpu_shared_at(&r.there);
        attn_cluster_wait();
        if (t == 0) {
            const int32_t n_groups = (SV_TILE / 8 - rank + k - 1) / k;
            bar_expect(there, (uint32_t)(r.n_active * n_groups * 8 * 4));
        }
        if (u.expert >= 0 && t % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const int32_t row = row0 + sum_row(i), in_tile = row % SV_TILE;
                const float v = row < a.rows
                                    ? acc[i] + bias_of(a.gate, (int64_t)u.expert * a.rows + row)
                                    : 0.0f;
                const int32_t owner = in_tile / 8 % k;
                attn_cluster_put(
                    attn_cluster_at(gpu_shared_at(&r.sum[in_tile / 8 / k * k + rank][in_tile % 8]),
                                    owner),
                    v, attn_cluster_at(there, owner));
            }
        }
        const int32_t row = (int32_t)blockIdx.x * SV_TILE + t;
        bar_wait(there, 0);
        if (t >= SV_TILE)
            return;
        const bool mine = t / 8 % k == rank && row < a.rows;
        float sum = 0.0f;
        for (int32_t j = 0; j < k && mine; j++)
            sum = r.place[j] < 0
                      ? sum
                      : __fmaf_rn(r.weight[j], r.sum[t / 8 / k * k + r.place[j]][t % 8], sum);
        const __nv_bfloat16 all = __float2bfloat16_rn(sum);
        if (mine)
            ((__nv_bfloat16 *)a.joined)[row] = all;
        if (a.next)
            sv_join_push(a.push, mine ? row / 8 : -1, all);
    }
};

/* By form. */
static void (*const joined_kernels[])(const struct sv_moe) = {
    experts_kernel<8, false, 1, true>,
    coded_kernel<8, false, 1, SV_MOE_MXFP4, true>,
    coded_kernel<8, false, 1, SV_MOE_CODES8, true>,
    coded_kernel<8, false, 1, SV_MOE_CODES4, true>,
};
enum { N_JOINED = sizeof joined_kernels / sizeof *joined_kernels };

bool sv_moe_sm90_joined(struct sv_cuda *cu, const struct sv_moe *a, const struct sv_moe_width *w,
                        size_t smem)
{
    if (a->r.n_rows != 1 || a->r.k > JOINED_MOST || w->n != 8 || (int)a->form >= N_JOINED)
        return false;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[2] = {};
    config.gridDim = dim3((unsigned)((a->rows + SV_TILE - 1) / SV_TILE), (unsigned)a->r.k);
    config.blockDim = dim3((unsigned)w->threads);
    config.dynamicSmemBytes = smem;
    config.stream = cu->stream;
    config.attrs = attr;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = 1;
    attr[0].val.clusterDim.y = (unsigned)a->r.k;
    attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    config.numAttrs = cu->pdl ? 2 : 1;
    cu->bytes_of = NULL;
    sv_cuda_check(cu, cudaLaunchKernelEx(&config, joined_kernels[a->form], sv_moe_pushed(cu, *a)),
                  "down of experts, added up");
    return true;
}

int sv_moe_sm90_joined_open(size_t smem, struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < N_JOINED && !rc; i++) {
        rc = sv_cuda_try(cudaFuncSetAttribute((const void *)joined_kernels[i],
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)smem),
                         err, "shared memory of an expert's product");
        if (!rc)
            rc =
                sv_cuda_try(cudaFuncSetAttribute((const void *)joined_kernels[i],
                                                 cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
                            err, "clusters of an expert's product");
    }
    return rc;
}

#endif
