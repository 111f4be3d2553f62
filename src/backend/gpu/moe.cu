/*
 * moe.cu - the matrix products of a mixture of experts: gate and up with their activation, and
 * down. Entered through the table of ops; open: by device.cu.
 *
 * A thread block has 64 weight rows of one expert (of gate and up: 32 each) and takes the expert's
 * entries N at a time through a ring of copies. Each sum goes over all of k in one warp, in
 * ascending order, so an entry's bits depend neither on N nor on the entries beside it. The grid is
 * that of the most experts that the rows can reach; blocks beyond their number leave. Weights that
 * are no packed bf16, and f32 compute, take a plain kernel.
 *
 * Routes are the router's, complete before gate and up begin; these let down's blocks start only
 * then, so that down reads routes and its first weights while gate and up still run. Must not: look
 * at routes on the host; let the number of entries decide the order of a sum.
 */
#include "backend/cuda/gemm.h"
#include "backend/cuda/moe.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/silu.cuh"

enum {
    WAVES = 4,
    STRIP = SV_TILE_BYTES / WAVES, /* 16 weight rows of a tile */
    PLAIN_WARPS = 8
};

/* One projection of all experts. */
struct matrices {
    const uint8_t *w; /* the first expert's */
    const void *bias; /* (n_experts * rows), or NULL */
    int64_t stride;   /* bytes from one expert to the next */
    int32_t bias_dtype;
};

/* Handed to kernels by value. gate.w is down's where there is no up. */
struct moe {
    const void *x;
    struct matrices gate, up;
    int32_t rows, k, w_dtype; /* of a matrix */
    bool by_place;            /* x is: else by row */
    bool packed;
    enum sv_expert_act act;
    float limit, alpha;
    struct sv_routes r;
    void *out; /* (n_rows * k, rows) */
};

static __device__ __forceinline__ float activated(const struct moe &a, float g, float u)
{
    if (a.act == SV_EXPERT_SILU)
        return sv_silu_mul(g, u);
    g = fminf(g, a.limit);
    u = fminf(fmaxf(u, -a.limit), a.limit);
    return (u + 1.0f) * (g / (1.0f + expf(fminf(-a.alpha * g, 88.0f))));
}

static __device__ __forceinline__ float bias_of(const struct matrices &m, int64_t i)
{
    return m.bias ? sv_weight_at(m.bias, m.bias_dtype, i) : 0.0f;
}

/* The row of x for the entry at a place. */
static __device__ __forceinline__ int32_t source_row(const struct moe &a, int32_t place)
{
    return a.by_place ? place : a.r.list[place] / a.r.k;
}

/* ---------------------------------------------------------------- tensor cores */

/* A stage of the ring: a tile of weights, then 64 columns of N rows of x. */
template <int N> struct ring {
    enum {
        STAGE = (int)SV_TILE_BYTES + N * 128,
        ROOM = GPU_SMALL_SHARED ? 60 * 1024
               : N < 128        ? 64 * 1024
                                : 98 * 1024,
        STAGES = ROOM / STAGE < 6 ? ROOM / STAGE : 6
    };
};

/* Where this wave's 16 weight rows lie. */
struct strip {
    const uint8_t *w; /* of the first tile */
    int32_t row0;
};

template <bool GATED>
static __device__ __forceinline__ struct strip strip_of(const struct moe &a, int32_t expert)
{
    const int wave = gpu_wave();
    struct strip s;
    s.row0 = (int32_t)blockIdx.x * (GATED ? SV_TILE / 2 : SV_TILE) + (GATED ? wave % 2 : wave) * 16;
    s.w = (GATED && wave >= 2 ? a.up : a.gate).w +
          expert * (GATED && wave >= 2 ? a.up : a.gate).stride +
          (int64_t)(s.row0 / SV_TILE) * sv_tiles(a.k) * SV_TILE_BYTES +
          s.row0 % SV_TILE / 16 * STRIP;
    return s;
}

/* Tile kk of this wave's weights. own: where the wave's strip lies in the stage. */
static __device__ __forceinline__ void load_weights(const struct strip &s, int32_t kk, uint32_t own,
                                                    uint64_t once)
{
    const uint8_t *w = s.w + (int64_t)kk * SV_TILE_BYTES + gpu_lane() * 16;
#pragma unroll
    for (int i = 0; i < STRIP; i += GPU_WAVE * 16)
        gpu_copy_stream(own + i, w + i, once);
}

