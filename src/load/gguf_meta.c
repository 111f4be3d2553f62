/*
 * gguf_meta.c - metadata of a GGUF file that is written: keys of a configuration, of a directory's
 * tokenizer and of its chat template.
 *
 * Called by quantize_gguf.c. The reverse of gguf_config.c and gguf_text.c, which read the file
 * later. Must not: silently omit what changes tokens or text; settings without a key in GGUF are
 * refused.
 */
#include "load/gguf.h"

#include "backend/ops_gdn.h"
#include "token/token.h"

#include <string.h>

#define TOKENIZER_MAX_BYTES (256u << 20)
#define TEMPLATE_MAX_BYTES (4u << 20)

enum token_type { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

/* ---------------------------------------------------------------- keys */

void sv_gguf_put(struct sv_buf *b, uint64_t v, int n_bytes)
{
    uint8_t le[8];
    for (int i = 0; i < n_bytes; i++)
        le[i] = (uint8_t)(v >> (8 * i));
    sv_buf_append(b, le, (size_t)n_bytes);
}

void sv_gguf_put_text(struct sv_buf *b, const char *s, size_t n)
{
    sv_gguf_put(b, n, 8);
    sv_buf_append(b, s, n);
}

static void put_key(struct sv_gguf_meta *m, const char *key, enum sv_gguf_type type)
{
    sv_gguf_put_text(&m->kv, key, strlen(key));
    sv_gguf_put(&m->kv, (uint64_t)type, 4);
    m->n++;
}

static void put_array(struct sv_gguf_meta *m, const char *key, enum sv_gguf_type type, uint64_t n)
{
    put_key(m, key, SV_GGUF_ARRAY);
    sv_gguf_put(&m->kv, (uint64_t)type, 4);
    sv_gguf_put(&m->kv, n, 8);
}

static void put_u32(struct sv_gguf_meta *m, const char *key, int64_t v)
{
    put_key(m, key, SV_GGUF_U32);
    sv_gguf_put(&m->kv, (uint64_t)v, 4);
}

static void put_f32(struct sv_gguf_meta *m, const char *key, float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_key(m, key, SV_GGUF_F32);
    sv_gguf_put(&m->kv, bits, 4);
}

static void put_bool(struct sv_gguf_meta *m, const char *key, bool v)
{
    put_key(m, key, SV_GGUF_BOOL);
    sv_gguf_put(&m->kv, v, 1);
}

static void put_str(struct sv_gguf_meta *m, const char *key, const char *s, size_t n)
{
    put_key(m, key, SV_GGUF_STRING);
    sv_gguf_put_text(&m->kv, s, n);
}

/* ARCH.NAME */
static const char *key_of(const struct sv_gguf_family *f, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s.%s", f->arch, name);
    return buf;
}

/* ---------------------------------------------------------------- the configuration */

/* Interval of a hybrid's layers with full attention; 0: irregular. */
static int32_t attention_interval(const struct sv_config *c)
{
    int32_t n = 0;
    while (n < c->n_layers && c->layer_kind[n] == SV_LAYER_GDN)
        n++;
    for (int32_t i = 0; i < c->n_layers; i++)
        if ((c->layer_kind[i] == SV_LAYER_GDN) != ((i + 1) % (n + 1) != 0))
            return 0;
    return n + 1;
}

static int32_t n_dense(const struct sv_config *c)
{
    int32_t n = 0;
    while (n < c->n_layers && !c->layer_moe[n])
        n++;
    return n;
}

/* Layers as the family's readers expect them. */
static const char *bad_layer(const struct sv_gguf_family *f, const struct sv_config *c, int32_t i)
{
    const bool slides = c->layer_kind[i] == SV_LAYER_SLIDING;
    if (slides && !f->slides)
        return "sliding layers";
    if (f->whole_ramp && slides != (i % 2 == 0))
        return "sliding layers in another order than every other one";
    return f->experts && !c->layer_moe[i] && (!f->latent || i > n_dense(c))
               ? "dense layers beside those with experts"
               : NULL;
}

static int check(const struct sv_gguf_family *f, const struct sv_config *c, struct sv_err *err)
{
    const struct sv_rope *r = &c->rope;
    const char *why = NULL;
    for (int32_t i = 0; i < c->n_layers && !why; i++)
        why = bad_layer(f, c, i);
    if (f->experts && !f->latent && !f->whole_ramp && !c->norm_topk)
        why = "experts whose weights do not add up to one (norm_topk_prob)";
    if (f->whole_ramp && c->expert_limit != 7)
        why = "a swiglu_limit other than 7";
    if (f->hybrid && !attention_interval(c))
        why = "layers of full attention at uneven distances";
    if (f->latent && (c->attention_bias || !c->rope_interleaved))
        why = c->attention_bias ? "biases of attention" : "rotary pairs that are no neighbours";
    if (r->kind == SV_ROPE_YARN &&
        (r->attention_factor > 0 || (f->latent ? r->mscale != r->mscale_all_dim : r->mscale > 0)))
        why = "an attention_factor or mscale of YaRN";
    if (r->kind == SV_ROPE_LLAMA3 && c->rot_dim / 2 > SV_MAX_ROPE_FACTORS)
        why = "llama3 scaling of so large heads";
    if ((double)(float)r->theta != r->theta)
        why = "a rope_theta that is no f32 number";
    if (c->n_eos > 3)
        why = "more than three end-of-text ids";
    return why ? sv_fail(err, SV_EUNSUPPORTED, -1, "GGUF of '%s' has no place for %s", f->arch, why)
               : SV_OK;
}

static void put_rope(struct sv_gguf_meta *m, const struct sv_gguf_family *f,
                     const struct sv_rope *r)
{
    const bool yarn = r->kind == SV_ROPE_YARN;
    const char *type = yarn ? "yarn" : "linear";
    char key[128];
    put_f32(m, key_of(f, "rope.freq_base", key), (float)r->theta);
    if (!yarn && r->kind != SV_ROPE_LINEAR)
        return;
    put_str(m, key_of(f, "rope.scaling.type", key), type, strlen(type));
    put_f32(m, key_of(f, "rope.scaling.factor", key), (float)r->factor);
    if (!yarn)
        return;
    put_u32(m, key_of(f, "rope.scaling.original_context_length", key), r->original_max_position);
    if (r->beta_fast > 0)
        put_f32(m, key_of(f, "rope.scaling.yarn_beta_fast", key), (float)r->beta_fast);
    if (r->beta_slow > 0)
        put_f32(m, key_of(f, "rope.scaling.yarn_beta_slow", key), (float)r->beta_slow);
    if (r->no_truncate)
        put_bool(m, key_of(f, "rope.scaling.yarn_truncate", key), false);
    if (f->latent && r->mscale_all_dim > 0)
        put_f32(m, key_of(f, "rope.scaling.yarn_log_multiplier", key),
                (float)(0.1 * r->mscale_all_dim));
}

struct size {
    const char *name;
    int32_t v;
};

static void put_sizes(struct sv_gguf_meta *m, const struct sv_gguf_family *f,
                      const struct size *sizes, size_t n)
{
    char key[128];
    for (size_t i = 0; i < n; i++)
        if (sizes[i].v)
            put_u32(m, key_of(f, sizes[i].name, key), sizes[i].v);
}

/* Latent attention with keys and values together, and its router. */
static void put_latent(struct sv_gguf_meta *m, const struct sv_gguf_family *f,
                       const struct sv_config *c)
{
    const struct size sizes[] = {
        {"attention.q_lora_rank", c->q_lora_rank},
        {"attention.kv_lora_rank", c->kv_lora_rank},
        {"leading_dense_block_count", n_dense(c)},
        {"expert_shared_count", c->shared_intermediate_size / c->moe_intermediate_size},
        {"expert_group_count", c->n_group},
        {"expert_group_used_count", c->topk_group},
        {"expert_gating_func", 2}};
    char key[128];
    put_sizes(m, f, sizes, sizeof sizes / sizeof sizes[0]);
    put_f32(m, key_of(f, "expert_weights_scale", key), c->routed_scale);
    put_bool(m, key_of(f, "expert_weights_norm", key), c->norm_topk);
}

static void put_hybrid(struct sv_gguf_meta *m, const struct sv_gguf_family *f,
                       const struct sv_config *c)
{
    const struct size sizes[] = {{"expert_shared_feed_forward_length", c->shared_intermediate_size},
                                 {"ssm.conv_kernel", SV_GDN_TAPS},
                                 {"ssm.state_size", c->gdn_k_dim},
                                 {"ssm.group_count", c->gdn_k_heads},
                                 {"ssm.time_step_rank", c->gdn_v_heads},
                                 {"ssm.inner_size", c->gdn_v_heads * c->gdn_v_dim},
                                 {"full_attention_interval", attention_interval(c)}};
    char key[128];
    put_sizes(m, f, sizes, sizeof sizes / sizeof sizes[0]);
    if (!c->mrope_section[0])
        return;
    put_array(m, key_of(f, "rope.dimension_sections", key), SV_GGUF_I32, 4);
    for (int i = 0; i < 4; i++)
        sv_gguf_put(&m->kv, i < 3 ? (uint64_t)c->mrope_section[i] : 0, 4);
}

int sv_gguf_put_config(struct sv_gguf_meta *m, const struct sv_gguf_family *f,
                       const struct sv_config *c, const char *name, struct sv_err *err)
{
    const struct size sizes[] = {
        {"block_count", c->n_layers},
        {"context_length", c->max_position},
        {"embedding_length", c->hidden_size},
        {"feed_forward_length", c->intermediate_size},
        {"attention.head_count", c->n_heads},
        {"attention.head_count_kv", f->latent ? c->n_heads : c->n_kv_heads},
        {"attention.key_length", c->head_dim},
        {"attention.value_length", f->latent ? c->v_dim : c->head_dim},
        {"attention.sliding_window", c->sliding_window},
        {"rope.dimension_count", c->rot_dim},
        {"vocab_size", c->vocab_size},
        {"expert_count", c->n_experts},
        {"expert_used_count", c->n_experts ? c->n_chosen : 0},
        {"expert_feed_forward_length", c->n_experts ? c->moe_intermediate_size : 0}};
    char key[128];
    const int rc = check(f, c, err);
    if (rc)
        return rc;
    put_str(m, "general.architecture", f->arch, strlen(f->arch));
    put_str(m, "general.name", name, strlen(name));
    put_u32(m, "general.quantization_version", 2);
    put_sizes(m, f, sizes, sizeof sizes / sizeof sizes[0]);
    put_f32(m, key_of(f, "attention.layer_norm_rms_epsilon", key), c->rms_eps);
    put_rope(m, f, &c->rope);
    if (f->latent)
        put_latent(m, f, c);
    if (f->hybrid)
        put_hybrid(m, f, c);
    return SV_OK;
}

int sv_gguf_put_draft(struct sv_gguf_meta *m, const struct sv_draft_config *d, struct sv_err *err)
{
    const struct sv_config *c = &d->base;
    for (int32_t i = 0; i < c->n_layers; i++)
        if (d->causal[i] != (c->layer_kind[i] == SV_LAYER_SLIDING))
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           "GGUF of 'dflash' has no place for full layers that are causal, or "
                           "sliding ones that are not");
    put_u32(m, "dflash.block_size", d->block_size);
    put_u32(m, "dflash.target_hidden_size", c->hidden_size);
    put_u32(m, "tokenizer.ggml.mask_token_id", d->mask_id);
    put_array(m, "dflash.target_layers", SV_GGUF_I32, (uint64_t)d->n_taps);
    for (int32_t i = 0; i < d->n_taps; i++) /* the layer whose input it is */
        sv_gguf_put(&m->kv, (uint64_t)d->taps[i] + 1, 4);
    if (!c->sliding_window)
        return SV_OK;
    put_array(m, "dflash.attention.sliding_window_pattern", SV_GGUF_BOOL, (uint64_t)c->n_layers);
    for (int32_t i = 0; i < c->n_layers; i++)
        sv_gguf_put(&m->kv, c->layer_kind[i] == SV_LAYER_SLIDING, 1);
    return SV_OK;
}

