/*
 * toy.c - see toy.h. Writes config.json and model.safetensors (f32 or bf16) by hand.
 */
#include "engine/toy.h"

#include "backend/ops_tokens.h"
#include "backend/quant.h"
#include "engine/run.h"
#include "testing.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const struct toy toy_bf16 = {.vocab = 300,
                             .hidden = 64,
                             .n_layers = 3,
                             .n_heads = 5,
                             .n_kv = 1,
                             .head_dim = 16,
                             .mlp = 96,
                             .max_position = 256,
                             .block = 16,
                             .draft_layers = 2,
                             .bf16 = true,
                             .scale = 0.2f,
                             .seed = 3};

const struct toy toy_moe = {.vocab = 300,
                            .hidden = 64,
                            .n_layers = 3,
                            .n_heads = 5,
                            .n_kv = 1,
                            .head_dim = 16,
                            .mlp = 96,
                            .max_position = 256,
                            .block = 16,
                            .draft_layers = 2,
                            .n_experts = 10,
                            .n_chosen = 3,
                            .expert_mlp = 40,
                            .bf16 = true,
                            .scale = 0.2f,
                            .seed = 4};

const struct toy toy_moe_fp8 = {.vocab = 300,
                                .hidden = 192,
                                .n_layers = 3,
                                .n_heads = 5,
                                .n_kv = 1,
                                .head_dim = 16,
                                .mlp = 96,
                                .max_position = 256,
                                .block = 16,
                                .draft_layers = 2,
                                .n_experts = 10,
                                .n_chosen = 3,
                                .expert_mlp = 136,
                                .bf16 = true,
                                .fp8 = true,
                                .scale = 0.1f,
                                .seed = 5};

const struct toy_family toy_families[TOY_FAMILIES] = {
    {"qwen3_moe_f32",
     "{\"num_hidden_layers\":3,\"intermediate_size\":64,\"moe_intermediate_size\":32}", true},
    {"gptoss_bf16", "{\"hidden_size\":64,\"intermediate_size\":32}", true},
    {"qwen3_5_bf16",
     "{\"num_hidden_layers\":4,\"layer_types\":[\"linear_attention\","
     "\"full_attention\",\"linear_attention\",\"full_attention\"]}",
     true},
    {"qwen3_5_moe_bf16",
     "{\"hidden_size\":64,\"moe_intermediate_size\":32,"
     "\"shared_expert_intermediate_size\":32}",
     true},
    {"qwen3_next_bf16",
     "{\"hidden_size\":64,\"moe_intermediate_size\":32,"
     "\"shared_expert_intermediate_size\":32}",
     true},
    {"deepseek_bf16",
     "{\"hidden_size\":64,\"q_lora_rank\":64,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":4,\"moe_intermediate_size\":32}",
     true},
    {"kimi_int4",
     "{\"hidden_size\":64,\"q_lora_rank\":64,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":4,\"moe_intermediate_size\":32,"
     "\"quantization_config\":null}",
     false},
};

/* A safetensors file under construction: header text and data. */
struct writer {
    struct sv_buf header, data;
    struct sv_rng rng;
    float scale;
    bool bf16, fp8; /* fp8: projections that a configuration implies, those of a draft */
    bool scales;    /* of MXFP4, in bytes */
};

static void put_tensor(struct writer *w, float base, const int64_t *dim, int32_t n_dims,
                       enum sv_dtype dtype, const char *name)
{
    const size_t elem = sv_dtype_bytes(dtype), from = w->data.len;
    size_t n = 1;
    sv_buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[",
                  w->header.len > 1 ? "," : "", name,
                  dtype == SV_U8     ? "U8"
                  : dtype == SV_F8   ? "F8_E4M3"
                  : dtype == SV_BF16 ? "BF16"
                                     : "F32");
    for (int32_t i = 0; i < n_dims; i++) {
        n *= (size_t)dim[i];
        sv_buf_printf(&w->header, "%s%lld", i ? "," : "", (long long)dim[i]);
    }
    sv_buf_printf(&w->header, "],\"data_offsets\":[%zu,%zu]}", from, from + n * elem);
    for (size_t i = 0; i < n; i++) {
        if (dtype == SV_U8) {
            const uint8_t byte =
                (uint8_t)(w->scales ? 122 + sv_rng_below(&w->rng, 3) : sv_rng_below(&w->rng, 256));
            sv_buf_append(&w->data, &byte, 1);
            continue;
        }
        if (dtype == SV_F8) {
            const uint8_t byte = sv_f32_to_f8(32 * sv_rng_normal(&w->rng));
            sv_buf_append(&w->data, &byte, 1);
            continue;
        }
        float x = sv_rng_normal(&w->rng) * w->scale;
        x = base != 0 ? base + 0.2f * x : x;
        const uint16_t half = sv_f32_to_bf16(x);
        sv_buf_append(&w->data, dtype == SV_BF16 ? (const void *)&half : &x, elem);
    }
}

