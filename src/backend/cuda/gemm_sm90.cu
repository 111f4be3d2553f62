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
 * ring with weights while the others still add up. More than 256 rows go through whole
 * blocks (gemm_whole.cuh) or, up to 512, thread blocks of half of k (gemm_halves.cuh). This
 * file is the kernel and its launches; the device code lies in these headers and in gemm_ring.cuh
 * and gemm_units.cuh. gemm_wcomp_sm90.cu, gemm_codes_sm90.cu and gemm_codes4_sm90.cu build the file
 * once more, for few rows and weights in 12 bits, or in codes of 8 or 4 (WCOMP, CODES): warpgroups
 * take a tile's words from the ring, expand them to bf16 in registers while the tensor cores work
 * on the tile before, and use them as the instruction's first operand. Expanding takes longer than
 * multiplying; a unit's first tiles are expanded before x is there. The fewest rows of codes go
 * through mma.sync instead (gemm_few.cuh). gemm_fp8_sm90.cu and
 * gemm_w8a8_sm90.cu build it for numbers of 8 bits, the latter with sums of groups
 * (gemm_groups.cuh). Must not: let anything but the weight's shape decide the order of a sum;
 * n_rows only picks the width N, the way and the instruction, which do not change an element's
 * bits, nor does WCOMP.
 */
#ifndef SV_GEMM_CODES
#define SV_GEMM_CODES 0
#endif

#include "backend/cuda/barrier.cuh"
#if SV_GEMM_CODES
#include "backend/cuda/gemm_codes.cuh"
#else
#include "backend/gpu/gemm_expand.cuh"
#endif
#include "backend/gpu/gemm_out.cuh"
#include "backend/cuda/gemm_pair.cuh"
#include "backend/cuda/wgmma.cuh"
#include "backend/cuda/wgmma_reg.cuh"

#include <cudaTypedefs.h>

#ifndef SV_GEMM_WCOMP
#define SV_GEMM_WCOMP 0
#endif
static constexpr bool WCOMP = SV_GEMM_WCOMP;
/* A tile and, of compressed weights and codes, a warp's strip of it; bytes before all tiles. */
#if SV_GEMM_CODES
enum {
    W_BYTES = SV_CODES_TILE_BYTES(SV_GEMM_CODES),
    STRIP_BYTES = SV_CODES_STRIP_BYTES(SV_GEMM_CODES),
    W_HEAD_BYTES = 0
};
#else
enum {
    W_BYTES = WCOMP ? (int)SV_WCOMP_TILE_BYTES : (int)SV_TILE_BYTES,
    STRIP_BYTES = SV_WCOMP_STRIP_BYTES,
    W_HEAD_BYTES = SV_WCOMP_HEAD_BYTES
};
#endif

enum { MAX_STAGES = WCOMP ? 16 : 12, MAX_EARLY = 6, SMEM_MAX = 232448 };

#include "backend/cuda/gemm_ring.cuh"
#include "backend/cuda/gemm_units.cuh"
#include "backend/cuda/gemm_whole.cuh"
#if !SV_GEMM_GROUPS
#include "backend/cuda/gemm_halves.cuh"
#endif

/* ---------------------------------------------------------------- kernels */

/* Wide tiles need more registers than an even share, and so do tiles expanded early: the producer
 * has a warpgroup of its own and gives its registers to the consumers. */
static SV_HD constexpr bool moves_registers(int n)
{
    return WCOMP || n > (GROUPS ? 64 : 128);
}

/* Registers of a thread of each side then. Their sum must be what the block began with: setmaxnreg
 * waits until registers are free. */
static SV_HD constexpr int registers_of(int n, enum way way, bool producer)
{
    if (groups_of(way) == 3)
        return takes_few(n) ? (producer ? 56 : 152) : producer ? 32 : 160;
    return WCOMP ? (producer ? 56 : 224) : producer ? 40 : 232;
}

static SV_HD constexpr int threads_of(int n, enum way way)
{
    return consumers_of(way) + (moves_registers(n) ? 128 : 32);
}

