/*
 * gemm_sm90.cu - matrix products with wgmma: y = x W^T for 1 to 256 rows of x in one launch, near
 * the speed of memory while few rows and near that of the tensor cores while many.
 *
 * Called by gemm.cu. Weight rows are the M side of the instruction, rows of x the N side, so few
 * rows of x waste nothing. A block of the split is 256 weight rows: two thread blocks take 128 of
 * them each, two warpgroups 64 each; two units that share a block form clusters and exchange their
 * pieces there (gemm_pair.cuh). Where the weights have enough rows, a block is 192 rows instead, of
 * one thread block with three warpgroups, and no sum is cut. A producer warp streams packed tiles
 * by bulk copy, and tiles of x by tensor map, through a ring in shared memory. A thread block takes
 * a multiprocessor for itself; the next kernel's takes its place as soon as it ends and fills its
 * ring with weights while the others still add up. More than 256 rows go through clusters of two
 * that share x (below). gemm_dense_sm90.cu builds the file once more, for few rows and weights in
 * 13 bits (DENSE): warpgroups take a tile's words from the ring, expand them to bf16 in registers
 * while the tensor cores work on the tile before, and use them as the instruction's first operand.
 * Expanding takes longer than multiplying; a unit's first tiles are expanded before x is there. Must
 * not: let anything but the weight's shape decide the order of a sum; n_rows only picks the width N
 * and the way, which do not change an element's bits, nor does DENSE.
 */
#include "backend/cuda/barrier.cuh"
#include "backend/cuda/gemm_expand.cuh"
#include "backend/cuda/gemm_out.cuh"
#include "backend/cuda/gemm_pair.cuh"
#include "backend/cuda/wgmma.cuh"
#include "backend/cuda/wgmma_reg.cuh"

#include <cudaTypedefs.h>

#ifndef SV_GEMM_DENSE
#define SV_GEMM_DENSE 0
#endif
static constexpr bool DENSE = SV_GEMM_DENSE;
static constexpr int W_BYTES = DENSE ? (int)SV_DENSE_TILE_BYTES : (int)SV_TILE_BYTES;

enum { MAX_STAGES = DENSE ? 16 : 12, MAX_EARLY = 6, SMEM_MAX = 232448 };

/* ---------------------------------------------------------------- barriers and copies */

/* The same barrier in block `rank` of the cluster. Nothing is handed over but the end of reads that
 * are already done, so no release at cluster scope: that is a fence of about a microsecond. */
static __device__ __forceinline__ void bar_arrive_at(uint32_t bar, uint32_t rank)
{
    asm volatile("{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [far];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

static __device__ __forceinline__ void copy_tile(uint32_t dst, const void *src, uint32_t n_bytes,
                                                 uint32_t bar, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(n_bytes), "r"(bar), "l"(policy)
                 : "memory");
}

template <int CL>
static __device__ __forceinline__ void copy_x(uint32_t dst, const CUtensorMap *map, int32_t k,
                                              int32_t row, uint32_t bar, uint64_t policy)
{
    if (CL == 1)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::"
                     "bytes.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(dst),
                     "l"(map), "r"(k), "r"(row), "r"(bar), "l"(policy)
                     : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::"
            "bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(
                dst),
            "l"(map), "r"(k), "r"(row), "r"(bar), "h"((uint16_t)((1 << CL) - 1)), "l"(policy)
            : "memory");
}

/* Of execution only; barriers are made visible by their own fence. */
static __device__ __forceinline__ void cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}

/* How a launch goes about it: thread blocks by themselves, units in clusters of two that exchange
 * pieces, thread blocks of three warpgroups that take whole blocks of 192 weight rows, or clusters
 * of two that share x and compute whole blocks. */
enum way { ALONE, PAIRED, TALL, WHOLE };

/* Bands of 64 weight rows, and warpgroups, of a thread block. */
static SV_HD constexpr int groups_of(enum way way)
{
    return way == TALL ? 3 : 2;
}

static SV_HD constexpr int consumers_of(enum way way)
{
    return groups_of(way) * 128;
}

static SV_HD constexpr int sharing_x(enum way way)
{
    return way == WHOLE ? 2 : 1;
}

/* ---------------------------------------------------------------- shared memory */

enum { X_ROW_BYTES = SV_TILE * 2 };

template <int N, enum way WAY>
struct ring {
    static constexpr uint32_t W = (groups_of(WAY) * W_BYTES + 1023) / 1024 * 1024,
                              STAGE = W + N * X_ROW_BYTES;
    /* DENSE: tiles that are expanded before x is there, as many as registers hold. */
    static constexpr int EARLY = WAY == TALL ? (N <= 64 ? 2 : 1) : N <= 32 ? 4 : N <= 64 ? 3 : 2;
};

