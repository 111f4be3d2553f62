/*
 * values.cuh - device code that all kernels share: loads and stores of act values, sums in a fixed
 * order, addresses in the cache.
 *
 * Part of cuda.h. Must not: let a sum's order depend on anything but its length.
 */
/* ---------------------------------------------------------------- act values */

static __device__ __forceinline__ float sv_load(const float *p)
{
    return *p;
}
static __device__ __forceinline__ float sv_load(const __nv_bfloat16 *p)
{
    return __bfloat162float(*p);
}
static __device__ __forceinline__ float sv_load(const __half *p)
{
    return __half2float(*p);
}
static __device__ __forceinline__ void sv_store(float *p, float x)
{
    *p = x;
}
/* To nearest, ties to even, as sv_f32_to_bf16. */
static __device__ __forceinline__ void sv_store(__nv_bfloat16 *p, float x)
{
    *p = __float2bfloat16_rn(x);
}
/* a + b as T holds it, rounded once; both must be values of T. */
static __device__ __forceinline__ float sv_add(float a, float b, const float *)
{
    return a + b;
}
static __device__ __forceinline__ float sv_add(float a, float b, const __nv_bfloat16 *)
{
    return __bfloat162float(__hadd(__float2bfloat16_rn(a), __float2bfloat16_rn(b)));
}

/* NULL counts as aligned. */
static inline bool sv_aligned16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* Eight neighbours at once; p must be 16-byte aligned. */
static __device__ __forceinline__ void sv_load8(float out[8], const float *p)
{
    float4 a = *(const float4 *)p, b = *(const float4 *)(p + 4);
    out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
    out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
/* Eight neighbours as they lie in memory. */
template <typename T> struct sv_eight;
template <> struct sv_eight<__nv_bfloat16> {
    uint4 v;
};
template <> struct sv_eight<float> {
    float4 a, b;
};
static __device__ __forceinline__ void sv_spread8(float out[8], uint4 v)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(w[i] << 16);
        out[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}
static __device__ __forceinline__ void sv_spread8(float out[8],
                                                  const struct sv_eight<__nv_bfloat16> &e)
{
    sv_spread8(out, e.v);
}
static __device__ __forceinline__ void sv_spread8(float out[8], const struct sv_eight<float> &e)
{
    out[0] = e.a.x, out[1] = e.a.y, out[2] = e.a.z, out[3] = e.a.w;
    out[4] = e.b.x, out[5] = e.b.y, out[6] = e.b.z, out[7] = e.b.w;
}
static __device__ __forceinline__ void sv_load8(float out[8], const __nv_bfloat16 *p)
{
    sv_spread8(out, *(const uint4 *)p);
}
/* a += b, as sv_add. */
static __device__ __forceinline__ void sv_add8(struct sv_eight<__nv_bfloat16> &a,
                                               const struct sv_eight<__nv_bfloat16> &b)
{
    __nv_bfloat162 *to = (__nv_bfloat162 *)&a.v;
    const __nv_bfloat162 *from = (const __nv_bfloat162 *)&b.v;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = __hadd2(to[i], from[i]);
}
static __device__ __forceinline__ void sv_add8(struct sv_eight<float> &a,
                                               const struct sv_eight<float> &b)
{
    a.a.x += b.a.x, a.a.y += b.a.y, a.a.z += b.a.z, a.a.w += b.a.w;
    a.b.x += b.b.x, a.b.y += b.b.y, a.b.z += b.b.z, a.b.w += b.b.w;
}
/* 16 bytes that every pass reads again: they stay in L2, past which the weights of matrices
 * stream. */
static __device__ __forceinline__ uint4 sv_load_kept(const void *p)
{
#ifdef __CUDA_ARCH__
    uint4 v;
    uint64_t keep;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "l"(keep));
    return v;
#else
    return *(const uint4 *)p;
#endif
}
/* A norm's weights, which upload.cu keeps in f32, or NULL. */
static inline const float *sv_cuda_norm_of(const struct sv_weight *w)
{
    SV_REQUIRE(!w->data || w->fmt.elem == SV_F32);
    return (const float *)w->data;
}
/* Eight of them, aligned. */
static __device__ __forceinline__ void sv_load_norm8(float w[8], const float *p)
{
    const uint4 a = sv_load_kept(p), b = sv_load_kept(p + 4);
    const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++)
        w[i] = __uint_as_float(words[i]);
}
static __device__ __forceinline__ void sv_store8(float *p, const float x[8])
{
    *(float4 *)p = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}
static __device__ __forceinline__ uint4 sv_pack8(const float x[8])
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __nv_bfloat162 h = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        w[i] = *(const uint32_t *)&h;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}
static __device__ __forceinline__ void sv_store8(__nv_bfloat16 *p, const float x[8])
{
    *(uint4 *)p = sv_pack8(x);
}

/* Element i of a vector or row-major matrix of any weight dtype. */
static __device__ __forceinline__ float sv_weight_at(const void *w, int dtype, int64_t i)
{
    if (dtype == SV_F32)
        return ((const float *)w)[i];
    if (dtype == SV_BF16)
        return sv_load((const __nv_bfloat16 *)w + i);
    return sv_load((const __half *)w + i);
}

/* ---------------------------------------------------------------- reductions in a fixed order */

static __device__ __forceinline__ float sv_warp_sum(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
static __device__ __forceinline__ float sv_warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
/* Sum over the block (whole warps), the same in every thread; scratch holds 32 floats and is free
 * again after the caller's next __syncthreads. Warps are added in ascending order. */
static __device__ __forceinline__ float sv_block_sum(float x, float *scratch)
{
    const int warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    x = sv_warp_sum(x);
    if (threadIdx.x % 32 == 0)
        scratch[warp] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < n_warps; i++)
        sum += scratch[i];
    return sum;
}

/* ---------------------------------------------------------------- cache addressing */

/* Element offset of (slot, kv head 0, position) in kv.k and kv.v; -1 when the table names no page.
 * Head h lies h * page_size * head_dim further. */
static __device__ __forceinline__ int64_t sv_kv_at(const struct sv_kv &kv, int32_t slot,
                                                   int32_t pos)
{
    int32_t i = pos / kv.page_size;
    if (pos < 0 || i >= kv.table_stride)
        return -1;
    int32_t page = kv.table[(int64_t)slot * kv.table_stride + i];
    if (page < 0 || page >= kv.n_pages)
        return -1;
    int64_t in_page = pos - i * kv.page_size;
    return ((int64_t)page * kv.n_kv_heads * kv.page_size + in_page) * kv.head_dim;
}
