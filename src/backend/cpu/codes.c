/*
 * codes.c - packing the codes of quantized weights (codes.h), and their products on levels without
 * a kernel for them.
 *
 * Called by weights.c at load and by gemm.c. Plain C. Must not: change a code or a scale; quant.h
 * defines their values.
 */
#include "backend/cpu/codes.h"

#include "backend/cpu/gemm.h"

#include <string.h>

#define UNIT SV_GEMM_UNIT
#define LINE SV_ALIGN

/* ---------------------------------------------------------------- layout */

static bool is_words(const struct sv_quant *q)
{
    return q->code >= SV_CODE_INT4 && q->code <= SV_CODE_GPTQ8;
}

static bool is_columns(const struct sv_quant *q)
{
    return q->code == SV_CODE_AWQ || q->code == SV_CODE_GPTQ4 || q->code == SV_CODE_GPTQ8;
}

bool sv_codes_by_rows(const struct sv_quant *q)
{
    return !is_columns(q);
}

static enum sv_codes_scale plain_scale(const struct sv_quant *q)
{
    return q->scale == SV_F32 ? SV_SCALE_F32 : q->scale == SV_F16 ? SV_SCALE_F16 : SV_SCALE_BF16;
}

bool sv_codes_are_whole(const struct sv_quant *q)
{
    switch (q->code) {
    case SV_CODE_I8:
    case SV_CODE_Q4_0:
    case SV_CODE_Q8_0:
    case SV_CODE_Q4_K:
    case SV_CODE_Q5_K:
    case SV_CODE_Q6_K:
        return true;
    default:
        return is_words(q);
    }
}

static void set_kind(struct sv_codes *c)
{
    const struct sv_quant *q = &c->q;
    c->scale = plain_scale(q);
    switch (q->code) {
    case SV_CODE_F8:
        c->kind = SV_CODES_F8;
        break;
    case SV_CODE_MXFP4:
    case SV_CODE_GG_MXFP4:
        c->kind = SV_CODES_4;
        c->scale = SV_SCALE_E8M0;
        break;
    case SV_CODE_NVFP4:
        c->kind = SV_CODES_4_FACTOR;
        c->scale = SV_SCALE_E4M3;
        break;
    case SV_CODE_INT4:
    case SV_CODE_AWQ:
    case SV_CODE_GPTQ4:
        c->kind = SV_CODES_4_MIN;
        break;
    case SV_CODE_I8:
    case SV_CODE_INT8:
    case SV_CODE_GPTQ8:
        c->kind = q->zeros ? SV_CODES_8_MIN : SV_CODES_8;
        break;
    case SV_CODE_Q4_0:
    case SV_CODE_IQ4_NL:
        c->kind = q->code == SV_CODE_Q4_0 ? SV_CODES_4_MIN : SV_CODES_4;
        c->scale = SV_SCALE_F16;
        break;
    case SV_CODE_Q8_0:
        c->kind = SV_CODES_8;
        c->scale = SV_SCALE_F16;
        break;
    case SV_CODE_Q4_K:
    case SV_CODE_Q5_K:
        c->kind = q->code == SV_CODE_Q4_K ? SV_CODES_4_MIN : SV_CODES_5_MIN;
        c->scale = SV_SCALE_U8;
        break;
    case SV_CODE_Q6_K:
        c->kind = SV_CODES_6;
        c->scale = SV_SCALE_I8;
        break;
    default:
        c->kind = SV_CODES_IN_PLACE;
    }
}

static void set_table(struct sv_codes *c)
{
    const enum sv_quant_code code = c->q.code;
    const bool e2m1 = code == SV_CODE_MXFP4 || code == SV_CODE_GG_MXFP4 || code == SV_CODE_NVFP4;
    for (int i = 0; i < 16; i++)
        c->table[i] = e2m1 ? sv_e2m1[i] : code == SV_CODE_IQ4_NL ? sv_iq4_nl[i] : (float)i;
}

static int32_t group_of(const struct sv_quant *q)
{
    switch (q->code) {
    case SV_CODE_Q6_K:
        return 16;
    case SV_CODE_Q4_K:
    case SV_CODE_Q5_K:
        return 32;
    default:
        return sv_quant_block(q->code) ? sv_quant_block(q->code) : q->block_cols;
    }
}

