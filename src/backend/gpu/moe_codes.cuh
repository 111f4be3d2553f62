/*
 * moe_codes.cuh - the products of moe.cuh where weights are MXFP4 codes (mxfp4.cuh). The same sums,
 * and so the same bits, as of the bf16 matrix of their values.
 *
 * Included by moe.cu and cuda/moe_sm90.cu after moe.cuh. A wave fetches the codes of its strip
 * for itself, some tiles ahead, and has one or two expanded: none waits for another's weights. x of
 * up to 16 entries lies in shared memory as a whole, so that there the loop over k has no barrier;
 * more entries have a ring. Must not: let the number of entries decide the order of a sum.
 */
#ifndef SV_GPU_MOE_CODES_CUH
#define SV_GPU_MOE_CODES_CUH

#include "backend/gpu/moe.cuh"
#include "backend/gpu/mxfp4.cuh"

/* x, then what each wave has for itself. */
template <int N, int GROUPS> struct coded {
    enum {
        WHOLE = N <= 8, /* x is */
        X = N * 128,
        OWN = code_queue<N>::BYTES * GROUPS * WAVES,
        ROOM = (GPU_SMALL_SHARED ? 60 * 1024 : 98 * 1024) - OWN,
        AT_ONCE = code_queue<N>::AT_ONCE,
        MOST = N <= 16 ? 6 * AT_ONCE : 6,
        STAGES = (ROOM / X < MOST ? ROOM / X : MOST) / AT_ONCE * AT_ONCE
    };
};

template <bool LARGE>
static __device__ __forceinline__ void expand_half(uint32_t (&pair)[8], const struct lane_codes &c,
                                                   int h, int first)
{
    sv_mxfp4_expand<LARGE>(pair, c.word[2 * h], c.word[2 * h + 1], first + h, c.scales);
}

/* Pairs of a lane in a tile, by halves of its columns. */
typedef uint32_t lane_pairs[CODED_WORDS / 2][8];

template <int T>
static __device__ __forceinline__ void expand_tiles(lane_pairs (&pair)[T],
                                                    const struct lane_codes (&c)[T])
{
    const int first = CODED_WORDS < 4 ? gpu_lane() / 32 : 0;
    uint32_t scales = 0;
#pragma unroll
    for (int t = 0; t < T; t++)
        scales |= c[t].scales;
    if (sv_mxfp4_large(scales)) {
#pragma unroll
        for (int i = 0; i < T * CODED_WORDS / 2; i++)
            expand_half<true>(pair[i % T][i / T], c[i % T], i / T, first);
    } else {
#pragma unroll
        for (int i = 0; i < T * CODED_WORDS / 2; i++)
            expand_half<false>(pair[i % T][i / T], c[i % T], i / T, first);
    }
}

template <int N, bool GATED, int GROUPS>
static __global__ void __launch_bounds__(GROUPS *WAVES *GPU_WAVE, N <= 16 ? 4 : GROUPS)
    coded_kernel(const struct sv_moe a)
{
    typedef coded<N, GROUPS> C;
    GPU_SHARED(smem_bytes);
    __shared__ int32_t source[N];
    enum {
        AT_ONCE = C::AT_ONCE,            /* tiles in a step */
        AHEAD = C::STAGES / AT_ONCE - 1, /* steps whose x is on its way */
        TURNS = code_queue<N>::TURNS,
        STEPS = TURNS > 2 * AT_ONCE ? TURNS / AT_ONCE : 2,
        X_LINES = N * 8 / GPU_WAVE / (GROUPS * WAVES) * AT_ONCE
    };
    const int32_t n_k = sv_tiles(a.k);
    const uint32_t x_at = gpu_shared_at(smem_bytes);
    const uint32_t own =
        x_at + (C::WHOLE ? n_k : (int32_t)C::STAGES) * C::X + gpu_wave() * code_queue<N>::BYTES;
    code_queue<N> codes;
    codes.open(own);
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
    const int32_t each = sv_mxfp4_strip_bytes(a.k);
    const struct strip s = strip_of<GATED, GROUPS>(a, u.expert, (int64_t)each * 4, each);
    codes.begin(s.there ? s.w : sv_moe_matrix(a.gate, u.expert), n_k);
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
        fill_x<N, GROUPS>(a, source, min((int32_t)(AHEAD * AT_ONCE), n_k), x_at, C::X);
    }
    gpu_copy_settled();
    uint32_t now = x_at, next = x_at + AHEAD * AT_ONCE * C::X;
    /* Tiles are expanded while products of those before go on. */
    lane_pairs pair[2][AT_ONCE];
    const auto take = [&](lane_pairs(&into)[AT_ONCE], int i, int32_t kk) {
        struct lane_codes c[AT_ONCE];
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++)
            codes.take((i + t) % TURNS, kk + t, [&](const struct lane_codes &from) {
                c[t] = from;
                if (t == AT_ONCE - 1)
                    expand_tiles(into, c);
            });
    };
    static_assert(STEPS * AT_ONCE % TURNS == 0 && STEPS % 2 == 0, "tiles take turns");
    take(pair[0], 0, 0);
#pragma unroll 1
    for (int32_t kk0 = 0; kk0 < n_k; kk0 += STEPS * AT_ONCE)
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int32_t kk = kk0 + i * AT_ONCE;
            if (kk >= n_k)
                break;
            if (!C::WHOLE) {
                constexpr int MOST = AHEAD - 1;
                gpu_copy_wait<MOST>(
                    MOST, kk + MOST * AT_ONCE < n_k ? min(kk / AT_ONCE, MOST) * X_LINES : 0);
                handed_over();
                __syncthreads();
            }
#pragma unroll
            for (int t = 0; t < AT_ONCE; t++)
                if (t == 0 || kk + t < n_k)
                    begin_coded<N>(acc, pair[i % 2][t], own, now + t * C::X);
            if (!C::WHOLE) {
#pragma unroll
                for (int t = 0; t < AT_ONCE; t++)
                    if (kk + AHEAD * AT_ONCE + t < n_k)
                        load_x<N, GROUPS>(a, source, kk + AHEAD * AT_ONCE + t, next + t * C::X);
                gpu_copy_commit();
            }
            take(pair[1 - i % 2], (i + 1) * AT_ONCE, kk + AT_ONCE);
            end_coded();
            next = now;
            now += AT_ONCE * C::X;
            if (!C::WHOLE && now == x_at + C::STAGES * C::X)
                now = x_at;
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
            C::OWN + (C::WHOLE ? 0 : C::X * C::STAGES),
            C::WHOLE ? C::X : 0,
            GROUPS * WAVES * GPU_WAVE,
            GROUPS,
            {coded_kernel<N, false, GROUPS>, coded_kernel<N, true, GROUPS>}};
}

#endif