/* What lies behind the stages. */
struct tail {
    uint8_t patch[12][2 * SV_PATCH_BYTES];
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    uint64_t ready, got[8]; /* gemm_pair.cuh */
    uint64_t early[MAX_EARLY]; /* DENSE: weights of the first tiles; full then stands for x alone */
};

/* ---------------------------------------------------------------- the producer */

/* A unit's tiles in the order of work. A block that the unit ends inside of comes first, so that
 * its piece lies ready before the unit's end and nobody waits for it there; or, to keep, a block
 * that it shares comes last: its piece then stays in registers until it is sent. */
static __device__ __forceinline__ int32_t first_tile(int32_t t0, int32_t t1, int32_t n_k, bool keep)
{
    const int32_t last = t1 - t1 % n_k, next = t0 + (n_k - t0 % n_k);
    if (keep)
        return t0 % n_k != 0 && next < t1 ? next : t0;
    return last > t0 && last < t1 ? last : t0;
}

/* Where a unit's walk over its tiles stands. A stage's weights are up to MAX_RUNS runs of memory.
 */
enum { MAX_RUNS = 4 };
struct walk {
    int32_t t, t0, t1, kk;
    int32_t n_runs, bytes; /* bytes: of all runs */
    bool odd;              /* TALL, gated: begins in the middle of a band */
    const uint8_t *w;      /* first run's tile kk */
    size_t band_bytes;
    ptrdiff_t up; /* gated: from gate to up */
};

static __device__ __forceinline__ const uint8_t *weights_of(const struct sv_gemm_item &it)
{
    return DENSE ? it.dense + SV_DENSE_HEAD_BYTES : it.w;
}

template <enum way WAY>
static __device__ __forceinline__ void walk_enter(struct walk &v, const struct sv_gemm_args &a,
                                                  int half)
{
    constexpr int G = groups_of(WAY);
    const int32_t block = v.t / a.split.n_k;
    v.kk = v.t - block * a.split.n_k;
    const bool gated = a.mode == SV_GEMM_GATED;
    const struct sv_gemm_item &it = a.part[gated ? 0 : sv_gemm_part_of(a, block)];
    int32_t band = gated ? block * 2 + half : (block - it.block0) * 4 + half * 2;
    if (WAY == TALL)
        band = gated ? block * 3 / 2 : (block - it.block0) * 3;
    v.n_runs = min(G, max(0, it.n_bands - band));
    v.odd = WAY == TALL && gated && block % 2;
    v.w = weights_of(it) + (size_t)band * v.band_bytes + (size_t)v.kk * W_BYTES;
    v.bytes = v.n_runs * W_BYTES;
    if (gated) {
        v.n_runs = band < it.n_bands ? (WAY == TALL ? 4 : 2) : 0;
        v.bytes = v.n_runs ? G * W_BYTES : 0;
        v.up = weights_of(a.part[1]) - weights_of(it);
    }
}

template <enum way WAY>
static __device__ __forceinline__ void walk_next(struct walk &v, const struct sv_gemm_args &a,
                                                 int half)
{
    v.w += W_BYTES;
    if (++v.t == v.t1) {
        v.t = v.t0;
        walk_enter<WAY>(v, a, half);
    } else if (++v.kk == a.split.n_k) {
        walk_enter<WAY>(v, a, half);
    }
}

/* x_bytes: what will come beside them. */
template <enum way WAY>
static __device__ __forceinline__ void load_weights(const struct walk &v, bool gated,
                                                    uint32_t stage, uint32_t full, uint32_t x_bytes,
                                                    uint64_t policy)
{
    bar_expect(full, (uint32_t)v.bytes + x_bytes);
    if (WAY == TALL && gated) {
        /* 96 rows of gate, then of up: a band and half of one, or the other way round. */
        if (v.n_runs == 0)
            return;
        const uint32_t first = v.odd ? W_BYTES / 2 : W_BYTES;
        const uint8_t *from = v.w + (v.odd ? W_BYTES / 2 : 0);
#pragma unroll
        for (int i = 0; i < 2; i++, stage += W_BYTES * 3 / 2, from += v.up) {
            copy_tile(stage, from, first, full, policy);
            copy_tile(stage + first, v.w + i * v.up + v.band_bytes, W_BYTES * 3 / 2 - first, full,
                      policy);
        }
        return;
    }
    const ptrdiff_t step = gated ? v.up : (ptrdiff_t)v.band_bytes;
#pragma unroll
    for (int i = 0; i < groups_of(WAY); i++)
        if (i < v.n_runs)
            copy_tile(stage + i * W_BYTES, v.w + i * step, W_BYTES, full, policy);
}

/* DENSE: tiles from t on, where a unit begins, that are expanded before x is there. */
template <int N, enum way WAY>
static __device__ __forceinline__ int32_t n_early(const struct sv_gemm_args &a, int32_t t, int32_t t1)
{
    const int32_t n = min(a.split.n_k - t % a.split.n_k, t1 - t);
    return DENSE ? min(min((int32_t)ring<N, WAY>::EARLY, a.n_early), min(n - 1, a.n_stages)) : 0;
}

