/*
 * gguf.c - one GGUF image: header, metadata, tensor table, data (versions 2 and 3, little-endian).
 *
 * Owns all checks of sizes: later readers walk values without checking them again. Called by
 * gguf_ckpt.c and the fuzz target. Must not: read outside [data, data + n_bytes), allocate by a
 * count beyond the file's size, or know the meaning of a key or a tensor.
 */
#include "load/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_KEY 256
#define MAX_NAME 512
#define MAX_COUNT (1 << 20)
#define DEFAULT_ALIGNMENT 32

static const uint8_t size_of[SV_GGUF_TYPES] = {
    [SV_GGUF_U8] = 1,  [SV_GGUF_I8] = 1,  [SV_GGUF_U16] = 2, [SV_GGUF_I16] = 2,
    [SV_GGUF_U32] = 4, [SV_GGUF_I32] = 4, [SV_GGUF_F32] = 4, [SV_GGUF_BOOL] = 1,
    [SV_GGUF_U64] = 8, [SV_GGUF_I64] = 8, [SV_GGUF_F64] = 8};

static const struct {
    uint32_t type;
    enum sv_dtype dtype;
    enum sv_quant_code code;
} formats[] = {{0, SV_F32, SV_CODE_NONE},    {1, SV_F16, SV_CODE_NONE}, {30, SV_BF16, SV_CODE_NONE},
               {2, SV_U8, SV_CODE_Q4_0},     {8, SV_U8, SV_CODE_Q8_0},  {12, SV_U8, SV_CODE_Q4_K},
               {13, SV_U8, SV_CODE_Q5_K},    {14, SV_U8, SV_CODE_Q6_K}, {20, SV_U8, SV_CODE_IQ4_NL},
               {39, SV_U8, SV_CODE_GG_MXFP4}};

bool sv_gguf_format(uint32_t type, enum sv_dtype *dtype, enum sv_quant_code *code)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].type != type)
            continue;
        *dtype = formats[i].dtype;
        *code = formats[i].code;
        return true;
    }
    return false;
}

uint32_t sv_gguf_type_of(enum sv_dtype dtype, enum sv_quant_code code)
{
    size_t i = 0;
    while (formats[i].code != code || (!code && formats[i].dtype != dtype))
        i++;
    return formats[i].type;
}

