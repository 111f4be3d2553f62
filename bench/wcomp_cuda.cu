/*
 * wcomp_cuda.cu - checks and measures products from compressed weights beside the same products
 * from packed ones, on a GPU machine.
 *
 * wcomp_cuda check: every kernel and many row counts, bits against the packed weights, including
 * numbers that do not fit the format; wcomp_cuda bench [CSV [ROWS...]]: the same, then a captured
 * graph of 36 layers of Qwen3-8B's shapes, ring depths, a warm card; with row counts, only these,
 * without checks; wcomp_cuda hot CSV MS ROWS...: both in turns on a busy card, MS milliseconds
 * each, and the vendor's library. check-portable, bench-portable: the portable kernels. Includes
 * gemm_cuda.cu for its helpers, stack of layers and timing. The weights are nearly
 * normal (sums of four uniform numbers). Exit status 1 when a check fails. Must not: compare
 * figures of different runs.
 */
#define main gemm_cuda_main
#include "bench/gemm_cuda.cu"
#undef main

#include "backend/gpu/wcomp.cuh"

/* ---------------------------------------------------------------- checks */

/* Zeros of both signs, and every so often a number far from the others. */
static __global__ void odd_kernel(bf16 *p, size_t n, uint32_t every)
{
    uint16_t *u = (uint16_t *)p;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t h = mix(i + 77);
        if (h % every == 0)
            u[i] = h >> 16 & 1 ? 0x0001 : h >> 17 & 1 ? 0x0b21 : 0x8312;
        else if (h % 97 == 1)
            u[i] = h >> 20 & 1 ? 0x8000 : 0;
    }
}

struct wcomp_case {
    const char *name;
    int32_t k, n_parts, rows[3];
    bool gated, f32;
    uint32_t every; /* one number in so many is far off */
    bool wcomp;     /* whether that is few enough */
};

static const struct wcomp_case wcomp_cases[] = {
    {"small", 320, 3, {1024, 128, 128}, false, false, 100000, true},
    {"small f32", 1024, 3, {1024, 128, 128}, false, true, 5000, true},
    {"odd", 136, 2, {77, 200}, false, false, 3000, true},
    {"too many", 320, 1, {4096}, false, false, 50, false},
    {"gated", 320, 2, {896, 896}, true, false, 20000, true},
    {"gated, few", 256, 2, {480, 480}, true, false, 10000, true},
    {"qkv", 4096, 3, {4096, 1024, 1024}, false, false, 100000, true},
    {"o", 4096, 1, {4096}, false, false, 100000, true},
    {"gate_up", 4096, 2, {12288, 12288}, true, false, 100000, true},
    {"down", 12288, 1, {4096}, false, false, 100000, true},
    {"f32", 2048, 1, {5000}, false, true, 10000, true},
    {"head", 1024, 1, {151936}, false, true, 1000000, true},
};

static void run_wcomp(struct sv_cuda *cu, const struct wcomp_case *c, const struct made *m,
                      int32_t n, void *y)
{
    if (c->gated) {
        run_gated(cu, m, c->k, n, m->base, c->k, y);
        return;
    }
    struct shape s = {c->name, c->k, c->n_parts, {}, true, c->f32, false, false};
    run(cu, &s, m, n, m->base, c->k, y, m->cols);
}

