/*
 * gdn_single.cu - the gated delta rule where each segment has one row: convolution, scan and norm
 * in one launch.
 *
 * Called through the table in device.cu. A thread block has a value head of a segment. Its state is
 * copied to shared memory while four warps compute the row's query, key, value and gates; kept u of
 * its chunk are in the registers of four others, a column each. The arithmetic is that of
 * gdn_row.cuh and gdn_scan.cuh, bit for bit: the row's key and query are two columns of one product
 * instead of one column each of two. Results are kept where no other thread block of the segment
 * reads. Where a state does not fit, three launches are used. Must not: let a row's bits differ
 * from those of the other kernels.
 */
#include "backend/gpu/gdn_whole.cuh"

enum {
    KEYS = STATE,                  /* place of the chunk's keys */
    ROW = KEYS + GDN_CHUNK * LINE, /* of the row's own key and query */
    MORE = ROW + 2 * LINE,         /* of struct single_shared */
    COLUMNS = 4 * 32               /* first thread with a column */
};

struct single_shared {
    float of[2][GDN_KEY]; /* the state times key and query; then the output in the first */
    float v[GDN_KEY];
    alignas(16) float kk[GDN_CHUNK], qk[GDN_CHUNK], weight[GDN_CHUNK]; /* by the chunk's rows */
    float decay, beta;
};

/* A lane's two pairs of channels of one head: 2 lane, 2 lane + 1, 2 lane + 64, 2 lane + 65. */
struct two_taps {
    float2 w[2][SV_GDN_TAPS];
    float older[2][OLDER][2];
};
[[maybe_unused]] static __device__ __forceinline__ void
take_taps(const struct conv_args &a, const struct group &g, const struct gdn_slot &slot,
          int32_t channel, struct two_taps &t)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int i = 0; i < SV_GDN_TAPS; i++)
            t.w[m][i] = load2(a.conv + (int64_t)i * a.g.channels + channel + 64 * m);
#pragma unroll
        for (int back = 1; back <= OLDER; back++)
            ask_older(a, slot, g.pos - back, channel + 64 * m, t.older[m][OLDER - back]);
    }
}
/* keeps: this thread block keeps the row, in ring_row. */
[[maybe_unused]] static __device__ __forceinline__ void
convolve_two(const struct conv_args &a, const struct group &g, const struct gdn_slot &slot,
             int32_t channel, bool keeps, int32_t ring_row, const struct two_taps &t,
             const uint32_t (&in)[2], float2 (&y)[2])
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
        const float2 *const w = t.w[m];
        const float2 o[OLDER] = {older_of(a, g.pos - 3, t.older[m][0]),
                                 older_of(a, g.pos - 2, t.older[m][1]),
                                 older_of(a, g.pos - 1, t.older[m][2])};
        const float2 x = load2((const __nv_bfloat16 *)&in[m]);
        if (keeps)
            put_conv_row(a, slot, ring_row, channel + 64 * m, in[m]);
        y[m].x = conv_silu(w[0].x, w[1].x, w[2].x, w[3].x, o[0].x, o[1].x, o[2].x, x.x);
        y[m].y = conv_silu(w[0].y, w[1].y, w[2].y, w[3].y, o[0].y, o[1].y, o[2].y, x.y);
    }
}

/* The row's key (line 0) or query (line 1) in parts; the key, in whole steps, among its chunk's as
 * well, and, where `kept` is given, to the slot's block. */
[[maybe_unused]] static __device__ __forceinline__ void put_parts(const struct group &g,
                                                                  uint32_t room, int line,
                                                                  const float2 (&y)[2], float inv,
                                                                  uint32_t *kept)
{
    const int32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        uint32_t part[2];
        float2 x = make_float2(__fmul_rn(y[m].x, inv), __fmul_rn(y[m].y, inv));
        if (line == 0)
            x = make_float2(gdn_to_steps(x.x), gdn_to_steps(x.y));
        gdn_cut<2>(part, x.x, x.y);
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint32_t chunk = p * GDN_KEY / 8 + lane / 4 + 8 * m, at = lane % 4 * 4;
            gpu_store4(room + ROW + gpu_place<LINE>(line, chunk) + at, part[p]);
            if (line == 0)
                gpu_store4(room + KEYS + gpu_place<LINE>(g.line, chunk) + at, part[p]);
        }
        if (kept)
            kept[lane + 32 * m] = gdn_steps_of(part[0], part[1]);
    }
}

