/*
 * gemm_pair.cuh - adding up the pieces of a cut sum between two neighbouring units that form a
 * cluster: through each other's shared memory, not through L2.
 *
 * Included by gemm_sm90.cu. Two thread blocks computed the same 128 weight rows over neighbouring
 * stretches of k. Each finishes half of the rows of x: it sends the other half of its piece into
 * the other's ring of tiles, which is free by then but for its last stage, adds the two pieces,
 * and either stores the sum or, where a further pair shares the block, hands it to that one through
 * L2 (gemm_out.cuh), which adds it to its own. Must not: add in any other order.
 */
#ifndef SV_CUDA_GEMM_PAIR_CUH
#define SV_CUDA_GEMM_PAIR_CUH

#include "backend/cuda/barrier.cuh"
#include "backend/cuda/gemm_out.cuh"

/* The same place in block `rank` of the cluster. */
static __device__ __forceinline__ uint32_t far_addr(uint32_t addr, uint32_t rank)
{
    uint32_t far;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(addr), "r"(rank));
    return far;
}

/* 16 bytes into another block's shared memory; its barrier counts them when they are there. */
static __device__ __forceinline__ void far_store(uint32_t far, uint32_t far_bar, float a, float b,
                                                 float c, float d)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(far),
                 "r"(__float_as_uint(a)), "r"(__float_as_uint(b)), "r"(__float_as_uint(c)),
                 "r"(__float_as_uint(d)), "r"(far_bar)
                 : "memory");
}

static __device__ __forceinline__ void near_store(uint32_t at, float a, float b, float c, float d)
{
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(a), "f"(b), "f"(c),
                 "f"(d)
                 : "memory");
}

static __device__ __forceinline__ float4 near_load(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* One thread block's side of a pair. */
struct pair_side {
    uint32_t me;          /* 0: the lower stretch of k */
    uint32_t ring, bytes; /* of this block's shared memory; the same in the other */
    uint32_t begin;       /* offset of the stage after the last one in use; it wraps */
    uint32_t ready;       /* barrier: all warps of both have done with all stages but the last */
    uint32_t got;         /* barrier: this warp's half has come */
};

/* A warp's i-th KiB in the ring, of `WARPS` warps. */
template <int WARPS>
static __device__ __forceinline__ uint32_t pair_at(const struct pair_side &p, uint32_t i)
{
    const uint32_t at = p.begin + (i * WARPS + threadIdx.x / 32) * 1024;
    return p.ring + (at >= p.bytes ? at - p.bytes : at) + (threadIdx.x & 31) * 16;
}

/* Chunks of 16 rows of x that a side finishes. */
static SV_HD int32_t pair_first(int32_t n_chunks, uint32_t side)
{
    return side == 0 ? 0 : side == 1 ? n_chunks / 2 : n_chunks;
}

/* One lane of each warp, before anything can come. */
template <int N>
static __device__ __forceinline__ void pair_expect(int32_t n_rows, uint32_t me, uint32_t got,
                                                   bool present)
{
    const int32_t n_chunks = (n_rows + 15) / 16;
    const int32_t mine = pair_first(n_chunks, me + 1) - pair_first(n_chunks, me);
    bar_expect(got, present ? (uint32_t)mine * (N > 8 ? 1024 : 512) : 0);
}

/* index: which pair of the block's this is, of n_pairs. Both halves lie in the ring. */
template <int N, int BANDS, bool GATED, enum ending END>
static __device__ __forceinline__ void pair_finish(const struct sv_gemm_args &a, const struct pair_side &p,
                                                   int32_t index, int32_t n_pairs, int32_t unit,
                                                   int32_t block, int32_t band, const struct spot &s, int n_warps)
{
    constexpr int H = N > 8 ? 2 : 1;
    const int32_t n_chunks = (a.n_rows + 15) / 16, most = n_chunks - n_chunks / 2;
    const int32_t c0 = pair_first(n_chunks, p.me), c1 = pair_first(n_chunks, p.me + 1);
    /* What the pair before has summed lies in L2, where the same side of it has put it. */
    const float4 *before = piece_of<N, BANDS>(a, unit - 2, block, band);
    float4 *after = piece_of<N, BANDS>(a, unit, block, band);
    constexpr int G = 4;
#pragma unroll 1
    for (int32_t base = c0; base < c1; base += G) {
        uint4 q[G][H];
        if (index > 0) {
            bool missing;
            do {
                missing = false;
#pragma unroll
                for (int j = 0; j < G; j++)
#pragma unroll
                    for (int h = 0; h < H; h++) {
                        q[j][h] = make_uint4(0, 0, 0, 0);
                        if (base + j < c1)
                            q[j][h] = piece_load(before + (base + j) * 256 + h * 128);
                        missing |= piece_missing(q[j][h]);
                    }
                while (missing && piece_missing(piece_load(before + (c1 - 1) * 256)))
                    ;
            } while (missing);
#pragma unroll
            for (int j = 0; j < G; j++)
#pragma unroll
                for (int h = 0; h < H; h++)
                    if (base + j < c1)
                        piece_store(
                            before + (base + j) * 256 + h * 128,
                            make_uint4(SV_PIECE_NONE, SV_PIECE_NONE, SV_PIECE_NONE, SV_PIECE_NONE));
        }
        __syncwarp();
#pragma unroll
        for (int j = 0; j < G; j++) {
            if (base + j >= c1)
                break;
            float v[8];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (h >= H) {
                    v[4] = v[5] = v[6] = v[7] = 0.0f;
                    break;
                }
                const float4 l = near_load(pair_at<8>(p, (uint32_t)(base + j - c0)) + h * 512);
                const float4 u = near_load(pair_at<8>(p, (uint32_t)(most + base + j - c0)) + h * 512);
                float x[4] = {l.x, l.y, l.z, l.w};
                const float y[4] = {u.x, u.y, u.z, u.w};
                const uint32_t w[4] = {q[j][h].x, q[j][h].y, q[j][h].z, q[j][h].w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    x[e] += y[e];
                    v[4 * h + e] = index > 0 ? __uint_as_float(w[e]) + x[e] : x[e];
                }
            }
            if (index + 1 < n_pairs) {
#pragma unroll
                for (int h = 0; h < H; h++)
                    piece_store(after + (base + j) * 256 + h * 128,
                                make_uint4(piece_word(v[4 * h]), piece_word(v[4 * h + 1]),
                                           piece_word(v[4 * h + 2]), piece_word(v[4 * h + 3])));
            } else {
                put<(N > 8), true, GATED, END>(v, a, s, (base + j) * 16, n_warps);
            }
        }
    }
}

