/*
 * pictures.c - see pictures.h.
 */
#include "engine/pictures.h"

#include "testing.h"

#include <string.h>

enum { N_PICTURES = 12, MOST_BYTES = 3 * 40 * 40, MOST_EACH = 3, MOST_CASES = 400 };

struct sv_image picture(int32_t i)
{
    static uint8_t pixels[N_PICTURES][MOST_BYTES];
    i %= N_PICTURES;
    struct sv_rng rng = {(uint64_t)i + 77};
    const int32_t w = 1 + i % 5, h = 1 + i / 4;
    for (int32_t k = 0; k < MOST_BYTES; k++)
        pixels[i][k] = (uint8_t)sv_rng_below(&rng, 256);
    return (struct sv_image){pixels[i], w * PICTURE_UNIT, h * PICTURE_UNIT};
}

int32_t picture_rows(const struct sv_image *image)
{
    return image->width / PICTURE_UNIT * (image->height / PICTURE_UNIT);
}

void pictures_add(struct run_case *c, int32_t n, uint64_t seed)
{
    static struct sv_image given[MOST_CASES][MOST_EACH];
    static int32_t n_given;
    struct sv_rng rng = {seed};
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < c[i].n_prompt; j++)
            c[i].prompt[j] -= c[i].prompt[j] == PICTURE_TOKEN;
        if (i % 3 == 1)
            continue;
        assert_true(n_given < MOST_CASES);
        struct sv_image *own = given[n_given++];
        const int32_t most = c[i].n_prompt < MOST_EACH ? c[i].n_prompt : MOST_EACH,
                      want = 1 + (int32_t)sv_rng_below(&rng, (uint32_t)most);
        c[i].req.images = own;
        for (int32_t k = 0; k < want; k++)
            c[i].prompt[sv_rng_below(&rng, (uint32_t)c[i].n_prompt)] = PICTURE_TOKEN;
        for (int32_t j = 0; j < c[i].n_prompt; j++) {
            if (c[i].prompt[j] != PICTURE_TOKEN)
                continue;
            own[c[i].req.n_images++] = picture((int32_t)sv_rng_below(&rng, N_PICTURES));
        }
    }
}
