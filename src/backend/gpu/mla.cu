/*
 * mla.cu - latent attention without the attention kernels: the cached latent of a position, and the
 * products of each head with its own matrix.
 *
 * Called through the table in device.cu. A row's sum has an order fixed by its length: of the norm
 * over the lanes of a warp, of a product over 64 columns at a time. Must not: choose a kernel by
 * the number of rows where kernels add in different orders.
 */
#include "backend/gpu/gpu.h"
#include "backend/gpu/mla.h"
#include "backend/gpu/norm_rope.cuh"
#include "backend/gpu/pack.cuh"

/* ---------------------------------------------------------------- what is kept */

enum { WRITE_WARPS = 8 };

struct write_args {
    struct sv_p_mla_write p;
    struct sv_cuda_fault *fault;
};

/* By one warp. Neighbours are brought half a vector apart, in queries and keys alike, which leaves
 * their products what they are. */
template <typename T, typename O>
static __device__ __forceinline__ void rotate(const struct sv_p_mla_write &p, O *out, const T *x,
                                              int64_t angle)
{
    const int32_t half = p.rope.rot_dim / 2, lane = threadIdx.x % 32;
    for (int32_t i = lane; i < half; i += 32) {
        const float a = sv_load(x + (p.interleaved ? 2 * i : i)),
                    b = sv_load(x + (p.interleaved ? 2 * i + 1 : half + i)),
                    cos = p.rope.cos[angle + i], sin = p.rope.sin[angle + i];
        sv_store(out + i, __fmaf_rn(-b, sin, __fmul_rn(a, cos)));
        sv_store(out + half + i, __fmaf_rn(a, sin, __fmul_rn(b, cos)));
    }
}

/* The numbers of a latent as codes, and the scales of its tiles. By one warp. */
template <class F>
static __device__ __forceinline__ void keep_f8(uint8_t *row, int32_t latent, const F &number)
{
    const int32_t lane = threadIdx.x % 32;
    for (int32_t first = 0; first < latent; first += SV_LATENT_TILE) {
        const int32_t end = min(first + SV_LATENT_TILE, latent);
        uint32_t most = 0;
        for (int32_t i = first + lane; i < end; i += 32)
            most = sv_kv_f8_larger(most, number(i));
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            most = sv_kv_f8_most(most, __shfl_xor_sync(0xffffffffu, most, step));
        const struct sv_kv_f8_put put = sv_kv_f8_put_of(most, 0);
        for (int32_t i = first + 2 * lane; i < end; i += 64)
            *(uint16_t *)(row + i) = (uint16_t)sv_kv_f8_codes(put, number(i), number(i + 1));
        if (lane == 0)
            *(float *)(row + latent + first / SV_LATENT_TILE * 4) =
                sv_kv_f8_scale(sv_kv_f8_own(put), 0);
    }
}

template <typename T, typename K>
static __device__ __forceinline__ void keep(const struct write_args &a, int32_t row, int32_t slot,
                                            int32_t pos, int64_t angle)
{
    const struct sv_p_mla_write &p = a.p;
    const int32_t width = p.cache.head_dim, latent = width - p.rope.rot_dim,
                  lane = threadIdx.x % 32;
    const T *x = (const T *)p.kv + (int64_t)row * width;
    const int64_t at = sv_kv_at(p.cache, slot, pos);
    float sum = 0.0f;
    if (at < 0) {
        if (lane == 0)
            sv_fault_set(a.fault, SV_CUDA_FAULT_WRITE_PAGE, slot, pos, 0);
        return;
    }
    for (int32_t i = lane; i < latent; i += 32)
        sum = __fmaf_rn(sv_load(x + i), sv_load(x + i), sum);
    const float inv = 1.0f / sqrtf(sv_warp_sum(sum) / (float)latent + p.eps);
    const auto number = [&](int32_t i) {
        return sv_load(x + i) * inv * ((const float *)p.norm.data)[i];
    };
    if constexpr (sizeof(K) == 1) {
        uint8_t *row = (uint8_t *)p.cache.k + at / width * sv_latent_bytes(p.cache);
        keep_f8(row, latent, number);
        rotate(p, (__nv_bfloat16 *)(row + sv_latent_key_at(latent)), x + latent, angle);
    } else {
        K *to = (K *)p.cache.k + at;
        for (int32_t i = lane; i < latent; i += 32)
            sv_store(to + i, number(i));
        rotate(p, to + latent, x + latent, angle);
    }
}

