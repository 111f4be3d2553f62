/*
 * dtype.c - how many bytes an element takes, what a type is called, and what an f16 is worth.
 *
 * Called by everything that has elements in memory, also by programs that measure or check kernels
 * without a device's other code. Must not: need another file.
 */
#include "backend/weight.h"
#include "base/base.h"

size_t sv_dtype_bytes(enum sv_dtype t)
{
    static const uint8_t bytes[] = {4, 2, 2, 4, 1, 1, 1, 8};
    SV_REQUIRE((unsigned)t < sizeof bytes);
    return bytes[t];
}

const char *sv_dtype_name(enum sv_dtype t)
{
    static const char *const name[] = {"f32", "bf16", "f16", "i32", "i8", "f8", "u8", "i64"};
    return (unsigned)t < sizeof name / sizeof name[0] ? name[t] : "?";
}

float sv_f16_to_f32(uint16_t h)
{
    union {
        uint32_t u;
        float f;
    } v;
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31)
        v.u = sign | 0x7f800000u | man << 13;
    else if (exp)
        v.u = sign | (exp + 112) << 23 | man << 13;
    else {
        v.f = (float)man * 0x1p-24f;
        v.u |= sign;
    }
    return v.f;
}
