/*
 * gemm_few.cuh - how a warp sums up tiles of codes for few rows of x: with mma.sync, each warp at
 * its own pace.
 *
 * Included by gemm_wcomp.cuh, at its end. Wgmma waits for the other warps of its warpgroup and for
 * a fence behind the operands that it reads from registers, and one warp of it is on each
 * scheduler. Here a tile's codes and few rows of x are fetched into registers while the tile before
 * is expanded and multiplied 16 columns at a time, and nothing is waited for but the ring. Both
 * instructions give the same bits: they add 16 products and the sum before at once. Must not: add
 * tiles in any but ascending order.
 */
#ifndef SV_CUDA_GEMM_FEW_CUH
#define SV_CUDA_GEMM_FEW_CUH

/* Where a warp's strip of a stage's first tile lies, and how far from there the next tile's: a
 * band's tiles lie one after the other, and halves of them likewise. odd: see struct walk. */
template <enum way WAY, bool GATED>
static __device__ __forceinline__ uint32_t few_own(uint32_t odd, uint32_t *next)
{
    constexpr uint32_t TILES = ring<8, WAY>::TILES;
    const uint32_t warp = threadIdx.x / 32;
    *next = W_BYTES;
    if (!takes_tall(WAY) || !GATED)
        return warp / 4 * TILES * W_BYTES + warp % 4 * STRIP_BYTES;
    const uint32_t part = warp / 6, at = warp % 6;
    const bool half = odd ? at < 2 : at >= 4;
    if (half)
        *next = W_BYTES / 2;
    return part * TILES * W_BYTES * 3 / 2 +
           (half ? (odd ? 0 : TILES * W_BYTES) + at % 2 * STRIP_BYTES
                 : (odd ? TILES * W_BYTES / 2 : 0) + (odd ? at - 2 : at) * STRIP_BYTES);
}

#if SV_GEMM_CODES

/* Some 100 KB: x of a launch's first stages is copied behind all weights that were asked for before
 * it was there. STAGES_32: of 32 rows of x. */
enum {
    FEW_STAGES = SV_GEMM_CODES == 8 ? 5 : 8,
    STAGES_32 = takes_few(32) ? 6 : 12,
};

/* Half of the columns of x: of 8 rows each the words of four columns of 8 numbers. */
template <int N>
static __device__ __forceinline__ void few_x(uint32_t (&x)[N / 8][4], uint32_t x_at, uint32_t half)
{
    const uint32_t lane = threadIdx.x & 31, row = lane & 7;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        gpu_load_a(x[j], x_at + (uint32_t)j * 8 * X_ROW_BYTES + row * X_ROW_BYTES +
                             ((4 * half + lane / 8) ^ row) * 16);
}

/* A warp's part of a tile: codes of its strip, and x, where there are registers for two of it. */
template <int N> struct held {
    static constexpr bool X = N <= 16;
    struct coded c;
    uint32_t x[2][X ? N / 8 : 1][4];
    uint32_t x_at;
};

/* Fetches tile j of a stage. */
template <int N, enum way WAY>
static __device__ __forceinline__ void few_take(struct held<N> &to, uint32_t stage, uint32_t j,
                                                const struct run &r)
{
    typedef ring<N, WAY> R;
    to.c = fetch(stage + r.own + (j ? r.next : 0));
    to.x_at = stage + R::W + j * R::X;
    if constexpr (held<N>::X) {
        few_x<N>(to.x[0], to.x_at, 0);
        few_x<N>(to.x[1], to.x_at, 1);
    }
}

/* 16 columns. */
template <int N>
static __device__ __forceinline__ void few_step(float (&acc)[N / 2], const uint32_t (&four)[4],
                                                const uint32_t (&x)[N / 8][4], int step)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++)
        gpu_mma_16x8(acc + 4 * j, four, x[j][step % 2 * 2], x[j][step % 2 * 2 + 1]);
}

