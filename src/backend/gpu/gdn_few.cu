/*
 * gdn_few.cu - the gated delta rule of verify blocks: convolution, scan and norm in one launch.
 *
 * Called through the table in device.cu; for single rows: gdn_single.cu. A thread block has a
 * value head of a segment of at most a chunk's rows, which lie in one chunk or two. Its state is
 * copied to shared memory while queries, keys, values, gates and the products of keys are computed;
 * then each wave processes its columns of the chunks, tile by tile from shared memory, which then
 * holds the state after the first chunk. Data that several thread blocks of the segment read, keys
 * and rows before the convolution, is written by the one that finishes last. Arithmetic:
 * gdn_row.cuh, gdn_scan.cuh.
 */
#include "backend/gpu/gdn_whole.cuh"

enum {
    KEY_TILE = GDN_CHUNK * LINE,
    KEYS = STATE,               /* of the first row's chunk, of the next one, */
    FULL = KEYS + 2 * KEY_TILE, /* and of one that is full by now */
    QUERIES = FULL + KEY_TILE,  /* by their lines in either chunk, as values are */
    VALUES = QUERIES + KEY_TILE,
    HALF = GDN_CHUNK * 4 * COLS, /* of the columns */
    FEW_BYTES = VALUES + 2 * HALF,
    CONV_WARPS = 6, /* two each for queries, keys, values */
    GATES = CONV_WARPS
};

struct few_shared {
    struct chunk_shared of[2];
    float g[2][GDN_CHUNK];
    uint32_t before; /* thread blocks of the key head */
};

/* Rows of the pass by places from the first one's chunk on: row i has place line + i. */
struct few {
    struct gdn_seg seg;
    int32_t h, kh, line, chunk; /* position of place 0 */
    int32_t u0, k0;             /* rows of the rings that it has */
    int32_t conv0;              /* that the first row has */
};

/* The first chunk, or the next one. */
[[maybe_unused]] static __device__ __forceinline__ struct chunk few_chunk(const struct few &f,
                                                                          int32_t n)
{
    struct chunk c = {};
    c.first = f.chunk + n * GDN_CHUNK;
    c.lo = n ? 0 : f.line;
    c.hi = min(f.line + f.seg.n - n * GDN_CHUNK, GDN_CHUNK);
    c.folds = n == 0 && f.line + f.seg.n > GDN_CHUNK;
    return c;
}

/* Four numbers of a line of values: column col and on. */
[[maybe_unused]] static __device__ __forceinline__ float *value_at(uint8_t *room, int32_t place,
                                                                   int32_t col)
{
    return (float *)(room + VALUES + col / COLS * HALF +
                     gpu_place<4 * COLS>(place % GDN_CHUNK, col % COLS / 4)) +
           col % 4;
}

/* Convolution of two channels; queries and keys stay f32 in the places of their parts. */
struct pair_taps {
    float2 w[SV_GDN_TAPS];
    float older[OLDER][2];
};
[[maybe_unused]] static __device__ __forceinline__ void
convolve_few(const struct conv_args &a, const struct few &f, const struct gdn_slot &slot,
             int32_t part, int32_t pair, int32_t channel, const struct pair_taps &t,
             const uint32_t (&in)[GDN_CHUNK], uint8_t *room)
{
    float2 x0 = older_of(a, f.seg.base - 3, t.older[0]),
           x1 = older_of(a, f.seg.base - 2, t.older[1]),
           x2 = older_of(a, f.seg.base - 1, t.older[2]);
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++) {
        const int32_t place = f.line + i;
        const float2 x3 = load2((const __nv_bfloat16 *)&in[i]);
        float *const to =
            part == 2
                ? value_at(room, place, 2 * pair)
                : (float *)(room +
                            (part ? KEYS + place * LINE : QUERIES + place % GDN_CHUNK * LINE) +
                            8 * pair);
        float2 y;
        y.x = conv_silu(t.w[0].x, t.w[1].x, t.w[2].x, t.w[3].x, x0.x, x1.x, x2.x, x3.x);
        y.y = conv_silu(t.w[0].y, t.w[1].y, t.w[2].y, t.w[3].y, x0.y, x1.y, x2.y, x3.y);
        x0 = x1, x1 = x2, x2 = x3;
        if (i < f.seg.n)
            *(float2 *)to = y;
        if (i < f.seg.n && part == 2)
            put_conv_row(a, slot, gdn_around(f.conv0 + i, a.g.block.conv_ring), channel, in[i]);
    }
}

