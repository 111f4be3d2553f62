/*
 * moe_route.cu - a mixture of experts before and after its products: which rows go to which
 * experts, and a row's results added up.
 *
 * Called through the table of ops; open and close: by device.cu. A warp has one expert's logits: a
 * row's is a sum of 32 lanes, each over its columns in ascending order, whatever other rows there
 * are. Few rows take one launch: the thread block that arrives last chooses and makes the lists.
 * Many take three; what they write is the same. Must not: choose by anything but a row's own
 * logits; let the order in which blocks arrive decide more than which block makes the lists.
 */
#include "backend/cuda/watch.h"
#include "backend/gpu/moe_route.cuh"

/* ---------------------------------------------------------------- logits */

/* Eight weights of row e, from column 8 c on. */
template <bool WIDE>
static __device__ __forceinline__ void weights8(float out[8], const struct route &a, int32_t e,
                                                int32_t c)
{
    if constexpr (WIDE) {
        sv_spread8(out, weights_of(a, e, c));
    } else {
        for (int32_t i = 0; i < 8; i++) {
            const int32_t col = 8 * c + i;
            const int64_t at = e == a.n   ? col
                               : a.packed ? (int64_t)sv_packed_at(e, col, a.hidden)
                                          : (int64_t)e * a.hidden + col;
            out[i] = col < a.hidden ? sv_weight_at(e == a.n ? a.shared : a.w, a.w_dtype, at) : 0.0f;
        }
    }
}

template <typename T, bool WIDE>
static __device__ __forceinline__ void values8(float out[8], const struct route &a, int32_t row,
                                               int32_t c)
{
    const T *x = (const T *)a.x + (int64_t)row * a.hidden + 8 * c;
    if constexpr (WIDE) {
        sv_load8(out, x);
    } else {
        for (int32_t i = 0; i < 8; i++)
            out[i] = 8 * c + i < a.hidden ? sv_load(x + i) : 0.0f;
    }
}

/* The logits of expert e for rows [row0, row0 + N). Lane l has pieces l, l + 32, ... Rows beyond
 * the last are the last once more, so that no load waits for a branch. */