/* Names of unsupported types, for the message. */
static const char *foreign_type(uint32_t type)
{
    static const char *const names[] = {
        [3] = "Q4_1",   [6] = "Q5_0",   [7] = "Q5_1",     [9] = "Q8_1",    [10] = "Q2_K",
        [11] = "Q3_K",  [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
        [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS", [24] = "I8",
        [25] = "I16",   [26] = "I32",   [27] = "I64",     [28] = "F64",    [29] = "IQ1_M",
        [34] = "TQ1_0", [35] = "TQ2_0", [40] = "NVFP4"};
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

/* ---------------------------------------------------------------- bytes */

struct reader {
    const uint8_t *data;
    size_t n, pos;
    const char *file;
    struct sv_arena *arena;
    struct sv_err *err;
};

static int broken(const struct reader *r, size_t pos, const char *what)
{
    return sv_fail(r->err, SV_EFORMAT, (int64_t)pos, "%s: byte %zu: %s", r->file, pos, what);
}

static int no_memory(const struct reader *r)
{
    return sv_fail(r->err, SV_ENOMEM, -1, "%s: out of memory", r->file);
}

static uint64_t le(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static int take(struct reader *r, size_t n_bytes, uint64_t *out, const char *what)
{
    if (r->n - r->pos < n_bytes)
        return sv_fail(r->err, SV_EFORMAT, (int64_t)r->pos, "%s: byte %zu: the file ends within %s",
                       r->file, r->pos, what);
    *out = le(r->data + r->pos, n_bytes);
    r->pos += n_bytes;
    return SV_OK;
}

/* The length of a string, whose bytes follow, within the image. */
static int take_length(struct reader *r, uint64_t *n, const char *what)
{
    const size_t pos = r->pos;
    int rc = take(r, 8, n, what);
    if (!rc && *n > r->n - r->pos)
        rc = sv_fail(r->err, SV_EFORMAT, (int64_t)pos,
                     "%s: byte %zu: %s of %llu bytes goes beyond the end of the file", r->file, pos,
                     what, (unsigned long long)*n);
    return rc;
}

/* A printable string of at most `most` bytes, copied with an end mark. */
static int take_name(struct reader *r, size_t most, const char **out, const char *what)
{
    const size_t pos = r->pos;
    uint64_t n = 0;
    int rc = take_length(r, &n, what);
    if (rc)
        return rc;
    if (n == 0 || n > most)
        return sv_fail(r->err, SV_EFORMAT, (int64_t)pos,
                       "%s: byte %zu: %s of %llu bytes (1 to %zu are allowed)", r->file, pos, what,
                       (unsigned long long)n, most);
    char *s = sv_arena_alloc(r->arena, (size_t)n + 1);
    if (!s)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        s[i] = (char)r->data[r->pos + i];
        if ((uint8_t)s[i] < 0x20 || s[i] == 0x7f)
            return sv_fail(r->err, SV_EFORMAT, (int64_t)(r->pos + i),
                           "%s: byte %zu: %s is not printable", r->file, r->pos + i, what);
    }
    r->pos += (size_t)n;
    *out = s;
    return SV_OK;
}

/* ---------------------------------------------------------------- metadata */

static int walk_strings(struct reader *r, uint64_t count)
{
    int rc = SV_OK;
    for (uint64_t i = 0; i < count && !rc; i++) {
        uint64_t n = 0;
        rc = take_length(r, &n, "a string");
        if (!rc)
            r->pos += (size_t)n;
    }
    return rc;
}

static int walk_values(struct reader *r, const struct sv_gguf_kv *kv)
{
    if (kv->type == SV_GGUF_STRING)
        return walk_strings(r, kv->n);
    const size_t size = size_of[kv->type];
    if (kv->n > (r->n - r->pos) / size)
        return broken(r, r->pos, "values go beyond the end of the file");
    for (uint64_t i = 0; kv->type == SV_GGUF_BOOL && i < kv->n; i++)
        if (r->data[r->pos + i] > 1)
            return broken(r, r->pos + (size_t)i, "a truth value that is neither 0 nor 1");
    r->pos += (size_t)kv->n * size;
    return SV_OK;
}

static int take_kv(struct reader *r, struct sv_gguf_kv *kv)
{
    uint64_t type = 0;
    int rc = take_name(r, MAX_KEY, &kv->key, "a key");
    if (!rc)
        rc = take(r, 4, &type, "the type of a value");
    if (rc)
        return rc;
    kv->n = 1;
    kv->is_array = type == SV_GGUF_ARRAY;
    if (kv->is_array) {
        rc = take(r, 4, &type, "the type of an array");
        if (!rc)
            rc = take(r, 8, &kv->n, "the length of an array");
        if (!rc && type == SV_GGUF_ARRAY)
            rc = broken(r, r->pos - 12, "an array of arrays is not supported");
    }
    if (!rc && type >= SV_GGUF_TYPES)
        rc = broken(r, r->pos - 4, "an unknown type");
    kv->type = (enum sv_gguf_type)type;
    kv->at = r->data + r->pos;
    if (!rc)
        rc = walk_values(r, kv);
    return rc ? sv_err_prefix(r->err, "key '%.80s'", kv->key) : SV_OK;
}

static int cmp_kv(const void *a, const void *b)
{
    const struct sv_gguf_kv *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static int take_metadata(struct reader *r, struct sv_gguf *g, uint64_t count)
{
    /* a key, a type and a value are 14 bytes and more */
    if (count > MAX_COUNT || count > (r->n - r->pos) / 14)
        return broken(r, 16, "more keys than the file can hold");
    g->kv = sv_arena_alloc(r->arena, (size_t)count * sizeof *g->kv);
    if (!g->kv)
        return no_memory(r);
    for (; (uint64_t)g->n_kv < count; g->n_kv++) {
        int rc = take_kv(r, &g->kv[g->n_kv]);
        if (rc)
            return rc;
    }
    qsort(g->kv, (size_t)g->n_kv, sizeof *g->kv, cmp_kv);
    for (int32_t i = 1; i < g->n_kv; i++)
        if (!strcmp(g->kv[i - 1].key, g->kv[i].key))
            return sv_fail(r->err, SV_EFORMAT, -1, "%s: key '%.80s' is there twice", r->file,
                           g->kv[i].key);
    return SV_OK;
}

/* ---------------------------------------------------------------- tensors */

static int take_dims(struct reader *r, struct sv_gguf_tensor *t)
{
    uint64_t n_dims = 0, dim = 0, type = 0;
    int rc = take(r, 4, &n_dims, "the number of dimensions");
    if (!rc && (n_dims < 1 || n_dims > 4))
        rc = broken(r, r->pos - 4, "the number of dimensions is not 1 to 4");
    if (rc)
        return rc;
    t->n_dims = (int32_t)n_dims;
    t->n_elements = 1;
    for (int32_t i = 0; i < t->n_dims; i++) {
        rc = take(r, 8, &dim, "a dimension");
        if (rc)
            return rc;
        if (dim == 0 || dim > INT32_MAX ||
            __builtin_mul_overflow(t->n_elements, (int64_t)dim, &t->n_elements))
            return broken(r, r->pos - 8, "a dimension is 0 or too large");
        t->dim[i] = (int64_t)dim;
    }
    rc = take(r, 4, &type, "the type of a tensor");
    t->type = (uint32_t)type;
    return rc;
}

/* The bytes of a tensor from its type and dimensions. */
static int measure(const struct reader *r, struct sv_gguf_tensor *t)
{
    enum sv_dtype dtype;
    enum sv_quant_code code;
    if (!sv_gguf_format(t->type, &dtype, &code)) {
        const char *name = foreign_type(t->type);
        if (name)
            return sv_fail(r->err, SV_EUNSUPPORTED, (int64_t)r->pos - 4,
                           "%s: byte %zu: type %s is not supported", r->file, r->pos - 4, name);
        return broken(r, r->pos - 4, "an unknown type of tensor");
    }
    int64_t units = t->n_elements, size = (int64_t)sv_dtype_bytes(dtype), n_bytes;
    if (code) {
        size = sv_quant_block_bytes(code);
        units /= sv_quant_block(code);
        if (t->dim[0] % sv_quant_block(code))
            return sv_fail(r->err, SV_EFORMAT, (int64_t)r->pos - 4,
                           "%s: byte %zu: rows of %lld are not whole blocks of %d", r->file,
                           r->pos - 4, (long long)t->dim[0], sv_quant_block(code));
    }
    if (__builtin_mul_overflow(units, size, &n_bytes))
        return broken(r, r->pos - 4, "the size of a tensor overflows");
    t->n_bytes = (size_t)n_bytes;
    return SV_OK;
}

static int take_tensor(struct reader *r, struct sv_gguf_tensor *t, uint64_t *offset)
{
    int rc = take_name(r, MAX_NAME, &t->name, "the name of a tensor");
    if (rc)
        return rc;
    rc = take_dims(r, t);
    t->file = r->file;
    if (!rc)
        rc = measure(r, t);
    if (!rc)
        rc = take(r, 8, offset, "the offset of a tensor");
    return rc ? sv_err_prefix(r->err, "tensor '%.120s'", t->name) : SV_OK;
}

static int cmp_place(const void *a, const void *b)
{
    const struct sv_gguf_tensor *x = *(const struct sv_gguf_tensor *const *)a;
    const struct sv_gguf_tensor *y = *(const struct sv_gguf_tensor *const *)b;
    return x->data < y->data ? -1 : x->data > y->data ? 1 : strcmp(x->name, y->name);
}

static int cmp_name(const void *a, const void *b)
{
    return strcmp((*(const struct sv_gguf_tensor *const *)a)->name,
                  (*(const struct sv_gguf_tensor *const *)b)->name);
}

/* They tile the data section from its start, each at the next aligned offset: a gap means a wrong
 * type or shape in the table. */
static int check_places(const struct reader *r, const struct sv_gguf *g, uint64_t start,
                        uint64_t step)
{
    const struct sv_gguf_tensor **by = sv_calloc((size_t)g->n_tensors, sizeof *by);
    const uint8_t *end = r->data + start;
    const char *before = "the table";
    int rc = by ? SV_OK : no_memory(r);
    for (int32_t i = 0; !rc && i < g->n_tensors; i++)
        by[i] = &g->tensors[i];
    if (!rc)
        qsort(by, (size_t)g->n_tensors, sizeof *by, cmp_place);
    for (int32_t i = 0; !rc && i < g->n_tensors; i++) {
        const struct sv_gguf_tensor *t = by[i];
        if (t->data < end)
            rc = sv_fail(r->err, SV_EFORMAT, t->data - r->data,
                         "%s: byte %lld: data of tensor '%.120s' overlaps '%.120s'", r->file,
                         (long long)(t->data - r->data), t->name, before);
        else if ((uint64_t)(t->data - end) >= step)
            rc = sv_fail(r->err, SV_EFORMAT, end - r->data,
                         "%s: byte %lld: a gap between '%.120s' and the data of tensor '%.120s'",
                         r->file, (long long)(end - r->data), before, t->name);
        end = t->data + t->n_bytes;
        before = t->name;
    }
    if (!rc)
        qsort(by, (size_t)g->n_tensors, sizeof *by, cmp_name);
    for (int32_t i = 1; !rc && i < g->n_tensors; i++)
        if (!strcmp(by[i]->name, by[i - 1]->name))
            rc = sv_fail(r->err, SV_EFORMAT, -1, "%s: tensor '%.120s' is there twice", r->file,
                         by[i]->name);
    sv_free(by);
    return rc;
}

/* Points the tensors into the data section, which begins after the table. */
static int place(const struct reader *r, struct sv_gguf *g, const uint64_t *offsets)
{
    int64_t align = DEFAULT_ALIGNMENT;
    int rc = sv_gguf_int_opt(g, "general.alignment", 8, 1 << 20, &align, r->err);
    if (!rc && align & (align - 1))
        rc = sv_fail(r->err, SV_EFORMAT, -1, "%s: 'general.alignment' %lld is no power of two",
                     r->file, (long long)align);
    if (rc)
        return rc;
    const uint64_t step = (uint64_t)align, start = (r->pos + step - 1) / step * step;
    for (int32_t i = 0; i < g->n_tensors; i++) {
        struct sv_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] % step)
            return sv_fail(r->err, SV_EFORMAT, -1,
                           "%s: tensor '%.120s': offset %llu is no multiple of the alignment %llu",
                           r->file, t->name, (unsigned long long)offsets[i],
                           (unsigned long long)step);
        if (start > r->n || offsets[i] > r->n - start || t->n_bytes > r->n - start - offsets[i])
            return sv_fail(r->err, SV_EFORMAT, (int64_t)r->n,
                           "%s: data of tensor '%.120s' goes beyond the end of the file at byte "
                           "%zu (truncated?)",
                           r->file, t->name, r->n);
        t->data = r->data + start + offsets[i];
    }
    return check_places(r, g, start, step);
}

static int take_tensors(struct reader *r, struct sv_gguf *g, uint64_t count)
{
    /* a name, dimensions, a type and an offset are 33 bytes and more */
    if (count > MAX_COUNT || count > (r->n - r->pos) / 33)
        return broken(r, 8, "more tensors than the file can hold");
    g->tensors = sv_arena_alloc(r->arena, (size_t)count * sizeof *g->tensors);
    uint64_t *offsets = sv_calloc((size_t)count, sizeof *offsets);
    int rc = g->tensors && offsets ? SV_OK : no_memory(r);
    for (; !rc && (uint64_t)g->n_tensors < count; g->n_tensors++)
        rc = take_tensor(r, &g->tensors[g->n_tensors], &offsets[g->n_tensors]);
    if (!rc)
        rc = place(r, g, offsets);
    sv_free(offsets);
    return rc;
}

int sv_gguf_parse(struct sv_gguf *g, const uint8_t *data, size_t n_bytes, const char *file,
                  struct sv_arena *arena, struct sv_err *err)
{
    struct sv_err local;
    struct reader r = {data, n_bytes, 0, file, arena, err ? err : &local};
    uint64_t version = 0, n_tensors = 0, n_kv = 0;
    memset(g, 0, sizeof *g);
    if (n_bytes < 4 || memcmp(data, "GGUF", 4) != 0)
        return broken(&r, 0, "this is no GGUF file");
    r.pos = 4;
    g->file = r.file = sv_arena_strdup(arena, file);
    if (!g->file)
        return sv_fail(r.err, SV_ENOMEM, -1, "%s: out of memory", file);
    int rc = take(&r, 4, &version, "the version");
    if (!rc && version != 3 && version != 2)
        return sv_fail(
            r.err, SV_EUNSUPPORTED, 4, "%s: version %llu of GGUF is not supported (2 and 3 are%s)",
            file, (unsigned long long)version, version & 0xffff ? "" : "; the file is big-endian");
    if (!rc)
        rc = take(&r, 8, &n_tensors, "the number of tensors");
    if (!rc)
        rc = take(&r, 8, &n_kv, "the number of keys");
    if (!rc)
        rc = take_metadata(&r, g, n_kv);
    return rc ? rc : take_tensors(&r, g, n_tensors);
}

/* ---------------------------------------------------------------- values */

const struct sv_gguf_kv *sv_gguf_find(const struct sv_gguf *g, const char *key)
{
    const struct sv_gguf_kv want = {.key = key};
    return g->n_kv ? bsearch(&want, g->kv, (size_t)g->n_kv, sizeof *g->kv, cmp_kv) : NULL;
}

bool sv_gguf_int_at(const struct sv_gguf_kv *v, uint64_t i, int64_t *out)
{
    static const uint8_t is_signed[SV_GGUF_TYPES] = {
        [SV_GGUF_I8] = 1, [SV_GGUF_I16] = 1, [SV_GGUF_I32] = 1, [SV_GGUF_I64] = 1};
    if (v->type == SV_GGUF_F32 || v->type == SV_GGUF_F64 || v->type == SV_GGUF_STRING || i >= v->n)
        return false;
    const size_t size = size_of[v->type];
    const uint64_t u = le(v->at + i * size, size);
    const unsigned rest = (unsigned)(64 - 8 * size);
    *out = is_signed[v->type] ? (int64_t)(u << rest) >> rest : (int64_t)u;
    return is_signed[v->type] || u <= INT64_MAX;
}

static int wrong(const struct sv_gguf *g, const char *key, const char *what, struct sv_err *err)
{
    return sv_fail(err, SV_EFORMAT, -1, "%s: key '%.80s' must be %s", g->file, key, what);
}

int sv_gguf_int_opt(const struct sv_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out,
                    struct sv_err *err)
{
    const struct sv_gguf_kv *v = sv_gguf_find(g, key);
    int64_t i;
    if (!v)
        return SV_OK;
    if (v->is_array || v->type == SV_GGUF_BOOL || !sv_gguf_int_at(v, 0, &i) || i < lo || i > hi)
        return sv_fail(err, SV_EFORMAT, -1, "%s: key '%.80s' must be an integer in [%lld, %lld]",
                       g->file, key, (long long)lo, (long long)hi);
    *out = i;
    return SV_OK;
}

int sv_gguf_num_opt(const struct sv_gguf *g, const char *key, double *out, struct sv_err *err)
{
    const struct sv_gguf_kv *v = sv_gguf_find(g, key);
    float f;
    if (!v)
        return SV_OK;
    if (v->is_array || (v->type != SV_GGUF_F32 && v->type != SV_GGUF_F64))
        return wrong(g, key, "a number", err);
    double d;
    if (v->type == SV_GGUF_F64)
        memcpy(&d, v->at, 8);
    else
        memcpy(&f, v->at, 4), d = f;
    if (!isfinite(d))
        return wrong(g, key, "a finite number", err);
    *out = d;
    return SV_OK;
}

int sv_gguf_bool_opt(const struct sv_gguf *g, const char *key, bool *out, struct sv_err *err)
{
    const struct sv_gguf_kv *v = sv_gguf_find(g, key);
    if (!v)
        return SV_OK;
    if (v->is_array || v->type != SV_GGUF_BOOL)
        return wrong(g, key, "true or false", err);
    *out = *v->at;
    return SV_OK;
}

const char *sv_gguf_next(const uint8_t **at, size_t *n)
{
    const char *s = (const char *)*at + 8;
    *n = (size_t)le(*at, 8);
    *at += 8 + *n;
    return s;
}

int sv_gguf_str_opt(const struct sv_gguf *g, const char *key, const char **out, size_t *n,
                    struct sv_err *err)
{
    const struct sv_gguf_kv *v = sv_gguf_find(g, key);
    if (!v)
        return SV_OK;
    if (v->is_array || v->type != SV_GGUF_STRING)
        return wrong(g, key, "a string", err);
    const uint8_t *at = v->at;
    *out = sv_gguf_next(&at, n);
    return SV_OK;
}

int sv_gguf_strings(const struct sv_gguf *g, const char *key, const struct sv_gguf_kv **out,
                    struct sv_err *err)
{
    *out = sv_gguf_find(g, key);
    if (*out && (!(*out)->is_array || (*out)->type != SV_GGUF_STRING))
        return wrong(g, key, "a list of strings", err);
    return SV_OK;
}