/* ones: norm weights near 1 instead of random ones. */
static void put(struct writer *w, bool ones, int32_t rows, int32_t cols, const char *fmt, ...)
{
    const int64_t dim[] = {rows, cols}, *from = rows == 1 ? dim + 1 : dim;
    char name[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    put_tensor(w, ones ? 1 : 0, from, rows == 1 ? 1 : 2, w->bf16 ? SV_BF16 : SV_F32, name);
}

/* In blocks of 128 x 128. */
static void put_f8(struct writer *w, int32_t rows, int32_t cols, enum sv_dtype scale,
                   const char *layer)
{
    const int64_t dim[] = {rows, cols}, blocks[] = {(rows + 127) / 128, (cols + 127) / 128};
    const float own = w->scale;
    char name[160];
    snprintf(name, sizeof name, "%s.weight", layer);
    put_tensor(w, 0, dim, 2, SV_F8, name);
    snprintf(name, sizeof name, "%s.weight_scale_inv", layer);
    w->scale = own / 32;
    put_tensor(w, own / 32, blocks, 2, scale, name);
    w->scale = own;
}

static void put_experts(struct writer *w, const struct toy *t, int32_t i, const char *prefix)
{
    static const char *const part[] = {"gate", "up", "down"};
    put(w, false, t->n_experts, t->hidden, "%slayers.%d.mlp.gate.weight", prefix, i);
    for (int32_t e = 0; e < t->n_experts; e++)
        for (int k = 0; k < 3; k++) {
            const int32_t rows = k == 2 ? t->hidden : t->expert_mlp,
                          cols = k == 2 ? t->expert_mlp : t->hidden;
            char layer[64];
            snprintf(layer, sizeof layer, "%slayers.%d.mlp.experts.%d.%s_proj", prefix, i, e,
                     part[k]);
            if (t->fp8)
                put_f8(w, rows, cols, k == 1 ? SV_F32 : SV_BF16, layer);
            else
                put(w, false, rows, cols, "%s.weight", layer);
        }
}

static void put_proj(struct writer *w, int32_t rows, int32_t cols, const char *prefix, int32_t i,
                     const char *name)
{
    char layer[96];
    snprintf(layer, sizeof layer, "%slayers.%d.%s_proj", prefix, i, name);
    if (w->fp8)
        put_f8(w, rows, cols, SV_BF16, layer);
    else
        put(w, false, rows, cols, "%s.weight", layer);
}

/* experts: where the toy has some. */
static void put_layers(struct writer *w, const struct toy *t, int32_t n, const char *prefix,
                       bool experts)
{
    int32_t q = t->n_heads * t->head_dim, kv = t->n_kv * t->head_dim, h = t->hidden;
    for (int32_t i = 0; i < n; i++) {
        put(w, true, 1, h, "%slayers.%d.input_layernorm.weight", prefix, i);
        put(w, true, 1, h, "%slayers.%d.post_attention_layernorm.weight", prefix, i);
        put_proj(w, q, h, prefix, i, "self_attn.q");
        put_proj(w, kv, h, prefix, i, "self_attn.k");
        put_proj(w, kv, h, prefix, i, "self_attn.v");
        put_proj(w, h, q, prefix, i, "self_attn.o");
        put(w, true, 1, t->head_dim, "%slayers.%d.self_attn.q_norm.weight", prefix, i);
        put(w, true, 1, t->head_dim, "%slayers.%d.self_attn.k_norm.weight", prefix, i);
        if (experts && i != 1) {
            put_experts(w, t, i, prefix);
            continue;
        }
        put_proj(w, t->mlp, h, prefix, i, "mlp.gate");
        put_proj(w, t->mlp, h, prefix, i, "mlp.up");
        put_proj(w, h, t->mlp, prefix, i, "mlp.down");
    }
    put(w, true, 1, h, "%snorm.weight", prefix);
}

static const char *finish(struct writer *w, const char *config, const char *tag)
{
    static int n_dirs;
    char name[64], path[512];
    snprintf(name, sizeof name, "toy-%d-%s", n_dirs++, tag);
    const char *dir = run_keep(sv_test_tmp(name));
    assert_int_equal(mkdir(dir, 0700), 0);
    struct sv_err err = {0};
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(sv_file_write(path, config, strlen(config), &err), 0);
    sv_buf_append(&w->header, "}", 1);
    while (w->header.len % 8)
        sv_buf_append(&w->header, " ", 1);
    uint64_t n = w->header.len;
    struct sv_buf all;
    sv_buf_init(&all);
    sv_buf_append(&all, &n, 8);
    sv_buf_append(&all, w->header.data, w->header.len);
    sv_buf_append(&all, w->data.data, w->data.len);
    assert_false(all.failed);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(sv_file_write(path, all.data, all.len, &err), 0);
    sv_buf_fini(&all);
    sv_buf_fini(&w->header);
    sv_buf_fini(&w->data);
    return dir;
}

static struct writer begin(const struct toy *t, uint64_t salt)
{
    struct writer w = {.rng = {t->seed + salt}, .scale = t->scale, .bf16 = t->bf16};
    sv_buf_init(&w.header);
    sv_buf_init(&w.data);
    sv_buf_append(&w.header, "{", 1);
    return w;
}

static void config_head(char *out, size_t size, const struct toy *t, const char *arch,
                        int32_t layers)
{
    snprintf(out, size,
             "{\"architectures\":[\"%s\"],\"hidden_act\":\"silu\","
             "\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
             "\"vocab_size\":%d,\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-6,"
             "\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"torch_dtype\":\"%s\","
             "\"eos_token_id\":2,\"bos_token_id\":1",
             arch, t->hidden, t->mlp, layers, t->n_heads, t->n_kv, t->head_dim, t->vocab,
             t->max_position, t->bf16 ? "bfloat16" : "float32");
}

const char *toy_target(const struct toy *t)
{
    char config[1024];
    config_head(config, sizeof config, t, t->n_experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM",
                t->n_layers);
    const size_t n = strlen(config);
    if (t->n_experts)
        snprintf(config + n, sizeof config - n,
                 ",\"num_experts\":%d,\"num_experts_per_tok\":%d,\"moe_intermediate_size\":%d,"
                 "\"norm_topk_prob\":true,\"mlp_only_layers\":[1]",
                 t->n_experts, t->n_chosen, t->expert_mlp);
    if (t->fp8)
        strcat(config, ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
                       "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],"
                       "\"modules_to_not_convert\":[\"self_attn\",\"model.layers.1\",\"gate\"]}");
    strcat(config, "}");
    struct writer w = begin(t, 0);
    put(&w, false, t->vocab, t->hidden, "model.embed_tokens.weight");
    put_layers(&w, t, t->n_layers, "model.", t->n_experts > 0);
    put(&w, false, t->vocab, t->hidden, "lm_head.weight");
    return finish(&w, config, "target");
}

const char *toy_speaking_target(const struct toy *t)
{
    const char *dir = toy_target(t);
    struct sv_buf text;
    struct sv_err err = {0};
    char path[512];
    sv_buf_init(&text);
    assert_int_equal(sv_file_read(&text, run_dir("tests/golden/tiny/pair_target/tokenizer.json"),
                                  (size_t)1 << 20, &err),
                     0);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    assert_int_equal(sv_file_write(path, text.data, text.len, &err), 0);
    sv_buf_fini(&text);
    return dir;
}

const char *toy_draft(const struct toy *t)
{
    static const char kimi_rope[] =
        ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":64.0,\"beta_fast\":32.0,\"beta_slow\":1.0,"
        "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":64}";
    char config[1024];
    config_head(config, sizeof config, t, "DFlashDraftModel", t->draft_layers);
    const int32_t n_taps = t->n_taps ? t->n_taps : 2;
    size_t n = strlen(config);
    n += (size_t)snprintf(config + n, sizeof config - n,
                          ",\"block_size\":%d,\"num_target_layers\":%d,\"dflash_config\":{"
                          "\"mask_token_id\":%d,\"target_layer_ids\":[0",
                          t->block, t->n_layers, t->vocab - 1);
    for (int32_t i = 1; i < n_taps; i++)
        n += (size_t)snprintf(config + n, sizeof config - n, ",%d",
                              i * (t->n_layers - 2) / (n_taps - 1));
    n += (size_t)snprintf(config + n, sizeof config - n, "]}");
    for (int32_t i = 0; i < t->draft_layers && t->window; i++)
        n += (size_t)snprintf(
            config + n, sizeof config - n, "%s\"%s_attention\"%s", i ? "," : ",\"layer_types\":[",
            i < t->draft_layers - 1 ? "sliding" : "full", i < t->draft_layers - 1 ? "" : "]");
    if (t->window)
        n += (size_t)snprintf(config + n, sizeof config - n,
                              ",\"use_sliding_window\":true,\"sliding_window\":%d", t->window);
    snprintf(config + n, sizeof config - n, "%s%s}", t->yarn ? kimi_rope : "",
             t->fp8_draft ? ",\"quantization_config\":{\"quant_method\":\"fp8\","
                            "\"weight_block_size\":[128,128]}"
                          : "");
    struct writer w = begin(t, 1);
    w.fp8 = t->fp8_draft;
    put(&w, false, t->hidden, n_taps * t->hidden, "fc.weight");
    put(&w, true, 1, t->hidden, "hidden_norm.weight");
    put_layers(&w, t, t->draft_layers, "", false);
    return finish(&w, config, "draft");
}