/* Columns of tile kk, from 8 chunk on, of the row of x in slot r. */
static __device__ __forceinline__ struct gpu_source
x_source(const struct moe &a, const int32_t *source, int32_t kk, uint32_t r, uint32_t chunk)
{
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.x;
    const int32_t row = source[r], col = kk * SV_TILE + (int32_t)chunk * 8;
    const bool there = row >= 0 && col < a.k;
    return gpu_source{there ? x + (int64_t)row * a.k + col : x, there};
}

/* This wave's share of x for tile kk. */
template <int N>
static __device__ __forceinline__ void load_x(const struct moe &a, const int32_t *source,
                                              int32_t kk, uint32_t x_at)
{
    constexpr int CALLS = N * 8 / GPU_WAVE; /* of all waves */
#pragma unroll
    for (int i0 = 0; i0 < CALLS; i0 += WAVES) {
        const int i = i0 + gpu_wave();
        if (CALLS % WAVES && i >= CALLS)
            continue;
        gpu_copy_rows<128, false>(x_at, i * (GPU_WAVE / 8), [&](uint32_t r, uint32_t chunk) {
            return x_source(a, source, kk, r, chunk);
        });
    }
}

/* x for the first n tiles by ordinary loads, which need not wait for the weights on their way. */
template <int N>
static __device__ __forceinline__ void fill_x(const struct moe &a, const int32_t *source, int32_t n,
                                              uint32_t smem, uint32_t stage_bytes)
{
    for (int32_t i = threadIdx.x; i < n * N * 8; i += WAVES * GPU_WAVE) {
        const uint32_t kk = i / (N * 8), r = i / 8 % N, chunk = i % 8;
        const struct gpu_source from = x_source(a, source, (int32_t)kk, r, chunk);
        gpu_store16(smem + kk * stage_bytes + SV_TILE_BYTES + gpu_place<128>(r, chunk),
                    from.there ? *(const uint4 *)from.at : make_uint4(0, 0, 0, 0));
    }
}

/* A tile's products. */
template <int N>
static __device__ __forceinline__ void sum_tile(float (&acc)[gpu_sums(N)], uint32_t w_at,
                                                uint32_t x_at)
{
    const int lane = gpu_lane();
    if constexpr (N == 8) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[4];
            gpu_load_b8(x, x_at + gpu_place<128>(lane % 8, half * 4 + gpu_b8_chunk()));
#pragma unroll
            for (int step = 0; step < 32 / GPU_K; step++) {
                uint32_t w[4];
                gpu_load_a(
                    w, w_at + gpu_place<128>(lane % 16, half * 4 + step * (GPU_K / 8) + lane / 16));
                gpu_mma8(acc, w, x, step);
            }
        }
    } else {
#pragma unroll
        for (int step = 0; step < SV_TILE / GPU_K; step++) {
            uint32_t w[4];
            gpu_load_a(w, w_at + gpu_place<128>(lane % 16, step * (GPU_K / 8) + lane / 16));
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                uint32_t x[4];
                gpu_load_b(x, x_at + j * 16 * 128 +
                                  gpu_place<128>(gpu_b_row(), step * (GPU_K / 8) + gpu_b_chunk()));
                gpu_mma(acc + j * (64 / GPU_COLS), w, x);
            }
        }
    }
}

/* Row and column of sum i in the wave's 16 x N. */
static __device__ __forceinline__ int sum_row(int i)
{
    return gpu_run_row(gpu_lane()) + 8 * (i % 4 / GPU_RUN);
}
static __device__ __forceinline__ int sum_col(int i)
{
    return i / 4 * GPU_COLS + gpu_run_col(gpu_lane()) + i % GPU_RUN;
}

/* Sums of n entries from `place` on. With GATED two waves leave theirs to the other two, in `lent`,
 * (2, 16, N). */