/* Products of the row's key and query with eight keys of its chunk. */
[[maybe_unused]] static __device__ __forceinline__ void dots_of_row(uint32_t room, int eight,
                                                                    struct single_shared &m)
{
    float sum[2][4] = {}; /* of even and odd tiles */
    const int32_t lane = gpu_lane();
#pragma unroll
    for (int t = 0; t < TILES; t += 2) {
        uint32_t k[2][4];
#pragma unroll
        for (int p = 0; p < 2; p++)
            gpu_load_b8(k[p], room + KEYS +
                                  gpu_place<LINE>(eight * 8 + lane % 8,
                                                  p * GDN_KEY / 8 + 2 * t + gpu_b8_chunk()));
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t x[2][4];
#pragma unroll
            for (int p = 0; p < 2; p++)
                gpu_load_a(
                    x[p], room + ROW +
                              gpu_place<LINE>(lane % 2, p * GDN_KEY / 8 + 2 * (t + s) + lane / 16));
            gpu_mma8(sum[s], x[1], k[1], s);
            gpu_mma8(sum[s], x[1], k[0], s);
            gpu_mma8(sum[s], x[0], k[1], s);
            gpu_mma8(sum[s], x[0], k[0], s);
        }
    }
    const int32_t row = gpu_run_row(lane);
    if (row < 2)
#pragma unroll
        for (int e = 0; e < 2; e++)
            (row ? m.qk : m.kk)[eight * 8 + gpu_run_col(lane) + e] =
                __fadd_rn(sum[0][e], sum[1][e]);
}

/* The wave's columns of the state times the row's key and query. */
template <int LANES>
static __device__ __forceinline__ void products_of_row(uint8_t *room, struct single_shared &m)
{
    float sum[2][4] = {}; /* of the first and the last tiles */
    const int32_t lane = gpu_lane();
#pragma unroll
    for (int t = 0; t < TILES / 2; t += 2) {
        uint32_t k[2][2][4];
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int p = 0; p < 2; p++)
                gpu_load_b8(k[half][p], gpu_shared_at(room) + ROW +
                                            gpu_place<LINE>(lane % 2, p * OCTETS + half * TILES +
                                                                          2 * t + gpu_b8_chunk()));
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int half = n % 2, odd = n / 2;
            float s[SUMS];
            uint32_t part[2][128 / LANES];
            move_tile<false>(room, half * TILES / 2 + t + odd, s);
#pragma unroll
            for (int e = 0; e < 128 / LANES; e++) {
                uint32_t two[2];
                gdn_cut<2>(two, s[2 * e], s[2 * e + 1]);
                part[0][e] = two[0], part[1][e] = two[1];
            }
            gpu_mma8(sum[half], part[0], k[half][0], odd);
            gpu_mma8(sum[half], part[1], k[half][0], odd);
            gpu_mma8(sum[half], part[0], k[half][1], odd);
        }
    }
    if (gpu_run_col(lane) == 0)
#pragma unroll
        for (int r = 0; r < 2; r++) /* of its columns */
#pragma unroll
            for (int which = 0; which < 2; which++)
                m.of[which][col_of_lane() + r] =
                    __fadd_rn(sum[0][2 * r + which], sum[1][2 * r + which]);
}