/* A warp for each head's query, and one for what is kept. */
template <typename T, typename K>
static __global__ void __launch_bounds__(WRITE_WARPS * 32)
    write_kernel(const __grid_constant__ struct write_args a)
{
    const struct sv_p_mla_write &p = a.p;
    const int32_t head = (int32_t)(blockIdx.x * WRITE_WARPS + threadIdx.x / 32),
                  row = (int32_t)blockIdx.y;
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t seg = p.rows.row_seg[row], pos = p.rows.row_pos[row];
    if (seg < 0 || head > p.n_heads)
        return;
    const bool reports = head == 0 && threadIdx.x == 0;
    const int64_t angle =
        (int64_t)sv_rope_row(&p.rope, pos, reports ? a.fault : NULL) * (p.rope.rot_dim / 2);
    if (head == p.n_heads) {
        keep<T, K>(a, row, p.rows.seg_slot[seg], pos, angle);
        return;
    }
    const int32_t width = p.cache.head_dim, rot = p.rope.rot_dim;
    rotate(p, (T *)p.absorbed + ((int64_t)row * p.n_heads + head + 1) * width - rot,
           (const T *)p.q + ((int64_t)row * p.n_heads + head + 1) * p.head_dim - rot, angle);
}

void sv_cuda_mla_write(struct sv_dev *dev, const struct sv_p_mla_write *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    SV_REQUIRE(sv_cuda_norm_of(&p->norm));
    const struct write_args a = {*p, cu->fault};
    const bool half = p->cache.dtype == SV_BF16, f8 = p->cache.dtype == SV_F8;
    const dim3 grid((unsigned)(p->n_heads / WRITE_WARPS + 1), (unsigned)p->rows.n_rows);
    void (*const fn)(const struct write_args) =
        cu->act == SV_F32 ? (f8     ? write_kernel<float, uint8_t>
                             : half ? write_kernel<float, __nv_bfloat16>
                                    : write_kernel<float, float>)
                          : (f8     ? write_kernel<__nv_bfloat16, uint8_t>
                             : half ? write_kernel<__nv_bfloat16, __nv_bfloat16>
                                    : write_kernel<__nv_bfloat16, float>);
    sv_cuda_launch_in_pass(cu, "latents", fn, grid, dim3(WRITE_WARPS * 32), 0, a);
}

/* ---------------------------------------------------------------- products by head */

enum {
    OUTPUTS = 64,         /* of a thread block: 16 for each wave */
    WAVES = OUTPUTS / 16, /* a tile of weights, 64 columns of it at a time */
    STAGES = 3,
    STEPS = SV_TILE / GPU_K,
    FEW = 16,       /* rows that take the kernel for few */
    PLAIN_ROWS = 16 /* thread blocks that share the rows, at most */
};

struct product_args {
    const void *x, *w;
    void *y;
    int64_t ldx, ldy, w_stride; /* w_stride: bytes from one head's matrix to the next */
    int32_t n_rows, x_stride, y_stride, rows, cols, w_dtype;
    bool packed;
};

/* Columns [64 kk, 64 kk + 64) of the block's weights and of its rows of x; zeros behind the last
 * column. */
