/*
 * test_prep.c - what is made of an image's pixels: sizes, resizing, normalisation and the order of
 * patches as transformers' image processor has them, bit for bit; hashes; configurations.
 */
#include "golden.h"
#include "media/digest.h"
#include "media/media.h"
#include "testing.h"

#include <stdlib.h>
#include <string.h>

static json_t *cases(const char *name, json_t **root)
{
    struct sv_err err;

    *root = sv_json_load(sv_test_path("tests/golden/images/prepared.json"), 1 << 20, &err);
    assert_non_null(*root);
    return json_object_get(*root, name);
}

static int64_t integer(const json_t *o, const char *name)
{
    assert_true(json_is_integer(json_object_get(o, name)));
    return json_integer_value(json_object_get(o, name));
}

static struct sv_vision_prep prep_of(const json_t *c)
{
    struct sv_vision_prep p = {.patch = (int32_t)integer(c, "patch"),
                               .merge = (int32_t)integer(c, "merge"),
                               .temporal = (int32_t)integer(c, "temporal"),
                               .min_pixels = integer(c, "min_pixels"),
                               .max_pixels = integer(c, "max_pixels")};
    for (size_t i = 0; i < 3; i++) {
        p.mean[i] = (float)json_number_value(json_array_get(json_object_get(c, "mean"), i));
        p.std[i] = (float)json_number_value(json_array_get(json_object_get(c, "std"), i));
    }
    return p;
}

/* As tools/golden/make_images.py makes it. */
static uint8_t *pattern(int64_t w, int64_t h)
{
    uint8_t *rgb = malloc((size_t)(3 * w * h)), *at = rgb;

    for (int64_t y = 0; y < h; y++)
        for (int64_t x = 0; x < w; x++)
            for (int64_t c = 0; c < 3; c++)
                *at++ = (uint8_t)(x * x * (c + 1) + y * 5 + x * y / (3 + c));
    return rgb;
}

static void hex_of(const void *data, size_t n, char hex[65])
{
    struct sv_digest d;
    uint8_t out[32];

    sv_digest_begin(&d);
    sv_digest_add(&d, data, n);
    sv_digest_end(&d, out);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", out[i]);
}

static size_t n_values(const struct sv_vision_prep *p, const struct sv_patches *s)
{
    return (size_t)s->grid_h * (size_t)s->grid_w * 3 * (size_t)p->temporal * (size_t)p->patch *
           (size_t)p->patch;
}

/* As the engine does: resized, then cut up. */
static int patches_of(const struct sv_vision_prep *p, const uint8_t *rgb, int32_t width,
                      int32_t height, struct sv_patches *s, struct sv_err *err)
{
    struct sv_pixels px = {.rgb = NULL};
    int32_t w, h;
    int rc = sv_vision_prep_fit(p, width, height, &w, &h, err);
    *s = (struct sv_patches){.values = NULL};
    if (!rc)
        rc = sv_pixels_resize(rgb, width, height, w, h, &px, err);
    if (!rc)
        rc = sv_patches_make(p, &px, s, err);
    sv_pixels_free(&px);
    return rc;
}

static void patches_are_the_references(void **state)
{
    (void)state;
    struct golden g = golden_open("images/prepared.safetensors");
    json_t *root, *list = cases("cases", &root), *c;
    size_t i, n_compared = 0;

    json_array_foreach(list, i, c) {
        const struct sv_vision_prep p = prep_of(c);
        const int64_t w = integer(c, "width"), h = integer(c, "height");
        const json_t *grid = json_object_get(c, "grid");
        uint8_t *rgb = pattern(w, h);
        struct sv_patches s;
        struct sv_err err;
        char hex[65];
        size_t n;
        if (patches_of(&p, rgb, (int32_t)w, (int32_t)h, &s, &err))
            fail_msg("case %zu: %s", i, err.msg);
        assert_int_equal(s.grid_h, json_integer_value(json_array_get(grid, 0)));
        assert_int_equal(s.grid_w, json_integer_value(json_array_get(grid, 1)));
        if (golden_has(&g, "values.%zu", i)) {
            const float *want = golden_get(&g, "F32", &n, "values.%zu", i);
            assert_int_equal(n, n_values(&p, &s));
            for (size_t k = 0; k < n; k++)
                if (s.values[k] != want[k])
                    fail_msg("case %zu: value %zu is %.9g, not %.9g", i, k, (double)s.values[k],
                             (double)want[k]);
            n_compared++;
        }
        hex_of(s.values, n_values(&p, &s) * sizeof(float), hex);
        if (strcmp(hex, json_string_value(json_object_get(c, "sha256"))) != 0)
            fail_msg("case %zu: other values than the reference's", i);
        sv_patches_free(&s);
        free(rgb);
    }
    assert_true(i == 9 && n_compared == 6);
    json_decref(root);
    golden_close(&g);
}

