/*
 * gemm_portable.cu - matrix products with mma.sync, for every card from sm_80 on: 1 to 128 rows of
 * x in a launch.
 *
 * Called by gemm.cu. Weight rows are the 16-row operand, rows of x the 8-column one, so few rows of
 * x waste little. A block of the split is one band of 64 weight rows; a thread block of four warps
 * walks its unit's tiles through a ring filled by cp.async, two thread blocks a multiprocessor. Few
 * rows take dense weights (dense.cuh), which each warp expands in the registers that mma.sync takes
 * them from: the same bits. What limits few rows is how long a warp is busy with a tile, so the
 * usual case is straight code: whole rounds of tiles, with nothing decided in between.
 * Must not: use anything newer than sm_80; let n_rows decide the order of a sum: it only picks the
 * width N, which does not change an element's bits.
 */
#include "backend/cuda/gemm_expand.cuh"
#include "backend/cuda/gemm_out.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, BLOCKS_PER_SM = 2, MAX_ROUNDS = 8 };

/* Few rows of x: pieces of a block say by themselves that they are there, and the last unit that shares it adds them
 * up. It only waits for units before its own, which run before it on any device. */
static SV_HD constexpr bool posts(int n)
{
    return n <= SV_PORTABLE_POSTED;
}

static __device__ __forceinline__ void copy16(uint32_t dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

/* Zeros where there is nothing. */
static __device__ __forceinline__ void copy16_if(uint32_t dst, const void *src, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most n of this thread's groups are under way, n below MAX_ROUNDS. */
static __device__ __forceinline__ void copy_wait(int n)
{
    switch (n) { /* the instruction takes a constant */
    case 0:
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        break;
    case 1:
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        break;
    case 2:
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        break;
    case 3:
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        break;
    case 4:
        asm volatile("cp.async.wait_group 4;" ::: "memory");
        break;
    case 5:
        asm volatile("cp.async.wait_group 5;" ::: "memory");
        break;
    case 6:
        asm volatile("cp.async.wait_group 6;" ::: "memory");
        break;
    default:
        asm volatile("cp.async.wait_group 7;" ::: "memory");
        break;
    }
}

static __device__ __forceinline__ void store16(uint32_t dst, uint4 v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void load_matrices2(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(at)
                 : "memory");
}

static __device__ __forceinline__ void mma(float *d, const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Byte of (row, 16-byte chunk) in a tile of 128-byte rows. */
static __device__ __forceinline__ uint32_t swizzled(int row, int chunk)
{
    return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/* Tiles as packed (pack.cuh) or dense (dense.cuh): in both, 16 rows for each warp lie together. A stage of the ring is a
 * tile and its columns of x, a round R stages: what one barrier stands for. */
template <int N, int R, bool DENSE> struct ring {
    enum {
        TILE = DENSE ? (int)SV_DENSE_TILE_BYTES : (int)SV_TILE_BYTES,
        STRIP = TILE / WARPS,
        HEAD = DENSE ? (int)SV_DENSE_HEAD_BYTES : 0,
        STAGE = TILE + N * 128,
        ROUND = R * STAGE
    };
};

/* The part and the strip of its rows that this warp has of a block. */
struct strip {
    int part;
    int32_t row0;
};

template <bool GATED>
static __device__ __forceinline__ struct strip strip_of(const struct sv_gemm_args &a, int32_t block)
{
    const int warp = threadIdx.x / 32;
    struct strip s;
    s.part = GATED ? warp >= 2 : sv_gemm_part_of(a, block);
    s.row0 = GATED ? block * (SV_TILE / 2) + (warp & 1) * 16
                   : (block - a.part[s.part].block0) * SV_TILE + warp * 16;
    return s;
}

/* Where a unit's loads stand: at a tile of a block, and w at this thread's place in the tile's strip. Bands of a part
 * follow one another, half tiles of gated products do not. */
struct walk {
    int32_t block, kk;
    int32_t run; /* tiles until w jumps */
    const uint8_t *w;
};

template <class RING, bool GATED, bool DENSE>
static __device__ __forceinline__ void walk_enter(struct walk &v, const struct sv_gemm_args &a)
{
    const struct strip s = strip_of<GATED>(a, v.block);
    const struct sv_gemm_item &it = a.part[s.part];
    v.w = (DENSE ? it.dense : it.w) + RING::HEAD +
          ((size_t)(s.row0 / SV_TILE) * (size_t)a.split.n_k + (size_t)v.kk) * RING::TILE +
          s.row0 % SV_TILE / 16 * RING::STRIP + (threadIdx.x & 31) * 16;
    v.run = (GATED ? 1 : it.block0 + it.n_bands - v.block) * a.split.n_k - v.kk;
}

/* n tiles on, at most v.run. */
template <class RING, bool GATED, bool DENSE>
static __device__ __forceinline__ void walk_on(struct walk &v, const struct sv_gemm_args &a, int32_t n)
{
    v.w += n * RING::TILE;
    v.run -= n;
    v.kk += n;
    while (v.kk >= a.split.n_k) {
        v.kk -= a.split.n_k;
        v.block++;
    }
    if (v.run == 0 && v.block < a.split.n_blocks)
        walk_enter<RING, GATED, DENSE>(v, a);
}

/* n tiles of weights into a round at `to`. */
template <class RING, int R, bool GATED, bool DENSE>
static __device__ __forceinline__ void load_weights(struct walk &v, const struct sv_gemm_args &a,
                                                    int32_t n, uint32_t to)
{
    /* Of a strip, copied by all lanes; what is left, and its 16-byte chunks. */
    constexpr int WHOLE = RING::STRIP / 512 * 512, LEFT = RING::STRIP - WHOLE, CHUNKS = LEFT / 16;
    const int lane = threadIdx.x & 31;
    to += threadIdx.x / 32 * RING::STRIP + lane * 16;
    if (n == R && v.run >= R) {
        const uint8_t *const w = v.w;
#pragma unroll
        for (int j = 0; j < R; j++)
#pragma unroll
            for (int i = 0; i < WHOLE; i += 512)
                copy16(to + j * RING::STAGE + i, w + j * RING::TILE + i);
        if constexpr (DENSE) /* that of all tiles at once */
            if (lane < CHUNKS * R)
                copy16(to + lane / CHUNKS * (RING::STAGE - LEFT) + WHOLE,
                       w + lane / CHUNKS * (RING::TILE - LEFT) + WHOLE);
        walk_on<RING, GATED, DENSE>(v, a, R);
        return;
    }
#pragma unroll 1
    for (int32_t j = 0; j < n; j++, to += RING::STAGE) {
#pragma unroll
        for (int i = 0; i < WHOLE; i += 512)
            copy16(to + i, v.w + i);
        if (DENSE && lane < CHUNKS)
            copy16(to + WHOLE, v.w + WHOLE);
        walk_on<RING, GATED, DENSE>(v, a, 1);
    }
}

/* x of a round whose first tile is kk. */
template <class RING, int N, int R>
static __device__ __forceinline__ void load_x(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                                              const struct sv_gemm_args &a, int32_t kk, uint32_t to)
{
    /* Rows of one tile or of two at a time; a thread's chunk of a row is always the same. */
    constexpr int AT_ONCE = N * 8 < THREADS ? THREADS / (N * 8) : 1, EACH = N * 8 / THREADS;
    const int chunk = threadIdx.x % 8, row0 = threadIdx.x / 8 % N;
    int32_t tile = kk + (AT_ONCE > 1 ? threadIdx.x / (N * 8) : 0);
    to += RING::TILE + (AT_ONCE > 1 ? threadIdx.x / (N * 8) * RING::STAGE : 0);
#pragma unroll
    for (int j = 0; j < R; j += AT_ONCE) {
        while (tile >= a.split.n_k)
            tile -= a.split.n_k;
        const int32_t col = tile * SV_TILE + chunk * 8;
#pragma unroll
        for (int e = 0; e < (EACH > 0 ? EACH : 1); e++) {
            const int row = row0 + e * (THREADS / 8);
            const bool there = row < a.n_rows && col < k;
            copy16_if(to + j * RING::STAGE + swizzled(row, chunk), there ? x + row * ldx + col : x, there);
        }
        tile += AT_ONCE;
    }
}

/* The same for the first tiles of a unit, as soon as x is there: copies of x would be counted behind those of
 * weights that are still on their way. Up to EACH chunks of 16 bytes a thread at once. */
template <int N>
static __device__ __forceinline__ void load_first_x(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                                                    const struct sv_gemm_args &a, int32_t kk,
                                                    int32_t n, uint32_t to, uint32_t stride)
{
    constexpr int EACH = N == 8 ? 8 : 12;
#pragma unroll 1
    for (int32_t i0 = threadIdx.x; i0 < n * N * 8; i0 += EACH * THREADS) {
        uint4 v[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int32_t i = i0 + e * THREADS, row = i / 8 % N;
            int32_t tile = kk + i / (N * 8);
            while (tile >= a.split.n_k)
                tile -= a.split.n_k;
            const int32_t col = tile * SV_TILE + i % 8 * 8;
            v[e] = make_uint4(0, 0, 0, 0);
            if (i < n * N * 8 && row < a.n_rows && col < k)
                v[e] = __ldcg((const uint4 *)(x + row * ldx + col));
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int32_t i = i0 + e * THREADS;
            if (i < n * N * 8)
                store16(to + i / (N * 8) * stride + swizzled(i / 8 % N, i % 8), v[e]);
        }
    }
}

/* One tile: 64 columns of k for 16 weight rows a warp. kk: which, for dense weights. */
template <class RING, int N, bool DENSE>
static __device__ __forceinline__ void sum_tile(float (&acc)[N / 2], uint32_t stage, int32_t kk,
                                                uint32_t strip, struct expansion &expansion)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t x_at = stage + RING::TILE;
    uint32_t pair[SV_DENSE_PAIRS];
    if (DENSE) {
        const uint32_t at = stage + warp * RING::STRIP;
        expand_plain(pair, at, expansion.scale);
        patch_all(pair, shared_load(at + SV_DENSE_SLOTS_AT), at, strip, (uint32_t)kk, expansion);
    }
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t w[4], x[4];
        if (DENSE) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[i] = pair[4 * step + i];
        } else {
            load_matrices(w, stage + swizzled(warp * 16 + (lane & 15), step * 2 + (lane >> 4)));
        }
#pragma unroll
        for (int j = 0; j<N / 8; j += N> 8 ? 2 : 1) {
            const uint32_t at = x_at + swizzled(j * 8 + (lane & 7) + (N > 8 ? lane >> 4 << 3 : 0),
                                                step * 2 + (lane >> 3 & 1));
            if (N > 8)
                load_matrices(x, at);
            else
                load_matrices2(x, at);
            mma(acc + 4 * j, w, x[0], x[1]);
            if (N > 8)
                mma(acc + 4 * (N > 8 ? j + 1 : j), w, x[2], x[3]);
        }
    }
}

/* A round of few rows of x in straight code: operands of one tile are made while the products of the one before are
 * under way. Only strips with patches, one in ten, make it turn aside. */
template <class RING, int N, int R, bool DENSE>
static __device__ __forceinline__ void sum_round(float (&acc)[N / 2], uint32_t round, int32_t kk,
                                                 uint32_t strip, struct expansion &expansion)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    uint32_t patch = SV_DENSE_NO_PATCH, patched = 0; /* lane i: the first one of tile i */
    if (DENSE) {
        patch = shared_load(round + lane % R * RING::STAGE + warp * RING::STRIP + SV_DENSE_SLOTS_AT);
        patched = __ballot_sync(0xffffffff, patch != SV_DENSE_NO_PATCH);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const uint32_t stage = round + i * RING::STAGE, x_at = stage + RING::TILE;
        uint32_t w[4][4], x[4][N / 4];
        if (DENSE) {
            const uint32_t at = stage + warp * RING::STRIP;
            uint32_t pair[SV_DENSE_PAIRS];
            expand_plain(pair, at, expansion.scale);
            if (patched >> i & 1)
                patch_all(pair, __shfl_sync(0xffffffff, patch, i), at, strip, (uint32_t)(kk + i), expansion);
#pragma unroll
            for (int p = 0; p < SV_DENSE_PAIRS; p++)
                w[p / 4][p % 4] = pair[p];
        }
#pragma unroll
        for (int step = 0; step < 4; step++) {
            if (!DENSE)
                load_matrices(w[step], stage + swizzled(warp * 16 + (lane & 15), step * 2 + (lane >> 4)));
            if constexpr (N == 16) {
                load_matrices(x[step], x_at + swizzled((lane & 7) + (lane >> 4 << 3),
                                                       step * 2 + (lane >> 3 & 1)));
            } else if (step % 2 == 0) {
                uint32_t both[4];
                load_matrices(both, x_at + swizzled(lane & 7, step * 2 + (lane >> 3)));
                x[step][0] = both[0], x[step][1] = both[1];
                x[step + 1][0] = both[2], x[step + 1][1] = both[3];
            }
        }
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int j = 0; j < N / 8; j++)
                mma(acc + 4 * j, w[step], x[step][2 * j], x[step][2 * j + 1]);
    }
}

