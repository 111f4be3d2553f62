/*
 * safetensors.c - one safetensors image: u64 header length, JSON header, tensor data.
 *
 * Owns all checks of the bytes: later readers rely on consistent names, dtypes, shapes and ranges.
 * Called by ckpt.c and by the fuzz target. Must not: read outside [data, data + n_bytes), use an
 * unchecked offset or product of dimensions, or know a tensor's meaning.
 */
#include "load/impl.h"

#include <stdlib.h>
#include <string.h>

#define MAX_HEADER_BYTES 100000000u /* the limit of the reference implementation */
#define MAX_TENSORS (1 << 20)

/* A tensor's range in the data section, for the overlap check. */
struct span {
    uint64_t begin, end;
    const char *name;
};

struct st_reader {
    const uint8_t *header; /* as text, up to data */
    const uint8_t *data;   /* data section */
    uint64_t n_data;
    uint64_t data_pos; /* of the data section, for messages */
    const char *file;
    struct sv_arena *arena;
    struct sv_err *err;
};

static int parse_dtype(const char *s, enum sv_dtype *out)
{
    static const struct {
        const char *name;
        enum sv_dtype dtype;
    } table[] = {{"F32", SV_F32}, {"BF16", SV_BF16},  {"F16", SV_F16},
                 {"I32", SV_I32}, {"I64", SV_I64},    {"I8", SV_I8},
                 {"U8", SV_U8},   {"F8_E4M3", SV_F8}, {"F8_E8M0", SV_U8}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!strcmp(s, table[i].name)) {
            *out = table[i].dtype;
            return SV_OK;
        }
    }
    return SV_EUNSUPPORTED;
}

/* Unsupported types of the format, distinguished from invalid ones in messages. */
static bool is_known_foreign_dtype(const char *s)
{
    static const char *const table[] = {"F64",     "I16", "U64", "U32",     "U16",    "BOOL",
                                        "F8_E5M2", "C64", "F4",  "F6_E2M3", "F6_E3M2"};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!strcmp(s, table[i]))
            return true;
    }
    return false;
}

/* For messages and look-ups: printable, not empty, of limited length. */
static bool name_ok(const char *s)
{
    size_t n = strlen(s);
    if (n == 0 || n > 512)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char ch = (unsigned char)s[i];
        if (ch < 0x20 || ch == 0x7f)
            return false;
    }
    return true;
}

static int parse_shape(const struct st_reader *r, const json_t *shape, struct sv_host_tensor *t)
{
    if (!json_is_array(shape))
        return sv_fail(r->err, SV_EFORMAT, -1, "'shape' is missing or not an array");
    size_t n = json_array_size(shape);
    if (n > SV_MAX_DIMS)
        return sv_fail(r->err, SV_EFORMAT, -1, "'shape' has %zu dimensions, at most %d are allowed",
                       n, SV_MAX_DIMS);
    t->n_dims = (int32_t)n;
    t->n_elements = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return sv_fail(r->err, SV_EFORMAT, -1, "'shape'[%zu] is not a non-negative integer", i);
        t->dim[i] = json_integer_value(d);
        if (__builtin_mul_overflow(t->n_elements, t->dim[i], &t->n_elements))
            return sv_fail(r->err, SV_EFORMAT, -1, "the product of 'shape' overflows");
    }
    return SV_OK;
}

static int parse_offsets(const struct st_reader *r, const json_t *offsets, struct span *s)
{
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return sv_fail(r->err, SV_EFORMAT, -1, "'data_offsets' is not an array of two integers");
    int64_t v[2];
    for (size_t i = 0; i < 2; i++) {
        const json_t *o = json_array_get(offsets, i);
        if (!json_is_integer(o) || json_integer_value(o) < 0)
            return sv_fail(r->err, SV_EFORMAT, -1,
                           "'data_offsets'[%zu] is not a non-negative integer", i);
        v[i] = json_integer_value(o);
    }
    if (v[0] > v[1])
        return sv_fail(r->err, SV_EFORMAT, -1, "'data_offsets' run backwards: %lld > %lld",
                       (long long)v[0], (long long)v[1]);
    if ((uint64_t)v[1] > r->n_data)
        return sv_fail(r->err, SV_EFORMAT, -1,
                       "data ends at byte %llu but the file ends at byte %llu (truncated?)",
                       (unsigned long long)(r->data_pos + (uint64_t)v[1]),
                       (unsigned long long)(r->data_pos + r->n_data));
    s->begin = (uint64_t)v[0];
    s->end = (uint64_t)v[1];
    return SV_OK;
}

