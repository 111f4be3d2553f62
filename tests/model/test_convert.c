/*
 * test_convert.c - what sv_quantize_model writes of each family is a model: a directory has the
 * logits of its own values, bit for bit, and a GGUF file those of the model it was made from, but
 * for the rounding.
 *
 * Directories of published shapes (packed experts, fused projections, towers) become FP8; GGUF and
 * groups of 32 come of random models whose rows are whole groups.
 *
 * timeout: 180
 */
#include "testing.h"

#include "engine/run.h"
#include "engine/toy.h"
#include "model/model_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { N = 40 };

static float *logits_of(const char *dir, int32_t *n_vocab)
{
    struct model_rig r;
    int32_t ids[N];
    model_rig_open(&r, dir, SV_ISA_AUTO, 16);
    *n_vocab = r.m.cfg.vocab_size;
    for (int32_t i = 0; i < N; i++)
        ids[i] = 3 + (i * 37 + 5) % (*n_vocab - 3);
    model_rig_run(&r, ids, 0, N);
    const size_t n_bytes = (size_t)N * (size_t)*n_vocab * sizeof(float);
    float *out = memcpy(malloc(n_bytes), r.logits, n_bytes);
    model_rig_close(&r);
    return out;
}

static int count(void *user, const struct sv_quantized *t)
{
    ++*(int *)user;
    assert_true(t->n_bytes < t->n_bytes_before && sqrt(t->error / t->size) < 0.2);
    return SV_OK;
}

static const char *convert(const char *dir, enum sv_quant_code code, const char *suffix)
{
    static int n_made;
    struct sv_err err = {0};
    char name[48];
    int n = 0;
    snprintf(name, sizeof name, "made%d%s", n_made++, suffix);
    const char *out = run_keep(sv_test_tmp(name));
    if (sv_quantize_model(dir, code, out, count, &n, &err))
        fail_msg("%s", err.msg);
    assert_true(n > 0);
    return out;
}

/* A directory in f32 of the values of one in fewer bits. */
static const char *expanded(const char *dir)
{
    static int n_made;
    static const char *const types[] = {"F32", "BF16", "F16"};
    struct sv_ckpt c;
    struct sv_err err = {0};
    struct sv_buf head, data, all;
    char name[48], path[600];
    snprintf(name, sizeof name, "values%d", n_made++);
    const char *out = run_keep(sv_test_tmp(name));
    assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
    sv_buf_init(&head);
    sv_buf_init(&data);
    sv_buf_init(&all);
    int n_codes = 0;
    for (int32_t i = 0; i < c.n_tensors; i++) {
        const struct sv_host_tensor *t = &c.tensors[i];
        const size_t from = data.len;
        sv_buf_printf(&head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "{", t->name,
                      t->quant.code ? "F32" : types[t->dtype]);
        for (int32_t k = 0; k < t->n_dims; k++)
            sv_buf_printf(&head, "%s%lld", k ? "," : "", (long long)t->dim[k]);
        float *row = malloc((size_t)(t->quant.code ? t->quant.cols : 1) * sizeof *row);
        for (int32_t r = 0; t->quant.code && r < t->quant.rows; r++) {
            sv_quant_rows(&t->quant, r, 1, row);
            sv_buf_append(&data, row, (size_t)t->quant.cols * sizeof *row);
        }
        free(row);
        n_codes += t->quant.code != SV_CODE_NONE;
        if (!t->quant.code)
            sv_buf_append(&data, t->data, t->n_bytes);
        sv_buf_printf(&head, "],\"data_offsets\":[%zu,%zu]}", from, data.len);
    }
    sv_ckpt_close(&c);
    assert_true(n_codes > 0);
    sv_buf_lit(&head, "}");
    while (head.len % 8)
        sv_buf_lit(&head, " ");
    const uint64_t n = head.len;
    sv_buf_append(&all, &n, 8);
    sv_buf_append(&all, head.data, head.len);
    sv_buf_append(&all, data.data, data.len);
    assert_false(all.failed);
    assert_int_equal(mkdir(out, 0700), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    assert_int_equal(sv_file_write(path, all.data, all.len, &err), SV_OK);
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    assert_int_equal(json_object_del(root, "quantization_config"), 0);
    snprintf(path, sizeof path, "%s/config.json", out);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    sv_buf_fini(&head);
    sv_buf_fini(&data);
    sv_buf_fini(&all);
    return out;
}

/* error: what the logits may be off, by their own size. */
static void near(const char *a, const char *b, double error, const char *what)
{
    int32_t v[2];
    double off = 0, size = 0;
    float *x[2] = {logits_of(a, &v[0]), logits_of(b, &v[1])};
    assert_int_equal(v[0], v[1]);
    for (int32_t i = 0; i < N * v[0]; i++) {
        off += pow((double)x[0][i] - x[1][i], 2);
        size += pow(x[0][i], 2);
    }
    print_message("%s: logits %.4f off\n", what, sqrt(off / size));
    if (!(size > 0 && sqrt(off / size) <= error))
        fail_msg("%s: logits %.4f off, at most %.4f", what, sqrt(off / size), error);
    free(x[0]);
    free(x[1]);
}

static void published_shapes_in_fp8(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double error; /* routers choose other experts */
    } models[] = {
        {"gptoss_bf16", 0.6},        {"qwen3_5_bf16", 0.4},        {"qwen3_5_moe_bf16", 0.6},
        {"qwen3_next_bf16", 0.3},    {"qwen3_vl_bf16", 0.15},      {"qwen3_5_vl_bf16", 0.25},
        {"qwen3_vl_moe_bf16", 0.15}, {"qwen3_5_vl_moe_bf16", 0.4}, {"deepseek_plain_f32", 0.3}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char path[96];
        snprintf(path, sizeof path, "tests/golden/tiny/%s", models[i].name);
        const char *dir = run_dir(path), *out = convert(dir, SV_CODE_F8, "");
        near(out, expanded(out), 0, models[i].name);
        near(dir, out, models[i].error, models[i].name);
    }
}

