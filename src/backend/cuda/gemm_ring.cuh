/*
 * gemm_ring.cuh - the ring of a thread block's tiles in shared memory: its barriers and copies, and
 * the producer that walks over a unit's tiles and fills it.
 *
 * Included in the middle of gemm_sm90.cu, before gemm_units.cuh and gemm_whole.cuh, which consume
 * it. Must not: touch a sum.
 */
#ifndef SV_CUDA_GEMM_RING_CUH
#define SV_CUDA_GEMM_RING_CUH

#define SV_GEMM_GROUPS (SV_GEMM_FP8 == 2)
static constexpr bool BYTES = SV_GEMM_FP8, GROUPS = SV_GEMM_GROUPS;

/* ---------------------------------------------------------------- barriers and copies */

/* The same barrier in block `rank` of the cluster. Nothing is handed over but the end of reads that
 * are already done, so no release at cluster scope: that is a fence of about a microsecond. */
static __device__ __forceinline__ void bar_arrive_at(uint32_t bar, uint32_t rank)
{
    sv_jitter();
    asm volatile("{\n.reg .b32 far;\nmapa.shared::cluster.u32 far, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [far];\n}" ::"r"(bar),
                 "r"(rank)
                 : "memory");
}

template <int CL>
static __device__ __forceinline__ void copy_x(uint32_t dst, const CUtensorMap *map, int32_t k,
                                              int32_t row, uint32_t bar, uint64_t policy)
{
    sv_jitter();
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
    sv_jitter();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

static __device__ __forceinline__ void cluster_wait(void)
{
    sv_jitter();
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    sv_jitter();
}

static __device__ __forceinline__ void cluster_sync(void)
{
    cluster_arrive();
    cluster_wait();
}

/* How a launch goes about it: thread blocks by themselves, units in clusters of two that exchange
 * pieces, thread blocks of three warpgroups that take whole blocks of 192 weight rows, clusters of
 * two that share x and compute whole blocks, thread blocks of three warpgroups that compute whole
 * blocks of 192 weight rows one after the other, or clusters of two that take half of k each, with
 * two or three warpgroups (gemm_halves.cuh). */
enum way { ALONE, PAIRED, TALL, WHOLE, TALL_WHOLE, HALVES, TALL_HALVES };

/* Bands of 64 weight rows, and warpgroups, of a thread block. */
static SV_HD constexpr int groups_of(enum way way)
{
    return way == TALL || way == TALL_WHOLE || way == TALL_HALVES ? 3 : 2;
}

/* Whether a thread block takes blocks of 192 weight rows. */
static SV_HD constexpr bool takes_tall(enum way way)
{
    return way == TALL || way == TALL_WHOLE;
}

/* Whether it takes one block of weights after the other, for any number of rows of x. */
static SV_HD constexpr bool is_whole(enum way way)
{
    return way == WHOLE || way == TALL_WHOLE;
}

static SV_HD constexpr int consumers_of(enum way way)
{
    return groups_of(way) * 128;
}

/* Whether the two thread blocks of a cluster send each other pieces. */
static SV_HD constexpr bool exchanges(enum way way)
{
    return way == PAIRED || way == HALVES || way == TALL_HALVES;
}

static SV_HD constexpr int sharing_x(enum way way)
{
    return way == WHOLE ? 2 : 1;
}

/* Up to how many rows of x codes are multiplied with mma.sync (gemm_few.cuh): with more, that takes
 * longer than to expand them for wgmma. */
enum { FEW_ROWS = SV_GEMM_CODES == 4 ? 32 : 16 };

static SV_HD constexpr bool takes_few(int n)
{
    return SV_GEMM_CODES && n <= FEW_ROWS;
}

/* Tiles along k of a stage, at most: two where each warp goes its own pace, so that it meets half
 * as many barriers and the copy engine half as many copies. */
static SV_HD constexpr int tiles_of_stage(int n)
{
    return takes_few(n) ? 2 : 1;
}

/* ---------------------------------------------------------------- shared memory */

enum { X_ROW_BYTES = SV_TILE * 2, X_COLS = BYTES ? X_ROW_BYTES : SV_TILE };
/* GROUPS: scales of a tile of weights, and a row of x with its scale. */
enum { W_SCALE_BYTES = GROUPS ? SV_TILE * 4 : 0, X_LINE_BYTES = X_ROW_BYTES + (GROUPS ? 4 : 0) };

/* Where copies of one and a half tiles do not begin on 128 bytes in memory, they shall not in
 * shared memory either. */
enum { HALF_GAP = W_BYTES / 2 % 128 };

template <int N, enum way WAY>
struct ring {
    static constexpr uint32_t TILES = tiles_of_stage(N), /* a band's lie one after the other */
    W = (TILES * groups_of(WAY) * W_BYTES + 1023) / 1024 * 1024,
    X = N *X_ROW_BYTES,
    SCALES_AT = W + TILES *X, /* of weights, then of x */
    X_SCALES_AT = SCALES_AT + groups_of(WAY) * W_SCALE_BYTES,
    STAGE = (X_SCALES_AT + N * (X_LINE_BYTES - X_ROW_BYTES) + 1023) / 1024 * 1024;
    /* WCOMP: tiles that are expanded before x is there, as many as registers hold. */
    static constexpr int EARLY = takes_tall(WAY) ? (N <= 64 ? 2 : 1)
                                 : N <= 32       ? 4
                                                 : 3;
};

/* What lies behind the stages. */
struct tail {
    uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    uint64_t ready, got[12];   /* gemm_pair.cuh */
    uint64_t early[MAX_EARLY]; /* WCOMP: weights of the first tiles; full then stands for x alone */
    float x_scale[2][FP8 ? SV_GEMM_PASS : 1]; /* FP8: whole products use them by turns */
    __align__(16)
        uint8_t patch[12 * 4 * SV_PATCH_BYTES]; /* patches_of(N) for each warp, so not all of it */
};

/* A warp's, where results are turned around: four, where the ring leaves room for them. */
static SV_HD constexpr int patches_of(int n)
{
    return WCOMP || n < 32 || n == 224 || (GROUPS && n == 192) ? 2 : 4;
}

template <int N> static __device__ __forceinline__ uint8_t *patches_at(struct tail *tail, int warp)
{
    return tail->patch + warp * patches_of(N) * SV_PATCH_BYTES;
}

/* ---------------------------------------------------------------- the producer */

/* The first of a unit's tiles in the order of work. A block in which the unit ends comes first, so
 * that its piece is there before other units need it. keep: a block shared with the unit before
 * comes last, and its piece stays in registers until it is sent. */
static __device__ __forceinline__ int32_t first_tile(int32_t t0, int32_t t1, int32_t n_k, bool keep)
{
    const int32_t last = t1 - t1 % n_k, next = t0 + (n_k - t0 % n_k);
    if (keep)
        return t0 % n_k != 0 && next < t1 ? next : t0;
    return last > t0 && last < t1 ? last : t0;
}

/* Where a unit's walk over its tiles stands. A stage's weights are up to four runs of memory. */
struct walk {
    int32_t t, t0, t1, kk;
    int32_t n;             /* tiles of the stage at hand */
    int32_t n_runs, bytes; /* bytes: of all runs, a tile */
    bool odd;              /* TALL, gated: begins in the middle of a band */
    const uint8_t *w;      /* first run's tile kk */
    size_t band_bytes;
    ptrdiff_t up;               /* gated: from gate to up */
    const uint8_t *w0, *scales; /* GROUPS: where the matrix and its scales begin */
    ptrdiff_t up_scales;
};

static __device__ __forceinline__ const uint8_t *weights_of(const struct sv_gemm_item &it)
{
    return WCOMP ? it.wcomp + W_HEAD_BYTES : it.w;
}

/* Tiles of a stage whose first is t, kk in its block. */
template <int N>
static __device__ __forceinline__ int32_t stage_tiles(const struct sv_gemm_args &a, int32_t t,
                                                      int32_t t1, int32_t kk)
{
    constexpr int MOST = tiles_of_stage(N);
    return MOST == 1 ? 1 : min(MOST, min(a.split.n_k - kk, t1 - t));
}

template <int N, enum way WAY>
static __device__ __forceinline__ void walk_enter(struct walk &v, const struct sv_gemm_args &a,
                                                  int half)
{
    constexpr int G = groups_of(WAY);
    const int32_t block = v.t / a.split.n_k;
    v.kk = v.t - block * a.split.n_k;
    v.n = stage_tiles<N>(a, v.t, v.t1, v.kk);
    const bool gated = a.mode == SV_GEMM_GATED;
    const struct sv_gemm_item &it = a.part[gated ? 0 : sv_gemm_part_of(a, block)];
    int32_t band = gated ? block * 2 + half : (block - it.block0) * 4 + half * 2;
    if (takes_tall(WAY))
        band = gated ? block * 3 / 2 : (block - it.block0) * 3;
    v.n_runs = min(G, max(0, it.n_bands - band));
    v.odd = takes_tall(WAY) && gated && block % 2;
    v.w = weights_of(it) + (size_t)band * v.band_bytes + (size_t)v.kk * W_BYTES;
    v.bytes = v.n_runs * (W_BYTES + W_SCALE_BYTES);
    if (gated) {
        v.n_runs = band < it.n_bands ? (takes_tall(WAY) ? 4 : 2) : 0;
        v.bytes = v.n_runs ? G * (W_BYTES + W_SCALE_BYTES) : 0;
        v.up = weights_of(a.part[1]) - weights_of(it);
    }
    if (GROUPS) {
        v.w0 = weights_of(it);
        v.scales = (const uint8_t *)it.scale;
        v.up_scales = (const uint8_t *)a.part[1].scale - v.scales;
    }
}

template <int N, enum way WAY>
static __device__ __forceinline__ void walk_next(struct walk &v, const struct sv_gemm_args &a,
                                                 int half)
{
    v.w += v.n * W_BYTES;
    v.t += v.n;
    v.kk += v.n;
    if (v.t == v.t1) {
        v.t = v.t0;
    } else if (v.kk < a.split.n_k) {
        v.n = stage_tiles<N>(a, v.t, v.t1, v.kk);
        return;
    }
    walk_enter<N, WAY>(v, a, half);
}

/* n bytes of weights at `from`, or as far from up's beginning, into a stage at `to`. */
template <int N, enum way WAY>
static __device__ __forceinline__ void copy_weights(const struct walk &v, bool up, uint32_t stage,
                                                    uint32_t to, const uint8_t *from, uint32_t n,
                                                    uint32_t full, uint64_t policy)
{
    copy_tile(stage + to, from + (up ? v.up : 0), n, full, policy);
#if SV_GEMM_GROUPS
    copy_tile(stage + ring<N, WAY>::SCALES_AT + to / SV_FP8_LINE,
              v.scales + (from - v.w0) / SV_FP8_LINE + (up ? v.up_scales : 0), n / SV_FP8_LINE,
              full, policy);
#endif
}

/* 96 rows of gate, then of up: a band and half of one, or the other way round, of several tiles. */
template <int N, enum way WAY>
static __device__ __forceinline__ void load_tall_gated(const struct walk &v, uint32_t stage,
                                                       uint32_t full, uint64_t policy)
{
    constexpr uint32_t TILES = ring<N, WAY>::TILES, HALF = W_BYTES / 2;
    static_assert(TILES == 1 || HALF_GAP == 0, "halves begin on 128 bytes");
    if (v.n_runs == 0)
        return;
    const uint8_t *whole = v.w + (v.odd ? v.band_bytes : 0),
                  *half = v.w + (v.odd ? HALF : v.band_bytes);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t to = i * TILES * 3 * HALF;
        copy_tile(stage + to + (v.odd ? TILES * HALF : 0), whole + (i ? v.up : 0),
                  (uint32_t)v.n * W_BYTES, full, policy);
        for (int32_t j = 0; j < v.n; j++)
            copy_tile(stage + to + (v.odd ? 0 : TILES * W_BYTES) + (uint32_t)j * HALF,
                      half + j * W_BYTES + (i ? v.up : 0), HALF, full, policy);
    }
}

