/*
 * moe.cuh - the matrix products of a mixture of experts on matrix instructions: gate and up with
 * their activation, and down.
 *
 * Included by moe.cu, after moe_sums.cuh, and by cuda/moe_sm90.cu, which has sums of wgmma; each
 * fills a table of widths. GROUPS times four waves are a thread block: four waves have 64 weight
 * rows of one expert (of gate and up: 32 each), and all take N of the expert's entries through a
 * ring of copies. A sum goes over all of k in ascending order, so an entry's bits depend neither on
 * N nor on the entries beside it. The grid is that of the most units of work that the rows can
 * make; blocks beyond their number leave.
 *
 * Routes are the router's, complete before gate and up begin; these let down's blocks start only
 * then, so that down reads routes and its first weights while gate and up still run. Must not: look
 * at routes on the host; let the number of entries decide the order of a sum.
 */
#ifndef SV_GPU_MOE_CUH
#define SV_GPU_MOE_CUH

#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/silu.cuh"

enum {
    WAVES = 4,                    /* of a group */
    STRIP = SV_TILE_BYTES / WAVES /* 16 weight rows of a tile */
};

static __device__ __forceinline__ float activated(const struct sv_moe &a, float g, float u)
{
    if (a.act == SV_EXPERT_SILU)
        return sv_silu_mul(g, u);
    g = fminf(g, a.limit);
    u = fminf(fmaxf(u, -a.limit), a.limit);
    return (u + 1.0f) * (g / (1.0f + expf(fminf(-a.alpha * g, 88.0f))));
}

static __device__ __forceinline__ float bias_of(const struct sv_moe_matrices &m, int64_t i)
{
    return m.bias ? sv_weight_at(m.bias, m.bias_dtype, i) : 0.0f;
}

/* The row of x for the entry at a place. */
static __device__ __forceinline__ int32_t source_row(const struct sv_moe &a, int32_t place)
{
    return a.by_place ? place : a.r.n_rows == 1 ? 0 : a.r.list[place] / a.r.k;
}

/* ---------------------------------------------------------------- copies */

/* A stage of the ring: a tile of weights for each group, then 64 columns of N rows of x. */
template <int N, int GROUPS> struct ring {
    enum {
        W = GROUPS * (int)SV_TILE_BYTES,
        STAGE = W + N * 128,
        ROOM = GPU_SMALL_SHARED   ? 60 * 1024
               : N * GROUPS < 128 ? 64 * 1024
                                  : 98 * 1024,
        STAGES = ROOM / STAGE < 6 ? ROOM / STAGE : 6,
        THREADS = GROUPS * WAVES * GPU_WAVE
    };
};

/* Where this wave's 16 weight rows lie. */
struct strip {
    const uint8_t *matrix, *w; /* w: of the first tile */
    int32_t row0;
    int32_t code;
    bool there; /* false: beyond the matrix */
};

/* band: bytes of a band of tiles, four strips `each` bytes apart. */
template <bool GATED, int GROUPS>
static __device__ __forceinline__ struct strip strip_of(const struct sv_moe &a, int32_t expert,
                                                        int64_t band, int32_t each)
{
    const int in_group = gpu_wave() % WAVES, group = gpu_wave() / WAVES;
    const struct sv_moe_matrices &m = GATED && in_group >= 2 ? a.up : a.gate;
    struct strip s;
    s.matrix = sv_moe_matrix(m, expert);
    s.code = expert < m.n ? m.code : m.shared_code;
    s.row0 = ((int32_t)blockIdx.x * GROUPS + group) * (GATED ? SV_TILE / 2 : SV_TILE) +
             (GATED ? in_group % 2 : in_group) * 16;
    s.there = s.row0 < (a.rows + SV_TILE - 1) / SV_TILE * SV_TILE;
    s.w = s.matrix + s.row0 / SV_TILE * band + s.row0 % SV_TILE / 16 * each;
    return s;
}

