/*
 * rows.cu - the ops that work on one row of activations at a time: embed, add_rms_norm, act_mul and
 * qk_norm_rope_kv_write.
 *
 * Called through the table in device.cu. The order of the sum over a row (over a head) depends on
 * its length only, not on how many heads a thread takes. Vector and scalar loads give a thread the
 * same elements, so alignment changes no bit. Must not: use an id, a position or a page unchecked.
 */
#include "backend/cuda/cuda.h"
#include "backend/gpu/fp8_rows.cuh"
#include "backend/cuda/gemm.h"
#include "backend/cuda/peers.h"
#include "backend/gpu/norm_rope.cuh"
#include "backend/gpu/pack.cuh"
#include "backend/gpu/row_norm.cuh"
#include "backend/gpu/silu.cuh"

#define MAX_NORM_THREADS 1024

/* ---------------------------------------------------------------- embed */

struct embed_args {
    const int32_t *ids;
    const void *table;
    int dtype, packed;
    int32_t vocab, d;
    float scale;
};

template <typename T> static __global__ void embed_kernel(struct embed_args a, T *out)
{
    sv_pdl_wait();
    sv_pdl_launch(); /* not before: cu->settled */
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
    SV_REQUIRE(p->table.fmt.elem <= SV_F16); /* a drafter has no embedding of its own */
    struct embed_args a = {
        p->ids,        p->table.data, p->table.fmt.elem, sv_cuda_is_packed(&p->table),
        p->table.rows, p->table.cols, p->scale};
    if (cu->act == SV_BF16)
        sv_cuda_launch(cu, "embed", embed_kernel<__nv_bfloat16>, p->n_rows, 256, 0, a,
                       (__nv_bfloat16 *)p->out);
    else
        sv_cuda_launch(cu, "embed", embed_kernel<float>, p->n_rows, 256, 0, a, (float *)p->out);
    cu->settled = true;
}

/* ---------------------------------------------------------------- add_rms_norm */

struct norm_args {
    int32_t d;
    const int32_t *row_index;
    const float *weight;
    float eps, of_d; /* of_d: 1 / d */
    int64_t tap_stride;
    bool vec;            /* all rows 16-byte aligned and d a multiple of 8 */
    bool delta_in_order; /* delta has the rows of out, not those of x */
    bool rehearse;
    const struct sv_slice *own; /* out begins with these rows; NULL: it has the order of x */
    uint8_t *bytes; /* out once more, in 8 bits and with scales (fp8.cuh), rows byte_stride apart */
    int64_t byte_stride;
    float *scales;
    int32_t scales_ld; /* of groups */
};

/* Where in out row i of the batch goes. */
static __device__ __forceinline__ int64_t norm_place(const struct norm_args &a, int32_t i)
{
    const int32_t at = a.own ? i - a.own->first : i, n = a.own ? a.own->n : 0;
    return !a.own || (at >= 0 && at < n) ? at : at < 0 ? i + n : i;
}

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
                v[j] = sv_add(v[j], w[j], x);
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[j] = i + j < d ? sv_load(x + i + j) : 0.0f;
        if (delta && i + j < d)
            v[j] = sv_add(v[j], sv_load(delta + i + j), x);
    }
}

template <typename T>
static __device__ __forceinline__ void norm_put(T *out, const float v[8], int32_t i, int32_t d,
                                                bool vec)
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
    __shared__ float4 scratch[8];
    const int32_t step = 8 * blockDim.x, first = 8 * threadIdx.x;
    sv_pdl_launch();
    if (threadIdx.x < 8)
        scratch[threadIdx.x] = make_float4(0, 0, 0, 0);
    __syncthreads();
    sv_pdl_wait();
    /* < 0: padding */
    const int64_t row = !a.row_index ? blockIdx.x : max(a.row_index[blockIdx.x], 0);
    const bool write_x = delta && !a.row_index;
    x += row * a.d;
    delta = delta ? delta + (a.delta_in_order ? blockIdx.x : row) * a.d : NULL;
    tap = tap ? tap + row * a.tap_stride : NULL;
    out += norm_place(a, blockIdx.x) * a.d;
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
    const float inv = sv_norm_scale(sum, a.of_d, a.eps, scratch);
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
                v[j] = v[j] * inv * a.weight[i + j];
        norm_put(out, v, i, a.d, a.vec);
    }
}

