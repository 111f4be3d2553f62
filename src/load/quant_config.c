/*
 * quant_config.c - reads quantization_config: which layers are quantized, and how.
 *
 * Called by config.c (is it supported at all) and quant_bind.c. Knows the configurations of
 * transformers' fp8, compressed-tensors, modelopt, AWQ and GPTQ. Must not: accept a setting that
 * changes the values and is not implemented.
 */
#define _POSIX_C_SOURCE 200809L /* fnmatch */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "load/quant_config.h"

#include <fnmatch.h>
#include <pcre2.h>
#include <string.h>

static int refuse(const char *field, const char *what, struct sv_err *err)
{
    return sv_fail(err, SV_EUNSUPPORTED, -1, "'%s' %.80s is not supported", field, what);
}

static bool is(const char *s, const char *name)
{
    return s && !strcmp(s, name);
}

static int check_names(const json_t *list, const char *field, struct sv_err *err)
{
    if (!json_is_array(list))
        return sv_fail(err, SV_EFORMAT, -1, "'%s' must be a list of names", field);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_string(json_array_get(list, i)))
            return sv_fail(err, SV_EFORMAT, -1, "'%s'[%zu] is not a name", field, i);
    return SV_OK;
}

/* A list of strings, or NULL when the field is absent or null. */
static int names_of(const json_t *obj, const char *field, const json_t **out, struct sv_err *err)
{
    *out = sv_json_has(obj, field) ? json_object_get(obj, field) : NULL;
    return *out ? check_names(*out, field, err) : SV_OK;
}

static struct sv_scheme *add(struct sv_quant_config *q, enum sv_quant_code code, int32_t block_rows,
                             int32_t block_cols)
{
    struct sv_scheme *s = &q->scheme[q->n_schemes++];
    *s = (struct sv_scheme){.code = code, .block_rows = block_rows, .block_cols = block_cols};
    return s;
}

/* Two positive integers of a list. */
static int pair_of(const json_t *obj, const char *field, int32_t *a, int32_t *b, struct sv_err *err)
{
    const json_t *list = json_object_get(obj, field);
    const json_int_t x = json_integer_value(json_array_get(list, 0));
    const json_int_t y = json_integer_value(json_array_get(list, 1));
    if (json_array_size(list) != 2 || x < 1 || y < 1 || x > INT32_MAX || y > INT32_MAX)
        return sv_fail(err, SV_EFORMAT, -1, "'%s' must be two positive integers", field);
    *a = (int32_t)x;
    *b = (int32_t)y;
    return SV_OK;
}

/* ---------------------------------------------------------------- transformers' fp8 */

static int read_fp8(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    const char *fmt = "e4m3";
    int32_t rows = 0, cols = 0; /* one scale for all */
    int rc = sv_json_str_opt(obj, "fmt", &fmt, err);
    if (!rc && !is(fmt, "e4m3"))
        rc = refuse("fmt", fmt, err);
    if (!rc && sv_json_has(obj, "weight_block_size"))
        rc = pair_of(obj, "weight_block_size", &rows, &cols, err);
    if (!rc)
        rc = names_of(obj, "modules_to_not_convert", &q->ignore, err);
    add(q, SV_CODE_F8, rows, cols);
    return rc;
}

/* ---------------------------------------------------------------- compressed-tensors */

static int scheme_of_float(struct sv_quant_config *q, int64_t bits, const char *strategy,
                           const json_t *w, int64_t group, struct sv_err *err)
{
    int32_t rows = 0, cols = 0;
    int rc = SV_OK;
    if (bits == 4 && (group == 16 || group == 32)) {
        add(q, group == 16 ? SV_CODE_NVFP4 : SV_CODE_MXFP4, 1, (int32_t)group);
        return SV_OK;
    }
    if (bits != 8)
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "weights of %lld bits ('float', groups of %lld) are not supported",
                       (long long)bits, (long long)group);
    if (is(strategy, "block"))
        rc = pair_of(w, "block_structure", &rows, &cols, err);
    else if (is(strategy, "channel"))
        rows = 1;
    else if (!is(strategy, "tensor"))
        return refuse("strategy", strategy ? strategy : "null", err);
    add(q, SV_CODE_F8, rows, cols);
    return rc;
}

