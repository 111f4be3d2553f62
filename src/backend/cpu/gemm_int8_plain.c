/*
 * gemm_int8_plain.c - products with activations in int8 in plain C: the reference of the other
 * levels (gemm_int8.h).
 *
 * Entered through sv_gemm_kern_int8_plain by gemm.c. Must not: use an instruction set.
 */
#include "backend/cpu/gemm.h"

#include <math.h>
#include <string.h>

struct ints {
    int32_t v[SV_GEMM_UNIT];
};
#define vi struct ints
struct floats {
    float v[SV_GEMM_UNIT];
};
#define vf struct floats
#define EACH for (int l = 0; l < SV_GEMM_UNIT; l++)
#define LANES(type, value)                                                                         \
    do {                                                                                           \
        type out_;                                                                                 \
        EACH out_.v[l] = value;                                                                    \
        return out_;                                                                               \
    } while (0)

static inline vf f_set(float x)
{
    LANES(vf, x);
}
static inline vf f_load(const float *p)
{
    LANES(vf, p[l]);
}
static inline void f_store(float *p, vf a)
{
    memcpy(p, &a, sizeof a);
}
static inline vf f_add(vf a, vf b)
{
    LANES(vf, a.v[l] + b.v[l]);
}
static inline vf f_mul(vf a, vf b)
{
    LANES(vf, a.v[l] * b.v[l]);
}
static inline vf f_fma(vf a, vf b, vf c)
{
    LANES(vf, fmaf(a.v[l], b.v[l], c.v[l]));
}
static inline vf f_of(vi a)
{
    LANES(vf, (float)a.v[l]);
}
static inline vf f_halves(const uint16_t *p)
{
    LANES(vf, sv_f16_to_f32(p[l]));
}
static inline vf f_brains(const uint16_t *p)
{
    LANES(vf, sv_bf16_to_f32(p[l]));
}
static inline vf f_bytes(const uint8_t *p)
{
    LANES(vf, (float)p[l]);
}
static inline vf f_signed(const uint8_t *p)
{
    LANES(vf, (float)(int8_t)p[l]);
}
static inline vi i_zero(void)
{
    LANES(vi, 0);
}
static inline vi i_load(const uint8_t *p)
{
    vi a;
    memcpy(&a, p, sizeof a);
    return a;
}
static inline void i_store(uint8_t *p, vi a)
{
    memcpy(p, &a, sizeof a);
}
static inline vi i_and(vi a, int32_t mask)
{
    LANES(vi, a.v[l] & mask);
}
static inline vi i_or(vi a, vi b)
{
    LANES(vi, a.v[l] | b.v[l]);
}
/* By n bits, below 0 to the left. */
static inline vi i_right(vi a, int n)
{
    LANES(vi, (int32_t)(n < 0 ? (uint32_t)a.v[l] << -n : (uint32_t)a.v[l] >> n));
}
/* Adds the products of four bytes from 0 on and four signed ones. */
static inline vi i_dot(vi sum, vi w, int32_t x)
{
    uint8_t b[4 * SV_GEMM_UNIT];
    int8_t c[4];
    memcpy(b, &w, sizeof b);
    memcpy(c, &x, sizeof c);
    LANES(vi, sum.v[l] + b[4 * l] * c[0] + b[4 * l + 1] * c[1] + b[4 * l + 2] * c[2] +
                  b[4 * l + 3] * c[3]);
}

static uint32_t largest_bits(const float *x, int32_t n)
{
    uint32_t top = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t b;
        memcpy(&b, x + i, sizeof b);
        b &= 0x7fffffff;
        top = b > top ? b : top;
    }
    return top;
}

static int32_t code_16(int8_t *to, const float *x, float inverse)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        to[i] = (int8_t)lrintf(x[i] * inverse);
        sum += to[i];
    }
    return sum;
}

static void emit(const struct sv_gemm_span *s, int32_t n0, int32_t m, int32_t rows, const vf *sum)
{
    const int nn = s->n1 - n0 < SV_GEMM_UNIT ? s->n1 - n0 : SV_GEMM_UNIT;
    SV_REQUIRE(rows == 1);
    sv_gemm_emit_plain(s, n0, nn, m, 1, sum->v, 1);
}

#define INT8_TALL 1
#define INT8_KERN sv_gemm_kern_int8_plain
#include "backend/cpu/gemm_int8.h"
