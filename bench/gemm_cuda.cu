/*
 * gemm_cuda.cu - checks and measures the matrix products of the CUDA backend on a GPU machine.
 *
 * A program of its own that needs the gemm objects of src/backend/cuda and a GPU, nothing else:
 * gemm_cuda check: every shape, set and row count: error, bits against single rows, canaries;
 * gemm_cuda bench [CSV]: a captured graph of 36 layers of Qwen3-8B shapes, all row counts;
 * gemm_cuda rows [CSV]: fewer row counts, with the activation in the product and without;
 * gemm_cuda ways [CSV]: ways to go about it, side by side; gemm_cuda trace (in a build with
 * SV_GEMM_TRACE): when thread blocks pass their marks;
 * check-portable, rows-portable [CSV]: the portable kernels alone;
 * gemm_cuda hot [CSV [MS [ROWS...]]]: many rows on a card at its highest temperature: energy and
 * clock; gemm_cuda cold CSV PAUSE_S BUSY_MS ROWS...: layers on an idle card, compared with the
 * vendor's library, and busy for BUSY_MS; gemm_cuda once - ROWS...: the products of one layer, then
 * the vendor's, for a profiler; gemm_cuda sweep [CSV]: ring depths, numbers of units and ways for
 * many rows. Weights of the timed runs are all different (14 GB), so caches do not help. The share
 * of bandwidth is against a read-only sweep in the same run. Exit status 1 when a check fails. Must
 * not: compare figures of different runs.
 */
#include "backend/gpu/fp8.cuh"
#include "backend/cuda/gemm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --------------------------------------------------------- what the objects need of the backend */

#define OK(call) must((call), #call, __LINE__)
static void must(cudaError_t rc, const char *what, int line)
{
    if (rc != cudaSuccess) {
        printf("line %d: %s: %s\n", line, what, cudaGetErrorString(rc));
        fflush(stdout);
        exit(2);
    }
}

bool sv_cuda_check(struct sv_cuda *, cudaError_t rc, const char *what)
{
    must(rc, what, 0);
    return true;
}
int sv_cuda_try(cudaError_t rc, struct sv_err *, const char *what)
{
    must(rc, what, 0);
    return SV_OK;
}
int sv_cuda_alloc(struct sv_dev *, void **out, size_t n_bytes, struct sv_err *)
{
    OK(cudaMalloc(out, n_bytes));
    OK(cudaMemset(*out, 0, n_bytes));
    OK(cudaDeviceSynchronize()); /* the device's stream does not wait for this one */
    return SV_OK;
}
void sv_cuda_free(struct sv_dev *, void *p)
{
    cudaFree(p);
}

static struct sv_cuda open_device(enum sv_cuda_set set, bool pdl)
{
    struct sv_cuda cu = {};
    cudaDeviceProp prop;
    OK(cudaGetDeviceProperties(&prop, 0));
    OK(cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking));
    cu.cc = prop.major * 10 + prop.minor;
    cu.n_sms = prop.multiProcessorCount;
    cu.set = set;
    cu.pdl = pdl && cu.cc >= 90;
    cu.compute = cu.act = SV_BF16;
    cu.lim.max_rows = 8192;
    cu.l2_bytes = (size_t)prop.l2CacheSize;
    cu.smem_block = prop.sharedMemPerBlockOptin;
    OK(cudaMalloc((void **)&cu.fault, sizeof *cu.fault));
    OK(cudaMemset(cu.fault, 0, sizeof *cu.fault));
    sv_cuda_gemm_reserve(&cu, NULL);
    if (set == SV_CUDA_SM90)
        printf("%s: %d multiprocessors, %d units, L2 %d MiB\n", prop.name, cu.n_sms,
               cu.gemm->sm90_units, prop.l2CacheSize >> 20);
    return cu;
}

static void close_device(struct sv_cuda *cu)
{
    OK(cudaStreamSynchronize(cu->stream));
    sv_cuda_gemm_close(cu);
    cudaFree(cu->fault);
    OK(cudaStreamDestroy(cu->stream));
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---------------------------------------------------------------- data on the device */

typedef __nv_bfloat16 bf16;

static __device__ __forceinline__ uint32_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)(z >> 32) ^ (uint32_t)z;
}

/* About normal, variance scale^2: the sum of four uniforms. */
static __device__ __forceinline__ float random_at(uint64_t seed, uint64_t i, float scale)
{
    const uint32_t a = mix(seed * 0x9e3779b97f4a7c15ull + i * 0xd1342543de82ef95ull);
    const float s = (float)(a & 255) + (float)(a >> 8 & 255) + (float)(a >> 16 & 255) +
                    (float)(a >> 24) - 510.0f;
    return s * scale * (1.0f / 147.8f);
}

static __global__ void fill_kernel(bf16 *p, size_t n, uint64_t seed, float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = __float2bfloat16_rn(random_at(seed, i, scale));
}

static __global__ void set_kernel(uint32_t *p, size_t n, uint32_t v)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = v;
}

static bf16 *make_random(size_t n, uint64_t seed, float scale)
{
    bf16 *p;
    OK(cudaMalloc((void **)&p, n * 2 + 64));
    fill_kernel<<<1024, 256>>>(p, n, seed, scale);
    OK(cudaDeviceSynchronize());
    return p;
}

