/*
 * gdn.cu - the gated delta rule before and after its scan: convolution over positions, unit length,
 * gates and the products of keys within a chunk; the gated norm of the output, and the keys and
 * gates that a slot keeps.
 *
 * Called through the table in device.cu. A thread block of the convolution takes the rows of a
 * segment in one chunk, and of these a key head's queries and keys, which are all that the products
 * need, or up to 256 numbers of its values. Rows at a segment's start, whose predecessors are not
 * in the pass, are computed by the block of the first chunk, which alone reads and writes the kept
 * rows before the convolution. Each sum has one order, by positions within the chunk; fused
 * operations are explicit. Must not: let a row's bits depend on which rows of its chunk are in the
 * pass.
 */
#include "backend/gpu/gdn_row.cuh"

enum {
    CONV_THREADS = 256,
    CONV_APART = 2,   /* thread blocks on a multiprocessor that have a part each */
    CONV_PAIRS = 128, /* of channels in a part: two threads each */
    CONV_ROWS = GDN_CHUNK * CONV_PAIRS / CONV_THREADS,
    LINE =
        GDN_KEY + 16, /* floats between keys in shared memory: quads of lanes meet no bank twice */
    PARTS_LINE = 2 * GDN_KEY * 2, /* bytes: of a query or key, its larger parts, the others */
    NORM_WARPS = 8,
    NORM_EACH = 4, /* heads of a warp where there are many */
    Q = 0,
    K = 1
};

static __device__ __forceinline__ struct group group_at(const struct gdn_seg &s, int32_t row0)
{
    struct group g;
    g.seg = s;
    g.row0 = row0;
    g.pos = s.base + row0 - s.row0;
    g.line = g.pos % GDN_CHUNK;
    g.n = min(GDN_CHUNK - g.line, s.row0 + s.n - row0);
    return g;
}

/* What a thread block takes of the channels of key head kh: all, or those of one part: 0, queries
 * and keys; n, the n-th 256 of its values. */
template <bool ALL> struct share {
    int32_t kh, part;
    __device__ __forceinline__ bool has(int32_t p) const
    {
        return ALL || part == p;
    }
};
/* A thread's pair of these channels, and its rows of a group: `rows` from row0 on. */
struct pair {
    int32_t of, at;  /* Q, K or a value; channel within the queries, keys or values of the head */
    int32_t channel; /* of a row */
    int32_t row0, rows;
    bool there;
};
/* The first one of a thread; of all channels, others are CONV_THREADS further each: n. */
template <bool ALL>
static __device__ __forceinline__ struct pair pair_at(const struct gdn_args &g,
                                                      const struct share<ALL> &w, int32_t n)
{
    const struct sv_gdn_shape &s = g.shape;
    const int32_t values = g.each * s.v_dim,
                  p = ALL ? (int32_t)threadIdx.x + n * CONV_THREADS
                      : w.part == 0
                          ? (int32_t)threadIdx.x % CONV_PAIRS
                          : s.k_dim + (w.part - 1) * CONV_PAIRS + (int32_t)threadIdx.x % CONV_PAIRS;
    struct pair c;
    c.row0 = ALL ? 0 : threadIdx.x / CONV_PAIRS * CONV_ROWS;
    c.rows = ALL ? (int32_t)GDN_CHUNK : (int32_t)CONV_ROWS;
    c.of = 2 * p < s.k_dim ? Q : 2 * p < 2 * s.k_dim ? K : 2;
    c.at = 2 * p - c.of * s.k_dim;
    c.channel = c.of * s.n_k_heads * s.k_dim + c.at + w.kh * (c.of < 2 ? s.k_dim : values);
    c.there = c.of < 2 ? w.has(0) : (ALL || w.part > 0) && c.at < values;
    return c;
}
template <bool ALL>
static __device__ __forceinline__ int32_t n_pairs(const struct gdn_args &g,
                                                  const struct share<ALL> &w)
{
    return ALL ? (g.shape.k_dim + g.each * g.shape.v_dim / 2 + CONV_THREADS - 1) / CONV_THREADS : 1;
}

