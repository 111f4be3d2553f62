/*
 * gemm_row_sm90.cu - one row of x by packed bf16 weights where a model has experts, on sm_90a: each
 * warp sums up a piece of 16 weight rows by itself, and a thread block has all pieces of its rows.
 *
 * Called by gemm.cu. The bits are those of gemm_sm90.cu: pieces are cut and added up as there, but
 * in shared memory, where they need no trips through L2. Thread blocks leave room for those of
 * other launches (see sv_gemm_is_co_resident). What a warp's ring has no room for comes to L2 while
 * the launches before end. Must not: add tiles or pieces in any other order.
 */
#include "backend/cuda/gemm.h"

enum {
    MOST_WARPS = 16,
    STRIP = SV_TILE_BYTES / 4, /* 16 weight rows of a tile */
    X_TILE = SV_TILE * 2,      /* of the row */
    MOST_TILES = 24,           /* of a piece */
    /* Two thread blocks of experts fit beside one, but none of the same launch. */
    SMEM = 114 * 1024
};

/* How a launch shares out strips of 16 weight rows: so many to a thread block, at most, and pieces
 * of each, and tiles of the longest. */
struct row_plan {
    int32_t n_strips, strips, pieces, longest;
    bool two_and_two; /* of four pieces */
};

/* A warp's piece of a strip. */
struct chain {
    const struct sv_gemm_item *it;
    const uint8_t *from; /* the strip of its first tile */
    int32_t row0, k0, n; /* n: tiles, 0: no such piece */
    int32_t n_pieces;    /* of the strip */
};

static __device__ __forceinline__ struct chain chain_of(const struct sv_gemm_args &a,
                                                        const struct row_plan &p)
{
    const int32_t warp = threadIdx.x / 32, n_k = a.split.n_k,
                  first = (int32_t)(blockIdx.x * p.n_strips / gridDim.x),
                  end = (int32_t)((blockIdx.x + 1) * p.n_strips / gridDim.x);
    int32_t strip = first + warp % p.strips, part = 0;
    struct chain c = {};
    c.it = &a.part[0];
    if (strip >= end)
        return c;
    while (strip >= c.it->n_bands * 4) {
        strip -= c.it->n_bands * 4;
        c.it = &a.part[++part];
    }
    const int32_t t0 = (c.it->block0 + strip / 16) * n_k, owner = sv_split_unit(&a.split, t0),
                  unit = owner + warp / p.strips, begin = max(sv_split_start(&a.split, unit), t0),
                  stop = min(sv_split_start(&a.split, unit + 1), t0 + n_k);
    c.row0 = strip * 16;
    c.k0 = begin - t0;
    c.n = max(stop - begin, 0);
    c.n_pieces = sv_split_unit(&a.split, t0 + n_k - 1) - owner + 1;
    c.from = c.it->w + ((size_t)(strip / 4) * n_k + c.k0) * SV_TILE_BYTES + strip % 4 * STRIP;
    return c;
}

/* A strip of a tile: its own group of copies, empty where there is none. */
static __device__ __forceinline__ void fill(uint32_t to, const struct chain &c, int32_t i,
                                            uint64_t once)
{
    const uint8_t *from = c.from + (size_t)i * SV_TILE_BYTES + threadIdx.x % 32 * 16;
    if (i < c.n)
#pragma unroll
        for (int b = 0; b < STRIP; b += 512)
            gpu_copy_stream(to + b, from + b, once);
    gpu_copy_commit();
}

/* The piece's columns of the row, zeros behind its end. */
static __device__ __forceinline__ void fetch_x(uint32_t to, const __nv_bfloat16 *x, int32_t k,
                                               const struct chain &c)
{
    enum { LOADS = MOST_TILES * X_TILE / 512 };
    const int32_t lane = threadIdx.x % 32;
    uint4 v[LOADS];
#pragma unroll
    for (int j = 0; j < LOADS; j++) {
        const int32_t i = lane + 32 * j, col = c.k0 * SV_TILE + i * 8;
        v[j] = make_uint4(0, 0, 0, 0);
        if (i < c.n * (SV_TILE / 8) && col < k)
            v[j] = __ldcg((const uint4 *)(x + col));
    }
#pragma unroll
    for (int j = 0; j < LOADS; j++)
        if (lane + 32 * j < c.n * (SV_TILE / 8))
            gpu_store16(to + (lane + 32 * j) * 16, v[j]);
    __syncwarp();
}

template <int SLOTS>
static __device__ __forceinline__ void sum_piece(float (&acc)[4], const struct chain &c,
                                                 uint32_t own, uint32_t x_at, uint64_t once)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t now = own;
    x_at += lane / 8 * 16; /* the same row for all eight of x */
