/*
 * gemm_portable.cuh - matrix products on the matrix instructions that all cards of a vendor have
 * (gpu.h): 1 to 128 rows of x in a launch.
 *
 * Included by gemm_portable.cu, gemm_portable_codes.cu and gemm_portable_k.cu, which make tables of
 * widths.
 * Weight rows are the first operand. A block of the split is one band of 64 weight rows; a thread
 * block of four waves walks its unit's tiles through a ring filled by copies that go on meanwhile,
 * GPU_BLOCKS thread blocks a multiprocessor. Compressed weights (wcomp.cuh) and codes (codes.cuh)
 * lie in the ring as they are, and each wave expands its own into the registers that products take
 * them from: the same bits. The time of few rows is limited by a wave's instructions per tile, so
 * the usual case has no branches: whole rounds of tiles. Must not: name a vendor; let n_rows decide
 * the order of a sum: it only selects the width N, which does not change an element's bits.
 */
#ifndef SV_GPU_GEMM_PORTABLE_CUH
#define SV_GPU_GEMM_PORTABLE_CUH

#include "backend/gpu/codes_lane.cuh"
#include "backend/gpu/gemm_expand.cuh"
#include "backend/gpu/gemm_out.cuh"

enum { WARPS = 4, THREADS = WARPS * GPU_WAVE, MAX_ROUNDS = 8 };
enum { STEPS = SV_TILE / GPU_K, CHUNKS = GPU_K / 8 }; /* of a tile; 16-byte chunks of a step */

/* Few rows of x: pieces of a block say by themselves that they are there, and the last unit that
 * shares it adds them up. It only waits for units before its own, which run before it on any
 * device. */
static SV_HD constexpr bool posts(int n)
{
    return n <= SV_PORTABLE_POSTED;
}

/* How weights lie: packed (pack.cuh), compressed (wcomp.cuh), or in codes (codes.cuh) of so many
 * bits. 16 rows for each warp lie together in all of them. */
enum form { PACKED, COMPRESSED, CODES4 = 4, CODES5, CODES6, CODES7, CODES8 };

static __host__ __device__ constexpr int code_bits(int form)
{
    return form >= CODES4 ? form : 0;
}
static __host__ __device__ constexpr int tile_bytes(int form)
{
    return form == PACKED       ? (int)SV_TILE_BYTES
           : form == COMPRESSED ? (int)SV_WCOMP_TILE_BYTES
                                : SV_CODES_TILE_BYTES(code_bits(form));
}
/* Behind the ring: where waves of 64, whose operands are other lanes' pairs, lay them. */
static __host__ __device__ constexpr int expanded_bytes(int form)
{
    return code_bits(form) && GPU_WAVE > 32 ? WARPS * EXPANDED_STRIP : 0;
}

/* A stage of the ring is a tile and its columns of x, a round R stages: what one barrier stands
 * for. */
template <int N, int R, int FORM, bool OWN> struct ring {
    enum {
        TILE = tile_bytes(FORM),
        STRIP = TILE / WARPS,
        HEAD = FORM == COMPRESSED ? (int)SV_WCOMP_HEAD_BYTES : 0,
        STAGE = TILE + (OWN ? 0 : N * 128),
        ROUND = R * STAGE
    };
};

/* The part and the strip of its rows that this warp has of a block. */
struct strip {
    int part;
    int32_t row0;
};

template <bool GATED>
static __device__ __forceinline__ struct strip strip_of(const struct sv_gemm_args &a, int32_t block)
{
    const int warp = gpu_wave();
    struct strip s;
    s.part = GATED ? warp >= 2 : sv_gemm_part_of(a, block);
    s.row0 = GATED ? block * (SV_TILE / 2) + (warp & 1) * 16
                   : (block - a.part[s.part].block0) * SV_TILE + warp * 16;
    return s;
}

/* Where a unit's loads stand: at a tile of a block, and w at this thread's place in the tile's
 * strip. Bands of a part follow one another, half tiles of gated products do not. */
