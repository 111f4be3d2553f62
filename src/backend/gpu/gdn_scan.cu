/*
 * gdn_scan.cu - the gated delta rule over the rows of a pass, on matrix instructions.
 *
 * Entered through the table in device.cu. A thread block takes 32 columns of one value head's state
 * of one segment through its chunks of 16 positions. Four waves hold them in registers, transposed
 * (a column of the state is a row of a product), two of them each half of the key's numbers. Row i
 * of a chunk is always line i of the products with its keys and queries, and lines do not meet, so
 * a row's bits do not depend on which others are there. Operands are f32 numbers cut into bf16
 * parts; of two numbers the products are added whose parts are not both small. The state itself is
 * f32 and is added to with one rounding.
 *
 * A chunk is folded into the state when all its rows are committed; a verify block that crosses its
 * end folds it into the registers only. Keys, G and the position in the slot's block are read by
 * many thread blocks and written by the launch that follows (gdn.cu). Must not: write a state that
 * hangs on a row that may be rejected; let counts of rows or segments choose an order of a sum.
 */
#include "backend/gpu/gdn.cuh"
#include "backend/gpu/gpu.h"

enum {
    WAVES = 4,
    THREADS = WAVES * GPU_WAVE,
    COLS = 32,                 /* columns of a state in a thread block: two tiles */
    SHARES = THREADS / COLS,   /* threads that work on one of them */
    HALF = GDN_KEY / 2,        /* a wave's numbers of a key */
    TILES = HALF / 16,         /* its tiles of 16 x 16 */
    SUMS = 16 * 16 / GPU_WAVE, /* registers of one */
    PAIRS = SUMS / 2,          /* of one in bf16 */
    OCTETS = GDN_KEY / 8,      /* pieces of a key that a thread brings */
    PIECES = 2 * GDN_CHUNK * OCTETS / THREADS,
    CELLS = GDN_CHUNK * COLS / THREADS,
    WEIGHTS = GDN_CHUNK * GDN_CHUNK / THREADS,
    X_LINE = COLS + 4, /* floats between lines of products in shared memory */
    V_BYTES = 128      /* between columns of u in shared memory */
};
static_assert(SUMS == gpu_sums(16), "a tile's sums");

struct scan_args {
    struct gdn_args g;
    float *out;
};

/* What a thread block is about. */
struct work {
    struct gdn_seg seg;
    struct gdn_slot slot;
    int32_t h, kh, col0, n_cols;
    int32_t kept_from; /* gdn_kept_from */
};

/* A chunk; its lines [lo, hi) are rows of the pass, those before were committed earlier. */
struct chunk {
    int32_t first, lo, hi;
    bool committed, folds;
};
static __device__ __forceinline__ struct chunk chunk_at(const struct work &w, int32_t first)
{
    struct chunk c;
    c.first = first;
    c.lo = min(max(w.seg.base - first, 0), GDN_CHUNK);
    c.hi = min(w.seg.end - first, GDN_CHUNK);
    c.committed = c.lo == GDN_CHUNK || w.seg.prompt;
    c.folds = c.hi == GDN_CHUNK && (c.committed || first + GDN_CHUNK < w.seg.end);
    return c;
}

/* ---------------------------------------------------------------- what a chunk needs */

struct shared {
    float v[GDN_CHUNK][COLS];         /* u of lines before lo, v of the others */
    float kk[GDN_CHUNK][GDN_CHUNK];   /* [j][i]: exp(G_i - G_j) k_i . k_j */
    float qk[GDN_CHUNK][GDN_CHUNK];   /* [i][j]: the same with q_i */
    float x[2][2][GDN_CHUNK][X_LINE]; /* of each half: lines of keys, of queries times S */
    float decay[GDN_CHUNK], beta[GDN_CHUNK], to_end[GDN_CHUNK]; /* exp(G_i), exp(G_last - G_i) */
};