/* Tile kk of this wave's weights. own: where the wave's strip lies in the stage. */
static __device__ __forceinline__ void load_weights(const struct strip &s, int32_t kk, uint32_t own,
                                                    uint64_t once)
{
    const uint8_t *w = s.w + (int64_t)kk * SV_TILE_BYTES + gpu_lane() * 16;
    if (!s.there)
        return;
#pragma unroll
    for (int i = 0; i < STRIP; i += GPU_WAVE * 16)
        gpu_copy_stream(own + i, w + i, once);
}

/* Columns of tile kk, from 8 chunk on, of the row of x in slot r; source: where a slot's row
 * begins, in 16 bytes, or -1. */
static __device__ __forceinline__ struct gpu_source
x_source(const struct sv_moe &a, const int32_t *source, int32_t kk, uint32_t r, uint32_t chunk)
{
    const int32_t at = source[r], i = kk * (SV_TILE / 8) + (int32_t)chunk;
    const bool there = at >= 0 && i * 8 < a.k;
    return gpu_source{(const uint4 *)a.x + (there ? (int64_t)at + i : 0), there};
}

/* This wave's share of x for tile kk. */
template <int N, int GROUPS>
static __device__ __forceinline__ void load_x(const struct sv_moe &a, const int32_t *source,
                                              int32_t kk, uint32_t x_at)
{
    constexpr int CALLS = N * 8 / GPU_WAVE; /* of all waves */
#pragma unroll
    for (int i0 = 0; i0 < CALLS; i0 += GROUPS * WAVES) {
        const int i = i0 + gpu_wave();
        if (CALLS % (GROUPS * WAVES) && i >= CALLS)
            continue;
        gpu_copy_rows<128, false>(x_at, i * (GPU_WAVE / 8), [&](uint32_t r, uint32_t chunk) {
            return x_source(a, source, kk, r, chunk);
        });
    }
}

/* x for the first n tiles, `stage` bytes apart, by ordinary loads, which need not wait for the
 * weights on their way; some at a time, so that they need not wait for one another either. */
template <int N, int GROUPS>
static __device__ __forceinline__ void fill_x(const struct sv_moe &a, const int32_t *source,
                                              int32_t n, uint32_t x_at, uint32_t stage)
{
    constexpr int STEP = GROUPS * WAVES * GPU_WAVE, AT_ONCE = 6;
    for (int32_t i0 = threadIdx.x; i0 < n * N * 8; i0 += AT_ONCE * STEP) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int32_t i = i0 + j * STEP;
            const struct gpu_source from =
                x_source(a, source, i / (N * 8), (uint32_t)i / 8 % N, (uint32_t)i % 8);
            v[j] = make_uint4(0, 0, 0, 0);
            if (i < n * N * 8 && from.there)
                v[j] = *(const uint4 *)from.at;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const uint32_t i = (uint32_t)(i0 + j * STEP);
            if ((int32_t)i < n * N * 8)
                gpu_store16(x_at + i / (N * 8) * stage + gpu_place<128>(i / 8 % N, i % 8), v[j]);
        }
    }
}

/* ---------------------------------------------------------------- sums */

/* Row and column of sum i in the wave's 16 x N. */
static __device__ __forceinline__ int sum_row(int i)
{
    return gpu_run_row(gpu_lane()) + 8 * (i % 4 / GPU_RUN);
}
static __device__ __forceinline__ int sum_col(int i)
{
    return i / 4 * GPU_COLS + gpu_run_col(gpu_lane()) + i % GPU_RUN;
}

/* Sums of n entries from `place` on. With GATED two waves of a group leave theirs to the other two,
 * in `lent`, (GROUPS, 2, 16, N). */
