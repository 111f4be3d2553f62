/*
 * test_quant_bind.c - quantized checkpoints: configuration and tensors must agree, and an error
 * names both when they do not. Values: tests/model/test_golden.c.
 */
#include "testing.h"

#include "load/fake.h"
#include "load/quant_config.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {"fp8_block", "ct_fp8_tensor", "ct_int8",  "ct_int4",
                                    "ct_mixed",  "ct_nvfp4",      "ct_mxfp4", "modelopt_nvfp4",
                                    "awq",       "gptq",          "gptq8_v2"};
enum { N_NAMES = sizeof names / sizeof names[0] };

static void read_golden(struct sv_buf *b, const char *name, const char *file)
{
    char path[256];
    struct sv_err err;
    snprintf(path, sizeof path, "tests/golden/quant/%s/%s", name, file);
    sv_buf_init(b);
    assert_int_equal(sv_file_read(b, sv_test_path(path), 1 << 20, &err), SV_OK);
}

/* A copy of a golden directory: config.json with a patch, tensors with one text replaced by another
 * of its length. */
static const char *variant(const char *name, const char *patch, const char *from, const char *to)
{
    struct sv_buf b;
    const char *dir = fake_dir("variant");
    static const char *const others[] = {"hf_quant_config.json", "quantize_config.json"};
    for (int i = 0; i < 2; i++) { /* of the test before */
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, others[i]);
        remove(path);
    }
    read_golden(&b, name, "config.json");
    char *text = fake_json(b.data, patch);
    fake_puts(dir, "config.json", text);
    sv_free(text);
    sv_buf_fini(&b);
    read_golden(&b, name, "model.safetensors");
    assert_true(strlen(from) == strlen(to));
    int n = 0;
    for (size_t i = 0; *from && i + strlen(from) < b.len && b.data[i] != '\x01'; i++)
        if (!memcmp(b.data + i, from, strlen(from))) {
            memcpy(b.data + i, to, strlen(to));
            n++;
            break;
        }
    assert_true(n || !*from);
    fake_put(dir, "model.safetensors", b.data, b.len);
    sv_buf_fini(&b);
    return dir;
}

static int open_target(const char *dir, struct sv_err *err)
{
    struct sv_config cfg;
    struct sv_ckpt c;
    int rc = sv_config_load(&cfg, dir, err);
    if (rc)
        return rc;
    rc = sv_ckpt_open(&c, dir, err);
    if (rc)
        return rc;
    rc = sv_ckpt_check_target(&c, &cfg, err);
    sv_ckpt_close(&c);
    return rc;
}

