/*
 * gemm_cuda_check.h - the checks of gemm_cuda.cu: every result against single rows, bit by bit.
 *
 * Included by gemm_cuda.cu after its helpers. With cu->bytes all of it is about products in 8 bits
 * (fp8_cuda.cu): numbers are then such that 8 bits hold them exactly, so the same comparisons hold.
 * Must not: time anything.
 */
#ifndef SV_BENCH_GEMM_CUDA_CHECK_H
#define SV_BENCH_GEMM_CUDA_CHECK_H

/* ---------------------------------------------------------------- checks */

enum { BASE_ROWS = 256, CANARY_ROWS = 3, CANARY_COLS = 24 };

/* Row i of a batch holds base row (i * mul + add) % 256, so every count sees other rows at other
 * places. */
struct perm {
    int32_t mul, add;
};
static __device__ __forceinline__ int32_t perm_of(struct perm p, int32_t i)
{
    return (int32_t)(((int64_t)i * p.mul + p.add) % BASE_ROWS);
}

/* Rows past n and columns past k are NaN, so that reading them shows in the result. */
static __global__ void batch_kernel(const bf16 *base, int32_t k, struct perm p, int32_t n,
                                    int32_t n_all, int64_t ldx, bf16 *x)
{
    const size_t total = (size_t)n_all * ldx;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        const int32_t r = (int32_t)(i / ldx), c = (int32_t)(i % ldx);
        x[i] = r < n && c < k ? base[(size_t)perm_of(p, r) * k + c] : __float2bfloat16(NAN);
    }
}

template <typename T>
static __global__ void compare_kernel(const T *y, int64_t ldy, int32_t n, int32_t n_all,
                                      int32_t cols, const T *single, struct perm p, T canary,
                                      unsigned long long *bad)
{
    const size_t total = (size_t)n_all * ldy;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < total;
         i += (size_t)gridDim.x * blockDim.x) {
        const int32_t r = (int32_t)(i / ldy), c = (int32_t)(i % ldy);
        const bool inside = r < n && c < cols;
        const T want = inside ? single[(size_t)perm_of(p, r) * cols + c] : canary;
        if (y[i] != want)
            atomicAdd(&bad[inside ? 0 : 1], 1ull);
    }
}

/* Sum of squared error and of squares against products in double, for some rows. */
template <typename T>
static __global__ void error_kernel(const bf16 *w, const bf16 *bias, const bf16 *base, int32_t k,
                                    int32_t n_out, const T *single, int64_t ld, int32_t row_step,
                                    double *sums)
{
    const int32_t col = blockIdx.x * 8 + threadIdx.x / 32, r = blockIdx.y * row_step;
    if (col >= n_out)
        return;
    double s = 0;
    for (int32_t c = threadIdx.x & 31; c < k; c += 32)
        s += (double)__bfloat162float(w[(size_t)col * k + c]) *
             (double)__bfloat162float(base[(size_t)r * k + c]);
    for (int step = 16; step; step /= 2)
        s += __shfl_xor_sync(0xffffffffu, s, step);
    if ((threadIdx.x & 31) == 0) {
        s += bias ? (double)__bfloat162float(bias[col]) : 0.0;
        const T got_bits = single[(size_t)r * ld + col];
        double got;
        if (sizeof(T) == 2)
            got = (double)__uint_as_float((uint32_t)got_bits << 16);
        else
            got = (double)__uint_as_float((uint32_t)got_bits);
        if (got != got)
            got = 1e30;
        atomicAdd(&sums[0], (got - s) * (got - s));
        atomicAdd(&sums[1], s * s);
    }
}

static const char *set_name(const struct sv_cuda *cu)
{
    return !cu->set ? "portable" : cu->bytes ? "sm90 fp8" : "sm90";
}

struct shape {
    const char *name;
    int32_t k, n_parts;
    int32_t n_out[20];
    bool bias, y_f32, all_counts, big;
};