template <int N, bool GATED>
static __device__ __forceinline__ void put(const struct sv_moe &a, const float (&acc)[gpu_sums(N)],
                                           int32_t expert, int32_t row0, int32_t place, int32_t n,
                                           float *lent)
{
    const int in_group = gpu_wave() % WAVES;
    const bool lends = GATED && in_group >= 2;
    lent += (gpu_wave() / WAVES * 2 + in_group % 2) * 16 * N;
#pragma unroll
    for (int i = 0; i < gpu_sums(N); i++) {
        const int row = sum_row(i), col = sum_col(i);
        if (lends && col < N && row0 + row < a.rows)
            lent[row * N + col] = acc[i] + bias_of(a.up, (int64_t)expert * a.rows + row0 + row);
    }
    if (GATED)
        __syncthreads();
#pragma unroll
    for (int i = 0; i < gpu_sums(N); i++) {
        const int row = sum_row(i), col = sum_col(i);
        if (lends || col >= n || row0 + row >= a.rows)
            continue;
        const float v = acc[i] + bias_of(a.gate, (int64_t)expert * a.rows + row0 + row);
        const int64_t at = (int64_t)(place + col) * a.rows + row0 + row;
        if (GATED)
            sv_store((__nv_bfloat16 *)a.out + at, activated(a, v, lent[row * N + col]));
        else
            ((float *)a.out)[at] = v;
    }
}

/* Of routes, which may be read before the kernel's predecessor is done: past L1. */
static __device__ __forceinline__ int32_t look(const int32_t *p)
{
    return *(const volatile int32_t *)p;
}

/* What a thread block takes: entries [place, end) of an expert; -1: nothing. */
struct unit {
    int32_t expert, place, end;
};

/* Unit i where no expert has more than N entries, as there are no more rows: the i-th of those that
 * have some. end is not read yet. */
static __device__ __forceinline__ struct unit unit_of_few(const struct sv_moe &a, int32_t i)
{
    const int32_t n_active = look(a.r.n_active), expert = look(a.r.active + i);
    return unit{i < n_active ? expert : -1, 0, 0};
}

/* Its entries; a single row has one for each expert. */
static __device__ __forceinline__ void entries_of_few(const struct sv_moe &a, int32_t i,
                                                      struct unit &u)
{
    const bool one = a.r.n_rows == 1;
    u.place = one ? i : look(a.r.first + u.expert);
    u.end = one ? i + 1 : look(a.r.first + u.expert + 1);
}

/* Unit i of all experts' entries, N at a time, expert by expert. Each warp looks for itself. */
template <int N>
static __device__ __forceinline__ struct unit unit_of_many(const struct sv_moe &a, int32_t i)
{
    const int lane = threadIdx.x & 31;
    for (int32_t e0 = 0; e0 < a.r.own.n; e0 += 32) {
        const int32_t e = min(e0 + lane, a.r.own.n - 1);
        const int32_t first = look(a.r.first + e), end = look(a.r.first + e + 1);
        const int32_t mine = e0 + lane < a.r.own.n ? (end - first + N - 1) / N : 0;
        int32_t upto = mine;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int32_t other = __shfl_up_sync(0xffffffffu, upto, step);
            upto += lane >= step ? other : 0;
        }
        const int32_t all = __shfl_sync(0xffffffffu, upto, 31);
        if (i < all) {
            const uint32_t over = __ballot_sync(0xffffffffu, i < upto);
            const int owner = __ffs((int)over) - 1;
            const int32_t at = __shfl_sync(0xffffffffu, first + (i - (upto - mine)) * N, owner);
            return unit{e0 + owner, at, min(at + N, __shfl_sync(0xffffffffu, end, owner))};
        }
        i -= all;
    }
    return unit{-1, 0, 0};
}

/* The adding up of one row in down's launch, where a device can (cuda/moe_joined.cuh): what a
 * thread block has of it in shared memory, made before products begin, and their end. */
template <bool JOINED> struct joining {
    struct room {
    };
    static __device__ __forceinline__ void open(const struct sv_moe &, struct room &)
    {
    }
    template <int N>
    static __device__ __forceinline__ void put(const struct sv_moe &, const float (&)[gpu_sums(N)],
                                               const struct unit &, int32_t, struct room &)
    {
    }
};

