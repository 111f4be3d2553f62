/*
 * quantize.c - quantizes a model's projections by rounding.
 *
 * Called by cli (convert). Codes are made row by row from the stored numbers, and errors are
 * measured against the values that sv_quant_rows gives the codes. Output is written beside its
 * destination and renamed at the end. Must not: leave incomplete files, or replace existing ones.
 */
#define _POSIX_C_SOURCE 200809L

#include "load/quantize.h"

#include "load/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GROUP = SV_ROUND_GROUP };

/* ---------------------------------------------------------------- rounding */

static bool is_e2m1(enum sv_quant_code code)
{
    return code == SV_CODE_MXFP4 || code == SV_CODE_GG_MXFP4;
}

static int32_t bits_of(enum sv_quant_code code)
{
    return code == SV_CODE_F8 || code == SV_CODE_INT8 || code == SV_CODE_Q8_0 ? 8 : 4;
}

static uint16_t bf16_not_below(float x)
{
    const uint16_t h = sv_f32_to_bf16(x);
    return sv_bf16_to_f32(h) < x ? (uint16_t)(h + 1) : h;
}

/* The nearest f16, ties to even; at most 65504. */
static uint16_t to_f16(float x)
{
    union {
        float f;
        uint32_t u;
    } v = {fabsf(x)};
    const uint16_t sign = x < 0 ? 0x8000 : 0;
    if (v.f < 0x1p-14f) /* multiples of 2^-24 */
        return sign | (uint16_t)rintf(v.f * 0x1p24f);
    if (v.f >= 65504)
        return sign | 0x7bff;
    return sign | (uint16_t)(((v.u + 0xfff + (v.u >> 13 & 1)) >> 13) - (112 << 10));
}

static uint16_t f16_not_below(float x)
{
    const uint16_t h = to_f16(x);
    return sv_f16_to_f32(h) < x && h < 0x7bff ? (uint16_t)(h + 1) : h;
}

/* The number of largest magnitude. */
static float largest(const float *x, int32_t n)
{
    float top = 0;
    for (int32_t i = 0; i < n; i++)
        top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    return top;
}

/* The nearest e2m1, ties to the even code. */
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

/* Codes of a group with a scale, and the sum of squared errors. */
static double round_group(enum sv_quant_code to, const float *x, float scale, int32_t *code)
{
    double sum = 0;
    for (int32_t i = 0; i < GROUP; i++) {
        const float y = scale != 0 ? x[i] / scale : 0;
        const bool e2m1 = is_e2m1(to);
        code[i] = e2m1 ? to_e2m1(y) : to_int(y, bits_of(to));
        const double e = (double)x[i] - (double)(e2m1 ? sv_e2m1[code[i]] : (float)code[i]) * scale;
        sum += e * e;
    }
    return sum;
}

/* Candidate scales of a group whose largest number is top: at the end of the range, and a little
 * beyond. Returns their number. */
static int32_t candidates(enum sv_quant_code to, float top, float scale[3])
{
    const float a = fabsf(top), most = (float)((1 << (bits_of(to) - 1)) - 1);
    if (is_e2m1(to)) {
        const int e = a > 0 ? (int)floorf(log2f(a)) - 2 : -127;
        for (int i = 0; i < 2; i++) /* e8m0, below those whose largest product exceeds f32 */
            scale[i] = ldexpf(1, e + i < -126 ? -126 : e + i > 125 ? 125 : e + i);
        return 2;
    }
    if (to == SV_CODE_Q8_0) {
        scale[0] = sv_f16_to_f32(f16_not_below(a / most));
        return 1;
    }
    if (to == SV_CODE_Q4_0) { /* of either sign: the longer end of the range may be used */
        scale[0] = sv_f16_to_f32(to_f16(top / -(most + 1)));
        scale[1] = sv_f16_to_f32(to_f16(top / -(most + 1.5f)));
        scale[2] = sv_f16_to_f32(to_f16(top / most));
        return 3;
    }
    scale[0] = sv_bf16_to_f32(bf16_not_below(a / most));
    scale[1] = sv_bf16_to_f32(sv_f32_to_bf16(a / (most + 0.5f)));
    scale[2] = sv_bf16_to_f32(sv_f32_to_bf16(a / (most + 1)));
    return bits_of(to) == 8 ? 1 : 3;
}

