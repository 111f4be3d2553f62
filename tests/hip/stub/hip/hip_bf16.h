/*
 * hip_bf16.h (stub) - bf16 as HIP names it, rounded to nearest even; see hip_runtime.h beside.
 */
#pragma once
#include <hip/hip_runtime.h>

struct __hip_bfloat16 {
    uint16_t x;
};
struct alignas(4) __hip_bfloat162 {
    __hip_bfloat16 x, y;
    __host__ __device__ __hip_bfloat162(__hip_bfloat16 a, __hip_bfloat16 b) : x(a), y(b)
    {
    }
};
STUB float __bfloat162float(__hip_bfloat16 h)
{
    return __uint_as_float((unsigned)h.x << 16);
}
STUB __hip_bfloat16 __float2bfloat16(float f)
{
    const unsigned u = __float_as_uint(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return {0x7fff};
    return {(uint16_t)((u + 0x7fffu + ((u >> 16) & 1)) >> 16)};
}
STUB __hip_bfloat16 __hadd(__hip_bfloat16 a, __hip_bfloat16 b)
{
    return __float2bfloat16(__bfloat162float(a) + __bfloat162float(b));
}
STUB __hip_bfloat162 __hadd2(__hip_bfloat162 a, __hip_bfloat162 b)
{
    return {__hadd(a.x, b.x), __hadd(a.y, b.y)};
}