static long check_wcomp(struct sv_cuda *cu, const struct wcomp_case *c)
{
    enum { MOST = 132 };
    struct shape s = {c->name, c->k, c->n_parts, {}, true, c->f32, false, false};
    struct made m;
    long failed = 0, tried = 0;
    uint8_t *y, *host[2];
    for (int i = 0; i < c->n_parts; i++)
        s.n_out[i] = c->rows[i];
    make_shape(cu, &s, &m);
    for (int i = 0; i < c->n_parts; i++) {
        odd_kernel<<<1024, 256, 0, cu->stream>>>(m.packed[i], sv_packed_bytes(c->rows[i], c->k) / 2,
                                                 c->every);
        sv_cuda_wcomp_note(cu, &m.part[i].w, NULL);
    }
    sv_cuda_wcomp_reserve(cu, NULL);
    for (int i = 0; i < c->n_parts; i++)
        failed += (sv_cuda_wcomp_of(&m.part[i].w) != NULL) != c->wcomp;
    const size_t bytes = (size_t)(MOST + 2) * (size_t)m.cols * 4;
    OK(cudaMalloc((void **)&y, bytes));
    for (int i = 0; i < 2; i++)
        host[i] = (uint8_t *)malloc(bytes);
    const int32_t step = m.cols > 100000 ? 33 : c->k > 3000 ? 9 : 1;
    for (int32_t n = 1; n <= MOST; n += step, tried++) {
        for (int d = 0; d < 2; d++) {
            cu->gemm->tune_wcomp = d ? 0 : -1;
            OK(cudaMemsetAsync(y, 0x5a, bytes, cu->stream));
            run_wcomp(cu, c, &m, n, y);
            OK(cudaMemcpyAsync(host[d], y, bytes, cudaMemcpyDeviceToHost, cu->stream));
            OK(cudaStreamSynchronize(cu->stream));
        }
        failed += memcmp(host[0], host[1], bytes) != 0;
    }
    cu->gemm->tune_wcomp = 0;
    printf("compressed %-10s %3ld counts %s\n", c->name, tried, failed ? "FAILED" : "ok");
    fflush(stdout);
    for (int i = 0; i < c->n_parts; i++)
        sv_cuda_wcomp_forget(cu, &m.part[i].w);
    for (int i = 0; i < 2; i++)
        free(host[i]);
    cudaFree(y);
    free_shape(&m);
    return failed;
}

/* Layers and head in a chain, from compressed and from packed weights. */
static long check_wcomp_chain(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {1, 13, 40, 64, 96, 128};
    static uint16_t x[2][128 * HIDDEN];
    static int32_t ids[2][128];
    long failed = 0;
    for (int round = 0; round < 12; round++) {
        const int32_t n = counts[round % 6];
        const int what = ALL | WITH_HEAD | (round / 6 ? FUSED : 0);
        for (int d = 0; d < 2; d++) {
            cu->gemm->tune_wcomp = d ? 0 : -1;
            fill_kernel<<<1024, 256, 0, cu->stream>>>(s->x, (size_t)n * HIDDEN, 5, 1.0f);
            enqueue(cu, s, n, what | CHAIN, round / 6 ? 2 : 12);
            OK(cudaStreamSynchronize(cu->stream));
            OK(cudaMemcpy(x[d], s->x, (size_t)n * HIDDEN * 2, cudaMemcpyDeviceToHost));
            OK(cudaMemcpy(ids[d], s->ids, (size_t)n * 4, cudaMemcpyDeviceToHost));
        }
        failed +=
            memcmp(x[0], x[1], (size_t)n * HIDDEN * 2) || memcmp(ids[0], ids[1], (size_t)n * 4);
    }
    cu->gemm->tune_wcomp = 0;
    printf("compressed chain %s\n", failed ? "FAILED" : "ok");
    return failed;
}

/* ---------------------------------------------------------------- figures */

static void note_stack(struct sv_cuda *cu, const struct stack *s)
{
    const double t = now();
    int32_t n_wcomp = 0, n_plain = 0;
    size_t bytes = 0;
    for (int l = 0; l < LAYERS; l++)
        for (int w = 0; w < 4; w++) {
            struct product p = product_of(s, l, w);
            for (int i = 0; i < p.n_parts; i++)
                sv_cuda_wcomp_note(cu, &p.part[i].w, NULL);
        }
    struct sv_gemm_part head = part_of(s->head, VOCAB, HIDDEN);
    sv_cuda_wcomp_note(cu, &head.w, NULL);
    sv_cuda_wcomp_reserve(cu, NULL);
    noted = cu->weights;
    for (const struct sv_cuda_weight *v = noted; v; v = v->next) {
        n_wcomp += v->wcomp != NULL;
        n_plain += v->wcomp == NULL;
        bytes += v->wcomp ? sv_wcomp_bytes(v->rows, v->cols) : 0;
    }
    printf("%.2f GB compressed, %d matrices, %d cannot be; made in %.3f s\n", (double)bytes / 1e9,
           n_wcomp, n_plain, now() - t);
}