static const struct shape shapes[] = {
    {"moe_qkv", 2048, 3, {4096, 512, 512}, false, false, true, false},
    {"moe_o", 4096, 1, {2048}, false, false, false, false},
    {"moe_qkv_45", 2880, 3, {4096, 512, 512}, true, false, false, false},
    {"moe_o_45", 4096, 1, {2880}, true, false, false, false},
    {"moe_odd", 136, 2, {77, 131}, true, false, false, false},
    {"qkv", 4096, 3, {4096, 1024, 1024}, true, false, true, true},
    {"o", 4096, 1, {4096}, false, false, false, true},
    {"gate_up", 4096, 2, {12288, 12288}, false, false, false, true},
    {"down", 12288, 1, {4096}, false, false, false, true},
    {"fc", 20480, 1, {4096}, false, false, false, false},
    {"context_kv",
     4096,
     10,
     {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024},
     true,
     false,
     false,
     false},
    {"head_f32", 4096, 1, {151936}, false, true, false, false},
    {"demo_qkv", 320, 3, {320, 64, 64}, true, false, true, false},
    {"demo_gate_up", 320, 2, {896, 896}, false, false, false, true},
    {"demo_down", 896, 1, {320}, true, false, false, false},
    {"demo_head", 320, 1, {6144}, false, true, false, false},
    {"k72", 72, 2, {200, 56}, true, false, true, false},
    {"odd_out", 136, 2, {77, 131}, true, false, false, false},
    {"odd_out_f32", 264, 2, {333, 65}, true, true, false, false},
    {"two_by_8", 8, 1, {2}, false, false, false, false},
    {"one_out", 512, 1, {1}, true, false, false, false},
    {"plain_k13", 13, 2, {65, 3}, true, false, false, false},
    {"long_thin", 32768, 1, {64}, false, false, false, false},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

struct made {
    int32_t cols;
    bf16 *w[20], *packed[20], *bias[20], *base;
    struct sv_gemm_part part[20];
};

/* Rounds to what 8 bits and a scale of `largest` / 448 hold, a power of two; each row gets one
 * number that large. */
static __global__ void round_kernel(bf16 *p, int32_t rows, int32_t k, float largest)
{
    const float scale = largest / SV_FP8_MAX;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (size_t)rows * k;
         i += (size_t)gridDim.x * blockDim.x) {
        const float v = (int32_t)(i % k) == (int32_t)(i / k) % k ? largest : __bfloat162float(p[i]);
        p[i] = __float2bfloat16_rn(sv_fp8_value(sv_fp8_of(v / scale)) * scale);
    }
}

static void pack_part(struct sv_cuda *cu, const struct shape *s, struct made *m, int i)
{
    if (!m->packed[i])
        return;
    if (m->part[i].w.fmt.elem == SV_F8)
        sv_cuda_fp8_pack(cu, m->w[i], 0, s->n_out[i], s->n_out[i], s->k, m->packed[i]);
    else
        sv_cuda_pack(cu, m->w[i], 0, s->n_out[i], s->k, m->packed[i]);
    m->part[i].w.data = m->packed[i];
}