template <int CODE, int N, int HALF>
static __device__ __forceinline__ void few_half(float (&acc)[N / 2], const struct held<N> &own,
                                                const uint32_t (&x)[N / 8][4],
                                                const struct sv_codes_scale (&s)[2], float factor)
{
#pragma unroll
    for (int step = 2 * HALF; step < 2 * HALF + 2; step++) {
        uint32_t four[4];
        sv_codes_lane_step<CODE, 4>(four, own.c.word, step, step, s, factor);
        few_step<N>(acc, four, x, step);
    }
}

template <int CODE, int N>
static __device__ __forceinline__ void few_tile(float (&acc)[N / 2], const struct held<N> &own,
                                                const struct expansion &e)
{
    const struct sv_codes_scale s[2] = {sv_codes_scale_of<CODE>(own.c.scale[0]),
                                        sv_codes_scale_of<CODE>(own.c.scale[1])};
    if constexpr (held<N>::X) {
        few_half<CODE, N, 0>(acc, own, own.x[0], s, e.factor);
        few_half<CODE, N, 1>(acc, own, own.x[1], s, e.factor);
    } else {
        uint32_t x[N / 8][4];
        few_x<N>(x, own.x_at, 0);
        few_half<CODE, N, 0>(acc, own, x, s, e.factor);
        few_x<N>(x, own.x_at, 1);
        few_half<CODE, N, 1>(acc, own, x, s, e.factor);
    }
}

static __device__ __forceinline__ void few_next(struct place &at, const struct sv_gemm_args &a)
{
    if (++at.s == a.n_stages) {
        at.s = 0;
        at.parity ^= 1;
    }
}

/* Waits for the stage of `at`. */
template <int N, enum way WAY>
static __device__ __forceinline__ uint32_t few_wait(const struct place &at, uint32_t smem,
                                                    struct tail *tail)
{
    bar_wait(smem_u32(&tail->full[at.s]), at.parity);
    return smem + at.s * ring<N, WAY>::STAGE;
}

/* Of the n tiles two lie in a stage; one is fetched while the one before is multiplied. */
template <int CODE, int N, enum way WAY>
static __device__ __forceinline__ void few_all(float (&acc)[N / 2], struct place &at, int32_t n,
                                               const struct run &r, const struct sv_gemm_args &a,
                                               uint32_t smem, struct tail *tail)
{
    struct held<N> even, odd;
    uint32_t stage = few_wait<N, WAY>(at, smem, tail);
    few_take<N, WAY>(even, stage, 0, r);
#pragma unroll 1
    for (; n > 1; n -= 2) {
        const int32_t s = at.s;
        few_take<N, WAY>(odd, stage, 1, r);
        few_tile<CODE, N>(acc, even, r.e);
        few_next(at, a);
        if (n > 2) {
            stage = few_wait<N, WAY>(at, smem, tail);
            few_take<N, WAY>(even, stage, 0, r);
        } else {
            say_ready<WAY>(r, tail);
        }
        few_tile<CODE, N>(acc, odd, r.e);
        release(&tail->empty[s], -1);
    }
    if (n) {
        say_ready<WAY>(r, tail);
        few_tile<CODE, N>(acc, even, r.e);
        release(&tail->empty[at.s], -1);
        few_next(at, a);
    }
}

/* As sum_wcomp. */
template <int N, enum way WAY>
static __device__ __forceinline__ void sum_few(float (&acc)[N / 2], struct place &at, int32_t n,
                                               struct run &r, const struct sv_gemm_args &a,
                                               uint32_t smem, struct tail *tail)
{
    if (r.present) {
        FOR_CODE(r.e, (few_all<CODE, N, WAY>(acc, at, n, r, a, smem, tail)));
        return;
    }
#pragma unroll 1
    for (; n > 0; n -= 2) {
        few_wait<N, WAY>(at, smem, tail);
        __syncwarp();
        if (n <= 2)
            say_ready<WAY>(r, tail);
        release(&tail->empty[at.s], -1);
        few_next(at, a);
    }
}

#else

template <int N, enum way WAY>
static __device__ void sum_few(float (&acc)[N / 2], struct place &at, int32_t n, struct run &r,
                               const struct sv_gemm_args &a, uint32_t smem, struct tail *tail);

#endif

#endif