/* The same in registers, on its way. */
struct fetched {
    uint4 kq[PIECES][2]; /* eight f32 numbers, or their two parts */
    float v[CELLS];
    float g_i[WEIGHTS], g_j[WEIGHTS], kk[WEIGHTS], qk[WEIGHTS];
    float beta, g, g_last;
};

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
static __device__ __forceinline__ bool has_col(const struct work &w, int32_t col)
{
    return WHOLE || col < w.n_cols;
}

static __device__ __forceinline__ int64_t row_of(const struct work &w, const struct chunk &c,
                                                 int32_t line)
{
    return w.seg.row0 + c.first + line - w.seg.base;
}
/* Row of a ring. */
static __device__ __forceinline__ int64_t kept_at(const struct scan_args &a, const struct chunk &c,
                                                  int32_t head, int32_t line)
{
    return (int64_t)head * a.g.block.ring + (c.first + line) % a.g.block.ring;
}
static __device__ __forceinline__ float gate_of(const struct scan_args &a, const struct work &w,
                                                const struct chunk &c, int32_t line)
{
    return line < c.lo ? w.slot.g[kept_at(a, c, w.h, line)]
                       : a.g.mid.gate[(row_of(w, c, line) * 2 + 1) * a.g.shape.n_v_heads + w.h];
}

template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void fetch(const struct scan_args &a, const struct work &w,
                                             const struct chunk &c, struct fetched &f)
{
    const struct sv_gdn_shape &s = a.g.shape;
    const int32_t t = threadIdx.x, kd = k_dim<WHOLE>(a), vd = v_dim<WHOLE>(a), nk = s.n_k_heads;
#pragma unroll
    for (int m = 0; m < PIECES; m++) {
        const int32_t n = t + THREADS * m, d = n % OCTETS * 8, i = n / OCTETS % GDN_CHUNK;
        const int32_t at_number = PARTS == 2 ? d / 2 : d; /* parts lie in f32 numbers' place */
        const bool query = n >= GDN_CHUNK * OCTETS;
        const float *from = NULL;
        if (d < kd && i >= c.lo && i < c.hi)
            from = a.g.mid.qkv + row_of(w, c, i) * a.g.channels +
                   (int64_t)((query ? 0 : nk) + w.kh) * kd + at_number;
        else if (d < kd && i < c.lo && c.folds && !query)
            from = w.slot.k + kept_at(a, c, w.kh, i) * kd + at_number;
        const uint4 *const at = (const uint4 *)from, zeros = make_uint4(0, 0, 0, 0);
        f.kq[m][0] = from ? at[0] : zeros;
        f.kq[m][1] = from ? at[PARTS == 2 ? kd / 8 : 1] : zeros;
    }
#pragma unroll
    for (int m = 0; m < CELLS; m++) {
        const int32_t i = (t + THREADS * m) / COLS, col = t % COLS;
        f.v[m] = 0;
        if (has_col<WHOLE>(w, col) && i < c.lo)
            f.v[m] = w.slot.u[kept_at(a, c, w.h, i) * vd + w.col0 + col];
        else if (has_col<WHOLE>(w, col) && i < c.hi)
            f.v[m] = a.g.mid.qkv[row_of(w, c, i) * a.g.channels + 2 * (int64_t)nk * kd +
                                 (int64_t)w.h * vd + w.col0 + col];
    }
#pragma unroll
    for (int m = 0; m < WEIGHTS; m++) {
        const int32_t n = t + THREADS * m, i = n / GDN_CHUNK, j = n % GDN_CHUNK;
        f.g_i[m] = f.g_j[m] = f.kk[m] = f.qk[m] = 0;
        if (i < c.lo || i >= c.hi || j > i)
            continue;
        const float *const dot = a.g.mid.dots + ((row_of(w, c, i) * nk + w.kh) * 2) * GDN_CHUNK + j;
        f.g_i[m] = gate_of(a, w, c, i);
        f.g_j[m] = gate_of(a, w, c, j);
        f.kk[m] = dot[0];
        f.qk[m] = dot[GDN_CHUNK];
    }
    f.beta = f.g = f.g_last = 0;
    if (t < c.hi) {
        f.g = gate_of(a, w, c, t);
        f.beta = t < c.lo ? 0 : a.g.mid.gate[row_of(w, c, t) * 2 * s.n_v_heads + w.h];
        f.g_last = c.folds ? gate_of(a, w, c, GDN_CHUNK - 1) : 0;
    }
}

