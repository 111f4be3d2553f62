/*
 * fuzz_packed.c - any config.json over any safetensors image whose experts are packed: the first
 * line is the one, the rest the other.
 *
 * Called by driver.c and libFuzzer. What fits is expanded: no shape, block or scale may lead
 * outside, and the two readers of MXFP4 agree.
 */
#include "load/load.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct sv_host_tensor *)a)->name,
                  ((const struct sv_host_tensor *)b)->name);
}

/* values: the part's rows, in bf16. */
static void same_by_rows(const struct sv_packed *p, int32_t expert,
                         const struct sv_packed_part *part, const uint16_t *values)
{
    const struct sv_quant q = sv_packed_codes(p, expert, part);
    float *row = sv_alloc((size_t)p->cols * sizeof *row);
    for (int32_t r = 0; r < q.rows; r++) {
        sv_quant_rows(&q, r, 1, row);
        for (int32_t c = 0; c < p->cols; c++)
            SV_REQUIRE(row[c] == sv_bf16_to_f32(*values++));
    }
    sv_free(row);
}

static int expand(void *user, const struct sv_tensor_spec *s)
{
    struct sv_packed p;
    struct sv_err err = {0};
    if (s->pack == SV_PACK_NONE || s->pack == SV_PACK_MXFP4_SCALES)
        return SV_OK;
    if (sv_packed_find(&p, user, s, &err)) {
        SV_REQUIRE(err.code < 0 && err.msg[0]);
        return SV_OK;
    }
    const int32_t step = s->role == SV_ROLE_EXPERT_GATE_UP ? 2 : 1, n_rows = p.rows / step;
    void *out = sv_alloc((size_t)n_rows * (size_t)p.cols * sv_dtype_bytes(sv_packed_dtype(&p)));
    for (int32_t i = 0; i < p.n * step; i++) {
        const struct sv_packed_part part = {i % step, step, {0, n_rows}, {0, p.cols}};
        sv_packed_expand(&p, i / step, &part, out);
        if (p.pack == SV_PACK_MXFP4)
            same_by_rows(&p, i / step, &part, out);
    }
    sv_free(out);
    return SV_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *line = n ? memchr(data, '\n', n) : NULL;
    struct sv_ckpt c = {0};
    struct sv_config cfg;
    struct sv_err err = {0};
    if (!line || sv_config_parse(&cfg, (const char *)data, (size_t)(line - data), &err) ||
        !cfg.packed_experts)
        return 0;
    const size_t n_image = n - (size_t)(line + 1 - data);
    uint8_t *image = sv_alloc(n_image ? n_image : 1); /* aligned, and ends where it ends */
    memcpy(image, line + 1, n_image);
    sv_arena_init(&c.arena);
    if (!sv_safetensors_parse(image, n_image, "fuzz", &c.arena, &c.tensors, &c.n_tensors, &err)) {
        qsort(c.tensors, (size_t)c.n_tensors, sizeof *c.tensors, by_name);
        if (sv_ckpt_check_target(&c, &cfg, &err))
            SV_REQUIRE(err.code < 0 && err.msg[0]);
        else
            sv_config_each_tensor(&cfg, 0, expand, &c);
    }
    sv_free(image);
    sv_arena_fini(&c.arena);
    return 0;
}