static int scheme_of_int(struct sv_quant_config *q, int64_t bits, const char *strategy,
                         const json_t *w, int64_t group, const char *format, struct sv_err *err)
{
    const char *order = NULL;
    bool symmetric = true;
    int rc = sv_json_bool_opt(w, "symmetric", &symmetric, err);
    if (!rc && json_is_string(json_object_get(w, "actorder")))
        rc = sv_json_str_opt(w, "actorder", &order, err);
    if (rc)
        return rc;
    const bool packed = is(format, "pack-quantized");
    if ((bits != 8 && bits != 4) || (bits == 4 && !packed))
        return sv_fail(err, SV_EUNSUPPORTED, -1,
                       "weights of %lld bits ('int', format '%.40s') are not supported",
                       (long long)bits, format ? format : "");
    if (!is(strategy, "group") && !is(strategy, "channel") && !is(strategy, "tensor"))
        return refuse("strategy", strategy ? strategy : "null", err);
    if (is(strategy, "group") && (group < 1 || group > INT32_MAX))
        return sv_fail(err, SV_EFORMAT, -1, "'group_size' must be a positive integer");
    if (!packed && (is(strategy, "group") || !symmetric))
        return refuse("format", "of int8 with groups or zero points", err);
    struct sv_scheme *s =
        add(q,
            !packed     ? SV_CODE_I8
            : bits == 4 ? SV_CODE_INT4
                        : SV_CODE_INT8,
            is(strategy, "tensor") ? 0 : 1, is(strategy, "group") ? (int32_t)group : 0);
    s->zeros = !symmetric;
    s->permuted = is(order, "group") || json_is_true(json_object_get(w, "actorder"));
    return SV_OK;
}

static int read_group(struct sv_quant_config *q, const json_t *g, const char *format,
                      struct sv_err *err)
{
    const json_t *w = json_object_get(g, "weights");
    const char *type = "int", *strategy = NULL;
    int64_t bits = 8, group = 0;
    if (!json_is_object(w))
        return sv_fail(err, SV_EUNSUPPORTED, -1, "'weights' that are not quantized");
    int rc = sv_json_str_opt(g, "format", &format, err);
    if (!rc)
        rc = sv_json_str_opt(w, "type", &type, err);
    if (!rc)
        rc = sv_json_str_opt(w, "strategy", &strategy, err);
    if (!rc)
        rc = sv_json_int_opt(w, "num_bits", 1, 64, &bits, err);
    if (!rc)
        rc = sv_json_int_opt(w, "group_size", -1, INT32_MAX, &group, err);
    if (!rc)
        rc = names_of(g, "targets", &q->targets[q->n_schemes], err);
    if (!rc && is(type, "float"))
        rc = scheme_of_float(q, bits, strategy, w, group, err);
    else if (!rc && is(type, "int"))
        rc = scheme_of_int(q, bits, strategy, w, group, format, err);
    else if (!rc)
        rc = refuse("type", type, err);
    return rc;
}

/* Type of caches: 8-bit floats, or the default. */
static int check_caches(const json_t *scheme, struct sv_err *err)
{
    const char *type = "int"; /* compressed-tensors' own default */
    int64_t bits = 8;
    if (!scheme || json_is_null(scheme))
        return SV_OK;
    if (!json_is_object(scheme))
        return sv_fail(err, SV_EFORMAT, -1, "'kv_cache_scheme' must be an object");
    int rc = sv_json_str_opt(scheme, "type", &type, err);
    if (!rc)
        rc = sv_json_int_opt(scheme, "num_bits", 1, 64, &bits, err);
    if (rc)
        return sv_err_prefix(err, "'kv_cache_scheme'");
    if (!is(type, "float") || bits != 8)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "'kv_cache_scheme' of %lld bits ('%.40s') is not supported (8, 'float', is)",
                     (long long)bits, type);
    return rc;
}

