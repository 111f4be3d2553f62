/*
 * gguf_config.c - the configuration of a GGUF file as a config.json, so that config.c's checks
 * apply to both.
 *
 * Called by config.c. Keys are those of gguf-py's constants; docs/checkpoints.md has the list. Must
 * not: guess absent keys from tensors (except what GGUF states only by tensors: a tied head,
 * biases, rotary factors).
 */
#include "load/gguf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct sv_gguf_family families[] = {
    {.arch = "llama", .architecture = "LlamaForCausalLM", .router = "mlp.gate", .permuted = true},
    {.arch = "qwen3", .architecture = "Qwen3ForCausalLM", .router = "mlp.gate"},
    {.arch = "qwen3moe",
     .architecture = "Qwen3MoeForCausalLM",
     .router = "mlp.gate",
     .experts = true},
    {.arch = "gpt-oss",
     .architecture = "GptOssForCausalLM",
     .router = "mlp.router",
     .experts = true,
     .slides = true,
     .whole_ramp = true},
    {.arch = "qwen3next",
     .architecture = "Qwen3NextForCausalLM",
     .router = "mlp.gate",
     .experts = true,
     .hybrid = true},
    {.arch = "qwen35",
     .architecture = "Qwen3_5ForConditionalGeneration",
     .router = "mlp.gate",
     .hybrid = true,
     .tiled = true,
     .wrapped = true},
    {.arch = "qwen35moe",
     .architecture = "Qwen3_5MoeForConditionalGeneration",
     .router = "mlp.gate",
     .experts = true,
     .hybrid = true,
     .tiled = true,
     .wrapped = true},
    {.arch = "deepseek2",
     .architecture = "DeepseekV3ForCausalLM",
     .router = "mlp.gate",
     .experts = true,
     .latent = true},
    {.arch = "dflash",
     .architecture = "DFlashDraftModel",
     .router = "mlp.gate",
     .slides = true,
     .draft = true},
};

struct maker {
    const struct sv_gguf *g;
    const struct sv_gguf_family *f;
    json_t *root;
    struct sv_err *err;
};

const struct sv_gguf_family *sv_gguf_family(const struct sv_gguf *g, struct sv_err *err)
{
    const char *arch = NULL;
    char known[160] = "";
    size_t n = 0;
    if (sv_gguf_str_opt(g, "general.architecture", &arch, &n, err))
        return NULL;
    for (size_t i = 0; arch && i < sizeof families / sizeof families[0]; i++) {
        const char *name = families[i].arch;
        const size_t at = strlen(known);
        if (strlen(name) == n && !memcmp(name, arch, n))
            return &families[i];
        snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", name);
    }
    if (!arch)
        sv_fail(err, SV_EFORMAT, -1, "%s: key 'general.architecture' is missing", g->file);
    else
        sv_fail(err, SV_EUNSUPPORTED, -1,
                "%s: architecture '%.*s' of GGUF is not supported (%s are)", g->file,
                n > 60 ? 60 : (int)n, arch, known);
    return NULL;
}

const struct sv_gguf_family *sv_gguf_family_of(const struct sv_config *c)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (!strcmp(families[i].architecture, sv_arch_name(c->arch)))
            return &families[i];
    return NULL;
}

static const char *key_of(const struct maker *m, const char *name, char buf[128])
{
    snprintf(buf, 128, "%s.%s", m->f->arch, name);
    return buf;
}

static int set(const struct maker *m, json_t *obj, const char *field, json_t *value)
{
    if (json_object_set_new(obj, field, value))
        return sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    return SV_OK;
}

int sv_gguf_arch_int(const struct sv_gguf *g, const char *arch, const char *name, int64_t *out,
                     struct sv_err *err)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    const struct sv_gguf_kv *v = sv_gguf_find(g, key);
    int64_t first, other;
    if (!v || !v->is_array)
        return sv_gguf_int_opt(g, key, 0, INT32_MAX, out, err);
    for (uint64_t i = 0; i < v->n || i == 0; i++) {
        if (!sv_gguf_int_at(v, i, i ? &other : &first))
            return sv_fail(err, SV_EFORMAT, -1, "%s: key '%s' must be a list of integers", g->file,
                           key);
        if (i && other != first)
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           "%s: key '%s' differs between layers, which is not supported", g->file,
                           key);
    }
    *out = first;
    return SV_OK;
}

