/*
 * gguf_write.c - see gguf_write.h.
 */
#include "load/gguf_write.h"

#include "engine/run.h"
#include "testing.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- the container */

static void put(struct sv_buf *b, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        sv_buf_append(b, &(char){(char)(v >> (8 * i))}, 1);
}

static void put_str(struct sv_buf *b, const char *s, size_t n)
{
    put(b, n, 8);
    sv_buf_append(b, s, n);
}

static void put_key(struct gguf_out *g, const char *key, uint32_t type)
{
    put_str(&g->kv, key, strlen(key));
    put(&g->kv, type, 4);
    g->n_kv++;
}

static void gguf_str(struct gguf_out *g, const char *key, const char *v)
{
    put_key(g, key, 8);
    put_str(&g->kv, v, strlen(v));
}

void gguf_init(struct gguf_out *g, const char *arch)
{
    memset(g, 0, sizeof *g);
    sv_buf_init(&g->kv), sv_buf_init(&g->info), sv_buf_init(&g->data);
    gguf_str(g, "general.architecture", arch);
}

void gguf_u32(struct gguf_out *g, const char *key, uint32_t v)
{
    put_key(g, key, 4);
    put(&g->kv, v, 4);
}

static void gguf_f32(struct gguf_out *g, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, 4);
    put_key(g, key, 6);
    put(&g->kv, bits, 4);
}

static void gguf_bool(struct gguf_out *g, const char *key, bool v)
{
    put_key(g, key, 7);
    put(&g->kv, v, 1);
}

static void put_array(struct gguf_out *g, const char *key, uint32_t type, uint64_t n)
{
    put_key(g, key, 9);
    put(&g->kv, type, 4);
    put(&g->kv, n, 8);
}

/* dim: the longest stride first, as directories have it. */
static void gguf_tensor(struct gguf_out *g, const char *name, int type, int32_t n_dims,
                        const int64_t *dim, const void *data, size_t n_bytes)
{
    while (g->data.len % 32)
        put(&g->data, 0, 1);
    put_str(&g->info, name, strlen(name));
    put(&g->info, (uint64_t)n_dims, 4);
    for (int32_t i = n_dims; i-- > 0;)
        put(&g->info, (uint64_t)dim[i], 8);
    put(&g->info, (uint64_t)type, 4);
    put(&g->info, g->data.len, 8);
    sv_buf_append(&g->data, data, n_bytes);
    g->n_tensors++;
}

void gguf_save(struct gguf_out *g, const char *path)
{
    struct sv_buf b;
    struct sv_err err;
    sv_buf_init(&b);
    sv_buf_lit(&b, "GGUF");
    put(&b, 3, 4);
    put(&b, g->n_tensors, 8);
    put(&b, g->n_kv, 8);
    sv_buf_append(&b, g->kv.data, g->kv.len);
    if (g->info.len)
        sv_buf_append(&b, g->info.data, g->info.len);
    while (b.len % 32)
        put(&b, 0, 1);
    if (g->data.len)
        sv_buf_append(&b, g->data.data, g->data.len);
    assert_int_equal(sv_file_write(path, b.data, b.len, &err), SV_OK);
    sv_buf_fini(&b), sv_buf_fini(&g->kv), sv_buf_fini(&g->info), sv_buf_fini(&g->data);
}

/* ---------------------------------------------------------------- tokenizers */

struct token {
    const char *text;
    size_t n;
    int type;
};

static void set_token(struct token *t, const char *text, size_t n, int type)
{
    *t = (struct token){text, n, type};
}

void gguf_tokenizer(struct gguf_out *g, const char *json_path, const char *pre, int32_t bos_id)
{
    enum { MAX = 1 << 16 };
    struct token *t = calloc(MAX, sizeof *t);
    json_t *root = json_load_file(json_path, 0, NULL), *item;
    json_t *model = json_object_get(root, "model"), *merges = json_object_get(model, "merges");
    const char *key;
    size_t i, n = 0;
    assert_non_null(root);
    json_object_foreach(json_object_get(model, "vocab"), key, item)
        set_token(&t[json_integer_value(item)], key, strlen(key), 1);
    json_array_foreach(json_object_get(root, "added_tokens"), i, item) {
        const json_t *text = json_object_get(item, "content");
        set_token(&t[json_integer_value(json_object_get(item, "id"))], json_string_value(text),
                  json_string_length(text), json_is_true(json_object_get(item, "special")) ? 3 : 4);
    }
    for (i = 0; i < MAX; i++)
        n = t[i].text ? i + 1 : n;
    gguf_str(g, "tokenizer.ggml.model", "gpt2");
    gguf_str(g, "tokenizer.ggml.pre", pre);
    put_array(g, "tokenizer.ggml.tokens", 8, n);
    for (i = 0; i < n; i++)
        put_str(&g->kv, t[i].text ? t[i].text : "[PAD]", t[i].text ? t[i].n : 5);
    put_array(g, "tokenizer.ggml.token_type", 5, n);
    for (i = 0; i < n; i++)
        put(&g->kv, t[i].text ? (uint64_t)t[i].type : 5, 4);
    put_array(g, "tokenizer.ggml.merges", 8, json_array_size(merges));
    json_array_foreach(merges, i, item) {
        struct sv_buf both;
        sv_buf_init(&both);
        if (json_is_array(item))
            sv_buf_printf(&both, "%s %s", json_string_value(json_array_get(item, 0)),
                          json_string_value(json_array_get(item, 1)));
        else
            sv_buf_printf(&both, "%s", json_string_value(item));
        put_str(&g->kv, both.data, both.len);
        sv_buf_fini(&both);
    }
    if (bos_id >= 0)
        gguf_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t)bos_id);
    json_decref(root);
    free(t);
}

