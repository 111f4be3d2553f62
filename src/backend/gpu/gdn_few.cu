/*
 * gdn_few.cu - the gated delta rule of verify blocks: convolution, scan and norm in one launch.
 *
 * Called through the table in device.cu; for single rows: gdn_single.cu. A thread block has a
 * value head of a segment of at most a chunk's rows, which lie in one chunk or two. Its state is
 * copied to shared memory while queries, keys, values, gates and the products of keys are computed.
 * Then two warps have the same 16 columns of the state and half of the keys' numbers each: their
 * products are added in shared memory, the first warp computes u of a chunk, the second one its
 * outputs. The state is read tile by tile; a tile that nobody reads again is where the two warps'
 * sums meet. Data that several thread blocks of the segment read, keys and rows before the
 * convolution, is written by the one that finishes last. Arithmetic: gdn_row.cuh, gdn_scan.cuh.
 */
#include "backend/cuda/occupancy.h"
#include "backend/gpu/gdn_whole.cuh"

enum {
    FEW_WAVES = 2 * WHOLE_WAVES,
    FEW_THREADS = FEW_WAVES * 32,
    HALF_TILES = TILES / 2,
    KEY_TILE = GDN_CHUNK * LINE,
    KEYS = STATE,                    /* of the first row's chunk, of the next one, */
    FULL = KEYS + 2 * KEY_TILE,      /* and of one that is full by now; then the pairs' sums */
    MEET = FULL / (16 * STATE_LINE), /* as a tile of the state */
    QUERIES = FULL + KEY_TILE,       /* by their lines in either chunk, as values are */
    VALUES = QUERIES + KEY_TILE,
    PITCH = GDN_KEY + 4, /* floats: lines meet no bank twice */
    FEW_BYTES = VALUES + GDN_CHUNK * PITCH * 4,
    PART_WARPS = 4, /* for queries, for keys, for values: eight rows of 64 channels each */
    CONV_WARPS = 3 * PART_WARPS,
    CONV_ROWS = GDN_CHUNK / 2,
    GATES = CONV_WARPS, /* warps of G, of beta */
    BETAS
};

struct few_shared {
    struct chunk_shared of[2];
    float g[2 * GDN_CHUNK];
    uint32_t before; /* thread blocks of the key head */
};

/* Rows of the pass by places from the first one's chunk on: row i has place line + i. */
struct few {
    struct gdn_seg seg;
    int32_t h, kh, line, chunk; /* position of place 0 */
    int32_t u0, k0;             /* rows of the rings that it has */
    int32_t conv0;              /* that the first row has */
};

[[maybe_unused]] static __device__ __forceinline__ struct few few_of(const struct gdn_args &g,
                                                                     const struct gdn_seg &seg)
{
    struct few f;
    f.seg = seg;
    f.h = (int32_t)blockIdx.x;
    f.kh = f.h / g.each;
    f.line = (uint32_t)seg.base % GDN_CHUNK;
    f.chunk = seg.base - f.line;
    f.u0 = (uint32_t)f.chunk % (uint32_t)g.block.ring;
    f.k0 = (uint32_t)f.chunk % (uint32_t)g.block.k_ring;
    f.conv0 = (uint32_t)seg.base % (uint32_t)g.block.conv_ring;
    return f;
}

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

/* A number of a line of values. */
[[maybe_unused]] static __device__ __forceinline__ float *value_at(uint8_t *room, int32_t line,
                                                                   int32_t col)
{
    return (float *)(room + VALUES) + line * PITCH + col;
}

/* What a thread of the convolution has: two channels of some rows from `row` on. x: words of these
 * rows, after those of the three before. */
