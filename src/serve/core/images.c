/*
 * images.c - images of a conversation: message contents that have some, and content parts to
 * pixels.
 *
 * Called by prompt.c and the dialects; decoding runs on the thread that reads long bodies. An image
 * is resized there to what the model reads, so that the engine's thread has little left to do and a
 * waiting request keeps no more than that. Addresses are fetched on the loop (fetch.h), between two
 * readings of the body. Must not: read a file outside the directory of --media-dir.
 */
#define _XOPEN_SOURCE 700 /* realpath */

#include "serve/core/images.h"
#include "serve/core/server.h"
#include "serve/http/fetch.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define PLACE 128
#define MAX_PIXELS_IN_ALL (4 * SV_IMAGE_MAX_PIXELS) /* decoded for one request */
#define MAX_BYTES_PER_BODY 8 /* of all decoded images, by the limit of all large bodies */

/* ---------------------------------------------------------------- contents */

bool sv_part_is_image(const json_t *part)
{
    static const char *const types[] = {"image_url", "input_image", "image"};
    const char *type = json_string_value(json_object_get(part, "type"));

    for (size_t i = 0; type && i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i]) == 0)
            return true;
    return false;
}

void sv_content_init(struct sv_content *c)
{
    sv_buf_init(&c->text);
    c->parts = NULL;
    c->open = false;
}

void sv_content_fini(struct sv_content *c)
{
    sv_buf_fini(&c->text);
    json_decref(c->parts);
    c->parts = NULL;
}

void sv_content_text(struct sv_content *c, const json_t *text)
{
    if (c->open)
        sv_buf_lit(&c->text, "\n");
    sv_buf_append(&c->text, json_string_value(text), json_string_length(text));
    c->open = true;
}

/* The text so far becomes a part. 0, or -1: memory ran out. */
static int end_text(struct sv_content *c)
{
    const struct sv_buf *t = &c->text;

    if (t->failed ||
        (t->len && json_array_append_new(c->parts, json_pack("{s:s, s:s%}", "type", "text", "text",
                                                             t->data, t->len))))
        return -1;
    sv_buf_clear(&c->text);
    c->open = false;
    return 0;
}

static int note(struct sv_params *p, json_t *part, const char *place)
{
    if (!p->images) {
        json_t *list = json_array();
        if (!sv_params_own(p, list))
            return -1;
        p->images = list;
    }
    return json_array_append_new(p->images, json_pack("[O, s]", part, place));
}

int sv_content_image(struct sv_content *c, struct sv_params *p, json_t *part, const char *place,
                     struct sv_api_err *e)
{
    if (!c->parts)
        c->parts = json_array();
    if (!c->parts || end_text(c) ||
        json_array_append_new(c->parts, json_pack("{s:s}", "type", "image")) ||
        note(p, part, place))
        return sv_api_no_memory(e);
    return 0;
}

json_t *sv_content_take(struct sv_content *c)
{
    json_t *v = NULL;

    if (c->parts && !end_text(c)) {
        v = c->parts;
        c->parts = NULL;
    } else if (!c->parts && !c->text.failed) {
        v = json_stringn(c->text.data ? c->text.data : "", c->text.len);
        sv_buf_clear(&c->text);
        c->open = false;
    }
    return v;
}

/* ---------------------------------------------------------------- errors */

/* In chats and messages the field is all of the messages, in responses the place. */
static const char *field_of(const char *place)
{
    return strncmp(place, "messages", 8) == 0 ? "messages" : place;
}

int sv_serve_images_check(const struct sv_serve *s, const struct sv_params *p, struct sv_api_err *e)
{
    const char *place = json_string_value(json_array_get(json_array_get(p->images, 0), 1));

    if (!place || s->model->takes_images)
        return 0;
    return sv_api_unsupported(e, field_of(place), "'%s': this model takes no images here: %s",
                              place, s->model->no_images);
}

/* ---------------------------------------------------------------- parts to bytes */

/* The source of an image: the part's place and the member with the data. */
struct source {
    const char *text;
    size_t n;
    bool is_url; /* else base64 */
    char at[PLACE];
};

static int ill(const struct source *src, const char *want, struct sv_api_err *e)
{
    return sv_api_bad(e, field_of(src->at), "'%s' must be %s", src->at, want);
}

static void set_place(struct source *src, const char *place, const char *member)
{
    snprintf(src->at, sizeof src->at, "%.80s%s", place, member);
}

/* Anthropic's: {"type": "base64", "data": ...} or {"type": "url", "url": ...}. */
static int read_source(const json_t *part, const char *place, struct source *src, const json_t **v,
                       struct sv_api_err *e)
{
    const json_t *source = json_object_get(part, "source");
    const char *type = json_string_value(json_object_get(source, "type"));