/* ---------------------------------------------------------------- the tokenizer */

struct text {
    struct sv_gguf_meta *m;
    const struct sv_config *c;
    const char *dir;
    json_t *json, *config; /* tokenizer.json and tokenizer_config.json */
    struct sv_tokenizer *tok;
    const char **token; /* (vocab_size), NULL: none */
    uint8_t *type;
    struct sv_err *err;
};

static int set_token(const struct text *t, const char *s, const json_t *id, enum token_type type)
{
    const json_int_t at = json_is_integer(id) ? json_integer_value(id) : -1;
    if (!s || at < 0 || at >= t->c->vocab_size)
        return sv_fail(t->err, SV_EMISMATCH, -1,
                       "%s: tokenizer.json: token '%.60s' has no id below the model's %d tokens",
                       t->dir, s ? s : "?", t->c->vocab_size);
    t->token[at] = s;
    t->type[at] = (uint8_t)type;
    return SV_OK;
}

/* Refuses added tokens that are not matched word for word: GGUF has no key. */
static int set_added(const struct text *t, const json_t *added)
{
    static const char *const lost[] = {"lstrip", "rstrip", "single_word", "normalized"};
    const char *s = json_string_value(json_object_get(added, "content"));
    for (int i = 0; i < 4; i++)
        if (json_is_true(json_object_get(added, lost[i])))
            return sv_fail(t->err, SV_EUNSUPPORTED, -1,
                           "%s: tokenizer.json: GGUF does not keep '%s' of the added token '%.60s'",
                           t->dir, lost[i], s ? s : "?");
    return set_token(t, s, json_object_get(added, "id"),
                     json_is_true(json_object_get(added, "special")) ? CONTROL : USER_DEFINED);
}