/* One column of the row: u, which is kept, and the output. u: of the chunk's rows before it. */
[[maybe_unused]] static __device__ __forceinline__ float
finish_column(int32_t col, int32_t line, const float (&u)[GDN_CHUNK - 1], float *kept,
              const struct single_shared &m)
{
    float sum = 0, out = __fmul_rn(m.decay, m.of[1][col]);
#pragma unroll
    for (int four = 0; four < GDN_CHUNK; four += 4) {
        const float4 w = *(const float4 *)&m.weight[four], k = *(const float4 *)&m.kk[four],
                     q = *(const float4 *)&m.qk[four];
        const float kk[] = {__fmul_rn(w.x, k.x), __fmul_rn(w.y, k.y), __fmul_rn(w.z, k.z),
                            __fmul_rn(w.w, k.w)},
                    qk[] = {__fmul_rn(w.x, q.x), __fmul_rn(w.y, q.y), __fmul_rn(w.z, q.z),
                            __fmul_rn(w.w, q.w)};
#pragma unroll
        for (int n = 0; n < 4 && four + n < GDN_CHUNK - 1; n++) {
            const float of_u = __fmaf_rn(kk[n], u[four + n], sum),
                        of_out = __fmaf_rn(qk[n], u[four + n], out);
            sum = four + n < line ? of_u : sum; /* no branches */
            out = four + n < line ? of_out : out;
        }
    }
    const float own =
        __fmul_rn(m.beta, __fsub_rn(__fmaf_rn(-m.decay, m.of[0][col], m.v[col]), sum));
    *kept = own;
    return __fmaf_rn(m.qk[line], own, out);
}

