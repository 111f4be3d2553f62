/*
 * moe_few_sm90.cu - experts in bf16 with 2 to 16 rows of x on sm_90a: each warp sums up 16 weight
 * rows of an expert by itself (of gate and up: eight each), from a ring of its own.
 *
 * Called by moe.cu. Gate and up divide the weight rows of all active experts evenly over the
 * multiprocessors. Down's thread blocks have the same 16 rows of all of them, and add them up in
 * the order of choice. A sum goes over all of k in ascending order, as in moe.cuh, so that the bits
 * are the same. Must not: let the number of entries decide the order of a sum.
 */
#include "backend/gpu/moe_sums.cuh"

#include "backend/gpu/moe.cuh"

enum {
    WARPS = 12,         /* of a thread block */
    MOST_ROWS = 16,     /* of x */
    MOST_ENTRIES = 256, /* rows times chosen experts */
    LINE = SV_TILE * 2, /* a row of a tile, of weights or of x */
    SMEM = 208 * 1024
};

/* Entries are listed by place, active experts' one behind the other. */
struct entries {
    int32_t expert[MOST_ENTRIES], place[MOST_ENTRIES], end[MOST_ENTRIES]; /* of active experts */
    int32_t source[MOST_ENTRIES];                                         /* row of x */
    int32_t chosen[MOST_ENTRIES]; /* place of a row's choice, or -1; and its weight */
    float weight[MOST_ENTRIES];
};

/* By the thread block; a barrier must follow. Returns the number of active experts. */
static __device__ __forceinline__ int32_t list_active(struct entries &t, const struct sv_moe &a)
{
    const int32_t most = min(a.r.n_rows * a.r.k, a.r.own.n), n_active = look(a.r.n_active);
    for (int32_t i = threadIdx.x; i < most; i += (int32_t)blockDim.x)
        t.expert[i] = look(a.r.active + i);
    return n_active;
}

/* The rest of it, likewise. */
static __device__ __forceinline__ void list_entries(struct entries &t, const struct sv_moe &a,
                                                    int32_t n_active)
{
    for (int32_t i = threadIdx.x; i < n_active; i += (int32_t)blockDim.x) {
        t.place[i] = look(a.r.first + t.expert[i]);
        t.end[i] = look(a.r.first + t.expert[i] + 1);
    }
    for (int32_t i = threadIdx.x; i < a.r.n_rows * a.r.k; i += (int32_t)blockDim.x) {
        t.source[i] = a.by_place ? i : look(a.r.list + i) / a.r.k;
        if (a.joined) {
            t.chosen[i] = look(a.r.place + i);
            t.weight[i] = *(const volatile float *)(a.r.weight + i);
        }
    }
}

/* Units of work of this thread block, up to `end`. Gate and up: unit i has eight weight rows of
 * active expert i / each. Down: those of the block, of active expert i. */
struct units {
    int32_t each, end, step; /* step: from a warp's unit to its next one */
};
template <bool GATED>
static __device__ __forceinline__ int32_t active_of(const struct units &u, int32_t i)
{
    return GATED ? i / u.each : i;
}
template <bool GATED>
static __device__ __forceinline__ int32_t row_of(const struct units &u, int32_t i)
{
    return GATED ? i % u.each * 8 : (int32_t)blockIdx.x * 16;
}

/* The tile of weights that a warp asks for next: this lane's 16 bytes of it; of gate, and of up. */
template <bool GATED> struct weights {
    enum { PARTS = GATED ? 2 : 1, LINES = 4 / PARTS };
    const uint8_t *at[PARTS];
    int32_t unit, left; /* left: tiles of the unit */

    __device__ __forceinline__ void begin(const struct sv_moe &a, const struct units &u,
                                          const struct entries &t, int32_t i)
    {
        unit = i;
        left = sv_tiles(a.k);
        if (unit >= u.end)
            return;
        const int32_t expert = t.expert[active_of<GATED>(u, i)], row0 = row_of<GATED>(u, i);
        const int64_t from =
            ((int64_t)(row0 / SV_TILE) * left * SV_TILE + row0 % SV_TILE) * LINE + gpu_lane() * 16;
        at[0] = sv_moe_matrix(a.gate, expert) + from;
        if (GATED)
            at[PARTS - 1] = sv_moe_matrix(a.up, expert) + from;
    }
    __device__ __forceinline__ void next(uint32_t slot, const struct sv_moe &a,
                                         const struct units &u, const struct entries &t,
                                         uint64_t once)
    {
        if (unit >= u.end)
            return;
#pragma unroll
        for (int i = 0; i < 4; i++)
            gpu_copy_stream(slot + i * 512, at[i / LINES] + i % LINES * 512, once);
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            at[i] += SV_TILE_BYTES;
        if (--left == 0)
            begin(a, u, t, unit + u.step);
    }
};