static void make_shape(struct sv_cuda *cu, const struct shape *s, struct made *m)
{
    /* make_random stays below 3.46 times its scale. */
    const float largest = ldexpf(3.5f, -(int)floorf(log2f(sqrtf((float)s->k))));
    memset(m, 0, sizeof *m);
    /* Where there are experts, few rows leave room for other launches. */
    cu->lim.max_experts = !strncmp(s->name, "moe_", 4);
    for (int i = 0; i < s->n_parts; i++) {
        const size_t n = (size_t)s->n_out[i] * (size_t)s->k;
        m->w[i] = make_random(n, (uint64_t)(100 + i + s->k), 1.0f / sqrtf((float)s->k));
        m->part[i].w.data = m->w[i];
        m->part[i].w.fmt.elem = SV_BF16;
        m->part[i].w.rows = s->n_out[i];
        m->part[i].w.cols = s->k;
        m->part[i].w.role = cu->lim.max_experts ? SV_ROLE_O : SV_ROLE_NONE;
        if (sv_cuda_is_packed(&m->part[i].w)) {
            const size_t bytes =
                cu->bytes ? sv_fp8_bytes(s->n_out[i], s->k) : sv_packed_bytes(s->n_out[i], s->k);
            OK(cudaMalloc((void **)&m->packed[i], bytes));
            OK(cudaMemsetAsync(m->packed[i], 0xff, bytes, cu->stream));
            if (cu->bytes && s->k % 8 == 0)
                m->part[i].w.fmt.elem = SV_F8, m->part[i].w.role = SV_ROLE_DRAFT;
            if (m->part[i].w.fmt.elem == SV_F8)
                round_kernel<<<1024, 256, 0, cu->stream>>>(m->w[i], s->n_out[i], s->k, largest);
            pack_part(cu, s, m, i);
        }
        if (s->bias) {
            m->bias[i] = make_random((size_t)s->n_out[i], (uint64_t)(900 + i), 1.0f);
            m->part[i].bias.data = m->bias[i];
            m->part[i].bias.fmt.elem = SV_BF16;
        }
        m->cols += s->n_out[i];
    }
    m->base = make_random((size_t)BASE_ROWS * (size_t)s->k, 7, 1.0f);
    if (cu->bytes)
        round_kernel<<<1024, 256, 0, cu->stream>>>(m->base, BASE_ROWS, s->k, 3.5f);
    OK(cudaStreamSynchronize(cu->stream));
}

static void free_shape(struct made *m)
{
    for (int i = 0; i < 20; i++) {
        cudaFree(m->w[i]);
        cudaFree(m->packed[i]);
        cudaFree(m->bias[i]);
    }
    cudaFree(m->base);
}

static void run(struct sv_cuda *cu, const struct shape *s, const struct made *m, int32_t n,
                const void *x, int64_t ldx, void *y, int64_t ldy)
{
    struct sv_p_gemm p = {};
    p.n_rows = n;
    p.k = s->k;
    p.n_parts = s->n_parts;
    p.x = x;
    p.ldx = ldx;
    p.parts = m->part;
    p.y = y;
    p.ldy = ldy;
    p.y_f32 = s->y_f32;
    sv_cuda_gemm((struct sv_dev *)cu, &p);
}

