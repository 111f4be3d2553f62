/*
 * quant_bind.c - one matrix of a quantized layer's tensors: codes, scales, zero points.
 *
 * Called by ckpt.c when a directory is opened. Configuration and tensors must agree, layer by
 * layer; an error names both. In the resulting list a quantized matrix is a tensor X.weight like
 * any other, so that the table of expected tensors applies. Must not: accept a scale or code
 * without a value.
 */
#include "load/quant_config.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

struct binder {
    struct sv_ckpt *c;
    struct sv_quant_config q;
    uint8_t *used; /* (n_tensors) part of a matrix, or dropped */
    struct sv_err *err;
};

/* The tensors of one layer. */
struct layer {
    struct binder *b;
    const char *name;
    const struct sv_scheme *scheme;
    struct sv_host_tensor *codes;
    struct sv_quant quant;
    int64_t rows, cols;
    size_t n_bytes;
};

static int disagree(const struct layer *l, const struct sv_host_tensor *t, const char *what)
{
    return sv_fail(l->b->err, SV_EMISMATCH, -1,
                   "%s: layer '%.100s' is %s by quantization_config, but tensor '%.120s' %s",
                   t->file, l->name, sv_quant_name(l->scheme->code), t->name, what);
}

/* ---------------------------------------------------------------- parts */

/* Part X.suffix, removed from the list. NULL and err when missing, NULL alone when optional. */
static struct sv_host_tensor *part(struct layer *l, const char *suffix, bool needed)
{
    char name[512];
    snprintf(name, sizeof name, "%s.%s", l->name, suffix);
    struct sv_host_tensor *t = (struct sv_host_tensor *)(uintptr_t)sv_ckpt_find(l->b->c, name);
    if (t) {
        l->b->used[t - l->b->c->tensors] = 1;
        l->n_bytes += t->n_bytes;
    } else if (needed) {
        sv_fail(l->b->err, SV_EMISMATCH, -1,
                "%s: layer '%.100s' is %s by quantization_config, but tensor '%.120s' is missing",
                l->codes->file, l->name, sv_quant_name(l->scheme->code), name);
    }
    return t;
}

/* t must be (rows, cols); vectors and scalars may omit ones. */
static int expect(const struct layer *l, const struct sv_host_tensor *t, int64_t rows, int64_t cols)
{
    char what[96];
    const bool flat = rows * cols == 1 || cols == 1 || rows == 1;
    const bool same = t->n_dims == 2 && t->dim[0] == rows && t->dim[1] == cols;
    if (same || (flat && t->n_dims < 2 && t->n_elements == rows * cols))
        return SV_OK;
    snprintf(what, sizeof what, "has not the shape [%lld, %lld]", (long long)rows, (long long)cols);
    return disagree(l, t, what);
}

static int expect_type(const struct layer *l, const struct sv_host_tensor *t, enum sv_dtype a,
                       enum sv_dtype b)
{
    char what[64];
    if (t->dtype == a || t->dtype == b)
        return SV_OK;
    /* bytes of both types are kept as u8 */
    snprintf(what, sizeof what, "holds %s",
             t->dtype == SV_U8 ? "u8 or f8_e8m0" : sv_dtype_name(t->dtype));
    return disagree(l, t, what);
}

/* Scales of 16 or 32 bits: finite and not negative. */
static int take_scales(struct layer *l, const struct sv_host_tensor *t, int64_t rows, int64_t cols)
{
    int rc = t->dtype <= SV_F16 ? SV_OK : expect_type(l, t, SV_F32, SV_BF16);
    if (!rc)
        rc = expect(l, t, rows, cols);
    for (int64_t i = 0; !rc && i < t->n_elements; i++) {
        const float v = sv_tensor_number(t, i);
        if (!(v >= 0) || isinf(v))
            rc = disagree(l, t, "holds a scale that is negative or not finite");
    }
    l->quant.scales = t->data;
    l->quant.scale = t->dtype;
    return rc;
}

/* Scales of 8 bits: no NaN, and no sign in e4m3. */
static int take_byte_scales(struct layer *l, const struct sv_host_tensor *t, bool e8m0)
{
    int rc = e8m0 ? expect_type(l, t, SV_U8, SV_U8) : expect_type(l, t, SV_F8, SV_F8);
    if (!rc)
        rc = expect(l, t, l->rows, l->cols / l->quant.block_cols);
    const uint8_t *p = t->data;
    for (int64_t i = 0; !rc && i < t->n_elements; i++)
        if (e8m0 ? p[i] > 252 : p[i] >= 0x7f) /* 6 * 2^126 is no f32 */
            rc = disagree(l, t, "holds a scale without a value");
    l->quant.scales = t->data;
    l->quant.scale = SV_U8;
    return rc;
}