template <int N, enum way WAY, bool GATED, bool SENDS = false>
static __global__ void __launch_bounds__(threads_of(N, WAY), 1)
    gemm_kernel(const __grid_constant__ CUtensorMap map,
                const __grid_constant__ struct sv_gemm_args a)
{
    extern __shared__ __align__(1024) uint8_t smem_bytes[];
    constexpr int CL = sharing_x(WAY), CONSUMERS = consumers_of(WAY);
    constexpr bool HALF_K = WAY == HALVES || WAY == TALL_HALVES;
    /* Weights are asked for before all threads have met, where that leaves the producer registers
     * enough. */
    constexpr bool AT_ONCE = !is_whole(WAY) && !HALF_K && !moves_registers(N);
    const uint32_t smem = smem_u32(smem_bytes);
    struct tail *tail = (struct tail *)(smem_bytes + (size_t)a.n_stages * ring<N, WAY>::STAGE);
    /* Two blocks next to one another: the halves of a unit, or the same half of two units, or
     * units. */
    const int32_t next = blockIdx.x & 1, pair = blockIdx.x / 2;
    const int half = takes_tall(WAY) ? 0 : WAY == PAIRED ? pair & 1 : next;
    const int32_t unit = WAY == TALL     ? (int32_t)blockIdx.x
                         : WAY == PAIRED ? pair / 2 * 2 + next
                                         : pair,
                  n_items = is_whole(WAY) ? (a.n_rows + N - 1) / N * a.split.n_blocks : 0;
    const int32_t t0 = sv_split_start(&a.split, unit), t1 = sv_split_start(&a.split, unit + 1);
    SV_MARK(a, 0);
    if (!is_whole(WAY) && !exchanges(WAY) && unit >= a.split.n_units) {
        sv_pdl_launch();
        sv_pdl_wait();
        return;
    }
    struct begun begun;
    if (threadIdx.x == CONSUMERS) {
        for (int i = 0; i < a.n_stages; i++) {
            bar_init(smem_u32(&tail->full[i]), 1);
            bar_init(smem_u32(&tail->empty[i]), CONSUMERS / 32 * CL);
        }
        if (exchanges(WAY)) {
            bar_init(smem_u32(&tail->ready), CONSUMERS / 32 * 2);
            for (int i = 0; i < CONSUMERS / 32; i++)
                bar_init(smem_u32(&tail->got[i]), 1);
        }
        for (int i = 0; WCOMP && i < MAX_EARLY; i++)
            bar_init(smem_u32(&tail->early[i]), 1);
        bar_made();
        asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
        if (smem & 1023)
            __trap(); /* swizzled tiles must lie on 1024 */
        if (AT_ONCE)
            begun = begin_unit<N, WAY>(a, smem, tail, t0, t1, half);
    }
    if (CL > 1 || HALF_K)
        cluster_sync();
    else
        __syncthreads();
    if (WAY == PAIRED)
        cluster_arrive(); /* waited for where the other block is first needed */
    if (threadIdx.x >= CONSUMERS) {
        if (moves_registers(N))
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers_of(N, WAY, true)));
        if (threadIdx.x == CONSUMERS) {
#if !SV_GEMM_GROUPS
            if constexpr (HALF_K)
                produce_half<N, WAY>(&map, a, smem, tail, slab_of<WAY>(a));
            else
#endif
                if constexpr (is_whole(WAY))
                produce_whole<N, WAY>(&map, a, smem, tail, n_items, half);
            else {
                if (!AT_ONCE)
                    begun = begin_unit<N, WAY>(a, smem, tail, t0, t1, half);
                produce<N, WAY>(&map, a, smem, tail, begun, half);
            }
        }
        __syncwarp();
        if (WAY == PAIRED)
            cluster_wait();
    } else {
        if (moves_registers(N))
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers_of(N, WAY, false)));
#if !SV_GEMM_GROUPS
        if constexpr (HALF_K)
            consume_half<N, WAY>(a, smem, tail, slab_of<WAY>(a));
        else
