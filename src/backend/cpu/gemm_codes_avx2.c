/*
 * gemm_codes_avx2.c - quantized weights in the file's codes on AVX2: products of one or two rows of
 * input, and values for those of more.
 *
 * Entered by codes.c (sv_gemm_codes_few_avx2) and gemm.c (sv_quant_expand_avx2) after cpuid said
 * yes. In bf16 mode 32 weights of a row at a time become values in registers: codes of 4 bits and
 * mantissas of e4m3 index a table of a group's sixteen bf16 values, other codes are converted,
 * multiplied and rounded. Must not: give a weight another value than quant.c does (zeros may differ
 * in sign), add in another order than gemm_dot.h, or read past the last code.
 */
#define QUANT_EXPAND expand_any
#include "backend/cpu/codes.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/simd_avx2.h"

static sv_quant_expand_fn expand_any;
#include "backend/quant_rows.h"

#define MUST_INLINE static inline __attribute__((always_inline))

/* Columns that become values at a time, weight rows of a tile, most rows of input. */
enum { STEP = 32, TILE = 4, FEW = 2 };

typedef __m256i vi;

struct row {
    const uint8_t *code;          /* its first */
    int64_t scale, zero;          /* index of its first scale; word of its first zero point */
    int shift;                    /* of its zero points in their words */
    bool fits;                    /* what is rounded is within the limits of round_fast */
    vi lo, hi;                    /* bytes of a table's values, the same in both halves */
    float scales[16], minima[16]; /* of the current block; of int8 zero points */
};

/* ---------------------------------------------------------------- rounding to bf16 */

/* 0, NaN, or within 2^-110 and 2^112: adds 1.5 * 2^16 times the power of two, a number whose last
 * bit is a bf16 mantissa's, and subtracts it. */
MUST_INLINE vf round_fast(vf v)
{
    const vf magic = v_set1(0x1.8p16f),
             power = _mm256_and_ps(v, _mm256_castsi256_ps(_mm256_set1_epi32(-0x800000)));
    return _mm256_fnmadd_ps(power, magic, v_fma(power, magic, v));
}

MUST_INLINE vf round_any(vf v)
{
    uint16_t half[SIMD_W];
    v_store_bf16(half, v);
    return v_load_bf16(half);
}

MUST_INLINE void round_all(vf *v, const int n, bool fits)
{
    if (__builtin_expect(fits, 1)) {
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            v[i] = round_fast(v[i]);
    } else {
#pragma GCC unroll 4
        for (int i = 0; i < n; i++)
            v[i] = round_any(v[i]);
    }
}

/* Whether products of codes with it are: 2^-100 to 2^100. */
MUST_INLINE bool fits(float scale)
{
    union {
        float f;
        uint32_t u;
    } v = {scale};
    return (v.u >> 23 & 255) - 27 < 200;
}

MUST_INLINE float finite_half(const uint8_t *p, bool *fits)
{
    *fits &= (p[1] & 0x7c) != 0x7c;
    return _cvtsh_ss((uint16_t)(p[0] | p[1] << 8));
}

/* ---------------------------------------------------------------- bytes */

MUST_INLINE vi both(__m128i half)
{
    return _mm256_broadcastsi128_si256(half);
}

MUST_INLINE vi load_twice(const uint8_t *p)
{
    return both(_mm_loadu_si128((const __m128i *)(const void *)p));
}

MUST_INLINE vi load_32(const uint8_t *p)
{
    return _mm256_loadu_si256((const vi *)(const void *)p);
}

MUST_INLINE vi bits_of(vi bytes, int from, int mask)
{
    return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(from)),
                            _mm256_set1_epi8((char)mask));
}

/* Of 32: fours of bytes, even ones in the lower half. */
MUST_INLINE vi by_fours(vi bytes)
{
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

/* 0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17 ... in the lower half, 4, 12, 5 ... in the upper one. */
MUST_INLINE vi paired(vi bytes)
{
    return _mm256_shuffle_epi8(
        by_fours(bytes), both(_mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)));
}

/* 32 codes of 4 bits, paired: two neighbours a byte, or the first sixteen in the low bits. */
MUST_INLINE vi neighbours(const uint8_t *p)
{
    const vi b = _mm256_shuffle_epi8(load_twice(p),
                                     _mm256_setr_epi64x(0x0501050104000400, 0x0d090d090c080c08,
                                                        0x0703070306020602, 0x0f0b0f0b0e0a0e0a));
    return bits_of(_mm256_blend_epi16(b, _mm256_srli_epi16(b, 4), 0xaa), 0, 15);
}

