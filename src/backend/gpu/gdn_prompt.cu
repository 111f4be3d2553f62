/*
 * gdn_prompt.cu - the gated delta rule over many rows of each segment: prompts. Its arithmetic:
 * gdn_scan.cuh.
 *
 * Called by gdn_scan.cu, on chips with waves of 32. One thread block a multiprocessor goes through
 * a segment's chunks, and each chunk waits for the state that the one before leaves. So waves
 * divide what is to be done, and two barriers separate the parts of a chunk: at A, the products of
 * the state with keys and queries are there, at B its u. Before A, four waves fold the chunk before
 * into the state and multiply. Between the two, one wave solves for u. Three write outputs and make
 * weights while the state is worked on, and all that have no state copy keys, queries and values
 * two chunks ahead. Must not: do arithmetic that gdn_scan.cu does not do alike.
 */
#include "backend/gpu/gdn_scan.cuh"

enum {
    PARTS = 2,
    ROW_WAVES = 3,                    /* they write outputs */
    SOLVER = STATE_WAVES + ROW_WAVES, /* the wave that solves */
    THREADS = (SOLVER + 1) * GPU_WAVE,
    ROW_THREADS = ROW_WAVES * GPU_WAVE,
    SHARES = ROW_THREADS / COLS, /* threads that write a column's outputs */
    KEY_STAGES = 3, /* a chunk's keys are read until the products of the next are there */
    STAGES = 2,
    TILE = tiles<PARTS>::BYTES,
    VALUES = GDN_CHUNK * COLS * 4,
    V_AT = (KEY_STAGES + STAGES) * TILE + COLS * V_BYTES,
    SMEM = V_AT + STAGES * VALUES
};

struct shared {
    struct chunk_shared c;
    float qk[STAGES][GDN_CHUNK][GDN_CHUNK]; /* [i][j]: as kk, with q_i */
};

static __global__ void __launch_bounds__(THREADS, 1)
    prompt_kernel(const __grid_constant__ struct scan_args a)
{
    GPU_SHARED(tile_bytes);
    __shared__ __align__(16) struct shared m;
    const uint32_t keys = gpu_shared_at(tile_bytes), queries = keys + KEY_STAGES * TILE,
                   folded = queries + STAGES * TILE, values = keys + V_AT;
    const int wave = gpu_wave();
    const int32_t t = (int32_t)threadIdx.x - STATE_WAVES * GPU_WAVE;
    const bool of_state = wave < STATE_WAVES, solves = wave == SOLVER,
               of_rows = !of_state && !solves;
    struct weights<ROW_THREADS> f;
    float s[TILES][SUMS], out[LINES<SHARES>];
    if (GPU_WAVE != 32)
        return; /* never launched */
    sv_pdl_launch();
    if (!a.g.early)
        sv_pdl_wait();
    const struct gdn_seg seg = gdn_seg_at(a.g, (int32_t)blockIdx.y);
    if (seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    const struct work w = work_of<true>(a, seg);
    const auto copy_chunk = [&](const struct chunk &c, int32_t n) {
        bring<PARTS, true, ROW_WAVES + 1>(gpu_args(a), w, c, wave - STATE_WAVES,
                                          keys + n % KEY_STAGES * TILE, queries + n % STAGES * TILE,
                                          values + n % STAGES * VALUES);
    };
    if (of_state)
        move_state<false, true>(gpu_args(a), w, s);
    bool changed = false; /* the state in registers is committed and not yet in memory */
    struct chunk c = chunk_at(gpu_args(a), w, state_pos(a, w));
    sv_pdl_wait(); /* no-op after the one above */
    if (!of_state) {
        copy_chunk(c, 0);
        if (c.first + GDN_CHUNK < w.seg.end)
            copy_chunk(chunk_at(gpu_args(a), w, c.first + GDN_CHUNK), 1);
        gpu_copy_wait<0>(0, 0);
    }
    if (of_rows)
        fetch_weights<ROW_THREADS>(gpu_args(a), w, c, t, f);
    __syncthreads();
    for (int32_t n = 0;; n++) {
        const int32_t next = c.first + GDN_CHUNK;
        const bool more = next < w.seg.end;
        const uint32_t now = keys + n % KEY_STAGES * TILE;
        if (of_state && c.lo < c.hi)
            products<PARTS, true>(s, m.c, now, queries + n % STAGES * TILE, GDN_KEY);
        if (of_rows) {
            put_weights<ROW_THREADS, false>(f, t, m.c, m.qk[n % STAGES]);
            if (more)
                fetch_weights<ROW_THREADS>(gpu_args(a), w, chunk_at(gpu_args(a), w, next), t, f);
        }
        __syncthreads(); /* A */
        float decay = 0;
        if (of_state)
            decay = m.c.decay[GDN_CHUNK - 1];
        if (of_rows)
            start_outputs<SHARES>(m.c, t / COLS, t % COLS, out);
        if (solves) {
            solve<PARTS, false>(c, m.c, (float(*)[COLS])(tile_bytes + V_AT + n % STAGES * VALUES),
                                folded);
        }
        if (!of_state)
            gpu_copy_wait<0>(0, 0); /* the next chunk's */
        __syncthreads();            /* B */
        if (of_state && c.folds) {
            if (!c.committed && changed) {
                move_state<true, true>(gpu_args(a), w, s);
                changed = false;
            }
            uint32_t u[PARTS][PAIRS];
            load_folded<PARTS>(u, folded);
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t columns[PARTS][PAIRS];
                load_columns<PARTS>(columns, now, i);
                fold_tile<PARTS>(s[i], decay, u, columns);
            }
            changed |= c.committed;
        }
        if (!of_state && next + GDN_CHUNK < w.seg.end)
            copy_chunk(chunk_at(gpu_args(a), w, next + GDN_CHUNK), n + 2);
        if (of_rows)
            end_outputs<true, SHARES>(gpu_args(a), w, c, m.c, m.qk[n % STAGES], t / COLS, t % COLS,
                                      out);
        if (!more)
            break;
        c = chunk_at(gpu_args(a), w, next);
    }
    if (of_state && changed)
        move_state<true, true>(gpu_args(a), w, s);
}

void sv_cuda_gdn_prompt(struct sv_cuda *cu, const struct scan_args &a, dim3 grid)
{
    launch_scan(cu, prompt_kernel, grid, THREADS, SMEM, a);
}
