/*
 * gemm_units.cuh - the consumers of a unit of the split: warpgroups that sum up its tiles and pass
 * the sums, or their pieces, to gemm_out.cuh and gemm_pair.cuh.
 *
 * Included in the middle of gemm_sm90.cu, after gemm_ring.cuh. Must not: add tiles or pieces in any
 * but ascending order.
 */
#ifndef SV_CUDA_GEMM_UNITS_CUH
#define SV_CUDA_GEMM_UNITS_CUH

/* ---------------------------------------------------------------- the consumers */

/* mate: the block of the cluster that shares x, or -1. */
static __device__ __forceinline__ void release(uint64_t *empty, int mate)
{
    const int lane = threadIdx.x & 31;
    if (lane == 0)
        bar_arrive(smem_u32(empty));
    if (mate >= 0 && lane == 1)
        bar_arrive_at(smem_u32(empty), (uint32_t)mate);
}

/* Place in the ring. */
struct place {
    int32_t s;
    uint32_t parity;
};

/* The compiler moves no use of acc across this: the instructions that fill it are asynchronous. */
template <int N> static __device__ __forceinline__ void settle(float (&acc)[N / 2])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        asm volatile("" : "+f"(acc[i])::"memory");
}

/* Three warpgroups leave too few registers for the widest instructions: two that are less wide. */
template <int N, enum way WAY>
static __device__ __forceinline__ void multiply(float (&acc)[N / 2], uint64_t w, uint64_t x,
                                                int keep)
{
    if constexpr (N > 192 && groups_of(WAY) == 3) {
        sv_wgmma<128>(*(float(*)[64]) & acc[0], w, x, keep);
        sv_wgmma<N - 128>(*(float(*)[(N - 128) / 2]) & acc[64], w, x + 128 * X_ROW_BYTES / 16,
                          keep);
    } else {
        sv_wgmma<N>(acc, w, x, keep);
    }
}

#if SV_GEMM_GROUPS
#include "backend/cuda/gemm_groups.cuh"
#endif

/* Sums n tiles into acc. last: the next tiles never come, and before the last of these is done both
 * blocks of the pair are told that this warp has done with all stages but that one's. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_tiles(float (&acc)[N / 2], struct place &at, int32_t n, bool present, bool last,
          const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int wg, int mate)
{
#if SV_GEMM_GROUPS
    sum_groups<N, WAY>(acc, at, n, present, last, a, smem, tail, wg, mate);
#else
    int32_t before = -1;
    settle<N>(acc);
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        bar_wait(smem_u32(&tail->full[at.s]), at.parity);
        if (at.s == 0 && at.parity == 0)
            SV_MARK(a, 1);
        if (present) {
            const uint32_t stage = smem + at.s * ring<N, WAY>::STAGE;
            const uint64_t w = sv_wgmma_desc(stage + wg * SV_TILE_BYTES);
            const uint64_t x = sv_wgmma_desc(stage + ring<N, WAY>::W);
            sv_wgmma_fence();
#pragma unroll
            for (int step = 0; step < 4; step++)
                multiply<N, WAY>(acc, w + 2 * step, x + 2 * step, i + step > 0);
            sv_wgmma_commit();
            sv_wgmma_wait<1>();
        } else {
            __syncwarp(); /* lane 0 tells the producer that all lanes have seen the stage */
        }
        if (exchanges(WAY) && last && i == n - 1 && (threadIdx.x & 31) < 2)
            bar_arrive_at(smem_u32(&tail->ready), threadIdx.x & 31);
        if (before >= 0)
            release(&tail->empty[before], mate);
        before = at.s;
        if (++at.s == a.n_stages) {
            at.s = 0;
            at.parity ^= 1;
        }
    }
    sv_wgmma_wait<0>();
    settle<N>(acc);
    if (before >= 0)
        release(&tail->empty[before], mate);
#endif
}

#include "backend/cuda/gemm_wcomp.cuh"

/* Weight rows that a group computes of a block. */
struct strip {
    int32_t band; /* in its part */
    bool present;
    float w0, w1; /* FP8: scales of this lane's two rows */
};

/* The first of a warp's 16 rows in its part. */
template <enum way WAY, bool GATED>
static __device__ __forceinline__ int32_t first_row(int32_t block, int32_t band)
{
    const int32_t warp = threadIdx.x / 32;
    if (!GATED)
        return band * SV_TILE + warp % 4 * 16;
    return (takes_tall(WAY) ? block * 96 : band * SV_TILE) + warp % (groups_of(WAY) * 2) * 16;
}