/* One thread. Each block of a cluster fetches its share of x's rows for all of them. What lies
 * behind the last row in shared memory is left as it is: it reaches only results that nobody
 * stores. */
template <int CL>
static __device__ __forceinline__ void load_x(const CUtensorMap *map, int32_t kk, int32_t row,
                                              int32_t x_rows, uint32_t x, uint32_t full, int rank,
                                              uint64_t policy)
{
    const int32_t off = CL > 1 ? rank * x_rows : 0;
    copy_x<CL>(x + off * X_ROW_BYTES, map, kk * SV_TILE, row + off, full, policy);
}

template <int N, enum way WAY>
static __device__ __forceinline__ void produce(const CUtensorMap *map, const struct sv_gemm_args &a,
                                               uint32_t smem, struct tail *tail, int32_t t0,
                                               int32_t t1, int half)
{
    uint64_t stream_once, keep;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(stream_once));
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    struct walk v;
    v.band_bytes = (size_t)a.split.n_k * W_BYTES;
    v.t0 = t0;
    v.t1 = t1;
    v.t = first_tile(t0, t1, a.split.n_k, WAY == PAIRED);
    constexpr int CL = sharing_x(WAY);
    walk_enter<WAY>(v, a, half);
    struct walk x = v;
    typedef ring<N, WAY> R;
    const bool gated = a.mode == SV_GEMM_GATED;
    const int32_t n_tiles = t1 - t0, early = min(a.n_stages, n_tiles);
    const uint32_t x_bytes = (uint32_t)(CL * a.x_rows * X_ROW_BYTES);
    const int32_t apart = n_early<N, WAY>(a, v.t, t1);
    for (int32_t i = 0; i < early; i++) {
        const bool together = i >= apart;
        load_weights<WAY>(v, gated, smem + i * R::STAGE,
                          smem_u32(together ? &tail->full[i] : &tail->early[i]),
                          together ? x_bytes : 0, stream_once);
        if (!together)
            bar_expect(smem_u32(&tail->full[i]), x_bytes);
        walk_next<WAY>(v, a, half);
    }
    sv_pdl_launch();
    sv_pdl_wait();
    SV_MARK(a, 6);
    for (int32_t i = 0; i < early; i++) {
        load_x<CL>(map, x.kk, 0, a.x_rows, smem + i * R::STAGE + R::W, smem_u32(&tail->full[i]),
                   half, keep);
        walk_next<WAY>(x, a, half);
    }
    int32_t s = 0;
    uint32_t parity = 0;
    for (int32_t i = early; i < n_tiles; i++) {
        const uint32_t full = smem_u32(&tail->full[s]);
        bar_wait(smem_u32(&tail->empty[s]), parity);
        load_weights<WAY>(v, gated, smem + s * R::STAGE, full, x_bytes, stream_once);
        load_x<CL>(map, v.kk, 0, a.x_rows, smem + s * R::STAGE + R::W, full, half, keep);
        walk_next<WAY>(v, a, half);
        if (++s == a.n_stages) {
            s = 0;
            parity ^= 1;
        }
    }
}

/* ---------------------------------------------------------------- the consumers */