MUST_INLINE vi halves(const uint8_t *p)
{
    const vi b = _mm256_shuffle_epi8(load_twice(p),
                                     _mm256_setr_epi64x(0x0b030a0209010800, 0x0b030a0209010800,
                                                        0x0f070e060d050c04, 0x0f070e060d050c04));
    return bits_of(_mm256_srlv_epi64(b, _mm256_setr_epi64x(0, 4, 0, 4)), 0, 15);
}

/* ---------------------------------------------------------------- tables */

/* v0: values of codes 0 to 3 and 8 to 11, v1: of the others; all are bf16 numbers. */
MUST_INLINE void set_table(struct row *r, vi v0, vi v1)
{
    const vi bytes = _mm256_shuffle_epi8(
        _mm256_or_si256(_mm256_srli_epi32(v0, 16), v1),
        both(_mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15)));
    r->lo = _mm256_permute4x64_epi64(bytes, 0x88);
    r->hi = _mm256_permute4x64_epi64(bytes, 0xdd);
}

/* Of v * a - b, rounded. */
MUST_INLINE void set_rounded(struct row *r, vf v0, vf v1, float a, float b)
{
    vf v[2] = {_mm256_fmsub_ps(v0, v_set1(a), v_set1(b)),
               _mm256_fmsub_ps(v1, v_set1(a), v_set1(b))};
    round_all(v, 2, r->fits);
    set_table(r, _mm256_castps_si256(v[0]), _mm256_castps_si256(v[1]));
}

/* Of (code - zero) * a - b, rounded. */
MUST_INLINE void set_linear(struct row *r, float zero, float a, float b)
{
    set_rounded(r, v_sub(_mm256_setr_ps(0, 1, 2, 3, 8, 9, 10, 11), v_set1(zero)),
                v_sub(_mm256_setr_ps(4, 5, 6, 7, 12, 13, 14, 15), v_set1(zero)), a, b);
}

/* Values of codes from `first` on, in the order of set_table. */
MUST_INLINE vf quarters(const float values[16], int first)
{
    return _mm256_set_m128(_mm_loadu_ps(values + 8 + first), _mm_loadu_ps(values + first));
}

MUST_INLINE void set_e2m1(struct row *r)
{
    set_table(r, _mm256_castps_si256(quarters(sv_e2m1, 0)),
              _mm256_castps_si256(quarters(sv_e2m1, 4)));
}

/* Sixteen bf16 numbers, paired. Operators, so that the compiler sees that narrow() undoes it. */
MUST_INLINE void widen(vi words, vf v[2])
{
    v[0] = (vf)((__v8su)words << 16);
    v[1] = (vf)((__v8su)words & 0xffff0000u);
}

/* In order. */
MUST_INLINE vi narrow(const vf v[2])
{
    const vi words = (vi)((__v8su)v[0] >> 16 | (__v8su)v[1]);
    return _mm256_permute4x64_epi64(
        _mm256_shuffle_epi8(
            words, both(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15))),
        0xd8);
}

MUST_INLINE void look_up(const struct row *r, vi codes, vf v[4])
{
    const vi lo = _mm256_shuffle_epi8(r->lo, codes), hi = _mm256_shuffle_epi8(r->hi, codes);
    widen(_mm256_unpacklo_epi8(lo, hi), v);
    widen(_mm256_unpackhi_epi8(lo, hi), v + 2);
}

/* e4m3: values of the mantissas of normal codes, less the exponent, which is added to the bf16
 * numbers' own, and from 8 on of subnormal codes. */
MUST_INLINE void set_f8(struct row *r, float scale)
{
    const vf a = v_set1(scale);
    const vi one = _mm256_setr_epi32(1 << 23, 1 << 23, 1 << 23, 1 << 23, 0, 0, 0, 0);
    vf v[2] = {
        v_mul(a, _mm256_setr_ps(0x8p-9f, 0x9p-9f, 0xap-9f, 0xbp-9f, 0, 0x1p-9f, 0x2p-9f, 0x3p-9f)),
        v_mul(a, _mm256_setr_ps(0xcp-9f, 0xdp-9f, 0xep-9f, 0xfp-9f, 0x4p-9f, 0x5p-9f, 0x6p-9f,
                                0x7p-9f))};
    round_all(v, 2, true);
    set_table(r, _mm256_sub_epi32(_mm256_castps_si256(v[0]), one),
              _mm256_sub_epi32(_mm256_castps_si256(v[1]), one));
}