/* Of a pair of channels: weights, and the rows before its first one. */
struct taps {
    float2 w[SV_GDN_TAPS], older[OLDER];
};
/* FIRST: what the launch in front has not written for a segment's first group. */
template <typename T, bool FIRST>
static __device__ __forceinline__ void load_taps(const struct conv_args &a, const struct group &g,
                                                 const struct pair &c, struct taps &t)
{
    const struct gdn_slot slot = gdn_slot_at(a.g, g.seg.slot);
    if (FIRST && c.there)
#pragma unroll
        for (int i = 0; i < SV_GDN_TAPS; i++)
            t.w[i] = load2(a.conv + (int64_t)i * a.g.channels + c.channel);
    if (!c.there || c.row0 >= g.n || FIRST != (g.row0 + c.row0 == g.seg.row0))
        return;
    if (sizeof(T) == 2 && a.kept_bf16) {
        /* All are under way before one is touched: each touch waits for memory. */
        uint32_t two[OLDER];
#pragma unroll
        for (int back = 1; back <= OLDER; back++) {
            const int32_t row = g.row0 + c.row0 - back, pos = g.pos + c.row0 - back;
            const T *const from =
                row >= g.seg.row0 ? (const T *)a.x + row * a.ldx
                                  : (const T *)slot.conv +
                                        (int64_t)(max(pos, 0) % a.g.block.conv_ring) * a.g.channels;
            two[OLDER - back] = *(const uint32_t *)(const void *)(from + c.channel);
        }
#pragma unroll
        for (int back = 1; back <= OLDER; back++)
            t.older[OLDER - back] = g.pos + c.row0 < back
                                        ? make_float2(0, 0)
                                        : load2((const __nv_bfloat16 *)&two[OLDER - back]);
        return;
    }
#pragma unroll
    for (int back = 1; back <= OLDER; back++)
        t.older[OLDER - back] = tap<T>(a, g, slot, back - c.row0, c.channel);
}

/* Queries and keys go to shared memory, values to where the scan finds them. */
template <typename T, int BATCH>
static __device__ __forceinline__ void convolve(const struct conv_args &a, const struct group &g,
                                                const struct pair &c, float (*qk)[GDN_CHUNK][LINE],
                                                const struct taps &t)
{
    const int32_t n = c.there ? min(g.n - c.row0, c.rows) : 0, row0 = g.row0 + c.row0,
                  step = c.of < 2 ? LINE : a.g.channels;
    float2 x0 = t.older[0], x1 = t.older[1], x2 = t.older[2];
#pragma unroll 1
    for (int32_t i0 = 0; i0 < n; i0 += BATCH) {
        const T *from = (const T *)a.x + (row0 + i0) * a.ldx + c.channel;
        float *to = c.of < 2 ? &qk[c.of][g.line + c.row0 + i0][c.at]
                             : a.g.mid.qkv + (int64_t)(row0 + i0) * a.g.channels + c.channel;
        struct two<T> in[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++, from += a.ldx)
            if (i0 + i < n)
                in[i] = *(const struct two<T> *)from;
#pragma unroll
        for (int i = 0; i < BATCH; i++, to += step) {
            if (i0 + i >= n)
                break;
            const float2 x3 = rounded<T>(a, load2((const T *)&in[i]));
            float2 y;
            y.x = conv_silu(t.w[0].x, t.w[1].x, t.w[2].x, t.w[3].x, x0.x, x1.x, x2.x, x3.x);
            y.y = conv_silu(t.w[0].y, t.w[1].y, t.w[2].y, t.w[3].y, x0.y, x1.y, x2.y, x3.y);
            *(float2 *)to = y;
            x0 = x1, x1 = x2, x2 = x3;
        }
    }
}

/* In bf16 a chunk's queries and keys in parts, as the scan has them, follow in dynamic memory. */
struct conv_shared {
    float qk[2][GDN_CHUNK][LINE], g[GDN_CHUNK][GDN_CHUNK];
};
enum { PARTS_BYTES = GDN_CHUNK * PARTS_LINE };
static __device__ __forceinline__ uint32_t parts_of(int part)
{
    GPU_SHARED(parts);
    return gpu_shared_at(parts) + part * PARTS_BYTES;
}

/* To unit length, the queries to q_length; a warp each: lane l has numbers 2l, 2l + 1, 2l + 64, ...
 * Parts are what products take from here on, so that they are made once. */
