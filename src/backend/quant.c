/*
 * quant.c - weights in fewer bits: what is known of each packing, and values in plain C
 * (quant_rows.h), the reference of all faster expansions.
 *
 * Called by load, model, the CPU backend and tests through quant.h. Must not: allocate, or check
 * outside bytes (load does).
 */
#define QUANT_EXPAND sv_quant_expand
#include "backend/quant_rows.h"

const float sv_e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
const float sv_iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                             1,    13,   25,  38,  53,  69,  89,  113};

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

void sv_quant_rows(const struct sv_quant *q, int32_t first, int32_t n, float *out)
{
    sv_quant_expand(q, first, n, SV_F32, out, NULL);
}
