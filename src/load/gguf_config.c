/*
 * gguf_config.c - the configuration of a GGUF file, as config.json would state it, so that
 * config.c's checks hold for both.
 *
 * Called by config.c. Keys are those of gguf-py's constants; docs/checkpoints.md has the list. Must
 * not: guess from tensors what a key should say (but for what GGUF states by tensors alone: a tied
 * head, biases, rotary factors).
 */
#include "load/gguf.h"

#include <math.h>
#include <string.h>

static const struct family {
    const char *arch, *architecture;
    bool moe;
} families[] = {{"llama", "LlamaForCausalLM", false},
                {"qwen3", "Qwen3ForCausalLM", false},
                {"qwen3moe", "Qwen3MoeForCausalLM", true}};

struct maker {
    const struct sv_gguf *g;
    const char *arch;
    bool moe;
    json_t *root;
    struct sv_err *err;
};

static const char *key_of(const struct maker *m, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s.%s", m->arch, name);
    return buf;
}

static int set(const struct maker *m, json_t *obj, const char *field, json_t *value)
{
    if (json_object_set_new(obj, field, value))
        return sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    return SV_OK;
}

/* An integer of the file; of an array one for each layer, which must be equal. *out stays when the
 * key is absent. */
static int read_int(const struct maker *m, const char *name, int64_t *out)
{
    char key[128];
    const struct sv_gguf_kv *v = sv_gguf_find(m->g, key_of(m, name, key));
    int64_t first, other;
    if (!v || !v->is_array)
        return sv_gguf_int_opt(m->g, key, 0, INT32_MAX, out, m->err);
    for (uint64_t i = 0; i < v->n || i == 0; i++) {
        if (!sv_gguf_int_at(v, i, i ? &other : &first))
            return sv_fail(m->err, SV_EFORMAT, -1, "%s: key '%s' must be a list of integers",
                           m->g->file, key);
        if (i && other != first)
            return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                           "%s: key '%s' differs between layers, which is not supported",
                           m->g->file, key);
    }
    *out = first;
    return SV_OK;
}

static int set_int(const struct maker *m, const char *field, const char *name, bool needed)
{
    char key[128];
    int64_t v = -1;
    int rc = read_int(m, name, &v);
    if (!rc && v < 0 && needed)
        rc = sv_fail(m->err, SV_EFORMAT, -1, "%s: key '%s' is missing", m->g->file,
                     key_of(m, name, key));
    return rc || v < 0 ? rc : set(m, m->root, field, json_integer(v));
}

static bool has_tensor(const struct sv_gguf *g, const char *name)
{
    for (int32_t i = 0; i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i].name, name))
            return true;
    return false;
}

static int set_sizes(const struct maker *m)
{
    static const struct {
        const char *field, *name;
        bool needed;
    } table[] = {{"num_hidden_layers", "block_count", true},
                 {"hidden_size", "embedding_length", true},
                 {"intermediate_size", "feed_forward_length", true},
                 {"num_attention_heads", "attention.head_count", true},
                 {"num_key_value_heads", "attention.head_count_kv", false},
                 {"head_dim", "attention.key_length", false},
                 {"max_position_embeddings", "context_length", false}};
    int rc = SV_OK;
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !rc; i++)
        rc = set_int(m, table[i].field, table[i].name, table[i].needed);
    return rc;
}

/* Qwen3's experts: softmax over all, the largest, which then sum to one. */
static int set_experts(const struct maker *m)
{
    char key[128];
    int64_t gating = 1;
    int rc = set_int(m, "num_experts", "expert_count", true);
    if (!rc)
        rc = set_int(m, "num_experts_per_tok", "expert_used_count", true);
    if (!rc)
        rc = set_int(m, "moe_intermediate_size", "expert_feed_forward_length", true);
    if (!rc)
        rc = set(m, m->root, "norm_topk_prob", json_true());
    if (!rc)
        rc = read_int(m, "expert_gating_func", &gating);
    if (!rc && gating != 1)
        rc = sv_fail(m->err, SV_EUNSUPPORTED, -1, "%s: key '%s' = %lld is not supported",
                     m->g->file, key_of(m, "expert_gating_func", key), (long long)gating);
    return rc;
}

/* What the keys may say and these families do not have. */
static int refuse(const struct maker *m)
{
    static const char *const off[] = {"attention.sliding_window", "nextn_predict_layers",
                                      "expert_shared_count",      "leading_dense_block_count",
                                      "expert_group_count",       "expert_count"};
    const size_t n_off = sizeof off / sizeof off[0] - m->moe; /* the last is allowed then */
    char key[128];
    int64_t k = 0, v = 0, rotated = 0;
    int rc = read_int(m, "attention.key_length", &k);
    v = k;
    if (!rc)
        rc = read_int(m, "attention.value_length", &v);
    if (!rc && v != k)
        return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                       "%s: heads of %lld for keys and %lld for values are not supported",
                       m->g->file, (long long)k, (long long)v);
    if (!rc)
        rc = read_int(m, "rope.dimension_count", &rotated);
    if (!rc && k && rotated && rotated != k)
        return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                       "%s: partial rotary embedding (%lld of %lld) is not supported", m->g->file,
                       (long long)rotated, (long long)k);
    for (size_t i = 0; i < n_off && !rc; i++) {
        v = 0;
        rc = read_int(m, off[i], &v);
        if (!rc && v)
            return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                           "%s: key '%s' = %lld is not supported for '%s'", m->g->file,
                           key_of(m, off[i], key), (long long)v, m->arch);
    }
    return rc;
}