template <int ROWS>
static __device__ __forceinline__ void load(const struct product_args &a, const uint8_t *w,
                                            const __nv_bfloat16 *x, int32_t row0, int32_t kk,
                                            uint32_t to)
{
    constexpr int LINE = GPU_WAVE * 16, EACH = GPU_WAVE / 8;
    const uint64_t once = gpu_stream_policy();
    const uint32_t wave = gpu_wave(), lane = gpu_lane();
#pragma unroll
    for (int i = 0; i < SV_TILE_BYTES / (WAVES * LINE); i++) {
        const uint32_t line = (i * WAVES + wave) * LINE;
        gpu_copy_stream(to + line, w + (int64_t)kk * SV_TILE_BYTES + line + lane * 16, once);
    }
#pragma unroll
    for (int i = 0; i < (ROWS + WAVES * EACH - 1) / (WAVES * EACH); i++) {
        const uint32_t at = (i * WAVES + wave) * EACH;
        if (at >= ROWS)
            break;
        gpu_copy_rows<128, false>(to + SV_TILE_BYTES, at, [&](uint32_t row, uint32_t chunk) {
            const int32_t col = kk * SV_TILE + 8 * (int32_t)chunk;
            const bool there = row0 + (int32_t)row < a.n_rows && col < a.cols;
            return gpu_source{there ? x + (int64_t)row * a.ldx + col : x, there};
        });
    }
}

/* 64 outputs of one head for ROWS rows of x. */
template <int ROWS>
static __global__ void __launch_bounds__(WAVES *GPU_WAVE)
    product_kernel(const __grid_constant__ struct product_args a)
{
    constexpr int STAGE = SV_TILE_BYTES + ROWS * 128, ROWS_16 = ROWS / 16;
    GPU_SHARED(shared);
    const uint32_t ring = gpu_shared_at(shared), lane = gpu_lane(), wave = gpu_wave();
    const int32_t n_k = sv_tiles(a.cols), n_blocks = sv_tiles(a.rows),
                  band = (int32_t)blockIdx.x % n_blocks, head = (int32_t)blockIdx.y,
                  out0 = band * OUTPUTS, row0 = (int32_t)blockIdx.x / n_blocks * ROWS;
    const uint8_t *w =
        (const uint8_t *)a.w + head * a.w_stride + (int64_t)band * n_k * SV_TILE_BYTES;
    const __nv_bfloat16 *x = (const __nv_bfloat16 *)a.x + row0 * a.ldx + (int64_t)head * a.x_stride;
    float acc[ROWS_16][gpu_sums(16)];
#pragma unroll
    for (int i = 0; i < ROWS_16; i++)
#pragma unroll
        for (int e = 0; e < gpu_sums(16); e++)
            acc[i][e] = 0.0f;
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t kk = 0; kk < STAGES - 1; kk++) {
        if (kk < n_k)
            load<ROWS>(a, w, x, row0, kk, ring + kk * STAGE);
        gpu_copy_commit();
    }
#pragma unroll 1
    for (int32_t kk = 0; kk < n_k; kk++) {
        gpu_copy_wait<STAGES - 2>(STAGES - 2,
                                  kk + 1 < n_k ? SV_TILE_BYTES / 16 / GPU_WAVE / WAVES : 0);
        __syncthreads(); /* all have this tile, and are done with the one before */
        if (kk + STAGES - 1 < n_k)
            load<ROWS>(a, w, x, row0, kk + STAGES - 1, ring + (kk + STAGES - 1) % STAGES * STAGE);
        gpu_copy_commit();
        const uint32_t at = ring + kk % STAGES * STAGE;
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            uint32_t b[4], q[4];
            gpu_load_b(b,
                       at + gpu_place<128>(16 * wave + gpu_b_row(), GPU_K / 8 * k + gpu_b_chunk()));
#pragma unroll
            for (int i = 0; i < ROWS_16; i++) {
                gpu_load_a(q,
                           at + SV_TILE_BYTES +
                               gpu_place<128>(16 * i + (lane & 15), GPU_K / 8 * k + (lane >> 4)));
                gpu_mma(acc[i], q, b);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS_16; i++)
#pragma unroll
        for (int e = 0; e < gpu_sums(16); e++) {
            const int32_t row = row0 + 16 * i + gpu_run_row((int)lane) + 8 * (e % 4 / GPU_RUN),
                          out = out0 + 16 * (int32_t)wave + e / 4 * GPU_COLS +
                                gpu_run_col((int)lane) + e % GPU_RUN;
            if (row < a.n_rows && out < a.rows)
                sv_store((__nv_bfloat16 *)a.y + row * a.ldy + (int64_t)head * a.y_stride + out,
                         acc[i][e]);
        }
}