template <typename T>
static __device__ __forceinline__ void to_length(const struct conv_args &a, const struct group &g,
                                                 int32_t kh, float (*qk)[GDN_CHUNK][LINE])
{
    enum { PAIRS = GDN_KEY / 64, WARPS = CONV_THREADS / 32, EACH = 2 * GDN_CHUNK / WARPS };
    const struct sv_gdn_shape &s = a.g.shape;
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = warp % 2;
    float2 held[EACH][PAIRS];
    float inv[EACH];
    if (warp >= 2 * g.n)
        return;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const float *const x =
            qk[part][min(g.line + (warp + WARPS * r) / 2, GDN_CHUNK - 1)] + 2 * lane;
#pragma unroll
        for (int m = 0; m < PAIRS; m++)
            held[r][m] = 2 * lane + 64 * m < s.k_dim ? load2(x + 64 * m) : make_float2(0, 0);
        inv[r] = to_unit(sum_of_squares(held[r]), part == Q ? a.q_length : 1.0f);
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int32_t i = (warp + WARPS * r) / 2;
        if (i >= g.n)
            break;
        float *const x = qk[part][g.line + i] + 2 * lane;
        float *const to = a.g.mid.qkv + (int64_t)(g.row0 + i) * a.g.channels +
                          (int64_t)(part * s.n_k_heads + kh) * s.k_dim;
#pragma unroll
        for (int m = 0; m < PAIRS; m++) {
            if (2 * lane + 64 * m >= s.k_dim)
                break;
            float2 y =
                make_float2(__fmul_rn(held[r][m].x, inv[r]), __fmul_rn(held[r][m].y, inv[r]));
            if constexpr (sizeof(T) == 2) {
                if (part == K)
                    y = make_float2(gdn_to_steps(y.x), gdn_to_steps(y.y));
                uint32_t p[2];
                gdn_cut<2>(p, y.x, y.y);
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    ((uint32_t *)to)[n * s.k_dim / 2 + lane + 32 * m] = p[n];
                    gpu_store4(
                        parts_of(part) +
                            gpu_place<PARTS_LINE>(g.line + i, n * GDN_KEY / 8 + lane / 4 + 8 * m) +
                            lane % 4 * 4,
                        p[n]);
                }
            } else {
                *(float2 *)(to + 2 * lane + 64 * m) = y;
                *(float2 *)(x + 64 * m) = y;
            }
        }
    }
}

/* Keys of the chunk that were committed before. */
template <typename T>
static __device__ __forceinline__ void take_keys(const struct gdn_args &a, const struct group &g,
                                                 int32_t kh, float (*keys)[LINE])
{
    const struct gdn_slot slot = gdn_slot_at(a, g.seg.slot);
    const int32_t kd = a.shape.k_dim, n = kd / (sizeof(T) == 2 ? 8 : 4), first = g.pos - g.line;
    for (int32_t i = threadIdx.x; i < g.line * n; i += CONV_THREADS) {
        const int32_t line = i / n, at = (first + line) % a.block.k_ring, d = i % n;
        if constexpr (sizeof(T) == 2) {
            uint4 hi, lo;
            gdn_parts_of(*gdn_kept_keys(a, slot, kh, at, d), hi, lo);
            gpu_store16(parts_of(K) + gpu_place<PARTS_LINE>(line, d), hi);
            gpu_store16(parts_of(K) + gpu_place<PARTS_LINE>(line, GDN_KEY / 8 + d), lo);
        } else {
            *(uint4 *)&keys[line][d * 4] =
                ((const uint4 *)((const float *)slot.k +
                                 ((int64_t)kh * a.block.k_ring + at) * kd))[d];
        }
    }
}

static __device__ __forceinline__ float dot4(float4 x, float4 y, float sum)
{
    return __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, __fmaf_rn(x.x, y.x, sum))));
}
static __device__ __forceinline__ float quad_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Where the product of row i of a chunk with key j goes. */
static __device__ __forceinline__ float *dot_at(const struct conv_args &a, const struct group &g,
                                                int32_t kh, bool of_query, int32_t i, int32_t j)
{
    return a.g.mid.dots +
           (((int64_t)(g.row0 + i - g.line) * a.g.shape.n_k_heads + kh) * 2 + of_query) *
               GDN_CHUNK +
           j;
}
static __device__ __forceinline__ bool is_dot(const struct group &g, int32_t i, int32_t j)
{
    return i >= g.line && i < g.line + g.n && j <= i;
}

/* Products of a row's key and query with the keys of its chunk up to its own: four lanes a pair of
 * rows. */