#include "bench/gemm_cuda_check.h"

#include "bench/gemm_cuda_library.h"

/* ---------------------------------------------------------------- a stack of layers */

enum { LAYERS = 36, HIDDEN = 4096, MLP = 12288, QKV = 6144, VOCAB = 151936 };

struct layer {
    bf16 *qkv, *o, *gate_up, *down;
};
struct stack {
    struct layer layer[LAYERS];
    bf16 *head, *x, *y_qkv, *y_o, *y_down, *y_mlp, *act;
    int32_t *ids;
    int32_t max_rows;
};

static void make_stack(struct stack *s, int32_t max_rows, int layers)
{
    for (int i = 0; i < layers; i++) {
        const uint64_t seed = (uint64_t)i * 8 + 1;
        const float a = 1.0f / sqrtf(HIDDEN), b = 1.0f / sqrtf(MLP);
        s->layer[i].qkv = make_random((size_t)QKV * HIDDEN, seed, a);
        s->layer[i].o = make_random((size_t)HIDDEN * HIDDEN, seed + 1, a);
        s->layer[i].gate_up = make_random((size_t)2 * MLP * HIDDEN, seed + 2, a);
        s->layer[i].down = make_random((size_t)HIDDEN * MLP, seed + 3, b);
    }
    s->max_rows = max_rows;
    s->head = make_random((size_t)VOCAB * HIDDEN, 999, 1.0f / sqrtf(HIDDEN));
    s->x = make_random((size_t)max_rows * HIDDEN, 5, 1.0f);
    s->y_qkv = make_random((size_t)max_rows * QKV, 6, 1.0f);
    s->y_o = make_random((size_t)max_rows * HIDDEN, 7, 1.0f);
    s->y_down = make_random((size_t)max_rows * HIDDEN, 7, 1.0f);
    s->y_mlp = make_random((size_t)max_rows * 2 * MLP, 8, 1.0f);
    s->act = make_random((size_t)max_rows * MLP, 9, 1.0f);
    OK(cudaMalloc((void **)&s->ids, (size_t)max_rows * 4));
}

static bool in_bytes;                    /* the stack's weights have 8 bits, as a draft's */
static const struct sv_weight *in_codes; /* likewise, as a file's (codes.cuh): their format */
static struct sv_cuda_weight *noted;     /* those of the stack that may have a compressed copy */

static struct sv_gemm_part part_of(const bf16 *w, int32_t rows, int32_t cols)
{
    struct sv_gemm_part p = {};
    p.w.data = w;
    p.w.role = in_bytes ? SV_ROLE_DRAFT : SV_ROLE_NONE;
    p.w.fmt.elem = in_bytes ? SV_F8 : SV_BF16;
    p.w.fmt.scale = SV_F32;
    if (in_codes)
        p.w.fmt = in_codes->fmt;
    p.w.priv = noted;
    while (p.w.priv && ((struct sv_cuda_weight *)p.w.priv)->data != w)
        p.w.priv = ((struct sv_cuda_weight *)p.w.priv)->next;
    p.w.rows = rows;
    p.w.cols = cols;
    return p;
}

/* The four products of a layer. */
enum { P_QKV, P_O, P_GATE_UP, P_DOWN };
struct product {
    struct sv_gemm_part part[3];
    int32_t n_parts, k, cols;
};

static struct product product_of(const struct stack *s, int32_t layer, int which)
{
    static const int32_t rows[4][3] = {{4096, 1024, 1024}, {HIDDEN}, {MLP, MLP}, {HIDDEN}};
    const struct layer *l = &s->layer[layer % LAYERS];
    const bf16 *w[] = {l->qkv, l->o, l->gate_up, l->down};
    struct product p = {};
    size_t at = 0;
    p.k = which == P_DOWN ? MLP : HIDDEN;
    for (; p.n_parts < 3 && rows[which][p.n_parts]; p.n_parts++) {
        const int32_t n = rows[which][p.n_parts];
        p.part[p.n_parts] = part_of(w[which] + at / 2, n, p.k);
        at += in_bytes ? sv_fp8_bytes(n, p.k) : sv_packed_bytes(n, p.k);
        p.cols += n;
    }
    return p;
}

/* Stands for the small kernels between products: one row a block, all of it read and written,
 * brought to a mean square of 1 as norms do: numbers that shrink from layer to layer are zeros
 * soon, which take the card less power and time. */
static __global__ void glue_kernel(const bf16 *y, int64_t ldy, bf16 *x, int64_t ldx, int32_t n)
{
    __shared__ float scratch[32];
    float v[8], sum = 0;
    sv_pdl_launch();
    sv_pdl_wait();
    for (int32_t c = threadIdx.x * 8; c < n; c += blockDim.x * 8) {
        sv_load8(v, y + blockIdx.x * ldy + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum += v[i] * v[i];
    }
    const float scale = rsqrtf(sv_block_sum(sum, scratch) / (float)n + 1e-20f);
    for (int32_t c = threadIdx.x * 8; c < n; c += blockDim.x * 8) {
        sv_load8(v, y + blockIdx.x * ldy + c);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] *= scale;
        sv_store8(x + blockIdx.x * ldx + c, v);
    }
}