template <bool GATED>
static __device__ __forceinline__ struct spot out_spot(const struct sv_gemm_args &a, int32_t block,
                                                       uint8_t *patches)
{
    const int warp = threadIdx.x / 32;
    if (GATED)
        return spot_gated(a, block * (SV_TILE / 2) + (warp & 1) * 16, warp >= 2, warp & 1, patches,
                          2);
    return spot_of(a, block, block - a.part[sv_gemm_part_of(a, block)].block0,
                   patches + warp * SV_PATCH_BYTES);
}

/* What a block's weights need. Asked for a block ahead: memory is busy. */
template <bool GATED, bool DENSE>
static __device__ __forceinline__ struct sv_dense_band look_ahead(const struct sv_gemm_args &a,
                                                                  int32_t block)
{
    if (!DENSE || block >= a.split.n_blocks)
        return {};
    const struct strip s = strip_of<GATED>(a, block);
    return band_of(a.part[s.part], s.row0, a.split.n_k);
}

/* A block's last tile has been summed up, or the unit's. POSTS: pieces are only left, to be taken at the unit's end. */
template <int N, bool GATED, bool POSTS>
static __device__ __forceinline__ void end_block(float (&acc)[N / 2], const struct sv_gemm_args &a,
                                                 uint32_t *order, uint8_t *patches, int32_t block,
                                                 bool complete)
{
    if (!complete && POSTS)
        post_piece<N>(acc, a, piece_of<N, 1>(a, blockIdx.x, block, 0));
    else if (complete || gather_pieces<N, 1>(acc, a, order, blockIdx.x, block, 0, 0))
        put_all<N, false, GATED>(acc, a, out_spot<GATED>(a, block, patches), 0, WARPS);
#pragma unroll
    for (int e = 0; e < N / 2; e++)
        acc[e] = 0.0f;
}