static __device__ __forceinline__ void dots(const struct conv_args &a, const struct group &g,
                                            int32_t kh, float (*qk)[GDN_CHUNK][LINE])
{
    const int32_t lane = threadIdx.x % 4;
#pragma unroll 1
    for (int32_t n = threadIdx.x / 4; n < GDN_CHUNK * GDN_CHUNK; n += CONV_THREADS / 4) {
        const int32_t i = n / GDN_CHUNK, j = n % GDN_CHUNK;
        const bool wanted = is_dot(g, i, j);
        float kk = 0, qk_sum = 0;
#pragma unroll 2
        for (int32_t d = 4 * lane; wanted && d < a.g.shape.k_dim; d += 16) {
            const float4 y = *(const float4 *)&qk[K][j][d];
            kk = dot4(*(const float4 *)&qk[K][i][d], y, kk);
            qk_sum = dot4(*(const float4 *)&qk[Q][i][d], y, qk_sum);
        }
        kk = quad_sum(kk);
        qk_sum = quad_sum(qk_sum);
        if (wanted && lane < 2)
            *dot_at(a, g, kh, lane, i, j) = lane ? qk_sum : kk;
    }
}
/* In parts: a wave for the keys' products, one for the queries'. Lines of a product do not meet. */
static __device__ __forceinline__ void dots_of_parts(const struct conv_args &a,
                                                     const struct group &g, int32_t kh)
{
    enum { SUMS = gpu_sums(16) };
    const bool of_query = gpu_wave() > 0;
    const uint32_t keys = parts_of(K), rows = of_query ? parts_of(Q) : keys;
    float sum[2][SUMS] = {}; /* of even and odd tiles */
    if (gpu_wave() > 1)
        return;
#pragma unroll
    for (int t = 0; t < GDN_KEY / 16; t++) {
        if (t * 16 >= a.g.shape.k_dim)
            break;
        uint32_t x[SUMS / 2], k[2][SUMS / 2];
        gpu_load_p<PARTS_LINE>(x, rows, 0, GDN_KEY + t * 16);
        gpu_load_n<PARTS_LINE>(k[1], keys, 0, GDN_KEY + t * 16);
        gpu_load_n<PARTS_LINE>(k[0], keys, 0, t * 16);
        /* All four: a row times itself is 1. */
        gpu_mma_t(sum[t % 2], x, k[1]);
        gpu_mma_t(sum[t % 2], x, k[0]);
        gpu_load_p<PARTS_LINE>(x, rows, 0, t * 16);
        gpu_mma_t(sum[t % 2], x, k[1]);
        gpu_mma_t(sum[t % 2], x, k[0]);
    }
#pragma unroll
    for (int e = 0; e < SUMS; e++) {
        const int32_t i = gpu_run_row(gpu_lane()) + 8 * (e % 4 / GPU_RUN),
                      j = e / 4 * GPU_COLS + gpu_run_col(gpu_lane()) + e % GPU_RUN;
        if (is_dot(g, i, j))
            *dot_at(a, g, kh, of_query, i, j) = __fadd_rn(sum[0][e], sum[1][e]);
    }
}

/* What a row's gates of a value head come from: thread i * 16 + h has row i of the group. */
struct gate_in {
    float a, b, decay, dt_bias;
};
template <typename T>
static __device__ __forceinline__ struct gate_in
load_gates(const struct conv_args &a, const struct group &g, int32_t h, int32_t h_end)
{
    const int32_t i = threadIdx.x / GDN_CHUNK;
    struct gate_in in = {};
    if (i >= g.n || h >= h_end)
        return in;
    in.a = sv_load((const T *)a.a + (g.row0 + i) * a.ldx + h);
    in.b = sv_load((const T *)a.b + (g.row0 + i) * a.ldx + h);
    in.decay = a.decay[h];
    in.dt_bias = a.dt_bias[h];
    return in;
}

/* G of a value head, the sum of g from the chunk's first row on: by one thread. */
static __device__ __forceinline__ void sum_gates(const struct conv_args &a, const struct group &g,
                                                 int32_t h, int32_t at,
                                                 const float (*sums)[GDN_CHUNK])
{
    const int32_t nv = a.g.shape.n_v_heads;
    float sum = 0;
    if (g.line) /* of the row before the group */
        sum = gdn_slot_at(a.g, g.seg.slot)
                  .g[(int64_t)h * a.g.block.ring + (g.pos - 1) % a.g.block.ring];
#pragma unroll 1
    for (int32_t r = 0; r < g.n; r++) {
        sum = g.line + r ? __fadd_rn(sum, sums[r][at]) : sums[r][at];
        a.g.mid.gate[((int64_t)(g.row0 + r) * 2 + 1) * nv + h] = sum;
    }
}

/* beta and G. Has a barrier. */
template <typename T>
static __device__ __forceinline__ void gates(const struct conv_args &a, const struct group &g,
                                             int32_t kh, float (*sums)[GDN_CHUNK],
                                             struct gate_in in)
{
    const int32_t nv = a.g.shape.n_v_heads, each = a.g.each;
    const int32_t i = threadIdx.x / GDN_CHUNK, at = threadIdx.x % GDN_CHUNK;
    float *const gate = a.g.mid.gate + (int64_t)g.row0 * 2 * nv;
    for (int32_t h0 = 0; h0 < each; h0 += GDN_CHUNK) {
        const int32_t h = kh * each + h0 + at;
        if (h0)
            in = load_gates<T>(a, g, h, (kh + 1) * each);
        if (h0)
            __syncthreads();
        if (i < g.n && h0 + at < each) {
            gate[i * 2 * nv + h] = sv_sigmoid(in.b);
            sums[i][at] = log_decay(in.a, in.dt_bias, in.decay);
        }
        __syncthreads();
        if (i == 0 && h0 + at < each)
            sum_gates(gpu_args(a), g, h, at, sums);
    }
}

