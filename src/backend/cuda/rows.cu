/*
 * rows.cu - the ops that work on one row of activations at a time: embed, add_rms_norm, act_mul and
 * qk_norm_rope_kv_write.
 *
 * Entered through the table in device.cu. A row (for norm and rotation: a head) is the work of threads chosen
 * by the row's length alone, summed in an order fixed by it. Vector and scalar loads give a thread
 * the same elements, so alignment changes no bit. Must not: trust an id, a position or a page.
 */
#include "backend/cuda/cuda.h"
#include "backend/cuda/norm_rope.cuh"
#include "backend/cuda/pack.cuh"
#include "backend/cuda/silu.cuh"

#define MAX_NORM_THREADS 1024

static bool aligned16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}

/* ---------------------------------------------------------------- embed */

struct embed_args {
    const int32_t *ids;
    const void *table;
    int dtype, packed;
    int32_t vocab, d;
    float scale;
};

template <typename T>
static __global__ void embed_kernel(struct embed_args a, T *out)
{
    sv_pdl_launch();
    sv_pdl_wait();
    int32_t id = a.ids[blockIdx.x];
    id = id < 0 ? 0 : id >= a.vocab ? a.vocab - 1 : id;
    out += (int64_t)blockIdx.x * a.d;
    if (a.packed && a.d % 8 == 0) {
        /* Eight columns from a multiple of 8 lie side by side in the packed layout. */
        for (int32_t i = 8 * threadIdx.x; i < a.d; i += 8 * blockDim.x) {
            float x[8];
            sv_load8(x, (const __nv_bfloat16 *)a.table + sv_packed_at(id, i, a.d));
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j] *= a.scale;
            sv_store8(out + i, x);
        }
        return;
    }
    for (int32_t i = threadIdx.x; i < a.d; i += blockDim.x) {
        int64_t at = a.packed ? sv_packed_at(id, i, a.d) : (int64_t)id * a.d + i;
        sv_store(out + i, sv_weight_at(a.table, a.dtype, at) * a.scale);
    }
}

void sv_cuda_embed(struct sv_dev *dev, const struct sv_p_embed *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct embed_args a = {p->ids, p->table.data, p->table.dtype, sv_cuda_is_packed(&p->table),
                           p->table.rows, p->table.cols, p->scale};
    if (cu->act == SV_BF16)
        sv_cuda_launch(cu, "embed", embed_kernel<__nv_bfloat16>, p->n_rows, 256, 0, a,
                       (__nv_bfloat16 *)p->out);
    else
        sv_cuda_launch(cu, "embed", embed_kernel<float>, p->n_rows, 256, 0, a, (float *)p->out);
}

/* ---------------------------------------------------------------- add_rms_norm */

struct norm_args {
    int32_t d;
    const int32_t *row_index;
    const void *weight;
    int weight_dtype;
    float eps;
    int64_t tap_stride;
    bool vec; /* all rows 16-byte aligned and d a multiple of 8 */
};