static int read_int(const struct maker *m, const char *name, int64_t *out)
{
    return sv_gguf_arch_int(m->g, m->f->arch, name, out, m->err);
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

/* Layers that predict further tokens follow those of the model. */
static int set_layers(const struct maker *m)
{
    char key[128];
    int64_t n = -1, extra = 0;
    int rc = read_int(m, "block_count", &n);
    if (!rc && (m->f->hybrid || m->f->latent))
        rc = read_int(m, "nextn_predict_layers", &extra);
    if (!rc && n < 0)
        rc = sv_fail(m->err, SV_EFORMAT, -1, "%s: key '%s' is missing", m->g->file,
                     key_of(m, "block_count", key));
    return rc ? rc : set(m, m->root, "num_hidden_layers", json_integer(n - extra));
}

static int set_sizes(const struct maker *m)
{
    static const struct {
        const char *field, *name;
        bool needed;
    } table[] = {{"hidden_size", "embedding_length", true},
                 {"num_attention_heads", "attention.head_count", true},
                 {"num_key_value_heads", "attention.head_count_kv", false},
                 {"head_dim", "attention.key_length", false},
                 {"max_position_embeddings", "context_length", false}};
    /* of gpt-oss these are the experts' */
    const bool needed = !m->f->experts || !m->f->hybrid;
    int rc = set_layers(m);
    if (!rc)
        rc = set_int(m, "intermediate_size", "feed_forward_length", needed && !m->f->whole_ramp);
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !rc; i++)
        rc = set_int(m, table[i].field, table[i].name, table[i].needed);
    return rc;
}

/* Qwen3's experts: softmax over all, then the largest, normalized. gpt-oss's have config.json's
 * intermediate_size, and are normalized as well. */
static int set_experts(const struct maker *m)
{
    const bool wide = m->f->whole_ramp;
    char key[128];
    int64_t gating = 1;
    int rc = set_int(m, "num_experts", "expert_count", true);
    if (!rc)
        rc = set_int(m, "num_experts_per_tok", "expert_used_count", true);
    if (!rc)
        rc = set_int(m, wide ? "intermediate_size" : "moe_intermediate_size",
                     "expert_feed_forward_length", !wide);
    if (!rc)
        rc = set(m, m->root, "norm_topk_prob", json_true());
    if (!rc)
        rc = read_int(m, "expert_gating_func", &gating);
    if (!rc && gating != 1 && !(wide && gating == 3)) /* 3: over the chosen */
        rc = sv_fail(m->err, SV_EUNSUPPORTED, -1, "%s: key '%s' = %lld is not supported",
                     m->g->file, key_of(m, "expert_gating_func", key), (long long)gating);
    if (!rc && m->f->hybrid) {
        int64_t shared = 0;
        rc = read_int(m, "expert_shared_feed_forward_length", &shared);
        if (!rc)
            rc = set(m, m->root, "shared_expert_intermediate_size", json_integer(shared));
    }
    return rc;
}

/* An f32 as its shortest decimal, the configuration's original number. */
static double decimal(double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)(float)v);
    return strtod(text, NULL);
}

/* DeepSeek-V3's router: sigmoid scores, groups, shared experts. */
static int set_groups(const struct maker *m)
{
    static const char *const table[][2] = {{"n_routed_experts", "expert_count"},
                                           {"num_experts_per_tok", "expert_used_count"},
                                           {"moe_intermediate_size", "expert_feed_forward_length"}};
    const char *const gating_name = "expert_gating_func";
    char key[128];
    int64_t gating = 1, groups = 0, kept = 0, shared = 0, dense = 0;
    double scale = 0;
    bool norm = false;
    int rc = read_int(m, gating_name, &gating);
    if (!rc && gating != 2)
        rc = sv_fail(m->err, SV_EUNSUPPORTED, -1,
                     "%s: router scores other than sigmoid (key '%s' is %lld, 1 when absent) are "
                     "not supported",
                     m->g->file, key_of(m, gating_name, key), (long long)gating);
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !rc; i++)
        rc = set_int(m, table[i][0], table[i][1], true);
    if (!rc)
        rc = read_int(m, "expert_shared_count", &shared);
    if (!rc)
        rc = set(m, m->root, "n_shared_experts", json_integer(shared));
    if (!rc)
        rc = read_int(m, "leading_dense_block_count", &dense);
    if (!rc)
        rc = set(m, m->root, "first_k_dense_replace", json_integer(dense));
    if (!rc)
        rc = read_int(m, "expert_group_count", &groups);
    if (!rc)
        rc = read_int(m, "expert_group_used_count", &kept);
    if (!rc) /* files from before these keys: no groups, as in llama.cpp */
        rc = set(m, m->root, "n_group", json_integer(groups > 1 ? groups : 1));
    if (!rc)
        rc = set(m, m->root, "topk_group", json_integer(groups > 1 ? kept : 1));
    if (!rc)
        rc = sv_gguf_num_opt(m->g, key_of(m, "expert_weights_scale", key), &scale, m->err);
    if (!rc)
        rc = set(m, m->root, "routed_scaling_factor", json_real(scale > 0 ? scale : 1));
    if (!rc)
        rc = sv_gguf_bool_opt(m->g, key_of(m, "expert_weights_norm", key), &norm, m->err);
    return rc ? rc : set(m, m->root, "norm_topk_prob", json_boolean(norm));
}