/* Keys, then queries: a line's parts lie side by side. */
template <int PARTS> struct tiles {
    enum { LINE = PARTS * GDN_KEY * 2, BYTES = GDN_CHUNK * LINE };
};

template <int PARTS>
static __device__ __forceinline__ void put(const struct fetched &f, struct shared &m, uint32_t keys)
{
    enum { LINE = tiles<PARTS>::LINE };
    const int32_t t = threadIdx.x;
#pragma unroll
    for (int n0 = 0; n0 < PIECES; n0++) {
        const int32_t n = t + THREADS * n0, octet = n % OCTETS, i = n / OCTETS % GDN_CHUNK;
        const uint32_t tile = keys + (n >= GDN_CHUNK * OCTETS ? tiles<PARTS>::BYTES : 0);
        const uint4 x = f.kq[n0][0], y = f.kq[n0][1];
        uint32_t p[4][PARTS];
        if (PARTS > 2) {
            gdn_cut<PARTS>(p[0], __uint_as_float(x.x), __uint_as_float(x.y));
            gdn_cut<PARTS>(p[1], __uint_as_float(x.z), __uint_as_float(x.w));
            gdn_cut<PARTS>(p[2], __uint_as_float(y.x), __uint_as_float(y.y));
            gdn_cut<PARTS>(p[3], __uint_as_float(y.z), __uint_as_float(y.w));
        }
#pragma unroll
        for (int q = 0; q < PARTS; q++)
            gpu_store16(tile + gpu_place<LINE>(i, q * (GDN_KEY / 8) + octet),
                        PARTS == 2 ? (q ? y : x) : make_uint4(p[0][q], p[1][q], p[2][q], p[3][q]));
    }
#pragma unroll
    for (int n = 0; n < CELLS; n++)
        m.v[(t + THREADS * n) / COLS][t % COLS] = f.v[n];
#pragma unroll
    for (int n0 = 0; n0 < WEIGHTS; n0++) {
        const int32_t n = t + THREADS * n0, i = n / GDN_CHUNK, j = n % GDN_CHUNK;
        const float weight = expf(__fsub_rn(f.g_i[n0], f.g_j[n0]));
        m.kk[j][i] = __fmul_rn(weight, f.kk[n0]);
        m.qk[i][j] = __fmul_rn(weight, f.qk[n0]);
    }
    if (t < GDN_CHUNK) {
        m.decay[t] = expf(f.g);
        m.beta[t] = f.beta;
        m.to_end[t] = expf(__fsub_rn(f.g_last, f.g));
    }
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
    float *const at =
        w.slot.state + ((int64_t)w.h * kd + p.d0) * vd + w.col0 + p.col0; /* of sum 0 of tile 0 */
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int e = 0; e < SUMS; e++) {
            const int32_t d = t * 16 + e / 4 * GPU_COLS + e % GPU_RUN, col = 8 * (e % 4 / GPU_RUN);
            const bool there = has_col<WHOLE>(w, p.col0 + col) && (WHOLE || p.d0 + d < kd);
            if (STORE && there)
                at[d * vd + col] = s[t][e];
            else if (!STORE)
                s[t][e] = there ? at[d * vd + col] : 0.0f;
        }
}

