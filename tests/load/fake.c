/*
 * fake.c - made-up checkpoints for the tests of src/load. See fake.h.
 */
#include "load/fake.h"
#include "testing.h"

#include <string.h>
#include <sys/stat.h>

const char fake_qwen3[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"bos_token_id\": 151643, \"eos_token_id\": 151645,"
    " \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 4096,"
    " \"initializer_range\": 0.02, \"intermediate_size\": 12288, \"max_position_embeddings\": "
    "40960,"
    " \"max_window_layers\": 36, \"model_type\": \"qwen3\", \"num_attention_heads\": 32,"
    " \"num_hidden_layers\": 36, \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06,"
    " \"rope_scaling\": null, \"rope_theta\": 1000000, \"sliding_window\": null,"
    " \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.51.0\", \"use_cache\": true, \"use_sliding_window\": false,"
    " \"vocab_size\": 151936}";

const char fake_llama[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 64,"
    " \"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"vocab_size\": 96, \"max_position_embeddings\": 131072,"
    " \"rms_norm_eps\": 1e-05, \"dtype\": \"float16\", \"bos_token_id\": 1,"
    " \"eos_token_id\": [2, 3], \"hidden_act\": \"silu\", \"mlp_bias\": false,"
    " \"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": 8.0,"
    " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0,"
    " \"original_max_position_embeddings\": 8192}}";

const char fake_dflash[] =
    "{\"architectures\": [\"DFlashDraftModel\"], \"attention_bias\": false,"
    " \"attention_dropout\": 0.0, \"auto_map\": {\"AutoModel\": \"dflash.DFlashDraftModel\"},"
    " \"block_size\": 16, \"bos_token_id\": 151643, \"eos_token_id\": 151645,"
    " \"dflash_config\": {\"mask_token_id\": 151669, \"target_layer_ids\": [1, 9, 17, 25, 33]},"
    " \"dtype\": \"bfloat16\", \"head_dim\": 128, \"hidden_act\": \"silu\", \"hidden_size\": 4096,"
    " \"intermediate_size\": 12288, \"layer_types\": [\"full_attention\", \"full_attention\","
    " \"full_attention\", \"full_attention\", \"full_attention\"],"
    " \"max_position_embeddings\": 40960, \"max_window_layers\": 5, \"model_type\": \"qwen3\","
    " \"num_attention_heads\": 32, \"num_hidden_layers\": 5, \"num_key_value_heads\": 8,"
    " \"num_target_layers\": 36, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null,"
    " \"rope_theta\": 1000000, \"sliding_window\": null, \"tie_word_embeddings\": false,"
    " \"use_sliding_window\": false, \"vocab_size\": 151936}";

const char fake_small[] =
    "{\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": 40,"
    " \"layer_types\": \"<del>\", \"num_target_layers\": \"<del>\","
    " \"bos_token_id\": 1, \"eos_token_id\": 2}";

const char *fake_dir(const char *name)
{
    const char *path = sv_test_tmp(name);
    mkdir(path, 0777);
    return path;
}

void fake_put(const char *dir, const char *name, const void *data, size_t n)
{
    struct sv_err err = {0};
    char *path = sv_path_join(dir, name);
    assert_non_null(path);
    if (sv_file_write(path, data, n, &err))
        fail_msg("%s", err.msg);
    sv_free(path);
}

void fake_puts(const char *dir, const char *name, const char *text)
{
    fake_put(dir, name, text, strlen(text));
}

void fake_image(struct sv_buf *out, const char *header, size_t n_data)
{
    uint64_t n = strlen(header);
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)(n >> (8 * i));
    sv_buf_init(out);
    sv_buf_append(out, len, sizeof len);
    sv_buf_append(out, header, n);
    for (size_t i = 0; i < n_data; i++) {
        uint8_t b = (uint8_t)(i * 7 + 1);
        sv_buf_append(out, &b, 1);
    }
    assert_false(out->failed);
}

struct fake_tensor *fake_add(struct fake_list *l, const char *name, int64_t rows, int64_t cols)
{
    assert_true(l->n < FAKE_MAX);
    struct fake_tensor *t = &l->t[l->n++];
    *t = (struct fake_tensor){.dtype = "BF16", .n_dims = cols ? 2 : 1, .dim = {rows, cols}};
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

/* One layer's tensors, written out by hand: the tests must not trust the table they test. */
static void add_layer(struct fake_list *l, const struct sv_config *c, const char *prefix, int32_t i)
{
    int64_t h = c->hidden_size, q = (int64_t)c->n_heads * c->head_dim;
    int64_t kv = (int64_t)c->n_kv_heads * c->head_dim, m = c->intermediate_size;
    const bool moe = c->layer_moe[i];
    char name[96];
    const struct {
        const char *name;
        int64_t rows, cols;
        bool on;
    } rows[] = {
        {"self_attn.q_proj.weight", q, h, true},
        {"self_attn.k_proj.weight", kv, h, true},
        {"self_attn.v_proj.weight", kv, h, true},
        {"self_attn.o_proj.weight", h, q, true},
        {"self_attn.q_proj.bias", q, 0, c->attention_bias},
        {"self_attn.k_proj.bias", kv, 0, c->attention_bias},
        {"self_attn.v_proj.bias", kv, 0, c->attention_bias},
        {"self_attn.o_proj.bias", h, 0, c->attention_bias},
        {"self_attn.q_norm.weight", c->head_dim, 0, c->qk_norm},
        {"self_attn.k_norm.weight", c->head_dim, 0, c->qk_norm},
        {"mlp.gate_proj.weight", m, h, !moe},
        {"mlp.up_proj.weight", m, h, !moe},
        {"mlp.down_proj.weight", h, m, !moe},
        {"mlp.gate.weight", c->n_experts, h, moe},
        {"mlp.gate_proj.bias", m, 0, c->mlp_bias},
        {"mlp.up_proj.bias", m, 0, c->mlp_bias},
        {"mlp.down_proj.bias", h, 0, c->mlp_bias},
        {"input_layernorm.weight", h, 0, true},
        {"post_attention_layernorm.weight", h, 0, true},
    };
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        snprintf(name, sizeof name, "%slayers.%d.%s", prefix, i, rows[k].name);
        if (rows[k].on)
            fake_add(l, name, rows[k].rows, rows[k].cols);
    }
    for (int32_t e = 0; moe && e < c->n_experts; e++)
        for (int k = 0; k < 3; k++) {
            static const char *const part[] = {"gate", "up", "down"};
            const int64_t inner = c->moe_intermediate_size;
            snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%d.%s_proj.weight", prefix, i, e,
                     part[k]);
            fake_add(l, name, k == 2 ? h : inner, k == 2 ? inner : h);
        }
}