#define SAME(byte) byte *ONES, byte *ONES, byte *ONES, byte *ONES
#define ONES 0x0101010101010101u

/* Any scale. */
MUST_INLINE vf f8_value(const uint8_t *p, float scale)
{
    const vi seven_bits = _mm256_set1_epi32(0x7f),
             code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)),
             nan = _mm256_cmpeq_epi32(_mm256_and_si256(code, seven_bits), seven_bits);
    return round_any(v_mul(_mm256_or_ps(v_load_f8(p), _mm256_castsi256_ps(nan)), v_set1(scale)));
}

MUST_INLINE void look_up_f8(const struct row *r, const uint8_t *p, vf v[4])
{
    if (!__builtin_expect(r->fits, 1)) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            v[i] = f8_value(p + 8 * i, r->scales[0]);
        return;
    }
    /* 7, the exponent, 8, the sign; GCC 12 would make them anew for each row */
    static const _Alignas(32) uint64_t bytes[] = {SAME(0x07), SAME(0x78), SAME(0x08), SAME(0x80)};
    const vi *c = (const vi *)(const void *)bytes;
    __asm__("" : "+r"(c));
    const vi codes = paired(load_32(p)), none = _mm256_setzero_si256(),
             exponent = _mm256_and_si256(codes, c[1]), sign = _mm256_and_si256(codes, c[3]),
             small = _mm256_and_si256(_mm256_cmpeq_epi8(exponent, none), c[2]),
             index = _mm256_or_si256(_mm256_and_si256(codes, c[0]), small),
             nan = _mm256_cmpeq_epi8(_mm256_or_si256(codes, c[3]), _mm256_cmpeq_epi8(none, none)),
             lo = _mm256_shuffle_epi8(r->lo, index),
             hi = _mm256_or_si256(_mm256_xor_si256(_mm256_shuffle_epi8(r->hi, index), sign), nan);
    /* saturates to NaN */
    widen(_mm256_adds_epu16(_mm256_unpacklo_epi8(lo, hi),
                            _mm256_slli_epi16(_mm256_unpacklo_epi8(exponent, none), 4)),
          v);
    widen(_mm256_adds_epu16(_mm256_unpackhi_epi8(lo, hi),
                            _mm256_slli_epi16(_mm256_unpackhi_epi8(exponent, none), 4)),
          v + 2);
}

/* ---------------------------------------------------------------- numbers */

MUST_INLINE vf numbers(const void *p, const bool is_signed)
{
    const __m128i b = _mm_loadl_epi64(p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(b) : _mm256_cvtepu8_epi32(b));
}

/* Scales and minima of a block of Q4_K or Q5_K. */
MUST_INLINE void set_k(struct row *r, const uint8_t *p)
{
    uint32_t w[3], scale[2], min[2];
    memcpy(w, p + 4, sizeof w);
    scale[0] = w[0] & 0x3f3f3f3f;
    scale[1] = (w[2] & 0x0f0f0f0f) | (w[0] >> 2 & 0x30303030);
    min[0] = w[1] & 0x3f3f3f3f;
    min[1] = (w[2] >> 4 & 0x0f0f0f0f) | (w[1] >> 2 & 0x30303030);
    v_store(r->scales, v_mul(v_set1(finite_half(p, &r->fits)), numbers(scale, false)));
    v_store(r->minima, v_mul(v_set1(finite_half(p + 2, &r->fits)), numbers(min, false)));
}

MUST_INLINE void set_q6_k(struct row *r, const uint8_t *p)
{
    const vf d = v_set1(finite_half(p + 208, &r->fits));
#pragma GCC unroll 2
    for (int i = 0; i < 16; i += 8) {
        v_store(r->scales + i, v_mul(d, numbers(p + 192 + i, true)));
        v_store(r->minima + i, v_mul(v_load(r->scales + i), v_set1(32)));
    }
}

