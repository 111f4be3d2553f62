/*
 * codes_host.cu - rows of quantized weights in the layout of the device's kernels: which formats
 * are taken as codes, codes in the order of inputs, a word of scale and zero for each tile;
 * super-blocks as they are.
 *
 * Called by upload.cu, whose thread pool divides the rows; the device lays them out (codes.cu).
 * Must not: touch the device.
 */
#include "backend/cuda/codes_host.h"
#include "backend/cuda/gemm.h"
#include "backend/gpu/codes.cuh"
#include "backend/gpu/mxfp4.cuh"

extern "C" {
#include "backend/quant.h"
}

#include <string.h>

/* How codes of less than 8 bits lie in device memory; SV_CODES_F8: they are others. */
static enum sv_codes_code code4_of(const struct sv_quant *q)
{
    switch (q->code) {
    case SV_CODE_INT4:
    case SV_CODE_AWQ:
    case SV_CODE_GPTQ4: {
        const bool two = q->block_cols == SV_TILE / 2 && q->cols > SV_TILE / 2;
        return q->scale == SV_F16 ? (two ? SV_CODES_I4_HALF_TWO : SV_CODES_I4_HALF)
                                  : (two ? SV_CODES_I4_TWO : SV_CODES_I4);
    }
    case SV_CODE_Q4_0:
        return SV_CODES_I4_HALF_TWO;
    case SV_CODE_MXFP4:
        return SV_CODES_MX4;
    case SV_CODE_NVFP4:
        return SV_CODES_NV4;
    case SV_CODE_Q4_K:
        return SV_CODES_K4;
    case SV_CODE_Q5_K:
        return SV_CODES_K5;
    case SV_CODE_Q6_K:
        return SV_CODES_K6;
    default:
        return SV_CODES_F8;
    }
}

static int64_t scales_of(const struct sv_quant *q, int32_t row)
{
    const int64_t n = (q->cols + q->block_cols - 1) / q->block_cols;
    return row / q->block_rows * n * (q->step ? q->step : 1);
}

/* Whether scales of e2m1 have room: e8m0 times 2^126 in bf16; e4m3 above zero, whose products with
 * the factor have the two parts of nvfp4_parts.cuh. */
static bool small_scales_fit(const struct sv_quant *q)
{
    const bool mx = q->code == SV_CODE_MXFP4;
    uint8_t most = 0;
    for (int32_t r = 0; r < q->rows; r++) {
        const uint8_t *at = (const uint8_t *)q->scales + scales_of(q, r);
        for (int32_t g = 0; g < q->cols / q->block_cols; g++) {
            if (mx ? at[g] > 128 && at[g] != 255 : at[g] >= 0x7f)
                return false;
            most = at[g] > most ? at[g] : most;
        }
    }
    const float factor = q->global < 0 ? -q->global : q->global;
    return mx || factor == 0 || (factor > 0x1p-80f && factor * sv_f8_to_f32(most) < 4);
}

/* Blocks of a GGUF file: an f16 scale and 32 codes. */
static bool is_gguf(const struct sv_quant *q)
{
    return q->code == SV_CODE_Q4_0 || q->code == SV_CODE_Q8_0 || q->code == SV_CODE_IQ4_NL;
}

/* Signed bytes in groups of half a tile: as blocks of Q8_0, where f16 holds the scales. */
static bool is_i8_two(const struct sv_quant *q)
{
    return q->code == SV_CODE_INT8 && !q->zeros && q->block_cols == SV_TILE / 2;
}

bool sv_codes_are_k(const struct sv_quant *q)
{
    return code4_of(q) >= SV_CODES_K4;
}

static const uint8_t *gguf_block(const struct sv_quant *q, int32_t row, int32_t block)
{
    return (const uint8_t *)q->data +
           ((int64_t)row * (q->cols / 32) + block) * sv_quant_block_bytes(q->code);
}

static float scale_at(const struct sv_quant *q, int64_t i)
{
    if (q->scale == SV_F32)
        return ((const float *)q->scales)[i];
    const uint16_t h = ((const uint16_t *)q->scales)[i];
    return q->scale == SV_F16 ? sv_f16_to_f32(h) : sv_bf16_to_f32(h);
}

/* Towards zero, of a number that is not negative. */
static uint16_t half_of(float x)
{
    uint32_t u;
    if (x < 0x1p-14f) /* multiples of 2^-24 */
        return (uint16_t)(x * 0x1p24f);
    memcpy(&u, &x, sizeof u);
    return x < 0x1p16f ? (uint16_t)((u >> 13) - (112u << 10)) : 0;
}

