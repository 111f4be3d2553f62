/*
 * codes_cuda.cu - checks and measures products from codes of 8 bits (codes.cuh) beside the same
 * products from packed bf16, on a GPU machine.
 *
 * codes_cuda check: Qwen3-8B's shapes in every kind of codes, bits against the packed matrix that
 * they expand to; codes_cuda bench [CSV [ROWS...]]: the same, then captured graphs of 36 layers;
 * codes_cuda sweep: ring depths. Stands on gemm_cuda.cu, whose stack of layers and timing it takes
 * in. Exit status 1 when a check fails. Must not: compare figures of different runs.
 */
#define main gemm_cuda_main
#include "bench/gemm_cuda.cu"
#undef main

#include "backend/cuda/codes.cuh"
#include "backend/gpu/fp8.cuh"

/* Codes of nearly normal numbers, with scales that bring the largest to about 3.5 / sqrt(cols). */
static __global__ void codes_kernel(uint8_t *tiles, size_t n_strips, uint64_t seed,
                                    enum sv_codes_code code, float scale)
{
    for (size_t s = blockIdx.x; s < n_strips; s += gridDim.x) {
        uint8_t *strip = tiles + s * SV_CODES_STRIP_BYTES;
        for (int i = threadIdx.x; i < SV_CODES_SCALES_AT; i += blockDim.x) {
            const float v = random_at(seed, s * SV_CODES_SCALES_AT + (size_t)i, 1.0f / 3.5f);
            strip[i] =
                code == SV_CODES_I8 ? (uint8_t)(128 + (int)(v * 127)) : sv_fp8_of(v * SV_FP8_MAX);
        }
        if (threadIdx.x < 16) { /* rows have scales of their own */
            const float f =
                scale * (1 + 0.01f * (float)threadIdx.x) / (code == SV_CODES_I8 ? 127 : SV_FP8_MAX);
            ((uint32_t *)(strip + SV_CODES_SCALES_AT))[threadIdx.x] =
                code == SV_CODES_F8 ? __byte_perm(__float_as_uint(f * 0x1p120f), 0, 0x3232)
                                    : __float_as_uint(f);
        }
    }
}

