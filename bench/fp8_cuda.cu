/*
 * fp8_cuda.cu - checks and measures products with quantized weights, in 8 bits, on a GPU machine.
 *
 * fp8_cuda check: the conversion of rows against fp8.cuh's arithmetic, then all checks of
 * gemm_cuda.cu with numbers that 8 bits hold exactly: error against a double loop, every row count
 * bit by bit against single rows, the fused head. fp8_cuda small: one launch of each kernel, for
 * compute-sanitizer, whose racecheck takes minutes for the checks. fp8_cuda hot [CSV [MS
 * [ROWS...]]]: the checks, then many rows on a warm card, as gemm_cuda hot. fp8_cuda bench [CSV]:
 * the checks, then a captured graph of 36 layers of Qwen3-8B's shapes, in bf16 and in 8 bits.
 * Includes gemm_cuda.cu for its helpers, stack of layers and timing. Exit status 1 when a check
 * fails. Must not: compare figures of different runs.
 */
#define main gemm_cuda_main
#include "bench/gemm_cuda.cu"
#undef main

/* ---------------------------------------------------------------- conversion */

/* Row r of x in all magnitudes, zeros, and now and then what is no number. */
static __global__ void odd_kernel(bf16 *x, int32_t rows, int32_t k)
{
    uint16_t *u = (uint16_t *)x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < (size_t)rows * k;
         i += (size_t)gridDim.x * blockDim.x) {
        const int32_t r = (int32_t)(i / k);
        const uint32_t h = mix(i + 5);
        const float v = random_at(3, i, ldexpf(1.0f, r * 3 - 120));
        u[i] = __bfloat16_as_ushort(__float2bfloat16_rn(h % 7 == 0    ? 0.0f
                                                        : h % 11 == 0 ? v * 0.01f
                                                                      : v));
        if (r == 2 && h % 3 == 0)
            u[i] = (uint16_t)h; /* any bit pattern */
        if (r == 3)
            u[i] = h & 0x8000;
        if (r == 4 && i % k == 17)
            u[i] = 0x7f80;
    }
}

/* Rows of x, or of packed weights where cols is not 0. */
static __global__ void compare_bytes_kernel(const bf16 *x, int32_t rows, int32_t k,
                                            const uint8_t *got, const float *scales, bool packed,
                                            unsigned long long *bad)
{
    const int32_t r = blockIdx.x;
    uint32_t most = 0;
    for (int32_t c = 0; c < k; c++)
        most = max(most, (uint32_t)((const uint16_t *)x)[(size_t)r * k + c] & 0x7fff);
    const float scale = sv_fp8_scale(most), inverse = sv_fp8_inverse(scale);
    if (threadIdx.x == 0 && __float_as_uint(scales[r]) != __float_as_uint(scale) && scale == scale)
        atomicAdd(bad, 1ull);
    for (int32_t c = threadIdx.x; c < k; c += blockDim.x) {
        const uint8_t want = sv_fp8_of(__bfloat162float(x[(size_t)r * k + c]) * inverse),
                      have =
                          got[packed ? sv_fp8_at(r, c, k) : (size_t)(r * sv_fp8_row_bytes(k) + c)];
        if (want != have && !((want & 0x7f) == 0x7f && (have & 0x7f) == 0x7f))
            atomicAdd(bad, 1ull);
    }
}

static long check_conversion(struct sv_cuda *cu)
{
    static const int32_t widths_of_x[] = {8, 72, 320, 4096, 12288, 20480};
    enum { ROWS = 80 };
    long failed = 0;
    for (size_t i = 0; i < sizeof widths_of_x / sizeof *widths_of_x; i++) {
        const int32_t k = widths_of_x[i];
        bf16 *x;
        uint8_t *rows, *packed;
        float *scales;
        unsigned long long *bad, host;
        OK(cudaMalloc((void **)&x, (size_t)ROWS * k * 2));
        OK(cudaMalloc((void **)&rows, (size_t)ROWS * sv_fp8_row_bytes(k)));
        OK(cudaMalloc((void **)&packed, sv_fp8_bytes(ROWS, k)));
        OK(cudaMalloc((void **)&scales, ROWS * 4));
        OK(cudaMalloc((void **)&bad, 8));
        OK(cudaMemset(bad, 0, 8));
        odd_kernel<<<64, 256, 0, cu->stream>>>(x, ROWS, k);
        sv_cuda_fp8_rows(cu, x, k, k, ROWS, rows, scales);
        sv_cuda_fp8_pack(cu, x, 0, ROWS, ROWS, k, packed);
        compare_bytes_kernel<<<ROWS, 128, 0, cu->stream>>>(x, ROWS, k, rows, scales, false, bad);
        compare_bytes_kernel<<<ROWS, 128, 0, cu->stream>>>(
            x, ROWS, k, packed, (const float *)(packed + sv_fp8_scales_at(ROWS, k)), true, bad);
        OK(cudaMemcpyAsync(&host, bad, 8, cudaMemcpyDeviceToHost, cu->stream));
        OK(cudaStreamSynchronize(cu->stream));
        printf("conversion, k %d: %llu wrong %s\n", k, host, host ? "FAILED" : "ok");
        failed += host != 0;
        cudaFree(x), cudaFree(rows), cudaFree(packed), cudaFree(scales), cudaFree(bad);
    }
    return failed;
}