/* How far a unit's sums are. */
struct sums {
    int32_t kk, begun, block; /* tile of the block; the first that was summed up here */
    int32_t shared;           /* a block whose pieces are to be taken, or -1 */
    uint32_t strip;           /* of the block's band */
    struct expansion expansion;
    struct sv_dense_band ahead; /* of the next block */
};

template <bool GATED, bool DENSE>
static __device__ __forceinline__ void begin_block(struct sums &u, const struct sv_gemm_args &a)
{
    if (!DENSE)
        return;
    const struct strip s = strip_of<GATED>(a, u.block);
    u.strip = (uint32_t)(s.row0 % SV_TILE / 16);
    u.expansion = expansion_with(a.part[s.part], s.row0, a.split.n_k, u.ahead);
    u.ahead = look_ahead<GATED, DENSE>(a, u.block + 1);
}

template <int N, int R, bool GATED, bool DENSE>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    gemm_kernel(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    __shared__ __align__(16) uint8_t patches[WARPS * 2 * SV_PATCH_BYTES];
    __shared__ uint32_t order;
    typedef ring<N, R, DENSE> RING;
    constexpr bool POSTS = posts(N);
    const uint32_t smem = smem_u32(smem_bytes);
    const int32_t t0 = sv_split_start(&a.split, blockIdx.x),
                  t1 = sv_split_start(&a.split, blockIdx.x + 1), n_rounds = a.n_stages / R;
    if ((int32_t)blockIdx.x >= a.split.n_units) {
        sv_pdl_launch();
        sv_pdl_wait();
        return;
    }
    struct sums u;
    u.block = t0 / a.split.n_k;
    u.kk = u.begun = t0 - u.block * a.split.n_k;
    u.shared = -1;
    u.strip = 0;
    u.ahead = look_ahead<GATED, DENSE>(a, u.block);
    struct walk v;
    v.block = u.block;
    v.kk = u.kk;
    walk_enter<RING, GATED, DENSE>(v, a);
#pragma unroll 1
    for (int32_t r = 0; r < n_rounds; r++) {
        load_weights<RING, R, GATED, DENSE>(v, a, min(R, t1 - t0 - r * R), smem + r * RING::ROUND);
        if (POSTS)
            copy_commit();
    }
    sv_pdl_launch();
    begin_block<GATED, DENSE>(u, a);
    sv_pdl_wait();
    if (POSTS)
        load_first_x<N>(x, ldx, k, a, u.kk, min(a.n_stages, t1 - t0), smem + RING::TILE, RING::STAGE);
    for (int32_t r = 0, x_kk = u.kk; r < n_rounds && !POSTS; r++) {
        load_x<RING, N, R>(x, ldx, k, a, x_kk, smem + r * RING::ROUND);
        x_kk = (x_kk + R) % a.split.n_k;
        copy_commit();
    }
    if (a.mode == SV_GEMM_ARGMAX)
        best_clear(a, WARPS);
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0.0f;
    uint32_t round = smem, before = smem; /* this round's stages, and those of the round before */
#pragma unroll 1
    for (int32_t t = t0; t < t1; t += R) {
        copy_wait(n_rounds - (t == t0 ? 1 : 2));
        __syncthreads();
        if (t > t0) {
            const int32_t left = t1 - t - (n_rounds - 1) * R;
            if (left > 0) {
                load_x<RING, N, R>(x, ldx, k, a, v.kk, before);
                load_weights<RING, R, GATED, DENSE>(v, a, min(R, left), before);
            }
            copy_commit();
        }
        const int32_t end = min(t + R, t1);
#pragma unroll 1
        for (int32_t i = t; i < end;) {
            bool all = false;
            if constexpr (POSTS) {
                all = i == t && i + R <= t1 && u.kk + R <= a.split.n_k;
                if (all)
                    sum_round<RING, N, R, DENSE>(acc, round, u.kk, u.strip, u.expansion);
            }
            if (!all)
                sum_tile<RING, N, DENSE>(acc, round + (i - t) * RING::STAGE, u.kk, u.strip, u.expansion);
            i += all ? R : 1;
            u.kk += all ? R : 1;
            if (u.kk < a.split.n_k && i < t1)
                continue;
            const bool complete = u.kk == a.split.n_k && u.begun == 0;
            end_block<N, GATED, POSTS>(acc, a, &order, patches, u.block, complete);
            /* The upper ones of those that share a block take it up. */
            if (!complete && u.begun)
                u.shared = u.block;
            u.kk = u.begun = 0;
            u.block++;
            if (i < t1)
                begin_block<GATED, DENSE>(u, a);
        }
        before = round;
        round += RING::ROUND;
        if (round == smem + n_rounds * RING::ROUND)
            round = smem;
    }
    if (POSTS && u.shared >= 0)
        take_pieces<N, 1, false, GATED>(a, blockIdx.x, u.shared, 0,
                                        out_spot<GATED>(a, u.shared, patches), WARPS);
}

