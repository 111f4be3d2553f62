/*
 * codes.h - storage of quantized weights on the CPU: the codes of the file, in place or in the
 * order of the kernels.
 *
 * Made at load by weights.c (codes.c packs), multiplied by gemm.c and gemm_bf16_avx512.c, expanded
 * by gemm_codes_avx512.c. Included nowhere else. A product takes the weight's f32 value
 * (docs/formats.md), or in bf16 mode this value rounded to bf16 once: by expanding it, so that bits
 * are those of the expanded matrix. With activations in int8 codes are multiplied as they are
 * (gemm_int8.h).
 *
 * Packed, for AVX512-BF16, AMX and products of bytes:
 *
 *   matrix  [units]                           16 weight rows each, zeros where rows are missing
 *   unit    [chunks]                          256 of k, the last one may be shorter
 *   chunk   [scales][zero points or minima][factors of scales], whole lines; [steps]
 *           an entry of these is sixteen numbers, one a row
 *   step    32 of k, as 32 vectors of sixteen codes: pair of k by pair (SV_WCOMP_PAIRS), rows 0-7
 * and then 8-15, each row's two codes side by side; or row by row, the lower 16 of k first; or
 * column by column (SV_WCOMP_QUADS)
 *
 * Codes of 4 bits are nibbles of 32-bit words, one word a lane: line j has vectors 8 j to 8 j + 7,
 * the first four as the low nibbles of bytes 0 to 3, the others as the high ones. So a quad, four
 * vectors, is the bytes of one line. Bit 4 of codes of 5 is bit q of one more line's bytes for quad
 * q; bits 4 and 5 of codes of 6 are two bits each of two more lines', quads 0-3 and 4-7. A vector
 * of 8 bits is 16 bytes; but column by column they are lines of quads too, and count from 0.
 */
#ifndef SV_CPU_CODES_H
#define SV_CPU_CODES_H

#include "backend/cpu/cpu.h"
#include "backend/quant.h"

#define SV_CODES_CHUNK 256
#define SV_CODES_STEP 32
#define SV_CODES_SCALES (SV_CODES_CHUNK / 16) /* most of a row in a chunk */

/* Layout and values of codes. MIN: a minimum or a zero point is subtracted. */
enum sv_codes_kind {
    SV_CODES_IN_PLACE, /* as the file has them */
    SV_CODES_4,        /* table[code] * scale */
    SV_CODES_4_MIN,    /* code * scale - minimum: of plain int4 too, 8 * scale */
    SV_CODES_4_FACTOR, /* table[code] * scale * q.global */
    SV_CODES_5_MIN,
    SV_CODES_6, /* (code - 32) * scale */
    SV_CODES_8, /* signed */
    SV_CODES_8_MIN,
    SV_CODES_F8,
    SV_CODES_KINDS
};

enum sv_codes_scale {
    SV_SCALE_F32,
    SV_SCALE_F16,
    SV_SCALE_BF16,
    SV_SCALE_E8M0,
    SV_SCALE_E4M3,
    SV_SCALE_U8, /* times an f16 factor of the chunk; so are minima */
    SV_SCALE_I8  /* times an f16 factor of the chunk */
};

struct sv_codes {
    struct sv_quant q; /* the file's */
    enum sv_codes_kind kind;
    enum sv_codes_scale scale;
    enum sv_wcomp_order order;
    int32_t group;    /* of k that share a scale, within a chunk */
    int32_t n_scales; /* entries of a chunk */
    int32_t head_bytes, step_bytes;
    size_t unit_bytes;
    _Alignas(SV_ALIGN) float table[16]; /* of SV_CODES_4* */
};

/* codes.c: whether products of bytes support such codes (gemm_int8.h). */
bool sv_codes_are_whole(const struct sv_quant *q);
/* Whether the file is row-major and may be multiplied in place. */
bool sv_codes_by_rows(const struct sv_quant *q);
/* Lays out c->q for packing; false: it cannot be packed. */
bool sv_codes_plan(struct sv_codes *c, enum sv_wcomp_order order);
/* Packs unit u, c->unit_bytes of them, to `to`. */
void sv_codes_pack(const struct sv_codes *c, int32_t u, uint8_t *to);

static inline const uint8_t *sv_codes_unit(const struct sv_codes *c, const void *w, int32_t u)
{
    return (const uint8_t *)w + (size_t)u * c->unit_bytes;
}

struct sv_gemm_span;
/* codes.c: a whole span on any level: a unit at a time is expanded, row-major, and multiplied. */
void sv_gemm_codes(const struct sv_gemm_span *s);

/* gemm_codes_avx512.c: one unit as bf16, pair of k by pair, or its rows row_bytes apart. */
void sv_codes_expand_avx512(const struct sv_codes *c, const uint8_t *unit, void *to,
                            size_t row_bytes);
/* A whole span with at most so many rows of input, codes by pairs. */
#define SV_CODES_FEW 8
void sv_gemm_codes_few(const struct sv_gemm_span *s);
/* gemm_codes_avx2.c: a whole span of codes in place; false: such codes, or so many rows of input,
 * are expanded first. */
bool sv_gemm_codes_few_avx2(const struct sv_gemm_span *s);

#endif
