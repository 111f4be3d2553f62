/*
 * png.c - PNG through libpng.
 *
 * Called by decode.c. Only the first image of an animated PNG is read. Ancillary chunks are
 * skipped, except the orientation. libpng's errors longjmp: state that must survive is in struct
 * reader, and only libpng's frames are skipped. Must not: print, or let a compressed chunk
 * determine the memory used.
 */
#include "media/formats.h"

#include <png.h>
#include <string.h>

struct reader {
    struct sv_image_job *job;
    struct sv_err *err;
    png_structp png;
    png_infop info;
    png_bytep *rows; /* (height) */
    size_t at;       /* of the bytes */
    int code;        /* of the error; 0: libpng's own */
};

static void on_error(png_structp png, png_const_charp text)
{
    struct reader *r = png_get_error_ptr(png);

    if (!r->code)
        r->code = sv_fail(r->err, SV_EFORMAT, (int64_t)r->at, "byte %zu: %s", r->at, text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png, (void)text;
}

static void *take_memory(png_structp png, png_alloc_size_t n)
{
    struct reader *r = png_get_mem_ptr(png);
    void *p = sv_alloc(n);

    if (!p && !r->code)
        r->code = sv_fail(r->err, SV_ENOMEM, -1, "out of memory");
    return p;
}

static void free_memory(png_structp png, void *p)
{
    (void)png;
    sv_free(p);
}

static void read_bytes(png_structp png, png_bytep to, size_t n)
{
    struct reader *r = png_get_io_ptr(png);

    if (n > r->job->n_bytes - r->at)
        png_error(png, "the file ends in the middle");
    memcpy(to, r->job->bytes + r->at, n);
    r->at += n;
}

/* All but pixels and orientation is skipped without decompression. */
static void skip_chunks(png_structp png)
{
    static const png_byte exif[] = "eXIf";

    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_AS_DEFAULT, exif, 1);
    png_set_crc_action(png, PNG_CRC_DEFAULT, PNG_CRC_QUIET_USE);
}

/* A row of 16-bit grey in place to RGB, clamped to 255. */
static void widen(uint8_t *row, size_t width)
{
    for (size_t x = width; x-- > 0;) {
        const uint8_t v = row[2 * x] ? 255 : row[2 * x + 1];
        memset(row + 3 * x, v, 3);
    }
}

static void take_orientation(struct reader *r)
{
    png_uint_32 n = 0;
    png_bytep exif = NULL;

    if (png_get_eXIf_1(r->png, r->info, &n, &exif))
        sv_image_job_exif(r->job, exif, n);
}

/* The calls of libpng; errors longjmp out. */
static void read_image(struct reader *r)
{
    struct sv_pixels *out = r->job->out;

    png_read_info(r->png, r->info);
    const int type = png_get_color_type(r->png, r->info),
              depth = png_get_bit_depth(r->png, r->info);
    const bool grey16 = type == PNG_COLOR_TYPE_GRAY && depth == 16;
    r->code = sv_image_job_size(r->job, png_get_image_width(r->png, r->info),
                                png_get_image_height(r->png, r->info), r->err);
    if (r->code)
        png_error(r->png, "");
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(r->png);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(r->png);
    if (depth == 16 && !grey16)
        png_set_strip_16(r->png);
    png_set_strip_alpha(r->png);
    if (!(type & PNG_COLOR_MASK_COLOR) && !grey16)
        png_set_gray_to_rgb(r->png);
    png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
    if (png_get_rowbytes(r->png, r->info) != (size_t)out->width * (grey16 ? 2 : 3))
        png_error(r->png, "colours that are not known");
    r->rows = sv_alloc((size_t)out->height * sizeof *r->rows);
    if (!r->rows) {
        r->code = sv_fail(r->err, SV_ENOMEM, -1, "out of memory for the pixels");
        png_error(r->png, "");
    }
    for (int32_t y = 0; y < out->height; y++)
        r->rows[y] = out->rgb + (size_t)y * (size_t)out->width * 3;
    png_read_image(r->png, r->rows);
    png_read_end(r->png, r->info);
    take_orientation(r);
    for (int32_t y = 0; grey16 && y < out->height; y++)
        widen(r->rows[y], (size_t)out->width);
}

/* Not in the function of the reader: changed locals are lost by longjmp. */
static void run(struct reader *r)
{
    if (setjmp(png_jmpbuf(r->png)))
        return;
    png_set_read_fn(r->png, r, read_bytes);
    png_set_user_limits(r->png, PNG_UINT_31_MAX, PNG_UINT_31_MAX); /* ours have messages */
    skip_chunks(r->png);
    read_image(r);
}

int sv_png_decode(struct sv_image_job *j, struct sv_err *err)
{
    struct reader r = {.job = j, .err = err};

    r.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &r, on_error, on_warning, &r,
                                     take_memory, free_memory);
    if (!r.png)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    r.info = png_create_info_struct(r.png);
    if (!r.info) {
        png_destroy_read_struct(&r.png, NULL, NULL);
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    run(&r);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    sv_free(r.rows);
    return r.code;
}
