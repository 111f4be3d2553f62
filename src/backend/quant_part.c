/*
 * quant_part.c - a part of a matrix in fewer bits: some rows and columns of its codes and scales as
 * a matrix of its own, for a rank that has no more of it.
 *
 * Called by model at load. Codes, scales and zero points are each an array of lines of bytes; what
 * is whole lines behind each other is used where it is, the rest is copied. Must not: change a
 * code, or cut within a scale's block or a word.
 */
#include "backend/quant.h"

#include <string.h>

enum { ALIGN = 64 };

/* So many numbers of an array for so many rows or columns of the matrix. */
struct ratio {
    int32_t numbers, of;
};

/* The layout of an array in memory: lines of the matrix's rows, or of its columns (by_columns). */
struct array {
    const void *data;
    struct ratio lines, bytes; /* of a line */
    int32_t step;              /* lines from one to the next */
};

struct cut {
    const struct sv_slice *lines, *bytes; /* in rows and columns, or the other way round */
    int32_t n_lines, n_bytes;
    int32_t line_size; /* of the whole matrix, in the same */
};

static int32_t codes_per_word(enum sv_quant_code code)
{
    switch (code) {
    case SV_CODE_INT4:
    case SV_CODE_AWQ:
    case SV_CODE_GPTQ4:
        return 8;
    case SV_CODE_INT8:
    case SV_CODE_GPTQ8:
        return 4;
    default:
        return 1;
    }
}

static bool by_columns(const struct sv_quant *q)
{
    return q->code == SV_CODE_AWQ || q->code == SV_CODE_GPTQ4 || q->code == SV_CODE_GPTQ8;
}

/* ---------------------------------------------------------------- units */

/* A block that is smaller than the whole, and whole words. */
static int32_t unit(int32_t block, int32_t whole, int32_t words)
{
    const int32_t own = block < whole ? block : 1;
    return own % words == 0 ? own : words % own == 0 ? words : own * words;
}

void sv_quant_units(const struct sv_quant *q, int32_t *rows, int32_t *cols)
{
    const int32_t words = codes_per_word(q->code);
    const bool awq = q->code == SV_CODE_AWQ;
    *rows = 1;
    *cols = sv_quant_block(q->code);
    if (*cols)
        return;
    *rows = unit(by_columns(q) ? 1 : q->block_rows, q->rows, awq || q->zeros ? words : 1);
    *cols = q->g_idx ? 0 : unit(q->block_cols, q->cols, awq ? 1 : words);
}

static bool at_unit(struct sv_slice s, int32_t size, int32_t each)
{
    SV_REQUIRE(s.first >= 0 && s.n > 0 && s.first <= size - s.n);
    return s.n == size ||
           (each && s.first % each == 0 && (s.n % each == 0 || s.first + s.n == size));
}

/* ---------------------------------------------------------------- arrays */

static struct array codes_of(const struct sv_quant *q)
{
    const int32_t words = codes_per_word(q->code), block = sv_quant_block(q->code);
    const struct ratio one = {1, 1}, word = {(int32_t)sizeof(uint32_t), words};
    struct array a = {q->data, one, one, q->step ? q->step : 1};
    if (block)
        a.bytes = (struct ratio){sv_quant_block_bytes(q->code), block};
    else if (q->code == SV_CODE_AWQ || q->code == SV_CODE_INT4 || q->code == SV_CODE_INT8)
        a.bytes = word;
    else if (by_columns(q))
        a = (struct array){q->data, {1, words}, {(int32_t)sizeof(uint32_t), 1}, 1};
    else if (q->code == SV_CODE_MXFP4 || q->code == SV_CODE_NVFP4)
        a.bytes = (struct ratio){1, 2};
    return a;
}

static struct array scales_of(const struct sv_quant *q)
{
    const bool byte = q->code == SV_CODE_MXFP4 || q->code == SV_CODE_NVFP4;
    const int32_t size = byte ? 1 : (int32_t)sv_dtype_bytes(q->scale);
    if (by_columns(q))
        return (struct array){q->scales, {1, q->block_cols}, {size, 1}, 1};
    return (struct array){
        q->scales, {1, q->block_rows}, {size, q->block_cols}, q->step ? q->step : 1};
}

static struct array zeros_of(const struct sv_quant *q)
{
    const int32_t words = codes_per_word(q->code), size = (int32_t)sizeof(uint32_t);
    if (by_columns(q))
        return (struct array){q->zeros, {1, q->block_cols}, {size, words}, 1};
    return (struct array){q->zeros, {1, words}, {size, q->block_cols}, 1};
}

static size_t numbers(struct ratio r, int32_t n)
{
    return ((size_t)n + (size_t)r.of - 1) / (size_t)r.of * (size_t)r.numbers;
}

/* Of the block in which i is. */
static size_t begin_of(struct ratio r, int32_t i)
{
    return (size_t)(i / r.of) * (size_t)r.numbers;
}

/* Where the cut of the array begins: where it is, or in `to` from *at on, if that is there. */
static const void *put(const struct cut *c, const struct array *a, uint8_t *to, size_t *at)
{
    const size_t width = numbers(a->bytes, c->line_size), pitch = width * (size_t)a->step;
    const uint8_t *from = a->data;
    if (c->n_lines == 1 && c->n_bytes == 1 && c->bytes->n == c->line_size)
        return from + begin_of(a->lines, c->lines->first) * pitch;
    const void *begin = to ? to + *at : NULL;
    for (int32_t i = 0; i < c->n_lines; i++) {
        const uint8_t *line = from + begin_of(a->lines, c->lines[i].first) * pitch;
        for (size_t n = numbers(a->lines, c->lines[i].n); n > 0; n--, line += pitch)
            for (int32_t k = 0; k < c->n_bytes; k++) {
                const size_t size = numbers(a->bytes, c->bytes[k].n);
                if (to)
                    memcpy(to + *at, line + begin_of(a->bytes, c->bytes[k].first), size);
                *at += size;
            }
    }
    *at = (*at + ALIGN - 1) / ALIGN * ALIGN;
    return begin;
}

int64_t sv_quant_part(struct sv_quant *part, const struct sv_quant *q, const struct sv_slice *rows,
                      int32_t n_rows, struct sv_slice cols, void *to)
{
    const bool turned = by_columns(q);
    const struct cut c = {.lines = turned ? &cols : rows,
                          .bytes = turned ? rows : &cols,
                          .n_lines = turned ? 1 : n_rows,
                          .n_bytes = turned ? n_rows : 1,
                          .line_size = turned ? q->rows : q->cols};
    int32_t row_unit, col_unit, n = 0;
    size_t at = 0;
    sv_quant_units(q, &row_unit, &col_unit);
    bool ok = at_unit(cols, q->cols, col_unit);
    for (int32_t i = 0; i < n_rows; n += rows[i++].n)
        ok &= at_unit(rows[i], q->rows, row_unit) && (i + 1 == n_rows || rows[i].n % row_unit == 0);
    if (!ok)
        return -1;
    const struct array codes = codes_of(q), scales = scales_of(q), zeros = zeros_of(q);
    *part = *q;
    part->rows = n;
    part->cols = cols.n;
    part->data = put(&c, &codes, to, &at);
    if (sv_quant_block(q->code))
        return (int64_t)at;
    part->block_rows = q->block_rows < n ? q->block_rows : n;
    part->block_cols = q->block_cols < cols.n ? q->block_cols : cols.n;
    part->scales = put(&c, &scales, to, &at);
    if (at) /* line by line */
        part->step = 0;
    if (q->zeros)
        part->zeros = put(&c, &zeros, to, &at);
    return (int64_t)at;
}