static int read_ct(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    const char *format = NULL, *sparsity = NULL, *key;
    json_t *groups = json_object_get(obj, "config_groups"), *g;
    const json_t *transform = json_object_get(obj, "transform_config");
    int rc = sv_json_str_opt(obj, "format", &format, err);
    if (!rc && json_object_size(json_object_get(obj, "sparsity_config")))
        rc = sv_json_str_opt(json_object_get(obj, "sparsity_config"), "format", &sparsity, err);
    if (!rc && sparsity && !is(sparsity, "dense"))
        rc = refuse("sparsity_config", sparsity, err);
    if (!rc && json_object_size(json_object_get(transform, "config_groups")))
        rc = refuse("transform_config", "(the weights are rotated)", err);
    if (!rc)
        rc = check_caches(json_object_get(obj, "kv_cache_scheme"), err);
    if (!rc && (!json_is_object(groups) || !json_object_size(groups)))
        rc = sv_fail(err, SV_EFORMAT, -1, "'config_groups' is missing or empty");
    if (!rc && json_object_size(groups) > SV_MAX_SCHEMES)
        rc = refuse("config_groups", "of so many groups", err);
    if (!rc)
        rc = names_of(obj, "ignore", &q->ignore, err);
    if (rc)
        return rc;
    json_object_foreach(groups, key, g) {
        rc = read_group(q, g, format, err);
        if (rc)
            return sv_err_prefix(err, "'config_groups.%.40s'", key);
    }
    return SV_OK;
}

/* ---------------------------------------------------------------- modelopt, AWQ, GPTQ */

/* The code of quant_algo, with group_size; SV_CODE_NONE: not supported. */
static struct sv_scheme scheme_of_algo(const char *algo, int64_t group)
{
    static const struct {
        const char *name;
        struct sv_scheme scheme;
    } algos[] = {{"FP8", {.code = SV_CODE_F8}},
                 {"FP8_PER_CHANNEL_PER_TOKEN", {.code = SV_CODE_F8, .block_rows = 1}},
                 {"FP8_PB_WO", {.code = SV_CODE_F8, .block_rows = 128, .block_cols = 128}},
                 {"NVFP4", {.code = SV_CODE_NVFP4, .block_rows = 1, .block_cols = 16}}};
    for (size_t i = 0; i < sizeof algos / sizeof algos[0]; i++)
        if (is(algo, algos[i].name) && (algos[i].scheme.code != SV_CODE_NVFP4 || group == 16))
            return algos[i].scheme;
    return (struct sv_scheme){0};
}

/* Of these algorithms. */
static bool same_scheme(const struct sv_scheme *a, const struct sv_scheme *b)
{
    return a->code == b->code && a->block_rows == b->block_rows && a->block_cols == b->block_cols;
}

static int read_algo(const json_t *obj, struct sv_scheme *s, struct sv_err *err)
{
    const char *algo = NULL;
    int64_t group = 16;
    int rc = sv_json_str_opt(obj, "quant_algo", &algo, err);
    if (!rc)
        rc = sv_json_int_opt(obj, "group_size", 0, INT32_MAX, &group, err);
    *s = scheme_of_algo(algo, group);
    if (!rc && !s->code)
        rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                     "'quant_algo' %.80s (group_size %lld) is not supported (FP8, "
                     "FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4 in groups of 16 are)",
                     algo ? algo : "null", (long long)group);
    return rc;
}

/* MIXED_PRECISION: every algorithm once. */
static int read_layers(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    json_t *layers = json_object_get(obj, "quantized_layers"), *one;
    const char *name;
    q->layers = layers;
    if (!json_is_object(layers) || !json_object_size(layers))
        return sv_fail(err, SV_EFORMAT, -1, "'quantized_layers' is missing or empty");
    json_object_foreach(layers, name, one) {
        struct sv_scheme s;
        int32_t i = 0;
        int rc = json_is_object(one) ? read_algo(one, &s, err)
                                     : sv_fail(err, SV_EFORMAT, -1, "not an object");
        if (rc)
            return sv_err_prefix(err, "'quantized_layers', '%.100s'", name);
        while (i < q->n_schemes && !same_scheme(&q->scheme[i], &s))
            i++;
        if (i == q->n_schemes)
            q->scheme[q->n_schemes++] = s;
    }
    return SV_OK;
}

static int read_modelopt(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    const json_t *inner = json_object_get(obj, "quantization"); /* hf_quant_config.json */
    const char *algo = NULL, *caches = NULL;
    obj = json_is_object(inner) ? inner : obj;
    int rc = sv_json_str_opt(obj, "quant_algo", &algo, err);
    if (!rc)
        rc = sv_json_str_opt(obj, "kv_cache_quant_algo", &caches, err);
    if (!rc && caches && !is(caches, "FP8"))
        rc = refuse("kv_cache_quant_algo", caches, err);
    if (!rc)
        rc = check_caches(json_object_get(obj, "kv_cache_scheme"), err);
    if (!rc)
        rc = names_of(obj, "ignore", &q->ignore, err);
    if (!rc && !q->ignore)
        rc = names_of(obj, "exclude_modules", &q->ignore, err);
    if (!rc && is(algo, "MIXED_PRECISION"))
        return read_layers(q, obj, err);
    if (!rc && (algo || !caches)) /* else caches alone */
        rc = read_algo(obj, &q->scheme[q->n_schemes++], err);
    return rc;
}

