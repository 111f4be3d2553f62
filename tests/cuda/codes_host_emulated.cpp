/*
 * codes_host_emulated.cpp - what codes_host.cu hands to the device of a matrix in integers of 8 bits: bytes and words of
 * scales have the values of the definition, and what has no place there is not taken; nor is NVFP4 out of range. Words of
 * FP8: each tile has its block's scale.
 */
#include "backend/cuda/codes_host.h"

extern "C" {
#include "backend/quant.h"
}

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

namespace {

/* Random bytes in groups of block columns; scales in bf16 or f16, the first as given. */
struct matrix {
    std::vector<uint32_t> codes;
    std::vector<uint16_t> scales;
    sv_quant q = {};

    matrix(int32_t rows, int32_t cols, int32_t block, sv_dtype type, float first)
        : codes((size_t)rows * cols / 4), scales((size_t)rows * (cols / block))
    {
        std::mt19937 rng(7);
        for (uint32_t &w : codes)
            w = rng();
        for (uint16_t &s : scales)
            s = type == SV_F16 ? (uint16_t)(rng() % 0x7c00) : sv_f32_to_bf16((float)(rng() % 1000 + 1) * 1e-4f);
        scales[0] = type == SV_F16 ? scales[0] : sv_f32_to_bf16(first);
        q.code = SV_CODE_INT8;
        q.rows = rows;
        q.cols = cols;
        q.data = codes.data();
        q.scales = scales.data();
        q.scale = type;
        q.block_rows = 1;
        q.block_cols = block;
    }
};

bool takes(const matrix &m, sv_role role)
{
    static sv_cuda cu;
    cu.act = SV_BF16;
    return sv_cuda_takes_codes((const sv_dev *)&cu, &m.q, role);
}

/* NVFP4 of one group whose scale is 448. */
bool takes_factor(float factor)
{
    static sv_cuda cu;
    const uint8_t codes[2 * 8] = {}, scales[2] = {1, 0x7e};
    sv_quant q = {};
    q.code = SV_CODE_NVFP4;
    q.rows = 2;
    q.cols = 16;
    q.data = codes;
    q.scales = scales;
    q.scale = SV_F8;
    q.block_rows = 1;
    q.block_cols = 16;
    q.global = factor;
    cu.act = SV_BF16;
    return sv_cuda_takes_codes((const sv_dev *)&cu, &q, SV_ROLE_Q);
}

/* Bytes times scales of the device's form, against the definition. */
int check(int32_t rows, int32_t cols, sv_dtype type)
{
    const matrix m(rows, cols, 32, type, 1e-3f);
    const int32_t n_tiles = (cols + 63) / 64;
    std::vector<uint8_t> bytes((size_t)rows * cols);
    std::vector<uint32_t> words((size_t)rows * n_tiles, 0xeeeeeeee);
    std::vector<float> want(cols);
    const sv_format f = sv_codes_format(&m.q, false);
    if (!takes(m, SV_ROLE_Q) || f.elem != SV_I8 || f.block_cols != 32 || f.scale != SV_F16)
        return printf("%d x %d is not taken\n", rows, cols), 1;
    sv_code_job job = {&m.q, SV_CODES_I8_TWO, 0, rows, bytes.data(), words.data()};
    sv_codes_share(&job, 0, 2);
    sv_codes_share(&job, 1, 2);
    for (int32_t r = 0; r < rows; r++) {
        sv_quant_rows(&m.q, r, 1, want.data());
        for (int32_t c = 0; c < cols; c++) {
            const uint32_t word = words[(size_t)r * n_tiles + c / 64];
            const float scale = sv_f16_to_f32((uint16_t)(word >> (c / 32 % 2 * 16)));
            const float got = (float)(int8_t)bytes[(size_t)r * cols + c] * scale;
            if (got != want[c])
                return printf("row %d column %d: %g, not %g\n", r, c, got, want[c]), 1;
        }
    }
    return 0;
}

int check_what_is_not_taken()
{
    const matrix good(8, 96, 32, SV_BF16, 1e-3f), small(8, 96, 32, SV_BF16, 1.5e-8f), large(8, 96, 32, SV_BF16, 1e5f),
        subnormal(8, 96, 32, SV_BF16, 0x1.8p-20f), zero(8, 96, 32, SV_BF16, 0), other(8, 96, 16, SV_BF16, 1e-3f);
    const int32_t zeros[3] = {};
    matrix points = good;
    points.q.zeros = zeros;
    return !takes(good, SV_ROLE_DOWN) || takes(good, SV_ROLE_EXPERT_DOWN) || takes(good, SV_ROLE_HEAD) ||
           takes(small, SV_ROLE_Q) || takes(large, SV_ROLE_Q) || !takes(subnormal, SV_ROLE_Q) || !takes(zero, SV_ROLE_Q) ||
           takes(other, SV_ROLE_Q) || takes(points, SV_ROLE_Q) || !takes_factor(0.0089f) || takes_factor(-0.009f) ||
           !takes_factor(0) || takes_factor(0x1p-81f) || takes_factor(NAN);
}
}

/* Rows row0 and those behind it, by threads that begin within a block. */
int check_blocks(int32_t rows, int32_t cols, int32_t row0, int32_t block_rows, int32_t block_cols)
{
    const int32_t across = (cols + block_cols - 1) / block_cols, n_tiles = (cols + 63) / 64;
    std::vector<uint8_t> codes((size_t)rows * cols), bytes((size_t)rows * cols);
    std::vector<float> scales((size_t)((rows + block_rows - 1) / block_rows) * across);
    std::vector<uint32_t> words((size_t)rows * n_tiles, 0xeeeeeeee);
    for (size_t i = 0; i < codes.size(); i++)
        codes[i] = (uint8_t)(i * 7 % 126);
    for (size_t i = 0; i < scales.size(); i++)
        scales[i] = 1 + (float)i;
    sv_quant q = {};
    q.code = SV_CODE_F8;
    q.rows = rows;
    q.cols = cols;
    q.data = codes.data();
    q.scales = scales.data();
    q.scale = SV_F32;
    q.block_rows = block_rows;
    q.block_cols = block_cols;
    sv_code_job job = {&q, SV_CODES_F8, row0, rows - row0, bytes.data(), words.data()};
    for (int i = 0; i < 3; i++)
        sv_codes_share(&job, i, 3);
    for (int32_t r = row0; r < rows; r++)
        for (int32_t kk = 0; kk < n_tiles; kk++) {
            float got;
            memcpy(&got, &words[(size_t)(r - row0) * n_tiles + kk], sizeof got);
            if (got != scales[(size_t)(r / block_rows) * across + kk * 64 / block_cols])
                return printf("blocks of %d x %d: row %d tile %d: %g\n", block_rows, block_cols, r, kk, got), 1;
        }
    return memcmp(bytes.data(), codes.data() + (size_t)row0 * cols, (size_t)(rows - row0) * cols) != 0;
}

int main(int, char **)
{
    const bool bad = check(8, 96, SV_BF16) || check(5, 32, SV_BF16) || check(66, 320, SV_F16) || check_what_is_not_taken() ||
                     check_blocks(300, 320, 64, 128, 128) || check_blocks(70, 200, 0, 1, 200) ||
                     check_blocks(70, 200, 64, 70, 200) || check_blocks(70, 256, 0, 1, 64);
    printf("int8 in groups of 32, words of FP8: %s\n", bad ? "FAILED" : "passed");
    return bad;
}