struct run_pair toy_pair_of(const char *name)
{
    return toy_pair_as(name, 0, 0);
}

static struct toy draft_for(const struct sv_config *c)
{
    return (struct toy){.vocab = c->vocab_size,
                        .hidden = c->hidden_size,
                        .n_layers = c->n_layers,
                        .n_heads = 2,
                        .n_kv = 1,
                        .head_dim = 16,
                        .mlp = 64,
                        .max_position = 256,
                        .block = 16,
                        .draft_layers = 2,
                        .yarn = c->kv_lora_rank > 0,
                        .bf16 = true,
                        .scale = 0.2f,
                        .seed = 5};
}

static bool is_projection(enum sv_role role)
{
    return (role >= SV_ROLE_Q && role <= SV_ROLE_DOWN) ||
           (role >= SV_ROLE_EXPERT_GATE && role <= SV_ROLE_EXPERT_DOWN) ||
           (role >= SV_ROLE_SHARED_GATE && role <= SV_ROLE_SHARED_DOWN) ||
           role == SV_ROLE_GDN_QKV || role == SV_ROLE_GDN_Z;
}

/* A tensor that the configuration implies. */
static int put_expected(void *user, const struct sv_tensor_spec *s)
{
    struct writer *w = user;
    const bool one_of_all = s->form >= SV_FORM_EXPERT, ones = s->form != SV_FORM_ONE_PLUS;
    int64_t dim[SV_SPEC_DIMS];
    const int32_t n_dims = sv_tensor_shape(s, dim);
    const bool norm = sv_role_is_norm(s->role);
    const bool codes = s->pack == SV_PACK_MXFP4 || s->pack == SV_PACK_MXFP4_SCALES;
    if (one_of_all && (s->expert > 0 || s->form == SV_FORM_UP))
        return 0; /* the tensor is there */
    if (w->fp8 && is_projection(s->role)) {
        char layer[128];
        snprintf(layer, sizeof layer, "%.*s", (int)(strlen(s->name) - strlen(".weight")), s->name);
        put_f8(w, (int32_t)s->rows, (int32_t)s->cols, SV_BF16, layer);
        return 0;
    }
    w->scales = s->pack == SV_PACK_MXFP4_SCALES;
    put_tensor(w, norm && ones ? 1 : 0, dim, n_dims, codes ? SV_U8 : SV_BF16, s->name);
    return 0;
}