static void good_ones_hold_what_the_configuration_implies(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        char path[128];
        struct sv_config cfg;
        struct sv_ckpt c;
        struct sv_err err;
        snprintf(path, sizeof path, "tests/golden/quant/%s", names[i]);
        const char *dir = sv_test_path(path);
        fake_expect(open_target(dir, &err), SV_OK, &err, "", names[i]);
        assert_int_equal(sv_config_load(&cfg, dir, &err), SV_OK);
        assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
        const bool scaled = sv_ckpt_find(&c, "layers.0.self_attn.k_proj.k_scale"); /* of a cache */
        assert_int_equal(c.n_params, sv_config_n_params(&cfg) + scaled);
        assert_int_equal(c.n_tensors, 14 + scaled);
        const struct sv_host_tensor *t = sv_ckpt_find(&c, "layers.0.mlp.up_proj.weight");
        assert_true(t->quant.code && t->dim[0] == 96 && t->dim[1] == 64);
        assert_false(sv_ckpt_find(&c, "lm_head.weight")->quant.code);
        const bool in_order = !strcmp(names[i], "gptq8_v2"); /* indices that say nothing */
        assert_int_equal(t->quant.g_idx != NULL,
                         !in_order && (!strcmp(names[i], "gptq") || !strcmp(names[i], "ct_mixed")));
        if (t->quant.code != SV_CODE_INT4) /* the stored shape counts too */
            assert_int_equal(t->n_bytes,
                             sv_quant_bytes(&t->quant) + (t->quant.code == SV_CODE_NVFP4 ? 4
                                                          : in_order                     ? 64 * 4
                                                                                         : 0));
        sv_ckpt_close(&c);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

#define MODELOPT "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": "
static const struct {
    const char *name, *patch, *from, *to;
    int code;
    const char *part[2];
} bad[] = {
    /* the configuration says less than the tensors, or more */
    {"ct_int4",
     "{\"quantization_config\": \"<del>\"}",
     "",
     "",
     SV_EMISMATCH,
     {"is not expected", "no quantization_config that asks for it"}},
    {"ct_int4",
     "{\"quantization_config\": {\"ignore\": [\"lm_head\", \"model.layers.0.mlp.up_proj\"]}}",
     "",
     "",
     SV_EMISMATCH,
     {"'layers.0.mlp.up_proj.weight_packed' holds i32", "'model.layers.0.mlp.up_proj'"}},
    {"ct_int4",
     "{\"quantization_config\": {\"ignore\": [\"re:.*\\\\.mlp\\\\..*\"]}}",
     "",
     "",
     SV_EMISMATCH,
     {"layers.0.mlp.down_proj.weight_packed", "'re:.*\\.mlp\\..*'"}},
    {"ct_mixed",
     "{\"quantization_config\": {\"ignore\": [\"lm_head\"], \"config_groups\": {\"group_1\": "
     "{\"targets\": [\"re:.*mlp.*\"]}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"layer 'layers.0.mlp.down_proj' is int4 by quantization_config", "is not quantized"}},
    {"fp8_block",
     "{\"quantization_config\": {\"modules_to_not_convert\": [\"self_attn\"]}}",
     "",
     "",
     SV_EMISMATCH,
     {"holds f8 codes", "'self_attn'"}},
    {"awq",
     "{\"quantization_config\": {\"modules_to_not_convert\": [\"down\"]}}",
     "",
     "",
     SV_EMISMATCH,
     {"layers.0.mlp.down_proj.qweight", "'down'"}},
    /* other parts than the configuration asks for */
    {"ct_int4",
     "{}",
     "up_proj.weight_scale",
     "up_proj.weight_scalf",
     SV_EMISMATCH,
     {"'layers.0.mlp.up_proj' is int4", "'layers.0.mlp.up_proj.weight_scale' is missing"}},
    {"ct_int4",
     "{}",
     "up_proj.weight_shape",
     "up_proj.weight_shapf",
     SV_EMISMATCH,
     {"'layers.0.mlp.up_proj.weight_shape' is missing", "int4"}},
    {"gptq",
     "{}",
     "up_proj.g_idx",
     "up_proj.g_idy",
     SV_EMISMATCH,
     {"up_proj.g_idx' is missing", "gptq-4"}},
    {"ct_nvfp4",
     "{}",
     "up_proj.weight_global_scale",
     "up_proj.weight_global_scalf",
     SV_EMISMATCH,
     {"weight_global_scale' is missing", "nvfp4"}},
    {"ct_nvfp4",
     "{}",
     "up_proj.weight_scale\":{\"dtype\":\"F8_E4M3",
     "up_proj.weight_scale\":{\"dtype\":\"F8_E8M0",
     SV_EMISMATCH,
     {"up_proj.weight_scale' holds u8 or f8_e8m0", "nvfp4"}},
    {"fp8_block",
     "{\"quantization_config\": {\"weight_block_size\": [32, 32]}}",
     "",
     "",
     SV_EMISMATCH,
     {"weight_scale_inv' has not the shape [2, 3]", "fp8"}},
    {"ct_int4",
     "{\"quantization_config\": {\"config_groups\": {\"group_0\": {\"weights\": "
     "{\"group_size\": 16}}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"weight_scale' has not the shape [64, 6]", "int4"}},
    {"ct_int4",
     "{\"quantization_config\": {\"config_groups\": {\"group_0\": {\"weights\": "
     "{\"symmetric\": false}}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"weight_zero_point' is missing", "int4"}},
    {"gptq",
     "{\"quantization_config\": {\"bits\": 8}}",
     "",
     "",
     SV_EMISMATCH,
     {"gptq-8", "qweight"}},
    {"ct_fp8_tensor",
     "{\"quantization_config\": {\"config_groups\": {\"group_0\": {\"weights\": "
     "{\"type\": \"int\"}}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"'layers.0.mlp.down_proj' is int8", "holds f8"}},
    {"ct_mxfp4",
     "{}",
     "up_proj.weight_packed",
     "up_proj.weight_packee",
     SV_EMISMATCH,
     {"up_proj.weight'", "missing"}},
    {"awq",
     "{\"quantization_config\": {\"zero_point\": false}}",
     "",
     "",
     SV_EMISMATCH,
     {"'layers.0.mlp.down_proj.qzeros' has zero points", "'zero_point'"}},
    {"ct_int4",
     "{\"quantization_config\": {\"config_groups\": {\"group_0\": {\"weights\": "
     "{\"actorder\": true}}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"weight_g_idx' is missing", "int4"}},
    {"ct_int4",
     "{\"quantization_config\": {\"config_groups\": {\"group_0\": {\"targets\": [\"re:nothing\"]}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"'layers.0.mlp.down_proj.weight_packed' holds i32", "not quantized"}},
    {"ct_int4",
     "{}",
     "\"shape\":[96,2]",
     "\"shape\":[2,96]",
     SV_EMISMATCH,
     {"weight_scale' has not the shape [96, 2]", "int4"}},
    /* modelopt: an algorithm for each layer */
    {"modelopt_nvfp4",
     MODELOPT "\"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp.up_proj\": "
              "{\"quant_algo\": \"NVFP4\", \"group_size\": 16}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"'layers.0.mlp.down_proj.weight' holds u8 codes", "'quantized_layers'"}},
    {"modelopt_nvfp4",
     MODELOPT
     "\"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp\": {\"quant_algo\": "
     "\"NVFP4\"}, \"model.layers.0.self_attn.q_proj\": {\"quant_algo\": \"FP8\"}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"layer 'layers.0.self_attn.q_proj' is fp8 by", "is not quantized"}},
    {"modelopt_nvfp4",
     MODELOPT
     "\"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp\": {\"quant_algo\": "
     "\"FP8\"}}}}",
     "",
     "",
     SV_EMISMATCH,
     {"'layers.0.mlp.down_proj' is fp8", "holds u8"}},
    {"modelopt_nvfp4",
     MODELOPT
     "\"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp\": {\"quant_algo\": "
     "\"W4A16_AWQ\", \"group_size\": 128}}}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'quantized_layers', 'model.layers.0.mlp'", "W4A16_AWQ"}},
    {"modelopt_nvfp4",
     MODELOPT "\"MIXED_PRECISION\"}}",
     "",
     "",
     SV_EFORMAT,
     {"'quantized_layers' is missing or empty", ""}},
    {"modelopt_nvfp4",
     MODELOPT "\"NVFP4\", \"group_size\": 32}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'quant_algo' NVFP4 (group_size 32) is not supported", ""}},
    {"modelopt_nvfp4",
     MODELOPT "\"NVFP4\", \"kv_cache_quant_algo\": \"NVFP4\"}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'kv_cache_quant_algo' NVFP4", ""}},
    {"modelopt_nvfp4",
     "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"kv_cache_quant_algo\": \"FP8\"}}",
     "",
     "",
     SV_EMISMATCH,
     {"holds u8 codes", "not quantized"}},
    /* what is not implemented */
    {"gptq",
     "{\"quantization_config\": {\"bits\": 3}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'bits'", "GPTQ"}},
    {"awq",
     "{\"quantization_config\": {\"version\": \"gemv\"}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'version' gemv", "quantization_config"}},
    {"ct_int4",
     "{\"quantization_config\": {\"sparsity_config\": {\"format\": \"sparse-24-bitmask\"}}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"sparsity_config", "sparse-24-bitmask"}},
    {"ct_int4",
     "{\"quantization_config\": {\"transform_config\": {\"config_groups\": {\"u\": {}}}}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"transform_config", "rotated"}},
    {"ct_int4",
     "{\"quantization_config\": {\"kv_cache_scheme\": {\"num_bits\": 4, \"type\": \"float\"}}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'kv_cache_scheme' of 4 bits ('float')", "quantization_config"}},
    {"ct_int4",
     "{\"quantization_config\": {\"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"int\"}}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'kv_cache_scheme' of 8 bits ('int')", "quantization_config"}},
    {"ct_int4",
     "{\"quantization_config\": {\"kv_cache_scheme\": \"fp8\"}}",
     "",
     "",
     SV_EFORMAT,
     {"'kv_cache_scheme' must be an object", "quantization_config"}},
    {"fp8_block",
     "{\"quantization_config\": {\"fmt\": \"e5m2\"}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"'fmt' e5m2", ""}},
    {"fp8_block",
     "{\"quantization_config\": {\"quant_method\": \"bitsandbytes\"}}",
     "",
     "",
     SV_EUNSUPPORTED,
     {"(bitsandbytes) are not supported", "quantization_config"}},
    {"ct_int4",
     "{\"quantization_config\": {\"ignore\": [\"re:(\"]}}",
     "",
     "",
     SV_EFORMAT,
     {"'re:(' is no regular expression", ""}},
    {"ct_int4",
     "{\"quantization_config\": {\"ignore\": \"lm_head\"}}",
     "",
     "",
     SV_EFORMAT,
     {"'ignore' must be a list", ""}},
};

static void both_sides_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct sv_err err = {0};
        const char *dir = variant(bad[i].name, bad[i].patch, bad[i].from, bad[i].to);
        const int rc = open_target(dir, &err);
        fake_expect(rc, bad[i].code, &err, bad[i].part[0], bad[i].patch);
        fake_expect(rc, bad[i].code, &err, bad[i].part[1], bad[i].patch);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

static void caches_in_8_bit_floats_are_accepted(void **state)
{
    (void)state;
    struct sv_err err = {0};
    const char *dir = variant(
        "ct_int4",
        "{\"quantization_config\": {\"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"float\"}}}",
        "", "");
    fake_expect(open_target(dir, &err), SV_OK, &err, "", "kv_cache_scheme");
    assert_int_equal(sv_alloc_live(), 0);
}

/* Whatever the order of the groups is. */
static void a_named_layer_is_of_its_group(void **state)
{
    (void)state;
    struct sv_err err = {0};
    const char *dir = variant(
        "ct_mixed",
        "{\"quantization_config\": {\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"]}}}}",
        "", "");
    fake_expect(open_target(dir, &err), SV_OK, &err, "", "Linear first");
    assert_int_equal(sv_alloc_live(), 0);
}

