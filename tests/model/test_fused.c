/*
 * test_fused.c - a quantized matrix whose rows come for each key head (in_proj_qkvz of Qwen3-Next)
 * is read in the order of the same matrix in f32, as codes and, where heads are no whole blocks, as
 * values.
 */
#include "testing.h"

#include "engine/toy.h"
#include "model/model_rig.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { N = 40 };

static const char *type_name(enum sv_dtype t)
{
    return t == SV_BF16 ? "BF16" : t == SV_F8 ? "F8_E4M3" : "F32";
}

static void put(struct sv_buf *header, struct sv_buf *data, const struct sv_host_tensor *t,
                enum sv_dtype dtype, const void *from, size_t n_bytes)
{
    sv_buf_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", header->len > 1 ? "," : "{",
                  t->name, type_name(dtype));
    for (int32_t i = 0; i < t->n_dims; i++)
        sv_buf_printf(header, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    sv_buf_printf(header, "],\"data_offsets\":[%zu,%zu]}", data->len, data->len + n_bytes);
    sv_buf_append(data, from, n_bytes);
}

/* The same checkpoint with its quantized matrices in f32. */
static const char *expanded(const char *dir, const char *config)
{
    struct sv_ckpt c;
    struct sv_buf header, data;
    struct sv_err err = {0};
    char path[512];
    const char *to = run_keep(sv_test_tmp(config[0] == 'w' ? "whole" : "cut"));
    assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
    sv_buf_init(&header), sv_buf_init(&data);
    for (int32_t i = 0; i < c.n_tensors; i++) {
        const struct sv_host_tensor *t = &c.tensors[i];
        if (!t->quant.code) {
            put(&header, &data, t, t->dtype, t->data, t->n_bytes);
            continue;
        }
        const size_t n = (size_t)t->dim[0] * (size_t)t->dim[1];
        float *values = malloc(n * sizeof *values);
        assert_non_null(values);
        sv_quant_rows(&t->quant, 0, (int32_t)t->dim[0], values);
        put(&header, &data, t, SV_F32, values, n * sizeof *values);
        free(values);
    }
    sv_buf_append(&header, "}", 1);
    while (header.len % 8)
        sv_buf_append(&header, " ", 1);
    const uint64_t n = header.len;
    struct sv_buf all;
    sv_buf_init(&all);
    sv_buf_append(&all, &n, 8);
    sv_buf_append(&all, header.data, header.len);
    sv_buf_append(&all, data.data, data.len);
    assert_false(all.failed);
    mkdir(to, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", to);
    assert_int_equal(sv_file_write(path, all.data, all.len, &err), SV_OK);
    sv_buf_fini(&all), sv_buf_fini(&header), sv_buf_fini(&data);
    sv_ckpt_close(&c);
    return to;
}

static void copy_config(const char *from, const char *to)
{
    struct sv_err err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/config.json", from);
    json_t *all = json_load_file(path, 0, NULL);
    assert_non_null(all);
    assert_int_equal(json_object_del(all, "quantization_config"), 0);
    char *text = json_dumps(all, 0);
    snprintf(path, sizeof path, "%s/config.json", to);
    assert_int_equal(sv_file_write(path, text, strlen(text), &err), SV_OK);
    free(text);
    json_decref(all);
}

/* Logits of N tokens. */
static float *logits_of(const char *dir, size_t *n)
{
    struct model_rig r;
    int32_t ids[N];
    model_rig_open(&r, dir, SV_ISA_AUTO, 16);
    for (int32_t i = 0; i < N; i++)
        ids[i] = (i * 37 + 5) % r.m.cfg.vocab_size;
    model_rig_run(&r, ids, 0, N);
    *n = (size_t)N * (size_t)r.m.cfg.vocab_size;
    float *out = malloc(*n * sizeof *out);
    assert_non_null(out);
    memcpy(out, r.logits, *n * sizeof *out);
    model_rig_close(&r);
    return out;
}

static void same(const char *name, const char *heads)
{
    char patch[512];
    snprintf(patch, sizeof patch,
             "{%s\"hidden_size\":192,\"quantization_config\":{\"quant_method\":\"fp8\","
             "\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],"
             "\"modules_to_not_convert\":[\"lm_head\"]}}",
             heads);
    const struct run_pair pair = toy_pair_like("qwen3_next_bf16", patch);
    const char *other = expanded(pair.target, name);
    size_t n, m;
    copy_config(pair.target, other);
    float *codes = logits_of(pair.target, &n), *values = logits_of(other, &m);
    float most = 0, apart = 0;
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        most = fmaxf(most, fabsf(values[i]));
        apart = fmaxf(apart, fabsf(values[i] - codes[i]));
    }
    assert_true(most > 0.01f);
    if (!(apart <= 1e-4f * most))
        fail_msg("%s: logits of codes are %g from those of values, of %g", name, (double)apart,
                 (double)most);
    free(codes);
    free(values);
}

static void whole_blocks(void **state)
{
    (void)state;
    same("whole", "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,");
}
static void cut_blocks(void **state)
{
    (void)state;
    same("cut", "");
}

SV_TEST_MAIN(cmocka_unit_test(whole_blocks), cmocka_unit_test(cut_blocks))