template <int N, int CL> static __device__ __forceinline__ void release(uint64_t *empty, int half)
{
    const int lane = threadIdx.x & 31;
    if (lane == 0)
        bar_arrive(smem_u32(empty));
    if (CL > 1 && lane == 1)
        bar_arrive_at(smem_u32(empty), half ^ 1);
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

/* Three warpgroups leave too few registers for the widest instruction: two of half its width. */
template <int N, enum way WAY>
static __device__ __forceinline__ void multiply(float (&acc)[N / 2], uint64_t w, uint64_t x,
                                                int keep)
{
    if constexpr (N == 256 && WAY == TALL) {
        sv_wgmma<128>(*(float(*)[64]) & acc[0], w, x, keep);
        sv_wgmma<128>(*(float(*)[64]) & acc[64], w, x + 128 * X_ROW_BYTES / 16, keep);
    } else {
        sv_wgmma<N>(acc, w, x, keep);
    }
}

/* Sums n tiles into acc. last: the next tiles never come, and before the last of these is done both
 * blocks of the pair are told that this warp has done with all stages but that one's. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_tiles(float (&acc)[N / 2], struct place &at, int32_t n, bool present, bool last,
          const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int wg, int half)
{
    constexpr int CL = sharing_x(WAY);
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
        }
        if (WAY == PAIRED && last && i == n - 1 && (threadIdx.x & 31) < 2)
            bar_arrive_at(smem_u32(&tail->ready), threadIdx.x & 31);
        if (before >= 0)
            release<N, CL>(&tail->empty[before], half);
        before = at.s;
        if (++at.s == a.n_stages) {
            at.s = 0;
            at.parity ^= 1;
        }
    }
    sv_wgmma_wait<0>();
    settle<N>(acc);
    if (before >= 0)
        release<N, CL>(&tail->empty[before], half);
}

#include "backend/cuda/gemm_dense.cuh"

/* Weight rows that a group computes of a block. */
struct strip {
    int32_t band; /* in its part */
    bool present;
};

template <enum way WAY, bool GATED>
static __device__ __forceinline__ struct strip strip_of(const struct sv_gemm_args &a, int32_t block,
                                                        int half, int wg)
{
    const struct sv_gemm_item &it = a.part[GATED ? 0 : sv_gemm_part_of(a, block)];
    struct strip s;
    if (WAY == TALL)
        s.band = GATED ? block * 3 / 2 : (block - it.block0) * 3 + wg;
    else
        s.band = GATED ? block * 2 + half : (block - it.block0) * 4 + half * 2 + wg;
    s.present = s.band < it.n_bands;
    return s;
}

template <enum way WAY, bool GATED>
static __device__ __forceinline__ struct spot out_spot(const struct sv_gemm_args &a, int32_t block,
                                                       int32_t band, struct tail *tail)
{
    const int warp = threadIdx.x / 32;
    if (GATED) {
        constexpr int PAIRS = groups_of(WAY) * 2;
        const int32_t row0 = WAY == TALL ? block * 96 : band * SV_TILE;
        return spot_gated(a, row0 + warp % PAIRS * 16, warp >= PAIRS, warp % PAIRS, tail->patch[0],
                          PAIRS);
    }
    return spot_of(a, block, band, tail->patch[warp]);
}

template <enum way WAY, bool GATED>
static __device__ __forceinline__ struct run run_of(const struct sv_gemm_args &a, int32_t block,
                                                    const struct strip &own, int32_t k0, bool last)
{
    constexpr int PAIRS = groups_of(WAY) * 2;
    const int warp = threadIdx.x / 32;
    const struct sv_gemm_item &it =
        a.part[GATED ? (int)(warp >= PAIRS) : sv_gemm_part_of(a, block)];
    int32_t row0 = own.band * SV_TILE + warp % 4 * 16;
    if (GATED)
        row0 = (WAY == TALL ? block * 96 : own.band * SV_TILE) + warp % PAIRS * 16;
    struct run r;
    r.k0 = k0;
    r.before = -1;
    r.present = own.present;
    r.last = last;
    r.own = (uint32_t)warp * SV_DENSE_STRIP_BYTES;
    r.place = (uint32_t)(row0 % SV_TILE) * 32;
    r.e = {};
    r.e.next = -1;
    if (own.present)
        r.e = expansion_of(it, row0, a.split.n_k, k0);
    return r;
}

template <int N, enum way WAY, bool GATED>
static __device__ __forceinline__ void consume(const struct sv_gemm_args &a, uint32_t smem,
                                               struct tail *tail, int32_t unit, int32_t t0,
                                               int32_t t1, int half)
{
    const int wg = threadIdx.x / 128, band_in = half * 2 + wg;
    struct place at = {0, 0};
    constexpr int N_WARPS = consumers_of(WAY) / 32;
    int32_t shared0 = -1, shared1 = -1; /* blocks whose pieces wait to be added up */
    if (WAY == PAIRED)
        cluster_wait();
    bool waited = !DENSE;
    if (!DENSE) {
        sv_pdl_wait();
        if (a.mode == SV_GEMM_ARGMAX)
            best_clear(a, N_WARPS);
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
            pair_expect<N>(a, blockIdx.x & 1, smem_u32(&tail->got[threadIdx.x / 32]), own.present);
        if constexpr (DENSE) {
            struct run r = run_of<WAY, GATED>(a, block, own, k0, left == 0);
            int32_t done = 0;
            if (!waited) {
                waited = true;
                done = n_early<N, WAY>(a, t, t1);
                sum_early<N, WAY>(acc, at, done, r, a, smem, tail, half);
                if (a.mode == SV_GEMM_ARGMAX)
                    best_clear(a, N_WARPS);
            }
            sum_dense<N, WAY>(acc, at, done, n, r, a, smem, tail, half);
        } else {
            sum_tiles<N, WAY>(acc, at, n, own.present, left == 0, a, smem, tail, wg, half);
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
                    pair_exchange<N, 4, GATED>(
                        acc, a, side, unit / 2 % n_pairs, n_pairs, unit, block, band_in,
                        out_spot<WAY, GATED>(a, block, own.band, tail), N_WARPS);
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
        put_all<N, true, GATED>(acc, a, out_spot<WAY, GATED>(a, block, own.band, tail), 0, N_WARPS);
    }
    if constexpr (WAY == ALONE) {
        SV_MARK(a, 3);
        /* Only now, at the end of the unit: the other pieces are not there any earlier. */
#pragma unroll 1
        for (int32_t block = shared0; block >= 0; block = block == shared1 ? -1 : shared1) {
            const int32_t band = strip_of<WAY, GATED>(a, block, half, wg).band;
            take_pieces<N, 4, true, GATED>(a, unit, block, band_in,
                                           out_spot<WAY, GATED>(a, block, band, tail), N_WARPS);
        }
    }
}

/* ---------------------------------------------------------------- whole products: many rows */

/* Here a cluster computes whole blocks of 256 weight rows by N rows of x, one after the other, and
 * cuts each sum where the split cuts it: registers hold the pieces so far beside the present one,
 * if N is not too wide for that. */
static SV_HD constexpr bool folds(int n)
{
    return n <= 192;
}

enum {
    GROUP = 8
}; /* N-row blocks of x that share a walk over the weights: both then come from L2 */

struct item {
    int32_t block, row; /* of weights; first row of x */
};

static __device__ __forceinline__ struct item item_of(const struct sv_gemm_args &a, int32_t i,
                                                      int n)
{
    const int32_t n_x = (a.n_rows + n - 1) / n, per_group = GROUP * a.split.n_blocks,
                  group = i / per_group;
    const int32_t wide = min((int32_t)GROUP, n_x - group * GROUP), in_group = i - group * per_group;
    const struct item it = {in_group / wide, (group * GROUP + in_group % wide) * n};
    return it;
}

template <int N>
static __device__ __forceinline__ void produce_whole(const CUtensorMap *map,
                                                     const struct sv_gemm_args &a, uint32_t smem,
                                                     struct tail *tail, int32_t n_items, int half)
{
    constexpr int CL = sharing_x(WHOLE);
    typedef ring<N, WHOLE> R;
    uint64_t normal;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    struct walk v;
    v.band_bytes = (size_t)a.split.n_k * W_BYTES;
    int32_t s = 0, left = a.n_stages;
    uint32_t parity = 1;
    sv_pdl_wait();
    for (int32_t i = blockIdx.x / 2; i < n_items; i += gridDim.x / 2) {
        const struct item it = item_of(a, i, N);
        v.t = it.block * a.split.n_k;
        walk_enter<WHOLE>(v, a, half);
        for (int32_t kk = 0; kk < a.split.n_k; kk++, v.w += SV_TILE_BYTES) {
            const uint32_t full = smem_u32(&tail->full[s]);
            if (left > 0)
                left--; /* the ring's first round finds it empty */
            else
                bar_wait(smem_u32(&tail->empty[s]), parity);
            load_weights<WHOLE>(v, a.mode == SV_GEMM_GATED, smem + s * R::STAGE, full,
                                N * X_ROW_BYTES, normal);
            load_x<CL>(map, kk, it.row, N / CL, smem + s * R::STAGE + R::W, full, half, normal);
            if (++s == a.n_stages) {
                s = 0;
                parity ^= 1;
            }
        }
    }
    sv_pdl_launch();
}

/* The pieces so far and this one. */
template <int N>
static __device__ __forceinline__ void fold_piece(float (&acc)[N / 2], float (&total)[N / 2],
                                                  bool first)
{
#pragma unroll
    for (int e = 0; e < N / 2; e++) {
        acc[e] = first ? acc[e] : total[e] + acc[e];
        total[e] = acc[e];
    }
}

template <int N, bool GATED>
static __device__ __forceinline__ void consume_whole(const struct sv_gemm_args &a, uint32_t smem,
                                                     struct tail *tail, int32_t n_items, int half)
{
    const int wg = threadIdx.x / 128;
    struct place at = {0, 0};
    sv_pdl_wait();
#pragma unroll 1
    for (int32_t i = blockIdx.x / 2; i < n_items; i += gridDim.x / 2) {
        const struct item it = item_of(a, i, N);
        const struct strip own = strip_of<WHOLE, GATED>(a, it.block, half, wg);
        const int32_t t0 = it.block * a.split.n_k, t1 = t0 + a.split.n_k;
        float acc[N / 2];
        if constexpr (folds(N)) {
            float total[N / 2];
#pragma unroll 1
            for (int32_t t = t0; t < t1;) {
                const int32_t end =
                    min(t1, sv_split_start(&a.split, sv_split_unit(&a.split, t) + 1));
#pragma unroll
                for (int e = 0; e < N / 2; e++)
                    acc[e] = 0.0f;
                sum_tiles<N, WHOLE>(acc, at, end - t, own.present, false, a, smem, tail, wg, half);
                fold_piece<N>(acc, total, t == t0);
                t = end;
            }
        } else {
#pragma unroll
            for (int e = 0; e < N / 2; e++)
                acc[e] = 0.0f;
            sum_tiles<N, WHOLE>(acc, at, t1 - t0, own.present, false, a, smem, tail, wg, half);
        }
        if (own.present)
            put_all<N, true, GATED>(acc, a, out_spot<WHOLE, GATED>(a, it.block, own.band, tail),
                                    it.row, consumers_of(WHOLE) / 32);
    }
}

/* ---------------------------------------------------------------- kernels */

/* Wide tiles need more registers than an even share, and so do tiles expanded early: the producer
 * has a warpgroup of its own and gives its registers to the consumers. */
static SV_HD constexpr bool moves_registers(int n)
{
    return DENSE || n > 128;
}

static SV_HD constexpr int threads_of(int n, enum way way)
{
    return consumers_of(way) + (moves_registers(n) ? 128 : 32);
}

template <int N, enum way WAY, bool GATED>
static __global__ void __launch_bounds__(threads_of(N, WAY), 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map,
                const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    constexpr int CL = sharing_x(WAY), CONSUMERS = consumers_of(WAY);
    const uint32_t smem = smem_u32(smem_bytes);
    struct tail *tail = (struct tail *)(smem_bytes + (size_t)a.n_stages * ring<N, WAY>::STAGE);
    /* Two blocks next to one another: the halves of a unit, or the same half of two units, or
     * units. */
    const int32_t next = blockIdx.x & 1, pair = blockIdx.x / 2;
    const int half = WAY == TALL ? 0 : WAY == PAIRED ? pair & 1 : next;
    const int32_t unit = WAY == TALL     ? (int32_t)blockIdx.x
                         : WAY == PAIRED ? pair / 2 * 2 + next
                                         : pair,
                  n_items = WAY == WHOLE ? (a.n_rows + N - 1) / N * a.split.n_blocks : 0;
    const int32_t t0 = sv_split_start(&a.split, unit), t1 = sv_split_start(&a.split, unit + 1);
    SV_MARK(a, 0);
    if (WAY != WHOLE && WAY != PAIRED && unit >= a.split.n_units) {
        sv_pdl_launch();
        sv_pdl_wait();
        return;
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.n_stages; i++) {
            bar_init(smem_u32(&tail->full[i]), 1);
            bar_init(smem_u32(&tail->empty[i]), CONSUMERS / 32 * CL);
        }
        if (WAY == PAIRED) {
            bar_init(smem_u32(&tail->ready), CONSUMERS / 32 * 2);
            for (int i = 0; i < CONSUMERS / 32; i++)
                bar_init(smem_u32(&tail->got[i]), 1);
        }
        for (int i = 0; DENSE && i < MAX_EARLY; i++)
            bar_init(smem_u32(&tail->early[i]), 1);
        bar_made();
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        if (smem & 1023)
            __trap(); /* swizzled tiles must lie on 1024 */
    }
    if (WAY == WHOLE)
        cluster_sync();
    else
        __syncthreads();
    if (WAY == PAIRED)
        cluster_arrive(); /* waited for where the other block is first needed */
    if (threadIdx.x >= CONSUMERS) {
        if (moves_registers(N))
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(WAY == TALL ? 32 : 40));
        if (threadIdx.x == CONSUMERS) {
            if (WAY == WHOLE)
                produce_whole<N>(&map, a, smem, tail, n_items, half);
            else
                produce<N, WAY>(&map, a, smem, tail, t0, t1, half);
        }
        __syncwarp();
        if (WAY == PAIRED)
            cluster_wait();
    } else {
        if (moves_registers(N))
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(WAY == TALL ? 160 : 232));
        if (WAY == WHOLE)
            consume_whole<N, GATED>(a, smem, tail, n_items, half);
        else
            consume<N, WAY, GATED>(a, smem, tail, unit, t0, t1, half);
    }
    SV_MARK(a, 5);
    if (WAY == WHOLE)
        cluster_sync(); /* the other block may still write here */
}

