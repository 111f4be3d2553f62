/*
 * media.h - front header of src/media: encoded images to pixels, pixels to the patches that a
 * vision tower reads.
 *
 * Called by engine (preparation, patches), serve and cli (decoding). The decoders are the only
 * files that call libpng, libjpeg-turbo and libwebp. Must not: know a model's layers, fetch
 * anything, or allocate for an image before its sizes are within the limits.
 */
#ifndef SV_MEDIA_H
#define SV_MEDIA_H

#include "base/base.h"

/* ---------------------------------------------------------------- decoding */

/* 8-bit RGB, rows without padding. */
struct sv_pixels {
    uint8_t *rgb;
    int32_t width, height;
};
void sv_pixels_free(struct sv_pixels *p);

struct sv_image_limits {
    size_t max_bytes; /* encoded */
    int64_t max_pixels;
    int32_t max_side;
};
/* The limits of requests and of the command line. */
#define SV_IMAGE_MAX_BYTES ((size_t)32 << 20)
#define SV_IMAGE_MAX_PIXELS ((int64_t)64 << 20)
#define SV_IMAGE_MAX_SIDE 32768

/* PNG, JPEG or WebP, by their first bytes. The pixels are those of Pillow's convert("RGB") after
 * EXIF's orientation: an alpha channel is dropped, not blended; of 16 bits a sample of colour keeps
 * the high byte, grey is clamped to 255. limits NULL: the above. */
int sv_image_decode(const void *bytes, size_t n_bytes, const struct sv_image_limits *limits,
                    struct sv_pixels *out, struct sv_err *err);

/* ---------------------------------------------------------------- preparation */

/* A model's image processor, by preprocessor_config.json. */
struct sv_vision_prep {
    int32_t patch, merge, temporal; /* pixels a side; patches a side of a block; frames */
    int64_t min_pixels, max_pixels; /* of the resized image */
    float mean[3], std[3];
};
/* DIR/processor_config.json where it has an image_processor, else DIR/preprocessor_config.json. */
int sv_vision_prep_load(const char *dir, struct sv_vision_prep *out, struct sv_err *err);
/* The size to which an image of this size is resized. */
int sv_vision_prep_fit(const struct sv_vision_prep *p, int32_t width, int32_t height,
                       int32_t *to_width, int32_t *to_height, struct sv_err *err);
/* Rows of the language model that an image of this resized size takes. */
int64_t sv_vision_prep_rows(const struct sv_vision_prep *p, int32_t width, int32_t height);
/* Bicubic with antialiasing, in 16-bit fixed point as PyTorch has it for bytes. */
int sv_pixels_resize(const uint8_t *rgb, int32_t width, int32_t height, int32_t to_width,
                     int32_t to_height, struct sv_pixels *out, struct sv_err *err);

/* Hash of a resized image: SHA-256 of its grid and pixels, equal only for equal patches. */
void sv_pixels_hash(const struct sv_pixels *px, const struct sv_vision_prep *p, uint64_t hash[2]);

struct sv_patches {
    int32_t grid_h, grid_w; /* patches */
    /* (grid_h * grid_w, 3 * temporal * patch * patch) f32, [channel][frame][row][column]; patches
     * block by block: block row, block column, row in the block, column in it */
    float *values;
};
/* Patches of a resized image, normalised; with patches of 16 x 16 pixels eight times its bytes. */
int sv_patches_make(const struct sv_vision_prep *p, const struct sv_pixels *px,
                    struct sv_patches *out, struct sv_err *err);
void sv_patches_free(struct sv_patches *p);

#endif
