/*
 * gemm_int8_codes.h - template: scales and codes of quantized weights, for products with
 * activations in int8 (gemm_int8.h, gemm_int8_amx.c), which define vectors of sixteen weight rows.
 *
 * Must not: round.
 */
#include "backend/cpu/codes.h"
#include "backend/cpu/gemm.h"

#define UNIT SV_GEMM_UNIT
#define MUST_INLINE static inline __attribute__((always_inline))
#define STEPS (SV_CODES_CHUNK / SV_CODES_STEP)
#define QUADS (SV_CODES_STEP / 4)
#define AHEAD 4096 /* prefetch distance in bytes */

/* ---------------------------------------------------------------- the next units */

/* Their lines, prefetched a few at a time while others are multiplied: all at once they would wait
 * for one another, and the products for them. */
struct soon {
    uintptr_t at;
    int32_t left, each;
};

/* Of n bytes, in so many calls of ask_soon. */
static struct soon soon_of(uintptr_t at, size_t n, int32_t calls)
{
    const int32_t lines = (int32_t)((n + 63) / 64);
    return (struct soon){at, lines, (lines + calls - 1) / calls};
}

UNCHECKED MUST_INLINE void ask_soon(struct soon *q)
{
    for (int32_t i = 0; i < q->each && q->left > 0; i++, q->left--, q->at += 64)
        __builtin_prefetch((const void *)q->at, 0, 2);
}

/* ---------------------------------------------------------------- scales of weights */

UNCHECKED MUST_INLINE vf scale_at(enum sv_codes_scale as, const uint8_t *head, int e)
{
    switch (as) {
    case SV_SCALE_F32:
        return f_load((const float *)(const void *)head + e * UNIT);
    case SV_SCALE_F16:
        return f_halves((const uint16_t *)(const void *)head + e * UNIT);
    case SV_SCALE_BF16:
        return f_brains((const uint16_t *)(const void *)head + e * UNIT);
    case SV_SCALE_I8:
        return f_signed(head + e * UNIT);
    default:
        return f_bytes(head + e * UNIT);
    }
}

/* Factors of a chunk's codes, which count from 0, and subtrahends: n entries of sixteen rows each,
 * exact. */
UNCHECKED static void scales_of(const struct sv_codes *c, const uint8_t *head, int n, float *by,
                                float *minus)
{
    const enum sv_codes_scale as = c->scale;
    const bool mins = as == SV_SCALE_U8 || c->q.zeros;
    const int bytes = as == SV_SCALE_F32 ? 4 : as <= SV_SCALE_BF16 ? 2 : 1;
    const uint8_t *min = head + (size_t)c->n_scales * UNIT * (size_t)bytes;
    const uint8_t *factors = min + (mins ? c->n_scales * UNIT : 0);
    const float middle = c->kind == SV_CODES_6 ? 32 : c->kind == SV_CODES_4_MIN ? 8 : 128;
    vf d = f_set(1), dmin = d;
    if (as == SV_SCALE_U8 || as == SV_SCALE_I8)
        d = f_halves((const uint16_t *)(const void *)factors);
    if (as == SV_SCALE_U8)
        dmin = f_halves((const uint16_t *)(const void *)factors + UNIT);
    for (int e = 0; e < n; e++) {
        const vf v = f_mul(d, scale_at(as, head, e));
        f_store(by + e * UNIT, v);
        f_store(minus + e * UNIT,
                as == SV_SCALE_U8 ? f_mul(dmin, f_bytes(min + e * UNIT))
                : mins ? f_mul(v, f_add(f_bytes(min + e * UNIT), f_set((float)c->q.zero_add)))
                       : f_mul(v, f_set(middle)));
    }
}

/* ---------------------------------------------------------------- codes */

/* Quad q of a step: four codes of sixteen rows, a byte each. */
UNCHECKED MUST_INLINE vi quad_of(const int bits, const uint8_t *step, const int q)
{
    if (bits == 8)
        return i_load(step + q * 64);
    const vi low = i_and(i_right(i_load(step + q / 2 * 64), q % 2 * 4), 0x0f0f0f0f);
    if (bits == 5)
        return i_or(low, i_and(i_right(i_load(step + 4 * 64), q - 4), 0x10101010));
    if (bits == 6)
        return i_or(low,
                    i_and(i_right(i_load(step + (4 + q / 4) * 64), q % 4 * 2 - 4), 0x30303030));
    return low;
}

static int bits_of(const struct sv_codes *c)
{
    return c->kind == SV_CODES_4_MIN   ? 4
           : c->kind == SV_CODES_5_MIN ? 5
           : c->kind == SV_CODES_6     ? 6
                                       : 8;
}

MUST_INLINE int32_t steps_at(const struct sv_codes *c, int32_t k0)
{
    const int32_t n = (c->q.cols - k0) / SV_CODES_STEP;
    return n < STEPS ? n : STEPS;
}

/* A chunk of n steps at `at`: its codes as bytes, [step][quad], and [n_scales] multipliers and as
 * many subtrahends. first: nothing was prefetched. Returns the next chunk. */
UNCHECKED static const uint8_t *expand_chunk(const struct sv_codes *c, const uint8_t *at, int n,
                                             bool first, uint8_t *code, float *scales)
{
    const int bits = bits_of(c);
    scales_of(c, at, (n * SV_CODES_STEP + c->group - 1) / c->group, scales,
              scales + c->n_scales * UNIT);
    at += c->head_bytes;
    for (int s = 0; s < n; s++, at += c->step_bytes) {
        for (int i = 0; i < c->step_bytes && first; i += 64)
            __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)i + AHEAD), 0, 2);
#pragma GCC unroll 8
        for (int q = 0; q < QUADS; q++, code += 64)
            i_store(code, bits == 4   ? quad_of(4, at, q)
                          : bits == 5 ? quad_of(5, at, q)
                          : bits == 6 ? quad_of(6, at, q)
                                      : quad_of(8, at, q));
    }
    return at;
}
