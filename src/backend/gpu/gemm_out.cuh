/*
 * gemm_out.cuh - what the tensor-core kernels do with finished sums: adding up pieces of a shared
 * block, bias, rounding and storing, or keeping the best logit.
 *
 * Included by gemm_sm90.cu and gemm_portable.cuh: wgmma and mma.sync leave their results in the
 * same lanes. A group is four waves that hold 64 weight rows, 16 a wave; acc is a product of these
 * 16 rows and N rows of x as gpu.h has it. Must not: add pieces in any but ascending order, except
 * for four nested units a block (n_sharers): first and second, third and fourth, then the two.
 */
#ifndef SV_CUDA_GEMM_OUT_CUH
#define SV_CUDA_GEMM_OUT_CUH

#include "backend/cuda/gemm.h"
#include "backend/gpu/gpu.h"
#include "backend/gpu/silu.cuh"

/* A wave's, for turning 16 x 16 results around; gated products have two or four, used by turns,
 * half of them at a time. */
enum { SV_PATCH_BYTES = 512 };

/* Of 16 rows of x: how often four registers. A piece: float4 of all threads of a group. */
enum { SUMS_16 = 4 * 16 / GPU_COLS, FOURS_16 = 16 / GPU_COLS, PIECE_LINE = 4 * GPU_WAVE };
static __host__ __device__ constexpr int piece_lines(int n)
{
    return gpu_sums(n) / 4;
}

static __device__ __forceinline__ uint32_t smem_u32(const void *p)
{
    return gpu_shared_at(p);
}

/* The threads of group 0 or 1. */
static __device__ __forceinline__ void group_sync(int group)
{
    sv_jitter();
    gpu_group_sync(group);
}

/* The wave of gate rows and the wave of the same rows of up. */
static __device__ __forceinline__ void pair_sync(int pair)
{
    sv_jitter();
    gpu_pair_sync(pair);
    sv_jitter();
}

/* ---------------------------------------------------------------- storing */

/* Weights and x in 8 bits: sums are multiplied by the scales of both before all else (1:
 * gemm_fp8_sm90.cu), or come scaled (2: gemm_w8a8_sm90.cu). */
#ifndef SV_GEMM_FP8
#define SV_GEMM_FP8 0
#endif
static constexpr bool FP8 = SV_GEMM_FP8 == 1;

/* Where a warp's results go. */
struct spot {
    const struct sv_gemm_item *it;
    int32_t row0;         /* the warp's first weight row in its part */
    float b0, b1;         /* bias of this lane's two rows, or twice of its one */
    float w0, w1;         /* FP8: their scales */
    const float *x_scale; /* FP8: of rows of x, counted as y's are */
    __nv_bfloat16 *to;    /* PLAIN, PUSHED: this lane's columns of row 0 of y */
    uint8_t *patch;
    /* Gated products: the other warp's patches, which of the two this is, and their barrier. */
    const uint8_t *mate;
    int32_t is_up, pair;
};

/* How a warp ends, decided once. PLAIN: bf16 results, all 16 weight rows there, aligned. PUSHED:
 * the same, sent to other ranks as well; gemm_pair.cuh alone. BEST: the best logit. */
enum ending { PLAIN, PUSHED, BEST, ANY };

static __device__ __forceinline__ enum ending ending_of(const struct sv_gemm_args &a,
                                                        const struct spot &s)
{
    if (a.mode == SV_GEMM_ARGMAX)
        return BEST;
    return a.mode != SV_GEMM_F32 && s.it->wide && s.row0 + 16 <= s.it->n_out ? PLAIN : ANY;
}

static __device__ __forceinline__ void spot_bias(struct spot &s, int lane)
{
    s.b0 = sv_gemm_bias(*s.it, s.row0 + gpu_run_row(lane));
    s.b1 = sv_gemm_bias(*s.it, s.row0 + gpu_run_row(lane) + 8 * (GPU_LINES - 1));
}

static __device__ __forceinline__ struct spot
spot_in(const struct sv_gemm_args &a, const struct sv_gemm_item &it, int32_t band, uint8_t *patch)
{
    const int lane = gpu_lane(), warp = gpu_wave() & 3;
    struct spot s = {};
    s.it = &it;
    s.row0 = band * SV_TILE + warp * 16;
    spot_bias(s, lane);
    s.to = (__nv_bfloat16 *)a.y + it.col0 + s.row0 + (lane & 1) * 8;
    s.patch = patch;
    return s;
}