struct walk {
    int32_t block, kk;
    int32_t run; /* tiles until w jumps */
    const uint8_t *w;
    uint64_t once;
};

template <class RING, bool GATED, int FORM>
static __device__ __forceinline__ void walk_enter(struct walk &v, const struct sv_gemm_args &a)
{
    const struct strip s = strip_of<GATED>(a, v.block);
    const struct sv_gemm_item &it = a.part[s.part];
    v.w = (FORM == PACKED ? it.w : it.wcomp) + RING::HEAD +
          ((size_t)(s.row0 / SV_TILE) * (size_t)a.split.n_k + (size_t)v.kk) * RING::TILE +
          s.row0 % SV_TILE / 16 * RING::STRIP + gpu_lane() * 16;
    v.run = (GATED ? 1 : it.block0 + it.n_bands - v.block) * a.split.n_k - v.kk;
}

/* n tiles on, at most v.run. */
template <class RING, bool GATED, int FORM>
static __device__ __forceinline__ void walk_on(struct walk &v, const struct sv_gemm_args &a,
                                               int32_t n)
{
    v.w += n * RING::TILE;
    v.run -= n;
    v.kk += n;
    while (v.kk >= a.split.n_k) {
        v.kk -= a.split.n_k;
        v.block++;
    }
    if (v.run == 0 && v.block < a.split.n_blocks)
        walk_enter<RING, GATED, FORM>(v, a);
}

/* The first BYTES of a line. */
template <int BYTES>
static __device__ __forceinline__ void copy_part(uint32_t to, const uint8_t *from, uint64_t once)
{
#ifdef GPU_COPY_PART
    GPU_COPY_PART<BYTES>(to, from);
#else
    if (gpu_lane() < BYTES / 16)
        gpu_copy_stream(to, from, once);
#endif
}

/* n tiles of weights into a round at `to`. */
template <class RING, int R, bool GATED, int FORM>
static __device__ __forceinline__ void load_weights(struct walk &v, const struct sv_gemm_args &a,
                                                    int32_t n, uint32_t to)
{
    /* Of a strip, copied by all lanes; what is left, and its 16-byte chunks. */
    constexpr int LINE = GPU_WAVE * 16, WHOLE = RING::STRIP / LINE * LINE,
                  LEFT = RING::STRIP - WHOLE, LANES = LEFT / 16;
    const int lane = gpu_lane();
    to += gpu_wave() * RING::STRIP;
    if (n == R && v.run >= R) {
        const uint8_t *const w = v.w;
#pragma unroll
        for (int j = 0; j < R; j++) {
#pragma unroll
            for (int i = 0; i < WHOLE; i += LINE)
                gpu_copy_stream(to + j * RING::STAGE + i, w + j * RING::TILE + i, v.once);
            if constexpr (LEFT > 0 && GPU_WAVE > 32)
                copy_part<LEFT>(to + j * RING::STAGE + WHOLE, w + j * RING::TILE + WHOLE, v.once);
        }
        if constexpr (LEFT > 0 && GPU_WAVE == 32) { /* of all tiles at once: lanes point anywhere */
#pragma unroll
            for (int i = 0; i < LANES * R; i += GPU_WAVE) {
                const int tile = (i + lane) / LANES, at = WHOLE + i * 16 - tile * LEFT;
                if (i + lane < LANES * R)
                    gpu_copy_stream(to + tile * RING::STAGE + at, w + tile * RING::TILE + at,
                                    v.once);
            }
        }
        walk_on<RING, GATED, FORM>(v, a, R);
        return;
    }
#pragma unroll 1
    for (int32_t j = 0; j < n; j++, to += RING::STAGE) {
#pragma unroll
        for (int i = 0; i < WHOLE; i += LINE)
            gpu_copy_stream(to + i, v.w + i, v.once);
        if constexpr (LEFT > 0)
            copy_part<LEFT>(to + WHOLE, v.w + WHOLE, v.once);
        walk_on<RING, GATED, FORM>(v, a, 1);
    }
}