/* T: uint16_t for bf16 results, uint32_t for f32 ones; bits either way. */
template <typename T> static long check_shape(struct sv_cuda *cu, const struct shape *s)
{
    struct made m;
    make_shape(cu, s, &m);
    const int32_t most = s->big ? 4096 : 1000;
    const int64_t ldx = s->k % 8 ? s->k + 3 : s->k + 8;
    const int64_t ldy = m.cols + (m.cols % 2 ? CANARY_COLS + 1 : CANARY_COLS);
    const size_t y_n = (size_t)(most + CANARY_ROWS) * (size_t)ldy;
    T *single, *y;
    bf16 *x;
    unsigned long long *bad, host_bad[2];
    double *sums, host_sums[2];
    OK(cudaMalloc((void **)&single, (size_t)BASE_ROWS * (size_t)m.cols * sizeof(T)));
    OK(cudaMalloc((void **)&y, y_n * sizeof(T) + 4));
    OK(cudaMalloc((void **)&x, (size_t)(most + 8) * (size_t)ldx * 2));
    OK(cudaMalloc((void **)&bad, 16));
    OK(cudaMalloc((void **)&sums, 16));
    OK(cudaMemsetAsync(sums, 0, 16, cu->stream));
    OK(cudaMemsetAsync(single, 0xff, (size_t)BASE_ROWS * (size_t)m.cols * sizeof(T), cu->stream));
    /* The single rows: x at its own stride; base rows of odd k start anywhere, which only plain
     * allows. */
    for (int32_t r = 0; r < BASE_ROWS; r++)
        run(cu, s, &m, 1, m.base + (size_t)r * s->k, s->k, single + (size_t)r * m.cols, m.cols);
    OK(cudaStreamSynchronize(cu->stream));
    int32_t col = 0;
    for (int i = 0; i < s->n_parts; col += s->n_out[i++])
        error_kernel<T><<<dim3((s->n_out[i] + 7) / 8, 4), 256>>>(
            m.w[i], m.bias[i], m.base, s->k, s->n_out[i], single + col, m.cols, 81, sums);
    OK(cudaMemcpy(host_sums, sums, 16, cudaMemcpyDeviceToHost));
    const double error = sqrt(host_sums[0] / host_sums[1]);
    /* Sums of products of bytes keep fewer bits inside the instruction. */
    const double bound = !s->y_f32 ? 4e-3 : cu->bytes ? 2e-3 : 1e-4;
    long failed = !(error < bound);
    int32_t tried = 0, worst_n = 0;
    unsigned long long inside = 0, outside = 0;
    static const int32_t some[] = {1,   2,   3,   7,   8,   9,   15,  16,  17,   31,  32,  33,
                                   48,  63,  64,  65,  80,  96,  97,  112, 127,  128, 129, 160,
                                   191, 192, 193, 224, 225, 256, 257, 512, 1000, 4096};
    /* Then both ways for many rows, whatever the built-in choice. */
    static const int32_t wholes[] = {257, 384, 600, 1000};
    enum { SOME = sizeof some / sizeof *some, BIG_FROM = 30, WHOLES = 4 };
    const int32_t n_plain = s->all_counts ? 256 + SOME - BIG_FROM : SOME;
    const int32_t n_tries = n_plain + (cu->set == SV_CUDA_SM90 ? WHOLES * 2 : 0);
    /* All twice where pieces may go through clusters and through L2. */
    for (int32_t j = 1; j <= n_tries * (cu->set == SV_CUDA_SM90 ? 2 : 1); j++) {
        const int32_t i = (j - 1) % n_tries + 1, at = i - 1 - n_plain;
        cu->gemm->tune_pair = j > n_tries ? -1 : 0;
        int32_t n;
        if (at < 0)
            n = !s->all_counts ? some[i - 1] : i <= 256 ? i : some[BIG_FROM + i - 257];
        else
            n = wholes[at % WHOLES];
        cu->gemm->tune_whole = at < 0 ? 0 : at >= WHOLES ? -1 : j > n_tries ? 256 : 192;
        if (n > most)
            continue;
        const struct perm p = {(i * 2) % 64 * 2 + 1, i * 13 % BASE_ROWS};
        const int32_t n_all = n + CANARY_ROWS;
        const T canary = (T)0xa5a5a5a5u;
        set_kernel<<<1024, 256, 0, cu->stream>>>(
            (uint32_t *)y, ((size_t)n_all * ldy * sizeof(T) + 3) / 4, 0xa5a5a5a5u);
        batch_kernel<<<1024, 256, 0, cu->stream>>>(m.base, s->k, p, n, n + 8, ldx, x);
        OK(cudaMemsetAsync(bad, 0, 16, cu->stream));
        run(cu, s, &m, n, x, ldx, y, ldy);
        compare_kernel<T>
            <<<1024, 256, 0, cu->stream>>>(y, ldy, n, n_all, m.cols, single, p, canary, bad);
        OK(cudaMemcpyAsync(host_bad, bad, 16, cudaMemcpyDeviceToHost, cu->stream));
        OK(cudaStreamSynchronize(cu->stream));
        if (host_bad[0] || host_bad[1]) {
            failed++;
            worst_n = n;
        }
        inside += host_bad[0];
        outside += host_bad[1];
        tried++;
    }
    cu->gemm->tune_whole = cu->gemm->tune_pair = 0;
    printf("%-9s %-13s error %.2e  %3d counts  wrong bits %llu, canaries %llu %s", set_name(cu),
           s->name, error, tried, inside, outside, failed ? "FAILED" : "ok");
    printf(failed ? " (last at n = %d)\n" : "\n", worst_n);
    fflush(stdout);
    cudaFree(single), cudaFree(y), cudaFree(x), cudaFree(bad), cudaFree(sums);
    free_shape(&m);
    return failed;
}