static void wcomp_rows(struct sv_cuda *cu, const struct stack *s, const int32_t *counts,
                       int n_counts)
{
    columns_title();
    for (int c = 0; c < 2 * n_counts; c++) {
        cu->gemm->tune_wcomp = c % 2 ? 0 : -1;
        columns_line(cu, s, counts[c / 2], c % 2 ? "compressed" : "packed");
    }
    cu->gemm->tune_wcomp = 0;
}

/* What nvidia-smi says now: clock and power. */
static void power_now(double *mhz, double *watts)
{
    FILE *f =
        popen("nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits", "r");
    if (!f || fscanf(f, "%lf, %lf", mhz, watts) != 2)
        *mhz = *watts = NAN;
    if (f)
        pclose(f);
}

/* A card that has worked for a while draws all it may and slows down: time, clock and power after
 * about a second of nothing but these products. */
static void steady(struct sv_cuda *cu, const struct stack *s, int32_t n, int what, const char *name)
{
    enum { ROUNDS = 26, KEPT = 9, EACH = 12 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t e[2];
    float ms[ROUNDS];
    double mhz = NAN, watts = NAN;
    for (int i = 0; i < 2; i++)
        OK(cudaEventCreate(&e[i]));
    OK(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal));
    enqueue(cu, s, n, what, LAYERS);
    OK(cudaStreamEndCapture(cu->stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < ROUNDS; i++) {
        OK(cudaEventRecord(e[0], cu->stream));
        for (int j = 0; j < EACH; j++)
            OK(cudaGraphLaunch(exec, cu->stream));
        OK(cudaEventRecord(e[1], cu->stream));
        if (i == ROUNDS - 2)
            power_now(&mhz, &watts);
        OK(cudaEventSynchronize(e[1]));
        OK(cudaEventElapsedTime(&ms[i], e[0], e[1]));
    }
    qsort(ms + ROUNDS - KEPT, KEPT, sizeof *ms, by_value);
    const double us = 1e3 * ms[ROUNDS - KEPT / 2 - 1] / EACH;
    spread = 100 * (ms[ROUNDS - 1] - ms[ROUNDS - KEPT]) / ms[ROUNDS - KEPT / 2 - 1];
    row("sm90", "layer gated+3 small, warm", name, n, us, ALL, LAYERS);
    printf("%3d %-6s warm: %.2f us a layer, %.0f MHz, %.0f W, %.1f mJ\n", n, name, us / LAYERS, mhz,
           watts, watts * us / LAYERS / 1e3);
    fflush(stdout);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 2; i++)
        OK(cudaEventDestroy(e[i]));
}

/* On a busy card, packed and compressed by turns: us and mJ of a layer, and the clock. */
static void wcomp_hot(struct sv_cuda *cu, const struct stack *s, double busy, const int32_t *counts,
                      int n_counts)
{
    enum { WAYS = 6, TURNS = 3 }; /* the first of hot_ways: built in */
    time_hot(cu, s, 256, ALL | FUSED, LAYERS, 800);
    for (int i = 0; i < n_counts * WAYS; i++) {
        const int32_t n = counts[i / WAYS];
        const int what = hot_ways[i % WAYS].what, layers = what & ALL ? LAYERS : 1,
                  bits = what & (ALL | WITH_HEAD);
        printf("%3d %-19s packed, compressed:", n, hot_ways[i % WAYS].name);
        for (int t = 0; t < 2 * TURNS; t++) {
            cu->gemm->tune_wcomp = t % 2 ? 0 : -1;
            const struct heat h = time_hot(cu, s, n, what, layers, busy);
            row("sm90", hot_ways[i % WAYS].name, t % 2 ? "compressed" : "packed", n, h.us * layers,
                bits, layers);
            printf("%s %6.2f us %6.2f mJ %.2f GHz", t % 2 ? "," : " |", h.us, h.mj, h.ghz);
        }
        printf("\n");
        fflush(stdout);
    }
    cu->gemm->tune_wcomp = 0;
    for (int i = 0; i < n_counts && have_library(cu); i++) {
        printf("%3d the vendor's library:", counts[i]);
        for (int w = 0; w < (int)(sizeof hot_ways / sizeof *hot_ways); w++)
            if (hot_ways[w].what & LIBRARY) {
                const struct heat h = time_hot(cu, s, counts[i], hot_ways[w].what, LAYERS, busy);
                row("library", hot_ways[w].name, "library", counts[i], h.us * LAYERS,
                    hot_ways[w].what & ALL, LAYERS);
                printf(" %s %.2f us %.2f mJ %.2f GHz,", hot_ways[w].name, h.us, h.mj, h.ghz);
            }
        printf("\n");
    }
}