/* A block of GGUF: the scale, then bytes, or nibbles, the low ones first. */
static void put_block(enum sv_quant_code to, uint8_t *block, float scale, const int32_t *code)
{
    const uint16_t d = to_f16(scale);
    uint8_t *out = block + (to == SV_CODE_GG_MXFP4 ? 1 : 2);
    if (to == SV_CODE_GG_MXFP4)
        *block = (uint8_t)(ilogbf(scale) + 127);
    else
        memcpy(block, &d, 2);
    for (int32_t i = 0; i < GROUP && to == SV_CODE_Q8_0; i++)
        out[i] = (uint8_t)(int8_t)code[i];
    for (int32_t i = 0; i < GROUP / 2 && to != SV_CODE_Q8_0; i++) {
        const int32_t zero = to == SV_CODE_Q4_0 ? 8 : 0;
        out[i] = (uint8_t)((code[i] + zero) | (code[i + GROUP / 2] + zero) << 4);
    }
}

/* Nibbles, or words with codes above 0; the row's codes are cleared. */
static void put_codes(enum sv_quant_code to, uint8_t *row, int32_t k, const int32_t *code)
{
    const int32_t bits = bits_of(to), per_word = 32 / bits;
    for (int32_t i = 0; i < GROUP; i++) {
        if (to == SV_CODE_MXFP4) {
            row[(k + i) / 2] |= (uint8_t)(code[i] << i % 2 * 4);
            continue;
        }
        const uint32_t stored = (uint32_t)(code[i] + (1 << (bits - 1)));
        ((uint32_t *)(void *)row)[(k + i) / per_word] |= stored << i % per_word * bits;
    }
}

static void put_scale(enum sv_quant_code to, void *scales, int64_t at, float scale)
{
    if (to == SV_CODE_MXFP4)
        ((uint8_t *)scales)[at] = (uint8_t)(ilogbf(scale) + 127);
    else
        ((uint16_t *)scales)[at] = sv_f32_to_bf16(scale);
}

static void round_f8_row(const float *x, int32_t cols, uint8_t *codes, uint16_t *scale)
{
    *scale = bf16_not_below(fabsf(largest(x, cols)) / 448);
    const float s = sv_bf16_to_f32(*scale);
    for (int32_t k = 0; k < cols; k++)
        codes[k] = s > 0 ? sv_f32_to_f8(x[k] / s) : 0;
}

/* Row r of the codes and scales of the output q. */
static void round_row(const struct sv_quant *q, int32_t r, const float *x, uint8_t *codes,
                      uint8_t *scales)
{
    const enum sv_quant_code to = q->code;
    const int32_t block = sv_quant_block(to), n_groups = q->cols / GROUP;
    uint8_t *row = codes + (block ? (size_t)r * (size_t)n_groups * (size_t)sv_quant_block_bytes(to)
                                  : (size_t)r * (size_t)q->cols * (size_t)bits_of(to) / 8);
    if (to == SV_CODE_F8) {
        round_f8_row(x, q->cols, row, (uint16_t *)(void *)scales + r);
        return;
    }
    for (int32_t g = 0; g < n_groups; g++) {
        float scale[3], chosen = 0;
        int32_t code[GROUP], best[GROUP] = {0};
        double least = INFINITY;
        const int32_t n = candidates(to, largest(x + g * GROUP, GROUP), scale);
        for (int32_t i = 0; i < n; i++) {
            const double e = round_group(to, x + g * GROUP, scale[i], code);
            if (e >= least)
                continue;
            least = e;
            chosen = scale[i];
            memcpy(best, code, sizeof best);
        }
        if (block) {
            put_block(to, row + (size_t)g * (size_t)sv_quant_block_bytes(to), chosen, best);
        } else {
            put_codes(to, row, g * GROUP, best);
            put_scale(to, scales, (int64_t)r * n_groups + g, chosen);
        }
    }
}

/* ---------------------------------------------------------------- one matrix */

