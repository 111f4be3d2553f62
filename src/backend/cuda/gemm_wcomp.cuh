/*
 * gemm_wcomp.cuh - how a warpgroup sums up tiles of compressed weights: expands one in registers
 * while the tensor cores work on the one before, and a unit's first tiles before x is there.
 *
 * Included in the middle of gemm_units.cuh: it uses the ring and its barriers, and the rest of that
 * file uses it. Must not: add tiles in any but ascending order.
 */
#ifndef SV_CUDA_GEMM_WCOMP_CUH
#define SV_CUDA_GEMM_WCOMP_CUH

/* Operands in registers must be in place before wgmma's fence. */
static __device__ __forceinline__ void operands_final(uint32_t (&pair)[SV_WCOMP_PAIRS])
{
#pragma unroll
    for (int i = 0; i < SV_WCOMP_PAIRS; i++)
        asm volatile("" : "+r"(pair[i])::"memory");
}

/* A tile's pairs, patches included. */
static __device__ __forceinline__ void expand(uint32_t (&pair)[SV_WCOMP_PAIRS], uint32_t at,
                                              uint32_t strip, uint32_t kk, struct expansion &e)
{
    const uint32_t patch = first_patch(at);
    expand_plain(pair, at, e);
    patch_all(pair, patch, at, strip, kk, e);
    operands_final(pair);
}

/* Multiplies by steps of 16 columns of a tile that lies expanded in registers. */
template <int N, int FIRST = 0, int LAST = 3>
static __device__ __forceinline__ void multiply_pairs(float (&acc)[N / 2],
                                                      const uint32_t (&pair)[SV_WCOMP_PAIRS],
                                                      uint32_t x_at, bool keep)
{
    const uint64_t x = sv_wgmma_desc(x_at);
    sv_wgmma_fence();
#pragma unroll
    for (int step = FIRST; step <= LAST; step++)
        sv_wgmma_reg<N>(acc, pair + 4 * step, x + 2 * step, step > 0 || keep);
    sv_wgmma_commit();
}

/* A group's walk over the tiles of a block. */
struct run {
    int32_t k0, before;  /* first tile along k; stage of the tile before, or -1 */
    bool present, last;  /* see sum_tiles */
    uint32_t own, strip; /* this warp's strip, in a stage and in its band */
    uint32_t next;       /* few rows: from there to the next tile's */
    struct expansion e;
};

/* After a tile's products have been issued: those of the tile before are done. */
template <int N, enum way WAY>
static __device__ __forceinline__ void next_tile(struct place &at, struct run &r,
                                                 const struct sv_gemm_args &a, struct tail *tail,
                                                 int half)
{
    if (r.present)
        sv_wgmma_wait<1>();
    else
        __syncwarp(); /* as in sum_tiles */
    if (r.before >= 0)
        release(&tail->empty[r.before], -1);
    r.before = at.s;
    if (++at.s == a.n_stages) {
        at.s = 0;
        at.parity ^= 1;
    }
}

template <int N, enum way WAY>
static __device__ __forceinline__ void end_tiles(float (&acc)[N / 2], struct run &r,
                                                 struct tail *tail, int half)
{
    sv_wgmma_wait<0>();
    settle<N>(acc);
    if (r.before >= 0)
        release(&tail->empty[r.before], -1);
    r.before = -1;
}

/* The first n tiles of a unit: expanded before x is there, then multiplied. */
template <int N, enum way WAY>
static __device__ __forceinline__ void sum_early(float (&acc)[N / 2], struct place &at, int32_t n,
                                                 struct run &r, const struct sv_gemm_args &a,
                                                 uint32_t smem, struct tail *tail, int half)
{
    typedef ring<N, WAY> R;
    uint32_t pair[R::EARLY][SV_WCOMP_PAIRS];
#pragma unroll
    for (int i = 0; i < R::EARLY; i++)
        if (i < n && r.present) {
            bar_wait(smem_u32(&tail->early[i]), 0);
            expand(pair[i], smem + i * R::STAGE + r.own, r.strip, (uint32_t)(r.k0 + i), r.e);
        }
    sv_pdl_wait();
    settle<N>(acc);
#pragma unroll
    for (int i = 0; i < R::EARLY; i++)
        if (i < n) {
            bar_wait(smem_u32(&tail->full[at.s]), at.parity);
            if (r.present)
                multiply_pairs<N>(acc, pair[i], smem + i * R::STAGE + R::W, i > 0);
            next_tile<N, WAY>(at, r, a, tail, half);
        }
    end_tiles<N, WAY>(acc, r, tail, half);
}