static __device__ __forceinline__ struct spot spot_of(const struct sv_gemm_args &a, int32_t block,
                                                      int32_t band, uint8_t *patch)
{
    return spot_in(a, a.part[sv_gemm_part_of(a, block)], band, patch);
}

/* For a gated product: this warp's 16 rows of gate or up, from row0 on. patches: those of warp 0,
 * each has N_PATCHES; mate: how many warps further the other of the pair is. */
template <int N_PATCHES>
static __device__ __forceinline__ struct spot spot_gated(const struct sv_gemm_args &a, int32_t row0,
                                                         bool is_up, int pair, uint8_t *patches,
                                                         int mate)
{
    const int lane = gpu_lane(), warp = gpu_wave();
    struct spot s;
    s.it = &a.part[is_up];
    s.row0 = row0;
    spot_bias(s, lane);
    s.to = (__nv_bfloat16 *)a.y + row0 + (lane & 3) * 4;
    s.patch = patches + warp * N_PATCHES * SV_PATCH_BYTES;
    s.mate = s.patch + (is_up ? -mate : mate) * N_PATCHES * SV_PATCH_BYTES;
    s.is_up = is_up;
    s.pair = pair;
    return s;
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    const __nv_bfloat162 h = __floats2bfloat162_rn(lo, hi);
    return *(const uint32_t *)&h;
}

/* Eight neighbouring columns of one row of y. */
static __device__ __forceinline__ void put8(const struct sv_gemm_args &a,
                                            const struct sv_gemm_item &it, int32_t token,
                                            int32_t row, uint4 v)
{
    __nv_bfloat16 *y = (__nv_bfloat16 *)a.y + token * a.ldy + it.col0 + row;
    if (it.wide && row + 8 <= it.n_out) {
        *(uint4 *)y = v;
        return;
    }
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (row + i < it.n_out)
            ((uint16_t *)y)[i] = (uint16_t)(w[i / 2] >> (16 * (i & 1)));
}

/* 16 weight rows by 16 rows of x (8 when not PAIR). Results lie with neighbouring rows of W in
 * different lanes; they are turned around in the wave's patch of shared memory, by stmatrix where
 * there is one, so that each lane stores 16 bytes of one row of y. */
template <bool PAIR, bool STMATRIX>
static __device__ __forceinline__ void lay_out(const float (&v)[SUMS_16], const struct spot &s,
                                               uint8_t *patch)
{
    const int lane = gpu_lane();
    const uint32_t at = gpu_turn_at<PAIR>(patch, lane);
    constexpr int M = 4 % SUMS_16; /* the other eight rows of x, if they are in other registers */
    const uint32_t r0 = pack2(v[0] + s.b0, v[1] + s.b0), r1 = pack2(v[2] + s.b1, v[3] + s.b1);
    const uint32_t r2 = pack2(v[M] + s.b0, v[M + 1] + s.b0),
                   r3 = pack2(v[M + 2] + s.b1, v[M + 3] + s.b1);
    gpu_turn<PAIR, STMATRIX>(patch, lane, at, r0, r1, r2, r3);
}

/* Lanes that take 16 bytes of a patch. */
static __device__ __forceinline__ bool reads_patch(int lane)
{
    return GPU_WAVE == 32 || lane < 32;
}

/* END: PLAIN or ANY, in store_gated too; here also PUSHED. */
template <bool PAIR, bool STMATRIX, enum ending END>
static __device__ __forceinline__ void store_act(const float (&v)[SUMS_16],
                                                 const struct sv_gemm_args &a, const struct spot &s,
                                                 int32_t token0)
{
    const int lane = gpu_lane();
    gpu_wave_sync();
    lay_out<PAIR, STMATRIX>(v, s, s.patch);
    gpu_wave_sync();
    const int32_t token = token0 + (lane >> 1);
    if (token >= a.n_rows || !(PAIR || lane < 16) || !reads_patch(lane))
        return;
    const uint4 v8 = *(const uint4 *)(s.patch + lane * 16);
    if (END == PLAIN || END == PUSHED)
        *(uint4 *)(s.to + token * a.ldy) = v8;
    else
        put8(a, *s.it, token, s.row0 + (lane & 1) * 8, v8);
    if (END == PUSHED)
        sv_join_send(a.push, (token * a.ldy + s.row0) / 8 + (lane & 1), v8);
}

