/*
 * quant_gguf.h - values of the blocks of GGUF tensors.
 *
 * Part of quant_rows.h, which includes it. Each function turns one block into f32; d and dmin are
 * f16. Must not: read beyond a block, or contract a product and a subtraction (the build forbids
 * it; both orders give the same bits, as the products are exact).
 */
#include "backend/quant.h"

static float f16_at(const uint8_t *p)
{
    return sv_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* Nibbles of 32 weights: the low ones come first. */
static void q4_0(const uint8_t *p, float *out)
{
    const float d = f16_at(p);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((p[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
    }
}

static void q8_0(const uint8_t *p, float *out)
{
    const float d = f16_at(p);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)p[2 + i];
}

static void iq4_nl(const uint8_t *p, float *out)
{
    const float d = f16_at(p);
    for (int i = 0; i < 16; i++) {
        out[i] = d * sv_iq4_nl[p[2 + i] & 15];
        out[i + 16] = d * sv_iq4_nl[p[2 + i] >> 4];
    }
}

static void mxfp4(const uint8_t *p, float *out)
{
    const float scale = sv_e8m0_to_f32(p[0]);
    for (int i = 0; i < 16; i++) {
        out[i] = sv_e2m1[p[1 + i] & 15] * scale + 0.0f; /* code 8 is 0 here, not -0 */
        out[i + 16] = sv_e2m1[p[1 + i] >> 4] * scale + 0.0f;
    }
}

/* Scale and minimum of group j of eight, six bits each in twelve bytes. */
static void k_scale(const uint8_t *s, int j, float *scale, float *min)
{
    const int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    const int m = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    *scale = (float)sc;
    *min = (float)m;
}

/* high: 32 bytes whose bit j is the fifth of a code in group j, or NULL. */
static void k_groups(const uint8_t *p, const uint8_t *high, const uint8_t *low, float *out)
{
    const float d = f16_at(p), dmin = f16_at(p + 2);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        float scale, min;
        k_scale(p + 4, j, &scale, &min);
        const float a = d * scale, b = dmin * min;
        for (int i = 0; i < 32; i++) {
            int code = low[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
            if (high)
                code |= (high[i] >> j & 1) << 4;
            out[j * 32 + i] = a * (float)code - b;
        }
    }
}

static void q4_k(const uint8_t *p, float *out)
{
    k_groups(p, NULL, p + 16, out);
}

static void q5_k(const uint8_t *p, float *out)
{
    k_groups(p, p + 16, p + 48, out);
}

/* Two halves of 128: 64 bytes of low nibbles, 32 of pairs of high bits, 8 scales each; d is
 * last. */
static void q6_k(const uint8_t *p, float *out)
{
    const float d = f16_at(p + 208);
#pragma GCC unroll 16
    for (int g = 0; g < 16; g++, out += 16) {
        const int half = g / 8, quarter = g / 2 % 4, l = g % 2 * 16;
        const uint8_t *low = p + 64 * half + quarter % 2 * 32 + l, *high = p + 128 + 32 * half + l;
        const float scale = d * (float)(int8_t)p[192 + g];
        for (int i = 0; i < 16; i++) {
            const int four = low[i] >> (quarter / 2 * 4) & 15, two = high[i] >> (2 * quarter) & 3;
            out[i] = scale * (float)((four | two << 4) - 32);
        }
    }
}

/* The values of n_blocks blocks that follow each other. */
static void gguf_blocks(enum sv_quant_code code, const uint8_t *in, int32_t n_blocks, float *out)
{
    static void (*const block[SV_CODES])(const uint8_t *, float *) = {
        [SV_CODE_Q4_0] = q4_0,     [SV_CODE_Q8_0] = q8_0, [SV_CODE_Q4_K] = q4_k,
        [SV_CODE_Q5_K] = q5_k,     [SV_CODE_Q6_K] = q6_k, [SV_CODE_IQ4_NL] = iq4_nl,
        [SV_CODE_GG_MXFP4] = mxfp4};
    SV_REQUIRE(block[code]);
    for (int32_t i = 0; i < n_blocks; i++)
        block[code](in + (size_t)i * (size_t)sv_quant_block_bytes(code),
                    out + (size_t)i * (size_t)sv_quant_block(code));
}
