/*
 * gdn_scan.cuh - the pieces of the gated delta rule's scan: chunks, where their numbers lie, and
 * the arithmetic of a row, which is one however rows come.
 *
 * Included by gdn_scan.cu. A thread block has 32 columns of one value head's state of one segment.
 * Four waves hold them in registers, transposed (a column of the state is a row of a product), two
 * of them each half of the key's numbers. Row i of a chunk is always line i of the products with
 * its keys and queries, and lines do not meet, so a row's bits do not depend on which others are
 * there. Operands are f32 numbers cut into bf16 parts; of two numbers the products are added whose
 * parts are not both small. The state itself is f32 and is added to with one rounding.
 *
 * A chunk is folded into the state when all its rows are committed; a verify block that crosses its
 * end folds it into the registers only. Keys, G and the position in the slot's block are read by
 * many thread blocks and written by the launch that follows (gdn.cu). Must not: write a state that
 * hangs on a row that may be rejected; let counts of rows or segments choose an order of a sum.
 */
#ifndef SV_GPU_GDN_SCAN_CUH
#define SV_GPU_GDN_SCAN_CUH

#include "backend/gpu/gdn.cuh"
#include "backend/gpu/gpu.h"

enum {
    STATE_WAVES = 4,
    COLS = 32,                 /* columns of a state in a thread block: two tiles */
    HALF = GDN_KEY / 2,        /* a wave's numbers of a key */
    TILES = HALF / 16,         /* its tiles of 16 x 16 */
    SUMS = 16 * 16 / GPU_WAVE, /* registers of one */
    PAIRS = SUMS / 2,          /* of one in bf16 */
    X_LINE = COLS + 4,         /* floats between lines of products in shared memory */
    V_BYTES = 128              /* between columns of u in shared memory */
};
static_assert(SUMS == gpu_sums(16), "a tile's sums");

struct scan_args {
    struct gdn_args g;
    float *out;
};

/* What a thread block is about. */
struct work {
    struct gdn_seg seg;
    int32_t h, kh, col0;
};

static __device__ __forceinline__ struct gdn_slot slot_of(const struct scan_args &a,
                                                          const struct work &w)
{
    return gdn_slot_at(a.g, w.seg.slot);
}

/* A chunk; its lines [lo, hi) are rows of the pass, those before were committed earlier. */
struct chunk {
    int32_t first, lo, hi;
    int32_t ring0; /* row of a ring that its first line has */
    bool committed, folds;
};
static __device__ __forceinline__ struct chunk chunk_at(const struct scan_args &a,
                                                        const struct work &w, int32_t first)
{
    struct chunk c;
    c.first = first;
    c.ring0 = first % a.g.block.ring;
    c.lo = min(max(w.seg.base - first, 0), GDN_CHUNK);
    c.hi = min(w.seg.end - first, GDN_CHUNK);
    c.committed = c.lo == GDN_CHUNK || w.seg.prompt;
    c.folds = c.hi == GDN_CHUNK && (c.committed || first + GDN_CHUNK < w.seg.end);
    return c;
}

/* ---------------------------------------------------------------- what a chunk needs */

struct chunk_shared {
    float kk[GDN_CHUNK][GDN_CHUNK];   /* [i][j]: exp(G_i - G_j) k_i . k_j */
    float x[2][2][GDN_CHUNK][X_LINE]; /* of each half: lines of keys, of queries times S */
    float u[GDN_CHUNK][COLS];
    float decay[GDN_CHUNK], beta[GDN_CHUNK], to_end[GDN_CHUNK]; /* exp(G_i), exp(G_last - G_i) */
};
/* u of lines before lo, v of the others: 16 bytes at gpu_place<4 * COLS>. */
static __device__ __forceinline__ float &v_at(float (*v)[COLS], int i, int32_t col)
{
    return v[i][((col / 4) ^ (i & 7)) * 4 + col % 4];
}

/* WHOLE: keys and values have GDN_KEY numbers. */
template <bool WHOLE> static __device__ __forceinline__ int32_t k_dim(const struct scan_args &a)
{
    return WHOLE ? GDN_KEY : a.g.shape.k_dim;
}
template <bool WHOLE> static __device__ __forceinline__ int32_t v_dim(const struct scan_args &a)
{
    return WHOLE ? GDN_KEY : a.g.shape.v_dim;
}
template <bool WHOLE>
static __device__ __forceinline__ bool has_col(const struct scan_args &a, const struct work &w,
                                               int32_t col)
{
    return WHOLE || w.col0 + col < gpu_args(a).g.shape.v_dim;
}