static void sizes_are_the_references(void **state)
{
    (void)state;
    json_t *root, *list = cases("sizes", &root), *c;
    size_t i, n_refused = 0;

    json_array_foreach(list, i, c) {
        int64_t v[7];
        int32_t w = 0, h = 0;
        struct sv_err err;
        for (size_t k = 0; k < 7; k++)
            v[k] = json_integer_value(json_array_get(c, k));
        const struct sv_vision_prep p = {
            .patch = (int32_t)v[0] / 2, .merge = 2, .min_pixels = v[1], .max_pixels = v[2]};
        int rc = sv_vision_prep_fit(&p, (int32_t)v[3], (int32_t)v[4], &w, &h, &err);
        if (rc)
            w = h = 0;
        n_refused += rc != 0;
        if (w != v[5] || h != v[6])
            fail_msg("%d x %d became %d x %d, not %d x %d", (int)v[3], (int)v[4], w, h, (int)v[5],
                     (int)v[6]);
    }
    assert_true(i > 100 && n_refused > 3 && n_refused < i / 2);
    json_decref(root);
}

/* An image that has its size already stays as it is: serve resizes before the engine does. */
static void resizing_twice_is_resizing_once(void **state)
{
    (void)state;
    const struct sv_vision_prep p = {.patch = 4,
                                     .merge = 2,
                                     .temporal = 2,
                                     .min_pixels = 256,
                                     .max_pixels = 1024,
                                     .mean = {0.5f, 0.5f, 0.5f},
                                     .std = {0.5f, 0.5f, 0.5f}};
    struct sv_pixels once, twice;
    struct sv_err err;
    uint64_t hash[2][2];
    int32_t w, h, again_w, again_h;
    uint8_t *rgb = pattern(61, 47);

    assert_int_equal(sv_vision_prep_fit(&p, 61, 47, &w, &h, &err), SV_OK);
    assert_int_equal(sv_vision_prep_rows(&p, w, h), w / 8 * (h / 8));
    assert_int_equal(sv_pixels_resize(rgb, 61, 47, w, h, &once, &err), SV_OK);
    assert_int_equal(sv_vision_prep_fit(&p, w, h, &again_w, &again_h, &err), SV_OK);
    assert_true(again_w == w && again_h == h && w != h);
    assert_int_equal(sv_pixels_resize(once.rgb, w, h, w, h, &twice, &err), SV_OK);
    assert_memory_equal(once.rgb, twice.rgb, 3 * (size_t)w * (size_t)h);
    sv_pixels_hash(&once, &p, hash[0]);
    sv_pixels_hash(&twice, &p, hash[1]);
    assert_memory_equal(hash[0], hash[1], sizeof hash[0]);
    /* one bit of one pixel, and the same bytes in another form */
    twice.rgb[3 * w + 5] ^= 1;
    sv_pixels_hash(&twice, &p, hash[1]);
    assert_memory_not_equal(hash[0], hash[1], sizeof hash[0]);
    twice.rgb[3 * w + 5] ^= 1;
    twice.width = h;
    twice.height = w;
    sv_pixels_hash(&twice, &p, hash[1]);
    assert_memory_not_equal(hash[0], hash[1], sizeof hash[0]);
    sv_pixels_free(&twice);
    sv_pixels_free(&once);
    free(rgb);
}

