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

#include "backend/gpu/gemm_out.cuh"

#ifdef SV_CUDA_EMULATED
#include <emulated_pair.h>
#else
#include "backend/cuda/barrier.cuh"

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
#endif

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

/* Chunks of 16 rows of x: side 0 finishes those of the lower half of N, so that it is known at
 * compile time which registers go where. */
template <int N> static SV_HD constexpr int pair_half(void)
{
    return ((N + 15) / 16 + 1) / 2;
}

template <int N> static SV_HD int32_t pair_count(int32_t n_rows, uint32_t me)
{
    const int32_t n_chunks = (n_rows + 15) / 16, half = pair_half<N>();
    return me ? (n_chunks > half ? n_chunks - half : 0) : n_chunks < half ? n_chunks : half;
}

/* One lane of each warp, before anything can come. */
template <int N>
static __device__ __forceinline__ void pair_expect(int32_t n_rows, uint32_t me, uint32_t got,
                                                   bool present)
{
    bar_expect(got, present ? (uint32_t)pair_count<N>(n_rows, me) * (N > 8 ? 1024 : 512) : 0);
}

/* Puts this side's own half of its piece where it finds it again, and the other into the other's
 * shared memory. */
template <int N, int ME>
static __device__ __forceinline__ void pair_send(const float (&acc)[N / 2], int32_t n_rows,
                                                 const struct pair_side &p)
{
    constexpr int H = N > 8 ? 2 : 1, HALF = pair_half<N>();
    const uint32_t far_got = far_addr(p.got, 1 - ME);
#pragma unroll
    for (int c = 0; c < (N + 15) / 16; c++) {
        const bool upper = c >= HALF;
        const uint32_t at = pair_at<8>(p, (uint32_t)(ME * HALF + c - (upper ? HALF : 0)));
        if (c % 4 == 0)
            sv_jitter();
        if (upper == (ME != 0)) {
#pragma unroll
            for (int h = 0; h < H; h++)
                near_store(at + h * 512, acc[8 * c + 4 * h], acc[8 * c + 4 * h + 1],
                           acc[8 * c + 4 * h + 2], acc[8 * c + 4 * h + 3]);
        } else if (c * 16 < n_rows) {
            const uint32_t far = far_addr(at, 1 - ME);
#pragma unroll
            for (int h = 0; h < H; h++)
                far_store(far + h * 512, far_got, acc[8 * c + 4 * h], acc[8 * c + 4 * h + 1],
                          acc[8 * c + 4 * h + 2], acc[8 * c + 4 * h + 3]);
        }
    }
}

/* The sum of both pieces, of the i-th 16 rows of x that this side finishes; H times 8. */
template <int N, int H>
static __device__ __forceinline__ void pair_sum(float (&v)[8], const struct pair_side &p,
                                                uint32_t i)
{
    const uint32_t lower = pair_at<8>(p, i), upper = pair_at<8>(p, (uint32_t)pair_half<N>() + i);
#pragma unroll
    for (int h = 0; h < H; h++) {
        const float4 l = near_load(lower + h * 512), u = near_load(upper + h * 512);
        v[4 * h] = l.x + u.x;
        v[4 * h + 1] = l.y + u.y;
        v[4 * h + 2] = l.z + u.z;
        v[4 * h + 3] = l.w + u.w;
    }
}

/* Adds what the pair before has summed, which lies in L2, where the same side of it has put it, to
 * this pair's sums. They then lie in the place of the lower pieces. */