static __device__ __forceinline__ int64_t row_of(const struct work &w, const struct chunk &c,
                                                 int32_t line)
{
    return w.seg.row0 + c.first + line - w.seg.base;
}
/* Row of a ring, which has no fewer than a chunk. */
static __device__ __forceinline__ int32_t ring_row(const struct scan_args &a, const struct chunk &c,
                                                   int32_t line)
{
    const int32_t ring = a.g.block.ring, row = (GPU_AFRESH ? c.first % ring : c.ring0) + line;
    return row < ring ? row : row - ring;
}
static __device__ __forceinline__ float gate_of(const struct scan_args &a, const struct work &w,
                                                const struct chunk &c, int32_t line)
{
    const int32_t nv = a.g.shape.n_v_heads;
    return line < c.lo ? (slot_of(a, w).g + (int64_t)w.h * a.g.block.ring)[ring_row(a, c, line)]
                       : (a.g.mid.gate + (row_of(w, c, 0) * 2 + 1) * nv + w.h)[line * 2 * nv];
}

/* Weights of rows of one chunk, a few of each of THREADS threads, in registers on their way: of
 * thread t, rows t / GDN_CHUNK, ... with key t % GDN_CHUNK. g: G of that key; beta: of it as
 * well, in the first threads. */
template <int THREADS> struct weights {
    enum { EACH = (GDN_CHUNK * GDN_CHUNK + THREADS - 1) / THREADS };
    float kk[EACH], qk[EACH], g, beta;
};
template <int THREADS>
static __device__ __forceinline__ void fetch_weights(const struct scan_args &a,
                                                     const struct work &w, const struct chunk &c,
                                                     int32_t t, struct weights<THREADS> &f)
{
    const int32_t nv = a.g.shape.n_v_heads, nk = a.g.shape.n_k_heads, j = t % GDN_CHUNK;
    const float *const dots = a.g.mid.dots + (row_of(w, c, 0) * nk + w.kh) * 2 * GDN_CHUNK;
    f.g = j < c.hi ? gate_of(a, w, c, j) : 0;
    f.beta = 0;
    if (t < c.hi && t >= c.lo)
        f.beta = (a.g.mid.gate + row_of(w, c, 0) * 2 * nv + w.h)[t * 2 * nv];
#pragma unroll
    for (int m = 0; m < weights<THREADS>::EACH; m++) {
        const int32_t i = (t + THREADS * m) / GDN_CHUNK;
        f.kk[m] = f.qk[m] = 0;
        if (i < c.lo || i >= c.hi) /* it may be past the chunk's end */
            continue;
        const float *const dot =
            dots + i * nk * 2 * GDN_CHUNK + min(j, i); /* none behind its own */
        f.kk[m] = dot[0];
        f.qk[m] = dot[GDN_CHUNK];
    }
}
/* By whole waves. */
template <int THREADS>
static __device__ __forceinline__ void put_weights(const struct weights<THREADS> &f, int32_t t,
                                                   struct chunk_shared &m, float (*qk)[GDN_CHUNK])
{
    const int32_t j = t % GDN_CHUNK;
#pragma unroll
    for (int n = 0; n < weights<THREADS>::EACH; n++) {
        const int32_t i = (t + THREADS * n) / GDN_CHUNK;
        if (GDN_CHUNK * GDN_CHUNK % THREADS && i >= GDN_CHUNK)
            break;
        const float weight = expf(__fsub_rn(__shfl_sync(0xffffffffu, f.g, i), f.g));
        m.kk[i][j] = __fmul_rn(weight, f.kk[n]);
        qk[i][j] = __fmul_rn(weight, f.qk[n]);
    }
    const float last = __shfl_sync(0xffffffffu, f.g, GDN_CHUNK - 1);
    if (t < GDN_CHUNK) {
        m.decay[t] = expf(f.g);
        m.beta[t] = f.beta;
        m.to_end[t] = expf(__fsub_rn(last, f.g));
    }
}

/* Keys, then queries: a line's parts lie side by side. */
template <int PARTS> struct tiles {
    enum { LINE = PARTS * GDN_KEY * 2, BYTES = GDN_CHUNK * LINE };
};

/* What all of a chunk's keys, queries and values are copied with; by WAVES waves. Lines that
 * nothing is made of are left out. */