/* Group j of 32 of a block of Q5_K or Q6_K: code * scale - minimum. */
MUST_INLINE void k_values(const struct row *r, const bool six, const uint8_t *p, int j, vf v[4])
{
    const vi low = load_32(six ? p + j / 4 * 64 + j % 2 * 32 : p + 48 + j / 2 * 32),
             high = load_32(six ? p + 128 + j / 4 * 32 : p + 16),
             four = bits_of(low, six ? j % 4 / 2 * 4 : j % 2 * 4, 15),
             top = six ? bits_of(high, j % 4 * 2, 3) : bits_of(high, j, 1),
             codes = by_fours(_mm256_or_si256(four, _mm256_slli_epi16(top, 4)));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const int g = six ? 2 * j + i / 2 : j;
        const vi spread = _mm256_shuffle_epi8(
            codes, both(_mm_setr_epi32(-256 + 4 * i, -255 + 4 * i, -254 + 4 * i, -253 + 4 * i)));
        v[i] =
            _mm256_fmsub_ps(_mm256_cvtepi32_ps(spread), v_set1(r->scales[g]), v_set1(r->minima[g]));
    }
}

MUST_INLINE void scaled(vf v[4], float a0, float a1)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        v[i] = v_mul(v[i], v_set1(i < 2 ? a0 : a1));
}

/* ---------------------------------------------------------------- formats */

/* Bytes of 256 columns. */
MUST_INLINE size_t bytes_of(const enum sv_quant_code code)
{
    switch (code) {
    case SV_CODE_F8:
    case SV_CODE_I8:
    case SV_CODE_INT8:
        return 256;
    case SV_CODE_MXFP4:
    case SV_CODE_NVFP4:
    case SV_CODE_INT4:
        return 128;
    case SV_CODE_Q8_0:
        return 8 * 34;
    case SV_CODE_GG_MXFP4:
        return 8 * 17;
    case SV_CODE_Q5_K:
        return 176;
    case SV_CODE_Q6_K:
        return 210;
    default:
        return 144;
    }
}

MUST_INLINE bool is_k(const enum sv_quant_code code)
{
    return code >= SV_CODE_Q4_K && code <= SV_CODE_Q6_K;
}

/* Columns of a block. */
MUST_INLINE int32_t block_of(const enum sv_quant_code code, const struct sv_quant *q)
{
    return is_k(code) ? 256 : code == SV_CODE_NVFP4 || code > SV_CODE_INT8 ? STEP : q->block_cols;
}

MUST_INLINE int32_t block_end(const enum sv_quant_code code, const struct sv_quant *q, int32_t k)
{
    const int32_t n = block_of(code, q);
    return q->cols - k < n ? q->cols : k + n;
}

static bool is_fast(const struct sv_quant *q)
{
    const bool columns = q->code >= SV_CODE_AWQ && q->code <= SV_CODE_GPTQ8;
    const int32_t block = block_of(q->code, q);
    return q->cols % STEP == 0 && !q->g_idx && !columns && (block % STEP == 0 || block >= q->cols);
}

MUST_INLINE void open_row(const enum sv_quant_code code, const struct sv_quant *q, int32_t row,
                          struct row *r)
{
    const int64_t at = (int64_t)row * (q->step ? q->step : 1);
    const int32_t per_word = code == SV_CODE_INT8 ? 4 : 8;
    r->code = (const uint8_t *)q->data + (size_t)at * ((size_t)q->cols * bytes_of(code) / 256);
    r->fits = true;
    if (code == SV_CODE_MXFP4 || code == SV_CODE_NVFP4 || code == SV_CODE_GG_MXFP4)
        set_e2m1(r);
    if (code > SV_CODE_INT8)
        return;
    const int64_t groups = ceil_div(q->cols, q->block_cols);
    r->scale = at / q->block_rows * groups;
    r->zero = row / per_word * groups;
    r->shift = row % per_word * (32 / per_word);
}