static bool half_scales_fit(const struct sv_quant *q)
{
    for (int32_t r = 0; r < q->rows; r++)
        for (int32_t g = 0; g < q->cols / q->block_cols; g++) {
            const float s = scale_at(q, scales_of(q, r) + g);
            if (!(s >= 0) || sv_f16_to_f32(half_of(s)) != s)
                return false;
        }
    return true;
}

/* Experts have MXFP4 in a layout of its own, and no f16 scales of half a tile. */
bool sv_cuda_takes_codes(const struct sv_dev *dev, const struct sv_quant *q, enum sv_role role)
{
    const struct sv_cuda *cu = (const struct sv_cuda *)(const void *)dev;
    const bool expert = role >= SV_ROLE_EXPERT_GATE && role <= SV_ROLE_EXPERT_DOWN,
               dense = (role >= SV_ROLE_Q && role <= SV_ROLE_DOWN) ||
                       (role >= SV_ROLE_SHARED_GATE && role <= SV_ROLE_SHARED_DOWN) ||
                       role == SV_ROLE_GDN_QKV || role == SV_ROLE_GDN_Z;
    if (cu->act != SV_BF16 || !(expert || dense))
        return false;
    if (expert && (q->code == SV_CODE_MXFP4 || q->code == SV_CODE_GG_MXFP4))
        return q->cols % SV_MXFP4_BLOCK == 0;
    const bool byte =
        q->code == SV_CODE_F8 || q->code == SV_CODE_I8 || (q->code == SV_CODE_INT8 && !q->zeros);
    const enum sv_codes_code four = code4_of(q);
    if (q->g_idx || q->rows < 2 || q->cols % 8)
        return false;
    if (is_gguf(q) || sv_codes_are_k(q))
        return dense;
    if (four == SV_CODES_MX4 || four == SV_CODES_NV4)
        return q->block_rows == 1 && q->block_cols == (four == SV_CODES_MX4 ? 32 : 16) &&
               small_scales_fit(q);
    if (is_i8_two(q))
        return dense && half_scales_fit(q);
    if (four == SV_CODES_I4_TWO || four == SV_CODES_I4_HALF_TWO)
        return (dense || four == SV_CODES_I4_TWO) && !q->zeros;
    const bool tiles = q->block_cols % SV_TILE == 0 || q->block_cols >= q->cols;
    return tiles && (byte || (four != SV_CODES_F8 && q->scale != SV_F32));
}

/* Whether products may multiply in bf16: see SV_CODES_F8. */
bool sv_codes_scales_fit(const struct sv_quant *q)
{
    const int64_t n = (int64_t)((q->rows + q->block_rows - 1) / q->block_rows) *
                      ((q->cols + q->block_cols - 1) / q->block_cols);
    for (int64_t i = 0; i < n; i++) {
        const float s = scale_at(q, i);
        if (!(s < 0x1p7f && s > -0x1p7f) || sv_bf16_to_f32(sv_f32_to_bf16(s)) != s)
            return false;
    }
    return true;
}

/* Nibble i of a stream of words, low ones first. */
static uint32_t nibble_at(const void *words, int64_t i)
{
    return ((const uint32_t *)words)[i / 8] >> (i % 8 * 4) & 15;
}

/* Column j of eight is in this nibble of AWQ's words. */
static int64_t awq_at(const struct sv_quant *q, int64_t input, int32_t row)
{
    return input * q->rows + row / 8 * 8 + row % 8 / 2 + row % 2 * 4;
}

/* 32 codes of a GGUF block, of which a byte has i and i + 16. */
static void nibbles_in_order(uint8_t *to, const uint8_t *from)
{
    for (int i = 0; i < 8; i++) {
        to[i] = (uint8_t)((from[2 * i] & 15) | from[2 * i + 1] << 4);
        to[8 + i] = (uint8_t)(from[2 * i] >> 4 | (from[2 * i + 1] & 0xf0));
    }
}

/* Codes of IQ4_NL as what they stand for, signed bytes. */
static void table_in_order(uint8_t *to, const uint8_t *from)
{
    static const int8_t table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    for (int i = 0; i < 16; i++) {
        to[i] = (uint8_t)table[from[i] & 15];
        to[i + 16] = (uint8_t)table[from[i] >> 4];
    }
}

