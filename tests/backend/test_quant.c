/*
 * test_quant.c - weights in fewer bits: the value of every weight is that of gguf-py, PyTorch or
 * transformers, bit for bit (tools/golden/make_formats.py), whichever rows are asked for.
 */
#include "testing.h"

#include "backend/quant.h"
#include "golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct format_case {
    const char *name;
    enum sv_quant_code code;
    int32_t rows, cols;
    const char *data_kind, *scale_kind;
    enum sv_dtype scale;
    int32_t block_rows, block_cols, zero_add;
};

static const struct format_case cases[] = {
    {"q4_0", SV_CODE_Q4_0, 3, 256, "U8", NULL, 0, 0, 0, 0},
    {"q8_0", SV_CODE_Q8_0, 3, 256, "U8", NULL, 0, 0, 0, 0},
    {"q4_k", SV_CODE_Q4_K, 3, 512, "U8", NULL, 0, 0, 0, 0},
    {"q5_k", SV_CODE_Q5_K, 3, 512, "U8", NULL, 0, 0, 0, 0},
    {"q6_k", SV_CODE_Q6_K, 3, 512, "U8", NULL, 0, 0, 0, 0},
    {"iq4_nl", SV_CODE_IQ4_NL, 3, 256, "U8", NULL, 0, 0, 0, 0},
    {"gg_mxfp4", SV_CODE_GG_MXFP4, 3, 256, "U8", NULL, 0, 0, 0, 0},
    {"f8_block", SV_CODE_F8, 150, 141, "U8", "F32", SV_F32, 128, 128, 0},
    {"f8_row", SV_CODE_F8, 6, 40, "U8", "BF16", SV_BF16, 1, 40, 0},
    {"f8_tensor", SV_CODE_F8, 5, 33, "U8", "F32", SV_F32, 5, 33, 0},
    {"i8_row", SV_CODE_I8, 5, 33, "U8", "F32", SV_F32, 1, 33, 0},
    {"mxfp4", SV_CODE_MXFP4, 4, 96, "U8", "U8", SV_U8, 1, 32, 0},
    {"nvfp4", SV_CODE_NVFP4, 4, 48, "U8", "U8", SV_U8, 1, 16, 0},
    {"int4", SV_CODE_INT4, 10, 68, "I32", "BF16", SV_BF16, 1, 32, 0},
    {"int4_zero", SV_CODE_INT4, 10, 68, "I32", "BF16", SV_BF16, 1, 32, 0},
    {"int8", SV_CODE_INT8, 10, 68, "I32", "F16", SV_F16, 1, 32, 0},
    {"int8_zero", SV_CODE_INT8, 10, 68, "I32", "F16", SV_F16, 1, 32, 0},
    {"awq", SV_CODE_AWQ, 24, 64, "I32", "F16", SV_F16, 1, 16, 0},
    {"gptq4", SV_CODE_GPTQ4, 24, 64, "I32", "F16", SV_F16, 1, 16, 1},
    {"gptq4_act", SV_CODE_GPTQ4, 24, 64, "I32", "F16", SV_F16, 1, 16, 0},
    {"gptq8", SV_CODE_GPTQ8, 24, 64, "I32", "F16", SV_F16, 1, 16, 1},
    {"gptq8_act", SV_CODE_GPTQ8, 24, 64, "I32", "F16", SV_F16, 1, 16, 0},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

static struct sv_quant quant_of(struct golden *g, const struct format_case *c)
{
    size_t n;
    struct sv_quant q = {.code = c->code,
                         .rows = c->rows,
                         .cols = c->cols,
                         .scale = c->scale,
                         .block_rows = c->block_rows,
                         .block_cols = c->block_cols,
                         .zero_add = c->zero_add};
    q.data = golden_get(g, c->data_kind, &n, "%s.data", c->name);
    if (c->scale_kind)
        q.scales = golden_get(g, c->scale_kind, &n, "%s.scales", c->name);
    if (golden_has(g, "%s.zeros", c->name))
        q.zeros = golden_get(g, "I32", &n, "%s.zeros", c->name);
    if (golden_has(g, "%s.g_idx", c->name))
        q.g_idx = golden_get(g, "I32", &n, "%s.g_idx", c->name);
    if (golden_has(g, "%s.global_scale", c->name))
        q.global = *(const float *)golden_get(g, "F32", &n, "%s.global_scale", c->name);
    return q;
}

static void expect(const char *name, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], 4) != 0)
            fail_msg("%s: weight %zu is %.9g, expected %.9g", name, i, (double)got[i],
                     (double)want[i]);
}