static void glue(struct sv_cuda *cu, int32_t n, const bf16 *y, int64_t ldy, bf16 *x, int64_t ldx,
                 int32_t cols)
{
    sv_cuda_launch(cu, "glue", glue_kernel, dim3((unsigned)n), dim3(256), 0, y, ldy, x, ldx, cols);
}

/* FUSED: gate and up with their activation. CHAIN: without small kernels too, a layer goes on from
 * the one before; its numbers soon vanish, so that is for checks. LIBRARY: products by the vendor's
 * library; it has no FUSED. */
enum { ALL = 15, WITH_GLUE = 16, WITH_HEAD = 32, FUSED = 64, CHAIN = 128, LIBRARY = 256 };

/* Product `which` of a layer, if it is asked for. */
static void one_gemm(struct sv_cuda *cu, const struct stack *s, int32_t n, int32_t layer, int which,
                     int what, const bf16 *x, int64_t ldx, bf16 *y)
{
    if (!(what >> which & 1))
        return;
    const struct product p = product_of(s, layer, which);
    if (what & LIBRARY) {
        library_gemm(n, p.cols, p.k, (const bf16 *)p.part[0].w.data, x, ldx, y);
        return;
    }
    if (which == P_GATE_UP && what & FUSED) {
        struct sv_p_gemm_act_mul g = {};
        g.n_rows = n;
        g.k = p.k;
        g.x = x;
        g.ldx = ldx;
        g.parts = p.part;
        g.gate_up = s->y_mlp;
        g.out = y;
        sv_cuda_gemm_act_mul((struct sv_dev *)cu, &g);
        return;
    }
    struct sv_p_gemm g = {};
    g.n_rows = n;
    g.k = p.k;
    g.n_parts = p.n_parts;
    g.x = x;
    g.ldx = ldx;
    g.parts = p.part;
    g.y = y;
    g.ldy = p.cols;
    sv_cuda_gemm((struct sv_dev *)cu, &g);
}

static void enqueue(struct sv_cuda *cu, const struct stack *s, int32_t n, int what, int layers)
{
    const bool g = what & WITH_GLUE, fused = what & FUSED;
    for (int i = 0; i < layers; i++) {
        one_gemm(cu, s, n, i, P_QKV, what, s->x, HIDDEN, s->y_qkv);
        if (g)
            glue(cu, n, s->y_qkv, QKV, s->act, HIDDEN, HIDDEN);
        one_gemm(cu, s, n, i, P_O, what, g ? s->act : s->y_qkv, g ? HIDDEN : QKV, s->y_o);
        if (g)
            glue(cu, n, s->y_o, HIDDEN, s->x, HIDDEN, HIDDEN);
        one_gemm(cu, s, n, i, P_GATE_UP, what, g ? s->x : s->y_o, HIDDEN,
                 fused ? s->act : s->y_mlp);
        if (g && !fused)
            glue(cu, n, s->y_mlp, 2 * MLP, s->act, MLP, MLP);
        one_gemm(cu, s, n, i, P_DOWN, what, g || fused ? s->act : s->y_mlp,
                 g || fused ? MLP : 2 * MLP,
                 g              ? s->y_o
                 : what & CHAIN ? s->x
                                : s->y_down);
        if (g)
            glue(cu, n, s->y_o, HIDDEN, s->x, HIDDEN, HIDDEN);
    }
    if (what & WITH_HEAD) {
        struct sv_p_head_argmax h = {};
        h.n_rows = n;
        h.k = HIDDEN;
        h.x = s->x;
        h.w = part_of(s->head, VOCAB, HIDDEN).w;
        h.out = s->ids;
        sv_cuda_head_argmax((struct sv_dev *)cu, &h);
    }
}

static double bytes_of(int what, int layers)
{
    double b = 0;
    b += what & 1 ? (double)QKV * HIDDEN : 0;
    b += what & 2 ? (double)HIDDEN * HIDDEN : 0;
    b += what & 4 ? 2.0 * MLP * HIDDEN : 0;
    b += what & 8 ? (double)HIDDEN * MLP : 0;
    b *= layers;
    b += what & WITH_HEAD ? (double)VOCAB * HIDDEN : 0;
    return 2 * b;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static float spread; /* of the last timing, percent */

/* Median microseconds of a replay. */
static double time_graph(struct sv_cuda *cu, const struct stack *s, int32_t n, int what, int layers,
                         int reps)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t e0, e1;
    float ms[32];
    OK(cudaEventCreate(&e0));
    OK(cudaEventCreate(&e1));
    enqueue(cu, s, n, what, 1); /* loads what is loaded at first use */
    OK(cudaStreamSynchronize(cu->stream));
    OK(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal));
    enqueue(cu, s, n, what, layers);
    OK(cudaStreamEndCapture(cu->stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphLaunch(exec, cu->stream));
    for (int i = 0; i < reps; i++) {
        OK(cudaEventRecord(e0, cu->stream));
        OK(cudaGraphLaunch(exec, cu->stream));
        OK(cudaEventRecord(e1, cu->stream));
        OK(cudaEventSynchronize(e1));
        OK(cudaEventElapsedTime(&ms[i], e0, e1));
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(e0));
    OK(cudaEventDestroy(e1));
    qsort(ms, (size_t)reps, sizeof *ms, by_value);
    spread = 100 * (ms[reps - 1] - ms[0]) / ms[reps / 2];
    return 1e3 * ms[reps / 2];
}

