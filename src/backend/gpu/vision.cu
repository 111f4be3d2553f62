/*
 * vision.cu - the ops of a vision tower: layer_norm, gelu, add_corners.
 *
 * Called through the table in device.cu. A warp has a row of a norm, whose two sums have an order
 * fixed by the row's length; the others are elementwise. Vector and scalar loads give a thread the
 * same elements, so alignment changes no bit. Must not: let a sum depend on the number of rows.
 */
#include "backend/cuda/cuda.h"
#include "backend/gpu/pack.cuh"
#include "backend/gpu/silu.cuh"
#include "backend/gpu/vision.h"

enum { NORM_WARPS = 4, ELEMENT_THREADS = 256 };

/* Eight elements at i of a row of d, zeros behind its end. */
template <typename T>
static __device__ __forceinline__ void get8(float v[8], const T *x, int64_t i, int64_t d, bool vec)
{
    if (vec) {
        sv_load8(v, x + i);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = i + j < d ? sv_load(x + i + j) : 0.0f;
}

template <typename T>
static __device__ __forceinline__ void put8(T *x, const float v[8], int64_t i, int64_t d, bool vec)
{
    if (vec) {
        sv_store8(x + i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (i + j < d)
            sv_store(x + i + j, v[j]);
}

/* ---------------------------------------------------------------- layer_norm */

struct layer_norm_args {
    int32_t n_rows, d;
    const void *weight, *bias;
    int weight_dtype, bias_dtype;
    float eps;
    bool vec; /* all rows 16-byte aligned and d a multiple of 8 */
};

template <typename T>
static __global__ void __launch_bounds__(32 * NORM_WARPS)
    layer_norm_kernel(const struct layer_norm_args a, const T *x, T *out)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t lane = threadIdx.x % 32,
                  row = (int32_t)(blockIdx.x * NORM_WARPS + threadIdx.x / 32);
    if (row >= a.n_rows)
        return;
    x += (int64_t)row * a.d;
    out += (int64_t)row * a.d;
    float v[8], sum = 0, squares = 0;
    for (int32_t i = 8 * lane; i < a.d; i += 8 * 32) {
        get8(v, x, i, a.d, a.vec);
        sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    const float mean = __fdiv_rn(sv_warp_sum(sum), (float)a.d);
    for (int32_t i = 8 * lane; i < a.d; i += 8 * 32) {
        get8(v, x, i, a.d, a.vec);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float off = i + j < a.d ? v[j] - mean : 0.0f;
            squares = fmaf(off, off, squares);
        }
    }
    const float scale =
        __fdiv_rn(1.0f, sqrtf(__fadd_rn(__fdiv_rn(sv_warp_sum(squares), (float)a.d), a.eps)));
    for (int32_t i = 8 * lane; i < a.d; i += 8 * 32) {
        get8(v, x, i, a.d, a.vec);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j < a.d)
                v[j] = __fmaf_rn(__fmul_rn(v[j] - mean, scale),
                                 sv_weight_at(a.weight, a.weight_dtype, i + j),
                                 sv_weight_at(a.bias, a.bias_dtype, i + j));
        put8(out, v, i, a.d, a.vec);
    }
}

void sv_cuda_layer_norm(struct sv_dev *dev, const struct sv_p_layer_norm *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct layer_norm_args a = {p->n_rows,
                                      p->d,
                                      p->weight.data,
                                      p->bias.data,
                                      (int)p->weight.fmt.elem,
                                      (int)p->bias.fmt.elem,
                                      p->eps,
                                      p->d % 8 == 0 && sv_aligned16(p->x) && sv_aligned16(p->out)};
    const dim3 grid((unsigned)((p->n_rows + NORM_WARPS - 1) / NORM_WARPS));
    if (cu->act == SV_BF16)
        sv_cuda_launch_in_pass(cu, "layer_norm", layer_norm_kernel<__nv_bfloat16>, grid,
                               32 * NORM_WARPS, 0, a, (const __nv_bfloat16 *)p->x,
                               (__nv_bfloat16 *)p->out);
    else
        sv_cuda_launch_in_pass(cu, "layer_norm", layer_norm_kernel<float>, grid, 32 * NORM_WARPS, 0,
                               a, (const float *)p->x, (float *)p->out);
}

/* ---------------------------------------------------------------- gelu */

static __device__ __forceinline__ float gelu_erf(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
}

/* 0.5 (1 + tanh(u)) is sigmoid(2 u). */
static __device__ __forceinline__ float gelu_tanh(float x)
{
    const float cube = __fmul_rn(__fmul_rn(x, x), x),
                gate = __fmul_rn(2 * 0.7978845608028654f, __fmaf_rn(0.044715f, cube, x));
    return __fmul_rn(x, sv_sigmoid(gate));
}

template <typename T, bool TANH>
static __global__ void __launch_bounds__(ELEMENT_THREADS) gelu_kernel(int64_t n, bool vec, T *x)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int64_t i = 8 * ((int64_t)blockIdx.x * ELEMENT_THREADS + threadIdx.x);
    float v[8];
    if (i >= n)
        return;
    get8(v, x, i, n, vec);
#pragma unroll
    for (int j = 0; j < 8; j++)
        v[j] = TANH ? gelu_tanh(v[j]) : gelu_erf(v[j]);
    put8(x, v, i, n, vec);
}

