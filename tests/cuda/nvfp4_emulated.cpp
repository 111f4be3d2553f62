/*
 * nvfp4_emulated.cpp - the two parts of a scale times a matrix's factor (nvfp4_parts.cuh): with every code they give the
 * value of docs/formats.md, the sign of zeros included, for factors of all kinds of mantissas and every scale in range.
 */
#include "backend/cuda/nvfp4_parts.cuh"

extern "C" {
#include "backend/quant.h"
}

#include <cmath>
#include <cstdio>
#include <cstring>

namespace {

/* What is not right of a factor with every scale. */
int check(float factor)
{
    int n_bad = 0;
    for (uint32_t e4m3 = 1; e4m3 < 0x7f; e4m3++) {
        const float scale = sv_f8_to_f32((uint8_t)e4m3);
        if (!(std::fabs(scale * factor) < 4))
            continue;
        const uint32_t parts = nvfp4_parts_of(sv_codes_e5m3(e4m3), factor * 256), high = (parts & 0xffff) * 0x10001u,
                       low = (parts >> 16) * 0x10001u;
        for (uint32_t c = 0; c < 16; c += 2) {
            const uint32_t code = sv_codes_e2m1(c | (c + 1) << 16, 0), got = gpu_fma2(code, high, gpu_mul2(code, low));
            for (uint32_t i = 0; i < 2; i++) {
                const float product = sv_e2m1[c + i] * scale, value = product * factor;
                if ((uint16_t)(got >> 16 * i) != sv_f32_to_bf16(value) && n_bad++ < 3)
                    printf("%a * %a * %a: %04x\n", sv_e2m1[c + i], scale, factor, got >> 16 * i & 0xffff);
            }
        }
    }
    return n_bad;
}
}

int main(int, char **)
{
    /* Ties and near ties of either product are among these last. */
    static const float more[] = {0, 0x1p-20f, -0x1p-20f, 0x1p-80f * 1.01f, 0x1.cccccp-9f, 0x1.06p-8f, 0x1.2cccccp-9f, 0x1.055556p-8f,
                                 0x1.b1745cp-8f, -0x1.e99998p-8f, 0x1.0b3334p-8f, 0x1.8d5554p-8f};
    int n_bad = 0;
    for (uint32_t m = 0; m < 1u << 23; m += 1021) {
        const uint32_t bits = (m & 1) << 31 | (110 + m % 9) << 23 | m;
        float factor;
        memcpy(&factor, &bits, 4);
        n_bad += check(factor);
    }
    for (float f : more)
        n_bad += check(f);
    printf("nvfp4 parts: %s\n", n_bad ? "FAILED" : "passed");
    return n_bad != 0;
}
