/*
 * rope.c - rotary position embedding: reading its parameters in both layouts and filling the table.
 *
 * Called by config.c and draft.c (parse) and by model (fill). The arithmetic follows transformers
 * step by step, in float where transformers uses float32 tensors, because a frequency that differs
 * in the last bit is a phase error at long positions. Must not: fuse or reorder that arithmetic.
 */
#include "load/impl.h"

#include <math.h>
#include <string.h>

#define MAX_POSITION (1 << 27)
#define TWO_PI 6.283185307179586

/* ---------------------------------------------------------------- parsing */

static int parse_kind(struct sv_rope *r, const json_t *dict, struct sv_err *err)
{
    static const struct {
        const char *name;
        enum sv_rope_kind kind;
    } table[] = {{"default", SV_ROPE_DEFAULT},
                 {"linear", SV_ROPE_LINEAR},
                 {"llama3", SV_ROPE_LLAMA3},
                 {"yarn", SV_ROPE_YARN}};
    const char *name = NULL;
    int rc = sv_json_str_opt(dict, "rope_type", &name, err);
    if (!rc && !name)
        rc = sv_json_str_opt(dict, "type", &name, err);
    if (rc)
        return rc;
    if (!name && sv_json_has(dict, "factor"))
        return sv_fail(err, SV_EFORMAT, -1, "field 'rope_type' is missing");
    if (!name)
        name = "default";
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (!strcmp(name, table[i].name)) {
            r->kind = table[i].kind;
            return SV_OK;
        }
    }
    return sv_fail(err, SV_EUNSUPPORTED, -1,
                   "RoPE type '%.60s' is not supported (default, linear, llama3 and yarn are)",
                   name);
}

static int parse_llama3(struct sv_rope *r, const json_t *dict, struct sv_err *err)
{
    int rc = sv_json_num(dict, "low_freq_factor", 1e-6, 1e6, &r->low_freq_factor, err);
    if (!rc)
        rc = sv_json_num(dict, "high_freq_factor", 1e-6, 1e6, &r->high_freq_factor, err);
    if (!rc)
        rc = sv_json_i32(dict, "original_max_position_embeddings", 1, MAX_POSITION,
                         &r->original_max_position, err);
    if (!rc && r->high_freq_factor <= r->low_freq_factor)
        rc = sv_fail(err, SV_EINVAL, -1, "'high_freq_factor' must be above 'low_freq_factor'");
    return rc;
}

static int parse_yarn(struct sv_rope *r, const json_t *dict, const json_t *root,
                      int32_t max_position, struct sv_err *err)
{
    bool truncate = true;
    r->original_max_position = max_position;
    int rc = sv_json_i32_opt(dict, "original_max_position_embeddings", 1, MAX_POSITION,
                             &r->original_max_position, err);
    if (!rc) /* wins, as in transformers 5 */
        rc = sv_json_i32_opt(root, "original_max_position_embeddings", 1, MAX_POSITION,
                             &r->original_max_position, err);
    if (!rc)
        rc = sv_json_num_opt(dict, "beta_fast", 0, 1e6, &r->beta_fast, err);
    if (!rc)
        rc = sv_json_num_opt(dict, "beta_slow", 0, 1e6, &r->beta_slow, err);
    if (!rc)
        rc = sv_json_num_opt(dict, "mscale", 0, 1e3, &r->mscale, err);
    if (!rc)
        rc = sv_json_num_opt(dict, "mscale_all_dim", 0, 1e3, &r->mscale_all_dim, err);
    if (!rc)
        rc = sv_json_num_opt(dict, "attention_factor", 1e-6, 1e3, &r->attention_factor, err);
    if (!rc)
        rc = sv_json_bool_opt(dict, "truncate", &truncate, err);
    if (rc)
        return rc;
    if (r->beta_fast == 0)
        r->beta_fast = 32;
    if (r->beta_slow == 0)
        r->beta_slow = 1;
    r->no_truncate = !truncate;
    if (r->factor == 0)
        r->factor = (double)max_position / r->original_max_position;
    if (r->factor < 1)
        return sv_fail(err, SV_EINVAL, -1, "'factor' of yarn is missing or below 1");
    return SV_OK;
}

