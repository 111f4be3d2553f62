/*
 * gemm_one_sm90.cu - one row of x by weights in codes: each warp sums up a piece of 16 weight rows
 * by itself, and a thread block has all pieces of its rows.
 *
 * Called by gemm.cu; gemm_one4_sm90.cu builds it once more, for codes of 4 bits, and
 * gemm_one12_sm90.cu for compressed weights (SV_GEMM_CODES 0, wcomp.cuh). No warp waits for
 * another but at the two ends: a warp copies its own strips of tiles to a ring of its own, x lies
 * in shared memory as a whole, and pieces of a cut sum are added up there, in the order of
 * gemm_pair.cuh or gemm_out.cuh. A few packed bf16 weight rows of the same product take warps of
 * their own beside those of codes, instead of a launch. The bits are those of the kernels for more
 * rows. Must not: add tiles or pieces in any other order.
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
    CUT_STRIPS = 4,   /* of a multiprocessor, at least, that keep memory busy without more warps */
    PACKED_WARPS = 2, /* of a thread block with packed rows */
    PACKED_RING = 4,
    PACKED_STRIP = SV_TILE_BYTES / 4, /* 16 weight rows of a tile */
};

/* How a launch shares out strips of 16 weight rows: evenly, at most so many to a thread block, and
 * pieces of each, equally many for all; gated, gate and up; of strips that are cut anywhere, one
 * with all pieces. */
struct one_plan {
    int32_t n_strips, strips, pieces, k;
    bool by_twos; /* four pieces are added up two and two */
    /* Strips of packed rows, one in each of the first thread blocks: parts from a.n_parts on, cut
     * by a split of their own into so many pieces each. */
    int32_t n_packed, packed_pieces;
    bool packed_by_twos;
    struct sv_split packed;
};

/* Of a product: sums of equal pieces, gate and up, or sums of any pieces. */
enum one_way { EQUAL, GATED, CUT };

