/*
 * gdn_whole.cuh - the parts of kernels that copy a value head's whole state to shared memory:
 * convolution, scan and norm of a segment's few rows in one launch.
 *
 * Included by gdn_single.cu and gdn_few.cu; for waves of 32, on chips with enough of it. A wave
 * has 16 columns of the state and all of the keys' numbers, as in gdn_scan.cuh. Must not: write
 * what another thread block of the segment reads.
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
                                void (*kernel)(struct whole_args), size_t smem, size_t fixed,
                                const struct sv_p_gdn *p)
{
    const struct sv_gdn_shape &s = p->conv.shape;
    const struct whole_args a = {conv_args_of(cu, &p->conv), norm_args_of(cu, &p->norm),
                                 p->scan.out, (const __nv_bfloat16 *)p->norm.z,
                                 (__nv_bfloat16 *)p->norm.out};
    if (cu->act != SV_BF16 || s.k_dim != GDN_KEY || s.v_dim != GDN_KEY ||
        cu->smem_block < smem + fixed)
        return false;
    SV_REQUIRE(p->conv.ldx % 2 == 0 && p->norm.ldz % 2 == 0);
    if (sv_cuda_check(cu,
                      cudaFuncSetAttribute((const void *)kernel,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
                      what))
        sv_cuda_launch_in_pass(cu, what, kernel,
                               dim3((unsigned)s.n_v_heads, (unsigned)p->conv.rows.n_segs),
                               WHOLE_THREADS, smem, a);
    return true;
}

/* Two channels of the row at pos, before a segment's first one, as they are kept: a word of bf16,
 * or two. What is asked for is not touched before it is needed: each touch waits for memory. */
static __device__ __forceinline__ void ask_older(const struct conv_args &a,
                                                 const struct gdn_slot &slot, int32_t pos,
                                                 int32_t channel, float (&x)[2])
{
    const int64_t at = (int64_t)(max(pos, 0) % a.g.block.conv_ring) * a.g.channels + channel;
    if (a.kept_bf16) {
        x[0] = *(const float *)((const __nv_bfloat16 *)slot.conv + at);
    } else {
        const float2 two = load2((const float *)slot.conv + at);
        x[0] = two.x, x[1] = two.y;
    }
}
static __device__ __forceinline__ float2 older_of(const struct conv_args &a, int32_t pos,
                                                  const float (&x)[2])
{
    return pos < 0       ? make_float2(0, 0)
           : a.kept_bf16 ? load2((const __nv_bfloat16 *)&x[0])
                         : make_float2(x[0], x[1]);
}

/* On its way to the start of `room`. Copies and loads of a multiprocessor come in the order in
 * which they are asked for. */
static __device__ __forceinline__ void bring_state(const struct gdn_slot &slot, int32_t h,
                                                   uint32_t room)
{
#pragma unroll
    for (int32_t d = 0; d < GDN_KEY; d += WHOLE_WAVES)
        gpu_copy_rows<STATE_LINE, false>(room, d + threadIdx.x / 32, [&](uint32_t i, uint32_t at) {
            return gpu_source{slot.state + ((int64_t)h * GDN_KEY + (int32_t)i) * GDN_KEY + at * 4,
                              true};
        });
    gpu_copy_commit();
}

/* Eight kept keys of each thread, of line threadIdx.x / OCTETS, to a chunk's keys. */
static __device__ __forceinline__ void put_keys(uint32_t keys, uint4 kept)
{
    uint4 part[2];
    gdn_parts_of(kept, part[0], part[1]);
#pragma unroll
    for (int p = 0; p < 2; p++)
        gpu_store16(keys + gpu_place<LINE>(threadIdx.x / OCTETS, p * OCTETS + threadIdx.x % OCTETS),
                    part[p]);
}

/* A lane's numbers of tile t of its wave's columns in shared memory. */
template <bool STORE>
static __device__ __forceinline__ void move_tile(uint8_t *room, int t, float (&s)[SUMS])
{
    const int32_t col = col_of_lane();
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
                                                 int32_t first, struct full_chunk &c)
{
    const int32_t ring = g.block.ring, col = col_of_lane(), row0 = first % ring;
    const float *const gs = slot.g + (int64_t)h * ring;
    c.decay = gs[gdn_around(row0 + GDN_CHUNK - 1, ring)];
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        const int32_t row = gdn_around(row0 + line_of(l), ring);
        get_cols(slot.u + ((int64_t)h * ring + row) * GDN_KEY + col, c.u, l);
        c.to_end[l] = gs[row];
    }
}
/* Folds it into the state, here and in the slot's block. */
static __device__ __forceinline__ void fold_full(const struct gdn_slot &slot, uint8_t *room,
                                                 uint32_t keys, int32_t h,
                                                 const struct full_chunk &c)
{
    float *const state = slot.state + (int64_t)h * GDN_KEY * GDN_KEY + col_of_lane();
    const float decay = expf(c.decay);
    uint32_t part[2][PAIRS];
    cut_u<2>(part, c.u, [&](int l) { return expf(__fsub_rn(c.decay, c.to_end[l])); });
#pragma unroll 2
    for (int t = 0; t < TILES; t++) {
        float s[SUMS];
        move_tile<false>(room, t, s);
        fold_tile<2>(s, part, keys, t, decay);
        move_tile<true>(room, t, s);
#pragma unroll
        for (int l = 0; l < LINES; l++)
            put_cols(state + (t * 16 + line_of(l)) * GDN_KEY, s, l);
    }
}

#endif