static void digests(void **state)
{
    (void)state;
    char hex[65], *many = malloc(1000000);
    struct sv_digest d, e;
    uint8_t a[32], b[32];

    hex_of("", 0, hex); /* the three of FIPS 180-4 and its like */
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hex_of("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    memset(many, 'a', 1000000);
    hex_of(many, 1000000, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    for (size_t n = 0; n < 200; n++) { /* in pieces, across blocks */
        sv_digest_begin(&d);
        sv_digest_add(&d, many, n);
        sv_digest_end(&d, a);
        sv_digest_begin(&e);
        for (size_t at = 0; at < n;) {
            const size_t piece = at + 7 < n ? 7 : n - at;
            sv_digest_add(&e, many + at, piece);
            at += piece;
        }
        sv_digest_end(&e, b);
        assert_memory_equal(a, b, sizeof a);
    }
    free(many);
}

/* ---------------------------------------------------------------- configurations */

#define REST                                                                                       \
    "\"patch_size\":16,\"merge_size\":2,\"temporal_patch_size\":2,\"image_mean\":[0.5,0.5,0.5],"   \
    "\"image_std\":[0.5,0.25,0.5]"
#define SIZE "\"size\":{\"shortest_edge\":65536,\"longest_edge\":16777216}"

static int load(const char *name, const char *text, struct sv_vision_prep *p, struct sv_err *err)
{
    const char *path = sv_test_tmp(name);
    char dir[512];
    struct sv_err own;

    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    assert_int_equal(sv_file_write(path, text, strlen(text), &own), SV_OK);
    int rc = sv_vision_prep_load(dir, p, err);
    remove(sv_test_tmp(name));
    return rc;
}

static void a_published_file(void **state)
{
    (void)state;
    static const char text[] =
        "{" SIZE "," REST ",\"processor_class\":\"Qwen3VLProcessor\","
        "\"image_processor_type\":\"Qwen2VLImageProcessorFast\",\"do_resize\":true,"
        "\"rescale_factor\":0.00392156862745098,\"resample\":3,\"min_pixels\":null}";
    char nested[1024];
    struct sv_vision_prep p, q;
    struct sv_err err;

    assert_int_equal(load("preprocessor_config.json", text, &p, &err), SV_OK);
    assert_true(p.patch == 16 && p.merge == 2 && p.temporal == 2);
    assert_true(p.min_pixels == 65536 && p.max_pixels == 16777216);
    assert_true(p.mean[0] == 0.5f && p.std[1] == 0.25f);
    snprintf(nested, sizeof nested, "{\"image_processor\":%s,\"video_processor\":{}}", text);
    assert_int_equal(load("processor_config.json", nested, &q, &err), SV_OK);
    assert_memory_equal(&p, &q, sizeof p);
    /* the older names take precedence */
    assert_int_equal(load("preprocessor_config.json",
                          "{" SIZE "," REST ",\"min_pixels\":3136,\"max_pixels\":12845056}", &p,
                          &err),
                     SV_OK);
    assert_true(p.min_pixels == 3136 && p.max_pixels == 12845056);
}

static void configurations_that_are_refused(void **state)
{
    (void)state;
    static const char *const list[][2] = {
        {"{" REST "}", "field 'size' must have"},
        {"{\"size\":{\"height\":224}," REST "}", "field 'size' must have"},
        {"{\"size\":{\"shortest_edge\":9,\"longest_edge\":8}," REST "}", "9 pixels at least"},
        {"{\"size\":{\"shortest_edge\":0,\"longest_edge\":8}," REST "}", "size: "},
        {"{" SIZE "," REST ",\"do_resize\":false}", "'do_resize': false is not supported"},
        {"{" SIZE "," REST ",\"do_normalize\":false}", "'do_normalize'"},
        {"{" SIZE "," REST ",\"resample\":2}", "'resample': 2 is not supported"},
        {"{" SIZE "," REST ",\"rescale_factor\":1}", "'rescale_factor': 1 is not supported"},
        {"{" SIZE "," REST ",\"image_processor_type\":\"CLIPImageProcessor\"}",
         "'CLIPImageProcessor' is not supported"},
        {"{" SIZE ",\"merge_size\":2}", "'patch_size'"},
        {"{" SIZE ",\"patch_size\":0,\"merge_size\":2}", "'patch_size'"},
        {"{" SIZE ",\"patch_size\":16,\"merge_size\":2,\"temporal_patch_size\":2,"
         "\"image_mean\":[0.5,0.5]}",
         "'image_mean' must be three numbers"},
        {"{" SIZE ",\"patch_size\":16,\"merge_size\":2,\"temporal_patch_size\":2,"
         "\"image_mean\":[0.5,0.5,0.5],\"image_std\":[0.5,0,0.5]}",
         "'image_std' must be three numbers"},
        {"[]", "preprocessor_config.json"},
    };
    struct sv_vision_prep p;
    struct sv_err err;

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        if (load("preprocessor_config.json", list[i][0], &p, &err) >= 0)
            fail_msg("%s was accepted", list[i][0]);
        if (!strstr(err.msg, list[i][1]) || !strstr(err.msg, "preprocessor_config.json"))
            fail_msg("%s: '%s' is not in: %s", list[i][0], list[i][1], err.msg);
    }
    assert_true(sv_vision_prep_load(sv_test_path("tests/media"), &p, &err) < 0);
    assert_non_null(strstr(err.msg, "has no preprocessor_config.json"));
}

static void missing_memory(void **state)
{
    (void)state;
    const struct sv_vision_prep p = {.patch = 4,
                                     .merge = 2,
                                     .temporal = 2,
                                     .min_pixels = 256,
                                     .max_pixels = 1024,
                                     .std = {1, 1, 1}};
    uint8_t *rgb = pattern(61, 47);
    int rc = SV_ENOMEM;

    for (int64_t nth = 1; rc; nth++) {
        struct sv_patches s;
        struct sv_err err;
        sv_fault_arm(nth);
        rc = patches_of(&p, rgb, 61, 47, &s, &err);
        sv_fault_arm(0);
        assert_true(rc == SV_OK || (rc == SV_ENOMEM && !s.values));
        sv_patches_free(&s);
        assert_int_equal(sv_alloc_live(), 0);
        assert_true(nth < 50);
    }
    free(rgb);
}

SV_TEST_MAIN(cmocka_unit_test(patches_are_the_references),
             cmocka_unit_test(sizes_are_the_references),
             cmocka_unit_test(resizing_twice_is_resizing_once), cmocka_unit_test(digests),
             cmocka_unit_test(a_published_file), cmocka_unit_test(configurations_that_are_refused),
             cmocka_unit_test(missing_memory))