static void add_prefixed(struct fake_list *l, const char *prefix, const char *name, int64_t rows,
                         int64_t cols)
{
    char full[96];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    fake_add(l, full, rows, cols);
}

void fake_target(struct fake_list *l, const struct sv_config *c, const char *prefix)
{
    l->n = 0;
    add_prefixed(l, prefix, "embed_tokens.weight", c->vocab_size, c->hidden_size);
    add_prefixed(l, prefix, "norm.weight", c->hidden_size, 0);
    if (!c->tie_embeddings)
        fake_add(l, "lm_head.weight", c->vocab_size, c->hidden_size);
    for (int32_t i = 0; i < c->n_layers; i++)
        add_layer(l, c, prefix, i);
}

struct filling {
    struct fake_list *l;
    const char *prefix;
};

static int add_expected(void *user, const struct sv_tensor_spec *s)
{
    const struct filling *f = user;
    int64_t dim[SV_SPEC_DIMS];
    if (s->form >= SV_FORM_EXPERT && (s->expert > 0 || s->form == SV_FORM_UP))
        return SV_OK; /* the tensor is there */
    add_prefixed(f->l, strcmp(s->name, "lm_head.weight") ? f->prefix : "", s->name, 0, 0);
    struct fake_tensor *t = &f->l->t[f->l->n - 1];
    t->n_dims = sv_tensor_shape(s, dim);
    assert_true(t->n_dims <= 4);
    memcpy(t->dim, dim, (size_t)t->n_dims * sizeof *dim);
    return SV_OK;
}

void fake_expected(struct fake_list *l, const struct sv_config *c, const char *prefix)
{
    struct filling f = {l, prefix};
    l->n = 0;
    assert_int_equal(sv_config_each_tensor(c, 0, add_expected, &f), SV_OK);
}

void fake_check(const struct fake_list *l, struct sv_config *c, int code, const char *part)
{
    static int n;
    struct sv_ckpt k;
    struct sv_err err = {0};
    char name[32];
    snprintf(name, sizeof name, "check-%d", n++);
    const char *dir = fake_dir(name);
    fake_write(l, 0, l->n, dir, "model.safetensors");
    if (sv_ckpt_open(&k, dir, &err))
        fail_msg("%s", err.msg);
    fake_expect(sv_ckpt_check_target(&k, c, &err), code, &err, part, part);
    sv_ckpt_close(&k);
}