/* ---------------------------------------------------------------- tensors of a directory */

struct from {
    struct gguf_out *g;
    const struct sv_config *c;
    const struct sv_ckpt *ckpt;
    bool tiled, shifted, both; /* both: gate and up of layer 0 in one tensor */
    bool by_head;              /* attn_k_b and attn_v_b in place of attn_kv_b */
};

static float number(const struct sv_host_tensor *t, int64_t i)
{
    const uint16_t h = ((const uint16_t *)t->data)[i];
    return t->dtype == SV_F32    ? ((const float *)t->data)[i]
           : t->dtype == SV_BF16 ? sv_bf16_to_f32(h)
                                 : sv_f16_to_f32(h);
}

/* Value heads of `unit` elements that follow the first ones: head j of group g goes to
 * j * groups + g. */
static void tile(const struct from *f, uint8_t *data, size_t first, size_t unit)
{
    const size_t groups = (size_t)f->c->gdn_k_heads, per = (size_t)f->c->gdn_v_heads / groups;
    uint8_t *copy = malloc(groups * per * unit), *at = data + first;
    if (!f->tiled) {
        free(copy);
        return;
    }
    for (size_t j = 0; j < per; j++)
        for (size_t k = 0; k < groups; k++)
            memcpy(copy + (j * groups + k) * unit, at + (k * per + j) * unit, unit);
    memcpy(at, copy, groups * per * unit);
    free(copy);
}

static bool ends(const char *s, const char *suffix)
{
    const size_t n = strlen(s), k = strlen(suffix);
    return n >= k && !strcmp(s + n - k, suffix);
}