/* What a segment's first group needs of the slot: may be read before the launch in front has ended.
 */
template <typename T, bool ALL>
static __device__ __forceinline__ void take_kept(const struct conv_args &a, const struct group &g,
                                                 const struct share<ALL> &w, struct conv_shared &m,
                                                 struct taps &taps)
{
    if (w.has(0))
        take_keys<T>(a.g, g, w.kh, m.qk[K]);
    if (!ALL) /* otherwise a thread has too few registers */
        load_taps<T, true>(a, g, pair_at(a.g, w, 0), taps);
}

/* A whole chunk without rows that a slot keeps, in bf16, with the log decays of its rows. All that
 * a thread reads is asked for together: what is touched is waited for. */
static __device__ __forceinline__ void conv_whole(const struct conv_args &a, const struct group &g,
                                                  const struct share<true> &w,
                                                  struct conv_shared &m)
{
    typedef __nv_bfloat16 T;
    const int32_t each = a.g.each,
                  h = w.kh * each + min((int32_t)threadIdx.x % GDN_CHUNK, each - 1);
    const int64_t gate_at = (int64_t)(g.row0 + (int32_t)threadIdx.x / GDN_CHUNK) * a.ldx + h;
    const T of_a = ((const T *)a.a)[gate_at], of_b = ((const T *)a.b)[gate_at];
    const float decay = a.decay[h], dt_bias = a.dt_bias[h];
#pragma unroll 1
    for (int32_t n = 0; n < n_pairs(gpu_args(a).g, w); n++) {
        const struct pair c = pair_at(gpu_args(a).g, w, n);
        const int32_t channel = c.there ? c.channel : 0;
        const struct conv_args &now = gpu_args(a);
        const T *const from = (const T *)now.x + (g.row0 - OLDER) * now.ldx + channel;
        struct two<T> in[OLDER + GDN_CHUNK];
        float2 t[SV_GDN_TAPS];
#pragma unroll
        for (int i = 0; i < OLDER + GDN_CHUNK; i++)
            in[i] = *(const struct two<T> *)(from + i * now.ldx);
#pragma unroll
        for (int i = 0; i < SV_GDN_TAPS; i++)
            t[i] = load2(now.conv + (int64_t)i * now.g.channels + channel);
        if (!c.there)
            continue;
        float *const to = c.of < 2 ? &m.qk[c.of][0][c.at]
                                   : now.g.mid.qkv + (int64_t)g.row0 * now.g.channels + channel;
        const int32_t step = c.of < 2 ? (int32_t)LINE : now.g.channels;
#pragma unroll
        for (int i = 0; i < GDN_CHUNK; i++) {
            float2 x[SV_GDN_TAPS], y;
#pragma unroll
            for (int k = 0; k < SV_GDN_TAPS; k++)
                x[k] = load2((const T *)&in[i + k]);
            y.x = conv_silu(t[0].x, t[1].x, t[2].x, t[3].x, x[0].x, x[1].x, x[2].x, x[3].x);
            y.y = conv_silu(t[0].y, t[1].y, t[2].y, t[3].y, x[0].y, x[1].y, x[2].y, x[3].y);
            *(float2 *)(to + i * step) = y;
        }
    }
    if ((int32_t)threadIdx.x % GDN_CHUNK < each) {
        const int32_t i = threadIdx.x / GDN_CHUNK;
        const struct gdn_args &now = gpu_args(a).g;
        now.mid.gate[(int64_t)(g.row0 + i) * 2 * now.shape.n_v_heads + h] =
            sv_sigmoid(sv_load(&of_b));
        m.g[i][threadIdx.x % GDN_CHUNK] = log_decay(sv_load(&of_a), dt_bias, decay);
    }
}