/* A row's codes, two a byte. Those of a group of NVFP4 whose scale is zero are zero. */
static void row_of_nibbles(const struct sv_quant *q, int32_t row, uint8_t *to)
{
    const size_t n_bytes = (size_t)q->cols / 2;
    if (q->code == SV_CODE_AWQ || q->code == SV_CODE_GPTQ4) {
        const bool awq = q->code == SV_CODE_AWQ;
        for (int32_t k = 0; k < q->cols; k += 2) {
            uint32_t two = 0;
            for (int32_t i = 0; i < 2; i++)
                two |= (awq ? nibble_at(q->data, awq_at(q, k + i, row))
                            : ((const uint32_t *)q->data)[(int64_t)((k + i) / 8) * q->rows + row] >>
                                      (k + i) % 8 * 4 &
                                  15)
                       << 4 * i;
            to[k / 2] = (uint8_t)two;
        }
        return;
    }
    if (q->code == SV_CODE_Q4_0) {
        for (int32_t b = 0; b < q->cols / 32; b++)
            nibbles_in_order(to + b * 16, gguf_block(q, row, b) + 2);
        return;
    }
    memcpy(to, (const uint8_t *)q->data + (size_t)row * (size_t)(q->step ? q->step : 1) * n_bytes,
           n_bytes);
    const uint8_t *scale = (const uint8_t *)q->scales + scales_of(q, row);
    for (int32_t g = 0; q->code == SV_CODE_NVFP4 && g < q->cols / 16; g++)
        if (scale[g] == 0)
            memset(to + g * 8, 0, 8);
}

/* Zero point of a row in group g, codes being 0 to 15. */
static uint32_t zero_of(const struct sv_quant *q, int32_t row, int32_t g)
{
    const int64_t groups = (q->cols + q->block_cols - 1) / q->block_cols;
    if (!q->zeros)
        return 8;
    if (q->code == SV_CODE_INT4)
        return nibble_at((const uint32_t *)q->zeros + row / 8 * groups + g, row % 8);
    if (q->code == SV_CODE_AWQ)
        return nibble_at(q->zeros, awq_at(q, g, row));
    return (uint32_t)q->zero_add + nibble_at(q->zeros, (int64_t)g * q->rows + row);
}

/* What stands behind the codes for a row in a tile's columns (codes.cuh); of 8 bits the scale as
 * f32.
 */
static uint32_t code_word(const struct sv_quant *q, enum sv_codes_code code, int32_t row,
                          int32_t kk)
{
    const int32_t col = kk * SV_TILE;
    uint32_t word = 0;
    if (is_gguf(q)) {
        for (int32_t i = 0; i < 2 && col + 32 * i < q->cols; i++) {
            const uint8_t *half = gguf_block(q, row, kk * 2 + i);
            word |= (uint32_t)(half[0] | half[1] << 8) << 16 * i;
        }
        return word;
    }
    if (is_i8_two(q)) {
        for (int32_t i = 0; i < 2 && col + 32 * i < q->cols; i++)
            word |= (uint32_t)half_of(scale_at(q, scales_of(q, row) + kk * 2 + i)) << 16 * i;
        return word;
    }
    const uint8_t *small = (const uint8_t *)q->scales + scales_of(q, row);
    const int32_t g = col / q->block_cols;
    if (code == SV_CODES_NV4) {
        for (int32_t i = 0; i < 4 && col + 16 * i < q->cols; i++)
            word |= sv_codes_e5m3(small[g + i]) << 8 * i;
        return word;
    }
    if (code == SV_CODES_MX4) {
        for (int32_t i = 0; i < 2 && col + 32 * i < q->cols; i++) {
            const float f = sv_e8m0_to_f32(small[g + i]);
            word |= (uint32_t)sv_f32_to_bf16(f * 0x1p126f) << 16 * i;
        }
        return word;
    }
    const bool inputs_first = q->code == SV_CODE_AWQ || q->code == SV_CODE_GPTQ4;
    const int64_t at = inputs_first ? (int64_t)g * q->rows + row : scales_of(q, row) + g;
    const uint16_t *half = (const uint16_t *)q->scales;
    if (code == SV_CODES_I4_TWO || code == SV_CODES_I4_HALF_TWO) {
        const int64_t next = at + (inputs_first ? q->rows : 1);
        return half[at] | (col + SV_TILE / 2 < q->cols ? (uint32_t)half[next] << 16 : 0);
    }
    if (sv_codes_bits(code) == 4)
        return half[at] | (uint32_t)sv_f32_to_bf16(128.0f + (float)zero_of(q, row, g)) << 16;
    const float f = scale_at(q, at);
    memcpy(&word, &f, sizeof word);
    return word;
}