static int read_awq(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    const char *version = "gemm";
    int64_t bits = 4, group = 128;
    bool zeros = true;
    int rc = sv_json_str_opt(obj, "version", &version, err);
    if (!rc)
        rc = sv_json_int_opt(obj, "bits", 1, 64, &bits, err);
    if (!rc)
        rc = sv_json_int_opt(obj, "group_size", -1, INT32_MAX, &group, err);
    if (!rc)
        rc = sv_json_bool_opt(obj, "zero_point", &zeros, err);
    if (!rc && strcmp(version, "gemm") && strcmp(version, "GEMM"))
        rc = refuse("version", version, err);
    if (!rc && bits != 4)
        rc = refuse("bits", "other than 4 of AWQ", err);
    if (!rc)
        rc = names_of(obj, "modules_to_not_convert", &q->ignore, err);
    if (!rc)
        add(q, SV_CODE_AWQ, 1, group > 0 ? (int32_t)group : 0)->zeros = zeros;
    return rc;
}

/* Names, or lists of names that were quantized together; NULL: all. */
static int read_modules(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    static const char field[] = "modules_in_block_to_quantize";
    const json_t *list = json_object_get(obj, field);
    int rc = SV_OK;
    if (json_is_array(list) && !json_array_size(list))
        return SV_OK;
    if (!json_is_array(json_array_get(list, 0)))
        return names_of(obj, field, &q->modules, err);
    q->modules = list;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++)
        rc = check_names(json_array_get(list, i), field, err);
    return rc;
}

/* Expressions with settings, of which "-:" excludes layers. The others may repeat what holds for
 * all; what they say of the search for codes, as `sym` and `desc_act`, is not read. */
static int read_dynamic(struct sv_quant_config *q, const json_t *obj, int64_t bits, int64_t group,
                        struct sv_err *err)
{
    json_t *dynamic = json_object_get(obj, "dynamic"), *own;
    const char *key;
    if (!sv_json_has(obj, "dynamic"))
        return SV_OK;
    if (!json_is_object(dynamic))
        return sv_fail(err, SV_EFORMAT, -1, "'dynamic' must be an object");
    q->dynamic = dynamic;
    json_object_foreach(dynamic, key, own) {
        int64_t own_bits = bits, own_group = group;
        if (!strncmp(key, "-:", 2))
            continue;
        int rc = json_is_object(own) ? sv_json_int_opt(own, "bits", 1, 64, &own_bits, err)
                                     : sv_fail(err, SV_EFORMAT, -1, "not an object");
        if (!rc)
            rc = sv_json_int_opt(own, "group_size", -1, INT32_MAX, &own_group, err);
        if (!rc && (own_bits != bits || own_group != group))
            rc = sv_fail(err, SV_EUNSUPPORTED, -1,
                         "%lld bits in groups of %lld are not supported beside %lld in groups of "
                         "%lld",
                         (long long)own_bits, (long long)own_group, (long long)bits,
                         (long long)group);
        if (rc)
            return sv_err_prefix(err, "'dynamic', '%.100s'", key);
    }
    return SV_OK;
}

static int read_gptq(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    const char *format = "gptq";
    int64_t bits = 4, group = 128;
    int rc = sv_json_str_opt(obj, "checkpoint_format", &format, err);
    if (!rc)
        rc = sv_json_int(obj, "bits", 1, 64, &bits, err);
    if (!rc)
        rc = sv_json_int_opt(obj, "group_size", -1, INT32_MAX, &group, err);
    if (!rc && !is(format, "gptq") && !is(format, "gptq_v2"))
        rc = refuse("checkpoint_format", format, err);
    if (!rc && bits != 4 && bits != 8)
        rc = refuse("bits", "other than 4 and 8 of GPTQ", err);
    if (!rc)
        rc = read_modules(q, obj, err);
    if (!rc)
        rc = read_dynamic(q, obj, bits, group, err);
    if (rc)
        return rc;
    struct sv_scheme *s =
        add(q, bits == 4 ? SV_CODE_GPTQ4 : SV_CODE_GPTQ8, 1, group > 0 ? (int32_t)group : 0);
    s->zeros = s->permuted = true; /* both are always stored */
    q->zero_is_less_one = is(format, "gptq");
    return SV_OK;
}

