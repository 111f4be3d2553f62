/*
 * codes.cuh - the layout of weights in codes of 4 to 8 bits with their scales, as dense products
 * and those of experts read them.
 *
 * Included through gemm.h by codes.cu, which makes them, by codes_host.h, by codes_value.cuh, which
 * expands them, and by a unit test in plain C. A tile is that of pack.cuh, of four strips of 16
 * rows: codes, and behind them a word for each of the strip's rows with its scales in these 64
 * columns. A lane holds the 16 pairs of wcomp.cuh. Of 8 bits: word q has the codes of pair 2 q in
 * bytes 1 and 3 and those of pair 2 q
 * + 1 in bytes 0 and 2; words 0 to 3 are at 16 l, 4 to 7 at 512 + 16 l. Of 4 bits: word q, at 16
 * l + 4 q, has pairs 4 q to 4 q + 3, the first column of pair 4 q + i in bits 4 i to 4 i + 3, the
 * second 16 bits above. An f32 factor of the matrix follows all tiles (SV_CODES_NV4).
 *
 * K-quants of GGUF: a lane's 16 codes of half of the columns fill as many words as their bits do,
 * see sv_codes_k_bit; words 0 to 3 are at 16 l, the others at 512 after them, lane by lane. Two
 * words for each row, those of rows r and r + 8 together: a super-block's f16 numbers d and, above,
 * dmin; then the tile's four bytes of scales. Must not: know of kernels.
 */
/* "bits" below tells layouts apart: 8 and 4 as above, 5 to 7 K-quants, with their scales.
 */
#ifndef SV_GPU_CODES_CUH
#define SV_GPU_CODES_CUH

#include "backend/gpu/wcomp.cuh"

enum { SV_CODES_SCALE_BYTES = 16 * 4, SV_CODES_TAIL_BYTES = 128 };

/* The meaning of a code and of its row's word. */
enum sv_codes_code {
    SV_CODES_F8,          /* e4m3; a scale below 2^7 that fits bf16, times 2^120, twice */
    SV_CODES_F8_WIDE,     /* e4m3; f32 */
    SV_CODES_I8,          /* signed bytes, with 128 added; f32 */
    SV_CODES_I8_TWO,      /* the same; an f16 scale of each half of the columns */
    SV_CODES_I4,          /* 0 to 15; 128 + zero point, in bf16, above a bf16 scale */
    SV_CODES_I4_HALF,     /* 0 to 15; the same above an f16 scale */
    SV_CODES_I4_TWO,      /* 0 to 15, less 8; a bf16 scale of each half of the columns */
    SV_CODES_I4_HALF_TWO, /* the same, f16 scales */
    SV_CODES_MX4, /* e2m1; of both halves of the columns a power of two times 2^126, in bf16 */
    SV_CODES_NV4, /* e2m1; a scale for each 16 columns, see sv_codes_e5m3; the matrix has a factor
                   */
    SV_CODES_K4,  /* Q4_K; scale and minimum of either half of the columns */
    SV_CODES_K5,  /* Q5_K; the same */
    SV_CODES_K6   /* Q6_K; scales of 16 columns, with 128 added */
};

#define SV_CODES_BITS(code)                                                                        \
    ((code) >= SV_CODES_K4 ? 5 + (code)-SV_CODES_K4 : (code) >= SV_CODES_I4 ? 4 : 8)
static SV_HD int32_t sv_codes_bits(enum sv_codes_code code)
{
    return SV_CODES_BITS((int32_t)code);
}

/* Bytes of a super-block of K-quants, SV_K_COLS weights. */
enum { SV_K_COLS = 256 };
static SV_HD int32_t sv_codes_k_bytes(enum sv_codes_code code)
{
    return code == SV_CODES_K4 ? 144 : code == SV_CODES_K5 ? 176 : 210;
}

/* Words of a lane, and of a row behind them. */
#define SV_CODES_WORDS(bits) ((bits) == 8 ? 8 : (bits) < 6 ? 4 : (bits)-1)
#define SV_CODES_ROW_WORDS(bits) ((bits) == 8 || (bits) == 4 ? 1 : 2)
#define SV_CODES_SCALES_AT(bits) (128 * SV_CODES_WORDS(bits))
#define SV_CODES_STRIP_BYTES(bits)                                                                 \
    (SV_CODES_SCALES_AT(bits) + SV_CODES_SCALE_BYTES * SV_CODES_ROW_WORDS(bits))
#define SV_CODES_TILE_BYTES(bits) (4 * SV_CODES_STRIP_BYTES(bits))

static SV_HD size_t sv_codes_factor_at(int32_t rows, int32_t cols, int32_t bits)
{
    return (size_t)sv_tiles(rows) * (size_t)sv_tiles(cols) * (size_t)SV_CODES_TILE_BYTES(bits);
}

static SV_HD size_t sv_codes_bytes(int32_t rows, int32_t cols, int32_t bits)
{
    return sv_codes_factor_at(rows, cols, bits) + SV_CODES_TAIL_BYTES;
}

/* The offset in its strip of a lane's word q. */
static SV_HD int32_t sv_codes_word_at(int32_t lane, int32_t q, int32_t bits)
{
    const int32_t each = q >= 4 && bits < 8 ? SV_CODES_WORDS(bits) - 4 : 4;
    return q / 4 * 512 + lane * 4 * each + q % 4 * 4;
}

/* The word that has a lane's pair, and its bit where column 0 or 1 of the pair begins. */
static SV_HD int32_t sv_codes_word(int32_t pair, int32_t bits)
{
    return bits == 8 ? pair / 2 : pair / 4;
}

static SV_HD int32_t sv_codes_shift(int32_t pair, int32_t column, int32_t bits)
{
    return bits == 8 ? (pair % 2 ? 0 : 8) + 16 * column : pair % 4 * 4 + 16 * column;
}

/* Of K-quants: the place of bit `bit` of a code in its lane's words. A word has as many whole codes
 * as fit, the lowest bits the first. Of 5 bits the halves of word 4 have three more each. The bits
 * that are left in each word are the last code's. */
static SV_HD int32_t sv_codes_k_bit(int32_t pair, int32_t column, int32_t bit, int32_t bits)
{
    const int32_t own = bits - 1, each = 32 / own, half = pair / 8, code = pair % 8 * 2 + column,
                  word = half * (bits == 7 ? 3 : 2);
    if (code == 15 && bits > 5)
        return bit < 4 || bits == 7 ? (word + bits - 5 - bit / 2) * 32 + 30 + bit % 2
                                    : 4 * 32 + 16 * half + 15;
    if (bits == 6 && code >= 12)
        return 4 * 32 + 16 * half + 5 * (code - 12) + bit;
    return (word + code / each) * 32 + code % each * own + bit;
}

/* A scale of NVFP4, e4m3 above zero, as 5 bits of exponent (bias 16) and 3 of mantissa; 0: it is
 * zero, or cannot be. */
static SV_HD uint32_t sv_codes_e5m3(uint32_t e4m3)
{
    uint32_t exponent = e4m3 >> 3, mantissa = e4m3 & 7;
    if (e4m3 == 0 || e4m3 >= 0x7f)
        return 0;
    if (exponent == 0)
        for (exponent = 1; mantissa < 8; exponent--)
            mantissa *= 2;
    return (exponent + 9) << 3 | (mantissa & 7);
}

#endif