static int find_tokens(struct text *t)
{
    const size_t n = (size_t)t->c->vocab_size;
    const char *s;
    json_t *v;
    size_t i;
    int rc = SV_OK;
    t->token = sv_calloc(n, sizeof *t->token);
    t->type = sv_calloc(n, 1);
    if (!t->token || !t->type)
        return sv_fail(t->err, SV_ENOMEM, -1, "no memory for %zu tokens", n);
    json_object_foreach(json_object_get(json_object_get(t->json, "model"), "vocab"), s, v)
        if ((rc = set_token(t, s, v, NORMAL)))
            return rc;
    json_array_foreach(json_object_get(t->json, "added_tokens"), i, v)
        if ((rc = set_added(t, v)))
            return rc;
    return rc;
}

static int put_merges(const struct text *t)
{
    const json_t *merges = json_object_get(json_object_get(t->json, "model"), "merges");
    struct sv_buf *b = &t->m->kv;
    json_t *v;
    size_t i;
    put_array(t->m, "tokenizer.ggml.merges", SV_GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, v) {
        const char *whole = json_string_value(v), *left = json_string_value(json_array_get(v, 0)),
                   *right = json_string_value(json_array_get(v, 1));
        if (whole) {
            sv_gguf_put_text(b, whole, strlen(whole));
            continue;
        }
        if (!left || !right)
            return sv_fail(t->err, SV_EFORMAT, -1,
                           "%s: tokenizer.json: merge %zu has not two parts", t->dir, i);
        sv_gguf_put(b, strlen(left) + 1 + strlen(right), 8);
        sv_buf_printf(b, "%s %s", left, right);
    }
    return SV_OK;
}

