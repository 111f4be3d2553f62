/*
 * gemm_one_sm90.cuh - one row of x by weights in codes: each warp sums up a piece of 16 weight rows
 * by itself, and a thread block has all pieces of its rows.
 *
 * Included by gemm_sm90.cu where it is built for codes. No warp waits for another but at the two
 * ends: a warp copies its own strips of tiles to a ring of its own, x lies in shared memory as a
 * whole, and pieces of a cut sum are added up there, in the order of gemm_pair.cuh. The bits are
 * those of gemm_few.cuh. Must not: add tiles or pieces in any other order.
 */
#ifndef SV_CUDA_GEMM_ONE_SM90_CUH
#define SV_CUDA_GEMM_ONE_SM90_CUH

/* Tiles are copied by twos. A ring's twos: no more than keep memory busy, as x comes behind all
 * that has been asked for before it. ONE_ALONE: so much shared memory that no two thread blocks are
 * on a multiprocessor; else two of one launch are, now and then, and all wait for them. */
enum {
    ONE_TWO = 2 * STRIP_BYTES,
    ONE_RING = SV_GEMM_CODES == 4 ? 5 : 4,
    ONE_GATED_RING = SV_GEMM_CODES == 4 ? 4 : 3,
    ONE_WARPS = 8,
    ONE_GATED_WARPS = 12,
    ONE_ALONE = SMEM_MAX / 2,
    ONE_SMEM = SMEM_MAX - 1024,
};

/* How a launch shares out strips of 16 weight rows: evenly, at most so many to a thread block, and
 * pieces of each; gated, gate and up. */
struct one_plan {
    int32_t n_strips, strips, pieces, k;
};

/* A warp's piece of a strip. */
struct one_chain {
    const struct sv_gemm_item *it;
    const uint8_t *from; /* the strip of its first tile */
    int32_t row0, k0, n; /* n: tiles, 0: no such strip */
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
    c.from =
        weights_of(*c.it) + ((size_t)(strip / 4) * n_k + c.k0) * W_BYTES + strip % 4 * STRIP_BYTES;
    return c;
}

/* The ring of a warp: where the next two tiles come from, this lane's part of codes and scales, and
 * go to, and how many there are. */
struct one_ring {
    uint32_t first, fill, end;
    int32_t left;
    const uint8_t *from, *scales;
    uint64_t once;
};

/* n: BYTES, or 0: zeros, of which nothing is read. */
template <int BYTES>
static __device__ __forceinline__ void one_copy(uint32_t to, const void *from, int n, uint64_t once)
{
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                     "l"(from), "r"(n), "l"(once)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2, %3;" ::"r"(to),
                     "l"(from), "r"(n), "l"(once)
                     : "memory");
}

/* Asks for two tiles, as far as there are, or for nothing. */
static __device__ __forceinline__ void one_fill(struct one_ring &r)
{
    constexpr int SCALES = SV_CODES_SCALES_AT(SV_GEMM_CODES);
    const uint32_t lane = threadIdx.x & 31, upper = lane / 16;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int b = 0; b < SCALES; b += 512)
            one_copy<16>(r.fill + lane * 16 + j * STRIP_BYTES + b, r.from + j * W_BYTES + b,
                         j < r.left ? 16 : 0, r.once);
    one_copy<4>(r.fill + lane * 4 + SCALES + upper * (STRIP_BYTES - 64), r.scales,
                (int)upper < r.left ? 4 : 0, r.once);
    r.left -= 2;
    r.from += 2 * W_BYTES;
    r.scales += 2 * W_BYTES;
    r.fill += ONE_TWO;
    if (r.fill == r.end)
        r.fill = r.first;
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Tile columns of x: the same row for all eight. */
static __device__ __forceinline__ void one_x(uint32_t (&x)[2][4], uint32_t x_at)
{
    const uint32_t own = x_at + (threadIdx.x & 31) / 8 * 16;
    gpu_load_a(x[0], own);
    gpu_load_a(x[1], own + 64);
}

