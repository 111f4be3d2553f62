/*
 * gemm_one_nvidia.cu - one row of x by weights in codes on any NVIDIA card from sm_80 on: each warp
 * sums up pieces of 16 weight rows by itself, and a thread block has all pieces of its rows.
 *
 * Called by gemm.cu in place of gemm_portable.cu, whose bits these are; gemm_one4_nvidia.cu builds
 * it once more, for codes of 4 bits. A block of the split is cut wherever units end, so pieces
 * differ in length; a warp has some pieces of a strip, one after the other. Must not: add tiles or
 * pieces in any other order than gemm_portable.cuh.
 */
#include "backend/cuda/gemm_one.cuh"

enum {
    ONE_WARPS = 16,
    TABLE_BYTES = SV_GEMM_CODES == 4 ? NVFP4_TABLES * 1024 : 0,
    X_AHEAD = 8 /* loads of x that a thread has under way */
};

/* How a launch shares out strips of 16 weight rows: evenly, at most so many to a thread block, each
 * to so many warps; gated, of gate and of up. pieces: the most that a strip is cut into. */
struct one_plan {
    int32_t n_strips, strips, ways, pieces, k;
};

/* A warp's pieces of a strip. */
struct one_share {
    struct one_chain c;
    int32_t n_pieces;  /* of the strip */
    int32_t unit;      /* of the warp's first piece */
    int32_t piece, t0; /* its number in the strip; the block's first tile */
    int32_t strip;     /* in the thread block: gate's, then up's */
};

template <bool GATED>
static __device__ __forceinline__ struct one_share share_of(const struct sv_gemm_args &a,
                                                            const struct one_plan &p)
{
    const int32_t warp = threadIdx.x / 32, n_k = a.split.n_k, way = warp / p.strips % p.ways,
                  first = (int32_t)(blockIdx.x * p.n_strips / gridDim.x),
                  end = (int32_t)((blockIdx.x + 1) * p.n_strips / gridDim.x);
    int32_t strip = first + warp % p.strips, part = GATED ? warp / (p.strips * p.ways) : 0;
    struct one_share s = {};
    s.c.it = &a.part[part];
    s.strip = warp % p.strips + part * p.strips;
    if (strip >= end)
        return s;
    if (!GATED)
        while (strip >= s.c.it->n_bands * 4) {
            strip -= s.c.it->n_bands * 4;
            s.c.it = &a.part[++part];
        }
    const int32_t block = GATED ? strip / 2 : s.c.it->block0 + strip / 4;
    s.t0 = block * n_k;
    const int32_t u0 = sv_split_unit(&a.split, s.t0);
    s.n_pieces = sv_split_unit(&a.split, s.t0 + n_k - 1) - u0 + 1;
    s.piece = s.n_pieces * way / p.ways;
    s.unit = u0 + s.piece;
    const int32_t u1 = u0 + s.n_pieces * (way + 1) / p.ways;
    s.c.row0 = strip * 16;
    s.c.k0 = max(sv_split_start(&a.split, s.unit) - s.t0, 0);
    s.c.n = min(sv_split_start(&a.split, u1) - s.t0, n_k) - s.c.k0;
    if (u1 == s.unit)
        s.c.n = 0;
    s.c.from = s.c.it->wcomp + W_HEAD_BYTES + ((size_t)(strip / 4) * n_k + s.c.k0) * W_BYTES +
               strip % 4 * STRIP_BYTES;
    return s;
}

/* What a row's pieces add up to, which lie at `at`, 16 rows each. */
static __device__ __forceinline__ float pieces_sum(const float *at, int32_t n)
{
    float sum = at[0];
    for (int32_t i = 1; i < n; i++)
        sum += at[i * 16];
    return sum;
}

