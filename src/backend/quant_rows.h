/*
 * quant_rows.h - template: the values of rows of weights in fewer bits, for every packing.
 *
 * Included by quant.c (plain C, the reference) and cpu/gemm_codes_avx2.c, whose compiler flags let
 * the loops below become longer vectors; QUANT_EXPAND names the function. Must not: allocate, check
 * outside bytes (load does), read beyond a block, round more often than docs/formats.md says, or
 * contract a product and a subtraction (the build forbids it; both orders give the same bits, as
 * the products are exact).
 */
#include "backend/quant_gguf.h"

#include <string.h>

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* ---------------------------------------------------------------- reading */

static float scale_at(const struct sv_quant *q, int64_t i)
{
    uint16_t h;
    if (q->code == SV_CODE_MXFP4)
        return sv_e8m0_to_f32(((const uint8_t *)q->scales)[i]);
    if (q->code == SV_CODE_NVFP4)
        return sv_f8_to_f32(((const uint8_t *)q->scales)[i]);
    if (q->scale == SV_F32)
        return ((const float *)q->scales)[i];
    memcpy(&h, (const uint8_t *)q->scales + 2 * i, sizeof h);
    return q->scale == SV_BF16 ? sv_bf16_to_f32(h) : sv_f16_to_f32(h);
}

/* Code i of a stream of words, low bits first. */
static int32_t nibble(const void *words, int64_t i)
{
    return (int32_t)(((const uint32_t *)words)[i / 8] >> (i % 8 * 4) & 15);
}

static int32_t octet(const void *words, int64_t i)
{
    return (int32_t)(((const uint32_t *)words)[i / 4] >> (i % 4 * 8) & 255);
}

/* ---------------------------------------------------------------- rows of codes */

/* A byte for each weight: value = code * scale, rounded once. */
static void rows_of_bytes(const struct sv_quant *q, int32_t row, float *out)
{
    const uint8_t *in = (const uint8_t *)q->data + (size_t)row * (size_t)q->cols;
    const int64_t first = row / q->block_rows * ceil_div(q->cols, q->block_cols);
    for (int32_t k = 0; k < q->cols; k += q->block_cols) {
        const float scale = scale_at(q, first + k / q->block_cols);
        const int32_t end = q->cols - k < q->block_cols ? q->cols : k + q->block_cols;
        if (q->code == SV_CODE_F8)
            for (int32_t i = k; i < end; i++)
                out[i] = sv_f8_to_f32(in[i]) * scale;
        else
            for (int32_t i = k; i < end; i++)
                out[i] = (float)(int8_t)in[i] * scale;
    }
}

/* Two e2m1 codes a byte. Code times block scale is exact; NVFP4's factor rounds once. */
static void rows_of_e2m1(const struct sv_quant *q, int32_t row, float *out)
{
    const int64_t at = (int64_t)row * (q->step ? q->step : 1);
    const uint8_t *in = (const uint8_t *)q->data + at * (q->cols / 2);
    const int64_t first = at * (q->cols / q->block_cols);
    const float factor = q->code == SV_CODE_NVFP4 ? q->global : 1;
    for (int32_t k = 0; k < q->cols; k += q->block_cols, out += q->block_cols) {
        const float scale = scale_at(q, first + k / q->block_cols);
        for (int32_t i = 0; i < q->block_cols / 2; i++, in++) {
            out[2 * i] = sv_e2m1[*in & 15] * scale * factor;
            out[2 * i + 1] = sv_e2m1[*in >> 4] * scale * factor;
        }
    }
}

static int32_t group_of(const struct sv_quant *q, int32_t k)
{
    return q->g_idx ? q->g_idx[k] : k / q->block_cols;
}

/* Words along a row. Code minus zero point times a 16-bit scale is exact. */
static void rows_of_words(const struct sv_quant *q, int32_t row, float *out)
{
    const bool four = q->code == SV_CODE_INT4;
    const int32_t per_word = four ? 8 : 4, middle = four ? 8 : 128;
    const int32_t groups = (int32_t)ceil_div(q->cols, q->block_cols);
    const uint8_t *in = (const uint8_t *)q->data + row * ceil_div(q->cols, per_word) * 4;
    for (int32_t k = 0, end; k < q->cols; k = end) { /* columns of one group, or one column */
        const int32_t g = group_of(q, k);
        int32_t zero = middle;
        if (q->zeros) { /* packed along rows: words (rows / per_word, groups) */
            const uint32_t *word =
                (const uint32_t *)q->zeros + (int64_t)(row / per_word) * groups + g;
            zero = four ? nibble(word, row % 8) : octet(word, row % 4);
        }
        const float scale = scale_at(q, (int64_t)row * groups + g);
        end = q->g_idx ? k + 1 : q->cols - k < q->block_cols ? q->cols : k + q->block_cols;
        const int32_t pairs = four && k % 2 == 0 ? (end - k) / 2 : 0;
        for (int32_t i = 0; i < pairs; i++) {
            out[k + 2 * i] = (float)((in[k / 2 + i] & 15) - zero) * scale;
            out[k + 2 * i + 1] = (float)((in[k / 2 + i] >> 4) - zero) * scale;
        }
        for (int32_t i = k + 2 * pairs; i < end; i++)
            out[i] = (float)((four ? nibble(in, i) : in[i]) - zero) * scale;
    }
}