/* Groups in the order of columns, or none. */
static bool in_order(const struct sv_quant *q)
{
    for (int32_t k = 0; q->g_idx && k < q->cols; k++)
        if (q->g_idx[k] != k / q->block_cols)
            return false;
    return true;
}

/* e4m3 codes are read as f16 numbers, 2^-8 of their value: a scale must allow this factor. */
static bool scales_fit(const struct sv_quant *q)
{
    const int64_t n = (int64_t)((q->rows + q->block_rows - 1) / q->block_rows) *
                      ((q->cols + q->block_cols - 1) / q->block_cols);
    for (int64_t i = 0; q->scale != SV_F16 && i < n; i++)
        if (!((q->scale == SV_F32 ? ((const float *)q->scales)[i]
                                  : sv_bf16_to_f32(((const uint16_t *)q->scales)[i])) < 0x1p100f))
            return false;
    return true;
}

static size_t scale_bytes(enum sv_codes_scale s)
{
    return s == SV_SCALE_F32 ? 4 : s <= SV_SCALE_BF16 ? 2 : 1;
}

static bool has_mins(const struct sv_codes *c)
{
    return c->scale == SV_SCALE_U8 || c->q.zeros;
}

static size_t mins_at(const struct sv_codes *c)
{
    return (size_t)c->n_scales * UNIT * scale_bytes(c->scale);
}

/* Of scales, and of minima after them. */
static size_t factors_at(const struct sv_codes *c)
{
    return mins_at(c) + (has_mins(c) ? (size_t)c->n_scales * UNIT : 0);
}

bool sv_codes_plan(struct sv_codes *c, enum sv_wcomp_order order)
{
    const struct sv_quant *q = &c->q;
    const int32_t group = group_of(q);
    set_kind(c);
    const bool whole = group >= q->cols || group % SV_CODES_CHUNK == 0;
    if (c->kind == SV_CODES_IN_PLACE || q->cols % SV_CODES_STEP || !in_order(q) ||
        (!whole && group != 16 && group != 32 && group != 64 && group != 128) ||
        (q->zeros && q->scale == SV_F32) || (q->code == SV_CODE_F8 && !scales_fit(q)))
        return false;
    set_table(c);
    c->order = order;
    c->group = whole ? SV_CODES_CHUNK : group;
    const int32_t span = q->cols < SV_CODES_CHUNK ? q->cols : SV_CODES_CHUNK;
    c->n_scales = (span + c->group - 1) / c->group;
    const size_t head = factors_at(c) + (c->scale == SV_SCALE_U8   ? 4 * UNIT
                                         : c->scale == SV_SCALE_I8 ? 2 * UNIT
                                                                   : 0);
    c->head_bytes = (int32_t)((head + LINE - 1) / LINE * LINE);
    const int32_t bits = c->kind == SV_CODES_5_MIN ? 5
                         : c->kind == SV_CODES_6   ? 6
                         : c->kind >= SV_CODES_8   ? 8
                                                   : 4;
    c->step_bytes = SV_CODES_STEP * UNIT * bits / 8;
    const int32_t chunks = (q->cols + SV_CODES_CHUNK - 1) / SV_CODES_CHUNK;
    c->unit_bytes = (size_t)chunks * (size_t)c->head_bytes +
                    (size_t)(q->cols / SV_CODES_STEP) * (size_t)c->step_bytes;
    return true;
}

/* ---------------------------------------------------------------- codes of the file */

static const uint8_t *block_of(const struct sv_quant *q, int32_t row, int32_t k)
{
    const int32_t block = sv_quant_block(q->code);
    return (const uint8_t *)q->data +
           ((size_t)row * (size_t)(q->cols / block) + (size_t)(k / block)) *
               (size_t)sv_quant_block_bytes(q->code);
}

