/*
 * hip_fp16.h (stub) - see hip_runtime.h beside.
 */
#pragma once
#include <hip/hip_runtime.h>

typedef _Float16 __half;
STUB float __half2float(__half h)
{
    return (float)h;
}