template <typename T> static void gelu_launch(struct sv_cuda *cu, const struct sv_p_gelu *p)
{
    const int64_t n = (int64_t)p->n_rows * p->d, each = 8 * ELEMENT_THREADS;
    sv_cuda_launch_in_pass(cu, "gelu", p->by_tanh ? gelu_kernel<T, true> : gelu_kernel<T, false>,
                           dim3((unsigned)((n + each - 1) / each)), ELEMENT_THREADS, 0, n,
                           n % 8 == 0 && sv_aligned16(p->x), (T *)p->x);
}

void sv_cuda_gelu(struct sv_dev *dev, const struct sv_p_gelu *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (cu->act == SV_BF16)
        gelu_launch<__nv_bfloat16>(cu, p);
    else
        gelu_launch<float>(cu, p);
}

/* ---------------------------------------------------------------- add_corners */

struct corner_args {
    int32_t d;
    const int32_t *index;
    const float *share;
    const void *table;
    int table_dtype;
    bool packed, vec;
};

template <typename T>
static __global__ void __launch_bounds__(ELEMENT_THREADS)
    corners_kernel(const struct corner_args a, T *x)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t i = 8 * (int32_t)(blockIdx.x * ELEMENT_THREADS + threadIdx.x);
    float v[8];
    if (i >= a.d)
        return;
    x += (int64_t)blockIdx.y * a.d;
    get8(v, x, i, a.d, a.vec);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int32_t row = a.index[4 * (int64_t)blockIdx.y + k];
        const float share = a.share[4 * (int64_t)blockIdx.y + k];
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j < a.d) {
                const int64_t at =
                    a.packed ? (int64_t)sv_packed_at(row, i + j, a.d) : (int64_t)row * a.d + i + j;
                v[j] = __fadd_rn(v[j], __fmul_rn(sv_weight_at(a.table, a.table_dtype, at), share));
            }
    }
    put8(x, v, i, a.d, a.vec);
}

/* The first op of a pass over an image: what it reads of other rows was uploaded before. The y
 * dimension of a grid ends at 65535 rows, more than an image may have. */
void sv_cuda_add_corners(struct sv_dev *dev, const struct sv_p_add_corners *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct corner_args a = {p->d,
                                  p->index,
                                  p->share,
                                  p->table.data,
                                  (int)p->table.fmt.elem,
                                  sv_cuda_is_packed(&p->table),
                                  p->d % 8 == 0 && sv_aligned16(p->x)};
    const int32_t each = 8 * ELEMENT_THREADS;
    const dim3 grid((unsigned)((p->d + each - 1) / each), (unsigned)p->n_rows);
    SV_REQUIRE(p->n_rows <= 65535);
    if (cu->act == SV_BF16)
        sv_cuda_launch(cu, "add_corners", corners_kernel<__nv_bfloat16>, grid, ELEMENT_THREADS, 0,
                       a, (__nv_bfloat16 *)p->x);
    else
        sv_cuda_launch(cu, "add_corners", corners_kernel<float>, grid, ELEMENT_THREADS, 0, a,
                       (float *)p->x);
}
