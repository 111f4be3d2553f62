/*
 * gdn_scan.cuh - the parts of the gated delta rule's scan: chunks, the layout of their numbers, and
 * the arithmetic of a row, which is the same for every division into passes.
 *
 * Included by gdn_scan.cu. A thread block has 64 columns of one value head's state of one segment.
 * Each of four waves holds 16 of them in registers, transposed (a column of the state is a row of a
 * product), and processes a chunk without the other waves: its results stay in its registers except
 * u of a row, which is passed from its lane to those with later rows. Row i of a chunk is always
 * line i of the products with its keys and queries, and lines do not mix, so a row's bits do not
 * depend on which other rows are in the pass. Operands are f32 numbers split into bf16 parts;
 * products of two small parts are left out. The state itself is f32 and is added to with one
 * rounding.
 *
 * A chunk is folded into the state when all its rows are committed; a verify block that crosses its
 * end folds it into the registers only. Keys, G and the position in the slot's block are read by
 * many thread blocks and written by the launch that follows (gdn.cu). Must not: write a state that
 * depends on a row that may be rejected; let counts of rows or segments choose an order of a sum.
 */
#ifndef SV_GPU_GDN_SCAN_CUH
#define SV_GPU_GDN_SCAN_CUH

#include "backend/gpu/gdn.cuh"
#include "backend/gpu/gpu.h"

enum {
    WAVES = 4,
    THREADS = WAVES * GPU_WAVE,
    COLS = WAVES * 16,         /* columns of a state in a thread block */
    TILES = GDN_KEY / 16,      /* of a wave, of 16 columns x 16 numbers of a key */
    SUMS = 16 * 16 / GPU_WAVE, /* registers of one */
    PAIRS = SUMS / 2,          /* of one in bf16 */
    LINES = SUMS / GPU_LINES   /* of a chunk, that a lane has */
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
    int32_t ring0, k_ring0; /* rows of the rings that its first line has */
    bool committed, folds;
};
static __device__ __forceinline__ struct chunk chunk_of(const struct work &w, int32_t first,
                                                        int32_t ring0, int32_t k_ring0)
{
    struct chunk c;
    c.first = first;
    c.ring0 = ring0;
    c.k_ring0 = k_ring0;
    c.lo = min(max(w.seg.base - first, 0), GDN_CHUNK);
    c.hi = min(w.seg.end - first, GDN_CHUNK);
    c.committed = c.lo == GDN_CHUNK || w.seg.prompt;
    c.folds = c.hi == GDN_CHUNK && (c.committed || first + GDN_CHUNK < w.seg.end);
    return c;
}
static __device__ __forceinline__ struct chunk chunk_at(const struct scan_args &a,
                                                        const struct work &w, int32_t first)
{
    return chunk_of(w, first, first % a.g.block.ring, first % a.g.block.k_ring);
}
/* The next one, without a division. */
[[maybe_unused]] static __device__ __forceinline__ struct chunk
chunk_after(const struct scan_args &a, const struct work &w, const struct chunk &c)
{
    return chunk_of(w, c.first + GDN_CHUNK, gdn_around(c.ring0 + GDN_CHUNK, a.g.block.ring),
                    gdn_around(c.k_ring0 + GDN_CHUNK, a.g.block.k_ring));
}

/* ---------------------------------------------------------------- what a chunk needs */

/* What multiplies u of row j: kk: exp(G_i - G_j) k_i . k_j and qk, likewise with q_i, of two
 * neighbouring lines i. */