/* Rows' queries and keys to unit length, in parts; a warp each. */
[[maybe_unused]] static __device__ __forceinline__ void
to_length(const struct conv_args &a, const struct few &f, uint8_t *room)
{
    enum { EACH = 2 * GDN_CHUNK / WHOLE_WAVES };
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool key = warp % 2; /* WHOLE_WAVES is even */
    float2 x[EACH][2];
    float inv[EACH];
    const auto tile_of = [&](int32_t place) {
        return room + (key ? KEYS + place / GDN_CHUNK * KEY_TILE : (int32_t)QUERIES);
    };
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int32_t place = f.line + (warp + WHOLE_WAVES * n) / 2;
        const float *const from =
            (const float *)(tile_of(place) + place % GDN_CHUNK * LINE) + 2 * lane;
        x[n][0] = load2(from), x[n][1] = load2(from + 64);
    }
#pragma unroll
    for (int n = 0; n < EACH; n++)
        inv[n] = to_unit(sum_of_squares(x[n]), key ? 1.0f : a.q_length);
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const int32_t r = warp + WHOLE_WAVES * n, place = f.line + r / 2;
        if (r >= 2 * f.seg.n)
            break;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            float2 y = make_float2(__fmul_rn(x[n][m].x, inv[n]), __fmul_rn(x[n][m].y, inv[n]));
            uint32_t part[2];
            if (key)
                y = make_float2(gdn_to_steps(y.x), gdn_to_steps(y.y));
            gdn_cut<2>(part, y.x, y.y);
#pragma unroll
            for (int p = 0; p < 2; p++)
                gpu_store4(gpu_shared_at(tile_of(place)) +
                               gpu_place<LINE>(place % GDN_CHUNK, p * OCTETS + lane / 4 + 8 * m) +
                               lane % 4 * 4,
                           part[p]);
        }
    }
}

/* beta, G and what is made of it, by a warp: lane l for place l, and for row l. Returns G of that
 * row. own: its log decay; beta: likewise; kept: G of place l, of a row before the pass. */
[[maybe_unused]] static __device__ __forceinline__ float
put_gates(const struct few &f, float own, float beta, float kept, struct few_shared &m)
{
    const int32_t lane = threadIdx.x % 32, from = max(lane - f.line, 0);
    float sum = __shfl_sync(0xffffffffu, kept, max(f.line - 1, 0)), mine = 0;
#pragma unroll
    for (int r = 0; r < GDN_CHUNK; r++) {
        const float x = __shfl_sync(0xffffffffu, own, r);
        sum = (f.line + r) % GDN_CHUNK ? __fadd_rn(sum, x) : x;
        if (lane == r)
            mine = sum;
    }
    const bool before = lane < f.line, there = lane < f.line + f.seg.n;
    const float new_g = __shfl_sync(0xffffffffu, mine, from),
                new_beta = __shfl_sync(0xffffffffu, beta, from),
                g = before  ? kept
                    : there ? new_g
                            : 0,
                last = __shfl_sync(0xffffffffu, g, lane | (GDN_CHUNK - 1));
    struct chunk_shared &c = m.of[lane / GDN_CHUNK];
    const int32_t i = lane % GDN_CHUNK;
    m.g[lane / GDN_CHUNK][i] = g;
    c.beta[i] = before || !there ? 1 : new_beta;
    c.decay[i] = expf(g);
    c.to_end[i] = expf(__fsub_rn(last, g));
    return mine;
}

