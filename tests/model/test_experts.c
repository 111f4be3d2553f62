/*
 * test_experts.c - experts that lie in a file one by one, packed, or packed with inputs first give
 * the same bits: derived checkpoints of a family are not stored as the published ones are. Also
 * where other matrices are quantized, and the experts are not.
 */
#include "engine/run.h"
#include "load/fake.h"
#include "model/model_rig.h"
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum layout { APART, OUTPUTS_FIRST, INPUTS_FIRST };
enum { N_IDS = 24, N_LOGITS = N_IDS * 300 /* of vocabularies of as many or more */ };

/* A checkpoint that is written once more. */
struct copy {
    const struct sv_config *cfg;
    enum layout layout;
    bool from_inputs_first, quantize; /* o_proj, to int8 */
    struct sv_buf header, data;
};

static void put(struct copy *w, const char *name, const char *dtype, int32_t n_dims,
                const int64_t *dim, const void *data, size_t n_bytes)
{
    sv_buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", w->header.len ? "," : "{",
                  name, dtype);
    for (int32_t i = 0; i < n_dims; i++)
        sv_buf_printf(&w->header, "%s%lld", i ? "," : "", (long long)dim[i]);
    sv_buf_printf(&w->header, "],\"data_offsets\":[%zu,%zu]}", w->data.len, w->data.len + n_bytes);
    sv_buf_append(&w->data, data, n_bytes);
}

/* Expert e's outputs [first, first + rows), as an enum layout has them. */
static void put_matrix(const struct copy *w, const struct sv_host_tensor *t, int32_t e,
                       int32_t first, int32_t rows, uint16_t *out)
{
    const int64_t a = t->dim[1], b = t->dim[2], cols = w->from_inputs_first ? a : b;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const int64_t at = w->from_inputs_first ? c * b + first + r : (first + r) * b + c;
            out[w->layout == INPUTS_FIRST ? c * rows + r : r * cols + c] =
                ((const uint16_t *)t->data)[e * a * b + at];
        }
}

static void put_experts(struct copy *w, const struct sv_host_tensor *t, bool gate_up)
{
    const int32_t n = w->cfg->n_experts, inner = w->cfg->moe_intermediate_size,
                  rows = gate_up ? 2 * inner : w->cfg->hidden_size,
                  cols = gate_up ? w->cfg->hidden_size : inner;
    const size_t n_bytes = (size_t)rows * (size_t)cols * 2;
    uint16_t *all = calloc((size_t)n, n_bytes);
    const bool turned = w->layout == INPUTS_FIRST;
    for (int32_t e = 0; e < n && w->layout != APART; e++)
        put_matrix(w, t, e, 0, rows, all + (size_t)e * (n_bytes / 2));
    if (w->layout != APART)
        put(w, t->name, "BF16", 3, (const int64_t[]){n, turned ? cols : rows, turned ? rows : cols},
            all, (size_t)n * n_bytes);
    for (int32_t e = 0; e < n && w->layout == APART; e++)
        for (int part = 0; part < 1 + gate_up; part++) {
            static const char *const names[] = {"down", "gate", "up"};
            char name[128];
            snprintf(name, sizeof name, "%.*sexperts.%d.%s_proj.weight",
                     (int)(strstr(t->name, "experts.") - t->name), t->name, e,
                     names[gate_up + part]);
            const int32_t own = gate_up ? inner : rows;
            put_matrix(w, t, e, part * own, own, all);
            put(w, name, "BF16", 2, (const int64_t[]){own, cols}, all,
                (size_t)own * (size_t)cols * 2);
        }
    free(all);
}

/* Rounded to a hundredth, with a scale for each row. */
static void put_int8(struct copy *w, const struct sv_host_tensor *t)
{
    const size_t n = (size_t)t->n_elements, rows = (size_t)t->dim[0];
    int8_t *code = malloc(n);
    uint16_t *scale = malloc(rows * 2);
    char name[128];
    for (size_t i = 0; i < n; i++) {
        const float x = roundf(sv_bf16_to_f32(((const uint16_t *)t->data)[i]) * 100);
        code[i] = (int8_t)(x > 127 ? 127 : x < -127 ? -127 : x);
    }
    for (size_t i = 0; i < rows; i++)
        scale[i] = sv_f32_to_bf16(0.01f);
    put(w, t->name, "I8", 2, t->dim, code, n);
    snprintf(name, sizeof name, "%s_scale", t->name);
    put(w, name, "BF16", 2, (const int64_t[]){t->dim[0], 1}, scale, rows * 2);
    free(code);
    free(scale);
}