/* ---------------------------------------------------------------- host */

typedef void gemm_fn(const CUtensorMap, const struct sv_gemm_args);

struct width {
    int n, stages;
    int tall_stages;
    gemm_fn *fn[3][2]; /* by way; plain and gated */
};

/* stages: a multiprocessor for each thread block. Two of different launches on one would let the
 * next fill its ring sooner, but now and then two of the same launch meet there and all wait for
 * them. */
#define WIDTH(N, STAGES, TALL_STAGES)                                                              \
    {                                                                                              \
        N, STAGES, TALL_STAGES,                                                                    \
        {                                                                                          \
            {gemm_kernel<N, ALONE, false>, gemm_kernel<N, ALONE, true>},                           \
                {gemm_kernel<N, PAIRED, false>, gemm_kernel<N, PAIRED, true>},                     \
            {                                                                                      \
                gemm_kernel<N, TALL, false>, gemm_kernel<N, TALL, true>                            \
            }                                                                                      \
        }                                                                                          \
    }
#if SV_GEMM_DENSE
static const struct width widths[] = {
    WIDTH(8, 9, 9), WIDTH(16, 9, 9), WIDTH(32, 8, 8), WIDTH(64, 7, 7), WIDTH(96, 6, 6),
};
#else
static const struct width widths[] = {
    WIDTH(8, 10, 8), WIDTH(16, 10, 8), WIDTH(32, 8, 7),  WIDTH(64, 8, 6),
    WIDTH(96, 7, 5), WIDTH(128, 6, 5), WIDTH(192, 5, 4), WIDTH(256, 4, 3),
};