struct conv_part {
    int32_t part, at, channel, row;
    float2 w[SV_GDN_TAPS];
    uint32_t x[OLDER + CONV_ROWS];
};
[[maybe_unused]] static __device__ __forceinline__ struct conv_part
conv_part_of(const struct gdn_args &g, const struct few &f)
{
    const int32_t warp = threadIdx.x / 32, nk = g.shape.n_k_heads;
    struct conv_part c;
    c.part = warp / PART_WARPS;
    c.at = 2 * (threadIdx.x % 64);
    c.row = warp % PART_WARPS / 2 * CONV_ROWS;
    c.channel = c.at + GDN_KEY * (c.part == 0 ? f.kh : c.part == 1 ? nk + f.kh : 2 * nk + f.h);
    return c;
}
/* What may be read before the launch in front has ended. */
[[maybe_unused]] static __device__ __forceinline__ void take_taps(const struct conv_args &a,
                                                                  const struct few &f,
                                                                  const struct gdn_slot &slot,
                                                                  struct conv_part &c)
{
#pragma unroll
    for (int n = 0; n < SV_GDN_TAPS; n++)
        c.w[n] = load2(a.conv + (int64_t)n * a.g.channels + c.channel);
    if (c.row == 0)
#pragma unroll
        for (int n = 0; n < OLDER; n++)
            c.x[n] = older_of(a, slot, f.conv0, OLDER - n, c.channel);
}
/* Queries and keys stay f32 in the places of their parts. */
[[maybe_unused]] static __device__ __forceinline__ void
convolve_few(const struct few &f, const struct conv_part &c, uint8_t *room)
{
    const int32_t pitch = c.part == 2 ? PITCH * 4 : (int)LINE, first = f.line + c.row;
    uint8_t *const to = room +
                        (c.part == 0   ? QUERIES
                         : c.part == 1 ? KEYS
                                       : VALUES) +
                        first * pitch + c.at * 4;
    float2 x[SV_GDN_TAPS];
#pragma unroll
    for (int i = 0; i < OLDER; i++)
        x[i + 1] = f.seg.base + c.row < OLDER - i ? make_float2(0, 0)
                                                  : load2((const __nv_bfloat16 *)&c.x[i]);
#pragma unroll
    for (int i = 0; i < CONV_ROWS; i++) {
        float2 y;
#pragma unroll
        for (int k = 0; k < OLDER; k++)
            x[k] = x[k + 1];
        x[OLDER] = load2((const __nv_bfloat16 *)&c.x[OLDER + i]);
        y.x = conv_silu(c.w[0].x, c.w[1].x, c.w[2].x, c.w[3].x, x[0].x, x[1].x, x[2].x, x[3].x);
        y.y = conv_silu(c.w[0].y, c.w[1].y, c.w[2].y, c.w[3].y, x[0].y, x[1].y, x[2].y, x[3].y);
        if (c.row + i >= f.seg.n)
            break;
        *(float2 *)(to + (i - (c.part != 1 && first + i >= GDN_CHUNK ? GDN_CHUNK : 0)) * pitch) = y;
    }
}

/* Rows' queries and keys to unit length, in parts; a warp each. */
[[maybe_unused]] static __device__ __forceinline__ void
to_length(const struct conv_args &a, const struct few &f, uint8_t *room)
{
    enum { EACH = 2 * GDN_CHUNK / FEW_WAVES };
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool key = warp % 2; /* FEW_WAVES is even */
    float2 x[EACH][2];
    float inv[EACH];
    const auto tile_of = [&](uint32_t place) {
        return room + (key ? KEYS + place / GDN_CHUNK * KEY_TILE : (uint32_t)QUERIES);
    };
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const uint32_t place = f.line + (warp + FEW_WAVES * n) / 2;
        const float *const from =
            (const float *)(tile_of(place) + place % GDN_CHUNK * LINE) + 2 * lane;
        x[n][0] = load2(from), x[n][1] = load2(from + 64);
    }
#pragma unroll
    for (int n = 0; n < EACH; n++)
        inv[n] = to_unit(sum_of_squares(x[n]), key ? 1.0f : a.q_length);