/* Block g of columns; above: the row before, or NULL. */
MUST_INLINE void open_block(const enum sv_quant_code code, const struct sv_quant *q, int32_t g,
                            const struct row *above, struct row *r)
{
    const uint8_t *p = r->code + (size_t)g * bytes_of(code) * (size_t)block_of(code, q) / 256,
                  *s = q->scales;
    float *a = r->scales, *zero = r->minima;
    r->fits = true;
    switch (code) {
    case SV_CODE_Q4_K:
    case SV_CODE_Q5_K:
        set_k(r, p);
        return;
    case SV_CODE_Q6_K:
        set_q6_k(r, p);
        return;
    case SV_CODE_MXFP4:
    case SV_CODE_GG_MXFP4:
        a[0] = sv_e8m0_to_f32(code == SV_CODE_MXFP4 ? s[r->scale + g] : *p);
        return;
    case SV_CODE_NVFP4:
        a[0] = sv_f8_to_f32(s[r->scale + 2 * g]);
        a[1] = sv_f8_to_f32(s[r->scale + 2 * g + 1]);
        r->fits = fits(q->global);
        return;
    case SV_CODE_Q4_0:
        set_linear(r, 8, finite_half(p, &r->fits), 0);
        return;
    case SV_CODE_IQ4_NL:
        set_rounded(r, quarters(sv_iq4_nl, 0), quarters(sv_iq4_nl, 4), finite_half(p, &r->fits), 0);
        return;
    case SV_CODE_Q8_0:
        a[0] = finite_half(p, &r->fits);
        return;
    default:
        a[0] = scale_at(q, r->scale + g);
        r->fits = fits(a[0]);
    }
    if (code == SV_CODE_F8 && above && above->scales[0] == a[0]) {
        r->lo = above->lo;
        r->hi = above->hi;
    } else if (code == SV_CODE_F8) {
        set_f8(r, a[0]);
    } else if (code != SV_CODE_I8) {
        const uint32_t middle = code == SV_CODE_INT4 ? 8 : 128;
        zero[0] = (float)(q->zeros ? ((const uint32_t *)q->zeros)[r->zero + g] >> r->shift &
                                         (2 * middle - 1)
                                   : middle);
        if (code == SV_CODE_INT4)
            set_linear(r, zero[0], a[0], 0);
    }
}

/* The values of STEP columns from k on, of block g. */
MUST_INLINE void values(const enum sv_quant_code code, const struct sv_quant *q, struct row *r,
                        int32_t k, int32_t g, vf v[4])
{
    const uint8_t *p = r->code + (size_t)(is_k(code) ? 256 * g : k) * bytes_of(code) / 256;
    const float *a = r->scales;
    const int j = k % 256 / STEP;
    switch (code) {
    case SV_CODE_F8:
        look_up_f8(r, p, v);
        return;
    case SV_CODE_INT4:
        look_up(r, neighbours(p), v);
        return;
    case SV_CODE_MXFP4:
        look_up(r, neighbours(p), v);
        scaled(v, a[0], a[0]);
        return;
    case SV_CODE_GG_MXFP4:
        look_up(r, halves(p + 1), v);
        scaled(v, a[0], a[0]);
        return;
    case SV_CODE_Q4_0:
    case SV_CODE_IQ4_NL:
        look_up(r, halves(p + 2), v);
        return;
    case SV_CODE_Q4_K:
        set_linear(r, 0, a[j], r->minima[j]);
        look_up(r, bits_of(paired(load_32(p + 16 + j / 2 * 32)), j % 2 * 4, 15), v);
        return;
    case SV_CODE_NVFP4:
        look_up(r, neighbours(p), v);
        scaled(v, a[0], a[1]);
        scaled(v, q->global, q->global);
        break;
    case SV_CODE_Q5_K:
    case SV_CODE_Q6_K:
        k_values(r, code == SV_CODE_Q6_K, p, j, v);
        break;
    default:
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            v[i] = numbers(p + 8 * i + (code == SV_CODE_Q8_0 ? 2 : 0), code != SV_CODE_INT8);
            if (code == SV_CODE_INT8)
                v[i] = v_sub(v[i], v_set1(r->minima[0]));
        }
        scaled(v, a[0], a[0]);
    }
    round_all(v, 4, r->fits);
}

/* ---------------------------------------------------------------- products and values */