template <enum way WAY, bool GATED>
static __device__ __forceinline__ const struct sv_gemm_item &part_at(const struct sv_gemm_args &a,
                                                                     int32_t block)
{
    const int warp = threadIdx.x / 32;
    return a.part[GATED ? (int)(warp >= groups_of(WAY) * 2) : sv_gemm_part_of(a, block)];
}

template <enum way WAY, bool GATED>
static __device__ __forceinline__ struct strip strip_of(const struct sv_gemm_args &a, int32_t block,
                                                        int half, int wg)
{
    const struct sv_gemm_item &it = a.part[GATED ? 0 : sv_gemm_part_of(a, block)];
    struct strip s;
    if (takes_tall(WAY))
        s.band = GATED ? block * 3 / 2 : (block - it.block0) * 3 + wg;
    else
        s.band = GATED ? block * 2 + half : (block - it.block0) * 4 + half * 2 + wg;
    s.present = s.band < it.n_bands;
    s.w0 = s.w1 = 0.0f;
    if (FP8 && s.present) { /* fetched while the sums are made */
        const int32_t row = first_row<WAY, GATED>(block, s.band) + (threadIdx.x & 31) / 4;
        const float *scale = part_at<WAY, GATED>(a, block).scale + row;
        s.w0 = __ldg(scale);
        s.w1 = __ldg(scale + 8);
    }
    return s;
}

template <int N, enum way WAY, bool GATED>
static __device__ __forceinline__ struct spot out_spot(const struct sv_gemm_args &a, int32_t block,
                                                       const struct strip &own, struct tail *tail,
                                                       const float *x_scale)
{
    constexpr int PAIRS = groups_of(WAY) * 2;
    const int warp = threadIdx.x / 32;
    struct spot s;
    if (GATED)
        s = spot_gated<patches_of(N)>(a, first_row<WAY, GATED>(block, own.band), warp >= PAIRS,
                                      warp % PAIRS, tail->patch, PAIRS);
    else
        s = spot_of(a, block, own.band, patches_at<N>(tail, warp));
    s.w0 = own.w0;
    s.w1 = own.w1;
    s.x_scale = x_scale;
    return s;
}

/* FP8: scales of n rows of x from row0 on, as many as there are, for all consumers. */
static __device__ __forceinline__ void fetch_x_scales(const struct sv_gemm_args &a, float *to,
                                                      int32_t row0, int n, int consumers)
{
    for (int i = threadIdx.x; i < n; i += consumers)
        to[i] = row0 + i < a.n_rows ? __ldcg(a.x_scale + row0 + i) : 0.0f;
}

/* What all consumers have fetched is there. */
template <enum way WAY> static __device__ __forceinline__ void consumers_sync(void)
{
    sv_jitter();
    asm volatile("bar.sync 10, %0;" ::"n"(consumers_of(WAY)) : "memory");
}

template <int N, enum way WAY, bool GATED>
static __device__ __forceinline__ struct run run_of(const struct sv_gemm_args &a, int32_t block,
                                                    const struct strip &own, int32_t k0, bool last)
{
    const int warp = threadIdx.x / 32;
    const struct sv_gemm_item &it = part_at<WAY, GATED>(a, block);
    const int32_t row0 = first_row<WAY, GATED>(block, own.band);
    struct run r;
    r.k0 = k0;
    r.before = -1;
    r.present = own.present;
    r.last = last;
    r.own = (uint32_t)warp * STRIP_BYTES;
    if (takes_tall(WAY) && GATED)
        r.own += (uint32_t)(block % 2 + warp / (groups_of(WAY) * 2)) * HALF_GAP;
    if constexpr (takes_few(N))
        r.own = few_own<WAY, GATED>(block % 2, &r.next);
    r.strip = (uint32_t)(row0 % SV_TILE) / 16;
    r.e = {};
    if (own.present)
        r.e = expansion_of(it, row0, a.split.n_k);
    return r;
}

/* Whether gated results end 32 rows of x at a time. */
template <int N, bool GATED> static SV_HD constexpr bool twice(void)
{
    return GATED && patches_of(N) == 4;
}

