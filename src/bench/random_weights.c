/*
 * random_weights.c - an untrained checkpoint: config.json's shapes filled with random bf16
 * numbers.
 *
 * Called by random.c. Speed does not depend on the values, only on their number, so one block
 * of random numbers is written again and again; norms are ones so that activations stay finite.
 * Must not: leave its directory behind.
 */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE 1 /* mkdtemp */

#include "bench/bench.h"
#include "load/load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An odd number of elements, so that rows of a matrix do not repeat one another. */
#define BLOCK_ELEMENTS ((size_t)4194301)
#define BLOCK_BYTES (2 * BLOCK_ELEMENTS)
#define MXFP4_SCALE 119 /* 2^-8: values of about 0.01 */

struct writer {
    struct sv_buf header;
    int64_t offset;                       /* of the next tensor's data */
    FILE *f;                              /* NULL while the header is collected */
    const uint8_t *block, *ones, *scales; /* (BLOCK_BYTES) each */
    size_t at;                            /* in block */
    bool failed;
};

static void put_data(struct writer *w, int64_t n_bytes, const uint8_t *same)
{
    while (n_bytes > 0 && !w->failed && !sv_cli_interrupted()) {
        size_t from = same ? 0 : w->at, piece = BLOCK_BYTES - from;
        if ((int64_t)piece > n_bytes)
            piece = (size_t)n_bytes;
        w->failed = fwrite((same ? same : w->block) + from, 1, piece, w->f) != piece;
        if (!same)
            w->at = (w->at + piece) % BLOCK_BYTES;
        n_bytes -= (int64_t)piece;
    }
}

/* Header first, data in a second walk over the same tensors. */
static int put_tensor(void *user, const struct sv_tensor_spec *s)
{
    struct writer *w = user;
    const bool scales = s->pack == SV_PACK_MXFP4_SCALES, u8 = scales || s->pack == SV_PACK_MXFP4;
    int64_t dim[SV_SPEC_DIMS], n_bytes = u8 ? 1 : 2;
    const int32_t n_dims = sv_tensor_shape(s, dim);

    if (s->n_experts && (s->expert > 0 || s->form == SV_FORM_UP))
        return SV_OK; /* a part of one that is there */
    for (int32_t i = 0; i < n_dims; i++)
        n_bytes *= dim[i];
    if (w->f) {
        put_data(w, n_bytes,
                 scales                                 ? w->scales
                 : sv_role_is_norm(s->role) && !s->form ? w->ones
                                                        : NULL);
        return SV_OK;
    }
    sv_buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->offset ? "," : "",
                  s->name, u8 ? "U8" : "BF16");
    for (int32_t i = 0; i < n_dims; i++)
        sv_buf_printf(&w->header, "%s%lld", i ? "," : "", (long long)dim[i]);
    sv_buf_printf(&w->header, "],\"data_offsets\":[%lld,%lld]}", (long long)w->offset,
                  (long long)(w->offset + n_bytes));
    w->offset += n_bytes;
    return SV_OK;
}

/* bf16 numbers of a normal distribution with deviation 0.02, about as a fresh model has them. */
static void fill_blocks(uint16_t *block, uint16_t *ones)
{
    struct sv_rng rng = {.state = 1};

    for (size_t i = 0; i < BLOCK_ELEMENTS; i++) {
        float x = 0.02f * sv_rng_normal(&rng);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        block[i] = (uint16_t)(bits >> 16);
        ones[i] = 0x3F80;
    }
}

static int write_weights(const char *path, const struct sv_config *c, struct sv_err *err)
{
    struct writer w = {0};
    uint16_t *block = sv_alloc(BLOCK_BYTES), *ones = sv_alloc(BLOCK_BYTES);
    uint8_t *scales = sv_alloc(BLOCK_BYTES);
    int rc = SV_OK;

    sv_buf_init(&w.header);
    if (!block || !ones || !scales) {
        rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
        goto out;
    }
    fill_blocks(block, ones);
    memset(scales, MXFP4_SCALE, BLOCK_BYTES);
    w.block = (const uint8_t *)block;
    w.ones = (const uint8_t *)ones;
    w.scales = scales;
    sv_buf_printf(&w.header, "{");
    sv_config_each_tensor(c, 0, put_tensor, &w);
    sv_buf_printf(&w.header, "}");
    while (w.header.len % 64 != 56 && !w.header.failed) /* data at a multiple of 64 */
        sv_buf_append(&w.header, " ", 1);
    if (w.header.failed) {
        rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
        goto out;
    }
    w.f = fopen(path, "wb");
    if (w.f) {
        uint64_t n = w.header.len; /* little-endian, as is everything this runs on */
        w.failed = fwrite(&n, sizeof n, 1, w.f) != 1 ||
                   fwrite(w.header.data, 1, w.header.len, w.f) != w.header.len;
        sv_config_each_tensor(c, 0, put_tensor, &w);
        w.failed |= fclose(w.f) != 0;
    }
    if (sv_cli_interrupted())
        rc = sv_fail(err, SV_ECANCELED, -1, "canceled");
    else if (!w.f || w.failed)
        rc = sv_fail(err, SV_EIO, -1, "%s: %s", path, strerror(errno));
out:
    sv_buf_fini(&w.header);
    sv_free(block);
    sv_free(ones);
    sv_free(scales);
    return rc;
}

static int copy_file(const char *from_dir, const char *to_dir, const char *name, struct sv_err *err)
{
    struct sv_buf text;
    char *from = sv_path_join(from_dir, name), *to = sv_path_join(to_dir, name);
    int rc = SV_ENOMEM;

    sv_buf_init(&text);
    if (from && to)
        rc = sv_file_read(&text, from, (size_t)16 << 20, err);
    else
        sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = sv_file_write(to, text.data, text.len, err);
    sv_buf_fini(&text);
    sv_free(from);
    sv_free(to);
    return rc;
}

int sv_bench_random_weights(const char *config_dir, const char *tmp_dir, char **dir,
                            struct sv_err *err)
{
    const char *root = tmp_dir ? tmp_dir : sv_env("TMPDIR");
    struct sv_config cfg;
    char *path = NULL;
    int rc = sv_config_load(&cfg, config_dir, err);

    *dir = NULL;
    if (rc)
        return rc;
    *dir = sv_path_join(root && *root ? root : "/tmp", "salvo-random-XXXXXX");
    if (!*dir)
        return sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!mkdtemp(*dir)) {
        rc = sv_fail(err, SV_EIO, -1, "%s: %s", *dir, strerror(errno));
        sv_free(*dir);
        *dir = NULL;
        return rc;
    }
    path = sv_path_join(*dir, "model.safetensors");
    rc = path ? copy_file(config_dir, *dir, "config.json", err)
              : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!rc)
        rc = write_weights(path, &cfg, err);
    sv_free(path);
    if (rc) {
        sv_bench_random_weights_remove(*dir);
        *dir = NULL;
    }
    return rc;
}

void sv_bench_random_weights_remove(char *dir)
{
    static const char *const names[] = {"model.safetensors", "config.json"};

    for (size_t i = 0; dir && i < sizeof names / sizeof names[0]; i++) {
        char *path = sv_path_join(dir, names[i]);
        if (path)
            unlink(path);
        sv_free(path);
    }
    if (dir)
        rmdir(dir);
    sv_free(dir);
}
