/*
 * config.c - config.json and generation_config.json of target models.
 *
 * Called by engine and cli; draft.c shares the common steps. Works on the raw JSON: what a file
 * does not say is filled in from the architecture's row, never guessed from tensors. Must not:
 * accept a setting that changes the arithmetic and is not implemented.
 */
#include "load/impl.h"

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
        rc = sv_json_i32(root, "intermediate_size", 1, MAX_INTER, &c->intermediate_size, err);
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

/* Settings that change the arithmetic and that no supported architecture implements. */
static int refuse_foreign(const json_t *root, struct sv_err *err)
{
    const char *act = "silu";
    double partial = 1;
    static const char *const quant_keys[] = {"quantization_config", "compression_config"};
    for (size_t i = 0; i < sizeof quant_keys / sizeof quant_keys[0]; i++) {
        if (!sv_json_has(root, quant_keys[i]))
            continue;
        const json_t *quant = json_object_get(root, quant_keys[i]);
        const char *method = json_string_value(json_object_get(quant, "quant_method"));
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "field '%s': quantized weights (%.60s) are not supported", quant_keys[i],
                       method ? method : "of an unnamed kind");
    }
    int rc = sv_json_str_opt(root, "hidden_act", &act, err);
    if (!rc && strcmp(act, "silu") != 0)
        rc =
            sv_fail(err, SV_EUNSUPPORTED, -1, "hidden_act '%.40s' is not supported (silu is)", act);
    if (!rc)
        rc = sv_json_num_opt(root, "partial_rotary_factor", 0, 1, &partial, err);
    if (!rc && partial != 1)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1, "'partial_rotary_factor' %g is not supported",
                     partial);
    return rc;
}

static int parse_flags(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                       struct sv_err *err)
{
    double eps = row->rms_eps;
    c->tie_embeddings = row->tie_embeddings;
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

/* An id that the vocabulary does not hold can never be produced; files carry such leftovers. */
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
    c->n_eos = 0; /* a later file replaces what an earlier one said */
    memset(c->eos_ids, 0, sizeof c->eos_ids);
    if (!json_is_array(v))
        return add_eos(c, v, err);
    int rc = SV_OK;
    for (size_t i = 0; i < json_array_size(v) && !rc; i++)
        rc = add_eos(c, json_array_get(v, i), err);
    return rc;
}

static int parse_ids(struct sv_config *c, const json_t *root, struct sv_err *err)
{
    c->bos_id = -1;
    int rc = sv_json_i32_opt(root, "bos_token_id", -1, INT32_MAX, &c->bos_id, err);
    if (c->bos_id >= c->vocab_size)
        c->bos_id = -1;
    return rc ? rc : parse_eos(c, root, err);
}

int sv_config_common(struct sv_config *c, const json_t *root, const struct sv_arch_row *row,
                     struct sv_err *err)
{
    c->arch = row->arch;
    int rc = refuse_foreign(root, err);
    if (!rc)
        rc = parse_sizes(c, root, row, err);
    if (!rc)
        rc = check_heads(c, err);
    if (!rc)
        rc = parse_dtype(c, root, err);
    if (!rc)
        rc = parse_flags(c, root, row, err);
    if (!rc)
        rc = parse_ids(c, root, err);
    if (!rc)
        rc = sv_rope_parse(&c->rope, root, row->rope_theta, c->max_position, err);
    return rc;
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
        else if (strcmp(name, "full_attention") != 0)
            return sv_fail(err, SV_EUNSUPPORTED, -1, "'layer_types'[%d]: '%.60s' is not supported",
                           i, name);
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- targets */

/* As transformers' class: sliding_window counts only with use_sliding_window; without layer_types
 * the layers from max_window_layers on slide. */
static int parse_target_layers(struct sv_config *c, const json_t *root,
                               const struct sv_arch_row *row, struct sv_err *err)
{
    bool given, use = false;
    int32_t window = 4096, first = row->max_window_layers, n_sliding = 0;
    int rc = sv_config_layer_types(c, root, &given, err);
    if (rc)
        return rc;
    if (row->may_slide) {
        rc = sv_json_bool_opt(root, "use_sliding_window", &use, err);
        if (!rc && use && !sv_json_has(root, "sliding_window") &&
            json_object_get(root, "sliding_window"))
            window = 0; /* an explicit null */
        if (!rc)
            rc = sv_json_i32_opt(root, "sliding_window", 0, MAX_POSITION, &window, err);
        if (!rc)
            rc = sv_json_i32_opt(root, "max_window_layers", 0, INT32_MAX, &first, err);
        if (rc)
            return rc;
    }
    if (!use)
        window = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!given && window > 0 && i >= first)
            c->layer_kind[i] = SV_LAYER_SLIDING;
        if (c->layer_kind[i] == SV_LAYER_SLIDING && window == 0)
            return sv_fail(err, SV_EINVAL, -1,
                           "'layer_types'[%d] is sliding_attention but no window is in force "
                           "(use_sliding_window and a positive sliding_window are needed)",
                           i);
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
    int rc = sv_config_common(c, root, row, err);
    return rc ? rc : parse_target_layers(c, root, row, err);
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

int sv_dir_parse(const char *dir, const char *name, bool needed,
                 int (*parse)(void *user, const json_t *root, struct sv_err *err), void *user,
                 struct sv_err *err)
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

int sv_config_load(struct sv_config *cfg, const char *dir, struct sv_err *err)
{
    memset(cfg, 0, sizeof *cfg);
    int rc = sv_dir_parse(dir, "config.json", true, parse_target, cfg, err);
    return rc ? rc : sv_dir_parse(dir, "generation_config.json", false, parse_eos, cfg, err);
}

static int parse_gen(void *user, const json_t *root, struct sv_err *err)
{
    struct sv_gen_config *g = user;
    double temperature = 1, top_p = 1, min_p = 0;
    int rc = sv_json_num_opt(root, "temperature", 0, 1e6, &temperature, err);
    if (!rc)
        rc = sv_json_num_opt(root, "top_p", 0, 1, &top_p, err);
    if (!rc)
        rc = sv_json_num_opt(root, "min_p", 0, 1, &min_p, err);
    if (!rc)
        rc = sv_json_i32_opt(root, "top_k", 0, INT32_MAX, &g->top_k, err);
    if (!rc)
        rc = sv_json_bool_opt(root, "do_sample", &g->do_sample, err);
    g->temperature = (float)temperature;
    g->top_p = (float)top_p;
    g->min_p = (float)min_p;
    return rc;
}

int sv_gen_config_load(struct sv_gen_config *g, const char *dir, struct sv_err *err)
{
    *g = (struct sv_gen_config){.temperature = 1, .top_p = 1};
    return sv_dir_parse(dir, "generation_config.json", false, parse_gen, g, err);
}
