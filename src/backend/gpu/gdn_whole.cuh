/*
 * gdn_whole.cuh - the parts of kernels that copy a value head's whole state to shared memory:
 * convolution, scan and norm of a segment's few rows in one launch.
 *
 * Included by gdn_single.cu and gdn_few.cu; for waves of 32, on chips with enough of it. A wave
 * has 16 columns of the state, as in gdn_scan.cuh, and all or half of the keys' numbers. Must not:
 * write what another thread block of the segment reads.
 */
#ifndef SV_GPU_GDN_WHOLE_CUH
#define SV_GPU_GDN_WHOLE_CUH

#include "backend/gpu/gdn_row.cuh"
#include "backend/gpu/gdn_scan.cuh"

enum {
    WHOLE_WAVES = GDN_KEY / 16,
    WHOLE_THREADS = WHOLE_WAVES * 32,
    LINE = tiles<2>::LINE, /* bytes of a key's two parts */
    STATE_LINE = GDN_KEY * 4,
    STATE = GDN_KEY * STATE_LINE, /* and what lies behind it */
    OCTETS = GDN_KEY / 8
};

struct whole_args {
    struct conv_args c; /* first: gpu.h's parameters of a kernel */
    struct gated_norm_args n;
    float *out;
    const __nv_bfloat16 *z;
    __nv_bfloat16 *normed;
};

/* Whether there is a launch for it: of single rows (gdn_single.cu). */
bool sv_gdn_single(struct sv_cuda *cu, const struct sv_p_gdn *p);

/* smem: dynamic shared memory; fixed: the rest of a thread block's.
 * Returns whether it fits. */
static inline bool launch_whole(struct sv_cuda *cu, const char *what,
                                void (*kernel)(struct whole_args), int waves, size_t smem,
                                size_t fixed, const struct sv_p_gdn *p)
{
    const struct sv_gdn_shape &s = p->conv.shape;
    const struct whole_args a = {conv_args_of(cu, &p->conv), norm_args_of(cu, &p->norm),
                                 p->scan.out, (const __nv_bfloat16 *)p->norm.z,
                                 (__nv_bfloat16 *)p->norm.out};
    if (cu->act != SV_BF16 || s.conv_dtype != SV_BF16 || s.k_dim != GDN_KEY || s.v_dim != GDN_KEY ||
        cu->smem_block < smem + fixed)
        return false;
    SV_REQUIRE(p->conv.ldx % 2 == 0 && p->norm.ldz % 2 == 0);
    if (sv_cuda_check(cu,
                      cudaFuncSetAttribute((const void *)kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
                      what))
        sv_cuda_launch_in_pass(cu, what, kernel,
                               dim3((unsigned)s.n_v_heads, (unsigned)p->conv.rows.n_segs),
                               (unsigned)waves * 32, smem, a);
    return true;
}

/* Two channels of a row of the ring of rows before the convolution. */
static __device__ __forceinline__ uint32_t *
conv_row(const struct conv_args &a, const struct gdn_slot &slot, int32_t row, int32_t channel)
{
    return (uint32_t *)((__nv_bfloat16 *)slot.conv + (int64_t)row * a.g.channels + channel);
}
/* The row so many before that in row `now` of the ring, whatever lies there. */
static __device__ __forceinline__ uint32_t older_of(const struct conv_args &a,
                                                    const struct gdn_slot &slot, int32_t now,
                                                    int32_t back, int32_t channel)
{
    return *conv_row(a, slot, now < back ? now - back + a.g.block.conv_ring : now - back, channel);
}

/* On its way to the start of `room`. Copies and loads of a multiprocessor come in the order in
 * which they are asked for. */
template <int N_WAVES>
static __device__ __forceinline__ void bring_state(const struct gdn_slot &slot, int32_t h,
                                                   uint32_t room)
{
#pragma unroll
    for (int32_t d = 0; d < GDN_KEY; d += N_WAVES)
        gpu_copy_rows<STATE_LINE, false>(room, d + threadIdx.x / 32, [&](uint32_t i, uint32_t at) {
            return gpu_source{slot.state + ((int64_t)h * GDN_KEY + (int32_t)i) * GDN_KEY + at * 4,
                              true};
        });
    gpu_copy_commit();
}

/* Eight kept keys to line i of a chunk's keys. */
static __device__ __forceinline__ void put_keys(uint32_t keys, int32_t i, int32_t octet, uint4 kept)
{
    uint4 part[2];
    gdn_parts_of(kept, part[0], part[1]);
#pragma unroll
    for (int p = 0; p < 2; p++)
        gpu_store16(keys + gpu_place<LINE>(i, p * OCTETS + octet), part[p]);
}

/* A lane's numbers of tile t of its wave's columns in shared memory. */
template <bool STORE>
static __device__ __forceinline__ void move_tile(uint8_t *room, int32_t col, int t,
                                                 float (&s)[SUMS])
{
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int32_t d = t * 16 + line_of(l);
        float *const at = (float *)(room + gpu_place<STATE_LINE>(d, col / 4)) + col % 4;
        if (STORE)
            put_cols(at, s, l);
        else
            get_cols(at, s, l);
    }
}

/* Of a chunk that is full by now, from position `first` on: what its rows add to the state. */
struct full_chunk {
    float u[SUMS], to_end[LINES], decay;
};
static __device__ __forceinline__ void take_full(const struct gdn_args &g,
                                                 const struct gdn_slot &slot, int32_t h,
                                                 int32_t col, int32_t first, struct full_chunk &c)
{
    const int32_t ring = g.block.ring, row0 = first % ring;
    const float *const gs = slot.g + (int64_t)h * ring;
    c.decay = gs[gdn_around(row0 + GDN_CHUNK - 1, ring)];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int32_t row = gdn_around(row0 + line_of(l), ring);
        get_cols(slot.u + ((int64_t)h * ring + row) * GDN_KEY + col, c.u, l);
        c.to_end[l] = gs[row];
    }
}
/* Folds it into N_TILES of the state's tiles, here and in the slot's block. */
template <int N_TILES>
static __device__ __forceinline__ void fold_full(const struct gdn_slot &slot, uint8_t *room,
                                                 uint32_t keys, int32_t h, int32_t col, int first,
                                                 const struct full_chunk &c)
{
    float *const state = slot.state + (int64_t)h * GDN_KEY * GDN_KEY + col;
    const float decay = expf(c.decay);
    uint32_t part[2][PAIRS];
    cut_u<2>(part, c.u, [&](int l) { return expf(__fsub_rn(c.decay, c.to_end[l])); });
#pragma unroll 1
    for (int t = first; t < first + N_TILES; t++) {
        float s[SUMS];
        move_tile<false>(room, col, t, s);
        fold_tile<2>(s, part, keys, t, decay);
        move_tile<true>(room, col, t, s);
#pragma unroll
        for (int l = 0; l < LINES; l++)
            put_cols(state + (t * 16 + line_of(l)) * GDN_KEY, s, l);
    }
}

#endif
