/*
 * gemm_one.cuh - one row of x by weights in codes or compressed: a warp sums up a chain of tiles of
 * 16 weight rows by itself, from a ring of its own that it fills by cp.async.
 *
 * Included by gemm_one_sm90.cu and gemm_one_nvidia.cu, which share out the chains and add up pieces
 * of cut sums. Must not: wait for another warp; add tiles in any but ascending order.
 */
#ifndef SV_CUDA_GEMM_ONE_CUH
#define SV_CUDA_GEMM_ONE_CUH

#ifndef SV_GEMM_CODES
#define SV_GEMM_CODES 8
#endif

#if SV_GEMM_CODES
#include "backend/cuda/gemm_codes.cuh"
#include "backend/cuda/nvfp4_parts.cuh"
#else
#include "backend/gpu/gemm_expand.cuh"
#endif
#include "backend/cuda/gemm_one.h"
#include "backend/gpu/silu.cuh"

/* Tiles are copied by twos. A ring's twos: no more than keep memory busy, as x comes behind all
 * that has been asked for before it. */
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
    ONE_TWO = 2 * STRIP_BYTES,
    ONE_RING = SV_GEMM_CODES == 4 ? 5 : 4,
    ONE_GATED_RING = SV_GEMM_CODES == 4 ? 4 : 3,
};

/* A warp's piece of a strip. */
struct one_chain {
    const struct sv_gemm_item *it;
    const uint8_t *from; /* the strip of its first tile */
    int32_t row0, k0, n; /* n: tiles, 0: no such strip */
    uint32_t table;      /* NVFP4: of the part, see nvfp4_parts.cuh */
};

/* The ring of a warp: where the next two tiles come from, this lane's part of codes and words, and
 * go to, and how many there are. */
struct one_ring {
    uint32_t first, fill, end;
    int32_t left;
    const uint8_t *from, *words;
    uint64_t once;
};

/* Asks for two tiles, as far as there are, or for nothing. */
static __device__ __forceinline__ void one_fill(struct one_ring &r)
{
    const uint32_t lane = threadIdx.x & 31, upper = lane / ONE_WORDS;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int b = 0; b < WORDS_AT; b += 512)
            gpu_copy_once<16>(r.fill + lane * 16 + j * STRIP_BYTES + b, r.from + j * W_BYTES + b,
                              j < r.left, r.once);
    if (upper < 2)
        gpu_copy_once<4>(r.fill + lane * 4 + WORDS_AT + upper * WORDS_AT, r.words,
                         (int)upper < r.left, r.once);
    r.left -= 2;
    r.from += 2 * W_BYTES;
    r.words += 2 * W_BYTES;
    r.fill += ONE_TWO;
    if (r.fill == r.end)
        r.fill = r.first;
    gpu_copy_commit();
}

/* A warp's own ring among those that begin at `rings`, still empty. */
template <int RING>
static __device__ __forceinline__ struct one_ring one_ring_of(const struct one_chain &c,
                                                              uint32_t rings)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    struct one_ring r;
    r.first = r.fill = rings + warp * RING * ONE_TWO;
    r.end = r.first + RING * ONE_TWO;
    r.left = c.n;
    r.from = c.from + lane * 16;
    r.words = c.from + WORDS_AT + lane * 4 + lane / ONE_WORDS * (W_BYTES - ONE_WORDS * 4);
    r.once = gpu_stream_policy();
    return r;
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
    gpu_copy_wait<AHEAD>(AHEAD, 0);
    __syncwarp();
    to[0] = fetch(at);
    to[1] = fetch(at + STRIP_BYTES);
}

/* Two tiles, with the next two on their way into `next`. */
template <int CODE, int RING, class ENDED>
static __device__ __forceinline__ void
one_turn(float (&acc)[4], const struct coded (&own)[2], struct coded (&next)[2], int32_t i,
         uint32_t &at, struct one_ring &r, const struct one_chain &c, uint32_t x_at,
         struct expansion &e, const ENDED &ended)
{
    const uint32_t own_at = at;
    at += ONE_TWO;
    if (at == r.end)
        at = r.first;
    one_take<RING - 2>(next, at);
    one_tile<CODE>(acc, own[0], own_at, c, i, x_at, e);
    ended(i);
    one_tile<CODE>(acc, own[1], own_at + STRIP_BYTES, c, i + 1, x_at, e);
    ended(i + 1);
    __syncwarp();
    one_fill(r);
}

/* All tiles of a chain. ended(i): called when tile i has been added. */
template <int CODE, int RING, class ENDED>
static __device__ __forceinline__ void one_sum(float (&acc)[4], struct one_ring &r,
                                               const struct one_chain &c, uint32_t x_at,
                                               struct expansion &e, const ENDED &ended)
{
    uint32_t at = r.first;
    struct coded even[2], odd[2];
    int32_t i = 0;
    one_take<RING - 1>(even, at);
#pragma unroll 1
    for (; i + 4 <= c.n; i += 4) {
        one_turn<CODE, RING>(acc, even, odd, i, at, r, c, x_at, e, ended);
        one_turn<CODE, RING>(acc, odd, even, i + 2, at, r, c, x_at, e, ended);
    }
    if (i + 2 <= c.n) {
        one_turn<CODE, RING>(acc, even, odd, i, at, r, c, x_at, e, ended);
        even[0] = odd[0];
        i += 2;
    }
    if (i < c.n) {
        one_tile<CODE>(acc, even[0], at, c, i, x_at, e);
        ended(i);
    }
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

/* Strips of 16 weight rows that a launch shares out, gate's alone of gate and up; 0: a product that
 * kernels for one row do not take. */
static inline int32_t one_strips(const struct sv_gemm_args *a)
{
    int32_t n = 0;
    if (a->mode == SV_GEMM_ARGMAX)
        return 0;
#if SV_GEMM_CODES == 4
    if (a->n_parts > NVFP4_TABLES)
        return 0;
#endif
    for (int32_t i = 0; i < (a->mode == SV_GEMM_GATED ? 1 : a->n_parts); i++)
        n += a->part[i].n_bands * 4;
    return n;
}

#endif
