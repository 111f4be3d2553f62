/*
 * test_decode.c - encoded images: pixels as Pillow has them, limits before anything is allocated,
 * damage, missing memory.
 */
#include "golden.h"
#include "media/media.h"
#include "testing.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static struct sv_buf read_image(const char *name)
{
    char path[128];
    struct sv_buf b;
    struct sv_err err;

    snprintf(path, sizeof path, "tests/golden/images/%s", name);
    sv_buf_init(&b);
    if (sv_file_read(&b, sv_test_path(path), 1 << 20, &err))
        fail_msg("%s", err.msg);
    return b;
}

static int decode(const char *name, const struct sv_image_limits *l, struct sv_pixels *px,
                  struct sv_err *err)
{
    struct sv_buf b = read_image(name);
    int rc = sv_image_decode(b.data, b.len, l, px, err);
    sv_buf_fini(&b);
    return rc;
}

static void expect(int rc, int code, const struct sv_err *err, const char *text)
{
    if (rc != code || (rc && !strstr(err->msg, text)))
        fail_msg("%d (%s), not %d with '%s'", rc, rc ? err->msg : "", code, text);
}

/* What a tensor's entry in the header says of its shape: sides are not in golden.h. */
static void expect_pixels(const char *name, const struct sv_pixels *px, struct golden *g)
{
    size_t n;
    const uint8_t *want = golden_get(g, "U8", &n, "%s", name);

    if (n != 3 * (size_t)px->width * (size_t)px->height)
        fail_msg("%s: %d x %d pixels, and %zu bytes in the golden file", name, px->width,
                 px->height, n);
    for (size_t i = 0; i < n; i++)
        if (px->rgb[i] != want[i])
            fail_msg("%s: byte %zu is %d, not %d", name, i, px->rgb[i], want[i]);
}

static const char *const refused[] = {"cmyk.jpg", "animated.webp", "still.gif"};

static bool is_refused(const char *name)
{
    for (size_t i = 0; i < 3; i++)
        if (strcmp(name, refused[i]) == 0)
            return true;
    return false;
}

/* Each file, whatever format its name says. */
static void pixels_are_the_references(void **state)
{
    (void)state;
    struct golden g = golden_open("images/decoded.safetensors");
    DIR *d = opendir(sv_test_path("tests/golden/images"));
    struct dirent *e;
    int n = 0;

    assert_non_null(d);
    while ((e = readdir(d))) {
        const char *end = strrchr(e->d_name, '.');
        struct sv_pixels px;
        struct sv_err err;
        if (e->d_name[0] == '.' || strcmp(end, ".json") == 0 || strcmp(end, ".safetensors") == 0 ||
            is_refused(e->d_name))
            continue;
        if (decode(e->d_name, NULL, &px, &err))
            fail_msg("%s: %s", e->d_name, err.msg);
        expect_pixels(e->d_name, &px, &g);
        sv_pixels_free(&px);
        n++;
    }
    closedir(d);
    golden_close(&g);
    assert_int_equal(n, 32);
    assert_int_equal(sv_alloc_live(), 0);
}

/* A turned image's sides are exchanged, which a square would not show. */
static void orientation_turns(void **state)
{
    (void)state;
    for (int i = 1; i <= 8; i++) {
        char name[32];
        struct sv_pixels px;
        struct sv_err err;
        snprintf(name, sizeof name, "orientation%d.jpg", i);
        expect(decode(name, NULL, &px, &err), SV_OK, &err, "");
        assert_int_equal(px.width, i > 4 ? 17 : 23);
        assert_int_equal(px.height, i > 4 ? 23 : 17);
        sv_pixels_free(&px);
    }
}

static void what_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        int code;
        const char *text;
    } list[] = {
        {"", 0, SV_EFORMAT, "empty"},
        {"hello, world", 12, SV_EUNSUPPORTED, "no known image; PNG, JPEG and WebP are read"},
        {"GIF89a", 6, SV_EUNSUPPORTED, "GIF is not supported"},
        {"BM....", 6, SV_EUNSUPPORTED, "BMP is not supported"},
        {"\0\0\0\x18"
         "ftypheic",
         12, SV_EUNSUPPORTED, "HEIF or AVIF is not supported"},
        {"\x89PNG\r\n\x1a\n", 8, SV_EFORMAT, "PNG: byte 8: the file ends in the middle"},
        {"\xff\xd8\xff", 3, SV_EFORMAT, "JPEG: "},
        {"RIFF\x04\0\0\0WEBP", 12, SV_EFORMAT, "WebP: the head is damaged or incomplete"},
    };
    struct sv_pixels px;
    struct sv_err err;

    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        expect(sv_image_decode(list[i].bytes, list[i].n, NULL, &px, &err), list[i].code, &err,
               list[i].text);
        assert_null(px.rgb);
    }
    expect(decode("cmyk.jpg", NULL, &px, &err), SV_EUNSUPPORTED, &err, "JPEG: CMYK");
    expect(decode("animated.webp", NULL, &px, &err), SV_EUNSUPPORTED, &err, "WebP: animations");
    expect(decode("still.gif", NULL, &px, &err), SV_EUNSUPPORTED, &err, "GIF");
}

