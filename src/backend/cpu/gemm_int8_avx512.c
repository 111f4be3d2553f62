/*
 * gemm_int8_avx512.c - products with activations in int8 with AVX512-VNNI (gemm_int8.h).
 *
 * Entered through sv_gemm_kern_int8_avx512 by gemm.c after cpuid said yes. Must not: use more than
 * AVX-512 and VNNI.
 */
#if !defined(__clang__)
#pragma GCC target("avx512vnni") /* the Makefile's flags name what all *_avx512.c may use */
#endif
#include "backend/cpu/gemm.h"

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512vnni"))), apply_to = function)
#endif

#include "backend/cpu/int8_avx512.h"

/* Adds the products of four bytes from 0 on and four signed ones. */
ALWAYS vi i_dot(vi sum, vi w, int32_t x)
{
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x));
}

#define INT8_TALL 16
#define INT8_KERN sv_gemm_kern_int8_avx512
#include "backend/cpu/gemm_int8.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