/* x_bytes: what will come beside each. */
template <int N, enum way WAY>
static __device__ __forceinline__ void load_weights(const struct walk &v, bool gated,
                                                    uint32_t stage, uint32_t full, uint32_t x_bytes,
                                                    uint64_t policy)
{
    constexpr uint32_t TILES = ring<N, WAY>::TILES;
    const uint32_t n = TILES == 1 ? 1 : (uint32_t)v.n;
    bar_expect(full, n * ((uint32_t)v.bytes + x_bytes));
    if (takes_tall(WAY) && gated && TILES > 1) {
        load_tall_gated<N, WAY>(v, stage, full, policy);
        return;
    }
    if (takes_tall(WAY) && gated) {
        /* 96 rows of gate, then of up: a band and half of one, or the other way round. */
        if (v.n_runs == 0)
            return;
        const uint32_t first = v.odd ? W_BYTES / 2 : W_BYTES;
        uint32_t to = v.odd ? HALF_GAP : 0;
        const uint8_t *from = v.w + (v.odd ? W_BYTES / 2 : 0);
#pragma unroll
        for (int i = 0; i < 2; i++, to += W_BYTES * 3 / 2 + HALF_GAP) {
            copy_weights<N, WAY>(v, i, stage, to, from, first, full, policy);
            copy_weights<N, WAY>(v, i, stage, to + first, v.w + v.band_bytes,
                                 W_BYTES * 3 / 2 - first, full, policy);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < groups_of(WAY); i++)
        if (i < v.n_runs)
            copy_weights<N, WAY>(v, gated && i, stage, i * TILES * W_BYTES,
                                 v.w + (gated ? 0 : i * v.band_bytes), n * W_BYTES, full, policy);
}

/* WCOMP: tiles from t on, where a unit begins, that are expanded before x is there. */
template <int N, enum way WAY>
static __device__ __forceinline__ int32_t n_early(const struct sv_gemm_args &a, int32_t t,
                                                  int32_t t1)
{
    const int32_t n = min(a.split.n_k - t % a.split.n_k, t1 - t);
    return WCOMP && !takes_few(N)
               ? min(min((int32_t)ring<N, WAY>::EARLY, a.n_early), min(n - 1, a.n_stages))
               : 0;
}

/* By one thread. Each block of a cluster fetches its share of x's rows for all of them. Shared
 * memory behind the last row is left as it is: it affects only results that are not stored. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
load_x(const CUtensorMap *map, const struct sv_gemm_args &a, int32_t kk, int32_t row,
       int32_t x_rows, uint32_t stage, uint32_t full, int rank, uint64_t policy)
{
    typedef ring<N, WAY> R;
    constexpr int CL = sharing_x(WAY);
    const int32_t off = CL > 1 ? rank * x_rows : 0;
    copy_x<CL>(stage + R::W + off * X_ROW_BYTES, map, kk * X_COLS, row + off, full, policy);
    if (GROUPS) /* all of them: they are few */
        copy_tile(stage + R::X_SCALES_AT, a.x_scale + (int64_t)kk * a.x_ld + row,
                  (uint32_t)(CL * x_rows) * 4, full, policy);
}

