/*
 * gemm_portable.cu - matrix products with mma.sync, for every card from sm_80 on: 1 to 128 rows of
 * x in a launch.
 *
 * Called by gemm.cu. Weight rows are the 16-row operand, rows of x the 8-column one, so few rows of
 * x waste little. A block of the split is one band of 64 weight rows; a thread block of four warps
 * walks its unit's tiles through a ring filled by cp.async, two thread blocks a multiprocessor.
 * Must not: use anything newer than sm_80; let n_rows decide the order of a sum: it only picks the
 * width N, which does not change an element's bits.
 */
#include "backend/cuda/gemm_out.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, MAX_STAGES = 12, BLOCKS_PER_SM = 2 };

static __device__ __forceinline__ void copy16(uint32_t dst, const void *src, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                 "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Until at most n of this thread's groups are under way. */
static __device__ __forceinline__ void copy_wait(int n)
{
    switch (n) {
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
    case 7:
        asm volatile("cp.async.wait_group 7;" ::: "memory");
        break;
    default:
        asm volatile("cp.async.wait_group 8;" ::: "memory");
        break;
    }
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
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Byte of (row, 16-byte chunk) in a tile of 128-byte rows. */
static __device__ __forceinline__ uint32_t swizzled(int row, int chunk)
{
    return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/* Where a unit's loads stand. Bands of a part follow one another, so only a new part jumps; half tiles of
 * gated products always do. */
struct walk {
    int32_t block, kk;
    const uint8_t *w, *end; /* this thread's place in the tile; of the part */
    ptrdiff_t second;       /* gated: from the half of gate to that of up */
};

template <bool GATED>
static __device__ __forceinline__ void walk_enter(struct walk &v, const struct sv_gemm_args &a)
{
    const size_t band = (size_t)a.split.n_k * SV_TILE_BYTES;
    if (GATED) {
        v.w = a.part[0].w + (size_t)(v.block / 2) * band + (size_t)v.kk * SV_TILE_BYTES +
              (v.block & 1) * (SV_TILE_BYTES / 2) + threadIdx.x * 16;
        v.second = a.part[1].w - a.part[0].w;
        return;
    }
    const struct sv_gemm_item &it = a.part[sv_gemm_part_of(a, v.block)];
    v.w = it.w + (size_t)(v.block - it.block0) * band + (size_t)v.kk * SV_TILE_BYTES +
          threadIdx.x * 16;
    v.end = it.w + (size_t)it.n_bands * band;
}

template <bool GATED>
static __device__ __forceinline__ void walk_next(struct walk &v, const struct sv_gemm_args &a)
{
    v.w += SV_TILE_BYTES;
    if (++v.kk == a.split.n_k) {
        v.kk = 0;
        v.block++;
        if ((GATED || v.w - threadIdx.x * 16 == v.end) && v.block < a.split.n_blocks)
            walk_enter<GATED>(v, a);
    }
}

template <bool GATED>
static __device__ __forceinline__ void load_weights(const struct walk &v, uint32_t stage)
{
    constexpr int HALF = SV_TILE_BYTES / 2;
    const uint8_t *second = v.w + (GATED ? v.second : (ptrdiff_t)HALF);
#pragma unroll
    for (int i = 0; i < HALF; i += THREADS * 16)
        copy16(stage + threadIdx.x * 16 + i, v.w + i, true);
#pragma unroll
    for (int i = 0; i < HALF; i += THREADS * 16)
        copy16(stage + threadIdx.x * 16 + HALF + i, second + i, true);
}

template <int N>
static __device__ __forceinline__ void load_x(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                                              const struct sv_gemm_args &a, int32_t kk,
                                              uint32_t stage)
{
#pragma unroll
    for (int i = threadIdx.x; i < N * 8; i += THREADS) {
        const int row = i / 8, chunk = i % 8, col = kk * SV_TILE + chunk * 8;
        const bool there = row < a.n_rows && col < k;
        copy16(stage + SV_TILE_BYTES + swizzled(row, chunk), there ? x + row * ldx + col : x,
               there);
    }
}

/* One tile: 64 columns of k for 16 weight rows a warp. */
template <int N>
static __device__ __forceinline__ void sum_tile(float (&acc)[N / 2], uint32_t stage)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
    for (int step = 0; step < 4; step++) {
        uint32_t w[4], x[4];
        load_matrices(w, stage + swizzled(warp * 16 + (lane & 15), step * 2 + (lane >> 4)));
#pragma unroll
        for (int j = 0; j<N / 8; j += N> 8 ? 2 : 1) {
            const uint32_t at = stage + SV_TILE_BYTES +
                                swizzled(j * 8 + (lane & 7) + (N > 8 ? lane >> 4 << 3 : 0),
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

/* R tiles a round, so that a barrier and its waits are paid once for all of them. */
template <int N, int R, bool GATED>
static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    gemm_kernel(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    __shared__ __align__(16) uint8_t patches[WARPS * 2 * SV_PATCH_BYTES];
    __shared__ uint32_t order;
    constexpr uint32_t STAGE = SV_TILE_BYTES + N * 128;
    const uint32_t smem = smem_u32(smem_bytes);
    const int32_t t0 = sv_split_start(&a.split, blockIdx.x),
                  t1 = sv_split_start(&a.split, blockIdx.x + 1);
    if ((int32_t)blockIdx.x >= a.split.n_units) {
        sv_pdl_launch();
        sv_pdl_wait();
        return;
    }
    const int32_t early = a.n_stages - R;
    struct walk v;
    v.block = t0 / a.split.n_k;
    v.kk = t0 - v.block * a.split.n_k;
    walk_enter<GATED>(v, a);
    int32_t s = 0, kk = v.kk, begun = kk, block = v.block, x_kk = kk;
    for (int32_t i = 0; i < early; i++)
        if (t0 + i < t1) {
            load_weights<GATED>(v, smem + i * STAGE);
            walk_next<GATED>(v, a);
        }
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t i = 0; i < early; i++) {
        if (t0 + i < t1) {
            load_x<N>(x, ldx, k, a, x_kk, smem + i * STAGE);
            x_kk = x_kk + 1 == a.split.n_k ? 0 : x_kk + 1;
        }
        copy_commit();
    }
    if (a.mode == SV_GEMM_ARGMAX)
        best_clear(a, WARPS);
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        acc[i] = 0.0f;
#pragma unroll 1
    for (int32_t t = t0; t < t1; t += R) {
        copy_wait(early - R);
        __syncthreads();
        int32_t free = s < R ? s + early : s - R; /* the stages of the last round */
#pragma unroll
        for (int i = 0; i < R; i++) {
            if (t + early + i < t1) {
                const uint32_t stage = smem + free * STAGE;
                load_weights<GATED>(v, stage);
                load_x<N>(x, ldx, k, a, v.kk, stage);
                walk_next<GATED>(v, a);
            }
            copy_commit();
            free = free + 1 == a.n_stages ? 0 : free + 1;
        }
#pragma unroll 1
        for (int32_t i = t; i < min(t + R, t1); i++) {
            sum_tile<N>(acc, smem + s * STAGE);
            if (++s == a.n_stages)
                s = 0;
            if (++kk < a.split.n_k && i + 1 < t1)
                continue;
            if ((kk == a.split.n_k && begun == 0) ||
                gather_pieces<N, 1>(acc, a, &order, blockIdx.x, block, 0, 0))
                put_all<N, false, GATED>(acc, a, out_spot<GATED>(a, block, patches), 0, WARPS);
            kk = begun = 0;
            block++;
#pragma unroll
            for (int e = 0; e < N / 2; e++)
                acc[e] = 0.0f;
        }
    }
}

/* ---------------------------------------------------------------- host */

typedef void gemm_fn(const __nv_bfloat16 *, int64_t, int32_t, const struct sv_gemm_args);

static const struct width {
    int n, round;
    gemm_fn *fn[2]; /* [1]: gated */
} widths[] = {
    {8, 4, {gemm_kernel<8, 4, false>, gemm_kernel<8, 4, true>}},
    {16, 2, {gemm_kernel<16, 2, false>, gemm_kernel<16, 2, true>}},
    {32, 2, {gemm_kernel<32, 2, false>, gemm_kernel<32, 2, true>}},
    {64, 2, {gemm_kernel<64, 2, false>, gemm_kernel<64, 2, true>}},
    {128, 2, {gemm_kernel<128, 2, false>, gemm_kernel<128, 2, true>}},
    /* The first where shared memory is small. */
    {8, 2, {gemm_kernel<8, 2, false>, gemm_kernel<8, 2, true>}},
};
enum { N_WIDTHS = sizeof widths / sizeof *widths, N_CHOICES = 5 };

/* Two thread blocks on a multiprocessor, each with a KiB of the system's and the patches. */
static size_t smem_budget(const struct sv_cuda *cu)
{
    int per_sm = 0;
    if (cudaDeviceGetAttribute(&per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cu->ordinal))
        per_sm = 100 * 1024;
    const size_t half = (size_t)per_sm / BLOCKS_PER_SM - 1024 - (WARPS * 2 * SV_PATCH_BYTES + 64);
    return half < 112 * 1024 ? half : 112 * 1024;
}

/* Wide tiles may need the multiprocessor for themselves. */
static int fitting(const struct sv_cuda *cu, const struct width *w)
{
    return (int)(cu->gemm->portable_smem / (size_t)(SV_TILE_BYTES + w->n * 128));
}

static int stages_of(const struct sv_cuda *cu, const struct width *w)
{
    const int fit = fitting(cu, w);
    return fit < 2 * w->round ? 2 * w->round : fit > MAX_STAGES ? MAX_STAGES : fit;
}

int sv_gemm_portable_open(struct sv_cuda *cu, struct sv_err *err)
{
    int rc = SV_OK;
    cu->gemm->portable_smem = smem_budget(cu);
    for (int i = 0; i < 2 * N_WIDTHS && !rc; i++) {
        const struct width *w = &widths[i / 2];
        rc = sv_cuda_try(cudaFuncSetAttribute((const void *)w->fn[i % 2],
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              stages_of(cu, w) * (SV_TILE_BYTES + w->n * 128)),
                         err, "shared memory of a matrix product");
    }
    return rc;
}

void sv_gemm_portable(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                      struct sv_gemm_args *a)
{
    int i = 0;
    while (i + 1 < N_CHOICES && widths[i].n < a->n_rows)
        i++;
    if (i < N_WIDTHS - N_CHOICES &&
        (cu->gemm->tune_round || fitting(cu, &widths[i]) < 2 * widths[i].round))
        i += N_CHOICES;
    const size_t stage = SV_TILE_BYTES + (size_t)widths[i].n * 128;
    const struct sv_cuda_gemm_state *g = cu->gemm;
    const int most = stages_of(cu, &widths[i]);
    a->n_stages = g->tune_stages > 0 && g->tune_stages < most ? g->tune_stages : most;
    sv_cuda_launch_in_pass(cu, "a matrix product", widths[i].fn[a->mode == SV_GEMM_GATED],
                   dim3((unsigned)sv_split_grid(&a->split, cu->n_sms * BLOCKS_PER_SM)),
                   dim3(THREADS), (size_t)a->n_stages * stage, (const __nv_bfloat16 *)x, ldx, k,
                   *a);
}