template <enum one_way WAY>
static __device__ __forceinline__ struct one_chain one_chain_of(const struct sv_gemm_args &a,
                                                                const struct one_plan &p)
{
    const int32_t warp = threadIdx.x / 32, n_k = a.split.n_k,
                  first = (int32_t)(blockIdx.x * p.n_strips / gridDim.x),
                  end = (int32_t)((blockIdx.x + 1) * p.n_strips / gridDim.x);
    int32_t strip = first + warp % p.strips, part = WAY == GATED ? warp / p.strips : 0;
    struct one_chain c = {};
    c.it = &a.part[part];
    if (strip >= end || warp >= p.strips * p.pieces)
        return c;
    if (WAY != GATED)
        while (strip >= c.it->n_bands * 4) {
            strip -= c.it->n_bands * 4;
            c.it = &a.part[++part];
        }
    c.row0 = strip * 16;
    c.n = n_k;
    if (WAY == EQUAL) {
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
static __device__ __forceinline__ float one_pieces(const float *v, int32_t apart, int32_t n,
                                                   bool by_twos)
{
    float sum = v[0];
    if (by_twos)
        return (v[0] + v[apart]) + (v[2 * apart] + v[3 * apart]);
    for (int32_t i = 1; i < n; i++)
        sum += v[i * apart];
    return sum;
}

/* The packed strip of this thread block: its part, and in c this warp's tiles of it, pieces from
 * `piece` on. */
struct packed_chain {
    struct one_chain c;
    int32_t unit, piece;
};

static __host__ __device__ __forceinline__ int32_t packed_strips(const struct sv_gemm_item &it)
{
    return (it.n_out + 15) / 16;
}

static __device__ __forceinline__ struct packed_chain
packed_chain_of(const struct sv_gemm_args &a, const struct one_plan &p, int32_t nth)
{
    int32_t strip = blockIdx.x, part = a.n_parts;
    struct packed_chain o = {};
    while (strip >= packed_strips(a.part[part]))
        strip -= packed_strips(a.part[part++]);
    const int32_t block = a.part[part].block0 + strip / 16, unit = block * p.packed_pieces;
    o.piece = p.packed_pieces * nth / PACKED_WARPS;
    o.unit = unit + o.piece;
    const int32_t k0 = sv_split_start(&p.packed, o.unit),
                  k1 = sv_split_start(&p.packed, unit + p.packed_pieces * (nth + 1) / PACKED_WARPS);
    o.c.it = &a.part[part];
    o.c.row0 = strip * 16;
    o.c.k0 = k0 - block * p.packed.n_k;
    o.c.n = k1 - k0;
    o.c.from = o.c.it->w + ((size_t)(strip / 4) * p.packed.n_k + o.c.k0) * SV_TILE_BYTES +
               strip % 4 * PACKED_STRIP;
    return o;
}

/* Asks for a tile, or for nothing. */
static __device__ __forceinline__ void packed_fill(struct one_ring &r)
{
    const uint32_t lane = threadIdx.x & 31;
#pragma unroll
    for (int b = 0; b < PACKED_STRIP; b += 512)
        gpu_copy_once<16>(r.fill + lane * 16 + b, r.from + b, r.left > 0, r.once);
    r.left--;
    r.from += SV_TILE_BYTES;
    r.fill += PACKED_STRIP;
    if (r.fill == r.end)
        r.fill = r.first;
    gpu_copy_commit();
}

static __device__ __forceinline__ struct one_ring packed_ring_of(const struct one_chain &c,
                                                                 uint32_t first)
{
    struct one_ring r = {};
    r.first = r.fill = first;
    r.end = first + PACKED_RING * PACKED_STRIP;
    r.left = c.n;
    r.from = c.from + threadIdx.x % 32 * 16;
    r.once = gpu_stream_policy();
#pragma unroll
    for (int i = 0; i < PACKED_RING; i++)
        packed_fill(r);
    return r;
}

/* Sums of a warp's pieces to sums, 16 numbers each. x_at: of the first tile. */
static __device__ __forceinline__ void packed_sum(struct one_ring &r, const struct packed_chain &o,
                                                  const struct one_plan &p, uint32_t x_at,
                                                  float *sums)
{
    const uint32_t lane = threadIdx.x & 31;
    const int32_t t0 = sv_split_start(&p.packed, o.unit);
    float acc[4] = {}, *to = sums + o.piece * 16 + lane / 4;
    int32_t unit = o.unit + 1, end = sv_split_start(&p.packed, unit) - t0;
    uint32_t at = r.first;
#pragma unroll 1
    for (int32_t i = 0; i < o.c.n; i++) {
        uint32_t w[4][4], x[2][4];
        gpu_copy_wait<PACKED_RING - 1>(PACKED_RING - 1, 0);
        __syncwarp();
#pragma unroll
        for (int step = 0; step < 4; step++)
            gpu_load_a(w[step], at + gpu_place<SV_TILE * 2>(lane % 16, step * 2 + lane / 16));
        one_x(x, x_at + i * X_TILE_BYTES);
        __syncwarp();
        packed_fill(r);
        at = at + PACKED_STRIP == r.end ? r.first : at + PACKED_STRIP;
#pragma unroll
        for (int step = 0; step < 4; step++)
            gpu_mma_16x8(acc, w[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
        if (i + 1 < end)
            continue;
        if (lane % 4 == 0)
            to[0] = acc[0], to[8] = acc[2];
        acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
        to += 16;
        end = sv_split_start(&p.packed, ++unit) - t0;
    }
}

/* Of codes, with few enough registers that thread blocks of the output product fit beside those of
 * attention (attention_few_sm90.cu) and ask for weights meanwhile. */
template <enum one_way WAY>
static __global__ void __launch_bounds__((WAY == GATED ? ONE_GATED_WARPS : ONE_WARPS) * 32,
                                         SV_GEMM_CODES &&WAY != GATED ? 3 : 1)
    one_kernel(const __nv_bfloat16 *x, const __grid_constant__ struct one_plan p,
               const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    __shared__ float sums[ONE_GATED_WARPS][16];
    __shared__ uint64_t x_there;
    constexpr int RING = WAY == GATED ? ONE_GATED_RING : ONE_RING;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n_x = a.split.n_k * SV_TILE;
    struct one_chain c = one_chain_of<WAY>(a, p);
    const uint32_t smem = gpu_shared_at(smem_bytes), x_at = smem;
    if (threadIdx.x == 0) {
        bar_init(gpu_shared_at(&x_there), 1);
        bar_made();
    }
    struct one_ring r = one_ring_of<RING>(c, smem + n_x * 2);
    struct expansion e = {};
    /* Which of the warps with packed rows, and what lies behind the rings of codes. */
    const int32_t nth = WAY != GATED && SV_GEMM_CODES && (int32_t)blockIdx.x < p.n_packed
                            ? warp - p.strips * p.pieces
                            : -1,
                  packed_at = n_x * 2 + p.strips * p.pieces * RING * ONE_TWO;
    float *const packed_sums =
        (float *)(smem_bytes + packed_at + PACKED_WARPS * PACKED_RING * PACKED_STRIP);
    struct packed_chain o = {};
    if (nth >= 0) {
        o = packed_chain_of(a, p, nth);
        r = packed_ring_of(o.c, smem + packed_at + (uint32_t)nth * PACKED_RING * PACKED_STRIP);
    }
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
        const int32_t t0 = (c.it->block0 + c.row0 / SV_SM90_BLOCK) * a.split.n_k;
        int32_t unit = WAY == CUT ? sv_split_unit(&a.split, t0) : 0, end = 0;
        float acc[4] = {}, sum[2] = {-0.0f, -0.0f}; /* leaves a first piece as it is */
        const auto end_of = [&] { return min(sv_split_start(&a.split, ++unit) - t0, c.n); };
        const auto ended = [&](int32_t i) {
            if (WAY != CUT || i + 1 < end)
                return;
            sum[0] += acc[0], sum[1] += acc[2];
            acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
            end = end_of();
        };
        if (WAY == CUT)
            end = end_of();
        FOR_CODE(e, (one_sum<CODE, RING>(acc, r, c, x_at + c.k0 * X_TILE_BYTES, e, ended)));
        if (lane % 4 == 0) {
            sums[warp][lane / 4] = WAY == CUT ? sum[0] : acc[0];
            sums[warp][lane / 4 + 8] = WAY == CUT ? sum[1] : acc[2];
        }
    }
    if (nth >= 0)
        packed_sum(r, o, p, x_at + o.c.k0 * X_TILE_BYTES, packed_sums);
    __syncthreads();
    if (nth == 0 && lane < 16)
        one_store(a, *o.c.it, o.c.row0 + lane,
                  one_pieces(packed_sums + lane, 16, p.packed_pieces, p.packed_by_twos));
    /* The first warps of the strips store. */
    if (!c.n || warp >= p.strips || (lane >= 16 && (WAY != EQUAL || !a.sends)))
        return;
    if (WAY == GATED) {
        const int32_t row = c.row0 + lane;
        if (row >= c.it->n_out)
            return;
        const float g = sums[warp][lane] + sv_gemm_bias(a.part[0], row),
                    u = sums[warp + p.strips][lane] + sv_gemm_bias(a.part[1], row);
        ((__nv_bfloat16 *)a.y)[row] = __float2bfloat16_rn(sv_silu_mul_fast(
            __bfloat162float(__float2bfloat16_rn(g)), __bfloat162float(__float2bfloat16_rn(u))));
        return;
    }
    const int32_t row = c.row0 + lane % 16;
    const float v = one_pieces(&sums[warp][lane % 16], p.strips * 16, p.pieces, p.by_twos);
    if (lane < 16)
        one_store(a, *c.it, row, v);
    if (WAY == EQUAL && a.sends)
        sv_join_push(a.push, lane < 16 && row < c.it->n_out ? row / 8 : -1,
                     __float2bfloat16_rn(v + sv_gemm_bias(*c.it, row)));
}

/* ---------------------------------------------------------------- host */

#if SV_GEMM_CODES == 8
#define ONE_CUT one_kernel<CUT>
#else /* not measured */
#define ONE_CUT NULL
#endif
static void (*const kernels[])(const __nv_bfloat16 *, struct one_plan, struct sv_gemm_args) = {
    one_kernel<EQUAL>, one_kernel<GATED>, ONE_CUT};

int sv_gemm_one_open(struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 3 && !rc; i++) {
        if (!kernels[i])
            continue;
        rc =
            sv_cuda_try(cudaFuncSetAttribute((const void *)kernels[i],
                                             cudaFuncAttributeMaxDynamicSharedMemorySize, ONE_SMEM),
                        err, "shared memory of a matrix product");
        if (!rc)
            rc = sv_cuda_try(cudaFuncSetAttribute((const void *)kernels[i],
                                                  cudaFuncAttributePreferredSharedMemoryCarveout,
                                                  cudaSharedmemCarveoutMaxShared),
                             err, "shared memory of a matrix product");
    }
    return rc;
}

/* How many pieces all blocks of weight rows are cut into, where these are equally many and are
 * added up as in one_pieces; 0: they are not. */
static int32_t pieces_of(const struct sv_split *s)
{
    const int32_t n = s->n_units % s->n_blocks ? 0 : s->n_units / s->n_blocks,
                  paired = sv_split_paired(s);
    return paired && paired != n ? 0 : n;
}

/* Packed parts beside those of codes in b; false: not taken. */
static bool add_packed(struct sv_gemm_args *b, struct one_plan *p,
                       const struct sv_gemm_args *packed, int32_t n_blocks)
{
    for (int32_t i = 0; i < packed->n_parts; i++) {
        b->part[b->n_parts + i] = packed->part[i];
        p->n_packed += packed_strips(packed->part[i]);
    }
    p->packed = packed->split;
    p->packed_pieces = pieces_of(&packed->split);
    p->packed_by_twos = sv_split_paired(&packed->split) == 4;
    return p->packed_pieces && !packed->tall && p->n_packed <= n_blocks &&
           p->strips * p->pieces + PACKED_WARPS <= ONE_WARPS;
}

bool sv_gemm_one(struct sv_cuda *cu, const void *x, int32_t k, const struct sv_gemm_args *a,
                 const struct sv_gemm_args *packed)
{
    const bool gated = a->mode == SV_GEMM_GATED, paired = sv_split_paired(&a->split) != 0;
    struct sv_gemm_args both = *a;
    struct one_plan p = {};
    p.n_strips = one_strips(a);
    p.pieces = gated ? 2 : pieces_of(&a->split);
    enum one_way way = gated ? GATED : EQUAL;
    if (!gated && !p.pieces && kernels[CUT] && p.n_strips >= CUT_STRIPS * cu->n_sms)
        way = CUT, p.pieces = 1;
    p.k = k;
    p.by_twos = !gated && sv_split_paired(&a->split) == 4;
    if (!p.n_strips || gated != (bool)a->tall || !p.pieces || p.pieces > ONE_WARPS)
        return false;
    p.strips = gated ? ONE_GATED_WARPS / 2 : ONE_WARPS / p.pieces;
    /* All multiprocessors, rather with fewer warps each. */
    const int32_t least = (p.n_strips + p.strips - 1) / p.strips,
                  n_blocks = least > cu->n_sms        ? least
                             : p.n_strips < cu->n_sms ? p.n_strips
                                                      : cu->n_sms;
    if (!gated && !paired && least > cu->n_sms)
        return false;
    p.strips = (p.n_strips + n_blocks - 1) / n_blocks;
    if (packed && !add_packed(&both, &p, packed, n_blocks))
        return false;
    const int32_t n_warps = p.strips * p.pieces + (packed ? (int32_t)PACKED_WARPS : 0);
    size_t smem = (size_t)a->split.n_k * X_TILE_BYTES + (size_t)p.strips * (size_t)p.pieces *
                                                            ONE_TWO *
                                                            (gated ? ONE_GATED_RING : ONE_RING);
    if (packed)
        smem += PACKED_WARPS * PACKED_RING * PACKED_STRIP +
                (size_t)p.packed_pieces * 16 * sizeof(float);
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
    if (way == EQUAL)
        sv_gemm_push(cu, &both);
    sv_cuda_check(cu, cudaLaunchKernelEx(&config, kernels[way], (const __nv_bfloat16 *)x, p, both),
                  "a matrix product");
    return true;
}