template <int N, bool GATED>
static __device__ __forceinline__ void put(const struct moe &a, const float (&acc)[gpu_sums(N)],
                                           int32_t expert, int32_t row0, int32_t place, int32_t n,
                                           float *lent)
{
    const int wave = gpu_wave();
    const bool lends = GATED && wave >= 2;
    lent += wave % 2 * 16 * N;
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

template <int N, bool GATED>
static __global__ void __launch_bounds__(WAVES *GPU_WAVE) experts_kernel(const struct moe a)
{
    GPU_SHARED(smem_bytes);
    __shared__ int32_t source[N];
    enum { STAGE = ring<N>::STAGE, STAGES = ring<N>::STAGES };
    /* Copies of this wave for a stage, at least. */
    enum { W_LINES = STRIP / (GPU_WAVE * 16), X_LINES = N * 8 / GPU_WAVE / WAVES };
    /* The ring goes round by this wave's address, not by the block's: nvcc 12.2 and 13.0 encode a
     * copy with a policy wrongly where its address is a register and a uniform register. */
    const uint32_t smem = gpu_shared_at(smem_bytes), own = smem + gpu_wave() * STRIP;
    const uint32_t x_from_own = SV_TILE_BYTES - gpu_wave() * STRIP;
    const uint64_t once = gpu_stream_policy();
    if (GATED)
        sv_pdl_wait();
    sv_pdl_launch();
    const int32_t n_active = look(a.r.n_active), expert = look(a.r.active + blockIdx.y);
    if ((int32_t)blockIdx.y >= n_active) {
        if (!GATED)
            sv_pdl_wait();
        return;
    }
    const int32_t n_k = sv_tiles(a.k);
    const struct strip s = strip_of<GATED>(a, expert);
    auto begin = [&]() {
        for (int32_t kk = 0; kk < STAGES - 1; kk++) {
            if (kk < n_k)
                load_weights(s, kk, own + kk * STAGE, once);
            gpu_copy_commit();
        }
    };
    begin();
    const int32_t end = look(a.r.first + expert + 1);
    int32_t place = look(a.r.first + expert);
    if (!GATED)
        sv_pdl_wait();
    for (;;) {
        float acc[gpu_sums(N)];
#pragma unroll
        for (int i = 0; i < gpu_sums(N); i++)
            acc[i] = 0.0f;
        for (int i = threadIdx.x; i < N; i += WAVES * GPU_WAVE)
            source[i] = place + i < end ? source_row(a, place + i) : -1;
        __syncthreads();
        fill_x<N>(a, source, min((int32_t)STAGES - 1, n_k), smem, STAGE);
        gpu_copy_settled();
        uint32_t now = own, next = own + (STAGES - 1) * STAGE;
#pragma unroll 1
        for (int32_t kk = 0; kk < n_k; kk++) {
            const int lines = (STAGES - 2) * W_LINES + min(kk, (int32_t)STAGES - 2) * X_LINES;
            gpu_copy_wait<STAGES - 2>(STAGES - 2, kk + STAGES - 2 < n_k ? lines : 0);
            __syncthreads();
            if (kk + STAGES - 1 < n_k) {
                load_weights(s, kk + STAGES - 1, next, once);
                load_x<N>(a, source, kk + STAGES - 1, next + x_from_own);
            }
            gpu_copy_commit();
            sum_tile<N>(acc, now, now + x_from_own);
            next = now;
            now = now + STAGE == own + STAGES * STAGE ? own : now + STAGE;
        }
        if (GATED)
            __syncthreads(); /* what is lent lies in the ring */
        put<N, GATED>(a, acc, expert, s.row0, place, min(N, end - place), (float *)smem_bytes);
        place += N;
        if (place >= end)
            return;
        __syncthreads(); /* the ring and source are free */
        begin();
    }
}

/* ---------------------------------------------------------------- any weights */

/* A row of an expert's matrix times a row of x, over the warp: lane l adds columns l, l + 32, ...
 */
template <typename T>
static __device__ float dot(const struct moe &a, const struct matrices &m, int32_t expert,
                            int32_t row, const T *x)
{
    const uint8_t *w = m.w + expert * m.stride;
    float sum = 0.0f;
    for (int32_t c = threadIdx.x & 31; c < a.k; c += 32) {
        const int64_t at = a.packed ? (int64_t)sv_packed_at(row, c, a.k) : (int64_t)row * a.k + c;
        sum = fmaf(sv_weight_at(w, a.w_dtype, at), sv_load(x + c), sum);
    }
    return sv_warp_sum(sum) + bias_of(m, (int64_t)expert * a.rows + row);
}

template <typename T, bool GATED> static __global__ void plain_kernel(const struct moe a)
{
    sv_pdl_wait();
    sv_pdl_launch(); /* routes are complete */
    const int32_t row = (int32_t)blockIdx.x * PLAIN_WARPS + threadIdx.x / 32;
    if ((int32_t)blockIdx.y >= *a.r.n_active || row >= a.rows)
        return;
    const int32_t expert = a.r.active[blockIdx.y], end = a.r.first[expert + 1];
    for (int32_t place = a.r.first[expert]; place < end; place++) {
        const T *x = (const T *)a.x + (int64_t)source_row(a, place) * a.k;
        const int64_t at = (int64_t)place * a.rows + row;
        const float v = dot(a, a.gate, expert, row, x);
        const float u = GATED ? dot(a, a.up, expert, row, x) : 0.0f;
        if ((threadIdx.x & 31) != 0)
            continue;
        if (GATED)
            sv_store((T *)a.out + at, activated(a, v, u));
        else
            ((float *)a.out)[at] = v;
    }
}

/* ---------------------------------------------------------------- host */

typedef void experts_fn(const struct moe);

/* [1]: gate and up. */
static const struct width {
    int n, bytes;
    experts_fn *fn[2];
} widths[] = {
#define WIDTH(N)                                                                                   \
    {                                                                                              \
        N, (int)ring<N>::STAGE *(int)ring<N>::STAGES,                                              \
        {                                                                                          \
            experts_kernel<N, false>, experts_kernel<N, true>                                      \
        }                                                                                          \
    }
    WIDTH(8), WIDTH(16), WIDTH(32), WIDTH(64), WIDTH(128),
};
enum { N_WIDTHS = sizeof widths / sizeof *widths };

int sv_cuda_moe_open(struct sv_cuda *cu, struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 2 * N_WIDTHS && !rc; i++)
        if (widths[i / 2].bytes <= (int)cu->smem_block)
            rc = sv_cuda_try(cudaFuncSetAttribute((const void *)widths[i / 2].fn[i % 2],
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  widths[i / 2].bytes),
                             err, "shared memory of an expert's product");
    return rc;
}