struct job {
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
    float *x = j->row + (size_t)thread * 2 * (size_t)cols, *y = x + cols;
    double *sum = j->sums + 3 * thread;
    for (int32_t r = (int32_t)((int64_t)rows * thread / n_threads);
         r < (int64_t)rows * (thread + 1) / n_threads; r++) {
        for (int32_t k = 0; k < cols; k++) {
            x[k] = sv_tensor_number(j->t, (int64_t)r * cols + k);
            j->not_finite[thread] |= !isfinite(x[k]);
        }
        round_row(&j->q, r, x, j->codes, j->scales);
        sv_quant_rows(&j->q, r, 1, y);
        for (int32_t k = 0; k < cols; k++) {
            const double e = (double)x[k] - y[k];
            sum[0] += e * e;
            sum[1] += (double)x[k] * x[k];
            sum[2] = fabs(e) > sum[2] ? fabs(e) : sum[2];
        }
    }
}

/* Adds the threads' sums, in order. */
static void report_of(const struct job *j, int n_threads, struct sv_quantized *out)
{
    *out = (struct sv_quantized){
        .name = j->t->name, .rows = j->q.rows, .cols = j->q.cols, .n_bytes = sv_quant_bytes(&j->q)};
    for (int i = 0; i < n_threads; i++) {
        out->error += j->sums[3 * i];
        out->size += j->sums[3 * i + 1];
        out->largest = fmax(out->largest, j->sums[3 * i + 2]);
    }
}

int sv_round_matrix(const struct sv_host_tensor *t, enum sv_quant_code code, uint8_t *codes,
                    uint8_t *scales, struct sv_quantized *report, struct sv_err *err)
{
    const int32_t cols = (int32_t)t->dim[1];
    struct job j = {.t = t,
                    .codes = codes,
                    .scales = scales,
                    .q = {.code = code,
                          .rows = (int32_t)t->dim[0],
                          .cols = cols,
                          .data = codes,
                          .scales = scales,
                          .scale = code == SV_CODE_MXFP4 ? SV_U8 : SV_BF16,
                          .block_rows = 1,
                          .block_cols = code == SV_CODE_F8 ? cols : GROUP}};
    struct sv_pool *pool = NULL;
    int n = sv_cpu_count(), rc = sv_pool_open(&pool, n, err);
    if (rc)
        return rc;
    j.row = sv_alloc((size_t)n * 2 * (size_t)cols * sizeof *j.row);
    j.sums = sv_calloc((size_t)n * 3, sizeof *j.sums);
    j.not_finite = sv_calloc((size_t)n, sizeof *j.not_finite);
    if (!j.row || !j.sums || !j.not_finite)
        rc = sv_fail(err, SV_ENOMEM, -1, "no memory for %s", t->name);
    if (!rc)
        sv_pool_run(pool, round_share, &j);
    for (int i = 0; i < n && !rc; i++)
        if (j.not_finite[i])
            rc = sv_fail(err, SV_EFORMAT, -1, "%s: tensor '%s' holds a number that is not finite",
                         t->file, t->name);
    if (!rc)
        report_of(&j, n, report);
    sv_pool_close(pool);
    sv_free(j.row);
    sv_free(j.sums);
    sv_free(j.not_finite);
    return rc;
}

/* ---------------------------------------------------------------- files */

int sv_out_open(struct sv_out *f, const char *path, size_t n_bytes, struct sv_err *err)
{
    *f = (struct sv_out){.path = path, .err = err};
    f->fd = sv_fault_hit() ? -1 : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0)
        return sv_fail(err, SV_EIO, -1, "%s: cannot create: %s", path, strerror(errno));
    /* detects a full disk before minutes of rounding, if the file system can */
    const int full = posix_fallocate(f->fd, 0, (off_t)n_bytes);
    if (full != ENOSPC && full != EFBIG)
        return SV_OK;
    close(f->fd);
    return sv_fail(err, SV_EIO, -1, "%s: no room for %zu bytes: %s", path, n_bytes, strerror(full));
}