/* The chain of products must give the same bits with and without overlap of launches, and
 * again. */
static long check_chain(struct sv_cuda *cu, const struct stack *s, int what, int layers)
{
    long failed = 0;
    for (int k = 0; k < 6; k++) {
        static const int32_t counts[] = {1, 13, 40, 100, 170, 256};
        const int32_t n = counts[k];
        uint16_t *a = (uint16_t *)malloc((size_t)n * HIDDEN * 2),
                 *b = (uint16_t *)malloc((size_t)n * HIDDEN * 2);
        bool same = true;
        const bool pdl = cu->pdl;
        for (int round = 0; round < 6; round++) {
            cu->pdl = round ? pdl : false;
            fill_kernel<<<1024, 256, 0, cu->stream>>>(s->x, (size_t)n * HIDDEN, 5, 1.0f);
            OK(cudaStreamSynchronize(cu->stream));
            enqueue(cu, s, n, what | CHAIN, layers);
            OK(cudaStreamSynchronize(cu->stream));
            OK(cudaMemcpy(round ? b : a, s->x, (size_t)n * HIDDEN * 2, cudaMemcpyDeviceToHost));
            if (round)
                same = same && !memcmp(a, b, (size_t)n * HIDDEN * 2);
        }
        cu->pdl = pdl;
        double norm = 0;
        for (size_t i = 0; i < (size_t)n * HIDDEN; i++) {
            const float f = sv_bf16_to_f32(a[i]);
            norm += f * f;
        }
        norm = sqrt(norm / ((double)n * HIDDEN));
        /* The activation makes numbers smaller, layer by layer. */
        same = same && norm > (what & FUSED ? 1e-4 : 0.1) && norm < 10;
        printf("%-9s chain%s n=%d: rms %.3g %s\n", cu->set ? "sm90" : "portable",
               what & FUSED ? ", gated" : "", n, norm, same ? "ok" : "FAILED");
        failed += !same;
        free(a);
        free(b);
    }
    return failed;
}

/* ---------------------------------------------------------------- read bandwidth */

static __global__ void read_kernel(const uint4 *p, size_t n, uint32_t *out)
{
    uint32_t sum = 0;
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 7 * stride < n; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            v[k] = __ldcs(p + i + k * stride);
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == 0x12345678u)
        *out = sum;
}

static double read_bandwidth(const struct stack *s)
{
    cudaEvent_t e0, e1;
    OK(cudaEventCreate(&e0));
    OK(cudaEventCreate(&e1));
    double best = 0;
    const size_t n = (size_t)VOCAB * HIDDEN * 2 / 16;
    static const int grids[] = {132 * 2, 132 * 4, 132 * 8, 132 * 16};
    for (int g = 0; g < 4; g++)
        for (int i = 0; i < 6; i++) {
            float ms;
            OK(cudaEventRecord(e0));
            read_kernel<<<grids[g], 512>>>((const uint4 *)s->head, n, (uint32_t *)s->ids);
            OK(cudaEventRecord(e1));
            OK(cudaEventSynchronize(e1));
            OK(cudaEventElapsedTime(&ms, e0, e1));
            best = fmax(best, (double)n * 16 / ms / 1e6);
        }
    return best;
}

/* ---------------------------------------------------------------- commands */

static int first_set = SV_CUDA_SM90;

static long check_products(struct sv_cuda *cu)
{
    const double t = now();
    long failed = 0;
    for (int i = 0; i < N_SHAPES; i++)
        failed += shapes[i].y_f32 ? check_shape<uint32_t>(cu, &shapes[i])
                                  : check_shape<uint16_t>(cu, &shapes[i]);
    failed += check_gated(cu, 4096, 12288, false, 2048);
    failed += check_gated(cu, 320, 896, false, 2048);
    failed += check_gated(cu, 136, 77, true, 1000);
    failed += check_gated(cu, 1024, 3072, true, 1000);
    failed += check_gated(cu, 4096, 200, true, 1000);
    failed += check_gated(cu, 8, 32, false, 300);
    failed += check_head(cu, 6144, 320, true);
    failed += check_head(cu, 5000, 512, false);
    failed += check_head(cu, 20000, 4096, true);
    failed += check_head(cu, 300, 13, true);
    printf("%.1f s\n", now() - t);
    return failed;
}

static int check(void)
{
    long failed = 0;
    for (int set = first_set; set >= SV_CUDA_PORTABLE; set--) {
        struct sv_cuda cu = open_device((enum sv_cuda_set)set, true);
        failed += check_products(&cu);
        close_device(&cu);
    }
    printf("check: %s\n", failed ? "FAILED" : "all ok");
    return failed ? 1 : 0;
}

static FILE *csv;
static double read_gbs;