/* Words of a row of n_k tiles. before: those of the row before it, or NULL. */
static void row_of_words(const struct sv_code_job *job, int32_t row, int32_t n_k, uint32_t *to,
                         const uint32_t *before)
{
    const struct sv_quant *q = job->q;
    const bool bytes = sv_codes_bits(job->code) == 8; /* nothing but scales */
    if (before && bytes && q->block_rows > 1 && row % q->block_rows) {
        memcpy(to, before, (size_t)n_k * sizeof *to);
        return;
    }
    for (int32_t kk = 0; kk < n_k; kk++)
        to[kk] = kk && bytes && q->block_cols >= q->cols ? to[0] : code_word(q, job->code, row, kk);
}

/* Signed bytes as such: "pack-quantized" ones have 128 added. */
void sv_codes_share(void *arg, int thread, int n)
{
    const struct sv_code_job *job = (const struct sv_code_job *)arg;
    const struct sv_quant *q = job->q;
    const int32_t n_k = sv_tiles(q->cols), begin = (int32_t)((int64_t)job->n_rows * thread / n),
                  end = (int32_t)((int64_t)job->n_rows * (thread + 1) / n);
    const size_t cols = (size_t)q->cols, row_bytes = cols * (size_t)sv_codes_bits(job->code) / 8;
    for (int32_t r = begin; r < end; r++) {
        uint8_t *to = job->codes + (size_t)r * row_bytes;
        if (row_bytes < cols)
            row_of_nibbles(q, job->row0 + r, to);
        else if (q->code == SV_CODE_IQ4_NL)
            for (int32_t b = 0; b < q->cols / 32; b++)
                table_in_order(to + b * 32, gguf_block(q, job->row0 + r, b) + 2);
        else if (is_gguf(q))
            for (int32_t b = 0; b < q->cols / 32; b++)
                memcpy(to + b * 32, gguf_block(q, job->row0 + r, b) + 2, 32);
        else
            memcpy(to, (const uint8_t *)q->data + (size_t)(job->row0 + r) * cols, cols);
        for (size_t i = 0; q->code == SV_CODE_INT8 && i < cols; i++)
            to[i] ^= 0x80;
        uint32_t *words = job->words + (size_t)r * (size_t)n_k;
        row_of_words(job, job->row0 + r, n_k, words, r > begin ? words - n_k : NULL);
    }
}

/* Codes as safetensors have them, and scales. */
void sv_mxfp4_share(void *arg, int thread, int n)
{
    const struct sv_code_job *job = (const struct sv_code_job *)arg;
    const struct sv_quant *q = job->q;
    const size_t blocks = (size_t)q->cols / SV_MXFP4_BLOCK;
    const int32_t begin = job->n_rows * thread / n, end = job->n_rows * (thread + 1) / n;
    uint8_t *const scales = job->codes + (size_t)job->n_rows * blocks * 16;
    for (int32_t r = begin; r < end; r++) {
        const size_t row = (size_t)(job->row0 + r) * (size_t)(q->step ? q->step : 1);
        uint8_t *to = job->codes + (size_t)r * blocks * 16, *scale = scales + (size_t)r * blocks;
        if (q->code == SV_CODE_MXFP4) {
            memcpy(to, (const uint8_t *)q->data + row * blocks * 16, blocks * 16);
            memcpy(scale, (const uint8_t *)q->scales + row * blocks, blocks);
            continue;
        }
        const uint8_t *block = (const uint8_t *)q->data + row * blocks * 17;
        for (size_t b = 0; b < blocks; b++, block += 17, to += 16) {
            scale[b] = block[0];
            nibbles_in_order(to, block + 1);
        }
    }
}

/* How codes are kept (codes.cuh). fit: see sv_codes_scales_fit. */
struct sv_format sv_codes_format(const struct sv_quant *q, bool fit)
{
    const enum sv_codes_code four = code4_of(q);
    const bool two = four == SV_CODES_I4_TWO || four == SV_CODES_I4_HALF_TWO;
    if (q->code == SV_CODE_Q8_0 || q->code == SV_CODE_IQ4_NL || is_i8_two(q))
        return {SV_I8, 1, SV_TILE / 2, SV_F16};
    if (four >= SV_CODES_K4) /* 6 or 8 bits a scale */
        return {four == SV_CODES_K4 ? SV_U8 : SV_I8, 1,
                four == SV_CODES_K6 ? SV_TILE / 4 : SV_TILE / 2, SV_I8};
    if (four == SV_CODES_F8)
        return {q->code == SV_CODE_F8 ? SV_F8 : SV_I8, 1, SV_TILE, fit ? SV_BF16 : SV_F32};
    return {SV_U8, 1, two ? SV_TILE / 2 : SV_TILE,
            four == SV_CODES_MX4           ? SV_U8
            : four == SV_CODES_NV4         ? SV_F8
            : four == SV_CODES_I4_HALF_TWO ? SV_F16
                                           : q->scale};
}
