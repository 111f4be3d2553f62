/*
 * gemm_halves.cuh - products of 257 to 512 rows whose sums are cut at half of k: a thread block
 * takes 128 or 192 weight rows, half of k and half of x's rows, and exchanges half of its sums with
 * the one that has the other half of k.
 *
 * Included by gemm_sm90.cu, in the midst of it, after gemm_whole.cuh. What gemm_units.cuh gives to
 * four thread blocks (two units, two halves of their weight rows), twice, these give to as many
 * once: larger tiles, which a multiprocessor takes in for fewer bytes a product, and weights that
 * are read once. Where a half of k is two pieces, the thread block keeps the first one's sums as
 * gemm_whole.cuh does. Must not: add in any other order than gemm_pair.cuh.
 */
#ifndef SV_CUDA_GEMM_HALVES_CUH
#define SV_CUDA_GEMM_HALVES_CUH

/* What a thread block computes. */
struct slab {
    int32_t half;        /* of k */
    int32_t row, n_rows; /* of x */
    int32_t band;        /* its first, counted through all parts */
};

template <enum way WAY>
static __device__ __forceinline__ struct slab slab_of(const struct sv_gemm_args &a)
{
    const int32_t b = (int32_t)blockIdx.x;
    struct slab s;
    s.half = b & 1;
    s.row = (b / 2 & 1) * a.x_rows;
    s.n_rows = min(a.x_rows, a.n_rows - s.row);
    s.band = b / 4 * groups_of(WAY);
    return s;
}

/* Tiles along k before piece i of a block. */
static __device__ __forceinline__ int32_t piece_start(const struct sv_gemm_args &a, int32_t i)
{
    return sv_split_start(&a.split, i);
}

/* The part that a band lies in; band becomes its number there. */
static __device__ __forceinline__ const struct sv_gemm_item &part_at(const struct sv_gemm_args &a,
                                                                     int32_t &band)
{
    int p = 0;
    while (p + 1 < a.n_parts && band >= a.part[p].n_bands)
        band -= a.part[p++].n_bands;
    return a.part[p];
}

template <int N, enum way WAY>
static __device__ __forceinline__ void produce_half(const CUtensorMap *map,
                                                    const struct sv_gemm_args &a, uint32_t smem,
                                                    struct tail *tail, const struct slab &own)
{
    typedef ring<N, WAY> R;
    constexpr int G = groups_of(WAY);
    uint64_t keep;
    const uint64_t once = stream_policy();
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    const int32_t k0 = own.half ? piece_start(a, a.n_sharers / 2) : 0,
                  n = (own.half ? a.split.n_k : piece_start(a, a.n_sharers / 2)) - k0;
    const uint8_t *w[G];
    uint32_t bytes = (uint32_t)(a.x_rows * X_ROW_BYTES);
#pragma unroll
    for (int g = 0; g < G; g++) {
        int32_t band = own.band + g;
        const struct sv_gemm_item &it = part_at(a, band);
        w[g] = band < it.n_bands ? it.w + ((size_t)band * a.split.n_k + k0) * SV_TILE_BYTES : NULL;
        bytes += w[g] ? (uint32_t)SV_TILE_BYTES : 0;
    }
    const int32_t early = min(a.n_stages, n);
    int32_t s = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int32_t i = 0; i < n + early; i++) {
        /* First the weights of the ring's first round, then its x, then both of each tile. */
        const bool has_w = i < early || i >= 2 * early, has_x = i >= early;
        if (i == early) {
            sv_pdl_launch();
            sv_pdl_wait();
            SV_MARK(a, 6);
        }
        const uint32_t full = smem_u32(&tail->full[s]), stage = smem + s * R::STAGE;
        if (has_w && has_x)
            bar_wait(smem_u32(&tail->empty[s]), parity);
        if (has_w) {
            bar_expect(full, bytes);
#pragma unroll
            for (int g = 0; g < G; g++)
                if (w[g]) {
                    copy_tile(stage + g * SV_TILE_BYTES, w[g], SV_TILE_BYTES, full, once);
                    w[g] += SV_TILE_BYTES;
                }
        }
        if (has_x)
            copy_x<1>(stage + R::W, map, (k0 + i - early) * X_COLS, own.row, full, keep);
        if (++s == early) {
            s = 0;
            parity ^= i >= 2 * early;
        }
    }
}

/* The c-th 16 rows of x, of which this block has acc and the other block o. */
template <int N, enum ending END>
static __device__ __forceinline__ void put_sum(const float (&acc)[N / 2], int c,
                                               const float4 (&o)[2], const struct sv_gemm_args &a,
                                               const struct slab &own, const struct spot &s)
{
    float v[8];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        v[4 * h] = acc[8 * c + 4 * h] + o[h].x;
        v[4 * h + 1] = acc[8 * c + 4 * h + 1] + o[h].y;
        v[4 * h + 2] = acc[8 * c + 4 * h + 2] + o[h].z;
        v[4 * h + 3] = acc[8 * c + 4 * h + 3] + o[h].w;
    }
    put<true, true, false, END>(v, a, s, own.row + c * 16, 0);
}

/* FP8: those of this lane's two weight rows, and where those of rows of x lie. */
static __device__ __forceinline__ void spot_scales(struct spot &s, const struct sv_gemm_item &it,
                                                   const float *x_scale)
{
    const int32_t row = s.row0 + (threadIdx.x & 31) / 4;
    s.w0 = __ldg(it.scale + row);
    s.w1 = __ldg(it.scale + row + 8);
    s.x_scale = x_scale;
}

