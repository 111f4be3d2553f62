/*
 * codes_cuda.cu - checks and measures products from codes of 4 to 8 bits (codes.cuh) beside the
 * same products from packed bf16, on a GPU machine.
 *
 * codes_cuda check: Qwen3-8B's shapes and odd ones in every kind of codes, bits against the packed
 * matrix that they expand to; codes_cuda bench [CSV [ROWS...]]: fewer counts, then captured graphs
 * of 36 layers; codes_cuda time: these alone; "portable check" and so on: the portable kernels;
 * codes_cuda fp8: those of FP8 weights with activations in fp8 alone, the kernels that round in it.
 * KINDS in the environment: the kinds to run, comma-separated. Includes gemm_cuda.cu for its stack
 * of layers and timing. Exit status 1 when a check fails. Must not: compare figures of different
 * runs.
 */
#define main gemm_cuda_main
#include "bench/gemm_cuda.cu"
#undef main

#include "backend/gpu/codes.cuh"
#include "backend/gpu/fp8.cuh"

extern "C" {
#include "backend/quant.h"
}

/* The codes of a file as a weight on the device has them. */
static const struct {
    const char *name;
    enum sv_codes_code code;
    enum sv_dtype elem, scale;
    int32_t block_cols;
} kinds[] = {
    {"f8", SV_CODES_F8, SV_F8, SV_BF16, 64},
    {"f8 wide", SV_CODES_F8_WIDE, SV_F8, SV_F32, 64},
    {"int8", SV_CODES_I8, SV_I8, SV_F32, 64},
    {"int4", SV_CODES_I4, SV_U8, SV_BF16, 64},
    {"int4 f16", SV_CODES_I4_HALF, SV_U8, SV_F16, 64},
    {"mxfp4", SV_CODES_MX4, SV_U8, SV_U8, 64},
    {"nvfp4", SV_CODES_NV4, SV_U8, SV_F8, 64},
    {"q8_0", SV_CODES_I8_TWO, SV_I8, SV_F16, 32}, /* and IQ4_NL */
    {"q4_0", SV_CODES_I4_HALF_TWO, SV_U8, SV_F16, 32},
    {"q4_k", SV_CODES_K4, SV_U8, SV_I8, 32},
    {"q5_k", SV_CODES_K5, SV_I8, SV_I8, 32},
    {"q6_k", SV_CODES_K6, SV_I8, SV_I8, 16},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static __device__ bool of_signed(enum sv_codes_code code)
{
    return code == SV_CODES_I8 || code == SV_CODES_I8_TWO;
}

/* Codes of nearly normal numbers, of 4 bits any, with scales that bring the largest to about scale.
 */
static __global__ void codes_kernel(uint8_t *tiles, size_t n_strips, uint64_t seed,
                                    enum sv_codes_code code, float scale, float *factor)
{
    const int bits = sv_codes_bits(code), n_bytes = SV_CODES_SCALES_AT(bits);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *factor = scale * 0.37f / 8 * 256; /* times 448, the largest scale, below 4 */
    for (size_t s = blockIdx.x; s < n_strips; s += gridDim.x) {
        uint8_t *strip = tiles + s * SV_CODES_STRIP_BYTES(bits);
        for (int i = threadIdx.x; i < n_bytes; i += blockDim.x) {
            const float v = random_at(seed, s * n_bytes + (size_t)i, 1.0f / 3.5f);
            strip[i] = bits < 8          ? (uint8_t)mix(seed * 977 + s * n_bytes + (size_t)i)
                       : of_signed(code) ? (uint8_t)(128 + (int)(v * 127))
                                         : sv_fp8_of(v * SV_FP8_MAX);
        }
        if (threadIdx.x < 16) { /* rows have scales of their own */
            const float most = of_signed(code)        ? 127
                               : bits == 8            ? SV_FP8_MAX
                               : code >= SV_CODES_MX4 ? 6
                                                      : 8;
            const float f = scale * (1 + 0.01f * (float)threadIdx.x) / most;
            const uint32_t own = (uint32_t)threadIdx.x, zero = (uint32_t)(0x4300 + (s + own) % 17)
                                                               << 16; /* 128 + 0 to 16 */
            uint32_t word = __float_as_uint(f);
            if (code == SV_CODES_F8)
                word = __byte_perm(__float_as_uint(f * 0x1p120f), 0, 0x3232);
            if (code == SV_CODES_I4)
                word = word >> 16 | zero;
            if (code == SV_CODES_I4_HALF)
                word = __half_as_ushort(__float2half_rn(f)) | zero;
            if (code == SV_CODES_I8_TWO || code == SV_CODES_I4_HALF_TWO)
                word = __half_as_ushort(__float2half_rn(f)) |
                       (uint32_t)__half_as_ushort(__float2half_rn(f * 0.7f)) << 16;
            if (code == SV_CODES_MX4) /* 2^-7 and 2^-6 */
                word = (uint32_t)(127 - 7 + 126 - own % 2) << 7 |
                       (uint32_t)(127 - 6 + 126 - own % 3) << 23;
            if (code == SV_CODES_NV4) {
                word = 0;
                for (uint32_t i = 0; i < 4; i++)
                    word |= sv_codes_e5m3((s * 5 + own * 11 + i * 37) % 127) << 8 * i;
            }
            if (code >= SV_CODES_K4) { /* a minimum takes about the middle off */
                const float d = f / (code == SV_CODES_K4   ? 75
                                     : code == SV_CODES_K5 ? 150
                                                           : 600),
                            dmin = d * (code == SV_CODES_K4 ? 8 : 16);
                uint32_t *const two = (uint32_t *)(strip + n_bytes) + own % 8 * 4 + own / 8 * 2;
                two[0] = __half_as_ushort(__float2half_rn(d)) |
                         (uint32_t)__half_as_ushort(__float2half_rn(dmin)) << 16;
                two[1] = mix(seed * 31 + s * 16 + own) & (code == SV_CODES_K6 ? ~0u : 0x3f3f3f3fu);
                continue;
            }
            ((uint32_t *)(strip + n_bytes))[threadIdx.x] = word;
        }
    }
}

static void fill_codes(struct sv_cuda *cu, void *tiles, int32_t rows, int32_t cols,
                       enum sv_codes_code code, uint64_t seed)
{
    uint8_t *to = (uint8_t *)tiles;
    codes_kernel<<<4096, 128, 0, cu->stream>>>(
        to, (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * 4, seed, code,
        3.5f / sqrtf((float)cols),
        (float *)(void *)(to + sv_codes_factor_at(rows, cols, sv_codes_bits(code))));
}

/* ---------------------------------------------------------------- checks */

static float half_of(uint32_t word)
{
    return __half2float(__ushort_as_half((unsigned short)word));
}

/* What docs/formats.md says that a code and its row's words are worth in columns 16 step to 16 step
 * + 15 of a tile, in bf16. */
static uint16_t worth(enum sv_codes_code code, uint32_t c, uint32_t word, uint32_t bytes, int step,
                      float factor)
{
    if (code == SV_CODES_K6)
        return sv_f32_to_bf16(half_of(word) * ((float)(bytes >> 8 * step & 255) - 128) *
                              ((float)c - 32));
    if (code >= SV_CODES_K4) {
        const uint32_t half = bytes >> 16 * (step / 2);
        volatile float product = half_of(word) * (float)(half & 255) * (float)c;
        return sv_f32_to_bf16(product - half_of(word >> 16) * (float)(half >> 8 & 255));
    }
    static const float e2m1[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    const float high = sv_bf16_to_f32((uint16_t)(word >> 16));
    const float small = e2m1[c & 7] * (c & 8 ? -1.0f : 1.0f);
    const uint32_t own = word >> 8 * step & 255;
    float f;
    memcpy(&f, &word, 4);
    switch (code) {
    case SV_CODES_F8:
        return sv_f32_to_bf16(sv_f8_to_f32((uint8_t)c) * (high * 0x1p-120f));
    case SV_CODES_F8_WIDE:
        return sv_f32_to_bf16(sv_f8_to_f32((uint8_t)c) * f);
    case SV_CODES_I8:
        return sv_f32_to_bf16((float)((int)c - 128) * f);
    case SV_CODES_I8_TWO:
        return sv_f32_to_bf16((float)((int)c - 128) * half_of(word >> 16 * (step / 2)));
    case SV_CODES_I4_HALF_TWO:
        return sv_f32_to_bf16((float)((int)c - 8) * half_of(word >> 16 * (step / 2)));
    case SV_CODES_I4:
        return sv_f32_to_bf16(((float)c - (high - 128)) * sv_bf16_to_f32((uint16_t)word));
    case SV_CODES_I4_HALF:
        return sv_f32_to_bf16(((float)c - (high - 128)) * half_of(word));
    case SV_CODES_MX4:
        return sv_f32_to_bf16(
            small * (sv_bf16_to_f32((uint16_t)(step < 2 ? word : word >> 16)) * 0x1p-126f));
    default:
        return sv_f32_to_bf16(small * ldexpf(1 + (float)(own & 7) / 8, (int)(own >> 3) - 16) *
                              (factor / 256));
    }
}

/* Every number that tiles expand to. */
static long check_values(struct sv_cuda *cu, int kind)
{
    enum { ROWS = 320, COLS = 1024 };
    const enum sv_codes_code code = kinds[kind].code;
    const int bits = sv_codes_bits(code);
    const size_t n_tiles = sv_codes_bytes(ROWS, COLS, bits), n_packed = sv_packed_bytes(ROWS, COLS);
    uint8_t *tiles, *packed, *t = (uint8_t *)malloc(n_tiles), *p = (uint8_t *)malloc(n_packed);
    long failed = 0;
    float factor;
    OK(cudaMalloc((void **)&tiles, n_tiles));
    OK(cudaMalloc((void **)&packed, n_packed));
    fill_codes(cu, tiles, ROWS, COLS, code, 77);
    sv_cuda_codes_expand(cu, tiles, ROWS, COLS, code, packed);
    OK(cudaStreamSynchronize(cu->stream));
    OK(cudaMemcpy(t, tiles, n_tiles, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(p, packed, n_packed, cudaMemcpyDeviceToHost));
    memcpy(&factor, t + sv_codes_factor_at(ROWS, COLS, bits), 4);
    for (size_t i = 0; i < n_packed / 2; i++) { /* strip, lane, pair, column */
        const int32_t column = i % 2, pair = i / 2 % 16, lane = i / 32 % 32;
        const size_t strip = i / 1024, tile = strip / 4;
        const uint8_t *from = t + strip * SV_CODES_STRIP_BYTES(bits);
        const int32_t row = sv_wcomp_row(lane, pair), col = sv_wcomp_col(lane, pair) + column;
        const bool k = code >= SV_CODES_K4;
        uint32_t codes = 0, own, word[2];
        uint16_t got;
        memcpy(word, from + SV_CODES_SCALES_AT(bits) + (k ? row % 8 * 16 + row / 8 * 8 : 4 * row),
               k ? 8 : 4);
        memcpy(&got, p + tile * SV_TILE_BYTES + 2 * sv_tile_at((int)(strip % 4) * 16 + row, col),
               2);
        for (int b = 0; b < (k ? bits - 1 : bits); b++) {
            const int32_t place =
                k ? sv_codes_k_bit(pair, column, b, bits)
                  : sv_codes_word(pair, bits) * 32 + sv_codes_shift(pair, column, bits) + b;
            memcpy(&own, from + sv_codes_word_at(lane, place / 32, bits), 4);
            codes |= (own >> place % 32 & 1) << b;
        }
        const uint16_t want = worth(code, codes, word[0], word[1], col / 16, factor);
        if (got != want && (got | want) != 0x8000 && failed++ < 3)
            printf("%s: code %x, word %08x: %04x, not %04x\n", kinds[kind].name, codes, word[0],
                   got, want);
    }
    printf("%s, values: %s\n", kinds[kind].name, failed ? "FAILED" : "ok");
    cudaFree(tiles), cudaFree(packed);
    free(t), free(p);
    return failed;
}

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
        g.gate_up = g.out = y; /* these kernels do not write gate_up */
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

/* Odd edges beside those of a layer. */
static const struct product odd[] = {
    {{}, 3, 456, 0}, {{}, 1, 1288, 0}, {{}, 2, 512, 0}, {{}, 2, 4096, 0}};
static const int32_t odd_rows[][3] = {{200, 72, 8}, {1000}, {160, 160}, {77, 77}};
enum { N_ODD = sizeof odd / sizeof *odd, N_CHECKS = 4 + N_ODD };

static struct product check_of(const struct stack *s, int which)
{
    if (which < 4)
        return product_of(s, 0, which);
    struct product p = odd[which - 4];
    for (int i = 0; i < p.n_parts; i++) {
        p.part[i].w.rows = odd_rows[which - 4][i];
        p.part[i].w.cols = p.k;
        p.part[i].w.fmt.elem = SV_BF16;
        p.cols += p.part[i].w.rows;
    }
    return p;
}

/* A product from codes and from what they expand to; each of few rows, and some of many. */
static long check_product(struct sv_cuda *cu, const struct stack *s, int which, int kind,
                          bool brief)
{
    static const int32_t many[] = {256, 384, 512, 600, 1024};
    enum { MOST = 1024, FEW = 130, N_MANY = sizeof many / sizeof *many };
    const enum sv_codes_code code = kinds[kind].code;
    const int32_t bits = sv_codes_bits(code);
    struct product packed = check_of(s, which), codes = packed;
    const bool gated = which == P_GATE_UP || (which >= 4 && packed.n_parts == 2);
    const int32_t ldy = gated ? packed.cols / 2 : packed.cols;
    const size_t bytes = (size_t)MOST * (size_t)ldy * 2;
    uint8_t *y, *host[2] = {(uint8_t *)malloc(bytes), (uint8_t *)malloc(bytes)};
    bf16 *x = make_random((size_t)MOST * (size_t)packed.k, 21, 1.0f);
    long failed = 0;
    OK(cudaMalloc((void **)&y, bytes));
    for (int i = 0; i < packed.n_parts; i++) {
        struct sv_weight *w = &codes.part[i].w;
        void *tiles, *expanded;
        OK(cudaMalloc(&tiles, sv_codes_bytes(w->rows, w->cols, bits)));
        OK(cudaMalloc(&expanded, sv_packed_bytes(w->rows, w->cols)));
        fill_codes(cu, tiles, w->rows, w->cols, code, (uint64_t)(which * 8 + i));
        sv_cuda_codes_expand(cu, tiles, w->rows, w->cols, code, expanded);
        w->data = tiles;
        w->fmt.elem = kinds[kind].elem;
        w->fmt.scale = kinds[kind].scale;
        w->fmt.block_cols = kinds[kind].block_cols;
        packed.part[i].w.data = expanded;
    }
    for (int i = 0; i < FEW + N_MANY; i++) {
        const int32_t n = i < FEW ? i + 1 : many[i - FEW];
        if (n <= FEW && n % 16 > 1 && n != 8 && n < FEW - 3 && (brief || which < 4))
            continue;
        if (n > FEW && (brief || which >= 4))
            continue;
        const size_t used = (size_t)(n + 1) * (size_t)ldy * 2 < bytes
                                ? (size_t)(n + 1) * (size_t)ldy * 2
                                : bytes; /* and a row behind */
        for (int d = 0; d < 2; d++) {
            OK(cudaMemsetAsync(y, 0x5a, used, cu->stream));
            multiply(cu, d ? &codes : &packed, gated, n, x, y, ldy);
            OK(cudaMemcpyAsync(host[d], y, used, cudaMemcpyDeviceToHost, cu->stream));
            OK(cudaStreamSynchronize(cu->stream));
        }
        if (memcmp(host[0], host[1], used)) {
            if (failed++ < 3)
                printf("%s, product %d, %d rows: bits differ\n", kinds[kind].name, which, n);
        }
        const uint16_t *some = (const uint16_t *)host[1]; /* a sum of zeros would show nothing */
        failed += some[5] == 0 || some[5] == 0x5a5a || (some[5] & 0x7f80) == 0x7f80;
    }
    printf("%s, product %d: %s\n", kinds[kind].name, which, failed ? "FAILED" : "ok");
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
static void to_codes(struct sv_cuda *cu, const struct stack *s, int kind)
{
    static struct sv_weight format;
    const enum sv_codes_code code = kinds[kind].code;
    in_codes = NULL;
    for (int l = 0; l < LAYERS; l++)
        for (int w = 0; w < 4; w++) {
            const struct product p = product_of(s, l, w);
            for (int i = 0; i < p.n_parts; i++)
                fill_codes(cu, (void *)p.part[i].w.data, p.part[i].w.rows, p.part[i].w.cols, code,
                           (uint64_t)(l * 16 + w * 4 + i));
        }
    fill_codes(cu, s->head, VOCAB, HIDDEN, code, 999);
    OK(cudaStreamSynchronize(cu->stream));
    format.fmt.elem = kinds[kind].elem;
    format.fmt.scale = kinds[kind].scale;
    format.fmt.block_cols = kinds[kind].block_cols;
    in_codes = &format;
}

/* Numbers near normal ones in 8 bits, then scales. */
static __global__ void fp8_kernel(uint8_t *tiles, size_t n, size_t n_scales, uint64_t seed,
                                  float scale)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        tiles[i] = sv_fp8_of(random_at(seed, i, SV_FP8_MAX / 3.5f));
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n_scales;
         i += (size_t)gridDim.x * blockDim.x)
        ((float *)(void *)(tiles + n))[i] = scale * (1 + 0.01f * (float)(i % 17));
}

/* The stack's own memory, for activations in fp8. */
static void to_fp8(struct sv_cuda *cu, const struct stack *s)
{
    static struct sv_weight format;
    in_codes = NULL;
    for (int l = 0; l <= LAYERS; l++)
        for (int w = 0; w < (l < LAYERS ? 4 : 1); w++) {
            struct product p = {};
            if (l < LAYERS)
                p = product_of(s, l, w);
            else
                p.n_parts = 1, p.part[0] = part_of(s->head, VOCAB, HIDDEN);
            for (int i = 0; i < p.n_parts; i++) {
                const struct sv_weight *m = &p.part[i].w;
                const size_t n = sv_fp8_scales_at(m->rows, m->cols);
                fp8_kernel<<<4096, 128, 0, cu->stream>>>(
                    (uint8_t *)m->data, n, n / SV_FP8_TILE_COLS, (uint64_t)(l * 16 + w * 4 + i),
                    3.5f / SV_FP8_MAX / sqrtf((float)m->cols));
            }
        }
    OK(cudaStreamSynchronize(cu->stream));
    format.fmt = {SV_F8, 1, SV_FP8_TILE_COLS, SV_F32};
    in_codes = &format;
}

static bool is_wanted(int kind)
{
    const char *names = getenv("KINDS");
    char list[256], name[32];
    snprintf(list, sizeof list, ",%s,", names ? names : "");
    snprintf(name, sizeof name, ",%s,", kinds[kind].name);
    return !names || strstr(list, name);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    int32_t counts[32] = {1, 8, 16, 64, 128, 2048};
    int n_counts = 6;
    const bool portable = !strncmp(what, "portable ", 9);
    struct sv_cuda cu = open_device(portable ? SV_CUDA_PORTABLE : SV_CUDA_SM90, true);
    static struct stack s;
    long failed = 0;
    what += portable ? 9 : 0;
    for (int i = 3; i < argc && i < 32; i++)
        counts[i - 3] = atoi(argv[i]), n_counts = i - 2;
    csv = argc > 2 && strcmp(argv[2], "-") ? fopen(argv[2], "w") : NULL;
    if (csv)
        fprintf(
            csv,
            "kernels,what,variant,rows,us_per_layer,GB/s,share_of_read,TFLOP/s,spread_percent\n");
    make_stack(&s, 2048, LAYERS);
    cu.codes_packed = sv_packed_bytes(MLP, HIDDEN);
    if (!strcmp(what, "fp8"))
        cu.n_fp8 = 1, cu.bytes_k = MLP;
    sv_cuda_gemm_reserve(&cu, NULL);
    if (!strcmp(what, "fp8")) {
        read_gbs = read_bandwidth(&s);
        columns_title();
        to_fp8(&cu, &s);
        for (int i = 0; i < n_counts; i++)
            columns_line(&cu, &s, counts[i], "fp8");
        close_device(&cu);
        return 0;
    }
    for (int i = 0; i < N_KINDS; i++)
        failed += is_wanted(i) ? check_values(&cu, i) : 0;
    for (int i = 0; strcmp(what, "time") && i < N_CHECKS * N_KINDS; i++)
        failed += !is_wanted(i / N_CHECKS)
                      ? 0
                      : check_product(&cu, &s, i % N_CHECKS, i / N_CHECKS, strcmp(what, "check"));
    printf("%ld failed\n", failed);
    if (strcmp(what, "check") && strcmp(what, "brief")) {
        read_gbs = read_bandwidth(&s);
        printf("read bandwidth %.0f GB/s: a layer in 8.5 bits %.2f us, in 4.5 %.2f\n", read_gbs,
               bytes_of(ALL, 1) / read_gbs / 1e3 * 8.5 / 16,
               bytes_of(ALL, 1) / read_gbs / 1e3 * 4.5 / 16);
        columns_title();
        for (int i = 0; i < n_counts; i++)
            columns_line(&cu, &s, counts[i], "bf16");
        for (int k = 0; k < N_KINDS; k++) {
            if (!is_wanted(k))
                continue;
            to_codes(&cu, &s, k);
            for (int i = 0; i < n_counts; i++)
                columns_line(&cu, &s, counts[i], kinds[k].name);
        }
    }
    close_device(&cu);
    if (csv)
        fclose(csv);
    printf("%ld failed\n", failed);
    return failed ? 1 : 0;
}