static void row(const char *set, const char *what, const char *variant, int32_t n, double us,
                int bits, int layers)
{
    const double gbs = bytes_of(bits, layers) / us / 1e3 *
                       (in_bytes   ? 0.5
                        : in_codes ? (sv_cuda_is_w8a8(in_codes) ? 8.25
                                      : sv_cuda_code_bits(in_codes) % 4
                                          ? sv_cuda_code_bits(in_codes)
                                          : sv_cuda_code_bits(in_codes) + 0.5) /
                                         16
                                   : 1),
                 tflops = bytes_of(bits, layers) * n / us / 1e6;
    if (csv)
        fprintf(csv, "%s,%s,%s,%d,%.2f,%.1f,%.4f,%.1f,%.1f\n", set, what, variant, n, us / layers,
                gbs, gbs / read_gbs, tflops, spread);
}

/* What programs that stand on this one print a line of, for each number of rows and variant of the
 * weights. */
static const struct {
    const char *name;
    int what;
} columns[] = {{"layer gated", ALL | FUSED},
               {"layer gated+3 small", ALL | FUSED | WITH_GLUE},
               {"qkv", 1},
               {"o", 2},
               {"gate_up gated", 4 | FUSED},
               {"down", 8},
               {"head_argmax", WITH_HEAD}};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

[[maybe_unused]] static void columns_title(void)
{
    printf("us a layer");
    for (int w = 0; w < N_COLUMNS; w++)
        printf(" | %s", columns[w].name);
    printf("\n");
}

[[maybe_unused]] static void columns_line(struct sv_cuda *cu, const struct stack *s, int32_t n,
                                          const char *variant)
{
    printf("%3d %-6s", n, variant);
    for (int w = 0; w < N_COLUMNS; w++) {
        const int layers = columns[w].what & ALL ? LAYERS : 1;
        const double us = time_graph(cu, s, n, columns[w].what, layers, 7);
        row(cu->set ? "sm90" : "portable", columns[w].name, variant, n, us,
            columns[w].what & (ALL | WITH_HEAD), layers);
        printf(" %7.2f", us / layers);
    }
    printf("\n");
    fflush(stdout);
}

#include "bench/gemm_cuda_hot.h"

/* Layers on an idle and, if ms > 0, on a busy card: ms of warming up and ms of measuring. */
static void cold(struct stack *s, double pause_s, double ms, int n_rows, char **rows)
{
    static const struct cold_arm {
        const char *name;
        int what;
    } arms[] = {{"layer gated", ALL | FUSED}, {"layer", ALL}, {"layer cuBLAS", ALL | LIBRARY}};
    enum { ARMS = sizeof arms / sizeof(struct cold_arm), ROUNDS = 3, REPS = 5 };
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    const bool library_too = have_library(&cu);
    const struct timespec pause = {(time_t)pause_s, (long)((pause_s - floor(pause_s)) * 1e9)};
    printf(
        "after %.1f s at rest, three rounds of the median of %d (then busy: us, mJ, W, GHz), us a "
        "layer, TFLOP/s\n",
        pause_s, (int)REPS);
    for (int i = 0; i < n_rows; i++)
        for (int w = 0; w < ARMS; w++) {
            const int32_t n = atoi(rows[i]);
            if ((arms[w].what & LIBRARY && !library_too) || (w && n < 128))
                continue;
            printf("%4d %-14s", n, arms[w].name);
            float us[ROUNDS];
            for (int r = 0; r < ROUNDS; r++) {
                nanosleep(&pause, NULL);
                us[r] = (float)time_graph(&cu, s, n, arms[w].what, LAYERS, REPS);
                printf(" %7.2f", us[r] / LAYERS);
            }
            qsort(us, ROUNDS, sizeof *us, by_value);
            row("sm90", arms[w].name, "at rest", n, us[ROUNDS / 2], ALL, LAYERS);
            printf(" (%.0f)", bytes_of(ALL, LAYERS) * n / us[ROUNDS / 2] / 1e6);
            if (ms > 0) {
                const struct heat h = time_hot(&cu, s, n, arms[w].what, LAYERS, ms);
                row("sm90", arms[w].name, "busy", n, h.us * LAYERS, ALL, LAYERS);
                printf(" | %7.2f %6.2f mJ %4.0f W %.2f GHz (%.0f)", h.us, h.mj, h.watts, h.ghz,
                       bytes_of(ALL, 1) * n / h.us / 1e6);
            }
            printf("\n");
            fflush(stdout);
        }
    close_device(&cu);
}

static void once(struct stack *s, int n_rows, char **rows)
{
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    const bool library_too = have_library(&cu);
    for (int i = 0; i < n_rows; i++)
        for (int lib = 0; lib <= (library_too ? 1 : 0); lib++) {
            enqueue(&cu, s, atoi(rows[i]), ALL | (lib ? LIBRARY : FUSED), 1);
            OK(cudaStreamSynchronize(cu.stream));
        }
    close_device(&cu);
}

static long stack_checks(struct stack *s)
{
    long failed = 0;
    for (int set = first_set; set >= SV_CUDA_PORTABLE; set--) {
        struct sv_cuda cu = open_device((enum sv_cuda_set)set, true);
        failed += check_chain(&cu, s, ALL, 12);
        failed += check_chain(&cu, s, ALL | FUSED, 2);
        close_device(&cu);
    }
    return failed;
}