/* As error_kernel, for silu(gate) * up; gate and up are rounded in between. */
static __global__ void gated_error_kernel(const bf16 *wg, const bf16 *wu, const bf16 *bg,
                                          const bf16 *bu, const bf16 *base, int32_t k, int32_t d,
                                          const uint16_t *single, int32_t row_step, double *sums)
{
    const int32_t col = blockIdx.x * 8 + threadIdx.x / 32, r = blockIdx.y * row_step;
    if (col >= d)
        return;
    double g = 0, u = 0;
    for (int32_t c = threadIdx.x & 31; c < k; c += 32) {
        const double x = (double)__bfloat162float(base[(size_t)r * k + c]);
        g += (double)__bfloat162float(wg[(size_t)col * k + c]) * x;
        u += (double)__bfloat162float(wu[(size_t)col * k + c]) * x;
    }
    for (int step = 16; step; step /= 2) {
        g += __shfl_xor_sync(0xffffffffu, g, step);
        u += __shfl_xor_sync(0xffffffffu, u, step);
    }
    if ((threadIdx.x & 31) == 0) {
        g += bg ? (double)__bfloat162float(bg[col]) : 0.0;
        u += bu ? (double)__bfloat162float(bu[col]) : 0.0;
        g = (double)__bfloat162float(__float2bfloat16_rn((float)g));
        u = (double)__bfloat162float(__float2bfloat16_rn((float)u));
        const double want = g / (1 + exp(-g)) * u;
        double got = (double)__uint_as_float((uint32_t)single[(size_t)r * d + col] << 16);
        if (got != got)
            got = 1e30;
        atomicAdd(&sums[0], (got - want) * (got - want));
        atomicAdd(&sums[1], want * want);
    }
}

static void run_gated(struct sv_cuda *cu, const struct made *m, int32_t k, int32_t n, const void *x,
                      int64_t ldx, void *out)
{
    struct sv_p_gemm_act_mul p = {};
    p.n_rows = n;
    p.k = k;
    p.x = x;
    p.ldx = ldx;
    p.parts = m->part;
    p.gate_up = out; /* never touched by these kernels */
    p.out = out;
    sv_cuda_gemm_act_mul((struct sv_dev *)cu, &p);
}