/* Three warpgroups keep the tensor cores busy: each expands a tile and multiplies it. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_pairs(float (&acc)[N / 2], uint32_t (&pair)[SV_WCOMP_PAIRS], struct place &at, int32_t i,
          struct run &r, const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int half)
{
    typedef ring<N, WAY> R;
    bar_wait(smem_u32(&tail->full[at.s]), at.parity);
    if (r.present) {
        const uint32_t stage = smem + at.s * R::STAGE;
        expand(pair, stage + r.own, r.strip, (uint32_t)(r.k0 + i), r.e);
        multiply_pairs<N>(acc, pair, stage + R::W, i > 0);
    }
    next_tile<N, WAY>(at, r, a, tail, half);
}

/* Multiplies tile i, which lies in `own`, and expands the next into `next` between the halves of
 * its products: a warp does not get far ahead of the tensor cores with instructions whose operands
 * are registers. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_and_expand(float (&acc)[N / 2], uint32_t (&own)[SV_WCOMP_PAIRS],
               uint32_t (&next)[SV_WCOMP_PAIRS], struct place &at, int32_t i, struct run &r,
               const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int half)
{
    typedef ring<N, WAY> R;
    const uint32_t x_at = smem + at.s * R::STAGE + R::W;
    multiply_pairs<N, 0, 1>(acc, own, x_at, i > 0);
    next_tile<N, WAY>(at, r, a, tail, half);
    bar_wait(smem_u32(&tail->full[at.s]), at.parity);
    const uint32_t strip_at = smem + at.s * R::STAGE + r.own, patch = first_patch(strip_at);
    const struct coded c = fetch(strip_at);
    expand_half<0>(next, c, r.e);
    multiply_pairs<N, 2, 3>(acc, own, x_at, true);
    expand_half<1>(next, c, r.e);
    patch_all(next, patch, strip_at, r.strip, (uint32_t)(r.k0 + i + 1), r.e);
    operands_final(next);
}

/* Before a unit's last tile is done: both blocks of the pair are told that this warp has done with
 * the others. */
template <enum way WAY>
static __device__ __forceinline__ void say_ready(const struct run &r, struct tail *tail)
{
    if (WAY == PAIRED && r.last && (threadIdx.x & 31) < 2)
        bar_arrive_at(smem_u32(&tail->ready), threadIdx.x & 31);
}

/* After it has been issued. */
template <enum way WAY>
static __device__ __forceinline__ void tell_ready(const struct run &r, struct tail *tail)
{
    if (WAY != PAIRED || !r.last)
        return;
    sv_wgmma_wait<1>();
    say_ready<WAY>(r, tail);
}

/* Two warpgroups: tiles i to n, each ready when its turn comes. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_ahead(float (&acc)[N / 2], uint32_t (&even)[SV_WCOMP_PAIRS], uint32_t (&odd)[SV_WCOMP_PAIRS],
          struct place &at, int32_t i, int32_t n, struct run &r, const struct sv_gemm_args &a,
          uint32_t smem, struct tail *tail, int half)
{
    typedef ring<N, WAY> R;
    if (!r.present) {
#pragma unroll 1
        for (; i < n; i++) {
            bar_wait(smem_u32(&tail->full[at.s]), at.parity);
            if (i + 1 == n)
                tell_ready<WAY>(r, tail);
            next_tile<N, WAY>(at, r, a, tail, half);
        }
        return;
    }
    bar_wait(smem_u32(&tail->full[at.s]), at.parity);
    expand(even, smem + at.s * R::STAGE + r.own, r.strip, (uint32_t)(r.k0 + i), r.e);
#pragma unroll 1
    for (; i + 2 < n; i += 2) {
        sum_and_expand<N, WAY>(acc, even, odd, at, i, r, a, smem, tail, half);
        sum_and_expand<N, WAY>(acc, odd, even, at, i + 1, r, a, smem, tail, half);
    }
    if (i + 1 < n) {
        sum_and_expand<N, WAY>(acc, even, odd, at, i, r, a, smem, tail, half);
        multiply_pairs<N>(acc, odd, smem + at.s * R::STAGE + R::W, true);
    } else {
        multiply_pairs<N>(acc, even, smem + at.s * R::STAGE + R::W, i > 0);
    }
    tell_ready<WAY>(r, tail);
    next_tile<N, WAY>(at, r, a, tail, half);
}

/* As sum_tiles, for n tiles of which the first `done` are in acc. Operands take turns in two sets
 * of registers. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_wcomp(float (&acc)[N / 2], struct place &at, int32_t done, int32_t n, struct run &r,
          const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int half)
{
    uint32_t even[SV_WCOMP_PAIRS], odd[SV_WCOMP_PAIRS];
    int32_t i = done;
    settle<N>(acc);
    if constexpr (WAY == TALL) {
#pragma unroll 1
        for (; i + 1 < n; i += 2) {
            sum_pairs<N, WAY>(acc, even, at, i, r, a, smem, tail, half);
            sum_pairs<N, WAY>(acc, odd, at, i + 1, r, a, smem, tail, half);
        }
        if (i < n)
            sum_pairs<N, WAY>(acc, even, at, i, r, a, smem, tail, half);
    } else {
        sum_ahead<N, WAY>(acc, even, odd, at, i, n, r, a, smem, tail, half);
    }
    end_tiles<N, WAY>(acc, r, tail, half);
}

#include "backend/cuda/gemm_few.cuh"

#endif