/* A made-up checkpoint of golden ones. */
struct change {
    const char *attn, *rest; /* directories of attention's tensors and of the others */
    const char *patch;       /* of rest's config.json */
    const char *plain;       /* projections with this in their names are not quantized */
    const char *from, *to;   /* ends of names */
    const char *shape;       /* of scales with one number */
    const char *file, *text; /* another file */
};

/* Codes become a plain matrix of zeros, and other parts go. */
static bool make_plain(char *name, json_t *info, size_t *size)
{
    static const char *const codes[] = {".weight", ".weight_packed", ".qweight"};
    char *end = strrchr(name, '.');
    const bool down = strstr(name, ".down_");
    const int cols = down ? 96 : 64, rows = strstr(name, ".mlp.") && !down               ? 96
                                            : strstr(name, ".k_") || strstr(name, ".v_") ? 32
                                                                                         : 64;
    for (int i = 0; i < 3; i++) {
        if (strcmp(end, codes[i]) != 0)
            continue;
        strcpy(end, ".weight");
        json_object_set_new(info, "dtype", json_string("BF16"));
        json_object_set_new(info, "shape", json_pack("[ii]", rows, cols));
        *size = 2 * (size_t)(rows * cols);
        return true;
    }
    return false;
}

/* One tensor of a golden file, whose data begin at bytes, if it is kept. */
static void put_changed(json_t *head, struct sv_buf *data, const struct change *c, const char *key,
                        json_t *info, const char *bytes)
{
    char name[128], zeros[2 * 96 * 64] = {0};
    json_t *ends = json_object_get(info, "data_offsets");
    const size_t at = (size_t)json_integer_value(json_array_get(ends, 0));
    size_t size = (size_t)json_integer_value(json_array_get(ends, 1)) - at;
    const bool plain = c->plain && strstr(key, c->plain) && strstr(key, "_proj.");
    snprintf(name, sizeof name, "%s", key);
    if (plain && !make_plain(name, info, &size))
        return;
    char *end = c->from ? strstr(name, c->from) : NULL;
    if (end && !end[strlen(c->from)])
        snprintf(end, sizeof name - (size_t)(end - name), "%s", c->to);
    if (c->shape && size == 4 && strstr(key, ".weight_scale"))
        json_object_set_new(info, "shape", json_loads(c->shape, 0, NULL));
    json_array_set_new(ends, 0, json_integer((json_int_t)data->len));
    json_array_set_new(ends, 1, json_integer((json_int_t)(data->len + size)));
    sv_buf_append(data, plain ? zeros : bytes + at, size);
    json_object_set(head, name, info);
}