static long check_gated(struct sv_cuda *cu, int32_t k, int32_t d, bool bias, int32_t most)
{
    const struct shape s = {"gated", k, 2, {d, d}, bias, false, false, false};
    struct made m;
    make_shape(cu, &s, &m);
    const size_t y_n = (size_t)(most + CANARY_ROWS) * (size_t)d;
    uint16_t *single, *y;
    bf16 *x;
    unsigned long long *bad, host_bad[2], inside = 0, outside = 0;
    double *sums, host_sums[2];
    OK(cudaMalloc((void **)&single, (size_t)BASE_ROWS * (size_t)d * 2 + 16));
    OK(cudaMalloc((void **)&y, y_n * 2 + 16));
    OK(cudaMalloc((void **)&x, (size_t)(most + 8) * (size_t)(k + 8) * 2));
    OK(cudaMalloc((void **)&bad, 16));
    OK(cudaMalloc((void **)&sums, 16));
    OK(cudaMemsetAsync(sums, 0, 16, cu->stream));
    OK(cudaMemsetAsync(single, 0xff, (size_t)BASE_ROWS * (size_t)d * 2, cu->stream));
    for (int32_t r = 0; r < BASE_ROWS; r++)
        run_gated(cu, &m, k, 1, m.base + (size_t)r * k, k, single + (size_t)r * d);
    OK(cudaStreamSynchronize(cu->stream));
    gated_error_kernel<<<dim3((d + 7) / 8, 4), 256>>>(m.w[0], m.w[1], m.bias[0], m.bias[1], m.base,
                                                      k, d, single, 81, sums);
    OK(cudaMemcpy(host_sums, sums, 16, cudaMemcpyDeviceToHost));
    const double error = sqrt(host_sums[0] / host_sums[1]);
    long failed = !(error < 8e-3);
    static const int32_t some[] = {1,   2,   3,   7,   8,   9,   15,  16,  17,  31,   32,  33,
                                   48,  63,  64,  65,  80,  96,  97,  112, 127, 128,  129, 160,
                                   191, 192, 193, 224, 225, 256, 257, 384, 600, 1000, 2048};
    enum { SOME = sizeof some / sizeof *some };
    int32_t tried = 0, worst_n = 0;
    for (int32_t i = 0; i < SOME * 6; i++) {
        const int32_t n = some[i % SOME], whole = i / SOME % 3;
        cu->gemm->tune_pair = i / SOME / 3 ? -1 : 0;
        if (i / SOME / 3 && !cu->set)
            break;
        if (n > most || (whole && (n <= 256 || !cu->set)))
            continue;
        cu->gemm->tune_whole = whole == 2 ? -1 : !whole ? 0 : i / SOME / 3 ? 256 : 192;
        const struct perm p = {(i * 2) % 64 * 2 + 1, i * 13 % BASE_ROWS};
        const int32_t n_all = n + CANARY_ROWS;
        set_kernel<<<1024, 256, 0, cu->stream>>>((uint32_t *)y, ((size_t)n_all * d * 2 + 3) / 4,
                                                 0xa5a5a5a5u);
        batch_kernel<<<1024, 256, 0, cu->stream>>>(m.base, k, p, n, n + 8, k + 8, x);
        OK(cudaMemsetAsync(bad, 0, 16, cu->stream));
        run_gated(cu, &m, k, n, x, k + 8, y);
        compare_kernel<uint16_t>
            <<<1024, 256, 0, cu->stream>>>(y, d, n, n_all, d, single, p, (uint16_t)0xa5a5, bad);
        OK(cudaMemcpyAsync(host_bad, bad, 16, cudaMemcpyDeviceToHost, cu->stream));
        OK(cudaStreamSynchronize(cu->stream));
        if (host_bad[0] || host_bad[1]) {
            failed++;
            worst_n = n;
        }
        inside += host_bad[0];
        outside += host_bad[1];
        tried++;
    }
    cu->gemm->tune_whole = cu->gemm->tune_pair = 0;
    printf("%-9s gated %dx%d%s error %.2e  %d counts  wrong bits %llu, canaries %llu %s (%d)\n",
           set_name(cu), d, k, bias ? " bias" : "", error, tried, inside, outside,
           failed ? "FAILED" : "ok", worst_n);
    fflush(stdout);
    cudaFree(single), cudaFree(y), cudaFree(x), cudaFree(bad), cudaFree(sums);
    free_shape(&m);
    return failed;
}

/* Lowest id of the largest logit, NaN never, as the seam says. */
static __global__ void argmax_kernel(const float *logits, int32_t vocab, int32_t *out)
{
    const float *l = logits + (size_t)blockIdx.x * vocab;
    if (threadIdx.x)
        return;
    int32_t best = -1;
    for (int32_t i = 0; i < vocab; i++)
        if (l[i] == l[i] && (best < 0 || l[i] > l[best]))
            best = i;
    out[blockIdx.x] = best < 0 ? 0 : best;
}

