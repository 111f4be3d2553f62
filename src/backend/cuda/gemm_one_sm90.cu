/*
 * gemm_one_sm90.cu - one row of x by weights in codes: each warp sums up a piece of 16 weight rows
 * by itself, and a thread block has all pieces of its rows.
 *
 * Called by gemm.cu; gemm_one4_sm90.cu builds it once more, for codes of 4 bits, and
 * gemm_one12_sm90.cu for compressed weights (SV_GEMM_CODES 0, wcomp.cuh). No warp waits for
 * another but at the two ends: a warp copies its own strips of tiles to a ring of its own, x lies
 * in shared memory as a whole, and pieces of a cut sum are added up there, in the order of
 * gemm_pair.cuh or gemm_out.cuh. The bits are those of the kernels for more rows. Must not: add
 * tiles or pieces in any other order.
 */
#include "backend/cuda/barrier.cuh"
#include "backend/cuda/gemm_one.cuh"

/* ONE_ALONE: so much shared memory that no two thread blocks are on a multiprocessor; else two of
 * one launch are, now and then, and all wait for them. */
enum {
    SMEM_MAX = 232448,
    ONE_WARPS = 8,
    ONE_GATED_WARPS = 12,
    ONE_STATIC = SV_GEMM_CODES == 4 ? 5120 : 1024, /* shared memory beside, with tables */
    ONE_ALONE = SMEM_MAX / 2 + 1024 - ONE_STATIC,
    ONE_SMEM = SMEM_MAX - ONE_STATIC,
};

/* How a launch shares out strips of 16 weight rows: evenly, at most so many to a thread block, and
 * pieces of each, equally many for all; gated, gate and up. */
struct one_plan {
    int32_t n_strips, strips, pieces, k;
    bool by_twos; /* four pieces are added up two and two */
};

template <bool GATED>
static __device__ __forceinline__ struct one_chain one_chain_of(const struct sv_gemm_args &a,
                                                                const struct one_plan &p)
{
    const int32_t warp = threadIdx.x / 32, n_k = a.split.n_k,
                  first = (int32_t)(blockIdx.x * p.n_strips / gridDim.x),
                  end = (int32_t)((blockIdx.x + 1) * p.n_strips / gridDim.x);
    int32_t strip = first + warp % p.strips, part = GATED ? warp / p.strips : 0;
    struct one_chain c = {};
    c.it = &a.part[part];
    if (strip >= end)
        return c;
    if (!GATED)
        while (strip >= c.it->n_bands * 4) {
            strip -= c.it->n_bands * 4;
            c.it = &a.part[++part];
        }
    c.row0 = strip * 16;
    c.n = n_k;
    if (!GATED) {
        const int32_t block = c.it->block0 + strip / 16, unit = block * p.pieces + warp / p.strips;
        c.k0 = sv_split_start(&a.split, unit);
        c.n = sv_split_start(&a.split, unit + 1) - c.k0;
        c.k0 -= block * n_k;
    }
    c.from = c.it->wcomp + W_HEAD_BYTES + ((size_t)(strip / 4) * n_k + c.k0) * W_BYTES +
             strip % 4 * STRIP_BYTES;
    return c;
}

/* What the pieces of 16 rows add up to. */
static __device__ __forceinline__ float one_pieces(const float *v, const struct one_plan &p)
{
    const int32_t apart = p.strips * 16;
    float sum = v[0];
    if (p.by_twos)
        return (v[0] + v[apart]) + (v[2 * apart] + v[3 * apart]);
    for (int32_t i = 1; i < p.pieces; i++)
        sum += v[i * apart];
    return sum;
}

/* Of codes, with few enough registers that thread blocks of the output product fit beside those of
 * attention (attention_few_sm90.cu) and ask for weights meanwhile. */