template <typename T, bool WIDE, int N>
static __device__ __forceinline__ void logits_of(const struct route &a, int32_t e, int32_t row0,
                                                 const uint4 (&early)[EARLY])
{
    const int lane = threadIdx.x & 31;
    const int32_t pieces = (a.hidden + 7) / 8, last = a.r.n_rows - 1;
    float sum[N];
#pragma unroll
    for (int r = 0; r < N; r++)
        sum[r] = 0.0f;
    auto add = [&](int32_t c, const float(&w)[8]) {
        float x[N][8];
#pragma unroll
        for (int r = 0; r < N; r++)
            values8<T, WIDE>(x[r], a, min(row0 + r, last), c);
#pragma unroll
        for (int r = 0; r < N; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum[r] = fmaf(w[i], x[r][i], sum[r]);
    };
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (WIDE && lane + 32 * i < pieces) {
            float w[8];
            sv_spread8(w, early[i]);
            add(lane + 32 * i, w);
        }
#pragma unroll 1
    for (int32_t c = lane + (WIDE ? 32 * EARLY : 0); c < pieces; c += 32) {
        float w[8];
        weights8<WIDE>(w, a, e, c);
        add(c, w);
    }
    const float bias = a.bias && e < a.n ? sv_weight_at(a.bias, a.bias_dtype, e) : 0.0f;
#pragma unroll
    for (int r = 0; r < N; r++) {
        const float all = sv_warp_sum(sum[r]) + bias;
        if (lane == r && row0 + r <= last)
            a.r.logits[(int64_t)(row0 + r) * a.r.n_experts + e] = all;
    }
}

/* The same of many rows: a warp has the logits of MANY_EXPERTS experts for MANY_ROWS rows, which it
 * reads and converts once. The warps of a thread block have neighbouring ones. */
enum { MANY_EXPERTS = 4, MANY_ROWS = 8, MANY_ACROSS = 4 /* warps that have the same rows */ };

static __global__ void __launch_bounds__(THREADS, 1) many_kernel(const struct route a)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const int32_t pieces = a.hidden / 8, last = a.r.n_rows - 1;
    const int32_t e0 = ((int32_t)blockIdx.x * MANY_ACROSS + warp % MANY_ACROSS) * MANY_EXPERTS;
    const int32_t row0 =
        ((int32_t)blockIdx.y * (WARPS / MANY_ACROSS) + warp / MANY_ACROSS) * MANY_ROWS;
    float sum[MANY_EXPERTS][MANY_ROWS] = {};
    sv_pdl_launch();
    sv_pdl_wait();
    if (row0 > last)
        return;
#pragma unroll 1
    for (int32_t c = lane; c < pieces; c += 32) {
        uint4 weights[MANY_EXPERTS], values[MANY_ROWS];
#pragma unroll
        for (int j = 0; j < MANY_EXPERTS; j++)
            weights[j] = weights_of(a, min(e0 + j, a.n_logits - 1), c);
#pragma unroll
        for (int r = 0; r < MANY_ROWS; r++)
            values[r] = *((const uint4 *)a.x + (int64_t)min(row0 + r, last) * pieces + c);
        float w[MANY_EXPERTS][8];
#pragma unroll
        for (int j = 0; j < MANY_EXPERTS; j++)
            sv_spread8(w[j], weights[j]);
#pragma unroll
        for (int r = 0; r < MANY_ROWS; r++) {
            float x[8];
            sv_spread8(x, values[r]);
#pragma unroll
            for (int j = 0; j < MANY_EXPERTS; j++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[j][r] = fmaf(w[j][i], x[i], sum[j][r]);
        }
    }
#pragma unroll
    for (int j = 0; j < MANY_EXPERTS; j++) {
        const int32_t e = e0 + j;
        const float bias = a.bias && e < a.n ? sv_weight_at(a.bias, a.bias_dtype, e) : 0.0f;
#pragma unroll
        for (int r = 0; r < MANY_ROWS; r++) {
            const float all = sv_warp_sum(sum[j][r]) + bias;
            if (lane == r && row0 + r <= last && e < a.n_logits)
                a.r.logits[(int64_t)(row0 + r) * a.r.n_experts + e] = all;
        }
    }
}

/* ---------------------------------------------------------------- few rows */

template <typename T, bool WIDE, int N>
static __global__ void __launch_bounds__(THREADS, 1) router_kernel(const struct route a)
{
    __shared__ uint32_t order;
    __shared__ int32_t chosen[FEW_ENTRIES];
    __shared__ uint32_t rows[FEW_WORDS];
    const int32_t e = (int32_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x & 31;
    uint4 early[EARLY];
    sv_pdl_launch();
#pragma unroll
    for (int i = 0; i < EARLY; i++)
        if (WIDE && e < a.n_logits && 8 * (lane + 32 * i) < a.hidden)
            early[i] = weights_of(a, e, lane + 32 * i);
    sv_pdl_wait();
    if (e < a.n_logits)
        for (int32_t row = (int32_t)blockIdx.y * N; row < a.r.n_rows; row += (int32_t)gridDim.y * N)
            logits_of<T, WIDE, N>(gpu_args(a), e, row, early);
    if (!a.arrived)
        return;
    gpu_publish();
    __syncthreads();
    if (threadIdx.x == 0)
        order = gpu_arrive(a.arrived);
    __syncthreads();
    if (order != gridDim.x * gridDim.y - 1)
        return;
    if (threadIdx.x == 0)
        *a.arrived = 0;
    gpu_obtain();
    for (int32_t row = threadIdx.x / 32; row < a.r.n_rows; row += WARPS)
        choose<false>(gpu_args(a), row, a.row_seg[row] >= 0,
                      a.r.logits + (int64_t)row * a.r.n_experts, chosen, [] {});
    few_lists(gpu_args(a), chosen, rows);
}

/* ---------------------------------------------------------------- lists of many */

/* Rows are chosen for and listed GROUP at a time. */
enum { GROUP = 32 };

/* A word for each expert, with a bit for each row of a group that has chosen it; where the group's
 * logits were, which are not needed any more. */
static __device__ __forceinline__ uint32_t *words_of(const struct route &a, int32_t group)
{
    return (uint32_t *)a.r.logits + (int64_t)group * GROUP * a.r.n_experts;
}

static __global__ void __launch_bounds__(GROUP * 32) choose_kernel(const struct route a)
{
    __shared__ uint32_t rows[SV_MAX_EXPERTS];
    const int32_t warp = (int32_t)threadIdx.x / 32, row = (int32_t)blockIdx.x * GROUP + warp;
    sv_pdl_launch();
    for (int32_t e = (int32_t)threadIdx.x; e < a.r.own.n; e += GROUP * 32)
        rows[e] = 0;
    __syncthreads();
    sv_pdl_wait();
    int32_t id = -1;
    if (row < a.r.n_rows)
        id = choose<false>(a, row, a.row_seg[row] >= 0, a.r.logits + (int64_t)row * a.r.n_experts,
                           NULL, [] {});
    if (id >= 0)
        atomicOr(rows + id, 1u << warp);
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; e < a.r.own.n; e += GROUP * 32)
        words_of(a, (int32_t)blockIdx.x)[e] = rows[e];
}

/* A thread block for each group. An expert's entries are in ascending order, behind those of the
 * experts before it. */
static __global__ void __launch_bounds__(THREADS) list_kernel(const struct route a)
{
    __shared__ uint32_t scratch[WARPS], rows[SV_MAX_EXPERTS];
    __shared__ int32_t first[SV_MAX_EXPERTS]; /* of this group's entries of an expert */
    const int32_t n_groups = (a.r.n_rows + GROUP - 1) / GROUP, here = (int32_t)blockIdx.x;
    uint32_t n_entries = 0, n_active = 0; /* of experts so far */
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t e0 = 0; e0 < a.r.own.n; e0 += THREADS) {
        const int32_t e = e0 + (int32_t)threadIdx.x;
        const bool inside = e < a.r.own.n;
        uint32_t mine = 0, before = 0, all, all_active;
#pragma unroll 8
        for (int32_t g = 0; g < n_groups; g++) {
            const uint32_t word = inside ? words_of(a, g)[e] : 0;
            mine += (uint32_t)__popc(word);
            before += g < here ? (uint32_t)__popc(word) : 0;
        }
        const uint32_t at = n_entries + before_me(mine, scratch, &all),
                       active = n_active + before_me(mine > 0, scratch, &all_active);
        n_entries += all;
        n_active += all_active;
        if (!inside)
            continue;
        rows[e] = words_of(a, here)[e];
        first[e] = (int32_t)(at + before);
        if (here == 0)
            a.r.first[e] = (int32_t)at;
        if (here == 0 && mine)
            a.r.active[active] = e;
    }
    if (here == 0 && threadIdx.x == 0) {
        a.r.first[a.r.own.n] = (int32_t)n_entries;
        *a.r.n_active = (int32_t)n_active;
        if (a.n_chosen)
            *a.n_chosen += n_active - (n_active && a.r.shared);
    }
    __syncthreads();
    const struct route &again = gpu_args(a);
    const int32_t k = again.r.k, entry0 = here * GROUP * k,
                  end = min(entry0 + GROUP * k, again.r.n_rows * k);
    for (int32_t i = entry0 + (int32_t)threadIdx.x; i < end; i += THREADS) {
        const int32_t e = own_of(again, again.r.expert[i]);
        if (e < 0)
            continue;
        const int32_t place = first[e] + __popc(rows[e] & ((1u << i / k % GROUP) - 1));
        again.r.list[place] = i;
        again.r.place[i] = place;
    }
}