static void bench(struct stack *s)
{
    static const int32_t some[] = {1,  2,  4,  8,  12, 16,  17,  24,  32,  33,  48,
                                   64, 65, 80, 96, 97, 112, 128, 129, 160, 192, 256};
    for (int set = first_set; set >= SV_CUDA_PORTABLE; set--)
        for (int pdl = 1; pdl >= 0; pdl--) {
            if (!pdl && !set)
                continue;
            struct sv_cuda cu = open_device((enum sv_cuda_set)set, pdl);
            char name[32];
            snprintf(name, sizeof name, "%s%s", set ? "sm90" : "portable", pdl ? "" : "_nopdl");
            double one = 0, worst = 0;
            int32_t worst_n = 0;
            printf("%s: n us/layer share x1 | glue us share | TF\n", name);
            for (int32_t n = 1; n <= 256; n++) {
                bool print = false;
                for (size_t i = 0; i < sizeof some / sizeof *some; i++)
                    print |= some[i] == n;
                if (!print && (!pdl || !set || n > 128))
                    continue;
                const double us = time_graph(&cu, s, n, ALL, LAYERS, print ? 9 : 5);
                row(name, "layer", "default", n, us, ALL, LAYERS);
                one = n == 1 ? us : one;
                if (n <= 128 && us > worst)
                    worst = us, worst_n = n;
                if (!print)
                    continue;
                const double glued = time_graph(&cu, s, n, ALL | WITH_GLUE, LAYERS, 5);
                row(name, "layer+4 small", "default", n, glued, ALL, LAYERS);
                printf("%4d %7.2f %.3f %.3f | %7.2f %.3f | %.0f\n", n, us / LAYERS,
                       bytes_of(ALL, LAYERS) / us / 1e3 / read_gbs, us / one, glued / LAYERS,
                       bytes_of(ALL, LAYERS) / glued / 1e3 / read_gbs,
                       bytes_of(ALL, LAYERS) * n / us / 1e6);
            }
            printf("%s worst of 1..128: n = %d, %.3f of one row\n", name, worst_n, worst / one);
            fflush(stdout);
            static const int32_t heads[] = {1, 15, 16, 32, 64, 128, 256};
            for (int i = 0; i < 7; i++) {
                const double us = time_graph(&cu, s, heads[i], WITH_HEAD, 1, 9);
                row(name, "head_argmax", "default", heads[i], us, WITH_HEAD, 1);
                printf("head %d: %.1f us, share %.3f; ", heads[i], us,
                       bytes_of(WITH_HEAD, 1) / us / 1e3 / read_gbs);
            }
            printf("\n");
            static const int32_t fills[] = {512, 1024, 2048, 4096, 8192, 8192};
            for (int i = 0; i < (set ? 6 : 1); i++) {
                cu.gemm->tune_whole = i == 5 ? -1 : 0;
                const double us = time_graph(&cu, s, fills[i], ALL, set ? 4 : 1, 3);
                row(name, "prefill", i == 5 ? "passes" : "default", fills[i], us, ALL, set ? 4 : 1);
                printf("prefill %d: %.1f us/layer %.0f TFLOP/s; ", fills[i], us / (set ? 4 : 1),
                       bytes_of(ALL, set ? 4 : 1) * fills[i] / us / 1e6);
            }
            printf("\n");
            fflush(stdout);
            close_device(&cu);
        }
}

static void sweep(struct stack *s)
{
    static const struct {
        int32_t set, n, stages[8]; /* ends with 0 */
    } all[] = {
        {1, 1, {6, 8, 9, 10, 11, 12}},
        {1, 16, {6, 8, 9, 10, 11, 12}},
        {1, 32, {6, 8, 9, 10, 11}},
        {1, 48, {6, 7, 8, 9}},
        {1, 64, {6, 7, 8, 9}},
        {1, 96, {5, 6, 7}},
        {1, 128, {5, 6}},
        {1, 192, {4, 5}},
        {1, 256, {4}},
        {0, 1, {8, 9, 10}},
        {0, 16, {8, 9, 10}},
        {0, 64, {5, 6}},
    };
    static const char *names[] = {"qkv", "o", "gate_up", "down"};
    printf("sweep, us a layer: all four, with small kernels between, each alone\n");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct sv_cuda cu = open_device((enum sv_cuda_set)all[i].set, true);
        const char *set = all[i].set ? "sm90" : "portable";
        const int32_t n = all[i].n;
        for (int st = 0; all[i].stages[st]; st++) {
            char name[32];
            snprintf(name, sizeof name, "s%d", all[i].stages[st]);
            cu.gemm->tune_stages = all[i].stages[st];
            const double us = time_graph(&cu, s, n, ALL, LAYERS, 5);
            row(set, "layer", name, n, us, ALL, LAYERS);
            const double glued = time_graph(&cu, s, n, ALL | WITH_GLUE, LAYERS, 5);
            row(set, "layer+4 small", name, n, glued, ALL, LAYERS);
            printf("%-8s n %3d %-4s %7.2f %7.2f (", set, n, name, us / LAYERS, glued / LAYERS);
            for (int k = 0; k < 4; k++) {
                const double one = time_graph(&cu, s, n, 1 << k, LAYERS, 3);
                row(set, names[k], name, n, one, 1 << k, LAYERS);
                printf(" %s %.2f", names[k], one / LAYERS);
            }
            const double head = time_graph(&cu, s, n, WITH_HEAD, 1, 5);
            row(set, "head_argmax", name, n, head, WITH_HEAD, 1);
            printf(") head %.1f\n", head);
        }
        close_device(&cu);
    }
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    static const int32_t units[] = {66, 64, 60, 56, 48, 44, 33, 32};
    for (int i = 0; i < 16; i++) {
        const int32_t n = i / 8 ? 128 : 1;
        cu.gemm->tune_units = units[i % 8];
        printf("n %3d, at most %d units:", n, units[i % 8]);
        for (int k = 0; k < 4; k++)
            printf(" %s %.2f", names[k], time_graph(&cu, s, n, 1 << k, LAYERS, 3) / LAYERS);
        printf("\n");
    }
    cu.gemm->tune_units = 0;
    static const int32_t fills[] = {300, 512, 1000, 1024, 2048};
    for (int i = 0; i < 5 * 3; i++) {
        const int32_t n = fills[i / 3], how = i % 3 == 2 ? -1 : i % 3;
        cu.gemm->tune_whole = how;
        const double us = time_graph(&cu, s, n, ALL, 4, 3);
        printf("prefill %d, %s: %.1f us/layer %.0f TFLOP/s (", n,
               how == 0  ? "built-in"
               : how > 0 ? "whole"
                         : "passes",
               us / 4, bytes_of(ALL, 4) * n / us / 1e6);
        for (int k = 0; k < 4; k++)
            printf(" %s %.0f", names[k],
                   bytes_of(1 << k, 4) * n / time_graph(&cu, s, n, 1 << k, 4, 3) / 1e6);
        printf(")\n");
    }
    close_device(&cu);
}