static int parse_dict(struct sv_rope *r, const json_t *dict, const json_t *root,
                      int32_t max_position, struct sv_err *err)
{
    int rc = parse_kind(r, dict, err);
    if (!rc)
        rc = sv_json_num_opt(dict, "partial_rotary_factor", 1e-3, 1, &r->partial, err);
    if (rc || r->kind == SV_ROPE_DEFAULT)
        return rc;
    if (r->kind == SV_ROPE_YARN) /* may be left out there */
        rc = sv_json_num_opt(dict, "factor", 1, 1e6, &r->factor, err);
    else
        rc = sv_json_num(dict, "factor", 1, 1e6, &r->factor, err);
    if (rc)
        return rc;
    if (r->kind == SV_ROPE_LLAMA3)
        return parse_llama3(r, dict, err);
    return r->kind == SV_ROPE_YARN ? parse_yarn(r, dict, root, max_position, err) : SV_OK;
}

/* transformers 5 may nest one dict per layer type. One table serves all layers here, so they must
 * agree. */
static int flatten(const json_t **dict, struct sv_err *err)
{
    const char *key;
    json_t *value;
    const json_t *first = NULL;
    size_t n_objects = 0;
    json_object_foreach((json_t *)(uintptr_t)*dict, key, value) {
        if (!json_is_object(value))
            continue;
        n_objects++;
        if (!first)
            first = value;
        else if (!json_equal(first, value))
            return sv_fail(err, SV_EUNSUPPORTED, -1,
                           "different parameters per layer type ('%.60s') are not supported", key);
    }
    if (!first)
        return SV_OK;
    if (n_objects != json_object_size(*dict))
        return sv_fail(err, SV_EFORMAT, -1,
                       "parameters of all layers and of layer types are mixed");
    *dict = first;
    return SV_OK;
}

static int get_dict(const json_t *root, const char *key, const json_t **dict, struct sv_err *err)
{
    *dict = json_object_get(root, key);
    if (!*dict || json_is_null(*dict)) {
        *dict = NULL;
        return SV_OK;
    }
    if (!json_is_object(*dict))
        return sv_fail(err, SV_EFORMAT, -1, "field '%s' must be an object", key);
    int rc = flatten(dict, err);
    return rc ? sv_err_prefix(err, "field '%s'", key) : SV_OK;
}

static int parse_theta(struct sv_rope *r, const json_t *dict, const json_t *root,
                       double default_theta, struct sv_err *err)
{
    double inner = 0, outer = 0;
    int rc = dict ? sv_json_num_opt(dict, "rope_theta", 1.0001, 1e15, &inner, err) : SV_OK;
    if (!rc)
        rc = sv_json_num_opt(root, "rope_theta", 1.0001, 1e15, &outer, err);
    if (rc)
        return rc;
    if (inner != 0 && outer != 0 && inner != outer)
        return sv_fail(err, SV_EFORMAT, -1, "two values of 'rope_theta': %g and %g", inner, outer);
    r->theta = inner != 0 ? inner : outer != 0 ? outer : default_theta;
    if (r->theta == 0)
        return sv_fail(
            err, SV_EFORMAT, -1,
            "field 'rope_theta' is missing (looked at top level and in rope_parameters)");
    return SV_OK;
}

int sv_rope_parse(struct sv_rope *r, const json_t *root, const struct sv_arch_row *row,
                  int32_t max_position, struct sv_err *err)
{
    memset(r, 0, sizeof *r);
    const json_t *v5, *v4;
    int rc = get_dict(root, "rope_parameters", &v5, err);
    if (!rc)
        rc = get_dict(root, "rope_scaling", &v4, err);
    if (rc)
        return rc;
    struct sv_rope other = {0};
    const json_t *dict = v5 ? v5 : v4;
    if (dict)
        rc = parse_dict(r, dict, root, max_position, err);
    else if (row->rope)
        *r = *row->rope;
    if (!rc && v5 && v4)
        rc = parse_dict(&other, v4, root, max_position, err);
    if (rc)
        return sv_err_prefix(err, "field '%s'", v5 ? "rope_parameters" : "rope_scaling");
    if (v5 && v4 && (other.kind != r->kind || other.factor != r->factor))
        return sv_fail(err, SV_EFORMAT, -1, "'rope_parameters' and 'rope_scaling' disagree");
    return parse_theta(r, dict, root, row->rope_theta, err);
}

/* ---------------------------------------------------------------- table */

/* theta ^ (i / half) and its inverse, rounded where transformers rounds. */
static float pos_freq(const struct sv_rope *rope, int32_t i, int32_t head_dim)
{
    float exponent = (float)(2 * i) / (float)head_dim;
    return (float)pow(rope->theta, (double)exponent);
}