bool sv_quant_is_mxfp4(const json_t *obj)
{
    return is(json_string_value(json_object_get(obj, "quant_method")), "mxfp4");
}

int sv_quant_config_read(struct sv_quant_config *q, const json_t *obj, struct sv_err *err)
{
    static const struct {
        const char *name;
        enum sv_quant_method method;
        int (*read)(struct sv_quant_config *q, const json_t *obj, struct sv_err *err);
    } methods[] = {{"fp8", SV_QUANT_FP8, read_fp8},
                   {"compressed-tensors", SV_QUANT_CT, read_ct},
                   {"modelopt", SV_QUANT_MODELOPT, read_modelopt},
                   {"modelopt_fp4", SV_QUANT_MODELOPT, read_modelopt},
                   {"modelopt_mixed", SV_QUANT_MODELOPT, read_modelopt},
                   {"awq", SV_QUANT_AWQ, read_awq},
                   {"gptq", SV_QUANT_GPTQ, read_gptq}};
    const char *name = NULL;
    memset(q, 0, sizeof *q);
    if (!json_is_object(obj))
        return sv_fail(err, SV_EFORMAT, -1, "not an object");
    int rc = sv_json_str_opt(obj, "quant_method", &name, err);
    if (rc)
        return rc;
    if (!name && json_is_object(json_object_get(obj, "quantization")))
        name = "modelopt";
    for (size_t i = 0; name && i < sizeof methods / sizeof methods[0]; i++) {
        if (strcmp(name, methods[i].name) != 0)
            continue;
        q->method = methods[i].method;
        return methods[i].read(q, obj, err);
    }
    return sv_fail(err, SV_EUNSUPPORTED, -1, "quantized weights (%.60s) are not supported",
                   name ? name : "of an unnamed kind");
}

/* ---------------------------------------------------------------- names of layers */

/* Spellings of a layer in files; the bare name is that of lm_head. */
static const char *const before[] = {"model.", "", "language_model.model.", "language_model.",
                                     "model.language_model."};
enum { N_BEFORE = sizeof before / sizeof before[0] };

/* Whether entry, a mark of n_mark bytes and a regular expression, matches one of the layer's names
 * from its start. */
static int regex_matches(const char *entry, size_t n_mark, const char *layer, bool *yes,
                         struct sv_err *err)
{
    const char *pattern = entry + n_mark;
    char full[512];
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED, &code, &at, NULL);
    if (!re)
        return sv_fail(err, SV_EFORMAT, -1, "'%.80s' is no regular expression (at %zu)", entry,
                       n_mark + at);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    code = PCRE2_ERROR_NOMATCH;
    for (int k = 0; k < N_BEFORE && code == PCRE2_ERROR_NOMATCH; k++) {
        snprintf(full, sizeof full, "%s%s", before[k], layer);
        code = data ? pcre2_match(re, (PCRE2_SPTR)full, strlen(full), 0, 0, data, NULL)
                    : PCRE2_ERROR_NOMEMORY;
    }
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    *yes = code >= 0;
    return code >= 0 || code == PCRE2_ERROR_NOMATCH
               ? SV_OK
               : sv_fail(err, SV_EUNSUPPORTED, -1, "'%.80s' takes too long on '%.80s'", entry,
                         layer);
}

/* Whole components: "lm_head", "model.layers.0", "mlp.gate" (not of "mlp.gate_proj"). */
static bool has_components(const char *layer, const char *part)
{
    const size_t n = strlen(part);
    for (const char *at = strstr(layer, part); n && at; at = strstr(at + 1, part))
        if ((at == layer || at[-1] == '.') && (!at[n] || at[n] == '.'))
            return true;
    return false;
}

static bool entry_matches(const struct sv_quant_config *q, const char *entry, const char *layer)
{
    switch (q->method) {
    case SV_QUANT_CT:
        return !strcmp(entry, layer);
    case SV_QUANT_MODELOPT:
        return fnmatch(entry, layer, 0) == 0 || has_components(layer, entry);
    case SV_QUANT_AWQ:
        return *entry && strstr(layer, entry);
    default:
        return has_components(layer, entry);
    }
}

