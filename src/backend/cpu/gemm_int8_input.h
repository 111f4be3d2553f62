/*
 * gemm_int8_input.h - template: rows of activations in int8, packed for gemm_int8.h and
 * gemm_int8_amx.c.
 *
 * Packed input, for each 16 rows: [quad of k][columns] codes, or with INT8_ROWS [128 of k][16 rows]
 * ones; [128 of k][columns] scales; then, for each of four lengths from 16 to 128, [length of
 * k][columns] sums of codes, times -1. docs/formats.md has the definition. Needs largest_bits and
 * code_16. Must not: let a row's codes depend on another row.
 */
#include "backend/cpu/gemm.h"

#include <string.h>

#ifndef INT8_ROWS
#define INT8_ROWS 0
#endif
#ifndef INT8_TALL /* rows of the largest tile; more are packed by sixteens */
#define INT8_TALL 0
#endif
#define GROUP 128 /* of k that share a scale in the input */
#define LENGTHS 4 /* of k that share one in weights: 16, 32, 64, 128 */

static size_t n_of(int32_t k, int32_t each)
{
    return (size_t)((k + each - 1) / each);
}

/* Words of a column before the sums of a length, or in all. */
static size_t sums_at(int32_t k, int length)
{
    size_t at = (size_t)k / 4 + n_of(k, GROUP);
    for (int i = 0; i < length; i++)
        at += n_of(k, 16 << i);
    return at;
}

static int cols_of(int32_t rows)
{
    return rows > INT8_TALL ? 16 : sv_gemm_tile_cols(rows);
}

static int length_of(int32_t group)
{
    return group >= 128 ? 3 : group == 64 ? 2 : group == 32 ? 1 : 0;
}

/* One group of a row: its scale, and codes and sums of its sixteens. */
struct coded {
    float scale;
    int8_t code[GROUP];
    int32_t sum[GROUP / 16];
};

UNCHECKED static void code_group(const float *x, int32_t n, struct coded *to)
{
    const uint32_t top = largest_bits(x, n);
    float largest;
    memcpy(&largest, &top, sizeof largest);
    /* bits of positive numbers are in the order of the numbers, then come infinity and NaN */
    const bool finite = top < 0x7f800000u, zero = largest < 0x1p-100f;
    to->scale = !finite ? __builtin_nanf("") : zero ? 0 : largest / 127.0f;
    memset(to->sum, 0, sizeof to->sum);
    if (!finite || zero) {
        memset(to->code, 0, sizeof to->code);
        return;
    }
    const float inverse = 127.0f / largest;
    for (int32_t i = 0; i < n; i += 16)
        to->sum[i / 16] = code_16(to->code + i, x + i, inverse);
}

/* Row r of the block at `to`. */
UNCHECKED static void pack_row(const float *x, int32_t k, int32_t *to, int r, int cols)
{
    int8_t *rows = (int8_t *)to;
    to += r;
    float *scale = (float *)to + (size_t)k / 4 * (size_t)cols;
    for (int32_t k0 = 0; k0 < k; k0 += GROUP) {
        const int32_t n = k - k0 < GROUP ? k - k0 : GROUP;
        struct coded g;
        code_group(x + k0, n, &g);
        scale[(size_t)k0 / GROUP * (size_t)cols] = g.scale;
        if (INT8_ROWS)
            memcpy(rows + (size_t)k0 * 16 + r * n, g.code, (size_t)n);
        for (int32_t i = 0; i < n && !INT8_ROWS; i += 4)
            memcpy(to + (size_t)(k0 + i) / 4 * (size_t)cols, g.code + i, 4);
        for (int l = 0; l < LENGTHS; l++) {
            float *sums = (float *)to + (sums_at(k, l) + (size_t)(k0 >> (4 + l))) * (size_t)cols;
            for (int i = 0; l && i < GROUP / 16 >> l; i++)
                g.sum[i] = g.sum[2 * i] + g.sum[2 * i + 1];
            for (int i = 0; i << (4 + l) < n; i++, sums += cols)
                *sums = (float)-g.sum[i];
        }
    }
}

static void pack(const struct sv_gemm_call *c, void *xp, int i, int n)
{
    const int32_t rows = c->m1 - c->m0, blocks = (rows + 15) / 16;
    const int cols = cols_of(rows);
    const size_t words = sums_at(c->k, LENGTHS) * (size_t)cols;
    const int32_t end = (int32_t)((int64_t)blocks * (i + 1) / n);
    for (int32_t b = (int32_t)((int64_t)blocks * i / n); b < end; b++) {
        int32_t *to = (int32_t *)xp + (size_t)b * words;
        if (rows - b * 16 < cols)
            memset(to, 0, words * sizeof *to);
        for (int r = 0; r < 16 && b * 16 + r < rows; r++)
            pack_row(sv_gemm_row(c, c->m0 + b * 16 + r), c->k, to, r, cols);
    }
}