static const char *changed(const struct change *c)
{
    const char *dir = variant(c->rest, c->patch, "", ""), *const names_of[] = {c->attn, c->rest};
    struct sv_buf data, all;
    json_t *head = json_object();
    sv_buf_init(&data);
    sv_buf_init(&all);
    for (int k = 0; k < 2; k++) {
        struct sv_buf b;
        uint64_t n;
        const char *key;
        json_t *info;
        read_golden(&b, names_of[k] ? names_of[k] : c->rest, "model.safetensors");
        memcpy(&n, b.data, 8);
        json_t *root = json_loadb(b.data + 8, n, 0, NULL);
        json_object_del(root, "__metadata__");
        json_object_foreach(root, key, info) {
            if ((strstr(key, ".self_attn.") == NULL) == k)
                put_changed(head, &data, c, key, info, b.data + 8 + n);
        }
        json_decref(root);
        sv_buf_fini(&b);
    }
    char *text = json_dumps(head, JSON_COMPACT);
    const uint64_t n = strlen(text);
    sv_buf_append(&all, &n, 8);
    sv_buf_append(&all, text, n);
    sv_buf_append(&all, data.data, data.len);
    fake_put(dir, "model.safetensors", all.data, all.len);
    if (c->file)
        fake_puts(dir, c->file, c->text);
    sv_free(text);
    json_decref(head);
    sv_buf_fini(&data);
    sv_buf_fini(&all);
    return dir;
}