/* ---------------------------------------------------------------- layouts */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static bool is_matrix(const struct sv_host_tensor *t)
{
    return t->n_dims == 2 && t->dim[0] > 0 && t->dim[1] > 0 && t->dim[0] <= INT32_MAX / 8 &&
           t->dim[1] <= INT32_MAX / 8;
}

/* The matrix is (rows, cols), in whole groups. */
static int set_size(struct layer *l, int64_t rows, int64_t cols)
{
    struct sv_quant *q = &l->quant;
    if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX)
        return disagree(l, l->codes, "is empty or too large");
    l->rows = rows;
    l->cols = cols;
    q->code = l->scheme->code;
    q->rows = (int32_t)rows;
    q->cols = (int32_t)cols;
    q->block_rows = l->scheme->block_rows ? l->scheme->block_rows : q->rows;
    q->block_cols = l->scheme->block_cols ? l->scheme->block_cols : q->cols;
    q->data = l->codes->data;
    if (q->code != SV_CODE_F8 && cols % q->block_cols)
        return disagree(l, l->codes, "has rows that are not whole groups");
    return SV_OK;
}

static int bind_bytes(struct layer *l)
{
    char name[512];
    snprintf(name, sizeof name, "%s.weight_scale_inv", l->name);
    const bool inverse = l->b->q.method == SV_QUANT_FP8 ||
                         (l->b->q.method == SV_QUANT_MODELOPT && sv_ckpt_find(l->b->c, name));
    struct sv_host_tensor *s, *t = l->codes;
    const enum sv_dtype type = l->scheme->code == SV_CODE_F8 ? SV_F8 : SV_I8;
    int rc = expect_type(l, t, type, type);
    if (!rc && !is_matrix(t))
        rc = disagree(l, t, "is no matrix");
    if (!rc)
        rc = set_size(l, t->dim[0], t->dim[1]);
    if (rc || !(s = part(l, inverse ? "weight_scale_inv" : "weight_scale", true)))
        return rc ? rc : l->b->err->code;
    if (s->n_dims == 4 && s->dim[1] == 1 && s->dim[3] == 1) { /* modelopt: a block is (1, 1) */
        s->n_dims = 2;
        s->dim[1] = s->dim[2];
    }
    return take_scales(l, s, ceil_div(l->rows, l->quant.block_rows),
                       ceil_div(l->cols, l->quant.block_cols));
}

/* NVFP4's factor: stored as it is by modelopt, as its inverse by compressed-tensors. */
static int take_factor(struct layer *l)
{
    const bool inverse = l->b->q.method == SV_QUANT_CT;
    struct sv_host_tensor *t = part(l, inverse ? "weight_global_scale" : "weight_scale_2", true);
    if (!t)
        return l->b->err->code;
    int rc = expect_type(l, t, SV_F32, SV_F32);
    if (!rc)
        rc = expect(l, t, 1, 1);
    if (rc)
        return rc;
    const float v = sv_tensor_number(t, 0);
    l->quant.global = inverse ? 1 / v : v;
    if (!(v > 0) || isinf(v) || !(l->quant.global > 0) || isinf(l->quant.global))
        return disagree(l, t, "holds a scale that is not positive and finite");
    return SV_OK;
}

static int bind_e2m1(struct layer *l)
{
    struct sv_host_tensor *s, *t = l->codes;
    int rc = expect_type(l, t, SV_U8, SV_U8);
    if (!rc && !is_matrix(t))
        rc = disagree(l, t, "is no matrix");
    if (!rc)
        rc = set_size(l, t->dim[0], 2 * t->dim[1]);
    if (rc || !(s = part(l, "weight_scale", true)))
        return rc ? rc : l->b->err->code;
    rc = take_byte_scales(l, s, l->scheme->code == SV_CODE_MXFP4);
    return rc || l->scheme->code == SV_CODE_MXFP4 ? rc : take_factor(l);
}

/* Group indices of columns, within [0, groups). Trivial ones, as in GPTQ files without act-order,
 * are dropped. */
static int take_indices(struct layer *l, const char *suffix)
{
    struct sv_host_tensor *t = part(l, suffix, true);
    if (!t)
        return l->b->err->code;
    const int32_t *g = t->data;
    bool in_order = true;
    int rc = expect_type(l, t, SV_I32, SV_I32);
    if (!rc)
        rc = expect(l, t, l->cols, 1);
    for (int64_t k = 0; !rc && k < l->cols; k++) {
        if (g[k] < 0 || g[k] >= l->cols / l->quant.block_cols)
            rc = disagree(l, t, "holds a group that does not exist");
        in_order = in_order && g[k] == k / l->quant.block_cols;
    }
    l->quant.g_idx = in_order ? NULL : g;
    return rc;
}