struct alignas(16) weight_pair {
    float kk[2], qk[2];
};
struct chunk_shared {
    struct weight_pair by[GDN_CHUNK][GDN_CHUNK / 2 + 1]; /* [j][i / 2], and one for the banks */
    float own[GDN_CHUNK];                                /* q_i . k_i */
    float decay[GDN_CHUNK], to_end[GDN_CHUNK];           /* exp(G_i), exp(G_last - G_i) */
    float beta[GDN_CHUNK];                               /* 1 where u is known */
};
/* u of lines before lo, v of the others: 16 bytes at gpu_place<4 * COLS>. */
static __device__ __forceinline__ const float *v_at(const uint8_t *v, int i, int32_t col)
{
    return (const float *)(v + gpu_place<4 * COLS>(i, col / 4)) + col % 4;
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
static __device__ __forceinline__ int32_t k_ring_row(const struct scan_args &a,
                                                     const struct chunk &c, int32_t line)
{
    const int32_t ring = a.g.block.k_ring, row = (GPU_AFRESH ? c.first % ring : c.k_ring0) + line;
    return row < ring ? row : row - ring;
}
static __device__ __forceinline__ float gate_of(const struct scan_args &a, const struct work &w,
                                                const struct chunk &c, int32_t line)
{
    const int32_t nv = a.g.shape.n_v_heads;
    /* One load: of two in branches each would be waited for. */
    const float *const at =
        line < c.lo ? slot_of(a, w).g + (int64_t)w.h * a.g.block.ring + ring_row(a, c, line)
                    : a.g.mid.gate + (row_of(w, c, 0) * 2 + 1) * nv + w.h + line * 2 * nv;
    return *at;
}

/* Weights of rows of one chunk, a few of each thread, in registers on their way: of thread t, rows
 * t / GDN_CHUNK, ... with key t % GDN_CHUNK. g: G of that key; beta: of it as well, in the first
 * threads. */
struct weights {
    enum { EACH = GDN_CHUNK * GDN_CHUNK / THREADS, APART = THREADS / GDN_CHUNK };
    float kk[EACH], qk[EACH], g, beta;
};
static __device__ __forceinline__ void fetch_weights(const struct scan_args &a,
                                                     const struct work &w, const struct chunk &c,
                                                     struct weights &f)
{
    const int32_t t = threadIdx.x % THREADS, nv = a.g.shape.n_v_heads, nk = a.g.shape.n_k_heads,
                  j = t % GDN_CHUNK;
    const float *const dots = a.g.mid.dots + (row_of(w, c, 0) * nk + w.kh) * 2 * GDN_CHUNK;
    f.g = j < c.hi ? gate_of(a, w, c, j) : 0;
    f.beta = 1;
    if (t < c.hi && t >= c.lo)
        f.beta = (a.g.mid.gate + row_of(w, c, 0) * 2 * nv + w.h)[t * 2 * nv];
#pragma unroll
    for (int m = 0; m < weights::EACH; m++) {
        const int32_t i = t / GDN_CHUNK + weights::APART * m;
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
static __device__ __forceinline__ void put_weights(const struct weights &f, struct chunk_shared &m)
{
    const int32_t t = threadIdx.x % THREADS, j = t % GDN_CHUNK;
#pragma unroll
    for (int n = 0; n < weights::EACH; n++) {
        const int32_t i = t / GDN_CHUNK + weights::APART * n;
        const float g = __shfl_sync(0xffffffffu, f.g, i),
                    weight = j < i ? expf(__fsub_rn(g, f.g)) : 0.0f;
        struct weight_pair &to = m.by[j][i / 2];
        to.kk[i % 2] = __fmul_rn(weight, f.kk[n]);
        to.qk[i % 2] = __fmul_rn(weight, f.qk[n]);
        if (i == j)
            m.own[i] = f.qk[n];
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

/* Copies a chunk's keys, queries and values to shared memory, by all waves, without lines that
 * nothing is made of. */
template <int PARTS, bool WHOLE, int COLS_OF = COLS>
static __device__ __forceinline__ void bring(const struct scan_args &a, const struct work &w,
                                             const struct chunk &c, int wave, uint32_t keys,
                                             uint32_t queries, uint32_t values)
{
    enum { LINE = PARTS * GDN_KEY * 2, OCTETS = GDN_KEY / 8, COPY = GPU_WAVE * 16 };
    enum { VALUES_AT_ONCE = COPY / (4 * COLS_OF) };
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
                gpu_copy_rows<4 * COLS_OF, false>(values, n + wave * VALUES_AT_ONCE,
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
        return i < c.lo ? (const float *)slot_of(now, w).k +
                              (int64_t)w.kh * now.g.block.k_ring * kd + k_ring_row(now, c, i) * kd
                        : row(i, (now.g.shape.n_k_heads + w.kh) * kd);
    };
    const auto query = [&](int32_t i) { return row(i, w.kh * k_dim<WHOLE>(gpu_args(a))); };
    /* In two parts kept keys are put there apart: put_kept. */
    const auto is_key = [&](int32_t i) {
        return i < c.hi && (i >= c.lo || (PARTS > 2 && c.folds));
    };
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
            gpu_copy_rows<4 * COLS_OF, false>(values, i0, [&](uint32_t line, uint32_t chunk) {
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

/* Kept keys of a chunk that folds, in two parts, by the waves that bring its lines; behind the wait
 * for their copies, which may leave zeros there. */
template <bool WHOLE>
static __device__ __forceinline__ void put_kept(const struct scan_args &a, const struct work &w,
                                                const struct chunk &c, int wave, uint32_t keys)
{
    enum { OCTETS = GDN_KEY / 8, AT_ONCE = GPU_WAVE * 16 / (2 * GDN_KEY * 2) };
    if (!c.folds || c.lo == 0)
        return;
    gpu_wave_sync(); /* each lane waits for its own copies */
#pragma unroll 1
    for (int32_t n = gpu_lane(); n < GDN_CHUNK / WAVES * OCTETS; n += GPU_WAVE) {
        const int32_t own = n / OCTETS, octet = n % OCTETS,
                      i = (own / AT_ONCE * WAVES + wave) * AT_ONCE + own % AT_ONCE;
        uint4 hi, lo;
        if (i >= c.lo || (!WHOLE && octet * 8 >= gpu_args(a).g.shape.k_dim))
            continue;
        gdn_parts_of(*gdn_kept_keys(gpu_args(a).g, slot_of(gpu_args(a), w), w.kh,
                                    k_ring_row(gpu_args(a), c, i), octet),
                     hi, lo);
        gpu_store16(keys + gpu_place<tiles<2>::LINE>(i, octet), hi);
        gpu_store16(keys + gpu_place<tiles<2>::LINE>(i, OCTETS + octet), lo);
    }
}

/* ---------------------------------------------------------------- the state */

/* A lane has neighbouring columns of this wave's: the first of them, of the thread block's. */
static __device__ __forceinline__ int32_t col_of_lane(void)
{
    return gpu_wave() * 16 + gpu_run_row(gpu_lane()) * GPU_LINES;
}
/* A lane's lines of a chunk, and the sum of one of them with column r of its columns. */
static __device__ __forceinline__ int line_of(int l)
{
    return l / GPU_RUN * GPU_COLS + gpu_run_col(gpu_lane()) + l % GPU_RUN;
}
static __device__ __forceinline__ constexpr int sum_of(int l, int r)
{
    return l / GPU_RUN * 4 + r * GPU_RUN + l % GPU_RUN;
}
/* A lane's columns of one line: of sums in registers to memory and back. */
static __device__ __forceinline__ void put_cols(float *to, const float (&x)[SUMS], int l)
{
    if constexpr (GPU_LINES == 2)
        *(float2 *)to = make_float2(x[sum_of(l, 0)], x[sum_of(l, 1)]);
    else
        *to = x[l];
}
static __device__ __forceinline__ void get_cols(const float *from, float (&x)[SUMS], int l)
{
    if constexpr (GPU_LINES == 2) {
        const float2 two = *(const float2 *)from;
        x[sum_of(l, 0)] = two.x;
        x[sum_of(l, 1)] = two.y;
    } else {
        x[l] = *from;
    }
}

/* Whether this wave has columns. */
template <bool WHOLE>
static __device__ __forceinline__ bool has_cols(const struct scan_args &a, const struct work &w)
{
    return has_col<WHOLE>(a, w, gpu_wave() * 16);
}

template <bool STORE, bool WHOLE>
static __device__ __forceinline__ void move_state(const struct scan_args &a, const struct work &w,
                                                  float (&s)[TILES][SUMS])
{
    const int32_t kd = k_dim<WHOLE>(a), vd = v_dim<WHOLE>(a);
    float *const at = slot_of(a, w).state + ((int64_t)w.h * kd + gpu_run_col(gpu_lane())) * vd +
                      w.col0 + col_of_lane();
    const bool any = has_cols<WHOLE>(a, w);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const bool there = any && (WHOLE || t * 16 < kd);
#pragma unroll
        for (int l = 0; l < LINES; l++) {
            const int32_t d = t * 16 + l / GPU_RUN * GPU_COLS + l % GPU_RUN;
            if (STORE && there)
                put_cols(at + d * vd, s[t], l);
            else if (!STORE && there)
                get_cols(at + d * vd, s[t], l);
        }
        if (!STORE && !there)
#pragma unroll
            for (int e = 0; e < SUMS; e++)
                s[t][e] = 0;
    }
}

/* Of lines of keys and of queries times this wave's columns of the state. The first and the second
 * half of a key's numbers have sums of their own, which are added at the end. */
struct two_sums {
    float keys[SUMS], queries[SUMS];
};
/* tile: of the state, t. Parts of a line lie whole swizzled groups apart. */
template <int PARTS>
static __device__ __forceinline__ void add_tile(const float (&tile)[SUMS], uint32_t keys,
                                                uint32_t queries, int t, struct two_sums &sums)
{
    enum { LINE = tiles<PARTS>::LINE };
    uint32_t part[PARTS][PAIRS];
#pragma unroll
    for (int e = 0; e < PAIRS; e++) {
        uint32_t two[PARTS];
        gdn_cut<PARTS>(two, tile[2 * e], tile[2 * e + 1]);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            part[p][e] = two[p];
    }
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        uint32_t k[PAIRS], x[PAIRS];
        gpu_load_n<LINE>(k, keys + q * GDN_KEY * 2, 0, t * 16);
        gpu_load_n<LINE>(x, queries + q * GDN_KEY * 2, 0, t * 16);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (p + q < PARTS) {
                gpu_mma_t(sums.keys, part[p], k);
                gpu_mma_t(sums.queries, part[p], x);
            }
    }
}
static __device__ __forceinline__ void add_sums(struct two_sums &first, const struct two_sums &last)
{
#pragma unroll
    for (int e = 0; e < SUMS; e++) {
        first.keys[e] = __fadd_rn(first.keys[e], last.keys[e]);
        first.queries[e] = __fadd_rn(first.queries[e], last.queries[e]);
    }
}
template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void products(const float (&s)[TILES][SUMS], uint32_t keys,
                                                uint32_t queries, int32_t kd, struct two_sums &of)
{
    struct two_sums last = {};
    of = last;
#pragma unroll
    for (int t = 0; t < TILES / 2; t++) {
        if (WHOLE || t * 16 < kd)
            add_tile<PARTS>(s[t], keys, queries, t, of);
        if (WHOLE || (t + TILES / 2) * 16 < kd)
            add_tile<PARTS>(s[t + TILES / 2], keys, queries, t + TILES / 2, last);
    }
    add_sums(of, last);
}

/* What a chunk's rows add to a state: exp(G_last - G_i) u_i in parts. to_end(line): the former. */
template <int PARTS, class TO_END>
static __device__ __forceinline__ void cut_u(uint32_t (&part)[PARTS][PAIRS], const float (&u)[SUMS],
                                             const TO_END &to_end)
{
#pragma unroll
    for (int e = 0; e < PAIRS; e++) { /* two lines */
        const int l = 2 * e / 4 * GPU_RUN + 2 * e % GPU_RUN;
        uint32_t two[PARTS];
        gdn_cut<PARTS>(two, __fmul_rn(to_end(l), u[2 * e]), __fmul_rn(to_end(l + 1), u[2 * e + 1]));
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            part[p][e] = two[p];
    }
}
/* Tile t of the state behind the chunk. */
template <int PARTS>
static __device__ __forceinline__ void
fold_tile(float (&s)[SUMS], const uint32_t (&part)[PARTS][PAIRS], uint32_t keys, int t, float decay)
{
    float sum[SUMS];
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        sum[e] = 0;
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        uint32_t k[PAIRS];
        gpu_load_t<tiles<PARTS>::LINE>(k, keys + q * GDN_KEY * 2, 0, t * 16);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            if (p + q < PARTS)
                gpu_mma_t(sum, part[p], k);
    }
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        s[e] = __fmaf_rn(decay, s[e], sum[e]);
}
/* The state behind the chunk. */
template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void fold(float (&s)[TILES][SUMS], const struct chunk_shared &m,
                                            const float (&u)[SUMS], uint32_t keys, int32_t kd)
{
    uint32_t part[PARTS][PAIRS];
    cut_u<PARTS>(part, u, [&](int l) { return m.to_end[line_of(l)]; });
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (!WHOLE && t * 16 >= kd)
            break;
        fold_tile<PARTS>(s[t], part, keys, t, m.decay[GDN_CHUNK - 1]);
    }
}

/* ---------------------------------------------------------------- the rows of a chunk */

/* x where behind > 0, else 0, without a mask of lanes: those take scalar registers. */
static __device__ __forceinline__ float where(int behind, float x)
{
    return __uint_as_float(__float_as_uint(x) & (uint32_t)(-behind >> 31));
}
/* u of all lines, and what the new ones yield. Sums run over ascending rows: u of row j is added to
 * the sums of all lines behind it as soon as it is known. u: of lines before lo, and v of the
 * others; of_keys, out: products of keys and queries with the state. */
static __device__ __forceinline__ void solve(const struct chunk &c, const struct chunk_shared &m,
                                             const float (&of_keys)[SUMS], float (&out)[SUMS],
                                             float (&u)[SUMS])
{
    float sum[SUMS], beta[LINES];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int i = line_of(l);
        const float decay = m.decay[i];
        beta[l] = m.beta[i];
#pragma unroll
        for (int r = 0; r < GPU_LINES; r++) {
            const int e = sum_of(l, r);
            sum[e] = 0;
            out[e] = __fmul_rn(decay, out[e]);
            u[e] = i < c.lo ? u[e] : __fmaf_rn(-decay, of_keys[e], u[e]);
        }
    }
    if (c.lo < c.hi) {
#pragma unroll
        for (int j = 0; j < GDN_CHUNK - 1; j++) {
            if (j + 1 >= c.hi && GPU_WAVE == 32)
                break; /* the other vendor's compiler unrolls no loop that may end */
            const int of_j = j / GPU_COLS * GPU_RUN + j % GPU_RUN, now = gpu_afresh(j);
            float known[GPU_LINES];
#pragma unroll
            for (int r = 0; r < GPU_LINES; r++) {
                const int e = sum_of(of_j, r);
                known[r] =
                    gpu_row_from(__fmul_rn(beta[of_j], __fsub_rn(u[e], sum[e])), j % GPU_COLS);
            }
#pragma unroll
            for (int l = j / GPU_COLS * GPU_RUN; l < LINES; l += 2) {
                const struct weight_pair by = m.by[j][line_of(l) / 2];
#pragma unroll
                for (int n = 0; n < 2; n++)
#pragma unroll
                    for (int r = 0; r < GPU_LINES; r++) {
                        const int e = sum_of(l + n, r);
                        const int behind = line_of(l + n) - now;
                        if (GPU_WAVE == 32 && behind <= 0)
                            continue;
                        const float one = GPU_WAVE == 32 ? known[r] : where(behind, known[r]);
                        sum[e] = __fmaf_rn(by.kk[n], one, sum[e]);
                        out[e] = __fmaf_rn(by.qk[n], one, out[e]);
                    }
            }
        }
    }
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const float own = m.own[line_of(l)];
#pragma unroll
        for (int r = 0; r < GPU_LINES; r++) {
            const int e = sum_of(l, r);
            u[e] = __fmul_rn(beta[l], __fsub_rn(u[e], sum[e]));
            out[e] = __fmaf_rn(own, u[e], out[e]);
        }
    }
}

/* Outputs, and what is kept of u. */
template <bool WHOLE>
static __device__ __forceinline__ void put_rows(const struct scan_args &a, const struct work &w,
                                                const struct chunk &c, const float (&out)[SUMS],
                                                const float (&u)[SUMS])
{
    const int32_t vd = v_dim<WHOLE>(a), nv = a.g.shape.n_v_heads, col = w.col0 + col_of_lane(),
                  kept = gdn_kept_from(w.seg) - c.first;
    float *const to = a.out + (row_of(w, c, 0) * nv + w.h) * vd + col;
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int i = line_of(l);
        if (i < c.lo || i >= c.hi)
            continue;
        put_cols(to + i * nv * vd, out, l);
        if (i >= kept)
            put_cols(slot_of(a, w).u + (int64_t)w.h * a.g.block.ring * vd + ring_row(a, c, i) * vd +
                         col,
                     u, l);
    }
}

/* ---------------------------------------------------------------- a thread block's work */

/* Where the state stands when the pass begins. A block that was cleared and then used from the
 * middle of a text holds zeros all the same. */
static __device__ __forceinline__ int32_t state_pos(const struct gdn_args &a,
                                                    const struct gdn_slot &slot,
                                                    const struct gdn_seg &seg, int32_t h)
{
    const int32_t pos = slot.pos[h], base = seg.base;
    return pos <= base && base - pos <= a.block.ring ? pos : base / GDN_CHUNK * GDN_CHUNK;
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

/* gdn_long.cu: whether it takes such segments. */
bool sv_gdn_long(struct sv_cuda *cu, const struct scan_args &a);

#endif
