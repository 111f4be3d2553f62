/*
 * gdn_long.cu - the gated delta rule's scan over few long segments: a prompt's chunks are
 * sequential, so the time of one chunk counts.
 *
 * Entered from gdn_scan.cu. A thread block has 32 columns of a value head's state: four waves have
 * 16 of them and half of the keys' numbers each, in registers. Their sums are added in shared
 * memory, a column per lane: one wave computes u of a chunk, from products with keys, while those
 * with queries are computed; two compute the outputs of the last chunk. Four more load chunks,
 * three ahead, and compute their weights a chunk after these were asked for. Each kind of wave has
 * its own loop over the chunks, with two barriers for each: one kind's registers are not live in
 * another's. Arithmetic: gdn_scan.cuh. Must not: be used where rows are not whole keys and values,
 * or in waves of 64.
 */
#include "backend/gpu/gdn_scan.cuh"

enum {
    LONG_COLS = 32,
    HALF_TILES = TILES / 2,
    STAGES = 4,
    OUTPUTS = 2 * WAVES,  /* two waves of outputs, */
    SOLVES = OUTPUTS + 2, /* one of u */
    LONG_WAVES = SOLVES + 1,
    FEW_LINES = 10, /* of a chunk; with 11, as many products as the others, sm_80 spills */
    EARLY = 8,      /* rows of a chunk whose weights fit in registers before they are needed */
    QUERIES = tiles<2>::BYTES,
    VALUES = 2 * QUERIES,
    STAGE = VALUES + GDN_CHUNK * LONG_COLS * 4,
    PITCH = LONG_COLS + 4 /* floats: neither lines nor columns meet a bank twice */
};
typedef float long_lines[GDN_CHUNK][PITCH];

struct long_shared {
    struct chunk_shared of[3];
    long_lines keys[2], queries[2]; /* of halves of a key: their products */
    long_lines u;
};

/* What a column's u needs besides products with keys: in registers before these are there. A lane
 * has a column; weights are the same in all lanes. */
struct long_column {
    float v[GDN_CHUNK], decay[GDN_CHUNK], beta[GDN_CHUNK];
    float by[GDN_CHUNK][GDN_CHUNK]; /* [j][i], i > j */
};
/* Weights of u of rows from FROM to TO. */
template <int FROM, int TO>
static __device__ __forceinline__ void long_weights(const struct chunk_shared &m,
                                                    struct long_column &k)
{
#pragma unroll
    for (int j = FROM; j < TO; j++)
#pragma unroll
        for (int i = (j + 1) / 2 * 2; i < GDN_CHUNK; i += 2) {
            const float2 by = *(const float2 *)m.by[j][i / 2].kk;
            k.by[j][i] = by.x, k.by[j][i + 1] = by.y;
        }
}
[[maybe_unused]] static __device__ __forceinline__ void
long_take(const struct chunk_shared &m, const uint8_t *values, struct long_column &k)
{
    const int32_t col = gpu_lane();
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++)
        k.v[i] = *((const float *)(values + gpu_place<4 * LONG_COLS>(i, col / 4)) + col % 4);
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i += 4) {
        const float4 decay = *(const float4 *)&m.decay[i], beta = *(const float4 *)&m.beta[i];
        k.decay[i] = decay.x, k.decay[i + 1] = decay.y;
        k.decay[i + 2] = decay.z, k.decay[i + 3] = decay.w;
        k.beta[i] = beta.x, k.beta[i + 1] = beta.y;
        k.beta[i + 2] = beta.z, k.beta[i + 3] = beta.w;
    }
    long_weights<0, EARLY>(m, k);
}
[[maybe_unused]] static __device__ __forceinline__ void
long_solve(const struct chunk &c, const struct chunk_shared &m, struct long_column &k,
           const long_lines (&keys)[2], long_lines &to)
{
    const int32_t col = gpu_lane();
    float u[GDN_CHUNK], sum[GDN_CHUNK];
    long_weights<EARLY, GDN_CHUNK - 1>(m, k);
#pragma unroll
    for (int i = 0; i < GDN_CHUNK; i++) {
        const float of_keys = __fadd_rn(keys[0][i][col], keys[1][i][col]);
        sum[i] = 0;
        u[i] = i < c.lo ? k.v[i] : __fmaf_rn(-k.decay[i], of_keys, k.v[i]);
    }
#pragma unroll
    for (int j = 0; j < GDN_CHUNK; j++) {
        u[j] = __fmul_rn(k.beta[j], __fsub_rn(u[j], sum[j]));
#pragma unroll
        for (int i = j + 1; i < GDN_CHUNK; i++)
            sum[i] = __fmaf_rn(k.by[j][i], u[j], sum[i]);
    }
    /* Behind all loads, which would wait for stores in between. */
#pragma unroll
    for (int j = 0; j < GDN_CHUNK; j++)
        to[j][col] = u[j];
}

