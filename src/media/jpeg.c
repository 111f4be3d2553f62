/*
 * jpeg.c - JPEG, sequential and progressive, through libjpeg-turbo.
 *
 * Called by decode.c. libjpeg's errors longjmp: state that must survive is in struct reader, and
 * only libjpeg's frames are skipped. Must not: print, or decode a file with more scans than
 * encoders write.
 */
#include "media/formats.h"

#include <setjmp.h>
#include <jpeglib.h>
#include <jerror.h>

/* Each scan of a progressive file passes over all coefficients; encoders write about ten. */
#define MAX_SCANS 100
#define MAX_EXIF_BYTES 0xffff

struct reader {
    struct jpeg_decompress_struct cinfo;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf leave;
    struct sv_image_job *job;
    struct sv_err *err;
    int code;
};

static struct reader *reader_of(j_common_ptr cinfo)
{
    return cinfo->client_data;
}

static void on_error(j_common_ptr cinfo)
{
    struct reader *r = reader_of(cinfo);
    char text[JMSG_LENGTH_MAX];

    if (!r->code) {
        cinfo->err->format_message(cinfo, text);
        r->code =
            sv_fail(r->err, cinfo->err->msg_code == JERR_OUT_OF_MEMORY ? SV_ENOMEM : SV_EFORMAT, -1,
                    "%s", text);
    }
    longjmp(r->leave, 1);
}

static void fail(struct reader *r, int code, const char *text)
{
    r->code = sv_fail(r->err, code, -1, "%s", text);
    longjmp(r->leave, 1);
}

/* Warnings are ignored, as in Pillow, but a file that ends early is refused. */
static void on_message(j_common_ptr cinfo, int level)
{
    if (level < 0 && cinfo->err->msg_code == JWRN_JPEG_EOF)
        fail(reader_of(cinfo), SV_EFORMAT, "the file ends in the middle");
}

static void on_output(j_common_ptr cinfo)
{
    (void)cinfo;
}

static void on_progress(j_common_ptr cinfo)
{
    const struct reader *r = reader_of(cinfo);

    if (r->cinfo.input_scan_number > MAX_SCANS)
        fail(reader_of(cinfo), SV_EUNSUPPORTED, "more than 100 scans");
}

static void check_colours(struct reader *r)
{
    const int n = r->cinfo.num_components;

    if (n == 4)
        fail(r, SV_EUNSUPPORTED, "CMYK is not supported; convert it to RGB");
    if (n != 1 && n != 3)
        fail(r, SV_EUNSUPPORTED, "neither grey nor three colours");
}

static void read_image(struct reader *r)
{
    struct jpeg_decompress_struct *c = &r->cinfo;

    jpeg_create_decompress(c);
    c->progress = &r->progress;
    r->progress.progress_monitor = on_progress;
    jpeg_mem_src(c, r->job->bytes, r->job->n_bytes);
    jpeg_save_markers(c, JPEG_APP0 + 1, MAX_EXIF_BYTES);
    jpeg_read_header(c, TRUE);
    check_colours(r);
    r->code = sv_image_job_size(r->job, c->image_width, c->image_height, r->err);
    if (r->code)
        longjmp(r->leave, 1);
    for (const struct jpeg_marker_struct *m = c->marker_list; m; m = m->next)
        if (r->job->orientation == 1)
            sv_image_job_exif(r->job, m->data, m->data_length);
    c->out_color_space = JCS_RGB;
    jpeg_start_decompress(c);
    while (c->output_scanline < c->output_height) {
        uint8_t *row = r->job->out->rgb + (size_t)c->output_scanline * c->output_width * 3;
        jpeg_read_scanlines(c, &row, 1);
    }
    jpeg_finish_decompress(c);
}

int sv_jpeg_decode(struct sv_image_job *j, struct sv_err *err)
{
    struct reader *r = sv_calloc(1, sizeof *r);

    if (!r)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    r->job = j;
    r->err = err;
    r->cinfo.err = jpeg_std_error(&r->errors);
    r->cinfo.client_data = r;
    r->errors.error_exit = on_error;
    r->errors.emit_message = on_message;
    r->errors.output_message = on_output;
    if (!setjmp(r->leave))
        read_image(r);
    jpeg_destroy_decompress(&r->cinfo);
    const int rc = r->code;
    sv_free(r);
    return rc;
}