    src->is_url = type && strcmp(type, "url") == 0;
    set_place(src, place, ".source");
    if (!json_is_object(source))
        return ill(src, "an object", e);
    set_place(src, place, ".source.type");
    if (!src->is_url && (!type || strcmp(type, "base64") != 0))
        return ill(src, "\"base64\" or \"url\"", e);
    set_place(src, place, src->is_url ? ".source.url" : ".source.data");
    *v = json_object_get(source, src->is_url ? "url" : "data");
    return 0;
}

static int find_source(const json_t *part, const char *place, struct source *src,
                       struct sv_api_err *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *v = json_object_get(part, "image_url");

    src->is_url = true;
    if (strcmp(type, "image") == 0) {
        if (read_source(part, place, src, &v, e))
            return -1;
    } else if (json_is_object(v)) {
        set_place(src, place, ".image_url.url");
        v = json_object_get(v, "url");
    } else {
        set_place(src, place, ".image_url");
    }
    if (!json_is_string(v))
        return ill(src, src->is_url ? "a URL" : "a string", e);
    src->text = json_string_value(v);
    src->n = json_string_length(v);
    return 0;
}

/* -1: not of base64's alphabet. */
static int sextet(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static int decode_base64(const struct source *src, const char *text, size_t n, struct sv_buf *bytes,
                         struct sv_api_err *e)
{
    const size_t from = (size_t)(text - src->text);
    uint32_t held = 0;
    size_t i = 0;

    if (sv_buf_reserve(bytes, n / 4 * 3 + 3))
        return sv_api_no_memory(e);
    while (n && text[n - 1] == '=' && n % 4 != 1) /* at most two, at the end of a group of four */
        n--;
    for (; i < n && sextet(text[i]) >= 0; i++) {
        held = held << 6 | (uint32_t)sextet(text[i]);
        if (i % 4)
            bytes->data[bytes->len++] = (char)(held >> (6 - i % 4 * 2));
    }
    if (i < n || n % 4 == 1)
        return sv_api_bad(e, field_of(src->at), "'%s': character %zu is not valid base64", src->at,
                          from + i);
    bytes->data[bytes->len] = 0;
    return 0;
}

static int read_data_url(const struct source *src, struct sv_buf *bytes, struct sv_api_err *e)
{
    static const char form[] = ";base64";
    const char *comma = memchr(src->text, ',', src->n);
    const size_t n_head = comma ? (size_t)(comma - src->text) : 0;

    if (n_head < sizeof form - 1 ||
        strncasecmp(comma - (sizeof form - 1), form, sizeof form - 1) != 0)
        return ill(src, "a data: URL in base64, \"data:image/png;base64,...\"", e);
    return decode_base64(src, comma + 1, src->n - n_head - 1, bytes, e);
}

/* The path in a file: URL, with %xx resolved; false when it is none. */
static bool path_of(const struct source *src, char path[PATH_MAX])
{
    static const char hex[] = "0123456789abcdef", local[] = "localhost/";
    const char *s = src->text + 5, *end = src->text + src->n;
    size_t n = 0;

    if (end - s >= 2 && s[0] == '/' && s[1] == '/')
        s += 2;
    if ((size_t)(end - s) >= sizeof local - 1 && strncasecmp(s, local, sizeof local - 1) == 0)
        s += sizeof local - 2;
    for (; s < end && n < PATH_MAX - 1; s++) {
        const char *high = *s == '%' && end - s > 2 ? strchr(hex, s[1] | 32) : NULL;
        const char *low = high ? strchr(hex, s[2] | 32) : NULL;
        path[n] = *s;
        if (low) {
            path[n] = (char)((high - hex) << 4 | (low - hex));
            s += 2;
        }
        if (!path[n++])
            return false;
    }
    path[n] = 0;
    return n && s == end;
}

/* What of an absolute path lies below dir; NULL: it does not. */
static const char *below(const char *path, const char *dir)
{
    const size_t n = dir ? strlen(dir) : 0;

    return n && strncmp(path, dir, n) == 0 && path[n] == '/' ? path + n + 1 : NULL;
}

static int read_file_url(const struct sv_serve *s, const struct source *src, struct sv_buf *bytes,
                         struct sv_api_err *e)
{
    char path[PATH_MAX];
    struct sv_err err = {0};

    if (!s->media_dir)
        return sv_api_unsupported(e, field_of(src->at),
                                  "'%s': this server reads no files; it has no --media-dir",
                                  src->at);
    if (!path_of(src, path))
        return ill(src, "a path, \"file:///...\"", e);
    const char *rest = path;
    if (*path == '/') {
        rest = below(path, s->o.media_dir);
        rest = rest ? rest : below(path, s->media_dir);
    }
    if (!rest)
        return sv_api_bad(e, field_of(src->at),
                          "'%s': the file is not in the directory of --media-dir", src->at);
    if (sv_file_read_below(bytes, s->media_dir, rest, SV_IMAGE_MAX_BYTES, &err))
        return err.code == SV_ENOMEM
                   ? sv_api_no_memory(e)
                   : sv_api_bad(e, field_of(src->at), "'%s': %s", src->at, err.msg);
    return 0;
}

static bool begins(const struct source *src, const char *scheme)
{
    return src->n >= strlen(scheme) && strncasecmp(src->text, scheme, strlen(scheme)) == 0;
}

static bool is_address(const struct source *src)
{
    return src->is_url && (begins(src, "http:") || begins(src, "https:"));
}

static int address_error(const struct source *src, const struct sv_err *err, struct sv_api_err *e)
{
    if (err->code == SV_ENOMEM)
        return sv_api_no_memory(e);
    if (err->code == SV_EFULL)
        return sv_api_fail(e, 503, NULL, "'%s': %s", src->at, err->msg);
    return sv_api_bad(e, field_of(src->at), "'%s': %s", src->at, err->msg);
}

/* Puts an address on the list of those to be fetched, unless it is there. */
static int want_address(const struct sv_serve *s, const struct source *src, struct sv_api_err *e)
{
    struct sv_err err = {0};

    if (!s->fetcher)
        return sv_api_unsupported(e, field_of(src->at),
                                  "'%s': this server fetches nothing; send the image itself in a "
                                  "data: URL",
                                  src->at);
    return sv_fetch_want(&e->fetch, s->fetcher, src->text, src->n, &err)
               ? address_error(src, &err, e)
               : 0;
}

static int read_bytes(const struct sv_serve *s, const struct source *src, struct sv_buf *bytes,
                      struct sv_api_err *e)
{
    if (!src->is_url)
        return decode_base64(src, src->text, src->n, bytes, e);
    if (begins(src, "data:"))
        return read_data_url(src, bytes, e);
    if (begins(src, "file:"))
        return read_file_url(s, src, bytes, e);
    if (is_address(src)) {
        struct sv_err err = {0};
        return sv_fetch_get(e->fetch, src->text, bytes, &err) ? address_error(src, &err, e) : 0;
    }
    return ill(src, "a data: URL, \"data:image/png;base64,...\"", e);
}

/* ---------------------------------------------------------------- bytes to pixels */

/* Resizes to the size that the model reads, where its preparation would not change it. */
static int resize(const struct sv_vision_prep *v, struct sv_pixels *px, int32_t width,
                  int32_t height, struct sv_err *err)
{
    struct sv_pixels fit;
    int32_t w, h;
    int rc = sv_vision_prep_fit(v, width, height, &w, &h, err);

    if (rc || w != width || h != height || (px->width == width && px->height == height))
        return rc;
    rc = sv_pixels_resize(px->rgb, px->width, px->height, width, height, &fit, err);
    if (rc)
        return rc;
    sv_pixels_free(px);
    *px = fit;
    return SV_OK;
}

static int too_long(const struct sv_serve *s, const char *place, int64_t n_rows,
                    struct sv_api_err *e)
{
    sv_api_bad(e, field_of(place),
               "'%s': with this image the images take %lld tokens, and the context has %d", place,
               (long long)n_rows, s->model->info.context);
    e->code = "context_length_exceeded";
    return -1;
}

static long long bytes_of(const struct sv_image *m)
{
    return 3LL * m->width * m->height;
}

/* The prompt has the pixels from now on, which count until it gives them back. */
static int keep_image(const struct sv_serve *s, const struct sv_pixels *px, const char *place,
                      struct sv_prompt *out, struct sv_api_err *e)
{
    const struct sv_image image = {px->rgb, px->width, px->height};
    const long long n = bytes_of(&image), most = MAX_BYTES_PER_BODY * s->o.max_kept_bytes;

    out->images[out->n_images++] = image;
    if (atomic_fetch_add(out->image_bytes, n) + n <= most)
        return 0;
    return sv_api_fail(e, 503, NULL,
                       "'%s': the images of all waiting requests take more than %lld MiB", place,
                       most >> 20);
}

/* *left: pixels that may still be decoded. */
static int load_image(const struct sv_serve *s, const struct sv_buf *bytes, const char *place,
                      int64_t *left, struct sv_prompt *out, struct sv_api_err *e)
{
    const struct sv_image_limits limits = {
        SV_IMAGE_MAX_BYTES, *left < SV_IMAGE_MAX_PIXELS ? *left : SV_IMAGE_MAX_PIXELS,
        SV_IMAGE_MAX_SIDE};
    const struct sv_vision_prep *v = &s->model->vision;
    struct sv_err err = {0};
    struct sv_pixels px;
    int32_t w = 0, h = 0;

    int rc = sv_image_decode(bytes->data, bytes->len, &limits, &px, &err);
    if (!rc) {
        *left -= (int64_t)px.width * px.height;
        rc = sv_vision_prep_fit(v, px.width, px.height, &w, &h, &err);
    }
    const int64_t n_rows = rc ? 0 : sv_vision_prep_rows(v, w, h);
    if (!rc && out->n_more + n_rows > s->model->info.context) {
        sv_pixels_free(&px);
        return too_long(s, place, out->n_more + n_rows, e);
    }
    if (!rc)
        rc = resize(v, &px, w, h, &err);
    if (rc) {
        sv_pixels_free(&px);
        return rc == SV_ENOMEM ? sv_api_no_memory(e)
                               : sv_api_bad(e, field_of(place), "'%s': %s", place, err.msg);
    }
    out->n_more += (int32_t)n_rows - 1;
    return keep_image(s, &px, place, out, e);
}

/* -1 also while addresses wait to be fetched. */
static int want_addresses(const struct sv_serve *s, const struct sv_params *p, struct sv_api_err *e)
{
    for (size_t i = 0; i < json_array_size(p->images); i++) {
        const json_t *noted = json_array_get(p->images, i);
        struct source src;
        if (find_source(json_array_get(noted, 0), json_string_value(json_array_get(noted, 1)), &src,
                        e) ||
            (is_address(&src) && want_address(s, &src, e)))
            return -1;
    }
    return sv_fetch_waits(e->fetch) ? -1 : 0;
}

int sv_serve_images_load(const struct sv_serve *s, const struct sv_enc_scratch *scratch,
                         const struct sv_params *p, struct sv_prompt *out, struct sv_api_err *e)
{
    const size_t n = json_array_size(p->images);
    int64_t left = MAX_PIXELS_IN_ALL;
    int rc = 0;

    if (!n)
        return 0;
    if (scratch == s->scratch) {
        e->too_slow = true;
        return -1;
    }
    if (want_addresses(s, p, e))
        return -1;
    out->images = sv_calloc(n, sizeof *out->images);
    out->image_bytes = s->image_bytes;
    if (!out->images)
        return sv_api_no_memory(e);
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *noted = json_array_get(p->images, i);
        const char *place = json_string_value(json_array_get(noted, 1));
        struct source src;
        struct sv_buf bytes;
        sv_buf_init(&bytes);
        rc = find_source(json_array_get(noted, 0), place, &src, e);
        if (!rc)
            rc = read_bytes(s, &src, &bytes, e);
        if (!rc)
            rc = load_image(s, &bytes, src.at, &left, out, e);
        sv_buf_fini(&bytes);
    }
    return rc;
}