static void values_are_those_of_the_references(void **state)
{
    (void)state;
    struct golden g = golden_open("formats/blocks.safetensors");
    for (int i = 0; i < N_CASES; i++) {
        const struct format_case *c = &cases[i];
        const struct sv_quant q = quant_of(&g, c);
        size_t n, cols = (size_t)c->cols;
        const float *want = golden_get(&g, "F32", &n, "%s.value", c->name);
        assert_int_equal(n, (size_t)c->rows * cols);
        float *out = calloc(n, sizeof *out);
        sv_quant_rows(&q, 0, c->rows, out);
        expect(c->name, out, want, n);
        for (int32_t r = 0; r < c->rows; r += 2) { /* pieces of two, the last may be shorter */
            const int32_t some = c->rows - r < 2 ? c->rows - r : 2;
            memset(out, 0xff, n * sizeof *out);
            sv_quant_rows(&q, r, some, out);
            expect(c->name, out, want + (size_t)r * cols, (size_t)some * cols);
        }
        free(out);
    }
    golden_close(&g);
}

static void values_that_should_fit_bf16_do(void **state)
{
    (void)state;
    struct golden g = golden_open("formats/blocks.safetensors");
    for (int i = 0; i < N_CASES; i++) {
        size_t n, rounded = 0;
        const float *v = golden_get(&g, "F32", &n, "%s.value", cases[i].name);
        for (size_t k = 0; k < n; k++)
            rounded += sv_bf16_to_f32(sv_f32_to_bf16(v[k])) != v[k];
        assert_int_equal(rounded == 0, sv_quant_fits_bf16(cases[i].code));
    }
    golden_close(&g);
}

static void byte_counts_are_those_of_the_parts(void **state)
{
    (void)state;
    struct golden g = golden_open("formats/blocks.safetensors");
    for (int i = 0; i < N_CASES; i++) {
        const struct format_case *c = &cases[i];
        const struct sv_quant q = quant_of(&g, c);
        size_t n, data;
        golden_get(&g, c->data_kind, &data, "%s.data", c->name);
        data *= c->data_kind[0] == 'I' ? 4 : 1;
        if (c->cols % 8) /* words at the end of a row are padded */
            continue;
        if (c->scale_kind) {
            golden_get(&g, c->scale_kind, &n, "%s.scales", c->name);
            data += n * (c->scale == SV_U8 ? 1 : sv_dtype_bytes(c->scale));
        }
        if (q.zeros)
            golden_get(&g, "I32", &n, "%s.zeros", c->name), data += 4 * n;
        data += q.g_idx ? 4 * (size_t)c->cols : 0;
        assert_int_equal(sv_quant_bytes(&q), data);
    }
    golden_close(&g);
}

static void codes_of_eight_bits(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        const float f = sv_f8_to_f32((uint8_t)c);
        const int e = c >> 3 & 15, m = c & 7;
        if ((c & 127) == 127) {
            assert_true(isnan(f));
            continue;
        }
        const double size = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        assert_true((double)f == (c & 128 ? -size : size));
        assert_true(!signbit(f) == !(c & 128));
        if (c < 255)
            assert_true((double)sv_e8m0_to_f32((uint8_t)c) == ldexp(1, c - 127));
    }
    assert_true(isnan(sv_e8m0_to_f32(255)));
}

SV_TEST_MAIN(cmocka_unit_test(values_are_those_of_the_references),
             cmocka_unit_test(values_that_should_fit_bf16_do),
             cmocka_unit_test(byte_counts_are_those_of_the_parts),
             cmocka_unit_test(codes_of_eight_bits))