#define CONFIG(fields) "{\"quantization_config\": {" fields "}}"
/* Published, Qwen3.5-27B-GPTQ-Int4. */
#define DYNAMIC                                                                                    \
    "\"dynamic\": {\"lm_head\": {}, \"model.language_model.embed_tokens\": {}, "                   \
    "\"-:.*attn.*\": {}, \"-:.*shared_expert.*\": {}, \"-:.*mtp.*\": {}, \"-:.*visual.*\": {}}"
#define MODULES "\"modules_in_block_to_quantize\": "
static const struct {
    struct change c;
    enum sv_quant_code q, up, down; /* SV_CODE_NONE: plain */
} good[] = {
    {{.rest = "gptq", .patch = CONFIG(DYNAMIC), .plain = "self_attn"},
     SV_CODE_NONE,
     SV_CODE_GPTQ4,
     SV_CODE_GPTQ4},
    /* the first expression that matches decides, and may repeat what holds for all */
    {{.rest = "gptq",
      .patch = CONFIG("\"dynamic\": {\"+:.*\\\\.up_proj\": {\"bits\": 4, \"sym\": true}, "
                      "\".*gate_proj\": {\"group_size\": 32}, \"-:.*mlp.*\": {\"bits\": 3}}"),
      .plain = "down"},
     SV_CODE_GPTQ4,
     SV_CODE_GPTQ4,
     SV_CODE_NONE},
    {{.rest = "gptq8_v2",
      .patch = CONFIG(MODULES "[[\"mlp.gate_proj\", \"mlp.up_proj\"], [\"mlp.down_proj\"]], "
                              "\"dynamic\": null"),
      .plain = "self_attn"},
     SV_CODE_NONE,
     SV_CODE_GPTQ8,
     SV_CODE_GPTQ8},
    {{.rest = "gptq", .patch = CONFIG(MODULES "[\"self_attn\"]"), .plain = "mlp"},
     SV_CODE_GPTQ4,
     SV_CODE_NONE,
     SV_CODE_NONE},
    {{.rest = "gptq", .patch = CONFIG(MODULES "[]")}, SV_CODE_GPTQ4, SV_CODE_GPTQ4, SV_CODE_GPTQ4},
    /* by layer in a file of its own, also if both say it */
    {{.rest = "gptq",
      .patch = "{}",
      .plain = "down",
      .file = "quantize_config.json",
      .text = "{\"bits\": 4, \"dynamic\": {\"-:model.layers.0.mlp.down\": {}}}"},
     SV_CODE_GPTQ4,
     SV_CODE_GPTQ4,
     SV_CODE_NONE},
    {{.rest = "gptq",
      .patch = CONFIG("\"dynamic\": {\"-:.*down\": {}}"),
      .plain = "down",
      .file = "quantize_config.json",
      .text = "{\"dynamic\": {\"-:.*down\": {}}, " MODULES "null}"},
     SV_CODE_GPTQ4,
     SV_CODE_GPTQ4,
     SV_CODE_NONE},
    {{.rest = "awq", .patch = "{}", .file = "quantize_config.json", .text = "{\"dynamic\": 1}"},
     SV_CODE_AWQ,
     SV_CODE_AWQ,
     SV_CODE_AWQ},
    /* projections that other methods exclude */
    {{.rest = "fp8_block",
      .patch = CONFIG("\"modules_to_not_convert\": [\"model.layers.0.mlp.down_proj\"]"),
      .plain = "down"},
     SV_CODE_F8,
     SV_CODE_F8,
     SV_CODE_NONE},
    {{.rest = "awq",
      .patch = CONFIG("\"modules_to_not_convert\": [\"down_proj\"]"),
      .plain = "down"},
     SV_CODE_AWQ,
     SV_CODE_AWQ,
     SV_CODE_NONE},
    /* one scale for all: modelopt in config.json and in its own file, transformers */
    {{.rest = "ct_fp8_tensor", .patch = MODELOPT "\"FP8\"}}"}, SV_CODE_F8, SV_CODE_F8, SV_CODE_F8},
    {{.rest = "ct_fp8_tensor",
      .patch = "{\"quantization_config\": \"<del>\"}",
      .file = "hf_quant_config.json",
      .text =
          "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"FP8\", "
          "\"kv_cache_quant_algo\": \"FP8\", \"exclude_modules\": [\"lm_head\"]}}"},
     SV_CODE_F8,
     SV_CODE_F8,
     SV_CODE_F8},
    {{.rest = "ct_fp8_tensor",
      .patch = CONFIG("\"quant_method\": \"fp8\", \"activation_scheme\": \"static\""),
      .from = ".weight_scale",
      .to = ".weight_scale_inv"},
     SV_CODE_F8,
     SV_CODE_F8,
     SV_CODE_F8},
    {{.rest = "ct_fp8_tensor",
      .patch = MODELOPT "\"FP8_PB_WO\"}}",
      .from = ".weight_scale",
      .to = ".weight_scale_inv",
      .shape = "[1, 1]"},
     SV_CODE_F8,
     SV_CODE_F8,
     SV_CODE_F8},
    /* other names of methods and fields, and absent ones */
    {{.rest = "modelopt_nvfp4",
      .patch = CONFIG("\"quant_method\": \"modelopt_fp4\", \"quant_algo\": \"NVFP4\", \"ignore\": "
                      "[\"lm_head\", \"*self_attn*\"]")},
     SV_CODE_NONE,
     SV_CODE_NVFP4,
     SV_CODE_NVFP4},
    {{.attn = "ct_fp8_tensor",
      .rest = "modelopt_nvfp4",
      .patch = CONFIG("\"quant_method\": \"modelopt_mixed\", \"quant_algo\": \"MIXED_PRECISION\", "
                      "\"quantized_layers\": {\"model.layers.0.mlp\": {\"quant_algo\": \"NVFP4\"}, "
                      "\"model.layers.0.self_attn\": {\"quant_algo\": \"FP8\"}}")},
     SV_CODE_F8,
     SV_CODE_NVFP4,
     SV_CODE_NVFP4},
    {{.rest = "gptq", .patch = CONFIG("\"checkpoint_format\": \"<del>\"")},
     SV_CODE_GPTQ4,
     SV_CODE_GPTQ4,
     SV_CODE_GPTQ4},
    {{.rest = "ct_int4",
      .patch =
          "{\"quantization_config\": \"<del>\", \"compression_config\": {\"quant_method\": "
          "\"compressed-tensors\", \"format\": \"pack-quantized\", \"ignore\": [\"lm_head\"], "
          "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": "
          "{\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", \"group_size\": 32}}}}}"},
     SV_CODE_INT4,
     SV_CODE_INT4,
     SV_CODE_INT4},
};