template <bool GATED>
static __global__ void __launch_bounds__(ONE_WARPS * 32, 1)
    one_kernel(const __nv_bfloat16 *x, const __grid_constant__ struct one_plan p,
               const __grid_constant__ struct sv_gemm_args a)
{
    GPU_SHARED(shared);
    constexpr int RING = GATED ? ONE_GATED_RING : ONE_RING;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n_x = a.split.n_k * SV_TILE,
                  step = blockDim.x * 8;
    const uint32_t x_at = gpu_shared_at(shared) + TABLE_BYTES;
    struct one_share s = share_of<GATED>(a, p);
    struct one_ring r = one_ring_of<RING>(s.c, x_at + n_x * 2);
    float *const sums =
        (float *)(shared + TABLE_BYTES + n_x * 2 + (blockDim.x / 32) * RING * ONE_TWO);
    struct expansion e = {};
    if (s.c.n) {
#pragma unroll
        for (int i = 0; i < RING; i++)
            one_fill(r);
        e = expansion_of(*s.c.it, s.c.row0, a.split.n_k);
    }
#if SV_GEMM_CODES == 4
    nvfp4_tables(*(uint32_t(*)[NVFP4_TABLES][256])(void *)shared, a);
    s.c.table = gpu_shared_at(shared) + (uint32_t)(s.c.it - a.part) * 1024;
#endif
    int32_t end = 0; /* of the piece at hand */
    const auto next = [&] { end = min(sv_split_start(&a.split, ++s.unit) - s.t0 - s.c.k0, s.c.n); };
    next();
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t from = threadIdx.x * 8; from < n_x; from += X_AHEAD * step) {
        uint4 v[X_AHEAD];
#pragma unroll
        for (int j = 0; j < X_AHEAD; j++) {
            const int32_t i = from + j * step;
            v[j] = i < p.k ? __ldcg((const uint4 *)(x + i)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < X_AHEAD; j++)
            if (from + j * step < n_x)
                gpu_store16(x_at + (from + j * step) * 2, v[j]);
    }
    __syncthreads();
    if (s.c.n) {
        float acc[4] = {};
        float *to = sums + (s.strip * p.pieces + s.piece) * 16;
        FOR_CODE(e,
                 (one_sum<CODE, RING>(acc, r, s.c, x_at + s.c.k0 * X_TILE_BYTES, e, [&](int32_t i) {
                     if (i + 1 != end)
                         return;
                     if (lane % 4 == 0) {
                         to[lane / 4] = acc[0];
                         to[lane / 4 + 8] = acc[2];
                     }
                     acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
                     to += 16;
                     next();
                 })));
    }
    __syncthreads();
    /* The first warps of the strips store. */
    if (!s.n_pieces || warp >= p.strips || lane >= 16)
        return;
    const float *own = sums + s.strip * p.pieces * 16 + lane;
    const float v = pieces_sum(own, s.n_pieces);
    const int32_t row = s.c.row0 + lane;
    if (!GATED) {
        one_store(a, *s.c.it, row, v);
        return;
    }
    if (row >= s.c.it->n_out)
        return;
    const float g = v + sv_gemm_bias(a.part[0], row),
                u = pieces_sum(own + p.strips * p.pieces * 16, s.n_pieces) +
                    sv_gemm_bias(a.part[1], row);
    ((__nv_bfloat16 *)a.y)[row] = __float2bfloat16_rn(sv_silu_mul_fast(
        __bfloat162float(__float2bfloat16_rn(g)), __bfloat162float(__float2bfloat16_rn(u))));
}

/* ---------------------------------------------------------------- host */

int sv_gemm_one_portable_open(struct sv_cuda *cu, struct sv_err *err)
{
    const void *fn[] = {(const void *)one_kernel<false>, (const void *)one_kernel<true>};
    int rc = SV_OK;
    for (int i = 0; i < 2 && !rc; i++)
        rc = sv_cuda_try(cudaFuncSetAttribute(fn[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)cu->smem_block),
                         err, "shared memory of a matrix product");
    return rc;
}

bool sv_gemm_one_portable(struct sv_cuda *cu, const void *x, int32_t k,
                          const struct sv_gemm_args *a)
{
    const bool gated = a->mode == SV_GEMM_GATED;
    const int32_t unit = a->split.n_blocks * a->split.n_k / a->split.n_units, both = gated ? 2 : 1;
    const bool nested = a->split.n_units % a->split.n_blocks == 0 && a->split.n_k % unit == 0;
    struct one_plan p = {one_strips(a), 0, 1, (a->split.n_k + unit - 1) / unit + !nested, k};
    if (!p.n_strips || k % 8)
        return false;
    const int32_t n_blocks = p.n_strips < cu->n_sms ? p.n_strips : cu->n_sms;
    p.strips = (p.n_strips + n_blocks - 1) / n_blocks;
    if (p.strips * both > ONE_WARPS)
        return false;
    while (p.ways < p.pieces && p.strips * both * (p.ways + 1) <= ONE_WARPS)
        p.ways++;
    const int32_t n_warps = p.strips * both * p.ways;
    const size_t smem = TABLE_BYTES + (size_t)a->split.n_k * X_TILE_BYTES +
                        (size_t)n_warps * ONE_TWO * (gated ? ONE_GATED_RING : ONE_RING) +
                        (size_t)p.strips * (size_t)(both * p.pieces) * 16 * sizeof(float);
    /* Two thread blocks of one launch on a multiprocessor would keep all others waiting. */
    const size_t alone = cu->smem_block / 2;
    if (smem > cu->smem_block)
        return false;
    sv_cuda_launch_in_pass(cu, "a matrix product", gated ? one_kernel<true> : one_kernel<false>,
                           dim3((unsigned)n_blocks), dim3((unsigned)n_warps * 32),
                           smem < alone ? alone : smem, (const __nv_bfloat16 *)x, p, *a);
    return true;
}