static float llama3_freq(const struct sv_rope *rope, float inv_freq)
{
    float factor = (float)rope->factor;
    float low = (float)rope->low_freq_factor;
    float range = (float)(rope->high_freq_factor - rope->low_freq_factor);
    float old_len = (float)rope->original_max_position;
    float low_wavelen = (float)(rope->original_max_position / rope->low_freq_factor);
    float high_wavelen = (float)(rope->original_max_position / rope->high_freq_factor);
    float wavelen = (float)TWO_PI / inv_freq;
    if (wavelen > low_wavelen)
        return inv_freq / factor;
    if (wavelen < high_wavelen)
        return inv_freq;
    float smooth = (old_len / wavelen - low) / range;
    float slow = (1.0f - smooth) * inv_freq;
    slow = slow / factor;
    float fast = smooth * inv_freq;
    return slow + fast;
}

void sv_rope_factors(const struct sv_rope *r, int32_t head_dim, float *out)
{
    for (int32_t i = 0; i < head_dim / 2; i++) {
        const float inv_freq = 1.0f / pos_freq(r, i, head_dim);
        out[i] = inv_freq / llama3_freq(r, inv_freq);
    }
}

/* The pair index at which a frequency makes n_turns over the original context. */
static double yarn_dim(const struct sv_rope *rope, double n_turns, int32_t head_dim)
{
    double turns = rope->original_max_position / (n_turns * TWO_PI);
    return head_dim * log(turns) / (2 * log(rope->theta));
}

static void yarn_range(const struct sv_rope *rope, int32_t head_dim, float *low, float *span)
{
    double lo = yarn_dim(rope, rope->beta_fast > 0 ? rope->beta_fast : 32, head_dim);
    double hi = yarn_dim(rope, rope->beta_slow > 0 ? rope->beta_slow : 1, head_dim);
    if (!rope->no_truncate) {
        lo = floor(lo);
        hi = ceil(hi);
    }
    lo = lo > 0 ? lo : 0;
    hi = hi < head_dim - 1 ? hi : head_dim - 1;
    if (lo == hi)
        hi += 0.001; /* as transformers: prevents a division by zero */
    *low = (float)lo;
    *span = (float)(hi - lo);
}

static float yarn_freq(const struct sv_rope *rope, int32_t i, float freq, float low, float span)
{
    float ramp = ((float)i - low) / span;
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    float keep = 1.0f - ramp; /* share of the unscaled frequency */
    float scaled_freq = (float)rope->factor * freq;
    float scaled = (1.0f / scaled_freq) * (1.0f - keep);
    float plain = (1.0f / freq) * keep;
    return scaled + plain;
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* Multiplies cos and sin. */
static float amplitude(const struct sv_rope *rope)
{
    if (rope->kind != SV_ROPE_YARN)
        return 1.0f;
    if (rope->attention_factor > 0)
        return (float)rope->attention_factor;
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return (float)(yarn_mscale(rope->factor, rope->mscale) /
                       yarn_mscale(rope->factor, rope->mscale_all_dim));
    return (float)yarn_mscale(rope->factor, 1);
}

float sv_rope_score_factor(const struct sv_rope *rope)
{
    if (rope->kind != SV_ROPE_YARN || !(rope->mscale_all_dim > 0))
        return 1.0f;
    const double m = yarn_mscale(rope->factor, rope->mscale_all_dim);
    return (float)(m * m);
}

void sv_rope_fill(const struct sv_rope *rope, int32_t rot_dim, int32_t n_pos, float *out)
{
    int32_t half = rot_dim / 2;
    float *cos_out = out;                         /* (n_pos, half) */
    float *sin_out = out + (int64_t)n_pos * half; /* (n_pos, half) */
    float scale = amplitude(rope), low = 0, span = 1;
    if (rope->kind == SV_ROPE_YARN)
        yarn_range(rope, rot_dim, &low, &span);
    for (int32_t i = 0; i < half; i++) {
        float freq = pos_freq(rope, i, rot_dim);
        float inv_freq = 1.0f / freq;
        if (rope->kind == SV_ROPE_LINEAR)
            inv_freq = inv_freq / (float)rope->factor;
        else if (rope->kind == SV_ROPE_LLAMA3)
            inv_freq = llama3_freq(rope, inv_freq);
        else if (rope->kind == SV_ROPE_YARN)
            inv_freq = yarn_freq(rope, i, freq, low, span);
        else if (rope->kind == SV_ROPE_FACTORS)
            inv_freq = inv_freq / rope->factors[i];
        for (int32_t p = 0; p < n_pos; p++) {
            float angle = (float)p * inv_freq;
            cos_out[(int64_t)p * half + i] = (float)cos((double)angle) * scale;
            sin_out[(int64_t)p * half + i] = (float)sin((double)angle) * scale;
        }
    }
}