/* The columns of x that go with it: up to ROWS rows, zeros where there is no entry. */
template <int ROWS, bool GATED> struct columns {
    int32_t unit, left, col;
    int32_t at[ROWS / 4]; /* this lane's rows, in 16 bytes; -1: none */

    __device__ __forceinline__ void begin(const struct sv_moe &a, const struct units &u,
                                          const struct entries &t, int32_t i)
    {
        unit = i;
        left = sv_tiles(a.k);
        col = 0;
        if (unit >= u.end)
            return;
        const int32_t active = active_of<GATED>(u, i), end = t.end[active];
#pragma unroll
        for (int j = 0; j < ROWS / 4; j++) {
            const int32_t place = t.place[active] + j * 4 + gpu_lane() / 8;
            at[j] = place < end ? t.source[place] * (a.k / 8) : -1;
        }
    }
    __device__ __forceinline__ void next(uint32_t slot, const struct sv_moe &a,
                                         const struct units &u, const struct entries &t)
    {
        if (unit >= u.end)
            return;
#pragma unroll
        for (int j = 0; j < ROWS / 4; j++)
            gpu_copy_rows<LINE, false>(slot, j * 4, [&](uint32_t, uint32_t chunk) {
                const int32_t c = col + (int32_t)chunk;
                const bool there = at[j] >= 0 && c * 8 < a.k;
                return gpu_source{(const uint4 *)a.x + (there ? at[j] + c : 0), there};
            });
        col += SV_TILE / 8;
        if (--left == 0)
            begin(a, u, t, unit + u.step);
    }
};

/* Of weights, and of x, which lies behind them. */
template <int N>
static __device__ __forceinline__ void load_tile(uint32_t (&w)[4][4], uint32_t (&x)[N / 8][2][4],
                                                 uint32_t slot)
{
    const uint32_t lane = gpu_lane();
#pragma unroll
    for (int step = 0; step < 4; step++)
        gpu_load_a(w[step], slot + gpu_place<LINE>(lane % 16, step * 2 + lane / 16));
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            gpu_load_b8(x[j][half],
                        slot + STRIP +
                            gpu_place<LINE>(j * 8 + lane % 8, half * 4 + gpu_b8_chunk()));
}

/* Sums of n entries from `place` on; those of up are in the same lane as those of gate. */
template <int N>
static __device__ __forceinline__ void put_gated(const struct sv_moe &a, const float (&acc)[N / 2],
                                                 int32_t expert, int32_t row0, int32_t place,
                                                 int32_t n)
{
#pragma unroll
    for (int i = 0; i < N / 2; i += i % 4 == 1 ? 3 : 1) {
        const int32_t row = row0 + sum_row(i), col = sum_col(i);
        if (col >= n || row >= a.rows)
            continue;
        const int64_t bias = (int64_t)expert * a.rows + row;
        sv_store((__nv_bfloat16 *)a.out + (int64_t)(place + col) * a.rows + row,
                 activated(a, acc[i] + bias_of(a.gate, bias), acc[i + 2] + bias_of(a.up, bias)));
    }
}
/* sums: (entries, 16), by place */
template <int N>
static __device__ __forceinline__ void put_down(const struct sv_moe &a, const float (&acc)[N / 2],
                                                int32_t expert, int32_t row0, float *sums,
                                                int32_t n)
{
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const int32_t row = row0 + sum_row(i), col = sum_col(i);
        if (col < n && row < a.rows)
            sums[col * 16 + sum_row(i)] = acc[i] + bias_of(a.gate, (int64_t)expert * a.rows + row);
    }
}

/* As moe_combine does: 16 columns, from 16 blockIdx.x on, of each row. sums: (entries, 16), by
 * place */
static __device__ __forceinline__ void add_up(const struct sv_moe &a, const struct entries &t,
                                              const float *sums)
{
    const int32_t n = a.r.n_rows * 16;
    for (int32_t i0 = threadIdx.x / 32 * 32; i0 < n; i0 += (int32_t)blockDim.x) {
        const int32_t i = i0 + (int32_t)gpu_lane(), row = min(i, n - 1) / 16,
                      out = (int32_t)blockIdx.x * 16 + i % 16;
        const int64_t at = (int64_t)row * a.rows + out;
        const bool there = i < n && out < a.rows;
        float sum = 0.0f;
        for (int32_t j = row * a.r.k; j < (row + 1) * a.r.k; j++)
            sum = t.chosen[j] < 0 ? sum
                                  : __fmaf_rn(t.weight[j], sums[t.chosen[j] * 16 + i % 16], sum);
        const __nv_bfloat16 all = __float2bfloat16_rn(sum);
        if (there)
            ((__nv_bfloat16 *)a.joined)[at] = all;
        if (a.next)
            sv_join_push(a.push, there ? at / 8 : -1, all);
    }
}

/* A slot has a tile of weights and their columns of N rows of x. */
template <int N, int SLOTS_> struct few_ring {
    enum { SLOTS = SLOTS_, SLOT = STRIP + N * LINE, BYTES = SLOTS * SLOT };
};