static void steady_rows(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {1, 64, 128};
    for (int i = 0; i < 6; i++) {
        cu->gemm->tune_wcomp = i % 2 ? 0 : -1;
        steady(cu, s, counts[i / 2], ALL | FUSED | WITH_GLUE, i % 2 ? "compressed" : "packed");
    }
    cu->gemm->tune_wcomp = 0;
}

/* Ring depths, with and without tiles expanded before x is there. */
static void wcomp_sweep(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {1, 32, 64, 128};
    for (int i = 0; i < 8; i++) {
        const int32_t n = counts[i / 2];
        cu->gemm->tune_early = i % 2 ? -1 : 0;
        printf("n %d%s: us of gated+3 small (qkv o gate_up down) by stages:", n,
               i % 2 ? ", none early" : "");
        for (int32_t stages = n <= 32 ? 13 : 9; stages >= 5; stages -= n <= 32 ? 2 : 1) {
            cu->gemm->tune_stages = stages;
            printf(" %d: %.2f (", stages,
                   time_graph(cu, s, n, ALL | FUSED | WITH_GLUE, LAYERS, 5) / LAYERS);
            for (int w = 2; w < 6; w++)
                printf(" %.2f", time_graph(cu, s, n, columns[w].what, LAYERS, 3) / LAYERS);
            printf(")");
        }
        printf("\n");
        fflush(stdout);
    }
    cu->gemm->tune_stages = cu->gemm->tune_early = 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const bool check_only = !strncmp(what, "check", 5), rows_only = argc > 3,
               portable = strstr(what, "portable"), is_hot = !strcmp(what, "hot");
    int32_t counts[32] = {1, 16, 32, 33, 48, 64, 65, 96, 97, 112, 128};
    int n_counts = 11;
    const double t = now();
    struct sv_cuda cu = open_device(portable ? SV_CUDA_PORTABLE : SV_CUDA_SM90, true);
    static struct stack s;
    cu.wcomp_mode = SV_TOGGLE_ON;
    long failed = 0;
    for (int i = is_hot ? 4 : 3; i < argc && i < 32; i++)
        counts[i - 3 - is_hot] = atoi(argv[i]), n_counts = i - 2 - is_hot;
    for (size_t i = 0; i < sizeof wcomp_cases / sizeof *wcomp_cases && !rows_only; i++)
        failed += check_wcomp(&cu, &wcomp_cases[i]);
    csv = argc > 2 ? fopen(argv[2], "w") : NULL;
    if (csv)
        fprintf(
            csv,
            "kernels,what,variant,rows,us_per_layer,GB/s,share_of_read,TFLOP/s,spread_percent\n");
    make_stack(&s, 256, LAYERS);
    read_gbs = read_bandwidth(&s);
    const double bits = 8.0 * SV_WCOMP_TILE_BYTES / (SV_TILE * SV_TILE);
    printf("read bandwidth %.0f GB/s: a layer in 16 bits %.2f us, in %.3f %.2f\n", read_gbs,
           bytes_of(ALL, 1) / read_gbs / 1e3, bits, bytes_of(ALL, 1) / read_gbs / 1e3 * bits / 16);
    note_stack(&cu, &s);
    if (!rows_only)
        failed += check_wcomp_chain(&cu, &s);
    if (is_hot)
        wcomp_hot(&cu, &s, argc > 3 ? atof(argv[3]) : 300, counts, n_counts);
    else if (!check_only)
        wcomp_rows(&cu, &s, counts, n_counts);
    if (!check_only && !rows_only) {
        wcomp_sweep(&cu, &s);
        steady_rows(&cu, &s);
    }
    sv_cuda_wcomp_close(&cu);
    close_device(&cu);
    if (csv)
        fclose(csv);
    printf("%.1f s, %ld failed\n", now() - t, failed);
    return failed ? 1 : 0;
}