/* Products of a chunk's keys, or of its queries, with eight of its keys, as weights: by a wave. */
template <int LANES>
static __device__ __forceinline__ void put_dots(const struct chunk &c, bool of_query, int eight,
                                                uint32_t keys, uint32_t rows,
                                                const float (&g)[GDN_CHUNK], struct chunk_shared &m)
{
    float sum[2][128 / LANES] = {}; /* of even and odd tiles */
    const int32_t lane = gpu_lane();
#pragma unroll 2
    for (int t = 0; t < TILES; t += 2) {
        uint32_t k[2][4];
#pragma unroll
        for (int p = 0; p < 2; p++)
            gpu_load_b8(k[p], keys + gpu_place<LINE>(eight * 8 + lane % 8,
                                                     p * OCTETS + 2 * t + gpu_b8_chunk()));
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            uint32_t x[2][128 / LANES];
#pragma unroll
            for (int p = 0; p < 2; p++)
                gpu_load_p<LINE>(x[p], rows, 0, p * GDN_KEY + (t + odd) * 16);
            gpu_mma8(sum[odd], x[1], k[1], odd);
            gpu_mma8(sum[odd], x[1], k[0], odd);
            gpu_mma8(sum[odd], x[0], k[1], odd);
            gpu_mma8(sum[odd], x[0], k[0], odd);
        }
    }
#pragma unroll
    for (int e = 0; e < 128 / LANES; e++) {
        const int32_t i = gpu_run_row(lane) + 8 * (e / GPU_RUN),
                      j = eight * 8 + gpu_run_col(lane) + e % GPU_RUN;
        const bool new_row = i >= c.lo && i < c.hi;
        const float dot = __fadd_rn(sum[0][e], sum[1][e]),
                    weight = new_row && j < i ? __fmul_rn(expf(__fsub_rn(g[i], g[j])), dot) : 0;
        struct weight_pair &to = m.by[j][i / 2];
        (of_query ? to.qk : to.kk)[i % 2] = weight;
        if (of_query && i == j)
            m.own[i] = dot;
    }
}

/* Products of a chunk's keys and queries with the wave's columns of the state; with FOLD, of the
 * state behind the chunk before, whose keys are given too, and u in parts. */
template <bool FOLD>
static __device__ __forceinline__ void
few_products(uint8_t *room, uint32_t keys, const uint32_t (&part)[2][PAIRS], uint32_t keys_before,
             float decay, struct two_sums &of)
{
    const uint32_t queries = gpu_shared_at(room) + QUERIES;
    struct two_sums last = {};
    of = last;
#pragma unroll 1
    for (int n = 0; n < TILES / 2; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = half * TILES / 2 + n;
            float s[SUMS];
            move_tile<false>(room, t, s);
            if (FOLD)
                fold_tile<2>(s, part, keys_before, t, decay);
            add_tile<2>(s, keys, queries, t, half ? last : of);
        }
    add_sums(of, last);
}

/* A chunk's rows in the wave's columns. u: of the lines before its first row. */
[[maybe_unused]] static __device__ __forceinline__ void
few_rows(const struct whole_args &a, const struct few &f, const struct gdn_slot &slot,
         uint8_t *room, const struct chunk &c, const struct chunk_shared &m, struct two_sums &of,
         float (&u)[SUMS])
{
    const struct gdn_args &g = a.c.g;
    const int32_t col = col_of_lane(), nv = g.shape.n_v_heads, ring = g.block.ring;
#pragma unroll
    for (int l = 0; l < LINES; l++)
        if (line_of(l) >= c.lo)
            get_cols(value_at(room, line_of(l), col), u, l);
    solve(c, m, of.keys, of.queries, u);
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int32_t i = line_of(l), place = c.first - f.chunk + i;
        if (i < c.lo || i >= c.hi)
            continue;
        put_cols(value_at(room, i, col), of.queries, l);
        put_cols(a.out + ((int64_t)(f.seg.row0 + place - f.line) * nv + f.h) * GDN_KEY + col,
                 of.queries, l);
        put_cols(slot.u + ((int64_t)f.h * ring + gdn_around(f.u0 + place, ring)) * GDN_KEY + col, u,
                 l);
    }
}