/* x of a round whose first tile is kk. */
template <class RING, int N, int R>
static __device__ __forceinline__ void load_x(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                                              const struct sv_gemm_args &a, int32_t kk, uint32_t to)
{
    /* Rows of one tile or of some at a time. */
    constexpr int AT_ONCE = N * 8 < THREADS ? THREADS / (N * 8) : 1,
                  EACH = N * 8 > THREADS ? N * 8 / THREADS : 1;
    const int wave0 = gpu_wave() * (GPU_WAVE / 8), first = AT_ONCE > 1 ? wave0 / N : 0;
    to += RING::TILE + first * RING::STAGE;
    int32_t tile = kk + first;
#pragma unroll
    for (int j = 0; j < R; j += AT_ONCE) {
        while (tile >= a.split.n_k)
            tile -= a.split.n_k;
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (AT_ONCE <= R || first + j < R)
                gpu_copy_rows<128, false>(
                    to + j * RING::STAGE, wave0 % N + e * (THREADS / 8),
                    [&](uint32_t r, uint32_t chunk) {
                        const int row = (int)r;
                        const int32_t col = tile * SV_TILE + (int)chunk * 8;
                        const bool there = row < a.n_rows && col < k;
                        return gpu_source{there ? x + row * ldx + col : x, there};
                    });
        tile += AT_ONCE;
    }
}

/* Lines of x that each wave copies in a round, at least. */
static __host__ __device__ constexpr int x_lines(int n, int round)
{
    return round * (n * 8 / GPU_WAVE) / WARPS;
}

/* The same for n tiles from a unit's first, kk, on, as soon as x is there: copies of x would be
 * counted behind those of weights that are still on their way. Up to EACH chunks of 16 bytes a
 * thread at once. OWN: only rows that there are. */
template <int N, bool OWN>
static __device__ __forceinline__ void load_first_x(const __nv_bfloat16 *x, int64_t ldx, int32_t k,
                                                    const struct sv_gemm_args &a, int32_t kk,
                                                    int32_t n, uint32_t to, uint32_t stride)
{
    constexpr int EACH = N == 8 ? 8 : 12;
    const int32_t chunks = n * 8 * (OWN ? a.n_rows : N);
#pragma unroll 1
    for (int32_t i0 = threadIdx.x; i0 < chunks; i0 += EACH * THREADS) {
        uint4 v[EACH];
        uint32_t at[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int32_t i = i0 + e * THREADS;
            int32_t tile = OWN ? i / 8 : i / (N * 8), row = OWN ? 0 : i / 8 % N;
            for (; OWN && tile >= n; row++)
                tile -= n;
            at[e] = to + tile * stride + gpu_place<128>(row, i % 8);
            for (tile += kk; tile >= a.split.n_k;)
                tile -= a.split.n_k;
            const int32_t col = tile * SV_TILE + i % 8 * 8;
            v[e] = make_uint4(0, 0, 0, 0);
            if (i < chunks && row < a.n_rows && col < k)
                v[e] = __ldcg((const uint4 *)(x + row * ldx + col));
        }
#pragma unroll
        for (int e = 0; e < EACH; e++)
            if (i0 + e * THREADS < chunks)
                gpu_store16(at[e], v[e]);
    }
}

/* Where x of a tile lies, how far on that of the next one is, and which row of eight this lane
 * points at: one that is there, as what comes out for others is thrown away. */
struct columns {
    uint32_t at, step;
    int row;
};

/* This lane's place in the first operand's rows of a tile. */
static __device__ __forceinline__ uint32_t w_at(uint32_t stage, int step)
{
    const int lane = gpu_lane();
    return stage + gpu_place<128>(gpu_wave() * 16 + (lane & 15), step * CHUNKS + (lane >> 4));
}

