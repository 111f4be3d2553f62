/*
 * quantize.c - a model directory written once more with its projections in fewer bits: rounding
 * alone, in layouts of compressed-tensors that quant_bind.c reads.
 *
 * Called by cli (convert). Codes are made row by row from the stored numbers, and what is reported
 * of a tensor is measured against the values that sv_quant_rows gives its codes. Everything is
 * written beside the place where it belongs and renamed into it at the end. Must not: leave a
 * directory behind that is not whole, or replace one.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GROUP = 32, MAX_PARTS = 3, COPY_MAX_BYTES = 1 << 28 };

/* How a code is written. */
struct layout {
    enum sv_quant_code code;
    const char *format, *type, *strategy;
    int32_t bits, group; /* group 0: a scale for each row */
    const char *codes, *codes_dtype, *scale_dtype;
    int32_t per_elem, elem_bytes; /* weights and bytes of an element of codes */
};
static const struct layout layouts[] = {
    {SV_CODE_F8, "float-quantized", "float", "channel", 8, 0, "weight", "F8_E4M3", "BF16", 1, 1},
    {SV_CODE_MXFP4, "mxfp4-pack-quantized", "float", "group", 4, GROUP, "weight_packed", "U8", "U8",
     2, 1},
    {SV_CODE_INT8, "pack-quantized", "int", "group", 8, GROUP, "weight_packed", "I32", "BF16", 4,
     4},
    {SV_CODE_INT4, "pack-quantized", "int", "group", 4, GROUP, "weight_packed", "I32", "BF16", 8,
     4},
};

/* One tensor of the file that is written. */
struct part {
    const char *suffix, *dtype; /* NULL: the name as it is */
    int32_t n_dims;
    int64_t dim[SV_MAX_DIMS];
    size_t n_bytes, at;
};

struct plan {
    const struct layout *l;
    struct sv_ckpt ckpt;
    struct part *parts; /* (n_tensors, MAX_PARTS), dtype NULL: none */
    size_t n_bytes;     /* of all data */
    struct sv_buf header;
    int fd;
    size_t data_at; /* where data begins in the file */
    struct sv_err *err;
};

/* ---------------------------------------------------------------- rounding */

static uint16_t bf16_not_below(float x)
{
    const uint16_t h = sv_f32_to_bf16(x);
    return sv_bf16_to_f32(h) < x ? (uint16_t)(h + 1) : h;
}

static float largest(const float *x, int32_t n)
{
    float top = 0;
    for (int32_t i = 0; i < n; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top;
}

/* The nearest of e2m1, of two as near the one whose code is even. */
static uint8_t to_e2m1(float x)
{
    const float a = fabsf(x);
    uint8_t best = 0;
    for (uint8_t c = 1; c < 8; c++) {
        const float d = fabsf(a - sv_e2m1[c]), before = fabsf(a - sv_e2m1[best]);
        if (d < before || (d == before && c % 2 == 0))
            best = c;
    }
    return (uint8_t)(best | (x < 0 ? 8 : 0));
}

static int32_t to_int(float x, int32_t bits)
{
    const float most = (float)((1 << (bits - 1)) - 1), r = rintf(x);
    return (int32_t)(r > most ? most : r < -most - 1 ? -most - 1 : r);
}

/* What n numbers become with a scale, and the sum of their squared errors. */
static double round_group(const struct layout *l, const float *x, int32_t n, float scale,
                          int32_t *code)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        const float y = scale > 0 ? x[i] / scale : 0;
        const bool four = l->code == SV_CODE_MXFP4;
        code[i] = four ? to_e2m1(y) : to_int(y, l->bits);
        const double e = (double)x[i] - (double)(four ? sv_e2m1[code[i]] : (float)code[i]) * scale;
        sum += e * e;
    }
    return sum;
}

/* Scales that are tried for a group whose largest number is top: with the largest at the end of the
 * range, and a little beyond. Returns how many. */
