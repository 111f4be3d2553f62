/*
 * gemm_whole.cuh - products of many rows: thread blocks, or clusters of two that share x, that
 * compute whole blocks.
 *
 * Included in the middle of gemm_sm90.cu, after gemm_units.cuh. Must not: cut a sum elsewhere than
 * the split does.
 */
#ifndef SV_CUDA_GEMM_WHOLE_CUH
#define SV_CUDA_GEMM_WHOLE_CUH

/* ---------------------------------------------------------------- whole products: many rows */

/* WHOLE: a cluster computes whole blocks of 256 weight rows by N rows of x, one after the other,
 * and cuts each sum where the split cuts it: registers and shared memory hold the pieces so far.
 * TALL_WHOLE: a thread block by itself computes blocks of 192 weight rows, whose sums are not cut.
 * Weights that go by leave L2 first and x last where it fits: without that a multiprocessor takes
 * in half as many bytes. */
/* N-row blocks of x that share a walk over the weights: both then come from L2. */
enum { GROUP = 8 };

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

template <int N, enum way WAY>
static __device__ __forceinline__ void produce_whole(const CUtensorMap *map,
                                                     const struct sv_gemm_args &a, uint32_t smem,
                                                     struct tail *tail, int32_t n_items, int half)
{
    constexpr int CL = sharing_x(WAY);
    typedef ring<N, WAY> R;
    uint64_t normal, keep;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    const uint64_t for_w = a.x_stays ? stream_policy() : normal, for_x = a.x_stays ? keep : normal;
    struct walk v;
    v.band_bytes = (size_t)a.split.n_k * W_BYTES;
    const bool gated = a.mode == SV_GEMM_GATED;
    const int32_t first = blockIdx.x / CL;
    int32_t s = 0, left = a.n_stages, early = 0;
    uint32_t parity = 1;
    /* The ring's first round of weights does not wait for the kernel before. */
    if (first < n_items) {
        early = min(a.n_stages, a.split.n_k);
        v.t = item_of(a, first, N).block * a.split.n_k;
        walk_enter<N, WAY>(v, a, half);
        for (int32_t i = 0; i < early; i++, v.w += SV_TILE_BYTES)
            load_weights<N, WAY>(v, gated, smem + i * R::STAGE, smem_u32(&tail->full[i]),
                                 N * X_LINE_BYTES, for_w);
    }
    sv_pdl_wait();
    for (int32_t i = first; i < n_items; i += gridDim.x / CL) {
        const struct item it = item_of(a, i, N);
        v.t = it.block * a.split.n_k;
        walk_enter<N, WAY>(v, a, half);
        for (int32_t kk = 0; kk < a.split.n_k; kk++, v.w += SV_TILE_BYTES) {
            const uint32_t full = smem_u32(&tail->full[s]);
            if (left > 0)
                left--; /* the ring's first round finds it empty */
            else
                bar_wait(smem_u32(&tail->empty[s]), parity);
            if (early > 0)
                early--;
            else
                load_weights<N, WAY>(v, gated, smem + s * R::STAGE, full, N * X_LINE_BYTES, for_w);
            load_x<N, WAY>(map, a, kk, it.row, N / CL, smem + s * R::STAGE, full, half, for_x);
            if (++s == a.n_stages) {
                s = 0;
                parity ^= 1;
            }
        }
    }
    sv_pdl_launch();
}

/* Four sums before four others. */
static __device__ __forceinline__ void add_before(float *acc, float4 v)
{
    acc[0] = v.x + acc[0];
    acc[1] = v.y + acc[1];
    acc[2] = v.z + acc[2];
    acc[3] = v.w + acc[3];
}

/* Keeps sums of this thread in its stash, or adds what lies there to them. */
template <int N, int THREADS>
static __device__ __forceinline__ void stash_put(const float (&acc)[N / 2],
                                                 const struct sv_gemm_args &a)
{
    float4 *to = a.stash + (size_t)blockIdx.x * (SV_GEMM_STASH / sizeof(float4)) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        __stcg(to + j * THREADS,
               make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]));
}

template <int N, int THREADS>
static __device__ __forceinline__ void stash_add(float (&acc)[N / 2], const struct sv_gemm_args &a)
{
    const float4 *from =
        a.stash + (size_t)blockIdx.x * (SV_GEMM_STASH / sizeof(float4)) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        add_before(acc + 4 * j, __ldcg(from + j * THREADS));
}

/* Of the sum of a block's pieces so far registers keep what belongs to so many rows of x; the
 * others' lies on a shelf, in shared memory. GROUPS: registers hold a tile's sums beside a piece's.
 */
static SV_HD constexpr int kept_rows(int n)
{
    return GROUPS ? 8 : n <= 192 ? n : n / 2;
}

/* Bytes of it. */
static SV_HD constexpr int shelf_of(int n, enum way way)
{
    return way == WHOLE || way == HALVES ? (n - kept_rows(n)) * 2 * consumers_of(way) : 0;
}