/* ---------------------------------------------------------------- host */

int sv_cuda_route_open(struct sv_cuda *cu, struct sv_err *err)
{
    const size_t n = (1 + FEW_ENTRIES) * sizeof *cu->arrived;
    if (cu->arrived)
        return SV_OK;
    int rc = sv_cuda_alloc((struct sv_dev *)(void *)cu, (void **)&cu->arrived, n, err);
    if (!rc)
        rc = sv_cuda_try(cudaMemsetAsync(cu->arrived, 0, n, cu->stream), err,
                         "the router's counters");
    return rc;
}

void sv_cuda_route_close(struct sv_cuda *cu)
{
    sv_cuda_drop(cu, cu->arrived);
}

void sv_cuda_router_topk(struct sv_dev *dev, const struct sv_p_router_topk *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    struct route a = {};
    a.r = p->routes;
    a.r.own.n = sv_routes_n_own(&p->routes);
    a.x = p->x;
    a.w = p->w.data;
    a.bias = p->bias.data;
    a.shared = p->shared.data;
    a.n = p->w.rows;
    a.k = a.r.k - a.r.shared;
    a.n_logits = a.n + (a.shared != NULL);
    a.hidden = p->w.cols;
    a.w_dtype = p->w.fmt.elem;
    a.bias_dtype = p->bias.fmt.elem;
    a.packed = sv_cuda_is_packed(&p->w);
    a.row_seg = p->rows.row_seg;
    a.norm = p->norm;
    a.sigmoid = p->sigmoid;
    a.n_chosen = p->n_chosen;
    SV_REQUIRE(a.w_dtype <= SV_F16);
    if (p->before && cu->set == SV_CUDA_SM90 && sv_cuda_norm_route_sm90(cu, p, &a))
        return;
    if (p->before)
        sv_cuda_add_rms_norm(dev, p->before);
    const bool few = are_few(&a.r),
               wide = a.packed && a.hidden % 8 == 0 && (uintptr_t)a.shared % 16 == 0;
    a.arrived = few ? cu->arrived : NULL;

    const dim3 block(THREADS), logits((unsigned)(a.n_logits + WARPS - 1) / WARPS);
    static_assert(MOST_BLOCKS >= SV_MAX_EXPERTS / WARPS, "a thread block for each 16 experts");
    /* Blocks of many rows go over several groups with the weights that they have read. */
    const unsigned groups = (unsigned)(a.r.n_rows + ROWS - 1) / ROWS, most = MOST_BLOCKS / logits.x;
    const char *what = "a router";
    typedef void router_fn(const struct route);
    router_fn *const one = cu->act == SV_F32 ? router_kernel<float, false, 1>
                           : wide            ? router_kernel<__nv_bfloat16, true, 1>
                                             : router_kernel<__nv_bfloat16, false, 1>;
    router_fn *const more = cu->act == SV_F32 ? router_kernel<float, false, ROWS>
                            : wide            ? router_kernel<__nv_bfloat16, true, ROWS>
                                              : router_kernel<__nv_bfloat16, false, ROWS>;
    router_fn *const fn = a.r.n_rows == 1 ? one : more;
    if (!few && cu->act == SV_BF16 && wide) {
        const unsigned across = MANY_ACROSS * MANY_EXPERTS, down = WARPS / MANY_ACROSS * MANY_ROWS;
        sv_cuda_launch_in_pass(cu, what, many_kernel,
                               dim3(((unsigned)a.n_logits + across - 1) / across,
                                    ((unsigned)a.r.n_rows + down - 1) / down),
                               block, 0, a);
    } else {
        sv_cuda_launch_in_pass(cu, what, fn, dim3(logits.x, groups < most ? groups : most), block,
                               0, a);
    }
    if (few)
        return;
    const unsigned lists = (unsigned)(a.r.n_rows + GROUP - 1) / GROUP;
    sv_cuda_launch_in_pass(cu, what, choose_kernel, lists, GROUP * 32, 0, a);
    sv_cuda_launch_in_pass(cu, what, list_kernel, lists, block, 0, a);
}

