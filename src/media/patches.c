/*
 * patches.c - pixels to the normalised patches that a vision tower reads, and their hash.
 *
 * Called by engine. The values are those of transformers' Qwen2VLImageProcessor, bit for bit. Must
 * not: give equal hashes to images that differ, since prefixes of the cache are found by them.
 */
#include "media/digest.h"
#include "media/media.h"

#include <string.h>

/* The value of each byte of a colour: scaled by 1/255 and normalised, in one step. */
static void table_of(const struct sv_vision_prep *p, int colour, float value[256])
{
    const float mean = p->mean[colour] * 255, std = p->std[colour] * 255;

    for (int i = 0; i < 256; i++)
        value[i] = ((float)i - mean) / std;
}

/* One patch; at: its first pixel. Both frames of an image are the same. */
static float *cut_patch(const struct sv_vision_prep *p, float value[3][256], const uint8_t *at,
                        size_t n_row, float *to)
{
    for (int colour = 0; colour < 3; colour++)
        for (int32_t frame = 0; frame < p->temporal; frame++)
            for (int32_t y = 0; y < p->patch; y++)
                for (int32_t x = 0; x < p->patch; x++)
                    *to++ = value[colour][at[(size_t)y * n_row + 3 * (size_t)x + (size_t)colour]];
    return to;
}

static void cut(const struct sv_vision_prep *p, const struct sv_pixels *px, struct sv_patches *out)
{
    const size_t n_row = 3 * (size_t)px->width, side = (size_t)p->patch;
    const int32_t m = p->merge;
    float value[3][256], *to = out->values;

    for (int colour = 0; colour < 3; colour++)
        table_of(p, colour, value[colour]);
    for (int32_t y = 0; y < out->grid_h; y += m)
        for (int32_t x = 0; x < out->grid_w; x += m)
            for (int32_t i = 0; i < m * m; i++)
                to = cut_patch(p, value,
                               px->rgb + (size_t)(y + i / m) * side * n_row +
                                   3 * side * (size_t)(x + i % m),
                               n_row, to);
}

void sv_pixels_hash(const struct sv_pixels *px, const struct sv_vision_prep *p, uint64_t hash[2])
{
    const int32_t grid[2] = {px->height / p->patch, px->width / p->patch};
    uint8_t head[8], digest[32];
    struct sv_digest d;

    for (int i = 0; i < 8; i++)
        head[i] = (uint8_t)(grid[i / 4] >> 8 * (i % 4));
    sv_digest_begin(&d);
    sv_digest_add(&d, head, sizeof head);
    sv_digest_add(&d, px->rgb, 3 * (size_t)px->width * (size_t)px->height);
    sv_digest_end(&d, digest);
    for (int i = 0; i < 2; i++) {
        hash[i] = 0;
        for (int k = 0; k < 8; k++)
            hash[i] = hash[i] << 8 | digest[8 * i + k];
    }
}

int sv_patches_make(const struct sv_vision_prep *p, const struct sv_pixels *px,
                    struct sv_patches *out, struct sv_err *err)
{
    const size_t n_patch = 3 * (size_t)p->temporal * (size_t)p->patch * (size_t)p->patch;

    *out = (struct sv_patches){.grid_h = px->height / p->patch, .grid_w = px->width / p->patch};
    out->values = sv_alloc((size_t)out->grid_h * (size_t)out->grid_w * n_patch * sizeof(float));
    if (!out->values)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory for the patches of an image");
    cut(p, px, out);
    return SV_OK;
}

void sv_patches_free(struct sv_patches *p)
{
    sv_free(p->values);
    p->values = NULL;
}