struct run_pair toy_pair_like(const char *name, const char *patch)
{
    struct sv_config c;
    struct sv_err err = {0};
    char path[128];
    snprintf(path, sizeof path, "tests/golden/tiny/%s/config.json", name);
    json_t *root = json_load_file(sv_test_path(path), 0, NULL),
           *changes = json_loads(patch, 0, NULL), *inner = json_object_get(root, "text_config");
    assert_non_null(root);
    assert_non_null(changes);
    json_object_update(inner ? inner : root, changes);
    char *text = json_dumps(root, JSON_COMPACT);
    if (sv_config_parse(&c, text, strlen(text), &err))
        fail_msg("%s", err.msg);
    struct toy t = draft_for(&c);
    t.n_heads = 4;
    t.n_kv = 2;
    struct writer w = begin(&t, 2);
    w.fp8 = json_is_object(json_object_get(changes, "quantization_config"));
    sv_config_each_tensor(&c, 0, put_expected, &w);
    const char *target = finish(&w, text, "target");
    sv_free(text);
    json_decref(changes);
    json_decref(root);
    return (struct run_pair){target, toy_draft(&t)};
}

/* The tensor as it is in another file, under another name. */
static void put_copy(struct writer *w, const char *name, const json_t *info, const uint8_t *data)
{
    const json_t *ends = json_object_get(info, "data_offsets");
    const size_t from = (size_t)json_integer_value(json_array_get(ends, 0)),
                 n = (size_t)json_integer_value(json_array_get(ends, 1)) - from;
    char *shape = json_dumps(json_object_get(info, "shape"), JSON_COMPACT);
    sv_buf_printf(&w->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                  w->header.len > 1 ? "," : "", name,
                  json_string_value(json_object_get(info, "dtype")), shape, w->data.len,
                  w->data.len + n);
    sv_buf_append(&w->data, data + from, n);
    sv_free(shape);
}