/* ---------------------------------------------------------------- adding up */

/* For many rows, a thread has four columns; with few rows it is thread blocks that are wanted. */
static __device__ __forceinline__ void store4(float *out, const float4 &v)
{
    *(float4 *)out = v;
}
static __device__ __forceinline__ void store4(__nv_bfloat16 *out, const float4 &v)
{
    ((__nv_bfloat162 *)out)[0] = __floats2bfloat162_rn(v.x, v.y);
    ((__nv_bfloat162 *)out)[1] = __floats2bfloat162_rn(v.z, v.w);
}

template <typename T>
static __global__ void combine4_kernel(const struct sv_routes r, const float *x, int32_t hidden,
                                       T *out)
{
    sv_pdl_launch();
    sv_pdl_wait();
    const int32_t row = blockIdx.y, col = 4 * (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    if (col >= hidden)
        return;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int32_t j = 0; j < r.k; j++) {
        const int32_t place = r.place[row * r.k + j];
        const float w = r.weight[row * r.k + j];
        if (place < 0)
            continue;
        const float4 v = *(const float4 *)(x + (int64_t)place * hidden + col);
        sum.x = __fmaf_rn(w, v.x, sum.x);
        sum.y = __fmaf_rn(w, v.y, sum.y);
        sum.z = __fmaf_rn(w, v.z, sum.z);
        sum.w = __fmaf_rn(w, v.w, sum.w);
    }
    store4(out + (int64_t)row * hidden + col, sum);
}