/* Lines of keys and of queries times this wave's part of the state, to shared memory. */
template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void products(const float (&s)[TILES][SUMS], struct shared &m,
                                                uint32_t keys, int32_t kd)
{
    enum { LINE = tiles<PARTS>::LINE };
    const int half = gpu_wave() / 2, lane = gpu_lane();
    float sum[2][SUMS];
#pragma unroll
    for (int e = 0; e < SUMS; e++)
        sum[0][e] = sum[1][e] = 0;
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
            const uint32_t at = keys + (q * GDN_KEY + half * HALF) * 2;
            uint32_t k[PAIRS], x[PAIRS];
            gpu_load_n<LINE>(k, at, 0, t * 16);
            gpu_load_n<LINE>(x, at + tiles<PARTS>::BYTES, 0, t * 16);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                if (p + q < PARTS) {
                    gpu_mma_t(sum[0], part[p], k);
                    gpu_mma_t(sum[1], part[p], x);
                }
        }
    }
    const int32_t col0 = gpu_wave() % 2 * 16 + gpu_run_row(lane);
#pragma unroll
    for (int e = 0; e < SUMS; e++) {
        const int32_t line = e / 4 * GPU_COLS + gpu_run_col(lane) + e % GPU_RUN,
                      col = col0 + 8 * (e % 4 / GPU_RUN);
        m.x[half][0][line][col] = sum[0][e];
        m.x[half][1][line][col] = sum[1][e];
    }
}

/* ---------------------------------------------------------------- the rows of a chunk */

static __device__ __forceinline__ float solved(const struct shared &m, int32_t col, int j,
                                               float sum)
{
    const float sk = __fadd_rn(m.x[0][0][j][col], m.x[1][0][j][col]);
    return __fmul_rn(m.beta[j], __fsub_rn(__fmaf_rn(-m.decay[j], sk, m.v[j][col]), sum));
}

/* u of one column; SHARES threads do it alike. Of a whole chunk each u goes into the sums of all
 * that follow; of some rows each sum is formed when it is needed, in the same order. */
static __device__ __forceinline__ void solve_all(float (&u)[GDN_CHUNK], const struct shared &m,
                                                 int32_t col)
{
    float sum[GDN_CHUNK];
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++)
        sum[i] = 0;
#pragma unroll
    for (int j = 0; j < GDN_CHUNK; j++) {
        u[j] = solved(m, col, j, sum[j]);
#pragma unroll
        for (int i = 0; i < GDN_CHUNK; i++)
            if (i > j)
                sum[i] = __fmaf_rn(m.kk[j][i], u[j], sum[i]);
    }
}
static __device__ __forceinline__ void solve_some(float (&u)[GDN_CHUNK], const struct chunk &c,
                                                  const struct shared &m, int32_t col)
{
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++)
        u[i] = 0;
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++) {
        if (i >= c.hi && GPU_WAVE == 32)
            break; /* the other vendor's compiler unrolls no loop that may end */
        u[i] = m.v[i][col];
        if (i < c.lo)
            continue;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < GDN_CHUNK; j++)
            if (j < i)
                sum = __fmaf_rn(m.kk[j][i], u[j], sum);
        u[i] = solved(m, col, i, sum);
    }
}

/* The output of line i, which is below i0 + SHARES: a constant, where the loop is to be short. */
template <bool WHOLE>
static __device__ __forceinline__ void
output(const struct scan_args &a, const struct work &w, const struct chunk &c,
       const struct shared &m, const float (&u)[GDN_CHUNK], int32_t col, int32_t i, int i0)
{
    float out = __fmul_rn(m.decay[i], __fadd_rn(m.x[0][1][i][col], m.x[1][1][i][col]));
#pragma unroll
    for (int j = 0; j < GDN_CHUNK; j++)
        if (j < i0 + SHARES && j <= i)
            out = __fmaf_rn(m.qk[i][j], u[j], out);
    a.out[(row_of(w, c, i) * a.g.shape.n_v_heads + w.h) * v_dim<WHOLE>(a) + w.col0 + col] = out;
}

/* The rows of one column, which SHARES threads divide: outputs, what is kept of u and, in parts,
 * what is to be folded, to shared memory. */
