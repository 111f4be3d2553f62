/*
 * split.cuh - the division of a matrix product among thread blocks, and where sums over k are cut.
 *
 * Included by the GEMM kernels of both sets and by a unit test in plain C. The weights of a call
 * are cut into blocks of rows; a block is n_k tiles of 64 columns. All n_blocks * n_k tiles in one
 * line are shared out to n_units equal units, so every multiprocessor reads the same number of
 * bytes whatever the shape. A block that lies in several units has its sum over k cut there: each
 * piece is summed from zero, and the pieces are added in ascending order. Nothing here depends on
 * the number of rows of x: that is what makes a row's bits the same in decode, verification and
 * prefill. Must not: look at n_rows.
 */
#ifndef SV_CUDA_SPLIT_CUH
#define SV_CUDA_SPLIT_CUH

#include "backend/gpu/pack.cuh"

/* A piece shorter than this is not worth the adding up. */
enum { SV_SPLIT_MIN_TILES = 4 };

/* The upper two of four units wait for what the lower two have summed, which is under way for two
 * microseconds. */
enum { SV_SPLIT_SKEW = 2 };

struct sv_split {
    int32_t n_blocks; /* blocks of weight rows */
    int32_t n_k;      /* tiles along k */
    int32_t n_units;  /* 1 .. n_blocks * n_k */
    /* of four units a block: tiles that each of the lower two has less, the upper more */
    int32_t skew;
};

/* nested: rather up to a third fewer units than units of less than a block that lie across the ends
 * of blocks. */
static SV_HD struct sv_split sv_split_make(int32_t n_blocks, int32_t n_k, int32_t max_units,
                                           bool nested)
{
    struct sv_split s;
    const int64_t tiles = (int64_t)n_blocks * n_k;
    int64_t units = tiles / SV_SPLIT_MIN_TILES;
    if (units > max_units)
        units = max_units;
    /* A few units less where all are then equally long: their ends meet the ends of blocks more
     * often, which leaves fewer pieces to add up. */
    for (int64_t u = units; u > 0 && u >= units - units / 16; u--)
        if (tiles % u == 0) {
            units = u;
            break;
        }
    if (nested && units > 0 && tiles / units < n_k)
        for (int64_t u = units; u >= units - units / 3; u--)
            if (u % n_blocks == 0 && n_k % (u / n_blocks) == 0) {
                units = u;
                break;
            }
    s.n_blocks = n_blocks;
    s.n_k = n_k;
    s.n_units = units < 1 ? 1 : (int32_t)units;
    s.skew = nested && s.n_units == 4 * n_blocks && n_k % 4 == 0 && n_k >= 8 * SV_SPLIT_SKEW
                 ? (int32_t)SV_SPLIT_SKEW
                 : 0;
    return s;
}

/* Thread blocks (or pairs) to launch: as many as the device takes at once where the units are
 * nearly that many. Those without a unit leave when the kernel before has ended; without them
 * kernels that overlap would put two units on one multiprocessor and none on another. */
static SV_HD int32_t sv_split_grid(const struct sv_split *s, int32_t max_units)
{
    return s->n_units >= max_units - max_units / 8 ? max_units : s->n_units;
}

/* First tile of unit u; unit n_units starts at the end. */
static SV_HD int32_t sv_split_start(const struct sv_split *s, int32_t u)
{
    if (s->skew)
        return u * (s->n_k / 4) - (u % 4 == 2 ? 2 * s->skew : u % 2 * s->skew);
    const int64_t at = (int64_t)s->n_blocks * s->n_k * u;
    /* Divisions of 64 bits are slow where each thread block begins with two. */
    return at >> 32 ? (int32_t)(at / s->n_units) : (int32_t)((uint32_t)at / (uint32_t)s->n_units);
}

/* The unit that tile t belongs to: the last u with start(u) <= t. */
static SV_HD int32_t sv_split_unit(const struct sv_split *s, int32_t t)
{
    if (s->skew) {
        const int32_t lower = s->n_k / 4 - s->skew, upper = s->n_k / 4 + s->skew;
        const int32_t r = t % s->n_k, first = t / s->n_k * 4;
        return r < 2 * lower ? first + r / lower : first + 2 + (r - 2 * lower) / upper;
    }
    const int64_t at = ((int64_t)t + 1) * s->n_units - 1, all = (int64_t)s->n_blocks * s->n_k;
    return at >> 32 ? (int32_t)(at / all) : (int32_t)((uint32_t)at / (uint32_t)all);
}

/* Units of whole blocks, equally many each, where that keeps nearly all of max_units busy; n_units
 * 0 where it does not. */
static SV_HD struct sv_split sv_split_whole(int32_t n_blocks, int32_t n_k, int32_t max_units)
{
    struct sv_split s;
    s.n_blocks = n_blocks;
    s.n_k = n_k;
    s.n_units = 0;
    s.skew = 0;
    for (int32_t u = max_units; u >= max_units - max_units / 16 && u > 0 && !s.n_units; u--)
        if (n_blocks % u == 0)
            s.n_units = u;
    return s;
}

/* How many units share each block that is shared, where clusters of two neighbouring units can add
 * it up: an even number, of which each has no other shared block. 0 where they cannot, or where
 * none is. */
static SV_HD int32_t sv_split_paired(const struct sv_split *s)
{
    if (s->n_units == 2 * s->n_blocks || s->n_units == 4 * s->n_blocks)
        return s->n_k % (s->n_units / s->n_blocks) == 0 ? s->n_units / s->n_blocks : 0;
    return s->n_units % 2 == 0 && 2 * s->n_blocks % s->n_units == 0 &&
                   s->n_blocks % s->n_units != 0 && s->n_k % 2 == 0
               ? 2
               : 0;
}

/* A unit leaves at most two pieces of blocks that it shares: of its first block and of its last. */
static SV_HD int32_t sv_split_slot(const struct sv_split *s, int32_t u, int32_t block)
{
    return 2 * u + (sv_split_start(s, u) / s->n_k == block ? 0 : 1);
}

#endif