static const char by_row[] =
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"ignore\": [],"
    " \"config_groups\": {\"group_0\": {\"targets\": [\"re:.*self_attn.o_proj\"], \"weights\":"
    " {\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"channel\"}}}}}";

/* The directory of such a copy. */
static const char *copy(const char *from, enum layout layout, bool quantize)
{
    struct sv_config cfg;
    struct sv_ckpt c;
    struct sv_err err = {0};
    struct sv_buf config, image;
    char path[512], name[64];
    static int n_copies;
    if (sv_config_load(&cfg, from, &err) || sv_ckpt_open(&c, from, &err))
        fail_msg("%s", err.msg);
    struct copy w = {.cfg = &cfg, .layout = layout, .quantize = quantize};
    w.from_inputs_first = cfg.transposed_experts;
    sv_buf_init(&w.header), sv_buf_init(&w.data), sv_buf_init(&config), sv_buf_init(&image);
    for (int32_t i = 0; i < c.n_tensors; i++) {
        const struct sv_host_tensor *t = &c.tensors[i];
        const bool mtp = !strncmp(t->name, "mtp.", 4);
        if (!mtp && strstr(t->name, "mlp.experts."))
            put_experts(&w, t, strstr(t->name, "gate_up_proj") != NULL);
        else if (!mtp && quantize && strstr(t->name, "o_proj"))
            put_int8(&w, t);
        else
            put(&w, t->name, t->dtype == SV_F32 ? "F32" : "BF16", t->n_dims, t->dim, t->data,
                t->n_bytes);
    }
    sv_ckpt_close(&c);
    sv_buf_printf(&w.header, "}");
    while (w.header.len % 8)
        sv_buf_append(&w.header, " ", 1);
    const uint64_t n = w.header.len; /* little endian, as all that runs this is */
    sv_buf_append(&image, &n, 8);
    sv_buf_append(&image, w.header.data, w.header.len);
    sv_buf_append(&image, w.data.data, w.data.len);
    snprintf(path, sizeof path, "%s/config.json", from);
    assert_int_equal(sv_file_read(&config, path, 1 << 20, &err), SV_OK);
    sv_buf_append(&config, "", 1);
    char *text = fake_json(config.data, quantize ? by_row : "{}");
    snprintf(name, sizeof name, "experts-%d", n_copies++);
    const char *dir = run_keep(fake_dir(name));
    fake_puts(dir, "config.json", text);
    fake_put(dir, "model.safetensors", image.data, image.len);
    sv_free(text);
    sv_buf_fini(&w.header), sv_buf_fini(&w.data), sv_buf_fini(&config), sv_buf_fini(&image);
    return dir;
}

/* The first logits of a run of N_IDS rows. */
static float *logits_of(const char *dir, enum layout layout)
{
    struct model_rig r;
    int32_t ids[N_IDS];
    model_rig_open(&r, dir, SV_ISA_AUTO, 16);
    assert_int_equal(r.m.cfg.packed_experts, layout != APART);
    if (layout != APART)
        assert_int_equal(r.m.cfg.transposed_experts, layout == INPUTS_FIRST);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = 3 + 11 * i % 280;
    model_rig_run(&r, ids, 0, N_IDS);
    float *out = malloc(N_LOGITS * sizeof *out);
    memcpy(out, r.logits, N_LOGITS * sizeof *out);
    model_rig_close(&r);
    return out;
}

static void same_bits(const char *from, enum layout published, int n_layouts)
{
    const char *dir = run_dir(from);
    for (int quantize = 0; quantize < 2; quantize++) {
        float *want =
            quantize ? logits_of(copy(dir, published, true), published) : logits_of(dir, published);
        for (int i = 0; i < n_layouts; i++) {
            float *got = logits_of(copy(dir, (enum layout)i, quantize), (enum layout)i);
            if (memcmp(got, want, N_LOGITS * sizeof *got) != 0)
                fail_msg("%s, layout %d%s: other bits", from, i, quantize ? ", quantized" : "");
            free(got);
        }
        free(want);
    }
}

static void qwen3_5(void **state)
{
    (void)state;
    same_bits("tests/golden/tiny/qwen3_5_moe_bf16", OUTPUTS_FIRST, INPUTS_FIRST);
}

static void qwen3_vl(void **state)
{
    (void)state;
    same_bits("tests/golden/tiny/qwen3_vl_moe_bf16", INPUTS_FIRST, INPUTS_FIRST + 1);
}

SV_TEST_MAIN(cmocka_unit_test(qwen3_5), cmocka_unit_test(qwen3_vl))
