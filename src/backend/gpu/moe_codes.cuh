/*
 * moe_codes.cuh - the products of moe.cuh where weights are codes: MXFP4 (mxfp4.cuh), or others
 * (codes.cuh). The same sums, and so the same bits, as of the bf16 matrix of their values.
 *
 * Included by moe.cu and cuda/moe_sm90.cu after moe.cuh. A wave fetches the codes of its strip
 * for itself, some tiles ahead, and has one or two expanded: none waits for another's weights. x of
 * up to 8 entries lies in shared memory as a whole, so that there the loop over k has no barrier;
 * more entries have a ring. Must not: let the number of entries decide the order of a sum.
 */
#ifndef SV_GPU_MOE_CODES_CUH
#define SV_GPU_MOE_CODES_CUH

#include "backend/gpu/codes_value.cuh"
#include "backend/gpu/moe.cuh"
#include "backend/gpu/mxfp4.cuh"

/* x, then what each wave has for itself. */
template <int N, int GROUPS, sv_moe_form FORM> struct coded {
    enum {
        WHOLE = N <= 8, /* x is */
        X = N * 128,
        OWN = code_queue<N, FORM>::BYTES * GROUPS * WAVES,
        ROOM = (GPU_SMALL_SHARED ? 60 * 1024 : 98 * 1024) - OWN,
        AT_ONCE = code_queue<N, FORM>::AT_ONCE,
        MOST = 6 * AT_ONCE,
        STAGES = (ROOM / X < MOST ? ROOM / X : MOST) / AT_ONCE * AT_ONCE,
        FEW = FORM == SV_MOE_CODES8 ? 3 : 4,
        /* thread blocks on a multiprocessor */
        BLOCKS = N <= 16   ? FEW
                 : N <= 32 ? AT_ONCE
                           : GROUPS
    };
};

/* A matrix's codes: enum sv_codes_code, and the factor of sv_codes_step. */
struct kind {
    int32_t code;
    float factor;
};

template <sv_moe_form FORM>
static __device__ __forceinline__ struct kind kind_of(const struct sv_moe &a, const struct strip &s)
{
    struct kind k = {s.code, 0.0f};
    if (FORM == SV_MOE_CODES4 && s.code == SV_CODES_NV4)
        k.factor = *(const float *)(s.matrix + sv_codes_factor_at(a.rows, a.k, 4));
    return k;
}

template <bool LARGE, int T>
static __device__ __forceinline__ void expand_mxfp4(lane_pairs (&pair)[T],
                                                    const struct lane_codes<SV_MOE_MXFP4> (&c)[T])
{
    const int first = CODED_HALVES < 2 ? gpu_lane() / 32 : 0;
#pragma unroll
    for (int i = 0; i < T * CODED_HALVES; i++) {
        const int t = i % T, h = i / T;
        sv_mxfp4_expand<LARGE>(pair[t][h], c[t].word[2 * h], c[t].word[2 * h + 1], first + h,
                               c[t].scale[0]);
    }
}

template <int CODE, sv_moe_form FORM, int T>
static __device__ __forceinline__ void
expand_codes(lane_pairs (&pair)[T], const struct lane_codes<FORM> (&c)[T], float factor)
{
#pragma unroll
    for (int t = 0; t < T; t++)
        expand_lane<CODE>(pair[t], c[t], factor);
}

template <sv_moe_form FORM, int T>
static __device__ __forceinline__ void
expand_tiles(lane_pairs (&pair)[T], const struct lane_codes<FORM> (&c)[T], const struct kind &k)
{
    if constexpr (FORM == SV_MOE_MXFP4) {
        uint32_t scales = 0;
#pragma unroll
        for (int t = 0; t < T; t++)
            scales |= c[t].scale[0];
        if (sv_mxfp4_large(scales))
            expand_mxfp4<true>(pair, c);
        else
            expand_mxfp4<false>(pair, c);
    } else if constexpr (FORM == SV_MOE_CODES8) {
        if (k.code == SV_CODES_F8)
            expand_codes<SV_CODES_F8>(pair, c, k.factor);
        else if (k.code == SV_CODES_I8)
            expand_codes<SV_CODES_I8>(pair, c, k.factor);
        else
            expand_codes<SV_CODES_F8_WIDE>(pair, c, k.factor);
    } else {
        if (k.code == SV_CODES_I4)
            expand_codes<SV_CODES_I4>(pair, c, k.factor);
        else if (k.code == SV_CODES_I4_HALF)
            expand_codes<SV_CODES_I4_HALF>(pair, c, k.factor);
        else if (k.code == SV_CODES_I4_TWO)
            expand_codes<SV_CODES_I4_TWO>(pair, c, k.factor);
        else
            expand_codes<SV_CODES_NV4>(pair, c, k.factor);
    }
}

