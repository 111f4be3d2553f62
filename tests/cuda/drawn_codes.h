/*
 * drawn_codes.h - random matrices in the codes of codes.cuh, every code of
 * theirs, and the values that they have.
 *
 * For moe_emulated.cpp and gemm_emulated.cpp, with src/backend/gpu/codes.cu
 * beside them. Must not: hold codes that are NaN.
 */
#ifndef TESTS_CUDA_DRAWN_CODES_H
#define TESTS_CUDA_DRAWN_CODES_H

#include "backend/cuda/gemm.h"
extern "C" {
#include "backend/quant.h"
}

#include <algorithm>
#include <cmath>
#include <vector>

struct drawn_codes {
    int32_t code = -1;           /* enum sv_codes_code; -1: none are drawn */
    float global = 0.00123f;     /* NVFP4's factor */
    std::vector<uint8_t> codes;  /* (rows, cols) of `bits` each; of K-quants super-blocks */
    std::vector<uint32_t> words; /* (rows, tiles of cols) */

    static uint32_t bits_of(float f)
    {
        uint32_t u;
        memcpy(&u, &f, 4);
        return u;
    }
    float drawn(sv_rng &rng, float scale, bool half)
    {
        const float f = scale * (0.5f + (float)sv_rng_below(&rng, 1000) / 1000) *
                        (sv_rng_below(&rng, 9) ? 1 : -1);
        return half ? sv_bf16_to_f32(sv_f32_to_bf16(f)) : f;
    }
    static uint16_t half_of(float f) /* from 2^-24 on, to a nearby number */
    {
        int e;
        const float m = std::frexp(f, &e);
        return (uint16_t)(e < -13 ? (int)(f * 0x1p24f)
                                  : (e + 14) << 10 | (int)((m * 2 - 1) * 1024));
    }
    /* Super-blocks of any bytes, d of either sign and dmin from 2^-6 to 2^9 times it. */
    void draw_k(sv_rng &rng, int32_t cols, std::vector<float> &value)
    {
        const int32_t n = sv_codes_k_bytes((sv_codes_code)code),
                      n_blocks = (int32_t)value.size() / SV_K_COLS;
        codes.resize((size_t)n_blocks * n);
        for (uint8_t &c : codes)
            c = (uint8_t)sv_rng_below(&rng, 256);
        for (int32_t b = 0; b < n_blocks; b++) {
            const float d =
                0.002f / std::sqrt((float)cols) * (0.5f + (float)sv_rng_below(&rng, 1000) / 1000);
            const uint32_t odd = sv_rng_below(&rng, 16);
            uint16_t h = half_of(d),
                     m = half_of(std::ldexp(d, odd > 9 ? 3 : (int)sv_rng_below(&rng, 16) - 6));
            h = odd == 1 ? 0 : (uint16_t)(h | (odd < 4) << 15);
            m = odd == 2 ? 0 : (uint16_t)(m | (odd == 3) << 15);
            uint8_t *block = &codes[(size_t)b * n];
            memcpy(block + (code == SV_CODES_K6 ? 208 : 0), &h, 2);
            if (code != SV_CODES_K6)
                memcpy(block + 2, &m, 2);
        }
        sv_quant q = {};
        q.code = code == SV_CODES_K4   ? SV_CODE_Q4_K
                 : code == SV_CODES_K5 ? SV_CODE_Q5_K
                                       : SV_CODE_Q6_K;
        q.rows = (int32_t)(value.size() / cols);
        q.cols = cols;
        q.data = codes.data();
        sv_quant_rows(&q, 0, q.rows, value.data());
        for (float &v : value)
            v = sv_bf16_to_f32(sv_f32_to_bf16(v));
    }
    /* value: (rows, cols), in bf16 */
    void draw(sv_rng &rng, int32_t of, int32_t cols, std::vector<float> &value)
    {
        const size_t n_k = sv_tiles(cols), rows = value.size() / cols;
        const int32_t bits = sv_codes_bits((sv_codes_code)of);
        const float small = 1 / std::sqrt((float)cols) /
                            (of <= SV_CODES_F8_WIDE ? 150
                             : of < SV_CODES_I4     ? 75
                                                    : 5);
        code = of;
        if (of >= SV_CODES_K4) {
            draw_k(rng, cols, value);
            return;
        }
        codes.assign(value.size() * bits / 8, 0);
        words.resize(rows * n_k);
        for (uint8_t &c : codes) {
            c = (uint8_t)sv_rng_below(&rng, 256);
            if (of <= SV_CODES_F8_WIDE && (c & 0x7f) == 0x7f)
                c = 0x81;
        }
        for (size_t i = 0; i < words.size(); i++) {
            float scale[4] = {};
            int32_t zero = 8;
            for (float &f : scale)
                f = i % 23 == 5 ? 0
                                : drawn(rng, small, of != SV_CODES_F8_WIDE && of != SV_CODES_I8);
            if (of == SV_CODES_I4 || of == SV_CODES_I4_HALF)
                zero = (int32_t)sv_rng_below(&rng, 17);
            words[i] = bits_of(scale[0]);
            if (of == SV_CODES_I4)
                words[i] = words[i] >> 16;
            if (of == SV_CODES_I4_HALF) { /* 2^-8 to 2^-5 */
                words[i] = 0x1c00 + sv_rng_below(&rng, 0xc00);
                scale[0] = sv_f16_to_f32((uint16_t)words[i]);
            }
            if (of == SV_CODES_I4 || of == SV_CODES_I4_HALF)
                words[i] |= (uint32_t)sv_f32_to_bf16(128.0f + (float)zero) << 16;
            if (of == SV_CODES_I8_TWO ||
                of == SV_CODES_I4_HALF_TWO) { /* 2^-13 to 2^-5, of either sign */
                words[i] = 0;
                for (int j = 0; j < 2; j++) {
                    const uint32_t h =
                        (of == SV_CODES_I8_TWO ? 0x0800 : 0x1c00) + sv_rng_below(&rng, 0xc00);
                    words[i] |= (h | sv_rng_below(&rng, 2) << 15) << 16 * j;
                    scale[j] = sv_f16_to_f32((uint16_t)(words[i] >> 16 * j));
                }
            }
            if (of == SV_CODES_I4_TWO)
                words[i] = words[i] >> 16 | bits_of(scale[1]);
            if (of == SV_CODES_MX4) {
                words[i] = 0;
                for (int j = 0; j < 2; j++) {
                    const uint32_t e8m0 = sv_rng_below(&rng, 5) ? 115 + sv_rng_below(&rng, 8)
                                                                : sv_rng_below(&rng, 128);
                    scale[j] = sv_e8m0_to_f32((uint8_t)e8m0);
                    words[i] |= (uint32_t)sv_f32_to_bf16(scale[j] * 0x1p126f) << 16 * j;
                }
            }
            if (of == SV_CODES_NV4) {
                words[i] = 0;
                for (int j = 0; j < 4; j++) {
                    const uint32_t e4m3 = sv_rng_below(&rng, 5) ? 40 + sv_rng_below(&rng, 40)
                                                                : 1 + sv_rng_below(&rng, 12);
                    words[i] |= sv_codes_e5m3(e4m3) << 8 * j;
                    scale[j] = sv_f8_to_f32((uint8_t)e4m3);
                }
            }
            for (size_t c = i % n_k * SV_TILE; c < std::min((i % n_k + 1) * SV_TILE, (size_t)cols);
                 c++) {
                const size_t at = i / n_k * cols + c;
                const int32_t nibble = codes[at * bits / 8] >> 4 * (at & 1) & 15;
                float v;
                if (of == SV_CODES_MX4)
                    v = sv_e2m1[nibble] * scale[c % SV_TILE / 32];
                else if (of <= SV_CODES_F8_WIDE)
                    v = sv_f8_to_f32(codes[at]) * scale[0];
                else if (of == SV_CODES_I8_TWO)
                    v = (float)(int8_t)codes[at] * scale[c % SV_TILE / 32];
                else if (of == SV_CODES_I8)
                    v = (float)(int8_t)codes[at] * scale[0];
                else if (of == SV_CODES_NV4)
                    v = sv_e2m1[nibble] * scale[c % SV_TILE / 16] * global;
                else
                    v = (float)(nibble - zero) *
                        scale[of == SV_CODES_I4_TWO || of == SV_CODES_I4_HALF_TWO ? c % SV_TILE / 32
                                                                                  : 0];
                value[at] = sv_bf16_to_f32(sv_f32_to_bf16(v));
            }
        }
    }
    size_t bytes(int32_t rows, int32_t cols) const
    {
        return sv_codes_bytes(rows, cols, sv_codes_bits((sv_codes_code)code));
    }
    /* Matrix `which` of several of so many rows, as upload.cu does. */
    void tiles(sv_cuda *cu, int32_t which, int32_t rows, int32_t cols, uint8_t *to) const
    {
        const int32_t bits = sv_codes_bits((sv_codes_code)code);
        const float factor = 256 * global;
        if (code >= SV_CODES_K4) {
            sv_cuda_codes_pack_k(cu,
                                 &codes[(size_t)which * rows * cols / SV_K_COLS *
                                        sv_codes_k_bytes((sv_codes_code)code)],
                                 0, rows, cols, (sv_codes_code)code, to);
            return;
        }
        sv_cuda_codes_pack(cu, &codes[(size_t)which * rows * cols * bits / 8],
                           &words[(size_t)which * rows * sv_tiles(cols)], 0, rows, cols,
                           (sv_codes_code)code, to);
        memcpy(to + sv_codes_factor_at(rows, cols, bits), &factor, sizeof factor);
    }
};

#endif