template <int N, bool GATED, int GROUPS, bool JOINED = false>
static __global__ void __launch_bounds__(GROUPS *WAVES *GPU_WAVE, GROUPS)
    experts_kernel(const struct sv_moe a)
{
    typedef ring<N, GROUPS> R;
    GPU_SHARED(smem_bytes);
    __shared__ int32_t source[N];
    __shared__ typename joining<JOINED>::room joined;
    enum { STAGE = R::STAGE, STAGES = R::STAGES };
    /* Copies of this wave for a stage, at least. */
    enum { W_LINES = STRIP / (GPU_WAVE * 16), X_LINES = N * 8 / GPU_WAVE / (GROUPS * WAVES) };
    /* The ring goes round by this wave's address, not by the block's: nvcc 12.2 and 13.0 encode a
     * copy with a policy wrongly where its address is a register and a uniform register. */
    const uint32_t smem = gpu_shared_at(smem_bytes), own = smem + gpu_wave() * STRIP;
    const uint32_t in_tile = gpu_wave() % WAVES * STRIP, x_from_own = R::W - gpu_wave() * STRIP;
    const uint64_t once = gpu_stream_policy();
    if (GATED)
        sv_pdl_wait();
    sv_pdl_launch();
    const bool few = a.r.n_rows <= N;
    struct unit u =
        few ? unit_of_few(a, (int32_t)blockIdx.y) : unit_of_many<N>(a, (int32_t)blockIdx.y);
    joining<JOINED>::open(a, joined);
    if (u.expert < 0) {
        if (!GATED)
            sv_pdl_wait();
        if (JOINED)
            joining<JOINED>::template put<N>(a, {}, u, 0, joined);
        return;
    }
    const int32_t n_k = sv_tiles(a.k);
    const struct strip s =
        strip_of<GATED, GROUPS>(a, u.expert, (int64_t)n_k * SV_TILE_BYTES, STRIP);
    for (int32_t kk = 0; kk < STAGES - 1; kk++) {
        if (kk < n_k)
            load_weights(s, kk, own + kk * STAGE, once);
        gpu_copy_commit();
    }
    if (few)
        entries_of_few(a, (int32_t)blockIdx.y, u);
    if (!GATED)
        sv_pdl_wait();
    float acc[gpu_sums(N)];
#pragma unroll
    for (int i = 0; i < gpu_sums(N); i++)
        acc[i] = 0.0f;
    for (int i = threadIdx.x; i < N; i += R::THREADS)
        source[i] = u.place + i < u.end ? source_row(a, u.place + i) * (a.k / 8) : -1;
    __syncthreads();
    fill_x<N, GROUPS>(a, source, min((int32_t)STAGES - 1, n_k), smem + R::W, STAGE);
    gpu_copy_settled();
    uint32_t now = own, next = own + (STAGES - 1) * STAGE;
#pragma unroll 1
    for (int32_t kk = 0; kk < n_k; kk++) {
        const int lines = s.there ? (STAGES - 2) * W_LINES : 0;
        gpu_copy_wait<STAGES - 2>(
            STAGES - 2, kk + STAGES - 2 < n_k ? lines + min(kk, (int32_t)STAGES - 2) * X_LINES : 0);
        handed_over();
        __syncthreads();
        begin_sums<N>(acc, now - in_tile, now + x_from_own);
        if (kk + STAGES - 1 < n_k) {
            load_weights(s, kk + STAGES - 1, next, once);
            load_x<N, GROUPS>(a, source, kk + STAGES - 1, next + x_from_own);
        }
        gpu_copy_commit();
        end_sums<N>(acc, now, now + x_from_own);
        next = now;
        now = now + STAGE == own + STAGES * STAGE ? own : now + STAGE;
    }
    if (GATED)
        __syncthreads(); /* what is lent lies in the ring */
    if (JOINED)
        joining<JOINED>::template put<N>(a, acc, u, s.row0, joined);
    else
        put<N, GATED>(a, acc, u.expert, s.row0, u.place, u.end - u.place, (float *)smem_bytes);
}

/* [1]: gate and up. */
template <int N, int GROUPS> static struct sv_moe_width width_of(void)
{
    typedef ring<N, GROUPS> R;
    return {N,      R::STAGE * R::STAGES,
            0,      R::THREADS,
            GROUPS, {experts_kernel<N, false, GROUPS>, experts_kernel<N, true, GROUPS>}};
}

#endif