/* Column j of eight is in nibble awq_order[j]. */
static const uint8_t awq_order[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* The index of the code of (input, row) in a matrix with inputs first. */
static int32_t awq_code(const void *words, const struct sv_quant *q, int64_t input, int32_t row)
{
    return nibble(words, input * q->rows + row / 8 * 8 + awq_order[row % 8]);
}

static int32_t gptq_code(const struct sv_quant *q, int32_t k, int32_t row)
{
    const int32_t per_word = q->code == SV_CODE_GPTQ4 ? 8 : 4;
    const uint32_t *word = (const uint32_t *)q->data + (int64_t)(k / per_word) * q->rows + row;
    return per_word == 8 ? nibble(word, k % 8) : octet(word, k % 4);
}

static int32_t gptq_zero(const struct sv_quant *q, int32_t g, int32_t row)
{
    const int64_t at = (int64_t)g * q->rows + row;
    if (!q->zeros)
        return q->code == SV_CODE_GPTQ4 ? 8 : 128;
    return q->zero_add + (q->code == SV_CODE_GPTQ4 ? nibble(q->zeros, at) : octet(q->zeros, at));
}

/* Inputs first (AWQ, GPTQ): columns outside, so that words are met in the order of memory. */
static void rows_of_columns(const struct sv_quant *q, int32_t first, int32_t n, float *out)
{
    for (int32_t k = 0; k < q->cols; k++) {
        const int32_t g = group_of(q, k);
        for (int32_t r = first; r < first + n; r++) {
            int32_t code, zero;
            if (q->code == SV_CODE_AWQ) {
                code = awq_code(q->data, q, k, r);
                zero = q->zeros ? awq_code(q->zeros, q, g, r) : 8;
            } else {
                code = gptq_code(q, k, r);
                zero = gptq_zero(q, g, r);
            }
            out[(size_t)(r - first) * (size_t)q->cols + (size_t)k] =
                (float)(code - zero) * scale_at(q, (int64_t)g * q->rows + r);
        }
    }
}

/* The values of rows [first, first + n): out is (n, cols). */
static void rows_of(const struct sv_quant *q, int32_t first, int32_t n, float *out)
{
    SV_REQUIRE(first >= 0 && n >= 0 && n <= q->rows - first);
    const int32_t block = sv_quant_block(q->code);
    if (block) {
        const int32_t per_row = q->cols / block;
        const size_t row_bytes = (size_t)per_row * (size_t)sv_quant_block_bytes(q->code);
        gguf_blocks(q->code, (const uint8_t *)q->data + (size_t)first * row_bytes, n * per_row,
                    out);
        return;
    }
    if (q->code == SV_CODE_AWQ || q->code == SV_CODE_GPTQ4 || q->code == SV_CODE_GPTQ8) {
        rows_of_columns(q, first, n, out);
        return;
    }
    for (int32_t r = first; r < first + n; r++, out += q->cols) {
        if (q->code == SV_CODE_F8 || q->code == SV_CODE_I8)
            rows_of_bytes(q, r, out);
        else if (q->code == SV_CODE_MXFP4 || q->code == SV_CODE_NVFP4)
            rows_of_e2m1(q, r, out);
        else
            rows_of_words(q, r, out);
    }
}

void QUANT_EXPAND(const struct sv_quant *q, int32_t first, int32_t n, enum sv_dtype to, void *out,
                  float *row)
{
    if (to == SV_F32) {
        rows_of(q, first, n, out);
        return;
    }
    for (int32_t r = 0; r < n; r++) {
        uint16_t *half = (uint16_t *)out + (size_t)r * (size_t)q->cols;
        rows_of(q, first + r, 1, row);
        for (int32_t i = 0; i < q->cols; i++)
            half[i] = sv_f32_to_bf16(row[i]);
    }
}