#endif
            if constexpr (is_whole(WAY))
            consume_whole<N, WAY, GATED>(a, smem, tail, n_items, half);
        else
            consume<N, WAY, GATED, SENDS>(a, smem, tail, unit, t0, t1, half);
    }
    SV_MARK(a, 5);
    if (CL > 1)
        cluster_sync(); /* the other block may still write here */
}

/* ---------------------------------------------------------------- host */

typedef void gemm_fn(const CUtensorMap, const struct sv_gemm_args);

struct width {
    int n, stages;
    int tall_stages;
    gemm_fn *fn[3][2]; /* by way; plain and gated */
    gemm_fn *sends;    /* PAIRED, plain, for devices with ranks: can send; or NULL */
};

/* stages: a multiprocessor for each thread block. Two of different launches on one would let the
 * next fill its ring sooner, but now and then two of the same launch meet there and all wait for
 * them. */
#define WIDTH(N, STAGES, TALL_STAGES)                                                              \
    {                                                                                              \
        N, STAGES, TALL_STAGES,                                                                    \
            {{gemm_kernel<N, ALONE, false>, gemm_kernel<N, ALONE, true>},                          \
             {gemm_kernel<N, PAIRED, false>, gemm_kernel<N, PAIRED, true>},                        \
             {gemm_kernel<N, TALL, false>, gemm_kernel<N, TALL, true>}},                           \
            SENDING(N)                                                                             \
    }
/* A kernel of its own: with one more ending in it, the other takes 0.1 us longer on a card that is
 * alone. Devices with ranks launch it for all products: two kernels by turns take longer than one,
 * as instructions have to be at hand. Not of codes and FP8, which take the compiler longest. */
#if SV_GEMM_CODES || SV_GEMM_FP8 || SV_GEMM_GROUPS
#define SENDING(N) NULL
#else
#define SENDING(N)                                                                                 \
    N <= SV_GEMM_SENT_ROWS ? gemm_kernel<(N <= SV_GEMM_SENT_ROWS ? N : 8), PAIRED, false, true>    \
                           : NULL
#endif
#ifdef SV_CUDA_JITTER
/* Some, for the compiler's sake: widths wait for one another in the same way. */
static const struct width widths[] = {
    WIDTH(16, 9, 8),
    WIDTH(64, 7, 6),
    WIDTH(128, 6, 5),
#if !SV_GEMM_WCOMP && !SV_GEMM_GROUPS
    WIDTH(256, 4, 3),
#endif
};
#elif SV_GEMM_GROUPS
static const struct width widths[] = {
    WIDTH(8, 10, 8), WIDTH(16, 10, 8), WIDTH(32, 8, 7),
    WIDTH(64, 8, 6), WIDTH(96, 7, 5),  WIDTH(128, 6, 5),
};
#elif SV_GEMM_CODES
static const struct width widths[] = {
    WIDTH(8, FEW_STAGES, FEW_STAGES),
    WIDTH(16, FEW_STAGES, FEW_STAGES),
    WIDTH(32, STAGES_32, STAGES_32),
    WIDTH(64, 9, 9),
    WIDTH(96, 8, 8),
    WIDTH(112, 7, 7),
    WIDTH(128, 7, 7),
};
#elif SV_GEMM_WCOMP
static const struct width widths[] = {
    WIDTH(8, 9, 9),  WIDTH(16, 9, 9),  WIDTH(32, 8, 8),  WIDTH(64, 7, 7),
    WIDTH(96, 6, 6), WIDTH(112, 6, 6), WIDTH(128, 6, 6),
};
#elif SV_GEMM_FP8
/* A draft's rows come by blocks. */
static const struct width widths[] = {
    WIDTH(16, 10, 8), WIDTH(32, 8, 7),  WIDTH(64, 8, 6),  WIDTH(128, 6, 5),
    WIDTH(160, 5, 4), WIDTH(192, 5, 4), WIDTH(224, 4, 4), WIDTH(256, 4, 3),
};
#else
static const struct width widths[] = {
    WIDTH(8, 10, 8),  WIDTH(16, 10, 8), WIDTH(32, 8, 7),  WIDTH(64, 8, 6),
    WIDTH(96, 7, 5),  WIDTH(112, 7, 5), WIDTH(128, 6, 5), WIDTH(160, 5, 4),
    WIDTH(192, 5, 4), WIDTH(224, 4, 4), WIDTH(256, 4, 3),
};
#endif