static int take_zeros(struct layer *l, const char *suffix, int64_t rows, int64_t cols)
{
    struct sv_host_tensor *t = part(l, suffix, true);
    if (!t)
        return l->b->err->code;
    int rc = expect_type(l, t, SV_I32, SV_I32);
    l->quant.zeros = t->data;
    return rc ? rc : expect(l, t, rows, cols);
}

/* compressed-tensors' pack-quantized: the shape is stored, as rows are padded to whole words. */
static int bind_words(struct layer *l)
{
    const int64_t per_word = l->scheme->code == SV_CODE_INT4 ? 8 : 4;
    struct sv_host_tensor *shape = part(l, "weight_shape", true), *s;
    if (!shape)
        return l->b->err->code;
    int rc = expect_type(l, shape, SV_I32, SV_I64);
    if (!rc)
        rc = expect(l, shape, 2, 1);
    if (rc)
        return rc;
    const bool wide = shape->dtype == SV_I64;
    const int64_t rows =
        wide ? ((const int64_t *)shape->data)[0] : ((const int32_t *)shape->data)[0];
    const int64_t cols =
        wide ? ((const int64_t *)shape->data)[1] : ((const int32_t *)shape->data)[1];
    rc = expect_type(l, l->codes, SV_I32, SV_I32);
    if (!rc)
        rc = set_size(l, rows, cols);
    if (!rc)
        rc = expect(l, l->codes, rows, ceil_div(cols, per_word));
    if (rc || !(s = part(l, "weight_scale", true)))
        return rc ? rc : l->b->err->code;
    const int64_t groups = cols / l->quant.block_cols;
    rc = take_scales(l, s, rows, groups);
    if (!rc && l->quant.block_rows != 1)
        rc = disagree(l, s, "is one scale for all, which is not supported for packed integers");
    if (!rc && l->scheme->zeros)
        rc = take_zeros(l, "weight_zero_point", ceil_div(rows, per_word), groups);
    return !rc && l->scheme->permuted ? take_indices(l, "weight_g_idx") : rc;
}

/* AWQ's `zero_point: false`: the middle, stored or not. */
static int check_no_zeros(const struct layer *l, const struct sv_host_tensor *t)
{
    int rc = t ? expect_type(l, t, SV_I32, SV_I32) : SV_OK;
    for (int64_t i = 0; t && !rc && i < t->n_elements; i++) {
        const uint32_t word = ((const uint32_t *)t->data)[i];
        if (word && word != 0x88888888)
            rc = disagree(l, t, "has zero points, and 'zero_point' is false");
    }
    return rc;
}

/* AWQ and GPTQ: inputs first. */
static int bind_columns(struct layer *l)
{
    const bool awq = l->scheme->code == SV_CODE_AWQ;
    const int64_t per_word = l->scheme->code == SV_CODE_GPTQ8 ? 4 : 8;
    struct sv_host_tensor *s, *t = l->codes;
    int rc = expect_type(l, t, SV_I32, SV_I32);
    if (!rc && !is_matrix(t))
        rc = disagree(l, t, "is no matrix");
    if (!rc)
        rc = awq ? set_size(l, t->dim[1] * 8, t->dim[0])
                 : set_size(l, t->dim[1], t->dim[0] * per_word);
    if (!rc && l->rows % per_word)
        rc = disagree(l, t, "has outputs that are not whole words of zero points");
    if (rc || !(s = part(l, "scales", true)))
        return rc ? rc : l->b->err->code;
    const int64_t groups = l->cols / l->quant.block_cols;
    rc = take_scales(l, s, groups, l->rows);
    if (!rc && l->scheme->zeros)
        rc = take_zeros(l, "qzeros", groups, l->rows / per_word);
    else if (!rc)
        rc = check_no_zeros(l, part(l, "qzeros", false));
    l->quant.zero_add = l->b->q.zero_is_less_one;
    return !rc && l->scheme->permuted ? take_indices(l, "g_idx") : rc;
}