/* Outputs of a column in lines from FROM to TO, and what is kept of u. */
template <int FROM, int TO>
static __device__ __forceinline__ void
long_outputs(const struct scan_args &a, const struct work &w, const struct chunk &c,
             const struct chunk_shared &m, const long_lines (&queries)[2], const long_lines &u)
{
    const int32_t col = gpu_lane(), nv = a.g.shape.n_v_heads, kept = gdn_kept_from(w.seg) - c.first;
    float out[TO - FROM];
#pragma unroll
    for (int i = FROM; i < TO; i++)
        out[i - FROM] = __fmul_rn(m.decay[i], __fadd_rn(queries[0][i][col], queries[1][i][col]));
#pragma unroll
    for (int j = 0; j < TO; j++) {
        const float known = u[j][col];
        if (j >= FROM)
            out[j - FROM] = __fmaf_rn(m.own[j], known, out[j - FROM]);
#pragma unroll
        for (int i = (j < FROM ? FROM : j) / 2 * 2; i < TO; i += 2) {
            const float2 by = *(const float2 *)m.by[j][i / 2].qk;
            if (i > j && i >= FROM)
                out[i - FROM] = __fmaf_rn(by.x, known, out[i - FROM]);
            if (i + 1 > j && i + 1 < TO)
                out[i + 1 - FROM] = __fmaf_rn(by.y, known, out[i + 1 - FROM]);
        }
    }
    float *const to = a.out + (row_of(w, c, 0) * nv + w.h) * GDN_KEY + w.col0 + col;
    if (c.lo == 0 && c.hi == GDN_CHUNK && kept >= GDN_CHUNK) {
#pragma unroll
        for (int i = FROM; i < TO; i++)
            to[i * nv * GDN_KEY] = out[i - FROM];
        return;
    }
#pragma unroll
    for (int i = FROM; i < TO; i++) {
        if (i >= c.lo && i < c.hi)
            to[i * nv * GDN_KEY] = out[i - FROM];
        if (i >= c.lo && i < c.hi && i >= kept)
            (slot_of(a, w).u + (int64_t)w.h * a.g.block.ring * GDN_KEY + w.col0 +
             col)[ring_row(a, c, i) * GDN_KEY] = u[i][col];
    }
}

/* Lines of keys or of queries times half of a state's rows, which is in parts, to shared memory. */
[[maybe_unused]] static __device__ __forceinline__ void
long_products(const uint32_t (&s)[HALF_TILES][2][PAIRS], uint32_t lines, int tile0, int32_t col,
              long_lines &to)
{
    float sum[SUMS] = {};
#pragma unroll
    for (int t = 0; t < HALF_TILES; t++)
#pragma unroll
        for (int q = 0; q < 2; q++) {
            uint32_t k[PAIRS];
            gpu_load_n<tiles<2>::LINE>(k, lines + q * GDN_KEY * 2, 0, (tile0 + t) * 16);
#pragma unroll
            for (int p = 0; p + q < 2; p++)
                gpu_mma_t(sum, s[t][p], k);
        }
#pragma unroll
    for (int l = 0; l < LINES; l++)
        put_cols(&to[line_of(l)][col], sum, l);
}