/* Ways to go about it, side by side. */
static void ways(struct stack *s)
{
    static const int32_t counts[] = {1,   16,  32,  48,  64,  80,  96,  97,  112,  128,  129, 160,
                                     192, 224, 256, 320, 384, 448, 512, 768, 1024, 2048, 4096};
    static const int whats[] = {ALL | FUSED, ALL | FUSED | WITH_GLUE, 1, 2, 4 | FUSED, 8,
                                WITH_HEAD};
    static const char *names[] = {"layer gated", "layer gated+3 small", "qkv", "o", "gate_up gated",
                                  "down",        "head_argmax"};
    static const struct {
        const char *name;
        int32_t whole, tall, halves, from, to, bits; /* from, to: rows; bits: of whats */
    } all[] = {
        {"built-in", 0, 0, 0, 1, 4096, 127},        {"no tall blocks", 0, -1, 0, 97, 256, 83},
        {"no halves of k", 0, 0, -1, 257, 512, 47}, {"passes", -1, 0, -1, 257, 1024, 60},
        {"whole 192", 192, 0, -1, 257, 4096, 60},   {"whole 256", 256, 0, -1, 257, 4096, 16}};
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    printf("us a layer: layer gated | gated+3 small | qkv | o | gate_up gated | down | head\n");
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (size_t v = 0; v < sizeof all / sizeof *all; v++) {
            const int32_t n = counts[c];
            if (n < all[v].from || n > all[v].to)
                continue;
            cu.gemm->tune_whole = all[v].whole;
            cu.gemm->tune_tall = all[v].tall;
            cu.gemm->tune_halves = all[v].halves;
            printf("%4d %-14s", n, all[v].name);
            for (size_t w = 0; w < sizeof whats / sizeof *whats; w++) {
                const int layers = !(whats[w] & ALL) ? 1 : n > 512 ? 4 : LAYERS;
                if (!(all[v].bits >> w & 1) || (n > 512 && w == 6)) {
                    printf("       -");
                    continue;
                }
                const double us = time_graph(&cu, s, n, whats[w], layers, 5);
                row("sm90", names[w], all[v].name, n, us, whats[w] & (ALL | WITH_HEAD), layers);
                printf(" %7.2f", us / layers);
            }
            printf("\n");
            fflush(stdout);
        }
    close_device(&cu);
}

#ifdef SV_GEMM_TRACE
/* When the blocks of each product of two layers pass their marks, from the end of the product
 * before on. */