/* What a wave expands its part of a block's weights with. */
struct values {
    uint32_t strip; /* of the block's band */
    struct expansion expansion;
    int32_t code; /* of the matrix, and the factor of sv_codes_step */
    float factor;
    uint32_t own; /* shared memory: see expanded_bytes */
};

/* Pairs of a tile as operands of its steps. */
typedef uint32_t operands[STEPS][4];

static __device__ __forceinline__ void operands_of(operands &w,
                                                   const uint32_t (&pair)[SV_WCOMP_PAIRS])
{
#pragma unroll
    for (int p = 0; p < 4 * STEPS; p++)
        w[p / 4][p % 4] = pair[p];
}

/* A lane's codes of a tile. */
template <int FORM> struct codes_of : lane_words<piece_of_codes<code_bits(FORM)>> {
};

template <int CODE, int FORM>
static __device__ __forceinline__ void expand_codes(operands &w, const struct codes_of<FORM> &c,
                                                    const struct values &v)
{
    lane_pairs pair;
    expand_lane<CODE>(pair, c, v.factor);
    if constexpr (GPU_WAVE > 32)
        lay_pairs(v.own, pair);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if constexpr (GPU_WAVE > 32) {
            gpu_load_a(w[step],
                       v.own + gpu_place<128>(gpu_lane() % 16, step * CHUNKS + gpu_lane() / 16));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                w[step][i] = pair[step / 2][step % 2 * 4 + i];
        }
    }
}

/* Few rows of x, of a tile; those of N = 8 in the first two. */
template <int N>
static __device__ __forceinline__ void load_few_x(operands &x, uint32_t at, int row)
{
    if constexpr (N == 8) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            gpu_load_b8(x[half], at + gpu_place<128>(row, half * 4 + gpu_b8_chunk()));
    } else {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            gpu_load_b(x[step], at + gpu_place<128>(gpu_b_row(), step * CHUNKS + gpu_b_chunk()));
    }
}
template <int N>
static __device__ __forceinline__ void mma_few_x(float (&acc)[gpu_sums(N)], const operands &w,
                                                 const operands &x)
{
    constexpr int EACH = STEPS / 2;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        if constexpr (N == 8)
            gpu_mma8(acc, w[step], x[step / EACH], step % EACH);
        else
            gpu_mma(acc, w[step], x[step]);
    }
}

/* One tile: 64 columns of k for 16 weight rows a wave. kk: which, for compressed weights. */
template <class RING, int N, int FORM, int CODE>
static __device__ __forceinline__ void sum_tile(float (&acc)[gpu_sums(N)], uint32_t stage,
                                                struct columns c, int32_t kk, struct values &v)
{
    const uint32_t at = stage + gpu_wave() * RING::STRIP;
    operands w;
    if constexpr (FORM == COMPRESSED) {
        uint32_t pair[SV_WCOMP_PAIRS];
        expand_plain(pair, at, v.expansion);
        patch_all(pair, first_patch(at), at, v.strip, (uint32_t)kk, v.expansion);
        operands_of(w, pair);
    } else if constexpr (FORM != PACKED) {
        struct codes_of<FORM> codes;
        fetch_codes(codes, in_shared{at});
        expand_codes<CODE>(w, codes, v);
    }
    if constexpr (N == 8) {
        operands x;
        load_few_x<N>(x, c.at, c.row);
#pragma unroll
        for (int step = 0; step < STEPS && FORM == PACKED; step++)
            gpu_load_a(w[step], w_at(stage, step));
        mma_few_x<N>(acc, w, x);
    } else {
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            uint32_t x[4];
            if (FORM == PACKED)
                gpu_load_a(w[step], w_at(stage, step));
#pragma unroll
            for (int j = 0; j < N / 16; j++) {
                gpu_load_b(
                    x, c.at + gpu_place<128>(j * 16 + gpu_b_row(), step * CHUNKS + gpu_b_chunk()));
                gpu_mma(acc + SUMS_16 * j, w[step], x);
            }
        }
    }
}

