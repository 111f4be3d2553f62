/*
 * moe_codes.cuh - the products of moe.cuh where weights are MXFP4 codes (mxfp4.cuh). The same sums,
 * and so the same bits, as of the bf16 matrix of their values.
 *
 * Included by moe.cu and cuda/moe_sm90.cu after moe.cuh. A lane keeps the codes of its strip's next
 * tiles in registers, and one tile expanded: no wave waits for another's weights. x of up to 16
 * entries lies in shared memory as a whole, so that there the loop over k has no barrier; more
 * entries have a ring. Must not: let the number of entries decide the order of a sum.
 */
#ifndef SV_GPU_MOE_CODES_CUH
#define SV_GPU_MOE_CODES_CUH

#include "backend/gpu/moe.cuh"
#include "backend/gpu/mxfp4.cuh"

template <int N, int GROUPS> struct coded {
    enum {
        WHOLE = N <= 16, /* x is */
        STRIPS = CODED_STRIP * GROUPS * WAVES,
        X = N * 128,
        ROOM = (GPU_SMALL_SHARED ? 60 * 1024 : 98 * 1024) - STRIPS,
        STAGES = WHOLE          ? 2
                 : ROOM / X < 6 ? ROOM / X
                                : 6
    };
};

/* A lane's words of a tile, and the scales of its rows. */
struct lane_codes {
    uint32_t word[CODED_WORDS], scales;
};

/* strip: its first tile's codes; scales: its first tile's scales. */
static __device__ __forceinline__ struct lane_codes load_codes(const uint8_t *strip,
                                                               const uint8_t *scales, int32_t kk)
{
    struct lane_codes c;
    const int64_t at = (int64_t)kk * SV_MXFP4_TILE_BYTES;
    const uint32_t lane = gpu_lane() % 32;
    if (CODED_WORDS == 4) {
        const uint4 v = *(const uint4 *)(strip + at + 16 * lane);
        c.word[0] = v.x;
        c.word[1] = v.y;
        c.word[CODED_WORDS - 2] = v.z;
        c.word[CODED_WORDS - 1] = v.w;
    } else {
        const uint2 v = *(const uint2 *)(strip + at + 16 * lane + gpu_lane() / 32 * 8);
        c.word[0] = v.x;
        c.word[1] = v.y;
    }
    c.scales = *(const uint32_t *)(scales + at + lane / 4 * 4);
    return c;
}

static __device__ __forceinline__ void expand_tile(uint32_t (&pair)[CODED_WORDS][4],
                                                   const struct lane_codes &c)
{
    const int first = CODED_WORDS < 4 ? gpu_lane() / 32 * CODED_WORDS : 0;
#pragma unroll
    for (int q = 0; q < CODED_WORDS; q++)
        sv_mxfp4_expand(pair[q], c.word[q], first + q, c.scales);
}

