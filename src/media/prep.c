/*
 * prep.c - a model's image processor, by its configuration: sizes and normalisation.
 *
 * Called by engine and serve when a model is opened. Must not: accept a setting that patches.c does
 * not support.
 */
#include "media/media.h"

#include <math.h>
#include <string.h>

#define MAX_CONFIG_BYTES ((size_t)1 << 20)
#define MAX_RATIO 200 /* of an image's sides */
#define BICUBIC 3     /* Pillow's number */

/* ---------------------------------------------------------------- configuration */

/* A field with a single supported value. May be absent. */
static int check_fixed(const json_t *root, struct sv_err *err)
{
    static const char *const flags[] = {"do_resize", "do_rescale", "do_normalize",
                                        "do_convert_rgb"};
    double factor = 1.0 / 255;
    int64_t resample = BICUBIC;
    int rc = SV_OK;

    for (size_t i = 0; i < sizeof flags / sizeof flags[0] && !rc; i++) {
        bool on = true;
        rc = sv_json_bool_opt(root, flags[i], &on, err);
        if (!rc && !on)
            rc = sv_fail(err, SV_EUNSUPPORTED, -1, "field '%s': false is not supported", flags[i]);
    }
    if (!rc)
        rc = sv_json_int_opt(root, "resample", 0, 5, &resample, err);
    if (!rc && resample != BICUBIC)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "field 'resample': %lld is not supported, only 3 (bicubic)",
                     (long long)resample);
    if (!rc)
        rc = sv_json_num_opt(root, "rescale_factor", 0, 1, &factor, err);
    if (!rc && fabs(factor * 255 - 1) > 1e-9)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "field 'rescale_factor': %g is not supported, only 1/255", factor);
    return rc;
}

static int take_int(const json_t *root, const char *name, int64_t hi, int32_t *to,
                    struct sv_err *err)
{
    int64_t v = 0;
    int rc = sv_json_int(root, name, 1, hi, &v, err);

    *to = (int32_t)v;
    return rc;
}

/* Three numbers, one for each colour. */
static int take_colours(const json_t *root, const char *name, double lo, float to[3],
                        struct sv_err *err)
{
    const json_t *list = json_object_get(root, name);

    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_array_get(list, i);
        const double x = json_number_value(v);
        if (json_array_size(list) != 3 || !json_is_number(v) || x < lo || x > 1)
            return sv_fail(err, SV_EFORMAT, -1, "field '%s' must be three numbers in [%g, 1]", name,
                           lo);
        to[i] = (float)x;
    }
    return SV_OK;
}

/* size, whose edges are counts of pixels here; min_pixels and max_pixels take precedence. */
static int take_pixels(const json_t *root, struct sv_vision_prep *p, struct sv_err *err)
{
    static const int64_t most = (int64_t)1 << 40;
    const json_t *size = json_object_get(root, "size");
    int rc = SV_OK;

    if (json_is_object(size)) {
        rc = sv_json_int_opt(size, "shortest_edge", 1, most, &p->min_pixels, err);
        if (!rc)
            rc = sv_json_int_opt(size, "longest_edge", 1, most, &p->max_pixels, err);
        if (rc)
            return sv_err_prefix(err, "size");
    }
    rc = sv_json_int_opt(root, "min_pixels", 1, most, &p->min_pixels, err);
    if (!rc)
        rc = sv_json_int_opt(root, "max_pixels", 1, most, &p->max_pixels, err);
    if (!rc && (!p->min_pixels || !p->max_pixels))
        rc = sv_fail(err, SV_EFORMAT, -1,
                     "field 'size' must have 'shortest_edge' and 'longest_edge'");
    if (!rc && p->min_pixels > p->max_pixels)
        rc = sv_fail(err, SV_EFORMAT, -1, "field 'size': %lld pixels at least, %lld at most",
                     (long long)p->min_pixels, (long long)p->max_pixels);
    return rc;
}

static int check_type(const json_t *root, struct sv_err *err)
{
    const char *type = "Qwen2VLImageProcessor";
    int rc = sv_json_str_opt(root, "image_processor_type", &type, err);

    if (rc || strncmp(type, "Qwen2VLImageProcessor", 21) == 0)
        return rc;
    return sv_fail(err, SV_EUNSUPPORTED, -1,
                   "field 'image_processor_type': '%.60s' is not supported, only "
                   "Qwen2VLImageProcessor",
                   type);
}

