/*
 * quant.h - quantized weights: the layout of codes and scales in memory, and the one f32 value that
 * each weight has.
 *
 * Called by load (finding and checking), model (expanding at load), the CPU backend (expanding in a
 * product) and tests. docs/formats.md states the layouts and values. Must not: round a value twice,
 * or give a weight a value that depends on which rows are asked for.
 */
#ifndef SV_QUANT_H
#define SV_QUANT_H

#include "backend/device.h"

enum sv_quant_code {
    SV_CODE_NONE,
    /* safetensors: codes in data, scales beside them */
    SV_CODE_F8,    /* e4m3 (rows, cols), a scale for each block */
    SV_CODE_I8,    /* signed bytes (rows, cols), a scale for each block */
    SV_CODE_MXFP4, /* e2m1 (rows, cols / 2), low nibble first; e8m0 scales of 32 */
    SV_CODE_NVFP4, /* the same codes; e4m3 scales of 16, times one f32 */
    SV_CODE_INT4,  /* "pack-quantized": i32 words (rows, cols / 8), codes + 8 */
    SV_CODE_INT8,  /* the same, (rows, cols / 4), codes + 128 */
    SV_CODE_AWQ,   /* i32 words (cols, rows / 8), interleaved nibbles */
    SV_CODE_GPTQ4, /* i32 words (cols / 8, rows) */
    SV_CODE_GPTQ8, /* i32 words (cols / 4, rows) */
    /* GGUF: blocks of codes and scales, row after row */
    SV_CODE_Q4_0,
    SV_CODE_Q8_0,
    SV_CODE_Q4_K,
    SV_CODE_Q5_K,
    SV_CODE_Q6_K,
    SV_CODE_IQ4_NL,
    SV_CODE_GG_MXFP4,
    SV_CODES
};

/* What a published matrix (rows, cols) is made of; all pointers are borrowed. */
struct sv_quant {
    enum sv_quant_code code;
    int32_t rows, cols;
    const void *data;
    /* One for each block_rows x block_cols weights, (ceil(rows / block_rows), ceil(cols /
     * block_cols)); of AWQ and GPTQ transposed, (groups, rows). MXFP4: e8m0, NVFP4: e4m3. */
    const void *scales;
    enum sv_dtype scale; /* F32, BF16 or F16 of the others */
    int32_t block_rows, block_cols;
    /* Zero points, packed as the format packs them, or NULL: the middle of the codes. */
    const void *zeros;
    int32_t zero_add;     /* what is added to a stored zero point */
    const int32_t *g_idx; /* (cols) group of each column, or NULL: column / block_cols */
    float global;         /* NVFP4: factor of all weights */
    int32_t step;         /* MXFP4: from a row's codes and scales to the next row's; 0 is 1 */
};

const char *sv_quant_name(enum sv_quant_code code);
/* Weights and bytes of a GGUF block; 0: not such a code. */
int32_t sv_quant_block(enum sv_quant_code code);
int32_t sv_quant_block_bytes(enum sv_quant_code code);
/* Whether every value fits bf16. */
bool sv_quant_fits_bf16(enum sv_quant_code code);
/* Bytes of codes, scales, zero points and group indices. */
int64_t sv_quant_bytes(const struct sv_quant *q);

/* quant_part.c: multiples of rows and of columns that can be cut off; 0: the columns cannot be
 * divided. */
void sv_quant_units(const struct sv_quant *q, int32_t *rows, int32_t *cols);
/* n_rows ranges of rows, behind each other, and a range of columns as a matrix of its own, with the
 * same values. Returns the bytes that it takes beside the whole's, which are copied to `to`,
 * aligned to 64 (NULL: not yet), 0: none; -1: it begins or ends within a unit. */
int64_t sv_quant_part(struct sv_quant *part, const struct sv_quant *q, const struct sv_slice *rows,
                      int32_t n_rows, struct sv_slice cols, void *to);

/* The values of rows [first, first + n): out is (n, cols). */
void sv_quant_rows(const struct sv_quant *q, int32_t first, int32_t n, float *out);

/* The same as elements of `to`: f32, or bf16, each rounded to it once; row: (cols) scratch, of bf16
 * only. */
typedef void sv_quant_expand_fn(const struct sv_quant *q, int32_t first, int32_t n,
                                enum sv_dtype to, void *out, float *row);
sv_quant_expand_fn sv_quant_expand;

/* e4m3 ("fn"): no infinity, 0x7f and 0xff are NaN. */
static inline float sv_f8_to_f32(uint8_t code)
{
    union {
        uint32_t u;
        float f;
    } v = {(uint32_t)(code & 0x7f) << 20};
    const float big = v.f * 0x1p120f; /* exact, and right for subnormal codes */
    if ((code & 0x7f) == 0x7f)
        return __builtin_nanf("");
    return code & 0x80 ? -big : big;
}

/* The nearest e4m3 code, of two as near the even one; what is beyond 448 becomes 448. */
static inline uint8_t sv_f32_to_f8(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {x};
    const uint8_t sign = (uint8_t)(v.u >> 24 & 0x80);
    v.u &= 0x7fffffff;
    if (v.u > 0x7f800000)
        return sign | 0x7f;
    if (v.f < 0x1p-6f) /* subnormal codes; adding 1.5 * 2^14 rounds to multiples of 2^-9 */
        return sign | (uint8_t)((v.f + 0x1.8p14f - 0x1.8p14f) * 0x1p9f);
    if (v.f >= 448)
        return sign | 0x7e;
    return sign | (uint8_t)(((v.u + 0x7ffff + (v.u >> 20 & 1)) >> 20) - (120 << 3));
}

/* e8m0: a power of two; 255 is NaN. */
static inline float sv_e8m0_to_f32(uint8_t code)
{
    union {
        uint32_t u;
        float f;
    } v = {code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : (uint32_t)code << 23};
    return v.f;
}

/* What the codes of e2m1 and IQ4_NL are worth. */
extern const float sv_e2m1[16], sv_iq4_nl[16];

#endif