template <typename T> static __device__ __forceinline__ void norm_nothing(struct sv_eight<T> &e)
{
#pragma unroll
    for (int k = 0; k < (int)(sizeof e / sizeof(uint4)); k++)
        ((uint4 *)&e)[k] = sv_join_identity((const T *)NULL);
}

/* The common case: a group of eight a thread, all aligned. The same sums as above in less code,
 * which few rows run through once before the wait, so that instructions and weights are
 * at hand when the row is there: fetching them takes longer than the row does. No more than 32
 * registers a thread: a row's block must find room beside a matrix product that still runs, and
 * leave room for the next one, which begins by filling its ring. */
enum scaled { AS_IT_IS, BY_ROWS, BY_GROUPS };

/* Without ranks; joined, a thread block for each row, in one shot or maybe in two; or in one, a
 * block for many of n_rows rows, which are sent and not rehearsed before. */
enum joined { ALONE, ONE_SHOT, TWO_SHOTS, MANY_ROWS };

template <enum joined HOW> static __device__ __forceinline__ uint32_t block_row(int pass)
{
    return HOW == MANY_ROWS ? blockIdx.x + (pass - 1) * gridDim.x : blockIdx.x;
}

/* The sum over ranks of the eight at i of the part's row b, rounded once. */
template <enum joined HOW, typename T>
static __device__ __forceinline__ void
norm_joined(struct sv_eight<T> &e, const struct sv_join_site &s, int32_t b, int32_t d, int32_t i)
{
    enum { N = sizeof(uint4) / sizeof(T) }; /* numbers in 16 bytes */
    const int32_t at = b * (d / N);
    uint4 *v = (uint4 *)&e;
#pragma unroll
    for (int k = 0; k < 8 / N; k++)
        if (HOW != MANY_ROWS && !s.ahead)
            sv_join_send_part<HOW == TWO_SHOTS>(s, at, i / N + k, v[k]);
#pragma unroll
    for (int k = 0; k < 8 / N; k++)
        v[k] = sv_join_sum<T, HOW == TWO_SHOTS>(s, at, i / N + k, b, v[k]);
}