/* For weights, which are read once. */
static __device__ __forceinline__ uint64_t stream_policy(void)
{
    uint64_t once;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    return once;
}

/* A unit whose first tiles are on their way: where the walk goes on, how many, and where they
 * began. */
struct begun {
    struct walk v;
    int32_t n, left, t, kk; /* left: tiles that are not on their way yet */
};

/* One thread, as soon as barriers are made: asks for the weights of the unit's first tiles. */
template <int N, enum way WAY>
static __device__ __forceinline__ struct begun begin_unit(const struct sv_gemm_args &a,
                                                          uint32_t smem, struct tail *tail,
                                                          int32_t t0, int32_t t1, int half)
{
    typedef ring<N, WAY> R;
    const uint64_t once = stream_policy();
    struct begun b;
    struct walk &v = b.v;
    v.band_bytes = (size_t)a.split.n_k * W_BYTES;
    v.t0 = t0;
    v.t1 = t1;
    v.t = first_tile(t0, t1, a.split.n_k, WAY == PAIRED);
    walk_enter<N, WAY>(v, a, half);
    b.n = 0;
    b.left = t1 - t0;
    b.t = v.t;
    b.kk = v.kk;
    const uint32_t x_bytes = (uint32_t)(a.x_rows * X_LINE_BYTES);
    const int32_t apart = n_early<N, WAY>(a, v.t, t1);
#pragma unroll 1
    for (int32_t i = 0; i < a.n_stages && b.left > 0; i++) {
        const bool together = i >= apart;
        load_weights<N, WAY>(v, a.mode == SV_GEMM_GATED, smem + i * R::STAGE,
                             smem_u32(together ? &tail->full[i] : &tail->early[i]),
                             together ? x_bytes : 0, once);
        if (!together)
            bar_expect(smem_u32(&tail->full[i]), x_bytes);
        b.n++;
        b.left -= v.n;
        walk_next<N, WAY>(v, a, half);
    }
    return b;
}