template <int N, enum way WAY, bool GATED, bool SENDS>
static __device__ __forceinline__ void consume(const struct sv_gemm_args &a, uint32_t smem,
                                               struct tail *tail, int32_t unit, int32_t t0,
                                               int32_t t1, int half)
{
    const int wg = threadIdx.x / 128, band_in = half * 2 + wg;
    struct place at = {0, 0};
    constexpr int N_WARPS = consumers_of(WAY) / 32;
    float *const x_scale = tail->x_scale[0];
    int32_t shared0 = -1, shared1 = -1; /* blocks whose pieces wait to be added up */
    if (WAY == PAIRED)
        cluster_wait();
    bool waited = !WCOMP;
    if (!WCOMP) {
        sv_pdl_wait();
        if (a.mode == SV_GEMM_ARGMAX)
            best_clear(a, N_WARPS);
    }
    if (FP8) {
        fetch_x_scales(a, x_scale, 0, N, consumers_of(WAY));
        consumers_sync<WAY>();
    }
#pragma unroll 1
    for (int32_t t = first_tile(t0, t1, a.split.n_k, WAY == PAIRED), left = t1 - t0; left > 0;) {
        const int32_t block = t / a.split.n_k, k0 = t - block * a.split.n_k;
        const int32_t n = min(a.split.n_k - k0, t1 - t);
        const struct strip own = strip_of<WAY, GATED>(a, block, half, wg);
        float acc[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++)
            acc[i] = 0.0f;
        left -= n;
        if (WAY == PAIRED && left == 0 && (threadIdx.x & 31) == 0)
            pair_expect<N>(a.n_rows, blockIdx.x & 1, smem_u32(&tail->got[threadIdx.x / 32]),
                           own.present);
        if constexpr (WCOMP) {
            struct run r = run_of<N, WAY, GATED>(a, block, own, k0, left == 0);
            int32_t done = 0;
            if (!waited) {
                waited = true;
                done = n_early<N, WAY>(a, t, t1);
                if constexpr (takes_few(N))
                    sv_pdl_wait();
                else
                    sum_early<N, WAY>(acc, at, done, r, a, smem, tail, half);
                if (a.mode == SV_GEMM_ARGMAX)
                    best_clear(a, N_WARPS);
            }
            if constexpr (takes_few(N))
                sum_few<N, WAY>(acc, at, n, r, a, smem, tail);
            else
                sum_wcomp<N, WAY>(acc, at, done, n, r, a, smem, tail, half);
        } else {
            sum_tiles<N, WAY>(acc, at, n, own.present, left == 0, a, smem, tail, wg, -1);
        }
        t = t + n == t1 ? t0 : t + n;
        if constexpr (WAY == PAIRED) {
            if (left == 0) {
                SV_MARK(a, 2);
                const struct pair_side side = {blockIdx.x & 1,
                                               smem,
                                               (uint32_t)a.n_stages * ring<N, WAY>::STAGE,
                                               (uint32_t)at.s * ring<N, WAY>::STAGE,
                                               smem_u32(&tail->ready),
                                               smem_u32(&tail->got[threadIdx.x / 32])};
                const int32_t n_pairs = a.n_sharers / 2;
                if (own.present)
                    pair_exchange<N, 4, GATED, SENDS>(
                        acc, a, side, unit / 2 % n_pairs, n_pairs, unit, block, band_in,
                        out_spot<N, WAY, GATED>(a, block, own, tail, x_scale), N_WARPS);
                else
                    bar_wait(side.ready, 0); /* the other block's word must find this one here */
                break;
            }
        }
        if (!own.present)
            continue;
        if (WAY != TALL && n != a.split.n_k) {
            post_piece<N>(acc, a, piece_of<N, 4>(a, unit, block, band_in));
            if (shared0 < 0)
                shared0 = block;
            else
                shared1 = block;
            continue;
        }
        put_all<N, true, GATED, twice<N, GATED>()>(
            acc, a, out_spot<N, WAY, GATED>(a, block, own, tail, x_scale), 0, N_WARPS);
    }
    if constexpr (WAY == ALONE) {
        SV_MARK(a, 3);
        /* Only now, at the end of the unit: the other pieces are not there any earlier. */
#pragma unroll 1
        for (int32_t block = shared0; block >= 0; block = block == shared1 ? -1 : shared1) {
            const struct strip own = strip_of<WAY, GATED>(a, block, half, wg);
            take_pieces<N, 4, true, GATED>(a, unit, block, band_in,
                                           out_spot<N, WAY, GATED>(a, block, own, tail, x_scale),
                                           N_WARPS);
        }
    }
}

#endif