static int put_tokens(struct text *t)
{
    const char *pre = sv_gguf_pre_of(t->json);
    const size_t n = (size_t)t->c->vocab_size;
    char pad[32];
    if (!pre)
        return sv_fail(t->err, SV_EUNSUPPORTED, -1,
                       "%s: tokenizer.json: GGUF has no name for the way it splits text", t->dir);
    int rc = find_tokens(t);
    if (rc)
        return rc;
    put_str(t->m, "tokenizer.ggml.model", "gpt2", 4);
    put_str(t->m, "tokenizer.ggml.pre", pre, strlen(pre));
    put_array(t->m, "tokenizer.ggml.tokens", SV_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) {
        snprintf(pad, sizeof pad, "[PAD%zu]", i);
        const char *s = t->token[i] ? t->token[i] : pad;
        sv_gguf_put_text(&t->m->kv, s, strlen(s));
    }
    put_array(t->m, "tokenizer.ggml.token_type", SV_GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        sv_gguf_put(&t->m->kv, t->token[i] ? t->type[i] : UNUSED, 4);
    return put_merges(t);
}

/* The id of tokenizer_config.json's token, or -1. */
static int32_t configured(const struct text *t, const char *field)
{
    const json_t *v = json_object_get(t->config, field);
    const char *s = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
    return s && t->tok ? sv_tokenizer_find(t->tok, s) : -1;
}

/* The token at the start of a text, -1: none. */
static int first_token(const struct text *t, int32_t *id)
{
    struct sv_ids with = {0}, without = {0};
    *id = -1;
    int rc = sv_tokenizer_encode(t->tok, NULL, "a", 1, SV_ENC_ADD_SPECIAL, &with, t->err);
    if (!rc)
        rc = sv_tokenizer_encode(t->tok, NULL, "a", 1, 0, &without, t->err);
    const size_t more = rc ? 0 : with.n - without.n;
    if (more && (more > 1 || memcmp(with.id + 1, without.id, without.n * sizeof *with.id)))
        rc =
            sv_fail(t->err, SV_EUNSUPPORTED, -1,
                    "%s: tokenizer.json: GGUF has no place for what it puts around a text", t->dir);
    else if (more)
        *id = with.id[0];
    sv_ids_fini(&with);
    sv_ids_fini(&without);
    return rc;
}

static int put_ids(const struct text *t)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const int32_t eos = configured(t, "eos_token"), unk = configured(t, "unk_token"),
                  pad = configured(t, "pad_token");
    int32_t first = -1, bos = configured(t, "bos_token");
    int rc = t->tok ? first_token(t, &first) : SV_OK;
    if (rc)
        return rc;
    bos = first >= 0 ? first : bos >= 0 ? bos : t->c->bos_id;
    if (t->tok)
        put_bool(t->m, "tokenizer.ggml.add_bos_token", first >= 0);
    if (bos >= 0)
        put_u32(t->m, "tokenizer.ggml.bos_token_id", bos);
    /* the templates' eos_token comes first */
    for (int32_t pass = 0, n = 0; pass < 2; pass++)
        for (int32_t i = 0; i < t->c->n_eos; i++)
            if ((t->c->eos_ids[i] == eos) == !pass)
                put_u32(t->m, keys[n++], t->c->eos_ids[i]);
    if (unk >= 0)
        put_u32(t->m, "tokenizer.ggml.unknown_token_id", unk);
    if (pad >= 0)
        put_u32(t->m, "tokenizer.ggml.padding_token_id", pad);
    return SV_OK;
}