/* Before anything is allocated for pixels: with the limit one below, the pixels' allocation, which
 * would fail, is never reached. */
static void limits(void **state)
{
    (void)state;
    static const char *const names[] = {"rgb.png", "444.jpg", "lossless.webp", "interlaced.png"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sv_buf b = read_image(names[i]);
        struct sv_image_limits l = {b.len, 23 * 17, 23};
        struct sv_pixels px;
        struct sv_err err;
        expect(sv_image_decode(b.data, b.len, &l, &px, &err), SV_OK, &err, "");
        sv_pixels_free(&px);
        l.max_bytes--;
        expect(sv_image_decode(b.data, b.len, &l, &px, &err), SV_EINVAL, &err, "bytes; it may");
        l = (struct sv_image_limits){b.len, 23 * 17 - 1, 23};
        expect(sv_image_decode(b.data, b.len, &l, &px, &err), SV_EINVAL, &err,
               "23 x 17 pixels; an image may have 390 in all");
        l = (struct sv_image_limits){b.len, 23 * 17, 22};
        expect(sv_image_decode(b.data, b.len, &l, &px, &err), SV_EINVAL, &err,
               "23 x 17 pixels; a side may have 22");
        assert_null(px.rgb);
        sv_buf_fini(&b);
    }
}

/* A head that promises 2^31 pixels a side costs nothing. */
static void sizes_that_lie(void **state)
{
    (void)state;
    static const uint8_t sides[] = {0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff};
    struct sv_buf b = read_image("rgb.png");
    struct sv_pixels px;
    struct sv_err err;

    memcpy(b.data + 16, sides, sizeof sides);
    /* the checksum of the head is wrong now: libpng says so, or ours is the first to speak */
    assert_true(sv_image_decode(b.data, b.len, NULL, &px, &err) < 0);
    assert_null(px.rgb);
    sv_buf_fini(&b);
    b = read_image("baseline.jpg");
    for (size_t i = 0; i + 9 < b.len; i++)
        if ((uint8_t)b.data[i] == 0xff && (uint8_t)b.data[i + 1] == 0xc0) {
            memset(b.data + i + 5, 0xf0, 4); /* beyond 65,500 libjpeg speaks first */
            break;
        }
    expect(sv_image_decode(b.data, b.len, NULL, &px, &err), SV_EINVAL, &err,
           "JPEG: 61680 x 61680 pixels");
    assert_null(px.rgb);
    sv_buf_fini(&b);
}

static void every_beginning_is_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"rgb.png",    "interlaced.png",  "orientation6.png",
                                        "444.jpg",    "progressive.jpg", "orientation6.jpg",
                                        "lossy.webp", "lossless.webp"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sv_buf b = read_image(names[i]);
        for (size_t n = 0; n < b.len; n++) {
            uint8_t *copy = malloc(n ? n : 1); /* ends where it ends */
            struct sv_pixels px;
            struct sv_err err;
            if (n)
                memcpy(copy, b.data, n);
            if (sv_image_decode(copy, n, NULL, &px, &err) >= 0)
                fail_msg("%s: its first %zu of %zu bytes were accepted", names[i], n, b.len);
            assert_null(px.rgb);
            assert_true(err.msg[0]);
            free(copy);
        }
        sv_buf_fini(&b);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* Scans beyond what any encoder writes: each would pass over all coefficients. */
static void too_many_scans(void **state)
{
    (void)state;
    struct sv_buf b = read_image("progressive.jpg"), many;
    struct sv_pixels px;
    struct sv_err err;
    size_t last = 0;

    for (size_t i = 0; i + 1 < b.len; i++)
        if ((uint8_t)b.data[i] == 0xff && (uint8_t)b.data[i + 1] == 0xda)
            last = i;
    sv_buf_init(&many);
    sv_buf_append(&many, b.data, last);
    for (int i = 0; i < 200; i++)
        sv_buf_append(&many, b.data + last, b.len - 2 - last);
    sv_buf_append(&many, b.data + b.len - 2, 2);
    expect(sv_image_decode(many.data, many.len, NULL, &px, &err), SV_EUNSUPPORTED, &err,
           "JPEG: more than 100 scans");
    sv_buf_fini(&many);
    sv_buf_fini(&b);
}

static void missing_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"rgb.png", "grey16.png", "orientation6.png",
                                        "orientation6.jpg", "orientation8.webp"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct sv_buf b = read_image(names[i]);
        int rc = SV_ENOMEM;
        for (int64_t nth = 1; rc; nth++) {
            struct sv_pixels px;
            struct sv_err err;
            sv_fault_arm(nth);
            rc = sv_image_decode(b.data, b.len, NULL, &px, &err);
            sv_fault_arm(0);
            if (rc)
                expect(rc, SV_ENOMEM, &err, "out of memory");
            sv_pixels_free(&px);
        }
        sv_buf_fini(&b);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

SV_TEST_MAIN(cmocka_unit_test(pixels_are_the_references), cmocka_unit_test(orientation_turns),
             cmocka_unit_test(what_is_refused), cmocka_unit_test(limits),
             cmocka_unit_test(sizes_that_lie), cmocka_unit_test(every_beginning_is_refused),
             cmocka_unit_test(too_many_scans), cmocka_unit_test(missing_memory))