template <int PARTS, bool WHOLE, bool AHEAD>
static __device__ __forceinline__ void rows(const struct scan_args &a, const struct work &w,
                                            const struct chunk &c, const struct shared &m,
                                            uint32_t folded)
{
    const int32_t col = threadIdx.x % COLS, share = threadIdx.x / COLS, vd = v_dim<WHOLE>(a);
    const bool there = has_col<WHOLE>(w, col);
    float u[GDN_CHUNK];
    if (AHEAD && GPU_WAVE == 32 && c.lo == 0 && c.hi == GDN_CHUNK && c.first < w.kept_from) {
        solve_all(u, m, col);
#pragma unroll
        for (int i0 = 0; i0 < GDN_CHUNK; i0 += SHARES)
            output<WHOLE>(a, w, c, m, u, col, i0 + share, i0);
    } else {
        solve_some(u, c, m, col);
#pragma unroll 1
        for (int i = share; i < c.hi && there; i += SHARES)
            if (i >= c.lo)
                output<WHOLE>(a, w, c, m, u, col, i, GDN_CHUNK);
#pragma unroll
        for (int i = 0; i < GDN_CHUNK; i++)
            if (i % SHARES == share && i >= c.lo && i < c.hi && there && c.first + i >= w.kept_from)
                w.slot.u[kept_at(a, c, w.h, i) * vd + w.col0 + col] = u[i];
    }
    if (!c.folds)
        return;
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i += 2) {
        if (i / 2 % SHARES != share)
            continue;
        uint32_t two[PARTS];
        gdn_cut<PARTS>(two, __fmul_rn(m.to_end[i], u[i]), __fmul_rn(m.to_end[i + 1], u[i + 1]));
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            gpu_store4(folded + gpu_place<V_BYTES>(col, p * 2 + i / 8) + i % 8 * 2, two[p]);
    }
}

/* The state behind the chunk. */
template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void fold(float (&s)[TILES][SUMS], float decay, uint32_t keys,
                                            uint32_t folded, int32_t kd)
{
    enum { LINE = tiles<PARTS>::LINE };
    const int half = gpu_wave() / 2;
    uint32_t u[PARTS][PAIRS];
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        gpu_load_p<V_BYTES>(u[p], folded, gpu_wave() % 2 * 16, p * 16);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        if (!WHOLE && half * HALF + t * 16 >= kd)
            break;
        float sum[SUMS];
#pragma unroll
        for (int e = 0; e < SUMS; e++)
            sum[e] = 0;
#pragma unroll
        for (int q = 0; q < PARTS; q++) {
            uint32_t k[PAIRS];
            gpu_load_t<LINE>(k, keys + (q * GDN_KEY + half * HALF) * 2, 0, t * 16);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                if (p + q < PARTS)
                    gpu_mma_t(sum, u[p], k);
        }
#pragma unroll
        for (int e = 0; e < SUMS; e++)
            s[t][e] = __fmaf_rn(decay, s[t][e], sum[e]);
    }
}

/* ---------------------------------------------------------------- the kernel */

/* Where the state stands when the pass begins. A block that was cleared and then used from the
 * middle of a text holds zeros all the same. */
static __device__ __forceinline__ int32_t state_pos(const struct scan_args &a, const struct work &w)
{
    const int32_t pos = *w.slot.pos, base = w.seg.base;
    return pos <= base && base - pos <= a.g.block.ring ? pos : base / GDN_CHUNK * GDN_CHUNK;
}

/* AHEAD: a chunk's numbers are fetched while the one before
 * is at work, which many chunks in a row need and many thread blocks beside one another have no
 * registers for. The arithmetic is the same. */