/* ---------------------------------------------------------------- host */

typedef void gemm_fn(const __nv_bfloat16 *, int64_t, int32_t, const struct sv_gemm_args);

/* Rows of x, tiles a round; [1]: gated. */
struct width {
    int n, round;
    gemm_fn *fn[2];
};

#define WIDTH(N, R, DENSE)                                                                         \
    {                                                                                              \
        N, R,                                                                                      \
        {                                                                                          \
            gemm_kernel<N, R, false, DENSE>, gemm_kernel<N, R, true, DENSE>                        \
        }                                                                                          \
    }
/* In ascending order; of the same rows, the first that fits the ring twice, or the last. */
static const struct width packed[] = {
    WIDTH(8, 4, false),  WIDTH(8, 2, false),  WIDTH(16, 2, false),  WIDTH(32, 2, false),
    WIDTH(64, 2, false), WIDTH(128, 2, false), WIDTH(128, 1, false),
};
static const struct width dense[] = {
    WIDTH(8, 4, true),
    WIDTH(8, 2, true),
    WIDTH(16, 4, true),
    WIDTH(16, 2, true),
};
enum { N_PACKED = sizeof packed / sizeof *packed, N_DENSE = sizeof dense / sizeof *dense };

/* One kind of weights, and how many of its widths there are. */
struct kind {
    const struct width *width;
    int n, tile_bytes;
};
static const struct kind kinds[] = {{packed, N_PACKED, SV_TILE_BYTES},
                                    {dense, N_DENSE, SV_DENSE_TILE_BYTES}};