/* Many equal weight rows make ties; row 3 of x is NaN, row 5 has results that go nowhere. */
static long check_head(struct sv_cuda *cu, int32_t vocab, int32_t k, bool ties)
{
    struct shape s = {"head", k, 1, {vocab}, false, true, false, false};
    struct made m;
    make_shape(cu, &s, &m);
    if (ties) {
        for (int32_t i = 64; i + 64 <= vocab; i += 64)
            OK(cudaMemcpy(m.w[0] + (size_t)i * k, m.w[0], (size_t)64 * k * 2,
                          cudaMemcpyDeviceToDevice));
        pack_part(cu, &s, &m, 0);
    }
    enum { MOST = 600 };
    float *logits;
    int32_t *out, *want, *index, host[2][MOST], host_index[MOST];
    OK(cudaMalloc((void **)&logits, (size_t)MOST * vocab * 4));
    OK(cudaMalloc((void **)&out, MOST * 4));
    OK(cudaMalloc((void **)&want, MOST * 4));
    OK(cudaMalloc((void **)&index, MOST * 4));
    bf16 *x;
    OK(cudaMalloc((void **)&x, (size_t)(MOST + 8) * k * 2));
    OK(cudaMemset(cu->fault, 0, sizeof *cu->fault));
    long failed = 0, counts = 0;
    static const int32_t some[] = {1,   2,   7,   15,  16,  17,  32,  33,  64,  65,  100,
                                   128, 129, 200, 256, 257, 300, 384, 385, 512, 513, 600};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        const int32_t n = some[i];
        const struct perm p = {(int32_t)i * 2 + 1, (int32_t)i * 31 % BASE_ROWS};
        batch_kernel<<<1024, 256, 0, cu->stream>>>(m.base, k, p, n, n + 8, k, x);
        if (n > 3)
            OK(cudaMemsetAsync(x + (size_t)3 * k, 0xff, (size_t)k * 2, cu->stream));
        for (int32_t r = 0; r < n; r++)
            host_index[r] = r == 5 ? -1 : n - 1 - r;
        OK(cudaMemcpyAsync(index, host_index, n * 4, cudaMemcpyHostToDevice, cu->stream));
        OK(cudaMemsetAsync(out, 0x7f, MOST * 4, cu->stream));
        run(cu, &s, &m, n, x, k, logits, vocab);
        argmax_kernel<<<n, 32, 0, cu->stream>>>(logits, vocab, want);
        struct sv_p_head_argmax h = {};
        h.n_rows = n;
        h.k = k;
        h.x = x;
        h.w = m.part[0].w;
        h.out_index = i & 1 ? NULL : index;
        h.out = out;
        sv_cuda_head_argmax((struct sv_dev *)cu, &h);
        OK(cudaMemcpyAsync(host[0], out, MOST * 4, cudaMemcpyDeviceToHost, cu->stream));
        OK(cudaMemcpyAsync(host[1], want, n * 4, cudaMemcpyDeviceToHost, cu->stream));
        OK(cudaStreamSynchronize(cu->stream));
        bool bad = false;
        for (int32_t r = 0; r < n; r++) {
            const int32_t at = h.out_index ? host_index[r] : r;
            if (at < 0 ? host[0][n - 1 - r] != 0x7f7f7f7f : host[0][at] != host[1][r])
                bad = true;
        }
        failed +=
            bad || host[0][n < MOST ? n : MOST - 1] != (n < MOST ? 0x7f7f7f7f : host[0][MOST - 1]);
        counts++;
    }
    struct sv_cuda_fault fault;
    OK(cudaMemcpy(&fault, cu->fault, sizeof fault, cudaMemcpyDeviceToHost));
    if (fault.code != SV_CUDA_FAULT_HEAD_NAN || fault.a != 3)
        failed++;
    printf("%-9s head %dx%d%s: %ld counts %s\n", set_name(cu), vocab, k, ties ? " ties" : "",
           counts, failed ? "FAILED" : "ok");
    fflush(stdout);
    cudaFree(logits), cudaFree(out), cudaFree(want), cudaFree(index), cudaFree(x);
    free_shape(&m);
    return failed;
}

#endif