template <int CODE>
static __device__ __forceinline__ void one_tile(float (&acc)[4], const struct coded &c,
                                                uint32_t x_at, const struct expansion &e)
{
    const struct sv_codes_scale s[2] = {sv_codes_scale_of<CODE>(c.scale[0]),
                                        sv_codes_scale_of<CODE>(c.scale[1])};
    uint32_t x[2][4];
    one_x(x, x_at);
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t four[4];
        sv_codes_step<CODE>(four, c.word + step * (SV_GEMM_CODES / 4), step, s, e.factor);
        gpu_mma_16x8(acc, four, x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
    }
}

/* Waits for the tiles at `at`, behind which AHEAD twos may be under way, and fetches them. */
template <int AHEAD>
static __device__ __forceinline__ void one_take(struct coded (&to)[2], uint32_t at)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD) : "memory");
    __syncwarp();
    to[0] = fetch(at);
    to[1] = fetch(at + STRIP_BYTES);
}

/* Two tiles, with the next two on their way into `next`. */
template <int CODE, int RING>
static __device__ __forceinline__ void one_turn(float (&acc)[4], const struct coded (&own)[2],
                                                struct coded (&next)[2], int32_t i, uint32_t &at,
                                                struct one_ring &r, const struct one_chain &c,
                                                uint32_t x_at, const struct expansion &e)
{
    at += ONE_TWO;
    if (at == r.end)
        at = r.first;
    one_take<RING - 2>(next, at);
    one_tile<CODE>(acc, own[0], x_at + i * X_ROW_BYTES, e);
    one_tile<CODE>(acc, own[1], x_at + (i + 1) * X_ROW_BYTES, e);
    __syncwarp();
    one_fill(r);
}

template <int CODE, int RING>
static __device__ __forceinline__ void one_sum(float (&acc)[4], struct one_ring &r,
                                               const struct one_chain &c, uint32_t x_at,
                                               const struct expansion &e)
{
    uint32_t at = r.first;
    struct coded even[2], odd[2];
    int32_t i = 0;
    one_take<RING - 1>(even, at);
#pragma unroll 1
    for (; i + 4 <= c.n; i += 4) {
        one_turn<CODE, RING>(acc, even, odd, i, at, r, c, x_at, e);
        one_turn<CODE, RING>(acc, odd, even, i + 2, at, r, c, x_at, e);
    }
    if (i + 2 <= c.n) {
        one_turn<CODE, RING>(acc, even, odd, i, at, r, c, x_at, e);
        even[0] = odd[0];
        i += 2;
    }
    if (i < c.n)
        one_tile<CODE>(acc, even[0], x_at + i * X_ROW_BYTES, e);
}

/* Pieces of 16 rows, and what they add up to. */
static __device__ __forceinline__ float one_pieces(const float *v, int32_t pieces, int32_t apart)
{
    const float low = v[0] + v[apart];
    return pieces == 2 ? low : low + (v[2 * apart] + v[3 * apart]);
}

static __device__ __forceinline__ void
one_store(const struct sv_gemm_args &a, const struct sv_gemm_item &it, int32_t row, float v)
{
    if (row >= it.n_out)
        return;
    v += sv_gemm_bias(it, row);
    if (a.mode == SV_GEMM_F32)
        ((float *)a.y)[it.col0 + row] = v;
    else
        ((__nv_bfloat16 *)a.y)[it.col0 + row] = __float2bfloat16_rn(v);
}

