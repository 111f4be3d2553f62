/*
 * fuzz_image.c - any bytes through the image decoders, and what is decoded into patches.
 *
 * Called by driver.c and libFuzzer. Sizes are within the limits, and the pixels are all there.
 */
#include "media/media.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const struct sv_image_limits limits = {1 << 18, 1 << 14, 1 << 12};
    static const struct sv_vision_prep prep = {.patch = 4,
                                               .merge = 2,
                                               .temporal = 1,
                                               .min_pixels = 64,
                                               .max_pixels = 1024,
                                               .std = {1, 1, 1}};
    struct sv_pixels px, fit;
    struct sv_patches patches;
    int32_t w, h;
    struct sv_err err;
    unsigned sum = 0;

    if (sv_image_decode(data, n, &limits, &px, &err)) {
        SV_REQUIRE(!px.rgb);
        return 0;
    }
    SV_REQUIRE(px.width > 0 && px.width <= limits.max_side && px.height > 0 &&
               px.height <= limits.max_side);
    SV_REQUIRE((int64_t)px.width * px.height <= limits.max_pixels);
    for (size_t i = 0; i < 3 * (size_t)px.width * (size_t)px.height; i++)
        sum += px.rgb[i];
    SV_REQUIRE(sum <= 255u * 3 * (unsigned)limits.max_pixels);
    if (!sv_vision_prep_fit(&prep, px.width, px.height, &w, &h, &err) &&
        !sv_pixels_resize(px.rgb, px.width, px.height, w, h, &fit, &err)) {
        if (!sv_patches_make(&prep, &fit, &patches, &err))
            SV_REQUIRE(patches.grid_h % prep.merge == 0 && patches.grid_w % prep.merge == 0);
        sv_patches_free(&patches);
        sv_pixels_free(&fit);
    }
    sv_pixels_free(&px);
    return 0;
}
