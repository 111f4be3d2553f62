/*
 * decode.c - an encoded image to upright RGB pixels: format by content, limits, orientation.
 *
 * Called by serve and cli. Must not: call a decoding library itself, or trust a size that a file
 * states.
 */
#include "media/formats.h"

#include <string.h>

void sv_pixels_free(struct sv_pixels *p)
{
    sv_free(p->rgb);
    p->rgb = NULL;
}

int sv_image_job_size(struct sv_image_job *j, uint64_t width, uint64_t height, struct sv_err *err)
{
    const struct sv_image_limits *l = j->limits;
    const uint64_t side = (uint64_t)l->max_side;

    if (!width || !height)
        return sv_fail(err, SV_EFORMAT, -1, "an image of %llu x %llu pixels",
                       (unsigned long long)width, (unsigned long long)height);
    if (width > side || height > side)
        return sv_fail(err, SV_EINVAL, -1, "%llu x %llu pixels; a side may have %d",
                       (unsigned long long)width, (unsigned long long)height, l->max_side);
    if (width * height > (uint64_t)l->max_pixels)
        return sv_fail(err, SV_EINVAL, -1, "%llu x %llu pixels; an image may have %lld in all",
                       (unsigned long long)width, (unsigned long long)height,
                       (long long)l->max_pixels);
    j->out->width = (int32_t)width;
    j->out->height = (int32_t)height;
    j->out->rgb = sv_alloc((size_t)(width * height * 3));
    return j->out->rgb ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory for the pixels");
}

/* ---------------------------------------------------------------- orientation */

#define EXIF_ORIENTATION 0x112
#define EXIF_SHORT 3
#define EXIF_LONG 4

/* n bytes at `at`, little-endian or big-endian. */
static uint32_t number(const uint8_t *at, int n, bool big)
{
    uint32_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint32_t)at[i] << 8 * (big ? n - 1 - i : i);
    return v;
}

void sv_image_job_exif(struct sv_image_job *j, const uint8_t *exif, size_t n)
{
    if (n >= 6 && memcmp(exif, "Exif\0\0", 6) == 0) {
        exif += 6;
        n -= 6;
    }
    if (n < 8 || (memcmp(exif, "II*\0", 4) != 0 && memcmp(exif, "MM\0*", 4) != 0))
        return;
    const bool big = *exif == 'M';
    const uint32_t at = number(exif + 4, 4, big);
    if (at > n - 2)
        return;
    const uint32_t n_entries = number(exif + at, 2, big);
    for (uint32_t i = 0; i < n_entries && (size_t)at + 2 + 12 * ((size_t)i + 1) <= n; i++) {
        const uint8_t *entry = exif + at + 2 + 12 * (size_t)i;
        const uint32_t type = number(entry + 2, 2, big);
        if (number(entry, 2, big) != EXIF_ORIENTATION || number(entry + 4, 4, big) != 1 ||
            (type != EXIF_SHORT && type != EXIF_LONG))
            continue;
        const uint32_t v = number(entry + 8, type == EXIF_SHORT ? 2 : 4, big);
        j->orientation = v >= 1 && v <= 8 ? (int)v : 1;
        return;
    }
}

/* Index of the upright image's first pixel, and the distances to the next pixel of a row and of a
 * column. */
struct walk {
    int64_t begin, right, down;
};

static struct walk walk_of(int orientation, int64_t w, int64_t h)
{
    const int64_t last_x = w - 1, last_y = (h - 1) * w;

    switch (orientation) {
    case 2: /* mirrored */
        return (struct walk){last_x, -1, w};
    case 3: /* upside down */
        return (struct walk){last_y + last_x, -1, -w};
    case 4: /* both */
        return (struct walk){last_y, 1, -w};
    case 5: /* rows are columns */
        return (struct walk){0, w, 1};
    case 6: /* turned to the left: its first column, from below, is the first row */
        return (struct walk){last_y, -w, 1};
    case 7:
        return (struct walk){last_y + last_x, -w, -1};
    case 8: /* turned to the right */
        return (struct walk){last_x, w, -1};
    default:
        return (struct walk){0, 1, w};
    }
}

static int turn(struct sv_pixels *p, int orientation, struct sv_err *err)
{
    const struct walk k = walk_of(orientation, p->width, p->height);
    const int32_t w = orientation > 4 ? p->height : p->width;
    const int32_t h = orientation > 4 ? p->width : p->height;
    uint8_t *to = sv_alloc((size_t)w * (size_t)h * 3), *at = to;

    if (!to)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory for the pixels");
    for (int32_t y = 0; y < h; y++)
        for (int32_t x = 0; x < w; x++, at += 3)
            memcpy(at, p->rgb + 3 * (k.begin + y * k.down + x * k.right), 3);
    sv_free(p->rgb);
    *p = (struct sv_pixels){to, w, h};
    return SV_OK;
}

/* ---------------------------------------------------------------- formats */

/* Magic bytes at `at`. decode NULL: known but not supported. */
struct format {
    const char *name;
    size_t at, n_mark;
    const char *mark;
    int (*decode)(struct sv_image_job *j, struct sv_err *err);
};
static const struct format formats[] = {
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n", sv_png_decode},
    {"JPEG", 0, 3, "\xff\xd8\xff", sv_jpeg_decode},
    {"WebP", 8, 4, "WEBP", sv_webp_decode},
    {"GIF", 0, 4, "GIF8", NULL},
    {"BMP", 0, 2, "BM", NULL},
    {"TIFF", 0, 4, "II*\0", NULL},
    {"TIFF", 0, 4, "MM\0*", NULL},
    {"HEIF or AVIF", 4, 4, "ftyp", NULL},
    {"SVG", 0, 4, "<svg", NULL},
    {"PDF", 0, 4, "%PDF", NULL},
};

static const struct format *format_of(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const struct format *f = &formats[i];
        if (n >= f->at + f->n_mark && memcmp(bytes + f->at, f->mark, f->n_mark) == 0)
            return f;
    }
    return NULL;
}

int sv_image_decode(const void *bytes, size_t n_bytes, const struct sv_image_limits *limits,
                    struct sv_pixels *out, struct sv_err *err)
{
    static const struct sv_image_limits usual = {SV_IMAGE_MAX_BYTES, SV_IMAGE_MAX_PIXELS,
                                                 SV_IMAGE_MAX_SIDE};
    struct sv_image_job j = {bytes, n_bytes, limits ? limits : &usual, out, 1};

    *out = (struct sv_pixels){.rgb = NULL};
    if (!n_bytes)
        return sv_fail(err, SV_EFORMAT, -1, "empty, where an image was expected");
    if (n_bytes > j.limits->max_bytes)
        return sv_fail(err, SV_EINVAL, -1, "an image of %zu bytes; it may have %zu", n_bytes,
                       j.limits->max_bytes);
    const struct format *f = format_of(bytes, n_bytes);
    if (!f || !f->decode)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s%s; PNG, JPEG and WebP are read",
                       f ? f->name : "no known image", f ? " is not supported" : "");
    int rc = f->decode(&j, err);
    if (!rc && j.orientation != 1)
        rc = turn(out, j.orientation, err);
    if (rc)
        sv_pixels_free(out);
    return rc ? sv_err_prefix(err, "%s", f->name) : SV_OK;
}