static int set_yarn(const struct maker *m, json_t *dict, double factor)
{
    static const char *const names[][2] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                                           {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    char key[128];
    double v, amplitude = 1;
    bool truncate = true;
    int64_t original = -1;
    int rc = read_int(m, "rope.scaling.original_context_length", &original);
    if (!rc && original > 0)
        rc = set(m, dict, "original_max_position_embeddings", json_integer(original));
    for (size_t i = 0; i < 2 && !rc; i++) {
        v = 0;
        rc = sv_gguf_num_opt(m->g, key_of(m, names[i][1], key), &v, m->err);
        if (!rc && v > 0)
            rc = set(m, dict, names[i][0], json_real(v));
    }
    if (!rc)
        rc =
            sv_gguf_bool_opt(m->g, key_of(m, "rope.scaling.yarn_truncate", key), &truncate, m->err);
    if (!rc)
        rc = set(m, dict, "truncate", json_boolean(truncate));
    if (!rc)
        rc = sv_gguf_num_opt(m->g, key_of(m, "rope.scaling.attn_factor", key), &amplitude, m->err);
    if (!rc && amplitude != 1) /* on top of the usual amplitude */
        rc = set(m, dict, "attention_factor", json_real(amplitude * (0.1 * log(factor) + 1)));
    return rc;
}

static int set_rope(const struct maker *m)
{
    char key[128];
    const char *type = "none";
    size_t n = 4;
    double theta = 10000, factor = 0; /* llama.cpp's default */
    int rc = sv_gguf_num_opt(m->g, key_of(m, "rope.freq_base", key), &theta, m->err);
    if (!rc)
        rc = set(m, m->root, "rope_theta", json_real(theta));
    if (!rc)
        rc = sv_gguf_str_opt(m->g, key_of(m, "rope.scaling.type", key), &type, &n, m->err);
    if (!rc)
        rc = sv_gguf_num_opt(m->g, key_of(m, "rope.scaling.factor", key), &factor, m->err);
    if (rc || (n == 4 && !memcmp(type, "none", 4)))
        return rc;
    json_t *dict = json_object();
    rc = set(m, m->root, "rope_scaling", dict);
    if (!rc) /* kinds that config.json has too; others are refused there, by name */
        rc = set(m, dict, "rope_type", json_stringn_nocheck(type, n));
    if (!rc && factor > 0)
        rc = set(m, dict, "factor", json_real(factor));
    if (!rc && n == 4 && !memcmp(type, "yarn", 4))
        rc = set_yarn(m, dict, factor > 1 ? factor : 1);
    return rc;
}

/* ---------------------------------------------------------------- special tokens */

/* Tokens at which an answer ends, whatever the keys say: llama.cpp's list. */
static bool ends_answers(const char *s, size_t n)
{
    static const char *const names[] = {"<|im_end|>", "<|eot_id|>", "<|return|>", "<|call|>",
                                        "<end_of_turn>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == n && !memcmp(s, names[i], n))
            return true;
    return false;
}

static int add_stop(const struct maker *m, json_t *list, const char *key)
{
    int64_t id = -1;
    int rc = sv_gguf_int_opt(m->g, key, 0, UINT32_MAX, &id, m->err);
    if (!rc && id >= 0 && id <= INT32_MAX && json_array_append_new(list, json_integer(id)))
        rc = sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    return rc;
}

static int set_tokens(const struct maker *m)
{
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    const struct sv_gguf_kv *tokens = NULL;
    int64_t bos = -1, vocab = -1;
    json_t *list = json_array();
    int rc = set(m, m->root, "eos_token_id", list);
    for (size_t i = 0; i < sizeof stops / sizeof stops[0] && !rc; i++)
        rc = add_stop(m, list, stops[i]);
    if (!rc)
        rc = sv_gguf_strings(m->g, "tokenizer.ggml.tokens", &tokens, m->err);
    const uint8_t *at = tokens ? tokens->at : NULL;
    for (uint64_t i = 0; !rc && tokens && i < tokens->n; i++) {
        size_t n;
        const char *s = sv_gguf_next(&at, &n);
        if (ends_answers(s, n) && json_array_append_new(list, json_integer((json_int_t)i)))
            rc = sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    }
    if (!rc)
        rc = sv_gguf_int_opt(m->g, "tokenizer.ggml.bos_token_id", 0, UINT32_MAX, &bos, m->err);
    if (!rc && bos >= 0 && bos <= INT32_MAX)
        rc = set(m, m->root, "bos_token_id", json_integer(bos));
    if (!rc)
        rc = read_int(m, "vocab_size", &vocab);
    if (tokens)
        vocab = (int64_t)tokens->n;
    if (!rc && vocab < 0)
        rc = sv_fail(m->err, SV_EFORMAT, -1,
                     "%s: neither '%s.vocab_size' nor 'tokenizer.ggml.tokens' is there", m->g->file,
                     m->arch);
    return rc ? rc : set(m, m->root, "vocab_size", json_integer(vocab));
}

/* ---------------------------------------------------------------- all of it */

/* What tensors say: the head is tied when there is none, biases are there or not;
 * matrices of one 16 or 32-bit type are a model in that type. */
static int set_from_tensors(const struct maker *m)
{
    const char *dtype = "bfloat16";
    bool f32 = true, f16 = false, codes = false;
    for (int32_t i = 0; i < m->g->n_tensors; i++) {
        const struct sv_gguf_tensor *t = &m->g->tensors[i];
        if (t->n_dims < 2)
            continue;
        f32 = f32 && t->type == 0;
        f16 = f16 || t->type == 1;
        codes = codes || (t->type > 1 && t->type != 30);
    }
    if (f32 || (f16 && !codes))
        dtype = f32 ? "float32" : "float16";
    int rc = set(m, m->root, "torch_dtype", json_string(dtype));
    if (!rc)
        rc = set(m, m->root, "tie_word_embeddings",
                 json_boolean(!has_tensor(m->g, "output.weight")));
    if (!rc)
        rc = set(m, m->root, "attention_bias", json_boolean(has_tensor(m->g, "blk.0.attn_q.bias")));
    if (!rc && has_tensor(m->g, "blk.0.ffn_gate.bias"))
        rc = set(m, m->root, "mlp_bias", json_true());
    return rc;
}

static int fill(const struct maker *m, const char *architecture)
{
    char key[128];
    double eps = 0;
    json_t *list = json_array();
    int rc = set(m, m->root, "architectures", list);
    if (!rc && json_array_append_new(list, json_string(architecture)))
        rc = sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    if (!rc)
        rc = set_sizes(m);
    if (!rc && m->moe)
        rc = set_experts(m);
    if (!rc)
        rc = refuse(m);
    if (!rc)
        rc = set_rope(m);
    if (!rc)
        rc = set_tokens(m);
    if (!rc)
        rc = set_from_tensors(m);
    if (!rc)
        rc =
            sv_gguf_num_opt(m->g, key_of(m, "attention.layer_norm_rms_epsilon", key), &eps, m->err);
    return rc || !(eps > 0) ? rc : set(m, m->root, "rms_norm_eps", json_real(eps));
}

json_t *sv_gguf_config(const struct sv_gguf *g, struct sv_err *err)
{
    struct maker m = {.g = g, .err = err};
    const char *arch = NULL, *architecture = NULL;
    size_t n = 0;
    if (sv_gguf_str_opt(g, "general.architecture", &arch, &n, err))
        return NULL;
    if (!arch) {
        sv_fail(err, SV_EFORMAT, -1, "%s: key 'general.architecture' is missing", g->file);
        return NULL;
    }
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (strlen(families[i].arch) == n && !memcmp(families[i].arch, arch, n)) {
            m.arch = families[i].arch;
            m.moe = families[i].moe;
            architecture = families[i].architecture;
        }
    if (!m.arch) {
        sv_fail(err, SV_EUNSUPPORTED, -1,
                "%s: architecture '%.*s' of GGUF is not supported (llama, qwen3 and qwen3moe are)",
                g->file, n > 60 ? 60 : (int)n, arch);
        return NULL;
    }
    m.root = json_object();
    if (!m.root || fill(&m, architecture)) {
        if (!m.root)
            sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", g->file);
        json_decref(m.root);
        return NULL;
    }
    return m.root;
}

int sv_gguf_rope_factors(const struct sv_gguf *g, struct sv_config *c, struct sv_err *err)
{
    const struct sv_gguf_tensor *t = NULL;
    for (int32_t i = 0; i < g->n_tensors; i++)
        if (!strcmp(g->tensors[i].name, "rope_freqs.weight"))
            t = &g->tensors[i];
    if (!t)
        return SV_OK;
    if (t->type != 0 || t->n_dims != 1 || t->dim[0] != c->head_dim / 2 ||
        t->dim[0] > SV_MAX_ROPE_FACTORS)
        return sv_fail(err, SV_EFORMAT, -1,
                       "%s: tensor 'rope_freqs.weight' must be %d f32 numbers, at most %d", g->file,
                       c->head_dim / 2, SV_MAX_ROPE_FACTORS);
    if (c->rope.kind != SV_ROPE_DEFAULT)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "%s: both 'rope_freqs.weight' and a scaling of RoPE", g->file);
    memcpy(c->rope.factors, t->data, t->n_bytes);
    for (int64_t i = 0; i < t->dim[0]; i++)
        if (!(c->rope.factors[i] > 0) || isinf(c->rope.factors[i]))
            return sv_fail(err, SV_EFORMAT, -1,
                           "%s: tensor 'rope_freqs.weight' holds a factor that is not positive",
                           g->file);
    c->rope.kind = SV_ROPE_FACTORS;
    return SV_OK;
}