/* Column j of eight is in nibble awq_order[j]. */
static const uint8_t awq_order[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static unsigned word_bits(const void *words, int64_t at, int per_word)
{
    const int bits = 32 / per_word;
    return ((const uint32_t *)words)[at / per_word] >> (at % per_word * bits) & ((1u << bits) - 1);
}

/* Codes of words along rows or, of AWQ and GPTQ, with inputs first. */
static void codes_of_words(const struct sv_quant *q, int32_t row, int32_t k0, int32_t n,
                           uint8_t *out)
{
    const bool eight = q->code == SV_CODE_INT8 || q->code == SV_CODE_GPTQ8;
    const int32_t per_word = eight ? 4 : 8;
    const uint32_t *in = q->data;
    if (q->code == SV_CODE_AWQ) {
        in += (int64_t)k0 * (q->rows / 8) + row / 8;
        for (int32_t k = 0; k < n; k++, in += q->rows / 8)
            out[k] = (uint8_t)(*in >> (awq_order[row % 8] * 4) & 15);
        return;
    }
    const int64_t stride = is_columns(q) ? q->rows : 1;
    in += is_columns(q) ? (int64_t)(k0 / per_word) * q->rows + row
                        : (int64_t)row * ((q->cols + per_word - 1) / per_word) + k0 / per_word;
    for (int32_t k = 0; k < n; k += per_word, in += stride)
        for (int i = 0; i < per_word; i++) /* of 8 bits signed */
            out[k + i] = (uint8_t)(eight ? (*in >> (8 * i) & 255) - 128 : *in >> (4 * i) & 15);
}

/* 256 codes of Q6_K. */
static void codes_of_q6_k(const uint8_t *p, uint8_t *out)
{
    for (int j = 0; j < 8; j++) {
        const int half = j / 4, quarter = j % 4;
        const uint8_t *low = p + 64 * half + quarter % 2 * 32, *high = p + 128 + 32 * half;
        for (int l = 0; l < 32; l++)
            out[32 * j + l] =
                (uint8_t)((low[l] >> (quarter / 2 * 4) & 15) | (high[l] >> (2 * quarter) & 3) << 4);
    }
}

/* 256 codes of Q4_K or Q5_K. */
static void codes_of_k(const uint8_t *low, const uint8_t *high, uint8_t *out)
{
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < 32; l++)
            out[32 * j + l] = (uint8_t)((low[j / 2 * 32 + l] >> (j % 2 * 4) & 15) |
                                        (high ? (high[l] >> j & 1) << 4 : 0));
}

/* Codes [k0, k0 + n) of a row, as packed: of 8 bits signed. */
static void codes_of(const struct sv_quant *q, int32_t row, int32_t k0, int32_t n, uint8_t *out)
{
    const int64_t at = (int64_t)row * (q->step ? q->step : 1) * q->cols + k0;
    switch (q->code) {
    case SV_CODE_Q6_K:
        codes_of_q6_k(block_of(q, row, k0), out);
        return;
    case SV_CODE_Q4_K:
        codes_of_k(block_of(q, row, k0) + 16, NULL, out);
        return;
    case SV_CODE_Q5_K:
        codes_of_k(block_of(q, row, k0) + 48, block_of(q, row, k0) + 16, out);
        return;
    case SV_CODE_Q8_0:
        for (size_t k = 0; k < (size_t)n; k += 32)
            memcpy(out + k, block_of(q, row, k0 + (int32_t)k) + 2, 32);
        return;
    case SV_CODE_F8:
    case SV_CODE_I8:
        memcpy(out, (const uint8_t *)q->data + at, (size_t)n);
        return;
    case SV_CODE_MXFP4:
    case SV_CODE_NVFP4:
        for (int32_t k = 0; k < n; k++)
            out[k] = ((const uint8_t *)q->data)[(at + k) / 2] >> (k % 2 * 4) & 15;
        return;
    case SV_CODE_Q4_0:
    case SV_CODE_IQ4_NL:
    case SV_CODE_GG_MXFP4:
        for (int32_t k = 0; k < n; k += 32) {
            const uint8_t *p = block_of(q, row, k0 + k) + (q->code == SV_CODE_GG_MXFP4 ? 1 : 2);
            for (int i = 0; i < 16; i++) {
                out[k + i] = p[i] & 15;
                out[k + 16 + i] = p[i] >> 4;
            }
        }
        return;
    default:
        SV_REQUIRE(is_words(q));
        codes_of_words(q, row, k0, n, out);
    }
}