/* out[i * nx + j] = w[n + i] . x[j]; what is behind the last row repeats it. */
MUST_INLINE void tile(const enum sv_quant_code code, const int nx, const struct sv_gemm_span *s,
                      int32_t n, float *out)
{
    const struct sv_quant *q = &s->item->codes->q;
    const size_t row_bytes = (size_t)q->cols * bytes_of(code) / 256;
    /* short rows prefetch the next tile's */
    const size_t ahead = row_bytes <= 2048 ? row_bytes * TILE : 512;
    const size_t ldx = (size_t)sv_gemm_kpad(q->cols);
    const float *x = s->xp;
    struct row r[TILE];
    vf sum[TILE * FEW];
#pragma GCC unroll 4
    for (int i = 0; i < TILE; i++)
        open_row(code, q, n + i < s->n1 ? n + i : s->n1 - 1, &r[i]);
#pragma GCC unroll 8
    for (int i = 0; i < TILE * nx; i++)
        sum[i] = _mm256_setzero_ps();
    for (int32_t k = 0, g = 0; k < q->cols; g++) {
        const int32_t end = block_end(code, q, k);
#pragma GCC unroll 4
        for (int i = 0; i < TILE; i++)
            open_block(code, q, g, i ? &r[i - 1] : NULL, &r[i]);
        for (; k < end; k += STEP)
#pragma GCC unroll 4
            for (int i = 0; i < TILE; i++) {
                vf v[4];
                __builtin_prefetch((const void *)((uintptr_t)r[i].code +
                                                  (size_t)k * bytes_of(code) / 256 + ahead));
                values(code, q, &r[i], k, g, v);
#pragma GCC unroll 8
                for (int j = 0; j < 4 * nx; j++)
                    sum[i * nx + j / 4] =
                        v_fma(v[j % 4], v_load(x + (size_t)(j / 4) * ldx + k + j % 4 * 8),
                              sum[i * nx + j / 4]);
            }
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE * nx; i++)
        out[i] = v_hsum(sum[i]);
}

MUST_INLINE void run_few(const enum sv_quant_code code, const struct sv_gemm_span *s)
{
    const int nm = s->call->m1 - s->call->m0;
    float out[TILE * FEW];
    for (int32_t n = s->n0; n < s->n1; n += TILE) {
        if (nm == 1)
            tile(code, 1, s, n, out);
        else
            tile(code, FEW, s, n, out);
        sv_gemm_emit_plain(s, n, s->n1 - n < TILE ? s->n1 - n : TILE, s->call->m0, nm, out, nm);
    }
}

MUST_INLINE void expand_row(const enum sv_quant_code code, const struct sv_quant *q, int32_t row,
                            uint16_t *out)
{
    struct row r;
    open_row(code, q, row, &r);
    for (int32_t k = 0, g = 0; k < q->cols; g++) {
        const int32_t end = block_end(code, q, k);
        open_block(code, q, g, NULL, &r);
        for (; k < end; k += STEP) {
            vf v[4];
            values(code, q, &r, k, g, v);
            _mm256_storeu_si256((vi *)(void *)(out + k), narrow(v));
            _mm256_storeu_si256((vi *)(void *)(out + k + 16), narrow(v + 2));
        }
    }
}

/* ---------------------------------------------------------------- by format */

/* A span's products, or if it is NULL a row's values. */
static void run(const struct sv_quant *q, const struct sv_gemm_span *s, int32_t row, uint16_t *out)
{
    switch (q->code) {
#define RUN(code)                                                                                  \
    case code:                                                                                     \
        if (s)                                                                                     \
            run_few(code, s);                                                                      \
        else                                                                                       \
            expand_row(code, q, row, out);                                                         \
        return;
        RUN(SV_CODE_F8)
        RUN(SV_CODE_I8)
        RUN(SV_CODE_MXFP4)
        RUN(SV_CODE_NVFP4)
        RUN(SV_CODE_INT4)
        RUN(SV_CODE_INT8)
        RUN(SV_CODE_Q4_0)
        RUN(SV_CODE_Q8_0)
        RUN(SV_CODE_Q4_K)
        RUN(SV_CODE_Q5_K)
        RUN(SV_CODE_Q6_K)
        RUN(SV_CODE_IQ4_NL)
        RUN(SV_CODE_GG_MXFP4)
    default:
        SV_REQUIRE(false);
    }
}

bool sv_gemm_codes_few_avx2(const struct sv_gemm_span *s)
{
    const struct sv_quant *q = &s->item->codes->q;
    const bool few = s->item->w_dtype == SV_BF16 && s->call->m1 - s->call->m0 <= FEW && is_fast(q);
    if (few)
        run(q, s, 0, NULL);
    return few;
}

void sv_quant_expand_avx2(const struct sv_quant *q, int32_t first, int32_t n, enum sv_dtype to,
                          void *out, float *row)
{
    if (to != SV_BF16 || !is_fast(q)) {
        expand_any(q, first, n, to, out, row);
        return;
    }
    SV_REQUIRE(first >= 0 && n >= 0 && n <= q->rows - first);
    for (int32_t r = 0; r < n; r++)
        run(q, NULL, first + r, (uint16_t *)out + (size_t)r * (size_t)q->cols);
}
