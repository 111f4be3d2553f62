/*
 * dense.cuh - the layout of dense weights: bf16 matrices in 13 bits a number, without loss.
 *
 * Included by dense.cu, which makes them of the tiles of pack.cuh, by gemm_dense_sm90.cu, which reads them, and by
 * a unit test in plain C. A number keeps its low byte, which is the exponent's last bit and the mantissa, its sign, and
 * four bits of a code: 31 exponents above the matrix's base, which is even. Expanding puts the bytes together and
 * multiplies by 2^base, which is exact and leaves zero zero. The few numbers of a matrix that its 31 exponents do not
 * reach lie beside it in full, as patches. Must not: know anything but index arithmetic.
 *
 * A tile is that of pack.cuh in 6656 bytes: four strips of 16 rows, one for each warp. A lane holds 16 pairs of
 * neighbouring columns, as wgmma wants them in registers: pair 4 s + i of lane l is row l / 4 + 8 (i % 2) of the strip,
 * columns 16 s + 2 (l % 4) + 8 (i / 2) and the next. A lane's bits are 13 words: 8 of low bytes, words 0 to 3 at 16 l
 * and 4 to 7 at 512 + 16 l, and 5 of signs and codes, four at 1024 + 16 l and one at 1536 + 4 l.
 */
#ifndef SV_CUDA_DENSE_CUH
#define SV_CUDA_DENSE_CUH

#include "backend/cuda/pack.cuh"

enum {
    SV_DENSE_STRIP_BYTES = 1664, /* 16 rows */
    SV_DENSE_TILE_BYTES = 4 * SV_DENSE_STRIP_BYTES,
    SV_DENSE_PAIRS = 16,    /* of a thread in a tile */
    SV_DENSE_SPAN = 31,     /* exponents, zero apart */
    SV_DENSE_MAX_BASE = 126, /* 2^base is a bf16 number */
    SV_DENSE_PATCHES = 64,  /* of a band, at most */
    SV_DENSE_HEAD_BYTES = 2048
};

/* What a dense matrix begins with; then tiles, the number of patches of each band, and the patches. */
struct sv_dense_head {
    uint32_t scale;      /* 2^base, twice */
    uint32_t base;       /* exponent fields base + 1 to base + SV_DENSE_SPAN are kept */
    uint32_t n_patches;
    uint32_t refused;    /* bands with more patches than there is room for: the matrix is not dense */
    uint32_t count[256]; /* numbers by exponent field, without zeros */
};

/* A pair in full, in band order by tile. */
struct sv_dense_patch {
    uint16_t kk;    /* tile along k */
    uint16_t place; /* 512 times the strip of the band, 16 times the lane, and the pair */
    uint32_t pair;
};

static SV_HD size_t sv_dense_counts_at(int32_t rows, int32_t cols)
{
    return SV_DENSE_HEAD_BYTES +
           (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * SV_DENSE_TILE_BYTES;
}

static SV_HD size_t sv_dense_patches_at(int32_t rows, int32_t cols)
{
    return sv_dense_counts_at(rows, cols) + ((size_t)sv_tiles(rows) * 4 + 15) / 16 * 16;
}

static SV_HD size_t sv_dense_bytes(int32_t rows, int32_t cols)
{
    return sv_dense_patches_at(rows, cols) +
           (size_t)sv_tiles(rows) * SV_DENSE_PATCHES * sizeof(struct sv_dense_patch);
}

/* Row of the strip and first column of the tile of a lane's pair. */
static SV_HD int32_t sv_dense_row(int32_t lane, int32_t pair)
{
    return lane / 4 + pair % 2 * 8;
}

static SV_HD int32_t sv_dense_col(int32_t lane, int32_t pair)
{
    return pair / 4 * 16 + lane % 4 * 2 + pair % 4 / 2 * 8;
}

/* A number's bits with its exponent counted from base, or -1 where that does not fit. */
static SV_HD int32_t sv_dense_shift(uint32_t number, int32_t base)
{
    const int32_t exponent = (int32_t)(number >> 7 & 255), e = exponent - base;
    if ((number & 0x7fff) == 0)
        return (int32_t)number;
    return exponent != 0 && e >= 1 && e <= SV_DENSE_SPAN ? (int32_t)(number - ((uint32_t)base << 7))
                                                         : -1;
}

/* Four bytes of a (0 to 3) and b (4 to 7), lowest first, by the hex digits of which. */
static SV_HD uint32_t sv_dense_bytes_of(uint32_t a, uint32_t b, uint32_t which)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(a, b, which);
#else
    const uint64_t all = (uint64_t)b << 32 | a;
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v |= (uint32_t)(all >> 8 * (which >> 4 * i & 7) & 255) << 8 * i;
    return v;
#endif
}

/* 16 pairs, shifted, to 13 words. Low bytes of two pairs make a word. Their high bytes, sign in bit 7 and code in bits
 * 0 to 3, make one as well: five such words are kept, and the other three stand in bits 4 to 6 of the five. */
static SV_HD void sv_dense_encode(const uint32_t pair[SV_DENSE_PAIRS], uint32_t word[13])
{
    uint32_t high[8];
    for (int q = 0; q < 8; q++) {
        word[q] = sv_dense_bytes_of(pair[2 * q], pair[2 * q + 1], 0x6420);
        high[q] = sv_dense_bytes_of(pair[2 * q], pair[2 * q + 1], 0x7531);
    }
    for (int q = 0; q < 5; q++)
        word[8 + q] = high[q];
    for (int q = 0; q < 3; q++)
        word[8 + 2 * q] |= (high[5 + q] & 0x07070707u) << 4;
    for (int q = 0; q < 2; q++)
        word[9 + 2 * q] |= (high[5 + q] & 0x80808080u) >> 1 | (high[5 + q] & 0x08080808u) << 1;
    word[9] |= (high[7] & 0x80808080u) >> 2;
    word[11] |= (high[7] & 0x08080808u) << 2;
}

/* The reverse, as the kernel does it; results still lack 2^base. */
static SV_HD void sv_dense_decode(const uint32_t word[13], uint32_t pair[SV_DENSE_PAIRS])
{
    const uint32_t *w = word + 8;
    const uint32_t high[8] = {
        w[0] & 0x8f8f8f8fu,
        w[1] & 0x8f8f8f8fu,
        w[2] & 0x8f8f8f8fu,
        w[3] & 0x8f8f8f8fu,
        w[4] & 0x8f8f8f8fu,
        (w[0] >> 4 & 0x07070707u) | (w[1] << 1 & 0x80808080u) | (w[1] >> 1 & 0x08080808u),
        (w[2] >> 4 & 0x07070707u) | (w[3] << 1 & 0x80808080u) | (w[3] >> 1 & 0x08080808u),
        (w[4] >> 4 & 0x07070707u) | (w[1] << 2 & 0x80808080u) | (w[3] >> 2 & 0x08080808u),
    };
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int q = 0; q < 8; q++) {
        pair[2 * q] = sv_dense_bytes_of(word[q], high[q], 0x5140);
        pair[2 * q + 1] = sv_dense_bytes_of(word[q], high[q], 0x7362);
    }
}

#endif