/* A random target whose numbers are e2m1 times 2^-4: MXFP4 changes none. */
static const char *on_grid(int family)
{
    const char *dir = toy_pair_like(toy_families[family].name, toy_families[family].sizes).target;
    struct sv_buf b;
    struct sv_err err = {0};
    char path[600];
    uint64_t head;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    sv_buf_init(&b);
    assert_int_equal(sv_file_read(&b, path, 1 << 24, &err), SV_OK);
    memcpy(&head, b.data, 8);
    for (size_t i = 8 + head; i < b.len; i += 2) {
        uint16_t h;
        memcpy(&h, b.data + i, 2);
        const float x = sv_bf16_to_f32(h);
        int best = 0;
        for (int k = 1; k < 16; k++)
            if (fabsf(x - sv_e2m1[k] / 16) < fabsf(x - sv_e2m1[best] / 16))
                best = k;
        h = sv_f32_to_bf16(sv_e2m1[best] / 16);
        memcpy(b.data + i, &h, 2);
    }
    assert_int_equal(sv_file_write(path, b.data, b.len, &err), SV_OK);
    sv_buf_fini(&b);
    return dir;
}

/* Every matrix is where it belongs: nothing is rounded, and all bits are the same. */
static void every_family_in_mxfp4(void **state)
{
    (void)state;
    for (int i = 0; i < TOY_FAMILIES; i++) {
        const char *dir = on_grid(i);
        near(dir, convert(dir, SV_CODE_MXFP4, ""), 0, toy_families[i].name);
        if (toy_families[i].in_gguf)
            near(dir, convert(dir, SV_CODE_MXFP4, ".gguf"), 0, toy_families[i].name);
    }
}

static void every_family_in_integers(void **state)
{
    (void)state;
    for (int i = 0; i < TOY_FAMILIES; i++) {
        if (!toy_families[i].in_gguf)
            continue;
        const char *dir = toy_pair_like(toy_families[i].name, toy_families[i].sizes).target;
        const enum sv_quant_code code = i % 3 ? SV_CODE_INT8 : SV_CODE_INT4;
        const char *out = convert(dir, code, ""), *values = expanded(out);
        near(out, values, 0, toy_families[i].name);
        /* from a directory with experts one by one; integers of 4 bits stay what they are */
        near(values, convert(values, code, ".gguf"), code == SV_CODE_INT4 ? 0 : 0.5,
             toy_families[i].name);
    }
}

SV_TEST_MAIN(cmocka_unit_test(published_shapes_in_fp8), cmocka_unit_test(every_family_in_mxfp4),
             cmocka_unit_test(every_family_in_integers))