/* Two thread blocks on a multiprocessor, each with a KiB of the system's and the patches. */
static size_t smem_budget(const struct sv_cuda *cu)
{
    int per_sm = 0;
    if (cudaDeviceGetAttribute(&per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cu->ordinal))
        per_sm = 100 * 1024;
    const size_t half = (size_t)per_sm / BLOCKS_PER_SM - 1024 - (WARPS * 2 * SV_PATCH_BYTES + 64);
    return half < 112 * 1024 ? half : 112 * 1024;
}

static int stage_bytes(const struct kind *t, const struct width *w)
{
    return t->tile_bytes + w->n * 128;
}

static int rounds_fitting(const struct sv_cuda *cu, const struct kind *t, const struct width *w)
{
    return (int)cu->gemm->portable_smem / (stage_bytes(t, w) * w->round);
}

/* Wide tiles may need the multiprocessor for themselves. */
static int stages_of(const struct sv_cuda *cu, const struct kind *t, const struct width *w)
{
    const int rounds = rounds_fitting(cu, t, w);
    return (rounds < 2 ? 2 : rounds > MAX_ROUNDS ? (int)MAX_ROUNDS : rounds) * w->round;
}

/* Whether another of the same rows should be taken. tune: a benchmark's wish. */
static bool passed_over(const struct sv_cuda *cu, const struct kind *t, int i, int32_t tune)
{
    const struct width *w = &t->width[i];
    return i + 1 < t->n && w[1].n == w->n && (tune || rounds_fitting(cu, t, w) < 2);
}