template <int PARTS, bool WHOLE, int WAVES>
static __device__ __forceinline__ void bring(const struct scan_args &a, const struct work &w,
                                             const struct chunk &c, int wave, uint32_t keys,
                                             uint32_t queries, uint32_t values)
{
    enum { LINE = PARTS * GDN_KEY * 2, OCTETS = GDN_KEY / 8, COPY = GPU_WAVE * 16 };
    enum { VALUES_AT_ONCE = COPY / (4 * COLS) };
    if (!GPU_AFRESH && PARTS == 2 && WHOLE && c.lo == 0 && c.hi == GDN_CHUNK) {
        enum { AT_ONCE = COPY / (2 * GDN_KEY * 2) };
        const struct gdn_args &g = gpu_args(a).g;
        const int32_t step = g.channels, nk = g.shape.n_k_heads;
        const float *const row0 = g.mid.qkv + row_of(w, c, 0) * step;
        const auto from = [&](int32_t channel) {
            return [=](uint32_t i, uint32_t chunk) {
                return gpu_source{row0 + ((int32_t)i * step + channel + (int32_t)chunk * 4), true};
            };
        };
#pragma unroll
        for (int32_t n = 0; n < GDN_CHUNK; n += AT_ONCE * WAVES) {
            const uint32_t i = n + wave * AT_ONCE;
            gpu_copy_rows<2 * GDN_KEY * 2, false>(keys, i, from((nk + w.kh) * GDN_KEY));
            gpu_copy_rows<2 * GDN_KEY * 2, false>(queries, i, from(w.kh * GDN_KEY));
        }
#pragma unroll
        for (int32_t n = 0; n < GDN_CHUNK; n += VALUES_AT_ONCE * WAVES)
            if (n + wave * VALUES_AT_ONCE < GDN_CHUNK)
                gpu_copy_rows<4 * COLS, false>(values, n + wave * VALUES_AT_ONCE,
                                               from((2 * nk + w.h) * GDN_KEY + w.col0));
        gpu_copy_commit();
        return;
    }
    const auto row = [&](int32_t i, int32_t channel) {
        const struct gdn_args &g = gpu_args(a).g;
        return g.mid.qkv + row_of(w, c, 0) * g.channels + (i * g.channels + channel);
    };
    const auto key = [&](int32_t i) {
        const struct scan_args &now = gpu_args(a);
        const int32_t kd = k_dim<WHOLE>(now);
        return i < c.lo ? slot_of(now, w).k + (int64_t)w.kh * now.g.block.ring * kd +
                              ring_row(now, c, i) * kd
                        : row(i, (now.g.shape.n_k_heads + w.kh) * kd);
    };
    const auto query = [&](int32_t i) { return row(i, w.kh * k_dim<WHOLE>(gpu_args(a))); };
    const auto is_key = [&](int32_t i) { return i < c.hi && (i >= c.lo || c.folds); };
    const auto is_query = [&](int32_t i) { return i < c.hi && i >= c.lo; };
    if (PARTS == 2) {
        enum { AT_ONCE = COPY / (2 * GDN_KEY * 2) };
        const auto part = [&](const float *head, bool there, uint32_t chunk) {
            const int32_t kd = k_dim<WHOLE>(gpu_args(a));
            const uint32_t octet = chunk % OCTETS;
            there = there && (WHOLE || (int32_t)octet * 8 < kd);
            return gpu_source{there ? (const uint16_t *)head + chunk / OCTETS * kd + octet * 8
                                    : (const void *)gpu_args(a).g.mid.qkv,
                              there};
        };
#pragma unroll
        for (int32_t n = 0; n < GDN_CHUNK; n += AT_ONCE * WAVES) {
            const int32_t i0 = gpu_afresh(n + wave * AT_ONCE), last = i0 + AT_ONCE - 1;
            if (is_key(i0) || is_key(last))
                gpu_copy_rows<2 * GDN_KEY * 2, false>(keys, i0, [&](uint32_t i, uint32_t chunk) {
                    return part(key((int32_t)i), is_key((int32_t)i), chunk);
                });
            if (is_query(i0) || is_query(last))
                gpu_copy_rows<2 * GDN_KEY * 2, false>(queries, i0, [&](uint32_t i, uint32_t chunk) {
                    return part(query((int32_t)i), is_query((int32_t)i), chunk);
                });
        }
    } else {
        for (int32_t n = wave * GPU_WAVE + gpu_lane(); n < 2 * GDN_CHUNK * OCTETS;
             n += WAVES * GPU_WAVE) {
            const int32_t octet = n % OCTETS, i = n / OCTETS % GDN_CHUNK;
            const bool q = n >= GDN_CHUNK * OCTETS,
                       there = (WHOLE || octet * 8 < k_dim<WHOLE>(gpu_args(a))) &&
                               (q ? is_query(i) : is_key(i));
            float4 x = make_float4(0, 0, 0, 0), y = x;
            if (there) {
                const float4 *const from = (const float4 *)((q ? query(i) : key(i)) + octet * 8);
                x = from[0], y = from[1];
            }
            uint32_t p[4][PARTS];
            gdn_cut<PARTS>(p[0], x.x, x.y);
            gdn_cut<PARTS>(p[1], x.z, x.w);
            gdn_cut<PARTS>(p[2], y.x, y.y);
            gdn_cut<PARTS>(p[3], y.z, y.w);
#pragma unroll
            for (int r = 0; r < PARTS; r++)
                gpu_store16((q ? queries : keys) + gpu_place<LINE>(i, r * OCTETS + octet),
                            make_uint4(p[0][r], p[1][r], p[2][r], p[3][r]));
        }
    }
#pragma unroll
    for (int32_t n = 0; n < GDN_CHUNK; n += VALUES_AT_ONCE * WAVES) {
        const int32_t i0 = gpu_afresh(n + wave * VALUES_AT_ONCE);
        if (i0 < GDN_CHUNK && i0 < c.hi)
            gpu_copy_rows<4 * COLS, false>(values, i0, [&](uint32_t line, uint32_t chunk) {
                const int32_t i = (int32_t)line;
                const struct scan_args &now = gpu_args(a);
                const int32_t vd = v_dim<WHOLE>(now);
                const bool there = i < c.hi && has_col<WHOLE>(now, w, (int32_t)chunk * 4);
                const float *const at =
                    i < c.lo
                        ? slot_of(now, w).u + (int64_t)w.h * now.g.block.ring * vd +
                              (ring_row(now, c, i) * vd + w.col0)
                        : row(i, 2 * now.g.shape.n_k_heads * k_dim<WHOLE>(now) + w.h * vd + w.col0);
                return gpu_source{there ? at + 4 * chunk : now.g.mid.qkv, there};
            });
    }
    gpu_copy_commit();
}