/* Clusters of two: there each gets half of x's tiles for both. The second for sums that are not
 * cut. */
static const struct width wholes[] = {
    {192, 5, 0, {{gemm_kernel<192, WHOLE, false>, gemm_kernel<192, WHOLE, true>}}},
    {256, 4, 0, {{gemm_kernel<256, WHOLE, false>, gemm_kernel<256, WHOLE, true>}}},
};
enum { N_WHOLES = sizeof wholes / sizeof *wholes };
#endif
enum { N_WIDTHS = sizeof widths / sizeof *widths, DENSE_ROWS = 96 };

static size_t smem_of(int n, enum way way, int stages)
{
    const int w = (groups_of(way) * W_BYTES + 1023) / 1024 * 1024;
    return (size_t)stages * (size_t)(w + n * X_ROW_BYTES) + sizeof(struct tail);
}

static int let_shared(const struct width *w, int n, struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 6 * n && !rc; i++) {
        const void *fn = (const void *)w[i / 6].fn[i / 2 % 3][i % 2];
        if (fn)
            rc = sv_cuda_try(
                cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MAX), err,
                "shared memory of a matrix product");
    }
    return rc;
}

#if !SV_GEMM_DENSE
int sv_gemm_sm90_open(struct sv_cuda *cu, struct sv_err *err)
{
    cudaDriverEntryPointQueryResult found;
    int rc =
        sv_cuda_try(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &cu->gemm->encode,
                                                     12000, cudaEnableDefault, &found),
                    err, "the driver's tensor maps");
    if (!rc)
        rc = let_shared(widths, N_WIDTHS, err);
    if (!rc)
        rc = let_shared(wholes, N_WHOLES, err);
    /* Adding up waits for the whole grid, so all of it must fit at once. */
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[1] = {};
    int clusters = 0;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = 2;
    attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)cu->n_sms / 2 * 2);
    config.blockDim = dim3((unsigned)threads_of(wholes[0].n, WHOLE));
    config.dynamicSmemBytes = SMEM_MAX;
    config.attrs = attr;
    config.numAttrs = 1;
    if (!rc)
        rc = sv_cuda_try(
            cudaOccupancyMaxActiveClusters(&clusters, (const void *)wholes[0].fn[0][0], &config),
            err, "room for a matrix product");
    if (!rc && clusters < 1)
        rc = sv_fail(err, SV_EDEVICE, -1, "matrix products: no pair of multiprocessors is free");
    cu->gemm->sm90_units = clusters < cu->n_sms / 2 ? clusters : cu->n_sms / 2;
    return rc;
}

