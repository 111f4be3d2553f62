/*
 * resize.c - bytes of three colours resized by a bicubic filter with antialiasing.
 *
 * Called by patches.c and serve. The reference is torchvision's resize of bytes on a CPU: weights
 * in 16-bit fixed point, first along rows, then along columns, rounded to bytes after each. Must
 * not: depend on the machine; all sums are of integers.
 */
#include "media/media.h"

#include <math.h>
#include <string.h>

#define SUPPORT 2 /* of the filter, at scale 1 */
#define MAX_BITS 22

/* The weights of n consecutive old samples for each new one of a side. */
struct axis {
    int32_t n_taps;  /* the most */
    int32_t *first;  /* (to) */
    int32_t *n;      /* (to) */
    int16_t *weight; /* (to, n_taps) */
    int bits;        /* of their fraction */
};

/* Keys' cubic with a = -1/2. */
static double cubic(double x)
{
    const double a = -0.5;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* The weights of one new sample, which add up to 1. */
static void weigh(struct axis *a, int32_t i, int32_t from, double scale, double *w)
{
    const double wide = scale > 1 ? scale : 1, support = SUPPORT * wide;
    const double centre = scale * (i + 0.5);
    const int64_t begin = (int64_t)(centre - support + 0.5),
                  end = (int64_t)(centre + support + 0.5);
    double sum = 0;

    a->first[i] = begin > 0 ? (int32_t)begin : 0;
    a->n[i] = (end < from ? (int32_t)end : from) - a->first[i];
    for (int32_t k = 0; k < a->n[i]; k++) {
        w[k] = cubic((k + a->first[i] - centre + 0.5) * (1 / wide));
        sum += w[k];
    }
    for (int32_t k = 0; k < a->n[i] && sum != 0; k++)
        w[k] /= sum;
}

/* The largest fraction with which each weight fits 16 bits. */
static int bits_for(double largest)
{
    int bits = 0;

    while (bits < MAX_BITS && (int)(0.5 + largest * (1 << (bits + 1))) < 1 << 15)
        bits++;
    return bits;
}

static void axis_fini(struct axis *a)
{
    sv_free(a->first);
    sv_free(a->n);
    sv_free(a->weight);
}

static int axis_init(struct axis *a, int32_t from, int32_t to)
{
    const double scale = (double)from / to;
    const size_t n_taps = (size_t)ceil(SUPPORT * (scale > 1 ? scale : 1)) * 2 + 1;
    double largest = 0, *w = sv_calloc((size_t)to * n_taps, sizeof *w);

    *a = (struct axis){.n_taps = (int32_t)n_taps,
                       .first = sv_calloc((size_t)to, sizeof *a->first),
                       .n = sv_calloc((size_t)to, sizeof *a->n),
                       .weight = sv_calloc((size_t)to * n_taps, sizeof *a->weight)};
    if (!w || !a->first || !a->n || !a->weight) {
        sv_free(w);
        return SV_ENOMEM; /* axis_fini frees the rest */
    }
    for (int32_t i = 0; i < to; i++)
        weigh(a, i, from, scale, w + (size_t)i * n_taps);
    for (size_t i = 0; i < (size_t)to * n_taps; i++)
        largest = w[i] > largest ? w[i] : largest;
    a->bits = bits_for(largest);
    for (size_t i = 0; i < (size_t)to * n_taps; i++) {
        const double v = w[i] * (1 << a->bits);
        a->weight[i] = (int16_t)(v < 0 ? v - 0.5 : v + 0.5);
    }
    sv_free(w);
    return SV_OK;
}

static uint8_t byte_of(int32_t sum, int bits)
{
    sum >>= bits;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void resize_row(const struct axis *a, const uint8_t *from, int32_t to_width, uint8_t *to)
{
    const int32_t half = 1 << a->bits >> 1;

    for (int32_t x = 0; x < to_width; x++, to += 3) {
        const int16_t *w = a->weight + (size_t)x * (size_t)a->n_taps;
        const uint8_t *s = from + 3 * (size_t)a->first[x];
        int32_t r = half, g = half, b = half;
        for (int32_t k = 0; k < a->n[x]; k++, s += 3) {
            r += w[k] * s[0];
            g += w[k] * s[1];
            b += w[k] * s[2];
        }
        to[0] = byte_of(r, a->bits);
        to[1] = byte_of(g, a->bits);
        to[2] = byte_of(b, a->bits);
    }
}

/* Row y of the result; sums: (n) scratch. */
static void resize_columns(const struct axis *a, int32_t y, const uint8_t *from, size_t n,
                           int32_t *sums, uint8_t *to)
{
    const int16_t *w = a->weight + (size_t)y * (size_t)a->n_taps;

    for (size_t i = 0; i < n; i++)
        sums[i] = 1 << a->bits >> 1;
    for (int32_t k = 0; k < a->n[y]; k++) {
        const uint8_t *row = from + (size_t)(a->first[y] + k) * n;
        for (size_t i = 0; i < n; i++)
            sums[i] += w[k] * row[i];
    }
    for (size_t i = 0; i < n; i++)
        to[i] = byte_of(sums[i], a->bits);
}

int sv_pixels_resize(const uint8_t *rgb, int32_t width, int32_t height, int32_t to_width,
                     int32_t to_height, struct sv_pixels *out, struct sv_err *err)
{
    const size_t n_row = 3 * (size_t)to_width;
    const bool same = width == to_width && height == to_height; /* all weights are 0 and 1 */
    struct axis across = {.first = NULL}, down = {.first = NULL};
    uint8_t *half = same ? NULL : sv_alloc(n_row * (size_t)height); /* its rows are done */
    int32_t *sums = same ? NULL : sv_alloc(n_row * sizeof *sums);

    SV_REQUIRE(width > 0 && height > 0 && to_width > 0 && to_height > 0);
    *out = (struct sv_pixels){sv_alloc(n_row * (size_t)to_height), to_width, to_height};
    if (same && out->rgb) {
        memcpy(out->rgb, rgb, n_row * (size_t)height);
        return SV_OK;
    }
    const bool fits = half && sums && out->rgb && !axis_init(&across, width, to_width) &&
                      !axis_init(&down, height, to_height);
    for (int32_t y = 0; y < height && fits; y++)
        resize_row(&across, rgb + 3 * (size_t)y * (size_t)width, to_width,
                   half + (size_t)y * n_row);
    for (int32_t y = 0; y < to_height && fits; y++)
        resize_columns(&down, y, half, n_row, sums, out->rgb + (size_t)y * n_row);
    axis_fini(&across);
    axis_fini(&down);
    sv_free(half);
    sv_free(sums);
    if (fits)
        return SV_OK;
    sv_pixels_free(out);
    return sv_fail(err, SV_ENOMEM, -1, "out of memory for an image of %d x %d pixels", to_width,
                   to_height);
}
