/*
 * gdn_scan.cu - the gated delta rule over the rows of a pass: prompts, verify blocks and single
 * rows. Its arithmetic: gdn_scan.cuh.
 *
 * Called through the table in device.cu. A thread block takes one chunk after the other. All its
 * waves copy and compute, and several thread blocks a multiprocessor hide latency; few long
 * segments have a kernel of their own (gdn_long.cu). Must not: do other arithmetic for many rows
 * than for one.
 */
#include "backend/gpu/gdn_scan.cuh"

enum { VALUES = GDN_CHUNK * COLS * 4, LONG = 2 * GDN_CHUNK /* rows a segment */ };

/* A chunk's keys, queries and values: of two chunks where they are copied ahead. */
template <int PARTS> struct stage {
    enum {
        NUMBER = PARTS == 2 ? 2 : 1,
        QUERIES = tiles<PARTS>::BYTES,
        V = 2 * QUERIES,
        BYTES = V + VALUES,
        ALL = NUMBER * BYTES
    };
};

/* A chunk by one wave. changed: the state in registers is committed and not yet in memory. */
template <int PARTS, bool WHOLE>
static __device__ __forceinline__ void
do_chunk(const struct scan_args &a, const struct work &w, const struct chunk &c,
         const struct chunk_shared &m, uint8_t *stage0, float (&s)[TILES][SUMS], bool &changed)
{
    const uint32_t keys = gpu_shared_at(stage0);
    const int32_t kd = k_dim<WHOLE>(gpu_args(a));
    struct two_sums of = {};
    float u[SUMS];
    if (!has_cols<WHOLE>(gpu_args(a), w))
        return;
    if (c.lo < c.hi)
        products<PARTS, WHOLE>(s, keys, keys + stage<PARTS>::QUERIES, kd, of);
#pragma unroll
    for (int l = 0; l < LINES; l++)
        get_cols(v_at(stage0 + stage<PARTS>::V, line_of(l), col_of_lane()), u, l);
    solve(c, m, of.keys, of.queries, u);
    put_rows<WHOLE>(gpu_args(a), w, c, of.queries, u);
    if (!c.folds)
        return;
    if (!c.committed && changed)
        move_state<true, WHOLE>(gpu_args(a), w, s);
    fold<PARTS, WHOLE>(s, m, u, keys, kd);
    changed = c.committed;
}

template <int PARTS, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, !WHOLE || PARTS > 2 ? 2 : 3)
    scan_kernel(const __grid_constant__ struct scan_args a)
{
    GPU_SHARED(tile_bytes);
    __shared__ __align__(16) struct chunk_shared both[2];
    constexpr bool AHEAD = stage<PARTS>::NUMBER > 1;
    const int wave = gpu_wave();
    const auto stage_of = [&](const struct chunk &c) {
        return tile_bytes + c.first / GDN_CHUNK % stage<PARTS>::NUMBER * stage<PARTS>::BYTES;
    };
    const auto bring_chunk = [&](const struct work &w, const struct chunk &c) {
        const uint32_t at = gpu_shared_at(stage_of(c));
        bring<PARTS, WHOLE>(gpu_args(a), w, c, wave, at, at + stage<PARTS>::QUERIES,
                            at + stage<PARTS>::V);
    };
    struct weights f;
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
    bool changed = false;
    sv_pdl_wait(); /* no-op after the one above */
    /* The chunk of the first row is brought before it is known whether others come before it. */
    struct chunk c = chunk_at(gpu_args(a), w, seg.base / GDN_CHUNK * GDN_CHUNK);
    int32_t brought = c.first;
    fetch_weights(gpu_args(a), w, c, f);
    if (AHEAD)
        bring_chunk(w, c);
    const int32_t pos = state_pos(a.g, slot_of(a, w), seg, w.h);
    if (pos != c.first) {
        if (AHEAD && pos + GDN_CHUNK < c.first) { /* its copy would be overwritten */
            gpu_copy_wait<0>(0, 0);
            __syncthreads();
            brought = pos;
        }
        c = chunk_at(gpu_args(a), w, pos);
        fetch_weights(gpu_args(a), w, c, f);
        if (AHEAD)
            bring_chunk(w, c);
    }
    for (;;) {
        const int32_t next = c.first + GDN_CHUNK;
        if (!AHEAD) {
            __syncthreads(); /* the chunk before is done */
            bring_chunk(w, c);
        }
        struct chunk_shared &m = both[c.first / GDN_CHUNK % 2];
        put_weights(f, m);
        gpu_copy_wait<0>(0, 0);
        if (PARTS == 2)
            put_kept<WHOLE>(gpu_args(a), w, c, wave, gpu_shared_at(stage_of(c)));
        __syncthreads(); /* and all waves are done with the chunk before */
        if (next < w.seg.end) {
            const struct chunk then = chunk_at(gpu_args(a), w, next);
            fetch_weights(gpu_args(a), w, then, f);
            if (AHEAD && next > brought)
                bring_chunk(w, then);
        }
        do_chunk<PARTS, WHOLE>(gpu_args(a), w, c, m, stage_of(c), s, changed);
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
    /* Where thread blocks are few and segments long, what counts is the time of a chunk. */
    if (p->rows.n_rows > LONG * p->rows.n_segs && (int64_t)grid.x * grid.y <= cu->n_sms &&
        sv_gdn_long(cu, a))
        return;
    if (half)
        launch_scan(cu, whole ? scan_kernel<2, true> : scan_kernel<2, false>, grid, THREADS,
                    stage<2>::ALL, a);
    else
        launch_scan(cu, whole ? scan_kernel<3, true> : scan_kernel<3, false>, grid, THREADS,
                    stage<3>::ALL, a);
}