template <int N, int BANDS, bool GATED>
static __device__ __forceinline__ void
pair_exchange(const float (&acc)[N / 2], const struct sv_gemm_args &a, const struct pair_side &p,
              int32_t index, int32_t n_pairs, int32_t unit, int32_t block, int band,
              const struct spot &s, int n_warps)
{
    constexpr int H = N > 8 ? 2 : 1;
    const int32_t n_chunks = (a.n_rows + 15) / 16, most = n_chunks - n_chunks / 2;
    const int32_t middle = pair_first(n_chunks, 1), c0 = pair_first(n_chunks, p.me),
                  c1 = pair_first(n_chunks, p.me + 1);
    const uint32_t far_got = far_addr(p.got, p.me ^ 1);
    bar_wait(p.ready, 0);
#pragma unroll
    for (int c = 0; c < (N + 15) / 16; c++) {
        if (c >= n_chunks)
            break;
        const bool upper = c >= middle;
        const uint32_t at = pair_at<8>(p, p.me * (uint32_t)most + (uint32_t)(c - (upper ? middle : 0)));
        if (upper == (p.me != 0)) {
#pragma unroll
            for (int h = 0; h < H; h++)
                near_store(at + h * 512, acc[8 * c + 4 * h], acc[8 * c + 4 * h + 1],
                           acc[8 * c + 4 * h + 2], acc[8 * c + 4 * h + 3]);
        } else {
            const uint32_t far = far_addr(at, p.me ^ 1);
#pragma unroll
            for (int h = 0; h < H; h++)
                far_store(far + h * 512, far_got, acc[8 * c + 4 * h], acc[8 * c + 4 * h + 1],
                          acc[8 * c + 4 * h + 2], acc[8 * c + 4 * h + 3]);
        }
    }
    SV_MARK(a, 3);
    bar_wait(p.got, 0);
    SV_MARK(a, 4);
    FOR_ENDING(GATED, a, s, (pair_finish<N, BANDS, GATED, END>(a, p, index, n_pairs, unit, block, band, s, n_warps)));
    if (GATED && index + 1 == n_pairs && c0 < c1)
        gated_end<(N > 8), true>(a, s);
}

#endif