static int parse_entry(const struct st_reader *r, const json_t *o, struct sv_host_tensor *t,
                       struct span *s)
{
    if (!json_is_object(o))
        return sv_fail(r->err, SV_EFORMAT, -1, "the entry is not an object");
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    if (!dtype)
        return sv_fail(r->err, SV_EFORMAT, -1, "'dtype' is missing or not a string");
    if (parse_dtype(dtype, &t->dtype))
        return sv_fail(r->err, is_known_foreign_dtype(dtype) ? SV_EUNSUPPORTED : SV_EFORMAT, -1,
                       "dtype '%.24s' is not supported", dtype);
    int rc = parse_shape(r, json_object_get(o, "shape"), t);
    if (!rc)
        rc = parse_offsets(r, json_object_get(o, "data_offsets"), s);
    if (rc)
        return rc;
    int64_t n_bytes;
    if (__builtin_mul_overflow(t->n_elements, (int64_t)sv_dtype_bytes(t->dtype), &n_bytes) ||
        (uint64_t)n_bytes != s->end - s->begin)
        return sv_fail(
            r->err, SV_EFORMAT, -1,
            "%lld elements of %s need another size than the %llu bytes of 'data_offsets'",
            (long long)t->n_elements, dtype, (unsigned long long)(s->end - s->begin));
    t->n_bytes = (size_t)n_bytes;
    return SV_OK;
}

