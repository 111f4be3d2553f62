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
#ifndef SV_GEMM_CODES
#define SV_GEMM_CODES 8
#endif

#include "backend/cuda/barrier.cuh"
#if SV_GEMM_CODES
#include "backend/cuda/gemm_codes.cuh"
#include "backend/cuda/nvfp4_parts.cuh"
#else
#include "backend/gpu/gemm_expand.cuh"
#endif
#include "backend/cuda/gemm_one.h"
#include "backend/gpu/silu.cuh"

/* Tiles are copied by twos. A ring's twos: no more than keep memory busy, as x comes behind all
 * that has been asked for before it. ONE_ALONE: so much shared memory that no two thread blocks are
 * on a multiprocessor; else two of one launch are, now and then, and all wait for them. */
enum {
#if SV_GEMM_CODES
    W_BYTES = SV_CODES_TILE_BYTES(SV_GEMM_CODES),
    STRIP_BYTES = SV_CODES_STRIP_BYTES(SV_GEMM_CODES),
    WORDS_AT = SV_CODES_SCALES_AT(SV_GEMM_CODES), /* of scales, or patches */
    W_HEAD_BYTES = 0,
#else
    W_BYTES = SV_WCOMP_TILE_BYTES,
    STRIP_BYTES = SV_WCOMP_STRIP_BYTES,
    WORDS_AT = SV_WCOMP_SLOTS_AT,
    W_HEAD_BYTES = SV_WCOMP_HEAD_BYTES,
#endif
    ONE_WORDS = (STRIP_BYTES - WORDS_AT) / 4,
    X_TILE_BYTES = SV_TILE * 2,
    SMEM_MAX = 232448,
    ONE_TWO = 2 * STRIP_BYTES,
    ONE_RING = SV_GEMM_CODES == 4 ? 5 : 4,
    ONE_GATED_RING = SV_GEMM_CODES == 4 ? 4 : 3,
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

/* A warp's piece of a strip. */
struct one_chain {
    const struct sv_gemm_item *it;
    const uint8_t *from; /* the strip of its first tile */
    int32_t row0, k0, n; /* n: tiles, 0: no such strip */
    uint32_t table;      /* NVFP4: of the part, see nvfp4_parts.cuh */
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

/* The ring of a warp: where the next two tiles come from, this lane's part of codes and words, and
 * go to, and how many there are. */
struct one_ring {
    uint32_t first, fill, end;
    int32_t left;
    const uint8_t *from, *words;
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
    const uint32_t lane = threadIdx.x & 31, upper = lane / ONE_WORDS;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int b = 0; b < WORDS_AT; b += 512)
            one_copy<16>(r.fill + lane * 16 + j * STRIP_BYTES + b, r.from + j * W_BYTES + b,
                         j < r.left ? 16 : 0, r.once);
    if (upper < 2)
        one_copy<4>(r.fill + lane * 4 + WORDS_AT + upper * WORDS_AT, r.words,
                    (int)upper < r.left ? 4 : 0, r.once);
    r.left -= 2;
    r.from += 2 * W_BYTES;
    r.words += 2 * W_BYTES;
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

/* Tile i of a piece. at: its strip, whose patches are still there; x_at: of the first tile. */
template <int CODE>
static __device__ __forceinline__ void one_tile(float (&acc)[4], const struct coded &c, uint32_t at,
                                                const struct one_chain &own, int32_t i,
                                                uint32_t x_at, struct expansion &e)
{
    uint32_t x[2][4];
#if SV_GEMM_CODES
    const struct sv_codes_scale s[2] = {sv_codes_scale_of<CODE>(c.scale[0]),
                                        sv_codes_scale_of<CODE>(c.scale[1])};
#else
    uint32_t pair[SV_WCOMP_PAIRS];
    const uint32_t patch = first_patch(at);
    expand_half<0>(pair, c, e);
    expand_half<1>(pair, c, e);
    patch_all(pair, patch, at, (uint32_t)own.row0 / 16 % 4, (uint32_t)(own.k0 + i), e);
#endif
    one_x(x, x_at + i * X_TILE_BYTES);
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t four[4];
#if SV_GEMM_CODES
        if constexpr (CODE == SV_CODES_NV4)
            nvfp4_step(four, c.word[step], step, c.scale, own.table);
        else
            sv_codes_step<CODE>(four, c.word + step * (SV_GEMM_CODES / 4), step, s, e.factor);
#else
        for (int j = 0; j < 4; j++)
            four[j] = pair[4 * step + j];
#endif
        gpu_mma_16x8(acc, four, x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
    }
}

#if !SV_GEMM_CODES
#define FOR_CODE(e, call)                                                                          \
    do {                                                                                           \
        constexpr int CODE = 0;                                                                    \
        call;                                                                                      \
    } while (0)
#endif

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
                                                uint32_t x_at, struct expansion &e)
{
    const uint32_t own_at = at;
    at += ONE_TWO;
    if (at == r.end)
        at = r.first;
    one_take<RING - 2>(next, at);
    one_tile<CODE>(acc, own[0], own_at, c, i, x_at, e);
    one_tile<CODE>(acc, own[1], own_at + STRIP_BYTES, c, i + 1, x_at, e);
    __syncwarp();
    one_fill(r);
}

template <int CODE, int RING>
static __device__ __forceinline__ void one_sum(float (&acc)[4], struct one_ring &r,
                                               const struct one_chain &c, uint32_t x_at,
                                               struct expansion &e)
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
        one_tile<CODE>(acc, even[0], at, c, i, x_at, e);
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
    struct one_ring r;
    r.first = r.fill = smem + n_x * 2 + warp * RING * ONE_TWO;
    r.end = r.first + RING * ONE_TWO;
    r.left = c.n;
    r.from = c.from + lane * 16;
    r.words = c.from + WORDS_AT + lane * 4 + lane / ONE_WORDS * (W_BYTES - ONE_WORDS * 4);
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r.once));
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
        FOR_CODE(e, (one_sum<CODE, RING>(acc, r, c, x_at + c.k0 * X_TILE_BYTES, e)));
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
    struct one_plan p = {0, ONE_GATED_WARPS / 2, gated ? 2 : pieces, k, !gated && paired == 4};
    if (a->mode == SV_GEMM_ARGMAX || gated != (bool)a->tall ||
        (!gated && (!pieces || pieces > ONE_WARPS || (paired && paired != pieces))))
        return false;
#if SV_GEMM_CODES == 4
    if (a->n_parts > NVFP4_TABLES)
        return false;
#endif
    for (int32_t i = 0; i < (gated ? 1 : a->n_parts); i++)
        p.n_strips += a->part[i].n_bands * 4;
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