/* ---------------------------------------------------------------- the state */

/* Where sum 0 of tile 0 of this lane is: column of the thread block's, number of a key. */
struct place {
    int32_t col0, d0;
};
static __device__ __forceinline__ struct place place_of(void)
{
    struct place p;
    p.col0 = gpu_wave() % 2 * 16 + gpu_run_row(gpu_lane());
    p.d0 = gpu_wave() / 2 * HALF + gpu_run_col(gpu_lane());
    return p;
}

template <bool STORE, bool WHOLE>
static __device__ __forceinline__ void move_state(const struct scan_args &a, const struct work &w,
                                                  float (&s)[TILES][SUMS])
{
    const int32_t kd = k_dim<WHOLE>(a), vd = v_dim<WHOLE>(a);
    const struct place p = place_of();
    float *const at = slot_of(a, w).state + ((int64_t)w.h * kd + p.d0) * vd + w.col0 +
                      p.col0; /* of sum 0 of tile 0 */
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < SUMS; e++) {
            const int32_t d = t * 16 + e / 4 * GPU_COLS + e % GPU_RUN, col = 8 * (e % 4 / GPU_RUN);
            const bool there = has_col<WHOLE>(a, w, p.col0 + col) && (WHOLE || p.d0 + d < kd);
            if (STORE && there)
                at[d * vd + col] = s[t][e];
            else if (!STORE)
                s[t][e] = there ? at[d * vd + col] : 0.0f;
        }
}