static int32_t candidates(const struct layout *l, float top, float scale[3])
{
    if (l->code == SV_CODE_MXFP4) {
        const int e = top > 0 ? (int)floorf(log2f(top)) - 2 : -127;
        for (int i = 0; i < 2; i++) /* e8m0, below those whose largest product is no f32 */
            scale[i] = ldexpf(1, e + i < -126 ? -126 : e + i > 125 ? 125 : e + i);
        return 2;
    }
    const float most = (float)((1 << (l->bits - 1)) - 1);
    scale[0] = sv_bf16_to_f32(bf16_not_below(top / most));
    scale[1] = sv_bf16_to_f32(sv_f32_to_bf16(top / (most + 0.5f)));
    scale[2] = sv_bf16_to_f32(sv_f32_to_bf16(top / (most + 1)));
    return l->bits == 8 ? 1 : 3;
}

static void put_code(const struct layout *l, void *row, int32_t k, int32_t code)
{
    if (l->code == SV_CODE_MXFP4) {
        ((uint8_t *)row)[k / 2] |= (uint8_t)(code << k % 2 * 4);
    } else {
        const uint32_t stored = (uint32_t)(code + (1 << (l->bits - 1)));
        ((uint32_t *)row)[k / l->per_elem] |= stored << k % l->per_elem * l->bits;
    }
}

static void put_scale(const struct layout *l, void *scales, int64_t at, float scale)
{
    if (l->code == SV_CODE_MXFP4)
        ((uint8_t *)scales)[at] = (uint8_t)(ilogbf(scale) + 127);
    else
        ((uint16_t *)scales)[at] = sv_f32_to_bf16(scale);
}

/* codes is zeroed. */
static void round_row(const struct layout *l, const float *x, int32_t cols, void *codes,
                      void *scales, int64_t scale_at)
{
    if (!l->group) {
        const uint16_t s = bf16_not_below(largest(x, cols) / 448);
        const float scale = sv_bf16_to_f32(s);
        ((uint16_t *)scales)[scale_at] = s;
        for (int32_t k = 0; k < cols; k++)
            ((uint8_t *)codes)[k] = scale > 0 ? sv_f32_to_f8(x[k] / scale) : 0;
        return;
    }
    for (int32_t k = 0; k < cols; k += GROUP) {
        float scale[3], chosen = 0;
        int32_t code[GROUP], best[GROUP] = {0};
        double least = INFINITY;
        const int32_t n = candidates(l, largest(x + k, GROUP), scale);
        for (int32_t i = 0; i < n; i++) {
            const double e = round_group(l, x + k, GROUP, scale[i], code);
            if (e >= least)
                continue;
            least = e;
            chosen = scale[i];
            memcpy(best, code, sizeof best);
        }
        for (int32_t i = 0; i < GROUP; i++)
            put_code(l, codes, k + i, best[i]);
        put_scale(l, scales, scale_at + k / GROUP, chosen);
    }
}

/* ---------------------------------------------------------------- one tensor */

struct job {
    const struct layout *l;
    const struct sv_host_tensor *t;
    struct sv_quant q; /* of what is written */
    uint8_t *codes, *scales;
    float *row;       /* (threads, 2, cols) */
    double *sums;     /* (threads, 3): squared error, squared numbers, largest error */
    bool *not_finite; /* (threads) */
};

static void round_share(void *arg, int thread, int n_threads)
{
    const struct job *j = arg;
    const int32_t rows = j->q.rows, cols = j->q.cols;
    const size_t code_bytes = (size_t)cols / (size_t)j->l->per_elem * (size_t)j->l->elem_bytes;
    float *x = j->row + (size_t)thread * 2 * (size_t)cols, *y = x + cols;
    double *sum = j->sums + 3 * thread;
    for (int32_t r = (int32_t)((int64_t)rows * thread / n_threads);
         r < (int64_t)rows * (thread + 1) / n_threads; r++) {
        for (int32_t k = 0; k < cols; k++) {
            x[k] = sv_tensor_number(j->t, (int64_t)r * cols + k);
            j->not_finite[thread] |= !isfinite(x[k]);
        }
        round_row(j->l, x, cols, j->codes + (size_t)r * code_bytes, j->scales,
                  (int64_t)r * (j->l->group ? cols / GROUP : 1));
        sv_quant_rows(&j->q, r, 1, y);
        for (int32_t k = 0; k < cols; k++) {
            const double e = (double)x[k] - y[k];
            sum[0] += e * e;
            sum[1] += (double)x[k] * x[k];
            sum[2] = fabs(e) > sum[2] ? fabs(e) : sum[2];
        }
    }
}