/* Any weights: a warp has an output of a head, for all rows; lane l adds columns l, l + 32, ... */
template <typename T>
static __global__ void __launch_bounds__(256)
    plain_kernel(const __grid_constant__ struct product_args a)
{
    const int32_t n_blocks = (a.rows + 7) / 8, lane = threadIdx.x % 32,
                  out = (int32_t)(blockIdx.x % n_blocks * 8 + threadIdx.x / 32),
                  head = (int32_t)blockIdx.y;
    sv_pdl_launch();
    sv_pdl_wait();
    if (out >= a.rows)
        return;
    const uint8_t *w = (const uint8_t *)a.w + head * a.w_stride;
    for (int32_t row = (int32_t)blockIdx.x / n_blocks; row < a.n_rows; row += PLAIN_ROWS) {
        const T *x = (const T *)a.x + row * a.ldx + (int64_t)head * a.x_stride;
        float sum = 0.0f;
        for (int32_t c = lane; c < a.cols; c += 32) {
            const int64_t at =
                a.packed ? (int64_t)sv_packed_at(out, c, a.cols) : (int64_t)out * a.cols + c;
            sum = __fmaf_rn(sv_weight_at(w, a.w_dtype, at), sv_load(x + c), sum);
        }
        sum = sv_warp_sum(sum);
        if (lane == 0)
            sv_store((T *)a.y + row * a.ldy + (int64_t)head * a.y_stride + out, sum);
    }
}

static bool aligned(const void *p, int64_t ld)
{
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

template <int ROWS> static void launch(struct sv_cuda *cu, const struct product_args &a, int32_t n)
{
    sv_cuda_launch_in_pass(
        cu, "products by head", product_kernel<ROWS>,
        dim3((unsigned)(sv_tiles(a.rows) * ((a.n_rows + ROWS - 1) / ROWS)), (unsigned)n),
        dim3(WAVES * GPU_WAVE), (size_t)STAGES * (SV_TILE_BYTES + ROWS * 128), a);
}

void sv_cuda_head_products(struct sv_dev *dev, const struct sv_p_head_products *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    const struct sv_experts *w = &p->w;
    struct product_args a = {};
    a.x = p->x;
    a.w = w->w[0].data;
    a.y = p->y;
    a.ldx = p->ldx;
    a.ldy = p->ldy;
    a.w_stride = w->n > 1 ? (const uint8_t *)w->w[1].data - (const uint8_t *)w->w[0].data : 0;
    a.n_rows = p->n_rows;
    a.x_stride = p->x_stride;
    a.y_stride = p->y_stride;
    a.rows = w->rows;
    a.cols = w->cols;
    a.w_dtype = w->w[0].fmt.elem;
    a.packed = sv_cuda_is_packed(&w->w[0]);
    SV_REQUIRE(a.w_dtype <= SV_F16);
    /* A matter of the model alone. */
    if (cu->act == SV_BF16 && a.packed && a.cols % 8 == 0 && a.x_stride % 8 == 0 &&
        aligned(a.x, a.ldx)) {
        if (a.n_rows <= FEW)
            launch<FEW>(cu, a, w->n);
        else
            launch<64>(cu, a, w->n);
        return;
    }
    sv_cuda_launch_in_pass(
        cu, "products by head",
        cu->act == SV_F32 ? plain_kernel<float> : plain_kernel<__nv_bfloat16>,
        dim3((unsigned)((a.rows + 7) / 8 * (a.n_rows < PLAIN_ROWS ? a.n_rows : PLAIN_ROWS)),
             (unsigned)w->n),
        dim3(256), 0, a);
}