/* Half of the rows of x of what lies at `from` in the patches of both warps. */
template <bool PAIR, enum ending END>
static __device__ __forceinline__ void end_gated(const struct sv_gemm_args &a, const struct spot &s,
                                                 int32_t token0, int from)
{
    const int lane = gpu_lane();
    const int t = (PAIR ? s.is_up * 8 : 0) + lane / 4, at = from + t * 32 + (lane & 3) * 8;
    const int32_t token = token0 + t, row = s.row0 + (lane & 3) * 4;
    if (token >= a.n_rows || (!PAIR && s.is_up) || !reads_patch(lane))
        return;
    const uint2 own = *(const uint2 *)(s.patch + at), other = *(const uint2 *)(s.mate + at);
    const uint2 g = s.is_up ? other : own, u = s.is_up ? own : other;
    const uint32_t gs[2] = {g.x, g.y}, us[2] = {u.x, u.y};
    uint32_t o[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        o[i] = pack2(sv_silu_mul_fast(__uint_as_float(gs[i] << 16), __uint_as_float(us[i] << 16)),
                     sv_silu_mul_fast(__uint_as_float(gs[i] & 0xffff0000u),
                                      __uint_as_float(us[i] & 0xffff0000u)));
    if (END == PLAIN) {
        *(uint2 *)(s.to + token * a.ldy) = make_uint2(o[0], o[1]);
        return;
    }
    __nv_bfloat16 *y = (__nv_bfloat16 *)a.y + token * a.ldy + row;
    if (s.it->wide && row + 4 <= s.it->n_out) {
        *(uint2 *)y = make_uint2(o[0], o[1]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (row + i < s.it->n_out)
            ((uint16_t *)y)[i] = (uint16_t)(o[i / 2] >> (16 * (i & 1)));
}

/* Gate and up of the same places lie in two warps. Each lays its own out, rounded; after a barrier
 * each stores half of the rows of x. Both are called with the same token0, a multiple of 16.
 * Patches are used by turns, two of them, so that one barrier a call is enough as long as token0
 * grows by 16 from call to call; a pair_sync has to come before it jumps (gated_end). */
template <bool PAIR, bool STMATRIX, enum ending END>
static __device__ __forceinline__ void store_gated(const float (&v)[SUMS_16],
                                                   const struct sv_gemm_args &a,
                                                   const struct spot &s, int32_t token0)
{
    const int turns = (token0 >> 4 & 1) * SV_PATCH_BYTES;
    lay_out<PAIR, STMATRIX>(v, s, s.patch + turns);
    pair_sync(s.pair);
    end_gated<PAIR, END>(a, s, token0, turns);
}

/* The same for 32 rows of x, by turns of two patches: half the barriers, and neither waits for the
 * other's results. */
template <bool STMATRIX, enum ending END>
static __device__ __forceinline__ void
store_gated_twice(const float (&v)[SUMS_16], const float (&w)[SUMS_16],
                  const struct sv_gemm_args &a, const struct spot &s, int32_t token0)
{
    const int turns = (token0 >> 5 & 1) * 2 * SV_PATCH_BYTES;
    lay_out<true, STMATRIX>(v, s, s.patch + turns);
    lay_out<true, STMATRIX>(w, s, s.patch + turns + SV_PATCH_BYTES);
    pair_sync(s.pair);
    end_gated<true, END>(a, s, token0, turns);
    end_gated<true, END>(a, s, token0 + 16, turns + SV_PATCH_BYTES);
}

/* Both have read what lies in the patches. */
template <bool PAIR, bool STMATRIX>
static __device__ __forceinline__ void gated_end(const struct sv_gemm_args &a, const struct spot &s)
{
    pair_sync(s.pair);
}

/* 16 weight rows by GPU_COLS rows of x, from v[0] on. */
static __device__ __forceinline__ void store_f32(const float *v, const struct sv_gemm_args &a,
                                                 const struct spot &s, int32_t token0)
{
    const int lane = gpu_lane();
    const int32_t row = s.row0 + gpu_run_row(lane), token = token0 + gpu_run_col(lane);
    float *y = (float *)a.y + token * a.ldy + s.it->col0 + row;
#pragma unroll
    for (int e = 0; e < GPU_RUN; e++)
        if (token + e < a.n_rows) {
            if (row < s.it->n_out)
                y[e * a.ldy] = v[e] + s.b0;
            if (GPU_LINES == 2 && row + 8 < s.it->n_out)
                y[e * a.ldy + 8] = v[2 + e] + s.b1;
        }
}

/* Each wave of the grid has a line of keys, one for each row of x: the best logit it has seen. */
static __device__ __forceinline__ uint64_t *best_line(const struct sv_gemm_args &a, int n_warps)
{
    return a.best + (size_t)(blockIdx.x * n_warps + threadIdx.x / GPU_WAVE) * SV_GEMM_BEST_ROWS;
}

static __device__ __forceinline__ void best_clear(const struct sv_gemm_args &a, int n_warps)
{
    for (int32_t i = gpu_lane(); i < a.n_rows; i += GPU_WAVE)
        best_line(a, n_warps)[i] = 0;
    gpu_wave_sync();
}

static __device__ __forceinline__ void keep_best(const float *v, const struct sv_gemm_args &a,
                                                 const struct spot &s, int32_t token0,
                                                 uint64_t *line)
{
    const int lane = gpu_lane();
    const int32_t row = s.row0 + gpu_run_row(lane);
    const gpu_lanes column = gpu_col_lanes(lane);
#pragma unroll
    for (int e = 0; e < GPU_RUN; e++) {
        const int32_t token = token0 + gpu_run_col(lane) + e;
        /* NaN loses. */
        const float low = row < s.it->n_out ? v[e] + s.b0 : NAN,
                    high = GPU_LINES == 2 && row + 8 < s.it->n_out ? v[2 + e] + s.b1 : NAN;
        const float most = gpu_col_max(fmaxf(low, high));
        const int32_t first = gpu_col_first(column, low, high, most);
        if (gpu_col_lane(lane) && token < a.n_rows)
            gpu_send_max(line + token, sv_best_key(most, s.row0 + first));
    }
}

/* What 16 x GPU_COLS sums of products of bytes stand for. */
static __device__ __forceinline__ void unscale(float *v, const struct spot &s, int32_t token0)
{
    const float *x = s.x_scale + token0 + gpu_run_col(gpu_lane());
    v[0] *= s.w0 * x[0];
    v[1] *= s.w0 * x[1];
    v[2] *= s.w1 * x[2 % GPU_RUN];
    v[3] *= s.w1 * x[3 % GPU_RUN];
}

/* 16 weight rows by 16 rows of x (8 when not PAIR) in the way the call asks for; END: ending_of. */
template <bool PAIR, bool STMATRIX, bool GATED, enum ending END>
static __device__ __forceinline__ void put(float (&v)[SUMS_16], const struct sv_gemm_args &a,
                                           const struct spot &s, int32_t token0, int n_warps)
{
    constexpr bool TWO = PAIR && FOURS_16 == 2;
    if (FP8) {
        unscale(v, s, token0);
        if (TWO)
            unscale(v + 4, s, token0 + 8);
    }
    if (GATED) {
        store_gated<PAIR, STMATRIX, END>(v, a, s, token0);
    } else if (END == BEST) {
        keep_best(v, a, s, token0, best_line(a, n_warps));
        if (TWO)
            keep_best(v + 4, a, s, token0 + 8, best_line(a, n_warps));
    } else if (END == PLAIN || END == PUSHED || a.mode == SV_GEMM_ACT) {
        store_act<PAIR, STMATRIX, END>(v, a, s, token0);
    } else {
        store_f32(v, a, s, token0);
        if (TWO)
            store_f32(v + 4, a, s, token0 + 8);
    }
}

/* Calls f, which says END, for what a warp's end is. */
#define FOR_ENDING(GATED, a, s, f)                                                                 \
    do {                                                                                           \
        const enum ending ending_ = ending_of(a, s);                                               \
        if (ending_ == PLAIN) {                                                                    \
            constexpr enum ending END = PLAIN;                                                     \
            f;                                                                                     \
        } else if (ending_ == BEST && !(GATED)) {                                                  \
            constexpr enum ending END = BEST;                                                      \
            f;                                                                                     \
        } else {                                                                                   \
            constexpr enum ending END = ANY;                                                       \
            f;                                                                                     \
        }                                                                                          \
    } while (0)

/* TWICE: gated, with four patches a warp. */
template <int N, bool STMATRIX, bool GATED, enum ending END, bool TWICE>
static __device__ __forceinline__ void put_run(const float (&acc)[gpu_sums(N)],
                                               const struct sv_gemm_args &a, const struct spot &s,
                                               int32_t base, int n_warps)
{
    constexpr bool PAIR = N > 8;
#pragma unroll
    for (int j = 0; j < gpu_sums(N) / 4; j += (TWICE ? 2 : 1) * (PAIR ? FOURS_16 : 1)) {
        if constexpr (GPU_AFRESH)
            base = gpu_afresh(base);
        if (base + j * GPU_COLS >= a.n_rows)
            break;
        float v[2][SUMS_16];
#pragma unroll
        for (int i = 0; i < SUMS_16; i++) {
            v[0][i] = i < 4 || PAIR ? acc[(4 * j + i) % gpu_sums(N)] : 0.0f;
            v[1][i] = TWICE ? acc[(4 * j + SUMS_16 + i) % gpu_sums(N)] : 0.0f;
        }
        if (TWICE) {
            const int32_t token0 = base + j * GPU_COLS;
            if (FP8) {
#pragma unroll
                for (int h = 0; h < 2 * FOURS_16; h++)
                    unscale(v[h / FOURS_16] + h % FOURS_16 * 4, s, token0 + h * GPU_COLS);
            }
            store_gated_twice<STMATRIX, END>(v[0], v[1], a, s, token0);
        } else {
            put<PAIR, STMATRIX, GATED, END>(v[0], a, s, base + j * GPU_COLS, n_warps);
        }
    }
}

/* Rows of x from base on. */
template <int N, bool STMATRIX, bool GATED, bool TWICE = false>
static __device__ __forceinline__ void put_all(const float (&acc)[gpu_sums(N)],
                                               const struct sv_gemm_args &a, const struct spot &s,
                                               int32_t base, int n_warps)
{
    FOR_ENDING(GATED, a, s, (put_run<N, STMATRIX, GATED, END, TWICE>(acc, a, s, base, n_warps)));
    if (GATED)
        gated_end<(N > 8), STMATRIX>(a, s);
}

/* ---------------------------------------------------------------- blocks shared between units */

/* This thread's place in the piece that unit u computed of a block; BANDS bands a block, j-th
 * GPU_COLS rows of x at + PIECE_LINE j. */
template <int N, int BANDS>
static __device__ __forceinline__ float4 *piece_of(const struct sv_gemm_args &a, int32_t u,
                                                   int32_t block, int band)
{
    return a.pieces +
           ((size_t)sv_split_slot(&a.split, u, block) * BANDS + band) * (size_t)piece_lines(N) *
               PIECE_LINE +
           (threadIdx.x & (PIECE_LINE - 1));
}

template <int N>
static __device__ __forceinline__ void write_piece(const float (&acc)[gpu_sums(N)],
                                                   const struct sv_gemm_args &a, float4 *to)
{
#pragma unroll
    for (int j = 0; j < piece_lines(N); j++)
        if (j * GPU_COLS < a.n_rows)
            __stcg(to + j * PIECE_LINE,
                   make_float4(acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]));
}

/* The units that share a block. */
struct sharers {
    int32_t first, last;
    int32_t first_slot; /* the others have it as their first block */
};

static __device__ __forceinline__ struct sharers sharers_of(const struct sv_split &s, int32_t block)
{
    struct sharers r;
    r.first = sv_split_unit(&s, block * s.n_k);
    r.last = sv_split_unit(&s, (block + 1) * s.n_k - 1);
    r.first_slot = sv_split_slot(&s, r.first, block);
    return r;
}

/* As piece_of, for a block whose sharers are known. */
template <int N, int BANDS>
static __device__ __forceinline__ const float4 *
piece_in(const struct sv_gemm_args &a, const struct sharers &who, int32_t u, int band)
{
    const int32_t slot = u == who.first ? who.first_slot : 2 * u;
    return a.pieces + ((size_t)slot * BANDS + band) * (size_t)piece_lines(N) * PIECE_LINE +
           (threadIdx.x & (PIECE_LINE - 1));
}

/* The portable way: the block that writes the last piece adds all of them up into acc. False when
 * others are still to come. *order is shared memory of the group. */
template <int N, int BANDS>
static __device__ __forceinline__ bool
gather_pieces(float (&acc)[gpu_sums(N)], const struct sv_gemm_args &a, uint32_t *order,
              int32_t unit, int32_t block, int band, int group)
{
    const int tid = threadIdx.x & (PIECE_LINE - 1);
    write_piece<N>(acc, a, piece_of<N, BANDS>(a, unit, block, band));
    gpu_publish();
    group_sync(group);
    const struct sharers who = sharers_of(a.split, block);
    uint32_t *arrived = &a.arrived[who.first * BANDS + band];
    if (tid == 0)
        *order = gpu_arrive(arrived);
    group_sync(group);
    if (*order != (uint32_t)(who.last - who.first))
        return false;
    if (tid == 0)
        *arrived = 0;
    gpu_obtain();
    /* As many pieces under way at once as registers allow. */
    constexpr int U = N <= 32 ? 4 : 1;
#pragma unroll 1
    for (int32_t u0 = who.first; u0 <= who.last; u0 += U) {
        float4 p[U][piece_lines(N)];
#pragma unroll
        for (int i = 0; i < U; i++) {
            const float4 *from = piece_in<N, BANDS>(a, who, u0 + i, band);
#pragma unroll
            for (int j = 0; j < piece_lines(N); j++)
                if (u0 + i <= who.last && j * GPU_COLS < a.n_rows)
                    p[i][j] = __ldcg(from + j * PIECE_LINE);
        }
#pragma unroll
        for (int i = 0; i < U; i++)
            if (u0 + i <= who.last) {
                const bool first = u0 + i == who.first;
#pragma unroll
                for (int j = 0; j < piece_lines(N); j++) {
                    acc[4 * j] = first ? p[i][j].x : acc[4 * j] + p[i][j].x;
                    acc[4 * j + 1] = first ? p[i][j].y : acc[4 * j + 1] + p[i][j].y;
                    acc[4 * j + 2] = first ? p[i][j].z : acc[4 * j + 2] + p[i][j].z;
                    acc[4 * j + 3] = first ? p[i][j].w : acc[4 * j + 3] + p[i][j].w;
                }
            }
    }
    return true;
}

/* The sm_90 way: a piece has its own ready flag. Its places hold a bit pattern that no
 * sum has until the writer puts the sum there and again when the reader has taken it; nothing is
 * counted and nothing fenced, so a piece is on its way for one trip to L2 and back. A reader waits
 * for other thread blocks of the grid, which must all fit the device at once. */
enum : uint32_t { SV_PIECE_NONE = 0xffffffffu, SV_PIECE_NAN = 0x7fffffffu };

static __device__ __forceinline__ uint32_t piece_word(float v)
{
    const uint32_t w = __float_as_uint(v);
    return w == SV_PIECE_NONE ? (uint32_t)SV_PIECE_NAN : w;
}

static __device__ __forceinline__ bool piece_missing(uint4 w)
{
    return w.x == SV_PIECE_NONE || w.y == SV_PIECE_NONE || w.z == SV_PIECE_NONE ||
           w.w == SV_PIECE_NONE;
}

template <int N>
static __device__ __forceinline__ void post_piece(const float (&acc)[gpu_sums(N)],
                                                  const struct sv_gemm_args &a, float4 *to)
{
#pragma unroll
    for (int j = 0; j < piece_lines(N); j++) {
        if (j % 4 == 0)
            sv_jitter();
        if (j * GPU_COLS < a.n_rows)
            gpu_post16(to + j * PIECE_LINE,
                       make_uint4(piece_word(acc[4 * j]), piece_word(acc[4 * j + 1]),
                                  piece_word(acc[4 * j + 2]), piece_word(acc[4 * j + 3])));
    }
}

/* Takes this unit's share of the rows of x from all pieces of a block, adds them up and stores
 * them. */
template <int N, int BANDS, bool STMATRIX, bool GATED>
static __device__ __forceinline__ void take_pieces(const struct sv_gemm_args &a, int32_t unit,
                                                   int32_t block, int band, const struct spot &s,
                                                   int n_warps)
{
    const struct sharers who = sharers_of(a.split, block);
    const int32_t n_who = who.last - who.first + 1, n_chunks = (a.n_rows + 15) / 16;
    const int32_t c0 = n_chunks * (unit - who.first) / n_who;
    const int32_t c1 = n_chunks * (unit - who.first + 1) / n_who;
    const bool four = a.n_sharers == 4; /* two and two */
    /* C chunks of U pieces under way at once; H times GPU_COLS rows of x a chunk. */
    constexpr int C = N > 32 ? 2 : 1, U = 4, H = N > 8 ? FOURS_16 : 1,
                  CHUNK = FOURS_16 * PIECE_LINE;
#pragma unroll 1
    for (int32_t c = c0; c < c1; c += C) {
        float v[C][SUMS_16], third[C][SUMS_16];
#pragma unroll
        for (int j = 0; j < C; j++)
#pragma unroll
            for (int e = 0; e < SUMS_16; e++)
                v[j][e] = third[j][e] = 0.0f;
#pragma unroll 1
        for (int32_t u = who.first; u <= who.last; u += U) {
            uint4 p[U][C][H];
            bool missing;
            sv_jitter();
            do {
                missing = false;
#pragma unroll
                for (int i = 0; i < U; i++) {
                    const float4 *from = piece_in<N, BANDS>(a, who, u + i, band) + c * CHUNK;
#pragma unroll
                    for (int j = 0; j < C; j++)
#pragma unroll
                        for (int h = 0; h < H; h++) {
                            p[i][j][h] = make_uint4(0, 0, 0, 0);
                            if (u + i <= who.last && c + j < c1 &&
                                (c + j) * 16 + h * GPU_COLS < a.n_rows)
                                p[i][j][h] = gpu_look16(from + j * CHUNK + h * PIECE_LINE);
                        }
                }
#pragma unroll
                for (int i = 0; i < U; i++)
#pragma unroll
                    for (int j = 0; j < C; j++)
#pragma unroll
                        for (int h = 0; h < H; h++)
                            missing |= piece_missing(p[i][j][h]);
                /* Polls one missing piece at a time: polling all of them would slow down the
                 * memory for the warps that write them. */
                const uint32_t since = sv_jitter_now();
                for (int i = 0; missing && i < U && u + i <= who.last; i++)
                    while (piece_missing(
                        gpu_look16(piece_in<N, BANDS>(a, who, u + i, band) +
                                   (min(c1 * 16, a.n_rows) - 1) / GPU_COLS * PIECE_LINE)))
                        sv_jitter_watch(since);
                sv_jitter();
            } while (missing);
#pragma unroll
            for (int i = 0; i < U; i++) {
                if (u + i > who.last)
                    break;
                const bool first = u + i == who.first, waits = four && i == 2;
                const float4 *from = piece_in<N, BANDS>(a, who, u + i, band) + c * CHUNK;
#pragma unroll
                for (int j = 0; j < C; j++)
#pragma unroll
                    for (int h = 0; h < H; h++) {
                        if (c + j >= c1 || (c + j) * 16 + h * GPU_COLS >= a.n_rows)
                            continue;
                        const uint4 r = p[i][j][h];
                        const uint32_t w[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            const float q = __uint_as_float(w[e]), before = v[j][h * 4 + e],
                                        held = third[j][h * 4 + e];
                            if (waits)
                                third[j][h * 4 + e] = q;
                            else
                                v[j][h * 4 + e] = first            ? q
                                                  : four && i == 3 ? before + (held + q)
                                                                   : before + q;
                        }
                        gpu_post16(
                            from + j * CHUNK + h * PIECE_LINE,
                            make_uint4(SV_PIECE_NONE, SV_PIECE_NONE, SV_PIECE_NONE, SV_PIECE_NONE));
                    }
            }
        }
        gpu_wave_sync();
#pragma unroll
        for (int j = 0; j < C; j++)
            if (c + j < c1)
                FOR_ENDING(GATED, a, s,
                           (put<(N > 8), STMATRIX, GATED, END>(v[j], a, s, (c + j) * 16, n_warps)));
    }
    if (GATED && c0 < c1)
        gated_end<(N > 8), STMATRIX>(a, s);
}

#endif