template <int N, bool GATED, int GROUPS, sv_moe_form FORM, bool JOINED = false>
static __global__ void __launch_bounds__(GROUPS *WAVES *GPU_WAVE, (coded<N, GROUPS, FORM>::BLOCKS))
    coded_kernel(const struct sv_moe a)
{
    typedef coded<N, GROUPS, FORM> C;
    GPU_SHARED(smem_bytes);
    __shared__ int32_t source[N];
    __shared__ typename joining<JOINED>::room joined;
    enum {
        AT_ONCE = C::AT_ONCE,            /* tiles in a step */
        AHEAD = C::STAGES / AT_ONCE - 1, /* steps whose x is on its way */
        TURNS = code_queue<N, FORM>::TURNS,
        STEPS = TURNS > 2 * AT_ONCE ? TURNS / AT_ONCE : 2,
        X_LINES = N * 8 / GPU_WAVE / (GROUPS * WAVES) * AT_ONCE
    };
    const int32_t n_k = sv_tiles(a.k);
    const uint32_t x_at = gpu_shared_at(smem_bytes);
    const uint32_t own = x_at + (C::WHOLE ? n_k : (int32_t)C::STAGES) * C::X +
                         gpu_wave() * code_queue<N, FORM>::BYTES;
    code_queue<N, FORM> codes;
    codes.open(own);
    if (GATED)
        sv_pdl_wait();
    /* Of one row the next launch's weights come behind all of these. */
    const bool late = N <= 8 && code_queue<N, FORM>::HAS_ALL_ASKED && a.r.n_rows == 1;
    if (!late)
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
    const int32_t each = FORM == SV_MOE_MXFP4 ? sv_mxfp4_strip_bytes(a.k) : piece<FORM>::BYTES;
    const int64_t band =
        FORM == SV_MOE_MXFP4 ? (int64_t)each * 4 : (int64_t)n_k * piece<FORM>::STEP;
    const struct strip s = strip_of<GATED, GROUPS>(a, u.expert, band, each);
    const struct kind kind = kind_of<FORM>(a, s);
    codes.begin(s.there ? s.w : s.matrix, n_k);
    if (few)
        entries_of_few(a, (int32_t)blockIdx.y, u);
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
        struct lane_codes<FORM> c[AT_ONCE];
#pragma unroll
        for (int t = 0; t < AT_ONCE; t++)
            codes.take((i + t) % TURNS, kk + t, [&](const struct lane_codes<FORM> &from) {
                c[t] = from;
                if (t == AT_ONCE - 1)
                    expand_tiles<FORM>(into, c, kind);
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
            if constexpr (N <= 8 && code_queue<N, FORM>::HAS_ALL_ASKED)
                if (late && codes.all_asked())
                    sv_pdl_launch();
            next = now;
            now += AT_ONCE * C::X;
            if (!C::WHOLE && now == x_at + C::STAGES * C::X)
                now = x_at;
        }
    if (GATED)
        __syncthreads(); /* what is lent lies where x did */
    if (JOINED)
        joining<JOINED>::template put<N>(a, acc, u, s.row0, joined);
    else
        put<N, GATED>(a, acc, u.expert, s.row0, u.place, n, (float *)smem_bytes);
}

/* [1]: gate and up. */
template <sv_moe_form FORM, int N, int GROUPS> static struct sv_moe_width coded_width_of(void)
{
    typedef coded<N, GROUPS, FORM> C;
    return {N,
            C::OWN + (C::WHOLE ? 0 : C::X * C::STAGES),
            C::WHOLE ? C::X : 0,
            GROUPS * WAVES * GPU_WAVE,
            GROUPS,
            {coded_kernel<N, false, GROUPS, FORM>, coded_kernel<N, true, GROUPS, FORM>}};
}

#endif