#pragma unroll 1
    for (int32_t i = 0; i < c.n; i++) {
        uint32_t w[4][4], x[2][4];
        asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
        __syncwarp();
#pragma unroll
        for (int step = 0; step < 4; step++)
            gpu_load_a(w[step], now + gpu_place<128>(lane % 16, step * 2 + lane / 16));
        gpu_load_a(x[0], x_at + i * X_TILE);
        gpu_load_a(x[1], x_at + i * X_TILE + 64);
        __syncwarp();
        fill(now, c, i + SLOTS, once);
#pragma unroll
        for (int step = 0; step < 4; step++)
            gpu_mma_16x8(acc, w[step], x[step / 2][step % 2 * 2], x[step / 2][step % 2 * 2 + 1]);
        now = now + STRIP == own + SLOTS * STRIP ? own : now + STRIP;
    }
}

template <int SLOTS>
static __global__ void __launch_bounds__(MOST_WARPS * 32, 1)
    row_kernel(const __nv_bfloat16 *x, int32_t k, const __grid_constant__ struct row_plan p,
               const __grid_constant__ struct sv_gemm_args a)
{
    GPU_SHARED(smem_bytes);
    __shared__ float sums[MOST_WARPS][16];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const struct chain c = chain_of(a, p);
    const uint64_t once = gpu_stream_policy();
    const uint32_t own = gpu_shared_at(smem_bytes) + warp * (SLOTS * STRIP + p.longest * X_TILE),
                   x_at = own + SLOTS * STRIP;
    sv_pdl_launch();
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        fill(own + i * STRIP, c, i, once);
    if (lane < c.n - SLOTS)
        gpu_call(c.from + (size_t)(SLOTS + lane) * SV_TILE_BYTES, STRIP);
    sv_pdl_wait();
    fetch_x(x_at, x, k, c);
    float acc[4] = {};
    sum_piece<SLOTS>(acc, c, own, x_at, once);
    if (lane % 4 == 0) {
        sums[warp][lane / 4] = acc[0];
        sums[warp][lane / 4 + 8] = acc[2];
    }
    __syncthreads();
    const int32_t row = c.row0 + lane;
    /* The first warps of the strips store. */
    if (!c.n || warp >= p.strips || lane >= 16 || row >= c.it->n_out)
        return;
    const auto piece = [&](int32_t j) { return sums[warp + j * p.strips][lane]; };
    float v = piece(0);
    if (p.two_and_two)
        v = (v + piece(1)) + (piece(2) + piece(3));
    else
        for (int32_t j = 1; j < c.n_pieces; j++)
            v += piece(j);
    v += sv_gemm_bias(*c.it, row);
    if (a.mode == SV_GEMM_F32)
        ((float *)a.y)[c.it->col0 + row] = v;
    else
        ((__nv_bfloat16 *)a.y)[c.it->col0 + row] = __float2bfloat16_rn(v);
}

/* ---------------------------------------------------------------- host */

typedef void row_fn(const __nv_bfloat16 *, int32_t, const struct row_plan,
                    const struct sv_gemm_args);
static const struct {
    int slots;
    row_fn *fn;
} rings[] = {{8, row_kernel<8>}, {6, row_kernel<6>}, {4, row_kernel<4>}, {3, row_kernel<3>}};
enum { N_RINGS = sizeof rings / sizeof *rings };

int sv_gemm_row_open(struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < N_RINGS && !rc; i++)
        rc = sv_cuda_try(cudaFuncSetAttribute((const void *)rings[i].fn,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM),
                         err, "shared memory of a matrix product");
    return rc;
}

bool sv_gemm_row(struct sv_cuda *cu, const void *x, int32_t k, const struct sv_gemm_args *a)
{
    struct row_plan p = {};
    if (a->n_rows != 1 || !a->co_resident || a->tall)
        return false;
    for (int32_t i = 0; i < a->n_parts; i++)
        p.n_strips += a->part[i].n_bands * 4;
    for (int32_t b = 0; b < a->split.n_blocks; b++) {
        const int32_t t0 = b * a->split.n_k, t1 = t0 + a->split.n_k,
                      first = sv_split_unit(&a->split, t0),
                      n = sv_split_unit(&a->split, t1 - 1) - first + 1;
        p.pieces = n > p.pieces ? n : p.pieces;
    }
    for (int32_t u = 0; u < a->split.n_units; u++) {
        const int32_t n = sv_split_start(&a->split, u + 1) - sv_split_start(&a->split, u);
        p.longest = n > p.longest ? n : p.longest;
    }
    if (p.longest > a->split.n_k)
        p.longest = a->split.n_k;
    p.two_and_two = sv_split_paired(&a->split) == 4;
    const int32_t n_blocks = p.n_strips < cu->n_sms ? p.n_strips : cu->n_sms;
    p.strips = (p.n_strips + n_blocks - 1) / n_blocks;
    const int32_t n_warps = p.strips * p.pieces;
    int i = 0;
    while (i < N_RINGS && n_warps * (rings[i].slots * STRIP + p.longest * X_TILE) > SMEM)
        i++;
    if (i == N_RINGS || n_warps > MOST_WARPS || p.longest > MOST_TILES)
        return false;
    sv_cuda_launch_in_pass(cu, "a matrix product", rings[i].fn, dim3((unsigned)n_blocks),
                           dim3((unsigned)n_warps * 32), SMEM, (const __nv_bfloat16 *)x, k, p, *a);
    return true;
}