/* Lines of keys and of queries times this wave's part of the state, to shared memory. */
template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void products(const float (&s)[TILES][SUMS],
                                                struct chunk_shared &m, uint32_t keys,
                                                uint32_t queries, int32_t kd)
{
    enum { LINE = tiles<PARTS>::LINE };
    const int half = gpu_wave() / 2, lane = gpu_lane();
    float sum[2][2][SUMS]; /* of keys and of queries: even tiles, odd tiles */
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        sum[0][0][e] = sum[0][1][e] = sum[1][0][e] = sum[1][1][e] = 0;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (!WHOLE && half * HALF + t * 16 >= kd)
            break;
        uint32_t part[PARTS][PAIRS];
#pragma unroll
        for (int e = 0; e < PAIRS; e++) {
            uint32_t two[PARTS];
            gdn_cut<PARTS>(two, s[t][2 * e], s[t][2 * e + 1]);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                part[p][e] = two[p];
        }
#pragma unroll
        for (int q = 0; q < PARTS; q++) {
            /* Parts and halves lie whole swizzled groups apart. */
            const uint32_t at = (q * GDN_KEY + half * HALF) * 2;
            uint32_t k[PAIRS], x[PAIRS];
            gpu_load_n<LINE>(k, keys + at, 0, t * 16);
            gpu_load_n<LINE>(x, queries + at, 0, t * 16);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                if (p + q < PARTS) {
                    gpu_mma_t(sum[0][t % 2], part[p], k);
                    gpu_mma_t(sum[1][t % 2], part[p], x);
                }
        }
    }
    const int32_t col0 = gpu_wave() % 2 * 16 + gpu_run_row(lane);
#pragma unroll
    for (int e = 0; e < SUMS; e++) {
        const int32_t line = e / 4 * GPU_COLS + gpu_run_col(lane) + e % GPU_RUN,
                      col = col0 + 8 * (e % 4 / GPU_RUN);
        m.x[half][0][line][col] = __fadd_rn(sum[0][0][e], sum[0][1][e]);
        m.x[half][1][line][col] = __fadd_rn(sum[1][0][e], sum[1][1][e]);
    }
}

/* A tile of the state behind the chunk; keys: one of its tiles as columns. */
template <int PARTS>
static __device__ __forceinline__ void fold_tile(float (&s)[SUMS], float decay,
                                                 const uint32_t (&u)[PARTS][PAIRS],
                                                 const uint32_t (&keys)[PARTS][PAIRS])
{
    float sum[SUMS];
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        sum[e] = 0;
#pragma unroll
    for (int q = 0; q < PARTS; q++)
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (p + q < PARTS)
                gpu_mma_t(sum, u[p], keys[q]);
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        s[e] = __fmaf_rn(decay, s[e], sum[e]);
}
template <int PARTS>
static __device__ __forceinline__ void load_folded(uint32_t (&u)[PARTS][PAIRS], uint32_t folded)
{
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        gpu_load_p<V_BYTES>(u[p], folded, gpu_wave() % 2 * 16, p * 16);
}
template <int PARTS>
static __device__ __forceinline__ void load_columns(uint32_t (&k)[PARTS][PAIRS], uint32_t keys,
                                                    int tile)
{
#pragma unroll
    for (int q = 0; q < PARTS; q++)
        gpu_load_t<tiles<PARTS>::LINE>(k[q], keys + (q * GDN_KEY + gpu_wave() / 2 * HALF) * 2, 0,
                                       tile * 16);
}

/* ---------------------------------------------------------------- the rows of a chunk */

static __device__ __forceinline__ float solved(const struct chunk_shared &m, float v, int32_t col,
                                               int j, float sum)
{
    const float sk = __fadd_rn(m.x[0][0][j][col], m.x[1][0][j][col]);
    return __fmul_rn(m.beta[j], __fsub_rn(__fmaf_rn(-m.decay[j], sk, v), sum));
}

/* u of one column: each sum is formed when it is needed, in ascending order. */
static __device__ __forceinline__ void solve_column(float (&u)[GDN_CHUNK], const struct chunk &c,
                                                    const struct chunk_shared &m, float (*v)[COLS],
                                                    int32_t col)
{
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++)
        u[i] = 0;
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++) {
        if (i >= c.hi && GPU_WAVE == 32)
            break; /* the other vendor's compiler unrolls no loop that may end */
        u[i] = v_at(v, i, col);
        if (i < c.lo)
            continue;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < GDN_CHUNK; j++)
            if (j < i)
                sum = __fmaf_rn(m.kk[i][j], u[j], sum);
        u[i] = solved(m, u[i], col, i, sum);
    }
}

/* u of a chunk, and in parts what is to be folded, to shared memory; by a wave, a lane a column.
 */