#if !SV_GEMM_WCOMP
/* Clusters of two, in which each gets half of x's tiles for both; for sums that are not cut thread
 * blocks of three warpgroups. */
static const struct width wholes[] = {
#if SV_GEMM_GROUPS
    /* Two sums for each result: more of them than these no thread block has registers for. The
     * second line: sums that are not cut, which need no shelf. */
    {128,
     4,
     6,
     {{gemm_kernel<128, WHOLE, false>, gemm_kernel<128, WHOLE, true>},
      {gemm_kernel<128, WHOLE, false>, gemm_kernel<128, WHOLE, true>}}},
    {192,
     3,
     5,
     {{gemm_kernel<192, WHOLE, false>, gemm_kernel<192, WHOLE, true>},
      {gemm_kernel<192, WHOLE, false>, gemm_kernel<192, WHOLE, true>}}},
#else
    {64, 8, 0, {{gemm_kernel<64, WHOLE, false>}}},
    {128, 6, 0, {{gemm_kernel<128, WHOLE, false>}}},
    {192,
     5,
     4,
     {{gemm_kernel<192, WHOLE, false>, gemm_kernel<192, WHOLE, true>},
      {gemm_kernel<192, TALL_WHOLE, false>, gemm_kernel<192, TALL_WHOLE, true>}}},
    {256,
     3,
     3,
     {{gemm_kernel<256, WHOLE, false>},
      {gemm_kernel<256, TALL_WHOLE, false>, gemm_kernel<256, TALL_WHOLE, true>}}},
#endif
};
enum { N_WHOLES = sizeof wholes / sizeof *wholes };

#if !SV_GEMM_GROUPS
/* Half of k each: two warpgroups, and three where a half is one piece. */
static const struct width halves[] = {
    {192, 5, 4, {{gemm_kernel<192, HALVES, false>}, {gemm_kernel<192, TALL_HALVES, false>}}},
    {256, 3, 3, {{gemm_kernel<256, HALVES, false>}, {gemm_kernel<256, TALL_HALVES, false>}}},
};
enum { N_HALVES = sizeof halves / sizeof *halves };
#endif
#endif
enum { N_WIDTHS = sizeof widths / sizeof *widths, WCOMP_ROWS = 128 };

/* cut: whether sums of whole products are. */
static size_t smem_of(int n, enum way way, int stages, bool cut)
{
    const int tiles = tiles_of_stage(n),
              w = (tiles * groups_of(way) * W_BYTES + 1023) / 1024 * 1024,
              scales = GROUPS ? (groups_of(way) * W_SCALE_BYTES + n * 4 + 1023) / 1024 * 1024 : 0;
    return (size_t)stages * (size_t)(w + tiles * n * X_ROW_BYTES + scales) +
           offsetof(struct tail, patch) +
           (size_t)consumers_of(way) / 32 * (size_t)patches_of(n) * SV_PATCH_BYTES +
           (size_t)(cut ? shelf_of(n, way) : 0);
}

static int let_shared(const struct width *w, int n, struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 7 * n && !rc; i++) {
        const struct width *wide = &w[i / 7];
        const void *fn = (const void *)(i % 7 == 6 ? wide->sends : wide->fn[i % 7 / 2][i % 2]);
        if (fn)
            rc = sv_cuda_try(
                cudaFuncSetAttribute(fn, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MAX),
                err, "shared memory of a matrix product");
    }
    return rc;
}

#if !SV_GEMM_WCOMP
static int open_kernels(struct sv_err *err)
{
    int rc = let_shared(widths, N_WIDTHS, err);
    if (!rc)
        rc = let_shared(wholes, N_WHOLES, err);
#if !SV_GEMM_GROUPS
    if (!rc)
        rc = let_shared(halves, N_HALVES, err);
#endif
    return rc;
}
#endif