/* Keys, and rows before the convolution in the channels of queries and keys. */
[[maybe_unused]] static __device__ __forceinline__ void keep_shared(const struct conv_args &a,
                                                                    const struct few &f,
                                                                    const struct gdn_slot &slot,
                                                                    uint32_t room)
{
    const int32_t nk = a.g.shape.n_k_heads;
    for (int32_t n = threadIdx.x; n < f.seg.n * OCTETS; n += WHOLE_THREADS) {
        const int32_t i = n / OCTETS, octet = n % OCTETS, place = f.line + i;
        const uint32_t tile = room + KEYS + place / GDN_CHUNK * KEY_TILE;
        const uint4 hi = gpu_load16(tile + gpu_place<LINE>(place % GDN_CHUNK, octet)),
                    lo = gpu_load16(tile + gpu_place<LINE>(place % GDN_CHUNK, OCTETS + octet));
        *(uint4 *)gdn_kept_keys(a.g, slot, f.kh, gdn_around(f.k0 + place, a.g.block.k_ring),
                                octet) =
            make_uint4(gdn_steps_of(hi.x, lo.x), gdn_steps_of(hi.y, lo.y), gdn_steps_of(hi.z, lo.z),
                       gdn_steps_of(hi.w, lo.w));
    }
    /* Two channels of every other row of a thread. */
    enum { EACH = GDN_CHUNK * GDN_KEY / WHOLE_THREADS, APART = WHOLE_THREADS / GDN_KEY };
    const int32_t first = threadIdx.x / GDN_KEY, two = threadIdx.x % GDN_KEY,
                  channel =
                      2 * (two % (GDN_KEY / 2)) + GDN_KEY * (two < GDN_KEY / 2 ? f.kh : nk + f.kh);
    const __nv_bfloat16 *const from = (const __nv_bfloat16 *)a.x + f.seg.row0 * a.ldx + channel;
    uint32_t x[EACH];
#pragma unroll
    for (int n = 0; n < EACH; n++)
        if (first + n * APART < f.seg.n)
            x[n] = *(const uint32_t *)(from + (first + n * APART) * a.ldx);
#pragma unroll
    for (int n = 0; n < EACH; n++)
        if (first + n * APART < f.seg.n)
            put_conv_row(a, slot, gdn_around(f.conv0 + first + n * APART, a.g.block.conv_ring),
                         channel, x[n]);
}

/* What a thread reads of the pass's rows, two bf16 a word: x, in warp GATES a and b instead; the
 * gate of the norm. Repeated behind the last row. */
enum { NORM_EACH = GDN_CHUNK / WHOLE_WAVES };
struct words {
    uint32_t x[GDN_CHUNK], z[NORM_EACH][2];
};
[[maybe_unused]] static __device__ __forceinline__ void
take_words(const struct whole_args &a, const struct few &f, int32_t channel, struct words &in)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = f.seg.n - 1;
    const __nv_bfloat16 *const x = (const __nv_bfloat16 *)a.c.x + f.seg.row0 * a.c.ldx + channel,
                               *const z = a.z + f.seg.row0 * a.n.ldz + f.h * GDN_KEY + 2 * lane;
    const int64_t gates = (f.seg.row0 + min(lane, last)) * a.c.ldx + f.h;
    if (warp < CONV_WARPS) {
#pragma unroll
        for (int n = 0; n < GDN_CHUNK; n++)
            in.x[n] = *(const uint32_t *)(x + min(n, last) * a.c.ldx);
    } else if (warp == GATES) {
        in.x[0] = ((const uint16_t *)a.c.a)[gates];
        in.x[1] = ((const uint16_t *)a.c.b)[gates];
    }
#pragma unroll
    for (int r = 0; r < NORM_EACH; r++)
#pragma unroll
        for (int n = 0; n < 2; n++)
            in.z[r][n] =
                *(const uint32_t *)(z + min(warp + r * WHOLE_WAVES, last) * a.n.ldz + 64 * n);
}

