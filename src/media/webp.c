/*
 * webp.c - WebP, lossy and lossless, through libwebp.
 *
 * Called by decode.c. Must not: read animations, whose frames need another library.
 */
#include "media/formats.h"

#include <string.h>
#include <webp/decode.h>

#define RIFF_HEAD 12 /* "RIFF", size, "WEBP" */

/* The data of the first chunk of this name; NULL: there is none. */
static const uint8_t *chunk_of(const struct sv_image_job *j, const char *name, size_t *n)
{
    for (size_t at = RIFF_HEAD; j->n_bytes - at >= 8;) {
        const uint8_t *c = j->bytes + at;
        *n = c[4] | (size_t)c[5] << 8 | (size_t)c[6] << 16 | (size_t)c[7] << 24;
        at += 8;
        if (*n > j->n_bytes - at)
            return NULL;
        if (memcmp(c, name, 4) == 0)
            return c + 8;
        at += *n + (*n & 1);
        if (at > j->n_bytes)
            return NULL;
    }
    return NULL;
}

int sv_webp_decode(struct sv_image_job *j, struct sv_err *err)
{
    WebPBitstreamFeatures f;
    size_t n;

    if (WebPGetFeatures(j->bytes, j->n_bytes, &f) != VP8_STATUS_OK)
        return sv_fail(err, SV_EFORMAT, -1, "the head is damaged or incomplete");
    if (f.has_animation)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "animations are not supported");
    int rc = sv_image_job_size(j, (uint64_t)f.width, (uint64_t)f.height, err);
    if (rc)
        return rc;
    const uint8_t *exif = chunk_of(j, "EXIF", &n);
    if (exif)
        sv_image_job_exif(j, exif, n);
    const int stride = j->out->width * 3;
    if (!WebPDecodeRGBInto(j->bytes, j->n_bytes, j->out->rgb,
                           (size_t)stride * (size_t)j->out->height, stride))
        return sv_fail(err, SV_EFORMAT, -1, "the data are damaged or incomplete");
    return SV_OK;
}
