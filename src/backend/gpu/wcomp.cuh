/*
 * wcomp.cuh - the layout of compressed weights: bf16 matrices in 12 bits a number, without loss.
 *
 * Included by wcomp.cu, which makes them of the tiles of pack.cuh, by gemm_expand.cuh, which
 * expands them, by codes.cuh, and by a unit test in plain C. A number keeps its low byte, which is
 * the exponent's last bit and the mantissa, its sign, and three bits of a code: 15 exponents above
 * a base of its band. Expanding puts the bytes together and multiplies by 2^base, which is exact
 * and leaves zero zero. The few numbers that the 15 exponents do not reach are patches: words with
 * the number in full and its place, eight in a strip, further ones in a list of the band. Must not:
 * know anything but index arithmetic.
 *
 * A tile is that of pack.cuh in 6272 bytes, a multiple of 128: four strips of 16 rows, one for each
 * warp. A lane holds 16 pairs of neighbouring columns, as wgmma wants them in registers: pair 4 s +
 * i of lane l is row l / 4 + 8 (i % 2) of the strip, columns 16 s + 2 (l % 4) + 8 (i / 2) and the
 * next. A lane's bits are 12 words: 8 of low bytes, words 0 to 3 at 16 l and 4 to 7 at 512 + 16 l,
 * and 4 of signs and codes at 1024 + 16 l. The strip's patches stand at 1536.
 */
#ifndef SV_CUDA_WCOMP_CUH
#define SV_CUDA_WCOMP_CUH

#include "backend/gpu/pack.cuh"
#ifdef __cplusplus
#include "backend/gpu/gpu.h"
#endif

enum {
    SV_WCOMP_PAIRS = 16, /* of a thread in a tile */
    SV_WCOMP_WORDS = 12, /* that hold them */
    SV_WCOMP_SLOTS = 8,  /* patches of a strip that travel with it */
    SV_WCOMP_SLOTS_AT = 32 * 4 * SV_WCOMP_WORDS,
    SV_WCOMP_STRIP_BYTES = SV_WCOMP_SLOTS_AT + 4 * SV_WCOMP_SLOTS, /* 16 rows */
    SV_WCOMP_TILE_BYTES = 4 * SV_WCOMP_STRIP_BYTES,
    SV_WCOMP_SPAN = 15,      /* exponents, zero apart */
    SV_WCOMP_MAX_BASE = 126, /* 2^base is a bf16 number */
    SV_WCOMP_MORE = 128,     /* further patches of a band, at most */
    SV_WCOMP_HEAD_BYTES = 128
};

/* What a compressed matrix begins with; then tiles, what each band needs, and the bands' lists of
 * further patches. */
struct sv_wcomp_head {
    /* bands with more further patches than there is room for: the matrix is not compressed */
    uint32_t refused;
};

struct sv_wcomp_band {
    uint32_t scale;  /* 2^base, twice; exponent fields base + 1 to base + SV_WCOMP_SPAN are kept */
    uint32_t n_more; /* further patches, by tile */
};

/* A patch: pair, half, lane, strip of the band, and the number. */
#define SV_WCOMP_NO_PATCH 0xffffffffu

static SV_HD uint32_t sv_wcomp_patch(int32_t strip, int32_t lane, int32_t pair, int32_t half,
                                     uint32_t number)
{
    return (uint32_t)(pair | half << 4 | lane << 5 | strip << 10) | number << 16;
}

struct sv_wcomp_more {
    uint32_t kk; /* tile along k */
    uint32_t patch;
};

static SV_HD size_t sv_wcomp_bands_at(int32_t rows, int32_t cols)
{
    return SV_WCOMP_HEAD_BYTES +
           (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * SV_WCOMP_TILE_BYTES;
}

static SV_HD size_t sv_wcomp_more_at(int32_t rows, int32_t cols)
{
    return sv_wcomp_bands_at(rows, cols) + (size_t)sv_tiles(rows) * sizeof(struct sv_wcomp_band);
}

static SV_HD size_t sv_wcomp_bytes(int32_t rows, int32_t cols)
{
    return sv_wcomp_more_at(rows, cols) +
           (size_t)sv_tiles(rows) * SV_WCOMP_MORE * sizeof(struct sv_wcomp_more);
}

/* Row of the strip and first column of the tile of a lane's pair. */
static SV_HD int32_t sv_wcomp_row(int32_t lane, int32_t pair)
{
    return lane / 4 + pair % 2 * 8;
}

static SV_HD int32_t sv_wcomp_col(int32_t lane, int32_t pair)
{
    return pair / 4 * 16 + lane % 4 * 2 + pair % 4 / 2 * 8;
}

/* A number's bits with its exponent counted from base, or -1 where that does not fit. */
static SV_HD int32_t sv_wcomp_shift(uint32_t number, int32_t base)
{
    const int32_t exponent = (int32_t)(number >> 7 & 255), e = exponent - base;
    if ((number & 0x7fff) == 0)
        return (int32_t)number;
    return exponent != 0 && e >= 1 && e <= SV_WCOMP_SPAN ? (int32_t)(number - ((uint32_t)base << 7))
                                                         : -1;
}

/* Four bytes of a (0 to 3) and b (4 to 7), lowest first, by the hex digits of which. */
static SV_HD uint32_t sv_wcomp_bytes_of(uint32_t a, uint32_t b, uint32_t which)
{
#ifdef GPU_BYTES_OF
    return GPU_BYTES_OF(a, b, which);
#else
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return v;
#endif
}

static SV_HD uint32_t sv_wcomp_turned(uint32_t v, int left)
{
#ifdef GPU_TURNED
    return GPU_TURNED(v, left);
#else
    return v << left | v >> (32 - left);
#endif
}

/* 16 pairs, shifted, to 12 words. Low bytes of two pairs make a word. Their high bytes, sign in bit
 * 7 and code in bits 0 to 2, make one as well, and two of these one: the second turned by four
 * bits. */
static SV_HD void sv_wcomp_encode(const uint32_t pair[SV_WCOMP_PAIRS],
                                  uint32_t word[SV_WCOMP_WORDS])
{
    uint32_t high[8];
    for (int q = 0; q < 8; q++) {
        word[q] = sv_wcomp_bytes_of(pair[2 * q], pair[2 * q + 1], 0x6420);
        high[q] = sv_wcomp_bytes_of(pair[2 * q], pair[2 * q + 1], 0x7531);
    }
    for (int q = 0; q < 4; q++)
        word[8 + q] = high[2 * q] | sv_wcomp_turned(high[2 * q + 1], 28);
}

/* The reverse, as the kernel does it, of pairs 2 q and 2 q + 1; results still lack 2^base. */
static SV_HD void sv_wcomp_decode_two(const uint32_t word[SV_WCOMP_WORDS],
                                      uint32_t pair[SV_WCOMP_PAIRS], int q)
{
    const uint32_t w = word[8 + q / 2];
    const uint32_t high = (q % 2 ? sv_wcomp_turned(w, 4) : w) & 0x87878787u;
    pair[2 * q] = sv_wcomp_bytes_of(word[q], high, 0x5140);
    pair[2 * q + 1] = sv_wcomp_bytes_of(word[q], high, 0x7362);
}

#endif