template <typename T, enum scaled BYTES, enum joined HOW>
static __device__ __forceinline__ void norm8(const struct norm_args &a, T *x, const T *delta,
                                             T *out, T *tap, const struct sv_join_site *s,
                                             int32_t n_rows)
{
    constexpr bool JOIN = HOW != ALONE, MANY = HOW == MANY_ROWS, LATE = JOIN || sizeof(T) > 2;
    __shared__ float4 scratch[8];
    __shared__ uint32_t found[BYTES == BY_ROWS ? 32 : 1];
    const int32_t i = 8 * threadIdx.x;
    const bool inside = i < a.d;
    float w[8] = {};
    sv_pdl_launch();
    if (inside && !LATE)
        sv_load_norm8(w, a.weight + i);
    if (threadIdx.x < 8)
        scratch[threadIdx.x] = make_float4(0, 0, 0, 0);
    if (BYTES == BY_ROWS && threadIdx.x < 32)
        found[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (int pass = !MANY && a.rehearse ? 0 : 1;
         MANY ? (int32_t)block_row<HOW>(pass) < n_rows : pass < 2; pass++) {
        const bool real = MANY || pass == 1;
        struct sv_eight<T> v = {
        };
        float f[8], sum = 0;
        if (real && !MANY)
            sv_pdl_wait();
        const int64_t row = !real || !a.row_index ? block_row<HOW>(pass)
                                                  : max(a.row_index[block_row<HOW>(pass)], 0);
        if (real && inside) {
            v = *(const struct sv_eight<T> *)(x + row * a.d + i);
            if (JOIN || delta) {
                /* A drafter's rows, which it has in bytes too, are those of all ranks. */
                const T *part =
                    JOIN && !BYTES ? sv_join_row(*s, delta, (int32_t)row, a.d) : delta + row * a.d;
                struct sv_eight<T> add;
                if (JOIN && !BYTES && !part)
                    norm_nothing(add);
                else
                    add = *(const struct sv_eight<T> *)(part + i);
                if (JOIN)
                    norm_joined<HOW>(add, *s, block_row<HOW>(pass), a.d, i);
                sv_add8(v, add);
                if (!a.row_index)
                    *(struct sv_eight<T> *)(x + row * a.d + i) = v;
            }
            if (tap)
                *(struct sv_eight<T> *)(tap + row * a.tap_stride + i) = v;
        }
        sv_spread8(f, v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum = fmaf(f[j], f[j], sum);
        /* Not held beside rows of f32 or while other ranks are waited for: rehearsed, it is near
         * by. */
        if (LATE)
            sv_load_norm8(w, a.weight + (inside ? i : 0));
        const float inv = sv_norm_scale(sum, a.of_d, a.eps, scratch);
#pragma unroll
        for (int j = 0; j < 8; j++)
            f[j] = f[j] * inv * w[j];
        if (real && inside)
            sv_store8(
                out +
                    (BYTES ? (int64_t)block_row<HOW>(pass) : norm_place(a, block_row<HOW>(pass))) *
                        a.d +
                    i,
                f);
        if constexpr (BYTES == BY_GROUPS) {
            const uint4 rounded = inside ? sv_pack8(f) : make_uint4(0, 0, 0, 0);
            const float scale =
                sv_fp8_group_scale(sv_fp8_largest_in_group(sv_fp8_largest(rounded, 0)));
            const uint2 bytes = sv_fp8_group_eight(rounded, sv_fp8_group_inverse(scale));
            if (real && inside)
                *(uint2 *)(a.bytes + block_row<HOW>(pass) * a.byte_stride + i) = bytes;
            if (real && inside && threadIdx.x % 16 == 0)
                a.scales[(int64_t)(threadIdx.x / 16) * a.scales_ld + block_row<HOW>(pass)] = scale;
        }
        if constexpr (BYTES == BY_ROWS) {
            const uint4 rounded = inside ? sv_pack8(f) : make_uint4(0, 0, 0, 0);
            const float scale =
                sv_fp8_scale(sv_fp8_largest_in_block(sv_fp8_largest(rounded, 0), found));
            const uint2 bytes = sv_fp8_eight(rounded, sv_fp8_inverse(scale));
            if (real && inside)
                *(uint2 *)(a.bytes + block_row<HOW>(pass) * a.byte_stride + i) = bytes;
            if (real && threadIdx.x == 0)
                a.scales[block_row<HOW>(pass)] = scale;
        }
        if (!real || MANY)
            __syncthreads();
    }
}

template <typename T, enum scaled BYTES>
static __global__ void __launch_bounds__(MAX_NORM_THREADS, 2)
    norm8_kernel(const __grid_constant__ struct norm_args a, T *x, const T *delta, T *out, T *tap)
{
    norm8<T, BYTES, ALONE>(a, x, delta, out, tap, NULL, 0);
}

/* Likewise of a sum over ranks. Where all rows are not resident at once, a thread block sends all
 * of its own before it waits. */
template <typename T, enum scaled BYTES, enum joined HOW>
static __global__ void __launch_bounds__(MAX_NORM_THREADS, 1)
    norm8_join_kernel(const __grid_constant__ struct norm_args a, T *x, const T *delta, T *out,
                      T *tap, const __grid_constant__ struct sv_join_site s, int32_t n_rows)
{
    if constexpr (HOW == MANY_ROWS) {
        const int32_t n = a.d / (int32_t)(sizeof(uint4) / sizeof(T));
        sv_pdl_wait();
        for (int32_t b = blockIdx.x; b < n_rows && !s.ahead; b += (int32_t)gridDim.x) {
            const T *part = sv_join_row(s, delta, !a.row_index ? b : max(a.row_index[b], 0), a.d);
            for (int32_t g = threadIdx.x; g < n; g += (int32_t)blockDim.x)
                sv_join_send_part<false>(s, b * n, g, sv_join_part(part, g));
        }
    }
    norm8<T, BYTES, HOW>(a, x, delta, out, tap, &s, n_rows);
}

template <typename T, enum joined HOW> static auto join_kernel(const struct norm_args &a)
{
    if constexpr (sizeof(T) == 2)
        if (a.bytes)
            return a.scales_ld ? norm8_join_kernel<T, BY_GROUPS, HOW>
                               : norm8_join_kernel<T, BY_ROWS, HOW>;
    return norm8_join_kernel<T, AS_IT_IS, HOW>;
}

/* Rows whose thread blocks are all resident at once, so that they may wait for those of others. */
template <typename K> static int32_t resident(struct sv_cuda *cu, K kernel, int32_t threads)
{
    int n = 0;
    if (!sv_cuda_check(cu, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, kernel, threads, 0),
                       "cudaOccupancyMaxActiveBlocksPerMultiprocessor"))
        return 0;
    return n * cu->n_sms;
}

template <typename T>
static void norm_join_launch(struct sv_cuda *cu, const struct sv_p_add_rms_norm *p,
                             const struct norm_args &a, int32_t threads)
{
    struct sv_join_site s = sv_cuda_join_rows(
        cu, p->join, p->join == SV_JOIN_MIXER ? p->own_rows : NULL, p->n_rows, p->d);
    const bool ahead = s.share || cu->peers->hosts;
    auto kernel = ahead ? join_kernel<T, TWO_SHOTS>(a) : join_kernel<T, ONE_SHOT>(a);
    int32_t blocks = p->n_rows;
    if (ahead) {
        sv_cuda_join_ahead(cu, &s, p->delta, p->row_index, p->n_rows, p->d, cu->n_sms);
    } else if (p->n_rows > cu->n_sms && p->n_rows > resident(cu, kernel, threads)) {
        kernel = join_kernel<T, MANY_ROWS>(a);
        blocks = resident(cu, kernel, threads);
        blocks = blocks < p->n_rows ? blocks : p->n_rows;
    }
    sv_cuda_launch_in_pass(cu, "add_rms_norm of ranks", kernel, blocks, threads, 0, a, (T *)p->x,
                           (const T *)p->delta, (T *)p->out, (T *)p->tap, s, p->n_rows);
    cu->peers->pushed = SV_JOIN_NONE;
}

template <typename T> static void norm_launch(struct sv_cuda *cu, const struct sv_p_add_rms_norm *p)
{
    int32_t threads = ((p->d + 7) / 8 + 31) / 32 * 32;
    threads = threads > MAX_NORM_THREADS ? MAX_NORM_THREADS : threads;
    bool vec = p->d % 8 == 0 && sv_aligned16(p->x) && sv_aligned16(p->delta) &&
               sv_aligned16(p->out) && sv_aligned16(p->tap) && p->tap_stride % 8 == 0;
    const bool takes_own = p->join == SV_JOIN_MIXER;
    struct norm_args a = {p->d,
                          p->row_index,
                          sv_cuda_norm_of(&p->weight),
                          p->eps,
                          1.0f / (float)p->d,
                          p->tap_stride,
                          vec,
                          false,
                          p->n_rows <= cu->n_sms,
                          NULL,
                          NULL,
                          0,
                          NULL,
                          0};
    a.own = takes_own ? NULL : p->own_rows;
    const bool whole = vec && p->d <= 8 * threads && sv_aligned16(a.weight);
    void (*kernel)(struct norm_args, T *, const T *, T *, T *) =
        whole ? norm8_kernel<T, AS_IT_IS> : norm_kernel<T>;
    const bool groups = p->reader && sv_cuda_is_w8a8(p->reader),
               bytes = whole && p->reader && !a.own && (groups || sv_cuda_is_bytes(p->reader)) &&
                       sv_gemm_bytes_room(cu, p->n_rows, p->d);
    if constexpr (sizeof(T) == 2)
        if (bytes) {
            kernel = groups ? norm8_kernel<T, BY_GROUPS> : norm8_kernel<T, BY_ROWS>;
            a.scales_ld = groups ? cu->gemm->bytes_ld : 0;
            a.bytes = cu->gemm->bytes_x;
            a.byte_stride = sv_fp8_row_bytes(p->d);
            a.scales = cu->gemm->bytes_scale;
        }
    const void *delta = p->delta;
    if (p->join && !whole) {
        a.delta_in_order = true;
        delta = cu->peers->sums;
        sv_cuda_join_sums(cu, p->join, p->delta, p->row_index, takes_own ? p->own_rows : NULL,
                          p->n_rows, p->d, cu->peers->sums);
    }
    if (p->join && whole)
        norm_join_launch<T>(cu, p, a, threads);
    else
        sv_cuda_launch_in_pass(cu, "add_rms_norm", kernel, p->n_rows, threads, 0, a, (T *)p->x,
                               (const T *)delta, (T *)p->out, (T *)p->tap);
    cu->bytes_of = a.bytes ? p->out : NULL;
    cu->bytes_n = p->n_rows;
    cu->bytes_d = p->d;
    cu->bytes_in_groups = groups;
}

void sv_cuda_add_rms_norm(struct sv_dev *dev, const struct sv_p_add_rms_norm *p)
{
    SV_REQUIRE(!p->tap_row);
    struct sv_cuda *cu = sv_cuda_of(dev);
    SV_REQUIRE(!p->join || (p->d % 8 == 0 && sv_aligned16(p->delta)));
    if (p->n_rows == 0) {
        sv_cuda_join_empty(cu, p->join);
        return;
    }
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
template <typename T> static void act_mul_launch(struct sv_cuda *cu, const struct sv_p_act_mul *p)
{
    bool vec = p->d % 8 == 0 && sv_aligned16(p->gate_up) && sv_aligned16(p->out);
    dim3 grid((unsigned)((p->d + 8 * 128 - 1) / (8 * 128)), (unsigned)p->n_rows);
    sv_cuda_launch_in_pass(cu, "act_mul", act_mul_kernel<T>, grid, 128, 0, (const T *)p->gate_up,
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

enum {
    HEAD_WARPS = 8,     /* heads a block, a warp each */
    ROPE_THREADS = 192, /* 24 heads of eight lanes */
    ROPE_FEW = 32       /* rows up to which a row is spread over several blocks */
};

struct rope_args {
    struct sv_rows rows;
    int64_t ld;
    int32_t n_heads, q_stride;
    struct sv_head_norm q_norm, k_norm;
    struct sv_rope_table rope;
    struct sv_kv kv;
    struct sv_cuda_fault *fault;
    /* segments and tables may be read before waiting for the launch before (cu->settled) */
    bool early;
    bool rehearse;
    uint32_t axis[SV_MAX_HEAD_DIM / 2 / 16]; /* rows with three positions: see sv_three */
};

/* What one head needs, worked out before the head is there. */
struct rope_job {
    int32_t kind;  /* JOB_* */
    int64_t at;    /* of a key or value: element of the cache */
    int64_t angle; /* of a row with one position */
};
enum { JOB_NONE, JOB_QUERY, JOB_KEY, JOB_VALUE };

/* lane: among those that share the head. */
template <bool THREE>
static __device__ __forceinline__ struct rope_job rope_job_of(const struct rope_args &a, int32_t r,
                                                              int32_t head, int lane)
{
    struct rope_job job = {};
    const int32_t seg = a.rows.row_seg[r], pos = a.rows.row_pos[r], n_kv = a.kv.n_kv_heads;
    if (seg < 0 || head >= a.n_heads + 2 * n_kv)
        return job;
    const int32_t slot = a.rows.seg_slot[seg];
    const bool reports = head == 0 && lane == 0;
    if (!THREE)
        job.angle =
            (int64_t)sv_rope_row(&a.rope, pos, reports ? a.fault : NULL) * (a.rope.rot_dim / 2);
    job.kind = head < a.n_heads ? JOB_QUERY : head < a.n_heads + n_kv ? JOB_KEY : JOB_VALUE;
    if (job.kind != JOB_QUERY) {
        job.at = sv_kv_at(a.kv, slot, pos);
        if (job.at < 0) {
            if (lane == 0)
                sv_fault_set(a.fault, SV_CUDA_FAULT_WRITE_PAGE, slot, pos, 0);
            job.kind = JOB_NONE;
        }
        job.at += (int64_t)((head - a.n_heads) % n_kv) * a.kv.page_size * a.kv.head_dim;
    }
    return job;
}

/* Where the angles of a row with three positions begin; padding: anywhere. */
static __device__ __forceinline__ struct sv_three three_of(const struct rope_args &a, int32_t r)
{
    struct sv_cuda_fault *const fault = blockIdx.x == 0 && threadIdx.x == 0 ? a.fault : NULL;
    struct sv_three t = {{0, 0, 0}, a.axis};
    if (a.rows.row_seg[r] >= 0)
#pragma unroll
        for (int i = 0; i < 3; i++)
            t.at[i] = (int64_t)sv_rope_row(&a.rope, a.rows.row_rope[3 * (int64_t)r + i], fault) *
                      (a.rope.rot_dim / 2);
    return t;
}

template <typename T, typename K, bool THREE>
static __global__ void rope_kernel(const __grid_constant__ struct rope_args a, T *qkv)
{
    __shared__ float buffer[HEAD_WARPS][SV_MAX_HEAD_DIM];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t r = blockIdx.y, hd = a.kv.head_dim, head = blockIdx.x * HEAD_WARPS + warp;
    struct rope_job job = {};
    sv_pdl_launch();
    if (a.early)
        job = rope_job_of<THREE>(a, r, head, lane);
    sv_pdl_wait();
    if (!a.early)
        job = rope_job_of<THREE>(a, r, head, lane);
    const struct sv_three by = THREE ? three_of(a, r) : sv_three();
    const struct sv_three *const three = THREE ? &by : NULL;
    T *x = qkv + r * a.ld + (int64_t)min(head, a.n_heads) * a.q_stride +
           (int64_t)max(head - a.n_heads, 0) * hd;
    if (job.kind == JOB_QUERY)
        sv_head_norm_rope(x, x, buffer[warp], a.q_norm, a.rope, job.angle, hd, lane, three);
    else if (job.kind == JOB_KEY)
        sv_head_norm_rope(sv_kv_row<K>(a.kv, false, job.at), x, buffer[warp], a.k_norm, a.rope,
                          job.angle, hd, lane, three);
    else if (job.kind == JOB_VALUE)
        sv_head_copy(sv_kv_row<K>(a.kv, true, job.at), x, hd, lane);
}

/* The same for heads of 128, all of which is rotated: eight lanes a head, PER heads of a row one
 * after the other. As norm8_kernel: little code, everything that is not the head itself read before
 * it is there (but the weights of a norm where a thread has two heads, which registers have no room
 * for), instructions rehearsed, and few enough registers a row to find and leave room beside matrix
 * products. */
template <typename T, typename K, int PER, bool THREE>
static __global__ void __launch_bounds__(ROPE_THREADS, PER == 1 ? 1
                                                       : THREE || sizeof(T) > 2 || sizeof(K) == 1
                                                           ? 3
                                                           : 4)
    rope128_kernel(const __grid_constant__ struct rope_args a, T *qkv)
{
    const int lane = threadIdx.x % 8, step = blockDim.x / 8;
    const int32_t r = blockIdx.y, first = blockIdx.x * step * PER + threadIdx.x / 8;
    struct rope_job job[PER];
    struct sv_turn128 turn;
    float weight[16] = {};
    const auto load_weight = [&](const struct rope_job &j) {
        const float *w = j.kind == JOB_QUERY ? a.q_norm.weight : a.k_norm.weight;
        if (w) {
            sv_load_norm8(weight, w + 8 * lane);
            sv_load_norm8(weight + 8, w + 8 * lane + 64);
        }
    };
    sv_pdl_launch();
    if (!a.early)
        sv_pdl_wait();
#pragma unroll
    for (int p = 0; p < PER; p++)
        job[p] = rope_job_of<THREE>(a, r, first + p * step, lane);
    if (PER == 1)
        load_weight(job[0]);
    if (THREE)
        sv_turn128_load(&turn, a.rope, three_of(a, r), lane);
    else
        sv_turn128_load(&turn, a.rope, job[0].angle, lane);
    T *x = qkv + r * a.ld + (int64_t)first * 128 + 8 * lane;
#pragma unroll 1
    for (int pass = a.rehearse && a.early ? 0 : 1; pass < 2; pass++) {
        const bool real = pass == 1;
        struct sv_eight<T> in[PER][2] = {};
        if (real)
            sv_pdl_wait();
#pragma unroll
        for (int p = 0; p < PER; p++)
            if (real && job[p].kind != JOB_NONE) {
                in[p][0] = *(const struct sv_eight<T> *)(x + p * step * 128);
                in[p][1] = *(const struct sv_eight<T> *)(x + p * step * 128 + 64);
            }
#pragma unroll
        for (int p = 0; p < PER; p++) {
            if (PER > 1)
                load_weight(job[p]);
            float v[16];
            sv_spread8(v, in[p][0]);
            sv_spread8(v + 8, in[p][1]);
            const struct sv_head_norm &norm = job[p].kind == JOB_QUERY ? a.q_norm : a.k_norm;
            if (norm.weight)
                sv_norm128(v, weight, norm.eps, job[p].kind != JOB_VALUE);
            if (job[p].kind != JOB_VALUE)
                sv_turn128(v, turn);
            const uint32_t most = sv_largest128<K>(v);
            if (!real || job[p].kind == JOB_NONE)
                continue;
            if (job[p].kind == JOB_QUERY) {
                sv_store8(x + p * step * 128, v);
                sv_store8(x + p * step * 128 + 64, v + 8);
            } else {
                sv_put128<K>(sv_kv_row<K>(a.kv, job[p].kind == JOB_VALUE, job[p].at), v, most,
                             lane);
            }
        }
    }
}

template <typename T, typename K, bool THREE>
static void rope_launch(struct sv_cuda *cu, const struct rope_args &a, bool whole, void *qkv)
{
    const int32_t heads = a.n_heads + 2 * a.kv.n_kv_heads, n = a.rows.n_rows;
    /* Few rows: blocks of 8 heads. More: one or a few blocks a row, two heads a thread. */
    const int32_t per = n <= ROPE_FEW ? 1 : 2, most = n <= ROPE_FEW ? 64 : ROPE_THREADS;
    int32_t threads = (8 * ((heads + per - 1) / per) + 31) / 32 * 32;
    threads = threads < most ? threads : most;
    const int32_t in_block = whole ? threads / 8 * per : HEAD_WARPS;
    const dim3 grid((unsigned)((heads + in_block - 1) / in_block), (unsigned)n);
    sv_cuda_launch_in_pass(cu, "qk_norm_rope_kv_write",
                           !whole     ? rope_kernel<T, K, THREE>
                           : per == 1 ? rope128_kernel<T, K, 1, THREE>
                                      : rope128_kernel<T, K, 2, THREE>,
                           grid, whole ? threads : 32 * HEAD_WARPS, 0, a, (T *)qkv);
}

/* Whether eight lanes can take a head: a matter of the model and its caches, never of rows. */
static bool takes_eight_lanes(const struct sv_p_qk_norm_rope_kv_write *p)
{
    const struct sv_weight *w[2] = {&p->q_norm, &p->k_norm};
    for (int i = 0; i < 2; i++)
        if (!sv_aligned16(w[i]->data))
            return false;
    return p->kv.head_dim == 128 && (!p->q_stride || p->q_stride == 128) &&
           p->rope.rot_dim == 128 && p->ld % 8 == 0 && sv_aligned16(p->qkv) &&
           sv_aligned16(p->kv.k) && sv_aligned16(p->kv.v) && sv_aligned16(p->rope.cos) &&
           sv_aligned16(p->rope.sin);
}

template <typename T, typename K>
static void rope_by_positions(struct sv_cuda *cu, const struct sv_p_qk_norm_rope_kv_write *p,
                              const struct rope_args &a)
{
    const bool whole = takes_eight_lanes(p);
    if (p->rope.axis && p->rows.row_rope)
        rope_launch<T, K, true>(cu, a, whole, p->qkv);
    else
        rope_launch<T, K, false>(cu, a, whole, p->qkv);
}

template <typename T>
static void rope_by_cache(struct sv_cuda *cu, const struct sv_p_qk_norm_rope_kv_write *p,
                          const struct rope_args &a)
{
    if (p->kv.dtype == SV_F8)
        rope_by_positions<T, uint8_t>(cu, p, a);
    else if (p->kv.dtype == SV_BF16)
        rope_by_positions<T, __nv_bfloat16>(cu, p, a);
    else
        rope_by_positions<T, float>(cu, p, a);
}

void sv_cuda_qk_norm_rope_kv_write(struct sv_dev *dev, const struct sv_p_qk_norm_rope_kv_write *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct rope_args a = {p->rows,
                          p->ld,
                          p->n_heads,
                          p->q_stride ? p->q_stride : p->kv.head_dim,
                          {sv_cuda_norm_of(&p->q_norm), p->eps},
                          {sv_cuda_norm_of(&p->k_norm), p->eps},
                          p->rope,
                          p->kv,
                          cu->fault,
                          cu->settled,
                          p->rows.n_rows <= cu->n_sms,
                          {}};
    for (int32_t i = 0; i < p->rope.rot_dim / 2 && p->rope.axis; i++)
        a.axis[i / 16] |= (uint32_t)p->rope.axis[i] << (2 * (i % 16));
    if (cu->act == SV_BF16)
        rope_by_cache<__nv_bfloat16>(cu, p, a);
    else
        rope_by_cache<float>(cu, p, a);
}