/* LANES: of a wave; there is one for 32 alone. */
template <int LANES>
static __global__ void __launch_bounds__(WHOLE_THREADS, 3)
    single_kernel(const __grid_constant__ struct whole_args a)
{
    GPU_SHARED(room);
    struct single_shared &m = *(struct single_shared *)(room + MORE);
    const struct gdn_args &g = a.c.g;
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, h = (int32_t)blockIdx.x,
                  nk = g.shape.n_k_heads, nv = g.shape.n_v_heads, kh = h / g.each,
                  col = (int32_t)threadIdx.x - COLUMNS, ring = g.block.ring;
    const bool first = h == kh * g.each; /* of its key head */
    sv_pdl_launch();
    if (!g.early)
        sv_pdl_wait();
    const struct gdn_seg seg = gdn_seg_at(g, (int32_t)blockIdx.y);
    if (seg.n == 0) {
        sv_pdl_wait();
        return;
    }
    const struct gdn_slot slot = gdn_slot_at(g, seg.slot);
    const struct group now = {seg, seg.row0, 1, seg.base, seg.base % GDN_CHUNK};
    const int32_t chunk = now.pos - now.line, row0 = chunk % ring, k_ring = g.block.k_ring,
                  k_row0 = chunk % k_ring;
    const int32_t i = threadIdx.x / OCTETS, octet = threadIdx.x % OCTETS;
    uint4 kept = make_uint4(0, 0, 0, 0);
    if (i < now.line)
        kept = *gdn_kept_keys(g, slot, kh, gdn_around(k_row0 + i, k_ring), octet);
    int32_t pos = state_pos(g, slot, seg, h);

    /* Queries, keys, values; gates; kept u. */
    const int32_t channel = 2 * lane + GDN_KEY * (warp == 0   ? kh
                                                  : warp == 1 ? nk + kh
                                                              : 2 * nk + h);
    struct two_taps taps;
    float gate = 0, u[GDN_CHUNK - 1];
    float2 weight[2];
    if (warp < 3)
        take_taps(a.c, now, slot, channel, taps);
    else if (warp == 3)
        gate = lane < now.line ? slot.g[(int64_t)h * ring + gdn_around(row0 + lane, ring)] : 0;
    else if (col >= 0)
#pragma unroll
        for (int j = 0; j < GDN_CHUNK - 1; j++)
            u[j] = j < now.line
                       ? slot.u[((int64_t)h * ring + gdn_around(row0 + j, ring)) * GDN_KEY + col]
                       : 0;
    float dt_bias = 0, decay = 0;
    if (warp == 3)
        dt_bias = a.c.dt_bias[h], decay = a.c.decay[h];
    /* Of the row itself: two words of x; of z, or of a and b. */
    uint32_t in[2] = {}, more[2] = {};
    const auto take_row = [&] {
        const int64_t at = now.row0 * a.c.ldx;
        if (warp < 3)
#pragma unroll
            for (int n = 0; n < 2; n++)
                in[n] = *(const uint32_t *)((const __nv_bfloat16 *)a.c.x + at + channel + 64 * n);
        if (warp == 0)
#pragma unroll
            for (int n = 0; n < 2; n++)
                more[n] = *(const uint32_t *)(a.z + now.row0 * a.n.ldz + (int64_t)h * GDN_KEY +
                                              2 * lane + 64 * n);
        if (warp == 3) {
            more[0] = ((const uint16_t *)a.c.a)[at + h];
            more[1] = ((const uint16_t *)a.c.b)[at + h];
        }
    };
    /* What is asked for behind the state comes behind it. */
    if (!g.early)
        take_row();
    if (warp == 0)
#pragma unroll
        for (int n = 0; n < 2; n++)
            weight[n] = load2(a.n.weight + 2 * lane + 64 * n);
    bring_state(slot, h, gpu_shared_at(room));
    sv_pdl_wait(); /* no-op after the one above */
    if (g.early)
        take_row();
    float G = 0;
    if (warp < 3) {
        float2 y[2];
        convolve_two(a.c, now, slot, channel, warp == 2 || first, now.pos % g.block.conv_ring, taps,
                     in, y);
        if (warp == 2) {
            *(float2 *)&m.v[2 * lane] = y[0];
            *(float2 *)&m.v[2 * lane + 64] = y[1];
        } else {
            const float inv = to_unit(sum_of_squares(y), warp == 0 ? a.c.q_length : 1.0f);
            put_parts(now, gpu_shared_at(room), warp == 0, y, inv,
                      warp == 1 && first
                          ? (uint32_t *)gdn_kept_keys(g, slot, kh,
                                                      gdn_around(k_row0 + now.line, k_ring), 0)
                          : NULL);
        }
    } else if (warp == 3) {
        const float own = log_decay(__uint_as_float(more[0] << 16), dt_bias, decay),
                    before = __shfl_sync(0xffffffffu, gate, max(now.line - 1, 0));
        G = now.line ? __fadd_rn(before, own) : own;
        if (lane < GDN_CHUNK)
            m.weight[lane] = expf(__fsub_rn(G, gate));
        if (lane == 0) {
            m.decay = expf(G);
            m.beta = sv_sigmoid(__uint_as_float(more[1] << 16));
        }
    }
    if (i < now.line)
        put_keys(gpu_shared_at(room) + KEYS, kept);
    __syncthreads(); /* keys are there */
    if (warp < 2)
        dots_of_row(gpu_shared_at(room), warp, m);
    gpu_copy_wait<0>(0, 0);
    __syncthreads(); /* and the state */
    for (; pos + GDN_CHUNK <= now.pos; pos += GDN_CHUNK) {
        put_keys(gpu_shared_at(room) + KEYS,
                 *gdn_kept_keys(g, slot, kh, (pos + i) % k_ring, octet));
        struct full_chunk full;
        take_full(g, slot, h, pos, full);
        __syncthreads();
        fold_full(slot, room, gpu_shared_at(room) + KEYS, h, full);
        __syncthreads();
    }
    products_of_row<LANES>(room, m);
    __syncthreads();
    if (col >= 0) {
        const float out = finish_column(
            col, now.line, u,
            slot.u + ((int64_t)h * ring + gdn_around(row0 + now.line, ring)) * GDN_KEY + col, m);
        a.out[((int64_t)now.row0 * nv + h) * GDN_KEY + col] = m.of[0][col] = out;
    } else if (warp == 3 && lane == 0) {
        slot.g[(int64_t)h * ring + gdn_around(row0 + now.line, ring)] = G;
        slot.pos[h] = pos;
    }
    __syncthreads();
    if (warp > 0)
        return;
    float2 x[2];
#pragma unroll
    for (int n = 0; n < 2; n++)
        x[n] = *(const float2 *)&m.of[0][2 * lane + 64 * n];
    const float inv = to_norm(a.n, sum_of_squares(x));
    __nv_bfloat16 *const to = a.normed + ((int64_t)now.row0 * nv + h) * GDN_KEY + 2 * lane;
#pragma unroll
    for (int n = 0; n < 2; n++)
        put_norm(to + 64 * n, x[n], load2((const __nv_bfloat16 *)&more[n]), weight[n], inv);
}

bool sv_gdn_single(struct sv_cuda *cu, const struct sv_p_gdn *p)
{
    if constexpr (GPU_WAVE == 32)
        return launch_whole(cu, "gdn_single", single_kernel<GPU_WAVE>,
                            MORE + sizeof(struct single_shared), 0, p);
    return false;
}