static void trace_marks(struct stack *s)
{
    static const int32_t counts[] = {1, 64, 128, 256, 512};
    static const char *names[] = {"qkv", "o", "gate_up", "down"};
    static const char *marks[] = {"start",        "first x", "summed",    "posted",
                                  "others there", "end",     "may read x"};
    enum { PRODUCTS = 4 * 8, EACH = SV_GEMM_TRACED * SV_GEMM_MARKS };
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    const size_t bytes = (size_t)2 * PRODUCTS * EACH * 8;
    uint64_t *host = (uint64_t *)malloc(bytes);
    OK(cudaMalloc((void **)&cu.gemm->trace, bytes));
    for (int way = 0; way < 2; way++)
        for (int c = 0; c < 5; c++) {
            cu.gemm->tune_skew = way ? 0 : -1;
            for (int round = 0; round < 2; round++) {
                OK(cudaMemset(cu.gemm->trace, 0, bytes));
                cu.gemm->n_traced = 0;
                enqueue(&cu, s, counts[c], ALL | FUSED | (round ? 0 : WITH_GLUE), 8);
                OK(cudaStreamSynchronize(cu.stream));
            }
            OK(cudaMemcpy(host, cu.gemm->trace, bytes, cudaMemcpyDeviceToHost));
            printf(
                "%s, %d rows; ns after the product before ended: earliest, middle, latest block\n",
                way ? "built-in" : "even", counts[c]);
            for (int p = 20; p < 24; p++) {
                uint64_t before = 0;
                for (int b = 0; b < SV_GEMM_TRACED; b++) {
                    const uint64_t t = host[(size_t)(p - 1) * EACH + b * SV_GEMM_MARKS + 5];
                    before = t > before ? t : before;
                }
                printf("  %-8s", names[p % 4]);
                static const int order[] = {0, 6, 1, 2, 3, 4, 5};
                for (int o = 0; o < 7; o++) {
                    const int m = order[o];
                    float v[SV_GEMM_TRACED];
                    int n = 0;
                    for (int b = 0; b < SV_GEMM_TRACED; b++) {
                        const uint64_t t = host[(size_t)p * EACH + b * SV_GEMM_MARKS + m];
                        if (t)
                            v[n++] = (float)(int64_t)(t - before);
                    }
                    if (!n)
                        continue;
                    qsort(v, (size_t)n, sizeof *v, by_value);
                    printf(" | %s %.0f %.0f %.0f", marks[m], v[0], v[n / 2], v[n - 1]);
                }
                printf("\n");
            }
        }
    cudaFree(cu.gemm->trace);
    close_device(&cu);
}
#endif

/* The table in docs/notes/cuda-kernels.md, and each product alone. */
static void rows(struct stack *s)
{
    static const int32_t counts[] = {1,  8,  16,  32,  33,  48,  64,  65, 80,
                                     96, 97, 112, 128, 129, 160, 192, 256};
    static const struct {
        const char *name;
        int what;
    } ways[] = {{"layer", ALL},
                {"layer+4 small", ALL | WITH_GLUE},
                {"layer gated", ALL | FUSED},
                {"layer gated+3 small", ALL | FUSED | WITH_GLUE},
                {"qkv", 1},
                {"o", 2},
                {"gate_up", 4},
                {"gate_up gated", 4 | FUSED},
                {"down", 8},
                {"head_argmax", WITH_HEAD}};
    for (int set = first_set; set >= SV_CUDA_PORTABLE; set--) {
        struct sv_cuda cu = open_device((enum sv_cuda_set)set, true);
        const char *name = set ? "sm90" : "portable";
        printf("%s, us a layer of", name);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
            printf(" | %s", ways[w].name);
        printf("\n");
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int32_t n = counts[c];
            for (int round = 0; round < (!set && n <= 8 ? 2 : 1); round++) {
                if (!set && n > 64)
                    continue;
                cu.gemm->tune_round = round;
                printf("%3d%s", n, round ? " (2 a round)" : "");
                for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
                    const int what = ways[w].what, layers = what & ALL ? LAYERS : 1;
                    const double us = time_graph(&cu, s, n, what, layers, 5);
                    row(name, ways[w].name, round ? "2 a round" : "default", n, us,
                        what & (ALL | WITH_HEAD), layers);
                    printf(" %7.2f", us / layers);
                    if (w == 0)
                        printf(" (%.0f TF)", bytes_of(ALL, LAYERS) * n / us / 1e6);
                }
                printf("\n");
                fflush(stdout);
            }
        }
        cu.gemm->tune_round = 0;
        close_device(&cu);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    if (strstr(what, "portable"))
        first_set = SV_CUDA_PORTABLE;
    if (!strncmp(what, "check", 5))
        return check();
    csv = argc > 2 ? fopen(argv[2], "w") : NULL;
    if (csv)
        fprintf(
            csv,
            "kernels,what,variant,rows,us_per_layer,GB/s,share_of_read,TFLOP/s,spread_percent\n");
    const double t = now();
    static struct stack s;
    make_stack(&s, 8192, strcmp(what, "once") ? LAYERS : 1);
    read_gbs = read_bandwidth(&s);
    printf("read bandwidth %.0f GB/s; a layer's weights in %.2f us (set-up %.1f s)\n", read_gbs,
           bytes_of(ALL, 1) / read_gbs / 1e3, now() - t);
    const long failed = strcmp(what, "trace") && strcmp(what, "cold") && strcmp(what, "once")
                            ? stack_checks(&s)
                            : 0;
    if (!strcmp(what, "once"))
        once(&s, argc - 3, argv + 3);
    else if (!strcmp(what, "sweep"))
        sweep(&s);
    else if (!strncmp(what, "rows", 4))
        rows(&s);
    else if (!strcmp(what, "ways"))
        ways(&s);
    else if (!strcmp(what, "cold"))
        cold(&s, argc > 3 ? atof(argv[3]) : 2, argc > 4 ? atof(argv[4]) : 0,
             argc > 5 ? argc - 5 : 0, argv + 5);
    else if (!strcmp(what, "hot"))
        run_hot(&s, argc > 3 ? atof(argv[3]) : 400, argc > 4 ? argc - 4 : 0, argv + 4);
#ifdef SV_GEMM_TRACE
    else if (!strcmp(what, "trace"))
        trace_marks(&s);
#endif
    else
        bench(&s);
    printf("%.1f s\n", now() - t);
    if (csv)
        fclose(csv);
    return failed ? 1 : 0;
}