int sv_out_put(const struct sv_out *f, const void *data, size_t n, size_t at)
{
    const char *from = data;
    while (n) {
        const ssize_t k = sv_fault_hit() ? (errno = EIO, -1) : pwrite(f->fd, from, n, (off_t)at);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sv_fail(f->err, SV_EIO, -1, "%s: cannot write: %s", f->path, strerror(errno));
        from += k;
        at += (size_t)k;
        n -= (size_t)k;
    }
    return SV_OK;
}

int sv_out_close(struct sv_out *f, int rc)
{
    if (!rc && (sv_fault_hit() || fsync(f->fd)))
        rc = sv_fail(f->err, SV_EIO, -1, "%s: cannot sync: %s", f->path, strerror(errno));
    if (close(f->fd) && !rc)
        rc = sv_fail(f->err, SV_EIO, -1, "%s: cannot close: %s", f->path, strerror(errno));
    return rc;
}

int sv_out_partial(struct sv_buf *name, const char *out, struct sv_err *err)
{
    size_t n = strlen(out);
    while (n > 1 && out[n - 1] == '/')
        n--;
    sv_buf_init(name);
    sv_buf_printf(name, "%.*s.partial-%ld", (int)n, out, (long)getpid());
    return name->failed ? sv_fail(err, SV_ENOMEM, -1, "out of memory") : SV_OK;
}

/* ---------------------------------------------------------------- what can be converted */

int sv_check_source(const struct sv_source *s, int32_t group, struct sv_err *err)
{
    const struct sv_host_tensor *t = &s->t;
    if (t->quant.code)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: tensor '%s' is in fewer bits already (%s)",
                       t->file, t->name, sv_quant_name(t->quant.code));
    if (t->dtype > SV_F16)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "%s: tensor '%s' holds %s, no weights", t->file,
                       t->name, sv_dtype_name(t->dtype));
    if (s->rounded && group && t->dim[1] % group)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: tensor '%s' has %lld columns, which are not groups of %d", t->file,
                       t->name, (long long)t->dim[1], group);
    return SV_OK;
}

/* A target's configuration, or a draft's (is_draft). */
static int read_config(const char *dir, const char *out, struct sv_draft_config *d, bool *is_draft,
                       struct sv_err *err)
{
    struct stat st;
    if (lstat(out, &st) == 0)
        return sv_fail(err, SV_EINVAL, -1, "%s: is there already", out);
    if (sv_is_gguf(dir))
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: only Hugging Face directories can be converted, not GGUF files", dir);
    *is_draft = sv_dir_is_draft(dir);
    int rc = *is_draft ? sv_draft_config_load(d, dir, 0, err) : sv_config_load(&d->base, dir, err);
    if (!rc && d->base.mxfp4_experts)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "%s: its experts are in fewer bits already (mxfp4)",
                     dir);
    return rc;
}

static int write_from(struct sv_model_source *m, const struct sv_ckpt *ckpt,
                      enum sv_quant_code code, const char *out, struct sv_err *err)
{
    struct sv_sources list;
    int rc = sv_sources_open(&list, m->cfg, ckpt, err);
    if (rc)
        return rc;
    m->list = &list;
    rc = (sv_is_gguf(out) ? sv_quantize_to_gguf : sv_quantize_to_dir)(m, code, out, err);
    sv_sources_close(&list);
    return rc;
}

int sv_quantize_model(const char *dir, enum sv_quant_code code, const char *out,
                      sv_quantized_fn *on_matrix, void *user, struct sv_err *err)
{
    struct sv_draft_config *d = sv_calloc(1, sizeof *d);
    struct sv_ckpt ckpt;
    bool draft = false;
    int rc =
        d ? read_config(dir, out, d, &draft, err) : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = sv_ckpt_open(&ckpt, dir, err);
    if (rc) {
        sv_free(d);
        return rc;
    }
    struct sv_model_source m = {.dir = dir,
                                .cfg = &d->base,
                                .draft = draft ? d : NULL,
                                .on_matrix = on_matrix,
                                .user = user};
    rc = draft ? sv_ckpt_check_draft(&ckpt, d, err) : sv_ckpt_check_target(&ckpt, &d->base, err);
    if (rc)
        sv_err_prefix(err, "%s", dir);
    else
        rc = write_from(&m, &ckpt, code, out, err);
    sv_ckpt_close(&ckpt);
    sv_free(d);
    return rc;
}
