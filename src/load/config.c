/*
 * config.c - config.json and generation_config.json of target models.
 *
 * Called by engine and cli; draft.c shares the common steps. Works on the raw JSON: absent fields
 * take the defaults of the architecture's row, never guessed from tensors. Must not: accept a
 * setting that changes the arithmetic and is not implemented.
 */
#include "load/gguf.h"
#include "load/quant_config.h"

#include "backend/ops_moe.h"

#include <string.h>

#define MAX_HIDDEN (1 << 17)
#define MAX_INTER (1 << 20)
#define MAX_HEADS 1024
#define MAX_HEAD_DIM 1024
#define MAX_VOCAB (1 << 24)
#define MAX_POSITION (1 << 27)

/* ---------------------------------------------------------------- field access */

bool sv_json_has(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v);
}

int sv_json_i32_opt(const json_t *obj, const char *key, int64_t lo, int64_t hi, int32_t *out,
                    struct sv_err *err)
{
    int64_t v = *out;
    int rc = sv_json_int_opt(obj, key, lo, hi, &v, err);
    if (!rc)
        *out = (int32_t)v;
    return rc;
}

int sv_json_i32(const json_t *obj, const char *key, int64_t lo, int64_t hi, int32_t *out,
                struct sv_err *err)
{
    int64_t v = 0;
    int rc = sv_json_int(obj, key, lo, hi, &v, err);
    if (!rc)
        *out = (int32_t)v;
    return rc;
}

/* ---------------------------------------------------------------- common steps */

static int parse_sizes(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                       struct sv_err *err)
{
    c->max_position = row->max_position;
    int rc = sv_json_i32(root, "hidden_size", 1, MAX_HIDDEN, &c->hidden_size, err);
    if (!rc)
        rc = row->moe_intermediate_size && !sv_json_has(root, "intermediate_size")
                 ? SV_OK /* of layers without experts, if any */
                 : sv_json_i32(root, "intermediate_size", 1, MAX_INTER, &c->intermediate_size, err);
    if (!rc)
        rc = sv_json_i32(root, "num_hidden_layers", 1, SV_MAX_LAYERS, &c->n_layers, err);
    if (!rc)
        rc = sv_json_i32(root, "num_attention_heads", 1, MAX_HEADS, &c->n_heads, err);
    if (!rc)
        rc = sv_json_i32(root, "vocab_size", 1, MAX_VOCAB, &c->vocab_size, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "max_position_embeddings", 1, MAX_POSITION, &c->max_position,
                             err);
    if (rc)
        return rc;
    c->n_kv_heads = c->n_heads;
    rc = sv_json_i32_opt(root, "num_key_value_heads", 1, MAX_HEADS, &c->n_kv_heads, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "head_dim", 1, MAX_HEAD_DIM, &c->head_dim, err);
    return rc;
}

static int check_heads(struct sv_config *c, struct sv_err *err)
{
    if (c->head_dim == 0) {
        if (c->hidden_size % c->n_heads != 0)
            return sv_fail(err, SV_EINVAL, -1,
                           "field 'head_dim' is missing and hidden_size %d is not a multiple of "
                           "num_attention_heads %d",
                           c->hidden_size, c->n_heads);
        c->head_dim = c->hidden_size / c->n_heads;
    }
    if (c->n_heads % c->n_kv_heads != 0)
        return sv_fail(err, SV_EINVAL, -1,
                       "num_attention_heads %d is not a multiple of num_key_value_heads %d",
                       c->n_heads, c->n_kv_heads);
    if (c->head_dim % 8 != 0 || c->head_dim > MAX_HEAD_DIM)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "head_dim %d is not a multiple of 8 up to %d",
                       c->head_dim, MAX_HEAD_DIM);
    return SV_OK;
}

