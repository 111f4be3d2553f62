/*
 * wcomp.h - bf16 weights in about 11.2 bits, every value exact: the format, and walking along it.
 *
 * Made at load by weights.c, multiplied by gemm_bf16_avx512.c and gemm_amx.c; packing, expanding
 * and the products of few rows are in gemm_wcomp_avx512.c. Included nowhere else.
 *
 * The 8 exponent bits of a weight matrix carry about 2.6 bits of information: for normal numbers
 * seven neighbouring exponents are 97.5 % of all. So a weight is a byte, mantissa << 1 | sign, and
 * a code of three bits: 1 to 7 for the exponents of its unit's window, 0 for any other, whose
 * exponent is then in a stream of bytes.
 *
 *   matrix  [first line of each unit, and of the end: (units + 1) uint32][units]      a line: 64
 * bytes unit    [exponent of each code: 8 bytes, 8 times][escaped exponents][blocks]      16 weight
 * rows block   [8 groups of 64 bytes][3 lines of codes]                                  32 of k
 *
 * A block's 512 weights are sixteen vectors of 32: pair of k by pair ([16 rows][2], what
 * AVX512-BF16 takes), or row by row (what an AMX tile is). Vectors 2i and 2i + 1 are group i: byte
 * b of the group is word b % 8 of 128-bit lane b / 16 of vector 2i + (b % 16 >= 8), which is where
 * vpunpcklbw and vpunpckhbw put it. Line 0 of the codes has those of groups 0 (bits 0-2) and 1
 * (bits 3-5), line 1 of 2 and 3, line 2 of 4 and 5; group 6 has bits 6-7 of line 0 and bit 6 of
 * line 2, group 7 bits 6-7 of line 1 and bit 7 of line 2. Missing k or rows are zeros, escaped like
 * any other value outside the window.
 */
#ifndef SV_CPU_WCOMP_H
#define SV_CPU_WCOMP_H

#include "backend/cpu/cpu.h"

#define SV_WCOMP_LINE 64
#define SV_WCOMP_BLOCK 704
#define SV_WCOMP_CODES 512 /* where a block's codes begin */
#define SV_WCOMP_WINDOW 7

/* The next block of a unit and the next of its escapes. Prefetches past the unit's end are `jump`
 * further: where units are walked in parallel, the next is not adjacent. */
struct sv_wcomp_walk {
    const uint8_t *block, *escapes, *table, *end;
    ptrdiff_t jump;
};

/* A unit's data for packing. */
struct sv_wcomp_unit {
    uint32_t n_lines;
    uint32_t first; /* exponent of code 1 */
};

static inline int32_t sv_wcomp_blocks(int32_t k)
{
    return (k + 31) / 32;
}

static inline struct sv_wcomp_walk sv_wcomp_at(const void *wcomp, int32_t unit, int32_t k)
{
    const uint32_t *line = wcomp;
    const uint8_t *p = (const uint8_t *)wcomp + (size_t)line[unit] * SV_WCOMP_LINE;
    const uint8_t *end = (const uint8_t *)wcomp + (size_t)line[unit + 1] * SV_WCOMP_LINE;
    return (struct sv_wcomp_walk){
        .block = end - (size_t)sv_wcomp_blocks(k) * SV_WCOMP_BLOCK,
        .escapes = p + SV_WCOMP_LINE,
        .table = p,
        .end = end,
    };
}

static inline const uint8_t *sv_wcomp_end(const void *wcomp, int32_t unit)
{
    const uint32_t *line = wcomp;
    return (const uint8_t *)wcomp + (size_t)line[unit + 1] * SV_WCOMP_LINE;
}

/* Prefetch distance of a walk, into level 2. */
#define SV_WCOMP_AHEAD 4224

/* GCC treats a function that only prefetches as one without effect, and drops its calls: so these
 * are always inlined. */
#define SV_WCOMP_INLINE static inline __attribute__((always_inline))

/* Distance from a line to the one to prefetch. */
SV_WCOMP_INLINE uintptr_t sv_wcomp_ahead(const struct sv_wcomp_walk *at, int32_t ahead)
{
    return (uintptr_t)ahead + (at->end - at->block < ahead ? (uintptr_t)at->jump : 0);
}

SV_WCOMP_INLINE void sv_wcomp_ask_line(const uint8_t *p, uintptr_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)p + ahead), 0, 2);
}

/* Prefetches what precedes a unit's blocks: the walk along the last unit skipped it. */
SV_WCOMP_INLINE void sv_wcomp_ask(const struct sv_wcomp_walk *at, int32_t ahead)
{
    for (const uint8_t *p = at->table; p < at->block; p += SV_WCOMP_LINE)
        sv_wcomp_ask_line(p, (uintptr_t)ahead);
}

/* Lines and window of unit u of row-major weights (n, k). */
struct sv_wcomp_unit sv_wcomp_measure(const uint16_t *w, int32_t n, int32_t k, int32_t u);
/* Packs unit u, whose lines begin at `to`. */
void sv_wcomp_pack(uint8_t *to, struct sv_wcomp_unit as, const uint16_t *w, int32_t n, int32_t k,
                   int32_t u, enum sv_wcomp_order order);
/* The next blocks to `to`, 1 KiB each, in the matrix's order. Prefetches those after. */
void sv_wcomp_expand(struct sv_wcomp_walk *at, int32_t n_blocks, void *to);

struct sv_gemm_span;
/* A whole span with at most 16 rows of input, weights by pairs. */
void sv_gemm_wcomp_few(const struct sv_gemm_span *s);

#endif