int sv_gemm_portable_open(struct sv_cuda *cu, struct sv_err *err)
{
    int rc = SV_OK;
    cu->gemm->portable_smem = smem_budget(cu);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 2 * kinds[k].n && !rc; i++) {
            const struct width *w = &kinds[k].width[i / 2];
            if (!passed_over(cu, &kinds[k], i / 2, 0))
                rc = sv_cuda_try(cudaFuncSetAttribute((const void *)w->fn[i % 2],
                                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                      stages_of(cu, &kinds[k], w) *
                                                          stage_bytes(&kinds[k], w)),
                                 err, "shared memory of a matrix product");
        }
    return rc;
}

int32_t sv_gemm_portable_dense_rows(const struct sv_cuda *cu)
{
    const int32_t tune = cu->gemm->tune_dense, most = dense[N_DENSE - 1].n;
    return tune && tune < most ? tune : most;
}

/* Few rows, where all parts have dense weights. */
static bool takes_dense(const struct sv_cuda *cu, const struct sv_gemm_args *a)
{
    bool all = a->n_rows <= sv_gemm_portable_dense_rows(cu);
    for (int32_t p = 0; p < a->n_parts; p++)
        all = all && a->part[p].dense;
    return all;
}

void sv_gemm_portable(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                      struct sv_gemm_args *a)
{
    const struct kind *t = &kinds[takes_dense(cu, a)];
    int i = 0;
    while (i + 1 < t->n &&
           (t->width[i].n < a->n_rows || passed_over(cu, t, i, cu->gemm->tune_round)))
        i++;
    const struct width *w = &t->width[i];
    const int most = stages_of(cu, t, w), tune = cu->gemm->tune_stages;
    struct sv_gemm_args args = *a;
    if (posts(w->n))
        args.pieces = cu->gemm->posted;
    args.n_stages = tune >= 2 * w->round && tune < most ? tune / w->round * w->round : most;
    sv_cuda_launch_in_pass(cu, "a matrix product", w->fn[a->mode == SV_GEMM_GATED],
                           dim3((unsigned)sv_split_grid(&a->split, cu->n_sms * BLOCKS_PER_SM)),
                           dim3(THREADS), (size_t)args.n_stages * (size_t)stage_bytes(t, w),
                           (const __nv_bfloat16 *)x, ldx, k, args);
}
