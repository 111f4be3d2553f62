/*
 * quant.c - values of weights in fewer bits: what codes and scales of each packing are worth.
 *
 * Called by load, model, the CPU backend and tests through quant.h; blocks of GGUF are in
 * quant_gguf.c. Plain C: the reference of all faster expansions. Must not: allocate, check outside
 * bytes (load does), or round more often than docs/formats.md says.
 */
#include "backend/quant.h"

#include <string.h>

const float sv_e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static const struct {
    const char *name;
    int16_t block, block_bytes;
    bool fits_bf16;
} codes[SV_CODES] = {
    [SV_CODE_NONE] = {"plain", 0, 0, false},       [SV_CODE_F8] = {"fp8", 0, 0, false},
    [SV_CODE_I8] = {"int8", 0, 0, false},          [SV_CODE_MXFP4] = {"mxfp4", 0, 0, true},
    [SV_CODE_NVFP4] = {"nvfp4", 0, 0, false},      [SV_CODE_INT4] = {"int4", 0, 0, false},
    [SV_CODE_INT8] = {"int8-packed", 0, 0, false}, [SV_CODE_AWQ] = {"awq", 0, 0, false},
    [SV_CODE_GPTQ4] = {"gptq-4", 0, 0, false},     [SV_CODE_GPTQ8] = {"gptq-8", 0, 0, false},
    [SV_CODE_Q4_0] = {"q4_0", 32, 18, false},      [SV_CODE_Q8_0] = {"q8_0", 32, 34, false},
    [SV_CODE_Q4_K] = {"q4_k", 256, 144, false},    [SV_CODE_Q5_K] = {"q5_k", 256, 176, false},
    [SV_CODE_Q6_K] = {"q6_k", 256, 210, false},    [SV_CODE_IQ4_NL] = {"iq4_nl", 32, 18, false},
    [SV_CODE_GG_MXFP4] = {"mxfp4", 32, 17, true},
};

const char *sv_quant_name(enum sv_quant_code code)
{
    return (unsigned)code < SV_CODES ? codes[code].name : "?";
}

int32_t sv_quant_block(enum sv_quant_code code)
{
    return codes[code].block;
}

int32_t sv_quant_block_bytes(enum sv_quant_code code)
{
    return codes[code].block_bytes;
}

bool sv_quant_fits_bf16(enum sv_quant_code code)
{
    return codes[code].fits_bf16;
}

/* ---------------------------------------------------------------- sizes */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Bits of a code that has no block of its own. */
static int32_t code_bits(enum sv_quant_code code)
{
    switch (code) {
    case SV_CODE_F8:
    case SV_CODE_I8:
    case SV_CODE_INT8:
    case SV_CODE_GPTQ8:
        return 8;
    default:
        return 4;
    }
}

static size_t scale_bytes(const struct sv_quant *q)
{
    const bool byte = q->code == SV_CODE_MXFP4 || q->code == SV_CODE_NVFP4;
    return byte ? 1 : sv_dtype_bytes(q->scale);
}

int64_t sv_quant_bytes(const struct sv_quant *q)
{
    const int64_t block = sv_quant_block(q->code);
    if (block)
        return (int64_t)q->rows * (q->cols / block) * sv_quant_block_bytes(q->code);
    const int64_t groups = ceil_div(q->cols, q->block_cols);
    const int64_t bits = code_bits(q->code);
    int64_t sum = (int64_t)q->rows * q->cols * bits / 8;
    sum += ceil_div(q->rows, q->block_rows) * groups * (int64_t)scale_bytes(q);
    if (q->zeros)
        sum += (int64_t)q->rows * groups * bits / 8;
    if (q->g_idx)
        sum += (int64_t)q->cols * (int64_t)sizeof *q->g_idx;
    return sum;
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
        for (int32_t i = k; i < end; i++)
            out[i] = (q->code == SV_CODE_F8 ? sv_f8_to_f32(in[i]) : (float)(int8_t)in[i]) * scale;
    }
}

/* Two e2m1 codes a byte. Code times block scale is exact; NVFP4's factor rounds once. */
static void rows_of_e2m1(const struct sv_quant *q, int32_t row, float *out)
{
    const uint8_t *in = (const uint8_t *)q->data + (size_t)row * (size_t)(q->cols / 2);
    const int64_t first = (int64_t)row * (q->cols / q->block_cols);
    const float factor = q->code == SV_CODE_NVFP4 ? q->global : 1;
    for (int32_t k = 0; k < q->cols; k++) {
        const float scale = scale_at(q, first + k / q->block_cols);
        out[k] = sv_e2m1[in[k / 2] >> (k % 2 * 4) & 15] * scale * factor;
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
    const uint32_t *in = (const uint32_t *)q->data + row * ceil_div(q->cols, per_word);
    for (int32_t k = 0; k < q->cols; k++) {
        const int32_t g = group_of(q, k);
        int32_t zero = middle;
        if (q->zeros) { /* packed along rows: words (rows / per_word, groups) */
            const uint32_t *word =
                (const uint32_t *)q->zeros + (int64_t)(row / per_word) * groups + g;
            zero = four ? nibble(word, row % 8) : octet(word, row % 4);
        }
        out[k] = (float)((four ? nibble(in, k) : octet(in, k)) - zero) *
                 scale_at(q, (int64_t)row * groups + g);
    }
}

/* Column j of eight stands in nibble awq_order[j]. */
static const uint8_t awq_order[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* Where the code of (input, row) stands in a matrix with inputs first. */
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

void sv_quant_rows(const struct sv_quant *q, int32_t first, int32_t n, float *out)
{
    SV_REQUIRE(first >= 0 && n >= 0 && n <= q->rows - first);
    const int32_t block = sv_quant_block(q->code);
    if (block) {
        const int32_t per_row = q->cols / block;
        const size_t row_bytes = (size_t)per_row * (size_t)sv_quant_block_bytes(q->code);
        sv_quant_gguf_blocks(q->code, (const uint8_t *)q->data + (size_t)first * row_bytes,
                             n * per_row, out);
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