/* A round of few rows of x in straight code: operands of one tile are made while the products of
 * the one before are under way. Only strips with patches, one in ten, make it turn aside. */
template <class RING, int N, int R, int FORM>
static __device__ __forceinline__ void sum_round(float (&acc)[gpu_sums(N)], uint32_t round,
                                                 struct columns c, int32_t kk, struct values &v)
{
    const int lane = gpu_lane(), warp = gpu_wave();
    uint32_t patch = SV_WCOMP_NO_PATCH, patched = 0; /* lane i: the first one of tile i */
    if (FORM == COMPRESSED) {
        patch = gpu_load4(round + lane % R * RING::STAGE + warp * RING::STRIP + SV_WCOMP_SLOTS_AT);
        patched = __ballot_sync(0xffffffff, patch != SV_WCOMP_NO_PATCH);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        const uint32_t stage = round + i * RING::STAGE;
        operands w, x;
        if (FORM == COMPRESSED) {
            const uint32_t at = stage + warp * RING::STRIP;
            uint32_t pair[SV_WCOMP_PAIRS];
            expand_plain(pair, at, v.expansion);
            if (patched >> i & 1)
                patch_all(pair, __shfl_sync(0xffffffff, patch, i), at, v.strip, (uint32_t)(kk + i),
                          v.expansion);
            operands_of(w, pair);
        }
        load_few_x<N>(x, c.at + i * c.step, c.row);
#pragma unroll
        for (int step = 0; step < STEPS && FORM == PACKED; step++)
            gpu_load_a(w[step], w_at(stage, step));
        mma_few_x<N>(acc, w, x);
    }
}

/* Of codes: all that the round's products need comes to registers first. */
template <class RING, int N, int R, int FORM, int CODE>
static __device__ __forceinline__ void sum_coded_round(float (&acc)[gpu_sums(N)], uint32_t round,
                                                       struct columns c, const struct values &v)
{
    struct codes_of<FORM> codes[R];
    operands x[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        fetch_codes(codes[i], in_shared{round + i * RING::STAGE + gpu_wave() * RING::STRIP});
        load_few_x<N>(x[i], c.at + i * c.step, c.row);
    }
#pragma unroll
    for (int i = 0; i < R; i++) {
        operands w;
        expand_codes<CODE>(w, codes[i], v);
        mma_few_x<N>(acc, w, x[i]);
    }
}

/* use(CODE), a constant, for a matrix's code. */
template <int WHICH> struct one_code {
    enum { CODE = WHICH };
};
template <int FORM, class USE>
static __device__ __forceinline__ void with_code(int32_t code, const USE &use)
{
    if constexpr (FORM == CODES8) {
        if (code == SV_CODES_F8)
            use(one_code<SV_CODES_F8>());
        else if (code == SV_CODES_I8)
            use(one_code<SV_CODES_I8>());
        else if (code == SV_CODES_I8_TWO)
            use(one_code<SV_CODES_I8_TWO>());
        else
            use(one_code<SV_CODES_F8_WIDE>());
    } else if constexpr (FORM == CODES4) {
        if (code == SV_CODES_I4)
            use(one_code<SV_CODES_I4>());
        else if (code == SV_CODES_I4_HALF)
            use(one_code<SV_CODES_I4_HALF>());
        else if (code == SV_CODES_I4_TWO)
            use(one_code<SV_CODES_I4_TWO>());
        else if (code == SV_CODES_I4_HALF_TWO)
            use(one_code<SV_CODES_I4_HALF_TWO>());
        else if (code == SV_CODES_MX4)
            use(one_code<SV_CODES_MX4>());
        else
            use(one_code<SV_CODES_NV4>());
    } else if constexpr (FORM > CODES4) {
        use(one_code<SV_CODES_K4 + FORM - CODES5>());
    } else {
        use(one_code<0>());
    }
}