#if SV_GEMM_GROUPS

int sv_gemm_w8a8_open(struct sv_cuda *cu, struct sv_err *err)
{
    return open_kernels(err);
}

#elif SV_GEMM_FP8

int sv_gemm_fp8_open(struct sv_cuda *cu, struct sv_err *err)
{
    return open_kernels(err);
}

#elif !SV_GEMM_WCOMP

/* Clusters of two thread blocks that fit the device at once. */
static int room_for_pairs(struct sv_cuda *cu, int *clusters, struct sv_err *err)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[1] = {};
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = 2;
    attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)cu->n_sms / 2 * 2);
    config.blockDim = dim3((unsigned)threads_of(wholes[N_WHOLES - 1].n, WHOLE));
    config.dynamicSmemBytes = SMEM_MAX;
    config.attrs = attr;
    config.numAttrs = 1;
    return sv_cuda_try(cudaOccupancyMaxActiveClusters(
                           clusters, (const void *)wholes[N_WHOLES - 1].fn[0][0], &config),
                       err, "room for a matrix product");
}

int sv_gemm_sm90_open(struct sv_cuda *cu, struct sv_err *err)
{
    cudaDriverEntryPointQueryResult found;
    int rc =
        sv_cuda_try(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &cu->gemm->encode,
                                                     12000, cudaEnableDefault, &found),
                    err, "the driver's tensor maps");
    if (!rc)
        rc = open_kernels(err);
    /* Adding up waits for the whole grid, so all of it must fit at once. */
    int clusters = 0;
    if (!rc)
        rc = room_for_pairs(cu, &clusters, err);
    if (!rc && clusters < 1)
        rc = sv_fail(err, SV_EDEVICE, -1, "matrix products: no pair of multiprocessors is free");
    cu->gemm->sm90_units = clusters < cu->n_sms / 2 ? clusters : cu->n_sms / 2;
    return rc;
}