/* The same thread: the rest. */
template <int N, enum way WAY>
static __device__ __forceinline__ void produce(const CUtensorMap *map, const struct sv_gemm_args &a,
                                               uint32_t smem, struct tail *tail, struct begun &b,
                                               int half)
{
    typedef ring<N, WAY> R;
    struct walk &v = b.v;
    const uint32_t x_bytes = (uint32_t)(a.x_rows * X_LINE_BYTES);
    uint64_t keep;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    sv_pdl_launch();
    sv_pdl_wait();
    SV_MARK(a, 6);
#pragma unroll 1
    for (int32_t i = 0; i < b.n; i++) {
        const int32_t n = stage_tiles<N>(a, b.t, v.t1, b.kk);
        for (int32_t j = 0; j < n; j++)
            load_x<N, WAY>(map, a, b.kk + j, 0, a.x_rows, smem + i * R::STAGE + j * R::X,
                           smem_u32(&tail->full[i]), half, keep);
        b.t += n;
        b.kk += n;
        if (b.t == v.t1)
            b.t = v.t0, b.kk = v.t0 % a.split.n_k;
        else if (b.kk == a.split.n_k)
            b.kk = 0;
    }
    const uint64_t once = stream_policy();
    int32_t s = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int32_t left = b.left; left > 0;) {
        const uint32_t full = smem_u32(&tail->full[s]);
        bar_wait(smem_u32(&tail->empty[s]), parity);
        load_weights<N, WAY>(v, a.mode == SV_GEMM_GATED, smem + s * R::STAGE, full, x_bytes, once);
        for (int32_t j = 0; j < v.n; j++)
            load_x<N, WAY>(map, a, v.kk + j, 0, a.x_rows, smem + s * R::STAGE + j * R::X, full,
                           half, keep);
        left -= v.n;
        walk_next<N, WAY>(v, a, half);
        if (++s == a.n_stages) {
            s = 0;
            parity ^= 1;
        }
    }
}

#endif