static int parse_dtype(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    const char *name = NULL;
    int rc = sv_json_str_opt(root, "torch_dtype", &name, err);
    if (!rc)
        rc = sv_json_str_opt(root, "dtype", &name, err); /* the later layout wins */
    if (rc)
        return rc;
    if (name && !strncmp(name, "torch.", 6))
        name += 6;
    c->stored_dtype = SV_BF16;
    if (!name || !strcmp(name, "bfloat16"))
        return SV_OK;
    if (!strcmp(name, "float16"))
        c->stored_dtype = SV_F16;
    else if (!strcmp(name, "float32"))
        c->stored_dtype = SV_F32;
    else
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "dtype '%.40s' is not supported (float32, float16 and bfloat16 are)", name);
    return SV_OK;
}

static int parse_quantization(struct sv_config *c, const json_t *root,
                              const struct sv_arch_row *row, struct sv_err *err)
{
    static const char *const quant_keys[] = {"quantization_config", "compression_config"};
    struct sv_quant_config quant; /* quant_bind.c reads it again, with the tensors */
    for (size_t i = 0; i < sizeof quant_keys / sizeof quant_keys[0]; i++) {
        if (!sv_json_has(root, quant_keys[i]))
            continue;
        const json_t *obj = json_object_get(root, quant_keys[i]);
        if (row->may_mxfp4 && i == 0 && sv_quant_is_mxfp4(obj)) {
            c->mxfp4_experts = true;
            continue;
        }
        int rc = sv_quant_config_read(&quant, obj, err);
        if (rc)
            return sv_err_prefix(err, "field '%s'", quant_keys[i]);
    }
    return SV_OK;
}

/* Settings that change the arithmetic and that no supported architecture implements. */
static int refuse_foreign(const json_t *root, struct sv_err *err)
{
    const char *act = "silu";
    int rc = sv_json_str_opt(root, "hidden_act", &act, err);
    if (!rc && strcmp(act, "silu") != 0)
        rc =
            sv_fail(err, SV_EUNSUPPORTED, -1, "hidden_act '%.40s' is not supported (silu is)", act);
    return rc;
}

/* partial_rotary_factor may be at top level, in rope_parameters, or in both. */
static int parse_rotary(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                        struct sv_err *err)
{
    double outer = 0, share = row->hybrid ? 0.25 : 1;
    int rc = sv_json_num_opt(root, "partial_rotary_factor", 1e-3, 1, &outer, err);
    if (rc)
        return rc;
    if (outer > 0 && c->rope.partial > 0 && outer != c->rope.partial)
        return sv_fail(err, SV_EFORMAT, -1, "two values of 'partial_rotary_factor': %g and %g",
                       c->rope.partial, outer);
    share = c->rope.partial > 0 ? c->rope.partial : outer > 0 ? outer : share;
    if (share != 1 && !row->hybrid)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "'partial_rotary_factor' %g is not supported",
                       share);
    c->rope.partial = 0; /* said by rot_dim */
    if (!row->latent)    /* which says it */
        c->rot_dim = (int32_t)(c->head_dim * share);
    if (c->rot_dim < 2 || c->rot_dim % 2)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "'partial_rotary_factor' %g rotates %d of %d numbers of a head", share,
                       c->rot_dim, c->head_dim);
    return SV_OK;
}

static int parse_flags(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                       struct sv_err *err)
{
    double eps = row->rms_eps;
    c->tie_embeddings = row->tie_embeddings;
    c->attention_bias = row->attention_bias;
    c->qk_norm = row->qk_norm;
    c->embed_scale = 1;
    int rc = sv_json_bool_opt(root, "tie_word_embeddings", &c->tie_embeddings, err);
    if (!rc)
        rc = sv_json_bool_opt(root, "attention_bias", &c->attention_bias, err);
    if (!rc)
        rc = sv_json_bool_opt(root, "mlp_bias", &c->mlp_bias, err);
    if (!rc && c->mlp_bias && !row->may_mlp_bias)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "'mlp_bias' is not supported for %s",
                     row->architecture);
    if (!rc)
        rc = sv_json_num_opt(root, "rms_norm_eps", 1e-30, 1, &eps, err);
    c->rms_eps = (float)eps;
    return rc;
}