template <int N, enum way WAY>
static __device__ __forceinline__ uint32_t shelf_at(struct tail *tail)
{
    return smem_u32(patches_at<N>(tail, consumers_of(WAY) / 32)) + threadIdx.x * 16;
}

template <int N, enum way WAY>
static __device__ __forceinline__ void keep_sum(const float (&acc)[N / 2],
                                                float (&kept)[kept_rows(N) / 2], struct tail *tail)
{
    constexpr int K = kept_rows(N);
    const uint32_t shelf = shelf_at<N, WAY>(tail);
#pragma unroll
    for (int e = 0; e < K / 2; e++)
        kept[e] = acc[e];
#pragma unroll
    for (int j = K / 8; j < N / 8; j++)
        near_store(shelf + (j - K / 8) * consumers_of(WAY) * 16, acc[4 * j], acc[4 * j + 1],
                   acc[4 * j + 2], acc[4 * j + 3]);
}

template <int N, enum way WAY>
static __device__ __forceinline__ void
add_kept(float (&acc)[N / 2], const float (&kept)[kept_rows(N) / 2], struct tail *tail)
{
    constexpr int K = kept_rows(N);
    const uint32_t shelf = shelf_at<N, WAY>(tail);
#pragma unroll
    for (int e = 0; e < K / 2; e++)
        acc[e] = kept[e] + acc[e];
#pragma unroll
    for (int j = K / 8; j < N / 8; j++)
        add_before(acc + 4 * j, near_load(shelf + (j - K / 8) * consumers_of(WAY) * 16));
}

/* All tiles of a block, cut where the split cuts them. Four pieces are added two and two: the sum
 * of the lower half waits in the stash. */
template <int N, enum way WAY>
static __device__ __forceinline__ void
sum_cut(float (&acc)[N / 2], struct place &at, int32_t t0, int32_t t1, bool present,
        const struct sv_gemm_args &a, uint32_t smem, struct tail *tail, int wg, int mate)
{
    constexpr int THREADS = consumers_of(WAY);
    const int32_t middle = a.n_sharers == 4 ? t0 + sv_split_start(&a.split, 2) : -1;
    float kept[kept_rows(N) / 2];
#pragma unroll 1
    for (int32_t t = t0, end; t < t1; t = end) {
        end = min(t1, sv_split_start(&a.split, sv_split_unit(&a.split, t) + 1));
#pragma unroll
        for (int e = 0; e < N / 2; e++)
            acc[e] = 0.0f;
        sum_tiles<N, WAY>(acc, at, end - t, present, false, a, smem, tail, wg, mate);
        if (t != t0 && t != middle)
            add_kept<N, WAY>(acc, kept, tail);
        if (end == middle)
            stash_put<N, THREADS>(acc, a);
        else if (end < t1)
            keep_sum<N, WAY>(acc, kept, tail);
    }
    if (middle >= 0)
        stash_add<N, THREADS>(acc, a);
}

template <int N, enum way WAY, bool GATED>
static __device__ __forceinline__ void consume_whole(const struct sv_gemm_args &a, uint32_t smem,
                                                     struct tail *tail, int32_t n_items, int half)
{
    constexpr int CL = sharing_x(WAY), THREADS = consumers_of(WAY);
    const int wg = threadIdx.x / 128, mate = CL > 1 ? half ^ 1 : -1;
    struct place at = {0, 0};
    int turn = 0;
#if SV_GEMM_GROUPS
    if (wg == 1)
        turn_pass(wg);
#endif
    sv_pdl_wait();
    if (a.mode == SV_GEMM_ARGMAX)
        best_clear(a, THREADS / 32);
#pragma unroll 1
    for (int32_t i = blockIdx.x / CL; i < n_items; i += gridDim.x / CL) {
        const struct item it = item_of(a, i, N);
        const struct strip own = strip_of<WAY, GATED>(a, it.block, half, wg);
        float *const x_scale = tail->x_scale[turn];
        turn ^= 1;
        if (FP8)
            fetch_x_scales(a, x_scale, it.row, N, THREADS);
        const int32_t t0 = it.block * a.split.n_k, t1 = t0 + a.split.n_k;
        float acc[N / 2];
        if constexpr (WAY == WHOLE) {
            sum_cut<N, WAY>(acc, at, t0, t1, own.present, a, smem, tail, wg, mate);
        } else {
#pragma unroll
            for (int e = 0; e < N / 2; e++)
                acc[e] = 0.0f;
            sum_tiles<N, WAY>(acc, at, t1 - t0, own.present, false, a, smem, tail, wg, mate);
        }
        if (FP8)
            consumers_sync<WAY>();
        if (own.present)
            put_all<N, true, GATED, twice<N, GATED>()>(
                acc, a, out_spot<N, WAY, GATED>(a, it.block, own, tail, x_scale - it.row), it.row,
                THREADS / 32);
    }
}

#endif