/* Eight elements of x + delta at i, rounded once as a store would; zeros behind the end. */
template <typename T>
static __device__ __forceinline__ void norm_in(float v[8], const T *x, const T *delta, int32_t i,
                                               int32_t d, bool vec)
{
    if (vec) {
        sv_load8(v, x + i);
        if (delta) {
            float w[8];
            sv_load8(w, delta + i);
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = sv_rounded(v[j] + w[j], x);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = i + j < d ? sv_load(x + i + j) : 0.0f;
        if (delta && i + j < d)
            v[j] = sv_rounded(v[j] + sv_load(delta + i + j), x);
    }
}

template <typename T>
static __device__ __forceinline__ void norm_put(T *out, const float v[8], int32_t i, int32_t d, bool vec)
{
    if (vec) {
        sv_store8(out + i, v);
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        if (i + j < d)
            sv_store(out + i + j, v[j]);
}

/* HELD: groups of eight elements a thread keeps in registers between the sum and the scaling. */
#define HELD 2

template <typename T>
static __global__ void __launch_bounds__(MAX_NORM_THREADS)
    norm_kernel(struct norm_args a, T *x, const T *delta, T *out, T *tap)
{
    __shared__ float scratch[32];
    const int32_t step = 8 * blockDim.x, first = 8 * threadIdx.x;
    sv_pdl_launch();
    sv_pdl_wait();
    const int64_t row = !a.row_index ? blockIdx.x : max(a.row_index[blockIdx.x], 0); /* < 0: padding */
    const bool write_x = delta && !a.row_index;
    x += row * a.d;
    delta = delta ? delta + row * a.d : NULL;
    tap = tap ? tap + row * a.tap_stride : NULL;
    out += (int64_t)blockIdx.x * a.d;
    float held[HELD][8], sum = 0;
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        const int32_t i = first + h * step;
        if (i >= a.d)
            break;
        norm_in(held[h], x, delta, i, a.d, a.vec);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(held[h][j], held[h][j], sum);
        if (write_x)
            norm_put(x, held[h], i, a.d, a.vec);
        if (tap)
            norm_put(tap, held[h], i, a.d, a.vec);
    }
    for (int32_t i = first + HELD * step; i < a.d; i += step) {
        float v[8];
        norm_in(v, x, delta, i, a.d, a.vec);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(v[j], v[j], sum);
        if (write_x)
            norm_put(x, v, i, a.d, a.vec);
        if (tap)
            norm_put(tap, v, i, a.d, a.vec);
    }
    sum = sv_block_sum(sum, scratch);
    const float inv = 1.0f / sqrtf(sum / (float)a.d + a.eps);
    for (int h = 0;; h++) {
        const int32_t i = first + h * step;
        float v[8];
        if (i >= a.d)
            break;
        if (h == 0 || h == 1) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[j] = h == 0 ? held[0][j] : held[1][j];
        } else {
            norm_in(v, x, write_x ? (const T *)NULL : delta, i, a.d, a.vec);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (i + j < a.d)
                v[j] = v[j] * inv * sv_weight_at(a.weight, a.weight_dtype, i + j);
        norm_put(out, v, i, a.d, a.vec);
    }
}

template <typename T>
static void norm_launch(struct sv_cuda *cu, const struct sv_p_add_rms_norm *p)
{
    int32_t threads = ((p->d + 7) / 8 + 31) / 32 * 32;
    threads = threads > MAX_NORM_THREADS ? MAX_NORM_THREADS : threads;
    bool vec = p->d % 8 == 0 && aligned16(p->x) && aligned16(p->delta) && aligned16(p->out) &&
               aligned16(p->tap) && p->tap_stride % 8 == 0;
    struct norm_args a = {p->d,   p->row_index,  p->weight.data, p->weight.dtype,
                          p->eps, p->tap_stride, vec};
    sv_cuda_launch(cu, "add_rms_norm", norm_kernel<T>, p->n_rows, threads, 0, a, (T *)p->x,
                   (const T *)p->delta, (T *)p->out, (T *)p->tap);
}

void sv_cuda_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (cu->act == SV_BF16)
        norm_launch<__nv_bfloat16>(cu, p);
    else
        norm_launch<float>(cu, p);
}

/* ---------------------------------------------------------------- act_mul */

template <typename T>
static __global__ void act_mul_kernel(const T *gate_up, T *out, int32_t d, bool vec)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const T *gate = gate_up + (int64_t)blockIdx.y * 2 * d, *up = gate + d;
    out += (int64_t)blockIdx.y * d;
    const int32_t i = 8 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= d)
        return;
    if (vec) {
        float g[8], u[8];
        sv_load8(g, gate + i);
        sv_load8(u, up + i);
#pragma unroll
        for (int j = 0; j < 8; j++)
            g[j] = sv_silu_mul(g[j], u[j]);
        sv_store8(out + i, g);
        return;
    }
    for (int j = 0; j < 8 && i + j < d; j++)
        sv_store(out + i + j, sv_silu_mul(sv_load(gate + i + j), sv_load(up + i + j)));
}

/* The y dimension of a grid ends at 65535 rows, far above any batch. */
template <typename T>
static void act_mul_launch(struct sv_cuda *cu, const struct sv_p_act_mul *p)
{
    bool vec = p->d % 8 == 0 && aligned16(p->gate_up) && aligned16(p->out);
    dim3 grid((unsigned)((p->d + 8 * 128 - 1) / (8 * 128)), (unsigned)p->n_rows);
    sv_cuda_launch(cu, "act_mul", act_mul_kernel<T>, grid, 128, 0, (const T *)p->gate_up,
                   (T *)p->out, p->d, vec);
}