template <bool GATED>
static __device__ __forceinline__ struct spot out_spot(const struct sv_gemm_args &a, int32_t block,
                                                       uint8_t *patches)
{
    const int warp = gpu_wave();
    if (GATED)
        return spot_gated<2>(a, block * (SV_TILE / 2) + (warp & 1) * 16, warp >= 2, warp & 1,
                             patches, 2);
    return spot_of(a, block, block - a.part[sv_gemm_part_of(a, block)].block0,
                   patches + warp * SV_PATCH_BYTES);
}

/* What a block's weights need. Asked for a block ahead: memory is busy. */
template <bool GATED, int FORM>
static __device__ __forceinline__ struct sv_wcomp_band look_ahead(const struct sv_gemm_args &a,
                                                                  int32_t block)
{
    if (FORM != COMPRESSED || block >= a.split.n_blocks)
        return {};
    const struct strip s = strip_of<GATED>(a, block);
    return band_of(a.part[s.part], s.row0, a.split.n_k);
}

/* A block's last tile has been summed up, or the unit's. POSTS: pieces are only left, to be taken
 * at the unit's end. */
template <int N, bool GATED, bool POSTS>
static __device__ __forceinline__ void end_block(float (&acc)[gpu_sums(N)],
                                                 const struct sv_gemm_args &a, uint32_t *order,
                                                 uint8_t *patches, int32_t block, bool complete)
{
    if (!complete && POSTS)
        post_piece<N>(acc, gpu_args(a), piece_of<N, 1>(gpu_args(a), blockIdx.x, block, 0));
    else if (complete || gather_pieces<N, 1>(acc, gpu_args(a), order, blockIdx.x, block, 0, 0))
        put_all<N, false, GATED>(acc, gpu_args(a), out_spot<GATED>(gpu_args(a), block, patches), 0,
                                 WARPS);
#pragma unroll
    for (int e = 0; e < gpu_sums(N); e++)
        acc[e] = 0.0f;
    gpu_copy_settled();
}

/* The state of a unit's sums. */
struct sums {
    int32_t kk, begun, block; /* tile of the block; the first that was summed up here */
    int32_t shared;           /* a block whose pieces are to be taken, or -1 */
    struct values values;
    struct sv_wcomp_band ahead; /* of the next block */
};

template <bool GATED, int FORM>
static __device__ __forceinline__ void begin_block(struct sums &u, const struct sv_gemm_args &a)
{
    if (FORM == PACKED)
        return;
    const struct strip s = strip_of<GATED>(a, u.block);
    const struct sv_gemm_item &it = a.part[s.part];
    if (FORM == COMPRESSED) {
        u.values.strip = (uint32_t)(s.row0 % SV_TILE / 16);
        u.values.expansion = expansion_with(it, s.row0, a.split.n_k, u.ahead);
        u.ahead = look_ahead<GATED, FORM>(a, u.block + 1);
    } else {
        u.values.code = it.code;
        if (FORM == CODES4 && it.code == SV_CODES_NV4)
            u.values.factor = __ldg(
                (const float *)(it.wcomp + sv_codes_factor_at(it.n_out, a.split.n_k * SV_TILE, 4)));
    }
}

/* OWN: all of x that the unit needs lies behind the ring, so that warps go their own ways: what
 * holds one of them up, patches above all, holds up no other. */