/* taps: unless ALL. */
template <typename T, bool ALL>
static __device__ __forceinline__ void conv_group(const struct conv_args &a, const struct group &g,
                                                  const struct share<ALL> &w, struct conv_shared &m,
                                                  const struct taps &taps)
{
    const int32_t each = a.g.each;
    bool whole = false;
    if constexpr (ALL && sizeof(T) == 2) {
        whole = g.n == GDN_CHUNK && g.row0 - g.seg.row0 >= OLDER && each <= GDN_CHUNK;
        if (whole)
            conv_whole(gpu_args(a), g, w, m);
    }
    if (!whole) {
        struct gate_in in = {};
        if (w.has(1))
            in = load_gates<T>(gpu_args(a), g, w.kh * each + threadIdx.x % GDN_CHUNK,
                               (w.kh + 1) * each);
#pragma unroll 1
        for (int32_t n = 0; n < n_pairs(gpu_args(a).g, w); n++) {
            const struct pair c = pair_at(gpu_args(a).g, w, n);
            struct taps own = {};
            if (ALL)
                load_taps<T, true>(gpu_args(a), g, c, own);
            else
                own = taps;
            load_taps<T, false>(gpu_args(a), g, c, own);
            convolve<T, ALL ? CONV_ROWS / 2 : CONV_ROWS>(gpu_args(a), g, c, m.qk, own);
        }
        if (w.has(1))
            gates<T>(gpu_args(a), g, w.kh, m.g, in);
    }
    if (!w.has(0))
        return;
    __syncthreads();
    to_length<T>(gpu_args(a), g, w.kh, m.qk);
    __syncthreads();
    if (sizeof(T) == 2)
        dots_of_parts(gpu_args(a), g, w.kh);
    /* Beside it, by the last threads. */
    const int32_t last = CONV_THREADS - 1 - (int32_t)threadIdx.x;
    if (whole && last < each)
        sum_gates(gpu_args(a), g, w.kh * each + last, last, m.g);
    if (sizeof(T) != 2)
        dots(gpu_args(a), g, w.kh, m.qk);
}

/* Rows that a later convolution may read: the last three of a prompt chunk, which stay; all of a
 * verify block, of which any number may stay. Two threads of a pair take turns. */
template <typename T>
static __device__ __forceinline__ void keep_rows(const struct conv_args &a, const struct gdn_seg &s,
                                                 const struct pair &c)
{
    const struct gdn_slot slot = gdn_slot_at(a.g, s.slot);
    const int32_t first = s.prompt ? max(s.n - OLDER, 0) : 0;
    if (!c.there)
        return;
    const int32_t step = GDN_CHUNK / c.rows;
    for (int32_t i0 = first + (c.row0 > 0); i0 < s.n; i0 += step * CONV_ROWS) {
        struct two<T> x[CONV_ROWS];
#pragma unroll
        for (int i = 0; i < CONV_ROWS; i++)
            if (i0 + step * i < s.n)
                x[i] = *(const struct two<T> *)((const T *)a.x + (s.row0 + i0 + step * i) * a.ldx +
                                                c.channel);
#pragma unroll
        for (int i = 0; i < CONV_ROWS; i++) {
            if (i0 + step * i >= s.n)
                break;
            const float2 y = load2((const T *)&x[i]);
            const int64_t at =
                (int64_t)((s.base + i0 + step * i) % a.g.block.conv_ring) * a.g.channels +
                c.channel;
            if (a.kept_bf16)
                *(uint32_t *)((__nv_bfloat16 *)slot.conv + at) = pack2(y);
            else
                *(float2 *)((float *)slot.conv + at) = y;
        }
    }
}

/* Thread blocks of each segment for its first chunk, and others for all chunks that begin in 16
 * rows of the pass. */