/* A wave's part of the state: its columns, half of the keys' numbers. */
struct part {
    int32_t col, half; /* first of the columns of its lane, of the thread block's */
};
template <bool STORE>
static __device__ __forceinline__ void move_part(const struct scan_args &a, const struct work &w,
                                                 const struct part &p, float (&s)[HALF_TILES][SUMS])
{
    float *const at = slot_of(a, w).state + (int64_t)w.h * GDN_KEY * GDN_KEY + w.col0 + p.col;
#pragma unroll
    for (int t = 0; t < HALF_TILES; t++)
#pragma unroll
        for (int l = 0; l < LINES; l++) {
            float *const two = at + ((p.half * HALF_TILES + t) * 16 + line_of(l)) * GDN_KEY;
            if (STORE)
                put_cols(two, s[t], l);
            else
                get_cols(two, s[t], l);
        }
}

/* LANES: of a wave; there is one for 32 alone. */
template <int LANES>
static __global__ void __launch_bounds__(LONG_WAVES * 32, 1)
    long_kernel(const __grid_constant__ struct scan_args a)
{
    GPU_SHARED(stages);
    __shared__ __align__(16) struct long_shared m;
    const int wave = gpu_wave();
    const auto number = [](const struct chunk &c) { return c.first / GDN_CHUNK; };
    const auto stage_of = [&](const struct chunk &c) {
        return stages + number(c) % STAGES * STAGE;
    };
    const auto weights_of = [&](const struct chunk &c) -> struct chunk_shared &
    {
        return m.of[number(c) % 3];
    };
    sv_pdl_launch();
    if (!a.g.early)
        sv_pdl_wait();
    struct work w;
    w.seg = gdn_seg_at(a.g, (int32_t)blockIdx.y);
    if (w.seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    w.h = (int32_t)blockIdx.x / (GDN_KEY / LONG_COLS);
    w.kh = w.h / (a.g.shape.n_v_heads / a.g.shape.n_k_heads);
    w.col0 = (int32_t)blockIdx.x % (GDN_KEY / LONG_COLS) * LONG_COLS;
    const int32_t end = w.seg.end;
    if (wave < WAVES) {
        const struct part p = {wave % 2 * 16 + gpu_run_row(gpu_lane()) * GPU_LINES, wave / 2};
        float s[HALF_TILES][SUMS];
        move_part<false>(a, w, p, s);
        bool changed = false;
        sv_pdl_wait(); /* no-op after the one above */
        struct chunk c = chunk_at(a, w, state_pos(a.g, slot_of(a, w), w.seg, w.h));
        __syncthreads();
        for (; c.first < end; c = chunk_after(a, w, c)) {
            const uint32_t keys = gpu_shared_at(stage_of(c));
            uint32_t cut[HALF_TILES][2][PAIRS];
#pragma unroll
            for (int t = 0; t < HALF_TILES; t++)
#pragma unroll
                for (int e = 0; e < PAIRS; e++) {
                    uint32_t two[2];
                    gdn_cut<2>(two, s[t][2 * e], s[t][2 * e + 1]);
                    cut[t][0][e] = two[0], cut[t][1][e] = two[1];
                }
            long_products(cut, keys, p.half * HALF_TILES, p.col, m.keys[p.half]);
            __syncthreads(); /* products of keys are there, outputs of the last chunk are done */
            long_products(cut, keys + QUERIES, p.half * HALF_TILES, p.col, m.queries[p.half]);
            __syncthreads(); /* u is there, and the next chunk */
            if (!c.folds)
                continue;
            const struct chunk_shared &mine = weights_of(c);
            float u[SUMS];
            uint32_t parts[2][PAIRS];
            if (!c.committed && changed)
                move_part<true>(a, w, p, s);
#pragma unroll
            for (int l = 0; l < LINES; l++)
                get_cols(&m.u[line_of(l)][p.col], u, l);
            cut_u<2>(parts, u, [&](int l) { return mine.to_end[line_of(l)]; });
#pragma unroll
            for (int t = 0; t < HALF_TILES; t++)
                fold_tile<2>(s[t], parts, keys, p.half * HALF_TILES + t, mine.decay[GDN_CHUNK - 1]);
            changed = c.committed;
        }
        if (changed)
            move_part<true>(a, w, p, s);
        return;
    }
    sv_pdl_wait(); /* no-op after the one above */
    struct chunk c = chunk_at(a, w, state_pos(a.g, slot_of(a, w), w.seg, w.h));
    if (wave < 2 * WAVES) {
        /* Copies of a chunk and its weights, in registers until the chunk after it is asked for. */
        struct weights f;
        const auto copy = [&](const struct chunk &of) {
            const uint32_t at = gpu_shared_at(stage_of(of));
            if (of.first < end)
                bring<2, true, LONG_COLS>(a, w, of, wave % WAVES, at, at + QUERIES, at + VALUES);
        };
        const auto fetch = [&](const struct chunk &of) {
            if (of.first < end)
                fetch_weights(a, w, of, f);
        };
        const auto put = [&](const struct chunk &of) {
            if (of.first < end)
                put_weights(f, weights_of(of));
        };
        /* A chunk's copies are there; those of the next one need not be. */
        const auto finish = [&](const struct chunk &of) {
            if (of.first >= end)
                return;
            if (of.first + GDN_CHUNK < end)
                gpu_copy_wait<1>(1, 0);
            else
                gpu_copy_wait<0>(0, 0);
            put_kept<true>(a, w, of, wave % WAVES, gpu_shared_at(stage_of(of)));
        };
        struct chunk next = chunk_after(a, w, c), ahead = chunk_after(a, w, next);
        copy(c);
        fetch(c);
        copy(next);
        put(c);
        fetch(next);
        finish(c);
        copy(ahead);
        put(next);
        fetch(ahead);
        __syncthreads();
        for (; c.first < end; c = next, next = chunk_after(a, w, c)) {
            const struct chunk later = chunk_after(a, w, ahead);
            __syncthreads();
            finish(next);
            copy(later);
            __syncthreads();
            put(ahead);
            fetch(later);
            ahead = later;
        }
    } else if (wave == SOLVES) {
        __syncthreads();
        for (; c.first < end; c = chunk_after(a, w, c)) {
            struct long_column k;
            long_take(weights_of(c), stage_of(c) + VALUES, k);
            __syncthreads();
            long_solve(c, weights_of(c), k, m.keys, m.u);
            __syncthreads();
        }
    } else {
        __syncthreads();
        for (; c.first < end; c = chunk_after(a, w, c)) {
            __syncthreads();
            __syncthreads();
            if (wave == OUTPUTS)
                long_outputs<0, FEW_LINES>(a, w, c, weights_of(c), m.queries, m.u);
            else
                long_outputs<FEW_LINES, GDN_CHUNK>(a, w, c, weights_of(c), m.queries, m.u);
        }
    }
}

bool sv_gdn_long(struct sv_cuda *cu, const struct scan_args &a)
{
    const struct sv_gdn_shape &s = a.g.shape;
    const dim3 grid((unsigned)(s.n_v_heads * (GDN_KEY / LONG_COLS)), (unsigned)a.g.rows.n_segs);
    if constexpr (GPU_WAVE == 32)
        if (s.k_dim == GDN_KEY && s.v_dim == GDN_KEY && cu->act == SV_BF16 &&
            cu->smem_block >= STAGES * STAGE + sizeof(struct long_shared)) {
            launch_scan(cu, long_kernel<GPU_WAVE>, grid, LONG_WAVES * 32, STAGES * STAGE, a);
            return true;
        }
    return false;
}