template <bool GATED>
static __global__ void __launch_bounds__((GATED ? ONE_GATED_WARPS : ONE_WARPS) * 32,
                                         SV_GEMM_CODES && !GATED ? 3 : 1)
    one_kernel(const __nv_bfloat16 *x, const __grid_constant__ struct one_plan p,
               const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    __shared__ float sums[ONE_GATED_WARPS][16];
    __shared__ uint64_t x_there;
    constexpr int RING = GATED ? ONE_GATED_RING : ONE_RING;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n_x = a.split.n_k * SV_TILE;
    struct one_chain c = one_chain_of<GATED>(a, p);
    const uint32_t smem = gpu_shared_at(smem_bytes), x_at = smem;
    if (threadIdx.x == 0) {
        bar_init(gpu_shared_at(&x_there), 1);
        bar_made();
    }
    struct one_ring r = one_ring_of<RING>(c, smem + n_x * 2);
    struct expansion e = {};
    if (c.n) {
#pragma unroll
        for (int i = 0; i < RING; i++)
            one_fill(r);
        e = expansion_of(*c.it, c.row0, a.split.n_k);
    }
#if SV_GEMM_CODES == 4
    __shared__ __align__(1024) uint32_t tables[NVFP4_TABLES][256];
    nvfp4_tables(tables, a);
    c.table = gpu_shared_at(tables[c.it - a.part]);
#endif
    for (int32_t i = p.k + threadIdx.x; i < n_x; i += blockDim.x)
        ((__nv_bfloat16 *)smem_bytes)[i] = __float2bfloat16_rn(0.0f);
    __syncthreads();
    sv_pdl_launch();
    sv_pdl_wait();
    if (threadIdx.x == 0) { /* by the copy engine: it would wait behind the warps' own copies */
        uint64_t keep;
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
        bar_expect(gpu_shared_at(&x_there), (uint32_t)p.k * 2);
        copy_tile(x_at, x, (uint32_t)p.k * 2, gpu_shared_at(&x_there), keep);
    }
    bar_wait(gpu_shared_at(&x_there), 0);
    if (c.n) {
        float acc[4] = {};
        FOR_CODE(e,
                 (one_sum<CODE, RING>(acc, r, c, x_at + c.k0 * X_TILE_BYTES, e, [](int32_t) {})));
        if (lane % 4 == 0) {
            sums[warp][lane / 4] = acc[0];
            sums[warp][lane / 4 + 8] = acc[2];
        }
    }
    __syncthreads();
    /* The first warps of the strips store. */
    if (!c.n || warp >= p.strips || lane >= 16)
        return;
    if (GATED) {
        const int32_t row = c.row0 + lane;
        if (row >= c.it->n_out)
            return;
        const float g = sums[warp][lane] + sv_gemm_bias(a.part[0], row),
                    u = sums[warp + p.strips][lane] + sv_gemm_bias(a.part[1], row);
        ((__nv_bfloat16 *)a.y)[row] = __float2bfloat16_rn(sv_silu_mul_fast(
            __bfloat162float(__float2bfloat16_rn(g)), __bfloat162float(__float2bfloat16_rn(u))));
        return;
    }
    one_store(a, *c.it, c.row0 + lane, one_pieces(&sums[warp][lane], p));
}

/* ---------------------------------------------------------------- host */

int sv_gemm_one_open(struct sv_err *err)
{
    const void *fn[] = {(const void *)one_kernel<false>, (const void *)one_kernel<true>};
    int rc = SV_OK;
    for (int i = 0; i < 2 && !rc; i++) {
        rc = sv_cuda_try(
            cudaFuncSetAttribute(fn[i], cudaFuncAttributeMaxDynamicSharedMemorySize, ONE_SMEM), err,
            "shared memory of a matrix product");
        if (!rc)
            rc = sv_cuda_try(cudaFuncSetAttribute(fn[i],
                                                  cudaFuncAttributePreferredSharedMemoryCarveout,
                                                  cudaSharedmemCarveoutMaxShared),
                             err, "shared memory of a matrix product");
    }
    return rc;
}

bool sv_gemm_one(struct sv_cuda *cu, const void *x, int32_t k, const struct sv_gemm_args *a)
{
    const bool gated = a->mode == SV_GEMM_GATED;
    const int32_t n_units = a->split.n_units, n_row_blocks = a->split.n_blocks,
                  pieces = n_units % n_row_blocks == 0 ? n_units / n_row_blocks : 0,
                  paired = sv_split_paired(&a->split);
    struct one_plan p = {one_strips(a), ONE_GATED_WARPS / 2, gated ? 2 : pieces, k,
                         !gated && paired == 4};
    if (!p.n_strips || gated != (bool)a->tall ||
        (!gated && (!pieces || pieces > ONE_WARPS || (paired && paired != pieces))))
        return false;
    if (!gated)
        p.strips = ONE_WARPS / p.pieces;
    /* All multiprocessors, rather with fewer warps each. */
    const int32_t least = (p.n_strips + p.strips - 1) / p.strips,
                  n_blocks = least > cu->n_sms        ? least
                             : p.n_strips < cu->n_sms ? p.n_strips
                                                      : cu->n_sms;
    if (!gated && !paired && least > cu->n_sms)
        return false;
    p.strips = (p.n_strips + n_blocks - 1) / n_blocks;
    const int32_t n_warps = p.strips * p.pieces;
    const size_t smem = (size_t)a->split.n_k * X_TILE_BYTES +
                        (size_t)n_warps * ONE_TWO * (gated ? ONE_GATED_RING : ONE_RING);
    if (smem > ONE_SMEM)
        return false;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[1] = {};
    config.gridDim = dim3((unsigned)n_blocks);
    config.blockDim = dim3((unsigned)n_warps * 32);
    config.dynamicSmemBytes = smem < ONE_ALONE ? (size_t)ONE_ALONE : smem;
    config.stream = cu->stream;
    config.attrs = attr;
    if (cu->pdl) {
        attr[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    cu->bytes_of = NULL;
    sv_cuda_check(cu,
                  cudaLaunchKernelEx(&config, gated ? one_kernel<true> : one_kernel<false>,
                                     (const __nv_bfloat16 *)x, p, *a),
                  "a matrix product");
    return true;
}