bool sv_gemm_encode_x(struct sv_cuda *cu, void *out, const void *x, int64_t ldx, int32_t k,
                      int32_t n_rows, int box_rows, bool bytes)
{
    CUtensorMap *map = (CUtensorMap *)out;
    const cuuint64_t dims[2] = {(cuuint64_t)k, (cuuint64_t)n_rows};
    const cuuint64_t strides[1] = {(cuuint64_t)ldx * (bytes ? 1 : 2)};
    const cuuint32_t box[2] = {bytes ? 2u * SV_TILE : (uint32_t)SV_TILE, (cuuint32_t)box_rows},
                     step[2] = {1, 1};
    PFN_cuTensorMapEncodeTiled_v12000 encode = (PFN_cuTensorMapEncodeTiled_v12000)cu->gemm->encode;
    CUresult rc =
        encode(map, bytes ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2,
               (void *)(uintptr_t)x, dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return rc == CUDA_SUCCESS ||
           sv_cuda_check(cu, cudaErrorInvalidValue, "tensor map of a matrix product's input");
}

#endif

/* cluster: thread blocks in one. */
static void launch(struct sv_cuda *cu, gemm_fn *fn, int n, enum way way, int cluster,
                   int32_t n_blocks, const void *x, int64_t ldx, int32_t k, struct sv_gemm_args *a)
{
    CUtensorMap map;
    /* A failed encode is latched; only a success launches. */
    if (!sv_gemm_encode_x(cu, &map, x, ldx, k, a->n_rows, a->x_rows, BYTES))
        return;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[2] = {};
    config.gridDim = dim3((unsigned)n_blocks);
    config.blockDim = dim3((unsigned)threads_of(n, way));
    config.dynamicSmemBytes = smem_of(n, way, a->n_stages, a->split.n_units != a->split.n_blocks);
    config.stream = cu->stream;
    config.attrs = attr;
    if (cluster > 1) {
        attr[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attr[config.numAttrs].val.clusterDim.x = (unsigned)cluster;
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
    cu->bytes_of = NULL;
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
    while (a->n_stages > MAX_STAGES || smem_of(w->n, way, a->n_stages, true) > SMEM_MAX)
        a->n_stages--;
    /* Rows that are not there take the copy longer than rows that are. */
    a->x_rows = (a->n_rows + 7) / 8 * 8;
    int32_t n_blocks = 2 * a->split.n_units;
    if (way == ALONE)
        n_blocks = 2 * sv_split_grid(&a->split, g->sm90_units);
    if (way == TALL)
        n_blocks = sv_split_grid(&a->split, cu->n_sms);
    gemm_fn *fn = w->fn[way][a->mode == SV_GEMM_GATED];
    if (way == PAIRED && a->mode != SV_GEMM_GATED && cu->peers && w->sends) {
        fn = w->sends;
        if (a->split.n_units > a->split.n_blocks) /* every sum is exchanged */
            sv_gemm_push(cu, a);
    }
    launch(cu, fn, w->n, way, way == PAIRED ? 2 : 1, n_blocks, x, ldx, k, a);
    return true;
}

#if SV_GEMM_CODES

int sv_gemm_codes_open(struct sv_cuda *cu, struct sv_err *err)
{
    return let_shared(widths, N_WIDTHS, err);
}

void sv_gemm_codes(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                   struct sv_gemm_args *a)
{
    const int32_t early = cu->gemm->tune_early;
    a->n_early = early > 0 ? early : early < 0 ? 0 : (int32_t)MAX_EARLY;
    SV_REQUIRE(run(cu, x, ldx, k, a));
}

#elif SV_GEMM_WCOMP

int sv_gemm_wcomp_open(struct sv_cuda *cu, struct sv_err *err)
{
    return let_shared(widths, N_WIDTHS, err);
}

int32_t sv_gemm_wcomp_rows(const struct sv_cuda *cu)
{
    return cu->gemm->tune_wcomp ? cu->gemm->tune_wcomp : (int32_t)WCOMP_ROWS;
}

bool sv_gemm_wcomp(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                   struct sv_gemm_args *a)
{
    const struct sv_cuda_gemm_state *g = cu->gemm;
    if (a->n_rows > sv_gemm_wcomp_rows(cu))
        return false;
    for (int32_t p = 0; p < a->n_parts; p++)
        if (!a->part[p].wcomp)
            return false;
    a->n_early = g->tune_early > 0 ? g->tune_early : g->tune_early < 0 ? 0 : (int32_t)MAX_EARLY;
    return run(cu, x, ldx, k, a);
}

#else

void sv_gemm_sm90(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k, struct sv_gemm_args *a)
{
    SV_REQUIRE(run(cu, x, ldx, k, a));
}

#if !SV_GEMM_GROUPS
bool sv_gemm_sm90_halves(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                         struct sv_gemm_args *a)
{
    const struct sv_cuda_gemm_state *g = cu->gemm;
    const int32_t n_sharers = a->tall ? 0 : sv_split_paired(&a->split), most = 2 * g->sm90_units;
    if (a->n_rows <= SV_GEMM_PASS || a->n_rows > SV_GEMM_WIDE_PASS || g->tune_halves < 0 ||
        g->tune_whole || a->mode == SV_GEMM_GATED || a->mode == SV_GEMM_ARGMAX || !n_sharers ||
        a->split.n_units != n_sharers * a->split.n_blocks || g->tune_pair < 0)
        return false;
    int32_t n_bands = 0;
    for (int32_t p = 0; p < a->n_parts; p++)
        n_bands += a->part[p].n_bands;
    enum way way = HALVES;
    int32_t n_groups = (n_bands + 1) / 2;
    if (4 * n_groups > most && n_sharers == 2) {
        way = TALL_HALVES;
        n_groups = (n_bands + 2) / 3;
    }
    if (4 * n_groups > most || 4 * n_groups < most - most / 4)
        return false;
    a->n_sharers = n_sharers;
    a->x_rows = (a->n_rows + 31) / 32 * 16;
    int i = 0;
    while (halves[i].n < a->x_rows)
        i++;
    a->n_stages = way == HALVES ? halves[i].stages : halves[i].tall_stages;
    launch(cu, halves[i].fn[way == TALL_HALVES][0], halves[i].n, way, 2, 4 * n_groups, x, ldx, k,
           a);
    return true;
}

#endif

/* Rows of x that L2 keeps beside the weights that go by. */
static bool stays(const struct sv_cuda *cu, int32_t n_rows, int32_t k)
{
    return (size_t)n_rows * (size_t)k * (BYTES ? 1 : 2) <= cu->l2_bytes / 2;
}

/* The width of whole products by the least time, in tiles times rows of x, the wider at a tie, and
 * how many thread blocks; NULL where there is none. Only speed hangs on it. */
static const struct width *whole_width(const struct sv_cuda *cu, const struct sv_gemm_args *a,
                                       enum way way, int32_t *n_blocks, int64_t *least)
{
    const int32_t tune = cu->gemm->tune_whole, each = way == WHOLE ? 2 : 1,
                  at_once = way == WHOLE ? cu->gemm->sm90_units : cu->n_sms;
    const struct width *best = NULL;
    for (int i = 0; i < N_WHOLES; i++) {
        const struct width *w = &wholes[i];
        const int32_t items = (a->n_rows + w->n - 1) / w->n * a->split.n_blocks,
                      n_rounds = (items + at_once - 1) / at_once;
        /* Narrow ones take no less than the copies of weights, nor than the sums of groups. */
        const int64_t cost = (int64_t)n_rounds * (a->split.n_k + 6) *
                             (w->n < 96               ? 96
                              : GROUPS && w->n == 128 ? 144
                                                      : w->n);
        if ((w->n < 192 && n_rounds > 1 && !GROUPS) || (best && cost > *least) ||
            (tune > 1 && tune != w->n) || !w->fn[way == TALL_WHOLE][a->mode == SV_GEMM_GATED])
            continue;
        *least = cost;
        *n_blocks = (items + n_rounds - 1) / n_rounds * each;
        best = w;
    }
    return best;
}

/* A launch in passes and its adding up cost about 14 tiles of 256 rows more. */
bool sv_gemm_sm90_whole(struct sv_cuda *cu, const void *x, int64_t ldx, int32_t k,
                        struct sv_gemm_args *a)
{
    const int32_t tune = cu->gemm->tune_whole,
                  pass = GROUPS ? widths[N_WIDTHS - 1].n : SV_GEMM_PASS;
    const enum way way = a->tall && !GROUPS ? TALL_WHOLE : WHOLE;
    if (a->n_rows <= SV_GEMM_PASS || tune < 0)
        return false;
    struct sv_gemm_args all = *a;
    if (GROUPS && a->tall) { /* blocks that two thread blocks share: no sum is cut either way */
        sv_gemm_lay_blocks(&all, SV_SM90_BLOCK);
        all.split.n_units = all.split.n_blocks;
    }
    int32_t n_blocks = 0;
    int64_t cost = 0;
    const struct width *w = whole_width(cu, &all, way, &n_blocks, &cost);
    if (!w)
        return false;
    const int64_t unit_tiles = (int64_t)a->split.n_blocks * a->split.n_k / a->split.n_units,
                  n_passes = (a->n_rows + pass - 1) / pass;
    if (!a->tall && tune == 0 && cost > n_passes * (unit_tiles + 14) * pass)
        return false;
    all.n_sharers = a->tall ? 0 : sv_split_paired(&a->split);
    all.n_stages = a->tall ? w->tall_stages : w->stages;
    all.x_rows = w->n / sharing_x(way);
    all.x_stays = stays(cu, a->n_rows, k);
    a->n_slots = n_blocks * consumers_of(way) / 32;
    launch(cu, w->fn[a->tall][a->mode == SV_GEMM_GATED], w->n, way, sharing_x(way), n_blocks, x,
           ldx, k, &all);
    return true;
}

#endif