/* Which layers have a mixture of experts: as in transformers, all not listed in mlp_only_layers
 * whose number, counted from 1, is divisible by decoder_sparse_step. */
static int parse_moe_layers(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    int32_t step = 1;
    const json_t *dense = json_object_get(root, "mlp_only_layers");
    int rc = sv_json_i32_opt(root, "decoder_sparse_step", 1, INT32_MAX, &step, err);
    if (rc)
        return rc;
    if (dense && !json_is_null(dense) && !json_is_array(dense))
        return sv_fail(err, SV_EFORMAT, -1, "field 'mlp_only_layers' must be a list of layers");
    for (int32_t i = 0; i < c->n_layers; i++)
        c->layer_moe[i] = (i + 1) % step == 0;
    for (size_t k = 0; k < json_array_size(dense); k++) {
        const json_t *v = json_array_get(dense, k);
        const json_int_t i = json_integer_value(v);
        if (!json_is_integer(v))
            return sv_fail(err, SV_EFORMAT, -1, "field 'mlp_only_layers' must be a list of layers");
        if (i >= 0 && i < c->n_layers)
            c->layer_moe[i] = false;
    }
    for (int32_t i = 0; i < c->n_layers && !c->intermediate_size; i++)
        if (!c->layer_moe[i])
            return sv_fail(err, SV_EFORMAT, -1, "field 'intermediate_size' is missing");
    return SV_OK;
}

/* Files of gpt-oss have both names of the field. */
static int parse_chosen(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    int rc = sv_json_i32_opt(root, "num_experts_per_tok", 1, SV_MAX_CHOSEN, &c->n_chosen, err);
    int32_t other = c->n_chosen;
    if (!rc)
        rc = sv_json_i32_opt(root, "experts_per_token", 1, SV_MAX_CHOSEN, &other, err);
    if (!rc && other != c->n_chosen && sv_json_has(root, "num_experts_per_tok"))
        rc = sv_fail(err, SV_EINVAL, -1, "num_experts_per_tok is %d and experts_per_token %d",
                     c->n_chosen, other);
    c->n_chosen = other;
    return rc;
}

/* gpt-oss: every layer has experts of intermediate_size, and a clamped activation that "hidden_act"
 * does not name. */
static int parse_gpt_oss_moe(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                             struct sv_err *err)
{
    double limit = row->expert_limit;
    int rc = sv_json_num_opt(root, "swiglu_limit", 1e-6, 1e6, &limit, err);
    if (!rc && c->mxfp4_experts && (c->hidden_size % 32 || c->intermediate_size % 32))
        rc = sv_fail(err, SV_EINVAL, -1,
                     "hidden_size %d and intermediate_size %d must be multiples of 32, the length "
                     "of an MXFP4 block",
                     c->hidden_size, c->intermediate_size);
    c->expert_limit = (float)limit;
    c->moe_intermediate_size = c->intermediate_size;
    c->norm_topk = true;
    memset(c->layer_moe, true, (size_t)c->n_layers);
    return rc;
}