/* Adds up the threads' sums, in their order. */
static void report_of(const struct job *j, int n_threads, const char *name, size_t n_bytes,
                      struct sv_quantized *out)
{
    double sum[3] = {0};
    for (int i = 0; i < n_threads; i++) {
        sum[0] += j->sums[3 * i];
        sum[1] += j->sums[3 * i + 1];
        sum[2] = fmax(sum[2], j->sums[3 * i + 2]);
    }
    *out = (struct sv_quantized){.name = name,
                                 .rows = j->q.rows,
                                 .cols = j->q.cols,
                                 .relative = sum[1] > 0 ? sqrt(sum[0] / sum[1]) : 0,
                                 .largest = sum[2],
                                 .n_bytes = (int64_t)n_bytes};
}

static int put_at(const struct plan *p, const void *data, size_t n, size_t at)
{
    const char *from = data;
    while (n) {
        const ssize_t k = sv_fault_hit() ? (errno = EIO, -1) : pwrite(p->fd, from, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sv_fail(p->err, SV_EIO, -1, "cannot write model.safetensors: %s",
                           strerror(errno));
        from += k;
        at += (size_t)k;
        n -= (size_t)k;
    }
    return SV_OK;
}

static int round_tensor(const struct plan *p, const struct sv_host_tensor *t,
                        const struct part *part, struct sv_quantized *report)
{
    const size_t cols = (size_t)t->dim[1];
    struct job j = {.l = p->l, .t = t};
    struct sv_pool *pool = NULL;
    int32_t shape[2] = {(int32_t)t->dim[0], (int32_t)t->dim[1]};
    int n = sv_cpu_count(), rc = sv_pool_open(&pool, n, p->err);
    if (rc)
        return rc;
    j.codes = sv_calloc(part[0].n_bytes, 1);
    j.scales = sv_calloc(part[1].n_bytes, 1);
    j.row = sv_alloc((size_t)n * 2 * cols * sizeof *j.row);
    j.sums = sv_calloc((size_t)n * 3, sizeof *j.sums);
    j.not_finite = sv_calloc((size_t)n, sizeof *j.not_finite);
    j.q = (struct sv_quant){.code = p->l->code,
                            .rows = shape[0],
                            .cols = shape[1],
                            .data = j.codes,
                            .scales = j.scales,
                            .scale = p->l->code == SV_CODE_MXFP4 ? SV_U8 : SV_BF16,
                            .block_rows = 1,
                            .block_cols = p->l->group ? GROUP : shape[1]};
    if (!j.codes || !j.scales || !j.row || !j.sums || !j.not_finite)
        rc = sv_fail(p->err, SV_ENOMEM, -1, "no memory for %s", t->name);
    if (!rc)
        sv_pool_run(pool, round_share, &j);
    for (int i = 0; i < n && !rc; i++)
        if (j.not_finite[i])
            rc = sv_fail(p->err, SV_EFORMAT, -1,
                         "%s: tensor '%s' holds a number that is not finite", t->file, t->name);
    if (!rc)
        rc = put_at(p, j.codes, part[0].n_bytes, p->data_at + part[0].at);
    if (!rc)
        rc = put_at(p, j.scales, part[1].n_bytes, p->data_at + part[1].at);
    if (!rc && part[2].dtype)
        rc = put_at(p, shape, sizeof shape, p->data_at + part[2].at);
    if (!rc)
        report_of(&j, n, t->name, part[0].n_bytes + part[1].n_bytes, report);
    sv_pool_close(pool);
    sv_free(j.codes), sv_free(j.scales), sv_free(j.row), sv_free(j.sums), sv_free(j.not_finite);
    return rc;
}

/* ---------------------------------------------------------------- what is written where */

static bool is_projection(const char *name)
{
    const char suffix[] = "_proj.weight";
    const size_t n = strlen(name), k = sizeof suffix - 1;
    return !strncmp(name, "layers.", 7) && n > k && !strcmp(name + n - k, suffix);
}

static void set_part(struct part *p, const char *suffix, const char *dtype, int64_t rows,
                     int64_t cols, size_t elem)
{
    *p = (struct part){.suffix = suffix,
                       .dtype = dtype,
                       .n_dims = cols ? 2 : 1,
                       .dim = {rows, cols},
                       .n_bytes = (size_t)rows * (size_t)(cols ? cols : 1) * elem};
}

static int plan_tensor(struct plan *p, const struct sv_host_tensor *t, struct part *part)
{
    const struct layout *l = p->l;
    if (t->quant.code)
        return sv_fail(p->err, SV_EUNSUPPORTED, -1, "%s: tensor '%s' is in fewer bits already (%s)",
                       t->file, t->name, sv_quant_name(t->quant.code));
    if (!is_projection(t->name)) {
        *part = (struct part){.dtype = t->dtype == SV_F32   ? "F32"
                                       : t->dtype == SV_F16 ? "F16"
                                                            : "BF16",
                              .n_dims = t->n_dims,
                              .n_bytes = t->n_bytes};
        memcpy(part->dim, t->dim, sizeof part->dim);
        return SV_OK;
    }
    if (l->group && t->dim[1] % GROUP)
        return sv_fail(p->err, SV_EUNSUPPORTED, -1,
                       "%s: tensor '%s' has %lld columns, which are not groups of %d", t->file,
                       t->name, (long long)t->dim[1], GROUP);
    set_part(&part[0], l->codes, l->codes_dtype, t->dim[0], t->dim[1] / l->per_elem,
             (size_t)l->elem_bytes);
    set_part(&part[1], "weight_scale", l->scale_dtype, t->dim[0], l->group ? t->dim[1] / GROUP : 1,
             l->code == SV_CODE_MXFP4 ? 1 : 2);
    if (l->per_elem > 2) /* words: the number of columns may be padded */
        set_part(&part[2], "weight_shape", "I32", 2, 0, 4);
    return SV_OK;
}

static void name_of(const struct sv_host_tensor *t, const struct part *p, char *buf, size_t size)
{
    const char *prefix = strncmp(t->name, "lm_head.", 8) ? "model." : "";
    const size_t n = p->suffix ? strlen(t->name) - strlen("weight") : strlen(t->name);
    snprintf(buf, size, "%s%.*s%s", prefix, (int)n, t->name, p->suffix ? p->suffix : "");
}

static size_t elem_of(const struct part *p)
{
    return !strcmp(p->dtype, "F32") || !strcmp(p->dtype, "I32")      ? 4
           : !strcmp(p->dtype, "U8") || !strcmp(p->dtype, "F8_E4M3") ? 1
                                                                     : 2;
}

/* Offsets, wide elements first so that all are aligned, and the header that says them. */
static int lay_out(struct plan *p)
{
    struct sv_buf *h = &p->header;
    const int32_t n = p->ckpt.n_tensors * MAX_PARTS;
    for (size_t elem = 4; elem; elem /= 2)
        for (int32_t i = 0; i < n; i++)
            if (p->parts[i].dtype && elem_of(&p->parts[i]) == elem) {
                p->parts[i].at = p->n_bytes;
                p->n_bytes += p->parts[i].n_bytes;
            }
    sv_buf_lit(h, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int32_t i = 0; i < n; i++) {
        const struct part *part = &p->parts[i];
        char name[256];
        if (!part->dtype)
            continue;
        name_of(&p->ckpt.tensors[i / MAX_PARTS], part, name, sizeof name);
        sv_buf_printf(h, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, part->dtype);
        for (int32_t k = 0; k < part->n_dims; k++)
            sv_buf_printf(h, "%s%lld", k ? "," : "", (long long)part->dim[k]);
        sv_buf_printf(h, "],\"data_offsets\":[%zu,%zu]}", part->at, part->at + part->n_bytes);
    }
    sv_buf_lit(h, "}");
    while (h->len % 8 && !h->failed)
        sv_buf_lit(h, " ");
    p->data_at = 8 + h->len;
    return h->failed ? sv_fail(p->err, SV_ENOMEM, -1, "out of memory") : SV_OK;
}

static int make_plan(struct plan *p)
{
    int rc = SV_OK;
    p->parts = sv_calloc((size_t)p->ckpt.n_tensors * MAX_PARTS, sizeof *p->parts);
    if (!p->parts)
        return sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    for (int32_t i = 0; i < p->ckpt.n_tensors && !rc; i++)
        rc = plan_tensor(p, &p->ckpt.tensors[i], p->parts + i * MAX_PARTS);
    return rc ? rc : lay_out(p);
}

/* ---------------------------------------------------------------- files */

static int write_tensors(struct plan *p, const char *path, sv_quantized_fn *told, void *user)
{
    uint8_t size[8];
    int rc;
    p->fd = sv_fault_hit() ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (p->fd < 0)
        return sv_fail(p->err, SV_EIO, -1, "%s: cannot create: %s", path, strerror(errno));
    /* a full disk is told before minutes of rounding, where the file system can tell */
    const int full = posix_fallocate(p->fd, 0, (off_t)(p->data_at + p->n_bytes));
    rc = full == ENOSPC || full == EFBIG
             ? sv_fail(p->err, SV_EIO, -1, "%s: no room for %zu bytes: %s", path,
                       p->data_at + p->n_bytes, strerror(full))
             : SV_OK;
    for (int i = 0; i < 8; i++)
        size[i] = (uint8_t)((uint64_t)p->header.len >> (8 * i));
    if (!rc)
        rc = put_at(p, size, 8, 0);
    if (!rc)
        rc = put_at(p, p->header.data, p->header.len, 8);
    for (int32_t i = 0; i < p->ckpt.n_tensors && !rc; i++) {
        const struct sv_host_tensor *t = &p->ckpt.tensors[i];
        const struct part *part = p->parts + i * MAX_PARTS;
        struct sv_quantized report;
        if (!part->suffix) {
            rc = put_at(p, t->data, t->n_bytes, p->data_at + part->at);
            continue;
        }
        rc = round_tensor(p, t, part, &report);
        report.n_bytes_before = (int64_t)t->n_bytes;
        if (!rc)
            rc = told(user, &report);
    }
    if (!rc && (sv_fault_hit() || fsync(p->fd)))
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot sync: %s", path, strerror(errno));
    if (close(p->fd) && !rc)
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot close: %s", path, strerror(errno));
    return rc;
}

/* Through text: what json_pack makes lacks a field when memory was short. */
static json_t *quantization_config(const struct layout *l, struct sv_err *err)
{
    char text[512], group[16] = "null";
    if (l->group)
        snprintf(group, sizeof group, "%d", l->group);
    const int n = snprintf(text, sizeof text,
                           "{\"quant_method\":\"compressed-tensors\",\"format\":\"%s\","
                           "\"quantization_status\":\"compressed\",\"ignore\":[\"lm_head\"],"
                           "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{"
                           "\"num_bits\":%d,\"type\":\"%s\",\"strategy\":\"%s\",\"group_size\":%s,"
                           "\"symmetric\":true,\"dynamic\":false}}}}",
                           l->format, l->bits, l->type, l->strategy, group);
    return sv_json_parse(text, (size_t)n, err);
}

static int write_config(const struct plan *p, const char *dir, const char *to)
{
    char *from = NULL, *path = sv_path_join(to, "config.json"), *text = NULL;
    json_t *root = NULL, *again = NULL;
    json_t *quant = quantization_config(p->l, p->err);
    int rc = quant ? sv_dir_json(dir, "config.json", true, &from, &root, p->err) : p->err->code;
    if (!rc && json_object_set(root, "quantization_config", quant) == 0)
        text = json_dumps(root, JSON_INDENT(2));
    if (!rc && text) /* short of memory, jansson leaves parts out and does not tell */
        again = sv_json_parse(text, strlen(text), p->err);
    if (!rc && (!path || !json_equal(again, root)))
        rc = sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = sv_file_write(path, text, strlen(text), p->err);
    sv_free(text);
    json_decref(quant);
    json_decref(again);
    json_decref(root);
    sv_free(path);
    sv_free(from);
    return rc;
}

/* What a directory may hold beside weights and configuration. */
static const char *const others[] = {"generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "merges.txt",
                                     "tokenizer.model",
                                     "chat_template.jinja",
                                     "chat_template.json"};

static int copy_file(const char *dir, const char *to, const char *name, struct sv_err *err)
{
    struct sv_buf b;
    char *from = sv_path_join(dir, name), *path = sv_path_join(to, name);
    int rc = from && path ? SV_OK : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    sv_buf_init(&b);
    if (!rc && sv_file_exists(from)) {
        rc = sv_file_read(&b, from, COPY_MAX_BYTES, err);
        if (!rc)
            rc = sv_file_write(path, b.data ? b.data : "", b.len, err);
    }
    sv_buf_fini(&b);
    sv_free(from);
    sv_free(path);
    return rc;
}

/* Takes no memory: that may be what was short. */
static void remove_all(const char *dir)
{
    char path[4096];
    for (size_t i = 0; i < sizeof others / sizeof others[0] + 2; i++) {
        const char *name = i == 0 ? "model.safetensors" : i == 1 ? "config.json" : others[i - 2];
        if (snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path)
            unlink(path);
    }
    rmdir(dir);
}

static int write_all(struct plan *p, const char *dir, const char *to, sv_quantized_fn *told,
                     void *user)
{
    char *path = sv_path_join(to, "model.safetensors");
    int rc =
        path ? write_tensors(p, path, told, user) : sv_fail(p->err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = write_config(p, dir, to);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && !rc; i++)
        rc = copy_file(dir, to, others[i], p->err);
    sv_free(path);
    return rc;
}

/* Beside out, under a name of its own until it is whole. */
static int write_dir(struct plan *p, const char *dir, const char *out, sv_quantized_fn *told,
                     void *user)
{
    struct sv_buf tmp;
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    sv_buf_init(&tmp);
    sv_buf_printf(&tmp, "%.*s.partial-%ld", (int)n, out, (long)getpid());
    int rc = tmp.failed ? sv_fail(p->err, SV_ENOMEM, -1, "out of memory") : SV_OK;
    if (!rc && (sv_fault_hit() || mkdir(tmp.data, 0777))) {
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot create: %s", tmp.data, strerror(errno));
        sv_buf_fini(&tmp);
        return rc;
    }
    if (!rc)
        rc = write_all(p, dir, tmp.data, told, user);
    if (!rc && (sv_fault_hit() || rename(tmp.data, out)))
        rc = sv_fail(p->err, SV_EIO, -1, "%s: cannot rename into place: %s", out, strerror(errno));
    if (rc && !tmp.failed)
        remove_all(tmp.data);
    sv_buf_fini(&tmp);
    return rc;
}

/* ---------------------------------------------------------------- what can be converted */

static int check_source(const char *dir, const char *out, struct sv_config *cfg, struct sv_err *err)
{
    struct stat st;
    if (lstat(out, &st) == 0)
        return sv_fail(err, SV_EINVAL, -1, "%s: is there already", out);
    if (sv_is_gguf(dir))
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: only Hugging Face directories can be converted, not GGUF files", dir);
    if (sv_dir_is_draft(dir))
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: is a draft; drafts in fewer bits are not supported", dir);
    int rc = sv_config_load(cfg, dir, err);
    if (!rc && (cfg->n_experts || cfg->gdn_k_heads))
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "%s: quantized weights are not supported for %s (dense models are)", dir,
                     sv_arch_name(cfg->arch));
    return rc;
}

int sv_quantize_dir(const char *dir, enum sv_quant_code code, const char *out,
                    sv_quantized_fn *told, void *user, struct sv_err *err)
{
    struct sv_config *cfg = sv_calloc(1, sizeof *cfg);
    struct plan p = {.err = err};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].code == code)
            p.l = &layouts[i];
    SV_REQUIRE(p.l);
    int rc = cfg ? check_source(dir, out, cfg, err) : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = sv_ckpt_open(&p.ckpt, dir, err);
    if (rc) {
        sv_free(cfg);
        return rc;
    }
    sv_buf_init(&p.header);
    rc = sv_ckpt_check_target(&p.ckpt, cfg, err);
    if (!rc)
        rc = make_plan(&p);
    if (!rc)
        rc = write_dir(&p, dir, out, told, user);
    sv_buf_fini(&p.header);
    sv_free(p.parts);
    sv_ckpt_close(&p.ckpt);
    sv_free(cfg);
    return rc;
}