static int take_all(const json_t *root, struct sv_vision_prep *p, struct sv_err *err)
{
    int rc = check_type(root, err);

    if (!rc)
        rc = check_fixed(root, err);
    if (!rc)
        rc = take_int(root, "patch_size", 256, &p->patch, err);
    if (!rc)
        rc = take_int(root, "merge_size", 16, &p->merge, err);
    if (!rc)
        rc = take_int(root, "temporal_patch_size", 16, &p->temporal, err);
    if (!rc)
        rc = take_pixels(root, p, err);
    if (!rc)
        rc = take_colours(root, "image_mean", 0, p->mean, err);
    return rc ? rc : take_colours(root, "image_std", 1e-6, p->std, err);
}

/* *root stays NULL when there is no such file. */
static int load_json(const char *path, json_t **root, struct sv_err *err)
{
    *root = NULL;
    if (!path)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (sv_file_exists(path))
        *root = sv_json_load(path, MAX_CONFIG_BYTES, err);
    return *root || !sv_file_exists(path) ? SV_OK : err->code;
}

int sv_vision_prep_load(const char *dir, struct sv_vision_prep *out, struct sv_err *err)
{
    static const char *const names[] = {"processor_config.json", "preprocessor_config.json"};
    bool found = false;
    int rc = SV_OK;

    *out = (struct sv_vision_prep){.patch = 0};
    for (int i = 0; i < 2 && !found && !rc; i++) {
        char *path = sv_path_join(dir, names[i]);
        json_t *root;
        rc = load_json(path, &root, err);
        const json_t *own = i ? root : json_object_get(root, "image_processor");
        found = !rc && own;
        if (found) {
            rc = take_all(own, out, err);
            if (rc)
                sv_err_prefix(err, "%s", path);
        }
        json_decref(root);
        sv_free(path);
    }
    if (!rc && !found)
        rc = sv_fail(err, SV_EIO, -1, "%s has no preprocessor_config.json", dir);
    return rc;
}

/* ---------------------------------------------------------------- sizes */

/* Halves go to the even number, as Python rounds them. */
static int64_t near(double v, int64_t factor)
{
    return (int64_t)nearbyint(v / (double)factor) * factor;
}

static int64_t below(double v, int64_t factor)
{
    const int64_t n = (int64_t)floor(v / (double)factor) * factor;
    return n > factor ? n : factor;
}

static int64_t above(double v, int64_t factor)
{
    return (int64_t)ceil(v / (double)factor) * factor;
}

int sv_vision_prep_fit(const struct sv_vision_prep *p, int32_t width, int32_t height,
                       int32_t *to_width, int32_t *to_height, struct sv_err *err)
{
    const int64_t factor = (int64_t)p->patch * p->merge;
    const double w = width, h = height;

    if (width < 1 || height < 1)
        return sv_fail(err, SV_EINVAL, -1, "an image of %d x %d pixels", width, height);
    if ((w > h ? w / h : h / w) > MAX_RATIO)
        return sv_fail(err, SV_EINVAL, -1,
                       "an image of %d x %d pixels: one side may be at most %d times the other",
                       width, height, MAX_RATIO);
    int64_t fit_w = near(w, factor), fit_h = near(h, factor);
    if (fit_w * fit_h > p->max_pixels) {
        const double beta = sqrt(h * w / (double)p->max_pixels);
        fit_h = below(h / beta, factor);
        fit_w = below(w / beta, factor);
    } else if (fit_w * fit_h < p->min_pixels) {
        const double beta = sqrt((double)p->min_pixels / (h * w));
        fit_h = above(h * beta, factor);
        fit_w = above(w * beta, factor);
    }
    if (!fit_w || !fit_h || fit_w > INT32_MAX || fit_h > INT32_MAX || fit_w * fit_h > INT32_MAX / 3)
        return sv_fail(err, SV_EINVAL, -1, "an image of %d x %d pixels cannot be resized", width,
                       height);
    *to_width = (int32_t)fit_w;
    *to_height = (int32_t)fit_h;
    return SV_OK;
}

int64_t sv_vision_prep_rows(const struct sv_vision_prep *p, int32_t width, int32_t height)
{
    const int64_t side = (int64_t)p->patch * p->merge;
    return width / side * (height / side);
}