static void fill_codes(struct sv_cuda *cu, void *tiles, int32_t rows, int32_t cols,
                       enum sv_codes_code code, uint64_t seed)
{
    codes_kernel<<<4096, 128, 0, cu->stream>>>((uint8_t *)tiles,
                                               (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * 4,
                                               seed, code, 3.5f / sqrtf((float)cols));
}

/* ---------------------------------------------------------------- checks */

static void multiply(struct sv_cuda *cu, const struct product *p, bool gated, int32_t n,
                     const bf16 *x, void *y, int32_t ldy)
{
    if (gated) {
        struct sv_p_gemm_act_mul g = {};
        g.n_rows = n;
        g.k = p->k;
        g.x = x;
        g.ldx = p->k;
        g.parts = p->part;
        g.gate_up = g.out = y; /* the former is never touched by these kernels */
        sv_cuda_gemm_act_mul((struct sv_dev *)cu, &g);
        return;
    }
    struct sv_p_gemm g = {};
    g.n_rows = n;
    g.k = p->k;
    g.n_parts = p->n_parts;
    g.x = x;
    g.ldx = p->k;
    g.parts = p->part;
    g.y = y;
    g.ldy = ldy;
    sv_cuda_gemm((struct sv_dev *)cu, &g);
}

/* A product of a layer from codes and from what they expand to. */
static long check_product(struct sv_cuda *cu, const struct stack *s, int which,
                          enum sv_codes_code code)
{
    static const int32_t counts[] = {1, 8, 16, 32, 64, 96, 112, 128, 130, 256, 384, 512, 600, 1024};
    enum { MOST = 1024 };
    const bool gated = which == P_GATE_UP;
    struct product packed = product_of(s, 0, which), codes = packed;
    const int32_t ldy = gated ? packed.cols / 2 : packed.cols;
    const size_t bytes = (size_t)MOST * (size_t)ldy * 2;
    uint8_t *y, *host[2] = {(uint8_t *)malloc(bytes), (uint8_t *)malloc(bytes)};
    bf16 *x = make_random((size_t)MOST * (size_t)packed.k, 21, 1.0f);
    long failed = 0;
    OK(cudaMalloc((void **)&y, bytes));
    for (int i = 0; i < packed.n_parts; i++) {
        struct sv_weight *w = &codes.part[i].w;
        void *tiles, *expanded;
        OK(cudaMalloc(&tiles, sv_codes_bytes(w->rows, w->cols)));
        OK(cudaMalloc(&expanded, sv_packed_bytes(w->rows, w->cols)));
        fill_codes(cu, tiles, w->rows, w->cols, code, (uint64_t)(which * 8 + i));
        sv_cuda_codes_expand(cu, tiles, w->rows, w->cols, code, expanded);
        w->data = tiles;
        w->fmt.elem = code == SV_CODES_I8 ? SV_I8 : SV_F8;
        w->fmt.scale = code == SV_CODES_F8 ? SV_BF16 : SV_F32;
        packed.part[i].w.data = expanded;
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const int32_t n = counts[i];
        for (int d = 0; d < 2; d++) {
            OK(cudaMemsetAsync(y, 0x5a, bytes, cu->stream));
            multiply(cu, d ? &codes : &packed, gated, n, x, y, ldy);
            OK(cudaMemcpyAsync(host[d], y, bytes, cudaMemcpyDeviceToHost, cu->stream));
            OK(cudaStreamSynchronize(cu->stream));
        }
        if (memcmp(host[0], host[1], bytes)) {
            printf("product %d, %d rows: bits differ\n", which, n);
            failed++;
        }
    }
    const uint16_t *some = (const uint16_t *)host[1]; /* a sum of zeros would show nothing */
    failed += some[5] == 0 || some[5] == 0x5a5a;
    printf("codes %d, product %d: %s\n", (int)code, which, failed ? "FAILED" : "ok");
    fflush(stdout);
    for (int i = 0; i < packed.n_parts; i++)
        cudaFree((void *)codes.part[i].w.data), cudaFree((void *)packed.part[i].w.data);
    for (int i = 0; i < 2; i++)
        free(host[i]);
    cudaFree(x), cudaFree(y);
    return failed;
}

/* ---------------------------------------------------------------- figures */

/* The stack's own memory, in codes. */
static void to_codes(struct sv_cuda *cu, const struct stack *s)
{
    for (int l = 0; l < LAYERS; l++)
        for (int w = 0; w < 4; w++) {
            const struct product p = product_of(s, l, w);
            for (int i = 0; i < p.n_parts; i++)
                fill_codes(cu, (void *)p.part[i].w.data, p.part[i].w.rows, p.part[i].w.cols,
                           SV_CODES_F8, (uint64_t)(l * 16 + w * 4 + i));
        }
    fill_codes(cu, s->head, VOCAB, HIDDEN, SV_CODES_F8, 999);
    OK(cudaStreamSynchronize(cu->stream));
    in_codes = true;
}

static void codes_sweep(struct sv_cuda *cu, const struct stack *s)
{
    static const int32_t counts[] = {1, 16, 32, 64, 128};
    for (int i = 0; i < 10; i++) {
        const int32_t n = counts[i / 2];
        cu->gemm->tune_early = i % 2 ? -1 : 0;
        printf("n %d%s: us of gated+3 small by stages:", n, i % 2 ? ", none early" : "");
        for (int32_t stages = n <= 32 ? 16 : 10; stages >= 6; stages -= n <= 32 ? 2 : 1) {
            cu->gemm->tune_stages = stages;
            printf(" %d: %.2f", stages,
                   time_graph(cu, s, n, ALL | FUSED | WITH_GLUE, LAYERS, 5) / LAYERS);
        }
        printf("\n");
        fflush(stdout);
    }
    cu->gemm->tune_stages = cu->gemm->tune_early = 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    int32_t counts[32] = {1, 4, 8, 16, 32, 64, 96, 112, 128, 256, 512};
    int n_counts = 11;
    struct sv_cuda cu = open_device(SV_CUDA_SM90, true);
    static struct stack s;
    long failed = 0;
    for (int i = 3; i < argc && i < 32; i++)
        counts[i - 3] = atoi(argv[i]), n_counts = i - 2;
    csv = argc > 2 ? fopen(argv[2], "w") : NULL;
    if (csv)
        fprintf(
            csv,
            "kernels,what,variant,rows,us_per_layer,GB/s,share_of_read,TFLOP/s,spread_percent\n");
    make_stack(&s, 512, LAYERS);
    cu.codes_packed = sv_packed_bytes(MLP, HIDDEN);
    sv_cuda_gemm_reserve(&cu, NULL);
    for (int i = 0; i < 12; i++)
        failed += check_product(&cu, &s, i % 4, (enum sv_codes_code)(i / 4));
    if (strcmp(what, "check")) {
        read_gbs = read_bandwidth(&s);
        printf("read bandwidth %.0f GB/s: a layer in 8.5 bits %.2f us\n", read_gbs,
               bytes_of(ALL, 1) / read_gbs / 1e3 * 8.5 / 16);
        columns_title();
        for (int i = 0; i < n_counts; i++)
            columns_line(&cu, &s, counts[i], "bf16");
        to_codes(&cu, &s);
        for (int i = 0; i < n_counts; i++)
            columns_line(&cu, &s, counts[i], "codes");
    }
    if (!strcmp(what, "sweep"))
        codes_sweep(&cu, &s);
    close_device(&cu);
    if (csv)
        fclose(csv);
    printf("%ld failed\n", failed);
    return failed ? 1 : 0;
}