/* Whether a list of names, or of such lists, names the layer; *entry: the match. */
static int list_matches(const struct sv_quant_config *q, const json_t *list, const char *layer,
                        const char **entry, struct sv_err *err)
{
    char full[512];
    *entry = NULL;
    for (size_t i = 0; i < json_array_size(list) && !*entry; i++) {
        const json_t *item = json_array_get(list, i);
        const char *name = json_string_value(item);
        const bool regex = name && q->method == SV_QUANT_CT && !strncmp(name, "re:", 3);
        bool yes = false;
        int rc = !name   ? list_matches(q, item, layer, entry, err)
                 : regex ? regex_matches(name, 3, layer, &yes, err)
                         : SV_OK;
        if (rc)
            return rc;
        if (!name)
            continue;
        for (int k = 0; k < N_BEFORE && !yes && !regex; k++) {
            snprintf(full, sizeof full, "%s%s", before[k], layer);
            yes = entry_matches(q, name, full);
        }
        if (yes)
            *entry = name;
    }
    return SV_OK;
}

/* The entry of quantized_layers for a layer or its parent; NULL: none. */
static const json_t *entry_of(const struct sv_quant_config *q, const char *layer)
{
    char full[512];
    for (int k = 0; k < N_BEFORE; k++) {
        snprintf(full, sizeof full, "%s%s", before[k], layer);
        for (char *end = full; end;) {
            const json_t *entry = json_object_get(q->layers, full);
            if (entry)
                return entry;
            end = strrchr(full, '.');
            if (end)
                *end = 0;
        }
    }
    return NULL;
}

static int scheme_of_layer(const struct sv_quant_config *q, const char *layer,
                           const struct sv_scheme **scheme, const char **why, struct sv_err *err)
{
    const json_t *entry = entry_of(q, layer);
    struct sv_scheme s;
    *why = "quantized_layers";
    if (!entry)
        return SV_OK;
    int rc = read_algo(entry, &s, err);
    for (int32_t i = 0; i < q->n_schemes && !rc; i++)
        if (same_scheme(&q->scheme[i], &s))
            *scheme = &q->scheme[i];
    return rc;
}

/* GPTQ: *entry: the expression or field that excludes the layer, or NULL. As in GPTQModel the first
 * expression that matches decides. */
static int excluded(const struct sv_quant_config *q, const char *layer, const char **entry,
                    struct sv_err *err)
{
    json_t *value;
    const char *key;
    int rc = SV_OK;
    json_object_foreach((json_t *)(uintptr_t)q->dynamic, key, value) {
        const bool minus = !strncmp(key, "-:", 2);
        bool yes;
        rc = regex_matches(key, minus || !strncmp(key, "+:", 2) ? 2 : 0, layer, &yes, err);
        *entry = !rc && yes && minus ? key : NULL;
        if (rc || *entry)
            return rc;
        if (yes)
            break;
    }
    if (q->modules && strcmp(layer, "lm_head") != 0) { /* which is in no block */
        rc = list_matches(q, q->modules, layer, entry, err);
        *entry = *entry ? NULL : "modules_in_block_to_quantize";
    }
    return rc;
}

int sv_quant_config_scheme(const struct sv_quant_config *q, const char *layer,
                           const struct sv_scheme **scheme, const char **why, struct sv_err *err)
{
    const char *entry = NULL;
    *scheme = NULL;
    *why = "";
    int rc = q->method == SV_QUANT_GPTQ ? excluded(q, layer, &entry, err)
                                        : list_matches(q, q->ignore, layer, &entry, err);
    if (rc || entry) {
        *why = entry ? entry : "";
        return rc;
    }
    if (q->layers)
        return scheme_of_layer(q, layer, scheme, why, err);
    /* names and expressions precede the class of all linear layers */
    for (int32_t i = 0; i < q->n_schemes && !*scheme; i++) {
        rc = list_matches(q, q->targets[i], layer, &entry, err);
        if (rc)
            return rc;
        if (entry)
            *scheme = &q->scheme[i];
    }
    for (int32_t i = 0; i < q->n_schemes && !*scheme; i++) {
        const json_t *list = q->targets[i];
        bool all = !list;
        for (size_t k = 0; k < json_array_size(list); k++)
            all = all || is(json_string_value(json_array_get(list, k)), "Linear");
        if (all)
            *scheme = &q->scheme[i];
    }
    return SV_OK;
}