bool sv_gemm_encode_x(struct sv_cuda *cu, void *out, const void *x, int64_t ldx, int32_t k,
                      int32_t n_rows, int box_rows)
{
    CUtensorMap *map = (CUtensorMap *)out;
    const cuuint64_t dims[2] = {(cuuint64_t)k, (cuuint64_t)n_rows};
    const cuuint64_t strides[1] = {(cuuint64_t)ldx * 2};
    const cuuint32_t box[2] = {SV_TILE, (cuuint32_t)box_rows}, step[2] = {1, 1};
    PFN_cuTensorMapEncodeTiled_v12000 encode = (PFN_cuTensorMapEncodeTiled_v12000)cu->gemm->encode;
    CUresult rc =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, (void *)(uintptr_t)x, dims, strides, box,
               step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ||
           sv_cuda_check(cu, cudaErrorInvalidValue, "tensor map of a matrix product's input");
}

#endif

static void launch(struct sv_cuda *cu, gemm_fn *fn, int n, enum way way, int32_t n_blocks,
                   const void *x, int64_t ldx, int32_t k, struct sv_gemm_args *a)
{
    CUtensorMap map;
    /* A failed encode is latched; only a success launches. */
    if (!sv_gemm_encode_x(cu, &map, x, ldx, k, a->n_rows, a->x_rows))
        return;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[2] = {};
    config.gridDim = dim3((unsigned)n_blocks);
    config.blockDim = dim3((unsigned)threads_of(n, way));
    config.dynamicSmemBytes = smem_of(n, way, a->n_stages);
    config.stream = cu->stream;
    config.attrs = attr;
    if (way == PAIRED || way == WHOLE) {
        attr[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[config.numAttrs].val.clusterDim.x = 2;
        attr[config.numAttrs].val.clusterDim.y = 1;
        attr[config.numAttrs++].val.clusterDim.z = 1;
    }
#ifdef SV_GEMM_TRACE
    a->trace = cu->gemm->trace + (size_t)cu->gemm->n_traced++ * SV_GEMM_TRACED * SV_GEMM_MARKS;
#endif
    if (cu->pdl) {
        attr[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    sv_cuda_check(cu, cudaLaunchKernelEx(&config, fn, map, *a), "a matrix product");
}

/* A launch for up to 256 rows; false where no width is wide enough. */
static bool run(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, struct sv_gemm_args *a)
{
    const struct sv_cuda_gemm_state *g = cu->gemm;
    const int want = a->n_rows > g->tune_n ? a->n_rows : g->tune_n;
    int i = 0;
    while (i + 1 < N_WIDTHS && widths[i].n < want)
        i++;
    const struct width *w = &widths[i];
    if (w->n < want)
        return false;
    a->n_sharers = a->tall ? 0 : sv_split_paired(&a->split);
    const enum way way = a->tall ? TALL : a->n_sharers && g->tune_pair >= 0 ? PAIRED : ALONE;
    a->n_stages = g->tune_stages ? g->tune_stages : way == TALL ? w->tall_stages : w->stages;
    while (a->n_stages > MAX_STAGES || smem_of(w->n, way, a->n_stages) > SMEM_MAX)
        a->n_stages--;
    /* Rows that are not there take the copy longer than rows that are. */
    a->x_rows = (a->n_rows + 7) / 8 * 8;
    int32_t n_blocks = 2 * a->split.n_units;
    if (way == ALONE)
        n_blocks = 2 * sv_split_grid(&a->split, g->sm90_units);
    if (way == TALL)
        n_blocks = sv_split_grid(&a->split, cu->n_sms);
    launch(cu, w->fn[way][a->mode == SV_GEMM_GATED], w->n, way, n_blocks, x, ldx, k, a);
    return true;
}

#if SV_GEMM_DENSE

int sv_gemm_dense_open(struct sv_cuda *cu, struct sv_err *err)
{
    return let_shared(widths, N_WIDTHS, err);
}

bool sv_gemm_dense(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                   struct sv_gemm_args *a)
{
    const struct sv_cuda_gemm_state *g = cu->gemm;
    if (a->n_rows > (g->tune_dense ? g->tune_dense : (int32_t)DENSE_ROWS))
        return false;
    for (int32_t p = 0; p < a->n_parts; p++)
        if (!a->part[p].dense)
            return false;
    a->n_early = g->tune_early > 0 ? g->tune_early : g->tune_early < 0 ? 0 : (int32_t)MAX_EARLY;
    return run(cu, x, ldx, k, a);
}

#else

void sv_gemm_sm90(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, struct sv_gemm_args *a)
{
    SV_REQUIRE(run(cu, x, ldx, k, a));
}

/* What they take, in tiles times rows of x: a launch in passes and its adding up cost about 14
 * tiles of 256 rows more. Only speed hangs on it. */
bool sv_gemm_sm90_whole(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                        struct sv_gemm_args *a)
{
    const int32_t pairs = cu->gemm->sm90_units, tune = cu->gemm->tune_whole;
    if (a->n_rows <= SV_GEMM_PASS || tune < 0)
        return false;
    struct sv_gemm_args all = *a;
    const struct sv_split *s = &all.split;
    const int64_t unit_tiles = (int64_t)s->n_blocks * s->n_k / s->n_units * (a->tall ? 3 : 2) / 2;
    if (a->tall) {
        /* Other blocks, whose sums are not cut either. */
        sv_gemm_lay_blocks(&all, SV_SM90_BLOCK);
        all.split.n_units = all.split.n_blocks;
    }
    const int64_t n_passes = (a->n_rows + SV_GEMM_PASS - 1) / SV_GEMM_PASS;
    const int64_t passes = n_passes * (unit_tiles + 14) * SV_GEMM_PASS;
    const struct width *best = NULL;
    int64_t least = tune == 0 ? passes : INT64_MAX;
    for (int i = 0; i < N_WHOLES; i++) {
        const struct width *w = &wholes[i];
        const int64_t items = (int64_t)((a->n_rows + w->n - 1) / w->n) * s->n_blocks;
        const int64_t cost = ((items + pairs - 1) / pairs * s->n_k + 6) * w->n;
        if ((!folds(w->n) && !a->tall) || cost > least || (tune > 1 && tune != w->n))
            continue;
        least = cost;
        best = w;
    }
    if (!best)
        return false;
    const int64_t items = (int64_t)((a->n_rows + best->n - 1) / best->n) * s->n_blocks;
    all.n_stages = best->stages;
    all.x_rows = best->n / 2;
    launch(cu, best->fn[0][a->mode == SV_GEMM_GATED], best->n, WHOLE,
           2 * (items < pairs ? (int32_t)items : pairs), x, ldx, k, &all);
    return true;
}

#endif
