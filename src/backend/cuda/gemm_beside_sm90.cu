/*
 * gemm_beside_sm90.cu - up to 16 rows of x by packed bf16 weights where a model has experts, on
 * sm_90a, by thread blocks that leave room beside them for those of other launches: each warp sums
 * up a piece of 16 weight rows by itself, and a thread block has all pieces of its rows.
 *
 * Called by gemm.cu. The bits are those of gemm_sm90.cu: pieces are cut and added up as there, but
 * in shared memory, where they need no trips through L2. A warp has a ring of its own for its
 * weights and its columns of x, and waits for no other before its sums are done. Rings are short:
 * what is asked for far ahead delays what other launches wait for. Must not: add tiles or pieces in
 * any other order.
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/peers.h"

enum {
    MOST_WARPS = 16,
    STRIP = SV_TILE_BYTES / 4, /* 16 weight rows of a tile */
    LINE = SV_TILE * 2,        /* a row of x in a tile */
    /* Two thread blocks of experts fit beside one, but none of the same launch. */
    SMEM = 114 * 1024
};

/* How a launch shares out strips of 16 weight rows: so many to a thread block, at most, and pieces
 * of each. */
struct plan {
    const __nv_bfloat16 *x;
    int64_t ldx;
    int32_t k, n_strips, strips;
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
                                                        const struct plan &p)
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

/* ROWS: of x, that a slot of the ring has room for. */
template <int ROWS, int SLOTS_> struct ring {
    enum { SLOTS = SLOTS_, N = ROWS < 8 ? 8 : ROWS, SLOT = STRIP + ROWS * LINE };

    static __device__ __forceinline__ void fill_weights(uint32_t slot, const struct chain &c,
                                                        int32_t i, uint64_t once)
    {
        const uint8_t *from = c.from + (size_t)i * SV_TILE_BYTES + threadIdx.x % 32 * 16;
        if (i < c.n)
#pragma unroll
            for (int b = 0; b < STRIP; b += 512)
                gpu_copy_stream(slot + b, from + b, once);
    }
    /* Rows past n_rows stay uninitialized: their results are never stored. */
    static __device__ __forceinline__ void fill_x(uint32_t slot, const struct chain &c, int32_t i,
                                                  const struct plan &p, int32_t n_rows)
    {
        const uint32_t lane = threadIdx.x % 32, chunk = lane % 8;
        const int32_t col = (c.k0 + i) * SV_TILE + (int32_t)chunk * 8;
        if (i >= c.n)
            return;
#pragma unroll
        for (uint32_t r0 = 0; r0 < ROWS; r0 += 4) {
            const uint32_t r = r0 + lane / 8;
            if ((int32_t)r < n_rows)
                gpu_copy_16<true>(slot + STRIP + gpu_place<LINE>(r, chunk),
                                  p.x + (int64_t)r * p.ldx + (col < p.k ? col : 0), col < p.k);
        }
    }
    static __device__ __forceinline__ void sum(float (&acc)[N / 2], const struct chain &c,
                                               uint32_t own, const struct plan &p, int32_t n_rows,
                                               uint64_t once)
    {
        const uint32_t lane = threadIdx.x % 32;
        uint32_t now = own;
#pragma unroll 1
        for (int32_t i = 0; i < c.n; i++) {
            uint32_t w[4][4], x[N / 8][2][4];
            asm volatile("cp.async.wait_group %0;" ::"n"(SLOTS - 1) : "memory");
            __syncwarp();
#pragma unroll
            for (int step = 0; step < 4; step++)
                gpu_load_a(w[step], now + gpu_place<LINE>(lane % 16, step * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < N / 8; j++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    gpu_load_a(x[j][half], now + STRIP +
                                               gpu_place<LINE>(ROWS < 8 ? 0 : j * 8 + lane % 8,
                                                               half * 4 + lane / 8));
            __syncwarp();
            fill_weights(now, c, i + SLOTS, once);
            fill_x(now, c, i + SLOTS, p, n_rows);
            gpu_copy_commit();
#pragma unroll
            for (int step = 0; step < 4; step++)
#pragma unroll
                for (int j = 0; j < N / 8; j++)
                    gpu_mma_16x8(acc + 4 * j, w[step], x[j][step / 2][step % 2 * 2],
                                 x[j][step / 2][step % 2 * 2 + 1]);
            now = now + SLOT == own + SLOTS * SLOT ? own : now + SLOT;
        }
    }
};

/* Pieces, (rows of x, 16) each, lie at the beginnings of rings. */
static __device__ __forceinline__ void add_pieces(const struct sv_gemm_args &a,
                                                  const struct plan &p, const struct chain &c,
                                                  const uint8_t *piece, size_t apart)
{
    const int32_t lane = threadIdx.x & 31, row = c.row0 + lane % 16;
    const float bias = sv_gemm_bias(*c.it, row);
    for (int32_t r0 = 0; r0 < a.n_rows; r0 += 2) {
        const int32_t r = r0 + lane / 16;
        const bool there = r < a.n_rows && row < c.it->n_out;
        const auto of = [&](int32_t j) {
            return ((const float *)(piece + j * apart))[r * 16 + lane % 16];
        };
        float v = of(0);
        if (p.two_and_two)
            v = (v + of(1)) + (of(2) + of(3));
        else
            for (int32_t j = 1; j < c.n_pieces; j++)
                v += of(j);
        const int64_t at = r * a.ldy + c.it->col0 + row;
        if (there && a.mode == SV_GEMM_F32)
            ((float *)a.y)[at] = v + bias;
        else if (there)
            ((__nv_bfloat16 *)a.y)[at] = __float2bfloat16_rn(v + bias);
        if (a.sends)
            sv_join_push(a.push, there ? at / 8 : -1, __float2bfloat16_rn(v + bias));
    }
}

template <int ROWS, int SLOTS>
static __global__ void __launch_bounds__(MOST_WARPS * 32, 1)
    beside_kernel(const __grid_constant__ struct plan p,
                  const __grid_constant__ struct sv_gemm_args a)
{
    typedef ring<ROWS, SLOTS> R;
    GPU_SHARED(smem_bytes);
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const struct chain c = chain_of(a, p);
    const uint64_t once = gpu_stream_policy();
    const uint32_t own = gpu_shared_at(smem_bytes) + warp * (SLOTS * R::SLOT);
    sv_pdl_launch();
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        R::fill_weights(own + i * R::SLOT, c, i, once);
    sv_pdl_wait();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        R::fill_x(own + i * R::SLOT, c, i, p, a.n_rows);
        gpu_copy_commit();
    }
    float acc[R::N / 2] = {};
    R::sum(acc, c, own, p, a.n_rows, once);
    uint8_t *const piece = smem_bytes + warp * (SLOTS * R::SLOT);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < R::N / 2; i++) {
        const int32_t r = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (r < a.n_rows)
            ((float *)piece)[r * 16 + lane / 4 + i % 4 / 2 * 8] = acc[i];
    }
    __syncthreads();
    if (c.n && warp < p.strips) /* the first warps of the strips */
        add_pieces(a, p, c, piece, (size_t)p.strips * SLOTS * R::SLOT);
}