void sv_cuda_act_mul(struct sv_dev *dev, const struct sv_p_act_mul *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (cu->act == SV_BF16)
        act_mul_launch<__nv_bfloat16>(cu, p);
    else
        act_mul_launch<float>(cu, p);
}

/* ---------------------------------------------------------------- qk_norm_rope_kv_write */

#define HEAD_WARPS 8 /* heads per block */

struct rope_args {
    struct sv_rows rows;
    int64_t ld;
    int32_t n_heads;
    struct sv_head_norm q_norm, k_norm;
    struct sv_rope_table rope;
    struct sv_kv kv;
    struct sv_cuda_fault *fault;
};

template <typename T, typename K>
static __global__ void rope_kernel(struct rope_args a, T *qkv)
{
    __shared__ float buffer[HEAD_WARPS][SV_MAX_HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t r = blockIdx.y, n_kv = a.kv.n_kv_heads, hd = a.kv.head_dim;
    int32_t head = blockIdx.x * HEAD_WARPS + warp;
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t seg = a.rows.row_seg[r];
    if (seg < 0 || head >= a.n_heads + 2 * n_kv)
        return;
    const int32_t slot = a.rows.seg_slot[seg];
    const int32_t pos = a.rows.seg_base[seg] + (r - a.rows.seg_row0[seg]);
    const bool reports = head == 0 && lane == 0;
    const int64_t angle = (int64_t)sv_rope_row(&a.rope, pos, reports ? a.fault : NULL) *
                          (a.rope.rot_dim / 2);
    T *x = qkv + r * a.ld + (int64_t)head * hd;
    if (head < a.n_heads) {
        sv_head_norm_rope<T, T>(x, x, buffer[warp], a.q_norm, a.rope, angle, hd, lane);
        return;
    }
    head -= a.n_heads;
    const int64_t at = sv_kv_at(a.kv, slot, pos);
    if (at < 0) {
        if (lane == 0)
            sv_fault_set(a.fault, SV_CUDA_FAULT_WRITE_PAGE, slot, pos, 0);
        return;
    }
    const int64_t page_stride = (int64_t)a.kv.page_size * hd;
    if (head < n_kv)
        sv_head_norm_rope<T, K>((K *)a.kv.k + at + head * page_stride, x, buffer[warp], a.k_norm,
                                a.rope, angle, hd, lane);
    else
        sv_head_copy((K *)a.kv.v + at + (head - n_kv) * page_stride, x, hd, lane);
}

void sv_cuda_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct rope_args a = {p->rows,
                          p->ld,
                          p->n_heads,
                          {p->q_norm.data, p->q_norm.dtype, p->eps},
                          {p->k_norm.data, p->k_norm.dtype, p->eps},
                          p->rope,
                          p->kv,
                          cu->fault};
    const int32_t heads = p->n_heads + 2 * p->kv.n_kv_heads;
    dim3 grid((unsigned)((heads + HEAD_WARPS - 1) / HEAD_WARPS), (unsigned)p->rows.n_rows);
    const bool kv_bf16 = p->kv.dtype == SV_BF16;
    const char *what = "qk_norm_rope_kv_write";
    if (cu->act == SV_BF16 && kv_bf16)
        sv_cuda_launch(cu, what, rope_kernel<__nv_bfloat16, __nv_bfloat16>, grid, 32 * HEAD_WARPS,
                       0, a, (__nv_bfloat16 *)p->qkv);
    else if (cu->act == SV_BF16)
        sv_cuda_launch(cu, what, rope_kernel<__nv_bfloat16, float>, grid, 32 * HEAD_WARPS, 0, a,
                       (__nv_bfloat16 *)p->qkv);
    else if (kv_bf16)
        sv_cuda_launch(cu, what, rope_kernel<float, __nv_bfloat16>, grid, 32 * HEAD_WARPS, 0, a,
                       (float *)p->qkv);
    else
        sv_cuda_launch(cu, what, rope_kernel<float, float>, grid, 32 * HEAD_WARPS, 0, a,
                       (float *)p->qkv);
}
