/*
 * head_screen.h - a copy of a head's weights in 6 bits, and 2 more, to find the rows that can be
 * the argmax: the format, and the bounds.
 *
 * Made at load by head_screen.c for weights.c, multiplied by head_screen_avx512.c (bytes with VNNI)
 * and head_screen_amx.c (bytes in tiles), used by gemm.c. Included nowhere else. Must not: give
 * another id than the argmax of all logits.
 *
 * A weight row is w = s q + dw, q whole and at most 125; q = 4 c + f, f from -2 to 1. c is the
 * coarse plane, which is read of all rows and stands for s (4 c - 1/2); f the fine one, read of
 * rows that the coarse one does not exclude. An input row, as the exact product takes it (rounded
 * to bf16), is x = t p + dx, p whole and at most 32512, which is two bytes. So sums over c p and f
 * p are whole numbers: their bits depend on no order, and tiles and lanes agree. With dw what a
 * plane, or both, leave of w, and v what they give, the logit y of the exact product satisfies
 *
 *   |y - v| <= min(max|dw| sum|x|, |dw| |x|)        the weights' rounding (|.| of a row: its
 * length)
 *            + (|w| + |dw|) |dx|                    the input's
 *            + g (|w| + |dw|) |x|                   y's own: no term is rounded more than 2 k + 64
 * times, g = 1.01 (2 k + 64) / 2^24, in any order
 *            + 2^-20 (|w| + |dw|) (|x| + |dx| + 256 t sqrt(k))   that of v and of this bound:
 * sixteen roundings
 *            + 2^-60                                numbers below the smallest normal one count as
 * zero in some products: at most 3 k of them, 2^-126 each, times at most 2^40
 *
 * The right side's terms are stored with each weight row and computed for each input row, rounded
 * up, lengths with 2^-50 for squares that vanish. First all rows get coarse bounds. Then the unit
 * of 16 rows with the largest upper one is multiplied exactly: the maximum is at least its largest
 * logit, or a larger lower bound. A row whose upper bound is below that cannot be the argmax, nor
 * tie with it. Units that have others, some in a hundred, get fine bounds, and those that have
 * others still, some in a thousand, are multiplied exactly, in ascending order.
 *
 * There is no bound for numbers that are not finite or above 2^40 in size: such weights get no
 * screen, such input (and zeros, and what is below 2^-40) all logits. When bounds exclude too
 * little, some calls skip them.
 *
 *   plane   [units]                                                       16 weight rows each
 *   unit    [s / 2 of 16 rows][max|dw|][|dw|][|w| + |dw|][steps]          |w| + |dw|: the coarse
 * plane's in both step    [3 lines] 4 times, or [1 line] 4 times                        64 of k: 4
 * quads of k a group
 *
 * Line j of a coarse group has quad j's bytes c + 32, [16 rows][4], in the low six bits, and in the
 * other two bits 2j and 2j + 1 of quad 3's. A fine line has quad j's f + 2 in bits 2j and 2j + 1.
 */
#ifndef SV_CPU_HEAD_SCREEN_H
#define SV_CPU_HEAD_SCREEN_H

#include "backend/cpu/gemm.h"

#define SV_SCREEN_ROWS 16      /* input rows at most */
#define SV_SCREEN_LEAST_K 128  /* below, packed input would not fit what is reserved for it */
#define SV_SCREEN_MOST_K 32768 /* sums of 63 * 128 fit 32 bits */
#define SV_SCREEN_LINE 64
#define SV_SCREEN_HEAD ((size_t)4 * SV_SCREEN_LINE)
#define SV_SCREEN_STEP 64  /* of k */
#define SV_SCREEN_GROUPS 4 /* in a step */
#define SV_SCREEN_MOST 125 /* largest q */
/* Of numbers that bounds are given for; 1 / SV_SCREEN_LIMIT of input. */
#define SV_SCREEN_LIMIT 0x1p40f

enum sv_screen_plane { SV_SCREEN_COARSE, SV_SCREEN_FINE };

struct sv_screen {
    const uint8_t *plane[2];
    int64_t read_bytes, n_bytes; /* of the coarse plane, and of all this */
    int32_t n_units;
    float *v;   /* (units, rows of the call, 16) coarse v of the last call */
    float *top; /* (rows of the call, units) upper bounds of the last call */
    /* (units, and one a row) those that the last call multiplied exactly, n_left of them */
    int32_t *left;
    int32_t n_left;
    int32_t rest, pause; /* calls without it, and how many after the next failure */
};

/* Header of the packed input: each row's terms, then the bytes, [steps][high, low][rows][64]. */
struct sv_screen_x {
    float by_max[SV_SCREEN_ROWS], by_length[SV_SCREEN_ROWS],
        by_both[SV_SCREEN_ROWS];    /* of the bound, see above */
    float scale[SV_SCREEN_ROWS];    /* t */
    int32_t sum[2][SV_SCREEN_ROWS]; /* of the high and of the low bytes */
};

/* A kernel's results in best_val of its thread: the largest lower bounds (rows, 16), then the
 * largest upper bound of each row, with its unit in best_id. */
#define SV_SCREEN_TOPS (SV_SCREEN_ROWS * SV_GEMM_UNIT)

/* Lines of a group. */
static inline size_t sv_screen_lines(enum sv_screen_plane plane)
{
    return plane == SV_SCREEN_COARSE ? 3 : 1;
}

static inline int32_t sv_screen_steps(int32_t k)
{
    return (k + SV_SCREEN_STEP - 1) / SV_SCREEN_STEP;
}

static inline size_t sv_screen_unit_bytes(enum sv_screen_plane plane, int32_t k)
{
    return SV_SCREEN_HEAD +
           (size_t)sv_screen_steps(k) * SV_SCREEN_GROUPS * sv_screen_lines(plane) * SV_SCREEN_LINE;
}

/* head_screen.c. *out stays NULL when no bound can be given; else it is freed as a weight is. */
int sv_screen_make(struct sv_cpu *cpu, const struct sv_weight *host, struct sv_screen **out,
                   struct sv_err *err);
/* Whether this call should use it. */
bool sv_screen_asked(struct sv_screen *v);
/* After coarse bounds: fills v->left with the units that have an upper bound not below `low` in
 * some row; how many. */
int32_t sv_screen_pick(struct sv_screen *v, const float *low, int32_t n_rows);
/* After fine ones of the n_left: those of them. */
int32_t sv_screen_pick_again(struct sv_screen *v, int32_t n_left, const float *low, int32_t n_rows);
/* Reports how many are left; all, without bounds. */
void sv_screen_note(struct sv_screen *v, int32_t n_left);

/* head_screen_avx512.c. Unit u of row-major bf16 weights (n, k) to both planes; false: no bound can
 * be given. */
bool sv_screen_pack_unit(uint8_t *const to[2], const uint16_t *w, int32_t n, int32_t k, int32_t u);
void sv_screen_pack_x(const struct sv_gemm_call *c, void *xp, int i, int n);
const struct sv_gemm_kern *sv_gemm_kern_screen_avx512(enum sv_screen_plane plane);
/* head_screen_amx.c */
const struct sv_gemm_kern *sv_gemm_kern_screen_amx(enum sv_screen_plane plane);

#endif