/* ---------------------------------------------------------------- figures */

/* The same layers in 8 bits; the ones they are made of are gone after. */
static void to_bytes(struct sv_cuda *cu, struct stack *s)
{
    bf16 *wide = make_random((size_t)VOCAB * HIDDEN, 77, 1.0f / sqrtf(HIDDEN)),
         *deep = make_random((size_t)2 * HIDDEN * MLP, 78, 1.0f / sqrtf(MLP));
    for (int l = 0; l <= LAYERS; l++)
        for (int w = 0; w < (l < LAYERS ? 4 : 1); w++) {
            struct layer *layer = &s->layer[l % LAYERS];
            bf16 **at[] = {&layer->qkv, &layer->o, &layer->gate_up, &layer->down};
            bf16 **to = l < LAYERS ? at[w] : &s->head;
            struct product p = {};
            if (l < LAYERS)
                p = product_of(s, l, w);
            else
                p.n_parts = 1, p.part[0] = part_of(s->head, VOCAB, HIDDEN);
            size_t bytes = 0, off = 0;
            OK(cudaFree(*to));
            for (int i = 0; i < p.n_parts; i++)
                bytes += sv_fp8_bytes(p.part[i].w.rows, p.part[i].w.cols);
            OK(cudaMalloc((void **)to, bytes));
            for (int i = 0; i < p.n_parts; i++) {
                const struct sv_weight *part = &p.part[i].w;
                sv_cuda_fp8_pack(
                    cu, (part->cols == MLP ? deep : wide) + (l < LAYERS ? l * 1024 + i * 512 : 0),
                    0, part->rows, part->rows, part->cols, (uint8_t *)*to + off);
                off += sv_fp8_bytes(part->rows, part->cols);
            }
        }
    OK(cudaStreamSynchronize(cu->stream));
    cudaFree(wide), cudaFree(deep);
    in_bytes = true;
}

/* Conversions of x are in it, as they are in a pass. */
static void fp8_rows(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {1, 16, 32, 64, 128, 256, 512};
    columns_title();
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        columns_line(cu, s, counts[c], in_bytes ? "fp8" : "bf16");
}

/* How long the conversion takes by itself, behind one another. */
static void time_conversion(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {16, 128, 512};
    for (int i = 0; i < 6; i++) {
        const int32_t n = counts[i / 2], k = i % 2 ? MLP : HIDDEN;
        cudaEvent_t e0, e1;
        float ms;
        OK(cudaEventCreate(&e0));
        OK(cudaEventCreate(&e1));
        for (int round = 0; round < 2; round++) {
            OK(cudaEventRecord(e0, cu->stream));
            for (int j = 0; j < 200; j++)
                sv_cuda_fp8_rows(cu, s->act, k, k, n, cu->gemm->bytes_x, cu->gemm->bytes_scale);
            OK(cudaEventRecord(e1, cu->stream));
            OK(cudaEventSynchronize(e1));
        }
        OK(cudaEventElapsedTime(&ms, e0, e1));
        printf("conversion of %d rows of %d: %.2f us\n", n, k, ms * 5);
    }
}