template <int PARTS, bool WHOLE, bool AHEAD>
static __global__ void __launch_bounds__(THREADS, AHEAD || !WHOLE || PARTS > 2 ? 2 : 4)
    scan_kernel(const __grid_constant__ struct scan_args a)
{
    GPU_SHARED(tile_bytes);
    __shared__ __align__(16) struct shared m;
    const struct sv_gdn_shape &shape = a.g.shape;
    const uint32_t keys = gpu_shared_at(tile_bytes), folded = keys + 2 * tiles<PARTS>::BYTES;
    const int32_t per_head = (v_dim<WHOLE>(a) + COLS - 1) / COLS,
                  each = shape.n_v_heads / shape.n_k_heads;
    struct work w;
    struct fetched f;
    float s[TILES][SUMS];
    sv_pdl_launch();
    if (!a.g.early)
        sv_pdl_wait();
    w.seg = gdn_seg_at(a.g, (int32_t)blockIdx.y);
    if (w.seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    w.slot = gdn_slot_at(a.g, w.seg.slot);
    w.h = (int32_t)blockIdx.x / per_head;
    w.kh = w.h / each;
    w.col0 = (int32_t)blockIdx.x % per_head * COLS;
    w.n_cols = v_dim<WHOLE>(a) - w.col0;
    w.kept_from = gdn_kept_from(w.seg);
    move_state<false, WHOLE>(gpu_args(a), w, s);
    bool changed = false; /* the state in registers is committed and not yet in memory */
    struct chunk c = chunk_at(w, state_pos(a, w));
    sv_pdl_wait(); /* no-op after the one above */
    if (AHEAD)
        fetch<PARTS, WHOLE>(gpu_args(a), w, c, f);
    for (;;) {
        if (!AHEAD)
            fetch<PARTS, WHOLE>(gpu_args(a), w, c, f);
        __syncthreads(); /* the chunk before is done */
        put<PARTS>(f, m, keys);
        __syncthreads();
        const int32_t next = c.first + GDN_CHUNK;
        if (AHEAD && next < w.seg.end)
            fetch<PARTS, WHOLE>(gpu_args(a), w, chunk_at(w, next), f);
        if (c.lo < c.hi)
            products<PARTS, WHOLE>(s, m, keys, k_dim<WHOLE>(gpu_args(a)));
        __syncthreads();
        rows<PARTS, WHOLE, AHEAD>(gpu_args(a), w, c, m, folded);
        if (c.folds) {
            if (!c.committed && changed) {
                move_state<true, WHOLE>(gpu_args(a), w, s);
                changed = false;
            }
            __syncthreads();
            fold<PARTS, WHOLE>(s, m.decay[GDN_CHUNK - 1], keys, folded, k_dim<WHOLE>(gpu_args(a)));
            changed |= c.committed;
        }
        if (next >= w.seg.end)
            break;
        c = chunk_at(w, next);
    }
    if (changed)
        move_state<true, WHOLE>(gpu_args(a), w, s);
}

void sv_cuda_gdn_scan(struct sv_dev *dev, const struct sv_p_gdn_scan *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct sv_gdn_shape &s = p->shape;
    const struct scan_args a = {gdn_args_of(cu, &p->rows, &s, &p->slots, &p->x), p->out};
    const dim3 grid((unsigned)(s.n_v_heads * ((s.v_dim + COLS - 1) / COLS)),
                    (unsigned)p->rows.n_segs);
    const bool half = cu->act == SV_BF16, whole = s.k_dim == GDN_KEY && s.v_dim == GDN_KEY;
    const size_t smem = (size_t)(half ? 2 * tiles<2>::BYTES : 2 * tiles<3>::BYTES) + COLS * V_BYTES;
    void (*kernel)(struct scan_args) =
        whole ? scan_kernel<3, true, false> : scan_kernel<3, false, false>;
    if (half && !whole)
        kernel = scan_kernel<2, false, false>;
    else if (half) /* on average some chunks a segment */
        kernel = p->rows.n_rows > 4 * GDN_CHUNK * p->rows.n_segs ? scan_kernel<2, true, true>
                                                                 : scan_kernel<2, true, false>;
    sv_cuda_launch_in_pass(cu, "gdn_scan", kernel, grid, THREADS, smem, a);
}