/* Latent attention: separate keys for the sizes of heads where key_length is the size of the cached
 * latent. */
static int set_latent(const struct maker *m)
{
    int64_t q_lora = 0, key = 0, value = 0, rotated = 0;
    int rc = read_int(m, "attention.q_lora_rank", &q_lora);
    if (!rc)
        rc = set(m, m->root, "q_lora_rank", q_lora ? json_integer(q_lora) : json_null());
    if (!rc)
        rc = set_int(m, "kv_lora_rank", "attention.kv_lora_rank", true);
    if (!rc)
        rc = read_int(m, "attention.key_length", &key);
    if (!rc)
        rc = read_int(m, "attention.key_length_mla", &key);
    if (!rc)
        rc = read_int(m, "attention.value_length", &value);
    if (!rc)
        rc = read_int(m, "attention.value_length_mla", &value);
    if (!rc)
        rc = read_int(m, "rope.dimension_count", &rotated);
    if (!rc && (key <= rotated || !value || !rotated))
        rc = sv_fail(m->err, SV_EFORMAT, -1,
                     "%s: heads of %lld for keys (key '%s.attention.key_length_mla'), %lld of them "
                     "rotated ('%s.rope.dimension_count'), and %lld for values are not possible",
                     m->g->file, (long long)key, m->f->arch, (long long)rotated, m->f->arch,
                     (long long)value);
    if (!rc)
        rc = set(m, m->root, "qk_rope_head_dim", json_integer(rotated));
    if (!rc)
        rc = set(m, m->root, "qk_nope_head_dim", json_integer(key - rotated));
    return rc ? rc : set(m, m->root, "v_head_dim", json_integer(value));
}

/* Gated DeltaNet: no key for the size of a value head, but for all together. */
static int set_hybrid(const struct maker *m)
{
    static const char *const table[][2] = {{"linear_conv_kernel_dim", "ssm.conv_kernel"},
                                           {"linear_key_head_dim", "ssm.state_size"},
                                           {"linear_num_key_heads", "ssm.group_count"},
                                           {"linear_num_value_heads", "ssm.time_step_rank"}};
    int64_t inner = 0, heads = 0, head = 0, rotated = 0;
    int rc = SV_OK;
    for (size_t i = 0; i < sizeof table / sizeof table[0] && !rc; i++)
        rc = set_int(m, table[i][0], table[i][1], true);
    if (!rc)
        rc = set_int(m, "full_attention_interval", "full_attention_interval", false);
    if (!rc)
        rc = read_int(m, "ssm.inner_size", &inner);
    if (!rc)
        rc = read_int(m, "ssm.time_step_rank", &heads);
    if (!rc && (!heads || inner % heads || !inner))
        rc = sv_fail(m->err, SV_EFORMAT, -1,
                     "%s: key '%s.ssm.inner_size' %lld is not a multiple of ssm.time_step_rank "
                     "%lld",
                     m->g->file, m->f->arch, (long long)inner, (long long)heads);
    if (!rc)
        rc = set(m, m->root, "linear_value_head_dim", json_integer(inner / heads));
    if (!rc)
        rc = read_int(m, "attention.key_length", &head);
    if (!rc)
        rc = read_int(m, "rope.dimension_count", &rotated);
    if (!rc && head && rotated)
        rc = set(m, m->root, "partial_rotary_factor", json_real((double)rotated / (double)head));
    return rc;
}

/* ---------------------------------------------------------------- drafts */