/* transformers 5 writes num_experts under the later name. */
static int parse_moe(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                     struct sv_err *err)
{
    int32_t other = 0;
    if (!row->n_experts)
        return SV_OK;
    if (row->latent)
        return sv_latent_moe(c, root, row, err);
    c->n_experts = row->n_experts;
    c->n_chosen = row->n_chosen;
    c->moe_intermediate_size = row->moe_intermediate_size;
    c->norm_topk = row->norm_topk;
    /* Before the tensors are known: hybrids have packed experts unless quantized. */
    c->transposed_experts = row->transposed_experts;
    c->packed_experts =
        row->packed_experts && !(row->hybrid && (sv_json_has(root, "quantization_config") ||
                                                 sv_json_has(root, "compression_config")));
    int rc = sv_json_i32_opt(root, "num_local_experts", 1, SV_MAX_EXPERTS, &other, err);
    if (!rc)
        c->n_experts = other ? other : c->n_experts;
    if (!rc)
        rc = sv_json_i32_opt(root, "num_experts", 1, SV_MAX_EXPERTS, &c->n_experts, err);
    if (!rc && other && other != c->n_experts)
        rc = sv_fail(err, SV_EINVAL, -1, "num_experts is %d and num_local_experts %d", c->n_experts,
                     other);
    if (!rc)
        rc = parse_chosen(c, root, err);
    if (!rc && c->n_chosen > c->n_experts)
        rc = sv_fail(err, SV_EINVAL, -1, "num_experts_per_tok %d is more than num_experts %d",
                     c->n_chosen, c->n_experts);
    if (!row->moe_intermediate_size)
        return rc ? rc : parse_gpt_oss_moe(c, root, row, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "moe_intermediate_size", 1, MAX_INTER, &c->moe_intermediate_size,
                             err);
    if (!rc)
        rc = sv_json_bool_opt(root, "norm_topk_prob", &c->norm_topk, err);
    if (row->always_norm_topk)
        c->norm_topk = true;
    c->shared_intermediate_size = row->shared_intermediate_size;
    if (!rc && row->shared_intermediate_size)
        rc = sv_json_i32_opt(root, "shared_expert_intermediate_size", 0, MAX_INTER,
                             &c->shared_intermediate_size, err);
    return rc ? rc : parse_moe_layers(c, root, err);
}

/* Ids outside the vocabulary, which some files have, can never be produced. */
static int add_eos(struct sv_config *c, const json_t *v, struct sv_err *err)
{
    if (!json_is_integer(v) || json_integer_value(v) < -1)
        return sv_fail(err, SV_EFORMAT, -1, "field 'eos_token_id' must be an id or a list of ids");
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= c->vocab_size)
        return SV_OK;
    for (int32_t i = 0; i < c->n_eos; i++) {
        if (c->eos_ids[i] == id)
            return SV_OK;
    }
    if (c->n_eos == SV_MAX_STOP_IDS)
        return sv_fail(err, SV_EUNSUPPORTED, -1, "field 'eos_token_id' lists more than %d ids",
                       SV_MAX_STOP_IDS);
    c->eos_ids[c->n_eos++] = (int32_t)id;
    return SV_OK;
}

static int parse_eos(void *user, const json_t *root, struct sv_err *err)
{
    struct sv_config *c = user;
    if (!sv_json_has(root, "eos_token_id"))
        return SV_OK;
    const json_t *v = json_object_get(root, "eos_token_id");
    c->n_eos = 0; /* a later file replaces the ids of an earlier one */
    memset(c->eos_ids, 0, sizeof c->eos_ids);
    if (!json_is_array(v))
        return add_eos(c, v, err);
    int rc = SV_OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++)
        rc = add_eos(c, json_array_get(v, i), err);
    return rc;
}

static int parse_ids(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                     struct sv_err *err)
{
    c->bos_id = -1;
    c->media_token = row->media_token;
    int rc = sv_json_i32_opt(root, "bos_token_id", -1, INT32_MAX, &c->bos_id, err);
    if (!rc && row->media_token)
        rc =
            sv_json_i32_opt(root, "media_placeholder_token_id", 1, INT32_MAX, &c->media_token, err);
    if (c->bos_id >= c->vocab_size)
        c->bos_id = -1;
    if (c->media_token >= c->vocab_size)
        c->media_token = 0;
    return rc ? rc : parse_eos(c, root, err);
}

int sv_config_common(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                     struct sv_err *err)
{
    c->arch = sv_arch_index(row);
    int rc = parse_quantization(c, root, row, err);
    if (!rc)
        rc = refuse_foreign(root, err);
    if (!rc)
        rc = parse_sizes(c, root, row, err);
    if (!rc)
        rc = row->latent ? sv_latent_heads(c, root, err) : check_heads(c, err);
    if (!rc)
        rc = parse_dtype(c, root, err);
    if (!rc)
        rc = parse_flags(c, root, row, err);
    if (!rc)
        rc = parse_moe(c, root, row, err);
    if (!rc)
        rc = parse_ids(c, root, row, err);
    if (!rc)
        rc = sv_rope_parse(&c->rope, root, row, c->max_position, err);
    return rc ? rc : parse_rotary(c, root, row, err);
}