/* Fewer units: fewer pieces of a sum to hand on, and fewer multiprocessors that read. */
static void sweep_units(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {16, 128, 256}, units[] = {0, 48, 32, 24, 16};
    static const char *const names[] = {"qkv", "o", "gate_up", "down"};
    for (int i = 0; i < 3; i++)
        for (int which = 0; which < 4; which++) {
            if (which == P_GATE_UP)
                continue;
            printf("%d rows, %s, us by units at most:", counts[i], names[which]);
            for (int u = 0; u < 5; u++) {
                cu->gemm->tune_units = units[u];
                printf(" %d: %.2f", units[u],
                       time_graph(cu, s, counts[i], 1 << which, LAYERS, 5) / LAYERS);
            }
            cu->gemm->tune_units = 0;
            cu->gemm->tune_skew = -1;
            printf(" even: %.2f", time_graph(cu, s, counts[i], 1 << which, LAYERS, 5) / LAYERS);
            cu->gemm->tune_skew = 1;
            printf(" skew 1: %.2f\n", time_graph(cu, s, counts[i], 1 << which, LAYERS, 5) / LAYERS);
            cu->gemm->tune_skew = 0;
        }
}

static void small_product(struct sv_cuda *cu, const struct shape *s, int32_t n)
{
    struct made m;
    make_shape(cu, s, &m);
    bf16 *x = make_random((size_t)n * s->k, 3, 1.0f), *y;
    OK(cudaMalloc((void **)&y, (size_t)n * m.cols * 4));
    if (s->y_f32) {
        struct sv_p_head_argmax h = {};
        h.n_rows = n;
        h.k = s->k;
        h.x = x;
        h.w = m.part[0].w;
        h.out = (int32_t *)(void *)y;
        sv_cuda_head_argmax((struct sv_dev *)cu, &h);
    } else if (s->n_parts == 2) {
        run_gated(cu, &m, s->k, n, x, s->k, y);
    } else {
        run(cu, s, &m, n, x, s->k, y, m.cols);
    }
    OK(cudaStreamSynchronize(cu->stream));
    printf("%s, %d rows\n", s->name, n);
    fflush(stdout);
    cudaFree(x), cudaFree(y);
    free_shape(&m);
}

static int small(struct sv_cuda *cu)
{
    static const struct shape all[] = {
        {"units", 320, 1, {320}, true, false, false, false},
        {"gated", 320, 2, {896, 896}, false, false, false, false},
        {"head", 320, 1, {2600}, false, true, false, false},
        {"pairs and halves", 2048, 1, {4096}, true, false, false, false}};
    for (int i = 0; i < 4; i++)
        for (int32_t n = 20; n <= 320; n += 300)
            small_product(cu, &all[i], n);
    return 0;
}

int main(int argc, char **argv)
{
    const bool warm = argc > 1 && !strcmp(argv[1], "hot"),
               check_only = warm || (argc > 1 && !strcmp(argv[1], "check"));
    const double t = now();
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    static struct stack s;
    cu.bytes = true;
    cu.bytes_k = 32768;
    sv_cuda_gemm_reserve(&cu, NULL);
    if (argc > 1 && !strcmp(argv[1], "small"))
        return small(&cu);
    long failed = check_conversion(&cu);
    failed += check_products(&cu);
    csv = argc > 2 ? fopen(argv[2], "w") : NULL;
    if (csv)
        fprintf(
            csv,
            "kernels,what,variant,rows,us_per_layer,GB/s,share_of_read,TFLOP/s,spread_percent\n");
    make_stack(&s, 512, LAYERS);
    read_gbs = read_bandwidth(&s);
    printf("read bandwidth %.0f GB/s: a layer in 16 bits %.2f us, in 8 bits %.2f\n", read_gbs,
           bytes_of(ALL, 1) / read_gbs / 1e3, bytes_of(ALL, 1) / read_gbs / 2e3);
    if (!check_only)
        fp8_rows(&cu, &s);
    to_bytes(&cu, &s);
    failed += check_chain(&cu, &s, ALL, 12);
    failed += check_chain(&cu, &s, ALL | FUSED, 2);
    if (!check_only) {
        fp8_rows(&cu, &s);
        time_conversion(&cu, &s);
        sweep_units(&cu, &s);
    }
    if (warm)
        hot(&cu, &s, argc > 3 ? atof(argv[3]) : 400, argc > 4 ? argc - 4 : 0, argv + 4);
    close_device(&cu);
    if (csv)
        fclose(csv);
    printf("%.1f s, %ld failed\n", now() - t, failed);
    return failed ? 1 : 0;
}