template <int PARTS>
static __device__ __forceinline__ void solve(const struct chunk &c, struct chunk_shared &m,
                                             float (*v)[COLS], uint32_t folded)
{
    const int32_t col = gpu_lane();
    if (col >= COLS)
        return;
    float u[GDN_CHUNK];
    solve_column(u, c, m, v, col);
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++)
        m.u[i][col] = u[i];
    if (!c.folds)
        return;
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i += 8) {
        uint32_t pair[4][PARTS];
#pragma unroll
        for (int k = 0; k < 4; k++)
            gdn_cut<PARTS>(pair[k], __fmul_rn(m.to_end[i + 2 * k], u[i + 2 * k]),
                           __fmul_rn(m.to_end[i + 2 * k + 1], u[i + 2 * k + 1]));
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            gpu_store16(folded + gpu_place<V_BYTES>(col, p * 2 + i / 8),
                        make_uint4(pair[0][p], pair[1][p], pair[2][p], pair[3][p]));
    }
}

/* Of a column, lines first, first + STEP, ... */
template <int STEP> constexpr int LINES = (GDN_CHUNK + STEP - 1) / STEP;
template <int STEP>
static __device__ __forceinline__ void start_outputs(const struct chunk_shared &m, int32_t first,
                                                     int32_t col, float (&out)[LINES<STEP>])
{
#pragma unroll
    for (int r = 0; r < LINES<STEP>; r++) {
        const int32_t i = min(first + STEP * r, GDN_CHUNK - 1);
        out[r] = __fmul_rn(m.decay[i], __fadd_rn(m.x[0][1][i][col], m.x[1][1][i][col]));
    }
}
/* The rest, and what is kept of u. */
template <bool WHOLE, int STEP>
static __device__ __forceinline__ void
end_outputs(const struct scan_args &a, const struct work &w, const struct chunk &c,
            const struct chunk_shared &m, const float (*qk)[GDN_CHUNK], int32_t first, int32_t col,
            const float (&start)[LINES<STEP>])
{
    const int32_t vd = v_dim<WHOLE>(a), nv = a.g.shape.n_v_heads;
    float *const to = a.out + (row_of(w, c, 0) * nv + w.h) * vd + w.col0 + col;
    float u[GDN_CHUNK];
    if (!has_col<WHOLE>(a, w, col))
        return;
#pragma unroll
    for (int j = 0; j < GDN_CHUNK; j++)
        u[j] = m.u[j][col];
#pragma unroll
    for (int r = 0; r < LINES<STEP>; r++) {
        const int32_t i = first + STEP * r;
        if (i < c.lo || i >= c.hi)
            continue;
        float out = start[r];
#pragma unroll
        for (int j = 0; j < GDN_CHUNK; j++)
            if (j < STEP * (r + 1) && j <= i)
                out = __fmaf_rn(qk[i][j], u[j], out);
        to[i * nv * vd] = out;
        if (c.first + i >= gdn_kept_from(w.seg))
            (slot_of(a, w).u + (int64_t)w.h * a.g.block.ring *
                                   vd)[ring_row(a, c, i) * vd + w.col0 + col] = m.u[i][col];
    }
}

/* ---------------------------------------------------------------- a thread block's work */

/* Where the state stands when the pass begins. A block that was cleared and then used from the
 * middle of a text holds zeros all the same. */
static __device__ __forceinline__ int32_t state_pos(const struct scan_args &a, const struct work &w)
{
    const int32_t pos = *slot_of(a, w).pos, base = w.seg.base;
    return pos <= base && base - pos <= a.g.block.ring ? pos : base / GDN_CHUNK * GDN_CHUNK;
}

template <bool WHOLE>
static __device__ __forceinline__ struct work work_of(const struct scan_args &a,
                                                      const struct gdn_seg &seg)
{
    const int32_t per_head = (v_dim<WHOLE>(a) + COLS - 1) / COLS;
    struct work w;
    w.seg = seg;
    w.h = (int32_t)blockIdx.x / per_head;
    w.kh = w.h / (a.g.shape.n_v_heads / a.g.shape.n_k_heads);
    w.col0 = (int32_t)blockIdx.x % per_head * COLS;
    return w;
}

static inline void launch_scan(struct sv_cuda *cu, void (*kernel)(struct scan_args), dim3 grid,
                               int threads, int smem, const struct scan_args &a)
{
    if (sv_cuda_check(cu,
                      cudaFuncSetAttribute((const void *)kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, smem),
                      "gdn_scan"))
        sv_cuda_launch_in_pass(cu, "gdn_scan", kernel, grid, threads, (size_t)smem, a);
}

#endif