/* llama.cpp numbers taps by the layer of the input, config.json by that of the output. */
static int set_taps(const struct maker *m, json_t *dict)
{
    char key[128];
    const struct sv_gguf_kv *v = sv_gguf_find(m->g, key_of(m, "target_layers", key));
    json_t *list = json_array();
    int rc = set(m, dict, "target_layer_ids", list);
    if (!rc && (!v || !v->is_array || v->n == 0))
        rc = sv_fail(m->err, SV_EFORMAT, -1, "%s: key '%s' must be a list of layers", m->g->file,
                     key);
    for (uint64_t i = 0; !rc && i < v->n && i <= SV_MAX_TAPS; i++) {
        int64_t id;
        if (!sv_gguf_int_at(v, i, &id) || id < 1 || id > SV_MAX_LAYERS)
            rc = sv_fail(m->err, SV_EFORMAT, -1, "%s: key '%s' must hold layers in [1, %d]",
                         m->g->file, key, SV_MAX_LAYERS);
        else if (json_array_append_new(list, json_integer(id - 1)))
            rc = sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    }
    return rc;
}

/* Which layers slide: a flag for each, or one for all. */
static int set_sliding(const struct maker *m)
{
    char key[128];
    const struct sv_gguf_kv *v =
        sv_gguf_find(m->g, key_of(m, "attention.sliding_window_pattern", key));
    int64_t window = 0,
            n_layers = json_integer_value(json_object_get(m->root, "num_hidden_layers"));
    int rc = read_int(m, "attention.sliding_window", &window);
    if (rc || !window)
        return rc;
    if (!v || v->type != SV_GGUF_BOOL || (v->is_array && v->n != (uint64_t)n_layers))
        return sv_fail(m->err, SV_EFORMAT, -1,
                       "%s: key '%s' must be true or false for each of %lld layers", m->g->file,
                       key, (long long)n_layers);
    json_t *list = json_array();
    rc = set(m, m->root, "layer_types", list);
    for (int64_t i = 0; i < n_layers && !rc; i++)
        if (json_array_append_new(list, json_string(v->at[v->is_array ? i : 0] ? "sliding_attention"
                                                                               : "full_attention")))
            rc = sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    return rc ? rc : set(m, m->root, "sliding_window", json_integer(window));
}

static int set_draft(const struct maker *m)
{
    static const char *const same[] = {"block_size", "target_hidden_size", "conv_kernel_size",
                                       "selector_rank"};
    int64_t mask = -1;
    json_t *dict = json_object();
    int rc = set(m, m->root, "dflash_config", dict);
    for (size_t i = 0; i < sizeof same / sizeof same[0] && !rc; i++)
        rc = set_int(m, same[i], same[i], i == 0);
    if (!rc)
        rc = sv_gguf_int_opt(m->g, "tokenizer.ggml.mask_token_id", 0, INT32_MAX, &mask, m->err);
    if (!rc && mask < 0)
        rc = read_int(m, "mask_token_id", &mask);
    if (!rc && mask < 0)
        rc = sv_fail(m->err, SV_EFORMAT, -1, "%s: key 'tokenizer.ggml.mask_token_id' is missing",
                     m->g->file);
    if (!rc)
        rc = set(m, dict, "mask_token_id", json_integer(mask));
    if (!rc)
        rc = set_taps(m, dict);
    return rc ? rc : set_sliding(m);
}

/* ---------------------------------------------------------------- all families */

/* Refuses settings that these families do not have. */
static int refuse(const struct maker *m)
{
    const struct {
        const char *name;
        bool allowed;
    } off[] = {{"attention.sliding_window", m->f->slides},
               {"nextn_predict_layers", m->f->hybrid || m->f->latent},
               {"expert_shared_count", (m->f->hybrid && m->f->experts) || m->f->latent},
               {"leading_dense_block_count", m->f->latent},
               {"expert_group_count", m->f->latent},
               {"expert_count", m->f->experts}};
    char key[128];
    int64_t k = 0, v = 0, rotated = 0;
    int rc = read_int(m, "attention.key_length", &k);
    v = k;
    if (!rc)
        rc = read_int(m, "attention.value_length", &v);
    if (!rc && v != k && !m->f->latent)
        return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                       "%s: heads of %lld for keys and %lld for values are not supported",
                       m->g->file, (long long)k, (long long)v);
    if (!rc)
        rc = read_int(m, "rope.dimension_count", &rotated);
    if (!rc && k && rotated && rotated != k && !m->f->hybrid && !m->f->latent)
        return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                       "%s: partial rotary embedding (%lld of %lld) is not supported", m->g->file,
                       (long long)rotated, (long long)k);
    for (size_t i = 0; i < sizeof off / sizeof off[0] && !rc; i++) {
        v = 0;
        rc = read_int(m, off[i].name, &v);
        if (!rc && v && !off[i].allowed)
            return sv_fail(m->err, SV_EUNSUPPORTED, -1,
                           "%s: key '%s' = %lld is not supported for '%s'", m->g->file,
                           key_of(m, off[i].name, key), (long long)v, m->f->arch);
    }
    return rc;
}