template <bool HALF, bool ALL>
static __global__ void __launch_bounds__(CONV_THREADS, ALL ? 3 : CONV_APART)
    conv_kernel(const __grid_constant__ struct conv_args a)
{
    typedef typename std::conditional<HALF, __nv_bfloat16, float>::type T;
    __shared__ __align__(16) struct conv_shared m;
    const int32_t y = (int32_t)blockIdx.y, n_segs = gpu_args(a).g.rows.n_segs,
                  lane = threadIdx.x % 32;
    const int32_t nk = gpu_args(a).g.shape.n_k_heads;
    const struct share<ALL> w = {
        (int32_t) blockIdx.x % nk, (int32_t)blockIdx.x / nk
    };
    int32_t first = (y - n_segs) * GDN_CHUNK;
    bool begins = false; /* a group, in row first + lane */
    struct taps taps = {};
    sv_pdl_launch();
    if (!a.g.early)
        sv_pdl_wait();
    if (y < n_segs) {
        const struct gdn_seg s = gdn_seg_at(gpu_args(a).g, y);
        first = s.row0;
        begins = lane < OLDER && lane < s.n && (lane == 0 || (s.base + lane) % GDN_CHUNK == 0);
        if (s.n)
            take_kept<T, ALL>(gpu_args(a), group_at(s, first), w, m, taps);
    } else if (lane < GDN_CHUNK && first + lane < a.g.rows.n_rows) {
        const int32_t row = first + lane, seg = a.g.rows.row_seg[row];
        begins = seg >= 0 && a.g.rows.row_pos[row] % GDN_CHUNK == 0 &&
                 row - a.g.rows.seg_row0[seg] >= OLDER;
    }
    sv_pdl_wait(); /* no-op after the one above */
    uint32_t left = __ballot_sync(0xffffffffu, begins);
    bool taken = y < n_segs;
    for (; left; left &= left - 1) {
        const int32_t r = first + __ffs((int)left) - 1;
        const struct gdn_args &g = gpu_args(a).g;
        const int32_t seg = y < g.rows.n_segs ? y : g.rows.row_seg[r];
        const struct group now = group_at(gdn_seg_at(g, seg), r);
        if (!taken) {
            __syncthreads(); /* the group before is done */
            if (!ALL)
                take_kept<T, ALL>(gpu_args(a), now, w, m, taps);
        }
        conv_group<T, ALL>(gpu_args(a), now, w, m, taps);
        taken = false;
    }
    if (y < gpu_args(a).g.rows.n_segs) {
        __syncthreads(); /* all that was kept is read */
#pragma unroll 1
        for (int32_t n = 0; n < n_pairs(gpu_args(a).g, w); n++)
            keep_rows<T>(gpu_args(a), gdn_seg_at(gpu_args(a).g, y), pair_at(gpu_args(a).g, w, n));
    }
}

void sv_cuda_gdn_conv(struct sv_dev *dev, const struct sv_p_gdn_conv *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct conv_args a = conv_args_of(cu, p);
    const bool half = cu->act == SV_BF16;
    SV_REQUIRE(p->ldx % 2 == 0); /* channels are loaded in pairs */
    const int32_t values = p->shape.n_v_heads / p->shape.n_k_heads * p->shape.v_dim / 2,
                  parts = 1 + (values + CONV_PAIRS - 1) / CONV_PAIRS,
                  y = p->rows.n_segs + (p->rows.n_rows + GDN_CHUNK - 1) / GDN_CHUNK;
    /* Parts have thread blocks of their own where all of these run at once. */
    const bool apart = p->shape.n_k_heads * parts * y <= CONV_APART * cu->n_sms;
    const dim3 grid((unsigned)(p->shape.n_k_heads * (apart ? parts : 1)), (unsigned)y);
    void (*const kernel)(struct conv_args) =
        half ? (apart ? conv_kernel<true, false> : conv_kernel<true, true>)
             : (apart ? conv_kernel<false, false> : conv_kernel<false, true>);
    sv_cuda_launch_in_pass(cu, "gdn_conv", kernel, grid, CONV_THREADS, half ? 2 * PARTS_BYTES : 0,
                           a);
}

/* ---------------------------------------------------------------- gated norm, kept rows */

/* Keys and G of a key head's rows that a later pass reads, and where the state stands now. */
template <typename T>
static __device__ __forceinline__ void keep_keys(const struct gdn_args &a, const struct gdn_seg &s,
                                                 int32_t kh)
{
    const struct gdn_slot slot = gdn_slot_at(a, s.slot);
    const int32_t kept_from = gdn_kept_from(s), first = max(kept_from, s.base), n = s.end - first,
                  kd = a.shape.k_dim, fours = kd / 4, nv = a.shape.n_v_heads, each = a.each,
                  ring = a.block.ring, k_ring = a.block.k_ring;
    const int64_t row0 = s.row0 + first - s.base;
    for (int32_t i = threadIdx.x; i < n * fours; i += NORM_WARPS * 32) {
        const int32_t row = i / fours, d = i % fours * 4;
        const float *const from =
            a.mid.qkv + (row0 + row) * a.channels + (int64_t)(a.shape.n_k_heads + kh) * kd;
        const int64_t to = ((int64_t)kh * k_ring + (first + row) % k_ring) * kd + d;
        if constexpr (sizeof(T) == 2) {
            const uint2 hi = *(const uint2 *)((const uint16_t *)from + d),
                        lo = *(const uint2 *)((const uint16_t *)from + kd + d);
            *(uint2 *)((int16_t *)slot.k + to) =
                make_uint2(gdn_steps_of(hi.x, lo.x), gdn_steps_of(hi.y, lo.y));
        } else {
            *(float4 *)((float *)slot.k + to) = *(const float4 *)(from + d);
        }
    }
    for (int32_t i = threadIdx.x; i < n * each; i += NORM_WARPS * 32) {
        const int32_t row = i / each, h = kh * each + i % each;
        slot.g[(int64_t)h * ring + (first + row) % ring] =
            a.mid.gate[((row0 + row) * 2 + 1) * nv + h];
    }
    if (threadIdx.x < each)
        slot.pos[kh * each + threadIdx.x] = kept_from;
}