static int cmp_span(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* By the format ranges tile the data section: after a gap or an overlap header and data do not
 * match. */
static int check_tiling(const struct st_reader *r, struct span *s, int32_t n)
{
    qsort(s, (size_t)n, sizeof *s, cmp_span);
    uint64_t at = 0;
    const char *before = "the header";
    for (int32_t i = 0; i < n; i++) {
        if (s[i].begin != at)
            return sv_fail(r->err, SV_EFORMAT, (int64_t)(r->data_pos + s[i].begin),
                           "%s: data of tensor '%.120s' %s %.120s", r->file, s[i].name,
                           s[i].begin < at ? "overlaps" : "leaves a gap after", before);
        at = s[i].end;
        before = s[i].name;
    }
    if (at != r->n_data)
        return sv_fail(r->err, SV_EFORMAT, (int64_t)(r->data_pos + at),
                       "%s: %llu bytes after the last tensor belong to none", r->file,
                       (unsigned long long)(r->n_data - at));
    return SV_OK;
}

/* Points the tensor into the file, or at a copy when unaligned. */
static int place(const struct st_reader *r, const char *name, const struct span *s,
                 struct sv_host_tensor *t)
{
    t->name = sv_arena_strdup(r->arena, name);
    if (!t->name)
        return sv_fail(r->err, SV_ENOMEM, -1, "%s: out of memory", r->file);
    const uint8_t *p = r->data + s->begin;
    t->data = p;
    if ((uintptr_t)p % sv_dtype_bytes(t->dtype) != 0) {
        void *copy = sv_arena_alloc(r->arena, t->n_bytes);
        if (!copy)
            return sv_fail(r->err, SV_ENOMEM, -1, "%s: no memory to align tensor '%.120s'", r->file,
                           name);
        memcpy(copy, p, t->n_bytes);
        t->data = copy;
    }
    return SV_OK;
}

static int check_metadata(const struct st_reader *r, json_t *meta)
{
    const char *key;
    json_t *value;
    if (!json_is_object(meta))
        return sv_fail(r->err, SV_EFORMAT, 8, "%s: '__metadata__' is not an object", r->file);
    json_object_foreach(meta, key, value) {
        if (!json_is_string(value))
            return sv_fail(r->err, SV_EFORMAT, 8, "%s: '__metadata__.%.80s' is not a string",
                           r->file, key);
    }
    return SV_OK;
}

/* Byte of the file at which a tensor's entry begins; of the header when the name is written with
 * escapes. */
static int64_t entry_pos(const struct st_reader *r, const char *name)
{
    const uint8_t *p = r->header, *end = r->data;
    size_t n = strlen(name);
    while ((size_t)(end - p) > n + 1 && (p = memchr(p, '"', (size_t)(end - p) - n - 1))) {
        if (!memcmp(p + 1, name, n) && p[n + 1] == '"')
            return 8 + (p - r->header);
        p++;
    }
    return 8;
}

static int parse_entries(const struct st_reader *r, json_t *header, struct sv_host_tensor *tensors,
                         struct span *spans, int32_t n)
{
    const char *key;
    json_t *value;
    int32_t i = 0;
    json_object_foreach(header, key, value) {
        if (!strcmp(key, "__metadata__"))
            continue;
        SV_REQUIRE(i < n);
        if (!name_ok(key))
            return sv_fail(r->err, SV_EFORMAT, 8,
                           "%s: tensor name number %d is empty, too long or not printable", r->file,
                           i);
        int rc = parse_entry(r, value, &tensors[i], &spans[i]);
        if (rc) {
            r->err->pos = entry_pos(r, key);
            return sv_err_prefix(r->err, "%s: byte %lld: tensor '%.120s'", r->file,
                                 (long long)r->err->pos, key);
        }
        spans[i].name = key;
        tensors[i].file = r->file;
        i++;
    }
    i = 0;
    json_object_foreach(header, key, value) {
        if (!strcmp(key, "__metadata__"))
            continue;
        int rc = place(r, key, &spans[i], &tensors[i]);
        if (rc)
            return rc;
        i++;
    }
    return check_tiling(r, spans, n);
}

static int parse_header(struct st_reader *r, json_t *header, struct sv_host_tensor **tensors,
                        int32_t *n_tensors)
{
    json_t *meta = json_object_get(header, "__metadata__");
    int rc = meta ? check_metadata(r, meta) : SV_OK;
    if (rc)
        return rc;
    size_t n = json_object_size(header) - (meta ? 1 : 0);
    if (n > MAX_TENSORS)
        return sv_fail(r->err, SV_EFORMAT, 8, "%s: %zu tensors are too many", r->file, n);
    char *file = sv_arena_strdup(r->arena, r->file);
    struct sv_host_tensor *t = sv_arena_alloc(r->arena, n * sizeof *t);
    struct span *spans = sv_calloc(n, sizeof *spans);
    if (!file || !t || !spans) {
        sv_free(spans);
        return sv_fail(r->err, SV_ENOMEM, -1, "%s: out of memory", r->file);
    }
    r->file = file;
    rc = parse_entries(r, header, t, spans, (int32_t)n);
    sv_free(spans);
    if (!rc) {
        *tensors = t;
        *n_tensors = (int32_t)n;
    }
    return rc;
}

int sv_safetensors_parse(const uint8_t *data, size_t n_bytes, const char *file,
                         struct sv_arena *arena, struct sv_host_tensor **tensors,
                         int32_t *n_tensors, struct sv_err *err)
{
    static const char lfs[] = "version https://git-lfs";
    struct sv_err local;
    if (!err)
        err = &local; /* holds positions and codes */
    if (n_bytes >= sizeof lfs - 1 && !memcmp(data, lfs, sizeof lfs - 1))
        return sv_fail(err, SV_EFORMAT, 0, "%s: a Git LFS pointer, not the file itself", file);
    if (n_bytes < 8)
        return sv_fail(err, SV_EFORMAT, (int64_t)n_bytes,
                       "%s: %zu bytes are too few for a safetensors file", file, n_bytes);
    uint64_t n_header = 0;
    for (int i = 0; i < 8; i++)
        n_header |= (uint64_t)data[i] << (8 * i);
    if (n_header > n_bytes - 8)
        return sv_fail(err, SV_EFORMAT, 0, "%s: a header longer than the file (%zu bytes)", file,
                       n_bytes);
    if (n_header > MAX_HEADER_BYTES)
        return sv_fail(err, SV_EFORMAT, 0, "%s: header of %llu bytes is too long", file,
                       (unsigned long long)n_header);
    if (n_header == 0 || data[8] != '{')
        return sv_fail(err, SV_EFORMAT, 8, "%s: the header is not a JSON object", file);
    json_t *header = sv_json_parse((const char *)data + 8, (size_t)n_header, err);
    if (!header) {
        if (err->pos >= 0)
            err->pos += 8; /* position in the file, not in the header */
        return sv_err_prefix(err, "%s: header", file);
    }
    struct st_reader r = {
        .header = data + 8,
        .data = data + 8 + n_header,
        .n_data = n_bytes - 8 - n_header,
        .data_pos = 8 + n_header,
        .file = file,
        .arena = arena,
        .err = err,
    };
    int rc = parse_header(&r, header, tensors, n_tensors);
    json_decref(header);
    return rc;
}