/* ---------------------------------------------------------------- chat templates */

static void put_templates(const struct text *t, const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");
    json_t *one;
    char key[128];
    size_t i;
    if (json_is_string(v))
        put_str(t->m, "tokenizer.chat_template", json_string_value(v), json_string_length(v));
    json_array_foreach(v, i, one) {
        const char *name = json_string_value(json_object_get(one, "name"));
        const json_t *text = json_object_get(one, "template");
        if (!name || !json_is_string(text))
            continue;
        if (strcmp(name, "default"))
            snprintf(key, sizeof key, "tokenizer.chat_template.%s", name);
        else
            snprintf(key, sizeof key, "tokenizer.chat_template");
        put_str(t->m, key, json_string_value(text), json_string_length(text));
    }
}

/* chat_template.jinja, else that of tokenizer_config.json, else chat_template.json. */
static int put_chat(const struct text *t)
{
    json_t *other = NULL;
    struct sv_buf text;
    char *path = sv_path_join(t->dir, "chat_template.jinja"), *json_path = NULL;
    int rc = path ? SV_OK : sv_fail(t->err, SV_ENOMEM, -1, "out of memory");
    sv_buf_init(&text);
    if (!rc && sv_file_exists(path)) {
        rc = sv_file_read(&text, path, TEMPLATE_MAX_BYTES, t->err);
        if (!rc)
            put_str(t->m, "tokenizer.chat_template", text.data ? text.data : "", text.len);
    } else if (!rc && sv_json_has(t->config, "chat_template")) {
        put_templates(t, t->config);
    } else if (!rc) {
        rc = sv_dir_json(t->dir, "chat_template.json", false, &json_path, &other, t->err);
        put_templates(t, other);
    }
    json_decref(other);
    sv_buf_fini(&text);
    sv_free(json_path);
    sv_free(path);
    return rc;
}

int sv_gguf_put_tokenizer(struct sv_gguf_meta *m, const char *dir, const struct sv_config *c,
                          struct sv_err *err)
{
    struct text t = {.m = m, .c = c, .dir = dir, .err = err};
    char *path = sv_path_join(dir, "tokenizer.json");
    int rc = path ? sv_model_tokenizer_config(&t.config, dir, err)
                  : sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (!rc && sv_file_exists(path)) {
        t.json = sv_json_load(path, TOKENIZER_MAX_BYTES, err);
        rc = t.json ? sv_tokenizer_open(&t.tok, dir, err) : err->code;
        if (!rc)
            rc = put_tokens(&t);
        if (!rc)
            rc = put_chat(&t);
    }
    if (!rc)
        rc = put_ids(&t);
    if (!rc && m->kv.failed)
        rc = sv_fail(err, SV_ENOMEM, -1, "out of memory");
    if (t.tok)
        sv_tokenizer_close(t.tok);
    json_decref(t.json);
    json_decref(t.config);
    sv_free(t.token);
    sv_free(t.type);
    sv_free(path);
    return rc;
}