template <int N, int R, bool GATED, int FORM, bool OWN>
static __global__ void __launch_bounds__(THREADS, GPU_BLOCKS)
    gemm_kernel(const __grid_constant__ struct sv_gemm_args a, const __nv_bfloat16 *x, int64_t ldx,
                int32_t k)
{
    GPU_SHARED(smem_bytes);
    __shared__ __align__(16) uint8_t patches[WARPS * 2 * SV_PATCH_BYTES];
    __shared__ uint32_t order;
    typedef ring<N, R, FORM, OWN> RING;
    constexpr bool POSTS = posts(N);
    /* Lines that a wave copies in a round, and in one of the first rounds, whose weights or x were
     * copied earlier. */
    constexpr int W_LINES = R * RING::STRIP / (GPU_WAVE * 16), X_LINES = OWN ? 0 : x_lines(N, R),
                  FIRST_LINES = POSTS ? W_LINES : X_LINES;
    const uint32_t smem = smem_u32(smem_bytes);
    const int32_t t0 = sv_split_start(&a.split, blockIdx.x),
                  t1 = sv_split_start(&a.split, blockIdx.x + 1), n_rounds = a.n_stages / R;
    const bool whole_k = t1 - t0 >= a.split.n_k;
    if ((int32_t)blockIdx.x >= a.split.n_units) {
        sv_pdl_launch();
        sv_pdl_wait();
        return;
    }
    struct sums u;
    u.block = t0 / a.split.n_k;
    u.kk = u.begun = t0 - u.block * a.split.n_k;
    u.shared = -1;
    u.values = {};
    u.values.own = smem + a.n_stages * RING::STAGE + gpu_wave() * EXPANDED_STRIP;
    u.ahead = look_ahead<GATED, FORM>(a, u.block);
    struct walk v;
    v.once = gpu_stream_policy();
    v.block = u.block;
    v.kk = u.kk;
    walk_enter<RING, GATED, FORM>(v, a);
#pragma unroll 1
    for (int32_t r = 0; r < n_rounds; r++) {
        load_weights<RING, R, GATED, FORM>(v, gpu_args(a), min(R, t1 - t0 - r * R),
                                           smem + r * RING::ROUND);
        if (POSTS)
            gpu_copy_commit();
    }
    sv_pdl_launch();
    begin_block<GATED, FORM>(u, a);
    sv_pdl_wait();
    struct columns c = {smem + RING::TILE, RING::STAGE, (int)threadIdx.x & 7};
    if constexpr (OWN) {
        c.at = smem + a.n_stages * RING::TILE + expanded_bytes(FORM);
        c.step = (uint32_t)a.n_rows * 128;
        c.row = c.row < a.n_rows ? c.row : 0;
        load_first_x<N, true>(x, ldx, k, a, whole_k ? 0 : u.kk, min(t1 - t0, a.split.n_k), c.at,
                              c.step);
        c.at += whole_k ? u.kk * c.step : 0;
        __syncthreads();
    } else if constexpr (POSTS) {
        load_first_x<N, false>(x, ldx, k, a, u.kk, min(a.n_stages, t1 - t0), c.at, c.step);
    }
    for (int32_t r = 0, x_kk = u.kk; r < n_rounds && !POSTS; r++) {
        load_x<RING, N, R>(x, ldx, k, a, x_kk, smem + r * RING::ROUND);
        x_kk = (x_kk + R) % a.split.n_k;
        gpu_copy_commit();
    }
    if (a.mode == SV_GEMM_ARGMAX)
        best_clear(a, WARPS);
    float acc[gpu_sums(N)];
#pragma unroll
    for (int i = 0; i < gpu_sums(N); i++)
        acc[i] = 0.0f;
    gpu_copy_settled();
    uint32_t round = smem, before = smem; /* this round's stages, and those of the round before */
#pragma unroll 1
    for (int32_t t = t0; t < t1; t += R) {
        /* Rounds behind this one, and those of them that are whole. */
        const int behind = n_rounds - (t == t0 ? 1 : 2),
                  whole = min(behind, max((t1 - t) / R - 1, 0));
        gpu_copy_wait<MAX_ROUNDS - 1>(
            behind, whole * (t < t0 + n_rounds * R ? FIRST_LINES : W_LINES + X_LINES));
        if (OWN)
            gpu_wave_sync();
        else
            __syncthreads();
        if (t > t0) {
            const int32_t left = t1 - t - (n_rounds - 1) * R;
            if (left > 0) {
                if (!OWN)
                    load_x<RING, N, R>(x, ldx, k, gpu_args(a), v.kk, before);
                load_weights<RING, R, GATED, FORM>(v, gpu_args(a), min(R, left), before);
            }
            gpu_copy_commit();
        }
        const int32_t end = min(t + R, t1);
#pragma unroll 1
        for (int32_t i = t; i < end;) {
            bool all = false;
            if constexpr (POSTS) {
                all = i == t && i + R <= t1 && u.kk + R <= a.split.n_k;
                if (all)
                    with_code<FORM>(u.values.code, [&](auto one) {
                        if constexpr (code_bits(FORM))
                            sum_coded_round<RING, N, R, FORM, decltype(one)::CODE>(acc, round, c,
                                                                                   u.values);
                        else
                            sum_round<RING, N, R, FORM>(acc, round, c, u.kk, u.values);
                    });
            }
            if (!all)
                with_code<FORM>(u.values.code, [&](auto one) {
                    sum_tile<RING, N, FORM, decltype(one)::CODE>(acc, round + (i - t) * RING::STAGE,
                                                                 c, u.kk, u.values);
                });
            const int32_t done = all ? R : 1;
            i += done;
            u.kk += done;
            c.at += (uint32_t)done * c.step;
            if (u.kk < a.split.n_k && i < t1)
                continue;
            const bool complete = u.kk == a.split.n_k && u.begun == 0;
            end_block<N, GATED, POSTS>(acc, a, &order, patches, u.block, complete);
            /* The upper ones of those that share a block take it up. */
            if (!complete && u.begun)
                u.shared = u.block;
            if (OWN && whole_k)
                c.at -= (uint32_t)u.kk * c.step;
            u.kk = u.begun = 0;
            u.block++;
            if (i < t1)
                begin_block<GATED, FORM>(u, gpu_args(a));
        }
        before = round;
        round += RING::ROUND;
        if (round == smem + n_rounds * RING::ROUND)
            round = smem;
        if (!OWN)
            c.at = round + RING::TILE;
    }
    if (POSTS && u.shared >= 0)
        take_pieces<N, 1, false, GATED>(gpu_args(a), blockIdx.x, u.shared, 0,
                                        out_spot<GATED>(a, u.shared, patches), WARPS);
}

