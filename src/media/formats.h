/*
 * formats.h - shared by decode.c and the decoders of the formats.
 *
 * Included by the files of this folder that decode. Must not: name a type of a decoding library.
 */
#ifndef SV_MEDIA_FORMATS_H
#define SV_MEDIA_FORMATS_H

#include "media/media.h"

/* An encoded image and the decoded one. */
struct sv_image_job {
    const uint8_t *bytes;
    size_t n_bytes;
    const struct sv_image_limits *limits;
    struct sv_pixels *out; /* rgb is NULL until sv_image_job_size */
    int orientation;       /* EXIF's, 1 to 8 */
};

/* Checks the sizes that the file states, and allocates out->rgb. */
int sv_image_job_size(struct sv_image_job *j, uint64_t width, uint64_t height, struct sv_err *err);
/* Takes the orientation of EXIF data, with or without "Exif\0\0" before it; damaged data is
 * ignored. */
void sv_image_job_exif(struct sv_image_job *j, const uint8_t *exif, size_t n);

int sv_png_decode(struct sv_image_job *j, struct sv_err *err);
int sv_jpeg_decode(struct sv_image_job *j, struct sv_err *err);
int sv_webp_decode(struct sv_image_job *j, struct sv_err *err);

#endif
