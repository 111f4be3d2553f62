/*
 * simd_plain.h - the vector operations of the kernel templates in portable C: four lanes through
 * the compiler's vector extension, which becomes SSE2 or NEON where those are the baseline.
 *
 * Included by vec_plain.c only. v_fma is a product and a sum, each rounded: no machine may contract
 * it. Must not: use any instruction-set intrinsic.
 */
#ifndef SV_SIMD_PLAIN_H
#define SV_SIMD_PLAIN_H

#include "backend/quant.h"

#include <math.h>
#include <string.h>

#include "backend/device.h"

#define SIMD_W 4
#define SIMD_QB 2 /* queries and vectors of a register block in attention */
#define SIMD_NV 4
#define SIMD_NV1 4 /* vectors of a block of one query */
#define SIMD_TABLE sv_cpu_vec_plain
#define SIMD_LOCALS /* see simd_avx512.h */

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));

static inline vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
/* There is no way past the caches. */
static inline void v_stream(float *p, vf v)
{
    v_store(p, v);
}
static inline void v_fence(void)
{
}
/* Lanes from n on are 0. */
static inline vf v_load_n(const float *p, int n)
{
    float t[SIMD_W] = {0};
    memcpy(t, p, (size_t)n * sizeof *p);
    return v_load(t);
}
static inline void v_store_n(float *p, vf v, int n)
{
    memcpy(p, &v, (size_t)n * sizeof *p);
}
static inline vf v_set1(float x)
{
    return (vf){x, x, x, x};
}
static inline vf v_add(vf a, vf b)
{
    return a + b;
}
static inline vf v_sub(vf a, vf b)
{
    return a - b;
}
static inline vf v_mul(vf a, vf b)
{
    return a * b;
}
static inline vf v_div(vf a, vf b)
{
    return a / b;
}
static inline vf v_fma(vf a, vf b, vf c)
{
    return a * b + c;
}
static inline vf v_sel(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}
/* The second operand when either is NaN, like the x86 instruction. */
static inline vf v_max(vf a, vf b)
{
    return v_sel(a > b, a, b);
}
static inline vf v_min(vf a, vf b)
{
    return v_sel(a < b, a, b);
}
static inline vf v_zero_below(vf x, float limit, vf y) /* x < limit ? 0 : y */
{
    return v_sel(x < v_set1(limit), v_set1(0), y);
}
static inline vf v_where_ge(vf x, vf t, vf y) /* x >= t ? y : 0 */
{
    return v_sel(x >= t, y, v_set1(0));
}
/* Round to an integer, |x| < 2^22. */
static inline vf v_rint(vf x)
{
    const vf magic = v_set1(12582912.0f);
    return (x + magic) - magic;
}
/* x * 2^n for integral n in [-126, 127]. */
static inline vf v_scale2(vf x, vf n)
{
    vu e = (vu) __builtin_convertvector(n, vi);
    return x * (vf)((e + 127) << 23);
}
static inline float v_hsum(vf v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}
static inline float v_hmax(vf v)
{
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}
/* Lanes i with lo <= lane0 + i < hi keep v, the others become fill. */
static inline vf v_keep(vf v, int lane0, int lo, int hi, float fill)
{
    const vi i = (vi){0, 1, 2, 3} + lane0;
    return v_sel((i >= lo) & (i < hi), v, v_set1(fill));
}
static inline int v_nan_mask(vf v)
{
    vi m = v != v;
    return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8);
}
static inline int v_ge_mask(vf a, vf b)
{
    vi m = a >= b;
    return (m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8);
}
static inline vf v_load_bf16(const uint16_t *p)
{
    return (vf){sv_bf16_to_f32(p[0]), sv_bf16_to_f32(p[1]), sv_bf16_to_f32(p[2]),
                sv_bf16_to_f32(p[3])};
}
/* e4m3 codes that are not NaN. */
static inline vf v_load_f8(const uint8_t *p)
{
    return (vf){sv_f8_to_f32(p[0]), sv_f8_to_f32(p[1]), sv_f8_to_f32(p[2]), sv_f8_to_f32(p[3])};
}
static inline vf v_load_bf16_n(const uint16_t *p, int n)
{
    float t[SIMD_W] = {0};
    for (int i = 0; i < n; i++)
        t[i] = sv_bf16_to_f32(p[i]);
    return v_load(t);
}
static inline void v_store_bf16_n(uint16_t *p, vf v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = sv_f32_to_bf16(v[i]);
}
static inline void v_store_bf16(uint16_t *p, vf v)
{
    v_store_bf16_n(p, v, SIMD_W);
}
static inline vf v_load_f16_n(const uint16_t *p, int n)
{
    float t[SIMD_W] = {0};
    for (int i = 0; i < n; i++)
        t[i] = sv_f16_to_f32(p[i]);
    return v_load(t);
}
/* dst[d * ld + i] = row i element d: SIMD_W rows of SIMD_W columns (f32), twice the columns for
 * bf16. */
static inline void v_transpose_f32(float *dst, int ld, const float *const *rows, int d)
{
    for (int i = 0; i < SIMD_W; i++)
        for (int j = 0; j < SIMD_W; j++)
            dst[j * ld + i] = rows[i][d + j];
}
static inline void v_transpose_bf16(float *dst, int ld, const uint16_t *const *rows, int d)
{
    for (int i = 0; i < SIMD_W; i++)
        for (int j = 0; j < 2 * SIMD_W; j++)
            dst[j * ld + i] = sv_bf16_to_f32(rows[i][d + j]);
}

#endif