/* ---------------------------------------------------------------- host */

typedef void beside_fn(const struct plan, const struct sv_gemm_args);
static const struct {
    int rows, slots, slot;
    beside_fn *fn;
} rings[] = {
#define RING(ROWS, SLOTS)                                                                          \
    {                                                                                              \
        ROWS, SLOTS, ring<ROWS, SLOTS>::SLOT, beside_kernel<ROWS, SLOTS>                           \
    }
    RING(1, 3), RING(1, 2), RING(8, 3), RING(8, 2), RING(16, 3), RING(16, 2)};
enum { N_RINGS = sizeof rings / sizeof *rings, MOST_ROWS = 16 };

int sv_gemm_beside_open(struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < N_RINGS && !rc; i++)
        rc = sv_cuda_try(cudaFuncSetAttribute((const void *)rings[i].fn,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM),
                         err, "shared memory of a matrix product");
    return rc;
}

/* The most pieces of a block of weight rows. */
static int32_t most_pieces(const struct sv_split *s)
{
    int32_t most = 0;
    for (int32_t t = 0; t < s->n_blocks * s->n_k; t += s->n_k) {
        const int32_t n = sv_split_unit(s, t + s->n_k - 1) - sv_split_unit(s, t) + 1;
        most = n > most ? n : most;
    }
    return most;
}

bool sv_gemm_beside(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                    struct sv_gemm_args *a)
{
    struct plan p = {(const __nv_bfloat16 *)x, ldx, k, 0, 0, false};
    if (a->n_rows > MOST_ROWS || !a->co_resident || a->tall)
        return false;
    for (int32_t i = 0; i < a->n_parts; i++)
        p.n_strips += a->part[i].n_bands * 4;
    p.two_and_two = sv_split_paired(&a->split) == 4;
    const int32_t n_blocks = p.n_strips < cu->n_sms ? p.n_strips : cu->n_sms;
    p.strips = (p.n_strips + n_blocks - 1) / n_blocks;
    const int32_t n_warps = p.strips * most_pieces(&a->split);
    int i = 0;
    while (i < N_RINGS &&
           (a->n_rows > rings[i].rows || n_warps * rings[i].slots * rings[i].slot > SMEM))
        i++;
    if (i == N_RINGS || n_warps > MOST_WARPS)
        return false;
    sv_gemm_push(cu, a);
    sv_cuda_launch_in_pass(cu, "a matrix product", rings[i].fn, dim3((unsigned)n_blocks),
                           dim3((unsigned)n_warps * 32), SMEM, p, *a);
    return true;
}