/* Groups of columns in their order. */
static void set_order(json_t *tensors, uint8_t *data)
{
    const char *key;
    json_t *info;
    json_object_foreach(tensors, key, info) {
        if (!strstr(key, ".g_idx"))
            continue;
        const json_t *ends = json_object_get(info, "data_offsets");
        const int64_t from = json_integer_value(json_array_get(ends, 0)),
                      n = (json_integer_value(json_array_get(ends, 1)) - from) / 4;
        int32_t g[512], last = 0;
        assert_true(n <= 512);
        memcpy(g, data + from, (size_t)n * 4);
        for (int64_t k = 0; k < n; k++)
            last = g[k] > last ? g[k] : last;
        for (int64_t k = 0; k < n; k++)
            g[k] = (int32_t)(k * (last + 1) / n);
        memcpy(data + from, g, (size_t)n * 4);
    }
}

const char *toy_deeper(const char *dir, int32_t n_layers, bool in_order)
{
    static const char first[] = "layers.0.";
    char path[512], name[160];
    const char *key;
    json_t *info;
    uint64_t n_header;
    struct sv_err err = {0};
    struct writer w = begin(&toy_bf16, 0);
    struct sv_buf file;
    sv_buf_init(&file);
    snprintf(path, sizeof path, "%s/config.json", run_dir(dir));
    json_t *config = json_load_file(path, 0, NULL);
    assert_non_null(config);
    json_object_del(config, "layer_types"); /* all full, as in the first layer */
    json_object_set_new(config, "num_hidden_layers", json_integer(n_layers));
    char *text = json_dumps(config, JSON_COMPACT);
    snprintf(path, sizeof path, "%s/model.safetensors", run_dir(dir));
    assert_int_equal(sv_file_read(&file, path, (size_t)1 << 20, &err), 0);
    memcpy(&n_header, file.data, sizeof n_header);
    const char *header = (const char *)file.data + sizeof n_header;
    json_t *tensors = json_loadb(header, n_header, 0, NULL);
    assert_non_null(tensors);
    json_object_del(tensors, "__metadata__");
    if (in_order)
        set_order(tensors, (uint8_t *)file.data + sizeof n_header + n_header);
    json_object_foreach(tensors, key, info) {
        const char *at = strstr(key, first);
        for (int32_t i = 0; i < (at ? n_layers : 1); i++) {
            snprintf(name, sizeof name, "%.*slayers.%d.%s", at ? (int)(at - key) : 0, key, i,
                     at ? at + strlen(first) : "");
            put_copy(&w, at ? name : key, info, (const uint8_t *)header + n_header);
        }
    }
    const char *deeper = finish(&w, text, strrchr(dir, '/') + 1);
    sv_free(text);
    json_decref(tensors);
    json_decref(config);
    sv_buf_fini(&file);
    return deeper;
}

struct run_pair toy_pair_as(const char *name, int32_t n_taps, int32_t window)
{
    char dir[128];
    snprintf(dir, sizeof dir, "tests/golden/tiny/%s", name);
    return toy_pair_at(run_dir(dir), n_taps, window);
}

struct run_pair toy_pair_at(const char *target, int32_t n_taps, int32_t window)
{
    struct sv_config c;
    struct sv_err err = {0};
    if (sv_config_load(&c, target, &err))
        fail_msg("%s", err.msg);
    struct toy draft = draft_for(&c);
    draft.n_taps = n_taps;
    draft.window = window;
    return (struct run_pair){target, toy_draft(&draft)};
}
