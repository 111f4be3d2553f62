/*
 * attention_plain.cu - paged attention without matrix instructions: f32 caches, head sizes that
 * have no kernel of their own (up to 256), heads with gates between them, and latents (up to 576),
 * whose value is the first part of the key.
 *
 * Launched by attention.cu. One thread block owns one (row, head). Keys are taken in chunks at
 * absolute multiples, a warp each; a chunk in tiles of 32, each lane one score, then each lane its
 * share of the output. Chunks are merged in ascending order, so that a row's bits depend on its own
 * sequence only. Not optimised.
 */
#include "backend/gpu/attention_core.cuh"
#include "backend/gpu/kv_f8.cuh"

enum { PLAIN_WARPS = 8, PLAIN_THREADS = 32 * PLAIN_WARPS, PLAIN_CHUNK = SV_ATTN_CHUNK };

/* What a warp has of its chunk; EACH: numbers of a head for each of the block's threads. */
template <int EACH> struct plain_part {
    float o[EACH * PLAIN_THREADS], m, l;
};

/* Numbers of a value. */
static __device__ __forceinline__ int32_t v_dim(const struct sv_attn_args &a)
{
    return a.p.v_dim ? a.p.v_dim : a.p.kv.head_dim;
}

/* A stored number as kernels with activations of T take it. */
static __device__ __forceinline__ float taken(const float *, float x)
{
    return x;
}
static __device__ __forceinline__ float taken(const __nv_bfloat16 *, float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* What a row is: of T, codes of a key or value, or codes of a latent. */
enum plain_kind { PLAIN_ROWS, PLAIN_F8, PLAIN_LATENT_F8 };

/* Numbers d to d + 7 of a row: of T, or of its codes with this scale. */
template <typename T, int KIND>
static __device__ __forceinline__ void row8(float x[8], const void *row, int32_t d, float scale,
                                            int32_t latent)
{
    const uint8_t *const bytes = (const uint8_t *)row;
    if constexpr (KIND == PLAIN_ROWS) {
        sv_load8(x, (const T *)row + d);
        return;
    }
    if (KIND == PLAIN_LATENT_F8 && d >= latent) {
        const __nv_bfloat16 *key = (const __nv_bfloat16 *)(bytes + sv_latent_key_at(latent));
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = sv_load(key + d - latent + i);
        return;
    }
    if (KIND == PLAIN_LATENT_F8)
        scale = sv_latent_scale(bytes, latent, d);
    const uint32_t w[2] = {*(const uint32_t *)(bytes + d), *(const uint32_t *)(bytes + d + 4)};
#pragma unroll
    for (int i = 0; i < 8; i++)
        x[i] = taken((const T *)NULL, sv_kv_f8_value(w[i / 4] >> (i % 4 * 8) & 0xff, scale));
}

/* The score of one key, in log2 units. */
template <typename T, int KIND>
static __device__ __forceinline__ float score(const struct sv_attn_args &a, const float *q,
                                              const void *k, float scale)
{
    float sum = 0, x[8];
    for (int d = 0; d < a.p.kv.head_dim; d += 8) {
        row8<T, KIND>(x, k, d, scale, a.p.kv.latent);
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
template <typename T, int KIND, int EACH>
static __device__ __forceinline__ void
walk(const struct sv_attn_args &a, const float *q, const struct attn_seg &g, int64_t head_at,
     int32_t base, int32_t end, int32_t lo, int32_t hi, struct plain_part<EACH> *to)
{
    constexpr int N = EACH * PLAIN_THREADS / 32;
    const int32_t lane = threadIdx.x % 32, hd = v_dim(a);
    const struct sv_kv &kv = a.p.kv;
    const T *const values = (const T *)(a.p.v_dim ? kv.k : kv.v) + head_at;
    const uint8_t *const codes = (const uint8_t *)(KIND == PLAIN_LATENT_F8 ? kv.k : kv.v) + head_at;
    float o[N] = {}, m = attn_neg_inf(), l = 0;
    for (; base < end; base += 32) {
        const int32_t pos = base + lane;
        float x = attn_neg_inf(), v_scale = 0;
        int64_t at = -1;
        if (pos >= lo && pos < hi) {
            at = sv_kv_at(kv, g.slot, pos);
            if (at < 0) {
                sv_fault_set(a.fault, SV_CUDA_FAULT_READ_PAGE, g.slot, pos, 0);
            } else if (KIND == PLAIN_LATENT_F8) {
                at = at / kv.head_dim * sv_latent_bytes(kv);
                x = score<T, KIND>(a, q, (const uint8_t *)kv.k + at, 1);
            } else if (KIND == PLAIN_F8) {
                const int64_t row = (at + head_at) / kv.head_dim;
                v_scale = sv_kv_f8_scale(kv.v_own[row], kv.v_scale);
                x = score<T, KIND>(a, q, (const uint8_t *)kv.k + at + head_at,
                                   sv_kv_f8_scale(kv.k_own[row], kv.k_scale));
            } else {
                x = score<T, KIND>(a, q, (const T *)kv.k + at + head_at, 1);
            }
        }
        const float most = fmaxf(m, sv_warp_max(x)), ref = most == attn_neg_inf() ? 0.0f : most;
        const float alpha = gpu_exp2(m - ref), w = gpu_exp2(x - ref);
        m = most;
        l = __fmaf_rn(l, alpha, sv_warp_sum(w));
#pragma unroll
        for (int i = 0; i < N; i++)
            o[i] = __fmul_rn(o[i], alpha);
        for (int k = 0; k < 32; k++) {
            const float weight = __shfl_sync(0xffffffffu, w, k);
            const int64_t v_at = __shfl_sync(0xffffffffu, at, k);
            float scale = KIND == PLAIN_F8 ? __shfl_sync(0xffffffffu, v_scale, k) : 1;
            if (v_at < 0)
                continue;
            const int32_t n = gpu_afresh(hd);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (lane + 32 * i >= n)
                    continue;
                const int64_t v = v_at + lane + 32 * i;
                if (KIND == PLAIN_LATENT_F8 && i % (SV_LATENT_TILE / 32) == 0)
                    scale = sv_latent_scale((const uint8_t *)kv.k + v_at, n, 32 * i);
                const float value = KIND == PLAIN_ROWS
                                        ? sv_load(values + v)
                                        : taken((const T *)NULL, sv_kv_f8_value(codes[v], scale));
                o[i] = __fmaf_rn(weight, value, o[i]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        to->o[lane + 32 * i] = o[i];
    to->m = m;
    to->l = l;
}

template <typename T, int KIND, int EACH>
__global__ void __launch_bounds__(PLAIN_THREADS, 2)
    attn_plain(const __grid_constant__ struct sv_attn_args a)
{
    __shared__ float q[EACH * PLAIN_THREADS];
    __shared__ struct plain_part<EACH> part[PLAIN_WARPS];
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
    for (int32_t i = t; i < hd; i += PLAIN_THREADS)
        q[i] = sv_load((const T *)a.p.q + row * a.p.ldq + head * q_stride + i);
    float o[EACH] = {}, m = attn_neg_inf(), l = 0; /* o: of numbers t, t + 256, ... */
    for (int32_t first = lo / PLAIN_CHUNK * PLAIN_CHUNK; first < hi;
         first += PLAIN_WARPS * PLAIN_CHUNK) {
        const int32_t base = first + warp * PLAIN_CHUNK, end = min(base + PLAIN_CHUNK, hi);
        __syncthreads(); /* q is there; the parts before are merged */
        if (base < hi)
            walk<T, KIND, EACH>(a, q, g, head_at, base, end, lo, hi, &part[warp]);
        __syncthreads();
        for (int32_t w = 0; w < PLAIN_WARPS && first + w * PLAIN_CHUNK < hi; w++) {
            const struct attn_factors f = attn_merge_factors(m, part[w].m);
            m = f.m;
            l = attn_merge(l, part[w].l, f);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                o[i] = attn_merge(o[i], part[w].o[t + i * PLAIN_THREADS], f);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (t + i * PLAIN_THREADS < v_dim(a))
            sv_store((T *)a.p.out + row * a.p.ldo + (int64_t)head * v_dim(a) + t +
                         i * PLAIN_THREADS,
                     attn_output(o[i], attn_inverse(a, head, m, l)));
}

template <typename T> static void launch(struct sv_cuda *cu, const struct sv_attn_args *a)
{
    const struct sv_kv &kv = a->p.kv;
    sv_cuda_launch_in_pass(cu, "attention (plain)",
                           kv.dtype == SV_F8 && a->p.v_dim ? attn_plain<T, PLAIN_LATENT_F8, 3>
                           : kv.dtype == SV_F8             ? attn_plain<T, PLAIN_F8, 1>
                           : kv.head_dim <= PLAIN_THREADS  ? attn_plain<T, PLAIN_ROWS, 1>
                                                           : attn_plain<T, PLAIN_ROWS, 3>,
                           dim3((unsigned)(a->p.rows.n_rows * a->p.n_heads)), dim3(PLAIN_THREADS),
                           0, *a);
}

void sv_cuda_attn_plain(struct sv_cuda *cu, const struct sv_attn_args *a)
{
    SV_REQUIRE(a->p.kv.head_dim % 8 == 0 && a->p.kv.head_dim <= 3 * PLAIN_THREADS);
    if (cu->act == SV_F32)
        launch<float>(cu, a);
    else
        launch<__nv_bfloat16>(cu, a);
}