/* ---------------------------------------------------------------- host */

typedef void gemm_fn(const struct sv_gemm_args, const __nv_bfloat16 *, int64_t, int32_t);

/* Rows of x, tiles a round, whether warps go their own ways; [1]: gated. */
struct sv_gemm_width {
    int n, round;
    bool own;
    gemm_fn *fn[2];
};

#define WIDTH(N, R, FORM, OWN)                                                                     \
    {                                                                                              \
        N, R, OWN,                                                                                 \
        {                                                                                          \
            gemm_kernel<N, R, false, FORM, OWN>, gemm_kernel<N, R, true, FORM, OWN>                \
        }                                                                                          \
    }

/* Widths of one form of weights, in ascending order; of the same rows, the first whose ring is deep
 * enough, or the last. */
struct sv_gemm_kind {
    const struct sv_gemm_width *width;
    int n, tile_bytes, expanded_bytes;
};

/* N32, N64: 32 and 64, or the next that is there. */
#define CODED_WIDTHS(FORM, N32, N64)                                                               \
    {                                                                                              \
        WIDTH(8, 4, FORM, true), WIDTH(8, 4, FORM, false), WIDTH(16, 2, FORM, false),              \
            WIDTH(N32, N32 == 32 ? 2 : 1, FORM, false), WIDTH(N64, 1, FORM, false),                \
            WIDTH(128, 1, FORM, false)                                                             \
    }
#define CODED_KIND(WIDTHS, FORM)                                                                   \
    {                                                                                              \
        WIDTHS, sizeof WIDTHS / sizeof *WIDTHS, tile_bytes(FORM), expanded_bytes(FORM)             \
    }

/* Of codes of so many bits (codes.cuh); those of gemm_portable_k.cu are among them. */
const struct sv_gemm_kind *sv_gemm_portable_codes(int32_t bits);
const struct sv_gemm_kind *sv_gemm_portable_k(int32_t bits);

#endif