static void these_are_accepted(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct sv_ckpt c;
        struct sv_err err = {0};
        const char *dir = changed(&good[i].c);
        fake_expect(open_target(dir, &err), SV_OK, &err, "", good[i].c.patch);
        assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
        const enum sv_quant_code want[] = {good[i].q, good[i].up, good[i].down};
        static const char *const of[] = {"self_attn.q", "mlp.up", "mlp.down"};
        for (int k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "layers.0.%s_proj.weight", of[k]);
            assert_int_equal(sv_ckpt_find(&c, name)->quant.code, want[k]);
        }
        sv_ckpt_close(&c);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

static void gptq_by_layer_must_agree(void **state)
{
    static const struct {
        struct change c;
        int code;
        const char *part[2];
    } cases[] = {
        {{.rest = "gptq", .patch = "{}", .plain = "down"},
         SV_EMISMATCH,
         {"'layers.0.mlp.down_proj' is gptq-4", "is not quantized"}},
        {{.rest = "gptq", .patch = CONFIG(DYNAMIC)},
         SV_EMISMATCH,
         {"k_proj.qweight' holds i32", "'-:.*attn.*'"}},
        {{.rest = "gptq", .patch = CONFIG("\"dynamic\": {\"-:down\": {}}"), .plain = "down"},
         SV_EMISMATCH, /* matched from the start */
         {"'layers.0.mlp.down_proj' is gptq-4", "is not quantized"}},
        {{.rest = "gptq", .patch = CONFIG(MODULES "[[\"mlp.up_proj\"]]"), .plain = "attn"},
         SV_EMISMATCH,
         {"down_proj.qweight' holds i32", "'modules_in_block_to_quantize'"}},
        {{.rest = "gptq", .patch = CONFIG(MODULES "[[\"mlp\"]]"), .plain = "_proj"},
         SV_EMISMATCH,
         {"'layers.0.mlp.down_proj' is gptq-4", "is not quantized"}},
        {{.rest = "gptq", .patch = CONFIG(MODULES "[[\"mlp\"], \"self_attn\"]")},
         SV_EFORMAT,
         {"'modules_in_block_to_quantize' must be a list", ""}},
        {{.rest = "gptq", .patch = CONFIG(MODULES "[\"mlp\", 1]")},
         SV_EFORMAT,
         {"'modules_in_block_to_quantize'[1] is not a name", ""}},
        {{.rest = "gptq", .patch = CONFIG("\"dynamic\": {\"+:.*down.*\": {\"bits\": 8}}")},
         SV_EUNSUPPORTED,
         {"'dynamic', '+:.*down.*'", "8 bits in groups of 32 are not supported beside 4"}},
        {{.rest = "gptq", .patch = CONFIG("\"dynamic\": {\".*up.*\": {\"group_size\": -1}}")},
         SV_EUNSUPPORTED,
         {"'dynamic', '.*up.*'", "4 bits in groups of -1"}},
        {{.rest = "gptq", .patch = CONFIG("\"dynamic\": {\".*up.*\": false}")},
         SV_EFORMAT,
         {"'dynamic', '.*up.*'", "not an object"}},
        {{.rest = "gptq", .patch = CONFIG("\"dynamic\": [\"-:.*\"]")},
         SV_EFORMAT,
         {"'dynamic' must be an object", ""}},
        {{.rest = "gptq", .patch = CONFIG("\"dynamic\": {\"-:(\": {}}")},
         SV_EFORMAT,
         {"'-:(' is no regular expression (at 3)", ""}},
        {{.rest = "gptq",
          .patch = "{}",
          .file = "quantize_config.json",
          .text = "{\"dynamic\": {\"-:.*down\": {}}}"},
         SV_EMISMATCH,
         {"down_proj.qweight' holds i32", "'-:.*down'"}},
        {{.rest = "gptq",
          .patch = CONFIG("\"dynamic\": {\"-:.*up\": {}}"),
          .file = "quantize_config.json",
          .text = "{\"dynamic\": {\"-:.*down\": {}}}"},
         SV_EMISMATCH,
         {"quantize_config.json: 'dynamic'", "config.json"}},
        {{.rest = "gptq", .patch = "{}", .file = "quantize_config.json", .text = "{"},
         SV_EFORMAT,
         {"quantize_config.json", ""}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_err err = {0};
        const int rc = open_target(changed(&cases[i].c), &err);
        for (int k = 0; k < 2; k++)
            fake_expect(rc, cases[i].code, &err, cases[i].part[k], cases[i].c.patch);
        assert_int_equal(sv_alloc_live(), 0);
    }
}

static void modelopt_by_layer(void **state)
{
    static const struct {
        const char *attn, *rest, *algo, *shape;
        enum sv_quant_code code[2];
    } mixed[] = {
        {"ct_fp8_tensor",
         "modelopt_nvfp4",
         "\"MIXED_PRECISION\", \"kv_cache_quant_algo\": \"FP8\", \"exclude_modules\": [\"lm_head\"], "
         "\"quantized_layers\": {\"model.layers.0.mlp\": {\"quant_algo\": \"NVFP4\", \"group_size\": "
         "16}, \"model.layers.0.self_attn\": {\"quant_algo\": \"FP8\"}}}}",
         NULL,
         {SV_CODE_F8, SV_CODE_NVFP4}},
        {"ct_mixed",
         "modelopt_nvfp4",
         "\"MIXED_PRECISION\", \"quantized_layers\": {\"model.layers.0.mlp\": {\"quant_algo\": "
         "\"NVFP4\"}, \"layers.0.self_attn\": {\"quant_algo\": \"FP8_PER_CHANNEL_PER_TOKEN\"}}}}",
         NULL,
         {SV_CODE_F8, SV_CODE_NVFP4}},
        {"ct_fp8_tensor",
         "ct_fp8_tensor",
         "\"FP8_PB_WO\", \"kv_cache_scheme\": {\"num_bits\": 8, \"type\": \"float\"}}}",
         "[1, 1, 1, 1]",
         {SV_CODE_F8, SV_CODE_F8}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof mixed / sizeof mixed[0]; i++) {
        struct sv_ckpt c;
        struct sv_err err = {0};
        char patch[640];
        snprintf(patch, sizeof patch, "%s%s", MODELOPT, mixed[i].algo);
        const char *dir = changed(&(struct change){
            .attn = mixed[i].attn, .rest = mixed[i].rest, .patch = patch, .shape = mixed[i].shape});
        fake_expect(open_target(dir, &err), SV_OK, &err, "", patch);
        assert_int_equal(sv_ckpt_open(&c, dir, &err), SV_OK);
        const struct sv_host_tensor *q = sv_ckpt_find(&c, "layers.0.self_attn.q_proj.weight"),
                                    *up = sv_ckpt_find(&c, "layers.0.mlp.up_proj.weight");
        assert_int_equal(q->quant.code, mixed[i].code[0]);
        assert_int_equal(up->quant.code, mixed[i].code[1]);
        assert_int_equal(q->quant.block_rows, i == 0 ? 64 : i == 1 ? 1 : 128);
        sv_ckpt_close(&c);
    }
    assert_int_equal(sv_alloc_live(), 0);
}

/* Codes and scales without a value. */
static void values_must_exist(void **state)
{
    static const struct {
        const char *name, *tensor, *part;
        uint8_t byte[4];
        int n;
    } cases[] = {
        {"fp8_block", "layers.0.mlp.up_proj.weight", "codes that are NaN", {0xff}, 1},
        {"fp8_block", "layers.0.mlp.up_proj.weight_scale_inv", "not finite", {0, 0, 0x80, 0x7f}, 4},
        {"fp8_block", "layers.0.mlp.up_proj.weight_scale_inv", "negative", {0, 0, 0x80, 0xbf}, 4},
        {"ct_nvfp4", "layers.0.mlp.up_proj.weight_scale", "without a value", {0x7f}, 1},
        {"ct_nvfp4", "layers.0.mlp.down_proj.weight_global_scale", "not positive", {0, 0, 0, 0}, 4},
        {"ct_mxfp4", "layers.0.mlp.up_proj.weight_scale", "without a value", {0xff}, 1},
        {"modelopt_nvfp4", "layers.0.self_attn.k_proj.k_scale", "no finite", {0, 0, 0xc0, 0x7f}, 4},
        {"gptq", "layers.0.mlp.up_proj.g_idx", "does not exist", {2, 0, 0, 0}, 4},
        {"gptq", "layers.0.mlp.up_proj.g_idx", "does not exist", {0xff, 0xff, 0xff, 0xff}, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sv_buf b;
        struct sv_arena arena;
        struct sv_host_tensor *t;
        struct sv_err err = {0};
        int32_t n;
        const char *patch = strncmp(cases[i].name, "modelopt", 8) ? "{}"
                                                                  : MODELOPT
                                "\"NVFP4\", \"ignore\": [\"lm_head\", \"*self_attn*\"]}}";
        const char *dir = variant(cases[i].name, patch, "", "");
        read_golden(&b, cases[i].name, "model.safetensors");
        sv_arena_init(&arena);
        const uint8_t *base = (const uint8_t *)b.data;
        assert_int_equal(sv_safetensors_parse(base, b.len, "f", &arena, &t, &n, &err), SV_OK);
        uint64_t n_header;
        memcpy(&n_header, base, 8);
        size_t at = 0;
        for (int32_t k = 0; k < n; k++) /* some are copied to be aligned: find the bytes */
            if (!strcmp(t[k].name + 6, cases[i].tensor))
                for (at = 8 + n_header; memcmp(base + at, t[k].data, t[k].n_bytes); at++)
                    ;
        assert_true(at > 0);
        memcpy(b.data + at, cases[i].byte, (size_t)cases[i].n);
        fake_put(dir, "model.safetensors", b.data, b.len);
        fake_expect(open_target(dir, &err), SV_EMISMATCH, &err, cases[i].part, cases[i].tensor);
        fake_expect(SV_EMISMATCH, SV_EMISMATCH, &err, cases[i].tensor, cases[i].tensor);
        sv_arena_fini(&arena);
        sv_buf_fini(&b);
    }
}

static void survives_faults(const char *dir)
{
    for (int64_t nth = 1;; nth++) {
        struct sv_err err = {0};
        sv_fault_arm(nth);
        const int rc = open_target(dir, &err);
        const int64_t calls = sv_fault_calls();
        sv_fault_arm(0);
        assert_true(rc == SV_OK || (err.code == rc && err.msg[0]));
        assert_int_equal(sv_alloc_live(), 0);
        if (rc == SV_OK && calls < nth)
            break;
    }
}

static void every_fault_is_survived(void **state)
{
    (void)state;
    const struct change c = {.rest = "gptq",
                             .patch = CONFIG(MODULES "[[\"mlp\"], [\"self_attn\"]]"),
                             .plain = "down",
                             .file = "quantize_config.json",
                             .text = "{\"dynamic\": {\"-:.*down\": {}}}"};
    survives_faults(sv_test_path("tests/golden/quant/ct_mixed"));
    survives_faults(changed(&c));
}

SV_TEST_MAIN(cmocka_unit_test(good_ones_hold_what_the_configuration_implies),
             cmocka_unit_test(both_sides_are_named),
             cmocka_unit_test(caches_in_8_bit_floats_are_accepted),
             cmocka_unit_test(these_are_accepted), cmocka_unit_test(gptq_by_layer_must_agree),
             cmocka_unit_test(modelopt_by_layer), cmocka_unit_test(a_named_layer_is_of_its_group),
             cmocka_unit_test(values_must_exist), cmocka_unit_test(every_fault_is_survived))