/* ---------------------------------------------------------------- scales of the file */

/* Index of the scale of (row, group of k) in safetensors. */
static int64_t scale_index(const struct sv_quant *q, int32_t row, int32_t k)
{
    const int64_t groups = (q->cols + q->block_cols - 1) / q->block_cols;
    if (is_columns(q))
        return (int64_t)(k / q->block_cols) * q->rows + row;
    return (int64_t)row * (q->step ? q->step : 1) / q->block_rows * groups + k / q->block_cols;
}

static unsigned zero_of(const struct sv_quant *q, int32_t row, int32_t k)
{
    const int per_word = q->code == SV_CODE_INT8 || q->code == SV_CODE_GPTQ8 ? 4 : 8;
    const int32_t g = k / q->block_cols, groups = q->cols / q->block_cols;
    if (q->code == SV_CODE_AWQ)
        return word_bits(q->zeros, (int64_t)g * q->rows + row / 8 * 8 + awq_order[row % 8], 8);
    if (is_columns(q))
        return word_bits(q->zeros, (int64_t)g * q->rows + row, per_word);
    return word_bits((const uint32_t *)q->zeros + (int64_t)(row / per_word) * groups + g,
                     row % per_word, per_word);
}

/* Scale, and minimum or zero point, of row r of a unit at column k: entry e of a chunk. */
static void put_scale(const struct sv_codes *c, int32_t row, int32_t k, int r, int e, uint8_t *head)
{
    const struct sv_quant *q = &c->q;
    const size_t n = scale_bytes(c->scale);
    uint8_t *scale = head + ((size_t)e * UNIT + (size_t)r) * n;
    uint8_t *min = head + mins_at(c) + (size_t)e * UNIT + (size_t)r;
    if (c->scale == SV_SCALE_U8) {
        const uint8_t *s = block_of(q, row, k) + 4;
        const int j = k % 256 / 32;
        *scale = (uint8_t)(j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        *min = (uint8_t)(j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4);
        return;
    }
    if (c->scale == SV_SCALE_I8)
        *scale = block_of(q, row, k)[192 + k % 256 / 16];
    else if (sv_quant_block(q->code))
        memcpy(scale, block_of(q, row, k), n);
    else
        memcpy(scale, (const uint8_t *)q->scales + (size_t)scale_index(q, row, k) * n, n);
    if (q->zeros)
        *min = (uint8_t)zero_of(q, row, k);
}

static void put_factors(const struct sv_codes *c, int32_t row, int32_t k, int r, uint8_t *head)
{
    uint8_t *to = head + factors_at(c) + 2 * (size_t)r;
    if (c->scale == SV_SCALE_U8) {
        memcpy(to, block_of(&c->q, row, k), 2);
        memcpy(to + 2 * UNIT, block_of(&c->q, row, k) + 2, 2);
    } else if (c->scale == SV_SCALE_I8) {
        memcpy(to, block_of(&c->q, row, k) + 208, 2);
    }
}

/* ---------------------------------------------------------------- packing */

/* Some bits of the codes of n vectors, packed: byte i % 4, bits from i / 4 * bits on. */
static void put_bits(uint8_t *line, const uint8_t (*v)[UNIT], int n, int bits, int from)
{
    for (int l = 0; l < UNIT; l++) {
        uint32_t word = 0;
        for (int i = 0; i < n; i++)
            word |= (uint32_t)(v[i][l] >> from & ((1 << bits) - 1)) << (i % 4 * 8 + i / 4 * bits);
        memcpy(line + l * 4, &word, 4);
    }
}

static void put_step(const struct sv_codes *c, uint8_t *to, const uint8_t (*v)[UNIT])
{
    for (int i = 0; c->order == SV_WCOMP_QUADS && c->kind >= SV_CODES_8 && i < 32; i++)
        for (int r = 0; r < UNIT; r++)
            to[i / 4 * LINE + r * 4 + i % 4] = (uint8_t)(v[i][r] ^ 128);
    if (c->kind >= SV_CODES_8) {
        if (c->order != SV_WCOMP_QUADS)
            memcpy(to, v, 32 * UNIT);
        return;
    }
    for (int j = 0; j < 4; j++)
        put_bits(to + j * LINE, v + 8 * j, 8, 4, 0);
    if (c->kind == SV_CODES_5_MIN)
        put_bits(to + 4 * LINE, v, 32, 1, 4);
    for (int j = 0; j < 2 && c->kind == SV_CODES_6; j++)
        put_bits(to + (4 + j) * LINE, v + 16 * j, 16, 2, 4);
}

void sv_codes_pack(const struct sv_codes *c, int32_t u, uint8_t *to)
{
    const struct sv_quant *q = &c->q;
    const int32_t left = q->rows - u * UNIT, rows = left < UNIT ? left : UNIT;
    uint8_t code[UNIT][SV_CODES_CHUNK];
    memset(to, 0, c->unit_bytes);
    memset(code, 0, sizeof code);
    for (int32_t k0 = 0; k0 < q->cols; k0 += SV_CODES_CHUNK) {
        const int32_t n = q->cols - k0 < SV_CODES_CHUNK ? q->cols - k0 : SV_CODES_CHUNK;
        for (int32_t r = 0; r < rows; r++) {
            codes_of(q, u * UNIT + r, k0, n, code[r]);
            put_factors(c, u * UNIT + r, k0, r, to);
            for (int32_t e = 0; e * c->group < n; e++)
                put_scale(c, u * UNIT + r, k0 + e * c->group, r, e, to);
        }
        to += c->head_bytes;
        for (int32_t k = 0; k < n; k += SV_CODES_STEP, to += c->step_bytes) {
            uint8_t v[32][UNIT];
            for (int i = 0; i < 32; i++) {
                for (int r = 0; c->order == SV_WCOMP_PAIRS && r < UNIT / 2; r++)
                    memcpy(&v[i][2 * r], &code[i % 2 * 8 + r][k + i / 2 * 2], 2);
                for (int r = 0; c->order == SV_WCOMP_QUADS && r < UNIT; r++)
                    v[i][r] = code[r][k + i];
            }
            for (int r = 0; c->order == SV_WCOMP_ROWS && r < UNIT; r++)
                memcpy(v[2 * r], &code[r][k], 32);
            put_step(c, to, (const uint8_t(*)[UNIT])v);
        }
    }
}

/* ---------------------------------------------------------------- products */

static void expand(const struct sv_gemm_span *s, int32_t n0, int32_t n, enum sv_dtype as)
{
    const struct sv_codes *c = s->item->codes;
    const struct sv_gemm_thread *t = s->thread;
#ifndef SV_NO_AVX512
    if (c->kind != SV_CODES_IN_PLACE) {
        sv_codes_expand_avx512(c, sv_codes_unit(c, s->item->w, n0 / UNIT), t->unit_w,
                               (size_t)c->q.cols * sizeof(uint16_t));
        return;
    }
#endif
    sv_cpu_gemm_expand(s->call->cpu)(&c->q, n0, n, as, t->unit_w, t->unit_row);
}

void sv_gemm_codes(const struct sv_gemm_span *s)
{
    const enum sv_dtype as = s->item->w_dtype;
    const size_t row_bytes = (size_t)s->call->k * sv_dtype_bytes(as);
    struct sv_gemm_item item = *s->item;
    struct sv_gemm_span one = *s;
#ifndef SV_NO_AVX2
    if (item.kern == sv_gemm_kern_avx2(as, true) && sv_gemm_codes_few_avx2(s))
        return;
#endif
    one.item = &item;
    item.codes = NULL;
    for (int32_t n0 = s->n0; n0 < s->n1; n0 += UNIT) {
        const int32_t n = s->n1 - n0 < UNIT ? s->n1 - n0 : UNIT;
        expand(s, n0, n, as);
        /* kernels index weight rows from the matrix's first */
        item.w = (const void *)((uintptr_t)s->thread->unit_w - (size_t)n0 * row_bytes);
        one.n0 = n0;
        one.n1 = n0 + n;
        item.kern->run(&one);
    }
}