void sv_serve_images_free(struct sv_prompt *p)
{
    for (int32_t i = 0; i < p->n_images; i++) {
        atomic_fetch_sub(p->image_bytes, bytes_of(&p->images[i]));
        sv_free((void *)(uintptr_t)p->images[i].rgb);
    }
    sv_free(p->images);
    p->images = NULL;
    p->n_images = 0;
}

/* ---------------------------------------------------------------- what may be read */

static int open_dir(struct sv_serve *s, struct sv_err *err)
{
    const char *dir = s->o.media_dir;
    char real[PATH_MAX];

    if (!dir)
        return SV_OK;
    if (!realpath(dir, real))
        return sv_fail(err, SV_EINVAL, -1, "option --media-dir: %s: %s", dir, strerror(errno));
    if (!sv_dir_exists(real))
        return sv_fail(err, SV_EINVAL, -1, "option --media-dir: %s is no directory", dir);
    s->media_dir = sv_strdup(real);
    return s->media_dir ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "server");
}

int sv_serve_images_open(struct sv_serve *s, struct sv_err *err)
{
    const struct sv_fetch_options o = {
        .hosts = s->o.media_hosts,
        .max_bytes = SV_IMAGE_MAX_BYTES,
        .all_bytes = s->o.max_kept_bytes,
        .time_seconds = s->o.media_seconds ? s->o.media_seconds : 10,
    };
    int rc = open_dir(s, err);

    s->image_bytes = rc ? NULL : sv_calloc(1, sizeof *s->image_bytes);
    if (!rc && !s->image_bytes)
        rc = sv_fail(err, SV_ENOMEM, -1, "server");
    return rc || !o.hosts ? rc : sv_fetcher_open(&s->fetcher, s->base, &o, err);
}

void sv_serve_images_close(struct sv_serve *s)
{
    sv_fetcher_close(s->fetcher);
    sv_free(s->image_bytes);
    sv_free(s->media_dir);
}