/* The norm of the outputs in shared memory, a warp a row. Has a barrier. */
[[maybe_unused]] static __device__ __forceinline__ void
few_norm(const struct whole_args &a, const struct few &f, uint8_t *room, const struct words &in)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, nv = a.c.g.shape.n_v_heads;
    float2 weight[2];
#pragma unroll
    for (int n = 0; n < 2; n++)
        weight[n] = load2(a.n.weight + 2 * lane + 64 * n);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < NORM_EACH; r++) {
        const int32_t row = warp + r * WHOLE_WAVES;
        if (row >= f.seg.n)
            break;
        const float2 x[2] = {*(const float2 *)value_at(room, f.line + row, 2 * lane),
                             *(const float2 *)value_at(room, f.line + row, 2 * lane + 64)};
        const float inv = to_norm(a.n, sum_of_squares(x));
        __nv_bfloat16 *const to =
            a.normed + ((int64_t)(f.seg.row0 + row) * nv + f.h) * GDN_KEY + 2 * lane;
#pragma unroll
        for (int n = 0; n < 2; n++)
            put_norm(to + 64 * n, x[n], load2((const __nv_bfloat16 *)&in.z[r][n]), weight[n], inv);
    }
}

/* LANES: of a wave; there is one for 32 alone. */
template <int LANES>
static __global__ void __launch_bounds__(WHOLE_THREADS, 2)
    few_kernel(const __grid_constant__ struct whole_args a)
{
    GPU_SHARED(room);
    __shared__ __align__(16) struct few_shared m;
    const struct gdn_args &g = a.c.g;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, nk = g.shape.n_k_heads,
                  each = g.each, ring = g.block.ring;
    const uint32_t at = gpu_shared_at(room);
    sv_pdl_launch();
    if (!g.early)
        sv_pdl_wait();
    struct few f;
    f.seg = gdn_seg_at(g, (int32_t)blockIdx.y);
    if (f.seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    f.h = (int32_t)blockIdx.x;
    f.kh = f.h / each;
    f.line = f.seg.base % GDN_CHUNK;
    f.chunk = f.seg.base - f.line;
    f.u0 = f.chunk % ring;
    f.k0 = f.chunk % g.block.k_ring;
    f.conv0 = f.seg.base % g.block.conv_ring;
    const struct gdn_slot slot = gdn_slot_at(g, f.seg.slot);
    const int32_t pos = state_pos(g, slot, f.seg, f.h), i = threadIdx.x / OCTETS,
                  octet = threadIdx.x % OCTETS;
    const bool full = pos < f.chunk; /* a chunk before this one */
    uint4 kept = make_uint4(0, 0, 0, 0), before = kept;
    if (i < f.line)
        kept = *gdn_kept_keys(g, slot, f.kh, gdn_around(f.k0 + i, g.block.k_ring), octet);
    if (full)
        before = *gdn_kept_keys(g, slot, f.kh, gdn_around(pos % g.block.k_ring + i, g.block.k_ring),
                                octet);
    const int32_t part = warp / 2, pair = warp % 2 * 32 + lane,
                  channel = 2 * pair + GDN_KEY * (part == 0   ? f.kh
                                                  : part == 1 ? nk + f.kh
                                                              : 2 * nk + f.h);
    struct pair_taps taps;
    float gate = 0;
    if (warp < CONV_WARPS) {
#pragma unroll
        for (int n = 0; n < SV_GDN_TAPS; n++)
            taps.w[n] = load2(a.c.conv + (int64_t)n * g.channels + channel);
#pragma unroll
        for (int back = 1; back <= OLDER; back++)
            ask_older(a.c, slot, f.seg.base - back, channel, taps.older[OLDER - back]);
    } else if (warp == GATES && lane < f.line) {
        gate = slot.g[(int64_t)f.h * ring + gdn_around(f.u0 + lane, ring)];
    }
    float u[SUMS], dt_bias = 0, decay = 0;
#pragma unroll
    for (int l = 0; l < LINES; l++)
        if (line_of(l) < f.line)
            get_cols(slot.u +
                         ((int64_t)f.h * ring + gdn_around(f.u0 + line_of(l), ring)) * GDN_KEY +
                         col_of_lane(),
                     u, l);
    struct full_chunk chunk;
    if (full)
        take_full(g, slot, f.h, pos, chunk);
    if (warp == GATES)
        dt_bias = a.c.dt_bias[f.h], decay = a.c.decay[f.h];
    struct words in;
    /* What is asked for behind the state comes behind it. */
    if (!g.early)
        take_words(a, f, channel, in);
    bring_state(slot, f.h, at);
    sv_pdl_wait(); /* no-op after the one above */
    if (g.early)
        take_words(a, f, channel, in);
    if (warp < CONV_WARPS) {
        convolve_few(a.c, f, slot, part, pair, channel, taps, in.x, room);
    } else if (warp == GATES) {
        float own = 0, beta = 0;
        if (lane < f.seg.n) {
            own = log_decay(__uint_as_float(in.x[0] << 16), dt_bias, decay);
            beta = sv_sigmoid(__uint_as_float(in.x[1] << 16));
        }
        gate = put_gates(f, own, beta, gate, m);
    }
    __syncthreads();
    to_length(a.c, f, room);
    if (i < f.line)
        put_keys(at + KEYS, kept);
    if (full)
        put_keys(at + FULL, before);
    __syncthreads(); /* all that others write later is read */
    const bool two = f.line + f.seg.n > GDN_CHUNK;
    if (warp < 4 || two) {
        const int32_t n = warp / 4;
        const uint32_t keys = at + KEYS + n * KEY_TILE;
        put_dots<LANES>(few_chunk(f, n), warp % 2, warp / 2 % 2, keys,
                        warp % 2 ? at + QUERIES : keys, m.g[n], m.of[n]);
    }
    if (threadIdx.x == WHOLE_THREADS - 1)
        m.before = each > 1 ? gpu_arrive(slot.arrived + f.kh) : 0;
    gpu_copy_wait<0>(0, 0);
    __syncthreads(); /* the state is there */
    if (full)
        fold_full(slot, room, at + FULL, f.h, chunk);
    struct two_sums of;
    uint32_t cut[2][PAIRS] = {};
    few_products<false>(room, at + KEYS, cut, 0, 0, of);
#pragma unroll 1
    for (int32_t n = 0;; n++) {
        few_rows(a, f, slot, room, few_chunk(f, n), m.of[n], of, u);
        if (n == two)
            break;
        cut_u<2>(cut, u, [&](int l) { return m.of[0].to_end[line_of(l)]; });
        few_products<true>(room, at + KEYS + KEY_TILE, cut, at + KEYS, m.of[0].decay[GDN_CHUNK - 1],
                           of);
    }
    few_norm(a, f, room, in);
    if (warp == GATES && lane < f.seg.n)
        slot.g[(int64_t)f.h * ring + gdn_around(f.u0 + f.line + lane, ring)] = gate;
    if (threadIdx.x == 0)
        slot.pos[f.h] = f.chunk;
    if (m.before != (uint32_t)each - 1 && each > 1)
        return;
    if (threadIdx.x == 0 && each > 1)
        slot.arrived[f.kh] = 0;
    keep_shared(a.c, f, slot, at);
}

static bool launch_few(struct sv_cuda *cu, const struct sv_p_gdn *p)
{
    if constexpr (GPU_WAVE == 32)
        return p->conv.shape.max_block <= GDN_CHUNK &&
               launch_whole(cu, "gdn_few", few_kernel<GPU_WAVE>, FEW_BYTES,
                            sizeof(struct few_shared), p);
    return false;
}

void sv_cuda_gdn_few(struct sv_dev *dev, const struct sv_p_gdn *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (p->most == 1 ? sv_gdn_single(cu, p) : launch_few(cu, p))
        return;
    sv_cuda_gdn_conv(dev, &p->conv);
    sv_cuda_gdn_scan(dev, &p->scan);
    sv_cuda_gdn_norm(dev, &p->norm);
}