template <int N, int H>
static __device__ __forceinline__ void pair_add_before(const float4 *before,
                                                       const struct pair_side &p, int32_t count)
{
    constexpr int G = 4;
#pragma unroll 1
    for (int32_t base = 0; base < count; base += G) {
        uint4 q[G][H];
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (int j = 0; j < G; j++)
#pragma unroll
                for (int h = 0; h < H; h++) {
                    q[j][h] = make_uint4(0, 0, 0, 0);
                    if (base + j < count)
                        q[j][h] = gpu_look16(before + (base + j) * 256 + h * 128);
                    missing |= piece_missing(q[j][h]);
                }
            const uint32_t since = sv_jitter_now();
            while (missing && piece_missing(gpu_look16(before + (count - 1) * 256)))
                sv_jitter_watch(since);
            sv_jitter();
        } while (missing);
#pragma unroll
        for (int j = 0; j < G; j++) {
            if (base + j >= count)
                break;
            float v[8];
            const uint32_t at = pair_at<8>(p, (uint32_t)(base + j));
            sv_jitter();
            pair_sum<N, H>(v, p, (uint32_t)(base + j));
#pragma unroll
            for (int h = 0; h < H; h++) {
                near_store(at + h * 512, __uint_as_float(q[j][h].x) + v[4 * h],
                           __uint_as_float(q[j][h].y) + v[4 * h + 1],
                           __uint_as_float(q[j][h].z) + v[4 * h + 2],
                           __uint_as_float(q[j][h].w) + v[4 * h + 3]);
                gpu_post16(before + (base + j) * 256 + h * 128,
                           make_uint4(SV_PIECE_NONE, SV_PIECE_NONE, SV_PIECE_NONE, SV_PIECE_NONE));
            }
        }
    }
}

/* Stores sums, or hands them to the pair after: `count` times 16 rows of x from the c0-th on.
 * upper: they lie added to those of the pair before. */
template <int N, bool GATED, enum ending END>
static __device__ __forceinline__ void
pair_finish(const struct sv_gemm_args &a, const struct pair_side &p, int32_t c0, int32_t count,
            bool upper, float4 *after, const struct spot &s, int n_warps)
{
    constexpr int H = N > 8 ? 2 : 1;
#pragma unroll 1
    for (int32_t i = 0; i < count; i++) {
        float v[8] = {};
        sv_jitter();
        if (upper) {
#pragma unroll
            for (int h = 0; h < H; h++) {
                const float4 l = near_load(pair_at<8>(p, (uint32_t)i) + h * 512);
                v[4 * h] = l.x;
                v[4 * h + 1] = l.y;
                v[4 * h + 2] = l.z;
                v[4 * h + 3] = l.w;
            }
        } else {
            pair_sum<N, H>(v, p, (uint32_t)i);
        }
        if (after) {
#pragma unroll
            for (int h = 0; h < H; h++)
                gpu_post16(after + i * 256 + h * 128,
                           make_uint4(piece_word(v[4 * h]), piece_word(v[4 * h + 1]),
                                      piece_word(v[4 * h + 2]), piece_word(v[4 * h + 3])));
        } else {
            put<(N > 8), true, GATED, END>(v, a, s, (c0 + i) * 16, n_warps);
        }
    }
}

/* index: which pair of the block's this is, of n_pairs. Instructions run once a launch and are not
 * at hand: so registers go to shared memory in little code, and one loop does the rest. */
template <int N, int BANDS, bool GATED, bool SENDS>
static __device__ __forceinline__ void
pair_exchange(const float (&acc)[N / 2], const struct sv_gemm_args &a, const struct pair_side &p,
              int32_t index, int32_t n_pairs, int32_t unit, int32_t block, int band,
              const struct spot &s, int n_warps)
{
    constexpr int H = N > 8 ? 2 : 1;
    const int32_t c0 = p.me ? pair_half<N>() : 0, count = pair_count<N>(a.n_rows, p.me);
    const bool upper = index > 0;
    bar_wait(p.ready, 0);
    if (p.me)
        pair_send<N, 1>(acc, a.n_rows, p);
    else
        pair_send<N, 0>(acc, a.n_rows, p);
    SV_MARK(a, 3);
    bar_wait(p.got, 0);
    SV_MARK(a, 4);
    if (upper)
        pair_add_before<N, H>(piece_of<N, BANDS>(a, unit - 2, block, band) + c0 * 256, p, count);
    float4 *after =
        index + 1 < n_pairs ? piece_of<N, BANDS>(a, unit, block, band) + c0 * 256 : NULL;
    /* Not sent: weight rows of padding, which end as ANY. */
    if (SENDS && a.sends && ending_of(a, s) == PLAIN)
        pair_finish<N, false, PUSHED>(a, p, c0, count, upper, after, s, n_warps);
    else
        FOR_ENDING(GATED, a, s,
                   (pair_finish<N, GATED, END>(a, p, c0, count, upper, after, s, n_warps)));
    if (GATED && !after && count > 0)
        gated_end<(N > 8), true>(a, s);
}

#endif