template <bool GATED>
static __global__ void __launch_bounds__((GATED ? ONE_GATED_WARPS : ONE_WARPS) * 32, 1)
    one_kernel(const __nv_bfloat16 *x, const __grid_constant__ struct one_plan p,
               const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    __shared__ float sums[ONE_GATED_WARPS][16];
    __shared__ uint64_t x_there;
    constexpr int RING = GATED ? ONE_GATED_RING : ONE_RING;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n_x = a.split.n_k * SV_TILE;
    const struct one_chain c = one_chain_of<GATED>(a, p);
    const uint32_t smem = smem_u32(smem_bytes), x_at = smem;
    if (threadIdx.x == 0) {
        bar_init(smem_u32(&x_there), 1);
        bar_made();
    }
    struct one_ring r;
    r.first = r.fill = smem + n_x * 2 + warp * RING * ONE_TWO;
    r.end = r.first + RING * ONE_TWO;
    r.left = c.n;
    r.from = c.from + lane * 16;
    r.scales = c.from + SV_CODES_SCALES_AT(SV_GEMM_CODES) + lane * 4 +
               lane / 16 * (W_BYTES - SV_CODES_SCALE_BYTES);
    r.once = stream_policy();
#pragma unroll
    for (int i = 0; i < RING; i++)
        one_fill(r);
    struct expansion e = {};
    if (c.n)
        e = expansion_of(*c.it, c.row0, a.split.n_k);
    __syncthreads();
    sv_pdl_launch();
    sv_pdl_wait();
    if (threadIdx.x == 0) { /* by the copy engine: it would wait behind the warps' own copies */
        uint64_t keep;
        asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
        bar_expect(smem_u32(&x_there), (uint32_t)p.k * 2);
        copy_tile(x_at, x, (uint32_t)p.k * 2, smem_u32(&x_there), keep);
    }
    if (p.k < n_x) {
        if (threadIdx.x < n_x - p.k)
            ((__nv_bfloat16 *)smem_bytes)[p.k + threadIdx.x] = __float2bfloat16_rn(0.0f);
        __syncthreads();
    }
    bar_wait(smem_u32(&x_there), 0);
    if (c.n) {
        float acc[4] = {};
        FOR_CODE(e, (one_sum<CODE, RING>(acc, r, c, x_at + c.k0 * X_ROW_BYTES, e)));
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
    one_store(a, *c.it, c.row0 + lane, one_pieces(&sums[warp][lane], p.pieces, p.strips * 16));
}

/* ---------------------------------------------------------------- host */

static int one_open(struct sv_err *err)
{
    const void *fn[] = {(const void *)one_kernel<false>, (const void *)one_kernel<true>};
    int rc = SV_OK;
    for (int i = 0; i < 2 && !rc; i++)
        rc = sv_cuda_try(
            cudaFuncSetAttribute(fn[i], cudaFuncAttributeMaxDynamicSharedMemorySize, ONE_SMEM), err,
            "shared memory of a matrix product");
    return rc;
}

/* One row of x; false where sums are cut in another way. */
static bool one_run(struct sv_cuda *cu, const void *x, int32_t k, const struct sv_gemm_args *a)
{
    const bool gated = a->mode == SV_GEMM_GATED;
    struct one_plan p = {0, ONE_GATED_WARPS / 2, a->tall ? 2 : sv_split_paired(&a->split), k};
    if (a->n_rows != 1 || a->mode == SV_GEMM_ARGMAX || gated != (bool)a->tall ||
        (!gated && (!p.pieces || a->split.n_units != p.pieces * a->split.n_blocks)))
        return false;
    for (int32_t i = 0; i < (gated ? 1 : a->n_parts); i++)
        p.n_strips += a->part[i].n_bands * 4;
    if (!gated)
        p.strips = ONE_WARPS / p.pieces;
    /* All multiprocessors, rather with fewer warps each. */
    const int32_t least = (p.n_strips + p.strips - 1) / p.strips,
                  n_blocks = least > cu->n_sms        ? least
                             : p.n_strips < cu->n_sms ? p.n_strips
                                                      : cu->n_sms;
    p.strips = (p.n_strips + n_blocks - 1) / n_blocks;
    const int32_t n_warps = p.strips * p.pieces;
    const size_t smem = (size_t)a->split.n_k * X_ROW_BYTES +
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

#endif