/* Their name: what stands behind "layers.N.", or the whole. */
static const char *their(const char *name)
{
    static const char *const table[][2] = {
        {"embed_tokens.weight", "token_embd.weight"},
        {"norm.weight", "output_norm.weight"},
        {"lm_head.weight", "output.weight"},
        {"hidden_norm.weight", "enc.output_norm.weight"},
        {"fc.weight", "fc.weight"},
        {"input_layernorm.weight", "attn_norm.weight"},
        {"post_attention_layernorm.weight", "ffn_norm.weight"},
        {"self_attn.q_norm.weight", "attn_q_norm.weight"},
        {"self_attn.k_norm.weight", "attn_k_norm.weight"},
        {"self_attn.q_proj.weight", "attn_q.weight"},
        {"self_attn.k_proj.weight", "attn_k.weight"},
        {"self_attn.v_proj.weight", "attn_v.weight"},
        {"self_attn.o_proj.weight", "attn_output.weight"},
        {"self_attn.q_proj.bias", "attn_q.bias"},
        {"self_attn.k_proj.bias", "attn_k.bias"},
        {"self_attn.v_proj.bias", "attn_v.bias"},
        {"self_attn.o_proj.bias", "attn_output.bias"},
        {"self_attn.sinks", "attn_sinks.weight"},
        {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
        {"linear_attn.in_proj_z.weight", "attn_gate.weight"},
        {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
        {"linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
        {"linear_attn.in_proj_ba.weight", "ssm_ba.weight"},
        {"linear_attn.conv1d.weight", "ssm_conv1d.weight"},
        {"linear_attn.A_log", "ssm_a"},
        {"linear_attn.dt_bias", "ssm_dt.bias"},
        {"linear_attn.norm.weight", "ssm_norm.weight"},
        {"linear_attn.out_proj.weight", "ssm_out.weight"},
        {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
        {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
        {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
        {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
        {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
        {"self_attn.kv_b_proj.weight", "attn_kv_b.weight"},
        {"self_attn.k_b_proj.0.weight", "attn_k_b.weight"},
        {"self_attn.v_b_proj.0.weight", "attn_v_b.weight"},
        {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
        {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
        {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
        {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
        {"mlp.experts.0.gate_proj.weight", "ffn_gate_exps.weight"},
        {"mlp.experts.0.up_proj.weight", "ffn_up_exps.weight"},
        {"mlp.experts.0.down_proj.weight", "ffn_down_exps.weight"},
        {"mlp.experts.gate_proj.bias", "ffn_gate_exps.bias"},
        {"mlp.experts.up_proj.bias", "ffn_up_exps.bias"},
        {"mlp.experts.down_proj.bias", "ffn_down_exps.bias"},
        {"mlp.gate_proj.weight", "ffn_gate.weight"},
        {"mlp.up_proj.weight", "ffn_up.weight"},
        {"mlp.down_proj.weight", "ffn_down.weight"},
        {"mlp.gate.weight", "ffn_gate_inp.weight"},
        {"mlp.router.weight", "ffn_gate_inp.weight"},
        {"mlp.router.bias", "ffn_gate_inp.bias"},
        {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
        {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
        {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
        {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i][0], name))
            return table[i][1];
    return NULL;
}

static int type_of(enum sv_dtype t)
{
    return t == SV_F32 ? GGUF_F32 : t == SV_F16 ? GGUF_F16 : GGUF_BF16;
}

/* Vectors, convolutions and routers are F32, and have the numbers that a model computes with. */
static void put_numbers(const struct from *f, const char *to, const char *name,
                        const struct sv_host_tensor *t)
{
    const struct sv_config *c = f->c;
    const bool plain = !f->shifted || ends(name, "linear_attn.norm.weight");
    float *x = malloc((size_t)t->n_elements * sizeof *x);
    int64_t dim[2] = {t->dim[0], t->n_elements / t->dim[0]};
    for (int64_t i = 0; i < t->n_elements; i++) {
        x[i] = number(t, i);
        if (ends(name, "norm.weight") && !plain)
            x[i] += 1;
        if (ends(name, "A_log"))
            x[i] = -expf(x[i]);
    }
    if (ends(name, "A_log") || ends(name, "dt_bias"))
        tile(f, (uint8_t *)x, 0, sizeof *x);
    if (ends(name, "conv1d.weight"))
        tile(f, (uint8_t *)x, 2 * 4 * sizeof *x * (size_t)(c->gdn_k_heads * c->gdn_k_dim),
             4 * sizeof *x * (size_t)c->gdn_v_dim);
    if (ends(name, "shared_expert_gate.weight"))
        dim[0] = t->n_elements, dim[1] = 1;
    gguf_tensor(f->g, to, GGUF_F32, dim[1] > 1 ? 2 : 1, dim, x, (size_t)t->n_elements * sizeof *x);
    free(x);
}

static void put_matrix(const struct from *f, const char *to, const char *name,
                       const struct sv_host_tensor *t)
{
    const struct sv_config *c = f->c;
    const size_t row = t->n_bytes / (size_t)t->dim[0], elem = sv_dtype_bytes(t->dtype);
    const size_t head = (size_t)c->gdn_v_dim, keys = 2 * (size_t)(c->gdn_k_heads * c->gdn_k_dim);
    uint8_t *x = malloc(t->n_bytes);
    memcpy(x, t->data, t->n_bytes);
    if (ends(name, "in_proj_qkv.weight"))
        tile(f, x, keys * row, head * row);
    if (ends(name, "in_proj_z.weight"))
        tile(f, x, 0, head * row);
    if (ends(name, "in_proj_a.weight") || ends(name, "in_proj_b.weight"))
        tile(f, x, 0, row);
    for (int64_t r = 0; r < t->dim[0] && ends(name, "linear_attn.out_proj.weight"); r++)
        tile(f, x + (size_t)r * row, 0, head * elem);
    gguf_tensor(f->g, to, type_of(t->dtype), 2, t->dim, x, t->n_bytes);
    free(x);
}

/* Of each head the rows of its keys, transposed, and those of its values. */
static void put_heads(const struct from *f, int layer, const struct sv_host_tensor *t)
{
    const int64_t nh = f->c->n_heads, nope = f->c->nope_dim, v = f->c->v_dim, latent = t->dim[1];
    const size_t elem = sv_dtype_bytes(t->dtype), row = (size_t)latent * elem;
    uint8_t *x = malloc(t->n_bytes), *k = x, *values = x + (size_t)(nh * nope) * row;
    const uint8_t *in = t->data;
    char name[64];
    for (int64_t h = 0; h < nh; h++, in += (size_t)(nope + v) * row) {
        for (int64_t c = 0; c < latent; c++)
            for (int64_t r = 0; r < nope; r++, k += elem)
                memcpy(k, in + (size_t)r * row + (size_t)c * elem, elem);
        memcpy(values + (size_t)(h * v) * row, in + (size_t)nope * row, (size_t)v * row);
    }
    snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", layer);
    gguf_tensor(f->g, name, type_of(t->dtype), 3, (int64_t[]){nh, latent, nope}, x,
                (size_t)(nh * nope) * row);
    snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", layer);
    gguf_tensor(f->g, name, type_of(t->dtype), 3, (int64_t[]){nh, v, latent}, values,
                (size_t)(nh * v) * row);
    free(x);
}

/* Interleaved by key head: q, k, v, z of each. */
static void put_qkvz(const struct from *f, int layer, const struct sv_host_tensor *t)
{
    const struct sv_config *c = f->c;
    const int32_t nk = c->gdn_k_heads, per = c->gdn_v_heads / nk;
    const int32_t n[] = {c->gdn_k_dim, c->gdn_k_dim, per * c->gdn_v_dim, per * c->gdn_v_dim};
    const size_t row = t->n_bytes / (size_t)t->dim[0], all = (size_t)(n[0] + n[1] + n[2] + n[3]);
    uint8_t *x = malloc(t->n_bytes), *at = x;
    char name[64];
    size_t before = 0;
    for (int p = 0; p < 4; before += (size_t)n[p++])
        for (int32_t h = 0; h < nk; h++, at += (size_t)n[p] * row)
            memcpy(at, (const uint8_t *)t->data + ((size_t)h * all + before) * row,
                   (size_t)n[p] * row);
    const int64_t z = (int64_t)nk * n[3], qkv[2] = {t->dim[0] - z, t->dim[1]};
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    gguf_tensor(f->g, name, type_of(t->dtype), 2, qkv, x, (size_t)qkv[0] * row);
    snprintf(name, sizeof name, "blk.%d.attn_gate.weight", layer);
    gguf_tensor(f->g, name, type_of(t->dtype), 2, (int64_t[]){z, t->dim[1]},
                x + (size_t)qkv[0] * row, (size_t)z * row);
    free(x);
}

/* ---------------------------------------------------------------- experts */

static const struct sv_host_tensor *find(const struct from *f, int layer, const char *fmt, int e)
{
    char part[64], name[96];
    snprintf(part, sizeof part, fmt, e);
    snprintf(name, sizeof name, "layers.%d.mlp.experts.%s", layer, part);
    return sv_ckpt_find(f->ckpt, name);
}

static void stack(const struct from *f, int layer, const char *what, int type, int64_t rows,
                  int64_t cols, const struct sv_buf *b)
{
    char name[96];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, what);
    gguf_tensor(f->g, name, type, 3, (int64_t[]){f->c->n_experts, rows, cols}, b->data, b->len);
}

/* One tensor an expert, or all of a layer in two, gate rows first. */
static void put_experts(const struct from *f, int layer)
{
    static const char *const apart[] = {"%d.gate_proj.weight", "%d.up_proj.weight",
                                        "%d.down_proj.weight"};
    static const char *const to[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    const struct sv_host_tensor *gu = find(f, layer, "gate_up_proj", 0), *t = gu;
    const int64_t inter = f->c->moe_intermediate_size, hidden = f->c->hidden_size;
    const bool both = gu && f->both && layer == 0;
    for (int k = both ? 2 : 0; k < 3; k++) {
        struct sv_buf b;
        sv_buf_init(&b);
        for (int e = 0; e < f->c->n_experts; e++) {
            t = gu ? (k == 2 ? find(f, layer, "down_proj", 0) : gu) : find(f, layer, apart[k], e);
            const size_t one = (size_t)(inter * hidden) * sv_dtype_bytes(t->dtype);
            const size_t at = gu ? (k == 2 ? (size_t)e : 2 * (size_t)e + (size_t)k) * one : 0;
            sv_buf_append(&b, (const char *)t->data + at, one);
        }
        stack(f, layer, to[k], type_of(t->dtype), k == 2 ? hidden : inter, k == 2 ? inter : hidden,
              &b);
        sv_buf_fini(&b);
    }
    if (both) {
        struct sv_buf b = {.data = (char *)(uintptr_t)gu->data, .len = gu->n_bytes};
        stack(f, layer, "ffn_gate_up_exps", type_of(gu->dtype), 2 * inter, hidden, &b);
    }
}

/* gpt-oss: MXFP4, gate and up in turn; here apart, and with the first half of a block in the low
 * nibbles. */
static void put_blocks(const struct from *f, int layer)
{
    static const char *const to[] = {"gate", "up", "down"};
    for (int k = 0; k < 3; k++) {
        const char *from = k == 2 ? "down_proj" : "gate_up_proj";
        char name[64];
        snprintf(name, sizeof name, "%s_blocks", from);
        const struct sv_host_tensor *t = find(f, layer, name, 0), *s, *bias;
        snprintf(name, sizeof name, "%s_scales", from);
        s = find(f, layer, name, 0);
        snprintf(name, sizeof name, "%s_bias", from);
        bias = find(f, layer, name, 0);
        const int64_t step = k == 2 ? 1 : 2, n_rows = t->dim[0] * t->dim[1], per = t->dim[2];
        float *x = malloc((size_t)n_rows * sizeof *x);
        struct sv_buf b;
        int64_t n = 0;
        sv_buf_init(&b);
        for (int64_t r = k % 2; r < n_rows; r += step) {
            x[n++] = number(bias, r);
            for (int64_t i = r * per; i < (r + 1) * per; i++) {
                const uint8_t *in = (const uint8_t *)t->data + i * 16;
                uint8_t code[32], out[17] = {((const uint8_t *)s->data)[i]};
                for (int j = 0; j < 16; j++)
                    code[2 * j] = in[j] & 15, code[2 * j + 1] = in[j] >> 4;
                for (int j = 0; j < 16; j++)
                    out[1 + j] = (uint8_t)(code[j] | code[16 + j] << 4);
                sv_buf_append(&b, out, 17);
            }
        }
        snprintf(name, sizeof name, "ffn_%s_exps", to[k]);
        stack(f, layer, name, GGUF_MXFP4, t->dim[1] / step, per * 32, &b);
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.bias", layer, to[k]);
        gguf_tensor(f->g, name, GGUF_F32, 2, (int64_t[]){t->dim[0], t->dim[1] / step}, x,
                    (size_t)n * sizeof *x);
        sv_buf_fini(&b);
        free(x);
    }
}

static void put_one(const struct from *f, const struct sv_host_tensor *t)
{
    int layer = -1, at = 0;
    char name[96];
    const bool in_layer = sscanf(t->name, "layers.%d.%n", &layer, &at) == 1;
    const char *rest = in_layer ? t->name + at : t->name;
    if (!strncmp(rest, "mtp.", 4) || !strncmp(rest, "visual.", 7) || strstr(rest, "mlp.experts.") ||
        layer >= f->c->n_layers)
        return;
    if (f->by_head && ends(rest, "kv_b_proj.weight")) {
        put_heads(f, layer, t);
        return;
    }
    if (ends(rest, "in_proj_qkvz.weight")) {
        put_qkvz(f, layer, t);
        return;
    }
    const char *to = their(rest);
    if (!to)
        fail_msg("no GGUF name for %s", t->name);
    if (in_layer && !strcmp(to, "ffn_norm.weight") &&
        (f->shifted || strstr(sv_arch_name(f->c->arch), "Oss")))
        to = "post_attention_norm.weight";
    if (in_layer)
        snprintf(name, sizeof name, "blk.%d.%s", layer, to);
    else
        snprintf(name, sizeof name, "%s", to);
    if (t->n_dims != 2 || strstr(to, "ffn_gate_inp"))
        put_numbers(f, name, rest, t);
    else
        put_matrix(f, name, rest, t);
}

/* ---------------------------------------------------------------- configurations */

static const char *key(const char *arch, const char *name)
{
    static char buf[96];
    snprintf(buf, sizeof buf, "%s.%s", arch, name);
    return buf;
}

/* Latent attention, and the router of DeepSeek-V3. */
static void put_latent(struct gguf_out *g, const struct sv_config *c, const char *a, bool by_head)
{
    int32_t n_dense = 0;
    while (n_dense < c->n_layers && !c->layer_moe[n_dense])
        n_dense++;
    const struct {
        const char *name;
        int32_t v;
    } sizes[] = {{"attention.head_count_kv", by_head ? 1 : c->n_heads},
                 {"attention.key_length", by_head ? c->kv_lora_rank + c->rot_dim : c->head_dim},
                 {"attention.value_length", by_head ? c->kv_lora_rank : c->v_dim},
                 {"attention.key_length_mla", by_head ? c->head_dim : 0},
                 {"attention.value_length_mla", by_head ? c->v_dim : 0},
                 {"attention.q_lora_rank", c->q_lora_rank},
                 {"attention.kv_lora_rank", c->kv_lora_rank},
                 {"leading_dense_block_count", n_dense},
                 {"expert_shared_count", c->shared_intermediate_size / c->moe_intermediate_size},
                 {"expert_group_count", c->n_group},
                 {"expert_group_used_count", c->topk_group},
                 {"expert_gating_func", 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].v)
            gguf_u32(g, key(a, sizes[i].name), (uint32_t)sizes[i].v);
    gguf_f32(g, key(a, "expert_weights_scale"), c->routed_scale);
    gguf_bool(g, key(a, "expert_weights_norm"), c->norm_topk);
    if (c->rope.kind == SV_ROPE_YARN)
        gguf_f32(g, key(a, "rope.scaling.yarn_log_multiplier"),
                 (float)(0.1 * c->rope.mscale_all_dim));
}

static void put_config(struct gguf_out *g, const struct sv_config *c, const char *a, int n_extra)
{
    const bool latent = c->kv_lora_rank;
    int32_t interval = 0; /* of hybrids: every so many layers is attention */
    while (c->gdn_k_heads && c->layer_kind[interval] == SV_LAYER_GDN)
        interval++;
    interval += c->gdn_k_heads > 0;
    const struct {
        const char *name;
        int32_t v;
    } sizes[] = {{"block_count", c->n_layers + n_extra},
                 {"nextn_predict_layers", n_extra},
                 {"context_length", c->max_position},
                 {"embedding_length", c->hidden_size},
                 {"feed_forward_length", c->intermediate_size},
                 {"attention.head_count", c->n_heads},
                 {"attention.head_count_kv", latent ? 0 : c->n_kv_heads},
                 {"attention.key_length", latent ? 0 : c->head_dim},
                 {"attention.value_length", latent ? 0 : c->head_dim},
                 {"rope.dimension_count", c->rot_dim},
                 {"attention.sliding_window", c->sliding_window},
                 {"expert_count", c->n_experts},
                 {"expert_used_count", c->n_experts ? c->n_chosen : 0},
                 {"expert_feed_forward_length", c->n_experts ? c->moe_intermediate_size : 0},
                 {"expert_shared_feed_forward_length", latent ? 0 : c->shared_intermediate_size},
                 {"ssm.conv_kernel", c->gdn_k_heads ? 4 : 0},
                 {"ssm.state_size", c->gdn_k_dim},
                 {"ssm.group_count", c->gdn_k_heads},
                 {"ssm.time_step_rank", c->gdn_v_heads},
                 {"ssm.inner_size", c->gdn_v_heads * c->gdn_v_dim},
                 {"full_attention_interval", interval}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].v)
            gguf_u32(g, key(a, sizes[i].name), (uint32_t)sizes[i].v);
    gguf_f32(g, key(a, "attention.layer_norm_rms_epsilon"), c->rms_eps);
    gguf_f32(g, key(a, "rope.freq_base"), (float)c->rope.theta);
    if (c->rope.kind == SV_ROPE_YARN) {
        gguf_str(g, key(a, "rope.scaling.type"), "yarn");
        gguf_f32(g, key(a, "rope.scaling.factor"), (float)c->rope.factor);
        gguf_u32(g, key(a, "rope.scaling.original_context_length"),
                 (uint32_t)c->rope.original_max_position);
        gguf_f32(g, key(a, "rope.scaling.yarn_beta_fast"), (float)c->rope.beta_fast);
        gguf_f32(g, key(a, "rope.scaling.yarn_beta_slow"), (float)c->rope.beta_slow);
    }
    gguf_u32(g, key(a, "vocab_size"), (uint32_t)c->vocab_size);
    for (int32_t i = 0; i < c->n_eos && i < 2; i++) /* no token list */
        gguf_u32(g, i ? "tokenizer.ggml.eot_token_id" : "tokenizer.ggml.eos_token_id",
                 (uint32_t)c->eos_ids[i]);
    if (c->bos_id >= 0)
        gguf_u32(g, "tokenizer.ggml.bos_token_id", (uint32_t)c->bos_id);
}

static void put_draft(struct gguf_out *g, const struct sv_draft_config *d)
{
    bool slides = false;
    gguf_u32(g, "dflash.block_size", (uint32_t)d->block_size);
    gguf_u32(g, "dflash.target_hidden_size", (uint32_t)d->base.hidden_size);
    gguf_u32(g, "tokenizer.ggml.mask_token_id", (uint32_t)d->mask_id);
    put_array(g, "dflash.target_layers", 5, (uint64_t)d->n_taps);
    for (int32_t i = 0; i < d->n_taps; i++) /* the layer whose input it is */
        put(&g->kv, (uint64_t)d->taps[i] + 1, 4);
    for (int32_t i = 0; i < d->base.n_layers; i++)
        slides |= d->base.layer_kind[i] == SV_LAYER_SLIDING;
    if (!slides)
        return;
    put_array(g, "dflash.attention.sliding_window_pattern", 7, (uint64_t)d->base.n_layers);
    for (int32_t i = 0; i < d->base.n_layers; i++)
        put(&g->kv, d->base.layer_kind[i] == SV_LAYER_SLIDING, 1);
}

static const char *arch_of(const char *architecture)
{
    static const char *const table[][2] = {
        {"Qwen3ForCausalLM", "qwen3"},         {"Qwen3MoeForCausalLM", "qwen3moe"},
        {"Qwen3NextForCausalLM", "qwen3next"}, {"Qwen3_5MoeForConditionalGeneration", "qwen35moe"},
        {"GptOssForCausalLM", "gpt-oss"},      {"DFlashDraftModel", "dflash"},
        {"DeepseekV3ForCausalLM", "deepseek2"}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (!strcmp(table[i][0], architecture))
            return table[i][1];
    fail_msg("no GGUF architecture for %s", architecture);
    return NULL;
}

static const char *write_dir(const char *dir, bool old)
{
    static int number;
    struct sv_draft_config d;
    struct sv_ckpt ckpt;
    struct gguf_out g;
    struct sv_err err = {0};
    char path[32];
    const bool draft = sv_dir_is_draft(dir);
    if (draft ? sv_draft_config_load(&d, dir, 0, &err) : sv_config_load(&d.base, dir, &err))
        fail_msg("%s", err.msg);
    if (sv_ckpt_open(&ckpt, dir, &err))
        fail_msg("%s", err.msg);
    const char *a = arch_of(sv_arch_name(d.base.arch));
    const bool moe35 = !strcmp(a, "qwen35moe"), latent = !strcmp(a, "deepseek2");
    const bool by_head = latent && !old, extra = moe35 || by_head;
    const struct from f = {.g = &g,
                           .c = &d.base,
                           .ckpt = &ckpt,
                           .tiled = moe35,
                           .shifted = d.base.gdn_k_heads > 0,
                           .both = moe35,
                           .by_head = by_head};
    gguf_init(&g, a);
    put_config(&g, &d.base, a, extra);
    if (latent)
        put_latent(&g, &d.base, a, by_head);
    if (draft)
        put_draft(&g, &d);
    for (int32_t i = 0; i < ckpt.n_tensors; i++)
        put_one(&f, &ckpt.tensors[i]);
    for (int i = 0; i < d.base.n_layers; i++) {
        if (!d.base.layer_moe[i])
            continue;
        if (d.base.mxfp4_experts)
            put_blocks(&f, i);
        else
            put_experts(&f, i);
    }
    if (extra) { /* a layer that predicts further tokens */
        snprintf(path, sizeof path, "blk.%d.nextn.eh_proj.weight", d.base.n_layers);
        gguf_tensor(&g, path, GGUF_F32, 1, (int64_t[]){4}, (float[]){1, 2, 3, 4}, 16);
    }
    sv_ckpt_close(&ckpt);
    snprintf(path, sizeof path, "of_dir%d.gguf", number++);
    const char *file = run_keep(sv_test_tmp(path));
    gguf_save(&g, file);
    return file;
}

const char *gguf_of_dir(const char *dir)
{
    return write_dir(dir, false);
}

const char *gguf_of_dir_old(const char *dir)
{
    return write_dir(dir, true);
}

/* ---------------------------------------------------------------- random models */

struct random {
    struct gguf_out *g;
    const struct sv_config *c;
    const int *types;
    int n_types, n_put;
    bool values, ba; /* ba: b and a in one tensor */
    struct sv_rng rng;
};

static enum sv_quant_code code_of(int type)
{
    return type == 2    ? SV_CODE_Q4_0
           : type == 8  ? SV_CODE_Q8_0
           : type == 12 ? SV_CODE_Q4_K
           : type == 13 ? SV_CODE_Q5_K
           : type == 14 ? SV_CODE_Q6_K
           : type == 20 ? SV_CODE_IQ4_NL
                        : SV_CODE_GG_MXFP4;
}

/* Scales that keep values small; all other bits are random. */
static void set_scales(enum sv_quant_code code, uint8_t *block)
{
    static const struct {
        enum sv_quant_code code;
        int at, n;
        uint8_t byte[4];
    } table[] = {{SV_CODE_Q4_0, 0, 2, {0x00, 0x1c}},
                 {SV_CODE_Q8_0, 0, 2, {0x00, 0x0c}},
                 {SV_CODE_Q4_K, 0, 4, {0x40, 0x02, 0x80, 0x0a}},
                 {SV_CODE_Q5_K, 0, 4, {0x30, 0x01, 0x80, 0x0a}},
                 {SV_CODE_Q6_K, 208, 2, {0x10, 0x01}},
                 {SV_CODE_IQ4_NL, 0, 2, {0x00, 0x0c}},
                 {SV_CODE_GG_MXFP4, 0, 1, {121}}};
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].code == code)
            memcpy(block + table[i].at, table[i].byte, (size_t)table[i].n);
}

/* n matrices (rows, cols) of random codes, or of their values. */
static void put_codes(struct random *r, const char *name, int32_t n_dims, const int64_t *dim,
                      int type)
{
    const enum sv_quant_code code = code_of(type);
    const int64_t cols = dim[n_dims - 1], rows = dim[0] * (n_dims > 2 ? dim[1] : 1);
    const size_t block = (size_t)sv_quant_block_bytes(code),
                 n_blocks = (size_t)(rows * cols / sv_quant_block(code));
    uint8_t *data = malloc(n_blocks * block);
    for (size_t i = 0; i < n_blocks * block; i++)
        data[i] = (uint8_t)sv_rng_next(&r->rng);
    for (size_t i = 0; i < n_blocks; i++)
        set_scales(code, data + i * block);
    const struct sv_quant q = {
        .code = code, .rows = (int32_t)rows, .cols = (int32_t)cols, .data = data};
    float *x = malloc((size_t)(rows * cols) * sizeof *x);
    sv_quant_rows(&q, 0, q.rows, x);
    if (r->values)
        gguf_tensor(r->g, name, GGUF_F32, n_dims, dim, x, (size_t)(rows * cols) * sizeof *x);
    else
        gguf_tensor(r->g, name, type, n_dims, dim, data, n_blocks * block);
    free(x);
    free(data);
}

static void put_random_numbers(struct random *r, const char *name, const char *rest, int32_t n_dims,
                               const int64_t *dim)
{
    const int64_t n = dim[0] * (n_dims > 1 ? dim[1] : 1);
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = 0.1f * sv_rng_normal(&r->rng);
        if (ends(rest, "norm.weight"))
            x[i] += 1;
        if (ends(rest, "A_log"))
            x[i] = -expf(x[i]);
    }
    gguf_tensor(r->g, name, GGUF_F32, n_dims, dim, x, (size_t)n * sizeof *x);
    free(x);
}

static int put_random(void *user, const struct sv_tensor_spec *s)
{
    struct random *r = user;
    int layer = -1, at = 0, n_dims = 0;
    char name[96];
    const bool in_layer = sscanf(s->name, "layers.%d.%n", &layer, &at) == 1;
    const char *rest = in_layer ? s->name + at : s->name, *to = their(rest);
    int64_t dim[3];
    if (s->expert > 0 || (r->ba && ends(rest, "in_proj_a.weight")))
        return SV_OK; /* with the first one */
    const bool both = r->ba && ends(rest, "in_proj_b.weight");
    to = both ? "ssm_ba.weight" : to;
    if (!to)
        fail_msg("no GGUF name for %s", s->name);
    if (in_layer && !strcmp(to, "ffn_norm.weight") &&
        (r->c->gdn_k_heads || strstr(sv_arch_name(r->c->arch), "Oss")))
        to = "post_attention_norm.weight";
    if (in_layer)
        snprintf(name, sizeof name, "blk.%d.%s", layer, to);
    else
        snprintf(name, sizeof name, "%s", to);
    if (s->expert == 0)
        dim[n_dims++] =
            s->role == SV_ROLE_K_UP || s->role == SV_ROLE_V_UP ? r->c->n_heads : r->c->n_experts;
    if (s->n_experts)
        dim[n_dims++] = s->n_experts;
    dim[n_dims++] = s->rows * (both ? 2 : 1);
    if (s->cols && s->role != SV_ROLE_SHARED_ROUTER)
        dim[n_dims++] = s->cols;
    if (s->role == SV_ROLE_SHARED_ROUTER)
        dim[0] = s->cols;
    if (s->cols <= 4 || s->role == SV_ROLE_ROUTER || s->role == SV_ROLE_SHARED_ROUTER) {
        put_random_numbers(r, name, rest, n_dims, dim);
        return SV_OK;
    }
    int type = r->types[r->n_put++ % r->n_types];
    if (s->cols % sv_quant_block(code_of(type)))
        type = GGUF_Q8_0;
    put_codes(r, name, n_dims, dim, type);
    return SV_OK;
}

const char *gguf_random(const char *config, const int *types, int n_types, bool values)
{
    static int number;
    struct sv_config c;
    struct gguf_out g;
    struct sv_err err = {0};
    char path[32];
    if (sv_config_parse(&c, config, strlen(config), &err))
        fail_msg("%s", err.msg);
    c.gdn_fused = c.packed_experts = false;
    c.kv_by_head = c.kv_lora_rank;
    const char *a = arch_of(sv_arch_name(c.arch));
    struct random r = {.g = &g,
                       .c = &c,
                       .types = types,
                       .n_types = n_types,
                       .values = values,
                       .ba = !strcmp(a, "qwen3next"),
                       .rng = {7}};
    gguf_init(&g, a);
    put_config(&g, &c, a, 0);
    if (c.kv_lora_rank)
        put_latent(&g, &c, a, true);
    sv_config_each_tensor(&c, 0, put_random, &r);
    snprintf(path, sizeof path, "random%d.gguf", number++);
    const char *file = run_keep(sv_test_tmp(path));
    gguf_save(&g, file);
    return file;
}