/* Of latent attention: a tenth of mscale_all_dim, which mscale equals. */
static int set_mscale(const struct maker *m, json_t *dict)
{
    char key[128];
    double log_mul = 0;
    int rc =
        sv_gguf_num_opt(m->g, key_of(m, "rope.scaling.yarn_log_multiplier", key), &log_mul, m->err);
    if (rc || !(log_mul > 0))
        return rc;
    const double mscale = decimal(log_mul * 10);
    rc = set(m, dict, "mscale", json_real(mscale));
    return rc ? rc : set(m, dict, "mscale_all_dim", json_real(mscale));
}

static int set_yarn(const struct maker *m, json_t *dict, double factor)
{
    static const char *const names[][2] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                                           {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    char key[128];
    double v, amplitude = 1;
    bool truncate = !m->f->whole_ramp; /* older gpt-oss files lack the key */
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
    if (!rc && amplitude != 1) /* times the usual amplitude */
        rc = set(m, dict, "attention_factor", json_real(amplitude * (0.1 * log(factor) + 1)));
    return rc || !m->f->latent ? rc : set_mscale(m, dict);
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
                     m->f->arch);
    return rc ? rc : set(m, m->root, "vocab_size", json_integer(vocab));
}

/* ---------------------------------------------------------------- all of it */

/* From tensors: the head is tied when absent; biases; matrices of one 16 or 32-bit type are a model
 * in that type. */
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
                 json_boolean(!m->f->draft && !has_tensor(m->g, "output.weight")));
    if (!rc)
        rc = set(m, m->root, "attention_bias", json_boolean(has_tensor(m->g, "blk.0.attn_q.bias")));
    if (!rc && has_tensor(m->g, "blk.0.ffn_gate.bias"))
        rc = set(m, m->root, "mlp_bias", json_true());
    return rc;
}

static int fill(const struct maker *m)
{
    char key[128];
    double eps = 0;
    json_t *list = json_array();
    int rc = set(m, m->root, "architectures", list);
    if (!rc && json_array_append_new(list, json_string(m->f->architecture)))
        rc = sv_fail(m->err, SV_ENOMEM, -1, "%s: out of memory", m->g->file);
    if (!rc)
        rc = set_sizes(m);
    if (!rc)
        rc = refuse(m);
    if (!rc && m->f->latent)
        rc = set_latent(m);
    if (!rc && m->f->experts)
        rc = m->f->latent ? set_groups(m) : set_experts(m);
    if (!rc && m->f->hybrid)
        rc = set_hybrid(m);
    if (!rc && m->f->draft)
        rc = set_draft(m);
    if (!rc && m->f->slides && !m->f->draft)
        rc = set_int(m, "sliding_window", "attention.sliding_window", false);
    if (!rc)
        rc = set_rope(m);
    if (!rc)
        rc = set_tokens(m);
    if (!rc)
        rc = set_from_tensors(m);
    if (!rc)
        rc =
            sv_gguf_num_opt(m->g, key_of(m, "attention.layer_norm_rms_epsilon", key), &eps, m->err);
    if (!rc && sv_gguf_find(m->g, key)) /* checked as config.json is */
        rc = set(m, m->root, "rms_norm_eps", json_real(eps));
    return rc;
}

/* The architecture outside, the rest in text_config, as in files with images. */
static json_t *wrap(json_t *text)
{
    json_t *root = text ? json_object() : NULL;
    if (!root || json_object_set(root, "architectures", json_object_get(text, "architectures")) ||
        json_object_set(root, "text_config", text)) {
        json_decref(root);
        root = NULL;
    }
    json_decref(text);
    return root;
}

json_t *sv_gguf_config(const struct sv_gguf *g, struct sv_err *err)
{
    struct maker m = {.g = g, .f = sv_gguf_family(g, err), .err = err};
    if (!m.f)
        return NULL;
    m.root = json_object();
    if (m.root && fill(&m)) {
        json_decref(m.root);
        return NULL;
    }
    if (m.f->wrapped)
        m.root = wrap(m.root);
    if (!m.root)
        sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", g->file);
    return m.root;
}

int sv_gguf_config_finish(const struct sv_gguf *g, struct sv_config *c, struct sv_err *err)
{
    const struct sv_gguf_tensor *t = NULL;
    c->gdn_fused = c->packed_experts = false; /* independent of the family's directories */
    c->kv_by_head = c->kv_lora_rank && has_tensor(g, "blk.0.attn_k_b.weight");
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
