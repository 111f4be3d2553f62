/*
 * fuzz_quant.c - any quantization_config over any safetensors image: the first line is the one, the
 * rest the other.
 *
 * Called by driver.c and libFuzzer. What binds is expanded: no code, scale or index may lead
 * outside.
 */
#include "load/quant_config.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sv_host_tensor *)a)->name,
                  ((const struct sv_host_tensor *)b)->name);
}

static void expand(const struct sv_host_tensor *t)
{
    if (!t->quant.code || t->quant.cols > 1 << 16)
        return;
    SV_REQUIRE(t->n_dims == 2 && t->dim[0] == t->quant.rows && t->dim[1] == t->quant.cols);
    float *out = sv_alloc((size_t)t->quant.cols * sizeof *out);
    for (int32_t r = 0; r < t->quant.rows && r < 64; r++)
        sv_quant_rows(&t->quant, r, 1, out);
    if (t->quant.rows > 64)
        sv_quant_rows(&t->quant, t->quant.rows - 1, 1, out);
    sv_free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *line = n ? memchr(data, '\n', n) : NULL;
    struct sv_ckpt c = {0};
    struct sv_err err = {0};
    if (!line)
        return 0;
    json_t *obj = sv_json_parse((const char *)data, (size_t)(line - data), &err);
    sv_arena_init(&c.arena);
    const size_t n_image = n - (size_t)(line + 1 - data);
    uint8_t *image = sv_alloc(n_image ? n_image : 1); /* aligned, and ends where it ends */
    memcpy(image, line + 1, n_image);
    if (obj &&
        !sv_safetensors_parse(image, n_image, "fuzz", &c.arena, &c.tensors, &c.n_tensors, &err)) {
        qsort(c.tensors, (size_t)c.n_tensors, sizeof *c.tensors, by_name);
        if (sv_quant_bind_by(&c, obj, &err))
            SV_REQUIRE(err.code < 0 && err.msg[0]);
        else
            for (int32_t i = 0; i < c.n_tensors; i++)
                expand(&c.tensors[i]);
    }
    sv_free(image);
    sv_arena_fini(&c.arena);
    json_decref(obj);
    return 0;
}
