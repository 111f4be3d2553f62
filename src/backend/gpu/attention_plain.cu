/*
 * attention_plain.cu - paged attention without matrix instructions: f32 caches, head sizes that
 * have no kernel of their own (up to 256), and heads with gates between them.
 *
 * Launched by attention.cu. One thread block owns one (row, head). Keys are taken in chunks at
 * absolute multiples, a warp each; a chunk in tiles of 32, each lane one score, then each lane its
 * share of the output. Chunks are merged in ascending order, so that a row's bits depend on its own
 * sequence only. Must not: be fast at the price of that.
 */
#include "backend/gpu/attention_core.cuh"

enum { PLAIN_WARPS = 8, PLAIN_CHUNK = SV_ATTN_CHUNK, PLAIN_MAX_HEAD_DIM = 256 };

/* What a warp has of its chunk. */
struct plain_part {
    float o[PLAIN_MAX_HEAD_DIM], m, l;
};

/* The score of one key, in log2 units. */
template <typename T>
static __device__ __forceinline__ float score(const struct sv_attn_args &a, const float *q,
                                              const T *k)
{
    float sum = 0, x[8];
    for (int d = 0; d < a.p.kv.head_dim; d += 8) {
        sv_load8(x, k + d);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = __fmaf_rn(q[d + i], x[i], sum);
    }
    if (a.p.softcap > 0)
        return attn_softcap(sum, 2 * ATTN_LOG2E * a.p.scale / a.p.softcap,
                            a.p.softcap * ATTN_LOG2E);
    return __fmul_rn(sum, a.scale_log2);
}

/* Keys [base, end) of the row, of which it sees those in [lo, hi). */
template <typename T>
static __device__ __forceinline__ void
walk(const struct sv_attn_args &a, const float *q, const struct attn_seg &g, int64_t head_at,
     int32_t base, int32_t end, int32_t lo, int32_t hi, struct plain_part *to)
{
    const int32_t lane = threadIdx.x % 32, hd = a.p.kv.head_dim;
    float o[PLAIN_MAX_HEAD_DIM / 32] = {}, m = attn_neg_inf(), l = 0;
    for (; base < end; base += 32) {
        const int32_t pos = base + lane;
        float x = attn_neg_inf();
        int64_t at = -1;
        if (pos >= lo && pos < hi) {
            at = sv_kv_at(a.p.kv, g.slot, pos);
            if (at >= 0)
                x = score(a, q, (const T *)a.p.kv.k + at + head_at);
            else
                sv_fault_set(a.fault, SV_CUDA_FAULT_READ_PAGE, g.slot, pos, 0);
        }
        const float most = fmaxf(m, sv_warp_max(x)), ref = most == attn_neg_inf() ? 0.0f : most;
        const float alpha = gpu_exp2(m - ref), w = gpu_exp2(x - ref);
        m = most;
        l = __fmaf_rn(l, alpha, sv_warp_sum(w));
#pragma unroll
        for (int i = 0; i < PLAIN_MAX_HEAD_DIM / 32; i++)
            o[i] = __fmul_rn(o[i], alpha);
        for (int k = 0; k < 32; k++) {
            const float weight = __shfl_sync(0xffffffffu, w, k);
            const int64_t v_at = __shfl_sync(0xffffffffu, at, k);
            if (v_at < 0)
                continue;
            const T *v = (const T *)a.p.kv.v + v_at + head_at;
#pragma unroll
            for (int i = 0; i < PLAIN_MAX_HEAD_DIM / 32; i++)
                if (lane + 32 * i < hd)
                    o[i] = __fmaf_rn(weight, sv_load(v + lane + 32 * i), o[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < PLAIN_MAX_HEAD_DIM / 32; i++)
        to->o[lane + 32 * i] = o[i];
    to->m = m;
    to->l = l;
}

template <typename T>
__global__ void __launch_bounds__(PLAIN_WARPS * 32, 2)
    attn_plain(const __grid_constant__ struct sv_attn_args a)
{
    __shared__ float q[PLAIN_MAX_HEAD_DIM];
    __shared__ struct plain_part part[PLAIN_WARPS];
    const int32_t t = threadIdx.x, warp = t / 32, hd = a.p.kv.head_dim;
    const int32_t row = (int32_t)blockIdx.x / a.p.n_heads, head = (int32_t)blockIdx.x % a.p.n_heads;

    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t s = a.p.rows.row_seg[row];
    if (s < 0)
        return;
    const struct attn_seg g = attn_seg_at(a.p, s);
    if (g.n == 0)
        return;
    const int32_t at_pos = a.p.rows.row_pos[row], lo = attn_lo(a.p, at_pos),
                  hi = attn_hi(a.p, at_pos, g.end);
    const int64_t q_stride = a.p.q_stride ? a.p.q_stride : hd,
                  head_at = (int64_t)(head / a.group) * a.p.kv.page_size * hd;
    if (t < hd)
        q[t] = sv_load((const T *)a.p.q + row * a.p.ldq + head * q_stride + t);
    float o = 0, m = attn_neg_inf(), l = 0; /* o: of number t of the head */
    for (int32_t first = lo / PLAIN_CHUNK * PLAIN_CHUNK; first < hi;
         first += PLAIN_WARPS * PLAIN_CHUNK) {
        const int32_t base = first + warp * PLAIN_CHUNK, end = min(base + PLAIN_CHUNK, hi);
        __syncthreads(); /* q is there; the parts before are merged */
        if (base < hi)
            walk<T>(a, q, g, head_at, base, end, lo, hi, &part[warp]);
        __syncthreads();
        for (int32_t w = 0; w < PLAIN_WARPS && first + w * PLAIN_CHUNK < hi; w++) {
            const struct attn_factors f = attn_merge_factors(m, part[w].m);
            m = f.m;
            l = attn_merge(l, part[w].l, f);
            o = attn_merge(o, part[w].o[t], f);
        }
    }
    if (t < hd)
        sv_store((T *)a.p.out + row * a.p.ldo + (int64_t)head * hd + t,
                 attn_output(o, attn_inverse(a, head, m, l)));
}

void sv_cuda_attn_plain(struct sv_cuda *cu, const struct sv_attn_args *a)
{
    static_assert(PLAIN_MAX_HEAD_DIM == PLAIN_WARPS * 32, "a thread for each number of a head");
    SV_REQUIRE(a->p.kv.head_dim % 8 == 0 && a->p.kv.head_dim <= PLAIN_MAX_HEAD_DIM);
    sv_cuda_launch_in_pass(cu, "attention (plain)",
                           a->p.kv.dtype == SV_F32 ? attn_plain<float> : attn_plain<__nv_bfloat16>,
                           dim3((unsigned)(a->p.rows.n_rows * a->p.n_heads)),
                           dim3(PLAIN_WARPS * 32), 0, *a);
}