/* Routes are complete since before the products, and so are read before down's end is waited for.
 * What is added is asked for at once: with a branch in front of each it would come one after the
 * other. */
template <typename T>
static __global__ void combine_kernel(const struct sv_routes r, const float *x, int32_t hidden,
                                      T *out)
{
    enum { AT_ONCE = 9 };
    sv_pdl_launch();
    const int32_t row = blockIdx.y, col = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
    int32_t place[AT_ONCE];
    float weight[AT_ONCE];
    const auto read_routes = [&](int32_t j0) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int32_t j = min(j0 + i, r.k - 1);
            const int32_t at = *(const volatile int32_t *)(r.place + row * r.k + j);
            place[i] = j0 + i < r.k ? at : -1;
            weight[i] = *(const volatile float *)(r.weight + row * r.k + j);
        }
    };
    read_routes(0);
    sv_pdl_wait();
    if (col >= hidden)
        return;
    float sum = 0.0f;
#pragma unroll 1
    for (int32_t j0 = 0; j0 < r.k; j0 += AT_ONCE) {
        float v[AT_ONCE];
        if (j0 > 0)
            read_routes(j0);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            v[i] = x[(int64_t)max(place[i], 0) * hidden + col];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            sum = place[i] < 0 ? sum : __fmaf_rn(weight[i], v[i], sum);
    }
    sv_store(out + (int64_t)row * hidden + col, sum);
}

template <typename T> static void combine(struct sv_cuda *cu, const struct sv_p_moe_combine *p)
{
    enum { THREADS = 256, MANY = 32 };
    const bool four = p->routes.n_rows >= MANY && p->hidden % 4 == 0 && (uintptr_t)p->x % 16 == 0 &&
                      (uintptr_t)p->out % 16 == 0;
    const int32_t each = THREADS * (four ? 4 : 1);
    sv_cuda_launch_in_pass(
        cu, "adding up of experts", four ? combine4_kernel<T> : combine_kernel<T>,
        dim3((unsigned)((p->hidden + each - 1) / each), (unsigned)p->routes.n_rows), dim3(THREADS),
        0, p->routes, p->x, p->hidden, (T *)p->out);
}

void sv_cuda_moe_combine(struct sv_dev *dev, const struct sv_p_moe_combine *p)
{
    struct sv_cuda *cu = sv_cuda_of(dev);
    if (cu->act == SV_F32)
        combine<float>(cu, p);
    else
        combine<__nv_bfloat16>(cu, p);
}
