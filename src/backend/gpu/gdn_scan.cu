/*
 * gdn_scan.cu - the gated delta rule over the rows of a pass: prompts, verify blocks and single
 * rows. Its arithmetic: gdn_scan.cuh.
 *
 * Entered through the table in device.cu. A thread block takes one chunk after the other, and all
 * its waves do everything: several thread blocks a multiprocessor hide what one waits for. Must
 * not: do other arithmetic for many rows than for one.
 */
#include "backend/gpu/gdn_scan.cuh"

enum {
    VALUES = GDN_CHUNK * COLS * 4,
    THREADS = STATE_WAVES * GPU_WAVE,
    SHARES = THREADS / COLS /* threads that write a column's outputs */
};

/* A chunk's keys, queries and values: of two chunks where they are copied ahead. */
template <int PARTS> struct stage {
    enum {
        NUMBER = PARTS == 2 ? 2 : 1,
        QUERIES = tiles<PARTS>::BYTES,
        V = 2 * QUERIES,
        BYTES = V + VALUES,
        FOLDED = NUMBER * BYTES, /* behind them: u in parts */
        ALL = FOLDED + COLS * V_BYTES
    };
};

struct shared {
    struct chunk_shared c;
    float qk[2][GDN_CHUNK][GDN_CHUNK]; /* [i][j]: as kk, with q_i */
    float decay;                       /* of the chunk that is being folded */
};

template <int PARTS, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, !WHOLE || PARTS > 2 ? 2 : 4)
    scan_kernel(const __grid_constant__ struct scan_args a)
{
    GPU_SHARED(tile_bytes);
    __shared__ __align__(16) struct shared m;
    constexpr bool AHEAD = stage<PARTS>::NUMBER > 1;
    const int wave = gpu_wave();
    const int32_t col = threadIdx.x % COLS, share = threadIdx.x / COLS;
    const uint32_t tiles0 = gpu_shared_at(tile_bytes), folded = tiles0 + stage<PARTS>::FOLDED;
    const auto stage_of = [&](const struct chunk &c) {
        return c.first / GDN_CHUNK % stage<PARTS>::NUMBER * stage<PARTS>::BYTES;
    };
    const auto bring_chunk = [&](const struct work &w, const struct chunk &c) {
        const uint32_t at = tiles0 + stage_of(c);
        bring<PARTS, WHOLE, STATE_WAVES>(gpu_args(a), w, c, wave, at, at + stage<PARTS>::QUERIES,
                                         at + stage<PARTS>::V);
    };
    struct weights<THREADS> f;
    float s[TILES][SUMS];
    sv_pdl_launch();
    if (!a.g.early)
        sv_pdl_wait();
    const struct gdn_seg seg = gdn_seg_at(a.g, (int32_t)blockIdx.y);
    if (seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    const struct work w = work_of<WHOLE>(a, seg);
    move_state<false, WHOLE>(gpu_args(a), w, s);
    bool changed = false; /* the state in registers is committed and not yet in memory */
    sv_pdl_wait();        /* no-op after the one above */
    /* The chunk of the first row is brought before it is known whether others come before it. */
    struct chunk c = chunk_at(gpu_args(a), w, seg.base / GDN_CHUNK * GDN_CHUNK);
    int32_t brought = c.first;
    fetch_weights<THREADS>(gpu_args(a), w, c, threadIdx.x, f);
    if (AHEAD)
        bring_chunk(w, c);
    const int32_t pos = state_pos(a, w);
    if (pos != c.first) {
        if (AHEAD && pos + GDN_CHUNK < c.first) { /* its copy would be overwritten */
            gpu_copy_wait<0>(0, 0);
            __syncthreads();
            brought = pos;
        }
        c = chunk_at(gpu_args(a), w, pos);
        fetch_weights<THREADS>(gpu_args(a), w, c, threadIdx.x, f);
        if (AHEAD)
            bring_chunk(w, c);
    }
    for (;;) {
        const int32_t next = c.first + GDN_CHUNK;
        const uint32_t keys = tiles0 + stage_of(c);
        if (!AHEAD) {
            __syncthreads(); /* the chunk before is done */
            bring_chunk(w, c);
        }
        put_weights<THREADS>(f, threadIdx.x, m.c, m.qk[c.first / GDN_CHUNK % 2]);
        gpu_copy_wait<0>(0, 0);
        __syncthreads();
        if (next < w.seg.end) {
            const struct chunk then = chunk_at(gpu_args(a), w, next);
            fetch_weights<THREADS>(gpu_args(a), w, then, threadIdx.x, f);
            if (AHEAD && next > brought)
                bring_chunk(w, then);
        }
        if (c.lo < c.hi)
            products<PARTS, WHOLE>(s, m.c, keys, keys + stage<PARTS>::QUERIES,
                                   k_dim<WHOLE>(gpu_args(a)));
        __syncthreads();
        if (wave == gpu_afresh((int)blockIdx.x) % STATE_WAVES) {
            solve<PARTS>(c, m.c, (float(*)[COLS])(tile_bytes + stage_of(c) + stage<PARTS>::V),
                         folded);
            m.decay = m.c.decay[GDN_CHUNK - 1];
        }
        float out[LINES<SHARES>];
        start_outputs<SHARES>(m.c, share, col, out);
        __syncthreads();
        end_outputs<WHOLE, SHARES>(gpu_args(a), w, c, m.c, m.qk[c.first / GDN_CHUNK % 2], share,
                                   col, out);
        if (c.folds) {
            if (!c.committed && changed) {
                move_state<true, WHOLE>(gpu_args(a), w, s);
                changed = false;
            }
            uint32_t u[PARTS][PAIRS];
            load_folded<PARTS>(u, folded);
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                if (!WHOLE && gpu_wave() / 2 * HALF + t * 16 >= k_dim<WHOLE>(gpu_args(a)))
                    break;
                uint32_t k[PARTS][PAIRS];
                load_columns<PARTS>(k, keys, t);
                fold_tile<PARTS>(s[t], m.decay, u, k);
            }
            changed |= c.committed;
        }
        if (next >= w.seg.end)
            break;
        c = chunk_at(gpu_args(a), w, next);
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
    if (half)
        launch_scan(cu, whole ? scan_kernel<2, true> : scan_kernel<2, false>, grid, THREADS,
                    stage<2>::ALL, a);
    else
        launch_scan(cu, whole ? scan_kernel<3, true> : scan_kernel<3, false>, grid, THREADS,
                    stage<3>::ALL, a);
}