template <int N, bool GATED, int GROUPS>
static __global__ void __launch_bounds__(GROUPS *WAVES *GPU_WAVE,
                                         coded<N, GROUPS>::WHOLE ? 4 : GROUPS)
    coded_kernel(const struct sv_moe a)
{
    typedef coded<N, GROUPS> C;
    GPU_SHARED(smem_bytes);
    __shared__ int32_t source[N];
    enum {
        STAGES = C::STAGES,
        AHEAD = coded_ahead(N),
        X_LINES = N * 8 / GPU_WAVE / (GROUPS * WAVES)
    };
    const uint32_t smem = gpu_shared_at(smem_bytes), own = smem + gpu_wave() * CODED_STRIP;
    const uint32_t x_at = smem + C::STRIPS;
    if (GATED)
        sv_pdl_wait();
    sv_pdl_launch();
    const bool few = a.r.n_rows <= N;
    struct unit u =
        few ? unit_of_few(a, (int32_t)blockIdx.y) : unit_of_many<N>(a, (int32_t)blockIdx.y);
    if (u.expert < 0) {
        if (!GATED)
            sv_pdl_wait();
        return;
    }
    const int32_t n_k = sv_tiles(a.k);
    const struct strip s =
        strip_of<GATED, GROUPS, SV_MXFP4_TILE_BYTES, SV_MXFP4_STRIP_BYTES>(a, u.expert);
    const uint8_t *const scales =
        s.w - s.row0 % SV_TILE / 16 * (SV_MXFP4_STRIP_BYTES - 32) + SV_MXFP4_SCALES_AT;
    struct lane_codes codes[AHEAD] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (i < n_k && s.there)
            codes[i] = load_codes(s.w, scales, i);
    if (few) {
        u.place = look(a.r.first + u.expert);
        u.end = look(a.r.first + u.expert + 1);
    }
    if (!GATED)
        sv_pdl_wait();
    const int32_t n = min(u.end - u.place, (int32_t)N);
    float acc[gpu_sums(N)];
#pragma unroll
    for (int i = 0; i < gpu_sums(N); i++)
        acc[i] = 0.0f;
    for (int i = threadIdx.x; i < N; i += GROUPS * WAVES * GPU_WAVE)
        source[i] = i < n ? source_row(a, u.place + i) * (a.k / 8) : -1;
    __syncthreads();
    if (C::WHOLE) {
        /* A wave's copy is some rows of a tile; what lies in rows without an entry does not matter.
         */
        constexpr int EACH = GPU_WAVE / 8;
        const int32_t calls = (n + EACH - 1) / EACH;
        for (int32_t i = gpu_wave(); i < n_k * calls; i += GROUPS * WAVES) {
            const int32_t kk = i / calls;
            gpu_copy_rows<128, false>(
                x_at + kk * C::X, i % calls * EACH,
                [&](uint32_t r, uint32_t chunk) { return x_source(a, source, kk, r, chunk); });
        }
        gpu_copy_commit();
        gpu_copy_wait<0>(0, 0);
        handed_over();
        __syncthreads();
    } else {
        fill_x<N, GROUPS>(a, source, min((int32_t)STAGES - 1, n_k), x_at, C::X);
    }
    gpu_copy_settled();
    uint32_t now = x_at, next = x_at + (STAGES - 1) * C::X;
    /* A tile is expanded while products of the one before go on. */
    uint32_t pair[2][CODED_WORDS][4];
    static_assert(AHEAD % 2 == 0, "tiles take turns");
    expand_tile(pair[0], codes[0]);
    if (AHEAD < n_k && s.there)
        codes[0] = load_codes(s.w, scales, AHEAD);
#pragma unroll 1
    for (int32_t kk0 = 0; kk0 < n_k; kk0 += AHEAD)
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int32_t kk = kk0 + i;
            if (kk >= n_k)
                break;
            if (!C::WHOLE) {
                gpu_copy_wait<STAGES - 2>(
                    STAGES - 2, kk + STAGES - 2 < n_k ? min(kk, (int32_t)STAGES - 2) * X_LINES : 0);
                handed_over();
                __syncthreads();
            }
            begin_coded<N>(acc, pair[i % 2], own, now);
            if (!C::WHOLE) {
                if (kk + STAGES - 1 < n_k)
                    load_x<N, GROUPS>(a, source, kk + STAGES - 1, next);
                gpu_copy_commit();
            }
            constexpr int LAST = AHEAD - 1;
            struct lane_codes &following = codes[i == LAST ? 0 : i + 1];
            expand_tile(pair[(i + 1) % 2], following);
            if (kk + 1 + AHEAD < n_k && s.there)
                following = load_codes(s.w, scales, kk + 1 + AHEAD);
            end_coded();
            next = now;
            now = !C::WHOLE && now + C::X == x_at + STAGES * C::X ? x_at : now + C::X;
        }
    if (GATED)
        __syncthreads(); /* what is lent lies where x did */
    put<N, GATED>(a, acc, u.expert, s.row0, u.place, n, (float *)smem_bytes);
}

/* [1]: gate and up. */
template <int N, int GROUPS> static struct sv_moe_width coded_width_of(void)
{
    typedef coded<N, GROUPS> C;
    return {N,
            C::STRIPS + (C::WHOLE ? 0 : C::X * C::STAGES),
            C::WHOLE ? C::X : 0,
            GROUPS * WAVES * GPU_WAVE,
            GROUPS,
            {coded_kernel<N, false, GROUPS>, coded_kernel<N, true, GROUPS>}};
}

#endif