static int bind_layer(struct layer *l)
{
    int rc;
    l->n_bytes = l->codes->n_bytes;
    switch (l->scheme->code) {
    case SV_CODE_F8:
    case SV_CODE_I8:
        rc = bind_bytes(l);
        break;
    case SV_CODE_MXFP4:
    case SV_CODE_NVFP4:
        rc = bind_e2m1(l);
        break;
    case SV_CODE_INT4:
    case SV_CODE_INT8:
        rc = bind_words(l);
        break;
    default:
        rc = bind_columns(l);
    }
    if (rc)
        return rc;
    struct sv_host_tensor *t = l->codes;
    t->n_dims = 2;
    t->dim[0] = l->rows;
    t->dim[1] = l->cols;
    t->n_elements = l->rows * l->cols;
    t->n_bytes = l->n_bytes;
    t->quant = l->quant;
    return SV_OK;
}

/* ---------------------------------------------------------------- all of a checkpoint */

static bool ends(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);
    return n > k && !strcmp(s + n - k, suffix);
}

/* Length of the layer's name in the name of its codes or of its plain matrix; 0: neither. */
static size_t layer_of(const char *name)
{
    static const char *const suffixes[] = {".weight", ".weight_packed", ".qweight"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (ends(name, suffixes[i]))
            return strlen(name) - strlen(suffixes[i]);
    return 0;
}

/* Scales of quantized activations, which are not used. */
static bool is_unread(const char *name)
{
    static const char *const suffixes[] = {".input_scale", ".input_global_scale",
                                           ".activation_scale"};
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (ends(name, suffixes[i]))
            return true;
    return false;
}

static int bind_one(struct binder *b, struct sv_host_tensor *t)
{
    char name[512];
    const size_t n = layer_of(t->name);
    struct layer l = {.b = b, .name = name, .codes = t};
    const char *why;
    if (is_unread(t->name))
        b->used[t - b->c->tensors] = 1;
    if (!n || n >= sizeof name || t->n_dims < 2)
        return SV_OK;
    memcpy(name, t->name, n);
    name[n] = 0;
    const bool plain = t->dtype <= SV_F16 && ends(t->name, ".weight");
    int rc = sv_quant_config_scheme(&b->q, name, &l.scheme, &why, b->err);
    if (rc || (plain && !l.scheme))
        return rc;
    if (!l.scheme)
        return sv_fail(b->err, SV_EMISMATCH, -1,
                       "%s: tensor '%.120s' holds %s codes, but quantization_config ('%.60s') says "
                       "that the layer is not quantized",
                       t->file, t->name, sv_dtype_name(t->dtype), why);
    if (plain) /* embeddings and routers are not linear layers, a head is rarely quantized, and
                  eh_proj belongs to an unread MTP layer */
        return ends(name, "_proj") && !ends(name, ".eh_proj") ? disagree(&l, t, "is not quantized")
                                                              : SV_OK;
    return bind_layer(&l);
}

static int rename_codes(struct binder *b, struct sv_host_tensor *t)
{
    char name[512];
    snprintf(name, sizeof name, "%.*s.weight", (int)layer_of(t->name), t->name);
    t->name = sv_arena_strdup(&b->c->arena, name);
    return t->name ? SV_OK : sv_fail(b->err, SV_ENOMEM, -1, "%s: out of memory", t->file);
}

/* Removes parts and dropped tensors, counts again, and renames matrices: until here parts were
 * found by name in a sorted list. */
static int compact(struct binder *b)
{
    struct sv_ckpt *c = b->c;
    int32_t n = 0;
    int rc = SV_OK;
    c->n_params = c->n_bytes = 0;
    for (int32_t i = 0; i < c->n_tensors && !rc; i++) {
        struct sv_host_tensor *t = &c->tensors[i];
        if (b->used[i])
            continue;
        rc = t->quant.code ? rename_codes(b, t) : SV_OK;
        c->n_params += t->n_elements;
        c->n_bytes += (int64_t)t->n_bytes;
        c->tensors[n++] = *t;
    }
    c->n_tensors = n;
    return rc;
}

/* ---------------------------------------------------------------- codes */

/* Fewer bytes are read by one thread. More threads read a page cache no faster. */
enum { SCAN_BYTES = 32 << 10, SCAN_THREADS = 16 };

struct scan {
    const struct sv_ckpt *c;
    uint8_t *bad;         /* (n_tensors) */
    _Atomic int32_t next; /* tensor to read */
};

static void scan_share(void *arg, int thread, int n)
{
    struct scan *s = arg;
    (void)thread, (void)n;
    for (int32_t i; (i = atomic_fetch_add(&s->next, 1)) < s->c->n_tensors;) {
        const struct sv_quant *q = &s->c->tensors[i].quant;
        const uint8_t *p = q->data;
        const size_t size = q->code == SV_CODE_F8 ? (size_t)q->rows * (size_t)q->cols : 0;
        unsigned bad = 0;
        for (size_t k = 0; k < size; k++)
            bad |= (p[k] & 0x7f) == 0x7f;
        s->bad[i] = (uint8_t)bad;
    }
}

/* The whole file is read, and again when the codes are loaded. */
static int check_codes(struct binder *b)
{
    struct scan s = {.c = b->c, .bad = b->used};
    struct sv_pool *pool = NULL;
    const int n = sv_cpu_count() < SCAN_THREADS ? sv_cpu_count() : SCAN_THREADS;
    int rc = b->c->n_bytes > SCAN_BYTES ? sv_pool_open(&pool, n, b->err) : SV_OK;
    if (rc)
        return rc;
    if (pool)
        sv_pool_run(pool, scan_share, &s);
    else
        scan_share(&s, 0, 1);
    sv_pool_close(pool);
    for (int32_t i = 0; i < b->c->n_tensors; i++)
        if (s.bad[i])
            return sv_fail(b->err, SV_EMISMATCH, -1,
                           "%s: tensor '%.120s' is %s by quantization_config, but holds codes that "
                           "are NaN",
                           b->c->tensors[i].file, b->c->tensors[i].name, sv_quant_name(SV_CODE_F8));
    return SV_OK;
}

/* ---------------------------------------------------------------- directories */

/* quantization_config of a model's directory, also of a text model in a wrapper, or modelopt's file
 * of its own; NULL: there is none. */
static int find_config(const char *dir, json_t **root, json_t **obj, struct sv_err *err)
{
    char *path;
    *obj = NULL;
    int rc = sv_dir_json(dir, "config.json", false, &path, root, err);
    sv_free(path);
    json_t *const places[] = {*root, json_object_get(*root, "text_config")};
    for (int i = 0; i < 2 && !rc; i++) {                  /* the inner one counts */
        if (sv_json_has(places[i], "compression_config")) /* the older name */
            *obj = json_object_get(places[i], "compression_config");
        if (sv_json_has(places[i], "quantization_config"))
            *obj = json_object_get(places[i], "quantization_config");
    }
    if (rc || *obj)
        return rc;
    json_decref(*root);
    rc = sv_dir_json(dir, "hf_quant_config.json", false, &path, root, err);
    sv_free(path);
    *obj = *root;
    return rc;
}

/* GPTQModel writes its settings to quantize_config.json too, and some files have those by layer
 * only there. */
static int add_gptq_file(const char *dir, json_t *obj, struct sv_err *err)
{
    static const char *const fields[] = {"dynamic", "modules_in_block_to_quantize"};
    const char *method = json_string_value(json_object_get(obj, "quant_method"));
    char *path;
    json_t *root;
    if (!method || strcmp(method, "gptq") != 0)
        return SV_OK;
    int rc = sv_dir_json(dir, "quantize_config.json", false, &path, &root, err);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && !rc; i++) {
        json_t *own = json_object_get(obj, fields[i]), *other = json_object_get(root, fields[i]);
        if (!sv_json_has(root, fields[i]) || json_equal(own, other))
            continue;
        if (sv_json_has(obj, fields[i]))
            rc = sv_fail(err, SV_EMISMATCH, -1,
                         "%s: '%s' is not that of quantization_config in config.json", path,
                         fields[i]);
        else if (json_object_set(obj, fields[i], other))
            rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    }
    json_decref(root);
    sv_free(path);
    return rc;
}

int sv_quant_bind_by(struct sv_ckpt *c, const json_t *obj, struct sv_err *err)
{
    struct binder b = {.c = c, .err = err};
    int rc = sv_quant_config_read(&b.q, obj, err);
    if (rc)
        return sv_err_prefix(err, "field 'quantization_config'");
    b.used = sv_calloc((size_t)c->n_tensors, 1);
    if (!b.used)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < c->n_tensors && !rc; i++)
        rc = bind_one(&b, &c->tensors[i]);
    if (!rc)
        rc = compact(&b);
    if (!rc)
        rc = check_codes(&b);
    sv_free(b.used);
    return rc;
}

int sv_quant_bind(struct sv_ckpt *c, const char *dir, struct sv_err *err)
{
    json_t *root, *obj;
    int rc = find_config(dir, &root, &obj, err);
    if (!rc && obj)
        rc = add_gptq_file(dir, obj, err);
    if (!rc && obj && !sv_quant_is_mxfp4(obj)) {
        rc = sv_quant_bind_by(c, obj, err);
        if (rc)
            sv_err_prefix(err, "%s", dir);
    }
    json_decref(root);
    return rc;
}