template <int N, int SLOTS, bool GATED>
static __global__ void __launch_bounds__(WARPS * 32, 1) few_kernel(const struct sv_moe a)
{
    typedef few_ring<N, SLOTS> F;
    GPU_SHARED(smem_bytes);
    __shared__ struct entries t;
    const int32_t warp = gpu_wave(), n_k = sv_tiles(a.k);
    float *const sums = (float *)(smem_bytes + WARPS * F::BYTES);
    const uint32_t own = gpu_shared_at(smem_bytes) + warp * F::BYTES;
    const uint64_t once = gpu_stream_policy();
    if (GATED)
        sv_pdl_wait();
    const int32_t n_active = list_active(t, a);
    __syncthreads();
    struct units u = {(a.rows + 7) / 8, n_active, 1};
    int32_t first = 0;
    if (GATED) {
        const int32_t all = n_active * u.each;
        first = (int32_t)blockIdx.x * all / (int32_t)gridDim.x;
        u.end = ((int32_t)blockIdx.x + 1) * all / (int32_t)gridDim.x;
    }
    if (u.end > first) { /* as many for each warp, rather fewer warps */
        const int32_t n = u.end - first, most = (n + WARPS - 1) / WARPS;
        u.step = (n + most - 1) / most;
    }
    first = warp < u.step ? first + warp : u.end;
    struct weights<GATED> w;
    w.begin(a, u, t, first);
#pragma unroll
    for (int i = 0; i < SLOTS; i++)
        w.next(own + i * F::SLOT, a, u, t, once);
    list_entries(t, a, n_active);
    if (!GATED)
        sv_pdl_wait();
    __syncthreads();
    struct columns<N, GATED> x;
    x.begin(a, u, t, first);
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        x.next(own + i * F::SLOT + STRIP, a, u, t);
        gpu_copy_commit();
    }
    uint32_t now = own;
#pragma unroll 1
    for (int32_t unit = first; unit < u.end; unit += u.step) {
        float acc[N / 2] = {};
#pragma unroll 1
        for (int32_t kk = 0; kk < n_k; kk++) {
            uint32_t wr[4][4], xr[N / 8][2][4];
            gpu_copy_wait<SLOTS - 1>(SLOTS - 1, 0);
            __syncwarp();
            load_tile<N>(wr, xr, now);
            __syncwarp();
            w.next(now, a, u, t, once);
            x.next(now + STRIP, a, u, t);
            gpu_copy_commit();
            if (w.unit >= u.end) /* the next launch's weights come behind all of these */
                sv_pdl_launch();
#pragma unroll
            for (int step = 0; step < 4; step++)
#pragma unroll
                for (int j = 0; j < N / 8; j++)
                    gpu_mma8(acc + 4 * j, wr[step], xr[j][step / 2], step % 2);
            now = now + F::SLOT == own + F::BYTES ? own : now + F::SLOT;
        }
        const int32_t active = active_of<GATED>(u, unit), row0 = row_of<GATED>(u, unit),
                      place = t.place[active], n = t.end[active] - place;
        if (GATED)
            put_gated<N>(a, acc, t.expert[active], row0, place, n);
        else
            put_down<N>(a, acc, t.expert[active], row0, sums + place * 16, n);
    }
    if (GATED)
        return;
    __syncthreads();
    add_up(a, t, sums);
}

/* ---------------------------------------------------------------- host */

/* [1]: gate and up. Down leaves room beside it for the next launch. */
static const struct {
    int bytes;
    void (*fn)(const struct sv_moe);
} kernels[2][2] = {
#define OF(N, SLOTS, GATED)                                                                        \
    {                                                                                              \
        WARPS *few_ring<N, SLOTS>::BYTES, few_kernel<N, SLOTS, GATED>                              \
    }
    {OF(8, 3, false), OF(16, 2, false)}, {OF(8, 3, true), OF(16, 3, true)}};

int sv_moe_few_open(struct sv_err *err)
{
    int rc = SV_OK;
    for (int i = 0; i < 4 && !rc; i++)
        rc = sv_cuda_try(cudaFuncSetAttribute((const void *)kernels[i / 2][i % 2].fn,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM),
                         err, "shared memory of an expert's product");
    return rc;
}

bool sv_moe_few(struct sv_cuda *cu, const struct sv_moe *a, bool gated)
{
    const int32_t n_rows = a->r.n_rows, n_entries = n_rows * a->r.k;
    if (n_rows < 2 || n_rows > MOST_ROWS || n_entries > MOST_ENTRIES || (!gated && !a->joined))
        return false;
    const int i = n_rows > 8;
    sv_cuda_launch_in_pass(
        cu, gated ? "gate and up of experts" : "down of experts, added up", kernels[gated][i].fn,
        dim3((unsigned)(gated ? cu->n_sms : (a->rows + 15) / 16)), dim3(WARPS * 32),
        (size_t)kernels[gated][i].bytes + (gated ? 0 : (size_t)n_entries * 64),
        gated ? *a : sv_moe_pushed(cu, *a));
    return true;
}