/* A warp for EACH heads: lane l holds numbers 2l, 2l + 1, 2l + 64, ... Behind the thread blocks of
 * all heads one for each key head of each segment, which keeps its rows. */
template <typename T, int EACH>
static __global__ void __launch_bounds__(NORM_WARPS * 32)
    gated_norm_kernel(const struct gated_norm_args a, const float *x, const T *z, T *out)
{
    enum { PAIRS = SV_GDN_MAX_DIM / 64 / (EACH > 1 ? 2 : 1) };
    const int32_t lane = threadIdx.x % 32, d = a.g.shape.v_dim, n_heads = a.g.shape.n_v_heads,
                  n_units = a.g.rows.n_rows * n_heads,
                  first = ((int32_t)blockIdx.x * NORM_WARPS + (int32_t)threadIdx.x / 32) * EACH,
                  keeper =
                      (int32_t)blockIdx.x - (n_units + NORM_WARPS * EACH - 1) / (NORM_WARPS * EACH);
    float2 weight[PAIRS];
#pragma unroll
    for (int m = 0; m < PAIRS; m++)
        if (2 * lane + 64 * m < d)
            weight[m] = load2(a.weight + 2 * lane + 64 * m);
    sv_pdl_launch();
    sv_pdl_wait();
    if (keeper >= 0) {
        const struct gdn_seg s = gdn_seg_at(a.g, keeper / a.g.shape.n_k_heads);
        if (s.n)
            keep_keys<T>(a.g, s, keeper % a.g.shape.n_k_heads);
        return;
    }
    float2 v[EACH][PAIRS];
    struct two<T> gate[EACH][PAIRS];
    int32_t row = min(first, n_units - 1) / n_heads, head = min(first, n_units - 1) % n_heads;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const float *const from = x + ((int64_t)row * n_heads + head) * d;
#pragma unroll
        for (int m = 0; m < PAIRS; m++) {
            const int32_t i = 2 * lane + 64 * m < d ? 2 * lane + 64 * m : 0;
            v[r][m] = load2(from + i);
            gate[r][m] = *(const struct two<T> *)(z + row * a.ldz + head * d + i);
        }
        if (first + r + 1 < n_units && ++head == n_heads)
            head = 0, row++;
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        if (first + r >= n_units)
            return;
#pragma unroll
        for (int m = 0; m < PAIRS; m++)
            if (2 * lane + 64 * m >= d)
                v[r][m] = make_float2(0, 0);
        const float inv = to_norm(a, sum_of_squares(v[r]));
#pragma unroll
        for (int m = 0; m < PAIRS; m++) {
            const int32_t i = 2 * lane + 64 * m;
            if (i >= d)
                break;
            put_norm(out + (int64_t)(first + r) * d + i, v[r][m], load2((const T *)&gate[r][m]),
                     weight[m], inv);
        }
    }
}

template <typename T, int EACH>
static void launch_norm(struct sv_cuda *cu, const struct sv_p_gdn_norm *p)
{
    const struct gated_norm_args a = norm_args_of(cu, p);
    const int64_t n = ((int64_t)p->rows.n_rows * p->shape.n_v_heads + NORM_WARPS * EACH - 1) /
                          (NORM_WARPS * EACH) +
                      (int64_t)p->rows.n_segs * p->shape.n_k_heads;
    sv_cuda_launch_in_pass(cu, "gdn_norm", gated_norm_kernel<T, EACH>, dim3((unsigned)n),
                           NORM_WARPS * 32, 0, a, p->x, (const T *)p->z, (T *)p->out);
}

void sv_cuda_gdn_norm(struct sv_dev *dev, const struct sv_p_gdn_norm *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const int32_t d = p->shape.v_dim;
    SV_REQUIRE(d <= SV_GDN_MAX_DIM && d % 2 == 0 && p->ldz % 2 == 0);
    /* Several heads a warp where there are enough of them for all multiprocessors. */
    const bool many = d <= SV_GDN_MAX_DIM / 2 &&
                      p->rows.n_rows * p->shape.n_v_heads >= cu->n_sms * 64 * NORM_EACH;
    if (cu->act == SV_BF16)
        many ? launch_norm<__nv_bfloat16, NORM_EACH>(cu, p) : launch_norm<__nv_bfloat16, 1>(cu, p);
    else
        many ? launch_norm<float, NORM_EACH>(cu, p) : launch_norm<float, 1>(cu, p);
}