/* What a block finishes: the MINE-th 16 rows of x and on. */
template <int N, int WARPS, int MINE, enum ending END>
static __device__ __forceinline__ void
half_put(const float (&acc)[N / 2], const struct sv_gemm_args &a, const struct pair_side &p,
         const struct slab &own, const struct spot &s)
{
#pragma unroll
    for (int c = 0; c < N / 32; c++)
        if ((MINE + c) * 16 < own.n_rows) {
            const uint32_t at = pair_at<WARPS>(p, (uint32_t)c);
            const float4 o[2] = {near_load(at), near_load(at + 512)};
            put_sum<N, END>(acc, MINE + c, o, a, own, s);
        }
}

/* As pair_exchange, but the upper half of k finishes the upper half of N, and what a block finishes
 * it adds to what it holds. The halves need not have equally many tiles: there_begin is where the
 * other's ring goes on. */
template <int N, enum way WAY, int UPPER>
static __device__ __forceinline__ void
half_send(const float (&acc)[N / 2], const struct sv_gemm_args &a, const struct pair_side &p,
          uint32_t there_begin, const struct slab &own)
{
    constexpr int WARPS = consumers_of(WAY) / 32, C = N / 32, SEND = UPPER ? 0 : C;
    struct pair_side there = p;
    there.begin = there_begin;
    const uint32_t far_got = far_addr(p.got, 1 - UPPER);
    bar_wait(p.ready, 0);
#pragma unroll
    for (int c = 0; c < C; c++)
        if ((SEND + c) * 16 < own.n_rows) {
            if (c % 4 == 0)
                sv_jitter();
            const uint32_t far = far_addr(pair_at<WARPS>(there, (uint32_t)c), 1 - UPPER);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float *v = acc + 8 * (SEND + c) + 4 * h;
                far_store(far + h * 512, far_got, v[0], v[1], v[2], v[3]);
            }
        }
    SV_MARK(a, 3);
}

template <int N, enum way WAY, int UPPER>
static __device__ __forceinline__ void
half_finish(const float (&acc)[N / 2], const struct sv_gemm_args &a, const struct pair_side &p,
            const struct slab &own, const struct spot &s)
{
    constexpr int WARPS = consumers_of(WAY) / 32, MINE = UPPER ? N / 32 : 0;
    bar_wait(p.got, 0);
    SV_MARK(a, 4);
    FOR_ENDING(false, a, s, (half_put<N, WARPS, MINE, END>(acc, a, p, own, s)));
}

template <int N, enum way WAY>
static __device__ __forceinline__ void consume_half(const struct sv_gemm_args &a, uint32_t smem,
                                                    struct tail *tail, const struct slab &own)
{
    typedef ring<N, WAY> R;
    const int warp = threadIdx.x / 32, wg = threadIdx.x / 128;
    const int32_t n_pieces = a.n_sharers / 2, first = own.half * n_pieces;
    int32_t band = own.band + wg;
    const struct sv_gemm_item &it = part_at(a, band);
    const bool present = band < it.n_bands;
    struct place at = {0, 0};
    float acc[N / 2], kept[kept_rows(N) / 2];
    float *const x_scale = tail->x_scale[0];
    sv_pdl_wait();
    if (FP8) {
        fetch_x_scales(a, x_scale, own.row, N, consumers_of(WAY));
        consumers_sync<WAY>();
    }
    if ((threadIdx.x & 31) == 0)
        bar_expect(
            smem_u32(&tail->got[warp]),
            present
                ? (uint32_t)min(N / 32, max(0, (own.n_rows + 15) / 16 - own.half * (N / 32))) * 1024
                : 0);
#pragma unroll 1
    for (int32_t i = 0; i < n_pieces; i++) {
        const int32_t n = piece_start(a, first + i + 1) - piece_start(a, first + i);
        const bool last = i + 1 == n_pieces;
#pragma unroll
        for (int e = 0; e < N / 2; e++)
            acc[e] = 0.0f;
        sum_tiles<N, WAY>(acc, at, n, present, last, a, smem, tail, wg, -1);
        if (WAY == HALVES && i)
            add_kept<N, WAY>(acc, kept, tail);
        else if (WAY == HALVES && !last)
            keep_sum<N, WAY>(acc, kept, tail);
    }
    SV_MARK(a, 2);
    const struct pair_side side = {(uint32_t)own.half,
                                   smem,
                                   (uint32_t)a.n_stages * R::STAGE,
                                   (uint32_t)at.s * R::STAGE,
                                   smem_u32(&tail->ready),
                                   smem_u32(&tail->got[warp])};
    const int32_t lower = piece_start(a, n_pieces), there = own.half ? lower : a.split.n_k - lower;
    const uint32_t there_begin = (uint32_t)(there % a.n_stages) * R::STAGE;
    struct spot spot = spot_in(a, it, band, patches_at<N>(tail, warp));
    if (FP8 && present)
        spot_scales(spot, it, x_scale - own.row);
    if (!present) {
        bar_wait(side.ready, 0); /* the other block's word must find this one here */
    } else if (own.half) {
        half_send<N, WAY, 1>(acc, a, side, there_begin, own);
        half_finish<N, WAY, 1>(acc, a, side, own, spot);
    } else {
        half_send<N, WAY, 0>(acc, a, side, there_begin, own);
        half_finish<N, WAY, 0>(acc, a, side, own, spot);
    }
}

#endif
