/*
 * attention_plain.cu - paged attention without matrix instructions: f32 caches and head sizes that
 * have no kernel of their own (up to 256).
 *
 * Launched by attention.cu. One warp owns one (row, head) and walks all keys the row sees, 32 at a
 * time from absolute multiples: each lane one score, then each lane its share of the output.
 * Nothing is split, so that a row's bits depend on its own sequence only. Must not: be fast at the
 * price of that.
 */
#include "backend/gpu/attention_core.cuh"

enum { PLAIN_WARPS = 4, PLAIN_MAX_HEAD_DIM = 256 };

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

template <typename T>
__global__ void __launch_bounds__(PLAIN_WARPS * 32) attn_plain(struct sv_attn_args a)
{
    __shared__ float q_all[PLAIN_WARPS][PLAIN_MAX_HEAD_DIM];
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, hd = a.p.kv.head_dim;
    const int64_t unit = (int64_t)blockIdx.x * PLAIN_WARPS + warp;
    const int32_t row = (int32_t)(unit / a.p.n_heads), head = (int32_t)(unit % a.p.n_heads);

    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t s = row < a.p.rows.n_rows ? a.p.rows.row_seg[row] : -1;
    if (s < 0)
        return;
    const struct attn_seg g = attn_seg_at(a.p, s);
    if (g.n == 0)
        return;
    const int32_t at_pos = a.p.rows.row_pos[row], lo = attn_lo(a.p, at_pos),
                  hi = attn_hi(a.p, at_pos, g.end);
    const int64_t q_stride = a.p.q_stride ? a.p.q_stride : hd,
                  head_at = (int64_t)(head / a.group) * a.p.kv.page_size * hd;
    float *const q = q_all[warp];
    for (int32_t d = lane; d < hd; d += 32)
        q[d] = sv_load((const T *)a.p.q + row * a.p.ldq + head * q_stride + d);
    __syncwarp();

    float o[PLAIN_MAX_HEAD_DIM / 32] = {}, m = attn_neg_inf(), l = 0;
    for (int32_t base = lo / 32 * 32; base < hi; base += 32) {
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
    const float inverse = attn_inverse(a, head, m, l);
    T *out = (T *)a.p.out + row * a.p.ldo + (int64_t)head * hd;
#pragma unroll
    for (int i = 0; i < PLAIN_MAX_HEAD_DIM / 32; i++)
        if (lane + 32 * i < hd)
            sv_store(out + lane + 32 * i, attn_output(o[i], inverse));
}

void sv_cuda_attn_plain(struct sv_cuda *cu, const struct sv_attn_args *a)
{
    const int64_t units = (int64_t)a->p.rows.n_rows * a->p.n_heads;
    const dim3 grid((unsigned)((units + PLAIN_WARPS - 1) / PLAIN_WARPS));
    SV_REQUIRE(a->p.kv.head_dim % 8 == 0 && a->p.kv.head_dim <= PLAIN_MAX_HEAD_DIM);
    sv_cuda_launch_in_pass(cu, "attention (plain)",
                           a->p.kv.dtype == SV_F32 ? attn_plain<float> : attn_plain<__nv_bfloat16>,
                           grid, dim3(PLAIN_WARPS * 32), 0, *a);
}