/* Entries at a time: twice what an expert usually has, and at least 32 where there are so many
 * rows, since weights are read once more for what does not fit. */
static const struct width *width_for(const struct sv_cuda *cu, const struct sv_routes *r)
{
    const int64_t most = (int64_t)r->n_rows, usual = 2 * most * r->k / r->n_experts;
    const struct width *w = widths;
    while (w + 1 < widths + N_WIDTHS && w->n < most && w->n < (usual > 32 ? usual : 32) &&
           w[1].bytes <= (int)cu->smem_block)
        w++;
    return w;
}

static struct matrices matrices_of(const struct sv_experts *x)
{
    struct matrices m = {};
    m.w = (const uint8_t *)x->w[0].data;
    m.bias = x->bias.data;
    m.stride = x->n > 1 ? (const uint8_t *)x->w[1].data - m.w : 0;
    m.bias_dtype = x->bias.fmt.elem;
    return m;
}

static void run(struct sv_cuda *cu, const char *what, struct moe *a, const struct sv_experts *x,
                bool gated)
{
    const int64_t entries = (int64_t)a->r.n_rows * a->r.k;
    const unsigned experts = (unsigned)(entries < x->n ? entries : x->n);
    a->rows = x->rows;
    a->k = x->cols;
    a->w_dtype = x->w[0].fmt.elem;
    a->packed = sv_cuda_is_packed(&x->w[0]);
    SV_REQUIRE(a->w_dtype <= SV_F16);
    if (cu->act == SV_BF16 && a->packed && a->k % 8 == 0) {
        const struct width *w = width_for(cu, &a->r);
        const int32_t each = gated ? SV_TILE / 2 : SV_TILE;
        sv_cuda_launch_in_pass(cu, what, w->fn[gated],
                               dim3((unsigned)((a->rows + each - 1) / each), experts),
                               dim3(WAVES * GPU_WAVE), (size_t)w->bytes, *a);
        return;
    }
    experts_fn *const fn =
        cu->act == SV_F32
            ? (gated ? plain_kernel<float, true> : plain_kernel<float, false>)
            : (gated ? plain_kernel<__nv_bfloat16, true> : plain_kernel<__nv_bfloat16, false>);
    sv_cuda_launch_in_pass(cu, what, fn,
                           dim3((unsigned)((a->rows + PLAIN_WARPS - 1) / PLAIN_WARPS), experts),
                           dim3(PLAIN_WARPS * 32), 0, *a);
}

void sv_cuda_moe_gate_up(struct sv_dev *dev, const struct sv_p_moe_gate_up *p)
{
    struct moe a = {};
    a.x = p->x;
    a.gate = matrices_of(&p->gate);
    a.up = matrices_of(&p->up);
    a.act = p->act;
    a.limit = p->limit;
    a.alpha = p->alpha;
    a.r = p->routes;
    a.out = p->out;
    run(sv_cuda_of(dev), "gate and up of experts", &a, &p->gate, true);
}

void sv_cuda_moe_down(struct sv_dev *dev, const struct sv_p_moe_down *p)
{
    struct moe a = {};
    a.x = p->x;
    a.gate = a.up = matrices_of(&p->down);
    a.by_place = true;
    a.r = p->routes;
    a.out = p->out;
    run(sv_cuda_of(dev), "down of experts", &a, &p->down, false);
}