int sv_config_layer_types(struct sv_config *c, const json_t *root, bool *given, struct sv_err *err)
{
    const json_t *list = json_object_get(root, "layer_types");
    *given = list && !json_is_null(list);
    if (!*given)
        return SV_OK;
    if (!json_is_array(list) || json_array_size(list) != (size_t)c->n_layers)
        return sv_fail(err, SV_EINVAL, -1, "field 'layer_types' must list %d layers, it has %zu",
                       c->n_layers, json_array_size(list));
    for (int32_t i = 0; i < c->n_layers; i++) {
        const char *name = json_string_value(json_array_get(list, (size_t)i));
        if (!name)
            return sv_fail(err, SV_EFORMAT, -1, "'layer_types'[%d] is not a string", i);
        if (!strcmp(name, "sliding_attention"))
            c->layer_kind[i] = SV_LAYER_SLIDING;
        else if (sv_arch_row(c->arch)->hybrid && !strcmp(name, "linear_attention"))
            c->layer_kind[i] = SV_LAYER_GDN;
        else if (strcmp(name, "full_attention") != 0)
            return sv_fail(err, SV_EUNSUPPORTED, -1, "'layer_types'[%d]: '%.60s' is not supported",
                           i, name);
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- targets */

/* As transformers' classes: an explicit null is no window. */
static int parse_window(const json_t *root, const struct sv_arch_row *row, int32_t *window,
                        int32_t *first, struct sv_err *err)
{
    bool use = row->slides_in_turn;
    const json_t *stated = json_object_get(root, "sliding_window");
    int rc = SV_OK;
    *window = stated && json_is_null(stated) ? 0 : row->sliding_window;
    *first = row->max_window_layers;
    if (row->may_slide)
        rc = sv_json_bool_opt(root, "use_sliding_window", &use, err);
    if (!rc && (row->may_slide || row->slides_in_turn))
        rc = sv_json_i32_opt(root, "sliding_window", 0, MAX_POSITION, window, err);
    if (!rc && row->may_slide && !row->all_slide)
        rc = sv_json_i32_opt(root, "max_window_layers", 0, INT32_MAX, first, err);
    if (!use)
        *window = 0;
    return rc;
}

static int parse_target_layers(struct sv_config *c, const json_t *root,
                               const struct sv_arch_row *row, struct sv_err *err)
{
    bool given;
    int32_t window, first, n_sliding = 0;
    int rc = sv_config_layer_types(c, root, &given, err);
    if (rc || row->hybrid)
        return rc ? rc : sv_hybrid_layers(c, root, given, err);
    if (row->latent)
        return sv_latent_layers(c, root, err);
    rc = parse_window(root, row, &window, &first, err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const bool slides = row->slides_in_turn ? i % 2 == 0 : window > 0 && i >= first;
        if (!given && slides)
            c->layer_kind[i] = SV_LAYER_SLIDING;
        if (c->layer_kind[i] == SV_LAYER_SLIDING && window == 0)
            return sv_fail(err, SV_EINVAL, -1,
                           "layer %d is sliding_attention but no window is in force: a positive "
                           "sliding_window is needed%s",
                           i, row->may_slide ? ", and use_sliding_window" : "");
        n_sliding += c->layer_kind[i] == SV_LAYER_SLIDING;
    }
    c->sliding_window = n_sliding ? window : 0;
    return SV_OK;
}

static int parse_target(void *user, const json_t *root, struct sv_err *err)
{
    struct sv_config *c = user;
    if (!json_is_object(root))
        return sv_fail(err, SV_EFORMAT, -1, "the file is not a JSON object");
    const struct sv_arch_row *row = sv_arch_of_config(root, err);
    if (!row)
        return err->code;
    json_t *text = NULL;
    int rc = row->wrapped ? sv_hybrid_text(root, &text, err) : SV_OK;
    const json_t *said = text ? text : root;
    if (!rc)
        rc = sv_config_common(c, said, row, err);
    if (!rc && row->deepstack) /* the inner one of transformers 5 is the text class's default */
        rc = sv_json_bool_opt(root, "tie_word_embeddings", &c->tie_embeddings, err);
    if (!rc && row->hybrid)
        rc = sv_hybrid_parse(c, said, row, err);
    if (!rc)
        rc = sv_config_sections(c, said, err);
    if (!rc)
        rc = parse_target_layers(c, said, row, err);
    if (!rc)
        rc = sv_vision_parse(c, root, row, err);
    json_decref(text);
    return rc;
}

int sv_config_parse(struct sv_config *cfg, const char *text, size_t n, struct sv_err *err)
{
    struct sv_err local;
    if (!err)
        err = &local; /* codes travel in it */
    memset(cfg, 0, sizeof *cfg);
    json_t *root = sv_json_parse(text, n, err);
    if (!root)
        return err->code;
    int rc = parse_target(cfg, root, err);
    json_decref(root);
    return rc;
}

/* ---------------------------------------------------------------- files */

int sv_dir_json(const char *dir, const char *name, bool needed, char **path, json_t **root,
                struct sv_err *err)
{
    *root = NULL;
    *path = sv_path_join(dir, name);
    if (!*path)
        return sv_fail(err, SV_ENOMEM, -1, "%s: out of memory", dir);
    if (!needed && !sv_file_exists(*path))
        return SV_OK;
    *root = sv_json_load(*path, SV_CONFIG_MAX_BYTES, err);
    return *root ? SV_OK : err->code;
}

/* Passes the object in DIR/name, if it exists, to parse; errors name the file. err may be NULL. */
static int parse_file(const char *dir, const char *name, bool needed, sv_parse_fn *parse,
                      void *user, struct sv_err *err)
{
    struct sv_err local;
    char *path;
    json_t *root;
    if (!err)
        err = &local; /* codes travel in it */
    int rc = sv_dir_json(dir, name, needed, &path, &root, err);
    if (!rc && root) {
        rc = json_is_object(root) ? parse(user, root, err)
                                  : sv_fail(err, SV_EFORMAT, -1, "the file is not a JSON object");
        if (rc)
            sv_err_prefix(err, "%s", path);
    }
    json_decref(root);
    sv_free(path);
    return rc;
}

static int load_gguf(const char *path, sv_parse_fn *parse, void *user, struct sv_config *cfg,
                     struct sv_err *err)
{
    struct sv_gguf_file f;
    int rc = sv_gguf_open(&f, path, err);
    if (rc)
        return rc;
    json_t *root = sv_gguf_config(&f.g, err);
    rc = root ? parse(user, root, err) : err->code;
    if (rc && root) /* the fields are config.json's */
        sv_err_prefix(err, "%s: as config.json", path);
    if (!rc)
        rc = sv_gguf_config_finish(&f.g, cfg, err);
    json_decref(root);
    sv_gguf_close(&f);
    return rc;
}

int sv_config_read(const char *dir, sv_parse_fn *parse, void *user, struct sv_config *cfg,
                   struct sv_err *err)
{
    struct sv_err local;
    return sv_is_gguf(dir) ? load_gguf(dir, parse, user, cfg, err ? err : &local)
                           : parse_file(dir, "config.json", true, parse, user, err);
}

int sv_config_load(struct sv_config *cfg, const char *dir, struct sv_err *err)
{
    memset(cfg, 0, sizeof *cfg);
    int rc = sv_config_read(dir, parse_target, cfg, cfg, err);
    return rc ? rc : sv_gen_config_read(dir, parse_eos, cfg, err);
}

int sv_gen_config_read(const char *dir, sv_parse_fn *parse, void *user, struct sv_err *err)
{
    if (sv_is_gguf(dir))
        return SV_OK; /* there is no such metadata */
    return parse_file(dir, "generation_config.json", false, parse, user, err);
}