#pragma unroll
    for (int n = 0; n < EACH; n++) {
        const uint32_t row = (warp + FEW_WAVES * n) / 2, place = f.line + row;
        if ((int32_t)row >= f.seg.n)
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

/* G of both chunks by a warp: lane l for place l, and for row l. Returns G of that row. own: its
 * log decay; kept: G of place l, of a row before the pass. */
[[maybe_unused]] static __device__ __forceinline__ float put_g(const struct few &f, float own,
                                                               float kept, struct few_shared &m)
{
    const int32_t lane = threadIdx.x % 32;
    float sum = __shfl_sync(0xffffffffu, kept, max(f.line - 1, 0)), mine = 0;
#pragma unroll
    for (int r = 0; r < GDN_CHUNK; r++) {
        const float x = __shfl_sync(0xffffffffu, own, r);
        sum = (uint32_t)(f.line + r) % GDN_CHUNK ? __fadd_rn(sum, x) : x;
        if (lane == r)
            mine = sum;
    }
    const float new_g = __shfl_sync(0xffffffffu, mine, max(lane - f.line, 0));
    m.g[lane] = lane < f.line ? kept : lane < f.line + f.seg.n ? new_g : 0;
    return mine;
}
/* beta by a warp: of row l in lane l. */
[[maybe_unused]] static __device__ __forceinline__ void put_beta(const struct few &f, float beta,
                                                                 struct few_shared &m)
{
    const int32_t lane = threadIdx.x % 32;
    const float of_place = __shfl_sync(0xffffffffu, beta, max(lane - f.line, 0));
    m.of[threadIdx.x % 32 / GDN_CHUNK].beta[threadIdx.x % GDN_CHUNK] =
        lane >= f.line && lane < f.line + f.seg.n ? of_place : 1;
}
/* What is made of G, by a warp. */
[[maybe_unused]] static __device__ __forceinline__ void put_decays(struct few_shared &m)
{
    const uint32_t lane = threadIdx.x % 32, i = lane % GDN_CHUNK;
    struct chunk_shared &c = m.of[lane / GDN_CHUNK];
    c.decay[i] = expf(m.g[lane]);
    c.to_end[i] = expf(__fsub_rn(m.g[lane | (GDN_CHUNK - 1)], m.g[lane]));
}

/* Products of a chunk's keys, or of its queries, with eight of its keys, as weights: by a wave. */
template <int LANES>
static __device__ __forceinline__ void put_dots(const struct chunk &c, bool of_query, int eight,
                                                uint32_t keys, uint32_t rows, const float *g,
                                                struct chunk_shared &m)
{
    float sum[2][128 / LANES] = {}; /* of even and odd tiles */
    const int32_t lane = gpu_lane();
#pragma unroll 1
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

/* u of a row by its place, which the ring has more than two chunks of. */
[[maybe_unused]] static __device__ __forceinline__ float *
kept_u(const struct gdn_args &g, const struct few &f, const struct gdn_slot &slot, int32_t place)
{
    const int32_t ring = g.block.ring;
    return slot.u + ((int64_t)f.h * ring + gdn_around(f.u0 + place, ring)) * GDN_KEY;
}

/* Products of a chunk's keys and queries with a warp's part of the state: its columns from col on
 * and half of a key's numbers; with FOLD, of the state behind the chunk before, whose keys are
 * given too, and u in parts. A loop: instructions of a thread block are fetched once. */
[[maybe_unused]] static __device__ __forceinline__ void
few_products(uint8_t *room, int32_t col, int32_t half, bool folds, uint32_t keys,
             const uint32_t (&part)[2][PAIRS], uint32_t keys_before, float decay,
             struct two_sums &of)
{
    const uint32_t queries = gpu_shared_at(room) + QUERIES + half * GDN_KEY;
    keys += half * GDN_KEY; /* bytes of half of a line's part: swizzled groups lie in either */
    keys_before += half * GDN_KEY;
    of = {};
#pragma unroll 1
    for (int t = 0; t < HALF_TILES; t++) {
        float s[SUMS];
        move_tile<false>(room, col, half * HALF_TILES + t, s);
        if (folds)
            fold_tile<2>(s, part, keys_before, t, decay);
        add_tile<2>(s, keys, queries, t, of);
    }
}

/* In a lane's columns, u of a chunk's rows before the pass. */
[[maybe_unused]] static __device__ __forceinline__ void
take_u(const struct gdn_args &g, const struct few &f, const struct gdn_slot &slot, int32_t col,
       const struct chunk &c, float (&u)[SUMS])
{
#pragma unroll
    for (int l = 0; l < LINES; l++)
        if (line_of(l) < c.lo)
            get_cols(kept_u(g, f, slot, line_of(l)) + col, u, l);
}
/* Of the others what is there: v, u. */
[[maybe_unused]] static __device__ __forceinline__ void
take_lines(uint8_t *room, int32_t col, const struct chunk &c, float (&x)[SUMS])
{
#pragma unroll
    for (int l = 0; l < LINES; l++)
        if (line_of(l) >= c.lo)
            get_cols(value_at(room, line_of(l), col), x, l);
}
/* The chunk's rows from a lane's columns to where `at` says: line i. */
template <class AT>
static __device__ __forceinline__ void put_lines(const struct chunk &c, const float (&x)[SUMS],
                                                 const AT &at)
{
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int32_t i = line_of(l);
        if (i >= c.lo && i < c.hi)
            put_cols(at(i), x, l);
    }
}

/* Outputs of a chunk's rows in a lane's columns. sums: tile of the products with queries. */
[[maybe_unused]] static __device__ __forceinline__ void
few_outputs(const struct whole_args &a, const struct few &f, const struct gdn_slot &slot,
            uint8_t *room, int32_t col, int sums, const struct chunk &c,
            const struct chunk_shared &m)
{
    float out[SUMS], u[SUMS];
    move_tile<false>(room, col, sums, out);
    take_u(a.c.g, f, slot, col, c, u);
    take_lines(room, col, c, u);
    solve<false, true>(c, m, out, out, u);
    put_lines(c, out, [&](int32_t i) { return value_at(room, i, col); });
    put_lines(c, out, [&](int32_t i) {
        const int64_t row = f.seg.row0 + c.first - f.seg.base + i;
        return a.out + (row * a.c.g.shape.n_v_heads + f.h) * GDN_KEY + col;
    });
}

/* Keys, and rows before the convolution in the channels of queries and keys. */
[[maybe_unused]] static __device__ __forceinline__ void keep_shared(const struct conv_args &a,
                                                                    const struct few &f,
                                                                    const struct gdn_slot &slot,
                                                                    uint32_t room)
{
    const int32_t nk = a.g.shape.n_k_heads;
    const uint32_t i = threadIdx.x / OCTETS, octet = threadIdx.x % OCTETS, place = f.line + i;
    if ((int32_t)i < f.seg.n) {
        const uint32_t tile = room + KEYS + place / GDN_CHUNK * KEY_TILE;
        const uint4 hi = gpu_load16(tile + gpu_place<LINE>(place % GDN_CHUNK, octet)),
                    lo = gpu_load16(tile + gpu_place<LINE>(place % GDN_CHUNK, OCTETS + octet));
        *(uint4 *)gdn_kept_keys(a.g, slot, f.kh, gdn_around(f.k0 + place, a.g.block.k_ring),
                                octet) =
            make_uint4(gdn_steps_of(hi.x, lo.x), gdn_steps_of(hi.y, lo.y), gdn_steps_of(hi.z, lo.z),
                       gdn_steps_of(hi.w, lo.w));
    }
    /* Two channels of every fourth row of a thread. */
    enum { EACH = GDN_CHUNK * GDN_KEY / FEW_THREADS, APART = FEW_THREADS / GDN_KEY };
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
            *conv_row(a, slot, gdn_around(f.conv0 + first + n * APART, a.g.block.conv_ring),
                      channel) = x[n];
}

/* What a thread reads of the pass's rows: words of the convolution; in the warps behind, a or b of
 * a row. Repeated behind the last row. */
[[maybe_unused]] static __device__ __forceinline__ void
take_words(const struct whole_args &a, const struct few &f, struct conv_part &c)
{
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = f.seg.n - 1;
    const __nv_bfloat16 *const x = (const __nv_bfloat16 *)a.c.x + f.seg.row0 * a.c.ldx + c.channel;
    const int64_t gates = (f.seg.row0 + min(lane, last)) * a.c.ldx + f.h;
    if (warp < CONV_WARPS) {
#pragma unroll
        for (int n = 0; n < OLDER + CONV_ROWS; n++)
            if (n >= OLDER || c.row)
                c.x[n] = *(const uint32_t *)(x + min(c.row - OLDER + n, last) * (int32_t)a.c.ldx);
    } else {
        c.x[0] = ((const uint16_t *)(warp == GATES ? a.c.a : a.c.b))[gates];
    }
}

/* The norm of the outputs in shared memory, a warp a row. Has a barrier. */
[[maybe_unused]] static __device__ __forceinline__ void
few_norm(const struct whole_args &a, const struct few &f, uint8_t *room, const uint32_t (&z)[2])
{
    const int32_t row = threadIdx.x / 32, lane = threadIdx.x % 32;
    float2 weight[2], x[2];
#pragma unroll
    for (int n = 0; n < 2; n++)
        weight[n] = norm_weights(a.n, 2 * lane + 64 * n);
    __syncthreads();
    if (row >= f.seg.n)
        return;
#pragma unroll
    for (int n = 0; n < 2; n++)
        x[n] = *(const float2 *)value_at(room, (uint32_t)(f.line + row) % GDN_CHUNK,
                                         2 * lane + 64 * n);
    const float inv = to_norm(a.n, sum_of_squares(x));
    __nv_bfloat16 *const to =
        a.normed + ((int64_t)(f.seg.row0 + row) * a.c.g.shape.n_v_heads + f.h) * GDN_KEY + 2 * lane;
#pragma unroll
    for (int n = 0; n < 2; n++)
        put_norm(to + 64 * n, x[n], load2((const __nv_bfloat16 *)&z[n]), weight[n], inv);
}

/* LANES: of a wave; there is one for 32 alone. */
template <int LANES>
static __global__ void __launch_bounds__(FEW_THREADS, SV_BLOCKS_OF_112K)
    few_kernel(const __grid_constant__ struct whole_args a)
{
    GPU_SHARED(room);
    __shared__ __align__(16) struct few_shared m;
    const struct gdn_args &g = a.c.g;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, ring = g.block.ring;
    const uint32_t at = gpu_shared_at(room);
    sv_pdl_launch();
    if (!g.early)
        sv_pdl_wait();
    const struct gdn_seg seg = gdn_seg_at(g, (int32_t)blockIdx.y);
    if (seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    const struct few f = few_of(g, seg);
    const struct gdn_slot slot = gdn_slot_at(g, f.seg.slot);
    const int32_t pos = state_pos(g, slot, f.seg, f.h);
    const bool full = pos < f.chunk; /* a chunk before this one */
    const bool two = f.line + f.seg.n > GDN_CHUNK;
    /* Half of the threads have eight keys of this chunk, the others of the full one. */
    const bool of_full = warp >= FEW_WAVES / 2;
    const int32_t i = threadIdx.x / OCTETS % GDN_CHUNK, octet = threadIdx.x % OCTETS;
    uint4 kept = make_uint4(0, 0, 0, 0);
    if (of_full ? full : i < f.line)
        kept = *gdn_kept_keys(
            g, slot, f.kh,
            gdn_around((of_full ? (uint32_t)pos % (uint32_t)g.block.k_ring : f.k0) + i,
                       g.block.k_ring),
            octet);
    struct conv_part c = conv_part_of(g, f);
    float gate = 0, dt_bias = 0, decay = 0;
    if (warp < CONV_WARPS) {
        take_taps(a.c, f, slot, c);
    } else if (warp == GATES) {
        if (lane < f.line)
            gate = slot.g[(int64_t)f.h * ring + gdn_around(f.u0 + lane, ring)];
        dt_bias = a.c.dt_bias[f.h], decay = a.c.decay[f.h];
    }
    /* What is asked for behind the state comes behind it. */
    if (!g.early)
        take_words(a, f, c);
    bring_state<FEW_WAVES>(slot, f.h, at);
    sv_pdl_wait(); /* no-op after the one above */
    if (g.early)
        take_words(a, f, c);
    if (warp < CONV_WARPS) {
        convolve_few(f, c, room);
    } else if (warp == GATES) {
        gate = put_g(f, log_decay(__uint_as_float(c.x[0] << 16), dt_bias, decay), gate, m);
    } else if (warp == BETAS) {
        put_beta(f, sv_sigmoid(__uint_as_float(c.x[0] << 16)), m);
    }
    const int32_t pair = warp % WHOLE_WAVES, half = warp / WHOLE_WAVES,
                  col = pair * 16 + gpu_run_row(lane) * GPU_LINES;
    float u[SUMS];
    struct full_chunk chunk;
    take_u(g, f, slot, col, few_chunk(f, 0), u);
    if (full)
        take_full(g, slot, f.h, col, pos, chunk);
    __syncthreads(); /* rows that the last ones take the places of are read */
    if (c.part == 2)
#pragma unroll
        for (int n = 0; n < CONV_ROWS; n++)
            if (c.row + n < f.seg.n)
                *conv_row(a.c, slot, gdn_around(f.conv0 + c.row + n, g.block.conv_ring),
                          c.channel) = c.x[OLDER + n];
    to_length(a.c, f, room);
    if (of_full ? full : i < f.line)
        put_keys(at + (of_full ? FULL : KEYS), i, octet, kept);
    __syncthreads(); /* all that others write later is read */
    if (warp == GATES && lane < f.seg.n)
        slot.g[(int64_t)f.h * ring + gdn_around(f.u0 + f.line + lane, ring)] = gate;
    if (threadIdx.x == 0)
        slot.pos[f.h] = f.chunk;
    if (warp == 0)
        put_decays(m);
    if (half && (pair < 4 || two)) {
        const int32_t n = pair / 4;
        const uint32_t keys = at + KEYS + n * KEY_TILE;
        put_dots<LANES>(few_chunk(f, n), pair % 2, pair / 2 % 2, keys,
                        pair % 2 ? at + QUERIES : keys, m.g + n * GDN_CHUNK, m.of[n]);
    }
    uint32_t z[2]; /* of a row of the pass, repeated behind the last one */
#pragma unroll
    for (int n = 0; n < 2; n++)
        z[n] = *(const uint32_t *)(a.z + (f.seg.row0 + min(warp, f.seg.n - 1)) * a.n.ldz +
                                   f.h * GDN_KEY + 2 * lane + 64 * n);
    if (threadIdx.x == 0)
        m.before = gpu_arrive(slot.arrived + f.kh);
    gpu_copy_wait<0>(0, 0);
    __syncthreads(); /* the state is there */
    if (full) {
        fold_full<HALF_TILES>(slot, room, at + FULL, f.h, col, half * HALF_TILES, chunk);
        __syncthreads();
    }
    struct two_sums of;
    const auto meet_at = [&](int n) { return n ? (int)HALF_TILES : (int)MEET; };
    const auto meet = [&](int n, float(&sum)[SUMS]) {
        float other[SUMS];
        move_tile<false>(room, col, meet_at(n), other);
#pragma unroll
        for (int e = 0; e < SUMS; e++)
            sum[e] = __fadd_rn(sum[e], other[e]);
    };
#pragma unroll 1
    for (int32_t n = 0;; n++) {
        const struct chunk c = few_chunk(f, n);
        if (n <= two) {
            uint32_t cut[2][PAIRS];
            cut_u<2>(cut, u, [&](int l) { return m.of[0].to_end[line_of(l)]; });
            few_products(room, col, half, n > 0, at + KEYS + n * KEY_TILE, cut, at + KEYS,
                         m.of[0].decay[GDN_CHUNK - 1], of);
            if (half)
                move_tile<true>(room, col, meet_at(n), of.keys);
            __syncthreads();
        }
        if (half == 0) {
            if (n > two)
                break;
            meet(n, of.keys);
            move_tile<true>(room, col, meet_at(n), of.queries);
            take_lines(room, col, c, u);
            solve<true, false>(c, m.of[n], of.keys, of.queries, u);
            put_lines(c, u, [&](int32_t i) { return value_at(room, i, col); });
            __syncthreads();
            put_lines(c, u,
                      [&](int32_t i) { return kept_u(g, f, slot, c.first - f.chunk + i) + col; });
            continue;
        }
        if (n > 0) /* a chunk late */
            few_outputs(a, f, slot, room, col, meet_at(n - 1), few_chunk(f, n - 1), m.of[n - 1]);
        if (n > two)
            break;
        __syncthreads();
        meet(n, of.queries);
        move_tile<true>(room, col, meet_at(n), of.queries);
        take_lines(room, col, c, u);
    }
    few_norm(a, f, room, z);
    if (m.before != (uint32_t)g.each - 1)
        return;
    if (threadIdx.x == 0)
        gdn_slot_at(g, f.seg.slot).arrived[f.kh] = 0;
    keep_shared(a.c, f, gdn_slot_at(g, f.seg.slot), at);
}

static bool launch_few(struct sv_cuda *cu, const struct sv_p_gdn *p)
{
    if constexpr (GPU_WAVE == 32)
        return p->conv.shape.max_block <= GDN_CHUNK &&
               launch_whole(cu, "gdn_few", few_kernel<GPU_WAVE>, FEW_WAVES, FEW_BYTES,
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