void fake_draft(struct fake_list *l, const struct sv_draft_config *d, const char *prefix)
{
    int64_t h = d->base.hidden_size;
    l->n = 0;
    add_prefixed(l, prefix, "fc.weight", h, d->n_taps * h);
    add_prefixed(l, prefix, "hidden_norm.weight", h, 0);
    add_prefixed(l, prefix, "norm.weight", h, 0);
    for (int32_t i = 0; i < d->base.n_layers; i++)
        add_layer(l, &d->base, prefix, i);
}

struct fake_tensor *fake_find(struct fake_list *l, const char *name)
{
    for (int32_t i = 0; i < l->n; i++) {
        if (!strcmp(l->t[i].name, name))
            return &l->t[i];
    }
    fail_msg("no fake tensor %s", name);
    return NULL;
}

void fake_remove(struct fake_list *l, const char *name)
{
    struct fake_tensor *t = fake_find(l, name);
    *t = l->t[--l->n];
}

void fake_write(const struct fake_list *l, int32_t first, int32_t n, const char *dir,
                const char *file)
{
    struct sv_buf header, image;
    size_t at = 0;
    sv_buf_init(&header);
    sv_buf_printf(&header, "{\"__metadata__\": {\"format\": \"pt\"}");
    for (int32_t i = first; i < first + n; i++) {
        const struct fake_tensor *t = &l->t[i];
        size_t size = strstr(t->dtype, "32") ? 4 : strstr(t->dtype, "8") ? 1 : 2;
        sv_buf_printf(&header, ", \"%s\": {\"dtype\": \"%s\", \"shape\": [", t->name, t->dtype);
        for (int32_t k = 0; k < t->n_dims; k++) {
            sv_buf_printf(&header, "%s%lld", k ? ", " : "", (long long)t->dim[k]);
            size *= (size_t)t->dim[k];
        }
        sv_buf_printf(&header, "], \"data_offsets\": [%zu, %zu]}", at, at + size);
        at += size;
    }
    sv_buf_printf(&header, "}");
    while (header.len % 8 != 0) /* as the reference writer: data starts aligned */
        sv_buf_append(&header, " ", 1);
    assert_false(header.failed);
    fake_image(&image, header.data, at);
    fake_put(dir, file, image.data, image.len);
    sv_buf_fini(&header);
    sv_buf_fini(&image);
}

static void drop_marked(json_t *obj)
{
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(obj, next, key, value)
    {
        if (json_is_object(value))
            drop_marked(value);
        else if (json_is_string(value) && !strcmp(json_string_value(value), "<del>"))
            json_object_del(obj, key);
    }
}

char *fake_json(const char *base, const char *patch)
{
    struct sv_err err = {0};
    json_t *obj = sv_json_parse(base, strlen(base), &err);
    if (!obj)
        fail_msg("base: %s", err.msg);
    json_t *change = sv_json_parse(patch, strlen(patch), &err);
    if (!change)
        fail_msg("patch %s: %s", patch, err.msg);
    assert_int_equal(json_object_update_recursive(obj, change), 0);
    drop_marked(obj);
    char *text = json_dumps(obj, 0);
    assert_non_null(text);
    json_decref(change);
    json_decref(obj);
    return text;
}

int fake_parse_target(struct sv_config *c, const char *base, const char *patch, struct sv_err *err)
{
    char *text = fake_json(base, patch);
    int rc = sv_config_parse(c, text, strlen(text), err);
    sv_free(text);
    return rc;
}

int fake_parse_draft(struct sv_draft_config *d, const char *base, const char *patch,
                     struct sv_err *err)
{
    char *text = fake_json(base, patch);
    int rc = sv_draft_config_parse(d, text, strlen(text), 0, err);
    sv_free(text);
    return rc;
}

void fake_expect(int rc, int code, const struct sv_err *err, const char *part, const char *what)
{
    if (rc != code)
        fail_msg("%s: status %d (%s), expected %d", what, rc, rc ? err->msg : "", code);
    if (rc != SV_OK && (err->code != rc || !strstr(err->msg, part)))
        fail_msg("%s: message '%s' (code %d) lacks '%s'", what, err->msg, err->code, part);
}
